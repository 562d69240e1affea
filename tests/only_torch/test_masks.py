"""Masks in torch: their forms, errors, dtypes, and that a masked class is never drawn."""

from __future__ import annotations

import contextlib
import math

import cases
import numpy as np
import pytest
import torch
from only_torch import rows
from only_torch.masking import (
    MASK,
    OPTIONS,
    all_dtypes,
    all_options,
    assert_obeyed,
    assert_same,
    both_modes,
    facts,
    gradient,
    masks,
)
from torch import Tensor
from torch import distributions as td
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributions import kl_divergence
from torch.func import vmap

import catnat
import catnat.torch as ct

pytestmark = [pytest.mark.filterwarnings("ignore::catnat.EdgeWarning"), pytest.mark.usefixtures("validation")]


# ---- forms of masks ----


@both_modes
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("num_classes", [5, 128, 1000, 40_000])
def test_indices_padded_with_minus_one(num_classes, dtype, mode):
    """The number of classes need not fit into the dtype of the indices."""
    indices = torch.tensor([[0, 4, -1, -1], [3, 3, 2, -1], [-1, -1, -1, 1], [0, 1, 2, 3]], dtype=dtype)
    valid = torch.zeros(4, num_classes, dtype=torch.bool)
    for row, listed in zip(valid, indices.tolist(), strict=True):
        row[[k for k in listed if k >= 0]] = True
    scores = rows.around(catnat.balanced(num_classes), 4)
    dist = ct.Catnat(scores, valid_classes=indices, mask_mode=mode)
    rows.assert_equal(dist.mask, valid)
    assert_same(dist, ct.Catnat(scores, mask=valid, mask_mode=mode))


@pytest.mark.parametrize("num_classes", [5, 200, 300])
def test_unsigned_indices(num_classes):
    scores = torch.zeros(num_classes - 1)
    dist = ct.Catnat(scores, valid_classes=torch.tensor([1, 4], dtype=torch.uint8))
    assert dist.probs.nonzero().flatten().tolist() == [1, 4]


@both_modes
@pytest.mark.parametrize("tree", [catnat.balanced(5), catnat.huffman(cases.zipf(80))], ids=repr)
@pytest.mark.parametrize(
    ("score_batch", "mask_batch", "batch"),
    [((2, 3), (), (2, 3)), ((), (4,), (4,)), ((3,), (2, 1), (2, 3)), ((2, 1), (3,), (2, 3)), ((1,), (5,), (5,))],
)
def test_masks_and_scores_are_broadcast(tree, mode, score_batch, mask_batch, batch):
    scores = rows.inside(tree, "sigmoid", *score_batch).requires_grad_()
    mask = masks(tree, max(1, math.prod(mask_batch))).view(*mask_batch, -1)
    dist = ct.Catnat(scores, tree, "sigmoid", mask=mask, mask_mode=mode)
    assert dist.batch_shape == batch
    assert dist.probs.shape == dist.logits.shape == dist.mask.shape == dist.param_shape == (*batch, tree.num_classes)
    assert dist.scores.shape == (*batch, tree.num_nodes)
    assert dist.entropy().shape == dist.mode.shape == dist.sample().shape == batch
    assert dist.sample((7,)).shape == dist.log_prob(dist.sample((7,))).shape == (7, *batch)
    full = ct.Catnat(scores.expand(*batch, -1), tree, "sigmoid", mask=mask.expand(*batch, -1), mask_mode=mode)
    assert_same(dist, full)
    classes = full.sample()
    rows.assert_close(dist.log_prob(classes), full.log_prob(classes))
    rows.assert_close(gradient(dist.probs, scores), gradient(full.probs, scores))
    if mode == "prune":
        rows.assert_close(dist.fisher_diagonal(), full.fisher_diagonal())
        rows.assert_close(ct.geometry.fisher_diagonal(scores, tree, "sigmoid", mask=mask), full.fisher_diagonal())
    for one in range(math.prod(batch)):
        at = np.unravel_index(one, batch)
        row = ct.Catnat(
            scores.expand(*batch, -1)[at], tree, "sigmoid", mask=mask.expand(*batch, -1)[at], mask_mode=mode
        )
        rows.assert_close(dist.probs[at], row.probs)
        rows.assert_close(dist.logits[at], row.logits)


def test_batches_that_do_not_fit():
    with pytest.raises(ValueError, match="broadcast"):
        ct.Catnat(torch.zeros(2, 4), mask=MASK.expand(3, 5))


