"""Next-token modelling over Python identifiers: heads for 100,000 classes, compared at equal processor time.

The corpus is source code that every machine has (``corpus.py``); the model is an embedding, a recurrent layer, and a
head: the last layer, from features to the next token (``identifiers_heads.py``). Heads differ so much in what a step
costs that equal steps would say little: every run has the same processor time for its steps, and evaluations do not
count. After a power of two of steps the validation NLL is taken as well, so that heads can be compared at equal steps.

Run one configuration by hand::

    python -m catnat_experiments.identifiers --head "huffman sigmoid" --rate .003 --seconds 60

Our choices: one rate for all parameters of a run, constant, selected by a search of equal processor time for every
head; Adam, and SparseAdam where gradients are sparse (the embedding, and the heads that read a few rows a step); heads
start at the frequencies of the classes. The time to build a tree is not in the budget; records have it. The same
config gives the same steps, not the same number of them: that is up to the machine.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from catnat_experiments.engine.experiment import Config, EveryRunAlone, Keeper, Outcome, Stage, plan_of
from catnat_experiments.engine.loop import LOG_POINTS, Printing, append, go_on
from catnat_experiments.report.markdown import Curve, Table
from catnat_experiments.tasks.identifiers import corpus as identifiers_corpus
from catnat_experiments.tasks.identifiers.corpus import Corpus
from catnat_experiments.tasks.identifiers.heads import HEADS, RIVALS, head_of
from catnat_experiments.tasks.vae.experiment import SEARCH_SEED, ranked

METRICS = {
    "validation_nll": "negative log-probability of a validation token, nats",
    "perplexity": "its exponential",
    "accuracy_1": "share of validation tokens that are the most probable class",
    "accuracy_5": "share that are among the five most probable",
    "visited": "share of all scores that finding those five took",
    "nll_at_equal_steps": "validation NLL, of a smaller sample, after the same number of steps for every head",
    "steps": "steps that the processor time was enough for",
    "steps_per_second": "steps a second of processor time",
    "preparation_seconds": "processor time before the first step: the tree, the start",
    "corpus": "the fingerprint of the corpus",
    "corpus_tokens": "tokens of its training files",
}

# ---- the model -------------------------------------------------------------------------------------------------------

SIZE = 128
"""Of embeddings and of the recurrent state."""
STREAMS, LENGTH = 16, 32
"""A step reads the next 32 tokens of each of 16 places in the corpus, and goes on from the state of the last step."""


class Model(nn.Module):
    """From tokens to features of the next ones, and a head."""

    def __init__(self, name: str, size: int, corpus: Corpus, generator: torch.Generator) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(corpus.counts), size, sparse=True)
        self.recurrent = nn.GRU(size, size, batch_first=True)
        self.head = head_of(name, size, corpus, generator)

    def features(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Features (n, size) of tokens (streams, length), n of them in all, and the state after the last."""
        features, state = self.recurrent(self.embedding(tokens), state)
        return features.flatten(0, 1), state

    def optimizers(self, rate: float) -> tuple[torch.optim.Optimizer, ...]:
        """For sparse gradients, and for the others."""
        head = list(self.head.parameters())
        sparse, dense = [self.embedding.weight], list(self.recurrent.parameters())
        (sparse if self.head.sparse else dense).extend(head)
        return torch.optim.SparseAdam(sparse, lr=rate), torch.optim.Adam(dense, lr=rate, fused=True)


# ---- evaluation ------------------------------------------------------------------------------------------------------

WINDOW = 64
"""Tokens of a window of the validation files; the state before it is zero."""
CURVE_WINDOWS, TOP_WINDOWS = 32, 16
"""Windows for the points of a curve, and for the accuracies."""
_AT_ONCE = 8
"""Windows: 512 rows of 100,000 scores are 200 MB."""


def windows(corpus: Corpus, count: int) -> Tensor:
    """Validation tokens, (count, WINDOW + 1), from places that are evenly spread."""
    last = len(corpus.validation) - WINDOW - 1
    if last < 0:
        raise ValueError(
            f"The validation files have {len(corpus.validation)} tokens, but a window has {WINDOW + 1}: give the "
            "corpus more files."
        )
    firsts = np.linspace(0, last, count).astype(np.int64)
    return torch.from_numpy(corpus.validation[firsts[:, None] + np.arange(WINDOW + 1)]).long()


