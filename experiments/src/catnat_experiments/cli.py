"""The command line: ``catnat-experiments list|verdicts``, or one of the other commands with an experiment."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, NoReturn

import pandas as pd
import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table as RichTable

from catnat_experiments.builtin import BUILT_IN
from catnat_experiments.engine import files, records, stages
from catnat_experiments.engine.experiment import Experiment
from catnat_experiments.engine.extras import MissingExtraError
from catnat_experiments.engine.freeze import DamagedError, freeze
from catnat_experiments.engine.lock import BusyError
from catnat_experiments.engine.loop import Printing
from catnat_experiments.engine.progress import Display
from catnat_experiments.engine.records import Corrupt
from catnat_experiments.engine.search import Search
from catnat_experiments.engine.types import Config
from catnat_experiments.report import claims, page
from catnat_experiments.report.markdown import main_table, markdown_table
from catnat_experiments.report.tables import Table, done_records, fill

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Run the experiments of the catnat paper, and resume."
)

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT", help="A built-in name, as in `catnat-experiments list`, or a module of yours."
    ),
]
PresetOption = Annotated[
    str, typer.Option("--preset", help="How much of it. `catnat-experiments list` has the presets of each experiment.")
]
ResultsOption = Annotated[
    Path | None, typer.Option("--results", help="The directory of the records. Default: results/<experiment>.")
]
CpusOption = Annotated[int | None, typer.Option("--cpus", min=1, help="Cores to use on this machine. Default: all.")]


@dataclasses.dataclass(frozen=True)
class Loaded:
    """An experiment's module, opened: what it is, what it reports, what it draws, and where its records are."""

    experiment: Experiment
    tables: tuple[Table, ...]
    figures: Callable[[pd.DataFrame, Path], list[Path]] | None
    presets: tuple[str, ...]
    directory: Path


def load(name: str, results: Path | None = None) -> Loaded:
    """Open an experiment: the module ``catnat_experiments.tasks.<name>.task``, or any module that can be imported.

    It must define ``EXPERIMENT``; ``TABLES``, ``figures(frame, directory)`` and ``PRESETS`` are optional.
    """
    module = _module(name)
    experiment = getattr(module, "EXPERIMENT", None)
    if experiment is None:
        raise typer.BadParameter(f"The module {module.__name__} defines no EXPERIMENT, so there is nothing to run.")
    directory = results or Path("results") / experiment.name
    return Loaded(
        experiment,
        tables=tuple(getattr(module, "TABLES", ())),
        figures=getattr(module, "figures", None),
        presets=tuple(getattr(module, "PRESETS", ())),
        directory=directory,
    )


def _module(name: str) -> ModuleType:
    for candidate in (f"catnat_experiments.tasks.{name}.task", name):
        if _exists(candidate):
            return importlib.import_module(candidate)
    raise typer.BadParameter(
        f"There is no experiment '{name}': give one of {', '.join(BUILT_IN)}, or a module on the path."
    )


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package on the way to it is not there
        return False


def _open(name: str, results: Path | None = None) -> Loaded:
    """As :func:`load`, for a command: an extra that is not installed is no reason for a call stack."""
    try:
        return load(name, results)
    except MissingExtraError as error:
        _fail(str(error))


