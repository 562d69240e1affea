"""Which activation, boundary, mask mode and order of classes should be the default: six small tasks, one protocol.

A *panel* of tasks, each for one kind of use: a classifier, a bandit with masks, a table of probabilities (these three
are in ``defaults_tasks.py``), and small sizes of three experiments that exist: a VAE, graph structure learning, PPO on
a MinAtar game. On each of them softmax is compared with the tree's activations, and where that has a meaning with
other orders of classes and both mask modes. Every variant gets a rate of its own, from a grid that is the same for all
variants of a task and that grows where the best rate is at its edge. Final runs have other seeds than the search.

Run one task alone, whose records count for the whole panel too::

    catnat-experiments run defaults --preset bandit
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from catnat_experiments.engine.experiment import Config, Experiment, Keeper, Outcome, Stage, extra, plan_of
from catnat_experiments.engine.records import run_id
from catnat_experiments.report.markdown import Table
from catnat_experiments.report.statistics import Direction
from catnat_experiments.tasks.defaults import small as defaults_small
from catnat_experiments.tasks.gsl import task as gsl
from catnat_experiments.tasks.vae import task as vae
from catnat_experiments.tasks.vae.experiment import Cell

with extra("defaults"):
    from catnat_experiments.tasks.minatar import task as minatar

# ---- variants --------------------------------------------------------------------------------------------------------

TREES = ("sigmoid", "natural", "natural-reflect", "natural-tail")
"""Activations, by their names in ``parameterizations.py``; "natural" has the boundary "clamp"."""
MASK_MODES = ("prune", "renormalize")


@dataclasses.dataclass(frozen=True)
class Variant:
    """What is compared.

    Attributes:
        parameterization: "softmax", or the activation of a tree.
        order: Of the classes, where that is compared.
        mask_mode: Where there are masks. For softmax both are the same.
    """

    parameterization: str
    order: str = ""
    mask_mode: str = ""

    @property
    def name(self) -> str:
        """What differs from the first of its kind, in words.

        >>> Variant("natural", "random").name, Variant("natural", "given", "prune").name, Variant("softmax").name
        ('natural, random', 'natural, prune', 'softmax')
        """
        more = (self.mask_mode, self.order if self.order != "given" else "")
        return ", ".join((self.parameterization, *filter(None, more if self.parameterization in TREES else ())))

    @property
    def config(self) -> Config:
        """Its part of a config; what is not compared is not in it."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value} | {"variant": self.name}


def _variants(orders: Sequence[str] = ("",), mask_modes: Sequence[str] = ("",)) -> tuple[Variant, ...]:
    """Softmax, and every tree in every order with every mask mode."""
    trees = itertools.product(TREES, mask_modes, orders)
    softmax = Variant("softmax", orders[0], mask_modes[-1])
    return (softmax, *(Variant(name, order, mode) for name, mode, order in trees))


# ---- tasks -----------------------------------------------------------------------------------------------------------

SEARCH_SEED, FIRST_FINAL_SEED = 0, 1000
"""The search has the seeds 0, 1, ...: no run is both selected by its luck and reported."""
FACTOR = 3.0
"""From one rate to the next."""
EXTENSIONS = 2
"""How often a grid is extended where its best rate is at its edge, each time by two rates."""

Base = Callable[[Variant, float, int, int], Config]


