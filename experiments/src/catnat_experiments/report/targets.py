"""The paper's numbers, and the differences that it claims."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from catnat_experiments.engine.types import Direction

Row = TypeVar("Row", str, int, float)


class Target(NamedTuple):
    """One number of the paper.

    Attributes:
        mean: The mean over its runs.
        std: The number after ±, which the paper does not define; NaN if it has none.
        best: Whether it is bold: the best of its setting, or tied with the best by the paper's test.
    """

    mean: float
    std: float = math.nan
    best: bool = False


def read_targets(text: str, names: int) -> dict[tuple[str, ...], tuple[Target, ...]]:
    """Read a table from text: each line has some names, then numbers like ``97.5±0.5*``, where the star means bold.

    >>> read_targets("10 softmax 100.9±0.5 98.1±0.7*", names=2)[("10", "softmax")][1]
    Target(mean=98.1, std=0.7, best=True)
    """
    lines = [line.split() for line in text.strip().splitlines()]
    return {tuple(words[:names]): tuple(map(_target, words[names:])) for words in lines}


def _target(word: str) -> Target:
    mean, _, std = word.rstrip("*").partition("±")
    return Target(float(mean), float(std or "nan"), word.endswith("*"))


def claimed_rows(
    targets: Mapping[Row, Mapping[str, Target]], better: str, worse: str, direction: Direction
) -> tuple[Row, ...]:
    """Return the rows with a claimed difference: one column is ahead there, and the other is not tied for best.

    >>> read = {8: {"natural": Target(97.7, 0.2, best=True), "softmax": Target(97.8, 0.2, best=True)}}
    >>> claimed_rows(read, "natural", "softmax", "lower")
    ()
    """
    sign = 1 if direction == "higher" else -1
    return tuple(
        row
        for row, columns in targets.items()
        if {better, worse} <= set(columns)
        and sign * columns[better].mean > sign * columns[worse].mean
        and not columns[worse].best
    )
