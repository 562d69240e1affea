"""The adapter to NumPyro, against the real library: its own Categorical and StickBreakingTransform, and definitions."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import catnat
import catnat.jax as cj

pytest.importorskip("numpyro", minversion="0.22")
import numpyro
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.diagnostics import effective_sample_size
from numpyro.distributions import biject_to, constraints, transforms
from numpyro.infer import MCMC, NUTS
from numpyro.infer.reparam import ExplicitReparam, TransformReparam

from catnat.integrations.numpyro import BinnedCatnat, Catnat, CatnatTransform

K = 7
TREE = catnat.huffman([5, 3, 2, 1, 1, 4, 2])
MASK = np.array([True, True, False, True, False, True, True])
OPTIONS = {
    "plain": {},
    "mask": {"mask": MASK},
    "all": {"mask": MASK, "temperature": 2.0, "unimix": 0.2},
}


@pytest.fixture(autouse=True)
def _in_float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=OPTIONS)
def options(request):
    return OPTIONS[request.param]


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def close(got, wanted, tolerance=1e-12):
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance, strict=isinstance(wanted, jax.Array))


# ---- the distribution ----


@pytest.mark.one_row
def test_it_is_the_categorical_of_its_probabilities(options):
    distribution = Catnat(normal(3, 1, K - 1), TREE, "sigmoid", **options)
    of_jax = cj.Catnat(distribution.scores, TREE, "sigmoid", **options)
    reference = dist.Categorical(probs=of_jax.probs)
    valid = options.get("mask", np.ones(K, bool))
    values = jnp.arange(K)[valid][:, None, None]

    @jax.jit  # also: distributions go into compiled functions
    def facts(each, values):
        return each.log_prob(values), each.entropy(), each.probs, each.enumerate_support()

    for mine, theirs in zip(facts(distribution, values), facts(reference, values), strict=True):
        close(mine, theirs)
    close(distribution.logits[..., valid], reference.logits[..., valid])
    assert (distribution.log_prob(jnp.arange(K)[~valid][:, None, None]) == np.finfo(np.float64).min).all()
    np.testing.assert_array_equal(distribution.mode, reference.probs.argmax(-1))
    np.testing.assert_array_equal(
        distribution.enumerate_support(expand=False), reference.enumerate_support(expand=False)
    )
    assert (distribution.batch_shape, distribution.event_shape, distribution.support) == (
        reference.batch_shape,
        reference.event_shape,
        reference.support,
    )
    assert distribution.is_discrete
    assert distribution.has_enumerate_support
    key = jax.random.key(0)
    np.testing.assert_array_equal(distribution.sample(key, (50,)), of_jax.sample((50,), key=key))


@pytest.mark.one_row
@pytest.mark.parametrize("classes", [5, 100])  # all classes at once, and along paths
def test_values_broadcast_against_the_batch(classes):
    """As enumeration needs it: an axis for the classes to the left of all others."""
    distribution = Catnat(normal(3, 1, classes - 1))
    reference = dist.Categorical(logits=distribution.logits)
    for shape in [(), (3, 4), (6, 1, 1, 1)]:
        value = jnp.asarray(np.random.default_rng(1).integers(classes, size=shape))
        close(distribution.log_prob(value), reference.log_prob(value))
    close(distribution.log_prob(2), reference.log_prob(2))


def test_values_of_a_small_dtype():
    """Bytes and a few classes more: 259 is 3 in uint8."""
    distribution, value = Catnat(normal(259), validate_args=False), jnp.array([3, 200, 255])
    close(distribution.log_prob(value.astype(jnp.uint8)), distribution.log_prob(value))


def test_values_that_are_none():
    distribution = Catnat(normal(K - 1))
    with pytest.warns(UserWarning, match="Out-of-support"):
        close(distribution.log_prob(jnp.array([-1, K, 0.5])), np.full(3, -np.inf))
    assert np.isfinite(Catnat(normal(K - 1), validate_args=False).log_prob(jnp.array([-1, K]))).all()


def divergence(p, q):
    """By the definition; a class that p never takes adds 0."""
    p, q = (np.asarray(each, np.float64) for each in (p, q))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(p > 0, p * (np.log(p) - np.log(q)), 0).sum(-1)


def test_divergences(options):
    """Between catnats on one tree and on two, and both ways with NumPyro's two categoricals."""
    p, q = (Catnat(normal(3, K - 1, seed=s), TREE, "sigmoid", **options) for s in (0, 1))
    elsewhere, logits = Catnat(normal(3, K - 1, seed=2), catnat.chain(K), "sigmoid"), normal(3, K, seed=3)
    kl = dist.kl_divergence
    close(kl(p, q), divergence(p.probs, q.probs))
    close(kl(p, elsewhere), divergence(p.probs, elsewhere.probs))
    close(kl(p.to_event(1), q.to_event(1)), divergence(p.probs, q.probs).sum(-1))
    close(kl(p.expand((2, 3)), q), np.broadcast_to(divergence(p.probs, q.probs), (2, 3)))
    probs = jax.nn.softmax(logits)
    for other in (dist.Categorical(logits=logits), dist.Categorical(probs=probs)):
        close(kl(p, other), divergence(p.probs, probs))
        backwards = kl(other, p)
        close(backwards, divergence(probs, p.probs))  # infinite if p has a mask
        assert np.isinf(backwards).all() == ("mask" in options)


