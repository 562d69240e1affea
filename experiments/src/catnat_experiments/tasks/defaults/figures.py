"""The figure of the panel: all variants of every task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from catnat_experiments.report.colours import colour
from catnat_experiments.report.plots import WIDTH, save
from catnat_experiments.report.statistics import Sample
from catnat_experiments.tasks.defaults.panel import Task

COLUMNS = 2


def figures(frame: pd.DataFrame, directory: Path, panel: Sequence[Task]) -> list[Path]:
    """Draw a panel per task, with a dot for each variant: its mean and one standard deviation over the final seeds."""
    if frame.empty or not (frame["stage"] == "final").any():
        return []
    final = frame[frame["stage"] == "final"]
    shown = [task for task in panel if (final["config.task"] == task.name).any()]
    columns = min(COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    height = [max(len(task.variants) for task in shown[row * columns :][:columns]) for row in range(rows)]
    figure = Figure(figsize=(WIDTH, rows + 0.2 * sum(height)), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, height_ratios=height).flatten()
    for axes, task in zip(panels, shown, strict=False):
        runs = final[final["config.task"] == task.name]
        for place, variant in enumerate(task.variants):
            values = runs[runs["config.variant"] == variant.name].get(f"metrics.{task.metric}", [])
            sample = Sample.of(list(values))
            if sample.values:
                shade = colour(variant.parameterization, ())
                axes.errorbar([sample.mean], [place], xerr=[sample.std], fmt="o", ms=4, capsize=2, color=shade)
        axes.set_yticks(range(len(task.variants)), [variant.name for variant in task.variants], fontsize=9)
        axes.invert_yaxis()
        axes.set_title(task.title, fontsize="medium")
        axes.set_xlabel(f"{task.better} is better", fontsize=9)
        axes.grid(axis="x", alpha=0.3)
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    return [save(figure, directory / "panel.png")]
