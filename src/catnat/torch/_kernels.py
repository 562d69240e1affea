"""How the activations are computed: from scores to the log-probabilities of both branches of every node.

Any activation can be computed from its log-odds, ``log a = logsigmoid(logit)`` and ``log(1 - a) = logsigmoid(-logit)``,
with full relative accuracy. The library's own have kernels of their own.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from catnat import activations
from catnat.activations import MOST_FOLDS, SATURATED_LOGIT, Activation, Affine, Band
from catnat.torch._autograd import apply, wants_plain_operations

# The log-probabilities of no and of yes.
Branches = tuple[Tensor, Tensor]


class Kernel:
    """An activation in torch, from its log-odds alone.

    ``constants`` are those of the nodes, an ``Affine`` of tensors, or of floats that all nodes share; a ``Band`` for
    the natural activation.
    """

    log_of_zero = -math.inf
    """The log-probability, not floored, that an impossible branch has at most."""

    def __init__(self, activation: Activation) -> None:
        self.activation = activation

    def _logit(self, x: Tensor) -> Tensor:
        logit: Tensor = self.activation.logit(x, torch)
        return logit

    def inverse(self, logit: Tensor) -> Tensor:
        """The x at which the log-odds of yes are ``logit``, which may be infinite."""
        yes = torch.sigmoid(logit.detach().double()).cpu().numpy()
        x = self.activation.inverse(activations.uncertain(yes))
        return torch.as_tensor(x, dtype=logit.dtype, device=logit.device)

    def branch_log_probs(self, scores: Tensor, constants: Any, *, floored: bool) -> Branches:
        """The log-probabilities of no and of yes at every node, each to full relative precision.

        Where a branch has probability 0, its logarithm is ``log eps`` if ``floored``, and otherwise so far down that
        its exponential is 0.
        """
        return _plain_branches(self._logit(_affine(scores, *constants)))

    def yes_probs(self, scores: Tensor, constants: Any) -> Tensor:
        """The probability of yes at every node, exactly 0 and 1 where it is."""
        return torch.sigmoid(self._logit(_affine(scores, *constants)))

    def constants_from_masses(self, no: Tensor, yes: Tensor, reach: Tensor | None) -> Any:
        """The constants of nodes whose branches have the prior masses ``no`` and ``yes``, both positive.

        ``reach`` is the fraction of the prior below each node; only isotropic scaling needs it.
        """
        return Affine(self._scale_of(no, yes, reach), self.inverse(yes.log() - no.log()))

    def _scale_of(self, no: Tensor, yes: Tensor, reach: Tensor | None) -> Tensor:
        if self.activation.scaling == "paper" or reach is None:
            return no.new_ones(())
        floor = activations.REFERENCE_INFORMATION / activations.LARGEST_SCALE**2
        return (activations.REFERENCE_INFORMATION / (reach * self._information_of(no, yes)).clamp(min=floor)).sqrt()

    def _information_of(self, no: Tensor, yes: Tensor) -> Tensor:
        """The Fisher information of the prior, from masses."""
        fraction = (yes / (no + yes)).double().cpu().numpy()
        information = self.activation.information(activations.uncertain(fraction))
        return torch.as_tensor(information, dtype=no.dtype, device=no.device)

    def saturated(self, scores: Tensor, constants: Any) -> Tensor:
        """Where one branch has probability 0; not from yes alone, which rounds to 1 long before."""
        no, yes = self.branch_log_probs(scores, constants, floored=False)
        return (no.exp() == 0) | (yes.exp() == 0)

    def information(self, scores: Tensor, constants: Any) -> Tensor:
        """The Fisher information of the score given that its node is reached: the expected square of its gradient."""
        branches, slopes = torch.func.jvp(
            lambda s: self.branch_log_probs(s, constants, floored=False), (scores,), (torch.ones_like(scores),)
        )[:2]
        no, yes = (branch.exp() * slope.square() for branch, slope in zip(branches, slopes, strict=True))
        return no + yes


class SigmoidKernel(Kernel):
    """The logit is the score itself."""

    def inverse(self, logit: Tensor) -> Tensor:
        limit = -math.log(torch.finfo(logit.dtype).tiny)
        return torch.where(logit.isinf(), logit.sign() * limit, logit)

    def _information_of(self, no: Tensor, yes: Tensor) -> Tensor:
        return (yes / (no + yes)) * (no / (no + yes))

    def branch_log_probs(self, scores: Tensor, constants: Any, *, floored: bool) -> Branches:
        logit = _affine(scores, *constants)
        if logit.numel() <= FEW or wants_plain_operations():
            return _plain_branches(logit)
        branches: Branches = apply(_SigmoidBranches, logit)
        return branches

    def information(self, scores: Tensor, constants: Any) -> Tensor:
        logit = _affine(scores, *constants)
        return torch.sigmoid(logit) * torch.sigmoid(-logit) * constants.scale**2


class NaturalKernel(Kernel):
    """All from the angle to the nearer edge of the band."""

    activation: activations.natural
    log_of_zero = -SATURATED_LOGIT

    def inverse(self, logit: Tensor) -> Tensor:
        limit = -2 * math.log(torch.finfo(logit.dtype).tiny)  # beyond it the angle is an edge's, and exp would overflow
        angle = (logit.clamp(-limit, limit) / 2).exp().atan()
        return (angle - math.pi / 4) * (2 * self.activation.width / math.pi)

    def constants_from_masses(self, no: Tensor, yes: Tensor, reach: Tensor | None) -> Any:
        angle = torch.atan2(yes.sqrt(), no.sqrt())
        rate = self._scale_of(no, yes, reach) * (math.pi / (2 * self.activation.width))
        # Each edge from its own angle: their difference would lose the smaller one's digits.
        lower, upper = -angle / rate, torch.atan2(no.sqrt(), yes.sqrt()) / rate
        zero = no.new_zeros(())
        return Band(lower, zero, upper, zero, (lower + upper) / 2, rate)

    def _information_of(self, no: Tensor, yes: Tensor) -> Tensor:
        return torch.full_like(no, (math.pi / self.activation.width) ** 2)

    def branch_log_probs(self, scores: Tensor, constants: Any, *, floored: bool) -> Branches:
        if self.activation.boundary == "reflect":
            scores = _fold(scores, constants)
        smallest = smallest_angle(scores.dtype, floored)
        if wants_plain_operations():
            return _plain_branches(_natural_logit(scores, smallest, floored, constants))
        branches: Branches = apply(_NaturalBranches, scores, smallest, floored, *constants)
        return branches

    def yes_probs(self, scores: Tensor, constants: Any) -> Tensor:
        if self.activation.boundary == "reflect":
            scores = _fold(scores, constants)
        angle = ((scores - constants.lower) - constants.lower_rest) * constants.rate
        return angle.clamp(0, math.pi / 2).sin().square()

    def saturated(self, scores: Tensor, constants: Any) -> Tensor:
        if self.activation.boundary == "reflect":
            return torch.zeros_like(scores, dtype=torch.bool)
        return _angle(scores, constants) <= 0

    def information(self, scores: Tensor, constants: Any) -> Tensor:
        return (2 * constants.rate) ** 2 * self.saturated(scores, constants).logical_not().to(scores.dtype)


_KERNELS: dict[type[Activation], type[Kernel]] = {
    activations.natural: NaturalKernel,
    activations.sigmoid: SigmoidKernel,
}


def kernel_for(activation: Activation) -> Kernel:
    """The kernel of an activation: by its exact type, because a subclass may compute something else."""
    return _KERNELS.get(type(activation), Kernel)(activation)


def _affine(scores: Tensor, scale: Any, offset: Any) -> Tensor:
    """``scale * scores + offset``, finite for every finite score."""
    if isinstance(scale, float) and (scale, offset) == (1.0, 0.0):
        return scores
    limit = largest_logit(scores.dtype)
    return scores.clamp(-limit, limit) * scale + offset


# ---- both branches ----

# Up to this many numbers the overhead of an operation outweighs its work.
FEW = 1 << 14


def largest_logit(dtype: torch.dtype) -> float:
    """Where a logit saturates: beyond any probability, and small enough for sums, products and second derivatives."""
    return torch.finfo(dtype).max ** (1 / 3)


def _plain_branches(logit: Tensor) -> Branches:
    limit = largest_logit(logit.dtype)
    logit = logit.clamp(-limit, limit)
    if torch.compiler.is_compiling():  # ONNX has logsigmoid only as log(sigmoid), which overflows; it has softplus
        return -F.softplus(logit, threshold=50), -F.softplus(-logit, threshold=50)
    return F.logsigmoid(-logit), F.logsigmoid(logit)


class _SigmoidBranches(torch.autograd.Function):
    """The plain branches at half their cost for large inputs, by sharing m = log(1 + exp(-|logit|)) between the two."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logit: Tensor) -> Branches:
        limit = largest_logit(logit.dtype)
        shared = logit.abs().neg_().exp_().log1p_()
        return logit.clamp(0, limit).add_(shared).neg_(), logit.clamp(-limit, 0).sub_(shared)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Branches) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad_no: Tensor, grad_yes: Tensor) -> Tensor:
        (logit,) = ctx.saved_tensors
        return torch.addcmul(grad_yes, torch.sigmoid(logit), grad_no + grad_yes, value=-1)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Branches:
        (logit,) = ctx.saved_tensors
        return -torch.sigmoid(logit) * tangent, torch.sigmoid(-logit) * tangent


