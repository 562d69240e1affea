"""The gradient estimators: bias and variance against enumeration, exactly where all outcomes can be listed.

Most tests use five classes whose probabilities, gradient and costs are known to the oracle. "Exact" means that every
outcome of an estimator is produced and weighted with its probability: what is left is rounding. Tests of frequencies
and of means of draws reject with probability 1e-6 if the library is right.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from conformance import checks
from estimation import (
    GRADIENT,
    JACOBIAN,
    VALUE,
    K,
    P,
    all_sets,
    all_tuples,
    is_mean,
    leave_one_out_gradient,
    set_estimate,
    total_variance,
)
from only_torch import rows
from only_torch.estimating import COSTS, DISTRIBUTIONS, REPEATS, SCORES, cost, every_distribution, gradient, leaf
from torch import Tensor
from torch import distributions as td

import catnat
import catnat.torch as ct

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")


def with_draws(dist: td.Distribution, draws: Any) -> td.Distribution:
    """The distribution, with these draws in place of random ones."""
    hot, draws = isinstance(dist, td.OneHotCategorical), torch.as_tensor(draws)
    dist.sample = lambda shape, **_: torch.nn.functional.one_hot(draws, K).to(COSTS) if hot else draws
    return dist


# ---- every outcome of an estimator, with its probability ----


def outcomes_of_score_function(name: str, count: int, baseline: object) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draws, probabilities = all_tuples(count)
    scores = leaf(draws.shape[1])
    dist = with_draws(DISTRIBUTIONS[name](scores), draws)
    value = ct.estimators.score_function(cost, dist, num_samples=count, baseline=baseline)
    return value.detach().numpy(), gradient(value, scores), probabilities


def outcomes_of_unordered_set(
    name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    sets = all_sets(size)
    scores = leaf(len(sets))
    monkeypatch.setitem(ct.estimators.unordered_set.__globals__, "_draw_distinct", lambda *_: torch.tensor(list(sets)))
    value = ct.estimators.unordered_set(cost, DISTRIBUTIONS[name](scores), size)
    return value.detach().numpy(), gradient(value, scores), np.array(list(sets.values()))


def test_the_problem_is_what_it_says():
    assert math.isclose(P.sum(), 1, rel_tol=1e-14)
    assert (P > 0.05).all()
    for build in DISTRIBUTIONS.values():
        np.testing.assert_allclose(build(SCORES).probs, P, rtol=1e-13)
    assert np.abs(GRADIENT).min() > 0.05


# ---- enumerate_exactly ----


@every_distribution
def test_enumeration_is_exact(name):
    scores = leaf(3)
    value = ct.estimators.enumerate_exactly(cost, DISTRIBUTIONS[name](scores))
    assert value.shape == (3,)
    np.testing.assert_allclose(value.detach(), np.full(3, VALUE), rtol=1e-13)
    np.testing.assert_allclose(gradient(value, scores), np.tile(GRADIENT, (3, 1)), rtol=1e-12)


@every_distribution
def test_enumeration_gives_all_classes_at_once(name):
    seen = []
    ct.estimators.enumerate_exactly(
        lambda values: seen.append(values) or cost(values), DISTRIBUTIONS[name](SCORES.expand(2, 3, -1))
    )
    (values,) = seen
    wanted = DISTRIBUTIONS[name](SCORES.expand(2, 3, -1)).enumerate_support()
    rows.assert_equal(values, wanted)


def test_enumeration_reaches_the_parameters_of_f():
    table = COSTS.clone().requires_grad_()
    value = ct.estimators.enumerate_exactly(lambda k: table[k] ** 2, ct.Catnat(SCORES))
    (got,) = torch.autograd.grad(value, table)
    np.testing.assert_allclose(got, 2 * P * COSTS.numpy(), rtol=1e-12)


def test_enumeration_has_second_derivatives():
    assert torch.autograd.gradgradcheck(lambda s: ct.estimators.enumerate_exactly(cost, ct.Catnat(s)), leaf())


# ---- score_function: no bias, by listing all draws ----

CONSTANTS = {"none": None, "number": 3.7, "integer": -2, "tensor": torch.tensor(0.4), "mean": torch.tensor(VALUE)}


@every_distribution
@pytest.mark.parametrize("baseline", CONSTANTS)
def test_one_draw_is_unbiased(name, baseline):
    values, gradients, probabilities = outcomes_of_score_function(name, 1, CONSTANTS[baseline])
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
    scores = leaf(2)
    dist = with_draws(ct.Catnat(scores), torch.tensor([[3, 3]]))
    got = gradient(ct.estimators.score_function(cost, dist, baseline=torch.tensor([6.0, 1.0])), scores)
    np.testing.assert_allclose(got[0], np.zeros(K - 1), atol=1e-14)  # the cost of class 3 is 6
    np.testing.assert_allclose(got[1], 5 * JACOBIAN[3] / P[3], rtol=1e-12)


def test_no_gradient_goes_to_the_baseline():
    scores, critic = leaf(), torch.tensor(1.0, requires_grad=True)
    value = ct.estimators.score_function(cost, ct.Catnat(scores), baseline=critic)
    assert torch.autograd.grad(value, critic, allow_unused=True) == (None,)


def test_the_score_function_reaches_the_parameters_of_f():
    """The pathwise part: over all draws, its mean is the gradient of the expected cost in f's own table."""
    draws, probabilities = all_tuples(2)
    table = COSTS.clone().requires_grad_()
    dist = with_draws(ct.Catnat(SCORES.expand(draws.shape[1], -1)), draws)
    values = ct.estimators.score_function(lambda k: table[k] ** 2, dist, num_samples=2, baseline="leave-one-out")
    (got,) = torch.autograd.grad(values @ torch.as_tensor(probabilities), table)
    np.testing.assert_allclose(got, 2 * P * COSTS.numpy(), rtol=1e-12)


