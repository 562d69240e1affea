"""The statements of the page on distributional regression."""

from __future__ import annotations

from collections.abc import Iterator

from catnat_experiments.report.together import paired_runs
from values import line, report

CONSTANTS = "0.02 0.5"
SIGN, SOFTMAX = " (sign test {sign})", " (median in favour of softmax)"
TESTS = (
    # the page's words, the score, the report's words, the page's addition to Wilcoxon's p
    ("HL-Gauss: sigmoid tree against softmax", "NLL", "sigmoid, HL-Gauss against softmax, HL-Gauss", SIGN),
    ("HL-Gauss: sigmoid tree against softmax", "CRPS", "sigmoid, HL-Gauss against softmax, HL-Gauss", ""),
    ("HL-Gauss: natural tree against softmax", "NLL", "natural, HL-Gauss against softmax, HL-Gauss", ""),
    ("HL-Gauss: natural tree against softmax", "CRPS", "natural, HL-Gauss against softmax, HL-Gauss", ""),
    ("hard targets: sigmoid tree against softmax", "NLL", "sigmoid, hard against softmax, hard", SOFTMAX),
    ("hard targets: natural tree against softmax", "NLL", "natural, hard against softmax, hard", SOFTMAX),
    ("softmax: HL-Gauss against hard targets", "NLL", "softmax, HL-Gauss against softmax, hard", ""),
    ("quantile regression against softmax with HL-Gauss", "CRPS", "quantiles against softmax, HL-Gauss", ""),
    ("Gaussian mixture against softmax with HL-Gauss", "CRPS", "Gaussian mixture against softmax, HL-Gauss", ""),
)
LARGER = ("bimodal-4000", "heteroscedastic-4000", "pixels-4000")


def tests(score: str) -> dict[str, list[str]]:
    """Return the report's table over all cells, by comparison: better in, median difference, p-values of both tests."""
    *_, table = paired_runs(report("binned", "evidence")[score])
    lines = (each.strip("| ").split(" | ") for each in table.splitlines()[2:])
    return {comparison: cells for comparison, *cells in lines}


def page() -> Iterator[str]:
    """Yield all statements of the page."""
    found = {score: tests(score) for score in ("NLL", "CRPS")}
    nats = {comparison: median.removeprefix("-") for comparison, (_, median, *_) in found["NLL"].items()}
    trees, targets = (f"{name} against softmax" for name in ("sigmoid, HL-Gauss", "softmax, HL-Gauss"))
    yield f"a better log-likelihood than softmax, by {nats[f'{trees}, HL-Gauss']} nats in the median"
    for name, score, comparison, more in TESTS:
        better, _, wilcoxon, sign = found[score][comparison]
        yield line(name, score.replace("NLL", "log-likelihood"), better, wilcoxon + more.format(sign=sign))
    yield f"it is worth {nats[f'{targets}, hard']} nats."

    samples = report("binned", "evidence")["Coverage of the 50% interval"].samples
    sigmoid, softmax = (
        [f"{100 * samples[data, f'{name}, HL-Gauss'].mean:.0f}%" for data in LARGER] for name in ("sigmoid", "softmax")
    )
    yield f"sigmoid with HL-Gauss covers {sigmoid[0]}, {sigmoid[1]} and {sigmoid[2]} of the test targets."
    yield f"That of softmax covers {softmax[0]}, {softmax[1]} and {softmax[2]}."
