"""The adapter to distrax, against the real library: its own Categorical of the same probabilities, and definitions."""

from __future__ import annotations

import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import catnat
import catnat.jax as cj

with warnings.catch_warnings():  # TensorFlow Probability uses parts of JAX that JAX calls deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    distrax = pytest.importorskip("distrax")
    from tensorflow_probability.substrates.jax import distributions as tfd

    from catnat.integrations.distrax import Catnat, OneHotCatnat, OneHotCatnatStraightThrough

K = 7
TREE = catnat.huffman([5, 3, 2, 1, 1, 4, 2])
MASK = np.array([True, True, False, True, False, True, True])
OPTIONS = {
    "plain": {},
    "prune": {"mask": MASK},
    "renormalize": {"mask": MASK, "mask_mode": "renormalize"},
    "temperature": {"temperature": 0.7},
    "unimix": {"unimix": 0.1},
    "all": {"mask": MASK, "mask_mode": "renormalize", "temperature": 2.0, "unimix": 0.2},
}
KINDS = [Catnat, OneHotCatnat]
# Both share all that options change: the second is tried on two of them.
CASES = [(Catnat, name) for name in OPTIONS] + [(OneHotCatnat, name) for name in ("prune", "all")]
FEW_CASES = [(Catnat, "plain"), (Catnat, "prune"), (OneHotCatnat, "all")]


@pytest.fixture(autouse=True)
def _in_float64():
    with jax.enable_x64(True):
        yield


def scores_of(*batch, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(*batch, K - 1)))


def reference_of(distribution):
    """distrax's own, of the same probabilities."""
    own = distrax.OneHotCategorical if isinstance(distribution, OneHotCatnat) else distrax.Categorical
    return own(probs=distribution.distribution.probs)


def values_of(distribution):
    """Every value, on a new first axis, for a batch of two axes."""
    if isinstance(distribution, OneHotCatnat):
        return jnp.eye(K)[:, None, None]
    return jnp.arange(K)[:, None, None]


def close(got, wanted, tolerance=1e-12):
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance, strict=isinstance(wanted, jax.Array))


@pytest.mark.one_row
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_it_is_the_categorical_of_its_probabilities(kind, name):
    options = OPTIONS[name]
    distribution = kind(scores_of(2, 3), TREE, "sigmoid", **options)
    assert isinstance(distribution, distrax.Categorical)
    reference, values, valid = (
        reference_of(distribution),
        values_of(distribution),
        options.get("mask", np.ones(K, bool)),
    )

    @jax.jit  # also: distributions go into compiled functions
    def facts(each, values):
        probs, mode = each.prob(values), each.mode()
        return each.log_prob(values), probs, each.entropy(), mode, each.cdf(values), each.probs, each.logits

    got, wanted = facts(distribution, values), facts(reference, values)
    for fact, mine, theirs in zip(("log_prob", "prob", "entropy", "mode", "cdf", "probs"), got, wanted, strict=False):
        assert mine.shape == theirs.shape, fact
        where = valid if fact == "log_prob" else slice(None)  # a masked class has a finite number where theirs is -inf
        close(mine[where], theirs[where])
    close(got[-1][..., valid], wanted[-1][..., valid])
    assert (got[0][~valid] == np.finfo(np.float64).min).all()
    assert distribution.batch_shape == reference.batch_shape == (2, 3)
    assert distribution.event_shape == reference.event_shape
    assert distribution.num_categories == reference.num_categories == K
    assert distribution.dtype == reference.dtype
    assert distribution.name == kind.__name__
    np.testing.assert_array_equal(distribution.logits_parameter(), distribution.logits)
    close(jnp.exp(got[0]).sum(0), jnp.ones((2, 3)))


def test_moments_of_one_hot_vectors():
    distribution = OneHotCatnat(scores_of(2), TREE)
    p = np.asarray(distribution.probs)
    vectors = np.eye(K)
    mean = (p[..., None] * vectors).sum(-2)
    close(distribution.mean(), mean)
    close(distribution.variance(), (p[..., None] * (vectors - mean[:, None]) ** 2).sum(-2))
    close(distribution.stddev(), np.sqrt(distribution.variance()))
    with pytest.raises(NotImplementedError):
        Catnat(scores_of()).mean()  # as distrax's Categorical: classes have none


def test_values_of_a_small_dtype():
    """Bytes and a few classes more: 259 is 3 in uint8."""
    distribution, value = Catnat(jnp.linspace(-1.0, 1.0, 259)), jnp.array([3, 200, 255])
    close(distribution.log_prob(value.astype(jnp.uint8)), distribution.log_prob(value))
    close(distribution.prob(value.astype(jnp.uint8)), distribution.prob(value))


