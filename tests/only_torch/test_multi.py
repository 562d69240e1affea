"""MultiCatnat: N variables of different sizes at once are what a loop over N distributions is."""

from __future__ import annotations

import math
from typing import Any

import cases
import pytest
import torch
from only_torch import rows
from torch import Tensor
from torch import distributions as td
from torch.distributions import kl_divergence
from torch.func import vmap

import catnat
import catnat.torch as ct

pytestmark = [pytest.mark.filterwarnings("ignore::catnat.EdgeWarning"), pytest.mark.usefixtures("validation")]

FORESTS = {
    "small": catnat.Forest([3, 2, catnat.chain(4), 8]),
    "single-classes": catnat.Forest([1, 3, 1, 1, 5, 1]),
    "only-single-classes": catnat.Forest([1, 1, 1]),
    "one-variable": catnat.Forest([6]),
    "priors": catnat.Forest([catnat.balanced(5).with_prior([1, 4, 0.5, 2, 1]), catnat.huffman(cases.zipf(20)), 7]),
    "large": catnat.Forest([18, catnat.huffman(cases.zipf(30)), 1, 40]),  # more than 64 classes: walked
    "large-equal": catnat.Forest([32, 32, 32]),
    "deep": catnat.Forest([catnat.chain(75), 3, cases.tree_case("caterpillar-75").tree]),  # too deep to walk
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mixed": {"temperature": 1.5, "unimix": 0.2},  # without a mask
    **rows.OPTIONS,
}
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]

all_forests = pytest.mark.parametrize("forest", FORESTS.values(), ids=FORESTS.keys())
all_options = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())


# ---- the loop ----


def inside(forest: catnat.Forest, kind: ct.Activation, *batch: int, seed: int = 0) -> Tensor:
    """Random scores well inside every node's band."""
    return torch.cat([rows.inside(tree, kind, *batch, seed=seed + n) for n, tree in enumerate(forest.trees)], -1)


def masks(forest: catnat.Forest, *batch: int, seed: int = 0) -> Tensor:
    """Masks that leave each variable at least one class, of all sizes."""
    count = math.prod(batch)
    parts = [torch.from_numpy(cases.masks(size, count, seed + n)) for n, size in enumerate(forest.sizes)]
    return torch.cat([part.roll(n, 0) for n, part in enumerate(parts)], -1).view(*batch, -1)


def loop(
    scores: Tensor, forest: catnat.Forest, kind: ct.Activation | str, mask: Tensor | None = None, **options: Any
) -> list[ct.Catnat]:
    """A distribution for each variable."""
    parts = scores.split([tree.num_nodes for tree in forest.trees], -1)
    valid = [None] * len(parts) if mask is None else mask.split(forest.sizes, -1)
    return [
        ct.Catnat(part, tree, kind, mask=m, **options) for part, tree, m in zip(parts, forest.trees, valid, strict=True)
    ]


def total(values: list[Tensor]) -> Tensor:
    return torch.stack(values, -1).sum(-1)


def facts(dist: ct.MultiCatnat) -> dict[str, Tensor]:
    return {"probs": dist.probs, "logits": dist.logits, "entropy": dist.entropy(), "mode": dist.mode}


def looped_facts(dists: list[ct.Catnat]) -> dict[str, Tensor]:
    return {
        "probs": torch.cat([dist.probs for dist in dists], -1),
        "logits": torch.cat([dist.logits for dist in dists], -1),
        "entropy": total([dist.entropy() for dist in dists]),
        "mode": torch.stack([dist.mode for dist in dists], -1),
    }


def weighted(value: Tensor) -> Tensor:
    """A loss that tells the entries apart; of logits, only of valid classes."""
    weights = torch.linspace(-1, 2, value.numel(), dtype=value.dtype).view(value.shape)
    return (torch.where(value < -1e30, 0.0, value) * weights).sum()


def gradient(value: Tensor, scores: Tensor) -> Tensor:
    if not value.requires_grad:  # single classes have no scores
        return torch.zeros_like(scores)
    return torch.autograd.grad(weighted(value), scores, retain_graph=True)[0]


