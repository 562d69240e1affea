"""Trees from class embeddings, in which similar classes share most of their path."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from catnat import _checks
from catnat._progress import Done, progress_bar
from catnat.trees.builders import balanced, narrow_ints, slices, tree_of
from catnat.trees.tree import Floats, Ints, Tree, with_own_prior

Vectors = NDArray[np.float32]

# The number of rows in a batch, unless a single group has more.
_ROWS = 1 << 14
# The number of entries of embeddings in a batch, 64 MB. A group that exceeds both limits is read in parts.
_NUMBERS = 1 << 24
# Steps of the power iteration, which turn a random direction into nearly the principal direction.
_TURNS = 6


def from_embeddings(
    embeddings: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    seed: int = 0,
    progress: bool = False,
    scratch: str | os.PathLike[str] | None = None,
) -> Tree:
    """Build a tree whose nodes halve their classes along the principal direction of the classes' embeddings.

    Classes with similar embeddings share most of their path. A million classes with 64 dimensions take about half a
    minute.

    Embeddings are read in parts, so they may be a memory-mapped file (``np.load(file, mmap_mode="r")``) of any dtype.
    The tree takes 16 bytes per class, 24 with weights; building it takes about 16 more, and some 200 MB for the parts.
    Every level reads all embeddings, not in the order of the file. If the file is larger than memory, pass a folder
    ``scratch`` on a fast disk.

    Args:
        embeddings: A vector for every class, (K, d): rows of a trained output layer, or mean features of each class.
        weights: Positive weights of the classes, such as counts, which become the prior. The sides of a node then have
            equal weight, so that frequent classes have short paths; otherwise equal numbers of classes.
        seed: The seed of the random initial directions.
        progress: Whether to show a progress bar, which needs ``tqdm``.
        scratch: A folder for sorted copies of the embeddings, so that every level reads a file from beginning to end.
            It needs space for two copies, 4 d bytes per class each, until the tree is built. The tree is the same.

    Example:
        >>> import catnat
        >>> tree = catnat.from_embeddings([[0.0], [10.0], [0.1], [10.1]])
        >>> # the first node separates 0 and 2 from 1 and 3
        >>> [int(tree.path(k)[1][0]) for k in range(4)]
        [0, 1, 0, 1]
    """
    points = np.asarray(embeddings)
    if points.ndim != 2 or 0 in points.shape or not _Embeddings(points).all_finite():
        raise ValueError(
            f"`embeddings` has shape {points.shape}, but one vector of finite numbers per class is needed: (K, d)."
        )
    size = len(points)
    masses = None if weights is None else _checks.weights(weights, "weights", size)
    if size == 1:
        return balanced(1)
    if masses is not None:
        masses /= masses.max()  # so that sums cannot overflow
    # A product of small matrices may set the flag "invalid" from memory beside them; all numbers here are finite.
    quiet = np.errstate(invalid="ignore")
    with quiet, progress_bar(progress, _work(np.array([size])), "halving") as done:
        tree = tree_of(_halving(_Embeddings(points, scratch), masses, np.random.default_rng(seed), done))
    return tree if masses is None else with_own_prior(tree, masses)


class _Embeddings:
    """The vectors of all classes, in the given array or in a scratch file that is sorted by group."""

    def __init__(self, points: NDArray[Any], scratch: str | os.PathLike[str] | None = None) -> None:
        self.size, self.width = points.shape
        self._points, self._scratch = points, scratch
        self._places: NDArray[Any] | None = None  # the row of each class in that file

    def __getitem__(self, classes: NDArray[Any]) -> Vectors:
        rows = classes if self._places is None else self._places[classes]
        return np.asarray(self._points[rows], dtype=np.float32)

    def parts(self, count: int) -> list[slice]:
        """Return slices that split ``count`` vectors into batches."""
        return slices(count, max(_ROWS, _NUMBERS // self.width))

    def all_finite(self) -> bool:
        with np.errstate(over="ignore"):  # numbers that overflow float32 count as not finite
            return all(np.isfinite(self._points[part].astype(np.float32)).all() for part in self.parts(self.size))

    def regroup(self, order: NDArray[Any]) -> None:
        """Write the vectors of the classes ``order`` into a new scratch file, if there is a scratch folder."""
        if self._scratch is None or not len(order):
            return
        with tempfile.TemporaryFile(dir=self._scratch) as file:  # it has no name and is deleted with the array
            points = np.memmap(file, np.float32, "w+", shape=(len(order), self.width))
        for part in self.parts(len(order)):
            points[part] = self[order[part]]
        self._points = points
        self._places = np.zeros(self.size, dtype=order.dtype)
        self._places[order] = np.arange(len(order))


def _work(sizes: Ints) -> float:
    """Return the remaining work for groups of these sizes: each class takes part in about log2(size) more splits."""
    return float(sizes @ np.log2(sizes))


class _Groups(NamedTuple):
    """Groups of classes, each a slice of ``order`` from its start to the next start."""

    order: NDArray[Any]
    starts: Ints  # the start of every group, and the end of the last one

    @property
    def sizes(self) -> Ints:
        return np.diff(self.starts)

    def blocks(self) -> Iterator[_Groups]:
        """Yield batches of groups, whose starts count from 0."""
        first = 0
        while first < len(self.starts) - 1:
            last = int(np.searchsorted(self.starts, self.starts[first] + _ROWS, side="right")) - 1
            last = max(first + 1, last)
            begin, end = self.starts[first], self.starts[last]
            yield _Groups(self.order[begin:end], self.starts[first : last + 1] - begin)
            first = last


def _halving(points: _Embeddings, masses: Floats | None, rng: np.random.Generator, done: Done) -> Ints:
    """Build the table of child ids, level by level."""
    size = points.size
    table = np.empty((size - 1, 2), dtype=np.int64)
    groups, node, next_node = _Groups(np.arange(size, dtype=narrow_ints(2 * size)), np.array([0, size])), 0, 1
    while len(groups.order):
        kept, inner_sizes = 0, []
        for block in groups.blocks():
            halves = _halve(block, points, masses, rng)
            sizes = halves.sizes
            inner = sizes > 1
            children = np.where(inner, next_node + np.cumsum(inner) - 1, size - 1 + halves.order[halves.starts[:-1]])
            table[node : node + len(children) // 2] = children.reshape(-1, 2)
            node, next_node = node + len(children) // 2, next_node + int(inner.sum())
            # Classes of groups that are split further move to the front, over classes that this level has finished.
            further = halves.order[np.repeat(inner, sizes)]
            groups.order[kept : kept + len(further)] = further
            kept += len(further)
            inner_sizes.append(sizes[inner].astype(groups.order.dtype))
            done(_work(block.sizes) - _work(sizes))
        had_parts = len(points.parts(groups.sizes.max())) > 1
        groups = _Groups(groups.order[:kept], np.concatenate([[0], np.cumsum(np.concatenate(inner_sizes))]))
        if had_parts:  # smaller groups stay together in the file while they are split
            points.regroup(groups.order)
    return table


def _halve(groups: _Groups, points: _Embeddings, masses: Floats | None, rng: np.random.Generator) -> _Groups:
    """Split every group in two, and return the groups of both sides."""
    starts, sizes = groups.starts[:-1], groups.sizes
    directions = rng.standard_normal((len(sizes), points.width), dtype=np.float32)
    if len(sizes) == 1:
        ranks = np.argsort(_along_main_direction(points, groups.order, directions[0]), kind="stable")
    else:
        ranks = _ranks_in_groups(groups, points, directions)
    sums = np.arange(1.0, len(ranks) + 1) if masses is None else masses[groups.order[ranks]]
    if masses is not None:
        np.cumsum(sums, out=sums)
    before = np.where(starts > 0, sums[starts - 1], 0.0)
    middle = (before + sums[groups.starts[1:] - 1]) / 2
    # The most even cut is before or after the class at which the sum reaches the middle.
    cut = np.searchsorted(sums, middle)
    nearer = np.abs(np.where(cut > 0, sums[cut - 1], 0.0) - middle) <= np.abs(sums[cut] - middle)
    cut = np.clip(cut + ~nearer, starts + 1, groups.starts[1:] - 1)
    if len(sizes) == 1 and len(points.parts(sizes[0])) > 1:
        # Both sides keep the order of the classes, so that each pass reads the file once from beginning to end.
        ranks[: cut[0]].sort()
        ranks[cut[0] :].sort()
    return _Groups(groups.order[ranks], np.append(np.stack([starts, cut], 1).ravel(), len(ranks)))


def _along_main_direction(points: _Embeddings, order: NDArray[Any], direction: Vectors) -> Vectors:
    """Project each row of one group on the group's principal direction, found by power iteration."""
    parts = points.parts(len(order))
    total, largest, smallest = np.zeros(points.width), np.full(points.width, -np.inf), np.full(points.width, np.inf)
    for part in parts:
        rows = points[order[part]]
        total += np.ones(len(rows), dtype=np.float32) @ rows
        largest, smallest = np.maximum(largest, rows.max(axis=0)), np.minimum(smallest, rows.min(axis=0))
    mean = (total / len(order)).astype(np.float32)
    scale = _scale(np.maximum(largest - mean, mean - smallest).max().astype(np.float32))

    # A single part is cached; several parts are read again in every pass.
    @functools.lru_cache(maxsize=1)
    def centred(i: int) -> Vectors:
        rows = points[order[parts[i]]]
        rows -= mean
        rows /= scale
        return rows

    def turned(direction: Vectors) -> Vectors:
        total = np.zeros((1, points.width))
        for i in range(len(parts)):
            total += (centred(i) @ direction)[None] @ centred(i)
        return total.astype(np.float32)

    for _ in range(_TURNS):
        direction = _unit(turned(direction), direction[None])[0]
    return np.concatenate([centred(i) @ direction for i in range(len(parts))])


