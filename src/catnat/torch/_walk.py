"""Operations on single paths, O(depth): the nodes on the path to a class, and descents from the root.

Balanced trees are walked by heap arithmetic, other trees by tables of parents and children. Scores come from a reader,
so that a head for a million classes can compute only the scores that are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from catnat.torch._plan import Plan, look_up
from catnat.trees.tree import first_leaf


class Reader(Protocol):
    """A source of scores: rows, each with one score per node."""

    @property
    def batch(self) -> torch.Size:
        """The shape of the rows."""

    @property
    def like(self) -> Tensor:
        """A tensor with the dtype and the device of the scores."""

    def at(self, nodes: Tensor) -> Tensor:
        """Return the scores at ``nodes``, whose leading axes are the rows."""

    def select(self, rows: Tensor) -> Reader:
        """Return a reader of the given rows."""


class ScoreReader(NamedTuple):
    """A reader of a tensor of scores, (..., K-1)."""

    scores: Tensor

    @property
    def batch(self) -> torch.Size:
        """The shape of the rows."""
        return self.scores.shape[:-1]

    @property
    def like(self) -> Tensor:
        """A tensor with the dtype and the device of the scores."""
        return self.scores

    def at(self, nodes: Tensor) -> Tensor:
        """Return the scores at ``nodes``, whose leading axes are the rows."""
        if nodes.ndim == self.scores.ndim:
            return self.scores.gather(-1, nodes)
        return self.scores.gather(-1, nodes.flatten(self.scores.ndim - 1)).view(nodes.shape)

    def select(self, rows: Tensor) -> ScoreReader:
        """Return a reader of the given rows."""
        return ScoreReader(self.scores[rows])


def path_log_prob(plan: Plan, reader: Reader, classes: Tensor, *, floored: bool = True) -> Tensor:
    """Return the log-probability of ``classes``, rows + (n,), reading only their paths."""
    nodes, bits = path(plan, classes)
    on_path, nodes = nodes >= 0, nodes.clamp(min=0)
    no, yes = plan.branches.at(nodes).log_probs(reader.at(nodes), floored=floored)
    taken = torch.where(bits == 1, yes, no)
    return torch.where(on_path, taken, torch.zeros_like(taken)).sum(-1)


def path(plan: Plan, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nodes on the path to each class and the bits taken there, on a new last axis; -1 means no node.

    A class outside the tree gets a node index out of range, for which torch raises.
    """
    tree = plan.tree
    classes = classes.masked_fill((classes < 0) | (classes >= tree.num_classes), 2 * tree.num_classes)
    if tree.kind == "balanced":
        heap = classes + (1 << tree.depth)  # the first leaf
        heap = heap - tree.num_classes * ((heap >= 2 * tree.num_classes) & (classes < tree.num_classes))
        powers = 2 ** torch.arange(tree.depth, -1, -1, device=classes.device)
        ladder = torch.div(heap.unsqueeze(-1), powers, rounding_mode="floor")
        above, below = ladder.narrow(-1, 0, tree.depth), ladder.narrow(-1, 1, tree.depth)
        return above - 1, below - 2 * above
    tables = plan.tables()
    ids = [classes + tree.num_nodes]
    for _ in range(tree.depth - 1):
        ids.append(look_up(tables.ancestors[0], ids[-1]))
    edges = look_up(tables.edges, torch.stack(ids[::-1], -1))
    bits = (edges >= tree.num_nodes).long()
    # A short path goes on above the root, where an edge has no node.
    return torch.where(edges == 2 * tree.num_nodes, -1, edges - tree.num_nodes * bits), bits


# ---- descents ----


class Walk:
    """Walks down a tree. Positions are nodes, then K - 1 and up for leaves; a balanced tree is numbered as a heap."""

    def __init__(self, plan: Plan) -> None:
        tree = plan.tree
        self.num_nodes, self._shift = tree.num_nodes, tree.num_classes - first_leaf(tree)
        self._children = None if tree.kind == "balanced" else plan.tables().children
        self._is_complete = tree.kind == "balanced" and self._shift == 0

    def node(self, at: Tensor) -> Tensor:
        """Return the node to read at each position; at a leaf an arbitrary node, because its branch is ignored."""
        return at if self._is_complete else at.clamp(max=self.num_nodes - 1)

    def step(self, at: Tensor, bits: Tensor) -> Tensor:
        """Return the child of each position on the side of the branch; leaves stay."""
        index = torch.add(bits, at, alpha=2)
        if self._children is not None:
            return look_up(self._children, index)
        return index + 1 if self._is_complete else torch.where(self.at_leaf(at), at, index + 1)

    def at_leaf(self, at: Tensor) -> Tensor:
        """Return whether each position is a leaf."""
        return at >= self.num_nodes

    def classes(self, at: Tensor) -> Tensor:
        """Return the classes of leaves."""
        leaf = at - self.num_nodes
        if self._children is not None or self._is_complete:
            return leaf
        return torch.where(leaf < -self._shift, leaf + self._shift + self.num_nodes + 1, leaf + self._shift)


