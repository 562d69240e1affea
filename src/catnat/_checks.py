"""Checks of what users pass in, and the error texts that all backends share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def num_classes(value: int) -> int:
    """Return ``value`` as an int of at least 1, or say what is wrong with it."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"`num_classes` is {value!r} of type {type(value).__name__}, but a whole number is needed.")
    if value < 1:
        raise ValueError(f"`num_classes` is {value}, but a categorical variable has at least 1 class.")
    return int(value)


def weights(values: ArrayLike, name: str, size: int | None = None) -> NDArray[np.float64]:
    """Return ``values`` as a float64 vector of positive, finite weights, or say what is wrong with them."""
    array = np.array(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"`{name}` has shape {array.shape}, but one weight per class is needed: a vector (K,).")
    if size is not None and array.size != size:
        raise ValueError(f"`{name}` has {array.size} entries, but the tree has {size} classes: give one per class.")
    bad = np.flatnonzero(~(np.isfinite(array) & (array > 0)))
    if bad.size:
        raise ValueError(
            f"`{name}` must be positive and finite, but {bad.size} of {array.size} entries are not: the first is "
            f"entry {bad[0]}, {array[bad[0]]}. A class of weight 0 could never be learned from zero scores: add a "
            "small count to every class."
        )
    return array


def width_of_scores(got: int, classes: int) -> None:
    """Raise unless the last axis has one score per inner node."""
    if got == classes - 1:
        return
    likely = ""
    if got == classes:
        likely = f" It looks as if one score per class ({classes}) was passed, as softmax takes."
    raise ValueError(
        f"`scores` has {got} entries on its last axis, but a tree over {classes} classes has {classes - 1} nodes."
        f"{likely} catnat takes one score per node (K - 1), not one per class (K): make the last layer {classes - 1} "
        f"wide, or build the tree with balanced({got + 1})."
    )


def listed(values: object, name: str) -> tuple[Any, ...]:
    """Return the entries of ``values``, or say that several are needed."""
    if not isinstance(values, Iterable):
        raise TypeError(f"`{name}` is {values!r}, but a list is needed, with one entry for every variable.")
    return tuple(values)


def one_of(value: str, name: str, choices: Sequence[str]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"`{name}` is {value!r}, but must be one of {', '.join(map(repr, choices))}.")