@all_options
@pytest.mark.parametrize("tree", [catnat.balanced(8), catnat.chain(75), catnat.huffman(cases.zipf(80))], ids=repr)
def test_one_valid_class(tree, options):
    scores = rows.around(tree, tree.num_classes).requires_grad_()
    dist = ct.Catnat(scores, tree, mask=torch.eye(tree.num_classes, dtype=torch.bool), **options)
    certain = torch.eye(tree.num_classes, dtype=torch.float64)
    rows.assert_equal(dist.probs, certain)
    rows.assert_close(dist.entropy(), torch.zeros(tree.num_classes, dtype=torch.float64), atol=1e-15)
    rows.assert_equal(dist.mode, torch.arange(tree.num_classes))
    rows.assert_equal(dist.sample((3,)), torch.arange(tree.num_classes).expand(3, -1))
    rows.assert_close(dist.log_prob(dist.mode), torch.zeros(tree.num_classes, dtype=torch.float64), atol=1e-15)
    for value in (dist.probs, dist.logits, dist.entropy(), dist.log_prob(dist.mode)):
        rows.assert_close(gradient(value, scores), torch.zeros_like(scores), atol=1e-14)


@all_options
def test_a_variable_of_one_class(options):
    scores = torch.zeros(3, 0, dtype=torch.float64)
    ways = ({"mask": torch.ones(3, 1, dtype=torch.bool)}, {"valid_classes": torch.zeros(3, 1, dtype=torch.long)}, {})
    for mask in ways:
        dist = ct.Catnat(scores, **mask, **options)
        rows.assert_equal(dist.probs, torch.ones(3, 1, dtype=torch.float64))
        rows.assert_close(dist.entropy(), torch.zeros(3, dtype=torch.float64), atol=1e-15)
        rows.assert_equal(dist.sample((2,)), torch.zeros(2, 3, dtype=torch.long))
        rows.assert_close(dist.log_prob(dist.mode), torch.zeros(3, dtype=torch.float64), atol=1e-15)
        rows.assert_equal(kl_divergence(dist, dist), torch.zeros(3, dtype=torch.float64))
        if "unimix" not in options and (not mask or options.get("mask_mode") == "prune"):
            assert dist.fisher_diagonal().shape == (3, 0)


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


def test_a_row_without_valid_class_raises():
    scores = torch.randn(3, 2)
    for build in (
        lambda: ct.Catnat(scores, mask=NOTHING),
        lambda: ct.Catnat(scores, mask=NOTHING, mask_mode="renormalize", validate_args=True),
        lambda: ct.Catnat(scores[0], valid_classes=torch.tensor([-1, -1])),
        lambda: ct.Catnat(scores[0], valid_classes=torch.zeros(0, dtype=torch.long)),
        lambda: ct.OneHotCatnat(scores, mask=NOTHING),
        lambda: ct.RelaxedOneHotCatnat(0.5, scores, mask=NOTHING),
        lambda: ct.geometry.fisher_diagonal(scores, mask=NOTHING),
    ):
        with pytest.raises(ValueError, match=r"no valid class in 1 of \d rows.*validate_mask"):
            build()


@both_modes
def test_where_nothing_can_be_checked_a_row_without_valid_class_is_unmasked(mode):
    scores = torch.randn(3, 2, dtype=torch.float64)
    wanted = torch.stack(
        [ct.Catnat(scores[0], mask=NOTHING[0], mask_mode=mode).probs, ct.catnat(scores[1]), torch.eye(3).double()[1]]
    )

    def probs(scores, mask):
        return ct.Catnat(scores, mask=mask, mask_mode=mode).probs

    def unchecked(scores, mask):
        return ct.Catnat(scores, mask=mask, mask_mode=mode, validate_args=False).probs

    rows.assert_close(unchecked(scores, NOTHING), wanted)
    rows.assert_close(vmap(probs)(scores, NOTHING), wanted)
    if mode == "prune":  # the masks are read in one way for both
        rows.assert_close(torch.compile(probs, backend="aot_eager", fullgraph=True)(scores, NOTHING), wanted)
    dist = ct.Catnat(scores, mask=NOTHING, mask_mode=mode, validate_args=False)
    rows.assert_equal(dist.mask, NOTHING | torch.tensor([[False], [True], [False]]))
    rows.chi_square(dist.sample((3000,), generator=rows.seeded(0))[:, 1], wanted[1])


