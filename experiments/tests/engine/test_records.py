from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pandas as pd
import pytest

from catnat_experiments.engine import files, provenance, records
from catnat_experiments.engine.records import Record
from catnat_experiments.engine.types import Config, Outcome


def record(seed: int = 0, **metrics: float) -> Record:
    config: Config = {"experiment": "toy", "rate": 0.1, "seed": seed}
    outcome = Outcome(metrics or {"loss": 0.1 + seed}, {"loss": [1.0, 0.5]})
    return Record.of(
        outcome, config, experiment="toy", stage="final", seconds=1.5, versions={"torch": "2"}, commit=None
    )


def test_id_is_a_hash_of_the_config_whatever_the_order() -> None:
    # By hand: printf '{"rate":0.1,"seed":1}' | sha256sum
    assert records.run_id({"seed": 1, "rate": 0.1}) == records.run_id({"rate": 0.1, "seed": 1}) == "c18e0863d554493a"
    assert records.run_id({"seed": 2, "rate": 0.1}) != records.run_id({"seed": 1, "rate": 0.1})


def test_id_of_a_group_does_not_depend_on_order_but_on_composition() -> None:
    runs: list[Config] = [{"seed": seed} for seed in range(3)]
    assert records.group_id(runs) == records.group_id(runs[::-1]) != records.group_id(runs[:2])


def test_config_that_is_not_json_is_refused_with_a_hint() -> None:
    with pytest.raises(TypeError, match=r"int\(\.\.\.\)"):
        records.run_id({"seed": pd.Series([1])[0]})
    with pytest.raises(TypeError, match="finite floats"):
        records.run_id({"rate": math.nan})


def test_record_survives_the_disk_bit_for_bit(tmp_path: Path) -> None:
    written = record(loss=1 / 3, error=5e-324)
    records.write(written, tmp_path)
    assert records.load_all(tmp_path) == ([written], [])
    assert [path.name for path in tmp_path.iterdir()] == [f"{written.id}.json"]  # no temporary file stays


def test_record_needs_none_of_our_code_to_be_read(tmp_path: Path) -> None:
    records.write(record(seed=1), tmp_path)
    frame = pd.json_normalize([json.loads(path.read_text()) for path in tmp_path.glob("*.json")])
    assert frame.loc[0, ["config.seed", "metrics.loss", "experiment"]].tolist() == [1, 1.1, "toy"]


def test_metric_that_is_not_finite_is_strict_json_and_comes_back_as_nan(tmp_path: Path) -> None:
    path = records.write(record(loss=math.inf, error=math.nan), tmp_path)
    assert json.loads(path.read_text())["metrics"] == {"loss": None, "error": None}
    [read], _ = records.load_all(tmp_path)
    assert all(math.isnan(value) for value in read.metrics.values())


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda text: text[: len(text) // 2], "not whole JSON"),
        (lambda text: "", "not whole JSON"),
        (lambda text: "[]", "not a JSON object"),
        (lambda text: text.replace("0.1", "0.2", 1), "checksum"),
        (lambda text: text.replace('"stage"', '"stagf"'), "keys differ from a record's: stage, stagf"),
        (lambda text: record(seed=5).to_json(), "holds the record of run"),
    ],
)
def test_damaged_record_is_told_from_a_good_one(damage: object, reason: str, tmp_path: Path) -> None:
    good, path = record(seed=1), records.write(record(seed=0), tmp_path)
    records.write(good, tmp_path)
    path.write_text(damage(path.read_text()))  # type: ignore[operator]
    read, [corrupt] = records.load_all(tmp_path)
    assert read == [good]
    assert corrupt.path == path
    assert reason in corrupt.reason


def test_damaged_bytes_are_told_too(tmp_path: Path) -> None:
    path = records.write(record(), tmp_path)
    path.write_bytes(b"\xff\xfe\x00" * 50)
    assert [corrupt.path for corrupt in records.load_all(tmp_path)[1]] == [path]


def test_config_of_a_damaged_record_is_kept_if_it_is_certain(tmp_path: Path) -> None:
    path = records.write(record(), tmp_path)
    text = path.read_text()

    def config_after(damage: str) -> Config | None:
        path.write_text(damage)
        [corrupt] = records.load_all(tmp_path)[1]
        return corrupt.config

    assert config_after(text[: text.index('"history"')]) == record().config
    assert config_after(text[: text.index('"seed"')]) is None  # cut off
    assert config_after(text.replace('"seed": 0', '"seed": 1')) is None  # changed
    assert config_after('{\n "config": [],\n') is None


def test_id_must_belong_to_the_config(tmp_path: Path) -> None:
    wrong = dataclasses.replace(record(), id="0" * 16)
    records.write(wrong, tmp_path)
    assert "not the hash of its config" in records.load_all(tmp_path)[1][0].reason


def test_full_disk_gives_a_clear_message_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """A file-size limit is the full disk that a test can make; the limit must not reach the tests themselves."""
    program = """
        import resource, sys
        from pathlib import Path
        from catnat_experiments.engine import files, records
        from catnat_experiments.engine.types import Outcome
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        for seed, points in enumerate([10, 10_000]):
            record = records.Record.of(
                Outcome({"loss": 0.0}, {"long": [0.1] * points}), {"seed": seed},
                experiment="toy", stage="final", seconds=1.0, versions={}, commit=None)
            try:
                records.write(record, Path(sys.argv[1]))
            except files.DiskFullError as error:
                print(error.strerror)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert told.startswith("No room to write ")
    assert "Free some space in" in told
    assert "is not computed again" in told
    good, corrupt = records.load_all(tmp_path)
    assert [each.config for each in good] == [{"seed": 0}]  # the small one had room
    assert corrupt == []
    assert len(list(tmp_path.iterdir())) == 1


def test_other_errors_of_the_disk_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(NotADirectoryError):
        files.write_atomically(tmp_path / "file" / "below", b"")


def test_half_written_file_is_never_visible_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(source: object, target: object) -> None:
        raise KeyboardInterrupt

    records.write(record(), tmp_path)
    monkeypatch.setattr(os, "replace", die)  # the last moment before the new content would appear
    with pytest.raises(KeyboardInterrupt):
        records.write(dataclasses.replace(record(), stage="another"), tmp_path)
    [read], corrupt = records.load_all(tmp_path)
    assert (read.stage, corrupt) == ("final", [])


def test_frame_has_flat_columns_and_keeps_the_config_whole() -> None:
    other = Record.of(
        Outcome({"loss": 0.5}, {}), {"other": 1}, experiment="toy", stage="x", seconds=1, versions={}, commit=None
    )
    frame = records.frame([record(seed=3), other])
    assert frame["metrics.loss"].tolist() == [3.1, 0.5]
    assert frame["config.rate"].tolist()[0] == 0.1
    assert frame["history.loss"].tolist()[0] == [1.0, 0.5]
    assert frame["config"].tolist() == [record(seed=3).config, {"other": 1}]  # 1 is still an integer
    assert list(records.frame([])["config"]) == []


def test_versions_name_what_decides_the_numbers() -> None:
    assert {"python", "torch", "catnat", "numpy", "ray"} <= set(provenance.versions())
    commit = provenance.commit()
    assert commit is None or len(commit.rstrip("+")) == 40