def classes_of(forest: catnat.Forest, *shape: int) -> Tensor:
    draws = [torch.randint(size, shape, generator=rows.seeded(n)) for n, size in enumerate(forest.sizes)]
    return torch.stack(draws, -1)


def assert_like_the_loop(dist: ct.MultiCatnat, dists: list[ct.Catnat], scores: Tensor) -> None:
    """Values and gradients of all there is."""
    forest, batch = dist.forest, dist.batch_shape
    got, wanted = facts(dist), looped_facts(dists)
    for name, value in wanted.items():
        rows.assert_close(got[name], value, 1e-12, 1e-12)
        if name != "mode":
            rows.assert_close(gradient(got[name], scores), gradient(value, scores), 1e-9, 1e-10)
    for shape in (batch, (4, *batch)):
        value = classes_of(forest, *shape)
        fresh = dist.expand(batch)  # has no logits to look up
        each = [one.log_prob(part) for one, part in zip(dists, value.unbind(-1), strict=True)]
        masked = torch.stack([part <= torch.finfo(part.dtype).min for part in each], -1).any(-1)
        for found in (fresh.log_prob(value), dist.log_prob(value)):
            assert found.shape == shape
            rows.assert_close(found[~masked], total(each)[~masked], 1e-12, 1e-12)
        chosen = torch.where(masked, 0.0, fresh.log_prob(value)), torch.where(masked, 0.0, total(each))
        rows.assert_close(*(gradient(each, scores) for each in chosen), 1e-9, 1e-10)


@all_forests
@all_options
def test_equal_to_a_loop(forest, options):
    scores = inside(forest, ct.natural(), 5).requires_grad_()
    mask = masks(forest, 5) if "mask_mode" in options else None
    dist = ct.MultiCatnat(scores, forest, mask=mask, **options)
    assert dist.event_shape == (len(forest.trees),)
    assert_like_the_loop(dist, loop(scores, forest, "natural", mask, **options), scores)


@all_forests
@pytest.mark.parametrize("activation", ["sigmoid-isotropic", "reflect-isotropic"])
def test_equal_to_a_loop_for_other_activations(forest, activation):
    kind = rows.ACTIVATIONS[activation]
    scores, mask = inside(forest, kind, 5).requires_grad_(), masks(forest, 5)
    for valid in (None, mask):
        dist = ct.MultiCatnat(scores, forest, kind, mask=valid, mask_mode="prune")
        dists = loop(scores, forest, kind, valid, mask_mode="prune")
        assert_like_the_loop(dist, dists, scores)
        rows.assert_close(dist.fisher_diagonal(), torch.cat([one.fisher_diagonal() for one in dists], -1), 1e-12)


@pytest.mark.parametrize("name", ["small", "single-classes", "large", "deep"])
@pytest.mark.parametrize("batch", [(), (1,), (2, 3)], ids=str)
def test_equal_to_a_loop_for_other_batches(name, batch):
    forest = FORESTS[name]
    scores, mask = inside(forest, ct.natural(), *batch).requires_grad_(), masks(forest, *batch)
    for options in ({}, {"mask": mask, "mask_mode": "prune"}, {"mask": mask, "unimix": 0.1}):
        dist = ct.MultiCatnat(scores, forest, **options)
        assert dist.batch_shape == batch
        assert_like_the_loop(dist, loop(scores, forest, "natural", **options), scores)


@pytest.mark.parametrize("name", ["small", "large", "deep"])
def test_masks_and_scores_are_broadcast(name):
    forest = FORESTS[name]
    scores, mask = inside(forest, ct.sigmoid()), masks(forest, 4)
    dist = ct.MultiCatnat(scores, forest, "sigmoid", mask=mask)
    full = ct.MultiCatnat(scores.expand(4, -1), forest, "sigmoid", mask=mask)
    assert dist.batch_shape == (4,)
    assert dist.scores.shape == (4, forest.num_nodes)
    one_mask = ct.MultiCatnat(scores.expand(4, -1), forest, "sigmoid", mask=mask[2])
    for fact in facts(dist):
        rows.assert_equal(facts(dist)[fact], facts(full)[fact])
        rows.assert_close(facts(one_mask)[fact][1], facts(full)[fact][2], 1e-12)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["small", "single-classes", "large", "deep"])
