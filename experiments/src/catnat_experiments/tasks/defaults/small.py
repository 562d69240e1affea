"""Three small tasks for the choice of defaults: a classifier, a bandit with masks, a table of probabilities.

Each is a loss on random batches, minimized by Adam at a constant rate, and a measurement on what is fixed for all runs.
A run takes seconds. The other tasks of the panel are small sizes of experiments that exist (``defaults.py``).
"""

from __future__ import annotations

import abc
import copy
import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch import distributions as td

import catnat
import catnat.torch as ct
from catnat_experiments.common.parameterizations import Catnat, Parameterization, parameterization
from catnat_experiments.engine.experiment import Config, Keeper, Outcome, extra
from catnat_experiments.engine.loop import add_point, go_on

ORDERS = ("given", "random", "embeddings")
"""Of the classes under a tree: as they are numbered; another for each seed; by ``catnat.from_embeddings``."""


def ordered(kind: Parameterization, order: str, embeddings: NDArray[np.float64], seed: int) -> Parameterization:
    """The parameterization with its tree over the classes in an order; softmax has none.

    Args:
        kind: On the balanced tree.
        order: One of :data:`ORDERS`.
        embeddings: A vector for every class, (K, d).
        seed: Of the random order.
    """
    if order not in ORDERS:
        raise ValueError(f"`order` is {order!r}, but one of these is needed: {', '.join(ORDERS)}.")
    if not isinstance(kind, Catnat) or order == "given":
        return kind
    if order == "embeddings":
        return dataclasses.replace(kind, tree=catnat.from_embeddings(embeddings))
    permutation = np.random.default_rng(seed).permutation(len(embeddings))
    return dataclasses.replace(kind, tree=catnat.from_clusters(permutation.tolist()))


