"""Masks, temperatures and unimix in torch: their forms, errors, dtypes, transforms, and torch's own distributions.

What they make of a distribution is tested for all backends, in conformance/test_distributions.py.
"""

from __future__ import annotations

import cases
import pytest
import torch
from only_torch import rows
from only_torch.test_hostile_inputs import DTYPES, hostile
from torch import Tensor
from torch import distributions as td
from torch.distributions import kl_divergence
from torch.func import vmap

import catnat
import catnat.torch as ct

pytestmark = [pytest.mark.filterwarnings("ignore::catnat.EdgeWarning"), pytest.mark.usefixtures("validation")]

MASK = torch.tensor([True, False, True, True, False])
OPTIONS = rows.OPTIONS
all_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
all_options = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())


def masks(tree: catnat.Tree, count: int, seed: int = 0) -> Tensor:
    """Masks of all sizes (count, K)."""
    return torch.from_numpy(cases.masks(tree.num_classes, count, seed))


def facts(dist: ct.Catnat) -> dict[str, Tensor]:
    return {"probs": dist.probs, "logits": dist.logits, "entropy": dist.entropy(), "mode": dist.mode}


def weighted(value: Tensor, size: float = 1.0) -> Tensor:
    """A loss that tells the entries apart."""
    return (value * torch.linspace(-size, 2 * size, value.numel(), dtype=value.dtype).view(value.shape)).sum()


def gradient(value: Tensor, scores: Tensor) -> Tensor:
    return torch.autograd.grad(weighted(value), scores, retain_graph=True)[0]


def assert_obeyed(draws: Tensor, mask: Tensor) -> None:
    assert mask.expand(*draws.shape, -1).gather(-1, draws.unsqueeze(-1)).all(), "a masked class was drawn"


# ---- forms of masks ----


@all_options
@pytest.mark.parametrize("tree", [catnat.balanced(1), catnat.balanced(5), catnat.balanced(100)], ids=repr)
def test_empty_batches(tree, options):
    for shape in ((0,), (3, 0, 2)):
        scores = torch.zeros(*shape, tree.num_nodes, requires_grad=True)
        mask = torch.ones(*shape, tree.num_classes, dtype=torch.bool)
        for dist in (ct.Catnat(scores, tree, mask=mask, **options), ct.Catnat(scores, tree, **options)):
            assert dist.probs.shape == dist.logits.shape == (*shape, tree.num_classes)
            assert dist.entropy().shape == dist.mode.shape == shape
            assert dist.sample((2,)).shape == dist.log_prob(dist.sample((2,))).shape == (2, *shape)
            assert kl_divergence(dist, dist).shape == shape
        hot = ct.OneHotCatnatStraightThrough(scores, tree, mask=mask, **options)
        assert hot.rsample((2,)).shape == (2, *shape, tree.num_classes)


# ---- rows without a valid class ----

NOTHING = torch.tensor([[True, False, True], [False, False, False], [False, True, False]])


def test_where_nothing_can_be_checked_a_row_without_valid_class_is_unmasked():
    scores = torch.randn(3, 2, dtype=torch.float64)
    first = ct.Catnat(scores[0], mask=NOTHING[0]).probs
    wanted = torch.stack([first, ct.catnat(scores[1]), torch.eye(3).double()[1]])

    def probs(scores, mask):
        return ct.Catnat(scores, mask=mask).probs

    dist = ct.Catnat(scores, mask=NOTHING, validate_args=False)
    rows.assert_close(dist.probs, wanted)
    rows.assert_close(vmap(probs)(scores, NOTHING), wanted)
    rows.assert_close(torch.compile(probs, backend="aot_eager", fullgraph=True)(scores, NOTHING), wanted)
    rows.assert_equal(dist.mask, NOTHING | torch.tensor([[False], [True], [False]]))
    rows.chi_square(dist.sample((3000,), generator=rows.seeded(0))[:, 1], wanted[1])


