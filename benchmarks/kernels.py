"""log_catnat beside log_softmax, forward and backward, with the fused kernels and without, on one thread and on two.

    python benchmarks/kernels.py

Each row of the table is one process, in which the methods alternate. Figures are ratios of least times: of processor
time on one thread, by the clock on two. The last column is a policy's step (build, draw, log-probability) of 8 rows and
18 classes, beside torch's Categorical.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch.distributions import Categorical

import catnat.torch as ct

SIZES = ((65536, 32), (7680, 32), (4096, 1024), (256, 32768))
ACTIVATIONS = ("sigmoid", "natural")
Job = Callable[[], object]


def least(jobs: list[Job], seconds: float, clock: Callable[[], float]) -> list[float]:
    """The least time of every job, in rounds of all."""
    best = [float("inf")] * len(jobs)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for i, job in enumerate(jobs):
            start = clock()
            job()
            best[i] = min(best[i], clock() - start)
    return best


def forward_backward(
    function: Callable[[torch.Tensor], torch.Tensor], rows: int, width: int, grad: torch.Tensor
) -> Job:
    leaf = torch.randn(rows, width, requires_grad=True)

    def job() -> None:
        leaf.grad = None
        function(leaf).backward(grad)

    return job


def log_probs(rows: int, classes: int) -> list[Job]:
    grad = torch.randn(rows, classes)
    jobs = [forward_backward(lambda x: torch.log_softmax(x, -1), rows, classes, grad)]
    return jobs + [
        forward_backward(lambda s, a=a: ct.log_catnat(s, activation=a), rows, classes - 1, grad) for a in ACTIVATIONS
    ]


@torch.no_grad()
def steps(build: Callable[[], torch.distributions.Distribution]) -> None:
    for _ in range(20):  # at a time, because one is close to the clock's resolution
        distribution = build()
        distribution.log_prob(distribution.sample())


def rollout() -> list[Job]:
    logits, scores = torch.randn(8, 18), torch.randn(8, 17)
    jobs: list[Job] = [lambda: steps(lambda: Categorical(logits=logits))]
    return jobs + [lambda a=a: steps(lambda: ct.Catnat(scores, activation=a)) for a in ACTIVATIONS]


def measure(threads: int, seconds: float) -> None:
    """One row of the table."""
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    cells = []
    for jobs in (*(log_probs(*size) for size in SIZES), rollout()):
        softmax, *ours = least(jobs, seconds, clock)
        cells.append(" / ".join(f"{each / softmax:.2f}" for each in ours))
    print(f"| {ct.kernels()['cpu']} | {threads} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0, help="how long each comparison runs")
    parser.add_argument("--threads", type=int, help="only one row, in this process")
    arguments = parser.parse_args()
    if arguments.threads:
        return measure(arguments.threads, arguments.seconds)
    print(f"ratios to softmax: {' / '.join(ACTIVATIONS)}\n")
    print(f"| kernels | threads | {' | '.join(f'{rows}x{classes}' for rows, classes in SIZES)} | step 8x18 |")
    print("|---|---|" + "---|" * (len(SIZES) + 1), flush=True)
    for switch in ("1", "0"):
        for threads in (1, 2):
            command = [sys.executable, __file__, "--threads", str(threads), "--seconds", str(arguments.seconds)]
            subprocess.run(command, env={**os.environ, "CATNAT_KERNELS": switch}, check=True)
    return None


if __name__ == "__main__":
    main()
