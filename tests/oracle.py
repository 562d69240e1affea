"""The paper's equations as slow, obvious loops: the other algorithm that every backend is compared with.

Nothing here is shared with the library and nothing is clever: a tree is a nested structure, a class is found by
searching for it, a probability is a product along a path, a derivative is a complex step, the Fisher matrix is the
expectation in its definition. The same code runs in NumPy (float64, or complex128 for derivatives) and, with
``m=mpmath``, in as many digits as ``mpmath.mp.dps`` says.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

STEP = 1e-30  # a complex step has no cancellation, so it may be as small as we like


# ---- Trees: a leaf is its class (an int), an inner node is a Node ----


@dataclasses.dataclass(frozen=True)
class Node:
    """One yes/no decision; ``index`` is the position of its score."""

    index: int
    no: Node | int
    yes: Node | int


Root = Node | int
Nested = Any  # a class, or a pair (no, yes) of Nested


def number(nested: Nested) -> Root:
    """Number the inner nodes of nested pairs breadth first."""
    index: dict[int, int] = {}
    level = [nested]
    while level:
        inner = [pair for pair in level if isinstance(pair, tuple)]
        for pair in inner:
            index[id(pair)] = len(index)
        level = [child for pair in inner for child in pair]

    def build(pair: Nested) -> Root:
        return Node(index[id(pair)], build(pair[0]), build(pair[1])) if isinstance(pair, tuple) else int(pair)

    return build(nested)


def _heap(members: Sequence[Nested]) -> Nested:
    """A heap: inner nodes 1..n-1, leaves n..2n-1, children 2i (no) and 2i+1 (yes), members left to right."""
    remaining = iter(members)

    def build(i: int) -> Nested:
        return (build(2 * i), build(2 * i + 1)) if i < len(members) else next(remaining)

    return build(1)


def balanced(num_classes: int) -> Root:
    return number(_heap(range(num_classes)))


def chain(num_classes: int) -> Root:
    nested: Nested = num_classes - 1  # the last class is all-no
    for k in reversed(range(num_classes - 1)):
        nested = (nested, k)
    return number(nested)


def from_clusters(clusters: Any) -> Root:
    def join(group: Any) -> Nested:
        return _heap([join(member) for member in group]) if isinstance(group, list) else group

    return number(join(clusters))


def from_merges(rows: Sequence[tuple[int, int]]) -> Root:
    """The (no, yes) rows of scipy's linkage: 0..K-1 are classes, K+j is row j; the root is the row nobody points to."""
    num_classes = len(rows) + 1
    pointed_to = {child for row in rows for child in row}
    (root,) = (set(range(2 * num_classes - 1)) - pointed_to) if rows else {0}

    def build(i: int) -> Nested:
        return i if i < num_classes else (build(rows[i - num_classes][0]), build(rows[i - num_classes][1]))

    return number(build(root))


def from_ids(children: Any) -> Root:
    """The library's own numbering of ``Tree.children``: below K-1 an inner node, K-1+k the leaf of class k."""
    inner = len(children)

    def build(i: int) -> Root:
        return Node(i, build(int(children[i][0])), build(int(children[i][1]))) if i < inner else i - inner

    return build(0)


def to_ids(root: Root) -> np.ndarray:
    nodes = inner_nodes(root)

    def name(child: Root) -> int:
        return child.index if isinstance(child, Node) else len(nodes) + child

    return np.array([[name(node.no), name(node.yes)] for node in nodes], dtype=np.int64).reshape(-1, 2)


def inner_nodes(root: Root) -> list[Node]:
    """Every inner node, in the order of the scores."""

    def visit(node: Root) -> Iterator[Node]:
        if isinstance(node, Node):
            yield node
            yield from visit(node.no)
            yield from visit(node.yes)

    return sorted(visit(root), key=lambda node: node.index)


def leaves(node: Root) -> list[int]:
    return leaves(node.no) + leaves(node.yes) if isinstance(node, Node) else [node]


def path(root: Root, k: int) -> list[tuple[int, int]]:
    """The (node index, branch) pairs from the root to class ``k``, found by looking which side holds it."""
    steps = []
    while isinstance(root, Node):
        bit = int(k in leaves(root.yes))
        steps.append((root.index, bit))
        root = root.yes if bit else root.no
    return steps


def ancestors(root: Root) -> dict[int, set[int]]:
    """The strict ancestors of every inner node."""
    above: dict[int, set[int]] = {}

    def visit(node: Root, seen: set[int]) -> None:
        if isinstance(node, Node):
            above[node.index] = seen
            visit(node.no, seen | {node.index})
            visit(node.yes, seen | {node.index})

    visit(root, set())
    return above


def huffman_merges(weights: Sequence[float]) -> list[tuple[int, int]]:
    """The rows (no, yes) of Huffman's algorithm with a heap; of equal ones the smaller id comes first."""
    heap = [(weight / max(weights), k) for k, weight in enumerate(weights)]
    heapq.heapify(heap)
    rows: list[tuple[int, int]] = []
    while len(heap) > 1:
        (light, no), (heavy, yes) = heapq.heappop(heap), heapq.heappop(heap)
        heapq.heappush(heap, (light + heavy, len(weights) + len(rows)))
        rows.append((no, yes))
    return rows