def _fail(reason: str) -> NoReturn:
    """End the command with one line that says why."""
    Console(stderr=True).print(reason, style="red", highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(1)


def _survey(loaded: Loaded, preset: str) -> tuple[list[stages.StageStatus], list[Corrupt]]:
    """Where the stages of a preset stand, and the damaged records."""
    found, corrupt = records.load_all(loaded.directory)
    try:
        return stages.survey(loaded.experiment, preset, found), corrupt
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


# ---- the commands ----------------------------------------------------------------------------------------------------


@app.command(name="list")
def list_command() -> None:
    """Show the built-in experiments and their presets, with their core-hours from nothing."""
    console = Console()
    for name, builtin in BUILT_IN.items():
        console.print(f"{name}: {builtin.about}", style="bold", highlight=False, soft_wrap=True)
        for preset, hours in builtin.hours.items():
            console.print(f"  {preset:<15}{hours:>8,g} core-hours", highlight=False)
    console.print("Core-hours are about what one core of a small machine takes.", highlight=False)


@app.command()
def plan(name: NameArgument, preset: PresetOption = "quick", results: ResultsOption = None) -> None:
    """Show the stages, the number of runs and the core-hours that are left, before anything starts."""
    _print_plan(_open(name, results), preset, Console())


@app.command()
def run(
    name: NameArgument,
    preset: PresetOption = "quick",
    results: ResultsOption = None,
    cpus: CpusOption = None,
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster to join. Default: this machine alone.")] = None,
    retries: Annotated[int, typer.Option(min=0, help="How often a group that failed is started again.")] = 3,
) -> None:
    """Compute what is missing, then report and draw. Repeat the command to go on after any interruption."""
    if address is not None and cpus is not None:
        raise typer.BadParameter("--cpus is for this machine alone: a cluster that is joined brings its own cores.")
    loaded, console = _open(name, results), Console()
    _print_plan(loaded, preset, console)
    from catnat_experiments.engine import run as engine  # Ray takes a second to import: only who runs something waits

    options = engine.Options(address=address, cpus=cpus, retries=retries)
    try:
        with Display(console) as display:
            engine.run(loaded.experiment, preset, loaded.directory, options, display)
    except (engine.UnfinishedError, BusyError, engine.AddressError, OSError) as error:
        console.print(_text(error), style="red", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        console.print("Interrupted. What is finished is kept: repeat the command to go on.")
        raise typer.Exit(130) from None
    statuses, _ = _survey(loaded, preset)
    _report(loaded, preset, statuses, loaded.directory, console)
    _draw(loaded, statuses, loaded.directory, console)


@app.command()
def train(
    name: NameArgument,
    changes: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="Such as rate=0.01.")] = None,
) -> None:
    """Train one run by hand and print it: one of the first preset's, with changes. Nothing is kept."""
    loaded = _open(name)
    run = _example(loaded)
    for change in changes or ():
        key, _, value = change.partition("=")
        if key not in run:
            raise typer.BadParameter(f"`{change}` is no change of a run of {name}, which has {', '.join(run)}.")
        run[key] = type(run[key])(value)
    [outcome] = loaded.experiment.train([run], Printing())
    for metric, found in outcome.metrics.items():
        Console().print(f"{metric:24}{found:12.4f}", highlight=False)


def _example(loaded: Loaded) -> Config:
    """The last run of the first stage of the first preset."""
    first, *_ = loaded.experiment.stages(loaded.presets[0])
    if isinstance(first, Search):
        return {**first.bases[-1], **{knob: vars(space)["low"] for knob, space in first.space.items()}}
    return first.runs(pd.DataFrame())[-1]


@app.command(name="status")
def status_command(name: NameArgument, preset: PresetOption = "quick", results: ResultsOption = None) -> None:
    """Count what is done, missing and damaged."""
    loaded, console = _open(name, results), Console()
    statuses, corrupt = _survey(loaded, preset)
    table = RichTable("stage", "done", "missing")
    for status in statuses:
        table.add_row(status.stage.name, _count(status, len(status.done)), _count(status, status.missing))
    console.print(table)
    if any(status.done and not status.settled for status in statuses):
        first = next(status.stage.name for status in statuses if not status.complete)
        console.print(
            f"Stage {first} is not complete, so what it will select is not certain: the stages after it are counted as "
            "its records so far select them.",
            highlight=False,
            soft_wrap=True,
        )
    for damaged in corrupt:
        place = damaged.path.parent / damaged.name
        console.print(f"damaged: {place} ({damaged.reason})", highlight=False, markup=False, soft_wrap=True)
    console.print(f"{len(corrupt)} damaged records in {loaded.directory}", highlight=False, soft_wrap=True)


@app.command(name="report")
def report_command(
    name: NameArgument,
    preset: PresetOption = "quick",
    results: ResultsOption = None,
    output: Annotated[Path | None, typer.Option(help="Where to write the page. Default: beside the records.")] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Only what tables say together, without plots.")] = False,
) -> None:
    """Write README.md with tables, tests and plots, from the records alone."""
    loaded = _open(name, results)
    statuses, _ = _survey(loaded, preset)
    directory, console = output or loaded.directory, Console()
    if summary:
        path = page.write(name, preset, statuses, loaded.tables, directory, summary=True)
        console.print(f"The summary: {path}", highlight=False, soft_wrap=True)
    else:
        _report(loaded, preset, statuses, directory, console)


@app.command()
def figures(
    name: NameArgument,
    preset: PresetOption = "quick",
    results: ResultsOption = None,
    output: Annotated[Path | None, typer.Option(help="Where to write them. Default: beside the records.")] = None,
) -> None:
    """Draw the experiment's own figures from the records of a preset."""
    loaded, console = _open(name, results), Console()
    if loaded.figures is None:
        raise typer.BadParameter(f"The experiment '{name}' has no figures of its own; `report` draws the usual plots.")
    statuses, _ = _survey(loaded, preset)
    if not (done_records(statuses) and _draw(loaded, statuses, output or loaded.directory, console)):
        _fail(
            f"There is nothing to draw: {loaded.directory} lacks the runs of {name} with preset {preset} that its "
            f"figures need. Make them: catnat-experiments run {name} --preset {preset} --results {loaded.directory}"
        )


