"""A stage that searches a space in place of a grid: Optuna's TPE with a budget of runs."""

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
    """A search of a space for the configs with the best metric, with one study for each base config.

    A later stage takes the best configs with :func:`top` and repeats them with more seeds. Every run of a search is a
    separate group. With several runs at once, the order in which they end affects the next configs. So a search that is
    repeated from the start may try other configs; its records contain them.

    Attributes:
        name: The name of the stage.
        bases: The fixed parts of configs, for example one per parameterization. Each has its own study and budget.
        space: The keys that are searched, as Optuna distributions.
        metric: The name of the metric, as in ``Outcome.metrics``.
        direction: Whether a lower or a higher value is better.
        budget: The number of runs per base.
        about: One line for ``plan``.
        at_once: The number of simultaneous runs of one base. More end sooner, but each uses fewer earlier results.
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
        """The budget times the number of bases."""
        return self.budget * len(self.bases)

    def params(self, config: Config, base: Config) -> Config | None:
        """Return the searched part of a config, or None if the config is not of this base and space."""
        params = {key: value for key, value in config.items() if key in self.space}
        if len(params) < len(self.space) or {**base, **params} != config:
            return None
        try:  # Optuna checks that the values are in the space, which may have changed since they were drawn
            optuna.trial.create_trial(params=params, distributions=dict(self.space), value=0.0)
        except ValueError:
            return None
        return params

    def records_of(self, base: Config, records: Iterable[Record]) -> list[Record]:
        """Return the records that this search wrote, or could have written, for a base."""
        return [record for record in records if self.params(record.config, base) is not None]


def top(frame: pd.DataFrame, search: Search, count: int) -> list[Config]:
    """Return the best ``count`` configs of every base, best first, from the records of the stages before.

    A later stage is then ``[{**config, "seed": seed} for config in top(frame, search, 3) for seed in range(10)]``.
    """
    metric, winners = f"metrics.{search.metric}", []
    for base in search.bases:
        mine = frame[[search.params(config, base) is not None for config in frame["config"]]]
        ranked = mine.dropna(subset=[metric]).sort_values([metric, "id"], ascending=[search.direction == "lower", True])
        winners += list(ranked["config"][:count])
    return winners


class Studies:
    """The Optuna studies of a search, rebuilt from the files on disk.

    A new study contains the finished records. It first proposes interrupted runs with a checkpoint, and runs whose
    records are damaged. Optuna's own state is not stored, so a search survives the loss of any process.
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
        """The number of runs still to be proposed."""
        return sum(study.remaining for study in self._studies)

    def ask(self) -> Config | None:
        """Return the next config to try; None if running configs must end first, or if all are proposed."""
        free = [study for study in self._studies if study.remaining > 0 and study.running < self.search.at_once]
        if not free:
            return None
        study = max(free, key=lambda study: study.remaining)
        for _ in range(_ATTEMPTS):
            trial = study.optuna.ask(dict(self.search.space))
            config: Config = {**study.base, **trial.params}
            name = run_id(config)
            if name not in self._values:
                self._values[name] = None  # proposed, and not again
                self._asked[name] = (study, trial)
                study.remaining, study.running = study.remaining - 1, study.running + 1
                return config
            _tell(study.optuna, trial, self._values[name])
        raise ValueError(
            f"Search '{self.search.name}' proposed {_ATTEMPTS} configs that were tried before: its space is too small "
            f"for a budget of {self.search.budget}. Use a grid stage, or a smaller budget."
        )

    def tell(self, config: Config, metrics: Mapping[str, float] | None) -> None:
        """Add the metrics of a run that has ended; None if it failed."""
        study, trial = self._asked.pop(run_id(config))
        study.running -= 1
        value = None if metrics is None else _value(self.search, metrics)
        self._values[run_id(config)] = value
        _tell(study.optuna, trial, value)


class _Study:
    """The study of one base, with its budget."""

    def __init__(self, search: Search, base: Config, finished: Sequence[Record], interrupted: Sequence[Config]) -> None:
        known = search.records_of(base, finished)
        # A new seed after every resume, because the same seed would propose the first configs again.
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
    """Return the metric, or for a run that diverged the worst possible value, so that the search avoids its config."""
    value = metrics[search.metric]
    return value if not math.isnan(value) else math.inf if search.direction == "lower" else -math.inf


def _tell(study: optuna.Study, trial: optuna.Trial, value: float | None) -> None:
    if value is None:
        study.tell(trial, state=TrialState.FAIL)
    else:
        study.tell(trial, value)
