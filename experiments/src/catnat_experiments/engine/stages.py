"""The status of a preset's stages, and the groups that are left, from the stages and the records alone."""

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
    """The status of a stage.

    It is not ``settled`` while a stage before it is incomplete. Its ``runs`` are then selected by the records so far
    and may change, or are None if the records are not enough.
    """

    stage: Stage | Search
    runs: list[Config] | None
    done: list[Record]
    missing: int
    settled: bool = True

    @property
    def complete(self) -> bool:
        """Whether it is settled and all of its records exist."""
        return self.settled and self.missing == 0


def survey(experiment: Experiment, preset: str, found: Sequence[Record]) -> list[StageStatus]:
    """Return the status of every stage, from the records alone.

    A record counts for every stage that lists its config, even if it is from another stage or preset.
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
    """Return the status, also after an incomplete stage: one damaged record must not hide all final runs."""
    try:
        runs = _distinct(stage.runs(before), stage.name)
    except Exception:
        if settled:
            raise
        return StageStatus(stage, None, [], stage.expected_runs, settled)  # it may need complete stages before it
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
            f"Stage '{stage}' lists a run twice, but every config must occur once: give each its own seed."
        )
    return runs


def unfinished_groups(experiment: Experiment, status: StageStatus) -> list[list[Config]]:
    """Return the groups that lack a record, each complete, because its results may depend on all its runs."""
    groups = experiment.groups(status.runs or [])
    if sorted(run_id(run) for group in groups for run in group) != sorted(run_id(run) for run in status.runs or []):
        raise ValueError(
            f"{experiment.name}.groups must put every run of stage '{status.stage.name}' into exactly one group, but "
            "runs are missing, doubled or changed."
        )
    done = {record.id for record in status.done}
    return [group for group in groups if any(run_id(run) not in done for run in group)]
