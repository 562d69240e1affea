"""The distributions beside torch's own: same shapes, same methods, same errors, same numbers where they must agree."""

from __future__ import annotations

import math

import cases
import pytest
import torch
from only_torch import rows
from torch import Size, Tensor
from torch import distributions as td
from torch.distributions import constraints, kl_divergence

import catnat
import catnat.torch as ct

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")

TREES = [*rows.FEW_TREES.values(), rows.TREES["huffman-100"], rows.TREES["chain-100"]]
KINDS = [ct.natural(), ct.sigmoid(), rows.OWN]
ONE_HOT = [ct.OneHotCatnat, ct.OneHotCatnatStraightThrough]
DISTRIBUTIONS = {
    "Catnat": ct.Catnat,
    "OneHotCatnat": ct.OneHotCatnat,
    "OneHotCatnatStraightThrough": ct.OneHotCatnatStraightThrough,
    "RelaxedOneHotCatnat": lambda scores, *args, **kwargs: ct.RelaxedOneHotCatnat(0.5, scores, *args, **kwargs),
}


def counterpart(dist: td.Distribution) -> td.Distribution:
    """torch's own distribution with the same logits."""
    if isinstance(dist, ct.Catnat):
        return td.Categorical(logits=dist.logits)
    if isinstance(dist, ct.RelaxedOneHotCatnat):
        return td.RelaxedOneHotCategorical(dist.temperature, logits=dist.logits)
    if isinstance(dist, ct.OneHotCatnatStraightThrough):
        return td.OneHotCategoricalStraightThrough(logits=dist.logits)
    return td.OneHotCategorical(logits=dist.logits)


# ---- what they are ----


def test_they_are_subclasses_of_torchs_own():
    scores = torch.zeros(3, 4)
    assert isinstance(ct.Catnat(scores), td.Categorical)
    assert isinstance(ct.OneHotCatnat(scores), td.OneHotCategorical)
    assert isinstance(ct.OneHotCatnatStraightThrough(scores), ct.OneHotCatnat)
    assert isinstance(ct.RelaxedOneHotCatnat(0.5, scores), td.RelaxedOneHotCategorical)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_shapes_flags_and_support_are_those_of_torch(name):
    for tree in TREES:
        for batch in ((), (3,), (2, 3), (1, 4)):
            dist = DISTRIBUTIONS[name](rows.inside(tree, "natural", *batch), tree)
            other = counterpart(dist)
            assert (dist.batch_shape, dist.event_shape) == (other.batch_shape, other.event_shape)
            assert dist.batch_shape == batch
            assert dist.has_rsample == other.has_rsample
            assert dist.has_enumerate_support == other.has_enumerate_support
            assert dist.support.event_dim == other.support.event_dim
            assert dist.support.is_discrete == other.support.is_discrete
            assert dist.logits.shape == dist.probs.shape == (*batch, tree.num_classes)
            for sample_shape in ((), (5,), (2, 1)):
                value = dist.sample(sample_shape)
                assert value.shape == (*sample_shape, *batch, *dist.event_shape)
                assert dist.sample(Size(sample_shape)).shape == value.shape
                assert dist.log_prob(value).shape == (*sample_shape, *batch)
                assert dist.support.check(value).all()
    assert "scores" in dist.arg_constraints


def test_parameters_are_kept():
    tree, kind = catnat.chain(5), ct.sigmoid()
    scores = torch.zeros(2, 4)
    for dist in (build(scores, tree, kind) for build in DISTRIBUTIONS.values()):
        assert dist.scores is scores
        assert dist.tree == tree  # of equal ones the first that came by
        assert dist.activation == kind
        assert "sigmoid" in repr(DISTRIBUTIONS["Catnat"](scores).activation)
    assert ct.Catnat(scores).tree == catnat.balanced(5)
    assert ct.RelaxedOneHotCatnat(0.3, scores).temperature == 0.3


