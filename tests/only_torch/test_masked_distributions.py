"""Masks, temperature and unimix in torch: divergences, torch's own distributions."""

from __future__ import annotations

import cases
import numpy as np
import oracle
import pytest
import torch
from only_torch import rows
from only_torch.masking import MASK, all_dtypes, all_options, assert_same, both_modes, facts, gradient, masks, weighted
from torch import Tensor
from torch import distributions as td
from torch.distributions import kl_divergence

import catnat
import catnat.torch as ct

pytestmark = [pytest.mark.filterwarnings("ignore::catnat.EdgeWarning"), pytest.mark.usefixtures("validation")]


# ---- temperature and unimix ----


@both_modes
@pytest.mark.parametrize("unimix", [0.0, 0.1])
@pytest.mark.parametrize("masked", [True, False])
def test_a_temperature_for_every_row(mode, unimix, masked):
    tree = catnat.huffman(cases.zipf(80))
    scores = rows.inside(tree, "natural", 2, 3)
    mask = masks(tree, 6).view(2, 3, -1) if masked else None
    temperature = torch.tensor([[0.1, 0.5, 1.0], [1.5, 3.0, 40.0]], dtype=torch.float64)
    options = {"mask_mode": mode, "unimix": unimix}
    dist = ct.Catnat(scores, tree, mask=mask, temperature=temperature, **options)
    draws = dist.sample((3000,), generator=rows.seeded(0))
    for at in np.ndindex(2, 3):
        row = ct.Catnat(
            scores[at], tree, mask=None if mask is None else mask[at], temperature=float(temperature[at]), **options
        )
        for name, fact in facts(row).items():
            rows.assert_close(facts(dist)[name][at], fact, 1e-12, 1e-13)
        rows.chi_square(draws[(slice(None), *at)], row.probs)
    # One number for all, as a tensor; one row of them, broadcast.
    assert_same(
        ct.Catnat(scores, tree, mask=mask, temperature=torch.tensor(1.7), **options),
        ct.Catnat(scores, tree, mask=mask, temperature=float(torch.tensor(1.7)), **options),
    )
    by_mask = ct.Catnat(scores[0, 0], tree, mask=masks(tree, 3), temperature=temperature[0], **options)
    assert_same(
        by_mask,
        ct.Catnat(scores[0, :1].expand(3, -1), tree, mask=masks(tree, 3), temperature=temperature[0], **options),
    )
    wide = ct.Catnat(scores, tree, mask=mask, temperature=temperature[0], **options)
    assert_same(wide, ct.Catnat(scores, tree, mask=mask, temperature=temperature[0].expand(2, 3), **options))


@pytest.mark.parametrize("size", [1.0, 100.0])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("value", [0.1, 0.5, 1.0, 2.0])
def test_the_gradient_of_a_temperature(value, dtype, masked, size):
    """That of softmax(log p / T) over the valid classes alone, written in plain operations."""
    scores = rows.inside(catnat.balanced(5), "natural", 3, dtype=dtype)
    mask = MASK if masked else torch.ones(5, dtype=torch.bool)
    for unimix in (0.0, 0.2):
        found = []
        for build in ("library", "plain"):
            temperature = torch.full((3,), value, dtype=dtype, requires_grad=True)
            if build == "library":
                dist = ct.Catnat(scores, mask=mask if masked else None, temperature=temperature, unimix=unimix)
                probs, entropy = dist.probs[:, mask], dist.entropy()
                logits = dist.logits[:, mask]
            else:
                logs = ct.Catnat(scores, mask=mask).logits[:, mask]
                probs = torch.softmax(logs / temperature.unsqueeze(-1), -1) * (1 - unimix) + unimix / mask.sum()
                logits, entropy = probs.log(), -(probs * probs.log()).sum(-1)
            values = (probs, logits, entropy)
            grads = [torch.autograd.grad(weighted(v, size), temperature, retain_graph=True)[0] for v in values]
            found.append(torch.stack(grads) / size)
        torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4 if dtype == torch.float32 else 1e-9)


