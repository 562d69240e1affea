"""One run of the VAE that learns by REINFORCE, by hand."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from catnat_experiments.tasks.vae.experiment import Cell, print_run
from catnat_experiments.tasks.vae_reinforce.task import EPOCH, EXPERIMENT


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one run and print its metrics."""
    parser = argparse.ArgumentParser(prog="python -m catnat_experiments.tasks.vae_reinforce", description=main.__doc__)
    parser.add_argument("--latents", type=int, default=10, help="N, the number of latent variables")
    parser.add_argument("--classes", type=int, default=8, help="K, the number of their classes")
    parser.add_argument("--parameterization", default="natural", help="+moving after it for a moving baseline")
    parser.add_argument("--rate", type=float, default=0.0002)
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    cell = Cell("adam", "binarized", given.latents, given.classes)
    sizes = {"steps": round(given.epochs * EPOCH), "test_images": 5000, "test_samples": 64}
    print_run(EXPERIMENT, EXPERIMENT.config(cell, given.parameterization, given.rate, given.seed, **sizes))


if __name__ == "__main__":
    main()
