"""MultiCatnat in torch: support, other distributions, dtypes, vmap and compilation."""

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
    "priors": catnat.Forest([catnat.balanced(5).with_prior([1, 4, 0.5, 2, 1]), catnat.huffman(cases.zipf(20)), 7]),
    "large": catnat.Forest([catnat.huffman(cases.zipf(90)), 100, 1, 40, 100]),  # walked
    "deep": catnat.Forest([catnat.chain(75), 3, cases.tree_case("caterpillar-75").tree]),  # too deep to walk
}
OPTIONS: dict[str, dict[str, Any]] = {"plain": {}, "mixed": {"temperature": 0.4, "unimix": 0.05}}
all_forests = pytest.mark.parametrize("forest", FORESTS.values(), ids=FORESTS.keys())
all_options = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
masked = pytest.mark.parametrize("masked", [False, True])


def inside(forest: catnat.Forest, *batch: int, activation: str = "natural") -> Tensor:
    """Random scores well inside every node's band."""
    return torch.cat([rows.inside(tree, activation, *batch, seed=n) for n, tree in enumerate(forest.trees)], -1)


def masks(forest: catnat.Forest, count: int) -> Tensor:
    """Masks that leave each variable at least one class, of all sizes."""
    parts = [torch.from_numpy(cases.masks(size, count, n)) for n, size in enumerate(forest.sizes)]
    return torch.cat([part.roll(n, 0) for n, part in enumerate(parts)], -1)


def facts(dist: ct.MultiCatnat, value: Tensor) -> dict[str, Tensor]:
    found = {"probs": dist.probs, "logits": dist.logits, "entropy": dist.entropy(), "mode": dist.mode}
    return found | {"log_prob": dist.log_prob(value)}


def gradient(value: Tensor, scores: Tensor) -> Tensor:
    """Of a loss that tells the entries apart; of logits, only of valid classes."""
    weights = torch.linspace(-1, 2, value.numel(), dtype=value.dtype).view(value.shape)
    loss = (torch.where(value < torch.finfo(value.dtype).min / 4, 0.0, value) * weights).sum()
    return torch.autograd.grad(loss, scores, retain_graph=True)[0]


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


# ---- values that are not in the support ----

SCORES = torch.zeros(2, 6)
TREES = [3, 2, catnat.chain(4)]


@all_options
@masked
@all_forests
def test_a_class_that_one_variable_has_not_is_no_class_of_the_next(forest, masked, options):
    mask = masks(forest, 2) if masked else None
    dist = ct.MultiCatnat(inside(forest, 2), forest, mask=mask, validate_args=False, **options)
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


def test_kl_needs_the_same_variables():
    p = ct.MultiCatnat(torch.zeros(2, 12), [5, 9])
    for trees, text in (([9, 5], r"\(5, 9\).*\(9, 5\)"), ([5, catnat.chain(9)], "`p` and `q`.*equal")):
        with pytest.raises(ValueError, match=text):
            kl_divergence(p, ct.MultiCatnat(torch.zeros(2, 12), trees))


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
@masked
@all_forests
def test_hostile_scores_in_every_dtype(forest, masked, options, activation, dtype):
    largest = torch.finfo(dtype).max
    sizes = torch.tensor([0.0, 1e-40, 1e-8, 1.0, math.pi, 1e4, min(1e30, largest), largest], dtype=torch.float64)
    values = torch.cat([sizes, -sizes])
    mixed = values[torch.randint(len(values), (20, forest.num_nodes), generator=rows.seeded(0))]
    flat = values.unsqueeze(-1).expand(-1, forest.num_nodes)
    scores = torch.cat([flat, mixed]).to(dtype).requires_grad_()
    how = options | ({"mask": masks(forest, len(scores))} if masked else {})
    dist, other = (ct.MultiCatnat(s, forest, activation, **how) for s in (scores, scores.flip(0)))
    found = facts(dist, dist.sample()) | {
        "log_prob of any": dist.log_prob(other.sample()),
        "kl": kl_divergence(dist, other),
        "one-hot": dist.rsample_one_hot(),
    }
    del found["mode"]
    for fact, value in found.items():
        assert value.dtype == dtype, fact
        assert (value.isfinite() | (value.isposinf() if fact == "kl" and masked else False)).all(), fact
        assert gradient(50 * value, scores).isfinite().all(), fact


@all_options
@all_forests
def test_vmap_is_the_batch(forest, options):
    scores, mask = inside(forest, 5), masks(forest, 5)
    dist = ct.MultiCatnat(scores, forest, mask=mask, **options)
    value = dist.sample()

    def every(s, m, v):
        return facts(ct.MultiCatnat(s, forest, mask=m, validate_args=False, **options), v)

    found = vmap(every)(scores, mask, value)
    for name, wanted in facts(dist, value).items():
        rows.assert_close(found[name], wanted)
