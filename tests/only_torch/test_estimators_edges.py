"""The estimators where classes are impossible, scores are hostile or arguments are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from estimation import assert_refuses_bad_costs
from only_torch import rows
from only_torch.estimating import SCORES, classes_of, cost, gradient
from torch import Tensor
from torch import distributions as td

import catnat.torch as ct

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")


# ---- impossible classes ----

# The root goes right and the last node goes left, both for certain: classes 0 to 3 and 7 are impossible.
CLOSED = torch.tensor([50.0, 0.3, 0.2, 0.1, 0.5, -0.4, -60.0])


def closed_distributions(dtype: torch.dtype = torch.float64) -> dict[str, Callable[[], tuple[td.Distribution, Tensor]]]:
    """Distributions with exact zeros, and the leaf tensor that each is made of."""

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

    def masked(kind):
        scores = torch.zeros(30, 7, dtype=dtype, requires_grad=True)
        return kind(scores, mask=torch.tensor([0, 1, 0, 0, 1, 1, 0, 1]).bool()), scores

    found = {kind.__name__: lambda kind=kind: ours(kind) for kind in (ct.Catnat, ct.OneHotCatnat)}
    for kind in (td.Categorical, td.OneHotCategorical):
        found[f"{kind.__name__}-probs"] = lambda kind=kind: probs(kind)
        found[f"{kind.__name__}-logits"] = lambda kind=kind: logits(kind)
    found["masked"] = lambda: masked(ct.Catnat)
    found["masked-one-hot"] = lambda: masked(ct.OneHotCatnat)
    return found


every_closed_distribution = pytest.mark.parametrize("name", closed_distributions())


def open_entries(name: str, dist: td.Distribution, slope: Tensor) -> Tensor:
    """The gradient, without the zero entries of weights that torch normalizes: there its normalization alone acts."""
    return slope[dist.probs > 0] if name.endswith("probs") else slope


@every_closed_distribution
def test_the_impossible_is_never_drawn(name):
    dist, _ = closed_distributions()[name]()
    zero = dist.probs[0] == 0
    assert 0 < int(zero.sum()) < 8
    for temperature in (1e-4, 0.5, 100.0):
        for hard in (False, True):
            drawn = ct.estimators.gumbel_softmax(
                dist, temperature, hard=hard, sample_shape=(200,), generator=rows.seeded(0)
            )
            assert (drawn[..., zero] == 0).all()
    assert (ct.estimators.straight_through(dist, sample_shape=(200,), generator=rows.seeded(0))[..., zero] == 0).all()
    assert (ct.estimators.sample_counts(dist, 10**6, generator=rows.seeded(0))[..., zero] == 0).all()

    def watch(values):
        classes = classes_of(values)
        assert not zero[classes].any()
        return classes.double()

    ct.estimators.score_function(watch, dist, num_samples=200, generator=rows.seeded(0))
    ct.estimators.enumerate_exactly(watch, dist)
    for k in range(1, 9):
        ct.estimators.unordered_set(watch, dist, k, generator=rows.seeded(0))


@every_closed_distribution
def test_the_impossible_counts_nothing(name):
    """Whatever f says of it, and whatever it would do to f's own gradient."""
    for bad in (math.inf, math.nan, 7.0):
        results = []
        for value_there in (bad, 0.0):
            dist, parameters = closed_distributions()[name]()
            zero = (dist.probs == 0).movedim(-1, 0)
            ground = torch.linspace(1, 2, 8, dtype=torch.float64)
            shift = torch.zeros((), dtype=torch.float64, requires_grad=True)

            def by_place(_, zero=zero, shift=shift, ground=ground, value_there=value_there):
                return torch.where(zero, value_there, ground.view(8, 1) * shift.exp())

            value = ct.estimators.enumerate_exactly(by_place, dist)
            results.append((value, *torch.autograd.grad(value.sum(), (parameters, shift))))
        for got, wanted in zip(*results, strict=True):
            rows.assert_equal(got, wanted)
            assert got.isfinite().all()


@every_closed_distribution
def test_evaluating_only_possible_classes_keeps_f_differentiable(name):
    """f is log of a parameter that is 0 for impossible classes: there its gradient would be 0 times infinity."""
    for estimate in (
        ct.estimators.enumerate_exactly,
        lambda f, dist: ct.estimators.unordered_set(f, dist, 8, generator=rows.seeded(0)),
        lambda f, dist: ct.estimators.unordered_set(f, dist, 6, generator=rows.seeded(0)),
    ):
        dist, parameters = closed_distributions()[name]()
        probabilities = dist.probs[0].detach().double()
        size = (probabilities > 0).double().requires_grad_()
        value = estimate(lambda values, size=size: (2 * size[classes_of(values)]).log(), dist)
        to_distribution, to_size = torch.autograd.grad(value.sum(), (parameters, size))
        torch.testing.assert_close(value, torch.full((30,), math.log(2), dtype=torch.float64), rtol=1e-6, atol=0)
        torch.testing.assert_close(to_size, 30 * probabilities, rtol=1e-6, atol=1e-12)
        assert to_distribution.isfinite().all()
        to_distribution = open_entries(name, dist, to_distribution)
        torch.testing.assert_close(to_distribution, torch.zeros_like(to_distribution), rtol=0, atol=1e-6)


