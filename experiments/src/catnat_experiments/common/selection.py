"""Which parameterization and rate is best, from the records of a search."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from catnat_experiments.engine.records import run_id
from catnat_experiments.engine.types import Config

SEARCH_SEED = 0
"""The seed of the search. Final runs have the seeds 1, 2, ...: no run is both selected by its luck and reported."""
Arm = tuple[str, float]
"""A parameterization and a rate."""


def ranked(runs: Sequence[Config], records: pd.DataFrame, metric: str = "validation_nll") -> list[Arm]:
    """Parameterizations and rates of these runs, lowest mean of the metric first; other records are ignored."""
    values = dict(zip(records["id"], records[f"metrics.{metric}"], strict=True))
    found: dict[Arm, list[float]] = {}
    for run in runs:
        arm = (str(run["parameterization"]), float(run["rate"]))
        found.setdefault(arm, []).append(float(values.get(run_id(run), math.nan)))
    finite = {arm: mean for arm, each in found.items() if math.isfinite(mean := sum(each) / len(each))}
    if not finite:
        raise ValueError(
            f"No run of {runs[0]['parameterization']} has a finite {metric} in the records: finish the stage before, "
            "then repeat the command."
        )
    return sorted(finite, key=lambda arm: (finite[arm], arm))
