"""The plots of a report: tables with error bars, learning curves."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from catnat_experiments.report.colours import colour
from catnat_experiments.report.statistics import Sample
from catnat_experiments.report.tables import Curve, Numbers


def slug(title: str) -> str:
    """A file name for a title.

    >>> slug("Energy score, test")
    'energy-score-test'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def plot_table(numbers: Numbers, directory: Path) -> Path:
    """One panel per row, each with its own scale: means with one standard deviation, the paper's numbers as crosses."""
    table = numbers.table
    size = max(5.0, 1.5 + 2.0 * len(numbers.rows)), 1.4 + 0.25 * len(table.columns)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(numbers.rows), sharey=True, squeeze=False)[0]
    for axes, row in zip(panels, numbers.rows, strict=True):
        for place, column in enumerate(table.columns):
            sample = numbers.samples.get((row, column), Sample(()))
            style = {"color": colour(place, len(table.columns))}
            spread = 0.0 if math.isnan(sample.std) else sample.std
            axes.errorbar([sample.mean], [place], xerr=[spread], fmt="o", ms=4, capsize=3, **style)
            axes.plot([_or_nan(numbers.paper(row, column))], [place], "x", ms=6, alpha=0.7, **style)
        if table.reference is not None and (row, table.reference) in numbers.samples:
            axes.axvline(numbers.samples[row, table.reference].mean, color="gray", ls="--", lw=1, label=table.reference)
        axes.set_title(f"{numbers.heading} {row}", fontsize="medium")
        axes.locator_params(axis="x", nbins=4)
        axes.margins(x=0.1, y=0.1)
    panels[0].set_yticks(range(len(table.columns)), table.columns)
    panels[0].invert_yaxis()  # of all panels: the first column is at the top
    if table.paper:
        panels[0].plot([], [], "x", color="gray", label="the paper")
    legend_beside(figure)
    figure.supxlabel(table.title, fontsize="medium")
    return save(figure, directory / f"{slug(table.title)}.png")


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def plot_curve(numbers: Numbers, curve: Curve, directory: Path) -> Path | None:
    """Learning curves, mean with a band of one standard deviation; None if no record has that history."""
    table, frame = numbers.table, numbers.frame
    if f"history.{curve.name}" not in frame:
        return None
    size = 1.5 + max(5.0, 3.0 * len(numbers.rows)), max(2.8, 0.25 * len(table.columns) + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(numbers.rows), sharex=True, squeeze=False)[0]
    for axes, row in zip(panels, numbers.rows, strict=True):
        for place, column in enumerate(table.columns):
            runs = frame[(frame[f"config.{table.row}"] == row) & (frame[f"config.{table.column}"] == column)]
            shade = colour(place, len(table.columns))
            draw_history(axes, runs, curve.name, curve.x or f"{curve.name}.step", shade, column)
        axes.set_title(f"{numbers.heading} {row}", fontsize="medium")
        axes.set_xlabel(curve.x_title)
        axes.set_xscale("log" if curve.log_x else "linear")
        axes.set_yscale("log" if curve.log else "linear")
    panels[0].set_ylabel(curve.title or curve.name)
    legend_beside(figure)
    return save(figure, directory / f"{slug(table.title)}-{slug(curve.name)}.png")


def draw_history(axes: Axes, runs: pd.DataFrame, name: str, x: str, color: str, label: str) -> None:
    """One line for some runs: the mean of a metric over time, with a band of one standard deviation."""
    lines = [line for line in runs.get(f"history.{name}", []) if isinstance(line, list)]
    if not lines:
        return
    length = min(map(len, lines))
    values = np.array([line[:length] for line in lines])
    at = [steps for steps in runs.get(f"history.{x}", []) if isinstance(steps, list)]
    steps = at[0][:length] if at else range(length)
    mean, spread = values.mean(axis=0), values.std(axis=0)
    axes.plot(steps, mean, color=color, lw=1.2, label=label)
    axes.fill_between(steps, mean - spread, mean + spread, color=color, alpha=0.2, lw=0)


def legend_beside(figure: Figure) -> None:
    """One legend for all panels, that of the first, to their right."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if handles:  # matplotlib would draw an empty box
        figure.legend(handles, labels, loc="outside right upper", fontsize="small")


def save(figure: Figure, path: Path) -> Path:
    """Write a figure to a file."""
    figure.savefig(path, dpi=120)
    return path