def test_temperatures_of_the_batch_shape(name, masked):
    forest = FORESTS[name]
    temperature = torch.tensor([[0.4, 0.7, 1.0], [1.5, 3.0, 9.0]], dtype=torch.float64)
    scores = inside(forest, ct.natural(), 2, 3).requires_grad_()
    mask = masks(forest, 2, 3) if masked else None
    dist = ct.MultiCatnat(scores, forest, mask=mask, temperature=temperature, unimix=0.05)
    assert_like_the_loop(dist, loop(scores, forest, "natural", mask, temperature=temperature, unimix=0.05), scores)
    for at in ((0, 0), (1, 2)):
        valid = None if mask is None else mask[at]
        one = ct.MultiCatnat(scores[at], forest, mask=valid, temperature=float(temperature[at]), unimix=0.05)
        rows.assert_close(dist.probs[at], one.probs, 1e-12)


def test_lists_tuples_and_forests_are_the_same():
    scores = torch.randn(2, 10)
    wanted = ct.MultiCatnat(scores, catnat.Forest([3, catnat.chain(4), 6]))
    for trees in ([3, catnat.chain(4), 6], (catnat.balanced(3), catnat.chain(4), catnat.balanced(6))):
        dist = ct.MultiCatnat(scores, trees)
        assert dist.forest == wanted.forest
        rows.assert_equal(dist.probs, wanted.probs)


def test_split_undoes_the_concatenation():
    forest = FORESTS["small"]
    dist = ct.MultiCatnat(inside(forest, ct.natural(), 5), forest)
    parts = dist.split(dist.probs)
    assert [part.shape for part in parts] == [(5, size) for size in forest.sizes]
    rows.assert_equal(torch.cat(parts, -1), dist.probs)
    for part in parts:
        rows.assert_close(part.sum(-1), torch.ones(5, dtype=torch.float64))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["small", "large", "deep"])
def test_log_prob_of_masked_classes(name, dtype):
    """The least finite number, even where several variables take a masked class; and no gradient."""
    forest = FORESTS[name]
    scores = inside(forest, ct.natural(), 4).to(dtype).requires_grad_()
    mask = torch.ones(forest.num_classes, dtype=torch.bool)
    mask[torch.as_tensor(forest.first_classes[torch.tensor(forest.sizes) > 1])] = False  # the first class of each
    valid = torch.tensor([size - 1 for size in forest.sizes])
    value = torch.stack([torch.zeros_like(valid), torch.where(torch.arange(len(valid)) == 1, 0, valid), valid])
    for mode in ("prune", "renormalize"):
        dist = ct.MultiCatnat(scores, forest, mask=mask, mask_mode=mode)
        for _ in range(2):  # along the paths, then from the logits
            found = dist.log_prob(value.unsqueeze(1).expand(-1, 4, -1))
            assert found.dtype == dtype
            assert (found[:2] == torch.finfo(dtype).min).all()
            assert (found[2] > -1000).all()
            assert (torch.autograd.grad(found[:2].sum(), scores, retain_graph=True)[0] == 0).all()
            assert dist.logits.isfinite().all()


# ---- draws ----


def check_draws(draws: Tensor, dists: list[ct.Catnat]) -> None:
    """Every variable has its distribution, and neighbours are independent. ``draws`` is (count, N) of one row."""
    for n, dist in enumerate(dists):
        rows.chi_square(draws[:, n], dist.probs.squeeze(0))
    for n in range(len(dists) - 1):
        first, second = (dist.probs.squeeze(0) for dist in dists[n : n + 2])
        pairs = draws[:, n] * len(second) + draws[:, n + 1]
        rows.chi_square(pairs, torch.outer(first, second).flatten())


@all_forests
@pytest.mark.parametrize("name", ["plain", "mixed", "prune", "renormalize", "prune-T0.4-unimix"])
def test_draws_have_the_probabilities_of_the_loop(forest, name):
    """Many draws walk, few draw all nodes at once: both are tested, with and without a sample shape."""
    options = OPTIONS[name]
    scores = inside(forest, ct.natural(), 1)
    mask = masks(forest, 5)[3:4] if "mask_mode" in options else None
    dist, dists = ct.MultiCatnat(scores, forest, mask=mask, **options), loop(scores, forest, "natural", mask, **options)
    many = dist.sample((6000,), generator=rows.seeded(0))
    assert many.dtype == torch.long
    assert many.shape == (6000, 1, len(forest.trees))
    check_draws(many.squeeze(1), dists)
    copied = dist.expand((3, 1000)).sample(generator=rows.seeded(1))
    assert copied.shape == (3, 1000, len(forest.trees))
    check_draws(copied.flatten(0, 1), dists)


