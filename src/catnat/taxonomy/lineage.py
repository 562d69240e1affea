"""The relations between the labels of a taxonomy, as arrays.

A *label* is a class or a group. Labels are numbered: classes 0 .. K-1, then groups, each after the group that contains
it, and last the *top*, the group of all classes, whose name is None.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Entries of the arrays for a block of rows: many enough for fast NumPy loops, few enough for the memory.
_NUMBERS = 1 << 22


class Lineage:
    """The parent, depth and size of every label, and the position of its classes.

    Args:
        parent: The number of every label's parent; the top, the last label, is its own parent.
        num_classes: The number of classes K.
    """

    parent: Ints
    depth: Ints
    """Steps from the top: 0 for the top, 1 for the labels of the first level."""
    size: Ints
    """The number of classes in each label: 1 for a class, K for the top."""
    start: Ints
    """The start of each label's classes in :attr:`order`, where they are consecutive."""
    order: Ints
    """The classes in depth-first order."""

    def __init__(self, parent: ArrayLike, num_classes: int) -> None:
        self.parent = np.asarray(parent, dtype=np.int64)
        self.num_classes = num_classes
        self.top = len(self.parent) - 1
        self.depth = self._depths()
        self.size = np.repeat([1, 0], [num_classes, self.top + 1 - num_classes])
        for level in reversed(self.levels):
            np.add.at(self.size, self.parent[level], self.size[level])
        self.start = self._starts()
        self.order = np.empty(num_classes, dtype=np.int64)
        self.order[self.start[:num_classes]] = np.arange(num_classes)

    def _depths(self) -> Ints:
        depth = np.zeros(self.top + 1, dtype=np.int64)
        depth[: self.top] = 1
        for group in range(self.num_classes, self.top):  # parents before their members
            if self.parent[group] != self.top:
                depth[group] = depth[self.parent[group]] + 1
        classes = slice(0, self.num_classes)
        depth[classes] = depth[self.parent[classes]] + 1
        return depth

    def _starts(self) -> Ints:
        start = np.zeros(self.top + 1, dtype=np.int64)
        for level in self.levels:
            siblings = level[np.argsort(self.parent[level], kind="stable")]
            above = self.parent[siblings]
            before = np.cumsum(self.size[siblings]) - self.size[siblings]
            first = np.searchsorted(above, above)  # the position of each one's first sibling
            start[siblings] = start[above] + before - before[first]
        return start

    @functools.cached_property
    def levels(self) -> list[Ints]:
        """The labels of depth 1, 2, ..."""
        by_depth = np.argsort(self.depth, kind="stable")[1:]
        return np.split(by_depth, np.cumsum(np.bincount(self.depth)[1:])[:-1])

    @functools.cached_property
    def _sums(self) -> list[tuple[Ints, Ints, Ints]]:
        """The steps of :meth:`sums`, deepest first: a level's labels, where each group's members start, the groups."""
        steps = []
        for level in reversed(self.levels):
            members = level[np.argsort(self.start[level])]
            starts = np.flatnonzero(np.diff(self.parent[members], prepend=-1))
            steps.append((members, starts, self.parent[members][starts]))
        return steps

    # ---- relations ----

    def contains(self, upper: Ints, lower: Ints) -> Bools:
        """Return whether all classes of ``lower`` are in ``upper``."""
        begins = self.start[upper] <= self.start[lower]
        ends = self.start[lower] + self.size[lower] <= self.start[upper] + self.size[upper]
        return np.asarray(begins & ends)

    def lowest_common(self, one: Ints, other: Ints) -> Ints:
        """Return the deepest label that contains both: one of the two, a group above them, or the top."""
        one, other = map(np.array, np.broadcast_arrays(one, other))
        while (different := one != other).any():
            deeper, shallower = self.depth[one] > self.depth[other], self.depth[one] < self.depth[other]
            one = np.where(different & ~shallower, self.parent[one], one)
            other = np.where(different & ~deeper, self.parent[other], other)
        return one

    def at_depth(self, labels: Ints, depth: int) -> Ints:
        """Return the labels at this depth above ``labels``; labels of a smaller depth stay the same."""
        labels = np.array(labels)
        while (below := self.depth[labels] > depth).any():
            labels = np.where(below, self.parent[labels], labels)
        return labels

    # ---- sums ----

    def sums(self, leaves: Floats) -> Floats:
        """Return the sum over the classes of every label and the top, (n, labels + 1), from (n, K); O(K) per row."""
        found = np.empty((len(leaves), self.top + 1))
        found[:, : self.num_classes] = leaves
        for members, starts, groups in self._sums:
            found[:, groups] = np.add.reduceat(found[:, members], starts, axis=1)
        return found

    def blocks(self, rows: int) -> Iterator[slice]:
        """Return slices of rows whose sums fit into bounded memory."""
        step = max(1, _NUMBERS // (self.top + 1))
        return (slice(start, start + step) for start in range(0, rows, step))
