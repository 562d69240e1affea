"""The experiment on PPO for Atari: presets, stages, tables."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import pandas as pd
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution

from catnat_experiments.common.selection import SEARCH_SEED
from catnat_experiments.engine.experiment import EveryRunAlone, plan_of
from catnat_experiments.engine.loop import finished
from catnat_experiments.engine.search import Search, top
from catnat_experiments.engine.types import Checkpointer, Config, Outcome, Stage
from catnat_experiments.report.tables import Curve, Table
from catnat_experiments.report.targets import Target
from catnat_experiments.tasks.atari.training import DEFAULTS, LAST, UNTRAINED, Training

# ---- the paper's numbers ---------------------------------------------------------------------------------------------

IN_THE_PAPER = ("softmax", "natural")
ALL = ("softmax", "sigmoid", "natural")
PAPER = {
    "breakout": {"softmax": Target(398, 25, best=True), "natural": Target(406, 34, best=True)},
    "seaquest": {"softmax": Target(1875, 312, best=True), "natural": Target(2164, 533, best=True)},
}
"""Returns (Table 4), by game and parameterization. The paper's text calls natural better, but its test has a tie."""


# ---- presets and stages ----------------------------------------------------------------------------------------------

PAPER_STEPS = 8_000_000
SPACE: dict[str, BaseDistribution] = {
    "learning_rate": FloatDistribution(5e-5, 1e-2, log=True),
    "num_steps": IntDistribution(32, 512, step=32),
    "update_epochs": IntDistribution(1, 15, step=2),
    "clip_coef": FloatDistribution(0.01, 0.9),
    "ent_coef": FloatDistribution(0.0, 1.0),
    "num_envs": IntDistribution(8, 16, step=2),
    "num_minibatches": IntDistribution(2, 14, step=4),
    "max_grad_norm": FloatDistribution(0.1, 10.0, step=0.1),
}
"""The paper's search space."""


@dataclasses.dataclass(frozen=True)
class Preset:
    """The part of the table to compute.

    Attributes:
        games: The names of the games.
        parameterizations: The parameterizations of each game.
        steps: The number of steps of a run, over all its games.
        seeds: The number of final runs of each game and parameterization, or of each config that the search selects.
        untrained: The number of steps of each game's run without training.
        trials: The number of trials for each game and parameterization; 0 for CleanRL's hyperparameters.
        selected: The number of trials that are repeated in final runs.
    """

    games: tuple[str, ...]
    parameterizations: tuple[str, ...]
    steps: int
    seeds: int
    untrained: int
    trials: int = 0
    selected: int = 1


PRESETS = {
    # A test run, too short to learn.
    "quick": Preset(("breakout",), ALL, steps=8192, seeds=1, untrained=8192),
    # Both games of the paper's table at a sixteenth of its length, without its search.
    "games": Preset(("breakout", "seaquest"), IN_THE_PAPER, steps=500_000, seeds=3, untrained=51_200),
    # The paper's table, with its search.
    "paper": Preset(
        ("breakout", "seaquest"), IN_THE_PAPER, PAPER_STEPS, seeds=10, untrained=102_400, trials=160, selected=10
    ),
}


def config(game: str, name: str, seed: int, steps: int, **changes: float) -> Config:
    """Return all that affects a run: CleanRL's hyperparameters, except for the changes."""
    what: Config = {"experiment": "atari", "game": game, "parameterization": name, "seed": seed, "steps": steps}
    return {**what, **DEFAULTS, **changes}


@dataclasses.dataclass(frozen=True)
class Atari(EveryRunAlone):
    """The experiment: a search if the preset has one, then final seeds; every run is a group."""

    name = "atari"

    def stages(self, preset: str) -> list[Stage | Search]:
        """Return the search, if there is one, and the final runs."""
        plan = plan_of(preset, PRESETS, self.name)
        places = tuple(itertools.product(plan.games, plan.parameterizations))
        bases = [config(*place, SEARCH_SEED, plan.steps) for place in places]
        about = f"{plan.seeds} seed{'s' * (plan.seeds > 1)}, {plan.steps:,} steps, "
        if not plan.trials:
            runs = _repeated(bases, plan)
            return [Stage("final", lambda _: runs, about + "CleanRL's hyperparameters", len(runs))]
        told = f"TPE over {len(SPACE)} hyperparameters, {plan.steps:,} steps"
        search = Search("search", bases, SPACE, "return", "higher", plan.trials, told)

        def final(records: pd.DataFrame) -> list[Config]:
            return _repeated(top(records, search, plan.selected), plan)

        expected = plan.seeds * plan.selected * len(bases) + len(plan.games)
        return [search, Stage("final", final, about + f"the best {plan.selected} of each", expected)]

    def train_one(self, run: Config, checkpointer: Checkpointer) -> Outcome:
        """Train a run, resuming from the last checkpoint if there is one."""
        return finished(Training(run), checkpointer)


def _repeated(runs: Sequence[Config], plan: Preset) -> list[Config]:
    """Return untrained runs, then runs seed by seed, so that finished runs compare all settings."""
    first = SEARCH_SEED + 1
    untrained = [config(game, UNTRAINED, first, plan.untrained, update_epochs=0) for game in plan.games]
    return [*untrained, *({**run, "seed": seed} for seed in range(first, first + plan.seeds) for run in runs)]


EXPERIMENT = Atari()


def _table(title: str, metric: str, digits: int, **options: Any) -> Table:
    return Table(
        title=title,
        metric=metric,
        better=options.pop("better", None),
        row="game",
        column="parameterization",
        columns=ALL,
        digits=digits,
        curves=(Curve(metric, title.lower(), x_title="steps of all games"),),
        **options,
    )


TABLES = (
    _table(
        "Return",
        "return",
        1,
        better="higher",
        paper=PAPER,
        reference=UNTRAINED,
        baselines=("softmax",),
        note=f"The mean of the last {LAST} games of training. In the paper the difference is not significant.",
    ),
    _table("Entropy of the policy", "entropy", 3),
    _table("Saturated scores, fraction", "dead", 3),
)
