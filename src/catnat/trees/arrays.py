"""Arrays of NumPy from what users have: tensors of PyTorch, arrays of JAX, sparse matrices of SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def as_array(values: Any) -> NDArray[Any]:
    """A NumPy array of what may be a tensor of PyTorch, on any device and in any dtype, or an array of JAX."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if "bfloat16" in str(values.dtype):
            values = values.float()
    array = np.asarray(values)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def is_sparse(values: Any) -> bool:
    """Whether this is a sparse matrix or array of SciPy."""
    return hasattr(values, "tocsr")
