"""Masks, temperatures and mixtures in torch: forms, dtypes, divergences, compile, vmap, torch's own distributions."""

from __future__ import annotations

import contextlib
import math

import cases
import numpy as np
import oracle
import pytest
import torch
from only_torch import rows
from torch import Tensor
from torch import distributions as td
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributions import kl_divergence
from torch.func import vmap

import catnat
import catnat.torch as ct

pytestmark = [pytest.mark.filterwarnings("ignore::catnat.EdgeWarning"), pytest.mark.usefixtures("validation")]

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
MODES = ["prune", "renormalize"]
MASK = torch.tensor([True, False, True, True, False])
OPTIONS = rows.OPTIONS

both_modes = pytest.mark.parametrize("mode", MODES)
all_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
all_options = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())


def masks(tree: catnat.Tree, count: int, seed: int = 0) -> Tensor:
    """Masks of all sizes (count, K)."""
    return torch.from_numpy(cases.masks(tree.num_classes, count, seed))


def facts(law: ct.Catnat) -> dict[str, Tensor]:
    return {"probs": law.probs, "logits": law.logits, "entropy": law.entropy(), "mode": law.mode}


def assert_same(got: ct.Catnat, wanted: ct.Catnat, rtol: float = 1e-12, atol: float = 1e-13) -> None:
    assert got.batch_shape == wanted.batch_shape
    for name, fact in facts(wanted).items():
        torch.testing.assert_close(facts(got)[name], fact, rtol=rtol, atol=atol)


def weighted(value: Tensor, size: float = 1.0) -> Tensor:
    """A loss that tells the entries apart."""
    return (value * torch.linspace(-size, 2 * size, value.numel(), dtype=value.dtype).view(value.shape)).sum()


def gradient(value: Tensor, scores: Tensor) -> Tensor:
    return torch.autograd.grad(weighted(value), scores, retain_graph=True)[0]


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
    law = ct.Catnat(scores, mask=indices, mask_mode=mode)
    rows.assert_equal(law.mask, valid)
    assert_same(law, ct.Catnat(scores, mask=valid, mask_mode=mode))


@pytest.mark.parametrize("num_classes", [5, 200, 300])
def test_unsigned_indices(num_classes):
    scores = torch.zeros(num_classes - 1)
    law = ct.Catnat(scores, mask=torch.tensor([1, 4], dtype=torch.uint8))
    assert law.probs.nonzero().flatten().tolist() == [1, 4]


@both_modes
@pytest.mark.parametrize("tree", [catnat.balanced(5), catnat.huffman(cases.zipf(80))], ids=repr)
@pytest.mark.parametrize(
    ("score_batch", "mask_batch", "batch"),
    [((2, 3), (), (2, 3)), ((), (4,), (4,)), ((3,), (2, 1), (2, 3)), ((2, 1), (3,), (2, 3)), ((1,), (5,), (5,))],
)
def test_masks_and_scores_are_broadcast(tree, mode, score_batch, mask_batch, batch):
    scores = rows.inside(tree, "sigmoid", *score_batch).requires_grad_()
    mask = masks(tree, max(1, math.prod(mask_batch))).view(*mask_batch, -1)
    law = ct.Catnat(scores, tree, "sigmoid", mask=mask, mask_mode=mode)
    assert law.batch_shape == batch
    assert law.probs.shape == law.logits.shape == law.mask.shape == law.param_shape == (*batch, tree.num_classes)
    assert law.scores.shape == (*batch, tree.num_nodes)
    assert law.entropy().shape == law.mode.shape == law.sample().shape == batch
    assert law.sample((7,)).shape == law.log_prob(law.sample((7,))).shape == (7, *batch)
    full = ct.Catnat(scores.expand(*batch, -1), tree, "sigmoid", mask=mask.expand(*batch, -1), mask_mode=mode)
    assert_same(law, full)
    classes = full.sample()
    rows.assert_close(law.log_prob(classes), full.log_prob(classes))
    rows.assert_close(gradient(law.probs, scores), gradient(full.probs, scores))
    if mode == "prune":
        rows.assert_close(law.fisher_diagonal(), full.fisher_diagonal())
        rows.assert_close(ct.fisher_diagonal(scores, tree, "sigmoid", mask=mask), full.fisher_diagonal())
    for one in range(math.prod(batch)):
        at = np.unravel_index(one, batch)
        row = ct.Catnat(
            scores.expand(*batch, -1)[at], tree, "sigmoid", mask=mask.expand(*batch, -1)[at], mask_mode=mode
        )
        rows.assert_close(law.probs[at], row.probs)
        rows.assert_close(law.logits[at], row.logits)


def test_batches_that_do_not_fit():
    with pytest.raises(RuntimeError, match="broadcast"):
        ct.Catnat(torch.zeros(2, 4), mask=MASK.expand(3, 5))


