"""Pruning: what a mask leaves of a tree is a tree again, another one in every row.

A node of which one side is masked is not active. Centring and scaling are those of the prior restricted to the valid
classes, so that zero scores mean that prior.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from catnat.torch import _constants, _dense, _inputs, _paths, functional
from catnat.torch._kernels import FEW
from catnat.torch._nodes import Masses, Nodes
from catnat.torch._variables import variables_of
from catnat.trees.tree import Tree


def pruned(nodes: Nodes, valid: Tensor, paths: ValidPaths | None) -> Nodes:
    """The same nodes with only the ``valid`` classes (..., K) left; along their ``paths`` where these are few."""
    scores, tree, activation, _ = nodes
    weights = _constants.leaf_weights(tree, scores.device, scores.dtype)
    if paths is not None:
        no, yes = paths.leaf_sums(weights, scores.shape)
    else:
        no, yes = _dense.leaf_sums(valid.to(scores.dtype) * weights, tree)
    reach = None
    if activation.scaling == "isotropic":
        below = no + yes
        reach = below / variables_of(tree).per_node(below)
    masses = Masses.from_sides(no, yes, reach)
    if scores.shape[:-1] != valid.shape[:-1]:
        batch = torch.broadcast_shapes(scores.shape[:-1], valid.shape[:-1])
        nodes, masses = nodes.expand(batch), masses.map(lambda mass: mass.expand(*batch, -1))
    if not functional.walks(tree):  # then all nodes are read, perhaps more than once
        masses = masses._replace(known=masses.constants(nodes.kernel))
    return nodes._replace(masses=masses)


# ---- few valid classes ----


class ValidPaths(NamedTuple):
    """The paths to all n valid classes of all rows, where these are few: no other node need be read."""

    rows: Tensor  # (n,)
    classes: Tensor  # (n,)
    nodes: Tensor  # (n, depth); where the path is shorter, any
    on_path: Tensor  # (n, depth)
    bits: Tensor  # (n, depth)
    shape: tuple[int, ...]  # batch + (K,)

    @property
    def _places(self) -> Tensor:
        """Where the nodes stand if all rows are joined to one."""
        return self.nodes + (self.rows * (self.shape[-1] - 1)).unsqueeze(-1)

    def leaf_sums(self, weights: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """The weight of the valid classes on both sides of every node, ``shape`` = batch + (K-1,)."""
        counted = _constants.look_up(weights, self.classes).unsqueeze(-1) * self.on_path
        yes, places = counted * self.bits, self._places.flatten()
        no, yes = (
            weights.new_zeros(math.prod(shape)).index_add_(0, places, side.flatten()).view(shape)
            for side in (counted - yes, yes)
        )
        return no, yes

    def log_probs(self, nodes: Nodes, *, floored: bool) -> Tensor:
        """The log-probability of every valid class, (n,)."""
        masses = None if nodes.masses is None else nodes.masses.map(lambda mass: mass.flatten())
        joined = nodes._replace(scores=nodes.scores.flatten(), masses=masses)
        node_scores = joined.at(self.nodes, self._places)
        return _paths.sum_branches(node_scores, self.on_path, self.bits, floored=floored)

    def spread(self, values: Tensor, fill: float) -> Tensor:
        """``values`` of the valid classes among all classes, the others being ``fill``."""
        every = torch.full((math.prod(self.shape),), fill, dtype=values.dtype, device=values.device)
        return every.scatter_(0, self.rows * self.shape[-1] + self.classes, values).view(self.shape)

    def sum_by_row(self, values: Tensor) -> Tensor:
        """The sum of ``values`` over the valid classes of every row."""
        batch = self.shape[:-1]
        return values.new_zeros(math.prod(batch)).index_add(0, self.rows, values).view(batch)

    def normalized(self, logs: Tensor) -> Tensor:
        """Log-probabilities of the valid classes, divided by their sum in every row."""
        largest = logs.new_full((math.prod(self.shape[:-1]),), -torch.inf)
        largest = _constants.look_up(largest.scatter_reduce_(0, self.rows, logs.detach(), "amax"), self.rows)
        total = self.sum_by_row((logs - largest).exp()).flatten()
        return logs - largest - _constants.look_up(total, self.rows).log()


def valid_paths(nodes: Nodes, valid: Tensor) -> ValidPaths | None:
    """The paths to all valid classes, if reading them is less work than reading all nodes, and if that can be told."""
    tree, shape = nodes.tree, (*nodes.scores.shape[:-1], nodes.tree.num_classes)
    if torch.compiler.is_compiling() or valid.shape != shape:
        return None
    if is_functorch_wrapped_tensor(valid) or is_functorch_wrapped_tensor(nodes.scores):
        return None
    if not isinstance(tree, Tree) or not functional.walks(tree) or valid.numel() <= FEW:
        return None
    count = valid.sum(-1, dtype=torch.int32).sum()
    if not _inputs.is_true(count * (2 * tree.depth) <= valid.numel()):
        return None
    rows, classes = valid.reshape(-1, tree.num_classes).nonzero().unbind(-1)
    index, bits = _paths.path(classes, tree)
    return ValidPaths(rows, classes, index.clamp(min=0), index >= 0, bits, shape)