@all_dtypes
@both_modes
@pytest.mark.parametrize("masked", [True, False])
def test_extreme_temperatures(dtype, mode, masked):
    """Distributions that sum to one, with finite gradients; at a high temperature they are uniform."""
    scores = rows.inside(catnat.balanced(5), "natural", 3, dtype=dtype).requires_grad_()
    computing = torch.float64 if dtype == torch.float64 else torch.float32
    for number in (1e-30, 1e-6, 1e6, 1e30):
        for temperature in (number, torch.full((3,), number, dtype=computing)):
            dist = ct.Catnat(scores, mask=MASK if masked else None, mask_mode=mode, temperature=temperature)
            torch.testing.assert_close(dist.probs.double().sum(-1), torch.ones(3).double(), rtol=0, atol=0.01)
            for value in (dist.probs, dist.logits, dist.entropy(), dist.log_prob(torch.tensor(0))):
                assert value.isfinite().all()
                assert gradient(value, scores).isfinite().all()
            if number > 1:
                assert_uniform(dist)


def assert_uniform(dist: ct.Catnat) -> None:
    valid = torch.ones_like(dist.probs, dtype=torch.bool) if dist.mask is None else dist.mask
    wanted = valid.float() / valid.sum(-1, keepdim=True)
    torch.testing.assert_close(dist.probs.float(), wanted, rtol=1e-2, atol=1e-3)


@all_dtypes
@both_modes
def test_enormous_temperatures(dtype, mode):
    """Up to the largest number there is, a masked class takes nothing from the others."""
    largest = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).max
    scores = rows.inside(catnat.balanced(5), "natural", 3, dtype=dtype)
    for temperature in (largest / 1000, largest / 10, largest):
        assert_uniform(ct.Catnat(scores, mask=MASK, mask_mode=mode, temperature=temperature))


def test_a_temperature_beyond_the_dtype_is_refused():
    """In float32 1e300 is infinite."""
    with pytest.raises(ValueError, match="temperature"):
        ct.Catnat(torch.zeros(4), mask=MASK, temperature=1e300)


@pytest.mark.parametrize("learned", [1e-30, 1e-3, 1e30])
@pytest.mark.parametrize("masked", [True, False])
def test_extreme_learned_temperatures(learned, masked):
    scores = rows.inside(catnat.balanced(5), "natural", 3)
    temperature = torch.full((3,), learned, dtype=torch.float64, requires_grad=True)
    dist = ct.Catnat(scores, mask=MASK if masked else None, temperature=temperature)
    for value in (dist.probs, dist.logits, dist.entropy()):
        assert gradient(value, temperature).isfinite().all()


@both_modes
@pytest.mark.parametrize("tree", [catnat.balanced(1000), catnat.huffman(cases.zipf(1000))], ids=["balanced", "huffman"])
def test_walked_log_prob_of_a_mixture(tree, mode):
    """A path and the uniform fraction: the same as reading it from all classes."""
    scores = rows.around(tree, 4).requires_grad_()
    for mask in (masks(tree, 4), None):
        dense, walked = (ct.Catnat(scores, tree, mask=mask, mask_mode=mode, unimix=0.1) for _ in range(2))
        assert dense.logits.shape == (4, 1000)  # kept: log_prob now looks there
        classes = torch.randint(1000, (5, 4), generator=rows.seeded(0))
        got, wanted = (
            walked.log_prob(classes),
            dense.logits.expand(5, 4, -1).gather(-1, classes.unsqueeze(-1)).squeeze(-1),
        )
        rows.assert_close(got, wanted, 1e-12)
        rows.assert_equal(dense.log_prob(classes), wanted)
        rows.assert_close(gradient(got, scores), gradient(wanted, scores), 1e-9)


# ---- divergences ----


def torch_counterpart(dist: ct.Catnat) -> td.Categorical:
    return td.Categorical(probs=dist.probs.detach())


@all_options
def test_kl_with_the_distributions_of_torch(options):
    tree = catnat.huffman(cases.zipf(20))
    dist = ct.Catnat(rows.inside(tree, "natural", 5), tree, mask=masks(tree, 5), **options)
    other = td.Categorical(logits=torch.randn(5, 20, dtype=torch.float64, generator=rows.seeded(0)))
    p, q = dist.probs.numpy(), other.probs.numpy()
    got = kl_divergence(dist, other)
    np.testing.assert_allclose(got, [oracle.categorical_kl(*pair) for pair in zip(p, q, strict=True)], rtol=1e-11)
    got = kl_divergence(other, dist)
    np.testing.assert_array_equal(got.isinf(), ~dist.mask.all(-1).numpy())
    np.testing.assert_allclose(got, [oracle.categorical_kl(*pair) for pair in zip(q, p, strict=True)], rtol=1e-11)
    assert (kl_divergence(dist, torch_counterpart(dist)).abs() < 1e-6).all()  # torch keeps probabilities away from 0


