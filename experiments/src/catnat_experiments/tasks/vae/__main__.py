"""One run of the main VAE by hand."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from catnat_experiments.tasks.vae.experiment import Cell, print_run
from catnat_experiments.tasks.vae.task import EXPERIMENT, STEPS


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one run and print its metrics."""
    parser = argparse.ArgumentParser(prog="python -m catnat_experiments.tasks.vae", description=main.__doc__)
    parser.add_argument("--optimizer", default="adam", help="adam or sgd")
    parser.add_argument("--data", default="binary", help="grey or binary")
    parser.add_argument("--latents", type=int, default=20, help="N, the number of latent variables")
    parser.add_argument("--classes", type=int, default=32, help="K, the number of their classes")
    parser.add_argument("--parameterization", default="natural")
    parser.add_argument("--rate", type=float, default=0.0069)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--test-images", type=int, default=10_000)
    parser.add_argument("--test-samples", type=int, default=512)
    given = parser.parse_args(arguments)
    cell = Cell(given.optimizer, given.data, given.latents, given.classes)
    sizes = {"steps": given.steps, "test_images": given.test_images, "test_samples": given.test_samples}
    print_run(EXPERIMENT, EXPERIMENT.config(cell, given.parameterization, given.rate, given.seed, **sizes))


if __name__ == "__main__":
    main()
