"""The small types that the engine and the tasks share: configs, stages, outcomes, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pandas as pd

Config = dict[str, str | int | float]
"""Everything that decides a run's numbers, as plain JSON: experiment, sizes, parameterization, rate, seed ..."""
Direction = Literal["lower", "higher"]
"""Which values of a metric are better."""


@dataclass(frozen=True)
class Stage:
    """Runs that can all start as soon as the stages before are complete."""

    name: str
    """For example "coarse", "refined", "final"."""
    runs: Callable[[pd.DataFrame], list[Config]]
    """From the records of all stages before it to this stage's runs; deterministic. The first stage ignores them."""
    about: str
    """One line for `plan`."""
    expected_runs: int
    """For `plan`, before anything has run."""


class Checkpointer(Protocol):
    """What the engine gives to `train`: checkpoints and scalars of one group."""

    def load(self) -> Any | None:
        """The last checkpoint of this group, or None."""

    def save(self, state: Any, step: int, of: int) -> None:
        """Keep a checkpoint, atomically, and report progress. To be called about every 10 s."""

    def scalars(self, run: int, step: int, values: Mapping[str, float]) -> None:
        """Values of run number `run` at a step, for TensorBoard."""


@dataclass(frozen=True)
class Outcome:
    """What one run ends with."""

    metrics: dict[str, float]
    """Final metrics."""
    history: dict[str, list[float]]
    """Small: at most about 20 points."""
