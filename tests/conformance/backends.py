"""The backends under test, by name. Each is a module `backend_<name>` with a class `Backend` like the one of torch."""

import importlib
from typing import Any

NAMES = ("torch", "torch_compiled", "jax")


def load(name: str) -> Any:
    return importlib.import_module(f"conformance.backend_{name}").Backend()
