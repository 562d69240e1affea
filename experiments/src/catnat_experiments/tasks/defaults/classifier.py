"""A classifier of scikit-learn's digits."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from catnat_experiments.common.parameterizations import impossible_fraction
from catnat_experiments.engine.extras import extra
from catnat_experiments.tasks.defaults.training import Training, perceptron, saturated_fraction


class Digits(NamedTuple):
    """scikit-learn's 1,797 digits, 8 x 8 pixels from 0 to 1: images and classes of three splits."""

    images: dict[str, Tensor]
    classes: dict[str, Tensor]

    @property
    def means(self) -> NDArray[np.float64]:
        """The mean training image of every class."""
        images, classes = self.images["train"], self.classes["train"]
        return np.stack([images[classes == k].double().mean(0).numpy() for k in range(10)])


@functools.cache
def digits() -> Digits:
    """Return the digits in one random order for all runs: 1,000 for training, 297 for validation, 500 for test."""
    with extra("defaults"):
        from sklearn.datasets import load_digits  # takes a second to import

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images, classes = torch.from_numpy(data.data[order]).float() / 16, torch.from_numpy(data.target[order])
    sizes = {"train": slice(0, 1000), "validation": slice(1000, 1297), "test": slice(1297, None)}
    return Digits({name: images[at] for name, at in sizes.items()}, {name: classes[at] for name, at in sizes.items()})


class Classifier(Training):
    """A perceptron that classifies digits, trained by cross entropy."""

    def _start(self) -> None:
        self.kind = self._ordered(str(self.run["order"]), digits().means)
        self.model = perceptron(64, int(self.run["hidden"]), self.kind.num_scores(10))

    def loss(self) -> Tensor:
        """Return the cross entropy of a batch, in nats."""
        images, classes = digits().images["train"], digits().classes["train"]
        rows = torch.randint(len(images), (self.batch,), generator=self.generator)
        return self._log_loss(self.model(images[rows]), classes[rows])

    def _log_loss(self, scores: Tensor, classes: Tensor) -> Tensor:
        return -self.kind.log_probs(scores).gather(-1, classes.unsqueeze(-1)).mean()

    @torch.no_grad()
    def measure(self, split: str) -> dict[str, float]:
        """Return log loss in nats, accuracy, and fractions of rows with infinite true loss and of saturated scores."""
        scores, classes = self.model(digits().images[split]), digits().classes[split]
        right = self.kind.log_probs(scores).argmax(-1) == classes
        return {
            "log_loss": float(self._log_loss(scores, classes)),
            "impossible": impossible_fraction(self.kind.probs(scores), classes),
            "accuracy": float(right.double().mean()),
            "saturated": saturated_fraction(self.kind, scores),
        }
