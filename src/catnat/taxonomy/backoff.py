"""Back-off: the answer for a row is the most specific label that is probable enough, a class, a group, or None."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from catnat import _checks
from catnat.taxonomy import probabilities
from catnat.taxonomy.lineage import Floats, Ints
from catnat.taxonomy.taxonomy import Taxonomy

# Accuracies of weighted rows are equal up to this.
_ROUNDING = 1e-12


def back_off(taxonomy: Taxonomy, probs: Any, threshold: float = 0.9, *, least_level: int = 0) -> NDArray[np.object_]:
    """Return for every row the most specific label with a probability of at least ``threshold``.

    A label with fewer classes is more specific. Of groups with equally many classes the deeper comes first, then
    the more probable.

    Args:
        taxonomy: The taxonomy of the classes.
        probs: Class probabilities in the order of ``taxonomy.classes``, shape (n, K), or a frame with named columns.
        threshold: The smallest probability of an answer. Above 0.5 the labels that reach it are on one path.
        least_level: If no label reaches the threshold, the answer is the most probable label of this level, or None
            for level 0.

    Example:
        >>> import catnat
        >>> from catnat.taxonomy import back_off
        >>> groups = {"cat": ["lion", "lynx"], "dog": ["fox", "wolf"]}
        >>> taxonomy = catnat.Taxonomy.from_nested(groups)
        >>> probs = [[0.0, 0.95, 0.05, 0.0], [0.02, 0.5, 0.48, 0.0], [0.4, 0.1, 0.3, 0.2]]
        >>> taxonomy.classes
        ('fox', 'lion', 'lynx', 'wolf')
        >>> back_off(taxonomy, probs).tolist()
        ['lion', 'cat', None]
        >>> back_off(taxonomy, probs, least_level=1).tolist()
        ['lion', 'cat', 'dog']
    """
    _check_threshold(threshold)
    candidates = _Candidates(taxonomy, least_level)
    rows = probabilities.checked(taxonomy, probs)
    found = np.empty(len(rows), dtype=np.int64)
    for some in taxonomy.lineage.blocks(len(rows)):
        values, labels = candidates.find(rows[some])
        first = (values >= threshold).argmax(axis=1)
        found[some] = labels[np.arange(len(labels)), first]
    return taxonomy.names(found)


@dataclasses.dataclass(frozen=True)
class BackOffCurve:
    """Accuracy and information for every threshold at which an answer changes; see :func:`back_off_curve`."""

    threshold: Floats
    """The thresholds, ascending."""
    accuracy: Floats
    """The fraction of right answers among the answers given."""
    answered: Floats
    """The fraction of rows with an answer other than None."""
    information: Floats
    """The mean of 1 - log(classes in the answer) / log K over all rows: 1 for classes, 0 for None."""


def back_off_curve(
    taxonomy: Taxonomy, probs: Any, y: Any, *, least_level: int = 0, sample_weight: Any = None
) -> BackOffCurve:
    """Return accuracy, answered rows and information of :func:`back_off` at all thresholds.

    An answer is right if it is the row's label or a group above it. If a row is labelled with a group and the answer is
    inside that group, the row is left out of the accuracy, because its class is unknown.

    Args:
        taxonomy: The taxonomy of the classes.
        probs: As for :func:`back_off`.
        y: The label of every row.
        least_level: As for :func:`back_off`.
        sample_weight: The weight of every row.

    Example:
        >>> import catnat
        >>> from catnat.taxonomy import back_off_curve
        >>> groups = {"cat": ["lion", "lynx"], "dog": ["fox", "wolf"]}
        >>> taxonomy = catnat.Taxonomy.from_nested(groups)
        >>> probs = [[0.0, 0.95, 0.05, 0.0], [0.02, 0.5, 0.48, 0.0]]
        >>> curve = back_off_curve(taxonomy, probs, ["lion", "lynx"])
        >>> curve.accuracy.tolist(), curve.information.tolist()
        ([0.5, 1.0, 1.0, 1.0], [1.0, 0.75, 0.5, 0.25])
    """
    lineage, candidates = taxonomy.lineage, _Candidates(taxonomy, least_level)
    rows = probabilities.checked(taxonomy, probs)
    truth = one_label_per_row(taxonomy, y, len(rows))
    weights = row_weights(sample_weight, len(rows))
    information = 1 - np.log(lineage.size) / max(np.log(taxonomy.num_classes), np.finfo(float).tiny)
    start, steps, values = np.zeros(4), [], []
    for some in lineage.blocks(len(rows)):
        best, labels = candidates.find(rows[some])
        known = truth[some, None]
        right = lineage.contains(labels, known)
        answered = labels < lineage.top
        judged = answered & (right | ~lineage.contains(known, labels))
        measured = (
            np.stack([right & judged, judged, answered, information[labels]], axis=-1) * weights[some, None, None]
        )
        row, column = np.nonzero(best > np.maximum.accumulate(np.c_[np.full(len(best), -1.0), best], 1)[:, :-1])
        measured = measured[row, column]
        is_first = column == 0
        start += measured[is_first].sum(axis=0)
        steps.append((measured[1:] - measured[:-1])[~is_first[1:]])  # for thresholds above the previous value
        values.append(best[row, column][:-1][~is_first[1:]])
    return _accumulated(start, np.concatenate(steps), np.concatenate(values), weights.sum())


def _accumulated(start: Floats, steps: Floats, values: Floats, total: float) -> BackOffCurve:
    """Return the measures at every threshold, from the measures at 0 and their changes above each value."""
    threshold, index = np.unique(values, return_inverse=True)
    changes = np.zeros((len(threshold) + 1, 4))
    np.add.at(changes, index + 1, steps)
    right, judged, answered, information = (start + np.cumsum(changes, axis=0)).T
    accuracy = np.divide(right, judged, out=np.full_like(right, np.nan), where=judged > 1e-9 * total)
    accuracy = np.minimum(accuracy, 1.0)  # beyond it by rounding
    reachable = slice(len(threshold) + (threshold[-1] < 1))  # no threshold exceeds 1
    columns = (np.append(threshold, 1.0), accuracy, answered / total, information / total)
    return BackOffCurve(*(column[reachable] for column in columns))


class BackOff:
    """Back-off with a given accuracy: :func:`back_off` with its threshold chosen on held-out rows.

    It is the smallest threshold at which the answers for these rows reach the accuracy. This is an estimate: for a
    guarantee in finite samples see :class:`ConformalSets` with ``max_labels=1``.

    Args:
        taxonomy: The taxonomy of the classes.
        accuracy: The required fraction of right answers among the answers given.
        least_level: As for :func:`back_off`; with 1 every row gets at least a label of the top level.

    Example:
        >>> import catnat
        >>> from catnat.taxonomy import BackOff
        >>> groups = {"cat": ["lion", "lynx"], "dog": ["fox", "wolf"]}
        >>> taxonomy = catnat.Taxonomy.from_nested(groups)
        >>> held_out = [[0.0, 0.9, 0.1, 0.0], [0.0, 0.6, 0.4, 0.0], [0.0, 0.55, 0.45, 0.0]]
        >>> answers = BackOff(taxonomy, accuracy=0.95).fit(held_out, ["lion", "lynx", "lion"])
        >>> answers.threshold_
        0.9
        >>> answers.predict([[0.1, 0.8, 0.1, 0.0]]).tolist()
        ['cat']
    """

    threshold_: float
    """The smallest probability of an answer, chosen by :meth:`fit`."""

    def __init__(self, taxonomy: Taxonomy, accuracy: float = 0.95, *, least_level: int = 0) -> None:
        _check_threshold(accuracy, "accuracy")
        self.taxonomy = taxonomy
        self.accuracy = accuracy
        self.least_level = least_level

    def fit(self, probs: Any, y: Any, sample_weight: Any = None) -> BackOff:
        """Choose the threshold on held-out rows.

        Args:
            probs: Probabilities of rows that the model was not trained on.
            y: The labels of these rows.
            sample_weight: The weights of these rows.
        """
        curve = back_off_curve(self.taxonomy, probs, y, least_level=self.least_level, sample_weight=sample_weight)
        enough = np.flatnonzero(curve.accuracy >= self.accuracy - _ROUNDING)
        if not enough.size:
            raise ValueError(
                f"No threshold reaches an `accuracy` of {self.accuracy}: the best of these rows is "
                f"{np.nanmax(curve.accuracy, initial=0.0):.3f}. Lower `accuracy`, allow None with least_level=0, or "
                "calibrate the model."
            )
        self.threshold_ = float(curve.threshold[enough[0]])
        return self

    def predict(self, probs: Any) -> NDArray[np.object_]:
        """Return the answer for every row: a class, a group, or None."""
        if not hasattr(self, "threshold_"):
            raise ValueError("This BackOff has no threshold yet: call fit(probs, y) with held-out rows first.")
        return back_off(self.taxonomy, probs, self.threshold_, least_level=self.least_level)


class _Candidates:
    """The candidate answers of rows, the most specific first: the most probable label of each size and depth."""

    def __init__(self, taxonomy: Taxonomy, least_level: int) -> None:
        if not 0 <= least_level <= taxonomy.num_levels:
            raise ValueError(
                f"`least_level` is {least_level}, but 0 (None is an answer) .. {taxonomy.num_levels} are possible."
            )
        self._lineage = lineage = taxonomy.lineage
        groups = np.arange(taxonomy.num_classes, lineage.top)
        groups = groups[lineage.depth[groups] >= least_level]
        # If groups have the same classes, the deeper group comes first.
        self._groups = groups[np.lexsort((-lineage.depth[groups], lineage.size[groups]))]
        kinds = np.stack([lineage.size[self._groups], lineage.depth[self._groups]])
        self._starts = np.flatnonzero(np.any(kinds[:, 1:] != kinds[:, :-1], axis=0)) + 1
        self._starts = np.concatenate([np.zeros(min(1, len(self._groups)), dtype=np.int64), self._starts])
        self._last = np.array([lineage.top])
        if least_level:
            self._last = np.unique(lineage.at_depth(np.arange(taxonomy.num_classes), least_level))

    def find(self, rows: NDArray[Any]) -> tuple[Floats, Ints]:
        """Return probabilities and labels, (n, kinds); the last label is always allowed, with the value infinity."""
        sums = np.minimum(self._lineage.sums(np.asarray(rows, dtype=np.float64)), 1.0)  # rounding of half precision
        columns = [np.arange(self._lineage.num_classes), *np.split(self._groups, self._starts[1:]), self._last]
        labels = np.stack([each[sums[:, each].argmax(axis=1)] for each in columns if len(each)], axis=1)
        values = np.take_along_axis(sums, labels, axis=1)
        values[:, -1] = np.inf
        return values, labels


def one_label_per_row(taxonomy: Taxonomy, y: Any, rows: int) -> Ints:
    """Return the numbers of the labels ``y``; raise unless there is one for every row of probabilities."""
    truth = taxonomy.index(y)
    if len(truth) != rows:
        raise ValueError(f"`y` has {len(truth)} labels, but `probs` has {rows} rows: give one label per row.")
    return truth


def row_weights(sample_weight: Any, rows: int) -> Floats:
    """Return the checked weights of rows; 1 if not given."""
    weights = np.ones(rows) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    if not rows:
        raise ValueError("`probs` has no rows, but at least one is needed.")
    if weights.shape != (rows,) or not (np.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
        raise ValueError(
            f"`sample_weight` has shape {weights.shape}, but {rows} finite weights that are at least 0, and not all "
            "0, are needed."
        )
    return weights


def _check_threshold(value: float, name: str = "threshold") -> None:
    _checks.number(value, name)
    if not 0 <= value <= 1:
        raise ValueError(f"`{name}` is {value}, but a number from 0 to 1 is needed.")