@pytest.mark.slow
def test_values_that_are_none():
    """As in distrax they have probability 0, whatever their dtype."""
    distribution = Catnat(scores_of())
    values = jnp.array([-1, K, 2**30])
    np.testing.assert_array_equal(distribution.log_prob(values), np.full(3, -np.inf))
    np.testing.assert_array_equal(reference_of(distribution).log_prob(values), np.full(3, -np.inf))
    np.testing.assert_array_equal(distribution.prob(values), np.zeros(3))
    np.testing.assert_array_equal(distribution.log_prob(jnp.array([0.5, jnp.nan])), np.full(2, -np.inf))
    close(distribution.log_prob(jnp.array(2.0)), distribution.log_prob(2))
    others = jnp.array([[0] * K, [1] * 2 + [0] * (K - 2), [2] + [0] * (K - 1)])
    np.testing.assert_array_equal(OneHotCatnat(scores_of()).log_prob(others), np.full(3, -np.inf))


# ---- draws ----


@pytest.mark.one_row
@pytest.mark.parametrize(("kind", "name"), FEW_CASES)
def test_draws(kind, name):
    """Frequencies by a chi-square test that raises a false alarm once in a million; seeds and shapes as in distrax."""
    distribution = kind(scores_of(2), TREE, "sigmoid", **OPTIONS[name])
    drawn, log_prob = distribution.sample_and_log_prob(seed=3, sample_shape=(50, 400))
    reference = reference_of(distribution).sample(seed=3, sample_shape=(50, 400))
    assert (drawn.shape, drawn.dtype) == (reference.shape, reference.dtype)
    np.testing.assert_array_equal(distribution.sample(seed=jax.random.PRNGKey(3), sample_shape=(50, 400)), drawn)
    close(log_prob, distribution.log_prob(drawn))
    classes = np.asarray(drawn.argmax(-1) if kind is OneHotCatnat else drawn).reshape(-1, 2)
    for row in range(2):
        found, p = np.bincount(classes[:, row], minlength=K), np.asarray(distribution.probs[row])
        assert (found[p == 0] == 0).all()
        expected = p[p > 0] / p.sum() * len(classes)
        assert scipy.stats.chisquare(found[p > 0], expected).pvalue > 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_dtype_of_values(kind):
    distribution = kind(scores_of(2), dtype=jnp.float32)
    assert distribution.sample(seed=0).dtype == distribution.mode().dtype == distribution.dtype == jnp.float32
    assert jnp.isfinite(distribution.log_prob(distribution.sample(seed=0))).all()
    with pytest.raises(ValueError, match="`dtype`"):
        kind(scores_of(), dtype=bool)


def test_a_dtype_holds_every_class():
    """In uint8 the class 256 would be class 0, and bfloat16 rounds it to a neighbour."""
    scores = jnp.zeros((3, 299))
    for small in (jnp.uint8, jnp.bfloat16):
        with pytest.raises(ValueError, match="the last is 299"):
            Catnat(scores, dtype=small)
        assert OneHotCatnat(scores, dtype=small).sample(seed=0).dtype == small
    assert Catnat(scores[:, :255], dtype=jnp.uint8).sample(seed=0).dtype == jnp.uint8
    assert Catnat(scores, dtype=jnp.float16).sample(seed=0).dtype == jnp.float16


@pytest.mark.slow
def test_straight_through():
    """A draw plus the gradient of the probabilities, also beside log-probabilities, as distrax's wrapper makes it."""
    scores, weights = scores_of(2), jnp.arange(1.0, K + 1)

    def loss(scores):
        distribution = OneHotCatnatStraightThrough(scores, TREE)
        drawn, log_prob = distribution.sample_and_log_prob(seed=1)
        again = distribution.sample(seed=1)
        return (again * weights).sum(), (drawn, again, log_prob)

    got, (drawn, again, log_prob) = jax.grad(loss, has_aux=True)(scores)
    close(got, jax.grad(lambda s: (cj.catnat(s, TREE) * weights).sum())(scores))
    plain, wanted = OneHotCatnat(scores, TREE).sample_and_log_prob(seed=1)
    close(log_prob, wanted)
    close(drawn, plain.astype(jnp.float64))
    close(again, plain.astype(jnp.float64))
    reference = distrax.straight_through_wrapper(distrax.OneHotCategorical)(logits=OneHotCatnat(scores, TREE).logits)
    assert reference.sample(seed=1).dtype == again.dtype


# ---- divergences ----


def divergence(p, q):
    """By the definition; a class that p never takes adds 0."""
    p, q = (np.asarray(each, np.float64) for each in (p, q))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(p > 0, p * (np.log(p) - np.log(q)), 0).sum(-1)


