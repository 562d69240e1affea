"""A tree cut into pieces that different machines can hold: a few nodes at the top, and subtrees below them."""

from __future__ import annotations

import dataclasses
import heapq

import numpy as np

from catnat.trees.tree import Floats, Ints, Tree

TOP = -1
"""In place of a piece's number, for the nodes above all pieces."""


@dataclasses.dataclass(frozen=True)
class Pieces:
    """A cut tree.

    Attributes:
        piece: The number of the piece that every node is in, or ``TOP``.
        place: Where a node stands among those of its piece.
        nodes: The nodes of every piece.
        top: The nodes of the top.
        loads: What every piece costs: its fraction of the prior mass, which is work, and of the nodes, which is memory.
    """

    piece: Ints
    place: Ints
    nodes: list[Ints]
    top: Ints
    loads: Floats

    def dealt(self, hands: int) -> list[list[int]]:
        """The pieces that each of so many ranks holds: the heaviest first, always to the rank that has least."""
        given: list[list[int]] = [[] for _ in range(hands)]
        waiting = [(0.0, hand) for hand in range(hands)]
        for piece in np.argsort(-self.loads, kind="stable").tolist():
            load, hand = heapq.heappop(waiting)
            given[hand].append(piece)
            heapq.heappush(waiting, (load + float(self.loads[piece]), hand))
        return given


def cut(tree: Tree, count: int) -> Pieces:
    """Split the heaviest subtree until there are ``count``, or as many as there can be."""
    reach, below = tree.reach(), _nodes_below(tree)
    loads = reach / reach[0] + below / below[0] if tree.num_nodes else reach
    heap = [(-float(loads[0]), 0)] if tree.num_nodes else []
    split = 0
    roots: list[int] = []  # of subtrees that cannot be split: both children are leaves
    while heap and len(heap) + len(roots) < count and split < 4 * count:  # a chain would be all top
        _, node = heapq.heappop(heap)
        inner = [int(child) for child in tree.child_ids[node] if child < tree.num_nodes]
        if not inner:
            roots.append(node)
            continue
        split += 1
        for child in inner:
            heapq.heappush(heap, (-float(loads[child]), child))
    roots = sorted(roots + [node for _, node in heap])
    piece = _spread(tree, np.array(roots, dtype=np.int64))
    above, *nodes = (np.flatnonzero(piece == number) for number in range(TOP, len(roots)))
    place = np.zeros(tree.num_nodes, dtype=np.int64)
    for members in (above, *nodes):
        place[members] = np.arange(len(members))
    return Pieces(piece, place, nodes, above, loads[roots])


def _nodes_below(tree: Tree) -> Floats:
    """How many nodes every node's subtree has, itself included: one less than its leaves."""
    return tree.reach(np.ones(tree.num_classes)) - 1


def _spread(tree: Tree, roots: Ints) -> Ints:
    """The number of the subtree that every node is in."""
    piece = np.full(tree.num_nodes, TOP, dtype=np.int64)
    piece[roots] = np.arange(len(roots))
    # Jumping to ever higher ancestors ends at a subtree's root or at the top, in a few steps on any tree.
    up = np.where(piece >= 0, np.arange(tree.num_nodes), np.maximum(tree.parents[: tree.num_nodes], 0))
    while not np.array_equal(higher := up[up], up):
        up = higher
    return np.asarray(piece[up])
