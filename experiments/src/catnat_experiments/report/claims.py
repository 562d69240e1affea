"""What the numbers say about the paper: how close they are, and which of its claims hold."""

from __future__ import annotations

from collections.abc import Sequence

from catnat_experiments.report import statistics
from catnat_experiments.report.cells import p_text
from catnat_experiments.report.markdown import markdown_table
from catnat_experiments.report.tables import Claim, Numbers, Value


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
        markdown_table(["", "better in", "median difference", "Wilcoxon", "sign test"], body),
    ]