@pytest.mark.one_row
@pytest.mark.parametrize(("kind", "name"), FEW_CASES)
def test_divergences(kind, name):
    """Between catnats on one tree and on two, and both ways with the categoricals of distrax and of TFP."""
    options = OPTIONS[name]
    p = kind(scores_of(3), TREE, "sigmoid", **options)
    q = kind(scores_of(3, seed=1), TREE, "sigmoid", **options)
    elsewhere = kind(scores_of(3, seed=2), catnat.chain(K), "sigmoid")
    logits = jnp.asarray(np.random.default_rng(3).normal(size=(3, K)))
    foreign = [
        distrax.Categorical(logits=logits),
        distrax.OneHotCategorical(logits=logits),
        tfd.Categorical(logits=logits),
        tfd.OneHotCategorical(logits=logits),
    ]
    close(p.kl_divergence(q), divergence(p.probs, q.probs))
    close(p.kl_divergence(elsewhere), divergence(p.probs, elsewhere.probs))
    close(p.cross_entropy(q), p.entropy() + divergence(p.probs, q.probs))
    for other in foreign:
        probs = jax.nn.softmax(logits)
        close(p.kl_divergence(other), divergence(p.probs, probs))
        backwards = tfd.kl_divergence(other, p)
        close(backwards, divergence(probs, p.probs))  # infinite if p has a mask
        assert np.isinf(backwards).all() == ("mask" in options)


@pytest.mark.slow
def test_divergences_at_probability_zero():
    p = Catnat(jnp.array([4.0, 0.0, 0.0]))  # the root always says yes
    q = distrax.Categorical(probs=jnp.array([0.0, 0.0, 0.5, 0.5]))
    close(p.kl_divergence(q), np.zeros(()))
    close(q.kl_divergence(p), np.zeros(()))
    assert np.isinf(Catnat(jnp.zeros(3)).kl_divergence(q))
    gradient = jax.grad(lambda s: Catnat(s).kl_divergence(distrax.Categorical(logits=jnp.arange(4.0))))(p.scores)
    assert np.isfinite(gradient).all()
    with pytest.raises(ValueError, match="4 and 5 classes"):
        p.kl_divergence(distrax.Categorical(logits=jnp.zeros(5)))


# ---- transformations ----


@pytest.mark.one_row
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_functions(kind):
    scores = scores_of(3)
    value = jnp.array([0, 4, 6])
    given = jax.nn.one_hot(value, K) if kind is OneHotCatnat else value
    other = distrax.Categorical(logits=jnp.arange(K) / K)

    def mine(scores):
        each = kind(scores, TREE)
        return (each.log_prob(given) + each.entropy() + each.kl_divergence(other)).sum()

    def wanted(scores):
        logs = cj.log_catnat(scores, TREE)
        entropy = -(jnp.exp(logs) * logs).sum(-1)
        chosen = jnp.take_along_axis(logs, value[:, None], -1)[:, 0]
        return (chosen + (jnp.exp(logs) * (logs - other.logits)).sum(-1) + entropy).sum()

    close(jax.jit(jax.grad(mine))(scores), jax.grad(wanted)(scores), 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_vmap_and_scan(kind):
    """Over distributions, with a mask and a temperature in every row."""
    mask = jnp.asarray(np.stack([MASK, ~MASK, np.ones(K, bool)]))
    batch = kind(scores_of(3), TREE, mask=mask, mask_mode="renormalize", temperature=jnp.array([0.5, 1.0, 2.0]))
    value = values_of(batch)[3, 0, 0]
    wanted = batch.log_prob(jnp.broadcast_to(value, (3, *value.shape)))
    close(jax.vmap(lambda each: each.log_prob(value))(batch), wanted)
    _, entropies = jax.lax.scan(lambda carry, each: (carry, each.entropy()), None, batch)
    close(entropies, batch.entropy())


@pytest.mark.one_row
@pytest.mark.parametrize("kind", KINDS)
def test_indexing_is_that_of_the_batch(kind):
    distribution = kind(scores_of(2, 3), TREE, mask=np.stack([MASK, ~MASK])[:, None], temperature=0.5)
    probs = np.asarray(distribution.probs).reshape(6, K)
    for index in (0, (..., -1), (slice(None), [2, 0]), (None, 1)):
        part, rows = distribution[index], np.arange(6).reshape(2, 3)[index]
        assert type(part) is kind
        assert part.batch_shape == rows.shape
        close(part.probs, probs[rows])
    assert distribution[0, 0].sample(seed=0).dtype == distribution.dtype


# ---- inside other distributions ----


@pytest.mark.slow
def test_inside_other_distributions():
    distribution = Catnat(scores_of(), TREE)
    parts = distrax.Normal(jnp.linspace(-3, 3, K), 0.5)
    x = jnp.linspace(-4, 4, 5)
    mixture = distrax.MixtureSameFamily(distribution, parts)
    close(jnp.exp(mixture.log_prob(x)), (distribution.probs * jnp.exp(parts.log_prob(x[:, None]))).sum(-1))

    p, q = (distrax.Independent(Catnat(scores_of(2, 3, seed=s), TREE), 1) for s in (0, 1))
    assert p.event_shape == (3,)
    value = p.sample(seed=0)
    close(p.log_prob(value), p.distribution.log_prob(value).sum(-1))
    close(p.kl_divergence(q), divergence(p.distribution.probs, q.distribution.probs).sum(-1))
    close(distrax.to_tfp(distribution).log_prob(3), distribution.log_prob(3))


def test_missing_distrax_says_which_extra_to_install():
    code = "import sys; sys.modules['distrax'] = None; import catnat.integrations.distrax"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "catnat[distrax]" in done.stderr.strip().splitlines()[-1]
