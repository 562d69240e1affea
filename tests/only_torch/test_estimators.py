"""The gradient estimators: bias and variance against enumeration, exactly where all outcomes can be listed.

Most tests use five classes whose law, gradient and costs are known to the oracle. "Exact" means that every outcome of
an estimator is produced and weighted with its probability: what is left is rounding. Tests of frequencies and of means
of draws reject with probability 1e-6 if the library is right.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any

import estimation
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
    multinomial_law,
    set_estimate,
    total_variance,
)
from only_torch import rows
from scipy import stats
from torch import Tensor
from torch import distributions as td

import catnat
import catnat.torch as ct

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")

SCORES, COSTS = torch.tensor(estimation.SCORES), torch.tensor(estimation.COSTS)

# Every kind of law that the estimators take, each with the same probabilities.
LAWS: dict[str, Callable[[Tensor], td.Distribution]] = {
    "Catnat": ct.Catnat,
    "OneHotCatnat": ct.OneHotCatnat,
    "OneHotCatnatStraightThrough": ct.OneHotCatnatStraightThrough,
    "Categorical": lambda scores: td.Categorical(logits=ct.log_catnat(scores)),
    "Categorical-probs": lambda scores: td.Categorical(probs=ct.catnat(scores)),
    "OneHotCategorical": lambda scores: td.OneHotCategorical(logits=ct.log_catnat(scores)),
}
every_law = pytest.mark.parametrize("name", LAWS)
MASKS = "mask" in inspect.signature(ct.Catnat).parameters


def cost(values: Tensor) -> Tensor:
    """The cost of classes, or of one-hot vectors."""
    return values.to(COSTS) @ COSTS if values.is_floating_point() else COSTS[values]


def leaf(*batch: int) -> Tensor:
    """The scores, repeated over a batch, to be differentiated."""
    return SCORES.expand(*batch, -1).clone().requires_grad_()


def gradient(value: Tensor, scores: Tensor) -> np.ndarray:
    """One gradient per row, where rows do not share anything."""
    return torch.autograd.grad(value.sum(), scores, retain_graph=True)[0].numpy()


def with_draws(law: td.Distribution, draws: Any) -> td.Distribution:
    """The law, with these draws in place of chance."""
    hot, draws = isinstance(law, td.OneHotCategorical), torch.as_tensor(draws)
    law.sample = lambda shape, **_: torch.nn.functional.one_hot(draws, K).to(COSTS) if hot else draws
    return law


# ---- every outcome of an estimator, with its probability ----


def outcomes_of_score_function(name: str, count: int, baseline: object) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draws, chances = all_tuples(count)
    scores = leaf(draws.shape[1])
    law = with_draws(LAWS[name](scores), draws)
    value = ct.score_function(cost, law, num_samples=count, baseline=baseline)
    return value.detach().numpy(), gradient(value, scores), chances


def outcomes_of_unordered_set(
    name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    sets = all_sets(size)
    scores = leaf(len(sets))
    monkeypatch.setitem(ct.unordered_set.__globals__, "_draw_distinct", lambda *_: torch.tensor(list(sets)))
    value = ct.unordered_set(cost, LAWS[name](scores), size)
    return value.detach().numpy(), gradient(value, scores), np.array(list(sets.values()))


def test_the_problem_is_what_it_says():
    assert math.isclose(P.sum(), 1, rel_tol=1e-14)
    assert (P > 0.05).all()
    for build in LAWS.values():
        np.testing.assert_allclose(build(SCORES).probs, P, rtol=1e-13)
    assert np.abs(GRADIENT).min() > 0.05


# ---- enumerate_exactly ----


@every_law
def test_enumeration_is_exact(name):
    scores = leaf(3)
    value = ct.enumerate_exactly(cost, LAWS[name](scores))
    assert value.shape == (3,)
    np.testing.assert_allclose(value.detach(), np.full(3, VALUE), rtol=1e-13)
    np.testing.assert_allclose(gradient(value, scores), np.tile(GRADIENT, (3, 1)), rtol=1e-12)


@every_law
def test_enumeration_gives_all_classes_at_once(name):
    seen = []
    ct.enumerate_exactly(lambda values: seen.append(values) or cost(values), LAWS[name](SCORES.expand(2, 3, -1)))
    (values,) = seen
    wanted = LAWS[name](SCORES.expand(2, 3, -1)).enumerate_support()
    rows.assert_equal(values, wanted)


def test_enumeration_reaches_the_parameters_of_f():
    table = COSTS.clone().requires_grad_()
    value = ct.enumerate_exactly(lambda k: table[k] ** 2, ct.Catnat(SCORES))
    (got,) = torch.autograd.grad(value, table)
    np.testing.assert_allclose(got, 2 * P * COSTS.numpy(), rtol=1e-12)


def test_enumeration_has_second_derivatives():
    assert torch.autograd.gradgradcheck(lambda s: ct.enumerate_exactly(cost, ct.Catnat(s)), leaf())


# ---- score_function: no bias, by listing all draws ----

CONSTANTS = {"none": None, "number": 3.7, "integer": -2, "tensor": torch.tensor(0.4), "mean": torch.tensor(VALUE)}


@every_law
@pytest.mark.parametrize("baseline", CONSTANTS)
def test_one_draw_is_unbiased(name, baseline):
    values, gradients, chances = outcomes_of_score_function(name, 1, CONSTANTS[baseline])
    np.testing.assert_allclose(values, COSTS)  # the value is the cost itself: the baseline is not in it
    np.testing.assert_allclose(chances @ gradients, GRADIENT, atol=1e-12)


@every_law
@pytest.mark.parametrize("count", [2, 3])
def test_leave_one_out_is_unbiased(name, count):
    values, gradients, chances = outcomes_of_score_function(name, count, "leave-one-out")
    np.testing.assert_allclose(chances @ values, VALUE, atol=1e-12)
    np.testing.assert_allclose(chances @ gradients, GRADIENT, atol=1e-12)


def test_leave_one_out_is_the_mean_of_the_others():
    for count in (2, 3):
        draws, _ = all_tuples(count)
        _, gradients, _ = outcomes_of_score_function("Catnat", count, "leave-one-out")
        for row, got in zip(draws.T.tolist(), gradients, strict=True):
            np.testing.assert_allclose(got, leave_one_out_gradient(row), atol=1e-12)


def test_a_baseline_per_row_stays_with_its_row():
    scores = leaf(2)
    law = with_draws(ct.Catnat(scores), torch.tensor([[3, 3]]))
    got = gradient(ct.score_function(cost, law, baseline=torch.tensor([6.0, 1.0])), scores)
    np.testing.assert_allclose(got[0], np.zeros(K - 1), atol=1e-14)  # the cost of class 3 is 6
    np.testing.assert_allclose(got[1], 5 * JACOBIAN[3] / P[3], rtol=1e-12)


def test_no_gradient_goes_to_the_baseline():
    scores, critic = leaf(), torch.tensor(1.0, requires_grad=True)
    value = ct.score_function(cost, ct.Catnat(scores), baseline=critic)
    assert torch.autograd.grad(value, critic, allow_unused=True) == (None,)


def test_the_score_function_reaches_the_parameters_of_f():
    """The pathwise part: over all draws, its mean is the gradient of the expected cost in f's own table."""
    draws, chances = all_tuples(2)
    table = COSTS.clone().requires_grad_()
    law = with_draws(ct.Catnat(SCORES.expand(draws.shape[1], -1)), draws)
    values = ct.score_function(lambda k: table[k] ** 2, law, num_samples=2, baseline="leave-one-out")
    (got,) = torch.autograd.grad(values @ torch.as_tensor(chances), table)
    np.testing.assert_allclose(got, 2 * P * COSTS.numpy(), rtol=1e-12)


