"""Cumulative probabilities of ordered classes, and the class at a given cumulative probability.

If the classes below every node are consecutive, both read one path: the classes below a class are the lower sides of
the nodes where its path takes the upper side. On other trees, and on small or deep trees, all classes are summed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from catnat.torch import _fused, _walk
from catnat.torch._constants import constant
from catnat.torch._plan import Plan, look_up
from catnat.trees import bins
from catnat.trees.tree import Tree


class Masses(NamedTuple):
    """The probabilities of all lower classes, of the class itself, and of all higher classes."""

    below: Tensor
    inside: Tensor
    above: Tensor


def masses(plan: Plan, scores: Tensor, classes: Tensor) -> Masses:
    """Return the masses of ``classes``, batch + (n,)."""
    scores = scores.expand(*classes.shape[:-1], -1)
    if _walks_in_order(plan):
        return _masses_on_path(plan, scores, classes)
    return Masses(*(each.gather(-1, classes) for each in all_masses(plan, scores)))


def all_masses(plan: Plan, scores: Tensor) -> Masses:
    """Return the masses of every class, batch + (K,)."""
    inside = _fused.log_probs(plan, scores, floored=False).exp()
    exact = inside.double()  # in float32 a sum over very many classes would lose precision
    below = exclusive(exact.cumsum(-1)).to(inside.dtype)
    above = exclusive(exact.flip(-1).cumsum(-1)).flip(-1).to(inside.dtype)
    return Masses(below, inside, above)


def class_at(plan: Plan, scores: Tensor, mass: Tensor) -> Tensor:
    """Return the class at which the cumulative probability exceeds ``mass``, batch + (n,); never an impossible one."""
    scores = scores.detach().expand(*mass.shape[:-1], -1)
    if _walks_in_order(plan):
        return _descend_to(plan, scores, mass.detach())
    probs = _fused.log_probs(plan, scores, floored=False).exp()
    sums = probs.double().cumsum(-1)
    found = torch.searchsorted(sums, (mass.detach() * sums.narrow(-1, -1, 1)).contiguous(), right=True)
    last = plan.tree.num_classes - 1 - (probs > 0).flip(-1).to(torch.uint8).argmax(-1, keepdim=True)
    return found.minimum(last)


def _walks_in_order(plan: Plan) -> bool:
    return plan.walks and bins.yes_is_lower(plan.tree) is not None


def _masses_on_path(plan: Plan, scores: Tensor, classes: Tensor) -> Masses:
    index, bits = _walk.path(plan, classes)
    node, on_path, yes_taken = index.clamp(min=0), index >= 0, bits == 1
    no, yes = plan.branches.at(node).log_probs(_walk.ScoreReader(scores).at(node), floored=False)
    taken = torch.where(on_path, torch.where(yes_taken, yes, no), torch.zeros_like(no))
    reach = taken.cumsum(-1)
    beside = (exclusive(reach) + torch.where(yes_taken, no, yes)).exp() * on_path
    upper_taken = yes_taken != _yes_is_lower(node, plan.tree)
    below, above = (beside * upper_taken).sum(-1), (beside * ~upper_taken).sum(-1)
    return Masses(below, reach.narrow(-1, -1, 1).squeeze(-1).exp(), above)


def _descend_to(plan: Plan, scores: Tensor, mass: Tensor) -> Tensor:
    walk, reader = _walk.Walk(plan), _walk.ScoreReader(scores)
    at, inside = torch.zeros(mass.shape, dtype=torch.int64, device=mass.device), torch.ones_like(mass)
    for _ in range(plan.tree.depth):
        node = walk.node(at)
        branches = plan.branches.at(node).log_probs(reader.at(node), floored=False)
        no, yes = (inside * branch.exp() for branch in branches)
        swapped = _yes_is_lower(node, plan.tree)
        lower, upper = torch.where(swapped, yes, no), torch.where(swapped, no, yes)
        ascends = (mass >= lower) & (upper > 0)
        mass, inside = torch.where(ascends, mass - lower, mass), torch.where(ascends, upper, lower)
        at = walk.step(at, ascends != swapped)
    return walk.classes(at)


def _yes_is_lower(node: Tensor, tree: Tree) -> Tensor:
    """Return whether yes leads to the lower classes of each node."""
    table = _order_table(tree, node.device)
    return table if table.ndim == 0 else look_up(table, node)


@constant
def _order_table(tree: Tree, device: torch.device) -> Tensor:
    return torch.as_tensor(np.array(bins.yes_is_lower(tree)), device=device)


def exclusive(sums: Tensor) -> Tensor:
    """Convert inclusive running sums on the last axis to exclusive ones."""
    return F.pad(sums.narrow(-1, 0, sums.shape[-1] - 1), (1, 0))
