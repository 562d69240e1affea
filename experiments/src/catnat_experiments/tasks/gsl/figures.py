"""The figures of graph structure learning: the hidden graph, the errors on theta, the saturated entries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from catnat_experiments.report import plots
from catnat_experiments.report.colours import colour
from catnat_experiments.tasks.gsl import data, paper

ENTRIES = {"zero": "true zeros", "edge": "true edges"}
"""The two kinds of entries, as the metrics' suffixes and in words."""
_TRIANGLE = np.array([[0.0, 0.0], [0.5, 0.87], [1.0, 1.73], [1.0, 0.0], [1.5, 0.87], [2.0, 0.0]])
"""The positions of a community's six nodes: its first node on the left, its last on the right."""


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Draw all figures; those about learning need the final runs."""
    drawn = [hidden_graph(directory)]
    final = frame[frame["stage"] == "final"] if len(frame) else frame
    learned = [name for name in paper.IN_THE_PAPER if name in set(final.get("config.parameterization", ()))]
    if learned:
        drawn += [draw(final, learned, directory) for draw in (theta_errors, saturated_entries, lost_edges)]
    return drawn


def _color(name: str) -> str:
    return colour(name, paper.IN_THE_PAPER)


def _runs(frame: pd.DataFrame, name: str, theta: float) -> pd.DataFrame:
    return frame[(frame["config.parameterization"] == name) & (frame["config.theta"] == theta)]


# ---- the hidden graph ------------------------------------------------------------------------------------------------


def hidden_graph(directory: Path) -> Path:
    """Draw the four communities in a line, and the possible entries of the adjacency matrix."""
    figure = Figure(figsize=(plots.WIDTH, 4.8), layout="compressed")
    left, right = figure.subplots(2, 1, height_ratios=(2, 3))
    places = np.concatenate([_TRIANGLE + np.array([2.8 * community, 0.0]) for community in range(data.COMMUNITIES)])
    edges = data.possible_edges().numpy()
    for i, j in np.argwhere(np.triu(edges, 1)):
        left.plot(*places[[i, j]].T, color="gray", lw=1.2, zorder=1)
    left.scatter(*places.T, c=[f"C{node // 6}" for node in range(data.NODES)], s=180, zorder=2)
    for node, (x, y) in enumerate(places):
        left.text(x, y, str(node), ha="center", va="center", color="white", fontsize=9, zorder=3)
    left.margins(0.05, 0.2)  # to keep the outermost nodes inside
    left.set_aspect("equal")
    left.axis("off")
    left.set_title("24 nodes, 39 undirected edges; self loops are not drawn", fontsize="medium")
    right.imshow(edges, cmap="Greys")
    right.set_title("102 of 576 entries can be there", fontsize="medium")
    right.set_xlabel("to")
    right.set_ylabel("from")
    return plots.save(figure, directory / "hidden-graph.png")


# ---- errors on theta -------------------------------------------------------------------------------------------------


def theta_errors(frame: pd.DataFrame, names: Sequence[str], directory: Path) -> Path:
    """Draw the MAE on theta over true zeros and over true edges: mean and standard deviation of the final runs."""
    figure = Figure(figsize=(plots.WIDTH, 3.6), layout="constrained")
    for axes, (kind, title) in zip(figure.subplots(1, 2), ENTRIES.items(), strict=True):
        _errors_by_theta(axes, frame, names, f"metrics.mae_theta_{kind}")
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel("theta*")
    figure.axes[0].set_ylabel("mean |theta - theta*|")
    plots.legend_outside(figure)
    return plots.save(figure, directory / "theta-errors.png")


def _errors_by_theta(axes: Axes, frame: pd.DataFrame, names: Sequence[str], metric: str) -> None:
    thetas = sorted(set(frame["config.theta"]))
    for order, name in enumerate(names):
        cells = [_runs(frame, name, theta)[metric] for theta in thetas]
        places = np.arange(len(thetas)) + 0.12 * (order - (len(names) - 1) / 2)
        means, spreads = [cell.mean() for cell in cells], [cell.std() for cell in cells]
        axes.errorbar(places, means, spreads, fmt="o", ms=4, capsize=2, color=_color(name), label=name)
    axes.set_xticks(range(len(thetas)), [str(theta) for theta in thetas])
    axes.set_ylim(bottom=0)


# ---- saturated entries -----------------------------------------------------------------------------------------------


def saturated_entries(frame: pd.DataFrame, names: Sequence[str], directory: Path) -> Path:
    """Draw the fraction of saturated entries over training, of true zeros and of true edges."""
    thetas = sorted(set(frame["config.theta"]))
    figure = Figure(figsize=(plots.WIDTH, 4.6), layout="constrained")
    panels = figure.subplots(2, len(thetas), sharex=True, sharey="row", squeeze=False)
    for row, (kind, title) in zip(panels, ENTRIES.items(), strict=True):
        for axes, theta in zip(row, thetas, strict=True):
            for name in names:
                plots.draw_history(axes, _runs(frame, name, theta), f"dead_{kind}", "step", _color(name), name)
            axes.set_title(f"theta* {theta}" if kind == "zero" else "", fontsize="medium")
            axes.locator_params(axis="x", nbins=2)
        row[0].set_ylabel(f"{title},\nfraction saturated")
        row[0].set_ylim(bottom=0)
    for axes in panels[-1]:
        axes.set_xlabel("updates")
    plots.legend_outside(figure)
    return plots.save(figure, directory / "saturated-entries.png")


def lost_edges(frame: pd.DataFrame, names: Sequence[str], directory: Path) -> Path:
    """Draw every final run's energy score above the optimal row's, over its saturated true edges."""
    thetas = sorted(set(frame["config.theta"]))
    figure, panels = plots.grid(len(thetas), 2.2)
    for axes, theta in zip(panels, thetas, strict=True):
        optimal = _runs(frame, paper.OPTIMAL, theta)["metrics.test_es_twice"].mean()
        for name in names:
            runs = _runs(frame, name, theta)
            lost = 102 * runs["metrics.dead_edge"]
            above = runs["metrics.test_es_twice"] - optimal
            axes.plot(lost, above, "o", ms=4, alpha=0.6, color=_color(name), label=name)
        axes.set_title(f"theta* {theta}", fontsize="medium")
        axes.set_xlabel("saturated true edges")
        axes.set_xscale("symlog", linthresh=1)
        axes.set_yscale("symlog", linthresh=0.1)
    panels[0].set_ylabel("energy score\nabove optimal")
    plots.legend_outside(figure)
    return plots.save(figure, directory / "lost-edges.png")
