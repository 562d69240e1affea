"""Fused kernels: in one call what the other files do in some thirty, where an implementation is installed.

The plain operations are the definition, the fallback and, in tests, the oracle. An implementation serves one kind of
device; :func:`kernels` says which are in use. The environment variable ``CATNAT_KERNELS=0`` switches all off, and
``=baseline``, ``=avx2`` or ``=avx512`` has the CPU's use this instruction set.
"""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from catnat import activations
from catnat.activations import Activation
from catnat.torch import _constants, _dense, _paths
from catnat.torch._autograd import apply
from catnat.torch._nodes import Nodes
from catnat.torch._variables import places_of
from catnat.trees import tables
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree


class Plan(NamedTuple):
    """A tree and an activation as the tensors of a kernel, on one device and in one dtype."""

    tree: Tree | Forest
    activation: Activation
    code: int  # `tables.SIGMOID`, `CLAMPED` or `REFLECTED`
    # Rows of one kind, with a column for every node, or one if all nodes are alike: `Affine`'s scale and offset, or
    # `Band`'s six and the period of its reflections.
    constants: Tensor
    table: Tensor  # `tables.fused_table`


class Implementation(Protocol):
    """The kernels of one kind of device. Matrices are contiguous, in float32 or float64."""

    def describe(self) -> str:
        """What is in use, in words."""

    def log_probs(self, scores: Tensor, plan: Plan, floored: bool) -> Tensor:
        """From scores (rows, nodes) the log-probabilities of all classes (rows, classes)."""

    def log_probs_backward(self, grad: Tensor, scores: Tensor, plan: Plan, floored: bool) -> Tensor:
        """The gradient of the scores, from that of the log-probabilities."""

    def draw(self, scores: Tensor, plan: Plan, uniforms: Tensor) -> Tensor:
        """A class for every row of ``uniforms`` (draws, depth): draw i from row i modulo their number of the scores."""


class Processor:
    """The package catnat-kernels: C++ for the CPU."""

    def __init__(self, instruction_set: str, version: str) -> None:
        self._described = f"catnat-kernels {version} ({instruction_set})"
        self._log_probs = torch.ops.catnat.log_probs.default
        self._log_probs_backward = torch.ops.catnat.log_probs_backward.default
        self._draw = torch.ops.catnat.draw.default
        self._path_log_probs = torch.ops.catnat.path_log_probs.default
        self._path_log_probs_backward = torch.ops.catnat.path_log_probs_backward.default

    def describe(self) -> str:
        return self._described

    # Below autograd: the Functions below record, and the operators' own rule, made for the compiler, would take longer.

    def log_probs(self, scores: Tensor, plan: Plan, floored: bool) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            return self._log_probs(
                scores, plan.constants, plan.table, plan.tree.num_classes, plan.tree.depth, plan.code, floored
            )

    def log_probs_backward(self, grad: Tensor, scores: Tensor, plan: Plan, floored: bool) -> Tensor:
        return self._log_probs_backward(grad, scores, plan.constants, plan.table, plan.tree.depth, plan.code, floored)

    def draw(self, scores: Tensor, plan: Plan, uniforms: Tensor) -> Tensor:
        drawn = torch.empty(len(uniforms), dtype=torch.int64, device=scores.device)
        self._draw(scores, plan.constants, plan.table, uniforms, plan.code, drawn)
        return drawn

    # Of scores (rows, nodes) and classes (rows, paths a row); in a forest, places among all classes.

    def path_log_probs(self, scores: Tensor, plan: Plan, above: Tensor, classes: Tensor) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            return self._path_log_probs(scores, plan.constants, above, classes, plan.tree.depth, plan.code, True)

    def path_log_probs_backward(
        self, grad: Tensor, scores: Tensor, plan: Plan, above: Tensor, classes: Tensor
    ) -> Tensor:
        return self._path_log_probs_backward(
            grad, scores, plan.constants, above, classes, plan.tree.depth, plan.code, True
        )


def _processor() -> Implementation | str:
    try:
        package, operators = map(importlib.import_module, ("catnat_kernels", "catnat_kernels.torch_ops"))
    except ModuleNotFoundError:
        return "catnat-kernels is not installed"
    except ImportError as error:
        return str(error)
    return Processor(operators.instruction_set, package.__version__)


