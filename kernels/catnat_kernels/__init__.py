"""Fused CPU kernels for catnat.torch, which finds and uses them by itself: this package has no functions of its own.

Importing it registers the operators ``torch.ops.catnat``.
"""

import ctypes
from pathlib import Path

import torch

__version__ = "0.1.0"

_library = Path(__file__).with_name("catnat_kernels.so")
torch.ops.load_library(_library)


def instruction_set() -> str:
    """The instructions that this processor has and that the kernels use: "baseline", "avx2" or "avx512"."""
    name = ctypes.CDLL(str(_library)).catnat_instruction_set
    name.restype = ctypes.c_char_p
    return name().decode()


@torch.library.register_fake("catnat::log_probs")
def _(scores, constants, table, classes, depth, activation, floored):  # type: ignore[no-untyped-def]
    return scores.new_empty((scores.shape[0], classes))


@torch.library.register_fake("catnat::log_probs_backward")
def _(grad, scores, constants, table, depth, activation, floored):  # type: ignore[no-untyped-def]
    return torch.empty_like(scores)


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    scores, constants, table, _, ctx.depth, ctx.activation, ctx.floored = inputs
    ctx.save_for_backward(scores, constants, table)


def _backward(ctx, grad):  # type: ignore[no-untyped-def]
    rest = ctx.depth, ctx.activation, ctx.floored
    return torch.ops.catnat.log_probs_backward(grad.contiguous(), *ctx.saved_tensors, *rest), *(6 * [None])


torch.library.register_autograd("catnat::log_probs", _backward, setup_context=_save)


@torch.library.register_fake("catnat::draw")
def _(scores, constants, table, uniforms, activation, drawn):  # type: ignore[no-untyped-def]
    return None