def test_masks_are_checked_whatever_the_default_of_torch():
    """torch.compile turns that off for the whole process: a row without a valid class would pass unnoticed."""
    td.Distribution.set_default_validate_args(False)
    for build in (ct.Catnat, ct.OneHotCatnat, lambda *args, **options: ct.RelaxedOneHotCatnat(0.5, *args, **options)):
        with pytest.raises(ValueError, match="no valid class"):
            build(torch.zeros(3, 2), mask=NOTHING)
        assert build(torch.zeros(3, 2), mask=NOTHING, validate_args=False).batch_shape == (3,)


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
    rows.assert_equal(ct.validate_mask(both, catnat.Forest([3, 3])), torch.tensor([True, False, True]))
    rows.assert_equal(ct.validate_mask(both, catnat.Forest([2, 4])), torch.tensor([True, False, True]))
    rows.assert_equal(ct.validate_mask(both, catnat.Forest([1, 1, 4])), torch.tensor([False, False, False]))


# ---- errors ----

SCORES = torch.zeros(2, 4)


@pytest.mark.parametrize(
    ("error", "text", "options"),
    [
        (TypeError, r"torch.as_tensor\(mask\)", {"mask": [True] * 5}),
        (TypeError, r"torch.float32.*mask.bool\(\)", {"mask": torch.ones(5)}),
        (TypeError, r"shape \(\)", {"mask": torch.tensor(True)}),
        (ValueError, "4 entries.*one per class is needed: 5.*not over the K - 1 nodes", {"mask": torch.ones(4).bool()}),
        (TypeError, r"torch.int8.*mask.bool\(\).*`valid_classes`", {"mask": torch.ones(5, dtype=torch.int8)}),
        (TypeError, r"torch.int64.*mask.bool\(\).*`valid_classes`", {"mask": torch.tensor([0, 3])}),
        (ValueError, r"holds 5, but the classes are 0 .. 4", {"valid_classes": torch.tensor([0, 5])}),
        (ValueError, r"holds -2, but the classes are 0 .. 4", {"valid_classes": torch.tensor([0, -2])}),
        (TypeError, r"torch.bool.*integer.*passed as `mask`", {"valid_classes": MASK}),
        (TypeError, r"torch.as_tensor\(valid_classes\)", {"valid_classes": [0, 1]}),
        (ValueError, "Both `mask` and `valid_classes`", {"mask": MASK, "valid_classes": torch.tensor([0, 1])}),
        (ValueError, "mask_mode", {"mask": MASK, "mask_mode": "drop"}),
        (ValueError, "unimix.*1.0", {"unimix": 1.0}),
        (ValueError, "unimix.*-0.1", {"unimix": -0.1}),
        (ValueError, "unimix.*nan", {"unimix": math.nan}),
        (ValueError, "temperature.*0.0.*positive", {"temperature": 0.0}),
        (ValueError, "temperature.*-1", {"temperature": -1}),
        (ValueError, "temperature.*nan", {"temperature": math.nan}),
        (ValueError, "temperature.*inf", {"temperature": math.inf}),
        (ValueError, "temperature.*0.0.*positive", {"temperature": torch.tensor([1.0, 0.0])}),
        (ValueError, "temperature.*nan", {"temperature": torch.tensor([1.0, math.nan])}),
        (ValueError, "temperature.*inf", {"temperature": torch.tensor([1.0, math.inf])}),
        (ValueError, "temperature.*shape", {"temperature": torch.ones(3)}),
        (ValueError, "temperature.*shape", {"temperature": torch.ones(3, 2)}),
    ],
)
def test_errors(error, text, options):
    with pytest.raises(error, match=text):
        ct.Catnat(SCORES, **options)
    with pytest.raises(error, match=text):
        ct.OneHotCatnat(SCORES, **options)


@pytest.mark.parametrize("options", [o for n, o in OPTIONS.items() if n != "prune"], ids=[*OPTIONS][1:])
def test_a_full_fisher_matrix_is_refused(options):
    for dist in (ct.Catnat(SCORES, mask=MASK, **options), ct.OneHotCatnat(SCORES, mask=MASK, **options)):
        with pytest.raises(ValueError, match=r"not diagonal.*prune"):
            dist.fisher_diagonal()


