"""Deliberate bugs and the tests that must notice them, from ``mutants.txt``. A new one joins by adding its lines there.

A line ``@ file: tests`` heads the mutants of a file; tests are files, or one test of a file, separated by spaces. Each
mutant has a line ``# name``, then the old text after ``-`` and the new one after ``+``, as in a diff.
"""

import pathlib
from typing import NamedTuple


class Mutant(NamedTuple):
    """``old`` must occur exactly once in ``file``; ``new`` takes its place."""

    name: str
    file: str
    tests: tuple[str, ...]
    old: str
    new: str


def parsed(text: str) -> tuple[Mutant, ...]:
    """The mutants that a text lists."""
    found: list[Mutant] = []
    file, tests = "", ()
    for block in filter(None, text.split("\n\n")):
        head, *lines = block.strip("\n").split("\n")
        file, _, named = head.removeprefix("@ ").partition(": ")
        tests = tuple(named.split())
        for line in lines:
            kind, rest = line[0], line[1:]
            if kind == "#":
                found.append(Mutant(rest.strip(), file, tests, "", ""))
            else:
                last = found.pop()
                part = {"-": "old", "+": "new"}[kind]
                before = getattr(last, part)
                found.append(last._replace(**{part: f"{before}\n{rest}" if before else rest}))
    return tuple(found)


MUTANTS = parsed((pathlib.Path(__file__).parent / "mutants.txt").read_text(encoding="utf-8"))
