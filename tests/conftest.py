"""What every test shares: import paths, fixed seeds, one thread per worker, few rows of many."""

import collections
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two xdist workers on two cores: more threads only fight
os.environ.setdefault("MPLBACKEND", "Agg")
# In importlib mode pytest puts no test folder on the path; `import oracle` and `from conformance import ...` need it.
sys.path.insert(0, str(Path(__file__).parent))

import hypothesis
import pytest
import selection

hypothesis.settings.register_profile("catnat", derandomize=True, deadline=None, database=None, max_examples=40)
hypothesis.settings.load_profile("catnat")

COLLECTED = pytest.StashKey[list[selection.Row]]()
GROUP = pytest.StashKey[str]()
"""That of the row before, in a run of every row."""
COUNTS = pytest.StashKey[dict[str, tuple[int, int]]]()
"""Of every kind, how many rows run and how many were collected."""


@pytest.fixture(autouse=True)
def _seeded():
    """What a test draws without a generator of its own is the same in every run, whatever ran before it."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def collected(pytestconfig):
    """Every row of the files that pytest was given, before any was left out."""
    return pytestconfig.stash[COLLECTED]


def pytest_addoption(parser):
    kinds = [*selection.KINDS, "all"]
    parser.addoption("--every-row", choices=kinds, help="run every row of one kind and nothing else, or of all kinds")
    parser.addoption("--shard", type=selection.shard, default=(1, 1), help="of --every-row: 2/5 is the second of five")


def pytest_configure(config):
    # torch says this about itself, the first time anybody differentiates in forward mode.
    config.addinivalue_line("filterwarnings", "ignore:`torch.jit.script` is deprecated:DeprecationWarning")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave rows out, after ``-k``, ``-m`` and ``--deselect`` have."""
    row_of = {item: selection.Row.from_item(item) for item in items}
    config.stash[COLLECTED] = list(row_of.values())
    kind = config.getoption("every_row")
    if kind:  # one worker for all rows of a group, which share what it has compiled
        for item, row in row_of.items():
            item.add_marker(pytest.mark.xdist_group(row.group))
    yield
    if kind:
        wanted = [item for item in items if kind in ("all", row_of[item].kind)]
        kept = selection.part(wanted, lambda item: row_of[item].group, config.getoption("shard"))
    else:
        kept = in_gate(items, row_of, config.getoption("markexpr"))
    config.hook.pytest_deselected(items=list(set(items) - set(kept)))
    items[:] = kept
    config.stash[COUNTS] = {
        kind: tuple(sum(row.kind == kind for row in some) for some in (map(row_of.get, kept), row_of.values()))
        for kind in selection.KINDS
    }


def in_gate(items, row_of, asked):
    """The rows that ``gate.txt`` names, and of the other tests pairs of values. ``-m one_row`` needs no names."""
    named, left_out = set(selection.named()), set()
    tests = collections.defaultdict(list)
    for item in items:
        if row_of[item].kind in selection.COMPILED or (row_of[item].named and "one_row" not in asked):
            left_out.update([item] if row_of[item].name not in named else [])
        elif hasattr(item, "callspec") and not item.get_closest_marker("slow"):
            tests[row_of[item].test, selection.backend_of(item)].append(item)
    for these in tests.values():
        left_out.update(set(these) - set(selection.pairwise(these)))
    return [item for item in items if item not in left_out]


def pytest_runtest_setup(item):
    """Compiled programs of the group before would fill the memory: a group has some 100 MB of them."""
    if item.config.getoption("every_row") and "jax" in sys.modules:
        (group,) = item.get_closest_marker("xdist_group").args
        if item.config.stash.get(GROUP, group) != group:
            sys.modules["jax"].clear_caches()
        item.config.stash[GROUP] = group


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["rows"] = session.config.stash.get(COUNTS, {})


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    node.config.stash[COUNTS] = getattr(node, "workeroutput", {}).get("rows", {})


def pytest_terminal_summary(terminalreporter, config):
    for kind, (run, collected) in config.stash.get(COUNTS, {}).items():
        terminalreporter.write_line(f"{kind}: {run} of {collected} rows, the others are for `--every-row {kind}`")