def test_both_ways_of_drawing_are_tested():
    """The large forest has too many nodes to draw them all at once for 6000 draws, the small one does not."""
    at_once = ct._functional._BRANCHES_AT_ONCE
    assert 6000 * FORESTS["small"].num_nodes <= at_once < 6000 * FORESTS["large"].num_nodes


def test_few_draws_of_a_large_forest():
    """Few enough to draw all nodes at once."""
    forest = FORESTS["large"]
    scores = inside(forest, ct.natural(), 1)
    dist = ct.MultiCatnat(scores, forest)
    draws = [dist.sample((1000,), generator=rows.seeded(seed)) for seed in range(5)]
    check_draws(torch.cat(draws).squeeze(1), loop(scores, forest, "natural"))


@all_options
def test_masked_classes_are_never_drawn(options):
    for name in ("small", "large", "deep"):
        forest = FORESTS[name]
        mask = masks(forest, 20)
        scores = 5 * torch.randn(20, forest.num_nodes, generator=rows.seeded(0))
        given = {"mask": mask, **options}
        dist = ct.MultiCatnat(scores, forest, **given)
        for draws in (dist.sample((500,)), dist.sample(), dist.mode):
            hot = dist.one_hot(draws).bool()
            assert not (hot & ~mask).any()
        assert (dist.probs[~mask] == 0).all()
        assert (dist.logits[~mask] == torch.finfo(torch.float32).min).all()


def test_the_generator_decides():
    for forest in FORESTS.values():
        dist = ct.MultiCatnat(inside(forest, ct.natural(), 20), forest, unimix=0.1)
        for shape in ((), (7,)):
            first, again = (dist.sample(shape, generator=rows.seeded(1)) for _ in range(2))
            rows.assert_equal(first, again)
            hot = dist.rsample_one_hot(shape, generator=rows.seeded(1))
            rows.assert_equal(hot, dist.one_hot(first))
            if forest.num_nodes:
                assert (first != dist.sample(shape, generator=rows.seeded(2))).any()


# ---- one-hot ----


@all_forests
def test_one_hot(forest):
    dist = ct.MultiCatnat(inside(forest, ct.natural(), 2, 3), forest)
    value = classes_of(forest, 4, 2, 3)
    wanted = [
        torch.nn.functional.one_hot(part, size) for part, size in zip(value.unbind(-1), forest.sizes, strict=True)
    ]
    rows.assert_equal(dist.one_hot(value), torch.cat(wanted, -1).double())


@all_forests
@pytest.mark.parametrize("name", ["plain", "prune", "renormalize", "prune-T0.4-unimix"])
def test_straight_through(forest, name):
    """Forward one-hot vectors, backward the gradient of the loop's probabilities."""
    options = OPTIONS[name]
    scores = inside(forest, ct.natural(), 5).requires_grad_()
    mask = masks(forest, 5) if "mask_mode" in options else None
    dist = ct.MultiCatnat(scores, forest, mask=mask, **options)
    hot = dist.rsample_one_hot((3,))
    assert hot.shape == (3, 5, forest.num_classes)
    for part in dist.split(hot.detach()):
        rows.assert_close(part.max(-1).values, torch.ones(3, 5, dtype=torch.float64), atol=1e-15)
        rows.assert_close(part.sum(-1), torch.ones(3, 5, dtype=torch.float64), atol=1e-14)
    probs = looped_facts(loop(scores, forest, "natural", mask, **options))["probs"].expand(3, -1, -1)
    rows.assert_close(gradient(hot, scores), gradient(probs, scores), 1e-9, 1e-11)
    if mask is not None:
        assert (hot[~mask.expand(3, -1, -1)] == 0).all()
    # The value itself is the draw.
    torch.manual_seed(0)
    drawn = dist.sample()
    torch.manual_seed(0)
    rows.assert_close(dist.rsample_one_hot().detach(), dist.one_hot(drawn), atol=1e-15)


