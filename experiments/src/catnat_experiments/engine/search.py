"""A stage that searches instead of trying a grid: Optuna's TPE over a space, within a budget of runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import optuna
import pandas as pd
from optuna.distributions import BaseDistribution
from optuna.trial import TrialState

from catnat_experiments.engine.records import Record, canonical, run_id
from catnat_experiments.engine.types import Config, Direction

_ATTEMPTS = 100


@dataclasses.dataclass(frozen=True)
class Search:
    """Search a space for the configs with the best metric, one study for each base config.

    A later stage takes the winners with :func:`top` and repeats them with more seeds. Every run of a search is a group
    of its own. With several runs at once the order in which they end decides what is tried next, so a search that is
    repeated from nothing may try other points; its records say which.

    Attributes:
        name: Of the stage.
        bases: What stays fixed, for example one config per parameterization. Each has a study and a budget of its own.
        space: The keys that are searched, as Optuna distributions.
        metric: The name of the metric to judge by, as in ``Outcome.metrics``.
        direction: Whether a lower or a higher value is better.
        budget: Runs per base.
        about: One line for ``plan``.
        at_once: Runs of one base at the same time. With more of them a search ends sooner and learns less from each.
    """

    name: str
    bases: Sequence[Config]
    space: Mapping[str, BaseDistribution]
    metric: str
    direction: Direction
    budget: int
    about: str
    at_once: int = 4

    @property
    def expected_runs(self) -> int:
        """Budget times bases."""
        return self.budget * len(self.bases)

    def params(self, config: Config, base: Config) -> Config | None:
        """The searched part of a config, or None if the config is not of this base and space."""
        params = {key: value for key, value in config.items() if key in self.space}
        if len(params) < len(self.space) or {**base, **params} != config:
            return None
        try:  # Optuna's own check that the values lie in the space: it may have been another one when they were drawn
            optuna.trial.create_trial(params=params, distributions=dict(self.space), value=0.0)
        except ValueError:
            return None
        return params

    def records_of(self, base: Config, records: Iterable[Record]) -> list[Record]:
        """The records that this search made, or might have made, from a base."""
        return [record for record in records if self.params(record.config, base) is not None]


def top(frame: pd.DataFrame, search: Search, count: int) -> list[Config]:
    """The best ``count`` configs of every base, best first, from the records of the stages before.

    A later stage is then ``[{**config, "seed": seed} for config in top(frame, search, 3) for seed in range(10)]``.
    """
    metric, winners = f"metrics.{search.metric}", []
    for base in search.bases:
        mine = frame[[search.params(config, base) is not None for config in frame["config"]]]
        ranked = mine.dropna(subset=[metric]).sort_values([metric, "id"], ascending=[search.direction == "lower", True])
        winners += list(ranked["config"][:count])
    return winners


class Studies:
    """The Optuna studies of a search, rebuilt from what is on disk.

    Nothing of Optuna's is stored: finished records are told to a fresh study, and runs that were interrupted with a
    checkpoint are asked first, so that they go on, and so are those whose records are damaged. So a search survives the
    loss of any process.
    """

    def __init__(self, search: Search, finished: Sequence[Record], interrupted: Sequence[Config]) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.search = search
        self._values: dict[str, float | None] = {
            record.id: _value(search, record.metrics) for record in finished if search.metric in record.metrics
        }
        self._studies = [_Study(search, base, finished, interrupted) for base in search.bases]
        self._asked: dict[str, tuple[_Study, optuna.Trial]] = {}

    @property
    def remaining(self) -> int:
        """Runs still to be asked for."""
        return sum(study.remaining for study in self._studies)

    def ask(self) -> Config | None:
        """The next config to try; None if the studies want to wait for running ones, or if all is asked for."""
        free = [study for study in self._studies if study.remaining > 0 and study.running < self.search.at_once]
        if not free:
            return None
        study = max(free, key=lambda study: study.remaining)
        for _ in range(_ATTEMPTS):
            trial = study.optuna.ask(dict(self.search.space))
            config: Config = {**study.base, **trial.params}
            name = run_id(config)
            if name not in self._values:
                self._values[name] = None  # asked for: not a second time
                self._asked[name] = (study, trial)
                study.remaining, study.running = study.remaining - 1, study.running + 1
                return config
            _tell(study.optuna, trial, self._values[name])
        raise ValueError(
            f"Search '{self.search.name}' proposed {_ATTEMPTS} configs that it knows already: its space is too small "
            f"for a budget of {self.search.budget}. Use a grid stage, or a smaller budget."
        )

    def tell(self, config: Config, metrics: Mapping[str, float] | None) -> None:
        """The metrics that a run ended with; None if it failed."""
        study, trial = self._asked.pop(run_id(config))
        study.running -= 1
        value = None if metrics is None else _value(self.search, metrics)
        self._values[run_id(config)] = value
        _tell(study.optuna, trial, value)


class _Study:
    """One base's study, with its budget."""

    def __init__(self, search: Search, base: Config, finished: Sequence[Record], interrupted: Sequence[Config]) -> None:
        known = search.records_of(base, finished)
        # A new seed after every resume: the same one would propose again what it proposed at the start.
        seed = int(run_id({"search": search.name, "base": canonical(base), "known": len(known)})[:8], 16)
        sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        self.optuna = optuna.create_study(
            sampler=sampler, direction="minimize" if search.direction == "lower" else "maximize"
        )
        self.base = base
        self.running = 0
        self.remaining = max(0, search.budget - len(known))
        for record in known:
            params, value = search.params(record.config, base) or {}, _value(search, record.metrics)
            trial = optuna.trial.create_trial(params=params, distributions=dict(search.space), value=value)
            self.optuna.add_trial(trial)
        for config in interrupted:
            if begun := search.params(config, base):
                self.optuna.enqueue_trial(begun)


def _value(search: Search, metrics: Mapping[str, float]) -> float:
    """The metric, or the worst possible value for a run that diverged: the search should keep away from there."""
    value = metrics[search.metric]
    return value if not math.isnan(value) else math.inf if search.direction == "lower" else -math.inf


def _tell(study: optuna.Study, trial: optuna.Trial, value: float | None) -> None:
    if value is None:
        study.tell(trial, state=TrialState.FAIL)
    else:
        study.tell(trial, value)
