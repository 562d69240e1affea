"""What only torch has of the gradient estimators: its distributions, modules with a state, generators."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from estimation import COMPUTED, JACOBIAN, K, P
from only_torch import rows
from only_torch.estimating import (
    COSTS,
    DISTRIBUTIONS,
    SCORES,
    cost,
    every_distribution,
    gradient,
    leaf,
)
from torch import distributions as td

import catnat.torch as ct

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")


def with_draws(dist: td.Distribution, draws: Any) -> td.Distribution:
    """The distribution, with these draws in place of random ones."""
    hot, draws = isinstance(dist, td.OneHotCategorical), torch.as_tensor(draws)
    dist.sample = lambda shape, **_: torch.nn.functional.one_hot(draws, K).to(COSTS) if hot else draws
    return dist


# ---- several variables ----


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


def test_independent_can_be_relaxed():
    dist = td.Independent(ct.OneHotCatnat(SCORES.expand(2, 3, -1)), 1)
    assert ct.estimators.gumbel_softmax(dist, 0.5).shape == (2, 3, K)
    assert ct.estimators.straight_through(dist).shape == (2, 3, K)


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


def test_a_batch_without_costs_leaves_the_moving_average():
    baseline = ct.estimators.MovingAverage(0.9)
    used = [float(baseline(costs)) for costs in (torch.zeros(0), torch.ones(3), torch.zeros(0), torch.ones(3))]
    np.testing.assert_allclose(used, [0, 0, 1, 1], rtol=1e-6)


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


# ---- torch's own distributions ----


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_torchs_own_give_no_nan_either(dtype):
    costs = torch.linspace(-1, 2, 7).to(dtype)
    largest = 1e4 if dtype == torch.float16 else 1e30
    logits = torch.tensor([0.0, -largest, largest, -50.0, 50.0, -math.inf, 1e-6])
    picks = logits[torch.randint(7, (60, 7), generator=rows.seeded(0))].to(dtype)
    picks[:, 3] = 0.0
    for kind in (td.Categorical, td.OneHotCategorical):
        for name, estimate in COMPUTED.items():
            parameters = picks.clone().requires_grad_()
            value = estimate(ct.estimators, kind(logits=parameters), costs, {"generator": rows.seeded(0)})
            assert value.isfinite().all(), name
            value.sum().backward()
            assert parameters.grad.isfinite().all(), name


def test_what_is_not_categorical():
    normal = td.Normal(torch.zeros(3), 1.0)
    for estimate in (
        lambda dist: ct.estimators.gumbel_softmax(dist, 0.5),
        ct.estimators.straight_through,
        lambda dist: ct.estimators.unordered_set(cost, dist, 2),
        lambda dist: ct.estimators.enumerate_exactly(cost, dist),
        lambda dist: ct.estimators.sample_counts(dist, 5),
    ):
        with pytest.raises(TypeError, match="`distribution` is a Normal"):
            estimate(normal)
    for estimate in (
        lambda dist: ct.estimators.unordered_set(cost, dist, 2),
        lambda dist: ct.estimators.enumerate_exactly(cost, dist),
    ):
        with pytest.raises(TypeError, match="base_dist"):
            estimate(td.Independent(ct.Catnat(SCORES.expand(3, -1)), 1))
    with pytest.raises(TypeError, match="sample method of a Normal takes none"):
        ct.estimators.score_function(lambda x: x, normal, generator=rows.seeded(0))
    # Without a generator any distribution will do.
    assert ct.estimators.score_function(lambda x: x, normal).shape == (3,)
