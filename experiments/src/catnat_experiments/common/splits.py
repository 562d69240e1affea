"""Splits of rows for training, validation and test."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SPLITS = ("train", "validation", "test")


def split(rows: int, rng: np.random.Generator, tenths: tuple[int, int]) -> dict[str, NDArray[np.int64]]:
    """Return all row numbers in random order: the given tenths for training and validation, the rest for test.

    >>> {name: len(part) for name, part in split(100, np.random.default_rng(0), (8, 1)).items()}
    {'train': 80, 'validation': 10, 'test': 10}
    """
    train, validation = tenths
    ends = [train * rows // 10, (train + validation) * rows // 10]
    return dict(zip(SPLITS, np.split(rng.permutation(rows), ends), strict=True))