def perceptron(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """One hidden layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


class Training(abc.ABC):
    """One run. Its seed decides the start, the batches and the draws; the data are the same for all runs."""

    model: nn.Module
    kind: Parameterization

    def __init__(self, run: Config) -> None:
        self.run, self.steps, self.batch = run, int(run["steps"]), int(run["batch"])
        self.generator = torch.Generator().manual_seed(int(run["seed"]))
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(int(run["seed"]))
            self._start()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=float(run["rate"]), fused=True)
        self.step, self.sum = 0, 0.0
        self.history: dict[str, list[float]] = {}

    def _ordered(self, embeddings: NDArray[np.float64]) -> Parameterization:
        kind = parameterization(str(self.run["parameterization"]))
        return ordered(kind, str(self.run["order"]), embeddings, int(self.run["seed"]))

    @abc.abstractmethod
    def _start(self) -> None:
        """Set ``kind`` and ``model``."""

    @abc.abstractmethod
    def loss(self) -> Tensor:
        """Of a random batch."""

    @abc.abstractmethod
    def measure(self, split: str) -> dict[str, float]:
        """How good the model is on the fixed data of "validation" or "test"."""

    def advance(self) -> None:
        """One step."""
        loss = self.loss()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.step += 1
        self.sum += float(loss.detach())

    def log(self, since: int) -> list[dict[str, float]]:
        """Add a point to the history: the mean loss since step ``since``; measuring would take longer than learning."""
        point = {"train_loss": self.sum / (self.step - since)}
        self.sum = 0.0
        add_point(self.history, self.step, point)
        return [point]

    def metrics(self) -> dict[str, float]:
        """The final metrics, by the names of the splits; NaN for a run that diverged."""
        return {f"{split}_{name}": x for split in ("validation", "test") for name, x in self.measure(split).items()}

    def state(self) -> dict[str, Any]:
        """A checkpoint: all that changes, copied."""
        parts = self.model.state_dict(), self.optimizer.state_dict(), self.generator.get_state()
        return copy.deepcopy({"parts": parts, "plain": (self.step, self.sum, self.history)})

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        (model, optimizer, generator), plain = copy.deepcopy((state["parts"], state["plain"]))
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        self.generator.set_state(generator)
        self.step, self.sum, self.history = plain


def _saturated(kind: Parameterization, scores: Tensor) -> float:
    """The fraction of scores that get no gradient."""
    return float(kind.saturated(scores).double().mean())


# ---- a classifier ----------------------------------------------------------------------------------------------------


class Digits(NamedTuple):
    """scikit-learn's 1,797 digits, 8 x 8 pixels from 0 to 1: images and classes of three splits."""

    images: dict[str, Tensor]
    classes: dict[str, Tensor]

    @property
    def means(self) -> NDArray[np.float64]:
        """The mean training image of every class."""
        images, classes = self.images["train"], self.classes["train"]
        return np.stack([images[classes == k].double().mean(0).numpy() for k in range(10)])


@functools.cache
def digits() -> Digits:
    """In one random order for all runs: 1,000 train, 297 validate, 500 test."""
    with extra("defaults"):
        from sklearn.datasets import load_digits  # takes a second to import

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images, classes = torch.from_numpy(data.data[order]).float() / 16, torch.from_numpy(data.target[order])
    sizes = {"train": slice(0, 1000), "validation": slice(1000, 1297), "test": slice(1297, None)}
    return Digits({name: images[at] for name, at in sizes.items()}, {name: classes[at] for name, at in sizes.items()})


class Classifier(Training):
    """Digits by a perceptron, from its cross entropy."""

    def _start(self) -> None:
        self.kind = self._ordered(digits().means)
        self.model = perceptron(64, int(self.run["hidden"]), self.kind.num_scores(10))

    def loss(self) -> Tensor:
        """The cross entropy of a batch, in nats."""
        images, classes = digits().images["train"], digits().classes["train"]
        rows = torch.randint(len(images), (self.batch,), generator=self.generator)
        return self._log_loss(self.model(images[rows]), classes[rows])

    def _log_loss(self, scores: Tensor, classes: Tensor) -> Tensor:
        return -self.kind.log_probs(scores).gather(-1, classes.unsqueeze(-1)).mean()

    @torch.no_grad()
    def measure(self, split: str) -> dict[str, float]:
        """Log loss in nats, accuracy, and the fraction of saturated scores."""
        scores, classes = self.model(digits().images[split]), digits().classes[split]
        right = self.kind.log_probs(scores).argmax(-1) == classes
        return {
            "log_loss": float(self._log_loss(scores, classes)),
            "accuracy": float(right.double().mean()),
            "saturated": _saturated(self.kind, scores),
        }


# ---- a contextual bandit with masks ----------------------------------------------------------------------------------

FEATURES, GROUPS = 8, 30
NOISE = 0.2
"""Standard deviation of the reward around its mean."""
MEASURED_ROWS = 500


class Rows(NamedTuple):
    """Contexts, (rows, features), and the actions that are valid in each, (rows, valid)."""

    contexts: Tensor
    valid: Tensor


@functools.cache
def action_features(actions: int) -> Tensor:
    """A unit vector for every action, in groups of similar ones; actions are numbered at random."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(GROUPS, FEATURES, generator=generator)
    group = torch.randint(GROUPS, (actions,), generator=generator)
    return nn.functional.normalize(centres[group] + torch.randn(actions, FEATURES, generator=generator) / 2)


def draw_rows(rows: int, actions: int, valid: int, generator: torch.Generator) -> Rows:
    """Normal contexts; in each a random subset of the actions is valid."""
    contexts = torch.randn(rows, FEATURES, generator=generator)
    return Rows(contexts, torch.rand(rows, actions, generator=generator).topk(valid).indices)


def mean_rewards(rows: Rows, actions: int) -> Tensor:
    """The mean reward of each valid action, (rows, valid): the product of context and feature vectors."""
    return torch.einsum("rf,rvf->rv", rows.contexts, action_features(actions)[rows.valid])


def policy(kind: Parameterization, scores: Tensor, valid: Tensor, mask_mode: Any) -> td.Categorical:
    """The distribution of actions, with all invalid ones masked.

    Args:
        kind: Softmax or a tree.
        scores: (rows, scores).
        valid: The valid actions, (rows, valid).
        mask_mode: Of a tree, "prune" or "renormalize".
    """
    if isinstance(kind, Catnat):
        return ct.Catnat(scores, kind.tree, kind.activation, valid_classes=valid, mask_mode=mask_mode)
    masked = torch.full_like(scores, -math.inf).scatter(-1, valid, scores.gather(-1, valid))
    return td.Categorical(logits=masked)


class Bandit(Training):
    """One action and its noisy reward a context; REINFORCE, with the mean reward of the other rows as the baseline."""

    def _start(self) -> None:
        self.actions, self.valid = int(self.run["actions"]), int(self.run["valid"])
        self.kind = self._ordered(action_features(self.actions).double().numpy())
        self.model = perceptron(FEATURES, int(self.run["hidden"]), self.kind.num_scores(self.actions))

    def policy(self, rows: Rows) -> td.Categorical:
        """What the model does in these contexts."""
        return policy(self.kind, self.model(rows.contexts), rows.valid, self.run["mask_mode"])

    def loss(self) -> Tensor:
        """Its gradient is the negative policy gradient; its value is the negative mean reward of the batch."""
        rows = draw_rows(self.batch, self.actions, self.valid, self.generator)
        policy = self.policy(rows)
        log_probs: Tensor = policy.log_prob(rows.valid.t()).t()  # type: ignore[no-untyped-call]
        place = torch.multinomial(log_probs.detach().exp(), 1, generator=self.generator)
        reward = mean_rewards(rows, self.actions).gather(1, place).squeeze(1)
        reward = reward + NOISE * torch.randn(self.batch, generator=self.generator)
        others = (reward.sum() - reward) / (self.batch - 1)
        drawn = log_probs.gather(1, place).squeeze(1)
        loss: Tensor = ((others - reward) * (drawn - drawn.detach()) - reward).mean()
        return loss

    @torch.no_grad()
    def measure(self, split: str) -> dict[str, float]:
        """The expected reward of the policy, exactly, of the best policy, and the fraction of saturated scores."""
        generator = torch.Generator().manual_seed(("validation", "test").index(split))
        rows = draw_rows(MEASURED_ROWS, self.actions, self.valid, generator)
        probs, rewards = self.policy(rows).probs.gather(1, rows.valid), mean_rewards(rows, self.actions)
        return {
            "reward": float((probs * rewards).sum(1).mean()),
            "best_reward": float(rewards.amax(1).mean()),
            "saturated": _saturated(self.kind, self.model(rows.contexts)),
        }


# ---- a table of probabilities ----------------------------------------------------------------------------------------

ZIPF = 1.0
"""The exponent of the classes' frequencies."""


@functools.cache
def truth(rows: int, classes: int) -> Tensor:
    """A table of probabilities, (rows, classes), float64: Zipf's law, and rows that prefer groups of similar classes.

    Classes are numbered by falling frequency.
    """
    stream = np.random.default_rng(0)
    similar = stream.normal(size=(8, 4))[stream.integers(8, size=classes)] + stream.normal(size=(classes, 4)) / 2
    logits = stream.normal(size=(rows, 4)) @ similar.T - ZIPF * np.log(np.arange(1, classes + 1))
    return torch.from_numpy(logits).softmax(-1)


def divergence(probs: Tensor, log_probs: Tensor) -> Tensor:
    r"""The mean over rows of :math:`\sum_k p_k (\log p_k - \log q_k)`, from probabilities p and logarithms of q."""
    result: Tensor = (torch.special.xlogy(probs, probs) - probs * log_probs).sum(-1).mean()
    return result


class Scores(nn.Module):
    """A table of free scores; they start at 0, which is the uniform distribution."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(shape))


class Fit(Training):
    """Free scores of a table, from a few draws a row and step."""

    model: Scores

    def _start(self) -> None:
        self.truth = truth(int(self.run["rows"]), int(self.run["classes"]))
        logs = self.truth.log()
        self.kind = self._ordered((logs - logs.mean(0)).t().numpy())
        self.model = Scores(len(logs), self.kind.num_scores(logs.shape[1]))

    def loss(self) -> Tensor:
        """The mean cross entropy of the draws."""
        drawn = torch.multinomial(self.truth, self.batch, replacement=True, generator=self.generator)
        return -self.kind.log_probs(self.model.scores).gather(1, drawn).mean()

    @torch.no_grad()
    def measure(self, split: str) -> dict[str, float]:
        """The divergence of the model from the truth, for both splits, and the fraction of saturated scores."""
        log_probs = self.kind.log_probs(self.model.scores).double()
        return {
            "kl": float(divergence(self.truth, log_probs)),
            "saturated": _saturated(self.kind, self.model.scores),
        }


# ---- what the panel takes from this file -----------------------------------------------------------------------------

TASKS: dict[str, type[Training]] = {"classifier": Classifier, "bandit": Bandit, "table": Fit}


def train(run: Config, keeper: Keeper) -> Outcome:
    """Train a run of one of the tasks, going on from the keeper's checkpoint if there is one, and evaluate it."""
    torch.set_num_threads(1)
    training = TASKS[str(run["task"])](run)
    go_on(training, keeper)
    return Outcome(training.metrics(), training.history)
