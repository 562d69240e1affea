"""What the tests of the tasks share: a checkpointer in memory, runs broken off with it, and what reports take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import pytest

from catnat_experiments.engine import loop
from catnat_experiments.engine.types import Config, Outcome
from catnat_experiments.report.tables import Table

Found = TypeVar("Found")


class Memory:
    """A checkpointer in memory. It can break off a run right after a checkpoint."""

    def __init__(self, state: Any = None, break_at: int | None = None) -> None:
        self.state, self.break_at = state, break_at
        self.seen: list[tuple[int, int, dict[str, float]]] = []

    def load(self) -> Any:
        return self.state

    def save(self, state: Any, step: int, of: int) -> None:
        assert 0 < step <= of
        self.state = state
        if step == self.break_at:
            raise KeyboardInterrupt

    def scalars(self, run: int, step: int, values: Mapping[str, float]) -> None:
        self.seen.append((run, step, dict(values)))


def assert_goes_on(train: Callable[[Memory], Found], break_at: int, monkeypatch: pytest.MonkeyPatch) -> Found:
    """Broken off after a step, training goes on to the same outcome by the same points of history, to the last bit."""
    whole = Memory()
    wanted = train(whole)
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    first = Memory(break_at=break_at)
    with pytest.raises(KeyboardInterrupt):
        train(first)
    second = Memory(first.state)
    assert train(second) == wanted
    assert first.seen + second.seen == whole.seen
    return wanted


def final_row(run: Config, outcome: Outcome) -> dict[str, Any]:
    """A final run in the columns that figures are drawn from."""
    row = {f"config.{key}": value for key, value in run.items()} | {"stage": "final"}
    row |= {f"metrics.{key}": value for key, value in outcome.metrics.items()}
    return row | {f"history.{key}": values for key, values in outcome.history.items()}


def assert_tables_fit(tables: Iterable[Table], run: Config, outcome: Outcome) -> None:
    """Every table is of a metric, of keys and of curves that a run has."""
    for table in tables:
        assert table.metric in outcome.metrics
        assert {table.row, table.column, *table.chosen, *table.where} <= set(run)
        assert all({curve.name, curve.x} <= set(outcome.history) for curve in table.curves)
        assert {claim.worse for claim in table.claims} <= set(table.columns)
        assert table.against in (None, *table.columns)
