"""What all benchmarks need: the machine, the commit, memory, and a file that is written whole or not at all."""

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


def megabytes(name: str) -> float:
    """What Linux says of this process: VmRSS, what it holds now, or VmHWM, the most since :func:`reset_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def write(record: dict[str, Any], path: Path) -> None:
    """All or nothing: a stopped command leaves no half record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1) + "\n")
    part.replace(path)
