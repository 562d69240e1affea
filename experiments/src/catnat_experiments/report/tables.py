"""How an experiment describes its tables, and the tables filled with records."""

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


# ---- how an experiment describes its tables --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Claim:
    """The paper claims that one column is better than another.

    Attributes:
        better: The column that is said to be better.
        worse: The column that it is compared with.
        rows: The rows that the claim is about; None for all.
    """

    better: str
    worse: str
    rows: tuple[Value, ...] | None = None

    def is_about(self, row: Value) -> bool:
        """Whether the paper claims it for a row."""
        return self.rows is None or row in self.rows


@dataclasses.dataclass(frozen=True)
class Curve:
    """A learning curve to draw: one panel per row of the table, one line per column.

    Attributes:
        name: The key in the records' history.
        title: For the vertical axis; the name if empty.
        x: The key of the horizontal values in the history.
        log: Whether the vertical axis is logarithmic.
        x_title: For the horizontal axis.
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
    """One table of the report: a metric, its rows and columns, and what the paper says. Without runs it is left out.

    Attributes:
        title: Of the section.
        metric: The name in ``Outcome.metrics``.
        better: Whether ``"lower"`` or ``"higher"`` values are better; None for a metric that describes, such as an
            entropy: nothing is bold then.
        row: The config key whose values are the rows, in ascending order.
        column: The config key whose values are the columns.
        columns: Those values, in the order of the table. Runs with any other value are left out, and so are columns
            without any run.
        row_title: The heading of the rows; the key if empty.
        stages: The stages whose runs are shown.
        where: Config keys and the values that they must have: other runs are left out.
        digits: Decimals in the table.
        paper: The paper's numbers: row -> column -> target, for as many as it has.
        reference: Another value of the column key: a last column that takes no part in the comparison, such as what the
            true model reaches.
        baselines: The columns that the others are tested against; if there are none, the best of each row.
        pair: A config key such as the seed: runs of a row with the same value of it, which saw the same data, are
            compared in pairs, and with the baselines over all rows together as well.
        chosen: Config keys to list for each cell, such as the learning rate that was selected.
        claims: What the paper claims about the columns.
        against: A column to compare all others with, by interquartile means and probabilities of improvement: for
            tables of many runs that are far from normally distributed.
        curves: Learning curves to draw.
        note: A sentence to print under the table.
        listed: Print each row as a table of its own, with the columns one below the other: for many columns.
        group: Tables with one group and one metric are summarized together: their claims, paired over all cells.
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
        """Which values are better, in a table where columns are judged."""
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
        """The paper's number, if it has one."""
        return self.table.paper.get(row, {}).get(column)

    @property
    def has_paper(self) -> bool:
        """Whether the paper has a number for any cell with runs."""
        return any(self.paper(*cell) is not None for cell in self.samples)

    @property
    def heading(self) -> str:
        """What the rows are."""
        return self.table.row_title or self.table.row

    def row(self, row: Value) -> dict[str, Sample]:
        """The columns of a row that have runs."""
        return {column: self.samples[row, column] for column in self.table.columns if (row, column) in self.samples}

    def tests(self) -> dict[tuple[str, Value, str], float]:
        """The p-values of all comparisons, by baseline, row and column; of two baselines once."""
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
        """The runs of two columns that are pairs, in these rows; those without a partner are left out."""
        at = [f"config.{self.table.row}", f"config.{self.table.pair}"]
        numbers = self.frame.set_index(at)[[f"config.{self.table.column}", f"metrics.{self.table.metric}"]]
        by_column = [numbers[numbers.iloc[:, 0] == column].iloc[:, 1] for column in (one, other)]
        both = pd.concat(by_column, axis=1, join="inner").dropna()
        both = both[both.index.get_level_values(0).isin(rows)]
        return both.iloc[:, 0].tolist(), both.iloc[:, 1].tolist()


def done_records(statuses: Iterable[StageStatus], stages: Sequence[str] | None = None) -> list[Record]:
    """The records of these stages, or of all, each once."""
    chosen = [status for status in statuses if stages is None or status.stage.name in stages]
    return list({record.id: record for status in chosen for record in status.done}.values())


def fill(table: Table, statuses: Iterable[StageStatus]) -> Numbers:
    """Collect the records that a table is about: its stages, its columns, its metric."""
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
