"""Distributional regression: its data, its predictions against SciPy and quadrature, every method for a small run."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import integrate, stats

import catnat
import catnat.torch as ct
from catnat_experiments.engine.progress import Display
from catnat_experiments.report import page

task = pytest.importorskip("catnat_experiments.tasks.binned.task", exc_type=ImportError)
from catnat_experiments.common.splits import SPLITS  # noqa: E402
from catnat_experiments.engine import records, stages  # noqa: E402
from catnat_experiments.tasks.binned import data, evaluation, methods, predictions  # noqa: E402

FALSE_ALARM = 1e-6
ROWS = 3
Floats = NDArray[np.float64]


def mixture() -> predictions.Gaussians:
    weights = torch.tensor([[0.3, 0.7], [0.5, 0.5], [0.999, 0.001]], dtype=torch.float64)
    means = torch.tensor([[-2.0, 1.0], [0.0, 0.1], [3.0, -4.0]], dtype=torch.float64)
    stds = torch.tensor([[0.5, 1.5], [1.0, 0.2], [0.7, 2.0]], dtype=torch.float64)
    return predictions.Gaussians(weights.log(), means, stds)


def cdf_of(gaussians: predictions.Gaussians, x: Floats) -> Floats:
    """At numbers of all rows, (rows,) or (many, rows)."""
    weights, means, stds = (each.numpy() for each in (gaussians.log_weights.exp(), gaussians.means, gaussians.stds))
    return np.asarray((weights * stats.norm.cdf(x[..., None], means, stds)).sum(-1))


def crps_by_quadrature(cdf: Callable[[Floats], Floats], value: float) -> float:
    """From the definition, by the trapezoidal rule on both sides of the value."""
    below, above = np.linspace(value - 40, value, 40_001), np.linspace(value, value + 40, 40_001)
    return float(integrate.trapezoid(cdf(below) ** 2, below) + integrate.trapezoid((1 - cdf(above)) ** 2, above))


# ---- the data ----


@pytest.mark.parametrize("name", ["diabetes", "pixels-500", "heteroscedastic-500", "bimodal-500"])
def test_splits_have_all_rows_once_and_standardized_targets(name: str) -> None:
    one, other = data.load(name, 1), data.load(name, 2)
    assert len(one.y["train"]) == 6 * sum(len(one.y[split]) for split in SPLITS) // 10
    rows = [np.sort(np.concatenate([each.X[split] for split in SPLITS]), axis=0) for each in (one, other)]
    np.testing.assert_array_equal(*rows)
    assert not np.array_equal(one.X["test"], other.X["test"])
    assert (one.y["train"].mean(), one.y["train"].std()) == pytest.approx((0, 1))
    assert len(np.unique(one.y["train"])) == len(one.y["train"])  # a density of tied targets has no bound
    assert (one.truth is not None) == data.is_synthetic(name)


def test_the_neighbours_of_a_pixel_are_those_before_it() -> None:
    X, y, _ = data._pixels(1000)
    grey = data.load_sample_image("china.jpg").mean(2)
    assert X.shape == (1000, 12)
    for row in range(3):
        places = np.argwhere(grey == X[row, 0])
        found = [(i, j) for i, j in places if i + 2 < len(grey) and j + 4 < len(grey[0])]
        found = [(i, j) for i, j in found if np.array_equal(grey[i, j : j + 5], X[row, :5])]
        assert any(
            np.array_equal(grey[i + 1, j : j + 5], X[row, 5:10])
            and np.array_equal(grey[i + 2, j : j + 2], X[row, 10:])
            and abs(grey[i + 2, j + 2] - y[row]) <= 1 / 6
            for i, j in found
        )


@pytest.mark.parametrize("name", ["heteroscedastic-2000", "bimodal-2000"])
def test_synthetic_targets_are_drawn_from_the_truth(name: str) -> None:
    """Their probability transforms are uniform; the false alarm rate is that of the test."""
    found = data.load(name, 0)
    assert found.truth is not None
    truths = [predictions.Gaussians(*map(torch.from_numpy, found.truth[split])) for split in SPLITS]
    transforms = [cdf_of(truth, found.y[split]) for truth, split in zip(truths, SPLITS, strict=True)]
    assert stats.kstest(np.concatenate(transforms), "uniform").pvalue > FALSE_ALARM


def test_a_wrong_name_of_data_says_what_is_needed() -> None:
    with pytest.raises(ValueError, match="bimodal-<rows>"):
        data.load("bimodal", 0)


# ---- predictions against independent oracles ----


def test_gaussians_have_scipys_density_and_quantiles_and_the_crps_of_the_definition() -> None:
    gaussians, value = mixture(), torch.tensor([0.3, -1.0, 2.5], dtype=torch.float64)
    parts = [each.numpy() for each in (gaussians.log_weights.exp(), gaussians.means, gaussians.stds)]
    density = (parts[0] * stats.norm.pdf(value.numpy()[:, None], parts[1], parts[2])).sum(1)
    np.testing.assert_allclose(gaussians.log_prob(value).exp().numpy(), density, rtol=1e-12)
    for row in range(ROWS):
        one = predictions.Gaussians(gaussians.log_weights[row], gaussians.means[row], gaussians.stds[row])
        oracle = crps_by_quadrature(lambda x, one=one: cdf_of(one, x), float(value[row]))
        assert float(gaussians.crps(value)[row]) == pytest.approx(oracle, abs=1e-6)
    for level in (0.05, 0.5, 0.9):
        assert cdf_of(gaussians, gaussians.icdf(level).numpy()) == pytest.approx([level] * ROWS)


def test_one_gaussian_has_the_closed_form_of_gneiting_and_raftery() -> None:
    mean, std, value = 0.4, 1.7, np.array([-3.0, 0.4, 2.0])
    scaled = (value - mean) / std
    known = std * (scaled * (2 * stats.norm.cdf(scaled) - 1) + 2 * stats.norm.pdf(scaled) - 1 / np.sqrt(np.pi))
    column = torch.ones(3, 1, dtype=torch.float64)
    one = predictions.Gaussians(0 * column, mean * column, std * column)
    np.testing.assert_allclose(one.crps(torch.from_numpy(value)).numpy(), known, rtol=1e-12)


def test_quantiles_have_the_crps_of_their_point_masses() -> None:
    """CRPS = E|X - y| - E|X - X'| / 2, by sums over all pairs; crossed quantiles are put in order."""
    rng = np.random.default_rng(0)
    points, value = rng.normal(size=(4, 50)), rng.normal(size=4)
    apart = np.abs(points[:, :, None] - points[:, None]).mean((1, 2))
    known = np.abs(points - value[:, None]).mean(1) - apart / 2
    quantiles = predictions.Quantiles(torch.from_numpy(points))
    np.testing.assert_allclose(quantiles.crps(torch.from_numpy(value)).numpy(), known, rtol=1e-12)
    for level in (0.05, 0.1, 0.75):
        expected = np.quantile(points, level, axis=1, method="hazen")  # the levels (i + 1/2) / m
        np.testing.assert_allclose(quantiles.icdf(level).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["softmax", "sigmoid", "natural"])
