"""The time and the memory of one fit on very many rows, in a process of its own."""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from catnat_experiments.tasks.classifiers.data import generated
from catnat_experiments.tasks.classifiers.methods import METHODS


def main() -> None:
    """Fit once, and print processor seconds, the peak of memory, and the log loss of rows that were left out."""
    parser = argparse.ArgumentParser(prog="python -m catnat_experiments.tasks.classifiers", description=__doc__)
    parser.add_argument("--method", choices=METHODS, default="tree, centroids")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--test", type=int, default=2000)
    options = parser.parse_args()
    X, y = generated(options.classes, options.rows + options.test)  # noqa: N806
    X = X.astype(np.float32)  # noqa: N806
    before = _peak_gigabytes()
    model = METHODS[options.method](0.5, 0.75, 0, None)
    booster = model.estimator if hasattr(model, "estimator") else model
    booster.set_params(n_estimators=options.rounds)
    began = time.process_time()
    model.fit(X[: options.rows], y[: options.rows])
    seconds = time.process_time() - began
    print(f"{options.method}: {options.rows} rows, {options.classes} classes, {options.rounds} rounds")
    print(
        f"fit {seconds:.0f} s of processor time, peak {_peak_gigabytes():.2f} GB ({before:.2f} GB before)", flush=True
    )
    began = time.process_time()
    probs = model.predict_proba(X[options.rows :])
    right = probs[np.arange(options.test), np.searchsorted(model.classes_, y[options.rows :])]
    loss = -np.log(np.maximum(right, np.finfo(float).eps)).mean()
    print(f"predict {options.test} rows {time.process_time() - began:.0f} s, log loss {loss:.3f}")


def _peak_gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    main()
