"""Files as one compressed archive: the next-token model predicts, the coder of catnat codes.

Files are cut into parts of at most :data:`LONGEST` tokens, which are read side by side, one token of each at a time: so
the coder works on as many tokens at once as there are parts left. A part is predicted from its own beginning alone.
Every file ends with its ``<end>``, so that the archive holds no lengths, only the number of parts.
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
"""Tokens of a part. Few files are longer; one by one, the tokens of a single long one would take most of the time."""
_COUNT = struct.Struct("<I")


def files_of(tokens: Ints, end: int) -> list[Ints]:
    """Tokens cut into files, each with its end."""
    ends = np.flatnonzero(tokens == end)
    if not len(ends) or ends[-1] != len(tokens) - 1:
        raise ValueError(f"`tokens` must end with {end}, which ends every file: give all tokens of some files.")
    return np.split(tokens, ends[:-1] + 1)


def _parts_of(file: Ints) -> list[Ints]:
    return np.split(file, range(LONGEST, len(file), LONGEST))


class Reader:
    """Features of the next token of many parts side by side. A part that has ended leaves.

    Encoder and decoder make their features here, step by step in batches of the same size: so they are the same to the
    last bit, where one pass over whole parts would round differently.

    Attributes:
        active: The numbers of the parts that have not ended.
        place: How many tokens of each were read.
    """

    def __init__(self, model: Model, count: int, end: int) -> None:
        self._model, self._end = model, end
        self.active, self.place = np.arange(count), 0
        self._last = torch.full((count, 1), end)  # as in training, where one file follows another
        self._state = torch.zeros(1, count, model.recurrent.hidden_size)

    @torch.no_grad()
    def features(self) -> Tensor:
        """Of the next token of every active part, (active, size)."""
        features, self._state = self._model.features(self._last, self._state)
        return features

    def take(self, tokens: NDArray[np.int64]) -> None:
        """What the next tokens were, (active,)."""
        self.place += 1
        left = (tokens != self._end) & (self.place < LONGEST)
        self.active = self.active[left]
        self._last = torch.from_numpy(tokens[left]).unsqueeze(1)
        self._state = self._state[:, torch.from_numpy(left)]


def encode(model: Model, files: Sequence[Ints], end: int) -> bytes:
    """The archive of some files."""
    parts = [part for file in files for part in _parts_of(file)]
    reader, encoder = Reader(model, len(parts), end), coding.Encoder(_layer(model))
    while reader.active.size:
        tokens = _next(parts, reader)
        encoder.write(reader.features(), tokens)
        reader.take(tokens)
    return _COUNT.pack(len(parts)) + encoder.finish()


def decode(model: Model, data: bytes, end: int) -> list[Ints]:
    """The files of an archive. The model reads what has been decoded, and nothing else."""
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
    """What each file would cost a perfect coder: its negative log-likelihood, in bits."""
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
