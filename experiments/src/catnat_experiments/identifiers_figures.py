"""The figure of the identifiers experiment: the validation NLL over processor time and over steps."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from catnat_experiments import plots
from catnat_experiments.identifiers_heads import HEADS

PANELS = {
    "at equal time": ("nll", "seconds", "seconds of processor time", "linear"),
    "at equal steps": ("nll_by_step", "steps_by_step", "steps", "log"),
}
"""Title: metric, horizontal values, their title and scale."""


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """One figure for every number of classes that has final runs."""
    final = frame[frame["stage"] == "final"] if len(frame) else frame
    return [
        nll(runs, directory / f"nll-{classes}-classes.png")
        for classes, runs in (final.groupby("config.classes") if len(final) else ())
    ]


def nll(runs: pd.DataFrame, path: Path) -> Path:
    """Means and one standard deviation, one line a head."""
    figure = Figure(figsize=(12.0, 4.2), layout="constrained")
    colours = mpl.colormaps["tab20"]
    panels = zip(figure.subplots(1, 2, sharey=True), PANELS.items(), strict=True)
    for axes, (title, (metric, x, x_title, scale)) in panels:
        for place, head in enumerate(HEADS):
            mine = runs[runs["config.parameterization"] == head]
            plots.draw_history(axes, mine, metric, x, to_hex(colours(place)), head)
        axes.set_title(f"validation NLL {title}", fontsize="medium")
        axes.set_xlabel(x_title)
        axes.set_xscale(scale)
    plots.legend_beside(figure)
    return plots.save(figure, path)
