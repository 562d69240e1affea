"""The look-up of the optional package catnat-kernels, compiled operations for the CPU."""

from __future__ import annotations

import functools
import importlib
import os


@functools.cache
def found(framework: str) -> tuple[bool, str]:
    """Return whether a framework's kernels are available, and their version or the reason why not; checked once.

    Args:
        framework: "torch" or "jax". Importing its module of the package registers the operators.
    """
    if os.environ.get("CATNAT_KERNELS", "1") == "0":
        return False, "switched off by CATNAT_KERNELS=0"
    try:
        package, operators = map(importlib.import_module, ("catnat_kernels", f"catnat_kernels.{framework}_ops"))
    except ModuleNotFoundError:
        return False, "catnat-kernels is not installed"
    except ImportError as error:
        return False, str(error)
    return True, f"catnat-kernels {package.__version__} ({operators.instruction_set})"


def in_use(framework: str) -> dict[str, str]:
    """Return the kernels in use for each device type: their name and version, or the reason why there are none."""
    available, words = found(framework)
    return {"cpu": words if available else f"none: {words}"}
