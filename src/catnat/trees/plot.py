"""Plots of trees; only this module imports matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# With more classes the labels would overlap.
MOST_CLASSES = 64


def plot_tree(children: Ints, yes: Floats, ax: Axes | None) -> Axes:
    """Draw a tree from its table of children and the probability of yes at every node."""
    num_nodes = len(children)
    if num_nodes >= MOST_CLASSES:
        raise ValueError(f"`plot` draws at most {MOST_CLASSES} classes, but this tree has {num_nodes + 1}.")
    reach, across, down = _layout(children, yes)
    if ax is None:
        ax = _new_axes(num_nodes + 1, depth=-down.min())
    for node, ids in enumerate(children):
        for bit, child in enumerate(ids):
            color = ("tab:gray", "tab:blue")[bit]
            ax.plot(across[[node, child]], down[[node, child]], color=color, lw=0.6 + 2.4 * reach[child], zorder=1)
            middle = (across[[node, child]].mean(), down[[node, child]].mean())
            probability = yes[node] if bit else 1 - yes[node]
            ax.annotate(f"{probability:.2f}", middle, color=color, fontsize=7, ha="center", va="center", bbox=_PAPER)
    for i, p in enumerate(reach):
        name = f"{i}" if i < num_nodes else f"class {i - num_nodes}\n{p:.3f}"
        shape = "circle" if i < num_nodes else "round"
        face = "white" if i < num_nodes else "#e8f0fe"
        ax.annotate(
            name,
            (across[i], down[i]),
            ha="center",
            va="center",
            fontsize=7,
            bbox={"boxstyle": shape, "fc": face, "ec": "0.5"},
        )
    ax.margins(0.08)
    ax.set_axis_off()
    return ax


_PAPER = {"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none"}


def _new_axes(num_classes: int, depth: float) -> Axes:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError('Tree.plot needs matplotlib: pip install "catnat[plot]".') from error
    size = (max(3.0, 0.75 * num_classes), 1.2 + 0.9 * depth)
    return plt.subplots(figsize=size, layout="constrained")[1]


def _layout(children: Ints, yes: Floats) -> tuple[Floats, Floats, Floats]:
    """Return reach, horizontal and vertical position of every id: leaves from left to right, parents centred above."""
    count = 2 * len(children) + 1
    reach, across, down = np.ones(count), np.zeros(count), np.zeros(count)
    for node, (no_child, yes_child) in enumerate(children):
        reach[[no_child, yes_child]] = reach[node] * np.array([1 - yes[node], yes[node]])
        down[[no_child, yes_child]] = down[node] - 1
    across[_left_to_right(children)] = np.arange(len(children) + 1)
    for node in reversed(range(len(children))):
        across[node] = across[children[node]].mean()
    return reach, across, down


def _left_to_right(children: Ints) -> list[int]:
    """Return the ids of the leaves, the no side of every node first."""
    stack, leaves = [0], []
    while stack:
        i = stack.pop()
        if i >= len(children):
            leaves.append(i)
        else:
            stack.extend(reversed(children[i].tolist()))
    return leaves
