"""All classes at once, O(K): sums of node values down every path, and of class values up from the leaves.

How a sum runs depends on the tree: a product with 0/1 matrices where K is small, doubling level by level for a balanced
tree, a cumulative sum for a chain, pointer jumping for any other. None stores a K x depth table or loops over a
deep tree.

Here and in the paths tensors are not indexed with brackets: that needs the device itself, and these functions also run
on fake ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from catnat.torch import _constants, _inputs
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree, first_leaf

# Up to here a matrix product beats walking the levels.
MOST_MATMUL_CLASSES = 64
# Beyond this far below the largest, a logarithm over the temperature stands for probability 0 in every dtype.
_FAR_BELOW = 1e9


def path_sums(no: Tensor, yes: Tensor, tree: Tree | Forest, to: str) -> Tensor:
    """Sum ``no`` or ``yes``, by the branch, over the path to every leaf (``to="leaves"``) or node (``to="nodes"``)."""
    if tree.num_nodes == 0:  # no nodes: empty sums, still part of the graph
        return no.sum(-1, keepdim=True).expand(*no.shape[:-1], tree.num_classes) if to == "leaves" else no
    if _small(no, tree):
        on_no, on_yes = _constants.path_matrices(tree, to, no.device, no.dtype)
        return torch.addmm(no @ on_no, yes, on_yes) if no.ndim == 2 else no @ on_no + yes @ on_yes
    if tree.kind == "balanced":
        return _sums_by_level(no, yes, tree, to)
    if tree.kind == "chain":
        return _sums_along_chain(no, yes, to)
    return _sums_by_jumping(no, yes, tree, to)


def leaf_sums(values: Tensor, tree: Tree | Forest) -> tuple[Tensor, Tensor]:
    """Sum the ``values`` of the leaves on the no side, and on the yes side, of every node: the transpose."""
    if tree.num_nodes == 0:
        return values.narrow(-1, 0, 0), values.narrow(-1, 0, 0)
    if _small(values, tree):
        on_no, on_yes = _constants.path_matrices(tree, "leaves", values.device, values.dtype)
        return values @ on_no.T, values @ on_yes.T
    if tree.kind == "balanced":
        return _leaf_sums_by_level(values, tree)
    if tree.kind == "chain":
        later = values.flip(-1).cumsum(-1).flip(-1)
        return later.narrow(-1, 1, tree.num_nodes), values.narrow(-1, 0, tree.num_nodes)
    return _leaf_sums_by_jumping(values, tree)


def log_masses(logs: Tensor, tree: Tree) -> tuple[Tensor, Tensor]:
    """The logarithm of the sum of ``exp(logs)`` over the leaves on the no, and on the yes side of every node.

    A value of -inf is a leaf without mass, and a side without mass has -inf. All derivatives are finite.
    """
    if tree.num_nodes == 0:
        return logs.narrow(-1, 0, 0), logs.narrow(-1, 0, 0)
    limit = torch.finfo(logs.dtype).max / 4
    logs = logs.clamp(-limit, limit)  # the derivatives of an infinite sum would be NaN
    if tree.kind == "balanced":
        no, yes = _leaf_sums_by_level(logs, tree, log_add)
    elif tree.kind == "chain":
        no, yes = _log_tails(logs).narrow(-1, 1, tree.num_nodes), logs.narrow(-1, 0, tree.num_nodes)
    else:
        no, yes = _log_masses_by_jumping(logs, tree)
    no, yes = (side.masked_fill(side < -limit / 2, -math.inf) for side in (no, yes))
    return no, yes


def log_add(first: Tensor, second: Tensor) -> Tensor:
    """``logaddexp``, whose own second derivative is NaN where the two are far apart."""
    ordered = first >= second
    larger, smaller = torch.where(ordered, first, second), torch.where(ordered, second, first)
    return larger + F.softplus(smaller - larger)


def chosen_leaf(branches: Tensor, tree: Tree) -> Tensor:
    """The class whose whole path agrees with ``branches``, 1 for yes and 0 for no at every node."""
    if _small(branches, tree):
        weights, bias = _constants.agreement(tree, branches.device, branches.dtype)
        return (branches @ weights + bias).argmax(-1)
    return path_sums(-branches, branches - 1, tree, to="leaves").argmax(-1)


def apply_temperature(logs: Tensor, temperature: float | Tensor) -> Tensor:
    """What softmax makes p^(1/T) of: ``logs / temperature``, from the largest down.

    Nothing overflows in either pass, however small or large the temperature is.
    """
    tau = torch.as_tensor(temperature, dtype=logs.dtype, device=logs.device)
    tau = tau.clamp(min=torch.finfo(logs.dtype).tiny ** 0.5)  # its inverse is finite
    below = logs - logs.amax(-1, keepdim=True).detach()
    return torch.maximum(below, -_FAR_BELOW * tau.detach()) / tau


def _small(values: Tensor, tree: Tree | Forest) -> bool:
    """Whether a matrix product may do it: small enough, and exact (no TF32, bfloat16 or autocast behind our back)."""
    if tree.num_classes > MOST_MATMUL_CLASSES or torch.compiler.is_compiling():
        return False
    return (values.dtype == torch.float64 or _full_precision()) and not _inputs.autocasts(values.device)


def _full_precision() -> bool:
    """Whether float32 products are computed in float32."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # torch's answer where `torch.backends` allows less on one kind of device
        return False


