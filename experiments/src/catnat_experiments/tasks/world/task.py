"""The world model as the engine knows it: presets, stages, tables."""

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
    """How much to compute: for each K and parameterization one run a rate, then the final seeds at the best rate.

    Attributes:
        classes: Each K.
        rates: That are searched, the same for all.
        seeds: Final runs of each parameterization.
        steps: Of every run.
        test_sequences: That final runs are evaluated on.
        decay: The last fraction of the steps, over which the rate falls to 0.
    """

    classes: tuple[int, ...]
    rates: tuple[float, ...]
    seeds: int
    steps: int
    test_sequences: int
    decay: float = 0.0

    @property
    def sizes(self) -> dict[str, Any]:
        """What all its configs have in common."""
        return {"steps": self.steps, **({"decay": self.decay} if self.decay else {})}


PRESETS = {
    # A look in minutes: the models are far from what they can learn.
    "quick": Preset(classes=(24,), rates=(0.003,), seeds=2, steps=300, test_sequences=100),
    "evidence": Preset(classes=(24,), rates=(0.001, 0.002, 0.004, 0.008), seeds=5, steps=2000, test_sequences=500),
    # Larger rates, which fall over the second half of the run.
    "decay": Preset(
        classes=(24,), rates=(0.002, 0.004, 0.008, 0.016), seeds=5, steps=2000, test_sequences=500, decay=0.5
    ),
}


def config(classes: int, name: str, rate: float, seed: int, *, test_sequences: int, **sizes: Any) -> Config:
    """All that decides a run's numbers: ``sizes`` are steps, and the decay of the rate if it has one.

    ``length`` is of the sequences that it trains on.
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
    """The experiment as the engine knows it: a search for rates, then final seeds; every run is a group."""

    name = "world"

    def stages(self, preset: str) -> list[Stage]:
        """Search and final."""
        plan = plan_of(preset, PRESETS, self.name)
        sizes, tested = plan.sizes, plan.test_sequences
        return rate_stages(
            list(itertools.product(plan.classes, ALL)),
            {"search": plan.rates},
            plan.seeds,
            # The search does not look at the test sequences.
            searched=lambda cell, rate: config(*cell, rate, SEARCH_SEED, test_sequences=0, **sizes),
            final=lambda cell, rate, seed: config(*cell, rate, seed, test_sequences=tested, **sizes),
            metric="validation_rollout",
            more=[config(classes, EXACT, 0.0, 0, steps=0, test_sequences=tested) for classes in plan.classes],
        )

    def train_one(self, run: Config, checkpointer: Checkpointer) -> Outcome:
        """See :func:`train`."""
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
        note=f"Nats a frame, the mean over {AHEAD} frames that are predicted without a look at any of them.",
    ),
    _table(
        "Negative ELBO",
        "test_loss",
        curves=(Curve("train_loss", "negative ELBO in training"),),
        note="Nats a frame: reconstruction and KL divergence, both with weight 1 and without free nats.",
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
    """Predictions as curves, drawn from records."""
    from catnat_experiments.tasks.world import figures as world_figures  # matplotlib takes a second to import

    return world_figures.figures(frame, directory)
