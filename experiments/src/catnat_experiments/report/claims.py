"""What the numbers say about the paper: how close they are, and which of its claims hold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from catnat_experiments.report import statistics
from catnat_experiments.report.cells import p_text
from catnat_experiments.report.tables import Claim, Numbers, Value


def closeness(numbers: Numbers) -> str:
    """How far our means are from the paper's numbers, in a sentence; empty if the paper has none."""
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
    """What the records say about a claim in one row of a table.

    Attributes:
        claim: Which column is said to be better than which.
        row: Of the table.
        kind: In words: reproduced, not significant ...
        p_value: Of Welch's test, corrected by Holm's method for all the claims of the table; NaN without a test.
        effect: The mean of the column that is said to be better, minus that of the other.
        runs: Of each of the two columns.
    """

    claim: Claim
    row: Value
    kind: str
    p_value: float = math.nan
    effect: float = math.nan
    runs: tuple[int, int] = (0, 0)


def verdicts(numbers: Numbers) -> list[Verdict]:
    """Of every claim in every row; a claim about two columns that the table does not have is left out."""
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
    """One paragraph per claim of the paper: where it reproduced, where it did not, where nothing is significant.

    And for what is not tested why: a run of either column is missing, or the paper does not claim it for that row.
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
    """The verdicts of all tables of a report, but for what has no runs, as rows of a Markdown table."""
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
