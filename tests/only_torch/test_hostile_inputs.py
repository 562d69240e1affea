"""Zero, denormal, edge, enormous: no NaN, and no inf, in any value, gradient or second-order gradient."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from only_torch import rows
from only_torch.functions import DISTRIBUTIONS, FUNCTIONS, Function, straight_through
from torch import Tensor

import catnat
import catnat.torch as ct
from catnat.torch import _walk

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


# ---- the inputs ----


def neighbours(values: Tensor) -> list[Tensor]:
    """The values themselves and one ulp to either side."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    away = torch.where(values == 0, values, (values.view(bits) + 1).view(values.dtype))
    towards = torch.where(values == 0, values, (values.view(bits) - 1).view(values.dtype))
    return [values, away, towards]


def hostile(tree: catnat.Tree, activation: ct.Activation, dtype: torch.dtype) -> Tensor:
    """Rows of scores that have hurt somebody: each special value at every node, then mixtures of them."""
    limits = torch.finfo(dtype)
    smallest = limits.smallest_normal * limits.eps  # the smallest denormal
    sizes = [0.0, smallest, limits.smallest_normal / 2, limits.tiny, limits.eps, 1.0, 1e4, limits.max / 2, limits.max]
    flat = torch.tensor([[size, -size] for size in sizes], dtype=torch.float64).flatten().to(dtype)
    special = [flat.unsqueeze(-1).expand(-1, tree.num_nodes)]
    low, high = rows.bounds(tree, activation)
    for edge in (low, high):
        at = torch.as_tensor(np.clip(edge, limits.min, limits.max)).to(dtype)
        special.append(torch.stack(neighbours(at)))
    grid = torch.cat(special)
    picks = torch.randint(len(grid), (40, tree.num_nodes), generator=rows.seeded(0))
    mixed = grid.gather(0, picks)
    usual = torch.randn(40, tree.num_nodes, generator=rows.seeded(1)).to(dtype)
    keep = torch.rand(40, tree.num_nodes, generator=rows.seeded(2)) < 0.5
    found = torch.cat([grid, mixed, torch.where(keep, mixed, usual)])
    assert found.isfinite().all()
    return found


# ---- every function ----


def assert_tame(function: Function, scores: Tensor, tree: catnat.Tree, activation: ct.Activation) -> None:
    """Value, gradient and second-order gradient are finite; upstream gradients are 1, or 1 and -1."""
    scores = scores.detach().clone().requires_grad_()
    value = function(scores, tree, activation)
    assert value.dtype == scores.dtype
    blame(value, scores, "value")
    if not value.requires_grad:  # nothing depends on the scores: one class
        return
    for upstream in (torch.ones_like(value), signs(value)):
        (gradient,) = torch.autograd.grad(value, scores, upstream, create_graph=True)
        assert gradient.dtype == scores.dtype
        blame(gradient, scores, "gradient")
        if not gradient.requires_grad:  # linear in the scores
            continue
        for again in (torch.ones_like(gradient), signs(gradient)):
            (second,) = torch.autograd.grad(gradient, scores, again, retain_graph=True, allow_unused=True)
            if second is not None:
                blame(second, scores, "second-order gradient")


def signs(like: Tensor) -> Tensor:
    coins = torch.rand(like.shape, generator=rows.seeded(5)) < 0.5
    return torch.where(coins, 1.0, -1.0).to(like.dtype)


def blame(values: Tensor, scores: Tensor, what: str) -> None:
    """Name the first row of scores whose result is not finite."""
    bad = ~values.detach().isfinite()
    if not bad.any():
        return
    where = bad.nonzero()[0].tolist()
    count = f"{int(bad.sum())} of {bad.numel()} entries of the {what} are not finite"
    raise AssertionError(f"{count}: the first is {values[tuple(where)]} at {where}; scores of {scores.dtype}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tree", rows.FEW_TREES.values(), ids=rows.FEW_TREES)
@pytest.mark.parametrize("functions", [FUNCTIONS, DISTRIBUTIONS], ids=["functions", "distributions"])
@pytest.mark.parametrize("activation", rows.ACTIVATIONS)
def test_values_and_gradients_stay_finite(activation, functions, tree, dtype):
    check_all(functions, tree, dtype, [activation])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tree", rows.TREES.values(), ids=rows.TREES)
def test_values_and_gradients_stay_finite_on_every_tree(tree, dtype):
    check_all({**FUNCTIONS, **DISTRIBUTIONS}, tree, dtype)


@pytest.mark.one_row
@pytest.mark.parametrize("tree", rows.FEW_TREES.values(), ids=rows.FEW_TREES)
def test_strict_modes_have_nothing_to_object_to(tree, strict_torch):
    """No NaN in the backward pass, not even one that a later product would hide; and all of it deterministic."""
    check_all(FUNCTIONS, tree, torch.float32, rows.FEW_ACTIVATIONS)


