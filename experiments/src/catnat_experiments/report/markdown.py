"""From records to a page: tables as in the paper, the paper's numbers beside ours, tests, plots, and what they say.

An experiment describes its tables with :class:`Table` objects; everything here is made from those and the records.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table as RichTable

from catnat_experiments.engine import records
from catnat_experiments.engine.records import Record
from catnat_experiments.engine.stages import Standing
from catnat_experiments.report import statistics
from catnat_experiments.report.statistics import Direction, Sample

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
        x: The key of the horizontal values in the history; None for ``<name>.step``, which the keeper's scalars have.
        log: Whether the vertical axis is logarithmic.
        x_title: For the horizontal axis.
        log_x: Whether the horizontal axis is logarithmic.
    """

    name: str
    title: str = ""
    x: str | None = None
    log: bool = False
    x_title: str = "step"
    log_x: bool = False


@dataclasses.dataclass(frozen=True)
class Table:
    """One table of the report: a metric, its rows and columns, and what the paper says about it.

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
        optional: Leave the table out of the page where it has no runs at all.
        digits: Decimals in the table.
        paper: The paper's numbers: row -> column -> number, for as many as it has.
        reference: Another value of the column key: a last column that takes no part in the comparison, such as what the
            true model reaches.
        baselines: The columns that the others are tested against; if there are none, the best of each row.
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
    optional: bool = False
    digits: int = 4
    paper: Mapping[Any, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    reference: str | None = None
    baselines: tuple[str, ...] = ()
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

    def paper(self, row: Value, column: str) -> float | None:
        """The paper's number, if it has one."""
        return self.table.paper.get(row, {}).get(column)

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
                    p_values |= {(one, row, other): statistics.welch(samples[one], samples[other]) for other in others}
        return p_values


def done_records(standings: Iterable[Standing], stages: Sequence[str] | None = None) -> list[Record]:
    """The records of these stages, or of all, each once."""
    chosen = [standing for standing in standings if stages is None or standing.stage.name in stages]
    return list({record.id: record for standing in chosen for record in standing.done}.values())


def fill(table: Table, standings: Iterable[Standing]) -> Numbers:
    """Collect the records that a table is about: its stages, its columns, its metric."""
    done = (record for record in done_records(standings, table.stages) if table.metric in record.metrics)
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


# ---- Markdown --------------------------------------------------------------------------------------------------------


def write(name: str, preset: str, standings: Sequence[Standing], tables: Sequence[Table], directory: Path) -> Path:
    """Write ``README.md`` and its plots into a directory; returns the page's path."""
    directory.mkdir(parents=True, exist_ok=True)
    parts = [f"# {name}, preset {preset}", _origin(name, preset, standings)]
    filled = [fill(table, standings) for table in tables]
    parts += paired_claims(filled)
    for numbers in filled:
        parts += _section(numbers, standings, directory)
    page = directory / "README.md"
    records.write_atomically(page, ("\n\n".join(part for part in parts if part) + "\n").encode())
    return page


def _origin(name: str, preset: str, standings: Sequence[Standing]) -> str:
    done = done_records(standings)
    if not done:
        return "No run is finished yet."
    hours = sum(record.seconds for record in done) / 3600
    made = Counter(", ".join(f"{key} {value}" for key, value in sorted(record.versions.items())) for record in done)
    commits = sorted({record.commit for record in done if record.commit})
    return (
        f"{len(done)} runs, {hours:.2f} core-hours. Made with {'; or '.join(made)}"
        f"{', at commit ' + ', '.join(commits) if commits else ''}. "
        f"This page: `catnat-experiments report {name} --preset {preset}`."
    )


