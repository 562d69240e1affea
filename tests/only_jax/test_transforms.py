"""What only JAX has: jit, vmap, scan, checkpoint, shard_map, forward and second derivatives, keys, dtypes, x64 off."""

from __future__ import annotations

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from only_jax.processes import python

import catnat
import catnat.jax as cj

TREES = {
    **{f"balanced-{k}": catnat.balanced(k) for k in (1, 5, 100)},
    "chain-75": catnat.chain(75),  # deeper than any walk
    "huffman-90": catnat.huffman(cases.zipf(90)),  # a table
}
ACTIVATIONS = {
    "sigmoid": cj.sigmoid(),
    "natural": cj.natural(),
}
# Every tree with one activation, every activation with two trees: compiling takes nearly all of the time.
ROWS = [(tree, list(ACTIVATIONS)[i % 2]) for i, tree in enumerate(TREES)]
each_row = pytest.mark.parametrize(("tree", "activation"), ROWS)
pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")


def scores_of(tree, *batch, size=1.0, seed=0):
    return jnp.asarray(size * np.random.default_rng(seed).normal(size=(*batch, tree.num_nodes)))


@pytest.fixture(params=ACTIVATIONS.values(), ids=ACTIVATIONS)
def activation(request):
    return request.param


def facts_of(tree, activation):
    """One function of scores that computes every fact."""

    def facts(scores):
        args = (tree, activation)
        functions = (cj.catnat, cj.log_catnat, cj.entropy, cj.geometry.reach, cj.geometry.fisher_diagonal)
        return [
            *(function(scores, *args) for function in functions),
            cj.log_prob(scores, jnp.zeros(scores.shape[:-1], int), *args),
            cj.kl_divergence(scores, 0.5 * scores, *args),
            cj.Catnat(scores, *args, unimix=0.1, temperature=0.7).logits,
        ]

    return facts


def close(found, wanted, **tolerance):
    tolerance = {"rtol": 1e-12, "atol": 1e-14, **tolerance}
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, **tolerance), found, wanted)


@each_row
def test_jit_and_vmap(tree, activation):
    tree, activation = TREES[tree], ACTIVATIONS[activation]
    scores, facts = scores_of(tree, 3, 2), facts_of(tree, activation)
    wanted = facts(scores)
    close(jax.jit(facts)(scores), wanted)
    close(jax.jit(jax.vmap(jax.vmap(facts)))(scores), wanted)


@pytest.mark.expensive_compile
@each_row
def test_scan_and_checkpoint(tree, activation):
    """A loss summed over rows, one by one in a scan whose values the backward pass computes again."""
    tree, activation = TREES[tree], ACTIVATIONS[activation]
    scores, facts = scores_of(tree, 3), facts_of(tree, activation)

    def row_loss(row):
        return sum(jnp.sum(jnp.sin(fact)) for fact in facts(row))

    @jax.jit
    def by_scan(scores):
        def add(total, row):
            return total + jax.checkpoint(row_loss)(row), None

        return jax.lax.scan(add, jnp.zeros(()), scores)[0]

    wanted = jax.jit(jax.value_and_grad(lambda s: jax.vmap(row_loss)(s).sum()))(scores)
    close(jax.value_and_grad(by_scan)(scores), wanted, rtol=1e-11, atol=1e-12)


