"""The figure of the Atari experiment: frames of a game that each agent plays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from catnat_experiments.common.pictures import unpack
from catnat_experiments.report import plots
from catnat_experiments.tasks.atari.games import SIDE
from catnat_experiments.tasks.atari.training import PICTURES


def figures(frame: pd.DataFrame, directory: Path, names: Sequence[str]) -> list[Path]:
    """One figure for every game that final runs have frames of."""
    if "history.pictures" not in frame:  # no run is finished, or all diverged
        return []
    runs = frame[frame["stage"] == "final"].dropna(subset=["history.pictures"])
    return [strips(of_game, names, directory / f"playing-{game}.png") for game, of_game in runs.groupby("config.game")]


def strips(runs: pd.DataFrame, names: Sequence[str], path: Path) -> Path:
    """A strip for each parameterization: frames evenly over a game, of the run with the first seed."""
    firsts = runs.sort_values("config.seed").groupby("config.parameterization").first()
    present = [name for name in names if name in firsts.index]
    figure = Figure(figsize=(plots.WIDTH, 0.4 + 1.2 * len(present)), layout="constrained")
    for row, name in zip(figure.subplots(len(present), PICTURES, squeeze=False), present, strict=True):
        run = firsts.loc[name]
        shown = unpack(run["history.pictures"]).reshape(PICTURES, SIDE, SIDE)
        told = zip(run["history.pictures.step"], run["history.pictures.points"], strict=True)
        for axes, picture, (step, points) in zip(row, shown, told, strict=True):
            axes.imshow(picture, cmap="gray", vmin=0, vmax=255)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(f"step {step:.0f}\n{points:g} points", fontsize=9)
        row[0].set_ylabel(name, fontsize=9)
    return plots.save(figure, path)
