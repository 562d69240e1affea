"""A world model with categorical latents, as in DreamerV3, on a world so small that the best predictions are known.

A ball moves through a box of 10 x 10 pixels. Where it meets a wall it gets one of eight shapes at random. A recurrent
state-space model sees the frames: a GRU keeps a state h; the prior p(z | h) and the posterior q(z | h, frame) are N
categorical variables with K classes each; h and a drawn z give the pixels. It learns as DreamerV3's does:
straight-through draws, 1% of the uniform distribution mixed into every law, two halves of the KL divergence with free
nats. What is compared is how scores become class probabilities.

Run one configuration by hand::

    python -m catnat_experiments.world --parameterization natural --rate .004

The loss and its weights follow DreamerV3, with fewer free nats; the network is our own, a minute or two on
one core. The search has seed 0 and never sees the test sequences, the final runs have other seeds; all models are
evaluated on the same sequences and with the same seeds.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch import distributions as td
from torch.nn import functional as F

import catnat.torch as ct
from catnat_experiments.common.parameterizations import Catnat, Parameterization, parameterization
from catnat_experiments.engine.experiment import Config, EveryRunAlone, Keeper, Outcome, Stage, plan_of
from catnat_experiments.engine.loop import LOG_POINTS, Printing, add_point, go_on, least_seconds
from catnat_experiments.engine.records import pack
from catnat_experiments.report.markdown import Curve, Table
from catnat_experiments.tasks.vae.experiment import Arm, ranked
from catnat_experiments.tasks.vae.model import ALIVE, LEVELS

ALL = ("softmax", "sigmoid", "natural")
EXACT = "exact"
"""Stands for a parameterization in configs: the world's own law, nothing learned."""

METRICS = {
    "test_rollout": "log-loss of pixels in open-loop predictions, nats a frame, on test sequences",
    "test_loss": "the negative evidence lower bound, nats a frame, on test sequences",
    "validation_rollout": "the first on validation sequences; rates are selected by it",
    "validation_loss": "the second on validation sequences",
    "reconstruction": "its first part: the log-loss of pixels, the posterior having seen them",
    "kl": "its second part: from the prior to the posterior, summed over the variables",
    "entropy": "mean entropy of a variable's posterior, in nats",
    "prior_entropy": "mean entropy of a variable's prior, in nats",
    "dead": "share of the posterior's scores that are dead for a frame: certain, and without a gradient",
    "classes_alive": "classes of a variable that are used: of mean probability at least 1 / (10 K)",
}

# ---- the world -------------------------------------------------------------------------------------------------------

BOX, SHAPE = 10, 3
PIXELS = BOX * BOX
PLACES = BOX - SHAPE + 1
"""Of the ball's upper left corner, along each axis."""
SHAPES = np.array(
    [
        [int(pixel) for pixel in rows.replace(" ", "")]
        for rows in (
            "111 111 111",
            "111 101 111",
            "010 111 010",
            "101 010 101",
            "111 000 111",
            "101 101 101",
            "111 010 010",
            "100 100 111",
        )
    ]
).reshape(-1, SHAPE, SHAPE)


class Motion(NamedTuple):
    """How the ball moves. Its states are a place and the step that led there.

    Attributes:
        states: (states, 4), row, column and the step along each, -1 or 1.
        next: (states,), the one that follows.
        bounces: (states,), whether the ball meets a wall on the way to it, and so gets a new shape.
    """

    states: NDArray[np.int64]
    next: NDArray[np.int64]
    bounces: NDArray[np.bool_]


@functools.cache
def motion() -> Motion:
    """A step that would leave the box turns round."""
    axis = [(place, step) for place in range(PLACES) for step in (-1, 1)]
    states = [(row, column, down, right) for (row, down), (column, right) in itertools.product(axis, axis)]
    index = {state: number for number, state in enumerate(states)}

    def turned(place: int, step: int) -> int:
        return step if 0 <= place + step < PLACES else -step

    steps = [(turned(row, down), turned(column, right)) for row, column, down, right in states]
    following = [
        index[row + down, column + right, down, right]
        for (row, column, *_), (down, right) in zip(states, steps, strict=True)
    ]
    bounces = [(down, right) != after for (_, _, down, right), after in zip(states, steps, strict=True)]
    return Motion(np.array(states), np.array(following), np.array(bounces))


