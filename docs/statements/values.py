"""The parts of statements: tables of reports, tests, and the format of numbers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from catnat_experiments.cli import load
from catnat_experiments.engine import records, stages
from catnat_experiments.engine.records import Record
from catnat_experiments.report import statistics
from catnat_experiments.report.cells import p_text
from catnat_experiments.report.statistics import Sample
from catnat_experiments.report.tables import Numbers, Value, fill

RECORDS = Path(__file__).parents[2] / "experiments/results"

# ---- numbers from records --------------------------------------------------------------------------------------------


@functools.cache
def report(experiment: str, preset: str) -> dict[str, Numbers]:
    """Return all tables of a report with their numbers, by title."""
    loaded = load(experiment)
    statuses = stages.survey(loaded.experiment, preset, all_records(experiment))
    return {table.title: fill(table, statuses) for table in loaded.tables}


@functools.cache
def all_records(experiment: str) -> list[Record]:
    """Return all committed records of an experiment, of searches too."""
    return records.load_all(RECORDS / experiment)[0]


def row(numbers: Numbers, value: Value | None = None) -> dict[str, Sample]:
    """Return the runs of one row of a table, or of its only row, by column."""
    [found] = [each for each in numbers.rows if value in (None, each)]
    return numbers.row(found)


def corrected(samples: Mapping[str, Sample], pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Return the p-values of Welch's test for some pairs of columns, corrected by Holm's method for these pairs."""
    found = statistics.holm({pair: statistics.welch(samples[pair[0]], samples[pair[1]]) for pair in pairs})
    return [found[pair] for pair in pairs]


def corrected_against(samples: Mapping[str, Sample], one: str) -> dict[str, float]:
    """Return the p-values of one column against all others, by column, corrected for these tests."""
    others = [column for column in samples if column != one]
    return dict(zip(others, corrected(samples, [(one, other) for other in others]), strict=True))


# ---- the format of numbers -------------------------------------------------------------------------------------------


def p(value: float) -> str:
    """Return a p-value with its relation, such as "p = 0.031" or "p < 0.0001"."""
    text = p_text(value)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def signed(value: float, digits: int = 1) -> str:
    """Return a difference with its sign."""
    return f"{value:+.{digits}f}".replace("-", "−")


def spread(sample: Sample, digits: int = 1) -> str:
    """Return a mean with its standard deviation."""
    return f"{sample.mean:.{digits}f} ± {sample.std:.{digits}f}"


def line(*cells: str) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(cells)} |"
