"""The gradient estimators: bias and variance against enumeration, exactly where all outcomes can be listed.

Most tests use five classes whose probabilities, gradient and costs are known to the oracle. "Exact" means that every
outcome of an estimator is produced and weighted with its probability: what is left is rounding. Tests of frequencies
and of means of draws reject with probability 1e-6 if the library is right.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np
import pytest
from conformance import checks
from conformance.backend import weights_like
from estimation import (
    COMPUTED,
    COSTS,
    GRADIENT,
    JACOBIAN,
    SCORES,
    UNBIASED,
    VALUE,
    Cost,
    Drawn,
    K,
    P,
    all_sets,
    all_tuples,
    assert_multinomial,
    classes_of,
    hostile,
    is_mean,
    leave_one_out_gradient,
    repeated,
    set_estimate,
    total_variance,
)

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")

OURS = ("Catnat", "OneHotCatnat", "OneHotCatnatStraightThrough")
# Of the framework or of a user: a categorical of logits, of probabilities, or of one-hot vectors.
OTHERS = ("logits", "probs", "one-hot")
REPEATS = 20_000
every_kind = pytest.mark.parametrize("kind", [*OURS, *OTHERS])


# Where only some rows run, two or three members: one has no baseline, and all of them have no variance.
rare = pytest.mark.expensive_compile
sizes_of_sets = pytest.mark.parametrize("size", [2, 3, *(pytest.param(n, marks=rare) for n in (1, 4, K))])


def distribution(framework: Any, kind: str, scores: Any, **options: Any) -> Any:
    """Every kind of distribution that the estimators take, each with the same probabilities."""
    if kind in OURS:
        return getattr(framework.lib, kind)(scores, **options)
    return framework.categorical(framework.lib.log_catnat(scores), kind)


def cost_in(framework: Any, table: np.ndarray = COSTS) -> Cost:
    return Cost(framework.array(table))


def with_draws(framework: Any, kind: str, scores: Any, draws: np.ndarray) -> Drawn:
    hot = kind in ("one-hot", *OURS[1:])
    return Drawn(distribution(framework, kind, scores), framework.array(np.eye(K)[draws] if hot else draws))


# ---- every outcome of an estimator, with its probability ----

Outcomes = tuple[np.ndarray, np.ndarray, np.ndarray]


def outcomes_of_score_function(framework: Any, kind: str, count: int, baseline: Any) -> Outcomes:
    draws, probabilities = all_tuples(count)

    def estimate(scores: Any) -> Any:
        dist, how = with_draws(framework, kind, scores, draws), {"num_samples": count, "baseline": baseline}
        return framework.lib.estimators.score_function(cost_in(framework), dist, **how, **framework.seeded(0))

    return *framework.value_and_gradient(estimate, repeated(draws.shape[1])), probabilities


def outcomes_of_unordered_set(framework: Any, kind: str, size: int, monkeypatch: pytest.MonkeyPatch) -> Outcomes:
    sets = all_sets(size)
    give(framework, [members[::-1] for members in sets], monkeypatch)  # their order does not matter

    def estimate(scores: Any) -> Any:
        dist, how = distribution(framework, kind, scores), framework.seeded(0)
        return framework.lib.estimators.unordered_set(cost_in(framework), dist, size, **how)

    return *framework.value_and_gradient(estimate, repeated(len(sets))), np.array(list(sets.values()))


def give(framework: Any, sets: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """These sets in place of random ones."""
    monkeypatch.setattr(framework.lib.estimators, "_draw_distinct", lambda *_: framework.array(sets))


def test_the_problem_is_what_it_says(framework):
    assert math.isclose(P.sum(), 1, rel_tol=1e-14)
    assert (P > 0.05).all()
    for kind in (*OURS, *OTHERS):
        probs = distribution(framework, kind, framework.array(SCORES)).probs
        np.testing.assert_allclose(framework.numpy(probs), P, rtol=1e-13)
    assert np.abs(GRADIENT).min() > 0.05


# ---- enumerate_exactly ----


@every_kind
def test_enumeration_is_exact(framework, kind):
    value, gradient = framework.value_and_gradient(
        lambda s: framework.lib.estimators.enumerate_exactly(cost_in(framework), distribution(framework, kind, s)),
        repeated(3),
    )
    assert value.shape == (3,)
    np.testing.assert_allclose(value, np.full(3, VALUE), rtol=1e-13)
    np.testing.assert_allclose(gradient, np.tile(GRADIENT, (3, 1)), rtol=1e-12)


@every_kind
def test_enumeration_gives_all_classes_at_once(framework, kind):
    seen = []
    dist, cost = distribution(framework, kind, framework.array(repeated(2, 3))), cost_in(framework)
    framework.lib.estimators.enumerate_exactly(lambda values: seen.append(values) or cost(values), dist)
    (values,) = map(framework.numpy, seen)
    wanted = np.broadcast_to(np.arange(K)[:, None, None], (K, 2, 3))
    wanted = np.eye(K)[wanted] if kind in ("one-hot", *OURS[1:]) else wanted
    assert values.shape == wanted.shape
    np.testing.assert_array_equal(values, wanted)


@pytest.mark.expensive_compile
def test_enumeration_has_second_derivatives(framework):
    def expected(scores):
        return framework.lib.estimators.enumerate_exactly(cost_in(framework), framework.lib.Catnat(scores))

    def gradient(scores):
        return framework.value_and_gradient(expected, scores)[1]

    wanted = [(gradient(SCORES + step) - gradient(SCORES - step)) / 2e-5 for step in 1e-5 * np.eye(K - 1)]
    np.testing.assert_allclose(framework.hessian(expected, SCORES), np.stack(wanted), atol=1e-8)


# ---- score_function: no bias, by listing all draws ----

BASELINES = {"none": None, "number": 3.7, "integer": -2, "array": np.array(0.4), "mean": np.array(VALUE)}


@every_kind
@pytest.mark.parametrize("baseline", BASELINES)
def test_one_draw_is_unbiased(framework, kind, baseline):
    given = framework.native(BASELINES[baseline])
    values, gradients, probabilities = outcomes_of_score_function(framework, kind, 1, given)
    np.testing.assert_allclose(values, COSTS)  # the value is the cost itself: the baseline is not in it
    np.testing.assert_allclose(probabilities @ gradients, GRADIENT, atol=1e-12)


@every_kind
@pytest.mark.parametrize("count", [2, 3])
def test_leave_one_out_is_unbiased(framework, kind, count):
    """And for all draws what is taken off is the mean of the other costs."""
    values, gradients, probabilities = outcomes_of_score_function(framework, kind, count, "leave-one-out")
    np.testing.assert_allclose(gradients, [leave_one_out_gradient(row) for row in all_tuples(count)[0].T], atol=1e-12)
    np.testing.assert_allclose(probabilities @ values, VALUE, atol=1e-12)
    np.testing.assert_allclose(probabilities @ gradients, GRADIENT, atol=1e-12)


def test_a_baseline_per_row_stays_with_its_row(framework):
    baseline, draws = framework.array(np.array([6.0, 1.0])), np.array([[3, 3]])

    def estimate(scores):
        dist, how = with_draws(framework, "Catnat", scores, draws), framework.seeded(0)
        return framework.lib.estimators.score_function(cost_in(framework), dist, baseline=baseline, **how)

    _, got = framework.value_and_gradient(estimate, repeated(2))
    np.testing.assert_allclose(got[0], np.zeros(K - 1), atol=1e-14)  # the cost of class 3 is 6
    np.testing.assert_allclose(got[1], 5 * JACOBIAN[3] / P[3], rtol=1e-12)


@pytest.mark.expensive_compile
def test_no_gradient_goes_to_the_baseline(framework):
    dist, how = framework.lib.Catnat(framework.array(SCORES)), framework.seeded(0)
    _, got = framework.value_and_gradient(
        lambda critic: framework.lib.estimators.score_function(cost_in(framework), dist, baseline=critic, **how),
        np.array(1.0),
    )
    assert got == 0


# ---- unordered_set: no bias, by listing all sets ----


@every_kind
@sizes_of_sets
def test_every_set_gives_the_papers_estimate(framework, kind, size, monkeypatch):
    """And the mean over all sets has no bias."""
    values, gradients, probabilities = outcomes_of_unordered_set(framework, kind, size, monkeypatch)
    assert math.isclose(probabilities.sum(), 1, rel_tol=1e-12)
    np.testing.assert_allclose(probabilities @ values, VALUE, atol=1e-12)
    np.testing.assert_allclose(probabilities @ gradients, GRADIENT, atol=1e-12)
    for members, value, got in zip(all_sets(size), values, gradients, strict=True):
        wanted, weights = set_estimate(members)
        np.testing.assert_allclose(value, wanted, rtol=1e-11)
        np.testing.assert_allclose(got, weights @ JACOBIAN, rtol=1e-10, atol=1e-12)


@pytest.mark.expensive_compile
@every_kind
def test_sets_are_drawn_without_replacement(framework, kind):
    seen = []
    dist, cost = distribution(framework, kind, framework.array(repeated(REPEATS))), cost_in(framework)
    framework.lib.estimators.unordered_set(
        lambda values: seen.append(classes_of(values)) or cost(values), dist, 3, **framework.randomness(1)
    )
    counts = dict.fromkeys(all_sets(3), 0)
    for row in np.sort(framework.numpy(seen[0]).T, -1).tolist():
        counts[tuple(row)] += 1  # a repeated class would be a KeyError
    checks.chi_square(counts, all_sets(3))


@pytest.mark.expensive_compile
def test_one_certain_class_and_a_tiny_rest(framework):
    """1 - p(S) would be all rounding here; the rest is summed instead."""
    p = np.full((3000, 10), 1e-9, np.float32)
    p[:, 3] = 1 - 9e-9
    dist, cost = framework.categorical(np.log(p), "probs"), cost_in(framework, (np.arange(10) != 3).astype(np.float32))
    values = framework.lib.estimators.unordered_set(cost, dist, 2, **framework.randomness(0))
    np.testing.assert_allclose(framework.numpy(values), np.full(3000, 9e-9), rtol=1e-5)


@pytest.mark.expensive_compile
def test_small_sets_of_very_many_classes(framework):
    """Eight of a million are drawn with probability 1e-43, which float32 cannot hold; equal costs need no luck."""
    dist = framework.lib.Catnat(framework.array(np.zeros(10**6 - 1, np.float32)))
    for size in (2, 8):
        found = framework.lib.estimators.unordered_set(
            lambda drawn: framework.array(np.full(drawn.shape, 3, np.float32)), dist, size, **framework.randomness(0)
        )
        np.testing.assert_allclose(framework.numpy(found), 3, rtol=1e-5)


# ---- parameters of f ----


@pytest.mark.parametrize("estimator", ["enumerate_exactly", "score_function", "unordered_set"])
def test_the_parameters_of_f_are_reached(framework, estimator, monkeypatch):
    """The pathwise part: over all outcomes, its mean is the gradient of the expected cost in f's own table."""
    lib, sets, (draws, of_draws) = framework.lib.estimators, all_sets(2), all_tuples(2)
    give(framework, list(sets), monkeypatch)
    how, weights = framework.seeded(0), {"score_function": of_draws, "unordered_set": np.array(list(sets.values()))}
    probabilities = weights.get(estimator, np.ones(1))
    scores = framework.array(repeated(len(probabilities)))

    def estimate(table):
        if estimator == "score_function":
            dist, more = with_draws(framework, "Catnat", scores, draws), {"num_samples": 2, "baseline": "leave-one-out"}
            return lib.score_function(lambda k: table[k] ** 2, dist, **more, **how)
        given = () if estimator == "enumerate_exactly" else (2,)
        dist = framework.lib.Catnat(scores)
        return getattr(lib, estimator)(lambda k: table[k] ** 2, dist, *given, **(how if given else {}))

    _, got = framework.value_and_gradient(estimate, COSTS, probabilities)
    np.testing.assert_allclose(got, 2 * P * COSTS, rtol=1e-12)


