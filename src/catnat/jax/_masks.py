"""Masks of invalid classes: from what users pass to a boolean array, and which rows of it can be used."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Shaped

from catnat import _checks
from catnat._forest import Forest
from catnat._tree import Tree
from catnat.jax import _plan


def validate_mask(mask: Shaped[Array, "*batch classes"], classes: int | Tree | Forest) -> Bool[Array, "*batch"]:
    """Which rows of a mask can be used: those that leave at least one class of every variable.

    Where its values are known a distribution raises for a row that leaves none. While a function is traced, by ``jit``
    or ``vmap``, it cannot, and treats the row as unmasked: this function tells which rows those are.

    Args:
        mask: Boolean, True for valid classes; or the indices of the valid classes, padded with -1.
        classes: The number of classes, the tree, or the forest.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import validate_mask
        >>> print(validate_mask(jnp.array([[True, False, True], [False, False, False]]), 3))
        [ True False]
    """
    num_classes = classes if isinstance(classes, int) else classes.num_classes
    left = _left(_as_boolean(mask, num_classes), classes)
    return left.all(-1) if isinstance(classes, Forest) else left


def valid_classes(mask: Array, classes: Tree | Forest) -> Array:
    """The valid classes (..., K) of a mask as users give it, with every class of an all-masked variable made valid.

    Where the values are known, rows with such a variable raise.
    """
    valid = _as_boolean(mask, classes.num_classes)
    left = _left(valid, classes)
    if _plan.is_true(~left.all()):
        raise ValueError(
            f"`mask` leaves no valid class in {int((~left).sum())} of {left.size} rows, but a distribution needs at "
            "least one: validate_mask(mask, classes) tells which rows. (Is True the *valid* class?)"
        )
    if isinstance(classes, Forest):
        return valid | ~left[..., _plan.forest_table(classes, "variable_of_class")]
    return valid | ~left[..., None]


@functools.partial(jax.jit, static_argnames="classes")
def _left(valid: Array, classes: int | Tree | Forest) -> Array:
    """Whether a row has a valid class left, or each of its variables (..., N) in a forest."""
    return (stack(valid, classes, False) if isinstance(classes, Forest) else valid).any(-1)


def _as_boolean(mask: Array, num_classes: int) -> Array:
    """A checked mask (..., K), True for valid classes, from a boolean one or from indices."""
    mask = _plan.check_array(mask, "mask")
    whole = jnp.issubdtype(mask.dtype, jnp.integer)
    if not (whole or mask.dtype == bool) or mask.ndim == 0:
        raise TypeError(
            f"`mask` has dtype {mask.dtype} and shape {mask.shape}, but a boolean array (..., {num_classes}), True for "
            "valid classes, or an array of their indices is needed: mask.astype(bool) makes a boolean of 0 and 1."
        )
    if whole:
        return _from_indices(mask, num_classes)
    _checks.width_of_mask(mask.shape[-1], num_classes)
    return mask


def _from_indices(indices: Array, num_classes: int) -> Array:
    if not jnp.issubdtype(indices.dtype, jnp.signedinteger) or indices.dtype.itemsize < 4:
        indices = indices.astype(int)  # a small dtype could not hold what it is compared with
    outside = (indices < -1) | (indices >= num_classes)
    if _plan.is_true(outside.any()):
        raise ValueError(
            f"`mask` holds the index {int(indices[outside][0])}, but the classes are 0 .. {num_classes - 1}; -1 fills "
            "up rows with fewer valid classes. A mask of 0 and 1 must be boolean: mask.astype(bool)."
        )
    padding = jnp.where(outside | (indices < 0), num_classes, indices)  # no such class: dropped
    valid = jnp.zeros((*indices.shape[:-1], num_classes), bool)
    return jnp.put_along_axis(valid, padding, True, -1, inplace=False, mode="drop")


def stack(values: Array, forest: Forest, fill: float | bool) -> Array:
    """Values of all classes of a forest, (..., sum of K), one variable a row: (..., N, largest K)."""
    table, empty = _plan.stacking(forest)
    return jnp.where(empty, fill, values.at[..., table].get(mode="promise_in_bounds"))


def unstack(values: Array, forest: Forest) -> Array:
    """The inverse of :func:`stack`."""
    *batch, variables, largest = values.shape
    flat = values.reshape(*batch, variables * largest)
    return flat.at[..., _plan.unstacking(forest)].get(mode="promise_in_bounds")
