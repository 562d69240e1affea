"""The activations: how a score becomes the probability of yes.

An activation is given by its *logit*, ``log(a / (1 - a))``, from which both log-probabilities of a node follow with
full relative accuracy. The natural activation has formulas of its own.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from catnat import _activations as _plans
from catnat._activations import Floats

# One entry per row of a plan's tables: an array over nodes, or a float that all nodes share.
Tables = tuple[Any, ...]
# The log-probabilities of no and of yes.
Answers = tuple[Array, Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Activation(_plans.ActivationPlan):
    r"""Base class of activations; subclass it for your own.

    A node with score :math:`s` answers yes with probability :math:`a(c\,s + x_0)`, where :math:`x_0` makes zero scores
    mean the tree's prior and :math:`c` is the scaling. A subclass is a frozen dataclass with two methods:

    * ``logit(x)``, in JAX: :math:`\log a(x) - \log(1 - a(x))`. Differentiable, and finite for every finite x.
    * ``score(yes)``, in NumPy: the inverse of :math:`a`, for the centring.

    Activations are hashable, and static under ``jit``.

    Example:
        >>> import dataclasses, jax.numpy as jnp, numpy as np
        >>> from catnat.jax import Activation, catnat
        >>> @dataclasses.dataclass(frozen=True)
        ... class HeavyTails(Activation):  # a(x) = 1/2 + x / (2 sqrt(4 + x^2))
        ...     def logit(self, x):
        ...         return 2 * jnp.arcsinh(x / 2)
        ...
        ...     def score(self, yes):
        ...         return 2 * np.sinh((np.log(yes) - np.log1p(-yes)) / 2)
        >>> print(catnat(jnp.zeros(2), activation=HeavyTails()).round(4))
        [0.3333 0.3333 0.3333]
    """

    @abc.abstractmethod
    def logit(self, x: Array) -> Array:
        """The log-odds of yes at ``x``."""

    def probability(self, x: Floats) -> Floats:
        """The probability of yes at ``x``, in NumPy."""
        return np.asarray(jax.nn.sigmoid(self.logit(jnp.asarray(x))), dtype=np.float64)

    def _score_at(self, logit: Array) -> Array:
        """The inverse of :meth:`logit`: the x at which the log-odds of yes are ``logit``, which may be infinite."""

        def score(logit: Any) -> Any:
            yes = 1 / (1 + np.exp(-np.clip(np.asarray(logit, dtype=np.float64), -700, 700)))
            return self.score(_plans.uncertain(yes)).astype(logit.dtype)

        return _in_numpy(score, logit)

    # What the kernels call. Scores come with the tables of their nodes: accuracy near an edge needs more than c and x0.

    def _log_answers(self, scores: Array, tables: Tables, *, floored: bool) -> Answers:
        """The log-probabilities of no and of yes at every node, each to full relative precision.

        Where an answer has probability 0, its logarithm is ``log eps`` if ``floored``, and otherwise so far down that
        its exponential is 0.
        """
        logit = self.logit(_affine(scores, *tables))
        no, yes = _logistic_answers(logit.reshape(-1))  # one long row: see the natural activation
        return no.reshape(logit.shape), yes.reshape(logit.shape)

    def _yes(self, scores: Array, tables: Tables) -> Array:
        """The probability of yes at every node, exactly 0 and 1 where it is."""
        return jax.nn.sigmoid(self.logit(_affine(scores, *tables)))

    def _tables_of(self, no: Array, yes: Array, reach: Array | None) -> Tables:
        """The tables of nodes whose sides have the prior masses ``no`` and ``yes``, both positive.

        ``reach`` is the share of the prior below each node; only isotropic scaling needs it.
        """
        return self._scale_of(no, yes, reach), self._score_at(jnp.log(yes) - jnp.log(no))

    def _scale_of(self, no: Array, yes: Array, reach: Array | None) -> Array:
        if self.scaling == "paper" or reach is None:
            return jnp.ones((), no.dtype)
        floor = _plans.REFERENCE_INFORMATION / _plans.LARGEST_SCALE**2
        return jnp.sqrt(_plans.REFERENCE_INFORMATION / jnp.maximum(reach * self._information_of(no, yes), floor))

    def _information_of(self, no: Array, yes: Array) -> Array:
        """The plan's :meth:`information`, from masses."""
        return _in_numpy(
            lambda f: self.information(_plans.uncertain(np.asarray(f, np.float64))).astype(f.dtype), yes / (no + yes)
        )

    def _saturated(self, scores: Array, tables: Tables) -> Array:
        """Where one answer has probability 0; not from yes alone, which rounds to 1 long before."""
        no, yes = self._log_answers(scores, tables, floored=False)
        return (jnp.exp(no) == 0) | (jnp.exp(yes) == 0)

    def _information(self, scores: Array, tables: Tables) -> Array:
        """The Fisher information of the score given that its node is reached: the expected square of its gradient."""
        answers, slopes = jax.jvp(
            lambda s: self._log_answers(s, tables, floored=False), (scores,), (jnp.ones_like(scores),)
        )
        no, yes = (jnp.exp(answer) * slope**2 for answer, slope in zip(answers, slopes, strict=True))
        return no + yes


