"""Forests: one tree for each of several variables, whose scores are in one tensor."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from catnat import _checks
from catnat.trees.builders import balanced
from catnat.trees.tree import Ints, Tree, read_only


class Group(NamedTuple):
    """The n variables of a forest that have equal trees."""

    tree: Tree
    variables: Ints
    """The indices of the variables, (n,)."""
    nodes: Ints
    """The indices of their scores among the scores of all variables, (n, K-1)."""
    classes: Ints
    """The indices of their classes among the classes of all variables, (n, K)."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False, init=False)
class Forest:
    """N trees, one per variable, whose scores and classes are concatenated in this order.

    Like trees, forests are immutable and compared by content.

    Args:
        trees: A tree, or a number of classes K for ``balanced(K)``, for every variable.

    Example:
        >>> import catnat
        >>> forest = catnat.Forest([3, 2, catnat.chain(4)])
        >>> forest.sizes, forest.num_nodes, forest.num_classes
        ((3, 2, 4), 6, 9)
    """

    trees: tuple[Tree, ...]
    """The tree of every variable."""
    sizes: tuple[int, ...]
    """The number of classes of every variable."""
    num_nodes: int
    """The number of inner nodes, and of scores, of all trees."""
    num_classes: int
    """The number of classes of all variables together."""

    def __init__(self, trees: Iterable[Tree | int]) -> None:
        built = tuple(tree if isinstance(tree, Tree) else balanced(tree) for tree in _checks.listed(trees, "trees"))
        if not built:
            raise ValueError("`trees` is empty, but a forest needs at least one tree.")
        sizes = tuple(tree.num_classes for tree in built)
        object.__setattr__(self, "trees", built)
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "num_nodes", sum(sizes) - len(sizes))
        object.__setattr__(self, "num_classes", sum(sizes))

    @functools.cached_property
    def groups(self) -> tuple[Group, ...]:
        """The variables grouped by tree; a group is computed as one batch."""
        first_class = np.cumsum([0, *self.sizes[:-1]])
        first_node = first_class - np.arange(len(self.sizes))
        alike: dict[Tree, list[int]] = {}
        for variable, tree in enumerate(self.trees):
            alike.setdefault(tree, []).append(variable)
        groups = []
        for tree, members in alike.items():
            nodes = first_node[members][:, None] + np.arange(tree.num_nodes)
            classes = first_class[members][:, None] + np.arange(tree.num_classes)
            groups.append(Group(tree, *map(read_only, (np.array(members), nodes, classes))))
        return tuple(groups)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Forest) and self.trees == other.trees)

    def __hash__(self) -> int:
        return hash(self.trees)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # no cached tables

    def __repr__(self) -> str:
        return f"<Forest: {len(self.trees)} trees, {self.num_classes} classes in all>"


# Cached, because a layer needs the same forest at every step.
_kept = functools.lru_cache(maxsize=64)(Forest)


def as_forest(trees: Forest | Iterable[Tree | int]) -> Forest:
    """Return ``trees`` if it is a :class:`Forest`, else a cached forest of them."""
    return trees if isinstance(trees, Forest) else _kept(_checks.listed(trees, "trees"))


def check_width(got: int, forest: Forest) -> None:
    """Raise unless the last axis has one score per inner node of every variable."""
    if got != forest.num_nodes:
        raise ValueError(
            f"`scores` has {got} entries on its last axis, but trees over {_checks.shown(forest.sizes)} classes have "
            f"{forest.num_nodes} nodes in all: K - 1 for every variable, not K."
        )
