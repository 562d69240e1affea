"""The description of an experiment's tables, and tables filled with records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from catnat_experiments.engine import records
from catnat_experiments.engine.records import Record
from catnat_experiments.engine.stages import StageStatus
from catnat_experiments.engine.types import Direction
from catnat_experiments.report import statistics
from catnat_experiments.report.statistics import Sample
from catnat_experiments.report.targets import Target

Value = str | int | float
Cell = tuple[Value, str]


# ---- the description of tables ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim of the paper that one column is better than another.

    Attributes:
        better: The column that the claim calls better.
        worse: The column that it is compared with.
        rows: The rows of the claim; None for all.
    """

    better: str
    worse: str
    rows: tuple[Value, ...] | None = None

    def is_about(self, row: Value) -> bool:
        """Return whether the paper claims it for a row."""
        return self.rows is None or row in self.rows


@dataclasses.dataclass(frozen=True)
class Curve:
    """A learning curve to draw: one panel per row of the table, one line per column.

    Attributes:
        name: The key in the records' history.
        title: The title of the vertical axis; the name if empty.
        x: The key of the horizontal values in the history.
        log: Whether the vertical axis is logarithmic.
        x_title: The title of the horizontal axis.
        log_x: Whether the horizontal axis is logarithmic.
    """

    name: str
    title: str = ""
    x: str = "step"
    log: bool = False
    x_title: str = "updates"
    log_x: bool = False


@dataclasses.dataclass(frozen=True)
class Table:
    """One table of the report: a metric, its rows and columns, and the paper's numbers. It is left out without runs.

    Attributes:
        title: The title of the section.
        metric: The name of the metric in ``Outcome.metrics``.
        better: The better values, ``"lower"`` or ``"higher"``; None for a descriptive metric, such as an entropy, which
            has no bold numbers.
        row: The config key whose values are the rows, in ascending order.
        column: The config key whose values are the columns.
        columns: These values, in the order of the table. Runs with other values and columns without runs are left
            out.
        row_title: The heading of the rows; the key if empty.
        stages: The stages whose runs are shown.
        where: Config keys with the values that they must have; other runs are left out.
        digits: The number of decimals.
        paper: The paper's numbers, by row and column, for the cells that it has.
        reference: Another value of the column key, for a last column that is not compared, such as the result of the
            true model.
        baselines: The columns that the others are tested against; if there are none, the best of each row.
        pair: A config key such as the seed. Runs of a row with the same value of it have the same data and are
            compared in pairs. They are also compared with the baselines over all rows together.
        chosen: Config keys to list for each cell, such as the selected learning rate.
        claims: The paper's claims about the columns.
        against: A column to compare all others with, by interquartile means and probabilities of improvement. Use it
            for many runs that are far from normally distributed.
        curves: The learning curves to draw.
        note: A note to print under the table.
        listed: Whether to print a table for each row, with the columns one below the other. Use it for many columns.
        group: A name of tables to summarize together, with their claims paired over all cells. They must have the same
            metric, which is not checked.
    """

    title: str
    metric: str
    better: Direction | None
    row: str
    column: str
    columns: tuple[str, ...]
    row_title: str = ""
    stages: tuple[str, ...] = ("final",)
    where: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    digits: int = 4
    paper: Mapping[Any, Mapping[str, Target]] = dataclasses.field(default_factory=dict)
    reference: str | None = None
    baselines: tuple[str, ...] = ()
    pair: str = ""
    chosen: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    against: str | None = None
    curves: tuple[Curve, ...] = ()
    note: str = ""
    listed: bool = False
    group: str = ""

    @property
    def direction(self) -> Direction:
        """The better values, of a table that compares columns."""
        if self.better is None:
            raise ValueError(
                f"The table {self.title!r} has claims, or a column to compare with, but `better` is None: set it to "
                '"lower" or "higher".'
            )
        return self.better

    @property
    def all_columns(self) -> tuple[str, ...]:
        """The columns, and the reference if there is one."""
        return self.columns if self.reference is None else (*self.columns, self.reference)


