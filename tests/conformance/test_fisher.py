"""The Fisher information, from its definition."""

import math

import cases
import numpy as np
import oracle
import pytest
from conformance import checks

NATURALS = {name: case for name, case in cases.ACTIVATIONS.items() if case.natural}


@pytest.mark.parametrize(
    "check",
    [
        checks.fisher_is_diagonal,
        checks.fisher_entries,
        checks.scores_have_mean_zero,
        checks.fisher_is_the_curvature_of_kl,
    ],
)
def test_check(backend, tree, activation, check):
    check(backend, tree, activation)


@pytest.mark.parametrize("activation", NATURALS.values(), ids=NATURALS.keys())
def test_fisher_of_nu_depends_on_ancestors_only(backend, tree, activation):
    checks.fisher_of_nu_depends_on_ancestors_only(backend, tree, activation)


@pytest.mark.parametrize("name", ["natural", "natural-width-3"])
@pytest.mark.parametrize("depth", [1, 2, 3, 5, 6])
def test_trace_of_the_fisher_matrix_of_nu(backend, name, depth):
    """On a complete tree every level's reach sums to one: the trace is H (pi / A)^2 wherever the scores are."""
    case, activation = cases.tree_case(f"balanced-{2**depth}"), cases.ACTIVATIONS[name]
    scores = case.model(activation).inside(np.random.default_rng(depth), (4,))
    got = backend.fisher_diagonal(scores, case.tree, activation).sum(-1)
    checks.close(got, np.full(4, depth * (math.pi / activation.width) ** 2), rtol=1e-12)


def test_fisher_of_softmax(backend):
    """diag(p) - p p^T, with the null vector 1: what catnat is compared with."""
    scores = np.random.default_rng(0).normal(size=5)
    got = oracle.fisher(oracle.softmax_log_probs, scores)
    p = np.exp(oracle.softmax_log_probs(scores))
    checks.close(got, np.diag(p) - np.outer(p, p), atol=1e-14)
    checks.close(got @ np.ones(5), np.zeros(5), atol=1e-14)
    assert checks.off_diagonal(got) > 1e-2
    # On the same distribution catnat's is diagonal.
    case = cases.tree_case("balanced-5")
    checks.fisher_is_diagonal(backend, case, cases.SIGMOID)


def test_pull_back_through_a_network(backend, activation):
    """G_theta = J^T G J: the Fisher matrix of a network's weights by enumeration of the classes."""
    case = cases.tree_case("balanced-5")
    rng = np.random.default_rng(0)
    inputs, theta = rng.normal(size=3), rng.normal(size=6 + 8) * 0.3

    def network(xp, t):
        hidden = xp.tanh(t[:6].reshape(2, 3) @ xp.asarray(inputs))
        return t[6:].reshape(4, 2) @ hidden

    scores = network(np, theta)
    jacobian, class_gradients = backend.network_jacobians(network, theta, case.tree, activation)
    checks.close(jacobian, oracle.jacobian(lambda t: network(np, t), theta), rtol=1e-10, atol=1e-12)
    pulled = jacobian.T @ np.diag(backend.fisher_diagonal(scores, case.tree, activation)) @ jacobian
    model = case.model(activation)
    wanted = oracle.fisher(lambda t: model.log_probs(network(np, t)), theta)
    checks.close(pulled, wanted, atol=1e-12)
    p = backend.catnat(scores, case.tree, activation)
    checks.close(np.einsum("k,ki,kj->ij", p, class_gradients, class_gradients), wanted, atol=1e-12)
    assert np.linalg.matrix_rank(wanted, tol=1e-10) == 4  # one direction per score, no more


def test_eighteen_classes_need_no_padding(backend):
    """The balanced tree over 18 classes is uniform at zero and its Fisher matrix diagonal.

    Padding to 32 and renormalizing over the first 18 is uniform at zero as well, but not diagonal.
    """
    case = cases.tree_case("balanced-18")
    checks.zero_scores_mean_the_prior(backend, case, cases.NATURAL)
    checks.fisher_is_diagonal(backend, case, cases.NATURAL)
    padded = cases.tree_case("balanced-32").model(cases.NATURAL)

    def renormalized(scores):
        p = padded.probs(scores)[:18]
        return np.log(p / p.sum())

    zero, scores = np.zeros(31), np.random.default_rng(0).normal(size=31) / 2
    checks.close(np.exp(renormalized(zero)), np.full(18, 1 / 18), rtol=1e-12)
    assert checks.off_diagonal(oracle.fisher(renormalized, scores)) > 1e-3
