"""What only JAX has: jit, vmap, forward and second derivatives, keys, constants of compiled programs, x64 off."""

from __future__ import annotations

import subprocess
import sys

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catnat
import catnat.jax as cj

TREES = {
    **{f"balanced-{k}": catnat.balanced(k) for k in (1, 2, 5, 8, 100)},
    "chain-75": catnat.chain(75),  # deeper than any walk
    "huffman-90": catnat.huffman(cases.zipf(90)),  # a table
}
ACTIVATIONS = {
    "sigmoid": cj.sigmoid(),
    "natural": cj.natural(),
    "reflect-isotropic": cj.natural(boundary="reflect", scaling="isotropic"),
}
FUNCTIONS = (cj.catnat, cj.log_catnat, cj.entropy, cj.reach, cj.fisher_diagonal)
pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")


def scores_of(tree, *batch, size=1.0, seed=0):
    return jnp.asarray(size * np.random.default_rng(seed).normal(size=(*batch, tree.num_nodes)))


@pytest.fixture(params=TREES.values(), ids=TREES)
def tree(request):
    return request.param


@pytest.fixture(params=ACTIVATIONS.values(), ids=ACTIVATIONS)
def activation(request):
    return request.param


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_jit_and_vmap(function, tree, activation):
    scores = scores_of(tree, 3, 2)
    wanted = function(scores, tree, activation)
    compiled = jax.jit(function, static_argnums=(1, 2))(scores, tree, activation)
    np.testing.assert_allclose(compiled, wanted, rtol=1e-13, atol=1e-15)
    rows = jax.vmap(jax.vmap(lambda s: function(s, tree, activation)))(scores)
    np.testing.assert_allclose(rows, wanted, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("function", [cj.log_catnat, cj.entropy], ids=lambda f: f.__name__)
def test_forward_mode_is_reverse_mode(function, tree, activation):
    scores, direction = scores_of(tree, size=0.5), scores_of(tree, seed=1)
    value, slope = jax.jvp(lambda s: function(s, tree, activation), (scores,), (direction,))
    _, pull_back = jax.vjp(lambda s: function(s, tree, activation), scores)
    cotangent = jnp.asarray(np.random.default_rng(2).normal(size=value.shape))
    np.testing.assert_allclose((slope * cotangent).sum(), (pull_back(cotangent)[0] * direction).sum(), rtol=1e-10)


@pytest.mark.parametrize("name", ["balanced-5", "huffman-90"])
@pytest.mark.parametrize("where", ["zero", "inside"])
def test_hessian_is_the_difference_of_gradients(name, where, activation):
    """At zero scores too, where formulas have kinks that must cancel."""
    tree = TREES[name]
    scores = 0 * scores_of(tree) if where == "zero" else scores_of(tree, size=0.3)
    gradient = jax.grad(lambda s: cj.log_catnat(s, tree, activation)[1])
    hessian, step = jax.jacfwd(gradient)(scores), 1e-5
    differences = [
        (gradient(scores + step * e) - gradient(scores - step * e)) / (2 * step) for e in jnp.eye(4, len(scores))
    ]
    np.testing.assert_allclose(hessian[:4], np.stack(differences), atol=1e-7)


def test_second_derivatives_are_finite_everywhere(activation):
    tree = catnat.balanced(8)
    for dtype in (jnp.float32, jnp.float64):
        limits = jnp.finfo(dtype)
        for size in (0.0, limits.tiny, np.pi, np.nextafter(np.pi, 0), 1e4, limits.max):
            scores = jnp.full(7, size, dtype)
            for function in (cj.entropy, lambda *args: cj.log_catnat(*args)[3]):
                hessian = jax.hessian(lambda s, f=function: f(s, tree, activation))(scores)
                assert jnp.isfinite(hessian).all(), (dtype, size)


def test_draws_under_jit_and_vmap(tree, activation):
    scores, key = scores_of(tree, 4), jax.random.key(0)
    eager = cj.sample(scores, tree, activation, sample_shape=(6,), key=key)
    assert eager.shape == (6, 4)
    compiled = jax.jit(lambda s, k: cj.sample(s, tree, activation, sample_shape=(6,), key=k))(scores, key)
    np.testing.assert_array_equal(compiled, eager)
    keys = jax.random.split(key, 4)
    rows = jax.vmap(lambda s, k: cj.sample(s, tree, activation, key=k))(scores, keys)
    assert ((rows >= 0) & (rows < tree.num_classes)).all()
    old = cj.sample(scores, tree, activation, sample_shape=(6,), key=jax.random.PRNGKey(0))  # as jax.random takes them
    np.testing.assert_array_equal(old, eager)


def test_no_gradient_goes_through_draws():
    assert (jax.grad(lambda s: cj.sample(s, key=jax.random.key(0)).astype(s.dtype))(jnp.zeros(7)) == 0).all()


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_dtypes_come_back(dtype, activation):
    scores = scores_of(catnat.balanced(100), 3).astype(dtype)
    for function in FUNCTIONS:
        assert function(scores, None, activation).dtype == dtype
    gradient = jax.grad(lambda s: cj.log_catnat(s, None, activation).sum())(scores)
    assert gradient.dtype == dtype


# ---- constants ----


@pytest.mark.parametrize("num_classes", [2**20, 10**6])
@pytest.mark.parametrize("name", ["natural", "reflect-isotropic"])
def test_a_large_balanced_tree_is_a_small_program(num_classes, name):
    tree, scores = catnat.balanced(num_classes), jax.ShapeDtypeStruct((2, num_classes - 1), jnp.float32)
    classes, key = jax.ShapeDtypeStruct((2,), jnp.int32), jax.random.key(0)
    activation = ACTIVATIONS[name]
    programs = [
        jax.jit(jax.value_and_grad(lambda s: cj.log_catnat(s, tree, activation)[0, 0])).lower(scores),
        jax.jit(lambda s, c: cj.log_prob(s, c, tree, activation)).lower(scores, classes),
        jax.jit(lambda s: cj.sample(s, tree, activation, key=key)).lower(scores),
    ]
    for program in programs:
        assert len(program.as_text()) < 200_000


# ---- checks ----


def test_values_are_checked_where_they_are_known():
    with pytest.raises(ValueError, match="classes"):
        cj.log_prob(jnp.zeros(3), jnp.array(4))
    clipped = jax.jit(lambda c: cj.log_prob(jnp.zeros(3), c))(jnp.array(4))
    np.testing.assert_allclose(clipped, np.log(0.25), rtol=1e-12)
    with pytest.raises(TypeError, match=r"list.*jnp.asarray"):
        cj.catnat([0.0, 1.0])
    with pytest.raises(TypeError, match="floating-point"):
        cj.catnat(jnp.zeros(3, int))
    with pytest.raises(ValueError, match="3 nodes"):
        cj.catnat(jnp.zeros(4), catnat.balanced(4))


def test_cross_entropy_is_the_weighted_mean_of_log_probabilities():
    rng = np.random.default_rng(0)
    scores, weight = jnp.asarray(rng.normal(size=(5, 2, 9))), jnp.asarray(rng.random(10))
    target = jnp.asarray(rng.integers(10, size=(5, 2))).at[0, 0].set(-100)
    counted = np.asarray(weight)[np.maximum(target, 0)] * (np.asarray(target) != -100)
    logs = np.asarray(cj.log_catnat(scores))
    picked = np.take_along_axis(logs, np.maximum(target, 0)[..., None], -1)[..., 0]
    np.testing.assert_allclose(
        cj.cross_entropy(scores, target, weight=weight), -(counted * picked).sum() / counted.sum(), rtol=1e-12
    )
    hot = jax.nn.one_hot(target, 10, dtype=scores.dtype)
    for smoothing in (0.0, 0.2):
        of_probs = cj.cross_entropy(scores[1:], hot[1:], reduction="none", label_smoothing=smoothing)
        of_classes = cj.cross_entropy(scores[1:], target[1:], reduction="none", label_smoothing=smoothing)
        np.testing.assert_allclose(of_probs, of_classes, rtol=1e-12)
    assert cj.cross_entropy(scores, jnp.full((5, 2), -100)) == 0


def test_without_x64():
    code = """
import jax, jax.numpy as jnp, numpy as np, catnat, catnat.jax as cj
for tree in (catnat.balanced(10), catnat.balanced(1000), catnat.chain(70)):
    scores = np.random.default_rng(0).normal(size=(3, tree.num_nodes))
    p = cj.catnat(scores, tree, "sigmoid")
    assert p.dtype == jnp.float32, p.dtype
    assert abs(p.sum(-1) - 1).max() < 1e-5
    assert cj.sample(scores, tree, "sigmoid", key=jax.random.key(0)).dtype == jnp.int32
    assert cj.mode(scores, tree, "sigmoid").dtype == jnp.int32
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
