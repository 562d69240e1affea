"""The JAX counterpart beside JAX's own functions, each compiled: python benchmarks/jax_run.py

Times as in run.py, and writes results/jax.json, and results/jax.md from it. It also records what compiling costs: the
size of the program before optimization, and the seconds that the compiler takes.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import jax.numpy as jnp
import numpy as np
from records import RESULTS, commit, machine, table, without_and_with_kernels, write
from run import Job, Methods, compare

import catnat
import catnat.jax as cj

ACTIVATIONS = {"sigmoid": cj.sigmoid(), "natural": cj.natural()}
Function = Callable[[jax.Array], jax.Array]


def job(function: Callable[..., object], *inputs: jax.Array) -> Job:
    """The compiled ``function`` of ``inputs``, waited for."""
    compiled = jax.jit(function)
    return lambda: jax.block_until_ready(compiled(*inputs))


def forward_backward(function: Function) -> Callable[[jax.Array, jax.Array], object]:
    """The sum of the function's results, weighted, and its gradient."""
    return jax.value_and_grad(lambda inputs, weights: (weights * function(inputs)).sum())


def log_probs() -> Iterator[tuple[str, Methods]]:
    """log_catnat forward and backward beside jax.nn.log_softmax."""
    for rows, classes in ((65536, 32), (4096, 1024)):
        logits, weights = (jax.random.normal(jax.random.key(n), (rows, classes)) for n in (0, 1))
        methods = {"log_softmax": job(forward_backward(jax.nn.log_softmax), logits, weights)}
        for name, activation in ACTIVATIONS.items():
            function = forward_backward(lambda s, a=activation: cj.log_catnat(s, activation=a))
            methods[f"log_catnat {name}"] = job(function, logits[:, 1:], weights)
        yield f"log_probs, {rows}x{classes}", methods


def sampling() -> Iterator[tuple[str, Methods]]:
    """One draw a row beside jax.random.categorical."""
    rows, classes = 256, 1024
    key, logits = jax.random.key(0), jax.random.normal(jax.random.key(1), (rows, classes))
    methods = {"categorical": job(lambda key, x: jax.random.categorical(key, x), key, logits)}
    for name, activation in ACTIVATIONS.items():
        methods[f"sample {name}"] = job(
            lambda key, s, a=activation: cj.sample(s, activation=a, key=key), key, logits[:, 1:]
        )
    yield f"sample, {rows}x{classes}", methods


def compiling() -> dict[str, dict[str, float]]:
    """The program's size in megabytes of text and its seconds to compile, log_catnat forward and backward."""
    zipf = 1 / np.arange(1, 10**5 + 1)
    trees = {
        "balanced 2^16": catnat.balanced(2**16),
        "balanced 2^20": catnat.balanced(2**20),
        "chain 10^4": catnat.chain(10**4),
        "huffman 10^5": catnat.huffman(zipf),
    }
    results = {}
    for name, tree in trees.items():
        for kind, activation in {"sigmoid": cj.sigmoid(), "natural": cj.natural()}.items():
            function = forward_backward(lambda s, t=tree, a=activation: cj.log_catnat(s, t, a))
            lowered = jax.jit(function).lower(jnp.zeros((2, tree.num_nodes)), jnp.ones((2, tree.num_classes)))
            start = time.perf_counter()
            lowered.compile()
            results[f"{name}, {kind}"] = {
                "megabytes": round(len(lowered.as_text()) / 1e6, 3),
                "seconds": round(time.perf_counter() - start, 2),
            }
    return results


def measured(seconds: float) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    warnings.simplefilter("ignore", catnat.EdgeWarning)
    times = {case: compare(methods, seconds) for each in (log_probs, sampling) for case, methods in each()}
    return {"times": times, "compiling": compiling()}


def page(found: dict[str, Any]) -> str:
    lines = table({kernels: run["times"] for kernels, run in found.items()})
    off, on = (run["compiling"] for run in found.values())
    lines += ["", "What compiling costs, forward and backward; in brackets without the kernels.", ""]
    lines += ["| tree | megabytes of program | seconds |", "|---|---|---|"]
    for tree, cost in on.items():
        megabytes, seconds = (f"{cost[what]} ({off[tree][what]})" for what in ("megabytes", "seconds"))
        lines.append(f"| {tree} | {megabytes} | {seconds} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each comparison runs")
    parser.add_argument("--measure", action="store_true", help="only print what is measured, in this process")
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measured(arguments.seconds)))
        return
    found = without_and_with_kernels(__file__, "--measure", "--seconds", str(arguments.seconds))
    write({**machine(), "jax": jax.__version__, "commit": commit(), **found}, RESULTS / "jax.json")
    (RESULTS / "jax.md").write_text(page(found))
    print(page(found))


if __name__ == "__main__":
    main()
