"""Parameterizations by name: the maps from scores to class probabilities that experiments compare.

The paper has softmax, sparsemax, and catnat with the sigmoid and with the natural activation. Two controls are added:
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
"""The floor of probabilities in the logarithm of sparsemax, which has exact zeros."""


@dataclasses.dataclass(frozen=True)
class Parameterization(abc.ABC):
    """A map from scores to the probabilities of K classes, both on the last axis.

    Attributes:
        name: The name in configs and records.
    """

    name: str

    @abc.abstractmethod
    def num_scores(self, num_classes: int) -> int:
        """Return the number of scores for K classes: K, or K - 1."""

    @abc.abstractmethod
    def probs(self, scores: Tensor) -> Tensor:
        """Return the probability of every class."""

    @abc.abstractmethod
    def log_probs(self, scores: Tensor) -> Tensor:
        """Return the log-probability of every class, finite."""

    @abc.abstractmethod
    def scores_from_probs(self, probs: Tensor) -> Tensor:
        """Return scores with given :meth:`probs`, for a start at a chosen point."""

    @abc.abstractmethod
    def saturated(self, scores: Tensor) -> Tensor:
        """Return which scores are saturated: with a probability of exactly 0 or 1, and without gradient."""


def impossible_fraction(probs: Tensor, classes: Tensor) -> float:
    """Return the fraction of rows whose class has probability 0: their true log loss is infinite, not the floor's."""
    return float((probs.gather(-1, classes.unsqueeze(-1)) == 0).double().mean())


def _saturated_scores(probs: Tensor) -> Tensor:
    """Return which of K scores are saturated: those of classes of probability 0, and that of a certain class."""
    impossible = probs == 0
    certain = impossible.sum(-1, keepdim=True) == probs.shape[-1] - 1
    return impossible | certain


@dataclasses.dataclass(frozen=True)
class Softmax(Parameterization):
    """Softmax of one score per class, or of logits that are a fixed linear map of K - 1 scores.

    Attributes:
        basis: A function from K to that map, (K - 1, K), a row of logits for each score; None for one score per class.
    """

    basis: Callable[[int], Tensor] | None = None

    def num_scores(self, num_classes: int) -> int:
        """Return K, or K - 1 with a basis: softmax does not change with a constant added to all logits."""
        return num_classes if self.basis is None else num_classes - 1

    def _logits(self, scores: Tensor) -> Tensor:
        return scores if self.basis is None else scores @ self.basis(scores.shape[-1] + 1).to(scores)

    def probs(self, scores: Tensor) -> Tensor:
        """Return the softmax of the logits."""
        return self._logits(scores).softmax(-1)

    def log_probs(self, scores: Tensor) -> Tensor:
        """Return its logarithm."""
        return self._logits(scores).log_softmax(-1)

    def scores_from_probs(self, probs: Tensor) -> Tensor:
        """Return scores whose logits are ``log p`` up to a constant; centred, if they are the logits."""
        logs = probs.clamp(min=torch.finfo(probs.dtype).tiny).log()
        if self.basis is None:
            return logs - logs.mean(-1, keepdim=True)
        basis = self.basis(probs.shape[-1]).to(probs)
        basis = torch.cat((basis, torch.ones_like(basis[:1])))  # the constant is the last coordinate
        scores: Tensor = torch.linalg.solve(basis, logs, left=False)
        return scores[..., :-1]

    def saturated(self, scores: Tensor) -> Tensor:
        """Return where probabilities underflow to 0: 104 below the largest score, in float32."""
        probs = self.probs(scores)
        if self.basis is None:
            return _saturated_scores(probs)
        certain = (probs == 0).sum(-1, keepdim=True) == scores.shape[-1]  # of one class, so no score has a gradient
        return certain.expand_as(scores)


def _anchored(num_classes: int) -> Tensor:
    """Return the unit vectors of all classes but the last, whose logit is 0."""
    return torch.eye(num_classes)[:-1]


@functools.cache
def _haar(num_classes: int) -> Tensor:
    """Return the orthonormal Haar basis of the balanced tree: a row per node, of sum 0, positive on classes of yes."""
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
        """Return K."""
        return num_classes

    def probs(self, scores: Tensor) -> Tensor:
        """Return sparsemax over the last axis, with exact zeros."""
        result: Tensor = sparsemax(scores, -1)
        return result

    def log_probs(self, scores: Tensor) -> Tensor:
        """Return ``log max(p, 1e-20)``, which is finite and without gradient at a zero."""
        return self.probs(scores).clamp(min=SMALLEST_SPARSE).log()

    def scores_from_probs(self, probs: Tensor) -> Tensor:
        """Return the centred probabilities: for two classes ``theta - 1/2`` and its negative."""
        return probs - 1 / probs.shape[-1]

    def saturated(self, scores: Tensor) -> Tensor:
        """Return those outside the support, and all if it is one class."""
        return _saturated_scores(self.probs(scores))


@dataclasses.dataclass(frozen=True)
class Catnat(Parameterization):
    """One score per inner node of a tree.

    Attributes:
        activation: The function from a score to the probability of yes.
        tree: The tree over the classes; None for the balanced one.
    """

    activation: ct.Activation
    tree: Tree | None = None

    def num_scores(self, num_classes: int) -> int:
        """Return the number of inner nodes."""
        return num_classes - 1

    def probs(self, scores: Tensor) -> Tensor:
        """Return the products of the branch probabilities on the paths to the classes."""
        return ct.catnat(scores, self.tree, self.activation)

    def log_probs(self, scores: Tensor) -> Tensor:
        """Return their logarithms, finite."""
        return ct.log_catnat(scores, self.tree, self.activation)

    def scores_from_probs(self, probs: Tensor) -> Tensor:
        """Return the inverse of the activation at every node."""
        return ct.scores_from_probs(probs, self.tree, self.activation)

    def saturated(self, scores: Tensor) -> Tensor:
        """Return the nodes with a branch of probability 1."""
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
    """Return the parameterization of a name.

    >>> parameterization("natural").num_scores(8)
    7
    """
    if name not in PARAMETERIZATIONS:
        raise ValueError(f"`parameterization` is {name!r}, but one of these is needed: {', '.join(PARAMETERIZATIONS)}.")
    return PARAMETERIZATIONS[name]
