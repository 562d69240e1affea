"""A picture of a tree: matplotlib is imported here only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from catnat import _checks
from catnat._tree import Tree
from catnat.activations import Activation, resolve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Beyond this the labels would cover each other.
MOST_CLASSES = 64


def plot_tree(tree: Tree, scores: ArrayLike | None, activation: Activation | str, ax: Axes | None) -> Axes:
    """Draw ``tree``; see :meth:`catnat.Tree.plot`."""
    if tree.num_classes > MOST_CLASSES:
        raise ValueError(f"`plot` draws at most {MOST_CLASSES} classes, but this tree has {tree.num_classes}.")
    if ax is None:
        ax = _new_axes(tree)
    yes = _yes_probabilities(tree, scores, activation)
    reach, across, down = _layout(tree, yes)
    for node, ids in enumerate(tree.children):
        for bit, child in enumerate(ids):
            color = ("tab:gray", "tab:blue")[bit]
            ax.plot(across[[node, child]], down[[node, child]], color=color, lw=0.6 + 2.4 * reach[child], zorder=1)
            middle = (across[[node, child]].mean(), down[[node, child]].mean())
            probability = yes[node] if bit else 1 - yes[node]
            ax.annotate(f"{probability:.2f}", middle, color=color, fontsize=7, ha="center", va="center", bbox=_PAPER)
    for i, p in enumerate(reach):
        name = f"{i}" if i < tree.num_nodes else f"class {i - tree.num_nodes}\n{p:.3f}"
        shape = "circle" if i < tree.num_nodes else "round"
        face = "white" if i < tree.num_nodes else "#e8f0fe"
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


def _new_axes(tree: Tree) -> Axes:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError('Tree.plot needs matplotlib: pip install "catnat[plot]".') from error
    size = (max(3.0, 0.75 * tree.num_classes), 1.2 + 0.9 * tree.depth)
    return plt.subplots(figsize=size, layout="constrained")[1]


def _yes_probabilities(tree: Tree, scores: ArrayLike | None, activation: Activation | str) -> NDArray[np.float64]:
    activation = resolve(activation)
    values = np.zeros(tree.num_nodes) if scores is None else np.asarray(scores, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"`scores` has shape {values.shape}, but a tree is drawn for one vector of scores, (K-1,).")
    _checks.width_of_scores(values.size, tree.num_classes)
    return activation.probability(activation.scale(tree) * values + activation.offset(tree))


def _layout(tree: Tree, yes: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Reach, horizontal and vertical position of every id: leaves left to right, parents above their middle."""
    count = 2 * tree.num_classes - 1
    reach, across, down = np.ones(count), np.zeros(count), np.zeros(count)
    for node, (no_child, yes_child) in enumerate(tree.children):
        reach[[no_child, yes_child]] = reach[node] * np.array([1 - yes[node], yes[node]])
        down[[no_child, yes_child]] = down[node] - 1
    across[_left_to_right(tree)] = np.arange(tree.num_classes)
    for node in reversed(range(tree.num_nodes)):
        across[node] = across[tree.children[node]].mean()
    return reach, across, down


def _left_to_right(tree: Tree) -> list[int]:
    """The ids of the leaves, the no side of every node first."""
    stack, leaves = [0], []
    while stack:
        i = stack.pop()
        if i >= tree.num_nodes:
            leaves.append(i)
        else:
            stack.extend(reversed(tree.children[i].tolist()))
    return leaves
