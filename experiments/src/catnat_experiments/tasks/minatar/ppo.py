"""PPO on MinAtar in JAX: one jitted program plays, learns, and does so for many seeds side by side.

What is compared is how the policy's scores become probabilities of actions, and how far one update may move them.
Environments are gymnax's: no sticky actions, and episodes of at most 1,000 steps, so returns are not comparable with
those of the original MinAtar. Networks are small, two hidden layers of 64 for the actor and two for the critic: a
convolution in their place takes seven times as long on a CPU.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

# One core for a group of runs. XLA reads it once, when it is first used, and would otherwise take all.
os.environ.setdefault("NPROC", "1")

import gymnax
import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

import catnat.jax as cj

GAMES = ("Breakout", "SpaceInvaders")
DAMPING = 0.01
"""Of the natural gradients: it leaves the first nodes alone, and bounds the steps of those below 1 in 100."""
DISCOUNT, DECAY = 0.99, 0.95
"""Gamma and lambda."""
LARGEST_GRADIENT = 0.5
"""The norm that the gradients of actor and critic are cut to, each by itself: neither can crowd out the other."""

# ---- policies --------------------------------------------------------------------------------------------------------


class Softmax(NamedTuple):
    """What PPO asks of a distribution of actions, for logits: the counterpart of ``cj.Catnat``."""

    scores: Array

    def sample(self, *, key: Array) -> Array:
        """Draw an action."""
        return jax.random.categorical(key, self.scores)

    def log_prob(self, action: Array) -> Array:
        """The log-probability of an action."""
        return jnp.take_along_axis(jax.nn.log_softmax(self.scores), action[..., None], -1)[..., 0]

    def entropy(self) -> Array:
        """The entropy in nats."""
        return -(jax.nn.softmax(self.scores) * jax.nn.log_softmax(self.scores)).sum(-1)

    def kl_divergence(self, other: Softmax) -> Array:
        """The divergence from another distribution."""
        difference = jax.nn.log_softmax(self.scores) - jax.nn.log_softmax(other.scores)
        return (jax.nn.softmax(self.scores) * difference).sum(-1)


@dataclasses.dataclass(frozen=True)
class Policy:
    """How scores become a distribution of actions, and what their gradient is replaced by.

    Attributes:
        name: What configs and records call it.
        activation: Of the tree's nodes; None for softmax.
        damping: Of the natural gradient of the scores; None for the plain gradient.
        trust_region: Whether updates are bounded by :func:`aims`, not by clipped ratios.
    """

    name: str
    activation: cj.Activation | None
    damping: float | None = None
    trust_region: bool = False

    def num_scores(self, actions: int) -> int:
        """One per action, or one per inner node of the balanced tree."""
        return actions if self.activation is None else actions - 1

    def distribution(self, scores: Array) -> Any:
        """The distribution of actions."""
        return Softmax(scores) if self.activation is None else cj.Catnat(scores, activation=self.activation)

    def wrap(self, scores: Array) -> Array:
        """The scores themselves, with the natural gradient in the backward pass if the policy has one."""
        if self.damping is None:
            return scores
        if self.activation is None:
            return cj.geometry.softmax_natural_gradient(scores, damping=self.damping)
        return cj.geometry.natural_gradient(scores, activation=self.activation, damping=self.damping)

    def saturated(self, scores: Array) -> Array:
        """Which scores are saturated: certain nodes, or actions whose probability underflows to 0."""
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
    """The policy of a name.

    >>> policy_of("natural").num_scores(4)
    3
    """
    if name not in POLICIES:
        raise ValueError(f"`parameterization` is {name!r}, but one of these is needed: {', '.join(POLICIES)}.")
    return POLICIES[name]


# ---- networks --------------------------------------------------------------------------------------------------------

Layers = list[tuple[Array, Array]]


class Networks(NamedTuple):
    """The weights and biases of the layers of both."""

    actor: Layers
    critic: Layers


def start_layers(key: Array, widths: tuple[int, ...], last: float) -> Layers:
    """Orthogonal weights of gain sqrt(2), that of the last layer ``last``; zero biases."""
    layers = []
    for place, (before, after) in enumerate(itertools.pairwise(widths)):
        gain = last if place == len(widths) - 2 else 2**0.5
        weight = jax.nn.initializers.orthogonal(gain)(jax.random.fold_in(key, place), (before, after))
        layers.append((weight, jnp.zeros(after)))
    return layers


def apply_layers(layers: Layers, observation: Array) -> Array:
    """From observations (batch, ...) to the last layer's outputs, with ReLU between layers."""
    x = observation.reshape(len(observation), -1).astype(jnp.float32)
    for weight, bias in layers[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = layers[-1]
    return x @ weight + bias


def values_of(critic: Layers, observation: Array) -> Array:
    """What the critic expects, (batch,)."""
    return apply_layers(critic, observation)[:, 0]


# ---- advantages and losses -------------------------------------------------------------------------------------------


def advantages(rewards: Array, values: Array, next_values: Array, terminated: Array, ended: Array) -> Array:
    r"""Generalized advantage estimation; all arguments are (steps, ...).

    .. math:: \delta_t = r_t + \gamma\,(1 - \text{terminated}_t)\, V(s'_t) - V(s_t), \qquad
        A_t = \delta_t + \gamma \lambda\,(1 - \text{ended}_t)\, A_{t+1}

    An episode that ran into its time limit has ended but not terminated: the value of where it was cut off counts.
    """
    deltas = rewards + DISCOUNT * (1 - terminated) * next_values - values

    def back(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        delta, end = now
        total = delta + DISCOUNT * DECAY * (1 - end) * later
        return total, total

    return lax.scan(back, jnp.zeros_like(deltas[0]), (deltas, ended.astype(deltas.dtype)), reverse=True)[1]


def clipped_loss(log_prob: Array, old_log_prob: Array, advantage: Array, clip: Array) -> Array:
    r"""PPO's: :math:`-\min(r A, \operatorname{clip}(r, 1 - \epsilon, 1 + \epsilon) A)`, of ratios r = new / old."""
    ratio = jnp.exp(log_prob - old_log_prob)
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)


class Aim(NamedTuple):
    """Where the scores of a state should go, and how a way from there is measured."""

    scores: Array
    fisher: Array
    length: Array


def aims(policy: Policy, scores: Array, action: Array, advantage: Array, clip: Array) -> Aim:
    r"""A trust region in closed form: the aims of a batch of scores (batch, nodes).

    In score space the natural gradient is one division, and the step whose KL divergence is a given one is known row by
    row (:func:`catnat.jax.geometry.kl_step`). So each visited state gets an aim: its old scores, and from there the
    natural gradient step of a length that all states share to second order, and that moves them by a mean divergence of
    ``clip``. The loss (:func:`aim_loss`) is the distance to the aim in the Fisher metric. At the old scores its
    gradient is the policy gradient; where the network has moved as far as the aim, it is zero. Each aim comes from one
    action, so those of like states point in different ways, and the network moves a tenth as far or less: about as far
    as clipping at the same number lets it.
    """
    activation = policy.activation
    if activation is None:
        raise ValueError("A trust region in closed form needs a diagonal Fisher matrix: use a tree, not softmax.")
    gradient = jax.grad(lambda scores: -(advantage * policy.distribution(scores).log_prob(action)).sum())(scores)
    fisher = cj.geometry.fisher_diagonal(scores, activation=activation)
    square = jnp.where(fisher > 0, jnp.square(gradient) / jnp.where(fisher > 0, fisher, 1), 0).sum(-1)
    square = jnp.maximum(square, 1e-30)  # an advantage of 0: a divergence must be positive
    step = cj.geometry.kl_step(scores, gradient, clip * square / square.mean(), activation=activation)
    return Aim(scores + step, fisher, jnp.broadcast_to(jnp.sqrt(2 * clip / square.mean()), square.shape))


def aim_loss(scores: Array, aim: Aim) -> Array:
    r"""Half the squared Fisher distance to the aim, :math:`\frac1{2t} \sum_i G_{ii} (s_i - s^*_i)^2`, t the length."""
    return (aim.fisher * jnp.square(scores - aim.scores)).sum(-1) / (2 * aim.length)


# ---- one update ------------------------------------------------------------------------------------------------------


class Sizes(NamedTuple):
    """What the shapes of the program depend on.

    Attributes:
        envs: Copies of the game that a seed plays at once.
        length: Steps of each between two updates.
        epochs: How often an update goes over them.
        minibatches: In how many parts.
        hidden: The width of both hidden layers.
    """

    envs: int
    length: int
    epochs: int
    minibatches: int
    hidden: int


class Knobs(NamedTuple):
    """Numbers that a run is trained with; another value needs no other program."""

    rate: Array
    clip: Array
    entropy: Array
    updates: Array
    """In all: the rate falls to 0 with them."""


class Run(NamedTuple):
    """All that changes in a run. Random numbers come from the seed and the number of the update alone."""

    seed: Array
    update: Array
    networks: Networks
    moments: Networks
    games: Any
    observation: Array
    returns: Array
    """Of the episodes that are not over yet."""


class Played(NamedTuple):
    """What one step, or many, leave behind."""

    observation: Array
    scores: Array
    action: Array
    log_prob: Array
    value: Array
    reward: Array
    terminated: Array
    ended: Array
    next_observation: Array
    """Before a new episode begins."""
    episode_return: Array
    """Of an episode that has just ended, else 0."""


class Batch(NamedTuple):
    """What an update learns from, (steps, ...)."""

    observation: Array
    action: Array
    log_prob: Array
    advantage: Array
    goal: Array
    """Of the critic."""
    aim: Aim | None


class Found(NamedTuple):
    """What an update reports: sums over episodes, and means over the steps it played."""

    episodes: Array
    returns: Array
    entropy: Array
    dead: Array
    divergence: Array
    """KL from the old policy to the new one."""


class Program(NamedTuple):
    """The functions of one game and policy; both are mapped over the seeds on the first axis and jitted."""

    start: Callable[[Array], Run]
    update: Callable[[Run, Knobs], tuple[Run, Found]]


@functools.cache
def program(game: str, name: str, sizes: Sizes) -> Program:
    """Compiled once for all runs of a process that share these."""
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
        # The rate is left to `learn`: it is a knob.
        self.optimizer = optax.chain(optax.clip_by_global_norm(LARGEST_GRADIENT), optax.scale_by_adam(eps=1e-5))

    def start(self, seed: Array) -> Run:
        """A run at its beginning."""
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
        """Play, then learn from what was played."""
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
        """So many steps of all copies of the game."""

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
        """Advantages, normalized over the batch, and what else the losses need."""
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
        """The policy's loss less the entropy bonus."""
        scores = self.policy.wrap(apply_layers(actor, batch.observation))
        actions = self.policy.distribution(scores)
        if batch.aim is None:
            loss = clipped_loss(actions.log_prob(batch.action), batch.log_prob, batch.advantage, knobs.clip)
        else:
            loss = aim_loss(scores, batch.aim)
        return jnp.mean(loss - knobs.entropy * actions.entropy())

    def critic_loss(self, critic: Layers, batch: Batch) -> Array:
        """Half the mean squared error."""
        return jnp.mean(jnp.square(values_of(critic, batch.observation) - batch.goal)) / 2

    def learn(
        self, networks: Networks, moments: Networks, batch: Batch, knobs: Knobs, rate: Array, key: Array
    ) -> tuple[Networks, Networks]:
        """All epochs over a batch, in minibatches of a new order each time; the new networks and moments."""

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
    """Steps and copies of the game as one axis."""
    return values.reshape(-1, *values.shape[2:])


def _strong(run: Run) -> Run:
    """With types that a checkpoint keeps: what gymnax makes of Python's numbers are weak ones.

    A run that goes on would otherwise be another program, to be compiled again.
    """
    strong: Run = jax.tree.map(lambda leaf: lax.convert_element_type(leaf, leaf.dtype), run)
    return strong
