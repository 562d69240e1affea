"""The adapter to Pyro, against the real library: its own classes, enumeration by brute force, guides, mixtures, HMC."""

from __future__ import annotations

import copy
import itertools
import pickle

import cases
import pytest
import torch
from torch import distributions as td

import catnat
import catnat.torch as ct

pytest.importorskip("pyro", minversion="1.9")
import pyro
from pyro import distributions as dist
from pyro import poutine
from pyro.distributions import constraints, transforms
from pyro.infer import (
    MCMC,
    NUTS,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceMeanField_ELBO,
    config_enumerate,
    infer_discrete,
)
from pyro.infer.reparam import TransformReparam
from pyro.ops.stats import effective_sample_size

from catnat.integrations.pyro import BinnedCatnat, Catnat, CatnatTransform, OneHotCatnat, OneHotCatnatStraightThrough

K = 5
TREE = catnat.huffman([5, 3, 2, 1, 4])
MASK = torch.tensor([True, True, False, True, True])
OPTIONS = {
    "plain": {},
    "mask": {"mask": MASK},
    "all": {"mask": MASK, "temperature": 2.0, "unimix": 0.2},
}


@pytest.fixture(autouse=True)
def _in_float64():
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    with pyro.validation_enabled():
        torch.set_default_dtype(torch.float64)
        yield
        torch.set_default_dtype(torch.float32)


@pytest.fixture(params=OPTIONS)
def options(request):
    return OPTIONS[request.param]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# ---- the distributions ----


def test_it_is_the_categorical_of_its_probabilities(options):
    distribution = Catnat(normal(3, 1, K - 1), TREE, "sigmoid", **options)
    reference = dist.Categorical(probs=ct.Catnat(distribution.scores, TREE, "sigmoid", **options).probs)
    assert (distribution.batch_shape, distribution.event_shape, distribution.event_dim) == (
        reference.batch_shape,
        reference.event_shape,
        0,
    )
    assert distribution.has_enumerate_support
    assert (distribution.support.lower_bound, distribution.support.upper_bound) == (0, K - 1)
    valid = options.get("mask", torch.ones(K, dtype=torch.bool))
    for expand in (True, False):
        values = distribution.enumerate_support(expand=expand)
        assert torch.equal(values, reference.enumerate_support(expand=expand))
        torch.testing.assert_close(distribution.log_prob(values)[valid], reference.log_prob(values)[valid])
        assert distribution.log_prob(values).shape == (K, 3, 1)
    assert (distribution.log_prob(distribution.enumerate_support())[~valid] == torch.finfo(torch.float64).min).all()
    torch.testing.assert_close(distribution.entropy(), reference.entropy())
    torch.testing.assert_close(distribution.probs, reference.probs)
    mixture = dist.MixtureSameFamily(distribution, dist.Normal(torch.arange(float(K)), 0.7))
    torch.testing.assert_close(mixture.mean, reference.probs @ torch.arange(float(K)))
    with pytest.raises(ValueError, match="support"):
        distribution.log_prob(distribution.enumerate_support(expand=False) + 1)


def test_enumerated_values_are_only_known_to_their_own_distribution():
    """Values of one distribution in another: a shortcut that does not check whose they are would use its own order."""
    first, second = (Catnat(normal(3, K - 1, seed=seed), TREE) for seed in (0, 1))
    values = first.enumerate_support(expand=False)
    torch.testing.assert_close(second.log_prob(values), second.logits.T)
    torch.testing.assert_close(first.log_prob(values), first.logits.T)
    torch.testing.assert_close(first.log_prob(values.clone()), first.logits.T)


@pytest.mark.parametrize("cls", [Catnat, OneHotCatnat, OneHotCatnatStraightThrough])
def test_shapes_expansion_and_masks(cls):
    distribution = cls(normal(3, 1, K - 1), TREE, mask=MASK)
    event = () if cls is Catnat else (K,)
    wide = distribution.expand((2, 3, 4))
    assert type(wide) is cls
    assert wide.sample().shape == (2, 3, 4, *event)
    assert distribution.expand_by((6,)).batch_shape == (6, 3, 1)
    assert distribution.to_event(1).event_shape == (1, *event)
    assert distribution((7,)).shape == distribution.shape((7,)) == (7, 3, 1, *event)
    torch.testing.assert_close(wide.log_prob(wide.sample()).shape, torch.Size((2, 3, 4)))
    batch, found = cls.infer_shapes(scores=torch.Size((3, 1, K - 1)))
    assert (batch, found) == ((3, 1), event)
    # The argument `mask` is one thing and the method another.
    assert torch.equal(wide.valid_classes, MASK.expand(2, 3, 4, K))
    assert cls(normal(K - 1), TREE).valid_classes is None
    left_out = distribution.mask(torch.tensor([[True], [False], [True]]))
    value = distribution.sample()
    wanted = distribution.log_prob(value)
    wanted[1] = 0
    assert torch.equal(left_out.log_prob(value), wanted)


