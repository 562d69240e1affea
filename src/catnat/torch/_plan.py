"""From what the user passes to what the kernels need: checked scores, a tree, an activation, and cached constants."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from catnat import _checks, _tables
from catnat._builders import balanced
from catnat._forest import Forest
from catnat._tree import Tree
from catnat.torch._activations import Activation, Tables, numpy_dtype, resolve
from catnat.torch._autograd import apply

F = TypeVar("F", bound=Callable[..., Any])


def prepare(
    scores: Tensor, tree: Tree | Forest | None, activation: Activation | str, num_classes: int | None = None
) -> tuple[Tensor, Tree, Activation]:
    """Checked arguments: scores in the dtype to compute in, the tree they are meant for, the activation object."""
    check_scores(scores)
    if tree is None:
        # The index makes the compiler take it as a constant.
        nodes = operator.index(scores.shape[-1]) if num_classes is None else _checks.num_classes(num_classes) - 1
        tree = _default_tree(nodes)
    elif not isinstance(tree, Tree):
        _checks.not_a_tree(tree)
    elif num_classes is not None:
        _checks.same_classes(num_classes, tree)
    _checks.width_of_scores(scores.shape[-1], tree.num_classes)
    return to_computing_dtype(scores), tree, resolve(activation)


def check_scores(scores: Tensor) -> None:
    """Raise unless ``scores`` may be scores, of whatever number of nodes."""
    check_tensor(scores, "scores")
    if not scores.is_floating_point() or scores.ndim == 0:
        raise TypeError(
            f"`scores` has dtype {scores.dtype} and shape {tuple(scores.shape)}, but a floating-point tensor with one "
            "score per node on its last axis is needed: (..., K-1)."
        )


def check_tensor(value: object, name: str) -> None:
    """Raise unless ``value`` is a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"`{name}` is a {type(value).__name__}, but a torch.Tensor is needed: torch.as_tensor({name}).")


def is_true(condition: Tensor) -> bool:
    """Whether ``condition`` holds, as far as can be told: not under vmap, on meta, or on fake tensors."""
    try:
        return bool(condition)
    except (RuntimeError, NotImplementedError):
        return False


def broadcast(one: torch.Size, other: torch.Size) -> torch.Size:
    """``torch.broadcast_shapes``, which takes longer than a small kernel, where it is needed."""
    return one if one == other else torch.broadcast_shapes(one, other)


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """``table[index]`` for a vector and an index of any shape."""
    return table.index_select(0, index.flatten()).view(index.shape)


def autocasts(device: torch.device) -> bool:
    """Whether autocast is on for ``device``."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def computing_dtype(dtype: torch.dtype) -> torch.dtype:
    """Half precision computes in float32."""
    return dtype if dtype.itemsize >= 4 else torch.float32


def to_computing_dtype(values: Tensor) -> Tensor:
    """``values`` to compute with; on the way back, a gradient that overflows half precision saturates."""
    if values.dtype.itemsize >= 4:
        return values
    if torch.compiler.is_compiling():
        return values.float()
    return apply(_HalfToFloat, values)


class _HalfToFloat(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor) -> Tensor:
        return values.float()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.dtype = inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        limit = torch.finfo(ctx.dtype).max / 4  # room for autograd to add a few
        return grad.clamp(-limit, limit).to(ctx.dtype)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent.float()


def returned_dtype(scores: Tensor) -> torch.dtype:
    """The input's dtype, but float32 under autocast, as ``log_softmax`` does."""
    return torch.float32 if scores.dtype.itemsize < 4 and autocasts(scores.device) else scores.dtype


def saturate(values: Tensor, dtype: torch.dtype) -> Tensor:
    """``values`` in ``dtype``, with what overflows it at its largest or smallest finite number."""
    if values.dtype == dtype:
        return values
    limits = torch.finfo(dtype)
    return values.clamp(limits.min, limits.max).to(dtype)