@each_row
def test_forward_mode_is_reverse_mode(tree, activation):
    tree = TREES[tree]
    scores, direction = scores_of(tree, size=0.5), scores_of(tree, seed=1)
    facts = facts_of(tree, ACTIVATIONS[activation])
    values, slopes = jax.jit(lambda s, d: jax.jvp(facts, (s,), (d,)))(scores, direction)
    cotangents = [jnp.asarray(np.random.default_rng(2).normal(size=value.shape)) for value in values]
    (pulled,) = jax.jit(lambda s: jax.vjp(facts, s)[1](cotangents))(scores)
    forward = sum((slope * cotangent).sum() for slope, cotangent in zip(slopes, cotangents, strict=True))
    np.testing.assert_allclose(forward, (pulled * direction).sum(), rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_shards_of_a_batch_on_four_devices():
    """By shard_map, and by jit of a sharded array: the results of one device. Devices are counted once per process."""
    code = """
import jax, jax.numpy as jnp, numpy as np, catnat, catnat.jax as cj
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
assert len(jax.devices()) == 4
mesh = jax.make_mesh((4,), ("batch",), axis_types=(AxisType.Auto,))
for tree in (catnat.balanced(10), catnat.balanced(100), catnat.huffman(1 / np.arange(1, 91))):
    def facts(scores, keys):
        distribution = cj.Catnat(scores, tree)
        draws = jax.vmap(lambda s, k: cj.sample(s, tree, key=k))(scores, keys)
        gradient = jax.grad(lambda s: cj.log_prob(s, draws, tree).sum())(scores)
        step = cj.geometry.kl_step(scores, gradient, 0.01, tree)
        return distribution.probs, distribution.entropy(), draws, distribution.log_prob(draws), gradient, step
    scores = jnp.asarray(np.random.default_rng(0).normal(size=(8, tree.num_nodes)).astype(np.float32))
    keys = jax.random.split(jax.random.key(0), 8)
    wanted = jax.jit(facts)(scores, keys)
    mapped = jax.jit(jax.shard_map(facts, mesh=mesh, in_specs=P("batch"), out_specs=P("batch")))(scores, keys)
    there = NamedSharding(mesh, P("batch"))
    placed = jax.jit(facts)(jax.device_put(scores, there), jax.device_put(keys, there))
    for found in (mapped, placed):
        assert len(found[0].sharding.device_set) == 4
        for one, other in zip(found, wanted):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
"""
    python(code, XLA_FLAGS="--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0")


@pytest.mark.parametrize(("name", "where"), [("balanced-5", "zero"), ("huffman-90", "inside")])
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


@pytest.mark.expensive_compile
def test_second_derivatives_are_finite_everywhere(activation):
    tree = catnat.balanced(8)
    for dtype in (jnp.float32, jnp.float64):
        limits = jnp.finfo(dtype)
        for size in (0.0, limits.tiny, np.pi, np.nextafter(np.pi, 0), 1e4, limits.max):
            scores = jnp.full(7, size, dtype)
            for function in (cj.entropy, lambda *args: cj.log_catnat(*args)[3]):
                hessian = jax.hessian(lambda s, f=function: f(s, tree, activation))(scores)
                assert jnp.isfinite(hessian).all(), (dtype, size)


@pytest.mark.slow
def test_debug_nans_finds_none_on_the_way_back():
    """Not even one that a later product would hide."""
    tree = catnat.balanced(5)
    facts = facts_of(tree, cj.natural())
    scores = jnp.concatenate([size * scores_of(tree, 4) for size in (0.0, 1.0, 1e4, 1e30)])
    with jax.debug_nans(True):
        gradient = jax.grad(lambda scores: sum(fact.sum() for fact in facts(scores)))(scores)
    assert jnp.isfinite(gradient).all()


@each_row
def test_draws_under_jit_and_vmap(tree, activation):
    tree, activation = TREES[tree], ACTIVATIONS[activation]
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


@pytest.mark.parametrize(
    ("dtype", "activation"),
    [
        (jnp.float16, "natural"),
        (jnp.bfloat16, "sigmoid"),
        (jnp.float32, "natural"),
    ],
)
def test_dtypes_come_back(dtype, activation):
    """And every number is finite, whatever finite scores come in."""
    tree, limits, activation = catnat.balanced(100), jnp.finfo(dtype), ACTIVATIONS[activation]
    special = jnp.array([0, limits.tiny, 3.140625, 3.15625, 9, 1e4, limits.max], dtype)
    picks = np.random.default_rng(0).integers(len(special), size=(30, tree.num_nodes))
    scores = special[picks] * jnp.asarray(np.random.default_rng(1).choice([-1, 1], picks.shape), dtype)
    facts = facts_of(tree, activation)

    @jax.jit
    def both(scores):
        gradient = jax.grad(lambda s: cj.log_catnat(s, tree, activation).astype(jnp.float32).sum())
        return [*facts(scores), gradient(scores), cj.geometry.log_abs_det_jacobian(scores, tree, activation)]

    for found in both(scores):
        assert found.dtype == dtype
        assert jnp.isfinite(found).all()


# ---- checks ----


def test_classes_are_not_checked_where_they_are_not_known():
    clipped = jax.jit(lambda c: cj.log_prob(jnp.zeros(3), c))(jnp.array(4))
    np.testing.assert_allclose(clipped, np.log(0.25), rtol=1e-12)


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
    python(code)
