"""What the records of all benchmarks need: the machine, the commit, both builds, and files that are written whole."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


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


def without_and_with_kernels(file: str, *arguments: str) -> dict[str, Any]:
    """What a benchmark's file prints as JSON, run without the fused kernels and with them, each in its own process."""
    run = [sys.executable, file, *arguments]
    outputs = {
        name: subprocess.run(run, env=os.environ | {"CATNAT_KERNELS": switch}, check=True, stdout=subprocess.PIPE)
        for name, switch in (("without kernels", "0"), ("with kernels", "1"))
    }
    return {name: json.loads(output.stdout) for name, output in outputs.items()}


def table(found: dict[str, Any]) -> list[str]:
    """Lines of a table of what :func:`without_and_with_kernels` gives: times and ratios of every case's methods."""
    off, on = found["without kernels"], found["with kernels"]
    lines = ["| case | method | ms | ratio | ratio, with kernels |", "|---|---|---|---|---|"]
    return lines + [
        f"| {case} | {method} | {row['milliseconds']:.3g} | {row['ratio']:.2f} | {on[case][method]['ratio']:.2f} |"
        for case, methods in off.items()
        for method, row in methods.items()
    ]


def write_table(lines: list[str], path: Path) -> None:
    """A table for a page, with the machine and the commit in a comment before it."""
    where = ", ".join(str(value) for value in (*machine().values(), commit()))
    path.write_text("\n".join([f"<!-- {where} -->", "", *lines, ""]))


def write(record: dict[str, Any], path: Path) -> None:
    """All or nothing: a stopped command leaves no half record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1) + "\n")
    part.replace(path)
