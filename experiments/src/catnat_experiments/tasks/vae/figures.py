"""The figures of the VAEs: all settings of a table, and the latents in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from catnat_experiments.report import plots
from catnat_experiments.report.colours import colour
from catnat_experiments.tasks.vae.experiment import Cell
from catnat_experiments.tasks.vae.variants import OPTIMIZERS, PAPER

CURVES = {
    "validation_loss": "loss on validation images",
    "entropy": "entropy of a posterior, nats",
    "classes_alive": "classes alive",
    "dead": "saturated scores, fraction",
}


def figures(
    frame: pd.DataFrame, directory: Path, columns: Sequence[str], keys: Sequence[str] = Cell._fields
) -> list[Path]:
    """Draw an overview of several settings, or for one setting curves of final runs that agree in some keys.

    Args:
        frame: The records.
        directory: The folder of the figures.
        columns: The parameterizations, in the order of the tables.
        keys: The keys of the config.
    """
    final = frame[frame["stage"] == "final"] if len(frame) else frame
    if len(final) and len(final.groupby([f"config.{key}" for key in Cell._fields])) > 1:
        return [overview(final, columns, directory / "cells.png")]
    drawn = []
    for cell, runs in final.groupby([f"config.{key}" for key in keys]) if len(final) else ():
        name = plots.slug(" ".join(map(str, cell)))
        present = _present(runs, columns)
        colours = {column: colour(column, present) for column in present}
        drawn.append(curves(runs, colours, directory / f"curves-{name}.png"))
    return drawn


def overview(final: pd.DataFrame, columns: Sequence[str], path: Path) -> Path:
    """Draw all settings of a table: a row each, a dot for every parameterization, a cross for the paper's number."""
    data = sorted(set(zip(final["config.optimizer"], final["config.data"], strict=True)))
    sizes = sorted(set(zip(final["config.latents"], final["config.classes"], strict=True)))
    figure = Figure(figsize=(plots.WIDTH, 1.3 + 0.24 * len(sizes)), layout="constrained")
    panels = figure.subplots(1, len(data), squeeze=False, sharey=True)[0]
    means = final.groupby([*(f"config.{key}" for key in Cell._fields), "config.parameterization"])["metrics.test_nll"]
    found = means.mean().to_dict()
    for axes, (optimizer, images) in zip(panels, data, strict=True):
        for column in _present(final, columns):
            base = column.partition("+")[0]
            ours = [found.get((optimizer, images, *size, column), np.nan) for size in sizes]
            papers = [_in_the_paper(optimizer, images, n, k, base) for n, k in sizes]
            shade = colour(base, columns)
            axes.plot(ours, range(len(sizes)), "o", ms=5, color=shade, label=base)
            axes.plot(papers, range(len(sizes)), "x", ms=5, color=shade, alpha=0.6)
        axes.plot([], [], "x", color="gray", label="the paper")
        axes.set_title(f"{images} MNIST, {OPTIMIZERS[optimizer]}", fontsize="medium")
        axes.set_xlabel("test NLL, nats")
        axes.grid(axis="y", lw=0.3)
    panels[0].set_yticks(range(len(sizes)), [f"N = {n}, K = {k}" for n, k in sizes])
    panels[0].invert_yaxis()
    plots.legend_outside(figure)
    return plots.save(figure, path)


def _in_the_paper(optimizer: str, images: str, latents: int, classes: int, name: str) -> float:
    """Return the paper's mean, or NaN for a size or a parameterization that it does not have."""
    targets = PAPER.get((optimizer, images, latents), {}).get(classes, {})
    return targets[name].mean if name in targets else np.nan


def _present(runs: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """Return the columns that have runs."""
    found = set(runs["config.parameterization"])
    return [column for column in columns if column in found]


def curves(runs: pd.DataFrame, colours: Mapping[str, str], path: Path) -> Path:
    """Draw loss, entropy, classes alive and saturated scores over training: means and deviations of final runs."""
    figure = Figure(figsize=(plots.WIDTH, 5.2), layout="constrained")
    for axes, (metric, title) in zip(figure.subplots(2, 2).flatten(), CURVES.items(), strict=True):
        for name, shade in colours.items():
            mine = runs[runs["config.parameterization"] == name]
            plots.draw_history(axes, mine, metric, "step", shade, name)
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel("updates")
    plots.legend_outside(figure)
    return plots.save(figure, path)
