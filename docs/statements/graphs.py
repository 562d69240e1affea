"""The statements of the page on graph structure learning."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from catnat_experiments.report.cells import p_text
from catnat_experiments.report.claims import verdicts
from catnat_experiments.report.tables import Numbers, Value
from values import all_records, line, report

CONSTANTS = "0.1 0.5 0.75 0.9 0.01 1.56 2.25"  # theta*, the smallest start, the scales of the weights
COLUMNS = {
    "energy score": "Energy score",
    "PP-MAE": "PP-MAE, error of the median prediction",
    "PP-MSE": "PP-MSE, error of the mean prediction",
    "MAE on θ": "MAE on theta, all entries",
}
WORDS = {
    "reproduced": "yes",
    "not significant": "open",
    "did not reproduce: significantly the other way round": "no",
    "the paper makes no such claim": "no claim: a tie in the paper",
}
EDGES, ENTRIES = 102, 576


def page() -> Iterator[str]:
    """Yield all statements of the page."""
    tables = report("gsl", "paper")
    columns = [against_softmax(tables[title]) for title in COLUMNS.values()]
    yield from _verdicts(columns)
    yield from _gains(tables, [theta for theta, verdict in columns[-1].items() if verdict.startswith("yes")])
    yield from _saturated(tables["Saturated true edges, fraction"], tables["Saturated true zeros, fraction"])
    yield from _sparsemax_with_two_rates(tables["Energy score"])
    yield from _sigmoid(tables["MAE on theta, all entries"])


def _sparsemax_with_two_rates(energy: Numbers) -> Iterator[str]:
    """Yield what the search with two learning rates has found so far, where one learning rate fails."""
    before, after, papers = [], [], []
    for theta in (0.5, 0.75):
        runs = [
            record
            for record in all_records("gsl")
            if record.stage != "final"
            and (record.config["theta"], record.config["parameterization"]) == (theta, "sparsemax")
        ]
        for found, two in ((before, False), (after, True)):
            some = [record for record in runs if ("network_rate" in record.config) is two]
            best = min(some, key=lambda record: record.metrics["validation_es"])
            found.append(best.metrics["test_es_twice"])
        papers.append(energy.table.paper[theta]["sparsemax"].mean)
    yield (
        f"At 0.5 and 0.75 they lower its energy score from {before[0]:.1f} and {before[1]:.1f} to {after[0]:.1f} and "
        f"{after[1]:.1f}; the paper has {papers[0]:.1f} and {papers[1]:.1f}."
    )


def _sigmoid(error: Numbers) -> Iterator[str]:
    ratios = [error.row(theta)["sigmoid"].mean / error.row(theta)["softmax"].mean for theta in error.rows]
    yield f"in the error on theta sigmoid has {min(ratios):.2f} to {max(ratios):.2f} times softmax's."


def _verdicts(columns: Sequence[dict[Value, str]]) -> Iterator[str]:
    """Yield the table of natural against softmax, and the page's answer with its numbers."""
    lines = [line("θ\\*", "entropy", *COLUMNS), "|---" * (2 + len(columns)) + "|"]
    for theta in columns[0]:
        entropy = -sum(x * math.log2(x) for x in (float(theta), 1 - float(theta)))
        lines.append(line(str(theta), f"{entropy:.2g}", *(column[theta] for column in columns)))
    in_all = [reproduced(column) for column in columns]
    yield "\n".join([*lines, line("in all", "", *in_all)])
    yield f"**Yes for the probabilities, in {in_all[-1]} settings; rarely for the predictions.**"


def reproduced(column: dict[Value, str]) -> str:
    """Return the number of settings with natural significantly better, of those in which the paper claims it."""
    claimed = [text for text in column.values() if not text.startswith("no claim")]
    return f"{sum(text.startswith('yes') for text in claimed)} of {len(claimed)}"


def against_softmax(numbers: Numbers) -> dict[Value, str]:
    """Return the verdict on the claim that natural is better than softmax, by theta*."""
    found = [each for each in verdicts(numbers) if (each.claim.better, each.claim.worse) == ("natural", "softmax")]
    tested = {each.row: "" if math.isnan(each.p_value) else f" ({p_text(each.p_value)})" for each in found}
    return {each.row: WORDS[each.kind] + tested[each.row] for each in found}


def _gains(tables: dict[str, Numbers], better_at: Sequence[Value]) -> Iterator[str]:
    """Yield the gains of natural in the settings in which its theta is significantly better than softmax's."""
    ratios, gains, scores, zeros = [], [], [], []
    for theta in better_at:
        energy, error, of_zeros = (
            tables[title].row(theta) for title in ("Energy score", COLUMNS["MAE on θ"], "MAE on theta, true zeros")
        )
        scores.append(energy["natural"].mean)
        for name in ("softmax", "sigmoid"):
            ratios.append(error["natural"].mean / error[name].mean)
            gains.append(energy[name].mean - energy["natural"].mean)
            on_zeros = (of_zeros[name].mean - of_zeros["natural"].mean) * (ENTRIES - EDGES) / ENTRIES
            zeros.append(on_zeros / (error[name].mean - error["natural"].mean))
    *first, last = map(str, better_at)
    yield (
        f"Natural has {min(ratios):.0%} to {max(ratios):.0%} of softmax's and sigmoid's error on theta at theta\\* "
        f"{', '.join(first)} and {last}."
    )
    yield (
        f"**Gains in the energy score are small**: {min(gains):.3f} to {max(gains):.3f} of scores of "
        f"{min(scores):.0f} to {max(scores):.0f}."
    )
    yield f"{min(zeros):.0%} to {max(zeros):.0%} of them are on true zeros"


def _saturated(edges: Numbers, zeros: Numbers) -> Iterator[str]:
    runs = {theta: edges.row(theta)["natural"].values for theta in (0.5, 0.9)}
    [half], [most] = ([round(EDGES * lost) for lost in values if lost] for values in runs.values())
    yield (
        f"**In 1 of {len(runs[0.5])} runs natural lost {half} of the {EDGES} true edges at 0.5, "
        f"and in 1 it lost {most} at 0.9.**"
    )
    lost = [edges.row(theta)["sparsemax"].mean for theta in edges.rows]
    yield f"ours loses {min(lost):.0%} to {max(lost):.0%} of the true edges, in the mean of a setting"
    right = [zeros.row(theta)["natural"].mean for theta in zeros.rows]
    plain = max(zeros.row(theta)[name].mean for theta in zeros.rows for name in ("softmax", "sigmoid"))
    none = f"{plain:.0%}" if plain else "none"
    yield f"Between {min(right):.0%} and {max(right):.0%} of natural's true zeros saturate, and {none} of softmax's"
