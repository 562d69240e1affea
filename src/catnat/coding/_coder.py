"""Encoder and decoder, which walk down the tree level by level with a block of classes."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable
from typing import Any

import constriction
import numpy as np
from numpy.typing import NDArray

from catnat.activations import Activation
from catnat.coding._file import CodingError, Contents, pack, unpack
from catnat.coding._model import Head, Model, Probabilities
from catnat.trees.arrays import as_array
from catnat.trees.tree import Ints, Tree, positions_below, sums_below

# The number of classes in a block; a part of the format, because a block is encoded level by level.
_BLOCK = 1 << 13

# The bits that a branch costs at least, by its probability in units of 2^-16; constriction takes up to 0.04% less.
_COSTS = 0.999 * (16 - np.log2(np.maximum(np.arange(65537), 0.5)))
# The bits that a coder may hold besides its words.
_STATE_BITS = 128
# The largest count with a single class, which needs no words.
_MOST_WITHOUT_WORDS = 1 << 20

_BERNOULLI = constriction.stream.model.Bernoulli(perfect=False)
Bits = NDArray[np.int32]


class _Coder:
    """Base class of both directions: the model, the walk, and the checksum of the classes."""

    def __init__(self, source: Tree | Head, activation: Activation | str) -> None:
        self.model = Model(source, activation)
        self.tree = self.model.tree
        self.count = self.checksum = 0

    def _blocks(self, values: Any, count: int) -> list[tuple[NDArray[Any], slice]]:
        """Return the rows of every block, and the slice of its classes."""
        rows = self.model.rows(values)
        if rows.ndim > 1:
            rows = rows.reshape(math.prod(rows.shape[:-1]), rows.shape[-1])
            if len(rows) != count:
                raise ValueError(f"`values` has {len(rows)} rows for {count} classes: one row each or one is needed.")
        parts = [slice(start, min(start + _BLOCK, count)) for start in range(0, count, _BLOCK)]
        return [(rows if rows.ndim == 1 else rows[part], part) for part in parts]

    def _walk(self, rows: NDArray[Any], count: int, decide: Callable[[Ints, Ints, Probabilities], Bits]) -> Ints:
        """Walk from the root along the branches that ``decide`` returns; return the ``count`` classes."""
        at, children, nodes = np.zeros(count, np.int64), self.tree.child_ids, self.tree.num_nodes
        active = np.arange(count if nodes else 0)
        while active.size:
            node = at[active]
            at[active] = children[node, decide(active, node, self.model.yes(rows, active, node))]
            active = active[at[active] < nodes]
        return at - nodes

    def _note(self, classes: Ints) -> None:
        self.count += classes.size
        self.checksum = zlib.crc32(classes.astype("<i8").tobytes(), self.checksum)


class Encoder(_Coder):
    """An encoder of classes, piece by piece; the decoder must read pieces of the same sizes.

    Args:
        source: The tree, or a :class:`catnat.torch.CatnatHead` or :class:`catnat.jax.CatnatHead`, whose scores are
            computed only on the paths.
        activation: "sigmoid", "natural" (the paper's), or an activation object; a head has its own.

    Example:
        >>> import numpy as np
        >>> import catnat
        >>> from catnat import coding
        >>> encoder = coding.Encoder(catnat.balanced(4))
        >>> encoder.write(np.zeros(3), np.array([2, 0]))
        >>> encoder.write(np.array([3.0, 0.0, 1.0]), np.array([3]))
        >>> data = encoder.finish()
        >>> decoder = coding.Decoder(catnat.balanced(4), data)
        >>> decoder.read(np.zeros(3), 2).tolist()
        [2, 0]
        >>> decoder.read(np.array([3.0, 0.0, 1.0]), 1).tolist()
        [3]
        >>> decoder.finish()
    """

    def __init__(self, source: Tree | Head, activation: Activation | str = "sigmoid") -> None:
        super().__init__(source, activation)
        self._stream = constriction.stream.queue.RangeEncoder()
        self._whole = True  # False after an error in the middle of a piece

    def write(self, values: Any, classes: Any) -> None:
        """Encode one piece.

        Args:
            values: Scores, or the integers of :func:`quantized_branches`, for a tree; features for a head. One row per
                class, or one row for all.
            classes: Class indices, in any shape.
        """
        self._check_whole()
        targets = _checked_classes(classes, self.tree.num_classes)
        if not self.tree.num_nodes and self.count + targets.size > _MOST_WITHOUT_WORDS:
            raise ValueError(
                f"A tree over one class codes at most {_MOST_WITHOUT_WORDS} classes, because they take no space: send "
                "their number instead."
            )
        starts, places = _leaf_order(self.tree)
        yes_side = starts[self.tree.child_ids[:, 1]]
        blocks = self._blocks(values, targets.size)
        self._whole = False
        for rows, part in blocks:
            place = places[targets[part]]
            self._walk(rows, place.size, functools.partial(self._branch, place, yes_side))
        self._note(targets)
        self._whole = True

    def _branch(self, place: Ints, yes_side: Ints, active: Ints, node: Ints, yes: Probabilities) -> Bits:
        bits = (place[active] >= yes_side[node]).astype(np.int32)
        self._stream.encode(bits, _BERNOULLI, yes / 65536.0)
        return bits

    def finish(self) -> bytes:
        """Return the data of all pieces, with header and checksum."""
        self._check_whole()
        words = self._stream.get_compressed()
        fingerprint = self.model.fingerprint()
        return pack(Contents(self.tree.num_classes, self.count, fingerprint, self.checksum, words))

    def _check_whole(self) -> None:
        if not self._whole:
            raise CodingError("An error interrupted a piece, so the data cannot be decoded: take a new Encoder.")


class Decoder(_Coder):
    """A decoder of the data of an :class:`Encoder`, piece by piece.

    Damaged data, and another tree, activation or weights, raise an error at once. If other scores or features give
    wrong classes, :meth:`read` or :meth:`finish` raises an error.

    Args:
        source: The tree or the head.
        data: The data of the encoder.
        activation: "sigmoid", "natural" (the paper's), or an activation object; a head has its own.

    Example:
        >>> import numpy as np
        >>> import catnat
        >>> from catnat import coding
        >>> data = coding.encode(catnat.balanced(4), np.zeros(3), np.array([2, 0, 1]))
        >>> coding.Decoder(catnat.balanced(4), data).read(np.zeros(3), 3).tolist()
        [2, 0, 1]
    """

    def __init__(self, source: Tree | Head, data: bytes, activation: Activation | str = "sigmoid") -> None:
        super().__init__(source, activation)
        self.contents = unpack(bytes(data), self.tree.num_classes, self.model.fingerprint())
        self._stream = constriction.stream.queue.RangeDecoder(self.contents.words)
        self._bits_left = 32.0 * len(self.contents.words) + _STATE_BITS
        most = self._bits_left / _COSTS[65535] if self.tree.num_nodes else _MOST_WITHOUT_WORDS
        if self.contents.size > most:
            raise CodingError(
                f"The data claim to hold {self.contents.size} classes, but {len(self.contents.words)} words hold "
                f"{most:.3g} at most: the data are damaged or forged."
            )

    def read(self, values: Any, count: int) -> Ints:
        """Return the next ``count`` classes, (count,).

        Args:
            values: The scores, integers or features that were written: one row per class, or one row for all.
            count: The number of classes in this piece.
        """
        if count > self.contents.size - self.count:
            left = self.contents.size - self.count
            raise CodingError(f"`count` is {count}, but only {left} of {self.contents.size} classes are left.")
        blocks = self._blocks(values, count)
        found = [self._walk(rows, part.stop - part.start, self._branch) for rows, part in blocks]
        classes = np.concatenate(found) if found else np.zeros(0, np.int64)
        self._note(classes)
        return classes

    def _branch(self, active: Ints, node: Ints, yes: Probabilities) -> Bits:
        try:
            bits: Bits = self._stream.decode(_BERNOULLI, yes / 65536.0)
        except AssertionError as error:  # raised by constriction for words that no encoder returns
            raise CodingError("The data cannot have been encoded with these scores or features.") from error
        self._bits_left -= float(_COSTS[np.where(bits == 1, yes, 65536 - yes.astype(np.int64))].sum())
        if self._bits_left < 0:
            raise CodingError("The data end before all the classes: they are damaged, or scores or features differ.")
        return bits

    def finish(self) -> None:
        """Raise an error unless all classes have been read and their checksum is right."""
        if (self.count, self.checksum) != (self.contents.size, self.contents.checksum):
            raise CodingError(
                f"{self.count} of {self.contents.size} classes were decoded, and their checksum is not that of the "
                "encoded classes: some were not read, or scores or features differ from the encoder's. If two machines "
                "compute them, send the integers of `quantized_branches`, or compute them on one machine."
            )


def encode(source: Tree | Head, values: Any, classes: Any, activation: Activation | str = "sigmoid") -> bytes:
    """Compress classes to about their negative log-likelihood in bytes, plus 48 bytes.

    Args:
        source: The tree, or a :class:`catnat.torch.CatnatHead` or :class:`catnat.jax.CatnatHead`.
        values: Scores, or the integers of :func:`quantized_branches`, for a tree; features for a head. One row per
            class, or one row for all.
        classes: Class indices, in any shape.
        activation: "sigmoid", "natural" (the paper's), or an activation object; a head has its own.

    Example:
        >>> import numpy as np
        >>> import catnat
        >>> from catnat import coding
        >>> tree, classes = catnat.balanced(256), np.arange(100)
        >>> data = coding.encode(tree, np.zeros(255), classes)
        >>> len(data)  # 100 classes of 8 bits, a header, and what fills up a word
        152
        >>> bool((coding.decode(tree, np.zeros(255), data) == classes).all())
        True
    """
    encoder = Encoder(source, activation)
    encoder.write(values, classes)
    return encoder.finish()


def decode(source: Tree | Head, values: Any, data: bytes, activation: Activation | str = "sigmoid") -> Ints:
    """Return the classes that :func:`encode` has compressed, (N,); wrong classes raise an error.

    Args:
        source: The tree or the head.
        values: The scores, integers or features that were encoded.
        data: The data of :func:`encode`.
        activation: "sigmoid", "natural" (the paper's), or an activation object; a head has its own.

    Example:
        >>> import numpy as np
        >>> import catnat
        >>> from catnat import coding
        >>> scores = np.array([[3.0, 0.0], [-3.0, 2.0]])  # a row for every class
        >>> data = coding.encode(catnat.balanced(3), scores, [2, 1])
        >>> coding.decode(catnat.balanced(3), scores, data).tolist()
        [2, 1]
    """
    decoder = Decoder(source, data, activation)
    classes = decoder.read(values, decoder.contents.size)
    decoder.finish()
    return classes


def _checked_classes(classes: Any, num_classes: int) -> Ints:
    array, needed = as_array(classes).reshape(-1), f"integers from 0 to {num_classes - 1} are needed."
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"`classes` has dtype {array.dtype}, but {needed}")
    if array.size and (array.min() < 0 or array.max() >= num_classes):
        raise ValueError(f"`classes` goes from {array.min()} to {array.max()}, but {needed}")
    return array.astype(np.int64)


@functools.lru_cache(maxsize=8)
def _leaf_order(tree: Tree) -> tuple[Ints, Ints]:
    """Return the first leaf position below every id, from left to right, and the position of every class."""
    starts = positions_below(tree, sums_below(tree, np.ones(tree.num_classes, np.int64)))
    return starts, starts[tree.num_nodes :]