def test_one_hot_support_and_integer_support():
    dist = ct.Catnat(torch.zeros(2, 4))
    assert isinstance(dist.support, type(constraints.integer_interval(0, 4)))
    assert (dist.support.lower_bound, dist.support.upper_bound) == (0, 4)
    assert ct.OneHotCatnat(torch.zeros(2, 4)).support == constraints.one_hot
    assert ct.RelaxedOneHotCatnat(0.5, torch.zeros(2, 4)).support == constraints.simplex


def test_every_score_but_nan_is_valid():
    """sb3-contrib#322 and pytorch#87468: no sum is checked, so no rounding error can make a row of scores invalid."""
    poisoned = torch.zeros(2, 99)
    poisoned[1, 50] = math.nan
    for build in DISTRIBUTIONS.values():
        with pytest.raises(ValueError, match="NaN in 1 of 2 rows"):
            build(poisoned, validate_args=True)
        build(poisoned, validate_args=False)
        for dtype in (torch.float16, torch.bfloat16):  # pytorch#110366: a valid row fails a check in half precision
            dist = build(torch.randn(64, 99, generator=rows.seeded(0)).to(dtype), validate_args=True)
            assert dist.probs.isfinite().all()
    for dist in (build(torch.zeros(3, 4)) for build in DISTRIBUTIONS.values()):
        check = dist.arg_constraints["scores"].check(torch.tensor([[0.0, math.inf], [0.0, math.nan], [-1e38, 1e38]]))
        assert check.tolist() == [True, False, True]


# ---- expand ----


