"""Entropy, KL divergence and gradients of everything."""

import numpy as np
import pytest
from conformance import checks


@pytest.mark.parametrize("check", [checks.entropy_is_its_definition, checks.kl_is_its_definition, checks.gradients])
def test_check(backend, tree, activation, check):
    check(backend, tree, activation)


def test_kl_broadcasts(backend, tree, activation):
    model = tree.model(activation)
    p, q = model.inside(np.random.default_rng(0), (3, 1)), model.inside(np.random.default_rng(1), (2,))
    got = backend.kl_divergence(p, q, tree.tree, activation)
    wanted = [[model.kl(row[0], other) for other in q] for row in p]
    checks.close(got, wanted, rtol=1e-11, atol=1e-12)


def test_entropy_at_zero_is_the_priors(backend, tree, activation):
    prior = np.array(tree.weights) / np.sum(tree.weights)
    got = backend.entropy(np.zeros(tree.num_nodes), tree.tree, activation)
    checks.close(got, -(prior * np.log(prior)).sum(), rtol=1e-12, atol=1e-15)
