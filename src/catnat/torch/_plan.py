"""The plan of a tree and an activation on one device and in one dtype: all that does not depend on the scores."""

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

# Up to here all classes are computed even where only some are needed, by a product with 0/1 matrices.
MOST_MATMUL_CLASSES = 64
# Deeper trees (a chain, say) are not walked: that would be a Python loop as long as the tree is deep.
MOST_WALKED_LEVELS = 64


class Tables(NamedTuple):
    """Index tables of a tree that is not balanced; an id is a node, or K - 1 plus a class."""

    parents: Tensor
    """The parent of every id; the root is its own parent, so that walks stop there."""
    bits: Tensor
    """Whether each id is its parent's yes child, 0 or 1."""
    children: Tensor
    """Both children of every id, one after the other; a leaf is its own child, so that walks wait there."""
    edges: Tensor
    """Where the edge above an id stands in the row [no branches, yes branches, 0]."""
    jumps: tuple[Tensor, ...]
    """Every id's ancestor 1, 2, 4, ... levels up, the root's being itself."""
    ancestors: tuple[Tensor, ...]
    """The same with one more place above the root, above which there is only itself."""


class Plan:
    """A tree and an activation, ready to compute with.

    Attributes:
        tree: The tree.
        activation: The activation.
        dtype: The computing dtype, float32 or float64.
        branches: The activation at all nodes.
        small: Whether a product with 0/1 matrices may sum along paths.
        walks: Whether to read paths, rather than compute all classes, where only some are needed.
        to_leaves: Whether a no, and whether a yes, at a node lies on the path to a class: 0/1, nodes x classes. Of
            small trees.
        from_leaves: The transpose of ``to_leaves``, classes x nodes.
        to_nodes: The same for the paths to nodes.
        log_odds: The log-odds of both branches of every node, of a small tree, if the activation has a short form.
        both_to_leaves: ``to_leaves`` as one matrix, 2 nodes x classes.
        method: How the log-probabilities of all classes are computed for plain data; see ``_fused``.
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
        """The tables of a tree that is not balanced, made when first needed."""
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
    to_root = tensor(np.where(root, ids, parents))
    return Tables(
        parents=to_root,
        bits=tensor(tree.bits),
        children=tensor(np.concatenate([tree.child_ids, np.stack([leaves, leaves], 1)])).flatten(),
        edges=tensor(np.where(root, 2 * num_nodes, parents + num_nodes * tree.bits)),
        jumps=doubled(to_root),
        ancestors=doubled(tensor(np.append(np.where(root, len(ids), parents), len(ids)))),
    )


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """``table[index]`` for a vector and an index of any shape."""
    return table.index_select(0, index.flatten()).view(index.shape)
