"""Masked distributions under vmap and the compiler, and with hostile scores."""

from __future__ import annotations

import math

import pytest
import torch
from only_torch import rows
from only_torch.masking import (
    MASK,
    OPTIONS,
    all_dtypes,
    all_options,
    assert_obeyed,
    both_modes,
    facts,
    gradient,
    masks,
    weighted,
)
from torch import Tensor
from torch.distributions import kl_divergence
from torch.func import vmap

import catnat
import catnat.torch as ct

pytestmark = [pytest.mark.filterwarnings("ignore::catnat.EdgeWarning"), pytest.mark.usefixtures("validation")]


# ---- vmap ----


@all_options
@pytest.mark.parametrize("name", ["balanced-8", "balanced-100", "chain-100", "huffman-20"])
def test_vmap_is_the_batch(name, options):
    tree = rows.TREES[name]
    scores, mask = rows.inside(tree, "natural", 5), masks(tree, 5)
    dist = ct.Catnat(scores, tree, mask=mask, **options)
    classes = mask.int().argmax(-1)

    def every(s, m, c):
        one = ct.Catnat(s, tree, mask=m, validate_args=False, **options)
        return one.probs, one.logits, one.entropy(), one.mode, one.log_prob(c)

    for got, wanted in zip(
        vmap(every)(scores, mask, classes), (*facts(dist).values(), dist.log_prob(classes)), strict=True
    ):
        rows.assert_close(got, wanted)
    got = vmap(lambda s: ct.Catnat(s, tree, mask=mask[3], **options).probs)(scores)
    rows.assert_close(got, ct.Catnat(scores, tree, mask=mask[3], **options).probs)
    draws = vmap(lambda s, m: ct.Catnat(s, tree, mask=m, **options).sample((50,)), randomness="different")(scores, mask)
    assert_obeyed(draws.T, mask)


def test_vmap_over_indices():
    scores, indices = torch.randn(3, 4), torch.tensor([[0, 1, -1], [2, 3, 4], [-1, -1, 4]])
    got = vmap(lambda s, i: ct.Catnat(s, valid_classes=i).probs)(scores, indices)
    rows.assert_close(got, ct.Catnat(scores, valid_classes=indices).probs, 1e-6, 1e-7)


def test_per_sample_gradients_of_a_masked_loss():
    scores, mask = torch.randn(5, 4, dtype=torch.float64), masks(catnat.balanced(5), 5)
    classes = mask.int().argmax(-1)

    def loss(s, m, c):
        return ct.Catnat(s, activation="sigmoid", mask=m, validate_args=False).log_prob(c)

    got = vmap(torch.func.grad(loss))(scores, mask, classes)
    leaf = scores.clone().requires_grad_()
    wanted = torch.autograd.grad(loss(leaf, mask, classes).sum(), leaf)[0]
    rows.assert_close(got, wanted)


# ---- compile ----

COMPILED = {
    "prune": ("huffman-20", "reflect-isotropic", "prune"),
    "all": ("balanced-8", "natural", "renormalize-T3-unimix"),
    "unimix": ("balanced-100", "sigmoid", "prune-unimix"),  # walked
}


@pytest.mark.one_row
@pytest.mark.parametrize("case", COMPILED)
def test_compiled_distributions_equal_eager_ones(case, fresh_compiler):
    name, activation, options = COMPILED[case]
    dtype = torch.float16 if case == "all" else torch.float32
    check_compiled(rows.TREES[name], rows.ACTIVATIONS[activation], OPTIONS[options], "aot_eager", dtype)


@pytest.mark.slow
def test_generated_code(fresh_compiler):
    name, activation, options = COMPILED["all"]
    check_compiled(rows.TREES[name], rows.ACTIVATIONS[activation], OPTIONS[options], "inductor", torch.float32)


def check_compiled(tree, activation, options, backend, dtype):
    """Values and gradients of one graph; masked classes are exactly impossible in it too."""

    def every(scores, mask, classes):
        dist = ct.Catnat(scores, tree, activation, mask=mask, validate_args=False, **options)
        return dist.log_prob(classes), dist.probs, dist.logits, dist.entropy(), dist.sample()

    near = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.01}
    scores = rows.inside(tree, activation, 6, dtype=dtype).requires_grad_()
    mask = masks(tree, 8)[2:]
    classes = mask.int().argmax(-1)
    got = torch.compile(every, backend=backend, fullgraph=True)(scores, mask, classes)
    wanted = every(scores, mask, classes)
    for fast_value, value in zip(got[:4], wanted[:4], strict=True):
        assert fast_value.dtype == value.dtype == dtype
        torch.testing.assert_close(fast_value, value, **near)
    assert (got[1][~mask] == 0).all()
    assert (got[2][~mask] == torch.finfo(dtype).min).all()
    assert_obeyed(got[4], mask)
    for name, values in zip(("log_prob", "probs", "logits", "entropy"), zip(got, wanted, strict=True), strict=False):
        # Logits only of valid classes: the sum of the others would overflow.
        values = [value[mask] if name == "logits" else value for value in values]
        found = [gradient(value, scores) for value in values]
        torch.testing.assert_close(*found, rtol=near["rtol"] * 10, atol=near["atol"] * 10)
    for value in (got[1], got[2]):
        assert (gradient(value[~mask], scores) == 0).all()


