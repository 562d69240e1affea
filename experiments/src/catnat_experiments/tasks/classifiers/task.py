"""The comparison of classifiers as the engine knows it: presets, stages, tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from catnat_experiments.common.dials import Preset, search_and_final
from catnat_experiments.engine.experiment import EveryRunAlone, plan_of
from catnat_experiments.engine.search import Search
from catnat_experiments.engine.types import Checkpointer, Config, Outcome, Stage
from catnat_experiments.report.tables import Table
from catnat_experiments.tasks.classifiers.evaluation import evaluate
from catnat_experiments.tasks.classifiers.methods import METHODS, TEXT_METHODS

# ---- presets and stages ----------------------------------------------------------------------------------------------

_FAST = ("LightGBM", "XGBoost", "tree, centroids", "tree, random")
"""All classes are equally frequent and in no order there: Huffman's tree and the balanced one are random ones."""
_EVIDENCE = {"digits": tuple(METHODS), "generated-120-10000": _FAST}
_PARTS = {**_EVIDENCE, "icd10-10": tuple(TEXT_METHODS)}
PRESETS = {
    # A look in a minute.
    "quick": Preset({"digits": ("LightGBM", "random forest", "tree, centroids", "tree, random")}, trials=2, seeds=2),
    # The page in the documentation, its parts, and the taxonomy.
    "evidence": Preset(_EVIDENCE, trials=8, seeds=5),
    **{data: Preset({data: methods}, trials=8, seeds=5) for data, methods in _PARTS.items()},
    # The taxonomy of the page in the documentation.
    "icd10-3": Preset({"icd10-3": tuple(TEXT_METHODS)}, trials=0, seeds=5),
    # More classes, and everybody on them: hours.
    "full": Preset(
        {
            "digits": tuple(METHODS),
            "generated-120-20000": tuple(METHODS),
            "generated-500-30000": tuple(METHODS),
            "generated-1000-60000": tuple(METHODS),
            "icd10-30": tuple(TEXT_METHODS),
        },
        trials=20,
        seeds=5,
    ),
}


_MIDDLE = {"first": 0.5, "second": 0.5}


class Classifiers(EveryRunAlone):
    """The experiment as the engine knows it: a search of every method on every data set, then final seeds."""

    name = "classifiers"
    packages = ("scikit-learn", "lightgbm", "xgboost-cpu", "hiclass", "simple-icd-10-cm")

    def stages(self, preset: str) -> list[Stage | Search]:
        """Search and final; final alone, with both dials in the middle, where there are no trials."""
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
        """See :func:`evaluate`; a run that is interrupted starts again."""
        return evaluate(run)


# ---- the experiment, its tables and figures --------------------------------------------------------------------------

EXPERIMENT = Classifiers()
_OURS = "tree, centroids"


def _table(title: str, metric: str, *, higher: bool = False, text: bool = False, **options: Any) -> Table:
    return Table(
        title=title,
        metric=metric,
        better="higher" if higher else "lower",
        row="data",
        column="parameterization",
        columns=tuple(TEXT_METHODS if text else METHODS),
        listed=True,
        optional=True,  # a preset has boosters or texts
        baselines=("logistic, tree" if text else _OURS,),
        **options,
    )


def _text_tables(level: int, name: str) -> tuple[Table, ...]:
    return (
        _table(f"ICD-10: log loss of the {name}", f"test_log_loss_{level}", text=True, digits=3),
        _table(f"ICD-10: accuracy of the {name}", f"test_accuracy_{level}", text=True, higher=True),
        _table(f"ICD-10: calibration error of the {name}", f"test_calibration_error_{level}", text=True),
    )


_SETS = {"classes": "sets of classes", "one": "answers of one label", "three": "sets of at most three labels"}


def _set_tables(kind: str, name: str) -> tuple[Table, ...]:
    return (
        _table(f"ICD-10: coverage of {name}, mean of 200 splits, of .9", f"test_coverage_{kind}", text=True, digits=4),
        _table(f"ICD-10: 2.5% of splits are below, {name}", f"test_coverage_low_{kind}", text=True, higher=True),
        _table(f"ICD-10: 2.5% of splits are above, {name}", f"test_coverage_high_{kind}", text=True, higher=True),
        _table(f"ICD-10: classes in {name}", f"test_set_classes_{kind}", text=True, digits=1),
        _table(f"ICD-10: least coverage of a chapter, {name}", f"test_least_coverage_{kind}", text=True, higher=True),
    )


TABLES = (
    _table("Log loss", "test_log_loss", digits=3, chosen=("first", "second")),
    _table("Accuracy", "test_accuracy", higher=True),
    _table("Processor seconds to fit", "fit_seconds", digits=2),
    _table("Processor seconds to predict the test rows", "test_seconds", digits=2),
    *(table for level, name in ((1, "chapter"), (2, "block"), (3, "category")) for table in _text_tables(level, name)),
    _table("ICD-10: accuracy of answers that should have .95", "test_back_off_accuracy", text=True, higher=True),
    _table("ICD-10: information in these answers", "test_back_off_information", text=True, higher=True),
    *(
        _table(f"ICD-10: accuracy of answers with information {x}", f"test_accuracy_at_{x}", text=True, higher=True)
        for x in (0.5, 0.7, 0.9)
    ),
    *(table for kind, name in _SETS.items() for table in _set_tables(kind, name)),
    _table("ICD-10: processor seconds to fit", "fit_seconds", text=True, digits=1),
)


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """How far stated probabilities can be trusted, drawn from records."""
    from catnat_experiments.tasks.classifiers import figures as own_figures  # matplotlib takes a second to import

    return own_figures.figures(frame, directory)