def test_gradients_and_transformations():
    scores, value = normal(3, K - 1), jnp.array([0, 4, 6])
    other = dist.Categorical(logits=jnp.arange(K) / K)

    def mine(scores):
        distribution = Catnat(scores, TREE)
        return (distribution.log_prob(value) + distribution.entropy() + dist.kl_divergence(distribution, other)).sum()

    def wanted(scores):
        logs = cj.log_catnat(scores, TREE)
        chosen = jnp.take_along_axis(logs, value[:, None], -1)[:, 0]
        against = logs - jax.nn.log_softmax(other.logits)
        return (chosen + (jnp.exp(logs) * (against - logs)).sum(-1)).sum()

    close(jax.jit(jax.grad(mine))(scores), jax.grad(wanted)(scores), 1e-10)
    # A distribution is a pytree of its arrays, with masks and temperatures in every row.
    mask, temperature = jnp.asarray(np.stack([MASK, ~MASK, np.ones(K, bool)])), jnp.array([0.5, 1.0, 2.0])
    batch = Catnat(scores, TREE, mask=mask, temperature=temperature)
    assert len(jax.tree.leaves(batch)) == 3
    same = jax.tree.map(lambda array: array, batch)
    assert (type(same), same.batch_shape) == (Catnat, (3,))
    close(same.probs, batch.probs)
    close(jax.vmap(lambda each: each.entropy())(batch), batch.entropy())
    close(jax.lax.scan(lambda carry, each: (carry, each.entropy()), None, batch)[1], batch.entropy())


@pytest.mark.slow
def test_inside_other_distributions():
    distribution, x = Catnat(normal(K - 1), TREE), jnp.linspace(-4, 4, 5)
    parts = dist.Normal(jnp.linspace(-3, 3, K), 0.5)
    mixture = dist.MixtureSameFamily(distribution, parts)
    close(jnp.exp(mixture.log_prob(x)), (distribution.probs * jnp.exp(parts.log_prob(x[:, None]))).sum(-1))
    wide, value = distribution.expand((2, 3)), jnp.array([[0, 1, 2], [3, 4, 5]])
    assert wide.sample(jax.random.key(0)).shape == (2, 3)
    close(wide.log_prob(value), distribution.log_prob(value))
    close(wide.to_event(1).log_prob(value), distribution.log_prob(value).sum(-1))
    left_out = distribution.mask(jnp.array(False))  # NumPyro's mask, not ours
    close(left_out.log_prob(jnp.array(2)), np.zeros(()))


# ---- enumeration in a model ----


@pytest.mark.slow
def test_a_markov_chain_is_summed_over_all_paths():
    """The density of observations, by NumPyro's enumeration and by a loop over all 3^3 hidden paths."""
    pytest.importorskip("funsor")
    from numpyro.contrib.funsor import config_enumerate, enum, infer_discrete, log_density

    first, rows, means = normal(2), normal(3, 2, seed=1), jnp.array([-1.0, 0.5, 2.0])
    x = jnp.array([0.3, 1.5, -0.7])

    @config_enumerate
    def model():
        scores = first
        for t in range(3):
            state = numpyro.sample(f"state_{t}", Catnat(scores, activation="sigmoid"))
            numpyro.sample(f"x_{t}", dist.Normal(means[state], 1.0), obs=x[t])
            scores = rows[state]

    p, transition = np.asarray(cj.catnat(first, activation="sigmoid")), cj.catnat(rows, activation="sigmoid")
    joint = {
        path: p[path[0]]
        * math.prod(float(transition[a, b]) for a, b in itertools.pairwise(path))
        * math.prod(scipy.stats.norm.pdf(x[t], means[k]) for t, k in enumerate(path))
        for path in itertools.product(range(3), repeat=3)
    }
    close(log_density(enum(model, -1), (), {}, {})[0], math.log(sum(joint.values())))

    best = infer_discrete(model, temperature=0, rng_key=jax.random.key(0))
    trace = handlers.trace(best).get_trace()
    assert tuple(int(trace[f"state_{t}"]["value"]) for t in range(3)) == max(joint, key=joint.get)


