"""What the tests of masked distributions share: modes, options, masks of all sizes, comparisons."""

from __future__ import annotations

import cases
import pytest
import torch
from only_torch import rows
from torch import Tensor

import catnat
import catnat.torch as ct

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
MODES = ["prune", "renormalize"]
MASK = torch.tensor([True, False, True, True, False])
OPTIONS = rows.OPTIONS

both_modes = pytest.mark.parametrize("mode", MODES)
all_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
all_options = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())


def masks(tree: catnat.Tree, count: int, seed: int = 0) -> Tensor:
    """Masks of all sizes (count, K)."""
    return torch.from_numpy(cases.masks(tree.num_classes, count, seed))


def facts(dist: ct.Catnat) -> dict[str, Tensor]:
    return {"probs": dist.probs, "logits": dist.logits, "entropy": dist.entropy(), "mode": dist.mode}


def assert_same(got: ct.Catnat, wanted: ct.Catnat, rtol: float = 1e-12, atol: float = 1e-13) -> None:
    assert got.batch_shape == wanted.batch_shape
    for name, fact in facts(wanted).items():
        torch.testing.assert_close(facts(got)[name], fact, rtol=rtol, atol=atol)


def weighted(value: Tensor, size: float = 1.0) -> Tensor:
    """A loss that tells the entries apart."""
    return (value * torch.linspace(-size, 2 * size, value.numel(), dtype=value.dtype).view(value.shape)).sum()


def gradient(value: Tensor, scores: Tensor) -> Tensor:
    return torch.autograd.grad(weighted(value), scores, retain_graph=True)[0]


def assert_obeyed(draws: Tensor, mask: Tensor) -> None:
    assert mask.expand(*draws.shape, -1).gather(-1, draws.unsqueeze(-1)).all(), "a masked class was drawn"
