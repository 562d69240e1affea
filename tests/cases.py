"""The rows of the shared tests: trees x activations. A new one joins every test by adding one row here."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import oracle
from hypothesis import strategies as st

import catnat

# ---- Trees ----


@dataclasses.dataclass(frozen=True)
class TreeCase:
    """A tree of the library beside the same tree as the oracle understands it."""

    name: str
    tree: catnat.Tree
    root: oracle.Root
    weights: tuple[float, ...]

    @property
    def num_classes(self) -> int:
        return len(self.weights)

    @property
    def num_nodes(self) -> int:
        return len(self.weights) - 1

    @functools.cached_property
    def _models(self) -> dict[ActivationCase, oracle.Model]:
        return {}

    def model(self, activation: ActivationCase) -> oracle.Model:
        if activation not in self._models:
            reference = oracle.Model(self.root, self.weights, activation.reference)
            self._models[activation] = reference
        return self._models[activation]


CLUSTERS: list[Any] = [[0, 3], [1, [2, 4, 6]], 5, [7, 8, 9, 10, 11]]
MERGES = [(8, 5), (9, 10), (11, 2), (12, 4), (3, 1), (0, 6)]  # K = 7, root first: rows may stand in any order


def zipf(num_classes: int) -> tuple[float, ...]:
    return tuple(1 / (k + 1) for k in range(num_classes))


def _uniform(name: str, tree: catnat.Tree, root: oracle.Root) -> TreeCase:
    return TreeCase(name, tree, root, (1.0,) * tree.num_classes)


def _balanced(num_classes: int) -> TreeCase:
    return _uniform(f"balanced-{num_classes}", catnat.balanced(num_classes), oracle.balanced(num_classes))


def _chain(num_classes: int) -> TreeCase:
    return _uniform(f"chain-{num_classes}", catnat.chain(num_classes), oracle.chain(num_classes))


def _huffman(num_classes: int) -> TreeCase:
    # Ties leave the shape open, so the oracle takes it from the library; tests/core checks that it is a Huffman tree.
    tree, weights = catnat.huffman(zipf(num_classes)), zipf(num_classes)
    return TreeCase(f"huffman-zipf-{num_classes}", tree, oracle.from_ids(tree.child_ids), weights)


def _caterpillar(num_classes: int) -> TreeCase:
    """As deep as a chain, but with classes and sides in no order."""
    rng = np.random.default_rng(0)
    order, sides = rng.permutation(num_classes).tolist(), rng.integers(2, size=num_classes)
    rows, top = [], order[0]
    for j, k in enumerate(order[1:]):
        rows.append((top, k) if sides[j] else (k, top))
        top = num_classes + j
    return _uniform(f"caterpillar-{num_classes}", catnat.from_children(rows), oracle.from_merges(rows))


def _uneven() -> TreeCase:
    weights = (1.0, 4.0, 0.5, 2.0, 1.0)
    return TreeCase("balanced-5-uneven", catnat.balanced(5).with_prior(weights), oracle.balanced(5), weights)


_TREES: dict[str, Callable[[], TreeCase]] = {
    **{f"balanced-{k}": functools.partial(_balanced, k) for k in (1, 2, 3, 4, 5, 8, 11, 18, 32, 64)},
    "chain-7": lambda: _chain(7),
    "huffman-zipf-50": lambda: _huffman(50),
    "clusters-12": lambda: _uniform("clusters-12", catnat.from_clusters(CLUSTERS), oracle.from_clusters(CLUSTERS)),
    "children-7": lambda: _uniform("children-7", catnat.from_children(MERGES), oracle.from_merges(MERGES)),
    "balanced-5-uneven": _uneven,
    # Larger than a small matrix product and deeper than a short walk: other code runs there.
    "balanced-100": lambda: _balanced(100),
    "balanced-128": lambda: _balanced(128),
    "chain-75": lambda: _chain(75),
    "huffman-zipf-90": lambda: _huffman(90),
    "caterpillar-75": lambda: _caterpillar(75),
}
TREE_NAMES = tuple(_TREES)


@functools.cache
def tree_case(name: str) -> TreeCase:
    return _TREES[name]()


# ---- Activations ----


@dataclasses.dataclass(frozen=True)
class ActivationCase:
    """An activation by its description (each backend builds its own from it) beside the oracle's."""

    name: str
    kind: str  # "sigmoid", "natural" or "cauchit", the user's own
    reference: oracle.Activation

    @property
    def natural(self) -> bool:
        return isinstance(self.reference, oracle.Natural)

    @property
    def width(self) -> float:
        assert isinstance(self.reference, oracle.Natural)
        return self.reference.width


