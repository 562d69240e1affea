"""How to make a tree: balanced, chain, huffman, from_clusters, from_children."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from catnat import _checks
from catnat._tree import Tree, read_only

Ints = NDArray[np.int64]

# While a tree is being built, a row of `children` names its two members as scipy's linkage does: 0 .. K-1 is a class,
# K + j is row j.


def balanced(num_classes: int) -> Tree:
    """The complete tree: depth ceil(log2 K), the paper's tree when K is a power of two.

    Inner nodes are the heap numbers 1 .. K-1, leaves K .. 2K-1; no goes to 2i, yes to 2i+1; classes are the leaves from
    left to right. Everything about it is bit arithmetic, so it costs nothing at any size.

    Example:
        >>> import catnat
        >>> catnat.balanced(2**25).depth
        25
    """
    return Tree(_checks.num_classes(num_classes), "balanced")


def chain(num_classes: int) -> Tree:
    """Stick-breaking: node i decides "is it class i?"; yes ends there, no goes on.

    Example:
        >>> import catnat
        >>> nodes, bits = catnat.chain(4).path(2)
        >>> bits.tolist()
        [0, 0, 1]
    """
    size = _checks.num_classes(num_classes)
    return Tree(size, "chain") if size > 1 else balanced(1)


def huffman(weights: ArrayLike) -> Tree:
    """The tree with the smallest expected depth under ``weights``, which become its prior.

    Of the two lightest subtrees joined at each step the lighter is the no side.

    Example:
        >>> import catnat
        >>> tree = catnat.huffman([8, 4, 2, 1, 1])
        >>> [len(tree.path(k)[0]) for k in range(5)]
        [1, 2, 3, 4, 4]
    """
    checked = _checks.weights(weights, "weights")
    return from_children(_huffman_rows(checked), prior=checked) if checked.size > 1 else balanced(1)


def from_clusters(clusters: Sequence[Any], weights: ArrayLike | None = None) -> Tree:
    """The tree of nested groups of classes, such as ``[[0, 3], [1, [2, 4]]]``.

    Args:
        clusters: Class indices and groups, nested to any depth; every class 0 .. K-1 exactly once.
        weights: If given, the members of a group are joined by Huffman's rule on their weights, which become the prior.
            Otherwise by a balanced tree, and the prior is uniform.

    From a vector of cluster labels: ``[np.flatnonzero(labels == c) for c in np.unique(labels)]``.

    Example:
        >>> import catnat
        >>> catnat.from_clusters([[0, 1], [2, 3]]) == catnat.balanced(4)
        True
    """
    if not _is_group(clusters):
        raise TypeError(
            f"`clusters` is {clusters!r}, but nested lists of class indices are needed, such as [[0, 3], [1, 2]]."
        )
    classes = _flatten(clusters)
    size = len(classes)
    if sorted(classes) != list(range(size)) or size == 0:
        raise ValueError(
            f"`clusters` names {size} classes of which {len(set(classes))} are distinct, between "
            f"{min(classes, default=None)} and {max(classes, default=None)}, but every class 0 .. K-1 is needed "
            "exactly once."
        )
    masses = None if weights is None else _checks.weights(weights, "weights", size)
    if size == 1:
        return balanced(1)
    rows: list[tuple[int, int]] = []
    _join_group(clusters, size, masses, rows)
    return from_children(rows, prior=masses)


def from_children(children: ArrayLike, prior: ArrayLike | None = None) -> Tree:
    """The tree given by its inner nodes, in any order.

    Args:
        children: K-1 rows (no, yes). Entries 0 .. K-1 are classes, K + j is row j: the convention of scikit-learn's
            ``children_`` and of SciPy's ``linkage``, whose rows of four are taken as they are: the distances and counts
            behind the two children are not used.
        prior: What zero scores mean, positive weights of shape (K,). Uniform if not given.

    Example:
        >>> import catnat
        >>> catnat.from_children([[0, 1], [3, 2]]) == catnat.balanced(3)
        True
    """
    table = np.asarray(children)
    if table.size == 0:
        return balanced(1)
    if table.ndim != 2 or table.shape[1] not in (2, 4) or table.dtype.kind not in "iuf":
        raise ValueError(
            f"`children` has shape {table.shape} and dtype {table.dtype}, but K-1 rows of (no, yes) are needed, "
            "(K-1, 2), or a linkage of SciPy's, (K-1, 4)."
        )
    table = table[:, :2]
    if not (np.isfinite(table).all() and np.equal(np.round(table), table).all()):
        raise ValueError("`children` has entries that are not integers: give class indices and K + row numbers.")
    rows = table.astype(np.int64)
    size = len(rows) + 1
    used = np.sort(rows, axis=None)
    root = _missing_one(used, size)
    tree = _canonical(Tree(size, "table", read_only(_breadth_first(rows, size, root))))
    return tree if prior is None else tree.with_prior(_checks.weights(prior, "prior", size))


def _missing_one(used: Ints, size: int) -> int:
    """The one row that nobody points to; raise unless every class and every other row is a child exactly once."""
    ids = np.arange(2 * size - 1)
    outside = used[(used < 0) | (used >= 2 * size - 1)]
    if outside.size:
        raise ValueError(
            f"`children` has {size - 1} rows, so its entries must lie in 0 .. {2 * size - 2} "
            f"(classes below {size}, then {size} + row), but one is {outside[0]}."
        )
    counts = np.bincount(used, minlength=2 * size - 1)
    twice, never = ids[counts > 1], ids[counts == 0]
    if twice.size or never.size != 1 or never[0] < size:
        raise ValueError(
            "`children` is not a tree: every class and every row but the root must be a child exactly once, but "
            f"{twice[:5].tolist()} stand more than once and {never[:5].tolist()} never "
            f"(classes below {size}, then {size} + row)."
        )
    return int(never[0]) - size


def _breadth_first(rows: Ints, size: int, root: int) -> Ints:
    """The rows renumbered breadth first, as a table of ids (nodes, then K-1+class)."""
    order, level = [], np.array([root])
    while level.size:
        order.append(level)
        below = rows[level].ravel()
        level = below[below >= size] - size
    numbers = np.concatenate(order)
    if numbers.size != size - 1:
        raise ValueError(
            f"`children` is not a tree: {size - 1 - numbers.size} of its rows form a cycle out of the root's reach."
        )
    new_number = np.empty(size - 1, dtype=np.int64)
    new_number[numbers] = np.arange(size - 1)
    ordered = rows[numbers]
    is_class = ordered < size
    return np.where(is_class, ordered + size - 1, new_number[np.where(is_class, 0, ordered - size)])


def _canonical(tree: Tree) -> Tree:
    """The same tree as ``balanced`` or ``chain`` if it is one, so that equality is by content."""
    for kind in ("balanced", "chain"):
        known = Tree(tree.num_classes, kind)
        if np.array_equal(tree.children, known.children):
            return known
    return tree


def _huffman_rows(weights: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Huffman's merges with two queues: sorted leaves, and merged subtrees, which come out sorted by themselves."""
    size = weights.size
    weights = weights / weights.max()  # so that sums cannot overflow
    order = np.argsort(weights, kind="stable")
    leaves: list[tuple[float, int]] = [*zip(weights[order].tolist(), order.tolist(), strict=True), (np.inf, -1)]
    merged: list[tuple[float, int]] = []
    rows: list[tuple[int, int]] = []
    next_leaf = next_merged = 0

    def lightest() -> tuple[float, int]:
        nonlocal next_leaf, next_merged
        if next_merged < len(merged) and merged[next_merged][0] < leaves[next_leaf][0]:
            next_merged += 1
            return merged[next_merged - 1]
        next_leaf += 1
        return leaves[next_leaf - 1]

    for row in range(size - 1):
        (light, no), (heavy, yes) = lightest(), lightest()
        rows.append((no, yes))
        merged.append((light + heavy, size + row))
    return rows


