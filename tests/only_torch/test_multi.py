"""MultiCatnat: N variables of different sizes at once are what a loop over N distributions is."""

from __future__ import annotations

import math
from typing import Any

import cases
import pytest
import torch
from only_torch import rows
from only_torch.test_hostile_inputs import DTYPES
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
    "equal-in-any-order": catnat.Forest([3, 32, 3, catnat.chain(5), 32, 3]),
    "large": catnat.Forest([catnat.huffman(cases.zipf(90)), 100, 1, 40, 100]),  # walked
    "deep": catnat.Forest([catnat.chain(75), 3, cases.tree_case("caterpillar-75").tree]),  # too deep to walk
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "masked": {"masked": True},
    "mixed": {"temperature": 1.5, "unimix": 0.2},
    "masked-mixed": {"masked": True, "temperature": 0.4, "unimix": 0.05},
}

all_forests = pytest.mark.parametrize("forest", FORESTS.values(), ids=FORESTS.keys())
some_forests = pytest.mark.parametrize("forest", [FORESTS[name] for name in ("small", "large", "deep")])
all_options = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())


# ---- the loop ----


def inside(forest: catnat.Forest, *batch: int, activation: str = "natural", seed: int = 0) -> Tensor:
    """Random scores well inside every node's band."""
    parts = [rows.inside(tree, activation, *batch, seed=seed + n) for n, tree in enumerate(forest.trees)]
    return torch.cat(parts, -1)


def masks(forest: catnat.Forest, *batch: int, seed: int = 0) -> Tensor:
    """Masks that leave each variable at least one class, of all sizes."""
    count = math.prod(batch)
    parts = [torch.from_numpy(cases.masks(size, count, seed + n)) for n, size in enumerate(forest.sizes)]
    return torch.cat([part.roll(n, 0) for n, part in enumerate(parts)], -1).view(*batch, -1)


def given(forest: catnat.Forest, options: dict[str, Any], *batch: int, seed: int = 0) -> dict[str, Any]:
    """The options as a distribution takes them, with a mask if they say so."""
    rest = {name: value for name, value in options.items() if name != "masked"}
    return {"mask": masks(forest, *batch, seed=seed), **rest} if "masked" in options else rest


