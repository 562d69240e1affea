"""How the autograd Functions of this library are run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch.autograd import forward_ad


def wants_plain_operations() -> bool:
    """Whether an autograd Function must not be used.

    The compiler fuses what it stands for. And where one forward mode is inside another (``jacfwd`` of ``jacfwd``),
    PyTorch takes what its ``jvp`` returns for a constant: second derivatives would be 0 (pytorch#197867).
    """
    if torch.compiler.is_compiling():
        return True
    if not torch._C._are_functorch_transforms_active():
        return False
    levels = _functorch.get_interpreter_stack() or []
    return sum(level.key() == _functorch.TransformType.Jvp for level in levels) > 1


def apply(function: type[torch.autograd.Function], differentiable: Tensor, *args: Any) -> Any:
    """Apply ``function``, or only run its forward where nothing records: that bookkeeping would double a small call."""
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return function.apply(differentiable, *args)
    if torch.is_grad_enabled() and differentiable.requires_grad and not torch.is_inference_mode_enabled():
        # What torch's own `apply` calls in the end. Before, it looks for default arguments with `inspect`, at every
        # call: two thirds of the time of a small one.
        return super(torch.autograd.Function, function).apply(differentiable, *args)  # type: ignore[misc]
    return function.forward(differentiable, *args)
