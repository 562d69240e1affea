"""The figures of the classifiers: log loss over time, and accuracy of answers in a taxonomy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.ticker import LogLocator

from catnat_experiments.report import plots
from catnat_experiments.report.colours import colour
from catnat_experiments.tasks.classifiers.methods import METHODS, TEXT_METHODS

ALL = (*METHODS, *TEXT_METHODS)


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Draw a figure of all final runs, and one of those with a taxonomy."""
    final = frame[frame["stage"] == "final"] if len(frame) else frame
    if not len(final):
        return []
    drawn = [price(final, directory / "price.png")]
    with_taxonomy = final[final["config.parameterization"].isin(TEXT_METHODS)]
    if len(with_taxonomy):
        drawn.append(back_off(with_taxonomy, directory / "back_off.png"))
    return drawn


def price(runs: pd.DataFrame, path: Path) -> Path:
    """Draw a panel for each data set: the log loss over the seconds to fit; the lower left corner is the best."""
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


def back_off(runs: pd.DataFrame, path: Path) -> Path:
    """Draw a panel for each base learner: the accuracy of answers over the information in them, means over seeds."""
    of = dict(iter(runs.groupby("config.parameterization")))
    learners = list(dict.fromkeys(method.split(",")[0] for method in TEXT_METHODS if method in of))
    figure, panels = plots.grid(len(learners), 3.0, sharex=True, sharey=True)
    for method in (method for method in TEXT_METHODS if method in of):
        panels[0].plot([], [], color=colour(method, tuple(TEXT_METHODS)), label=method)
    for axes, learner in zip(panels, learners, strict=True):
        for method in (method for method in TEXT_METHODS if method in of and method.startswith(learner)):
            information, accuracy = (np.mean(of[method][f"history.{what}"].tolist(), axis=0) for what in _CURVE)
            axes.plot(information, accuracy, lw=1.4, color=colour(method, tuple(TEXT_METHODS)))
        axes.set_title(learner, fontsize="medium")
        axes.set_xlabel("information in the answers")
    panels[0].set_ylabel("accuracy of the answers")
    plots.legend_outside(figure)
    return plots.save(figure, path)


_CURVE = ("information", "accuracy")
