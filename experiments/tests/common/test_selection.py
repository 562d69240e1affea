"""The choice of a rate, and the stages of a search for rates."""

from __future__ import annotations

import math
from collections.abc import Callable

import pandas as pd
import pytest

from catnat_experiments.common.selection import best_run, rate_stages
from catnat_experiments.engine.records import run_id
from catnat_experiments.engine.types import Config, Stage

BEST = {"softmax": 0.1, "natural": 0.3}
GRIDS = {"coarse": (0.1, 0.2), "refined": (0.3, 0.4)}


def records_of(runs: list[Config], score: Callable[[Config], float]) -> pd.DataFrame:
    return pd.DataFrame([{"id": run_id(run), "metrics.loss": score(run)} for run in runs])


def stages(**changes: object) -> list[Stage]:
    options = {"grids": GRIDS, "metric": "loss", **changes}
    return rate_stages(
        list(BEST),
        seeds=2,
        searched=lambda name, rate: {"parameterization": name, "rate": rate, "seed": 0},
        final=lambda name, rate, seed: {"parameterization": name, "rate": rate, "seed": seed, "steps": 9},
        **options,  # type: ignore[arg-type]
    )


def test_final_runs_have_the_best_rate_of_all_grids_and_seeds_of_their_own() -> None:
    coarse, refined, final = stages(more=[{"seed": 7}])
    searched = [run for stage in (coarse, refined) for run in stage.runs(pd.DataFrame())]
    assert [run["rate"] for run in searched] == [0.1, 0.2, 0.1, 0.2, 0.3, 0.4, 0.3, 0.4]
    # A better record of another run does not count, and neither does one that is not finite.
    alien = {**searched[0], "steps": 77, "rate": 0.2}
    score = {run_id(run): float(run["rate"] != BEST[str(run["parameterization"])]) for run in searched}
    score |= {run_id(alien): -1.0, run_id(searched[1]): math.nan}
    runs = final.runs(records_of([*searched, alien], lambda run: score[run_id(run)]))
    learned = [(run["parameterization"], run["rate"], run["seed"]) for run in runs[:-1]]
    assert learned == [(name, rate, seed) for seed in (1, 2) for name, rate in BEST.items()]
    assert runs[-1] == {"seed": 7}
    assert [stage.expected_runs for stage in (coarse, refined, final)] == [4, 4, 5]


def test_without_a_grid_all_fixed_rates_are_final() -> None:
    [final] = stages(grids={}, fixed=(0.5, 0.6))
    runs = final.runs(pd.DataFrame())
    assert len(runs) == final.expected_runs == 8
    assert {run["rate"] for run in runs} == {0.5, 0.6}


def test_of_equal_runs_the_lowest_rates_win() -> None:
    runs: list[Config] = [{"rate": 0.2}, {"rate": 0.1, "network_rate": 0.3}, {"rate": 0.1}]
    assert best_run(runs, records_of(runs, lambda run: 1.0), "loss") == {"rate": 0.1}


def test_nothing_finite_is_an_error_that_says_what_to_do() -> None:
    runs: list[Config] = [{"parameterization": "natural", "rate": 0.1}]
    with pytest.raises(ValueError, match="No run of natural has a finite loss in the records: finish the stage before"):
        best_run(runs, records_of(runs, lambda run: math.nan), "loss")
