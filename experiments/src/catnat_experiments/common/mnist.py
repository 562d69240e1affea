"""MNIST from its original files, found in a folder or downloaded, and checked by their hashes.

The folder is ``$CATNAT_DATA/mnist`` if that variable is set. Otherwise the files are downloaded once, to the user's
cache directory.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import os
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

FOLDER = "CATNAT_DATA"
"""The environment variable that names a folder of data sets; MNIST is in its folder ``mnist``."""
HASHES = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
}
"""SHA-256 of the original files."""
ADDRESS = "https://ossci-datasets.s3.amazonaws.com/mnist/"
PIXELS = 28 * 28
TRAINING = 55_000
"""The number of training images, of 60,000 in the file; the others are for validation."""
_HEADER = 16

Pixels = Literal["grey", "binary"]


@dataclasses.dataclass(frozen=True)
class Images:
    """The three parts, each (images, 784), as bytes: grey levels from 0 to 255, or 0 and 1."""

    train: Tensor
    validation: Tensor
    test: Tensor
    largest: int

    def floats(self, images: Tensor) -> Tensor:
        """Return bytes as intensities from 0 to 1."""
        return images.float() if self.largest == 1 else images.float().div_(self.largest)


@functools.cache
def load(pixels: Pixels) -> Images:
    """Return all images; "binary" means 1 for a grey level of 128 or more."""
    if pixels not in ("grey", "binary"):
        raise ValueError(f'`pixels` is {pixels!r}, but MNIST comes as "grey" or "binary".')
    train, test = (_images(name) for name in HASHES)
    if pixels == "binary":
        train, test = train >= 128, test >= 128
    train, test = train.to(torch.uint8), test.to(torch.uint8)
    return Images(train[:TRAINING], train[TRAINING:], test, 1 if pixels == "binary" else 255)


def _images(name: str) -> Tensor:
    """Return the images of an idx file: a header with their number and size, then one byte per pixel."""
    content = gzip.decompress(_checked(name))
    header = np.frombuffer(content[:_HEADER], ">i4")
    if header.tolist()[2:] != [28, 28]:
        raise ValueError(f"{name} contains images of size {header.tolist()[2:]}, but MNIST's are 28 x 28.")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=_HEADER).reshape(-1, PIXELS).copy())


def _checked(name: str) -> bytes:
    path = _path(name)
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != HASHES[name]:
        raise ValueError(
            f"{path} is not the original file: its SHA-256 differs. Remove it, and get the file again from {ADDRESS}"
        )
    return content


def _path(name: str) -> Path:
    folder = os.environ.get(FOLDER)
    if folder is None:
        return _downloaded(name)
    path = Path(folder) / "mnist" / name
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist, but {FOLDER} is {folder}, the folder of data sets. Put {', '.join(HASHES)} into "
            f"{path.parent}, or unset {FOLDER} to download them."
        )
    return path


def _downloaded(name: str) -> Path:
    """Download a file to the cache directory, unless it is there."""
    import pooch  # needed only without a folder of data sets

    try:
        found = pooch.retrieve(ADDRESS + name, HASHES[name], fname=name, path=pooch.os_cache("catnat-experiments"))
    except (OSError, ValueError) as error:  # no connection, or other bytes than expected
        raise ConnectionError(
            f"{name} could not be downloaded ({error}). Get it in another way, put it into a folder `mnist`, and set "
            f"{FOLDER} to its parent folder."
        ) from error
    return Path(found)
