"""The model of encoder and decoder: an integer probability for every node, from scores or from a head."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from catnat.activations import Activation, resolve
from catnat.trees import saving
from catnat.trees.arrays import as_array
from catnat.trees.tree import Floats, Ints, Tree

Probabilities = NDArray[np.uint16]
"""The probabilities of the branch yes, in units of 2^-16."""

# Features and weights of a head are integers in units of 2^-12, below 2^13. So the sums of their products are the same
# on every machine, in any order of summation.
_UNIT = 2.0**-12
_LARGEST = 2.0**13


def quantize(probability: ArrayLike) -> Probabilities:
    """Round probabilities of the branch yes to integers from 1 to 65,535, in units of 2^-16.

    Encoder and decoder use these integers alone. No branch is impossible: an unlikely branch costs at most 16 bits, and
    a certain branch 2.2e-5 bits.

    Args:
        probability: Numbers from 0 to 1, in any shape.

    Example:
        >>> from catnat.coding import quantize
        >>> quantize([0.0, 0.25, 1.0]).tolist()
        [1, 16384, 65535]
    """
    values = np.asarray(probability, np.float64)
    if not ((values >= 0) & (values <= 1)).all():
        raise ValueError("`probability` contains NaN or numbers that are not between 0 and 1.")
    return np.clip(np.rint(values * 65536), 1, 65535).astype(np.uint16)


def quantized_branches(scores: Any, tree: Tree, activation: Activation | str = "sigmoid") -> Probabilities:
    """Return the integer of every node, computed in float64, to send if scores may differ between two machines.

    :func:`encode` and :func:`decode` take these in place of scores, and then agree on every machine.

    Args:
        scores: One score per inner node on the last axis, from NumPy, PyTorch or JAX.
        tree: The tree.
        activation: "sigmoid", "natural" (the paper's), or an activation object.

    Example:
        >>> import numpy as np
        >>> import catnat
        >>> from catnat.coding import quantized_branches
        >>> quantized_branches(np.zeros(2), catnat.balanced(3)).tolist()
        [21845, 32768]
    """
    values, kind = as_array(scores), resolve(activation)
    if values.shape[-1:] != (tree.num_nodes,):
        raise ValueError(
            f"`scores` has shape {values.shape}, but a tree over {tree.num_classes} classes has {tree.num_nodes} "
            "nodes: one score per node is needed on the last axis."
        )
    return quantize_scores(values, kind, kind.offset(tree))


def quantize_scores(scores: Floats, activation: Activation, offset: Floats) -> Probabilities:
    """Return the integers of nodes with these scores."""
    values = np.asarray(scores, np.float64)
    if np.isnan(values).any():
        raise ValueError("`scores` contains NaN, but every node needs a probability: check what computes the scores.")
    with np.errstate(over="ignore"):  # an infinite score is a certain branch
        return quantize(activation.probability(np.clip(values + offset, -1e100, 1e100)))


class Head(Protocol):
    """A last layer with a row of weights for every node, such as ``CatnatHead`` of PyTorch or JAX."""

    tree: Tree
    activation: Activation
    weight: Any
    bias: Any


class Model:
    """The integers of nodes, from scores, from integers, or from features and a head."""

    def __init__(self, source: Tree | Head, activation: Activation | str) -> None:
        self.head = None if isinstance(source, Tree) else _checked_head(source)
        self.tree = source if isinstance(source, Tree) else source.tree
        self.activation = resolve(activation if isinstance(source, Tree) else source.activation)
        nodes = self.tree.num_nodes
        self._offset = np.broadcast_to(self.activation.offset(self.tree), nodes)

    @property
    def width(self) -> int:
        """The number of scores or features in a row of values."""
        return self.tree.num_nodes if self.head is None else self.head[0].shape[1]

    def fingerprint(self) -> bytes:
        """Return 16 bytes that identify the tree, the activation and the weights."""
        digest = hashlib.sha256("|".join(saving.names(self.tree, self.activation)).encode())
        for array in self.head or ():
            digest.update(np.ascontiguousarray(array).astype("<f8").tobytes())
        return digest.digest()[:16]

    def rows(self, values: Any) -> NDArray[Any]:
        """Check and prepare the values of a piece: one row per class, or one row for all."""
        array = as_array(values)
        if array.ndim == 0 or array.shape[-1] != self.width:
            what = "integers or scores, one per node," if self.head is None else "features"
            raise ValueError(f"`values` has shape {array.shape}, but {self.width} {what} are needed on its last axis.")
        if self.head is not None:
            if not (np.abs(array) < _LARGEST).all():
                raise ValueError(f"`values` contains a feature of size {_LARGEST:.0f} or more, or NaN: scale features.")
            return np.rint(array.astype(np.float64) / _UNIT).astype(np.int64)
        if array.dtype != np.uint16 and array.dtype.kind != "f":
            raise TypeError(f"`values` has dtype {array.dtype}, but scores, or integers of dtype uint16, are needed.")
        if array.ndim == 1 and array.dtype != np.uint16:  # one distribution for all rows, rounded once
            return quantize_scores(array, self.activation, self._offset)
        if array.dtype == np.uint16 and array.size and array.min() == 0:
            raise ValueError("`values` contains the integer 0, an impossible branch: use the integers of `quantize`.")
        return array

    def yes(self, rows: NDArray[Any], row: Ints, node: Ints) -> Probabilities:
        """Return the integers at ``node`` for each ``row``."""
        if self.head is not None:
            weight, bias = self.head
            weights = np.rint(weight[node].astype(np.float64) / _UNIT).astype(np.int64)
            products = (weights * (rows if rows.ndim == 1 else rows[row])).sum(-1)
            found = products * _UNIT**2 + bias[node].astype(np.float64)
        else:
            found = rows[node] if rows.ndim == 1 else rows[row, node]
            if found.dtype == np.uint16:
                return found
        return quantize_scores(found, self.activation, self._offset[node])


def _checked_head(head: Head) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the weights and biases of a head."""
    missing = [name for name in ("tree", "activation", "weight", "bias") if not hasattr(head, name)]
    if missing:
        raise TypeError(f"A {type(head).__name__} was given, but a catnat.Tree or a CatnatHead is needed.")
    weight = as_array(head.weight)
    if not (np.abs(weight) < _LARGEST).all():
        raise ValueError(f"The head has a weight of size {_LARGEST:.0f} or more, or NaN.")
    return weight, np.zeros(len(weight)) if head.bias is None else as_array(head.bias)