def test_validate_mask():
    wanted = torch.tensor([True, False, True])
    for classes in (3, catnat.balanced(3), catnat.chain(3)):
        rows.assert_equal(ct.validate_mask(NOTHING, classes), wanted)
        rows.assert_equal(ct.validate_mask(NOTHING[0], classes), torch.tensor(True))
    assert ct.validate_mask(torch.zeros(0, 3, dtype=torch.bool), 3).shape == (0,)
    rows.assert_equal(vmap(lambda mask: ct.validate_mask(mask, 3))(NOTHING), wanted)
    compiled = torch.compile(lambda mask: ct.validate_mask(mask, 3), backend="aot_eager", fullgraph=True)
    rows.assert_equal(compiled(NOTHING), wanted)
    # Of a forest every variable needs a valid class.
    both = torch.cat([NOTHING, NOTHING.flip(0)], -1)
    for sizes, usable in (([3, 3], wanted), ([2, 4], wanted), ([1, 1, 4], torch.zeros(3, dtype=torch.bool))):
        rows.assert_equal(ct.validate_mask(both, catnat.Forest(sizes)), usable)


# ---- dtypes, hostile scores, extreme temperatures ----


def assert_finite(value: Tensor, scores: Tensor, what: str) -> None:
    assert value.isfinite().all(), what
    # Losses are often scaled: what stands for minus infinity must not overflow when it comes back.
    (found,) = torch.autograd.grad(weighted(value, 50.0), scores, retain_graph=True)
    assert found.isfinite().all(), f"gradient of 50 times {what}"
    (found,) = torch.autograd.grad(weighted(value), scores, create_graph=True)
    assert found.isfinite().all(), f"gradient of {what}"
    if found.requires_grad:
        (again,) = torch.autograd.grad(found.sum(), scores, retain_graph=True, allow_unused=True)
        assert again is None or again.isfinite().all(), f"second-order gradient of {what}"


@all_dtypes
@pytest.mark.parametrize("activation", ["natural", "sigmoid"])
@pytest.mark.parametrize("name", ["balanced-2", "balanced-8", "balanced-100", "chain-100", "huffman-20", "uneven-8"])
@pytest.mark.parametrize("options", [*OPTIONS.values(), {"temperature": 1e-10}], ids=[*OPTIONS, "freezing"])
def test_hostile_scores(dtype, options, name, activation):
    tree, kind = rows.TREES[name], rows.ACTIVATIONS[activation]
    scores = hostile(tree, kind, dtype)
    scores = scores[torch.randperm(len(scores), generator=rows.seeded(0))[:40]].requires_grad_()
    mask = masks(tree, len(scores))
    dist, other, hot = (
        build(s, tree, kind, mask=mask, **options)
        for build, s in (
            (ct.Catnat, scores),
            (ct.Catnat, scores.flip(0)),
            (ct.OneHotCatnatStraightThrough, scores),
        )
    )
    classes = torch.arange(5).view(-1, 1).expand(-1, len(scores)) % tree.num_classes
    found = {
        "log_prob": dist.log_prob(classes),
        **{name: value for name, value in facts(dist).items() if name != "mode"},
        "kl": kl_divergence(dist, other),
        "straight-through": hot.rsample(),
        "variance": hot.variance,
        "one-hot log_prob": hot.log_prob(hot.sample()),
    }
    for what, value in found.items():
        assert value.dtype == dtype
        assert_finite(value, scores, what)
    assert_obeyed(dist.sample((3,)), mask)
    assert_obeyed(dist.mode, mask)
    total = dist.probs.detach().double().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=tree.num_classes * torch.finfo(dtype).eps)