# ---- variance, exactly ----


@pytest.mark.expensive_compile
def test_variances(framework, monkeypatch):
    """A baseline lowers it; so do several draws; at the same number of costs, sets have less than leave-one-out."""

    def variance(count, baseline):
        return total_variance(*outcomes_of_score_function(framework, "Catnat", count, baseline)[1:])

    def variance_of_sets(count):
        return total_variance(*outcomes_of_unordered_set(framework, "Catnat", count, monkeypatch)[1:])

    single, previous = variance(1, None), math.inf
    assert variance(1, VALUE) < 0.7 * single
    for count in (2, 3, 4):
        plain, paired, distinct = variance(count, None), variance(count, "leave-one-out"), variance_of_sets(count)
        np.testing.assert_allclose(plain, single / count, rtol=1e-10)  # the draws are independent
        assert distinct < paired < plain
        assert distinct < previous
        previous = distinct
    assert variance_of_sets(K) < 1e-20


# ---- bias and no bias, by drawing ----


def drawn(framework: Any, estimator: str, build: Any, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and gradients of an unbiased estimator, over many rows."""
    estimate, cost = UNBIASED[estimator], cost_in(framework)
    return framework.value_and_gradient(
        lambda s: estimate(framework.lib.estimators, cost, build(s), framework.randomness(seed)), repeated(REPEATS)
    )


@every_kind
@pytest.mark.parametrize("estimator", UNBIASED)
def test_drawn_gradients_are_unbiased(framework, kind, estimator):
    value, gradient = drawn(framework, estimator, lambda s: distribution(framework, kind, s), 2)
    assert is_mean(gradient, GRADIENT)
    assert is_mean(value[:, None], np.array([VALUE]))


@pytest.mark.expensive_compile
@pytest.mark.parametrize(
    "options",
    [
        {"unimix": 0.3},
        {"temperature": 0.4},
        {"mask": np.array([True, False, True, True, True]), "unimix": 0.1, "temperature": 2.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["Catnat", "OneHotCatnat"])
def test_masks_temperature_and_unimix_are_estimated_like_any_other(framework, kind, options):
    given, lib = {name: framework.native(value) for name, value in options.items()}, framework.lib

    def build(scores):
        return distribution(framework, kind, scores, **given)

    _, (wanted,) = framework.value_and_gradient(lambda s: build(s).probs @ framework.array(COSTS), repeated(1))
    for estimate in (
        lambda dist: lib.estimators.enumerate_exactly(cost_in(framework), dist),
        lambda dist: lib.estimators.unordered_set(cost_in(framework), dist, K, **framework.randomness(0)),
    ):
        _, (got,) = framework.value_and_gradient(lambda s, e=estimate: e(build(s)), repeated(1))
        np.testing.assert_allclose(got, wanted, atol=1e-10)
    for estimator in UNBIASED:
        assert is_mean(drawn(framework, estimator, build, 6)[1], wanted)


def chi_square(classes: np.ndarray, probs: np.ndarray) -> None:
    checks.chi_square(np.bincount(classes.ravel(), minlength=len(probs)).tolist(), probs.tolist())


# ---- relaxed and one-hot draws ----


@every_kind
def test_the_largest_entry_has_the_probabilities(framework, kind):
    dist, lib = distribution(framework, kind, framework.array(SCORES)), framework.lib.estimators

    def draw(function, *args, **how):
        found = function(dist, *args, sample_shape=(REPEATS,), **how, **framework.randomness(0))
        return framework.numpy(found)

    soft, hard = (draw(lib.gumbel_softmax, 0.7, hard=hard) for hard in (False, True))
    np.testing.assert_allclose(soft.sum(-1), np.ones(REPEATS), rtol=1e-12)
    chi_square(soft.argmax(-1), P)
    np.testing.assert_array_equal(hard, np.eye(K)[soft.argmax(-1)])
    chi_square(draw(lib.straight_through).argmax(-1), P)


def test_it_is_the_relaxed_distribution(framework):
    """In values and gradients, with a temperature for every row; hard draws have the same gradient."""
    at, random = {"scores": repeated(2), "temperature": np.array([0.5, 3.0])}, framework.randomness

    def relaxed(scores, temperature):
        return framework.lib.RelaxedOneHotCatnat(temperature, scores).rsample((4,), **random(0))

    def estimated(scores, temperature, hard=False):
        dist, tau = framework.lib.Catnat(scores), temperature[..., None]
        return framework.lib.estimators.gumbel_softmax(dist, tau, hard=hard, sample_shape=(4,), **random(0))

    native = {name: framework.array(value) for name, value in at.items()}
    weights = weights_like(np.empty((4, 2, K)))
    for name, value in at.items():
        wanted, soft, hard = (
            framework.value_and_gradient(lambda x, f=function, n=name: f(**{**native, n: x}), value, weights)
            for function in (relaxed, estimated, functools.partial(estimated, hard=True))
        )
        for got, expected in ((soft[0], wanted[0]), (soft[1], wanted[1]), (hard[1], wanted[1])):
            np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)


def test_straight_through_is_what_the_distribution_does(framework):
    slope = np.random.default_rng(1).normal(size=(6, K))
    got, wanted = (
        framework.value_and_gradient(
            lambda s, draw=draw: draw(framework.lib.OneHotCatnatStraightThrough(s)), repeated(6), slope
        )
        for draw in (
            lambda dist: framework.lib.estimators.straight_through(dist, **framework.randomness(0)),
            lambda dist: dist.rsample(**framework.randomness(0)),
        )
    )
    np.testing.assert_array_equal(got[0], wanted[0])
    np.testing.assert_array_equal(got[1], wanted[1])


@pytest.mark.expensive_compile
@every_kind
def test_shapes(framework, kind):
    lib, cost = framework.lib.estimators, cost_in(framework)
    with_costs = (lib.enumerate_exactly, lib.unordered_set, lib.score_function)
    for batch in ((), (2, 3), *([(0,)] if kind in OURS else [])):  # torch's own cannot be empty
        dist = distribution(framework, kind, framework.array(repeated(*batch)))

        def shape_of(function, *args, dist=dist, **how):
            random = {} if function is lib.enumerate_exactly else framework.randomness(0)
            given = (cost, dist) if function in with_costs else (dist,)
            return framework.shape_of(lambda: function(*given, *args, **how, **random))

        for shape in ((), (4,), (2, 0)):
            assert shape_of(lib.gumbel_softmax, 0.5, sample_shape=shape) == (*shape, *batch, K)
            assert shape_of(lib.sample_counts, 3, sample_shape=shape) == (*shape, *batch, K)
            assert shape_of(lib.straight_through, sample_shape=shape) == (*shape, *batch, K)
        assert shape_of(lib.enumerate_exactly) == batch
        assert shape_of(lib.unordered_set, 2) == batch
        assert shape_of(lib.score_function, num_samples=2) == batch


# ---- sample_counts ----


def counts_of(framework: Any, dist: Any, count: Any, repeats: int, seed: int = 0) -> np.ndarray:
    sample_counts = framework.lib.estimators.sample_counts
    return framework.numpy(sample_counts(dist, count, sample_shape=(repeats,), **framework.randomness(seed)))


@pytest.mark.expensive_compile
@every_kind
def test_counts_are_multinomial(framework, kind):
    counts = counts_of(framework, distribution(framework, kind, framework.array(SCORES)), 3, 20_000)
    assert counts.dtype == np.int64
    assert_multinomial(counts.tolist())


@pytest.mark.parametrize(
    "classes", [1, 2, 3, 7, *(pytest.param(size, marks=pytest.mark.expensive_compile) for size in (64, 100))]
)
def test_counts_have_the_right_mean_and_covariance(framework, classes):
    scores = np.random.default_rng(1).normal(size=classes - 1) / 2
    dist, count = framework.lib.Catnat(framework.array(scores)), 1000
    p, counts = framework.numpy(dist.probs), counts_of(framework, dist, count, 4000, seed=2)
    assert (counts.sum(-1) == count).all()
    assert (counts >= 0).all()
    centred = counts - count * p
    assert is_mean(centred, np.zeros(classes))
    assert is_mean(centred[:, :, None] * centred[:, None, :], count * (np.diag(p) - np.outer(p, p)))


@pytest.mark.expensive_compile
def test_counts_of_very_many_draws(framework):
    for count in (10**9, 2**53):
        counts = counts_of(framework, framework.lib.Catnat(framework.array(SCORES)), count, 2000, seed=3)
        assert (counts.sum(-1) == count).all()
        standard = (counts - count * P) / np.sqrt(count * P * (1 - P))
        assert is_mean(standard, np.zeros(K))
        assert is_mean(standard**2, np.ones(K))


@pytest.mark.expensive_compile
def test_a_count_per_row(framework):
    dist = framework.lib.Catnat(framework.array(repeated(3, 4)))
    for dtype in (np.int32, np.int64):
        totals = np.array([[0], [7], [10**6]], dtype)
        counts = counts_of(framework, dist, framework.array(totals), 5)
        np.testing.assert_array_equal(counts.sum(-1), np.broadcast_to(totals, (5, 3, 4)))


# ---- impossible classes ----

# The root goes right and the last node goes left, both for certain: classes 0 to 3 and 7 are impossible.
CLOSED = np.array([50.0, 0.3, 0.2, 0.1, 0.5, -0.4, -60.0])
MASK = np.array([0, 1, 0, 0, 1, 1, 0, 1], bool)
LOGITS = np.array([0.5, -math.inf, 1.0, -math.inf, 0.0, 0.0, -math.inf, 1.0])
every_closed_kind = pytest.mark.parametrize("kind", ["Catnat", "OneHotCatnat", "masked", "masked-one-hot", *OTHERS])


def closed(framework: Any, kind: str) -> tuple[Any, np.ndarray]:
    """A distribution with exact zeros as a function of its parameters, and those, in 30 rows."""
    if kind in OTHERS:
        return lambda logits: framework.categorical(logits, kind), np.tile(LOGITS, (30, 1))
    if not kind.startswith("masked"):
        return lambda scores: distribution(framework, kind, scores, activation="natural"), np.tile(CLOSED, (30, 1))
    ours, mask = "OneHotCatnat" if kind.endswith("hot") else "Catnat", framework.array(MASK)
    return lambda scores: distribution(framework, ours, scores, mask=mask), np.zeros((30, 7))


@pytest.mark.expensive_compile
@every_closed_kind
def test_the_impossible_is_never_drawn(framework, kind):
    build, scores = closed(framework, kind)
    dist, lib, how = build(framework.array(scores)), framework.lib.estimators, {"sample_shape": (200,)}
    zero = framework.numpy(dist.probs)[0] == 0
    assert 0 < zero.sum() < 8
    draws = [
        lib.gumbel_softmax(dist, temperature, hard=hard, **how, **framework.randomness(0))
        for temperature, hard in itertools.product((1e-4, 0.5, 100.0), (False, True))
    ]
    draws.append(lib.straight_through(dist, **how, **framework.randomness(0)))
    draws.append(lib.sample_counts(dist, 10**6, **framework.randomness(0)))
    for found in draws:
        assert (framework.numpy(found)[..., zero] == 0).all()

    def watch(values):
        classes = classes_of(values)
        assert not zero[framework.numpy(classes)].any()
        return classes * 1.0

    lib.score_function(watch, dist, num_samples=200, **framework.randomness(0))
    lib.enumerate_exactly(watch, dist)
    for k in range(1, 9):
        lib.unordered_set(watch, dist, k, **framework.randomness(0))


@pytest.mark.expensive_compile
@every_closed_kind
def test_evaluating_only_possible_classes_keeps_f_differentiable(framework, kind):
    """f is log of a parameter that is 0 for impossible classes: there its gradient would be 0 times infinity."""
    build, scores = closed(framework, kind)
    probabilities, lib = framework.numpy(build(framework.array(scores)).probs)[0], framework.lib.estimators
    size = (probabilities > 0).astype(float)
    for estimate in (
        lib.enumerate_exactly,
        lambda f, dist: lib.unordered_set(f, dist, 8, **framework.randomness(0)),
        lambda f, dist: lib.unordered_set(f, dist, 6, **framework.randomness(0)),
    ):

        def value(scores, size, estimate=estimate):
            return estimate(lambda v: framework.numpy_like.log(2 * size[classes_of(v)]), build(scores))

        found, to_scores = framework.value_and_gradient(lambda s: value(s, framework.array(size)), scores)
        _, to_size = framework.value_and_gradient(lambda x: value(framework.array(scores), x), size)
        np.testing.assert_allclose(found, np.full(30, math.log(2)), rtol=1e-10)
        np.testing.assert_allclose(to_size, 30 * probabilities, rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(to_scores, np.zeros_like(scores), atol=1e-6)


@pytest.mark.expensive_compile
@every_closed_kind
def test_more_members_than_possible_classes_are_exact(framework, kind):
    build, scores = closed(framework, kind)
    lib, squares = framework.lib.estimators, cost_in(framework, np.arange(8.0) ** 2)
    wanted = framework.value_and_gradient(lambda s: lib.enumerate_exactly(squares, build(s)), scores)
    possible = int((framework.numpy(build(framework.array(scores)).probs)[0] > 0).sum())
    for k in range(possible, 9):
        got = framework.value_and_gradient(
            lambda s, k=k: lib.unordered_set(squares, build(s), k, **framework.randomness(k)), scores
        )
        np.testing.assert_allclose(got[0], wanted[0], rtol=1e-10)
        np.testing.assert_allclose(got[1], wanted[1], rtol=1e-8, atol=1e-10)


@pytest.mark.expensive_compile
@every_closed_kind
@pytest.mark.parametrize("bad", [math.inf, math.nan, 7.0])
def test_the_impossible_is_ignored(framework, kind, bad):
    """Whatever f says of it, and whatever it would do to f's own gradient."""
    build, parameters = closed(framework, kind)
    zero = framework.array(framework.numpy(build(framework.array(parameters)).probs).T == 0)
    ground, xp = framework.array(np.linspace(1, 2, 8)[:, None]), framework.numpy_like

    def value(parameters, shift, there):
        costs = xp.where(zero, there, ground * xp.exp(shift))
        return framework.lib.estimators.enumerate_exactly(lambda _: costs, build(parameters))

    results = []
    for there in (bad, 0.0):
        of_parameters = framework.value_and_gradient(
            lambda x, t=there: value(x, framework.array(np.array(0.0)), t), parameters
        )
        of_shift = framework.value_and_gradient(
            lambda x, t=there: value(framework.array(parameters), x, t), np.array(0.0)
        )
        results.append([*of_parameters, *of_shift])
    for got, wanted in zip(*results, strict=True):
        np.testing.assert_array_equal(got, wanted)
        assert np.isfinite(got).all()


@pytest.mark.expensive_compile
@every_closed_kind
def test_saturated_scores_and_closed_classes_get_no_gradient(framework, kind):
    build, parameters = closed(framework, kind)
    lib, cost = framework.lib.estimators, cost_in(framework, np.linspace(-1, 2, 8))
    saturated = framework.saturated(CLOSED, None, "natural")
    for estimate in (
        lambda dist, how: lib.gumbel_softmax(dist, 0.5, **how) @ cost.table,
        lambda dist, how: lib.straight_through(dist, **how) @ cost.table,
        lambda dist, how: lib.score_function(cost, dist, **how),
        lambda dist, how: lib.unordered_set(cost, dist, 3, **how),
        lambda dist, how: lib.enumerate_exactly(cost, dist),
    ):
        _, got = framework.value_and_gradient(lambda x, e=estimate: e(build(x), framework.randomness(0)), parameters)
        assert np.isfinite(got).all()
        assert (got != 0).any()
        if kind in OTHERS:
            assert (got[:, -math.inf == LOGITS] == 0).all()
        elif not kind.startswith("masked"):
            assert (got[:, saturated] == 0).all()


# ---- no NaN ----


@pytest.mark.expensive_compile
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("activation", ["natural", "sigmoid"])
@pytest.mark.parametrize("name", COMPUTED)
def test_no_nan_for_any_scores(framework, name, activation, dtype):
    """pytorch#22442 and its like: low temperatures, half precision, and enormous scores."""
    lib, costs = framework.lib, framework.cast(framework.array(np.linspace(-1, 2, 7)), dtype)
    for kind in ("Catnat", "OneHotCatnat"):

        def estimate(scores, kind=kind):
            dist = distribution(framework, kind, framework.cast(scores, dtype), activation=activation)
            found = COMPUTED[name](lib.estimators, dist, costs, framework.randomness(0))
            assert dtype in str(found.dtype)
            return framework.cast(found, "float64")

        value, gradient = framework.value_and_gradient(estimate, hostile(dtype))
        assert np.isfinite(value).all()
        assert np.isfinite(gradient).all()


@pytest.mark.expensive_compile
@pytest.mark.parametrize("temperature", [1e-36, 1e-18, 1e-4, 1.0])
def test_no_nan_in_the_gradient_of_a_temperature(framework, temperature):
    costs = framework.array(np.linspace(-1, 2, 7, dtype=np.float32))
    for activation in ("natural", "sigmoid"):
        dist = framework.lib.Catnat(framework.array(hostile("float32").astype(np.float32)), None, activation)
        _, slope = framework.value_and_gradient(
            lambda t, dist=dist: framework.lib.estimators.gumbel_softmax(dist, t, **framework.randomness(0)) @ costs,
            np.array(temperature, np.float32),
        )
        assert np.isfinite(slope).all()


@pytest.mark.expensive_compile
def test_large_costs_in_half_precision(framework):
    """Sums and differences of costs leave half precision's range long before the costs do."""
    lib, how = framework.lib.estimators, framework.randomness(0)
    dist = framework.lib.Catnat(framework.array(np.zeros((4, 3), np.float16)))
    huge = cost_in(framework, np.full(4, 6e4, np.float16))
    for value in (
        lib.score_function(huge, dist, num_samples=8, **how),
        lib.enumerate_exactly(huge, dist),
        lib.unordered_set(huge, dist, 4, **how),
    ):
        np.testing.assert_array_equal(framework.numpy(value), np.full(4, 6e4, np.float16))
    signs = cost_in(framework, np.array([-6e4, -6e4, 6e4, 6e4], np.float16))
    found = framework.value_and_gradient(
        lambda s: lib.score_function(signs, framework.lib.Catnat(s), num_samples=4, baseline="leave-one-out", **how),
        np.zeros((50, 3), np.float16),
    )
    assert all(np.isfinite(each).all() for each in found)


@pytest.mark.expensive_compile
def test_dtypes_of_results(framework):
    lib, how = framework.lib.estimators, framework.randomness(0)
    half, single = (framework.lib.Catnat(framework.array(np.zeros((3, 3), t))) for t in (np.float16, np.float32))
    for estimate in (
        lib.enumerate_exactly,
        lambda f, dist: lib.score_function(f, dist, **how),
        lambda f, dist: lib.unordered_set(f, dist, 2, **how),
    ):
        assert "float16" in str(estimate(lambda k: framework.cast(k, "float16"), half).dtype)
        assert "float32" in str(estimate(lambda k: framework.cast(k, "float32"), half).dtype)
        assert "float64" in str(estimate(lambda k: framework.cast(k, "float64"), single).dtype)
        assert "float32" in str(estimate(lambda k: k, single).dtype)  # integers, and even booleans, are costs
        assert "float32" in str(estimate(lambda k: k == 2, single).dtype)
    for drawn_in_half in (
        lib.gumbel_softmax(half, 0.5, **how),
        lib.gumbel_softmax(half, 0.5, hard=True, **how),
        lib.straight_through(half, **how),
    ):
        assert "float16" in str(drawn_in_half.dtype)


# ---- errors ----

NO_COSTS = np.array([1, 2, -3])
ERRORS = {
    **{
        f"temperature {bad}": (
            lambda lib, dist, f, how, bad=bad: lib.gumbel_softmax(dist, bad, **how),
            "`temperature` is",
        )
        for bad in (0, -1.0, math.nan, math.inf)
    },
    **{
        f"score_function {given}": (
            lambda lib, dist, f, how, given=given: lib.score_function(f, dist, **given, **how),
            text,
        )
        for given, text in (
            ({"baseline": "leave-one-out"}, "num_samples=2 or more"),
            ({"baseline": "loo"}, "'loo'"),
            ({"baseline": [1.0]}, "list"),
            ({"num_samples": 0}, "at least 1"),
        )
    },
    **{
        f"set of {k}": (lambda lib, dist, f, how, k=k: lib.unordered_set(f, dist, k, **how), f"`k` is {k}, but 1 to 5")
        for k in (0, -1, 6)
    },
    **{
        f"decay {bad}": (lambda lib, dist, f, how, bad=bad: lib.MovingAverage(bad), "`decay`")
        for bad in (-0.1, 1.0, math.nan)
    },
    **{
        f"count {bad}": (lambda lib, dist, f, how, bad=bad: lib.sample_counts(dist, bad, **how), text)
        for bad, text in (
            (-1, r"from 0 to 2\^53"),
            (2**53 + 1, r"from 0 to 2\^53"),
            (2.0, "integer"),
            (True, "integer"),
        )
    },
    **{
        f"shape of draws, {name}": (
            lambda lib, dist, f, how, name=name, more=more: getattr(lib, name)(dist, *more, sample_shape=3, **how),
            r"`sample_shape` is 3, but a shape is needed: \(3,\)",
        )
        for name, more in (("gumbel_softmax", (2,)), ("straight_through", ()), ("sample_counts", (2,)))
    },
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(framework, name):
    call, text = ERRORS[name]
    dist = framework.lib.Catnat(framework.array(repeated(3)))
    with pytest.raises((TypeError, ValueError), match=text):
        call(framework.lib.estimators, dist, cost_in(framework), framework.randomness(0))


def test_errors_of_arrays(framework):
    """Costs, baselines, temperatures and counts that would broadcast, or hold what may not be."""
    dist, lib, cost = framework.lib.Catnat(framework.array(repeated(3))), framework.lib.estimators, cost_in(framework)
    how, array = framework.randomness(0), framework.array
    for estimate in (
        lambda f: lib.score_function(f, dist, num_samples=4, **how),
        lambda f: lib.unordered_set(f, dist, 4, **how),
        lambda f: lib.enumerate_exactly(f, dist),
    ):
        with pytest.raises(ValueError, match=r"Do not average inside f"):
            estimate(lambda k: cost(k).mean())
        with pytest.raises(ValueError, match=r"returned shape \(3,\) for draws of shape \(., 3\)"):
            estimate(lambda k: cost(k).mean(0))
        with pytest.raises(TypeError, match="float"):
            estimate(lambda k: 1.0)
    for shape, text in ((2, r"\(2,\).*\(1, 3\)"), ((4, 3), r"\(4, 3\)")):
        with pytest.raises(ValueError, match=text):
            lib.score_function(cost, dist, baseline=array(np.zeros(shape)), **how)
    for bad in (np.array(0.0), np.array([[1.0], [-1.0], [1.0]])):
        with pytest.raises(ValueError, match="`temperature` is"):
            lib.gumbel_softmax(dist, array(bad), **how)
    for bad, text in ((NO_COSTS, r"from 0 to 2\^53"), (np.array([1, 2]), "batch shape"), (np.array(2.0), "integer")):
        with pytest.raises((TypeError, ValueError), match=text):
            lib.sample_counts(dist, array(bad), **how)
    with pytest.raises(ValueError, match=r"2\^k"):
        lib.unordered_set(cost, framework.lib.Catnat(array(np.zeros(20))), 9, **how)


def test_nan_is_no_impossible_class(framework):
    """A diverged run must not look like one without costs."""
    unchecked = {"torch": {"validate_args": False}}.get(framework.name, {})
    dist = framework.lib.Catnat(framework.array(np.full((2, 4), np.nan)), **unchecked)
    cost, estimators = cost_in(framework), framework.lib.estimators
    for found in (
        estimators.enumerate_exactly(cost, dist),
        estimators.unordered_set(cost, dist, 2, **framework.randomness(0)),
        estimators.gumbel_softmax(dist, 0.5, hard=True, **framework.randomness(0)),
    ):
        assert np.isnan(framework.numpy(found)).all()
    with pytest.raises(ValueError, match="probabilities that are NaN"):
        estimators.sample_counts(dist, 5, **framework.randomness(0))
