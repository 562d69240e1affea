"""Constants of trees and activations as tensors, built once per device and dtype."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from catnat.activations import Activation
from catnat.trees import tables
from catnat.trees.builders import balanced
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree

F = TypeVar("F", bound=Callable[..., Any])


class _Store:
    """The constants, each an attribute: the compiler can guard on an attribute, but not on a function's result."""


_store = _Store()
_names: dict[tuple[Any, ...], str] = {}
_MOST_CONSTANTS = 512


def constant(build: F) -> F:
    """Build once per arguments, also under the compiler, which takes the result as a constant of the graph.

    A tensor made under a fake-tensor mode is fake, and one made inside a ``torch.func`` transform belongs to it:
    neither may outlive its place, so there constants are built afresh and not kept.
    """

    @torch.compiler.assume_constant_result
    def remember(*args: Any) -> str:
        key, probe = (build, *args), torch.empty(0)
        if type(probe) is not Tensor:
            return ""
        if key in _names:
            return _names[key]
        if is_functorch_wrapped_tensor(probe):
            return ""
        if len(_names) >= _MOST_CONSTANTS:
            oldest = next(iter(_names))
            delattr(_store, _names.pop(oldest))
        with torch.inference_mode(False):  # an inference tensor kept here could never be used in training
            value = build(*args)
        name = f"{build.__name__}_{next(_numbers)}"
        setattr(_store, name, value)
        _names[key] = name
        return name

    @functools.wraps(build)
    def look_up_or_build(*args: Any) -> Any:
        name = remember(*args)
        return getattr(_store, name) if name else build(*args)

    return look_up_or_build  # type: ignore[return-value]


_numbers = itertools.count()


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The NumPy counterpart of a dtype that is computed in, float32 or float64."""
    return np.dtype(str(dtype).removeprefix("torch."))


@constant
def default_tree(num_nodes: int) -> Tree:
    """The tree where none is given."""
    return balanced(num_nodes + 1)


@constant
def node_constants(tree: Tree | Forest, activation: Activation, device: torch.device, dtype: torch.dtype) -> Any:
    """The activation's constants at every node: tensors (K-1,), or floats if all nodes are alike and symmetric."""
    if isinstance(tree, Tree) and tree.is_symmetric:
        found = activation.constants(tree, numpy_dtype(dtype))
        if all(row.shape == (1,) for row in found):
            return type(found)(*(float(row[0]) for row in found))
    found = tables.node_constants(tree, activation, numpy_dtype(dtype))
    return type(found)(*(torch.as_tensor(row, device=device) for row in found))


@constant
def node_rows(tree: Tree | Forest, activation: Activation, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The same constants with those of one node side by side, (K-1, rows): one look-up finds them all."""
    return torch.stack(node_constants(tree, activation, device, dtype), -1)


@constant
def leaf_weights(tree: Tree | Forest, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The prior, any multiple of it, with no class at zero: one that underflowed is still a class."""
    prior = np.ones(tree.num_classes) if tree.has_uniform_prior else tree.prior
    return torch.as_tensor(np.maximum(prior, torch.finfo(dtype).tiny), dtype=dtype, device=device)


@constant
def path_matrices(tree: Tree | Forest, to: str, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Whether a no, and whether a yes, at a node lies on a path: 0/1 matrices, nodes x leaves or nodes x nodes."""
    sides = tables.path_branches(tree, to)
    no, yes = (torch.as_tensor(side, dtype=dtype, device=device).contiguous() for side in sides)
    return no, yes


@constant
def agreement(tree: Tree, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Weights and bias that count, from 0/1 branches, minus the branches that lead away from each leaf."""
    no, yes = path_matrices(tree, "leaves", device, dtype)
    return yes - no, -yes.sum(0)


@constant
def index_table(tree: Tree | Forest, name: str, device: torch.device) -> Tensor:
    """An integer table of the tree: its "parents", "ancestors", "bits", "children", or where an id's "edge" starts."""
    num_nodes, parents = tree.num_nodes, tree.parents
    ids = np.arange(len(parents))
    if name == "parents":  # a root is its own parent, so that walks stop there
        table = np.where(parents < 0, ids, parents)
    elif name == "ancestors":  # above a root there is one more place, above which there is only itself
        table = np.append(np.where(parents < 0, len(ids), parents), len(ids))
    elif name == "bits":
        table = tree.bits.astype(np.int64)
    elif name == "edge":  # into the row [no branches, yes branches, 0]: a root has no edge above it
        table = np.where(parents < 0, 2 * num_nodes, parents + num_nodes * tree.bits)
    else:  # children of every id; a leaf is its own child, so that walks wait there
        leaves = np.stack([ids[num_nodes:], ids[num_nodes:]], axis=1)
        table = np.concatenate([tree.child_ids, leaves])
    return torch.as_tensor(table, device=device)


@constant
def forest_table(forest: Forest, name: str, device: torch.device) -> Tensor:
    """An integer table of a forest, by the name of its attribute."""
    return torch.as_tensor(np.array(getattr(forest, name)), device=device)


@constant
def class_counts(tree: Tree | Forest, device: torch.device) -> Tensor:
    """The number of classes, (1,), or of every variable of a forest, (N,)."""
    return torch.as_tensor(tree.sizes if isinstance(tree, Forest) else [tree.num_classes], device=device)


@constant
def stacking(forest: Forest, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where the classes of every variable stand in a row of all classes, (N, largest K), and which places are empty."""
    table, empty = tables.stacking(forest)
    return torch.as_tensor(table, device=device), torch.as_tensor(empty, device=device)


@constant
def unstacking(forest: Forest, device: torch.device) -> Tensor:
    """Where every class of a row of all classes stands in the flattened stack."""
    return torch.as_tensor(tables.unstacking(forest), device=device)


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """``table[index]`` for a vector and an index of any shape."""
    return table.index_select(0, index.flatten()).view(index.shape)
