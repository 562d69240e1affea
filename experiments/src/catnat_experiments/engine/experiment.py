"""The interface between the engine and the experiments."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from catnat_experiments.engine.search import Search
from catnat_experiments.engine.types import Checkpointer, Config, Outcome, Stage

Plan = TypeVar("Plan")


def plan_of(preset: str, presets: Mapping[str, Plan], experiment: str) -> Plan:
    """Return the plan of an experiment for a preset."""
    if preset not in presets:
        raise ValueError(f"`preset` is {preset!r}, but {experiment} has these: {', '.join(presets)}.")
    return presets[preset]


class Experiment(Protocol):
    """The methods of an experiment that the engine calls.

    An experiment may also have ``packages``, whose versions its records contain beside those of all experiments.
    """

    name: str

    def stages(self, preset: str) -> Sequence[Stage | Search]:
        """Return the stages of a preset, in order."""

    def groups(self, runs: list[Config]) -> list[list[Config]]:
        """Return groups of runs that are computed and resumed together in one process, such as several seeds."""

    def train(self, runs: list[Config], checkpointer: Checkpointer) -> list[Outcome]:
        """Compute a group, and return one outcome per run, in order."""


class EveryRunAlone(abc.ABC):
    """Base class of experiments whose runs are large enough for a core each: every run is a group."""

    @abc.abstractmethod
    def train_one(self, run: Config, checkpointer: Checkpointer) -> Outcome:
        """Train a run, resuming from the last checkpoint if there is one, and evaluate it."""

    def groups(self, runs: list[Config]) -> list[list[Config]]:
        """Return every run as a group."""
        return [[run] for run in runs]

    def train(self, runs: list[Config], checkpointer: Checkpointer) -> list[Outcome]:
        """Train one run."""
        [run] = runs
        return [self.train_one(run, checkpointer)]
