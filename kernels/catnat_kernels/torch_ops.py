"""The operators ``torch.ops.catnat``, and what the compiler has to know of them."""

import ctypes

import torch

import catnat_kernels

if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 10):
    raise ImportError(
        f"catnat-kernels {catnat_kernels.__version__} needs PyTorch 2.10, and this is {torch.__version__}"
    )
try:
    torch.ops.load_library(catnat_kernels.path_of("torch"))
except OSError as error:
    raise ImportError(f"catnat-kernels {catnat_kernels.__version__} does not load: {error}") from error
instruction_set = catnat_kernels.instruction_set(ctypes.CDLL(catnat_kernels.path_of("torch")))


@torch.library.register_fake("catnat::log_probs")
def _(scores, constants, table, classes, depth, activation, floored):  # type: ignore[no-untyped-def]
    return scores.new_empty((scores.shape[0], classes))


@torch.library.register_fake("catnat::log_probs_backward")
def _(grad, scores, constants, table, depth, activation, floored):  # type: ignore[no-untyped-def]
    return torch.empty_like(scores)


# The same with autograd, for the compiler. In eager mode the caller records, at a fraction of the time of this rule.

torch.library.define(
    "catnat::differentiable_log_probs",
    "(Tensor scores, Tensor constants, Tensor table, int classes, int depth, int activation, bool floored) -> Tensor",
)
torch.library.impl("catnat::differentiable_log_probs", "CPU", torch.ops.catnat.log_probs.default)


@torch.library.register_fake("catnat::differentiable_log_probs")
def _(scores, constants, table, classes, depth, activation, floored):  # type: ignore[no-untyped-def]
    return scores.new_empty((scores.shape[0], classes))


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    scores, constants, table, _, ctx.depth, ctx.activation, ctx.floored = inputs
    ctx.save_for_backward(scores, constants, table)


def _backward(ctx, grad):  # type: ignore[no-untyped-def]
    rest = ctx.depth, ctx.activation, ctx.floored
    return torch.ops.catnat.log_probs_backward(grad.contiguous(), *ctx.saved_tensors, *rest), *(6 * [None])


torch.library.register_autograd("catnat::differentiable_log_probs", _backward, setup_context=_save)


@torch.library.register_fake("catnat::draw")
def _(scores, constants, table, uniforms, activation, drawn):  # type: ignore[no-untyped-def]
    return None


@torch.library.register_fake("catnat::path_log_probs")
def _(scores, constants, above, classes, depth, activation, floored):  # type: ignore[no-untyped-def]
    return scores.new_empty(classes.shape)


@torch.library.register_fake("catnat::path_log_probs_backward")
def _(grad, scores, constants, above, classes, depth, activation, floored):  # type: ignore[no-untyped-def]
    return torch.empty_like(scores)