@app.command(name="verdicts")
def verdicts_command(
    reports: Annotated[
        list[str], typer.Argument(metavar="EXPERIMENT:PRESET...", help="Such as gsl:paper vae:evidence.")
    ],
    results: Annotated[Path, typer.Option(help="The directory with one directory of records an experiment.")] = Path(
        "results"
    ),
    output: Annotated[Path, typer.Option(help="The Markdown file to write.")] = Path("verdicts.md"),
) -> None:
    """Write one table of all claims: what the records say of each, with its effect, its p-value and its runs."""
    rows = []
    for report in reports:
        name, _, preset = report.partition(":")
        loaded = _open(name, results / name)
        statuses, _ = _survey(loaded, preset)
        filled = [fill(table, statuses) for table in loaded.tables]
        rows += claims.verdict_rows(f"{name}, {preset}", filled)
    files.write_atomically(output, (markdown_table(claims.VERDICT_HEADER, rows) + "\n").encode())
    Console().print(f"{len(rows)} claims: {output}", highlight=False, soft_wrap=True)


@app.command(name="freeze")
def freeze_command(name: NameArgument, results: ResultsOption = None) -> None:
    """Collect the records in one archive a preset, to be committed: the same records give the same bytes."""
    loaded, console = _open(name, results), Console()
    if not loaded.directory.is_dir():
        _fail(f"There is nothing to freeze: {loaded.directory} does not exist.")
    try:
        archives = freeze(loaded.experiment, loaded.presets, loaded.directory)
    except (DamagedError, BusyError) as error:
        _fail(str(error))
    for path, frozen in sorted(archives.items()):
        console.print(f"{path}: {len(frozen)} records", highlight=False, soft_wrap=True)


# ---- what they share -------------------------------------------------------------------------------------------------


def _print_plan(loaded: Loaded, preset: str, console: Console) -> None:
    statuses, corrupt = _survey(loaded, preset)
    table = RichTable("stage", "runs", "done", "", title=f"{loaded.experiment.name}, preset {preset}")
    for status in statuses:
        done = len(status.done)
        counts = (_count(status, done + status.missing), _count(status, done))
        table.add_row(status.stage.name, *counts, status.stage.about)
    console.print(table)
    left = _hours_left(loaded.experiment.name, preset, statuses)
    hours = "unknown" if math.isnan(left) else f"about {left:,.0f}" if left >= 10 else f"about {left:.2g}"
    console.print(f"Core-hours left: {hours}. Records: {loaded.directory}", highlight=False, soft_wrap=True)
    if corrupt:
        console.print(f"{len(corrupt)} damaged records will be computed again.", highlight=False)


def _count(status: stages.StageStatus, runs: int) -> str:
    """A number of runs, which is a guess as long as the stages before may still select others."""
    return str(runs) if status.settled or not runs else f"about {runs}"


def _hours_left(name: str, preset: str, statuses: Sequence[stages.StageStatus]) -> float:
    """The missing part of what the preset is listed with; of one that is not listed, at the mean of its records."""
    missing, done = sum(status.missing for status in statuses), done_records(statuses)
    if name in BUILT_IN and preset in BUILT_IN[name].hours:
        return BUILT_IN[name].hours[preset] * missing / max(1, missing + len(done))
    return missing * sum(record.seconds for record in done) / len(done) / 3600 if done else math.nan


def _text(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _report(
    loaded: Loaded, preset: str, statuses: Sequence[stages.StageStatus], output: Path, console: Console
) -> None:
    path = page.write(loaded.experiment.name, preset, statuses, loaded.tables, output)
    for table in loaded.tables:
        numbers = fill(table, statuses)
        if numbers.rows:
            console.print(Markdown("\n\n".join([f"## {table.title}", main_table(numbers), *claims.claims(numbers)])))
    console.print(f"The whole report: {path}", highlight=False, soft_wrap=True)


def _draw(loaded: Loaded, statuses: Sequence[stages.StageStatus], directory: Path, console: Console) -> list[Path]:
    if loaded.figures is None:
        return []
    directory.mkdir(parents=True, exist_ok=True)
    drawn = loaded.figures(records.frame(done_records(statuses)), directory)
    for path in drawn:
        console.print(str(path), highlight=False, soft_wrap=True)
    return drawn


if __name__ == "__main__":
    app()
