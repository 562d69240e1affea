"""Estimators of the gradient of a loss on discrete draws in the parameters of their distribution.

They take any categorical distribution with the members of :class:`Categorical`, of this library or another one. A class
of probability 0 is never drawn, and contributes nothing.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int, PRNGKeyArray

from catnat import _checks
from catnat.jax import _options, _plan, _walk
from catnat.jax._binned import BinnedCatnat
from catnat.jax.distributions import RelaxedOneHotCatnat
from catnat.trees import tables

__all__ = [
    "MovingAverage",
    "enumerate_exactly",
    "gumbel_softmax",
    "sample_counts",
    "score_function",
    "straight_through",
    "unordered_set",
]

Costs = Callable[[Array], Array]

# Counts are split by binomial draws of floats. Above these limits, draws in single precision do not have the right
# distribution, and double precision cannot represent every integer.
MOST_COUNTED = {np.dtype(np.float32): 2**20, np.dtype(np.float64): 2**53}


class Distribution(Protocol):
    """The protocol of a distribution for :func:`score_function`."""

    def sample(self, sample_shape: Sequence[int] = (), *, key: PRNGKeyArray) -> Array:
        """Draw values."""

    def log_prob(self, value: Array) -> Array:
        """Return the log-probability of values."""


class Categorical(Distribution, Protocol):
    """The protocol for the other estimators: the event shape is () if values are classes, (K,) if they are one-hot."""

    @property
    def probs(self) -> Array:
        """The probability of every class."""

    @property
    def logits(self) -> Array:
        """The log-probability of every class."""

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of one value."""


# ---- differentiable samples ----


@_plan.takes_key
def gumbel_softmax(
    distribution: Categorical,
    temperature: float | Float[Array, "..."],
    *,
    hard: bool = False,
    sample_shape: Sequence[int] = (),
    key: PRNGKeyArray,
) -> Float[Array, "*samples_and_batch classes"]:
    r"""Draw a relaxed one-hot vector, a point of the simplex that is differentiable in the parameters.

    .. math:: y = \mathrm{softmax}\bigl((\log p + g) / T\bigr), \qquad g_k \sim \mathrm{Gumbel}(0, 1)

    The index of the largest entry has the distribution :math:`p`. The gradient is exact for the relaxed loss
    :math:`E f(y)`, but biased for the loss :math:`E f(k)`. A lower T decreases the bias and increases the variance.

    Args:
        distribution: A categorical distribution, with classes or one-hot vectors as values.
        temperature: A positive number, or an array that broadcasts against the result, (..., 1) for one per row.
        hard: Return the one-hot vector of the largest entry, with the gradient of the relaxed draw.
        sample_shape: The shape of independent draws, which precedes the batch shape in the result.
        key: The random key.

    Returns:
        The draws. A class of probability 0 gets exactly 0.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.jax import Catnat
        >>> from catnat.jax.estimators import gumbel_softmax
        >>> gumbel_softmax(Catnat(jnp.zeros((5, 3))), 0.5, key=jax.random.key(0)).shape
        (5, 4)
        >>> print(
        ...     gumbel_softmax(
        ...         Catnat(jnp.zeros((5, 3))), 0.5, hard=True, key=jax.random.key(0)
        ...     ).sum(-1)
        ... )
        [1. 1. 1. 1. 1.]
    """
    probs = _probs(distribution, "gumbel_softmax")
    _check_temperature(temperature)
    logits, shape = distribution.logits, _checks.shape_of_samples(sample_shape)
    noisy = _walk.add_gumbel_noise(_plan.to_computing_dtype(logits), ~(probs <= 0), shape, key)
    soft = jax.nn.softmax(_options.apply_temperature(noisy, temperature), -1)
    if hard:
        soft = jax.nn.one_hot(noisy.argmax(-1), noisy.shape[-1], dtype=soft.dtype) + (soft - lax.stop_gradient(soft))
    return soft.astype(logits.dtype)


