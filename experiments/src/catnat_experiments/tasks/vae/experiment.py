"""The experiments on VAEs: configs, presets of settings and learning rates, stages."""

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
    """One setting of the paper's tables, with its own learning rate for each parameterization."""

    optimizer: str
    data: str
    latents: int
    classes: int


@dataclasses.dataclass(frozen=True)
class Preset:
    """The part of the tables to compute.

    Attributes:
        cells: The settings.
        parameterizations: The parameterizations of each setting.
        coarse: The learning rates to search.
        refined: A second grid, the same for all.
        search_steps: The steps of the search; 0 for no search, with final runs at all coarse learning rates.
        seeds: The number of final runs of each.
        steps: Their steps.
        validation_images: The number of images, of 5,000, that select learning rates.
        test_images: The number of images for the NLL.
        test_samples: The number of importance samples for each.
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
    """An experiment: a search for learning rates, then final seeds; every run is a group.

    Attributes:
        name: The name of the experiment.
        batch: The number of images in a step.
        presets: The presets by name.
        training: A function from a config to a new run.
    """

    name: str
    batch: int
    presets: Mapping[str, Preset]
    training: Callable[[Config], Training]

    def train_one(self, run: Config, checkpointer: Checkpointer) -> Outcome:
        """Train a run, resuming from the last checkpoint if there is one, and evaluate it."""
        return finished(self.training(run), checkpointer)

    def config(self, cell: Cell, name: str, rate: float, seed: int, **sizes: int) -> Config:
        """Return all that affects a run's results.

        Args:
            cell: The optimizer, the data, N and K.
            name: The parameterization.
            rate: The learning rate.
            seed: The seed of the run.
            **sizes: ``steps``, and any of ``validation_images``, ``validation_samples``, ``test_images`` and
                ``test_samples`` that differ from the paper's value.
        """
        papers = {"validation_images": 5000, "validation_samples": 64, "test_images": 10_000, "test_samples": 512}
        what = {"experiment": self.name, **cell._asdict(), "parameterization": name, "rate": rate, "seed": seed}
        return {**what, "batch": self.batch, **papers, **sizes}

    def stages(self, preset: str) -> list[Stage]:
        """Return the stages coarse and refined, if the preset has them, and final."""
        plan = plan_of(preset, self.presets, self.name)
        sizes = {name: getattr(plan, name) for name in ("steps", "validation_images", "test_images", "test_samples")}
        # The search does not use the test set.
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