def loop(scores: Tensor, forest: catnat.Forest, activation: Any = "natural", **options: Any) -> list[ct.Catnat]:
    """A distribution for each variable."""
    parts, mask = scores.split([tree.num_nodes for tree in forest.trees], -1), options.pop("mask", None)
    valid = [None] * len(parts) if mask is None else mask.split(forest.sizes, -1)
    return [
        ct.Catnat(part, tree, activation, mask=m, **options)
        for part, tree, m in zip(parts, forest.trees, valid, strict=True)
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


def gradient(value: Tensor, scores: Tensor) -> Tensor:
    """Of a loss that tells the entries apart; of logits, only of valid classes."""
    if not value.requires_grad:  # single classes have no scores
        return torch.zeros_like(scores)
    weights = torch.linspace(-1, 2, value.numel(), dtype=value.dtype).view(value.shape)
    loss = (torch.where(value < -1e30, 0.0, value) * weights).sum()
    return torch.autograd.grad(loss, scores, retain_graph=True)[0]


def classes_of(forest: catnat.Forest, *shape: int) -> Tensor:
    draws = [torch.randint(size, shape, generator=rows.seeded(n)) for n, size in enumerate(forest.sizes)]
    return torch.stack(draws, -1)


def assert_like_the_loop(dist: ct.MultiCatnat, dists: list[ct.Catnat], scores: Tensor) -> None:
    """Values and gradients of all there is."""
    forest, batch = dist.forest, dist.batch_shape
    for shape in (batch, (4, *batch)):
        value = classes_of(forest, *shape)
        each = [one.log_prob(part) for one, part in zip(dists, value.unbind(-1), strict=True)]
        masked = torch.stack([part <= torch.finfo(part.dtype).min for part in each], -1).any(-1)
        found = dist.log_prob(value)
        assert found.shape == shape
        rows.assert_close(found[~masked], total(each)[~masked], 1e-12, 1e-12)
        assert (found[masked] == torch.finfo(found.dtype).min).all()
        chosen = torch.where(masked, 0.0, found), torch.where(masked, 0.0, total(each))
        rows.assert_close(*(gradient(value, scores) for value in chosen), 1e-9, 1e-10)
    for name, value in looped_facts(dists).items():
        got = facts(dist)[name]
        rows.assert_close(got, value, 1e-12, 1e-12)
        if name != "mode":
            rows.assert_close(gradient(got, scores), gradient(value, scores), 1e-9, 1e-10)


@pytest.mark.parametrize("batch", [(5,), (), (2, 3)], ids=str)
@pytest.mark.parametrize("activation", ["natural", "sigmoid"])
@all_forests
@all_options
def test_equal_to_a_loop(forest, options, activation, batch):
    scores = inside(forest, *batch, activation=activation).requires_grad_()
    how = given(forest, options, *batch)
    dist = ct.MultiCatnat(scores, forest, activation, **how)
    assert (dist.batch_shape, dist.event_shape) == (batch, (len(forest.trees),))
    dists = loop(scores, forest, activation, **how)
    assert_like_the_loop(dist, dists, scores)
    if not options:
        rows.assert_close(dist.fisher_diagonal(), torch.cat([one.fisher_diagonal() for one in dists], -1), 1e-12)


@some_forests
def test_masks_and_scores_are_broadcast(forest):
    scores, mask = inside(forest), masks(forest, 4)
    dist = ct.MultiCatnat(scores, forest, mask=mask)
    full = ct.MultiCatnat(scores.expand(4, -1), forest, mask=mask)
    one_mask = ct.MultiCatnat(scores.expand(4, -1), forest, mask=mask[2])
    assert dist.batch_shape == (4,)
    assert dist.scores.shape == (4, forest.num_nodes)
    for fact in facts(dist):
        rows.assert_equal(facts(dist)[fact], facts(full)[fact])
        rows.assert_close(facts(one_mask)[fact][1], facts(full)[fact][2], 1e-12)


@pytest.mark.parametrize("masked", [False, True])
@some_forests
def test_temperatures_of_the_batch_shape(forest, masked):
    temperature = torch.tensor([[0.4, 0.7, 1.0], [1.5, 3.0, 9.0]], dtype=torch.float64)
    scores = inside(forest, 2, 3).requires_grad_()
    how = given(forest, {"masked": True} if masked else {}, 2, 3) | {"temperature": temperature, "unimix": 0.05}
    assert_like_the_loop(ct.MultiCatnat(scores, forest, "natural", **how), loop(scores, forest, **how), scores)


def test_lists_tuples_and_forests_are_the_same():
    scores = torch.randn(2, 10)
    wanted = ct.MultiCatnat(scores, catnat.Forest([3, catnat.chain(4), 6]))
    for trees in ([3, catnat.chain(4), 6], (catnat.balanced(3), catnat.chain(4), catnat.balanced(6))):
        dist = ct.MultiCatnat(scores, trees)
        assert dist.forest == wanted.forest
        rows.assert_equal(dist.probs, wanted.probs)
    assert [part.shape for part in wanted.split(wanted.probs)] == [(2, 3), (2, 4), (2, 6)]
    rows.assert_equal(torch.cat(wanted.split(wanted.probs), -1), wanted.probs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@some_forests
def test_log_prob_of_masked_classes(forest, dtype):
    """The least finite number, even where several variables take a masked class; and no gradient."""
    scores = inside(forest, 4).to(dtype).requires_grad_()
    first = torch.cat([(torch.arange(size) == 0) & (size > 1) for size in forest.sizes])
    valid = torch.tensor([size - 1 for size in forest.sizes])
    value = torch.stack([torch.zeros_like(valid), torch.where(torch.arange(len(valid)) == 1, 0, valid), valid])
    dist = ct.MultiCatnat(scores, forest, "natural", mask=~first)
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
        rows.chi_square(draws[:, n] * len(second) + draws[:, n + 1], torch.outer(first, second).flatten())


@all_forests
@all_options
def test_draws_have_the_probabilities_of_the_loop(forest, options):
    """With and without a sample shape, which are drawn in different ways."""
    scores = inside(forest, 1)
    how = {name: value[3:4] if name == "mask" else value for name, value in given(forest, options, 5).items()}
    dist, dists = ct.MultiCatnat(scores, forest, "natural", **how), loop(scores, forest, **how)
    many = dist.sample((6000,), generator=rows.seeded(0))
    assert many.dtype == torch.long
    assert many.shape == (6000, 1, len(forest.trees))
    check_draws(many.squeeze(1), dists)
    copied = dist.expand((3, 1000)).sample(generator=rows.seeded(1))
    assert copied.shape == (3, 1000, len(forest.trees))
    check_draws(copied.flatten(0, 1), dists)
    if "mask" in how:
        assert not (dist.one_hot(many).bool() & ~how["mask"]).any()


def test_the_generator_decides():
    for forest in FORESTS.values():
        dist = ct.MultiCatnat(inside(forest, 20), forest, unimix=0.1)
        for shape in ((), (7,)):
            first, again = (dist.sample(shape, generator=rows.seeded(1)) for _ in range(2))
            rows.assert_equal(first, again)
            hot = dist.rsample_one_hot(shape, generator=rows.seeded(1))
            rows.assert_equal(hot, dist.one_hot(first))
            if forest.num_nodes:
                assert (first != dist.sample(shape, generator=rows.seeded(2))).any()


# ---- one-hot ----


@all_forests
@all_options
def test_straight_through(forest, options):
    """Forward one-hot vectors, backward the gradient of the loop's probabilities."""
    scores, how = inside(forest, 5).requires_grad_(), given(forest, options, 5)
    dist = ct.MultiCatnat(scores, forest, "natural", **how)
    hot, drawn = (draw((3,), generator=rows.seeded(0)) for draw in (dist.rsample_one_hot, dist.sample))
    wanted = [
        torch.nn.functional.one_hot(part, size) for part, size in zip(drawn.unbind(-1), forest.sizes, strict=True)
    ]
    rows.assert_equal(dist.one_hot(drawn), torch.cat(wanted, -1).double())
    rows.assert_close(hot.detach(), torch.cat(wanted, -1).double(), atol=1e-15)
    probs = looped_facts(loop(scores, forest, **how))["probs"].expand(3, -1, -1)
    rows.assert_close(gradient(hot, scores), gradient(probs, scores), 1e-9, 1e-11)
    if "mask" in how:
        assert (hot[~how["mask"].expand(3, -1, -1)] == 0).all()


# ---- divergences ----


@all_forests
@all_options
def test_kl_is_the_sum_over_variables(forest, options):
    p_scores, q_scores = (inside(forest, 5, seed=seed).requires_grad_() for seed in (0, 50))
    p_how, q_how = (given(forest, options, 5, seed=seed) for seed in (0, 9))
    if "mask" in q_how:
        q_how["mask"] = q_how["mask"] | p_how["mask"]
    p, q = (ct.MultiCatnat(s, forest, "natural", **how) for s, how in ((p_scores, p_how), (q_scores, q_how)))
    pairs = zip(loop(p_scores, forest, **p_how), loop(q_scores, forest, **q_how), strict=True)
    got, wanted = kl_divergence(p, q), total([kl_divergence(*pair) for pair in pairs])
    rows.assert_close(got, wanted, 1e-11)
    for scores in (p_scores, q_scores):
        rows.assert_close(gradient(got, scores), gradient(wanted, scores), 1e-9, 1e-10)
    rows.assert_equal(kl_divergence(p, p), torch.zeros(5, dtype=torch.float64))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kl_is_infinite_where_a_variable_is_forbidden_what_it_can_take(dtype):
    p_mask = torch.tensor([[1, 1, 0, 1, 1], [1, 1, 0, 1, 0], [1, 0, 0, 1, 1]]).bool()
    q_mask = torch.tensor([[1, 1, 0, 1, 0], [1, 1, 1, 1, 0], [1, 1, 0, 1, 1]]).bool()
    p_scores, q_scores = (torch.randn(3, 3).to(dtype).requires_grad_() for _ in range(2))
    p, q = ct.MultiCatnat(p_scores, [3, 2], mask=p_mask), ct.MultiCatnat(q_scores, [3, 2], mask=q_mask)
    got = kl_divergence(p, q)
    assert got.dtype == dtype
    assert got.isinf().tolist() == [True, False, False]
    for scores in (p_scores, q_scores):
        assert torch.autograd.grad(got.sum(), scores, retain_graph=True)[0].isfinite().all()


def test_kl_needs_the_same_variables():
    p = ct.MultiCatnat(torch.zeros(2, 12), [5, 9])
    for trees, text in (([9, 5], r"\(5, 9\).*\(9, 5\)"), ([5, catnat.chain(9)], "`p` and `q`.*equal")):
        with pytest.raises(ValueError, match=text):
            kl_divergence(p, ct.MultiCatnat(torch.zeros(2, 12), trees))


# ---- shapes ----


@all_forests
def test_shapes(forest):
    count = len(forest.trees)
    for batch in ((), (3,), (2, 3), (0,), (2, 0)):
        for options in ({}, {"mask": torch.ones(*batch, forest.num_classes).bool(), "unimix": 0.1, "temperature": 2.0}):
            dist = ct.MultiCatnat(torch.zeros(*batch, forest.num_nodes), forest, **options)
            assert dist.probs.shape == dist.logits.shape == (*batch, forest.num_classes)
            assert dist.mode.shape == (*batch, count)
            assert dist.entropy().shape == kl_divergence(dist, dist).shape == batch
            for shape in ((), (4,), (2, 1), (0,)):
                draws = dist.sample(shape)
                assert draws.shape == (*shape, *batch, count)
                assert dist.log_prob(draws).shape == (*shape, *batch)
                assert dist.rsample_one_hot(shape).shape == (*shape, *batch, forest.num_classes)


@some_forests
@all_options
def test_expand(forest, options):
    dist = ct.MultiCatnat(inside(forest, 3), forest, "natural", **given(forest, options, 3))
    wide = dist.expand((2, 3))
    assert isinstance(wide, ct.MultiCatnat)
    assert wide.batch_shape == (2, 3)
    for fact in facts(dist):
        rows.assert_close(facts(wide)[fact], facts(dist)[fact].expand(2, *facts(dist)[fact].shape), 1e-13)
    value = wide.sample((4,))
    rows.assert_close(wide.log_prob(value), dist.log_prob(value), 1e-12)


def test_other_distributions_of_torch_accept_it():
    forest = FORESTS["small"]
    dist = ct.MultiCatnat(inside(forest, 4, 3), forest)
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


@all_options
@some_forests
def test_a_class_that_one_variable_has_not_is_no_class_of_the_next(forest, options):
    dist = ct.MultiCatnat(inside(forest, 2), forest, validate_args=False, **given(forest, options, 2))
    for n, size in enumerate(forest.sizes):
        for bad in (-1, size):
            value = torch.zeros(2, len(forest.sizes), dtype=torch.int64)
            value[1, n] = bad
            with pytest.raises((ValueError, IndexError, RuntimeError), match=rf"holds {bad}|out of|not one of"):
                dist.log_prob(value)


def test_support():
    dist = ct.MultiCatnat(SCORES, TREES)
    values = torch.tensor([[0, 0, 0], [2, 1, 3], [3, 0, 0], [0, 2, 0], [0, 0, 4], [-1, 0, 0]])
    assert dist.support.check(values).tolist() == [True, True, False, False, False, False]
    assert dist.support.event_dim == 1
    assert dist.support.is_discrete
    assert not dist.support.check(torch.tensor([0.5, 0.0, 0.0]))
    for value in values[2:]:
        with pytest.raises(ValueError, match="support"):
            dist.log_prob(value)
    for value in (torch.zeros(2, 2), torch.zeros(4), torch.tensor(0)):  # of other variables
        with pytest.raises(ValueError):
            dist.log_prob(value.long())


@pytest.mark.parametrize(
    ("error", "text", "arguments", "options"),
    [
        (ValueError, r"`scores` has 7 entries.*6 nodes.*not K", (torch.zeros(2, 7), TREES), {}),
        (ValueError, r"`scores`.*\(9 variables\)", (torch.zeros(2), [2] * 9), {}),
        (TypeError, r"`scores`", (torch.zeros(2, 6).long(), TREES), {}),
        (TypeError, r"torch.as_tensor\(scores\)", ([0.0] * 6, TREES), {}),
        (ValueError, "`trees`", (SCORES, []), {}),
        (ValueError, "at least 1 class", (SCORES, [3, 0, 4]), {}),
        (TypeError, "`trees`", (SCORES, 7), {}),
        (TypeError, "`trees`", (SCORES, catnat.balanced(7)), {}),
        (TypeError, "`activation`", (SCORES, TREES, 3), {}),
        (ValueError, "`activation`", (SCORES, TREES, "relu"), {}),
        (TypeError, "`mask`.*boolean", (SCORES, TREES), {"mask": torch.tensor([0, 1, 2])}),
        (TypeError, r"torch.as_tensor\(mask\)", (SCORES, TREES), {"mask": [True] * 9}),
        (ValueError, "`mask` has 8 entries.*9", (SCORES, TREES), {"mask": torch.ones(8).bool()}),
        (ValueError, "`mask` leaves no valid class", (SCORES, TREES), {"mask": torch.arange(9) < 5}),
        (ValueError, "`unimix`", (SCORES, TREES), {"unimix": 1.5}),
        (ValueError, "`temperature`", (SCORES, TREES), {"temperature": 0.0}),
        (ValueError, "`temperature`", (SCORES, TREES), {"temperature": torch.tensor([1.0, math.nan])}),
        (ValueError, "`temperature` has shape", (SCORES, TREES), {"temperature": torch.ones(3)}),
    ],
)
def test_errors(error, text, arguments, options):
    with pytest.raises(error, match=text):
        ct.MultiCatnat(*arguments, **options)


@pytest.mark.parametrize("name", ["masked", "mixed"])
def test_a_full_fisher_matrix_is_refused(name):
    how = given(catnat.Forest(TREES), OPTIONS[name], 2)
    with pytest.raises(ValueError, match="not diagonal"):
        ct.MultiCatnat(SCORES, TREES, **how).fisher_diagonal()


def test_a_variable_without_valid_class_is_unmasked_where_nothing_can_be_checked():
    forest = catnat.Forest(TREES)
    mask = torch.tensor([[True, False, True, False, False, True, False, False, True], [True] * 9])
    scores, fixed = inside(forest, 2), mask | (torch.arange(9) >= 3) & (torch.arange(9) < 5)
    wanted = ct.MultiCatnat(scores, forest, mask=fixed).probs
    rows.assert_equal(ct.MultiCatnat(scores, forest, mask=mask, validate_args=False).probs, wanted)
    rows.assert_close(vmap(lambda s, m: ct.MultiCatnat(s, forest, mask=m).probs)(scores, mask), wanted)


# ---- dtypes and hostile scores, compile and vmap ----


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ["natural", "sigmoid"])
@all_options
def test_hostile_scores_in_every_dtype(dtype, options, activation):
    largest = torch.finfo(dtype).max
    sizes = torch.tensor([0.0, 1e-40, 1e-8, 1.0, math.pi, 1e4, min(1e30, largest), largest], dtype=torch.float64)
    values = torch.cat([sizes, -sizes])
    for which in ("small", "priors", "large", "deep"):
        forest = FORESTS[which]
        mixed = values[torch.randint(len(values), (20, forest.num_nodes), generator=rows.seeded(0))]
        flat = values.unsqueeze(-1).expand(-1, forest.num_nodes)
        scores = torch.cat([flat, mixed]).to(dtype).requires_grad_()
        how = given(forest, options, len(scores))
        dist, other = (ct.MultiCatnat(s, forest, activation, **how) for s in (scores, scores.flip(0)))
        found = {
            "log_prob of any": dist.log_prob(classes_of(forest, len(scores))),
            "log_prob": dist.log_prob(dist.sample()),
            "probs": dist.probs,
            "logits": dist.logits,
            "entropy": dist.entropy(),
            "kl": kl_divergence(dist, other),
            "one-hot": dist.rsample_one_hot(),
        }
        for fact, value in found.items():
            assert value.dtype == dtype, f"{fact} of {which}"
            assert value.isfinite().all(), f"{fact} of {which}"
            assert gradient(50 * value, scores).isfinite().all(), f"{fact} of {which}"


@all_options
@some_forests
def test_vmap_is_the_batch(forest, options):
    scores, how = inside(forest, 5), given(forest, options, 5)
    mask = how.pop("mask", torch.ones(5, forest.num_classes, dtype=torch.bool))
    dist = ct.MultiCatnat(scores, forest, mask=mask, **how)
    value = dist.sample()

    def every(s, m, v):
        one = ct.MultiCatnat(s, forest, mask=m, validate_args=False, **how)
        return *facts(one).values(), one.log_prob(v)

    wanted = (*facts(dist).values(), dist.log_prob(value))
    for got, each in zip(vmap(every)(scores, mask, value), wanted, strict=True):
        rows.assert_close(got, each)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_one_graph(backend, fresh_compiler):
    """With a forest that was built outside."""
    forest = FORESTS["small"]

    def every(scores, mask, value):
        dist = ct.MultiCatnat(scores, forest, mask=mask, temperature=3.0, unimix=0.1, validate_args=False)
        return dist.log_prob(value), dist.probs, dist.entropy(), dist.rsample_one_hot()

    scores, mask = inside(forest, 4, activation="sigmoid").requires_grad_(), masks(forest, 4)
    value = torch.stack([part.int().argmax(-1) for part in mask.split(forest.sizes, -1)], -1)
    got, wanted = torch.compile(every, backend=backend, fullgraph=True)(scores, mask, value), every(scores, mask, value)
    for place, (fast, eager) in enumerate(zip(got, wanted, strict=True)):
        if place < 3:
            rows.assert_close(fast, eager)
        rows.assert_close(gradient(fast, scores), gradient(eager, scores), 1e-9, 1e-10)
    for part in got[3].detach().split(forest.sizes, -1):
        rows.assert_close(part.sum(-1), torch.ones(4, dtype=torch.float64))
