"""Tools for taxonomies at scale, beside a loop over rows and beside HiClass: python benchmarks/taxonomy.py [rows ...]

One thread, processor time of one call; megabytes are the peak of what a second call allocates, its result included.
results/taxonomy.json is what was measured, and where; results/taxonomy.md is made of it.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import tracemalloc
from pathlib import Path
from typing import Any

import hiclass
import numpy as np
import sklearn
from hiclass import metrics
from numpy.typing import NDArray
from records import commit, machine, write
from run import Job, three_digits
from sklearn.naive_bayes import GaussianNB

import catnat
from catnat.sklearn import TreeClassifier
from catnat.taxonomy import (
    BackOff,
    ConformalSets,
    back_off,
    back_off_curve,
    hierarchical_scores,
    level_metrics,
)

RESULT = Path(__file__).parent / "results" / "taxonomy.json"
ROWS, FEW, THRESHOLD = 100_000, 200, 0.9
SETS: dict[str, dict[str, Any]] = {
    "sets of classes, lac": {},
    "sets of classes, aps": {"method": "aps"},
    "answers of one label": {"max_labels": 1},
    "sets of at most three labels": {"max_labels": 3},
}
Floats = NDArray[np.float64]


def taxonomy_of(*sizes: int) -> catnat.Taxonomy:
    """Groups of equal sizes: so many at the top, so many in each of them, ..."""
    digits = np.stack(np.unravel_index(np.arange(np.prod(sizes)), sizes), axis=1).astype(str).tolist()
    return catnat.Taxonomy.from_paths("/".join(path) for path in digits)


def drawn(taxonomy: catnat.Taxonomy, rows: int) -> tuple[Floats, NDArray[Any]]:
    """Probabilities of a model that is often sure, in blocks, and labels that they are right about."""
    rng, size = np.random.default_rng(0), taxonomy.num_classes
    probs, numbers = np.empty((rows, size)), np.empty(rows, dtype=np.int64)
    for start in range(0, rows, step := max(1, 10**7 // size)):
        block = np.exp(4 * rng.standard_normal((min(step, rows - start), size)))
        block /= block.sum(axis=1, keepdims=True)
        probs[start : start + step] = block
        below = np.cumsum(block, axis=1) < rng.random((len(block), 1))
        numbers[start : start + step] = np.minimum(below.sum(axis=1), size - 1)
    return probs, taxonomy.names(numbers)


def measured(job: Job) -> dict[str, float]:
    start = time.process_time()
    job()
    seconds = time.process_time() - start
    tracemalloc.start()
    job()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {"seconds": three_digits(seconds), "MB": three_digits(peak / 2**20)}


# ---- the parts ----


def rows() -> dict[str, Any]:
    """100,000 rows of 1,900 classes, in 19 groups of 10 groups of 10: 1,520 MB of probabilities."""
    taxonomy = taxonomy_of(19, 10, 10)
    return everything(taxonomy, *drawn(taxonomy, ROWS))


def classes() -> dict[str, Any]:
    """One row of a million classes, in 100 groups of 100 groups of 100; sets are calibrated by the same row."""
    found = {"the taxonomy": measured(lambda: taxonomy_of(100, 100, 100).lineage)}
    taxonomy = taxonomy_of(100, 100, 100)
    return found | everything(taxonomy, *drawn(taxonomy, 1))


def everything(taxonomy: catnat.Taxonomy, probs: Floats, y: NDArray[Any]) -> dict[str, Any]:
    """Every tool once; sets are fitted and predicted with the same rows."""
    answers = back_off(taxonomy, probs, THRESHOLD)
    jobs: dict[str, Job] = {
        "probabilities of all groups": lambda: taxonomy.label_probs(probs),
        "back-off": lambda: back_off(taxonomy, probs, THRESHOLD),
        "its threshold": lambda: BackOff(taxonomy, accuracy=0.0).fit(probs, y),
        "its curve": lambda: back_off_curve(taxonomy, probs, y),
        **{
            name: lambda options=options: ConformalSets(taxonomy, **options).fit(probs, y).predict(probs)
            for name, options in SETS.items()
        },
        "metrics of all levels": lambda: level_metrics(taxonomy, y, probs),
        "hierarchical precision, recall and F1": lambda: hierarchical_scores(taxonomy, y, answers),
    }
    return {name: measured(job) for name, job in jobs.items()}


def loop() -> dict[str, Any]:
    """Microseconds a row, of 1,900 classes, beside a loop over rows that sums each label's columns by NumPy."""
    taxonomy = taxonomy_of(19, 10, 10)
    probs, y = drawn(taxonomy, 20 * FEW)
    columns = {name: taxonomy.index(taxonomy.members(name)) for name in taxonomy.labels}

    def answer(row: Floats) -> Any:
        enough = [name for name, at in columns.items() if row[at].sum() >= THRESHOLD]
        return min(enough, key=lambda name: len(columns[name]), default=None)

    def scores(pairs: Any) -> float:
        shared = said = real = 0
        for one, other in pairs:
            truth, given = set(taxonomy.path(one)), set(taxonomy.path(other)) if other is not None else set()
            shared, said, real = shared + len(truth & given), said + len(given), real + len(truth)
        return 2 * shared / (said + real)

    answers = back_off(taxonomy, probs, THRESHOLD)
    assert [answer(row) for row in probs[:FEW]] == answers[:FEW].tolist()
    jobs: dict[str, tuple[Job, Job]] = {
        "back-off": (
            lambda: back_off(taxonomy, probs, THRESHOLD),
            lambda: [answer(row) for row in probs[:FEW]],
        ),
        "hierarchical F1": (
            lambda: hierarchical_scores(taxonomy, y, answers),
            lambda: scores(zip(y[:FEW], answers[:FEW], strict=True)),
        ),
    }
    return {name: beside(*pair, len(probs), FEW) for name, pair in jobs.items()}


