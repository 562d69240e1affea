"""Variational autoencoders that learn by REINFORCE: the paper's Table 5.

Perceptrons encode and decode images of MNIST whose pixels are drawn anew, with their grey levels as probabilities, each
time that they are used. One hard draw of the latents is decoded. The decoder learns from its likelihood, the encoder
from the exact gradient of the entropy and from the score-function estimate with a baseline.

Run one configuration by hand::

    python -m catnat_experiments.vae_reinforce --parameterization natural --rate .0002 --epochs 5

The paper's "ELBO" of this table is above 0 nats in places, which that of a discrete likelihood cannot be; without the
prior's ``-N log K`` the numbers make sense. Records have both.

In the paper some runs with the natural activation end far behind the others (-122.7 +- 33.4 at N = 10). The preset
``collapse`` asks whether dead nodes are the cause. It compares the boundary that clamps with the one that reflects, and
the paper's constant baseline, which is hundreds of nats below the loss of the first steps, with a moving average.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F

from catnat_experiments.common import mnist
from catnat_experiments.common.parameterizations import parameterization
from catnat_experiments.engine.experiment import Config
from catnat_experiments.report.markdown import Curve, Table
from catnat_experiments.report.statistics import Direction
from catnat_experiments.tasks.vae import training
from catnat_experiments.tasks.vae.experiment import Autoencoder, Cell, Preset, print_run
from catnat_experiments.tasks.vae.model import draw, stream_of
from catnat_experiments.tasks.vae.network import Perceptrons
from catnat_experiments.tasks.vae.training import Loss

# ---- data ------------------------------------------------------------------------------------------------------------


def binarized(levels: Tensor, stream: np.random.Generator) -> Tensor:
    """Pixels that are 1 with the probability of their grey level, which is a byte, over 255."""
    drawn = stream.integers(0, 255, levels.shape, dtype=np.uint8)
    return torch.from_numpy(drawn) < levels


@functools.cache
def images() -> mnist.Images:
    """All 60,000 grey images for training; the test file's first half, binarized, for validation, the other for tests.

    These two are drawn once, so that all models are compared on the same pixels.
    """
    grey = mnist.load("grey")
    fixed = binarized(grey.test, stream_of("evaluation", 0)).to(torch.uint8)
    half = len(fixed) // 2
    return mnist.Images(torch.cat((grey.train, grey.validation)), fixed[:half], fixed[half:], 1)


# ---- training --------------------------------------------------------------------------------------------------------

BATCH = 128
CONSTANT = 125.0
"""The paper's baseline: about the reconstruction loss of a trained model."""
DECAY = 0.99
"""Of the moving average."""


def surrogate(log_probs: Tensor, classes: Tensor, loss: Tensor, baseline: Tensor | float) -> Tensor:
    r"""Whose gradient is the score-function estimate of the gradient of the expected loss.

    .. math:: \frac1B \sum_b (\ell_b - \text{baseline}) \log q(c_b \mid x_b)

    Args:
        log_probs: (batch, N, K).
        classes: Drawn from them, (batch, N).
        loss: Of the draws, (batch,).
        baseline: What the loss is compared with.
    """
    log_q = log_probs.gather(-1, classes.unsqueeze(-1)).squeeze(-1).sum(-1)
    return ((loss.detach() - baseline) * log_q).mean()


class Training(training.Training):
    """One run of the second VAE."""

    def __init__(self, data: mnist.Images, run: Config) -> None:
        name, _, self._moving = str(run["parameterization"]).partition("+")
        if self._moving not in ("", "moving"):
            raise ValueError(f"The baseline is {self._moving!r}, but only 'moving' can stand after a plus.")
        kind, classes = parameterization(name), int(run["classes"])
        super().__init__(data, run, Perceptrons(int(run["latents"]), classes, kind.num_scores(classes)), kind)
        self.baseline = torch.tensor(CONSTANT)

    def tensors(self) -> tuple[Tensor, ...]:
        """All that changes, beside the optimizer's."""
        return (*super().tensors(), self.baseline)

    def objective(self, picked: Tensor) -> tuple[Tensor, Loss]:
        """The loss of one draw, with what stands for the gradient of drawing it."""
        model, network = self.model, self.model.network
        pixels = binarized(picked, self.stream).t().float()
        scores = network.encode(model.encoder, model.state, pixels, training=True)
        log_probs = model.kind.log_probs(model.kind.wrap(scores))
        probs = log_probs.exp()
        classes = draw(probs.detach(), 1, self.stream).squeeze(-1)
        one_hot = F.one_hot(classes, network.classes).float()
        logits = network.decode(model.decoder, model.state, one_hot, training=True)
        reconstruction = F.binary_cross_entropy_with_logits(logits, pixels, reduction="none").sum(0)
        kl = (probs * log_probs).sum((1, 2)).mean() + model.constant
        found = Loss(reconstruction.mean(), kl)
        drawing = surrogate(log_probs, classes, reconstruction, self._compared_with(found.reconstruction.detach()))
        return found.total + drawing, found

    def _compared_with(self, mean: Tensor) -> Tensor:
        """The baseline of this step; the moving average learns of the step's own loss only afterwards."""
        now = self.baseline.clone()
        if self._moving:
            now = mean if self.step == 0 else now
            self.baseline.copy_(DECAY * now + (1 - DECAY) * mean)
        return now

    def metrics(self) -> dict[str, float]:
        """The final metrics, with the paper's."""
        found = super().metrics()
        return found | ({"papers_elbo": self.model.constant - found["test_loss"]} if "test_loss" in found else {})


