"""The training of the VAE by REINFORCE, and its data."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from catnat_experiments.common import mnist
from catnat_experiments.common.parameterizations import parameterization
from catnat_experiments.engine.types import Config
from catnat_experiments.tasks.vae import training
from catnat_experiments.tasks.vae.model import draw, stream_of
from catnat_experiments.tasks.vae.network import Perceptrons
from catnat_experiments.tasks.vae.training import Loss

# ---- data ------------------------------------------------------------------------------------------------------------


def binarized(levels: Tensor, stream: np.random.Generator) -> Tensor:
    """Draw pixels that are 1 with the probability of their grey level, a byte, over 255."""
    drawn = stream.integers(0, 255, levels.shape, dtype=np.uint8)
    return torch.from_numpy(drawn) < levels


@functools.cache
def images() -> mnist.Images:
    """Return all 60,000 grey images for training, and the binarized halves of the test file for validation and test.

    The halves are sampled once, so that all models are compared on the same pixels.
    """
    grey = mnist.load("grey")
    fixed = binarized(grey.test, stream_of("evaluation", 0)).to(torch.uint8)
    half = len(fixed) // 2
    return mnist.Images(torch.cat((grey.train, grey.validation)), fixed[:half], fixed[half:], 1)


# ---- training --------------------------------------------------------------------------------------------------------

BATCH = 128
CONSTANT = 125.0
"""The paper's baseline: about the reconstruction loss of a trained model."""


def surrogate(log_probs: Tensor, classes: Tensor, loss: Tensor, baseline: float = CONSTANT) -> Tensor:
    r"""Return a value whose gradient is the score-function estimate of the gradient of the expected loss.

    .. math:: \frac1B \sum_b (\ell_b - \text{baseline}) \log q(c_b \mid x_b)

    Args:
        log_probs: The log-probabilities, (batch, N, K).
        classes: Classes sampled from them, (batch, N).
        loss: The loss of the samples, (batch,).
        baseline: The number subtracted from the loss.
    """
    log_q = log_probs.gather(-1, classes.unsqueeze(-1)).squeeze(-1).sum(-1)
    return ((loss.detach() - baseline) * log_q).mean()


class Training(training.Training):
    """One run of the second VAE."""

    def __init__(self, data: mnist.Images, run: Config) -> None:
        kind, classes = parameterization(str(run["parameterization"])), int(run["classes"])
        super().__init__(data, run, Perceptrons(int(run["latents"]), classes, kind.num_scores(classes)), kind)

    def objective(self, picked: Tensor) -> tuple[Tensor, Loss]:
        """Return the loss of one sample plus its surrogate, and the loss."""
        model, network = self.model, self.model.network
        pixels = binarized(picked, self.stream).t().float()
        scores = network.encode(model.encoder, model.state, pixels, training=True)
        log_probs = model.kind.log_probs(scores)
        probs = log_probs.exp()
        classes = draw(probs.detach(), 1, self.stream).squeeze(-1)
        one_hot = F.one_hot(classes, network.classes).float()
        logits = network.decode(model.decoder, model.state, one_hot, training=True)
        reconstruction = F.binary_cross_entropy_with_logits(logits, pixels, reduction="none").sum(0)
        kl = (probs * log_probs).sum((1, 2)).mean() + model.constant
        found = Loss(reconstruction.mean(), kl)
        return found.total + surrogate(log_probs, classes, reconstruction), found

    def metrics(self) -> dict[str, float]:
        """Return the final metrics, with the paper's ELBO."""
        found = super().metrics()
        return found | ({"papers_elbo": self.model.constant - found["test_loss"]} if "test_loss" in found else {})
