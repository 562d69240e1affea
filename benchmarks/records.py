"""What the records of all benchmarks need: the machine, the commit, and a file that is written whole or not at all."""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path
from typing import Any


def machine() -> dict[str, str | int]:
    """The processor, and how many cores it has."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {"processor": names[0] if names else platform.processor(), "cores": len(names)}


def commit() -> str:
    """The commit that is checked out, with "-dirty" behind it if files were changed since."""
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout.strip()


def write(record: dict[str, Any], path: Path) -> None:
    """All or nothing: a stopped command leaves no half record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1) + "\n")
    part.replace(path)