# ---- presets ---------------------------------------------------------------------------------------------------------

EPOCH = 60_000 // BATCH
"""Steps in an epoch."""
COARSE_RATES = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002)
REFINED_RATES = (0.00012, 0.00015, 0.00018, 0.00022, 0.00027, 0.00033, 0.0004)
"""The paper's, without the one that is in the coarse grid too."""
IN_THE_PAPER = ("softmax", "sigmoid", "natural")
ALL = (*IN_THE_PAPER, "natural-reflect", "natural+moving", "natural-reflect+moving")
_SMALL = Cell("adam", "binarized", 10, 8)

PRESETS = {
    # A look in minutes.
    "quick": Preset(
        cells=(_SMALL,),
        parameterizations=IN_THE_PAPER,
        coarse=(0.0005, 0.001),
        search_steps=EPOCH,
        seeds=2,
        steps=3 * EPOCH,
        validation_images=500,
        test_images=500,
        test_samples=64,
    ),
    # The cell with the large spread: are its collapsed runs dead nodes?
    "collapse": Preset(
        cells=(_SMALL,),
        parameterizations=ALL,
        coarse=(0.0002, 0.0005, 0.002),
        search=False,
        search_steps=0,
        seeds=3,
        steps=10 * EPOCH,
        test_images=5000,
        test_samples=64,
    ),
    # The whole table.
    "paper": Preset(
        cells=tuple(_SMALL._replace(latents=n, classes=k) for n, k in itertools.product((10, 20, 30), (8, 16, 32))),
        parameterizations=IN_THE_PAPER,
        coarse=COARSE_RATES,
        refined=REFINED_RATES,
        search_steps=150 * EPOCH,
        steps=500 * EPOCH,
        test_images=5000,
        test_samples=64,
    ),
}

# ---- what the engine and the report take from this file --------------------------------------------------------------

EXPERIMENT = Autoencoder("vae_reinforce", BATCH, PRESETS, lambda run: Training(images(), run))


def _table(title: str, metric: str, *, better: Direction = "lower", digits: int = 1, **options: Any) -> Table:
    return Table(
        title=f"{title}, N = 10, K = 8",
        metric=metric,
        better=better,
        row="rate",
        row_title="rate",
        column="parameterization",
        columns=ALL,
        digits=digits,
        where={"latents": 10, "classes": 8},
        optional=True,
        **options,
    )


TABLES = (
    _table(
        "Negative ELBO",
        "test_loss",
        baselines=("natural",),
        curves=(Curve("validation_loss", "loss on validation images", x="step"),),
        note="Nats. Without any use of the latents it is 206.",
    ),
    _table("The paper's ELBO, without the prior", "papers_elbo", better="higher"),
    _table(
        "Dead scores, share",
        "dead",
        digits=3,
        curves=(Curve("dead", "dead scores, share", x="step"),),
        note="Scores that are dead for an image, averaged over images.",
    ),
    _table("Scores that are dead for all images, share", "dead_everywhere", digits=3),
    _table("KL divergence to the prior", "kl", better="higher", curves=(Curve("kl", "KL divergence, nats", x="step"),)),
)


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Reconstructions, images from the prior and curves, drawn from records."""
    from catnat_experiments.tasks.vae import figures as vae_figures  # matplotlib takes a second to import

    return vae_figures.figures(frame, directory, ALL, (*Cell._fields, "rate"))


# ---- one run by hand -------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one run and print its metrics."""
    parser = argparse.ArgumentParser(prog="python -m catnat_experiments.vae_reinforce", description=main.__doc__)
    parser.add_argument("--latents", type=int, default=10, help="N, the number of latent variables")
    parser.add_argument("--classes", type=int, default=8, help="K, the number of their classes")
    parser.add_argument("--parameterization", default="natural", help="+moving after it for a moving baseline")
    parser.add_argument("--rate", type=float, default=0.0002)
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    cell = Cell("adam", "binarized", given.latents, given.classes)
    sizes = {"steps": round(given.epochs * EPOCH), "test_images": 5000, "test_samples": 64}
    print_run(EXPERIMENT, EXPERIMENT.config(cell, given.parameterization, given.rate, given.seed, **sizes))


if __name__ == "__main__":
    main()
