"""Pictures in records: bytes as numbers that a history can hold."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LEVELS = 15
"""Grey levels of a picture, beside 0."""
_BYTES = 6


def pack(array: NDArray[np.uint8]) -> list[float]:
    """Bytes, compressed, as numbers that a record's history can hold: 6 bytes each, after the number of bytes.

    >>> unpack(pack(np.arange(5, dtype=np.uint8))).tolist()
    [0, 1, 2, 3, 4]
    """
    content = zlib.compress(array.tobytes(), 9)
    chunks = (content[place : place + _BYTES].ljust(_BYTES, b"\0") for place in range(0, len(content), _BYTES))
    return [float(len(content)), *(float(int.from_bytes(chunk, "big")) for chunk in chunks)]


def unpack(numbers: Sequence[float]) -> NDArray[np.uint8]:
    """The bytes of :func:`pack`."""
    content = b"".join(int(number).to_bytes(_BYTES, "big") for number in numbers[1:])[: int(numbers[0])]
    return np.frombuffer(zlib.decompress(content), np.uint8)
