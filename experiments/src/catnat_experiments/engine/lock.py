"""One writer at a time in a results directory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import filelock

from catnat_experiments.engine.files import write_atomically


class BusyError(RuntimeError):
    """Another command works in this results directory."""


@contextlib.contextmanager
def only_writer(directory: Path) -> Iterator[None]:
    """While a command writes to a directory, which is made if it is not there.

    Raises:
        BusyError: Another command does.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / ".gitignore").exists():  # records are worth a commit; checkpoints, and this file, are not
        write_atomically(directory / ".gitignore", b".*\n")
    try:
        with filelock.FileLock(directory / ".lock", timeout=0):
            yield
    except filelock.Timeout:
        raise BusyError(
            f"Another command is running in {directory}. Wait for it, or give this one another --results directory."
        ) from None
