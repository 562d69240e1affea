"""All classes at once, O(K): sums of node values down every path, and their transpose.

How a sum runs depends on the tree: a product with 0/1 matrices where K is small, doubling level by level for a balanced
tree, a cumulative sum for a chain, pointer jumping for any other. None stores a K x depth table or loops over a
deep tree.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from catnat._tree import Tree
from catnat.torch import _plan
from catnat.torch._autograd import apply

# Up to this many numbers the overhead of an operation outweighs its work.
FEW = 1 << 14
# Up to here a matrix product beats walking the levels.
MOST_MATMUL_CLASSES = 64


def leaf_log_probs(logits: Tensor, tree: Tree) -> Tensor:
    """The log-probability of every class, finite, from the log-odds of yes at every node."""
    if torch.compiler.is_compiling():  # which fuses plain operations by itself
        return path_sums(*log_answers(logits), tree, to="leaves").clamp(min=torch.finfo(logits.dtype).min)
    return apply(_LeafLogProbs, logits, tree)


def node_log_probs(logits: Tensor, tree: Tree) -> Tensor:
    """The log-probability of reaching every inner node."""
    return path_sums(*log_answers(logits), tree, to="nodes")


def log_answers(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The log-probabilities of no and of yes at every node, each to full relative precision."""
    return torch.nn.functional.logsigmoid(-logits), torch.nn.functional.logsigmoid(logits)


