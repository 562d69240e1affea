"""Relaxed and one-hot draws, counts, and the generators that decide them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conformance import checks
from estimation import (
    K,
    P,
    assert_multinomial,
    is_mean,
)
from only_torch import rows
from only_torch.estimating import DISTRIBUTIONS, SCORES, classes_of, cost, every_distribution, gradient, leaf
from scipy import stats
from torch import distributions as td

import catnat
import catnat.torch as ct

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")


# ---- relaxed and one-hot draws ----


@every_distribution
def test_the_largest_entry_has_the_probabilities(name):
    dist = DISTRIBUTIONS[name](SCORES)
    soft = ct.estimators.gumbel_softmax(dist, 0.7, sample_shape=(20_000,), generator=rows.seeded(0))
    rows.assert_close(soft.sum(-1), torch.ones(20_000, dtype=torch.float64))
    rows.chi_square(soft.argmax(-1), torch.as_tensor(P))
    hard = ct.estimators.gumbel_softmax(dist, 0.7, hard=True, sample_shape=(20_000,), generator=rows.seeded(0))
    rows.assert_equal(hard, torch.nn.functional.one_hot(soft.argmax(-1), K).double())
    rows.chi_square(
        ct.estimators.straight_through(dist, sample_shape=(20_000,), generator=rows.seeded(0)).argmax(-1), dist.probs
    )


def test_it_is_the_relaxed_distribution():
    relaxed = ct.RelaxedOneHotCatnat(0.7, SCORES).rsample((4, 3), generator=rows.seeded(0))
    rows.assert_close(
        ct.estimators.gumbel_softmax(ct.Catnat(SCORES), 0.7, sample_shape=(4, 3), generator=rows.seeded(0)), relaxed
    )


def test_straight_through_is_what_the_distribution_does():
    dist = ct.OneHotCatnatStraightThrough(leaf(6))
    got, wanted = ct.estimators.straight_through(dist, generator=rows.seeded(0)), dist.rsample(generator=rows.seeded(0))
    rows.assert_equal(got.detach(), wanted.detach())
    slope = torch.randn(6, K, dtype=torch.float64, generator=rows.seeded(1))
    rows.assert_equal(*(torch.as_tensor(gradient(value * slope, dist.scores)) for value in (got, wanted)))


def test_gradients_of_the_relaxed_draw():
    """The relaxed draw is a smooth function of scores and temperature; hard draws have the same gradient."""
    temperature = torch.tensor([[0.5], [1.5]], dtype=torch.float64, requires_grad=True)

    def draw(scores, temperature):
        return ct.estimators.gumbel_softmax(ct.Catnat(scores), temperature, generator=rows.seeded(0))

    assert torch.autograd.gradcheck(draw, (leaf(2), temperature))
    scores = leaf(2)
    slope = torch.randn(2, K, dtype=torch.float64, generator=rows.seeded(1))
    soft, hard = (
        gradient(ct.estimators.gumbel_softmax(ct.Catnat(scores), 0.7, hard=h, generator=rows.seeded(0)) * slope, scores)
        for h in (False, True)
    )
    np.testing.assert_array_equal(soft, hard)


def test_one_temperature_per_row():
    scores, temperature = SCORES.expand(2, -1), torch.tensor([[0.2], [3.0]])
    got = ct.estimators.gumbel_softmax(ct.Catnat(scores), temperature, generator=rows.seeded(0))
    for row, t in enumerate((0.2, 3.0)):
        one = ct.estimators.gumbel_softmax(ct.Catnat(scores), t, generator=rows.seeded(0))[row]
        torch.testing.assert_close(got[row], one, rtol=1e-6, atol=1e-12)


@every_distribution
def test_shapes(name):
    for batch in ((), (3,), (2, 3), (0,)):
        if batch == (0,) and "Catnat" not in name:  # torch's own cannot be empty
            continue
        dist = DISTRIBUTIONS[name](SCORES.expand(*batch, -1))
        for shape in ((), (4,), (2, 0)):
            assert ct.estimators.gumbel_softmax(dist, 0.5, sample_shape=shape).shape == (*shape, *batch, K)
            assert ct.estimators.sample_counts(dist, 3, sample_shape=shape).shape == (*shape, *batch, K)
            # With a generator the draws are ours; torch's own cannot draw nothing.
            drawn = ct.estimators.straight_through(dist, sample_shape=shape, generator=rows.seeded(0))
            assert drawn.shape == (*shape, *batch, K)
        assert ct.estimators.enumerate_exactly(cost, dist).shape == batch
        assert ct.estimators.unordered_set(cost, dist, 2).shape == batch
        assert ct.estimators.score_function(cost, dist, num_samples=2, generator=rows.seeded(0)).shape == batch


def test_independent_can_be_relaxed():
    dist = td.Independent(ct.OneHotCatnat(SCORES.expand(2, 3, -1)), 1)
    assert ct.estimators.gumbel_softmax(dist, 0.5).shape == (2, 3, K)
    assert ct.estimators.straight_through(dist).shape == (2, 3, K)


# ---- sample_counts ----


@every_distribution
def test_counts_are_multinomial(name):
    counts = ct.estimators.sample_counts(
        DISTRIBUTIONS[name](SCORES), 3, sample_shape=(20_000,), generator=rows.seeded(0)
    )
    assert counts.dtype == torch.int64
    assert_multinomial(counts.tolist())


@pytest.mark.parametrize("count", [40, 5000])
def test_every_count_is_binomial(count):
    """Small and large expected counts: torch draws them by different algorithms."""
    counts = ct.estimators.sample_counts(ct.Catnat(SCORES), count, sample_shape=(20_000,), generator=rows.seeded(1))
    for k in range(K):
        dist = stats.binom.pmf(np.arange(count + 1), count, P[k])
        checks.chi_square(np.bincount(counts[:, k], minlength=count + 1), dist)


@pytest.mark.parametrize("classes", [1, 2, 3, 7, 64, 100])
def test_counts_have_the_right_mean_and_covariance(classes):
    p = ct.catnat(rows.inside(catnat.balanced(classes), "natural", margin=0.3))
    count, repeats = 1000, 4000
    counts = ct.estimators.sample_counts(
        td.Categorical(probs=p), count, sample_shape=(repeats,), generator=rows.seeded(2)
    )
    assert (counts.sum(-1) == count).all()
    assert (counts >= 0).all()
    draws, mean = counts.double().numpy(), count * p.numpy()
    assert is_mean(draws, mean)
    products = (draws - mean)[:, :, None] * (draws - mean)[:, None, :]
    assert is_mean(products, count * (np.diag(p.numpy()) - np.outer(p.numpy(), p.numpy())))


def test_counts_of_very_many_draws():
    count = 2**53
    counts = ct.estimators.sample_counts(ct.Catnat(SCORES), count, sample_shape=(2000,), generator=rows.seeded(3))
    assert (counts.sum(-1) == count).all()
    standard = (counts.double().numpy() - count * P) / np.sqrt(count * P * (1 - P))
    assert is_mean(standard, np.zeros(K))
    assert is_mean(standard**2, np.ones(K))


def test_a_count_per_row():
    totals = torch.tensor([[0], [7], [10**6]])
    dist = ct.Catnat(SCORES.expand(3, 4, -1))
    counts = ct.estimators.sample_counts(dist, totals, sample_shape=(5,), generator=rows.seeded(0))
    rows.assert_equal(counts.sum(-1), totals.expand(5, 3, 4))
    rows.assert_equal(
        ct.estimators.sample_counts(dist, totals.int(), generator=rows.seeded(0)).sum(-1), totals.expand(3, 4)
    )


def test_impossible_classes_are_never_counted():
    for p in ([0.0, 0.5, 0.0, 0.0, 0.5, 0.0], [0, 0, 1.0], [1.0, 0, 0], [0.3, 0.0, 0.7]):
        p = torch.tensor(p)
        counts = ct.estimators.sample_counts(
            td.Categorical(probs=p), 10**9, sample_shape=(100,), generator=rows.seeded(0)
        )
        assert (counts[:, p == 0] == 0).all()
        assert (counts[:, p > 0] > 0).all()


# ---- generators ----

RANDOM = {
    "gumbel_softmax": lambda dist, **how: ct.estimators.gumbel_softmax(dist, 0.5, **how),
    "straight_through": lambda dist, **how: ct.estimators.straight_through(dist, **how),
    "score_function": lambda dist, **how: ct.estimators.score_function(cost, dist, num_samples=2, **how),
    "unordered_set": lambda dist, **how: ct.estimators.unordered_set(cost, dist, 2, **how),
    "sample_counts": lambda dist, **how: ct.estimators.sample_counts(dist, 1000, **how),
}


@every_distribution
@pytest.mark.parametrize("function", RANDOM)
def test_a_generator_decides_everything(name, function):
    dist = DISTRIBUTIONS[name](SCORES.expand(50, -1))
    before = torch.get_rng_state()
    generator = rows.seeded(5)
    first, second = (RANDOM[function](dist, generator=generator) for _ in range(2))
    rows.assert_equal(torch.get_rng_state(), before)
    assert not torch.equal(first, second)
    rows.assert_equal(RANDOM[function](dist, generator=rows.seeded(5)), first)
    torch.manual_seed(0)
    first, second = (RANDOM[function](dist) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    rows.assert_equal(RANDOM[function](dist), first)


@every_distribution
def test_draws_with_a_generator_have_the_probabilities(name):
    seen = []
    dist = td.Independent(DISTRIBUTIONS[name](SCORES.expand(2, -1)), 1)
    ct.estimators.score_function(
        lambda v: seen.append(classes_of(v)) or torch.zeros(10_000), dist, num_samples=10_000, generator=rows.seeded(0)
    )
    assert seen[0].shape == (10_000, 2)
    rows.chi_square(seen[0], torch.as_tensor(P))
