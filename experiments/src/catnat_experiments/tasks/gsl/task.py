"""The experiment on graph structure learning: presets, stages, tables."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from catnat_experiments.common.selection import SEARCH_SEED, best_run
from catnat_experiments.engine.experiment import plan_of
from catnat_experiments.engine.records import run_id
from catnat_experiments.engine.types import Checkpointer, Config, Direction, Outcome, Stage
from catnat_experiments.report.tables import Claim, Curve, Table
from catnat_experiments.report.targets import claimed_rows
from catnat_experiments.tasks.gsl.data import DATA_SEED
from catnat_experiments.tasks.gsl.paper import IN_THE_PAPER, OPTIMAL, PAPER, THETAS
from catnat_experiments.tasks.gsl.training import (
    BATCH,
    SMALLEST_START,
    Rates,
    rates_of,
    shared_config,
    train,
)

# ---- presets and stages ----------------------------------------------------------------------------------------------

COARSE_RATES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
REFINED_RATES = {
    "sigmoid": (0.025, 0.03, 0.037, 0.045, 0.055, 0.067, 0.082),
    "natural": (0.012, 0.015, 0.018, 0.022, 0.027, 0.033, 0.041),
}
"""The paper's learning rates. Others have seven points from the best coarse one / 1.8 to 1.8 times it, even in log."""
REFINED_SPAN, REFINED_COUNT = 1.8, 7
RATES = (0.000625, 0.00125, 0.0025, *COARSE_RATES)
"""The grid for two learning rates: the coarse grid, and three lower ones, near natural's best single one."""
FIRST_PAIRS = tuple(itertools.product((0.0025, 0.01, 0.05), (0.02, 0.1, 0.5)))
"""The first learning rates of the scores and of W that are tried beside the single ones."""
ROUNDS = 2
"""The number of rounds that try the neighbours of the best pair, up to nine pairs of :data:`RATES` in each."""
MOST_LANES = 10


@dataclasses.dataclass(frozen=True)
class Preset:
    """The part of the table to compute."""

    thetas: tuple[float, ...]
    parameterizations: tuple[str, ...]
    coarse: tuple[float, ...]
    refine: bool
    seeds: int
    steps: int
    two_rates: tuple[str, ...] = ()  # parameterizations with a separate learning rate of W


_PAPER = Preset(THETAS, IN_THE_PAPER, COARSE_RATES, refine=True, seeds=10, steps=5000)
PRESETS = {
    # A part of the table in minutes.
    "quick": Preset((0.75,), IN_THE_PAPER, (0.01, 0.02, 0.05), refine=False, seeds=3, steps=2500),
    # The paper's table in full.
    "paper": _PAPER,
    # The other reading of the paper's search: a learning rate for W and one for the scores, from the same grid.
    "two-rates": dataclasses.replace(_PAPER, two_rates=("sparsemax", "natural")),
}


def refined_rates(name: str, best: float) -> list[float]:
    """Return the second grid of a parameterization, without the best learning rate of the first one.

    >>> refined_rates("softmax", 0.02)
    [0.01111, 0.01352, 0.01644, 0.02433, 0.02959, 0.036]
    """
    if name in REFINED_RATES:
        return list(REFINED_RATES[name])
    half = REFINED_COUNT // 2
    points = [best * REFINED_SPAN ** (step / half) for step in range(-half, half + 1) if step != 0]
    return [float(f"{point:.4g}") for point in points]


def neighbours(rates: Rates) -> list[Rates]:
    """Return the nearest pair of the grid and the pairs around it: nine, or fewer at an end.

    >>> neighbours((0.012, 0.5))
    [(0.005, 0.2), (0.005, 0.5), (0.01, 0.2), (0.01, 0.5), (0.02, 0.2), (0.02, 0.5)]
    """
    places = [min(range(len(RATES)), key=lambda place: abs(math.log(RATES[place] / rate))) for rate in rates]
    first, second = (RATES[max(place - 1, 0) : place + 2] for place in places)
    return list(itertools.product(first, second))


