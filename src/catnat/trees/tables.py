"""Tables that all backends compute with, as NumPy arrays: of paths, of the variables of a forest, of subsets."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from catnat.activations import Activation, Constants, natural, sigmoid
from catnat.trees.forest import Forest
from catnat.trees.tree import Ints, Tree


def node_constants(tree: Tree | Forest, activation: Activation, dtype: Any) -> Constants:
    """The activation's constants, with an entry for every node even if all are alike."""
    trees = tree.trees if isinstance(tree, Forest) else [tree]
    each = [activation.constants(one, np.dtype(dtype)) for one in trees]
    rows = [
        [np.broadcast_to(row, one.num_nodes) for row, one in zip(kind, trees, strict=True)]
        for kind in zip(*each, strict=True)
    ]
    return type(each[0])(*map(np.concatenate, rows))


def path_branches(tree: Tree | Forest, to: str) -> NDArray[np.float64]:
    """Whether a no, and whether a yes, at a node lies on a path: 0/1, (2, nodes, leaves) or (2, nodes, nodes)."""
    count = tree.num_nodes + tree.num_classes
    branches = np.zeros((2, tree.num_nodes, count))
    for node, (no, yes) in enumerate(tree.child_ids):
        branches[:, :, [no, yes]] = branches[:, :, [node]]
        branches[0, node, no] = branches[1, node, yes] = 1
    return branches[:, :, tree.num_nodes :] if to == "leaves" else branches[:, :, : tree.num_nodes]


def stacking(forest: Forest) -> tuple[Ints, NDArray[np.bool_]]:
    """Where the classes of every variable stand in a row of all classes, (N, largest K), and which places are empty."""
    sizes, places = np.array(forest.sizes)[:, None], np.arange(max(forest.sizes))
    return forest.first_classes[:, None] + np.minimum(places, sizes - 1), places >= sizes


def unstacking(forest: Forest) -> Ints:
    """Where every class of a row of all classes stands in the flattened stack."""
    return np.flatnonzero(~stacking(forest)[1])


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

# What they compute: the sigmoid of the scores, and the natural activation in its two boundaries. Exactly these types,
# because a subclass may compute something else.
SIGMOID, CLAMPED, REFLECTED = range(3)
FUSED = (sigmoid, natural)
# A balanced tree of more classes than this is computed level by level, not by a table of children. That takes more
# classes than a vector has numbers, 16 with AVX-512.
_MOST_TABLE_CLASSES = 31


def fused_code(activation: Activation) -> int:
    """The number by which kernels know one of the activations ``FUSED``."""
    if not isinstance(activation, natural):
        return SIGMOID
    return REFLECTED if activation.boundary == "reflect" else CLAMPED


def fused_table(tree: Tree | Forest) -> NDArray[np.int32]:
    """The number of roots, the roots, the ids of both children of every node; nothing for a large balanced tree."""
    if tree.kind == "balanced" and tree.num_classes > _MOST_TABLE_CLASSES:
        return np.empty(0, np.int32)
    roots = tree.roots if isinstance(tree, Forest) else [0]
    return np.concatenate([[len(roots)], roots, tree.child_ids.ravel()]).astype(np.int32)
