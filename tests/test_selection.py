"""What the gate leaves out is named, counted and run by the nightly job: no row of a test is lost between the two."""

import argparse
import collections

import pytest
import selection


def test_every_name_in_the_gate_is_a_row(collected):
    found = {row.name for row in collected}
    files = {row.partition("::")[0] for row in found}
    names = [name for name in selection.named() if name.partition("::")[0] in files]
    assert len(names) == len(set(names)), "gate.txt names a row twice"
    assert set(names) <= found, "gate.txt names rows that do not exist"


def test_every_test_has_a_row_in_the_gate_or_says_that_it_has_none(collected):
    named, tests = set(selection.named()), collections.defaultdict(list)
    for row in collected:
        if row.named:
            tests[row.test, row.kind].append(row)
    lost = [
        f"{test} ({kind})"
        for (test, kind), those in tests.items()
        if kind != "torch_compiled"
        and not all(row.nightly for row in those)
        and not named & {row.name for row in those}
    ]
    assert not lost, f"add a row of each to tests/gate.txt, or mark it expensive_compile: {lost}"


def test_every_check_meets_jax_in_the_gate(collected):
    """A property of the shared suite that is never compiled would be tested in PyTorch alone."""
    checks_of = {
        row.name: row.name.rpartition("-")[2].rstrip("]") for row in collected if "::test_check[jax-" in row.name
    }
    assert set(checks_of.values()) <= {checks_of.get(name) for name in selection.named()}


def test_the_counts_are_those_that_are_stated(collected, pytestconfig):
    if pytestconfig.args != [str(pytestconfig.rootpath / "tests")] and pytestconfig.args != ["tests"]:
        pytest.skip("counts are those of the whole suite, and only part of it was collected")
    counted = selection.counts(collected)
    assert selection.expected() == counted, f"rows came or went; the first line of tests/gate.txt should be\n{counted}"


def test_parts_of_the_nightly_job_are_disjoint_and_everything(collected):
    for of in (1, 2, 3, 7):
        parts = [selection.part(collected, lambda row: row.group, (number, of)) for number in range(1, of + 1)]
        assert sorted(row.name for part in parts for row in part) == sorted(row.name for row in collected)
        groups = [{row.group for row in part} for part in parts]
        assert sum(map(len, groups)) == len(set().union(*groups)), "a group is in two parts"


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "1/0", "a/b", "-1/3"])
def test_a_part_that_does_not_exist_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="second of five parts is 2/5"):
        selection.shard(text)