def beside(ours: Job, theirs: Job, rows: int, their_rows: int) -> dict[str, float]:
    """Medians of alternated rounds, for one row."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(6):
        for job, found, number in ((ours, times[0], rows), (theirs, times[1], their_rows)):
            start = time.process_time()
            job()
            found.append(1e6 * (time.process_time() - start) / number)
    one, other = (float(np.median(each[1:])) for each in times)  # the first round warms up
    return {"catnat": three_digits(one), "other": three_digits(other), "ratio": three_digits(other / one)}


def against_hiclass() -> dict[str, Any]:
    """Microseconds a row, of 1,900 classes, beside HiClass: naive Bayes at every group, and metrics of its answers."""
    taxonomy = taxonomy_of(19, 10, 10)
    rng = np.random.default_rng(0)
    y = np.repeat(np.array(taxonomy.classes), 4)
    X = rng.normal(size=(len(y), 8)) + np.repeat(rng.normal(size=(taxonomy.num_classes, 8)), 4, axis=0)
    levels = np.array([taxonomy.path(name) for name in y])
    ours = TreeClassifier(GaussianNB(), tree=taxonomy, members="multiclass")
    theirs = hiclass.LocalClassifierPerParentNode(GaussianNB(), probability_combiner="multiply")
    fits = beside(lambda: ours.fit(X, y), lambda: theirs.fit(X, levels), len(y), len(y))
    predictions = beside(lambda: ours.predict_proba(X), lambda: theirs.predict_proba(X), len(y), len(y))
    given = ours.predict(X)
    of_given = np.array([taxonomy.path(name) for name in given])
    scores = beside(
        lambda: hierarchical_scores(taxonomy, y, given), lambda: metrics.f1(levels, of_given), len(y), len(y)
    )
    return {"fit": fits, "probabilities of classes": predictions, "hierarchical F1": scores}


PARTS = {"rows": rows, "classes": classes, "loop": loop, "HiClass": against_hiclass}


def environment() -> dict[str, Any]:
    versions = {"numpy": np.__version__, "scikit-learn": sklearn.__version__, "hiclass": hiclass.__version__}
    return {**machine(), "python": platform.python_version(), **versions}


def page(record: dict[str, Any]) -> str:
    """All parts as Markdown."""
    lines = ["# Taxonomies", "", "Made by `python benchmarks/taxonomy.py`.", ""]
    for part, entry in record.items():
        names = list(next(iter(entry["values"].values())))
        lines += [f"## {part}", "", PARTS[part].__doc__ or "", "", "| | " + " | ".join(names) + " |"]
        lines += ["|---" * (len(names) + 1) + "|"]
        lines += [f"| {case} | " + " | ".join(str(of[n]) for n in names) + " |" for case, of in entry["values"].items()]
        lines += [""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"any of {', '.join(PARTS)}; all if none is given")
    record = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for part in parser.parse_args().parts or PARTS:
        record[part] = {"values": PARTS[part](), "environment": environment(), "commit": commit()}
        write(record, RESULT)
        RESULT.with_suffix(".md").write_text(page(record))
        print(json.dumps({part: record[part]["values"]}, indent=1), flush=True)


if __name__ == "__main__":
    main()
