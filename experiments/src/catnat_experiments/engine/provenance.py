"""The provenance of a record: versions of packages, and the commit of this one."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import subprocess
from pathlib import Path


@functools.cache
def versions(*more: str) -> dict[str, str]:
    """Return the versions that affect results: of Python, of main packages, and of those that an experiment adds."""
    packages = ("torch", "numpy", "catnat", "catnat-experiments", "ray", *more)
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in packages}}


@functools.cache
def commit() -> str | None:
    """Return the git commit of this package's source, with ``+`` for changed files; None for an installed wheel."""
    here = Path(__file__).resolve()

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)  # an environment may be inside another repository
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/src", ":/experiments/src")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
