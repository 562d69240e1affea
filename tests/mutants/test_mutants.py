"""Each mutant still fits the code: its old text occurs exactly once, and its tests exist."""

import pathlib

import pytest
from mutants.mutants import MUTANTS

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_fits(mutant):
    assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1
    assert mutant.old != mutant.new
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8") if name else (ROOT / file).exists()


def test_names_differ():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 100