@pytest.mark.parametrize("name", ["Catnat", "OneHotCatnat", "Categorical", "OneHotCategorical"])
def test_independent_parts_make_one_variable(name):
    """Two five-class variables with one cost for the pair: all 25 outcomes, against the definition."""
    pairs = torch.tensor(list(itertools.product(range(K), repeat=2)))
    table = torch.linspace(-1, 2, K * K, dtype=torch.float64).view(K, K) ** 2
    probabilities = P[pairs[:, 0]] * P[pairs[:, 1]]
    scores = leaf(len(pairs), 2)

    def joint_cost(values):
        assert values.shape[:3] == (1, len(pairs), 2)
        classes = values.argmax(-1) if values.is_floating_point() else values
        return table[classes[..., 0], classes[..., 1]]

    dist = td.Independent(with_draws(DISTRIBUTIONS[name](scores), pairs[None]), 1)
    value = ct.estimators.score_function(joint_cost, dist, baseline=0.3)
    assert value.shape == (len(pairs),)
    got = np.einsum("n,nij->ij", probabilities, gradient(value, scores))
    np.testing.assert_allclose(got[0], JACOBIAN.T @ (table.numpy() @ P), atol=1e-12)
    np.testing.assert_allclose(got[1], JACOBIAN.T @ (table.numpy().T @ P), atol=1e-12)


# ---- the moving average ----


def test_the_moving_average_is_the_stated_one():
    costs = torch.randn(12, 3, dtype=torch.float64, generator=rows.seeded(0))
    for decay in (0.0, 0.5, 0.9, 0.99):
        baseline = ct.estimators.MovingAverage(decay).double()
        for t, now in enumerate(costs):
            weights = [decay ** (j - 1) for j in range(1, t + 1)]
            past = [float(costs[t - j].mean()) for j in range(1, t + 1)]
            wanted = sum(w * c for w, c in zip(weights, past, strict=True)) / sum(weights) if t else 0.0
            assert math.isclose(float(baseline(now)), wanted, rel_tol=1e-12, abs_tol=1e-14)


