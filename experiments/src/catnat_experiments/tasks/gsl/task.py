"""Graph structure learning: the paper's Table 2 in one file.

Every data point has its own random graph. Each of 102 possible entries of its adjacency matrix is there with
probability ``theta*``; a linear graph convolution turns node features into outputs, ``y_j = sum_i A_ij x_i W``. The
model sees only x and y. It learns W and the probability of each of the 24 x 24 entries, by minimizing the energy score
of its random predictions with a score-function gradient. What is compared is how a probability is parameterized.

Run one configuration by hand::

    python -m catnat_experiments.gsl --theta .75 --parameterization natural --rate .01

The recipe follows the paper, and the public code of its first author where the paper is silent. Our own choices: every
data point of a batch gets 32 graphs of its own (in that code the batch shares them; with that noise neither the paper's
numbers nor its rates come out, see the preset "shared"); theta starts at no less than 0.01; the leave-one-out baseline
is the unbiased one; evaluations use the same random numbers for every model; the search has seed 0 and the final runs
other seeds.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from catnat_experiments.common.parameterizations import Parameterization, parameterization
from catnat_experiments.engine.experiment import Config, Keeper, Outcome, Stage, plan_of
from catnat_experiments.engine.loop import Printing, add_point, go_on
from catnat_experiments.engine.records import run_id
from catnat_experiments.report.markdown import Claim, Curve, Table

# ---- the paper's numbers ---------------------------------------------------------------------------------------------

THETAS = (0.1, 0.25, 0.5, 0.75, 0.9)
IN_THE_PAPER = ("sparsemax", "softmax", "sigmoid", "natural")
ALL = (*IN_THE_PAPER, "natural-reflect", "sigmoid-natural-gradient")
OPTIMAL = "optimal"
"""Stands for a parameterization in configs: the true theta and W, nothing learned."""

_COLUMNS = (*IN_THE_PAPER, OPTIMAL)
_TABLE_2: dict[str, dict[float, tuple[float, ...]]] = {
    "test_es_twice": {
        0.1: (7.467, 7.450, 7.459, 7.425, 7.416),
        0.25: (10.928, 10.882, 10.922, 10.859, 10.842),
        0.5: (15.030, 14.990, 15.020, 14.937, 14.926),
        0.75: (10.979, 10.713, 10.750, 10.674, 10.672),
        0.9: (7.592, 7.374, 7.398, 7.340, 7.342),
    },
    "pp_mae": {
        0.1: (0.3842, 0.3844, 0.3845, 0.3837, 0.3849),
        0.25: (0.8224, 0.8224, 0.8230, 0.8201, 0.8192),
        0.5: (1.2592, 1.2596, 1.2607, 1.2537, 1.2523),
        0.75: (0.8278, 0.8044, 0.8078, 0.7969, 0.7943),
        0.9: (0.4399, 0.4272, 0.4228, 0.3973, 0.3839),
    },
    "pp_mse": {
        0.1: (0.624, 0.622, 0.623, 0.617, 0.615),
        0.25: (1.321, 1.312, 1.319, 1.304, 1.300),
        0.5: (2.510, 2.485, 2.490, 2.466, 2.462),
        0.75: (1.343, 1.278, 1.280, 1.267, 1.267),
        0.9: (0.651, 0.614, 0.616, 0.607, 0.611),
    },
    "mae_theta": {
        0.1: (0.0083, 0.0077, 0.0090, 0.0052),
        0.25: (0.0123, 0.0083, 0.0086, 0.0051),
        0.5: (0.0126, 0.0132, 0.0101, 0.0061),
        0.75: (0.0137, 0.0146, 0.0119, 0.0043),
        0.9: (0.0102, 0.0108, 0.0085, 0.0023),
    },
}
PAPER: dict[str, dict[float, dict[str, float]]] = {
    metric: {theta: dict(zip(_COLUMNS, row, strict=False)) for theta, row in rows.items()}
    for metric, rows in _TABLE_2.items()
}
"""The paper's Table 2: metric -> theta* -> parameterization (or "optimal") -> value. Its ES is twice its formula's."""

METRICS = {
    "test_es": "energy score on the test set, by the paper's formula",
    "test_es_twice": "twice that: what the paper's table shows",
    "validation_es": "energy score on the validation set; rates are selected by it",
    "pp_mae": "mean absolute error of the median of 32 predictions",
    "pp_mse": "mean squared error of the mean of 32 predictions",
    "mae_theta": "mean |theta - theta*| over all 576 entries",
    "mae_theta_zero": "the same over the 474 entries that are never there",
    "mae_theta_edge": "the same over the 102 entries that can be there",
    "dead": "share of entries that are 0 or 1 for good: certain, and without a gradient",
    "dead_zero": "the same among the 474",
    "dead_edge": "the same among the 102",
}

# ---- data ------------------------------------------------------------------------------------------------------------

COMMUNITIES = 4
COMMUNITY = ((0, 1), (1, 2), (3, 4), (1, 3), (2, 4), (4, 5), (0, 3), (1, 4), (3, 5))
"""The edges of one community: six nodes in a triangle."""
NODES = 6 * COMMUNITIES
INPUTS, OUTPUTS = 4, 2
WEIGHT_SCALE, WEIGHT_SCALE_HALF = 1.56, 2.25
"""Mean squared column norm of W, for theta* = 0.5 the second: where the paper's absolute numbers are met."""
DATA_SEED = 3
"""Of the first 16, the one whose optimal row comes closest to the paper's in all three columns (ES within 0.9%). A test
set of 1,000 points moves the level by about 0.7%, of all rows alike."""