@all_dtypes
@pytest.mark.parametrize("name", ["balanced-8", "huffman-20"])
@pytest.mark.parametrize("temperature", [0.01, 1.0, 100.0])
def test_relaxed_draws_of_hostile_scores(dtype, name, temperature):
    """Exact zeros at masked classes, in every dtype and for every temperature; finite densities of its own draws."""
    tree = rows.TREES[name]
    for activation in ("natural", "sigmoid"):
        kind = rows.ACTIVATIONS[activation]
        scores = hostile(tree, kind, dtype).requires_grad_()
        mask = masks(tree, len(scores))
        dist = ct.RelaxedOneHotCatnat(temperature, scores, tree, kind, mask=mask, unimix=0.1, validate_args=False)
        draw = dist.rsample(generator=rows.seeded(5))
        assert draw.dtype == dtype
        assert (draw[~mask] == 0).all()
        total = draw.detach().double().sum(-1)
        torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=20 * torch.finfo(dtype).eps)
        assert_finite(draw, scores, "a draw")
        assert_finite(dist.log_prob(draw.detach()), scores, "the density")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@all_options
def test_half_precision_computes_in_single(dtype, options):
    tree = catnat.huffman(cases.zipf(80))
    scores, mask = rows.inside(tree, "natural", 4, dtype=dtype), masks(tree, 4)
    got = facts(ct.Catnat(scores, tree, mask=mask, **options))
    wanted = facts(ct.Catnat(scores.float(), tree, mask=mask, **options))
    limit = torch.finfo(dtype)
    for name in ("probs", "logits", "entropy"):
        rows.assert_equal(got[name], wanted[name].clamp(limit.min, limit.max).to(dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for name, fact in facts(ct.Catnat(scores, tree, mask=mask, **options)).items():
            rows.assert_equal(fact, wanted[name])


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("value", [0.1, 0.5, 1.0, 2.0])
def test_the_gradient_of_a_temperature(value, dtype, masked):
    """That of softmax(log p / T) over the valid classes alone, written in plain operations."""
    scores = rows.inside(catnat.balanced(5), "natural", 3, dtype=dtype)
    mask = MASK if masked else torch.ones(5, dtype=torch.bool)
    for unimix in (0.0, 0.2):
        temperature = torch.full((3,), value, dtype=dtype, requires_grad=True)
        dist = ct.Catnat(scores, mask=mask if masked else None, temperature=temperature, unimix=unimix)
        logs = ct.Catnat(scores, mask=mask).logits[:, mask]
        probs = torch.softmax(logs / temperature.unsqueeze(-1), -1) * (1 - unimix) + unimix / mask.sum()
        pairs = [(dist.probs[:, mask], probs), (dist.logits[:, mask], probs.log())]
        for found, wanted in [*pairs, (dist.entropy(), -(probs * probs.log()).sum(-1))]:
            both = [gradient(value, temperature) for value in (found, wanted)]
            torch.testing.assert_close(*both, rtol=1e-3, atol=1e-4 if dtype == torch.float32 else 1e-9)


@all_dtypes
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("number", [1e-30, 1e-6, 1e6, 1e30, "largest"])
def test_extreme_temperatures(dtype, masked, number):
    """Distributions that sum to one, with finite gradients, in the temperature too; the highest are uniform."""
    computing = torch.float64 if dtype == torch.float64 else torch.float32
    number = torch.finfo(computing).max if number == "largest" else number
    scores = rows.inside(catnat.balanced(5), "natural", 3, dtype=dtype).requires_grad_()
    learned = torch.full((3,), number, dtype=computing, requires_grad=True)
    valid = MASK if masked else torch.ones(5, dtype=torch.bool)
    for temperature in (number, learned):
        dist = ct.Catnat(scores, mask=MASK if masked else None, temperature=temperature)
        torch.testing.assert_close(dist.probs.double().sum(-1), torch.ones(3).double(), rtol=0, atol=0.01)
        for value in (dist.probs, dist.logits, dist.entropy(), dist.log_prob(torch.tensor(0))):
            assert value.isfinite().all()
            assert gradient(value, scores).isfinite().all()
            if temperature is learned:
                assert gradient(value, learned).isfinite().all()
        if number > 1:
            uniform = (valid / valid.sum()).expand(3, -1)
            torch.testing.assert_close(dist.probs.float(), uniform, rtol=1e-2, atol=1e-3)


@all_options
@pytest.mark.parametrize("activation", ["natural", "sigmoid"])
def test_first_and_second_derivatives(options, activation):
    """Against finite differences."""
    scores = rows.inside(catnat.balanced(5), activation).requires_grad_()

    def every(s):
        dist = ct.Catnat(s, activation=activation, mask=MASK, **options)
        return dist.probs, dist.entropy(), dist.log_prob(torch.tensor([0, 2, 3]))

    assert torch.autograd.gradcheck(every, (scores,), fast_mode=True)
    assert torch.autograd.gradgradcheck(every, (scores,), fast_mode=True)


# ---- modes and transforms ----


@all_options
@pytest.mark.parametrize("name", ["balanced-8", "balanced-100", "chain-100", "huffman-20"])
def test_vmap_is_the_batch(name, options):
    tree = rows.TREES[name]
    scores, mask = rows.inside(tree, "natural", 5), masks(tree, 5)
    dist, classes = ct.Catnat(scores, tree, mask=mask, **options), mask.int().argmax(-1)

    def every(s, m, c):
        one = ct.Catnat(s, tree, mask=m, validate_args=False, **options)
        return *facts(one).values(), one.log_prob(c)

    wanted = (*facts(dist).values(), dist.log_prob(classes))
    for got, value in zip(vmap(every)(scores, mask, classes), wanted, strict=True):
        rows.assert_close(got, value)
    slopes = vmap(torch.func.grad(lambda *args: every(*args)[-1]))(scores, mask, classes)
    leaf = scores.clone().requires_grad_()
    rows.assert_close(slopes, torch.autograd.grad(every(leaf, mask, classes)[-1].sum(), leaf)[0])
    draws = vmap(lambda s, m: ct.Catnat(s, tree, mask=m, **options).sample((50,)), randomness="different")(scores, mask)
    assert_obeyed(draws.T, mask)
    indices = torch.tensor([[0, 1, -1], [1, 0, -1], [-1, -1, 0], [1, 1, 1], [0, 0, -1]])
    got = vmap(lambda s, i: ct.Catnat(s, tree, valid_classes=i).probs)(scores, indices)
    rows.assert_close(got, ct.Catnat(scores, tree, valid_classes=indices).probs)


# ---- never drawn ----

DRAWN_TREES = {
    "balanced-8": catnat.balanced(8),
    "balanced-100": catnat.balanced(100),
    "huffman-90": catnat.huffman(cases.zipf(90)),
    "chain-75": catnat.chain(75),
}


@pytest.mark.parametrize("end", ["lowest", "highest"])
@pytest.mark.parametrize("name", DRAWN_TREES)
def test_the_ends_of_the_uniform_numbers(name, end, monkeypatch):
    """A uniform number may be exactly 0, and as near to 1 as the dtype can come: a masked class is not drawn then."""

    def rand(shape, *, dtype, **_):
        return torch.full(shape, 0.0 if end == "lowest" else 1 - torch.finfo(dtype).eps / 2, dtype=dtype)

    tree = DRAWN_TREES[name]
    mask, scores = masks(tree, 50), rows.around(tree, 50, dtype=torch.float32)
    monkeypatch.setattr(torch, "rand", rand)
    for options in OPTIONS.values():
        dist = ct.Catnat(scores, tree, mask=mask, **options)
        for draws in (dist.sample(), dist.sample((400,))):
            assert_obeyed(draws, mask)
            assert (dist.probs.expand(*draws.shape, -1).gather(-1, draws.unsqueeze(-1)) > 0).all()
    relaxed = ct.RelaxedOneHotCatnat(0.5, scores, tree, mask=mask).rsample()
    assert relaxed.isfinite().all()
    assert (relaxed[~mask] == 0).all()


# ---- torch's own distributions ----


@all_dtypes
def test_an_infinite_kl_has_finite_gradients(dtype):
    """And only a mask makes one infinite: what is merely unlikely has the dtype's largest number."""
    p_scores = rows.around(catnat.balanced(5), 3, dtype=dtype).requires_grad_()
    q_scores = rows.around(catnat.balanced(5), 3, dtype=dtype, seed=1).requires_grad_()
    p_mask = torch.tensor([[True, False, True, True, True], [True] * 5, [True, False, True, True, False]])
    p, q = ct.Catnat(p_scores, mask=p_mask), ct.Catnat(q_scores, mask=MASK)
    other = td.Categorical(logits=torch.zeros(3, 5, dtype=dtype))
    for pair, infinite in (((p, q), [True, True, False]), ((other, q), [True] * 3), ((q, p), [False] * 3)):
        got = kl_divergence(*pair)
        assert got.dtype == dtype
        assert got.isinf().tolist() == infinite
        assert not got.isnan().any()
        for scores in (p_scores, q_scores):
            (found,) = torch.autograd.grad(got.sum(), scores, allow_unused=True, retain_graph=True)
            assert found is None or found.isfinite().all()
    one, opposite = (ct.Catnat(torch.full((1,), score, dtype=dtype)) for score in (6e4, -6e4))
    assert kl_divergence(one, opposite).isfinite()


def test_kl_of_distributions_masked_in_the_way_of_torch():
    """Users of torch mask by logits of minus infinity: where both forbid a class, nothing is infinite or NaN."""
    scores = rows.inside(catnat.balanced(5), "natural", 3).requires_grad_()
    logits = torch.randn(3, 5, dtype=torch.float64, generator=rows.seeded(0)).requires_grad_()
    dist, other = ct.Catnat(scores, mask=MASK), td.Categorical(logits=logits.masked_fill(~MASK, -torch.inf))
    p, q = (each.probs[:, MASK] for each in (dist, other))
    for pair, wanted in (((dist, other), (p * (p / q).log()).sum(-1)), ((other, dist), (q * (q / p).log()).sum(-1))):
        got = kl_divergence(*pair)
        rows.assert_close(got, wanted)
        rows.assert_close(gradient(got, scores), gradient(wanted, scores))
    # The gradient of torch's own parameter, where torch can give one: its own KL has NaN there.
    rows.assert_close(gradient(kl_divergence(dist, other), logits), gradient((p * (p / q).log()).sum(-1), logits))


@all_options
def test_a_mixture_with_masked_components(options):
    """Components whose mixing probability is masked are never taken, and add nothing to the density."""
    scores = rows.inside(catnat.balanced(5), "natural", 3).requires_grad_()
    mixing = ct.Catnat(scores, mask=MASK, **options)
    where = torch.arange(5.0, dtype=torch.float64).expand(3, -1)
    mixture = td.MixtureSameFamily(mixing, td.Normal(where, torch.full_like(where, 0.01)))
    value = torch.tensor([0.0, 2.001, 3.0], dtype=torch.float64)
    density = td.Normal(where[:, MASK], 0.01).log_prob(value.unsqueeze(-1)).exp()
    wanted = (mixing.probs[:, MASK] * density).sum(-1).log()
    rows.assert_close(mixture.log_prob(value), wanted)
    rows.assert_close(gradient(mixture.log_prob(value), scores), gradient(wanted, scores), 1e-9)
    assert MASK[mixture.sample((2000,)).round().long()].all()


# ---- relaxed ----


def test_a_relaxed_distribution_with_one_valid_class_is_certain():
    scores = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    dist = ct.RelaxedOneHotCatnat(0.5, scores, mask=torch.eye(5, dtype=torch.bool))
    draw = dist.rsample()
    rows.assert_equal(draw.detach(), torch.eye(5, dtype=torch.float64))
    rows.assert_close(gradient(draw, scores), torch.zeros_like(scores), atol=1e-14)
    rows.assert_close(dist.log_prob(draw.detach()), torch.zeros(5, dtype=torch.float64))
