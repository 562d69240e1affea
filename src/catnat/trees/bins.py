"""Ordered bins, and trees whose classes are in the order of the bins."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from catnat import _checks
from catnat.trees.builders import from_children
from catnat.trees.tree import Floats, Ints, Tree, read_only

# With widths between 1e-18 and 1e18 and edges up to 1e18, squares and quotients do not overflow in float32.
_LARGEST = 1e18


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Bins:
    r"""Ordered bins of the real line, one for each class of a tree: class k is the bin from edge k to edge k + 1.

    Inside a bin the density is constant, so the cdf is linear from edge to edge. With ``tails`` the first and the last
    bin have no outer edge: their density decays exponentially from the inner edge, and the mean distance from this edge
    is the width of the bin.

    Bins are immutable, and equal if their edges and tails are equal. Build them once and reuse them.

    Args:
        edges: K + 1 increasing, finite numbers for K bins.
        tails: Whether the first and the last bin are exponential tails; this needs at least two bins.

    Example:
        >>> import catnat
        >>> bins = catnat.Bins([0.0, 1.0, 2.0, 4.0])
        >>> bins
        <Bins: 3 from 0.0 to 4.0>
        >>> bins.widths.tolist()
        [1.0, 1.0, 2.0]
        >>> catnat.Bins.from_quantiles([1.0, 2.0, 3.0, 4.0, 9.0], 2).edges.tolist()
        [1.0, 3.0, 9.0]
    """

    edges: Floats
    """The K + 1 edges, float64."""
    tails: bool = False
    """Whether the first and the last bin are exponential tails."""

    def __init__(self, edges: ArrayLike, tails: bool = False) -> None:
        object.__setattr__(self, "edges", read_only(_checked_edges(edges)))
        object.__setattr__(self, "tails", bool(tails))
        if tails and self.num_bins < 2:
            raise ValueError("`tails` need at least two bins, one for each tail, but `edges` define a single bin.")

    @classmethod
    def from_quantiles(cls, data: ArrayLike, num_bins: int, *, tails: bool = False) -> Bins:
        """Build bins that each contain the same number of entries of ``data``, as far as ties allow.

        If quantiles are equal, as is common for counts, their edges are spread evenly up to the next quantile.

        Args:
            data: Numbers, in any shape; at least two different ones.
            num_bins: The number of bins K.
            tails: Whether the first and the last bin are exponential tails, for new data outside the range of ``data``.
        """
        values = np.asarray(data, dtype=np.float64).ravel()
        size = _checks.num_classes(num_bins)
        if values.size == 0 or not np.isfinite(values).all() or values.min() == values.max():
            raise ValueError(
                f"`data` has {values.size} entries, of which {int(np.isfinite(values).sum())} are finite, but finite "
                "numbers are needed, and at least two different ones: drop or impute the others."
            )
        distinct, first = np.unique(np.quantile(values, np.linspace(0, 1, size + 1)), return_index=True)
        first[-1] = size
        return cls(np.interp(np.arange(size + 1), first, distinct), tails)

    @property
    def num_bins(self) -> int:
        """The number of bins K."""
        return len(self.edges) - 1

    @functools.cached_property
    def widths(self) -> Floats:
        """The width of every bin, (K,); for a tail, the mean distance from its inner edge."""
        return read_only(np.diff(self.edges))

    @functools.cached_property
    def means(self) -> Floats:
        """The mean of the density inside every bin, (K,)."""
        means = self.edges[:-1] + self.widths / 2
        if self.tails:
            means[[0, -1]] = self.edges[[0, -1]]  # one width beyond the inner edge
        return read_only(means)

    @functools.cached_property
    def variances(self) -> Floats:
        """The variance of the density inside every bin, (K,)."""
        variances = self.widths**2 / 12
        if self.tails:
            variances[[0, -1]] = self.widths[[0, -1]] ** 2
        return read_only(variances)

    @functools.cached_property
    def entropies(self) -> Floats:
        """The differential entropy of the density inside every bin, (K,)."""
        entropies = np.log(self.widths)
        if self.tails:
            entropies[[0, -1]] += 1
        return read_only(entropies)

    # ---- identity ----

    @functools.cached_property
    def _key(self) -> tuple[Any, ...]:
        return hashlib.sha256(self.edges.tobytes()).hexdigest(), self.tails

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Bins) and self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        tails = ", and tails" if self.tails else ""
        return f"<Bins: {self.num_bins} from {self.edges[0]} to {self.edges[-1]}{tails}>"

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # no cached tables

    def __setstate__(self, state: dict[str, Any]) -> None:
        read_only(state["edges"])  # an unpickled array is writable
        self.__dict__.update(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> Bins:
        return self  # immutable


def as_bins(bins: object) -> Bins:
    """Return ``bins`` if it is a :class:`Bins`, else the bins with these edges."""
    return bins if isinstance(bins, Bins) else Bins(bins)  # type: ignore[arg-type]


def joined(bins: Bins, first: Ints) -> Bins:
    """Return coarser bins; each begins at the lower edge of a bin in ``first`` and ends where the next begins."""
    return Bins(np.append(bins.edges[first], bins.edges[-1]), bins.tails and len(first) > 1)


def check_resolved(bins: Bins, dtype: DTypeLike) -> None:
    """Raise if two edges, or the means of two bins, are equal in ``dtype``."""
    for column in (bins.edges, bins.means):
        apart = np.diff(column.astype(dtype)) > 0
        if not apart.all():
            at = int(np.argmin(apart))
            raise ValueError(
                f"`bins` are {bins!r}, but {np.dtype(dtype)} cannot tell {column[at]} from {column[at + 1]}: subtract "
                "an offset from edges and values, or use float64."
            )


def outside(bins: Bins, value: float) -> NoReturn:
    """Raise an error for a value outside all bins."""
    raise ValueError(
        f"`value` holds {value}, but the bins go from {bins.edges[0]} to {bins.edges[-1]}: widen them, make the first "
        "and the last bin tails, Bins(edges, tails=True), or clamp the values. (With validate_args=False values "
        "outside have the smallest finite log-density.)"
    )


def same(one: Bins, other: Bins) -> None:
    """Raise unless two distributions have the same bins."""
    if one != other:
        raise ValueError(f"`p` has {one!r} and `q` has {other!r}, but the same edges and tails are needed in both.")


def _checked_edges(values: ArrayLike) -> Floats:
    """Return edges as a new float64 vector, or raise unless they are valid."""
    try:
        edges = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"`edges` is a {type(values).__name__}, but numbers are needed, K + 1 for K bins.") from error
    if edges.ndim != 1 or edges.size < 2:
        raise ValueError(f"`edges` has shape {edges.shape}, but K + 1 edges of K bins are needed: a vector.")
    if not np.isfinite(edges).all():
        raise ValueError(
            f"`edges` has {int((~np.isfinite(edges)).sum())} entries that are not finite. An open bin has no constant "
            "density: give a finite outer edge, and pass tails=True for exponential tails beyond the inner ones."
        )
    widths = np.diff(edges)
    if (widths <= 0).any():
        at = int(np.argmax(widths <= 0))
        raise ValueError(
            f"`edges` must increase, but edge {at} is {edges[at]} and edge {at + 1} is {edges[at + 1]}: sort them, and "
            "remove duplicates (Bins.from_quantiles spreads edges where data have ties)."
        )
    if np.abs(edges).max() > _LARGEST or widths.min() < 1 / _LARGEST:
        raise ValueError(
            f"`edges` go from {edges[0]} to {edges[-1]} with bins as narrow as {widths.min()}, but {-_LARGEST} to "
            f"{_LARGEST} and a width of {1 / _LARGEST} are the limits: measure in another unit."
        )
    return edges


# ---- trees over ordered classes ----


def yes_is_lower(tree: Tree) -> bool | NDArray[np.bool_] | None:
    """Return whether yes leads to the lower classes, as one bool for all nodes or as one per node.

    Return None if the classes below some node are not consecutive: a path does not give cumulative sums then.
    """
    if tree.kind != "table":
        return tree.kind == "chain"
    return _yes_is_lower(tree)


@functools.lru_cache(maxsize=64)
def _yes_is_lower(tree: Tree) -> NDArray[np.bool_] | None:
    first, last = _class_ranges(tree)
    no, yes = tree.child_ids.T
    lower = first[yes] < first[no]
    consecutive = np.where(lower, last[yes] + 1 == first[no], last[no] + 1 == first[yes])
    return read_only(lower) if consecutive.all() else None


def _class_ranges(tree: Tree) -> tuple[Ints, Ints]:
    """Return the first and the last class below every id."""
    first = np.concatenate([np.zeros(tree.num_nodes, np.int64), np.arange(tree.num_classes)])
    last = first.copy()
    for level in reversed(tree.levels):
        below = tree.child_ids[level]
        first[level], last[level] = first[below].min(axis=1), last[below].max(axis=1)
    return first, last


def cut(tree: Tree, level: int) -> tuple[Tree, Ints]:
    """Return the tree of the nodes above ``level``, and the first class of each of its leaves, in order.

    Nodes are numbered breadth first, so their scores are the first scores of the whole tree. The prior of a leaf is the
    sum of the prior of its classes, so zero scores still give the prior.
    """
    if not 0 <= level <= tree.depth:
        raise ValueError(f"`level` is {level}, but this tree can be cut at a level from 0 to its depth, {tree.depth}.")
    if yes_is_lower(tree) is None:
        raise ValueError(
            f"The tree is {tree!r}, in which the classes below some node are not consecutive, so they are no interval: "
            "use catnat.balanced(K), or another tree whose leaves are in the order of the bins."
        )
    if level == tree.depth:
        return tree, read_only(np.arange(tree.num_classes))
    kept = tree.levels[level - 1].stop if level else 0
    first, _ = _class_ranges(tree)
    below = tree.child_ids[:kept]
    leaves = np.unique(below[below >= kept]) if kept else np.zeros(1, np.int64)
    leaves = leaves[np.argsort(first[leaves])]
    place = np.empty(len(first), np.int64)
    place[:kept], place[leaves] = np.arange(kept) + len(leaves), np.arange(len(leaves))
    coarse = from_children(place[below]).with_prior(np.add.reduceat(tree.prior, first[leaves]))
    return coarse, read_only(first[leaves])
