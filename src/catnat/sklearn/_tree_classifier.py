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

    A class's probability is the product of the branch probabilities on its path, so the log-likelihood is a sum over
    nodes. Every node is fitted alone: a clone of ``estimator``, on the rows whose class lies below. A row takes part in
    about :math:`\log_2 K` fits, where multiclass boosting grows K trees for all rows in every round.

    Args:
        estimator: A classifier with ``predict_proba``; ``HistGradientBoostingClassifier()`` if not given. Those of
            LightGBM and XGBoost will do.
        tree: ``"centroids"``: classes with similar means of the standardized features are told apart late
            (:func:`catnat.from_embeddings`, with counts); sparse features are not standardized. ``"huffman"``: by
            counts alone. ``"balanced"``: sorted classes, for an order that means something. Or a :class:`catnat.Tree`
            over the sorted classes. Or a :class:`catnat.Taxonomy`, whose classes are then those of the classifier, and
            whose groups may be labels.
        members: How a taxonomy's group is divided among its members. ``"centroids"``: by binary decisions that tell
            members with similar means apart late. ``"given"``: by those of ``taxonomy.tree``. ``"multiclass"``: by one
            multiclass ``estimator`` for each group, which is best for linear models.
        n_jobs: How many nodes are fitted at once, as in scikit-learn.

    A row labelled with a group of the taxonomy counts as the probability of that group: it takes part in the nodes
    above it. Members of a node without any rows get probabilities by counting, with one more row, which is divided as
    the tree's prior says.

    Attributes:
        estimators_: The classifier of every node, None where there is none. Nodes are those of ``tree_``; of
            ``members="multiclass"`` the top and then ``taxonomy_.groups``.
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
                "it in sklearn.calibration.CalibratedClassifierCV, or take another."
            )
        if weights is not None and not has_fit_parameter(estimator, "sample_weight"):
            raise ValueError(f"`sample_weight` is given, but {type(estimator).__name__}.fit does not take it.")

    # ---- fitted attributes ----

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes, sorted: the columns of ``predict_proba``."""
        return self._labels.classes

    @property
    def tree_(self) -> Tree:
        """The tree of binary decisions."""
        check_is_fitted(self)
        if self._labels.tree is None:
            raise AttributeError('With members="multiclass" there is no binary tree: see taxonomy_.groups.')
        return self._labels.tree

    @property
    def taxonomy_(self) -> Taxonomy:
        """The taxonomy, whose tree is ``tree_``."""
        check_is_fitted(self)
        if self._labels.taxonomy is None:
            raise AttributeError("Only a taxonomy has groups: fit with tree=catnat.Taxonomy(...).")
        return self._labels.taxonomy

    # ---- classes ----

    def predict_log_proba(self, X: Any) -> Floats:
        """The log-probability of every class, shape (n_samples, n_classes); always finite."""
        return np.ascontiguousarray(self._log_leaves(self._checked(X)).T)

    def predict_proba(self, X: Any) -> Floats:
        """The probability of every class, shape (n_samples, n_classes)."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of every row."""
        best = self._log_leaves(self._checked(X)).argmax(0)
        return self.classes_[best]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy of :meth:`predict`, where a row labelled with a group is right if the class is in that group."""
        check_is_fitted(self)
        y = column_or_1d(y)
        if self._labels.taxonomy is None:
            return float(super().score(X, y, sample_weight))
        taxonomy = self._labels.taxonomy
        right = taxonomy.lineage.contains(taxonomy.index(y), taxonomy.index(self.predict(X)))
        return float(np.average(right, weights=sample_weight))

    # ---- groups ----

    def predict_group(self, X: Any, confidence: float = 0.9, *, least_level: int = 0) -> NDArray[Any]:
        """The most specific class or group of every row that is at least this probable.

        Args:
            X: The rows.
            confidence: The least probability.
            least_level: Where nothing is that probable, the answer is the most probable label of this level. With 0 it
                is None. See :class:`catnat.taxonomy.BackOff` for a confidence that gives a wanted accuracy.
        """
        taxonomy = self.taxonomy_
        return back_off(taxonomy, self.predict_proba(X), confidence, least_level=least_level)

    # ---- rows ----

    def _log_leaves(self, X: Any) -> Floats:
        """The log-probability of every class, (K, rows), of checked rows."""
        found = Parallel(n_jobs=self.n_jobs, require="sharedmem")(delayed(model.log_probs)(X) for model in self._models)
        return self._decisions.log_reach(found, X.shape[0])[: len(self.classes_)]

    def _checked(self, X: Any) -> Any:
        check_is_fitted(self)
        return validate_data(self, X, reset=False, **self._checks(X))

    def _checks(self, X: Any) -> dict[str, Any]:
        """How to check rows: a DataFrame is left to the estimators, so that its columns keep names and types."""
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