@pytest.mark.parametrize("name", ["Catnat", "OneHotCatnat", "Categorical", "OneHotCategorical"])
def test_independent_parts_make_one_variable(name):
    """Two five-class variables with one cost for the pair: all 25 outcomes, against the definition."""
    pairs = torch.tensor(list(itertools.product(range(K), repeat=2)))
    table = torch.linspace(-1, 2, K * K, dtype=torch.float64).view(K, K) ** 2
    chances = P[pairs[:, 0]] * P[pairs[:, 1]]
    scores = leaf(len(pairs), 2)

    def joint_cost(values):
        assert values.shape[:3] == (1, len(pairs), 2)
        classes = values.argmax(-1) if values.is_floating_point() else values
        return table[classes[..., 0], classes[..., 1]]

    law = td.Independent(with_draws(LAWS[name](scores), pairs[None]), 1)
    value = ct.score_function(joint_cost, law, baseline=0.3)
    assert value.shape == (len(pairs),)
    got = np.einsum("n,nij->ij", chances, gradient(value, scores))
    np.testing.assert_allclose(got[0], JACOBIAN.T @ (table.numpy() @ P), atol=1e-12)
    np.testing.assert_allclose(got[1], JACOBIAN.T @ (table.numpy().T @ P), atol=1e-12)


# ---- the moving average ----


def test_the_moving_average_is_the_stated_one():
    costs = torch.randn(12, 3, dtype=torch.float64, generator=rows.seeded(0))
    for decay in (0.0, 0.5, 0.9, 0.99):
        baseline = ct.MovingAverage(decay).double()
        for t, now in enumerate(costs):
            weights = [decay ** (j - 1) for j in range(1, t + 1)]
            past = [float(costs[t - j].mean()) for j in range(1, t + 1)]
            wanted = sum(w * c for w, c in zip(weights, past, strict=True)) / sum(weights) if t else 0.0
            assert math.isclose(float(baseline(now)), wanted, rel_tol=1e-12, abs_tol=1e-14)


def test_the_moving_average_does_not_know_the_present_costs():
    """The baseline is the same whatever is drawn now: that is why it adds no bias."""
    baseline = ct.MovingAverage(0.9)
    baseline(torch.tensor([2.0]))
    saved = baseline.state_dict()
    used = []
    for draw in range(K):
        baseline.load_state_dict(saved)
        scores = leaf(1)
        law = with_draws(ct.Catnat(scores), torch.tensor([[draw]]))
        got = gradient(ct.score_function(cost, law, baseline=baseline), scores)[0]
        slope = JACOBIAN[draw] / P[draw]
        used.append(float(COSTS[draw]) - got @ slope / (slope @ slope))
    np.testing.assert_allclose(np.array(used), 2.0, rtol=1e-6)


def test_the_moving_average_is_saved_moves_and_rests():
    model = torch.nn.ModuleDict({"baseline": ct.MovingAverage(decay=0.5)})
    model["baseline"](torch.tensor([3.0, 5.0]))
    again = torch.nn.ModuleDict({"baseline": ct.MovingAverage(decay=0.5)})
    again.load_state_dict(model.state_dict())
    assert float(again["baseline"](torch.tensor([0.0]))) == 4.0
    again.eval()
    before = float(again["baseline"](torch.tensor([100.0])))
    assert float(again["baseline"](torch.tensor([-100.0]))) == before
    assert model.double()["baseline"].total.dtype == torch.float64
    assert "decay=0.5" in repr(model)


def test_the_moving_average_holds_no_graph():
    scores, baseline = leaf(4), ct.MovingAverage()
    table = COSTS.clone().requires_grad_()
    for _ in range(3):
        ct.score_function(lambda k: table[k], ct.Catnat(scores), baseline=baseline).sum().backward()
        assert not baseline.total.requires_grad


# ---- unordered_set: no bias, by listing all sets ----


@every_law
@pytest.mark.parametrize("size", range(1, K + 1))
def test_sets_are_unbiased(name, size, monkeypatch):
    values, gradients, chances = outcomes_of_unordered_set(name, size, monkeypatch)
    assert math.isclose(chances.sum(), 1, rel_tol=1e-12)
    np.testing.assert_allclose(chances @ values, VALUE, atol=1e-12)
    np.testing.assert_allclose(chances @ gradients, GRADIENT, atol=1e-12)


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
    monkeypatch.setitem(ct.unordered_set.__globals__, "_draw_distinct", lambda *_: torch.tensor(orders))
    value = ct.unordered_set(cost, ct.Catnat(scores), 3)
    got = gradient(value, scores)
    np.testing.assert_allclose(value.detach(), np.full(6, value[0].item()), rtol=1e-13)
    np.testing.assert_allclose(got, np.tile(got[0], (6, 1)), rtol=1e-11, atol=1e-13)