@functools.cache
def canvas() -> Tensor:
    """The frame of every state of motion and every shape, (states, shapes, pixels), of zeros and ones."""
    states = motion().states
    frames = np.zeros((len(states), len(SHAPES), BOX, BOX), np.float32)
    for state, (row, column, *_) in enumerate(states):
        frames[state, :, row : row + SHAPE, column : column + SHAPE] = SHAPES
    return torch.from_numpy(frames).flatten(2)


class Play(NamedTuple):
    """Sequences of the world: the states of motion and the shapes, (time, sequences) each."""

    states: NDArray[np.int64]
    shapes: NDArray[np.int64]

    @property
    def frames(self) -> Tensor:
        """(time, sequences, pixels)."""
        return canvas()[torch.from_numpy(self.states), torch.from_numpy(self.shapes)]


def play(sequences: int, length: int, stream: np.random.Generator) -> Play:
    """Draw sequences; their first states and shapes are uniform."""
    law = motion()
    states, shapes = np.empty((2, length, sequences), np.int64)
    states[0] = stream.integers(len(law.states), size=sequences)
    shapes[0] = stream.integers(len(SHAPES), size=sequences)
    for now in range(1, length):
        before, fresh = states[now - 1], stream.integers(len(SHAPES), size=sequences)
        states[now] = law.next[before]
        shapes[now] = np.where(law.bounces[before], fresh, shapes[now - 1])
    return Play(states, shapes)


def predicted(states: NDArray[np.int64], shapes: NDArray[np.int64], ahead: int) -> Tensor:
    """The exact probability of every pixel in the next frames, (ahead, sequences, pixels), float64.

    Two frames tell the whole state, so nobody who has seen the past can do better.
    """
    law, known = motion(), np.ones(len(states), bool)
    frames = []
    for _ in range(ahead):
        known &= ~law.bounces[states]
        states = law.next[states]
        possible = canvas()[torch.from_numpy(states)].double()
        certain = possible[torch.arange(len(states)), torch.from_numpy(shapes)]
        frames.append(torch.where(torch.from_numpy(known).unsqueeze(1), certain, possible.mean(1)))
    return torch.stack(frames)


_PURPOSES = ("run", "validation", "test")