@dataclasses.dataclass(frozen=True)
class Task:
    """One task of the panel.

    Attributes:
        name: What configs call it.
        title: Of its table.
        metric: What variants are judged by.
        selected_by: What rates are selected by.
        better: Whether lower or higher values of both are better.
        variants: That are compared; the first is softmax.
        first_rate: The lowest rate of the grid.
        steps: Of a final run.
        base: From a variant, a rate, a seed and a number of steps to the task's own part of a config.
        seconds: Of processor time for a final run, as measured.
        search_steps: Of the runs of the search, if not as many.
        rates: In the grid.
        search_seeds: Runs at each rate.
        seeds: Final runs of each variant.
        digits: In its table.
        note: Under its table.
    """

    name: str
    title: str
    metric: str
    selected_by: str
    better: Direction
    variants: tuple[Variant, ...]
    first_rate: float
    steps: int
    base: Base
    seconds: float
    search_steps: int = 0
    rates: int = 5
    search_seeds: int = 1
    seeds: int = 5
    digits: int = 3
    note: str = ""

    @property
    def grid(self) -> tuple[float, ...]:
        """The rates of the search, before it is extended."""
        return tuple(_rounded(self.first_rate * FACTOR**place) for place in range(self.rates))

    def config(self, variant: Variant, rate: float, seed: int, steps: int) -> Config:
        """All that decides a run's numbers."""
        what: Config = {"experiment": Defaults.name, "task": self.name, "rate": rate, "seed": seed, "steps": steps}
        return {**variant.config, **self.base(variant, rate, seed, steps), **what}

    def searched(self, variant: Variant, rates: Sequence[float]) -> list[Config]:
        """The runs of a search."""
        seeds = range(SEARCH_SEED, SEARCH_SEED + self.search_seeds)
        steps = self.search_steps or self.steps
        return [self.config(variant, rate, seed, steps) for rate in rates for seed in seeds]

    def repeated(self, variant: Variant, rate: float) -> list[Config]:
        """The final runs."""
        seeds = range(FIRST_FINAL_SEED, FIRST_FINAL_SEED + self.seeds)
        return [self.config(variant, rate, seed, self.steps) for seed in seeds]


def _rounded(rate: float) -> float:
    return float(f"{rate:.4g}")


def _small(**sizes: int) -> Base:
    return lambda variant, rate, seed, steps: {**sizes}


def _vae(variant: Variant, rate: float, seed: int, steps: int) -> Config:
    """With the warm-up, whatever the variant: the start is another study's question."""
    few = {"validation_images": 1000, "validation_samples": 16, "test_images": 1000, "test_samples": 64}
    return vae.EXPERIMENT.config(_CELL, f"{variant.parameterization}+warm-up", rate, seed, steps=steps, **few)


_CELL = Cell("adam", "binary", 20, 16)


def _graph(variant: Variant, rate: float, seed: int, steps: int) -> Config:
    return gsl.config(0.5, variant.parameterization, rate, seed, steps=steps)


def _game(variant: Variant, rate: float, seed: int, steps: int) -> Config:
    """With the clip range and the entropy bonus in the middle of what ``minatar`` searches."""
    run = minatar.config("Breakout", variant.parameterization, seed, steps=steps)
    return {**run, **minatar.MIDDLE, "rate": rate}


PANEL = (
    Task(
        name="classifier",
        title="Classifier: log loss",
        metric="test_log_loss",
        selected_by="validation_log_loss",
        better="lower",
        variants=_variants(defaults_small.ORDERS),
        first_rate=0.002,
        steps=500,
        base=_small(batch=64, hidden=64),
        seconds=1.0,
        search_seeds=2,
        note="Nats an image, on 500 test images of scikit-learn's digits.",
    ),
    Task(
        name="bandit",
        title="Bandit with masks: reward",
        metric="test_reward",
        selected_by="validation_reward",
        better="higher",
        variants=tuple(
            variant
            for variant in _variants(("given", "embeddings"), MASK_MODES)
            if variant.parameterization != "natural-reflect"  # 30 seeds on two games say enough: docs/games.md
        ),
        first_rate=0.003,
        steps=400,
        base=_small(batch=64, hidden=32, actions=1000, valid=20),
        seconds=5.0,
        rates=3,
        note="Expected reward of the policy, on 500 contexts with 20 of 1,000 actions valid in each. "
        "A uniform policy earns about 0, the best one 1.7.",
    ),
    Task(
        name="vae",
        title="VAE: negative log-likelihood",
        metric="test_nll",
        selected_by="validation_nll",
        better="lower",
        variants=_variants(),
        first_rate=0.0005,
        steps=1000,
        base=_vae,
        seconds=20.0,
        search_steps=300,
        rates=4,
        digits=1,
        note="Nats an image, on 1,000 test images of binary MNIST, 64 importance samples; N = 20, K = 16.",
    ),
    Task(
        name="gsl",
        title="Graph structure learning: MAE on theta",
        metric="mae_theta",
        selected_by="validation_es",
        better="lower",
        variants=_variants(),
        first_rate=0.005,
        steps=700,
        base=_graph,
        seconds=6.0,
        digits=4,
        note="Mean |theta - theta\\*| over all 576 entries, at theta\\* = 0.5; rates are selected by the validation "
        "energy score.",
    ),
    Task(
        name="minatar",
        title="MinAtar's Breakout: return",
        metric="return",
        selected_by="return",
        better="higher",
        variants=_variants(),
        first_rate=0.0003,
        steps=102_400,
        base=_game,
        seconds=5.0,
        digits=2,
        note="Mean return of the episodes that ended in the last tenth of 102,400 steps of PPO.",
    ),
    Task(
        name="table",
        title="Table of probabilities: divergence",
        metric="test_kl",
        selected_by="validation_kl",
        better="lower",
        variants=_variants(defaults_small.ORDERS),
        first_rate=0.003,
        steps=500,
        base=_small(batch=8, rows=32, classes=64),
        seconds=0.7,
        search_seeds=2,
        digits=4,
        note="KL divergence from the true probabilities, the mean over 32 rows of 64 classes, after 500 steps of 8 "
        "draws a row.",
    ),
)


