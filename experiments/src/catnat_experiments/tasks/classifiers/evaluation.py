"""The evaluation of a run: metrics of a method's probabilities, and of the tools for taxonomies."""

from __future__ import annotations

import time
import warnings

import numpy as np
from numpy.typing import NDArray

from catnat.taxonomy import BackOff, ConformalSets, Taxonomy, back_off_curve, coverage_report, level_metrics
from catnat.taxonomy.conformal import conformal_quantile
from catnat_experiments.engine.types import Config, Outcome
from catnat_experiments.tasks.classifiers.data import load
from catnat_experiments.tasks.classifiers.methods import METHODS, TEXT_METHODS

Floats = NDArray[np.float64]
LEAST = np.finfo(np.float64).eps
"""The smallest probability in a log loss, as in scikit-learn."""
ACCURACY = 0.95
"""The wanted accuracy of answers with back-off."""
COVERAGE = 0.9
"""The coverage of conformal sets."""
SPLITS = 200
"""The number of random splits of the held-out rows: half for calibration, half for test."""
KINDS: dict[str, int | None] = {"classes": None, "one": 1, "three": 3}
"""The largest number of labels in each kind of conformal set; None for sets of classes."""
INFORMATION = np.linspace(0.05, 1, 20)
"""The values of information at which the curves of back-off are compared."""


def evaluate(run: Config) -> Outcome:
    """Fit a method, and return metrics of its probabilities for the validation and the test rows."""
    data = load(str(run["data"]), int(run["seed"]))
    make = {**METHODS, **TEXT_METHODS}[str(run["parameterization"])]
    model = make(float(run["first"]), float(run["second"]), int(run["seed"]), data)
    probs: dict[str, Floats] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from solvers that stop at their limit, and from LightGBM about names
        began = time.process_time()
        model.fit(data.X["train"], data.y["train"])
        metrics = {"fit_seconds": time.process_time() - began}
        for split in ("validation", "test"):
            began = time.process_time()
            probs[split] = np.asarray(model.predict_proba(data.X[split]), dtype=np.float64)
            metrics[f"{split}_seconds"] = time.process_time() - began
    if data.taxonomy is None:
        for split, found in probs.items():
            metrics |= _named(split, _scores(found, np.searchsorted(model.classes_, data.y[split])))
        return Outcome(metrics, {})
    aligned = {split: data.taxonomy.align(found, model.classes_) for split, found in probs.items()}
    for split, found in aligned.items():
        metrics |= _named(split, of_levels(data.taxonomy, found, data.y[split]))
    answers, history = of_answers(data.taxonomy, aligned, data.y)
    metrics |= _named("test", answers | of_sets(data.taxonomy, aligned, data.y, int(run["seed"])))
    return Outcome(metrics, history)


def _named(split: str, metrics: dict[str, float]) -> dict[str, float]:
    return {f"{split}_{name}": value for name, value in metrics.items()}


def _scores(probs: Floats, truth: NDArray[np.int64]) -> dict[str, float]:
    right = np.clip(probs[np.arange(len(truth)), truth], LEAST, 1)
    return {"log_loss": -float(np.log(right).mean()), "accuracy": float((probs.argmax(1) == truth).mean())}


def of_levels(taxonomy: Taxonomy, probs: Floats, y: NDArray[np.generic]) -> dict[str, float]:
    """Return log loss, accuracy and calibration error of every level; those of classes also without a number."""
    metrics = {}
    for each in level_metrics(taxonomy, y, probs):
        for name in ("log_loss", "accuracy", "calibration_error"):
            metrics[name] = metrics[f"{name}_{each.level}"] = getattr(each, name)
    return metrics


def of_answers(
    taxonomy: Taxonomy, probs: dict[str, Floats], y: dict[str, NDArray[np.generic]]
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return metrics of answers with the validation rows' threshold for :data:`ACCURACY`, and the curve of back-off."""
    curve = back_off_curve(taxonomy, probs["test"], y["test"])
    try:
        threshold = BackOff(taxonomy, ACCURACY).fit(probs["validation"], y["validation"]).threshold_
    except ValueError:  # no threshold gives an overconfident model this accuracy: keep the most probable answers
        threshold = 1.0
    at = min(int(np.searchsorted(curve.threshold, threshold)), len(curve.threshold) - 1)
    judged = np.isfinite(curve.accuracy)
    accuracy = np.interp(INFORMATION, curve.information[judged][::-1], curve.accuracy[judged][::-1])
    metrics = {
        "back_off_accuracy": float(np.nan_to_num(curve.accuracy[at], nan=1.0)),  # without answers
        "back_off_information": float(curve.information[at]),
        "back_off_answered": float(curve.answered[at]),
        **{f"accuracy_at_{INFORMATION[i]:.1f}": float(accuracy[i]) for i in (9, 13, 17)},
    }
    return metrics, {"information": INFORMATION.tolist(), "accuracy": accuracy.tolist()}


def of_sets(
    taxonomy: Taxonomy, probs: dict[str, Floats], y: dict[str, NDArray[np.generic]], seed: int
) -> dict[str, float]:
    """Return coverage over random splits of held-out rows, and sizes of sets calibrated on the validation rows."""
    rng, metrics = np.random.default_rng(seed), {}
    both, truth = (np.concatenate([each["validation"], each["test"]]) for each in (probs, y))
    orders = [rng.permutation(len(truth)) for _ in range(SPLITS)]
    for name, most in KINDS.items():
        sets = ConformalSets(taxonomy, COVERAGE, max_labels=most)
        scores = sets.scores(both, truth)
        coverages = [_coverage(scores[order]) for order in orders]
        metrics[f"coverage_{name}"] = float(np.mean(coverages))
        metrics[f"coverage_low_{name}"], metrics[f"coverage_high_{name}"] = np.quantile(coverages, [0.025, 0.975])
        found = sets.fit(probs["validation"], y["validation"]).predict(probs["test"])
        everything, *chapters = coverage_report(found, y["test"])
        metrics[f"set_classes_{name}"] = everything.num_classes
        metrics[f"single_class_{name}"] = float((found.num_classes == 1).mean())
        metrics[f"least_coverage_{name}"] = min(each.coverage for each in chapters if each.rows >= 50)
    return metrics


def _coverage(scores: Floats) -> float:
    half = len(scores) // 2
    return float((scores[half:] <= conformal_quantile(scores[:half], COVERAGE)).mean())
