"""One path at a time, O(depth): the nodes on the way to a class, and descents from the root.

Balanced trees are walked by heap arithmetic, other trees by tables of edges or children.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from catnat.jax import _constants
from catnat.jax._nodes import LazyNodes, Nodes, NodeScores
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree, first_leaf

# The path to a class in a deeper tree (a chain, say) is not followed: sums along all paths at once take fewer steps.
MOST_WALKED_LEVELS = 64


def path_log_prob(nodes: Nodes | LazyNodes, classes: Array) -> Array:
    """The log-probability of ``classes``, batch + (n,), or batch + (n, N) in a forest, reading their paths only."""
    index, bits = path(classes, nodes.tree)
    return sum_branches(nodes.at(jnp.maximum(index, 0)), nodes.holds(index), bits, floored=True)


def sum_branches(node_scores: NodeScores, on_path: Array, bits: Array, *, floored: bool) -> Array:
    """The sum over the last axis of the log-probabilities of the branches ``bits``, where the node is ``on_path``."""
    no, yes = node_scores.branch_log_probs(floored=floored)
    return jnp.where(on_path, jnp.where(bits == 1, yes, no), 0).sum(-1)


def path(classes: Array, tree: Tree | Forest) -> tuple[Array, Array]:
    """The nodes on the path to each class and the bits taken there, on a new last axis; -1 for no node."""
    if tree.kind == "balanced":
        heap = classes + first_leaf(tree)
        heap = jnp.where(heap >= 2 * tree.num_classes, heap - tree.num_classes, heap)
        ladder = heap[..., None] >> jnp.arange(tree.depth, -1, -1, dtype=heap.dtype)
        return ladder[..., :-1] - 1, ladder[..., 1:] & 1
    edges, above_root = _constants.edges(tree), 2 * tree.num_nodes
    ids = classes + tree.num_nodes
    if isinstance(tree, Forest):
        ids = ids + _constants.forest_table(tree, "first_classes")

    def step(at: Array, _: None) -> tuple[Array, Array]:
        edge = _constants.look_up(edges, at).astype(at.dtype)
        return jnp.where(edge == above_root, at, edge >> 1), edge

    _, climbed = lax.scan(step, ids, None, length=tree.depth)
    climbed = jnp.moveaxis(climbed, 0, -1)
    return jnp.where(climbed == above_root, -1, climbed >> 1), climbed & 1


# ---- descents ----


class HeapWalk:
    """Positions on a balanced tree are heap numbers: the root is 1, the children of i are 2i and 2i + 1."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def start(self, shape: Sequence[int]) -> Array:
        """The root, as many times as there are walks."""
        return jnp.ones(shape, int)

    def node(self, at: Array) -> Array:
        """The node to read; at a leaf any will do, since its branch changes nothing."""
        return jnp.minimum(at, self.tree.num_nodes) - 1

    def step(self, at: Array, bits: Array) -> Array:
        """The position below, on the side of the branch; a leaf stays where it is."""
        return jnp.where(self.at_leaf(at), at, 2 * at + bits)

    def at_leaf(self, at: Array) -> Array:
        return at >= self.tree.num_classes

    def classes(self, at: Array) -> Array:
        """The classes of leaves."""
        classes = at - first_leaf(self.tree)
        return jnp.where(classes < 0, classes + self.tree.num_classes, classes)


class TableWalk:
    """Positions on any other tree are ids: nodes, then leaves. A forest is walked from all its roots at once."""

    def __init__(self, tree: Tree | Forest) -> None:
        self.tree = tree

    def start(self, shape: Sequence[int]) -> Array:
        if isinstance(self.tree, Forest):
            roots = _constants.forest_table(self.tree, "roots")
            return jnp.broadcast_to(jnp.asarray(roots, int), (*shape, len(roots)))
        return jnp.zeros(shape, int)

    def node(self, at: Array) -> Array:
        return jnp.minimum(at, self.tree.num_nodes - 1)

    def step(self, at: Array, bits: Array) -> Array:
        below = _constants.look_up(_constants.children(self.tree), 2 * self.node(at) + bits)
        return jnp.where(self.at_leaf(at), at, below)

    def at_leaf(self, at: Array) -> Array:
        return at >= self.tree.num_nodes

    def classes(self, at: Array) -> Array:
        leaves = at - self.tree.num_nodes
        return leaves - _constants.forest_table(self.tree, "first_classes") if isinstance(self.tree, Forest) else leaves


