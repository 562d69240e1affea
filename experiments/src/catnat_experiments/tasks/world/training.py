"""The training of the world model, and its final metrics."""

from __future__ import annotations

import math

import torch

from catnat_experiments.common.parameterizations import parameterization
from catnat_experiments.engine.loop import OneRun, add_point, finished
from catnat_experiments.engine.types import Checkpointer, Config, Outcome
from catnat_experiments.tasks.world.environment import Play, canvas, play, predicted, stream_of
from catnat_experiments.tasks.world.model import (
    AHEAD,
    CONTEXT,
    WorldModel,
    belief_metrics,
    log_loss,
    loss,
    rollout_loss,
)

ALL = ("softmax", "sigmoid", "natural")
EXACT = "exact"
"""The name of a parameterization in configs that has exact predictions, without learning."""

METRICS = {
    "test_rollout": "log-loss of pixels in open-loop predictions, nats per frame, on test sequences",
    "test_loss": "negative ELBO, nats per frame, on test sequences",
    "validation_rollout": "test_rollout on validation sequences, which selects learning rates",
    "validation_loss": "test_loss on validation sequences",
    "reconstruction": "first part of validation_loss: log-loss of pixels with latents from the posterior",
    "kl": "second part of validation_loss: KL(posterior || prior), summed over the variables",
    "entropy": "mean entropy of a variable's posterior, in nats",
    "prior_entropy": "mean entropy of a variable's prior, in nats",
    "dead": "fraction of the posterior's scores that are saturated for a frame: certain, and without a gradient",
    "classes_alive": "number of classes of a variable with a mean probability of at least 1 / (10 K)",
}


LOOKED_AT, LOOKED_AT_SAMPLES = 50, 8
"""The numbers of validation sequences for the curves, and of rollouts of each."""


def rate_factor(step: int, run: Config) -> float:
    """Return the factor of the learning rate: 1, then a linear decay to 0 over the last ``decay`` of the steps.

    >>> [rate_factor(step, {"steps": 100, "decay": 0.5}) for step in (0, 50, 75)]
    [1.0, 1.0, 0.5]
    """
    left = 1 - step / int(run["steps"])
    return min(1.0, left / decay) if (decay := float(run.get("decay", 0.0))) else 1.0


class Training(OneRun):
    """One run. Its seed determines the start, the sequences, which are new in every step, and the model's samples."""

    changing = ("step", "model", "optimizer", "sums", "stream", "generator", "history")

    def __init__(self, run: Config) -> None:
        self.run, self.steps, self.step = run, int(run["steps"]), 0
        self.stream = stream_of("run", int(run["seed"]))
        self.generator = torch.Generator().manual_seed(int(self.stream.integers(2**62)))
        sizes = (int(run[name]) for name in ("latents", "classes", "hidden"))
        with torch.random.fork_rng(devices=[]):  # torch initializes layers from its global generator
            torch.manual_seed(int(self.stream.integers(2**62)))
            self.model = WorldModel(parameterization(str(run["parameterization"])), *sizes)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=float(run["rate"]), fused=True)
        self.sums = torch.zeros(2, dtype=torch.float64)
        self.history: dict[str, list[float]] = {}
        self.validation = play(int(run["validation_sequences"]), CONTEXT + AHEAD, stream_of("validation")).frames

    def advance(self) -> None:
        """Do one step."""
        self.optimizer.param_groups[0]["lr"] = rate_factor(self.step, self.run) * float(self.run["rate"])
        frames = play(int(self.run["batch"]), int(self.run["length"]), self.stream).frames
        found, _ = loss(self.model, frames, float(self.run["free_nats"]), self.generator)
        self.optimizer.zero_grad()
        found.objective.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.step += 1
        self.sums += torch.stack((found.reconstruction.detach(), found.kl.detach()))

    def log(self, since: int) -> list[dict[str, float]]:
        """Add a point to the history: the mean loss since step ``since``, and metrics of some validation sequences."""
        reconstruction, kl = (self.sums / (self.step - since)).tolist()
        self.sums.zero_()
        some = self.validation[:, :LOOKED_AT]
        point = {"train_loss": reconstruction + kl, **belief_metrics(self.model, some, 0)}
        point["rollout"] = float(rollout_loss(self.model, some, LOOKED_AT_SAMPLES, 0).mean())
        add_point(self.history, self.step, point)
        return [point]

    def metrics(self) -> dict[str, float]:
        """Return the final metrics, with those on test sequences if the run has some.

        In that case add the test loss of every step ahead to the history.
        """
        model, test, samples = self.model, _test(self.run).frames, int(self.run["samples"])
        names = [name for name in METRICS if test.shape[1] or not name.startswith("test")]
        if not all(bool(part.isfinite().all()) for part in model.parameters()):
            return dict.fromkeys(names, math.nan)
        found = belief_metrics(model, self.validation, 0)
        found["validation_loss"] = found["loss"]
        found["validation_rollout"] = float(rollout_loss(model, self.validation, samples, 0).mean())
        if test.shape[1]:
            ahead = rollout_loss(model, test, samples, 1)
            found["test_rollout"], found["test_loss"] = float(ahead.mean()), belief_metrics(model, test, 1)["loss"]
            self.history |= {**_AHEAD, "ahead": ahead.tolist()}
        return {name: found[name] for name in names}


def train(run: Config, checkpointer: Checkpointer) -> Outcome:
    """Train a run, resuming from the last checkpoint if there is one, and evaluate it."""
    return _exact(run) if run["parameterization"] == EXACT else finished(Training(run), checkpointer)


def _exact(run: Config) -> Outcome:
    """Return the results of exact predictions, and in the history those of a constant guess, the mean frame."""
    test = _test(run)
    frames = test.frames[CONTEXT:]
    exact = log_loss(predicted(test.states[CONTEXT - 1], test.shapes[CONTEXT - 1], AHEAD), frames).mean(1)
    guess = log_loss(canvas().double().mean((0, 1)).expand(frames.shape), frames).mean(1)
    history = {**_AHEAD, "ahead": exact.tolist(), "ahead_mean_frame": guess.tolist()}
    return Outcome({"test_rollout": float(exact.mean())}, history)


def _test(run: Config) -> Play:
    return play(int(run["test_sequences"]), CONTEXT + AHEAD, stream_of("test"))


_AHEAD = {"ahead.step": [float(step) for step in range(1, AHEAD + 1)]}
