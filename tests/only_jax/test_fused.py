"""The fused kernels against what XLA compiles from the plain operations, which is tested against the oracle."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catnat
import catnat.jax as cj
from catnat.jax import _fused
from catnat.jax._plan import Plan

pytest.importorskip("catnat_kernels.jax_ops")


pytestmark = [
    pytest.mark.filterwarnings("ignore::catnat.EdgeWarning"),
    pytest.mark.skipif(cj.kernels()["cpu"].startswith("none"), reason="switched off"),
]


# Table and levels, constants of one node and of many.
TREES = {
    "balanced-8": catnat.balanced(8),
    "balanced-100": catnat.balanced(100),
    "huffman": catnat.huffman([1.0, 2, 4, 8, 16]),
    "chain": catnat.chain(40),
}
ACTIVATIONS = {"sigmoid": cj.sigmoid(), "natural": cj.natural(), "narrow": cj.natural(width=3.0)}


def problem_of(tree, activation=ACTIVATIONS["natural"], floored=True, dtype=jnp.float64):
    return _fused.Problem(Plan(tree, activation, jnp.dtype(dtype)), floored)


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(2 * np.random.default_rng(seed).normal(size=shape))


def both(problem, of) -> None:
    """``of`` the kernels and of the plain operations."""
    fused, plain = (jax.jit(lambda f=f: of(f))() for f in (lambda s: _fused._log_probs(s, problem), problem.plain))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-8, atol=1e-9), fused, plain)


@pytest.mark.parametrize("floored", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_values_and_gradients_are_those_of_plain_operations(tree, activation, floored):
    scores, grad = normal(0, 21, tree.num_nodes), normal(1, 21, tree.num_classes)
    both(problem_of(tree, activation, floored), lambda f: value_and_gradient(f, scores, grad))


def value_and_gradient(function, scores, grad):
    values, pull = jax.vjp(function, scores)
    return values, pull(grad)[0]


# Every way in which JAX may transform a call.
TRANSFORMS = {
    "jvp": lambda f, s, t: jax.jvp(f, (s,), (t,)),
    "vmap": lambda f, s, t: jax.vmap(f, in_axes=1)(jnp.stack([s, t], 1)),
    "vmap of jvp": lambda f, s, t: jax.vmap(lambda t: jax.jvp(f, (s[0],), (t,)))(t),
    "vmap of grad": lambda f, s, t: jax.vmap(jax.grad(lambda s: jnp.sin(f(s)).sum()))(s),
    "vmap of vjp": lambda f, s, t: jax.vmap(jax.vjp(f, s[0])[1])(jnp.eye(8)),
    "grad of vmap": lambda f, s, t: jax.grad(lambda s: jnp.sin(jax.vmap(f)(s)).sum())(s),
    "hessian": lambda f, s, t: jax.hessian(lambda s: jnp.sin(f(s)).sum())(s[0]),
    "reverse over reverse": lambda f, s, t: jax.jacrev(jax.grad(lambda s: jnp.sin(f(s)).sum()))(s[0]),
    "linearize": lambda f, s, t: jax.linearize(f, s)[1](t),
    "checkpoint": lambda f, s, t: jax.grad(jax.checkpoint(lambda s: jnp.sin(f(s)).sum()))(s),
    "scan": lambda f, s, t: jax.lax.scan(lambda carry, s: (carry + f(s).sum(), f(s)), 0.0, s),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_transforms(transform):
    scores, tangent = normal(0, 3, 7), normal(1, 3, 7)
    both(problem_of(TREES["balanced-8"]), lambda f: transform(f, scores, tangent))


@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_hostile_scores_stay_finite(activation, dtype):
    limits = jnp.finfo(dtype)
    values = [0.0, limits.tiny, limits.eps, 1.0, np.pi, 4 * np.pi, 1e4, limits.max**0.5, limits.max]
    scores = jnp.asarray([*values, *(-value for value in values)], dtype)[:, None]
    problem = problem_of(catnat.balanced(2), activation, dtype=dtype)
    found = value_and_gradient(lambda s: _fused._log_probs(s, problem), scores, jnp.ones((len(scores), 2), dtype))
    assert all(jnp.isfinite(each).all() and each.dtype == dtype for each in found)


def test_rows_in_parallel():
    scores, grad = normal(0, 3001, 31), normal(1, 3001, 32)
    problem = problem_of(catnat.balanced(32))
    both(problem, lambda f: value_and_gradient(f, scores, grad))


def test_outside_of_jit():
    scores, problem = normal(0, 3, 7), problem_of(TREES["balanced-8"])
    np.testing.assert_allclose(_fused._log_probs(scores, problem), problem.plain(scores), rtol=1e-9)


def test_who_is_served():
    class Own(cj.sigmoid):
        """A subclass may compute something else."""

    def program(dtype, activation="natural"):
        return jax.jit(lambda s: cj.log_catnat(s, activation=activation)).lower(jnp.zeros((2, 3), dtype)).as_text()

    assert "catnat_log_probs" in program(jnp.float32)
    assert "catnat_log_probs" in program(jnp.bfloat16)  # computed in float32
    assert "catnat_log_probs" not in program(jnp.float32, Own())


def test_shards_of_a_mesh():
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.PartitionSpec("rows")
    scores = normal(0, 4, 7)
    found = jax.jit(jax.shard_map(cj.log_catnat, mesh=mesh, in_specs=rows, out_specs=rows))(scores)
    np.testing.assert_allclose(found, cj.log_catnat(scores), rtol=1e-9)