def test_the_moving_average_does_not_know_the_present_costs():
    """The baseline is the same whatever is drawn now: that is why it adds no bias."""
    baseline = ct.estimators.MovingAverage(0.9)
    baseline(torch.tensor([2.0]))
    saved = baseline.state_dict()
    used = []
    for draw in range(K):
        baseline.load_state_dict(saved)
        scores = leaf(1)
        dist = with_draws(ct.Catnat(scores), torch.tensor([[draw]]))
        got = gradient(ct.estimators.score_function(cost, dist, baseline=baseline), scores)[0]
        slope = JACOBIAN[draw] / P[draw]
        used.append(float(COSTS[draw]) - got @ slope / (slope @ slope))
    np.testing.assert_allclose(np.array(used), 2.0, rtol=1e-6)


def test_the_moving_average_is_saved_moves_and_rests():
    model = torch.nn.ModuleDict({"baseline": ct.estimators.MovingAverage(decay=0.5)})
    model["baseline"](torch.tensor([3.0, 5.0]))
    again = torch.nn.ModuleDict({"baseline": ct.estimators.MovingAverage(decay=0.5)})
    again.load_state_dict(model.state_dict())
    assert float(again["baseline"](torch.tensor([0.0]))) == 4.0
    again.eval()
    before = float(again["baseline"](torch.tensor([100.0])))
    assert float(again["baseline"](torch.tensor([-100.0]))) == before
    assert model.double()["baseline"].total.dtype == torch.float64
    assert "decay=0.5" in repr(model)


def test_the_moving_average_holds_no_graph():
    scores, baseline = leaf(4), ct.estimators.MovingAverage()
    table = COSTS.clone().requires_grad_()
    for _ in range(3):
        ct.estimators.score_function(lambda k: table[k], ct.Catnat(scores), baseline=baseline).sum().backward()
        assert not baseline.total.requires_grad


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


def test_the_order_of_the_set_does_not_matter(monkeypatch):
    orders = list(itertools.permutations((4, 0, 3)))
    scores = leaf(len(orders))
    monkeypatch.setitem(ct.estimators.unordered_set.__globals__, "_draw_distinct", lambda *_: torch.tensor(orders))
    value = ct.estimators.unordered_set(cost, ct.Catnat(scores), 3)
    got = gradient(value, scores)
    np.testing.assert_allclose(value.detach(), np.full(6, value[0].item()), rtol=1e-13)
    np.testing.assert_allclose(got, np.tile(got[0], (6, 1)), rtol=1e-11, atol=1e-13)


@every_distribution
def test_sets_are_drawn_without_replacement(name):
    seen = []

    def remember(values):
        seen.append(values.argmax(-1) if values.is_floating_point() else values)
        return cost(values)

    ct.estimators.unordered_set(remember, DISTRIBUTIONS[name](SCORES.expand(20_000, -1)), 3, generator=rows.seeded(1))
    drawn = np.sort(seen[0].numpy().T, -1)
    counts = dict.fromkeys(all_sets(3), 0)
    for row in drawn:
        counts[tuple(row)] += 1  # a repeated class would be a KeyError
    checks.chi_square(counts, all_sets(3))


@every_distribution
@pytest.mark.parametrize("classes", [2, 5, 8])
def test_the_whole_set_has_no_variance(name, classes):
    scores = rows.inside(catnat.balanced(classes), "natural", 50).requires_grad_()
    table = torch.linspace(-1, 2, classes, dtype=torch.float64) ** 3

    def costs(values):
        return values.to(table) @ table if values.is_floating_point() else table[values]

    dist = DISTRIBUTIONS[name](scores)
    value = ct.estimators.unordered_set(costs, dist, classes, generator=rows.seeded(0))
    wanted = ct.estimators.enumerate_exactly(costs, dist)
    rows.assert_close(value, wanted)
    np.testing.assert_allclose(gradient(value, scores), gradient(wanted, scores), rtol=1e-9, atol=1e-12)


