"""Functions that build trees: balanced, chain, huffman, from_clusters, from_children."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from catnat import _checks
from catnat._progress import Done, not_shown, progress_bar
from catnat.trees.tree import Ints, Tree, known_children, read_only, with_own_prior

# While a tree is built, a row of `children` numbers its two children as in SciPy's linkage: 0 .. K-1 is a class,
# K + j is row j.

# The number of rows in a batch: with 10^8 classes a temporary array over all nodes would take a gigabyte.
_ROWS = 1 << 19


def balanced(num_classes: int) -> Tree:
    """Build the complete tree of depth ceil(log2 K), which is the paper's tree if K is a power of two.

    Inner nodes are the heap numbers 1 .. K-1, leaves K .. 2K-1. No leads to 2i, yes to 2i+1. Classes are the leaves
    from left to right. The tree is computed by bit arithmetic and stores no tables.

    Example:
        >>> import catnat
        >>> catnat.balanced(2**25).depth
        25
    """
    return Tree(_checks.num_classes(num_classes), "balanced")


def as_tree(tree: Tree | int | None, num_classes: int) -> Tree:
    """Return ``tree``, or ``balanced(K)`` if it is a number K, or ``balanced(num_classes)`` if it is None."""
    if isinstance(tree, Tree):
        return tree
    if tree is None:
        return balanced(num_classes)
    if isinstance(tree, bool) or not isinstance(tree, (int, np.integer)):
        _checks.not_a_tree(tree, num_classes)
    return balanced(int(tree))


def chain(num_classes: int) -> Tree:
    """Build the stick-breaking tree: at node i, yes leads to class i and no to the next node.

    Example:
        >>> import catnat
        >>> nodes, bits = catnat.chain(4).path(2)
        >>> bits.tolist()
        [0, 0, 1]
    """
    size = _checks.num_classes(num_classes)
    return Tree(size, "chain") if size > 1 else balanced(1)


def huffman(weights: ArrayLike, *, progress: bool = False) -> Tree:
    """Build the tree with the smallest expected depth under ``weights``, which become its prior.

    Each step joins the two lightest subtrees, the lighter one on the no side. Among subtrees of equal weight, classes
    come before joined subtrees, each in their order.

    The tree takes 24 bytes per class; building it takes about 8 more, and some 100 MB. Weights may be a memory-mapped
    file (``np.load(file, mmap_mode="r")``). 10^8 classes take a minute or two.

    Args:
        weights: Positive weights of the classes, such as counts, shape (K,).
        progress: Whether to show a progress bar, which needs ``tqdm``.

    Example:
        >>> import catnat
        >>> tree = catnat.huffman([8, 4, 2, 1, 1])
        >>> [len(tree.path(k)[0]) for k in range(5)]
        [1, 2, 3, 4, 4]
    """
    masses = _checks.weights(weights, "weights")
    size = masses.size
    if size == 1:
        return balanced(1)
    with progress_bar(progress, 2 * (size - 1), "nodes") as done:  # every node is built and then numbered
        table = _breadth_first(_huffman_rows(masses, done), size, size - 2, done)
    return with_own_prior(tree_of(table), masses)


def from_clusters(clusters: Sequence[Any], weights: ArrayLike | None = None) -> Tree:
    """Build a tree from nested groups of classes, such as ``[[0, 3], [1, [2, 4]]]``.

    Args:
        clusters: Class indices and groups, nested to any depth; every class 0 .. K-1 exactly once.
        weights: Weights of the classes, which become the prior; the members of a group are then joined by Huffman's
            rule. If not given, they are joined by a balanced tree, and the prior is uniform.

    For a vector of cluster labels pass ``[np.flatnonzero(labels == c) for c in np.unique(labels)]``.

    Example:
        >>> import catnat
        >>> catnat.from_clusters([[0, 1], [2, 3]]) == catnat.balanced(4)
        True
    """
    if not _is_group(clusters):
        raise TypeError(
            f"`clusters` is {clusters!r}, but nested lists of class indices are needed, such as [[0, 3], [1, 2]]."
        )
    groups = _groups(clusters)
    classes = [member for group in groups for member in group if not isinstance(member, list)]
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
    return from_children(_joined_rows(groups, size, masses), prior=masses)


def from_children(children: ArrayLike, prior: ArrayLike | None = None) -> Tree:
    """Build a tree from the children of its inner nodes, in any order.

    Args:
        children: K-1 rows (no, yes). Entries 0 .. K-1 are classes, and K + j is row j, as in scikit-learn's
            ``children_`` and SciPy's ``linkage``. The rows of a ``linkage`` have four entries; the distances and counts
            are ignored.
        prior: The distribution at zero scores, as positive weights of shape (K,). Uniform if not given.

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
            "(K-1, 2), or a linkage of SciPy, (K-1, 4)."
        )
    rows = table[:, :2]
    size = len(rows) + 1
    tree = tree_of(_breadth_first(rows, size, _root(rows, size)))
    return tree if prior is None else with_own_prior(tree, _checks.weights(prior, "prior", size))


