"""Trees of very many classes from memory-mapped files: processor time and memory of the builders.

    python benchmarks/builders.py                       # up to ten million classes
    python benchmarks/builders.py --classes 100000000   # 6.4 GB of embeddings on the disk, and most of an hour

Weights are Zipf's in random order, embeddings come from 4,096 clusters. Every tree is built in a process of its own.
The peak is all that it held; pages of the file are among it, which the system takes back when it needs them.
results/builders.md is what was measured.
"""

from __future__ import annotations

import argparse
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np
from records import RESULTS, write_table

import catnat

SIZES = (1_000_000, 10_000_000)
BUILDERS = {"huffman": catnat.huffman, "from_embeddings": catnat.from_embeddings}


def write_weights(file: pathlib.Path, size: int) -> None:
    weights = np.lib.format.open_memmap(file, "w+", np.float32, (size,))
    weights[:] = np.random.default_rng(0).permutation(size)
    weights += 1
    np.divide(1, weights, out=weights)


def write_embeddings(file: pathlib.Path, size: int, width: int) -> None:
    rng = np.random.default_rng(0)
    embeddings = np.lib.format.open_memmap(file, "w+", np.float32, (size, width))
    centres = rng.standard_normal((4096, width), dtype=np.float32)
    for start in range(0, size, 1 << 20):
        some = embeddings[start : start + (1 << 20)]
        some[:] = rng.standard_normal(some.shape, dtype=np.float32)
        some *= 0.3
        some += centres[rng.integers(0, 4096, len(some))]


def build(name: str, file: pathlib.Path) -> None:
    """Print the row of one tree."""
    data = np.load(file, mmap_mode="r")
    start = time.process_time()
    tree = BUILDERS[name](data)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"| `{name}` | {len(data):,} | {seconds:,.1f} | {peak / 1e9:.2f} | {data.nbytes / 1e9:.2f} | {tree.depth} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--width", type=int, default=16, help="of embeddings")
    parser.add_argument("--builders", nargs="+", choices=BUILDERS, default=list(BUILDERS))
    parser.add_argument("--build", nargs=2, help=argparse.SUPPRESS)  # a builder and its file, in a process of its own
    options = parser.parse_args()
    if options.build:
        build(options.build[0], pathlib.Path(options.build[1]))
        return
    lines = ["| builder | classes | processor time, s | peak memory, GB | of it at most the file's, GB | depth |"]
    lines.append("|---|---|---|---|---|---|")
    for name in options.builders:
        for size in options.classes:
            with tempfile.TemporaryDirectory() as folder:
                file = pathlib.Path(folder, "data.npy")
                write_weights(file, size) if name == "huffman" else write_embeddings(file, size, options.width)
                command = [sys.executable, __file__, "--build", name, str(file)]
                printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                print(printed, end="", flush=True)
                lines.append(printed.strip())
    write_table(lines, RESULTS / "builders.md")


if __name__ == "__main__":
    main()