def _natural(name: str, width: float = 2 * math.pi) -> ActivationCase:
    return ActivationCase(name, "natural", oracle.Natural(width))


ACTIVATIONS = {
    row.name: row
    for row in (
        ActivationCase("sigmoid", "sigmoid", oracle.Sigmoid()),
        _natural("natural"),
        _natural("natural-width-3", 3.0),
        _natural("natural-width-10", 10.0),
        ActivationCase("own-cauchit", "cauchit", oracle.Cauchit()),
    )
}
SIGMOID, NATURAL = (ACTIVATIONS[name] for name in ("sigmoid", "natural"))


# ---- options of a distribution: masks, temperature, unimix ----


@dataclasses.dataclass(frozen=True)
class OptionsCase:
    """What to do to the probabilities, beside a mask."""

    name: str
    temperature: float = 1.0
    unimix: float = 0.0

    @property
    def arguments(self) -> dict[str, Any]:
        """What a distribution takes beside its mask."""
        return {"temperature": self.temperature, "unimix": self.unimix}

    def reference(self, model: oracle.Model, valid: Any) -> oracle.Distribution:
        return oracle.Distribution(model, tuple(map(bool, valid)), "renormalize", self.temperature, self.unimix)


OPTIONS = {
    row.name: row
    for row in (
        OptionsCase("mask"),
        OptionsCase("unimix", unimix=0.3),
        OptionsCase("T1.7", temperature=1.7),
        OptionsCase("T0.4-unimix", temperature=0.4, unimix=0.05),
        OptionsCase("T3-unimix", 3.0, 0.1),
    )
}
MASK_ALONE = OPTIONS["mask"]


def masks(num_classes: int, rows: int, seed: int = 0) -> np.ndarray:
    """Boolean rows (rows, K): one valid class, all of them, then few, half and most, each with at least one."""
    rng = np.random.default_rng(seed)
    fractions = [(0.0, 1.0, 0.1, 0.5, 0.9)[row % 5] for row in range(rows)]
    found = rng.random((rows, num_classes)) < np.array(fractions)[:, None]
    found[np.arange(rows), rng.integers(num_classes, size=rows)] = True
    return found


# ---- Hypothesis: any full binary tree, any prior ----


@st.composite
def merges(draw: st.DrawFn, min_classes: int = 1, max_classes: int = 12) -> list[tuple[int, int]]:
    """The rows of a random full binary tree, as ``from_children`` takes them: merge two subtrees until one is left."""
    num_classes = draw(st.integers(min_classes, max_classes))
    pool = list(range(num_classes))
    rows = []
    while len(pool) > 1:
        no = pool.pop(draw(st.integers(0, len(pool) - 1)))
        yes = pool.pop(draw(st.integers(0, len(pool) - 1)))
        pool.append(num_classes + len(rows))
        rows.append((no, yes))
    return rows


def priors(num_classes: int) -> st.SearchStrategy[tuple[float, ...]]:
    return st.tuples(*[st.floats(0.05, 1.0)] * num_classes)


@st.composite
def tree_cases(draw: st.DrawFn, min_classes: int = 1, max_classes: int = 12) -> TreeCase:
    rows = draw(merges(min_classes, max_classes))
    weights = draw(priors(len(rows) + 1))
    tree = catnat.from_children(np.array(rows, dtype=np.int64).reshape(-1, 2)).with_prior(weights)
    return TreeCase("random", tree, oracle.from_merges(rows), weights)


def activation_cases() -> st.SearchStrategy[ActivationCase]:
    return st.sampled_from(list(ACTIVATIONS.values()))


def options_cases() -> st.SearchStrategy[OptionsCase]:
    return st.sampled_from(list(OPTIONS.values()))


def valid_classes(num_classes: int, rows: int = 3) -> st.SearchStrategy[np.ndarray]:
    """Masks (rows, K) that leave at least one class in every row."""
    row = st.lists(st.booleans(), min_size=num_classes, max_size=num_classes).filter(any)
    return st.lists(row, min_size=rows, max_size=rows).map(np.array)


@st.composite
def masked_trees(draw: st.DrawFn, min_classes: int = 1, max_classes: int = 12) -> tuple[TreeCase, np.ndarray]:
    """A tree with a prior, and masks of its classes."""
    case = draw(tree_cases(min_classes, max_classes))
    return case, draw(valid_classes(case.num_classes))
