"""The nodes of a tree: the training rows of each, and the classifier fitted on them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing

from catnat.taxonomy.lineage import Floats, Ints, Lineage

_LEAST = np.finfo(np.float64).eps  # the floor of branch probabilities, because a certain classifier can be wrong


class Decisions:
    """The members of every node, and the rows of each member.

    Labels are numbered in pre-order, so the labels below a node are consecutive. If rows are sorted by these numbers,
    the rows of a member are a slice.
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
        """Return for every node its rows, in the order of the data, and the member of each row.

        A row labelled with the node itself is left out.
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
        """Return the log-probability of every label, (labels, rows), from those of every node's members."""
        reached = np.zeros((self._labels, rows))
        for node, members, local in zip(self._nodes, self.members, log_probs, strict=True):
            reached[members] = reached[node] + local
        return reached


@dataclasses.dataclass(frozen=True)
class LocalModel:
    """The probabilities of a node's members.

    Members without rows get their part of one additional row of mean weight, divided in proportion to the prior.
    """

    estimator: Any
    """The classifier fitted on the members with rows; None if fewer than two have rows."""
    seen: Ints
    unseen: Floats
    """The probability of every member without rows; 0 for members with rows."""

    @classmethod
    def fit(cls, estimator: Any, X: Any, rows: Ints, branch: Ints, prior: Floats, weights: Floats | None) -> LocalModel:
        """Fit a classifier if at least two members have rows."""
        seen, target = np.unique(branch, return_inverse=True)
        total = len(rows) if weights is None else weights[rows].sum() / weights.mean()
        unseen = prior / prior.sum() / (total + 1)
        unseen[seen] = 0.0
        if len(seen) < 2:
            return cls(None, seen, unseen)
        options = {} if weights is None else {"sample_weight": weights[rows]}
        try:
            fitted = estimator.fit(_safe_indexing(X, rows), target, **options)
        except ValueError as error:
            rarest = np.bincount(target).min()
            error.add_note(
                f"This is a node of the tree with {len(seen)} members, the rarest of which has {rarest} rows."
            )
            raise
        return cls(fitted, seen, unseen)

    def log_probs(self, X: Any) -> Floats:
        """Return the log-probability of every member, (members, rows), or (members, 1) without a classifier."""
        probs = np.ones((1, 1))
        if self.estimator is not None:
            probs = np.maximum(np.asarray(self.estimator.predict_proba(X), dtype=np.float64).T, _LEAST)
            probs /= probs.sum(axis=0)
        found = np.repeat(self.unseen[:, None], probs.shape[1], axis=1)
        found[self.seen] = probs[: len(self.seen)] * (1 - self.unseen.sum())
        logs: Floats = np.log(np.maximum(found, _LEAST))
        return logs