# ---- the numbers of a table ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Numbers:
    """A table filled with records."""

    table: Table
    frame: pd.DataFrame
    rows: list[Value]
    samples: dict[Cell, Sample]

    def paper(self, row: Value, column: str) -> Target | None:
        """Return the paper's number, if it has one."""
        return self.table.paper.get(row, {}).get(column)

    @property
    def has_paper(self) -> bool:
        """Whether the paper has a number for any cell with runs."""
        return any(self.paper(*cell) is not None for cell in self.samples)

    @property
    def heading(self) -> str:
        """The heading of the rows."""
        return self.table.row_title or self.table.row

    def row(self, row: Value) -> dict[str, Sample]:
        """Return the columns of a row that have runs."""
        return {column: self.samples[row, column] for column in self.table.columns if (row, column) in self.samples}

    def tests(self) -> dict[tuple[str, Value, str], float]:
        """Return the p-values of all comparisons, by baseline, row and column; two baselines are compared once."""
        p_values: dict[tuple[str, Value, str], float] = {}
        for row in self.rows:
            samples = self.row(row)
            best = statistics.best(samples, self.table.better) if self.table.better is not None else None
            before: set[str] = set()
            for one in self.table.baselines or (best,):
                if one is not None and one in samples:
                    before.add(one)
                    others = (column for column in samples if column not in before)
                    p_values |= {(one, row, other): self._test(row, one, other) for other in others}
        return p_values

    def _test(self, row: Value, one: str, other: str) -> float:
        if not self.table.pair:
            return statistics.welch(self.samples[row, one], self.samples[row, other])
        return statistics.paired_t(*self.pairs([row], one, other))

    def pairs(self, rows: Sequence[Value], one: str, other: str) -> tuple[list[float], list[float]]:
        """Return the paired runs of two columns in these rows; runs without a partner are left out."""
        at = [f"config.{self.table.row}", f"config.{self.table.pair}"]
        numbers = self.frame.set_index(at)[[f"config.{self.table.column}", f"metrics.{self.table.metric}"]]
        by_column = [numbers[numbers.iloc[:, 0] == column].iloc[:, 1] for column in (one, other)]
        both = pd.concat(by_column, axis=1, join="inner").dropna()
        both = both[both.index.get_level_values(0).isin(rows)]
        return both.iloc[:, 0].tolist(), both.iloc[:, 1].tolist()


def done_records(statuses: Iterable[StageStatus], stages: Sequence[str] | None = None) -> list[Record]:
    """Return the records of these stages, or of all, each once."""
    chosen = [status for status in statuses if stages is None or status.stage.name in stages]
    return list({record.id: record for status in chosen for record in status.done}.values())


def fill(table: Table, statuses: Iterable[StageStatus]) -> Numbers:
    """Fill a table with its records: those of its stages and columns that have its metric and its config values."""
    done = (record for record in done_records(statuses, table.stages) if table.metric in record.metrics)
    shown = (record for record in done if table.where.items() <= record.config.items())
    frame = records.frame(record for record in shown if record.config.get(table.column) in table.all_columns)
    if frame.empty:
        return Numbers(table, frame, [], {})
    cells = frame.groupby([f"config.{table.row}", f"config.{table.column}"])[f"metrics.{table.metric}"]
    samples = {(_plain(row), str(column)): Sample.of(list(values)) for (row, column), values in cells}
    present = tuple(column for column in table.columns if any(column == of for _, of in samples))
    filled = dataclasses.replace(table, columns=present or table.columns)  # a small preset may lack some columns
    return Numbers(filled, frame, sorted({row for row, _ in samples}, key=_order), samples)


def _plain(value: Any) -> Value:
    plain: Value = value.item() if isinstance(value, np.generic) else value
    return plain


def _order(value: Value) -> tuple[bool, float, str]:
    return (isinstance(value, str), 0.0 if isinstance(value, str) else value, str(value))
