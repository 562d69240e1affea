"""The VAEs as the engine knows them: configs, presets of cells and rates, stages, and what a run costs."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd
import torch

from catnat_experiments.common.selection import SEARCH_SEED, Arm, ranked
from catnat_experiments.engine.experiment import EveryRunAlone, plan_of
from catnat_experiments.engine.loop import Printing, least_seconds
from catnat_experiments.engine.records import run_id
from catnat_experiments.engine.types import Checkpointer, Config, Outcome, Stage
from catnat_experiments.tasks.vae.model import METRICS, ROWS, bounds
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
        search_cells: Cells whose mean validation NLL selects one rate for all cells; if empty, each cell has its own.
        halving: More parameterizations, of which only the best one gets final runs.
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
    search_cells: tuple[Cell, ...] = ()
    halving: Halving | None = None
    validation_images: int = 5000
    test_images: int = 10_000
    test_samples: int = 512


@dataclasses.dataclass(frozen=True)
class Halving:
    """Successive halving: the better half of parameterizations and rates goes on to a longer run, and so on.

    Attributes:
        parameterizations: That begin.
        rates: Of each.
        rungs: The steps of the runs, shortest first.
        control: One that gets final runs even if it is not the best: what the best is to be compared with.
    """

    parameterizations: tuple[str, ...]
    rates: tuple[float, ...]
    rungs: tuple[int, ...]
    control: str

    @property
    def arms(self) -> list[Arm]:
        """What the first rung compares."""
        return list(itertools.product(self.parameterizations, self.rates))

    def count(self, rung: int) -> int:
        """Arms that a rung compares, the first is 0; after the last there is one left."""
        return math.ceil(len(self.arms) / 2**rung) if rung < len(self.rungs) else 1


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
        """Coarse and refined, where the preset asks for them; final; and rung by rung what lies beyond the paper."""
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
        places = len(plan.search_cells or plan.cells) * len(plan.parameterizations)
        stages = []
        if plan.search:
            about = f"{len(plan.coarse)} rates, one seed, {plan.search_steps:,} steps"
            stages.append(Stage("coarse", lambda _: self._searched(plan.coarse), about, places * len(plan.coarse)))
        if plan.refined:
            about = f"{len(plan.refined)} more rates, one seed, {plan.search_steps:,} steps"
            stages.append(Stage("refined", lambda _: self._searched(plan.refined), about, places * len(plan.refined)))
        if plan.halving is not None:
            stages += [self._rung(plan.halving, rung) for rung in range(len(plan.halving.rungs))]
        rates = f"the rate{'s' * (len(plan.coarse) > 1)} {', '.join(map(str, plan.coarse))}"
        which = "the best rate by validation NLL" if plan.search else rates
        about = f"{plan.seeds} seed{'s' * (plan.seeds > 1)} at {which}, {plan.steps:,} steps"
        chosen = self._at_rates(plan.coarse[:1] if plan.search else plan.coarse)
        chosen += [(plan.cells[0], arm) for arm in plan.halving.arms[:2]] if plan.halving else []
        alike = self._repeated(chosen)
        return [*stages, Stage("final", self._final, about, len(alike), tuple(alike))]

    def _places(self) -> list[tuple[Cell, str]]:
        return list(itertools.product(self.plan.cells, self.plan.parameterizations))

    def _at_rates(self, rates: Sequence[float]) -> list[tuple[Cell, Arm]]:
        return [(cell, (name, rate)) for cell, name in self._places() for rate in rates]

    def _search(self, cell: Cell, arms: Iterable[Arm], steps: int) -> list[Config]:
        """Runs of a search: without a look at the test set."""
        sizes = {"steps": steps, "validation_images": self.plan.validation_images, "test_images": 0, "test_samples": 0}
        return [self.config(cell, *arm, SEARCH_SEED, **sizes) for arm in arms]

    def _searched(self, rates: Sequence[float]) -> list[Config]:
        runs = [run for place in self._places() for run in self._search_of(place, rates)]
        return list({run_id(run): run for run in runs}.values())  # cells may share theirs

    def _search_of(self, place: tuple[Cell, str], rates: Sequence[float]) -> list[Config]:
        """The runs that select the rate of a parameterization in a cell."""
        cell, name = place
        arms = [(name, rate) for rate in rates]
        return [
            run
            for each in self.plan.search_cells or (cell,)
            for run in self._search(each, arms, self.plan.search_steps)
        ]

    def _final(self, records: pd.DataFrame) -> list[Config]:
        plan, rates = self.plan, (*self.plan.coarse, *self.plan.refined)
        if plan.search:
            chosen = [(place[0], ranked(self._search_of(place, rates), records)[0]) for place in self._places()]
        else:
            chosen = self._at_rates(rates)
        if plan.halving is not None:
            [best] = self._survivors(plan.halving, len(plan.halving.rungs), records)
            chosen += [(plan.cells[0], arm) for arm in dict.fromkeys([best, self._control(plan.halving, records)])]
        return self._repeated(chosen)

    def _repeated(self, chosen: Sequence[tuple[Cell, Arm]]) -> list[Config]:
        """Seed after seed, so that what is finished when the work is cut off compares them all."""
        plan = self.plan
        sizes = {name: getattr(plan, name) for name in ("steps", "validation_images", "test_images", "test_samples")}
        seeds = range(SEARCH_SEED + 1, SEARCH_SEED + 1 + plan.seeds)
        return [self.config(cell, *arm, seed, **sizes) for seed, (cell, arm) in itertools.product(seeds, chosen)]

    def _control(self, halving: Halving, records: pd.DataFrame) -> Arm:
        """The control at its best rate, by the longest runs that it took part in."""
        rungs = (ranked(self._climbing(halving, rung, records), records) for rung in range(len(halving.rungs)))
        return [arm for arms in rungs for arm in arms[::-1] if arm[0] == halving.control][-1]

    def _rung(self, halving: Halving, rung: int) -> Stage:
        """A stage for each rung; all are of the preset's first cell."""
        steps = halving.rungs[rung]
        alike = tuple(self._search(self.plan.cells[0], halving.arms[: halving.count(rung)], steps))
        about = f"{len(alike)} variants beyond the paper, {steps:,} steps"
        return Stage(
            f"rung {rung + 1}", lambda records: self._climbing(halving, rung, records), about, len(alike), alike
        )

    def _climbing(self, halving: Halving, rung: int, records: pd.DataFrame) -> list[Config]:
        return self._search(self.plan.cells[0], self._survivors(halving, rung, records), halving.rungs[rung])

    def _survivors(self, halving: Halving, rung: int, records: pd.DataFrame) -> list[Arm]:
        """What a rung compares; after the last one, the winner."""
        if rung == 0:
            return halving.arms
        return ranked(self._climbing(halving, rung - 1, records), records)[: halving.count(rung)]


def print_run(experiment: Autoencoder, run: Config) -> None:
    """Train one run by hand, and print its way and its metrics."""
    began = time.perf_counter()
    shown = Printing("train_loss", "validation_loss", "kl", "entropy", "classes_alive", "dead")
    outcome = experiment.train_one(run, shown)
    print(f"\n{time.perf_counter() - began:.1f} s")
    for name, value in outcome.metrics.items():
        print(f"{name:16}{value:12.4f}  {METRICS.get(name, '')}")
