"""Constants of trees and activations, built once per dtype."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from catnat.activations import Activation
from catnat.trees import tables
from catnat.trees.builders import balanced
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree

# All constants are NumPy arrays. Inside a compiled function they become part of the program, so those of large trees
# must be few or short: balanced trees need none but runs of equal values, other trees one table of children.

_MOST_CONSTANTS = 512
# Tables of up to this many nodes are kept as they are; longer ones as runs of equal columns, if these are few.
_LONG = 1 << 10
_FEW_RUNS = 1 << 8

constant = functools.lru_cache(_MOST_CONSTANTS)


@constant
def default_tree(num_nodes: int) -> Tree:
    """The tree where none is given."""
    return balanced(num_nodes + 1)


@constant
def _runs(tree: Tree | Forest, activation: Activation, dtype: Any) -> tuple[Any, NDArray[Any] | None]:
    """The activation's constants, (K-1,) each; or those of every run of equal nodes, and where the runs start."""
    found = tables.node_constants(tree, activation, dtype)
    if tree.num_nodes == 0:
        return found, None
    changes = np.any([row[1:] != row[:-1] for row in found], axis=0)
    starts = np.flatnonzero(np.append(True, changes))
    if len(starts) == 1 or (tree.num_nodes > _LONG and len(starts) <= _FEW_RUNS):
        return type(found)(*(row[starts] for row in found)), starts.astype(np.int32)
    return found, None


def node_constants(tree: Tree | Forest, activation: Activation, dtype: Any) -> Any:
    """The activation's constants at every node: arrays (K-1,), or floats if all nodes are alike."""
    found, starts = _runs(tree, activation, dtype)
    if starts is None:
        return found
    if len(starts) == 1:
        return type(found)(*(float(row[0]) for row in found))
    lengths, rows = np.diff(starts, append=tree.num_nodes), np.stack(found)
    runs = [jnp.broadcast_to(rows[:, [run]], (len(rows), int(size))) for run, size in enumerate(lengths)]
    # The barrier: built once, and not again for every row of a batch.
    return type(found)(*lax.optimization_barrier(jnp.concatenate(runs, axis=1)))


def node_constants_at(index: Array, tree: Tree | Forest, activation: Activation, dtype: Any) -> Any:
    """The same constants at the nodes ``index``, in its shape."""
    found, starts = _runs(tree, activation, dtype)
    if starts is not None:
        if len(starts) == 1:
            return type(found)(*(float(row[0]) for row in found))
        index = jnp.searchsorted(starts, index, side="right") - 1
    return type(found)(*jnp.moveaxis(look_up(np.stack(found, -1), index), -1, 0))


def look_up(table: Any, index: Array) -> Array:
    """``table[index]`` along the first axis, for indices that are known to exist."""
    return jnp.asarray(table).at[index].get(mode="promise_in_bounds")


@constant
def leaf_weights(tree: Tree | Forest, dtype: Any) -> NDArray[Any]:
    """The prior, any multiple of it, with no class at zero: one that underflowed is still a class; (1,) if uniform."""
    prior = np.ones(1) if tree.has_uniform_prior else tree.prior
    return np.maximum(prior, np.finfo(dtype).tiny).astype(dtype)


@constant
def path_matrix(tree: Tree | Forest, to: str, dtype: Any) -> NDArray[Any]:
    """Whether a no, then whether a yes, at a node lies on a path: 0/1, twice the nodes x leaves or x nodes."""
    return tables.path_branches(tree, to).astype(dtype).reshape(2 * tree.num_nodes, -1)


@constant
def edges(tree: Tree | Forest) -> NDArray[np.int32]:
    """The edge above every id, as twice its parent plus its bit; above a root it is twice the number of nodes."""
    return np.where(tree.parents < 0, 2 * tree.num_nodes, 2 * tree.parents + tree.bits).astype(np.int32)


@constant
def children(tree: Tree | Forest) -> NDArray[np.int32]:
    """The children of all nodes one after the other, that of an edge at its number: no, yes, no, yes ..."""
    return tree.child_ids.astype(np.int32).reshape(-1)


@constant
def forest_table(forest: Forest, name: str) -> NDArray[np.int32]:
    """An integer table of a forest, by the name of its attribute."""
    return np.asarray(getattr(forest, name), dtype=np.int32)


@constant
def stacking(forest: Forest) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Where the classes of every variable stand in a row of all classes, (N, largest K), and which places are empty."""
    table, empty = tables.stacking(forest)
    return table.astype(np.int32), empty


@constant
def unstacking(forest: Forest) -> NDArray[np.int32]:
    """Where every class of a row of all classes stands in the flattened stack."""
    return tables.unstacking(forest).astype(np.int32)
