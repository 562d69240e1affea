"""The format: a header, what the coder has made, and a checksum of both."""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_MAGIC, _VERSION = b"catnat\0", 1
_HEADER = struct.Struct("<7sBQQ16sI")
_CHECKSUM = struct.Struct("<I")

Words = NDArray[np.uint32]


class CodingError(ValueError):
    """What was given cannot be decoded: it is damaged, cut off, or was made with another tree, activation or head.

    Example:
        >>> import numpy as np
        >>> import catnat
        >>> from catnat import coding
        >>> data = coding.encode(catnat.balanced(4), np.zeros(3), np.array([2, 0, 1]))
        >>> coding.decode(catnat.chain(4), np.zeros(3), data)
        Traceback (most recent call last):
        catnat.coding._file.CodingError: The data were encoded with another tree...
    """


class Contents(NamedTuple):
    """What a file holds."""

    num_classes: int
    size: int  # how many classes
    fingerprint: bytes
    checksum: int  # of the classes
    words: Words


def pack(contents: Contents) -> bytes:
    """The contents as bytes."""
    header = _HEADER.pack(_MAGIC, _VERSION, *contents[:4])
    body = header + contents.words.astype("<u4").tobytes()
    return body + _CHECKSUM.pack(zlib.crc32(body))


def unpack(data: bytes, num_classes: int, fingerprint: bytes) -> Contents:
    """The contents of checked bytes that were made with this tree and head; otherwise an error."""
    end = len(data) - _CHECKSUM.size
    if end < _HEADER.size or not data.startswith(_MAGIC):
        raise CodingError(f"The data are {len(data)} bytes that do not begin as those of catnat.coding do, or too few.")
    body, (checksum,) = data[:end], _CHECKSUM.unpack(data[end:])
    if zlib.crc32(body) != checksum:
        raise CodingError("The data are damaged or cut off: their checksum is another one.")
    _, version, classes, size, made_with, checksum = _HEADER.unpack_from(body)
    if version != _VERSION:
        raise CodingError(f"The data have version {version} of the format, but this release reads version {_VERSION}.")
    if (len(body) - _HEADER.size) % 4:
        raise CodingError("The data are damaged: what the coder made is no whole number of words.")
    found = Contents(classes, size, made_with, checksum, np.frombuffer(body[_HEADER.size :], "<u4").astype(np.uint32))
    if (found.num_classes, found.fingerprint) != (num_classes, fingerprint):
        raise CodingError(
            f"The data were encoded with another tree, activation or head than given: over {found.num_classes} "
            f"classes, where this one has {num_classes}."
        )
    return found
