"""Tables that all backends compute with, as NumPy arrays: of paths, of subsets, and for fused kernels."""

from __future__ import annotations

import functools
import itertools

import numpy as np
from numpy.typing import NDArray

from catnat.activations import Activation, natural, sigmoid
from catnat.trees.tree import Ints, Tree


def path_branches(tree: Tree, to: str) -> NDArray[np.float64]:
    """Whether a no, and whether a yes, at a node lies on a path: 0/1, (2, nodes, leaves) or (2, nodes, nodes)."""
    count = tree.num_nodes + tree.num_classes
    branches = np.zeros((2, tree.num_nodes, count))
    for node, (no, yes) in enumerate(tree.child_ids):
        branches[:, :, [no, yes]] = branches[:, :, [node]]
        branches[0, node, no] = branches[1, node, yes] = 1
    return branches[:, :, tree.num_nodes :] if to == "leaves" else branches[:, :, : tree.num_nodes]


@functools.cache
def subsets(k: int) -> tuple[list[tuple[Ints, Ints]], Ints]:
    """For every size below k, its subsets U in order: who is not in U, and where U with that one stands a size up.

    And for every two members where their pair stands, behind the k singles; on the diagonal the single itself.
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

# The activations that kernels compute, by their number: exactly these types, as a subclass may compute something else.
FUSED: dict[type[Activation], int] = {sigmoid: 0, natural: 1}
# A balanced tree of more classes than this is computed level by level, not by a table of children. That takes more
# classes than a vector has numbers, 16 with AVX-512.
_MOST_TABLE_CLASSES = 31


def fused_table(tree: Tree) -> NDArray[np.int32]:
    """The number of roots, the root, the ids of both children of every node; nothing for a large balanced tree."""
    if tree.kind == "balanced" and tree.num_classes > _MOST_TABLE_CLASSES:
        return np.empty(0, np.int32)
    return np.concatenate([[1, 0], tree.child_ids.ravel()]).astype(np.int32)


def fused_parents(tree: Tree) -> NDArray[np.int32]:
    """Of every id twice its parent, plus 1 if it is the yes of it; -1 at the root. Nothing for a balanced tree."""
    if tree.kind == "balanced":
        return np.empty(0, np.int32)
    return np.where(tree.parents < 0, -1, 2 * tree.parents + tree.bits).astype(np.int32)
