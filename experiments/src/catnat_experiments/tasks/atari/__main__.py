"""One run of PPO on an Atari game by hand."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from catnat_experiments.engine.loop import Printing
from catnat_experiments.engine.types import Config
from catnat_experiments.tasks.atari.task import EXPERIMENT
from catnat_experiments.tasks.atari.training import DEFAULTS, METRICS


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one run and print its metrics."""
    parser = argparse.ArgumentParser(prog="python -m catnat_experiments.tasks.atari", description=main.__doc__)
    parser.add_argument("--game", default="breakout")
    parser.add_argument("--parameterization", default="natural")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=500_000)
    for name, value in DEFAULTS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    run: Config = {"experiment": "atari", **vars(parser.parse_args(arguments))}
    began = time.perf_counter()
    [outcome] = EXPERIMENT.train([run], Printing("return", "games", "entropy", "dead", "clipped", "kl", "value_loss"))
    print(f"\n{time.perf_counter() - began:.1f} s")
    for name, told in METRICS.items():
        print(f"{name:12}{outcome.metrics[name]:12.4f}  {told}")


if __name__ == "__main__":
    main()