# ---- the natural activation ----
#
# With z the angle through the band, from 0 at the lower edge to pi/2 at the upper one, nu = sin^2 z and the logit is
# 2 log tan z. It is computed from r, the angle to the nearer edge, because near an edge only r is known to full
# relative precision: the odds of the less likely branch are tan^2 r.


def smallest_angle(dtype: torch.dtype, floored: bool) -> float:
    """The angle below which a node is flat: where its probability is eps, or a second derivative would overflow."""
    if floored:
        return math.atan(math.sqrt(torch.finfo(dtype).eps))
    return 1e-18 if dtype == torch.float32 else 1e-150


def _angle(scores: Tensor, band: Band) -> Tensor:
    """The angle to the nearer edge of the band, negative outside; a new tensor."""
    if isinstance(band.rate, float):  # a symmetric band: one distance serves both sides
        return scores.abs().sub_(band.upper).sub_(band.upper_rest).mul_(-band.rate)
    below = (scores - band.lower).sub_(band.lower_rest)
    return torch.minimum((band.upper - scores).add_(band.upper_rest), below).mul_(band.rate)


def _fold(scores: Tensor, band: Band) -> Tensor:
    """The point of the band with the same nu, reflecting at the edges; its derivative is 1 or -1."""
    period = math.pi / band.rate  # twice the band's width
    limit: Any = MOST_FOLDS * period
    # Saturate the value but not the gradient: every node has one, however far out.
    near = scores.detach().clamp(-limit, limit) + (scores - scores.detach())
    turns = torch.round((near - band.centre) / period).detach()
    near = near - turns * period
    above = (near > band.upper).to(near.dtype).detach()
    under = (near < band.lower).to(near.dtype).detach()
    return near + 2 * above * (band.upper - near) + 2 * under * (band.lower - near)


