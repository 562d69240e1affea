"""The methods, each with two dials from 0 to 1 that a search turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

import catnat
from catnat_experiments.common.dials import dial
from catnat_experiments.engine.extras import extra
from catnat_experiments.tasks.classifiers.data import Data

with extra("classifiers"):
    from hiclass import LocalClassifierPerParentNode
    from lightgbm import LGBMClassifier
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier
    from xgboost import XGBClassifier

    from catnat.sklearn import HeadClassifier, TreeClassifier

ROUNDS = 50
"""Of every booster, as in xgboost#2926."""
PASSES = 10
"""Of every linear model that is trained by batches."""
Make = Callable[[float, float, int, Any], Any]
"""A classifier from two dials, a seed and the data, of which it may take the taxonomy and the classes."""


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
    """LightGBM at every node."""

    def make(first: float, second: float, seed: int, data: Data) -> Any:
        tree: Any = kind
        if kind == "random":
            order = np.random.default_rng(seed).permutation(len(np.unique(data.y["train"])))
            tree = catnat.from_clusters(order.tolist())
        return TreeClassifier(_lightgbm(first, second, seed, data), tree=tree)

    return make


# ---- linear models of text ----


def _logistic(first: float, seed: int) -> Any:
    return LogisticRegression(C=dial(first, 1, 1000), max_iter=200, random_state=seed)


def _linear_tree(first: float, second: float, seed: int, data: Data) -> Any:
    return TreeClassifier(_logistic(first, seed), tree=data.groups())


def _head(kind: str) -> Make:
    def make(first: float, second: float, seed: int, data: Data) -> Any:
        return HeadClassifier(
            round(dial(second, 32, 256)),
            tree=data.groups() if kind == "taxonomy" else kind,
            learning_rate=dial(first, 0.02, 1.0),
            max_iter=PASSES,
            random_state=seed,
        )

    return make


def _softmax(first: float, second: float, seed: int, data: Data) -> Any:
    return Softmax(round(dial(second, 32, 256)), dial(first, 0.02, 1.0), seed, data.groups())


def _hiclass(first: float, second: float, seed: int, data: Data) -> Any:
    return HiClass(_logistic(first, seed), data.groups())


class Softmax(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The network of ``HeadClassifier`` with a softmax over all classes in place of its head."""

    def __init__(self, width: int, rate: float, seed: int, taxonomy: catnat.Taxonomy) -> None:
        self.width, self.rate, self.seed, self.taxonomy = width, rate, seed, taxonomy

    def fit(self, X: Any, y: NDArray[Any]) -> Softmax:  # noqa: N803
        """Adagrad on batches of 256 rows."""
        torch.manual_seed(self.seed)
        self.classes_ = np.unique(list(map(str, self.taxonomy.classes)))
        norm = float(np.sqrt(X.multiply(X).sum(1).mean()))
        self.embedding = torch.nn.Parameter(torch.randn(X.shape[1], self.width) / norm)
        self.last = torch.nn.Linear(self.width, len(self.classes_))
        optimizer = torch.optim.Adagrad([self.embedding, *self.last.parameters()], lr=self.rate)
        index, rng = np.searchsorted(self.classes_, y), np.random.default_rng(self.seed)
        for _ in range(PASSES):
            for rows in np.array_split(rng.permutation(len(y)), int(np.ceil(len(y) / 256))):
                loss = F.cross_entropy(self._scores(X[rows]), torch.from_numpy(index[rows]))
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                with torch.sparse.check_sparse_tensor_invariants(False):  # type: ignore[no-untyped-call]
                    optimizer.step()
        return self

    @torch.no_grad()
    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Of all classes."""
        probs: NDArray[np.float64] = self._scores(X).double().softmax(-1).numpy()
        return probs

    def _scores(self, X: Any) -> torch.Tensor:  # noqa: N803
        columns, starts = (torch.from_numpy(each.astype(np.int64)) for each in (X.indices, X.indptr[:-1]))
        values = torch.from_numpy(X.data).float()
        embedded = F.embedding_bag(columns, self.embedding, starts, mode="sum", sparse=True, per_sample_weights=values)
        scores: torch.Tensor = self.last(embedded)
        return scores


_SEPARATOR = "::HiClass::Separator::"
"""A node of HiClass's is named by the labels on its path."""


class HiClass(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """HiClass's local classifier per parent node: a multinomial classifier at every group.

    The product down the hierarchy is ours. HiClass 5.0.8's own follows, for all rows, the group that one of them is in,
    and with three levels most rows then have no probability at all.
    """

    def __init__(self, classifier: Any, taxonomy: catnat.Taxonomy) -> None:
        self.classifier, self.taxonomy = classifier, taxonomy

    def fit(self, X: Any, y: NDArray[Any]) -> HiClass:  # noqa: N803
        """On the levels of the paths."""
        levels = np.array([self.taxonomy.path(label) for label in y.tolist()])
        self.model = LocalClassifierPerParentNode(self.classifier).fit(X, levels)
        self.classes_ = np.unique(list(map(str, self.taxonomy.classes)))
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Of all classes; 0 for one without a row to train on."""
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
"""For numbers."""
TEXT_METHODS: dict[str, Make] = {
    "softmax": _softmax,
    "HiClass": _hiclass,
    "logistic tree, taxonomy": _linear_tree,
    "head, taxonomy": _head("taxonomy"),
    "head, centroids": _head("centroids"),
}
"""For text with a taxonomy."""
