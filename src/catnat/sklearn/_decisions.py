"""The decisions of a tree: which rows take part in each, and what a classifier fitted on them says."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing

from catnat.taxonomy.lineage import Floats, Ints, Lineage

_LEAST = np.finfo(np.float64).eps  # no branch is less probable: a node that is certain may still be wrong


class Decisions:
    """What every node decides between, and the rows of each.

    Labels are numbered in pre-order, where everything below a node follows it without a gap. So rows sorted by the
    number of their label are a slice for every member of every node.
    """

    def __init__(self, lineage: Lineage, members: list[Ints]) -> None:
        self.members = members
        self._labels = lineage.top + 1
        self._nodes = [int(lineage.parent[some[0]]) for some in members]
        below = np.ones(lineage.top + 1, dtype=np.int64)
        for level in reversed(lineage.levels):
            np.add.at(below, lineage.parent[level], below[level])
        self._number = np.empty(lineage.top + 1, dtype=np.int64)
        self._number[np.lexsort((lineage.depth, lineage.start))] = np.arange(lineage.top + 1)
        self._end = self._number + below

    def rows(self, labels: Ints) -> list[tuple[Ints, Ints]]:
        """Of every node: the rows that take part, in the order of the data, and the member that each goes to.

        A row whose label is the node itself takes no part.
        """
        order = np.argsort(self._number[labels], kind="stable")
        numbers = self._number[labels][order]
        found = []
        for members in self.members:
            starts, stops = np.searchsorted(numbers, [self._number[members], self._end[members]])
            rows = np.concatenate([order[start:stop] for start, stop in zip(starts, stops, strict=True)])
            branch = np.repeat(np.arange(len(members)), stops - starts)
            back = np.argsort(rows)
            found.append((rows[back], branch[back]))
        return found

    def log_reach(self, log_probs: list[Floats], rows: int) -> Floats:
        """The log-probability of every label, (labels, rows), from those of the members of every node."""
        reached = np.zeros((self._labels, rows))
        for node, members, local in zip(self._nodes, self.members, log_probs, strict=True):
            reached[members] = reached[node] + local
        return reached


@dataclasses.dataclass(frozen=True)
class LocalModel:
    """The probabilities of a node's members.

    Members without rows get their share of one more row, which is divided as the prior says.
    """

    estimator: Any
    """Fitted on members with rows; None if there are not two of them."""
    seen: Ints
    unseen: Floats
    """The probability of every member without rows; 0 for one with rows."""

    @classmethod
    def fit(cls, estimator: Any, X: Any, rows: Ints, branch: Ints, prior: Floats, weights: Floats | None) -> LocalModel:
        """Fit a classifier if there is something to tell apart."""
        seen, target = np.unique(branch, return_inverse=True)
        total = len(rows) if weights is None else weights[rows].sum()
        unseen = prior / prior.sum() / (total + 1)
        unseen[seen] = 0.0
        if len(seen) < 2:
            return cls(None, seen, unseen)
        options = {} if weights is None else {"sample_weight": weights[rows]}
        return cls(estimator.fit(_safe_indexing(X, rows), target, **options), seen, unseen)

    def log_probs(self, X: Any) -> Floats:
        """Of all members, (members, rows), or (members, 1) if features do not matter."""
        probs = np.ones((1, 1))
        if self.estimator is not None:
            probs = np.maximum(np.asarray(self.estimator.predict_proba(X), dtype=np.float64).T, _LEAST)
            probs /= probs.sum(axis=0)
        found = np.repeat(self.unseen[:, None], probs.shape[1], axis=1)
        found[self.seen] = probs[: len(self.seen)] * (1 - self.unseen.sum())
        logs: Floats = np.log(np.maximum(found, _LEAST))
        return logs