def huffman_cost(weights: Sequence[float]) -> float:
    """The least possible expected depth: Huffman's algorithm adds up the weights it merges."""
    heap = list(weights)
    heapq.heapify(heap)
    cost = 0.0
    while len(heap) > 1:
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        cost += merged
        heapq.heappush(heap, merged)
    return cost / math.fsum(weights)


# ---- Activations: a(x) and its inverse ----


@dataclasses.dataclass(frozen=True)
class Sigmoid:
    def yes(self, x: Any, m: Any = np) -> Any:
        return 1 / (1 + m.exp(-x))

    def score(self, yes: Any, m: Any = np) -> Any:
        return m.log(yes / (1 - yes))


@dataclasses.dataclass(frozen=True)
class Natural:
    width: float = 2 * math.pi

    def _width(self, m: Any) -> Any:
        # The default means 2 pi itself, not the float64 next to it: fifty digits can tell them apart.
        return 2 * m.pi if self.width == 2 * math.pi else self.width

    def yes(self, x: Any, m: Any = np) -> Any:
        angle = m.pi * x / self._width(m)
        if abs(angle.real) >= m.pi / 2:
            return (1 if angle.real > 0 else 0) + 0 * x
        return (1 + m.sin(angle)) / 2

    def score(self, yes: Any, m: Any = np) -> Any:
        asin = np.arcsin if m is np else m.asin
        return self._width(m) / m.pi * asin(2 * yes - 1)


@dataclasses.dataclass(frozen=True)
class Cauchit:
    """A user's own activation: the cumulative distribution function of the Cauchy distribution."""

    def yes(self, x: Any, m: Any = np) -> Any:
        atan = np.arctan if m is np else m.atan
        return (m.pi / 2 + atan(x)) / m.pi

    def score(self, yes: Any, m: Any = np) -> Any:
        return m.tan(m.pi * yes - m.pi / 2)


Activation = Sigmoid | Natural | Cauchit


# ---- The distribution ----


@dataclasses.dataclass(frozen=True)
class Model:
    """catnat for one row of scores. ``weights`` may be any multiple of the prior."""

    root: Root
    weights: tuple[Any, ...]
    activation: Activation
    m: Any = np

    @property
    def num_classes(self) -> int:
        return len(self.weights)

    @functools.cached_property
    def nodes(self) -> list[Node]:
        return inner_nodes(self.root)

    @functools.cached_property
    def paths(self) -> list[list[tuple[int, int]]]:
        return [path(self.root, k) for k in range(self.num_classes)]

    def _weight(self, node: Root) -> Any:
        return sum(self.weights[k] for k in leaves(node))

    @functools.cached_property
    def fractions(self) -> list[Any]:
        """f_i: the prior mass on the yes side over the prior mass below the node."""
        return [self._weight(node.yes) / self._weight(node) for node in self.nodes]

    @functools.cached_property
    def offsets(self) -> list[Any]:
        """What centring adds to a score: a(offset_i) = f_i."""
        return [self.activation.score(f, self.m) for f in self.fractions]

    def yes(self, scores: Any) -> list[Any]:
        """a_i: the probability of yes at every node."""
        return [self.activation.yes(s + offset, self.m) for s, offset in zip(scores, self.offsets, strict=True)]

    def probs(self, scores: Any) -> np.ndarray:
        """p_k: the product of the branch probabilities on the path to class k."""
        yes = self.yes(scores)
        return np.array([math.prod(yes[i] if bit else 1 - yes[i] for i, bit in steps) for steps in self.paths])

    def log_probs(self, scores: Any) -> np.ndarray:
        yes = self.yes(scores)
        log = self.m.log
        return np.array([sum(log(yes[i] if bit else 1 - yes[i]) for i, bit in steps) + 0.0 for steps in self.paths])

    def reach(self, scores: Any) -> np.ndarray:
        """P(i): the sum of the classes below each node."""
        p = self.probs(scores)
        return np.array([sum(p[k] for k in leaves(node)) for node in self.nodes])

    def entropy(self, scores: Any) -> Any:
        return -sum(p * self.m.log(p) for p in self.probs(scores) if p != 0)

    def kl(self, p_scores: Any, q_scores: Any) -> Any:
        pairs = zip(self.probs(p_scores), self.probs(q_scores), strict=True)
        return sum((p * self.m.log(p / q) for p, q in pairs if p != 0), 0.0)

    def fisher(self, scores: Any) -> np.ndarray:
        return fisher(self.log_probs, scores)

    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """The scores at which a natural node is certainly no and certainly yes."""
        ends = np.array([[self.activation.score(0.0)], [self.activation.score(1.0)]])
        low, high = ends - np.array(self.offsets)
        return low, high

    def inside(self, rng: np.random.Generator, shape: tuple[int, ...] = (), margin: float = 0.05) -> np.ndarray:
        """Scores whose yes-probabilities are uniform on [margin, 1 - margin]: inside the band of any activation."""
        yes = rng.uniform(margin, 1 - margin, (*shape, len(self.nodes)))
        return np.asarray(self.activation.score(yes) - np.array(self.offsets))

    def anywhere(self, rng: np.random.Generator, shape: tuple[int, ...] = ()) -> np.ndarray:
        """Scores that leave the natural band about one time in three."""
        return rng.normal(0, 3, (*shape, len(self.nodes)))


