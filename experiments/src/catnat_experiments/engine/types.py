"""The types of the engine and the tasks: configs, stages, outcomes, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pandas as pd

Config = dict[str, str | int | float]
"""All that affects a run's results, as plain JSON, such as experiment, sizes, parameterization, learning rate, seed."""
Direction = Literal["lower", "higher"]
"""Which values of a metric are better."""


@dataclass(frozen=True)
class Stage:
    """Runs that can all start when the stages before are complete."""

    name: str
    """The name, for example "coarse", "refined", "final"."""
    runs: Callable[[pd.DataFrame], list[Config]]
    """A deterministic function from the records of all stages before to the runs; the first stage ignores records."""
    about: str
    """One line for `plan`."""
    expected_runs: int
    """The number of runs for `plan`, before anything has run."""


class Checkpointer(Protocol):
    """The argument of `train` for checkpoints and scalars of one group."""

    def load(self) -> Any | None:
        """Return the last checkpoint of this group, or None."""

    def save(self, state: Any, step: int, of: int) -> None:
        """Write a checkpoint atomically, and report progress; call this about every 10 s."""

    def scalars(self, run: int, step: int, values: Mapping[str, float]) -> None:
        """Write values of run number `run` at a step, for TensorBoard."""


@dataclass(frozen=True)
class Outcome:
    """The result of one run."""

    metrics: dict[str, float]
    """The final metrics."""
    history: dict[str, list[float]]
    """The history, of at most about 20 points."""
