"""What an experiment is: the interface between the engine and the tasks."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from catnat_experiments.engine.search import Search
from catnat_experiments.engine.types import Checkpointer, Config, Outcome, Stage

Plan = TypeVar("Plan")


def plan_of(preset: str, presets: Mapping[str, Plan], experiment: str) -> Plan:
    """What an experiment does for a preset."""
    if preset not in presets:
        raise ValueError(f"`preset` is {preset!r}, but {experiment} has these: {', '.join(presets)}.")
    return presets[preset]


class Experiment(Protocol):
    """What the engine needs of an experiment.

    It may have ``packages`` as well: names whose versions its records shall note, beside those of all experiments.
    """

    name: str

    def stages(self, preset: str) -> Sequence[Stage | Search]:
        """The stages of a preset, in order."""

    def groups(self, runs: list[Config]) -> list[list[Config]]:
        """Runs computed together in one process (a batch of seeds and rates): the unit of work and of resume."""

    def train(self, runs: list[Config], checkpointer: Checkpointer) -> list[Outcome]:
        """Compute a group: one outcome per run, in order."""


class EveryRunAlone(abc.ABC):
    """What experiments have in common whose runs are large enough to fill a core: every run is a group."""

    @abc.abstractmethod
    def train_one(self, run: Config, checkpointer: Checkpointer) -> Outcome:
        """Train a run, resuming from the last checkpoint if there is one, and evaluate it."""

    def groups(self, runs: list[Config]) -> list[list[Config]]:
        """Every run alone."""
        return [[run] for run in runs]

    def train(self, runs: list[Config], checkpointer: Checkpointer) -> list[Outcome]:
        """Train one run."""
        [run] = runs
        return [self.train_one(run, checkpointer)]