def tree_of(table: Ints) -> Tree:
    """Return the tree with this table of child ids, (K-1, 2).

    It is a ``balanced`` tree or a ``chain`` if the table is equal to theirs, so that trees are compared by content.
    """
    size = len(table) + 1
    for kind in ("balanced", "chain"):
        known = Tree(size, kind)
        if all(np.array_equal(table[rows], known_children(known, rows)) for rows in slices(size - 1, _ROWS)):
            return known
    return Tree(size, "table", read_only(table))


def narrow_ints(count: int) -> type[np.signedinteger[Any]]:
    """Return int32 if it can represent 0 .. count-1, else int64."""
    return np.int32 if count <= 2**31 else np.int64


def slices(count: int, step: int) -> list[slice]:
    """Return slices of at most ``step`` numbers that cover 0 .. count-1."""
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def _root(rows: NDArray[Any], size: int) -> int:
    """Return the root, the only row that is no child. Raise unless all classes and other rows are children once."""
    is_child = np.zeros(2 * size - 1, dtype=bool)
    for some in slices(size - 1, _ROWS):
        is_child[_checked_ids(rows[some], size)] = True
    never = np.flatnonzero(~is_child)
    if never.size != 1 or never[0] < size:
        ids = rows.astype(np.int64).ravel()
        twice = np.flatnonzero(np.bincount(ids, minlength=2 * size - 1) > 1)
        raise ValueError(
            "`children` is not a tree: every class and every row but the root must be a child exactly once, but "
            f"{twice[:5].tolist()} occur more than once and {never[:5].tolist()} never "
            f"(classes below {size}, then {size} + row)."
        )
    return int(never[0]) - size


def _checked_ids(rows: NDArray[Any], size: int) -> Ints:
    if rows.dtype.kind == "f" and not (np.isfinite(rows).all() and np.equal(np.round(rows), rows).all()):
        raise ValueError("`children` has entries that are not integers: give class indices and K + row numbers.")
    outside = rows[(rows < 0) | (rows >= 2 * size - 1)]
    if outside.size:
        raise ValueError(
            f"`children` has {size - 1} rows, so its entries must lie in 0 .. {2 * size - 2} "
            f"(classes below {size}, then {size} + row), but one is {int(outside[0])}."
        )
    return rows.astype(np.int64)


def _breadth_first(rows: NDArray[Any], size: int, root: int, done: Done = not_shown) -> Ints:
    """Renumber the rows breadth first and return them as a table of child ids (nodes, then K-1+class)."""
    table = np.empty((size - 1, 2), dtype=np.int64)
    table[0] = rows[root]
    # The table is its own queue: rows before `first` contain ids, and rows up to `last` the entries of `rows`.
    first, last = 0, 1
    while first < last:
        some = table[first : min(last, first + _ROWS)]
        inner = some >= size
        below = rows[some[inner] - size]
        some[~inner] += size - 1
        some[inner] = np.arange(last, last + len(below))
        table[last : last + len(below)] = below
        first, last = first + len(some), last + len(below)
        done(len(some))
    if last != size - 1:
        raise ValueError(
            f"`children` is not a tree: {size - 1 - last} of its rows form a cycle that the root does not reach."
        )
    return table


