"""Archives: the records of a preset in one file, one per line, so that a repository has few files.

A record is in the archive of the first preset that needs it, in the order of the experiment's presets. Records that no
preset needs are in ``other.jsonl``. Lines are sorted by id, so the same records give the same bytes. New runs write
separate files beside the archives, and freezing again adds them.
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
    """Records are damaged, and freezing would lose them."""


def freeze(experiment: Experiment, presets: Sequence[str], directory: Path) -> dict[Path, list[Record]]:
    """Move records into archives, and return the records in each.

    Args:
        experiment: The experiment of the records.
        presets: The presets of the experiment, in order.
        directory: The directory of the records.

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
        f"Nothing is frozen, because {len(corrupt)} record(s) are damaged:{places}\n`run` computes them again. Remove "
        "by hand those that no preset needs."
    )


def _replace_archives(archives: Mapping[Path, Sequence[Record]], directory: Path) -> None:
    """Write all archives, and remove their records from all other files."""
    safe = directory / f"{_SAFE}.jsonl"  # contains all records meanwhile: a record may move between archives
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
