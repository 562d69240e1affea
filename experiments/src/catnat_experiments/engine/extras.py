"""Packages that only an extra of this package installs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class MissingExtraError(ImportError):
    """The packages of an experiment, which an extra of this package installs, are missing."""


@contextlib.contextmanager
def extra(name: str) -> Iterator[None]:
    """Surround imports that need the extra ``name``: if one fails, the error contains the command to install it."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("catnat", "catnat_experiments"):
            raise  # an error in our code, which no installation fixes
        reason = error.__cause__ if isinstance(error, MissingExtraError) else error  # an extra can contain another
        raise MissingExtraError(
            f"This experiment needs the extra '{name}' ({reason}): pip install \"catnat-experiments[{name}]\"",
            name=error.name,
        ) from error