def _rows(model: Model, chosen: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Features and the tokens that follow them, some windows at a time."""
    for first in range(0, len(chosen), _AT_ONCE):
        part = chosen[first : first + _AT_ONCE]
        yield model.features(part[:, :-1])[0], part[:, 1:].flatten()


@torch.no_grad()
def validation_nll(model: Model, chosen: Tensor) -> float:
    """The mean over all tokens of some windows but their first."""
    found = [model.head.log_prob_of(*rows) for rows in _rows(model, chosen)]
    return -float(torch.cat(found).double().mean())


@torch.no_grad()
def accuracies(model: Model, chosen: Tensor) -> dict[str, float]:
    """Whether the next token is the most probable class, or one of the five most probable."""
    hits, visited = [], []
    for features, target in _rows(model, chosen):
        classes, share = model.head.top(features, 5)
        hits.append(classes == target.unsqueeze(1))
        visited.append(len(target) * share)
    hit = torch.cat(hits).double()
    return {
        "accuracy_1": float(hit[:, 0].mean()),
        "accuracy_5": float(hit.sum(1).mean()),
        "visited": sum(visited) / len(hit),
    }


# ---- training --------------------------------------------------------------------------------------------------------

processor_time = time.thread_time
"""Of this thread: what Ray and TensorBoard do beside it does not count."""
FIRST_BY_STEP = 8
"""Steps after which the curve over steps begins; its points double."""


class Training:
    """One run. Its "steps" for the loop are slices of its processor time, one for every point of history."""

    steps = LOG_POINTS

    def __init__(self, corpus: Corpus, run: Config) -> None:
        began = processor_time()
        self.corpus, self.run = corpus, run
        self.generator = torch.Generator().manual_seed(int(run["seed"]))
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(int(run["seed"]))
            self.model = Model(str(run["parameterization"]), int(run["size"]), corpus, self.generator)
        self.optimizers = self.model.optimizers(float(run["rate"]))
        self.preparation = processor_time() - began
        self.tokens = self._streams()
        self.window = int(torch.randint(self._count, (), generator=self.generator))
        self.state_of_streams = self._no_state()
        self.step, self.done, self.clock = 0, 0, 0.0
        self.sum = torch.zeros((), dtype=torch.float64)
        self.since = 0
        self.history: dict[str, list[float]] = {}
        self._looked_at = windows(corpus, CURVE_WINDOWS)

    def _streams(self) -> Tensor:
        """The training tokens side by side, (streams, tokens)."""
        streams, length = int(self.run["streams"]), int(self.run["length"])
        each = len(self.corpus.train) // streams
        self._count = (each - 1) // length
        if self._count < 1:
            raise ValueError(
                f"The training files have {len(self.corpus.train)} tokens, but a step reads {streams} x {length} and "
                "their successors: give the corpus more files."
            )
        return torch.from_numpy(self.corpus.train[: streams * each].reshape(streams, each))

    def _no_state(self) -> Tensor:
        return torch.zeros(1, int(self.run["streams"]), int(self.run["size"]))

    def advance(self) -> None:
        """As many steps as the next slice of processor time is enough for."""
        self.step += 1
        while self.clock < float(self.run["seconds"]) * self.step / self.steps:
            began = processor_time()
            self._learn()
            self.clock += processor_time() - began
            self.done += 1
            if self.done >= FIRST_BY_STEP and self.done & (self.done - 1) == 0:
                append(self.history, {"steps_by_step": float(self.done), "nll_by_step": self._nll()})

    def _learn(self) -> None:
        length = int(self.run["length"])
        first = self.window * length
        part = self.tokens[:, first : first + length + 1].long()
        features, state = self.model.features(part[:, :-1], self.state_of_streams)
        loss = self.model.head.loss(features, part[:, 1:].flatten())
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in self.optimizers:
            optimizer.step()
        self.sum += loss.detach()
        self.window = (self.window + 1) % self._count
        self.state_of_streams = state.detach() if self.window else self._no_state()

    def _nll(self) -> float:
        return validation_nll(self.model, self._looked_at)

    def log(self, since: int) -> list[dict[str, float]]:
        """Add a point to the history: the mean loss of the steps since the last one, and the validation NLL."""
        train = float(self.sum) / (self.done - self.since) if self.done > self.since else math.nan
        self.sum.zero_()
        self.since = self.done
        point = {"train_loss": train, "nll": self._nll(), "steps": float(self.done)}
        append(self.history, {"seconds": self.clock, **point})
        return [point]

    def metrics(self) -> dict[str, float]:
        """The final metrics; NaN for a run that diverged."""
        run, corpus = self.run, self.corpus
        by_step = dict(zip(*(self.history.get(name, ()) for name in ("steps_by_step", "nll_by_step")), strict=True))
        nll = validation_nll(self.model, windows(corpus, int(run["validation_windows"])))
        found = {
            "validation_nll": nll,
            "perplexity": math.exp(min(nll, 700.0)),
            "nll_at_equal_steps": by_step.get(float(run["equal_steps"]), math.nan),
        }
        if math.isfinite(nll):
            found |= accuracies(self.model, windows(corpus, TOP_WINDOWS))
        return dict.fromkeys(METRICS, math.nan) | {
            **found,
            "steps": float(self.done),
            "steps_per_second": self.done / self.clock,
            "preparation_seconds": self.preparation,
            "corpus": float(corpus.fingerprint),
            "corpus_tokens": float(len(corpus.train)),
        }

    _PLAIN = ("step", "done", "clock", "window", "since", "sum", "state_of_streams", "history", "preparation")

    def _parts(self) -> tuple[Any, ...]:
        """What has a state of its own."""
        return self.model, *self.optimizers

    def state(self) -> dict[str, Any]:
        """A checkpoint: all that changes, copied; the clock too."""
        plain = {name: getattr(self, name) for name in self._PLAIN}
        parts = [part.state_dict() for part in self._parts()]
        return copy.deepcopy({"plain": plain, "parts": parts, "generator": self.generator.get_state()})

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        state = copy.deepcopy(state)
        for name, value in state["plain"].items():
            setattr(self, name, value)
        for part, saved in zip(self._parts(), state["parts"], strict=True):
            part.load_state_dict(saved)
        self.generator.set_state(state["generator"])


def train(run: Config, keeper: Keeper, corpus: Corpus | None = None) -> Outcome:
    """Train a run, going on from the keeper's checkpoint if there is one, and evaluate it."""
    torch.set_num_threads(1)
    training = Training(corpus or identifiers_corpus.load(int(run["classes"])), run)
    go_on(training, keeper)
    return Outcome(training.metrics(), training.history)


# ---- presets and stages ----------------------------------------------------------------------------------------------

RATES = (0.0001, 0.0005, 0.002, 0.01)
"""Far apart: a softmax that makes few steps wants high rates, isotropic scaling of deep nodes low ones."""
SEARCH_SHARE = 0.2
"""Of the processor time of a final run, for each run of the search."""
_EVIDENCE = (
    *RIVALS,
    "random sigmoid",
    "huffman sigmoid",
    "clustered sigmoid",
    "clustered natural-reflect",
    "clustered sigmoid-isotropic",
    "clustered natural-isotropic",
)
"""All kinds of trees with one activation, and one tree with all activations."""


@dataclasses.dataclass(frozen=True)
class Preset:
    """How much to compute.

    Attributes:
        heads: By name.
        classes: How many of the corpus' most frequent tokens.
        seconds: Processor time of a final run.
        seeds: Final runs of every head.
        equal_steps: A power of two that every head reaches.
        validation_windows: Of the final NLL.
        rates: That the search tries.
    """

    heads: tuple[str, ...]
    classes: int
    seconds: float
    seeds: int
    equal_steps: int
    validation_windows: int = 256
    rates: tuple[float, ...] = RATES


PRESETS = {
    # A look in minutes: few classes, where a softmax is not slow.
    "quick": Preset(
        heads=("softmax", "sampled", "huffman sigmoid", "clustered natural-reflect"),
        classes=5000,
        seconds=12.0,
        seeds=2,
        equal_steps=64,
        validation_windows=32,
        rates=(0.001, 0.003),
    ),
    # The page in the documentation.
    "evidence": Preset(heads=_EVIDENCE, classes=100_000, seconds=300.0, seeds=3, equal_steps=128),
    # Every head, for longer.
    "full": Preset(heads=HEADS, classes=100_000, seconds=1800.0, seeds=5, equal_steps=256, validation_windows=1024),
}


def config(head: str, rate: float, seed: int, plan: Preset, *, share: float = 1.0) -> Config:
    """All that decides a run, but for the speed of the machine; ``share`` is that of the preset's seconds."""
    return {
        "experiment": Identifiers.name,
        "parameterization": head,
        "rate": rate,
        "seed": seed,
        "classes": plan.classes,
        "seconds": share * plan.seconds,
        "equal_steps": plan.equal_steps,
        "validation_windows": plan.validation_windows,
        "size": SIZE,
        "streams": STREAMS,
        "length": LENGTH,
    }


class Identifiers(EveryRunAlone):
    """The experiment as the engine knows it: a search for rates, then final seeds; every run is a group."""

    name = "identifiers"

    def stages(self, preset: str) -> list[Stage]:
        """Search and final."""
        plan = plan_of(preset, PRESETS, self.name)
        searched = [run for head in plan.heads for run in _search_of(head, plan)]
        alike = _final(plan, dict.fromkeys(plan.heads, plan.rates[0]))
        rates, seconds = f"{len(plan.rates)} rates", f"{SEARCH_SHARE * plan.seconds:g} s of processor time"
        return [
            Stage("search", lambda _: searched, f"{rates}, one seed, {seconds}", len(searched)),
            Stage(
                "final",
                lambda records: _final(plan, _chosen(plan, records)),
                f"{plan.seeds} seeds at the best rate by validation NLL, {plan.seconds:g} s of processor time",
                len(alike),
                tuple(alike),
            ),
        ]

    def train_one(self, run: Config, keeper: Keeper) -> Outcome:
        """See :func:`train`."""
        return train(run, keeper)

    def seconds_per_group(self, runs: list[Config]) -> float:
        """The run's budget, a tenth for its checkpoints, and the evaluations of heads that read all scores."""
        [run] = runs
        points = LOG_POINTS + 8  # the latter over steps
        rows = WINDOW * (CURVE_WINDOWS * points + int(run["validation_windows"]))
        reads_all = run["parameterization"] in ("softmax", "linear_cross_entropy", "sampled")
        return 1.1 * float(run["seconds"]) + reads_all * rows * int(run["classes"]) * _SECONDS_PER_SCORE


_SECONDS_PER_SCORE = 9e-9
"""As measured on one core."""


def _search_of(head: str, plan: Preset) -> list[Config]:
    return [config(head, rate, SEARCH_SEED, plan, share=SEARCH_SHARE) for rate in plan.rates]


def _chosen(plan: Preset, records: pd.DataFrame) -> dict[str, float]:
    """The rate of every head with the lowest validation NLL."""
    return {head: ranked(_search_of(head, plan), records)[0][1] for head in plan.heads}


def _final(plan: Preset, rates: dict[str, float]) -> list[Config]:
    """Seed after seed, so that what is finished when the work is cut off compares all heads."""
    seeds = range(SEARCH_SEED + 1, SEARCH_SEED + 1 + plan.seeds)
    return [config(head, rates[head], seed, plan) for seed, head in itertools.product(seeds, plan.heads)]


# ---- what the engine and the report take from this file --------------------------------------------------------------

EXPERIMENT = Identifiers()


def _table(title: str, metric: str, *, higher: bool = False, **options: Any) -> Table:
    return Table(
        title=title,
        metric=metric,
        better="higher" if higher else "lower",
        row="classes",
        row_title="K",
        column="parameterization",
        columns=HEADS,
        **options,
    )


TABLES = (
    _table(
        "Validation NLL at equal processor time",
        "validation_nll",
        digits=3,
        chosen=("rate", "seconds"),
        curves=(Curve("nll", "validation NLL", x="seconds", x_title="seconds of processor time"),),
    ),
    _table(
        "Validation NLL at equal steps",
        "nll_at_equal_steps",
        digits=3,
        chosen=("equal_steps",),
        curves=(Curve("nll_by_step", "validation NLL", x="steps_by_step", log_x=True),),
        note="On a smaller sample of the validation files than the NLL at equal time.",
    ),
    _table("Perplexity", "perplexity", digits=1),
    _table("Accuracy of the most probable token", "accuracy_1", higher=True),
    _table("Accuracy of the five most probable tokens", "accuracy_5", higher=True),
    _table(
        "Share of scores that the search for five classes took",
        "visited",
        note="The softmaxes compute all of them; catnat's search leaves out what cannot be among the five.",
    ),
    _table("Steps a second of processor time", "steps_per_second", higher=True, digits=2),
    _table(
        "Preparation, seconds of processor time",
        "preparation_seconds",
        digits=1,
        note="Before the clock: building the tree and drawing the start. A worker keeps a tree for its next run, which "
        "then has only the start.",
    ),
)


# ---- one run by hand -------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one run and print its metrics."""
    parser = argparse.ArgumentParser(prog="python -m catnat_experiments.identifiers", description=main.__doc__)
    parser.add_argument("--head", default="huffman sigmoid", help=", ".join(HEADS))
    parser.add_argument("--rate", type=float, default=0.003)
    parser.add_argument("--seconds", type=float, default=60.0, help="of processor time")
    parser.add_argument("--classes", type=int, default=PRESETS["evidence"].classes)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    plan = dataclasses.replace(PRESETS["evidence"], seconds=given.seconds, classes=given.classes, validation_windows=32)
    outcome = train(config(given.head, given.rate, given.seed, plan), Printing("train_loss", "nll", "steps"))
    for name, about in METRICS.items():
        print(f"{name:20}{outcome.metrics[name]:16.4f}  {about}")


if __name__ == "__main__":
    main()
