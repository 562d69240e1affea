"""From a distribution back to its scores: how a softmax model becomes a catnat model."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from catnat import _checks
from catnat.activations import Activation, resolve
from catnat.torch import _constants, _dense, _inputs
from catnat.torch._kernels import kernel_for
from catnat.trees.tree import Tree


def scores_from_probs(
    probs: Float[Tensor, "*batch classes"], tree: Tree | None = None, activation: Activation | str = "natural"
) -> Float[Tensor, "*batch nodes"]:
    r"""The scores whose :func:`catnat` is ``probs``.

    .. math:: a(s_i) = \frac{\text{mass on the yes side of } i}{\text{mass below } i}

    A node below which all probabilities are 0 gets score 0. One that always takes the same branch gets the edge of its
    band with the natural activation, and with the sigmoid a large finite score. Probabilities too small for a normal
    number of their dtype count as 0. Differentiable where the scores are not at such a limit. An activation of your own
    is inverted in NumPy, by its ``inverse``: that works in eager mode only, not under the compiler or ``vmap``.

    Args:
        probs: Class probabilities on the last axis. They must sum to 1, up to the rounding of their dtype.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.

    Example:
        >>> import torch
        >>> from catnat.torch import catnat, scores_from_probs
        >>> scores = scores_from_probs(torch.tensor([0.1, 0.2, 0.3, 0.4]))
        >>> catnat(scores)
        tensor([0.1000, 0.2000, 0.3000, 0.4000])
    """
    computed, tree, activation = _prepare(probs, "probs", tree, activation)
    if not torch.compiler.is_compiling():
        _check_probs(computed, max(1e-5, math.sqrt(torch.finfo(probs.dtype).eps)))
    positive = computed >= torch.finfo(computed.dtype).tiny
    logs = torch.where(positive, computed, torch.ones_like(computed)).log().masked_fill(~positive, -math.inf)
    return _inputs.saturate(_scores(logs, tree, activation), _inputs.returned_dtype(probs))


def scores_from_logits(
    logits: Float[Tensor, "*batch classes"], tree: Tree | None = None, activation: Activation | str = "natural"
) -> Float[Tensor, "*batch nodes"]:
    r"""The scores whose :func:`catnat` is ``softmax(logits)``.

    .. math:: \log\frac{a(s_i)}{1 - a(s_i)} = \log \sum_{k \in \mathrm{yes}(i)} e^{l_k} - \log \sum_{k \in
        \mathrm{no}(i)} e^{l_k}

    All is computed with logarithms, so logits may be thousands apart. The limits are those of
    :func:`scores_from_probs`. The natural activation cannot tell probabilities of a branch below about the square of
    the dtype's epsilon from 0: with the sigmoid such classes keep their log-probability.

    Args:
        logits: One logit per class on the last axis, as softmax takes them; -inf for a class of probability 0.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.

    Example:
        >>> import torch
        >>> from catnat.torch import catnat, scores_from_logits
        >>> logits = torch.tensor([1.0, 0.0, 3.0])
        >>> torch.allclose(catnat(scores_from_logits(logits)), logits.softmax(-1))
        True
    """
    computed, tree, activation = _prepare(logits, "logits", tree, activation)
    if not torch.compiler.is_compiling() and _inputs.is_true((computed < math.inf).logical_not().any()):
        raise ValueError(
            "`logits` holds NaN or +inf, but finite logits are needed, or -inf for a class of probability 0."
        )
    return _inputs.saturate(_scores(computed, tree, activation), _inputs.returned_dtype(logits))


def _prepare(
    values: Tensor, name: str, tree: Tree | None, activation: Activation | str
) -> tuple[Tensor, Tree, Activation]:
    """Checked arguments: one value per class, in the dtype to compute in."""
    _inputs.check_tensor(values, name)
    if not values.is_floating_point() or values.ndim == 0 or values.shape[-1] == 0:
        raise TypeError(
            f"`{name}` has dtype {values.dtype} and shape {tuple(values.shape)}, but a floating-point tensor with one "
            "value per class on its last axis is needed: (..., K)."
        )
    width = operator.index(values.shape[-1])
    if tree is None:
        tree = _constants.default_tree(width - 1)
    elif not isinstance(tree, Tree):
        _checks.not_a_tree(tree, width)
    _checks.width_of_classes(width, name, tree.num_classes)
    return _inputs.to_computing_dtype(values), tree, resolve(activation)


def _check_probs(probs: Tensor, tolerance: float) -> None:
    if _inputs.is_true((probs >= 0).logical_not().any()):
        raise ValueError("`probs` holds a negative number or NaN. If these are logits, use scores_from_logits.")
    error = (probs.detach().sum(-1) - 1).abs()
    if _inputs.is_true((error <= tolerance).logical_not().any()):
        raise ValueError(
            f"`probs` must sum to 1 over the last axis, but a row is {float(error.max()):.2g} away from it. Divide by "
            "probs.sum(-1, keepdim=True), or use scores_from_logits if these are logits."
        )


def _scores(logs: Tensor, tree: Tree, activation: Activation) -> Tensor:
    """The scores of the distribution proportional to ``exp(logs)``."""
    no, yes = _dense.log_masses(logs, tree)
    unreachable = no.isneginf() & yes.isneginf()
    x = _inverse(activation, (yes - no).masked_fill(unreachable, 0.0))
    scale, offset = _centring(tree, activation, logs.device, logs.dtype)
    return ((x - offset) / scale).masked_fill(unreachable, 0.0)


def _inverse(activation: Activation, logit: Tensor) -> Tensor:
    """The x at which the log-odds of yes are ``logit``, with a gradient for every activation."""
    x = kernel_for(activation).inverse(logit)
    if x.requires_grad or not logit.requires_grad:
        return x
    inverted: Tensor = _InvertedInNumpy.apply(logit, x, activation)
    return inverted


class _InvertedInNumpy(torch.autograd.Function):
    """One's own activation was inverted in NumPy: the slope of its logit gives the gradient, and so on."""

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


@_constants.constant
def _centring(tree: Tree, activation: Activation, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The scale and the offset of every node: its probability of yes is the activation of scale * score + offset."""
    scale, offset = activation.scale(tree), activation.offset(tree)
    return torch.as_tensor(scale, device=device, dtype=dtype), torch.as_tensor(offset, device=device, dtype=dtype)
