"""An order of classes from data: processor time and memory of its statistics, its tree, and a change of trees.

    python benchmarks/order.py                          # 100,000 and a million classes
    python benchmarks/order.py --classes 10000 --features 128

Classes are drawn by Zipf's law; features come from 4,096 clusters of classes. Every row is measured in a process of
its own, whose peak holds the batches too.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

import numpy as np

import catnat

SIZES, FEATURES = (100_000, 1_000_000), (32, 64)
BATCH, BATCHES = 4096, 100


def measure(size: int, width: int) -> None:
    """Print the row of one size."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((4096, width), dtype=np.float32)
    frequent = 1 / np.arange(1.0, size + 1)
    classes = rng.permutation(size)[np.searchsorted(np.cumsum(frequent / frequent.sum()), rng.random((BATCHES, BATCH)))]
    means, seconds = catnat.ClassMeans(size, width), 0.0
    means.update(np.zeros((size, width), np.float32), np.arange(size))  # pages are taken when they are first written
    for targets in classes % size:
        features = centres[targets % 4096] + rng.standard_normal((BATCH, width), dtype=np.float32)
        start = time.process_time()
        means.update(features, targets)
        seconds += time.process_time() - start
    rate = BATCHES * BATCH * width / seconds / 1e6
    start = time.process_time()
    tree = means.tree()
    clustering = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    other = catnat.from_children(tree.children[:, ::-1])
    start = time.process_time()
    catnat.matching_nodes(other, tree)
    matching = time.process_time() - start
    print(f"| {size:,} | {width} | {rate:,.0f} | {clustering:.1f} | {peak:.2f} | {matching:.2f} | {tree.depth} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--features", type=int, nargs="+", default=FEATURES)
    parser.add_argument("--measure", type=int, nargs=2, help=argparse.SUPPRESS)  # one row, in a process of its own
    options = parser.parse_args()
    if options.measure:
        measure(*options.measure)
        return
    print("| classes | features | update, 10^6 numbers/s | tree, s | peak memory, GB | matching nodes, s | depth |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for size in options.classes:
        for width in options.features:
            subprocess.run([sys.executable, __file__, "--measure", str(size), str(width)], check=True)


if __name__ == "__main__":
    main()
