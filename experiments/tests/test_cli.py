"""The command line, as far as it needs no Ray; `run` is in test_faults.py."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import toy
from toy import Toy
from typer.testing import CliRunner, Result

import catnat_experiments
from catnat_experiments import cli
from catnat_experiments.builtin import BUILT_IN, BuiltIn
from catnat_experiments.engine import records
from catnat_experiments.engine import stages as engine_stages
from catnat_experiments.engine.extras import MissingExtraError, extra
from catnat_experiments.engine.records import Record
from catnat_experiments.engine.types import Outcome


@pytest.fixture(autouse=True)
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    own = Toy(str(tmp_path / "log"), steps=10)
    monkeypatch.setattr(toy, "EXPERIMENT", own)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    return own


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments))


def finish(experiment: Toy, stages: int) -> None:
    """Records of the first stages, without computing anything."""
    results = Path("results/toy")
    for place in range(stages):
        status = engine_stages.survey(experiment, "quick", records.load_all(results)[0])[place]
        for run in status.runs or []:
            outcome = Outcome({"loss": (float(run["rate"]) - 0.2) ** 2 + 0.01 * int(run["seed"])}, {})
            about = {
                "experiment": "toy",
                "stage": status.stage.name,
                "seconds": 7200.0,
                "versions": {},
                "commit": None,
            }
            records.write(Record.of(outcome, run, **about), results)


def test_plan_shows_stages_runs_and_core_hours_before_anything_starts(
    experiment: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = call("plan", "toy").stdout
    assert "a grid of rates" in text
    assert "about 6" in text  # the final stage is not known yet
    assert "Core-hours left: unknown." in text
    assert not Path("results").exists()
    finish(experiment, 1)
    assert "Core-hours left: about 12." in call("plan", "toy").stdout  # 6 runs are left, 2 hours each
    monkeypatch.setitem(BUILT_IN, "toy", BuiltIn("", {"quick": 3}))
    assert "Core-hours left: about 1.5." in call("plan", "toy").stdout  # 6 of 12 runs


def test_one_run_is_trained_by_hand() -> None:
    said = call("train", "toy", "rate=0.3", "steps=2")
    assert said.exit_code == 0, said.output
    assert re.search(r"loss +0\.\d{4}", said.stdout)
    assert not Path("results").exists()
    assert "`size=3` is no change of a run of toy, which has " in call("train", "toy", "size=3").output


def test_status_counts_done_missing_and_damaged(experiment: Toy) -> None:
    finish(experiment, 1)
    first = next(Path("results/toy").glob("*.json"))
    first.write_text("{")
    text = call("status", "toy").stdout
    assert "1 damaged records in results/toy" in text
    assert f"damaged: {first} (not whole JSON" in text
    assert [line.split("│")[2:4] for line in text.splitlines() if "│ coarse" in line] == [[" 5    ", " 1       "]]
    assert "about 6" in text


def stages_of(text: str) -> dict[str, list[str]]:
    """The cells of a table of stages, as the terminal shows it."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    return {row[0]: row[1:] for row in rows}


def test_status_counts_final_runs_though_a_record_of_the_search_is_damaged(experiment: Toy) -> None:
    finish(experiment, 2)
    assert stages_of(call("status", "toy").stdout) == {"coarse": ["6", "0"], "final": ["6", "0"]}
    found, _ = records.load_all(Path("results/toy"))
    coarse = {float(r.config["rate"]): r for r in found if r.stage == "coarse" and r.config["method"] == "alpha"}

    path = Path("results/toy") / f"{coarse[0.2].id}.json"  # the winner: other final runs are selected without it
    path.write_text("{")
    text = call("status", "toy").stdout
    assert stages_of(text) == {"coarse": ["5", "1"], "final": ["about 3", "about 3"]}
    assert "Stage coarse is not complete" in text
    assert stages_of(call("plan", "toy").stdout)["final"][:2] == ["about 6", "about 3"]


def test_report_writes_the_page_where_it_is_told(experiment: Toy) -> None:
    finish(experiment, 2)
    said = call("report", "toy", "--output", "page")
    assert "alpha is better than beta" in said.stdout
    assert Path("page/README.md").read_text().startswith("# toy, preset quick")
    assert Path("page/loss.png").exists()


def test_verdicts_are_a_table_of_all_claims(experiment: Toy) -> None:
    finish(experiment, 2)
    said = call("verdicts", "toy:quick", "--output", "verdicts.md")
    assert "claims: verdicts.md" in said.stdout
    header, _, *rows = Path("verdicts.md").read_text().splitlines()
    assert header.startswith("| table | row | the paper's claim | verdict | difference | p, corrected | runs |")
    assert rows
    assert all("alpha is better than beta" in row and "| 3 and 3 | toy, quick |" in row for row in rows)


