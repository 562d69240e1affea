"""The command line, as far as it needs no Ray; `run` is in test_faults.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import toy
from toy import Toy
from typer.testing import CliRunner, Result

from catnat_experiments import cli, plan, records
from catnat_experiments.experiment import Outcome
from catnat_experiments.records import Record


@pytest.fixture(autouse=True)
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    own = Toy(str(tmp_path / "log"), steps=10, sleep=6.0)
    monkeypatch.setattr(toy, "EXPERIMENT", own)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return own


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments))


def finish(experiment: Toy, stages: int) -> None:
    """Records of the first stages, without computing anything."""
    results = Path("results/toy")
    for place in range(stages):
        standing = plan.survey(experiment, "quick", records.load_all(results)[0])[place]
        for run in standing.runs or []:
            outcome = Outcome({"loss": (float(run["rate"]) - 0.2) ** 2 + 0.01 * int(run["seed"])}, {})
            about = {
                "experiment": "toy",
                "stage": standing.stage.name,
                "seconds": 7200.0,
                "versions": {},
                "commit": None,
            }
            records.write(Record.of(outcome, run, **about), results)


def test_plan_shows_stages_runs_and_core_hours_before_anything_starts(experiment: Toy) -> None:
    text = call("plan", "toy", "--cpus", "2").stdout
    assert "a grid of rates" in text
    assert "about 6" in text  # the final stage is not known yet
    assert "In all: 0.067 core-hours, about 2 min 0 s on 2 cores." in text  # 4 groups of 10 steps of 6 s
    assert not Path("results").exists()


def test_plan_without_a_measured_cost_uses_the_records(experiment: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unpriced:
        name, stages, groups = "toy", experiment.stages, experiment.groups

    monkeypatch.setattr(toy, "EXPERIMENT", Unpriced())
    assert "In all: unknown core-hours" in call("plan", "toy").stdout
    finish(experiment, 1)
    assert "In all: 12 core-hours" in call("plan", "toy").stdout  # 6 runs are left, 2 hours each


def test_status_counts_done_missing_and_damaged(experiment: Toy) -> None:
    finish(experiment, 1)
    first = next(Path("results/toy").glob("*.json"))
    first.write_text("{")
    text = call("status", "toy").stdout
    assert "1 damaged records in results/toy" in text
    assert f"damaged: {first} (not whole JSON" in text
    assert [line.split("│")[2:4] for line in text.splitlines() if "coarse" in line] == [[" 5    ", " 1       "]]
    assert "about 6" in text


def test_report_writes_the_page_where_it_is_told(experiment: Toy) -> None:
    finish(experiment, 2)
    said = call("report", "toy", "--output", "page")
    assert "alpha is better than beta" in said.stdout
    assert Path("page/README.md").read_text().startswith("# toy, preset quick")
    assert Path("page/loss.png").exists()


def test_figures_are_the_experiments_own(experiment: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(experiment, 2)
    assert "toy.txt" in call("figures", "toy", "--output", "drawn").stdout
    assert Path("drawn/toy.txt").read_text() == "12 records\n"
    monkeypatch.delattr(toy, "figures")
    said = call("figures", "toy")
    assert said.exit_code == 2
    assert "has no figures of its own" in said.output


def test_mistakes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "There is no experiment 'nothing'" in call("plan", "nothing").output
    assert "There is no experiment 'no.thing'" in call("plan", "no.thing").output
    assert "defines no EXPERIMENT" in call("plan", "records").output
    assert "--cpus is for this machine alone" in call("run", "toy", "--cpus", "2", "--address", "auto").output

    def stages(self: Toy, preset: str) -> object:
        raise ValueError(f"`preset` is {preset!r}, but there is only one.")

    monkeypatch.setattr(Toy, "stages", stages)
    said = call("plan", "toy", "--preset", "huge")
    assert (said.exit_code, "`preset` is 'huge'" in said.output) == (2, True)
