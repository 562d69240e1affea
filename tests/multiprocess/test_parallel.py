"""A head split over real gloo ranks: the numbers of one rank, two exchanges a step, checkpoints for any number."""

from __future__ import annotations

import signal
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import copies
import pytest
from multiprocess import ranks


def start(size: int, folder: Path, work: Callable[[Path], None], timeout: float) -> list[BaseProcess]:
    """Ranks that ``work``, each a copy of one process that has imported torch."""
    started = [
        copies.SERVER.Process(target=ranks.run, args=(rank, size, folder, work, timeout)) for rank in range(size)
    ]
    for process in started:
        process.start()
    return started


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The folder in which four ranks have written how every check went."""
    folder = tmp_path_factory.mktemp("ranks")
    started = start(4, folder, ranks.all_checks, timeout=60)
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0] * 4
    return folder


@pytest.mark.parametrize("check", [check.__name__ for check in ranks.CHECKS])
def test_on_four_ranks(check, outcomes):
    for rank in range(4):
        assert (outcomes / check / f"outcome-{rank}").read_text() == "passed"


def test_a_killed_rank_ends_the_others_with_a_clear_error(tmp_path):
    """At once, and within the group's timeout of 20 s in any case, counted from the death and not from the start."""
    other, killed = started = start(2, tmp_path, ranks.one_dies, timeout=20)
    killed.join()
    other.join(60)
    other.kill()  # if it still runs: then it has no exit code of its own, which fails the test
    other.join()
    assert [process.exitcode for process in started] == [1, -signal.SIGKILL]
    assert "one of them has ended" in (tmp_path / "error-0").read_text()
