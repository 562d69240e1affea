"""Activations in torch, which map scores to the log-probabilities of both branches of each node.

A :class:`Branches` object holds an activation's constants at all or some nodes of a tree. ``log_probs`` is the
definition, in operations that torch differentiates to any order. ``forward`` and ``backward`` compute the same values
and their derivative in place, for plain data, in half the time and memory.
"""

from __future__ import annotations

import abc
import math
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from catnat import activations
from catnat.activations import SATURATED_LOGIT, Activation
from catnat.trees.tree import Tree

# Up to this many numbers the overhead of an operation exceeds its work. Above it, operations in place are faster.
FEW = 1 << 14

# The log-probabilities of no and of yes.
Pair = tuple[Tensor, Tensor]


class LogOdds(Protocol):
    """A function from scores (..., nodes) to the log-odds of all no and then all yes branches, (..., 2 nodes)."""

    def __call__(self, scores: Tensor, floored: bool) -> Tensor: ...


class _SigmoidLogOdds(NamedTuple):
    """The log-odds of the sigmoid, from a matrix that stacks the negated scores for no and the scores for yes."""

    sides: Tensor
    offset: Tensor
    limit: float

    def __call__(self, scores: Tensor, floored: bool) -> Tensor:
        return F.linear(F.hardtanh(scores, -self.limit, self.limit), self.sides, self.offset)


class _NaturalLogOdds(NamedTuple):
    """The log-odds of the natural activation, ``differences`` of log sin(``rated @ scores + edges + rests``)."""

    rated: Tensor
    edges: Tensor
    rests: Tensor
    differences: Tensor
    least: float
    tiny: float

    def __call__(self, scores: Tensor, floored: bool) -> Tensor:
        # Near an edge, adding `edges` is exact; the rounding error of the edge itself is added afterwards.
        angles = F.linear(scores, self.rated, self.edges) + self.rests
        logs = F.hardtanh(angles, self.least if floored else self.tiny, math.pi / 2).sin().log()
        if not floored:
            logs = F.threshold(logs, math.log(self.tiny) + 1e-3, -SATURATED_LOGIT / 2)
        return logs @ self.differences


