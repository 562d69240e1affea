"""What torch alone has of BinnedCatnat: compiled in one graph, and in half precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import catnat
import catnat.torch as ct

BINS = {tails: catnat.Bins(np.linspace(-3.0, 3.0, 13), tails) for tails in (False, True)}
FACTS = {
    "log_prob": lambda made, x: made.log_prob(x),
    "cdf": lambda made, x: made.cdf(x),
    "icdf": lambda made, x: made.icdf(torch.sigmoid(x)),
    "mean": lambda made, x: made.mean,
    "variance": lambda made, x: made.variance,
    "entropy": lambda made, x: made.entropy(),
    "crps": lambda made, x: made.crps(x),
}


def given(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(5, 11, generator=generator).to(dtype).requires_grad_()
    return scores, torch.linspace(-3.5, 3.5, 5).to(dtype)


def value_and_gradient(function, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    scores, x = given(dtype)
    value = function(scores, x)
    [gradient] = torch.autograd.grad(value.float().sum(), scores)
    return value.detach(), gradient


def fact_of(name: str, tails: bool, activation: str = "sigmoid"):
    return lambda scores, x: FACTS[name](ct.BinnedCatnat(scores, BINS[tails], None, activation, validate_args=False), x)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("tails", [False, True], ids=["bins", "tails"])
@pytest.mark.parametrize("name", FACTS)
def test_compiled_in_one_graph(name, tails):
    function = fact_of(name, tails, "natural")
    found = value_and_gradient(torch.compile(function, fullgraph=True, backend="aot_eager"))
    torch.testing.assert_close(found, value_and_gradient(function))


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("tails", [False, True], ids=["bins", "tails"])
def test_compiled_with_dynamic_shapes(tails):
    """With ``dynamic=True`` integers are symbols too, also the number of bins."""

    def everything(scores: Tensor, x: Tensor) -> Tensor:
        return torch.stack([fact_of(name, tails)(scores, x) for name in FACTS])

    found = value_and_gradient(torch.compile(everything, fullgraph=True, backend="aot_eager", dynamic=True))
    torch.testing.assert_close(found, value_and_gradient(everything))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("activation", ["sigmoid", "natural"])
@pytest.mark.parametrize("tails", [False, True], ids=["bins", "tails"])
@pytest.mark.parametrize("name", FACTS)
def test_half_precision(name, tails, activation, dtype):
    function = fact_of(name, tails, activation)
    value, gradient = value_and_gradient(function, dtype)
    exact, slope = value_and_gradient(lambda scores, x: function(scores.to(dtype).float(), x.to(dtype).float()))
    unit = torch.finfo(dtype).eps
    assert value.dtype == gradient.dtype == dtype
    exact = exact.clamp(min=torch.finfo(dtype).min)  # outside of all bins, each dtype has its own least number
    torch.testing.assert_close(value.float(), exact, rtol=8 * unit, atol=8 * unit)
    torch.testing.assert_close(gradient.float(), slope, rtol=16 * unit, atol=16 * unit)
