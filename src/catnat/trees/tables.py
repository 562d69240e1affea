"""Tables of paths, of subsets and for fused kernels, as NumPy arrays for all backends."""

from __future__ import annotations

import functools
import itertools

import numpy as np
from numpy.typing import NDArray

from catnat.activations import Activation, natural, sigmoid
from catnat.trees.tree import Ints, Tree


def path_branches(tree: Tree, to: str) -> NDArray[np.float64]:
    """Return 0/1 whether no, and whether yes, at a node is on a path, (2, nodes, leaves) or (2, nodes, nodes)."""
    count = tree.num_nodes + tree.num_classes
    branches = np.zeros((2, tree.num_nodes, count))
    for node, (no, yes) in enumerate(tree.child_ids):
        branches[:, :, [no, yes]] = branches[:, :, [node]]
        branches[0, node, no] = branches[1, node, yes] = 1
    return branches[:, :, tree.num_nodes :] if to == "leaves" else branches[:, :, : tree.num_nodes]


@functools.cache
def subsets(k: int) -> tuple[list[tuple[Ints, Ints]], Ints]:
    """Return index tables of all subsets of k members: a pair of tables for every size below k, and one of pairs.

    A row of a pair is a subset U: the members s not in U, and the index of U + s among the subsets one larger. The
    last table has the index of every {s, t} among the k single members followed by all pairs.
    """
    place = {subset: i for m in range(k + 1) for i, subset in enumerate(itertools.combinations(range(k), m))}
    levels = []
    for m in range(k):
        some = list(itertools.combinations(range(k), m))
        members = [[s for s in range(k) if s not in subset] for subset in some]
        larger = [
            [place[tuple(sorted((*subset, s)))] for s in left] for subset, left in zip(some, members, strict=True)
        ]
        levels.append((np.array(members), np.array(larger)))
    pairs = [[s if s == t else k + place[min(s, t), max(s, t)] for t in range(k)] for s in range(k)]
    return levels, np.array(pairs)


# ---- for fused kernels ----

# The numbers of the activations in the kernels, by exact type, because a subclass may compute something else.
FUSED: dict[type[Activation], int] = {sigmoid: 0, natural: 1}
# A balanced tree with more classes is computed level by level, not by a table of children. This needs more classes
# than a vector register has numbers, 16 with AVX-512.
_MOST_TABLE_CLASSES = 31


def fused_table(tree: Tree) -> NDArray[np.int32]:
    """Return the number of roots, the root and the child ids of every node; empty for a large balanced tree."""
    if tree.kind == "balanced" and tree.num_classes > _MOST_TABLE_CLASSES:
        return np.empty(0, np.int32)
    return np.concatenate([[1, 0], tree.child_ids.ravel()]).astype(np.int32)


def fused_parents(tree: Tree) -> NDArray[np.int32]:
    """Return for every id twice its parent, plus 1 for a yes child, and -1 for the root; empty if balanced."""
    if tree.kind == "balanced":
        return np.empty(0, np.int32)
    return np.where(tree.parents < 0, -1, 2 * tree.parents + tree.bits).astype(np.int32)
