"""Variational autoencoders with categorical latents: the paper's Tables 3 (Adam) and 4 (SGD).

An encoder turns an image of MNIST into the scores of N categorical variables with K classes each; a decoder turns drawn
classes back into the log-odds of pixels. Both learn from the evidence lower bound, with straight-through Gumbel-softmax
draws. What is compared is how scores become class probabilities. The network is in ``vae_network.py``.

Run one configuration by hand::

    python -m catnat_experiments.vae --parameterization natural --rate .0069 --steps 10000

The recipe follows the paper, and public code for such models where the paper is silent. Our own choices: catnat has
K - 1 scores a variable, not K; 55,000 images train and 5,000 validate; the schedules of rate and temperature, made for
50,000 steps, stretch over however many steps there are; the search has seed 0 and never sees the test set, the final
runs have other seeds; all models are evaluated with the same random numbers.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import math
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from catnat_experiments import mnist
from catnat_experiments.experiment import Config, Keeper, Outcome, Stage
from catnat_experiments.parameterizations import Parameterization, parameterization
from catnat_experiments.records import run_id
from catnat_experiments.report import Claim, Curve, Table
from catnat_experiments.vae_network import Decoder, Encoder, Network

# ---- the paper's numbers ---------------------------------------------------------------------------------------------

IN_THE_PAPER = ("sparsemax", "softmax", "sigmoid", "natural")
BEYOND = (
    "natural-reflect",
    "natural-isotropic",
    "sigmoid-natural-gradient",
    "natural-natural-gradient",
    "softmax-natural-gradient",
)
ALL = (*IN_THE_PAPER, *BEYOND)
LATENTS, CLASSES = (10, 20, 30), (8, 16, 32)

_TABLE_3 = {  # Adam: data, N -> for every parameterization of the paper the NLL at K = 8, 16, 32
    ("grey", 10): ((102.5, 101.1, 101.3), (100.9, 98.1, 98.6), (99.5, 97.7, 96.6), (99.8, 97.6, 96.9)),
    ("grey", 20): ((102.1, 102.1, 103.8), (97.8, 97.5, 98.2), (97.5, 96.9, 97.0), (97.7, 97.0, 96.9)),
    ("grey", 30): ((105.3, 103.9, 104.9), (98.8, 98.8, 99.3), (98.1, 97.6, 97.9), (97.9, 97.6, 97.7)),
    ("binary", 10): ((87.0, 83.4, 85.2), (84.9, 81.0, 79.9), (83.0, 78.8, 76.9), (83.2, 78.7, 77.3)),
    ("binary", 20): ((84.3, 83.6, 85.1), (78.3, 78.1, 79.2), (77.5, 76.7, 76.2), (77.1, 76.6, 76.8)),
    ("binary", 30): ((86.9, 87.2, 88.7), (79.0, 79.2, 80.6), (77.9, 77.8, 77.9), (77.9, 77.7, 78.0)),
}
_TABLE_4 = {  # SGD, as far as we have it: data, N, K
    ("grey", 30, 32): (123.7, 110.4, 104.8, 102.0),
    ("binary", 30, 32): (112.1, 85.1, 82.9, 83.5),
}
PAPER: dict[tuple[str, str, int], dict[int, dict[str, float]]] = {
    ("adam", data, latents): {
        classes: {name: row[place] for name, row in zip(IN_THE_PAPER, rows, strict=True)}
        for place, classes in enumerate(CLASSES)
    }
    for (data, latents), rows in _TABLE_3.items()
} | {
    ("sgd", data, latents): {classes: dict(zip(IN_THE_PAPER, row, strict=True))}
    for (data, latents, classes), row in _TABLE_4.items()
}
"""Test NLL: optimizer, data, N -> K -> parameterization."""

METRICS = {
    "test_nll": "negative log-likelihood of the test set, by importance sampling",
    "test_loss": "the negative evidence lower bound of the test set",
    "validation_nll": "the same estimate on the validation set with fewer samples; rates are selected by it",
    "validation_loss": "the negative evidence lower bound of the validation set",
    "kl": "its second part: how far the posteriors are from uniform, summed over the variables",
    "entropy": "mean entropy of a variable's posterior, in nats",
    "dead": "share of scores that are dead for an image: certain, and without a gradient",
    "dead_everywhere": "share of scores that are dead for each of the images looked at",
    "classes_alive": "classes of a variable that are used: of mean probability at least 1 / (10 K)",
    "classes_used": "the exponential of the entropy of a variable's mean posterior",
}

# ---- random numbers --------------------------------------------------------------------------------------------------

_PURPOSES = ("run", "evaluation", "pictures")


def _stream(purpose: str, *numbers: int) -> np.random.Generator:
    """Random numbers of their own for every purpose and seed."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence((_PURPOSES.index(purpose), *numbers))))


