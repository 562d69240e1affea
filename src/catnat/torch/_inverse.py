"""Conversions from probabilities or logits to scores, for example to turn a softmax model into a catnat model."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from catnat import _checks
from catnat.activations import Activation, resolve
from catnat.torch import _dense, _inputs
from catnat.torch._constants import constant
from catnat.torch._lookup import plan_of
from catnat.torch._plan import Plan
from catnat.trees.builders import as_tree
from catnat.trees.tree import Tree


def scores_from_probs(
    probs: Float[Tensor, "*batch classes"], tree: Tree | int | None = None, activation: Activation | str = "sigmoid"
) -> Float[Tensor, "*batch nodes"]:
    r"""Return the scores whose :func:`catnat` is ``probs``.

    .. math:: a(s_i) = \frac{\text{mass on the yes side of } i}{\text{mass below } i}

    A node gets score 0 if all probabilities below it are 0. A node that always takes the same branch gets the edge of
    its band with the natural activation, and a large finite score with the sigmoid. Subnormal probabilities count as 0.
    Scores are differentiable unless they are at such a limit. A custom activation is inverted in NumPy, by its
    ``inverse``; this works in eager mode only, not under the compiler or ``vmap``.

    Args:
        probs: Class probabilities on the last axis. They must sum to 1, up to the rounding of their dtype.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from ``probs``.
        activation: "sigmoid", "natural" (the paper's), or an activation object.

    Example:
        >>> import torch
        >>> from catnat.torch import catnat, scores_from_probs
        >>> scores = scores_from_probs(torch.tensor([0.1, 0.2, 0.3, 0.4]))
        >>> catnat(scores)
        tensor([0.1000, 0.2000, 0.3000, 0.4000])
    """
    plan, computed = _plan_for_classes(probs, "probs", tree, activation), _inputs.widen(probs)
    if not torch.compiler.is_compiling():
        _check_probs(computed, max(1e-5, math.sqrt(torch.finfo(probs.dtype).eps)))
    positive = computed >= torch.finfo(computed.dtype).tiny
    logs = torch.where(positive, computed, torch.ones_like(computed)).log().masked_fill(~positive, -math.inf)
    return _inputs.as_returned(_scores(plan, logs), probs)


def scores_from_logits(
    logits: Float[Tensor, "*batch classes"], tree: Tree | int | None = None, activation: Activation | str = "sigmoid"
) -> Float[Tensor, "*batch nodes"]:
    r"""Return the scores whose :func:`catnat` is ``softmax(logits)``.

    .. math:: \log\frac{a(s_i)}{1 - a(s_i)} = \log \sum_{k \in \mathrm{yes}(i)} e^{l_k} - \log \sum_{k \in
        \mathrm{no}(i)} e^{l_k}

    All computations use logarithms, so logits may be thousands apart. The limits of :func:`scores_from_probs` apply.
    The natural activation cannot distinguish branch probabilities below about the square of the dtype's epsilon from 0.
    With the sigmoid such classes keep their log-probability.

    Args:
        logits: One logit per class on the last axis, as for softmax; -inf for a class of probability 0.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from ``logits``.
        activation: "sigmoid", "natural" (the paper's), or an activation object.

    Example:
        >>> import torch
        >>> from catnat.torch import catnat, scores_from_logits
        >>> logits = torch.tensor([1.0, 0.0, 3.0])
        >>> torch.allclose(catnat(scores_from_logits(logits)), logits.softmax(-1))
        True
    """
    plan, computed = _plan_for_classes(logits, "logits", tree, activation), _inputs.widen(logits)
    if not torch.compiler.is_compiling() and _inputs.known_at_once((computed < math.inf).logical_not().any()):
        raise ValueError(
            "`logits` holds NaN or +inf, but finite logits are needed, or -inf for a class of probability 0."
        )
    return _inputs.as_returned(_scores(plan, computed), logits)


def _plan_for_classes(values: Tensor, name: str, tree: Tree | int | None, activation: Activation | str) -> Plan:
    """Check ``values``, one per class on the last axis, and return their plan."""
    _inputs.check_tensor(values, name)
    if not values.is_floating_point() or values.ndim == 0 or values.shape[-1] == 0:
        raise TypeError(
            f"`{name}` has dtype {values.dtype} and shape {tuple(values.shape)}, but a floating-point tensor with one "
            "value per class on its last axis is needed: (..., K)."
        )
    width = operator.index(values.shape[-1])
    return _checked_plan(name, tree, activation, width, values.device, values.dtype)


@constant
def _checked_plan(
    name: str,
    tree: Tree | int | None,
    activation: Activation | str,
    width: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Plan:
    topology = as_tree(tree, width)
    _checks.width_of_classes(width, name, topology.num_classes)
    return plan_of(topology, resolve(activation), device, _inputs.computing_dtype(dtype))


def _check_probs(probs: Tensor, tolerance: float) -> None:
    if _inputs.known_at_once((probs >= 0).logical_not().any()):
        raise ValueError("`probs` holds a negative number or NaN. If these are logits, use scores_from_logits.")
    error = (probs.detach().sum(-1) - 1).abs()
    if _inputs.known_at_once((error <= tolerance).logical_not().any()):
        raise ValueError(
            f"`probs` must sum to 1 over the last axis, but a row is {float(error.max()):.2g} away from 1. Divide by "
            "probs.sum(-1, keepdim=True), or use scores_from_logits if these are logits."
        )


def _scores(plan: Plan, logs: Tensor) -> Tensor:
    """Return the scores of the distribution proportional to ``exp(logs)``."""
    no, yes = _dense.log_masses(plan, logs)
    unreachable = no.isneginf() & yes.isneginf()
    logit = (yes - no).masked_fill(unreachable, 0.0)
    x = plan.branches.inverse(logit)
    if logit.requires_grad and not x.requires_grad:
        x = _InvertedInNumpy.apply(logit, x, plan.activation)
    return (x - offset_of(plan.tree, plan.activation, logs.device, logs.dtype)).masked_fill(unreachable, 0.0)


@constant
def offset_of(tree: Tree, activation: Activation, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.as_tensor(activation.offset(tree), device=device, dtype=dtype)


class _InvertedInNumpy(torch.autograd.Function):
    """The gradient of an activation inverted in NumPy, from the slope of its logit; differentiable to any order."""

    @staticmethod
    def forward(logit: Tensor, x: Tensor, activation: Activation) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Activation], output: Tensor) -> None:
        logit, x, ctx.activation = inputs
        ctx.save_for_backward(logit, x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        logit, x = ctx.saved_tensors
        at = _InvertedInNumpy.apply(logit, x, ctx.activation)
        slope = torch.func.jvp(lambda x: ctx.activation.logit(x, torch), (at,), (torch.ones_like(at),))[1]
        moves = logit.isfinite() & (slope > 0)
        return gradients[0].masked_fill(~moves, 0.0) / slope.masked_fill(~moves, 1.0), None, None
