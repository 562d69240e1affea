"""The progress display: one line, updated in a terminal and printed every few seconds to other outputs."""

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
"""The number of runs before the remaining time is estimated; until then most time is compiling and loading."""


def duration(seconds: float) -> str:
    """Return a time in its one or two largest units.

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
    """A running group: its number of runs, and its steps at the last checkpoint.

    Of these, ``before`` steps were done when its worker started.
    """

    runs: int
    step: int = 0
    of: int = 0
    before: int = 0

    @property
    def done(self) -> float:
        """The steps done, in units of runs."""
        return self.runs * self.step / max(1, self.of)

    @property
    def resumed(self) -> float:
        """The part of ``done`` from before its worker started."""
        return self.runs * self.before / max(1, self.of)

    def __str__(self) -> str:
        return f"{self.step:,}/{self.of:,} steps" if self.of else "starting"


class Display:
    """The display of the progress that the engine reports.

    Args:
        console: The console: a terminal has a line that changes, other outputs a new line every few seconds.
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

    # -- events of the engine --

    def stage(self, name: str, total: int, done: int, later: int) -> None:
        """Begin a stage: its runs, those done before, and the number of runs expected in later stages."""
        self._stage, self._total, self._done, self._failed, self._later = name, total, done, 0, later
        self._running.clear()

    def started(self, trial: str, runs: list[Config]) -> None:
        """Add a group that starts, or starts again after its worker was lost."""
        self._began = self._began or time.monotonic()
        self._running[trial] = _Group(len(runs))

    def progressed(self, trial: str, step: int, of: int, before: int = 0) -> None:
        """Update the steps of a group; ``before`` of them were done when its worker started."""
        self._running[trial] = _Group(self._running.get(trial, _Group(1)).runs, step, of, before)
        self.tick()

    def finished(self, trial: str, records: int) -> None:
        """Remove a finished group, and count its new records."""
        group = self._running.pop(trial, _Group(records))
        self._worked += group.runs - group.resumed
        self._done += records
        self.tick(force=not self._running)

    def retried(self, trial: str, reason: str) -> None:
        """Remove a group whose worker was lost; another worker continues it."""
        lost = self._running.pop(trial, _Group(0))
        self._worked += lost.done - lost.resumed
        self.say(f"A group lost its worker and starts again from its checkpoint: {reason}")

    def failed(self, trial: str, reason: str) -> None:
        """Remove a group that failed and is not retried."""
        self._failed += self._running.pop(trial, _Group(1)).runs
        self.say(f"A group failed and is left out: {reason}")

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.console.print(text, style="yellow", highlight=False, markup=False)

    def tick(self, force: bool = False) -> None:
        """Print the line every few seconds, if the output is not a terminal."""
        now = time.monotonic()
        if self._live is None and (force or now - self._last_line > _SECONDS_BETWEEN_LINES):
            self._last_line = now
            self.console.print(self._line(), highlight=False, markup=False, soft_wrap=True)

    # -- the line --

    def _line(self) -> str:
        left, groups = self._seconds_left(), list(self._running.values())
        parts = [f"{self._done}/{self._total} done", f"{sum(group.runs for group in groups)} running"]
        parts[1] += f" ({', '.join(_shown(groups))})" if groups else ""
        parts += [f"{self._failed} failed"] if self._failed else []
        parts += [f"about {duration(left)} left"] if left is not None else []
        return f"{self._stage}: {', '.join(parts)}"

    def _seconds_left(self) -> float | None:
        """Estimate the remaining time from the time per run so far; None if too little is done."""
        under_way = sum(group.done for group in self._running.values())
        worked = self._worked + under_way - sum(group.resumed for group in self._running.values())
        if not self._began or worked < _RUNS_TO_JUDGE_BY:
            return None
        left = self._total - self._done - self._failed - under_way + self._later
        return (time.monotonic() - self._began) / worked * max(0.0, left)


def _shown(groups: list[_Group]) -> list[str]:
    """Return the progress of the first groups, and the number of other groups."""
    shown, others = list(map(str, groups[:_GROUPS_SHOWN])), len(groups) - _GROUPS_SHOWN
    return [*shown, f"and {others} other group{'s' * (others > 1)}"] if others > 0 else shown
