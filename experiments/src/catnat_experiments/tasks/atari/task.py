"""Proximal policy optimization (PPO) on Atari games: the paper's Table 6.

A convolutional network sees the last four frames of a game and gives the scores of a policy and the value of the state.
It learns from eight or more games side by side, played with its own actions. What is compared is how scores become the
probabilities of actions. Breakout has 4 actions, Seaquest 18.

Run one configuration by hand::

    python -m catnat_experiments.atari --game breakout --parameterization natural --steps 500000

Algorithm, network and hyperparameters follow CleanRL's PPO for Atari, on which the paper builds, and so does what the
agent sees of a game: :class:`Games` says where it differs. Our own choices: catnat has K - 1 scores; the metric is the
mean return of the last 50 games; the search has seed 0, final runs have other seeds.

**Interrupted runs.** A checkpoint keeps weights, optimizer, random numbers and counters, bit for bit. It cannot keep
the games under way, because ALE's vector environment gives no access to its emulators. So a run that goes on begins new
games: its curve joins, but its numbers are not those of a run that nothing happened to.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from torch import Tensor, nn

from catnat_experiments.common.parameterizations import Parameterization, parameterization
from catnat_experiments.engine.experiment import Config, EveryRunAlone, Keeper, Outcome, Stage, extra, plan_of
from catnat_experiments.engine.loop import Printing, add_point, go_on
from catnat_experiments.engine.records import pack
from catnat_experiments.engine.search import Search, top
from catnat_experiments.report.markdown import Claim, Curve, Table

with extra("atari"):
    from ale_py import Action, roms
    from ale_py.vector_env import AtariVectorEnv

# ---- the paper's numbers ---------------------------------------------------------------------------------------------

IN_THE_PAPER = ("softmax", "natural")
ALL = ("softmax", "sigmoid", "natural", "natural-reflect")
UNTRAINED = "untrained"
"""The network as it starts, never updated: nearly uniform actions, which a trained one must beat."""
PAPER = {"breakout": {"softmax": 398.0, "natural": 406.0}, "seaquest": {"softmax": 1875.0, "natural": 2164.0}}
"""Returns: game -> parameterization. None of the differences is significant in the paper."""

# ---- games -----------------------------------------------------------------------------------------------------------

SIDE, STACK = 84, 4
TIME_LIMIT = 108_000
"""Frames of a game, half an hour."""


class Step(NamedTuple):
    """What a step of all games led to, one entry per game.

    Attributes:
        rewards: Signs of the game's own rewards.
        terminal: A life or the game was lost: no value follows.
        ended: That, or the time limit was reached: nothing that follows belongs to this step.
    """

    rewards: NDArray[np.float32]
    terminal: NDArray[np.bool_]
    ended: NDArray[np.bool_]


class Games:
    """Games side by side, as the learner sees them: four frames of 84 x 84, signs of rewards, one life at a time.

    An action lasts four frames, of the last two the brighter pixels are seen. A game begins with up to 29 frames of
    doing nothing, and with FIRE if it has that action.

    After a step that ended a life or a game, the next step is not the player's (:attr:`between`): it begins the next
    game, or it presses FIRE to begin the next life. CleanRL hides these steps in a reset, where it also lets the first
    frames of a life pass; here they count as steps, and learning leaves them out. At the time limit CleanRL sees the
    end of a life, we a state whose value is known.

    Attributes:
        frames: What the players see now, (games, 4, 84, 84).
        between: Whose next step is not theirs.
        points: The returns of the games under way: their own rewards, over all lives.
        returns: Of all games that ended.
    """

    def __init__(self, game: str, count: int, seed: int, time_limit: int = TIME_LIMIT) -> None:
        if game not in roms.get_all_rom_ids():
            raise ValueError(
                f"`game` is {game!r}, but ale-py has no such game: give a name in the manner of breakout or ms_pacman."
            )
        # Not episodic_life=True: that begins a new game after every life.
        self._env = AtariVectorEnv(
            game, count, num_threads=1, reward_clipping=False, max_num_frames_per_episode=time_limit
        )
        actions = self._env.ale.get_action_set()
        self.actions = len(actions)
        self._fire = actions.index(Action.FIRE) if Action.FIRE in actions else actions.index(Action.NOOP)
        self.frames: NDArray[np.uint8]
        self.frames, about = self._env.reset(seed=seed)
        self._lives = about["lives"]
        self.between = np.zeros(count, np.bool_)
        self.points = np.zeros(count)
        self.returns: list[float] = []

    def step(self, actions: NDArray[np.int64]) -> Step:
        """One action in every game."""
        # Where a game is over, the environment begins a new one, whatever the action.
        pressed = np.where(self.between, self._fire, actions)
        self.frames, rewards, over, timed_out, about = self._env.step(pressed)
        lives = about["lives"]
        terminal = over | ((lives < self._lives) & (lives > 0))  # some games have 0 lives for a while before they end
        self._lives, self.between = lives, terminal | timed_out
        self.points += rewards
        finished = over | timed_out
        self.returns += self.points[finished].tolist()
        self.points[finished] = 0
        return Step(np.sign(rewards).astype(np.float32), terminal, self.between)


@functools.cache
def actions_of(game: str) -> int:
    """K, the number of a game's actions.

    >>> actions_of("breakout"), actions_of("seaquest")
    (4, 18)
    """
    return Games(game, 1, seed=1).actions


def seed_of(*numbers: int) -> int:
    """A seed for games; ALE wants it above 0, and gives the next numbers to the games beside the first."""
    return 1 + int(np.random.SeedSequence(numbers).generate_state(1)[0]) % 2**30


# ---- the agent -------------------------------------------------------------------------------------------------------


class Network(nn.Module):
    """Frames to scores and value.

    Args:
        scores: How many.
        generator: Of the start: orthogonal weights, those of the scores small, so that the policy starts near uniform.
    """

    def __init__(self, scores: int, generator: torch.Generator) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(STACK, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3)),
            *(nn.ReLU(), nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU()),
        )
        self.actor, self.critic = nn.Linear(512, scores), nn.Linear(512, 1)
        gains = {"actor.weight": 0.01, "critic.weight": 1.0}
        for name, parameter in self.named_parameters():
            if name.endswith("weight"):
                nn.init.orthogonal_(parameter, gains.get(name, math.sqrt(2)), generator)
            else:
                nn.init.zeros_(parameter)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a quarter faster

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and values, from bytes (batch, 4, 84, 84)."""
        hidden = self.body(frames.to(torch.float32, memory_format=torch.channels_last).div_(255))
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