def _tiny(task: Task) -> Task:
    """Seconds instead of minutes: does it run?"""
    game = task.name == "minatar"  # whose programs take half a minute to compile
    chosen = [v for v in task.variants if not game or v.parameterization in ("softmax", "natural")]
    steps = 4 * minatar.ENVS * minatar.LENGTH if game else task.steps // 100
    small = dataclasses.replace(task, variants=tuple(chosen), steps=steps, search_steps=0)
    return dataclasses.replace(small, rates=2, search_seeds=1, seeds=2)


PRESETS: dict[str, tuple[Task, ...]] = {
    # A look in minutes: nothing is learned.
    "quick": tuple(map(_tiny, PANEL)),
    # The page in the documentation.
    "evidence": PANEL,
    # One task of it alone.
    **{task.name: (task,) for task in PANEL},
}

# ---- stages ----------------------------------------------------------------------------------------------------------


def best_rate(task: Task, variant: Variant, rates: Sequence[float], records: pd.DataFrame) -> float:
    """The rate with the best mean over the seeds of the search; one with a run that diverged is not in question."""
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
    """The grid of a variant after so many extensions: none where its best rate is inside."""
    rates = task.grid
    for _ in range(extensions):
        best = best_rate(task, variant, rates, records)
        if best == rates[0]:
            rates = (_rounded(best / FACTOR**2), _rounded(best / FACTOR), *rates)
        elif best == rates[-1]:
            rates = (*rates, _rounded(best * FACTOR), _rounded(best * FACTOR**2))
    return rates


class Defaults:
    """The experiment as the engine knows it: a search for rates, its extensions, then final seeds."""

    name = "defaults"
    packages = ("scikit-learn", *minatar.EXPERIMENT.packages)

    def stages(self, preset: str) -> list[Stage]:
        """Search, extensions and final."""
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

        alike = tuple(run for task, variant in places for run in task.repeated(variant, task.grid[0]))
        about = "two more rates where the best is at the edge"
        return [
            Stage("search", lambda _: searched, "rates, each a factor of 3 from the next", len(searched)),
            *(
                Stage(f"extension {number}", functools.partial(extended, extensions=number), about, 0)
                for number in range(1, EXTENSIONS + 1)
            ),
            Stage("final", final, "seeds at the best rate", len(alike), alike),
        ]

    def groups(self, runs: list[Config]) -> list[list[Config]]:
        """As the experiments group them that the tasks are from; the small tasks one by one."""
        found: list[list[Config]] = []
        for task in dict.fromkeys(str(run["task"]) for run in runs):
            mine = [run for run in runs if run["task"] == task]
            found += _LANES[task].groups(mine) if task in _LANES else [[run] for run in mine]
        return found

    def train(self, runs: list[Config], keeper: Keeper) -> list[Outcome]:
        """Train one group, by what its task is from."""
        task = str(runs[0]["task"])
        if task in _LANES:
            return _LANES[task].train(runs, keeper)
        [run] = runs
        return [vae.EXPERIMENT.train_one(run, keeper) if task == "vae" else defaults_small.train(run, keeper)]

    def seconds_per_group(self, runs: list[Config]) -> float:
        """From what was measured once for each task."""
        task = next(task for task in PANEL if task.name == runs[0]["task"])
        return sum(task.seconds * float(run["steps"]) / task.steps for run in runs)


