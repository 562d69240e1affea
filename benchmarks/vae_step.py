"""A training step of the categorical autoencoder with catnat beside one with softmax: python benchmarks/vae_step.py

The experiment's own training (N = 20, K = 32, 100 images a step), one thread, the three in turn. Prints the median of
their processor times, and of the ratios to softmax in each round.
"""

from __future__ import annotations

import argparse

import torch
from catnat_experiments.common import mnist
from catnat_experiments.tasks.vae.experiment import Cell
from catnat_experiments.tasks.vae.gumbel import Training
from catnat_experiments.tasks.vae.task import EXPERIMENT
from run import compare

import catnat.torch as ct


def training(name: str) -> Training:
    run = EXPERIMENT.config(Cell("adam", "binary", 20, 32), name, 0.003, 0, steps=50_000)
    return Training(mnist.load("binary"), run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the comparison runs")
    torch.set_num_threads(1)
    jobs = {name: training(name).advance for name in ("softmax", "sigmoid", "natural")}
    print(ct.kernels()["cpu"])
    for name, measured in compare(jobs, parser.parse_args().seconds).items():
        print(name, measured)


if __name__ == "__main__":
    main()