@every_law
def test_sets_are_drawn_without_replacement(name):
    seen = []

    def remember(values):
        seen.append(values.argmax(-1) if values.is_floating_point() else values)
        return cost(values)

    ct.unordered_set(remember, LAWS[name](SCORES.expand(20_000, -1)), 3, generator=rows.seeded(1))
    drawn = np.sort(seen[0].numpy().T, -1)
    counts = dict.fromkeys(all_sets(3), 0)
    for row in drawn:
        counts[tuple(row)] += 1  # a repeated class would be a KeyError
    checks.chi_square(counts, all_sets(3))


@every_law
@pytest.mark.parametrize("classes", [2, 5, 8])
def test_the_whole_set_leaves_nothing_to_chance(name, classes):
    scores = rows.inside(catnat.balanced(classes), "natural", 50).requires_grad_()
    table = torch.linspace(-1, 2, classes, dtype=torch.float64) ** 3

    def costs(values):
        return values.to(table) @ table if values.is_floating_point() else table[values]

    law = LAWS[name](scores)
    value = ct.unordered_set(costs, law, classes, generator=rows.seeded(0))
    wanted = ct.enumerate_exactly(costs, law)
    rows.assert_close(value, wanted)
    np.testing.assert_allclose(gradient(value, scores), gradient(wanted, scores), rtol=1e-9, atol=1e-12)


def test_sets_reach_the_parameters_of_f(monkeypatch):
    sets = all_sets(2)
    table = COSTS.clone().requires_grad_()
    monkeypatch.setitem(ct.unordered_set.__globals__, "_draw_distinct", lambda *_: torch.tensor(list(sets)))
    values = ct.unordered_set(lambda k: table[k] ** 2, ct.Catnat(SCORES.expand(len(sets), -1)), 2)
    (got,) = torch.autograd.grad(values @ torch.tensor(list(sets.values()), dtype=torch.float64), table)
    np.testing.assert_allclose(got, 2 * P * COSTS.numpy(), rtol=1e-12)