def _graphics() -> Implementation | str:
    remedy = "they want the extra `triton` and CATNAT_TRITON=1, and have not run on a GPU yet"
    if os.environ.get("CATNAT_TRITON", "0") != "1":  # nobody has run them on a GPU yet, and torch's wheels bring Triton
        return remedy
    try:
        return importlib.import_module("catnat.torch._triton").Triton()
    except ImportError:
        return remedy


# Device types, and where to look for their kernels: they, or why there are none.
_SOURCES = {"cpu": _processor, "cuda": _graphics}


@functools.cache
def _found(device_type: str) -> Implementation | str:
    """Looked for once, when a tensor of its device first comes by."""
    if os.environ.get("CATNAT_KERNELS", "1") == "0":
        return "switched off by CATNAT_KERNELS=0"
    return _SOURCES[device_type]() if device_type in _SOURCES else "there are none for this device"


def _implementation(device_type: str) -> Implementation | None:
    found = _found(device_type)
    return None if isinstance(found, str) else found


def kernels() -> dict[str, str]:
    """Which fused kernels are in use, by the type of device: their names, or why there are none.

    They change the time that a call takes, and nothing else but the last digits, and which draws belong to a seed.

    Example:
        >>> from catnat.torch import kernels
        >>> sorted(kernels())
        ['cpu', 'cuda']
    """
    found = {device: _found(device) for device in _SOURCES}
    return {device: f"none: {each}" if isinstance(each, str) else each.describe() for device, each in found.items()}


# ---- which calls they serve ----


def _serving(nodes: Nodes) -> Implementation | None:
    """The implementation for these nodes: none for pruned trees, transforms, and tensors that are more than data."""
    scores = nodes.scores
    if nodes.masses is not None or type(scores) not in (Tensor, Parameter) or scores.ndim == 0:
        return None
    if scores.dtype not in (torch.float32, torch.float64) or nodes.tree.num_nodes == 0:
        return None
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return None
    if type(nodes.activation) not in tables.FUSED:
        return None
    return _implementation(scores.device.type)


@_constants.constant
def _plan(tree: Tree | Forest, activation: Activation, device: torch.device, dtype: torch.dtype) -> Plan:
    constants = list(_constants.node_constants(tree, activation, device, dtype))
    if isinstance(activation, activations.natural):
        constants.append(torch.pi / constants[5])
    columns = [torch.as_tensor(row, dtype=dtype, device=device).reshape(-1) for row in constants]
    table = torch.as_tensor(tables.fused_table(tree), device=device)
    return Plan(tree, activation, tables.fused_code(activation), torch.stack(columns), table)


def _rows(scores: Tensor) -> Tensor:
    """As a contiguous matrix. One that is stays itself: a view of it would be one more step for autograd."""
    return (scores if scores.ndim == 2 else scores.reshape(-1, scores.shape[-1])).contiguous()


def log_probs(nodes: Nodes, *, floored: bool) -> Tensor | None:
    """The log-probability of every class, (..., K), or None where no kernel serves."""
    if torch.compiler.is_compiling():
        return _compiled_log_probs(nodes, floored)
    implementation = _serving(nodes)
    if implementation is None:
        return None
    scores, tree = nodes.scores, nodes.tree
    plan = _plan(tree, nodes.activation, scores.device, scores.dtype)
    rows = _rows(scores)
    leaves: Tensor = apply(_LogProbs, rows, plan, floored, implementation)
    return leaves if scores.ndim == 2 else leaves.view(*scores.shape[:-1], tree.num_classes)


def draw(nodes: Nodes, count: int, generator: torch.Generator | None) -> Tensor | None:
    """``count`` classes for every row, (count, ...), or None where no kernel serves."""
    tree, scores = nodes.tree, nodes.scores
    if isinstance(tree, Forest) or tree.depth > _paths.MOST_WALKED_LEVELS or torch.compiler.is_compiling():
        return None
    implementation = _serving(nodes)
    if implementation is None:
        return None
    plan = _plan(tree, nodes.activation, scores.device, scores.dtype)
    rows = _rows(scores)
    uniforms = _paths.rand((count * len(rows), tree.depth), scores, generator)
    return implementation.draw(rows, plan, uniforms).view(count, *scores.shape[:-1])


