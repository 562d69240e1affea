"""Archives: the records of a preset in one file, a line each, for a repository that should not have thousands of files.

A record is in the archive of the first preset, in the order of the experiment's presets, that needs it; records that no
preset needs any more are in ``other.jsonl``. Lines are sorted by id, so the same records give the same bytes. New runs
write files of their own beside the archives, and freezing again folds them in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from catnat_experiments.engine.experiment import Experiment
from catnat_experiments.engine.files import write_atomically
from catnat_experiments.engine.lock import only_writer
from catnat_experiments.engine.records import ARCHIVES, Corrupt, Record, load_all
from catnat_experiments.engine.stages import survey

OTHER = "other"
_SAFE = "freezing"


class DamagedError(RuntimeError):
    """Records are damaged, so that freezing would lose them."""


def freeze(experiment: Experiment, presets: Sequence[str], directory: Path) -> dict[Path, list[Record]]:
    """Move records into archives; returns what is in each of them.

    Args:
        experiment: Whose records they are.
        presets: Of the experiment, in order.
        directory: Of the records.

    Raises:
        DamagedError: A record is damaged.
        BusyError: Another command writes to the same directory.
    """
    with only_writer(directory):
        found, corrupt = load_all(directory)
        if corrupt:
            raise DamagedError(_told(corrupt))
        needed = {preset: _needed(experiment, preset, found) for preset in presets}
        archives: dict[Path, list[Record]] = {}
        for record in found:
            home = next((preset for preset in presets if record.id in needed[preset]), OTHER)
            archives.setdefault(directory / f"{home}.jsonl", []).append(record)
        _replace_archives(archives, directory)
        return archives


def _needed(experiment: Experiment, preset: str, found: Sequence[Record]) -> set[str]:
    return {record.id for status in survey(experiment, preset, found) for record in status.done}


def _told(corrupt: Sequence[Corrupt]) -> str:
    places = "".join(f"\n  {damaged.name}: {damaged.reason}" for damaged in corrupt[:5])
    return (
        f"Nothing is frozen, because {len(corrupt)} record(s) are damaged:{places}\n`run` computes them again. What no "
        "preset needs any more can only be removed by hand."
    )


def _replace_archives(archives: Mapping[Path, Sequence[Record]], directory: Path) -> None:
    """Write all archives anew, and remove what is in them now from everywhere else."""
    safe = directory / f"{_SAFE}.jsonl"  # has all of them meanwhile: a record may move from one archive to another
    _write(safe, [record for records in archives.values() for record in records])
    for path, records in archives.items():
        _write(path, records)
    for path in directory.glob(ARCHIVES):
        if path not in archives:
            path.unlink()
    for records in archives.values():
        for record in records:
            (directory / f"{record.id}.json").unlink(missing_ok=True)


def _write(path: Path, records: Sequence[Record]) -> None:
    lines = [record.to_line() for record in sorted(records, key=lambda record: record.id)]
    write_atomically(path, "".join(lines).encode())
