"""Some seeds of PPO on a MinAtar game by hand."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from catnat_experiments.engine.loop import Printing
from catnat_experiments.tasks.minatar.task import MIDDLE, config
from catnat_experiments.tasks.minatar.training import METRICS, SPACE, train


def main(arguments: Sequence[str] | None = None) -> None:
    """Train some seeds of one configuration and print their mean."""
    parser = argparse.ArgumentParser(prog="python -m catnat_experiments.tasks.minatar", description=main.__doc__)
    parser.add_argument("--game", default="Breakout")
    parser.add_argument("--parameterization", default="natural")
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--seeds", type=int, default=2)
    for name in SPACE:
        parser.add_argument(f"--{name}", type=float, default=MIDDLE[name])
    given = parser.parse_args(arguments)
    began = time.perf_counter()
    knobs = {name: getattr(given, name) for name in SPACE}
    run = config(given.game, given.parameterization, 0, steps=given.steps, seeds=given.seeds, **knobs)
    [outcome] = train([run], Printing("return", "entropy", "dead", "divergence"))
    print(f"\n{time.perf_counter() - began:.1f} s")
    for name, about in METRICS.items():
        print(f"{name:12}{outcome.metrics[name]:10.4f}  {about}")


if __name__ == "__main__":
    main()