class Branches(abc.ABC):
    """An activation at some nodes, with constants ``rows`` (nodes, n), or ``shared`` by all if ``rows`` is None."""

    has_floor = False
    """Whether floored log-probabilities can differ from those without a floor."""

    def __init__(
        self, activation: Activation, largest_logit: float, shared: tuple[float, ...], rows: Tensor | None
    ) -> None:
        self.activation, self._largest_logit, self._rows = activation, largest_logit, rows
        # The upper bound of the log-probability, without a floor, of an impossible branch.
        self.log_of_zero = -SATURATED_LOGIT if isinstance(activation, activations.natural) else -math.inf
        self._constants: tuple[float, ...] | tuple[Tensor, ...]
        self._constants = shared if rows is None else rows.unbind(-1)

    def at(self, nodes: Tensor) -> Branches:
        """Return the branches at the nodes with these indices."""
        if self._rows is None:
            return self
        found = self._rows.index_select(0, nodes.flatten()).view(*nodes.shape, self._rows.shape[-1])
        return type(self)(self.activation, self._largest_logit, (), found)

    def columns(self, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
        """Return the constants as vectors, with one entry per node or a single one for all nodes."""
        return [torch.as_tensor(each, device=device, dtype=dtype).reshape(-1) for each in self._constants]

    def log_odds(self, num_nodes: int, device: torch.device, dtype: torch.dtype) -> LogOdds | None:
        """Return a function that computes log-odds in few operations, each native to autograd; None if there is none.

        The time of a small call is the overhead of starting and recording its operations, not their work.
        """
        return None

    @abc.abstractmethod
    def log_probs(self, scores: Tensor, *, floored: bool) -> Pair:
        """Return the log-probabilities of no and of yes, each to full relative precision and finite.

        If a branch has probability 0, its log-probability is ``log eps`` if ``floored``, and otherwise so small that
        its exponential is 0.
        """

    def forward(self, scores: Tensor, *, floored: bool) -> Pair:
        """Compute :meth:`log_probs` of plain data outside autograd."""
        return self.log_probs(scores, floored=floored)

    def backward(self, no: Tensor, yes: Tensor, grad_no: Tensor, grad_yes: Tensor, *, floored: bool) -> Tensor:
        """Return the gradient of the scores, from the outputs of :meth:`forward` and their gradients."""
        raise NotImplementedError

    @abc.abstractmethod
    def yes_probs(self, scores: Tensor) -> Tensor:
        """Return the probability of yes; it is exactly 0 or 1 at saturated nodes."""

    @abc.abstractmethod
    def inverse(self, logit: Tensor) -> Tensor:
        """Return the activation's input, score plus offset, at which the log-odds of yes are ``logit``, maybe inf."""

    def saturated(self, scores: Tensor) -> Tensor:
        """Return where one branch has probability 0. The test uses both branches, because yes may be rounded to 1."""
        no, yes = self.log_probs(scores, floored=False)
        return (no.exp() == 0) | (yes.exp() == 0)

    def information(self, scores: Tensor) -> Tensor:
        """Return the Fisher information of each score given that its node is reached, the expected squared gradient."""
        branches, slopes = torch.func.jvp(
            lambda s: self.log_probs(s, floored=False), (scores,), (torch.ones_like(scores),)
        )[:2]
        no, yes = (branch.exp() * slope.square() for branch, slope in zip(branches, slopes, strict=True))
        return no + yes


def branches_of(tree: Tree, activation: Activation, device: torch.device, dtype: torch.dtype) -> Branches:
    """Build the branches of all nodes of a tree; only exact types have special code, as subclasses may differ."""
    kind: type[Branches]
    if type(activation) is activations.natural:
        kind = NaturalBranches
        constants = activation.band(tree, np.dtype(str(dtype).removeprefix("torch.")))
        columns = [*constants]
    else:
        kind = SigmoidBranches if type(activation) is activations.sigmoid else LogitBranches
        columns = [activation.offset(tree)]
    if tree.is_symmetric:
        return kind(activation, largest_logit(dtype), tuple(float(column[0]) for column in columns), None)
    rows = np.stack([np.broadcast_to(column, tree.num_nodes) for column in columns], -1)
    found = kind(activation, largest_logit(dtype), (), torch.as_tensor(rows, device=device, dtype=dtype))
    # Columns are copies, because the compiler treats a view's offset as a dynamic size that may equal a batch size.
    found._constants = tuple(torch.as_tensor(column, device=device, dtype=dtype) for column in rows.T.copy())
    return found


def _both_sides(num_nodes: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the matrix (2 nodes, nodes) that maps scores to the negated scores for no and the scores for yes."""
    identity = torch.eye(num_nodes, device=device, dtype=dtype)
    return torch.cat([-identity, identity])


# ---- from log-odds: the sigmoid, and custom activations ----


def largest_logit(dtype: torch.dtype) -> float:
    """Return the bound to which logits are clamped, so that sums, products and second derivatives are finite."""
    return torch.finfo(dtype).max ** (1 / 3)


class LogitBranches(Branches):
    """Any activation, by its log-odds: ``log a = logsigmoid(logit)`` and ``log(1 - a) = logsigmoid(-logit)``."""

    def _logit(self, scores: Tensor) -> Tensor:
        logit: Tensor = self.activation.logit(self._shifted(scores), torch)
        return logit

    def _shifted(self, scores: Tensor) -> Tensor:
        """Add the offset and clamp the result, so that it, its square and its sums are finite."""
        return self._with_offset(scores).clamp(-self._largest_logit, self._largest_logit)

    def _with_offset(self, scores: Tensor) -> Tensor:
        offset = self._constants[0]
        return scores if isinstance(offset, float) and offset == 0 else scores + offset

    def log_probs(self, scores: Tensor, *, floored: bool) -> Pair:
        logit = self._logit(scores)
        if type(self) is LogitBranches:
            logit = logit.clamp(-self._largest_logit, self._largest_logit)
        if torch.compiler.is_compiling():  # ONNX has logsigmoid only as log(sigmoid), which overflows; it has softplus
            return -F.softplus(logit, threshold=50), -F.softplus(-logit, threshold=50)
        return F.logsigmoid(-logit), F.logsigmoid(logit)

    def yes_probs(self, scores: Tensor) -> Tensor:
        return torch.sigmoid(self._logit(scores))

    def inverse(self, logit: Tensor) -> Tensor:
        yes = torch.sigmoid(logit.detach().double()).cpu().numpy()
        x = self.activation.inverse(activations.clip_to_open_unit(yes))
        return torch.as_tensor(x, dtype=logit.dtype, device=logit.device)


class SigmoidBranches(LogitBranches):
    """The sigmoid, whose log-odds are the scores plus the offset."""

    _logit = LogitBranches._shifted

    def log_odds(self, num_nodes: int, device: torch.device, dtype: torch.dtype) -> LogOdds:
        sides = _both_sides(num_nodes, device, dtype)
        [offset] = (sides @ each.expand(num_nodes) for each in self.columns(device, dtype))
        return _SigmoidLogOdds(sides, offset, self._largest_logit)

    def forward(self, scores: Tensor, *, floored: bool) -> Pair:
        if scores.numel() <= FEW:
            return self.log_probs(scores, floored=floored)
        logit, limit = self._with_offset(scores), self._largest_logit
        shared = logit.abs().neg_().exp_().log1p_()  # minus the larger one; the smaller one is |logit| lower
        return logit.clamp(0, limit).add_(shared).neg_(), logit.clamp(-limit, 0).sub_(shared)

    def backward(self, no: Tensor, yes: Tensor, grad_no: Tensor, grad_yes: Tensor, *, floored: bool) -> Tensor:
        return torch.addcmul(grad_yes, yes.exp(), grad_no + grad_yes, value=-1)

    def inverse(self, logit: Tensor) -> Tensor:
        limit = -math.log(torch.finfo(logit.dtype).tiny)
        return torch.where(logit.isinf(), logit.sign() * limit, logit)

    def information(self, scores: Tensor) -> Tensor:
        logit = self._logit(scores)
        return torch.sigmoid(logit) * torch.sigmoid(-logit)


# ---- the natural activation ----
#
# Let r be the distance to the nearer edge of the band as an angle, where the whole band is a right angle. The less
# likely branch has the probability sin^2 r. Near an edge only r has full relative precision.


class NaturalBranches(Branches):
    """The natural activation, computed from the angle to the nearer edge of the band."""

    activation: activations.natural
    has_floor = True

    def _angle(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the angle to the nearer edge, negative outside the band, and whether this is the upper edge."""
        lower, lower_rest, upper, upper_rest = self._constants
        above, below = (upper - scores) + upper_rest, (scores - lower) - lower_rest
        near_upper = above < below
        return torch.where(near_upper, above, below) * (math.pi / (2 * self.activation.width)), near_upper

    def log_probs(self, scores: Tensor, *, floored: bool) -> Pair:
        angle, near_upper = self._angle(scores)
        smallest = smallest_angle(scores.dtype, floored)
        sine = angle.clamp(min=smallest).sin()
        less, more = 2 * sine.log(), torch.log1p(-sine.square())
        if not floored:
            less = less.masked_fill(angle <= smallest, -SATURATED_LOGIT)
        return torch.where(near_upper, less, more), torch.where(near_upper, more, less)

    def log_odds(self, num_nodes: int, device: torch.device, dtype: torch.dtype) -> LogOdds | None:
        rate = math.pi / (2 * self.activation.width)
        if math.frexp(rate)[0] != 0.5:  # near an edge products must be exact, as they are with a power of two
            return None
        sides = _both_sides(num_nodes, device, dtype)
        lower, lower_rest, upper, upper_rest = (each.expand(num_nodes) for each in self.columns(device, dtype))
        edges, rests = rate * torch.cat([upper, -lower]), rate * torch.cat([upper_rest, -lower_rest])
        differences = 2 * (sides @ sides.T)  # no minus yes and yes minus no, times 2 for squared sines
        smallest = (smallest_angle(dtype, floored) for floored in (True, False))
        return _NaturalLogOdds(rate * sides, edges, rests, differences, *smallest)

    def forward(self, scores: Tensor, *, floored: bool) -> Pair:
        lower, lower_rest, upper, upper_rest = self._constants
        above, below = (upper - scores).add_(upper_rest), (scores - lower).sub_(lower_rest)
        smallest = smallest_angle(scores.dtype, floored)
        odds = torch.minimum(above, below).mul_(math.pi / (2 * self.activation.width)).clamp_min_(smallest)
        flat = None if floored else odds <= smallest
        odds = odds.tan_().square_()  # of the less likely branch
        logit = odds.log()
        if flat is not None:
            logit.masked_fill_(flat, -SATURATED_LOGIT)
        logit.copysign_(below.sub_(above))
        shared = odds.log1p_()
        yes = logit.clamp(max=0).sub_(shared)
        return logit.clamp_min_(0).add_(shared).neg_(), yes

    def backward(self, no: Tensor, yes: Tensor, grad_no: Tensor, grad_yes: Tensor, *, floored: bool) -> Tensor:
        # If z is the angle to the lower edge, the derivatives of no and yes are -2 tan z and 2 cot z, times dz / ds.
        logit = yes - no
        bound = -2 * math.log(math.tan(smallest_angle(no.dtype, floored))) * (1 - 1e-6)
        tan = (logit if floored else logit.clamp(-bound, bound)).mul(0.5).exp_()
        grad = torch.addcdiv(grad_no * tan, grad_yes, tan, value=-1)
        return grad.masked_fill_(logit.abs_() >= bound, 0).mul_(-math.pi / self.activation.width)

    def yes_probs(self, scores: Tensor) -> Tensor:
        lower, lower_rest = self._constants[:2]
        angle = ((scores - lower) - lower_rest) * (math.pi / (2 * self.activation.width))
        return angle.clamp(0, math.pi / 2).sin().square()

    def inverse(self, logit: Tensor) -> Tensor:
        limit = -2 * math.log(torch.finfo(logit.dtype).tiny)  # beyond it the angle is an edge's, and exp would overflow
        angle = (logit.clamp(-limit, limit) / 2).exp().atan()
        return (angle - math.pi / 4) * (2 * self.activation.width / math.pi)

    def saturated(self, scores: Tensor) -> Tensor:
        return self._angle(scores)[0] <= 0

    def information(self, scores: Tensor) -> Tensor:
        return (math.pi / self.activation.width) ** 2 * self.saturated(scores).logical_not().to(scores.dtype)


def smallest_angle(dtype: torch.dtype, floored: bool) -> float:
    """Return the angle at which branches are clamped: at probability eps, or before second derivatives overflow."""
    if floored:
        return math.atan(math.sqrt(torch.finfo(dtype).eps))
    return 1e-18 if dtype == torch.float32 else 1e-150