@every_closed_distribution
def test_more_members_than_possible_classes_are_exact(name):
    for k in range(1, 9):
        dist, parameters = closed_distributions()[name]()
        if k < int((dist.probs[0] > 0).sum()):
            continue
        value = ct.estimators.unordered_set(lambda v: classes_of(v).double() ** 2, dist, k, generator=rows.seeded(k))
        wanted = ct.estimators.enumerate_exactly(lambda v: classes_of(v).double() ** 2, dist)
        rows.assert_close(value, wanted)
        slopes = (torch.as_tensor(gradient(v, parameters)) for v in (value, wanted))
        torch.testing.assert_close(*(open_entries(name, dist, slope) for slope in slopes))


@every_closed_distribution
def test_saturated_scores_and_closed_classes_get_no_gradient(name):
    dist, parameters = closed_distributions()[name]()
    slope = torch.linspace(-1, 2, 8, dtype=torch.float64)
    values = [
        ct.estimators.gumbel_softmax(dist, 0.5, generator=rows.seeded(0)) @ slope,
        ct.estimators.straight_through(dist, generator=rows.seeded(0)) @ slope,
        ct.estimators.score_function(lambda v: slope[classes_of(v)], dist, generator=rows.seeded(0)),
        ct.estimators.unordered_set(lambda v: slope[classes_of(v)], dist, 3, generator=rows.seeded(0)),
        ct.estimators.enumerate_exactly(lambda v: slope[classes_of(v)], dist),
    ]
    for value in values:
        got = torch.as_tensor(gradient(value, parameters))
        assert got.isfinite().all()
        if "logits" in name:
            assert (got[parameters == -math.inf] == 0).all()
        if name.endswith("Catnat"):
            assert (got[:, ct.geometry.saturated(CLOSED)] == 0).all()
        assert (got != 0).any()


# ---- no NaN ----


def hostile(dtype: torch.dtype) -> Tensor:
    largest = 1e30 if dtype.itemsize > 2 else 6e4
    special = torch.tensor([0.0, 1e-30, 3.14159, -3.14159, 3.1416, 50.0, -50.0, largest, -largest, 1.0])
    return special[torch.randint(10, (60, 6), generator=rows.seeded(0))].to(dtype)


