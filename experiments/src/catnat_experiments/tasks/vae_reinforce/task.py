"""The VAE that learns by REINFORCE as the engine knows it: presets and tables."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pandas as pd

from catnat_experiments.engine.types import Direction
from catnat_experiments.report.tables import Curve, Table
from catnat_experiments.tasks.vae.experiment import Autoencoder, Cell, Preset
from catnat_experiments.tasks.vae_reinforce.training import BATCH, Training, images

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
    # The cell with the large spread: are its collapsed runs saturated nodes?
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
    # The cell with the large spread at the paper's length: does natural collapse, and are its nodes saturated?
    "table-5": Preset(
        cells=(_SMALL,),
        parameterizations=IN_THE_PAPER,
        coarse=(0.0005,),
        search=False,
        search_steps=0,
        seeds=2,
        steps=500 * EPOCH,
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

# ---- the experiment, its tables and figures --------------------------------------------------------------------------

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
        "Saturated scores, fraction",
        "dead",
        digits=3,
        curves=(Curve("dead", "saturated scores, fraction", x="step"),),
        note="Scores that are saturated for an image, averaged over images.",
    ),
    _table("Scores saturated for all images, fraction", "dead_everywhere", digits=3),
    _table("KL divergence to the prior", "kl", better="higher", curves=(Curve("kl", "KL divergence, nats", x="step"),)),
)


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Reconstructions, images from the prior and curves, drawn from records."""
    from catnat_experiments.tasks.vae import figures as vae_figures  # matplotlib takes a second to import

    return vae_figures.figures(frame, directory, ALL, (*Cell._fields, "rate"))
