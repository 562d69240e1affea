"""From what the user passes to what the kernels need: checked scores, a tree, an activation, and cached constants."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from catnat import _checks, _tables
from catnat._builders import balanced
from catnat._forest import Forest
from catnat._tree import Tree
from catnat.jax._activations import Activation, Tables, resolve


def prepare(
    scores: Array, tree: Tree | Forest | None, activation: Activation | str, num_classes: int | None = None
) -> tuple[Array, Tree, Activation]:
    """Checked arguments: scores in the dtype to compute in, the tree they are meant for, the activation object."""
    scores = check_scores(scores)
    if tree is None:
        tree = _default_tree(scores.shape[-1] if num_classes is None else _checks.num_classes(num_classes) - 1)
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


def to_computing_dtype(values: Array) -> Array:
    """``values`` to compute with: half precision computes in float32."""
    if values.dtype == jnp.float16:
        return _from_float16(values)
    return values.astype(jnp.float32) if values.dtype.itemsize < 4 else values


# On the way back a gradient that overflows float16 saturates. (The range of bfloat16 is that of float32.)
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


# ---- constants ----
#
# All constants are NumPy arrays. Inside a compiled function they become part of the program, so those of large trees
# must be few or short: balanced trees need none but runs of equal values, other trees one table of children.

_MOST_CONSTANTS = 512
# Tables of up to this many nodes are kept as they are; longer ones as runs of equal columns, if these are few.
_LONG = 1 << 10
_FEW_RUNS = 1 << 8

_constant = functools.lru_cache(_MOST_CONSTANTS)


@_constant
def _default_tree(num_nodes: int) -> Tree:
    return balanced(num_nodes + 1)


@_constant
def _columns(tree: Tree | Forest, activation: Activation, dtype: Any) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """The activation's constants, (rows, K-1); or those of every run of equal nodes, and where the runs start."""
    tables = _tables.node_tables(tree, activation, dtype)
    if tables.shape[1] == 0:
        return tables, None
    starts = np.flatnonzero(np.append(True, (tables[:, 1:] != tables[:, :-1]).any(0)))
    if len(starts) == 1 or (tree.num_nodes > _LONG and len(starts) <= _FEW_RUNS):
        return tables[:, starts], starts.astype(np.int32)
    return tables, None


def node_tables(tree: Tree | Forest, activation: Activation, dtype: Any) -> Tables:
    """The activation's constants at every node: arrays (K-1,), or floats if all nodes are alike."""
    columns, starts = _columns(tree, activation, dtype)
    if starts is None:
        return tuple(columns)
    if len(starts) == 1:
        return tuple(float(row[0]) for row in columns)
    lengths = np.diff(starts, append=tree.num_nodes)
    runs = [jnp.broadcast_to(columns[:, [run]], (len(columns), int(size))) for run, size in enumerate(lengths)]
    # The barrier: built once, and not again for every row of a batch.
    return tuple(lax.optimization_barrier(jnp.concatenate(runs, axis=1)))


def node_tables_at(index: Array, tree: Tree | Forest, activation: Activation, dtype: Any) -> Tables:
    """The same constants at the nodes ``index``, in its shape."""
    columns, starts = _columns(tree, activation, dtype)
    if starts is None:
        return tuple(jnp.moveaxis(look_up(columns.T, index), -1, 0))
    if len(starts) == 1:
        return tuple(float(row[0]) for row in columns)
    run = jnp.searchsorted(starts, index, side="right") - 1
    return tuple(jnp.moveaxis(look_up(columns.T, run), -1, 0))


def look_up(table: Any, index: Array) -> Array:
    """``table[index]`` along the first axis, for indices that are known to exist."""
    return jnp.asarray(table).at[index].get(mode="promise_in_bounds")


@_constant
def leaf_weights(tree: Tree | Forest, dtype: Any) -> NDArray[Any]:
    """The prior, any multiple of it, with no class at zero: one that underflowed is still a class; (1,) if uniform."""
    prior = np.ones(1) if tree.has_uniform_prior else tree.prior
    return np.maximum(prior, np.finfo(dtype).tiny).astype(dtype)


@_constant
def path_matrix(tree: Tree | Forest, to: str, dtype: Any) -> NDArray[Any]:
    """Whether a no, then whether a yes, at a node lies on a path: 0/1, twice the nodes x leaves or x nodes."""
    return _tables.path_answers(tree, to).astype(dtype).reshape(2 * tree.num_nodes, -1)


@_constant
def edges(tree: Tree | Forest) -> NDArray[np.int32]:
    """The edge above every id, as twice its parent plus its bit; above a root it is twice the number of nodes."""
    return np.where(tree.parents < 0, 2 * tree.num_nodes, 2 * tree.parents + tree.bits).astype(np.int32)


@_constant
def children(tree: Tree | Forest) -> NDArray[np.int32]:
    """The children of all nodes one after the other, that of an edge at its number: no, yes, no, yes ..."""
    return tree.children.astype(np.int32).reshape(-1)


@_constant
def forest_table(forest: Forest, name: str) -> NDArray[np.int32]:
    """An integer table of a forest, by the name of its attribute."""
    return np.asarray(getattr(forest, name), dtype=np.int32)


@_constant
def stacking(forest: Forest) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Where the classes of every variable stand in a row of all classes, (N, largest K), and which places are empty."""
    table, empty = _tables.stacking(forest)
    return table.astype(np.int32), empty


@_constant
def unstacking(forest: Forest) -> NDArray[np.int32]:
    """Where every class of a row of all classes stands in the flattened stack."""
    return _tables.unstacking(forest).astype(np.int32)
