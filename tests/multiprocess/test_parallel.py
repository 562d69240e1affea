"""A head split over real gloo ranks: the numbers of one rank, two exchanges a step, checkpoints for any number."""

from __future__ import annotations

import signal

import pytest
import torch.multiprocessing as mp
from multiprocess import ranks


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The folder in which four ranks have written how every check went."""
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(ranks.run, (4, folder, ranks.all_checks), nprocs=4)
    return folder


@pytest.mark.parametrize("check", [check.__name__ for check in ranks.CHECKS])
def test_on_four_ranks(check, outcomes):
    for rank in range(4):
        assert (outcomes / check / f"outcome-{rank}").read_text() == "passed"


def test_a_killed_rank_ends_the_others_with_a_clear_error(tmp_path):
    """At once, and within the group's timeout of 20 s in any case; starting a rank takes some seconds."""
    spawning = mp.get_context("spawn")
    started = [spawning.Process(target=ranks.run, args=(rank, 2, tmp_path, ranks.one_dies, 20)) for rank in range(2)]
    for process in started:
        process.start()
    for process in started:
        process.join(60)
    assert [process.exitcode for process in started] == [1, -signal.SIGKILL]
    assert "one of them has ended" in (tmp_path / "error-0").read_text()
