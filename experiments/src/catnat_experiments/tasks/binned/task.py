"""The experiment on distributional regression: presets, stages, tables."""

from __future__ import annotations

import itertools
from typing import Any

import pandas as pd

from catnat_experiments.common.dials import Preset, search_and_final
from catnat_experiments.common.selection import SEARCH_SEED
from catnat_experiments.engine.experiment import EveryRunAlone, plan_of
from catnat_experiments.engine.search import Search
from catnat_experiments.engine.types import Checkpointer, Config, Outcome, Stage
from catnat_experiments.report.tables import Curve, Table
from catnat_experiments.tasks.binned.data import is_synthetic
from catnat_experiments.tasks.binned.evaluation import INTERVALS, TRUTH, evaluate
from catnat_experiments.tasks.binned.methods import METHODS

# ---- presets and stages ----------------------------------------------------------------------------------------------

_EVIDENCE = ("diabetes", "pixels-4000", "heteroscedastic-4000", "bimodal-4000")
PRESETS = {
    # A test run in seconds.
    "smoke": Preset({"bimodal-300": ("softmax, hard", "sigmoid, HL-Gauss", "quantiles", "NGBoost")}, trials=1, seeds=2),
    # The page in the documentation.
    "evidence": Preset({data: tuple(METHODS) for data in _EVIDENCE}, trials=8, seeds=5),
}


class Binned(EveryRunAlone):
    """The experiment: a search for every method, final seeds, and the true distribution if it is known."""

    name = "binned"
    packages = ("scikit-learn", "ngboost")

    def stages(self, preset: str) -> list[Stage | Search]:
        """Return the stages search, final and truth."""
        plan = plan_of(preset, PRESETS, self.name)
        known = [data for data in plan.methods if is_synthetic(data)]
        seeds = range(SEARCH_SEED + 1, SEARCH_SEED + 1 + plan.seeds)

        def truth(records: pd.DataFrame) -> list[Config]:
            return [
                {"experiment": self.name, "data": data, "parameterization": TRUTH, "seed": seed}
                for seed, data in itertools.product(seeds, known)
            ]

        return [
            *search_and_final(self.name, plan, "validation_crps", about="CRPS"),
            Stage("truth", truth, "the targets' distribution, on the same test rows", plan.seeds * len(known)),
        ]

    def train_one(self, run: Config, checkpointer: Checkpointer) -> Outcome:
        """Evaluate a run; see :func:`evaluate`. An interrupted run starts again."""
        return evaluate(run)


# ---- the experiment and its tables -----------------------------------------------------------------------------------

EXPERIMENT = Binned()
_BASELINES = ("softmax, hard", "softmax, HL-Gauss")


def _table(title: str, metric: str, **options: Any) -> Table:
    return Table(
        title=title,
        metric=metric,
        row="data",
        column="parameterization",
        columns=tuple(METHODS),
        listed=True,
        digits=options.pop("digits", 3),
        **options,
    )


def _scores(title: str, metric: str, **options: Any) -> Table:
    """Return a table of a score, lower is better, that compares every method with softmax on the same rows."""
    return _table(
        title,
        metric,
        better="lower",
        stages=("final", "truth"),
        reference=TRUTH,
        baselines=_BASELINES,
        pair="seed",
        **options,
    )


def _intervals(percent: int) -> tuple[Table, ...]:
    shown: dict[str, Any] = {"better": None, "stages": ("final", "truth"), "reference": TRUTH}
    return (
        _table(f"Coverage of the {percent}% interval", f"test_coverage_{percent}", **shown),
        _table(f"Width of the {percent}% interval", f"test_width_{percent}", **shown),
    )


_UNITS = "Targets are in units of the training targets' standard deviation."
TABLES = (
    _scores(
        "CRPS",
        "test_crps",
        digits=4,
        chosen=("first", "second"),
        curves=(Curve("validation_crps", "validation CRPS"),),
        note=f"{_UNITS} The CRPS of quantiles is that of as many equal point masses.",
    ),
    _scores(
        "NLL",
        "test_nll",
        note=f"Nats. Natural's log-probabilities have float32's floor. {_UNITS} Quantiles have no density.",
    ),
    *(table for percent in INTERVALS for table in _intervals(percent)),
    _table("Processor seconds to fit", "fit_seconds", better="lower", digits=2),
    _table("Processor seconds to predict and judge the test rows", "test_seconds", better="lower"),
)
