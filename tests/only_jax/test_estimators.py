"""The gradient estimators: bias and variance against enumeration, exactly where all outcomes can be listed.

Most tests use five classes whose probabilities, gradient and costs are known to the oracle. "Exact" means that every
outcome of an estimator is produced and weighted with its probability: what is left is rounding. Tests of frequencies
and of means of draws reject with probability 1e-6 if the library is right.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import checks
from estimation import (
    COSTS,
    GRADIENT,
    JACOBIAN,
    SCORES,
    VALUE,
    K,
    P,
    all_sets,
    all_tuples,
    assert_multinomial,
    assert_refuses_bad_costs,
    is_mean,
    leave_one_out_gradient,
    set_estimate,
    total_variance,
)
from scipy import stats

import catnat.jax as cj
from catnat.jax import estimators

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")

KEY = jax.random.key(0)


@dataclasses.dataclass
class Plain:
    """A categorical distribution of a user's own: nothing but the members that the estimators name."""

    probs: jax.Array
    event_shape: tuple[int, ...] = ()

    @property
    def logits(self):
        return jnp.log(self.probs)

    def sample(self, sample_shape=(), *, key):
        return jax.random.categorical(key, self.logits, shape=(*sample_shape, *self.probs.shape[:-1]))

    def log_prob(self, value):
        every = jnp.broadcast_to(self.logits, (*value.shape, self.probs.shape[-1]))
        return jnp.take_along_axis(every, value[..., None], -1)[..., 0]


# Every kind of distribution, each with the same probabilities.
DISTRIBUTIONS: dict[str, Callable[[Any], Any]] = {
    "Catnat": cj.Catnat,
    "OneHotCatnat": cj.OneHotCatnat,
    "Plain": lambda scores: Plain(cj.catnat(scores)),
}
every_distribution = pytest.mark.parametrize("name", DISTRIBUTIONS)


def classes_of(values: jax.Array) -> jax.Array:
    return values.argmax(-1) if jnp.issubdtype(values.dtype, jnp.floating) else values


def cost(values: jax.Array) -> jax.Array:
    """The cost of classes, or of one-hot vectors."""
    return jnp.asarray(COSTS)[classes_of(values)]


def repeated(*batch: int) -> jax.Array:
    return jnp.broadcast_to(jnp.asarray(SCORES), (*batch, K - 1))