@_plan.takes_key
def straight_through(
    distribution: Categorical, *, sample_shape: Sequence[int] = (), key: PRNGKeyArray
) -> Float[Array, "*samples_and_batch classes"]:
    r"""Draw a one-hot vector whose gradient is that of the probabilities.

    .. math:: y = \mathrm{onehot}(k) + p - \mathrm{stopgrad}(p), \qquad k \sim p

    The gradient is exact for losses that are linear in :math:`y` and biased for all others.

    Args:
        distribution: A categorical distribution, with classes or one-hot vectors as values.
        sample_shape: The shape of independent draws, which precedes the batch shape in the result.
        key: The random key.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.jax import Catnat
        >>> from catnat.jax.estimators import straight_through
        >>> costs, key = jnp.array([1.0, 2.0, 3.0, 4.0]), jax.random.key(0)
        >>> print(
        ...     jax.grad(lambda s: straight_through(Catnat(s), key=key) @ costs)(
        ...         jnp.zeros(3)
        ...     ).round(4)
        ... )
        [0.5   0.125 0.125]
    """
    probs = _probs(distribution, "straight_through")
    drawn = distribution.sample(_checks.shape_of_samples(sample_shape), key=key)
    if distribution.event_shape == ():
        drawn = jax.nn.one_hot(drawn, probs.shape[-1], dtype=probs.dtype)
    return drawn + (probs - lax.stop_gradient(probs))


# ---- the score function ----


@dataclasses.dataclass(frozen=True)
class MovingAverage:
    r"""A baseline for :func:`score_function`: the exponential moving average of all costs before the current ones.

    .. math:: b = \frac{\sum_{j \ge 1} d^{j-1} \bar c_{t-j}}{\sum_{j \ge 1} d^{j-1}}

    Here :math:`\bar c_{t-j}` is the mean cost of the j-th update before this one and d the decay. Before the first
    update b is 0. The average is one number, a pytree: carry it like the state of an optimizer, and after every step
    :meth:`update` it with the costs, or with their mean, which :func:`score_function` returns.

    Args:
        decay: The weight of the old average at each update, from 0 (the last costs only) to below 1.
        total: The weighted sum of past costs; omit it to start.
        weight: The sum of their weights; omit it to start.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax.estimators import MovingAverage
        >>> baseline = MovingAverage(decay=0.9)
        >>> for cost in (4.0, 4.0, 1.0):
        ...     baseline = baseline.update(jnp.array([cost]))
        >>> print(baseline.value.round(3))
        2.893
    """

    decay: float = 0.99
    _: dataclasses.KW_ONLY
    total: Float[Array, ""] = dataclasses.field(default_factory=lambda: jnp.zeros(()))
    weight: Float[Array, ""] = dataclasses.field(default_factory=lambda: jnp.zeros(()))

    def __post_init__(self) -> None:
        _checks.decay(self.decay)

    @property
    def value(self) -> Float[Array, ""]:
        """The average of all costs so far; 0 before the first update."""
        return self.total / jnp.where(self.weight > 0, self.weight, 1)

    def update(self, costs: Float[Array, "..."]) -> MovingAverage:
        """Return the average updated with ``costs``; gradients do not flow through it."""
        costs = _plan.check_array(costs, "costs")
        if not costs.size:  # no costs have no mean
            return self
        now = lax.stop_gradient(costs).mean().astype(self.total.dtype)
        total = self.total + (1 - self.decay) * (now - self.total)
        return dataclasses.replace(self, total=total, weight=self.weight + (1 - self.decay) * (1 - self.weight))


jax.tree_util.register_dataclass(MovingAverage, data_fields=["total", "weight"], meta_fields=["decay"])


