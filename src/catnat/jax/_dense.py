"""All classes at once, O(K): sums of node values down every path, and of class values up from the leaves.

How a sum runs depends on the tree: a product with a 0/1 matrix where K is small, doubling level by level for a balanced
tree, a cumulative sum for a chain, level by level through a table for any other, pointer jumping where that is deep.
None stores a K x depth table or loops over a deep tree.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from catnat.jax import _constants
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree, first_leaf

# Up to here a matrix product beats walking the levels.
MOST_MATMUL_CLASSES = 64
# Other trees of up to this many levels are summed level by level: each level is a part of the program.
MOST_LEVELS = 64
# Beyond this far below the largest, a logarithm over the temperature stands for probability 0 in every dtype.
_FAR_BELOW = 1e9


def path_sums(no: Array, yes: Array, tree: Tree | Forest, to: str) -> Array:
    """Sum ``no`` or ``yes``, by the branch, over the path to every leaf (``to="leaves"``) or node (``to="nodes"``)."""
    if tree.num_nodes == 0:
        return jnp.zeros((*no.shape[:-1], tree.num_classes), no.dtype) if to == "leaves" else no
    # The barrier: what makes the branches is computed once, and not again inside every sum that reads them.
    no, yes = lax.optimization_barrier((no, yes))
    if tree.num_classes <= MOST_MATMUL_CLASSES:
        matrix = _constants.path_matrix(tree, to, no.dtype)
        return jnp.matmul(jnp.concatenate([no, yes], -1), matrix, precision=lax.Precision.HIGHEST)
    if tree.kind == "balanced":
        return _sums_by_level(no, yes, tree, to)
    if tree.kind == "chain":
        return _sums_along_chain(no, yes, to)
    if isinstance(tree, Tree) and tree.depth <= MOST_LEVELS:
        return _sums_by_table(no, yes, tree, to)
    return _sums_by_jumping(no, yes, tree, to)


def leaf_sums(values: Array, tree: Tree | Forest) -> tuple[Array, Array]:
    """Sum the ``values`` of the leaves on the no side, and on the yes side, of every node: the transpose."""
    nodes = jax.ShapeDtypeStruct((*values.shape[:-1], tree.num_nodes), values.dtype)
    sums = jax.linear_transpose(lambda no, yes: path_sums(no, yes, tree, to="leaves"), nodes, nodes)
    no, yes = sums(values)
    return no, yes


def log_masses(logs: Array, tree: Tree) -> tuple[Array, Array]:
    """The logarithm of the sum of ``exp(logs)`` over the leaves on the no, and on the yes side of every node.

    A value of -inf is a leaf without mass, and a side without mass has -inf. All derivatives are finite.
    """
    if tree.num_nodes == 0:
        return logs[..., :0], logs[..., :0]
    limit = float(jnp.finfo(logs.dtype).max) / 4
    logs = jnp.clip(logs, -limit, limit)  # the derivatives of an infinite sum would be NaN
    if tree.kind == "balanced":
        no, yes = _log_masses_by_level(logs, tree)
    elif tree.kind == "chain":
        no, yes = _log_tails(logs)[..., 1:], logs[..., :-1]
    else:
        no, yes = _log_masses_by_jumping(logs, tree)
    no, yes = (jnp.where(side < -limit / 2, -math.inf, side) for side in (no, yes))
    return no, yes


def log_add(first: Array, second: Array) -> Array:
    """``logaddexp`` with finite derivatives of every order, however far apart the two are."""
    ordered = first >= second
    larger, smaller = jnp.where(ordered, first, second), jnp.where(ordered, second, first)
    return larger + jnp.log1p(jnp.exp(smaller - larger))


def apply_temperature(logs: Array, temperature: float | Array) -> Array:
    """What softmax makes p^(1/T) of: ``logs / temperature``, from the largest down.

    Nothing overflows in either pass, however small or large the temperature is.
    """
    # So its inverse is finite.
    tau = jnp.maximum(jnp.asarray(temperature, logs.dtype), float(jnp.finfo(logs.dtype).tiny) ** 0.5)
    below = logs - lax.stop_gradient(logs.max(-1, keepdims=True))
    return jnp.maximum(below, -_FAR_BELOW * lax.stop_gradient(tau)) / tau


# ---- balanced ----


def _level_sizes(tree: Tree) -> list[int]:
    """The number of nodes on every level; on the last one the other places are leaves already."""
    return [1 << level for level in range(tree.depth - 1)] + [tree.num_classes - first_leaf(tree) // 2]


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _sums_by_level(no: Array, yes: Array, tree: Tree, to: str) -> Array:
    """Down the levels: a level's sums, each plus its no and its yes, alternate to make the next level's."""
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


# A rule of its own for the backward pass: the transpose of these steps adds up pairs of neighbours, keeps all sums side
# by side, and reads the two sides of every node from them. That of the steps above is half as fast on a CPU, where the
# compiler would compute the sums of pairs again for every level above them.
@_sums_by_level.defjvp
def _slopes_of_sums_by_level(
    tree: Tree, to: str, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    return _sums_by_level(*primals, tree, to), _sums_of_edges_by_level(*tangents, tree, to)


def _sums_of_edges_by_level(no: Array, yes: Array, tree: Tree, to: str) -> Array:
    sizes = _level_sizes(tree)
    edges = lax.split(_spread(no, 0) + _spread(yes, 1), [2 * size for size in sizes], no.ndim - 1)
    levels = [jnp.zeros_like(no[..., :1])]
    for edges_below in edges[:-1]:
        levels.append(_twice(levels[-1]) + edges_below)
    last = levels.pop()
    nodes, leaves = last[..., : sizes[-1]], last[..., sizes[-1] :]
    if to == "nodes":
        return jnp.concatenate([*levels, nodes], -1)
    return jnp.concatenate([_twice(nodes) + edges[-1], leaves], -1)


def _log_masses_by_level(logs: Array, tree: Tree) -> tuple[Array, Array]:
    """Up the levels: pairs of neighbours are the two sides of the nodes above."""
    deepest = 2 * tree.num_classes - first_leaf(tree)
    pairs, shallower = logs[..., :deepest], logs[..., deepest:]
    levels = []
    while pairs.shape[-1] > 1:
        no, yes = pairs[..., 0::2], pairs[..., 1::2]
        levels.append((no, yes))
        pairs, shallower = jnp.concatenate([log_add(no, yes), shallower], -1), shallower[..., :0]
    no_side, yes_side = zip(*reversed(levels), strict=True)
    return jnp.concatenate(no_side, -1), jnp.concatenate(yes_side, -1)


def _alternate(even: Array, odd: Array) -> Array:
    return jnp.stack([even, odd], -1).reshape(*even.shape[:-1], 2 * even.shape[-1])


def _twice(values: Array) -> Array:
    """Every value two times in a row."""
    return _spread(values, 0) + _spread(values, 1)


def _spread(values: Array, first: int) -> Array:
    """The values at every other place, beginning with the ``first``, and zeros between them."""
    around = [(0, 0, 0)] * (values.ndim - 1)
    return lax.pad(values, jnp.zeros((), values.dtype), [*around, (first, 1 - first, 1)])


# ---- chain ----


def _sums_along_chain(no: Array, yes: Array, to: str) -> Array:
    totals = jnp.cumsum(no, -1)
    before = jnp.concatenate([jnp.zeros_like(totals[..., :1]), totals[..., :-1]], -1)
    return before if to == "nodes" else jnp.concatenate([before + yes, totals[..., -1:]], -1)


def _log_tails(logs: Array) -> Array:
    """The log-sum of every entry and all after it, by doubling."""
    size, reach = logs.shape[-1], 1
    while reach < size:
        logs = jnp.concatenate([log_add(logs[..., :-reach], logs[..., reach:]), logs[..., -reach:]], -1)
        reach *= 2
    return logs


# ---- any other tree ----


def _sums_by_table(no: Array, yes: Array, tree: Tree, to: str) -> Array:
    """Down the levels: nodes are numbered breadth first, so a level's edges stand side by side."""
    edges, _ = _edges_and_parents(tree, above_root=None)
    levels = tree.levels
    sizes = [level.stop - level.start for level in levels]
    branches = zip(lax.split(no, sizes, no.ndim - 1), lax.split(yes, sizes, no.ndim - 1), strict=True)
    nodes, below = [jnp.zeros_like(no[..., :1])], []
    for level, following, (no_level, yes_level) in zip(levels, [*levels[1:], None], branches, strict=True):
        below.append(_alternate(nodes[-1] + no_level, nodes[-1] + yes_level))
        if following is not None:
            nodes.append(_take(below[-1], edges[following] - 2 * level.start))
    if to == "nodes":
        return jnp.concatenate(nodes, -1)
    return _take(jnp.concatenate(below, -1), edges[tree.num_nodes :])