class Rollout(NamedTuple):
    """What one policy did, every part (steps, games); or some rows of that.

    Attributes:
        frames: That were seen, (..., 4, 84, 84).
        actions: That were taken.
        log_probs: Of these actions, when they were taken.
        values: Of the states, as estimated then.
        advantages: Of these actions over the policy's average.
        own: Whether the step was the player's.
    """

    frames: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    own: Tensor

    def pick(self, which: Tensor) -> Rollout:
        """Some of them: indices, or a mask."""
        return Rollout(*(part[which] for part in self))


def advantages(rewards: Tensor, values: Tensor, terminal: Tensor, ended: Tensor, gamma: float, decay: float) -> Tensor:
    r"""Generalized advantage estimates.

    .. math::

        A_t = \sum_{l \ge 0} (\gamma\lambda)^l \delta_{t+l}, \qquad
        \delta_t = r_t + \gamma V_{t+1} - V_t

    The sum goes to the first step that ended, and there is no :math:`V_{t+1}` after a terminal one.

    Args:
        rewards: (steps, games), as all but the values.
        values: (steps + 1, games): also of the states after the last step.
        terminal: No value follows.
        ended: The next step belongs to another life or game.
        gamma: The discount.
        decay: The lambda.
    """
    errors = rewards + gamma * values[1:] * ~terminal - values[:-1]
    found, running = torch.empty_like(errors), torch.zeros_like(errors[0])
    for step in reversed(range(len(errors))):
        running = errors[step] + gamma * decay * ~ended[step] * running
        found[step] = running
    return found


def policy_loss(ratios: Tensor, advantages: Tensor, clip: float) -> Tensor:
    r"""PPO's clipped loss, the mean of :math:`-\min(r A, \mathrm{clip}(r, 1 - \epsilon, 1 + \epsilon) A)`."""
    return -torch.minimum(ratios * advantages, ratios.clamp(1 - clip, 1 + clip) * advantages).mean()