def _stream(purpose: str, *numbers: int) -> np.random.Generator:
    """Random numbers of their own for every purpose and seed."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence((_PURPOSES.index(purpose), *numbers))))


# ---- the model -------------------------------------------------------------------------------------------------------

UNIMIX = 0.01
REPRESENTATION = 0.1
"""The weight of the half of the KL divergence that teaches the posterior; the half that teaches the prior has 1."""


FREE_NATS = 0.1
"""DreamerV3 has 1, for frames that tell far more. Ours tell half a nat on average: of a prior that may miss by a whole
one nothing would be asked."""


def latent(kind: Parameterization, scores: Tensor) -> td.Independent[td.OneHotCategorical]:
    """The law of N one-hot vectors, (..., N, K), from scores (..., N, scores), with unimix."""
    scores = kind.wrap(scores)
    if isinstance(kind, Catnat):
        each: td.OneHotCategorical = ct.OneHotCatnatStraightThrough(
            scores, activation=kind.activation, unimix=UNIMIX, validate_args=False
        )
    else:
        probs = kind.probs(scores)
        mixed = (1 - UNIMIX) * probs + UNIMIX / probs.shape[-1]
        each = td.OneHotCategoricalStraightThrough(probs=mixed, validate_args=False)
    return td.Independent(each, 1, validate_args=False)


class Beliefs(NamedTuple):
    """What a model thinks of each of some frames; all start with (time, sequences)."""

    state: Tensor  # hidden: h
    drawn: Tensor  # N * K: z, a draw from the posterior
    prior: Tensor  # N, scores
    posterior: Tensor  # N, scores


class WorldModel(nn.Module):
    """A recurrent state-space model."""

    def __init__(self, kind: Parameterization, latents: int, classes: int, hidden: int) -> None:
        super().__init__()
        self.kind, self.hidden, self.width = kind, hidden, latents * classes
        shape = (latents, kind.num_scores(classes))
        self.embed = nn.Sequential(nn.Linear(PIXELS, hidden), nn.ReLU())
        self.recurrent = nn.GRUCell(self.width, hidden)
        self.prior = nn.Sequential(_two_layers(hidden, hidden, math.prod(shape)), nn.Unflatten(-1, shape))
        self.posterior = nn.Sequential(_two_layers(2 * hidden, hidden, math.prod(shape)), nn.Unflatten(-1, shape))
        self.decoder = _two_layers(hidden + self.width, hidden, PIXELS)

    def observe(self, frames: Tensor, generator: torch.Generator) -> Beliefs:
        """Follow frames (time, sequences, pixels), one draw from the posterior at each."""
        state, drawn = frames.new_zeros(frames.shape[1], self.hidden), frames.new_zeros(frames.shape[1], self.width)
        found = []
        for seen in self.embed(frames):
            state = self.recurrent(drawn, state)
            posterior = self.posterior(torch.cat((state, seen), -1))
            drawn = self._draw(posterior, generator)
            found.append((state, drawn, posterior))
        states, draws, posteriors = (torch.stack(part) for part in zip(*found, strict=True))
        return Beliefs(states, draws, self.prior(states), posteriors)

    def imagine(self, state: Tensor, drawn: Tensor, steps: int, generator: torch.Generator) -> Tensor:
        """Go on without frames, one draw from the prior at each step: the log-odds of pixels."""
        found = []
        for _ in range(steps):
            state = self.recurrent(drawn, state)
            drawn = self._draw(self.prior(state), generator)
            found.append(self.decode(state, drawn))
        return torch.stack(found)

    def decode(self, state: Tensor, drawn: Tensor) -> Tensor:
        """The log-odds of pixels."""
        logits: Tensor = self.decoder(torch.cat((state, drawn), -1))
        return logits

    def _draw(self, scores: Tensor, generator: torch.Generator) -> Tensor:
        return ct.straight_through(latent(self.kind, scores), generator=generator).flatten(-2)


def _two_layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


# ---- the loss --------------------------------------------------------------------------------------------------------


def balanced_divergence(
    kind: Parameterization, posterior: Tensor, prior: Tensor, free_nats: float
) -> tuple[Tensor, Tensor]:
    r"""The term of DreamerV3's loss, and the divergence itself: from (..., N, scores) to (...), summed over variables.

    .. math:: \max(f, \mathrm{KL}(\mathrm{stop}(q) \,\|\, p)) + 0.1 \max(f, \mathrm{KL}(q \,\|\, \mathrm{stop}(p)))

    The first half teaches the prior to predict, the second the posterior to be predictable. Below f free nats neither
    learns. Both halves have one value, so it is computed once: with the gradient of q, and not of p, made smaller.
    """
    fixed = posterior.detach()
    divergence = td.kl_divergence(latent(kind, fixed + REPRESENTATION * (posterior - fixed)), latent(kind, prior))
    halves = divergence.clamp(min=free_nats)
    return halves + REPRESENTATION * halves.detach(), divergence


class Loss(NamedTuple):
    """Means over all frames of a batch."""

    objective: Tensor  # what is minimized
    reconstruction: Tensor
    kl: Tensor


def loss(model: WorldModel, frames: Tensor, free_nats: float, generator: torch.Generator) -> tuple[Loss, Beliefs]:
    """Of frames (time, sequences, pixels)."""
    beliefs = model.observe(frames, generator)
    logits = model.decode(beliefs.state, beliefs.drawn)
    reconstruction = F.binary_cross_entropy_with_logits(logits, frames, reduction="none").sum(-1).mean()
    term, kl = balanced_divergence(model.kind, beliefs.posterior, beliefs.prior, free_nats)
    return Loss(reconstruction + term.mean(), reconstruction, kl.mean()), beliefs


# ---- evaluation ------------------------------------------------------------------------------------------------------

CONTEXT, AHEAD = 5, 15
"""Frames that a model sees before it predicts, and frames that it predicts."""
ROWS = 1600
"""Rollouts that are computed at a time: memory stays small."""


@torch.no_grad()
def rollout_loss(model: WorldModel, frames: Tensor, samples: int, seed: int) -> Tensor:
    """The log-loss of open-loop predictions, nats a frame, for each step ahead.

    A pixel's probability is its mean over some rollouts: its draws from the posterior while there are frames, and from
    the prior afterwards.

    Args:
        model: Any.
        frames: (CONTEXT + AHEAD, sequences, pixels).
        samples: Rollouts for each sequence.
        seed: Of their random numbers.
    """
    generator, found = torch.Generator().manual_seed(seed), torch.zeros(AHEAD, dtype=torch.float64)
    for some in torch.split(frames, max(1, ROWS // samples), 1):
        seen = model.observe(some[:CONTEXT].repeat(1, samples, 1), generator)
        logits = model.imagine(seen.state[-1], seen.drawn[-1], AHEAD, generator)
        probs = logits.double().sigmoid().view(AHEAD, samples, -1, PIXELS).mean(1)
        found += log_loss(probs, some[CONTEXT:]).sum(1)
    return found / frames.shape[1]


def log_loss(probs: Tensor, frames: Tensor) -> Tensor:
    """Summed over pixels. A pixel that was certain and wrong costs 100 nats."""
    return F.binary_cross_entropy(probs, frames.to(probs), reduction="none").sum(-1)


@torch.no_grad()
def belief_metrics(model: WorldModel, frames: Tensor, seed: int) -> dict[str, float]:
    """The evidence lower bound of some frames, and what the laws of the latents look like."""
    found, beliefs = loss(model, frames, 0.0, torch.Generator().manual_seed(seed))
    posterior, prior = (latent(model.kind, scores).base_dist.probs for scores in (beliefs.posterior, beliefs.prior))
    mean = posterior.mean((0, 1))
    return {
        "loss": float(found.reconstruction + found.kl),
        "reconstruction": float(found.reconstruction),
        "kl": float(found.kl),
        "entropy": float(torch.special.entr(posterior).sum(-1).mean()),
        "prior_entropy": float(torch.special.entr(prior).sum(-1).mean()),
        "dead": float(model.kind.saturated(beliefs.posterior).double().mean()),
        "classes_alive": float((mean >= ALIVE / mean.shape[-1]).double().sum(-1).mean()),
    }


# ---- training --------------------------------------------------------------------------------------------------------

LOOKED_AT, LOOKED_AT_SAMPLES = 50, 8
"""Validation sequences, and rollouts of each, that the curves are computed from."""


def rate_factor(step: int, run: Config) -> float:
    """What the rate is multiplied with: 1, then on a straight line towards 0 over the last ``decay`` of the steps.

    >>> [rate_factor(step, {"steps": 100, "decay": 0.5}) for step in (0, 50, 75)]
    [1.0, 1.0, 0.5]
    """
    left = 1 - step / int(run["steps"])
    return min(1.0, left / decay) if (decay := float(run.get("decay", 0.0))) else 1.0


class Training:
    """One run. Its seed gives the start, the sequences, which are drawn anew for every step, and the model's draws."""

    def __init__(self, run: Config) -> None:
        self.run, self.steps, self.step = run, int(run["steps"]), 0
        self.stream = _stream("run", int(run["seed"]))
        self.generator = torch.Generator().manual_seed(int(self.stream.integers(2**62)))
        sizes = (int(run[name]) for name in ("latents", "classes", "hidden"))
        with torch.random.fork_rng(devices=[]):  # torch's layers start from its one global generator
            torch.manual_seed(int(self.stream.integers(2**62)))
            self.model = WorldModel(parameterization(str(run["parameterization"])), *sizes)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=float(run["rate"]), fused=True)
        self.sums = torch.zeros(2, dtype=torch.float64)
        self.history: dict[str, list[float]] = {}
        self.validation = play(int(run["validation_sequences"]), CONTEXT + AHEAD, _stream("validation")).frames

    def advance(self) -> None:
        """One step."""
        self.optimizer.param_groups[0]["lr"] = rate_factor(self.step, self.run) * float(self.run["rate"])
        frames = play(int(self.run["batch"]), int(self.run["length"]), self.stream).frames
        found, _ = loss(self.model, frames, float(self.run["free_nats"]), self.generator)
        self.optimizer.zero_grad()
        found.objective.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.step += 1
        self.sums += torch.stack((found.reconstruction.detach(), found.kl.detach()))

    def log(self, since: int) -> list[dict[str, float]]:
        """Add a point to the history: the mean loss since step ``since``, and a look at some validation sequences."""
        reconstruction, kl = (self.sums / (self.step - since)).tolist()
        self.sums.zero_()
        some = self.validation[:, :LOOKED_AT]
        point = {"train_loss": reconstruction + kl, **belief_metrics(self.model, some, 0)}
        point["rollout"] = float(rollout_loss(self.model, some, LOOKED_AT_SAMPLES, 0).mean())
        add_point(self.history, self.step, point)
        return [point]

    def state(self) -> dict[str, Any]:
        """A checkpoint: all that changes, copied."""
        changing = {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sums": self.sums,
            "stream": self.stream.bit_generator.state,
            "generator": self.generator.get_state(),
            "history": self.history,
        }
        return copy.deepcopy(changing)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        kept = copy.deepcopy(state)
        self.step, self.sums, self.history = kept["step"], kept["sums"], kept["history"]
        self.model.load_state_dict(kept["model"])
        self.optimizer.load_state_dict(kept["optimizer"])
        self.stream.bit_generator.state = kept["stream"]
        self.generator.set_state(kept["generator"])


