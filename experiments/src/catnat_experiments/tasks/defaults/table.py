"""A table of probabilities, learned from samples."""

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
    """Return a table of probabilities, (rows, classes), float64.

    Class frequencies follow Zipf's law, and each row prefers some groups of similar classes. Classes are numbered from
    the most to the least frequent by Zipf's law.
    """
    stream = np.random.default_rng(0)
    similar = stream.normal(size=(8, 4))[stream.integers(8, size=classes)] + stream.normal(size=(classes, 4)) / 2
    logits = stream.normal(size=(rows, 4)) @ similar.T - ZIPF * np.log(np.arange(1, classes + 1))
    return torch.from_numpy(logits).softmax(-1)


def divergence(probs: Tensor, log_probs: Tensor) -> Tensor:
    r"""Return the mean over rows of :math:`\sum_k p_k (\log p_k - \log q_k)`, from probabilities p and log q."""
    result: Tensor = (torch.special.xlogy(probs, probs) - probs * log_probs).sum(-1).mean()
    return result


class Scores(nn.Module):
    """A table of free scores, which start at 0, the uniform distribution."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(shape))


class Fit(Training):
    """Free scores of a table, learned from a few samples per row and step."""

    model: Scores

    def _start(self) -> None:
        self.truth = truth(int(self.run["rows"]), int(self.run["classes"]))
        logs = self.truth.log()
        self.kind = self._ordered(str(self.run["order"]), (logs - logs.mean(0)).t().numpy())
        self.model = Scores(len(logs), self.kind.num_scores(logs.shape[1]))

    def loss(self) -> Tensor:
        """Return the mean cross entropy of the samples."""
        drawn = torch.multinomial(self.truth, self.batch, replacement=True, generator=self.generator)
        return -self.kind.log_probs(self.model.scores).gather(1, drawn).mean()

    @torch.no_grad()
    def measure(self, split: str) -> dict[str, float]:
        """Return the divergence of the model from the truth and the fraction of saturated scores, for either split."""
        log_probs = self.kind.log_probs(self.model.scores).double()
        return {
            "kl": float(divergence(self.truth, log_probs)),
            "saturated": saturated_fraction(self.kind, self.model.scores),
        }
