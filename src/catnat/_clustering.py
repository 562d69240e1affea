"""A tree from class embeddings: alike classes are told apart late."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from catnat import _checks
from catnat._builders import balanced, from_children
from catnat._tree import Floats, Ints, Tree

# Rows that are worked on together, unless one group alone has more: small beside a million rows, large for a loop.
_ROWS = 1 << 14
# Multiplications with the covariance matrix that turn a random direction into nearly the main one.
_TURNS = 6


def from_embeddings(
    embeddings: ArrayLike, weights: ArrayLike | None = None, *, seed: int = 0, progress: bool = False
) -> Tree:
    """The tree that halves the classes again and again, always along the main direction of their embeddings.

    Classes with similar embeddings share most of their path. A million classes of 64 numbers take about a minute.

    Args:
        embeddings: A vector for every class, (K, d): rows of a trained output layer, or averages of the features seen
            with each class.
        weights: Positive weights of the classes, such as counts, which become the prior. Sides then have equal weight,
            so that frequent classes have short paths; otherwise equal numbers of classes.
        seed: Of the directions that the search for main directions starts from.
        progress: Whether to show a progress bar, which needs ``tqdm``.

    Example:
        >>> import catnat
        >>> tree = catnat.from_embeddings([[0.0], [10.0], [0.1], [10.1]])
        >>> # the first node separates 0 and 2 from 1 and 3
        >>> [int(tree.path(k)[1][0]) for k in range(4)]
        [0, 1, 0, 1]
    """
    points = np.asarray(embeddings, dtype=np.float32)
    if points.ndim != 2 or 0 in points.shape or not np.isfinite(points).all():
        raise ValueError(
            f"`embeddings` has shape {points.shape}, but one vector of finite numbers per class is needed: (K, d)."
        )
    size = len(points)
    prior = None if weights is None else _checks.weights(weights, "weights", size)
    if size == 1:
        return balanced(1)
    masses = np.ones(size) if prior is None else prior / prior.max()
    levels = _halving(points, masses, np.random.default_rng(seed))
    rows = list(_with_bar(levels, size - 1) if progress else levels)
    return from_children(np.concatenate(rows), prior)


def _with_bar(levels: Iterator[Ints], nodes: int) -> Iterator[Ints]:
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError("`progress=True` needs tqdm: pip install tqdm.") from error
    with tqdm(total=nodes, desc="nodes", unit_scale=True) as bar:
        for rows in levels:
            yield rows
            bar.update(len(rows))


class _Groups(NamedTuple):
    """Groups of classes that stand side by side in ``order``, each from its start to the next."""

    order: Ints
    starts: Ints  # and the end

    @property
    def sizes(self) -> Ints:
        return np.diff(self.starts)

    def blocks(self) -> Iterator[_Groups]:
        """Some groups at a time, starting at 0."""
        first = 0
        while first < len(self.starts) - 1:
            last = int(np.searchsorted(self.starts, self.starts[first] + _ROWS, side="right")) - 1
            last = max(first + 1, last)
            begin, end = self.starts[first], self.starts[last]
            yield _Groups(self.order[begin:end], self.starts[first : last + 1] - begin)
            first = last


def _halving(points: NDArray[np.float32], masses: Floats, rng: np.random.Generator) -> Iterator[Ints]:
    """The children of the nodes of one level after the other, in the numbers of ``from_children``."""
    size = len(points)
    groups, next_row = _Groups(np.arange(size), np.array([0, size])), 1
    while len(groups.order):
        halved = [_halve(block, points, masses, rng) for block in groups.blocks()]
        order = np.concatenate([half.order for half in halved])
        sizes = np.concatenate([half.sizes for half in halved])
        starts = np.concatenate([[0], np.cumsum(sizes)])
        inner = sizes > 1
        rows = np.where(inner, size + next_row + np.cumsum(inner) - 1, order[starts[:-1]])
        yield rows.reshape(-1, 2)
        next_row += int(inner.sum())
        groups = _Groups(order[np.repeat(inner, sizes)], np.concatenate([[0], np.cumsum(sizes[inner])]))


def _halve(groups: _Groups, points: NDArray[np.float32], masses: Floats, rng: np.random.Generator) -> _Groups:
    """Twice as many groups: the two sides of each."""
    starts, sizes = groups.starts[:-1], groups.sizes
    which = np.repeat(np.arange(len(sizes)), sizes)
    along = _along_main_direction(points[groups.order], starts, which, rng)
    order = groups.order[np.lexsort((along, which))]
    sums = np.cumsum(masses[order])
    before = np.concatenate([[0.0], sums])[starts]
    middle = (before + sums[groups.starts[1:] - 1]) / 2
    # The cut whose sides differ least lies at the first sum above the middle, before that class or after it.
    cut = np.searchsorted(sums, middle)
    nearer = np.abs(np.concatenate([[0.0], sums])[cut] - middle) <= np.abs(sums[cut] - middle)
    cut = np.clip(cut + ~nearer, starts + 1, groups.starts[1:] - 1)
    return _Groups(order, np.append(np.stack([starts, cut], 1).ravel(), len(order)))


def _along_main_direction(
    rows: NDArray[np.float32], starts: Ints, which: Ints, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Where each row stands along the main direction of its group, by power iteration."""

    def sums(values: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.add.reduceat(values, starts, axis=0, dtype=np.float32)

    def along(directions: NDArray[np.float32]) -> NDArray[np.float32]:
        if len(starts) == 1:
            return np.asarray(rows @ directions[0])
        return np.asarray(np.einsum("nd,nd->n", rows, directions[which]))

    counts = np.diff(np.append(starts, len(rows)))[:, None].astype(np.float32)
    rows = rows - (sums(rows) / counts)[which if len(starts) > 1 else slice(None)]
    rows /= np.maximum(np.abs(rows).max(), np.finfo(np.float32).tiny)  # so that no product overflows
    directions = rng.standard_normal((len(starts), rows.shape[1]), dtype=np.float32)
    for _ in range(_TURNS):
        part = along(directions)
        turned = part[None] @ rows if len(starts) == 1 else sums(rows * part[:, None])
        length = np.linalg.norm(turned, axis=1, keepdims=True)
        directions = np.where(length > 0, turned / np.where(length > 0, length, 1), directions)  # all rows are alike
    return along(directions)
