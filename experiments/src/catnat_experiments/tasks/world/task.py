"""The experiment on the world model: presets, stages, tables."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pandas as pd

from catnat_experiments.common.selection import SEARCH_SEED, rate_stages
from catnat_experiments.engine.experiment import EveryRunAlone, plan_of
from catnat_experiments.engine.types import Checkpointer, Config, Outcome, Stage
from catnat_experiments.report.tables import Curve, Table
from catnat_experiments.tasks.world.model import AHEAD, CONTEXT, FREE_NATS
from catnat_experiments.tasks.world.training import ALL, EXACT, train

# ---- presets and stages ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Preset:
    """The amount of computation.

    Each K and parameterization has one run per learning rate, then final seeds at the best one.

    Attributes:
        classes: The values of K.
        rates: The learning rates of the search, the same for all.
        seeds: The number of final runs of each parameterization.
        steps: The number of steps of every run.
        test_sequences: The number of test sequences of final runs.
        decay: The last fraction of the steps, over which the learning rate decays to 0.
    """

    classes: tuple[int, ...]
    rates: tuple[float, ...]
    seeds: int
    steps: int
    test_sequences: int
    decay: float = 0.0

    @property
    def sizes(self) -> dict[str, Any]:
        """The config entries that all runs have in common."""
        return {"steps": self.steps, **({"decay": self.decay} if self.decay else {})}


PRESETS = {
    # A result in minutes; the models are trained for few steps.
    "quick": Preset(classes=(24,), rates=(0.003,), seeds=2, steps=300, test_sequences=100),
    "evidence": Preset(classes=(24,), rates=(0.001, 0.002, 0.004, 0.008), seeds=5, steps=2000, test_sequences=500),
    # Larger learning rates, which decay over the second half of the run.
    "decay": Preset(
        classes=(24,), rates=(0.002, 0.004, 0.008, 0.016), seeds=5, steps=2000, test_sequences=500, decay=0.5
    ),
}


def config(classes: int, name: str, rate: float, seed: int, *, test_sequences: int, **sizes: Any) -> Config:
    """Return all that affects a run; ``sizes`` are the steps, and the decay of the learning rate if it has one.

    ``length`` is that of the training sequences.
    """
    return {
        "experiment": World.name,
        "latents": 4,
        "classes": classes,
        "hidden": 96,
        "parameterization": name,
        "rate": rate,
        "seed": seed,
        **sizes,
        "batch": 16,
        "length": CONTEXT + AHEAD,
        "free_nats": FREE_NATS,
        "samples": 32,
        "validation_sequences": 200,
        "test_sequences": test_sequences,
    }


class World(EveryRunAlone):
    """The experiment: a search for learning rates, then final seeds; every run is a group."""

    name = "world"

    def stages(self, preset: str) -> list[Stage]:
        """Return the stages search and final."""
        plan = plan_of(preset, PRESETS, self.name)
        sizes, tested = plan.sizes, plan.test_sequences
        return rate_stages(
            list(itertools.product(plan.classes, ALL)),
            {"search": plan.rates},
            plan.seeds,
            # The search does not use the test sequences.
            searched=lambda cell, rate: config(*cell, rate, SEARCH_SEED, test_sequences=0, **sizes),
            final=lambda cell, rate, seed: config(*cell, rate, seed, test_sequences=tested, **sizes),
            metric="validation_rollout",
            more=[config(classes, EXACT, 0.0, 0, steps=0, test_sequences=tested) for classes in plan.classes],
        )

    def train_one(self, run: Config, checkpointer: Checkpointer) -> Outcome:
        """Train a run; see :func:`train`."""
        return train(run, checkpointer)


# ---- the experiment, its tables and figures --------------------------------------------------------------------------

EXPERIMENT = World()


def _table(title: str, metric: str, digits: int = 2, **options: Any) -> Table:
    return Table(
        title=title,
        metric=metric,
        better=options.pop("better", "lower"),
        row="classes",
        row_title="K",
        column="parameterization",
        columns=ALL,
        baselines=("softmax",),
        digits=digits,
        **options,
    )


TABLES = (
    _table(
        "Open-loop predictions, log-loss",
        "test_rollout",
        reference=EXACT,
        chosen=("rate",),
        curves=(Curve("rollout", "log-loss of rollouts, validation"),),
        note=f"Nats per frame, a mean over {AHEAD} frames, none of which the model receives.",
    ),
    _table(
        "Negative ELBO",
        "test_loss",
        curves=(Curve("train_loss", "negative ELBO in training"),),
        note="Nats per frame: reconstruction plus KL divergence, both with weight 1 and without free nats.",
    ),
    _table("KL divergence", "kl", better=None, curves=(Curve("kl", "KL divergence, nats a frame"),)),
    _table(
        "Entropy of a posterior",
        "entropy",
        3,
        better=None,
        curves=(Curve("entropy", "entropy of a posterior, nats"),),
    ),
    _table(
        "Classes alive",
        "classes_alive",
        better="higher",
        curves=(Curve("classes_alive", "classes alive, of K"),),
    ),
    _table(
        "Saturated scores, fraction",
        "dead",
        3,
        better=None,
        curves=(Curve("dead", "saturated scores, fraction"),),
    ),
)


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Draw the curves of predictions, from records."""
    from catnat_experiments.tasks.world import figures as world_figures  # matplotlib takes a second to import

    return world_figures.figures(frame, directory)