@pytest.fixture
def strict_torch():
    torch.use_deterministic_algorithms(True)
    torch.autograd.set_detect_anomaly(True)
    yield
    torch.autograd.set_detect_anomaly(False)
    torch.use_deterministic_algorithms(False)


@pytest.mark.one_row
@pytest.mark.parametrize("tree", rows.FEW_TREES.values(), ids=rows.FEW_TREES)
def test_subnormal_numbers_may_be_flushed_to_zero(tree, subnormals_as_zero):
    """As ``torch.set_flush_denormal`` has it, which makes some trainings on a CPU twice as fast."""
    assert torch.tensor(torch.finfo(torch.float32).tiny) / 2 == 0
    check_all({**FUNCTIONS, **DISTRIBUTIONS}, tree, torch.float32)


@pytest.fixture
def subnormals_as_zero():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot")
    yield
    torch.set_flush_denormal(False)


def check_all(
    functions: dict[str, Function], tree: catnat.Tree, dtype: torch.dtype, activations: Iterable[str] = rows.ACTIVATIONS
) -> None:
    """Every function and activation; all failures are named, not only the first."""
    faults = []
    for name in activations:
        activation = rows.ACTIVATIONS[name]
        scores = hostile(tree, activation, dtype)
        for label, function in functions.items():
            try:
                assert_tame(function, scores, tree, activation)
            except AssertionError as fault:
                faults.append(f"{label}, {name}: {fault}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_prior_of_twenty_orders_of_magnitude(dtype):
    tree = catnat.balanced(8).with_prior([1e6, 1.0, 1e-6, 30.0, 1e-12, 1.0, 1e3, 1e9])
    check_all(FUNCTIONS, tree, dtype)


@pytest.mark.parametrize("rare", [1e-10, 1e-20, 1e-200])
def test_a_rare_class_may_stand_on_either_side(rare):
    """On the no side too, where the probability of yes rounds to 1; and NumPy has nothing to warn of."""
    zero = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    for prior in ([1.0, rare], [rare, 1.0]):
        tree = catnat.balanced(2).with_prior(prior)
        with np.errstate(all="raise", under="ignore"):
            found = ct.log_catnat(zero, tree)
        np.testing.assert_allclose(found.detach(), np.log(prior) - np.log1p(rare), rtol=1e-12)
        moves = torch.autograd.grad(found[int(prior[0] == 1.0)], zero)[0].abs()
        torch.testing.assert_close(moves, torch.ones(1, dtype=torch.float64))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tree", rows.TREES.values(), ids=rows.TREES)
def test_draws_are_possible_classes(tree, dtype):
    """Also pytorch#192812: half precision must not draw classes of probability 0."""
    for activation in rows.ACTIVATIONS.values():
        scores = hostile(tree, activation, dtype)
        possible = ct.catnat(scores.double(), tree, activation) > 0
        drawn = ct.sample(scores, tree, activation, sample_shape=(7,), generator=rows.seeded(0))
        assert drawn.shape == (7, len(scores))
        assert drawn.dtype == torch.int64
        assert ((drawn >= 0) & (drawn < tree.num_classes)).all()
        assert possible.expand(7, -1, -1).gather(-1, drawn.unsqueeze(-1)).all()
        best = ct.mode(scores, tree, activation)
        assert possible.gather(-1, best.unsqueeze(-1)).all()
        k = min(tree.num_classes, 5)
        several = ct.sample_without_replacement(scores, k, tree, activation, generator=rows.seeded(1))
        assert several.shape == (len(scores), k)
        assert ((several >= 0) & (several < tree.num_classes)).all()
        assert (several.sort().values.diff() > 0).all(), "a class was drawn twice"
        # Impossible classes only come after all possible ones.
        ok = possible.gather(-1, several)
        assert (ok.sum(-1) >= possible.sum(-1).clamp(max=k)).all()
        hot = ct.OneHotCatnat(scores, tree, activation).sample(generator=rows.seeded(2))
        assert (hot.sum(-1) == 1).all()
        assert possible.gather(-1, hot.argmax(-1, keepdim=True)).all()


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24])
@pytest.mark.parametrize("classes", [4, 100])
@pytest.mark.parametrize("count", [1, 10_000])
def test_a_branch_beyond_the_resolution_of_uniform_numbers_is_not_drawn(monkeypatch, uniform, classes, count):
    """Its log-probability of -60 would ruin a ratio or a gradient, and 0 is drawn once in 2^24."""
    draws = []
    monkeypatch.setattr(_walk, "rand", lambda shape, like, _: draws.append(shape) or like.new_full(shape, uniform))
    for rare in (-60.0, 60.0):
        scores = torch.zeros(classes - 1).index_fill(0, torch.tensor([0]), rare)
        for drawn in (ct.sample(scores, sample_shape=(count,)), ct.sample_without_replacement(scores, 1)):
            assert (ct.log_prob(scores.expand(*drawn.shape, -1), drawn) > -20).all()
        numbers = ct.BinnedCatnat(scores, torch.arange(classes + 1.0))
        assert (numbers.log_prob(numbers.rsample((count,)).clamp(max=classes)) > -20).all()
    assert draws