def test_one_hot_vectors_are_the_classes():
    distribution, classes = OneHotCatnat(normal(3, K - 1), TREE), Catnat(normal(3, K - 1), TREE)
    values = distribution.enumerate_support(expand=False)
    assert values.shape == (K, 1, K)
    torch.testing.assert_close(distribution.log_prob(values), classes.log_prob(torch.arange(K)[:, None]))
    assert isinstance(distribution, dist.OneHotCategorical)
    assert isinstance(classes, dist.Categorical)


def test_divergences():
    for ours, theirs in ((Catnat, dist.Categorical), (OneHotCatnat, dist.OneHotCategorical)):
        p, q, r = (
            ours(normal(3, K - 1), TREE),
            ours(normal(3, K - 1, seed=1), TREE),
            theirs(logits=normal(3, K, seed=2)),
        )
        for one, other in ((p, q), (p, r), (r, p)):
            wanted = (one.probs * (one.probs / other.probs).log()).sum(-1)
            torch.testing.assert_close(td.kl_divergence(one, other), wanted)
        torch.testing.assert_close(td.kl_divergence(p.to_event(1), q.to_event(1)), td.kl_divergence(p, q).sum())


# ---- enumeration ----


def test_enumerated_model_is_summed_out(options):
    """A chain of three variables: -log of the sum over all 125 paths, and its gradient."""
    first, then = normal(K - 1).requires_grad_(), normal(K, K - 1, seed=1).requires_grad_()
    means, seen = torch.linspace(-2, 2, K), torch.tensor([0.3, -1.0, 1.5])

    @config_enumerate
    def model():
        state = pyro.sample("0", Catnat(first, TREE, **options))
        pyro.sample("x0", dist.Normal(means[state], 1.0), obs=seen[0])
        for step in (1, 2):
            state = pyro.sample(f"{step}", Catnat(then[state], TREE, **options))
            pyro.sample(f"x{step}", dist.Normal(means[state], 1.0), obs=seen[step])

    def by_hand():
        p, q = (ct.Catnat(scores, TREE, **options).probs for scores in (first, then))
        x = dist.Normal(means[:, None], 1.0).log_prob(seen).exp()
        paths = itertools.product(range(K), repeat=3)
        return -sum(p[a] * x[a, 0] * q[a, b] * x[b, 1] * q[b, c] * x[c, 2] for a, b, c in paths).log()

    loss = TraceEnum_ELBO(max_plate_nesting=0).differentiable_loss(model, lambda: None)
    torch.testing.assert_close(loss, by_hand())
    found = torch.autograd.grad(loss, (first, then))
    for mine, wanted in zip(found, torch.autograd.grad(by_hand(), (first, then)), strict=True):
        torch.testing.assert_close(mine, wanted)
        assert mine.isfinite().all()


@pytest.mark.parametrize("cls", [Catnat, OneHotCatnat])
def test_enumerated_guide_in_a_plate(cls):
    """The exact ELBO of independent points, term by term."""
    prior, scores = normal(K - 1), normal(4, K - 1, seed=1).requires_grad_()
    means, seen = torch.linspace(-2, 2, K), normal(4, seed=2)

    def model():
        with pyro.plate("points", 4):
            group = pyro.sample("group", cls(prior, TREE))
            mean = means[group] if cls is Catnat else group @ means
            pyro.sample("x", dist.Normal(mean, 1.0), obs=seen)

    @config_enumerate
    def guide():
        with pyro.plate("points", 4):
            pyro.sample("group", cls(scores, TREE))

    loss = TraceEnum_ELBO().differentiable_loss(model, guide)
    q, p = ct.catnat(scores, TREE), ct.catnat(prior, TREE)
    wanted = -(q * (p.log() + dist.Normal(means, 1.0).log_prob(seen[:, None]) - q.log())).sum()
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(value, scores)[0] for value in (loss, wanted)))


