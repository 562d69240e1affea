"""Lossless compression of classes: an arithmetic coder encodes the branches on the path of each.

The number of coding steps for a class is the length of its path. Encoder and decoder need the same branch
probabilities, rounded to 16 bits. Scores may come from NumPy, PyTorch or JAX; no framework is imported here.
"""

try:
    import constriction as _constriction  # noqa: F401
except ImportError as error:
    raise ImportError('catnat.coding needs constriction: pip install "catnat[coding]".') from error

from catnat.coding._coder import Decoder as Decoder
from catnat.coding._coder import Encoder as Encoder
from catnat.coding._coder import decode as decode
from catnat.coding._coder import encode as encode
from catnat.coding._file import CodingError as CodingError
from catnat.coding._model import quantize as quantize
from catnat.coding._model import quantized_branches as quantized_branches

__all__ = ["CodingError", "Decoder", "Encoder", "decode", "encode", "quantize", "quantized_branches"]
