"""A scorer for ``cross_val_score`` and searches; labels may be groups, or classes that are not in a fold."""

from __future__ import annotations

import dataclasses
from typing import Any

from catnat import Taxonomy
from catnat.taxonomy import log_loss


def log_loss_scorer(taxonomy: Taxonomy) -> Any:
    """Return a scorer of the negative log loss in a taxonomy, for the argument ``scoring`` of scikit-learn.

    scikit-learn's ``"neg_log_loss"`` is NaN if a fold lacks classes or a label is a group. This scorer takes the
    probability of the group, and works with any classifier that has ``predict_proba``.

    Args:
        taxonomy: The taxonomy of the labels.

    Example:
        >>> import catnat, numpy as np
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.model_selection import cross_val_score
        >>> from catnat.sklearn import TreeClassifier, log_loss_scorer
        >>> taxonomy = catnat.Taxonomy.from_nested({"cat": ["lion", "lynx"], "dog": ["fox"]})
        >>> y = np.array(["lion", "lynx", "fox", "cat", "dog"] * 20)
        >>> X = np.eye(6)[taxonomy.index(y)]
        >>> model = TreeClassifier(LogisticRegression(), tree=taxonomy)
        >>> scores = cross_val_score(model, X, y, cv=2, scoring=log_loss_scorer(taxonomy))
        >>> bool(scores.min() > -0.5)
        True
    """
    return _LogLossScorer(taxonomy)


@dataclasses.dataclass(frozen=True)
class _LogLossScorer:  # a class, because other processes cannot receive a closure
    taxonomy: Taxonomy

    def __call__(self, estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        probs = self.taxonomy.align(estimator.predict_proba(X), estimator.classes_)
        return -log_loss(self.taxonomy, y, probs, sample_weight=sample_weight)
