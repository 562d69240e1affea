"""The methods, each with two dials from 0 to 1 for a search."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import catnat
import catnat.torch as ct
from catnat_experiments.common.dials import dial
from catnat_experiments.common.parameterizations import Catnat, parameterization
from catnat_experiments.engine.extras import extra
from catnat_experiments.tasks.binned.data import Data, Floats
from catnat_experiments.tasks.binned.predictions import Gaussians, Histogram, Prediction, Quantiles, pinball

with extra("binned"):
    from ngboost import NGBRegressor
    from ngboost.distns import Normal
    from sklearn.tree import DecisionTreeRegressor

STEPS = 800
"""The number of steps of every network."""
BATCH = 128
WIDTH = 64
LOOKS = 10
"""The number of evaluations of a network on the validation rows; the weights with the best result are kept."""
BINS = 128
"""The number of bins of HL-Gauss, whose dial is the width of its Gaussian."""
LEVELS = 50
"""The number of levels of the quantile head."""
ROUNDS = 200
"""The largest number of rounds of NGBoost, which stops after 20 rounds without a gain on the validation rows."""
DECAY = 0.01
RATES = (3e-4, 3e-2)


class Model(Protocol):
    """A model that is fitted to the training rows, may use the validation rows, and predicts."""

    history: dict[str, list[float]]

    def fit(self, data: Data) -> None:
        """Fit the model."""

    def predict(self, X: Floats) -> Prediction:  # noqa: N803
        """Return a distribution for every row."""


Make = Callable[[float, float, int, Data], Model]
"""A function from two dials, a seed and the data to a model; edges of bins may be those of training targets."""


# ---- heads: losses and predictions from the outputs of a network ----


class Head(abc.ABC):
    """A loss and a prediction from the outputs of a network.

    Attributes:
        start: The initial bias of the last layer, one number per output.
    """

    start: Tensor

    def targets(self, value: Tensor) -> Tensor:
        """Return the targets of the loss, computed once for all rows."""
        return value

    @abc.abstractmethod
    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a batch."""

    @abc.abstractmethod
    def predict(self, outputs: Tensor) -> Prediction:
        """Return a distribution for every row."""


class BinnedHead(Head):
    """Scores of bins that hold equally many training targets, with exponential tails.

    Args:
        name: The parameterization: softmax, sigmoid or natural.
        y: The training targets.
        num_bins: The number of bins.
        sigma: The standard deviation of the targets' Gaussian; None for the bin alone.
    """

    def __init__(self, name: str, y: Floats, num_bins: int, sigma: float | None) -> None:
        self.map, self.sigma = parameterization(name), sigma
        self.bins = equally_full(y, num_bins)
        self.start = torch.zeros(self.map.num_scores(num_bins))  # the same probability for all bins

    def targets(self, value: Tensor) -> Tensor:
        """Return the bin, or a Gaussian's mass in every bin."""
        if self.sigma is None:
            return ct.targets.hard(value, self.bins)
        return ct.targets.hl_gauss(value, self.bins, self.sigma)

    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy."""
        log_probs = self.map.log_probs(outputs)
        return F.nll_loss(log_probs, target) if self.sigma is None else -(target * log_probs).sum(-1).mean()

    def predict(self, outputs: Tensor) -> Histogram:
        """Return a histogram on the tree of the head, or on one with softmax's probabilities."""
        if isinstance(self.map, Catnat):
            return Histogram(ct.BinnedCatnat(outputs, self.bins, self.map.tree, self.map.activation))
        scores = ct.scores_from_logits(outputs, activation="sigmoid")
        return Histogram(ct.BinnedCatnat(scores, self.bins, activation="sigmoid"))


def equally_full(y: Floats, num_bins: int) -> catnat.Bins:
    """Return bins with equally many targets; the mean of a tail is that of the targets in it."""
    edges = catnat.Bins.from_quantiles(y, num_bins).edges.copy()
    edges[0] = y[y <= edges[1]].mean()
    edges[-1] = y[y >= edges[-2]].mean()
    return catnat.Bins(edges, tails=True)


class GaussianHead(Head):
    """A Gaussian or a mixture: logits, means and logarithms of standard deviations."""

    def __init__(self, components: int) -> None:
        means = torch.linspace(-1, 1, components) if components > 1 else torch.zeros(1)
        self.start = torch.cat([torch.zeros(components), means, torch.zeros(components)])

    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the negative log-likelihood."""
        return -self.predict(outputs).log_prob(target).mean()

    def predict(self, outputs: Tensor) -> Gaussians:
        """Return the mixture."""
        logits, means, logs = outputs.chunk(3, -1)
        return Gaussians(logits.log_softmax(-1), means, logs.clamp(-6, 6).exp())


class QuantileHead(Head):
    """One quantile per output; training starts at the quantiles of all training targets."""

    def __init__(self, y: Floats) -> None:
        self.start = torch.from_numpy(np.quantile(y, (np.arange(LEVELS) + 0.5) / LEVELS)).float()

    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the mean pinball loss."""
        return pinball(outputs, target).mean()

    def predict(self, outputs: Tensor) -> Quantiles:
        """Return the quantiles."""
        return Quantiles(outputs)


# ---- models ----


