"""How long a training step of the main VAE takes, beside the same step written plainly with ``torch.nn``.

    python benchmarks/vae_step.py                     # softmax and natural, N = 20, K = 32
    python benchmarks/vae_step.py sparsemax sigmoid   # other parameterizations beside softmax

All candidates take turns, in alternating order, in one process and on one thread. A time is the least of all rounds,
in processor time of the thread, so that other work on the machine disturbs it less; the ratio to the first candidate is
the median over rounds of the ratio within a round.
"""

from __future__ import annotations

import argparse
import math
import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from catnat_experiments.common import mnist
from catnat_experiments.common.parameterizations import parameterization
from catnat_experiments.tasks.vae import gumbel
from catnat_experiments.tasks.vae import task as vae
from catnat_experiments.tasks.vae.experiment import Cell


def straightforward(name: str, cell: Cell) -> Callable[[], object]:
    """A step as one would write it: modules, ``torch.optim.Adam``, torch's random numbers."""
    kind, images = parameterization(name), mnist.load("binary")
    latents, classes, scores = cell.latents, cell.classes, kind.num_scores(cell.classes)
    encoder = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(288, 128), nn.ReLU(), nn.Linear(128, latents * scores)),
    )
    decoder = nn.Sequential(
        *(nn.Linear(latents * classes, 128), nn.ReLU(), nn.Linear(128, 288), nn.ReLU(), nn.Unflatten(1, (32, 3, 3))),
        *(nn.ConvTranspose2d(32, 16, 3, 2), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.ConvTranspose2d(16, 8, 3, 2, 1, 1), nn.BatchNorm2d(8), nn.ReLU()),
        nn.ConvTranspose2d(8, 1, 3, 2, 1, 1),
    )
    train = images.floats(images.train).view(-1, 1, 28, 28)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.003)

    def step() -> None:
        x = train[torch.randint(len(train), (gumbel.BATCH,))]
        log_probs = kind.log_probs(kind.wrap(encoder(x).view(-1, latents, scores)))
        drawn = F.gumbel_softmax(log_probs, 0.8, hard=True)
        reconstruction = F.binary_cross_entropy_with_logits(decoder(drawn.flatten(1)), x, reduction="sum")
        kl = (log_probs.exp() * (log_probs + math.log(classes))).sum()
        optimizer.zero_grad()
        ((reconstruction + kl) / gumbel.BATCH).backward()
        optimizer.step()

    return step


def ours(name: str, cell: Cell) -> Callable[[], object]:
    """A step of the experiment."""
    return gumbel.Training(mnist.load("binary"), vae.EXPERIMENT.config(cell, name, 0.003, 0, steps=vae.STEPS)).advance


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parameterizations", nargs="*", default=["natural"])
    parser.add_argument("--latents", type=int, default=20)
    parser.add_argument("--classes", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10, help="of every candidate in a round")
    given = parser.parse_args()
    torch.set_num_threads(1)
    cell = Cell("adam", "binary", given.latents, given.classes)
    names = ["softmax", *(name for name in given.parameterizations if name != "softmax")]
    candidates = {name: ours(name, cell) for name in names}
    candidates |= {f"{name}, plain": straightforward(name, cell) for name in names}
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(given.rounds + 1):
        for name in list(candidates)[:: 1 - 2 * (turn % 2)]:
            began = time.thread_time()
            for _ in range(given.steps):
                candidates[name]()
            if turn:  # the first round warms up
                times[name].append((time.thread_time() - began) / given.steps)
    print(f"N = {given.latents}, K = {given.classes}, torch {torch.__version__}, {platform.machine()}, one thread")
    for name, measured in times.items():
        ratio = statistics.median(a / b for a, b in zip(measured, times["softmax"], strict=True))
        print(f"{name:36} {1e3 * min(measured):7.2f} ms   {ratio:5.2f} times softmax")


if __name__ == "__main__":
    main()
