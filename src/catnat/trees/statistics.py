"""Statistics of classes from which trees are built: the mean features of every class, in one pass over the data."""

from __future__ import annotations

import hashlib
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from catnat import _checks
from catnat._progress import progress_bar
from catnat.trees.arrays import LARGEST, arrays_of_state, as_array, is_sparse, writable
from catnat.trees.builders import slices
from catnat.trees.clustering import Vectors, from_embeddings
from catnat.trees.saving import replacing
from catnat.trees.tree import Floats, Tree

# The number of features in a batch, which fit with their indices into a processor's cache.
_NUMBERS = 1 << 15
# The count of a class without examples, because a prior of 0 could not be changed by learning.
_UNSEEN = 0.5


class ClassMeans:
    r"""The mean features of every class, collected batch by batch, to build a tree of similar classes.

    After one pass over the data, or over a part of it, similar classes share most of their path in the tree, and
    frequent classes have short paths. Statistics of parts are merged by addition and take 8 (d + 1) bytes per class.

    Args:
        num_classes: The number of classes K.
        num_features: The number d of features of an example.

    Example:
        >>> import catnat
        >>> means = catnat.ClassMeans(num_classes=4, num_features=1)
        >>> means.update(features=[[0.0], [10.0], [0.2]], targets=[0, 1, 2])
        >>> means.update(features=[[10.2]], targets=[3])
        >>> tree = means.tree()
        >>> # the first node separates 0 and 2 from 1 and 3
        >>> [int(tree.path(k)[1][0]) for k in range(4)]
        [0, 1, 0, 1]
    """

    sums: Floats
    """The sum of the features of each class, (K, d), float64. Ranks may merge by an in-place sum of this array."""
    counts: Floats
    """The number of examples of each class, (K,), float64."""

    def __init__(self, num_classes: int, num_features: int) -> None:
        self.num_classes = _checks.num_classes(num_classes)
        self.num_features = operator.index(num_features)
        if self.num_features < 1:
            raise ValueError(f"`num_features` is {num_features}, but an example needs at least 1 feature.")
        self.sums = np.zeros((self.num_classes, self.num_features))
        self.counts = np.zeros(self.num_classes)

    def __repr__(self) -> str:
        shape = f"{self.num_classes} classes, {self.num_features} features"
        return f"<ClassMeans: {shape}, {self.counts.sum():.0f} examples>"

    # ---- collecting ----

    def update(self, features: Any, targets: Any, *, ignore_index: int = -100) -> None:
        """Add examples.

        Args:
            features: The features of every example, in the shape of the targets plus axes with d numbers in all: a
                NumPy or JAX array, a PyTorch tensor on any device, or a SciPy sparse matrix (examples, d).
            targets: The class of every example, integers of any shape.
            ignore_index: A target that is ignored, with its features.
        """
        classes = as_array(targets)
        self._check_targets(classes, ignore_index)
        rows = self._rows(features, classes.shape)
        known = np.flatnonzero(classes.ravel() != ignore_index)
        classes = classes.ravel()[known].astype(np.int64)
        parts = slices(len(known), max(1, _NUMBERS // self.num_features))
        # The whole batch is checked before anything is added, so that an invalid batch changes nothing.
        if not all((np.abs(_dense(rows[known[part]])) < LARGEST).all() for part in parts):
            raise ValueError(
                f"`features` holds NaN, or a number beyond {LARGEST:.0e}: check their computation, or scale features."
            )
        self._own_arrays()
        columns = np.arange(self.num_features)
        for part in parts:
            places = classes[part, None] * self.num_features + columns
            np.add.at(self.sums.reshape(-1), places.ravel(), _dense(rows[known[part]]).ravel())
        np.add.at(self.counts, classes, 1.0)

    def _own_arrays(self) -> None:
        self.sums, self.counts = map(writable, (self.sums, self.counts))

    def _check_targets(self, classes: NDArray[Any], ignore_index: int) -> None:
        if classes.dtype.kind not in "iu" and classes.size:
            raise TypeError(f"`targets` has dtype {classes.dtype}, but integer class indices are needed.")
        wrong = classes[(classes != ignore_index) & ((classes < 0) | (classes >= self.num_classes))]
        if wrong.size:
            raise ValueError(
                f"`targets` holds {wrong[0]}, but the classes are 0 .. {self.num_classes - 1}, and {ignore_index} for "
                "examples to ignore: number the classes from 0, or give ClassMeans more classes."
            )

    def _rows(self, features: Any, batch: tuple[int, ...]) -> Any:
        """Return the checked features of all examples, (examples, d)."""
        rows = features.tocsr() if is_sparse(features) else as_array(features)
        shape, count = tuple(rows.shape), int(np.prod(batch))
        if shape[: len(batch)] != batch or int(np.prod(shape[len(batch) :])) != self.num_features:
            raise ValueError(
                f"`features` has shape {shape} and `targets` {batch}, but {self.num_features} features are needed for "
                f"every target: ({', '.join(map(str, (*batch, self.num_features)))})."
            )
        return rows if is_sparse(rows) else rows.reshape(count, self.num_features)

    @classmethod
    def from_batches(
        cls,
        num_classes: int,
        batches: Iterable[Any],
        features: Callable[[Any], Any] | None = None,
        *,
        num_features: int | None = None,
        progress: bool = False,
    ) -> ClassMeans:
        """Collect the statistics of all batches of a loader.

        Args:
            num_classes: The number of classes K.
            batches: Pairs of inputs and targets, such as from a ``DataLoader``. Images are flattened to pixels. For
                batches of another form pass a generator, such as ``((b["image"], b["label"]) for b in loader)``.
            features: A function from a batch of inputs to features, such as a frozen encoder; the inputs if not given.
            num_features: The number of features, needed only for a part of the data that may have no batch.
            progress: Whether to show a progress bar, which needs ``tqdm``.

        Example:
            >>> import catnat
            >>> batches = [([[0.0], [1.0]], [0, 1]), ([[0.5]], [1])]
            >>> catnat.ClassMeans.from_batches(2, batches)
            <ClassMeans: 2 classes, 1 features, 3 examples>
        """
        found = None if num_features is None else cls(num_classes, num_features)
        with progress_bar(progress, operator.length_hint(batches), "class means") as done:
            for batch in batches:
                inputs, targets = _pair(batch)
                rows = inputs if features is None else features(inputs)
                rows, classes = rows if is_sparse(rows) else as_array(rows), as_array(targets)
                if found is None:
                    found = cls(num_classes, int(np.prod(rows.shape[classes.ndim :])))
                found.update(rows, classes)
                done(1)
        if found is None:
            raise ValueError(
                "`batches` is empty, but at least one pair of inputs and targets is needed, or `num_features`."
            )
        return found

    @classmethod
    def from_frame(cls, frame: Any, target: str, num_classes: int | None = None, *, size: int = 16) -> ClassMeans:
        """Collect the statistics of a pandas ``DataFrame``.

        Numbers are standardized, and missing numbers are then 0. In other columns each value is a random vector. The
        mean and spread are those of this frame, so statistics of several frames cannot be merged: standardize the
        columns yourself, and use :meth:`update`.

        Args:
            frame: A ``DataFrame`` with a row for every example.
            target: The column of class indices. Convert names to indices, for example by ``pandas.factorize``.
            num_classes: The number of classes K; the largest index plus 1 if not given.
            size: The size of the random vectors.
        """
        if target not in frame.columns:
            raise ValueError(f"`target` is {target!r}, but the columns are {', '.join(map(repr, frame.columns))}.")
        if list(frame.columns).count(target) > 1:
            raise ValueError(
                f"`frame` has several columns named {target!r}, but one target is needed: rename the others."
            )
        classes = frame[target].to_numpy()
        if classes.dtype.kind not in "iu":
            raise TypeError(
                f"The column {target!r} has dtype {frame[target].dtype}, but class indices without gaps are needed: "
                f"drop rows without a label, then frame[{target!r}], names = pandas.factorize(frame[{target!r}])."
            )
        columns = [frame.iloc[:, i] for i, name in enumerate(frame.columns) if name != target]  # names may repeat
        parts = [_column(column, size) for column in columns]
        if not parts or not len(classes):
            raise ValueError(f"`frame` has shape {frame.shape}, but rows and a column besides the target are needed.")
        return cls.from_batches(num_classes or int(classes.max()) + 1, [(np.concatenate(parts, axis=1), classes)])

    # ---- merging ----

    def merge(self, other: ClassMeans) -> None:
        """Add the statistics of another part of the data."""
        mine, theirs = self.sums.shape, other.sums.shape
        if mine != theirs:
            raise ValueError(
                f"These statistics are of {mine[0]} classes and {mine[1]} features, the others of {theirs[0]} and "
                f"{theirs[1]}: only statistics of the same classes and features can be merged."
            )
        self._own_arrays()
        self.sums += other.sums
        self.counts += other.counts

    def __add__(self, other: object) -> ClassMeans:
        if not isinstance(other, ClassMeans):
            return NotImplemented
        total = ClassMeans(self.num_classes, self.num_features)
        total.merge(self)
        total.merge(other)
        return total

    # ---- means and trees ----

    def class_means(self, shrinkage: float = 2.0) -> Vectors:
        r"""Return the mean features of every class minus the overall mean, shrunk towards 0 if there are few examples.

        .. math:: \frac{n_k}{n_k + \lambda} (\bar x_k - \bar x)

        where n_k is the number of examples of class k. Shrinkage reduces the noise of rare classes; a class without
        examples gets 0.

        Args:
            shrinkage: The number of examples :math:`\lambda` at which the factor is 1/2.

        Returns:
            The means, (K, d), float32.
        """
        if not 0 <= shrinkage < np.inf:
            raise ValueError(f"`shrinkage` is {shrinkage}, but a finite number of examples is needed, 0 or more.")
        total = self.counts.sum()
        if total == 0:
            raise ValueError("There are no examples yet: call update(features, targets) before.")
        mean = self.sums.sum(axis=0) / total
        means = np.empty(self.sums.shape, dtype=np.float32)
        for part in slices(self.num_classes, max(1, _NUMBERS // self.num_features)):
            counts = self.counts[part, None]
            means[part] = (self.sums[part] - counts * mean) / np.maximum(counts + shrinkage, np.finfo(float).tiny)
        return means

    def tree(
        self,
        shrinkage: float = 2.0,
        *,
        prior: bool = True,
        seed: int = 0,
        progress: bool = False,
        scratch: str | os.PathLike[str] | None = None,
    ) -> Tree:
        """Build the tree of these means by :func:`catnat.from_embeddings`.

        Args:
            shrinkage: See :meth:`class_means`.
            prior: Whether counts are the weights of the tree: frequent classes get short paths, and zero scores give
                the frequencies. A class without examples has a count of 1/2.
            seed: The seed of the random initial directions.
            progress: Whether to show a progress bar, which needs ``tqdm``.
            scratch: A folder for copies of the means.
        """
        weights = np.maximum(self.counts, _UNSEEN) if prior else None
        return from_embeddings(self.class_means(shrinkage), weights, seed=seed, progress=progress, scratch=scratch)

    # ---- files ----

    def state_dict(self) -> dict[str, Floats]:
        """Return the sums and counts, not copies, for a checkpoint.

        They are NumPy arrays, which ``torch.load`` reads only with ``weights_only=False``.
        """
        return {"sums": self.sums, "counts": self.counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the sums and counts from a checkpoint."""
        arrays = arrays_of_state(state, self.state_dict(), "classes or features")
        self.sums, self.counts = arrays["sums"], arrays["counts"]

    def save(self, file: str | Path) -> None:
        """Write the statistics to a file in NumPy's ``.npz`` format, for :meth:`load`; it is replaced as a whole."""
        with replacing(file) as part, open(part, "wb") as stream:
            np.savez(stream, sums=self.sums, counts=self.counts)

    @classmethod
    def load(cls, file: str | Path) -> ClassMeans:
        """Read statistics written by :meth:`save`."""
        with np.load(file) as arrays:
            found = cls(*arrays["sums"].shape)
            found.load_state_dict(arrays)
        return found


def _pair(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, Mapping) or not hasattr(batch, "__len__") or len(batch) != 2:
        kind = f"with the keys {', '.join(map(repr, batch))}" if isinstance(batch, Mapping) else "of another form"
        raise TypeError(
            f"A batch is a {type(batch).__name__} {kind}, but a pair of inputs and targets is needed. Pass a generator "
            'of pairs, such as ((batch["image"], batch["label"]) for batch in loader).'
        )
    inputs, targets = batch
    return inputs, targets


def _dense(rows: Any) -> Floats:
    """Convert rows of a matrix that may be sparse to a dense float64 array."""
    return np.asarray(rows.toarray() if is_sparse(rows) else rows, dtype=np.float64)


# ---- fixed random vectors --------------------------------------------------------------------------------------------


def random_features(tokens: Any, size: int = 32, seed: int = 0) -> Vectors:
    """Return a fixed random vector of signs for every token, to use as features if there are too many for one-hot.

    The vector of a token is computed from its number, so nothing is stored and all workers get the same vectors.
    Vectors of different tokens are nearly orthogonal, so their mean over the neighbours of a class describes these.

    Args:
        tokens: Integers of any shape; a negative integer means no token and gets zeros.
        size: The size of a vector.
        seed: The seed; another seed gives other vectors.

    Returns:
        The vectors, (..., size), float32.

    Example:
        >>> import catnat, numpy as np
        >>> text = np.array([3, 7, 3, 7, 5])
        >>> means = catnat.ClassMeans(num_classes=8, num_features=2 * 32)
        >>> # the token before each, and the one before that
        >>> means.update(catnat.random_features(np.stack([text[1:-1], text[:-2]], 1)), text[2:])
    """
    array = as_array(tokens)
    if array.dtype.kind not in "iu":
        raise TypeError(f"`tokens` has dtype {array.dtype}, but integers are needed; numbers go to random_projection.")
    size, ids = operator.index(size), array.reshape(-1, 1).astype(np.uint64)
    if size < 1:
        raise ValueError(f"`size` is {size}, but a vector needs at least 1 number.")
    words = np.arange(-(-size // 64), dtype=np.uint64)
    mixed = _mix(_mix(ids + _mix(np.array([operator.index(seed) % 2**64], dtype=np.uint64))) + words)
    bits = np.unpackbits(mixed.astype("<u8").view(np.uint8), axis=1)[:, :size]
    vectors = bits.astype(np.float32)
    vectors += vectors - 1
    vectors[array.reshape(-1) < 0] = 0
    return vectors.reshape(*array.shape, size)


def random_projection(values: Any, size: int = 32, seed: int = 0) -> Vectors:
    """Reduce the number of features, by the sum of a fixed random vector for each column times its value.

    Args:
        values: Numbers (n, columns): an array, a tensor, or a SciPy sparse matrix, such as word counts.
        size: The number of features in the result.
        seed: The seed; another seed gives other vectors.

    Returns:
        The features, (n, size), float32.

    Example:
        >>> import numpy as np
        >>> import catnat
        >>> catnat.random_projection(np.eye(3), size=8).shape
        (3, 8)
    """
    table = values if is_sparse(values) else as_array(values)
    if len(table.shape) != 2:
        raise ValueError(f"`values` has shape {tuple(table.shape)}, but rows of numbers are needed: (n, columns).")
    return np.asarray(table @ random_features(np.arange(table.shape[1]), size, seed), dtype=np.float32)


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply a step of SplitMix64, in which every bit of the result depends on every bit of the input."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _column(column: Any, size: int) -> Vectors:
    """Return the features of one column of a table; categories of pandas are no numbers, even if they are integers."""
    values: NDArray[Any] = column.to_numpy()
    if values.dtype.kind in "iuf" and not hasattr(column, "cat"):
        numbers = values.astype(np.float64)
        numbers[~np.isfinite(numbers)] = np.nan
        known = numbers[~np.isnan(numbers)]
        spread = known.std() if known.size else 0.0
        standard = (numbers - (known.mean() if known.size else 0.0)) / (spread or 1.0)
        return np.nan_to_num(standard).astype(np.float32)[:, None]
    names = {name: -1 if _is_missing(name) else _number(name) for name in set(values.tolist())}
    return random_features(np.array([names[name] for name in values.tolist()], dtype=np.int64), size)


def _is_missing(name: object) -> bool:
    try:
        return name is None or bool(name != name)
    except TypeError:  # pandas.NA, for which a comparison is neither true nor false
        return True


def _number(name: object) -> int:
    """Hash a value of a column to a number that is the same in every process."""
    return int.from_bytes(hashlib.blake2b(str(name).encode(), digest_size=8).digest(), "little") >> 1
