"""The text of table cells."""

from __future__ import annotations

import math

import numpy as np

from catnat_experiments.report import statistics
from catnat_experiments.report.tables import Numbers, Value


def cell_text(numbers: Numbers, row: Value, column: str, *, bold: bool) -> str:
    """Return the mean ± standard deviation, with the paper's numbers in brackets."""
    table, sample = numbers.table, numbers.samples.get((row, column))
    if sample is None:
        return "-"
    digits, paper = table.digits, numbers.paper(row, column)
    text = f"{sample.mean:.{digits}f}" if sample.values else "all diverged"
    text += "" if math.isnan(sample.std) else f" ± {sample.std:.{digits}f}"
    text = f"**{text}**" if bold else text
    if paper is not None:
        spread = "" if math.isnan(paper.std) else f" ± {paper.std:.{digits}f}"
        text += f" ({paper.mean:.{digits}f}{spread}{'*' * paper.best})"
    return text + (f", {sample.diverged} diverged" if sample.diverged and sample.values else "")


def body_cells(numbers: Numbers) -> list[list[str]]:
    """Return the body of the main table."""
    body = []
    for row in numbers.rows:
        strong = bold_columns(numbers, row)
        cells = [cell_text(numbers, row, column, bold=column in strong) for column in numbers.table.all_columns]
        body.append([str(row), *cells])
    return body


def bold_columns(numbers: Numbers, row: Value) -> set[str]:
    """Return the columns of a row that are printed in bold."""
    better = numbers.table.better
    return statistics.bold(numbers.row(row), better) if better is not None else set()


def p_text(p_value: float) -> str:
    """Return a p-value with two digits.

    >>> p_text(0.0312), p_text(1e-9), p_text(float("nan"))
    ('0.031', '< 0.0001', 'no test')
    """
    if math.isnan(p_value):
        return "no test"
    return "< 0.0001" if p_value < 1e-4 else f"{p_value:.2g}"


def number_text(value: float) -> str:
    """Return a hyperparameter as text: an integer with all digits, other numbers with three.

    >>> number_text(0.0073410782), number_text(0.05), number_text(131072)
    ('0.00734', '0.05', '131072')
    """
    if float(value).is_integer():
        return f"{value:.0f}"
    return np.format_float_positional(value, precision=3, fractional=False, trim="-")
