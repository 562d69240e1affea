"""The Markdown tables of a page: means, p-values and selected hyperparameters, with explanations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from catnat_experiments.report import statistics
from catnat_experiments.report.cells import body_cells, bold_columns, number_text, p_text
from catnat_experiments.report.tables import Numbers, Value


def markdown_table(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Return a header and a body as Markdown."""
    lines = [header, ["---"] * len(header), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main_table(numbers: Numbers) -> str:
    """Return the table of means, standard deviations and the paper's numbers."""
    return markdown_table([numbers.heading, *numbers.table.all_columns], body_cells(numbers))


_BOLD = (
    "Bold, as in the paper: the best mean of a row and all that Welch's t-test does not find significantly worse at "
    "5%, each test taken alone."
)


def legend(numbers: Numbers) -> str:
    """Return the sentences that explain the main table: its numbers, and those in bold."""
    samples = [sample for row in numbers.rows for sample in numbers.row(row).values()]
    sizes = sorted({len(sample.values) + sample.diverged for sample in samples})
    repeats = " to ".join(str(size) for size in dict.fromkeys([*sizes[:1], *sizes[-1:]])) or "no"
    papers = "; in brackets the paper's, with a star where it is bold there" if numbers.has_paper else ""
    told = f"Mean ± standard deviation (n - 1) over {repeats} run{'s' * (repeats != '1')} a cell{papers}."
    if numbers.table.better is None:
        return told
    plain = [row for row in numbers.rows if not bold_columns(numbers, row)]
    sentences = [f"{numbers.table.better.capitalize()} is better.", told]
    if len(plain) < len(numbers.rows):
        sentences.append(_BOLD)
    if plain:
        where = f" at {numbers.heading} {', '.join(map(str, plain))}" if len(plain) < len(numbers.rows) else ""
        sentences.append(f"Nothing is bold{where}: a test takes two columns with two runs each.")
    return " ".join(sentences)


class _Tests:
    """The p-values of a table as text: corrected, and in brackets without the correction."""

    def __init__(self, numbers: Numbers) -> None:
        self._plain = numbers.tests()
        self._corrected = statistics.holm(self._plain)
        self.possible = not all(math.isnan(p) for p in self._plain.values())
        self._samples = numbers.samples
        self._of = f" of paired t-tests, by {numbers.table.pair}," if numbers.table.pair else ""

    def text(self, one: str | None, row: Value, column: str) -> str:
        """Return the p-value of a cell against a baseline, or against the best of its row (None)."""
        keys = [(one, row, column), (column, row, one)]
        if one is None:
            keys = [key for key in self._plain if key[1:] == (row, column)]
        for key in keys:
            if key in self._plain:
                return f"{p_text(self._corrected[key])} ({p_text(self._plain[key])})"
        return (one or "best") if one in (None, column) and (row, column) in self._samples else "-"

    def legend(self, one: str | None) -> str:
        """Return the sentence that explains the p-values."""
        return (
            f"p-values{self._of} against {one or 'the best of the row'}, corrected by Holm's method for all the "
            "comparisons of the table; in brackets without the correction."
        )


def p_tables(numbers: Numbers) -> list[str]:
    """Return a table of p-values for each baseline."""
    table, tests = numbers.table, _Tests(numbers)
    if table.better is None and not table.baselines:
        return []
    if not tests.possible:
        return ["No test is possible: a test needs two runs in each cell."]
    parts = []
    for one in table.baselines or (None,):
        body = [[str(row), *(tests.text(one, row, column) for column in table.columns)] for row in numbers.rows]
        parts.append(tests.legend(one) + "\n\n" + markdown_table([numbers.heading, *table.columns], body))
    return parts


def row_tables(numbers: Numbers) -> list[str]:
    """Return a table for every row: the columns with their p-values and selected hyperparameters."""
    table, tests = numbers.table, _Tests(numbers)
    tested = table.baselines if tests.possible else ()
    header = [table.column, "mean", *(f"p against {one}" for one in tested), *table.chosen]
    parts = [
        markdown_table(
            header if len(numbers.rows) == 1 else [f"{row}: {header[0]}", *header[1:]],
            [
                [column, cell, *(tests.text(one, row, column) for one in tested), *_chosen(numbers, row, column)]
                for column, cell in zip(table.all_columns, cells, strict=True)
            ],
        )
        for row, (_, *cells) in zip(numbers.rows, body_cells(numbers), strict=True)
    ]
    return [*parts, *([tests.legend(" and ".join(tested))] if tested else [])]


def _chosen(numbers: Numbers, row: Value, column: str) -> list[str]:
    """Return the values in the configs of a cell's runs, for each key to list."""
    frame, table = numbers.frame, numbers.table
    runs = frame[(frame[f"config.{table.row}"] == row) & (frame[f"config.{table.column}"] == column)]
    return [
        " / ".join(number_text(value) for value in sorted(set(runs[f"config.{key}"].dropna().tolist()))) or "-"
        for key in table.chosen
        if f"config.{key}" in runs  # some keys are in the configs of a few presets only
    ]


def chosen_table(numbers: Numbers) -> str:
    """Return the hyperparameters selected for each cell; empty if none are to be listed."""
    table = numbers.table
    if not table.chosen:
        return ""

    def cell(row: Value, column: str) -> str:
        return ", ".join(_chosen(numbers, row, column)) if (row, column) in numbers.samples else "-"

    body = [[str(row), *(cell(row, column) for column in table.columns)] for row in numbers.rows]
    return f"Chosen {', '.join(table.chosen)}:\n\n" + markdown_table([numbers.heading, *table.columns], body)