# ---- divergences ----


@all_forests
@all_options
def test_kl_is_the_sum_over_variables(forest, options):
    p_scores, q_scores = (inside(forest, ct.natural(), 5, seed=seed).requires_grad_() for seed in (0, 50))
    masked = "mask_mode" in options
    p_mask = masks(forest, 5) if masked else None
    q_mask = p_mask | masks(forest, 5, seed=9) if masked else None
    p, q = (ct.MultiCatnat(s, forest, mask=m, **options) for s, m in ((p_scores, p_mask), (q_scores, q_mask)))
    pairs = zip(
        loop(p_scores, forest, "natural", p_mask, **options),
        loop(q_scores, forest, "natural", q_mask, **options),
        strict=True,
    )
    wanted = total([kl_divergence(*pair) for pair in pairs])
    got = kl_divergence(p, q)
    rows.assert_close(got, wanted, 1e-11)
    for scores in (p_scores, q_scores):
        rows.assert_close(gradient(got, scores), gradient(wanted, scores), 1e-9, 1e-10)
    rows.assert_equal(kl_divergence(p, p), torch.zeros(5, dtype=torch.float64))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kl_is_infinite_where_a_variable_is_forbidden_what_it_can_take(dtype):
    forest = catnat.Forest([3, 2])
    p_mask = torch.tensor([[1, 1, 0, 1, 1], [1, 1, 0, 1, 0], [1, 0, 0, 1, 1]]).bool()
    q_mask = torch.tensor([[1, 1, 0, 1, 0], [1, 1, 1, 1, 0], [1, 1, 0, 1, 1]]).bool()
    p_scores, q_scores = (torch.randn(3, 3).to(dtype).requires_grad_() for _ in range(2))
    p = ct.MultiCatnat(p_scores, forest, "sigmoid", mask=p_mask)
    q = ct.MultiCatnat(q_scores, forest, "sigmoid", mask=q_mask)
    got = kl_divergence(p, q)
    assert got.dtype == dtype
    assert got.isinf().tolist() == [True, False, False]
    for scores in (p_scores, q_scores):
        assert torch.autograd.grad(got.sum(), scores, retain_graph=True)[0].isfinite().all()


def test_kl_between_forests_of_one_size_but_other_trees():
    p_forest, q_forest = catnat.Forest([5, 9]), catnat.Forest([catnat.chain(5), catnat.huffman(cases.zipf(9))])
    p_scores, q_scores = (inside(f, ct.natural(), 4) for f in (p_forest, q_forest))
    got = kl_divergence(ct.MultiCatnat(p_scores, p_forest), ct.MultiCatnat(q_scores, q_forest))
    pairs = zip(loop(p_scores, p_forest, "natural"), loop(q_scores, q_forest, "natural"), strict=True)
    rows.assert_close(got, total([kl_divergence(*pair) for pair in pairs]))
    with pytest.raises(ValueError, match=r"\(5, 9\).*\(9, 5\)"):
        kl_divergence(ct.MultiCatnat(p_scores, p_forest), ct.MultiCatnat(p_scores, [9, 5]))


# ---- shapes ----


@all_forests
def test_shapes(forest):
    count = len(forest.trees)
    for batch in ((), (3,), (2, 3), (0,), (2, 0)):
        for options in ({}, {"mask": torch.ones(*batch, forest.num_classes).bool(), "unimix": 0.1, "temperature": 2.0}):
            dist = ct.MultiCatnat(torch.zeros(*batch, forest.num_nodes), forest, **options)
            assert dist.batch_shape == batch
            assert dist.event_shape == (count,)
            assert dist.probs.shape == dist.logits.shape == (*batch, forest.num_classes)
            assert dist.mode.shape == (*batch, count)
            assert dist.entropy().shape == kl_divergence(dist, dist).shape == batch
            for shape in ((), (4,), (2, 1), (0,)):
                draws = dist.sample(shape)
                assert draws.shape == (*shape, *batch, count)
                assert draws.dtype == torch.long
                assert dist.log_prob(draws).shape == (*shape, *batch)
                assert dist.rsample_one_hot(shape).shape == (*shape, *batch, forest.num_classes)
    assert ct.MultiCatnat(torch.zeros(3, forest.num_nodes), forest).fisher_diagonal().shape == (3, forest.num_nodes)