# ---- balanced ----


def _sums_by_level(no: Tensor, yes: Tensor, tree: Tree, to: str) -> Tensor:
    """Down the levels: a level's sums, each plus its no and its yes, alternate to make the next level's."""
    last = tree.num_classes - first_leaf(tree) // 2  # nodes on the last level; its other places are leaves already
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
    """Up the levels: pairs of neighbours are the two sides of the nodes above."""
    deepest = 2 * tree.num_classes - first_leaf(tree)
    pairs, shallower = values.tensor_split([deepest], -1)
    levels = []
    while pairs.shape[-1] > 1:
        no, yes = pairs.unflatten(-1, (-1, 2)).unbind(-1)
        levels.append((no, yes))
        pairs = add(no, yes)
        if shallower.shape[-1] > 0:
            pairs, shallower = torch.cat([pairs, shallower], -1), shallower.narrow(-1, 0, 0)
    no_side, yes_side = zip(*reversed(levels), strict=True)
    return torch.cat(no_side, -1), torch.cat(yes_side, -1)


def _alternate(even: Tensor, odd: Tensor) -> Tensor:
    if torch.compiler.is_compiling():
        return torch.stack([even, odd], -1).flatten(-2)
    # A complex number is a pair side by side in memory: a third of the time of stack.
    return torch.view_as_real(torch.complex(even, odd)).flatten(-2)


# ---- chain ----


def _sums_along_chain(no: Tensor, yes: Tensor, to: str) -> Tensor:
    totals = no.cumsum(-1)
    inner, last = totals.tensor_split([-1], -1)
    before = torch.cat([torch.zeros_like(last), inner], -1)
    return before if to == "nodes" else torch.cat([before + yes, last], -1)


def _log_tails(logs: Tensor) -> Tensor:
    """The log-sum of every entry and all after it, by doubling: the gradient of ``logcumsumexp`` loses its digits."""
    size, reach = logs.shape[-1], 1
    while reach < size:
        inner, last = logs.tensor_split([size - reach], -1)
        logs = torch.cat([log_add(inner, logs.narrow(-1, reach, size - reach)), last], -1)
        reach *= 2
    return logs


# ---- any other tree ----


def _sums_by_jumping(no: Tensor, yes: Tensor, tree: Tree | Forest, to: str) -> Tensor:
    """Every id adds its ancestor's sum, then looks twice as far up: log2(depth) rounds over all 2K - 1 ids."""
    edges = torch.cat([no, yes, torch.zeros_like(no.narrow(-1, 0, 1))], -1)
    sums = edges.index_select(-1, _constants.index_table(tree, "edge", no.device))
    for ancestors in _jumps(tree, no.device):
        sums = sums.add_(sums.index_select(-1, ancestors))
    nodes, leaves = sums.tensor_split([tree.num_nodes], -1)
    return leaves if to == "leaves" else nodes


def _leaf_sums_by_jumping(values: Tensor, tree: Tree | Forest) -> tuple[Tensor, Tensor]:
    """Every id adds itself to its ancestor 1, 2, 4, ... levels up, which then knows that many levels below it."""
    inner = values.new_zeros((*values.shape[:-1], tree.num_nodes))
    sums = torch.cat([inner, values, torch.zeros_like(values.narrow(-1, 0, 1))], -1)
    # Ids without such an ancestor add themselves to the last place, where nobody looks.
    ancestors = _constants.index_table(tree, "ancestors", values.device)
    for _ in range(tree.depth.bit_length()):
        sums = sums.index_add(-1, ancestors, sums)
        ancestors = _constants.look_up(ancestors, ancestors)
    return _at_children(sums, tree)


def _log_masses_by_jumping(logs: Tensor, tree: Tree) -> tuple[Tensor, Tensor]:
    """As :func:`_leaf_sums_by_jumping`; every sum is taken relative to its largest term."""
    nothing = logs.new_full((*logs.shape[:-1], tree.num_nodes), -torch.finfo(logs.dtype).max / 4)
    sums = torch.cat([nothing, logs, nothing.narrow(-1, 0, 1)], -1)
    ancestors = _constants.index_table(tree, "ancestors", logs.device)
    for _ in range(tree.depth.bit_length()):
        top = sums.detach().scatter_reduce(-1, ancestors.expand_as(sums), sums.detach(), "amax")
        terms = (sums - top.index_select(-1, ancestors)).exp()
        sums = (sums - top).exp().index_add(-1, ancestors, terms).log() + top
        ancestors = _constants.look_up(ancestors, ancestors)
    return _at_children(sums, tree)


def _at_children(sums: Tensor, tree: Tree | Forest) -> tuple[Tensor, Tensor]:
    """Values of all ids, at the no and at the yes child of every node."""
    children = _constants.index_table(tree, "children", sums.device).narrow(0, 0, tree.num_nodes)
    no, yes = (sums.index_select(-1, side) for side in children.unbind(-1))
    return no, yes


def _jumps(tree: Tree | Forest, device: torch.device) -> list[Tensor]:
    """Every id's ancestor 1, 2, 4, ... levels up, the root's being itself."""
    jumps = [_constants.index_table(tree, "parents", device)]
    while 1 << len(jumps) < tree.depth + 1:
        jumps.append(_constants.look_up(jumps[-1], jumps[-1]))
    return jumps
