"""A metric of latent variables, for all models."""

from __future__ import annotations

from torch import Tensor

ALIVE = 0.1
"""A class is alive if its mean probability is at least this fraction of the uniform one."""


def classes_alive(mean_probs: Tensor) -> float:
    """Return the number of classes alive, a mean over variables, from mean probabilities (variables, K)."""
    return float((mean_probs >= ALIVE / mean_probs.shape[-1]).double().sum(-1).mean())