def gumbel(shape: tuple[int, ...], stream: np.random.Generator) -> Tensor:
    """Standard Gumbel noise, ``-log(-log u)``, from -2.8 to 16.6: of more, u has too few bits."""
    size = math.prod(shape)
    words = stream.integers(0, 2**64 - 1, math.ceil(size / 2), dtype=np.uint64, endpoint=True)
    bits = words.view(np.uint32)[:size]
    # 23 random bits as the digits of a float from 1 to 2: its distance from 1, in the middle of a digit, is u.
    bits >>= 9
    bits |= 0x3F800000
    uniform = torch.from_numpy(bits.view(np.float32)).sub_(1 - 2.0**-24)
    return uniform.log_().neg_().log_().neg_().view(shape)


# ---- the loss --------------------------------------------------------------------------------------------------------


class _Draws(torch.autograd.Function):
    """Both uses of the posteriors in one step: a quarter of the operations that autograd would need."""

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
    r"""One-hot draws, straight-through, and the negative entropy of all posteriors together.

    The draws are the largest entries of :math:`\log p + g`; their gradient is that of :math:`\mathrm{softmax}((\log p +
    g) / T)`.

    Args:
        log_probs: (variables, classes).
        noise: Gumbel noise of the same shape.
        temperature: T, of the gradient alone.
    """
    drawn, negative_entropy = _Draws.apply(log_probs, noise, temperature)  # type: ignore[no-untyped-call]
    return drawn, negative_entropy


class _CrossEntropy(torch.autograd.Function):
    """Both steps from one sigmoid: a third of the time of torch's."""

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
    """``binary_cross_entropy_with_logits``, summed; for contiguous tensors."""
    result: Tensor = _CrossEntropy.apply(logits, targets)  # type: ignore[no-untyped-call]
    return result


class Loss(NamedTuple):
    """The negative evidence lower bound of a batch, as means over its images."""

    reconstruction: Tensor
    kl: Tensor

    @property
    def total(self) -> Tensor:
        """What is minimized."""
        return self.reconstruction + self.kl


class Model(NamedTuple):
    """A network, its parameters, and what its scores mean."""

    network: Network
    kind: Parameterization
    encoder: Encoder
    decoder: Decoder
    state: Tensor  # of batch normalization; updated in training

    @classmethod
    def of(cls, network: Network, kind: Parameterization, parameters: Tensor) -> Model:
        """With parameters from one vector, which the model sees change."""
        return cls(network, kind, *network.split(parameters), network.start_state())

    @property
    def finite(self) -> bool:
        """Whether training has not diverged."""
        return all(bool(part.isfinite().all()) for part in (*self.encoder, *self.decoder, self.state))

    @property
    def constant(self) -> float:
        """``N log K``: minus the log-probability of latents under the uniform prior."""
        return self.network.latents * math.log(self.network.classes)


def loss(model: Model, images: Tensor, noise: Tensor, temperature: float) -> Loss:
    r"""The loss of one batch in training mode.

    .. math:: -\log p(x \mid c) + \sum_n \mathrm{KL}(q_n \,\|\, \mathrm{uniform})

    Args:
        model: The state of its batch normalization is updated.
        images: (784, batch), from 0 to 1.
        noise: Gumbel noise, (batch * N, K).
        temperature: Of the relaxed draws.
    """
    network, batch = model.network, images.shape[1]
    scores = network.encode(model.encoder, model.state, images, training=True).flatten(0, 1)
    log_probs = model.kind.log_probs(model.kind.wrap(scores))
    drawn, negative_entropy = draws(log_probs, noise, temperature)
    drawn = drawn.view(batch, network.latents, network.classes)
    logits = network.decode(model.decoder, model.state, drawn, training=True)
    return Loss(cross_entropy(logits, images) / batch, negative_entropy / batch + model.constant)


# ---- evaluation ------------------------------------------------------------------------------------------------------