def test_masked_classes_are_never_inferred():
    """A class that would fit best but is masked; by draws from the posterior, and by its mode."""
    means, seen = torch.linspace(-2, 2, K), torch.full((50,), 0.0)  # class 2 is the one at 0

    @config_enumerate
    def model():
        with pyro.plate("points", 50):
            group = pyro.sample("group", Catnat(torch.zeros(K - 1), TREE, mask=MASK))
            pyro.sample("x", dist.Normal(means[group], 0.5), obs=seen)

    for temperature in (0, 1):
        inferred = infer_discrete(model, first_available_dim=-2, temperature=temperature)
        groups = poutine.trace(inferred).get_trace().nodes["group"]["value"]
        assert groups.shape == (50,)
        assert not (groups == 2).any()


# ---- learning ----


def test_score_function():
    """Gradients without enumeration: their mean over many draws is that of the exact ELBO, within five deviations."""
    means, scores = torch.linspace(-2, 2, K), normal(K - 1, seed=1).requires_grad_()

    def model():
        group = pyro.sample("group", dist.Categorical(logits=torch.zeros(K)))
        pyro.sample("x", dist.Normal(means[group], 1.0), obs=torch.tensor(0.7))

    def guide():
        pyro.sample("group", Catnat(scores, TREE))

    def gradient(elbo, guide):
        return torch.autograd.grad(elbo.differentiable_loss(model, guide), scores)[0]

    wanted = gradient(TraceEnum_ELBO(max_plate_nesting=0), config_enumerate(guide))
    particles = Trace_ELBO(num_particles=200, vectorize_particles=True, max_plate_nesting=0)
    rows = torch.stack([gradient(particles, guide) for _ in range(20)])
    assert ((rows.mean(0) - wanted).abs() < 5 * rows.std(0) / 20**0.5).all()


def test_straight_through():
    """The gradient of a cost that is linear in the vector is exact. In mean-field inference the divergence is, too."""
    scores, values = normal(K - 1).requires_grad_(), torch.arange(K, dtype=torch.float64)
    prior = dist.OneHotCategorical(logits=normal(K, seed=1))

    def guide():
        return pyro.sample("z", OneHotCatnatStraightThrough(scores, TREE))

    found = torch.autograd.grad(guide() @ values, scores)[0]
    torch.testing.assert_close(found, torch.autograd.grad(ct.catnat(scores, TREE) @ values, scores)[0])
    loss = TraceMeanField_ELBO().differentiable_loss(lambda: pyro.sample("z", prior), guide)
    p = ct.catnat(scores, TREE)
    torch.testing.assert_close(loss, (p * (p / prior.probs).log()).sum())


# ---- the bijection ----


NARROW = ct.natural(width=3.0)
MAPS = {
    "balanced sigmoid": (catnat.balanced(8), ct.sigmoid()),
    "balanced natural": (catnat.balanced(8), ct.natural()),
    "uneven sigmoid": (TREE, ct.sigmoid()),
    "uneven narrow natural": (TREE, NARROW),
    "chain natural": (catnat.chain(5), ct.natural()),
    "prior": (catnat.balanced(6).with_prior([1, 2, 3, 4, 5, 6]), ct.natural()),
    "my own": (TREE, cases.Cauchit()),
    "two classes": (catnat.balanced(2), ct.natural()),
    "many classes": (catnat.balanced(70), ct.natural()),  # level by level, not by a matrix product
}


@pytest.mark.parametrize("name", MAPS)
def test_bijection(name):
    """Onto the simplex, there and back, with the determinant of the Jacobian matrix as autograd has it."""
    tree, activation = MAPS[name]
    transform = CatnatTransform(tree, activation)
    scores = td.biject_to(transform.domain)(normal(2, 3, tree.num_nodes))
    assert transform.domain.check(scores).all()
    probs = transform(scores)
    assert transform.codomain.check(probs).all()
    torch.testing.assert_close(probs, ct.catnat(scores, tree, activation))
    torch.testing.assert_close(transform.inv(probs), scores)
    rows = scores.flatten(0, -2)
    jacobian = torch.stack([torch.autograd.functional.jacobian(transform, row) for row in rows])
    for left_out in (0, tree.num_classes - 1):  # any K-1 of the probabilities are coordinates
        kept = [k for k in range(tree.num_classes) if k != left_out]
        wanted = torch.linalg.slogdet(jacobian[:, kept]).logabsdet.view(2, 3)
        torch.testing.assert_close(transform.log_abs_det_jacobian(scores, probs), wanted)
    torch.testing.assert_close(transform.inv.log_abs_det_jacobian(probs, scores), -wanted)
    shape = (2, 3, tree.num_classes)
    assert transform.forward_shape(scores.shape) == transform.inv.inverse_shape(scores.shape) == shape
    assert transform.inverse_shape(probs.shape) == scores.shape


