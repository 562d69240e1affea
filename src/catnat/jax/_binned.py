"""A distribution over real numbers: a histogram whose bins are the classes of a tree."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, PRNGKeyArray
from numpy.typing import ArrayLike

from catnat import _checks
from catnat.activations import Activation
from catnat.jax import _bin_positions, _cumulative, _dense, _plan, _walk
from catnat.jax._bin_positions import Position
from catnat.jax._plan import Plan
from catnat.jax.distributions import Catnat, Parameterized, as_data, takes_scores
from catnat.jax.functional import log_prob_of
from catnat.jax.functional import probs as probs_of
from catnat.trees import bins
from catnat.trees.bins import Bins
from catnat.trees.builders import as_tree
from catnat.trees.tree import Tree


@as_data
class BinnedCatnat(Parameterized):
    r"""A distribution over real numbers with constant density in each bin; every class of the tree is a bin.

    .. math:: f(x) = \frac{p_k}{w_k}, \qquad F(x) = \sum_{j < k} p_j + p_k \frac{x - e_k}{w_k}
        \qquad \text{for } e_k \le x < e_{k+1}

    where :math:`w_k = e_{k+1} - e_k`. ``log_prob``, ``cdf``, ``icdf``, ``interval`` and draws read one path of the tree
    each; mean, variance, entropy and ``crps`` need all bins. A path is enough if the classes below every node are
    consecutive, as in ``balanced`` and ``chain``. On other trees, and on small or very deep ones, all bins are
    computed. The bins are static, like the tree.

    Args:
        scores: One score per inner node on the last axis, K-1 for K bins.
        bins: The bins, or their K + 1 edges. It is faster to build a :class:`catnat.Bins` once than to pass edges.
        tree: The tree, or K for ``balanced(K)``; by default K is the number of bins. Class k is bin k.
        activation: "sigmoid", "natural", or an activation object.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import BinnedCatnat
        >>> price = BinnedCatnat(jnp.zeros(3), [0.0, 1.0, 2.0, 4.0, 8.0])  # a quarter in each
        >>> print(price.cdf(jnp.array(3.0)).round(4))
        0.625
        >>> print(price.icdf(jnp.array([0.25, 0.5, 0.9])).round(4))
        [1.  2.  6.4]
        >>> interval = price.interval(jnp.array(0.5), jnp.array(2.0))
        >>> print(price.mean.round(4), interval.round(4))
        2.75 0.375
    """

    scores: Float[Array, "*batch nodes"]
    bins: Bins
    tree: Tree
    activation: Activation

    _arrays: ClassVar[dict[str, int]] = {"scores": 1}

    @takes_scores
    def __init__(
        self,
        scores: Float[Array, "*batch nodes"],
        bins: Bins | ArrayLike,
        tree: Tree | int | None = None,
        activation: Activation | str = "sigmoid",
    ) -> None:
        made = _bin_positions.bins_of(bins)
        tree = as_tree(tree, made.num_bins)
        if tree.num_classes != made.num_bins:
            raise ValueError(
                f"`tree` has {tree.num_classes} classes, but there are {made.num_bins} bins: they must agree, one "
                "class per bin."
            )
        _, plan, _ = _plan.prepare(scores, tree, activation)
        self._set(scores=jnp.asarray(scores), bins=made, tree=tree, activation=plan.activation)

    # ---- parameters ----

    @property
    def categorical(self) -> Catnat:
        """The distribution over the bins."""
        return Catnat(self.scores, self.tree, self.activation)

    @property
    def num_classes(self) -> int:
        """The number of bins."""
        return self.tree.num_classes

    @property
    def probs(self) -> Float[Array, "*batch classes"]:
        """The probability of every bin, O(K)."""
        return self.categorical.probs

    @property
    def logits(self) -> Float[Array, "*batch classes"]:
        """The log-probability of every bin, O(K); finite."""
        return self.categorical.logits

    @property
    def _computed(self) -> tuple[Array, Plan]:
        """The scores in the computing dtype, and their plan."""
        scores = _plan.to_computing_dtype(self.scores)
        return scores, Plan(self.tree, self.activation, scores.dtype)

    # ---- one path ----

    def log_prob(self, value: Float[Array, "*samples_and_batch"]) -> Float[Array, "*samples_and_batch"]:
        """Return the logarithm of the density at ``value``, reading one path.

        Outside all bins it is the smallest finite number.
        """
        return self._returned(_log_density(*self._computed, self._numbers(value, "value"), self.bins))

    def cdf(self, value: Float[Array, "*samples_and_batch"]) -> Float[Array, "*samples_and_batch"]:
        """Return the probability of a number up to ``value``, reading one path."""
        below, _ = _below_and_above(*self._computed, self._numbers(value, "value"), self.bins)
        return self._returned(jnp.minimum(below, 1))

    def icdf(self, value: Float[Array, "*samples_and_batch"]) -> Float[Array, "*samples_and_batch"]:
        """Return the quantile at the probability ``value``, reading one path; finite and differentiable in the scores.

        It is the smallest number whose cdf is ``value``. If bins of probability 0 make the cdf flat between two bins,
        it is the lower end of the upper one. Numbers outside [0, 1] raise; while traced, they are clamped.

        ``value`` is broadcast against the batch shape. For three rows and three numbers, ``icdf(q)`` has one quantile
        per row, and ``icdf(q[:, None])`` every quantile of every row.
        """
        value = self._numbers(value, "value")
        _refuse((value < 0) | (value > 1), _checks.not_a_fraction, value)
        return self._returned(_quantile(*self._computed, value, self.bins))

    def interval(
        self, low: Float[Array, "*samples_and_batch"], high: Float[Array, "*samples_and_batch"]
    ) -> Float[Array, "*samples_and_batch"]:
        """Return the probability of a number between ``low`` and ``high``, reading two paths.

        If ``low`` is larger than ``high`` this raises; while they are traced, the result is 0.
        """
        low, high = self._numbers(low, "low"), self._numbers(high, "high")
        _refuse(low > high, _checks.not_in_order, low, high)
        return self._returned(_between(*self._computed, low, high, self.bins))

    @_plan.takes_key
    def sample(self, sample_shape: Sequence[int] = (), *, key: PRNGKeyArray) -> Float[Array, "*samples_and_batch"]:
        """Draw numbers: a bin by walking down from the root, then a position inside it."""
        return self._returned(_draw(*self._computed, self.bins, _checks.shape_of_samples(sample_shape), key))

    @_plan.takes_key
    def rsample(self, sample_shape: Sequence[int] = (), *, key: PRNGKeyArray) -> Float[Array, "*samples_and_batch"]:
        """Draw numbers that are differentiable in the scores: quantiles at uniform random probabilities."""
        shape = (*_checks.shape_of_samples(sample_shape), *self.batch_shape)
        scores, plan = self._computed
        return self._returned(_quantile(scores, plan, _walk.positive_uniform(key, shape, plan.dtype), self.bins))

    # ---- all bins ----

    @property
    def mean(self) -> Float[Array, "*batch"]:
        """The mean, O(K)."""
        return self._returned(_moments(*self._computed, self.bins)[0])

    @property
    def variance(self) -> Float[Array, "*batch"]:
        """The variance, O(K)."""
        return self._returned(_moments(*self._computed, self.bins)[1])

    def entropy(self) -> Float[Array, "*batch"]:
        r"""Return the differential entropy in nats, :math:`H(p) + \sum_k p_k \log w_k`, O(K)."""
        return self._returned(_entropy(*self._computed, self.bins))

    def crps(self, value: Float[Array, "*samples_and_batch"]) -> Float[Array, "*samples_and_batch"]:
        r"""Return the continuous ranked probability score of ``value``, in closed form, O(K).

        .. math:: \mathrm{CRPS}(F, y) = \int \bigl(F(x) - 1[x \ge y]\bigr)^2 dx

        It has the unit of the values, and equals the absolute error if all mass is at one number. A value outside all
        bins adds only its distance from them.
        """
        return self._returned(_crps(*self._computed, self._numbers(value, "value"), self.bins))

    def coarsen(self, level: int) -> BinnedCatnat:
        """Return the histogram of the tree's first levels: bins that no node above ``level`` separates are merged.

        Its cdf is the same at every remaining inner edge, and its scores are the first scores of this distribution.
        (Tails keep their outer edges, and so their scale.)

        Args:
            level: The number of levels of the tree to keep, for at most 2^level bins.
        """
        tree, first = bins.cut(self.tree, level)
        return BinnedCatnat(self.scores[..., : tree.num_nodes], bins.joined(self.bins, first), tree, self.activation)

    def kl_divergence(self, other: BinnedCatnat) -> Float[Array, "*batch"]:
        """Return the divergence KL(self || other) from another distribution on the same bins."""
        if not isinstance(other, BinnedCatnat):
            raise TypeError(f"`other` is a {type(other).__name__}, but a BinnedCatnat on the same bins is needed.")
        bins.same(self.bins, other.bins)
        return self.categorical.kl_divergence(other.categorical)

    # ---- helpers ----

    def _numbers(self, value: Array, name: str) -> Array:
        """Return checked numbers in the computing dtype."""
        value = _plan.check_array(value, name)
        _checks.beside_batch(value.shape, self.batch_shape, name)
        return value.astype(self._computed[1].dtype)


def _refuse(wrong: Array, explain: Callable[..., None], *values: Array) -> None:
    """Call ``explain``, which raises, with the first wrong values; do nothing while they are traced."""
    if _plan.is_true(wrong.any()):
        explain(*(float(jnp.broadcast_to(value, wrong.shape)[wrong][0]) for value in values))


_compiled = functools.partial(jax.jit, static_argnames=("bins", "plan"))


@_compiled
def _log_density(scores: Array, plan: Plan, value: Array, bins: Bins) -> Array:
    at = _bin_positions.locate(value, bins)
    log_prob = log_prob_of(scores, plan, at.which) - jnp.log(at.width) - at.distance
    log_prob = jnp.where(at.beyond > 0, float(jnp.finfo(log_prob.dtype).min), log_prob)
    return jnp.where(jnp.isnan(value), value, log_prob)


@_compiled
def _below_and_above(scores: Array, plan: Plan, value: Array, bins: Bins) -> tuple[Array, Array]:
    """Return the probabilities of smaller and of larger numbers."""
    value, back = _plan.behind_batch(value, scores.shape[:-1])
    at = _bin_positions.locate(value, bins)
    masses = _cumulative.masses(scores, at.which, plan)
    return back(masses.below + masses.inside * at.below), back(masses.above + masses.inside * at.above)


@_compiled
def _between(scores: Array, plan: Plan, low: Array, high: Array, bins: Bins) -> Array:
    below_low, above_low = _below_and_above(scores, plan, low, bins)
    below_high, above_high = _below_and_above(scores, plan, high, bins)
    # Measured from the nearer end, where masses are smaller and the difference keeps more digits.
    between = jnp.where(above_low < below_high, above_low - above_high, below_high - below_low)
    return jnp.where(between < 0, 0, between)


@_compiled
def _quantile(scores: Array, plan: Plan, value: Array, bins: Bins) -> Array:
    mass, back = _plan.behind_batch(_bin_positions.clip(value, 0, 1), scores.shape[:-1])
    index = _cumulative.class_at(scores, mass, plan)
    masses = _cumulative.masses(scores, index, plan)
    inside = jnp.maximum(masses.inside, _bin_positions.smallest_fraction(mass.dtype))
    # Measured from the nearer end, as in `_between`.
    below = jnp.where(mass < 0.5, (mass - masses.below) / inside, 1 - (1 - mass - masses.above) / inside)
    return back(_bin_positions.place(index, _bin_positions.clip(below, 0, 1), bins))


@functools.partial(jax.jit, static_argnames=("bins", "plan", "sample_shape"))
def _draw(scores: Array, plan: Plan, bins: Bins, sample_shape: tuple[int, ...], key: Array) -> Array:
    first, second = jax.random.split(key)
    index = _walk.draw(scores, sample_shape, first, plan)
    return lax.stop_gradient(_bin_positions.place(index, jax.random.uniform(second, index.shape, plan.dtype), bins))


@_compiled
def _moments(scores: Array, plan: Plan, bins: Bins) -> tuple[Array, Array]:
    probs, table = probs_of(scores, plan), _bin_positions.table_of(bins, plan.dtype)
    mean = (probs * table.mean).sum(-1, keepdims=True)
    return mean[..., 0], (probs * (table.variance + jnp.square(table.mean - mean))).sum(-1)


@_compiled
def _entropy(scores: Array, plan: Plan, bins: Bins) -> Array:
    within = probs_of(scores, plan) * _bin_positions.table_of(bins, plan.dtype).entropy
    return _dense.entropy(scores, plan) + within.sum(-1)


@_compiled
def _crps(scores: Array, plan: Plan, value: Array, bins: Bins) -> Array:
    value, back = _plan.behind_batch(value, scores.shape[:-1])
    at = _bin_positions.locate(value, bins)
    masses = _cumulative.all_masses(scores, plan)
    lower, upper = _squares(masses, _bin_positions.table_of(bins, plan.dtype).width, tails=bins.tails)
    whole = _walk.pick(lower, at.which) + _walk.pick(upper, at.which)
    return back(whole + _squares_in_bin(masses.at(at.which), at, bins) + at.beyond)


def _squares(masses: _cumulative.Masses, width: Any, *, tails: bool) -> tuple[Array, Array]:
    """Return for each bin the integral of F^2 over all lower bins, and of (1 - F)^2 over all higher bins."""
    start, end = masses.below, masses.below + masses.inside
    over, under = masses.above + masses.inside, masses.above
    lower, upper = width * _mean_square(start, end), width * _mean_square(over, under)
    if tails:  # F^2 is integrated over the left tail, and (1 - F)^2 over the right one
        lower = lower.at[..., 0].set(width[0] / 2 * jnp.square(end[..., 0]))
        upper = upper.at[..., -1].set(width[-1] / 2 * jnp.square(over[..., -1]))
    return (
        _cumulative.exclusive(jnp.cumsum(lower, -1)),
        _cumulative.exclusive(jnp.cumsum(upper[..., ::-1], -1))[..., ::-1],
    )


def _squares_in_bin(masses: _cumulative.Masses, at: Position, bins: Bins) -> Array:
    """Return the integral of F^2 from the bin's lower edge to the value, plus that of (1 - F)^2 to its upper edge."""
    below, above = masses.below + masses.inside * at.below, masses.above + masses.inside * at.above
    parts = at.below * _mean_square(masses.below, below) + at.above * _mean_square(above, masses.above)
    if bins.tails:
        left, right = at.which == 0, at.which == bins.num_bins - 1
        # The integral of the squared mass farther out, plus that of (1 - this mass)^2 up to the inner edge.
        farther = jnp.where(left, below, above)
        tail = at.distance - 2 * (masses.inside - farther) + jnp.square(masses.inside) / 2
        parts = jnp.where(left | right, tail, parts)
    return at.width * parts


def _mean_square(start: Array, end: Array) -> Array:
    """Return the mean square of a linear function from ``start`` to ``end``."""
    return (jnp.square(start) + start * end + jnp.square(end)) / 3
