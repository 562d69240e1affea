"""The head and the layer on two gloo ranks: PyTorch's FSDP2, and an order that all ranks learn together."""

from __future__ import annotations

import copies
import pytest
from multiprocess import ranks


@pytest.mark.parametrize("work", [ranks.trained_by_fsdp_as_by_one_rank, ranks.ordered_alike])
def test_on_two_ranks(work, tmp_path):
    codes = ranks.start(copies.SERVER, 2, tmp_path, work)
    assert codes == [0, 0], ranks.errors(tmp_path)
