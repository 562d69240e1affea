"""A progress bar for computations that take minutes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

Done = Callable[[float], object]
"""A callback that takes the amount of work just completed."""


def not_shown(amount: float) -> None:
    """Ignore the progress."""


@contextlib.contextmanager
def progress_bar(show: bool, total: float, what: str) -> Iterator[Done]:
    """Yield a callback that advances a ``tqdm`` progress bar, or one that does nothing if ``show`` is False."""
    if not show:
        yield not_shown
        return
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError("`progress=True` needs tqdm: pip install tqdm.") from error
    with tqdm(total=total, desc=what, unit_scale=True) as bar:
        yield bar.update
