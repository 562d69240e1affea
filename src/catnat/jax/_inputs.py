"""From what the user passes to what is computed with: checked scores, a tree, an activation, and dtypes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from catnat import _checks
from catnat.activations import Activation, resolve
from catnat.jax import _constants
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree


def check(
    scores: Array, tree: Tree | Forest | None, activation: Activation | str, num_classes: int | None = None
) -> tuple[Array, Tree, Activation]:
    """Checked arguments: scores in the dtype to compute in, the tree they are meant for, the activation object."""
    scores = check_scores(scores)
    if tree is None:
        tree = _constants.default_tree(
            scores.shape[-1] if num_classes is None else _checks.num_classes(num_classes) - 1
        )
    elif not isinstance(tree, Tree):
        _checks.not_a_tree(tree)
    elif num_classes is not None:
        _checks.same_classes(num_classes, tree)
    _checks.width_of_scores(scores.shape[-1], tree.num_classes)
    return to_computing_dtype(scores), tree, resolve(activation)


def check_scores(scores: Array) -> Array:
    """Scores of whatever number of nodes, or say what is wrong with them."""
    scores = check_array(scores, "scores")
    if not jnp.issubdtype(scores.dtype, jnp.floating) or scores.ndim == 0:
        raise TypeError(
            f"`scores` has dtype {scores.dtype} and shape {scores.shape}, but a floating-point array with one score "
            "per node on its last axis is needed: (..., K-1)."
        )
    return scores


def check_array(value: Any, name: str) -> Array:
    """``value`` as a JAX array; like the functions of JAX, those of catnat take no lists."""
    if not isinstance(value, (jax.Array, np.ndarray)):
        raise TypeError(f"`{name}` is a {type(value).__name__}, but a jax.Array is needed: jnp.asarray({name}).")
    return jnp.asarray(value)


def class_indices(classes: Any, name: str) -> Array:
    """Classes in the dtype of indices: a small one cannot hold what they are compared with, K or -100."""
    if isinstance(classes, np.ndarray) and classes.dtype.kind in "iu":
        limits = jnp.iinfo(jnp.asarray(0).dtype)
        outside = (classes < int(limits.min)) | (classes > int(limits.max))
        if outside.any():  # JAX would wrap them around, to some class that exists
            raise ValueError(f"`{name}` holds {classes[outside][0]}, but indices are at most {limits.max} here.")
    classes = check_array(classes, name)
    if not jnp.issubdtype(classes.dtype, jnp.integer):
        raise TypeError(f"`{name}` has dtype {classes.dtype}, but class indices are integers: use .astype(int).")
    return classes.astype(int)


def nearest_classes(values: Any, num_classes: int) -> tuple[Array, Array]:
    """The nearest classes to values of any dtype, and which values are classes."""
    values = jnp.asarray(values)
    values = values.astype(jnp.promote_types(values.dtype, jnp.int32))  # a small dtype cannot hold the last class
    classes = jnp.clip(values, 0, num_classes - 1).astype(jnp.int32)
    return classes, classes == values


def takes_key(function: _checks.Function) -> _checks.Function:
    """For functions with a keyword ``key``: a call without it, or with what is no key, says what is needed."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "key" not in kwargs:
            raise TypeError(
                f"`{function.__name__}` draws random numbers and needs a key: pass key=jax.random.key(0), and a new "
                "one from jax.random.split for every call."
            )
        check_key(kwargs["key"])
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def check_key(key: Any) -> None:
    """Raise unless ``key`` is a key of ``jax.random``, of the new kind or the old one."""
    dtype = getattr(key, "dtype", None)
    if dtype is None or not (jnp.issubdtype(dtype, jax.dtypes.prng_key) or dtype == np.uint32):
        shown = f"{key!r} of type {type(key).__name__}" if dtype is None else f"an array of dtype {dtype}"
        raise TypeError(f"`key` is {shown}, but a random key is needed: jax.random.key({key if dtype is None else 0}).")


def is_true(condition: Array) -> bool:
    """Whether ``condition`` holds, as far as can be told: not while a function is traced."""
    return not isinstance(condition, jax.core.Tracer) and bool(condition)


def behind_batch(
    values: Array, batch: Sequence[int], event: Sequence[int] = ()
) -> tuple[Array, Callable[[Array], Array]]:
    """Values whose sample axes stand behind the batch, batch + (n,) + event, and how to bring results back.

    Repeated reads of a row are then one gather, and no row is copied.
    """
    shape = jnp.broadcast_shapes(values.shape[: values.ndim - len(event)], tuple(batch))
    extra = len(shape) - len(batch)
    wide, before = shape[extra:], tuple(range(extra))
    behind = tuple(range(len(wide), len(shape)))

    def back(found: Array) -> Array:
        return jnp.moveaxis(found.reshape((*wide, *shape[:extra], *event)), behind, before)

    values = jnp.moveaxis(jnp.broadcast_to(values, (*shape, *event)), before, behind)
    return values.reshape((*wide, math.prod(shape[:extra]), *event)), back


def to_computing_dtype(values: Array) -> Array:
    """``values`` to compute with: half precision computes in float32."""
    if values.dtype == jnp.float16:
        return _from_float16(values)
    return values.astype(jnp.float32) if values.dtype.itemsize < 4 else values


# In the backward pass a gradient that overflows float16 saturates. (The range of bfloat16 is that of float32.)
@jax.custom_vjp
def _from_float16(values: Array) -> Array:
    return values.astype(jnp.float32)


def _saturate_gradient(_: None, grad: Array) -> tuple[Array]:
    limit = float(jnp.finfo(jnp.float16).max) / 4  # room to add a few
    return (jnp.clip(grad, -limit, limit).astype(jnp.float16),)


_from_float16.defvjp(lambda values: (values.astype(jnp.float32), None), _saturate_gradient)


def returned_dtype(scores: Array) -> Any:
    """The scores' own dtype, or what JAX makes of it: without x64, float64 of NumPy is float32."""
    return jax.dtypes.canonicalize_dtype(scores.dtype)


def saturate(values: Array, dtype: Any) -> Array:
    """``values`` in ``dtype``, with what overflows it at its largest or smallest finite number."""
    if values.dtype == dtype:
        return values
    limits = jnp.finfo(dtype)
    return jnp.clip(values, limits.min, limits.max).astype(dtype)
