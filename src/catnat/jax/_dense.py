"""Functions that compute all classes at once, O(K): the definition of the log-probabilities, and sums over nodes.

Sums along the paths use a product with a 0/1 matrix if K is small, a pass from level to level on balanced trees, and
pointer jumping on other trees. None stores a K x depth table or loops over a deep tree.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax import Array, lax

from catnat.jax import _branches, _plan
from catnat.jax._plan import MOST_DENSE_CLASSES, Plan
from catnat.trees.tree import Tree, first_leaf


def log_probs(scores: Array, plan: Plan, *, floored: bool) -> Array:
    """Return the log-probability of every class by its definition: the sum of the branches on its path."""
    return path_sums(*_branches.branch_log_probs(scores, plan, floored=floored), plan.tree, to="leaves")


# ---- sums over nodes ----


@functools.partial(jax.jit, static_argnames="plan")
def log_reach(scores: Array, plan: Plan) -> Array:
    """Return the log-probability of reaching each node."""
    return path_sums(*_branches.branch_log_probs(scores, plan, floored=False), plan.tree, to="nodes")


@functools.partial(jax.jit, static_argnames="plan")
def information(scores: Array, plan: Plan) -> Array:
    """Return the diagonal of the Fisher matrix of the scores."""
    return jnp.exp(log_reach(scores, plan)) * _branches.information(scores, plan)


@functools.partial(jax.jit, static_argnames="plan")
def entropy(scores: Array, plan: Plan) -> Array:
    """Return the sum over nodes of the entropy of the branch, times the probability of reaching the node."""
    no, yes = _branches.branch_log_probs(scores, plan, floored=False)
    branches = -(jnp.exp(yes) * yes + jnp.exp(no) * no)
    return (jnp.exp(path_sums(no, yes, plan.tree, to="nodes")) * branches).sum(-1)


@functools.partial(jax.jit, static_argnames="plan")
def kl_divergence(p_scores: Array, q_scores: Array, plan: Plan) -> Array:
    """Return the sum over nodes of the divergence of the branch, times the probability of reaching the node under p."""
    p_no, p_yes = _branches.branch_log_probs(p_scores, plan, floored=False)
    q_no, q_yes = _branches.branch_log_probs(q_scores, plan, floored=True)
    branches = jnp.exp(p_yes) * (p_yes - q_yes) + jnp.exp(p_no) * (p_no - q_no)
    return (jnp.exp(path_sums(p_no, p_yes, plan.tree, to="nodes")) * branches).sum(-1)


# ---- sums down the paths ----


def path_sums(no: Array, yes: Array, tree: Tree, to: str) -> Array:
    """Sum ``no`` or ``yes``, by the branch taken, along the path to every leaf (``to="leaves"``) or node ("nodes")."""
    if tree.num_nodes == 0:
        return jnp.zeros((*no.shape[:-1], tree.num_classes), no.dtype) if to == "leaves" else no
    # With the barrier the branches are computed once, not again inside every sum that reads them.
    no, yes = lax.optimization_barrier((no, yes))
    if tree.num_classes <= MOST_DENSE_CLASSES:
        matrix = _plan.path_matrix(tree, to, no.dtype)
        return jnp.matmul(jnp.concatenate([no, yes], -1), matrix, precision=lax.Precision.HIGHEST)
    if tree.kind == "balanced":
        return _sums_by_level(no, yes, tree, to)
    return _sums_by_jumping(no, yes, tree, to)


def _level_sizes(tree: Tree) -> list[int]:
    """Return the number of nodes on every level; the other places of the last level are leaves."""
    return [1 << level for level in range(tree.depth - 1)] + [tree.num_classes - first_leaf(tree) // 2]


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _sums_by_level(no: Array, yes: Array, tree: Tree, to: str) -> Array:
    """Sum down the levels: each node's sum plus its no and its yes value gives the sums of its two children."""
    sizes, axis = _level_sizes(tree), no.ndim - 1
    branches = list(zip(lax.split(no, sizes, axis), lax.split(yes, sizes, axis), strict=True))
    levels = [jnp.zeros_like(branches[0][0])]
    for no_level, yes_level in branches[:-1]:
        levels.append(_alternate(levels[-1] + no_level, levels[-1] + yes_level))
    last = levels.pop()
    nodes, leaves = last[..., : sizes[-1]], last[..., sizes[-1] :]
    if to == "nodes":
        return jnp.concatenate([*levels, nodes], -1)
    no_level, yes_level = branches[-1]
    return jnp.concatenate([_alternate(nodes + no_level, nodes + yes_level), leaves], -1)


