"""The experiment on the main VAE: presets and tables."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any, cast

import pandas as pd

from catnat_experiments.common import mnist
from catnat_experiments.engine.types import Config
from catnat_experiments.report.tables import Claim, Curve, Table
from catnat_experiments.report.targets import claimed_rows
from catnat_experiments.tasks.vae.experiment import Autoencoder, Cell, Preset
from catnat_experiments.tasks.vae.gumbel import BATCH, Training
from catnat_experiments.tasks.vae.variants import (
    ABLATED,
    ALL,
    CLASSES,
    FACTORS,
    FITTED,
    FITTING,
    LATENTS,
    OPTIMIZERS,
    PAPER,
)

# ---- presets ---------------------------------------------------------------------------------------------------------

COARSE_RATES = (0.0003, 0.001, 0.003, 0.01, 0.03)
REFINED_RATES = (0.0045, 0.0056, 0.0069, 0.0085, 0.013, 0.016, 0.02)
"""The paper's learning rates, without the one in the coarse grid."""
STEPS = 50_000
"""The public code's steps; the paper gives neither these nor the batch."""
_CELLS = tuple(Cell("adam", *cell) for cell in itertools.product(("binary", "grey"), LATENTS, CLASSES))
_BINARY = tuple(cell for cell in _CELLS if cell.data == "binary")
_ONE = Cell("adam", "binary", 20, 32)
_ADAM = Preset(
    cells=_CELLS,
    parameterizations=FITTED[1:],
    coarse=(0.003,),
    steps=STEPS,
    seeds=1,
    validation_images=1000,
    test_images=2500,
)
_SHORT = dataclasses.replace(_ADAM, steps=10_000)

PRESETS = {
    # A result in minutes: few steps, small latents, a rough NLL.
    "quick": Preset(
        cells=(Cell("adam", "binary", 10, 8),),
        parameterizations=FITTED,
        coarse=(0.003, 0.0056),
        search_steps=250,
        seeds=2,
        steps=1000,
        validation_images=500,
        test_images=500,
        test_samples=128,
    ),
    # The paper's table with Adam, without sparsemax, at one learning rate: one seed, the tests are over the settings.
    "adam": _ADAM,
    # Its binary half with sparsemax and a second seed.
    "adam-binary": dataclasses.replace(_ADAM, cells=_BINARY, parameterizations=FITTED, seeds=2),
    # One setting of it with three seeds.
    "one-cell": dataclasses.replace(_ADAM, cells=(_ONE,), seeds=3),
    # The table with Adam after a fifth of the steps.
    "short": _SHORT,
    # The binary half of the paper's table with SGD after a fifth of the steps, at one learning rate.
    "sgd": dataclasses.replace(_SHORT, cells=tuple(cell._replace(optimizer="sgd") for cell in _BINARY), coarse=(0.01,)),
    # The search for the recipe: the public code's with one factor changed at a time, a fifth of the steps.
    "recipe": Preset(
        cells=(_ONE,),
        parameterizations=FACTORS,
        coarse=(0.003,),
        steps=10_000,
        seeds=1,
    ),
    # The source of the gain, normalization or coordinates: five variants, best of three learning rates, three seeds.
    "ablation": Preset(
        cells=(_ONE,),
        parameterizations=ABLATED,
        coarse=(0.0015, 0.003, 0.006),
        search_steps=10_000,
        steps=10_000,
        seeds=3,
        test_images=2500,
    ),
    # Both tables of the paper in full, with its grids and seeds.
    "paper": Preset(
        cells=tuple(Cell(*cell) for cell in itertools.product(("adam", "sgd"), ("grey", "binary"), LATENTS, CLASSES)),
        parameterizations=FITTED,
        coarse=COARSE_RATES,
        refined=REFINED_RATES,
        search_steps=STEPS,
        steps=STEPS,
    ),
}

# ---- the experiment, its tables and figures --------------------------------------------------------------------------


def _training(run: Config) -> Training:
    return Training(mnist.load(cast("mnist.Pixels", run["data"])), run)


EXPERIMENT = Autoencoder("vae", BATCH, PRESETS, _training)

_PAIRS = tuple(itertools.product(("sigmoid", "natural"), ("softmax", "sparsemax")))
_DATA = {"grey": "MNIST", "binary": "binary MNIST"}


def _tables(optimizer: str, data: str, latents: int) -> tuple[Table, ...]:
    """Return tables for one N: the NLL, its bound, and metrics of the latents."""
    where = f"{_DATA[data]}, N = {latents}, {OPTIMIZERS[optimizer]}"
    targets = PAPER[optimizer, data, latents]
    papers = {k: {name + FITTING: target for name, target in row.items()} for k, row in targets.items()}
    claims = tuple(
        Claim(better + FITTING, worse + FITTING, claimed_rows(targets, better, worse, "lower"))
        for better, worse in _PAIRS
    )

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
            **options,
        )

    return (
        table(
            "Test NLL",
            "test_nll",
            paper=papers,
            claims=claims,
            group="Test NLL",
            chosen=("rate",),
            curves=(
                Curve("train_loss", "loss in training"),
                Curve("validation_loss", "loss on validation images"),
            ),
            note="Nats. The paper's runs are longer than those of fewer than 50,000 steps. Posteriors with exact zeros "
            "(sparsemax, natural) never draw some latents, which biases their estimate upwards.",
        ),
        table("Negative ELBO", "test_loss"),
        table(
            "Test NLL estimated on relaxed draws",
            "relaxed_nll",
            note="Of each fifth test image. The decoder gets what it was trained on, the softmax of noisy "
            "log-probabilities, and not classes: this is no likelihood.",
        ),
        table(
            "Classes alive",
            "classes_alive",
            better="higher",
            curves=(Curve("classes_alive", "classes alive, of K"),),
        ),
        table(
            "Entropy of a posterior",
            "entropy",
            digits=3,
            better=None,
            curves=(Curve("entropy", "mean entropy of a posterior, nats"),),
        ),
        table(
            "Saturated scores, fraction",
            "dead",
            digits=3,
            better=None,
            curves=(Curve("dead", "saturated scores, fraction"),),
        ),
    )


TABLES = tuple(
    table
    for optimizer, data, latents in itertools.product(("adam", "sgd"), ("binary", "grey"), LATENTS)
    for table in _tables(optimizer, data, latents)
)


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Draw all settings of a table, or curves of one, from records."""
    from catnat_experiments.tasks.vae import figures as vae_figures  # matplotlib takes a second to import

    return vae_figures.figures(frame, directory, ALL)
