"""The head and the layer under PyTorch's FSDP2, on two gloo ranks."""

from __future__ import annotations

import copies
from multiprocess import ranks


def test_trained_on_two_ranks_as_on_one(tmp_path):
    work = ranks.trained_by_fsdp_as_by_one_rank
    started = [copies.SERVER.Process(target=ranks.run, args=(rank, 2, tmp_path, work, 120)) for rank in range(2)]
    for process in started:
        process.start()
    for process in started:
        process.join(300)
        process.kill()  # if it still runs: then it has no exit code of its own
        process.join()
    told = "\n".join(path.read_text() for path in sorted(tmp_path.glob("error-*")))
    assert [process.exitcode for process in started] == [0, 0], told
