"""Tables that all backends compute with, as NumPy arrays: of paths, of the variables of a forest, of subsets."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from catnat._forest import Forest
from catnat._tree import Ints, Tree, first_leaf
from catnat.activations import Activation, Constants


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
    for node, (no, yes) in enumerate(tree.children):
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


# ---- the order in which a fused kernel goes through a tree ----

# A balanced tree larger than two of these is computed subtree by subtree, so that what it computes with stays in cache.
_SUBTREE = 512


def schedule(tree: Tree | Forest) -> NDArray[np.int32]:
    """The order in which a fused kernel goes through a tree, with the slots in which it keeps sums along paths.

    A flat array: the numbers of slots, roots and runs; the slots of the roots, whose sums are 0; runs of five numbers;
    three slots for every node: that of the sum above it, and those of its no and yes branch. A run takes the nodes
    ``first_node .. end_node - 1``, after which the classes ``first_class .. end_class - 1`` stand in the slots from
    ``first_slot`` on.
    """
    large = tree.kind == "balanced" and tree.num_classes > 2 * _SUBTREE
    roots, runs, slots = _runs_by_subtree(tree) if large else _one_run(tree)
    return np.concatenate(
        [[slots.max() + 1, len(roots), len(runs)], roots, np.ravel(runs), slots.ravel()], dtype=np.int32
    )


Runs = list[tuple[int, int, int, int, int]]


def _one_run(tree: Tree | Forest) -> tuple[Ints, Runs, Ints]:
    """Every id has its own slot."""
    roots = tree.roots if isinstance(tree, Forest) else np.zeros(1, np.int64)
    slots = np.column_stack([np.arange(tree.num_nodes), tree.children])
    return roots, [(0, tree.num_nodes, 0, tree.num_classes, tree.num_nodes)], slots


def _runs_by_subtree(tree: Tree) -> tuple[Ints, Runs, Ints]:
    """The top of a balanced tree, then one subtree after the other in the same slots, each level by level."""
    height = _SUBTREE.bit_length() - 1
    top, num_classes = tree.depth - height, tree.num_classes
    runs: Runs = [(0, (1 << top) - 1, 0, 0, 0)]
    for root in range(1 << top, 2 << top):
        for level in range(height):
            first, end = root << level, min((root + 1) << level, num_classes)
            leaf = max(2 * first, num_classes)
            first_class = leaf - first_leaf(tree) + (num_classes if leaf < first_leaf(tree) else 0)
            if first < end:
                leaves = max(2 * end - leaf, 0)
                runs.append((first - 1, end - 1, first_class, first_class + leaves, int(_slot(np.array(leaf), top))))
    heap = np.arange(1, num_classes)
    return np.ones(1, np.int64), runs, np.column_stack([_slot(at, top) for at in (heap, 2 * heap, 2 * heap + 1)])


def _slot(heap: Ints, top: int) -> Ints:
    """Of a heap number: itself down to the subtrees' roots, below them its number in its own subtree, from 2 on."""
    level = np.maximum(np.frexp(heap.astype(np.float64))[1] - 1 - top, 0)
    in_subtree = (1 << level) + heap - (heap >> level << level)
    return np.where(level == 0, heap, (2 << top) - 2 + in_subtree)


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