ROWS = 512
"""Draws that are decoded at a time: their layers fit into a processor's cache."""
LOOKED_AT = 1000
"""Validation images that the curves are computed from."""
ALIVE = 0.1
"""A class is alive if its mean probability is at least this share of the uniform one."""


def posterior(model: Model, images: Tensor) -> Tensor:
    """Scores of images (batch, 784) in evaluation mode, (batch, N, scores)."""
    return model.network.encode(model.encoder, model.state, images.t().contiguous(), training=False)


def decoded(model: Model, classes: Tensor) -> Tensor:
    """The log-odds of pixels, (784, batch), for classes (batch, N), in evaluation mode."""
    return model.network.decode_classes(model.decoder, model.state, classes)


def log_weights(model: Model, images: Tensor, samples: int, stream: np.random.Generator) -> Tensor:
    r"""Importance weights of latents that the posterior draws for each image: (images, samples), float64.

    .. math:: \log w = \log p(x \mid c) - N \log K - \sum_n \log q_n(c_n \mid x), \qquad c \sim q

    Args:
        model: In evaluation mode.
        images: (images, 784), from 0 to 1.
        samples: Draws for each image.
        stream: Of random numbers.
    """
    probs = model.kind.probs(posterior(model, images)).double()
    probs = probs / probs.sum(-1, keepdim=True)
    below = probs.cumsum(-1)
    uniform = torch.from_numpy(stream.random((*probs.shape[:2], samples)))
    # A class is drawn if the uniform number lies in its part of the interval: never one of probability 0.
    classes = torch.searchsorted(below, uniform * below[..., -1:], right=True)
    log_q = probs.log().gather(-1, classes).sum(1)
    return log_likelihood(model, images, classes.transpose(1, 2)) - model.constant - log_q


def log_likelihood(model: Model, images: Tensor, classes: Tensor) -> Tensor:
    """``log p(x | c)`` of images (images, 784) with latents (images, samples, N), float64."""
    count, samples, _ = classes.shape
    logits = decoded(model, classes.flatten(0, 1))
    logits = logits.view(-1, count, samples)
    agreement = torch.bmm(images.unsqueeze(1), logits.transpose(0, 1)).squeeze(1)
    return (agreement - F.softplus(logits).sum(0)).double()


class Bounds(NamedTuple):
    """Means over images of two upper bounds of the negative log-likelihood."""

    nll: float
    loss: float


