"""A binary classifier at every node of a tree, each fitted on the rows that reach it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    column_or_1d,
    has_fit_parameter,
    validate_data,
)

from catnat import Taxonomy, Tree
from catnat.sklearn._labels import Floats, Ints, labels_for, pre_order
from catnat.sklearn._prediction import TreePredictor, log_reach

_LEAST = np.finfo(np.float64).eps  # no branch is less probable: a node that is certain may still be wrong


class TreeClassifier(TreePredictor):
    r"""One binary classifier per node of a tree over the classes.

    A class's probability is the product of the branch probabilities on its path, so the log-likelihood is a sum over
    nodes, and every node is fitted alone: a clone of ``estimator``, on the rows whose class lies below. A row takes
    part in about :math:`\log_2 K` fits, where multiclass boosting grows K trees for all rows in every round.

    Args:
        estimator: A binary classifier with ``predict_proba``; ``HistGradientBoostingClassifier()`` if not given.
            Those of LightGBM and XGBoost will do.
        tree: ``"centroids"``: classes with similar means of the standardized features are told apart late
            (:func:`catnat.from_embeddings`, with counts); sparse features are not standardized. ``"huffman"``: by
            counts alone. ``"balanced"``: sorted classes, for an order that means something. Or a :class:`catnat.Tree`
            over the sorted classes. Or a :class:`catnat.Taxonomy`, whose classes are then those of the classifier, and
            whose groups may be labels.
        n_jobs: How many nodes are fitted at once, as in scikit-learn.

    A row labelled with a group of the taxonomy counts as the probability of that group: it takes part in the nodes
    above it. A node where all rows take one branch has no classifier: its probabilities are the fractions of the rows
    and of one more, which is divided as the tree's prior says.

    Attributes:
        estimators_: The classifier of every node, None where there is none.
        n_features_in_: The number of features.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.linear_model import LogisticRegression
        >>> from catnat.sklearn import TreeClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> classifier = TreeClassifier(LogisticRegression()).fit(X, y)
        >>> classifier.predict_proba(X[:1]).round(2)
        array([[0.98, 0.02, 0.  ]])
        >>> labels, probabilities = classifier.top_k(X[:1], 2)
        >>> labels
        array([[0, 1]])
    """

    def __init__(
        self, estimator: Any = None, *, tree: str | Tree | Taxonomy = "centroids", n_jobs: int | None = None
    ) -> None:
        self.estimator = estimator
        self.tree = tree
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> TreeClassifier:
        """Fit a classifier at every node.

        Args:
            X: Rows of features: an array, a sparse matrix or a DataFrame, as the estimator takes them.
            y: Their labels: classes, or groups of the taxonomy.
            sample_weight: Their weights. A row of weight 0 is left out.
        """
        X, y = validate_data(self, X, y, **self._checks(X))
        y = column_or_1d(y, warn=True)
        check_consistent_length(X, y)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        self._check_estimator(weights)
        if weights is not None and not weights.all():
            kept = np.flatnonzero(weights)
            X, y, weights = _safe_indexing(X, kept), y[kept], weights[kept]
        self._labels = labels_for(self.tree, X, y, weights)
        ids = self._labels.ids(y)
        rows = RowsOfNodes.sorted_by(ids, self.tree_)
        sides = rows.masses(np.ones(len(ids)) if weights is None else weights)
        self._constant = _smoothed(sides, self.tree_)
        self._fitted = np.flatnonzero(sides.all(axis=1))
        found = Parallel(n_jobs=self.n_jobs)(
            delayed(_fit_node)(clone(self._estimator()), X, *rows.at(int(node)), weights) for node in self._fitted
        )
        self.estimators_: list[Any] = [None] * self.tree_.num_nodes
        for node, fitted in zip(self._fitted, found, strict=True):
            self.estimators_[node] = fitted
        return self

    def _estimator(self) -> Any:
        return HistGradientBoostingClassifier() if self.estimator is None else self.estimator

    def _check_estimator(self, weights: Floats | None) -> None:
        estimator = self._estimator()
        if not hasattr(estimator, "predict_proba"):
            raise TypeError(
                f"`estimator` is {estimator!r}, which has no predict_proba, but a tree multiplies probabilities: wrap "
                "it in sklearn.calibration.CalibratedClassifierCV, or take another."
            )
        if weights is not None and not has_fit_parameter(estimator, "sample_weight"):
            raise ValueError(f"`sample_weight` is given, but {type(estimator).__name__}.fit does not take it.")

    def _log_reach(self, X: Any) -> Floats:
        rows = X.shape[0]
        branches = np.empty((2, self.tree_.num_nodes, rows))
        branches[:] = self._constant[..., None]
        found = Parallel(n_jobs=self.n_jobs, require="sharedmem")(
            delayed(_branch_log_probs)(self.estimators_[node], X) for node in self._fitted
        )
        for node, both in zip(self._fitted, found, strict=True):
            branches[:, node] = both
        return log_reach(branches[0], branches[1], self.tree_)

    def __sklearn_tags__(self) -> Any:
        tags, inner = super().__sklearn_tags__(), get_tags(self._estimator())
        tags.input_tags.sparse = inner.input_tags.sparse
        tags.input_tags.allow_nan = inner.input_tags.allow_nan
        return tags


class RowsOfNodes(NamedTuple):
    """Which rows reach which node.

    Ids are numbered in pre-order, where everything below a node follows it without a gap. So rows sorted by the number
    of their label are a slice for every node: first those on its no side, then those on its yes side.
    """

    order: Ints  # the rows, sorted
    bounds: Ints  # (nodes, 3): where a node's rows start, where its yes side starts, where they end

    @classmethod
    def sorted_by(cls, ids: Ints, tree: Tree) -> RowsOfNodes:
        """The rows with these labels."""
        number, end = pre_order(tree)
        order = np.argsort(number[ids], kind="stable")
        # A row whose label is the node itself does not reach its decision: it starts behind it.
        numbers = np.stack([number[: tree.num_nodes] + 1, number[tree.child_ids[:, 1]], end[: tree.num_nodes]], axis=1)
        return cls(order, np.searchsorted(number[ids][order], numbers))

    def at(self, node: int) -> tuple[Ints, Ints]:
        """The rows that reach a node, in the order of the data, and which branch they take."""
        start, middle, stop = self.bounds[node]
        branch = np.repeat([0, 1], [middle - start, stop - middle])
        back = np.argsort(self.order[start:stop])
        return self.order[start:stop][back], branch[back]

    def masses(self, weights: Floats) -> Floats:
        """The weight of the rows on both sides of every node, (nodes, 2)."""
        sums = np.concatenate([[0.0], np.cumsum(weights[self.order])])
        sides: Floats = np.diff(sums[self.bounds], axis=1)
        return np.where(np.diff(self.bounds, axis=1) > 0, sides, 0.0)


def _smoothed(sides: Floats, tree: Tree) -> Floats:
    """The log-probabilities of both branches of every node by counting, (2, nodes), one row added as the prior says."""
    prior = np.stack(tree.prior_branches(), axis=1)
    smoothed = (sides + prior) / (sides.sum(axis=1, keepdims=True) + 1)
    return np.log(np.maximum(smoothed, _LEAST)).T


def _fit_node(estimator: Any, X: Any, rows: Ints, branch: Ints, weights: Floats | None) -> Any:
    options = {} if weights is None else {"sample_weight": weights[rows]}
    return estimator.fit(_safe_indexing(X, rows), branch, **options)


def _branch_log_probs(estimator: Any, X: Any) -> NDArray[np.float64]:
    probs = np.maximum(np.asarray(estimator.predict_proba(X), dtype=np.float64).T, _LEAST)
    logs: NDArray[np.float64] = np.log(probs / probs.sum(axis=0))
    return logs