@dataclasses.dataclass(frozen=True, kw_only=True)
class sigmoid(Activation, _plans.SigmoidPlan):  # noqa: N801 - used as a function
    r"""The logistic activation :math:`a(x) = 1 / (1 + e^{-x})`. Its logit is the score itself.

    Args:
        scaling: ``"paper"`` takes scores as they are; ``"isotropic"`` scales every node so that the Fisher matrix at
            zero scores is 1/4 times the identity, for every tree.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import catnat, sigmoid
        >>> print(catnat(jnp.array([0.0]), activation=sigmoid()))
        [0.5 0.5]
    """

    def logit(self, x: Array) -> Array:
        """The score itself."""
        return x

    def _score_at(self, logit: Array) -> Array:
        limit = -math.log(jnp.finfo(logit.dtype).tiny)
        return jnp.where(jnp.isinf(logit), jnp.sign(logit) * limit, logit)

    def _information_of(self, no: Array, yes: Array) -> Array:
        return (yes / (no + yes)) * (no / (no + yes))

    def _information(self, scores: Array, tables: Tables) -> Array:
        logit = _affine(scores, *tables)
        return jax.nn.sigmoid(logit) * jax.nn.sigmoid(-logit) * tables[0] ** 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class natural(Activation, _plans.NaturalPlan):  # noqa: N801 - used as a function
    r"""The paper's natural activation, whose Fisher information is constant inside its band.

    .. math:: \nu(x) = \tfrac12 \bigl(1 + \sin(\pi x / A)\bigr) \quad\text{for } |x| \le A / 2

    Its Fisher information is :math:`(\pi / A)^2` at every :math:`x` inside the band.

    Args:
        scaling: ``"paper"`` takes scores as they are; ``"isotropic"`` scales every node so that the Fisher matrix at
            zero scores is 1/4 times the identity, for every tree. Use it with ``boundary="reflect"``.
        width: The band's width :math:`A`. The default, :math:`2\pi`, gives the sigmoid's slope 1/4 at the centre.
        boundary: ``"clamp"`` (the paper): exactly 0 or 1 outside the band, with zero gradient. ``"reflect"``: the sine
            goes on, so that no node can die.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import catnat, natural
        >>> print(catnat(jnp.array([0.0, -4.0, 0.0]), activation=natural()).round(4))
        [0.5  0.   0.25 0.25]
    """

    def logit(self, x: Array) -> Array:
        """The log-odds of yes at ``x``; ten thousand in size where yes or no has probability exactly 0."""
        half = np.full(1, 0.5)
        bands = self._bands(np.ones(1), half, half, np.dtype(x.dtype))
        no, yes = self._log_answers(x, tuple(bands[:, 0].tolist()), floored=False)
        return yes - no

    probability = _plans.NaturalPlan.probability

    def _score_at(self, logit: Array) -> Array:
        limit = -2 * math.log(jnp.finfo(logit.dtype).tiny)  # beyond it the angle is an edge's, and exp would overflow
        angle = jnp.arctan(jnp.exp(jnp.clip(logit, -limit, limit) / 2))
        return (angle - math.pi / 4) * (2 * self.width / math.pi)

    def _tables_of(self, no: Array, yes: Array, reach: Array | None) -> Tables:
        angle = jnp.arctan2(jnp.sqrt(yes), jnp.sqrt(no))
        rate = self._scale_of(no, yes, reach) * (math.pi / (2 * self.width))
        lower, upper = -angle / rate, (math.pi / 2 - angle) / rate
        return lower, 0.0, upper, 0.0, (lower + upper) / 2, rate

    def _information_of(self, no: Array, yes: Array) -> Array:
        return jnp.full_like(no, (math.pi / self.width) ** 2)

    def _log_answers(self, scores: Array, tables: Tables, *, floored: bool) -> Answers:
        below, angle = self._nearer_edge(scores, tables)
        # One long row, because a compiler for CPUs vectorizes the rows of short ones badly.
        no, yes = _natural_answers(below.reshape(-1), angle.reshape(-1), floored)
        return no.reshape(scores.shape), yes.reshape(scores.shape)

    def _yes(self, scores: Array, tables: Tables) -> Array:
        below, angle = self._nearer_edge(scores, tables)
        unlikely = _small_sine(jnp.maximum(angle, 0)) ** 2
        return jnp.where(below, unlikely, 1 - unlikely)

    def _saturated(self, scores: Array, tables: Tables) -> Array:
        if self.boundary == "reflect":
            return jnp.zeros(scores.shape, bool)
        return self._nearer_edge(scores, tables)[1] <= 0

    def _information(self, scores: Array, tables: Tables) -> Array:
        alive = ~self._saturated(scores, tables)
        return (2 * tables[-1]) ** 2 * alive.astype(scores.dtype)

    def _nearer_edge(self, scores: Array, tables: Tables) -> tuple[Array, Array]:
        """Whether the lower edge of the band is the nearer one, and the angle to it, negative outside the band."""
        if self.boundary == "reflect":
            scores = _fold(scores, tables)
        lower, lower_rest, upper, upper_rest, centre, rate = tables
        below = scores < centre
        # Two choices, not one: the compiler merges constants that are added in a row, and would lose the edge's rest.
        distance = jnp.where(below, scores - lower, upper - scores) + jnp.where(below, -lower_rest, upper_rest)
        return below, distance * rate


