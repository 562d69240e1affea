"""The command line: ``catnat-experiments plan|run|status|report|figures EXPERIMENT --preset PRESET``."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated

import pandas as pd
import typer
from rich.console import Console
from rich.table import Table as RichTable

from catnat_experiments import plan as plans
from catnat_experiments import records, report
from catnat_experiments.experiment import Experiment
from catnat_experiments.progress import Best, Display, duration
from catnat_experiments.records import Corrupt

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Run the experiments of the catnat paper, and resume."
)

NameArgument = Annotated[
    str, typer.Argument(metavar="EXPERIMENT", help="A built-in name such as gsl, or a module of yours.")
]
PresetOption = Annotated[str, typer.Option("--preset", help="How much of it: quick, laptop or paper.")]
ResultsOption = Annotated[
    Path | None, typer.Option("--results", help="The directory of the records. [default: results/<experiment>]")
]
CpusOption = Annotated[int | None, typer.Option("--cpus", min=1, help="Cores to use on this machine. [default: all]")]


@dataclasses.dataclass(frozen=True)
class Loaded:
    """An experiment's module, opened: what it is, what it reports, what it draws, and where its records are."""

    experiment: Experiment
    tables: tuple[report.Table, ...]
    figures: Callable[[pd.DataFrame, Path], list[Path]] | None
    directory: Path


def load(name: str, results: Path | None = None) -> Loaded:
    """Open an experiment: the module ``catnat_experiments.<name>``, or any module that can be imported.

    It must define ``EXPERIMENT``; ``TABLES`` and ``figures(frame, directory)`` are optional.
    """
    module = _module(name)
    experiment = getattr(module, "EXPERIMENT", None)
    if experiment is None:
        raise typer.BadParameter(f"The module {module.__name__} defines no EXPERIMENT, so there is nothing to run.")
    directory = results or Path("results") / experiment.name
    return Loaded(experiment, tuple(getattr(module, "TABLES", ())), getattr(module, "figures", None), directory)


def _module(name: str) -> ModuleType:
    for candidate in (f"catnat_experiments.{name}", name):
        if _exists(candidate):
            return importlib.import_module(candidate)
    raise typer.BadParameter(
        f"There is no experiment '{name}': give a built-in name such as gsl, or a module on the path."
    )


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package on the way to it is not there
        return False


def _survey(loaded: Loaded, preset: str) -> tuple[list[plans.Standing], list[Corrupt]]:
    found, corrupt = records.load_all(loaded.directory)
    try:
        return plans.survey(loaded.experiment, preset, found), corrupt
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


# ---- the five commands -----------------------------------------------------------------------------------------------


@app.command()
def plan(
    name: NameArgument, preset: PresetOption = "quick", results: ResultsOption = None, cpus: CpusOption = None
) -> None:
    """Show the stages, the number of runs and the core-hours that are left, before anything starts."""
    loaded = load(name, results)
    _print_plan(loaded, preset, cpus, Console())


