"""The training of the next-token model, for a given processor time."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from catnat_experiments.engine.loop import LOG_POINTS, OneRun, append, finished
from catnat_experiments.engine.types import Checkpointer, Config, Outcome
from catnat_experiments.tasks.identifiers import purchases
from catnat_experiments.tasks.identifiers.corpus import Corpus, load
from catnat_experiments.tasks.identifiers.heads import seconds_to_learn
from catnat_experiments.tasks.identifiers.model import (
    CURVE_WINDOWS,
    TOP_WINDOWS,
    Model,
    accuracies,
    validation_nll,
    windows,
)

METRICS = {
    "validation_nll": "negative log-probability of a validation token, nats",
    "perplexity": "its exponential",
    "accuracy_1": "fraction of validation tokens that are the most probable class",
    "accuracy_5": "fraction that are among the five most probable",
    "visited": "fraction of all scores that finding those five took",
    "nll_at_equal_steps": "validation NLL, of a smaller sample, after the same number of steps for every head",
    "steps": "steps that the processor time was enough for",
    "steps_per_second": "steps a second of processor time",
    "preparation_seconds": "processor time before the first step: the tree, the start",
    "corpus": "the fingerprint of the corpus",
    "corpus_tokens": "tokens of its training files",
}
processor_time = time.thread_time
"""The processor time of this thread, without that of Ray and TensorBoard."""
FIRST_BY_STEP = 8
"""The first point of the curve over steps; later points double it."""


class Training(OneRun):
    """One run. Its "steps" for the loop are slices of its processor time, one for every point of history."""

    steps = LOG_POINTS
    changing = (
        *("step", "done", "clock", "window", "since", "sum", "state_of_streams", "history", "preparation"),
        *("model", "sparse", "dense", "generator"),
    )

    def __init__(self, corpus: Corpus, run: Config) -> None:
        began = processor_time()
        self.corpus, self.run = corpus, run
        self.generator = torch.Generator().manual_seed(int(run["seed"]))
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(int(run["seed"]))
            self.model = Model(str(run["parameterization"]), int(run["size"]), corpus, self.generator)
        self.sparse, self.dense = self.model.optimizers(float(run["rate"]))
        self.preparation = processor_time() - began
        self.tokens = self._streams()
        self.window = int(torch.randint(self._count, (), generator=self.generator))
        self.state_of_streams = self._no_state()
        self.step, self.done = 0, 0
        self.clock = seconds_to_learn(str(run["parameterization"]), corpus)
        self.sum = torch.zeros((), dtype=torch.float64)
        self.since = 0
        self.history: dict[str, list[float]] = {}
        self._looked_at = windows(corpus, CURVE_WINDOWS)

    def _streams(self) -> Tensor:
        """Return the training tokens in parallel streams, (streams, tokens)."""
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
        """Do steps until the next slice of processor time is used."""
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
        self.model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.sparse.step()
        self.dense.step()
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
        """Return the final metrics; NaN for a run that diverged."""
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


def corpus_of(run: Config) -> Corpus:
    """Return the source code of this machine, or a supermarket's purchases, with a run's number of classes."""
    if run.get("data") == "purchases":
        return purchases.load().most_frequent(int(run["classes"]))
    return load(int(run["classes"]))


def train(run: Config, checkpointer: Checkpointer, corpus: Corpus | None = None) -> Outcome:
    """Train a run, resuming from the last checkpoint if there is one, and evaluate it."""
    return finished(Training(corpus or corpus_of(run), run), checkpointer)
