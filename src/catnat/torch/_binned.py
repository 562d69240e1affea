"""A distribution over real numbers: a histogram whose bins are the classes of a tree."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from numpy.typing import ArrayLike
from torch import Size, Tensor
from torch import distributions as td
from torch.distributions import constraints

from catnat import _checks
from catnat.activations import Activation
from catnat.torch import _bin_positions, _cumulative, _inputs, _walk, functional
from catnat.torch._bin_positions import Position, Table
from catnat.torch.distributions import AnyScores, Catnat, OfCatnat, validates
from catnat.trees import bins
from catnat.trees.bins import Bins
from catnat.trees.tree import Tree


class BinnedCatnat(OfCatnat, td.Distribution):
    r"""A distribution over real numbers with constant density in each bin; every class of the tree is a bin.

    .. math:: f(x) = \frac{p_k}{w_k}, \qquad F(x) = \sum_{j < k} p_j + p_k \frac{x - e_k}{w_k}
        \qquad \text{for } e_k \le x < e_{k+1}

    where :math:`w_k = e_{k+1} - e_k`. ``log_prob``, ``cdf``, ``icdf``, ``interval`` and draws read one path of the tree
    each; mean, variance, entropy and ``crps`` need all bins. ``cdf``, ``icdf`` and ``interval`` read a path only if the
    classes below every node are consecutive, as in ``balanced`` and ``chain``. Otherwise, and on small or very deep
    trees, all bins are computed.

    Args:
        scores: One score per inner node on the last axis, K-1 for K bins.
        bins: The bins, or their K + 1 edges. It is faster to build a :class:`catnat.Bins` once than to pass edges.
        tree: The tree; ``balanced(K)`` if not given. Class k is bin k.
        activation: "sigmoid", "natural" (the paper's), or an activation object.
        validate_args: Whether to raise for NaN scores and for values outside all bins or outside [0, 1]; torch's
            default if not given.

    Example:
        >>> import torch
        >>> from catnat.torch import BinnedCatnat
        >>> price = BinnedCatnat(torch.zeros(3), [0.0, 1.0, 2.0, 4.0, 8.0])  # a quarter in each
        >>> price.cdf(torch.tensor(3.0)), price.icdf(torch.tensor([0.25, 0.5, 0.9]))
        (tensor(0.6250), tensor([1.0000, 2.0000, 6.4000]))
        >>> price.mean, price.interval(torch.tensor(0.5), torch.tensor(2.0))
        (tensor(2.7500), tensor(0.3750))
    """

    arg_constraints = {"scores": AnyScores()}  # noqa: RUF012 - torch's own interface
    has_rsample = True

    bins: Bins

    @_checks.explains(**_checks.NOT_SCORES)
    def __init__(
        self,
        scores: Float[Tensor, "*batch nodes"],
        bins: Bins | ArrayLike,
        tree: Tree | int | None = None,
        activation: Activation | str = "sigmoid",
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.bins = _bin_positions.bins_of(bins)
        # `operator.index` makes the number a constant for the compiler.
        given = operator.index(self.bins.num_bins) if tree is None else tree
        classes = given.num_classes if isinstance(given, Tree) else given
        if isinstance(given, (Tree, int)) and classes != self.bins.num_bins:
            raise ValueError(
                f"`tree` has {classes} classes, but there are {self.bins.num_bins} bins: a tree over the bins is "
                "needed, one class for each."
            )
        self._categorical = Catnat(scores, given, activation, validate_args=validate_args)
        td.Distribution.__init__(self, self._categorical.batch_shape, Size(), validate_args=False)
        self._validate_args = validates(validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> BinnedCatnat:
        """Return the distribution with its batch shape expanded."""
        new = self._get_checked_instance(BinnedCatnat, _instance)
        new.bins, new._categorical = self.bins, self._categorical.expand(batch_shape)
        td.Distribution.__init__(new, Size(batch_shape), Size(), validate_args=False)
        new._validate_args = self._validate_args
        return new

    # ---- parameters ----

    @property
    def categorical(self) -> Catnat:
        """The distribution over the bins."""
        return self._categorical

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Any:
        """The interval from the first edge to the last; all real numbers if there are tails."""
        return constraints.real if self.bins.tails else constraints.interval(*map(float, self.bins.edges[[0, -1]]))

    @property
    def _computed(self) -> Tensor:
        return self._categorical._computed

    @property
    def _table(self) -> Table:
        scores = self._computed
        return _bin_positions.table_of(self.bins, scores.device, scores.dtype)

    # ---- one path ----

    def log_prob(self, value: Float[Tensor, "*samples_and_batch"]) -> Float[Tensor, "*samples_and_batch"]:
        """Return the logarithm of the density at ``value``, reading one path.

        Outside all bins it is the smallest finite number, or an error if values are validated.
        """
        value = self._numbers(value, "value")
        at = _bin_positions.locate(value, self.bins)
        outside = at.beyond > 0
        self._refuse(outside | value.isnan(), functools.partial(bins.outside, self.bins), value)
        log_prob = functional.log_prob_of(self._categorical.plan, self._computed, at.which)
        log_prob = log_prob - at.width.log() - at.distance
        log_prob = torch.where(outside, torch.finfo(log_prob.dtype).min, log_prob)
        return self._returned(torch.where(value.isnan(), value, log_prob))

    def cdf(self, value: Float[Tensor, "*samples_and_batch"]) -> Float[Tensor, "*samples_and_batch"]:
        """Return the probability of a number up to ``value``, reading one path."""
        return self._returned(self._below_and_above(self._numbers(value, "value"))[0].clamp(max=1))

    def icdf(self, value: Float[Tensor, "*samples_and_batch"]) -> Float[Tensor, "*samples_and_batch"]:
        """Return the quantile at the probability ``value``, reading one path; finite and differentiable in the scores.

        It is the smallest number whose cdf is ``value``. If the cdf equals ``value`` on whole bins of probability 0, it
        is the lower end of the bin above them. Numbers outside [0, 1] raise, or are clamped if not validated.

        As in ``torch.distributions``, ``value`` is broadcast against the batch shape. For a batch of three rows,
        ``icdf(q)`` with three numbers gives one quantile per row, and ``icdf(q[:, None])`` every quantile of every row.
        """
        value = self._numbers(value, "value")
        self._refuse((value < 0) | (value > 1), _checks.not_a_fraction, value)
        return self._quantile(value)

    def _quantile(self, value: Tensor) -> Tensor:
        mass, back = _inputs.behind_batch(value.clamp(0, 1), self.batch_shape)
        index = _cumulative.class_at(self._categorical.plan, self._computed, mass)
        masses = _cumulative.masses(self._categorical.plan, self._computed, index)
        inside = masses.inside.clamp(min=_bin_positions.smallest_fraction(mass.dtype))
        # Measured from the nearer end, as in `interval`.
        below = torch.where(mass < 0.5, (mass - masses.below) / inside, 1 - (1 - mass - masses.above) / inside)
        return self._returned(back(_bin_positions.place(index, below.clamp(0, 1), self.bins)))

    def interval(
        self, low: Float[Tensor, "*samples_and_batch"], high: Float[Tensor, "*samples_and_batch"]
    ) -> Float[Tensor, "*samples_and_batch"]:
        """Return the probability of a number between ``low`` and ``high``, reading two paths.

        Raise if ``low`` exceeds ``high``, or return 0 there if values are not validated.
        """
        low, high = self._numbers(low, "low"), self._numbers(high, "high")
        self._refuse(low > high, _checks.not_in_order, low, high)
        below_low, above_low = self._below_and_above(low)
        below_high, above_high = self._below_and_above(high)
        # Measured from the nearer end, where masses are smaller and the difference keeps more digits.
        between = torch.where(above_low < below_high, above_low - above_high, below_high - below_low)
        return self._returned(between.clamp(min=0))

    def sample(
        self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*samples_and_batch"]:
        """Draw numbers: a bin by walking down from the root, then a number from the density in the bin."""
        with torch.no_grad():
            index = self._categorical.sample(sample_shape, generator=generator)
            below = _walk.rand(index.shape, self._computed, generator)
            return self._returned(_bin_positions.place(index, below, self.bins))

    def rsample(
        self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*samples_and_batch"]:
        """Draw numbers that are differentiable in the scores: quantiles at uniform random probabilities."""
        shape = (*_checks.shape_of_samples(sample_shape), *self.batch_shape)
        return self._quantile(_walk.positive_rand(shape, self._computed, generator))

    # ---- all bins ----

    @property
    def mean(self) -> Float[Tensor, "*batch"]:
        """The mean, O(K)."""
        return self._returned((self._probs() * self._table.mean).sum(-1))

    @property
    def variance(self) -> Float[Tensor, "*batch"]:
        """The variance, O(K)."""
        probs, table = self._probs(), self._table
        mean = (probs * table.mean).sum(-1, keepdim=True)
        return self._returned((probs * (table.variance + (table.mean - mean).square())).sum(-1))

    def entropy(self) -> Float[Tensor, "*batch"]:
        r"""Return the differential entropy in nats, :math:`H(p) + \sum_k p_k \log w_k`, O(K)."""
        within = (self._probs() * self._table.entropy).sum(-1)
        return self._returned(self._categorical.entropy() + within)

    def crps(self, value: Float[Tensor, "*samples_and_batch"]) -> Float[Tensor, "*samples_and_batch"]:
        r"""Return the continuous ranked probability score of ``value``, in closed form, O(K).

        .. math:: \mathrm{CRPS}(F, y) = \int \bigl(F(x) - 1[x \ge y]\bigr)^2 dx

        It has the units of the values, and equals the absolute error if all mass is at one number. A value outside all
        bins adds its distance to the nearest edge.
        """
        value, back = _inputs.behind_batch(self._numbers(value, "value"), self.batch_shape)
        at = _bin_positions.locate(value, self.bins)
        scores = self._computed.expand(*value.shape[:-1], -1)
        masses = _cumulative.all_masses(self._categorical.plan, scores)
        lower, upper = _squares(masses, self._table.width, tails=self.bins.tails)
        here = _cumulative.Masses(*(each.gather(-1, at.which) for each in masses))
        whole = lower.gather(-1, at.which) + upper.gather(-1, at.which)
        score = whole + _squares_in_bin(here, at, self.bins) + at.beyond
        return self._returned(back(score))

    def coarsen(self, level: int) -> BinnedCatnat:
        """Return the histogram of the tree's first levels: bins that no node above ``level`` separates are merged.

        Its cdf is the same at every remaining inner edge, and its scores are the first scores of this distribution.
        A tail keeps its outer edge, which determines its scale.

        Args:
            level: The number of levels of the tree to keep, for at most 2^level bins.
        """
        tree, first = bins.cut(self.tree, level)
        scores = self.scores.narrow(-1, 0, tree.num_nodes)
        return BinnedCatnat(
            scores, bins.joined(self.bins, first), tree, self.activation, validate_args=self._validate_args
        )

    # ---- helpers ----

    def _numbers(self, value: Tensor, name: str) -> Tensor:
        """Return checked numbers in the computing dtype."""
        _inputs.check_tensor(value, name)
        _checks.beside_batch(value.shape, self.batch_shape, name)
        return value.to(self._computed.dtype)

    def _refuse(self, wrong: Tensor, explain: Callable[..., None], *values: Tensor) -> None:
        """Raise the error ``explain`` for the first wrong values, if values are validated."""
        if self._validate_args and not torch.compiler.is_compiling() and _inputs.known_true(wrong.any()):
            explain(*(float(value.expand(wrong.shape)[wrong][0]) for value in values))

    def _returned(self, value: Tensor) -> Tensor:
        return _inputs.as_returned(value, self.scores)

    def _probs(self) -> Tensor:
        return self._categorical.log_probs(floored=False).exp()

    def _below_and_above(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probabilities of smaller and of larger numbers."""
        value, back = _inputs.behind_batch(value, self.batch_shape)
        at = _bin_positions.locate(value, self.bins)
        masses = _cumulative.masses(self._categorical.plan, self._computed, at.which)
        return back(masses.below + masses.inside * at.below), back(masses.above + masses.inside * at.above)


def _squares(masses: _cumulative.Masses, width: Tensor, *, tails: bool) -> tuple[Tensor, Tensor]:
    """Return for each bin the integral of F^2 over all lower bins, and of (1 - F)^2 over all higher bins."""
    start, end = masses.below, masses.below + masses.inside
    over, under = masses.above + masses.inside, masses.above
    lower, upper = width * _mean_square(start, end), width * _mean_square(over, under)
    if tails:  # F^2 has an integral over the left tail, and (1 - F)^2 over the right one
        half = width / 2
        lower = torch.cat([(half * end.square()).narrow(-1, 0, 1), lower.narrow(-1, 1, lower.shape[-1] - 1)], -1)
        upper = torch.cat([upper.narrow(-1, 0, upper.shape[-1] - 1), (half * over.square()).narrow(-1, -1, 1)], -1)
    return _cumulative.exclusive(lower.cumsum(-1)), _cumulative.exclusive(upper.flip(-1).cumsum(-1)).flip(-1)


def _squares_in_bin(masses: _cumulative.Masses, at: Position, bins: Bins) -> Tensor:
    """Return the integral of F^2 from the bin's lower edge to the value, plus that of (1 - F)^2 to its upper edge."""
    below, above = masses.below + masses.inside * at.below, masses.above + masses.inside * at.above
    parts = at.below * _mean_square(masses.below, below) + at.above * _mean_square(above, masses.above)
    if bins.tails:
        left, right = at.which == 0, at.which == bins.num_bins - 1
        # The integral of the squared mass farther out, plus that of (1 - this mass)^2 up to the inner edge.
        farther = torch.where(left, below, above)
        tail = at.distance - 2 * (masses.inside - farther) + masses.inside.square() / 2
        parts = torch.where(left | right, tail, parts)
    return at.width * parts


def _mean_square(start: Tensor, end: Tensor) -> Tensor:
    """Return the mean square of a linear function from ``start`` to ``end``."""
    return (start.square() + start * end + end.square()) / 3