def train(run: Config, keeper: Keeper) -> Outcome:
    """Train a run, going on from the keeper's checkpoint if there is one, and evaluate it."""
    torch.set_num_threads(1)
    test = play(int(run["test_sequences"]), CONTEXT + AHEAD, _stream("test"))
    if run["parameterization"] == EXACT:
        return _of_the_world(test)
    training = Training(run)
    go_on(training, keeper)
    return _evaluated(training, test.frames)


def _of_the_world(test: Play) -> Outcome:
    """What the exact law reaches, and beside it a constant guess: the mean frame of all states."""
    frames = test.frames[CONTEXT:]
    exact = log_loss(predicted(test.states[CONTEXT - 1], test.shapes[CONTEXT - 1], AHEAD), frames).mean(1)
    guess = log_loss(canvas().double().mean((0, 1)).expand(frames.shape), frames).mean(1)
    history = {**_AHEAD, "ahead": exact.tolist(), "ahead_mean_frame": guess.tolist()}
    return Outcome({"test_rollout": float(exact.mean())}, history)


_AHEAD = {"ahead.step": [float(step) for step in range(1, AHEAD + 1)]}


def _evaluated(training: Training, test: Tensor) -> Outcome:
    model, samples, history = training.model, int(training.run["samples"]), training.history
    names = [name for name in METRICS if test.shape[1] or not name.startswith("test")]
    if not all(bool(part.isfinite().all()) for part in model.parameters()):
        return Outcome(dict.fromkeys(names, math.nan), history)
    found = belief_metrics(model, training.validation, 0)
    found["validation_loss"] = found["loss"]
    found["validation_rollout"] = float(rollout_loss(model, training.validation, samples, 0).mean())
    if test.shape[1]:
        ahead = rollout_loss(model, test, samples, 1)
        found["test_rollout"], found["test_loss"] = float(ahead.mean()), belief_metrics(model, test, 1)["loss"]
        history = {**history, **_AHEAD, "ahead": ahead.tolist(), **_pictures(model, test[:, :1])}
    return Outcome({name: found[name] for name in names}, history)


