"""Predictions: a distribution for every row, with densities, scores and quantiles."""

from __future__ import annotations

import abc
import dataclasses
import math

import torch
from torch import Tensor

import catnat.torch as ct
from catnat_experiments.common.parameterizations import impossible_fraction

_HALVINGS = 60


class Prediction(abc.ABC):
    """One distribution per row, (rows,)."""

    def log_prob(self, value: Tensor) -> Tensor | None:
        """Return the log-density of one number per row; None for a prediction without a density."""
        return None

    def impossible(self, value: Tensor) -> float:
        """Return the fraction of rows whose density is exactly 0, which a finite log-density does not show."""
        return 0.0

    @abc.abstractmethod
    def crps(self, value: Tensor) -> Tensor:
        """Return the continuous ranked probability score of one number per row."""

    @abc.abstractmethod
    def icdf(self, level: float) -> Tensor:
        """Return the quantile of every row at a level."""


@dataclasses.dataclass(frozen=True)
class Histogram(Prediction):
    """Probabilities of bins. Those of softmax are also those of a tree, so every histogram is a ``BinnedCatnat``."""

    distribution: ct.BinnedCatnat

    def log_prob(self, value: Tensor) -> Tensor:
        """Use the path to the bin."""
        return self.distribution.log_prob(value)

    def impossible(self, value: Tensor) -> float:
        """Use the probabilities of the bins."""
        return impossible_fraction(self.distribution.categorical.probs, ct.targets.hard(value, self.distribution.bins))

    def crps(self, value: Tensor) -> Tensor:
        """Use the closed form."""
        return self.distribution.crps(value)

    def icdf(self, level: float) -> Tensor:
        """Use a path."""
        return self.distribution.icdf(torch.full(self.distribution.batch_shape, level))


@dataclasses.dataclass(frozen=True)
class Gaussians(Prediction):
    """A mixture of Gaussians, or one Gaussian; all tensors are (rows, components)."""

    log_weights: Tensor
    means: Tensor
    stds: Tensor

    def log_prob(self, value: Tensor) -> Tensor:
        """Return that of the mixture."""
        scaled = (value.unsqueeze(-1) - self.means) / self.stds
        logs = self.log_weights - self.stds.log() - scaled.square() / 2
        return logs.logsumexp(-1) - math.log(2 * math.pi) / 2

    def crps(self, value: Tensor) -> Tensor:
        r"""Use the closed form (Grimit et al., 2006) of :math:`E|X - y| - E|X - X'| / 2`, from Gaussian differences."""
        weights = self.log_weights.exp()
        to_value = _mean_distance(value.unsqueeze(-1) - self.means, self.stds)
        apart = self.means.unsqueeze(-1) - self.means.unsqueeze(-2)
        spread = (self.stds.unsqueeze(-1).square() + self.stds.unsqueeze(-2).square()).sqrt()
        pairs = weights.unsqueeze(-1) * weights.unsqueeze(-2) * _mean_distance(apart, spread)
        return (weights * to_value).sum(-1) - pairs.sum((-1, -2)) / 2

    def icdf(self, level: float) -> Tensor:
        """Use bisection between the smallest and the largest quantile of a component."""
        scaled: Tensor = torch.special.ndtri(torch.tensor(level, dtype=self.means.dtype))
        of_components = self.means + self.stds * scaled
        low, high = of_components.amin(-1), of_components.amax(-1)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            below = self._cdf(middle) < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2

    def _cdf(self, value: Tensor) -> Tensor:
        of_components: Tensor = torch.special.ndtr((value.unsqueeze(-1) - self.means) / self.stds)
        return (self.log_weights.exp() * of_components).sum(-1)


def _mean_distance(mean: Tensor, std: Tensor) -> Tensor:
    """Return the mean of a Gaussian's absolute value."""
    scaled = mean / std
    density = torch.exp(-scaled.square() / 2) / math.sqrt(2 * math.pi)
    return 2 * std * density + mean * torch.erf(scaled / math.sqrt(2))


@dataclasses.dataclass(frozen=True)
class Quantiles(Prediction):
    """Quantiles at the levels (i + 1/2) / m, (rows, m), in any order: m equal point masses, without a density."""

    values: Tensor

    def crps(self, value: Tensor) -> Tensor:
        """Return the exact score of the point masses: twice the mean pinball loss over these levels."""
        return 2 * pinball(self.values.sort(-1).values, value).mean(-1)

    def icdf(self, level: float) -> Tensor:
        """Interpolate linearly between the nearest two levels."""
        values = self.values.sort(-1).values
        count = values.shape[-1]
        place = min(max(level * count - 0.5, 0.0), count - 1.0)
        lower = min(int(place), count - 2)
        return torch.lerp(values[..., lower], values[..., lower + 1], place - lower)


def pinball(quantiles: Tensor, value: Tensor) -> Tensor:
    """Return the pinball loss of every quantile, at the levels (i + 1/2) / m, (rows, m)."""
    count = quantiles.shape[-1]
    levels = (torch.arange(count, dtype=quantiles.dtype) + 0.5) / count
    above = value.unsqueeze(-1) - quantiles
    return torch.maximum(levels * above, (levels - 1) * above)
