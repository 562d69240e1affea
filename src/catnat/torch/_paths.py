"""One path at a time, O(depth): the questions on the way to a class, and descents from the root.

Balanced trees are walked by heap arithmetic, other trees by tables of parents or children.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from catnat._tree import Tree
from catnat.torch import _plan
from catnat.torch._activations import Activation, Tables

# Deeper trees (a chain, say) are handled densely: a walk would be a Python loop as long as the tree is deep.
MOST_WALKED_LEVELS = 64


def path_log_prob(scores: Tensor, classes: Tensor, tree: Tree, activation: Activation) -> Tensor:
    """The log-probability of ``classes`` (batch + (n,)) under ``scores`` (batch + (K-1,)), reading their paths only."""
    nodes, bits = _path(classes, tree)
    on_path = nodes >= 0
    no, yes = activation._log_answers(*_at(nodes.clamp(min=0), scores, tree, activation), floored=True)
    return torch.where(on_path, torch.where(bits == 1, yes, no), torch.zeros_like(no)).sum(-1)


def _path(classes: Tensor, tree: Tree) -> tuple[Tensor, Tensor]:
    """The nodes on the path to each class and the bits answered there, on a new last axis; -1 for no node."""
    if tree.shape == "balanced":
        heap = _heap_of_class(classes, tree)
        ladder = torch.div(heap.unsqueeze(-1), _powers_of_two(tree.depth, classes.device), rounding_mode="floor")
        above, below = ladder.narrow(-1, 0, tree.depth), ladder.narrow(-1, 1, tree.depth)
        return above - 1, below - 2 * above
    parents = _plan.index_table(tree, "parents", classes.device)
    ids = [classes + tree.num_nodes]
    for _ in range(tree.depth):
        ids.append(_plan.look_up(parents, ids[-1]))
    below, above = torch.stack(ids[:-1], -1), torch.stack(ids[1:], -1)
    # Walks wait at the root; below it, that is a step without a question.
    return torch.where(below == 0, -1, above), _plan.look_up(_plan.index_table(tree, "bits", classes.device), below)


def _heap_of_class(classes: Tensor, tree: Tree) -> Tensor:
    heap = classes + tree.leaf_level
    return heap - tree.num_classes * (heap >= 2 * tree.num_classes)


def _powers_of_two(depth: int, device: torch.device) -> Tensor:
    return 2 ** torch.arange(depth, -1, -1, device=device)


def _at(nodes: Tensor, scores: Tensor, tree: Tree, activation: Activation) -> tuple[Tensor, Tables]:
    """Scores and activation tables at ``nodes``, whose leading axes are the scores' batch."""
    tables = _plan.node_tables(tree, activation, scores.device, scores.dtype)
    if nodes.ndim == scores.ndim:
        found = scores.gather(-1, nodes)
    else:
        found = scores.gather(-1, nodes.flatten(scores.ndim - 1)).view(nodes.shape)
    return found, tuple(_plan.look_up(t, nodes) if isinstance(t, Tensor) else t for t in tables)  # type: ignore[return-value]


# ---- descents ----


class _HeapWalk:
    """Positions on a balanced tree are heap numbers: the root is 1, the children of i are 2i and 2i + 1."""

    root = 1

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.complete = tree.num_classes == tree.leaf_level

    def node(self, at: Tensor) -> Tensor:
        """The node to ask; at a leaf any will do, since its answer changes nothing."""
        return at - 1 if self.complete else at.clamp(max=self.tree.num_nodes) - 1

    def step(self, at: Tensor, bits: Tensor) -> Tensor:
        """The position below, on the side of the answer; a leaf stays where it is."""
        below = torch.add(bits, at, alpha=2)
        return below if self.complete else torch.where(self.at_leaf(at), at, below)

    def at_leaf(self, at: Tensor) -> Tensor:
        return at >= self.tree.num_classes

    def classes(self, at: Tensor) -> Tensor:
        """The classes of leaves."""
        classes = at - self.tree.leaf_level
        return classes if self.complete else torch.where(classes < 0, classes + self.tree.num_classes, classes)


