"""Masks of invalid classes: from what users pass to a boolean array, and which rows of it can be used."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool

from catnat import _checks
from catnat.jax import _inputs
from catnat.jax._variables import variables_of
from catnat.trees.builders import balanced
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree


def validate_mask(mask: Bool[Array, "*batch classes"], classes: int | Tree | Forest) -> Bool[Array, "*batch"]:
    """Which rows of a mask can be used: those that leave at least one class of every variable.

    Where its values are known a distribution raises for a row that leaves none. While a function is traced, by ``jit``
    or ``vmap``, it cannot, and treats the row as unmasked: this function tells which rows those are.

    Args:
        mask: Boolean, True for valid classes.
        classes: The number of classes, the tree, or the forest.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import validate_mask
        >>> print(validate_mask(jnp.array([[True, False, True], [False, False, False]]), 3))
        [ True False]
    """
    tree = classes if isinstance(classes, (Tree, Forest)) else balanced(classes)
    return _left(_as_boolean(mask, tree.num_classes), tree).all(-1)


def given(mask: Array | None, valid_classes: Array | None, num_classes: int) -> Array | None:
    """The mask that a user gives, as it is or as indices of the valid classes."""
    if valid_classes is None:
        return mask
    if mask is not None:
        _checks.mask_or_indices()
    return _from_indices(valid_classes, num_classes)


def valid_classes(mask: Array, classes: Tree | Forest) -> Array:
    """The valid classes (..., K) of a mask as users give it, with every class of an all-masked variable made valid.

    Where the values are known, rows with such a variable raise.
    """
    valid = _as_boolean(mask, classes.num_classes)
    left = _left(valid, classes)
    if _inputs.is_true(~left.all()):
        raise ValueError(
            f"`mask` leaves no valid class in {int((~left).sum())} of {left.size} rows, but a distribution needs at "
            "least one: validate_mask(mask, classes) tells which rows. (Is True the *valid* class?)"
        )
    return valid | ~variables_of(classes).per_class(left)


@functools.partial(jax.jit, static_argnames="classes")
def _left(valid: Array, classes: Tree | Forest) -> Array:
    """Whether a row has a valid class left, (..., 1), or each of its variables in a forest, (..., N)."""
    return variables_of(classes).count(valid) > 0


def _as_boolean(mask: Array, num_classes: int) -> Array:
    """A checked mask (..., K), True for valid classes."""
    mask = _inputs.check_array(mask, "mask")
    if mask.dtype != bool or mask.ndim == 0:
        _checks.not_a_mask(mask.dtype, mask.shape, num_classes, "mask.astype(bool)")
    _checks.width_of_mask(mask.shape[-1], num_classes)
    return mask


def _from_indices(indices: Array, num_classes: int) -> Array:
    indices = _inputs.check_array(indices, "valid_classes")
    if not jnp.issubdtype(indices.dtype, jnp.integer) or indices.ndim == 0:
        _checks.not_indices(indices.dtype, indices.shape)
    if not jnp.issubdtype(indices.dtype, jnp.signedinteger) or indices.dtype.itemsize < 4:
        indices = indices.astype(int)  # a small dtype could not hold what it is compared with
    outside = (indices < -1) | (indices >= num_classes)
    if _inputs.is_true(outside.any()):
        raise ValueError(
            f"`valid_classes` holds {int(indices[outside][0])}, but the classes are 0 .. {num_classes - 1}; -1 fills "
            "up rows with fewer valid classes."
        )
    padding = jnp.where(outside | (indices < 0), num_classes, indices)  # no such class: dropped
    valid = jnp.zeros((*indices.shape[:-1], num_classes), bool)
    return jnp.put_along_axis(valid, padding, True, -1, inplace=False, mode="drop")
