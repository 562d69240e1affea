"""Where the work of a preset stands, and what is left of it: from the experiment's stages and the records alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pandas as pd

from catnat_experiments.engine import records
from catnat_experiments.engine.experiment import Experiment
from catnat_experiments.engine.records import Record, run_id
from catnat_experiments.engine.search import Search
from catnat_experiments.engine.types import Config, Stage


@dataclasses.dataclass(frozen=True)
class StageStatus:
    """A stage, and what of it is on disk.

    As long as a stage before it is not complete, it is not ``settled``: ``runs`` is then what the records so far would
    select, which may change, and None if they are not enough to select anything.
    """

    stage: Stage | Search
    runs: list[Config] | None
    done: list[Record]
    missing: int
    settled: bool = True

    @property
    def complete(self) -> bool:
        """Whether all of its records exist."""
        return self.settled and self.missing == 0


def survey(experiment: Experiment, preset: str, found: Sequence[Record]) -> list[StageStatus]:
    """Where every stage stands, from the records alone.

    A record counts for every stage that lists its config, also if another stage or another preset made it.
    """
    statuses: list[StageStatus] = []
    before: dict[str, Record] = {}
    settled = True
    stages: list[Stage | Search] = list(experiment.stages(preset))
    for stage in stages:
        if isinstance(stage, Search):
            status = _survey_search(stage, found)
        else:
            status = _survey_stage(stage, found, records.frame(before.values()), settled)
        statuses.append(status)
        before |= {record.id: record for record in status.done}
        settled = settled and status.complete
    return statuses


def _survey_stage(stage: Stage, found: Sequence[Record], before: pd.DataFrame, settled: bool) -> StageStatus:
    """One damaged record of a search must not hide all final runs: so an incomplete one is asked what it selects."""
    try:
        runs = _distinct(stage.runs(before), stage.name)
    except Exception:
        if settled:
            raise
        return StageStatus(stage, None, [], stage.expected_runs, settled)  # it may expect complete stages before it
    by_id = {record.id: record for record in found}
    done = [by_id[name] for name in map(run_id, runs) if name in by_id]
    expected = len(runs) if settled else max(len(runs), stage.expected_runs)
    return StageStatus(stage, runs, done, expected - len(done), settled)


def _survey_search(search: Search, found: Sequence[Record]) -> StageStatus:
    done = [search.records_of(base, found) for base in search.bases]
    missing = sum(max(0, search.budget - len(of_base)) for of_base in done)
    flat = [record for of_base in done for record in of_base]
    return StageStatus(search, [record.config for record in flat], flat, missing)


def _distinct(runs: list[Config], stage: str) -> list[Config]:
    if len({run_id(run) for run in runs}) < len(runs):
        raise ValueError(
            f"Stage '{stage}' lists a run twice, but every config must be there once: give each its own seed."
        )
    return runs


def unfinished_groups(experiment: Experiment, status: StageStatus) -> list[list[Config]]:
    """The groups that lack a record; each whole, because its numbers may depend on its composition."""
    groups = experiment.groups(status.runs or [])
    if sorted(run_id(run) for group in groups for run in group) != sorted(run_id(run) for run in status.runs or []):
        raise ValueError(
            f"{experiment.name}.groups must put every run of stage '{status.stage.name}' into exactly one group, but "
            "runs are lost, doubled or changed."
        )
    done = {record.id for record in status.done}
    return [group for group in groups if any(run_id(run) not in done for run in group)]
