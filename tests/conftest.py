"""What every test shares: import paths, fixed seeds, one thread per worker, few rows of many."""

import collections
import itertools
import math
import os
import sys
import zlib
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two xdist workers on two cores: more threads only fight
os.environ.setdefault("MPLBACKEND", "Agg")
# In importlib mode pytest puts no test folder on the path; `import oracle` and `from conformance import ...` need it.
sys.path.insert(0, str(Path(__file__).parent))

import hypothesis
import pytest

hypothesis.settings.register_profile("catnat", derandomize=True, deadline=None, database=None, max_examples=40)
hypothesis.settings.load_profile("catnat")

# Of each test one row in so many runs, by its backend or its folder: compiling a row takes a hundred times as long as
# running it.
ONE_ROW_IN = {"torch_compiled": 800, "jax": 200, "only_jax": 40}


@pytest.fixture(autouse=True)
def _seeded():
    """What a test draws without a generator of its own is the same in every run, whatever ran before it."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


def pytest_addoption(parser):
    parser.addoption("--every-row", action="store_true", help="run every row of every test, hours of compilation")


def pytest_configure(config):
    # torch says this about itself, the first time anybody differentiates in forward mode.
    config.addinivalue_line("filterwarnings", "ignore:`torch.jit.script` is deprecated:DeprecationWarning")


@pytest.hookimpl(trylast=True)  # when those of other markers are out already
def pytest_collection_modifyitems(config, items):
    """Leave rows out, unless --every-row is given or ``-m`` asks for those that take long."""
    if config.getoption("every_row"):
        return
    asked = config.getoption("markexpr")
    tests = collections.defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0], _group(item)].append(item)
    left_out = set()
    for (_, group), rows in tests.items():
        # In the order of a checksum, so that a new row does not change which of the others run.
        rows.sort(key=lambda row: (_is_expensive(row), zlib.crc32(row.name.encode())))
        if "one_row" not in asked and rows[0].get_closest_marker("one_row"):
            left_out.update(rows[1:])
        elif group in ONE_ROW_IN:
            left_out.update(rows[_how_many(rows, ONE_ROW_IN[group], "expensive_compile" in asked) :])
        elif hasattr(rows[0], "callspec") and not rows[0].get_closest_marker("slow"):
            left_out.update(set(rows) - set(_pairwise(rows)))
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _how_many(rows, one_in, expensive_too):
    """Of a test one row at least, unless all are marked `expensive_compile` or Hypothesis makes many of each."""
    expensive = not expensive_too and all(map(_is_expensive, rows))
    few = expensive or hypothesis.is_hypothesis_test(getattr(rows[0], "obj", None))
    return (math.floor if few else math.ceil)(len(rows) / one_in)


def _pairwise(rows):
    """Few rows in which any two parameters take all pairs of values: most faults need no more than two to show."""
    axes = len(rows[0].callspec._idlist)  # one for every `parametrize`: rows that are listed one by one all stay
    pairs = {row: set(itertools.combinations(enumerate(row.callspec._idlist), min(2, axes))) for row in rows}
    missing, kept = set().union(*pairs.values()), []
    while missing:
        kept.append(max(rows, key=lambda row: len(pairs[row] & missing)))
        missing -= pairs[kept[-1]]
    return kept


def _is_expensive(item):
    return item.get_closest_marker("expensive_compile") is not None


def _group(item):
    """What ONE_ROW_IN knows a test by."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return params.get("backend") or params.get("framework") or item.path.parent.name