def test_one_certain_class_and_a_tiny_rest():
    """1 - p(S) would be all rounding here; the rest is summed instead."""
    p = torch.full((10,), 1e-9, dtype=torch.float32)
    p[3] = 1 - 9e-9
    values = ct.unordered_set(
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

REPEATS = 20_000
MANY = {
    "score_function": lambda law, g: ct.score_function(cost, law, generator=g),
    "score_function-2": lambda law, g: ct.score_function(
        cost, law, num_samples=2, baseline="leave-one-out", generator=g
    ),
    "unordered_set-2": lambda law, g: ct.unordered_set(cost, law, 2, generator=g),
    "unordered_set-4": lambda law, g: ct.unordered_set(cost, law, 4, generator=g),
    "straight_through": lambda law, g: ct.straight_through(law, generator=g) @ COSTS,  # a linear cost
}


@every_law
@pytest.mark.parametrize("estimator", MANY)
def test_drawn_gradients_are_unbiased(name, estimator):
    scores = leaf(REPEATS)
    value = MANY[estimator](LAWS[name](scores), rows.seeded(2))
    assert is_mean(gradient(value, scores), GRADIENT)
    assert is_mean(value.detach().numpy()[:, None], np.array([VALUE]))


def bent(hot: Tensor) -> Tensor:
    """Not linear in the one-hot vector; at its corners it is the cost."""
    return (hot * COSTS.to(hot)).sum(-1) ** 2 / 4


BENT = COSTS**2 / 4
BENT_GRADIENT = BENT.numpy() @ JACOBIAN
BIASED = {
    "straight_through": lambda law, g: ct.straight_through(law, generator=g),
    "gumbel_softmax": lambda law, g: ct.gumbel_softmax(law, 1.0, generator=g),
    "gumbel_softmax-hard": lambda law, g: ct.gumbel_softmax(law, 1.0, hard=True, generator=g),
}


@pytest.mark.parametrize("estimator", BIASED)
def test_the_biased_are_biased(estimator):
    """Measurably so on a bent cost, where the score function is not: the z-test can tell."""
    scores = leaf(REPEATS)
    got = gradient(bent(BIASED[estimator](ct.Catnat(scores), rows.seeded(3))), scores)
    assert not is_mean(got, BENT_GRADIENT)
    assert np.abs(got.mean(0) - BENT_GRADIENT).max() > 0.1
    exact = gradient(
        ct.score_function(lambda k: BENT[k], ct.Catnat(scores), num_samples=2, generator=rows.seeded(3)), scores
    )
    assert is_mean(exact, BENT_GRADIENT)


def test_straight_through_has_the_bias_of_the_linearized_cost():
    """Its mean is the expectation of f'(onehot k) times the gradient of p."""
    scores = leaf(REPEATS)
    got = gradient(bent(ct.straight_through(ct.Catnat(scores), generator=rows.seeded(4))), scores)
    slopes = COSTS.numpy()[:, None] / 2 * COSTS.numpy()  # of bent at every corner
    assert is_mean(got, P @ slopes @ JACOBIAN)


def test_a_colder_relaxation_has_less_bias_and_more_variance():
    bias, spread = [], []
    for temperature in (2.0, 1.0, 0.3):
        scores = leaf(REPEATS)
        got = gradient(bent(ct.gumbel_softmax(ct.Catnat(scores), temperature, generator=rows.seeded(5))), scores)
        bias.append(np.linalg.norm(got.mean(0) - BENT_GRADIENT))
        spread.append(got.var(0).sum())
    assert bias[0] > 1.3 * bias[1] > 1.3 * 1.3 * bias[2]
    assert spread[0] < spread[1] < spread[2]


@pytest.mark.skipif(not MASKS, reason="no masks here")
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
def test_changed_laws_are_estimated_like_any_other(changes):
    for kind in (ct.Catnat, ct.OneHotCatnat):
        scores = leaf(REPEATS)
        law = kind(scores, **changes)
        wanted = gradient(law.probs @ COSTS, scores)[0]
        np.testing.assert_allclose(gradient(ct.enumerate_exactly(cost, law), scores)[0], wanted, atol=1e-12)
        np.testing.assert_allclose(gradient(ct.unordered_set(cost, law, K), scores)[0], wanted, atol=1e-10)
        for estimate in MANY.values():
            assert is_mean(gradient(estimate(law, rows.seeded(6)), scores), wanted)
        drawn = ct.gumbel_softmax(law, 0.5, hard=True, generator=rows.seeded(7)).argmax(-1)
        rows.chi_square(drawn, law.probs[0].detach())


# ---- relaxed and one-hot draws ----


@every_law
def test_the_largest_entry_has_the_law(name):
    law = LAWS[name](SCORES)
    soft = ct.gumbel_softmax(law, 0.7, sample_shape=(20_000,), generator=rows.seeded(0))
    rows.assert_close(soft.sum(-1), torch.ones(20_000, dtype=torch.float64))
    rows.chi_square(soft.argmax(-1), torch.as_tensor(P))
    hard = ct.gumbel_softmax(law, 0.7, hard=True, sample_shape=(20_000,), generator=rows.seeded(0))
    rows.assert_equal(hard, torch.nn.functional.one_hot(soft.argmax(-1), K).double())
    rows.chi_square(ct.straight_through(law, sample_shape=(20_000,), generator=rows.seeded(0)).argmax(-1), law.probs)


def test_it_is_the_relaxed_distribution():
    relaxed = ct.RelaxedOneHotCatnat(0.7, SCORES).rsample((4, 3), generator=rows.seeded(0))
    rows.assert_close(ct.gumbel_softmax(ct.Catnat(SCORES), 0.7, sample_shape=(4, 3), generator=rows.seeded(0)), relaxed)


def test_straight_through_is_what_the_distribution_does():
    law = ct.OneHotCatnatStraightThrough(leaf(6))
    got, wanted = ct.straight_through(law, generator=rows.seeded(0)), law.rsample(generator=rows.seeded(0))
    rows.assert_equal(got.detach(), wanted.detach())
    slope = torch.randn(6, K, dtype=torch.float64, generator=rows.seeded(1))
    rows.assert_equal(*(torch.as_tensor(gradient(value * slope, law.scores)) for value in (got, wanted)))


def test_gradients_of_the_relaxed_draw():
    """The relaxed draw is a smooth function of scores and temperature; hard draws have the same gradient."""
    heat = torch.tensor([[0.5], [1.5]], dtype=torch.float64, requires_grad=True)

    def draw(scores, temperature):
        return ct.gumbel_softmax(ct.Catnat(scores), temperature, generator=rows.seeded(0))

    assert torch.autograd.gradcheck(draw, (leaf(2), heat))
    scores = leaf(2)
    slope = torch.randn(2, K, dtype=torch.float64, generator=rows.seeded(1))
    soft, hard = (
        gradient(ct.gumbel_softmax(ct.Catnat(scores), 0.7, hard=h, generator=rows.seeded(0)) * slope, scores)
        for h in (False, True)
    )
    np.testing.assert_array_equal(soft, hard)


def test_one_temperature_per_row():
    scores, heat = SCORES.expand(2, -1), torch.tensor([[0.2], [3.0]])
    got = ct.gumbel_softmax(ct.Catnat(scores), heat, generator=rows.seeded(0))
    for row, t in enumerate((0.2, 3.0)):
        one = ct.gumbel_softmax(ct.Catnat(scores), t, generator=rows.seeded(0))[row]
        torch.testing.assert_close(got[row], one, rtol=1e-6, atol=1e-12)


@every_law
def test_shapes(name):
    for batch in ((), (3,), (2, 3), (0,)):
        if batch == (0,) and "Catnat" not in name:  # torch's own cannot be empty
            continue
        law = LAWS[name](SCORES.expand(*batch, -1))
        for shape in ((), (4,), (2, 0)):
            assert ct.gumbel_softmax(law, 0.5, sample_shape=shape).shape == (*shape, *batch, K)
            assert ct.sample_counts(law, 3, sample_shape=shape).shape == (*shape, *batch, K)
            # With a generator the draws are ours; torch's own cannot draw nothing.
            drawn = ct.straight_through(law, sample_shape=shape, generator=rows.seeded(0))
            assert drawn.shape == (*shape, *batch, K)
        assert ct.enumerate_exactly(cost, law).shape == batch
        assert ct.unordered_set(cost, law, 2).shape == batch
        assert ct.score_function(cost, law, num_samples=2, generator=rows.seeded(0)).shape == batch


def test_independent_can_be_relaxed():
    law = td.Independent(ct.OneHotCatnat(SCORES.expand(2, 3, -1)), 1)
    assert ct.gumbel_softmax(law, 0.5).shape == (2, 3, K)
    assert ct.straight_through(law).shape == (2, 3, K)


# ---- sample_counts ----


@every_law
def test_counts_have_the_multinomial_law(name):
    counts = ct.sample_counts(LAWS[name](SCORES), 3, sample_shape=(20_000,), generator=rows.seeded(0))
    assert counts.dtype == torch.int64
    law = multinomial_law(3)
    assert math.isclose(sum(law.values()), 1)
    seen = dict.fromkeys(law, 0)
    for row in counts.tolist():
        seen[tuple(row)] += 1
    checks.chi_square(seen, law)


@pytest.mark.parametrize("count", [40, 5000])
def test_every_count_is_binomial(count):
    """Small and large expected counts: torch draws them by different algorithms."""
    counts = ct.sample_counts(ct.Catnat(SCORES), count, sample_shape=(20_000,), generator=rows.seeded(1))
    for k in range(K):
        law = stats.binom.pmf(np.arange(count + 1), count, P[k])
        checks.chi_square(np.bincount(counts[:, k], minlength=count + 1), law)


@pytest.mark.parametrize("classes", [1, 2, 3, 7, 64, 100])
def test_counts_have_the_right_mean_and_covariance(classes):
    p = ct.catnat(rows.inside(catnat.balanced(classes), "natural", margin=0.3))
    count, repeats = 1000, 4000
    counts = ct.sample_counts(td.Categorical(probs=p), count, sample_shape=(repeats,), generator=rows.seeded(2))
    assert (counts.sum(-1) == count).all()
    assert (counts >= 0).all()
    draws, mean = counts.double().numpy(), count * p.numpy()
    assert is_mean(draws, mean)
    products = (draws - mean)[:, :, None] * (draws - mean)[:, None, :]
    assert is_mean(products, count * (np.diag(p.numpy()) - np.outer(p.numpy(), p.numpy())))


def test_counts_of_very_many_draws():
    count = 2**53
    counts = ct.sample_counts(ct.Catnat(SCORES), count, sample_shape=(2000,), generator=rows.seeded(3))
    assert (counts.sum(-1) == count).all()
    standard = (counts.double().numpy() - count * P) / np.sqrt(count * P * (1 - P))
    assert is_mean(standard, np.zeros(K))
    assert is_mean(standard**2, np.ones(K))


def test_a_count_per_row():
    totals = torch.tensor([[0], [7], [10**6]])
    law = ct.Catnat(SCORES.expand(3, 4, -1))
    counts = ct.sample_counts(law, totals, sample_shape=(5,), generator=rows.seeded(0))
    rows.assert_equal(counts.sum(-1), totals.expand(5, 3, 4))
    rows.assert_equal(ct.sample_counts(law, totals.int(), generator=rows.seeded(0)).sum(-1), totals.expand(3, 4))


def test_impossible_classes_are_never_counted():
    for p in ([0.0, 0.5, 0.0, 0.0, 0.5, 0.0], [0, 0, 1.0], [1.0, 0, 0], [0.3, 0.0, 0.7]):
        p = torch.tensor(p)
        counts = ct.sample_counts(td.Categorical(probs=p), 10**9, sample_shape=(100,), generator=rows.seeded(0))
        assert (counts[:, p == 0] == 0).all()
        assert (counts[:, p > 0] > 0).all()


# ---- impossible classes ----

# The root goes right and the last node goes left, both for certain: classes 0 to 3 and 7 are impossible.
CLOSED = torch.tensor([50.0, 0.3, 0.2, 0.1, 0.5, -0.4, -60.0])


def closed_laws(dtype: torch.dtype = torch.float64) -> dict[str, Callable[[], tuple[td.Distribution, Tensor]]]:
    """Laws with exact zeros, and the leaf tensor that each is made of."""

    def ours(kind):
        scores = CLOSED.to(dtype).expand(30, -1).clone().requires_grad_()
        return kind(scores), scores

    def probs(kind):
        p = torch.tensor([0, 0, 0.25, 0, 0.5, 0, 0.25, 0], dtype=dtype).expand(30, -1).clone().requires_grad_()
        return kind(probs=p), p

    def logits(kind):
        values = torch.tensor([0.5, -math.inf, 1.0, -math.inf, 0, 0, -math.inf, 1], dtype=dtype)
        values = values.expand(30, -1).clone().requires_grad_()
        return kind(logits=values), values

    found = {kind.__name__: lambda kind=kind: ours(kind) for kind in (ct.Catnat, ct.OneHotCatnat)}
    for kind in (td.Categorical, td.OneHotCategorical):
        found[f"{kind.__name__}-probs"] = lambda kind=kind: probs(kind)
        found[f"{kind.__name__}-logits"] = lambda kind=kind: logits(kind)
    if MASKS:

        def masked(kind):
            scores = torch.zeros(30, 7, dtype=dtype, requires_grad=True)
            return kind(scores, mask=torch.tensor([0, 1, 0, 0, 1, 1, 0, 1]).bool()), scores

        found["masked"] = lambda: masked(ct.Catnat)
        found["masked-one-hot"] = lambda: masked(ct.OneHotCatnat)
    return found


every_closed_law = pytest.mark.parametrize("name", closed_laws())


def classes_of(values: Tensor) -> Tensor:
    return values.argmax(-1) if values.is_floating_point() else values


def open_entries(name: str, law: td.Distribution, slope: Tensor) -> Tensor:
    """The gradient, without the zero entries of weights that torch normalizes: there its normalization alone acts."""
    return slope[law.probs > 0] if name.endswith("probs") else slope


@every_closed_law
def test_the_impossible_is_never_drawn(name):
    law, _ = closed_laws()[name]()
    zero = law.probs[0] == 0
    assert 0 < int(zero.sum()) < 8
    for temperature in (1e-4, 0.5, 100.0):
        for hard in (False, True):
            drawn = ct.gumbel_softmax(law, temperature, hard=hard, sample_shape=(200,), generator=rows.seeded(0))
            assert (drawn[..., zero] == 0).all()
    assert (ct.straight_through(law, sample_shape=(200,), generator=rows.seeded(0))[..., zero] == 0).all()
    assert (ct.sample_counts(law, 10**6, generator=rows.seeded(0))[..., zero] == 0).all()

    def watch(values):
        classes = classes_of(values)
        assert not zero[classes].any()
        return classes.double()

    ct.score_function(watch, law, num_samples=200, generator=rows.seeded(0))
    ct.enumerate_exactly(watch, law)
    for k in range(1, 9):
        ct.unordered_set(watch, law, k, generator=rows.seeded(0))


@every_closed_law
def test_the_impossible_counts_nothing(name):
    """Whatever f says of it, and whatever it would do to f's own gradient."""
    for bad in (math.inf, math.nan, 7.0):
        results = []
        for value_there in (bad, 0.0):
            law, parameters = closed_laws()[name]()
            zero = (law.probs == 0).movedim(-1, 0)
            ground = torch.linspace(1, 2, 8, dtype=torch.float64)
            shift = torch.zeros((), dtype=torch.float64, requires_grad=True)

            def by_place(_, zero=zero, shift=shift, ground=ground, value_there=value_there):
                return torch.where(zero, value_there, ground.view(8, 1) * shift.exp())

            value = ct.enumerate_exactly(by_place, law)
            results.append((value, *torch.autograd.grad(value.sum(), (parameters, shift))))
        for got, wanted in zip(*results, strict=True):
            rows.assert_equal(got, wanted)
            assert got.isfinite().all()


@every_closed_law
def test_asking_only_for_the_possible_keeps_f_differentiable(name):
    """f is log of a parameter that is 0 for impossible classes: asked there, its gradient would be 0 times infinity."""
    for estimate in (
        ct.enumerate_exactly,
        lambda f, law: ct.unordered_set(f, law, 8, generator=rows.seeded(0)),
        lambda f, law: ct.unordered_set(f, law, 6, generator=rows.seeded(0)),
    ):
        law, parameters = closed_laws()[name]()
        chances = law.probs[0].detach().double()
        size = (chances > 0).double().requires_grad_()
        value = estimate(lambda values, size=size: (2 * size[classes_of(values)]).log(), law)
        to_law, to_size = torch.autograd.grad(value.sum(), (parameters, size))
        torch.testing.assert_close(value, torch.full((30,), math.log(2), dtype=torch.float64), rtol=1e-6, atol=0)
        torch.testing.assert_close(to_size, 30 * chances, rtol=1e-6, atol=1e-12)
        assert to_law.isfinite().all()
        to_law = open_entries(name, law, to_law)
        torch.testing.assert_close(to_law, torch.zeros_like(to_law), rtol=0, atol=1e-6)


@every_closed_law
def test_more_members_than_possible_classes_are_exact(name):
    for k in range(1, 9):
        law, parameters = closed_laws()[name]()
        if k < int((law.probs[0] > 0).sum()):
            continue
        value = ct.unordered_set(lambda v: classes_of(v).double() ** 2, law, k, generator=rows.seeded(k))
        wanted = ct.enumerate_exactly(lambda v: classes_of(v).double() ** 2, law)
        rows.assert_close(value, wanted)
        slopes = (torch.as_tensor(gradient(v, parameters)) for v in (value, wanted))
        torch.testing.assert_close(*(open_entries(name, law, slope) for slope in slopes))


@every_closed_law
def test_dead_scores_and_closed_classes_get_no_gradient(name):
    law, parameters = closed_laws()[name]()
    slope = torch.linspace(-1, 2, 8, dtype=torch.float64)
    values = [
        ct.gumbel_softmax(law, 0.5, generator=rows.seeded(0)) @ slope,
        ct.straight_through(law, generator=rows.seeded(0)) @ slope,
        ct.score_function(lambda v: slope[classes_of(v)], law, generator=rows.seeded(0)),
        ct.unordered_set(lambda v: slope[classes_of(v)], law, 3, generator=rows.seeded(0)),
        ct.enumerate_exactly(lambda v: slope[classes_of(v)], law),
    ]
    for value in values:
        got = torch.as_tensor(gradient(value, parameters))
        assert got.isfinite().all()
        if "logits" in name:
            assert (got[parameters == -math.inf] == 0).all()
        if name.endswith("Catnat"):
            assert (got[:, ct.saturated(CLOSED)] == 0).all()
        assert (got != 0).any()


# ---- no NaN ----


def hostile(dtype: torch.dtype) -> Tensor:
    largest = 1e30 if dtype.itemsize > 2 else 6e4
    special = torch.tensor([0.0, 1e-30, 3.14159, -3.14159, 3.1416, 50.0, -50.0, largest, -largest, 1.0])
    return special[torch.randint(10, (60, 6), generator=rows.seeded(0))].to(dtype)


HOSTILE = {
    "gumbel_softmax": lambda law, c, g: ct.gumbel_softmax(law, 0.5, generator=g) @ c,
    "gumbel_softmax-cold": lambda law, c, g: ct.gumbel_softmax(law, 1e-4, generator=g) @ c,
    "gumbel_softmax-frozen": lambda law, c, g: ct.gumbel_softmax(law, 1e-50, generator=g) @ c,
    "gumbel_softmax-hot": lambda law, c, g: ct.gumbel_softmax(law, 1e30, generator=g) @ c,
    "gumbel_softmax-hard": lambda law, c, g: ct.gumbel_softmax(law, 1e-4, hard=True, generator=g) @ c,
    "straight_through": lambda law, c, g: ct.straight_through(law, generator=g) @ c,
    "score_function": lambda law, c, g: ct.score_function(
        lambda v: c[classes_of(v)], law, num_samples=3, baseline="leave-one-out", generator=g
    ),
    "unordered_set": lambda law, c, g: ct.unordered_set(lambda v: c[classes_of(v)], law, 3, generator=g),
    "unordered_set-all": lambda law, c, g: ct.unordered_set(lambda v: c[classes_of(v)], law, 7, generator=g),
    "enumerate_exactly": lambda law, c, g: ct.enumerate_exactly(lambda v: c[classes_of(v)], law),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("activation", ["natural", "sigmoid", "reflect-isotropic"])
def test_no_nan_for_any_scores(activation, dtype):
    """pytorch#22442 and its like: cold, half, and enormous."""
    costs = torch.linspace(-1, 2, 7).to(dtype)
    for kind in (ct.Catnat, ct.OneHotCatnat):
        for name, estimate in HOSTILE.items():
            scores = hostile(dtype).requires_grad_()
            value = estimate(kind(scores, activation=rows.ACTIVATIONS[activation]), costs, rows.seeded(0))
            assert value.dtype == dtype, name
            assert value.isfinite().all(), name
            value.sum().backward()
            assert scores.grad.isfinite().all(), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_torchs_own_give_no_nan_either(dtype):
    costs = torch.linspace(-1, 2, 7).to(dtype)
    largest = 1e4 if dtype == torch.float16 else 1e30
    logits = torch.tensor([0.0, -largest, largest, -50.0, 50.0, -math.inf, 1e-6])
    picks = logits[torch.randint(7, (60, 7), generator=rows.seeded(0))].to(dtype)
    picks[:, 3] = 0.0
    for kind in (td.Categorical, td.OneHotCategorical):
        for name, estimate in HOSTILE.items():
            parameters = picks.clone().requires_grad_()
            value = estimate(kind(logits=parameters), costs, rows.seeded(0))
            assert value.isfinite().all(), name
            value.sum().backward()
            assert parameters.grad.isfinite().all(), name


@pytest.mark.parametrize("temperature", [1e-36, 1e-18, 1e-4, 1.0])
def test_no_nan_in_the_gradient_of_a_temperature(temperature):
    for kind in ("natural", "sigmoid"):
        heat = torch.tensor(temperature, requires_grad=True)
        law = ct.Catnat(hostile(torch.float32), activation=kind)
        soft = ct.gumbel_softmax(law, heat, generator=rows.seeded(0))
        assert torch.autograd.grad((soft @ torch.linspace(-1, 2, 7)).sum(), heat)[0].isfinite()


def test_large_costs_in_half_precision():
    """Sums and differences of costs leave half precision's range long before the costs do."""
    law = ct.Catnat(torch.zeros(4, 3).half())
    for value in (
        ct.score_function(lambda k: torch.full_like(k, 6e4, dtype=torch.float16), law, num_samples=8),
        ct.enumerate_exactly(lambda k: torch.full_like(k, 6e4, dtype=torch.float16), law),
        ct.unordered_set(lambda k: torch.full_like(k, 6e4, dtype=torch.float16), law, 4),
    ):
        rows.assert_equal(value, torch.full((4,), 6e4).half())
    scores = torch.zeros(50, 3).half().requires_grad_()
    value = ct.score_function(
        lambda k: (2.0 * (k > 1) - 1).half() * 6e4, ct.Catnat(scores), num_samples=4, baseline="leave-one-out"
    )
    assert value.isfinite().all()
    assert torch.autograd.grad(value.sum(), scores)[0].isfinite().all()


def test_dtypes_of_results():
    half, single = ct.Catnat(torch.zeros(3, 3).half()), ct.Catnat(torch.zeros(3, 3))
    for estimate in (
        ct.enumerate_exactly,
        ct.score_function,
        lambda f, law: ct.unordered_set(f, law, 2),
    ):
        assert estimate(lambda k: k.half(), half).dtype == torch.float16
        assert estimate(lambda k: k.float(), half).dtype == torch.float32
        assert estimate(lambda k: k.double(), single).dtype == torch.float64
        assert estimate(lambda k: k, single).dtype == torch.float32  # whole numbers, and even answers, are costs
        assert estimate(lambda k: k == 2, single).dtype == torch.float32
    assert ct.gumbel_softmax(half, 0.5).dtype == ct.straight_through(half).dtype == torch.float16
    assert ct.gumbel_softmax(half, 0.5, hard=True).dtype == torch.float16


# ---- generators ----

RANDOM = {
    "gumbel_softmax": lambda law, **how: ct.gumbel_softmax(law, 0.5, **how),
    "straight_through": lambda law, **how: ct.straight_through(law, **how),
    "score_function": lambda law, **how: ct.score_function(cost, law, num_samples=2, **how),
    "unordered_set": lambda law, **how: ct.unordered_set(cost, law, 2, **how),
    "sample_counts": lambda law, **how: ct.sample_counts(law, 1000, **how),
}


@every_law
@pytest.mark.parametrize("function", RANDOM)
def test_a_generator_decides_everything(name, function):
    law = LAWS[name](SCORES.expand(50, -1))
    before = torch.get_rng_state()
    generator = rows.seeded(5)
    first, second = (RANDOM[function](law, generator=generator) for _ in range(2))
    rows.assert_equal(torch.get_rng_state(), before)
    assert not torch.equal(first, second)
    rows.assert_equal(RANDOM[function](law, generator=rows.seeded(5)), first)
    torch.manual_seed(0)
    first, second = (RANDOM[function](law) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    rows.assert_equal(RANDOM[function](law), first)


@every_law
def test_draws_with_a_generator_have_the_law(name):
    seen = []
    law = td.Independent(LAWS[name](SCORES.expand(2, -1)), 1)
    ct.score_function(
        lambda v: seen.append(classes_of(v)) or torch.zeros(10_000), law, num_samples=10_000, generator=rows.seeded(0)
    )
    assert seen[0].shape == (10_000, 2)
    rows.chi_square(seen[0], torch.as_tensor(P))


# ---- errors ----


def test_what_is_not_categorical():
    normal = td.Normal(torch.zeros(3), 1.0)
    for estimate in (
        lambda law: ct.gumbel_softmax(law, 0.5),
        ct.straight_through,
        lambda law: ct.unordered_set(cost, law, 2),
        lambda law: ct.enumerate_exactly(cost, law),
        lambda law: ct.sample_counts(law, 5),
    ):
        with pytest.raises(TypeError, match="`distribution` is a Normal"):
            estimate(normal)
    for estimate in (lambda law: ct.unordered_set(cost, law, 2), lambda law: ct.enumerate_exactly(cost, law)):
        with pytest.raises(TypeError, match="base_dist"):
            estimate(td.Independent(ct.Catnat(SCORES.expand(3, -1)), 1))
    with pytest.raises(TypeError, match="sample method of a Normal takes none"):
        ct.score_function(lambda x: x, normal, generator=rows.seeded(0))
    assert ct.score_function(lambda x: x, normal).shape == (3,)  # without a generator any law will do


@pytest.mark.parametrize("temperature", [0, -1.0, math.nan, math.inf, torch.tensor(0.0), torch.tensor([[1.0], [-1.0]])])
def test_bad_temperatures(temperature):
    with pytest.raises(ValueError, match="`temperature` is"):
        ct.gumbel_softmax(ct.Catnat(SCORES.expand(2, -1)), temperature)


def test_bad_baselines():
    law = ct.Catnat(SCORES.expand(3, -1))
    with pytest.raises(ValueError, match="num_samples=2 or more"):
        ct.score_function(cost, law, baseline="leave-one-out")
    with pytest.raises(ValueError, match="'loo'"):
        ct.score_function(cost, law, baseline="loo")
    with pytest.raises(TypeError, match="list"):
        ct.score_function(cost, law, baseline=[1.0])
    with pytest.raises(ValueError, match=r"\(2,\).*\(1, 3\)"):
        ct.score_function(cost, law, baseline=torch.zeros(2))
    with pytest.raises(ValueError, match=r"\(4, 3\)"):  # it would broadcast, and enlarge the costs
        ct.score_function(cost, law, baseline=torch.zeros(4, 3))
    with pytest.raises(ValueError, match="at least 1"):
        ct.score_function(cost, law, num_samples=0)
    for decay in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match="`decay`"):
            ct.MovingAverage(decay)


def test_bad_costs():
    law = ct.Catnat(SCORES.expand(3, -1))
    for estimate in (
        lambda f: ct.score_function(f, law, num_samples=4),
        lambda f: ct.unordered_set(f, law, 4),
        lambda f: ct.enumerate_exactly(f, law),
    ):
        with pytest.raises(ValueError, match=r"Do not average inside f"):
            estimate(lambda k: cost(k).mean())
        with pytest.raises(ValueError, match=r"returned shape \(3,\) for draws of shape \(., 3\)"):
            estimate(lambda k: cost(k).mean(0))
        with pytest.raises(TypeError, match="float"):
            estimate(lambda k: 1.0)


@pytest.mark.parametrize("k", [0, -1, 6])
def test_bad_set_sizes(k):
    with pytest.raises(ValueError, match=f"`k` is {k}, but 1 to 5"):
        ct.unordered_set(cost, ct.Catnat(SCORES), k)
    with pytest.raises(ValueError, match=r"2\^k"):
        ct.unordered_set(cost, ct.Catnat(torch.zeros(20)), 9)


def test_bad_counts():
    law = ct.Catnat(SCORES.expand(3, -1))
    for bad in (-1, 2**53 + 1, torch.tensor([1, 2, -3])):
        with pytest.raises(ValueError, match=r"from 0 to 2\^53"):
            ct.sample_counts(law, bad)
    with pytest.raises(ValueError, match="batch shape"):
        ct.sample_counts(law, torch.tensor([1, 2]))
    for bad in (2.0, True, torch.tensor(2.0)):
        with pytest.raises(TypeError, match="whole number"):
            ct.sample_counts(law, bad)


# ---- compile and vmap ----

COMPILED = {
    "gumbel_softmax": lambda s: ct.gumbel_softmax(ct.Catnat(s), torch.ones(()), hard=True),
    "straight_through": lambda s: ct.straight_through(td.OneHotCategorical(logits=ct.log_catnat(s))),
    "score_function": lambda s: ct.score_function(
        lambda v: cost(v).sum(-1),
        td.Independent(ct.OneHotCatnat(s.unsqueeze(-2)), 1),
        num_samples=3,
        baseline="leave-one-out",
    ),
    "unordered_set": lambda s: ct.unordered_set(cost, ct.Catnat(s), 3),
    "enumerate_exactly": lambda s: ct.enumerate_exactly(cost, ct.OneHotCatnat(s)),
}


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", COMPILED)
def test_one_graph_and_any_batch(name):
    """The draws inside a graph are sound too: over many rows the unbiased estimates stay unbiased."""
    fast = torch.compile(COMPILED[name], fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    for batch in (REPEATS // 2, REPEATS):
        scores = leaf(batch)
        torch._dynamo.mark_dynamic(scores, 0)
        value = fast(scores)
        if value.ndim == 2:
            value = value @ COSTS
        got = torch.autograd.grad(value.sum(), scores)[0].numpy()
        assert np.isfinite(got).all()
        if name == "enumerate_exactly":
            np.testing.assert_allclose(value.detach(), np.full(batch, VALUE), rtol=1e-12)
            np.testing.assert_allclose(got, np.tile(GRADIENT, (batch, 1)), rtol=1e-10)
        elif batch == REPEATS and name != "gumbel_softmax":
            assert is_mean(got, GRADIENT)


@pytest.mark.usefixtures("fresh_compiler")
def test_a_moving_average_lives_in_a_graph():
    quick, slow = ct.MovingAverage(0.9), ct.MovingAverage(0.9)

    def step(scores):
        return ct.score_function(
            lambda k: torch.full_like(k, 3.0, dtype=torch.float64), ct.Catnat(scores), baseline=quick
        )

    fast = torch.compile(step, fullgraph=True, backend="aot_eager")
    for turn in range(3):
        scores = leaf(4)
        got = torch.autograd.grad(fast(scores).sum(), scores)[0]
        assert (got.abs().max() < 1e-5) == (turn > 0)  # from the second call on, the baseline is the cost
        slow(torch.full((4,), 3.0))
    torch.testing.assert_close(quick.total, slow.total)
    torch.testing.assert_close(quick.weight, slow.weight)


@every_law
def test_enumeration_under_vmap(name):
    scores = rows.inside(catnat.balanced(K), "natural", 6)

    def expected(row):
        return ct.enumerate_exactly(cost, LAWS[name](row))

    wanted = ct.enumerate_exactly(cost, LAWS[name](scores))
    rows.assert_close(torch.func.vmap(expected)(scores), wanted)
    slopes = torch.func.vmap(torch.func.grad(expected))(scores)
    leaves = scores.clone().requires_grad_()
    np.testing.assert_allclose(slopes, gradient(ct.enumerate_exactly(cost, LAWS[name](leaves)), leaves), rtol=1e-10)


def test_the_others_under_vmap():
    scores = SCORES.expand(REPEATS, -1)
    linear = {
        "straight_through": lambda s: ct.straight_through(ct.Catnat(s)) @ COSTS,
        "score_function": lambda s: ct.score_function(cost, ct.Catnat(s, validate_args=False), num_samples=2),
        "unordered_set": lambda s: ct.unordered_set(cost, ct.Catnat(s), 2),
    }
    torch.manual_seed(0)
    for name, estimate in linear.items():
        got = torch.func.vmap(torch.func.grad(estimate), randomness="different")(scores)
        assert is_mean(got.numpy(), GRADIENT), name
