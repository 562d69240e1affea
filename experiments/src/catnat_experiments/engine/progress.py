"""The progress display: a live panel in a terminal, plain lines elsewhere."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from catnat_experiments.engine.records import Record
from catnat_experiments.engine.types import Config, Direction

_SECONDS_BETWEEN_LINES = 5.0
_GROUPS_SHOWN = 4
_RUNS_TO_JUDGE_BY = 0.1
"""Before so much is done, compiling and loading are most of the time, and it says nothing about the rest."""


@dataclasses.dataclass(frozen=True)
class Best:
    """By which metric "best so far" is judged, for each value of one config key, and among which values of another."""

    metric: str
    direction: Direction
    row: str
    column: str
    columns: tuple[str, ...]

    def counts(self, record: Record) -> bool:
        """Whether a record takes part."""
        return self.metric in record.metrics and record.config.get(self.column) in self.columns

    def better(self, first: Record, second: Record) -> bool:
        """Whether the first record is better; one without the number never is."""
        mine, other = first.metrics[self.metric], second.metrics[self.metric]
        return other != other or (mine < other if self.direction == "lower" else mine > other)


def duration(seconds: float) -> str:
    """A time in the two largest units that matter.

    >>> duration(7.4), duration(75), duration(4000)
    ('7 s', '1 min 15 s', '1 h 6 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@dataclasses.dataclass(frozen=True)
class _Group:
    """A group that runs: how many runs it has, and how many of its steps are done, as of its last checkpoint.

    Those ``before`` are from a checkpoint that its worker found.
    """

    runs: int
    step: int = 0
    of: int = 0
    before: int = 0

    @property
    def done(self) -> float:
        """In runs."""
        return self.runs * self.step / max(1, self.of)

    @property
    def resumed(self) -> float:
        """What of it took this worker no time."""
        return self.runs * self.before / max(1, self.of)

    def __str__(self) -> str:
        return f"{self.step:,}/{self.of:,} steps" if self.of else "starting"


class Display:
    """Counts what the engine tells it, and shows it.

    Args:
        console: Where to; a live panel if it is a terminal, a line every few seconds if not.
        best: What "best so far" means; None shows none.
    """

    def __init__(self, console: Console, best: Best | None = None) -> None:
        self.console = console
        self._best = best
        self._bests: dict[object, Record] = {}  # the one that improved last is the last
        self._live: Live | None = None
        self._stage, self._total, self._done, self._failed, self._later = "", 0, 0, 0, 0
        self._running: dict[str, _Group] = {}  # by trial
        self._worked = 0.0  # runs computed by this command, over all stages
        self._began: float | None = None
        self._last_line = 0.0

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self._live = Live(get_renderable=self._panel, console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    # -- what the engine tells --

    def stage(self, name: str, total: int, done: Iterable[Record], later: int) -> None:
        """A stage begins: its runs, those done before, and the number of runs expected in the stages after it."""
        before = list(done)
        self._stage, self._total, self._done, self._failed, self._later = name, total, len(before), 0, later
        self._running.clear()
        self._bests.clear()
        self._note(before)

    def started(self, trial: str, runs: list[Config]) -> None:
        """A group starts, or starts again after its worker was lost."""
        self._began = self._began or time.monotonic()
        self._running[trial] = _Group(len(runs))

    def progressed(self, trial: str, step: int, of: int, before: int = 0) -> None:
        """A group has done so many of its steps, some of them before its worker started."""
        self._running[trial] = _Group(self._running.get(trial, _Group(1)).runs, step, of, before)
        self.tick()

    def finished(self, trial: str, records: list[Record]) -> None:
        """A group is done, and these new records are on disk."""
        group = self._running.pop(trial, _Group(len(records)))
        self._worked += group.runs - group.resumed
        self._done += len(records)
        self._note(records)
        self.tick(force=not self._running)

    def retried(self, trial: str, reason: str) -> None:
        """A group's worker was lost; another will go on."""
        lost = self._running.pop(trial, _Group(0))
        self._worked += lost.done - lost.resumed
        self.say(f"A group lost its worker and starts again from its checkpoint: {reason}")

    def failed(self, trial: str, reason: str) -> None:
        """A group failed for good."""
        self._failed += self._running.pop(trial, _Group(1)).runs
        self.say(f"A group failed and is left out: {reason}")

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, style="yellow", highlight=False, markup=False)

    def tick(self, force: bool = False) -> None:
        """Time passes: outside a terminal, print a line now and then."""
        now = time.monotonic()
        if self._live is None and (force or now - self._last_line > _SECONDS_BETWEEN_LINES):
            self._last_line = now
            self.console.print(self._line(), highlight=False, markup=False, soft_wrap=True)

    # -- what it shows --

    def _note(self, records: Iterable[Record]) -> None:
        for record in records:
            if self._best and self._best.counts(record):
                key = record.config.get(self._best.row)
                if key not in self._bests or self._best.better(record, self._bests[key]):
                    self._bests.pop(key, None)
                    self._bests[key] = record

    def _seconds_left(self) -> float | None:
        """Later stages are taken to cost as much per run as what was done so far; None until that is something."""
        under_way = sum(group.done for group in self._running.values())
        worked = self._worked + under_way - sum(group.resumed for group in self._running.values())
        if not self._began or worked < _RUNS_TO_JUDGE_BY:
            return None
        left = self._total - self._done - self._failed - under_way + self._later
        return (time.monotonic() - self._began) / worked * max(0.0, left)

    def _line(self) -> str:
        left = self._seconds_left()
        parts = [f"{self._done}/{self._total} done", f"{self._runs_running} running{self._steps()}"]
        parts += [f"{self._failed} failed"] if self._failed else []
        parts += [f"about {duration(left)} left"] if left is not None else []
        return f"{self._stage}: {', '.join(parts)}" + "".join(f"; best {text}" for text in self._best_texts()[-1:])

    def _best_texts(self) -> list[str]:
        if self._best is None:
            return []
        name, row, column = self._best.metric, self._best.row, self._best.column
        return [
            f"{name} {record.metrics[name]:.4g} ({row} {key}, {record.config.get(column)})"
            for key, record in self._bests.items()
        ]

    def _panel(self) -> RenderableType:
        left = self._seconds_left()
        counts = RichTable.grid(padding=(0, 2))
        counts.add_row(
            Text(self._stage, style="bold"),
            ProgressBar(total=max(1, self._total), completed=self._done, width=30),
            f"{self._done}/{self._total} done",
            f"{self._runs_running} running",
            Text(f"{self._failed} failed", style="red" if self._failed else ""),
            f"about {duration(left)} left" if left is not None else "",
        )
        return Group(
            counts, *self._bars(), *(Text(f"  best {text}", style="dim") for text in sorted(self._best_texts()))
        )

    @property
    def _runs_running(self) -> int:
        return sum(group.runs for group in self._running.values())

    def _shown(self) -> tuple[list[_Group], str]:
        """The groups to show, those that began first, and words for the others."""
        groups = list(self._running.values())
        others = len(groups) - _GROUPS_SHOWN
        return groups[:_GROUPS_SHOWN], f"and {others} other group{'s' * (others > 1)}" if others > 0 else ""

    def _steps(self) -> str:
        """How far the running groups are, for a line."""
        groups, others = self._shown()
        return f" ({', '.join([*map(str, groups), *([others] if others else [])])})" if groups else ""

    def _bars(self) -> list[RenderableType]:
        """How far the running groups are, for a panel: a bar each."""
        groups, others = self._shown()
        bars = RichTable.grid(padding=(0, 2))
        for group in groups:
            bar = ProgressBar(total=max(1, group.of), completed=group.step, width=30)
            bars.add_row(f"  {group.runs} run{'s' * (group.runs > 1)}", bar, str(group))
        return [bars, *([Text(f"  {others}")] if others else [])] if groups else []