def _huffman_rows(weights: NDArray[np.float64], done: Done = not_shown) -> NDArray[Any]:
    """Compute Huffman's merges from two queues: sorted leaves, and merged subtrees, which are already sorted.

    The sum of the two lightest weights is at least the weight of every merged subtree. So all merged subtrees, and all
    leaves up to this sum, are paired in one batch. The sum grows by half or more per batch. There are at most about
    2,000 batches for float64 weights, and about 30 for Zipf's law of 10^8 classes.
    """
    size = weights.size
    ids = narrow_ints(2 * size)
    weights = weights / weights.max()  # so that sums cannot overflow
    order = np.argsort(weights, kind="stable")
    weights = weights[order]  # weights of leaves; the sum of row j is written to j, where the leaf is already merged
    order = order.astype(ids)
    rows = np.empty((size - 1, 2), dtype=ids)
    leaf = merged = row = 0  # the next unused ones
    while row < size - 1:
        leaves, sums = weights[leaf : leaf + 2 * _ROWS], weights[merged : min(row, merged + 2 * _ROWS)]
        lightest = np.sort(np.concatenate([leaves[:2], sums[:2]]))
        leaves = leaves[: np.searchsorted(leaves, lightest[0] + lightest[1], side="right")]
        both = np.concatenate([leaves, sums])
        pairs = np.argsort(both, kind="stable")  # among equal weights leaves come first
        pairs = pairs[: min(len(both) // 2, _ROWS) * 2].reshape(-1, 2)
        names = np.concatenate([order[leaf : leaf + len(leaves)], np.arange(size + merged, size + merged + len(sums))])
        count = len(pairs)
        rows[row : row + count] = names[pairs]
        weights[row : row + count] = both[pairs].sum(axis=1)
        used_leaves = int((pairs < len(leaves)).sum())
        leaf, merged, row = leaf + used_leaves, merged + 2 * count - used_leaves, row + count
        done(count)
    return rows


def balanced_rows(size: int) -> list[tuple[int, int]]:
    """Return the rows of ``balanced(size)``, children before parents: row j is node size-2-j."""
    ids = balanced(size).child_ids[::-1]
    rows = np.where(ids >= size - 1, ids - (size - 1), 2 * size - 2 - ids)
    return [(no, yes) for no, yes in rows.tolist()]


def _groups(clusters: Any) -> list[list[Any]]:
    """Return all groups, each before its subgroups, as lists whose entries are class indices or such lists."""
    groups, given = [list(clusters)], {id(clusters): clusters}
    for group in groups:  # the list grows while it is read, because recursion depth is limited
        if not group:
            raise ValueError("`clusters` has an empty group: remove it.")
        for i, member in enumerate(group):
            if not _is_group(member):
                group[i] = _class_index(member)
                continue
            if id(member) in given:  # a group that contains itself would be an infinite loop
                raise ValueError(
                    "`clusters` has one list in two places, or in itself, but every class belongs to one group."
                )
            given[id(member)] = member
            group[i] = list(member)
        groups.extend(member for member in group if isinstance(member, list))
    return groups


def _joined_rows(groups: list[list[Any]], size: int, masses: NDArray[np.float64] | None) -> list[tuple[int, int]]:
    """Return the rows that join the members of every group, inner groups first."""
    rows: list[tuple[int, int]] = []
    found: dict[int, tuple[int, float]] = {}  # by group: its subtree, a class or `size` + row, and its mass

    def subtree(member: Any) -> tuple[int, float]:
        return found[id(member)] if isinstance(member, list) else (member, 0.0 if masses is None else masses[member])

    for group in reversed(groups):
        members, weights = zip(*map(subtree, group), strict=True)
        count, first = len(members), len(rows)
        pairs = balanced_rows(count) if masses is None else _huffman_rows(np.array(weights)).tolist()
        for pair in pairs:
            no, yes = (members[i] if i < count else size + first + i - count for i in pair)
            rows.append((no, yes))
        found[id(group)] = (members[0] if count == 1 else size + len(rows) - 1, sum(weights))
    return rows


def _class_index(member: Any) -> int:
    try:
        return operator.index(member)
    except TypeError:
        raise TypeError(
            f"`clusters` has {member!r} of type {type(member).__name__}, but its members are class indices 0 .. K-1: "
            "convert names to indices, as in {name: k for k, name in enumerate(names)}."
        ) from None


def _is_group(member: Any) -> bool:
    return (isinstance(member, Sequence) and not isinstance(member, (str, bytes))) or (
        isinstance(member, np.ndarray) and member.ndim > 0
    )