def path_log_probs(nodes: Nodes, classes: Tensor) -> Tensor | None:
    """The floored log-probability of ``classes``, batch + (n,) or batch + (n, N), or None where no kernel serves."""
    if torch.compiler.is_compiling() or nodes.scores.shape[:-1] != classes.shape[: nodes.scores.ndim - 1]:
        return None
    implementation = _serving(nodes)
    if not isinstance(implementation, Processor):
        return None
    scores, tree = nodes.scores, nodes.tree
    places = places_of(classes, tree) if isinstance(tree, Forest) else classes  # the kernel checks them
    plan = _plan(tree, nodes.activation, scores.device, scores.dtype)
    rows = _rows(scores)
    places = places.reshape(len(rows), -1) if classes.numel() else places.new_empty(len(rows), 0)
    found: Tensor = apply(_PathLogProbs, rows, plan, _above(tree, scores.device), places.contiguous(), implementation)
    return found.view(classes.shape)


@_constants.constant
def _above(tree: Tree | Forest, device: torch.device) -> Tensor:
    """Of every id twice its parent, plus 1 if it is the yes of it; -1 at a root. Empty for a balanced tree."""
    above = np.where(tree.parents < 0, -1, 2 * tree.parents + tree.bits) if tree.kind != "balanced" else np.empty(0)
    return torch.as_tensor(above.astype(np.int32), device=device)


# ---- inside the compiler ----
#
# It takes the operator as it is, with its own autograd: a quarter of the time of the plain operations that it would
# fuse. What is exported keeps to plain operations, so that it runs where there are no kernels.


def _compiled_log_probs(nodes: Nodes, floored: bool) -> Tensor | None:
    scores, tree = nodes.scores, nodes.tree
    # In this order: a PyTorch before 2.7 has no `is_exporting`, and no kernels.
    if not _is_compiled_with(scores.device.type) or torch.compiler.is_exporting():
        return None
    if nodes.masses is not None or type(nodes.activation) not in tables.FUSED or tree.num_nodes == 0:
        return None
    plan = _plan(tree, nodes.activation, scores.device, scores.dtype)
    rows = _rows(scores)
    leaves: Tensor = torch.ops.catnat.log_probs(
        rows, plan.constants, plan.table, tree.num_classes, tree.depth, plan.code, floored
    )
    return leaves.view(*scores.shape[:-1], tree.num_classes)


@torch.compiler.assume_constant_result
def _is_compiled_with(device_type: str) -> bool:
    return isinstance(_implementation(device_type), Processor)


def plain_log_probs(nodes: Nodes, *, floored: bool) -> Tensor:
    """The same as plain operations, for every tensor, transform and compiler."""
    return _dense.path_sums(*nodes.all().branch_log_probs(floored=floored), nodes.tree, to="leaves")


def plain_path_log_probs(nodes: Nodes, places: Tensor) -> Tensor:
    """The floored log-probability of ``places`` among all classes, (..., n)."""
    if isinstance(nodes.tree, Forest) or nodes.tree.depth > _paths.MOST_WALKED_LEVELS:
        return plain_log_probs(nodes, floored=True).gather(-1, places)
    return _paths.path_log_prob(nodes, places)


class _LogProbs(torch.autograd.Function):
    """Only the scores are stored. Second derivatives are those of the plain operations."""

    @staticmethod
    def forward(scores: Tensor, plan: Plan, floored: bool, implementation: Implementation) -> Tensor:
        return implementation.log_probs(scores, plan, floored)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        scores, ctx.plan, ctx.floored, ctx.implementation = inputs
        ctx.save_for_backward(scores)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (scores,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            plain = plain_log_probs(Nodes(scores, ctx.plan.tree, ctx.plan.activation), floored=ctx.floored)
            return *torch.autograd.grad(plain, scores, grad, create_graph=True), *(3 * [None])
        found = ctx.implementation.log_probs_backward(grad.contiguous(), scores, ctx.plan, ctx.floored)
        return found, *(3 * [None])


class _PathLogProbs(torch.autograd.Function):
    """The same for some classes of every row."""

    @staticmethod
    def forward(scores: Tensor, plan: Plan, above: Tensor, classes: Tensor, implementation: Processor) -> Tensor:
        return implementation.path_log_probs(scores, plan, above, classes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        scores, ctx.plan, above, classes, ctx.implementation = inputs
        ctx.save_for_backward(scores, above, classes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scores, above, classes = ctx.saved_tensors
        if torch.is_grad_enabled():
            plain = plain_path_log_probs(Nodes(scores, ctx.plan.tree, ctx.plan.activation), classes)
            return *torch.autograd.grad(plain, scores, grad, create_graph=True), *(4 * [None])
        found = ctx.implementation.path_log_probs_backward(grad.contiguous(), scores, ctx.plan, above, classes)
        return found, *(4 * [None])
