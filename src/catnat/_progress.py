"""A progress bar for what takes minutes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

Done = Callable[[float], object]
"""What to call with the amount of work just done."""


def not_shown(amount: float) -> None:
    """Where nobody wants to see the progress."""


@contextlib.contextmanager
def progress_bar(show: bool, total: float, what: str) -> Iterator[Done]:
    """A bar that moves when it is told what was done, if ``show``, which needs ``tqdm``."""
    if not show:
        yield not_shown
        return
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError("`progress=True` needs tqdm: pip install tqdm.") from error
    with tqdm(total=total, desc=what, unit_scale=True) as bar:
        yield bar.update
