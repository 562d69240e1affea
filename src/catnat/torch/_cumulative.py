"""Ordered classes: the mass below and above a class, and the class at a given mass.

Where the classes below every node are consecutive, both read one path: what lies below a class is the lower side of the
nodes where its path takes the upper one. On any other tree, and on small or deep ones, all classes are summed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from catnat.torch import _constants, _paths
from catnat.torch._nodes import Nodes
from catnat.torch.functional import log_probs, walks
from catnat.trees import bins
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree


class Masses(NamedTuple):
    """The probability of lower classes, of the class itself, and of higher ones."""

    below: Tensor
    inside: Tensor
    above: Tensor


def masses(nodes: Nodes, classes: Tensor) -> Masses:
    """Those of ``classes``, batch + (n,)."""
    nodes = nodes.expand(classes.shape[:-1])
    if _walks_in_order(nodes.tree):
        return _masses_on_path(nodes, classes)
    return Masses(*(each.gather(-1, classes) for each in all_masses(nodes)))


def all_masses(nodes: Nodes) -> Masses:
    """Those of every class, batch + (K,)."""
    inside = log_probs(nodes, floored=False).exp()
    exact = inside.double()  # in float32 a sum of very many classes would lose its digits
    below = exclusive(exact.cumsum(-1)).to(inside.dtype)
    above = exclusive(exact.flip(-1).cumsum(-1)).flip(-1).to(inside.dtype)
    return Masses(below, inside, above)


def class_at(nodes: Nodes, mass: Tensor) -> Tensor:
    """The class in which the cumulative probability reaches ``mass``, batch + (n,); one that is possible."""
    nodes = nodes.detach().expand(mass.shape[:-1])
    if _walks_in_order(nodes.tree):
        return _descend_to(nodes, mass.detach())
    probs = log_probs(nodes, floored=False).exp()
    sums = probs.double().cumsum(-1)
    found = torch.searchsorted(sums, (mass.detach() * sums.narrow(-1, -1, 1)).contiguous(), right=True)
    last = nodes.tree.num_classes - 1 - (probs > 0).flip(-1).to(torch.uint8).argmax(-1, keepdim=True)
    return found.minimum(last)


def _walks_in_order(tree: Tree | Forest) -> bool:
    return walks(tree) and bins.yes_is_lower(tree) is not None


def _masses_on_path(nodes: Nodes, classes: Tensor) -> Masses:
    index, bits = _paths.path(classes, nodes.tree)
    if nodes.tree.kind != "balanced":  # found by climbing
        index, bits = index.flip(-1), bits.flip(-1)
    node, on_path, yes_taken = index.clamp(min=0), index >= 0, bits == 1
    no, yes = nodes.at(node).branch_log_probs(floored=False)
    taken = torch.where(on_path, torch.where(yes_taken, yes, no), torch.zeros_like(no))
    reach = taken.cumsum(-1)
    beside = (exclusive(reach) + torch.where(yes_taken, no, yes)).exp() * on_path
    upper_taken = yes_taken != _yes_is_lower(node, nodes.tree)
    below, above = (beside * upper_taken).sum(-1), (beside * ~upper_taken).sum(-1)
    return Masses(below, reach.narrow(-1, -1, 1).squeeze(-1).exp(), above)


def _descend_to(nodes: Nodes, mass: Tensor) -> Tensor:
    walk = _paths.walk_of(nodes)
    at, inside = walk.start(mass.shape, mass.device), torch.ones_like(mass)
    for _ in range(nodes.tree.depth):
        node = walk.node(at)
        no, yes = (inside * branch.exp() for branch in nodes.at(node).branch_log_probs(floored=False))
        swapped = _yes_is_lower(node, nodes.tree)
        lower, upper = torch.where(swapped, yes, no), torch.where(swapped, no, yes)
        ascends = (mass >= lower) & (upper > 0)
        mass, inside = torch.where(ascends, mass - lower, mass), torch.where(ascends, upper, lower)
        at = walk.step(at, ascends != swapped)
    return walk.classes(at)


def _yes_is_lower(node: Tensor, tree: Tree | Forest) -> Tensor:
    """Whether yes leads to the lower classes of each node."""
    table = _order_table(tree, node.device)
    return table if table.ndim == 0 else _constants.look_up(table, node)


@_constants.constant
def _order_table(tree: Tree | Forest, device: torch.device) -> Tensor:
    return torch.as_tensor(np.array(bins.yes_is_lower(tree)), device=device)


def exclusive(sums: Tensor) -> Tensor:
    """Running sums of what stands before each entry, from those that include it."""
    return F.pad(sums.narrow(-1, 0, sums.shape[-1] - 1), (1, 0))