@pytest.mark.parametrize("name", ["small", "single-classes", "large", "deep"])
@all_options
def test_expand(name, options):
    forest = FORESTS[name]
    mask = masks(forest, 3) if "mask_mode" in options else None
    dist = ct.MultiCatnat(inside(forest, ct.natural(), 3), forest, mask=mask, **options)
    wide = dist.expand((2, 3))
    assert isinstance(wide, ct.MultiCatnat)
    assert wide.batch_shape == (2, 3)
    for fact in facts(dist):
        rows.assert_close(facts(wide)[fact], facts(dist)[fact].expand(2, *facts(dist)[fact].shape), 1e-13)
    value = wide.sample((4,))
    rows.assert_close(wide.log_prob(value), dist.log_prob(value), 1e-12)


def test_other_distributions_of_torch_accept_it():
    forest = FORESTS["small"]
    dist = ct.MultiCatnat(inside(forest, ct.natural(), 4, 3), forest)
    several = td.Independent(dist, 1)
    assert several.event_shape == (3, len(forest.trees))
    value = several.sample((2,))
    rows.assert_close(several.log_prob(value), dist.log_prob(value).sum(-1))
    rows.assert_close(several.entropy(), dist.entropy().sum(-1))
    mixture = td.MixtureSameFamily(ct.Catnat(torch.zeros(4, 2, dtype=torch.float64)), dist)
    value = mixture.sample()
    wanted = (dist.log_prob(value.unsqueeze(1)).exp() / 3).sum(-1).log()
    rows.assert_close(mixture.log_prob(value), wanted)


# ---- values that are not in the support, and other errors ----

SCORES = torch.zeros(2, 6)
TREES = [3, 2, catnat.chain(4)]


@pytest.mark.usefixtures("both_ways")
@all_options
@pytest.mark.parametrize("name", ["small", "large", "deep"])
def test_a_class_that_one_variable_has_not_is_no_class_of_the_next(name, options):
    forest = FORESTS[name]
    mask = masks(forest, 2) if options.get("mask_mode") else None
    dist = ct.MultiCatnat(inside(forest, ct.natural(), 2), forest, mask=mask, validate_args=False, **options)
    for n, size in enumerate(forest.sizes):
        for bad in (-1, size):
            value = torch.zeros(2, len(forest.sizes), dtype=torch.int64)
            value[1, n] = bad
            for read in (dist.log_prob, dist.one_hot):
                with pytest.raises((IndexError, RuntimeError), match=r"out of|not one of"):
                    read(value)


def test_support():
    dist = ct.MultiCatnat(SCORES, TREES)
    values = torch.tensor([[0, 0, 0], [2, 1, 3], [3, 0, 0], [0, 2, 0], [0, 0, 4], [-1, 0, 0]])
    assert dist.support.check(values).tolist() == [True, True, False, False, False, False]
    assert dist.support.event_dim == 1
    assert dist.support.is_discrete
    assert not dist.support.check(torch.tensor([0.5, 0.0, 0.0]))


@pytest.mark.parametrize("value", [[3, 0, 0], [0, 2, 0], [0, 0, -1], [0, 0, 4]])
def test_classes_that_do_not_exist(value):
    with pytest.raises(ValueError, match="support"):
        ct.MultiCatnat(SCORES, TREES).log_prob(torch.tensor(value))
    with pytest.raises(ValueError, match="support"):
        ct.MultiCatnat(SCORES, TREES, validate_args=True).log_prob(torch.tensor(value).expand(2, 3))


def test_a_wrong_number_of_variables():
    for value in (torch.zeros(2, 2), torch.zeros(4), torch.tensor(0)):
        with pytest.raises(ValueError):
            ct.MultiCatnat(SCORES, TREES).log_prob(value.long())


