"""Records: small JSON texts, one per finished run.

The id of a run is a hash of its config, so the same config is the same run on every machine. A file ``<id>.json`` means
that the run is finished. Files are written completely or not at all, and a checksum detects damage. ``freeze.py``
collects them in archives, one record per line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from catnat_experiments.engine.files import write_atomically
from catnat_experiments.engine.types import Config, Outcome

# ---- names of runs ---------------------------------------------------------------------------------------------------


def canonical(value: object) -> str:
    """Return the unique JSON text of a value, for ids and checksums: sorted keys, no spaces, no NaN.

    >>> canonical({"seed": 1, "rate": 0.1})
    '{"rate":0.1,"seed":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _digest(value: object) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def run_id(config: Config) -> str:
    """Return the first 16 hex digits of the SHA-256 of the config's canonical JSON.

    >>> run_id({"seed": 1, "rate": 0.1}) == run_id({"rate": 0.1, "seed": 1})
    True
    """
    try:
        return _digest(config)[:16]
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"A config must be plain JSON (text, integers, finite floats), but {config!r} is not: {error}. Values "
            "taken from NumPy or pandas need int(...) or float(...)."
        ) from error


def group_id(runs: Sequence[Config]) -> str:
    """Return the id of runs that are computed together: the same hash, of the sorted list of their ids.

    >>> first, second = {"seed": 1}, {"seed": 2}
    >>> group_id([first, second]) == group_id([second, first])
    True
    """
    return _digest(sorted(run_id(run) for run in runs))[:16]


