"""Parameterizations by name: the maps from scores to class probabilities that all experiments compare.

From the paper: softmax, sparsemax, and catnat with the sigmoid and with the natural activation. Beyond it, as controls:
softmax of K - 1 scores, with one logit fixed or with the tree's contrasts as coordinates.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable

import torch
from entmax import sparsemax
from torch import Tensor

import catnat.torch as ct
from catnat import Tree, balanced

SMALLEST_SPARSE = 1e-20
"""sparsemax has exact zeros: its logarithm is that of at least this."""


@dataclasses.dataclass(frozen=True)
class Parameterization(abc.ABC):
    """A map from scores to the probabilities of K classes, both on the last axis.

    Attributes:
        name: What configs and records call it.
    """

    name: str

    @abc.abstractmethod
    def num_scores(self, num_classes: int) -> int:
        """How many scores there are for K classes: K, or K - 1."""

    @abc.abstractmethod
    def probs(self, scores: Tensor) -> Tensor:
        """The probability of every class."""

    @abc.abstractmethod
    def log_probs(self, scores: Tensor) -> Tensor:
        """The log-probability of every class, finite."""

    @abc.abstractmethod
    def scores_from_probs(self, probs: Tensor) -> Tensor:
        """Scores whose :meth:`probs` are the given ones, for a start at a chosen point."""

    @abc.abstractmethod
    def saturated(self, scores: Tensor) -> Tensor:
        """Which scores are saturated: their probability is exactly 0 or 1, and they get no gradient."""


def impossible_fraction(probs: Tensor, classes: Tensor) -> float:
    """The fraction of rows whose class has probability exactly 0: their true log loss is infinite, not the floor's."""
    return float((probs.gather(-1, classes.unsqueeze(-1)) == 0).double().mean())


def _saturated_scores(probs: Tensor) -> Tensor:
    """Which of K scores are saturated: those of classes of probability 0, and the one score of a certain class."""
    impossible = probs == 0
    certain = impossible.sum(-1, keepdim=True) == probs.shape[-1] - 1
    return impossible | certain


@dataclasses.dataclass(frozen=True)
class Softmax(Parameterization):
    """Softmax of one score per class, or of logits that are a fixed linear map of K - 1 scores.

    Attributes:
        basis: From K to that map, a row of logits for each score, (K - 1, K); None for one score per class.
    """

    basis: Callable[[int], Tensor] | None = None

    def num_scores(self, num_classes: int) -> int:
        """One per class, or one fewer: softmax does not change with a constant added to all logits."""
        return num_classes if self.basis is None else num_classes - 1

    def _logits(self, scores: Tensor) -> Tensor:
        return scores if self.basis is None else scores @ self.basis(scores.shape[-1] + 1).to(scores)

    def probs(self, scores: Tensor) -> Tensor:
        """Softmax of the logits."""
        return self._logits(scores).softmax(-1)

    def log_probs(self, scores: Tensor) -> Tensor:
        """Its logarithm."""
        return self._logits(scores).log_softmax(-1)

    def scores_from_probs(self, probs: Tensor) -> Tensor:
        """The scores whose logits are ``log p`` up to a constant; centred, if they are the logits."""
        logs = probs.clamp(min=torch.finfo(probs.dtype).tiny).log()
        if self.basis is None:
            return logs - logs.mean(-1, keepdim=True)
        basis = self.basis(probs.shape[-1]).to(probs)
        basis = torch.cat((basis, torch.ones_like(basis[:1])))  # the constant is the last coordinate
        scores: Tensor = torch.linalg.solve(basis, logs, left=False)
        return scores[..., :-1]

    def saturated(self, scores: Tensor) -> Tensor:
        """Only where a probability underflows to 0: 104 below the largest score, in float32."""
        probs = self.probs(scores)
        if self.basis is None:
            return _saturated_scores(probs)
        certain = (probs == 0).sum(-1, keepdim=True) == scores.shape[-1]  # of one class, so no score has a gradient
        return certain.expand_as(scores)


def _anchored(num_classes: int) -> Tensor:
    """The logit of the last class is 0: the unit vectors of all others."""
    return torch.eye(num_classes)[:-1]


@functools.cache
def _haar(num_classes: int) -> Tensor:
    """The orthonormal Haar basis of the balanced tree: a row for each node, of sum 0, positive on the leaves of yes."""
    tree, rows = balanced(num_classes), torch.zeros(num_classes - 1, num_classes)
    for label in range(num_classes):
        nodes, bits = (torch.from_numpy(part.copy()) for part in tree.path(label))
        rows[nodes, label] = 2.0 * bits - 1.0
    yes, no = rows > 0, rows < 0
    contrasts = yes / yes.sum(1, keepdim=True) - no / no.sum(1, keepdim=True)
    return torch.nn.functional.normalize(contrasts, dim=1)


@dataclasses.dataclass(frozen=True)
class Sparsemax(Parameterization):
    """One score per class: the Euclidean projection of the scores to the simplex."""

    def num_scores(self, num_classes: int) -> int:
        """One per class."""
        return num_classes

    def probs(self, scores: Tensor) -> Tensor:
        """Sparsemax over the last axis, with exact zeros."""
        result: Tensor = sparsemax(scores, -1)
        return result

    def log_probs(self, scores: Tensor) -> Tensor:
        """``log max(p, 1e-20)``: at a zero it is finite, and flat."""
        return self.probs(scores).clamp(min=SMALLEST_SPARSE).log()

    def scores_from_probs(self, probs: Tensor) -> Tensor:
        """The probabilities, centred: of two classes ``theta - 1/2`` and minus that."""
        return probs - 1 / probs.shape[-1]

    def saturated(self, scores: Tensor) -> Tensor:
        """Outside the support, and where the support is one class."""
        return _saturated_scores(self.probs(scores))


@dataclasses.dataclass(frozen=True)
class Catnat(Parameterization):
    """One score per inner node of a tree.

    Attributes:
        activation: How a score becomes the probability of yes.
        tree: Over the classes; None for the balanced one.
    """

    activation: ct.Activation
    tree: Tree | None = None

    def num_scores(self, num_classes: int) -> int:
        """One per inner node."""
        return num_classes - 1

    def probs(self, scores: Tensor) -> Tensor:
        """The products of the answers on the paths to the leaves."""
        return ct.catnat(scores, self.tree, self.activation)

    def log_probs(self, scores: Tensor) -> Tensor:
        """Their logarithms, finite."""
        return ct.log_catnat(scores, self.tree, self.activation)

    def scores_from_probs(self, probs: Tensor) -> Tensor:
        """Node by node the inverse of the activation."""
        return ct.scores_from_probs(probs, self.tree, self.activation)

    def saturated(self, scores: Tensor) -> Tensor:
        """Where a node answers with certainty."""
        return ct.geometry.saturated(scores, self.tree, self.activation)


PARAMETERIZATIONS: dict[str, Parameterization] = {
    entry.name: entry
    for entry in (
        Softmax("softmax"),
        Sparsemax("sparsemax"),
        Catnat("sigmoid", activation=ct.sigmoid()),
        Catnat("natural", activation=ct.natural()),
        Softmax("softmax-anchored", _anchored),
        Softmax("softmax-haar", _haar),
    )
}


def parameterization(name: str) -> Parameterization:
    """The parameterization of a name.

    >>> parameterization("natural").num_scores(8)
    7
    """
    if name not in PARAMETERIZATIONS:
        raise ValueError(f"`parameterization` is {name!r}, but one of these is needed: {', '.join(PARAMETERIZATIONS)}.")
    return PARAMETERIZATIONS[name]
