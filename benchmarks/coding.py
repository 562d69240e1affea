"""catnat.coding: round trips of very many symbols, their size beside the cross-entropy, and symbols per second.

    python benchmarks/coding.py                   # ten million symbols, over all trees and sizes
    python benchmarks/coding.py --symbols 100000

Beside it the same symbols by constriction's own categorical model, which takes all K probabilities. The cross-entropy
is that of the integers which the coder codes with. results/coding.md is what was measured.
"""

from __future__ import annotations

import argparse
import time

import constriction
import numpy as np
from records import RESULTS, write_table

import catnat
from catnat import coding

SIZES = (2, 256, 4096, 100_000, 1_000_000)
KINDS = ("balanced", "huffman", "random")


def tree_of(kind: str, size: int) -> catnat.Tree:
    weights = 1 / np.arange(1, size + 1)
    if kind == "huffman":
        return catnat.huffman(weights)
    if kind == "balanced":
        return catnat.balanced(size).with_prior(weights)
    rng, pool, rows = np.random.default_rng(0), list(range(size)), []
    while len(pool) > 1:
        pair = []
        for _ in range(2):
            at = int(rng.integers(len(pool)))
            pool[at], pool[-1] = pool[-1], pool[at]
            pair.append(pool.pop())
        rows.append(pair)
        pool.append(size + len(rows) - 1)
    return catnat.from_children(rows, weights)


def bits_of_classes(tree: catnat.Tree, integers: np.ndarray) -> np.ndarray:
    """What every class costs, down the levels of the tree."""
    yes = integers / 65536
    costs = np.zeros(tree.num_nodes + tree.num_classes)
    for level in tree.levels:
        no_child, yes_child = tree.child_ids[level].T
        costs[no_child] = costs[level] - np.log2(1 - yes[level])
        costs[yes_child] = costs[level] - np.log2(yes[level])
    return costs[tree.num_nodes :]


def categorical_microseconds(probs: np.ndarray, classes: np.ndarray) -> float:
    """The time of a symbol, encoded with all probabilities given anew, as a model with context must."""
    some = classes[: max(1, min(200, 20_000_000 // len(probs)))].astype(np.int32)
    rows = np.tile(probs.astype(np.float32), (len(some), 1))
    encoder, model = constriction.stream.queue.RangeEncoder(), constriction.stream.model.Categorical(perfect=False)
    start = time.process_time()
    encoder.encode(some, model, rows)
    return 1e6 * (time.process_time() - start) / len(some)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--symbols", type=int, default=10_000_000)
    each = parser.parse_args().symbols // (len(SIZES) * len(KINDS))
    print(f"{each * len(SIZES) * len(KINDS):,} symbols in all, {each:,} a row; microseconds of a symbol")
    lines = [
        "| K | tree | bits a symbol | over the cross-entropy | encode (µs) | decode (µs) | all K probabilities (µs) |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for size in SIZES:
        for kind in KINDS:
            tree, rng = tree_of(kind, size), np.random.default_rng(1)
            # Near the prior, with some noise, so that the tree is not exactly right.
            scores = 0.2 * rng.normal(size=tree.num_nodes)
            integers = coding.quantized_branches(scores, tree, "sigmoid")
            classes = rng.choice(size, each, p=tree.prior)
            start = time.process_time()
            data = coding.encode(tree, scores, classes, "sigmoid")
            middle = time.process_time()
            found = coding.decode(tree, scores, data, "sigmoid")
            end = time.process_time()
            assert (found == classes).all()
            costs = bits_of_classes(tree, integers)
            bits, coded = costs[classes].sum(), 8 * (len(data) - 48)
            assert bits <= coded < 1.001 * bits + 64, (bits, coded)
            baseline = categorical_microseconds(2.0**-costs, classes)
            times = [1e6 * seconds / each for seconds in (middle - start, end - middle)]
            row = f"| {size:,} | {kind} | {coded / each:.3f} | {coded / bits - 1:.4%}"
            lines.append(f"{row} | {times[0]:.2f} | {times[1]:.2f} | {baseline:.2f} |")
            print(lines[-1], flush=True)
    write_table(lines, RESULTS / "coding.md")


if __name__ == "__main__":
    main()
