"""The experiment on defaults: stages, tables."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from catnat_experiments.engine.experiment import EveryRunAlone, plan_of
from catnat_experiments.engine.loop import finished
from catnat_experiments.engine.records import run_id
from catnat_experiments.engine.types import Checkpointer, Config, Direction, Outcome, Stage
from catnat_experiments.report.tables import Table
from catnat_experiments.tasks.defaults import training
from catnat_experiments.tasks.defaults.bandit import Bandit
from catnat_experiments.tasks.defaults.classifier import Classifier
from catnat_experiments.tasks.defaults.panel import (
    BANDIT,
    EXTENSIONS,
    FACTOR,
    MANY_ACTIONS,
    MASKED,
    NAME,
    ORDER,
    PANEL,
    PRESETS,
    TREES,
    Task,
    Variant,
    rounded,
)
from catnat_experiments.tasks.defaults.table import Fit

BOTH_BANDITS = dataclasses.replace(BANDIT, variants=tuple(dict.fromkeys((*BANDIT.variants, *ORDER.variants))))
TASKS = (*(BOTH_BANDITS if task is BANDIT else task for task in PANEL), MANY_ACTIONS)
"""The tasks with all variants of any preset, for tables and figures."""
TRAININGS: dict[str, type[training.Training]] = {
    "classifier": Classifier,
    "bandit": Bandit,
    "many actions": Bandit,
    "table": Fit,
}

# ---- stages ----------------------------------------------------------------------------------------------------------


def best_rate(task: Task, variant: Variant, rates: Sequence[float], records: pd.DataFrame) -> float:
    """Return the learning rate with the best mean over the seeds of the search, of those without a diverged run."""
    values = dict(zip(records["id"], records[f"metrics.{task.selected_by}"], strict=True))
    sign = 1 if task.better == "lower" else -1
    means = {}
    for rate in rates:
        found = [float(values.get(run_id(run), math.nan)) for run in task.searched(variant, [rate])]
        means[rate] = sign * float(np.mean(found))
    finite = {rate: mean for rate, mean in means.items() if math.isfinite(mean)}
    if not finite:
        raise ValueError(
            f"No rate of {variant.name} in {task.name} has a finite {task.selected_by} in the records: finish the "
            "stage before, then repeat the command."
        )
    return min(finite, key=lambda rate: (finite[rate], rate))


def tried(task: Task, variant: Variant, records: pd.DataFrame, extensions: int) -> tuple[float, ...]:
    """Return the grid of a variant after some extensions, which change it only if its best one is at the edge."""
    rates = task.grid
    for _ in range(extensions):
        best = best_rate(task, variant, rates, records)
        if best == rates[0]:
            rates = (rounded(best / FACTOR**2), rounded(best / FACTOR), *rates)
        elif best == rates[-1]:
            rates = (*rates, rounded(best * FACTOR), rounded(best * FACTOR**2))
    return rates


class Defaults(EveryRunAlone):
    """The experiment: a search for learning rates, its extensions, then final seeds; every run is a group."""

    name = NAME
    packages = ("scikit-learn",)

    def stages(self, preset: str) -> list[Stage]:
        """Return the stages search, extensions and final."""
        panel = plan_of(preset, PRESETS, self.name)
        places = [(task, variant) for task in panel for variant in task.variants]
        searched = [run for task, variant in places for run in task.searched(variant, task.grid)]

        def extended(records: pd.DataFrame, extensions: int) -> list[Config]:
            return [
                run
                for task, variant in places
                for run in task.searched(variant, tried(task, variant, records, extensions))
                if run["rate"] not in tried(task, variant, records, extensions - 1)
            ]

        def final(records: pd.DataFrame) -> list[Config]:
            found = []
            for task, variant in places:
                rates = tried(task, variant, records, EXTENSIONS)
                found += task.repeated(variant, best_rate(task, variant, rates, records))
            return found

        expected = sum(task.seeds for task, _ in places)
        about = "two more rates where the best is at the edge"
        return [
            Stage("search", lambda _: searched, "rates, each a factor of 3 from the next", len(searched)),
            *(
                Stage(f"extension {number}", functools.partial(extended, extensions=number), about, 0)
                for number in range(1, EXTENSIONS + 1)
            ),
            Stage("final", final, "seeds at the best rate", expected),
        ]

    def train_one(self, run: Config, checkpointer: Checkpointer) -> Outcome:
        """Train a run of one of the tasks, resuming from the last checkpoint if there is one, and evaluate it."""
        return finished(TRAININGS[str(run["task"])](run), checkpointer)


# ---- the experiment, its tables and figures --------------------------------------------------------------------------

EXPERIMENT = Defaults()
DEFAULT = dict.fromkeys(("bandit", MANY_ACTIONS.name), f"sigmoid, {MASKED}")
"""The variant with the library's defaults, by task; "sigmoid" for all other tasks."""


def _table(task: Task, title: str, metric: str, better: Direction | None, **options: Any) -> Table:
    return Table(
        title=title,
        metric=metric,
        better=better,
        row="task",
        column="variant",
        columns=tuple(variant.name for variant in task.variants),
        where={"task": task.name},
        **options,
    )


def _main_table(task: Task) -> Table:
    """Return the table of every variant against softmax and against the library's default."""
    return _table(
        task,
        task.title,
        task.metric,
        task.better,
        baselines=("softmax", DEFAULT.get(task.name, "sigmoid")),
        listed=True,
        digits=task.digits,
        chosen=("rate",),
        note=task.note,
    )


_BY_NAME = {task.name: task for task in PANEL}


def _crossed(name: str, column: str, columns: Sequence[str], row: str, **where: str) -> Table:
    """Return a table of one choice at fixed values of the others: its first value, the default, against the rest."""
    task, at = _BY_NAME[name], "".join(f", {value}" for value in where.values())
    return Table(
        title=f"{task.title}, by {_WORDS[column]}{at}",
        metric=task.metric,
        better=task.better,
        row=row,
        row_title=_WORDS[row],
        column=column,
        columns=tuple(columns),
        where={"task": name, **where},
        baselines=(columns[0],),
        digits=task.digits,
    )


_WORDS = {"parameterization": "activation", "order": "order of classes"}

TABLES = (
    *map(_main_table, TASKS),
    *(_crossed(name, "order", training.ORDERS, "parameterization") for name in ("classifier", "table")),
    *(_crossed(name, "parameterization", TREES, "order") for name in _BY_NAME),
    _table(_BY_NAME["classifier"], "Classifier: accuracy", "test_accuracy", "higher", listed=True),
    _table(_BY_NAME["classifier"], "Classifier: saturated nodes, fraction", "test_saturated", None, listed=True),
    _table(_BY_NAME["bandit"], "Bandit: saturated nodes, fraction", "test_saturated", None, listed=True),
)


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Draw all tasks side by side, from records."""
    from catnat_experiments.tasks.defaults import figures as defaults_figures  # matplotlib takes a second to import

    return defaults_figures.figures(frame, directory, TASKS)