@_plan.takes_key
def score_function(
    f: Costs,
    distribution: Distribution,
    *,
    num_samples: int = 1,
    baseline: float | Array | MovingAverage | str | None = None,
    key: PRNGKeyArray,
) -> Float[Array, "*batch"]:
    r"""Return the mean cost of draws, whose gradient is the unbiased score-function (REINFORCE) estimate.

    .. math:: \nabla E f(k) \approx \frac1n \sum_{j=1}^n (f(k_j) - b_j)\, \nabla \log p(k_j) + \nabla f(k_j)

    The last term is the gradient of the parameters of f, if any. f need not be differentiable in the draws.

    Args:
        f: Takes draws, ``(num_samples, *batch)`` or with one-hot values ``(num_samples, *batch, K)``, and returns one
            cost for each, ``(num_samples, *batch)``.
        distribution: Any distribution with ``sample(sample_shape, key=...)`` and ``log_prob(value)``.
        num_samples: The number n of draws for every row.
        baseline: The value b subtracted from the costs to reduce the variance: None for 0; a number, or an array that
            broadcasts against the costs and must not depend on the draws; a :class:`MovingAverage`, to be updated with
            the result; or "leave-one-out", the mean cost of the other n - 1 draws.
        key: The random key.

    Returns:
        The mean cost over the draws, in the distribution's batch shape. Minimize it.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.jax import Catnat
        >>> from catnat.jax.estimators import score_function
        >>> def loss(scores, key):
        ...     cost = lambda k: (k - 1.0) ** 2
        ...     losses = score_function(
        ...         cost, Catnat(scores), num_samples=4, baseline="leave-one-out", key=key
        ...     )
        ...     return losses.mean()
        >>> jax.grad(loss)(jnp.zeros((10, 3)), jax.random.key(0)).shape
        (10, 3)
    """
    count = operator.index(num_samples)
    _check_baseline(baseline, count)
    draws = lax.stop_gradient(distribution.sample((count,), key=key))
    log_prob = distribution.log_prob(draws)
    costs, dtype = _costs(f, draws, log_prob.shape, log_prob.dtype)
    log_prob = _plan.to_computing_dtype(log_prob)
    constant = lax.stop_gradient(costs)
    advantage = constant - lax.stop_gradient(_baseline(baseline, constant))
    # The second term is 0; its gradient is the score-function estimate.
    return _plan.clamp_to_dtype((costs + advantage * (log_prob - lax.stop_gradient(log_prob))).mean(0), dtype)


def _check_baseline(baseline: object, num_samples: int) -> None:
    """Raise unless ``baseline`` is valid and ``num_samples`` is large enough for it."""
    _checks.draws_for_baseline(num_samples, baseline)
    if not (
        baseline is None or isinstance(baseline, (str, int, float, jax.Array, np.ndarray, np.generic, MovingAverage))
    ):
        raise TypeError(
            f"`baseline` is a {type(baseline).__name__}, but None, a number, an array, a MovingAverage or "
            '"leave-one-out" is needed.'
        )


def _baseline(baseline: float | Array | MovingAverage | str | None, costs: Array) -> float | Array:
    """Return the value to subtract from the costs (n, *batch), which broadcasts against them."""
    if baseline is None:
        return 0.0
    if isinstance(baseline, MovingAverage):
        return baseline.value.astype(costs.dtype)
    if isinstance(baseline, str):  # the mean of the other draws
        mean = costs.mean(0, keepdims=True)
        return mean - (costs - mean) / (costs.shape[0] - 1)
    if not _checks.broadcasts(np.shape(baseline), costs.shape):
        raise ValueError(
            f"`baseline` has shape {np.shape(baseline)}, but the costs have {costs.shape}: it must broadcast against "
            "them, one number for all, or one per row of the batch."
        )
    return jnp.asarray(baseline, costs.dtype)


# ---- draws without replacement, and the exact sum ----


