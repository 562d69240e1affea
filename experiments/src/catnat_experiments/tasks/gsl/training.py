"""Training in graph structure learning: many runs in parallel, and their final metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from catnat_experiments.common.parameterizations import Parameterization, parameterization
from catnat_experiments.engine import loop
from catnat_experiments.engine.loop import add_point, resume_training
from catnat_experiments.engine.types import Checkpointer, Config, Outcome
from catnat_experiments.tasks.gsl.data import NODES, Data, glorot, make_data, stream_of
from catnat_experiments.tasks.gsl.energy import (
    distances,
    draw_graphs,
    energy_score,
    estimate,
    make_noise,
    score_gradient,
)
from catnat_experiments.tasks.gsl.paper import OPTIMAL

# ---- the optimizer ---------------------------------------------------------------------------------------------------


class Adam:
    """``torch.optim.Adam`` on tensors whose first axis is lanes, with a learning rate for each tensor in each lane."""

    def __init__(self, parameters: Sequence[Tensor], rates: Sequence[Sequence[float]]) -> None:
        self.parameters = list(parameters)
        self.rates = torch.tensor(rates, dtype=torch.float64)  # (tensors, lanes)
        self.means = [torch.zeros_like(parameter) for parameter in parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in parameters]
        self.steps = 0

    def step(
        self, gradients: Sequence[Tensor], beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
    ) -> None:
        """Do one update in place, with the same operations in the same order as torch's."""
        self.steps += 1
        sizes = -self.rates / (1 - beta1**self.steps)
        root = math.sqrt(1 - beta2**self.steps)
        each = zip(self.parameters, gradients, self.means, self.squares, sizes, strict=True)
        for parameter, gradient, mean, square, size_of_lane in each:
            mean.lerp_(gradient, 1 - beta1)
            square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            size = size_of_lane.to(parameter.dtype).view(-1, *(1,) * (parameter.ndim - 1))
            parameter.add_((mean * size).div_(square.sqrt().div_(root).add_(epsilon)))

    def state_dict(self) -> dict[str, Any]:
        """Return what changes beside the parameters."""
        return {"steps": self.steps, "means": self.means, "squares": self.squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        vars(self).update(state)


# ---- evaluation ------------------------------------------------------------------------------------------------------


def theta_of(kind: Parameterization, scores: Tensor) -> Tensor:
    """Return the probability of every entry: that of the second of two classes."""
    return kind.probs(scores)[..., 1]


def graph_metrics(kind: Parameterization, scores: Tensor, truth: Tensor) -> list[dict[str, float]]:
    """Return every lane's error on theta and saturated fraction, over all entries, true zeros and true edges."""
    error = (theta_of(kind, scores).double() - truth).abs()
    saturated = kind.saturated(scores).all(-1).double()
    parts = {"": torch.ones_like(truth, dtype=torch.bool), "_zero": truth == 0, "_edge": truth > 0}
    table = {
        f"{name}{suffix}": values[:, part].mean(1).tolist()
        for name, values in (("mae_theta", error), ("dead", saturated))
        for suffix, part in parts.items()
    }
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def prediction_metrics(
    theta: Tensor, weight: Tensor, x: Tensor, y: Tensor, *, graphs: int, seed: int, chunk: int = 50
) -> list[dict[str, float]]:
    """Return the energy score and point errors of every lane's predictions.

    Every data point has its own M graphs. All lanes, runs and parameterizations are evaluated with the same random
    numbers, so their differences are differences between models.

    Args:
        theta: The probabilities, (lanes, nodes, nodes).
        weight: The matrices W, (lanes, inputs, outputs).
        x: The node features, (points, nodes, inputs).
        y: The outputs, (points, nodes, outputs).
        graphs: The number M of predictions per point.
        seed: The seed of the random numbers.
        chunk: The number of points at a time.
    """
    stream, nodes = stream_of("evaluation", seed), x.shape[1]
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
    """Return energy score, absolute error of the median, squared error of the mean, of each of B points.

    Predictions are (B, M, D), targets (B, 1, D). The median of an even number of values is the mean of the middle two.
    """
    score = energy_score(*distances(predictions - target))
    median = (predictions.median(1).values - (-predictions).median(1).values) / 2
    target = target.squeeze(1)
    return score, (median - target).abs().mean(1), (predictions.mean(1) - target).square().mean(1)


# ---- training --------------------------------------------------------------------------------------------------------

LARGEST_START, SMALLEST_START = 0.1, 0.01
"""The range of initial theta. The paper has U(0, 0.1), but 0 has no inverse. Natural's theta = 0.0001 is two steps at
learning rate 0.02 from the edge, where it would stay 0. Ten runs at theta* = 0.75 lost 16 true edges to such starts,
and two with 0.01."""
BATCH = 64
Rates = tuple[float, float]
"""The learning rates of the scores and of the network's W."""


class Training(loop.Training):
    """Several runs that differ only in seed and learning rates, trained together. Every seed has its random numbers.

    On one machine a run's results are the same bit by bit, whichever runs are trained with it.

    Args:
        data: The data.
        kind: The parameterization.
        rates: The learning rates of each run.
        seeds: The seed of each run.
        sizes: The config entries that the runs have in common.
    """

    changing = ("step", "scores", "weight", "adam", "orders", "score_sums", "history")

    def __init__(self, data: Data, kind: Parameterization, rates: Sequence[Rates], seeds: Sequence[int], sizes: Config):
        self.data, self.kind = data, kind
        self.steps, self.step, self.batch = int(sizes["steps"]), 0, int(sizes["batch"])
        self.seeds = seeds
        self.streams = {seed: stream_of("run", seed) for seed in seeds}
        smallest = float(sizes["smallest_start"])
        starts = {seed: _start(kind, stream, smallest) for seed, stream in self.streams.items()}
        self.scores = torch.stack([starts[seed][0] for seed in seeds])
        self.weight = torch.stack([starts[seed][1] for seed in seeds])
        self.adam = Adam([self.scores, self.weight], list(zip(*rates, strict=True)))
        self._graphs = torch.empty(int(sizes["graph_sets"]), NODES, int(sizes["graphs"]), NODES)
        self._x, y = data.split("train")
        self._y = y.transpose(1, 2).flatten(1)
        pairs = len(self._x)
        self._batches = pairs // self.batch
        if self._batches == 0:
            raise ValueError(
                f"`batch` is {self.batch}, but there are only {pairs} training pairs: use a smaller one, or more data."
            )
        if self.batch % len(self._graphs):
            raise ValueError(
                f"`graph_sets` is {len(self._graphs)}, but it must divide `batch`, which is {self.batch}: every set is "
                "for the same number of data points."
            )
        self.orders = torch.zeros(len(self.streams), pairs, dtype=torch.int64)
        self.score_sums = torch.zeros(len(seeds), dtype=torch.float64)
        self.history: list[dict[str, list[float]]] = [{} for _ in seeds]

    def advance(self) -> None:
        """Do one step of all lanes."""
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
        self.step += 1

    def log(self, since: int) -> list[dict[str, float]]:
        """Add a point to every lane's history: the graph's metrics, and the training ES since step ``since``."""
        points = graph_metrics(self.kind, self.scores, self.data.theta)
        for point, total, history in zip(points, self.score_sums.tolist(), self.history, strict=True):
            point["train_es"] = total / (self.step - since)
            add_point(history, self.step, point)
        self.score_sums.zero_()
        return points

    def state(self) -> dict[str, Any]:
        """Return a checkpoint, with the streams."""
        return {**super().state(), "streams": [stream.bit_generator.state for stream in self.streams.values()]}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint."""
        super().restore(state)
        for stream, kept in zip(self.streams.values(), state["streams"], strict=True):
            stream.bit_generator.state = kept


def _start(kind: Parameterization, stream: np.random.Generator, smallest: float) -> tuple[Tensor, Tensor]:
    """Draw initial scores and W: for every parameterization theta is uniform in (0, 0.1), but at least ``smallest``."""
    theta = torch.from_numpy(stream.random((NODES, NODES))).mul(LARGEST_START).clamp(min=smallest)
    scores = kind.scores_from_probs(torch.stack((1 - theta, theta), -1))
    return scores.float(), glorot(stream)


def train(runs: Sequence[Config], checkpointer: Checkpointer) -> list[Outcome]:
    """Train runs that differ only in learning rates and seed, from the last checkpoint if there is one."""
    shared = shared_config(runs[0])
    if any(shared_config(run) != shared for run in runs):
        raise ValueError(
            "Runs trained together may differ in rates and `seed` only: make groups with EXPERIMENT.groups."
        )
    torch.set_num_threads(1)
    data = make_data(float(shared["theta"]), int(shared["pairs"]), int(shared["data_seed"]))
    if shared["parameterization"] == OPTIMAL:
        truth = data.theta.unsqueeze(0), data.weight.unsqueeze(0)
        return [Outcome(metrics, {}) for _ in runs for metrics in _evaluated(*truth, data, shared)]
    kind = parameterization(str(shared["parameterization"]))
    training = Training(data, kind, [rates_of(run) for run in runs], [int(run["seed"]) for run in runs], shared)
    resume_training(training, checkpointer)
    learned = _evaluated(theta_of(kind, training.scores), training.weight, data, shared)
    graph = graph_metrics(kind, training.scores, data.theta)
    return [Outcome({**a, **b}, history) for a, b, history in zip(learned, graph, training.history, strict=True)]


def shared_config(run: Config) -> Config:
    """Return the config entries that runs trained together have in common."""
    return {key: value for key, value in run.items() if key not in ("rate", "network_rate", "seed")}


def rates_of(run: Config) -> Rates:
    """Return the learning rates of the scores and of W, which are equal if a config has only one."""
    return float(run["rate"]), float(run.get("network_rate", run["rate"]))


def _evaluated(theta: Tensor, weight: Tensor, data: Data, sizes: Config) -> list[dict[str, float]]:
    """Return the metrics of every lane's predictions on the validation and the test set."""

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
