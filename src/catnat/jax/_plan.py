"""Checks of arguments, and the plan of a tree and an activation: all constants that do not depend on the scores.

The constants are NumPy arrays, built once. They become part of every compiled function, so large trees must have few
or short ones: balanced trees need only runs of equal values, other trees two tables of integers.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from catnat import _checks
from catnat.activations import Activation, natural, resolve
from catnat.trees import tables
from catnat.trees.builders import as_tree
from catnat.trees.tree import Tree

# Up to this K all classes are computed even if few are needed: a few large operations are faster than many small ones.
MOST_DENSE_CLASSES = 64
# In a deeper tree (a chain, say) single paths are not walked: sums along all paths at once take fewer steps.
MOST_WALKED_LEVELS = 64
# Constants of up to _LONG nodes are stored in full, longer ones as runs of equal nodes, if there are at most _FEW_RUNS.
_LONG = 1 << 10
_FEW_RUNS = 1 << 8

cached = functools.lru_cache(512)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A tree, an activation and the computing dtype: the static arguments, which do not depend on the scores."""

    tree: Tree
    activation: Activation
    dtype: np.dtype[Any]

    @property
    def walks(self) -> bool:
        """Whether to walk paths instead of computing all classes: False if K is small or the tree is deep."""
        return self.tree.num_classes > MOST_DENSE_CLASSES and self.tree.depth <= MOST_WALKED_LEVELS

    @property
    def is_natural(self) -> bool:
        """Whether the activation is computed by its band: only for the exact type, as a subclass may differ."""
        return type(self.activation) is natural

    def constants(self, index: Array | None = None) -> tuple[Any, ...]:
        """Return the activation's constants at all nodes, or at ``index`` in its shape; floats if all nodes are equal.

        They are the edges of the natural activation's :class:`catnat.activations.Band`, or the offset of any other.
        """
        rows, starts = _constants(self)
        if starts is not None and len(starts) == 1:
            return tuple(map(float, rows[:, 0]))
        if index is not None:
            at = index if starts is None else jnp.searchsorted(starts, index, side="right") - 1
            return tuple(jnp.moveaxis(look_up(rows.T, at), -1, 0))
        if starts is None:
            return tuple(rows)
        lengths = np.diff(starts, append=self.tree.num_nodes)
        runs = [jnp.broadcast_to(rows[:, [run]], (len(rows), int(size))) for run, size in enumerate(lengths)]
        # With the barrier they are built once, not again for every row of a batch.
        return tuple(lax.optimization_barrier(jnp.concatenate(runs, axis=1)))


@cached
def _constants(plan: Plan) -> tuple[NDArray[Any], NDArray[np.int32] | None]:
    """Return the constants of every node, (n, K-1), or of every run of equal nodes with the first node of each run."""
    tree, activation = plan.tree, plan.activation
    rows: tuple[Any, ...] = (activation.offset(tree).astype(plan.dtype),)
    if isinstance(activation, natural) and plan.is_natural:
        rows = activation.band(tree, plan.dtype)
    found = np.stack([np.broadcast_to(row, tree.num_nodes) for row in rows])
    if tree.num_nodes == 0:
        return found, None
    starts = np.flatnonzero(np.append(True, (found[:, 1:] != found[:, :-1]).any(axis=0)))
    if len(starts) == 1 or (tree.num_nodes > _LONG and len(starts) <= _FEW_RUNS):
        return found[:, starts], starts.astype(np.int32)
    return found, None


@cached
def path_matrix(tree: Tree, to: str, dtype: Any) -> NDArray[Any]:
    """Return the 0/1 matrix of the branches, all no, then all yes, on the paths: (2 (K-1), leaves or nodes)."""
    return tables.path_branches(tree, to).astype(dtype).reshape(2 * tree.num_nodes, -1)


@cached
def edges(tree: Tree) -> NDArray[np.int32]:
    """Return the edge above every id, as twice its parent plus its bit; for the root, twice the number of nodes."""
    return np.where(tree.parents < 0, 2 * tree.num_nodes, 2 * tree.parents + tree.bits).astype(np.int32)


@cached
def children(tree: Tree) -> NDArray[np.int32]:
    """Return the child below every edge: the no child of the first node, its yes child, and so on."""
    return tree.child_ids.astype(np.int32).reshape(-1)


def look_up(table: Any, index: Array | NDArray[Any]) -> Array:
    """Return ``table[index]`` along the first axis; the indices must be within bounds."""
    return jnp.asarray(table).at[index].get(mode="promise_in_bounds")


# ---- arguments ----


def prepare(scores: Array, tree: Tree | int | None, activation: Activation | str) -> tuple[Array, Plan, Any]:
    """Return the scores in the computing dtype, their plan, and the dtype of results."""
    scores = check_scores(scores)
    tree = as_tree(tree, scores.shape[-1] + 1)
    _checks.width_of_scores(scores.shape[-1], tree.num_classes)
    computed = to_computing_dtype(scores)
    return computed, Plan(tree, resolve(activation), computed.dtype), scores.dtype


