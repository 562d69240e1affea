"""Fused CPU kernels for catnat, which finds and uses them by itself: this package has no functions of its own.

Importing ``torch_ops`` registers the operators ``torch.ops.catnat``.
"""

import ctypes
import os
from pathlib import Path

__version__ = "0.1.0"


def path_of(framework: str) -> str:
    """Where the library for a framework is."""
    return str(Path(__file__).with_name(f"libcatnat_{framework}.so"))


def instruction_set(library: ctypes.CDLL) -> str:
    """What a library uses of this processor: "baseline", "avx2" or "avx512", or the one that CATNAT_KERNELS names."""
    library.catnat_instruction_set.restype = ctypes.c_char_p
    used: str = library.catnat_instruction_set().decode()
    wanted = os.environ.get("CATNAT_KERNELS", "1")
    if wanted not in ("0", "1", used):
        raise ValueError(
            f"CATNAT_KERNELS is {wanted!r}, but it must be 0 (no kernels), 1 (the best that this processor has, "
            f"{used}), or an instruction set that it has: baseline, avx2 or avx512."
        )
    return used