def _section(numbers: Numbers, standings: Sequence[Standing], directory: Path) -> list[str]:
    from catnat_experiments.report import plots  # matplotlib takes a second to import

    table = numbers.table
    parts = [f"## {table.title}", _preliminary(table, standings)]
    if not numbers.rows:
        return [] if table.optional else [*parts, "No record for this table yet."]
    if table.listed:
        parts += [*_lists(numbers), _legend(numbers), table.note]
    else:
        parts += [_main_table(numbers), _legend(numbers), table.note, *_p_tables(numbers), _chosen_table(numbers)]
    parts += [closeness(numbers), *claims(numbers), *robust(numbers)]
    images = {table.title: plots.plot_table(numbers, directory)}
    drawn = {
        f"{table.title}: {curve.title or curve.name}": plots.plot_curve(numbers, curve, directory)
        for curve in table.curves
    }
    images |= {title: path for title, path in drawn.items() if path is not None}
    return [*parts, *(f"![{title}]({path.name})" for title, path in images.items())]


def _preliminary(table: Table, standings: Sequence[Standing]) -> str:
    shown = [standing for standing in standings if standing.stage.name in table.stages]
    missing = sum(standing.missing for standing in shown)
    if any(standing.done and not standing.settled for standing in shown):
        return (
            "**Preliminary: a stage before this table's is not complete, so other runs may be selected in the end; "
            f"about {missing} runs of this table are missing.**"
        )
    return f"**Preliminary: {missing} runs of this table are missing.**" if missing else ""


