"""Every preset of every experiment: the runs that it expects, each once, with records that were never computed."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from catnat_experiments.builtin import BUILT_IN
from catnat_experiments.engine import stages
from catnat_experiments.engine.extras import MissingExtraError
from catnat_experiments.engine.records import Record, run_id
from catnat_experiments.engine.search import Search
from catnat_experiments.engine.types import Config, Outcome

METRICS = (
    *("validation_es", "validation_nll", "validation_rollout", "return", "validation_log_loss"),
    *("validation_crps", "validation_reward", "validation_kl"),
)
"""By which some experiment selects."""


def opened(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"catnat_experiments.tasks.{name}.task")
    except MissingExtraError as error:
        pytest.skip(str(error))


def records_of(runs: list[Config], stage: str) -> Iterator[Record]:
    """Those whose rate is nearest to 0.01 are the best, whether lower or higher is better."""
    about: dict[str, Any] = {"experiment": "any", "stage": stage, "seconds": 1.0, "versions": {}, "commit": None}
    for run in runs:
        distance = abs(math.log(0.01 / (float(run.get("rate", 1)) or 1)))
        metrics = {name: -distance if name in ("return", "validation_reward") else distance for name in METRICS}
        yield Record.of(Outcome(metrics, {}), run, **about)


def tried(search: Search) -> list[Config]:
    """As many runs as a search has, from the lower end of its space upwards."""
    (knob, space), *_ = search.space.items()
    low, high = vars(space)["low"], vars(space)["high"]
    lowest = {name: vars(each)["low"] for name, each in search.space.items()}
    places = [low + (high - low) * trial / search.budget for trial in range(search.budget)]
    return [{**base, **lowest, knob: place} for base in search.bases for place in places]


@pytest.mark.parametrize("name", BUILT_IN)
def test_presets_are_those_that_are_listed_and_an_unknown_one_raises_with_them(name: str) -> None:
    task = opened(name)
    assert list(task.PRESETS) == list(BUILT_IN[name].hours)
    with pytest.raises(ValueError, match=f"`preset` is 'huge', but {name} has these: {', '.join(task.PRESETS)}"):
        task.EXPERIMENT.stages("huge")


@pytest.mark.parametrize(("name", "preset"), [(name, preset) for name in BUILT_IN for preset in BUILT_IN[name].hours])
def test_a_preset_has_the_runs_that_it_expects(name: str, preset: str) -> None:
    experiment, found, searched = opened(name).EXPERIMENT, dict[str, Record](), list[Config]()
    for place, stage in enumerate(experiment.stages(preset)):
        if isinstance(stage, Search):
            runs = tried(stage)
            assert all(stage.params(run, stage.bases[0]) for run in runs[: stage.budget])
        else:
            status = stages.survey(experiment, preset, list(found.values()))[place]
            assert stages.unfinished_groups(experiment, status) or not status.missing  # every run is in one group
            runs = status.runs or []
            if stage.name.startswith(("pairs", "extension")):  # neighbours of the best, of which some ran before
                assert stage.name.startswith("extension") or 0 < len(runs) <= stage.expected_runs
            else:
                assert len(runs) == stage.expected_runs
                assert not found.keys() & set(map(run_id, runs))
        if stage.name in ("final", "truth"):
            seeds = {(run["parameterization"], run["seed"]) for run in searched}
            assert not seeds & {(run["parameterization"], run["seed"]) for run in runs}
        else:
            searched += runs
            assert not any(run.get("test_images") or run.get("test_sequences") for run in runs)  # not looked at
        found |= {record.id: record for record in records_of(runs, stage.name)}