def possible_edges() -> Tensor:
    """The (24, 24) entries that can be there: the communities, the links between them, and all self loops."""
    matrix = torch.eye(NODES)
    for first in range(0, NODES, 6):
        pairs = [(first + i, first + j) for i, j in COMMUNITY]
        if first + 6 < NODES:
            pairs.append((first + 5, first + 6))
        for i, j in pairs:
            matrix[i, j] = matrix[j, i] = 1
    return matrix


@dataclasses.dataclass(frozen=True)
class Data:
    """Pairs of node features and outputs, and the truth behind them. The first 80% are for training, 10%, 10%."""

    theta: Tensor  # (nodes, nodes)
    weight: Tensor  # (inputs, outputs)
    x: Tensor  # (pairs, nodes, inputs)
    y: Tensor  # (pairs, nodes, outputs)

    def split(self, name: str) -> tuple[Tensor, Tensor]:
        """The x and y of "train", "validation" or "test"."""
        pairs = len(self.x)
        first, last = {"train": (0, 8), "validation": (8, 9), "test": (9, 10)}[name]
        part = slice(first * pairs // 10, last * pairs // 10)
        return self.x[part], self.y[part]


def make_data(theta: float, pairs: int = 10_000, seed: int = DATA_SEED) -> Data:
    """The data of one theta*: fixed for all runs. One fresh graph per pair, no noise on the outputs."""
    stream = _stream("data", seed, round(1000 * theta))
    probs = theta * possible_edges()
    weight = _glorot(stream)
    scale = WEIGHT_SCALE_HALF if theta == 0.5 else WEIGHT_SCALE
    weight *= (scale / weight.square().sum(0).mean()).sqrt()
    x = torch.from_numpy(stream.standard_normal((pairs, NODES, INPUTS), dtype=np.float32))
    graphs = (torch.from_numpy(stream.random((pairs, NODES, NODES), dtype=np.float32)) < probs).float()
    return Data(probs, weight, x, graphs.transpose(1, 2) @ (x @ weight))


def _glorot(stream: np.random.Generator) -> Tensor:
    bound = math.sqrt(6 / (INPUTS + OUTPUTS))
    return torch.from_numpy(stream.uniform(-bound, bound, (INPUTS, OUTPUTS))).float()


_PURPOSES = ("data", "run", "evaluation")


def _stream(purpose: str, *numbers: int) -> np.random.Generator:
    """Random numbers of their own for every purpose and seed. NumPy's SFC64 is twice as fast as torch's generator."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence((_PURPOSES.index(purpose), *numbers))))


# ---- the energy score and its gradient -------------------------------------------------------------------------------
#
# ES = E|Y - y| - 1/2 E|Y - Y'|, with Y and Y' independent predictions: zero for a certain and correct one, and least in
# expectation for the true distribution. From M predictions of one target y: d_m = |Y_m - y| and d_mn = |Y_m - Y_n|.

EPSILON = 1e-6
"""Added to squared distances: |.| means sqrt(. + 1e-6)."""


def distances(difference: Tensor) -> tuple[Tensor, Tensor]:
    """Distances of M predictions from the target, (B, M), and from each other, (B, M, M), by one matrix product.

    ``difference`` is (B, M, D), predictions minus their target. The diagonal of the second result, the distance of a
    prediction from itself, means nothing.
    """
    gram = torch.bmm(difference, difference.transpose(1, 2))
    square = gram.diagonal(dim1=1, dim2=2) + EPSILON / 2
    between = gram.mul_(-2).add_(square.unsqueeze(2)).add_(square.unsqueeze(1)).clamp_(min=EPSILON).sqrt_()
    return (square + EPSILON / 2).sqrt_(), between


def energy_score(to_target: Tensor, between: Tensor) -> Tensor:
    r"""The unbiased estimate from M predictions: ``(..., M)`` and ``(..., M, M)`` to ``(...)``.

    .. math:: \frac1M \sum_m d_m - \frac1{2 M (M - 1)} \sum_{m \ne n} d_{mn}
    """
    count = to_target.shape[-1]
    pairs = between.sum((-1, -2)) - between.diagonal(dim1=-2, dim2=-1).sum(-1)
    return to_target.mean(-1) - pairs / (2 * count * (count - 1))


def advantages(to_target: Tensor, between: Tensor) -> Tensor:
    r"""What the score function of each of M graphs is multiplied with: its signal less a leave-one-out baseline.

    .. math:: \mathrm{signal}_m = d_m - \operatorname*{mean}_{n \ne m} d_{mn}, \qquad \mathrm{baseline}_m =
        \operatorname*{mean}_{j \ne m} d_j - \operatorname*{mean}_{j \ne k,\ j, k \ne m} d_{jk}

    The baseline does not depend on graph m, so the gradient stays unbiased. All M advantages sum to zero.
    """
    count = to_target.shape[-1]
    row = between.sum(-1) - between.diagonal(dim1=-2, dim2=-1)
    others = (to_target.sum(-1, keepdim=True) - to_target) / (count - 1)
    other_pairs = (row.sum(-1, keepdim=True) - 2 * row) / ((count - 1) * (count - 2))
    return (to_target - row / (count - 1)) - (others - other_pairs)


class Noise(NamedTuple):
    """The random numbers behind some graphs. Runs with one seed differ in theta only, and share them."""

    rounding: NDArray[np.float64]  # (nodes, nodes), from 0 to 1
    bits: NDArray[np.uint16]  # (sets, nodes * graphs * nodes)


def make_noise(shape: tuple[int, ...], stream: np.random.Generator) -> Noise:
    """For graphs of this shape, (sets, nodes, graphs, nodes)."""
    rounding, size = stream.random((shape[1], shape[3])), math.prod(shape)
    words = stream.integers(0, 2**64 - 1, math.ceil(size / 4), dtype=np.uint64, endpoint=True)
    return Noise(rounding, words.view(np.uint16)[:size].reshape(shape[0], -1))


def draw_graphs(theta: Tensor, noise: Noise, out: Tensor) -> Tensor:
    """Independent graphs: every entry is 1 with probability ``theta``, else 0.

    Args:
        theta: (nodes, nodes), the probability of an edge from i to j.
        noise: The random numbers.
        out: (sets, nodes, graphs, nodes), what to fill: the sources of edges come before the graphs.
    """
    # Random numbers take a third of the time: 16 bits an entry have to do. The threshold that they are compared with is
    # rounded at random, up or down, anew for every draw, so that the probability of an entry is theta all the same.
    threshold = np.floor(65536 * theta.double().numpy() + noise.rounding).astype(np.int64)
    repeated = np.repeat(threshold.astype(np.uint16)[:, None], out.shape[2], axis=1).reshape(-1)
    out.copy_(torch.from_numpy(np.less(noise.bits, repeated).view(np.uint8)).view(out.shape))
    certain = threshold == 65536  # which 16 bits cannot hold
    return out.masked_fill_(torch.from_numpy(certain[:, None]), 1) if certain.any() else out


class Estimate(NamedTuple):
    """What one step learns from its batch.

    Attributes:
        score: The mean energy score.
        weight: Its gradient in W.
        pull: (nodes, nodes), the estimated gradient in ``log P(entry = 1)``. Its negative is the one in ``log P(entry =
            0)``, as advantages sum to zero.
    """

    score: Tensor
    weight: Tensor
    pull: Tensor


def estimate(weight: Tensor, x: Tensor, y: Tensor, graphs: Tensor) -> Estimate:
    """The energy score of a batch and its gradients, written out: five times as fast as autograd.

    Args:
        weight: (inputs, outputs).
        x: (batch, nodes, inputs).
        y: (batch, outputs * nodes), outputs first.
        graphs: (sets, nodes, M, nodes). As many data points share a set as the batch has for each.
    """
    sets, nodes, count, _ = graphs.shape
    batch, outputs = len(x), weight.shape[1]
    if count < 3:
        raise ValueError(f"There are {count} graphs a set, but the leave-one-out baseline needs pairs of others: 3.")
    flat = graphs.view(sets, nodes, count * nodes)
    # What every graph predicts, sum_i (x W)[b, i, o] graphs[i, m, j], less the target.
    features = (x @ weight).transpose(1, 2).reshape(sets, -1, nodes)
    predictions = torch.bmm(features, flat).view(batch, outputs, count, nodes)
    difference = predictions.transpose(1, 2).reshape(batch, count, outputs * nodes).sub_(y.unsqueeze(1))
    to_target, between = distances(difference)
    score = energy_score(to_target, between).mean()
    advantage = advantages(to_target, between).view(sets, -1, 1, count).sum(1, keepdim=True)
    pull = torch.matmul(advantage, graphs).sum((0, 2)).div_(batch * count)
    # The gradient in prediction m: (M - 1) (Y_m - y) / d_m - sum_n (Y_m - Y_n) / d_mn, as a product with Y - y.
    slope = between.reciprocal_()
    diagonal = slope.diagonal(dim1=1, dim2=2)
    diagonal.zero_()
    diagonal.copy_((count - 1) / to_target - slope.sum(-1))
    toward = torch.bmm(slope, difference).view(batch, count, outputs, nodes).transpose(1, 2)
    toward_features = torch.bmm(toward.reshape(sets, -1, count * nodes), flat.transpose(1, 2))
    toward_weight = torch.einsum("bni,bon->io", x, toward_features.view(batch, outputs, nodes))
    return Estimate(score, toward_weight.div_(batch * count * (count - 1)), pull)


def score_gradient(kind: Parameterization, scores: Tensor, pull: Tensor) -> Tensor:
    """From the pull on ``log P(entry = 1)`` to the gradient in the scores, through the parameterization by autograd."""
    with torch.enable_grad():
        leaf = scores.detach().requires_grad_()
        log_probs = kind.log_probs(kind.wrap(leaf))
    return torch.autograd.grad(log_probs, leaf, torch.stack((-pull, pull), -1))[0]


# ---- the optimizer ---------------------------------------------------------------------------------------------------


class Adam:
    """``torch.optim.Adam`` on tensors whose first axis is lanes, with a rate for each lane."""

    def __init__(self, parameters: Sequence[Tensor], rates: Sequence[float]) -> None:
        self.parameters = list(parameters)
        self.rates = torch.tensor(rates, dtype=torch.float64)
        self.means = [torch.zeros_like(parameter) for parameter in parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in parameters]
        self.steps = 0

    def step(
        self, gradients: Sequence[Tensor], beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
    ) -> None:
        """One update in place, with the same operations in the same order as torch's."""
        self.steps += 1
        sizes = -self.rates / (1 - beta1**self.steps)
        root = math.sqrt(1 - beta2**self.steps)
        for parameter, gradient, mean, square in zip(self.parameters, gradients, self.means, self.squares, strict=True):
            mean.lerp_(gradient, 1 - beta1)
            square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            size = sizes.to(parameter.dtype).view(-1, *(1,) * (parameter.ndim - 1))
            parameter.add_((mean * size).div_(square.sqrt().div_(root).add_(epsilon)))


# ---- evaluation ------------------------------------------------------------------------------------------------------


def theta_of(kind: Parameterization, scores: Tensor) -> Tensor:
    """The probability of every entry: that of the second of two classes."""
    return kind.probs(scores)[..., 1]


def graph_metrics(kind: Parameterization, scores: Tensor, truth: Tensor) -> list[dict[str, float]]:
    """How well every lane's entries are learned, and how many are dead; all, true zeros and true edges."""
    error = (theta_of(kind, scores).double() - truth).abs()
    dead = kind.saturated(scores).all(-1).double()
    parts = {"": torch.ones_like(truth, dtype=torch.bool), "_zero": truth == 0, "_edge": truth > 0}
    table = {
        f"{name}{suffix}": values[:, part].mean(1).tolist()
        for name, values in (("mae_theta", error), ("dead", dead))
        for suffix, part in parts.items()
    }
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def prediction_metrics(
    theta: Tensor, weight: Tensor, x: Tensor, y: Tensor, *, graphs: int, seed: int, chunk: int = 50
) -> list[dict[str, float]]:
    """Energy score and point errors of every lane's predictions.

    Every data point gets M graphs of its own. All lanes, runs and parameterizations are judged with the same random
    numbers, so that a difference between two of them is a difference between the models.

    Args:
        theta: (lanes, nodes, nodes).
        weight: (lanes, inputs, outputs).
        x: (points, nodes, inputs).
        y: (points, nodes, outputs).
        graphs: M, the predictions per point.
        seed: Of the random numbers.
        chunk: How many points at a time.
    """
    stream, nodes = _stream("evaluation", seed), x.shape[1]
    sums = torch.zeros(len(theta), 3, dtype=torch.float64)
    for some_x, some_y in zip(torch.split(x, chunk), torch.split(y, chunk), strict=True):
        points = len(some_x)
        target = some_y.transpose(1, 2).flatten(1).unsqueeze(1)
        uniform = torch.from_numpy(stream.random((points, nodes, graphs, nodes), dtype=np.float32))
        for lane in range(len(theta)):
            drawn = (uniform < theta[lane].unsqueeze(1)).to(x.dtype).view(points, nodes, graphs * nodes)
            outputs = (some_x @ weight[lane]).transpose(1, 2) @ drawn
            predictions = outputs.view(points, -1, graphs, nodes).transpose(1, 2).flatten(2)
            sums[lane] += torch.stack(_point_scores(predictions, target)).double().sum(1)
    names = ("es", "pp_mae", "pp_mse")
    return [dict(zip(names, row, strict=True)) for row in (sums / len(x)).tolist()]


def _point_scores(predictions: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Energy score, absolute error of the median, squared error of the mean, of each of B points.

    Predictions are (B, M, D), targets (B, 1, D). The median of an even number of values is the mean of the middle two.
    """
    score = energy_score(*distances(predictions - target))
    median = (predictions.median(1).values - (-predictions).median(1).values) / 2
    target = target.squeeze(1)
    return score, (median - target).abs().mean(1), (predictions.mean(1) - target).square().mean(1)


# ---- training --------------------------------------------------------------------------------------------------------

LARGEST_START, SMALLEST_START = 0.1, 0.01
"""Of theta. The paper says U(0, 0.1), which has no inverse at 0. Natural's theta = 0.0001 is two steps of rate 0.02 off
the edge, where it would stay 0 for good: ten runs at theta* = 0.75 lost 16 true edges to such starts, with 0.01 two."""
BATCH = 64
OWN_GRAPHS, SHARED_GRAPHS = BATCH, 1
"""How many sets of 32 graphs a batch gets: one for each data point, or one for all of them."""


class Training:
    """Several runs that differ only in seed and rate, trained side by side. Every seed has a stream of random numbers.

    On one machine a run's numbers come out the same bit by bit whichever runs are beside it.
    """

    def __init__(self, data: Data, kind: Parameterization, rates: Sequence[float], seeds: Sequence[int], sizes: Config):
        self.data, self.kind = data, kind
        self.steps, self.batch = int(sizes["steps"]), int(sizes["batch"])
        self.seeds = seeds
        self.streams = {seed: _stream("run", seed) for seed in seeds}
        smallest = float(sizes["smallest_start"])
        starts = {seed: _start(kind, stream, smallest) for seed, stream in self.streams.items()}
        self.scores = torch.stack([starts[seed][0] for seed in seeds])
        self.weight = torch.stack([starts[seed][1] for seed in seeds])
        self.adam = Adam([self.scores, self.weight], rates)
        self._graphs = torch.empty(int(sizes["graph_sets"]), NODES, int(sizes["graphs"]), NODES)
        self._x, y = data.split("train")
        self._y = y.transpose(1, 2).flatten(1)
        pairs = len(self._x)
        self._batches = pairs // self.batch
        if self._batches == 0:
            raise ValueError(
                f"`batch` is {self.batch}, but there are only {pairs} training pairs: use fewer, or more data."
            )
        if self.batch % len(self._graphs):
            raise ValueError(
                f"`graph_sets` is {len(self._graphs)}, but it must divide `batch`, which is {self.batch}: as many data "
                "points share each set."
            )
        self.orders = torch.zeros(len(self.streams), pairs, dtype=torch.int64)
        self.score_sums = torch.zeros(len(seeds), dtype=torch.float64)
        self.history: list[dict[str, list[float]]] = [{} for _ in seeds]

    @property
    def step(self) -> int:
        """Steps done."""
        return self.adam.steps

    def advance(self) -> None:
        """One step of all lanes."""
        first = self.step % self._batches * self.batch
        if first == 0:
            for order, stream in zip(self.orders, self.streams.values(), strict=True):
                order.copy_(torch.from_numpy(stream.permutation(len(order))))
        theta, found = theta_of(self.kind, self.scores), {}
        for (seed, stream), order in zip(self.streams.items(), self.orders, strict=True):
            picked = order[first : first + self.batch]
            x, y, noise = self._x[picked], self._y[picked], make_noise(tuple(self._graphs.shape), stream)
            for lane in (lane for lane, of in enumerate(self.seeds) if of == seed):
                graphs = draw_graphs(theta[lane], noise, self._graphs)
                found[lane] = estimate(self.weight[lane], x, y, graphs)
        lanes = [found[lane] for lane in range(len(self.seeds))]
        score, weight_gradient, pull = (torch.stack(part) for part in zip(*lanes, strict=True))
        self.adam.step([score_gradient(self.kind, self.scores, pull), weight_gradient])
        self.score_sums += score

    def log(self, since: int) -> list[dict[str, float]]:
        """Add a point to every lane's history: the graph's metrics, and the training ES since step ``since``."""
        points = graph_metrics(self.kind, self.scores, self.data.theta)
        for point, total, history in zip(points, self.score_sums.tolist(), self.history, strict=True):
            point["train_es"] = total / (self.step - since)
            add_point(history, self.step, point)
        self.score_sums.zero_()
        return points

    def _tensors(self) -> tuple[Tensor, ...]:
        return self.scores, self.weight, *self.adam.means, *self.adam.squares, self.orders, self.score_sums

    def state(self) -> dict[str, Any]:
        """A checkpoint: all that changes, copied."""
        return {
            "step": self.step,
            "tensors": [tensor.clone() for tensor in self._tensors()],
            "streams": [stream.bit_generator.state for stream in self.streams.values()],
            "history": [{name: list(values) for name, values in history.items()} for history in self.history],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        for tensor, saved in zip(self._tensors(), state["tensors"], strict=True):
            tensor.copy_(saved)
        for stream, saved in zip(self.streams.values(), state["streams"], strict=True):
            stream.bit_generator.state = saved
        self.adam.steps = state["step"]
        self.history = [{name: list(values) for name, values in history.items()} for history in state["history"]]


def _start(kind: Parameterization, stream: np.random.Generator, smallest: float) -> tuple[Tensor, Tensor]:
    """The scores and the W that a run starts with: theta uniform in (0, 0.1) for every parameterization."""
    theta = torch.from_numpy(stream.random((NODES, NODES))).mul(LARGEST_START).clamp(min=smallest)
    scores = kind.scores_from_probs(torch.stack((1 - theta, theta), -1))
    return scores.float(), _glorot(stream)


def train(runs: Sequence[Config], keeper: Keeper) -> list[Outcome]:
    """Train runs that differ in rate and seed only, going on from the keeper's checkpoint if there is one."""
    shared = _shared(runs[0])
    if any(_shared(run) != shared for run in runs):
        raise ValueError(
            "Runs trained together may differ in `rate` and `seed` only: make groups with EXPERIMENT.groups."
        )
    torch.set_num_threads(1)
    data = make_data(float(shared["theta"]), int(shared["pairs"]), int(shared["data_seed"]))
    if shared["parameterization"] == OPTIMAL:
        truth = data.theta.unsqueeze(0), data.weight.unsqueeze(0)
        return [Outcome(metrics, {}) for _ in runs for metrics in _evaluated(*truth, data, shared)]
    kind = parameterization(str(shared["parameterization"]))
    rates, seeds = [float(run["rate"]) for run in runs], [int(run["seed"]) for run in runs]
    training = Training(data, kind, rates, seeds, shared)
    go_on(training, keeper)
    learned = _evaluated(theta_of(kind, training.scores), training.weight, data, shared)
    graph = graph_metrics(kind, training.scores, data.theta)
    return [Outcome({**a, **b}, history) for a, b, history in zip(learned, graph, training.history, strict=True)]


def _shared(run: Config) -> Config:
    return {key: value for key, value in run.items() if key not in ("rate", "seed")}


def _evaluated(theta: Tensor, weight: Tensor, data: Data, sizes: Config) -> list[dict[str, float]]:
    """The metrics of every lane's predictions on the validation and the test set."""

    def measured(split: str, seed: int) -> list[dict[str, float]]:
        return prediction_metrics(theta, weight, *data.split(split), graphs=int(sizes["graphs"]), seed=seed)

    return [
        {
            "validation_es": validation["es"],
            "test_es": test["es"],
            "test_es_twice": 2 * test["es"],
            "pp_mae": test["pp_mae"],
            "pp_mse": test["pp_mse"],
        }
        for validation, test in zip(measured("validation", 0), measured("test", 1), strict=True)
    ]


# ---- presets and stages ----------------------------------------------------------------------------------------------

COARSE_RATES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
REFINED_RATES = {
    "sigmoid": (0.025, 0.03, 0.037, 0.045, 0.055, 0.067, 0.082),
    "natural": (0.012, 0.015, 0.018, 0.022, 0.027, 0.033, 0.041),
}
"""The paper's. For all others: seven points from the best coarse rate / 1.8 to 1.8 times it, evenly spaced in log."""
REFINED_SPAN, REFINED_COUNT = 1.8, 7
SEARCH_SEED = 0
"""The seed of the search. Final runs have the seeds 1, 2, ...: no run is both selected by its luck and reported."""
MOST_LANES = 10


@dataclasses.dataclass(frozen=True)
class Preset:
    """How much of the table to compute."""

    thetas: tuple[float, ...]
    parameterizations: tuple[str, ...]
    coarse: tuple[float, ...]
    refine: bool
    seeds: int
    steps: int
    graph_sets: int = OWN_GRAPHS


PRESETS = {
    # A look at the table in minutes.
    "quick": Preset(
        thetas=(0.75,),
        parameterizations=IN_THE_PAPER,
        coarse=(0.01, 0.02, 0.05),
        refine=False,
        seeds=3,
        steps=2500,
    ),
    # The paper's table without the refined grid.
    "laptop": Preset(
        thetas=THETAS,
        parameterizations=IN_THE_PAPER,
        coarse=COARSE_RATES,
        refine=False,
        seeds=5,
        steps=5000,
    ),
    # The paper's table in full.
    "paper": Preset(
        thetas=THETAS,
        parameterizations=IN_THE_PAPER,
        coarse=COARSE_RATES,
        refine=True,
        seeds=10,
        steps=5000,
    ),
    # The same protocol, and two parameterizations beyond the paper.
    "beyond": Preset(
        thetas=THETAS,
        parameterizations=ALL,
        coarse=COARSE_RATES,
        refine=True,
        seeds=10,
        steps=5000,
    ),
    # A noisier gradient: one set of graphs for all data points of a batch, as in the first author's earlier code.
    "shared": Preset(
        thetas=THETAS,
        parameterizations=ALL,
        coarse=COARSE_RATES,
        refine=False,
        seeds=10,
        steps=5000,
        graph_sets=SHARED_GRAPHS,
    ),
}


def refined_rates(name: str, best: float) -> list[float]:
    """The second grid of a parameterization, without the rate that was best in the first one.

    >>> refined_rates("softmax", 0.02)
    [0.01111, 0.01352, 0.01644, 0.02433, 0.02959, 0.036]
    """
    if name in REFINED_RATES:
        return list(REFINED_RATES[name])
    half = REFINED_COUNT // 2
    points = [best * REFINED_SPAN ** (step / half) for step in range(-half, half + 1) if step != 0]
    return [float(f"{point:.4g}") for point in points]


class GraphStructure:
    """The experiment as the engine knows it: coarse grid, refined grid, final seeds."""

    name = "gsl"

    def stages(self, preset: str) -> list[Stage]:
        """Coarse, refined (where the preset asks for it) and final."""
        plan = plan_of(preset, PRESETS, self.name)
        cells = len(plan.thetas) * len(plan.parameterizations)
        refined = len(plan.thetas) * sum(len(refined_rates(name, 1.0)) for name in plan.parameterizations)
        stages = [
            Stage("coarse", lambda _: _coarse(plan), f"{len(plan.coarse)} rates, one seed", cells * len(plan.coarse))
        ]
        if plan.refine:
            about = "rates around the best one by validation ES, one seed"
            stages.append(Stage("refined", lambda records: _refined(plan, records), about, refined))
        about = f"{plan.seeds} seeds at the best rate by validation ES, and the optimal row"
        expected = cells * plan.seeds + len(plan.thetas)
        return [*stages, Stage("final", lambda records: _final(plan, records), about, expected)]

    def groups(self, runs: list[Config]) -> list[list[Config]]:
        """Runs that differ only in rate and seed, at most ten of them together."""
        together: dict[str, list[Config]] = {}
        for run in runs:
            together.setdefault(run_id(_shared(run)), []).append(run)
        return [group[i : i + MOST_LANES] for group in together.values() for i in range(0, len(group), MOST_LANES)]

    def train(self, runs: list[Config], keeper: Keeper) -> list[Outcome]:
        """Train one group; see :func:`train`."""
        return train(runs, keeper)

    def seconds_per_group(self, runs: list[Config]) -> float:
        """What a group will take on this machine, from a few steps of it; the evaluation adds about 3%."""
        if runs[0]["parameterization"] == OPTIMAL:
            return 1.0
        name, sets = str(runs[0]["parameterization"]), int(runs[0]["graph_sets"])
        return int(runs[0]["steps"]) * len(runs) * _seconds_per_step(name, sets)


@functools.cache
def _seconds_per_step(name: str, graph_sets: int, tries: int = 3, steps: int = 10) -> float:
    """Of one run, the quickest of a few tries, for the sizes of the paper."""
    torch.set_num_threads(1)
    sizes = config(THETAS[0], name, 0.0, 0, graph_sets=graph_sets)
    training = Training(make_data(THETAS[0], 200), parameterization(name), [0.0], [0], sizes)
    times = []
    for _ in range(tries):
        began = time.perf_counter()
        for _ in range(steps):
            training.advance()
        times.append((time.perf_counter() - began) / steps)
    return min(times)


def config(
    theta: float, name: str, rate: float, seed: int, *, steps: int = 5000, graph_sets: int = OWN_GRAPHS
) -> Config:
    """All that decides a run's numbers."""
    return {
        "experiment": GraphStructure.name,
        "theta": theta,
        "parameterization": name,
        "rate": rate,
        "seed": seed,
        "steps": steps,
        "batch": BATCH,
        "graphs": 32,
        "graph_sets": graph_sets,
        "pairs": 10_000,
        "data_seed": DATA_SEED,
        "smallest_start": SMALLEST_START,
    }


def _cells(plan: Preset) -> Iterable[tuple[float, str]]:
    return ((theta, name) for theta in plan.thetas for name in plan.parameterizations)


def _config(plan: Preset, theta: float, name: str, rate: float, seed: int) -> Config:
    return config(theta, name, rate, seed, steps=plan.steps, graph_sets=plan.graph_sets)


def _searched(plan: Preset, theta: float, name: str, rates: Iterable[float]) -> list[Config]:
    return [_config(plan, theta, name, rate, SEARCH_SEED) for rate in rates]


def _best_rate(runs: Sequence[Config], records: pd.DataFrame) -> float:
    """The rate with the lowest validation ES among these runs; other records do not count."""
    values = dict(zip(records["id"], records["metrics.validation_es"], strict=True))
    found = {float(run["rate"]): float(values.get(run_id(run), math.nan)) for run in runs}
    finite = {rate: value for rate, value in found.items() if math.isfinite(value)}
    if not finite:
        first = runs[0]
        raise ValueError(
            f"No run of {first['parameterization']} at theta* = {first['theta']} has a finite validation ES in the "
            "records: finish the stage before, then repeat the command."
        )
    return min(finite, key=lambda rate: (finite[rate], rate))


def _coarse(plan: Preset) -> list[Config]:
    return [run for theta, name in _cells(plan) for run in _searched(plan, theta, name, plan.coarse)]


def _refined_of(plan: Preset, theta: float, name: str, records: pd.DataFrame) -> list[Config]:
    best = _best_rate(_searched(plan, theta, name, plan.coarse), records)
    return _searched(plan, theta, name, refined_rates(name, best))


def _refined(plan: Preset, records: pd.DataFrame) -> list[Config]:
    return [run for theta, name in _cells(plan) for run in _refined_of(plan, theta, name, records)]


def _final(plan: Preset, records: pd.DataFrame) -> list[Config]:
    runs = []
    for theta, name in _cells(plan):
        tried = _searched(plan, theta, name, plan.coarse)
        if plan.refine:
            tried += _refined_of(plan, theta, name, records)
        best = _best_rate(tried, records)
        runs += [_config(plan, theta, name, best, SEARCH_SEED + 1 + seed) for seed in range(plan.seeds)]
    return runs + [config(theta, OPTIMAL, 0.0, 0, steps=0) for theta in plan.thetas]


# ---- what the engine and the report take from this file --------------------------------------------------------------

EXPERIMENT = GraphStructure()

_RIVALS = ("sparsemax", "softmax", "sigmoid")


def _table(title: str, metric: str, claims: tuple[Claim, ...] = (), digits: int = 4, **options: Any) -> Table:
    return Table(
        title=title,
        metric=metric,
        better=options.pop("better", "lower"),
        row="theta",
        row_title="theta*",
        column="parameterization",
        columns=ALL,
        digits=digits,
        paper=PAPER.get(metric, {}),
        claims=claims,
        **options,
    )


def _natural_wins(but: dict[str, float] | None = None) -> tuple[Claim, ...]:
    """The paper's claim against each of its rivals, without the rows where it reports a tie itself."""
    ties = but or {}
    rows = {name: tuple(theta for theta in THETAS if theta != ties.get(name)) for name in _RIVALS}
    return tuple(Claim("natural", name, rows[name] if name in ties else None) for name in _RIVALS)


TABLES = (
    _table(
        "Energy score",
        "test_es_twice",
        _natural_wins(but={"softmax": 0.75}),
        digits=3,
        reference=OPTIMAL,
        chosen=("rate",),
        curves=(Curve("train_es", "energy score in training", x="step"),),
        note="Twice the paper's formula, as in its table. The records have both: test_es is the formula's.",
    ),
    _table(
        "PP-MAE, error of the median prediction",
        "pp_mae",
        _natural_wins(but=dict.fromkeys(_RIVALS, 0.1)),
        reference=OPTIMAL,
    ),
    _table("PP-MSE, error of the mean prediction", "pp_mse", _natural_wins(), digits=3, reference=OPTIMAL),
    _table(
        "MAE on theta, all entries",
        "mae_theta",
        _natural_wins(),
        curves=(Curve("mae_theta", "MAE on theta", x="step", log=True),),
        note="474 of the 576 true entries are 0, which natural and sparsemax can reach exactly and the others cannot.",
    ),
    _table(
        "MAE on theta, true zeros",
        "mae_theta_zero",
        curves=(Curve("mae_theta_zero", "MAE on theta, true zeros", x="step", log=True),),
    ),
    _table(
        "MAE on theta, true edges",
        "mae_theta_edge",
        curves=(Curve("mae_theta_edge", "MAE on theta, true edges", x="step", log=True),),
    ),
    _table(
        "Dead true zeros, share",
        "dead_zero",
        better="higher",
        curves=(Curve("dead_zero", "dead true zeros", x="step"),),
        note="A dead zero is right for good: it is a part of natural's advantage on theta.",
    ),
    _table(
        "Dead true edges, share",
        "dead_edge",
        curves=(Curve("dead_edge", "dead true edges", x="step"),),
        note="A dead edge is lost: its probability stays 0 (or 1), and the energy score cannot recover.",
    ),
)


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """The hidden graph, the errors on theta and the dead entries, drawn from records."""
    from catnat_experiments.tasks.gsl import figures as gsl_figures  # matplotlib takes a second to import

    return gsl_figures.figures(frame, directory)


# ---- one run by hand -------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one run and print its metrics beside those of the truth."""
    parser = argparse.ArgumentParser(prog="python -m catnat_experiments.gsl", description=main.__doc__)
    parser.add_argument("--theta", type=float, default=0.75, help="theta*, the probability of a true edge")
    parser.add_argument("--parameterization", default="natural")
    parser.add_argument("--rate", type=float, default=0.01, help="Adam's, for scores and W")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    began = time.perf_counter()
    run = config(given.theta, given.parameterization, given.rate, given.seed, steps=given.steps)
    shown = Printing("train_es", "mae_theta", "dead_zero", "dead_edge")
    [learned] = train([run], shown)
    seconds = time.perf_counter() - began
    [optimal] = train([config(given.theta, OPTIMAL, 0.0, 0, steps=0)], shown)
    print(f"\n{seconds:.1f} s\n{'':16}{given.parameterization:>12}{OPTIMAL:>12}")
    for name, about in METRICS.items():
        if name in learned.metrics:
            print(f"{name:16}{learned.metrics[name]:12.4f}{optimal.metrics.get(name, math.nan):12.4f}  {about}")


if __name__ == "__main__":
    main()
