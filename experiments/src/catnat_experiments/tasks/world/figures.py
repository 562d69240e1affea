"""The figures of the world model: predictions that get harder step by step, and what they look like."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from catnat_experiments.common.pictures import LEVELS, unpack
from catnat_experiments.report import plots
from catnat_experiments.report.colours import colour
from catnat_experiments.tasks.world import environment, model, training


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Two for each K that has final runs."""
    final = frame[frame["stage"] == "final"] if len(frame) else frame
    drawn = []
    for classes, runs in final.groupby("config.classes") if len(final) else ():
        of = dict(iter(runs.groupby("config.parameterization")))
        drawn.append(ahead(of, directory / f"steps-ahead-{classes}.png"))
        if set(of) & set(training.ALL):  # not the exact predictions alone
            drawn.append(pictures(of, directory / f"pictures-{classes}.png"))
    return drawn


def ahead(runs: dict[str, pd.DataFrame], path: Path) -> Path:
    """Log-loss over the steps ahead, between that of exact predictions and that of a constant guess."""
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


def pictures(runs: dict[str, pd.DataFrame], path: Path) -> Path:
    """One test sequence, and one rollout of the run with the smallest seed, for each parameterization."""
    firsts = {name: runs[name].sort_values("config.seed").iloc[0] for name in training.ALL if name in runs}
    figure = Figure(figsize=(plots.WIDTH, 0.5 * (len(firsts) + 1)), layout="constrained")
    top, *panels = figure.subplots(len(firsts) + 1, 1, squeeze=False)[:, 0]
    _strip(top, next(iter(firsts.values()))["history.pictures.truth"], "the world")
    for axes, (name, run) in zip(panels, firsts.items(), strict=True):
        _strip(axes, run["history.pictures.rollout"], name)
    return plots.save(figure, path)


def _strip(axes: Axes, packed: list[float], label: str) -> None:
    """Frames side by side; a model's begin where it sees no more."""
    levels = unpack(packed).reshape(-1, environment.BOX, environment.BOX)
    blank = np.zeros((model.CONTEXT + model.AHEAD - len(levels), environment.BOX, environment.BOX))
    framed = np.pad(np.concatenate((blank, levels)), ((0, 0), (1, 1), (1, 1)), constant_values=LEVELS / 3)
    axes.imshow(np.concatenate(list(framed), axis=1), cmap="Greys", vmin=0, vmax=LEVELS)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_ylabel(label, rotation=0, ha="right", va="center")
