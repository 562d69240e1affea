"""What only JAX has of the gradient estimators: pytrees, keys, transforms, its precisions."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimation import (
    COMPUTED,
    COSTS,
    GRADIENT,
    JACOBIAN,
    SCORES,
    UNBIASED,
    Cost,
    Drawn,
    K,
    P,
    all_tuples,
    hostile,
    is_mean,
    repeated,
)
from only_jax.processes import python

import catnat.jax as cj

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")

KEY = jax.random.key(0)
REPEATS = 20_000
cost = Cost(jnp.asarray(COSTS))


def with_gradients(estimate: Any, scores: Any) -> tuple[np.ndarray, np.ndarray]:
    """The value, and one gradient per row, where rows do not share anything."""
    value, pull = jax.vjp(jax.jit(estimate), jnp.asarray(scores))
    return np.asarray(value), np.asarray(pull(jnp.ones_like(value))[0])


# ---- several variables ----


def test_several_variables_have_one_cost():
    """Two five-class variables with one cost for the pair: all 25 outcomes, against the definition."""
    pairs = jnp.array(list(itertools.product(range(K), repeat=2)))
    table = np.linspace(-1, 2, K * K).reshape(K, K) ** 2
    probabilities = P[pairs[:, 0]] * P[pairs[:, 1]]

    def estimate(scores):
        dist = cj.MultiCatnat(scores, [K, K])
        return cj.estimators.score_function(
            lambda k: jnp.asarray(table)[k[..., 0], k[..., 1]], Drawn(dist, pairs[None]), baseline=0.3, key=KEY
        )

    _, gradients = with_gradients(estimate, np.tile(repeated(len(pairs)), (1, 2)))
    got = probabilities @ gradients
    np.testing.assert_allclose(got[: K - 1], JACOBIAN.T @ (table @ P), atol=1e-12)
    np.testing.assert_allclose(got[K - 1 :], JACOBIAN.T @ (table.T @ P), atol=1e-12)


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


def test_a_batch_without_costs_leaves_the_moving_average():
    average = cj.estimators.MovingAverage().update(jnp.zeros(0)).update(jnp.ones(3)).update(jnp.zeros(0))
    np.testing.assert_allclose(average.value, 1, rtol=1e-6)


def test_a_moving_average_is_a_baseline():
    """Without bias, as any that does not know the present costs, and it gets no gradient."""
    average = cj.estimators.MovingAverage().update(jnp.array([2.0, 3.0]))
    draws, probabilities = all_tuples(1)
    values, gradients = with_gradients(
        lambda s: cj.estimators.score_function(
            cost, Drawn(cj.Catnat(s), jnp.asarray(draws)), baseline=average, key=KEY
        ),
        repeated(K),
    )
    np.testing.assert_allclose(values, COSTS)
    np.testing.assert_allclose(probabilities @ gradients, GRADIENT, atol=1e-12)
    dist = cj.Catnat(jnp.asarray(SCORES))
    slopes = jax.grad(lambda b: cj.estimators.score_function(cost, dist, baseline=b, key=KEY))(average)
    assert slopes.total == slopes.weight == 0


@pytest.mark.expensive_compile
def test_the_moving_average_is_carried_along():
    """As a pytree, through scan; updated with the mean cost that the estimator returns."""
    scores = jnp.asarray(repeated(4))

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


# ---- transforms and keys ----


@pytest.mark.slow
def test_estimates_under_vmap():
    """One key a row: rows are independent, and what is unbiased stays so."""
    keys = jax.random.split(jax.random.key(3), REPEATS)
    for name, estimate in UNBIASED.items():
        if name == "score_function":
            continue

        def of_a_row(scores, key, estimate=estimate):
            return estimate(cj.estimators, cost, cj.Catnat(scores), {"key": key})

        slopes = jax.vmap(jax.grad(of_a_row))(jnp.asarray(repeated(REPEATS)), keys)
        assert is_mean(np.asarray(slopes), GRADIENT), name


@pytest.mark.slow
def test_counts_inside_shard_map():
    """As documented: without the check that jax.random.binomial fails."""
    rows, keys = jnp.asarray(repeated(3)), jax.random.split(KEY, 3)
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    counts = jax.vmap(lambda s, key: cj.estimators.sample_counts(cj.Catnat(s), 1000, key=key))
    spec = jax.sharding.PartitionSpec("rows")
    found = jax.shard_map(counts, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(rows, keys)
    np.testing.assert_array_equal(found, counts(rows, keys))


@pytest.mark.expensive_compile
def test_a_count_may_be_traced():
    totals, dist = jnp.array([[0], [7], [10**6]]), cj.Catnat(jnp.asarray(repeated(3, 4)))
    wanted = cj.estimators.sample_counts(dist, totals, sample_shape=(5,), key=KEY)
    got = jax.jit(lambda n: cj.estimators.sample_counts(dist, n, sample_shape=(5,), key=KEY))(totals)
    np.testing.assert_array_equal(got, wanted)


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
    dist = cj.Catnat(jnp.asarray(repeated(50)))
    first, other = (RANDOM[function](dist, jax.random.key(seed)) for seed in (5, 6))
    assert not np.array_equal(first, other)
    for key in (jax.random.key(5), jax.random.PRNGKey(5)):  # old keys too, as jax.random takes them
        np.testing.assert_array_equal(RANDOM[function](dist, key), first)
    compiled = jax.jit(RANDOM[function])(dist, jax.random.key(5))
    np.testing.assert_allclose(compiled, first, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])  # half precision has no forward mode
@pytest.mark.parametrize("activation", ["natural", "sigmoid"])
@pytest.mark.parametrize("name", COMPUTED)
def test_no_nan_in_second_derivatives(name, activation, dtype):
    costs, scores = jnp.linspace(-1, 2, 7).astype(dtype), jnp.asarray(hostile(dtype)).astype(dtype)

    def total(s):
        return COMPUTED[name](cj.estimators, cj.Catnat(s, None, activation), costs, {"key": KEY}).sum()

    second = jax.jit(lambda s: jax.jvp(jax.grad(total), (s,), (jnp.ones_like(s),))[1])
    assert jnp.isfinite(second(scores)).all()


# ---- errors and precision ----


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
    cj.CatnatLinear(3, 4, key=key).weight,
):
    assert value.dtype == jnp.float32, value.dtype
"""
    python(code)
