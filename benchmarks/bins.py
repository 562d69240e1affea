"""cdf and quantiles of a histogram with very many bins: a path of a tree beside softmax, cumulative sum and search.

    python benchmarks/bins.py

One thread, methods alternated in one process, least processor time of many rounds. Scores and logits are given; what a
network before them costs is the same for both.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

import catnat.torch as ct

Job = Callable[[], object]


def least(jobs: list[Job], seconds: float) -> list[float]:
    """The least time of every job, in rounds of all."""
    best, end = [float("inf")] * len(jobs), time.monotonic() + seconds
    while time.monotonic() < end:
        for i, job in enumerate(jobs):
            start = time.process_time()
            job()
            best[i] = min(best[i], time.process_time() - start)
    return best


def softmax_cdf(logits: torch.Tensor, edges: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    probs = logits.softmax(-1)
    index = torch.searchsorted(edges, x, right=True).clamp(1, probs.shape[-1]).unsqueeze(-1) - 1
    inside = (x.unsqueeze(-1) - edges[index]) / (edges[index + 1] - edges[index])
    picked = probs.gather(-1, index)
    return (probs.cumsum(-1).gather(-1, index) - picked + picked * inside).squeeze(-1)


def softmax_icdf(logits: torch.Tensor, edges: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    probs = logits.softmax(-1)
    sums = probs.cumsum(-1)
    index = torch.searchsorted(sums, u.unsqueeze(-1)).clamp(max=probs.shape[-1] - 1)
    inside = 1 - (sums.gather(-1, index) - u.unsqueeze(-1)) / probs.gather(-1, index)
    return (edges[index] + (edges[index + 1] - edges[index]) * inside).squeeze(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("| bins | cdf, softmax (ms) | cdf, path (ms) | | quantile, softmax (ms) | quantile, path (ms) | |")
    print("|---|---|---|---|---|---|---|")
    for bins in (256, 4096, 65536):
        edges = np.linspace(-1, 1, bins + 1)
        logits, scores = torch.randn(options.rows, bins), torch.randn(options.rows, bins - 1)
        made = ct.BinnedCatnat(scores, edges, validate_args=False)
        x, u, grid = 2 * torch.rand(options.rows) - 1, torch.rand(options.rows), torch.tensor(edges).float()
        jobs: list[Job] = [
            lambda logits=logits, grid=grid, x=x: softmax_cdf(logits, grid, x),
            lambda made=made, x=x: made.cdf(x),
            lambda logits=logits, grid=grid, u=u: softmax_icdf(logits, grid, u),
            lambda made=made, u=u: made.icdf(u),
        ]
        with torch.no_grad():
            cdf, path_cdf, quantile, path_quantile = (1e3 * seconds for seconds in least(jobs, options.seconds))
        print(
            f"| {bins:,} | {cdf:.2f} | {path_cdf:.2f} | {cdf / path_cdf:.1f}x "
            f"| {quantile:.2f} | {path_quantile:.2f} | {quantile / path_quantile:.1f}x |"
        )


if __name__ == "__main__":
    main()