@torch.no_grad()
def bounds(model: Model, images: mnist.Images, part: Tensor, samples: int, seed: int) -> Bounds:
    r"""The importance-weighted estimate of the NLL, and the negative evidence lower bound.

    .. math:: \mathrm{NLL} \approx -\log \frac1S \sum_s w_s, \qquad -\mathrm{ELBO} \approx -\frac1S \sum_s \log w_s

    The first is above the NLL in expectation, and the more samples, the less. A posterior with exact zeros (sparsemax,
    natural) never draws some latents, so its estimate stays above however many samples there are.

    Args:
        model: In evaluation mode.
        images: The data set.
        part: Some of its images, as bytes.
        samples: S.
        seed: Of the random numbers, the same for all models.
    """
    stream, nll, negative_bound = _stream("evaluation", seed), 0.0, 0.0
    for some in torch.split(part, max(1, ROWS // samples)):
        weights = log_weights(model, images.floats(some), samples, stream)
        nll -= float((weights.logsumexp(1) - math.log(samples)).sum())
        negative_bound -= float(weights.mean(1).sum())
    return Bounds(nll / len(part), negative_bound / len(part))


@torch.no_grad()
def latent_metrics(model: Model, images: Tensor) -> dict[str, float]:
    """What the posteriors of some images (images, 784) look like: entropy, divergence, dead scores, used classes."""
    scores = torch.cat([posterior(model, some) for some in torch.split(images, 250)])
    probs, dead = model.kind.probs(scores).double(), model.kind.saturated(scores)
    entropy = torch.special.entr(probs).sum(-1)
    mean = probs.mean(0)
    classes = probs.shape[-1]
    return {
        "kl": model.constant - float(entropy.sum(1).mean()),
        "entropy": float(entropy.mean()),
        "dead": float(dead.double().mean()),
        "dead_everywhere": float(dead.all(0).double().mean()),
        "classes_alive": float((mean >= ALIVE / classes).double().sum(-1).mean()),
        "classes_used": float(torch.special.entr(mean).sum(-1).exp().mean()),
    }


# ---- pictures --------------------------------------------------------------------------------------------------------

PICTURES = 8
LEVELS = 15
"""Grey levels of the pictures in a record, beside 0."""
_BYTES = 6


def pack(array: NDArray[np.uint8]) -> list[float]:
    """Bytes, compressed, as numbers that a record's history can hold: 6 bytes each, after the number of bytes.

    >>> unpack(pack(np.arange(5, dtype=np.uint8))).tolist()
    [0, 1, 2, 3, 4]
    """
    content = zlib.compress(array.tobytes(), 9)
    chunks = (content[place : place + _BYTES].ljust(_BYTES, b"\0") for place in range(0, len(content), _BYTES))
    return [float(len(content)), *(float(int.from_bytes(chunk, "big")) for chunk in chunks)]


def unpack(numbers: Sequence[float]) -> NDArray[np.uint8]:
    """The bytes of :func:`pack`."""
    content = b"".join(int(number).to_bytes(_BYTES, "big") for number in numbers[1:])[: int(numbers[0])]
    return np.frombuffer(zlib.decompress(content), np.uint8)


@torch.no_grad()
def pictures(model: Model, images: Tensor) -> dict[str, list[float]]:
    """The first test images, what the model makes of them, and images from the prior, as packed grey levels."""
    stream, network = _stream("pictures"), model.network
    some = images[:PICTURES]
    probs = model.kind.probs(posterior(model, some)).double().cumsum(-1)
    uniform = torch.from_numpy(stream.random((*probs.shape[:2], 1)))
    drawn = torch.searchsorted(probs, uniform * probs[..., -1:], right=True).squeeze(-1)
    prior = torch.from_numpy(stream.integers(0, network.classes, (PICTURES, network.latents)))
    shown = {"originals": some.t()}
    for name, classes in (("reconstructions", drawn), ("samples", prior)):
        shown[name] = decoded(model, classes).sigmoid()
    return {
        f"pictures.{name}": pack((LEVELS * values.t()).round().to(torch.uint8).numpy())
        for name, values in shown.items()
    }


# ---- training --------------------------------------------------------------------------------------------------------

SECONDS_BETWEEN_CHECKPOINTS = 20.0
LOG_POINTS = 20
BATCH = 100
BLOCKS = 50
"""Rate and temperature change this often in a run: every 1,000 of 50,000 steps."""
RATE_FACTOR, COOLING, COOLEST = 0.9, 0.03, 0.5


def schedule(step: int, steps: int) -> tuple[float, float]:
    """What the rate is multiplied with at a step (the first is 0), and the temperature.

    >>> schedule(0, 50_000), schedule(1_999, 50_000)
    ((1.0, 1.0), (0.9, 0.9704455335485082))
    """
    block = step * BLOCKS // steps
    return RATE_FACTOR**block, max(COOLEST, math.exp(-COOLING * block))


class Training:
    """One run. Its seed gives a stream of random numbers for start, order of images and Gumbel noise."""

    def __init__(self, images: mnist.Images, run: Config) -> None:
        self.images, self.run = images, run
        self.steps, self.batch = int(run["steps"]), int(run["batch"])
        kind, classes = parameterization(str(run["parameterization"])), int(run["classes"])
        network = Network(int(run["latents"]), classes, kind.num_scores(classes))
        self.stream = _stream("run", int(run["seed"]))
        self.parameters = network.start(self.stream)
        self.model = Model.of(network, kind, self.parameters)
        # Views that autograd takes for parameters of their own: cheaper than the way back through the views.
        self._parts = [part.requires_grad_() for part in (*self.model.decoder, *self.model.encoder)]
        self.optimizer = _optimizer(str(run["optimizer"]), self.parameters, float(run["rate"]))
        self.order = torch.zeros(len(images.train), dtype=torch.int64)
        self.sums = torch.zeros(2, dtype=torch.float64)
        self.step = 0
        self.history: dict[str, list[float]] = {}
        self._noise_shape = (self.batch * network.latents, classes)
        self._looked_at = images.floats(images.validation[:LOOKED_AT])

    def advance(self) -> None:
        """One step."""
        batches = len(self.order) // self.batch
        first = self.step % batches * self.batch
        if first == 0:
            self.order.copy_(torch.from_numpy(self.stream.permutation(len(self.order))))
        picked = self.images.train[self.order[first : first + self.batch]]
        factor, temperature = schedule(self.step, self.steps)
        self.optimizer.param_groups[0]["lr"] = factor * float(self.run["rate"])
        noise = gumbel(self._noise_shape, self.stream)
        found = loss(self.model, self.images.floats(picked.t().contiguous()), noise, temperature)
        gradients = torch.autograd.grad(found.total, self._parts)
        self.parameters.grad = torch.cat([gradient.flatten() for gradient in gradients])
        self.optimizer.step()
        self.step += 1
        self.sums += torch.stack((found.reconstruction.detach(), found.kl.detach()))

    def log(self, since: int) -> dict[str, float]:
        """Add a point to the history: means of the loss since step ``since``, and the latents of some images."""
        reconstruction, kl = (self.sums / (self.step - since)).tolist()
        self.sums.zero_()
        point = {"train_loss": reconstruction + kl, "train_reconstruction": reconstruction, "train_kl": kl}
        point |= latent_metrics(self.model, self._looked_at)
        part = self.images.validation[:LOOKED_AT]
        point["validation_loss"] = bounds(self.model, self.images, part, 1, seed=0).loss
        for name, value in (("step", float(self.step)), *point.items()):
            self.history.setdefault(name, []).append(value)
        return point

    def _tensors(self) -> tuple[Tensor, ...]:
        return self.parameters, self.model.state, self.order, self.sums

    def state(self) -> dict[str, Any]:
        """A checkpoint: all that changes, copied."""
        optimizer = self.optimizer.state_dict()["state"].get(0, {})
        return {
            "step": self.step,
            "tensors": [tensor.clone() for tensor in self._tensors()],
            "optimizer": {name: value.clone() for name, value in optimizer.items() if value is not None},
            "stream": self.stream.bit_generator.state,
            "history": {name: list(values) for name, values in self.history.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        for tensor, saved in zip(self._tensors(), state["tensors"], strict=True):
            tensor.copy_(saved)
        whole = self.optimizer.state_dict()
        self.optimizer.load_state_dict({**whole, "state": {0: state["optimizer"]} if state["optimizer"] else {}})
        self.stream.bit_generator.state = state["stream"]
        self.step = state["step"]
        self.history = {name: list(values) for name, values in state["history"].items()}


def _optimizer(name: str, parameters: Tensor, rate: float) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam([parameters], lr=rate, fused=True)
    if name == "sgd":
        return torch.optim.SGD([parameters], lr=rate)
    raise ValueError(f"`optimizer` is {name!r}, but one of these is needed: adam, sgd.")


def train(run: Config, keeper: Keeper) -> Outcome:
    """Train one run, going on from the keeper's checkpoint if there is one, and evaluate it."""
    torch.set_num_threads(1)
    training = Training(mnist.load(cast("mnist.Pixels", run["data"])), run)
    saved = keeper.load()
    if saved is not None:
        training.restore(saved)
    _run(training, keeper)
    return Outcome(_evaluated(training), {**training.history, **_kept_pictures(training)})


def _run(training: Training, keeper: Keeper) -> None:
    """All steps that are left, with points of history and checkpoints on the way."""
    points = [0, *(round(training.steps * (point + 1) / LOG_POINTS) for point in range(LOG_POINTS))]
    since = {now: before for before, now in itertools.pairwise(points) if now > before}
    saved = time.monotonic()
    while training.step < training.steps:
        training.advance()
        if training.step in since:
            keeper.scalars(0, training.step, training.log(since[training.step]))
        if time.monotonic() - saved >= SECONDS_BETWEEN_CHECKPOINTS or training.step == training.steps:
            keeper.save(training.state(), training.step, training.steps)
            saved = time.monotonic()


def _evaluated(training: Training) -> dict[str, float]:
    """The final metrics; those of the test set only if the run has samples for them."""
    model, images, run = training.model, training.images, training.run
    names = [name for name in METRICS if int(run["test_samples"]) or not name.startswith("test")]
    if not model.finite:
        return dict.fromkeys(names, math.nan)
    parts = {"validation": images.validation[: int(run["validation_images"])]}
    if int(run["test_samples"]):
        parts["test"] = images.test[: int(run["test_images"])]
    found = latent_metrics(model, images.floats(images.validation[:LOOKED_AT]))
    for seed, (name, part) in enumerate(parts.items()):
        measured = bounds(model, images, part, int(run[f"{name}_samples"]), seed)
        found |= {f"{name}_nll": measured.nll, f"{name}_loss": measured.loss}
    return {name: found[name] for name in names}


def _kept_pictures(training: Training) -> dict[str, list[float]]:
    if not int(training.run["test_samples"]) or not training.model.finite:
        return {}
    return pictures(training.model, training.images.floats(training.images.test[:PICTURES]))


# ---- presets and stages ----------------------------------------------------------------------------------------------

COARSE_RATES = (0.0003, 0.001, 0.003, 0.01, 0.03)
REFINED_RATES = (0.0045, 0.0056, 0.0069, 0.0085, 0.013, 0.016, 0.02)
"""The paper's, without the one that is in the coarse grid too."""
SEARCH_SEED = 0
"""The seed of the search. Final runs have the seeds 1, 2, ...: no run is both selected by its luck and reported."""
STEPS = 50_000


class Cell(NamedTuple):
    """One cell of the paper's tables, which has a rate of its own for each parameterization."""

    optimizer: str
    data: str
    latents: int
    classes: int


@dataclasses.dataclass(frozen=True)
class Preset:
    """How much of the tables to compute.

    Attributes:
        cells: Which cells.
        parameterizations: Of each cell.
        coarse: The rates to search.
        refined: A second grid, the same for all.
        search_steps: Of the runs of the search.
        seeds: Final runs of each cell and parameterization.
        steps: Their steps.
        validation_images: How many of the 5,000 rates are selected by.
        test_images: How many of the 10,000 the NLL is estimated on.
        test_samples: Importance samples for each.
    """

    cells: tuple[Cell, ...]
    parameterizations: tuple[str, ...]
    coarse: tuple[float, ...]
    refined: tuple[float, ...] = ()
    search_steps: int = STEPS
    seeds: int = 5
    steps: int = STEPS
    validation_images: int = 5000
    test_images: int = 10_000
    test_samples: int = 512


_EVIDENCE = Cell("adam", "binary", 20, 32)
PRESETS = {
    # A look in minutes: few steps, small latents, a rough NLL.
    "quick": Preset(
        cells=(Cell("adam", "binary", 10, 8),),
        parameterizations=IN_THE_PAPER,
        coarse=(0.003, 0.01),
        search_steps=1000,
        seeds=2,
        steps=2500,
        validation_images=500,
        test_images=500,
        test_samples=128,
    ),
    # Two cells of the paper at its full length.
    "laptop": Preset(
        cells=(Cell("adam", "binary", 10, 8), _EVIDENCE),
        parameterizations=IN_THE_PAPER,
        coarse=(0.003, 0.0069, 0.016),
        search_steps=10_000,
        seeds=3,
    ),
    # One cell of the paper with as many seeds, its rates selected by shorter runs.
    "evidence": Preset(
        cells=(_EVIDENCE,),
        parameterizations=IN_THE_PAPER,
        coarse=(0.003, 0.0056, 0.01, 0.02),
        search_steps=20_000,
    ),
    # The same cell with plain gradient descent.
    "sgd": Preset(
        cells=(_EVIDENCE._replace(optimizer="sgd"),),
        parameterizations=IN_THE_PAPER,
        coarse=COARSE_RATES,
        search_steps=20_000,
        seeds=2,
    ),
    # Both tables of the paper in full.
    "paper": Preset(
        cells=tuple(Cell(*cell) for cell in itertools.product(("adam", "sgd"), ("grey", "binary"), LATENTS, CLASSES)),
        parameterizations=IN_THE_PAPER,
        coarse=COARSE_RATES,
        refined=REFINED_RATES,
    ),
}


class Autoencoder:
    """The experiment as the engine knows it: coarse grid, refined grid, final seeds; every run is a group."""

    name = "vae"

    def stages(self, preset: str) -> list[Stage]:
        """Coarse, refined (where the preset asks for it) and final."""
        if preset not in PRESETS:
            raise ValueError(f"`preset` is {preset!r}, but {self.name} has these: {', '.join(PRESETS)}.")
        plan = PRESETS[preset]
        cells = len(plan.cells) * len(plan.parameterizations)
        about = f"{len(plan.coarse)} rates, one seed, {plan.search_steps:,} steps"
        stages = [Stage("coarse", lambda _: _searched(plan, plan.coarse), about, cells * len(plan.coarse))]
        if plan.refined:
            about = f"{len(plan.refined)} more rates, one seed"
            stages.append(Stage("refined", lambda _: _searched(plan, plan.refined), about, cells * len(plan.refined)))
        about = f"{plan.seeds} seeds at the best rate by validation NLL, {plan.steps:,} steps"
        alike = tuple(_final_runs(plan, lambda *_: plan.coarse[0]))
        return [*stages, Stage("final", lambda records: _final(plan, records), about, len(alike), alike)]

    def groups(self, runs: list[Config]) -> list[list[Config]]:
        """Every run alone: its operations are large enough to fill a core."""
        return [[run] for run in runs]

    def train(self, runs: list[Config], keeper: Keeper) -> list[Outcome]:
        """Train one run; see :func:`train`."""
        [run] = runs
        return [train(run, keeper)]

    def seconds_per_group(self, runs: list[Config]) -> float:
        """What a run will take on this machine, from a few steps and a few evaluated images."""
        [run] = runs
        step, draw = _seconds(str(run["parameterization"]), int(run["latents"]), int(run["classes"]))
        draws = sum(int(run[f"{part}_images"]) * int(run[f"{part}_samples"]) for part in ("validation", "test"))
        return int(run["steps"]) * step + draws * draw


@functools.cache
def _seconds(name: str, latents: int, classes: int, tries: int = 3, steps: int = 5) -> tuple[float, float]:
    """Of one step, and of one draw in the evaluation: processor time, the least of a few tries."""
    torch.set_num_threads(1)
    training = Training(mnist.load("binary"), config(Cell("adam", "binary", latents, classes), name, 0.001, 0))
    training.advance()
    times: list[tuple[float, float]] = []
    for _ in range(tries):
        began = time.thread_time()
        for _ in range(steps):
            training.advance()
        middle = time.thread_time()
        bounds(training.model, training.images, training.images.test[:1], ROWS, 0)
        times.append(((middle - began) / steps, (time.thread_time() - middle) / ROWS))
    return min(step for step, _ in times), min(draw for _, draw in times)


def config(
    cell: Cell,
    name: str,
    rate: float,
    seed: int,
    *,
    steps: int = STEPS,
    validation_images: int = 5000,
    test_images: int = 10_000,
    test_samples: int = 512,
) -> Config:
    """All that decides a run's numbers."""
    return {
        "experiment": Autoencoder.name,
        **cell._asdict(),
        "parameterization": name,
        "rate": rate,
        "seed": seed,
        "steps": steps,
        "batch": BATCH,
        "validation_images": validation_images,
        "validation_samples": 64,
        "test_images": test_images,
        "test_samples": test_samples,
    }


def _search_runs(plan: Preset, cell: Cell, name: str, rates: Iterable[float]) -> list[Config]:
    """Runs of the search: without a look at the test set."""
    sizes = {"steps": plan.search_steps, "validation_images": plan.validation_images}
    return [config(cell, name, rate, SEARCH_SEED, **sizes, test_images=0, test_samples=0) for rate in rates]


def _searched(plan: Preset, rates: Iterable[float]) -> list[Config]:
    places = itertools.product(plan.cells, plan.parameterizations)
    return [run for cell, name in places for run in _search_runs(plan, cell, name, rates)]


def _best_rate(runs: Sequence[Config], records: pd.DataFrame) -> float:
    """The rate with the lowest validation NLL among these runs; other records do not count."""
    values = dict(zip(records["id"], records["metrics.validation_nll"], strict=True))
    found = {float(run["rate"]): float(values.get(run_id(run), math.nan)) for run in runs}
    finite = {rate: value for rate, value in found.items() if math.isfinite(value)}
    if not finite:
        raise ValueError(
            f"No run of {runs[0]['parameterization']} has a finite validation NLL in the records: finish the stage "
            "before, then repeat the command."
        )
    return min(finite, key=lambda rate: (finite[rate], rate))


def _final(plan: Preset, records: pd.DataFrame) -> list[Config]:
    rates = (*plan.coarse, *plan.refined)
    return _final_runs(plan, lambda cell, name: _best_rate(_search_runs(plan, cell, name, rates), records))


def _final_runs(plan: Preset, rate: Callable[[Cell, str], float]) -> list[Config]:
    """Seed after seed, so that what is finished when the work is cut off compares them all."""
    sizes = {name: getattr(plan, name) for name in ("steps", "validation_images", "test_images", "test_samples")}
    best = [(*place, rate(*place)) for place in itertools.product(plan.cells, plan.parameterizations)]
    seeds = range(SEARCH_SEED + 1, SEARCH_SEED + 1 + plan.seeds)
    return [config(*chosen, seed, **sizes) for seed, chosen in itertools.product(seeds, best)]


# ---- what the engine and the report take from this file --------------------------------------------------------------

EXPERIMENT = Autoencoder()

_CLAIMS = (
    Claim("softmax", "sparsemax"),
    Claim("sigmoid", "softmax"),
    Claim("natural", "softmax"),
    Claim("natural", "sparsemax"),
)
_DATA = {"grey": "MNIST", "binary": "binary MNIST"}


def _tables(optimizer: str, data: str, latents: int) -> tuple[Table, ...]:
    """The NLL of the paper's rows with one N, its bound, and what becomes of the latents."""
    where = f"{_DATA[data]}, N = {latents}, {optimizer.capitalize() if optimizer == 'adam' else 'SGD'}"

    def table(title: str, metric: str, digits: int = 1, **options: Any) -> Table:
        return Table(
            title=f"{title}, {where}",
            metric=metric,
            better=options.pop("better", "lower"),
            row="classes",
            row_title="K",
            column="parameterization",
            columns=ALL,
            digits=digits,
            where={"optimizer": optimizer, "data": data, "latents": latents},
            optional=True,
            **options,
        )

    return (
        table(
            "Test NLL",
            "test_nll",
            paper=PAPER.get((optimizer, data, latents), {}),
            claims=_CLAIMS,
            chosen=("rate",),
            curves=(
                Curve("train_loss", "loss in training", x="step"),
                Curve("validation_loss", "loss on validation images", x="step"),
            ),
            note="Nats. Posteriors with exact zeros (sparsemax, natural) never draw some latents, which biases their "
            "estimate upwards.",
        ),
        table("Negative ELBO", "test_loss"),
        table(
            "Classes alive",
            "classes_alive",
            better="higher",
            curves=(Curve("classes_alive", "classes alive, of K", x="step"),),
        ),
        table(
            "Entropy of a posterior",
            "entropy",
            digits=3,
            curves=(Curve("entropy", "mean entropy of a posterior, nats", x="step"),),
        ),
        table("Dead scores, share", "dead", digits=3, curves=(Curve("dead", "dead scores, share", x="step"),)),
    )


TABLES = tuple(
    table
    for optimizer, data, latents in itertools.product(("adam", "sgd"), ("binary", "grey"), LATENTS)
    for table in _tables(optimizer, data, latents)
)


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Reconstructions, images from the prior and curves, drawn from records."""
    from catnat_experiments import vae_figures  # matplotlib takes a second to import

    return vae_figures.figures(frame, directory)


# ---- one run by hand -------------------------------------------------------------------------------------------------


class _Printing:
    """A keeper that keeps nothing and prints the points of history."""

    def load(self) -> None:
        return None

    def save(self, state: Any, step: int, of: int) -> None:
        pass

    def scalars(self, run: int, step: int, values: Any) -> None:
        shown = ("train_loss", "validation_loss", "kl", "entropy", "classes_alive", "dead")
        print(f"step {step:6}  " + "  ".join(f"{name} {values[name]:.3f}" for name in shown), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one run and print its metrics."""
    parser = argparse.ArgumentParser(prog="python -m catnat_experiments.vae", description=main.__doc__)
    parser.add_argument("--optimizer", default="adam", help="adam or sgd")
    parser.add_argument("--data", default="binary", help="grey or binary")
    parser.add_argument("--latents", type=int, default=20, help="N, the number of latent variables")
    parser.add_argument("--classes", type=int, default=32, help="K, the number of their classes")
    parser.add_argument("--parameterization", default="natural")
    parser.add_argument("--rate", type=float, default=0.0069)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--test-images", type=int, default=10_000)
    parser.add_argument("--test-samples", type=int, default=512)
    given = parser.parse_args(arguments)
    cell = Cell(given.optimizer, given.data, given.latents, given.classes)
    sizes = {"steps": given.steps, "test_images": given.test_images, "test_samples": given.test_samples}
    began = time.perf_counter()
    outcome = train(config(cell, given.parameterization, given.rate, given.seed, **sizes), _Printing())
    print(f"\n{time.perf_counter() - began:.1f} s")
    for name, about in METRICS.items():
        if name in outcome.metrics:
            print(f"{name:16}{outcome.metrics[name]:12.4f}  {about}")


if __name__ == "__main__":
    main()
