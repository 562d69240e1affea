"""What an experiment is: the interface between the engine and the experiments, and the small types they share."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pandas as pd

if TYPE_CHECKING:
    from catnat_experiments.engine.search import Search

Config = dict[str, str | int | float]
"""Everything that decides a run's numbers, as plain JSON: experiment, sizes, parameterization, rate, seed ..."""


class MissingExtraError(ImportError):
    """An experiment's own packages, which are an extra of this one, are not installed."""


@contextlib.contextmanager
def extra(name: str) -> Iterator[None]:
    """Around the imports of packages that only the extra ``name`` installs: if one fails, say what to install."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("catnat", "catnat_experiments"):
            raise  # a mistake of ours, which no installation would repair
        reason = error.__cause__ if isinstance(error, MissingExtraError) else error  # an extra can contain another
        raise MissingExtraError(
            f"This experiment needs the extra '{name}' ({reason}): pip install \"catnat-experiments[{name}]\"",
            name=error.name,
        ) from error


Plan = TypeVar("Plan")


def plan_of(preset: str, presets: Mapping[str, Plan], experiment: str) -> Plan:
    """What an experiment does for a preset."""
    if preset not in presets:
        raise ValueError(f"`preset` is {preset!r}, but {experiment} has these: {', '.join(presets)}.")
    return presets[preset]


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
    alike: tuple[Config, ...] = ()
    """Runs that cost what this stage's will cost, for `plan` as long as those are not known."""


class Keeper(Protocol):
    """What the engine gives to `train`: checkpoints and scalars of one group."""

    def load(self) -> Any | None:
        """The last checkpoint of this group, or None."""

    def save(self, state: Any, step: int, of: int) -> None:
        """Keep a checkpoint, atomically, and report progress. To be called about every 10 s."""

    def scalars(self, run: int, step: int, values: Mapping[str, float]) -> None:
        """Values of run number `run` at a step, for TensorBoard and the record's history."""


@dataclass(frozen=True)
class Outcome:
    """What one run ends with."""

    metrics: dict[str, float]
    """Final metrics."""
    history: dict[str, list[float]]
    """Small: at most about 20 points."""


class Experiment(Protocol):
    """What the engine needs of an experiment.

    It may have ``packages`` as well: names whose versions its records shall note, beside those of all experiments.
    """

    name: str

    def stages(self, preset: str) -> Sequence[Stage | Search]:
        """The stages of a preset, in order."""

    def groups(self, runs: list[Config]) -> list[list[Config]]:
        """Runs computed together in one process (a batch of seeds and rates): the unit of work and of resume."""

    def train(self, runs: list[Config], keeper: Keeper) -> list[Outcome]:
        """Compute a group: one outcome per run, in order."""


class EveryRunAlone(abc.ABC):
    """What experiments have in common whose runs are large enough to fill a core: every run is a group."""

    @abc.abstractmethod
    def train_one(self, run: Config, keeper: Keeper) -> Outcome:
        """Train a run, going on from the keeper's checkpoint if there is one, and evaluate it."""

    def groups(self, runs: list[Config]) -> list[list[Config]]:
        """Every run alone."""
        return [[run] for run in runs]

    def train(self, runs: list[Config], keeper: Keeper) -> list[Outcome]:
        """Train one run."""
        [run] = runs
        return [self.train_one(run, keeper)]