@torch.no_grad()
def _pictures(model: WorldModel, frames: Tensor) -> dict[str, list[float]]:
    """A sequence, and one rollout of its last frames, as packed grey levels."""
    generator = torch.Generator().manual_seed(0)
    seen = model.observe(frames[:CONTEXT], generator)
    probs = model.imagine(seen.state[-1], seen.drawn[-1], AHEAD, generator).sigmoid()
    shown = {"pictures.truth": frames, "pictures.rollout": probs}
    return {name: pack((LEVELS * values).round().to(torch.uint8).numpy()) for name, values in shown.items()}


# ---- presets and stages ----------------------------------------------------------------------------------------------

SEARCH_SEED = 0
"""The seed of the search. Final runs have the seeds 1, 2, ...: no run is both selected by its luck and reported."""


@dataclasses.dataclass(frozen=True)
class Preset:
    """How much to compute: for each K and parameterization one run a rate, then the final seeds at the best rate.

    Attributes:
        classes: Each K.
        rates: That are searched, the same for all.
        seeds: Final runs of each parameterization.
        steps: Of every run.
        test_sequences: That final runs are evaluated on.
        decay: The last fraction of the steps, over which the rate falls to 0.
    """

    classes: tuple[int, ...]
    rates: tuple[float, ...]
    seeds: int
    steps: int
    test_sequences: int
    decay: float = 0.0

    @property
    def sizes(self) -> dict[str, Any]:
        """What all its configs have in common."""
        return {"steps": self.steps, **({"decay": self.decay} if self.decay else {})}


