"""The estimators under the compiler and vmap."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from estimation import (
    GRADIENT,
    VALUE,
    K,
    is_mean,
)
from only_torch import rows
from only_torch.estimating import COSTS, DISTRIBUTIONS, REPEATS, SCORES, cost, every_distribution, gradient, leaf
from torch import distributions as td

import catnat
import catnat.torch as ct

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")


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