@all_options
@pytest.mark.parametrize("tree", [catnat.balanced(8), catnat.chain(75), catnat.huffman(cases.zipf(80))], ids=repr)
def test_one_valid_class(tree, options):
    scores = rows.around(tree, tree.num_classes).requires_grad_()
    law = ct.Catnat(scores, tree, mask=torch.eye(tree.num_classes, dtype=torch.bool), **options)
    certain = torch.eye(tree.num_classes, dtype=torch.float64)
    rows.assert_equal(law.probs, certain)
    rows.assert_close(law.entropy(), torch.zeros(tree.num_classes, dtype=torch.float64), atol=1e-15)
    rows.assert_equal(law.mode, torch.arange(tree.num_classes))
    rows.assert_equal(law.sample((3,)), torch.arange(tree.num_classes).expand(3, -1))
    rows.assert_close(law.log_prob(law.mode), torch.zeros(tree.num_classes, dtype=torch.float64), atol=1e-15)
    for value in (law.probs, law.logits, law.entropy(), law.log_prob(law.mode)):
        rows.assert_close(gradient(value, scores), torch.zeros_like(scores), atol=1e-14)


@all_options
def test_a_variable_of_one_class(options):
    scores = torch.zeros(3, 0, dtype=torch.float64)
    for mask in (torch.ones(3, 1, dtype=torch.bool), torch.zeros(3, 1, dtype=torch.long), None):
        law = ct.Catnat(scores, mask=mask, **options)
        rows.assert_equal(law.probs, torch.ones(3, 1, dtype=torch.float64))
        rows.assert_close(law.entropy(), torch.zeros(3, dtype=torch.float64), atol=1e-15)
        rows.assert_equal(law.sample((2,)), torch.zeros(2, 3, dtype=torch.long))
        rows.assert_close(law.log_prob(law.mode), torch.zeros(3, dtype=torch.float64), atol=1e-15)
        rows.assert_equal(kl_divergence(law, law), torch.zeros(3, dtype=torch.float64))
        if "unimix" not in options:
            assert law.fisher_diagonal().shape == (3, 0)


@all_options
@pytest.mark.parametrize("tree", [catnat.balanced(1), catnat.balanced(5), catnat.balanced(100)], ids=repr)
def test_empty_batches(tree, options):
    for shape in ((0,), (3, 0, 2)):
        scores = torch.zeros(*shape, tree.num_nodes, requires_grad=True)
        mask = torch.ones(*shape, tree.num_classes, dtype=torch.bool)
        for law in (ct.Catnat(scores, tree, mask=mask, **options), ct.Catnat(scores, tree, **options)):
            assert law.probs.shape == law.logits.shape == (*shape, tree.num_classes)
            assert law.entropy().shape == law.mode.shape == shape
            assert law.sample((2,)).shape == law.log_prob(law.sample((2,))).shape == (2, *shape)
            assert kl_divergence(law, law).shape == shape
        hot = ct.OneHotCatnatStraightThrough(scores, tree, mask=mask, **options)
        assert hot.rsample((2,)).shape == (2, *shape, tree.num_classes)


# ---- rows without a valid class ----

NOTHING = torch.tensor([[True, False, True], [False, False, False], [False, True, False]])


