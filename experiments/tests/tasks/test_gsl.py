"""Graph structure learning: every estimator and metric against enumeration or loops, and runs that can be repeated."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from memory import Memory, assert_goes_on, assert_tables_fit, final_row
from scipy import stats
from torch import Tensor

from catnat_experiments.common.parameterizations import parameterization
from catnat_experiments.engine import loop
from catnat_experiments.engine.records import run_id
from catnat_experiments.engine.types import Config
from catnat_experiments.tasks.gsl import energy, paper, training
from catnat_experiments.tasks.gsl import task as gsl
from catnat_experiments.tasks.gsl.data import make_data, possible_edges, stream_of

FALSE_ALARM = 1e-6
torch.set_num_threads(1)


def small(**changes: str | int | float) -> Config:
    """A run of seconds: the real graph, few data and steps."""
    run = gsl.config(0.75, "natural", 0.05, 1, steps=40)
    return {**run, "batch": 16, "graphs": 6, "graph_sets": 4, "pairs": 400, **changes}


# ---- data ----


def test_the_graph_has_the_listed_entries() -> None:
    edges = possible_edges()
    wanted = np.eye(24)
    for c in range(4):
        for pair in ("01", "12", "34", "13", "24", "45", "03", "14", "35"):
            i, j = (6 * c + int(digit) for digit in pair)
            wanted[i, j] = wanted[j, i] = 1
    for i, j in ((5, 6), (11, 12), (17, 18)):
        wanted[i, j] = wanted[j, i] = 1
    assert np.array_equal(edges.numpy(), wanted)
    assert edges.diagonal().sum() == 24
    assert edges.sum() - 24 == 78
    assert (edges == 0).sum() == 474


@pytest.mark.parametrize("theta", paper.THETAS)
def test_data_has_the_stated_distribution(theta: float) -> None:
    data = make_data(theta, pairs=2000)
    assert data.x.shape == (2000, 24, 4)
    assert data.y.shape == (2000, 24, 2)
    assert torch.equal(data.theta, theta * possible_edges())
    scale = 2.25 if theta == 0.5 else 1.56
    assert math.isclose(float(data.weight.square().sum(0).mean()), scale, rel_tol=1e-6)
    # Given x, the mean of y_j is sum_i theta_ij x_i W and its variance sum_i theta_ij (1 - theta_ij) (x_i W)^2.
    features = (data.x @ data.weight).double()
    variance = data.theta.T.double() * (1 - data.theta.T.double()) @ features.square()
    z = (data.y - data.theta.T.double() @ features) / variance.sqrt()
    limit = stats.norm.isf(FALSE_ALARM / 4)
    assert abs(z.mean()) * math.sqrt(z.numel()) < limit
    spread = z.square().std() / math.sqrt(z.numel())
    assert abs(z.square().mean() - 1) < limit * spread
    assert abs(data.x.mean()) * math.sqrt(data.x.numel()) < limit
    assert abs(data.x.square().mean() - 1) * math.sqrt(data.x.numel() / 2) < limit


def test_data_is_fixed_by_theta_and_seed_and_split_in_three() -> None:
    first, again, other = make_data(0.5, 50), make_data(0.5, 50), make_data(0.5, 50, seed=7)
    assert torch.equal(first.y, again.y)
    assert not torch.equal(first.y, other.y)
    parts = [first.split(name)[0] for name in ("train", "validation", "test")]
    assert [len(part) for part in parts] == [40, 5, 5]
    assert torch.equal(torch.cat(parts), first.x)


@pytest.mark.parametrize("theta", paper.THETAS)
def test_the_optimal_row_has_the_papers_energy_score_within_one_percent(theta: float) -> None:
    [outcome] = training.train([gsl.config(theta, paper.OPTIMAL, 0.0, 0, steps=0)], Memory())
    wanted = paper.PAPER["test_es_twice"][theta]["optimal"].mean
    assert abs(outcome.metrics["test_es_twice"] / wanted - 1) < 0.01
    assert outcome.metrics["test_es_twice"] == 2 * outcome.metrics["test_es"]


# ---- the energy score ----


def norms(points: Tensor) -> Tensor:
    return (points.unsqueeze(-2) - points.unsqueeze(-3)).square().sum(-1).sqrt()


def test_distances_against_loops() -> None:
    torch.manual_seed(0)
    predictions, target = torch.randn(3, 5, 7, dtype=torch.float64), torch.randn(3, 7, dtype=torch.float64)
    predictions[0, 1] = predictions[0, 3]
    to_target, between = energy.distances(predictions - target.unsqueeze(1))
    for b, m in np.ndindex(3, 5):
        wanted = math.sqrt(sum(float(v) ** 2 for v in predictions[b, m] - target[b]) + 1e-6)
        assert math.isclose(to_target[b, m], wanted, rel_tol=1e-12)
        for n in range(5):
            if n != m:
                wanted = math.sqrt(sum(float(v) ** 2 for v in predictions[b, m] - predictions[b, n]) + 1e-6)
                assert math.isclose(between[b, m, n], wanted, rel_tol=1e-9)


def test_equal_predictions_are_a_thousandth_apart_in_float32() -> None:
    _, between = energy.distances(torch.randn(4, 1, 48).expand(4, 6, 48).contiguous())
    assert between.isfinite().all()
    assert (between >= 1e-3).all()
    assert (between < 2e-2).all()


def test_in_one_dimension_the_expected_score_is_the_crps() -> None:
    """E|Y - y| - 1/2 E|Y - Y'| = integral of (F(t) - 1[t >= y])^2, for three atoms, over all triples."""
    atoms = torch.tensor([-1.0, 0.4, 2.0], dtype=torch.float64)
    probs = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    picks = torch.tensor(list(itertools.product(range(3), repeat=3)))
    probability = probs[picks].prod(1)
    values = atoms[picks].unsqueeze(-1)
    edges = torch.linspace(-4, 4, 800_001, dtype=torch.float64)
    middle = (edges[1:] + edges[:-1]) / 2
    cdf = ((middle.unsqueeze(1) >= atoms) * probs).sum(1)
    for y in (-2.0, -0.3, 0.4, 1.7, 3.0):
        expected = (probability * energy.energy_score((values - y).abs().squeeze(-1), norms(values))).sum()
        integral = (cdf - (middle >= y).double()).square().sum() * 1e-5
        assert math.isclose(expected, integral, rel_tol=1e-4)