@_plan.takes_key
def unordered_set(f: Costs, distribution: Categorical, k: int, *, key: PRNGKeyArray) -> Float[Array, "*batch"]:
    r"""Return an unbiased estimate of the mean cost from a set S of ``k`` distinct draws (Kool et al., 2020).

    .. math::
        E f \approx \sum_{s \in S} p_s R_s\, f(s), \qquad
        \nabla E f \approx \sum_{s \in S} \nabla p_s R_s
        \Bigl(f(s) - \sum_{s' \in S} p_{s'} R_{s s'}\, f(s')\Bigr)

    :math:`R_s = P(S \mid s \text{ first}) / P(S)`, and :math:`R_{s s'}` is the same ratio for :math:`s'` after s has
    been removed, 1 for :math:`s' = s`. No class is evaluated twice, and the estimate is the mean over all orders in
    which the set can be drawn. At k = K it is exact. The inner sum, a baseline, is used for k of at least 2.

    Args:
        f: Takes classes, ``(k, *batch)`` or with one-hot values ``(k, *batch, K)``, and returns one cost for each,
            ``(k, *batch)``. If fewer than k classes are possible, f gets the first one again, and that value is
            ignored.
        distribution: A categorical distribution, with classes or one-hot vectors as values.
        k: The number of distinct classes, 1 to 8: the ratios are sums over 2^k subsets.
        key: The random key.

    Returns:
        The estimate, in the distribution's batch shape. It is unbiased but not a mean of costs: for k < K and costs far
        from 0 it can lie outside their range.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.jax import Catnat
        >>> from catnat.jax.estimators import unordered_set
        >>> distribution = Catnat(jnp.zeros((3, 3)))
        >>> # all four classes: exact
        >>> print(unordered_set(lambda k: k, distribution, 4, key=jax.random.key(0)).round(4))
        [1.5 1.5 1.5]
    """
    given = _probs(distribution, "unordered_set")
    every = _plan.to_computing_dtype(given)
    _checks.distinct(k, every.shape[-1])
    classes = _draw_distinct(lax.stop_gradient(every), k, key)
    probs = jnp.take_along_axis(every, classes, -1)
    possible = ~(probs <= 0)  # NaN must not be treated as 0
    evaluated = jnp.moveaxis(jnp.where(possible, classes, classes[..., :1]), -1, 0)  # the first draw is always possible
    costs, dtype = _costs(f, _values(distribution, given, evaluated), evaluated.shape, given.dtype)
    costs, probs = jnp.moveaxis(costs, 0, -1), jnp.where(possible, probs, 0)
    constant, probabilities = lax.stop_gradient(costs), lax.stop_gradient(probs)
    # The probabilities outside the set are summed, because 1 - p(S) would lose the digits of a small rest.
    drawn = (classes[..., None] == jnp.arange(every.shape[-1])).any(-2)
    first, second = _ratios(probabilities, jnp.where(drawn, 0, lax.stop_gradient(every)).sum(-1, keepdims=True))
    baseline = (second * (probabilities * constant)[..., None, :]).sum(-1) if k > 1 else 0
    advantage = first * (constant - baseline)
    return _plan.clamp_to_dtype((probabilities * first * costs + advantage * (probs - probabilities)).sum(-1), dtype)


def _draw_distinct(probs: Array, k: int, key: Array) -> Array:
    """Draw k distinct classes without replacement, (*batch, k), in order; impossible classes come last."""
    logs = jnp.where(probs > 0, jnp.log(jnp.where(probs > 0, probs, 1)), -math.inf)
    return lax.top_k(_walk.add_gumbel_noise(logs, None, (), key), k)[1].astype(int)


def _ratios(probs: Array, rest: Array) -> tuple[Array, Array]:
    """Return R_s (*batch, k) and R_ss' (*batch, k, k) for a set S with ``probs``; the other classes sum to ``rest``.

    W(U) is the probability that draws without replacement from the classes outside U give the rest of the set, S - U.
    By the first draw s, W(U) = sum_s p_s / (1 - p(U)) W(U + s), starting from W(S) = 1. Impossible classes contribute
    nothing, as if they were not in the set. Then R_s = W(s) / W({}), and R_ss' = W(ss') / W(s). Only ratios matter, so
    the W of larger sets are divided by their maximum before the next level is computed: without this, a set of eight
    among a million equally probable classes would underflow.
    """
    levels, pairs = tables.subsets(probs.shape[-1])
    single = larger_sets = inner = sets = jnp.ones_like(rest)
    for members, larger in reversed(levels):
        inner, larger_sets = larger_sets, _quotient(sets, sets.max(-1, keepdims=True))
        left, then = probs[..., members], larger_sets[..., larger]
        mass = left.sum(-1)
        some = mass > 0
        fraction = left / jnp.where(some, mass + rest, 1)[..., None]
        single, sets = sets, jnp.where(some, (fraction * then).sum(-1), then[..., 0])
    double = jnp.concatenate([single, inner], -1) if len(levels) > 1 else single
    return _quotient(larger_sets, sets), _quotient(double[..., pairs], single[..., None])


