"""The methods, each with two dials from 0 to 1 for a search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import catnat
from catnat_experiments.common.dials import dial
from catnat_experiments.engine.extras import extra
from catnat_experiments.tasks.classifiers.data import Data

with extra("classifiers"):
    from hiclass import LocalClassifierPerParentNode
    from lightgbm import LGBMClassifier
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.decomposition import TruncatedSVD
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline
    from xgboost import XGBClassifier

    from catnat.sklearn import TreeClassifier

ROUNDS = 50
"""The number of rounds of boosters on numbers, as in xgboost#2926."""
TEXT_ROUNDS = 10
"""The number of rounds of boosters on taxonomies; a multiclass one for ICD-10 grows 1,900 trees in each."""
WIDE, TEXT_FEATURES = 1000, 64
"""Boosters receive 64 components of data with more than 1,000 features, such as texts."""
Make = Callable[[float, float, int, Any], Any]
"""A function from two dials, a seed and the data, with their taxonomy and classes, to a classifier."""


def _rate_and_leaves(first: float, second: float) -> tuple[float, int]:
    return dial(first, 0.03, 0.4), round(dial(second, 4, 64))


def _lightgbm(first: float, second: float, seed: int, data: Data) -> Any:
    rate, leaves = _rate_and_leaves(first, second)
    return LGBMClassifier(
        n_estimators=ROUNDS, learning_rate=rate, num_leaves=leaves, n_jobs=1, verbosity=-1, random_state=seed
    )


def _xgboost(first: float, second: float, seed: int, data: Data) -> Any:
    rate, leaves = _rate_and_leaves(first, second)
    return XGBClassifier(
        n_estimators=ROUNDS,
        learning_rate=rate,
        max_leaves=leaves,
        max_depth=0,
        grow_policy="lossguide",
        n_jobs=1,
        random_state=seed,
    )


def _histogram(first: float, second: float, seed: int, data: Data) -> Any:
    rate, leaves = _rate_and_leaves(first, second)
    return HistGradientBoostingClassifier(
        max_iter=ROUNDS, learning_rate=rate, max_leaf_nodes=leaves, early_stopping=False, random_state=seed
    )


def _forest(first: float, second: float, seed: int, data: Data) -> Any:
    return RandomForestClassifier(
        100, min_samples_leaf=round(dial(first, 1, 30)), max_features=dial(second, 0.1, 1.0), random_state=seed
    )


def _one_vs_rest(first: float, second: float, seed: int, data: Data) -> Any:
    return OneVsRestClassifier(_lightgbm(first, second, seed, data))


def _tree(kind: str) -> Make:
    """Return a method with LightGBM at every node of a tree."""

    def make(first: float, second: float, seed: int, data: Data) -> Any:
        tree: Any = kind
        if kind == "random":
            order = np.random.default_rng(seed).permutation(len(np.unique(data.y["train"])))
            tree = catnat.from_clusters(order.tolist())
        return TreeClassifier(_lightgbm(first, second, seed, data), tree=tree)

    return make


# ---- data with a taxonomy: the same base learner flat, at the nodes of a tree, and in HiClass ----


def _logistic(first: float, seed: int, data: Data) -> Any:
    return LogisticRegression(C=dial(first, *data.strengths), max_iter=100, random_state=seed)


def _flat_logistic(first: float, second: float, seed: int, data: Data) -> Any:
    return _logistic(first, seed, data)


def _logistic_tree(members: str) -> Make:
    def make(first: float, second: float, seed: int, data: Data) -> Any:
        return TreeClassifier(_logistic(first, seed, data), tree=data.groups(), members=members)

    return make


def _booster_of_texts(first: float, second: float, seed: int, data: Data) -> Any:
    booster = _lightgbm(first, second, seed, data)
    # Without XGBoost's penalty a multiclass LightGBM diverges, because a class has six rows.
    return booster.set_params(n_estimators=TEXT_ROUNDS, min_child_samples=3, reg_lambda=1.0)


def _reduced(model: Any, seed: int, data: Data) -> Any:
    is_wide = data.X["train"].shape[1] > WIDE
    return make_pipeline(TruncatedSVD(TEXT_FEATURES, random_state=seed), model) if is_wide else model


def _flat_booster(first: float, second: float, seed: int, data: Data) -> Any:
    return _reduced(_booster_of_texts(first, second, seed, data), seed, data)


def _booster_of_groups(first: float, second: float, seed: int, data: Data) -> Any:
    booster = _booster_of_texts(first, second, seed, data)
    return _reduced(TreeClassifier(booster, tree=data.groups(), members="multiclass"), seed, data)


def _hiclass(first: float, second: float, seed: int, data: Data) -> Any:
    return HiClass(_logistic(first, seed, data), data.groups())


_SEPARATOR = "::HiClass::Separator::"
"""The separator in the name of a HiClass node, which consists of the labels on its path."""


class HiClass(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """HiClass's local classifier per parent node: a multinomial classifier at every group.

    The product along the hierarchy is our own. That of HiClass 5.0.8 follows the group of one row for all rows. With
    three levels, most rows then have no probabilities.
    """

    def __init__(self, classifier: Any, taxonomy: catnat.Taxonomy) -> None:
        self.classifier, self.taxonomy = classifier, taxonomy

    def fit(self, X: Any, y: NDArray[Any]) -> HiClass:  # noqa: N803
        """Fit the classifiers to the levels of the paths."""
        levels = np.array([self.taxonomy.path(label) for label in y.tolist()])
        self.model = LocalClassifierPerParentNode(self.classifier).fit(X, levels)
        self.classes_ = np.unique(list(map(str, self.taxonomy.classes)))
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Return the probabilities of all classes; 0 for a class without training rows."""
        hierarchy, names = self.model.hierarchy_, [self.model.root_]
        reached = {self.model.root_: np.ones(X.shape[0])}
        for group in names:
            members = list(hierarchy.successors(group))
            if len(members) == 1:
                reached[members[0]] = reached[group]
            elif members:
                local = hierarchy.nodes[group]["classifier"]
                columns = zip(local.classes_, local.predict_proba(X).T, strict=True)
                reached |= {name: reached[group] * column for name, column in columns}
            names += members
        by_label = {str(name).split(_SEPARATOR)[-1]: probs for name, probs in reached.items()}
        return np.stack([by_label.get(name, np.zeros(X.shape[0])) for name in self.classes_.tolist()], axis=1)


METHODS: dict[str, Make] = {
    "LightGBM": _lightgbm,
    "XGBoost": _xgboost,
    "HistGradientBoosting": _histogram,
    "random forest": _forest,
    "one-vs-rest": _one_vs_rest,
    "tree, centroids": _tree("centroids"),
    "tree, huffman": _tree("huffman"),
    "tree, balanced": _tree("balanced"),
    "tree, random": _tree("random"),
}
"""The methods for tables of numbers."""
TEXT_METHODS: dict[str, Make] = {
    "logistic, groups": _logistic_tree("multiclass"),
    "logistic, tree": _logistic_tree("centroids"),
    "logistic, HiClass": _hiclass,
    "LightGBM, groups": _booster_of_groups,
    "logistic, flat": _flat_logistic,
    "LightGBM, flat": _flat_booster,
}
"""The methods for data with a taxonomy."""
