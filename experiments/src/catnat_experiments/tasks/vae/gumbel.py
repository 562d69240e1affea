"""The training of the main VAE: straight-through Gumbel-softmax samples, the loss, the schedules."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from catnat_experiments.common import mnist
from catnat_experiments.engine.types import Config
from catnat_experiments.tasks.vae import training
from catnat_experiments.tasks.vae.model import RELAXED_METRICS, Model, bounds, gumbel
from catnat_experiments.tasks.vae.network import Convolutional
from catnat_experiments.tasks.vae.training import Loss
from catnat_experiments.tasks.vae.variants import PLAIN, Recipe, variant_of

# ---- the loss --------------------------------------------------------------------------------------------------------


class _Draws(torch.autograd.Function):
    """Samples and entropy of the posteriors, with a quarter of the operations of autograd."""

    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, noise: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        noisy = log_probs + noise
        drawn = torch.zeros_like(noisy).scatter_(-1, noisy.max(-1, keepdim=True).indices, 1.0)
        probs = log_probs.exp()
        ctx.save_for_backward(noisy.div_(temperature).softmax(-1), log_probs, probs)
        ctx.temperature = temperature
        return drawn, torch.dot(probs.view(-1), log_probs.reshape(-1))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        relaxed, log_probs, probs = ctx.saved_tensors
        through = torch._softmax_backward_data(gradients[0], relaxed, -1, relaxed.dtype).div_(ctx.temperature)
        return through.add_((log_probs + 1).mul_(probs).mul_(gradients[1])), None, None


def draws(log_probs: Tensor, noise: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    r"""Return one-hot samples, straight-through, and the negative entropy of all posteriors together.

    The samples are the largest entries of :math:`\log p + g`; their gradient is that of :math:`\mathrm{softmax}((\log p
    + g) / T)`.

    Args:
        log_probs: The log-probabilities, (variables, classes).
        noise: Gumbel noise of the same shape.
        temperature: The temperature T of the gradient alone.
    """
    drawn, negative_entropy = _Draws.apply(log_probs, noise, temperature)  # type: ignore[no-untyped-call]
    return drawn, negative_entropy


class _CrossEntropy(torch.autograd.Function):
    """The loss and its gradient from one sigmoid, in a third of torch's time."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        probs = logits.sigmoid()
        # softplus(l) = l - log sigmoid(l), and not below 0 where the sigmoid underflows
        softplus = (logits - probs.clamp(min=1e-37).log_()).clamp_(min=0)
        ctx.save_for_backward(probs, targets)
        return softplus.sum() - torch.dot(targets.view(-1), logits.view(-1))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        probs, targets = ctx.saved_tensors
        return (probs - targets).mul_(gradients[0]), None


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of ``binary_cross_entropy_with_logits``, for contiguous tensors."""
    result: Tensor = _CrossEntropy.apply(logits, targets)  # type: ignore[no-untyped-call]
    return result


def relaxed_draws(log_probs: Tensor, noise: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    r"""Return the same with :math:`\mathrm{softmax}((\log p + g) / T)` in place of the one-hot samples."""
    return ((log_probs + noise) / temperature).softmax(-1), (log_probs.exp() * log_probs).sum()


def loss(model: Model, images: Tensor, noise: Tensor, temperature: float, *, relaxed: bool = False) -> Loss:
    r"""Return the loss of one batch in training mode.

    .. math:: -\log p(x \mid c) + \sum_n \mathrm{KL}(q_n \,\|\, \mathrm{uniform})

    Args:
        model: The model, whose state of batch normalization is updated.
        images: The images, (784, batch), from 0 to 1.
        noise: Gumbel noise, (batch * N, K).
        temperature: The temperature of the relaxed samples.
        relaxed: Whether the decoder gets relaxed samples. Then the loss is no bound of the likelihood.
    """
    network, batch = model.network, images.shape[1]
    scores = network.encode(model.encoder, model.state, images, training=True).flatten(0, 1)
    log_probs = model.kind.log_probs(scores)
    drawn, negative_entropy = (relaxed_draws if relaxed else draws)(log_probs, noise, temperature)
    drawn = drawn.view(batch, network.latents, network.classes)
    logits = network.decode(model.decoder, model.state, drawn, training=True)
    return Loss(cross_entropy(logits, images) / batch, negative_entropy / batch + model.constant)


# ---- training --------------------------------------------------------------------------------------------------------

BATCH = 100
RELAXED_EVERY = 5
"""Estimates on relaxed samples, which take three times as long, use every fifth test image."""
BLOCKS = 50
"""The number of blocks with constant learning rate and temperature in a run: 1,000 of 50,000 steps each."""
COOLING = 0.03


def schedule(step: int, steps: int, recipe: Recipe = PLAIN) -> tuple[float, float]:
    """Return the learning rate's factor at a step (from 0), and the temperature: 0.5 from step 24,000 of 50,000.

    >>> schedule(0, 50_000), schedule(1_999, 50_000)
    ((1.0, 1.0), (0.9, 0.9704455335485082))
    """
    block = step * BLOCKS // steps
    temperature = max(recipe.coolest, math.exp(-COOLING * block))
    return recipe.rate_factor**block, temperature


class Training(training.Training):
    """One run of the main VAE."""

    def __init__(self, images: mnist.Images, run: Config) -> None:
        variant, classes = variant_of(str(run["parameterization"])), int(run["classes"])
        network = Convolutional(int(run["latents"]), classes, variant.kind.num_scores(classes))
        super().__init__(images, run, network, variant.kind, clip=variant.recipe.clip)
        self._recipe = variant.recipe

    def objective(self, picked: Tensor) -> tuple[Tensor, Loss]:
        """Return the loss with the recipe's weight of the KL divergence, and the loss itself."""
        factor, temperature = schedule(self.step, self.steps, self._recipe)
        self.optimizer.param_groups[0]["lr"] = factor * float(self.run["rate"])
        network = self.model.network
        noise = gumbel((self.batch * network.latents, network.classes), self.stream)
        pixels = self.images.floats(picked.t().contiguous())
        found = loss(self.model, pixels, noise, temperature, relaxed=self._recipe.relaxed)
        return found.reconstruction + self._recipe.divergence * found.kl, found

    def metrics(self) -> dict[str, float]:
        """Return the final metrics; for a decoder trained on relaxed samples, also estimates on them."""
        found, run = super().metrics(), self.run
        if not int(run["test_samples"]) or not self._recipe.relaxed:
            return found
        if not self.model.finite:
            return found | dict.fromkeys(RELAXED_METRICS, math.nan)
        part = self.images.test[: int(run["test_images"])][::RELAXED_EVERY]
        _, temperature = schedule(self.steps - 1, self.steps, self._recipe)
        measured = bounds(self.model, self.images, part, int(run["test_samples"]), seed=1, temperature=temperature)
        return found | dict(zip(RELAXED_METRICS, measured, strict=True))