PRESETS = {
    # A look in minutes: the models are far from what they can learn.
    "quick": Preset(classes=(24,), rates=(0.003,), seeds=2, steps=300, test_sequences=100),
    "evidence": Preset(classes=(24,), rates=(0.001, 0.002, 0.004, 0.008), seeds=5, steps=2000, test_sequences=500),
    # Larger rates, which fall over the second half of the run.
    "decay": Preset(
        classes=(24,), rates=(0.002, 0.004, 0.008, 0.016), seeds=5, steps=2000, test_sequences=500, decay=0.5
    ),
}


def config(classes: int, name: str, rate: float, seed: int, *, test_sequences: int, **sizes: Any) -> Config:
    """All that decides a run's numbers: ``sizes`` are steps, and the decay of the rate if it has one.

    ``length`` is of the sequences that it trains on.
    """
    return {
        "experiment": World.name,
        "latents": 4,
        "classes": classes,
        "hidden": 96,
        "parameterization": name,
        "rate": rate,
        "seed": seed,
        **sizes,
        "batch": 16,
        "length": CONTEXT + AHEAD,
        "free_nats": FREE_NATS,
        "samples": 32,
        "validation_sequences": 200,
        "test_sequences": test_sequences,
    }


class World(EveryRunAlone):
    """The experiment as the engine knows it: a search for rates, then final seeds; every run is a group."""

    name = "world"

    def stages(self, preset: str) -> list[Stage]:
        """Search and final."""
        plan = plan_of(preset, PRESETS, self.name)
        cells = len(plan.classes) * len(ALL)
        about = f"{plan.seeds} seeds at the best rate by validation rollouts, and the exact law"
        alike = tuple(_repeated(plan, [(classes, (name, plan.rates[0])) for classes, name in _cells(plan)]))
        return [
            Stage("search", lambda _: _search(plan), f"{len(plan.rates)} rates, one seed", cells * len(plan.rates)),
            Stage("final", lambda records: _final(plan, records), about, len(alike), alike),
        ]

    def train_one(self, run: Config, keeper: Keeper) -> Outcome:
        """See :func:`train`."""
        return train(run, keeper)

    def seconds_per_group(self, runs: list[Config]) -> float:
        """What a run will take on this machine, from a few steps and a few rollouts."""
        [run] = runs
        if run["parameterization"] == EXACT:
            return 1.0
        step, rollout = _seconds(str(run["parameterization"]), int(run["classes"]))
        rollouts = int(run["samples"]) * (int(run["validation_sequences"]) + int(run["test_sequences"]))
        return int(run["steps"]) * step + (rollouts + LOG_POINTS * LOOKED_AT * LOOKED_AT_SAMPLES) * rollout


@functools.cache
def _seconds(name: str, classes: int) -> tuple[float, float]:
    """Of one step, and of one rollout in the evaluation: processor time, the least of a few tries."""
    torch.set_num_threads(1)
    training = Training(config(classes, name, 0.0001, 0, steps=1000, test_sequences=0))
    some = training.validation[:, :LOOKED_AT]
    step, rollouts = least_seconds(training, lambda: rollout_loss(training.model, some, LOOKED_AT_SAMPLES, 0))
    return step, rollouts / (LOOKED_AT * LOOKED_AT_SAMPLES)