@all_options
def test_one_hot_kl_is_that_of_the_classes(options):
    tree, mask = catnat.balanced(11), masks(catnat.balanced(11), 5)
    scores = rows.inside(tree, "natural", 2, 5)
    p, q = (
        ct.Catnat(each, tree, mask=mask | (mask.roll(1, 0) if i else False), **options) for i, each in enumerate(scores)
    )
    hot = [ct.OneHotCatnat(each.scores, tree, mask=each.mask, **options) for each in (p, q)]
    rows.assert_equal(kl_divergence(*hot), kl_divergence(p, q))
    other = td.OneHotCategorical(logits=torch.randn(5, 11, dtype=torch.float64))
    rows.assert_equal(kl_divergence(hot[0], other), kl_divergence(p, other._categorical))
    rows.assert_equal(kl_divergence(other, hot[0]), kl_divergence(other._categorical, p))


@all_dtypes
@both_modes
def test_an_infinite_kl_has_finite_gradients(dtype, mode):
    p_scores = rows.around(catnat.balanced(5), 3, dtype=dtype).requires_grad_()
    q_scores = rows.around(catnat.balanced(5), 3, dtype=dtype, seed=1).requires_grad_()
    p_mask = torch.tensor([[True, False, True, True, True], [True] * 5, [True, False, True, True, False]])
    p = ct.Catnat(p_scores, activation="sigmoid", mask=p_mask, mask_mode=mode)
    q = ct.Catnat(q_scores, activation="sigmoid", mask=MASK, mask_mode=mode)
    other = td.Categorical(logits=torch.zeros(3, 5, dtype=dtype))
    for pair, infinite in (((p, q), [True, True, False]), ((other, q), [True] * 3), ((q, p), [False] * 3)):
        got = kl_divergence(*pair)
        assert got.dtype == dtype
        assert got.isinf().tolist() == infinite
        assert not got.isnan().any()
        for scores in (p_scores, q_scores):
            (found,) = torch.autograd.grad(got.sum(), scores, allow_unused=True, retain_graph=True)
            assert found is None or found.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_saturates_what_is_finite(dtype):
    """Unlikely is not forbidden: only a mask makes a divergence infinite."""
    p = ct.Catnat(torch.full((1,), 6e4, dtype=dtype), activation="sigmoid")
    q = ct.Catnat(torch.full((1,), -6e4, dtype=dtype), activation="sigmoid")
    assert kl_divergence(p, q).isfinite()
    forbidden = ct.Catnat(torch.zeros(1, dtype=dtype), activation="sigmoid", mask=torch.tensor([True, False]))
    assert kl_divergence(p, forbidden) == torch.inf
    assert kl_divergence(ct.OneHotCatnat(p.scores), ct.OneHotCatnat(p.scores, mask=forbidden.mask)) == torch.inf


def test_kl_of_distributions_masked_in_the_way_of_torch():
    """Users of torch mask by logits of minus infinity: where both forbid a class, nothing is infinite or NaN."""
    scores = rows.inside(catnat.balanced(5), "natural", 3).requires_grad_()
    logits = torch.randn(3, 5, dtype=torch.float64, generator=rows.seeded(0)).requires_grad_()
    dist, other = ct.Catnat(scores, mask=MASK), td.Categorical(logits=logits.masked_fill(~MASK, -torch.inf))
    p, q = (each.probs[:, MASK] for each in (dist, other))
    for pair, wanted in (((dist, other), (p * (p / q).log()).sum(-1)), ((other, dist), (q * (q / p).log()).sum(-1))):
        got = kl_divergence(*pair)
        rows.assert_close(got, wanted)
        rows.assert_close(gradient(got, scores), torch.autograd.grad(weighted(wanted), scores, retain_graph=True)[0])
    # The gradient of torch's own parameter, where torch can give one: its own KL has NaN there.
    rows.assert_close(gradient(kl_divergence(dist, other), logits), gradient(wanted_kl(p, q), logits))