# ---- What masks, temperatures and unimix make of it ----


@dataclasses.dataclass(frozen=True)
class Distribution:
    """A model conditioned on its ``valid`` classes, then p^(1/T) / Z, then mixed with the uniform distribution."""

    model: Model
    valid: tuple[bool, ...]
    temperature: float = 1.0
    unimix: float = 0.0

    @functools.cached_property
    def classes(self) -> list[int]:
        return [k for k in range(self.model.num_classes) if self.valid[k]]

    @functools.cached_property
    def active(self) -> list[int]:
        """The nodes that the probabilities depend on: those with a valid class below them."""
        return [node.index for node in self.model.nodes if any(self.valid[k] for k in leaves(node))]

    def probs(self, scores: Any) -> np.ndarray:
        scores = np.asarray(scores)
        every = self.model.probs(scores)
        p = np.zeros(self.model.num_classes, np.result_type(scores.dtype, np.float64))
        p[self.classes] = every[self.classes] / sum(every[k] for k in self.classes)
        if self.temperature != 1:
            powers = np.array([p[k] ** (1 / self.temperature) for k in self.classes])
            p[self.classes] = powers / sum(powers)
        for k in self.classes:
            p[k] = (1 - self.unimix) * p[k] + self.unimix / len(self.classes)
        return p

    def log_probs(self, scores: Any) -> np.ndarray:
        """Minus infinity for masked classes."""
        p = self.probs(scores)
        logs = np.full_like(p, -np.inf)
        for k in self.classes:
            logs[k] = np.log(p[k])
        return logs

    def entropy(self, scores: Any) -> Any:
        return -sum(p * np.log(p) for p in self.probs(scores) if p != 0)

    def fisher(self, scores: Any) -> np.ndarray:
        return fisher(self.log_probs, scores)

    def inside(self, rng: np.random.Generator, shape: tuple[int, ...] = (), margin: float = 0.05) -> np.ndarray:
        """Scores as in ``Model.inside`` at active nodes, and of any size elsewhere."""
        scores = rng.normal(0, 10, (*shape, len(self.model.nodes)))
        scores[..., self.active] = self.model.inside(rng, shape, margin)[..., self.active]
        return scores


def categorical_kl(p: Any, q: Any) -> Any:
    """sum_k p_k log(p_k / q_k): infinite where q never takes a class that p can take."""
    total = 0.0
    for p_k, q_k in zip(p, q, strict=True):
        if p_k != 0:
            total += p_k * np.log(p_k / q_k) if q_k != 0 else np.inf
    return total


def softmax_log_probs(scores: Any) -> np.ndarray:
    return np.array([s - np.log(sum(np.exp(t) for t in scores)) for s in scores])


# ---- Derivatives and Fisher matrices from their definitions ----


def jacobian(f: Callable[[np.ndarray], Any], x: Any) -> np.ndarray:
    """df/dx, one column per entry of the vector ``x``, by complex steps."""
    x = np.asarray(x, dtype=np.complex128)
    columns = [np.imag(f(x + 1j * STEP * unit)) / STEP for unit in np.eye(len(x))]
    rows = np.shape(f(x))
    return np.stack(columns, axis=-1) if columns else np.zeros((*rows, 0))


def fisher(log_probs: Callable[[np.ndarray], Any], x: Any) -> np.ndarray:
    """The definition: sum_k p_k grad log p_k (grad log p_k)^T."""
    x = np.asarray(x, dtype=np.float64)
    p = np.exp(log_probs(x))
    total = np.zeros((len(x), len(x)))
    for p_k, gradient in zip(p, jacobian(log_probs, x), strict=True):
        total += p_k * np.outer(gradient, gradient)
    return total


def plackett_luce(p: Sequence[float], k: int) -> dict[tuple[int, ...], float]:
    """The distribution of the first ``k`` of draws without replacement: every ordered tuple with its probability."""
    dist = {}
    for draw in itertools.permutations(range(len(p)), k):
        probability, left = 1.0, 1.0
        for j in draw:
            probability *= p[j] / left
            left -= p[j]
        dist[draw] = probability
    return dist


def concrete_log_density(log_p: Any, temperature: float, value: Any) -> float:
    """The density of softmax((log p + Gumbel) / temperature) on the simplex (Maddison, Mnih & Teh 2017, eq. 10)."""
    size = len(log_p)
    terms = [lp - temperature * math.log(v) for lp, v in zip(log_p, value, strict=True)]
    top = max(terms)
    log_sum = top + math.log(sum(math.exp(t - top) for t in terms))
    scale = math.lgamma(size) + (size - 1) * math.log(temperature)
    return scale + sum(t - math.log(v) for t, v in zip(terms, value, strict=True)) - size * log_sum
