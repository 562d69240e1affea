"""The training loop of the experiments: the remaining steps, points of history, checkpoints."""

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
"""The number of points in a run's history."""


class Training(abc.ABC):
    """One run, or several that are trained together.

    Attributes:
        steps: The total number of steps.
        step: The number of steps done.
        changing: The names of the attributes that change, which are in a checkpoint.
    """

    steps: int
    step: int
    changing: tuple[str, ...]

    @abc.abstractmethod
    def advance(self) -> None:
        """Do one step of all runs."""

    @abc.abstractmethod
    def log(self, since: int) -> list[dict[str, float]]:
        """Add a point to the history of every run, and return the points; ``since`` is the step of the last ones."""

    def state(self) -> dict[str, Any]:
        """Return a copy of all that changes, for a checkpoint."""
        return copy.deepcopy({name: _state_of(getattr(self, name)) for name in self.changing})

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        for name in self.changing:
            part, kept = getattr(self, name), copy.deepcopy(state[name])
            if hasattr(part, "load_state_dict"):
                part.load_state_dict(kept)
            elif isinstance(part, torch.Generator):
                part.set_state(kept)
            elif isinstance(part, np.random.Generator):
                part.bit_generator.state = kept
            elif isinstance(part, torch.Tensor):
                part.detach().copy_(kept)  # in place, because other tensors may be views of it
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
        """Return the final metrics; NaN for a run that diverged."""


def finished(training: OneRun, checkpointer: Checkpointer) -> Outcome:
    """Train a run, resuming from the last checkpoint if there is one, and evaluate it."""
    torch.set_num_threads(1)
    resume_training(training, checkpointer)
    return Outcome(training.metrics(), training.history)


def resume_training(training: Training, checkpointer: Checkpointer) -> None:
    """Do the remaining steps, from the last checkpoint if there is one."""
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
        # Also after the last step, for a run that is killed in its evaluation.
        if time.monotonic() - saved >= SECONDS_BETWEEN_CHECKPOINTS or training.step == training.steps:
            checkpointer.save(training.state(), training.step, training.steps)
            saved = time.monotonic()


@contextlib.contextmanager
def _subnormals_as_zero() -> Iterator[None]:
    """Treat subnormal numbers as 0: Adam's moments of weights without gradient become subnormal and double the time."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def add_point(history: dict[str, list[float]], step: int, point: Mapping[str, float]) -> None:
    """Append values at a step."""
    append(history, {"step": float(step), **point})


def append(history: dict[str, list[float]], values: Mapping[str, float]) -> None:
    """Append each value to the list of its name."""
    for name, value in values.items():
        history.setdefault(name, []).append(value)


class Printing:
    """A checkpointer that saves nothing and prints points of history, for one run by hand."""

    def load(self) -> None:
        """Return None: a run by hand starts without a checkpoint."""

    def save(self, state: Any, step: int, of: int) -> None:
        """Save nothing."""

    def scalars(self, run: int, step: int, values: Mapping[str, float]) -> None:
        """Print a point."""
        print(f"step {step:6}  " + "  ".join(f"{name} {value:.4f}" for name, value in values.items()), flush=True)
