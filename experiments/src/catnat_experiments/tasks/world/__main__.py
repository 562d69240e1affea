"""One run of the world model by hand."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from catnat_experiments.engine.loop import Printing
from catnat_experiments.tasks.world.task import PRESETS, config
from catnat_experiments.tasks.world.training import EXACT, METRICS, train

SHOWN = ("train_loss", "rollout", "kl", "entropy", "classes_alive", "dead")


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one run and print its metrics."""
    parser = argparse.ArgumentParser(prog="python -m catnat_experiments.tasks.world", description=main.__doc__)
    parser.add_argument("--classes", type=int, default=24, help="K, the number of classes of a latent variable")
    parser.add_argument("--parameterization", default="natural", help=f"or {EXACT}, for exact predictions")
    parser.add_argument("--rate", type=float, default=0.004)
    parser.add_argument("--steps", type=int, default=PRESETS["evidence"].steps)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    sizes = {"steps": given.steps, "test_sequences": PRESETS["evidence"].test_sequences}
    outcome = train(config(given.classes, given.parameterization, given.rate, given.seed, **sizes), Printing(*SHOWN))
    for name, value in outcome.metrics.items():
        print(f"{name:20}{value:12.4f}  {METRICS[name]}")


if __name__ == "__main__":
    main()