def _markdown(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell_text(numbers: Numbers, row: Value, column: str, marks: tuple[str, str] = ("", "")) -> str:
    """Mean ± standard deviation between the marks of bold or nothing, and the paper's number in brackets."""
    table, sample = numbers.table, numbers.samples.get((row, column))
    if sample is None:
        return "-"
    digits, paper = table.digits, numbers.paper(row, column)
    text = f"{sample.mean:.{digits}f}" if sample.values else "all diverged"
    text += "" if math.isnan(sample.std) else f" ± {sample.std:.{digits}f}"
    text = f"{marks[0]}{text}{marks[1]}"
    text += f" ({paper:.{digits}f})" if paper is not None else ""
    return text + (f", {sample.diverged} diverged" if sample.diverged and sample.values else "")


def _main_table(numbers: Numbers) -> str:
    return _markdown([numbers.heading, *numbers.table.all_columns], _cells(numbers, "**", "**"))


def _cells(numbers: Numbers, opening: str, closing: str) -> list[list[str]]:
    """The body of the main table, with the marks around bold."""
    body = []
    for row in numbers.rows:
        strong = _bold(numbers, row)
        marks = [(opening, closing) if column in strong else ("", "") for column in numbers.table.all_columns]
        cells = [cell_text(numbers, row, *entry) for entry in zip(numbers.table.all_columns, marks, strict=True)]
        body.append([str(row), *cells])
    return body


_BOLD = (
    "Bold, as in the paper: the best mean of a row and all that Welch's t-test does not find significantly worse at "
    "5%, each test taken alone."
)


def _bold(numbers: Numbers, row: Value) -> set[str]:
    better = numbers.table.better
    return statistics.bold(numbers.row(row), better) if better is not None else set()


def _legend(numbers: Numbers) -> str:
    samples = [sample for row in numbers.rows for sample in numbers.row(row).values()]
    sizes = sorted({len(sample.values) + sample.diverged for sample in samples})
    repeats = " to ".join(str(size) for size in dict.fromkeys([*sizes[:1], *sizes[-1:]])) or "no"
    from_paper = any(numbers.paper(*cell) is not None for cell in numbers.samples)
    papers = "; in brackets the paper's number" if from_paper else ""
    told = f"Mean ± standard deviation (n - 1) over {repeats} run{'s' * (repeats != '1')} a cell{papers}."
    if numbers.table.better is None:
        return told
    plain = [row for row in numbers.rows if not _bold(numbers, row)]
    sentences = [f"{numbers.table.better.capitalize()} is better.", told]
    if len(plain) < len(numbers.rows):
        sentences.append(_BOLD)
    if plain:
        where = f" at {numbers.heading} {', '.join(map(str, plain))}" if len(plain) < len(numbers.rows) else ""
        sentences.append(f"Nothing is bold{where}: a test takes two columns with two runs each.")
    return " ".join(sentences)


class _Tests:
    """The p-values of a table as text: corrected, and in brackets as they are."""

    def __init__(self, numbers: Numbers) -> None:
        self._plain = numbers.tests()
        self._corrected = statistics.holm(self._plain)
        self.possible = not all(math.isnan(p) for p in self._plain.values())
        self._table, self._samples = numbers.table, numbers.samples

    def text(self, one: str | None, row: Value, column: str) -> str:
        """Of a cell against a baseline, or against the best of its row (None)."""
        keys = [(one, row, column), (column, row, one)]
        if one is None:
            keys = [key for key in self._plain if key[1:] == (row, column)]
        for key in keys:
            if key in self._plain:
                return f"{p_text(self._corrected[key])} ({p_text(self._plain[key])})"
        return (one or "best") if one in (None, column) and (row, column) in self._samples else "-"

    def legend(self, one: str | None) -> str:
        """What the numbers are."""
        return (
            f"p-values against {one or 'the best of the row'}, corrected by Holm's method for all the comparisons of "
            "the table; in brackets without the correction."
        )


def _p_tables(numbers: Numbers) -> list[str]:
    table, tests = numbers.table, _Tests(numbers)
    if table.better is None and not table.baselines:
        return []
    if not tests.possible:
        return ["No test is possible: that takes two runs a cell."]
    parts = []
    for one in table.baselines or (None,):
        body = [[str(row), *(tests.text(one, row, column) for column in table.columns)] for row in numbers.rows]
        parts.append(tests.legend(one) + "\n\n" + _markdown([numbers.heading, *table.columns], body))
    return parts


def _lists(numbers: Numbers) -> list[str]:
    """Every row as a table of its own: the columns with their p-values and what was chosen for them."""
    table, tests = numbers.table, _Tests(numbers)
    tested = table.baselines if tests.possible else ()
    header = [table.column, "mean", *(f"p against {one}" for one in tested), *table.chosen]
    parts = [
        _markdown(
            header if len(numbers.rows) == 1 else [f"{row}: {header[0]}", *header[1:]],
            [
                [column, cell, *(tests.text(one, row, column) for one in tested), *_chosen(numbers, row, column)]
                for column, cell in zip(table.all_columns, cells, strict=True)
            ],
        )
        for row, (_, *cells) in zip(numbers.rows, _cells(numbers, "**", "**"), strict=True)
    ]
    return [*parts, *([tests.legend(" and ".join(tested))] if tested else [])]


def p_text(p_value: float) -> str:
    """A p-value to two digits.

    >>> p_text(0.0312), p_text(1e-9), p_text(float("nan"))
    ('0.031', '< 0.0001', 'no test')
    """
    if math.isnan(p_value):
        return "no test"
    return "< 0.0001" if p_value < 1e-4 else f"{p_value:.2g}"


def number_text(value: float) -> str:
    """A hyperparameter: three digits of a fraction, all of a whole number.

    >>> number_text(0.0073410782), number_text(0.05), number_text(131072)
    ('0.00734', '0.05', '131072')
    """
    if float(value).is_integer():
        return f"{value:.0f}"
    return np.format_float_positional(value, precision=3, fractional=False, trim="-")


def _chosen(numbers: Numbers, row: Value, column: str) -> list[str]:
    """The values that the runs of a cell have of each key to be listed."""
    frame, table = numbers.frame, numbers.table
    runs = frame[(frame[f"config.{table.row}"] == row) & (frame[f"config.{table.column}"] == column)]
    return [
        " / ".join(number_text(value) for value in sorted(set(runs[f"config.{key}"].tolist()))) or "-"
        for key in table.chosen
    ]


def _chosen_table(numbers: Numbers) -> str:
    table = numbers.table
    if not table.chosen:
        return ""

    def cell(row: Value, column: str) -> str:
        return ", ".join(_chosen(numbers, row, column)) if (row, column) in numbers.samples else "-"

    body = [[str(row), *(cell(row, column) for column in table.columns)] for row in numbers.rows]
    return f"Chosen {', '.join(table.chosen)}:\n\n" + _markdown([numbers.heading, *table.columns], body)


# ---- many runs, any distribution -------------------------------------------------------------------------------------


def robust(numbers: Numbers) -> list[str]:
    """Interquartile means, and all columns against one: probabilities of improvement, and which differences are real.

    The last row is all rows together, on a common scale: in units of the mean of the column compared with.
    """
    table, base = numbers.table, numbers.table.against
    rows = [row for row in numbers.rows if base in numbers.row(row)]
    if base is None or not rows:
        return []
    others = [column for column in table.columns if column != base]
    lines: dict[str, list[Value]] = {str(row): [row] for row in rows} | ({"all": rows} if len(rows) > 1 else {})

    def mean(name: str, column: str) -> str:
        samples = [numbers.samples.get((row, column), Sample(())) for row in lines[name]]
        if name == "all":
            scales = [numbers.samples[row, base].mean for row in rows]
            samples = [Sample.of([x / scale for x in of.values]) for of, scale in zip(samples, scales, strict=True)]
        return _interval_text(statistics.interquartile_mean(samples), table.digits)

    def chance(name: str, column: str) -> str:
        pairs = [(numbers.samples.get((row, column), Sample(())), numbers.samples[row, base]) for row in lines[name]]
        return _interval_text(statistics.probability_of_improvement(pairs, table.direction), 2)

    return [
        "Interquartile means, the mean of the middle half of the runs, with 95% intervals from a bootstrap that is "
        f"stratified by {numbers.heading}; all together in units of {base}'s means.",
        _markdown([numbers.heading, *table.columns], [[n, *(mean(n, of) for of in table.columns)] for n in lines]),
        f"The probability that a run is better than one of {base}, with the same intervals; 0.5 is no difference.",
        _markdown([numbers.heading, *others], [[n, *(chance(n, of) for of in others)] for n in lines]),
        *_differences(numbers, base, rows, others),
    ]


def _interval_text(interval: statistics.Interval, digits: int) -> str:
    if math.isnan(interval.value):
        return "-"
    return f"{interval.value:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def _differences(numbers: Numbers, base: str, rows: Sequence[Value], others: Sequence[str]) -> list[str]:
    """In words, one line a column: where it differs from the column compared with, and where that is not shown."""
    p_values = {
        (column, row): statistics.mann_whitney(numbers.samples[row, column], numbers.samples[row, base])
        for column in others
        for row in rows
        if (row, column) in numbers.samples
    }
    corrected = statistics.holm(p_values)
    lines = ["Which differences are real, by the Mann-Whitney test with Holm's correction for all of the table:"]
    for column in others:
        told = []
        for row in (row for of, row in corrected if of == column):
            pair = numbers.samples[row, column], numbers.samples[row, base]
            chance = statistics.probability_of_improvement([pair], numbers.table.direction).value
            p_value = corrected[column, row]
            real = ("better" if chance > 0.5 else "worse") if p_value < statistics.LEVEL else "no difference shown"
            told.append(f"{row} {real} (p: {p_text(p_value)})")
        if told:
            lines.append(f"- **{column}** against {base}: {'; '.join(told)}.")
    return ["\n".join(lines)] if len(lines) > 1 else []


# ---- words -----------------------------------------------------------------------------------------------------------


def closeness(numbers: Numbers) -> str:
    """How far our means are from the paper's numbers, in a sentence; empty if the paper has none."""
    apart: dict[str, list[float]] = {}
    for (row, column), sample in numbers.samples.items():
        paper = numbers.paper(row, column)
        if paper and sample.values:
            apart.setdefault(column, []).append(abs(sample.mean / paper - 1))
    if not apart:
        return ""
    told = ", ".join(f"{column} {max(apart[column]):.1%}" for column in numbers.table.all_columns if column in apart)
    return f"The largest differences between our means and the paper's numbers, by column: {told}."


_KINDS = {
    "significantly better than": "reproduced",
    "not significantly different from": "not significant",
    "significantly worse than": "did not reproduce: significantly the other way round",
    "cannot be tested against": "cannot be tested",
}
_NO_RUNS, _NO_CLAIM = "no runs for it", "the paper makes no such claim"


def claims(numbers: Numbers) -> list[str]:
    """One paragraph per claim of the paper: where it reproduced, where it did not, where nothing is significant.

    And for what is not tested why: a run of either column is missing, or the paper does not claim it for that row. A
    claim about two columns that the table does not have is left out.
    """
    table = numbers.table
    p_values: dict[tuple[Claim, Value], float] = {}
    for claim in table.claims:
        for row in numbers.rows:
            samples = numbers.row(row)
            if claim.is_about(row) and {claim.better, claim.worse} <= set(samples):
                p_values[claim, row] = statistics.welch(samples[claim.better], samples[claim.worse])
    corrected = statistics.holm(p_values)
    texts = []
    for claim in table.claims:
        if not {claim.better, claim.worse} & set(table.columns):
            continue  # of another preset
        found: dict[str, list[str]] = {}
        for row in numbers.rows:
            if (claim, row) in corrected:
                samples, p_value = numbers.row(row), corrected[claim, row]
                words = statistics.verdict(samples[claim.better], samples[claim.worse], table.direction, p_value)
                found.setdefault(_KINDS[words], []).append(f"{row} (p: {p_text(p_value)})")
            else:
                found.setdefault(_NO_RUNS if claim.is_about(row) else _NO_CLAIM, []).append(str(row))
        told = "; ".join(
            f"{kind} at {numbers.heading} {', '.join(found[kind])}"
            for kind in (*_KINDS.values(), _NO_RUNS, _NO_CLAIM)
            if kind in found
        )
        texts.append(f"The paper's claim that **{claim.better} is better than {claim.worse}**: {told}.")
    if texts:
        texts.insert(
            0, "Claims are tested with Welch's t-test, corrected by Holm's method for all the claims of the table."
        )
    return texts


def paired_claims(filled: Sequence[Numbers]) -> list[str]:
    """For each group of tables a section: the claims over all cells of the group that have both columns."""
    groups: dict[str, list[Numbers]] = {}
    for numbers in filled:
        if numbers.table.group and numbers.rows:
            groups.setdefault(numbers.table.group, []).append(numbers)
    return [part for group, members in groups.items() for part in _paired_section(group, members)]


def _paired_section(group: str, members: Sequence[Numbers]) -> list[str]:
    direction = members[0].table.direction
    found: dict[Claim, statistics.Paired] = {}
    for claim in dict.fromkeys(claim for numbers in members for claim in numbers.table.claims):
        rows = [numbers.row(row) for numbers in members for row in numbers.rows if claim.is_about(row)]
        means = [
            (row[claim.better].mean, row[claim.worse].mean) for row in rows if {claim.better, claim.worse} <= set(row)
        ]
        if len(means) > 1:
            better, worse = zip(*means, strict=True)
            found[claim] = statistics.paired(better, worse, direction)
    if not found:
        return []
    corrected = statistics.holm({claim: result.wilcoxon for claim, result in found.items()})
    signs = statistics.holm({claim: result.sign for claim, result in found.items()})
    body = [
        [
            f"{claim.better} against {claim.worse}",
            f"{result.ahead} of {result.cells}",
            f"{result.median:+.{members[0].table.digits}f}",
            p_text(corrected[claim]),
            p_text(signs[claim]),
        ]
        for claim, result in found.items()
    ]
    return [
        f"## {group}: all cells together",
        "Means of a cell are one pair each. p-values of Wilcoxon's signed-rank test and of the sign test, two-sided, "
        "each corrected by Holm's method for the comparisons of this table.",
        _markdown(["", "better in", "median difference", "Wilcoxon", "sign test"], body),
    ]


# ---- the terminal ----------------------------------------------------------------------------------------------------


def rich_table(numbers: Numbers) -> RichTable:
    """The table for a terminal."""
    table = numbers.table
    judged = f" ({table.better} is better)" if table.better is not None else ""
    shown = RichTable(title=table.title + judged, title_justify="left")
    for heading in [numbers.heading, *table.all_columns]:
        shown.add_column(heading)
    for cells in _cells(numbers, "[bold]", "[/bold]"):
        shown.add_row(*cells)
    return shown
