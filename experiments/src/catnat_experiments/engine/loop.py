"""The loop that the experiments train with: all steps that are left, points of history, checkpoints on the way."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch

from catnat_experiments.engine.types import Checkpointer

SECONDS_BETWEEN_CHECKPOINTS = 10.0
LOG_POINTS = 20
"""Points of a run's history."""


class Training(Protocol):
    """One run, or several side by side."""

    steps: int

    @property
    def step(self) -> int:
        """Steps done."""

    def advance(self) -> None:
        """One step of all runs."""

    def log(self, since: int) -> list[dict[str, float]]:
        """Add a point to the history of every run, and return these; ``since`` is the step of the last ones."""

    def state(self) -> dict[str, Any]:
        """A checkpoint: all that changes, copied."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""


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


def least_seconds(
    training: Training, evaluate: Callable[[], object], tries: int = 3, steps: int = 5
) -> tuple[float, float]:
    """Of one step, and of one evaluation: processor time, the least of a few tries."""
    training.advance()  # the first step is slower
    times: list[tuple[float, float]] = []
    for _ in range(tries):
        began = time.thread_time()
        for _ in range(steps):
            training.advance()
        middle = time.thread_time()
        evaluate()
        times.append(((middle - began) / steps, time.thread_time() - middle))
    return min(step for step, _ in times), min(evaluation for _, evaluation in times)


class Printing:
    """A checkpointer that keeps nothing and prints points of history, for one run by hand."""

    def load(self) -> None:
        """Nothing: a run by hand begins at the beginning."""

    def save(self, state: Any, step: int, of: int) -> None:
        """Nothing is kept."""

    def scalars(self, run: int, step: int, values: Mapping[str, float]) -> None:
        """Print a point."""
        print(f"step {step:6}  " + "  ".join(f"{name} {value:.4f}" for name, value in values.items()), flush=True)
