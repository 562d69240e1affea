"""Ordered classes: the mass below and above a class, and the class at a given mass.

Where the classes below every node are consecutive, both read one path: what lies below a class is the lower side of the
nodes where its path takes the upper one. On any other tree, and on small or deep ones, all classes are summed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from catnat.jax import _constants, _paths
from catnat.jax._nodes import Nodes
from catnat.jax.functional import probs, walks
from catnat.trees import bins
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree


class Masses(NamedTuple):
    """The probability of lower classes, of the class itself, and of higher ones."""

    below: Array
    inside: Array
    above: Array

    def at(self, classes: Array) -> Masses:
        """Those of ``classes``, of all."""
        return Masses(*(pick(each, classes) for each in self))


def masses(nodes: Nodes, classes: Array) -> Masses:
    """Those of ``classes``, batch + (n,)."""
    nodes = nodes.expand(classes.shape[:-1])
    return _masses_on_path(nodes, classes) if _walks_in_order(nodes.tree) else all_masses(nodes).at(classes)


def all_masses(nodes: Nodes) -> Masses:
    """Those of every class, batch + (K,)."""
    inside = probs(nodes)
    below = exclusive(jnp.cumsum(inside, -1))
    return Masses(below, inside, exclusive(jnp.cumsum(inside[..., ::-1], -1))[..., ::-1])


def class_at(nodes: Nodes, mass: Array) -> Array:
    """The class in which the cumulative probability reaches ``mass``, batch + (n,); one that is possible."""
    nodes, mass = nodes.detach().expand(mass.shape[:-1]), lax.stop_gradient(mass)
    if _walks_in_order(nodes.tree):
        return _descend_to(nodes, mass)
    every = probs(nodes)
    sums = jnp.cumsum(every, -1)
    search = jnp.vectorize(lambda row, x: jnp.searchsorted(row, x, side="right"), signature="(k),(n)->(n)")
    last = nodes.tree.num_classes - 1 - jnp.argmax(every[..., ::-1] > 0, -1, keepdims=True)
    return jnp.minimum(search(sums, mass * sums[..., -1:]), last)


def pick(values: Array, classes: Array) -> Array:
    """The entries of each row at its own ``classes``."""
    return jnp.take_along_axis(values, classes, -1, mode="promise_in_bounds")


def _walks_in_order(tree: Tree | Forest) -> bool:
    return walks(tree) and bins.yes_is_lower(tree) is not None


def _masses_on_path(nodes: Nodes, classes: Array) -> Masses:
    index, bits = _paths.path(classes, nodes.tree)
    if nodes.tree.kind != "balanced":  # found by climbing
        index, bits = index[..., ::-1], bits[..., ::-1]
    node, on_path, yes_taken = jnp.maximum(index, 0), index >= 0, bits == 1
    no, yes = nodes.at(node).branch_log_probs(floored=False)
    reach = jnp.cumsum(jnp.where(on_path, jnp.where(yes_taken, yes, no), 0), -1)
    beside = jnp.where(on_path, jnp.exp(exclusive(reach) + jnp.where(yes_taken, no, yes)), 0)
    upper_taken = yes_taken != _yes_is_lower(node, nodes.tree)
    below, above = (jnp.where(side, beside, 0).sum(-1) for side in (upper_taken, ~upper_taken))
    return Masses(below, jnp.exp(reach[..., -1]), above)


def _descend_to(nodes: Nodes, mass: Array) -> Array:
    walk = _paths.walk_of(nodes.tree)

    def step(_: Any, carried: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        at, mass, inside = carried
        node = walk.node(at)
        no, yes = (inside * jnp.exp(branch) for branch in nodes.at(node).branch_log_probs(floored=False))
        swapped = _yes_is_lower(node, nodes.tree)
        lower, upper = jnp.where(swapped, yes, no), jnp.where(swapped, no, yes)
        ascends = (mass >= lower) & (upper > 0)
        rest, inside = jnp.where(ascends, mass - lower, mass), jnp.where(ascends, upper, lower)
        return walk.step(at, ascends != swapped), rest, inside

    start = walk.start(mass.shape), mass, jnp.ones_like(mass)
    return walk.classes(lax.fori_loop(0, nodes.tree.depth, step, start)[0])


def _yes_is_lower(node: Array, tree: Tree | Forest) -> Any:
    """Whether yes leads to the lower classes of each node."""
    table = bins.yes_is_lower(tree)
    return _constants.look_up(table, node) if isinstance(table, np.ndarray) else table


def exclusive(sums: Array) -> Array:
    """Running sums of what stands before each entry, from those that include it."""
    return jnp.concatenate([jnp.zeros_like(sums[..., :1]), sums[..., :-1]], -1)
