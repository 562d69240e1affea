"""The common training of the two VAEs: batches, steps, points of history, checkpoints, evaluation."""

from __future__ import annotations

import abc
import math
from typing import NamedTuple

import torch
from torch import Tensor

from catnat_experiments.common import mnist
from catnat_experiments.common.parameterizations import Parameterization
from catnat_experiments.engine.loop import OneRun, add_point
from catnat_experiments.engine.types import Config
from catnat_experiments.tasks.vae.model import (
    LOOKED_AT,
    METRICS,
    Model,
    bounds,
    latent_metrics,
    stream_of,
)
from catnat_experiments.tasks.vae.network import Network


class Loss(NamedTuple):
    """The negative evidence lower bound of a batch, as means over its images."""

    reconstruction: Tensor
    kl: Tensor

    @property
    def total(self) -> Tensor:
        """The sum of both parts."""
        return self.reconstruction + self.kl


class Training(OneRun):
    """One run. Its seed determines the initial parameters, the order of images and the samples."""

    changing = ("step", "parameters", "running", "order", "sums", "optimizer", "stream", "history")

    def __init__(
        self, images: mnist.Images, run: Config, network: Network, kind: Parameterization, clip: float = math.inf
    ) -> None:
        self.images, self.run, self._clip = images, run, clip
        self.steps, self.batch = int(run["steps"]), int(run["batch"])
        self.stream = stream_of("run", int(run["seed"]))
        self.parameters = network.start(self.stream)
        self.model = Model.of(network, kind, self.parameters)
        self.running = self.model.state
        # Views that are separate parameters for autograd, which is faster than a backward pass through the views.
        self._parts = [part.requires_grad_() for part in (*self.model.decoder, *self.model.encoder)]
        self.optimizer = _optimizer(str(run["optimizer"]), self.parameters, float(run["rate"]))
        self.order = torch.zeros(len(images.train), dtype=torch.int64)
        self.sums = torch.zeros(2, dtype=torch.float64)
        self.step = 0
        self.history: dict[str, list[float]] = {}
        self._looked_at = images.floats(images.validation[:LOOKED_AT])

    @abc.abstractmethod
    def objective(self, picked: Tensor) -> tuple[Tensor, Loss]:
        """Return the objective of this step on images (batch, 784) of bytes, and their loss."""

    def advance(self) -> None:
        """Do one step."""
        batches = len(self.order) // self.batch
        first = self.step % batches * self.batch
        if first == 0:
            self.order.copy_(torch.from_numpy(self.stream.permutation(len(self.order))))
        objective, found = self.objective(self.images.train[self.order[first : first + self.batch]])
        gradients = torch.autograd.grad(objective, self._parts)
        self.parameters.grad = torch.cat([gradient.flatten() for gradient in gradients])
        if self._clip < math.inf:
            torch.nn.utils.clip_grad_norm_(self.parameters, self._clip)
        self.optimizer.step()
        self.step += 1
        self.sums += torch.stack((found.reconstruction.detach(), found.kl.detach()))

    def log(self, since: int) -> list[dict[str, float]]:
        """Add a point to the history: the mean loss since step ``since``, the validation loss, metrics of latents."""
        reconstruction, kl = (self.sums / (self.step - since)).tolist()
        self.sums.zero_()
        point = {"train_loss": reconstruction + kl, "train_reconstruction": reconstruction, "train_kl": kl}
        point |= latent_metrics(self.model, self._looked_at)
        part = self.images.validation[:LOOKED_AT]
        point["validation_loss"] = bounds(self.model, self.images, part, 1, seed=0).loss
        add_point(self.history, self.step, point)
        return [point]

    def metrics(self) -> dict[str, float]:
        """Return the final metrics; those of the test set only if the run has samples for them."""
        images, run = self.images, self.run
        names = [name for name in METRICS if int(run["test_samples"]) or not name.startswith("test")]
        if not self.model.finite:
            return dict.fromkeys(names, math.nan)
        parts = {"validation": images.validation[: int(run["validation_images"])]}
        if int(run["test_samples"]):
            parts["test"] = images.test[: int(run["test_images"])]
        found = latent_metrics(self.model, self._looked_at)
        for seed, (name, part) in enumerate(parts.items()):
            measured = bounds(self.model, images, part, int(run[f"{name}_samples"]), seed)
            found |= {f"{name}_nll": measured.nll, f"{name}_loss": measured.loss}
        return {name: found[name] for name in names}


def _optimizer(name: str, parameters: Tensor, rate: float) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam([parameters], lr=rate, fused=True)
    if name == "sgd":
        return torch.optim.SGD([parameters], lr=rate)
    raise ValueError(f"`optimizer` is {name!r}, but one of these is needed: adam, sgd.")
