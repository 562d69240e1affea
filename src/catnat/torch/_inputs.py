"""From what the user passes to what is computed with: checked scores, a tree, an activation, and dtypes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from catnat import _checks
from catnat.activations import Activation, resolve
from catnat.torch import _constants
from catnat.torch._autograd import apply, wants_plain_operations
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree


def check(
    scores: Tensor, tree: Tree | Forest | None, activation: Activation | str, num_classes: int | None = None
) -> tuple[Tensor, Tree, Activation]:
    """Checked arguments: scores in the dtype to compute in, the tree they are meant for, the activation object."""
    check_scores(scores)
    if tree is None:
        # The index makes the compiler take it as a constant.
        nodes = operator.index(scores.shape[-1]) if num_classes is None else _checks.num_classes(num_classes) - 1
        tree = _constants.default_tree(nodes)
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


def class_indices(classes: Tensor, name: str) -> Tensor:
    """Classes in the dtype of indices: a small one cannot hold what they are compared with, K or -100."""
    check_tensor(classes, name)
    if classes.is_floating_point() or classes.is_complex() or classes.dtype == torch.bool:
        raise TypeError(f"`{name}` has dtype {classes.dtype}, but class indices are integers: use .long().")
    return classes.long()


def is_true(condition: Tensor) -> bool:
    """Whether ``condition`` holds, as far as can be told: not under vmap, on meta, or on fake tensors."""
    try:
        return bool(condition)
    except (RuntimeError, NotImplementedError):
        return False


def broadcast(one: torch.Size, other: torch.Size) -> torch.Size:
    """``torch.broadcast_shapes``, which takes longer than a small kernel, where it is needed."""
    return one if one == other else torch.broadcast_shapes(one, other)


def behind_batch(
    values: Tensor, batch: torch.Size, event: Sequence[int] = ()
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Values whose sample axes stand behind the batch, batch + (n,) + event, and how to bring results back.

    Repeated reads of a row are then one gather, and no row is copied.
    """
    shape = broadcast(values.shape[: values.ndim - len(event)], batch)
    extra = len(shape) - len(batch)
    wide, before = shape[extra:], tuple(range(extra))
    behind = tuple(range(len(wide), len(shape)))

    def back(found: Tensor) -> Tensor:
        found = found.reshape((*wide, *shape[:extra], *event))
        return found.movedim(behind, before) if extra else found

    values = values.expand((*shape, *event))
    values = values.movedim(before, behind) if extra else values
    return values.reshape((*wide, math.prod(shape[:extra]), *event)), back


def autocasts(device: torch.device) -> bool:
    """Whether autocast is on for ``device``."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def computing_dtype(dtype: torch.dtype) -> torch.dtype:
    """Half precision computes in float32."""
    return dtype if dtype.itemsize >= 4 else torch.float32


def to_computing_dtype(values: Tensor) -> Tensor:
    """``values`` to compute with; in the backward pass, a gradient that overflows half precision saturates."""
    if values.dtype.itemsize >= 4:
        return values
    if wants_plain_operations():
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
