"""The same search for many methods: two dials from 0 to 1 for each, set by Optuna, and then final seeds."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

import pandas as pd
from optuna.distributions import FloatDistribution

from catnat_experiments.common.selection import SEARCH_SEED
from catnat_experiments.engine.search import Search, top
from catnat_experiments.engine.types import Config, Stage

_SPACE = {"first": FloatDistribution(0.0, 1.0), "second": FloatDistribution(0.0, 1.0)}


def dial(value: float, low: float, high: float) -> float:
    """Map a value from 0 to 1 to a range, on a logarithmic scale.

    >>> dial(0.5, 0.01, 1.0)
    0.1
    """
    return float(low * (high / low) ** value)


@dataclasses.dataclass(frozen=True)
class Preset:
    """The amount of computation.

    Attributes:
        methods: The methods of each data set.
        trials: The number of trials for every method.
        seeds: The number of final runs of every method.
    """

    methods: Mapping[str, tuple[str, ...]]
    trials: int
    seeds: int


def search_and_final(experiment: str, plan: Preset, metric: str, about: str) -> list[Stage | Search]:
    """Return stages that search every method on every data set for the lowest metric, and repeat its best trial."""
    bases: list[Config] = [
        {"experiment": experiment, "data": data, "parameterization": method, "seed": SEARCH_SEED}
        for data, names in plan.methods.items()
        for method in names
    ]
    search = Search(
        "search",
        bases,
        _SPACE,
        metric=metric,
        direction="lower",
        budget=plan.trials,
        about=f"{plan.trials} trials of Optuna for every method, by validation {about}",
        at_once=1,
    )

    def final(records: pd.DataFrame) -> list[Config]:
        """Return runs seed by seed, so that finished runs compare all methods."""
        seeds = range(SEARCH_SEED + 1, SEARCH_SEED + 1 + plan.seeds)
        return [{**run, "seed": seed} for seed, run in itertools.product(seeds, top(records, search, 1))]

    return [search, Stage("final", final, f"{plan.seeds} seeds of the best trial", plan.seeds * len(bases))]
