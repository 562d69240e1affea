"""Which rows of the tests the gate runs, and how the rest is divided among the parts of the nightly job.

A row is a test with one set of parameters. Compiling it takes a hundred times as long as running it, so of the kinds in
``COMPILED`` the gate runs the rows that ``gate.txt`` names, and the nightly job runs all.
"""

import argparse
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import hypothesis

KINDS = ("jax", "torch_compiled", "eager")
COMPILED = ("jax", "torch_compiled")
FILE = Path(__file__).with_name("gate.txt")
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Row:
    """What is read from one test that pytest has collected."""

    name: str
    """Its id, relative to the folder of the tests."""
    kind: str
    group: str
    """The tree and the activation, where it has any: rows of one group share compiled programs."""
    named: bool
    """Whether the gate runs it only if ``gate.txt`` names it."""
    nightly: bool
    """Whether its test may have no row in the gate at all."""

    @property
    def test(self) -> str:
        return self.name.partition("[")[0]

    @classmethod
    def from_item(cls, item: Any) -> "Row":
        params = item.callspec.params if hasattr(item, "callspec") else {}
        file = item.path.relative_to(Path(__file__).parent).as_posix()
        name = f"{file}::{item.nodeid.partition('::')[2]}"
        kind = {"conformance": backend_of(item), "only_jax": "jax"}.get(item.path.parent.name)
        slow = item.get_closest_marker("slow") is not None  # another stage runs all of these
        kind = kind if kind in COMPILED and not slow else "eager"
        named = not slow and (kind in COMPILED or item.get_closest_marker("one_row") is not None)
        return cls(name, kind, group_of(params) or name.partition("[")[0], named, is_nightly(item))


def backend_of(item: Any) -> str | None:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return params.get("backend") or params.get("framework")


def is_nightly(item: Any) -> bool:
    """Marked ``expensive_compile``, or many examples of Hypothesis, each with a tree of its own."""
    return item.get_closest_marker("expensive_compile") is not None or hypothesis.is_hypothesis_test(
        getattr(item, "obj", None)
    )


def group_of(params: Mapping[str, Any]) -> str:
    tree, activation = params.get("tree", params.get("name")), params.get("activation")
    return " ".join(str(getattr(part, "name", part)) for part in (tree, activation) if part is not None)


def named() -> list[str]:
    """The rows that ``gate.txt`` names."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def expected() -> str:
    """The counts that ``gate.txt`` states, its first line."""
    return FILE.read_text(encoding="utf-8").partition("\n")[0]


def counts(rows: Iterable[Row]) -> str:
    """How many rows of every compiled kind the gate runs, of all, as ``gate.txt`` states it."""
    rows, in_gate = list(rows), set(named())
    found = {kind: [row for row in rows if row.kind == kind] for kind in COMPILED}
    parts = [f"{sum(row.name in in_gate for row in those)} of {len(those)} {kind}" for kind, those in found.items()]
    return f"# rows in the gate: {', '.join(parts)}"


def shard(text: str) -> tuple[int, int]:
    """The argument of --shard: 2/5 is the second of five parts."""
    number, _, of = text.partition("/")
    if not (number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
        raise argparse.ArgumentTypeError(f"{text!r} is no part of a whole: the second of five parts is 2/5")
    return int(number), int(of)


def part(items: Sequence[T], group: Callable[[T], str], which: tuple[int, int]) -> list[T]:
    """One of several parts, by whole groups; the parts are disjoint and together they are everything."""
    number, of = which
    mine = set(sorted({group(item) for item in items})[number - 1 :: of])
    return sorted((item for item in items if group(item) in mine), key=group)


def pairwise(rows: Sequence[Any]) -> list[Any]:
    """Few rows in which any two parameters take all pairs of values: most faults need no more than two to show."""
    axes = len(rows[0].callspec._idlist)  # one for every `parametrize`: rows that are listed one by one all stay
    pairs = {row: set(itertools.combinations(enumerate(row.callspec._idlist), min(2, axes))) for row in rows}
    missing, kept = set().union(*pairs.values()), []
    while missing:
        kept.append(max(rows, key=lambda row: len(pairs[row] & missing)))
        missing -= pairs[kept[-1]]
    return kept
