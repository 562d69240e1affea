"""What the tests of gradient estimators share: five classes, and their gradients and costs by the oracle.

So few that every outcome of an estimator can be listed with its probability.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import oracle
import pytest
from conformance import checks
from scipy import stats

K = 5
SCORES = np.array([0.4, -0.9, 0.7, 1.1])
COSTS = np.array([3.0, -0.5, 2.5, 6.0, 4.5])

MODEL = oracle.Model(oracle.balanced(K), (1.0,) * K, oracle.Natural())
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


# ---- what both frameworks must say ----


def assert_refuses_bad_costs(estimates: Sequence[Callable[..., object]], cost: Callable[..., Any]) -> None:
    """Each estimate takes a function of classes of shape (draws, 3): costs of another shape raise, and floats."""
    for estimate in estimates:
        with pytest.raises(ValueError, match=r"Do not average inside f"):
            estimate(lambda k: cost(k).mean())
        with pytest.raises(ValueError, match=r"returned shape \(3,\) for draws of shape \(., 3\)"):
            estimate(lambda k: cost(k).mean(0))
        with pytest.raises(TypeError, match="float"):
            estimate(lambda k: 1.0)


def assert_multinomial(counts: Sequence[Sequence[int]]) -> None:
    """Rows of counts of three draws have their probabilities."""
    probabilities = multinomial(3)
    assert math.isclose(sum(probabilities.values()), 1)
    seen = dict.fromkeys(probabilities, 0)
    for row in counts:
        seen[tuple(row)] += 1
    checks.chi_square(seen, probabilities)


# ---- means and variances ----


def is_mean(draws: np.ndarray, wanted: np.ndarray) -> bool:
    """Whether the mean of the rows of ``draws`` may be ``wanted``: a z-test of every column, corrected for many."""
    error = draws.std(0, ddof=1) / math.sqrt(len(draws))
    z = np.abs(draws.mean(0) - wanted) / np.maximum(error, 1e-12)
    return bool((z < stats.norm.isf(checks.FALSE_ALARM / 2 / z.size)).all())


def total_variance(gradients: np.ndarray, probabilities: np.ndarray) -> float:
    """The trace of the covariance of an estimator with these outcomes."""
    mean = probabilities @ gradients
    return float(probabilities @ ((gradients - mean) ** 2).sum(-1))