def _ranks_in_groups(groups: _Groups, points: _Embeddings, directions: Vectors) -> Ints:
    """Return indices into ``groups.order`` that sort each group along its principal direction.

    Groups of similar size are batched in one array, padded with rows of zeros.
    """
    ranks = np.empty(len(groups.order), dtype=np.int64)
    widths = 1 << np.ceil(np.log2(groups.sizes)).astype(np.int64)
    for width in np.unique(widths):
        some = widths == width
        starts, sizes = groups.starts[:-1][some, None], groups.sizes[some, None]
        inside = np.arange(width) < sizes
        rows = points[groups.order[starts + np.where(inside, np.arange(width), 0)]]
        along = np.where(inside, _along_main_directions(rows, inside, directions[some]), np.inf)
        places = starts + np.argsort(along, axis=1, kind="stable")
        ranks[(starts + np.arange(width))[inside]] = places[inside]
    return ranks


def _along_main_directions(rows: Vectors, inside: NDArray[np.bool_], directions: Vectors) -> Vectors:
    """Project the rows of several groups, (groups, rows, d), on principal directions; only rows ``inside`` count."""
    counted = inside.astype(np.float32)
    rows -= _rows_times(counted / counted.sum(axis=1, keepdims=True), rows)[:, None]
    rows *= counted[:, :, None]
    rows /= _scale(np.maximum(rows.max(axis=(1, 2)), -rows.min(axis=(1, 2))))[:, None, None]
    for _ in range(_TURNS):
        directions = _unit(_rows_times(_along(rows, directions), rows), directions)
    return _along(rows, directions)


def _along(rows: Vectors, directions: Vectors) -> Vectors:
    """Return the product of every row with the direction of its group."""
    return np.asarray(np.matmul(rows, directions[:, :, None])[:, :, 0])


def _rows_times(factors: Vectors, rows: Vectors) -> Vectors:
    """Return the sum of every group's rows, each times its factor."""
    return np.asarray(np.matmul(factors[:, None], rows)[:, 0])


def _scale(largest: Vectors) -> Vectors:
    """Return the divisors of rows with these largest entries, so that no product overflows."""
    return np.maximum(largest, np.finfo(np.float32).tiny)


def _unit(turned: Vectors, directions: Vectors) -> Vectors:
    """Normalize ``turned`` to length 1; zero vectors, from equal rows, keep their former ``directions``."""
    length = np.linalg.norm(turned, axis=1, keepdims=True)
    return np.where(length > 0, turned / np.where(length > 0, length, 1), directions)
