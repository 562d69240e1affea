"""The engine on a toy experiment, with a real Ray. What happens when something dies is in test_faults.py."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import toy
from memory import Memory
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toy import Toy

from catnat_experiments.engine import checkpoints, progress, provenance, records
from catnat_experiments.engine import run as engine
from catnat_experiments.engine import stages as engine_stages
from catnat_experiments.engine.freeze import freeze
from catnat_experiments.engine.lock import BusyError
from catnat_experiments.engine.progress import Display
from catnat_experiments.engine.records import Record
from catnat_experiments.engine.run import Options
from catnat_experiments.engine.search import Search, Studies, top
from catnat_experiments.engine.types import Config, Outcome, Stage

Log = Callable[[str], str]


# ---- where the work stands (no Ray) ----------------------------------------------------------------------------------


def test_later_stage_is_unknown_until_the_one_before_is_complete(log: Log) -> None:
    coarse, final = engine_stages.survey(Toy(log("a")), "quick", [])
    assert (coarse.missing, coarse.complete, len(coarse.runs or [])) == (6, False, 6)
    assert (final.missing, final.complete, final.runs) == (6, False, None)


def finished(experiment: Toy) -> list[Record]:
    """Records of all stages, computed here."""
    found: list[Record] = []
    for place in range(2):
        runs = engine_stages.survey(experiment, "quick", found)[place].runs or []
        about: Any = {"experiment": "toy", "stage": ("coarse", "final")[place], "versions": {}, "commit": None}
        outcomes = [experiment.train([run], Memory())[0] for run in runs]
        found += [Record.of(out, run, seconds=1.0, **about) for run, out in zip(runs, outcomes, strict=True)]
    return found


def test_a_lost_record_of_a_search_does_not_hide_the_final_runs(log: Log) -> None:
    experiment = Toy(log("a"))
    found = finished(experiment)
    for lost, counted in ({"method": "alpha", "rate": 0.4}, 6), ({"method": "alpha", "rate": 0.2}, 3):
        # Without the rate that alpha's final runs have, another one is selected so far; beta's runs stay.
        left = [record for record in found if not (lost.items() <= record.config.items() and record.stage == "coarse")]
        coarse, final = engine_stages.survey(experiment, "quick", left)
        assert (coarse.missing, coarse.settled, coarse.complete) == (1, True, False)
        assert (len(final.done), final.missing, final.settled, final.complete) == (counted, 6 - counted, False, False)
    assert all(status.complete for status in engine_stages.survey(experiment, "quick", found))


def test_what_is_not_selected_yet_counts_as_missing(log: Log) -> None:
    """Without any record of a method its final runs are not known, but they are still to be made."""
    experiment = Toy(log("a"))
    alphas = [record for record in finished(experiment) if record.config["method"] == "alpha"]
    final = engine_stages.survey(experiment, "quick", alphas)[1]
    assert (len(final.runs or []), len(final.done), final.missing) == (3, 3, 3)


def test_run_that_is_listed_twice_is_refused(log: Log) -> None:
    class Twice(Toy):
        def stages(self, preset: str) -> list[Stage | Search]:
            return [Stage("double", lambda frame: [{"seed": 1}, {"seed": 1}], "", 2)]

    with pytest.raises(ValueError, match="lists a run twice"):
        engine_stages.survey(Twice(log("a")), "quick", [])


def test_groups_must_be_a_partition(log: Log) -> None:
    class Lossy(Toy):
        def groups(self, runs: list[Config]) -> list[list[Config]]:
            return [runs[1:]]

    experiment = Lossy(log("a"))
    with pytest.raises(ValueError, match="exactly one group"):
        engine_stages.unfinished_groups(experiment, engine_stages.survey(experiment, "quick", [])[0])


# ---- the checkpointer (no Ray) ---------------------------------------------------------------------------------------


def test_checkpointer_gives_back_what_it_was_given(tmp_path: Path) -> None:
    runs: list[Config] = [{"seed": 1}, {"seed": 2}]
    reports: list[dict[str, Any]] = []
    first = checkpoints.FileCheckpointer(tmp_path, runs, reports.append)
    assert first.load() is None
    first.scalars(1, 5, {"loss": 0.5})
    first.save({"step": 5}, 5, 10)
    second = checkpoints.FileCheckpointer(tmp_path, runs, reports.append)
    assert second.load() == {"step": 5}
    second.save({"step": 7}, 7, 10)
    assert reports == [{"step": 5, "of": 10, "before": 0}, {"step": 7, "of": 10, "before": 5}]
    assert checkpoints.interrupted(tmp_path) == [runs]
    first.close()


def test_unreadable_checkpoint_is_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs: list[Config] = [{"seed": 1}]
    files = checkpoints.FileCheckpointer(tmp_path, runs, lambda report: None)
    files.save({"step": 5}, 5, 10)
    [path] = tmp_path.glob(".checkpoints/*/state.pt")
    path.write_bytes(path.read_bytes()[:100])
    assert checkpoints.FileCheckpointer(tmp_path, runs, lambda report: None).load() is None
    assert "starts again" in capsys.readouterr().out


def test_checkpoint_of_other_versions_or_another_order_is_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Config] = [{"seed": 1}, {"seed": 2}]
    checkpoints.FileCheckpointer(tmp_path, runs, lambda report: None).save({"step": 5}, 5, 10)
    assert checkpoints.FileCheckpointer(tmp_path, runs, lambda report: None).load() == {"step": 5}
    assert checkpoints.FileCheckpointer(tmp_path, runs[::-1], lambda report: None).load() is None
    monkeypatch.setattr(checkpoints, "versions", lambda: {"torch": "another"})
    assert checkpoints.FileCheckpointer(tmp_path, runs, lambda report: None).load() is None


def test_what_killed_processes_leave_behind_is_removed(tmp_path: Path) -> None:
    def checkpoint(seed: int) -> Path:
        runs: list[Config] = [{"seed": seed}]
        checkpoints.FileCheckpointer(tmp_path, runs, lambda report: None).save({"step": 5}, 5, 10)
        return tmp_path / ".checkpoints" / records.group_id(runs)

    under_way, done, half_made, half_removed, empty = (checkpoint(seed) for seed in range(5))
    (half_made / "state.pt").rename(half_made / ".state.pt.host-1.tmp")
    (half_removed / "runs.json").unlink()
    for file in empty.iterdir():
        file.unlink()
    (tmp_path / ".abc.json.host-1.tmp").touch()
    about: Any = {"experiment": "toy", "stage": "x", "seconds": 1.0, "versions": {}, "commit": None}
    checkpoints.tidy(tmp_path, [Record.of(Outcome({}, {}), {"seed": 1}, **about)])
    assert list(tmp_path.glob(".checkpoints/*")) == [under_way]
    assert not done.exists()
    assert checkpoints.interrupted(tmp_path) == [[{"seed": 0}]]
    assert not list(tmp_path.glob(".*.tmp"))


# ---- the search (no Ray) ---------------------------------------------------------------------------------------------


def search_of(experiment: Toy) -> Search:
    search = experiment.stages("search")[0]
    assert isinstance(search, Search)
    return search


def test_search_divides_its_budget_and_finds_the_valley(log: Log) -> None:
    search = dataclasses.replace(search_of(Toy(log("a"))), budget=25)
    studies = Studies(search, [], [])
    tried: dict[str, list[float]] = {}
    while (config := studies.ask()) is not None:
        studies.tell(config, {"loss": (float(config["rate"]) - 0.2) ** 2})
        tried.setdefault(str(config["method"]), []).append(float(config["rate"]))
    assert {method: len(rates) for method, rates in tried.items()} == {"alpha": 25, "beta": 25}
    assert all(min(abs(rate - 0.2) for rate in rates) < 0.02 for rates in tried.values())


@pytest.mark.parametrize("direction", ["lower", "higher"])
def test_search_keeps_away_from_where_runs_diverge(direction: Literal["lower", "higher"], log: Log) -> None:
    search = dataclasses.replace(search_of(Toy(log("a"))), budget=40, direction=direction)
    studies = Studies(search, [], [])
    rates: list[float] = []
    while (config := studies.ask()) is not None:
        rates.append(float(config["rate"]))
        studies.tell(config, {"loss": math.nan if rates[-1] > 0.1 else 1.0})
    assert sum(rate > 0.1 for rate in rates[:20]) >= 5  # half of the space
    assert sum(rate > 0.1 for rate in rates[-40:]) <= 8


def test_search_waits_when_enough_is_under_way(log: Log) -> None:
    studies = Studies(search_of(Toy(log("a"))), [], [])
    asked = [studies.ask() for _ in range(5)]
    assert [config is None for config in asked] == [False] * 4 + [True]  # two methods, two at once each
    assert asked[0] is not None
    studies.tell(asked[0], None)  # failed
    assert studies.ask() is not None


def test_space_without_enough_points_is_named_as_the_mistake() -> None:
    import optuna

    space = {"rate": optuna.distributions.CategoricalDistribution([0.1, 0.2])}
    studies = Studies(Search("tiny", [{"seed": 0}], space, "loss", "lower", 5, "", at_once=5), [], [])
    for _ in range(2):
        studies.ask()
    with pytest.raises(ValueError, match="Use a grid stage"):
        studies.ask()


# ---- whole runs ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("own_ray")
def test_run_computes_every_stage_once_and_a_second_time_nothing(
    tmp_path: Path, log: Log, display: Display, output: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    experiment, results = Toy(log("a")), tmp_path / "results"
    engine.run(experiment, "quick", results, Options(), display)
    found, corrupt = records.load_all(results)
    assert ({record.stage for record in found}, len(found), corrupt) == ({"coarse", "final"}, 12, [])
    assert {record.config["rate"] for record in found if record.stage == "final"} == {0.2}  # the valley of the toy
    runs = [run for status in engine_stages.survey(experiment, "quick", found) for run in status.runs or []]
    assert {record.id: record.metrics for record in found} == toy.undisturbed(experiment, runs)
    assert all(steps == [0] for steps in toy.starts(log("a")).values())
    assert all(record.seconds > 0 and record.versions == provenance.versions() for record in found)
    assert not list(results.glob(".checkpoints/*"))
    assert "coarse: 6/6 done, 0 running" in output.getvalue()
    assert "final: 6/6 done, 0 running" in output.getvalue()
    assert re.search(r"coarse: 0/6 done, [36] running \(.*[1-4]/4 steps", output.getvalue())
    events = EventAccumulator(str(results / ".tensorboard" / found[0].id)).Reload()
    assert [event.step for event in events.Scalars("x")] == [1, 2, 3, 4]

    before = {path.stem: path.stat().st_mtime_ns for path in results.glob("*.json")}
    engine.run(experiment, "quick", results, Options(), display)
    assert {path.stem: path.stat().st_mtime_ns for path in results.glob("*.json")} == before
    assert all(steps == [0] for steps in toy.starts(log("a")).values())

    # One record lost, one damaged: their group is computed again, and the records that are there stay.
    alphas = [record for record in found if record.stage == "final" and record.config["method"] == "alpha"]
    lost, damaged, _ = alphas
    (results / f"{lost.id}.json").unlink()
    (results / f"{damaged.id}.json").write_text(damaged.to_json()[:100])
    assert [each.path.stem for each in engine.run(experiment, "quick", results, Options(), display)] == [damaged.id]
    again, corrupt = records.load_all(results)
    assert corrupt == []
    assert {record.id: record.metrics for record in again} == {record.id: record.metrics for record in found}
    assert {path.stem for path in results.glob("*.json") if path.stat().st_mtime_ns == before[path.stem]} == {
        *before
    } - {lost.id, damaged.id}
    assert sorted(len(steps) for steps in toy.starts(log("a")).values()) == [1, 1, 1, 2]
    assert f"The record {damaged.id}.json is damaged" in output.getvalue()

    # A damaged record of the search: it alone is computed again, and selects the final runs that are there.
    before = {path.stem: path.stat().st_mtime_ns for path in results.glob("*.json")}
    chosen = next(record for record in found if record.stage == "coarse" and record.config["rate"] == 0.2)
    (results / f"{chosen.id}.json").write_text("{")
    engine.run(experiment, "quick", results, Options(), display)
    assert [stem for stem in before if (results / f"{stem}.json").stat().st_mtime_ns != before[stem]] == [chosen.id]
    assert sorted(len(steps) for steps in toy.starts(log("a")).values()) == [1, 1, 2, 2]


@pytest.mark.slow
@pytest.mark.usefixtures("own_ray")
def test_runs_go_on_in_a_frozen_directory(tmp_path: Path, log: Log, display: Display, output: io.StringIO) -> None:
    experiment, results = Toy(log("a")), tmp_path / "results"
    engine.run(experiment, "quick", results, Options(), display)
    freeze(experiment, toy.PRESETS, results)
    frozen = (results / "quick.jsonl").read_bytes()
    engine.run(experiment, "quick", results, Options(), display)
    assert all(steps == [0] for steps in toy.starts(log("a")).values())  # nothing is computed again
    assert not list(results.glob("*.json"))

    lines = frozen.decode().splitlines(keepends=True)
    damaged = Record.from_json(lines[1])
    (results / "quick.jsonl").write_text("".join([lines[0], lines[1][:200] + "\n", *lines[2:]]))
    assert [each.run for each in engine.run(experiment, "quick", results, Options(), display)] == [damaged.id]
    assert "The record quick.jsonl, line 2 is damaged, its run is computed again" in output.getvalue()
    assert [path.stem for path in results.glob("*.json")] == [damaged.id]  # its group was computed, one record is new
    again, corrupt = records.load_all(results)
    assert corrupt == []
    assert [record.metrics for record in again] == [Record.from_json(line).metrics for line in lines]
    freeze(experiment, toy.PRESETS, results)
    assert records.load_all(results) == (again, [])
    assert [path.name for path in results.glob("*.json*")] == ["quick.jsonl"]


@pytest.mark.usefixtures("own_ray")
def test_group_that_fails_is_named_and_the_others_are_kept(
    tmp_path: Path, log: Log, display: Display, output: io.StringIO
) -> None:
    experiment, results = Toy(log("a"), fail="beta"), tmp_path / "results"
    with pytest.raises(
        engine.UnfinishedError, match=r"1 group\(s\) failed[\s\S]*ZeroDivisionError: this toy was told to"
    ):
        engine.run(experiment, "quick", results, Options(), display)
    assert {record.config["method"] for record in records.load_all(results)[0]} == {"alpha"}
    assert list(toy.starts(log("a")).values()) == [[0], [0]]  # an error of the code is not tried again
    assert "told to fail" in output.getvalue()
    [file] = results.glob(".errors/*.txt")
    assert "in train" in file.read_text()  # the whole call stack


def test_second_command_in_the_same_directory_is_refused(tmp_path: Path, log: Log, display: Display) -> None:
    class Nested(Toy):
        def stages(self, preset: str) -> list[Stage | Search]:
            with pytest.raises(BusyError, match="Another command is running"):
                engine.run(Toy(log("b")), "quick", tmp_path, Options(), display)
            return []

    engine.run(Nested(log("a")), "quick", tmp_path, Options(), display)


@pytest.mark.usefixtures("own_ray")
def test_search_goes_on_from_its_records_and_hands_its_winners_to_the_next_stage(
    tmp_path: Path, log: Log, display: Display
) -> None:
    """Some runs of the search are there already, as after a kill; so is the checkpoint of one that was under way."""
    experiment = Toy(log("a"), budget=6)
    studies = Studies(search_of(experiment), [], [])
    asked = [config for config in (studies.ask() for _ in range(4)) if config is not None]
    known, begun = asked[:3], asked[3]
    for config in known:
        [outcome] = experiment.train([config], Memory())
        about = {"experiment": "toy", "stage": "search", "seconds": 1.0, "versions": {}, "commit": None}
        records.write(Record.of(outcome, config, **about), tmp_path)
    toy.checkpoint_at(2, experiment, [begun], tmp_path)

    engine.run(experiment, "search", tmp_path, Options(), display)
    search, final = engine_stages.survey(experiment, "search", records.load_all(tmp_path)[0])
    assert (len(search.done), len(final.done), search.complete, final.complete) == (12, 4, True, True)
    assert {records.run_id(config) for config in asked} <= {record.id for record in search.done}
    traces = toy.starts(log("a"))
    assert all(traces[records.group_id([config])] == [0] for config in known)  # by hand, above; not by the engine
    assert traces[records.group_id([begun])] == [2]  # from its checkpoint
    assert len(traces) == 12 + 2  # every run of a search is a group; the four of the final stage are two

    # The record of a winner is damaged behind its config: that run is repeated, so the final runs stay selected.
    before = {path.stem: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    winner = top(records.frame(search.done), search_of(experiment), 1)[0]
    path = tmp_path / f"{records.run_id(winner)}.json"
    path.write_text(path.read_text().partition('"metrics"')[0])
    engine.run(experiment, "search", tmp_path, Options(), display)
    changed = {each.stem for each in tmp_path.glob("*.json") if each.stat().st_mtime_ns != before.get(each.stem)}
    assert changed == {path.stem}


# ---- the display (no Ray) --------------------------------------------------------------------------------------------


def told(console: Console) -> None:
    """What an engine might tell, up to half of a stage."""
    with Display(console) as display:
        display.stage("coarse", 6, 1, later=4)
        display.started("1", [{"seed": 1}, {"seed": 2}])
        display.progressed("1", 1250, 2500)
        display.retried("1", "lost")
        display.started("1", [{"seed": 1}, {"seed": 2}])
        display.started("2", [{"seed": 3}])
        display.failed("2", "broken")
        display.finished("1", 2)
        time.sleep(0.3)  # for the live line to be drawn


@pytest.mark.parametrize("terminal", [False, True])
def test_display_tells_how_far_the_work_is(terminal: bool, output: io.StringIO) -> None:
    told(Console(file=output, width=200, force_terminal=terminal))
    text = output.getvalue()
    assert terminal or "coarse: 1/6 done, 2 running (1,250/2,500 steps), about" in text
    assert "coarse: 3/6 done, 0 running, 1 failed, about " in text
    assert "starts again from its checkpoint: lost" in text
    assert "is left out: broken" in text
    assert ("\x1b" in text) == terminal


def test_display_does_not_judge_by_the_first_seconds(output: io.StringIO) -> None:
    with Display(Console(file=output, width=200)) as display:
        display.stage("coarse", 6, 0, later=0)
        display.started("1", [{"seed": 1}])
        display.progressed("1", 1, 100)
    assert "coarse: 0/6 done, 1 running (1/100 steps)\n" in output.getvalue()


def test_display_judges_by_what_this_command_has_done(output: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the steps of a checkpoint, which took it no time."""
    clock = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock)
    with Display(Console(file=output, width=200)) as display:
        display.stage("final", 3, 0, later=0)
        display.started("1", [{"seed": 1}])
        clock += 60
        display.progressed("1", 80, 100, before=60)
        display.retried("1", "lost")
        display.started("1", [{"seed": 1}])
        clock += 60
        display.progressed("1", 90, 100, before=80)
        clock += 30
        display.finished("1", 1)
    text = output.getvalue()
    assert "(80/100 steps), about 11 min 0 s left" in text  # 2.2 runs, after 0.2 in a minute
    assert "(90/100 steps), about 14 min 0 s left" in text  # 2.1 runs, after 0.3 in two minutes
    assert "1/3 done, 0 running, about 12 min 30 s left" in text  # 2 runs, after 0.4 in two and a half