@app.command()
def run(
    name: NameArgument,
    preset: PresetOption = "quick",
    results: ResultsOption = None,
    cpus: CpusOption = None,
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster to join. [default: this machine alone]")] = None,
    gpus_per_trial: Annotated[
        float, typer.Option(min=0.0, help="The share of a GPU that a group of runs needs.")
    ] = 0.0,
    retries: Annotated[int, typer.Option(min=0, help="How often a group that failed is started again.")] = 3,
) -> None:
    """Compute what is missing, then report and draw. Repeat the command to go on after any interruption."""
    if address is not None and cpus is not None:
        raise typer.BadParameter("--cpus is for this machine alone: a cluster that is joined brings its own cores.")
    loaded, console = load(name, results), Console()
    _print_plan(loaded, preset, cpus, console)
    from catnat_experiments import engine  # Ray takes a second to import: only who runs something waits for it

    options = engine.Options(address=address, cpus=cpus, gpus_per_trial=gpus_per_trial, retries=retries)
    try:
        with Display(console, _best(loaded.tables)) as display:
            engine.run(loaded.experiment, preset, loaded.directory, options, display)
    except (engine.UnfinishedError, engine.BusyError, engine.ResourcesError, OSError) as error:
        console.print(_text(error), style="red", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        console.print("Interrupted. What is finished is kept: repeat the command to go on.")
        raise typer.Exit(130) from None
    standings, _ = _survey(loaded, preset)
    _report(loaded, preset, standings, loaded.directory, console)
    _draw(loaded, standings, loaded.directory, console)


@app.command()
def status(name: NameArgument, preset: PresetOption = "quick", results: ResultsOption = None) -> None:
    """Count what is done, missing and damaged."""
    loaded, console = load(name, results), Console()
    standings, corrupt = _survey(loaded, preset)
    table = RichTable("stage", "done", "missing")
    for standing in standings:
        missing = f"about {standing.missing}" if standing.runs is None else str(standing.missing)
        table.add_row(standing.stage.name, str(len(standing.done)), missing)
    console.print(table)
    for damaged in corrupt:
        console.print(f"damaged: {damaged.path} ({damaged.reason})", highlight=False, markup=False, soft_wrap=True)
    console.print(f"{len(corrupt)} damaged records in {loaded.directory}", highlight=False, soft_wrap=True)


@app.command(name="report")
def report_command(
    name: NameArgument,
    preset: PresetOption = "quick",
    results: ResultsOption = None,
    output: Annotated[Path | None, typer.Option(help="Where to write the page. [default: beside the records]")] = None,
) -> None:
    """Write README.md with tables, tests and plots, from the records alone."""
    loaded = load(name, results)
    standings, _ = _survey(loaded, preset)
    _report(loaded, preset, standings, output or loaded.directory, Console())


@app.command()
def figures(
    name: NameArgument,
    preset: PresetOption = "quick",
    results: ResultsOption = None,
    output: Annotated[Path | None, typer.Option(help="Where to write them. [default: beside the records]")] = None,
) -> None:
    """Draw the experiment's own figures from the records of a preset."""
    loaded, console = load(name, results), Console()
    if loaded.figures is None:
        raise typer.BadParameter(f"The experiment '{name}' has no figures of its own; `report` draws the usual plots.")
    standings, _ = _survey(loaded, preset)
    _draw(loaded, standings, output or loaded.directory, console)


# ---- what they share -------------------------------------------------------------------------------------------------


def _print_plan(loaded: Loaded, preset: str, cpus: int | None, console: Console) -> None:
    standings, corrupt = _survey(loaded, preset)
    seconds = plans.seconds_left(loaded.experiment, standings)
    table = RichTable(
        "stage", "runs", "done", "core-hours left", "", title=f"{loaded.experiment.name}, preset {preset}"
    )
    for standing, left in zip(standings, seconds, strict=True):
        done = len(standing.done)
        runs = f"about {standing.missing}" if standing.runs is None else str(done + standing.missing)
        table.add_row(standing.stage.name, runs, str(done), _hours(left), standing.stage.about)
    console.print(table)
    total = sum(seconds)
    time = "" if cpus is None or math.isnan(total) else f", about {duration(total / cpus)} on {cpus} cores"
    console.print(
        f"In all: {_hours(total)} core-hours{time}. Records: {loaded.directory}", highlight=False, soft_wrap=True
    )
    if corrupt:
        console.print(f"{len(corrupt)} damaged records will be computed again.", highlight=False)


def _hours(seconds: float) -> str:
    return "unknown" if math.isnan(seconds) else f"{seconds / 3600:.2g}"


def _best(tables: tuple[report.Table, ...]) -> Best | None:
    if not tables:
        return None
    first = tables[0]
    return Best(first.metric, first.direction, first.row, first.column, first.columns)


def _text(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _report(loaded: Loaded, preset: str, standings: Sequence[plans.Standing], output: Path, console: Console) -> None:
    page = report.write(loaded.experiment.name, preset, standings, loaded.tables, output)
    for table in loaded.tables:
        numbers = report.fill(table, standings)
        if not numbers.rows:
            if not table.optional:
                console.print(f"{table.title}: no record for this table yet.", highlight=False)
            continue
        console.print(report.rich_table(numbers))
        for sentence in report.claims(numbers):
            console.print(sentence.replace("**", ""), highlight=False, markup=False, soft_wrap=True)
    console.print(f"The whole report: {page}", highlight=False, soft_wrap=True)


def _draw(loaded: Loaded, standings: Sequence[plans.Standing], directory: Path, console: Console) -> None:
    if loaded.figures is None:
        return
    directory.mkdir(parents=True, exist_ok=True)
    for path in loaded.figures(records.frame(report.done_records(standings)), directory):
        console.print(str(path), highlight=False, soft_wrap=True)


if __name__ == "__main__":
    app()
