"""The geometry of scores: Fisher information, natural gradients, steps of a given KL divergence and distances."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from catnat.activations import Activation, isotropic_scale, natural, sigmoid
from catnat.torch import _dense, _fused, _inputs
from catnat.torch._lookup import plan_for
from catnat.torch._plan import Plan
from catnat.torch.functional import divergence_of
from catnat.trees.tree import Tree

__all__ = [
    "fisher_diagonal",
    "fisher_rao_distance",
    "isotropic_scale",
    "kl_step",
    "log_abs_det_jacobian",
    "natural_gradient",
    "reach",
    "saturated",
    "softmax_natural_gradient",
]

# The number of iterations in which kl_step corrects the length of its step.
_ROUNDS = 8

# ---- the Fisher matrix ----


def reach(
    scores: Float[Tensor, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
) -> Float[Tensor, "*batch nodes"]:
    r"""Return the probability :math:`P(i)` of reaching each node, the sum of the probabilities of the leaves below it.

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural" (the paper's), or an activation object.

    Example:
        >>> import torch
        >>> from catnat.torch.geometry import reach
        >>> reach(torch.zeros(3))
        tensor([1.0000, 0.5000, 0.5000])
    """
    plan = plan_for(scores, tree, activation)
    return _inputs.as_returned(_reach(plan, _inputs.widen(scores)), scores)


def saturated(
    scores: Float[Tensor, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
) -> Bool[Tensor, "*batch nodes"]:
    """Return which nodes are saturated: one branch has probability 0, and a natural score then gets no gradient.

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural" (the paper's), or an activation object.

    Example:
        >>> import torch
        >>> from catnat.torch.geometry import saturated
        >>> saturated(torch.tensor([0.0, 4.0, -3.0]), activation="natural")
        tensor([False,  True, False])
    """
    return plan_for(scores, tree, activation).branches.saturated(_inputs.widen(scores.detach()))


def fisher_diagonal(
    scores: Float[Tensor, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
) -> Float[Tensor, "*batch nodes"]:
    r"""Return the diagonal of the Fisher information matrix of the scores; every other entry is zero.

    .. math:: G_{ii} = P(i)\,\frac{a'(s_i)^2}{a(s_i)(1 - a(s_i))}

    For the sigmoid this is :math:`P(i)\, a_i (1 - a_i)`, for the natural activation :math:`P(i)\, (\pi / A)^2` inside
    the band and 0 outside. This is the metric of the *scores*, not of the weights of a network that computes them.

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural" (the paper's), or an activation object.

    Example:
        >>> import torch
        >>> from catnat.torch.geometry import fisher_diagonal
        >>> fisher_diagonal(torch.tensor([1.0, 0.0, 0.0]), activation="natural")
        tensor([0.2500, 0.0651, 0.1849])
    """
    plan = plan_for(scores, tree, activation)
    return _inputs.as_returned(_information(plan, _inputs.widen(scores)), scores)


def _reach(plan: Plan, scores: Tensor) -> Tensor:
    return _dense.path_sums(plan, *plan.branches.log_probs(scores, floored=False), to="nodes").exp()


def log_abs_det_jacobian(
    scores: Float[Tensor, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
) -> Float[Tensor, "*batch"]:
    r"""Return the finite log-determinant of the Jacobian of the first K-1 probabilities with respect to the scores.

    .. math:: \log |\det J| = \sum_i \log \bigl( P(i)\, a'(s_i) \bigr)

    Any K-1 of the probabilities have the same determinant. It is needed for bijections onto the simplex.

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural" (the paper's), or an activation object.

    Example:
        >>> import torch
        >>> from catnat.torch.geometry import log_abs_det_jacobian
        >>> log_abs_det_jacobian(torch.zeros(1)).exp()  # the sigmoid's slope
        tensor(0.2500)
    """
    plan = plan_for(scores, tree, activation)
    computed = _inputs.widen(scores)
    no, yes = plan.branches.log_probs(computed, floored=False)
    reach = _dense.path_sums(plan, no, yes, to="nodes")
    return _inputs.as_returned((reach + no + yes + _log_slope(plan, computed, no, yes)).sum(-1), scores)


def _log_slope(plan: Plan, scores: Tensor, no: Tensor, yes: Tensor) -> Tensor:
    """Return the logarithm of the derivative of the log-odds, a' / (a (1 - a)).

    Built-in activations have a formula: forward differentiation takes ten times as long, and HMC calls this every step.
    """
    activation = plan.activation
    if type(activation) is sigmoid:
        return no.new_zeros(())
    if type(activation) is natural:  # a' = (pi / A) sqrt(a (1 - a))
        return math.log(math.pi / activation.width) - (no + yes) / 2

    def log_odds(scores: Tensor) -> Tensor:
        no, yes = plan.branches.log_probs(scores, floored=False)
        return yes - no

    slope = torch.func.jvp(log_odds, (scores,), (torch.ones_like(scores),))[1]
    moves = slope > 0  # if the slope is 0, the log-probability of a branch is already very small
    return torch.where(moves, slope, 1).log()


def _information(plan: Plan, scores: Tensor) -> Tensor:
    return _reach(plan, scores) * plan.branches.information(scores)


# ---- natural gradients ----


def natural_gradient(
    scores: Float[Tensor, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
    *,
    damping: float = 0.0,
) -> Float[Tensor, "*batch nodes"]:
    r"""Return the scores unchanged; the backward pass replaces their gradient by the natural gradient.

    .. math:: g_i \;\mapsto\; \frac{g_i}{G_{ii} + \text{damping}}

    with :math:`G_{ii}` of :func:`fisher_diagonal`. Because the Fisher matrix is diagonal, this is its full inverse.
    Where :math:`G_{ii} = 0`, at a saturated node, the gradient is 0 for every damping, even if other terms of the loss
    have a gradient there. The factor is at most :math:`1 / \sqrt{\text{tiny}}`, 9e18 in float32, and a constant for
    second derivatives.

    This is the natural gradient of the *scores*. The weights of a network that computes the scores get it through the
    chain rule, which does not give the natural gradient of the weights.

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural" (the paper's), or an activation object.
        damping: A number added to every entry of the Fisher diagonal. It bounds the factor by 1 / damping.

    Example:
        >>> import torch
        >>> from catnat.torch import log_prob
        >>> from catnat.torch.geometry import natural_gradient
        >>> scores = torch.zeros(3, requires_grad=True)
        >>> log_prob(natural_gradient(scores), torch.tensor(0)).backward()
        >>> scores.grad
        tensor([-2., -4.,  0.])
    """
    _check_damping(damping)
    plan, computed = plan_for(scores, tree, activation), _inputs.widen(scores)
    constant = computed.detach()
    inverse = _inverse(_information(plan, constant), damping)
    return (constant + inverse * (computed - constant)).to(scores.dtype)


def softmax_natural_gradient(
    logits: Float[Tensor, "*batch classes"], *, damping: float = 0.0
) -> Float[Tensor, "*batch classes"]:
    r"""Return the logits unchanged; the backward pass replaces their gradient by softmax's natural gradient.

    This is the baseline for :func:`natural_gradient`: softmax also has a natural gradient in O(K). Its Fisher matrix is
    :math:`F = \mathrm{diag}(p) - p p^T`. For a gradient that sums to zero, as for every function of the probabilities,

    .. math:: (F + \text{damping}\, I)^{+} g = \frac{g - p\, c}{p + \text{damping}}, \qquad
        c = \frac{\sum_k g_k / (p_k + \text{damping})}{\sum_k p_k / (p_k + \text{damping})}

    Without damping this is :math:`g/p` minus its mean. If the loss depends on the sum of the logits, :math:`g` is
    replaced by :math:`g - p \sum_k g_k`, the gradient of the loss as a function of normalized logits. Classes of
    probability 0 are ignored and get gradient 0.

    Args:
        logits: One logit per class on the last axis; -inf is a class of probability 0.
        damping: A number added to the diagonal of the Fisher matrix.

    Example:
        >>> import torch
        >>> from catnat.torch.geometry import softmax_natural_gradient
        >>> logits = torch.zeros(4, requires_grad=True)
        >>> softmax_natural_gradient(logits).log_softmax(-1)[0].backward()
        >>> logits.grad
        tensor([ 3., -1., -1., -1.])
    """
    _check_damping(damping)
    _inputs.check_tensor(logits, "logits")
    if not logits.is_floating_point() or logits.ndim == 0:
        raise TypeError(
            f"`logits` has dtype {logits.dtype} and shape {tuple(logits.shape)}, but a floating-point tensor with one "
            "logit per class on its last axis is needed: (..., K)."
        )
    computed = _inputs.widen(logits)
    constant = computed.detach()
    p = constant.softmax(-1)
    # The backward pass applies the transpose of this linear map, so the map is the transpose of the formula.
    change = (computed - constant).masked_fill(p == 0, 0.0)
    inverse = _inverse(p, damping)
    weights = p * inverse
    mean = (weights * change).sum(-1, keepdim=True) / weights.sum(-1, keepdim=True)
    return (constant + (change - mean) * inverse).to(logits.dtype)


def _inverse(fisher: Tensor, damping: float) -> Tensor:
    """Return ``1 / (fisher + damping)``, bounded, and 0 where ``fisher`` is 0."""
    smallest = math.sqrt(torch.finfo(fisher.dtype).tiny)
    return (fisher > 0).to(fisher.dtype) / (fisher + damping).clamp(min=smallest)


def _check_damping(damping: float) -> None:
    if not 0 <= damping < math.inf:
        raise ValueError(f"`damping` is {damping}, but a finite number of at least 0 is needed.")


# ---- a step of a given length ----


def kl_step(
    scores: Float[Tensor, "*batch nodes"],
    gradient: Float[Tensor, "*batch nodes"],
    kl: float | Float[Tensor, "*batch"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
) -> Float[Tensor, "*batch nodes"]:
    r"""Return the step along the negative natural gradient that changes the distribution by a KL divergence of ``kl``.

    .. math:: \Delta_i = -t\, g_i / G_{ii}, \qquad KL(p_{s} \| p_{s + \Delta}) = \text{kl}

    Add it to the scores: it is a trust-region step for each row. The length :math:`t` starts at its second-order value
    :math:`\sqrt{2\,\text{kl} / \sum_i g_i^2 / G_{ii}}` and is corrected in a few iterations, up to four times that
    value. Only the direction of ``gradient`` matters. A row whose gradient is 0 at all unsaturated nodes gets a zero
    step. The function is not differentiable: its result is detached.

    In float64 the divergence of a step with ``kl`` of 0.001 or less is accurate within 0.002%. Larger steps of the
    natural activation can reach band edges and miss ``kl`` by a factor of three in some rows. In float32 the rounding
    error of the divergence, about 1e-7, is the limit.

    Args:
        scores: One score per inner node on the last axis.
        gradient: The gradient of a loss in the scores, in their shape; not the natural gradient.
        kl: The divergence of the step, positive: a number, or one per row in the batch shape of ``scores``.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural" (the paper's), or an activation object.

    Example:
        >>> import torch
        >>> from catnat.torch import kl_divergence
        >>> from catnat.torch.geometry import kl_step
        >>> scores, gradient = torch.zeros(3), torch.tensor([1.0, -2.0, 0.5])
        >>> kl_divergence(scores, scores + kl_step(scores, gradient, 0.01))
        tensor(0.0100)
    """
    plan = plan_for(scores, tree, activation)
    computed = _inputs.widen(scores.detach())
    _inputs.check_tensor(gradient, "gradient")
    if gradient.shape != computed.shape:
        raise ValueError(
            f"`gradient` has shape {tuple(gradient.shape)}, but that of `scores` is needed, {tuple(computed.shape)}: "
            "the gradient of a loss in the scores."
        )
    limit = math.sqrt(torch.finfo(computed.dtype).max)
    wanted = _checked_kl(kl, computed).clamp(max=limit)  # larger than any divergence
    if plan.tree.num_nodes == 0:
        return torch.zeros_like(scores)
    inverse = _inverse(_information(plan, computed), 0.0)
    unsaturated = gradient.detach().to(computed.dtype).masked_fill(inverse == 0, 0.0)
    largest = unsaturated.abs().amax(-1, keepdim=True)
    # Scaled, so that squares neither overflow nor underflow.
    gradient = unsaturated / largest.masked_fill(largest == 0, 1.0)
    natural = gradient * inverse
    square = (gradient * natural).sum(-1)
    length = (2 * wanted / square.masked_fill(square == 0, math.inf)).sqrt().clamp(max=limit / 8)
    shortest, longest = torch.zeros_like(length), 4 * length
    # A smaller divergence is mostly rounding error, and the length is then not changed.
    noise = 512 * torch.finfo(computed.dtype).eps
    here = _fused.log_probs(plan, computed, floored=False)
    for _ in range(_ROUNDS):
        found = divergence_of(here, _fused.log_probs(plan, computed - length.unsqueeze(-1) * natural))
        too_far = found > wanted
        shortest, longest = torch.where(too_far, shortest, length), torch.where(too_far, length, longest)
        guess = length * ((wanted + noise) / (found.clamp(min=0) + noise)).sqrt()
        # Go at most half of the way to a length that is too short or too long, because guesses jump near a band edge.
        length = guess.clamp((length + shortest) / 2, (length + longest) / 2)
    return _inputs.clamp_to_dtype(-length.unsqueeze(-1) * natural, scores.dtype)


def _checked_kl(kl: float | Tensor, scores: Tensor) -> Tensor:
    """Return ``kl`` as a checked tensor with one entry per row of ``scores``."""
    batch = scores.shape[:-1]
    if not isinstance(kl, Tensor):
        if not 0 < kl < math.inf:
            raise ValueError(f"`kl` is {kl}, but a positive, finite divergence is needed, such as 0.01.")
        return torch.full(batch, kl, dtype=scores.dtype, device=scores.device)
    if kl.shape not in ((), batch):
        raise ValueError(
            f"`kl` has shape {tuple(kl.shape)}, but a number or one divergence per row is needed, the batch shape "
            f"{tuple(batch)} of `scores`."
        )
    wanted = kl.detach().to(scores.dtype)
    bad = ((wanted > 0) & wanted.isfinite()).all().logical_not()
    if not torch.compiler.is_compiling() and _inputs.known_at_once(bad):
        raise ValueError("`kl` must be positive and finite in every row.")
    return wanted.expand(batch)


# ---- distance ----


def fisher_rao_distance(
    p_scores: Float[Tensor, "*batch nodes"],
    q_scores: Float[Tensor, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
) -> Float[Tensor, "*batch"]:
    r"""Return the Fisher-Rao distance, the length of the shortest path between two distributions.

    .. math:: d(p, q) = 2 \arccos \sum_k \sqrt{p_k q_k} = 4 \arcsin \tfrac12 \lVert \sqrt p - \sqrt q \rVert

    Square roots of probabilities lie on a sphere, and this is twice the angle between them: 0 if p = q, and
    :math:`\pi` if no class is possible under both. If p and q are close, :math:`d^2 \approx \sum_i G_{ii} \Delta_i^2
    \approx 2\, KL`. It is a distance in the space of all distributions, so it does not depend on the tree. The second
    form is computed, which is more accurate if p and q are close. The gradient at p = q is 0.

    Args:
        p_scores: Scores of one distribution.
        q_scores: Scores of the other distribution, broadcast against ``p_scores``.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural" (the paper's), or an activation object.

    Example:
        >>> import torch
        >>> from catnat.torch.geometry import fisher_rao_distance
        >>> # two classes: |s - t| pi / A, A = 2 pi
        >>> fisher_rao_distance(torch.tensor([-1.0]), torch.tensor([0.5]), activation="natural")
        tensor(0.7500)
    """
    p = plan_for(p_scores, tree, activation)
    both = ((p, p_scores), (plan_for(q_scores, p.tree, activation), q_scores))
    p_root, q_root = ((_fused.log_probs(plan, _inputs.widen(scores), floored=False) / 2).exp() for plan, scores in both)
    square = (p_root - q_root).square().sum(-1)
    same = square == 0
    distance = 4 * torch.asin(square.masked_fill(same, 1.0).sqrt() / 2)
    distance = distance + (distance.clamp(max=math.pi) - distance).detach()  # rounding can exceed pi
    dtype = torch.promote_types(_inputs.returned_dtype(p_scores), _inputs.returned_dtype(q_scores))
    return distance.masked_fill(same, 0.0).to(dtype)