# ---- a tiny graph, by enumeration ----


class Tiny:
    """Two nodes: entries (0, 0), (0, 1), (1, 1) are latent, (1, 0) is never there. All graphs, all M-tuples of them."""

    def __init__(self, graphs: int, latent: tuple[int, ...] = (0, 1, 3), batch: int = 2) -> None:
        torch.manual_seed(5)
        self.latent, self.batch = list(latent), batch
        self.weight = torch.randn(3, 2, dtype=torch.float64)
        self.x = torch.randn(batch, 2, 3, dtype=torch.float64)
        rows = []
        for bits in itertools.product((0.0, 1.0), repeat=len(latent)):
            row = torch.zeros(4, dtype=torch.float64)
            row[self.latent] = torch.tensor(bits, dtype=torch.float64)
            rows.append(row.view(2, 2))
        self.all = torch.stack(rows)
        self.tuples = torch.tensor(list(itertools.product(range(len(rows)), repeat=graphs)))

    def log_probability(self, theta: Tensor) -> Tensor:
        """The log-probability of every graph; theta is of the latent entries."""
        there = self.all.flatten(1)[:, self.latent]
        return (there * theta.log() + (1 - there) * (1 - theta).log()).sum(1)

    def tuple_probability(self, theta: Tensor) -> Tensor:
        return self.log_probability(theta)[self.tuples].sum(1).exp()

    def expand(self, values: Tensor) -> Tensor:
        """A (2, 2) matrix of the latent entries' values, one half elsewhere."""
        full = torch.full((4,), 0.5, dtype=values.dtype)
        return full.index_put((torch.tensor(self.latent),), values).view(2, 2)

    def predictions(self, weight: Tensor) -> Tensor:
        """(batch, graphs, 4), by the definition y_j = sum_i A_ij x_i W."""
        return torch.einsum("gij,bic,co->bgjo", self.all, self.x, weight).flatten(2)

    def exact(self, theta: Tensor, weight: Tensor, y: Tensor) -> Tensor:
        """The expected energy score of a prediction, averaged over the batch; y is (batch, 2, 2)."""
        probability, predictions = self.log_probability(theta).exp(), self.predictions(weight)
        to_target = ((predictions - y.flatten(1).unsqueeze(1)).square().sum(-1) + 1e-6).sqrt()
        squares = (predictions.unsqueeze(1) - predictions.unsqueeze(2)).square().sum(-1)
        pairs = (squares + 1e-6).sqrt()
        return (to_target @ probability - torch.einsum("bgh,g,h->b", pairs, probability, probability) / 2).mean()

    def estimate(self, y: Tensor) -> tuple[Tensor, ...]:
        """The estimator's three results for every tuple, shared by the batch; y is (batch, 2, 2)."""
        targets = y.transpose(1, 2).flatten(1)
        sets = self.all[self.tuples].transpose(1, 2)
        found = [energy.estimate(self.weight, self.x, targets, graphs.unsqueeze(0).contiguous()) for graphs in sets]
        return tuple(torch.stack(part) for part in zip(*found, strict=True))


