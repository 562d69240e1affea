"""One writer at a time in a results directory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import filelock

from catnat_experiments.engine.files import write_atomically


class BusyError(RuntimeError):
    """Another command is writing to this results directory."""


@contextlib.contextmanager
def only_writer(directory: Path) -> Iterator[None]:
    """Lock a directory for one command, and create it if it does not exist.

    Raises:
        BusyError: Another command has the lock.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / ".gitignore").exists():  # git tracks records, but not checkpoints and this file
        write_atomically(directory / ".gitignore", b".*\n")
    try:
        with filelock.FileLock(directory / ".lock", timeout=0):
            yield
    except filelock.Timeout:
        raise BusyError(
            f"Another command is running in {directory}. Wait for it, or give this one another --results directory."
        ) from None