# ---- the bijection ----

NARROW = cj.natural(width=3.0)
MAPS = {
    "balanced sigmoid": (catnat.balanced(8), cj.sigmoid()),
    "balanced natural": (catnat.balanced(8), cj.natural()),
    "uneven sigmoid": (TREE, cj.sigmoid()),
    "uneven narrow natural": (TREE, NARROW),
    "chain natural": (catnat.chain(5), cj.natural()),
    "two classes": (catnat.balanced(2), cj.natural()),
}


@pytest.mark.one_row
@pytest.mark.parametrize("name", MAPS)
def test_bijection(name):
    """Onto the simplex, there and back, with the determinant of the Jacobian matrix as autodiff has it."""
    tree, activation = MAPS[name]
    transform = CatnatTransform(tree, activation)
    scores = biject_to(transform.domain)(normal(4, tree.num_nodes))
    assert transform.domain(scores).all()
    probs = transform(scores)
    assert transform.codomain(probs).all()
    close(probs, cj.catnat(scores, tree, activation))
    close(transform.inv(probs), scores, 1e-9)
    jacobian = jax.jit(jax.vmap(jax.jacfwd(transform)))(scores)
    for left_out in (0, tree.num_classes - 1):  # any K-1 of the probabilities are coordinates
        _, wanted = np.linalg.slogdet(np.delete(jacobian, left_out, axis=1))
        close(transform.log_abs_det_jacobian(scores, probs), wanted, 1e-9)
    close(transform.inv.log_abs_det_jacobian(probs, scores), -wanted, 1e-9)
    shape = (4, tree.num_classes)
    assert transform.forward_shape(scores.shape) == transform.inv.inverse_shape(scores.shape) == shape
    assert transform.inverse_shape(probs.shape) == scores.shape


@pytest.mark.slow
def test_the_chain_with_the_sigmoid_is_stick_breaking():
    mine, theirs, x = CatnatTransform(catnat.chain(6), "sigmoid"), transforms.StickBreakingTransform(), normal(3, 5)
    close(mine(x), theirs(x))
    close(mine.log_abs_det_jacobian(x, mine(x)), theirs.log_abs_det_jacobian(x, theirs(x)))
    close(mine.inv(theirs(x)), x, 1e-9)


def test_the_domain_is_the_activations_band():
    """Its edges are where one branch becomes certain, for uneven trees and any width."""
    for activation in ("natural", NARROW):
        transform = CatnatTransform(TREE, activation)
        assert transform.domain.event_dim == 1
        bounds = transform.domain.base_constraint
        for edge, inwards in ((bounds.lower_bound, 1e-6), (bounds.upper_bound, -1e-6)):
            assert cj.geometry.saturated(edge - inwards, TREE, activation).all()
            assert not cj.geometry.saturated(edge + inwards, TREE, activation).any()
            assert not transform.domain(edge)
            assert transform.domain(edge + inwards)
    assert CatnatTransform(TREE, "sigmoid").domain == constraints.real_vector


@pytest.mark.parametrize("activation", ["sigmoid", "natural"])
def test_finite_far_out_and_at_the_edges(activation):
    """In float32: no probability is 0, and densities and their gradients are finite."""
    transform = CatnatTransform(catnat.chain(40), activation)
    rows = [np.full(39, size) for size in (-1e30, -200.0, -3.1415927, 0.0, 3.1415927, 200.0, 1e30)]
    if activation == "natural":
        rows += [transform.domain.base_constraint.lower_bound, transform.domain.base_constraint.upper_bound]
    scores = jnp.asarray(np.stack(rows), jnp.float32)

    def density(scores):
        probs = transform(scores)
        return (-0.9 * jnp.log(probs)).sum() + transform.log_abs_det_jacobian(scores, probs).sum()

    value, gradient = jax.jit(jax.value_and_grad(density))(scores)
    assert value.dtype == jnp.float32
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    assert (transform(scores) > 0).all()


@pytest.mark.slow
def test_a_lost_score_is_seen():
    """Samplers know a step that went astray by NaN. In other rows nothing changes."""
    transform = CatnatTransform(TREE)
    scores = jnp.zeros((2, K - 1)).at[0, 3].set(jnp.nan)
    for values in (transform(scores).sum(-1), transform.log_abs_det_jacobian(scores, None)):
        np.testing.assert_array_equal(np.isnan(values), [True, False])


