"""The loop that the experiments train with: all steps that are left, points of history, checkpoints on the way."""

from __future__ import annotations

import abc
import contextlib
import copy
import itertools
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from catnat_experiments.engine.types import Checkpointer, Outcome

SECONDS_BETWEEN_CHECKPOINTS = 10.0
LOG_POINTS = 20
"""Points of a run's history."""


class Training(abc.ABC):
    """One run, or several side by side.

    Attributes:
        steps: In all.
        step: Steps done.
        changing: The names of the attributes that change, which a checkpoint keeps.
    """

    steps: int
    step: int
    changing: tuple[str, ...]

    @abc.abstractmethod
    def advance(self) -> None:
        """One step of all runs."""

    @abc.abstractmethod
    def log(self, since: int) -> list[dict[str, float]]:
        """Add a point to the history of every run, and return these; ``since`` is the step of the last ones."""

    def state(self) -> dict[str, Any]:
        """A checkpoint: all that changes, copied."""
        return copy.deepcopy({name: _state_of(getattr(self, name)) for name in self.changing})

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        for name in self.changing:
            part, kept = getattr(self, name), copy.deepcopy(state[name])
            if hasattr(part, "load_state_dict"):
                part.load_state_dict(kept)
            elif isinstance(part, torch.Generator):
                part.set_state(kept)
            elif isinstance(part, np.random.Generator):
                part.bit_generator.state = kept
            elif isinstance(part, torch.Tensor):
                part.detach().copy_(kept)  # in place: others may have views of it
            else:
                setattr(self, name, kept)


def _state_of(part: Any) -> Any:
    if hasattr(part, "state_dict"):
        return part.state_dict()
    if isinstance(part, torch.Generator):
        return part.get_state()
    if isinstance(part, torch.Tensor):
        return part.detach()  # without its gradient
    return part.bit_generator.state if isinstance(part, np.random.Generator) else part


class OneRun(Training):
    """A training of one run."""

    history: dict[str, list[float]]

    @abc.abstractmethod
    def metrics(self) -> dict[str, float]:
        """The final metrics; NaN for a run that diverged."""


def finished(training: OneRun, checkpointer: Checkpointer) -> Outcome:
    """Train a run, resuming from the last checkpoint if there is one, and evaluate it."""
    torch.set_num_threads(1)
    resume_training(training, checkpointer)
    return Outcome(training.metrics(), training.history)


def resume_training(training: Training, checkpointer: Checkpointer) -> None:
    """All steps that are left, from the last checkpoint on."""
    kept = checkpointer.load()
    if kept is not None:
        training.restore(kept)
    points = [0, *(round(training.steps * (point + 1) / LOG_POINTS) for point in range(LOG_POINTS))]
    since = {now: before for before, now in itertools.pairwise(points) if now > before}
    saved = time.monotonic()
    while training.step < training.steps:
        with _subnormals_as_zero():
            training.advance()
        if training.step in since:
            for run, values in enumerate(training.log(since[training.step])):
                checkpointer.scalars(run, training.step, values)
        # The last step too: what is killed in its evaluation has all its steps.
        if time.monotonic() - saved >= SECONDS_BETWEEN_CHECKPOINTS or training.step == training.steps:
            checkpointer.save(training.state(), training.step, training.steps)
            saved = time.monotonic()


@contextlib.contextmanager
def _subnormals_as_zero() -> Iterator[None]:
    """Adam's moments of weights that no longer learn decay to subnormal numbers, and double the time of a step."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def add_point(history: dict[str, list[float]], step: int, point: Mapping[str, float]) -> None:
    """Append the values at a step to those of the points before."""
    append(history, {"step": float(step), **point})


def append(history: dict[str, list[float]], values: Mapping[str, float]) -> None:
    """Append each value to those of its name."""
    for name, value in values.items():
        history.setdefault(name, []).append(value)


class Printing:
    """A checkpointer that keeps nothing and prints points of history, for one run by hand."""

    def load(self) -> None:
        """Nothing: a run by hand begins at the beginning."""

    def save(self, state: Any, step: int, of: int) -> None:
        """Nothing is kept."""

    def scalars(self, run: int, step: int, values: Mapping[str, float]) -> None:
        """Print a point."""
        print(f"step {step:6}  " + "  ".join(f"{name} {value:.4f}" for name, value in values.items()), flush=True)
