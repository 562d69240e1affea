"""The VAEs as the engine knows them: configs, presets of cells and rates, stages, and what a run costs."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd
import torch

from catnat_experiments.common.selection import SEARCH_SEED, Arm, ranked
from catnat_experiments.engine.experiment import EveryRunAlone, plan_of
from catnat_experiments.engine.loop import least_seconds
from catnat_experiments.engine.types import Checkpointer, Config, Outcome, Stage
from catnat_experiments.tasks.vae.model import ROWS, bounds
from catnat_experiments.tasks.vae.training import Training, finished


class Cell(NamedTuple):
    """One cell of the paper's tables, which has a rate of its own for each parameterization."""

    optimizer: str
    data: str
    latents: int
    classes: int


@dataclasses.dataclass(frozen=True)
class Preset:
    """How much of the tables to compute.

    Attributes:
        cells: Which cells.
        parameterizations: Of each cell.
        coarse: The rates to search.
        refined: A second grid, the same for all.
        search_steps: Of the runs of the search.
        seeds: Final runs of each cell and parameterization.
        steps: Their steps.
        search: Whether one rate is selected. Otherwise final runs are made at each of the coarse rates.
        validation_images: How many of the 5,000 rates are selected by.
        test_images: How many the NLL is estimated on.
        test_samples: Importance samples for each.
    """

    cells: tuple[Cell, ...]
    parameterizations: tuple[str, ...]
    coarse: tuple[float, ...]
    search_steps: int
    steps: int
    refined: tuple[float, ...] = ()
    seeds: int = 5
    search: bool = True
    validation_images: int = 5000
    test_images: int = 10_000
    test_samples: int = 512


@dataclasses.dataclass(frozen=True, eq=False)
class Autoencoder(EveryRunAlone):
    """An experiment: a search for rates, then final seeds; every run is a group.

    Attributes:
        name: Of the experiment.
        batch: Images in a step.
        presets: By name.
        training: From a config to a run at its beginning.
    """

    name: str
    batch: int
    presets: Mapping[str, Preset]
    training: Callable[[Config], Training]

    def train_one(self, run: Config, checkpointer: Checkpointer) -> Outcome:
        """Train a run, resuming from the last checkpoint if there is one, and evaluate it."""
        return finished(self.training(run), checkpointer)

    def config(self, cell: Cell, name: str, rate: float, seed: int, **sizes: int) -> Config:
        """All that decides a run's numbers.

        Args:
            cell: Optimizer, data, N and K.
            name: Of the parameterization.
            rate: Of the optimizer.
            seed: Of the run.
            **sizes: ``steps``, and any of ``validation_images``, ``validation_samples``, ``test_images`` and
                ``test_samples`` that shall not have the paper's value.
        """
        papers = {"validation_images": 5000, "validation_samples": 64, "test_images": 10_000, "test_samples": 512}
        what = {"experiment": self.name, **cell._asdict(), "parameterization": name, "rate": rate, "seed": seed}
        return {**what, "batch": self.batch, **papers, **sizes}

    def stages(self, preset: str) -> list[Stage]:
        """Coarse and refined, where the preset asks for them; and final."""
        return _Stages(self.config, plan_of(preset, self.presets, self.name)).all()

    def seconds_per_group(self, runs: list[Config]) -> float:
        """What a run will take on this machine, from a few steps and a few evaluated images."""
        [run] = runs
        cell = Cell(*(run[name] for name in Cell._fields))  # type: ignore[arg-type]
        step, draw = self._seconds(cell, str(run["parameterization"]))
        draws = sum(int(run[f"{part}_images"]) * int(run[f"{part}_samples"]) for part in ("validation", "test"))
        return int(run["steps"]) * step + draws * draw

    @functools.cache  # noqa: B019 (an experiment lives as long as the program)
    def _seconds(self, cell: Cell, name: str) -> tuple[float, float]:
        """Of one step, and of one draw in the evaluation: processor time, the least of a few tries."""
        torch.set_num_threads(1)
        training = self.training(self.config(cell, name, 0.0001, 0, steps=1000))
        looked_at = training.images.test[:1]
        step, draws = least_seconds(training, lambda: bounds(training.model, training.images, looked_at, ROWS, 0))
        return step, draws / ROWS


class _Stages(NamedTuple):
    """The stages of a preset."""

    config: Callable[..., Config]
    plan: Preset

    def all(self) -> list[Stage]:
        plan = self.plan
        places = len(plan.cells) * len(plan.parameterizations)
        stages = []
        if plan.search:
            about = f"{len(plan.coarse)} rates, one seed, {plan.search_steps:,} steps"
            stages.append(Stage("coarse", lambda _: self._searched(plan.coarse), about, places * len(plan.coarse)))
        if plan.refined:
            about = f"{len(plan.refined)} more rates, one seed, {plan.search_steps:,} steps"
            stages.append(Stage("refined", lambda _: self._searched(plan.refined), about, places * len(plan.refined)))
        rates = f"the rate{'s' * (len(plan.coarse) > 1)} {', '.join(map(str, plan.coarse))}"
        which = "the best rate by validation NLL" if plan.search else rates
        about = f"{plan.seeds} seed{'s' * (plan.seeds > 1)} at {which}, {plan.steps:,} steps"
        chosen = self._at_rates(plan.coarse[:1] if plan.search else plan.coarse)
        alike = self._repeated(chosen)
        return [*stages, Stage("final", self._final, about, len(alike), tuple(alike))]

    def _places(self) -> list[tuple[Cell, str]]:
        return list(itertools.product(self.plan.cells, self.plan.parameterizations))

    def _at_rates(self, rates: Sequence[float]) -> list[tuple[Cell, Arm]]:
        return [(cell, (name, rate)) for cell, name in self._places() for rate in rates]

    def _searched(self, rates: Sequence[float]) -> list[Config]:
        return [run for place in self._places() for run in self._search_of(place, rates)]

    def _search_of(self, place: tuple[Cell, str], rates: Sequence[float]) -> list[Config]:
        """The runs that select the rate of a parameterization in a cell: without a look at the test set."""
        cell, name = place
        sizes = {"validation_images": self.plan.validation_images, "test_images": 0, "test_samples": 0}
        sizes["steps"] = self.plan.search_steps
        return [self.config(cell, name, rate, SEARCH_SEED, **sizes) for rate in rates]

    def _final(self, records: pd.DataFrame) -> list[Config]:
        plan, rates = self.plan, (*self.plan.coarse, *self.plan.refined)
        if plan.search:
            chosen = [(place[0], ranked(self._search_of(place, rates), records)[0]) for place in self._places()]
        else:
            chosen = self._at_rates(rates)
        return self._repeated(chosen)

    def _repeated(self, chosen: Sequence[tuple[Cell, Arm]]) -> list[Config]:
        """Seed after seed, so that what is finished when the work is cut off compares them all."""
        plan = self.plan
        sizes = {name: getattr(plan, name) for name in ("steps", "validation_images", "test_images", "test_samples")}
        seeds = range(SEARCH_SEED + 1, SEARCH_SEED + 1 + plan.seeds)
        return [self.config(cell, *arm, seed, **sizes) for seed, (cell, arm) in itertools.product(seeds, chosen)]