def _quotient(above: Array, below: Array) -> Array:
    """Return a ratio of probabilities. A denominator is 0 only by underflow, for a set that is never drawn."""
    return above / jnp.where(below > 0, below, 1)


def enumerate_exactly(f: Costs, distribution: Categorical) -> Float[Array, "*batch"]:
    r"""Return the expected cost as a sum over all classes; the cost and its gradient are exact.

    .. math:: E f = \sum_k p_k f(k)

    Args:
        f: Takes all classes at once on a new first axis, ``(K, *batch)`` or with one-hot values ``(K, *batch, K)``, and
            returns one cost for each, ``(K, *batch)``. A class of probability 0 is replaced by the most probable one,
            and the cost there is ignored, so f is never evaluated at an impossible class.
        distribution: A categorical distribution, with classes or one-hot vectors as values.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import Catnat
        >>> from catnat.jax.estimators import enumerate_exactly
        >>> print(enumerate_exactly(lambda k: k, Catnat(jnp.zeros(3))))
        1.5
    """
    given = _probs(distribution, "enumerate_exactly")
    probs = jnp.moveaxis(given, -1, 0)
    possible = ~(probs <= 0)  # NaN must not be treated as 0
    every = jnp.arange(len(probs)).reshape(-1, *[1] * (probs.ndim - 1))
    classes = jnp.where(possible, every, probs.argmax(0))
    costs, dtype = _costs(f, _values(distribution, given, classes), classes.shape, given.dtype)
    # Half-precision probabilities do not sum to 1, and a large mean cost would hide the differences of costs.
    centre = lax.stop_gradient(costs).mean(0) if probs.dtype.itemsize < 4 else 0
    expected = jnp.where(possible, _plan.to_computing_dtype(probs), 0) * jnp.where(possible, costs - centre, 0)
    return _plan.clamp_to_dtype(expected.sum(0) + centre, dtype)


# ---- many draws at once ----


@_plan.takes_key
def sample_counts(
    distribution: Categorical,
    total_count: int | Int[Array, "..."],
    *,
    sample_shape: Sequence[int] = (),
    key: PRNGKeyArray,
) -> Int[Array, "*samples_and_batch classes"]:
    r"""Draw how often each class occurs in ``total_count`` independent draws, a multinomial vector, in O(K).

    A binomial draw splits the count between the two halves of the classes, and again within each half,
    :math:`\lceil \log_2 K \rceil` times. So the cost does not grow with the number of draws.
    Inside ``jax.shard_map`` it needs ``check_vma=False``, because ``jax.random.binomial`` fails that check.

    Args:
        distribution: A categorical distribution, with classes or one-hot vectors as values.
        total_count: The number of draws: an integer, or an integer array that broadcasts against the batch shape.
            At most 2^53 if ``jax_enable_x64`` is on, and otherwise 2^20, the limit of binomial draws in float32.
        sample_shape: The shape of independent results, which precedes the batch shape.
        key: The random key.

    Returns:
        Counts that sum to ``total_count``; a class of probability 0 gets exactly 0.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.jax import Catnat
        >>> from catnat.jax.estimators import sample_counts
        >>> print(
        ...     sample_counts(Catnat(jnp.zeros((5, 3))), 10**6, key=jax.random.key(0)).sum(-1)
        ... )
        [1000000 1000000 1000000 1000000 1000000]
    """
    probs = lax.stop_gradient(_probs(distribution, "sample_counts")).astype(float)
    if _plan.is_true(jnp.isnan(probs).any()):
        raise ValueError(_checks.NAN_PROBS)
    shape = (*_checks.shape_of_samples(sample_shape), *probs.shape[:-1])
    count = jnp.broadcast_to(_total_count(total_count, probs), shape)
    return _split(count, probs, key)