class _TableWalk:
    """Positions on any other tree are ids: nodes, then leaves."""

    root = 0

    def __init__(self, tree: Tree, device: torch.device) -> None:
        self.tree = tree
        self.children = _plan.index_table(tree, "children", device).flatten()

    def node(self, at: Tensor) -> Tensor:
        return at.clamp(max=self.tree.num_nodes - 1)

    def step(self, at: Tensor, bits: Tensor) -> Tensor:
        return _plan.look_up(self.children, torch.add(bits, at, alpha=2))

    def at_leaf(self, at: Tensor) -> Tensor:
        return at >= self.tree.num_nodes

    def classes(self, at: Tensor) -> Tensor:
        return at - self.tree.num_nodes


def _walk(tree: Tree, device: torch.device) -> _HeapWalk | _TableWalk:
    return _HeapWalk(tree) if tree.shape == "balanced" else _TableWalk(tree, device)


def descend(
    scores: Tensor, count: int, tree: Tree, activation: Activation, generator: torch.Generator | None
) -> Tensor:
    """Draw ``count`` classes for every row, batch + (count,): at each node, yes if a uniform number is below a."""
    walk = _walk(tree, scores.device)
    at = torch.full((*scores.shape[:-1], count), walk.root, dtype=torch.int64, device=scores.device)
    for _ in range(tree.depth):
        yes = activation._yes(*_at(walk.node(at), scores, tree, activation))
        at = walk.step(at, rand(at.shape, scores, generator) < yes)
    return walk.classes(at)


def descend_without_replacement(
    scores: Tensor, count: int, tree: Tree, activation: Activation, generator: torch.Generator | None
) -> Tensor:
    """Draw ``count`` distinct classes in Plackett-Luce order, batch + (count,), splitting Gumbel maxima downwards.

    The largest Gumbel-perturbed log-probability below a node is Gumbel distributed with the node's own log-probability
    as its location. It stays on the yes side with probability a; the other side's maximum is a Gumbel truncated at it.
    The ``count`` best subtrees of a level hold the ``count`` best leaves, so nothing else need be followed.
    """
    walk = _walk(tree, scores.device)
    shape = (*scores.shape[:-1], 1)
    at = torch.full(shape, walk.root, dtype=torch.int64, device=scores.device)
    log_prob = scores.new_zeros(shape)
    best = -log_exponential(log_prob, generator)
    for _ in range(tree.depth):
        no, yes = activation._log_answers(*_at(walk.node(at), scores, tree, activation), floored=False)
        wins = rand(at.shape, scores, generator) < yes.exp()
        winner, loser = log_prob + torch.where(wins, yes, no), log_prob + torch.where(wins, no, yes)
        truncated = loser - torch.logaddexp(loser - best, log_exponential(log_prob, generator))
        leaf = walk.at_leaf(at)
        sides = [
            (walk.step(at, wins), torch.where(leaf, log_prob, winner), best),
            # A leaf has no other side: its twin must never be chosen.
            (walk.step(at, wins.logical_not()), loser, torch.where(leaf, -torch.inf, truncated)),
        ]
        at, log_prob, best = (torch.cat(pair, -1) for pair in zip(*sides, strict=True))
        best, chosen = best.topk(min(count, best.shape[-1]))
        at, log_prob = at.gather(-1, chosen), log_prob.gather(-1, chosen)
    return walk.classes(at)


def rand(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform numbers in [0, 1) with the dtype and device of ``like``."""
    if generator is None:  # the compiler cannot take a generator, not even None
        return torch.rand(shape, dtype=like.dtype, device=like.device)
    return torch.rand(shape, dtype=like.dtype, device=like.device, generator=generator)


def log_exponential(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Logarithms of exponential variables in the shape of ``like``, finite: Gumbel variables with their sign turned."""
    # 1 - u lies in (0, 1]; an exponential of 0 would be an infinite Gumbel.
    uniform = 1 - rand(like.shape, like, generator)
    return uniform.log().neg().clamp(min=torch.finfo(like.dtype).tiny).log()