@pytest.mark.one_row
@pytest.mark.parametrize("name", MAPS)
def test_gradients_of_the_determinant(name):
    """HMC follows them; against finite differences."""
    tree, activation = MAPS[name]
    transform = CatnatTransform(tree, activation)
    scores = td.biject_to(transform.domain)(normal(2, tree.num_nodes, seed=1)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: transform.log_abs_det_jacobian(x, None), scores)


def test_the_chain_with_the_sigmoid_is_stick_breaking():
    mine, theirs, x = CatnatTransform(catnat.chain(6)), transforms.StickBreakingTransform(), normal(3, 5)
    torch.testing.assert_close(mine(x), theirs(x))
    torch.testing.assert_close(mine.log_abs_det_jacobian(x, mine(x)), theirs.log_abs_det_jacobian(x, theirs(x)))
    torch.testing.assert_close(mine.inv(theirs(x)), x)


def test_the_domain_is_the_activations_band():
    """Its edges are where one branch becomes certain, for uneven trees and any width."""
    for activation in ("natural", NARROW):
        transform = CatnatTransform(TREE, activation)
        assert (transform.domain.event_dim, transform.codomain.event_dim) == (1, 1)
        bounds = transform.domain.base_constraint
        for edge, inwards in ((bounds.lower_bound, 1e-6), (bounds.upper_bound, -1e-6)):
            assert ct.geometry.saturated(edge - inwards, TREE, activation).all()
            assert not ct.geometry.saturated(edge + inwards, TREE, activation).any()
            assert not transform.domain.check(edge - inwards)
            assert transform.domain.check(edge + inwards)
    assert CatnatTransform(TREE, "sigmoid").domain is constraints.real_vector


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("activation", [ct.sigmoid(), ct.natural(), cases.Cauchit()])
def test_finite_far_out_and_at_the_edges(activation, dtype):
    """No probability is 0, and densities and their gradients are finite."""
    tree = catnat.chain(40)
    transform, limit = CatnatTransform(tree, activation), min(1e30, torch.finfo(dtype).max)
    rows = [torch.full((39,), size) for size in (-limit, -200.0, -3.1415927, 0.0, 3.1415927, 200.0, limit)]
    if isinstance(activation, ct.natural):
        bounds = transform.domain.base_constraint
        rows += [bounds.lower_bound, bounds.upper_bound]
    scores = torch.stack(rows).to(dtype).requires_grad_()
    probs = transform(scores)
    assert probs.dtype == dtype
    assert (probs > 0).all()
    density = transform.log_abs_det_jacobian(scores, probs)
    assert density.dtype == dtype
    assert density.isfinite().all()
    (probs.log().sum() / 2000 + density.sum() / 2000).backward()
    assert scores.grad.isfinite().all()
    assert transform.inv(probs.detach().double() / probs.detach().double().sum(-1, keepdim=True)).isfinite().all()


def test_no_warning_of_an_edge(recwarn):
    """The band's edge is where the domain ends: nothing to warn of, where a layer would be warned."""
    steep = catnat.chain(31).with_prior([2.0**-k for k in range(31)][::-1])
    CatnatTransform(steep, "natural")(torch.zeros(30))
    assert not recwarn.list


def test_it_is_data():
    transform, same = CatnatTransform(catnat.balanced(5), "sigmoid"), CatnatTransform(5)
    assert transform == same
    assert hash(transform) == hash(same)
    assert transform.inv == same.inv
    assert transform.inv.inv is transform
    assert transform != CatnatTransform(catnat.chain(5), "sigmoid")
    assert transform != CatnatTransform(catnat.balanced(5), "natural")
    assert transform != transforms.StickBreakingTransform()
    for copied in (copy.deepcopy(transform), pickle.loads(pickle.dumps(transform))):
        assert copied == transform
        assert torch.equal(copied(normal(4)), transform(normal(4)))
    assert repr(transform) == "CatnatTransform(balanced(5), sigmoid())"


