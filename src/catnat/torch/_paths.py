"""One path at a time, O(depth): the nodes on the way to a class, and descents from the root.

Balanced trees are walked by heap arithmetic, other trees by tables of parents or children.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from catnat.torch import _constants
from catnat.torch._nodes import LazyNodes, Nodes, NodeScores, ReadNodes
from catnat.torch._variables import places_of
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree, first_leaf

# Deeper trees (a chain, say) are handled densely: a walk would be a Python loop as long as the tree is deep.
MOST_WALKED_LEVELS = 64


def path_log_prob(nodes: Nodes | LazyNodes, classes: Tensor) -> Tensor:
    """The log-probability of ``classes``, batch + (n,), or batch + (n, N) in a forest, reading their paths only."""
    index, bits = path(classes, nodes.tree)
    return sum_branches(nodes.at(index.clamp(min=0)), index >= 0, bits, floored=True)


def sum_branches(node_scores: NodeScores, on_path: Tensor, bits: Tensor, *, floored: bool) -> Tensor:
    """The sum over the last axis of the log-probabilities of the branches ``bits``, where the node is ``on_path``."""
    no, yes = node_scores.branch_log_probs(floored=floored)
    return torch.where(on_path, torch.where(bits == 1, yes, no), torch.zeros_like(no)).sum(-1)


def path(classes: Tensor, tree: Tree | Forest) -> tuple[Tensor, Tensor]:
    """The nodes on the path to each class and the bits taken there, on a new last axis; -1 for no node."""
    classes = places_of(classes, tree)
    if tree.kind == "balanced":
        heap = _heap_of_class(classes, tree)
        ladder = torch.div(heap.unsqueeze(-1), _powers_of_two(tree.depth, classes.device), rounding_mode="floor")
        above, below = ladder.narrow(-1, 0, tree.depth), ladder.narrow(-1, 1, tree.depth)
        return above - 1, below - 2 * above
    parents = _constants.index_table(tree, "parents", classes.device)
    ids = [classes + tree.num_nodes]
    for _ in range(tree.depth):
        ids.append(_constants.look_up(parents, ids[-1]))
    below, above = torch.stack(ids[:-1], -1), torch.stack(ids[1:], -1)
    # Walks wait at the root, which is its own parent; that is a step without a node.
    return torch.where(below == above, -1, above), _constants.look_up(
        _constants.index_table(tree, "bits", classes.device), below
    )


def _heap_of_class(classes: Tensor, tree: Tree) -> Tensor:
    heap = classes + first_leaf(tree)
    return heap - tree.num_classes * (heap >= 2 * tree.num_classes)


def _powers_of_two(depth: int, device: torch.device) -> Tensor:
    return 2 ** torch.arange(depth, -1, -1, device=device)


# ---- descents ----


class HeapWalk:
    """Positions on a balanced tree are heap numbers: the root is 1, the children of i are 2i and 2i + 1."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.complete = tree.num_classes == first_leaf(tree)

    def start(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """The root, as many times as there are walks."""
        return torch.ones(shape, dtype=torch.int64, device=device)

    def node(self, at: Tensor) -> Tensor:
        """The node to read; at a leaf any will do, since its branch changes nothing."""
        return at - 1 if self.complete else at.clamp(max=self.tree.num_nodes) - 1

    def step(self, at: Tensor, bits: Tensor) -> Tensor:
        """The position below, on the side of the branch; a leaf stays where it is."""
        below = torch.add(bits, at, alpha=2)
        return below if self.complete else torch.where(self.at_leaf(at), at, below)

    def at_leaf(self, at: Tensor) -> Tensor:
        return at >= self.tree.num_classes

    def classes(self, at: Tensor) -> Tensor:
        """The classes of leaves."""
        classes = at - first_leaf(self.tree)
        return classes if self.complete else torch.where(classes < 0, classes + self.tree.num_classes, classes)


class TableWalk:
    """Positions on any other tree are ids: nodes, then leaves. A forest is walked from all its roots at once."""

    def __init__(self, tree: Tree | Forest, device: torch.device) -> None:
        self.tree = tree
        self.children = _constants.index_table(tree, "children", device).flatten()

    def start(self, shape: Sequence[int], device: torch.device) -> Tensor:
        if isinstance(self.tree, Forest):
            return _constants.forest_table(self.tree, "roots", device).expand(*shape, -1)
        return torch.zeros(shape, dtype=torch.int64, device=device)

    def node(self, at: Tensor) -> Tensor:
        return at.clamp(max=self.tree.num_nodes - 1)

    def step(self, at: Tensor, bits: Tensor) -> Tensor:
        return _constants.look_up(self.children, torch.add(bits, at, alpha=2))

    def at_leaf(self, at: Tensor) -> Tensor:
        return at >= self.tree.num_nodes

    def classes(self, at: Tensor) -> Tensor:
        leaves = at - self.tree.num_nodes
        if isinstance(self.tree, Forest):
            return leaves - _constants.forest_table(self.tree, "first_classes", at.device)
        return leaves


def walk_of(nodes: Nodes | ReadNodes) -> HeapWalk | TableWalk:
    """How to walk down the tree of these nodes."""
    if nodes.tree.kind == "balanced":
        return HeapWalk(nodes.tree)
    return TableWalk(nodes.tree, nodes.like.device)


def descend(nodes: Nodes | ReadNodes, count: int, generator: torch.Generator | None) -> Tensor:
    """Draw ``count`` classes for every row, batch + (count,), or batch + (count, N) in a forest.

    At each node the branch is yes if a uniform number is below a.
    """
    walk, like = walk_of(nodes), nodes.like
    at = walk.start((*nodes.batch, count), like.device)
    for _ in range(nodes.tree.depth):
        at = walk.step(at, rand(at.shape, like, generator) < nodes.at(walk.node(at)).yes())
    return walk.classes(at)


def draw_all_and_descend(nodes: Nodes, count: int, generator: torch.Generator | None) -> Tensor:
    """The same draws, with a branch drawn at every node first: fewer and larger operations."""
    walk, scores = walk_of(nodes), nodes.scores
    yes = nodes.all().yes().unsqueeze(-2)
    branches = rand((*scores.shape[:-1], count, yes.shape[-1]), scores, generator) < yes
    at = walk.start((*scores.shape[:-1], count), scores.device)
    for _ in range(nodes.tree.depth):
        at = walk.step(at, branches.gather(-1, walk.node(at)))
    return walk.classes(at)


def descend_without_replacement(nodes: Nodes | LazyNodes, count: int, generator: torch.Generator | None) -> Tensor:
    """Draw ``count`` distinct classes in Plackett-Luce order, batch + (count,), splitting Gumbel maxima downwards.

    The largest Gumbel-perturbed log-probability below a node is Gumbel distributed with the node's own log-probability
    as its location. It stays on the yes side with probability a; the other side's maximum is a Gumbel truncated at it.
    The ``count`` best subtrees of a level hold the ``count`` best leaves, so nothing else need be followed.
    """
    walk, like = walk_of(nodes), nodes.like
    shape = (*nodes.batch, 1)
    at = walk.start(shape, like.device)
    log_prob = like.new_zeros(shape)
    best = -log_exponential(log_prob, generator)
    for _ in range(nodes.tree.depth):
        no, yes = nodes.at(walk.node(at)).branch_log_probs(floored=False)
        wins = rand(at.shape, like, generator) < yes.exp()
        winner, loser = log_prob + torch.where(wins, yes, no), log_prob + torch.where(wins, no, yes)
        truncated = loser - torch.logaddexp(loser - best, log_exponential(log_prob, generator))
        leaf = walk.at_leaf(at)
        sides = [
            (walk.step(at, wins), torch.where(leaf, log_prob, winner), best),
            # A leaf has no other side: its copy must never be chosen.
            (walk.step(at, wins.logical_not()), loser, torch.where(leaf, -torch.inf, truncated)),
        ]
        at, log_prob, best = (torch.cat(pair, -1) for pair in zip(*sides, strict=True))
        best, chosen = best.topk(min(count, best.shape[-1]))
        at, log_prob = at.gather(-1, chosen), log_prob.gather(-1, chosen)
    return walk.classes(at)


def draw_by_weight(weights: Tensor, sample_shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
    """Draw indices of the last axis with probabilities proportional to ``weights``, by the inverse of their sums.

    An index of weight 0 is never drawn: its sum is its neighbour's, and the first sum above a number is taken.
    """
    sums = weights.double().cumsum(-1)
    uniform = rand((*sums.shape[:-1], math.prod(sample_shape)), sums, generator)
    drawn = torch.searchsorted(sums, uniform * sums.narrow(-1, -1, 1), right=True)
    return drawn.movedim(-1, 0).reshape((*sample_shape, *sums.shape[:-1]))


def rand(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform numbers in [0, 1) with the dtype and device of ``like``."""
    if generator is None:  # the compiler cannot take a generator, not even None
        return torch.rand(shape, dtype=like.dtype, device=like.device)
    return torch.rand(shape, dtype=like.dtype, device=like.device, generator=generator)


def log_exponential(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Logarithms of exponential variables in the shape of ``like``, finite: Gumbel variables with their sign turned."""
    # Uniform numbers are multiples of the dtype's eps / 2: one that came out as 0 lies, on average, half of that above.
    limits = torch.finfo(like.dtype)
    return torch.log1p(-rand(like.shape, like, generator)).neg().clamp(min=limits.eps / 4).log()
