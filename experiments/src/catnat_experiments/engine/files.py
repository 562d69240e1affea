"""Files that are written completely or not at all."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class DiskFullError(OSError):
    """A file could not be written because the disk, the quota or the file-size limit is used up."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file completely or not at all, even if the process or the machine fails meanwhile."""
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_directory(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno not in _DISK_FULL:
            raise
        raise DiskFullError(
            error.errno,
            f"No room to write {path.name} ({len(content):,} bytes; {os.strerror(error.errno)}): the disk, your quota "
            f"or the file-size limit is used up. Free some space in {path.parent} and repeat the command: everything "
            "that was finished is kept and is not computed again.",
        ) from None


def _sync_directory(directory: Path) -> None:
    """Make a rename durable if the system can (Windows cannot open a directory)."""
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
