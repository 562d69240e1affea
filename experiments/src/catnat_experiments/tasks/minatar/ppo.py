"""PPO on MinAtar in JAX: one jitted program plays and learns for many seeds in parallel.

The experiment compares maps from the policy's scores to probabilities of actions, and bounds on the size of an update.
Environments are gymnax's, with no sticky actions and with episodes of at most 1,000 steps. So returns are not
comparable with those of the original MinAtar. Actor and critic have two hidden layers of 64 units each. A convolution
in their place takes seven times as long on a CPU.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

# One core for a group of runs. XLA reads this once, at its first use, and would otherwise use all cores.
os.environ.setdefault("NPROC", "1")

import gymnax
import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

import catnat.jax as cj

GAMES = ("Breakout", "SpaceInvaders")
DAMPING = 0.01
"""The damping of natural gradients. It changes those of the first nodes little, and bounds all factors by 100."""
DISCOUNT, DECAY = 0.99, 0.95
"""Gamma and lambda."""
LARGEST_GRADIENT = 0.5
"""The largest norm of the gradients, which are clipped separately for actor and critic."""

# ---- policies --------------------------------------------------------------------------------------------------------


class Softmax(NamedTuple):
    """A distribution of actions from logits, with the methods that PPO needs: the counterpart of ``cj.Catnat``."""

    scores: Array

    def sample(self, *, key: Array) -> Array:
        """Draw an action."""
        return jax.random.categorical(key, self.scores)

    def log_prob(self, action: Array) -> Array:
        """Return the log-probability of an action."""
        return jnp.take_along_axis(jax.nn.log_softmax(self.scores), action[..., None], -1)[..., 0]

    def entropy(self) -> Array:
        """Return the entropy in nats."""
        return -(jax.nn.softmax(self.scores) * jax.nn.log_softmax(self.scores)).sum(-1)

    def kl_divergence(self, other: Softmax) -> Array:
        """Return the KL divergence ``KL(self || other)``."""
        difference = jax.nn.log_softmax(self.scores) - jax.nn.log_softmax(other.scores)
        return (jax.nn.softmax(self.scores) * difference).sum(-1)


@dataclasses.dataclass(frozen=True)
class Policy:
    """A map from scores to a distribution of actions, and the kind of their gradient.

    Attributes:
        name: The name in configs and records.
        activation: The activation of the tree; None for softmax.
        damping: The damping of the natural gradient of the scores; None for the plain gradient.
        trust_region: Whether updates are bounded by :func:`aims`, not by clipped ratios.
    """

    name: str
    activation: cj.Activation | None
    damping: float | None = None
    trust_region: bool = False

    def num_scores(self, actions: int) -> int:
        """Return the number of scores: one per action, or one per inner node of the balanced tree."""
        return actions if self.activation is None else actions - 1

    def distribution(self, scores: Array) -> Any:
        """Return the distribution of actions."""
        return Softmax(scores) if self.activation is None else cj.Catnat(scores, activation=self.activation)

    def wrap(self, scores: Array) -> Array:
        """Return the scores unchanged, with the natural gradient in the backward pass if the policy has one."""
        if self.damping is None:
            return scores
        if self.activation is None:
            return cj.geometry.softmax_natural_gradient(scores, damping=self.damping)
        return cj.geometry.natural_gradient(scores, activation=self.activation, damping=self.damping)

    def saturated(self, scores: Array) -> Array:
        """Return which scores are saturated: nodes without gradient, or actions whose probability underflows to 0."""
        if self.activation is None:
            return jax.nn.softmax(scores) == 0
        return cj.geometry.saturated(scores, activation=self.activation)


POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("softmax", None),
        Policy("softmax-damped-gradient", None, damping=DAMPING),
        Policy("sigmoid", cj.sigmoid()),
        Policy("natural", cj.natural()),
        Policy("natural-damped-gradient", cj.natural(), damping=DAMPING),
        Policy("sigmoid-trust-region", cj.sigmoid(), trust_region=True),
    )
}


def policy_of(name: str) -> Policy:
    """Return the policy of a name.

    >>> policy_of("natural").num_scores(4)
    3
    """
    if name not in POLICIES:
        raise ValueError(f"`parameterization` is {name!r}, but one of these is needed: {', '.join(POLICIES)}.")
    return POLICIES[name]


# ---- networks --------------------------------------------------------------------------------------------------------

Layers = list[tuple[Array, Array]]


class Networks(NamedTuple):
    """The weights and biases of both networks' layers."""

    actor: Layers
    critic: Layers


