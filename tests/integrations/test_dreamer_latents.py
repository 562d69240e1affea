"""Latents as in DreamerV3: Independent one-hot straight-through variables with 1% of the uniform distribution.

Of one variable the conformance suite has every fact; here are several, and the bound for which unimix is there.
"""

from __future__ import annotations

import math

import numpy as np
import oracle
import pytest
import torch
from torch import distributions as td

import catnat.torch as ct

ROWS, N, UNIMIX = 2, 3, 0.01
ACTIVATIONS = {"sigmoid": oracle.Sigmoid(), "natural": oracle.Natural()}

pytestmark = [
    pytest.mark.parametrize("classes", [24, 32, 48, 96]),
    pytest.mark.parametrize("kind", ACTIVATIONS),
]


def latent(kind, scores):
    return td.Independent(ct.OneHotCatnatStraightThrough(scores, activation=kind, unimix=UNIMIX), 1)


def make_scores(classes, seed=0):
    return 2 * torch.randn(ROWS, N, classes - 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def all_probs(kind, scores):
    """(rows, N, K), by the oracle's loops."""
    classes = scores.shape[-1] + 1
    model = oracle.Model(oracle.balanced(classes), np.full(classes, 1 / classes), ACTIVATIONS[kind])
    plain = np.array([[model.probs(variable) for variable in row] for row in scores.numpy()])
    return (1 - UNIMIX) * plain + UNIMIX / classes


def test_log_probabilities_entropies_and_divergences_are_sums_over_the_variables(kind, classes):
    scores, others = make_scores(classes), make_scores(classes, seed=1)
    posterior, prior = latent(kind, scores), latent(kind, others)
    q, p = all_probs(kind, scores), all_probs(kind, others)
    drawn = posterior.rsample()
    assert (posterior.batch_shape, posterior.event_shape) == ((ROWS,), (N, classes))
    np.testing.assert_allclose(posterior.log_prob(drawn), np.log((q * drawn.numpy()).sum(-1)).sum(-1))
    np.testing.assert_allclose(posterior.entropy(), -(q * np.log(q)).sum((1, 2)))
    np.testing.assert_allclose(td.kl_divergence(posterior, prior), (q * np.log(q / p)).sum((1, 2)))


def test_the_divergence_is_bounded_where_prior_and_posterior_are_certain_of_different_classes(kind, classes):
    far = torch.full((ROWS, N, classes - 1), 200.0, dtype=torch.float64)
    scores = [far.clone().requires_grad_(), (-far).requires_grad_()]
    found = td.kl_divergence(*(latent(kind, each) for each in scores))
    assert (found <= N * math.log(classes / UNIMIX)).all()
    assert (found > N * math.log(classes)).all()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(found.sum(), scores))