# ---- constants ----


class _Store:
    """The constants, each an attribute: the compiler can guard on an attribute, but not on a function's result."""


_store = _Store()
_names: dict[tuple[Any, ...], str] = {}
_MOST_CONSTANTS = 512


def _constant(build: F) -> F:
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
    def constant(*args: Any) -> Any:
        name = remember(*args)
        return getattr(_store, name) if name else build(*args)

    return constant  # type: ignore[return-value]


_numbers = itertools.count()


@_constant
def _default_tree(num_nodes: int) -> Tree:
    return balanced(num_nodes + 1)


@_constant
def node_tables(tree: Tree | Forest, activation: Activation, device: torch.device, dtype: torch.dtype) -> Tables:
    """The activation's constants at every node: tensors (K-1,), or floats if all nodes are alike and symmetric."""
    if isinstance(tree, Forest):
        return tuple(torch.as_tensor(_tables.node_tables(tree, activation, numpy_dtype(dtype)), device=device))
    tables = activation.tables(tree, numpy_dtype(dtype))
    if tree.is_symmetric and tables.shape[1] == 1:
        return tuple(float(row[0]) for row in tables)
    return tuple(torch.as_tensor(tables, device=device))


@_constant
def node_rows(tree: Tree | Forest, activation: Activation, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The same constants with those of one node side by side, (K-1, rows): one look-up finds them all."""
    return torch.stack(node_tables(tree, activation, device, dtype), -1)  # type: ignore[arg-type]


@_constant
def leaf_weights(tree: Tree | Forest, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The prior, any multiple of it, with no class at zero: one that underflowed is still a class."""
    prior = np.ones(tree.num_classes) if tree.has_uniform_prior else tree.prior
    return torch.as_tensor(np.maximum(prior, torch.finfo(dtype).tiny), dtype=dtype, device=device)


@_constant
def path_matrices(tree: Tree | Forest, to: str, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Whether a no, and whether a yes, at a node lies on a path: 0/1 matrices, nodes x leaves or nodes x nodes."""
    sides = _tables.path_answers(tree, to)
    no, yes = (torch.as_tensor(side, dtype=dtype, device=device).contiguous() for side in sides)
    return no, yes


@_constant
def agreement(tree: Tree, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Weights and bias that count, from 0/1 answers, minus the answers that lead away from each leaf."""
    no, yes = path_matrices(tree, "leaves", device, dtype)
    return yes - no, -yes.sum(0)


@_constant
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
    elif name == "edge":  # into the row [no answers, yes answers, 0]: a root has no edge above it
        table = np.where(parents < 0, 2 * num_nodes, parents + num_nodes * tree.bits)
    else:  # children of every id; a leaf is its own child, so that walks wait there
        leaves = np.stack([ids[num_nodes:], ids[num_nodes:]], axis=1)
        table = np.concatenate([tree.children, leaves])
    return torch.as_tensor(table, device=device)


@_constant
def forest_table(forest: Forest, name: str, device: torch.device) -> Tensor:
    """An integer table of a forest, by the name of its attribute."""
    return torch.as_tensor(np.array(getattr(forest, name)), device=device)


@_constant
def class_counts(tree: Tree | Forest, device: torch.device) -> Tensor:
    """The number of classes, (1,), or of every variable of a forest, (N,)."""
    return torch.as_tensor(tree.sizes if isinstance(tree, Forest) else [tree.num_classes], device=device)


@_constant
def stacking(forest: Forest, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where the classes of every variable stand in a row of all classes, (N, largest K), and which places are empty."""
    table, empty = _tables.stacking(forest)
    return torch.as_tensor(table, device=device), torch.as_tensor(empty, device=device)


@_constant
def unstacking(forest: Forest, device: torch.device) -> Tensor:
    """Where every class of a row of all classes stands in the flattened stack."""
    return torch.as_tensor(_tables.unstacking(forest), device=device)