def test_a_histogram_has_the_probabilities_of_its_head(name: str) -> None:
    """Against SciPy's histogram inside, the exponential distribution in the tails, and quadrature for the CRPS."""
    y = np.random.default_rng(0).normal(size=400)
    head = methods.BinnedHead(name, y, 8, None)
    torch.manual_seed(0)
    outputs = 0.5 * torch.randn(1, len(head.start), dtype=torch.float64)
    found = head.predict(outputs)
    if name == "softmax":
        probs = np.exp(outputs[0].numpy()) / np.exp(outputs[0].numpy()).sum()
    else:
        probs = ct.catnat(outputs, activation=name)[0].numpy()
    edges = head.bins.edges
    inner = stats.rv_histogram((probs[1:-1], edges[1:-1]), density=False)
    left, right = stats.expon(scale=edges[1] - edges[0]), stats.expon(scale=edges[-1] - edges[-2])

    def cdf(x: Floats) -> Floats:
        middle = probs[1:-1].sum() * inner.cdf(x)
        return np.asarray(probs[0] * left.sf(edges[1] - x) + middle + probs[-1] * right.cdf(x - edges[-2]))

    for value in (edges[0] - 1.0, edges[1], 0.1, edges[-1] + 2):
        low, high = edges[1], edges[-2]
        pdf = probs[0] * left.pdf(low - value) + probs[-1] * right.pdf(value - high)
        pdf = pdf + probs[1:-1].sum() * inner.pdf(value) if low < value < high else pdf
        at = torch.tensor([value], dtype=torch.float64)
        if value not in edges:
            assert float(found.log_prob(at).exp()) == pytest.approx(float(pdf))
        assert float(found.crps(at)) == pytest.approx(crps_by_quadrature(cdf, value), abs=1e-6)
    for level in (0.05, 0.5, 0.95):
        assert cdf(found.icdf(level).numpy()) == pytest.approx(level, abs=1e-6)


