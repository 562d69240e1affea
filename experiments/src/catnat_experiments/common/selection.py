"""The best learning rate, from the records of a search, and the stages of such a search."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import pandas as pd

from catnat_experiments.engine.records import run_id
from catnat_experiments.engine.types import Config, Stage

SEARCH_SEED = 0
"""The seed of the search. Final runs have the seeds 1, 2 and so on, so no run is both selected and reported."""
Place = TypeVar("Place")
"""A setting with its own learning rate, such as a parameterization on a data set."""


def best_run(runs: Sequence[Config], records: pd.DataFrame, metric: str) -> Config:
    """Return the run with the lowest metric, and of equal ones that with the lowest learning rate."""
    values = dict(zip(records["id"], records[f"metrics.{metric}"], strict=True))
    finite = [run for run in runs if math.isfinite(values.get(run_id(run), math.nan))]
    if not finite:
        raise ValueError(
            f"No run of {runs[0]['parameterization']} has a finite {metric} in the records: finish the stage before, "
            "then repeat the command."
        )
    return min(finite, key=lambda run: (values[run_id(run)], run["rate"], run.get("network_rate", run["rate"])))


def rate_stages(
    places: Sequence[Place],
    grids: Mapping[str, Sequence[float]],
    seeds: int,
    searched: Callable[[Place, float], Config],
    final: Callable[[Place, float, int], Config],
    *,
    metric: str = "validation_nll",
    fixed: Sequence[float] = (),
    more: Sequence[Config] = (),
) -> list[Stage]:
    """Return a stage for each grid of learning rates, one run each, and a stage of final seeds at the best ones.

    Args:
        places: The settings with their own learning rate.
        grids: Learning rates by the name of their stage.
        seeds: The number of final runs of every setting.
        searched: A function from a setting and a learning rate to a run of the search.
        final: A function from a setting, a learning rate and a seed to a final run.
        metric: The metric that is lowest at the best learning rate.
        fixed: The learning rates of the final runs without grids.
        more: Other runs of the final stage.
    """

    def of_grid(grid: Sequence[float], _: pd.DataFrame) -> list[Config]:
        return [searched(place, rate) for place in places for rate in grid]

    def chosen(records: pd.DataFrame) -> list[tuple[Place, float]]:
        if not grids:
            return [(place, rate) for place in places for rate in fixed]
        rates = [rate for grid in grids.values() for rate in grid]
        best = [best_run([searched(place, rate) for rate in rates], records, metric) for place in places]
        return [(place, float(run["rate"])) for place, run in zip(places, best, strict=True)]

    def repeated(records: pd.DataFrame) -> list[Config]:
        """Return runs seed by seed, so that finished runs compare all settings."""
        arms = chosen(records)
        return [*(final(*arm, SEARCH_SEED + 1 + seed) for seed in range(seeds) for arm in arms), *more]

    searches = [
        Stage(name, functools.partial(of_grid, grid), f"{len(grid)} rates, one seed", len(places) * len(grid))
        for name, grid in grids.items()
    ]
    about = f"{seeds} seeds at the best rate by {metric}" if grids else f"{seeds} seeds at {', '.join(map(str, fixed))}"
    expected = seeds * len(places) * (1 if grids else len(fixed)) + len(more)
    return [*searches, Stage("final", repeated, about, expected)]
