"""Conversions to NumPy arrays from PyTorch tensors, JAX arrays and SciPy sparse matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def as_array(values: Any) -> NDArray[Any]:
    """Convert ``values`` to a NumPy array; they may be a PyTorch tensor on any device or a JAX array."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if "bfloat16" in str(values.dtype):
            values = values.float()
    array = np.asarray(values)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def is_sparse(values: Any) -> bool:
    """Return whether ``values`` is a SciPy sparse matrix or array."""
    return hasattr(values, "tocsr")
