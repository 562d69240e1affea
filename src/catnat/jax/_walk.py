"""Operations on single paths, O(depth): the nodes on the path to a class, and descents from the root.

A place is an id: a node, or K - 1 + k for the leaf of class k. Balanced trees are walked by heap arithmetic, other
trees by tables of edges or children.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from catnat.jax import _branches, _dense, _plan
from catnat.jax._branches import Branches
from catnat.jax._plan import Plan
from catnat.trees.builders import balanced
from catnat.trees.tree import Tree, first_leaf


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LazyScores:
    """Scores that are computed when they are read: an input times the node's row of weights.

    If rows are split between devices, ``weight`` has the rows from ``first`` on.
    """

    input: Array
    weight: Array
    bias: Array | None
    first: Array | int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of these scores as an array."""
        return (*self.input.shape[:-1], len(self.weight))

    def read(self, index: Array) -> Array:
        """Return the scores of the nodes ``index``; arbitrary for a row on another device."""
        here = jnp.clip(index - self.first, 0, len(self.weight) - 1)
        more = tuple(range(self.input.ndim - 1, index.ndim))
        weight = _plan.to_computing_dtype(_plan.look_up(self.weight, here))
        scores = (weight * jnp.expand_dims(self.input, more)).sum(-1)
        if self.bias is not None:
            scores = scores + _plan.to_computing_dtype(_plan.look_up(self.bias, here))
        return scores

    def with_wide_rows(self) -> LazyScores:
        """Return the same scores with rows in the computing dtype, in which gradients of a batch are then added."""
        bias = None if self.bias is None else _plan.to_computing_dtype(self.bias)
        return LazyScores(self.input, _plan.to_computing_dtype(self.weight), bias, self.first)

    def holds(self, index: Array) -> Array:
        """Return whether the row of a node is on this device; False for -1, which is no node."""
        return (index >= self.first) & (index < self.first + len(self.weight))


Scores = Array | LazyScores


def branches_at(scores: Scores, index: Array, plan: Plan, *, floored: bool) -> Branches:
    """Return the log-probabilities of both branches of the nodes ``index``, with the scores' batch as leading axes."""
    found = scores.read(index) if isinstance(scores, LazyScores) else pick(scores, index)
    return _branches.branch_log_probs(found, plan, index, floored=floored)


def pick(values: Array, index: Array) -> Array:
    """Return the entries of each row of ``values`` at its own indices, which may have further axes."""
    batch = values.shape[:-1]
    flat = index.reshape(*batch, math.prod(index.shape[len(batch) :]))  # no -1: the batch may be empty
    return jnp.take_along_axis(values, flat, -1, mode="promise_in_bounds").reshape(index.shape)


@jax.jit
def pick_samples(values: Array, classes: Array) -> Array:
    """Return the entries of each row at its own classes, which may have sample axes before the batch."""
    queries, back = _plan.behind_batch(classes, values.shape[:-1])
    return back(pick(values, queries))


# ---- paths ----


def path_log_prob(scores: Scores, classes: Array, plan: Plan, *, floored: bool = True) -> Array:
    """Return the log-probability of ``classes``, batch + any axes, reading only their paths."""
    index, bits = path(classes, plan.tree)
    on_path = scores.holds(index) if isinstance(scores, LazyScores) else index >= 0
    no, yes = branches_at(scores, jnp.maximum(index, 0), plan, floored=floored)
    return jnp.where(on_path, jnp.where(bits == 1, yes, no), 0).sum(-1)


