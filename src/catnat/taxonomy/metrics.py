"""Metrics that depend on how far a wrong answer is from the label, and metrics of every level."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from catnat import _checks
from catnat.taxonomy import probabilities
from catnat.taxonomy.backoff import one_label_per_row, row_weights
from catnat.taxonomy.lineage import Floats, Ints
from catnat.taxonomy.taxonomy import Taxonomy


class HierarchicalScores(NamedTuple):
    """Hierarchical precision, recall and F1; see :func:`hierarchical_scores`."""

    precision: float
    recall: float
    f1: float


def hierarchical_scores(
    taxonomy: Taxonomy, y_true: Any, y_pred: Any, *, average: str = "micro", sample_weight: Any = None
) -> HierarchicalScores:
    r"""Return the hierarchical precision, recall and F1 of Kiritchenko et al.

    .. math:: hP = \frac{\sum_i |A(\hat y_i) \cap A(y_i)|}{\sum_i |A(\hat y_i)|}, \qquad
        hR = \frac{\sum_i |A(\hat y_i) \cap A(y_i)|}{\sum_i |A(y_i)|},

    where :math:`A(y)` is the set of the label y and all groups above it, without the top.

    Args:
        taxonomy: The taxonomy of the labels.
        y_true: The labels of the rows: classes or groups.
        y_pred: The answers: classes, groups, or None.
        average: ``"micro"`` for the ratios of sums above, ``"macro"`` for the means of each row's ratios, where None
            has precision 1.
        sample_weight: The weight of every row.

    Example:
        >>> import catnat
        >>> from catnat.taxonomy import hierarchical_scores
        >>> groups = {"cat": ["lion", "lynx"], "dog": ["fox", "wolf"]}
        >>> taxonomy = catnat.Taxonomy.from_nested(groups)
        >>> hierarchical_scores(taxonomy, ["lion", "fox"], ["lynx", "dog"])
        HierarchicalScores(precision=0.666..., recall=0.5, f1=0.571...)
    """
    _checks.one_of(average, "average", ("micro", "macro"))
    truth, answers = _pair(taxonomy, y_true, y_pred)
    depth = taxonomy.lineage.depth
    weights = row_weights(sample_weight, len(truth))
    common = depth[taxonomy.lineage.lowest_common(truth, answers)]
    of_answers, of_truth = depth[answers], depth[truth]
    if average == "micro":
        common, of_answers, of_truth = (np.array([weights @ each]) for each in (common, of_answers, of_truth))
        weights = np.ones(1)
    # Without an answer the precision is 1.
    precision = np.divide(common, of_answers, out=np.ones(len(common)), where=of_answers > 0)
    recall = common / of_truth
    f1 = 2 * precision * recall / np.maximum(precision + recall, np.finfo(np.float64).tiny)
    return HierarchicalScores(*(float(np.average(each, weights=weights)) for each in (precision, recall, f1)))


def lca_distance(taxonomy: Taxonomy, y_true: Any, y_pred: Any, *, sample_weight: Any = None) -> float:
    """Return the mean number of steps from the true label up to the lowest group that also contains the answer.

    It is 0 for an answer that is the label or inside it, and 1 for a wrong class of the right group. It is also 1 for
    the group directly above the label, because this answer lacks one level.

    Args:
        taxonomy: The taxonomy of the labels.
        y_true: The labels of the rows.
        y_pred: The answers; None has the distance of the top.
        sample_weight: The weight of every row.

    Example:
        >>> import catnat
        >>> from catnat.taxonomy import lca_distance
        >>> groups = {"cat": ["lion", "lynx"], "dog": ["fox", "wolf"]}
        >>> taxonomy = catnat.Taxonomy.from_nested(groups)
        >>> lca_distance(taxonomy, ["lion", "lion", "lion"], ["lion", "lynx", "fox"])
        1.0
    """
    truth, answers = _pair(taxonomy, y_true, y_pred)
    lineage = taxonomy.lineage
    steps = lineage.depth[truth] - lineage.depth[lineage.lowest_common(truth, answers)]
    return float(np.average(steps, weights=row_weights(sample_weight, len(truth))))


def log_loss(taxonomy: Taxonomy, y_true: Any, probs: Any, *, sample_weight: Any = None) -> float:
    """Return the negative mean log-probability of the labels; a group has the summed probability of its classes.

    Args:
        taxonomy: The taxonomy of the labels.
        y_true: The labels of the rows: classes or groups.
        probs: Class probabilities in the order of ``taxonomy.classes``, shape (n, K), or a frame with named columns.
        sample_weight: The weight of every row.

    Example:
        >>> import catnat
        >>> from catnat.taxonomy import log_loss
        >>> groups = {"cat": ["lion", "lynx"], "dog": ["fox", "wolf"]}
        >>> taxonomy = catnat.Taxonomy.from_nested(groups)
        >>> log_loss(taxonomy, ["lion", "cat"], [[0.1, 0.5, 0.4, 0.0], [0.1, 0.5, 0.4, 0.0]])
        0.399...
    """
    rows = probabilities.checked(taxonomy, probs)
    truth = one_label_per_row(taxonomy, y_true, len(rows))
    found = np.empty(len(rows))
    for some in taxonomy.lineage.blocks(len(rows)):
        sums = taxonomy.lineage.sums(np.asarray(rows[some], dtype=np.float64))
        found[some] = _logs(np.take_along_axis(sums, truth[some, None], axis=1)[:, 0])
    return -float(np.average(found, weights=row_weights(sample_weight, len(rows))))


def _logs(probs: Floats) -> Floats:
    """Return the logarithms of probabilities, which are clamped to at least the machine epsilon."""
    return np.log(np.maximum(probs, np.finfo(np.float64).eps))


class LevelMetrics(NamedTuple):
    """Accuracy, log loss and calibration on one level; see :func:`level_metrics`."""

    level: int
    rows: int
    """The number of rows whose label on this level is known."""
    accuracy: float
    """The fraction of rows whose label is the most probable one of the level."""
    top_k_accuracy: float
    """The fraction of rows whose label is among the k most probable ones of the level."""
    log_loss: float
    calibration_error: float
    r"""The expected calibration error :math:`\sum_b w_b |\text{accuracy}_b - \text{confidence}_b|` over bins."""
    confidence: Floats
    """The mean probability of the most probable label in every bin; NaN in an empty bin."""
    bin_accuracy: Floats
    """The accuracy of the most probable label in every bin; NaN in an empty bin."""
    bin_weight: Floats
    """The fraction of rows in every bin."""


def level_metrics(
    taxonomy: Taxonomy, y_true: Any, probs: Any, *, k: int = 5, bins: int = 10, sample_weight: Any = None
) -> list[LevelMetrics]:
    """Return accuracy, top-k accuracy, log loss and calibration on every level, from the top down.

    On level n every class is replaced by the group above it at depth n, unless the class itself is less deep. A row
    labelled with a group is left out of the levels below it.

    Args:
        taxonomy: The taxonomy of the labels.
        y_true: The labels of the rows: classes or groups.
        probs: Class probabilities in the order of ``taxonomy.classes``, shape (n, K), or a frame with named columns.
        k: The k of the top-k accuracy.
        bins: The number of bins of equal width for the probability of the most probable label.
        sample_weight: The weight of every row.

    Example:
        >>> import catnat
        >>> from catnat.taxonomy import level_metrics
        >>> groups = {"cat": ["lion", "lynx"], "dog": ["fox", "wolf"]}
        >>> taxonomy = catnat.Taxonomy.from_nested(groups)
        >>> probs = [[0.1, 0.5, 0.4, 0.0], [0.7, 0.1, 0.1, 0.1]]
        >>> for each in level_metrics(taxonomy, ["lynx", "fox"], probs):
        ...     print(each.level, each.accuracy, round(each.log_loss, 3))
        1 1.0 0.164
        2 0.5 0.636
    """
    for name, value in (("k", k), ("bins", bins)):
        _checks.number(value, name)
        if value < 1:
            raise ValueError(f"`{name}` is {value}, but an integer of at least 1 is needed.")
    rows = probabilities.checked(taxonomy, probs)
    truth = one_label_per_row(taxonomy, y_true, len(rows))
    weights = row_weights(sample_weight, len(rows))
    measured = np.empty((taxonomy.num_levels, 4, len(rows)))  # confidence, right, in top k, log-probability
    for some in taxonomy.lineage.blocks(len(rows)):
        sums = taxonomy.lineage.sums(np.asarray(rows[some], dtype=np.float64))
        for level, columns in enumerate(_labels_of_levels(taxonomy)):
            target = taxonomy.lineage.at_depth(truth[some], level + 1)
            measured[level, :, some] = _of_rows(sums, columns, target, k)
    deepest = np.where(truth < taxonomy.num_classes, taxonomy.num_levels, taxonomy.lineage.depth[truth])
    return [
        _of_level(level, measured[level - 1][:, deepest >= level], weights[deepest >= level], bins)
        for level in range(1, taxonomy.num_levels + 1)
    ]


def _labels_of_levels(taxonomy: Taxonomy) -> Iterator[Ints]:
    for level in range(1, taxonomy.num_levels + 1):
        yield np.unique(taxonomy.lineage.at_depth(np.arange(taxonomy.num_classes), level))


def _of_rows(sums: Floats, columns: Ints, target: Ints, k: int) -> Floats:
    """Return the confidence, whether it is right, whether the target is in the top k, and its log-probability."""
    probs = sums[:, columns]
    of_target = np.take_along_axis(sums, target[:, None], axis=1)
    # Of equal probabilities the first is ranked first, as by argmax.
    is_before = (probs > of_target) | ((probs == of_target) & (columns < target[:, None]))
    rank = is_before.sum(axis=1)
    right = columns[probs.argmax(axis=1)] == target
    return np.stack([probs.max(axis=1), right, rank < k, _logs(of_target[:, 0])])


def _of_level(level: int, measured: Floats, weights: Floats, bins: int) -> LevelMetrics:
    confidence, right, in_top, log_probs = measured
    total = weights.sum()
    if not total:
        nan = np.full(bins, np.nan)
        return LevelMetrics(level, 0, np.nan, np.nan, np.nan, np.nan, nan, nan, np.zeros(bins))
    index = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)  # (0, .1], (.1, .2], ...

    def by_bin(values: Floats) -> Floats:
        return np.bincount(index, weights * values, minlength=bins).astype(np.float64)

    mass = by_bin(np.ones_like(weights))
    stated, found = (
        np.divide(by_bin(each), mass, out=np.full(bins, np.nan), where=mass > 0) for each in (confidence, right)
    )
    error = float(np.nansum(mass * np.abs(stated - found)) / total)
    accuracy, top_k, loss = (float(weights @ each / total) for each in (right, in_top, -log_probs))
    return LevelMetrics(level, len(weights), accuracy, top_k, loss, error, stated, found, mass / total)


def _pair(taxonomy: Taxonomy, y_true: Any, y_pred: Any) -> tuple[Ints, Ints]:
    truth, answers = taxonomy.index(y_true), taxonomy.index(y_pred, allow_none=True)
    if len(truth) != len(answers) or not len(truth):
        raise ValueError(
            f"`y_true` has {len(truth)} labels and `y_pred` {len(answers)}, but one each per row is needed."
        )
    return truth, answers