def _cells(plan: Preset) -> list[tuple[int, str]]:
    return list(itertools.product(plan.classes, ALL))


def _search_of(plan: Preset, classes: int, name: str) -> list[Config]:
    """Without a look at the test sequences."""
    return [config(classes, name, rate, SEARCH_SEED, test_sequences=0, **plan.sizes) for rate in plan.rates]


def _search(plan: Preset) -> list[Config]:
    return [run for cell in _cells(plan) for run in _search_of(plan, *cell)]


def _final(plan: Preset, records: pd.DataFrame) -> list[Config]:
    best = [(cell[0], ranked(_search_of(plan, *cell), records, "validation_rollout")[0]) for cell in _cells(plan)]
    return _repeated(plan, best)


def _repeated(plan: Preset, chosen: Sequence[tuple[int, Arm]]) -> list[Config]:
    """Seed after seed, so that what is finished when the work is cut off compares them all; and the exact law."""
    seeds, tested = range(SEARCH_SEED + 1, SEARCH_SEED + 1 + plan.seeds), plan.test_sequences
    learned = itertools.product(seeds, chosen)
    return [
        *(config(classes, *arm, seed, test_sequences=tested, **plan.sizes) for seed, (classes, arm) in learned),
        *(config(classes, EXACT, 0.0, 0, steps=0, test_sequences=tested) for classes in plan.classes),
    ]


# ---- what the engine and the report take from this file --------------------------------------------------------------

EXPERIMENT = World()


def _table(title: str, metric: str, digits: int = 2, **options: Any) -> Table:
    return Table(
        title=title,
        metric=metric,
        better=options.pop("better", "lower"),
        row="classes",
        row_title="K",
        column="parameterization",
        columns=ALL,
        baselines=("softmax",),
        digits=digits,
        **options,
    )


TABLES = (
    _table(
        "Open-loop predictions, log-loss",
        "test_rollout",
        reference=EXACT,
        chosen=("rate",),
        curves=(Curve("rollout", "log-loss of rollouts, validation", x="step"),),
        note=f"Nats a frame, the mean over {AHEAD} frames that are predicted without a look at any of them.",
    ),
    _table(
        "Negative ELBO",
        "test_loss",
        curves=(Curve("train_loss", "negative ELBO in training", x="step"),),
        note="Nats a frame: reconstruction and KL divergence, both with weight 1 and without free nats.",
    ),
    _table("KL divergence", "kl", better=None, curves=(Curve("kl", "KL divergence, nats a frame", x="step"),)),
    _table(
        "Entropy of a posterior",
        "entropy",
        3,
        better=None,
        curves=(Curve("entropy", "entropy of a posterior, nats", x="step"),),
    ),
    _table(
        "Classes alive",
        "classes_alive",
        better="higher",
        curves=(Curve("classes_alive", "classes alive, of K", x="step"),),
    ),
    _table("Dead scores, share", "dead", 3, better=None, curves=(Curve("dead", "dead scores, share", x="step"),)),
)


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Predictions as curves and as pictures, drawn from records."""
    from catnat_experiments.tasks.world import figures as world_figures  # matplotlib takes a second to import

    return world_figures.figures(frame, directory)


# ---- one run by hand -------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one run and print its metrics."""
    parser = argparse.ArgumentParser(prog="python -m catnat_experiments.world", description=main.__doc__)
    parser.add_argument("--classes", type=int, default=24, help="K, the number of classes of a latent variable")
    parser.add_argument("--parameterization", default="natural", help=f"or {EXACT}, for the world's own law")
    parser.add_argument("--rate", type=float, default=0.004)
    parser.add_argument("--steps", type=int, default=PRESETS["evidence"].steps)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    sizes = {"steps": given.steps, "test_sequences": PRESETS["evidence"].test_sequences}
    outcome = train(config(given.classes, given.parameterization, given.rate, given.seed, **sizes), Printing(*SHOWN))
    for name, value in outcome.metrics.items():
        print(f"{name:20}{value:12.4f}  {METRICS[name]}")


SHOWN = ("train_loss", "rollout", "kl", "entropy", "classes_alive", "dead")

if __name__ == "__main__":
    main()