THETA = torch.tensor([0.2, 0.55, 0.9], dtype=torch.float64)


@pytest.mark.parametrize("name", paper.IN_THE_PAPER)
def test_the_gradient_in_the_scores_is_unbiased(name: str) -> None:
    """The mean over all triples of graphs, with their probabilities, is the gradient of the exact expectation."""
    tiny, kind = Tiny(graphs=3), parameterization(name)
    y = torch.randn(2, 2, 2, dtype=torch.float64)
    theta = tiny.expand(THETA)
    scores = kind.scores_from_probs(torch.stack((1 - theta, theta), -1))
    probability = tiny.tuple_probability(THETA)
    assert math.isclose(probability.sum(), 1, rel_tol=1e-12)
    score, _, pull = tiny.estimate(y)
    got = torch.einsum(
        "t,tijs->ijs", probability, energy.score_gradient(kind, scores.expand(len(probability), -1, -1, -1), pull)
    )
    leaf = scores.clone().requires_grad_()
    probs = kind.log_probs(leaf)[..., 1].exp().flatten()[tiny.latent]
    exact = tiny.exact(probs, tiny.weight, y)
    (wanted,) = torch.autograd.grad(exact, leaf)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)
    assert math.isclose((probability * score).sum(), exact.detach(), rel_tol=1e-12)
    assert wanted.abs().max() > 0.01


def test_the_gradient_in_the_weight_is_unbiased() -> None:
    tiny = Tiny(graphs=3)
    y = torch.randn(2, 2, 2, dtype=torch.float64)
    _, gradient, _ = tiny.estimate(y)
    weight = tiny.weight.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(tiny.exact(THETA, weight, y), weight)
    torch.testing.assert_close(
        torch.einsum("t,tco->co", tiny.tuple_probability(THETA), gradient), wanted, rtol=0, atol=1e-10
    )


def test_the_baseline_lowers_the_variance_and_keeps_the_mean() -> None:
    """By enumeration, far from the target as at the start of training. (Near the truth all signals are about 0.)"""
    tiny, theta = Tiny(graphs=5, latent=(0, 3)), torch.tensor([0.3, 0.8], dtype=torch.float64)
    y = tiny.predictions(tiny.weight)[:, 3].view(2, 2, 2) + 2
    probability, (_, _, pull) = tiny.tuple_probability(theta), tiny.estimate(y)
    slope = 1 / (theta * (1 - theta))  # d log P(1) - d log P(0), in theta
    with_baseline = pull.flatten(1)[:, tiny.latent] * slope
    # Without it: mean over m of signal_m times the derivative of log P(A_m), from the definition.
    predictions = tiny.predictions(tiny.weight)
    to_target = ((predictions - y.flatten(1).unsqueeze(1)).square().sum(-1) + 1e-6).sqrt().mean(0)
    pairs = ((predictions.unsqueeze(1) - predictions.unsqueeze(2)).square().sum(-1) + 1e-6).sqrt().mean(0)
    there = tiny.all.flatten(1)[:, tiny.latent]
    score = (there - theta) * slope
    plain = torch.zeros_like(with_baseline)
    for m in range(5):
        others = [n for n in range(5) if n != m]
        mine = tiny.tuples[:, m]
        signal = to_target[mine] - sum(pairs[mine, tiny.tuples[:, n]] for n in others) / 4
        plain += signal.unsqueeze(1) * score[mine] / 5
    means = [probability @ estimate for estimate in (with_baseline, plain)]
    torch.testing.assert_close(*means, rtol=0, atol=1e-10)
    variances = [probability @ (estimate - means[0]).square() for estimate in (with_baseline, plain)]
    assert (variances[0] < 0.7 * variances[1]).all()


