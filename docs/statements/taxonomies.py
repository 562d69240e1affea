"""The statements of the page on taxonomies: results of experiments, and times of the benchmark."""

from __future__ import annotations

import json
from collections.abc import Iterator

from catnat_experiments.report import statistics
from catnat_experiments.report.cells import p_text
from values import RECORDS, line, p, report, row

CONSTANTS = "0.9 0.5 0.1"
BENCHMARK = RECORDS.parents[1] / "benchmarks/results/taxonomy.json"
DATA = ("icd10-3", "baskets")
TOP, CLASSES = "Level 1: log loss", "Level 3: log loss"
BACK_OFF, ANSWERS = "Accuracy of answers with information 0.5", "Classes in answers of one label"
SECONDS = "With a taxonomy: processor seconds to fit"
FLAT, TREE = "logistic, flat", "logistic, groups"
METHODS = {
    "logistic regression, flat": FLAT,
    '`TreeClassifier`, `"multiclass"`; HiClass': TREE,
    "LightGBM, flat": "LightGBM, flat",
    'LightGBM, `"multiclass"`': "LightGBM, groups",
}


def both(title: str, method: str, digits: int) -> str:
    """Return the means on both data sets."""
    means = (row(report("classifiers", data)[title])[method].mean for data in DATA)
    return ", ".join(f"{mean:,.{digits}f}" for mean in means)


def p_value(title: str, data: str, flat: str = FLAT, tree: str = TREE) -> float:
    """Return the report's p-value of a tree against a flat model."""
    return statistics.holm(report("classifiers", data)[title].tests())[flat, data, tree]


def means(start: str) -> list[float]:
    """Return all means in the tables whose titles start with ``start``, on both data sets."""
    tables = (item for data in DATA for item in report("classifiers", data).items())
    return [sample.mean for title, numbers in tables if title.startswith(start) for sample in row(numbers).values()]


def page() -> Iterator[str]:
    """Yield all statements of the page."""
    for name, method in METHODS.items():
        scores = [both(title, method, 2) for title in (TOP, CLASSES, BACK_OFF)]
        more = f" (HiClass {both(SECONDS, 'logistic, HiClass', 0)})" if method == TREE else ""
        yield line(name, *scores, both(ANSWERS, method, 0), both(SECONDS, method, 0) + more)

    texts, products = (p_value(BACK_OFF, data) for data in DATA)
    yield f"**Back-off at 0.5**: flat logistic regression is ahead, {p(texts)} and {p_text(products)}."
    yield f"flat is ahead on products ({p(p_value(BACK_OFF, 'baskets', 'LightGBM, flat', 'LightGBM, groups'))})"
    texts, products, classes = p_value(TOP, "icd10-3"), p_value(TOP, "baskets"), p_value(CLASSES, "icd10-3")
    yield f"the tree is ahead, {p(texts)} and {p_text(products)}; of classes on ICD-10 alone, {p(classes)}."

    coverage, low, high = means("Coverage"), means("2.5% of splits are below"), means("2.5% of splits are above")
    yield f"its mean over 200 splits is {min(coverage):.3f} to {max(coverage):.3f}."
    yield f"95% of splits lie within {min(low):.3f} and {max(high):.3f}."
    yield f"For single groups it falls to {min(means('Least coverage')):.2f}."
    losses = row(report("classifiers", "icd10-3")[CLASSES])
    ours, hiclass = losses["logistic, tree"].mean, losses["logistic, HiClass"].mean
    yield f"**`TreeClassifier` was behind HiClass** on ICD-10, log loss {ours:.2f} to {hiclass:.2f}:"
    yield from _times()


def _times() -> Iterator[str]:
    measured = {part: entry["values"] for part, entry in json.loads(BENCHMARK.read_text()).items()}
    rows = {name: of for name, of in measured["rows"].items() if name != "probabilities of all groups"}
    seconds = {name: f"{of['seconds']:.0f}" for name, of in rows.items()}
    yield (
        f"back-off {seconds['back-off']} s, sets {seconds['sets of classes, lac']} to "
        f"{seconds['sets of classes, aps']} s, of three labels {seconds['sets of at most three labels']} s, metrics "
        f"{seconds['metrics of all levels']} s, in at most {max(of['MB'] for of in rows.values()):.0f} MB."
    )
    million = max(of["seconds"] for name, of in measured["classes"].items() if name != "the taxonomy")
    yield f"One row of a million: {million:.1f} s at most."
    yield f"A loop over rows takes {measured['loop']['back-off']['ratio']:.0f} times as long to back off"
    ratios = [of["ratio"] for of in measured["HiClass"].values()]
    yield f"[HiClass {min(ratios):.1f} to {max(ratios):.0f} times]"
