"""The adapter to Pyro, against the real library: its own classes, enumeration by brute force, guides, mixtures."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch
from torch import distributions as td

import catnat
import catnat.torch as ct

pytest.importorskip("pyro", minversion="1.9")
import pyro
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO, config_enumerate, infer_discrete

from catnat.integrations.pyro import Catnat, OneHotCatnat, OneHotCatnatStraightThrough

K = 5
TREE = catnat.huffman([5, 3, 2, 1, 4])
MASK = torch.tensor([True, True, False, True, True])
OPTIONS = {
    "plain": {},
    "prune": {"mask": MASK},
    "all": {"mask": MASK, "mask_mode": "renormalize", "temperature": 2.0, "unimix": 0.2},
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
    law = Catnat(normal(3, 1, K - 1), TREE, "sigmoid", **options)
    rival = dist.Categorical(probs=ct.Catnat(law.scores, TREE, "sigmoid", **options).probs)
    assert (law.batch_shape, law.event_shape, law.event_dim) == (rival.batch_shape, rival.event_shape, 0)
    assert law.has_enumerate_support
    assert (law.support.lower_bound, law.support.upper_bound, law.support.is_discrete) == (0, K - 1, True)
    valid = options.get("mask", torch.ones(K, dtype=torch.bool))
    for expand in (True, False):
        values = law.enumerate_support(expand=expand)
        assert torch.equal(values, rival.enumerate_support(expand=expand))
        torch.testing.assert_close(law.log_prob(values)[valid], rival.log_prob(values)[valid])
        assert law.log_prob(values).shape == (K, 3, 1)
    assert (law.log_prob(law.enumerate_support())[~valid] == torch.finfo(torch.float64).min).all()
    torch.testing.assert_close(law.entropy(), rival.entropy())
    torch.testing.assert_close(law.probs, rival.probs)
    with pytest.raises(ValueError, match="support"):
        law.log_prob(torch.tensor(K))
    with pytest.raises(ValueError, match="support"):
        law.log_prob(law.enumerate_support(expand=False) + 1)


def test_enumerated_values_are_only_known_to_their_own_distribution():
    """Two laws, one's values: a shortcut that did not look whose they are would still answer for its own order."""
    first, second = (Catnat(normal(3, K - 1, seed=seed), TREE) for seed in (0, 1))
    values = first.enumerate_support(expand=False)
    torch.testing.assert_close(second.log_prob(values), second.logits.T)
    torch.testing.assert_close(first.log_prob(values), first.logits.T)
    torch.testing.assert_close(first.log_prob(values.clone()), first.logits.T)


@pytest.mark.parametrize("cls", [Catnat, OneHotCatnat, OneHotCatnatStraightThrough])
def test_shapes_expansion_and_masks(cls):
    law = cls(normal(3, 1, K - 1), TREE, mask=MASK)
    event = () if cls is Catnat else (K,)
    wide = law.expand((2, 3, 4))
    assert type(wide) is cls
    assert wide.sample().shape == (2, 3, 4, *event)
    assert law.expand_by((6,)).batch_shape == (6, 3, 1)
    assert law.to_event(1).event_shape == (1, *event)
    assert law((7,)).shape == law.shape((7,)) == (7, 3, 1, *event)
    torch.testing.assert_close(wide.log_prob(wide.sample()).shape, torch.Size((2, 3, 4)))
    batch, found = cls.infer_shapes(scores=torch.Size((3, 1, K - 1)))
    assert (batch, found) == ((3, 1), event)
    # The argument `mask` is one thing and the method another.
    assert torch.equal(wide.valid_classes, MASK.expand(2, 3, 4, K))
    assert cls(normal(K - 1), TREE).valid_classes is None
    left_out = law.mask(torch.tensor([[True], [False], [True]]))
    value = law.sample()
    wanted = law.log_prob(value)
    wanted[1] = 0
    assert torch.equal(left_out.log_prob(value), wanted)


def test_one_hot_vectors_are_the_classes():
    law, classes = OneHotCatnat(normal(3, K - 1), TREE), Catnat(normal(3, K - 1), TREE)
    values = law.enumerate_support(expand=False)
    assert values.shape == (K, 1, K)
    torch.testing.assert_close(law.log_prob(values), classes.log_prob(torch.arange(K)[:, None]))
    assert isinstance(law, dist.OneHotCategorical)
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


def test_svi_with_a_guide_finds_the_posterior():
    """The guide's law can be the posterior's, which is known: a conjugate-free model of one class and one number."""
    means, prior = torch.linspace(-2, 2, K), normal(K - 1, seed=3) / 2

    def model():
        group = pyro.sample("group", Catnat(prior, TREE, "sigmoid"))
        pyro.sample("x", dist.Normal(means[group], 1.0), obs=torch.tensor(0.7))

    @config_enumerate
    def guide():
        pyro.sample("group", Catnat(pyro.param("scores", torch.zeros(K - 1)), TREE, "sigmoid"))

    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), TraceEnum_ELBO(max_plate_nesting=0))
    for _ in range(250):
        svi.step()
    weights = ct.catnat(prior, TREE, "sigmoid") * dist.Normal(means, 1.0).log_prob(torch.tensor(0.7)).exp()
    learned = ct.catnat(pyro.param("scores").detach(), TREE, "sigmoid")
    torch.testing.assert_close(learned, weights / weights.sum(), rtol=0, atol=2e-3)


@pytest.mark.parametrize("activation", ["sigmoid", "natural"])
def test_mixture_weights_are_learned(activation):
    """Those of maximum likelihood, found by EM on the same points."""
    means, truth = torch.tensor([-4.0, -1.0, 1.5, 4.0]), torch.tensor([0.1, 0.4, 0.3, 0.2])
    x = dist.Normal(means[dist.Categorical(truth).sample((300,))], 0.7).sample()

    @config_enumerate
    def model():
        scores = pyro.param("scores", torch.zeros(3))
        with pyro.plate("points", len(x)):
            group = pyro.sample("group", Catnat(scores, activation=activation))
            pyro.sample("x", dist.Normal(means[group], 0.7), obs=x)

    svi = SVI(model, lambda: None, pyro.optim.Adam({"lr": 0.05}), TraceEnum_ELBO(max_plate_nesting=1))
    for _ in range(200):
        svi.step()
    weights = torch.full((4,), 0.25)
    for _ in range(200):
        shares = weights * dist.Normal(means, 0.7).log_prob(x[:, None]).exp()
        weights = (shares / shares.sum(-1, keepdim=True)).mean(0)
    learned = ct.catnat(pyro.param("scores").detach(), activation=activation)
    torch.testing.assert_close(learned, weights, rtol=0, atol=1e-3)
    mixture = dist.MixtureSameFamily(
        Catnat(pyro.param("scores").detach(), activation=activation), dist.Normal(means, 0.7)
    )
    torch.testing.assert_close(mixture.mean, (learned * means).sum())


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


def test_missing_pyro_says_which_extra_to_install():
    code = "import sys; sys.modules['pyro'] = None; import catnat.integrations.pyro"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "catnat[pyro]" in done.stderr.strip().splitlines()[-1]
