"""The variables of a distribution: one, whose classes are the last axis, or those of a forest, side by side on it.

Both kinds have the same methods, so that nothing else need know which one it has.
"""

from __future__ import annotations

import torch
from torch import Tensor

from catnat.torch import _constants
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree


def places_of(classes: Tensor, tree: Tree | Forest) -> Tensor:
    """Where classes stand among those of all variables.

    A class that a variable has not gets a place that no table has, for which torch raises: its path would end at
    another class, or at one of the next variable.
    """
    first: Tensor | int = 0
    sizes: Tensor | int = tree.num_classes
    if isinstance(tree, Forest):
        first, sizes = (_constants.forest_table(tree, name, classes.device) for name in ("first_classes", "sizes"))
    return (classes + first).masked_fill((classes < 0) | (classes >= sizes), 2 * tree.num_classes)


class SingleVariable:
    """One variable: every method is the identity, or adds the axis that variables would have."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def stack(self, values: Tensor, fill: float | bool) -> Tensor:
        """Values of all classes with those of one variable on the last axis, the variables of a forest before it."""
        return values

    def join(self, values: Tensor) -> Tensor:
        """The inverse of :meth:`stack`."""
        return values

    def per_class(self, values: Tensor) -> Tensor:
        """A value of every variable, (..., N), or (..., 1) of a single one, at each of its classes."""
        return values

    def per_node(self, values: Tensor) -> Tensor:
        """Of values of all nodes, those of their roots."""
        return values.narrow(-1, 0, min(1, self.tree.num_nodes))

    def count(self, valid: Tensor) -> Tensor:
        """The number of valid classes of every variable, (..., N) or (..., 1)."""
        return valid.sum(-1, keepdim=True, dtype=torch.int32)  # many times faster than any, and than int64

    def places(self, classes: Tensor) -> Tensor:
        """Where a value's classes stand among all classes, (..., N) or (..., 1)."""
        return classes.unsqueeze(-1)

    def joint(self, log_probs: Tensor) -> Tensor:
        """The log-probability of a value from those of its classes, (..., N) or (..., 1)."""
        return log_probs.squeeze(-1)

    def with_axis(self, values: Tensor) -> Tensor:
        """One number for every class of a value, (..., N), with that axis for a single variable too: (..., 1)."""
        return values.unsqueeze(-1)

    def without_axis(self, values: Tensor) -> Tensor:
        """The inverse of :meth:`with_axis`."""
        return values.squeeze(-1)

    def beside_stack(self, values: Tensor) -> Tensor:
        """One number a row, with the axes that broadcast against a stack."""
        return values.unsqueeze(-1)


class ForestVariables:
    """The variables of a forest."""

    def __init__(self, forest: Forest) -> None:
        self.forest = forest

    def stack(self, values: Tensor, fill: float | bool) -> Tensor:
        """From (..., sum of K) to (..., N, largest K)."""
        table, empty = _constants.stacking(self.forest, values.device)
        return values.index_select(-1, table.flatten()).unflatten(-1, table.shape).masked_fill(empty, fill)

    def join(self, values: Tensor) -> Tensor:
        """The inverse of :meth:`stack`."""
        return values.flatten(-2).index_select(-1, _constants.unstacking(self.forest, values.device))

    def per_class(self, values: Tensor) -> Tensor:
        """From (..., N) to (..., sum of K)."""
        return values.index_select(-1, _constants.forest_table(self.forest, "variable_of_class", values.device))

    def per_node(self, values: Tensor) -> Tensor:
        """The value of its root, for every node."""
        return values.index_select(-1, _constants.forest_table(self.forest, "root_of_node", values.device))

    def count(self, valid: Tensor) -> Tensor:
        """From (..., sum of K) to (..., N)."""
        return self.stack(valid, False).sum(-1, dtype=torch.int32)

    def places(self, classes: Tensor) -> Tensor:
        """Classes count from 0 in every variable."""
        return places_of(classes, self.forest)

    def joint(self, log_probs: Tensor) -> Tensor:
        """The sum; one masked class rules the whole value out."""
        lowest = torch.finfo(log_probs.dtype).min
        return log_probs.sum(-1).masked_fill((log_probs == lowest).any(-1), lowest)

    def with_axis(self, values: Tensor) -> Tensor:
        """The axis of the variables is there already."""
        return values

    def without_axis(self, values: Tensor) -> Tensor:
        """The axis of the variables stays."""
        return values

    def beside_stack(self, values: Tensor) -> Tensor:
        """From (...) to (..., 1, 1)."""
        return values[..., None, None]


def variables_of(tree: Tree | Forest) -> SingleVariable | ForestVariables:
    """The variables whose classes the leaves of a tree, or of a forest, are."""
    return ForestVariables(tree) if isinstance(tree, Forest) else SingleVariable(tree)
