"""What classifiers on a tree can predict, from the log-probability of reaching every node and leaf."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import _safe_indexing, check_scalar
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from catnat import Taxonomy, Tree
from catnat.sklearn._labels import Floats, Labels

# Numbers that a prediction holds at once, unless all of them are its result.
_NUMBERS = 1 << 24


def log_reach(no: Floats, yes: Floats, tree: Tree) -> Floats:
    """The log-probability of reaching every id, (2K-1, rows), from those of the branches of every node, (K-1, rows)."""
    reached = np.zeros((tree.num_nodes + tree.num_classes, no.shape[1]))
    for level in tree.levels:
        children = tree.child_ids[level]
        reached[children[:, 0]] = reached[level] + no[level]
        reached[children[:, 1]] = reached[level] + yes[level]
    return reached


class TreePredictor(ClassifierMixin, BaseEstimator):
    """A classifier that knows, once fitted, its labels and how probable every id of their tree is."""

    _labels: Labels

    def _log_reach(self, X: Any) -> Floats:
        """The log-probability of every id, (2K-1, rows), of checked rows."""
        raise NotImplementedError

    def _log_leaves(self, X: Any) -> Floats:
        """The log-probability of every class, (K, rows), of checked rows."""
        return self._log_reach(X)[self._labels.leaves]

    # ---- fitted attributes ----

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes, sorted: the columns of ``predict_proba``."""
        return self._labels.classes

    @property
    def tree_(self) -> Tree:
        """The tree of binary decisions."""
        return self._labels.tree

    @property
    def groups_(self) -> tuple[Any, ...]:
        """The groups of the taxonomy: the columns of ``group_proba``."""
        return self._taxonomy().groups

    # ---- classes ----

    def predict_log_proba(self, X: Any) -> Floats:
        """The log-probability of every class, shape (n_samples, n_classes); always finite."""
        return np.ascontiguousarray(self._log_leaves(self._checked(X)).T)

    def predict_proba(self, X: Any) -> Floats:
        """The probability of every class, shape (n_samples, n_classes)."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of every row."""
        best = self._by_rows(X, self._log_leaves, lambda leaves: leaves.argmax(0))
        return self.classes_[best]

    def top_k(self, X: Any, k: int) -> tuple[NDArray[Any], Floats]:
        """The ``k`` most probable classes of every row, the best first, and their probabilities.

        Args:
            X: The rows.
            k: How many classes, at most all of them.

        Returns:
            Two arrays of shape (n_samples, k).
        """
        check_is_fitted(self)
        check_scalar(k, "k", numbers.Integral)
        if not 1 <= k <= len(self.classes_):
            raise ValueError(f"`k` is {k}, but 1 .. {len(self.classes_)} classes can be found.")

        def best(leaves: Floats) -> Floats:
            leaves = leaves.T
            some = np.argpartition(leaves, -k, axis=1)[:, -k:]
            order = np.argsort(-np.take_along_axis(leaves, some, 1), axis=1, kind="stable")
            found = np.take_along_axis(some, order, 1)
            return np.stack([found, np.take_along_axis(leaves, found, 1)], axis=2)

        places, values = np.moveaxis(self._by_rows(X, self._log_leaves, best), 2, 0)
        return self.classes_[places.astype(np.int64)], np.exp(values)

    # ---- groups ----

    def group_proba(self, X: Any) -> Floats:
        """The probability of every group of the taxonomy, shape (n_samples, n_groups), in the order of ``groups_``."""
        check_is_fitted(self)
        ids = [self._taxonomy().ids[group] for group in self.groups_]
        return np.exp(self._by_rows(X, self._log_reach, lambda reached: reached[ids].T))

    def predict_group(self, X: Any, confidence: float = 0.9) -> NDArray[Any]:
        """The deepest class or group of every row that is at least this probable, or None if there is none.

        Args:
            X: The rows.
            confidence: The least probability, above 0.5, so that there is only one at every depth.
        """
        check_is_fitted(self)
        if not 0.5 < confidence <= 1:
            raise ValueError(f"`confidence` is {confidence}, but a probability above 0.5, up to 1, is needed.")
        taxonomy = self._taxonomy()
        names = np.empty(len(taxonomy.parents) + 1, dtype=object)
        names[1:] = sorted(taxonomy.parents, key=lambda name: len(taxonomy.path(name)))
        ids = [taxonomy.ids[name] for name in names[1:]]

        def deepest(reached: Floats) -> NDArray[np.int64]:
            enough = reached[ids] >= np.log(confidence)
            return np.where(enough, np.arange(1, len(names))[:, None], 0).max(0)

        return names[self._by_rows(X, self._log_reach, deepest)]

    def log_likelihood(self, X: Any, y: Any) -> Floats:
        """The log-probability of every row's label, which may be a group of the taxonomy."""
        check_is_fitted(self)
        check_consistent_length(X, y)
        ids = self._labels.ids(column_or_1d(y))
        return self._log_reach(self._checked(X))[ids, np.arange(len(ids))]

    def _taxonomy(self) -> Taxonomy:
        check_is_fitted(self)
        if self._labels.taxonomy is None:
            raise AttributeError("Only a taxonomy has groups: fit with tree=catnat.Taxonomy(...).")
        return self._labels.taxonomy

    # ---- rows ----

    def _by_rows(self, X: Any, logs: Callable[[Any], Floats], of: Callable[[Floats], Any]) -> NDArray[Any]:
        """``of`` the log-probabilities, for some rows at a time."""
        X = self._checked(X)
        return np.concatenate([of(logs(rows)) for rows in self._blocks(X)])

    def _blocks(self, X: Any) -> Iterator[Any]:
        size = max(1, _NUMBERS // (2 * len(self.classes_)))
        for start in range(0, max(1, X.shape[0]), size):  # of no rows one block: the estimators say what they need
            yield _safe_indexing(X, slice(start, start + size))

    def _checked(self, X: Any) -> Any:
        check_is_fitted(self)
        return validate_data(self, X, reset=False, **self._checks(X))

    def _checks(self, X: Any) -> dict[str, Any]:
        """How to check rows: a DataFrame is left to who fits on it, so that its columns keep names and types."""
        tags = self.__sklearn_tags__().input_tags
        finite: Any = "allow-nan" if tags.allow_nan else True
        return {
            "accept_sparse": "csr" if tags.sparse else False,
            "ensure_all_finite": finite,
            "skip_check_array": hasattr(X, "iloc"),
        }