def test_bins_hold_equally_many_targets_and_a_tail_the_mean_of_its_own() -> None:
    y = np.random.default_rng(0).lognormal(size=1000)
    bins = methods.equally_full(y, 10)
    assert bins.tails
    inner = np.histogram(y, [-np.inf, *bins.edges[1:-1], np.inf])[0]
    assert set(inner) == {100}
    assert bins.means[-1] == pytest.approx(np.sort(y)[-100:].mean())
    assert bins.means[0] == pytest.approx(np.sort(y)[:100].mean())


# ---- what they are worth ----


def test_measures_of_a_calibrated_and_of_a_narrow_prediction() -> None:
    """Targets from the mixture itself: coverage within 5 standard errors, one false alarm in a million."""
    rows, rng = 4000, np.random.default_rng(0)
    ones = torch.ones(rows, 1, dtype=torch.float64)
    value = torch.from_numpy(rng.normal(size=rows))
    right = evaluation.judge(predictions.Gaussians(0 * ones, 0 * ones, ones), value)
    narrow = evaluation.judge(predictions.Gaussians(0 * ones, 0 * ones, 0.5 * ones), value)
    for percent in evaluation.INTERVALS:
        error = np.sqrt(percent * (100 - percent) / rows) / 100
        assert right[f"coverage_{percent}"] == pytest.approx(percent / 100, abs=5 * error)
        assert narrow[f"coverage_{percent}"] < percent / 100 - 5 * error
        width = 2 * stats.norm.ppf(0.5 + percent / 200)
        assert right[f"width_{percent}"] == pytest.approx(width)
        assert narrow[f"width_{percent}"] == pytest.approx(width / 2)
    assert right["nll"] == pytest.approx(float(-stats.norm.logpdf(value.numpy()).mean()))
    assert right["crps"] < narrow["crps"]
    assert right["nll"] < narrow["nll"]


@pytest.mark.parametrize("method", methods.METHODS)
def test_every_method_learns_something(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the distribution of all targets knows."""
    monkeypatch.setattr(methods, "STEPS", 80)
    monkeypatch.setattr(methods, "ROUNDS", 20)
    run = {"data": "heteroscedastic-500", "parameterization": method, "seed": 1, "first": 0.8, "second": 0.3}
    found = evaluation.evaluate(run).metrics
    y = data.load("heteroscedastic-500", 1).y
    everywhere = torch.from_numpy(np.quantile(y["train"], (np.arange(50) + 0.5) / 50)).expand(len(y["test"]), -1)
    assert found["test_crps"] < float(predictions.Quantiles(everywhere).crps(torch.from_numpy(y["test"])).mean())
    assert ("test_nll" in found) == (method != "quantiles")
    assert found["fit_seconds"] > 0


def test_the_best_weights_by_validation_crps_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "STEPS", 300)
    run = {"data": "diabetes", "parameterization": "softmax, hard", "seed": 1, "first": 1.0, "second": 0.5}
    outcome = evaluation.evaluate(run)
    assert outcome.metrics["validation_crps"] == pytest.approx(min(outcome.history["validation_crps"]), abs=1e-6)
    assert outcome.history["validation_crps"][-1] > min(outcome.history["validation_crps"])  # so it matters
    assert len(outcome.history["step"]) == methods.LOOKS


@pytest.mark.slow
def test_smoke_runs_on_ray_and_its_page_has_paired_tests(
    own_ray: None, display: Display, output: io.StringIO, tmp_path: Path
) -> None:
    from catnat_experiments.engine import run as engine  # Ray takes a second to import

    engine.run(task.EXPERIMENT, "smoke", tmp_path / "records", engine.Options(), display)
    found, corrupt = records.load_all(tmp_path / "records")
    assert (len(found), corrupt) == (4 + 8 + 2, [])
    statuses = stages.survey(task.EXPERIMENT, "smoke", found)
    text = page.write("binned", "smoke", statuses, task.TABLES, tmp_path / "page").read_text()
    assert "paired t-tests, by seed" in text
    assert "true distribution" in text
    assert catnat.__version__ in text
