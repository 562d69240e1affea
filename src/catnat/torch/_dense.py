"""Operations on all classes, O(K): sums of node values down every path, and of class values up from the leaves.

The method depends on the tree: products with 0/1 matrices for small K, level by level for a balanced tree, and pointer
jumping for any other tree. None stores a K x depth table or loops over a deep tree. Tensors are not indexed with
brackets, which needs a real device, because these functions also run on fake tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from catnat.torch._inputs import transforms_active
from catnat.torch._plan import Plan
from catnat.trees.tree import Tree, first_leaf


def log_probs(plan: Plan, scores: Tensor, *, floored: bool) -> Tensor:
    r"""Return the log-probability of every class, (..., K), by the definition.

    .. math:: \log p_k = \sum_{i \in \mathrm{path}(k)} b_i \log a(s_i) + (1 - b_i) \log (1 - a(s_i))
    """
    if plan.log_odds is not None and _products_are_exact(scores):
        return F.logsigmoid(plan.log_odds(scores, floored)) @ plan.both_to_leaves
    return path_sums(plan, *plan.branches.log_probs(scores, floored=floored), to="leaves")


def path_sums(plan: Plan, no: Tensor, yes: Tensor, to: str) -> Tensor:
    """Sum ``no`` or ``yes``, by the branch taken, along the path to every leaf (``to="leaves"``) or node ("nodes")."""
    if plan.small and _products_are_exact(no):
        on_no, on_yes = plan.to_leaves if to == "leaves" else plan.to_nodes
        return torch.addmm(no @ on_no, yes, on_yes) if no.ndim == 2 else no @ on_no + yes @ on_yes
    tree = plan.tree
    if tree.num_nodes == 0:  # no nodes: empty sums, still part of the graph
        return no.sum(-1, keepdim=True) if to == "leaves" else no
    if tree.kind == "balanced":
        return _sums_by_level(no, yes, tree, to)
    return _sums_by_jumping(plan, no, yes, to)


def leaf_sums(plan: Plan, values: Tensor) -> tuple[Tensor, Tensor]:
    """Sum ``values`` over the leaves on each side of every node, the transpose of :func:`path_sums` to leaves."""
    if plan.tree.num_nodes == 0:
        return values.narrow(-1, 0, 0), values.narrow(-1, 0, 0)
    if plan.small and _products_are_exact(values):
        no_below, yes_below = plan.from_leaves
        return values @ no_below, values @ yes_below
    if plan.tree.kind == "balanced":
        return _leaf_sums_by_level(values, plan.tree)
    return _leaf_sums_by_jumping(plan, values)


def log_masses(plan: Plan, logs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp of ``logs`` over the leaves on the no side, and on the yes side, of every node.

    A leaf with -inf has no mass, and a side without mass gets -inf. All derivatives are finite.
    """
    if plan.tree.num_nodes == 0:
        return logs.narrow(-1, 0, 0), logs.narrow(-1, 0, 0)
    limit = torch.finfo(logs.dtype).max / 4
    logs = logs.clamp(-limit, limit)  # the derivatives of an infinite sum would be NaN
    if plan.tree.kind == "balanced":
        no, yes = _leaf_sums_by_level(logs, plan.tree, log_add)
    else:
        no, yes = _log_masses_by_jumping(plan, logs)
    no, yes = (side.masked_fill(side < -limit / 2, -math.inf) for side in (no, yes))
    return no, yes


def log_add(first: Tensor, second: Tensor) -> Tensor:
    """Compute ``logaddexp`` with finite second derivatives; those of torch are NaN for arguments far apart."""
    ordered = first >= second
    larger, smaller = torch.where(ordered, first, second), torch.where(ordered, second, first)
    return larger + F.softplus(smaller - larger)


def chosen_leaf(plan: Plan, branches: Tensor) -> Tensor:
    """Return the class whose path takes the ``branches``, given as 1 for yes and 0 for no at every node."""
    return path_sums(plan, -branches, branches - 1, to="leaves").argmax(-1)


def _products_are_exact(values: Tensor) -> bool:
    """Return whether matrix products are computed in the dtype of ``values``, without TF32, bfloat16 or autocast."""
    if torch.compiler.is_compiling():
        return False
    try:
        exact = values.dtype == torch.float64 or torch.get_float32_matmul_precision() == "highest"
        return exact and not torch.is_autocast_enabled(values.device.type)
    except RuntimeError:  # a device without autocast, or with its own precision setting in `torch.backends`
        return False


# ---- balanced ----