def _sums_by_jumping(no: Array, yes: Array, tree: Tree | Forest, to: str) -> Array:
    """Every id adds its ancestor's sum, then looks twice as far up: log2(depth) rounds over all 2K - 1 ids."""
    edges, ancestors = _edges_and_parents(tree, above_root=None)
    values = jnp.concatenate([_alternate(no, yes), jnp.zeros_like(no[..., :1])], -1)
    sums = _take(values, edges)
    for _ in range(tree.depth.bit_length()):
        sums, ancestors = sums + _take(sums, ancestors), _take(ancestors, ancestors)
    return sums[..., tree.num_nodes :] if to == "leaves" else sums[..., : tree.num_nodes]


def _log_masses_by_jumping(logs: Array, tree: Tree) -> tuple[Array, Array]:
    """Every id adds itself to its ancestor 1, 2, 4, ... levels up, which then knows that many levels below it.

    Every sum is taken relative to its largest term.
    """
    nothing = jnp.full((*logs.shape[:-1], tree.num_nodes), -float(jnp.finfo(logs.dtype).max) / 4, logs.dtype)
    sums = jnp.concatenate([nothing, logs, nothing[..., :1]], -1)
    # Ids without such an ancestor add themselves to the last place, where nobody looks.
    last = sums.shape[-1] - 1
    _, ancestors = _edges_and_parents(tree, above_root=last)
    ancestors = jnp.append(ancestors, last)
    for _ in range(tree.depth.bit_length()):
        top = lax.stop_gradient(sums)
        top = top.at[..., ancestors].max(top)
        terms = jnp.exp(sums - _take(top, ancestors))
        sums = jnp.log(jnp.exp(sums - top).at[..., ancestors].add(terms)) + top
        ancestors = _take(ancestors, ancestors)
    children = _constants.children(tree)
    return _take(sums, children[0::2]), _take(sums, children[1::2])


def _edges_and_parents(tree: Tree | Forest, above_root: int | None) -> tuple[Array, Array]:
    """The edge above every id and the parent of every id; above a root there is ``above_root``, or itself."""
    # The barrier: the compiler would otherwise evaluate all that follows from the table, slowly, and keep the results.
    edges = lax.optimization_barrier(jnp.asarray(_constants.edges(tree)))
    root = edges == 2 * tree.num_nodes
    top = jnp.arange(len(edges), dtype=edges.dtype) if above_root is None else above_root
    return edges, jnp.where(root, top, edges >> 1)


def _take(values: Array, index: Any) -> Array:
    """``values[..., index]`` for indices that are known to exist."""
    return values.at[..., index].get(mode="promise_in_bounds")
