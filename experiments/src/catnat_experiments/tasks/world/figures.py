"""The figure of the world model: predictions of several steps ahead."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from catnat_experiments.report import plots
from catnat_experiments.report.colours import colour
from catnat_experiments.tasks.world import training


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Draw a figure for each K that has final runs."""
    final = frame[frame["stage"] == "final"] if len(frame) else frame
    drawn = []
    for classes, runs in final.groupby("config.classes") if len(final) else ():
        of = dict(iter(runs.groupby("config.parameterization")))
        drawn.append(ahead(of, directory / f"steps-ahead-{classes}.png"))
    return drawn


def ahead(runs: dict[str, pd.DataFrame], path: Path) -> Path:
    """Draw the log-loss over the steps ahead, with those of exact predictions and of a constant guess."""
    figure = Figure(figsize=(6.0, 3.4), layout="constrained")
    axes = figure.subplots()
    for name in training.ALL:
        if name in runs:
            plots.draw_history(axes, runs[name], "ahead", "ahead.step", colour(name, training.ALL), name)
    if training.EXACT in runs:
        plots.draw_history(axes, runs[training.EXACT], "ahead", "ahead.step", "black", "exact distribution")
        plots.draw_history(axes, runs[training.EXACT], "ahead_mean_frame", "ahead.step", "gray", "mean frame")
    axes.set_xlabel("steps ahead")
    axes.set_ylabel("log-loss, nats a frame")
    axes.set_ylim(bottom=0)
    plots.legend_outside(figure)
    return plots.save(figure, path)