# ---- one record ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Record:
    """The record of one finished run. Numbers that are not finite are written as null and read as NaN."""

    id: str
    experiment: str
    stage: str
    config: Config
    metrics: dict[str, float]
    history: dict[str, list[float]]
    versions: dict[str, str]
    commit: str | None
    seconds: float
    finished: str

    @classmethod
    def of(
        cls,
        outcome: Outcome,
        config: Config,
        *,
        experiment: str,
        stage: str,
        seconds: float,
        versions: Mapping[str, str],
        commit: str | None,
    ) -> Record:
        """Return the record of a run that ends now."""
        return cls(
            id=run_id(config),
            experiment=experiment,
            stage=stage,
            config=dict(config),
            metrics={name: float(value) for name, value in outcome.metrics.items()},
            history={name: [float(value) for value in values] for name, values in outcome.history.items()},
            versions=dict(versions),
            commit=commit,
            seconds=round(seconds, 3),
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def to_json(self) -> str:
        """Return the text of its file, one line per field, with the checksum of all others."""
        lines = (f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in self._content().items())
        return "{\n " + ",\n ".join(lines) + "\n}\n"

    def to_line(self) -> str:
        """Return the same content in one line, for an archive."""
        return json.dumps(self._content(), allow_nan=False) + "\n"

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = _finite(dataclasses.asdict(self))
        return {**content, "checksum": _digest(content)}

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Read a record; the text of a ValueError is how it is damaged."""
        try:
            content = json.loads(text)
        except ValueError as error:
            raise ValueError(f"not whole JSON ({error})") from None
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
        checksum = content.pop("checksum", None)
        names = {field.name for field in dataclasses.fields(cls)}
        if set(content) != names:
            raise ValueError(f"its keys differ from a record's: {', '.join(sorted(set(content) ^ names))}")
        if checksum != _digest(content):
            raise ValueError("its checksum does not match its content")
        if content["id"] != run_id(content["config"]):
            raise ValueError("its id is not the hash of its config")
        content["metrics"] = {name: _number(value) for name, value in content["metrics"].items()}
        content["history"] = {name: [_number(value) for value in values] for name, values in content["history"].items()}
        return cls(**content)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: float | None) -> float:
    return math.nan if value is None else value


# ---- files and archives ----------------------------------------------------------------------------------------------

ARCHIVES = "*.jsonl"
_ID = re.compile(r'\{"id": "([0-9a-f]{16})"')


def write(record: Record, directory: Path) -> Path:
    """Write ``<directory>/<id>.json``, completely or not at all."""
    path = directory / f"{record.id}.json"
    write_atomically(path, record.to_json().encode())
    return path


@dataclasses.dataclass(frozen=True)
class Corrupt:
    """A damaged record: a file, or a line of an archive. Its run counts as not done.

    Attributes:
        path: The file or archive.
        reason: The damage.
        run: The id of its run; empty if unknown.
        config: The config of its run, if it can be read; a search needs it to repeat the run.
        line: The number of the line in the archive, from 1.
    """

    path: Path
    reason: str
    run: str = ""
    config: Config | None = None
    line: int | None = None

    @property
    def name(self) -> str:
        """The name of the file, with the line in an archive."""
        return self.path.name if self.line is None else f"{self.path.name}, line {self.line}"


def load_all(directory: Path) -> tuple[list[Record], list[Corrupt]]:
    """Return all records of a directory, sorted by id, and the damaged ones.

    Records are in separate files and in archives. If a run is in both, its file is used, because it is newer. A damaged
    record is left out if the run has a good one elsewhere.
    """
    archived = (entry for path in sorted(directory.glob(ARCHIVES)) for entry in _read_archive(path))
    read = [*archived, *(_read_file(path) for path in sorted(directory.glob("*.json")))]
    good = {entry.id: entry for entry in read if isinstance(entry, Record)}
    corrupt = [entry for entry in read if isinstance(entry, Corrupt) and entry.run not in good]
    return [good[name] for name in sorted(good)], corrupt


def _read_file(path: Path) -> Record | Corrupt:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return Corrupt(path, str(error), path.stem)
    return _parsed(text, Corrupt(path, "", path.stem))


def _read_archive(path: Path) -> Iterator[Record | Corrupt]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        yield Corrupt(path, str(error))
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line:
            run = _ID.match(line)
            yield _parsed(line, Corrupt(path, "", run[1] if run else "", line=number))


def _parsed(text: str, place: Corrupt) -> Record | Corrupt:
    """Return the record at a place, or the place with the reason why it is damaged."""
    try:
        record = Record.from_json(text)
    except (ValueError, TypeError, AttributeError) as error:
        return dataclasses.replace(place, reason=str(error), config=_config_left(text, place.run))
    if record.id != place.run:
        return dataclasses.replace(place, reason=f"it holds the record of run {record.id}")
    return record


def _config_left(text: str, run: str) -> Config | None:
    """Return the config in a damaged record if its hash is the id of the run, or None."""
    with contextlib.suppress(ValueError, TypeError):
        name = '"config": '
        config, _ = json.JSONDecoder().raw_decode(text, text.index(name) + len(name))
        return config if run_id(config) == run else None
    return None


# ---- tables ----------------------------------------------------------------------------------------------------------


def frame(records: Path | Iterable[Record]) -> pd.DataFrame:
    """Return records as a table, one row per run.

    The columns are ``id``, ``experiment``, ``stage``, ``seconds``, ``finished``, ``commit``, one ``config.<key>``,
    ``metrics.<name>`` and ``history.<name>`` (a list) each, and ``config``, the config itself. Build the configs of a
    later stage from ``config``, because pandas converts integers to floats in a column with gaps.
    """
    found = load_all(records)[0] if isinstance(records, Path) else records
    rows = [_row(record) for record in found]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=list(_PLAIN))


_PLAIN = ("id", "experiment", "stage", "seconds", "finished", "commit", "config")


def _row(record: Record) -> dict[str, object]:
    nested: dict[str, Mapping[str, object]] = {
        "config": record.config,
        "metrics": record.metrics,
        "history": record.history,
    }
    return {name: getattr(record, name) for name in _PLAIN} | {
        f"{part}.{key}": value for part, values in nested.items() for key, value in values.items()
    }
