"""Linear models of the advantage of every action, which give an order of actions without a data set."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from catnat import _checks
from catnat.trees.arrays import LARGEST, arrays_of_state, as_array, writable
from catnat.trees.builders import slices
from catnat.trees.clustering import Vectors, from_embeddings
from catnat.trees.tree import Floats, Tree

# The number of matrix entries in a batch of equations that are solved together.
_NUMBERS = 1 << 20


class ActionModels:
    r"""A linear model of the advantage of every action, to put actions with similar models together in a tree.

    .. math:: w_k = \Bigl(\lambda I + \sum_{t: a_t = k} x_t x_t^\top\Bigr)^{-1} \sum_{t: a_t = k} A_t x_t

    This is the ridge regression of the advantages on the features of the observations in which action k was taken.
    Sums of several workers are merged by addition. They take 8 d (d + 1) bytes per action.

    Args:
        num_actions: The number of actions K.
        num_features: The number d of features, which should be small, such as 16: see :func:`catnat.random_projection`.

    Example:
        >>> import catnat
        >>> models = catnat.ActionModels(num_actions=4, num_features=1)
        >>> features, advantages = [[1.0], [1.0], [2.0], [1.0]], [1, -1, 2, -1]
        >>> models.update(features, actions=[0, 1, 2, 3], advantages=advantages)
        >>> tree = models.tree()
        >>> # 0 and 2 are good where 1 and 3 are bad
        >>> [int(tree.path(k)[1][0]) for k in range(4)]
        [1, 0, 1, 0]
    """

    products: Floats
    """The sum of the outer products of features for each action, (K, d, d), float64."""
    sums: Floats
    """The sum of features times advantages for each action, (K, d), float64."""

    def __init__(self, num_actions: int, num_features: int) -> None:
        self.num_actions, self.num_features = _checks.num_classes(num_actions), operator.index(num_features)
        if self.num_features < 1:
            raise ValueError(f"`num_features` is {num_features}, but an observation needs at least 1 feature.")
        self.products = np.zeros((self.num_actions, self.num_features, self.num_features))
        self.sums = np.zeros((self.num_actions, self.num_features))

    def __repr__(self) -> str:
        return f"<ActionModels: {self.num_actions} actions, {self.num_features} features>"

    def update(self, features: Any, actions: Any, advantages: Any) -> None:
        """Add actions that were taken and their advantages.

        Args:
            features: Features of the observations, (n, d): a NumPy or JAX array, or a PyTorch tensor on any device.
            actions: The actions, integers (n,).
            advantages: The advantage of each action, (n,): the reward minus a baseline.
        """
        rows, taken = as_array(features).astype(np.float64), as_array(actions)
        taken = taken if taken.size else taken.astype(np.int64)  # an empty list has floats
        better = as_array(advantages).astype(np.float64)
        needed = (*taken.shape, self.num_features)
        if taken.ndim != 1 or rows.shape != needed or better.shape != taken.shape:
            raise ValueError(
                f"`features`, `actions` and `advantages` have shapes {rows.shape}, {taken.shape} and {better.shape}, "
                f"but (n, {self.num_features}), (n,) and (n,) are needed."
            )
        if taken.dtype.kind not in "iu":
            raise TypeError(f"`actions` has dtype {taken.dtype}, but integers are needed.")
        if taken.size and not 0 <= taken.min() <= taken.max() < self.num_actions:
            wrong = taken[(taken < 0) | (taken >= self.num_actions)][0]
            raise ValueError(f"`actions` holds {wrong}, but the actions are 0 .. {self.num_actions - 1}.")
        if not all((np.abs(numbers) < LARGEST).all() for numbers in (rows, better)):
            raise ValueError(
                f"`features` or `advantages` holds NaN, or a number beyond {LARGEST:.0e}: check their computation, or "
                "scale them."
            )
        self._own_arrays()
        np.add.at(self.products, taken, rows[:, :, None] * rows[:, None, :])
        np.add.at(self.sums, taken, rows * better[:, None])

    def merge(self, other: ActionModels) -> None:
        """Add the sums of another worker."""
        if self.sums.shape != other.sums.shape:
            raise ValueError(
                f"These models are of {self.num_actions} actions and {self.num_features} features, the others of "
                f"{other.num_actions} and {other.num_features}: only those of the same can be merged."
            )
        self._own_arrays()
        self.products += other.products
        self.sums += other.sums

    def _own_arrays(self) -> None:
        self.products, self.sums = map(writable, (self.products, self.sums))

    def coefficients(self, ridge: float = 1.0) -> Vectors:
        r"""Return the models :math:`w_k`, (K, d), float32, with 0 for an action that was never taken.

        Args:
            ridge: The :math:`\lambda` of the formula; use 1 for features and advantages of about unit variance.
        """
        if not 0 < ridge < np.inf:
            raise ValueError(f"`ridge` is {ridge}, but a positive, finite number is needed.")
        found = np.empty(self.sums.shape, dtype=np.float32)
        for part in slices(self.num_actions, max(1, _NUMBERS // self.num_features**2)):
            system = self.products[part] + ridge * np.eye(self.num_features)
            found[part] = np.linalg.solve(system, self.sums[part][:, :, None])[:, :, 0]
        return found

    def tree(self, ridge: float = 1.0, *, seed: int = 0) -> Tree:
        """Return the tree of these models from :func:`catnat.from_embeddings`, with a uniform prior."""
        return from_embeddings(self.coefficients(ridge), seed=seed)

    def state_dict(self) -> dict[str, Floats]:
        """Return the sums, not copies, for a checkpoint."""
        return {"products": self.products, "sums": self.sums}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the sums from a checkpoint."""
        arrays = arrays_of_state(state, self.state_dict(), "actions or features")
        self.products, self.sums = arrays["products"], arrays["sums"]
