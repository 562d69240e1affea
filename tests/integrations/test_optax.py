"""The natural gradient as a transformation, against the real optax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catnat
import catnat.jax as cj

pytest.importorskip("optax", minversion="0.2")
import optax

from catnat.integrations.optax import scale_by_fisher

TREE = catnat.huffman([5, 3, 2, 1, 1])


def scores_of(*batch: int, dtype=jnp.float32) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=(*batch, 4)) / 2).astype(dtype)


def loss(scores: jax.Array) -> jax.Array:
    return (cj.catnat(scores, TREE, "sigmoid") * jnp.linspace(-1, 2, 5, dtype=scores.dtype)).sum()


@pytest.mark.one_row
@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_it_is_what_a_loss_of_natural_gradient_gives(damping):
    optimizer, scores = scale_by_fisher(TREE, "sigmoid", damping=damping), {"a": scores_of(3), "b": scores_of()}
    plain = jax.tree.map(jax.grad(loss), scores)
    got, _ = jax.jit(optimizer.update)(plain, optimizer.init(scores), scores)
    wanted = jax.tree.map(
        jax.grad(lambda s: loss(cj.geometry.natural_gradient(s, TREE, "sigmoid", damping=damping))), scores
    )
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), got, wanted)
    for name, gradient in plain.items():
        fisher = cj.geometry.fisher_diagonal(scores[name], TREE, "sigmoid")
        np.testing.assert_allclose(got[name], gradient / (fisher + damping), rtol=1e-5)


def test_saturated_scores_do_not_move():
    scores = jnp.array([4.0, 0.3, -0.2])  # the root always says yes: node 1 is never reached
    optimizer = scale_by_fisher(activation="natural", damping=0.1)
    updates, _ = optimizer.update(jnp.ones(3), optimizer.init(scores), scores)
    np.testing.assert_allclose(updates, [0.0, 0.0, 1 / 0.35], rtol=1e-6)


def test_every_parameter_has_its_own_default_tree():
    scores = [jnp.zeros(3), jnp.zeros((2, 6))]
    optimizer = scale_by_fisher()
    updates, _ = optimizer.update(jax.tree.map(jnp.ones_like, scores), optimizer.init(scores), scores)
    for update, at in zip(updates, scores, strict=True):
        np.testing.assert_allclose(update, 1 / cj.geometry.fisher_diagonal(at), rtol=1e-6)


def test_other_parameters_are_left_to_others():
    params = {"scores": scores_of(), "network": jnp.ones((2, 2))}
    optimizer = optax.partition(
        {"scores": optax.chain(scale_by_fisher(TREE, "sigmoid"), optax.scale(-0.1)), "network": optax.sgd(0.1)},
        {"scores": "scores", "network": "network"},
    )
    gradients = {"scores": jax.grad(loss)(params["scores"]), "network": jnp.ones((2, 2))}
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    np.testing.assert_allclose(updates["network"], np.full((2, 2), -0.1), rtol=1e-6)
    fisher = cj.geometry.fisher_diagonal(params["scores"], TREE, "sigmoid")
    np.testing.assert_allclose(updates["scores"], -0.1 * gradients["scores"] / fisher, rtol=1e-5)


def test_damping_may_have_a_schedule():
    optimizer = optax.inject_hyperparams(lambda damping: scale_by_fisher(TREE, "sigmoid", damping=damping))(
        damping=optax.linear_schedule(1.0, 0.0, 10)
    )
    scores, gradient = scores_of(), jnp.ones(4)
    state = optimizer.init(scores)
    for step in range(3):
        updates, state = jax.jit(optimizer.update)(gradient, state, scores)
        damping = 1.0 - step / 10
        np.testing.assert_allclose(
            updates, 1 / (cj.geometry.fisher_diagonal(scores, TREE, "sigmoid") + damping), rtol=1e-5
        )


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16], ids=lambda d: d.__name__)
def test_half_precision(dtype):
    """The gradient keeps its own dtype, whatever that of the scores is."""
    scores, gradient = scores_of(dtype=dtype), jnp.full(4, 0.1, jnp.float32)
    optimizer = scale_by_fisher(TREE, "sigmoid")
    wanted = 0.1 / cj.geometry.fisher_diagonal(scores.astype(jnp.float32), TREE, "sigmoid")
    for given in (gradient, gradient.astype(dtype)):
        got, _ = optimizer.update(given, optimizer.init(scores), scores)
        assert got.dtype == given.dtype
        np.testing.assert_allclose(np.asarray(got, np.float32), wanted, rtol=0.01)


def test_leaves_without_a_gradient_are_left_alone():
    """Equinox's gradients have None in the places of fields that are no arrays."""
    optimizer = scale_by_fisher()
    params, gradients = {"scores": jnp.zeros(3), "act": jax.nn.relu}, {"scores": jnp.ones(3), "act": None}
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    assert updates["act"] is None
    np.testing.assert_allclose(updates["scores"], optimizer.update(jnp.ones(3), None, jnp.zeros(3))[0])