def wanted_kl(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p / q).log()).sum(-1)


def test_kl_of_other_numbers_of_classes():
    with pytest.raises(ValueError, match=r"5 classes.*4"):
        kl_divergence(ct.Catnat(torch.zeros(4), mask=MASK), ct.Catnat(torch.zeros(3)))


# ---- torch's own distributions ----


@all_options
def test_expand(options):
    tree = catnat.huffman(cases.zipf(80))
    of_rows = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    scores, mask = rows.inside(tree, "natural", 3), masks(tree, 3)
    for temperature in (options["temperature"], of_rows):
        given = {**options, "temperature": temperature}
        for kind in (ct.Catnat, ct.OneHotCatnat, ct.OneHotCatnatStraightThrough):
            dist = kind(scores, tree, mask=mask, **given)
            wide = dist.expand((2, 3))
            assert type(wide) is kind
            assert wide.batch_shape == (2, 3)
            assert wide.mask.shape == (2, 3, 80)
            rows.assert_equal(wide.probs, dist.probs.expand(2, 3, -1))
            rows.assert_close(wide.entropy(), dist.entropy().expand(2, 3))
            value = wide.sample((4,))
            rows.assert_close(wide.log_prob(value), dist.log_prob(value))
    if options["temperature"] == 1:
        relaxed = ct.RelaxedOneHotCatnat(0.5, scores, tree, mask=mask, mask_mode=options["mask_mode"]).expand((2, 3))
        assert relaxed.rsample((4,)).shape == (4, 2, 3, 80)
        assert (relaxed.rsample() * ~mask == 0).all()


def test_independent():
    scores, mask = rows.inside(catnat.balanced(5), "natural", 4, 3), masks(catnat.balanced(5), 3)
    dist = td.Independent(ct.Catnat(scores, mask=mask), 1)
    other = td.Independent(ct.Catnat(scores.flip(0), mask=mask), 1)
    assert dist.batch_shape == (4,)
    assert dist.event_shape == (3,)
    value = dist.sample((6,))
    rows.assert_close(dist.log_prob(value), dist.base_dist.log_prob(value).sum(-1))
    rows.assert_close(dist.entropy(), dist.base_dist.entropy().sum(-1))
    rows.assert_close(kl_divergence(dist, other), kl_divergence(dist.base_dist, other.base_dist).sum(-1))


@all_options
def test_a_mixture_with_masked_components(options):
    """Components whose mixing probability is masked are never taken, and count nothing in the density."""
    scores = rows.inside(catnat.balanced(5), "natural", 3).requires_grad_()
    mixing = ct.Catnat(scores, mask=MASK, **options)
    where = torch.arange(5.0, dtype=torch.float64).expand(3, -1)
    mixture = td.MixtureSameFamily(mixing, td.Normal(where, torch.full_like(where, 0.01)))
    value = torch.tensor([0.0, 2.001, 3.0], dtype=torch.float64)
    density = td.Normal(where[:, MASK], 0.01).log_prob(value.unsqueeze(-1)).exp()
    wanted = (mixing.probs[:, MASK] * density).sum(-1).log()
    rows.assert_close(mixture.log_prob(value), wanted)
    rows.assert_close(gradient(mixture.log_prob(value), scores), gradient(wanted, scores), 1e-9)
    torch.manual_seed(0)
    draws = mixture.sample((2000,))
    assert MASK[draws.round().long()].all()
    rows.assert_close(mixture.mean, (mixing.probs * where).sum(-1))


