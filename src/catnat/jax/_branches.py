"""The log-probabilities of a node's two branches, no and yes, as functions of its score.

Each activation of the library has its own formula. Any other is computed from its log-odds, to full relative precision.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from catnat.activations import SATURATED_LOGIT, natural, sigmoid
from catnat.jax._plan import Plan

# The log-probabilities of no and of yes.
Branches = tuple[Array, Array]


def branch_log_probs(scores: Array, plan: Plan, index: Array | None = None, *, floored: bool) -> Branches:
    """Return the log-probabilities of no and of yes, each to full relative precision.

    If a branch has probability 0, its logarithm is ``log eps`` if ``floored``, and otherwise so small that its
    exponential is 0. (The sigmoid has no such branch.)

    Args:
        scores: The scores of all nodes, or of the nodes ``index``.
        plan: The tree and the activation.
        index: The nodes of these scores; all nodes if not given.
        floored: Whether a branch of probability 0 gets ``log eps``.
    """
    constants = plan.constants(index)
    # One long row, because the compiler vectorizes many short rows badly on CPU.
    if isinstance(plan.activation, natural) and plan.is_natural:
        below, angle = (each.reshape(-1) for each in _nearer_edge(scores, plan.activation.width, *constants))
        unlikely, likely = _natural_branches(angle, floored)
        no, yes = jnp.where(below, likely, unlikely), jnp.where(below, unlikely, likely)
    else:
        no, yes = _logistic_branches(_logit(scores, plan, *constants).reshape(-1))
    return no.reshape(scores.shape), yes.reshape(scores.shape)


def yes_probs(scores: Array, plan: Plan, index: Array | None = None) -> Array:
    """Return the probability of yes; it is exactly 0 or 1 at saturated nodes."""
    return jnp.exp(branch_log_probs(scores, plan, index, floored=False)[1])


def slopes(scores: Array, plan: Plan) -> tuple[Branches, Branches]:
    """Return the log-probabilities of both branches at all nodes, not floored, and their derivatives."""
    return jax.jvp(lambda s: branch_log_probs(s, plan, floored=False), (scores,), (jnp.ones_like(scores),))


def information(scores: Array, plan: Plan) -> Array:
    """Return the Fisher information of every score given that its node is reached: the expected squared gradient."""
    branches, by_score = slopes(scores, plan)
    no, yes = (jnp.exp(branch) * slope**2 for branch, slope in zip(branches, by_score, strict=True))
    return no + yes


def saturated(scores: Array, plan: Plan) -> Array:
    """Return where one branch has probability 0. The test uses both branches, because yes may be rounded to 1."""
    no, yes = branch_log_probs(scores, plan, floored=False)
    return (jnp.exp(no) == 0) | (jnp.exp(yes) == 0)


def log_of_zero(plan: Plan) -> float:
    """Return the largest log-probability, not floored, that an impossible branch can have."""
    return -SATURATED_LOGIT if isinstance(plan.activation, natural) else -math.inf


def _log1p(x: Array) -> Array:
    """Return ``log(1 + x)`` for x from -1/2 to 1, to full relative precision, by the series of artanh.

    The value is ``2 artanh(x / (2 + x))``; ``jnp.log1p`` takes twice the time on CPU. The last step is a division
    because the compiler keeps the results of divisions, and recomputes sums and products at every use.
    """
    square = (x / (2 + x)) ** 2
    terms = 7 if x.dtype == jnp.float32 else 16
    series = jnp.zeros_like(x)
    for n in reversed(range(terms)):
        series = series * square + 2 / (2 * n + 1)
    return x * series / (2 + x)


# ---- by the log-odds ----


def _logit(scores: Array, plan: Plan, offset: Any) -> Array:
    if type(plan.activation) is sigmoid:
        return scores + offset
    limit = _largest_logit(scores.dtype)
    logit: Array = plan.activation.logit(jnp.clip(scores, -limit, limit) + offset, jnp)
    return logit


def _largest_logit(dtype: Any) -> float:
    """Return the bound to which logits are clamped, so that sums, products and second derivatives are finite."""
    return float(jnp.finfo(dtype).max) ** (1 / 3)


# The shared term has kinks at 0, which cancel in the values but not in the derivatives: hence a custom rule.
@jax.custom_jvp
def _logistic_branches(logit: Array) -> Branches:
    limit = _largest_logit(logit.dtype)
    shared = _log1p(jnp.exp(-jnp.abs(logit)))
    # `where` comes last: the compiler would move sums into the matrix product that follows, where they are slow.
    positive, logit = logit > 0, jnp.clip(logit, -limit, limit)
    return jnp.where(positive, -(logit + shared), -shared), jnp.where(positive, -shared, logit - shared)


@_logistic_branches.defjvp
def _slopes_of_logistic_branches(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Branches, Branches]:
    (logit,), (tangent,) = primals, tangents
    return _logistic_branches(logit), (-jax.nn.sigmoid(logit) * tangent, jax.nn.sigmoid(-logit) * tangent)


# ---- the natural activation ----
#
# Let r be the angle to the nearer edge of the band, at most pi/4. The less likely branch has probability sin^2 r, the
# other one cos^2 r = 1 - sin^2 r. Near an edge only r is accurate to full relative precision.


def _nearer_edge(
    scores: Array, width: float, lower: Any, lower_rest: Any, upper: Any, upper_rest: Any
) -> tuple[Array, Array]:
    """Return whether the lower edge of the band is nearer, and the angle to the nearer edge; negative outside."""
    from_lower, from_upper = scores - lower, upper - scores
    below = from_lower < from_upper
    # Two calls of `where`: the compiler merges constants that are added in a row, and would lose the edge's rest.
    distance, rest = jnp.where(below, from_lower, from_upper), jnp.where(below, -lower_rest, upper_rest)
    return below, (distance + rest) * (math.pi / (2 * width))


def _smallest_angle(dtype: Any, floored: bool) -> float:
    """Return the angle at which branches are clamped: at probability eps, or before second derivatives overflow."""
    if floored:
        return math.atan(math.sqrt(jnp.finfo(dtype).eps))
    return 1e-18 if dtype == jnp.float32 else 1e-150


# A custom rule, because the derivatives 2 cot r and -2 tan r are simpler than those of the single steps: it halves the
# time of the backward pass.
@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _natural_branches(angle: Array, floored: bool) -> Branches:
    """Return the log-probabilities of the less and the more likely branch, by the ``angle`` to the nearer edge."""
    smallest = _smallest_angle(angle.dtype, floored)
    inside = angle > smallest
    square = _small_sine(jnp.where(inside, angle, smallest)) ** 2
    unlikely = jnp.log(square)
    if not floored:
        unlikely = unlikely - jnp.where(inside, 0.0, SATURATED_LOGIT)
    return unlikely, _log1p(-square)


@_natural_branches.defjvp
def _slopes_of_natural_branches(
    floored: bool, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Branches, Branches]:
    (angle,), (tangent,) = primals, tangents
    smallest = _smallest_angle(angle.dtype, floored)
    inside = angle > smallest
    bounded = jnp.where(inside, angle, smallest)
    sine, cosine = _small_sine(bounded), _small_cosine(bounded)
    tangent = 2 * jnp.where(inside, tangent, 0)
    return _natural_branches(angle, floored), (cosine / sine * tangent, -sine / cosine * tangent)


def _small_sine(angle: Array) -> Array:
    """Return the sine up to pi/4, to the last bit, by its series: the compiler can vectorize it, unlike ``jnp.sin``."""
    return angle * _series(angle * angle, 1)


def _small_cosine(angle: Array) -> Array:
    return _series(angle * angle, 0)


def _series(square: Array, first: int) -> Array:
    """Return the series of the cosine if ``first`` is 0, or of the sine divided by its angle if it is 1."""
    terms = 6 if square.dtype == jnp.float32 else 10
    series = jnp.zeros_like(square)
    for n in reversed(range(terms)):
        series = series * square + (-1) ** n / math.factorial(2 * n + first)
    return series