def path(classes: Array, tree: Tree) -> tuple[Array, Array]:
    """Return the nodes on the path to each class and the bits taken there, on a new last axis; -1 for no node."""
    if tree.kind == "balanced":
        heap = classes + first_leaf(tree)
        heap = jnp.where(heap >= 2 * tree.num_classes, heap - tree.num_classes, heap)
        ladder = heap[..., None] >> jnp.arange(tree.depth, -1, -1, dtype=heap.dtype)
        return ladder[..., :-1] - 1, ladder[..., 1:] & 1
    edges, above_root = _plan.edges(tree), 2 * tree.num_nodes

    def step(at: Array, _: None) -> tuple[Array, Array]:
        edge = _plan.look_up(edges, at).astype(at.dtype)
        return jnp.where(edge == above_root, at, edge >> 1), edge

    _, climbed = lax.scan(step, classes + tree.num_nodes, None, length=tree.depth)
    climbed = jnp.moveaxis(climbed, 0, -1)[..., ::-1]
    return jnp.where(climbed == above_root, -1, climbed >> 1), climbed & 1


# ---- descents ----


def node(at: Array, tree: Tree) -> Array:
    """Return the node to read at a place; for a leaf an arbitrary node, whose branch is ignored."""
    return jnp.minimum(at, tree.num_nodes - 1)


def step(at: Array, bits: Array | int, tree: Tree) -> Array:
    """Return the place below on the side of the branch; a leaf stays in place."""
    if tree.kind == "balanced":
        heap = 2 * at + 2 + bits
        classes = heap - first_leaf(tree)
        leaf = tree.num_nodes + jnp.where(classes < 0, classes + tree.num_classes, classes)
        below = jnp.where(heap < tree.num_classes, heap - 1, leaf)
    else:
        below = _plan.look_up(_plan.children(tree), 2 * node(at, tree) + bits)
    return jnp.where(at >= tree.num_nodes, at, below)


def descend(yes: Callable[[Array], Array], tree: Tree, shape: Sequence[int], key: Array) -> Array:
    """Draw classes, with a branch drawn at each node: yes has probability ``yes(index)``."""
    at = jnp.zeros(shape, int)
    if tree.num_nodes == 0:
        return at

    def down(level: Any, at: Array) -> Array:
        drawn = draw_yes(jax.random.fold_in(key, level), at.shape, yes(node(at, tree)))
        return step(at, drawn.astype(at.dtype), tree)

    # The first step comes before the loop: inside shard_map, a loop's carry must vary over devices from the start.
    return lax.fori_loop(1, tree.depth, down, down(0, at)) - tree.num_nodes


def draw_yes(key: Array, shape: Sequence[int], yes: Array) -> Array:
    """Draw whether a branch is yes, with probability ``yes``; NaN gives no.

    Uniform numbers can be 0, so "below ``yes``" would draw the rarest branch too often: in float32 with 1e-7.
    """
    return jax.random.uniform(key, tuple(shape), yes.dtype) >= 1 - yes


@functools.partial(jax.jit, static_argnames=("plan", "sample_shape"))
def draw(scores: Scores, sample_shape: tuple[int, ...], key: Array, plan: Plan) -> Array:
    """Draw classes, sample shape + batch, reading only the nodes on their paths."""
    scores, batch = lax.stop_gradient(scores), scores.shape[:-1]

    def yes(index: Array) -> Array:
        return jnp.exp(branches_at(scores, index, plan, floored=False)[1])

    drawn = descend(yes, plan.tree, (*batch, math.prod(sample_shape)), key)
    return before_batch(drawn, sample_shape)


@functools.partial(jax.jit, static_argnames=("plan", "sample_shape"))
def draw_among(scores: Scores, classes: Array, sample_shape: tuple[int, ...], key: Array, plan: Plan) -> Array:
    """Draw among ``classes``, batch + (m,), padded with -1, reading only their paths; duplicates count once."""
    classes = jnp.sort(classes, -1)
    again = jnp.diff(classes, axis=-1, prepend=-1) == 0
    logs = path_log_prob(lax.stop_gradient(scores), jnp.maximum(classes, 0), plan, floored=False)
    logs = jax.nn.log_softmax(jnp.where(again | (classes < 0), -jnp.inf, logs), -1)
    return pick_samples(classes, draw_by_log_probs(logs, sample_shape, key))