def with_gradients(estimate: Callable[[jax.Array], jax.Array], scores: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """The value, and one gradient per row, where rows do not share anything."""
    value, pull = jax.vjp(jax.jit(estimate), scores)
    return np.asarray(value), np.asarray(pull(jnp.ones_like(value))[0])


@dataclasses.dataclass
class Drawn:
    """A distribution with given draws in place of random ones."""

    dist: Any
    draws: Any

    def sample(self, _, *, key):
        del key
        hot = self.dist.event_shape != ()
        return jax.nn.one_hot(self.draws, K) if hot else jnp.asarray(self.draws)

    def log_prob(self, value):
        return self.dist.log_prob(value)


def chi_square(classes: Any, dist: Any) -> None:
    checks.chi_square(np.bincount(np.asarray(classes).ravel(), minlength=len(dist)).tolist(), np.asarray(dist).tolist())


# ---- every outcome of an estimator, with its probability ----


def outcomes_of_score_function(name: str, count: int, baseline: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draws, probabilities = all_tuples(count)
    values, gradients = with_gradients(
        lambda s: cj.estimators.score_function(
            cost, Drawn(DISTRIBUTIONS[name](s), draws), num_samples=count, baseline=baseline, key=KEY
        ),
        repeated(draws.shape[1]),
    )
    return values, gradients, probabilities


def outcomes_of_unordered_set(
    name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    sets = all_sets(size)
    monkeypatch.setattr(estimators, "_draw_distinct", lambda *_: jnp.array(list(sets)))
    values, gradients = with_gradients(
        lambda s: cj.estimators.unordered_set(cost, DISTRIBUTIONS[name](s), size, key=KEY), repeated(len(sets))
    )
    return values, gradients, np.array(list(sets.values()))


def test_the_problem_is_what_it_says():
    assert math.isclose(P.sum(), 1, rel_tol=1e-14)
    assert (P > 0.05).all()
    for build in DISTRIBUTIONS.values():
        np.testing.assert_allclose(build(jnp.asarray(SCORES)).probs, P, rtol=1e-13)
    assert np.abs(GRADIENT).min() > 0.05


# ---- enumerate_exactly ----


@every_distribution
def test_enumeration_is_exact(name):
    value, gradient = with_gradients(
        lambda s: cj.estimators.enumerate_exactly(cost, DISTRIBUTIONS[name](s)), repeated(3)
    )
    np.testing.assert_allclose(value, np.full(3, VALUE), rtol=1e-13)
    np.testing.assert_allclose(gradient, np.tile(GRADIENT, (3, 1)), rtol=1e-12)


@every_distribution
def test_enumeration_gives_all_classes_at_once(name):
    seen = []
    cj.estimators.enumerate_exactly(
        lambda values: seen.append(values) or cost(values), DISTRIBUTIONS[name](repeated(2, 3))
    )
    (values,) = seen
    wanted = np.broadcast_to(np.arange(K)[:, None, None], (K, 2, 3))
    if name == "OneHotCatnat":
        wanted = np.eye(K)[wanted]
    assert values.shape == wanted.shape
    np.testing.assert_array_equal(values, wanted)


def test_enumeration_reaches_the_parameters_of_f():
    dist = cj.Catnat(jnp.asarray(SCORES))
    got = jax.grad(lambda table: cj.estimators.enumerate_exactly(lambda k: table[k] ** 2, dist))(jnp.asarray(COSTS))
    np.testing.assert_allclose(got, 2 * P * COSTS, rtol=1e-12)


@pytest.mark.expensive_compile
def test_enumeration_has_second_derivatives():
    got = jax.hessian(lambda s: cj.estimators.enumerate_exactly(cost, cj.Catnat(s)))(jnp.asarray(SCORES))
    gradient = jax.jit(jax.grad(lambda s: cj.estimators.enumerate_exactly(cost, cj.Catnat(s))))
    steps = 1e-5 * np.eye(K - 1)
    wanted = [(gradient(SCORES + step) - gradient(SCORES - step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(got, np.stack(wanted), atol=1e-8)


# ---- score_function: no bias, by listing all draws ----

BASELINES = {
    "none": None,
    "number": 3.7,
    "integer": -2,
    "array": jnp.array(0.4),
    "average": cj.estimators.MovingAverage(),
}


@every_distribution
@pytest.mark.parametrize("baseline", BASELINES)
def test_one_draw_is_unbiased(name, baseline):
    given = BASELINES[baseline]
    given = given.update(jnp.array([2.0, 3.0])) if baseline == "average" else given
    values, gradients, probabilities = outcomes_of_score_function(name, 1, given)
    np.testing.assert_allclose(values, COSTS)  # the value is the cost itself: the baseline is not in it
    np.testing.assert_allclose(probabilities @ gradients, GRADIENT, atol=1e-12)


@every_distribution
@pytest.mark.parametrize("count", [2, 3])
def test_leave_one_out_is_unbiased(name, count):
    values, gradients, probabilities = outcomes_of_score_function(name, count, "leave-one-out")
    np.testing.assert_allclose(probabilities @ values, VALUE, atol=1e-12)
    np.testing.assert_allclose(probabilities @ gradients, GRADIENT, atol=1e-12)


def test_leave_one_out_is_the_mean_of_the_others():
    for count in (2, 3):
        draws, _ = all_tuples(count)
        _, gradients, _ = outcomes_of_score_function("Catnat", count, "leave-one-out")
        for row, got in zip(draws.T.tolist(), gradients, strict=True):
            np.testing.assert_allclose(got, leave_one_out_gradient(row), atol=1e-12)


def test_a_baseline_per_row_stays_with_its_row():
    draws, baseline = jnp.array([[3, 3]]), jnp.array([6.0, 1.0])
    _, got = with_gradients(
        lambda s: cj.estimators.score_function(cost, Drawn(cj.Catnat(s), draws), baseline=baseline, key=KEY),
        repeated(2),
    )
    np.testing.assert_allclose(got[0], np.zeros(K - 1), atol=1e-14)  # the cost of class 3 is 6
    np.testing.assert_allclose(got[1], 5 * JACOBIAN[3] / P[3], rtol=1e-12)


@pytest.mark.expensive_compile
def test_no_gradient_goes_to_the_baseline():
    dist = cj.Catnat(jnp.asarray(SCORES))
    assert jax.grad(lambda b: cj.estimators.score_function(cost, dist, baseline=b, key=KEY))(1.0) == 0
    average = cj.estimators.MovingAverage().update(jnp.ones(2))
    slopes = jax.grad(lambda b: cj.estimators.score_function(cost, dist, baseline=b, key=KEY))(average)
    assert slopes.total == slopes.weight == 0


def test_the_score_function_reaches_the_parameters_of_f():
    """The pathwise part: over all draws, its mean is the gradient of the expected cost in f's own table."""
    draws, probabilities = all_tuples(2)
    dist = Drawn(cj.Catnat(repeated(draws.shape[1])), draws)

    def mean(table):
        values = cj.estimators.score_function(
            lambda k: table[k] ** 2, dist, num_samples=2, baseline="leave-one-out", key=KEY
        )
        return values @ jnp.asarray(probabilities)

    np.testing.assert_allclose(jax.grad(mean)(jnp.asarray(COSTS)), 2 * P * COSTS, rtol=1e-12)


def test_several_variables_have_one_cost():
    """Two five-class variables with one cost for the pair: all 25 outcomes, against the definition."""
    pairs = jnp.array(list(itertools.product(range(K), repeat=2)))
    table = np.linspace(-1, 2, K * K).reshape(K, K) ** 2
    probabilities = P[pairs[:, 0]] * P[pairs[:, 1]]

    def estimate(scores):
        dist = cj.MultiCatnat(scores, [K, K])
        return cj.estimators.score_function(
            lambda k: jnp.asarray(table)[k[..., 0], k[..., 1]], Pairs(dist, pairs[None]), baseline=0.3, key=KEY
        )

    _, gradients = with_gradients(estimate, jnp.tile(repeated(len(pairs)), (1, 2)))
    got = probabilities @ gradients
    np.testing.assert_allclose(got[: K - 1], JACOBIAN.T @ (table @ P), atol=1e-12)
    np.testing.assert_allclose(got[K - 1 :], JACOBIAN.T @ (table.T @ P), atol=1e-12)


class Pairs(Drawn):
    """Draws of several variables are vectors of classes, not one-hot vectors."""

    def sample(self, _, *, key):
        del key
        return self.draws


# ---- the moving average ----


def test_the_moving_average_is_the_stated_one():
    costs = np.random.default_rng(0).normal(size=(12, 3))
    for decay in (0.0, 0.5, 0.9, 0.99):
        baseline = cj.estimators.MovingAverage(decay)
        for t, now in enumerate(costs):
            weights = [decay ** (j - 1) for j in range(1, t + 1)]
            past = [costs[t - j].mean() for j in range(1, t + 1)]
            wanted = sum(w * c for w, c in zip(weights, past, strict=True)) / sum(weights) if t else 0.0
            assert math.isclose(float(baseline.value), wanted, rel_tol=1e-12, abs_tol=1e-14)
            baseline = baseline.update(jnp.asarray(now))


@pytest.mark.expensive_compile
def test_the_moving_average_is_carried_along():
    """As a pytree, through scan; updated with the mean cost that the estimator returns."""
    scores = repeated(4)

    def step(baseline, key):
        value, slope = jax.value_and_grad(
            lambda s: cj.estimators.score_function(
                lambda k: jnp.full(k.shape, 3.0), cj.Catnat(s), num_samples=2, baseline=baseline, key=key
            ).mean()
        )(scores)
        return baseline.update(value), slope

    start = cj.estimators.MovingAverage(0.9)
    end, slopes = jax.jit(lambda start: jax.lax.scan(step, start, jax.random.split(KEY, 3)))(start)
    np.testing.assert_allclose(end.value, 3.0)
    assert isinstance(end, cj.estimators.MovingAverage)
    assert end.decay == 0.9
    assert np.abs(slopes[0]).max() > 0.1
    np.testing.assert_allclose(slopes[1:], np.zeros((2, 4, K - 1)), atol=1e-12)  # the baseline is the cost
    np.testing.assert_allclose(jax.grad(lambda c: start.update(c * jnp.ones(2)).value)(1.0), 0)
    assert end.total.dtype == start.total.dtype
    assert start.update(jnp.ones(3, jnp.float16)).total.dtype == start.total.dtype


# ---- unordered_set: no bias, by listing all sets ----


@every_distribution
@pytest.mark.parametrize("size", range(1, K + 1))
def test_sets_are_unbiased(name, size, monkeypatch):
    values, gradients, probabilities = outcomes_of_unordered_set(name, size, monkeypatch)
    assert math.isclose(probabilities.sum(), 1, rel_tol=1e-12)
    np.testing.assert_allclose(probabilities @ values, VALUE, atol=1e-12)
    np.testing.assert_allclose(probabilities @ gradients, GRADIENT, atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_set_gives_the_papers_estimate(size, monkeypatch):
    values, gradients, _ = outcomes_of_unordered_set("Catnat", size, monkeypatch)
    for members, value, got in zip(all_sets(size), values, gradients, strict=True):
        wanted, weights = set_estimate(members)
        np.testing.assert_allclose(value, wanted, rtol=1e-11)
        np.testing.assert_allclose(got, weights @ JACOBIAN, rtol=1e-10, atol=1e-12)


@pytest.mark.expensive_compile
@every_distribution
def test_sets_are_drawn_without_replacement(name):
    seen = []
    cj.estimators.unordered_set(
        lambda values: seen.append(classes_of(values)) or cost(values),
        DISTRIBUTIONS[name](repeated(20_000)),
        3,
        key=KEY,
    )
    counts = dict.fromkeys(all_sets(3), 0)
    for row in np.sort(np.asarray(seen[0]).T, -1).tolist():
        counts[tuple(row)] += 1  # a repeated class would be a KeyError
    checks.chi_square(counts, all_sets(3))


@pytest.mark.expensive_compile
@pytest.mark.parametrize("classes", [2, 8])
def test_the_whole_set_has_no_variance(classes):
    scores = jnp.asarray(np.random.default_rng(0).normal(size=(50, classes - 1))) / 2
    table = jnp.linspace(-1, 2, classes) ** 3
    got, got_slope = with_gradients(
        lambda s: cj.estimators.unordered_set(lambda k: table[k], cj.Catnat(s), classes, key=KEY), scores
    )
    wanted, wanted_slope = with_gradients(
        lambda s: cj.estimators.enumerate_exactly(lambda k: table[k], cj.Catnat(s)), scores
    )
    np.testing.assert_allclose(got, wanted, rtol=1e-10)
    np.testing.assert_allclose(got_slope, wanted_slope, rtol=1e-9, atol=1e-12)


@pytest.mark.expensive_compile
def test_one_certain_class_and_a_tiny_rest():
    """1 - p(S) would be all rounding here; the rest is summed instead."""
    p = jnp.full(10, 1e-9, jnp.float32).at[3].set(1 - 9e-9)
    dist = Plain(jnp.broadcast_to(p, (3000, 10)))
    values = cj.estimators.unordered_set(lambda k: (k != 3).astype(jnp.float32), dist, 2, key=KEY)
    np.testing.assert_allclose(values, np.full(3000, 9e-9), rtol=1e-5)


# ---- variance, exactly ----


@pytest.mark.expensive_compile
def test_variances(monkeypatch):
    """A baseline lowers it; so do several draws; at the same number of costs, sets have less than leave-one-out."""
    single = total_variance(*outcomes_of_score_function("Catnat", 1, None)[1:])
    assert total_variance(*outcomes_of_score_function("Catnat", 1, VALUE)[1:]) < 0.7 * single
    previous = math.inf
    for count in (2, 3, 4):
        plain, paired = (
            total_variance(*outcomes_of_score_function("Catnat", count, b)[1:]) for b in (None, "leave-one-out")
        )
        np.testing.assert_allclose(plain, single / count, rtol=1e-10)  # the draws are independent
        distinct = total_variance(*outcomes_of_unordered_set("Catnat", count, monkeypatch)[1:])
        assert distinct < paired < plain
        assert distinct < previous
        previous = distinct
    assert total_variance(*outcomes_of_unordered_set("Catnat", K, monkeypatch)[1:]) < 1e-20


# ---- bias and no bias, by drawing ----

REPEATS = 20_000
MANY = {
    "score_function": lambda dist, key: cj.estimators.score_function(cost, dist, key=key),
    "score_function-2": lambda dist, key: cj.estimators.score_function(
        cost, dist, num_samples=2, baseline="leave-one-out", key=key
    ),
    "unordered_set-2": lambda dist, key: cj.estimators.unordered_set(cost, dist, 2, key=key),
    "unordered_set-4": lambda dist, key: cj.estimators.unordered_set(cost, dist, 4, key=key),
    "straight_through": lambda dist, key: (
        cj.estimators.straight_through(dist, key=key) @ jnp.asarray(COSTS)
    ),  # a linear cost
}


@every_distribution
@pytest.mark.parametrize("estimator", MANY)
def test_drawn_gradients_are_unbiased(name, estimator):
    value, slope = with_gradients(
        lambda s: MANY[estimator](DISTRIBUTIONS[name](s), jax.random.key(2)), repeated(REPEATS)
    )
    assert is_mean(slope, GRADIENT)
    assert is_mean(value[:, None], np.array([VALUE]))


@pytest.mark.slow
def test_estimates_under_vmap():
    """One key a row: rows are independent, and what is unbiased stays so."""
    keys = jax.random.split(jax.random.key(3), REPEATS)
    for name, estimate in MANY.items():
        if name == "score_function":
            continue
        slopes = jax.vmap(jax.grad(lambda s, k, e=estimate: e(cj.Catnat(s), k)))(repeated(REPEATS), keys)
        assert is_mean(np.asarray(slopes), GRADIENT), name


def bent(hot: jax.Array) -> jax.Array:
    """Not linear in the one-hot vector; at its corners it is the cost."""
    return (hot @ jnp.asarray(COSTS)) ** 2 / 4


BENT_GRADIENT = COSTS**2 / 4 @ JACOBIAN


@pytest.mark.expensive_compile
def test_the_biased_are_biased():
    """Measurably so on a bent cost. The mean of straight-through is that of f'(onehot k) times the gradient of p."""
    key, scores = jax.random.key(4), repeated(REPEATS)
    for draw in (
        lambda dist: cj.estimators.straight_through(dist, key=key),
        lambda dist: cj.estimators.gumbel_softmax(dist, 1.0, key=key),
        lambda dist: cj.estimators.gumbel_softmax(dist, 1.0, hard=True, key=key),
    ):
        _, got = with_gradients(lambda s, draw=draw: bent(draw(cj.Catnat(s))), scores)
        assert not is_mean(got, BENT_GRADIENT)
        assert np.abs(got.mean(0) - BENT_GRADIENT).max() > 0.1
    _, got = with_gradients(lambda s: bent(cj.estimators.straight_through(cj.Catnat(s), key=key)), scores)
    slopes = COSTS[:, None] / 2 * COSTS  # of bent at every corner
    assert is_mean(got, P @ slopes @ JACOBIAN)


@pytest.mark.expensive_compile
def test_a_lower_temperature_has_less_bias_and_more_variance():
    bias, spread = [], []
    for temperature in (2.0, 1.0, 0.3):
        _, got = with_gradients(
            lambda s, t=temperature: bent(cj.estimators.gumbel_softmax(cj.Catnat(s), t, key=jax.random.key(5))),
            repeated(REPEATS),
        )
        bias.append(np.linalg.norm(got.mean(0) - BENT_GRADIENT))
        spread.append(got.var(0).sum())
    assert bias[0] > 1.3 * bias[1] > 1.3 * 1.3 * bias[2]
    assert spread[0] < spread[1] < spread[2]


@pytest.mark.expensive_compile
@pytest.mark.parametrize(
    "changes",
    [
        {"mask": np.array([True, True, False, True, True])},
        {"mask": np.array([False, True, True, False, True]), "mask_mode": "renormalize"},
        {"unimix": 0.3},
        {"mask": np.array([True, False, True, True, True]), "unimix": 0.1, "temperature": 2.0},
    ],
    ids=str,
)
def test_masks_temperature_and_unimix_are_estimated_like_any_other(changes):
    wanted = with_gradients(lambda s: cj.Catnat(s, **changes).probs @ jnp.asarray(COSTS), repeated(1))[1][0]
    for estimate in (
        lambda dist: cj.estimators.enumerate_exactly(cost, dist),
        lambda dist: cj.estimators.unordered_set(cost, dist, K, key=KEY),
    ):
        got = with_gradients(lambda s, e=estimate: e(cj.OneHotCatnat(s, **changes)), repeated(1))[1][0]
        np.testing.assert_allclose(got, wanted, atol=1e-10)
    for estimate in MANY.values():
        _, got = with_gradients(lambda s, e=estimate: e(cj.Catnat(s, **changes), jax.random.key(6)), repeated(REPEATS))
        assert is_mean(got, wanted)
    dist = cj.Catnat(repeated(REPEATS), **changes)
    chi_square(cj.estimators.gumbel_softmax(dist, 0.5, hard=True, key=KEY).argmax(-1), dist.probs[0])


# ---- relaxed and one-hot draws ----


@every_distribution
def test_the_largest_entry_has_the_probabilities(name):
    dist = DISTRIBUTIONS[name](jnp.asarray(SCORES))
    soft = cj.estimators.gumbel_softmax(dist, 0.7, sample_shape=(20_000,), key=KEY)
    np.testing.assert_allclose(soft.sum(-1), np.ones(20_000), rtol=1e-12)
    chi_square(soft.argmax(-1), P)
    hard = cj.estimators.gumbel_softmax(dist, 0.7, hard=True, sample_shape=(20_000,), key=KEY)
    np.testing.assert_array_equal(hard, np.eye(K)[np.asarray(soft.argmax(-1))])
    chi_square(cj.estimators.straight_through(dist, sample_shape=(20_000,), key=KEY).argmax(-1), P)


def test_it_is_the_relaxed_distribution():
    relaxed = cj.RelaxedOneHotCatnat(0.7, jnp.asarray(SCORES)).rsample((4, 3), key=KEY)
    got = cj.estimators.gumbel_softmax(cj.Catnat(jnp.asarray(SCORES)), 0.7, sample_shape=(4, 3), key=KEY)
    np.testing.assert_allclose(got, relaxed, rtol=1e-12)


def test_straight_through_is_what_the_distribution_does():
    got, wanted = (
        with_gradients(lambda s, d=draw: bent(d(cj.OneHotCatnatStraightThrough(s))), repeated(6))
        for draw in (lambda dist: cj.estimators.straight_through(dist, key=KEY), lambda dist: dist.rsample(key=KEY))
    )
    np.testing.assert_array_equal(got[0], wanted[0])
    np.testing.assert_array_equal(got[1], wanted[1])


@pytest.mark.expensive_compile
def test_gradients_of_the_relaxed_draw():
    """The relaxed draw is a smooth function of scores and temperature; hard draws have the same gradient."""
    temperature, slope = jnp.array([[0.5], [1.5]]), jnp.linspace(-1, 2, 2 * K).reshape(2, K)

    def loss(scores, temperature, hard=False):
        return (cj.estimators.gumbel_softmax(cj.Catnat(scores), temperature, hard=hard, key=KEY) * slope).sum()

    soft, hard = (jax.grad(loss, argnums=(0, 1))(repeated(2), temperature, hard) for hard in (False, True))
    for one, other in zip(soft, hard, strict=True):
        np.testing.assert_array_equal(one, other)
    for place, at in enumerate((repeated(2), temperature)):
        direction = jnp.asarray(np.random.default_rng(place).normal(size=at.shape))

        def moved(step, place=place, direction=direction):
            arguments = [repeated(2), temperature]
            arguments[place] = arguments[place] + step * direction
            return loss(*arguments)

        np.testing.assert_allclose((soft[place] * direction).sum(), (moved(1e-6) - moved(-1e-6)) / 2e-6, rtol=1e-6)


def test_one_temperature_per_row():
    dist, temperature = cj.Catnat(repeated(2)), jnp.array([[0.2], [3.0]])
    got = cj.estimators.gumbel_softmax(dist, temperature, key=KEY)
    for row, t in enumerate((0.2, 3.0)):
        np.testing.assert_allclose(got[row], cj.estimators.gumbel_softmax(dist, t, key=KEY)[row], rtol=1e-6, atol=1e-12)


def shape_of(function, *args, **options):
    """By tracing alone: nothing is compiled."""
    return jax.eval_shape(lambda: function(*args, **options)).shape


def test_shapes():
    for kind in (cj.Catnat, cj.OneHotCatnat):
        for batch in ((), (2, 3), (0,)):
            dist = kind(repeated(*batch))
            for shape in ((), (4,), (2, 0)):
                drawn = (*shape, *batch, K)
                assert shape_of(cj.estimators.gumbel_softmax, dist, 0.5, sample_shape=shape, key=KEY) == drawn
                assert shape_of(cj.estimators.sample_counts, dist, 3, sample_shape=shape, key=KEY) == drawn
                assert shape_of(cj.estimators.straight_through, dist, sample_shape=shape, key=KEY) == drawn
            assert shape_of(cj.estimators.enumerate_exactly, cost, dist) == batch
            assert shape_of(cj.estimators.unordered_set, cost, dist, 2, key=KEY) == batch
            assert shape_of(cj.estimators.score_function, cost, dist, num_samples=2, key=KEY) == batch


# ---- sample_counts ----


@pytest.mark.expensive_compile
@every_distribution
def test_counts_are_multinomial(name):
    counts = cj.estimators.sample_counts(DISTRIBUTIONS[name](jnp.asarray(SCORES)), 3, sample_shape=(20_000,), key=KEY)
    assert jnp.issubdtype(counts.dtype, jnp.integer)
    assert_multinomial(counts.tolist())


@pytest.mark.parametrize("count", [40, 5000])
def test_every_count_is_binomial(count):
    """Small and large expected counts: JAX draws them by different algorithms."""
    counts = cj.estimators.sample_counts(cj.Catnat(jnp.asarray(SCORES)), count, sample_shape=(20_000,), key=KEY)
    for k in range(K):
        dist = stats.binom.pmf(np.arange(count + 1), count, P[k])
        checks.chi_square(np.bincount(counts[:, k], minlength=count + 1).tolist(), dist.tolist())


@pytest.mark.parametrize("classes", [1, 2, 7, pytest.param(100, marks=pytest.mark.slow)])
def test_counts_have_the_right_mean_and_covariance(classes):
    dist = cj.Catnat(jnp.asarray(np.random.default_rng(1).normal(size=classes - 1)) / 2)
    p, count, repeats = np.asarray(dist.probs), 1000, 4000
    counts = np.asarray(cj.estimators.sample_counts(dist, count, sample_shape=(repeats,), key=KEY))
    assert (counts.sum(-1) == count).all()
    assert (counts >= 0).all()
    centred = counts - count * p
    assert is_mean(centred, np.zeros(classes))
    assert is_mean(centred[:, :, None] * centred[:, None, :], count * (np.diag(p) - np.outer(p, p)))


@pytest.mark.expensive_compile
def test_counts_of_very_many_draws():
    for count in (10**9, 2**53):
        counts = np.asarray(
            cj.estimators.sample_counts(cj.Catnat(jnp.asarray(SCORES)), count, sample_shape=(2000,), key=KEY)
        )
        assert (counts.sum(-1) == count).all()
        standard = (counts - count * P) / np.sqrt(count * P * (1 - P))
        assert is_mean(standard, np.zeros(K))
        assert is_mean(standard**2, np.ones(K))


@pytest.mark.expensive_compile
def test_a_count_per_row():
    totals, dist = jnp.array([[0], [7], [10**6]]), cj.Catnat(repeated(3, 4))
    counts = cj.estimators.sample_counts(dist, totals, sample_shape=(5,), key=KEY)
    np.testing.assert_array_equal(counts.sum(-1), np.broadcast_to(totals, (5, 3, 4)))
    again = jax.jit(lambda n: cj.estimators.sample_counts(dist, n, sample_shape=(5,), key=KEY))(totals)
    np.testing.assert_array_equal(again, counts)


@pytest.mark.expensive_compile
def test_impossible_classes_are_never_counted():
    for p in ([0.0, 0.5, 0.0, 0.0, 0.5, 0.0], [0, 0, 1.0], [1.0, 0, 0], [0.3, 0.0, 0.7]):
        counts = cj.estimators.sample_counts(Plain(jnp.array(p)), 10**6, sample_shape=(100,), key=KEY)
        np.testing.assert_array_equal(counts > 0, np.tile(np.array(p) > 0, (100, 1)))


@pytest.mark.slow
def test_without_x64():
    code = """
import jax, jax.numpy as jnp, numpy as np, pytest, catnat.jax as cj
distribution, key = cj.Catnat(np.zeros((40, 6))), jax.random.key(0)
counts = cj.estimators.sample_counts(distribution, 2**20, key=key)
assert counts.dtype == jnp.int32 and (counts.sum(-1) == 2**20).all()
assert abs(counts / 2**20 - 1 / 7).max() < 0.003
with pytest.raises(ValueError, match=r"2\\^20 is needed. jax.config"):
    cj.estimators.sample_counts(distribution, 2**20 + 1, key=key)
for value in (
    cj.estimators.score_function(lambda k: k, distribution, key=key),
    cj.estimators.unordered_set(lambda k: k, distribution, 3, key=key),
    cj.estimators.enumerate_exactly(lambda k: k, distribution),
    cj.estimators.gumbel_softmax(distribution, 0.5, key=key),
    cj.scores_from_probs(distribution.probs),
    cj.geometry.natural_gradient(np.zeros(3)),
    cj.geometry.kl_step(np.zeros((2, 3)), np.ones((2, 3)), np.array([0.1, 0.2])),
    cj.estimators.MovingAverage().update(np.ones(3)).value,
    cj.ScoreLayer(3, 4, key=key).weight,
):
    assert value.dtype == jnp.float32, value.dtype
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ---- impossible classes ----

# The root goes right and the last node goes left, both for certain: classes 0 to 3 and 7 are impossible.
CLOSED = np.array([50.0, 0.3, 0.2, 0.1, 0.5, -0.4, -60.0])
MASK = np.array([0, 1, 0, 0, 1, 1, 0, 1], bool)
CLOSED_DISTRIBUTIONS: dict[str, tuple[Callable[[Any], Any], np.ndarray]] = {
    "Catnat": (cj.Catnat, CLOSED),
    "OneHotCatnat": (cj.OneHotCatnat, CLOSED),
    "masked": (lambda s: cj.Catnat(s, mask=MASK), np.zeros(7)),
    "masked-one-hot": (lambda s: cj.OneHotCatnat(s, mask=MASK), np.zeros(7)),
}
every_closed_distribution = pytest.mark.parametrize("name", CLOSED_DISTRIBUTIONS)


@pytest.mark.expensive_compile
@every_closed_distribution
def test_the_impossible_is_never_drawn(name):
    build, scores = CLOSED_DISTRIBUTIONS[name]
    dist = build(jnp.broadcast_to(jnp.asarray(scores), (30, 7)))
    zero = np.asarray(dist.probs[0] == 0)
    assert 0 < zero.sum() < 8
    for temperature, hard in ((1e-4, False), (0.5, True), (100.0, False)):
        drawn = cj.estimators.gumbel_softmax(dist, temperature, hard=hard, sample_shape=(200,), key=KEY)
        assert (drawn[..., zero] == 0).all()
    assert (cj.estimators.straight_through(dist, sample_shape=(200,), key=KEY)[..., zero] == 0).all()
    assert (cj.estimators.sample_counts(dist, 10**6, key=KEY)[..., zero] == 0).all()

    def watch(values):
        classes = classes_of(values)
        assert not zero[np.asarray(classes)].any()
        return classes.astype(float)

    cj.estimators.score_function(watch, dist, num_samples=200, key=KEY)
    cj.estimators.enumerate_exactly(watch, dist)
    for k in (1, 3):
        cj.estimators.unordered_set(watch, dist, k, key=KEY)


@pytest.mark.expensive_compile
@every_closed_distribution
def test_evaluating_only_possible_classes_keeps_f_differentiable(name):
    """f is log of a parameter that is 0 for impossible classes: there its gradient would be 0 times infinity."""
    build, scores = CLOSED_DISTRIBUTIONS[name]
    scores = jnp.broadcast_to(jnp.asarray(scores), (30, 7))
    probabilities = np.asarray(build(scores).probs[0])
    for estimate in (
        cj.estimators.enumerate_exactly,
        lambda f, dist: cj.estimators.unordered_set(f, dist, 8, key=KEY),
        lambda f, dist: cj.estimators.unordered_set(f, dist, 6, key=KEY),
    ):

        @jax.jit
        def total(scores, size, estimate=estimate):
            return estimate(lambda values: jnp.log(2 * size[classes_of(values)]), build(scores)).sum()

        size = jnp.asarray((probabilities > 0).astype(float))
        value, (to_distribution, to_size) = jax.value_and_grad(total, argnums=(0, 1))(scores, size)
        np.testing.assert_allclose(value, 30 * math.log(2), rtol=1e-10)
        np.testing.assert_allclose(to_size, 30 * probabilities, rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(to_distribution, np.zeros((30, 7)), atol=1e-6)


@pytest.mark.expensive_compile
@every_closed_distribution
def test_more_members_than_possible_classes_are_exact(name):
    build, scores = CLOSED_DISTRIBUTIONS[name]
    scores = jnp.broadcast_to(jnp.asarray(scores), (30, 7))

    def squares(values):
        return classes_of(values) ** 2.0

    wanted = with_gradients(lambda s: cj.estimators.enumerate_exactly(squares, build(s)), scores)
    for k in (5, 8):
        got = with_gradients(lambda s, k=k: cj.estimators.unordered_set(squares, build(s), k, key=KEY), scores)
        np.testing.assert_allclose(got[0], wanted[0], rtol=1e-10)
        np.testing.assert_allclose(got[1], wanted[1], rtol=1e-8, atol=1e-10)


# ---- no NaN ----


def hostile(dtype: Any) -> jax.Array:
    largest = 1e30 if dtype != jnp.float16 else 6e4
    special = np.array([0.0, 1e-30, 3.14159, -3.14159, 3.1416, 50.0, -50.0, largest, -largest, 1.0])
    return jnp.asarray(np.random.default_rng(0).choice(special, (60, 6))).astype(dtype)


HOSTILE = {
    "gumbel_softmax": lambda dist, c: cj.estimators.gumbel_softmax(dist, 0.5, key=KEY) @ c,
    "gumbel_softmax-cold": lambda dist, c: cj.estimators.gumbel_softmax(dist, 1e-4, key=KEY) @ c,
    "gumbel_softmax-frozen": lambda dist, c: cj.estimators.gumbel_softmax(dist, 1e-50, key=KEY) @ c,
    "gumbel_softmax-hot": lambda dist, c: cj.estimators.gumbel_softmax(dist, 1e30, key=KEY) @ c,
    "straight_through": lambda dist, c: cj.estimators.straight_through(dist, key=KEY) @ c,
    "score_function": lambda dist, c: cj.estimators.score_function(
        lambda v: c[classes_of(v)], dist, num_samples=3, baseline="leave-one-out", key=KEY
    ),
    "unordered_set": lambda dist, c: cj.estimators.unordered_set(lambda v: c[classes_of(v)], dist, 3, key=KEY),
    "unordered_set-all": lambda dist, c: cj.estimators.unordered_set(lambda v: c[classes_of(v)], dist, 7, key=KEY),
    "enumerate_exactly": lambda dist, c: cj.estimators.enumerate_exactly(lambda v: c[classes_of(v)], dist),
}


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64], ids=lambda d: d.__name__)
@pytest.mark.parametrize("activation", ["natural", "sigmoid"])
@pytest.mark.parametrize("name", HOSTILE)
def test_no_nan_for_any_scores(name, activation, dtype):
    """Cold, half, and enormous; second derivatives too, but for half precision, which has no forward mode."""
    costs, estimate = jnp.linspace(-1, 2, 7).astype(dtype), HOSTILE[name]

    @jax.jit
    def derivatives(scores):
        def total(s):
            return estimate(cj.Catnat(s, None, activation), costs).sum()

        value, first = estimate(cj.Catnat(scores, None, activation), costs), jax.grad(total)(scores)
        if dtype == jnp.float16:
            return value, first
        return value, first, jax.jvp(jax.grad(total), (scores,), (jnp.ones_like(scores),))[1]

    found = derivatives(hostile(dtype))
    assert found[0].dtype == dtype
    for order, values in enumerate(found):
        assert jnp.isfinite(values).all(), order


@pytest.mark.expensive_compile
@pytest.mark.parametrize("temperature", [1e-36, 1e-18, 1e-4, 1.0])
def test_no_nan_in_the_gradient_of_a_temperature(temperature):
    dist = cj.Catnat(hostile(jnp.float32))
    slope = jax.grad(lambda t: (cj.estimators.gumbel_softmax(dist, t, key=KEY) @ jnp.linspace(-1, 2, 7)).sum())
    assert jnp.isfinite(slope(jnp.float32(temperature)))


@pytest.mark.expensive_compile
def test_large_costs_in_half_precision():
    """Sums and differences of costs leave half precision's range long before the costs do."""
    dist = cj.Catnat(jnp.zeros((4, 3), jnp.float16))

    def huge(k):
        return jnp.full(k.shape, 6e4, jnp.float16)

    for value in (
        cj.estimators.score_function(huge, dist, num_samples=8, key=KEY),
        cj.estimators.enumerate_exactly(huge, dist),
        cj.estimators.unordered_set(huge, dist, 4, key=KEY),
    ):
        np.testing.assert_array_equal(value, np.full(4, 6e4, np.float16))


@pytest.mark.slow
def test_dtypes_of_results():
    half, single = (cj.Catnat(jnp.zeros((3, 3), dtype)) for dtype in (jnp.float16, jnp.float32))
    for estimate in (
        cj.estimators.enumerate_exactly,
        lambda f, dist: cj.estimators.score_function(f, dist, key=KEY),
        lambda f, dist: cj.estimators.unordered_set(f, dist, 2, key=KEY),
    ):
        assert estimate(lambda k: k.astype(jnp.float16), half).dtype == jnp.float16
        assert estimate(lambda k: k.astype(jnp.float32), half).dtype == jnp.float32
        assert estimate(lambda k: k.astype(jnp.float64), single).dtype == jnp.float64
        assert estimate(lambda k: k, single).dtype == jnp.float32  # integers, and even booleans, are costs
        assert estimate(lambda k: k == 2, single).dtype == jnp.float32
    assert (
        cj.estimators.gumbel_softmax(half, 0.5, key=KEY).dtype
        == cj.estimators.straight_through(half, key=KEY).dtype
        == jnp.float16
    )
    assert cj.estimators.gumbel_softmax(half, 0.5, hard=True, key=KEY).dtype == jnp.float16


# ---- keys ----

RANDOM = {
    "gumbel_softmax": lambda dist, key: cj.estimators.gumbel_softmax(dist, 0.5, key=key),
    "straight_through": lambda dist, key: cj.estimators.straight_through(dist, key=key),
    "score_function": lambda dist, key: cj.estimators.score_function(cost, dist, num_samples=2, key=key),
    "unordered_set": lambda dist, key: cj.estimators.unordered_set(cost, dist, 2, key=key),
    "sample_counts": lambda dist, key: cj.estimators.sample_counts(dist, 1000, key=key),
}


@pytest.mark.slow
@pytest.mark.parametrize("function", RANDOM)
def test_a_key_decides_everything(function):
    dist = cj.Catnat(repeated(50))
    first, other = (RANDOM[function](dist, jax.random.key(seed)) for seed in (5, 6))
    assert not np.array_equal(first, other)
    for key in (jax.random.key(5), jax.random.PRNGKey(5)):  # old keys too, as jax.random takes them
        np.testing.assert_array_equal(RANDOM[function](dist, key), first)
    compiled = jax.jit(RANDOM[function])(dist, jax.random.key(5))
    np.testing.assert_allclose(compiled, first, rtol=1e-12)


# ---- errors ----


def test_what_is_not_categorical():
    dists = {
        "RelaxedOneHotCatnat": cj.RelaxedOneHotCatnat(0.5, jnp.asarray(SCORES)),
        "MultiCatnat": cj.MultiCatnat(repeated(2), [2, 4]),
        "int": 3,
    }
    for name, dist in dists.items():
        for estimate in (
            lambda dist: cj.estimators.gumbel_softmax(dist, 0.5, key=KEY),
            lambda dist: cj.estimators.straight_through(dist, key=KEY),
            lambda dist: cj.estimators.unordered_set(cost, dist, 2, key=KEY),
            lambda dist: cj.estimators.enumerate_exactly(cost, dist),
            lambda dist: cj.estimators.sample_counts(dist, 5, key=KEY),
        ):
            with pytest.raises(TypeError, match=f"`distribution` is a {name}"):
                estimate(dist)


@pytest.mark.parametrize("temperature", [0, -1.0, math.nan, math.inf, jnp.array(0.0), jnp.array([[1.0], [-1.0]])])
def test_bad_temperatures(temperature):
    with pytest.raises(ValueError, match="`temperature` is"):
        cj.estimators.gumbel_softmax(cj.Catnat(repeated(2)), temperature, key=KEY)


def test_bad_baselines():
    def estimate(**how):
        return cj.estimators.score_function(cost, cj.Catnat(repeated(3)), key=KEY, **how)

    with pytest.raises(ValueError, match="num_samples=2 or more"):
        estimate(baseline="leave-one-out")
    with pytest.raises(ValueError, match="'loo'"):
        estimate(baseline="loo")
    with pytest.raises(TypeError, match="list"):
        estimate(baseline=[1.0])
    with pytest.raises(ValueError, match=r"\(2,\).*\(1, 3\)"):
        estimate(baseline=jnp.zeros(2))
    with pytest.raises(ValueError, match=r"\(4, 3\)"):  # it would broadcast, and enlarge the costs
        estimate(baseline=jnp.zeros((4, 3)))
    with pytest.raises(ValueError, match="at least 1"):
        estimate(num_samples=0)
    for decay in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match="`decay`"):
            cj.estimators.MovingAverage(decay)


def test_bad_costs():
    dist = cj.Catnat(repeated(3))
    estimates = (
        lambda f: cj.estimators.score_function(f, dist, num_samples=4, key=KEY),
        lambda f: cj.estimators.unordered_set(f, dist, 4, key=KEY),
        lambda f: cj.estimators.enumerate_exactly(f, dist),
    )
    assert_refuses_bad_costs(estimates, cost)


@pytest.mark.parametrize("k", [0, -1, 6])
def test_bad_set_sizes(k):
    with pytest.raises(ValueError, match=f"`k` is {k}, but 1 to 5"):
        cj.estimators.unordered_set(cost, cj.Catnat(jnp.asarray(SCORES)), k, key=KEY)
    with pytest.raises(ValueError, match=r"2\^k"):
        cj.estimators.unordered_set(cost, cj.Catnat(jnp.zeros(20)), 9, key=KEY)


def test_bad_counts():
    dist = cj.Catnat(repeated(3))
    for bad in (-1, 2**53 + 1, jnp.array([1, 2, -3])):
        with pytest.raises(ValueError, match=r"from 0 to 2\^53"):
            cj.estimators.sample_counts(dist, bad, key=KEY)
    with pytest.raises(ValueError, match="batch shape"):
        cj.estimators.sample_counts(dist, jnp.array([1, 2]), key=KEY)
    for bad in (2.0, True, jnp.array(2.0)):
        with pytest.raises(TypeError, match="integer"):
            cj.estimators.sample_counts(dist, bad, key=KEY)