def value_loss(values: Tensor, before: Tensor, targets: Tensor, clip: float) -> Tensor:
    """Half the mean squared error, or if that is larger, the one with values clipped around those of before."""
    clipped = before + (values - before).clamp(-clip, clip)
    return torch.maximum((values - targets).square(), (clipped - targets).square()).mean() / 2


# ---- training --------------------------------------------------------------------------------------------------------

GAMMA, DECAY, VALUE_WEIGHT, ADAM_EPSILON = 0.99, 0.95, 0.5, 1e-5
DEFAULTS: Config = {
    "learning_rate": 2.5e-4,  # falls to 0
    "num_envs": 8,
    "num_steps": 128,
    "update_epochs": 4,
    "num_minibatches": 4,
    "clip_coef": 0.1,
    "ent_coef": 0.01,
    "max_grad_norm": 0.5,
}
"""CleanRL's, under its names."""
LAST = 50
"""Games whose mean return is reported."""
METRICS = {
    "return": f"mean return of the last {LAST} games: their own rewards, over all lives",
    "games": "that ended in training",
    "entropy": "of the policy, mean over the steps, in nats",
    "dead": "share of scores that are dead in a state: certain, and without a gradient",
    "clipped": "share of the rows of updates whose probability ratio was clipped",
    "kl": "how far updates moved the policy: the mean of r - 1 - log r",
    "value_loss": "half the squared error of the values, clipped",
}
_ACTING, _UPDATING = ("entropy", "dead"), ("clipped", "kl", "value_loss")
_COUNTED = ("step", "returns", "finished_games", "sums", "history")


