"""Cumulative probabilities of ordered classes, and the class at a given cumulative probability.

If the classes below every node are consecutive, both read one path: the mass below a class adds up the lower branches
at the nodes where its path takes the upper one. On any other tree, and on small or deep ones, all classes are summed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from catnat.jax import _plan, _walk
from catnat.jax._plan import Plan
from catnat.jax.functional import probs
from catnat.trees import bins


class Masses(NamedTuple):
    """The probabilities of all lower classes, of the class itself, and of all higher classes."""

    below: Array
    inside: Array
    above: Array

    def at(self, classes: Array) -> Masses:
        """Select the masses of ``classes`` from those of all classes."""
        return Masses(*(_walk.pick(each, classes) for each in self))


def masses(scores: Array, classes: Array, plan: Plan) -> Masses:
    """Return the masses of ``classes``, batch + (n,)."""
    if _walks_in_order(plan):
        return _masses_on_path(scores, classes, plan)
    return all_masses(scores, plan).at(classes)


def all_masses(scores: Array, plan: Plan) -> Masses:
    """Return the masses of every class, batch + (K,)."""
    inside = probs(scores, plan)
    below = exclusive(jnp.cumsum(inside, -1))
    return Masses(below, inside, exclusive(jnp.cumsum(inside[..., ::-1], -1))[..., ::-1])


def class_at(scores: Array, mass: Array, plan: Plan) -> Array:
    """Return the class at which the cumulative probability exceeds ``mass``, batch + (n,); never an impossible one."""
    scores, mass = map(lax.stop_gradient, (scores, mass))
    if _walks_in_order(plan):
        return _descend_to(scores, mass, plan)
    every = probs(scores, plan)
    sums = jnp.cumsum(every, -1)
    search = jnp.vectorize(lambda row, x: jnp.searchsorted(row, x, side="right"), signature="(k),(n)->(n)")
    last = plan.tree.num_classes - 1 - jnp.argmax(every[..., ::-1] > 0, -1, keepdims=True)
    return jnp.minimum(search(sums, mass * sums[..., -1:]), last)


def _walks_in_order(plan: Plan) -> bool:
    return plan.walks and bins.yes_is_lower(plan.tree) is not None


def _masses_on_path(scores: Array, classes: Array, plan: Plan) -> Masses:
    index, bits = _walk.path(classes, plan.tree)
    node, on_path, yes_taken = jnp.maximum(index, 0), index >= 0, bits == 1
    no, yes = _walk.branches_at(scores, node, plan, floored=False)
    reach = jnp.cumsum(jnp.where(on_path, jnp.where(yes_taken, yes, no), 0), -1)
    beside = jnp.where(on_path, jnp.exp(exclusive(reach) + jnp.where(yes_taken, no, yes)), 0)
    upper_taken = yes_taken != _yes_is_lower(node, plan)
    below, above = (jnp.where(side, beside, 0).sum(-1) for side in (upper_taken, ~upper_taken))
    return Masses(below, jnp.exp(reach[..., -1]), above)


def _descend_to(scores: Array, mass: Array, plan: Plan) -> Array:
    def down(_: Any, carried: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        at, mass, inside = carried
        node = _walk.node(at, plan.tree)
        no, yes = (inside * jnp.exp(branch) for branch in _walk.branches_at(scores, node, plan, floored=False))
        swapped = _yes_is_lower(node, plan)
        lower, upper = jnp.where(swapped, yes, no), jnp.where(swapped, no, yes)
        ascends = (mass >= lower) & (upper > 0)
        rest, inside = jnp.where(ascends, mass - lower, mass), jnp.where(ascends, upper, lower)
        return _walk.step(at, (ascends != swapped).astype(at.dtype), plan.tree), rest, inside

    start = jnp.zeros(mass.shape, int), mass, jnp.ones_like(mass)
    return lax.fori_loop(0, plan.tree.depth, down, start)[0] - plan.tree.num_nodes


def _yes_is_lower(node: Array, plan: Plan) -> Any:
    """Return whether yes leads to the lower classes of each node."""
    table = bins.yes_is_lower(plan.tree)
    return _plan.look_up(table, node) if isinstance(table, np.ndarray) else table


def exclusive(sums: Array) -> Array:
    """Convert inclusive running sums on the last axis to exclusive ones."""
    return jnp.concatenate([jnp.zeros_like(sums[..., :1]), sums[..., :-1]], -1)
