"""The head and the layer on two gloo ranks: PyTorch's FSDP2, and an order that all ranks learn together."""

from __future__ import annotations

import copies
import pytest
from multiprocess import ranks


@pytest.mark.parametrize("work", [ranks.trained_by_fsdp_as_by_one_rank, ranks.ordered_alike])
def test_on_two_ranks(work, tmp_path):
    started = [copies.SERVER.Process(target=ranks.run, args=(rank, 2, tmp_path, work, 120)) for rank in range(2)]
    for process in started:
        process.start()
    for process in started:
        process.join(300)
        process.kill()  # if it still runs: then it has no exit code of its own
        process.join()
    told = "\n".join(path.read_text() for path in sorted(tmp_path.glob("error-*")))
    assert [process.exitcode for process in started] == [0, 0], told