def test_the_energy_score_is_least_at_the_true_theta() -> None:
    tiny, truth = Tiny(graphs=3, batch=3), torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    probability, outputs = tiny.log_probability(truth).exp(), tiny.predictions(tiny.weight)

    def risk(theta: Tensor) -> Tensor:
        """The expected score, over the data's graph as well."""
        targets = (outputs[:, g].view(-1, 2, 2) for g in range(len(probability)))
        return sum(
            (p * tiny.exact(theta, tiny.weight, y) for p, y in zip(probability, targets, strict=True)), torch.zeros(())
        )

    leaf = truth.clone().requires_grad_()
    (slope,) = torch.autograd.grad(risk(leaf), leaf)
    torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-12)
    least = risk(truth)
    for theta in itertools.product((0.05, 0.25, 0.5, 0.75, 0.95), repeat=3):
        if theta != (0.25, 0.5, 0.75):
            assert risk(torch.tensor(theta, dtype=torch.float64)) > least + 1e-4


# ---- closed forms against autograd, at a larger size ----


def surrogate(
    graphs: Tensor, theta_logs: Tensor, weight: Tensor, x: Tensor, y: Tensor, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """One lane's loss as reproduced from the definitions, with loops over the graphs: (score, log-probability part)."""
    count = len(graphs)
    outputs = torch.stack([graph.T @ (x @ weight) for graph in graphs])  # (M, B, N, O)
    d = torch.stack([((o - y).square().sum((1, 2)) + epsilon).sqrt() for o in outputs]).mean(1)
    pairs = {
        (m, n): ((outputs[m] - outputs[n]).square().sum((1, 2)) + epsilon).sqrt().mean()
        for m in range(count)
        for n in range(count)
        if m != n
    }
    score = d.mean() - sum(pairs.values()) / (2 * count * (count - 1))
    total = torch.zeros((), dtype=x.dtype)
    for m in range(count):
        others = [n for n in range(count) if n != m]
        signal = d[m] - sum(pairs[m, n] for n in others) / (count - 1)
        rest = [pairs[j, k] for j in others for k in others if j != k]
        baseline = sum(d[j] for j in others) / (count - 1) - sum(rest) / len(rest)
        log_prob = (graphs[m] * theta_logs[..., 1] + (1 - graphs[m]) * theta_logs[..., 0]).sum()
        total = total + log_prob * (signal - baseline).detach() / count
    return score, total


def drawn_graphs(theta: Tensor, stream: np.random.Generator, sets: int, count: int) -> Tensor:
    shape = sets, len(theta), count, len(theta)
    return energy.draw_graphs(theta, energy.make_noise(shape, stream), torch.empty(shape, dtype=theta.dtype))


@pytest.mark.parametrize("name", paper.IN_THE_PAPER)
def test_written_out_gradients_are_autograds(name: str) -> None:
    """Two sets of graphs for four data points: the mean of what two batches of two points with one set each give."""
    kind, (sets, count, batch, nodes) = parameterization(name), (2, 5, 4, 4)
    torch.manual_seed(1)
    double = {"dtype": torch.float64}
    theta = torch.rand(nodes, nodes, **double) * 0.9 + 0.05
    scores = kind.scores_from_probs(torch.stack((1 - theta, theta), -1))
    weight = torch.randn(3, 2, **double)
    x, y = torch.randn(batch, nodes, 3, **double), torch.randn(batch, nodes, 2, **double)
    graphs = drawn_graphs(theta, np.random.default_rng(0), sets, count)
    score, weight_gradient, pull = energy.estimate(weight, x, y.transpose(1, 2).flatten(1), graphs)
    leaf, learned = scores.clone().requires_grad_(), weight.clone().requires_grad_()
    logs = kind.log_probs(leaf)
    parts = [
        surrogate(graphs[part].transpose(0, 1), logs, learned, x[2 * part : 2 * part + 2], y[2 * part : 2 * part + 2])
        for part in range(sets)
    ]
    wanted = sum(part[0] for part in parts) / sets
    assert math.isclose(score, wanted.detach(), rel_tol=1e-12)
    (wanted + sum(part[1] for part in parts) / sets).backward()
    torch.testing.assert_close(energy.score_gradient(kind, scores, pull), leaf.grad, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(weight_gradient, learned.grad, rtol=1e-9, atol=1e-10)


def test_advantages_sum_to_zero() -> None:
    torch.manual_seed(2)
    to_target, between = torch.rand(3, 7, dtype=torch.float64), torch.rand(3, 7, 7, dtype=torch.float64)
    between = between + between.transpose(1, 2)
    torch.testing.assert_close(energy.advantages(to_target, between).sum(1), torch.zeros(3, dtype=torch.float64))


def test_too_few_graphs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"2 graphs a set.*needs pairs of others: 3"):
        energy.estimate(torch.ones(3, 2), torch.ones(1, 4, 3), torch.ones(1, 8), torch.ones(1, 4, 2, 4))


def test_graph_sets_that_do_not_divide_the_batch_are_refused() -> None:
    sizes = {**gsl.config(0.5, "natural", 0.01, 1), "graph_sets": 24}
    with pytest.raises(ValueError, match="`graph_sets` is 24, but it must divide `batch`, which is 64"):
        training.Training(make_data(0.5, 100), parameterization("natural"), [(0.01, 0.01)], [1], sizes)


def test_entries_are_drawn_with_their_probability() -> None:
    """The numbers below 2^-16 too, in the mean over calls, each of which rounds its threshold anew."""
    calls, count = 200, 100
    theta = torch.linspace(0.001, 0.999, 16).view(4, 4)
    stream, draws = np.random.default_rng(4), calls * count
    drawn = torch.cat([drawn_graphs(theta, stream, 1, count) for _ in range(calls)])
    assert ((drawn == 0) | (drawn == 1)).all()
    z = (drawn.double().mean((0, 2)) - theta) / (theta * (1 - theta) / draws).sqrt()
    assert z.abs().max() < stats.norm.isf(FALSE_ALARM / (2 * 16)) + 0.5  # + 0.5: the binomial's skew at 0.001
    # And independent: the 16 entries of a graph are not correlated.
    flat = (drawn.transpose(1, 2).reshape(draws, 16) - theta.view(16)).double()
    products = torch.corrcoef(flat.T).fill_diagonal_(0) * math.sqrt(draws)
    assert products.abs().max() < stats.norm.isf(FALSE_ALARM / (2 * 120)) + 2


def test_a_probability_between_two_thresholds_is_met_in_the_mean() -> None:
    """A quarter of 2^-16: one call in four has a threshold of 1, the others of 0."""
    theta, stream, calls = torch.full((8, 8), 2.0**-18, dtype=torch.float64), np.random.default_rng(6), 300
    there = sum(drawn_graphs(theta, stream, 4, 64).sum().item() for _ in range(calls))
    expected = calls * 4 * 64 * 64 * 2.0**-18
    assert abs(there - expected) < stats.norm.isf(FALSE_ALARM / 2) * math.sqrt(expected) + 2


def test_certain_entries_are_never_drawn_otherwise() -> None:
    theta = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    drawn = drawn_graphs(theta, np.random.default_rng(0), 3, 200_000)
    assert torch.equal(drawn.amin((0, 2)), theta)
    assert torch.equal(drawn.amax((0, 2)), theta)


# ---- Adam ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adam_is_torchs_for_every_lane(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    rates = [(0.001, 0.05, 0.5), (0.2, 0.05, 0.003)]  # of the first tensor and of the second, in each lane
    start = torch.randn(3, 24, 24, 2, dtype=dtype), torch.randn(3, 4, 2, dtype=dtype)
    ours = training.Adam([part.clone() for part in start], rates)
    theirs = [[part[lane].clone().requires_grad_() for part in start] for lane in range(3)]
    optimizers = [
        torch.optim.Adam([{"params": part, "lr": rate} for part, rate in zip(parts, lane, strict=True)], foreach=False)
        for parts, lane in zip(theirs, zip(*rates, strict=True), strict=True)
    ]
    for _ in range(30):
        gradients = [torch.randn_like(part) * torch.rand(3, *(1,) * (part.ndim - 1), dtype=dtype) for part in start]
        ours.step(gradients)
        for lane, (parts, optimizer) in enumerate(zip(theirs, optimizers, strict=True)):
            for part, gradient in zip(parts, gradients, strict=True):
                part.grad = gradient[lane].clone()
            optimizer.step()
    tolerance = 4 * torch.finfo(dtype).eps
    for index, parameter in enumerate(ours.parameters):
        wanted = torch.stack([parts[index].detach() for parts in theirs])
        torch.testing.assert_close(parameter, wanted, rtol=tolerance, atol=tolerance)


# ---- metrics ----


def test_graph_metrics_against_loops() -> None:
    kind, truth = parameterization("natural"), 0.6 * possible_edges()
    torch.manual_seed(0)
    scores = 3 * torch.randn(2, 24, 24, 1)
    for lane, got in enumerate(training.graph_metrics(kind, scores, truth)):
        errors: dict[bool, list[float]] = {True: [], False: []}
        saturated: dict[bool, list[bool]] = {True: [], False: []}
        for i, j in np.ndindex(24, 24):
            s, edge = float(scores[lane, i, j, 0]), bool(truth[i, j] > 0)
            theta = (1 + math.sin(s / 2)) / 2 if abs(s) < math.pi else float(s > 0)
            errors[edge].append(abs(theta - float(truth[i, j])))
            saturated[edge].append(abs(s) >= math.pi)
        wanted = {
            "mae_theta": np.mean(errors[True] + errors[False]),
            "mae_theta_zero": np.mean(errors[False]),
            "mae_theta_edge": np.mean(errors[True]),
            "dead": np.mean(saturated[True] + saturated[False]),
            "dead_zero": np.mean(saturated[False]),
            "dead_edge": np.mean(saturated[True]),
        }
        assert got == pytest.approx(wanted, rel=1e-5)
        assert 0.2 < got["dead"] < 0.4


def test_prediction_metrics_against_loops() -> None:
    torch.manual_seed(0)
    points, count, nodes = 7, 5, 4
    theta, weight = torch.rand(2, nodes, nodes), torch.randn(2, 3, 2)
    x, y = torch.randn(points, nodes, 3), torch.randn(points, nodes, 2)
    got = training.prediction_metrics(theta, weight, x, y, graphs=count, seed=3, chunk=3)
    stream = stream_of("evaluation", 3)
    uniform = np.concatenate([stream.random((part, nodes, count, nodes), dtype=np.float32) for part in (3, 3, 1)])
    for lane in range(2):
        scores, absolute, square = [], [], []
        for p in range(points):
            drawn = uniform[p].transpose(1, 0, 2) < theta[lane].numpy()
            outputs = [graph.T @ (x[p] @ weight[lane]).double().numpy() for graph in drawn]
            target = y[p].numpy()
            to_target = [np.linalg.norm(o - target) for o in outputs]
            pairs = [np.linalg.norm(a - b) for a, b in itertools.permutations(outputs, 2)]
            scores.append(np.mean(to_target) - np.mean(pairs) / 2)
            absolute.append(np.abs(np.median(outputs, axis=0) - target).mean())
            square.append(np.square(np.mean(outputs, axis=0) - target).mean())
        wanted = {"es": np.mean(scores), "pp_mae": np.mean(absolute), "pp_mse": np.mean(square)}
        assert got[lane] == pytest.approx(wanted, rel=1e-4)


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two() -> None:
    predictions = torch.tensor([1.0, 9.0, 2.0, 4.0]).view(1, 4, 1)
    _, absolute, square = training._point_scores(predictions, torch.zeros(1, 1, 1))
    assert (absolute.item(), square.item()) == (3.0, 16.0)


# ---- runs ----


@pytest.mark.parametrize("name", paper.IN_THE_PAPER)
def test_every_parameterization_starts_at_the_same_small_thetas(name: str) -> None:
    kind = parameterization(name)
    scores, weight = training._start(kind, stream_of("run", 9), 1e-4)
    theta = training.theta_of(kind, scores)
    reference = stream_of("run", 9).random((24, 24)) * 0.1
    np.testing.assert_allclose(theta, np.maximum(reference, 1e-4), rtol=1e-3, atol=1e-7)
    assert math.isclose(
        training.theta_of(kind, training._start(kind, stream_of("run", 9), 0.01)[0]).min(), 0.01, rel_tol=1e-4
    )
    assert weight.abs().max() <= 1
    assert not kind.saturated(scores).any()


@pytest.mark.parametrize("name", paper.IN_THE_PAPER)
def test_a_run_is_finite_and_complete_even_at_the_largest_rate(name: str) -> None:
    [outcome] = training.train([small(parameterization=name, rate=0.5)], Memory())
    assert set(outcome.metrics) == set(paper.METRICS)
    assert all(math.isfinite(value) for value in outcome.metrics.values())
    assert len(outcome.history["step"]) == loop.LOG_POINTS
    assert all(len(values) == loop.LOG_POINTS for values in outcome.history.values())
    assert outcome.history["step"][-1] == 40
    assert outcome.history["mae_theta"][-1] == outcome.metrics["mae_theta"]


def test_training_learns_the_graph() -> None:
    run = {**gsl.config(0.75, "natural", 0.02, 1, steps=500), "pairs": 2000}
    [outcome] = training.train([run], Memory())
    [optimal] = training.train([{**run, "parameterization": paper.OPTIMAL}], Memory())
    assert outcome.history["train_es"][0] > 1.8 * optimal.metrics["test_es"]
    assert outcome.metrics["test_es"] < 1.1 * optimal.metrics["test_es"]
    assert outcome.metrics["mae_theta"] < 0.04


@pytest.mark.parametrize("name", ["softmax", "natural"])
def test_a_run_does_not_depend_on_the_runs_beside_it(name: str) -> None:
    # The real batch and number of graphs: how a processor rounds depends on the sizes.
    sizes: Config = {"batch": 64, "graphs": 32, "graph_sets": 64, "pairs": 300, "steps": 20}
    runs = [small(seed=seed // 2, rate=0.02 * (seed + 1), parameterization=name, **sizes) for seed in range(10)]
    together = training.train(runs, Memory())
    assert training.train(runs[1:2], Memory()) == together[1:2]
    assert training.train(runs[:-4:-1], Memory()) == together[:-4:-1]


def test_a_second_rate_is_that_of_the_weight_alone() -> None:
    """After one step of Adam each entry has moved by its own rate: one gradient, so one start, for both runs."""
    data, kind = make_data(0.75, 400), parameterization("natural")
    both = training.Training(data, kind, [(0.05, 0.05), (0.05, 0.2)], [1, 1], small())
    scores, weight = both.scores.clone(), both.weight.clone()
    both.advance()
    assert torch.equal(both.scores[0], both.scores[1])
    moved = (both.weight - weight).abs()
    torch.testing.assert_close(moved[1], 4 * moved[0], rtol=1e-3, atol=1e-6)
    assert not torch.equal(both.scores, scores)


def test_a_run_with_one_rate_has_the_id_that_it_always_had() -> None:
    run = gsl.config(0.75, "natural", 0.05, 1)
    assert run == gsl.config(0.75, "natural", 0.05, 1, network_rate=0.05)
    assert "network_rate" not in run
    assert training.rates_of(run) == (0.05, 0.05)
    other = gsl.config(0.75, "natural", 0.05, 1, network_rate=0.1)
    assert training.rates_of(other) == (0.05, 0.1)
    assert len(gsl.EXPERIMENT.groups([run, other])) == 1


@pytest.mark.parametrize("step", [7, 39])
def test_a_run_broken_off_goes_on_to_the_same_bits(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [small(seed=1), small(seed=2, rate=0.2)]
    assert_goes_on(lambda checkpointer: training.train(runs, checkpointer), step, monkeypatch)


def test_runs_that_differ_in_more_than_rate_and_seed_are_refused() -> None:
    with pytest.raises(ValueError, match="rates and `seed` only"):
        training.train([small(), small(theta=0.5)], Memory())


# ---- stages ----


def records_of(runs: list[Config], score: Any) -> pd.DataFrame:
    return pd.DataFrame(
        [{"id": run_id(run), "config": run, "metrics.validation_es": score(run), "stage": "x"} for run in runs]
    )


NOTHING = pd.DataFrame()


def test_the_paper_preset_is_the_papers_protocol() -> None:
    coarse, refined, final = gsl.EXPERIMENT.stages("paper")
    assert [stage.name for stage in (coarse, refined, final)] == ["coarse", "refined", "final"]
    assert coarse.expected_runs == 5 * 4 * 7
    assert final.expected_runs == 5 * 4 * 10 + 5
    assert {len(group) for group in gsl.EXPERIMENT.groups(coarse.runs(NOTHING))} == {7}
    run = coarse.runs(NOTHING)[0]
    assert (run["steps"], run["batch"], run["graphs"], run["pairs"]) == (5000, 64, 32, 10_000)
    assert run["steps"] == 40 * (8000 // 64)


def test_rates_are_selected_by_validation_score_per_cell() -> None:
    coarse, refined, final = gsl.EXPERIMENT.stages("paper")
    best = dict(zip(paper.THETAS, (0.005, 0.02, 0.05, 0.1, 0.5), strict=True))

    def score(run: Config) -> float:
        """Least at the cell's best coarse rate; softmax has a better one beside it, sparsemax diverges elsewhere."""
        distance = abs(math.log(float(run["rate"]) / best[float(run["theta"])]))
        if run["parameterization"] == "sparsemax" and distance > 0.6:
            return math.nan
        return -1.0 if run["parameterization"] == "softmax" and 0.1 < distance < 0.25 else distance

    records = records_of(coarse.runs(NOTHING), score)
    second = refined.runs(records)
    for run in second:
        if run["parameterization"] not in gsl.REFINED_RATES:
            ratio = float(run["rate"]) / best[float(run["theta"])]
            assert 1 / 1.81 < ratio < 1.81
            assert ratio != 1
        else:
            assert run["rate"] in gsl.REFINED_RATES[str(run["parameterization"])]
    # Records of other runs, however good, do not count.
    alien = records_of([{**run, "steps": 77} for run in second], lambda run: -9.0)
    runs = final.runs(pd.concat([records, records_of(second, score), alien]))
    for run in runs:
        if run["parameterization"] == "sparsemax":
            assert run["rate"] == best[float(run["theta"])]
        if run["parameterization"] == "softmax":
            assert 0.1 < abs(math.log(float(run["rate"]) / best[float(run["theta"])])) < 0.25
    assert {run["seed"] for run in runs if run["parameterization"] != paper.OPTIMAL} == set(range(1, 11))
    assert [run["theta"] for run in runs if run["parameterization"] == paper.OPTIMAL] == list(paper.THETAS)


def test_pairs_of_rates_climb_to_the_best_pair() -> None:
    best = {"natural": (0.00125, 0.2), "sparsemax": (0.02, 0.5)}

    def score(run: Config) -> float:
        name, rates = str(run["parameterization"]), training.rates_of(run)
        aims = best.get(name, (0.02, 0.02))
        return sum(abs(math.log(rate / aim)) for rate, aim in zip(rates, aims, strict=True))

    *search, final = gsl.EXPERIMENT.stages("two-rates")
    records = NOTHING
    for stage in search:
        records = pd.concat([records, records_of(stage.runs(records), score)])
    runs = [run for run in final.runs(records) if run["parameterization"] != paper.OPTIMAL]
    for name, rates in best.items():
        chosen = {training.rates_of(run) for run in runs if run["parameterization"] == name}
        assert chosen == {rates}
    single = [run for run in runs if run["parameterization"] in ("softmax", "sigmoid")]
    assert len(single) == 100
    assert not any("network_rate" in run for run in single)


def test_two_rates_need_none_of_the_papers_runs_again() -> None:
    """The same ids: what the paper's table has computed is found."""
    for place in (0, 1):
        stages = [gsl.EXPERIMENT.stages(preset)[place] for preset in ("paper", "two-rates")]
        records = records_of(gsl.EXPERIMENT.stages("paper")[0].runs(NOTHING), lambda run: float(run["rate"]))
        assert stages[0].runs(records) == stages[1].runs(records)


def test_every_table_of_the_report_is_of_a_metric_and_of_curves_that_runs_have() -> None:
    [outcome] = training.train([small(steps=3)], Memory())
    assert_tables_fit(gsl.TABLES, {**small(), "network_rate": 0.1}, outcome)
    assert {table.metric for table in gsl.TABLES} >= set(paper.PAPER)


def test_the_papers_table_is_whole() -> None:
    for metric, rows in paper.PAPER.items():
        assert metric in paper.METRICS
        assert tuple(rows) == paper.THETAS
        for row in rows.values():
            assert set(row) - {paper.OPTIMAL} == set(paper.IN_THE_PAPER)
            assert (paper.OPTIMAL in row) == (metric != "mae_theta")
            assert all(target.std > 0 for target in row.values())
            assert row["natural"].best
    assert paper.PAPER["mae_theta"][0.9]["natural"] == (0.0023, 0.0001, True)
    ties = {(metric, theta) for metric, rows in paper.PAPER.items() for theta in rows if rows[theta]["softmax"].best}
    assert ties == {("test_es_twice", 0.75), ("pp_mae", 0.1)}


# ---- figures ----


def test_every_figure_is_drawn(tmp_path: Path) -> None:
    runs = [small(steps=5, parameterization=name, seed=seed) for name in ("softmax", "natural") for seed in (1, 2)]
    runs.append(small(parameterization=paper.OPTIMAL))
    rows = [final_row(run, outcome) for run in runs for outcome in training.train([run], Memory())]
    drawn = gsl.figures(pd.DataFrame(rows), tmp_path)
    assert [path.stem for path in drawn] == ["hidden-graph", "theta-errors", "saturated-entries", "lost-edges"]
    assert all(path.stat().st_size > 5000 for path in drawn)
    assert [path.stem for path in gsl.figures(NOTHING, tmp_path)] == ["hidden-graph"]