def _balanced_rows(size: int) -> list[tuple[int, int]]:
    """The rows of ``balanced(size)``, children before parents: row j is node size-2-j."""
    ids = balanced(size).children[::-1]
    rows = np.where(ids >= size - 1, ids - (size - 1), 2 * size - 2 - ids)
    return [(no, yes) for no, yes in rows.tolist()]


def _join_group(
    group: Any, size: int, masses: NDArray[np.float64] | None, rows: list[tuple[int, int]]
) -> tuple[int, float]:
    """Append the rows that join ``group``; return the id of its subtree (a class, or ``size`` + row) and its mass."""
    if not _is_group(group):
        return int(group), 0.0 if masses is None else float(masses[group])
    if len(group) == 0:
        raise ValueError("`clusters` has an empty group: leave it out.")
    members, weights = zip(*(_join_group(member, size, masses, rows) for member in group), strict=True)
    count, first = len(members), len(rows)
    if count == 1:
        return members[0], weights[0]
    for pair in _balanced_rows(count) if masses is None else _huffman_rows(np.array(weights)):
        no, yes = (members[i] if i < count else size + first + i - count for i in pair)
        rows.append((no, yes))
    return size + len(rows) - 1, sum(weights)


def _flatten(group: Any) -> list[int]:
    return [k for member in group for k in _flatten(member)] if _is_group(group) else [_class_index(group)]


def _class_index(member: Any) -> int:
    try:
        return operator.index(member)
    except TypeError:
        raise TypeError(
            f"`clusters` has {member!r} of type {type(member).__name__}, but its members are class indices 0 .. K-1: "
            "give names their indices, as in {name: k for k, name in enumerate(names)}."
        ) from None


def _is_group(member: Any) -> bool:
    return (isinstance(member, Sequence) and not isinstance(member, (str, bytes))) or (
        isinstance(member, np.ndarray) and member.ndim > 0
    )
