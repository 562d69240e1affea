"""Plots of answers and probabilities in a taxonomy; the only module here that imports matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from catnat.taxonomy.backoff import BackOffCurve
from catnat.taxonomy.metrics import LevelMetrics
from catnat.taxonomy.taxonomy import Name, Taxonomy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# With more classes the names would overlap.
_MOST_CLASSES = 64
# The accuracy of a smaller fraction of rows is noise, and is not drawn.
_LEAST = 0.01


def plot_back_off(curves: BackOffCurve | Mapping[str, BackOffCurve], *, ax: Axes | None = None) -> Axes:
    """Plot the accuracy of answers over their information; the threshold increases from right to left.

    Args:
        curves: The result of :func:`back_off_curve`, or several results by name.
        ax: The axes to draw on; a new figure if not given.

    Example:
        >>> import catnat
        >>> from catnat.taxonomy import back_off_curve, plot_back_off
        >>> groups = {"cat": ["lion", "lynx"], "dog": ["fox", "wolf"]}
        >>> taxonomy = catnat.Taxonomy.from_nested(groups)
        >>> ax = plot_back_off(back_off_curve(taxonomy, [[0.1, 0.5, 0.4, 0.0]], ["lion"]))
    """
    ax = _new_axes(5.0, 3.6) if ax is None else ax
    named = {"": curves} if isinstance(curves, BackOffCurve) else curves
    for name, curve in named.items():
        enough = curve.answered >= _LEAST
        ax.plot(curve.information[enough], curve.accuracy[enough], label=name)
    ax.set_xlabel("information in the answers (1: all are classes)")
    ax.set_ylabel("accuracy of the answers")
    if len(named) > 1:
        ax.legend(frameon=False)
    return ax


def plot_calibration(levels: Sequence[LevelMetrics], *, ax: Axes | None = None) -> Axes:
    """Plot accuracy over predicted probability on every level: below the diagonal a model is overconfident.

    Args:
        levels: The result of :func:`level_metrics`.
        ax: The axes to draw on; a new figure if not given.

    Example:
        >>> import catnat
        >>> from catnat.taxonomy import level_metrics, plot_calibration
        >>> groups = {"cat": ["lion", "lynx"], "dog": ["fox", "wolf"]}
        >>> taxonomy = catnat.Taxonomy.from_nested(groups)
        >>> ax = plot_calibration(level_metrics(taxonomy, ["lion"], [[0.1, 0.5, 0.4, 0.0]]))
    """
    ax = _new_axes(4.0, 4.0) if ax is None else ax
    ax.axline((0, 0), slope=1, color="gray", ls="--", lw=1)
    for each in levels:
        filled = each.bin_weight >= _LEAST
        label = f"level {each.level}, error {each.calibration_error:.3f}"
        ax.plot(each.confidence[filled], each.bin_accuracy[filled], "o-", ms=4, label=label)
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1)
    ax.set_xlabel("probability of the most probable label")
    ax.set_ylabel("fraction that is right")
    ax.legend(frameon=False, loc="upper left")
    return ax


def plot_probs(taxonomy: Taxonomy, probs: Any, *, marked: Sequence[Any] = (), ax: Axes | None = None) -> Axes:
    """Plot one row's probabilities of all classes and groups as nested bars, with levels from left to right.

    Args:
        taxonomy: The taxonomy of the classes, at most 64.
        probs: Class probabilities of one row, (K,).
        marked: Labels with a red frame, such as an answer or a set.
        ax: The axes to draw on; a new figure if not given.

    Example:
        >>> import catnat
        >>> from catnat.taxonomy import plot_probs
        >>> groups = {"cat": ["lion", "lynx"], "dog": ["fox", "wolf"]}
        >>> taxonomy = catnat.Taxonomy.from_nested(groups)
        >>> ax = plot_probs(taxonomy, [0.1, 0.5, 0.4, 0.0], marked=["cat"])
    """
    if taxonomy.num_classes > _MOST_CLASSES:
        raise ValueError(f"At most {_MOST_CLASSES} classes can be drawn, but this taxonomy has {taxonomy.num_classes}.")
    values = taxonomy.label_probs(probs)
    if values.ndim != 1:
        raise ValueError(f"`probs` has shape {np.shape(probs)}, but the probabilities of one row are needed, (K,).")
    ax = _new_axes(1.6 * taxonomy.num_levels + 1.0, 0.45 * taxonomy.num_classes + 0.6) if ax is None else ax
    lineage = taxonomy.lineage
    for number, name in enumerate(taxonomy.labels):
        is_class = number < taxonomy.num_classes
        left = lineage.depth[number] - 1
        width = taxonomy.num_levels - left if is_class else 1
        _draw_bar(
            ax, name, values[number], (left, lineage.start[number]), (width, lineage.size[number]), name in marked
        )
    ax.set_xlim(-0.02, taxonomy.num_levels + 0.02)
    ax.set_ylim(taxonomy.num_classes + 0.02, -0.02)
    ax.set_axis_off()
    return ax


def _draw_bar(
    ax: Axes, name: Name, prob: float, corner: tuple[int, int], size: tuple[int, int], is_marked: bool
) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    (left, top), (width, height) = corner, size
    edge: dict[str, Any] = {"edgecolor": "tab:red", "lw": 2.5, "zorder": 3} if is_marked else {"edgecolor": "white"}
    shade = colormaps["Blues"](0.1 + 0.7 * prob)
    ax.add_patch(Rectangle((left, top), width, height, facecolor=shade, **edge))
    ax.text(
        left + 0.5,
        top + height / 2,
        f"{name}{chr(10) if height > 1 else '  '}{prob:.0%}",
        color="white" if prob > 0.6 else "black",
        ha="center",
        va="center",
        fontsize=9,
        zorder=4,
    )


def _new_axes(width: float, height: float) -> Axes:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError('Plots of taxonomies need matplotlib: pip install "catnat[plot]".') from error
    return plt.subplots(figsize=(width, height), layout="constrained")[1]
