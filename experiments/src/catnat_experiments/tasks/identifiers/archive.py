"""Files as one compressed archive, by the next-token model and the coder of catnat.

Files are cut into parts of at most :data:`LONGEST` tokens, which are read in parallel, one token of each at a time. So
the coder encodes as many tokens at once as there are parts left. A part is predicted from its own beginning alone.
Every file ends with ``<end>``, so the archive contains no lengths, only the number of parts.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from catnat import coding
from catnat.torch import CatnatHead
from catnat_experiments.tasks.identifiers.corpus import Ints
from catnat_experiments.tasks.identifiers.heads import TreeHead
from catnat_experiments.tasks.identifiers.model import Model

LONGEST = 4096
"""The largest number of tokens in a part. Few files are longer; a long one alone would take most of the time."""
_COUNT = struct.Struct("<I")


def files_of(tokens: Ints, end: int) -> list[Ints]:
    """Cut tokens into files, each with its end."""
    ends = np.flatnonzero(tokens == end)
    if not len(ends) or ends[-1] != len(tokens) - 1:
        raise ValueError(f"`tokens` must end with {end}, which ends every file: give all tokens of some files.")
    return np.split(tokens, ends[:-1] + 1)


def _parts_of(file: Ints) -> list[Ints]:
    return np.split(file, range(LONGEST, len(file), LONGEST))


class Reader:
    """The features of the next token, for many parts in parallel. A part that has ended is removed.

    Encoder and decoder compute features step by step in batches of the same size, so they are the same to the last bit.
    One pass over whole parts would round differently.

    Attributes:
        active: The numbers of the parts that have not ended.
        place: The number of tokens of each that were read.
    """

    def __init__(self, model: Model, count: int, end: int) -> None:
        self._model, self._end = model, end
        self.active, self.place = np.arange(count), 0
        self._last = torch.full((count, 1), end)  # as in training, where one file follows another
        self._state = torch.zeros(1, count, model.recurrent.hidden_size)

    @torch.no_grad()
    def features(self) -> Tensor:
        """Return the features for every active part, (active, size)."""
        features, self._state = self._model.features(self._last, self._state)
        return features

    def take(self, tokens: NDArray[np.int64]) -> None:
        """Take the next token of every active part, (active,)."""
        self.place += 1
        left = (tokens != self._end) & (self.place < LONGEST)
        self.active = self.active[left]
        self._last = torch.from_numpy(tokens[left]).unsqueeze(1)
        self._state = self._state[:, torch.from_numpy(left)]


def encode(model: Model, files: Sequence[Ints], end: int) -> bytes:
    """Return the archive of some files."""
    parts = [part for file in files for part in _parts_of(file)]
    reader, encoder = Reader(model, len(parts), end), coding.Encoder(_layer(model))
    while reader.active.size:
        tokens = _next(parts, reader)
        encoder.write(reader.features(), tokens)
        reader.take(tokens)
    return _COUNT.pack(len(parts)) + encoder.finish()


def decode(model: Model, data: bytes, end: int) -> list[Ints]:
    """Return the files of an archive. The model reads only decoded tokens."""
    [count] = _COUNT.unpack_from(data)
    reader, decoder = Reader(model, count, end), coding.Decoder(_layer(model), data[_COUNT.size :])
    parts: list[list[int]] = [[] for _ in range(count)]
    while reader.active.size:
        tokens = decoder.read(reader.features(), reader.active.size)
        for part, token in zip(reader.active.tolist(), tokens.tolist(), strict=True):
            parts[part].append(token)
        reader.take(tokens)
    decoder.finish()
    return files_of(np.concatenate([np.array(part, np.int32) for part in parts]), end)


@torch.no_grad()
def bits(model: Model, files: Sequence[Ints], end: int) -> NDArray[np.float64]:
    """Return the bits of each file with a perfect coder: its negative log-likelihood."""
    cut = [_parts_of(file) for file in files]
    parts = [part for parts in cut for part in parts]
    reader, found = Reader(model, len(parts), end), np.zeros(len(parts))
    while reader.active.size:
        tokens = _next(parts, reader)
        log_probs = model.head.log_prob_of(reader.features(), torch.from_numpy(tokens))
        found[reader.active] -= log_probs.double().numpy() / np.log(2)
        reader.take(tokens)
    firsts = np.cumsum([0, *map(len, cut[:-1])])
    return np.asarray(np.add.reduceat(found, firsts), np.float64)


def _next(parts: Sequence[Ints], reader: Reader) -> NDArray[np.int64]:
    return np.array([parts[part][reader.place] for part in reader.active.tolist()], np.int64)


def _layer(model: Model) -> CatnatHead:
    if not isinstance(model.head, TreeHead):
        raise TypeError(f"The model ends with a {type(model.head).__name__}, but the coder needs a head on a tree.")
    return model.head.layer
