"""Comparisons over all cells: the tables of a group in one, differences from the paper, and tests over the cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from catnat_experiments.report import statistics
from catnat_experiments.report.cells import cell_text, p_text
from catnat_experiments.report.markdown import markdown_table
from catnat_experiments.report.tables import Numbers


def paired_claims(filled: Sequence[Numbers]) -> list[str]:
    """Return a section for each group of tables: its cells, the paper's, and its claims over all cells."""
    groups: dict[str, list[Numbers]] = {}
    for numbers in filled:
        if numbers.table.group and numbers.rows:
            groups.setdefault(numbers.table.group, []).append(numbers)
    return [part for group, members in groups.items() for part in _group_section(group, members)]


def _group_section(group: str, members: Sequence[Numbers]) -> list[str]:
    """Return a section over all cells, also those without a claim, because a selection would favour the claims."""
    direction, digits = members[0].table.direction, members[0].table.digits
    columns = [name for name in members[0].table.columns if any(name in each.table.columns for each in members)]
    short = _short(columns)
    found: dict[str, statistics.Paired] = {}
    for better, worse in dict.fromkeys((claim.better, claim.worse) for each in members for claim in each.table.claims):
        rows = [numbers.row(row) for numbers in members for row in numbers.rows]
        means = [(row[better].mean, row[worse].mean) for row in rows if {better, worse} <= set(row)]
        if len(means) > 1:
            ours, theirs = zip(*means, strict=True)
            found[f"{short[better]} against {short[worse]}"] = statistics.paired(ours, theirs, direction)
    tests = _paired_table("The two means of a cell are one pair.", found, digits)
    return [f"## {group}: all cells together", *_cells(group, members, short), *tests] if tests else []


def _short(columns: Sequence[str]) -> dict[str, str]:
    """Return the names of columns without the ending that all have, such as the kind of training."""
    ends = {name.partition("+")[2] for name in columns}
    return {name: name.partition("+")[0] if len(ends) == 1 else name for name in columns}


def _cells(group: str, members: Sequence[Numbers], short: Mapping[str, str]) -> list[str]:
    """Return a row for every cell, and the differences of the columns from the paper's numbers."""
    body: list[list[str]] = []
    apart: dict[str, list[float]] = {}
    for numbers in members:
        for row in numbers.rows:
            best = statistics.best(numbers.row(row), numbers.table.direction)
            cells = [cell_text(numbers, row, column, bold=column == best) for column in short]
            title = numbers.table.title.removeprefix(f"{group}, ")
            body.append([f"{title}, {numbers.heading} = {row}", *cells])
            for column, sample in numbers.row(row).items():
                paper = numbers.paper(row, column)
                if paper is not None:
                    apart.setdefault(short[column], []).append(sample.mean - paper.mean)
    digits = members[0].table.digits
    parts = [
        markdown_table(["cell", *short.values()], body),
        "Means; in brackets the paper's, with a star where it is bold there. Here the best mean of a row is bold, "
        "without a test.",
    ]
    if apart:
        differences = [
            [name, str(len(values)), *(f"{of(values):+.{digits}f}" for of in (np.min, np.median, np.max))]
            for name, values in apart.items()
        ]
        header = ["ours minus the paper's", "cells", "smallest", "median", "largest"]
        parts.append(markdown_table(header, differences))
    return parts


def paired_runs(numbers: Numbers) -> list[str]:
    """Return tests of all columns against the baselines over all rows, for a table of paired runs in several rows."""
    table = numbers.table
    if not table.pair or len(numbers.rows) < 2:
        return []
    found = {
        f"{other} against {one}": statistics.paired(*numbers.pairs(numbers.rows, other, one), table.direction)
        for place, one in enumerate(table.baselines)
        for other in table.columns
        if other not in table.baselines[: place + 1]
    }
    means = f"Runs with the same {numbers.heading} and {table.pair} are one pair each."
    tests = _paired_table(means, found, table.digits)
    return [f"## {table.title}: all cells together", *tests] if tests else []


def _paired_table(pairs: str, found: Mapping[str, statistics.Paired], digits: int) -> list[str]:
    found = {name: result for name, result in found.items() if result.cells}
    if not found:
        return []
    corrected = statistics.holm({name: result.wilcoxon for name, result in found.items()})
    signs = statistics.holm({name: result.sign for name, result in found.items()})
    body = [
        [
            name,
            f"{result.ahead} of {result.cells}",
            f"{result.median:+.{digits}f}",
            p_text(corrected[name]),
            p_text(signs[name]),
        ]
        for name, result in found.items()
    ]
    return [
        f"{pairs} The p-values are those of Wilcoxon's signed-rank test and of the sign test, two-sided, "
        "each corrected by Holm's method for the comparisons of this table.",
        markdown_table(["", "better in", "median difference", "Wilcoxon", "sign test"], body),
    ]