def test_what_is_drawn_is_still_validated():
    dist = ct.Catnat(SCORES, mask=MASK)
    with pytest.raises(ValueError, match="support"):
        dist.log_prob(torch.tensor(5))
    assert (dist.log_prob(torch.tensor(1)) == torch.finfo(torch.float32).min).all()  # masked, but a class


# ---- masked classes, in every dtype ----


@all_dtypes
@all_options
def test_masked_classes(dtype, options):
    for name in ("balanced-8", "balanced-100", "chain-7", "chain-100", "huffman-100"):
        tree = rows.TREES[name]
        scores = rows.around(tree, 6, dtype=dtype).requires_grad_()
        mask = masks(tree, 6)
        dist = ct.Catnat(scores, tree, mask=mask, **options)
        least = torch.finfo(dtype).min
        assert dist.probs.dtype == dist.logits.dtype == dist.entropy().dtype == dtype
        assert (dist.probs[~mask] == 0).all()
        assert (dist.logits[~mask] == least).all()
        assert (dist.logits[mask] > least).all()
        assert dist.entropy().isfinite().all()
        every = torch.arange(tree.num_classes).unsqueeze(-1).expand(-1, 6)
        fresh = ct.Catnat(scores, tree, mask=mask, **options)  # has no logits to look up
        found = fresh.log_prob(every).T
        assert (found[~mask] == least).all()
        for value in (dist.probs[~mask], dist.logits[~mask], found[~mask]):
            assert (torch.autograd.grad(value.sum(), scores, retain_graph=True)[0] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_masked_classes_under_autocast(dtype):
    scores = rows.around(catnat.balanced(5), 3, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        dist = ct.Catnat(scores, mask=MASK)
        assert dist.probs.dtype == dist.logits.dtype == torch.float32
        assert (dist.logits[:, ~MASK] == torch.finfo(torch.float32).min).all()
        assert (dist.probs[:, ~MASK] == 0).all()
    exact = ct.Catnat(scores.double(), mask=MASK)
    torch.testing.assert_close(dist.probs.double(), exact.probs, rtol=1e-5, atol=1e-6)


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


def test_inference_mode():
    with torch.inference_mode():
        dist = ct.Catnat(torch.randn(3, 4), mask=MASK)
        assert dist.probs.sum(-1).allclose(torch.ones(3))
        assert dist.log_prob(dist.sample()).isfinite().all()
    scores = torch.randn(3, 4, requires_grad=True)  # and nothing of it is left behind
    assert gradient(ct.Catnat(scores, mask=MASK).probs, scores).isfinite().all()


@all_options
def test_no_grad_leaves_nothing_behind(options):
    scores = rows.inside(catnat.balanced(5), "natural", 3).requires_grad_()
    dist, fresh = (ct.Catnat(scores, mask=MASK, **options) for _ in range(2))
    with torch.no_grad():
        assert not dist.sample().requires_grad
        assert dist.logits.shape == (3, 5)
    for name in ("logits", "entropy"):
        values = [getattr(each, name) for each in (dist, fresh)]
        values = [value() if callable(value) else value for value in values]
        rows.assert_equal(*(gradient(value, scores) for value in values))


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


@pytest.mark.parametrize("mode", ["meta", "fake"])
def test_shapes_without_numbers(mode):
    device = "meta" if mode == "meta" else "cpu"
    with FakeTensorMode() if mode == "fake" else contextlib.nullcontext():
        for options in (OPTIONS["prune"], OPTIONS["renormalize-T3-unimix"]):
            scores = torch.zeros(300, 99, device=device)
            mask = torch.ones(300, 100, dtype=torch.bool, device=device)
            dist = ct.Catnat(scores, mask=mask, validate_args=False, **options)
            assert dist.probs.shape == dist.logits.shape == (300, 100)
            assert dist.entropy().shape == dist.mode.shape == dist.log_prob(dist.sample()).shape == (300,)
        indices = torch.zeros(3, 2, dtype=torch.int32, device=device)
        assert ct.Catnat(torch.zeros(3, 4, device=device), valid_classes=indices).probs.shape == (3, 5)


# ---- never drawn ----

DRAWN_TREES = {
    "balanced-8": catnat.balanced(8),
    "balanced-100": catnat.balanced(100),
    "huffman-90": catnat.huffman(cases.zipf(90)),
    "chain-75": catnat.chain(75),
}
DRAWN_OPTIONS = {name: OPTIONS[name] for name in ("prune", "renormalize", "prune-unimix", "renormalize-T3-unimix")}


def draw_many(tree: catnat.Tree, options: dict[str, object], total: int) -> tuple[Tensor, Tensor]:
    """Draws for fifty masks, as many for each, and the masks that they must obey."""
    mask = masks(tree, 50)
    dist = ct.Catnat(rows.around(tree, 50, dtype=torch.float32), tree, mask=mask, **options)
    return dist.sample((total // 50,), generator=rows.seeded(1)), mask


def obedient_draws(of_each_distribution: int) -> int:
    """How many were drawn, of every tree and option, none of a masked class."""
    count = 0
    for tree in DRAWN_TREES.values():
        for options in DRAWN_OPTIONS.values():
            draws, mask = draw_many(tree, options, of_each_distribution)
            assert_obeyed(draws, mask)
            count += draws.numel()
    return count


def test_a_million_draws():
    """Over trees that are computed densely, walked and too deep to walk, in both modes, with temperature and unimix."""
    assert obedient_draws(62_500) >= 1_000_000


def test_the_check_of_draws_can_fail():
    draws, mask = draw_many(DRAWN_TREES["balanced-8"], {}, 1000)
    assert not mask[10].all()
    draws[3, 10] = mask[10].int().argmin()
    with pytest.raises(AssertionError, match="masked class"):
        assert_obeyed(draws, mask)


@pytest.mark.slow
def test_ten_million_draws():
    assert obedient_draws(625_000) >= 10_000_000


@pytest.mark.parametrize("end", ["lowest", "highest"])
@pytest.mark.parametrize("name", DRAWN_TREES)
def test_the_ends_of_the_uniform_numbers(name, end, monkeypatch):
    """A uniform number may be exactly 0, and as near to 1 as the dtype can come: a masked class is not drawn then."""

    def rand(shape, *, dtype, **_):
        return torch.full(shape, 0.0 if end == "lowest" else 1 - torch.finfo(dtype).eps / 2, dtype=dtype)

    tree = DRAWN_TREES[name]
    mask = masks(tree, 50)
    scores = rows.around(tree, 50, dtype=torch.float32)
    monkeypatch.setattr(torch, "rand", rand)
    for options in OPTIONS.values():
        dist = ct.Catnat(scores, tree, mask=mask, **options)
        for draws in (dist.sample(), dist.sample((3,)), dist.sample((400,))):
            assert_obeyed(draws, mask)
            assert (dist.probs.expand(*draws.shape, -1).gather(-1, draws.unsqueeze(-1)) > 0).all()
    relaxed = ct.RelaxedOneHotCatnat(0.5, scores, tree, mask=mask).rsample()
    assert relaxed.isfinite().all()
    assert (relaxed[~mask] == 0).all()


@all_dtypes
@both_modes
def test_never_drawn_by_others(dtype, mode):
    """By torch from the logits or the probabilities, and by Gumbel noise on the logits."""
    for name in ("balanced-8", "balanced-100", "huffman-90"):
        tree = DRAWN_TREES[name]
        mask = masks(tree, 10)
        dist = ct.Catnat(rows.around(tree, 10, dtype=dtype), tree, mask=mask, mask_mode=mode)
        torch.manual_seed(0)
        assert_obeyed(td.Categorical(logits=dist.logits).sample((2000,)), mask)
        # Half precision cannot write a point of the simplex to the precision that validation needs.
        assert_obeyed(td.Categorical(probs=dist.probs, validate_args=False).sample((2000,)), mask)
        assert_obeyed(torch.multinomial(dist.probs, 2000, replacement=True).T, mask)
        noise = -torch.empty(200, 10, tree.num_classes, dtype=torch.float32).exponential_().log()
        assert_obeyed((dist.logits + noise.to(dtype)).argmax(-1), mask)
        assert_obeyed(torch.nn.functional.gumbel_softmax(dist.logits.expand(200, -1, -1).float()).argmax(-1), mask)


def test_the_generator_decides():
    tree = catnat.balanced(18)
    scores, mask = rows.around(tree, 20), masks(tree, 20)
    for options in OPTIONS.values():
        dist = ct.Catnat(scores, tree, mask=mask, **options)
        first, again, other = (dist.sample((5,), generator=rows.seeded(s)) for s in (1, 1, 2))
        rows.assert_equal(first, again)
        assert (first != other).any()
        torch.manual_seed(3)
        first = dist.sample((5,))
        torch.manual_seed(3)
        rows.assert_equal(first, dist.sample((5,)))