def descend(plan: Plan, reader: Reader, count: int, generator: torch.Generator | None) -> Tensor:
    """Draw ``count`` classes for every row, rows + (count,), with a branch drawn at each node."""
    walk = Walk(plan)
    at = torch.zeros((*reader.batch, count), dtype=torch.int64, device=reader.like.device)
    for _ in range(plan.tree.depth):
        node = walk.node(at)
        yes = plan.branches.at(node).yes_probs(reader.at(node))
        at = walk.step(at, draw_yes(at.shape, yes, generator))
    return walk.classes(at)


def draw_among(plan: Plan, reader: Reader, classes: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """Draw ``count`` of the given classes for every row, rows + (count,), reading their paths only.

    Args:
        plan: The plan.
        reader: The scores.
        classes: The classes to draw from, rows + (m,), padded with -1; duplicates count once.
        count: The number of draws.
        generator: The random generator.
    """
    classes = classes.sort(-1).values
    again = classes.diff(prepend=torch.full_like(classes.narrow(-1, 0, 1), -1)) == 0
    logs = path_log_prob(plan, reader, classes.clamp(min=0), floored=False)
    logs = logs.masked_fill(again | (classes < 0), -torch.inf)
    weights = (logs - logs.amax(-1, keepdim=True)).exp()
    return classes.gather(-1, draw_by_weight(weights, count, generator))


def descend_without_replacement(plan: Plan, reader: Reader, count: int, generator: torch.Generator | None) -> Tensor:
    """Draw ``count`` distinct classes in Plackett-Luce order, rows + (count,), splitting Gumbel maxima downwards.

    The largest Gumbel-perturbed log-probability below a node has a Gumbel distribution located at the node's own
    log-probability. It is on the yes side with probability a; the other side's maximum is a Gumbel truncated at it.
    The ``count`` best subtrees of a level contain the ``count`` best leaves, so only these are followed.
    """
    walk, like = Walk(plan), reader.like
    shape = (*reader.batch, 1)
    at = torch.zeros(shape, dtype=torch.int64, device=like.device)
    log_prob = like.new_zeros(shape)
    best = -log_exponential(log_prob, generator)
    for _ in range(plan.tree.depth):
        node = walk.node(at)
        no, yes = plan.branches.at(node).log_probs(reader.at(node), floored=False)
        wins = draw_yes(at.shape, yes.exp(), generator)
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


def draw_by_weight(weights: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """Draw ``count`` indices of the last axis, rows + (count,), with probabilities proportional to ``weights``.

    An index of weight 0 is never drawn, because its cumulative sum equals the previous one.
    """
    sums = weights.double().cumsum(-1)
    uniform = rand((*sums.shape[:-1], count), sums, generator)
    return torch.searchsorted(sums, uniform * sums.narrow(-1, -1, 1), right=True)


def draw_yes(shape: Sequence[int], yes: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw whether a branch is yes, with probability ``yes``; NaN gives no.

    Uniform numbers can be 0, so "below ``yes``" would draw the rarest branch too often: in float32 with 6e-8.
    """
    return rand(shape, yes, generator) >= 1 - yes


def rand(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw uniform numbers in [0, 1) with the dtype and device of ``like``."""
    if generator is None:  # the compiler cannot take a generator, not even None
        return torch.rand(shape, dtype=like.dtype, device=like.device)
    return torch.rand(shape, dtype=like.dtype, device=like.device, generator=generator)


def positive_rand(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw uniform numbers in (0, 1): multiples of the dtype's eps / 2, and for 0 the middle of its interval."""
    return rand(shape, like, generator).clamp(min=torch.finfo(like.dtype).eps / 4)


def log_exponential(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw finite logarithms of exponential variables, that is negated Gumbel variables, in the shape of ``like``."""
    return torch.log1p(-positive_rand(like.shape, like, generator)).neg().log()
