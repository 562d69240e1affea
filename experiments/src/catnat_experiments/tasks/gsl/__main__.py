"""One run of graph structure learning by hand."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence

from catnat_experiments.engine.loop import Printing
from catnat_experiments.tasks.gsl.paper import METRICS, OPTIMAL
from catnat_experiments.tasks.gsl.task import config
from catnat_experiments.tasks.gsl.training import train


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one run and print its metrics beside those of the truth."""
    parser = argparse.ArgumentParser(prog="python -m catnat_experiments.tasks.gsl", description=main.__doc__)
    parser.add_argument("--theta", type=float, default=0.75, help="theta*, the probability of a true edge")
    parser.add_argument("--parameterization", default="natural")
    parser.add_argument("--rate", type=float, default=0.01, help="Adam's, for the scores")
    parser.add_argument("--network-rate", type=float, help="Adam's, for W; that of the scores if not given")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    began = time.perf_counter()
    run = config(
        given.theta, given.parameterization, given.rate, given.seed, network_rate=given.network_rate, steps=given.steps
    )
    shown = Printing("train_es", "mae_theta", "dead_zero", "dead_edge")
    [learned] = train([run], shown)
    seconds = time.perf_counter() - began
    [optimal] = train([config(given.theta, OPTIMAL, 0.0, 0, steps=0)], shown)
    print(f"\n{seconds:.1f} s\n{'':16}{given.parameterization:>12}{OPTIMAL:>12}")
    for name, about in METRICS.items():
        if name in learned.metrics:
            print(f"{name:16}{learned.metrics[name]:12.4f}{optimal.metrics.get(name, math.nan):12.4f}  {about}")


if __name__ == "__main__":
    main()