def _sums_by_level(no: Tensor, yes: Tensor, tree: Tree, to: str) -> Tensor:
    """Sum down the levels: each node's sum plus its no and its yes value gives the sums of its two children."""
    last = tree.num_classes - first_leaf(tree) // 2  # nodes on the last level; its other places are leaves
    sizes = [1 << level for level in range(tree.depth - 1)] + [last]
    branches = list(zip(no.split(sizes, -1), yes.split(sizes, -1), strict=True))
    levels = [torch.zeros_like(no.narrow(-1, 0, 1))]
    for no_level, yes_level in branches[:-1]:
        levels.append(_alternate(levels[-1] + no_level, levels[-1] + yes_level))
    nodes, leaves = levels.pop().tensor_split([last], -1)
    if to == "nodes":
        return torch.cat([*levels, nodes], -1)
    no_level, yes_level = branches[-1]
    deep = _alternate(nodes + no_level, nodes + yes_level)
    return deep if leaves.shape[-1] == 0 else torch.cat([deep, leaves], -1)


def _leaf_sums_by_level(
    values: Tensor, tree: Tree, add: Callable[[Tensor, Tensor], Tensor] = torch.add
) -> tuple[Tensor, Tensor]:
    """Sum up the levels: pairs of neighbours are the two sides of a node in the level above."""
    deepest = 2 * tree.num_classes - first_leaf(tree)
    pairs, shallower = values.tensor_split([deepest], -1)
    levels = []
    while pairs.shape[-1] > 1:
        # Older transforms have no rule for unflatten.
        no, yes = pairs.reshape(*pairs.shape[:-1], pairs.shape[-1] // 2, 2).unbind(-1)
        levels.append((no, yes))
        pairs = add(no, yes)
        if shallower.shape[-1] > 0:
            pairs, shallower = torch.cat([pairs, shallower], -1), shallower.narrow(-1, 0, 0)
    no_side, yes_side = zip(*reversed(levels), strict=True)
    return torch.cat(no_side, -1), torch.cat(yes_side, -1)


def _alternate(even: Tensor, odd: Tensor) -> Tensor:
    if torch.compiler.is_compiling() or even.requires_grad:  # gradients of complex views need particular strides
        return torch.stack([even, odd], -1).flatten(-2)
    # Real and imaginary parts alternate in memory; this takes a third of the time of stack.
    return torch.view_as_real(torch.complex(even, odd)).flatten(-2)


# ---- any other tree ----


def _sums_by_jumping(plan: Plan, no: Tensor, yes: Tensor, to: str) -> Tensor:
    """Sum along paths in log2(depth) rounds: every id adds the sum of its ancestor, at doubling distances."""
    tables, num_nodes = plan.tables(), plan.tree.num_nodes
    edges = torch.cat([no, yes, torch.zeros_like(no.narrow(-1, 0, 1))], -1)
    sums = edges.index_select(-1, tables.edges)
    # In place takes two thirds of the time, but `grad` of `vmap` does not allow it.
    add = torch.add if torch.compiler.is_compiling() or transforms_active() else Tensor.add_
    for ancestors in tables.ancestors:
        sums = add(sums, sums.index_select(-1, ancestors))
    return sums.narrow(-1, num_nodes, plan.tree.num_classes) if to == "leaves" else sums.narrow(-1, 0, num_nodes)


def _leaf_sums_by_jumping(plan: Plan, values: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over leaves in log2(depth) rounds: every id adds its sum to its ancestor 1, 2, 4, ... levels up."""
    inner = values.new_zeros((*values.shape[:-1], plan.tree.num_nodes))
    sums = torch.cat([inner, values, torch.zeros_like(values.narrow(-1, 0, 1))], -1)
    # Ids without such an ancestor add their sum to the last entry, which is not read.
    for ancestors in plan.tables().ancestors:
        sums = sums.index_add(-1, ancestors, sums)
    return _at_children(plan, sums)


def _log_masses_by_jumping(plan: Plan, logs: Tensor) -> tuple[Tensor, Tensor]:
    """Compute log-sum-exps as :func:`_leaf_sums_by_jumping` computes sums, relative to the largest term."""
    nothing = logs.new_full((*logs.shape[:-1], plan.tree.num_nodes), -torch.finfo(logs.dtype).max / 4)
    sums = torch.cat([nothing, logs, nothing.narrow(-1, 0, 1)], -1)
    for ancestors in plan.tables().ancestors:
        top = sums.detach().scatter_reduce(-1, ancestors.expand_as(sums), sums.detach(), "amax")
        terms = (sums - top.index_select(-1, ancestors)).exp()
        sums = (sums - top).exp().index_add(-1, ancestors, terms).log() + top
    return _at_children(plan, sums)


def _at_children(plan: Plan, sums: Tensor) -> tuple[Tensor, Tensor]:
    """Return the entries of ``sums``, one per id, at the no child and at the yes child of every node."""
    children = plan.tables().children.narrow(0, 0, 2 * plan.tree.num_nodes).view(-1, 2)
    no, yes = (sums.index_select(-1, side) for side in children.unbind(-1))
    return no, yes