_LANES: Mapping[str, Experiment] = {"gsl": gsl.EXPERIMENT, "minatar": minatar.EXPERIMENT}
"""Whose runs are trained side by side."""

# ---- what the engine and the report take from this file --------------------------------------------------------------

EXPERIMENT = Defaults()
CURRENT = {"bandit": "natural, prune"}
"""What the library does now if nobody chooses; "natural" where nothing else is named."""


def _table(task: Task, title: str, metric: str, better: Direction | None, **options: Any) -> Table:
    return Table(
        title=title,
        metric=metric,
        better=better,
        row="task",
        column="variant",
        columns=tuple(variant.name for variant in task.variants),
        where={"task": task.name},
        optional=True,
        **options,
    )


def _main_table(task: Task) -> Table:
    """Every variant against softmax and against the library's default."""
    return _table(
        task,
        task.title,
        task.metric,
        task.better,
        baselines=("softmax", CURRENT.get(task.name, "natural")),
        listed=True,
        digits=task.digits,
        chosen=("rate",),
        note=task.note,
    )


_BY_NAME = {task.name: task for task in PANEL}


def _crossed(name: str, column: str, columns: Sequence[str], row: str, **where: str) -> Table:
    """One choice at the same value of the others: its first value, the library's, against the others."""
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
        optional=True,
        digits=task.digits,
    )


_WORDS = {"parameterization": "activation", "order": "order of classes", "mask_mode": "mask mode"}
_NATURAL_FIRST = ("natural", *(name for name in TREES if name != "natural"))

TABLES = (
    *map(_main_table, PANEL),
    *(_crossed(name, "order", defaults_small.ORDERS, "parameterization") for name in ("classifier", "table")),
    *(_crossed(name, "parameterization", _NATURAL_FIRST, "order") for name in ("classifier", "table")),
    *(
        table
        for order in ("given", "embeddings")
        for table in (
            _crossed("bandit", "mask_mode", MASK_MODES, "parameterization", order=order),
            _crossed("bandit", "parameterization", _NATURAL_FIRST, "mask_mode", order=order),
        )
    ),
    _table(_BY_NAME["classifier"], "Classifier: accuracy", "test_accuracy", "higher", listed=True),
    _table(_BY_NAME["classifier"], "Classifier: saturated nodes, fraction", "test_saturated", None, listed=True),
    _table(_BY_NAME["bandit"], "Bandit: saturated nodes, fraction", "test_saturated", None, listed=True),
    _table(_BY_NAME["vae"], "VAE: negative ELBO", "test_loss", "lower", listed=True, digits=1),
    _table(_BY_NAME["vae"], "VAE: saturated nodes, fraction", "dead", None, listed=True),
    _table(_BY_NAME["gsl"], "Graph structure learning: energy score", "test_es_twice", "lower", listed=True),
    _table(_BY_NAME["minatar"], "MinAtar's Breakout: return over the training", "return_all", "higher", listed=True),
    _table(_BY_NAME["minatar"], "MinAtar's Breakout: saturated nodes, fraction", "dead", None, listed=True),
)


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """All tasks side by side, drawn from records."""
    from catnat_experiments.tasks.defaults import figures as defaults_figures  # matplotlib takes a second to import

    return defaults_figures.figures(frame, directory, PANEL)