def walk_of(tree: Tree | Forest) -> HeapWalk | TableWalk:
    """How to walk down this tree."""
    return HeapWalk(tree) if tree.kind == "balanced" else TableWalk(tree)


def descend(nodes: Nodes | LazyNodes, count: int, key: Array) -> Array:
    """Draw ``count`` classes for every row, batch + (count,), or batch + (count, N) in a forest.

    At each node the branch is yes if a uniform number is below a.
    """
    walk = walk_of(nodes.tree)
    at = walk.start((*nodes.batch, count))
    if nodes.tree.num_nodes == 0:
        return walk.classes(at)

    def step(level: Any, at: Array) -> Array:
        uniform = jax.random.uniform(jax.random.fold_in(key, level), at.shape, nodes.dtype)
        return walk.step(at, uniform < nodes.at(walk.node(at)).yes())

    # The first step before the loop: inside shard_map, what a loop carries must differ between devices from the start.
    return walk.classes(lax.fori_loop(1, nodes.tree.depth, step, step(0, at)))


def descend_without_replacement(nodes: Nodes | LazyNodes, count: int, key: Array) -> Array:
    """Draw ``count`` distinct classes in Plackett-Luce order, batch + (count,), splitting Gumbel maxima downwards.

    The largest Gumbel-perturbed log-probability below a node is Gumbel distributed with the node's own log-probability
    as its location. It stays on the yes side with probability a; the other side's maximum is a Gumbel truncated at it.
    The ``count`` best subtrees of a level hold the ``count`` best leaves, so nothing else need be followed.
    """
    walk, dtype = walk_of(nodes.tree), nodes.dtype
    shape = (*nodes.batch, 1)
    at, log_prob = walk.start(shape), jnp.zeros(shape, dtype)
    key, first = jax.random.split(key)
    best = -log_exponential(first, shape, dtype)
    for level in range(nodes.tree.depth):
        side, other = jax.random.split(jax.random.fold_in(key, level))
        no, yes = nodes.at(walk.node(at)).branch_log_probs(floored=False)
        wins = jax.random.uniform(side, at.shape, dtype) < jnp.exp(yes)
        winner, loser = log_prob + jnp.where(wins, yes, no), log_prob + jnp.where(wins, no, yes)
        truncated = loser - jnp.logaddexp(loser - best, log_exponential(other, at.shape, dtype))
        leaf = walk.at_leaf(at)
        sides = [
            (walk.step(at, wins), jnp.where(leaf, log_prob, winner), best),
            # A leaf has no other side: its copy must never be chosen.
            (walk.step(at, ~wins), loser, jnp.where(leaf, -jnp.inf, truncated)),
        ]
        at, log_prob, best = (jnp.concatenate(pair, -1) for pair in zip(*sides, strict=True))
        best, chosen = lax.top_k(best, min(count, best.shape[-1]))
        at, log_prob = (jnp.take_along_axis(values, chosen, -1) for values in (at, log_prob))
    return walk.classes(at)


def log_exponential(key: Array, shape: Sequence[int], dtype: Any) -> Array:
    """Logarithms of exponential variables, finite: Gumbel variables with their sign turned."""
    # Uniform numbers are multiples of the dtype's eps: one that came out as 0 lies, on average, half of that above.
    uniform = jax.random.uniform(key, tuple(shape), dtype)
    return jnp.log(jnp.maximum(-jnp.log1p(-uniform), float(jnp.finfo(dtype).eps) / 2))