@all_options
def test_one_hot(options):
    tree, mask = catnat.balanced(11), masks(catnat.balanced(11), 5)
    scores = rows.inside(tree, "natural", 5).requires_grad_()
    flat, hot = ct.Catnat(scores, tree, mask=mask, **options), ct.OneHotCatnat(scores, tree, mask=mask, **options)
    rows.assert_equal(hot.mask, mask)
    for name in ("probs", "logits"):
        rows.assert_equal(getattr(hot, name), getattr(flat, name))
    rows.assert_equal(hot.mean, flat.probs)
    rows.assert_close(hot.variance, flat.probs * (1 - flat.probs))
    rows.assert_equal(hot.entropy(), flat.entropy())
    rows.assert_equal(hot.mode.argmax(-1), flat.mode)
    draws = hot.sample((100,), generator=rows.seeded(0))
    assert (draws.sum(-1) == 1).all()
    rows.assert_equal(draws.argmax(-1), flat.sample((100,), generator=rows.seeded(0)))
    rows.assert_equal(hot.log_prob(draws), flat.log_prob(draws.argmax(-1)))
    masked = torch.eye(11, dtype=torch.float64)[mask.int().argmin(-1)]
    least = torch.finfo(torch.float64).min
    assert (hot.log_prob(masked)[~mask.all(-1)] == least).all()
    straight = ct.OneHotCatnatStraightThrough(scores, tree, mask=mask, **options).rsample(generator=rows.seeded(1))
    rows.assert_close(gradient(straight, scores), gradient(flat.probs, scores))
    assert (straight[~mask] == 0).all()
    from_masked = torch.autograd.grad(straight[~mask].sum(), scores)[0]
    assert (from_masked == 0).all()


@all_dtypes
@pytest.mark.parametrize("temperature", [0.01, 0.5, 3.0])
@both_modes
def test_relaxed(dtype, temperature, mode):
    """Exact zeros at masked classes, in every dtype and for every temperature; finite densities of its own draws."""
    tree = catnat.balanced(11)
    mask = masks(tree, 5)
    scores = rows.inside(tree, "natural", 5, dtype=dtype).requires_grad_()
    dist = ct.RelaxedOneHotCatnat(temperature, scores, tree, mask=mask, mask_mode=mode, unimix=0.1, validate_args=False)
    draws = dist.rsample((50,), generator=rows.seeded(0))
    assert draws.dtype == dtype
    assert (draws * ~mask == 0).all()
    assert draws.isfinite().all()
    torch.testing.assert_close(
        draws.double().sum(-1), torch.ones(50, 5).double(), rtol=0, atol=16 * torch.finfo(dtype).eps
    )
    assert gradient(draws, scores).isfinite().all()
    density = dist.log_prob(draws.detach())
    assert density.isfinite().all()
    assert gradient(density, scores).isfinite().all()


@pytest.mark.parametrize("masked", [True, False])
def test_the_density_of_a_relaxed_distribution_integrates_to_one(masked):
    """Over the simplex of the valid classes: one valid class is certain, two make a line, three a triangle."""
    mask = torch.tensor([True, False, True, False]) if masked else None
    tree = catnat.balanced(4) if masked else catnat.balanced(2)
    scores = rows.inside(tree, "natural", margin=0.3)
    grid = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    value = torch.zeros(len(grid), tree.num_classes, dtype=torch.float64)
    value[:, 0], value[:, 2 if masked else 1] = grid, 1 - grid
    dist = ct.RelaxedOneHotCatnat(0.9, scores, tree, mask=mask)
    assert dist.log_prob(value).exp().mean().item() == pytest.approx(1, abs=1e-3)


def test_a_relaxed_distribution_with_one_valid_class_is_certain():
    scores = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    dist = ct.RelaxedOneHotCatnat(0.5, scores, mask=torch.eye(5, dtype=torch.bool))
    draw = dist.rsample()
    rows.assert_equal(draw.detach(), torch.eye(5, dtype=torch.float64))
    rows.assert_close(gradient(draw, scores), torch.zeros_like(scores), atol=1e-14)
    rows.assert_close(dist.log_prob(draw.detach()), torch.zeros(5, dtype=torch.float64))


def test_a_learned_temperature_of_a_relaxed_distribution():
    scores = rows.inside(catnat.balanced(5), "natural", 3)
    temperature = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    dist = ct.RelaxedOneHotCatnat(temperature, scores, mask=MASK)
    draw = dist.rsample(generator=rows.seeded(0))
    logs = dist.logits[:, MASK]
    noise = (draw[:, MASK].detach().log() * temperature).detach() - logs  # up to a constant per row
    wanted = torch.softmax((logs + noise) / temperature, -1)
    rows.assert_close(draw[:, MASK], wanted)
    pick = torch.linspace(-1, 2, 15, dtype=torch.float64).view(3, 5)[:, MASK]
    rows.assert_close(*(torch.autograd.grad((v * pick).sum(), temperature)[0] for v in (draw[:, MASK], wanted)), 1e-8)
    value = draw.detach()
    assert gradient(dist.log_prob(value), temperature).isfinite()
