"""The plan of a tree and an activation on one device and in one dtype: everything that is independent of the scores."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from catnat.activations import Activation
from catnat.torch._branches import LogOdds, branches_of
from catnat.torch._constants import constant
from catnat.trees.tables import path_branches
from catnat.trees.tree import Tree

# Up to this many classes all are computed, by products with 0/1 matrices, even if only some are needed.
MOST_MATMUL_CLASSES = 64
# Deeper trees, such as chains, are not walked, because a walk is a Python loop over the levels.
MOST_WALKED_LEVELS = 64


class Tables(NamedTuple):
    """Index tables of a tree that is not balanced. The id of a node is its index, that of a class is K - 1 plus it."""

    children: Tensor
    """Both children of every id, interleaved; a leaf is its own child, so that walks stay there."""
    edges: Tensor
    """The index of the edge above each id in the concatenation [no branches, yes branches, 0], with one extra id."""
    ancestors: tuple[Tensor, ...]
    """The ancestor of every id 1, 2, 4, ... levels up. The extra id is above the root, and is its own ancestor."""


class Plan:
    """The constants that a tree and an activation need on one device and in one dtype.

    Attributes:
        tree: The tree.
        activation: The activation.
        dtype: The computing dtype, float32 or float64.
        branches: The activation at all nodes.
        small: Whether products with 0/1 matrices can sum along paths.
        walks: Whether to read paths, instead of computing all classes, if only some classes are needed.
        to_leaves: Two 0/1 matrices (nodes, classes) for small trees: whether no, and whether yes, at a node is on the
            path to a class.
        from_leaves: The transposes of ``to_leaves``, (classes, nodes).
        to_nodes: The matrices (nodes, nodes) for the paths to nodes.
        log_odds: A function that computes the log-odds of both branches, for small trees and some activations.
        both_to_leaves: ``to_leaves`` as one matrix (2 nodes, classes).
        method: The method to compute log-probabilities of all classes for plain data; see ``_fused``.
    """

    method: Any = None
    log_odds: LogOdds | None = None

    def __init__(self, tree: Tree, activation: Activation, device: torch.device, dtype: torch.dtype) -> None:
        self.tree, self.activation, self.device, self.dtype = tree, activation, device, dtype
        self.branches = branches_of(tree, activation, device, dtype)
        self.small = 1 < tree.num_classes <= MOST_MATMUL_CLASSES
        self.walks = tree.num_classes > MOST_MATMUL_CLASSES and tree.depth <= MOST_WALKED_LEVELS
        self.to_leaves = self.from_leaves = self.to_nodes = (torch.empty(0), torch.empty(0))
        if self.small:
            self.to_leaves, self.to_nodes = (self._matrices(to) for to in ("leaves", "nodes"))
            no, yes = self.to_leaves
            self.from_leaves = no.T.contiguous(), yes.T.contiguous()
            self.both_to_leaves = torch.cat([no, yes])
            self.log_odds = self.branches.log_odds(tree.num_nodes, device, dtype)

    def _matrices(self, to: str) -> tuple[Tensor, Tensor]:
        no, yes = (torch.as_tensor(side, dtype=self.dtype, device=self.device) for side in path_branches(self.tree, to))
        return no.contiguous(), yes.contiguous()

    def tables(self) -> Tables:
        """Return the tables of a tree that is not balanced, built at the first call."""
        return _tables(self.tree, self.device)


@constant
def _tables(tree: Tree, device: torch.device) -> Tables:
    def tensor(array: NDArray[Any]) -> Tensor:
        return torch.as_tensor(array.astype(np.int64), device=device)

    def doubled(ancestors: Tensor) -> tuple[Tensor, ...]:
        found = [ancestors]
        while 1 << len(found) < tree.depth + 1:
            found.append(look_up(found[-1], found[-1]))
        return tuple(found)

    parents, num_nodes = tree.parents, tree.num_nodes
    ids = np.arange(len(parents))
    root, leaves = parents < 0, ids[num_nodes:]
    return Tables(
        children=tensor(np.concatenate([tree.child_ids, np.stack([leaves, leaves], 1)])).flatten(),
        edges=tensor(np.append(np.where(root, 2 * num_nodes, parents + num_nodes * tree.bits), 2 * num_nodes)),
        ancestors=doubled(tensor(np.append(np.where(root, len(ids), parents), len(ids)))),
    )


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """Return ``table[index]`` for a vector and an index of any shape."""
    return table.index_select(0, index.flatten()).view(index.shape)