def test_display_names_the_groups_that_began_first(output: io.StringIO) -> None:
    """Six groups of two runs, of which the first has come half way."""
    with Display(Console(file=output, width=200)) as display:
        display.stage("final", 12, 0, later=0)
        for trial in "123456":
            display.started(trial, [{"seed": 1}, {"seed": 2}])
        display.progressed("1", 5, 10)
    steps = "(5/10 steps, starting, starting, starting, and 2 other groups)"
    assert f"final: 0/12 done, 12 running {steps}" in output.getvalue()


# ---- what a machine does not have ------------------------------------------------------------------------------------


def test_ray_client_is_refused(tmp_path: Path, log: Log, display: Display) -> None:
    with pytest.raises(engine.AddressError, match="ray job submit"):
        engine.run(Toy(log("a")), "quick", tmp_path, Options(address="ray://head:10001"), display)


def test_cluster_that_has_nothing_to_spare_is_told(
    tmp_path: Path, log: Log, display: Display, output: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = engine.RecordWriter("toy", engine_stages.survey(Toy(log("a")), "quick", [])[0], tmp_path, display)
    writer.on_step_end(0, [])
    assert "ray status" not in output.getvalue()
    monkeypatch.setattr(engine, "_PATIENCE", 0.0)
    writer.on_step_end(0, [])
    assert "No worker has started for a minute: `ray status`" in output.getvalue()


# ---- cost ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("own_ray")
@pytest.mark.parametrize(("trials", "seconds", "most"), [(100, 1.0, 1.5), (20, 5.0, 1.2), (6, 20.0, 1.1)])
def test_overhead(trials: int, seconds: float, most: float, tmp_path: Path, log: Log, display: Display) -> None:
    """Against the ideal of two CPUs once the workers are up: the first start of a worker is not counted."""
    began: list[float] = []

    class Watch(Display):
        def started(self, trial: str, runs: list[Config]) -> None:
            began.append(time.monotonic())
            super().started(trial, runs)

    experiment = Toy(log("a"), steps=1, sleep=seconds, batch=1, many=trials)
    engine.run(experiment, "many", tmp_path, Options(), Watch(Console(file=io.StringIO())))
    ratio = (time.monotonic() - began[0]) / (trials * seconds / 2)
    print(f"{trials} trials of {seconds} s: {ratio:.3f} of the ideal, {os.getloadavg()[0]:.1f} load")
    assert ratio < most
