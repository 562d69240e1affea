"""The statistics of tables: mean, standard deviation, Welch's t-test, Holm's correction, the rule for bold numbers.

Many runs that are far from normally distributed, such as returns, have other statistics: interquartile means and
probabilities of improvement with stratified bootstrap intervals, and the Mann-Whitney test.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from catnat_experiments.engine.types import Direction

Key = TypeVar("Key", bound=Hashable)
LEVEL = 0.05
RESAMPLES = 2000
Values = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Sample:
    """Repetitions of one measurement. Runs that diverged (NaN or infinite) are counted, and left out of the mean.

    >>> Sample.of([1.0, 2.0, 3.0])
    Sample(values=(1.0, 2.0, 3.0), diverged=0)
    """

    values: tuple[float, ...]
    diverged: int = 0

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample:
        """Return the sample of the finite values, with the number of the others."""
        finite = tuple(float(value) for value in values if math.isfinite(value))
        return cls(finite, len(values) - len(finite))

    @property
    def mean(self) -> float:
        """The mean; NaN without values."""
        return float(np.mean(self.values)) if self.values else math.nan

    @property
    def std(self) -> float:
        """The standard deviation of a sample (divided by n - 1); NaN for fewer than two values."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else math.nan


def welch(first: Sample, second: Sample) -> float:
    r"""Return the two-sided p-value of Welch's t-test, which does not assume equal variances.

    .. math:: t = \frac{\bar x_1 - \bar x_2}{\sqrt{s_1^2 / n_1 + s_2^2 / n_2}}

    It is NaN if a sample has fewer than two values. If neither has any spread, it is 1 for equal samples, else 0.

    >>> round(welch(Sample.of([1.0, 2.0, 3.0]), Sample.of([2.0, 3.0, 4.0])), 4)
    0.2879
    """
    if len(first.values) < 2 or len(second.values) < 2:
        return math.nan
    if len(set(first.values)) == 1 and len(set(second.values)) == 1:  # t is 0 / 0 or infinite
        return float(first.values[0] == second.values[0])
    from scipy import stats  # here, because the import takes a second

    numbers = (first.mean, first.std, len(first.values), second.mean, second.std, len(second.values))
    return float(stats.ttest_ind_from_stats(*numbers, equal_var=False).pvalue)


def paired_t(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p-value of Student's t-test of paired differences; NaN for fewer than two pairs.

    If all differences are equal, it is 1 for differences of 0, else 0.

    >>> round(paired_t([1.0, 2.0, 3.0], [2.0, 3.0, 5.0]), 4)
    0.0572
    """
    differences = [a - b for a, b in zip(first, second, strict=True)]
    if len(differences) < 2:
        return math.nan
    if len(set(differences)) == 1:
        return float(differences[0] == 0)
    from scipy import stats

    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    r"""Return p-values with Holm's step-down correction, which bounds the family-wise error rate by the level.

    The i-th smallest of m p-values becomes :math:`\max_{j \le i} \min(1, (m - j + 1) p_{(j)})`. A NaN (no test)
    stays NaN and is not counted.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    tested = sorted((key for key in p_values if not math.isnan(p_values[key])), key=lambda key: p_values[key])
    corrected, largest = dict(p_values), 0.0
    for rank, key in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - rank) * p_values[key]))
        corrected[key] = largest
    return corrected


def best(samples: Mapping[Key, Sample], direction: Direction) -> Key | None:
    """Return the key with the best mean; None if no sample has a mean.

    >>> best({"a": Sample.of([1.0]), "b": Sample.of([2.0])}, "lower")
    'a'
    """
    known = {key: sample.mean for key, sample in samples.items() if sample.values}
    if not known:
        return None
    return min(known, key=lambda key: known[key]) if direction == "lower" else max(known, key=lambda key: known[key])


def bold(samples: Mapping[Key, Sample], direction: Direction) -> set[Key]:
    """Return the paper's bold keys: the best mean, and all not significantly worse (Welch, 5%, not corrected).

    The set is empty if the best cannot be tested against any other, because one run shows no significant difference.
    Two runs on each side are enough: Welch's test then has at least one degree of freedom, so p can be close to 0.

    >>> sorted(bold({"a": Sample.of([1.0, 1.1]), "b": Sample.of([1.0, 1.2]), "c": Sample.of([5.0, 5.1])}, "lower"))
    ['a', 'b']
    """
    winner = best(samples, direction)
    if winner is None:
        return set()
    p_values = {key: welch(samples[winner], sample) for key, sample in samples.items() if key != winner}
    if all(math.isnan(p_value) for p_value in p_values.values()):
        return set()
    return {winner, *(key for key, p_value in p_values.items() if p_value >= LEVEL)}


def verdict(better: Sample, worse: Sample, direction: Direction, p_value: float) -> str:
    """Return in words the result of a test of the claim that ``better`` is better.

    >>> verdict(Sample.of([1.0, 1.1]), Sample.of([5.0, 5.1]), "lower", p_value=0.001)
    'significantly better than'
    """
    if math.isnan(p_value):
        return "cannot be tested against"
    if p_value >= LEVEL:
        return "not significantly different from"
    ahead = better.mean < worse.mean if direction == "lower" else better.mean > worse.mean
    return "significantly better than" if ahead else "significantly worse than"


