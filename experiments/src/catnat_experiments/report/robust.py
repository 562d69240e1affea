"""Comparisons of many runs with any distribution: interquartile means and probabilities of improvement."""

from __future__ import annotations

import math
from collections.abc import Sequence

from catnat_experiments.report import statistics
from catnat_experiments.report.cells import p_text
from catnat_experiments.report.markdown import markdown_table
from catnat_experiments.report.statistics import Sample
from catnat_experiments.report.tables import Numbers, Value


def robust(numbers: Numbers) -> list[str]:
    """Return interquartile means, and probabilities of improvement and tests of all columns against one.

    The last row of the tables is for all rows together. Its interquartile means are in units of the compared column's
    mean in each row.
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
            scales = [abs(numbers.samples[row, base].mean) or 1.0 for row in rows]  # keeps the order of the runs
            samples = [Sample.of([x / scale for x in of.values]) for of, scale in zip(samples, scales, strict=True)]
        return _interval_text(statistics.interquartile_mean(samples), table.digits)

    def probability(name: str, column: str) -> str:
        pairs = [(numbers.samples.get((row, column), Sample(())), numbers.samples[row, base]) for row in lines[name]]
        return _interval_text(statistics.probability_of_improvement(pairs, table.direction), 2)

    return [
        "Interquartile means, the mean of the middle half of the runs, with 95% intervals from a bootstrap that is "
        f"stratified by {numbers.heading}; all together in units of {base}'s means.",
        markdown_table([numbers.heading, *table.columns], [[n, *(mean(n, of) for of in table.columns)] for n in lines]),
        f"The probability that a run is better than one of {base}, with the same intervals; 0.5 is no difference.",
        markdown_table([numbers.heading, *others], [[n, *(probability(n, of) for of in others)] for n in lines]),
        *_differences(numbers, base, others),
    ]


def _interval_text(interval: statistics.Interval, digits: int) -> str:
    if math.isnan(interval.value):
        return "-"
    return f"{interval.value:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def mann_whitney_tests(numbers: Numbers, base: str) -> dict[tuple[str, Value], float]:
    """Return the p-values of all columns against one, by column and row, corrected by Holm's method for the table."""
    return statistics.holm(
        {
            (column, row): statistics.mann_whitney(numbers.samples[row, column], numbers.samples[row, base])
            for column in numbers.table.columns
            for row in numbers.rows
            if column != base and {(row, column), (row, base)} <= set(numbers.samples)
        }
    )


def _differences(numbers: Numbers, base: str, others: Sequence[str]) -> list[str]:
    """Return a line for each column: the rows in which it is significantly better or worse than the compared column."""
    corrected = mann_whitney_tests(numbers, base)
    lines = ["Results of the Mann-Whitney test, corrected by Holm's method for all comparisons of the table:"]
    for column in others:
        told = []
        for row in (row for of, row in corrected if of == column):
            pair = numbers.samples[row, column], numbers.samples[row, base]
            probability = statistics.probability_of_improvement([pair], numbers.table.direction).value
            p_value = corrected[column, row]
            real = ("better" if probability > 0.5 else "worse") if p_value < statistics.LEVEL else "no difference shown"
            told.append(f"{row} {real} (p: {p_text(p_value)})")
        if told:
            lines.append(f"- **{column}** against {base}: {'; '.join(told)}.")
    return ["\n".join(lines)] if len(lines) > 1 else []
