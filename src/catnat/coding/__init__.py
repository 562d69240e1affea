"""Lossless compression: classes as the decisions on their paths, which an arithmetic coder codes one by one.

A class among K costs as many decisions as its path is long, and their probabilities, rounded to 16 bits, are all that
encoder and decoder must agree on. Scores may come from NumPy, PyTorch or JAX; no framework is imported here.
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