def test_figures_are_the_experiments_own(experiment: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(experiment, 2)
    assert "toy.txt" in call("figures", "toy", "--output", "drawn").stdout
    assert Path("drawn/toy.txt").read_text() == "12 records\n"
    monkeypatch.delattr(toy, "figures")
    said = call("figures", "toy")
    assert said.exit_code == 2
    assert "has no figures of its own" in said.output


def test_figures_without_their_runs_say_so(experiment: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, preset in ("toy", "quick"), ("gsl", "paper"):
        said = call("figures", name, "--preset", preset, "--results", "nothing")
        assert (said.exit_code, isinstance(said.exception, SystemExit)) == (1, True)
        told = f"There is nothing to draw: nothing lacks the runs of {name} with preset {preset} that its figures need."
        assert said.output == f"{told} Make them: catnat-experiments run {name} --preset {preset} --results nothing\n"
    assert not Path("nothing").exists()
    finish(experiment, 1)
    monkeypatch.setattr(toy, "figures", lambda frame, directory: [])
    said = call("figures", "toy")
    assert (said.exit_code, "lacks the runs of toy" in said.output) == (1, True)


def test_freeze_puts_the_records_into_archives_that_the_other_commands_read(experiment: Toy) -> None:
    finish(experiment, 2)
    said = call("report", "toy", "--output", "before")
    assert said.exit_code == 0, said.output
    said = call("freeze", "toy")
    assert (said.exit_code, said.stdout) == (0, "results/toy/quick.jsonl: 12 records\n")
    assert [path.name for path in Path("results/toy").glob("*.json*")] == ["quick.jsonl"]
    call("report", "toy", "--output", "after")
    assert {path.name: path.read_bytes() for path in Path("after").iterdir()} == {
        path.name: path.read_bytes() for path in Path("before").iterdir()
    }
    Path("results/toy/quick.jsonl").write_text("rubbish\n")
    assert "damaged: results/toy/quick.jsonl, line 1 (not whole JSON" in call("status", "toy").stdout
    said = call("freeze", "toy")
    assert (said.exit_code, "1 record(s) are damaged" in said.output) == (1, True)


def test_freeze_needs_a_directory() -> None:
    said = call("freeze", "toy", "--results", "nothing")
    assert (said.exit_code, "nothing does not exist" in said.output) == (1, True)
    assert not Path("nothing").exists()


# ---- the built-in experiments ----------------------------------------------------------------------------------------


def test_every_experiment_of_the_package_is_listed() -> None:
    package = Path(catnat_experiments.__file__).parent
    assert {path.parent.name for path in package.glob("tasks/*/task.py")} == set(BUILT_IN)


def test_readme_has_the_same_core_hours() -> None:
    told: dict[str, dict[str, float]] = {}
    for line in Path(__file__).parents[1].joinpath("README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if heading := re.match(r"`(\w+)`, preset$", cells[0]):
            name = heading[1]
        elif line.startswith("| `"):
            hours = float(cells[-1].removesuffix(" each").replace(",", ""))
            told.setdefault(name, {}).update(dict.fromkeys(re.findall(r"`([\w-]+)`", cells[0]), hours))
    assert told == {name: dict(builtin.hours) for name, builtin in BUILT_IN.items()}


def test_list_shows_every_experiment_with_its_presets() -> None:
    text = call("list").stdout
    for name, builtin in BUILT_IN.items():
        assert f"{name}: {builtin.about}\n" in text
        for preset, hours in builtin.hours.items():
            assert re.search(rf"\n  {preset} +{hours:,g} core-hours\n", text)


def without(package: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process that cannot import a package, as if it were not installed."""
    program = f"""
        import sys

        class Blocked:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == {package!r}:
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

        sys.meta_path.insert(0, Blocked())
        from catnat_experiments import cli
        cli.app()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("name", "package", "command"),
    [
        ("atari", "ale_py", "plan"),
        pytest.param("minatar", "gymnax", "run", marks=pytest.mark.slow),
        pytest.param("minatar", "jax", "status", marks=pytest.mark.slow),
        pytest.param("defaults", "jax", "plan", marks=pytest.mark.slow),
    ],
)
def test_missing_extra_is_one_line_that_says_what_to_install(name: str, package: str, command: str) -> None:
    said = without(package, command, name)
    assert (said.returncode, said.stdout) == (1, "")
    hint = f"This experiment needs the extra '{name}' (No module named '{package}'): pip install"
    assert said.stderr.splitlines() == [f'{hint} "catnat-experiments[{name}]"']


def test_a_mistake_of_ours_is_no_missing_extra() -> None:
    with pytest.raises(ImportError, match="nonsense") as caught, extra("atari"):
        importlib.import_module("catnat_experiments.nonsense")
    assert not isinstance(caught.value, MissingExtraError)


# ---- mistakes --------------------------------------------------------------------------------------------------------


def test_mistakes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "There is no experiment 'nothing': give one of gsl, vae, " in call("plan", "nothing").output
    assert "There is no experiment 'no.thing'" in call("plan", "no.thing").output
    assert "defines no EXPERIMENT" in call("plan", "memory").output
    assert "--cpus is for this machine alone" in call("run", "toy", "--cpus", "2", "--address", "auto").output

    def stages(self: Toy, preset: str) -> object:
        raise ValueError(f"`preset` is {preset!r}, but there is only one.")

    monkeypatch.setattr(Toy, "stages", stages)
    said = call("plan", "toy", "--preset", "huge")
    assert (said.exit_code, "`preset` is 'huge'" in said.output) == (2, True)