# A custom rule for the backward pass: the transpose of these steps adds up pairs of neighbours, stores all sums in one
# array, and reads both sides of every node from it. The transpose of the steps above takes 1.3 times as long on CPU,
# because the compiler recomputes the sums of pairs for every level above them.
@_sums_by_level.defjvp
def _slopes_of_sums_by_level(
    tree: Tree, to: str, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    (no, yes), sizes = tangents, _level_sizes(tree)
    edges = lax.split(_spread(no, 0) + _spread(yes, 1), [2 * size for size in sizes], no.ndim - 1)
    levels = [jnp.zeros_like(no[..., :1])]
    for edges_below in edges[:-1]:
        levels.append(_twice(levels[-1]) + edges_below)
    last = levels.pop()
    nodes, leaves = last[..., : sizes[-1]], last[..., sizes[-1] :]
    below = [*levels, nodes] if to == "nodes" else [_twice(nodes) + edges[-1], leaves]
    return _sums_by_level(*primals, tree, to), jnp.concatenate(below, -1)


def _alternate(even: Array, odd: Array) -> Array:
    return jnp.stack([even, odd], -1).reshape(*even.shape[:-1], 2 * even.shape[-1])


def _twice(values: Array) -> Array:
    """Return every value twice in a row."""
    return _spread(values, 0) + _spread(values, 1)


def _spread(values: Array, first: int) -> Array:
    """Return the values at every second place, from place ``first`` on, with zeros between them."""
    around = [(0, 0, 0)] * (values.ndim - 1)
    return lax.pad(values, jnp.zeros((), values.dtype), [*around, (first, 1 - first, 1)])


# ---- any other tree, with ids on the first axis, so that reading an id copies a row ----


def _sums_by_jumping(no: Array, yes: Array, tree: Tree, to: str) -> Array:
    """Sum along paths in log2(depth) rounds: every id adds the sum of its ancestor, at doubling distances."""
    no, yes = jnp.moveaxis(no, -1, 0), jnp.moveaxis(yes, -1, 0)
    edges, ancestors = _edges_and_parents(tree, above_root=0)
    values = jnp.stack([no, yes], 1).reshape(2 * tree.num_nodes, *no.shape[1:])
    sums = _plan.look_up(jnp.concatenate([values, jnp.zeros_like(no[:1])]), edges)
    for _ in range(tree.depth.bit_length()):
        sums, ancestors = sums + _plan.look_up(sums, ancestors), _plan.look_up(ancestors, ancestors)
    return jnp.moveaxis(sums[tree.num_nodes :] if to == "leaves" else sums[: tree.num_nodes], 0, -1)


def _edges_and_parents(tree: Tree, above_root: int) -> tuple[Array, Array]:
    """Return the edge above every id and the parent of every id; the parent of the root is ``above_root``."""
    # Without the barrier the compiler evaluates everything that depends only on the table, slowly, and stores it.
    edges = lax.optimization_barrier(jnp.asarray(_plan.edges(tree)))
    root = edges == 2 * tree.num_nodes
    return edges, jnp.where(root, above_root, edges >> 1)


# ---- sums from the leaves up ----


def log_masses(logs: Array, tree: Tree) -> tuple[Array, Array]:
    """Return the log-sum-exp of ``logs`` over the leaves on the no side, and on the yes side, of every node.

    A leaf of probability 0 has -inf, and so has a side without mass. All derivatives are finite.
    """
    if tree.num_nodes == 0:
        return logs[..., :0], logs[..., :0]
    limit = float(jnp.finfo(logs.dtype).max) / 4
    logs = jnp.clip(logs, -limit, limit)  # the derivatives of an infinite sum would be NaN
    no, yes = _masses_by_level(logs, tree) if tree.kind == "balanced" else _masses_by_jumping(logs, tree)
    no, yes = (jnp.where(side < -limit / 2, -math.inf, side) for side in (no, yes))
    return no, yes


def _masses_by_level(logs: Array, tree: Tree) -> tuple[Array, Array]:
    """Sum up the levels: pairs of neighbours are the two sides of a node in the level above."""
    deepest = 2 * tree.num_classes - first_leaf(tree)
    pairs, shallower = logs[..., :deepest], logs[..., deepest:]
    levels = []
    while pairs.shape[-1] > 1:
        no, yes = pairs[..., 0::2], pairs[..., 1::2]
        levels.append((no, yes))
        pairs, shallower = jnp.concatenate([log_add(no, yes), shallower], -1), shallower[..., :0]
    no_side, yes_side = zip(*reversed(levels), strict=True)
    return jnp.concatenate(no_side, -1), jnp.concatenate(yes_side, -1)


def _masses_by_jumping(logs: Array, tree: Tree) -> tuple[Array, Array]:
    """Sum by pointer jumping: every id adds its sum to its ancestor 1, 2, 4, ... levels up.

    Every sum is relative to its largest term, so that no exponential overflows.
    """
    logs = jnp.moveaxis(logs, -1, 0)
    nothing = jnp.full((tree.num_nodes, *logs.shape[1:]), -float(jnp.finfo(logs.dtype).max) / 4, logs.dtype)
    sums = jnp.concatenate([nothing, logs, nothing[:1]])
    # Ids without such an ancestor add their sum to the last entry, which is not read.
    last = len(sums) - 1
    _, ancestors = _edges_and_parents(tree, above_root=last)
    ancestors = jnp.append(ancestors, last)
    for _ in range(tree.depth.bit_length()):
        top = lax.stop_gradient(sums)
        top = top.at[ancestors].max(top)
        terms = jnp.exp(sums - _plan.look_up(top, ancestors))
        sums = jnp.log(jnp.exp(sums - top).at[ancestors].add(terms)) + top
        ancestors = _plan.look_up(ancestors, ancestors)
    children = _plan.children(tree)
    no, yes = (jnp.moveaxis(_plan.look_up(sums, side), 0, -1) for side in (children[0::2], children[1::2]))
    return no, yes


def log_add(first: Array, second: Array) -> Array:
    """Return ``logaddexp`` with finite derivatives of every order, for any difference of the two."""
    ordered = first >= second
    larger, smaller = jnp.where(ordered, first, second), jnp.where(ordered, second, first)
    return larger + jnp.log1p(jnp.exp(smaller - larger))