def test_it_is_static_data():
    transform, same = CatnatTransform(catnat.balanced(5), "sigmoid"), CatnatTransform(catnat.balanced(5), "sigmoid")
    assert transform == same
    assert transform.inv == same.inv
    assert transform != CatnatTransform(catnat.chain(5), "sigmoid")
    assert transform != CatnatTransform(catnat.balanced(5), "natural")
    assert transform != transforms.StickBreakingTransform()
    assert jax.tree.leaves(transform) == []
    assert jax.tree.map(jnp.sin, transform) == transform
    close(jax.jit(lambda t, x: t(x))(transform, jnp.zeros(4)), transform(jnp.zeros(4)))


@pytest.mark.slow
def test_transformed_distributions_and_their_reparameterization():
    transform, value = CatnatTransform(TREE, "sigmoid"), normal(K - 1)
    distribution = dist.TransformedDistribution(dist.Normal(jnp.zeros(K - 1), 1.0).to_event(1), transform)
    assert (distribution.event_shape, distribution.support) == ((K,), constraints.simplex)
    jacobian = jax.jacfwd(transform)(value)[:-1]
    wanted = scipy.stats.norm.logpdf(value).sum() - np.linalg.slogdet(jacobian)[1]
    close(distribution.log_prob(transform(value)), wanted, 1e-9)

    def model():
        return numpyro.sample("p", distribution)

    inside = handlers.reparam(model, config={"p": TransformReparam()})
    trace = handlers.trace(handlers.substitute(handlers.seed(inside, 0), {"p_base": value})).get_trace()
    close(trace["p"]["value"], transform(value))


@pytest.mark.slow  # that it samples at all, the docs' doctests show
def test_nuts_finds_the_posterior_of_counts():
    """A Dirichlet, whose means and variances are known; all within six standard errors."""
    counts, prior = jnp.array([30, 0, 5, 12, 3]), 0.5
    transform = CatnatTransform(catnat.huffman([4, 1, 2, 3, 1]), "natural")  # NUTS also has to find its way into a box

    def model():
        p = numpyro.sample("p", dist.Dirichlet(jnp.full(5, prior)))
        numpyro.sample("counts", dist.Multinomial(50, p), obs=counts)

    through = handlers.reparam(model, config={"p": ExplicitReparam(transform.inv)})
    mcmc = MCMC(NUTS(through), num_warmup=500, num_samples=4000, progress_bar=False)
    mcmc.run(jax.random.key(0))
    p = np.asarray(mcmc.get_samples()["p"])
    posterior = scipy.stats.dirichlet(np.asarray(counts) + prior)
    for drawn, wanted in ((p, posterior.mean()), ((p - posterior.mean()) ** 2, posterior.var())):
        effective = effective_sample_size(drawn[None])
        assert effective.min() > 400
        assert (np.abs(drawn.mean(0) - wanted) < 6 * drawn.std(0) / np.sqrt(effective)).all()


# ---- ordered bins ----


@pytest.mark.slow
def test_binned_is_a_distribution_of_numpyros():
    """Its shapes and log-density in a model, gradients through draws, a divergence, and a door through ``jit``."""
    scores, bins = normal(3, 7), catnat.Bins(np.linspace(-2, 2, 9), tails=True)
    made, plain = BinnedCatnat(scores, bins), cj.BinnedCatnat(scores, bins)

    def model():
        with numpyro.plate("rows", 3), numpyro.plate("copies", 4):
            numpyro.sample("x", made)

    trace = handlers.trace(handlers.seed(model, 0)).get_trace()
    drawn = trace["x"]["value"]
    assert drawn.shape == (4, 3)
    log_prob = jax.jit(lambda made, x: made.log_prob(x))(made, drawn)
    close(log_prob, plain.log_prob(drawn))
    gradient = jax.grad(lambda s: BinnedCatnat(s, bins).sample(jax.random.key(0)).sum())(scores)
    assert (gradient != 0).any(-1).all()
    other = normal(3, 7, seed=1)
    close(dist.kl_divergence(made, BinnedCatnat(other, bins)), plain.kl_divergence(cj.BinnedCatnat(other, bins)))
    facts = (made.mean, made.variance, made.entropy(), made.cdf(drawn), made.icdf(made.cdf(drawn)))
    for got, wanted in zip(facts, (plain.mean, plain.variance, plain.entropy(), plain.cdf(drawn)), strict=False):
        close(got, wanted)
    close(facts[-1], drawn, 1e-9)
    assert made.support is constraints.real
    assert bool(BinnedCatnat(scores, bins.edges).support(jnp.array(1.0)))
    assert not bool(BinnedCatnat(scores, bins.edges).support(jnp.array(3.0)))