def check_scores(scores: Any) -> Array:
    """Return the scores of any number of nodes as an array; raise if they are not floating-point."""
    return check_floating(scores, "scores", "score per node", "K-1", least=0)


def check_floating(values: Any, name: str, one: str, width: str, least: int = 1) -> Array:
    """Return ``values`` as an array; raise unless it is floating-point with at least ``least`` entries per row."""
    values = check_array(values, name)
    if not jnp.issubdtype(values.dtype, jnp.floating) or values.ndim == 0 or values.shape[-1] < least:
        raise TypeError(
            f"`{name}` has dtype {values.dtype} and shape {values.shape}, but a floating-point array with one {one} "
            f"on its last axis is needed: (..., {width})."
        )
    return values


def check_array(value: Any, name: str) -> Array:
    """Return ``value`` as a JAX array; raise for lists, as functions of JAX do, and for integers that do not fit."""
    if not isinstance(value, (jax.Array, np.ndarray)):
        raise TypeError(f"`{name}` is a {type(value).__name__}, but a jax.Array is needed: jnp.asarray({name}).")
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
        limits = jnp.iinfo(jnp.asarray(0).dtype)
        outside = (value < int(limits.min)) | (value > int(limits.max))
        if outside.any():  # JAX would wrap them around to other integers
            shown = f"integers are from {limits.min} to {limits.max} here"
            raise ValueError(f"`{name}` holds {value[outside][0]}, but {shown}.")
    return jnp.asarray(value)


def class_indices(classes: Any, name: str) -> Array:
    """Return classes in the dtype of indices, because a smaller dtype may not hold K or -100."""
    classes = check_array(classes, name)
    if not jnp.issubdtype(classes.dtype, jnp.integer):
        raise TypeError(f"`{name}` has dtype {classes.dtype}, but class indices are integers: use .astype(int).")
    return classes.astype(int)


def existing_classes(classes: Any, num_classes: int) -> Array:
    """Return existing class indices in the dtype of indices; raise for others, or clamp them while traced."""
    classes = class_indices(classes, "classes")
    outside = (classes < 0) | (classes >= num_classes)
    if is_true(outside.any()):
        raise ValueError(
            f"`classes` holds {int(classes[outside][0])}, but this tree has the classes 0 .. {num_classes - 1}. "
            "If it marks targets to skip, pass it as `ignore_index` to cross_entropy or to the head."
        )
    return jnp.clip(classes, 0, num_classes - 1)


def takes_key(function: _checks.Function) -> _checks.Function:
    """Wrap a function with a keyword ``key`` to raise if the key is missing or is not a random key."""

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
    """Return whether ``condition`` is known to hold; False while it is traced."""
    return not isinstance(condition, jax.core.Tracer) and bool(condition)


# ---- shapes ----


def expand(values: Array, batch: Sequence[int]) -> Array:
    """Broadcast ``values`` to this batch shape, keeping the last axis."""
    return jnp.broadcast_to(values, (*batch, values.shape[-1]))


def behind_batch(values: Array, batch: Sequence[int]) -> tuple[Array, Callable[[Array], Array]]:
    """Move sample axes behind the batch, batch + (n,); return the values and the function that moves results back.

    A batch axis of size 1 counts as a sample axis. Repeated reads of a row are then one gather, and no row is copied.
    """
    shape = jnp.broadcast_shapes(values.shape, tuple(batch))
    rows = (*[1] * (len(shape) - len(batch)), *batch)
    before = tuple(axis for axis, size in enumerate(rows) if size == 1)
    behind = tuple(range(len(shape) - len(before), len(shape)))
    moved = jnp.moveaxis(jnp.broadcast_to(values, shape), before, behind)

    def back(found: Array) -> Array:
        return jnp.moveaxis(found.reshape(moved.shape), behind, before)

    return moved.reshape((*batch, math.prod(shape[axis] for axis in before))), back


# ---- dtypes ----


def to_computing_dtype(values: Array) -> Array:
    """Return ``values`` in the computing dtype: float32 for half precision, else their own dtype."""
    if values.dtype == jnp.float16:
        return _from_float16(values)
    return values.astype(jnp.float32) if values.dtype.itemsize < 4 else values


# In the backward pass a gradient that overflows float16 is clamped. (The range of bfloat16 is that of float32.)
@jax.custom_vjp
def _from_float16(values: Array) -> Array:
    return values.astype(jnp.float32)


def _clamp_gradient(_: None, grad: Array) -> tuple[Array]:
    limit = float(jnp.finfo(jnp.float16).max) / 4  # leaves room to add a few
    return (jnp.clip(grad, -limit, limit).astype(jnp.float16),)


_from_float16.defvjp(lambda values: (values.astype(jnp.float32), None), _clamp_gradient)


def clamp_to_dtype(values: Array, dtype: Any) -> Array:
    """Convert ``values`` to ``dtype``, clamped to its finite range."""
    if values.dtype == dtype:
        return values
    limits = jnp.finfo(dtype)
    return jnp.clip(values, limits.min, limits.max).astype(dtype)


def lowest(like: Array) -> float:
    """Return the smallest finite number of an array's dtype."""
    return float(jnp.finfo(like.dtype).min)
