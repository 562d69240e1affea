"""The paper's numbers and claims, compared with the records."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from catnat_experiments.report import statistics
from catnat_experiments.report.cells import p_text
from catnat_experiments.report.tables import Claim, Numbers, Value


def closeness(numbers: Numbers) -> str:
    """Return a sentence on the differences from the paper's numbers, by column; empty if the paper has none."""
    apart: dict[str, list[float]] = {}
    for (row, column), sample in numbers.samples.items():
        paper = numbers.paper(row, column)
        if paper is not None and sample.values:
            apart.setdefault(column, []).append(abs(sample.mean / paper.mean - 1))
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


class Verdict(NamedTuple):
    """The result of the records for a claim in one row of a table.

    Attributes:
        claim: The claim that one column is better than another.
        row: The row of the table.
        kind: The result in words, such as "reproduced" or "not significant".
        p_value: The p-value of Welch's test, corrected by Holm's method for the table's claims; NaN without a test.
        effect: The mean of the column that the claim calls better, minus that of the other.
        runs: The number of runs of each column.
    """

    claim: Claim
    row: Value
    kind: str
    p_value: float = math.nan
    effect: float = math.nan
    runs: tuple[int, int] = (0, 0)


def verdicts(numbers: Numbers) -> list[Verdict]:
    """Return the verdict on every claim in every row; a claim is left out if the table has neither of its columns."""
    table = numbers.table
    about = [claim for claim in table.claims if {claim.better, claim.worse} & set(table.columns)]
    pairs = {
        (claim, row): (samples[claim.better], samples[claim.worse])
        for claim in about
        for row in numbers.rows
        if claim.is_about(row) and {claim.better, claim.worse} <= set(samples := numbers.row(row))
    }
    corrected = statistics.holm({key: statistics.welch(*pair) for key, pair in pairs.items()})
    found = []
    for claim, row in itertools.product(about, numbers.rows):
        if (claim, row) not in pairs:
            found.append(Verdict(claim, row, _NO_RUNS if claim.is_about(row) else _NO_CLAIM))
            continue
        (better, worse), p_value = pairs[claim, row], corrected[claim, row]
        kind = _KINDS[statistics.verdict(better, worse, table.direction, p_value)]
        runs = (len(better.values), len(worse.values))
        found.append(Verdict(claim, row, kind, p_value, better.mean - worse.mean, runs))
    return found


def claims(numbers: Numbers) -> list[str]:
    """Return one paragraph per claim of the paper, with its verdict in every row, after a sentence on the test.

    A row without a test has the reason: missing runs, or no claim of the paper for that row.
    """
    found: dict[Claim, dict[str, list[str]]] = {}
    for verdict in verdicts(numbers):
        tested = verdict.kind in _KINDS.values()
        told = f"{verdict.row} (p: {p_text(verdict.p_value)})" if tested else str(verdict.row)
        found.setdefault(verdict.claim, {}).setdefault(verdict.kind, []).append(told)
    if not found:
        return []
    texts = ["Claims are tested with Welch's t-test, corrected by Holm's method for all the claims of the table."]
    for claim, kinds in found.items():
        told = "; ".join(
            f"{kind} at {numbers.heading} {', '.join(kinds[kind])}"
            for kind in (*_KINDS.values(), _NO_RUNS, _NO_CLAIM)
            if kind in kinds
        )
        texts.append(f"The paper's claim that **{claim.better} is better than {claim.worse}**: {told}.")
    return texts


def verdict_rows(where: str, filled: Sequence[Numbers]) -> list[list[str]]:
    """Return the verdicts of a report as rows of a Markdown table, without those that lack runs or a claim."""
    return [
        [
            numbers.table.title,
            f"{numbers.heading} {verdict.row}",
            f"{verdict.claim.better} is better than {verdict.claim.worse}",
            f"**{verdict.kind}**" if verdict.kind != "cannot be tested" else "one run: cannot be tested",
            f"{verdict.effect:+.{numbers.table.digits}f}",
            p_text(verdict.p_value),
            " and ".join(map(str, verdict.runs)),
            where,
        ]
        for numbers in filled
        for verdict in verdicts(numbers)
        if verdict.kind in _KINDS.values()
    ]


VERDICT_HEADER = ["table", "row", "the paper's claim", "verdict", "difference", "p, corrected", "runs", "records"]
