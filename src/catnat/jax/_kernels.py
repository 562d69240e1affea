"""How the activations are computed: from scores to the log-probabilities of both branches of every node.

Any activation can be computed from its log-odds, with full relative accuracy. The library's own have kernels of their
own.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from catnat import activations
from catnat.activations import MOST_FOLDS, SATURATED_LOGIT, Activation, Affine, Band

# The log-probabilities of no and of yes.
Branches = tuple[Array, Array]


class Kernel:
    """An activation in JAX, from its log-odds alone.

    ``constants`` are those of the nodes, an ``Affine`` of arrays, or of floats that all nodes share; a ``Band`` for the
    natural activation.
    """

    log_of_zero = -math.inf
    """The log-probability, not floored, that an impossible branch has at most."""

    def __init__(self, activation: Activation) -> None:
        self.activation = activation

    def _logit(self, x: Array) -> Array:
        logit: Array = self.activation.logit(x, jnp)
        return logit

    def inverse(self, logit: Array) -> Array:
        """The x at which the log-odds of yes are ``logit``, which may be infinite."""

        def inverse(logit: Any) -> Any:
            yes = 1 / (1 + np.exp(-np.clip(np.asarray(logit, dtype=np.float64), -700, 700)))
            return self.activation.inverse(activations.uncertain(yes)).astype(logit.dtype)

        return _in_numpy(inverse, logit)

    def branch_log_probs(self, scores: Array, constants: Any, *, floored: bool) -> Branches:
        """The log-probabilities of no and of yes at every node, each to full relative precision.

        Where a branch has probability 0, its logarithm is ``log eps`` if ``floored``, and otherwise so far down that
        its exponential is 0.
        """
        logit = self._logit(_affine(scores, *constants))
        no, yes = _logistic_branches(logit.reshape(-1))  # one long row: see the natural activation
        return no.reshape(logit.shape), yes.reshape(logit.shape)

    def yes_probs(self, scores: Array, constants: Any) -> Array:
        """The probability of yes at every node, exactly 0 and 1 where it is."""
        return jax.nn.sigmoid(self._logit(_affine(scores, *constants)))

    def constants_from_masses(self, no: Array, yes: Array, reach: Array | None) -> Any:
        """The constants of nodes whose branches have the prior masses ``no`` and ``yes``, both positive.

        ``reach`` is the fraction of the prior below each node; only isotropic scaling needs it.
        """
        return Affine(self._scale_of(no, yes, reach), self.inverse(jnp.log(yes) - jnp.log(no)))

    def _scale_of(self, no: Array, yes: Array, reach: Array | None) -> Array:
        if self.activation.scaling == "paper" or reach is None:
            return jnp.ones((), no.dtype)
        floor = activations.REFERENCE_INFORMATION / activations.LARGEST_SCALE**2
        return jnp.sqrt(activations.REFERENCE_INFORMATION / jnp.maximum(reach * self._information_of(no, yes), floor))

    def _information_of(self, no: Array, yes: Array) -> Array:
        """The Fisher information of the prior, from masses."""
        return _in_numpy(
            lambda f: self.activation.information(activations.uncertain(np.asarray(f, np.float64))).astype(f.dtype),
            yes / (no + yes),
        )

    def saturated(self, scores: Array, constants: Any) -> Array:
        """Where one branch has probability 0; not from yes alone, which rounds to 1 long before."""
        no, yes = self.branch_log_probs(scores, constants, floored=False)
        return (jnp.exp(no) == 0) | (jnp.exp(yes) == 0)

    def information(self, scores: Array, constants: Any) -> Array:
        """The Fisher information of the score given that its node is reached: the expected square of its gradient."""
        branches, slopes = jax.jvp(
            lambda s: self.branch_log_probs(s, constants, floored=False), (scores,), (jnp.ones_like(scores),)
        )
        no, yes = (jnp.exp(branch) * slope**2 for branch, slope in zip(branches, slopes, strict=True))
        return no + yes


class SigmoidKernel(Kernel):
    """The logit is the score itself."""

    def inverse(self, logit: Array) -> Array:
        limit = -math.log(jnp.finfo(logit.dtype).tiny)
        return jnp.where(jnp.isinf(logit), jnp.sign(logit) * limit, logit)

    def _information_of(self, no: Array, yes: Array) -> Array:
        return (yes / (no + yes)) * (no / (no + yes))

    def information(self, scores: Array, constants: Any) -> Array:
        logit = _affine(scores, *constants)
        return jax.nn.sigmoid(logit) * jax.nn.sigmoid(-logit) * constants.scale**2


class NaturalKernel(Kernel):
    """All from the angle to the nearer edge of the band."""

    activation: activations.natural
    log_of_zero = -SATURATED_LOGIT

    def inverse(self, logit: Array) -> Array:
        limit = -2 * math.log(jnp.finfo(logit.dtype).tiny)  # beyond it the angle is an edge's, and exp would overflow
        angle = jnp.arctan(jnp.exp(jnp.clip(logit, -limit, limit) / 2))
        return (angle - math.pi / 4) * (2 * self.activation.width / math.pi)

    def constants_from_masses(self, no: Array, yes: Array, reach: Array | None) -> Any:
        angle = jnp.arctan2(jnp.sqrt(yes), jnp.sqrt(no))
        rate = self._scale_of(no, yes, reach) * (math.pi / (2 * self.activation.width))
        # Each edge from its own angle: their difference would lose the smaller one's digits.
        lower, upper = -angle / rate, jnp.arctan2(jnp.sqrt(no), jnp.sqrt(yes)) / rate
        return Band(lower, 0.0, upper, 0.0, (lower + upper) / 2, rate)

    def _information_of(self, no: Array, yes: Array) -> Array:
        return jnp.full_like(no, (math.pi / self.activation.width) ** 2)

    def branch_log_probs(self, scores: Array, constants: Any, *, floored: bool) -> Branches:
        below, angle = self._nearer_edge(scores, constants)
        # One long row, because a compiler for CPUs vectorizes the rows of short ones badly.
        no, yes = _natural_branches(below.reshape(-1), angle.reshape(-1), floored)
        return no.reshape(scores.shape), yes.reshape(scores.shape)

    def yes_probs(self, scores: Array, constants: Any) -> Array:
        below, angle = self._nearer_edge(scores, constants)
        unlikely = _small_sine(jnp.maximum(angle, 0)) ** 2
        return jnp.where(below, unlikely, 1 - unlikely)

    def saturated(self, scores: Array, constants: Any) -> Array:
        if self.activation.boundary == "reflect":
            return jnp.zeros(scores.shape, bool)
        return self._nearer_edge(scores, constants)[1] <= 0

    def information(self, scores: Array, constants: Any) -> Array:
        inside = ~self.saturated(scores, constants)
        return (2 * constants.rate) ** 2 * inside.astype(scores.dtype)

    def _nearer_edge(self, scores: Array, band: Band) -> tuple[Array, Array]:
        """Whether the lower edge of the band is the nearer one, and the angle to it, negative outside the band."""
        if self.activation.boundary == "reflect":
            scores = _fold(scores, band)
        below = scores < band.centre
        # Two choices, not one: the compiler merges constants that are added in a row, and would lose the edge's rest.
        distance = jnp.where(below, scores - band.lower, band.upper - scores)
        rest = jnp.where(below, -band.lower_rest, band.upper_rest)
        return below, (distance + rest) * band.rate


_KERNELS: dict[type[Activation], type[Kernel]] = {
    activations.natural: NaturalKernel,
    activations.sigmoid: SigmoidKernel,
}


def kernel_for(activation: Activation) -> Kernel:
    """The kernel of an activation: by its exact type, because a subclass may compute something else."""
    return _KERNELS.get(type(activation), Kernel)(activation)


def _affine(scores: Array, scale: Any, offset: Any) -> Array:
    """``scale * scores + offset``, finite for every finite score."""
    if isinstance(scale, float) and (scale, offset) == (1.0, 0.0):
        return scores
    limit = _largest_logit(scores.dtype)
    return lax.clamp(jnp.asarray(-limit, scores.dtype), scores, jnp.asarray(limit, scores.dtype)) * scale + offset


def _in_numpy(function: Any, values: Array) -> Array:
    """``function`` of ``values``, in NumPy and without a gradient, also inside compiled code."""
    shape = jax.ShapeDtypeStruct(values.shape, values.dtype)
    return jax.pure_callback(function, shape, lax.stop_gradient(values), vmap_method="expand_dims")


def _log1p(x: Array) -> Array:
    """``log(1 + x)`` for x from -1/2 to 1, to full relative precision: ``2 artanh(x / (2 + x))`` by its series.

    On a CPU ``jnp.log1p`` takes twice the time. The last step is a division because a compiler for CPUs keeps the
    results of divisions, and computes those of sums and products again for everyone who reads them.
    """
    square = (x / (2 + x)) ** 2
    terms = 7 if x.dtype == jnp.float32 else 16
    series = jnp.zeros_like(x)
    for n in reversed(range(terms)):
        series = series * square + 2 / (2 * n + 1)
    return x * series / (2 + x)


# ---- the logistic function ----


def _largest_logit(dtype: Any) -> float:
    """Where a logit saturates: beyond any probability, and small enough for sums, products and second derivatives."""
    return float(jnp.finfo(dtype).max) ** (1 / 3)


# The shared term makes kinks at 0 that cancel in the values. Their derivatives would not: hence a rule of their own.
@jax.custom_jvp
def _logistic_branches(logit: Array) -> Branches:
    limit = _largest_logit(logit.dtype)
    shared = _log1p(jnp.exp(-jnp.abs(logit)))
    # Choices at the end: the compiler would move sums into the matrix product that follows, where they are slow.
    positive, logit = logit > 0, jnp.clip(logit, -limit, limit)
    return jnp.where(positive, -(logit + shared), -shared), jnp.where(positive, -shared, logit - shared)


@_logistic_branches.defjvp
def _slopes_of_logistic_branches(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Branches, Branches]:
    (logit,), (tangent,) = primals, tangents
    return _logistic_branches(logit), (-jax.nn.sigmoid(logit) * tangent, jax.nn.sigmoid(-logit) * tangent)


# ---- the natural activation ----
#
# With r the angle to the nearer edge of the band, at most pi/4, the less likely branch has probability sin^2 r and the
# other cos^2 r = 1 - sin^2 r. Near an edge only r is known to full relative precision.


def _smallest_angle(dtype: Any, floored: bool) -> float:
    """The angle below which a node is flat: where its probability is eps, or a second derivative would overflow."""
    if floored:
        return math.atan(math.sqrt(jnp.finfo(dtype).eps))
    return 1e-18 if dtype == jnp.float32 else 1e-150


# A rule of its own, because the derivatives are simple, -2 tan z and 2 cot z where z is the angle through the band, and
# those of the steps are not: this halves the time of the backward pass.
@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _natural_branches(below: Array, angle: Array, floored: bool) -> Branches:
    """Both branches at an ``angle`` from the edge at no (``below``) or from the edge at yes."""
    smallest = _smallest_angle(angle.dtype, floored)
    inside = angle > smallest
    square = _small_sine(jnp.where(inside, angle, smallest)) ** 2
    unlikely, likely = jnp.log(square), _log1p(-square)
    if not floored:
        unlikely = unlikely - jnp.where(inside, 0.0, SATURATED_LOGIT)
    return jnp.where(below, likely, unlikely), jnp.where(below, unlikely, likely)


@_natural_branches.defjvp
def _slopes_of_natural_branches(
    floored: bool, primals: tuple[Array, Array], tangents: tuple[Any, Array]
) -> tuple[Branches, Branches]:
    (below, angle), (_, tangent) = primals, tangents
    smallest = _smallest_angle(angle.dtype, floored)
    inside = angle > smallest
    bounded = jnp.where(inside, angle, smallest)
    sine, cosine = _small_sine(bounded), _small_cosine(bounded)
    tangent = 2 * jnp.where(inside, tangent, 0)
    unlikely, likely = cosine / sine * tangent, -sine / cosine * tangent
    slopes = jnp.where(below, likely, unlikely), jnp.where(below, unlikely, likely)
    return _natural_branches(below, angle, floored), slopes


def _small_sine(angle: Array) -> Array:
    """The sine up to pi/4 by its series, to the last bit: the compiler can vectorize it, but not ``jnp.sin``."""
    return angle * _series(angle * angle, 1)


def _small_cosine(angle: Array) -> Array:
    return _series(angle * angle, 0)


def _series(square: Array, first: int) -> Array:
    """The series of the cosine, or of the sine over its angle, with ``first`` as the power of the first term."""
    terms = 6 if square.dtype == jnp.float32 else 10
    series = jnp.zeros_like(square)
    for n in reversed(range(terms)):
        series = series * square + (-1) ** n / math.factorial(2 * n + first)
    return series


def _fold(scores: Array, band: Band) -> Array:
    """The point of the band with the same nu, reflecting at the edges; its derivative is 1 or -1."""
    period = math.pi / band.rate  # twice the band's width
    limit = MOST_FOLDS * period
    # Saturate the value but not the gradient: every node has one, however far out.
    near = lax.stop_gradient(jnp.clip(scores, -limit, limit)) + (scores - lax.stop_gradient(scores))
    turns = lax.stop_gradient(jnp.round((near - band.centre) / period))
    # By halves of the period's digits, whose products are exact: the compiler fuses product and difference in one place
    # and not in another, and the two branches of a node would not sum to 1.
    info = jnp.finfo(near.dtype)
    coarse = lax.reduce_precision(jnp.asarray(period, near.dtype), info.nexp, info.nmant // 2)
    near = (near - turns * coarse) - turns * (period - coarse)
    above, under = near > band.upper, near < band.lower
    return jnp.where(above, 2 * band.upper - near, jnp.where(under, 2 * band.lower - near, near))
