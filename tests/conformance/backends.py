"""The backends under test, by name. Each is a module `backend_<name>` with a class `Backend`, made of backend.py's."""

import importlib
from typing import Any


def load(name: str) -> Any:
    return importlib.import_module(f"conformance.backend_{name}").Backend()
