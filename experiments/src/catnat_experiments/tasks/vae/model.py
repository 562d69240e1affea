"""The likelihood and the latents of a VAE with categorical latents, for any network."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from catnat_experiments.common import mnist, streams
from catnat_experiments.common.latents import classes_alive
from catnat_experiments.common.parameterizations import Parameterization
from catnat_experiments.tasks.vae.network import Network, Parts

METRICS = {
    "test_nll": "negative log-likelihood of the test set, by importance sampling",
    "test_loss": "the negative evidence lower bound of the test set",
    "validation_nll": "the same estimate on the validation set with fewer samples; rates are selected by it",
    "validation_loss": "the negative evidence lower bound of the validation set",
    "kl": "its second part: how far the posteriors are from uniform, summed over the variables",
    "entropy": "mean entropy of a variable's posterior, in nats",
    "dead": "fraction of scores that are saturated for an image: certain, and without a gradient",
    "dead_everywhere": "fraction of scores that are saturated for each of the images looked at",
    "classes_alive": "classes of a variable that are used: of mean probability at least 1 / (10 K)",
    "classes_used": "the exponential of the entropy of a variable's mean posterior",
}

RELAXED_METRICS = {
    "relaxed_nll": "what the estimate of the NLL becomes if the decoder gets relaxed draws: of no model with classes",
    "relaxed_loss": "the same of the negative evidence lower bound",
}
"""The metrics on the test set of runs whose decoder was trained on relaxed samples."""

stream_of = functools.partial(streams.stream_of, ("run", "evaluation"))
"""Random numbers for a purpose and a seed."""


def gumbel(shape: tuple[int, ...], stream: np.random.Generator) -> Tensor:
    """Draw standard Gumbel noise, ``-log(-log u)``, from -2.8 to 16.6, because u has 23 random bits."""
    size = math.prod(shape)
    words = stream.integers(0, 2**64 - 1, math.ceil(size / 2), dtype=np.uint64, endpoint=True)
    bits = words.view(np.uint32)[:size]
    # The random bits are the mantissa of a float from 1 to 2; u is this float minus 1, plus half a step.
    bits >>= 9
    bits |= 0x3F800000
    uniform = torch.from_numpy(bits.view(np.float32)).sub_(1 - 2.0**-24)
    return uniform.log_().neg_().log_().neg_().view(shape)


class Model(NamedTuple):
    """A network, its parameterization and its parameters."""

    network: Network
    kind: Parameterization
    decoder: Parts
    encoder: Parts
    state: Tensor  # of batch normalization; updated in training

    @classmethod
    def of(cls, network: Network, kind: Parameterization, parameters: Tensor) -> Model:
        """Return a model whose parameters are views of one vector."""
        return cls(network, kind, *network.split(parameters), network.start_state())

    @property
    def finite(self) -> bool:
        """Whether all parameters and the state are finite."""
        return all(bool(part.isfinite().all()) for part in (*self.encoder, *self.decoder, self.state))

    @property
    def constant(self) -> float:
        """``N log K``: minus the log-probability of latents under the uniform prior."""
        return self.network.latents * math.log(self.network.classes)


# ---- evaluation ------------------------------------------------------------------------------------------------------

ROWS = 512
"""The number of samples decoded at a time; their layers fit into a processor's cache."""
LOOKED_AT = 1000
"""The number of validation images for the curves."""


def posterior(model: Model, images: Tensor) -> Tensor:
    """Return the scores of images (batch, 784) in evaluation mode, (batch, N, scores)."""
    return model.network.encode(model.encoder, model.state, images.t().contiguous(), training=False)


def decoded(model: Model, classes: Tensor) -> Tensor:
    """Return the log-odds of pixels, (784, batch), for classes (batch, N), in evaluation mode."""
    return model.network.decode_classes(model.decoder, model.state, classes)


def draw(probs: Tensor, samples: int, stream: np.random.Generator) -> Tensor:
    """Draw classes, (images, N, samples), from probabilities (images, N, K), never one of probability 0."""
    below = probs.cumsum(-1)
    uniform = torch.from_numpy(stream.random((*probs.shape[:2], samples)))
    # A class is drawn if the uniform number is in its part of the interval.
    return torch.searchsorted(below, uniform * below[..., -1:], right=True)


