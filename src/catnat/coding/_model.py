"""The model that encoder and decoder share: for every decision an integer, from scores or from a head."""

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
"""The probabilities of yes, in units of 2^-16."""

# The scores of a head are sums of products of integers: features and weights in units of 2^-12, each below 2^13. So
# they are the same on every machine, whatever the order of summation.
_UNIT = 2.0**-12
_LARGEST = 2.0**13


def quantize(probability: ArrayLike) -> Probabilities:
    """A probability of yes as an integer from 1 to 65,535, in units of 2^-16: neither branch is ever impossible.

    Encoder and decoder code with these integers alone. An unlikely branch costs at most 16 bits; the probability of a
    branch that never happens costs 2.2e-5 bits.

    Args:
        probability: Numbers from 0 to 1, in any shape.

    Example:
        >>> from catnat.coding import quantize
        >>> quantize([0.0, 0.25, 1.0]).tolist()
        [1, 16384, 65535]
    """
    values = np.asarray(probability, np.float64)
    if not ((values >= 0) & (values <= 1)).all():
        raise ValueError("`probability` holds numbers that do not lie between 0 and 1, or are NaN.")
    return np.clip(np.rint(values * 65536), 1, 65535).astype(np.uint16)


def quantized_branches(scores: Any, tree: Tree, activation: Activation | str = "sigmoid") -> Probabilities:
    """The integer of every node, computed in float64: what to ship where two machines' scores may differ.

    :func:`encode` and :func:`decode` take these in place of scores, and then agree without any floating point.

    Args:
        scores: One score per inner node on the last axis, of NumPy, PyTorch or JAX.
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
            "nodes: one score for each is needed, on the last axis."
        )
    return quantize_scores(values, kind, kind.offset(tree))


def quantize_scores(scores: Floats, activation: Activation, offset: Floats) -> Probabilities:
    """The integers of nodes with these scores."""
    values = np.asarray(scores, np.float64)
    if np.isnan(values).any():
        raise ValueError("`scores` holds NaN, but every decision needs a probability: look at what made the scores.")
    with np.errstate(over="ignore"):  # an infinite score is a certain branch
        return quantize(activation.probability(np.clip(values + offset, -1e100, 1e100)))


class Head(Protocol):
    """A last layer with a row of weights for every node, such as ``CatnatHead`` of PyTorch or JAX."""

    tree: Tree
    activation: Activation
    weight: Any
    bias: Any


class Model:
    """The integers of decisions: for given rows and nodes, from scores, from integers, or from features and a head."""

    def __init__(self, source: Tree | Head, activation: Activation | str) -> None:
        self.head = None if isinstance(source, Tree) else _checked_head(source)
        self.tree = source if isinstance(source, Tree) else source.tree
        self.activation = resolve(activation if isinstance(source, Tree) else source.activation)
        nodes = self.tree.num_nodes
        self._offset = np.broadcast_to(self.activation.offset(self.tree), nodes)

    @property
    def width(self) -> int:
        """How many numbers a row of values has: scores, or features."""
        return self.tree.num_nodes if self.head is None else self.head[0].shape[1]

    def fingerprint(self) -> bytes:
        """What tells tree, activation and weights apart, 16 bytes."""
        digest = hashlib.sha256("|".join(saving.names(self.tree, self.activation)).encode())
        for array in self.head or ():
            digest.update(np.ascontiguousarray(array).astype("<f8").tobytes())
        return digest.digest()[:16]

    def rows(self, values: Any) -> NDArray[Any]:
        """Checked values of one block: a row each, or one for all."""
        array = as_array(values)
        if array.ndim == 0 or array.shape[-1] != self.width:
            what = "integers or scores, one per node" if self.head is None else "features"
            raise ValueError(f"`values` has shape {array.shape}, but {self.width} {what}, are needed on its last axis.")
        if self.head is not None:
            if not (np.abs(array) < _LARGEST).all():
                raise ValueError(f"`values` holds a feature of size {_LARGEST:.0f} or more, or NaN: scale features.")
            return np.rint(array.astype(np.float64) / _UNIT).astype(np.int64)
        if array.dtype != np.uint16 and array.dtype.kind != "f":
            raise TypeError(f"`values` has dtype {array.dtype}, but scores, or integers of dtype uint16, are needed.")
        if array.ndim == 1 and array.dtype != np.uint16:  # one distribution for all: its integers once
            return quantize_scores(array, self.activation, self._offset)
        if array.dtype == np.uint16 and array.size and array.min() == 0:
            raise ValueError("`values` holds the integer 0, a branch that is impossible: take those of `quantize`.")
        return array

    def yes(self, rows: NDArray[Any], row: Ints, node: Ints) -> Probabilities:
        """The integers of some decisions: at ``node`` for each ``row``."""
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
    """Weights and biases."""
    missing = [name for name in ("tree", "activation", "weight", "bias") if not hasattr(head, name)]
    if missing:
        raise TypeError(f"A {type(head).__name__} was given, but a catnat.Tree or a CatnatHead is needed.")
    weight = as_array(head.weight)
    if not (np.abs(weight) < _LARGEST).all():
        raise ValueError(f"The head has a weight of size {_LARGEST:.0f} or more, or NaN.")
    return weight, np.zeros(len(weight)) if head.bias is None else as_array(head.bias)
