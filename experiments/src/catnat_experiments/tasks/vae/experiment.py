"""The VAEs as the engine knows them: configs, presets of cells and rates, stages."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import NamedTuple

from catnat_experiments.common.selection import SEARCH_SEED, rate_stages
from catnat_experiments.engine.experiment import EveryRunAlone, plan_of
from catnat_experiments.engine.loop import finished
from catnat_experiments.engine.types import Checkpointer, Config, Outcome, Stage
from catnat_experiments.tasks.vae.training import Training


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
        search_steps: Of the runs of the search; 0 for none: final runs are then made at each of the coarse rates.
        seeds: Final runs of each cell and parameterization.
        steps: Their steps.
        validation_images: How many of the 5,000 rates are selected by.
        test_images: How many the NLL is estimated on.
        test_samples: Importance samples for each.
    """

    cells: tuple[Cell, ...]
    parameterizations: tuple[str, ...]
    coarse: tuple[float, ...]
    steps: int
    search_steps: int = 0
    refined: tuple[float, ...] = ()
    seeds: int = 5
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
        plan = plan_of(preset, self.presets, self.name)
        sizes = {name: getattr(plan, name) for name in ("steps", "validation_images", "test_images", "test_samples")}
        # The search does not look at the test set.
        search_sizes = {**sizes, "steps": plan.search_steps, "test_images": 0, "test_samples": 0}
        grids = {"coarse": plan.coarse, "refined": plan.refined} if plan.search_steps else {}
        return rate_stages(
            list(itertools.product(plan.cells, plan.parameterizations)),
            {name: grid for name, grid in grids.items() if grid},
            plan.seeds,
            searched=lambda place, rate: self.config(*place, rate, SEARCH_SEED, **search_sizes),
            final=lambda place, rate, seed: self.config(*place, rate, seed, **sizes),
            fixed=plan.coarse,
        )