def log_weights(model: Model, images: Tensor, samples: int, stream: np.random.Generator) -> Tensor:
    r"""Return log importance weights of latents sampled from each image's posterior, (images, samples), float64.

    .. math:: \log w = \log p(x \mid c) - N \log K - \sum_n \log q_n(c_n \mid x), \qquad c \sim q

    Args:
        model: The model.
        images: The images, (images, 784), from 0 to 1.
        samples: The number of samples for each image.
        stream: The random numbers.
    """
    probs = model.kind.probs(posterior(model, images)).double()
    probs = probs / probs.sum(-1, keepdim=True)
    classes = draw(probs, samples, stream)
    log_q = probs.log().gather(-1, classes).sum(1)
    return log_likelihood(model, images, classes.transpose(1, 2)) - model.constant - log_q


def log_likelihood(model: Model, images: Tensor, classes: Tensor) -> Tensor:
    """Return ``log p(x | c)`` of images (images, 784) with latents (images, samples, N), float64."""
    return _agreement(images, decoded(model, classes.flatten(0, 1)), classes.shape[1])


def _agreement(images: Tensor, logits: Tensor, samples: int) -> Tensor:
    """Return the log-likelihood, (images, samples), of images (images, 784) under log-odds (784, images * samples)."""
    logits = logits.view(-1, len(images), samples)
    agreement = torch.bmm(images.unsqueeze(1), logits.transpose(0, 1)).squeeze(1)
    return (agreement - F.softplus(logits).sum(0)).double()


def relaxed_log_weights(
    model: Model, images: Tensor, samples: int, stream: np.random.Generator, temperature: float
) -> Tensor:
    r"""Return :func:`log_weights` if the decoder gets relaxed samples, and c are their largest entries.

    .. math:: \log p(x \mid z) - N \log K - \sum_n \log q_n(c_n \mid x), \qquad
       z_n = \mathrm{softmax}((\log q_n + g_n) / T), \quad c_n = \arg\max z_n

    Their mean is not the likelihood of any model with classes, because the prior never gives the decoder such a z. Its
    distance from one-hot is information for the decoder that the KL divergence does not include.
    """
    network = model.network
    log_q = model.kind.log_probs(posterior(model, images)).unsqueeze(1)
    noisy = log_q + gumbel((len(images), samples, network.latents, network.classes), stream)
    of_drawn = log_q.expand_as(noisy).gather(-1, noisy.argmax(-1, keepdim=True)).sum((2, 3)).double()
    relaxed = (noisy / temperature).softmax(-1).flatten(0, 1)
    logits = network.decode(model.decoder, model.state, relaxed, training=False)
    return _agreement(images, logits, samples) - model.constant - of_drawn


class Bounds(NamedTuple):
    """Means over images of two upper bounds of the negative log-likelihood."""

    nll: float
    loss: float


@torch.no_grad()
def bounds(
    model: Model, images: mnist.Images, part: Tensor, samples: int, seed: int, temperature: float | None = None
) -> Bounds:
    r"""Return the importance-weighted estimate of the NLL, and the negative evidence lower bound.

    .. math:: \mathrm{NLL} \approx -\log \frac1S \sum_s w_s, \qquad -\mathrm{ELBO} \approx -\frac1S \sum_s \log w_s

    The first is above the NLL in expectation, by less with more samples. A posterior with exact zeros (sparsemax,
    natural) never samples some latents, so its estimate stays above the NLL with any number of samples.

    Args:
        model: The model.
        images: The data set.
        part: Some of its images, as bytes.
        samples: The number S of samples.
        seed: The seed of the random numbers, the same for all models.
        temperature: The temperature of relaxed samples, with which nothing above holds.
    """
    stream, nll, negative_bound = stream_of("evaluation", seed), 0.0, 0.0
    for some in torch.split(part, max(1, ROWS // samples)):
        if temperature is None:
            weights = log_weights(model, images.floats(some), samples, stream)
        else:
            weights = relaxed_log_weights(model, images.floats(some), samples, stream, temperature)
        nll -= float((weights.logsumexp(1) - math.log(samples)).sum())
        negative_bound -= float(weights.mean(1).sum())
    return Bounds(nll / len(part), negative_bound / len(part))


@torch.no_grad()
def latent_metrics(model: Model, images: Tensor) -> dict[str, float]:
    """Return metrics of the posteriors of images (images, 784): entropy, divergence, saturation, used classes."""
    scores = torch.cat([posterior(model, some) for some in torch.split(images, 250)])
    probs, saturated = model.kind.probs(scores).double(), model.kind.saturated(scores)
    entropy = torch.special.entr(probs).sum(-1)
    mean = probs.mean(0)
    return {
        "kl": model.constant - float(entropy.sum(1).mean()),
        "entropy": float(entropy.mean()),
        "dead": float(saturated.double().mean()),
        "dead_everywhere": float(saturated.all(0).double().mean()),
        "classes_alive": classes_alive(mean),
        "classes_used": float(torch.special.entr(mean).sum(-1).exp().mean()),
    }
