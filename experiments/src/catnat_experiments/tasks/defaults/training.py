"""The common part of the small tasks: a loss on random batches, minimized by Adam at a constant learning rate.

All runs of a task are evaluated on the same data. A run takes seconds.
"""

from __future__ import annotations

import abc
import dataclasses

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import catnat
from catnat_experiments.common.parameterizations import Catnat, Parameterization, parameterization
from catnat_experiments.engine.loop import OneRun, add_point
from catnat_experiments.engine.types import Config

ORDERS = ("given", "random", "embeddings")
"""The orders of classes under a tree: as numbered, random for each seed, or by ``catnat.from_embeddings``."""


def ordered(kind: Parameterization, order: str, embeddings: NDArray[np.float64], seed: int) -> Parameterization:
    """Return the parameterization with its tree over the classes in an order; softmax is returned unchanged.

    Args:
        kind: The parameterization, on the balanced tree.
        order: One of :data:`ORDERS`.
        embeddings: A vector for every class, (K, d).
        seed: The seed of the random order.
    """
    if order not in ORDERS:
        raise ValueError(f"`order` is {order!r}, but one of these is needed: {', '.join(ORDERS)}.")
    if not isinstance(kind, Catnat) or order == "given":
        return kind
    if order == "embeddings":
        return dataclasses.replace(kind, tree=catnat.from_embeddings(embeddings))
    permutation = np.random.default_rng(seed).permutation(len(embeddings))
    return dataclasses.replace(kind, tree=catnat.from_clusters(permutation.tolist()))


def perceptron(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Return a perceptron with one hidden layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


class Training(OneRun):
    """One run. Its seed determines the start, batches, samples and a random order; all runs have the same data."""

    changing = ("step", "sum", "history", "model", "optimizer", "generator")
    model: nn.Module
    kind: Parameterization

    def __init__(self, run: Config) -> None:
        self.run, self.steps, self.batch = run, int(run["steps"]), int(run["batch"])
        self.generator = torch.Generator().manual_seed(int(run["seed"]))
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(int(run["seed"]))
            self._start()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=float(run["rate"]), fused=True)
        self.step, self.sum = 0, 0.0
        self.history: dict[str, list[float]] = {}

    def _ordered(self, order: str, embeddings: NDArray[np.float64]) -> Parameterization:
        return ordered(parameterization(str(self.run["parameterization"])), order, embeddings, int(self.run["seed"]))

    @abc.abstractmethod
    def _start(self) -> None:
        """Set ``kind`` and ``model``."""

    @abc.abstractmethod
    def loss(self) -> Tensor:
        """Return the loss of a random batch."""

    @abc.abstractmethod
    def measure(self, split: str) -> dict[str, float]:
        """Return the model's metrics on the fixed data of "validation" or "test"."""

    def advance(self) -> None:
        """Do one step."""
        loss = self.loss()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.step += 1
        self.sum += float(loss.detach())

    def log(self, since: int) -> list[dict[str, float]]:
        """Add the mean loss since step ``since`` to the history; :meth:`measure` would take longer than training."""
        point = {"train_loss": self.sum / (self.step - since)}
        self.sum = 0.0
        add_point(self.history, self.step, point)
        return [point]

    def metrics(self) -> dict[str, float]:
        """Return the final metrics of both splits, with the split in their names."""
        return {f"{split}_{name}": x for split in ("validation", "test") for name, x in self.measure(split).items()}


def saturated_fraction(kind: Parameterization, scores: Tensor) -> float:
    """Return the fraction of saturated scores, which get no gradient."""
    return float(kind.saturated(scores).double().mean())
