"""A head on TorchRec's table over real gloo ranks: numbers of a whole head, faults, memory; see ``sharded``."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import catnat

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what libraries say of each other on import
    pytest.importorskip("torchrec")
    from multiprocess import sharded

    from catnat.integrations.torchrec import _BalancedNodes, _nodes_above, _Order

TESTS = Path(__file__).parents[1]


def launch(folder: Path, *scenarios: str) -> Path:
    command = [sys.executable, "-W", "ignore", "-m", "multiprocess.sharded", str(folder), *scenarios]
    paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, timeout=580, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def outcome(folder: Path, scenario: str) -> dict:
    found = json.loads((folder / f"{scenario}.json").read_text())
    assert "failed" not in found, found["failed"]
    return found


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The folder in which all scenarios that do not take long have written what they found."""
    return launch(tmp_path_factory.mktemp("sharded"), "two", "faults", "lazy")


@pytest.mark.parametrize("check", [check.__name__ for check in sharded.CHECKS])
def test_on_two_ranks(check, ran):
    assert not outcome(ran, "two")[check]


@pytest.mark.slow
def test_on_four_ranks(tmp_path):
    launch(tmp_path, "four")
    found = outcome(tmp_path, "four")
    assert found == dict.fromkeys(found, "")


def test_training_goes_on_after_a_rank_was_killed(ran):
    """Four ranks, of which one dies in step 8; two go on from the checkpoint of step 6, one from that of step 9.

    The end is that of a run that never failed: no step is lost beyond the checkpoint, and none is counted twice.
    """
    found = outcome(ran, "faults")
    assert found["killed"][:3] == [1, 1, 1]
    assert found["killed"][3] == -signal.SIGKILL
    assert found["kept"] == ["step-3", "step-6"]
    assert found["two"] == [0, 0]
    assert found["one"] == [0]
    assert found["never"] == [0] * 4
    assert found["from"] == [6, 9]
    assert found["difference"] < 1e-5
    assert found["moved"] > 1e-3  # a step that is missing would be seen


def test_a_killed_rank_ends_the_others_with_a_clear_error(ran):
    assert "one of them has ended" in outcome(ran, "faults")["error"]


def test_a_damaged_shard_is_refused(ran):
    assert "is damaged" in outcome(ran, "faults")["damaged"]


@pytest.mark.parametrize("name", ["power", "uneven"])
def test_memory_is_taken_by_rows_that_are_seen(name, ran):
    """2^28 rows of 16 numbers: nothing before the first step; then a page at most for each row and for its state."""
    found = outcome(ran, "lazy")[name]
    assert found["table"] > 16_000
    assert found["built"] < 64
    page = 4096 / 2**20
    assert found["trained"] < 128 + 2 * page * found["rows"]
    assert found["first loss"] == pytest.approx(28 * math.log(2), abs=1e-3)


# ---- arithmetic ----


@pytest.mark.parametrize("classes", [*range(2, 70), 1000, 1023, 1024, 1025])
def test_nodes_of_a_balanced_tree_are_arithmetic(classes):
    tree = catnat.balanced(classes)
    some = _BalancedNodes(tree, np.arange(tree.num_nodes))
    np.testing.assert_allclose(some.reach(), tree.reach(), rtol=1e-13)
    np.testing.assert_allclose(some.prior_branches(), tree.prior_branches(), rtol=1e-13)
    for levels in range(12):
        assert _nodes_above(tree, levels) == sum(level.stop - level.start for level in tree.levels[:levels])


@pytest.mark.parametrize("nodes", [0, 1, 63, 64, 65, 1000, 4096, 10_007 * 64])
def test_every_node_has_a_row_of_its_own(nodes):
    order = _Order.of(nodes)
    places = torch.arange(order.rows)
    rows = order.row(places)
    assert order.rows >= nodes
    assert torch.equal(rows.sort().values, places)
    assert torch.equal(order.place(rows), places)


def test_rows_of_a_billion_classes_do_not_overflow():
    order = _Order.of(1 << 36)
    places = (1 << 36) - 1 - torch.arange(1000)
    assert torch.equal(order.place(order.row(places)), places)
