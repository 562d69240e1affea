"""A classifier at every node of a tree, each fitted on the rows that reach it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    has_fit_parameter,
    validate_data,
)

from catnat import Taxonomy, Tree
from catnat.sklearn._decisions import Decisions, LocalModel
from catnat.sklearn._labels import labels_for
from catnat.taxonomy import back_off
from catnat.taxonomy.lineage import Floats


class TreeClassifier(ClassifierMixin, BaseEstimator):
    r"""One classifier per node of a tree over the classes.

    The probability of a class is the product of the branch probabilities on its path, so the log-likelihood is a sum
    over nodes. For every node a clone of ``estimator`` is fitted on the rows whose class is below it. Each row is used
    in about :math:`\log_2 K` fits, whereas multiclass boosting grows K trees on all rows in every round.

    Args:
        estimator: A classifier with ``predict_proba``, also of LightGBM or XGBoost;
            ``HistGradientBoostingClassifier()`` if not given.
        tree: The tree, or how to build it. ``"centroids"``: classes with similar means of the standardized features are
            separated last (:func:`catnat.from_embeddings`, with counts); sparse features are not standardized.
            ``"huffman"``: from counts alone. ``"balanced"``: in the order of the sorted classes, if it is meaningful. A
            :class:`catnat.Tree` is over the sorted classes. A :class:`catnat.Taxonomy` also gives the classes, and its
            groups may be labels.
        members: The method that divides a taxonomy's group. ``"centroids"``: binary nodes that separate members with
            similar means last. ``"given"``: the nodes of ``taxonomy.tree``. ``"multiclass"``: one multiclass
            ``estimator`` per group, which is best for linear models.
        n_jobs: The number of nodes fitted at once, as in scikit-learn.

    For a row labelled with a group of the taxonomy, the probability of the group is fitted, at the nodes above it.
    Members without rows get their part of one additional row, divided in proportion to the tree's prior.

    Attributes:
        estimators_: The classifier of every node, or None, in the order of ``tree_``. With ``members="multiclass"`` the
            nodes are the top and then ``taxonomy_.groups``.
        n_features_in_: The number of features.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.linear_model import LogisticRegression
        >>> from catnat.sklearn import TreeClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> classifier = TreeClassifier(LogisticRegression()).fit(X, y)
        >>> classifier.predict_proba(X[:1]).round(2)
        array([[0.98, 0.02, 0.  ]])
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        tree: str | Tree | Taxonomy = "centroids",
        members: str = "centroids",
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.tree = tree
        self.members = members
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> TreeClassifier:
        """Fit a classifier at every node.

        Args:
            X: The features: an array, a sparse matrix or a DataFrame, if the estimator accepts it.
            y: The labels of the rows: classes, or groups of the taxonomy.
            sample_weight: The weights of the rows. Rows of weight 0 are left out.
        """
        X, y = validate_data(self, X, y, **self._checks(X))
        y = column_or_1d(y, warn=True)
        check_consistent_length(X, y)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        self._check_estimator(weights)
        if weights is not None and not weights.all():
            kept = np.flatnonzero(weights)
            X, y, weights = _safe_indexing(X, kept), y[kept], weights[kept]
        self._labels = labels_for(self.tree, self.members, X, y, weights)
        self._decisions = Decisions(self._labels.lineage, self._labels.members)
        masses = self._labels.lineage.sums(self._labels.prior[None])[0]
        rows = self._decisions.rows(self._labels.index(y))
        self._models: list[LocalModel] = Parallel(n_jobs=self.n_jobs)(
            delayed(LocalModel.fit)(clone(self._estimator()), X, *some, masses[members], weights)
            for some, members in zip(rows, self._decisions.members, strict=True)
        )
        self.estimators_ = [model.estimator for model in self._models]
        return self

    def _estimator(self) -> Any:
        return HistGradientBoostingClassifier() if self.estimator is None else self.estimator

    def _check_estimator(self, weights: Floats | None) -> None:
        estimator = self._estimator()
        if not hasattr(estimator, "predict_proba"):
            raise TypeError(
                f"`estimator` is {estimator!r}, which has no predict_proba, but a tree multiplies probabilities: wrap "
                "it in sklearn.calibration.CalibratedClassifierCV, or use another estimator."
            )
        if weights is not None and not has_fit_parameter(estimator, "sample_weight"):
            raise ValueError(f"`sample_weight` is given, but {type(estimator).__name__}.fit does not take it.")

    # ---- fitted attributes ----

    @property
    def classes_(self) -> NDArray[Any]:
        """The sorted classes, in the order of the columns of ``predict_proba``."""
        return self._labels.classes

    @property
    def tree_(self) -> Tree:
        """The binary tree."""
        check_is_fitted(self)
        if self._labels.tree is None:
            raise AttributeError('With members="multiclass" there is no binary tree: see taxonomy_.groups.')
        return self._labels.tree

    @property
    def taxonomy_(self) -> Taxonomy:
        """The taxonomy; ``tree_`` is its tree, except with ``members="multiclass"``."""
        check_is_fitted(self)
        if self._labels.taxonomy is None:
            raise AttributeError("Only a taxonomy has groups: fit with tree=catnat.Taxonomy(...).")
        return self._labels.taxonomy

    # ---- classes ----

    def predict_log_proba(self, X: Any) -> Floats:
        """Return the log-probability of every class, shape (n_samples, n_classes); always finite."""
        return np.ascontiguousarray(self._log_leaves(self._checked(X)).T)

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of every class, shape (n_samples, n_classes)."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of every row."""
        best = self._log_leaves(self._checked(X)).argmax(0)
        return self.classes_[best]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy of :meth:`predict`; for a row labelled with a group, every class in it is right."""
        check_is_fitted(self)
        y = column_or_1d(y)
        if self._labels.taxonomy is None:
            return float(super().score(X, y, sample_weight))
        taxonomy = self._labels.taxonomy
        right = taxonomy.lineage.contains(taxonomy.index(y), taxonomy.index(self.predict(X)))
        return float(np.average(right, weights=sample_weight))

    # ---- groups ----

    def predict_group(self, X: Any, confidence: float = 0.9, *, least_level: int = 0) -> NDArray[Any]:
        """Return for every row the most specific class or group with a probability of at least ``confidence``.

        Args:
            X: The features.
            confidence: The smallest probability of an answer. :class:`catnat.taxonomy.BackOff` finds it for a wanted
                accuracy.
            least_level: If no label is that probable, the answer is the most probable label of this level, or None for
                level 0.
        """
        taxonomy = self.taxonomy_
        return back_off(taxonomy, self.predict_proba(X), confidence, least_level=least_level)

    # ---- rows ----

    def _log_leaves(self, X: Any) -> Floats:
        """Return the log-probability of every class, (K, rows), for checked rows."""
        found = Parallel(n_jobs=self.n_jobs, require="sharedmem")(delayed(model.log_probs)(X) for model in self._models)
        return self._decisions.log_reach(found, X.shape[0])[: len(self.classes_)]

    def _checked(self, X: Any) -> Any:
        check_is_fitted(self)
        return validate_data(self, X, reset=False, **self._checks(X))

    def _checks(self, X: Any) -> dict[str, Any]:
        """Return options of ``validate_data``; a DataFrame is not converted, so its columns keep names and types."""
        tags = self.__sklearn_tags__().input_tags
        finite: Any = "allow-nan" if tags.allow_nan else True
        return {
            "accept_sparse": "csr" if tags.sparse else False,
            "ensure_all_finite": finite,
            "skip_check_array": hasattr(X, "iloc"),
        }

    def __sklearn_tags__(self) -> Any:
        tags, inner = super().__sklearn_tags__(), get_tags(self._estimator())
        tags.input_tags.sparse = inner.input_tags.sparse
        tags.input_tags.allow_nan = inner.input_tags.allow_nan
        return tags
