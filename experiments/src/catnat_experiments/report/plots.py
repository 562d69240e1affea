"""The plots of a report: tables with error bars, and learning curves."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from catnat_experiments.report.colours import colour
from catnat_experiments.report.statistics import Sample
from catnat_experiments.report.tables import Curve, Numbers

WIDTH = 7.6
"""The width of a figure in inches: that of a page's column, so that labels keep their size."""
COLUMNS = 3
"""The largest number of panels side by side."""


def grid(count: int, height: float, **options: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure as wide as a page and its panels, in rows of at most :data:`COLUMNS` and of a given height."""
    columns = min(count, COLUMNS)
    rows = -(-count // columns)
    figure = Figure(figsize=(WIDTH, 0.6 + height * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, **options).flatten())
    for unused in panels[count:]:
        unused.set_visible(False)
    return figure, panels[:count]


def slug(title: str) -> str:
    """Return a file name for a title.

    >>> slug("Energy score, test")
    'energy-score-test'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def plot_table(numbers: Numbers, directory: Path) -> Path:
    """Draw a panel per row with its own scale: means with one standard deviation, the paper's numbers as crosses."""
    table = numbers.table
    figure, panels = grid(len(numbers.rows), 0.8 + 0.22 * len(table.columns), sharey=True)
    for axes, row in zip(panels, numbers.rows, strict=True):
        for place, column in enumerate(table.columns):
            sample = numbers.samples.get((row, column), Sample(()))
            shade = colour(column, table.columns)
            spread = 0.0 if math.isnan(sample.std) else sample.std
            axes.errorbar([sample.mean], [place], xerr=[spread], fmt="o", ms=4, capsize=3, color=shade)
            paper = numbers.paper(row, column)
            axes.plot([math.nan if paper is None else paper.mean], [place], "x", ms=6, alpha=0.7, color=shade)
        if table.reference is not None and (row, table.reference) in numbers.samples:
            axes.axvline(numbers.samples[row, table.reference].mean, color="gray", ls="--", lw=1, label=table.reference)
        axes.set_title(f"{numbers.heading} {row}", fontsize="medium")
        axes.locator_params(axis="x", nbins=3)
        axes.margins(x=0.1, y=0.1)
    panels[0].set_yticks(range(len(table.columns)), table.columns)
    panels[0].invert_yaxis()  # of all panels, so that the first column is at the top
    if numbers.has_paper:
        panels[0].plot([], [], "x", color="gray", label="the paper")
    legend_outside(figure, "outside upper center")  # below it would overlap the label
    figure.supxlabel(table.title, fontsize="medium")
    return save(figure, directory / f"{slug(table.title)}.png")


def plot_curve(numbers: Numbers, curve: Curve, directory: Path) -> Path | None:
    """Draw learning curves, means with a band of one standard deviation; return None if no record has that history."""
    table, frame = numbers.table, numbers.frame
    if f"history.{curve.name}" not in frame:
        return None
    figure, panels = grid(len(numbers.rows), 2.4, sharex=True)
    for axes, row in zip(panels, numbers.rows, strict=True):
        for column in table.columns:
            runs = frame[(frame[f"config.{table.row}"] == row) & (frame[f"config.{table.column}"] == column)]
            shade = colour(column, table.columns)
            draw_history(axes, runs, curve.name, curve.x, shade, column)
        axes.set_title(f"{numbers.heading} {row}", fontsize="medium")
        axes.set_xlabel(curve.x_title)
        if curve.log_x:
            axes.set_xscale("log")
        else:
            axes.locator_params(axis="x", nbins=5)  # the numbers of steps are long
        axes.set_yscale("log" if curve.log else "linear")
    panels[0].set_ylabel(curve.title or curve.name)
    legend_outside(figure)
    return save(figure, directory / f"{slug(table.title)}-{slug(curve.name)}.png")


def draw_history(axes: Axes, runs: pd.DataFrame, name: str, x: str, color: str, label: str) -> None:
    """Draw one line for some runs: the mean of a metric over time, with a band of one standard deviation."""
    lines = [line for line in runs.get(f"history.{name}", []) if isinstance(line, list)]
    if not lines:
        return
    length = min(map(len, lines))
    values = np.array([line[:length] for line in lines])
    at = [steps for steps in runs.get(f"history.{x}", []) if isinstance(steps, list)]
    steps = at[0][:length] if at else range(length)
    mean, spread = values.mean(axis=0), values.std(axis=0, ddof=min(1, len(values) - 1))  # as in the tables
    axes.plot(steps, mean, color=color, lw=1.2, label=label)
    axes.fill_between(steps, mean - spread, mean + spread, color=color, alpha=0.2, lw=0)


def style_of_gallery(_: object, __: str) -> None:
    """Make figures of the gallery transparent; sphinx-gallery calls this before every script."""
    mpl.rcParams["savefig.transparent"] = True


def legend_outside(
    figure: Figure, place: Literal["outside upper center", "outside lower center"] = "outside lower center"
) -> None:
    """Draw one legend for all panels, that of the first, above or below them, in as many columns as fit."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if not handles:  # matplotlib would draw an empty box
        return
    for columns in range(COLUMNS, 0, -1):
        legend = figure.legend(handles, labels, loc=place, ncols=columns, fontsize=9)
        if columns == 1 or legend.get_window_extent().width < figure.bbox.width:
            return
        legend.remove()


def save(figure: Figure, path: Path) -> Path:
    """Write a figure to a file, with a transparent background for light and dark pages."""
    figure.savefig(path, dpi=150, transparent=True)
    return path