@pytest.mark.parametrize(
    ("error", "text", "arguments", "options"),
    [
        (ValueError, r"7 entries.*3, 2, 4 classes have 6 nodes in all.*not K", (torch.zeros(2, 7), TREES), {}),
        (ValueError, r"9 entries.*6 nodes", (torch.zeros(2, 9), TREES), {}),
        (ValueError, r"2, 2, 2, 2, 2, 2, 2, 2, ... \(9 variables\)", (torch.zeros(2), [2] * 9), {}),
        (TypeError, r"torch.int64", (torch.zeros(2, 6).long(), TREES), {}),
        (TypeError, r"torch.as_tensor\(scores\)", ([0.0] * 6, TREES), {}),
        (ValueError, "`trees` is empty", (SCORES, []), {}),
        (ValueError, "at least 1 class", (SCORES, [3, 0, 4]), {}),
        (TypeError, "`trees`", (SCORES, 7), {}),
        (TypeError, "`trees`", (SCORES, catnat.balanced(7)), {}),
        (TypeError, "activation", (SCORES, TREES, 3), {}),
        (ValueError, "activation", (SCORES, TREES, "relu"), {}),
        (TypeError, "must be boolean", (SCORES, TREES), {"mask": torch.tensor([0, 1, 2])}),
        (TypeError, r"torch.as_tensor\(mask\)", (SCORES, TREES), {"mask": [True] * 9}),
        (ValueError, "8 entries.*one per class is needed: 9", (SCORES, TREES), {"mask": torch.ones(8).bool()}),
        (ValueError, "no valid class in 1 of 3", (SCORES, TREES), {"mask": torch.arange(9) < 5}),
        (ValueError, "mask_mode", (SCORES, TREES), {"mask_mode": "drop"}),
        (ValueError, "unimix.*1.5", (SCORES, TREES), {"unimix": 1.5}),
        (ValueError, "temperature.*0", (SCORES, TREES), {"temperature": 0.0}),
        (ValueError, "temperature.*nan", (SCORES, TREES), {"temperature": torch.tensor([1.0, math.nan])}),
        (ValueError, "temperature.*shape", (SCORES, TREES), {"temperature": torch.ones(3)}),
    ],
)
def test_errors(error, text, arguments, options):
    with pytest.raises(error, match=text):
        ct.MultiCatnat(*arguments, **options)


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in ("plain", "prune")])
def test_a_full_fisher_matrix_is_refused(name):
    with pytest.raises(ValueError, match="not diagonal"):
        ct.MultiCatnat(SCORES, TREES, mask=torch.ones(9).bool(), **OPTIONS[name]).fisher_diagonal()


@pytest.mark.parametrize("mode", ["prune", "renormalize"])
def test_a_variable_without_valid_class_is_unmasked_where_nothing_can_be_checked(mode):
    mask = torch.tensor([[True, False, True, False, False, True, False, False, True], [True] * 9])
    scores = inside(catnat.Forest(TREES), ct.natural(), 2)
    forest = catnat.Forest(TREES)
    fixed = mask | (torch.arange(9) >= 3) & (torch.arange(9) < 5)
    wanted = ct.MultiCatnat(scores, forest, mask=fixed, mask_mode=mode).probs
    rows.assert_equal(ct.MultiCatnat(scores, forest, mask=mask, mask_mode=mode, validate_args=False).probs, wanted)
    got = vmap(lambda s, m: ct.MultiCatnat(s, forest, mask=m, mask_mode=mode).probs)(scores, mask)
    rows.assert_close(got, wanted)
    rows.assert_equal(ct.validate_mask(mask, forest), torch.tensor([False, True]))


