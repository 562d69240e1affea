"""The data sets, split into rows for training, validation and test; targets are standardized."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from catnat_experiments.common.splits import split
from catnat_experiments.engine.extras import extra

with extra("binned"):
    from sklearn.datasets import load_diabetes, load_sample_image, make_friedman1

Floats = NDArray[np.float64]
TENTHS = (6, 2)
MODES = 4.0
"""The distance of both modes of the bimodal noise from their middle; their standard deviation is 1."""


class Truth(NamedTuple):
    """The true distribution of the targets: Gaussians, (rows, components)."""

    log_weights: Floats
    means: Floats
    stds: Floats


class Data(NamedTuple):
    """Rows and targets by split; targets are standardized by the mean and standard deviation of the training rows."""

    X: dict[str, Floats]
    y: dict[str, Floats]
    truth: dict[str, Truth] | None = None


@functools.lru_cache(maxsize=2)
def load(name: str, seed: int) -> Data:
    """Return a data set; the rows are always the same, and the seed determines the split."""
    kind, *sizes = name.split("-")
    if kind not in _KINDS or len(sizes) != (kind != "diabetes"):
        raise ValueError(
            f"`data` is {name!r}, but diabetes, pixels-<rows>, heteroscedastic-<rows> or bimodal-<rows> is needed."
        )
    X, y, truth = _KINDS[kind](*map(int, sizes))  # noqa: N806
    parts = split(len(y), np.random.default_rng(seed), TENTHS)
    mean, std = y[parts["train"]].mean(), y[parts["train"]].std()
    truths = None
    if truth is not None:
        scaled = Truth(truth.log_weights, (truth.means - mean) / std, truth.stds / std)
        truths = {part: Truth(*(each[at] for each in scaled)) for part, at in parts.items()}
    features = {part: X[at] for part, at in parts.items()}
    return Data(features, {part: (y[at] - mean) / std for part, at in parts.items()}, truths)


def is_synthetic(name: str) -> bool:
    """Return whether the distribution of the targets is known."""
    return name.split("-")[0] in ("heteroscedastic", "bimodal")


Rows = tuple[Floats, Floats, Truth | None]


def _diabetes() -> Rows:
    """Return 442 patients and the progression of their disease, an integer with uniform noise of width 1."""
    X, y = load_diabetes(return_X_y=True)  # noqa: N806
    return X, _dequantized(y, 1.0), None


def _pixels(rows: int) -> Rows:
    """Return pixels' brightness, with the 12 nearest pixels above and to the left as features, as in image models."""
    grey = load_sample_image("china.jpg").astype(np.float64).mean(2)
    neighbours = [(down, right) for down in (-2, -1, 0) for right in range(-2, 3) if (down, right) < (0, 0)]
    rng = np.random.default_rng(0)
    height, width = grey.shape
    at = rng.choice((height - 2) * (width - 4), rows, replace=False)
    row, column = at // (width - 4) + 2, at % (width - 4) + 2
    X = np.stack([grey[row + down, column + right] for down, right in neighbours], 1)  # noqa: N806
    return X, _dequantized(grey[row, column], 1 / 3), None


def _dequantized(values: Floats, step: float) -> Floats:
    """Add uniform noise of one step's width to numbers on a grid, because a density of the grid is unbounded."""
    spread: Floats = values + np.random.default_rng(1).uniform(-step / 2, step / 2, len(values))
    return spread


def _heteroscedastic(rows: int) -> Rows:
    """Return Friedman's function of five features with Gaussian noise; a sixth sets its scale, from 0.6 to 4.5."""
    X, mean = make_friedman1(rows, noise=0.0, random_state=0)  # noqa: N806
    return _drawn(X, Truth(np.zeros((rows, 1)), mean[:, None], np.exp(2 * X[:, 5:6] - 0.5)))


def _bimodal(rows: int) -> Rows:
    """Return targets above or below Friedman's function; a sixth feature is the probability of above."""
    X, mean = make_friedman1(rows, noise=0.0, random_state=0)  # noqa: N806
    weights = np.stack([1 - X[:, 5], X[:, 5]], 1)
    return _drawn(X, Truth(np.log(weights), mean[:, None] + np.array([-MODES, MODES]), np.ones((rows, 2))))


def _drawn(X: Floats, truth: Truth) -> Rows:  # noqa: N803
    rng = np.random.default_rng(1)
    below = np.exp(truth.log_weights).cumsum(1)[:, :-1]
    component = (rng.uniform(size=(len(X), 1)) > below).sum(1)
    every = np.arange(len(X))
    return X, truth.means[every, component] + truth.stds[every, component] * rng.normal(size=len(X)), truth


_KINDS: dict[str, Callable[..., Rows]] = {
    "diabetes": _diabetes,
    "pixels": _pixels,
    "heteroscedastic": _heteroscedastic,
    "bimodal": _bimodal,
}
