"""The experiment on the VAE trained by REINFORCE: presets and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from catnat_experiments.engine.types import Direction
from catnat_experiments.report.tables import Claim, Curve, Table
from catnat_experiments.report.targets import claimed_rows, read_targets
from catnat_experiments.tasks.vae.experiment import Autoencoder, Cell, Preset
from catnat_experiments.tasks.vae_reinforce.training import BATCH, Training, images

# ---- presets ---------------------------------------------------------------------------------------------------------

EPOCH = 60_000 // BATCH
"""The number of steps in an epoch."""
COARSE_RATES = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002)
REFINED_RATES = (0.00012, 0.00015, 0.00018, 0.00022, 0.00027, 0.00033, 0.0004)
"""The paper's learning rates, without the one in the coarse grid."""
RATES = (*COARSE_RATES, *REFINED_RATES)
ALL = ("softmax", "sigmoid", "natural")
LATENTS, CLASSES = (10, 20, 30), (8, 16, 32)
_PAPERS = read_targets(
    """
10 softmax     -95.5±0.4    -88.9±0.3    -83.1±0.2
10 sigmoid    -86.2±0.5*   -79.5±0.5*   -73.1±0.3*
10 natural   -122.7±33.4  -103.8±16.6    -79.7±8.2
20 softmax     -73.9±0.4    -61.9±0.4    -50.4±0.3
20 sigmoid    -66.7±0.4*    -53.5±0.6    -41.8±0.5
20 natural     -67.1±0.5   -53.3±0.7*   -41.3±0.5*
30 softmax     -54.0±0.3    -35.9±0.1    -18.4±0.4
30 sigmoid     -47.2±0.5   -28.0±0.7*    -10.1±0.6
30 natural    -47.1±0.7*   -28.0±0.7*    -9.6±0.4*
""",
    names=2,
)
PAPER = {
    (latents, classes): {name: _PAPERS[str(latents), name][place] for name in ALL}
    for latents in LATENTS
    for place, classes in enumerate(CLASSES)
}
"""The paper's "ELBO" (Table 6): N, K -> parameterization. Bold is the best there, without a test."""
_SMALL = Cell("adam", "binarized", 10, 8)

PRESETS = {
    # A result in minutes.
    "quick": Preset(
        cells=(_SMALL,),
        parameterizations=ALL,
        coarse=(0.0005, 0.001),
        search_steps=EPOCH,
        seeds=2,
        steps=3 * EPOCH,
        validation_images=500,
        test_images=500,
        test_samples=64,
    ),
    # The setting in which the paper's natural has a large spread, at its length and one learning rate, two seeds.
    "one-cell": Preset(
        cells=(_SMALL,),
        parameterizations=ALL,
        coarse=(0.0005,),
        seeds=2,
        steps=500 * EPOCH,
        test_images=5000,
        test_samples=64,
    ),
    # The whole table.
    "paper": Preset(
        cells=tuple(_SMALL._replace(latents=n, classes=k) for n, k in PAPER),
        parameterizations=ALL,
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


def _tables(latents: int, classes: int) -> tuple[Table, ...]:
    """Return the tables of one setting, by learning rate."""
    targets = PAPER[latents, classes]

    def table(title: str, metric: str, *, better: Direction = "lower", digits: int = 1, **options: Any) -> Table:
        return Table(
            title=f"{title}, N = {latents}, K = {classes}",
            metric=metric,
            better=better,
            row="rate",
            row_title="rate",
            column="parameterization",
            columns=ALL,
            digits=digits,
            where={"latents": latents, "classes": classes},
            **options,
        )

    return (
        table(
            "The paper's ELBO, without the prior",
            "papers_elbo",
            better="higher",
            paper=dict.fromkeys(RATES, targets),
            claims=tuple(
                Claim(name, "softmax") for name in ALL[1:] if claimed_rows({0: targets}, name, "softmax", "higher")
            ),
            curves=(Curve("validation_loss", "loss on validation images"),),
            note="The negative ELBO is the constant N log K less this number. The paper's runs have 500 epochs.",
        ),
        table("Negative ELBO", "test_loss", note="Nats."),
        table(
            "Saturated scores, fraction",
            "dead",
            digits=3,
            curves=(Curve("dead", "saturated scores, fraction"),),
            note="Scores that are saturated for an image, averaged over images.",
        ),
        table("Scores saturated for all images, fraction", "dead_everywhere", digits=3),
        table("KL divergence to the prior", "kl", better="higher", curves=(Curve("kl", "KL divergence, nats"),)),
    )


TABLES = tuple(table for cell in PAPER for table in _tables(*cell))


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Draw all settings of a table, or curves of one, from records."""
    from catnat_experiments.tasks.vae import figures as vae_figures  # matplotlib takes a second to import

    return vae_figures.figures(frame, directory, ALL, (*Cell._fields, "rate"))
