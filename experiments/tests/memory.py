"""What stands for the disk: a keeper in memory, and a run as a row of the frame of records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from catnat_experiments.experiment import Config, Outcome


class Memory:
    """A keeper in memory. It can break off a run right after a checkpoint."""

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


def final_row(run: Config, outcome: Outcome) -> dict[str, Any]:
    """A final run in the columns that figures are drawn from."""
    row = {f"config.{key}": value for key, value in run.items()} | {"stage": "final"}
    return row | {f"history.{key}": values for key, values in outcome.history.items()}
