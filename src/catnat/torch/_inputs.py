"""Checks of tensor arguments, conversions of dtypes, and sample axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter


def check_tensor(value: object, name: str) -> None:
    """Raise unless ``value`` is a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"`{name}` is a {type(value).__name__}, but a torch.Tensor is needed: torch.as_tensor({name}).")


def check_scores(scores: Tensor) -> None:
    """Raise unless ``scores`` is a floating-point tensor with at least one axis."""
    check_tensor(scores, "scores")
    if not scores.is_floating_point() or scores.ndim == 0:
        raise TypeError(
            f"`scores` has dtype {scores.dtype} and shape {tuple(scores.shape)}, but a floating-point tensor with one "
            "score per node on its last axis is needed: (..., K-1)."
        )


def class_indices(classes: Tensor, name: str) -> Tensor:
    """Return checked classes as int64, because a small dtype may not hold K or the ignored index -100."""
    if getattr(classes, "dtype", None) == torch.int64:
        return classes
    check_tensor(classes, name)
    if classes.is_floating_point() or classes.is_complex() or classes.dtype == torch.bool:
        raise TypeError(f"`{name}` has dtype {classes.dtype}, but class indices are integers: use .long().")
    if classes.dtype == torch.uint64:  # large numbers would become negative, possibly -100
        raise TypeError(f"`{name}` has dtype torch.uint64, which may overflow int64: use .long() if all values fit.")
    return classes.long()


def known_true(condition: Tensor) -> bool:
    """Return whether ``condition`` is true; False where it cannot be read: under vmap, on meta and fake tensors."""
    try:
        return bool(condition)
    except (RuntimeError, NotImplementedError):
        return False


def known_at_once(condition: Tensor) -> bool:
    """Return :func:`known_true` on a CPU, else False, so that no check waits for another device."""
    return condition.device.type == "cpu" and known_true(condition)


def explain_classes(error: Exception, classes: Tensor, num_classes: int, ignore_index: int | None = None) -> None:
    """Raise an error that names the class, if ``error`` was raised because of a class that does not exist."""
    outside = (classes < 0) | (classes >= num_classes)
    if ignore_index is not None:
        outside &= classes != ignore_index
    if known_true(outside.any()):
        raise ValueError(
            f"`classes` holds {int(classes[outside][0])}, but this tree has the classes 0 .. {num_classes - 1}. "
            "If it marks targets to skip, pass it as `ignore_index` to cross_entropy or to the head."
        ) from error


def one_hot(classes: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    """Return one-hot vectors; torch's function reads the values, which transforms of ``torch.func`` do not allow."""
    return (classes.unsqueeze(-1) == torch.arange(num_classes, device=classes.device)).to(dtype)


# ---- plain data ----

# torch's own test, before it runs an autograd Function, of whether a transform of `torch.func` is active. If it is
# missing, every eager call uses plain operations, and a small call takes twice the time.
transforms_active = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
_is_tracing: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]  # documented, not exported


def is_data(values: Tensor) -> bool:
    """Return whether ``values`` is a plain tensor, outside transforms and tracing, without a forward-mode tangent."""
    if type(values) not in (Tensor, Parameter) or transforms_active() or _is_tracing():
        return False
    return forward_ad.unpack_dual(values).tangent is None


def runs_eagerly(*values: Tensor) -> bool:
    """Return whether a call runs outside the compiler, on plain tensors."""
    return not torch.compiler.is_compiling() and all(map(is_data, values))


# ---- dtypes ----


def computing_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to compute in: float32 for half precision, else ``dtype``."""
    return dtype if dtype.itemsize >= 4 else torch.float32


def widen(values: Tensor) -> Tensor:
    """Convert ``values`` to the computing dtype; in the backward pass gradients are clamped to their own dtype.

    Under autocast they are not clamped, because a ``GradScaler`` looks for gradients that overflow.
    """
    if values.dtype.itemsize >= 4:
        return values
    wide = values.float()
    if wide.requires_grad and not torch.compiler.is_compiling() and not autocasts(values.device):
        limit = torch.finfo(values.dtype).max / 4  # room for autograd to add a few
        wide.register_hook(lambda grad: grad.clamp(-limit, limit))
    return wide


def autocasts(device: torch.device) -> bool:
    """Return whether autocast is enabled for ``device``."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def returned_dtype(scores: Tensor) -> torch.dtype:
    """Return the dtype of ``scores``, or float32 for half precision under autocast, as for ``log_softmax``."""
    return torch.float32 if scores.dtype.itemsize < 4 and autocasts(scores.device) else scores.dtype


def clamp_to_dtype(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert ``values`` to ``dtype``, clamped to its finite range."""
    if values.dtype == dtype:
        return values
    limits = torch.finfo(dtype)
    return values.clamp(limits.min, limits.max).to(dtype)


def as_returned(values: Tensor, scores: Tensor) -> Tensor:
    """Convert a result computed from ``scores`` to the dtype to return."""
    return values if values.dtype == scores.dtype else clamp_to_dtype(values, returned_dtype(scores))


# ---- axes of samples ----


def behind_batch(values: Tensor, batch: torch.Size) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return values with sample axes moved behind the batch, batch + (n,), and a function that moves results back.

    All reads of a row are then one gather, and no row is copied.
    """
    if values.shape == batch:
        return values.unsqueeze(-1), lambda found: found.squeeze(-1)
    shape = torch.broadcast_shapes(values.shape, batch)
    extra = len(shape) - len(batch)
    wide, before = shape[extra:], tuple(range(extra))
    behind = tuple(range(len(wide), len(shape)))

    def back(found: Tensor) -> Tensor:
        return found.reshape((*wide, *shape[:extra])).movedim(behind, before)

    return values.expand(shape).movedim(before, behind).reshape((*wide, math.prod(shape[:extra]))), back


def samples_first(drawn: Tensor, sample_shape: Sequence[int]) -> Tensor:
    """Reshape draws (..., n) to sample shape + (...)."""
    return drawn.movedim(-1, 0).reshape((*sample_shape, *drawn.shape[:-1]))
