from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from catnat_experiments import statistics
from catnat_experiments.statistics import Sample


def welch_by_hand(first: list[float], second: list[float]) -> float:
    """From the definition: the t statistic, Welch and Satterthwaite's degrees of freedom, the tail as an integral."""
    pairs = [(math.fsum(x) / len(x), x) for x in (first, second)]
    errors = [math.fsum((value - mean) ** 2 for value in x) / (len(x) - 1) / len(x) for mean, x in pairs]
    t = (pairs[0][0] - pairs[1][0]) / math.sqrt(sum(errors))
    freedom = sum(errors) ** 2 / sum(e**2 / (len(x) - 1) for e, x in zip(errors, (first, second), strict=True))
    scale = mpmath.gamma((freedom + 1) / 2) / (mpmath.sqrt(freedom * mpmath.pi) * mpmath.gamma(freedom / 2))
    tail = mpmath.quad(lambda x: scale * (1 + x**2 / freedom) ** (-(freedom + 1) / 2), [abs(t), mpmath.inf])
    return float(2 * tail)


def test_welch_is_its_definition() -> None:
    stream = np.random.default_rng(0)
    for size in (2, 5, 10):
        first, second = stream.normal(0, 1, size).tolist(), stream.normal(0.5, 3, size + 1).tolist()
        p_value = statistics.welch(Sample.of(first), Sample.of(second))
        assert p_value == pytest.approx(welch_by_hand(first, second), rel=1e-8)


def test_welch_without_spread_or_repetitions() -> None:
    assert statistics.welch(Sample.of([1.0, 1.0]), Sample.of([1.0, 1.0])) == 1.0
    assert statistics.welch(Sample.of([1.0, 1.0]), Sample.of([2.0, 2.0])) == 0.0
    assert math.isnan(statistics.welch(Sample.of([1.0]), Sample.of([1.0, 2.0])))
    assert statistics.welch(Sample.of([1.0, 1.0]), Sample.of([2.0, 2.5])) < 1.0  # one side without spread is a test


def test_standard_deviation_divides_by_n_minus_one() -> None:
    assert Sample.of([1.0, 2.0, 3.0, 4.0]).std == pytest.approx(math.sqrt(5 / 3))
    assert math.isnan(Sample.of([1.0]).std)


def test_diverged_runs_are_counted_not_averaged() -> None:
    sample = Sample.of([1.0, math.nan, 3.0, math.inf])
    assert (sample.mean, sample.diverged) == (2.0, 2)
    assert math.isnan(Sample.of([math.nan]).mean)


def test_holm_is_the_closed_testing_procedure_over_bonferroni() -> None:
    """Holm = reject an intersection by Bonferroni, and a hypothesis if all intersections with it are rejected."""
    stream = np.random.default_rng(1)
    for _ in range(20):
        p = dict(enumerate(stream.uniform(0, 0.4, 4).tolist()))
        subsets = [[i for i in p if mask >> i & 1] for mask in range(1, 16)]
        for i, corrected in statistics.holm(p).items():
            largest = max(min(1.0, len(s) * min(p[j] for j in s)) for s in subsets if i in s)
            assert corrected == pytest.approx(largest)


def test_holm_leaves_out_what_was_not_tested() -> None:
    corrected = statistics.holm({"a": 0.01, "b": math.nan, "c": 0.5})
    assert corrected["a"] == pytest.approx(0.02)
    assert math.isnan(corrected["b"])
    assert statistics.holm({}) == {}


def test_bold_is_the_best_and_what_is_not_significantly_worse() -> None:
    samples = {
        "close": Sample.of([1.02, 0.99, 1.06]),
        "best": Sample.of([1.0, 1.05, 0.95]),
        "worse": Sample.of([2.0, 2.05, 1.95]),
        "none": Sample.of([math.nan]),
    }
    assert statistics.bold(samples, "lower") == {"best", "close"}
    assert statistics.bold(samples, "higher") == {"worse"}
    assert statistics.best({"none": Sample.of([])}, "lower") is None
    assert statistics.bold({"none": Sample.of([])}, "lower") == set()


def test_bold_of_single_runs_is_the_best_alone() -> None:
    assert statistics.bold({"a": Sample.of([1.0]), "b": Sample.of([1.1])}, "lower") == {"a"}


@pytest.mark.parametrize(
    ("first", "second", "p_value", "words"),
    [
        (1.0, 2.0, 0.01, "significantly better than"),
        (2.0, 1.0, 0.01, "significantly worse than"),
        (1.0, 2.0, 0.06, "not significantly different from"),
        (1.0, 2.0, math.nan, "cannot be tested against"),
    ],
)
def test_words(first: float, second: float, p_value: float, words: str) -> None:
    assert statistics.verdict(Sample.of([first]), Sample.of([second]), "lower", p_value) == words
    mirrored = {
        "significantly better than": "significantly worse than",
        "significantly worse than": "significantly better than",
    }
    assert statistics.verdict(Sample.of([first]), Sample.of([second]), "higher", p_value) == mirrored.get(words, words)
