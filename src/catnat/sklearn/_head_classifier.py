"""A linear model over very many classes, trained by paths of a tree."""

from __future__ import annotations

import copy
import numbers
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.validation import _check_sample_weight, column_or_1d, validate_data

from catnat import Taxonomy, Tree
from catnat.sklearn._labels import Floats, Ints, labels_for
from catnat.sklearn._prediction import TreePredictor

if TYPE_CHECKING:  # PyTorch is loaded when a classifier is fitted
    from catnat.sklearn._network import Network


class HeadClassifier(TreePredictor):
    r"""A linear classifier for tens of thousands of classes, on sparse or dense features.

    Features are embedded, and ``catnat.torch.CatnatHead`` reads the embedding: the score of node i is
    :math:`w_i \cdot E^\top x + b_i`. A step reads and writes the nodes on the paths of its labels and, of sparse rows,
    the features that are there: its cost grows with the logarithm of the number of classes. Needs PyTorch.

    Args:
        embedding_size: The size of the embedding.
        tree: As for :class:`TreeClassifier`.
        learning_rate: Of Adagrad.
        batch_size: Rows in a step.
        max_iter: The largest number of passes over the rows.
        early_stopping: Whether to hold rows out, stop when their log-likelihood no longer rises, and keep the weights
            that were best for them. Otherwise training stops when the loss no longer falls.
        validation_fraction: The fraction of rows to hold out.
        n_iter_no_change: How many passes without progress end the training.
        tol: The progress, in nats a row, below which there is none.
        random_state: Of the initial weights, of what is held out, and of the order of rows.
        verbose: Whether to show a progress bar, which needs ``tqdm``.

    Features of similar size are needed: standardize them, or take tf-idf. A row labelled with a group of the taxonomy
    counts as the probability of that group.

    Attributes:
        n_iter_: The number of passes over the rows.
        loss_curve_: The mean loss of every pass.
        validation_curve_: The mean negative log-likelihood of the rows held out, after every pass.
        n_features_in_: The number of features.

    Example:
        >>> from sklearn.feature_extraction.text import HashingVectorizer
        >>> from catnat.sklearn import HeadClassifier
        >>> texts, labels = (
        ...     ["a cat sat", "a dog ran", "cats sit", "dogs run"],
        ...     ["cat", "dog", "cat", "dog"],
        ... )
        >>> vectorizer = HashingVectorizer(
        ...     n_features=2**10, analyzer="char_wb", ngram_range=(3, 3)
        ... )
        >>> classifier = HeadClassifier(16, random_state=0).fit(
        ...     vectorizer.transform(texts), labels
        ... )
        >>> classifier.predict(vectorizer.transform(["dogs ran"])).tolist()
        ['dog']
    """

    _network: Network
    n_iter_: int
    loss_curve_: list[float]
    validation_curve_: list[float]

    def __init__(
        self,
        embedding_size: int = 64,
        *,
        tree: str | Tree | Taxonomy = "centroids",
        learning_rate: float = 0.1,
        batch_size: int = 256,
        max_iter: int = 50,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 3,
        tol: float = 1e-3,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.embedding_size = embedding_size
        self.tree = tree
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> HeadClassifier:
        """Train from new weights.

        Args:
            X: Rows of features, an array or a sparse matrix.
            y: Their labels: classes, or groups of the taxonomy.
            sample_weight: Their weights.
        """
        X, ids, weights = self._start(X, y, sample_weight, None)
        weights = weights / weights.mean()
        train, held_out = self._split(len(ids))
        best: tuple[float, Any] = (np.inf, None)
        since_best = 0
        while self.n_iter_ < self.max_iter and since_best < self.n_iter_no_change:
            self._train_once(X, ids, weights, train)
            current = self.loss_curve_[-1]
            if len(held_out):
                current = self._validate(X[held_out], ids[held_out], weights[held_out])
            since_best = 0 if current < best[0] - self.tol else since_best + 1
            if current < best[0]:
                best = current, copy.deepcopy(self._network) if len(held_out) else None
        if best[1] is not None:
            self._network = best[1]
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> HeadClassifier:
        """Make one pass over these rows, from where training stands.

        Args:
            X: Rows of features.
            y: Their labels.
            classes: All classes there will be. Needed at the first call, unless ``tree`` is a taxonomy; a tree of kind
                "centroids" or "huffman" is then made from the rows of that call.
            sample_weight: Their weights, 1 for a row that counts as one.
        """
        if hasattr(self, "_network"):
            X, y, weights = self._checked_rows(X, y, sample_weight, reset=False)
            ids = self._labels.ids(y)
            if classes is not None and not np.array_equal(np.unique(classes), self._labels.classes):
                raise ValueError("`classes` is not what it was at the first call of partial_fit; leave it out.")
        else:
            if classes is None and not isinstance(self.tree, Taxonomy):
                raise ValueError("The first call of partial_fit needs `classes`, all that there will be.")
            X, ids, weights = self._start(X, y, sample_weight, classes)
        self._train_once(X, ids, weights, np.arange(len(ids)))
        return self

    # ---- training ----

    def _start(self, X: Any, y: Any, sample_weight: Any, classes: Any) -> tuple[Any, Ints, Floats]:
        """Checked rows, and a network that has not seen them yet."""
        try:
            from catnat.sklearn._network import Network
        except ImportError as error:
            raise ImportError('HeadClassifier needs PyTorch: pip install "catnat[sklearn,torch]".') from error
        for name in ("embedding_size", "batch_size", "max_iter"):
            check_scalar(getattr(self, name), name, numbers.Integral, min_val=1)
        X, y, weights = self._checked_rows(X, y, sample_weight, reset=True)
        self._labels = labels_for(self.tree, X, y, weights, classes)
        self._random = check_random_state(self.random_state)
        row_norm = float(np.sqrt(_mean_square(X) * X.shape[1]))
        seed = self._random.randint(2**31 - 1)
        self._network = Network(X.shape[1], self.embedding_size, self.tree_, self.learning_rate, row_norm or 1.0, seed)
        self.n_iter_ = 0
        self.loss_curve_, self.validation_curve_ = [], []
        return X, self._labels.ids(y), weights

    def _checked_rows(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> tuple[Any, NDArray[Any], Floats]:
        X, y = validate_data(self, X, y, reset=reset, **self._checks(X))
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        kept = np.flatnonzero(weights)
        if not kept.size:
            raise ValueError("`sample_weight` is 0 for every row, but one row at least must count.")
        return X[kept], column_or_1d(y, warn=True)[kept], weights[kept]

    def _split(self, rows: int) -> tuple[Ints, Ints]:
        """Which rows to train on, and which to hold out."""
        order, fraction = self._random.permutation(rows), self.validation_fraction
        if not self.early_stopping or rows < 2:
            return order, order[:0]
        count = int(np.ceil(fraction * rows))
        if not 0 < count < rows:
            raise ValueError(
                f"`validation_fraction` is {fraction}, which holds out {count} of {rows} rows, but both to train on "
                "and to hold out at least one is needed. To hold none out, leave early_stopping=False."
            )
        return order[count:], order[:count]

    def _train_once(self, X: Any, ids: Ints, weights: Floats, rows: Ints) -> None:
        order = self._random.permutation(rows)
        total = 0.0
        for some in self._batches(order):
            total += self._network.step(X[some], ids[some], weights[some])
        self.loss_curve_.append(float(total / weights[rows].sum()))
        self.n_iter_ += 1

    def _validate(self, X: Any, ids: Ints, weights: Floats) -> float:
        loss = -float(np.average(self._network.log_prob(X, ids), weights=weights))
        self.validation_curve_.append(loss)
        return loss

    def _batches(self, order: Ints) -> Iterator[Ints]:
        batches = np.array_split(order, int(np.ceil(len(order) / self.batch_size)))
        if not self.verbose:
            return iter(batches)
        try:
            from tqdm.auto import tqdm  # type: ignore[import-untyped]
        except ImportError as error:
            raise ImportError("`verbose=True` needs tqdm: pip install tqdm.") from error
        last = f", loss {self.loss_curve_[-1]:.3f}" if self.loss_curve_ else ""
        return iter(tqdm(batches, desc=f"pass {self.n_iter_ + 1}{last}"))

    # ---- prediction ----

    def _log_leaves(self, X: Any) -> Floats:
        return self._network.log_leaves(X).T[self._labels.order]

    def _log_reach(self, X: Any) -> Floats:
        leaves = self._network.log_leaves(X)
        reach = self.tree_.reach(np.exp(leaves))
        return np.concatenate([np.log(np.maximum(reach, np.finfo(np.float64).tiny)), leaves], axis=1).T

    def _checks(self, X: Any) -> dict[str, Any]:
        return {"accept_sparse": "csr", "dtype": np.float32}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _mean_square(X: Any) -> float:
    squares = X.multiply(X) if hasattr(X, "multiply") else np.square(X, dtype=np.float64)
    return float(squares.mean())
