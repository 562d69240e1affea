"""What the tests of gradient estimators share: five classes, and their gradients and costs by the oracle.

So few that every outcome of an estimator can be listed with its probability.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import oracle
from conformance import checks
from scipy import stats

K = 5
SCORES = np.array([0.4, -0.9, 0.7, 1.1])
COSTS = np.array([3.0, -0.5, 2.5, 6.0, 4.5])

MODEL = oracle.Model(oracle.balanced(K), (1.0,) * K, oracle.Sigmoid())
P = MODEL.probs(SCORES)
JACOBIAN = oracle.jacobian(MODEL.probs, SCORES)  # classes x nodes
VALUE = float(P @ COSTS)
GRADIENT = COSTS @ JACOBIAN


# ---- every outcome, and its probability ----


def all_tuples(count: int) -> tuple[np.ndarray, np.ndarray]:
    """All ordered draws with replacement, (count, K^count), and their probabilities."""
    draws = np.array(list(itertools.product(range(K), repeat=count))).T
    return draws, P[draws].prod(0)


def all_sets(size: int) -> dict[tuple[int, ...], float]:
    """All sets of distinct classes, and the probability that draws without replacement give them."""
    probabilities = oracle.plackett_luce(P, size)
    return {
        members: sum(probabilities[order] for order in itertools.permutations(members))
        for members in itertools.combinations(range(K), size)
    }


def multinomial(count: int) -> dict[tuple[int, ...], float]:
    """Every vector of counts and its probability, from the factorials."""
    probabilities = {}
    for cells in itertools.product(range(count + 1), repeat=K):
        if sum(cells) == count:
            ways = math.factorial(count) / math.prod(math.factorial(c) for c in cells)
            probabilities[cells] = ways * math.prod(q**c for q, c in zip(P, cells, strict=True))
    return probabilities


# ---- draws, costs and estimates of either framework ----


def repeated(*batch: int) -> np.ndarray:
    return np.broadcast_to(SCORES, (*batch, K - 1))


def classes_of(values: Any) -> Any:
    """The classes of draws, which may be one-hot vectors."""
    return values.argmax(-1) if "float" in str(values.dtype) else values


@dataclasses.dataclass
class Cost:
    """The cost of classes, or of one-hot vectors."""

    table: Any

    def __call__(self, values: Any) -> Any:
        return self.table[classes_of(values)]


@dataclasses.dataclass
class Drawn:
    """A distribution with given draws in place of random ones."""

    distribution: Any
    draws: Any

    def sample(self, *_: Any, **__: Any) -> Any:
        return self.draws

    def log_prob(self, value: Any) -> Any:
        return self.distribution.log_prob(value)


# Of an estimators module, a cost, a distribution, and what random functions take.
UNBIASED = {
    "score_function": lambda lib, f, dist, how: lib.score_function(f, dist, **how),
    "score_function-2": lambda lib, f, dist, how: lib.score_function(
        f, dist, num_samples=2, baseline="leave-one-out", **how
    ),
    "unordered_set-2": lambda lib, f, dist, how: lib.unordered_set(f, dist, 2, **how),
    "unordered_set-4": lambda lib, f, dist, how: lib.unordered_set(f, dist, 4, **how),
    "straight_through": lambda lib, f, dist, how: lib.straight_through(dist, **how) @ f.table,  # a linear cost
}
# The same of an array of costs, and more of them.
COMPUTED = {
    "gumbel_softmax": lambda lib, dist, c, how: lib.gumbel_softmax(dist, 0.5, **how) @ c,
    "gumbel_softmax-low": lambda lib, dist, c, how: lib.gumbel_softmax(dist, 1e-4, **how) @ c,
    "gumbel_softmax-lowest": lambda lib, dist, c, how: lib.gumbel_softmax(dist, 1e-50, **how) @ c,
    "gumbel_softmax-high": lambda lib, dist, c, how: lib.gumbel_softmax(dist, 1e30, **how) @ c,
    "gumbel_softmax-hard": lambda lib, dist, c, how: lib.gumbel_softmax(dist, 1e-4, hard=True, **how) @ c,
    "straight_through": lambda lib, dist, c, how: lib.straight_through(dist, **how) @ c,
    "score_function": lambda lib, dist, c, how: lib.score_function(
        lambda v: c[classes_of(v)], dist, num_samples=3, baseline="leave-one-out", **how
    ),
    "unordered_set": lambda lib, dist, c, how: lib.unordered_set(lambda v: c[classes_of(v)], dist, 3, **how),
    "unordered_set-all": lambda lib, dist, c, how: lib.unordered_set(lambda v: c[classes_of(v)], dist, 7, **how),
    "enumerate_exactly": lambda lib, dist, c, how: lib.enumerate_exactly(lambda v: c[classes_of(v)], dist),
}


def hostile(dtype: str) -> np.ndarray:
    largest = 6e4 if dtype == "float16" else 1e30
    special = np.array([0.0, 1e-30, 3.14159, -3.14159, 3.1416, 50.0, -50.0, largest, -largest, 1.0])
    return np.random.default_rng(0).choice(special, (60, 6))


# ---- what the estimate must be ----


def leave_one_out_gradient(draws: Sequence[int]) -> np.ndarray:
    """The mean over the draws of the cost, less the mean cost of the others, times the slope of log p."""
    wanted = np.zeros(K - 1)
    for j, k in enumerate(draws):
        others = [COSTS[i] for i in (*draws[:j], *draws[j + 1 :])]
        wanted += (COSTS[k] - sum(others) / len(others)) * JACOBIAN[k] / P[k] / len(draws)
    return wanted


def set_estimate(members: tuple[int, ...]) -> tuple[float, np.ndarray]:
    """The paper's formulas, with every ratio from ordered draws: the value, and a weight per grad p_s."""

    def probability(of: tuple[int, ...], left: list[int]) -> float:
        """The probability that draws without replacement from the classes ``left`` give the set ``of``."""
        mass = sum(P[j] for j in left)
        probabilities = oracle.plackett_luce([P[j] / mass for j in left], len(of)) if of else {(): 1.0}
        return sum(probabilities[tuple(left.index(j) for j in order)] for order in itertools.permutations(of))

    def without(group, *taken):
        return [j for j in group if j not in taken]

    everyone = list(range(K))
    whole = probability(members, everyone)
    value, weights = 0.0, np.zeros(K)
    for s in members:
        alone = probability(tuple(without(members, s)), without(everyone, s))
        baseline = 0.0
        for t in members if len(members) > 1 else ():
            pair = probability(tuple(without(members, s, t)), without(everyone, s, t))
            baseline += P[t] * COSTS[t] * (1.0 if s == t else pair / alone)
        value += P[s] * alone / whole * COSTS[s]
        weights[s] = alone / whole * (COSTS[s] - baseline)
    return value, weights


# ---- means, variances, frequencies ----


def assert_multinomial(counts: Sequence[Sequence[int]]) -> None:
    """Rows of counts of three draws have their probabilities."""
    probabilities = multinomial(3)
    assert math.isclose(sum(probabilities.values()), 1)
    seen = dict.fromkeys(probabilities, 0)
    for row in counts:
        seen[tuple(row)] += 1
    checks.chi_square(seen, probabilities)


def is_mean(draws: np.ndarray, wanted: np.ndarray) -> bool:
    """Whether the mean of the rows of ``draws`` may be ``wanted``: a z-test of every column, corrected for many."""
    error = draws.std(0, ddof=1) / math.sqrt(len(draws))
    z = np.abs(draws.mean(0) - wanted) / np.maximum(error, 1e-12)
    return bool((z < stats.norm.isf(checks.FALSE_ALARM / 2 / z.size)).all())


def total_variance(gradients: np.ndarray, probabilities: np.ndarray) -> float:
    """The trace of the covariance of an estimator with these outcomes."""
    mean = probabilities @ gradients
    return float(probabilities @ ((gradients - mean) ** 2).sum(-1))
