"""Latents as in DreamerV3, through ``catnat.torch`` and ``torch.distributions`` alone, against loops over all classes.

One-hot straight-through draws, 1% of the uniform distribution, Independent variables, a KL divergence with free nats.
"""

from __future__ import annotations

import functools

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
    pytest.mark.parametrize("kind", ["softmax", "sigmoid", "natural"]),
]


def latent(kind, scores):
    """N one-hot variables: the whole difference between softmax and a tree."""
    if kind == "softmax":
        probs = (1 - UNIMIX) * scores.softmax(-1) + UNIMIX / scores.shape[-1]
        return td.Independent(td.OneHotCategoricalStraightThrough(probs=probs), 1)
    return td.Independent(ct.OneHotCatnatStraightThrough(scores, activation=kind, unimix=UNIMIX), 1)


def make_scores(kind, classes, seed=0, spread=2.0):
    generator = torch.Generator().manual_seed(seed)
    shape = (ROWS, N, classes if kind == "softmax" else classes - 1)
    return spread * torch.randn(shape, generator=generator, dtype=torch.float64)


@functools.cache
def _model(kind, classes):
    return oracle.Model(oracle.balanced(classes), np.full(classes, 1 / classes), ACTIVATIONS[kind])


def true_probs(kind, row):
    """Of one variable, by its definition."""
    plain = np.exp(row) / sum(np.exp(row)) if kind == "softmax" else _model(kind, len(row) + 1).probs(row)
    return (1 - UNIMIX) * plain + UNIMIX / len(plain)


def all_probs(kind, scores):
    """(rows, N, K)."""
    return np.array([[true_probs(kind, variable) for variable in row] for row in scores.numpy()])


def test_every_class_keeps_its_fraction_of_the_uniform_distribution(kind, classes):
    for spread in (1.0, 50.0):  # the second: nodes that are certain, or nearly so
        scores = make_scores(kind, classes, spread=spread)
        probs = latent(kind, scores).base_dist.probs
        np.testing.assert_allclose(probs.numpy(), all_probs(kind, scores), rtol=1e-9)
        assert (probs >= UNIMIX / classes * (1 - 1e-12)).all()
    assert (probs.amin(-1) < 1.01 * UNIMIX / classes).all()  # so the floor is reached


def test_draws_are_one_hot_and_pass_the_gradient_of_the_probabilities(kind, classes):
    scores = make_scores(kind, classes).requires_grad_()
    torch.manual_seed(0)
    distribution = latent(kind, scores)
    drawn = distribution.rsample()
    assert drawn.shape == (ROWS, N, classes)
    assert ((drawn == 0) | (drawn == 1)).all()
    assert (drawn.sum(-1) == 1).all()
    costs = torch.randn(drawn.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    [found] = torch.autograd.grad((drawn * costs).sum(), scores)
    slopes = oracle.jacobian(functools.partial(true_probs, kind), scores[0, 0].detach().numpy())
    np.testing.assert_allclose(found[0, 0].numpy(), costs[0, 0].numpy() @ slopes, atol=1e-9)


def test_draws_have_the_probabilities(kind, classes):
    scores = make_scores(kind, classes, spread=1.0)
    torch.manual_seed(0)
    count = 5000
    frequency = latent(kind, scores).sample((count,)).mean(0).numpy()
    probs = all_probs(kind, scores)
    assert (np.abs(frequency - probs) < 6 * np.sqrt(probs * (1 - probs) / count) + 6 / count).all()


def test_independent_sums_over_the_variables(kind, classes):
    scores = make_scores(kind, classes)
    distribution, logs = latent(kind, scores), np.log(all_probs(kind, scores))
    assert (distribution.batch_shape, distribution.event_shape) == ((ROWS,), (N, classes))
    torch.manual_seed(0)
    drawn = distribution.sample()
    wanted = [sum(logs[row, n][drawn[row, n].numpy() == 1].item() for n in range(N)) for row in range(ROWS)]
    np.testing.assert_allclose(distribution.log_prob(drawn).numpy(), wanted)
    np.testing.assert_allclose(distribution.entropy().numpy(), -(np.exp(logs) * logs).sum((1, 2)))


def test_the_divergence_is_the_sum_over_all_classes(kind, classes):
    posterior, prior = make_scores(kind, classes), make_scores(kind, classes, seed=1)
    q, p = all_probs(kind, posterior), all_probs(kind, prior)
    wanted = [
        sum(q[row, n, k] * np.log(q[row, n, k] / p[row, n, k]) for n in range(N) for k in range(classes))
        for row in range(ROWS)
    ]
    found = td.kl_divergence(latent(kind, posterior), latent(kind, prior))
    np.testing.assert_allclose(found.numpy(), wanted)


def test_the_divergence_is_bounded_where_prior_and_posterior_are_certain_of_different_classes(kind, classes):
    far = make_scores(kind, classes, spread=0.0) + 200.0
    if kind == "softmax":
        far[..., 1:] = 0.0
    scores = [far.clone().requires_grad_(), (-far).requires_grad_()]
    found = td.kl_divergence(*(latent(kind, entry) for entry in scores))
    assert (found <= N * np.log(classes / UNIMIX)).all()
    assert (found > N * np.log(classes)).all()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(found.sum(), scores))


def test_free_nats_stop_the_gradient_below_them(kind, classes):
    prior = make_scores(kind, classes, seed=1).requires_grad_()
    posterior = prior.detach() + 0.1 * make_scores(kind, classes)  # a row that is close to its prior ...
    posterior[1] = make_scores(kind, classes)[1]  # ... and one that is far
    divergence = td.kl_divergence(latent(kind, posterior), latent(kind, prior))
    assert divergence[0] < 1 < divergence[1]
    clamped = divergence.clamp(min=1.0)
    assert clamped[0] == 1
    [with_free, without] = (torch.autograd.grad(d.sum(), prior, retain_graph=True)[0] for d in (clamped, divergence))
    assert (with_free[0] == 0).all()
    assert (without[0] != 0).any()
    torch.testing.assert_close(with_free[1], without[1])
