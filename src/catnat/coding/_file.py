"""The format: a header, the words of the coder, and a checksum of both."""

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
    """The data cannot be decoded: they are damaged, cut off, or from another tree, activation or head.

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
    """The contents of a file."""

    num_classes: int
    size: int  # the number of encoded classes
    fingerprint: bytes
    checksum: int  # of the classes
    words: Words


def pack(contents: Contents) -> bytes:
    """Return the contents as bytes."""
    header = _HEADER.pack(_MAGIC, _VERSION, *contents[:4])
    body = header + contents.words.astype("<u4").tobytes()
    return body + _CHECKSUM.pack(zlib.crc32(body))


def unpack(data: bytes, num_classes: int, fingerprint: bytes) -> Contents:
    """Return the contents of bytes, or raise an error if they are damaged or from another tree or head."""
    end = len(data) - _CHECKSUM.size
    if end < _HEADER.size or not data.startswith(_MAGIC):
        raise CodingError(f"The data are {len(data)} bytes, too few or without the first bytes of catnat.coding.")
    body, (checksum,) = data[:end], _CHECKSUM.unpack(data[end:])
    if zlib.crc32(body) != checksum:
        raise CodingError("The data are damaged or cut off: their checksum differs.")
    _, version, classes, size, made_with, checksum = _HEADER.unpack_from(body)
    if version != _VERSION:
        raise CodingError(f"The data have version {version} of the format, but this release reads version {_VERSION}.")
    if (len(body) - _HEADER.size) % 4:
        raise CodingError("The data are damaged: their size is not a whole number of words of 4 bytes.")
    found = Contents(classes, size, made_with, checksum, np.frombuffer(body[_HEADER.size :], "<u4").astype(np.uint32))
    if (found.num_classes, found.fingerprint) != (num_classes, fingerprint):
        raise CodingError(
            f"The data were encoded with another tree, activation or head than given: theirs has {found.num_classes} "
            f"classes, this one {num_classes}."
        )
    return found
