"""What only torch has of the gradient estimators: its distributions, modules with a state, generators, transforms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import estimation
import numpy as np
import pytest
import torch
from estimation import COMPUTED, GRADIENT, JACOBIAN, VALUE, K, P, is_mean
from only_torch import rows
from torch import Tensor
from torch import distributions as td

import catnat
import catnat.torch as ct

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")

SCORES, COSTS = torch.tensor(estimation.SCORES), torch.tensor(estimation.COSTS)

# Every kind of distribution that the estimators take, each with the same probabilities.
DISTRIBUTIONS: dict[str, Callable[[Tensor], td.Distribution]] = {
    "Catnat": ct.Catnat,
    "OneHotCatnat": ct.OneHotCatnat,
    "OneHotCatnatStraightThrough": ct.OneHotCatnatStraightThrough,
    "Categorical": lambda scores: td.Categorical(logits=ct.log_catnat(scores)),
    "Categorical-probs": lambda scores: td.Categorical(probs=ct.catnat(scores)),
    "OneHotCategorical": lambda scores: td.OneHotCategorical(logits=ct.log_catnat(scores)),
}
every_distribution = pytest.mark.parametrize("name", DISTRIBUTIONS)
REPEATS = 20_000


def cost(values: Tensor) -> Tensor:
    """The cost of classes, or of one-hot vectors."""
    return values.to(COSTS) @ COSTS if values.is_floating_point() else COSTS[values]


def leaf(*batch: int) -> Tensor:
    """The scores, repeated over a batch, to be differentiated."""
    return SCORES.expand(*batch, -1).clone().requires_grad_()


def gradient(value: Tensor, scores: Tensor) -> np.ndarray:
    """One gradient per row, where rows do not share anything."""
    return torch.autograd.grad(value.sum(), scores, retain_graph=True)[0].numpy()


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


# ---- compile and vmap ----

COMPILED = {
    "gumbel_softmax": lambda s: ct.estimators.gumbel_softmax(ct.Catnat(s), torch.ones(()), hard=True),
    "straight_through": lambda s: ct.estimators.straight_through(td.OneHotCategorical(logits=ct.log_catnat(s))),
    "score_function": lambda s: ct.estimators.score_function(
        lambda v: cost(v).sum(-1),
        td.Independent(ct.OneHotCatnat(s.unsqueeze(-2)), 1),
        num_samples=3,
        baseline="leave-one-out",
    ),
    "unordered_set": lambda s: ct.estimators.unordered_set(cost, ct.Catnat(s), 3),
    "enumerate_exactly": lambda s: ct.estimators.enumerate_exactly(cost, ct.OneHotCatnat(s)),
}


@pytest.mark.one_row
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
    quick, slow = ct.estimators.MovingAverage(0.9), ct.estimators.MovingAverage(0.9)

    def step(scores):
        return ct.estimators.score_function(
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


@every_distribution
def test_enumeration_under_vmap(name):
    scores = rows.inside(catnat.balanced(K), "sigmoid", 6)

    def expected(row):
        return ct.estimators.enumerate_exactly(cost, DISTRIBUTIONS[name](row))

    wanted = ct.estimators.enumerate_exactly(cost, DISTRIBUTIONS[name](scores))
    rows.assert_close(torch.func.vmap(expected)(scores), wanted)
    slopes = torch.func.vmap(torch.func.grad(expected))(scores)
    leaves = scores.clone().requires_grad_()
    np.testing.assert_allclose(
        slopes, gradient(ct.estimators.enumerate_exactly(cost, DISTRIBUTIONS[name](leaves)), leaves), rtol=1e-10
    )


def test_the_others_under_vmap():
    scores = SCORES.expand(REPEATS, -1)
    linear = {
        "straight_through": lambda s: ct.estimators.straight_through(ct.Catnat(s)) @ COSTS,
        "score_function": lambda s: ct.estimators.score_function(
            cost, ct.Catnat(s, validate_args=False), num_samples=2
        ),
        "unordered_set": lambda s: ct.estimators.unordered_set(cost, ct.Catnat(s), 2),
    }
    torch.manual_seed(0)
    for name, estimate in linear.items():
        got = torch.func.vmap(torch.func.grad(estimate), randomness="different")(scores)
        assert is_mean(got.numpy(), GRADIENT), name


@pytest.mark.parametrize("estimate", [ct.estimators.enumerate_exactly, ct.estimators.score_function])
def test_integer_costs_are_not_rounded_to_half_precision(estimate):
    """In bfloat16 1,001 and 1,000 are equal, and a step between them has no gradient."""
    scores = torch.zeros(1, dtype=torch.bfloat16, requires_grad=True)
    options = {"num_samples": 1000, "baseline": "leave-one-out"} if "score" in estimate.__name__ else {}
    estimate(lambda k: 1000 + k, ct.Catnat(scores), **options).backward()
    assert float(scores.grad) == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize("offset", [10.0, 1000.0])
def test_a_large_mean_cost_does_not_hide_differences_in_half_precision(offset):
    scores = torch.linspace(-1, 1, 15)
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        x = scores.bfloat16().to(dtype).requires_grad_()
        value = ct.estimators.enumerate_exactly(lambda k: offset + torch.linspace(-1, 1, 16)[k], ct.Catnat(x))
        (gradient,) = torch.autograd.grad(value, x)
        gradients.append(gradient.float())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0.02, atol=0.002)
