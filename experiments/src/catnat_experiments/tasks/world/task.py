"""The world model as the engine knows it: presets, stages, tables."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from catnat_experiments.common.selection import Arm, ranked
from catnat_experiments.engine.experiment import EveryRunAlone, plan_of
from catnat_experiments.engine.loop import LOG_POINTS, least_seconds
from catnat_experiments.engine.types import Checkpointer, Config, Outcome, Stage
from catnat_experiments.report.tables import Curve, Table
from catnat_experiments.tasks.world.model import AHEAD, CONTEXT, FREE_NATS, rollout_loss
from catnat_experiments.tasks.world.training import ALL, EXACT, LOOKED_AT, LOOKED_AT_SAMPLES, Training, train

# ---- presets and stages ----------------------------------------------------------------------------------------------

SEARCH_SEED = 0
"""The seed of the search. Final runs have the seeds 1, 2, ...: no run is both selected by its luck and reported."""


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
        cells = len(plan.classes) * len(ALL)
        about = f"{plan.seeds} seeds at the best rate by validation rollouts, and the exact predictions"
        alike = tuple(_repeated(plan, [(classes, (name, plan.rates[0])) for classes, name in _cells(plan)]))
        return [
            Stage("search", lambda _: _search(plan), f"{len(plan.rates)} rates, one seed", cells * len(plan.rates)),
            Stage("final", lambda records: _final(plan, records), about, len(alike), alike),
        ]

    def train_one(self, run: Config, checkpointer: Checkpointer) -> Outcome:
        """See :func:`train`."""
        return train(run, checkpointer)

    def seconds_per_group(self, runs: list[Config]) -> float:
        """What a run will take on this machine, from a few steps and a few rollouts."""
        [run] = runs
        if run["parameterization"] == EXACT:
            return 1.0
        step, rollout = _seconds(str(run["parameterization"]), int(run["classes"]))
        rollouts = int(run["samples"]) * (int(run["validation_sequences"]) + int(run["test_sequences"]))
        return int(run["steps"]) * step + (rollouts + LOG_POINTS * LOOKED_AT * LOOKED_AT_SAMPLES) * rollout


@functools.cache
def _seconds(name: str, classes: int) -> tuple[float, float]:
    """Of one step, and of one rollout in the evaluation: processor time, the least of a few tries."""
    torch.set_num_threads(1)
    training = Training(config(classes, name, 0.0001, 0, steps=1000, test_sequences=0))
    some = training.validation[:, :LOOKED_AT]
    step, rollouts = least_seconds(training, lambda: rollout_loss(training.model, some, LOOKED_AT_SAMPLES, 0))
    return step, rollouts / (LOOKED_AT * LOOKED_AT_SAMPLES)


def _cells(plan: Preset) -> list[tuple[int, str]]:
    return list(itertools.product(plan.classes, ALL))


def _search_of(plan: Preset, classes: int, name: str) -> list[Config]:
    """Without a look at the test sequences."""
    return [config(classes, name, rate, SEARCH_SEED, test_sequences=0, **plan.sizes) for rate in plan.rates]


def _search(plan: Preset) -> list[Config]:
    return [run for cell in _cells(plan) for run in _search_of(plan, *cell)]


def _final(plan: Preset, records: pd.DataFrame) -> list[Config]:
    best = [(cell[0], ranked(_search_of(plan, *cell), records, "validation_rollout")[0]) for cell in _cells(plan)]
    return _repeated(plan, best)


def _repeated(plan: Preset, chosen: Sequence[tuple[int, Arm]]) -> list[Config]:
    """Seed after seed, so that what is finished when the work is cut off compares them all; and exact ones."""
    seeds, tested = range(SEARCH_SEED + 1, SEARCH_SEED + 1 + plan.seeds), plan.test_sequences
    learned = itertools.product(seeds, chosen)
    return [
        *(config(classes, *arm, seed, test_sequences=tested, **plan.sizes) for seed, (classes, arm) in learned),
        *(config(classes, EXACT, 0.0, 0, steps=0, test_sequences=tested) for classes in plan.classes),
    ]


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
        curves=(Curve("rollout", "log-loss of rollouts, validation", x="step"),),
        note=f"Nats a frame, the mean over {AHEAD} frames that are predicted without a look at any of them.",
    ),
    _table(
        "Negative ELBO",
        "test_loss",
        curves=(Curve("train_loss", "negative ELBO in training", x="step"),),
        note="Nats a frame: reconstruction and KL divergence, both with weight 1 and without free nats.",
    ),
    _table("KL divergence", "kl", better=None, curves=(Curve("kl", "KL divergence, nats a frame", x="step"),)),
    _table(
        "Entropy of a posterior",
        "entropy",
        3,
        better=None,
        curves=(Curve("entropy", "entropy of a posterior, nats", x="step"),),
    ),
    _table(
        "Classes alive",
        "classes_alive",
        better="higher",
        curves=(Curve("classes_alive", "classes alive, of K", x="step"),),
    ),
    _table(
        "Saturated scores, fraction",
        "dead",
        3,
        better=None,
        curves=(Curve("dead", "saturated scores, fraction", x="step"),),
    ),
)


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Predictions as curves, drawn from records."""
    from catnat_experiments.tasks.world import figures as world_figures  # matplotlib takes a second to import

    return world_figures.figures(frame, directory)
