"""A table of probabilities, learned from draws."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor, nn

from catnat_experiments.tasks.defaults.training import Training, saturated_fraction

ZIPF = 1.0
"""The exponent of the classes' frequencies."""


@functools.cache
def truth(rows: int, classes: int) -> Tensor:
    """A table of probabilities, (rows, classes), float64: Zipf's law, and rows that prefer groups of similar classes.

    Classes are numbered by falling frequency.
    """
    stream = np.random.default_rng(0)
    similar = stream.normal(size=(8, 4))[stream.integers(8, size=classes)] + stream.normal(size=(classes, 4)) / 2
    logits = stream.normal(size=(rows, 4)) @ similar.T - ZIPF * np.log(np.arange(1, classes + 1))
    return torch.from_numpy(logits).softmax(-1)


def divergence(probs: Tensor, log_probs: Tensor) -> Tensor:
    r"""The mean over rows of :math:`\sum_k p_k (\log p_k - \log q_k)`, from probabilities p and logarithms of q."""
    result: Tensor = (torch.special.xlogy(probs, probs) - probs * log_probs).sum(-1).mean()
    return result


class Scores(nn.Module):
    """A table of free scores; they start at 0, which is the uniform distribution."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(shape))


class Fit(Training):
    """Free scores of a table, from a few draws a row and step."""

    model: Scores

    def _start(self) -> None:
        self.truth = truth(int(self.run["rows"]), int(self.run["classes"]))
        logs = self.truth.log()
        self.kind = self._ordered(str(self.run["order"]), (logs - logs.mean(0)).t().numpy())
        self.model = Scores(len(logs), self.kind.num_scores(logs.shape[1]))

    def loss(self) -> Tensor:
        """The mean cross entropy of the draws."""
        drawn = torch.multinomial(self.truth, self.batch, replacement=True, generator=self.generator)
        return -self.kind.log_probs(self.model.scores).gather(1, drawn).mean()

    @torch.no_grad()
    def measure(self, split: str) -> dict[str, float]:
        """The divergence of the model from the truth, for both splits, and the fraction of saturated scores."""
        log_probs = self.kind.log_probs(self.model.scores).double()
        return {
            "kl": float(divergence(self.truth, log_probs)),
            "saturated": saturated_fraction(self.kind, self.model.scores),
        }