def start_layers(key: Array, widths: tuple[int, ...], last: float) -> Layers:
    """Return orthogonal weights of gain sqrt(2), in the last layer of gain ``last``, and zero biases."""
    layers = []
    for place, (before, after) in enumerate(itertools.pairwise(widths)):
        gain = last if place == len(widths) - 2 else 2**0.5
        weight = jax.nn.initializers.orthogonal(gain)(jax.random.fold_in(key, place), (before, after))
        layers.append((weight, jnp.zeros(after)))
    return layers


def apply_layers(layers: Layers, observation: Array) -> Array:
    """Return the last layer's outputs for observations (batch, ...), with ReLU between layers."""
    x = observation.reshape(len(observation), -1).astype(jnp.float32)
    for weight, bias in layers[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = layers[-1]
    return x @ weight + bias


def values_of(critic: Layers, observation: Array) -> Array:
    """Return the critic's values, (batch,)."""
    return apply_layers(critic, observation)[:, 0]


# ---- advantages and losses -------------------------------------------------------------------------------------------


def advantages(rewards: Array, values: Array, next_values: Array, terminated: Array, ended: Array) -> Array:
    r"""Return generalized advantage estimates; all arguments are (steps, ...).

    .. math:: \delta_t = r_t + \gamma\,(1 - \text{terminated}_t)\, V(s'_t) - V(s_t), \qquad
        A_t = \delta_t + \gamma \lambda\,(1 - \text{ended}_t)\, A_{t+1}

    An episode at its time limit has ended but not terminated, so the value of its last state is used.
    """
    deltas = rewards + DISCOUNT * (1 - terminated) * next_values - values

    def back(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        delta, end = now
        total = delta + DISCOUNT * DECAY * (1 - end) * later
        return total, total

    return lax.scan(back, jnp.zeros_like(deltas[0]), (deltas, ended.astype(deltas.dtype)), reverse=True)[1]


def clipped_loss(log_prob: Array, old_log_prob: Array, advantage: Array, clip: Array) -> Array:
    r"""Return :math:`-\min(r A, \operatorname{clip}(r, 1 - \epsilon, 1 + \epsilon) A)` with the ratio r = new / old."""
    ratio = jnp.exp(log_prob - old_log_prob)
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)


class Aim(NamedTuple):
    """The aim of a state's scores, with the Fisher diagonal and the step length for distances to it."""

    scores: Array
    fisher: Array
    length: Array


def aims(policy: Policy, scores: Array, action: Array, advantage: Array, clip: Array) -> Aim:
    r"""Return the aims of a batch of scores (batch, nodes): a trust region in closed form.

    In score space the natural gradient is one division, and :func:`catnat.jax.geometry.kl_step` returns the step with a
    given KL divergence for each row. The aim of a state is its old scores plus a natural gradient step. The mean
    divergence of the steps is ``clip``, and their length is the same for all states to second order.

    The loss (:func:`aim_loss`) is the squared distance to the aim in the Fisher metric. Its gradient is the policy
    gradient at the old scores, and zero at the aim. Each aim is from one action, so the aims of similar states have
    different directions. The network moves a tenth of their length or less, about as far as with clipping at the same
    number.
    """
    activation = policy.activation
    if activation is None:
        raise ValueError("A trust region in closed form needs a diagonal Fisher matrix: use a tree, not softmax.")
    gradient = jax.grad(lambda scores: -(advantage * policy.distribution(scores).log_prob(action)).sum())(scores)
    fisher = cj.geometry.fisher_diagonal(scores, activation=activation)
    square = jnp.where(fisher > 0, jnp.square(gradient) / jnp.where(fisher > 0, fisher, 1), 0).sum(-1)
    square = jnp.maximum(square, 1e-30)  # for an advantage of 0, because a divergence must be positive
    step = cj.geometry.kl_step(scores, gradient, clip * square / square.mean(), activation=activation)
    return Aim(scores + step, fisher, jnp.broadcast_to(jnp.sqrt(2 * clip / square.mean()), square.shape))


def aim_loss(scores: Array, aim: Aim) -> Array:
    r"""Return the squared Fisher distance over twice the length, :math:`\frac1{2t} \sum_i G_{ii} (s_i - s^*_i)^2`."""
    return (aim.fisher * jnp.square(scores - aim.scores)).sum(-1) / (2 * aim.length)


# ---- one update ------------------------------------------------------------------------------------------------------


class Sizes(NamedTuple):
    """The sizes that determine the shapes of the program.

    Attributes:
        envs: The number of copies of the game that a seed plays in parallel.
        length: The number of steps of each copy between two updates.
        epochs: The number of passes of an update over these steps.
        minibatches: The number of minibatches of a pass.
        hidden: The width of both hidden layers.
    """

    envs: int
    length: int
    epochs: int
    minibatches: int
    hidden: int


class Knobs(NamedTuple):
    """The hyperparameters of a run that can change without compiling another program."""

    rate: Array
    clip: Array
    entropy: Array
    updates: Array
    """The total number of updates, over which the learning rate decays to 0."""


class Run(NamedTuple):
    """The state of a run. Random numbers depend only on the seed and the number of the update."""

    seed: Array
    update: Array
    networks: Networks
    moments: Networks
    games: Any
    observation: Array
    returns: Array
    """The returns so far of the episodes in progress."""


class Played(NamedTuple):
    """The data of one step, or of many."""

    observation: Array
    scores: Array
    action: Array
    log_prob: Array
    value: Array
    reward: Array
    terminated: Array
    ended: Array
    next_observation: Array
    """The observation before a new episode begins."""
    episode_return: Array
    """The return of an episode that has just ended, else 0."""


class Batch(NamedTuple):
    """The training data of an update, (steps, ...)."""

    observation: Array
    action: Array
    log_prob: Array
    advantage: Array
    goal: Array
    """The target of the critic."""
    aim: Aim | None


class Found(NamedTuple):
    """The metrics of an update: sums over episodes, and means over its steps."""

    episodes: Array
    returns: Array
    entropy: Array
    dead: Array
    divergence: Array
    """The KL divergence from the old policy to the new one."""


class Program(NamedTuple):
    """The functions of one game and policy, both mapped over the seeds on the first axis and jitted."""

    start: Callable[[Array], Run]
    update: Callable[[Run, Knobs], tuple[Run, Found]]


@functools.cache
def program(game: str, name: str, sizes: Sizes) -> Program:
    """Return the program of a game, a policy and sizes, compiled once per process."""
    learner = Learner(game, policy_of(name), sizes)
    return Program(jax.jit(jax.vmap(learner.start)), jax.jit(jax.vmap(learner.update), donate_argnums=0))


class Learner:
    """PPO with one policy on one game, for one seed."""

    def __init__(self, game: str, policy: Policy, sizes: Sizes) -> None:
        self.policy, self.sizes = policy, sizes
        if game not in GAMES:
            raise ValueError(f"`game` is {game!r}, but one of these is needed: {', '.join(GAMES)}.")
        self.env, self.params = gymnax.make(f"{game}-MinAtar")
        steps = sizes.envs * sizes.length
        if steps % sizes.minibatches:
            raise ValueError(
                f"`minibatches` is {sizes.minibatches}, but it must divide the {steps} steps of an update "
                f"({sizes.envs} `envs` x {sizes.length} `length`)."
            )
        # Without the learning rate, which `learn` applies: a knob may change without compiling again.
        self.optimizer = optax.chain(optax.clip_by_global_norm(LARGEST_GRADIENT), optax.scale_by_adam(eps=1e-5))

    def start(self, seed: Array) -> Run:
        """Return a new run."""
        actor, critic, games = jax.random.split(jax.random.fold_in(jax.random.key(seed), 0), 3)
        observation, state = jax.vmap(self.env.reset, (0, None))(jax.random.split(games, self.sizes.envs), self.params)
        inputs, hidden = observation[0].size, self.sizes.hidden
        scores = self.policy.num_scores(self.env.num_actions)
        networks = Networks(
            start_layers(actor, (inputs, hidden, hidden, scores), last=0.01),
            start_layers(critic, (inputs, hidden, hidden, 1), last=1.0),
        )
        moments = Networks(*map(self.optimizer.init, networks))
        zeros = jnp.zeros(self.sizes.envs)
        return _strong(Run(seed, jnp.zeros((), jnp.int32), networks, moments, state, observation.astype(bool), zeros))

    def update(self, run: Run, knobs: Knobs) -> tuple[Run, Found]:
        """Play, train on the steps played, and return the run with the metrics of the update."""
        play_key, learn_key = jax.random.split(jax.random.fold_in(jax.random.key(run.seed), run.update + 1))
        run, played = self.play(run, play_key)
        rate = knobs.rate * (1 - run.update / knobs.updates)
        batch = self.batch(run.networks, played, knobs)
        networks, moments = self.learn(run.networks, run.moments, batch, knobs, rate, learn_key)
        flat = jax.tree.map(_flat, played)
        old, new = flat.scores, apply_layers(networks.actor, flat.observation)
        found = Found(
            episodes=played.ended.sum(),
            returns=played.episode_return.sum(),
            entropy=self.policy.distribution(old).entropy().mean(),
            dead=self.policy.saturated(old).mean(),
            divergence=self.policy.distribution(old).kl_divergence(self.policy.distribution(new)).mean(),
        )
        return _strong(run._replace(networks=networks, moments=moments, update=run.update + 1)), found

    def play(self, run: Run, key: Array) -> tuple[Run, Played]:
        """Do ``length`` steps of all copies of the game."""

        def step(run: Run, key: Array) -> tuple[Run, Played]:
            act_key, step_key = jax.random.split(key)
            scores = apply_layers(run.networks.actor, run.observation)
            actions = self.policy.distribution(scores)
            action = actions.sample(key=act_key)
            keys = jax.random.split(step_key, self.sizes.envs)
            observation, games, reward, terminated, truncated, about = jax.vmap(self.env.step, (0, 0, 0, None))(
                keys, run.games, action, self.params
            )
            ended, returns = terminated | truncated, run.returns + reward
            played = Played(
                observation=run.observation,
                scores=scores,
                action=action,
                log_prob=actions.log_prob(action),
                value=values_of(run.networks.critic, run.observation),
                reward=reward,
                terminated=terminated,
                ended=ended,
                next_observation=about["final_observation"].astype(bool),
                episode_return=jnp.where(ended, returns, 0),
            )
            returns = jnp.where(ended, 0, returns)
            return run._replace(games=games, observation=observation.astype(bool), returns=returns), played

        return lax.scan(step, run, jax.random.split(key, self.sizes.length))

    def batch(self, networks: Networks, played: Played, knobs: Knobs) -> Batch:
        """Return the data for the losses, with advantages normalized over the batch."""
        next_values = values_of(networks.critic, _flat(played.next_observation)).reshape(played.value.shape)
        gained = advantages(played.reward, played.value, next_values, played.terminated, played.ended)
        flat = jax.tree.map(_flat, played)
        gained = _flat(gained)
        advantage = (gained - gained.mean()) / (gained.std() + 1e-8)
        aim = None
        if self.policy.trust_region:
            aim = aims(self.policy, flat.scores, flat.action, advantage, knobs.clip)
        return Batch(flat.observation, flat.action, flat.log_prob, advantage, gained + flat.value, aim)

    def actor_loss(self, actor: Layers, batch: Batch, knobs: Knobs) -> Array:
        """Return the policy's loss minus the entropy bonus."""
        scores = self.policy.wrap(apply_layers(actor, batch.observation))
        actions = self.policy.distribution(scores)
        if batch.aim is None:
            loss = clipped_loss(actions.log_prob(batch.action), batch.log_prob, batch.advantage, knobs.clip)
        else:
            loss = aim_loss(scores, batch.aim)
        return jnp.mean(loss - knobs.entropy * actions.entropy())

    def critic_loss(self, critic: Layers, batch: Batch) -> Array:
        """Return half the mean squared error."""
        return jnp.mean(jnp.square(values_of(critic, batch.observation) - batch.goal)) / 2

    def learn(
        self, networks: Networks, moments: Networks, batch: Batch, knobs: Knobs, rate: Array, key: Array
    ) -> tuple[Networks, Networks]:
        """Do all epochs over a batch, each with minibatches in a new order; return the new networks and moments."""

        def step(both: tuple[Networks, Networks], picked: Array) -> tuple[tuple[Networks, Networks], None]:
            networks, moments = both
            part = jax.tree.map(lambda values: values[picked], batch)
            gradients = Networks(
                jax.grad(self.actor_loss)(networks.actor, part, knobs),
                jax.grad(self.critic_loss)(networks.critic, part),
            )
            changes, moments = map(Networks._make, zip(*map(self.optimizer.update, gradients, moments), strict=True))
            networks = jax.tree.map(lambda weight, change: weight - rate * change, networks, changes)
            return (networks, moments), None

        steps, epochs = len(batch.action), self.sizes.epochs
        orders = jax.vmap(lambda key: jax.random.permutation(key, steps))(jax.random.split(key, epochs))
        learned: tuple[Networks, Networks]
        learned, _ = lax.scan(step, (networks, moments), orders.reshape(epochs * self.sizes.minibatches, -1))
        return learned


def _flat(values: Array) -> Array:
    """Return values with steps and copies of the game as one axis."""
    return values.reshape(-1, *values.shape[2:])


def _strong(run: Run) -> Run:
    """Return a run with strong types, as a checkpoint has them; gymnax makes weak ones from Python's numbers.

    With weak types a resumed run would need another program, compiled again.
    """
    strong: Run = jax.tree.map(lambda leaf: lax.convert_element_type(leaf, leaf.dtype), run)
    return strong
