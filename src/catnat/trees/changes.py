"""Changes of trees: nodes that two trees have in common, adding classes and removing classes."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from catnat.trees.builders import balanced_rows, from_children
from catnat.trees.tree import Floats, Ints, Tree, positions_below, sums_below, with_own_prior


class MatchingNodes(NamedTuple):
    """The nodes of an old tree that separate the same classes as those of a new tree; see :func:`matching_nodes`."""

    old_nodes: Ints
    """The matching old node of each new node, or -1 if there is none, (K-1,)."""
    swapped: NDArray[np.bool_]
    """Whether the new node's yes side is the old node's no side, (K-1,)."""


def matching_nodes(new: Tree, old: Tree, classes: ArrayLike | None = None) -> MatchingNodes:
    """Find the node of an old tree that matches each node of a new tree, to keep its trained weights.

    Two nodes match if they have the same classes on their two sides, possibly with the sides swapped. Only classes in
    both trees are compared, and each side needs at least one. The result is exact, in time O(K) for shallow trees. The
    old tree's classes are numbered from left to right. The two sides of an old node are then neighbouring intervals,
    and the gap between two neighbouring classes belongs to exactly one node.

    Args:
        new: The new tree.
        old: The old tree.
        classes: The index in the old tree of each class of the new tree, or -1 for a new class. If not given, classes
            keep their index, and further classes are new.

    Example:
        >>> import catnat
        >>> old = catnat.from_clusters([[0, 1], [2, 3]])
        >>> new = catnat.from_clusters([[3, 2], [1, [0, 4]]])
        >>> nodes, swapped = catnat.matching_nodes(new, old)
        >>> nodes.tolist(), swapped.tolist()
        ([0, 2, 1, -1], [True, True, True, False])

        Rows and bias of a JAX layer with the sigmoid or natural activation move so; rows without a match become 0:

        >>> activation, weight, bias = catnat.sigmoid(), np.ones((3, 8)), np.ones(3)
        >>> sign = np.where(nodes < 0, 0.0, np.where(swapped, -1.0, 1.0))
        >>> before, after = (np.broadcast_to(activation.offset(tree), tree.num_nodes) for tree in (old, new))
        >>> new_weight = sign[:, None] * weight[nodes]
        >>> new_bias = sign * (bias + before)[nodes] - np.abs(sign) * after
    """
    old_class = _old_classes(classes, new, old)
    known = np.flatnonzero(old_class >= 0)
    # The common classes in the order of the old tree: the number below every id, and the position where they begin.
    common = np.zeros(old.num_classes, dtype=np.int64)
    common[old_class[known]] = 1
    counts = sums_below(old, common)
    starts = positions_below(old, counts)
    node_at_gap = np.full(len(known) + 1, -1)
    splits = np.flatnonzero((counts[old.child_ids] > 0).all(axis=1))
    node_at_gap[starts[old.child_ids[splits, 1]]] = splits
    # For every id of the new tree: the number of common classes below it, and their first and last position.
    found = sums_below(new, (old_class >= 0).astype(np.int64))
    first, last = np.full_like(found, len(known)), np.full_like(found, -1)
    first[new.num_nodes + known] = last[new.num_nodes + known] = starts[old.num_nodes + old_class[known]]
    for level in reversed(new.levels):
        first[level] = first[new.child_ids[level]].min(axis=1)
        last[level] = last[new.child_ids[level]].max(axis=1)
    # A side is an interval if it has one class per position; a match needs two neighbouring intervals.
    sides = new.child_ids
    gap = first[sides].max(axis=1)
    intervals = ((found[sides] > 0) & (last[sides] - first[sides] + 1 == found[sides])).all(axis=1)
    touch = last[sides].min(axis=1) + 1 == gap
    node = node_at_gap[np.where(intervals & touch, gap, 0)]
    ids = np.maximum(node, 0)
    same = (node >= 0) & (first[: new.num_nodes] == starts[ids]) & (found[: new.num_nodes] == counts[ids])
    return MatchingNodes(np.where(same, node, -1), same & (first[sides[:, 0]] > first[sides[:, 1]]))


def grow(tree: Tree, new_classes: int, beside: ArrayLike | None = None, *, fraction: ArrayLike | None = None) -> Tree:
    """Add the classes K, K + 1 and so on to a tree; the other classes keep their numbers.

    New classes take their probability only from the class or the node that becomes their sibling. The branch
    probabilities of the prior at old nodes do not change. If old nodes keep their weights (:func:`matching_nodes`), all
    other classes keep their probabilities under any model.

    Args:
        tree: The old tree.
        new_classes: The number of classes to add.
        beside: The sibling of each new class, one number for all or one for each: k is class k, and K + j is node j, as
            in :attr:`Tree.children`. The root if not given. New classes with the same sibling are joined by a balanced
            tree.
        fraction: The fraction of the sibling's probability that each new class takes, one number for all or one for
            each. If not given, zero scores divide it equally among the classes there, new and old.

    Example:
        >>> import catnat
        >>> tree = catnat.grow(catnat.balanced(2), 1, beside=1)
        >>> tree.prior.tolist()
        [0.5, 0.25, 0.25]
        >>> catnat.matching_nodes(tree, catnat.balanced(2)).old_nodes.tolist()
        [0, -1]
    """
    count, size = operator.index(new_classes), tree.num_classes
    if count < 1:
        raise ValueError(f"`new_classes` is {new_classes}, but at least 1 is needed.")
    root = size if size > 1 else 0
    places = _one_each(root if beside is None else beside, "beside", count)
    if places.dtype.kind not in "iu" or (places < 0).any() or (places > 2 * size - 2).any():
        raise ValueError(
            f"`beside` is {beside!r}, but integers are needed: a class, 0 .. {size - 1}, or a node j as K + j, "
            f"{size} .. {2 * size - 2}."
        )
    grown = from_children(_grown_rows(tree, places))
    shares = None if fraction is None else _fractions(_one_each(fraction, "fraction", count), places)
    branches = np.stack(grown.prior_branches(), axis=1)
    if shares is not None:
        branches = sums_below(grown, np.concatenate([np.zeros(size), shares]))[grown.child_ids]
        beside_old = sums_below(grown, (np.arange(size + count) < size).astype(np.int64))[grown.child_ids[:, 0]] > 0
        branches[beside_old, 0] = 1 - branches[beside_old, 1]
        branches /= branches.sum(axis=1, keepdims=True)
    nodes = matching_nodes(grown, tree).old_nodes
    branches[nodes >= 0] = np.stack(tree.prior_branches(), axis=1)[nodes[nodes >= 0]]
    return _with_branches(grown, branches)


def remove(tree: Tree, classes: ArrayLike) -> Tree:
    """Remove classes from a tree; the other classes are renumbered, as by ``numpy.delete``.

    The probability of a class goes to its sibling, and if this is a node, to the classes below it in proportion. The
    branch probabilities of the prior at the remaining nodes do not change. ``matching_nodes(new, old,
    numpy.delete(numpy.arange(K), classes))`` returns these nodes.

    Args:
        tree: The old tree.
        classes: The classes to remove.

    Example:
        >>> import catnat
        >>> catnat.remove(catnat.balanced(4), [0]).prior.tolist()
        [0.5, 0.25, 0.25]
    """
    gone, size = np.unique(np.asarray(classes)), tree.num_classes
    gone = gone if gone.size else gone.astype(np.int64)
    if gone.dtype.kind not in "iu" or (gone < 0).any() or (gone >= size).any() or gone.size == size:
        raise ValueError(f"`classes` is {classes!r}, but it must name some, not all, of the classes 0 .. {size - 1}.")
    left = np.delete(np.arange(size), gone)
    # The replacement of every id: itself, or that of its only remaining child, or -1 if nothing remains.
    rest = np.arange(2 * size - 1)
    rest[tree.num_nodes + gone] = -1
    for level in reversed(tree.levels):
        below = rest[tree.child_ids[level]]
        both = (below >= 0).all(axis=1)
        rest[level] = np.where(both, rest[level], below.max(axis=1))
    kept = np.flatnonzero(rest[: tree.num_nodes] == np.arange(tree.num_nodes))
    entries = np.zeros_like(rest)
    entries[kept] = len(left) + np.arange(len(kept))
    entries[tree.num_nodes + left] = np.arange(len(left))
    smaller = from_children(entries[rest[tree.child_ids[kept]]])
    nodes = matching_nodes(smaller, tree, left).old_nodes
    return _with_branches(smaller, np.stack(tree.prior_branches(), axis=1)[nodes])


def _old_classes(classes: ArrayLike | None, new: Tree, old: Tree) -> Ints:
    """Return the checked index in the old tree of every new class, or -1."""
    if classes is None:
        every = np.arange(new.num_classes)
        return np.where(every < old.num_classes, every, -1)
    given = np.asarray(classes)
    if given.shape != (new.num_classes,) or given.dtype.kind not in "iu":
        raise ValueError(
            f"`classes` has shape {given.shape} and dtype {given.dtype}, but an old class or -1 is needed for each of "
            f"the {new.num_classes} classes of the new tree, integers."
        )
    known = given[given != -1]
    if (known < 0).any() or (known >= old.num_classes).any() or len(np.unique(known)) < len(known):
        raise ValueError(
            f"`classes` must have classes 0 .. {old.num_classes - 1} of the old tree, each at most once, or -1, but "
            f"it has {len(known)} of which {len(np.unique(known))} are distinct, from {known.min()} to {known.max()}."
        )
    return given.astype(np.int64)


def _one_each(values: ArrayLike, name: str, count: int) -> NDArray[Any]:
    """Broadcast one number, or one per new class, to shape (count,)."""
    array = np.asarray(values)
    if array.ndim > 1 or array.size not in (1, count):
        raise ValueError(f"`{name}` has shape {array.shape}, but one number is needed, or {count}, one per new class.")
    return np.broadcast_to(array, (count,))


def _fractions(fractions: NDArray[Any], places: Ints) -> Floats:
    """Return the fractions in float64, or raise unless they are positive and sum to less than 1 at each place."""
    totals = np.bincount(places, fractions)
    if not ((fractions > 0) & (totals[places] < 1)).all():
        raise ValueError(
            f"`fraction` must be positive, and together below 1 for the new classes beside one place, but the smallest "
            f"is {fractions.min()} and the largest sum {totals.max()}."
        )
    return fractions.astype(np.float64)


def _grown_rows(tree: Tree, places: Ints) -> Ints:
    """Return the rows for :func:`from_children` of the tree with a new class beside each of ``places``."""
    size = tree.num_classes
    total = size + len(places)
    rows: list[tuple[int, int]] = []  # new rows, after those of the tree
    entries = np.arange(2 * size - 1)  # the entry that replaces each class or node
    entries[size:] += len(places)

    def add(no: int, yes: int) -> int:
        rows.append((no, yes))
        return total + tree.num_nodes + len(rows) - 1

    for place in np.unique(places).tolist():
        members = (size + np.flatnonzero(places == place)).tolist()
        for no, yes in balanced_rows(len(members)):
            members.append(add(members[no], members[yes]))
        entries[place] = add(int(entries[place]), members[-1])
    return np.concatenate([entries[tree.children], np.reshape(rows, (-1, 2))])


def _with_branches(tree: Tree, branches: Floats) -> Tree:
    """Return the tree with the prior whose probabilities of no and yes at the nodes are ``branches``, (K-1, 2)."""
    masses = np.ones(2 * tree.num_classes - 1)
    for level in tree.levels:
        masses[tree.child_ids[level]] = masses[level, None] * branches[level]
    prior = np.maximum(masses[tree.num_nodes :], np.finfo(np.float64).tiny)
    uniform = np.allclose(prior, 1 / tree.num_classes, rtol=1e-12, atol=0)
    return tree if uniform else with_own_prior(tree, prior)