HOSTILE = {
    "gumbel_softmax": lambda dist, c, g: ct.estimators.gumbel_softmax(dist, 0.5, generator=g) @ c,
    "gumbel_softmax-cold": lambda dist, c, g: ct.estimators.gumbel_softmax(dist, 1e-4, generator=g) @ c,
    "gumbel_softmax-frozen": lambda dist, c, g: ct.estimators.gumbel_softmax(dist, 1e-50, generator=g) @ c,
    "gumbel_softmax-hot": lambda dist, c, g: ct.estimators.gumbel_softmax(dist, 1e30, generator=g) @ c,
    "gumbel_softmax-hard": lambda dist, c, g: ct.estimators.gumbel_softmax(dist, 1e-4, hard=True, generator=g) @ c,
    "straight_through": lambda dist, c, g: ct.estimators.straight_through(dist, generator=g) @ c,
    "score_function": lambda dist, c, g: ct.estimators.score_function(
        lambda v: c[classes_of(v)], dist, num_samples=3, baseline="leave-one-out", generator=g
    ),
    "unordered_set": lambda dist, c, g: ct.estimators.unordered_set(lambda v: c[classes_of(v)], dist, 3, generator=g),
    "unordered_set-all": lambda dist, c, g: ct.estimators.unordered_set(
        lambda v: c[classes_of(v)], dist, 7, generator=g
    ),
    "enumerate_exactly": lambda dist, c, g: ct.estimators.enumerate_exactly(lambda v: c[classes_of(v)], dist),
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


@pytest.mark.parametrize("value", [1e-36, 1e-18, 1e-4, 1.0])
def test_no_nan_in_the_gradient_of_a_temperature(value):
    for kind in ("natural", "sigmoid"):
        temperature = torch.tensor(value, requires_grad=True)
        dist = ct.Catnat(hostile(torch.float32), activation=kind)
        soft = ct.estimators.gumbel_softmax(dist, temperature, generator=rows.seeded(0))
        assert torch.autograd.grad((soft @ torch.linspace(-1, 2, 7)).sum(), temperature)[0].isfinite()


def test_large_costs_in_half_precision():
    """Sums and differences of costs leave half precision's range long before the costs do."""
    dist = ct.Catnat(torch.zeros(4, 3).half())
    for value in (
        ct.estimators.score_function(lambda k: torch.full_like(k, 6e4, dtype=torch.float16), dist, num_samples=8),
        ct.estimators.enumerate_exactly(lambda k: torch.full_like(k, 6e4, dtype=torch.float16), dist),
        ct.estimators.unordered_set(lambda k: torch.full_like(k, 6e4, dtype=torch.float16), dist, 4),
    ):
        rows.assert_equal(value, torch.full((4,), 6e4).half())
    scores = torch.zeros(50, 3).half().requires_grad_()
    value = ct.estimators.score_function(
        lambda k: (2.0 * (k > 1) - 1).half() * 6e4, ct.Catnat(scores), num_samples=4, baseline="leave-one-out"
    )
    assert value.isfinite().all()
    assert torch.autograd.grad(value.sum(), scores)[0].isfinite().all()


def test_dtypes_of_results():
    half, single = ct.Catnat(torch.zeros(3, 3).half()), ct.Catnat(torch.zeros(3, 3))
    for estimate in (
        ct.estimators.enumerate_exactly,
        ct.estimators.score_function,
        lambda f, dist: ct.estimators.unordered_set(f, dist, 2),
    ):
        assert estimate(lambda k: k.half(), half).dtype == torch.float16
        assert estimate(lambda k: k.float(), half).dtype == torch.float32
        assert estimate(lambda k: k.double(), single).dtype == torch.float64
        assert estimate(lambda k: k, single).dtype == torch.float32  # integers, and even booleans, are costs
        assert estimate(lambda k: k == 2, single).dtype == torch.float32
    assert ct.estimators.gumbel_softmax(half, 0.5).dtype == ct.estimators.straight_through(half).dtype == torch.float16
    assert ct.estimators.gumbel_softmax(half, 0.5, hard=True).dtype == torch.float16


# ---- errors ----


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


@pytest.mark.parametrize("temperature", [0, -1.0, math.nan, math.inf, torch.tensor(0.0), torch.tensor([[1.0], [-1.0]])])
def test_bad_temperatures(temperature):
    with pytest.raises(ValueError, match="`temperature` is"):
        ct.estimators.gumbel_softmax(ct.Catnat(SCORES.expand(2, -1)), temperature)


def test_bad_baselines():
    dist = ct.Catnat(SCORES.expand(3, -1))
    with pytest.raises(ValueError, match="num_samples=2 or more"):
        ct.estimators.score_function(cost, dist, baseline="leave-one-out")
    with pytest.raises(ValueError, match="'loo'"):
        ct.estimators.score_function(cost, dist, baseline="loo")
    with pytest.raises(TypeError, match="list"):
        ct.estimators.score_function(cost, dist, baseline=[1.0])
    with pytest.raises(ValueError, match=r"\(2,\).*\(1, 3\)"):
        ct.estimators.score_function(cost, dist, baseline=torch.zeros(2))
    with pytest.raises(ValueError, match=r"\(4, 3\)"):  # it would broadcast, and enlarge the costs
        ct.estimators.score_function(cost, dist, baseline=torch.zeros(4, 3))
    with pytest.raises(ValueError, match="at least 1"):
        ct.estimators.score_function(cost, dist, num_samples=0)
    for decay in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match="`decay`"):
            ct.estimators.MovingAverage(decay)


def test_bad_costs():
    dist = ct.Catnat(SCORES.expand(3, -1))
    estimates = (
        lambda f: ct.estimators.score_function(f, dist, num_samples=4),
        lambda f: ct.estimators.unordered_set(f, dist, 4),
        lambda f: ct.estimators.enumerate_exactly(f, dist),
    )
    assert_refuses_bad_costs(estimates, cost)


@pytest.mark.parametrize("k", [0, -1, 6])
def test_bad_set_sizes(k):
    with pytest.raises(ValueError, match=f"`k` is {k}, but 1 to 5"):
        ct.estimators.unordered_set(cost, ct.Catnat(SCORES), k)
    with pytest.raises(ValueError, match=r"2\^k"):
        ct.estimators.unordered_set(cost, ct.Catnat(torch.zeros(20)), 9)


def test_bad_counts():
    dist = ct.Catnat(SCORES.expand(3, -1))
    for bad in (-1, 2**53 + 1, torch.tensor([1, 2, -3])):
        with pytest.raises(ValueError, match=r"from 0 to 2\^53"):
            ct.estimators.sample_counts(dist, bad)
    with pytest.raises(ValueError, match="batch shape"):
        ct.estimators.sample_counts(dist, torch.tensor([1, 2]))
    for bad in (2.0, True, torch.tensor(2.0)):
        with pytest.raises(TypeError, match="integer"):
            ct.estimators.sample_counts(dist, bad)
