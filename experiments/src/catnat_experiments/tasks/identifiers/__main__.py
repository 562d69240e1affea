"""One run of next-token modelling by hand."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

from catnat_experiments.engine.loop import Printing
from catnat_experiments.tasks.identifiers.heads import HEADS
from catnat_experiments.tasks.identifiers.task import PRESETS, config
from catnat_experiments.tasks.identifiers.training import METRICS, train


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one run and print its metrics."""
    parser = argparse.ArgumentParser(prog="python -m catnat_experiments.tasks.identifiers", description=main.__doc__)
    parser.add_argument("--head", default="huffman sigmoid", help=", ".join(HEADS))
    parser.add_argument("--rate", type=float, default=0.003)
    parser.add_argument("--seconds", type=float, default=60.0, help="of processor time")
    parser.add_argument("--classes", type=int, default=PRESETS["evidence"].classes)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    plan = dataclasses.replace(PRESETS["evidence"], seconds=given.seconds, classes=given.classes, validation_windows=32)
    outcome = train(config(given.head, given.rate, given.seed, plan), Printing("train_loss", "nll", "steps"))
    for name, about in METRICS.items():
        print(f"{name:20}{outcome.metrics[name]:16.4f}  {about}")


if __name__ == "__main__":
    main()