def test_a_row_without_valid_class_raises():
    scores = torch.randn(3, 2)
    for build in (
        lambda: ct.Catnat(scores, mask=NOTHING),
        lambda: ct.Catnat(scores, mask=NOTHING, mask_mode="renormalize", validate_args=True),
        lambda: ct.Catnat(scores[0], mask=torch.tensor([-1, -1])),
        lambda: ct.Catnat(scores[0], mask=torch.zeros(0, dtype=torch.long)),
        lambda: ct.OneHotCatnat(scores, mask=NOTHING),
        lambda: ct.RelaxedOneHotCatnat(0.5, scores, mask=NOTHING),
        lambda: ct.fisher_diagonal(scores, mask=NOTHING),
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
    law = ct.Catnat(scores, mask=NOTHING, mask_mode=mode, validate_args=False)
    rows.assert_equal(law.mask, NOTHING | torch.tensor([[False], [True], [False]]))
    rows.chi_square(law.sample((3000,), generator=rows.seeded(0))[:, 1], wanted[1])


def test_masks_are_checked_whatever_the_default_of_torch():
    """torch.compile turns that off for the whole process: a row without a valid class would pass unnoticed."""
    td.Distribution.set_default_validate_args(False)
    for build in (ct.Catnat, ct.OneHotCatnat, lambda *args, **options: ct.RelaxedOneHotCatnat(0.5, *args, **options)):
        with pytest.raises(ValueError, match="no valid class"):
            build(torch.zeros(3, 2), mask=NOTHING)
        assert build(torch.zeros(3, 2), mask=NOTHING, validate_args=False).batch_shape == (3,)


def test_validate_mask():
    wanted = torch.tensor([True, False, True])
    indices = torch.tensor([[0, 2], [-1, -1], [1, -1]])
    for classes in (3, catnat.balanced(3), catnat.chain(3)):
        rows.assert_equal(ct.validate_mask(NOTHING, classes), wanted)
        rows.assert_equal(ct.validate_mask(indices, classes), wanted)
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
        (ValueError, r"the index 5, but the classes are 0 .. 4.*mask.bool\(\)", {"mask": torch.tensor([0, 5])}),
        (ValueError, r"the index -2, but the classes are 0 .. 4", {"mask": torch.tensor([0, -2])}),
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
    for law in (ct.Catnat(SCORES, mask=MASK, **options), ct.OneHotCatnat(SCORES, mask=MASK, **options)):
        with pytest.raises(ValueError, match=r"not diagonal.*prune"):
            law.fisher_diagonal()


def test_what_is_drawn_is_still_validated():
    law = ct.Catnat(SCORES, mask=MASK)
    with pytest.raises(ValueError, match="support"):
        law.log_prob(torch.tensor(5))
    assert (law.log_prob(torch.tensor(1)) == torch.finfo(torch.float32).min).all()  # masked, but a class


# ---- masked classes, in every dtype ----


@all_dtypes
@all_options
def test_masked_classes(dtype, options):
    for name in ("balanced-8", "balanced-100", "chain-7", "chain-100", "huffman-100"):
        tree = rows.TREES[name]
        scores = rows.around(tree, 6, dtype=dtype).requires_grad_()
        mask = masks(tree, 6)
        law = ct.Catnat(scores, tree, mask=mask, **options)
        least = torch.finfo(dtype).min
        assert law.probs.dtype == law.logits.dtype == law.entropy().dtype == dtype
        assert (law.probs[~mask] == 0).all()
        assert (law.logits[~mask] == least).all()
        assert (law.logits[mask] > least).all()
        assert law.entropy().isfinite().all()
        every = torch.arange(tree.num_classes).unsqueeze(-1).expand(-1, 6)
        fresh = ct.Catnat(scores, tree, mask=mask, **options)  # has no logits to look up
        found = fresh.log_prob(every).T
        assert (found[~mask] == least).all()
        for value in (law.probs[~mask], law.logits[~mask], found[~mask]):
            assert (torch.autograd.grad(value.sum(), scores, retain_graph=True)[0] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_masked_classes_under_autocast(dtype):
    scores = rows.around(catnat.balanced(5), 3, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        law = ct.Catnat(scores, mask=MASK)
        assert law.probs.dtype == law.logits.dtype == torch.float32
        assert (law.logits[:, ~MASK] == torch.finfo(torch.float32).min).all()
        assert (law.probs[:, ~MASK] == 0).all()
    exact = ct.Catnat(scores.double(), mask=MASK)
    torch.testing.assert_close(law.probs.double(), exact.probs, rtol=1e-5, atol=1e-6)


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
        law = ct.Catnat(torch.randn(3, 4), mask=MASK)
        assert law.probs.sum(-1).allclose(torch.ones(3))
        assert law.log_prob(law.sample()).isfinite().all()
    scores = torch.randn(3, 4, requires_grad=True)  # and nothing of it is left behind
    assert gradient(ct.Catnat(scores, mask=MASK).probs, scores).isfinite().all()


@all_options
def test_no_grad_leaves_nothing_behind(options):
    scores = rows.inside(catnat.balanced(5), "natural", 3).requires_grad_()
    law, fresh = (ct.Catnat(scores, mask=MASK, **options) for _ in range(2))
    with torch.no_grad():
        assert not law.sample().requires_grad
        assert law.logits.shape == (3, 5)
    for name in ("logits", "entropy"):
        values = [getattr(each, name) for each in (law, fresh)]
        values = [value() if callable(value) else value for value in values]
        rows.assert_equal(*(gradient(value, scores) for value in values))


@all_options
@pytest.mark.parametrize("activation", ["natural", "sigmoid"])
def test_first_and_second_derivatives(options, activation):
    """Against finite differences."""
    scores = rows.inside(catnat.balanced(5), activation).requires_grad_()

    def every(s):
        law = ct.Catnat(s, activation=activation, mask=MASK, **options)
        return law.probs, law.entropy(), law.log_prob(torch.tensor([0, 2, 3]))

    assert torch.autograd.gradcheck(every, (scores,), fast_mode=True)
    assert torch.autograd.gradgradcheck(every, (scores,), fast_mode=True)


@pytest.mark.parametrize("mode", ["meta", "fake"])
def test_shapes_without_numbers(mode):
    device = "meta" if mode == "meta" else "cpu"
    with FakeTensorMode() if mode == "fake" else contextlib.nullcontext():
        for options in (OPTIONS["prune"], OPTIONS["renormalize-hot-unimix"]):
            scores = torch.zeros(300, 99, device=device)
            mask = torch.ones(300, 100, dtype=torch.bool, device=device)
            law = ct.Catnat(scores, mask=mask, validate_args=False, **options)
            assert law.probs.shape == law.logits.shape == (300, 100)
            assert law.entropy().shape == law.mode.shape == law.log_prob(law.sample()).shape == (300,)
        indices = torch.zeros(3, 2, dtype=torch.int32, device=device)
        assert ct.Catnat(torch.zeros(3, 4, device=device), mask=indices).probs.shape == (3, 5)


# ---- never drawn ----

DRAWN_TREES = {
    "balanced-8": catnat.balanced(8),
    "balanced-100": catnat.balanced(100),
    "huffman-90": catnat.huffman(cases.zipf(90)),
    "chain-75": catnat.chain(75),
}
DRAWN_OPTIONS = {name: OPTIONS[name] for name in ("prune", "renormalize", "prune-unimix", "renormalize-hot-unimix")}


def draw_many(tree: catnat.Tree, options: dict[str, object], total: int) -> tuple[Tensor, Tensor]:
    """Draws for fifty masks, as many for each, and the masks that they must obey."""
    mask = masks(tree, 50)
    law = ct.Catnat(rows.around(tree, 50, dtype=torch.float32), tree, mask=mask, **options)
    return law.sample((total // 50,), generator=rows.seeded(1)), mask


def assert_obeyed(draws: Tensor, mask: Tensor) -> None:
    assert mask.expand(*draws.shape, -1).gather(-1, draws.unsqueeze(-1)).all(), "a masked class was drawn"


def obedient_draws(of_each_law: int) -> int:
    """How many were drawn, of every tree and option, none of a masked class."""
    count = 0
    for tree in DRAWN_TREES.values():
        for options in DRAWN_OPTIONS.values():
            draws, mask = draw_many(tree, options, of_each_law)
            assert_obeyed(draws, mask)
            count += draws.numel()
    return count


def test_a_million_draws():
    """Over trees that are computed densely, walked and too deep to walk, in both modes, mixed and heated."""
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
        law = ct.Catnat(scores, tree, mask=mask, **options)
        for draws in (law.sample(), law.sample((3,)), law.sample((400,))):
            assert_obeyed(draws, mask)
            assert (law.probs.expand(*draws.shape, -1).gather(-1, draws.unsqueeze(-1)) > 0).all()
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
        law = ct.Catnat(rows.around(tree, 10, dtype=dtype), tree, mask=mask, mask_mode=mode)
        torch.manual_seed(0)
        assert_obeyed(td.Categorical(logits=law.logits).sample((2000,)), mask)
        # Half precision cannot write a point of the simplex to the precision that validation asks for.
        assert_obeyed(td.Categorical(probs=law.probs, validate_args=False).sample((2000,)), mask)
        assert_obeyed(torch.multinomial(law.probs, 2000, replacement=True).T, mask)
        noise = -torch.empty(200, 10, tree.num_classes, dtype=torch.float32).exponential_().log()
        assert_obeyed((law.logits + noise.to(dtype)).argmax(-1), mask)
        assert_obeyed(torch.nn.functional.gumbel_softmax(law.logits.expand(200, -1, -1).float()).argmax(-1), mask)


def test_the_generator_decides():
    tree = catnat.balanced(18)
    scores, mask = rows.around(tree, 20), masks(tree, 20)
    for options in OPTIONS.values():
        law = ct.Catnat(scores, tree, mask=mask, **options)
        first, again, other = (law.sample((5,), generator=rows.seeded(s)) for s in (1, 1, 2))
        rows.assert_equal(first, again)
        assert (first != other).any()
        torch.manual_seed(3)
        first = law.sample((5,))
        torch.manual_seed(3)
        rows.assert_equal(first, law.sample((5,)))


# ---- temperature and unimix ----


@both_modes
@pytest.mark.parametrize("unimix", [0.0, 0.1])
@pytest.mark.parametrize("masked", [True, False])
def test_a_temperature_for_every_row(mode, unimix, masked):
    tree = catnat.huffman(cases.zipf(80))
    scores = rows.inside(tree, "natural", 2, 3)
    mask = masks(tree, 6).view(2, 3, -1) if masked else None
    heat = torch.tensor([[0.1, 0.5, 1.0], [1.5, 3.0, 40.0]], dtype=torch.float64)
    options = {"mask_mode": mode, "unimix": unimix}
    law = ct.Catnat(scores, tree, mask=mask, temperature=heat, **options)
    draws = law.sample((3000,), generator=rows.seeded(0))
    for at in np.ndindex(2, 3):
        row = ct.Catnat(
            scores[at], tree, mask=None if mask is None else mask[at], temperature=float(heat[at]), **options
        )
        for name, fact in facts(row).items():
            rows.assert_close(facts(law)[name][at], fact, 1e-12, 1e-13)
        rows.chi_square(draws[(slice(None), *at)], row.probs)
    # One number for all, as a tensor; one row of them, broadcast.
    assert_same(
        ct.Catnat(scores, tree, mask=mask, temperature=torch.tensor(1.7), **options),
        ct.Catnat(scores, tree, mask=mask, temperature=float(torch.tensor(1.7)), **options),
    )
    by_mask = ct.Catnat(scores[0, 0], tree, mask=masks(tree, 3), temperature=heat[0], **options)
    assert_same(
        by_mask, ct.Catnat(scores[0, :1].expand(3, -1), tree, mask=masks(tree, 3), temperature=heat[0], **options)
    )
    wide = ct.Catnat(scores, tree, mask=mask, temperature=heat[0], **options)
    assert_same(wide, ct.Catnat(scores, tree, mask=mask, temperature=heat[0].expand(2, 3), **options))


@pytest.mark.parametrize("size", [1.0, 100.0])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("heat", [0.1, 0.5, 1.0, 2.0])
def test_the_gradient_of_a_temperature(heat, dtype, masked, size):
    """That of softmax(log p / T) over the valid classes alone, written in plain operations."""
    scores = rows.inside(catnat.balanced(5), "natural", 3, dtype=dtype)
    mask = MASK if masked else torch.ones(5, dtype=torch.bool)
    for unimix in (0.0, 0.2):
        found = []
        for build in ("library", "plain"):
            temperature = torch.full((3,), heat, dtype=dtype, requires_grad=True)
            if build == "library":
                law = ct.Catnat(scores, mask=mask if masked else None, temperature=temperature, unimix=unimix)
                probs, entropy = law.probs[:, mask], law.entropy()
                logits = law.logits[:, mask]
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
    """Laws that sum to one, with finite gradients; a hot one is uniform."""
    scores = rows.inside(catnat.balanced(5), "natural", 3, dtype=dtype).requires_grad_()
    computing = torch.float64 if dtype == torch.float64 else torch.float32
    for heat in (1e-30, 1e-6, 1e6, 1e30):
        for temperature in (heat, torch.full((3,), heat, dtype=computing)):
            law = ct.Catnat(scores, mask=MASK if masked else None, mask_mode=mode, temperature=temperature)
            torch.testing.assert_close(law.probs.double().sum(-1), torch.ones(3).double(), rtol=0, atol=0.01)
            for value in (law.probs, law.logits, law.entropy(), law.log_prob(torch.tensor(0))):
                assert value.isfinite().all()
                assert gradient(value, scores).isfinite().all()
            if heat > 1:
                assert_uniform(law)


def assert_uniform(law: ct.Catnat) -> None:
    valid = torch.ones_like(law.probs, dtype=torch.bool) if law.mask is None else law.mask
    wanted = valid.float() / valid.sum(-1, keepdim=True)
    torch.testing.assert_close(law.probs.float(), wanted, rtol=1e-2, atol=1e-3)


@all_dtypes
@both_modes
def test_enormous_temperatures(dtype, mode):
    """Up to the largest number there is, a masked class takes nothing from the others."""
    largest = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).max
    for heat in (largest / 1000, largest / 10, largest):
        law = ct.Catnat(torch.randn(3, 4).to(dtype), mask=MASK, mask_mode=mode, temperature=heat)
        assert_uniform(law)


def test_a_temperature_beyond_the_dtype_is_refused():
    """In float32 1e300 is infinite."""
    with pytest.raises(ValueError, match="temperature"):
        ct.Catnat(torch.zeros(4), mask=MASK, temperature=1e300)


@pytest.mark.parametrize("learned", [1e-30, 1e-3, 1e30])
@pytest.mark.parametrize("masked", [True, False])
def test_extreme_learned_temperatures(learned, masked):
    scores = rows.inside(catnat.balanced(5), "natural", 3)
    temperature = torch.full((3,), learned, dtype=torch.float64, requires_grad=True)
    law = ct.Catnat(scores, mask=MASK if masked else None, temperature=temperature)
    for value in (law.probs, law.logits, law.entropy()):
        assert gradient(value, temperature).isfinite().all()


@both_modes
@pytest.mark.parametrize("tree", [catnat.balanced(1000), catnat.huffman(cases.zipf(1000))], ids=["balanced", "huffman"])
def test_walked_log_prob_of_a_mixture(tree, mode):
    """A path and the uniform share: the same as reading it from all classes."""
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


def torch_twin(law: ct.Catnat) -> td.Categorical:
    return td.Categorical(probs=law.probs.detach())


@all_options
def test_kl_with_the_distributions_of_torch(options):
    tree = catnat.huffman(cases.zipf(20))
    law = ct.Catnat(rows.inside(tree, "natural", 5), tree, mask=masks(tree, 5), **options)
    other = td.Categorical(logits=torch.randn(5, 20, dtype=torch.float64, generator=rows.seeded(0)))
    p, q = law.probs.numpy(), other.probs.numpy()
    got = kl_divergence(law, other)
    np.testing.assert_allclose(got, [oracle.categorical_kl(*pair) for pair in zip(p, q, strict=True)], rtol=1e-11)
    got = kl_divergence(other, law)
    np.testing.assert_array_equal(got.isinf(), ~law.mask.all(-1).numpy())
    np.testing.assert_allclose(got, [oracle.categorical_kl(*pair) for pair in zip(q, p, strict=True)], rtol=1e-11)
    assert (kl_divergence(law, torch_twin(law)).abs() < 1e-6).all()  # torch keeps probabilities away from 0


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


def test_kl_of_laws_masked_in_the_way_of_torch():
    """Users of torch mask by logits of minus infinity: where both forbid a class, nothing is infinite or NaN."""
    scores = rows.inside(catnat.balanced(5), "natural", 3).requires_grad_()
    logits = torch.randn(3, 5, dtype=torch.float64, generator=rows.seeded(0)).requires_grad_()
    law, other = ct.Catnat(scores, mask=MASK), td.Categorical(logits=logits.masked_fill(~MASK, -torch.inf))
    p, q = (each.probs[:, MASK] for each in (law, other))
    for pair, wanted in (((law, other), (p * (p / q).log()).sum(-1)), ((other, law), (q * (q / p).log()).sum(-1))):
        got = kl_divergence(*pair)
        rows.assert_close(got, wanted)
        rows.assert_close(gradient(got, scores), torch.autograd.grad(weighted(wanted), scores, retain_graph=True)[0])
    # The gradient of torch's own parameter, where torch can give one: its own KL has NaN there.
    rows.assert_close(gradient(kl_divergence(law, other), logits), gradient(wanted_kl(p, q), logits))


def wanted_kl(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p / q).log()).sum(-1)


def test_kl_of_other_numbers_of_classes():
    with pytest.raises(ValueError, match=r"5 classes.*4"):
        kl_divergence(ct.Catnat(torch.zeros(4), mask=MASK), ct.Catnat(torch.zeros(3)))


# ---- torch's own distributions ----


@all_options
def test_expand(options):
    tree = catnat.huffman(cases.zipf(80))
    heat = options["temperature"]
    tensor_heat = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    scores, mask = rows.inside(tree, "natural", 3), masks(tree, 3)
    for temperature in (heat, tensor_heat):
        given = {**options, "temperature": temperature}
        for kind in (ct.Catnat, ct.OneHotCatnat, ct.OneHotCatnatStraightThrough):
            law = kind(scores, tree, mask=mask, **given)
            wide = law.expand((2, 3))
            assert type(wide) is kind
            assert wide.batch_shape == (2, 3)
            assert wide.mask.shape == (2, 3, 80)
            rows.assert_equal(wide.probs, law.probs.expand(2, 3, -1))
            rows.assert_close(wide.entropy(), law.entropy().expand(2, 3))
            value = wide.sample((4,))
            rows.assert_close(wide.log_prob(value), law.log_prob(value))
    if heat == 1:
        relaxed = ct.RelaxedOneHotCatnat(0.5, scores, tree, mask=mask, mask_mode=options["mask_mode"]).expand((2, 3))
        assert relaxed.rsample((4,)).shape == (4, 2, 3, 80)
        assert (relaxed.rsample() * ~mask == 0).all()


def test_independent():
    scores, mask = rows.inside(catnat.balanced(5), "natural", 4, 3), masks(catnat.balanced(5), 3)
    law = td.Independent(ct.Catnat(scores, mask=mask), 1)
    other = td.Independent(ct.Catnat(scores.flip(0), mask=mask), 1)
    assert law.batch_shape == (4,)
    assert law.event_shape == (3,)
    value = law.sample((6,))
    rows.assert_close(law.log_prob(value), law.base_dist.log_prob(value).sum(-1))
    rows.assert_close(law.entropy(), law.base_dist.entropy().sum(-1))
    rows.assert_close(kl_divergence(law, other), kl_divergence(law.base_dist, other.base_dist).sum(-1))


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
    law = ct.RelaxedOneHotCatnat(temperature, scores, tree, mask=mask, mask_mode=mode, unimix=0.1, validate_args=False)
    draws = law.rsample((50,), generator=rows.seeded(0))
    assert draws.dtype == dtype
    assert (draws * ~mask == 0).all()
    assert draws.isfinite().all()
    torch.testing.assert_close(
        draws.double().sum(-1), torch.ones(50, 5).double(), rtol=0, atol=16 * torch.finfo(dtype).eps
    )
    assert gradient(draws, scores).isfinite().all()
    density = law.log_prob(draws.detach())
    assert density.isfinite().all()
    assert gradient(density, scores).isfinite().all()


@pytest.mark.parametrize("masked", [True, False])
def test_the_density_of_a_relaxed_law_integrates_to_one(masked):
    """Over the simplex of the valid classes: one valid class is certain, two make a line, three a triangle."""
    mask = torch.tensor([True, False, True, False]) if masked else None
    tree = catnat.balanced(4) if masked else catnat.balanced(2)
    scores = rows.inside(tree, "natural", margin=0.3)
    grid = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    value = torch.zeros(len(grid), tree.num_classes, dtype=torch.float64)
    value[:, 0], value[:, 2 if masked else 1] = grid, 1 - grid
    law = ct.RelaxedOneHotCatnat(0.9, scores, tree, mask=mask)
    assert law.log_prob(value).exp().mean().item() == pytest.approx(1, abs=1e-3)


def test_a_relaxed_law_with_one_valid_class_is_certain():
    scores = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    law = ct.RelaxedOneHotCatnat(0.5, scores, mask=torch.eye(5, dtype=torch.bool))
    draw = law.rsample()
    rows.assert_equal(draw.detach(), torch.eye(5, dtype=torch.float64))
    rows.assert_close(gradient(draw, scores), torch.zeros_like(scores), atol=1e-14)
    rows.assert_close(law.log_prob(draw.detach()), torch.zeros(5, dtype=torch.float64))


def test_a_learned_temperature_of_a_relaxed_law():
    scores = rows.inside(catnat.balanced(5), "natural", 3)
    temperature = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    law = ct.RelaxedOneHotCatnat(temperature, scores, mask=MASK)
    draw = law.rsample(generator=rows.seeded(0))
    logs = law.logits[:, MASK]
    noise = (draw[:, MASK].detach().log() * temperature).detach() - logs  # up to a constant per row
    wanted = torch.softmax((logs + noise) / temperature, -1)
    rows.assert_close(draw[:, MASK], wanted)
    pick = torch.linspace(-1, 2, 15, dtype=torch.float64).view(3, 5)[:, MASK]
    rows.assert_close(*(torch.autograd.grad((v * pick).sum(), temperature)[0] for v in (draw[:, MASK], wanted)), 1e-8)
    value = draw.detach()
    assert gradient(law.log_prob(value), temperature).isfinite()


# ---- few valid classes of many ----

LARGE = {
    "balanced-128": catnat.balanced(128),
    "balanced-300": catnat.balanced(300),
    "balanced-prior": catnat.balanced(300).with_prior(cases.zipf(300)),
    "huffman-300": catnat.huffman(cases.zipf(300)),
    "children-200": catnat.huffman(cases.zipf(200)).with_prior(np.ones(200)),
}


def few_valid(tree: catnat.Tree, batch: int, most: int = 5) -> Tensor:
    """Masks (batch, K) with one to ``most`` valid classes, some of them neighbours."""
    generator = rows.seeded(4)
    start = torch.randint(tree.num_classes, (batch, 1), generator=generator)
    steps = torch.randint(3, (batch, most), generator=generator) ** 4
    mask = torch.zeros(batch, tree.num_classes, dtype=torch.bool)
    return mask.scatter(-1, (start + steps) % tree.num_classes, True)


def takes_the_shortcut(law: ct.Catnat) -> bool:
    return law._law._paths is not None


@pytest.mark.parametrize("name", LARGE)
@both_modes
def test_few_valid_classes(name, mode):
    """The shortcut for large inputs gives what small batches of the same rows give, which are too small for it."""
    tree = LARGE[name]
    for activation in ("natural", "sigmoid") if name == "balanced-300" else ("reflect-isotropic", "sigmoid-isotropic"):
        kind = rows.ACTIVATIONS[activation]
        scores, mask = rows.inside(tree, kind, 180).requires_grad_(), few_valid(tree, 180)
        large = ct.Catnat(scores, tree, kind, mask=mask, mask_mode=mode)
        assert takes_the_shortcut(large)
        small = [
            ct.Catnat(s, tree, kind, mask=m, mask_mode=mode)
            for s, m in zip(scores.split(45), mask.split(45), strict=True)
        ]
        assert not any(map(takes_the_shortcut, small))
        for fact in facts(large):
            got, wanted = facts(large)[fact], torch.cat([facts(law)[fact] for law in small])
            rows.assert_close(got, wanted, 1e-11, 1e-12)
            if fact != "mode":
                got, wanted = gradient(got, scores), gradient(wanted, scores)
                rows.assert_close(got, wanted, 1e-9, 1e-10 * float(wanted.abs().max()))
        assert (large.probs[~mask] == 0).all()
        assert (large.logits[~mask] == torch.finfo(torch.float64).min).all()
        classes = mask.int().argmax(-1)
        small_log_probs = [law.log_prob(c) for law, c in zip(small, classes.split(45), strict=True)]
        fresh = ct.Catnat(scores, tree, kind, mask=mask, mask_mode=mode)
        rows.assert_close(fresh.log_prob(classes), torch.cat(small_log_probs), 1e-11)
        rows.assert_equal(kl_divergence(large, large), torch.zeros(180, dtype=torch.float64))
        if mode == "prune":
            rows.assert_close(large.fisher_diagonal(), ct.fisher_diagonal(scores, tree, kind, mask=mask), 1e-11)


def test_few_valid_classes_against_the_oracle():
    tree = LARGE["balanced-128"]
    scores, mask = rows.inside(tree, "natural", 180), few_valid(tree, 180)
    model = cases.tree_case("balanced-128").model(cases.NATURAL)
    for mode in MODES:
        law = ct.Catnat(scores, tree, mask=mask, mask_mode=mode)
        assert takes_the_shortcut(law)
        for row in range(0, 180, 20):
            wanted = oracle.Law(model, tuple(mask[row].tolist()), mode).probs(scores[row].numpy())
            np.testing.assert_allclose(law.probs[row], wanted, atol=1e-13)


@both_modes
def test_few_valid_classes_in_other_shapes_and_dtypes(mode):
    tree = LARGE["balanced-300"]
    scores, mask = rows.inside(tree, "natural", 6, 30).requires_grad_(), few_valid(tree, 180).view(6, 30, -1)
    law = ct.Catnat(scores, tree, mask=mask, mask_mode=mode)
    flat = ct.Catnat(scores.flatten(0, 1), tree, mask=mask.flatten(0, 1), mask_mode=mode)
    assert takes_the_shortcut(law)
    for name, fact in facts(flat).items():
        rows.assert_equal(facts(law)[name], fact.unflatten(0, (6, 30)))
    draws = law.sample((20,))
    assert_obeyed(draws, mask)
    wide = law.expand((2, 6, 30))
    rows.assert_close(wide.probs, law.probs.expand(2, 6, 30, -1), 1e-12)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        half = ct.Catnat(scores.to(dtype), tree, mask=mask, mask_mode=mode)
        assert takes_the_shortcut(half)
        assert half.probs.dtype == half.logits.dtype == half.entropy().dtype == dtype
        assert (half.logits[~mask] == torch.finfo(dtype).min).all()
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(half.probs.double(), law.probs, rtol=0, atol=4 * eps + 0.05 * (dtype.itemsize == 2))


@both_modes
def test_few_valid_classes_far_outside_the_band(mode):
    tree = LARGE["huffman-300"]
    scores, mask = 1e30 * rows.around(tree, 180), few_valid(tree, 180)
    scores.requires_grad_()
    law = ct.Catnat(scores, tree, mask=mask, mask_mode=mode)
    assert takes_the_shortcut(law)
    for value in (law.probs, law.logits, law.entropy()):
        assert value.isfinite().all()
        assert gradient(value, scores).isfinite().all()
    rows.assert_close(law.probs.sum(-1), torch.ones(180, dtype=torch.float64))


def test_under_transforms_few_valid_classes_are_like_many():
    tree = LARGE["balanced-300"]
    scores, mask = rows.inside(tree, "natural", 180), few_valid(tree, 180)
    law = ct.Catnat(scores, tree, mask=mask)
    rows.assert_close(vmap(lambda s, m: ct.Catnat(s, tree, mask=m).probs)(scores, mask), law.probs)
    rows.assert_close(vmap(lambda s, m: ct.Catnat(s, tree, mask=m).logits)(scores, mask), law.logits)
    compiled = torch.compile(lambda s, m: ct.Catnat(s, tree, mask=m).logits, backend="aot_eager", fullgraph=True)
    rows.assert_close(compiled(scores, mask), law.logits)
    got = torch.func.grad(lambda s: weighted(ct.Catnat(s, tree, mask=mask).probs))(scores)
    leaf = scores.clone().requires_grad_()
    rows.assert_close(got, gradient(ct.Catnat(leaf, tree, mask=mask).probs, leaf))


@both_modes
def test_vmap_over_scores_with_one_mask_of_few_valid_classes(mode):
    tree = LARGE["balanced-300"]
    scores, mask = rows.inside(tree, "natural", 3, 180), few_valid(tree, 180)
    for name in ("probs", "logits"):
        got = vmap(lambda s, name=name: getattr(ct.Catnat(s, tree, mask=mask, mask_mode=mode), name))(scores)
        wanted = [getattr(ct.Catnat(s, tree, mask=mask, mask_mode=mode), name) for s in scores]
        rows.assert_close(got, torch.stack(wanted))
    got = vmap(lambda s: ct.Catnat(s, tree, mask=mask, mask_mode=mode).entropy())(scores)
    rows.assert_close(got, torch.stack([ct.Catnat(s, tree, mask=mask, mask_mode=mode).entropy() for s in scores]))


# ---- vmap ----


@all_options
@pytest.mark.parametrize("name", ["balanced-8", "balanced-100", "chain-100", "huffman-20"])
def test_vmap_is_the_batch(name, options):
    tree = rows.TREES[name]
    scores, mask = rows.inside(tree, "natural", 5), masks(tree, 5)
    law = ct.Catnat(scores, tree, mask=mask, **options)
    classes = mask.int().argmax(-1)

    def every(s, m, c):
        one = ct.Catnat(s, tree, mask=m, validate_args=False, **options)
        return one.probs, one.logits, one.entropy(), one.mode, one.log_prob(c)

    for got, wanted in zip(
        vmap(every)(scores, mask, classes), (*facts(law).values(), law.log_prob(classes)), strict=True
    ):
        rows.assert_close(got, wanted)
    got = vmap(lambda s: ct.Catnat(s, tree, mask=mask[3], **options).probs)(scores)
    rows.assert_close(got, ct.Catnat(scores, tree, mask=mask[3], **options).probs)
    draws = vmap(lambda s, m: ct.Catnat(s, tree, mask=m, **options).sample((50,)), randomness="different")(scores, mask)
    assert_obeyed(draws.T, mask)


def test_vmap_over_indices():
    scores, indices = torch.randn(3, 4), torch.tensor([[0, 1, -1], [2, 3, 4], [-1, -1, 4]])
    got = vmap(lambda s, i: ct.Catnat(s, mask=i).probs)(scores, indices)
    rows.assert_close(got, ct.Catnat(scores, mask=indices).probs, 1e-6, 1e-7)


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
    "all": ("balanced-8", "natural", "renormalize-hot-unimix"),
    "unimix": ("balanced-100", "sigmoid", "prune-unimix"),  # walked
}


@pytest.mark.parametrize("case", COMPILED)
def test_compiled_laws_equal_eager_ones(case, fresh_compiler):
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
        law = ct.Catnat(scores, tree, activation, mask=mask, validate_args=False, **options)
        return law.log_prob(classes), law.probs, law.logits, law.entropy(), law.sample()

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

    def everything(p, q, heat):
        law = ct.Catnat(p, mask=indices, temperature=heat, validate_args=False)
        other = ct.Catnat(q, mask=MASK)
        return kl_divergence(law, other), law.log_prob(torch.tensor([0, 2, 4])), ct.fisher_diagonal(p, mask=indices)

    p, q = torch.randn(2, 3, 4, dtype=torch.float64, generator=rows.seeded(0))
    heat = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    eager = everything(p, q, heat)  # first: torch looks a divergence up once, in a way that the compiler cannot follow
    fast = torch.compile(everything, backend="aot_eager", fullgraph=True)(p, q, heat)
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
    **{name: OPTIONS[name] for name in ("prune", "renormalize", "prune-unimix", "prune-cold-unimix", "prune-hot")},
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
        law = ct.Catnat(scores, tree, kind, mask=mask, **options)
        classes = torch.arange(5).view(-1, 1).expand(-1, len(scores)) % tree.num_classes
        other = ct.Catnat(scores.flip(0), tree, kind, mask=mask, **options)
        assert_finite(law.probs, scores, f"probs, {where}")
        assert_finite(law.log_prob(classes), scores, f"log_prob, {where}")
        assert_finite(law.logits, scores, f"logits, {where}")
        assert_finite(law.entropy(), scores, f"entropy, {where}")
        assert_finite(kl_divergence(law, other), scores, f"kl, {where}")
        if options == OPTIONS["prune"]:
            assert_finite(law.fisher_diagonal(), scores, f"fisher, {where}")
        assert_obeyed(law.sample((3,)), mask)
        assert mask.gather(-1, law.mode.unsqueeze(-1)).all()
        total = law.probs.detach().double().sum(-1)
        allowed = tree.num_classes * torch.finfo(dtype).eps
        torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=allowed)


@all_dtypes
@both_modes
def test_hostile_scores_of_one_hot_and_relaxed_laws(dtype, mode):
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
                law = ct.RelaxedOneHotCatnat(
                    temperature, scores, tree, kind, mask=mask, mask_mode=mode, validate_args=False
                )
                draw = law.rsample(generator=rows.seeded(5))
                assert (draw[~mask] == 0).all()
                assert_finite(draw, scores, f"relaxed, {where}")
                assert_finite(law.log_prob(draw.detach()), scores, f"relaxed log_prob, {where}")
