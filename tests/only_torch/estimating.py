"""What the tests of the estimators share: distributions with the probabilities of estimation.py, and its costs."""

from __future__ import annotations

from collections.abc import Callable

import estimation
import numpy as np
import pytest
import torch
from torch import Tensor
from torch import distributions as td

import catnat.torch as ct

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


def classes_of(values: Tensor) -> Tensor:
    return values.argmax(-1) if values.is_floating_point() else values