_KNOWN = {"natural": natural(), "sigmoid": sigmoid()}


def resolve(activation: Activation | str) -> Activation:
    """The activation object behind a name."""
    found: Activation = _plans.resolve(activation, _KNOWN)
    return found


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
def _logistic_answers(logit: Array) -> Answers:
    limit = _largest_logit(logit.dtype)
    shared = _log1p(jnp.exp(-jnp.abs(logit)))
    # Choices at the end: the compiler would move sums into the matrix product that follows, where they are slow.
    positive, logit = logit > 0, jnp.clip(logit, -limit, limit)
    return jnp.where(positive, -(logit + shared), -shared), jnp.where(positive, -shared, logit - shared)


@_logistic_answers.defjvp
def _slopes_of_logistic_answers(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Answers, Answers]:
    (logit,), (tangent,) = primals, tangents
    return _logistic_answers(logit), (-jax.nn.sigmoid(logit) * tangent, jax.nn.sigmoid(-logit) * tangent)


# ---- the natural activation ----
#
# With r the angle to the nearer edge of the band, at most pi/4, the less likely answer has probability sin^2 r and the
# other cos^2 r = 1 - sin^2 r. Near an edge only r is known to full relative precision.

# How far down the logarithm of an answer that is never given is moved: its exponential is 0 in every dtype.
_DEAD = 1e4
# Scores are folded back from at most this many bands away: further out a float no longer resolves the band.
_MOST_FOLDS = 2.0**18


def _smallest_angle(dtype: Any, floored: bool) -> float:
    """The angle below which a node is flat: where its probability is eps, or a second derivative would overflow."""
    if floored:
        return math.atan(math.sqrt(jnp.finfo(dtype).eps))
    return 1e-18 if dtype == jnp.float32 else 1e-150


# A rule of its own, because the derivatives are simple, -2 tan z and 2 cot z where z is the angle through the band, and
# those of the steps are not: this halves the time of the way back.
@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _natural_answers(below: Array, angle: Array, floored: bool) -> Answers:
    """Both answers at an ``angle`` from the edge at no (``below``) or from the edge at yes."""
    smallest = _smallest_angle(angle.dtype, floored)
    alive = angle > smallest
    square = _small_sine(jnp.where(alive, angle, smallest)) ** 2
    unlikely, likely = jnp.log(square), _log1p(-square)
    if not floored:
        unlikely = unlikely - jnp.where(alive, 0.0, _DEAD)
    return jnp.where(below, likely, unlikely), jnp.where(below, unlikely, likely)


@_natural_answers.defjvp
def _slopes_of_natural_answers(
    floored: bool, primals: tuple[Array, Array], tangents: tuple[Any, Array]
) -> tuple[Answers, Answers]:
    (below, angle), (_, tangent) = primals, tangents
    smallest = _smallest_angle(angle.dtype, floored)
    alive = angle > smallest
    bounded = jnp.where(alive, angle, smallest)
    sine, cosine = _small_sine(bounded), _small_cosine(bounded)
    tangent = 2 * jnp.where(alive, tangent, 0)
    unlikely, likely = cosine / sine * tangent, -sine / cosine * tangent
    slopes = jnp.where(below, likely, unlikely), jnp.where(below, unlikely, likely)
    return _natural_answers(below, angle, floored), slopes


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


def _fold(scores: Array, tables: Tables) -> Array:
    """The point of the band with the same nu, reflecting at the edges; its derivative is 1 or -1."""
    lower, _, upper, _, centre, rate = tables
    period = math.pi / rate  # twice the band's width
    limit = _MOST_FOLDS * period
    # Saturate the value but not the gradient: no node dies, however far out.
    near = scores + lax.stop_gradient(jnp.clip(scores, -limit, limit) - scores)
    turns = lax.stop_gradient(jnp.round((near - centre) / period))
    # By halves of the period's digits, whose products are exact: the compiler fuses product and difference in one place
    # and not in another, and the two answers of a node would not sum to 1.
    info = jnp.finfo(near.dtype)
    coarse = lax.reduce_precision(jnp.asarray(period, near.dtype), info.nexp, info.nmant // 2)
    near = (near - turns * coarse) - turns * (period - coarse)
    return jnp.where(near > upper, 2 * upper - near, jnp.where(near < lower, 2 * lower - near, near))
