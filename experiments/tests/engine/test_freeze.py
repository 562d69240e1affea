"""Records in archives: where each of them goes, that none is lost, and that the same records give the same bytes."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import toy
from toy import Toy

from catnat_experiments.engine import freeze as freezing
from catnat_experiments.engine import records, stages
from catnat_experiments.engine.freeze import DamagedError, freeze
from catnat_experiments.engine.lock import BusyError, only_writer
from catnat_experiments.engine.records import Record, run_id
from catnat_experiments.engine.types import Config, Outcome

TOY = Toy("unused", many=4)
UNNEEDED: Config = {"experiment": "toy", "method": "gamma", "rate": 0.3, "seed": 0, "steps": 4}


def record_of(run: Config, stage: str = "coarse", loss: float = 0.1 + 0.2) -> Record:
    outcome = Outcome({"loss": loss, "nothing": float("nan")}, {"x": [0.1, 1.0, 1e-12]})
    return Record.of(outcome, run, experiment="toy", stage=stage, seconds=1.0, versions={"toy": "1"}, commit=None)


def fill(directory: Path, presets: Sequence[str] = ("quick", "many")) -> list[Record]:
    """All records of some presets, and one that none needs, without computing anything."""
    records.write(record_of(UNNEEDED), directory)
    for preset in presets:
        for place in range(len(TOY.stages(preset))):
            status = stages.survey(TOY, preset, records.load_all(directory)[0])[place]
            for run in status.runs or []:
                if not (directory / f"{run_id(run)}.json").exists():
                    records.write(record_of(run, status.stage.name, float(run["rate"])), directory)
    return records.load_all(directory)[0]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.json*")}


def test_every_record_is_in_the_archive_of_the_first_preset_that_needs_it(tmp_path: Path) -> None:
    found = fill(tmp_path)
    texts = {record.id: (tmp_path / f"{record.id}.json").read_text() for record in found}
    freeze(TOY, toy.PRESETS, tmp_path)
    quick, many, other = (
        [json.loads(line)["id"] for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("quick", "many", "other")
    )
    needed = {
        preset: {record.id for status in stages.survey(TOY, preset, found) for record in status.done}
        for preset in ("quick", "many")
    }
    assert needed["quick"] & needed["many"]  # the first of "many" is in the grid of "quick" too
    assert quick == sorted(needed["quick"])
    assert many == sorted(needed["many"] - needed["quick"])
    assert other == [run_id(UNNEEDED)]
    assert not list(tmp_path.glob("*.json"))
    assert sorted(contents(tmp_path)) == ["many.jsonl", "other.jsonl", "quick.jsonl"]
    lines = [line for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert all(json.loads(line) == json.loads(texts[json.loads(line)["id"]]) for line in lines)  # the checksum too


def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    fill(first)
    shutil.copytree(first, second)
    freeze(TOY, toy.PRESETS, first)
    wanted = contents(first)
    freeze(TOY, toy.PRESETS, first)
    assert contents(first) == wanted
    # In two parts, the later preset first: records that it shares with the earlier one are there before.
    later = [path for path in second.glob("*.json") if json.loads(path.read_text())["stage"] != "many"]
    for path in later:
        path.rename(path.with_suffix(".later"))
    freeze(TOY, toy.PRESETS, second)
    assert sorted(contents(second)) == ["many.jsonl"]
    for path in later:
        path.with_suffix(".later").rename(path)
    freeze(TOY, toy.PRESETS, second)
    assert contents(second) == wanted


def test_a_record_in_both_forms_counts_once_and_its_file_wins(tmp_path: Path) -> None:
    found = fill(tmp_path)
    freeze(TOY, toy.PRESETS, tmp_path)
    newer = dataclasses.replace(found[0], seconds=2.0)
    records.write(newer, tmp_path)
    read, _ = records.load_all(tmp_path)
    assert len(read) == len(found)
    assert read[0].seconds == 2.0
    freeze(TOY, toy.PRESETS, tmp_path)
    assert records.load_all(tmp_path)[0][0].seconds == 2.0
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize(
    ("damage", "reason", "config_is_known"),
    [
        (lambda line: line[: len(line) // 2], "not whole JSON", True),
        (lambda line: line[:30], "not whole JSON", False),
        (lambda line: line.replace("0.1, 1.0", "0.1, 2.0"), "checksum", True),
    ],
)
def test_a_damaged_line_is_named_and_its_run_is_missing(
    damage: object, reason: str, config_is_known: bool, tmp_path: Path
) -> None:
    found = fill(tmp_path)
    freeze(TOY, toy.PRESETS, tmp_path)
    archive = tmp_path / "quick.jsonl"
    lines = archive.read_text().splitlines(keepends=True)
    broken = Record.from_json(lines[2])
    lines[2] = damage(lines[2].rstrip("\n")) + "\n"  # type: ignore[operator]
    archive.write_text("".join(lines))
    read, [corrupt] = records.load_all(tmp_path)
    assert [record.id for record in read] == [record.id for record in found if record.id != broken.id]
    assert (corrupt.path, corrupt.line, corrupt.name) == (archive, 3, "quick.jsonl, line 3")
    assert reason in corrupt.reason
    assert corrupt.config == (broken.config if config_is_known else None)
    assert sum(status.missing for status in stages.survey(TOY, "quick", read)) >= 1

    before = contents(tmp_path)
    with pytest.raises(DamagedError, match=r"1 record\(s\) are damaged:\n  quick\.jsonl, line 3: "):
        freeze(TOY, toy.PRESETS, tmp_path)
    assert contents(tmp_path) == before


def test_a_damaged_line_is_healed_by_the_new_record(tmp_path: Path) -> None:
    found = fill(tmp_path)
    freeze(TOY, toy.PRESETS, tmp_path)
    wanted, archive = contents(tmp_path), tmp_path / "quick.jsonl"
    archive.write_text(archive.read_text().replace("0.1, 1.0", "0.1, 2.0", 1))
    records.write(Record.from_json(wanted["quick.jsonl"].decode().splitlines()[0]), tmp_path)  # computed again
    read, corrupt = records.load_all(tmp_path)
    assert (repr(read), corrupt) == (repr(found), [])
    freeze(TOY, toy.PRESETS, tmp_path)
    assert contents(tmp_path) == wanted


@pytest.mark.parametrize("writes", range(4))
def test_no_record_is_lost_when_freezing_is_cut_off(
    writes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records move from one archive to another here: the order of the presets was another one."""
    found = fill(tmp_path)
    freeze(TOY, ["many", "quick"], tmp_path)
    done = iter(range(writes))

    def cut_off(path: Path, content: bytes) -> None:
        if next(done, None) is None:
            raise KeyboardInterrupt
        path.write_bytes(content)

    with monkeypatch.context() as patch:
        patch.setattr(freezing, "write_atomically", cut_off)
        with pytest.raises(KeyboardInterrupt):
            freeze(TOY, toy.PRESETS, tmp_path)
    assert repr(records.load_all(tmp_path)[0]) == repr(found)
    freeze(TOY, toy.PRESETS, tmp_path)
    assert sorted(contents(tmp_path)) == ["many.jsonl", "other.jsonl", "quick.jsonl"]
    assert repr(records.load_all(tmp_path)[0]) == repr(found)


def test_freezing_waits_for_nobody(tmp_path: Path) -> None:
    fill(tmp_path)
    with only_writer(tmp_path), pytest.raises(BusyError):
        freeze(TOY, toy.PRESETS, tmp_path)
