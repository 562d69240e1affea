"""The variables of a distribution: one, whose classes are the last axis, or those of a forest, side by side on it.

Both kinds have the same methods, so that nothing else need know which one it has.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from catnat.jax import _constants
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree


class SingleVariable:
    """One variable: every method is the identity, or adds the axis that variables would have."""

    def __init__(self, tree: Tree) -> None:
        self.sizes = (tree.num_classes,)

    def stack(self, values: Array, fill: float | bool) -> Array:
        """Values of all classes with those of one variable on the last axis, the variables of a forest before it."""
        return values

    def join(self, values: Array) -> Array:
        """The inverse of :meth:`stack`."""
        return values

    def per_class(self, values: Array) -> Array:
        """A value of every variable, (..., N), or (..., 1) of a single one, at each of its classes."""
        return values

    def per_node(self, values: Array) -> Array:
        """Of values of all nodes, those of their roots."""
        return values[..., :1]

    def count(self, valid: Array) -> Array:
        """The number of valid classes of every variable, (..., N) or (..., 1)."""
        return valid.sum(-1, keepdims=True)

    def places(self, classes: Array) -> Array:
        """Where a value's classes stand among all classes, (..., N) or (..., 1)."""
        return classes[..., None]

    def with_axis(self, values: Array) -> Array:
        """One number for every class of a value, (..., N), with that axis for a single variable too: (..., 1)."""
        return values[..., None]

    def without_axis(self, values: Array) -> Array:
        """The inverse of :meth:`with_axis`."""
        return values[..., 0]

    def beside_stack(self, values: Array) -> Array:
        """One number a row, with the axes that broadcast against a stack."""
        return values[..., None]


class ForestVariables:
    """The variables of a forest."""

    def __init__(self, forest: Forest) -> None:
        self.forest, self.sizes = forest, forest.sizes

    def stack(self, values: Array, fill: float | bool) -> Array:
        """From (..., sum of K) to (..., N, largest K)."""
        table, empty = _constants.stacking(self.forest)
        return jnp.where(empty, fill, values.at[..., table].get(mode="promise_in_bounds"))

    def join(self, values: Array) -> Array:
        """The inverse of :meth:`stack`."""
        *batch, variables, largest = values.shape
        flat = values.reshape(*batch, variables * largest)
        return flat.at[..., _constants.unstacking(self.forest)].get(mode="promise_in_bounds")

    def per_class(self, values: Array) -> Array:
        """From (..., N) to (..., sum of K)."""
        return values[..., _constants.forest_table(self.forest, "variable_of_class")]

    def per_node(self, values: Array) -> Array:
        """The value of its root, for every node."""
        return values[..., _constants.forest_table(self.forest, "root_of_node")]

    def count(self, valid: Array) -> Array:
        """From (..., sum of K) to (..., N)."""
        return self.stack(valid, False).sum(-1)

    def places(self, classes: Array) -> Array:
        """Classes count from 0 in every variable."""
        return classes + _constants.forest_table(self.forest, "first_classes")

    def with_axis(self, values: Array) -> Array:
        """The axis of the variables is there already."""
        return values

    def without_axis(self, values: Array) -> Array:
        """The axis of the variables stays."""
        return values

    def beside_stack(self, values: Array) -> Array:
        """From (...) to (..., 1, 1)."""
        return values[..., None, None]


def variables_of(tree: Tree | Forest) -> SingleVariable | ForestVariables:
    """The variables whose classes the leaves of a tree, or of a forest, are."""
    return ForestVariables(tree) if isinstance(tree, Forest) else SingleVariable(tree)