@jax.jit
def _split(count: Array, probs: Array, key: Array) -> Array:
    """Return :func:`sample_counts` of prepared arguments."""
    num_classes = probs.shape[-1]
    levels = (num_classes - 1).bit_length()
    masses = [jnp.pad(probs, [(0, 0)] * (probs.ndim - 1) + [(0, 2**levels - num_classes)])]
    for _ in range(levels):
        masses.append(masses[-1].reshape(*probs.shape[:-1], masses[-1].shape[-1] // 2, 2).sum(-1))
    counts = count[..., None]
    for level, (below, mass) in enumerate(zip(reversed(masses[:-1]), reversed(masses), strict=False)):
        # A side without mass gets a fraction of exactly 0, and the other side of exactly 1.
        fraction = below[..., 1::2] / jnp.where(mass > 0, mass, 1)
        right = jax.random.binomial(
            jax.random.fold_in(key, level), counts.astype(probs.dtype), fraction, shape=counts.shape, dtype=probs.dtype
        ).astype(counts.dtype)
        counts = jnp.stack([counts - right, right], -1).reshape(*counts.shape[:-1], 2 * counts.shape[-1])
    return counts[..., :num_classes]


def _total_count(total_count: int | Array, probs: Array) -> Array:
    kind = jnp.result_type(total_count)
    if not jnp.issubdtype(kind, jnp.integer):
        raise TypeError(f"`total_count` has dtype {kind}, but a number of draws is an integer: use .astype(int).")
    batch, most = probs.shape[:-1], MOST_COUNTED[probs.dtype]
    if not _checks.broadcasts(np.shape(total_count), batch):
        raise ValueError(
            f"`total_count` has shape {np.shape(total_count)}, but the distribution's batch shape is {batch}: give one "
            "number for all rows, or one per row."
        )
    known = not isinstance(total_count, jax.core.Tracer)
    if known and not ((np.asarray(total_count) >= 0) & (np.asarray(total_count) <= most)).all():
        hint = "" if probs.dtype == jnp.float64 else ' jax.config.update("jax_enable_x64", True) allows more.'
        needed = f"a number of draws from 0 to 2^{most.bit_length() - 1} is needed"
        raise ValueError(f"`total_count` is {total_count}, but {needed}.{hint}")
    return jnp.asarray(total_count, int)


# ---- helpers ----


def _probs(distribution: Categorical, name: str) -> Array:
    """Return the probabilities of the distribution; raise unless it is categorical."""
    try:
        probs, event = distribution.probs, distribution.event_shape
    except AttributeError:
        pass
    else:
        if event in ((), probs.shape[-1:]) and not isinstance(distribution, (RelaxedOneHotCatnat, BinnedCatnat)):
            return probs
    raise TypeError(
        f"`distribution` is a {type(distribution).__name__}, but {name} needs a categorical one, whose values are "
        "classes or one-hot vectors: Catnat or OneHotCatnat of catnat.jax. (score_function takes any distribution.)"
    )


def _values(distribution: Categorical, probs: Array, classes: Array) -> Array:
    """Return classes as values of the distribution: unchanged, or as one-hot vectors."""
    if distribution.event_shape == ():
        return classes
    return jax.nn.one_hot(classes, probs.shape[-1], dtype=probs.dtype)


def _costs(f: Costs, draws: Array, needed: Sequence[int], dtype: np.dtype) -> tuple[Array, np.dtype]:
    """Return the costs f(draws), and the dtype of a result: ``dtype`` promoted with that of the costs."""
    costs = _plan.check_array(f(draws), "f(draws)")
    if costs.shape != tuple(needed):
        raise ValueError(
            f"`f` returned shape {costs.shape} for draws of shape {draws.shape}, but one cost per draw is needed: "
            f"{tuple(needed)}. Do not average inside f: take the mean of the result."
        )
    dtype = jnp.promote_types(costs.dtype, dtype)
    costs = _plan.to_computing_dtype(costs).astype(jnp.promote_types(dtype, jnp.float32))
    return costs, dtype  # not in half precision, which would round integers


def _check_temperature(temperature: float | Array) -> None:
    if isinstance(temperature, (jax.Array, np.ndarray)):
        bad = _plan.is_true(~(jnp.asarray(temperature) > 0).all())
    else:
        bad = not 0 < temperature < math.inf
    if bad:
        raise ValueError(f"`temperature` is {temperature}, but a positive number is needed.")