def test_cache():
    transform, x = CatnatTransform(TREE, "sigmoid"), normal(K - 1)
    assert transform.with_cache(0) is transform
    assert transform.inv(transform(x)) is not x
    kept = transform.with_cache()
    assert kept == transform
    assert kept.inv(kept(x)) is x
    assert kept(x) is kept(x)


def test_transformed_distributions_and_their_reparameterization():
    transform, value = CatnatTransform(TREE, "sigmoid"), normal(3, K - 1)
    distribution = dist.TransformedDistribution(dist.Normal(0, 1).expand([3, K - 1]).to_event(1), transform)
    assert (distribution.batch_shape, distribution.event_shape, distribution.support) == (
        (3,),
        (K,),
        constraints.simplex,
    )
    jacobian = torch.stack([torch.autograd.functional.jacobian(transform, row) for row in value])[:, :-1]
    wanted = dist.Normal(0, 1).log_prob(value).sum(-1) - torch.linalg.slogdet(jacobian).logabsdet
    torch.testing.assert_close(distribution.log_prob(transform(value)), wanted)
    assert distribution.expand([2, 3]).rsample().shape == (2, 3, K)

    def model():
        with pyro.plate("rows", 3):
            return pyro.sample("p", distribution)

    inside = poutine.condition(poutine.reparam(model, config={"p": TransformReparam()}), {"p_base": value})
    torch.testing.assert_close(inside(), transform(value))


@pytest.mark.slow
def test_nuts_finds_the_posterior_of_counts():
    """A Dirichlet, whose means and variances are known; all within six standard errors."""
    counts, prior = torch.tensor([5.0, 12.0, 3.0]), 0.5
    transform = CatnatTransform(catnat.chain(3), "natural")  # NUTS also has to find its way into a box
    through = transforms.ComposeTransform([td.biject_to(transform.domain), transform], cache_size=1)

    def model():
        p = pyro.sample("p", dist.Dirichlet(torch.full((3,), prior)))
        pyro.sample("counts", dist.Multinomial(20, p), obs=counts)

    mcmc = MCMC(NUTS(model, transforms={"p": through.inv}), num_samples=300, warmup_steps=100, disable_progbar=True)
    mcmc.run()
    p, posterior = mcmc.get_samples()["p"], td.Dirichlet(counts + prior)
    for drawn, wanted in ((p, posterior.mean), ((p - posterior.mean) ** 2, posterior.variance)):
        effective = effective_sample_size(drawn[None])
        assert effective.min() > 60
        assert ((drawn.mean(0) - wanted).abs() < 6 * drawn.std(0) / effective.sqrt()).all()


# ---- ordered bins ----


def test_binned_is_a_distribution_of_pyros():
    """Its shapes and log-density in a model, reparameterized draws, and a divergence in closed form."""
    scores = torch.randn(3, 7, requires_grad=True)
    bins = catnat.Bins(torch.linspace(-2, 2, 9).numpy(), tails=True)
    made, plain = BinnedCatnat(scores, bins), ct.BinnedCatnat(scores, bins)

    def model():
        with pyro.plate("rows", 3), pyro.plate("copies", 4):
            pyro.sample("x", made)

    trace = poutine.trace(model).get_trace()
    drawn = trace.nodes["x"]["value"]
    assert drawn.shape == (4, 3)
    torch.testing.assert_close(trace.log_prob_sum(), plain.log_prob(drawn).sum())
    assert isinstance(made.expand((4, 3)), BinnedCatnat)
    assert made.has_rsample
    (gradient,) = torch.autograd.grad(drawn.sum(), scores)
    assert (gradient != 0).any(-1).all()
    other = torch.randn(3, 7)
    divergence = td.kl_divergence(made, BinnedCatnat(other, bins))
    torch.testing.assert_close(divergence, td.kl_divergence(plain, ct.BinnedCatnat(other, bins)))


@pytest.mark.parametrize("kind", [Catnat, OneHotCatnat])
def test_logits_give_the_distribution_of_softmax(kind):
    logits = normal(4, K)
    found, wanted = kind(logits=logits, activation="natural"), torch.softmax(logits, -1)
    torch.testing.assert_close(found.probs, wanted)


def test_marginals_of_enumerated_variables():
    """Pyro builds them from logits, by the type of the site's distribution."""

    @config_enumerate
    def model():
        pyro.sample("group", Catnat(torch.tensor([0.5, -0.3])))

    marginals = TraceEnum_ELBO().compute_marginals(model, lambda: None)
    torch.testing.assert_close(marginals["group"].probs, Catnat(torch.tensor([0.5, -0.3])).probs)