class Network:
    """Two hidden layers and a head, with AdamW and a cosine schedule. All heads have the same body and batches."""

    def __init__(self, head: Head, rate: float, seed: int, decay: float = DECAY) -> None:
        self.head, self.rate, self.seed, self.decay = head, rate, seed, decay
        self.history: dict[str, list[float]] = {"step": [], "validation_crps": []}

    def fit(self, data: Data) -> None:
        """Train for all steps, and keep the weights with the best validation CRPS."""
        torch.manual_seed(self.seed)
        X, y = torch.from_numpy(data.X["train"]).float(), torch.from_numpy(data.y["train"]).float()  # noqa: N806
        self.mean, self.std = X.mean(0), X.std(0)
        last = nn.Linear(WIDTH, len(self.head.start))
        with torch.no_grad():
            last.bias.copy_(self.head.start)
        body = nn.Sequential(nn.Linear(X.shape[1], WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.layers = nn.Sequential(*body, last)
        optimizer = torch.optim.AdamW(self.layers.parameters(), lr=self.rate, weight_decay=self.decay, fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        best, kept = np.inf, copy.deepcopy(self.layers.state_dict())
        X, target = (X - self.mean) / self.std, self.head.targets(y)  # noqa: N806
        batches = torch.Generator().manual_seed(self.seed)
        for step in range(1, STEPS + 1):
            rows = torch.randint(len(y), (BATCH,), generator=batches)
            loss = self.head.loss(self.layers(X[rows]), target[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            if step * LOOKS // STEPS > (step - 1) * LOOKS // STEPS:
                score = self._validate(data, step)
                if score < best:
                    best, kept = score, copy.deepcopy(self.layers.state_dict())
        self.layers.load_state_dict(kept)

    @torch.no_grad()
    def predict(self, X: Floats) -> Prediction:  # noqa: N803
        """Return predictions in float32, as in training."""
        return self.head.predict(self.layers((torch.from_numpy(X).float() - self.mean) / self.std))

    @torch.no_grad()
    def _validate(self, data: Data, step: int) -> float:
        score = float(self.predict(data.X["validation"]).crps(torch.from_numpy(data.y["validation"]).float()).mean())
        self.history["step"].append(step)
        self.history["validation_crps"].append(score)
        return score


class NGBoost:
    """Natural gradient boosting of a Gaussian's two parameters (Duan et al., 2020)."""

    def __init__(self, rate: float, depth: int, seed: int) -> None:
        base = DecisionTreeRegressor(max_depth=depth, random_state=seed)
        self.booster: Any = NGBRegressor(
            Dist=Normal, Base=base, n_estimators=ROUNDS, learning_rate=rate, random_state=seed, verbose=False
        )
        self.history: dict[str, list[float]] = {}

    def fit(self, data: Data) -> None:
        """Fit, with early stopping by the validation rows."""
        validation = {"X_val": data.X["validation"], "Y_val": data.y["validation"], "early_stopping_rounds": 20}
        self.booster.fit(data.X["train"], data.y["train"], **validation)

    def predict(self, X: Floats) -> Gaussians:  # noqa: N803
        """Return one Gaussian per row, from the rounds that are best for the validation rows."""
        found = self.booster.pred_dist(X, max_iter=self.booster.best_val_loss_itr)
        mean, std = (torch.from_numpy(np.asarray(each)).unsqueeze(-1) for each in (found.loc, found.scale))
        return Gaussians(torch.zeros_like(mean), mean, std)


# ---- by name ----


def _bins(name: str, *, gauss: bool) -> Make:
    """The second dial is the number of bins, or with HL-Gauss the width of its Gaussian."""

    def make(first: float, second: float, seed: int, data: Data) -> Model:
        y = data.y["train"]
        sizes = (BINS, dial(second, 0.02, 0.5)) if gauss else (round(dial(second, 8, 256)), None)
        return Network(BinnedHead(name, y, *sizes), dial(first, *RATES), seed)

    return make


def _gaussian(first: float, second: float, seed: int, data: Data) -> Model:
    """The second dial is the weight decay."""
    return Network(GaussianHead(1), dial(first, *RATES), seed, dial(second, 1e-3, 1.0))


def _mixture(first: float, second: float, seed: int, data: Data) -> Model:
    """The second dial is the number of components."""
    return Network(GaussianHead(round(dial(second, 2, 16))), dial(first, *RATES), seed)


def _quantiles(first: float, second: float, seed: int, data: Data) -> Model:
    """The second dial is the weight decay."""
    return Network(QuantileHead(data.y["train"]), dial(first, *RATES), seed, dial(second, 1e-3, 1.0))


def _ngboost(first: float, second: float, seed: int, data: Data) -> Model:
    """The second dial is the depth of a tree."""
    return NGBoost(dial(first, 0.01, 0.3), round(dial(second, 2, 6)), seed)


METHODS: dict[str, Make] = {
    "softmax, hard": _bins("softmax", gauss=False),
    "softmax, HL-Gauss": _bins("softmax", gauss=True),
    "sigmoid, hard": _bins("sigmoid", gauss=False),
    "sigmoid, HL-Gauss": _bins("sigmoid", gauss=True),
    "natural, hard": _bins("natural", gauss=False),
    "natural, HL-Gauss": _bins("natural", gauss=True),
    "Gaussian": _gaussian,
    "Gaussian mixture": _mixture,
    "quantiles": _quantiles,
    "NGBoost": _ngboost,
}
