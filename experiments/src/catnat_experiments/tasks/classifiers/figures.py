"""The figures of the classifiers: what a log loss costs, and how often a prediction is right, by how sure it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from catnat_experiments.report import plots
from catnat_experiments.report.colours import colour
from catnat_experiments.tasks.classifiers.methods import METHODS, TEXT_METHODS

ALL = (*METHODS, *TEXT_METHODS)
LEVELS = {1: "chapter", 2: "block", 3: "category"}


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """One of all final runs, and one of those with a taxonomy."""
    final = frame[frame["stage"] == "final"] if len(frame) else frame
    if not len(final):
        return []
    drawn = [price(final, directory / "price.png")]
    with_taxonomy = final[final["config.parameterization"].isin(TEXT_METHODS)]
    if len(with_taxonomy):
        drawn.append(reliability(with_taxonomy, directory / "reliability.png"))
    return drawn


def price(runs: pd.DataFrame, path: Path) -> Path:
    """A panel for each data set: the log loss over the seconds that it took; the lower left corner is the best."""
    of = dict(iter(runs.groupby("config.data")))
    figure, panels = plots.grid(len(of), 2.8)
    for method in (method for method in ALL if method in set(runs["config.parameterization"])):
        panels[0].plot([], [], "o", color=colour(method, ALL), label=method)
    for axes, (data, some) in zip(panels, of.items(), strict=True):
        means = some.groupby("config.parameterization")[["metrics.fit_seconds", "metrics.test_log_loss"]].mean()
        for method, (seconds, loss) in means.iterrows():
            axes.plot([seconds], [loss], "o", color=colour(str(method), ALL))
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
        axes.margins(0.15)
        axes.set_title(str(data), fontsize="medium")
        axes.set_xlabel("processor seconds to fit")
    panels[0].set_ylabel("log loss of test rows")
    plots.legend_outside(figure)
    return plots.save(figure, path)


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
    panels[0].set_ylabel("fraction that is right")
    plots.legend_outside(figure)
    return plots.save(figure, path)


def _line(axes: Axes, runs: pd.DataFrame, level: int, method: str) -> None:
    """Means over seeds of tenths of the test rows, from the least sure to the surest."""
    stated, right = (np.mean(runs[f"history.{what}_{level}"].tolist(), axis=0) for what in ("confidence", "accuracy"))
    axes.plot(stated, right, "o-", ms=3, lw=1.2, color=colour(method, ALL), label=method)
