"""The checks, one function each: a backend against the oracle, for any tree and activation.

A check raises AssertionError when what it states does not hold. The test files feed checks the rows of ``cases``;
``tests/mutants`` has bugs that they must notice.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mpmath
import numpy as np
import oracle
from cases import MASK, ActivationCase, OptionsCase, TreeCase
from scipy import stats

import catnat

# A test of frequencies rejects a correct sampler this rarely. Seeds are fixed, so a pass stays a pass.
FALSE_ALARM = 1e-6


def close(got: Any, wanted: Any, *, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Equal shapes first: NumPy's own comparison would broadcast over a wrong one."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape, f"shape {got.shape} instead of {wanted.shape}"
    np.testing.assert_allclose(got, wanted, rtol=rtol, atol=atol)


def rows(function: Callable[..., Any], *scores: np.ndarray) -> np.ndarray:
    """The oracle's function of one row of scores, for every row of a batch."""
    batch = scores[0].shape[:-1]
    flat = [s.reshape(math.prod(batch), s.shape[-1]) for s in scores]
    values = np.array([function(*row) for row in zip(*flat, strict=True)])
    return values.reshape(*batch, *values.shape[1:])


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# ---- probabilities ----


def probabilities(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    """p_k is the product of the branches on the path to k, inside the band and outside it, and sums to one."""
    model, rng = case.model(activation), generator()
    for scores in (model.inside(rng, (2, 3)), model.anywhere(rng, (2, 3))):
        got = backend.catnat(scores, case.tree, activation)
        assert got.dtype == np.float64
        close(got, rows(model.probs, scores), atol=1e-13)
        assert (got >= 0).all()
        close(got.sum(-1), np.ones((2, 3)), atol=1e-13)


def zero_scores_mean_the_prior(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    prior = np.array(case.weights) / math.fsum(case.weights)
    zero = np.zeros(case.num_nodes)
    close(backend.catnat(zero, case.tree, activation), prior, rtol=1e-12)
    close(backend.log_catnat(zero, case.tree, activation), np.log(prior), rtol=1e-12, atol=1e-15)


def log_probabilities(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    model, rng = case.model(activation), generator(1)
    scores = model.inside(rng, (3, 2))
    got = backend.log_catnat(scores, case.tree, activation)
    assert got.dtype == np.float64
    close(got, rows(model.log_probs, scores), rtol=1e-11, atol=1e-13)
    # Outside the band too they are finite, and the exponential is the probability but for the floor.
    scores = model.anywhere(rng, (3, 2))
    got = backend.log_catnat(scores, case.tree, activation)
    assert np.isfinite(got).all()
    assert (got <= 0).all()
    close(np.exp(got), backend.catnat(scores, case.tree, activation), atol=1e-13)


def path_log_prob_is_the_gathered_one(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    model, rng = case.model(activation), generator(2)
    for scores in (model.inside(rng, (2, 3)), model.anywhere(rng, (2, 3))):
        dense = backend.log_catnat(scores, case.tree, activation)
        classes = rng.integers(case.num_classes, size=(4, 2, 3))  # a sample shape in front of the batch
        got = backend.log_prob(scores, classes, case.tree, activation)
        close(got, np.take_along_axis(dense[None], classes[..., None], -1)[..., 0], rtol=1e-13, atol=1e-15)
        close(backend.log_prob(scores, classes[0], case.tree, activation), got[0], rtol=1e-13, atol=1e-15)
        # One class for all rows, and all classes for one row.
        close(backend.log_prob(scores, np.array(0), case.tree, activation), dense[..., 0], rtol=1e-13, atol=1e-15)
        every = np.arange(case.num_classes)
        close(backend.log_prob(scores[0, 0], every, case.tree, activation), dense[0, 0], rtol=1e-13, atol=1e-15)


def reach_is_the_sum_of_leaves(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    model, rng = case.model(activation), generator(3)
    for scores in (model.inside(rng, (2, 3)), model.anywhere(rng, (2, 3))):
        got = backend.reach(scores, case.tree, activation)
        close(got, rows(model.reach, scores), atol=1e-13)
        p = backend.catnat(scores, case.tree, activation)
        # At every depth, the nodes there and the leaves above them hold all the mass.
        for depth in range(case.tree.depth):
            above = [k for k, steps in enumerate(model.paths) if len(steps) <= depth]
            level = sorted({steps[depth][0] for steps in model.paths if len(steps) > depth})
            close(got[..., level].sum(-1) + p[..., above].sum(-1), np.ones((2, 3)), atol=1e-13)


def any_axis(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    # An axis as wide as that of the nodes, so that a wrong one would not be noticed by its size.
    scores = case.model(activation).inside(generator(4), (2, case.num_nodes))
    for function in (backend.catnat, backend.log_catnat):
        wanted = function(scores, case.tree, activation)
        for axis in range(-3, 3):
            moved = function(np.moveaxis(scores, -1, axis), case.tree, activation, axis=axis)
            close(np.moveaxis(moved, axis, -1), wanted, rtol=1e-14)


# ---- Fisher information ----


def fisher_is_diagonal(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    """The definition, sum_k p_k grad log p_k grad log p_k^T, is diagonal and its diagonal is the library's."""
    model = case.model(activation)
    scores = model.inside(generator(5))
    wanted = model.fisher(scores)
    close(backend.fisher_diagonal(scores, case.tree, activation), np.diag(wanted), rtol=1e-10, atol=1e-12)
    assert off_diagonal(wanted) < 1e-10
    # The same expectation with the backend's own probabilities and gradients.
    p = backend.catnat(scores, case.tree, activation)
    gradients = backend.class_jacobian(scores, case.tree, activation)
    close(np.einsum("k,ki,kj->ij", p, gradients, gradients), np.diag(np.diag(wanted)), atol=1e-10)


def off_diagonal(matrix: np.ndarray) -> float:
    return float(np.abs(matrix - np.diag(np.diag(matrix))).max(initial=0.0))


def fisher_entries(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    """The stated entries: P(i) a'^2 / (a (1 - a)), which is P(i) a (1 - a) or P(i) (pi/A)^2."""
    model = case.model(activation)
    scores = model.inside(generator(6), (2, 3))
    reach, yes = rows(model.reach, scores), rows(model.yes, scores)
    slope = rows(lambda s: np.diag(oracle.jacobian(model.yes, s)), scores)
    got = backend.fisher_diagonal(scores, case.tree, activation)
    close(got, reach * slope**2 / (yes * (1 - yes)), rtol=1e-10)
    if activation.name == "sigmoid":
        close(got, reach * yes * (1 - yes), rtol=1e-10)
    if activation.natural:
        close(got, reach * (math.pi / activation.width) ** 2, rtol=1e-10)


def fisher_of_nu_depends_on_ancestors_only(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    model = case.model(activation)
    scores, other = model.inside(generator(7), (2,))
    before = backend.fisher_diagonal(scores, case.tree, activation)
    above = oracle.ancestors(case.root)
    moved = np.where(np.eye(case.num_nodes, dtype=bool), other, scores)  # row j: only score j has changed
    after = backend.fisher_diagonal(moved, case.tree, activation)
    changed = np.abs(after / before - 1) > 1e-9
    wanted = np.array([[j in above[i] for i in range(case.num_nodes)] for j in range(case.num_nodes)])
    np.testing.assert_array_equal(changed, wanted.reshape(changed.shape))


def isotropic_fisher_at_zero(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    """With the factors of ``isotropic_scale`` the Fisher matrix at zero scores is a quarter of the identity."""
    zero, scale = np.zeros(case.num_nodes), catnat.isotropic_scale(case.tree, activation.activation)
    rtol = 1e-6 if activation.name.startswith("own") else 1e-10  # its slope is a difference
    fisher = scale**2 * backend.fisher_diagonal(zero, case.tree, activation)
    close(fisher, np.full(case.num_nodes, 0.25), rtol=rtol)


def scores_have_mean_zero(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    """E[grad log p] = 0."""
    scores = case.model(activation).inside(generator(8))
    p = backend.catnat(scores, case.tree, activation)
    gradients = backend.class_jacobian(scores, case.tree, activation)
    assert gradients.shape == (case.num_classes, case.num_nodes)
    close(p @ gradients, np.zeros(case.num_nodes), atol=1e-12)


def fisher_is_the_curvature_of_kl(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    """KL(p_s || p_{s+d}) = d^T G d / 2 + O(d^3): halving d divides the rest by 8 or more."""
    model, rng = case.model(activation), generator(9)
    scores = model.inside(rng, margin=0.2)
    diagonal = backend.fisher_diagonal(scores, case.tree, activation)
    direction = rng.normal(size=case.num_nodes)

    def rest(size: float) -> float:
        step = size * direction
        kl = backend.kl_divergence(scores, scores + step, case.tree, activation)
        assert kl.shape == ()
        return float(kl - (step**2 * diagonal).sum() / 2)

    large, small = abs(rest(2e-3)), abs(rest(1e-3))
    assert large < 1e-6
    assert small < large / 2**2.7 + 1e-14, f"the rest only fell from {large} to {small}"


# ---- entropy and KL ----


def entropy_is_its_definition(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    model, rng = case.model(activation), generator(10)
    for scores in (model.inside(rng, (2, 3)), model.anywhere(rng, (2, 3))):
        got = backend.entropy(scores, case.tree, activation)
        close(got, rows(model.entropy, scores), rtol=1e-11, atol=1e-11)
    # Chain rule: the entropy of each node, weighted by its reach.
    scores = model.inside(rng, (2, 3))
    yes, reach = rows(model.yes, scores), rows(model.reach, scores)
    branches = -yes * np.log(yes) - (1 - yes) * np.log(1 - yes)
    close(backend.entropy(scores, case.tree, activation), (reach * branches).sum(-1), rtol=1e-11, atol=1e-13)


def kl_is_its_definition(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    model, rng = case.model(activation), generator(12)
    q = model.inside(rng, (2, 3))
    for p in (model.inside(rng, (2, 3)), model.anywhere(rng, (2, 3))):
        got = backend.kl_divergence(p, q, case.tree, activation)
        close(got, rows(model.kl, p, q), rtol=1e-11, atol=1e-11)
        assert (got >= 0).all()
    close(backend.kl_divergence(q, q, case.tree, activation), np.zeros((2, 3)), atol=1e-15)
    p = model.inside(rng, (2, 3))
    a, b, reach = rows(model.yes, p), rows(model.yes, q), rows(model.reach, p)
    branches = a * np.log(a / b) + (1 - a) * np.log((1 - a) / (1 - b))
    close(backend.kl_divergence(p, q, case.tree, activation), (reach * branches).sum(-1), rtol=1e-11, atol=1e-13)


# ---- gradients ----


def gradients(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    """Of every differentiable function, against complex steps of the oracle."""
    model, rng = case.model(activation), generator(13)
    scores, other = model.inside(rng, (2,))
    args = (case.tree, activation)

    def compare(name: str, function: Callable[[Any], Any], *middle: Any, argnum: int = 0, at: Any = scores) -> None:
        jacobian = oracle.jacobian(function, at)
        cotangent = rng.normal(size=jacobian.shape[:-1])
        got = backend.grad(name, cotangent, *middle, *args, argnum=argnum)
        close(got, np.tensordot(cotangent, jacobian, cotangent.ndim), rtol=1e-9, atol=1e-10)

    classes = rng.integers(case.num_classes, size=5)
    compare("catnat", model.probs, scores)
    compare("log_catnat", model.log_probs, scores)
    compare("log_prob", lambda s: model.log_probs(s)[classes], scores, classes)
    compare("reach", model.reach, scores)
    compare("entropy", model.entropy, scores)
    compare("kl_divergence", lambda s: model.kl(s, other), scores, other)
    compare("kl_divergence", lambda s: model.kl(other, s), other, scores, argnum=1)


def outside_the_band_nothing_moves(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    """Exact zeros, zero gradient and zero Fisher entry beyond the edges; ``saturated`` says where."""
    model, rng = case.model(activation), generator(14)
    low, high = model.edges()
    out, side = rng.random((2, case.num_nodes)) < 0.5
    beyond = rng.uniform(0.01, 1, case.num_nodes)
    scores = np.where(out, np.where(side, low - beyond, high + beyond), model.inside(rng))
    np.testing.assert_array_equal(backend.saturated(scores, case.tree, activation), out)
    p = backend.catnat(scores, case.tree, activation)
    wanted = model.probs(scores)
    np.testing.assert_array_equal(p == 0, wanted == 0)
    close(p, wanted, atol=1e-13)
    for name in ("catnat", "log_catnat"):
        gradient = backend.grad(name, rng.normal(size=case.num_classes), scores, case.tree, activation)
        assert (gradient[out] == 0).all()
    fisher = backend.fisher_diagonal(scores, case.tree, activation)
    assert (fisher[out] == 0).all()
    entries = model.reach(scores) * (math.pi / activation.width) ** 2
    close(fisher, np.where(out, 0, entries), rtol=1e-10, atol=1e-13)


# ---- natural gradients and distances ----


def natural_gradient_solves_the_fisher_system(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    """Forward nothing changes; backward g becomes (F + damping I)^-1 g, with the whole matrix F of the definition."""
    model, rng = case.model(activation), generator(40)
    scores, gradient = model.inside(rng), rng.normal(size=case.num_nodes)
    fisher = model.fisher(scores)
    for damping in (0.01, 1.0):
        value, got = backend.natural_gradient(scores, gradient, case.tree, activation, damping=damping)
        np.testing.assert_array_equal(value, scores)
        wanted = np.linalg.solve(fisher + damping * np.eye(len(scores)), gradient)
        close(got, wanted, rtol=1e-9, atol=1e-10)
    # Without damping the matrix of a deep tree is singular in floating point: solve for nodes with information.
    _, got = backend.natural_gradient(scores, gradient, case.tree, activation)
    assert np.isfinite(got).all()
    seen = np.flatnonzero(model.reach(scores) > 1e-3)
    close(got[seen], np.linalg.solve(fisher[np.ix_(seen, seen)], gradient[seen]), rtol=1e-9, atol=1e-10)


def natural_gradient_of_a_saturated_node_is_zero(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    """With damping and without, where the Fisher entry is 0; everywhere else the gradient is divided by that entry."""
    model, rng = case.model(activation), generator(41)
    scores, gradient = model.anywhere(rng, (5,)), rng.normal(size=(5, case.num_nodes))
    fisher = backend.fisher_diagonal(scores, case.tree, activation)
    for damping in (0.0, 0.5):
        value, got = backend.natural_gradient(scores, gradient, case.tree, activation, damping=damping)
        np.testing.assert_array_equal(value, scores)
        saturated = fisher == 0
        assert (got[saturated] == 0).all()
        close(got[~saturated], gradient[~saturated] / (fisher[~saturated] + damping), rtol=1e-12)


def kl_step_hits_its_kl(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    """KL(p_s || p_{s+step}), by its definition, is what was given; the step is along minus the natural gradient."""
    model, rng = case.model(activation), generator(42)
    scores = model.inside(rng, (3,))
    gradient = backend.grad("catnat", rng.normal(size=(3, case.num_classes)), scores, case.tree, activation)
    if case.num_nodes == 0:
        assert backend.kl_step(scores, gradient, 1e-3, case.tree, activation).shape == (3, 0)
        return
    fisher = backend.fisher_diagonal(scores, case.tree, activation)
    per_row = np.array([1e-3, 1e-5, 1e-4])
    for kl in (1e-5, 1e-3, per_row):
        step = backend.kl_step(scores, gradient, kl, case.tree, activation)
        assert step.shape == scores.shape
        close(rows(model.kl, scores, scores + step), np.broadcast_to(kl, 3), rtol=0.01)
        lengths = -step * fisher / gradient  # one positive number per row
        assert (lengths > 0).all()
        close(lengths, np.broadcast_to(lengths[:, :1], lengths.shape), rtol=1e-9)
    # Only the direction of the gradient counts, and no direction means no step.
    close(backend.kl_step(scores, 1e6 * gradient, per_row, case.tree, activation), step, rtol=1e-9)
    np.testing.assert_array_equal(backend.kl_step(scores, 0 * gradient, 1e-3, case.tree, activation), 0 * scores)


def fisher_rao_is_its_definition(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    """2 arccos sum_k sqrt(p_k q_k), inside the band and outside it; a metric."""
    model, rng = case.model(activation), generator(43)
    for p, q in (model.inside(rng, (2, 4)), model.anywhere(rng, (2, 4))):
        got = backend.fisher_rao_distance(p, q, case.tree, activation)
        overlap = (np.sqrt(rows(model.probs, p)) * np.sqrt(rows(model.probs, q))).sum(-1)
        close(got, 2 * np.arccos(np.minimum(overlap, 1)), atol=1e-7)  # the arccos loses half of the digits near 1
        assert ((got >= 0) & (got <= math.pi)).all()
        close(backend.fisher_rao_distance(q, p, case.tree, activation), got, rtol=1e-14)
        np.testing.assert_array_equal(backend.fisher_rao_distance(p, p, case.tree, activation), np.zeros(4))
    points = model.inside(rng, (6,))
    distances = backend.fisher_rao_distance(points[:, None], points, case.tree, activation)
    assert distances.shape == (6, 6)
    assert (distances[:, None] <= distances[:, :, None] + distances[None] + 1e-12).all()


def fisher_rao_is_locally_the_fisher_metric(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    """d(s, s + step)^2 = step^T G step + O(step^3), also for a step whose arccos would be rounding error."""
    model, rng = case.model(activation), generator(44)
    scores = model.inside(rng, margin=0.2)
    direction = rng.normal(size=case.num_nodes)
    square = (direction**2 * backend.fisher_diagonal(scores, case.tree, activation)).sum()
    for size, rtol in ((1e-3, 1e-2), (1e-5, 1e-4), (1e-9, 1e-5)):
        got = backend.fisher_rao_distance(scores, scores + size * direction, case.tree, activation)
        close(got, size * np.sqrt(square), rtol=rtol)


def fisher_rao_along_the_root_is_an_angle(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    """Natural activation: moving the root's score from s to t moves sqrt(p) by the angle |s - t| pi / (2 A)."""
    model = case.model(activation)
    scores, other = model.inside(generator(45), (2,), margin=0.0)
    other[1:] = scores[1:]
    wanted = abs(scores[0] - other[0]) * math.pi / activation.width
    close(backend.fisher_rao_distance(scores, other, case.tree, activation), wanted, rtol=1e-11)


# ---- from distributions to scores ----


def probabilities_come_back(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    """probs -> scores -> probs, for even and uneven rows, and for rows with zeros."""
    rng, size = generator(46), case.num_classes
    probs = np.concatenate([rng.dirichlet(np.full(size, alpha), 4) for alpha in (0.1, 1.0, 10.0)])
    zeros = np.where(rng.random((4, size)) < 0.5, 0, probs[4:8]) + np.eye(size)[rng.integers(size, size=4)]
    certain = np.eye(size)[rng.integers(size, size=2)]
    probs = np.concatenate([probs, zeros / zeros.sum(-1, keepdims=True), certain]).reshape(-1, 2, size)
    scores = backend.scores_from_probs(probs, case.tree, activation)
    assert scores.shape == (*probs.shape[:-1], case.num_nodes)
    assert np.isfinite(scores).all()
    close(backend.catnat(scores, case.tree, activation), probs, atol=1e-12)
    close(rows(case.model(activation).probs, scores), probs, atol=1e-12)
    for node in case.model(activation).nodes:  # one with nothing below it gets score 0
        nothing = probs[..., oracle.leaves(node)].sum(-1) == 0
        assert (scores[..., node.index][nothing] == 0).all()


def scores_come_back(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    """scores -> logits -> scores inside the band; a shift of the logits changes nothing."""
    model, rng = case.model(activation), generator(47)
    scores = model.inside(rng, (2, 3))
    logits = rows(model.log_probs, scores) + rng.normal(size=(2, 3, 1))
    got = backend.scores_from_logits(logits, case.tree, activation)
    close(got, scores, rtol=1e-10, atol=1e-11)


def far_logits_come_back(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    """Logits thousands apart, which no probability can express: log-probabilities come back to ten digits."""
    logits = generator(48).uniform(-5000, 0, (3, case.num_classes))
    scores = backend.scores_from_logits(logits, case.tree, activation)
    assert np.isfinite(scores).all()
    top = logits.max(-1, keepdims=True)
    wanted = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    close(backend.log_catnat(scores, case.tree, activation), wanted, rtol=1e-10, atol=1e-11)


# ---- draws ----


def chi_square(counts: Mapping[Any, int] | Sequence[int], probabilities: Mapping[Any, float] | Sequence[float]) -> None:
    """Pearson's test of counts against a distribution; cells that expect fewer than 5 are put together."""
    if isinstance(probabilities, Mapping):
        assert isinstance(counts, Mapping)
        assert set(counts) <= set(probabilities), "something impossible was drawn"
        counts, probabilities = [counts.get(cell, 0) for cell in probabilities], list(probabilities.values())
    seen, p = np.asarray(counts, dtype=float), np.asarray(probabilities, dtype=float)
    assert seen.shape == p.shape
    assert (seen[p == 0] == 0).all(), "something of probability zero was drawn"
    expected = p * seen.sum()
    rare = expected < 5
    seen = np.append(seen[~rare], seen[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    used = expected > 0
    assert (seen[~used] == 0).all()
    if used.sum() < 2:
        return
    statistic = ((seen - expected)[used] ** 2 / expected[used]).sum()
    p_value = stats.chi2.sf(statistic, used.sum() - 1)
    assert p_value > FALSE_ALARM, f"chi-square {statistic:.1f} with {used.sum() - 1} degrees of freedom"


def sample_frequencies(backend: Any, case: TreeCase, activation: ActivationCase, size: int = 20_000) -> None:
    model = case.model(activation)
    scores = model.inside(generator(15), (2,))
    got = backend.sample(scores, case.tree, activation, sample_shape=(size,), seed=11)
    assert got.shape == (size, 2)
    assert got.dtype == np.int64
    for draws, p in zip(got.T, rows(model.probs, scores), strict=True):
        chi_square(np.bincount(draws, minlength=case.num_classes), p)


def frequencies_of_small_draws(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    """Many calls for a few draws each: a backend may well use another algorithm for them."""
    scores = case.model(activation).inside(generator(15), margin=0.2)
    calls = [backend.sample(scores, case.tree, activation, sample_shape=(40,), seed=100 + i) for i in range(250)]
    assert all(draws.shape == (40,) for draws in calls)
    counts = np.bincount(np.concatenate(calls), minlength=case.num_classes)
    chi_square(counts, case.model(activation).probs(scores))


def impossible_classes_are_never_drawn(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    """About a third of the nodes are saturated: what has probability zero exactly is never drawn."""
    model = case.model(activation)
    scores = model.anywhere(generator(16))
    p = backend.catnat(scores, case.tree, activation)
    draws = backend.sample(scores, case.tree, activation, sample_shape=(20_000,), seed=12)
    chi_square(np.bincount(draws, minlength=case.num_classes), model.probs(scores))
    assert (p[np.unique(draws)] > 0).all()


def draws_are_independent(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    """Of each other along the sample shape and across rows: pairs have the product distribution."""
    model = case.model(activation)
    scores = model.inside(generator(17), (2,), margin=0.25)
    p, q = rows(model.probs, scores)
    draws = backend.sample(scores, case.tree, activation, sample_shape=(20_000, 2), seed=13)
    assert draws.shape == (20_000, 2, 2)

    def pairs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return np.bincount(first * case.num_classes + second, minlength=case.num_classes**2)

    chi_square(pairs(draws[:, 0, 0], draws[:, 1, 0]), np.outer(p, p).ravel())
    chi_square(pairs(draws[:, 0, 0], draws[:, 0, 1]), np.outer(p, q).ravel())
    chi_square(pairs(draws[:-1:2, 0, 1], draws[1::2, 0, 1]), np.outer(q, q).ravel())


def plackett_luce(backend: Any, case: TreeCase, activation: ActivationCase, k: int, size: int = 60_000) -> None:
    """Every ordered k-tuple comes with the probability of drawing it without replacement."""
    model = case.model(activation)
    scores = model.inside(generator(18), margin=0.2)
    got = backend.sample_without_replacement(np.tile(scores, (size, 1)), k, case.tree, activation, seed=14)
    assert got.shape == (size, k)
    assert got.dtype == np.int64
    assert (np.diff(np.sort(got, -1), axis=-1) > 0).all(), "a class was drawn twice"
    tuples, counts = np.unique(got, axis=0, return_counts=True)
    seen = dict(zip(map(tuple, tuples.tolist()), counts.tolist(), strict=True))
    chi_square(seen, oracle.plackett_luce(model.probs(scores), k))


def first_draws_without_replacement(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    """Larger trees: distinct classes in range, and the first of them has the distribution of one draw."""
    model = case.model(activation)
    scores = model.inside(generator(19), margin=0.2)
    k = min(case.num_classes, 6)
    got = backend.sample_without_replacement(np.tile(scores, (5000, 4, 1)), k, case.tree, activation, seed=15)
    assert got.shape == (5000, 4, k)
    assert ((got >= 0) & (got < case.num_classes)).all()
    assert (np.diff(np.sort(got, -1), axis=-1) > 0).all(), "a class was drawn twice"
    chi_square(np.bincount(got[..., 0].ravel(), minlength=case.num_classes), model.probs(scores))


def mode_is_the_argmax(backend: Any, case: TreeCase, activation: ActivationCase) -> None:
    model = case.model(activation)
    scores = model.inside(generator(20), (5, 4))
    got = backend.mode(scores, case.tree, activation)
    assert got.dtype == np.int64
    close(got, rows(model.probs, scores).argmax(-1))


# ---- distributions: masks, temperatures, mixtures ----

# Masks are boolean rows (n, K), True for valid classes, each with scores of its own; without masks all are valid.


def references_and_scores(
    case: TreeCase,
    activation: ActivationCase,
    options: OptionsCase,
    masks: np.ndarray | None,
    seed: int,
    margin: float = 0.05,
) -> tuple[list[oracle.Distribution], np.ndarray]:
    """The reference of every mask, or three without one, and scores inside the bands of its active nodes."""
    rng, model = generator(seed), case.model(activation)
    references = [options.reference(model, valid) for valid in ([None] * 3 if masks is None else masks)]
    return references, np.stack([reference.inside(rng, margin=margin) for reference in references])


def distribution_facts(
    backend: Any, case: TreeCase, activation: ActivationCase, options: OptionsCase, masks: np.ndarray | None
) -> None:
    """The valid classes have the conditional probabilities, then temperature and unimix; one-hot vectors the same."""
    references, scores = references_and_scores(case, activation, options, masks, 50)
    pairs = list(zip(references, scores, strict=True))
    p = np.stack([reference.probs(row) for reference, row in pairs])
    entropy = [reference.entropy(row) for reference, row in pairs]
    valid = np.ones(p.shape, bool) if masks is None else masks
    given = (case.tree, activation, options, masks)
    facts, hot = backend.facts_of(scores, *given), backend.facts_of(scores, *given, kind="OneHotCatnat")
    best = p.argmax(-1)
    for found, mode in ((facts, best), (hot, np.eye(case.num_classes)[best])):
        close(found["probs"], p, atol=1e-12)
        assert (found["probs"][~valid] == 0).all()
        close(found["logits"][valid], np.log(p[valid]), rtol=1e-11, atol=1e-12)
        assert (found["logits"][~valid] == np.finfo(np.float64).min).all()
        close(found["entropy"], entropy, rtol=1e-11, atol=1e-12)
        close(found["mode"], mode)
    close(hot["mean"], p, atol=1e-12)
    close(hot["variance"], p * (1 - p), atol=1e-12)
    # One class at a time, a sample shape in front of the batch; some backends read paths only.
    every = np.broadcast_to(np.arange(case.num_classes)[:, None], (case.num_classes, len(p)))
    for values, kind in ((every, "Catnat"), (np.eye(case.num_classes)[every], "OneHotCatnat")):
        got = backend.log_prob_of(scores, values, *given, kind=kind)
        close(got.T, facts["logits"], rtol=1e-13, atol=1e-13)


def a_full_mask_changes_nothing(backend: Any, case: TreeCase, activation: ActivationCase, options: OptionsCase) -> None:
    scores, full = case.model(activation).inside(generator(53), (3,)), np.ones((3, case.num_classes), bool)
    given = (case.tree, activation, options)
    masked, plain = (backend.facts_of(scores, *given, mask) for mask in (full, None))
    for name in plain:
        close(masked[name], plain[name], rtol=1e-13, atol=1e-13)
    classes = np.arange(3) % case.num_classes
    got, wanted = (backend.log_prob_of(scores, classes, *given, mask) for mask in (full, None))
    close(got, wanted, rtol=1e-13, atol=1e-13)


def distribution_gradients(
    backend: Any, case: TreeCase, activation: ActivationCase, options: OptionsCase, mask: np.ndarray
) -> None:
    """Of every fact, against complex steps of the oracle; exactly 0 from masked classes, and to inactive nodes."""
    (reference,), (scores,) = references_and_scores(case, activation, options, mask[None], 54)
    rng, given = generator(55), (scores, case.tree, activation, options, mask)
    inactive = np.setdiff1d(np.arange(case.num_nodes), reference.active)

    def compare(name: str, wanted: np.ndarray, classes: np.ndarray | None = None) -> None:
        # Large ones too: what stands for minus infinity at masked classes must not overflow in the backward pass.
        for size in (1.0, 1e3):
            cotangent = size * rng.normal(size=wanted.shape[:-1])
            got = backend.grad_of(name, cotangent, *given, classes=classes)
            scale = size * np.abs(wanted).max(initial=1.0)
            close(got, np.tensordot(cotangent, wanted, cotangent.ndim), rtol=1e-9, atol=1e-10 * scale)
            assert (got[inactive] == 0).all()

    log_probs = oracle.jacobian(reference.log_probs, scores)
    compare("probs", oracle.jacobian(reference.probs, scores))
    compare("logits", log_probs)
    compare("entropy", oracle.jacobian(reference.entropy, scores))
    every = np.arange(case.num_classes)
    compare("log_prob", log_probs, every)
    for name, classes in (("probs", None), ("logits", None), ("log_prob", every)):
        got = backend.grad_of(name, np.where(mask, 0.0, rng.normal(size=case.num_classes)), *given, classes=classes)
        assert (got == 0).all()


def masked_classes_are_impossible(
    backend: Any,
    case: TreeCase,
    activation: ActivationCase,
    options: OptionsCase,
    masks: np.ndarray,
    dtype: str = "float64",
) -> None:
    """For scores of any size: probability exactly 0, the dtype's least number as logarithm, no gradient, never drawn.

    What is left sums to one.
    """
    scores = case.model(activation).anywhere(generator(56), (len(masks),)).astype(dtype)
    given, least = (case.tree, activation, options, masks), np.finfo(dtype).min
    facts = backend.facts_of(scores, *given)
    assert facts["probs"].dtype == facts["logits"].dtype == facts["entropy"].dtype == np.dtype(dtype)
    assert (facts["probs"][~masks] == 0).all()
    assert (facts["logits"][~masks] == least).all()
    assert (facts["logits"][masks] > least).all()
    close(facts["probs"].astype(float).sum(-1), np.ones(len(masks)), atol=4 * case.num_classes * np.finfo(dtype).eps)
    assert all(np.isfinite(fact).all() for fact in facts.values())
    classes = np.array([valid.argmin() for valid in masks])  # a masked one, if there is any
    exists = ~masks[np.arange(len(masks)), classes]
    got = backend.log_prob_of(scores, classes, *given)
    assert (got[exists] == least).all()
    rng = generator(57)
    for name, shape in (("probs", masks.shape), ("logits", masks.shape), ("log_prob", classes.shape)):
        counted = ~masks if shape == masks.shape else exists
        cotangent = np.where(counted, rng.normal(size=shape), 0.0).astype(dtype)
        of = classes if name == "log_prob" else None
        assert (backend.grad_of(name, cotangent, scores, *given, classes=of) == 0).all()
    draws = backend.draws_of(scores, *given, sample_shape=(500,), seed=19)
    assert masks[np.arange(len(masks)), draws].all()
    assert masks[np.arange(len(masks)), facts["mode"]].all()


def distribution_frequencies(
    backend: Any,
    case: TreeCase,
    activation: ActivationCase,
    options: OptionsCase,
    masks: np.ndarray | None,
    sample_shape: tuple[int, ...] = (20_000,),
    copies: int = 1,
) -> None:
    """Draws along the sample shape, and one draw for each of many ``copies`` of the scores, have the right frequencies.

    A masked class is never drawn; a one-hot draw has a single 1.
    """
    references, scores = references_and_scores(case, activation, options, masks, 59, margin=0.2)
    batch, given = np.broadcast_to(scores, (copies, *scores.shape)), (case.tree, activation, options, masks)
    got = backend.draws_of(batch, *given, sample_shape=sample_shape, seed=20)
    assert got.dtype == np.int64
    hot = backend.draws_of(batch, *given, sample_shape=sample_shape, seed=21, kind="OneHotCatnat")
    np.testing.assert_array_equal(np.sort(hot, -1), np.broadcast_to(np.eye(case.num_classes)[-1], hot.shape))
    for draws in (got, hot.argmax(-1)):
        assert draws.shape == (*sample_shape, copies, len(references))
        for row, (reference, each) in enumerate(zip(references, scores, strict=True)):
            chi_square(np.bincount(draws[..., row].ravel(), minlength=case.num_classes), reference.probs(each))


def distribution_kl_is_its_definition(
    backend: Any,
    case: TreeCase,
    activation: ActivationCase,
    options: tuple[OptionsCase, OptionsCase],
    masks: np.ndarray,
) -> None:
    """sum_k p_k log(p_k / q_k): infinite where q's mask forbids a class that p can take, and only there."""
    p_options, q_options = options
    others = np.roll(masks, 1, 0)  # masks of all sizes, so that some forbid what p can take
    for p_masks, q_masks in ((masks, masks), (masks, masks | others), (masks, others)):
        p_references, p_scores = references_and_scores(case, activation, p_options, p_masks, 60)
        q_references, q_scores = references_and_scores(case, activation, q_options, q_masks, 61)
        p = (p_scores, case.tree, activation, p_options, p_masks)
        q = (q_scores, case.tree, activation, q_options, q_masks)
        got = backend.kl_of(p, q)
        rows_of_p = [reference.probs(row) for reference, row in zip(p_references, p_scores, strict=True)]
        rows_of_q = [reference.probs(row) for reference, row in zip(q_references, q_scores, strict=True)]
        wanted = np.array([oracle.categorical_kl(*pair) for pair in zip(rows_of_p, rows_of_q, strict=True)])
        np.testing.assert_array_equal(np.isinf(got), (p_masks & ~q_masks).any(-1))
        close(got, wanted, rtol=1e-10, atol=1e-11)
        np.testing.assert_array_equal(backend.kl_of(p, p), np.zeros(len(masks)))
    # A mask on one side only.
    reference, score = q_options.reference(case.model(activation)), case.model(activation).inside(generator(62))
    plain = (np.tile(score, (len(masks), 1)), case.tree, activation, q_options, None)
    wanted = np.array([oracle.categorical_kl(each, reference.probs(score)) for each in rows_of_p])
    close(backend.kl_of(p, plain), wanted, rtol=1e-10, atol=1e-11)
    np.testing.assert_array_equal(np.isinf(backend.kl_of(plain, p)), ~masks.all(-1))


def impossible_classes_may_be_masked(
    backend: Any, case: TreeCase, activation: ActivationCase, masks: np.ndarray
) -> None:
    """KL stays finite where q masks only classes that p, saturated at some nodes, never takes."""
    model, rng = case.model(activation), generator(63)
    p_scores = model.anywhere(rng, (len(masks),))
    taken = rows(model.probs, p_scores)
    for q_masks in (masks | (taken > 0), masks):
        references = [MASK.reference(model, valid) for valid in q_masks]
        q_scores = np.stack([reference.inside(rng) for reference in references])
        p, q = (p_scores, case.tree, activation, MASK, None), (q_scores, case.tree, activation, MASK, q_masks)
        pairs = zip(taken, references, q_scores, strict=True)
        wanted = np.array([oracle.categorical_kl(each, reference.probs(row)) for each, reference, row in pairs])
        close(backend.kl_of(p, q), wanted, rtol=1e-10, atol=1e-11)


def straight_through(
    backend: Any, case: TreeCase, activation: ActivationCase, options: OptionsCase, mask: np.ndarray
) -> None:
    """Forward a one-hot draw of a valid class, backward the gradient of the distribution's probabilities."""
    (reference,), (scores,) = references_and_scores(case, activation, options, mask[None], 64, margin=0.2)
    cotangent, batch = generator(65).normal(size=(4000, case.num_classes)), np.tile(scores, (4000, 1))
    draw, gradient = backend.straight_through(batch, case.tree, activation, options, mask, cotangent=cotangent, seed=21)
    assert draw.shape == (4000, case.num_classes)
    close(np.sort(draw, -1), np.tile(np.eye(case.num_classes)[-1], (4000, 1)), atol=1e-15)
    chi_square(np.bincount(draw.argmax(-1), minlength=case.num_classes), reference.probs(scores))
    close(gradient, cotangent @ oracle.jacobian(reference.probs, scores), rtol=1e-9, atol=1e-10)


def relaxed(backend: Any, case: TreeCase, activation: ActivationCase, options: OptionsCase, mask: np.ndarray) -> None:
    """softmax((log p + Gumbel) / T) over the valid classes and its density there; exactly 0 elsewhere."""
    (reference,), (scores,) = references_and_scores(case, activation, options, mask[None], 66, margin=0.2)
    rng, temperature, batch = generator(67), 0.7, np.tile(scores, (4000, 1))
    cotangent, given = rng.normal(size=(4000, case.num_classes)), (case.tree, activation, options, mask)
    draw, gradient = backend.relaxed(temperature, batch, *given, cotangent=cotangent, seed=22)
    assert draw.shape == (4000, case.num_classes)
    assert (draw[:, ~mask] == 0).all()
    assert (draw[:, mask] > 0).all()
    close(draw.sum(-1), np.ones(4000), atol=1e-12)
    chi_square(np.bincount(draw.argmax(-1), minlength=case.num_classes), reference.probs(scores))
    # dy = (diag(y) - y y^T) d(log p) / T, whatever the noise was.
    pulled = draw * (cotangent - (draw * cotangent).sum(-1, keepdims=True)) / temperature
    close(gradient, pulled @ oracle.jacobian(reference.log_probs, scores), rtol=1e-8, atol=1e-10)
    value = np.zeros((5, case.num_classes))
    value[:, mask] = rng.dirichlet(np.ones(mask.sum()), 5)
    got = backend.relaxed_log_prob(temperature, batch[:5], value, *given)
    log_p = reference.log_probs(scores)[mask]
    close(got, [oracle.concrete_log_density(log_p, temperature, v[mask]) for v in value], rtol=1e-9, atol=1e-9)


# ---- accuracy ----

TOLERANCE = {"float32": 1e-5, "float64": 1e-13}
# The edge of a moved band is irrational and computed from a prior that is itself rounded, so it is known to a few ulp
# only. The paper's own band, where nothing is moved, has no such excuse.
EDGE_ERROR = 8 * math.pi * float(np.finfo(np.float64).eps)


@dataclasses.dataclass(frozen=True)
class NodeTruth:
    """The log-probabilities of (no, yes) at one node in many digits, and what absolute error the prior excuses."""

    log_probs: tuple[Any, Any]
    excused: tuple[float, float]
    floored: bool


def node_truth(activation: ActivationCase, yes_at_zero: float, score: Any, dtype: str) -> NodeTruth:
    """Natural's node log-probability is floored at log eps of the computing dtype: below it, the floor is the truth."""
    floor = mpmath.log(mpmath.mpf(float(np.finfo(dtype).eps)))
    with mpmath.workdps(350):  # so many digits because 1 - a is wanted even where a is exp(-650)
        reference = activation.reference
        x = mpmath.mpf(float(score)) + reference.score(mpmath.mpf(float(yes_at_zero)), mpmath)
        yes = reference.yes(x, mpmath)
        if activation.natural and min(yes, 1 - yes) < mpmath.exp(floor):
            return NodeTruth((mpmath.mpf(0), floor) if yes < 0.5 else (floor, mpmath.mpf(0)), (0.0, 0.0), True)
        odds = float(yes / (1 - yes))
        moved = activation.natural and yes_at_zero != 0.5
        # d log nu / dx = sqrt((1 - nu) / nu) / 2 in the default band, and d log(1 - nu) / dx likewise
        excused = (EDGE_ERROR * math.sqrt(odds) / 2, EDGE_ERROR / math.sqrt(odds) / 2) if moved else (0.0, 0.0)
        return NodeTruth((+mpmath.log(1 - yes), +mpmath.log(yes)), excused, False)


def assert_accurate(value: float, steps: Sequence[tuple[NodeTruth, int]], dtype: str, where: str) -> None:
    """``value`` is the sum of the steps' log-probabilities, to the relative error that the dtype promises."""
    with mpmath.workdps(50):
        wanted = mpmath.fsum(node.log_probs[bit] for node, bit in steps)
        error = abs(mpmath.mpf(value) - wanted)
        # Opposite a floored branch the truth lies between log(1 - eps) and 0, and any such number will do.
        excused = sum(node.excused[bit] + 2 * float(np.finfo(dtype).eps) * node.floored for node, bit in steps)
        assert error <= TOLERANCE[dtype] * abs(wanted) + excused, (
            f"{value!r} instead of {float(wanted)!r}, relative error {float(error / abs(wanted)):.2g}, {where}"
        )


def accuracy_of_one_node(backend: Any, activation: ActivationCase, scores: np.ndarray, yes: float = 0.5) -> None:
    """Both log-probabilities of a two-class tree whose prior says ``yes``, at every given score."""
    dtype = scores.dtype.name
    tree = catnat.balanced(2).with_prior([1 - yes, yes])
    got = backend.log_catnat(scores[:, None], tree, activation)
    assert got.dtype == scores.dtype
    assert got.shape == (len(scores), 2)
    for score, values in zip(scores, got, strict=True):
        truth = node_truth(activation, tree.yes_fraction()[0], score, dtype)
        for bit, value in enumerate(values.tolist()):
            assert value <= 0
            assert_accurate(value, [(truth, bit)], dtype, f"branch {bit} at score {score!r}")


def accuracy_of_paths(
    backend: Any, activation: ActivationCase, tree: Any, classes: Sequence[int], on_path: Callable[[int], np.ndarray]
) -> None:
    """``log_prob`` on a uniform complete tree, where ``on_path(length)`` gives the scores met on the way to a class."""
    for k in classes:
        nodes, bits = tree.path(k)
        met = on_path(len(nodes))
        scores = np.zeros(tree.num_nodes, dtype=met.dtype)
        scores[nodes] = met
        got = backend.log_prob(scores, np.array(k), tree, activation)
        assert got.shape == ()
        assert got.dtype == met.dtype
        truths = [node_truth(activation, 0.5, s, met.dtype.name) for s in met]
        assert_accurate(float(got), list(zip(truths, bits, strict=True)), met.dtype.name, f"class {k}")


def accuracy_of_all_classes(backend: Any, activation: ActivationCase, tree: Any, dtype: str) -> None:
    """``log_catnat`` for scores of every size, many of them near an edge."""
    rng, fractions = generator(25), tree.yes_fraction()
    shape = (3, tree.num_nodes)
    if activation.natural:
        low = 4.1 * math.sqrt(np.finfo(dtype).eps)  # just above the floor
        x = math.pi - np.exp(rng.uniform(math.log(low), math.log(2.0), shape))
    else:
        x = np.exp(rng.uniform(-5, 4, shape))
    scores = (rng.choice([-1, 1], shape) * x - activation.reference.score(fractions)).astype(dtype)
    got = backend.log_catnat(scores, tree, activation)
    assert got.shape == (3, tree.num_classes)
    for row, values in zip(scores, got, strict=True):
        truths = [node_truth(activation, f, s, dtype) for f, s in zip(fractions, row, strict=True)]
        for k, value in enumerate(values.tolist()):
            steps = [(truths[i], bit) for i, bit in zip(*tree.path(k), strict=True)]
            assert_accurate(value, steps, dtype, f"class {k} of {tree!r}")


def band_sweep(dtype: str, side: int, points: int = 200) -> np.ndarray:
    """Scores of the default band from its centre to one ulp inside an edge, at log-spaced distances from that edge."""
    edge = np.array(math.pi, dtype)
    if float(edge) > math.pi:  # float32's nearest number lies beyond pi, float64's just below it
        edge = np.nextafter(edge, np.array(0, dtype))
    distances = np.geomspace(np.finfo(dtype).eps, math.pi, points)
    scores = np.append((math.pi - distances).astype(dtype), edge)
    return np.unique(side * scores[np.abs(scores) <= edge])