@functools.partial(jax.jit, static_argnames="sample_shape")
def draw_by_log_probs(logs: Array, sample_shape: tuple[int, ...], key: Array) -> Array:
    """Draw classes with probabilities ``exp(logs)``; a class whose exponential is 0 is never drawn."""
    logs = lax.stop_gradient(logs)
    # Every tree gives the same distribution; a balanced one takes the fewest steps.
    tree, possible = balanced(logs.shape[-1]), jnp.exp(logs) > 0
    no, yes = _dense.log_masses(jnp.where(possible, logs, -math.inf), tree)
    probs = jax.nn.sigmoid(yes - jnp.where(jnp.isneginf(yes), 0, no))  # exactly 0 or 1 where one side is -inf
    shape = (*logs.shape[:-1], math.prod(sample_shape))
    return before_batch(descend(lambda index: pick(probs, index), tree, shape, key), sample_shape)


def before_batch(drawn: Array, sample_shape: tuple[int, ...]) -> Array:
    """Move the last axis of draws before the batch, in the sample shape."""
    drawn = jnp.moveaxis(drawn, -1, 0)
    return drawn.reshape((*sample_shape, *drawn.shape[1:]))


def descend_without_replacement(scores: Array, count: int, key: Array, plan: Plan) -> Array:
    """Draw ``count`` distinct classes in Plackett-Luce order, batch + (count,), splitting Gumbel maxima downwards.

    The largest Gumbel-perturbed log-probability below a node is Gumbel distributed with the node's own log-probability
    as its location. It is on the yes side with probability a; the other side's maximum is a Gumbel truncated at it. The
    ``count`` best subtrees of a level contain the ``count`` best leaves, so only they are followed.
    """
    tree, dtype, shape = plan.tree, plan.dtype, (*scores.shape[:-1], 1)
    at, log_prob = jnp.zeros(shape, int), jnp.zeros(shape, dtype)
    key, first = jax.random.split(key)
    best = -log_exponential(first, shape, dtype)
    for level in range(tree.depth):
        side, other = jax.random.split(jax.random.fold_in(key, level))
        no, yes = branches_at(scores, node(at, tree), plan, floored=False)
        wins = draw_yes(side, at.shape, jnp.exp(yes))
        winner, loser = log_prob + jnp.where(wins, yes, no), log_prob + jnp.where(wins, no, yes)
        truncated = loser - jnp.logaddexp(loser - best, log_exponential(other, at.shape, dtype))
        leaf = at >= tree.num_nodes
        sides = [
            (step(at, wins.astype(at.dtype), tree), jnp.where(leaf, log_prob, winner), best),
            # A leaf has no other side: its copy must never be chosen.
            (step(at, (~wins).astype(at.dtype), tree), loser, jnp.where(leaf, -jnp.inf, truncated)),
        ]
        at, log_prob, best = (jnp.concatenate(pair, -1) for pair in zip(*sides, strict=True))
        best, chosen = lax.top_k(best, min(count, best.shape[-1]))
        at, log_prob = (jnp.take_along_axis(values, chosen, -1) for values in (at, log_prob))
    return at - tree.num_nodes


# ---- Gumbel variables ----


def positive_uniform(key: Array, shape: Sequence[int], dtype: Any) -> Array:
    """Draw uniform numbers in (0, 1): multiples of the dtype's eps, and for 0 the middle of its interval."""
    return jnp.maximum(jax.random.uniform(key, tuple(shape), dtype), float(jnp.finfo(dtype).eps) / 2)


def log_exponential(key: Array, shape: Sequence[int], dtype: Any) -> Array:
    """Draw finite logarithms of exponential variables, that is negated Gumbel variables."""
    return jnp.log(-jnp.log1p(-positive_uniform(key, shape, dtype)))


def add_gumbel_noise(log_probs: Array, possible: Array | None, sample_shape: tuple[int, ...], key: Array) -> Array:
    """Add Gumbel noise to log-probabilities, for every sample; impossible classes get the smallest finite number."""
    noisy = log_probs - log_exponential(key, (*sample_shape, *log_probs.shape), log_probs.dtype)
    return noisy if possible is None else jnp.where(possible, noisy, _plan.lowest(noisy))
