"""An order of classes from data: processor time and memory of its statistics, its tree, and a change of trees.

    python benchmarks/order.py                          # 100,000 and a million classes
    python benchmarks/order.py --classes 10000 --features 128

Classes are drawn by Zipf's law; features come from 4,096 clusters of classes. Every row is measured in a process of
its own, whose peak holds the batches too. results/order.json is what was measured, results/order.md is made of it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from records import commit, machine, write

import catnat
from catnat.torch import CatnatHead

RESULT = Path(__file__).parent / "results" / "order.json"
SIZES, FEATURES = (100_000, 1_000_000), (32, 64)
BATCH, BATCHES = 4096, 100
FITTED = 256
"""Inputs on which a head's new rows are fitted."""
COLUMNS = {
    "classes": "{:,}",
    "features": "{}",
    "update": "{:,.0f}",
    "tree": "{:.1f} s",
    "retree": "{:.1f} s",
    "grow": "{:.1f} s",
    "gigabytes": "{:.2f} GB",
}


def measure(size: int, width: int) -> dict[str, float]:
    """One row of the table. Memory is that of the statistics and the tree."""
    rng, seconds = np.random.default_rng(0), {}

    @contextmanager
    def clock(name: str) -> Iterator[None]:
        start = time.process_time()
        yield
        seconds[name] = seconds.get(name, 0.0) + time.process_time() - start

    centres = rng.standard_normal((4096, width), dtype=np.float32)
    frequent = 1 / np.arange(1.0, size + 1)
    classes = rng.permutation(size)[np.searchsorted(np.cumsum(frequent / frequent.sum()), rng.random((BATCHES, BATCH)))]
    means = catnat.ClassMeans(size, width)
    means.update(np.zeros((size, width), np.float32), np.arange(size))  # pages are taken when they are first written
    for targets in classes % size:
        features = centres[targets % 4096] + rng.standard_normal((BATCH, width), dtype=np.float32)
        with clock("pass"):
            means.update(features, targets)
    with clock("tree"):
        tree = means.tree()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    head = CatnatHead(width, size)
    with clock("retree"):
        head.retree(tree.with_prior(head.tree.prior), features=torch.randn(FITTED, width))
    with clock("grow"):
        head.grow(1000)
    rate = BATCHES * BATCH * width / seconds.pop("pass") / 1e6
    return {"classes": size, "features": width, "update": rate, **seconds, "gigabytes": peak}


def table(rows: list[dict[str, float]]) -> str:
    """What the page shows."""
    titles = ("classes", "features", "update, 10⁶ numbers/s", "tree", f"`retree`, {FITTED} inputs", "`grow`", "memory")
    lines = [titles, ["---"] * len(titles)]
    lines += [[form.format(row[name]) for name, form in COLUMNS.items()] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--features", type=int, nargs="+", default=FEATURES)
    parser.add_argument("--measure", type=int, nargs=2, help=argparse.SUPPRESS)  # one row, in a process of its own
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.measure:
        print(json.dumps(measure(*options.measure)))
        return
    rows: list[dict[str, Any]] = []
    for size in options.classes:
        for width in options.features:
            command = [sys.executable, __file__, "--measure", str(size), str(width)]
            rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    write({**machine(), "commit": commit(), "rows": rows}, RESULT)
    RESULT.with_suffix(".md").write_text(table(rows))


if __name__ == "__main__":
    main()