@pytest.mark.parametrize("options", [{}, {"unimix": 0.1}], ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_expand(name, masked, options):
    for tree in TREES:
        for touched in (False, True):
            mask = torch.from_numpy(cases.masks(tree.num_classes, 3)) if masked else None
            dist = DISTRIBUTIONS[name](rows.inside(tree, "natural", 3), tree, mask=mask, **options)
            if touched:
                _ = dist.logits, dist.probs
            wide = dist.expand((4, 2, 3))
            assert type(wide) is type(dist)
            assert wide.batch_shape == (4, 2, 3)
            assert wide.event_shape == dist.event_shape
            assert (wide.tree, wide.activation) == (dist.tree, dist.activation)
            assert wide.scores.shape == (4, 2, 3, tree.num_nodes)
            assert (wide.mask is not None) == masked
            value = wide.sample((5,))
            assert value.shape == (5, 4, 2, 3, *dist.event_shape)
            rows.assert_close(wide.log_prob(value), dist.log_prob(value))
            rows.assert_close(wide.logits, dist.logits.expand(4, 2, 3, -1))
            rows.assert_close(wide.probs, dist.probs.expand(4, 2, 3, -1))
            if name != "RelaxedOneHotCatnat":
                rows.assert_close(wide.entropy(), dist.entropy().expand(4, 2, 3))
            again = wide.expand(Size((7, 4, 2, 3)))
            assert again.log_prob(value[0]).shape == (7, 4, 2, 3)
    single = DISTRIBUTIONS[name](torch.zeros(4), validate_args=False)
    assert single.expand((3,)).sample().shape == (3, *single.event_shape)
    assert single.expand([3])._validate_args is False
    with pytest.raises(RuntimeError):
        DISTRIBUTIONS[name](torch.zeros(3, 4)).expand((2,))


# ---- validation ----


@pytest.mark.parametrize("bad", [-1, 5, 2.5, math.nan])
def test_bad_classes_raise_when_validated(bad):
    value = torch.tensor([0, bad, 1])
    dist = ct.Catnat(torch.zeros(3, 4), validate_args=True)
    with pytest.raises(ValueError, match="support"):
        dist.log_prob(value)


@pytest.mark.parametrize(
    ("build", "value"),
    [
        (ct.Catnat, torch.zeros(2, dtype=torch.int64)),
        (ct.Catnat, 3),
        *[
            (build, torch.tensor(row).expand(3, -1))
            for build in ONE_HOT
            for row in ([0.0] * 4, [0.0] * 5, [1.0, 1, 0, 0, 0], [0.5, 0.5, 0, 0, 0])  # the first is K-1 wide
        ],
        (DISTRIBUTIONS["RelaxedOneHotCatnat"], torch.full((3, 5), 0.5)),
    ],
)
def test_bad_values_raise_when_validated(build, value):
    with pytest.raises(ValueError):
        build(torch.zeros(3, 4), validate_args=True).log_prob(value)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_bad_temperature_raises_when_validated(temperature):
    with pytest.raises(ValueError, match="temperature"):
        ct.RelaxedOneHotCatnat(temperature, torch.zeros(2, 4), validate_args=True)


@pytest.mark.parametrize("options", [{}, {"mask": torch.ones(99, dtype=torch.bool)}])
@pytest.mark.parametrize("tree", [catnat.balanced(99), catnat.huffman(range(1, 100)), catnat.chain(99)])
def test_a_class_that_there_is_not_raises_without_validation_too(tree, options):
    for bad in (-1, -98, 99, 100, 197):  # arithmetic on paths could make classes of them
        with pytest.raises(ValueError, match=rf"holds {bad}"):
            ct.Catnat(torch.zeros(2, 98), tree, validate_args=False, **options).log_prob(torch.tensor([bad, 0]))


def test_without_validation_nothing_is_checked():
    ct.OneHotCatnat(torch.zeros(2, 4), validate_args=False).log_prob(torch.zeros(2, 5))
    ct.RelaxedOneHotCatnat(-1.0, torch.zeros(2, 4), validate_args=False)


def test_torchs_switch_is_obeyed():
    before = td.Distribution._validate_args
    try:
        for setting in (True, False):
            td.Distribution.set_default_validate_args(setting)
            for build in DISTRIBUTIONS.values():
                assert build(torch.zeros(3, 4))._validate_args is setting
                assert build(torch.zeros(3, 4), validate_args=not setting)._validate_args is not setting
    finally:
        td.Distribution.set_default_validate_args(before)


# ---- values ----


@pytest.mark.parametrize("name", ["Catnat", "OneHotCatnat", "OneHotCatnatStraightThrough"])
def test_methods_agree_with_torchs_own(name):
    for tree in TREES:
        for kind in KINDS:
            dist = DISTRIBUTIONS[name](rows.inside(tree, kind, 2, 3, margin=0.2), tree, kind)
            other = counterpart(dist)
            value = other.sample((4,))
            rows.assert_close(dist.log_prob(value), other.log_prob(value))
            rows.assert_close(dist.entropy(), other.entropy())
            rows.assert_close(dist.probs, other.probs)
            rows.assert_close(dist.logits, other.logits)
            rows.assert_equal(dist.mode, other.mode)
            for moment in ("mean", "variance", "stddev"):  # NaN for classes, as torch says
                got, wanted = getattr(dist, moment), getattr(other, moment)
                torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12, equal_nan=name == "Catnat")
            rows.assert_close(dist.perplexity(), other.perplexity())
            rows.assert_close(torch.log_softmax(dist.logits, -1), dist.logits)  # so they are logits
            assert dist.param_shape == other.param_shape


def test_enumerate_support():
    for tree in TREES:
        for batch in ((), (2,), (2, 3)):
            scores = rows.inside(tree, "natural", *batch)
            dist = ct.Catnat(scores, tree)
            for expand in (True, False):
                got = dist.enumerate_support(expand=expand)
                rows.assert_equal(got, counterpart(dist).enumerate_support(expand=expand))
                rows.assert_close(dist.log_prob(got).movedim(0, -1).expand(*batch, -1), dist.logits)
            for build in ONE_HOT:
                hot = build(scores, tree)
                for expand in (True, False):
                    got = hot.enumerate_support(expand=expand)
                    rows.assert_equal(got, counterpart(hot).enumerate_support(expand=expand))
                    rows.assert_close(hot.log_prob(got).movedim(0, -1).expand(*batch, -1), hot.logits)