class GraphStructure:
    """The experiment: coarse grid, refined grid, pairs of learning rates, final seeds."""

    name = "gsl"

    def stages(self, preset: str) -> list[Stage]:
        """Return the stages coarse; refined and pairs, if the preset has them; and final."""
        plan = plan_of(preset, PRESETS, self.name)
        cells = len(plan.thetas) * len(plan.parameterizations)
        refined = len(plan.thetas) * sum(len(refined_rates(name, 1.0)) for name in plan.parameterizations)
        stages = [
            Stage("coarse", lambda _: _coarse(plan), f"{len(plan.coarse)} rates, one seed", cells * len(plan.coarse))
        ]
        if plan.refine:
            about = "rates around the best one by validation ES, one seed"
            stages.append(Stage("refined", lambda records: _refined(plan, records), about, refined))
        if plan.two_rates:
            stages += [_pairs_stage(plan, number) for number in range(ROUNDS + 1)]
        about = f"{plan.seeds} seeds at the best rate by validation ES, and the optimal row"
        expected = cells * plan.seeds + len(plan.thetas)
        return [*stages, Stage("final", lambda records: _final(plan, records), about, expected)]

    def groups(self, runs: list[Config]) -> list[list[Config]]:
        """Return groups of at most ten runs that differ only in learning rates and seed."""
        together: dict[str, list[Config]] = {}
        for run in runs:
            together.setdefault(run_id(shared_config(run)), []).append(run)
        return [group[i : i + MOST_LANES] for group in together.values() for i in range(0, len(group), MOST_LANES)]

    def train(self, runs: list[Config], checkpointer: Checkpointer) -> list[Outcome]:
        """Train one group; see :func:`train`."""
        return train(runs, checkpointer)


def config(
    theta: float,
    name: str,
    rate: float,
    seed: int,
    *,
    network_rate: float | None = None,
    steps: int = 5000,
) -> Config:
    """Return all that affects a run's results. W's learning rate has a key only if it is not that of the scores."""
    second: Config = {} if network_rate in (None, rate) else {"network_rate": network_rate}
    return {
        "experiment": GraphStructure.name,
        "theta": theta,
        "parameterization": name,
        "rate": rate,
        **second,
        "seed": seed,
        "steps": steps,
        "batch": BATCH,
        "graphs": 32,
        "graph_sets": BATCH,  # one for each data point
        "pairs": 10_000,
        "data_seed": DATA_SEED,
        "smallest_start": SMALLEST_START,
    }


def _cells(plan: Preset, names: Sequence[str] | None = None) -> list[tuple[float, str]]:
    return list(itertools.product(plan.thetas, plan.parameterizations if names is None else names))


def _config(plan: Preset, theta: float, name: str, rates: Rates, seed: int) -> Config:
    rate, network_rate = rates
    return config(theta, name, rate, seed, network_rate=network_rate, steps=plan.steps)


def _searched(plan: Preset, theta: float, name: str, pairs: Iterable[Rates]) -> list[Config]:
    return [_config(plan, theta, name, pair, SEARCH_SEED) for pair in pairs]


def _same(rates: Iterable[float]) -> list[Rates]:
    return [(rate, rate) for rate in rates]


def _best(runs: Sequence[Config], records: pd.DataFrame) -> Rates:
    """Return the learning rates with the lowest validation ES among these runs; other records are ignored."""
    return rates_of(best_run(runs, records, "validation_es"))


def _coarse(plan: Preset) -> list[Config]:
    return [run for theta, name in _cells(plan) for run in _searched(plan, theta, name, _same(plan.coarse))]


def _refined_of(plan: Preset, theta: float, name: str, records: pd.DataFrame) -> list[Config]:
    best, _ = _best(_searched(plan, theta, name, _same(plan.coarse)), records)
    return _searched(plan, theta, name, _same(refined_rates(name, best)))


def _refined(plan: Preset, records: pd.DataFrame) -> list[Config]:
    return [run for theta, name in _cells(plan) for run in _refined_of(plan, theta, name, records)]


