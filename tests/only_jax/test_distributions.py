"""Distributions as pytrees, masks where values are known and where they are not, several variables at once."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import checks

import catnat
import catnat.jax as cj

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")

OPTIONS = {name: options.arguments for name, options in cases.OPTIONS.items()}
SOME_OPTIONS = ("mask", "unimix", "T3-unimix")
ACTIVATIONS = {"natural": cj.natural(), "sigmoid": cj.sigmoid()}
some_options = pytest.mark.parametrize(
    "options",
    # The last has everything at once, and takes three times as long to compile.
    [
        pytest.param(OPTIONS[name], marks=[pytest.mark.expensive_compile] * (name == SOME_OPTIONS[-1]))
        for name in SOME_OPTIONS
    ],
    ids=SOME_OPTIONS,
)


def normal(*shape, seed=0, size=1.0):
    return jnp.asarray(size * np.random.default_rng(seed).normal(size=shape))


def masks(num_classes, *batch, seed=0):
    return jnp.asarray(cases.masks(num_classes, math.prod(batch), seed).reshape(*batch, num_classes))


def forest_masks(forest, rows, seed=0):
    parts = [np.roll(cases.masks(size, rows, seed + n), n, 0) for n, size in enumerate(forest.sizes)]
    return jnp.asarray(np.concatenate(parts, -1))


def facts(dist):
    return {"probs": dist.probs, "logits": dist.logits, "entropy": dist.entropy(), "mode": dist.mode}


def assert_same(got, wanted, rtol=1e-12, atol=1e-13):
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        assert got[name].shape == value.shape, name
        np.testing.assert_allclose(got[name], value, rtol=rtol, atol=atol, err_msg=name)


def every_kind(batch=(3,), options=None):
    """One of each class, over five classes or over variables of 3, 4, 2 and 4, with a mask if options are given."""
    forest, extra = catnat.Forest([3, 4, 2, 4]), options or {}
    mask = {"mask": masks(5, *batch)} if options else {}
    several = {"mask": forest_masks(forest, math.prod(batch)).reshape(*batch, 13)} if options else {}
    relaxed = {name: value for name, value in extra.items() if name != "temperature"}
    return [
        cj.Catnat(normal(*batch, 4), **mask, **extra),
        cj.OneHotCatnat(normal(*batch, 4), **mask, **extra),
        cj.OneHotCatnatStraightThrough(normal(*batch, 4), **mask, **extra),
        cj.RelaxedOneHotCatnat(0.7, normal(*batch, 4), **mask, **relaxed),
        cj.MultiCatnat(normal(*batch, 9), forest, **several, **extra),
    ]


# ---- pytrees ----


@pytest.mark.parametrize("options", [None, OPTIONS["T3-unimix"]], ids=["plain", "all"])
def test_a_distribution_is_a_pytree_of_its_arrays(options):
    for dist in every_kind(options=options):
        leaves, structure = jax.tree.flatten(dist)
        assert {leaf.shape[0] for leaf in leaves} == {3}  # every leaf has the batch in front
        hot = isinstance(dist, cj.RelaxedOneHotCatnat) or options is not None
        assert len(leaves) == 1 + (options is not None) + hot
        again = jax.tree.unflatten(structure, leaves)
        assert type(again) is type(dist)
        assert jax.tree.structure(again) == structure
        assert hash(structure) == hash(jax.tree.structure(again))
        for name in dist.__dict__:
            assert getattr(again, name) is getattr(dist, name)
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(dist)]
        assert set(paths) <= {".scores", ".mask", ".temperature"}
        jax.tree.map(lambda _: None, dist)  # anything can stand in for an array
        jax.tree.map(lambda _: object(), dist)
        with pytest.raises(dataclasses.FrozenInstanceError):
            dist.scores = None


def test_other_trees_and_options_are_other_structures():
    scores = jnp.zeros(4)
    dists = [
        cj.Catnat(scores),
        cj.OneHotCatnat(scores),
        cj.Catnat(scores, catnat.chain(5)),
        cj.Catnat(scores, activation="natural"),
        cj.Catnat(scores, mask=jnp.ones(5, bool)),
        cj.Catnat(scores, temperature=2.0),
        cj.Catnat(scores, unimix=0.1),
    ]
    assert len({jax.tree.structure(dist) for dist in dists}) == len(dists)
    assert jax.tree.structure(cj.Catnat(scores + 1, catnat.balanced(5))) == jax.tree.structure(dists[0])


@jax.jit
def through_every_door(dist, value):
    """What a distribution says inside a compiled function: as a whole, row by row, and step by step of a scan."""
    whole = {**facts(dist), "log_prob": dist.log_prob(value)}
    rows = jax.vmap(facts)(dist)
    rows["log_prob"] = jax.vmap(lambda d, v: d.log_prob(v), in_axes=(0, 1), out_axes=1)(dist, value)
    _, steps = jax.lax.scan(lambda carry, row: (carry.expand((3,)), facts(row)), dist, dist)
    steps["log_prob"] = whole["log_prob"]
    return whole, rows, steps


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", *SOME_OPTIONS])
def test_jit_vmap_and_scan(name):
    """What comes out of every transform is what was computed outside."""
    plain, hot, _, _, several = every_kind(options=OPTIONS.get(name))
    for dist in (plain, several, *([hot] if name == "mask" else [])):
        value = dist.sample((2,), key=jax.random.key(1))
        wanted = {**facts(dist), "log_prob": dist.log_prob(value)}
        for found in through_every_door(dist, value):
            assert_same(found, wanted)
    row = jax.tree.map(lambda leaf: leaf[1], several)
    assert row.batch_shape == ()
    np.testing.assert_allclose(row.probs, several.probs[1], rtol=1e-12, atol=1e-13)


@some_options
def test_made_inside_and_returned(options):
    scores, mask = normal(3, 99), masks(100, 3)
    wanted = facts(cj.Catnat(scores, mask=mask, **options))

    def make(s, m):
        return cj.Catnat(s, mask=m, **options)

    for dist in (jax.jit(make)(scores, mask), jax.vmap(make)(scores, mask)):
        assert dist.batch_shape == (3,)
        assert_same(facts(dist), wanted)


def test_a_gradient_in_a_distribution_is_a_distribution():
    dist = cj.Catnat(normal(3, 4), temperature=jnp.array([0.5, 1.0, 2.0]))
    slope = jax.grad(lambda d: d.entropy().sum())(dist)
    assert isinstance(slope, cj.Catnat)
    step = 1e-6
    higher = dataclasses.replace(dist, temperature=dist.temperature + step)
    lower = dataclasses.replace(dist, temperature=dist.temperature - step)
    wanted = (higher.entropy() - lower.entropy()) / (2 * step)
    np.testing.assert_allclose(slope.temperature, wanted, rtol=1e-7)
    wanted = jax.grad(lambda s: cj.Catnat(s, temperature=dist.temperature).entropy().sum())(dist.scores)
    np.testing.assert_allclose(slope.scores, wanted, rtol=1e-12)


def test_annealing_a_temperature_compiles_once():
    traced = []

    @jax.jit
    def entropy(dist):
        traced.append(dist)
        return dist.entropy()

    values = [float(entropy(cj.Catnat(jnp.ones(9), temperature=temperature))) for temperature in (0.5, 0.7, 2.0)]
    assert len(traced) == 1
    assert values == sorted(values)
    entropy(cj.Catnat(jnp.ones(9)))  # without one, nothing need be divided
    assert len(traced) == 2


@pytest.mark.expensive_compile
@pytest.mark.parametrize("options", [None, OPTIONS["T0.4-unimix"]], ids=["plain", "all"])
def test_expand(options):
    for dist in every_kind(options=options):
        wide = dist.expand((2, 3))
        assert type(wide) is type(dist)
        assert wide.batch_shape == (2, 3)
        assert wide.event_shape == dist.event_shape
        np.testing.assert_allclose(wide.probs, np.broadcast_to(dist.probs, wide.probs.shape), rtol=1e-12)
        draws = wide.sample((4,), key=jax.random.key(0))
        assert draws.shape == (4, 2, 3, *dist.event_shape)


# ---- draws ----


@pytest.mark.slow
def test_the_key_decides():
    for dist in every_kind(options=OPTIONS["unimix"]):
        one, same, other = (dist.sample((50,), key=jax.random.key(seed)) for seed in (0, 0, 1))
        np.testing.assert_array_equal(one, same)
        assert (one != other).any()
        old = dist.sample((50,), key=jax.random.PRNGKey(0))  # as jax.random takes them
        np.testing.assert_array_equal(one, old)


def test_neighbours_draw_independently():
    """Rows of a batch and draws of a row share no random number, nor do the coin and the classes of a mixture."""
    dist = cj.Catnat(jnp.zeros((2, 2)), mask=jnp.array([True, False, True]), unimix=0.5)
    draws = np.asarray(dist.sample((20_000, 2), key=jax.random.key(3))) // 2
    pairs = draws.reshape(-1, 4) @ [8, 4, 2, 1]
    checks.chi_square(np.bincount(pairs, minlength=16), np.full(16, 1 / 16))


# ---- masks ----


def test_a_row_without_valid_class():
    scores, mask = normal(3, 4), jnp.ones((3, 5), bool).at[1].set(False)
    np.testing.assert_array_equal(cj.validate_mask(mask, 5), [True, False, True])
    np.testing.assert_array_equal(cj.validate_mask(mask, np.int64(5)), [True, False, True])
    np.testing.assert_array_equal(cj.validate_mask(mask, catnat.chain(5)), [True, False, True])
    with pytest.raises(ValueError, match=r"no valid class in 1 of 3 rows"):
        cj.Catnat(scores, mask=mask)
    unmasked = jax.jit(lambda s, m: cj.Catnat(s, mask=m).probs)(scores, mask)
    np.testing.assert_allclose(unmasked, cj.catnat(scores), rtol=1e-12)
    forest = catnat.Forest([3, 2])
    rows = jnp.array([[True, False, False, True, True], [True, True, True, False, False]])
    np.testing.assert_array_equal(cj.validate_mask(rows, forest), [True, False])
    with pytest.raises(ValueError, match=r"no valid class in 1 of 2 rows"):
        cj.MultiCatnat(normal(2, 3), forest, mask=rows)
    found = jax.jit(lambda s, m: cj.MultiCatnat(s, forest, mask=m).mask)(normal(2, 3), rows)
    np.testing.assert_array_equal(found, rows.at[1].set(True))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64])
@some_options
def test_hostile_scores(dtype, options):
    """No NaN or infinity, in values, gradients and second derivatives, at any finite score, masked or not."""
    limits = jnp.finfo(dtype)
    sizes = [0, float(limits.tiny), 1, math.pi, 30, float(limits.max) ** 0.5, float(limits.max)]
    scores = jnp.asarray([[sign * size for sign in (1, -1, 1, 1)] for size in sizes], dtype)

    def total(s, kind, mask):
        found, classes = cj.Catnat(s, activation=kind, mask=mask, **options), jnp.array([0, 2])
        logits = found.logits if mask is None else jnp.where(mask, found.logits, 0)
        # Divided first: a sum of half-precision numbers near the smallest one is not one.
        return found.probs[2] - (logits / 64).sum() + found.entropy() + (found.log_prob(classes) / 64).sum()

    @jax.jit
    def everything(scores, mask):
        found = []
        for kind in ACTIVATIONS.values():
            found += [jax.vmap(f, (0, None, None))(scores, kind, mask) for f in (total, jax.grad(total))]
            if dtype in (jnp.float32, jnp.float64):
                found.append(jax.vmap(jax.hessian(total), (0, None, None))(scores, kind, mask))
        return found

    for mask in (None, jnp.array([True, False, True, True, False])):
        for values in everything(scores, mask):
            assert values.dtype == dtype
            assert jnp.isfinite(values).all()


def test_a_masked_large_balanced_tree_is_a_small_program():
    size = 2**20
    scores, mask = jax.ShapeDtypeStruct((2, size - 1), jnp.float32), jax.ShapeDtypeStruct((2, size), bool)

    def run(s, m):
        dist = cj.Catnat(s, mask=m, unimix=0.1)
        return dist.log_prob(dist.sample(key=jax.random.key(0))).sum()

    assert len(jax.jit(jax.grad(run)).lower(scores, mask).as_text()) < 400_000


# ---- divergences ----


def test_kl_across_trees_and_batches():
    p, q = cj.Catnat(normal(3, 1, 7)), cj.Catnat(normal(2, 7, seed=1), catnat.chain(8), "natural")
    got = p.kl_divergence(q)
    assert got.shape == (3, 2)
    wanted = (p.probs * (jnp.log(p.probs) - jnp.log(q.probs))).sum(-1)
    np.testing.assert_allclose(got, wanted, rtol=1e-11)
    hot = [cj.OneHotCatnat(dist.scores, dist.tree, dist.activation) for dist in (p, q)]
    np.testing.assert_allclose(hot[0].kl_divergence(hot[1]), wanted, rtol=1e-11)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.float32, jnp.float64])
def test_an_infinite_kl_has_finite_gradients(dtype):
    free, mask = normal(2, 4).astype(dtype), jnp.array([[True] * 5, [True, False, True, True, True]])

    def divergence(p, q):
        return cj.Catnat(p).kl_divergence(cj.Catnat(q, mask=mask))

    value = divergence(free, free)
    assert value.dtype == dtype
    np.testing.assert_array_equal(jnp.isinf(value), [False, True])
    for slope in jax.grad(lambda *args: divergence(*args).sum(), argnums=(0, 1))(free, free + 0.1):
        assert jnp.isfinite(slope).all()


# ---- several variables ----


def test_kl_to_variables_with_other_trees():
    p, q = cj.MultiCatnat(normal(3, 6), [5, 3]), cj.MultiCatnat(normal(3, 6, seed=1), [catnat.chain(5), 3])
    parts = [dist.split(dist.probs) for dist in (p, q)]
    wanted = sum((x * jnp.log(x / y)).sum(-1) for x, y in zip(*parts, strict=True))
    np.testing.assert_allclose(p.kl_divergence(q), wanted, rtol=1e-10)


# ---- without x64 ----


@pytest.mark.slow
def test_without_x64():
    code = """
import jax, jax.numpy as jnp, numpy as np, catnat, catnat.jax as cj
key = jax.random.key(0)
for size, options in ((300, {}), (10, {"temperature": 1.5, "unimix": 0.1})):
    scores = np.random.default_rng(0).normal(size=(3, size - 1))
    mask = np.random.default_rng(1).random((3, size)) < 0.5
    dist = cj.Catnat(scores, mask=mask, **options)
    probs, logits, classes = dist.probs, dist.logits, dist.sample(key=key)
    assert probs.dtype == logits.dtype == dist.entropy().dtype == dist.log_prob(classes).dtype == jnp.float32
    assert classes.dtype == dist.mode.dtype == jnp.int32
    assert abs(probs.sum(-1) - 1).max() < 1e-5
    assert (logits[~mask] == jnp.finfo(jnp.float32).min).all()
several = cj.MultiCatnat(scores, [8, 3], mask=np.append(mask, np.ones((3, 1), bool), -1))
assert several.log_prob(several.sample((2,), key=key)).shape == (2, 3)
assert cj.RelaxedOneHotCatnat(0.5, scores, mask=mask).rsample(key=key).dtype == jnp.float32
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
