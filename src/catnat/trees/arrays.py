"""Conversions to NumPy arrays from PyTorch tensors, JAX arrays and SciPy sparse matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The bound of features in statistics, so that sums do not overflow and means are finite in float32.
LARGEST = 1e30


def as_array(values: Any) -> NDArray[Any]:
    """Convert ``values`` to a NumPy array; they may be a PyTorch tensor on any device or a JAX array."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if "bfloat16" in str(values.dtype):
            values = values.float()
    array = np.asarray(values)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def arrays_of_state(
    state: Mapping[str, Any], own: Mapping[str, NDArray[np.float64]], what: str
) -> dict[str, NDArray[np.float64]]:
    """Return copies of a checkpoint's sums; raise unless they have the names and shapes of ``own``."""
    arrays = {name: as_array(state[name]).astype(np.float64) for name in own}
    for name, array in arrays.items():
        if array.shape != own[name].shape:
            raise ValueError(
                f"The checkpoint's {name} have shape {array.shape}, but {own[name].shape} is needed: it has other "
                f"{what}."
            )
    return arrays


def writable(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array, copied if it is read-only, such as those of an object in Ray's store, which others share."""
    return np.require(array, requirements="W")


def is_sparse(values: Any) -> bool:
    """Return whether ``values`` is a SciPy sparse matrix or array."""
    return hasattr(values, "tocsr")
