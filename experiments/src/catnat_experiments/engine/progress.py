"""The progress display: one line, which a terminal keeps up to date and any other output repeats now and then."""

from __future__ import annotations

import dataclasses
import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from catnat_experiments.engine.types import Config

_SECONDS_BETWEEN_LINES = 5.0
_GROUPS_SHOWN = 4
_RUNS_TO_JUDGE_BY = 0.1
"""Before so much is done, compiling and loading are most of the time, and it says nothing about the rest."""


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
        console: Where to; a line that changes if it is a terminal, a new one every few seconds if not.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None
        self._stage, self._total, self._done, self._failed, self._later = "", 0, 0, 0, 0
        self._running: dict[str, _Group] = {}  # by trial
        self._worked = 0.0  # runs computed by this command, over all stages
        self._began: float | None = None
        self._last_line = 0.0

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            shown = lambda: Text(self._line())  # noqa: E731
            self._live = Live(get_renderable=shown, console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    # -- what the engine tells --

    def stage(self, name: str, total: int, done: int, later: int) -> None:
        """A stage begins: its runs, those done before, and the number of runs expected in the stages after it."""
        self._stage, self._total, self._done, self._failed, self._later = name, total, done, 0, later
        self._running.clear()

    def started(self, trial: str, runs: list[Config]) -> None:
        """A group starts, or starts again after its worker was lost."""
        self._began = self._began or time.monotonic()
        self._running[trial] = _Group(len(runs))

    def progressed(self, trial: str, step: int, of: int, before: int = 0) -> None:
        """A group has done so many of its steps, some of them before its worker started."""
        self._running[trial] = _Group(self._running.get(trial, _Group(1)).runs, step, of, before)
        self.tick()

    def finished(self, trial: str, records: int) -> None:
        """A group is done, and so many new records are on disk."""
        group = self._running.pop(trial, _Group(records))
        self._worked += group.runs - group.resumed
        self._done += records
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

    def _line(self) -> str:
        left, groups = self._seconds_left(), list(self._running.values())
        parts = [f"{self._done}/{self._total} done", f"{sum(group.runs for group in groups)} running"]
        parts[1] += f" ({', '.join(_shown(groups))})" if groups else ""
        parts += [f"{self._failed} failed"] if self._failed else []
        parts += [f"about {duration(left)} left"] if left is not None else []
        return f"{self._stage}: {', '.join(parts)}"

    def _seconds_left(self) -> float | None:
        """Later stages are taken to cost as much per run as what was done so far; None until that is something."""
        under_way = sum(group.done for group in self._running.values())
        worked = self._worked + under_way - sum(group.resumed for group in self._running.values())
        if not self._began or worked < _RUNS_TO_JUDGE_BY:
            return None
        left = self._total - self._done - self._failed - under_way + self._later
        return (time.monotonic() - self._began) / worked * max(0.0, left)


def _shown(groups: list[_Group]) -> list[str]:
    """How far groups are: those that began first, and how many others there are."""
    shown, others = list(map(str, groups[:_GROUPS_SHOWN])), len(groups) - _GROUPS_SHOWN
    return [*shown, f"and {others} other group{'s' * (others > 1)}"] if others > 0 else shown