def _pairs_stage(plan: Preset, number: int) -> Stage:
    """Return the stage of the first pairs, or of a round of neighbours; finished runs are listed but not run again."""
    cells = _cells(plan, plan.two_rates)
    about = "pairs of rates around the best by validation ES" if number else "first pairs of rates, of scores and of W"

    def runs(records: pd.DataFrame) -> list[Config]:
        return [run for cell in cells for run in _pairs_of(plan, *cell, number, records)]

    return Stage(f"pairs {number}", runs, f"{about}, one seed", len(cells) * len(FIRST_PAIRS))


def _pairs_of(plan: Preset, theta: float, name: str, number: int, records: pd.DataFrame) -> list[Config]:
    pairs = neighbours(_best(_tried(plan, theta, name, number, records), records)) if number else FIRST_PAIRS
    return _searched(plan, theta, name, pairs)


def _tried(plan: Preset, theta: float, name: str, rounds: int, records: pd.DataFrame) -> list[Config]:
    """Return all runs of the search for a setting before the pairs of this number."""
    tried = _searched(plan, theta, name, _same(plan.coarse))
    if plan.refine:
        tried += _refined_of(plan, theta, name, records)
    if name in plan.two_rates:
        tried += [run for number in range(rounds) for run in _pairs_of(plan, theta, name, number, records)]
    return tried


def _final(plan: Preset, records: pd.DataFrame) -> list[Config]:
    runs = []
    for theta, name in _cells(plan):
        best = _best(_tried(plan, theta, name, ROUNDS + 1, records), records)
        runs += [_config(plan, theta, name, best, SEARCH_SEED + 1 + seed) for seed in range(plan.seeds)]
    return runs + [config(theta, OPTIMAL, 0.0, 0, steps=0) for theta in plan.thetas]


# ---- the experiment, its tables and figures --------------------------------------------------------------------------

EXPERIMENT = GraphStructure()

_BASELINES = ("sparsemax", "softmax", "sigmoid")


def _table(title: str, metric: str, digits: int = 4, better: Direction = "lower", **options: Any) -> Table:
    paper = PAPER.get(metric, {})
    return Table(
        title=title,
        metric=metric,
        better=better,
        row="theta",
        row_title="theta*",
        column="parameterization",
        columns=IN_THE_PAPER,
        digits=digits,
        paper=paper,
        claims=tuple(Claim("natural", name, claimed_rows(paper, "natural", name, better)) for name in _BASELINES)
        if paper
        else (),
        **options,
    )


TABLES = (
    _table(
        "Energy score",
        "test_es_twice",
        digits=3,
        reference=OPTIMAL,
        chosen=("rate", "network_rate"),
        curves=(Curve("train_es", "energy score in training"),),
        note="Twice the paper's formula, as in its table. The records have both: test_es is the formula's.",
    ),
    _table(
        "PP-MAE, error of the median prediction",
        "pp_mae",
        reference=OPTIMAL,
    ),
    _table("PP-MSE, error of the mean prediction", "pp_mse", digits=3, reference=OPTIMAL),
    _table(
        "MAE on theta, all entries",
        "mae_theta",
        curves=(Curve("mae_theta", "MAE on theta", log=True),),
        note="474 of the 576 true entries are 0, which natural and sparsemax can reach exactly and the others cannot.",
    ),
    _table(
        "MAE on theta, true zeros",
        "mae_theta_zero",
        curves=(Curve("mae_theta_zero", "MAE on theta, true zeros", log=True),),
    ),
    _table(
        "MAE on theta, true edges",
        "mae_theta_edge",
        curves=(Curve("mae_theta_edge", "MAE on theta, true edges", log=True),),
    ),
    _table(
        "Saturated true zeros, fraction",
        "dead_zero",
        better="higher",
        curves=(Curve("dead_zero", "saturated true zeros"),),
        note="A saturated zero is right for good: it is a part of natural's advantage on theta.",
    ),
    _table(
        "Saturated true edges, fraction",
        "dead_edge",
        curves=(Curve("dead_edge", "saturated true edges"),),
        note="A saturated edge is lost: its probability stays 0 (or 1), and the energy score cannot recover.",
    ),
)


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Draw the hidden graph, the errors on theta and the saturated entries from records."""
    from catnat_experiments.tasks.gsl import figures as gsl_figures  # matplotlib takes a second to import

    return gsl_figures.figures(frame, directory)
