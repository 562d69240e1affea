"""All classes at once, O(K): sums of node values down every path.

How a sum runs depends on the tree: a product with 0/1 matrices where K is small, doubling level by level for a balanced
tree, a cumulative sum for a chain, pointer jumping for any other. None stores a K x depth table or loops over a
deep tree.

Here and in the paths tensors are not indexed with brackets: that needs the device itself, and these functions also run
on fake ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from catnat._tree import Tree
from catnat.torch import _plan

# Up to here a matrix product beats walking the levels.
MOST_MATMUL_CLASSES = 64


def path_sums(no: Tensor, yes: Tensor, tree: Tree, to: str) -> Tensor:
    """Sum ``no`` or ``yes``, as answered, over the path to every leaf (``to="leaves"``) or node (``to="nodes"``)."""
    if tree.num_nodes == 0:  # one class: an empty sum, still part of the graph
        return no.sum(-1, keepdim=True) if to == "leaves" else no
    if _small(no, tree):
        on_no, on_yes = _plan.path_matrices(tree, to, no.device, no.dtype)
        return torch.addmm(no @ on_no, yes, on_yes) if no.ndim == 2 else no @ on_no + yes @ on_yes
    if tree.shape == "balanced":
        return _sums_by_level(no, yes, tree, to)
    if tree.shape == "chain":
        return _sums_along_chain(no, yes, to)
    return _sums_by_jumping(no, yes, tree, to)


def chosen_leaf(answers: Tensor, tree: Tree) -> Tensor:
    """The class whose whole path agrees with ``answers``, 1 for yes and 0 for no at every node."""
    if _small(answers, tree):
        weights, bias = _plan.agreement(tree, answers.device, answers.dtype)
        return (answers @ weights + bias).argmax(-1)
    return path_sums(-answers, answers - 1, tree, to="leaves").argmax(-1)


def _small(values: Tensor, tree: Tree) -> bool:
    """Whether a matrix product may do it: small enough, and exact (no TF32, bfloat16 or autocast behind our back)."""
    if tree.num_classes > MOST_MATMUL_CLASSES or torch.compiler.is_compiling():
        return False
    exact = values.dtype == torch.float64 or torch.get_float32_matmul_precision() == "highest"
    return exact and not _plan.autocasts(values.device)


# ---- balanced ----


def _sums_by_level(no: Tensor, yes: Tensor, tree: Tree, to: str) -> Tensor:
    """Down the levels: a level's sums, each plus its no and its yes, alternate to make the next level's."""
    last = tree.num_classes - tree.leaf_level // 2  # nodes on the last level; its other places are leaves already
    sizes = [1 << level for level in range(tree.depth - 1)] + [last]
    answers = list(zip(no.split(sizes, -1), yes.split(sizes, -1), strict=True))
    levels = [torch.zeros_like(no.narrow(-1, 0, 1))]
    for no_level, yes_level in answers[:-1]:
        levels.append(_alternate(levels[-1] + no_level, levels[-1] + yes_level))
    nodes, leaves = levels.pop().tensor_split([last], -1)
    if to == "nodes":
        return torch.cat([*levels, nodes], -1)
    no_level, yes_level = answers[-1]
    deep = _alternate(nodes + no_level, nodes + yes_level)
    return deep if leaves.shape[-1] == 0 else torch.cat([deep, leaves], -1)


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


# ---- any other tree ----


def _sums_by_jumping(no: Tensor, yes: Tensor, tree: Tree, to: str) -> Tensor:
    """Every id adds its ancestor's sum, then looks twice as far up: log2(depth) rounds over all 2K - 1 ids."""
    edges = torch.cat([no, yes, torch.zeros_like(no.narrow(-1, 0, 1))], -1)
    sums = edges.index_select(-1, _plan.index_table(tree, "edge", no.device))
    for ancestors in _jumps(tree, no.device):
        sums = sums + sums.index_select(-1, ancestors)
    nodes, leaves = sums.tensor_split([tree.num_nodes], -1)
    return leaves if to == "leaves" else nodes


def _jumps(tree: Tree, device: torch.device) -> list[Tensor]:
    """Every id's ancestor 1, 2, 4, ... levels up, the root's being itself."""
    jumps = [_plan.index_table(tree, "parents", device)]
    while 1 << len(jumps) < tree.depth + 1:
        jumps.append(_plan.look_up(jumps[-1], jumps[-1]))
    return jumps