# ---- many runs, any distribution -------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """A number with its 95% bootstrap interval."""

    value: float
    low: float
    high: float


def interquartile_mean(strata: Sequence[Sample]) -> Interval:
    """Return the mean of the middle half of all runs. Strata (games) need one scale; each is resampled separately.

    >>> interquartile_mean([Sample.of([1.0, 2.0, 3.0, 90.0])]).value
    2.5
    """
    from scipy import stats

    def of_all(parts: Sequence[Sequence[Values]]) -> Values:
        means: Values = stats.trim_mean(np.concatenate([values for (values,) in parts], axis=-1), 0.25, axis=-1)
        return means

    return _interval([(sample,) for sample in strata], of_all)


def probability_of_improvement(pairs: Sequence[tuple[Sample, Sample]], direction: Direction) -> Interval:
    r"""Return the probability that a run of the first sample is better than one of the second, a mean over strata.

    .. math:: \frac1{n m} \sum_{i, j} [x_i > y_j] + \tfrac12 [x_i = y_j]

    >>> probability_of_improvement([(Sample.of([2.0, 3.0]), Sample.of([1.0, 2.0]))], "higher").value
    0.875
    """
    sign = 1 if direction == "higher" else -1

    def probability(parts: Sequence[Sequence[Values]]) -> Values:
        signs = [np.sign(sign * (x[..., :, None] - y[..., None, :])).mean((-1, -2)) for x, y in parts]
        means: Values = (1 + np.mean(signs, axis=0)) / 2
        return means

    return _interval(pairs, probability)


def _interval(
    strata: Sequence[Sequence[Sample]], statistic: Callable[[Sequence[Sequence[Values]]], Values]
) -> Interval:
    """Return a statistic of samples, with the percentile interval from resampling each of them with replacement."""
    values = [[np.array(sample.values) for sample in samples] for samples in strata]
    if not all(len(each) for part in values for each in part):
        return Interval(math.nan, math.nan, math.nan)
    stream = np.random.default_rng(0)  # the same records give the same page
    drawn = [[stream.choice(each, (RESAMPLES, len(each))) for each in part] for part in values]
    low, high = np.quantile(statistic(drawn), (LEVEL / 2, 1 - LEVEL / 2))
    return Interval(float(statistic(values)), float(low), float(high))


def mann_whitney(first: Sample, second: Sample) -> float:
    """Return the two-sided p-value of the Mann-Whitney test, whose statistic is the probability of improvement.

    It uses the normal approximation for all sizes, with corrections for ties and continuity. SciPy's exact distribution
    does not support ties, and one table must not mix both. With four or five values on a side, some of them equal, the
    result can be 0.07 below the exact p-value. It is NaN if a sample has no values.

    >>> round(mann_whitney(Sample.of([1.0, 2.0, 3.0, 4.0]), Sample.of([5.0, 6.0, 7.0, 8.0])), 4)
    0.0304
    """
    if not first.values or not second.values:
        return math.nan
    from scipy import stats

    return float(stats.mannwhitneyu(first.values, second.values, method="asymptotic").pvalue)


# ---- one pair of numbers in each of many cells -----------------------------------------------------------------------


class Paired(NamedTuple):
    """Two columns compared cell by cell.

    Attributes:
        cells: The number of pairs.
        ahead: The number of pairs in which the first column is better; ties are not counted.
        median: The median of the differences, first minus second.
        wilcoxon: The two-sided p-value of the signed-rank test that the differences are symmetric about 0.
        sign: The two-sided p-value of the sign test that each column is better equally often.
    """

    cells: int
    ahead: int
    median: float
    wilcoxon: float
    sign: float


def paired(first: Sequence[float], second: Sequence[float], direction: Direction) -> Paired:
    """Return the tests of pairs of numbers; p-values are NaN if all pairs are equal, or if there are none.

    A pair with a NaN, the mean of runs that all diverged, is left out.

    >>> paired([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2.0, 4.0, 6.0, 8.0, 10.0, 12.0], "lower")
    Paired(cells=6, ahead=6, median=-3.5, wilcoxon=0.03125, sign=0.03125)
    """
    differences = np.subtract(first, second)
    differences = differences[~np.isnan(differences)]
    moved = differences[differences != 0]
    ahead = int((moved < 0).sum() if direction == "lower" else (moved > 0).sum())
    median = float(np.median(differences)) if len(differences) else math.nan
    if not len(moved):
        return Paired(len(differences), 0, median, math.nan, math.nan)
    from scipy import stats

    wilcoxon, sign = stats.wilcoxon(moved), stats.binomtest(ahead, len(moved))
    return Paired(len(differences), ahead, median, float(wilcoxon.pvalue), float(sign.pvalue))
