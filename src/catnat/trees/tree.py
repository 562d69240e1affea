"""Full binary trees as plain data, independent of the framework.

Inner nodes are numbered 0 .. K-2 breadth first. An *id* is the number of an inner node, or K-1+k for the leaf of class
k. A ``balanced`` tree and a ``chain`` are defined by their size and computed by arithmetic. Any other tree stores one
table of children.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from catnat import _checks
from catnat.activations import Activation, resolve
from catnat.trees.plot import plot_tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Tree:
    r"""A full binary tree with one leaf per class.

    Each inner node :math:`i` has two branches, no and yes (bit 1); yes has the probability :math:`a(s_i)`. The
    probability of class :math:`k` is the product of the branch probabilities on the path from the root to its leaf.
    Build trees with :func:`catnat.balanced`, :func:`catnat.chain`, :func:`catnat.huffman`,
    :func:`catnat.from_clusters` or :func:`catnat.from_children`, not with this constructor.

    Trees are immutable. They are equal if their topology, class order and prior are equal, however they were built. So
    they can be dictionary keys and static arguments under ``jit``.

    Example:
        >>> import catnat
        >>> tree = catnat.balanced(5)
        >>> tree
        balanced(5)
        >>> tree.num_nodes, tree.depth
        (4, 3)
        >>> nodes, bits = tree.path(1)
        >>> nodes.tolist(), bits.tolist()
        ([0, 1, 3], [0, 0, 1])
    """

    num_classes: int
    """The number of classes K."""
    kind: Literal["balanced", "chain", "table"]
    """The kind of the topology: a complete tree, a stick-breaking chain, or a table of children."""
    _table: Ints | None = None
    _prior: Floats | None = None
    depth: int = dataclasses.field(init=False)
    """The number of nodes on the longest path."""

    def __post_init__(self) -> None:
        # A plain attribute and not a computed property, because compilers read it.
        depth = self.num_nodes.bit_length() if self.kind == "balanced" else self.num_nodes
        object.__setattr__(self, "depth", len(self.levels) if self.kind == "table" else depth)

    # ---- size ----

    @property
    def num_nodes(self) -> int:
        """The number of inner nodes, and of scores, K - 1."""
        return self.num_classes - 1

    # ---- topology ----

    @functools.cached_property
    def children(self) -> Ints:
        """The (no, yes) children of every inner node, shape (K-1, 2): class k is k, node j is K + j.

        :func:`catnat.from_children`, SciPy's ``linkage`` and scikit-learn's ``children_`` have the same convention, so
        ``from_children(tree.children, tree.prior)`` is the same tree, up to the last digits of the prior.
        """
        is_class = self.child_ids >= self.num_nodes
        return read_only(np.where(is_class, self.child_ids - self.num_nodes, self.child_ids + self.num_classes))

    @functools.cached_property
    def child_ids(self) -> Ints:
        """The ids of the (no, yes) children of every inner node, shape (K-1, 2): node j is j, class k is K - 1 + k."""
        if self._table is not None:
            return self._table
        return read_only(known_children(self, slice(0, self.num_nodes)))

    @functools.cached_property
    def parents(self) -> Ints:
        """The parent node of every id, shape (2K-1,); the root's is -1."""
        return parents_of(self.child_ids, self.num_classes)

    @functools.cached_property
    def bits(self) -> NDArray[np.bool_]:
        """Whether each id is its parent's yes child, shape (2K-1,); the root's is False."""
        return bits_of(self.child_ids, self.num_classes)

    def path(self, k: int) -> tuple[Ints, Ints]:
        """Return the nodes and branches on the path to class ``k``.

        Returns:
            The inner nodes from the root down, and the bit (1 = yes) taken at each.
        """
        k = int(k)
        if not 0 <= k < self.num_classes:
            raise ValueError(f"`k` is {k}, but the classes of this tree are 0 .. {self.num_classes - 1}.")
        if self.kind == "balanced":
            heap = self._heap_of_class(k)
            heaps = np.array([heap >> shift for shift in range(heap.bit_length() - 1, -1, -1)], dtype=np.int64)
            return heaps[:-1] - 1, heaps[1:] & 1
        if self.kind == "chain":
            nodes = np.arange(min(k + 1, self.num_nodes), dtype=np.int64)
            return nodes, (nodes == k).astype(np.int64)
        ids = [self.num_nodes + k]
        while ids[-1] != 0:
            ids.append(int(self.parents[ids[-1]]))
        ids.reverse()
        return np.array(ids[:-1], dtype=np.int64), self.bits[ids[1:]].astype(np.int64)

    def _heap_of_class(self, k: int) -> int:
        heap = k + first_leaf(self)
        return heap - self.num_classes if heap >= 2 * self.num_classes else heap

    @functools.cached_property
    def levels(self) -> list[slice]:
        """The slice of nodes on each level; levels are slices because nodes are numbered breadth first."""
        levels, start, stop = [], 0, min(1, self.num_nodes)
        while start < stop:
            levels.append(slice(start, stop))
            inner = int((self.child_ids[start:stop] < self.num_nodes).sum())
            start, stop = stop, stop + inner
        return levels

    # ---- prior ----

    @property
    def has_uniform_prior(self) -> bool:
        """Whether zero scores give the uniform distribution."""
        return self._prior is None

    @property
    def is_symmetric(self) -> bool:
        """Whether every node halves its prior mass, as in the paper: balanced, K = 2^H and a uniform prior."""
        return self.has_uniform_prior and self.kind == "balanced" and self.num_classes == first_leaf(self)

    @property
    def prior(self) -> Floats:
        """The class probabilities at zero scores, shape (K,); uniform unless given."""
        if self._prior is not None:
            return self._prior
        return np.full(self.num_classes, 1.0 / self.num_classes)

    def with_prior(self, weights: ArrayLike) -> Tree:
        """Return the tree with the prior ``weights``, positive numbers that are normalized to sum to 1.

        Example:
            >>> import catnat
            >>> catnat.balanced(4).with_prior([1, 1, 2, 4]).prior.tolist()
            [0.125, 0.125, 0.25, 0.5]
        """
        return with_own_prior(self, _checks.weights(weights, "weights", self.num_classes))

    def reach(self, probs: ArrayLike | None = None) -> Floats:
        r"""Return the probability :math:`P(i)` of reaching each node, the sum of ``probs`` over the leaves below it.

        Args:
            probs: Class probabilities, shape (..., K). The prior if not given.
        """
        return self._masses(probs)[..., : self.num_nodes]

    def yes_fraction(self) -> Floats:
        r"""Return the prior's probability of yes at each node, shape (K-1,)."""
        return self.prior_branches()[1]

    def prior_branches(self) -> tuple[Floats, Floats]:
        """Return the prior's probabilities of no and yes, both to full relative precision: 1 - yes may round to 0."""
        if self.is_symmetric:
            half = np.full(self.num_nodes, 0.5)
            return half, half
        sides = self._masses(None)[self.child_ids]
        tiny = np.finfo(np.float64).tiny  # used only if a mass has underflowed
        odds = sides.min(axis=1) / np.maximum(sides.max(axis=1), tiny)
        smaller, larger = np.maximum(odds, tiny) / (1 + odds), 1 / (1 + odds)
        rather_no = sides[:, 1] <= sides[:, 0]
        return np.where(rather_no, larger, smaller), np.where(rather_no, smaller, larger)

    def _masses(self, probs: ArrayLike | None) -> Floats:
        """Return the mass below every id, inner nodes first, then the leaves."""
        leaves = self.prior if probs is None else np.asarray(probs, dtype=np.float64)
        if leaves.shape[-1:] != (self.num_classes,):
            raise ValueError(
                f"`probs` has shape {leaves.shape}, but one probability per class is needed on the last axis: "
                f"{self.num_classes}."
            )
        return sums_below(self, leaves)

    # ---- identity ----

    @functools.cached_property
    def _key(self) -> tuple[Any, ...]:
        digests = [None if a is None else hashlib.sha256(a.data).hexdigest() for a in (self._table, self._prior)]
        return (self.num_classes, self.kind, *digests)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Tree) and self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        prior = "" if self._prior is None else ".with_prior(...)"
        if self.kind != "table":
            return f"{self.kind}({self.num_classes}){prior}"
        return f"<Tree: {self.num_classes} classes, depth {self.depth}, {'uniform' if not prior else 'given'} prior>"

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # no cached tables

    def __setstate__(self, state: dict[str, Any]) -> None:
        for array in (state["_table"], state["_prior"]):
            if array is not None:
                read_only(array)  # an unpickled array is writable
        self.__dict__.update(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tree:
        return self  # immutable

    # ---- files ----

    def save(self, file: str | Path) -> None:
        """Write the tree to a file in NumPy's ``.npz`` format, for :meth:`load`; the file is replaced atomically."""
        from catnat.trees import saving

        with saving.replacing(file) as part, open(part, "wb") as opened:
            saving.save_tree(self, opened)

    @staticmethod
    def load(file: str | Path) -> Tree:
        """Read a tree written by :meth:`save`; raise a ValueError for other or damaged files."""
        from catnat.trees import saving

        with open(file, "rb") as opened:
            return saving.load_tree(opened)

    # ---- picture ----

    def plot(
        self, scores: ArrayLike | None = None, activation: Activation | str = "sigmoid", *, ax: Axes | None = None
    ) -> Axes:
        """Draw the tree, with the probability of every branch on its edge and of every class at its leaf.

        Args:
            scores: One score per node, shape (K-1,). Zero scores, which give the prior, if not given.
            activation: The activation that maps scores to probabilities.
            ax: The axes to draw on; a new figure if not given.
        """
        activation = resolve(activation)
        values = np.zeros(self.num_nodes) if scores is None else np.asarray(scores, dtype=np.float64)
        if values.ndim != 1:
            raise ValueError(
                f"`scores` has shape {values.shape}, but a tree is drawn for one vector of scores, (K-1,)."
            )
        _checks.width_of_scores(values.size, self.num_classes)
        yes = activation.probability(values + activation.offset(self))
        return plot_tree(self.child_ids, yes, ax)


def first_leaf(tree: Tree) -> int:
    """Return the heap number 2**depth of class 0 in a balanced tree, the first leaf of its deepest level.

    Leaves from left to right have the heap numbers ``first_leaf .. 2K-1``, then ``K .. first_leaf-1``. So class k has
    the heap number ``k + first_leaf``, minus K if this is 2K or more.
    """
    return 1 << tree.depth


Number = TypeVar("Number", bound=np.generic)


def sums_below(tree: Tree, leaves: NDArray[Number]) -> NDArray[Number]:
    """Return the sum of ``leaves``, (..., K), below every id: inner nodes first, then the leaves."""
    sums = np.concatenate([np.zeros((*leaves.shape[:-1], tree.num_nodes), leaves.dtype), leaves], axis=-1)
    if tree.kind == "chain":
        sums[..., : tree.num_nodes] = np.cumsum(leaves[..., ::-1], axis=-1)[..., ::-1][..., : tree.num_nodes]
        return sums
    for level in reversed(tree.levels):
        sums[..., level] = sums[..., tree.child_ids[level]].sum(axis=-1)
    return sums


def positions_below(tree: Tree, counts: Ints) -> Ints:
    """Return the position, from left to right, of the first leaf below every id, below which ``counts`` leaves are."""
    starts = np.zeros_like(counts)
    for level in tree.levels:
        no, yes = tree.child_ids[level].T
        starts[no] = starts[level]
        starts[yes] = starts[level] + counts[no]
    return starts


def with_own_prior(tree: Tree, masses: Floats) -> Tree:
    """Compute ``tree.with_prior`` for checked weights, which are normalized in place and must not be shared."""
    uniform = bool((masses == masses[0]).all())
    masses /= masses.max()  # so that the sum cannot overflow
    masses /= masses.sum()
    np.maximum(masses, np.finfo(np.float64).tiny, out=masses)  # a prior is positive, also where it underflows
    return dataclasses.replace(tree, _prior=None if uniform else read_only(masses))


def known_children(tree: Tree, rows: slice) -> Ints:
    """Return the given rows of the table of child ids of a balanced tree or a chain."""
    nodes = np.arange(rows.start, rows.stop, dtype=np.int64)
    if tree.kind == "chain":
        table = np.stack([nodes + 1, tree.num_nodes + nodes], axis=1)
        table[nodes == tree.num_nodes - 1, 0] = 2 * tree.num_nodes  # the last "no" is the last class
        return table
    heap = 2 * nodes[:, None] + np.array([2, 3])
    class_at_heap = np.where(heap >= first_leaf(tree), heap, heap + tree.num_classes) - first_leaf(tree)
    return np.asarray(np.where(heap >= tree.num_classes, tree.num_nodes + class_at_heap, heap - 1))


def parents_of(children: Ints, num_classes: int) -> Ints:
    """Return the parent of every id, from a table of child ids; -1 for a root."""
    parents = np.full(len(children) + num_classes, -1, dtype=np.int64)
    parents[children] = np.arange(len(children))[:, None]
    return read_only(parents)


def bits_of(children: Ints, num_classes: int) -> NDArray[np.bool_]:
    """Return whether each id is its parent's yes child, from a table of child ids; False for a root."""
    bits = np.zeros(len(children) + num_classes, dtype=bool)
    bits[children[:, 1]] = True
    return read_only(bits)


Array = TypeVar("Array", bound=NDArray[Any])


def read_only(array: Array) -> Array:
    """Make ``array`` read-only and return it."""
    array.setflags(write=False)
    return array
