"""One run: fit a method, and what its probabilities are worth, at every level of the taxonomy if there is one."""

from __future__ import annotations

import time
import warnings

import numpy as np
import torch
from numpy.typing import NDArray

import catnat
from catnat_experiments.engine.types import Config, Outcome
from catnat_experiments.tasks.classifiers.data import Data, load
from catnat_experiments.tasks.classifiers.methods import METHODS, TEXT_METHODS

Floats = NDArray[np.float64]
LEAST = np.finfo(np.float64).eps
"""The least probability that a log loss takes, as in scikit-learn."""
BINS = 10
CONFIDENCE = 0.9


def evaluate(run: Config) -> Outcome:
    """Fit and judge; probabilities of the validation rows, and of the test rows."""
    torch.set_num_threads(1)
    data = load(str(run["data"]), int(run["seed"]))
    make = {**METHODS, **TEXT_METHODS}[str(run["parameterization"])]
    model = make(float(run["first"]), float(run["second"]), int(run["seed"]), data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of solvers that stop at their limit, and LightGBM's of names
        began = time.process_time()
        model.fit(data.X["train"], data.y["train"])
        metrics = {"fit_seconds": time.process_time() - began}
        for split in ("validation", "test"):
            began = time.process_time()
            probs = np.asarray(model.predict_proba(data.X[split]), dtype=np.float64)
            metrics[f"{split}_seconds"] = time.process_time() - began
            found, history = judge(probs, model.classes_, data, split)
            metrics |= {f"{split}_{name}": value for name, value in found.items()}
    return Outcome(metrics, history)


def judge(
    probs: Floats, classes: NDArray[np.generic], data: Data, split: str
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Log loss and accuracy, and those of every level; the history has the points of its reliability curves."""
    y = data.y[split]
    metrics = _scores(probs, np.searchsorted(classes, y))
    history: dict[str, list[float]] = {}
    if data.taxonomy is None:
        return metrics, history
    for level in range(1, data.taxonomy.num_levels + 1):
        names, sums, truth = _at_level(probs, classes, y, data.taxonomy, level)
        index = np.searchsorted(names, truth)
        metrics |= {f"{name}_{level}": value for name, value in _scores(sums, index).items()}
        confident, right = reliability(sums, index)
        metrics[f"calibration_error_{level}"] = calibration_error(sums, index)
        history |= {f"confidence_{level}": confident, f"accuracy_{level}": right}
    return metrics | back_off(probs, classes, y, data.taxonomy), history


def _scores(probs: Floats, truth: NDArray[np.int64]) -> dict[str, float]:
    right = np.clip(probs[np.arange(len(truth)), truth], LEAST, 1)
    return {"log_loss": -float(np.log(right).mean()), "accuracy": float((probs.argmax(1) == truth).mean())}


def _at_level(
    probs: Floats, classes: NDArray[np.generic], y: NDArray[np.generic], taxonomy: catnat.Taxonomy, level: int
) -> tuple[NDArray[np.generic], Floats, NDArray[np.generic]]:
    """The groups of a level, their probabilities, and the true ones."""
    above = dict(zip(taxonomy.classes, taxonomy.level(level), strict=True))
    names, index = np.unique([str(above[name]) for name in classes.tolist()], return_inverse=True)
    sums = np.zeros((len(probs), len(names)))
    np.add.at(sums.T, index, probs.T)
    return names, sums, np.array([above[name] for name in y.tolist()])


def back_off(
    probs: Floats, classes: NDArray[np.generic], y: NDArray[np.generic], taxonomy: catnat.Taxonomy
) -> dict[str, float]:
    """How deep a prediction goes that is confident, from 0 for none, and how often it is right."""
    depth, right = np.zeros(len(y)), np.ones(len(y), dtype=bool)
    for level in range(1, taxonomy.num_levels + 1):
        names, sums, truth = _at_level(probs, classes, y, taxonomy, level)
        confident = sums.max(1) >= CONFIDENCE
        depth[confident] = level
        right[confident] = (names[sums.argmax(1)] == truth)[confident]
    return {
        "back_off_accuracy": float(right[depth > 0].mean()) if depth.any() else np.nan,
        "back_off_depth": float(depth.mean()),
    }


def reliability(probs: Floats, truth: NDArray[np.int64]) -> tuple[list[float], list[float]]:
    """Mean confidence and accuracy of the most probable class in bins of equal numbers of rows."""
    confident, right = probs.max(1), probs.argmax(1) == truth
    bins = np.array_split(np.argsort(confident, kind="stable"), min(BINS, len(truth)))
    return [float(confident[rows].mean()) for rows in bins], [float(right[rows].mean()) for rows in bins]


def calibration_error(probs: Floats, truth: NDArray[np.int64]) -> float:
    """The mean difference between confidence and accuracy over these bins."""
    confident, right = map(np.array, reliability(probs, truth))
    return float(np.abs(confident - right).mean())
