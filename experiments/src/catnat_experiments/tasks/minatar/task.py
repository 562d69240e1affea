"""The experiment on PPO for MinAtar: presets, stages, tables."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import pandas as pd

from catnat_experiments.engine.experiment import plan_of
from catnat_experiments.engine.extras import extra
from catnat_experiments.engine.records import run_id
from catnat_experiments.engine.search import Search, top
from catnat_experiments.engine.types import Checkpointer, Config, Outcome, Stage
from catnat_experiments.report.tables import Curve, Table
from catnat_experiments.tasks.minatar.training import (
    ENVS,
    EPOCHS,
    HIDDEN,
    LENGTH,
    MINIBATCHES,
    SPACE,
    shared_config,
    train,
)

with extra("minatar"):
    from catnat_experiments.tasks.minatar.ppo import GAMES, POLICIES

# ---- presets and stages ----------------------------------------------------------------------------------------------

FIRST_FINAL_SEED = 1000
"""The first seed of final runs. The search has the seeds 0, 1 and so on, so no run is both selected and reported."""
MOST_LANES = 10


@dataclasses.dataclass(frozen=True)
class Preset:
    """The amount of computation.

    Attributes:
        games: The names of the games.
        steps: The number of steps of a run.
        budget: The number of points that the search tries for each game and parameterization.
        search_seeds: The number of seeds of each point.
        seeds: The number of final runs at the best point.
        parameterizations: The names of the parameterizations.
    """

    games: tuple[str, ...]
    steps: int
    budget: int
    search_seeds: int
    seeds: int
    parameterizations: tuple[str, ...] = tuple(POLICIES)


PRESETS = {
    # A result in minutes.
    "quick": Preset(("Breakout",), 40_960, 3, 1, 5, ("softmax", "natural")),
    # Two games with many seeds, in about two core-hours.
    "evidence": Preset(GAMES, 204_800, 12, 2, 30),
}


def config(game: str, name: str, seed: int, *, steps: int, seeds: int = 1, **knobs: float) -> Config:
    """Return all that affects a run; ``knobs`` are all searched hyperparameters, or none."""
    return {
        "experiment": MinAtar.name,
        "game": game,
        "parameterization": name,
        "seed": seed,
        "seeds": seeds,
        "steps": steps,
        "envs": ENVS,
        "length": LENGTH,
        "epochs": EPOCHS,
        "minibatches": MINIBATCHES,
        "hidden": HIDDEN,
        **knobs,
    }


class MinAtar:
    """The experiment: a search by TPE for each game and parameterization, then seeds at its best point."""

    name = "minatar"
    packages = ("jax", "jaxlib", "optax", "gymnax")
    """The packages whose versions are in the records, beside those of all experiments."""

    def stages(self, preset: str) -> list[Stage | Search]:
        """Return the stages search and final."""
        plan = plan_of(preset, PRESETS, self.name)
        cells = list(itertools.product(plan.games, plan.parameterizations))
        bases = [config(*cell, 0, steps=plan.steps, seeds=plan.search_seeds) for cell in cells]
        search = Search(
            name="search",
            bases=bases,
            space=SPACE,
            metric="return",
            direction="higher",
            budget=plan.budget,
            about=f"TPE, {plan.budget} points of {plan.search_seeds} seeds, {plan.steps:,} steps",
        )

        def final(records: pd.DataFrame) -> list[Config]:
            return _repeated(top(records, search, 1), plan.seeds)

        about = f"{plan.seeds} seeds at the best point, {plan.steps:,} steps"
        return [search, Stage("final", final, about, plan.seeds * len(bases))]

    def groups(self, runs: list[Config]) -> list[list[Config]]:
        """Return groups of runs that share a program, with up to ten lanes, or one run if it has more."""
        together: dict[str, list[Config]] = {}
        for run in runs:
            together.setdefault(run_id(shared_config(run)), []).append(run)
        return [
            group[i : i + most]
            for group in together.values()
            for most in (max(1, MOST_LANES // int(group[0]["seeds"])),)
            for i in range(0, len(group), most)
        ]

    def train(self, runs: list[Config], checkpointer: Checkpointer) -> list[Outcome]:
        """Train one group; see :func:`train`."""
        return train(runs, checkpointer)


def _repeated(chosen: Sequence[Config], seeds: int) -> list[Config]:
    return [{**run, "seed": FIRST_FINAL_SEED + seed, "seeds": 1} for run in chosen for seed in range(seeds)]


# ---- the experiment, its tables and figures --------------------------------------------------------------------------

EXPERIMENT = MinAtar()


def _table(title: str, metric: str, better: Any, curves: tuple[Curve, ...] = (), **options: Any) -> Table:
    return Table(
        title=title,
        metric=metric,
        better=better,
        row="game",
        column="parameterization",
        columns=tuple(POLICIES),
        curves=curves,
        **options,
    )


TABLES = (
    _table(
        "Return",
        "return",
        "higher",
        (Curve("return", "mean return"),),
        digits=2,
        against="softmax",
        chosen=tuple(SPACE),
        note="Mean return of the episodes that ended in the last tenth of the training.",
    ),
    _table("Return over the whole training", "return_all", "higher", digits=2, against="softmax"),
    _table("Entropy of the policy at the end", "entropy", None, (Curve("entropy", "entropy"),), digits=3),
    _table("Saturated scores, fraction, at the end", "dead", None, (Curve("dead", "saturated scores"),)),
    _table(
        "Divergence of an update at the end",
        "divergence",
        None,
        (Curve("divergence", "KL divergence of an update", log=True),),
        note="KL divergence from the policy before an update to that after it, a mean over the visited states.",
    ),
)
