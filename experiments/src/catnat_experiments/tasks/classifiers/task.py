"""The experiment on classifiers: presets, stages, tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from catnat_experiments.common.dials import Preset, search_and_final
from catnat_experiments.engine.experiment import EveryRunAlone, plan_of
from catnat_experiments.engine.search import Search
from catnat_experiments.engine.types import Checkpointer, Config, Direction, Outcome, Stage
from catnat_experiments.report.tables import Table
from catnat_experiments.tasks.classifiers.evaluation import evaluate
from catnat_experiments.tasks.classifiers.methods import METHODS, TEXT_METHODS

# ---- presets and stages ----------------------------------------------------------------------------------------------

_FAST = ("LightGBM", "XGBoost", "tree, centroids", "tree, random")
"""The methods for generated data. Its classes are equally frequent and unordered, so other trees are random too."""
PRESETS = {
    # A result in a minute.
    "quick": Preset({"digits": ("LightGBM", "random forest", "tree, centroids", "tree, random")}, trials=2, seeds=2),
    # The page in the documentation, and its taxonomies.
    "evidence": Preset({"digits": tuple(METHODS), "generated-120-10000": _FAST}, trials=8, seeds=5),
    "icd10-3": Preset({"icd10-3": tuple(TEXT_METHODS)}, trials=0, seeds=5),
    "baskets": Preset({"baskets": tuple(TEXT_METHODS)}, trials=0, seeds=5),
}


_MIDDLE = {"first": 0.5, "second": 0.5}


class Classifiers(EveryRunAlone):
    """The experiment: a search for every method and data set if the preset has trials, then final seeds."""

    name = "classifiers"
    packages = ("scikit-learn", "lightgbm", "xgboost-cpu", "hiclass", "simple-icd-10-cm")

    def stages(self, preset: str) -> list[Stage | Search]:
        """Return the stages search and final; without trials only final, with both dials in the middle."""
        plan = plan_of(preset, PRESETS, self.name)
        if not plan.trials:
            runs: list[Config] = [
                {"experiment": self.name, "data": data, "parameterization": method, "seed": seed, **_MIDDLE}
                for data, methods in plan.methods.items()
                for seed in range(1, plan.seeds + 1)
                for method in methods
            ]
            return [Stage("final", lambda before: runs, f"{plan.seeds} seeds without a search", len(runs))]
        return search_and_final(self.name, plan, "validation_log_loss", about="log loss")

    def train_one(self, run: Config, checkpointer: Checkpointer) -> Outcome:
        """Evaluate a run; see :func:`evaluate`. An interrupted run starts again."""
        return evaluate(run)


# ---- the experiment, its tables and figures --------------------------------------------------------------------------

EXPERIMENT = Classifiers()
_OURS = "tree, centroids"
_FLAT = ("logistic, flat", "LightGBM, flat")


def _table(title: str, metric: str, *, better: Direction | None = "lower", **options: Any) -> Table:
    settings: dict[str, Any] = {"columns": tuple(METHODS), "baselines": (_OURS,), **options}
    return Table(
        title=title,
        metric=metric,
        better=better,
        row="data",
        column="parameterization",
        listed=True,
        **settings,
    )


def _with_taxonomy(title: str, metric: str, **options: Any) -> Table:
    """Return a table that compares runs with the flat models in pairs, because a seed has the same split for all."""
    return _table(title, metric, columns=tuple(TEXT_METHODS), baselines=_FLAT, pair="seed", **options)


def _level_tables(level: int) -> tuple[Table, ...]:
    return (
        _with_taxonomy(f"Level {level}: log loss", f"test_log_loss_{level}", digits=3),
        _with_taxonomy(f"Level {level}: accuracy", f"test_accuracy_{level}", better="higher"),
        _with_taxonomy(f"Level {level}: calibration error", f"test_calibration_error_{level}"),
    )


_SETS = {"classes": "sets of classes", "one": "answers of one label", "three": "sets of at most three labels"}


def _set_tables(kind: str, name: str) -> tuple[Table, ...]:
    return (
        _with_taxonomy(
            f"Coverage of {name}, mean of 200 splits, of .9", f"test_coverage_{kind}", better=None, digits=4
        ),
        _with_taxonomy(f"2.5% of splits are below, {name}", f"test_coverage_low_{kind}", better=None),
        _with_taxonomy(f"2.5% of splits are above, {name}", f"test_coverage_high_{kind}", better=None),
        _with_taxonomy(f"Classes in {name}", f"test_set_classes_{kind}", digits=1),
        _with_taxonomy(f"Least coverage of a group of level 1, {name}", f"test_least_coverage_{kind}", better="higher"),
    )


TABLES = (
    _table("Log loss", "test_log_loss", digits=3, chosen=("first", "second")),
    _table("Accuracy", "test_accuracy", better="higher"),
    _table("Processor seconds to fit", "fit_seconds", digits=2),
    _table("Processor seconds to predict the test rows", "test_seconds", digits=2),
    *(table for level in (1, 2, 3) for table in _level_tables(level)),
    _with_taxonomy("Accuracy of answers that should have .95", "test_back_off_accuracy", better="higher"),
    _with_taxonomy("Information in these answers", "test_back_off_information", better="higher"),
    *(
        _with_taxonomy(f"Accuracy of answers with information {x}", f"test_accuracy_at_{x}", better="higher")
        for x in (0.5, 0.7, 0.9)
    ),
    *(table for kind, name in _SETS.items() for table in _set_tables(kind, name)),
    _with_taxonomy("With a taxonomy: processor seconds to fit", "fit_seconds", digits=1),
)


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Draw log loss over time and the curves of back-off, from records."""
    from catnat_experiments.tasks.classifiers import figures as own_figures  # matplotlib takes a second to import

    return own_figures.figures(frame, directory)