def _log_answers_in_place(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The same at half the cost for large inputs, by sharing m = log(1 + exp(-|logit|)) between the two."""
    shared = logits.abs().neg_().exp_().log1p_()
    return logits.clamp(min=0).add_(shared).neg_(), logits.clamp(max=0).sub_(shared)


def path_sums(no: Tensor, yes: Tensor, tree: Tree, to: str, in_place: bool = False) -> Tensor:
    """Sum ``no`` or ``yes``, as answered, over the path to every leaf (``to="leaves"``) or inner node (``to="nodes"``).

    ``in_place`` is faster, where neither autograd nor a transform nor the compiler watches.
    """
    if tree.num_nodes == 0:
        return no.new_zeros((*no.shape[:-1], 1 if to == "leaves" else 0))
    if _small(no, tree):
        on_no, on_yes, _ = _plan.path_matrices(tree, to, no.device, no.dtype)
        return (no @ on_no).add_(yes @ on_yes) if in_place else no @ on_no + yes @ on_yes
    if tree.shape == "balanced":
        return _sums_by_level(no, yes, tree, to, in_place)
    if tree.shape == "chain":
        return _sums_along_chain(no, yes, to)
    return _sums_by_jumping(no, yes, tree, to)


def chosen_leaf(answers: Tensor, tree: Tree) -> Tensor:
    """The class whose whole path agrees with ``answers``, 1 for yes and 0 for no at every node."""
    if _small(answers, tree):
        weights, bias = _plan.agreement(tree, answers.device, answers.dtype)
        return (answers @ weights + bias).argmax(-1)
    return path_sums(-answers, answers - 1, tree, to="leaves").argmax(-1)


def subtree_sums(values: Tensor, tree: Tree) -> tuple[Tensor, Tensor]:
    """Per inner node, the sum of a leaf quantity over the leaves below its yes side, and over all below it."""
    if tree.num_nodes == 0:
        return values[..., :0], values[..., :0]
    if _small(values, tree):
        _, on_yes, on_path = _plan.path_matrices(tree, "leaves", values.device, values.dtype)
        return values @ on_yes.mT, values @ on_path.mT
    if tree.shape == "balanced":
        return _subtree_sums_by_level(values, tree)
    if tree.shape == "chain":
        return values[..., :-1], values.flip(-1).cumsum(-1).flip(-1)[..., :-1]
    return _subtree_sums_by_jumping(values, tree)


def _small(values: Tensor, tree: Tree) -> bool:
    """Whether a matrix product may do it: small enough, and exact (no TF32, bfloat16 or autocast behind our back)."""
    if tree.num_classes > MOST_MATMUL_CLASSES or torch.compiler.is_compiling():
        return False
    exact = values.dtype == torch.float64 or torch.get_float32_matmul_precision() == "highest"
    return exact and not torch.is_autocast_enabled(values.device.type)


# ---- balanced ----


def _last_level(tree: Tree) -> int:
    """The number of nodes on the deepest level of nodes: the leaves of the others there are already classes."""
    return tree.num_classes - tree.leaf_level // 2


def _sums_by_level(no: Tensor, yes: Tensor, tree: Tree, to: str, in_place: bool) -> Tensor:
    interleave = _interleave_in_place if in_place else _interleave
    levels = [torch.zeros_like(no[..., :1])]
    for level in range(tree.depth - 1):
        nodes = slice((1 << level) - 1, (2 << level) - 1)
        levels.append(interleave(levels[-1], no[..., nodes], yes[..., nodes]))
    top, size = levels[-1], _last_level(tree)
    if to == "nodes":
        return torch.cat([*levels[:-1], top[..., :size]], -1)
    nodes = slice(tree.num_nodes - size, tree.num_nodes)
    deep = interleave(top[..., :size], no[..., nodes], yes[..., nodes])
    return deep if tree.num_classes == tree.leaf_level else torch.cat([deep, top[..., size:]], -1)


def _interleave(parents: Tensor, no: Tensor, yes: Tensor) -> Tensor:
    """The children of a level: parents + no and parents + yes, alternating."""
    return torch.stack([parents + no, parents + yes], -1).flatten(-2)


def _interleave_in_place(parents: Tensor, no: Tensor, yes: Tensor) -> Tensor:
    children = no.new_empty((*no.shape, 2))
    torch.add(parents, no, out=children[..., 0])
    torch.add(parents, yes, out=children[..., 1])
    return children.flatten(-2)


def _subtree_sums_by_level(values: Tensor, tree: Tree) -> tuple[Tensor, Tensor]:
    yes_sums, sums = [], []
    size = _last_level(tree)
    pairs, rest = values[..., : 2 * size].unflatten(-1, (size, 2)), values[..., 2 * size :]
    while True:
        yes_sums.append(pairs[..., 1])
        sums.append(pairs[..., 0] + pairs[..., 1])
        if len(sums) == tree.depth:
            return torch.cat(yes_sums[::-1], -1), torch.cat(sums[::-1], -1)
        level = sums[-1] if len(sums) > 1 or rest.shape[-1] == 0 else torch.cat([sums[-1], rest], -1)
        pairs = level.unflatten(-1, (-1, 2))


# ---- chain ----


def _sums_along_chain(no: Tensor, yes: Tensor, to: str) -> Tensor:
    totals = no.cumsum(-1)
    before = torch.cat([torch.zeros_like(no[..., :1]), totals[..., :-1]], -1)
    return before if to == "nodes" else torch.cat([before + yes, totals[..., -1:]], -1)


# ---- any other tree ----


def _sums_by_jumping(no: Tensor, yes: Tensor, tree: Tree, to: str) -> Tensor:
    """Every id adds its ancestor's sum, then looks twice as far up: log2(depth) rounds over all 2K - 1 ids."""
    edges = torch.cat([no, yes, torch.zeros_like(no[..., :1])], -1)
    sums = edges.index_select(-1, _plan.index_table(tree, "edge", no.device))
    for ancestors in _jumps(tree, no.device):
        sums = sums + sums.index_select(-1, ancestors)
    return sums[..., tree.num_nodes :] if to == "leaves" else sums[..., : tree.num_nodes]


def _subtree_sums_by_jumping(values: Tensor, tree: Tree) -> tuple[Tensor, Tensor]:
    """The transpose: every id hands its sum to its ancestor, the farthest first."""
    sums = torch.cat([torch.zeros_like(values[..., :-1]), values], -1)
    for ancestors in reversed(_jumps(tree, values.device)):
        # The root is its own ancestor at every distance, and would count its sum again.
        received = torch.zeros_like(sums).index_add(-1, ancestors[1:], sums[..., 1:])
        sums = sums + received
    children = _plan.index_table(tree, "children", values.device)[: tree.num_nodes]
    yes = sums.index_select(-1, children[:, 1])
    return yes, yes + sums.index_select(-1, children[:, 0])


def _jumps(tree: Tree, device: torch.device) -> list[Tensor]:
    """Every id's ancestor 1, 2, 4, ... levels up, the root's being itself."""
    jumps = [_plan.index_table(tree, "parents", device)]
    while 1 << len(jumps) < tree.depth + 1:
        jumps.append(jumps[-1][jumps[-1]])
    return jumps


class _LeafLogProbs(torch.autograd.Function):
    """Leaf log-probabilities. The gradient is Y - a T: T sums it below a node, Y below its yes side."""

    @staticmethod
    def forward(logits: Tensor, tree: Tree) -> Tensor:
        no, yes = log_answers(logits) if logits.numel() <= FEW else _log_answers_in_place(logits)
        sums = path_sums(no, yes, tree, to="leaves", in_place=True)
        return sums.clamp_(min=torch.finfo(logits.dtype).min)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        logits, ctx.tree = inputs
        ctx.save_for_backward(logits)
        ctx.save_for_forward(logits)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (logits,) = ctx.saved_tensors
        yes_sums, sums = subtree_sums(grad, ctx.tree)
        return torch.addcmul(yes_sums, torch.sigmoid(logits), sums, value=-1), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], logits: Tensor, tree: Tree) -> tuple[Tensor, int]:
        return leaf_log_probs(logits.movedim(in_dims[0], 0), tree), 0

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        (logits,) = ctx.saved_tensors
        return path_sums(-torch.sigmoid(logits) * tangent, torch.sigmoid(-logits) * tangent, ctx.tree, to="leaves")