# ---- dtypes and hostile scores ----


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["plain", "prune", "renormalize", "prune-T0.4-unimix"])
def test_hostile_scores_in_every_dtype(dtype, name):
    options, largest = OPTIONS[name], torch.finfo(dtype).max
    sizes = torch.tensor([0.0, 1e-40, 1e-8, 1.0, math.pi, 1e4, min(1e30, largest), largest], dtype=torch.float64)
    values = torch.cat([sizes, -sizes])
    for which, activation in (("small", "natural"), ("priors", "sigmoid"), ("large", "natural"), ("deep", "sigmoid")):
        forest = FORESTS[which]
        mixed = values[torch.randint(len(values), (20, forest.num_nodes), generator=rows.seeded(0))]
        flat = values.unsqueeze(-1).expand(-1, forest.num_nodes)
        scores = torch.cat([flat, mixed]).to(dtype).requires_grad_()
        mask = masks(forest, len(scores)) if "mask_mode" in options else None
        dist, other = (ct.MultiCatnat(s, forest, activation, mask=mask, **options) for s in (scores, scores.flip(0)))
        found = {
            "probs": dist.probs,
            "logits": dist.logits,
            "entropy": dist.entropy(),
            "log_prob": dist.log_prob(dist.sample()),
            "log_prob of any": dist.expand(dist.batch_shape).log_prob(classes_of(forest, len(scores))),
            "kl": kl_divergence(dist, other),
            "one-hot": dist.rsample_one_hot(),
        }
        for fact, value in found.items():
            where = f"{fact} of {which}, {activation}"
            assert value.dtype == dtype, where
            assert value.isfinite().all(), where
            for size in (1.0, 50.0):
                assert torch.autograd.grad(size * weighted(value), scores, retain_graph=True)[0].isfinite().all(), where
        if mask is not None:
            assert (dist.probs[~mask] == 0).all()
            assert (dist.logits[~mask] == torch.finfo(dtype).min).all()


# ---- compile and vmap ----


@all_options
@pytest.mark.parametrize("name", ["small", "large", "deep"])
def test_vmap_is_the_batch(name, options):
    forest = FORESTS[name]
    scores, mask = inside(forest, ct.natural(), 5), masks(forest, 5)
    given = {} if not options else {"mask": mask, **options}
    dist = ct.MultiCatnat(scores, forest, **given)
    value = dist.sample()

    def every(s, m, v):
        extra = {} if not options else {"mask": m, **options}
        one = ct.MultiCatnat(s, forest, validate_args=False, **extra)
        return one.probs, one.logits, one.entropy(), one.mode, one.log_prob(v)

    for got, wanted in zip(
        vmap(every)(scores, mask, value), (*facts(dist).values(), dist.log_prob(value)), strict=True
    ):
        rows.assert_close(got, wanted)


@pytest.mark.one_row
@pytest.mark.parametrize(("name", "options"), [("small", "renormalize-T3-unimix"), ("large", "prune")])
def test_one_graph(name, options, fresh_compiler):
    """With a forest that was built outside."""
    forest = FORESTS[name]

    def every(scores, mask, value):
        dist = ct.MultiCatnat(scores, forest, "sigmoid", mask=mask, validate_args=False, **OPTIONS[options])
        return dist.log_prob(value), dist.probs, dist.entropy(), dist.rsample_one_hot()

    scores, mask = inside(forest, ct.sigmoid(), 4).requires_grad_(), masks(forest, 4)
    value = torch.stack([part.int().argmax(-1) for part in mask.split(forest.sizes, -1)], -1)
    got = torch.compile(every, backend="aot_eager", fullgraph=True)(scores, mask, value)
    wanted = every(scores, mask, value)
    for fast, eager in zip(got[:3], wanted[:3], strict=True):
        rows.assert_close(fast, eager)
        rows.assert_close(gradient(fast, scores), gradient(eager, scores), 1e-9, 1e-10)
    for part in got[3].detach().split(forest.sizes, -1):
        rows.assert_close(part.sum(-1), torch.ones(4, dtype=torch.float64))
    rows.assert_close(gradient(got[3], scores), gradient(wanted[3], scores), 1e-9, 1e-10)


@pytest.mark.slow
def test_generated_code(fresh_compiler):
    forest = FORESTS["small"]

    def every(scores, mask, value):
        dist = ct.MultiCatnat(scores, forest, "sigmoid", mask=mask, unimix=0.1, validate_args=False)
        return dist.log_prob(value), dist.entropy()

    scores, mask = inside(forest, ct.sigmoid(), 4).requires_grad_(), masks(forest, 4)
    value = torch.stack([part.int().argmax(-1) for part in mask.split(forest.sizes, -1)], -1)
    got = torch.compile(every, backend="inductor", fullgraph=True)(scores, mask, value)
    for fast, eager in zip(got, every(scores, mask, value), strict=True):
        rows.assert_close(fast, eager)
        rows.assert_close(gradient(fast, scores), gradient(eager, scores), 1e-9, 1e-10)
