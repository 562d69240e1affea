"""Packages that only an extra of this one installs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class MissingExtraError(ImportError):
    """An experiment's own packages, which are an extra of this one, are not installed."""


@contextlib.contextmanager
def extra(name: str) -> Iterator[None]:
    """Around the imports of packages that only the extra ``name`` installs: if one fails, say what to install."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("catnat", "catnat_experiments"):
            raise  # a mistake of ours, which no installation would fix
        reason = error.__cause__ if isinstance(error, MissingExtraError) else error  # an extra can contain another
        raise MissingExtraError(
            f"This experiment needs the extra '{name}' ({reason}): pip install \"catnat-experiments[{name}]\"",
            name=error.name,
        ) from error
