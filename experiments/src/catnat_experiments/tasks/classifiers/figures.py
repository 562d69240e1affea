"""The figure of the classifiers on a taxonomy: how often a prediction is right, by how sure it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from catnat_experiments.report import plots
from catnat_experiments.report.colours import colour
from catnat_experiments.tasks.classifiers.methods import TEXT_METHODS

LEVELS = {1: "chapter", 2: "block", 3: "category"}


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """One, if there are final runs with a taxonomy."""
    final = frame[frame["stage"] == "final"] if len(frame) else frame
    runs = final[final["config.parameterization"].isin(TEXT_METHODS)] if len(final) else final
    if not len(runs):
        return []
    directory.mkdir(parents=True, exist_ok=True)
    return [reliability(runs, directory / "reliability.png")]


def reliability(runs: pd.DataFrame, path: Path) -> Path:
    """A panel for each level; below the diagonal a classifier is too sure of itself, above it not sure enough."""
    figure, panels = plots.grid(len(LEVELS), 2.6, sharex=True, sharey=True)
    of = dict(iter(runs.groupby("config.parameterization")))
    for axes, (level, name) in zip(panels, LEVELS.items(), strict=True):
        axes.axline((0, 0), slope=1, color="gray", ls="--", lw=1)
        for method in (method for method in TEXT_METHODS if method in of):
            _line(axes, of[method], level, method)
        axes.set_title(name, fontsize="medium")
        axes.set_xlabel("stated probability")
    panels[0].set_ylabel("share that is right")
    plots.legend_below(figure)
    return plots.save(figure, path)


def _line(axes: Axes, runs: pd.DataFrame, level: int, method: str) -> None:
    """Means over seeds of tenths of the test rows, from the least sure to the surest."""
    stated, right = (np.mean(runs[f"history.{what}_{level}"].tolist(), axis=0) for what in ("confidence", "accuracy"))
    axes.plot(stated, right, "o-", ms=3, lw=1.2, color=colour(method, tuple(TEXT_METHODS)), label=method)