def test_saturated_names_the_nodes_that_are_certain():
    """From the band's edge on, and not one ulp before it, in every dtype that can write the edge's neighbours."""
    for dtype in DTYPES:
        limits = torch.finfo(dtype)
        inside = torch.tensor(math.pi, dtype=torch.float64).to(dtype)
        inside = inside if float(inside) <= math.pi else neighbours(inside)[2]  # float64's nearest lies below pi
        outside = neighbours(inside)[1]
        assert float(inside) <= math.pi < float(outside)
        scores = torch.stack([inside, -inside, outside, -outside]).to(dtype).unsqueeze(-1)
        beyond = torch.tensor([[1e4], [-1e4], [limits.max], [limits.min], [0.0], [limits.tiny]], dtype=dtype)
        found = ct.geometry.saturated(torch.cat([scores, beyond]), None, "natural").flatten().tolist()
        assert found == [False, False, True, True, True, True, True, True, False, False]
        probs = ct.catnat(scores, None, "natural")
        assert (probs[2:].sort().values == torch.tensor([0.0, 1.0], dtype=dtype)).all()
        assert (probs[:2] > 0).all()


# ---- half precision ----


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tree", rows.FEW_TREES.values(), ids=rows.FEW_TREES)
def test_half_precision_is_float32_rounded_once(tree, dtype):
    """Also transformers#31267: a bfloat16 log-probability must not depend on how it is computed."""
    limits = torch.finfo(dtype)
    for name, activation in rows.ACTIVATIONS.items():
        scores = hostile(tree, activation, dtype)
        for label, function in FUNCTIONS.items():
            wanted = function(scores.float(), tree, activation)
            got = function(scores, tree, activation)
            assert got.dtype == dtype, (label, name)
            rows.assert_equal(got, wanted.clamp(limits.min, limits.max).to(dtype))


# ---- shapes ----


@pytest.mark.parametrize("tree", rows.FEW_TREES.values(), ids=rows.FEW_TREES)
def test_strides_do_not_matter(tree):
    """Transposed, sliced and expanded rows give what a contiguous copy gives, gradients included."""
    n = tree.num_nodes
    base = rows.around(tree, 6)
    wide = torch.full((6, 2 * n + 1), 9.0, dtype=torch.float64)
    wide[:, 1::2] = base
    views = {
        "transposed": base.t().contiguous().t(),
        "every other": wide[:, 1::2],
        "expanded": base[:1].expand(6, -1),
        "one value": torch.full((1, 1), 0.3, dtype=torch.float64).expand(6, n),
    }
    for activation in (ct.natural(), ct.sigmoid()):
        for label, view in views.items():
            for name, function in {**FUNCTIONS, "rsample": straight_through}.items():
                plain = view.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
                strided = view.detach().requires_grad_()
                assert strided.stride() == view.stride()
                wanted, got = function(plain, tree, activation), function(strided, tree, activation)
                torch.testing.assert_close(
                    got, wanted, rtol=1e-12, atol=1e-13, msg=lambda m, x=(label, name): f"{x}: {m}"
                )
                upstream = torch.linspace(-1, 1, got.numel(), dtype=got.dtype).view(got.shape)
                gradients = [torch.autograd.grad(v, s, upstream)[0] for v, s in ((got, strided), (wanted, plain))]
                torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-11)
            drawn = [ct.sample(s, tree, activation, generator=rows.seeded(0)) for s in (view, view.contiguous())]
            rows.assert_equal(*drawn)


def test_inputs_are_not_written_to():
    for tree in rows.FEW_TREES.values():
        for activation in (ct.natural(), ct.sigmoid()):
            scores = rows.around(tree, 4)
            before = scores.clone()
            for function in {**FUNCTIONS, **DISTRIBUTIONS}.values():
                function(scores, tree, activation)
            ct.sample(scores, tree, activation)
            ct.sample_without_replacement(scores, 1, tree, activation)
            ct.mode(scores, tree, activation)
            ct.geometry.saturated(scores, tree, activation)
            rows.assert_equal(scores, before)