def test_sets_reach_the_parameters_of_f(monkeypatch):
    sets = all_sets(2)
    table = COSTS.clone().requires_grad_()
    monkeypatch.setitem(ct.estimators.unordered_set.__globals__, "_draw_distinct", lambda *_: torch.tensor(list(sets)))
    values = ct.estimators.unordered_set(lambda k: table[k] ** 2, ct.Catnat(SCORES.expand(len(sets), -1)), 2)
    (got,) = torch.autograd.grad(values @ torch.tensor(list(sets.values()), dtype=torch.float64), table)
    np.testing.assert_allclose(got, 2 * P * COSTS.numpy(), rtol=1e-12)


def test_one_certain_class_and_a_tiny_rest():
    """1 - p(S) would be all rounding here; the rest is summed instead."""
    p = torch.full((10,), 1e-9, dtype=torch.float32)
    p[3] = 1 - 9e-9
    values = ct.estimators.unordered_set(
        lambda k: (k != 3).float(), td.Categorical(probs=p.expand(3000, -1)), 2, generator=rows.seeded(0)
    )
    np.testing.assert_allclose(values, np.full(3000, 9e-9), rtol=1e-5)


# ---- variance, exactly ----


def test_a_baseline_lowers_the_variance():
    plain, mean = (total_variance(*outcomes_of_score_function("Catnat", 1, b)[1:]) for b in (None, VALUE))
    assert mean < 0.7 * plain


def test_leave_one_out_lowers_the_variance():
    """For any count: with two draws each is the other's baseline, a poor one, and with more it improves."""
    for count in (2, 3, 4):
        plain, paired = (
            total_variance(*outcomes_of_score_function("Catnat", count, b)[1:]) for b in (None, "leave-one-out")
        )
        assert paired < plain
        single = total_variance(*outcomes_of_score_function("Catnat", 1, None)[1:])
        np.testing.assert_allclose(plain, single / count, rtol=1e-10)  # the draws are independent


def test_sets_have_less_variance_than_leave_one_out(monkeypatch):
    """At the same number of evaluations of f: no evaluation is spent twice on the same class."""
    previous = math.inf
    for count in (2, 3, 4):
        paired = total_variance(*outcomes_of_score_function("Catnat", count, "leave-one-out")[1:])
        distinct = total_variance(*outcomes_of_unordered_set("Catnat", count, monkeypatch)[1:])
        assert distinct < paired
        assert distinct < previous
        previous = distinct
    assert total_variance(*outcomes_of_unordered_set("Catnat", K, monkeypatch)[1:]) < 1e-20


# ---- bias and no bias, by drawing ----

MANY = {
    "score_function": lambda dist, g: ct.estimators.score_function(cost, dist, generator=g),
    "score_function-2": lambda dist, g: ct.estimators.score_function(
        cost, dist, num_samples=2, baseline="leave-one-out", generator=g
    ),
    "unordered_set-2": lambda dist, g: ct.estimators.unordered_set(cost, dist, 2, generator=g),
    "unordered_set-4": lambda dist, g: ct.estimators.unordered_set(cost, dist, 4, generator=g),
    "straight_through": lambda dist, g: ct.estimators.straight_through(dist, generator=g) @ COSTS,  # a linear cost
}


@every_distribution
@pytest.mark.parametrize("estimator", MANY)
def test_drawn_gradients_are_unbiased(name, estimator):
    scores = leaf(REPEATS)
    value = MANY[estimator](DISTRIBUTIONS[name](scores), rows.seeded(2))
    assert is_mean(gradient(value, scores), GRADIENT)
    assert is_mean(value.detach().numpy()[:, None], np.array([VALUE]))


