"""Checks of class probabilities, and the order of their columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from catnat.taxonomy.lineage import Floats
from catnat.trees import arrays

if TYPE_CHECKING:
    from catnat.taxonomy.taxonomy import Taxonomy

# A sum further from 1 is not due to rounding, even in half precision.
_TOLERANCE = 5e-3


def aligned(taxonomy: Taxonomy, probs: Any, classes: Any) -> Floats:
    """Return the columns of ``probs``, whose names are ``classes``, in the order of the taxonomy's classes."""
    columns = taxonomy.index(classes)
    groups = [taxonomy.labels[i] for i in columns if i >= taxonomy.num_classes]
    if groups:
        raise ValueError(
            f"`classes` has {groups[0]!r}, which is a group of this taxonomy: the model was trained on it as a class. "
            "Train it only on rows that are labelled with a class, or use catnat.sklearn.TreeClassifier."
        )
    if len(np.unique(columns)) < len(columns):
        raise ValueError("`classes` names a class twice: give the name of every column once.")
    table = as_array(probs)
    if table.ndim != 2 or table.shape[1] != len(columns):
        raise ValueError(
            f"`probs` has shape {table.shape}, but {len(columns)} classes are given: pass predict_proba(X) and the "
            "`classes_` of the same model."
        )
    found = np.zeros((len(table), taxonomy.num_classes), dtype=table.dtype)
    found[:, columns] = table
    return found


def checked(taxonomy: Taxonomy, probs: Any) -> NDArray[np.floating[Any]]:
    """Return rows of probabilities of all classes, (n, K); raise unless ``probs`` has them."""
    if hasattr(probs, "columns"):  # a frame: its columns have names
        rows: NDArray[Any] = aligned(taxonomy, probs, probs.columns)
    else:
        rows = as_array(probs)
    if rows.ndim == 0 or rows.shape[-1] != taxonomy.num_classes:
        raise ValueError(
            f"`probs` has shape {rows.shape}, but one probability per class is needed on the last axis: "
            f"{taxonomy.num_classes}, in the order of `taxonomy.classes`. For other columns pass "
            "taxonomy.align(probs, model.classes_)."
        )
    rows = rows.reshape(-1, taxonomy.num_classes)
    for some in taxonomy.lineage.blocks(len(rows)):
        _check_values(rows[some], some.start)
    return rows


def as_array(values: Any) -> NDArray[Any]:
    """Return values of NumPy, a frame, PyTorch or JAX on the CPU as a floating-point array."""
    is_foreign = hasattr(values, "__dlpack__") and not hasattr(values, "__array__")
    array = np.from_dlpack(values) if is_foreign else arrays.as_array(values)
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def _check_values(rows: NDArray[Any], first: int) -> None:
    sums = rows.sum(axis=1, dtype=np.float64)
    bad = np.flatnonzero(~(np.abs(sums - 1) <= _TOLERANCE) | (rows.min(axis=1, initial=0.0) < 0))
    if not bad.size:
        return
    row = rows[bad[0]]
    if not np.isfinite(row).all():
        raise ValueError(
            f"Row {first + bad[0]} of `probs` has NaN or infinite entries: check for missing features or a model that "
            "diverged, or remove such rows."
        )
    raise ValueError(
        f"Row {first + bad[0]} of `probs` has the sum {sums[bad[0]]:.4g} and the smallest entry {row.min():.4g}, but "
        "probabilities are at least 0 and sum to 1: pass softmax(logits) for logits, exp for log-probabilities, and "
        "the columns of all classes."
    )
