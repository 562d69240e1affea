"""Natural gradients, KL steps, distances and conversions in JAX: traced arguments, transforms, sizes of programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catnat
import catnat.jax as cj

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")


@dataclasses.dataclass(frozen=True)
class Own(cj.Activation):
    """A user's own activation, a(x) = 1/2 + x / (2 sqrt(4 + x^2)), inverted in NumPy."""

    def logit(self, x, xp):
        return 2 * xp.arcsinh(x / 2)

    def inverse(self, p):
        return 2 * np.sinh((np.log(p) - np.log1p(-p)) / 2)


def normal(*shape: int, seed: int = 0, dtype=jnp.float64) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape)).astype(dtype)


def close(got, wanted, rtol=1e-10, atol=1e-12):
    assert got.shape == wanted.shape
    np.testing.assert_allclose(np.asarray(got, float), np.asarray(wanted, float), rtol=rtol, atol=atol)


def pulled_back(function: Callable, at: jax.Array, gradient: jax.Array) -> jax.Array:
    """What ``function`` makes of a gradient in the backward pass; forward it must change nothing."""
    value, pull = jax.vjp(function, at)
    np.testing.assert_array_equal(value, at)
    return pull(gradient)[0]


def test_forward_mode_has_the_same_factor():
    tree, scores, tangent = catnat.balanced(6), normal(5) / 2, normal(5, seed=1)
    value, got = jax.jvp(lambda s: cj.geometry.natural_gradient(s, tree), (scores,), (tangent,))
    np.testing.assert_array_equal(value, scores)
    close(got, tangent / cj.geometry.fisher_diagonal(scores, tree))
    close(
        jax.jacfwd(cj.geometry.softmax_natural_gradient)(scores),
        jax.jacrev(cj.geometry.softmax_natural_gradient)(scores),
    )


def test_damping_may_be_traced():
    scores, gradient = normal(3, 6), normal(3, 6, seed=1)

    @jax.jit
    def through(damping):
        return jax.vjp(lambda s: cj.geometry.natural_gradient(s, damping=damping), scores)[1](gradient)[0]

    close(through(0.3), pulled_back(lambda s: cj.geometry.natural_gradient(s, damping=0.3), scores, gradient))


def test_a_divergence_may_be_traced_and_no_gradient_flows():
    scores, gradient = normal(4, 6) / 3, normal(4, 6, seed=1)
    wanted = cj.geometry.kl_step(scores, gradient, 0.01)
    close(jax.jit(cj.geometry.kl_step)(scores, gradient, 0.01), wanted)
    slopes = jax.grad(lambda *args: cj.geometry.kl_step(*args).sum(), argnums=(0, 1, 2))(
        scores, gradient, jnp.full(4, 0.01)
    )
    assert all((slope == 0).all() for slope in slopes)


@pytest.mark.parametrize("num_classes", [2**20, 10**6])
def test_a_large_balanced_tree_is_a_small_program(num_classes):
    logits = jax.ShapeDtypeStruct((2, num_classes), jnp.float32)
    for kind in ("natural", "sigmoid"):
        program = jax.jit(lambda x, kind=kind: cj.scores_from_logits(x, activation=kind)).lower(logits)
        assert len(program.as_text()) < 200_000


# ---- transforms ----

# Functions of (scores, logits, tree, activation).
FUNCTIONS = {
    "natural_gradient": lambda s, x, t, a: cj.log_catnat(cj.geometry.natural_gradient(s, t, a, damping=1e-3), t, a),
    "softmax_natural_gradient": lambda s, x, t, a: jax.nn.log_softmax(
        cj.geometry.softmax_natural_gradient(x, damping=1e-3)
    ),
    "kl_step": lambda s, x, t, a: cj.geometry.kl_step(s, jnp.sin(s), jnp.square(s).sum(-1) * 1e-3, t, a),
    "fisher_rao_distance": lambda s, x, t, a: cj.geometry.fisher_rao_distance(s, 0.9 * s, t, a),
    "scores_from_logits": lambda s, x, t, a: cj.scores_from_logits(x, t, a),
    "scores_from_probs": lambda s, x, t, a: cj.scores_from_probs(jax.nn.softmax(x), t, a),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize(
    ("name", "activation"),
    [("balanced-18", cj.natural()), ("chain-7", cj.sigmoid()), ("huffman-zipf-50", Own())],
)
def test_jit_and_vmap(function, name, activation):
    tree = cases.tree_case(name).tree
    scores, logits = normal(4, tree.num_nodes) / 2, normal(4, tree.num_classes)

    def call(s, x):
        return function(s, x, tree, activation)

    wanted = call(scores, logits)
    close(jax.jit(call)(scores, logits), wanted, 1e-12)
    close(jax.vmap(call)(scores, logits), wanted, 1e-12)