def _natural_logit(scores: Tensor, smallest: float, floored: bool, band: Band) -> Tensor:
    """The logit of nu as operations that the compiler can fuse and differentiate: 2 log sin z - 2 log cos z."""
    up = ((scores - band.lower) - band.lower_rest) * band.rate
    down = ((band.upper - scores) + band.upper_rest) * band.rate
    log_sin, log_cos = (angle.clamp(smallest, math.pi / 2).sin().log() for angle in (up, down))
    logit = 2 * (log_sin - log_cos)
    if floored:
        return logit
    return logit + SATURATED_LOGIT * ((down <= smallest).to(logit.dtype) - (up <= smallest).to(logit.dtype))


class _NaturalBranches(torch.autograd.Function):
    """Both branches of nu in one step: outside the compiler, a third of the time and memory of plain operations."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        scores: Tensor,
        smallest: float,
        floored: bool,
        lower: Any,
        lower_rest: Any,
        upper: Any,
        upper_rest: Any,
        centre: Any,
        rate: Any,
    ) -> Branches:
        angle = _angle(scores, Band(lower, lower_rest, upper, upper_rest, centre, rate))
        saturated = None if floored else angle <= smallest
        odds = angle.clamp_min_(smallest).tan_()
        odds.mul_(odds)
        logit = odds.log()
        if saturated is not None:
            logit.add_(saturated, alpha=-SATURATED_LOGIT)
        logit.copysign_(scores if isinstance(rate, float) else scores - centre)
        if logit.numel() <= FEW:
            return F.logsigmoid(-logit), F.logsigmoid(logit)
        shared = odds.log1p_()
        yes = logit.clamp(max=0).sub_(shared)
        return logit.clamp_min_(0).add_(shared).neg_(), yes

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Branches) -> None:
        _, smallest, ctx.floored, *constants = inputs
        ctx.largest = -2 * math.log(math.tan(smallest))
        ctx.rate, rate = (constants[-1], None) if isinstance(constants[-1], float) else (None, constants[-1])
        ctx.save_for_backward(*output, rate)
        ctx.save_for_forward(*output, rate)

    @staticmethod
    def backward(ctx: Any, grad_no: Tensor, grad_yes: Tensor) -> tuple[Tensor | None, ...]:
        # The derivatives of the branches are -2 rate tan z and 2 rate cot z.
        minus_logit, cot, rate = _NaturalBranches.slopes(ctx)
        grad = torch.addcdiv(grad_yes * cot, grad_no, cot, value=-1)
        return _NaturalBranches.inside(ctx, grad, minus_logit).mul_(2 * rate), *(8 * [None])

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Branches:
        minus_logit, cot, rate = _NaturalBranches.slopes(ctx)
        tangent = _NaturalBranches.inside(ctx, tangent, minus_logit) * (2 * rate)
        return -tangent / cot, tangent * cot

    @staticmethod
    def slopes(ctx: Any) -> tuple[Tensor, Tensor, Any]:
        """The logit's negative, cot z, and the angle per score."""
        no, yes, rate = ctx.saved_tensors
        minus_logit = no - yes
        bounded = minus_logit if ctx.floored else minus_logit.clamp(-ctx.largest, ctx.largest)
        return minus_logit, (bounded * 0.5).exp_(), ctx.rate if rate is None else rate

    @staticmethod
    def inside(ctx: Any, values: Tensor, minus_logit: Tensor) -> Tensor:
        """``values`` inside the band, 0 where the logit is at its bound: a clamp's gradient, in one pass."""
        bound = ctx.largest * (1 - 1e-6)
        kept: Tensor = torch.ops.aten.hardtanh_backward(values, minus_logit, -bound, bound)
        return kept
