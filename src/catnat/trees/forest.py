"""Several trees side by side, as one table: variables with different numbers of classes in one tensor of scores."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from catnat import _checks
from catnat.trees.builders import balanced
from catnat.trees.tree import Floats, Ints, Tree, bits_of, parents_of, read_only


@dataclasses.dataclass(frozen=True, eq=False, repr=False, init=False)
class Forest:
    """N trees side by side, one per variable, whose scores and classes are concatenated in their order.

    Build it once and pass it where trees are expected: what it knows of its topology is kept. Like trees, forests are
    immutable and equal by content.

    Args:
        trees: A tree for every variable; a number K stands for ``balanced(K)``.

    Example:
        >>> import catnat
        >>> forest = catnat.Forest([3, 2, catnat.chain(4)])
        >>> forest.sizes, forest.num_nodes, forest.num_classes
        ((3, 2, 4), 6, 9)
    """

    trees: tuple[Tree, ...]
    """The tree of every variable."""
    num_nodes: int
    """The number of inner nodes of all trees: one score each."""
    num_classes: int
    """The number of classes of all variables together."""
    depth: int
    """The number of nodes on the longest path."""

    kind: ClassVar[Literal["forest"]] = "forest"
    is_symmetric = False

    def __init__(self, trees: Iterable[Tree | int]) -> None:
        built = tuple(tree if isinstance(tree, Tree) else balanced(tree) for tree in _checks.listed(trees, "trees"))
        if not built:
            raise ValueError("`trees` is empty, but a forest needs at least one tree.")
        # Plain attributes, not properties that compute: the compilers read them.
        object.__setattr__(self, "trees", built)
        object.__setattr__(self, "num_nodes", sum(tree.num_nodes for tree in built))
        object.__setattr__(self, "num_classes", sum(tree.num_classes for tree in built))
        object.__setattr__(self, "depth", max(tree.depth for tree in built))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of classes of every variable."""
        return tuple(tree.num_classes for tree in self.trees)

    # ---- topology: ids are the nodes of all trees, then the leaves of all trees ----

    @functools.cached_property
    def first_nodes(self) -> Ints:
        """Where every variable's scores start, shape (N,)."""
        return read_only(np.cumsum([0, *(tree.num_nodes for tree in self.trees[:-1])], dtype=np.int64))

    @functools.cached_property
    def first_classes(self) -> Ints:
        """Where every variable's classes start, shape (N,)."""
        return read_only(np.cumsum([0, *self.sizes[:-1]], dtype=np.int64))

    @functools.cached_property
    def roots(self) -> Ints:
        """The id of every variable's root, shape (N,); that of a variable with one class is its leaf."""
        alone = np.array(self.sizes) == 1
        return read_only(np.where(alone, self.num_nodes + self.first_classes, self.first_nodes))

    @functools.cached_property
    def root_of_node(self) -> Ints:
        """The root above every node."""
        return read_only(np.repeat(self.first_nodes, np.array(self.sizes) - 1))

    @functools.cached_property
    def variable_of_class(self) -> Ints:
        """The variable that every class belongs to."""
        return read_only(np.repeat(np.arange(len(self.sizes)), self.sizes))

    @functools.cached_property
    def children(self) -> Ints:
        """The ids of the (no, yes) children of every inner node."""
        return read_only(np.concatenate([self._ids(n)[tree.child_ids] for n, tree in enumerate(self.trees)]))

    @functools.cached_property
    def parents(self) -> Ints:
        """The parent node of every id; a root's is -1."""
        return parents_of(self.child_ids, self.num_classes)

    @functools.cached_property
    def bits(self) -> NDArray[np.bool_]:
        """Whether each id is its parent's yes child; a root's is False."""
        return bits_of(self.child_ids, self.num_classes)

    def _ids(self, n: int) -> Ints:
        """The forest's ids of tree ``n``'s own ids."""
        tree = self.trees[n]
        nodes = self.first_nodes[n] + np.arange(tree.num_nodes)
        return np.concatenate([nodes, self.num_nodes + self.first_classes[n] + np.arange(tree.num_classes)])

    # ---- prior ----

    @property
    def has_uniform_prior(self) -> bool:
        """Whether no tree was given a prior."""
        return all(tree.has_uniform_prior for tree in self.trees)

    @property
    def prior(self) -> Floats:
        """The class probabilities that zero scores stand for, one variable after the other."""
        return np.concatenate([tree.prior for tree in self.trees])

    # ---- identity ----

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Forest) and self.trees == other.trees)

    def __hash__(self) -> int:
        return hash(self.trees)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # no cached tables

    def __repr__(self) -> str:
        return f"<Forest: {len(self.trees)} trees, {self.num_classes} classes in all, depth {self.depth}>"


# A layer needs the same forest at every step.
_kept = functools.lru_cache(maxsize=64)(Forest)


def as_forest(trees: Forest | Iterable[Tree | int]) -> Forest:
    """What users pass for the trees of several variables, as a forest."""
    return trees if isinstance(trees, Forest) else _kept(_checks.listed(trees, "trees"))


def check_width(got: int, forest: Forest) -> None:
    """Raise unless the last axis has one score per inner node of every variable."""
    if got != forest.num_nodes:
        raise ValueError(
            f"`scores` has {got} entries on its last axis, but trees over {_checks.shown(forest.sizes)} classes have "
            f"{forest.num_nodes} nodes in all: K - 1 for every variable, not K."
        )
