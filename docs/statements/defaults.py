"""The statements of the page on defaults, an activation and a tree."""

from __future__ import annotations

from collections.abc import Iterator

from catnat_experiments.report import statistics
from catnat_experiments.report.cells import bold_columns
from values import corrected_against, line, p, report, row

CONSTANTS = ""


def cells(title: str, digits: int, mask: str = "") -> Iterator[str]:
    """Yield the cells of a line: means, and the report's p-values against softmax."""
    numbers = report("defaults", "evidence")[title]
    [task], samples, tests = numbers.rows, row(numbers), statistics.holm(numbers.tests())
    for column in ("softmax", f"sigmoid{mask}", f"sigmoid{mask}, embeddings", f"natural{mask}, embeddings"):
        mean = f"{samples[column].mean:.{digits}f}"
        mean = f"**{mean}**" if column in bold_columns(numbers, task) else mean
        yield mean if column == "softmax" else f"{mean} ({p(tests['softmax', task, column])})"


def against_softmax_alone() -> float:
    """Return the p-value of sigmoid on embeddings in the classifier, corrected for comparisons with softmax alone."""
    samples = row(report("defaults", "evidence")["Classifier: log loss"])
    return corrected_against(samples, "softmax")["sigmoid, embeddings"]


def page() -> Iterator[str]:
    """Yield all statements of the page."""
    yield line("test log loss, lower is better", *cells("Classifier: log loss", 3))
    yield line("reward, higher is better", *cells("Bandit with masks: reward", 3, ", renormalize"))
    yield line("divergence, lower is better", *cells("Table of probabilities: divergence", 4))
    yield f"sigmoid on embeddings is significantly behind in the classifier ({p(against_softmax_alone())})."
    saturated = row(report("defaults", "evidence")["Classifier: saturated nodes, fraction"])
    shares = [100 * sample.mean for variant, sample in saturated.items() if variant.startswith("natural")]
    yield f"{min(shares):.0f} to {max(shares):.0f}% of natural's nodes are saturated"
