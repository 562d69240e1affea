"""The evaluation of a run: metrics of a method's predicted distributions."""

from __future__ import annotations

import time
import warnings

import torch
from torch import Tensor

from catnat_experiments.engine.types import Config, Outcome
from catnat_experiments.tasks.binned.data import load
from catnat_experiments.tasks.binned.methods import METHODS
from catnat_experiments.tasks.binned.predictions import Gaussians, Prediction

INTERVALS = (50, 80, 90)
"""The central intervals, in percent."""
TRUTH = "true distribution"
"""The true distribution of synthetic targets: a reference, which is not fitted."""


def evaluate(run: Config) -> Outcome:
    """Fit a method, and return metrics of its distributions for the validation and the test rows."""
    torch.set_num_threads(1)
    data = load(str(run["data"]), int(run["seed"]))
    if run["parameterization"] == TRUTH:
        if data.truth is None:
            raise ValueError(f"The distribution of {run['data']} is not known: leave out {TRUTH!r}.")
        known = Gaussians(*map(torch.from_numpy, data.truth["test"]))
        return Outcome(_judged(known, torch.from_numpy(data.y["test"]), "test"), {})
    make = METHODS[str(run["parameterization"])]
    model = make(float(run["first"]), float(run["second"]), int(run["seed"]), data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from NGBoost
        began = time.process_time()
        model.fit(data)
        metrics = {"fit_seconds": time.process_time() - began}
        for split in ("validation", "test"):
            began = time.process_time()
            found = _judged(model.predict(data.X[split]), torch.from_numpy(data.y[split]), split)
            metrics |= {**found, f"{split}_seconds": time.process_time() - began}
    return Outcome(metrics, model.history)


def _judged(prediction: Prediction, value: Tensor, split: str) -> dict[str, float]:
    return {f"{split}_{name}": number for name, number in judge(prediction, value).items()}


@torch.no_grad()
def judge(prediction: Prediction, value: Tensor) -> dict[str, float]:
    """Return means over rows: CRPS, coverage and width of central intervals, and with a density the log-loss."""
    metrics = {"crps": float(prediction.crps(value).double().mean())}
    log_prob = prediction.log_prob(value)
    if log_prob is not None:
        metrics["nll"] = -float(log_prob.double().mean())
        metrics["impossible"] = prediction.impossible(value)
    for percent in INTERVALS:
        low, high = (prediction.icdf(0.5 + sign * percent / 200).double() for sign in (-1, 1))
        metrics[f"coverage_{percent}"] = float(((low <= value) & (value <= high)).double().mean())
        metrics[f"width_{percent}"] = float((high - low).mean())
    return metrics