def test_compiled_divergences_and_indices(fresh_compiler):
    indices = torch.tensor([[0, 1, -1], [2, 3, -1], [-1, -1, 4]])

    def everything(p, q, temperature):
        dist = ct.Catnat(p, valid_classes=indices, temperature=temperature, validate_args=False)
        other = ct.Catnat(q, mask=MASK)
        fisher = ct.geometry.fisher_diagonal(p, valid_classes=indices)
        return kl_divergence(dist, other), dist.log_prob(torch.tensor([0, 2, 4])), fisher

    p, q = torch.randn(2, 3, 4, dtype=torch.float64, generator=rows.seeded(0))
    temperature = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    # Eager first: torch looks a divergence up once, in a way that the compiler cannot follow.
    eager = everything(p, q, temperature)
    fast = torch.compile(everything, backend="aot_eager", fullgraph=True)(p, q, temperature)
    for got, wanted in zip(fast, eager, strict=True):
        rows.assert_close(got, wanted)
    assert fast[0].isinf().tolist() == [True, False, True]


# ---- hostile scores ----


def hostile(tree: catnat.Tree, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Rows of enormous and of tiny scores, and rows that mix them with usual ones."""
    largest = torch.finfo(dtype).max
    sizes = torch.tensor([0.0, 1e-40, 1e-8, 1.0, math.pi, 1e4, min(1e30, largest), largest], dtype=torch.float64)
    values = torch.cat([sizes, -sizes])
    flat = values.unsqueeze(-1).expand(-1, tree.num_nodes)
    mixed = values[torch.randint(len(values), (24, tree.num_nodes), generator=rows.seeded(seed))]
    usual = torch.randn(24, tree.num_nodes, generator=rows.seeded(seed + 1), dtype=torch.float64)
    keep = torch.rand(24, tree.num_nodes, generator=rows.seeded(seed + 2)) < 0.5
    return torch.cat([flat, mixed, torch.where(keep, mixed, usual)]).to(dtype)


HOSTILE_OPTIONS = {
    **{name: OPTIONS[name] for name in ("prune", "renormalize", "prune-unimix", "prune-T0.4-unimix", "prune-T1.7")},
    "renormalize-freezing": {"mask_mode": "renormalize", "temperature": 1e-10},
}


def assert_finite(value: Tensor, scores: Tensor, what: str) -> None:
    assert value.isfinite().all(), what
    if not value.requires_grad:
        return
    # Losses are often scaled: what stands for minus infinity must not overflow when it comes back.
    (found,) = torch.autograd.grad(weighted(value, 50.0), scores, retain_graph=True)
    assert found.isfinite().all(), f"gradient of 50 times {what}"
    (found,) = torch.autograd.grad(weighted(value), scores, create_graph=True)
    assert found.isfinite().all(), f"gradient of {what}"
    if found.requires_grad:
        (again,) = torch.autograd.grad(found.sum(), scores, retain_graph=True, allow_unused=True)
        assert again is None or again.isfinite().all(), f"second-order gradient of {what}"


HOSTILE_TREES = (
    ("balanced-2", "natural"),
    ("balanced-8", "sigmoid"),
    ("balanced-100", "natural"),
    ("chain-100", "reflect-isotropic"),
    ("huffman-20", "sigmoid"),
    ("uneven-8", "natural"),
    ("uneven-8", "reflect-isotropic"),
)


@all_dtypes
@pytest.mark.parametrize("options", HOSTILE_OPTIONS.values(), ids=HOSTILE_OPTIONS.keys())
def test_hostile_scores(dtype, options):
    for name, activation in HOSTILE_TREES:
        where, tree, kind = f"{name}, {activation}", rows.TREES[name], rows.ACTIVATIONS[activation]
        scores = hostile(tree, dtype).requires_grad_()
        mask = masks(tree, len(scores))
        dist = ct.Catnat(scores, tree, kind, mask=mask, **options)
        classes = torch.arange(5).view(-1, 1).expand(-1, len(scores)) % tree.num_classes
        other = ct.Catnat(scores.flip(0), tree, kind, mask=mask, **options)
        assert_finite(dist.probs, scores, f"probs, {where}")
        assert_finite(dist.log_prob(classes), scores, f"log_prob, {where}")
        assert_finite(dist.logits, scores, f"logits, {where}")
        assert_finite(dist.entropy(), scores, f"entropy, {where}")
        assert_finite(kl_divergence(dist, other), scores, f"kl, {where}")
        if options == OPTIONS["prune"]:
            assert_finite(dist.fisher_diagonal(), scores, f"fisher, {where}")
        assert_obeyed(dist.sample((3,)), mask)
        assert mask.gather(-1, dist.mode.unsqueeze(-1)).all()
        total = dist.probs.detach().double().sum(-1)
        allowed = tree.num_classes * torch.finfo(dtype).eps
        torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=allowed)


@all_dtypes
@both_modes
def test_hostile_scores_of_one_hot_and_relaxed_distributions(dtype, mode):
    for name in ("balanced-8", "huffman-20"):
        tree = rows.TREES[name]
        for activation in ("natural", "sigmoid", "reflect-isotropic"):
            where = f"{name}, {activation}"
            kind = rows.ACTIVATIONS[activation]
            scores = hostile(tree, dtype).requires_grad_()
            mask = masks(tree, len(scores))
            hot = ct.OneHotCatnatStraightThrough(scores, tree, kind, mask=mask, mask_mode=mode)
            assert_finite(hot.rsample(), scores, f"straight-through, {where}")
            assert_finite(hot.mean, scores, f"mean, {where}")
            assert_finite(hot.variance, scores, f"variance, {where}")
            assert_finite(hot.log_prob(hot.sample()), scores, f"one-hot log_prob, {where}")
            for temperature in (0.01, 1.0, 100.0):
                dist = ct.RelaxedOneHotCatnat(
                    temperature, scores, tree, kind, mask=mask, mask_mode=mode, validate_args=False
                )
                draw = dist.rsample(generator=rows.seeded(5))
                assert (draw[~mask] == 0).all()
                assert_finite(draw, scores, f"relaxed, {where}")
                assert_finite(dist.log_prob(draw.detach()), scores, f"relaxed log_prob, {where}")