def bent(hot: Tensor) -> Tensor:
    """Not linear in the one-hot vector; at its corners it is the cost."""
    return (hot * COSTS.to(hot)).sum(-1) ** 2 / 4


BENT = COSTS**2 / 4
BENT_GRADIENT = BENT.numpy() @ JACOBIAN
BIASED = {
    "straight_through": lambda dist, g: ct.estimators.straight_through(dist, generator=g),
    "gumbel_softmax": lambda dist, g: ct.estimators.gumbel_softmax(dist, 1.0, generator=g),
    "gumbel_softmax-hard": lambda dist, g: ct.estimators.gumbel_softmax(dist, 1.0, hard=True, generator=g),
}


@pytest.mark.parametrize("estimator", BIASED)
def test_the_biased_are_biased(estimator):
    """Measurably so on a bent cost, where the score function is not: the z-test can tell."""
    scores = leaf(REPEATS)
    got = gradient(bent(BIASED[estimator](ct.Catnat(scores), rows.seeded(3))), scores)
    assert not is_mean(got, BENT_GRADIENT)
    assert np.abs(got.mean(0) - BENT_GRADIENT).max() > 0.1
    exact = gradient(
        ct.estimators.score_function(lambda k: BENT[k], ct.Catnat(scores), num_samples=2, generator=rows.seeded(3)),
        scores,
    )
    assert is_mean(exact, BENT_GRADIENT)


def test_straight_through_has_the_bias_of_the_linearized_cost():
    """Its mean is the expectation of f'(onehot k) times the gradient of p."""
    scores = leaf(REPEATS)
    got = gradient(bent(ct.estimators.straight_through(ct.Catnat(scores), generator=rows.seeded(4))), scores)
    slopes = COSTS.numpy()[:, None] / 2 * COSTS.numpy()  # of bent at every corner
    assert is_mean(got, P @ slopes @ JACOBIAN)


def test_a_lower_temperature_has_less_bias_and_more_variance():
    bias, spread = [], []
    for temperature in (2.0, 1.0, 0.3):
        scores = leaf(REPEATS)
        got = gradient(
            bent(ct.estimators.gumbel_softmax(ct.Catnat(scores), temperature, generator=rows.seeded(5))), scores
        )
        bias.append(np.linalg.norm(got.mean(0) - BENT_GRADIENT))
        spread.append(got.var(0).sum())
    assert bias[0] > 1.3 * bias[1] > 1.3 * 1.3 * bias[2]
    assert spread[0] < spread[1] < spread[2]


@pytest.mark.parametrize(
    "changes",
    [
        {"mask": torch.tensor([True, True, False, True, True])},
        {"mask": torch.tensor([False, True, True, False, True]), "mask_mode": "renormalize"},
        {"unimix": 0.3},
        {"temperature": 0.4},
        {"mask": torch.tensor([True, False, True, True, True]), "unimix": 0.1, "temperature": 2.0},
    ],
    ids=str,
)
def test_masks_temperature_and_unimix_are_estimated_like_any_other(changes):
    for kind in (ct.Catnat, ct.OneHotCatnat):
        scores = leaf(REPEATS)
        dist = kind(scores, **changes)
        wanted = gradient(dist.probs @ COSTS, scores)[0]
        np.testing.assert_allclose(gradient(ct.estimators.enumerate_exactly(cost, dist), scores)[0], wanted, atol=1e-12)
        np.testing.assert_allclose(gradient(ct.estimators.unordered_set(cost, dist, K), scores)[0], wanted, atol=1e-10)
        for estimate in MANY.values():
            assert is_mean(gradient(estimate(dist, rows.seeded(6)), scores), wanted)
        drawn = ct.estimators.gumbel_softmax(dist, 0.5, hard=True, generator=rows.seeded(7)).argmax(-1)
        rows.chi_square(drawn, dist.probs[0].detach())