class Training:
    """One run. A step of the loop is a rollout and its updates; steps of the games are counted beside."""

    def __init__(self, run: Config) -> None:
        self.run, self.game = run, str(run["game"])
        self.num_envs, self.num_steps = int(run["num_envs"]), int(run["num_steps"])
        self.size = self.num_envs * self.num_steps
        self.steps, self.step = max(1, int(run["steps"]) // self.size), 0
        self.kind = _kind(str(run["parameterization"]))
        self.generator = torch.Generator().manual_seed(int(run["seed"]))
        self.network = Network(self.kind.num_scores(actions_of(self.game)), self.generator)
        self.optimizer = torch.optim.Adam(self.network.parameters(), eps=ADAM_EPSILON, fused=True)
        self.games = self._new_games()
        self.returns: list[float] = []
        self.finished_games = 0
        self.sums = dict.fromkeys((*_ACTING, *_UPDATING), 0.0)
        self.history: dict[str, list[float]] = {}

    def _new_games(self) -> Games:
        return Games(self.game, self.num_envs, seed_of(int(self.run["seed"]), self.step))

    @property
    def finite(self) -> bool:
        """Whether training has not diverged."""
        return all(bool(parameter.isfinite().all()) for parameter in self.network.parameters())

    def advance(self) -> None:
        """A rollout and the updates that it is good for; nothing more once training has diverged."""
        if self.finite:
            rollout = self.collect()
            rows = rollout.pick(rollout.own)
            for _ in range(int(self.run["update_epochs"])):
                self.update(rows)
            self._count_games()
        self.step += 1

    def _policy(self, frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, log-probabilities of all actions, values."""
        scores, values = self.network(frames)
        return scores, self.kind.log_probs(self.kind.wrap(scores)), values

    @torch.no_grad()
    def act(self, frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Drawn actions, their log-probabilities, and the values of the states."""
        scores, log_probs, values = self._policy(frames)
        probs = log_probs.exp()
        actions = torch.multinomial(probs, 1, generator=self.generator)
        self.sums["entropy"] -= float((probs * log_probs).sum(-1).mean()) / self.num_steps
        self.sums["dead"] += float(self.kind.saturated(scores).float().mean()) / self.num_steps
        return actions.squeeze(-1), log_probs.gather(-1, actions).squeeze(-1), values

    def collect(self) -> Rollout:
        """Play all games for some steps."""
        shape = (self.num_steps, self.num_envs)
        frames = torch.empty(*shape, STACK, SIDE, SIDE, dtype=torch.uint8)
        actions, own = torch.empty(shape, dtype=torch.int64), torch.empty(shape, dtype=torch.bool)
        terminal, ended = torch.empty_like(own), torch.empty_like(own)
        log_probs, rewards = torch.empty(shape), torch.empty(shape)
        values = torch.empty(self.num_steps + 1, self.num_envs)
        for step in range(self.num_steps):
            frames[step] = torch.from_numpy(self.games.frames)
            own[step] = torch.from_numpy(~self.games.between)
            actions[step], log_probs[step], values[step] = self.act(frames[step])
            rewards[step], terminal[step], ended[step] = map(torch.from_numpy, self.games.step(actions[step].numpy()))
        with torch.no_grad():
            values[-1] = self.network(torch.from_numpy(self.games.frames))[1]
        found = advantages(rewards, values, terminal, ended, GAMMA, DECAY)
        return Rollout(frames, actions, log_probs, values[:-1], found, own)

    def update(self, rows: Rollout) -> None:
        """One pass over the rows, in minibatches of a random order."""
        parts = int(self.run["num_minibatches"])
        for group in self.optimizer.param_groups:
            group["lr"] = float(self.run["learning_rate"]) * (1 - self.step / self.steps)
        for chosen in torch.randperm(len(rows.own), generator=self.generator).tensor_split(parts):
            self.optimizer.zero_grad()
            self.loss(rows.pick(chosen)).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.network.parameters(), float(self.run["max_grad_norm"]))
            self.optimizer.step()

    def loss(self, rows: Rollout) -> Tensor:
        """Of one minibatch: policy, values, and a little reward for entropy."""
        clip = float(self.run["clip_coef"])
        _, log_probs, values = self._policy(rows.frames)
        log_ratios = log_probs.gather(-1, rows.actions.unsqueeze(-1)).squeeze(-1) - rows.log_probs
        ratios = log_ratios.exp()
        scaled = (rows.advantages - rows.advantages.mean()) / (rows.advantages.std() + 1e-8)
        entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
        of_values = value_loss(values, rows.values, rows.values + rows.advantages, clip)
        with torch.no_grad():
            seen = (((ratios - 1).abs() > clip).float().mean(), (ratios - 1 - log_ratios).mean(), of_values)
            share = 1 / (int(self.run["update_epochs"]) * int(self.run["num_minibatches"]))
            for name, value in zip(_UPDATING, seen, strict=True):
                self.sums[name] += share * float(value)
        return policy_loss(ratios, scaled, clip) - float(self.run["ent_coef"]) * entropy + VALUE_WEIGHT * of_values

    def _count_games(self) -> None:
        self.finished_games += len(self.games.returns)
        self.returns = [*self.returns, *self.games.returns][-LAST:]
        self.games.returns.clear()

    def log(self, since: int) -> list[dict[str, float]]:
        """Add a point to the history: means since step ``since``, and the return of the last games."""
        point = {"return": self.mean_return, "games": float(self.finished_games)}
        point |= {name: value / (self.step - since) for name, value in self.sums.items()}
        self.sums = dict.fromkeys(self.sums, 0.0)
        add_point(self.history, self.step * self.size, point)
        return [point]

    @property
    def mean_return(self) -> float:
        """Of the last games; NaN before the first, and for a run that diverged."""
        return float(np.mean(self.returns)) if self.returns and self.finite else math.nan

    def metrics(self) -> dict[str, float]:
        """The final metrics: the last point of the history."""
        return {name: self.history[name][-1] for name in METRICS}

    def state(self) -> dict[str, Any]:
        """A checkpoint: all that changes but the games, copied."""
        kept = {name: getattr(self, name) for name in _COUNTED}
        kept["generator"] = self.generator.get_state()
        return copy.deepcopy({**kept, "network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()})

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint, with new games."""
        state = copy.deepcopy(state)  # the optimizer would take its tensors as they are, and change them
        for name in _COUNTED:
            setattr(self, name, state[name])
        self.generator.set_state(state["generator"])
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.games = self._new_games()


def _kind(name: str) -> Parameterization:
    return parameterization("softmax" if name == UNTRAINED else name)


# ---- a game to look at -----------------------------------------------------------------------------------------------

PICTURES = 8
LONGEST = 3000


def shown_game(training: Training) -> dict[str, list[float]]:
    """Frames of a game that the agent plays with drawn actions, evenly over its time, with the points made so far."""
    games = Games(training.game, 1, seed_of(int(training.run["seed"]), training.step, 1))
    seen: list[tuple[NDArray[np.uint8], float]] = []
    while not games.returns and len(seen) < LONGEST:
        seen.append((games.frames[0, -1], float(games.points[0])))
        games.step(training.act(torch.from_numpy(games.frames))[0].numpy())
    steps = np.linspace(0, len(seen) - 1, PICTURES).round().astype(int).tolist()
    return {
        "pictures": pack(np.stack([seen[step][0] for step in steps])),
        "pictures.points": [seen[step][1] for step in steps],
        "pictures.step": steps,
    }


# ---- what the engine asks --------------------------------------------------------------------------------------------

SEARCH_SEED = 0
"""The seed of the search. Final runs have the seeds 1, 2, ...: no run is both selected by its luck and reported."""
PAPER_STEPS = 8_000_000
SPACE: dict[str, BaseDistribution] = {
    "learning_rate": FloatDistribution(5e-5, 1e-2, log=True),
    "num_steps": IntDistribution(32, 512, step=32),
    "update_epochs": IntDistribution(1, 15, step=2),
    "clip_coef": FloatDistribution(0.01, 0.9),
    "ent_coef": FloatDistribution(0.0, 1.0),
    "num_envs": IntDistribution(8, 16, step=2),
    "num_minibatches": IntDistribution(2, 14, step=4),
    "max_grad_norm": FloatDistribution(0.1, 10.0, step=0.1),
}
"""The paper's."""
_ON_AVERAGE: Config = {"num_steps": 256, "update_epochs": 8, "num_envs": 12, "num_minibatches": 8}
"""What a run of the search costs in the mean: the middle of the space."""


@dataclasses.dataclass(frozen=True)
class Preset:
    """How much of the table to compute.

    Attributes:
        games: Which.
        parameterizations: Of each.
        steps: Of a run, over all its games.
        seeds: Final runs of each game and parameterization, or of each config that the search selects.
        untrained: Steps of the run without training that each game has beside.
        trials: Of the search, for each game and parameterization; 0 takes CleanRL's hyperparameters without a search.
        selected: How many of them go on to the final runs.
    """

    games: tuple[str, ...]
    parameterizations: tuple[str, ...]
    steps: int
    seeds: int
    untrained: int
    trials: int = 0
    selected: int = 1


PRESETS = {
    # Does it run? Nothing is learned yet.
    "quick": Preset(("breakout",), ALL[:3], steps=8192, seeds=1, untrained=8192),
    # Breakout clearly above untrained play, in half an hour of one core for each.
    "evidence": Preset(("breakout",), IN_THE_PAPER, steps=250_000, seeds=1, untrained=51_200),
    # The paper's table.
    "paper": Preset(
        ("breakout", "seaquest"), IN_THE_PAPER, PAPER_STEPS, seeds=10, untrained=102_400, trials=160, selected=10
    ),
}


def config(game: str, name: str, seed: int, steps: int, **changes: float) -> Config:
    """All that decides a run's numbers, with CleanRL's hyperparameters but for the changes."""
    what: Config = {"experiment": "atari", "game": game, "parameterization": name, "seed": seed, "steps": steps}
    return {**what, **DEFAULTS, **changes}


@dataclasses.dataclass(frozen=True)
class Atari(EveryRunAlone):
    """An experiment: a search where the preset has one, then final seeds; every run is a group."""

    name = "atari"

    def stages(self, preset: str) -> list[Stage | Search]:
        """The search, and the final runs."""
        plan = plan_of(preset, PRESETS, self.name)
        places = tuple(itertools.product(plan.games, plan.parameterizations))
        bases = [config(*place, SEARCH_SEED, plan.steps) for place in places]
        about = f"{plan.seeds} seed{'s' * (plan.seeds > 1)}, {plan.steps:,} steps, "
        if not plan.trials:
            runs = _repeated(bases, plan)
            return [Stage("final", lambda _: runs, about + "CleanRL's hyperparameters", len(runs))]
        mean = [{**base, **_ON_AVERAGE} for base in bases]
        told = f"TPE over {len(SPACE)} hyperparameters, {plan.steps:,} steps"
        search = Search("search", bases, SPACE, "return", "higher", plan.trials, told, alike=tuple(mean))
        alike = tuple(_repeated([base for base in mean for _ in range(plan.selected)], plan))

        def final(records: pd.DataFrame) -> list[Config]:
            return _repeated(top(records, search, plan.selected), plan)

        return [search, Stage("final", final, about + f"the best {plan.selected} of each", len(alike), alike)]

    def train_one(self, run: Config, keeper: Keeper) -> Outcome:
        """Train a run, going on from the keeper's checkpoint if there is one, and let it play."""
        torch.set_num_threads(1)
        training = Training(run)
        go_on(training, keeper)
        shown = shown_game(training) if training.finite else {}
        return Outcome(training.metrics(), {**training.history, **shown})

    def seconds_per_group(self, runs: list[Config]) -> float:
        """What a run will take on this machine, from a few steps."""
        [run] = runs
        collected, updated = _seconds(str(run["game"]), str(run["parameterization"]))
        return int(run["steps"]) * (collected + int(run["update_epochs"]) * updated)


def _repeated(runs: Sequence[Config], plan: Preset) -> list[Config]:
    """Untrained play, then seed after seed, so that what is finished when the work is cut off compares all."""
    first = SEARCH_SEED + 1
    untrained = [config(game, UNTRAINED, first, plan.untrained, update_epochs=0) for game in plan.games]
    return [*untrained, *({**run, "seed": seed} for seed in range(first, first + plan.seeds) for run in runs)]


@functools.cache
def _seconds(game: str, name: str, tries: int = 3) -> tuple[float, float]:
    """To collect a step, and to learn from it once: processor time of all threads, the least of a few tries."""
    torch.set_num_threads(1)
    training = Training(config(game, name, SEARCH_SEED, 10_000, num_steps=32, num_minibatches=1))
    training.advance()
    times: list[tuple[float, float]] = []
    for _ in range(tries):
        began = time.process_time()
        rollout = training.collect()
        middle = time.process_time()
        training.update(rollout.pick(rollout.own))
        times.append((middle - began, time.process_time() - middle))
    return min(collected for collected, _ in times) / training.size, min(
        updated for _, updated in times
    ) / training.size


EXPERIMENT = Atari()


def _table(title: str, metric: str, digits: int, **options: Any) -> Table:
    return Table(
        title=title,
        metric=metric,
        better=options.pop("better", None),
        row="game",
        column="parameterization",
        columns=ALL,
        digits=digits,
        curves=(Curve(metric, title.lower(), x="step"),),
        **options,
    )


TABLES = (
    _table(
        "Return",
        "return",
        1,
        better="higher",
        paper=PAPER,
        reference=UNTRAINED,
        claims=(Claim("natural", "softmax"),),
        note=f"The mean of the last {LAST} games of training. In the paper the difference is not significant.",
    ),
    _table("Entropy of the policy", "entropy", 3),
    _table("Dead scores, share", "dead", 3),
)


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Frames of games that the agents play, drawn from records."""
    from catnat_experiments.tasks.atari import figures as atari_figures  # matplotlib takes a second to import

    return atari_figures.figures(frame, directory, (UNTRAINED, *ALL))


# ---- one run by hand -------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one run and print its metrics."""
    parser = argparse.ArgumentParser(prog="python -m catnat_experiments.atari", description=main.__doc__)
    parser.add_argument("--game", default="breakout")
    parser.add_argument("--parameterization", default="natural")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=500_000)
    for name, value in DEFAULTS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    run: Config = {"experiment": "atari", **vars(parser.parse_args(arguments))}
    began = time.perf_counter()
    [outcome] = EXPERIMENT.train([run], Printing("return", "games", "entropy", "dead", "clipped", "kl", "value_loss"))
    print(f"\n{time.perf_counter() - began:.1f} s")
    for name, told in METRICS.items():
        print(f"{name:12}{outcome.metrics[name]:12.4f}  {told}")


if __name__ == "__main__":
    main()