LOOKS = {
    "plain": {},
    "unimix": {"unimix": 0.1},
    "mask": {"mask": torch.tensor([True, True, True, False])},
    "learned": {"temperature": torch.tensor(2.0, requires_grad=True)},
    "learned and unimix": {"temperature": torch.tensor(2.0, requires_grad=True), "unimix": 0.1},
}


@pytest.mark.parametrize("options", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("build", [ct.Catnat, ct.OneHotCatnatStraightThrough])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_look_without_gradients_leaves_nothing_that_cannot_be_trained(mode, build, options):
    """A rollout computes under no_grad, training computes again: gradients must still flow, to whatever is learned."""
    learns_scores = "temperature" not in options
    scores, weight = torch.tensor([0.3, -0.2, 0.1], requires_grad=learns_scores), torch.ones((), requires_grad=True)
    fixed = build(scores.detach(), **{name: value for name, value in options.items() if name != "temperature"})
    dist, learned = build(scores, **options), options.get("temperature", scores)
    with mode():
        for each in (dist, fixed):
            _ = each.log_prob(each.sample()), each.probs, each.logits, each.entropy(), each.mode
    values = [dist.probs, dist.logits, dist.entropy(), dist.log_prob(dist.sample())]
    for value in [*values, *([dist.rsample()] if dist.has_rsample else [])]:
        (gradient,) = torch.autograd.grad(value.flatten()[0], learned, retain_graph=True)
        assert gradient.isfinite().all()
        assert (gradient != 0).any()
    for value in (fixed.probs, fixed.logits):  # of a fixed distribution, other parameters learn
        torch.autograd.grad((value * weight).sum(), weight)


# ---- KL ----


def every_distribution(scores: Tensor, other: Tensor) -> dict[str, list[td.Distribution]]:
    """Distributions over the same 7 classes, of each kind: same tree, other trees, other activations, torch's own."""
    trees = [None, catnat.chain(7), catnat.huffman([9, 5, 3, 2, 1, 1, 1])]
    logits = ct.log_catnat(other)
    flat = [ct.Catnat(scores, tree, kind) for tree in trees for kind in ("natural", "sigmoid")]
    hot = [build(scores, tree) for build in ONE_HOT for tree in trees]
    return {
        "classes": [*flat, td.Categorical(logits=logits), td.Categorical(probs=logits.exp())],
        "one-hot": [
            *hot,
            td.OneHotCategorical(logits=logits),
            td.OneHotCategoricalStraightThrough(probs=logits.exp()),
        ],
    }


@pytest.mark.parametrize("family", ["classes", "one-hot"])
def test_kl_of_every_pair(family):
    """By definition: sum p (log p - log q), with gradients on both sides."""
    first, second = (rows.inside(catnat.balanced(7), "natural", 3, margin=0.25, seed=seed) for seed in (0, 1))
    first.requires_grad_()
    second.requires_grad_()
    for p in every_distribution(first, first.detach())[family]:
        for q in every_distribution(second, second.detach())[family]:
            got = kl_divergence(p, q)
            wanted = (p.probs * (p.logits - q.logits)).sum(-1)
            assert got.shape == (3,)
            rows.assert_close(got, wanted, 1e-9)
            for scores in (first, second):
                gradients = [
                    torch.autograd.grad(value.sum(), scores, retain_graph=True, allow_unused=True)[0]
                    if value.requires_grad
                    else None
                    for value in (got, wanted)
                ]
                if gradients[1] is None:
                    assert gradients[0] is None
                else:
                    rows.assert_close(*gradients, 1e-8, 1e-10)


def test_kl_needs_the_same_classes():
    p, q = ct.Catnat(torch.zeros(4)), ct.Catnat(torch.zeros(5))
    for pair in ((p, q), (p, td.Categorical(torch.ones(6))), (td.Categorical(torch.ones(6)), p)):
        with pytest.raises(ValueError, match="classes"):
            kl_divergence(*pair)


def test_kl_from_a_categorical_with_impossible_classes():
    """Masked policies write -inf logits; a class that p never takes adds 0, also backward."""
    scores = torch.zeros(3, requires_grad=True)
    masked = torch.tensor([0.0, 0.0, -math.inf, -math.inf])
    for p, q in (
        (td.Categorical(logits=masked), ct.Catnat(scores)),
        (td.OneHotCategorical(logits=masked), ct.OneHotCatnat(scores)),
    ):
        value = kl_divergence(p, q)
        torch.testing.assert_close(value, torch.tensor(math.log(2)))
        (gradient,) = torch.autograd.grad(value, scores)
        assert gradient.isfinite().all()


# ---- straight-through and relaxed ----


def test_relaxed_log_prob_is_torchs():
    for tree in TREES:
        for temperature in (0.3, 1.0, 5.0):
            dist = ct.RelaxedOneHotCatnat(temperature, rows.inside(tree, "natural", 4, margin=0.2), tree)
            value = torch.softmax(torch.randn(4, tree.num_classes, dtype=torch.float64, generator=rows.seeded(0)), -1)
            rows.assert_close(dist.log_prob(value), counterpart(dist).log_prob(value))
            scores = rows.inside(tree, "natural", 4, margin=0.2).requires_grad_()
            dist = ct.RelaxedOneHotCatnat(temperature, scores, tree)
            got, wanted = (
                torch.autograd.grad(x.log_prob(value).sum(), scores, retain_graph=True)[0]
                for x in (dist, counterpart(dist))
            )
            rows.assert_close(got, wanted)


def test_a_relaxation_has_one_temperature_for_all_rows_or_one_each():
    scores, temperatures = rows.inside(catnat.balanced(4), "natural", 4), torch.tensor([0.1, 0.5, 2.0, 9.0]).double()
    dist = ct.RelaxedOneHotCatnat(temperatures, scores)
    value = dist.rsample(generator=rows.seeded(3))
    alone = [ct.RelaxedOneHotCatnat(float(t), row) for t, row in zip(temperatures, scores, strict=True)]
    each = torch.stack([one.log_prob(draw) for one, draw in zip(alone, value, strict=True)])
    torch.testing.assert_close(dist.log_prob(value), each)
    torch.testing.assert_close(dist.expand((2, 4)).log_prob(value), each.expand(2, 4))
    assert (dist.expand((2, 4)).rsample((1000,)).amax(-1).mean((0, 1)).diff() < 0).all()  # a row's own temperature
    assert ct.RelaxedOneHotCatnat(torch.tensor([2.2]), torch.zeros(3)).rsample().shape == (4,)  # as in torch's example
    with pytest.raises(ValueError, match=r"`temperature` has shape \(4,\)"):
        ct.RelaxedOneHotCatnat(temperatures, torch.zeros(2, 3))


def test_a_temperature_for_every_row_of_a_mask():
    """The batch shape is that of scores and mask together."""
    mask, temperatures = torch.tensor([[True, True, False, True]] * 5), torch.linspace(0.5, 3, 5)
    scores = torch.tensor([0.3, -1.0, 0.7])
    got = ct.Catnat(scores, mask=mask, temperature=temperatures).probs
    wanted = [ct.Catnat(scores, mask=mask[0], temperature=float(t)).probs for t in temperatures]
    torch.testing.assert_close(got, torch.stack(wanted))


def test_the_cost_of_a_log_probability_does_not_depend_on_earlier_calls(monkeypatch):
    """With natural, entropy keeps a table without floors, from which `log_prob` cannot read."""
    policy, value = ct.Catnat(torch.zeros(2, 99), activation="natural"), torch.tensor([3, 40])
    wanted = policy.log_prob(value)
    policy.entropy()
    monkeypatch.setattr(ct.Catnat, "log_probs", lambda *_, **__: pytest.fail("all classes are computed"))
    torch.testing.assert_close(policy.log_prob(value), wanted)
