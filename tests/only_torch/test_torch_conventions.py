"""What users of PyTorch take for granted: autocast, devices, default dtypes, generators, pickling, threads, modules."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from only_torch import rows
from only_torch.functions import FUNCTIONS
from torch import Tensor, nn
from torch import distributions as td
from torch._subclasses import FakeTensorMode
from torch.func import grad, jacfwd, jvp, vmap
from torch.utils.checkpoint import checkpoint

import catnat
import catnat.torch as ct

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")

DISCRETE = {
    "mode": ct.mode,
    "saturated": ct.geometry.saturated,
    "sample": ct.sample,
    "sample_without_replacement": lambda s, *args: ct.sample_without_replacement(s, 2, *args),
    "Catnat.sample": lambda s, *args: ct.Catnat(s, *args).sample((2,)),
}
KINDS = [ct.natural(), ct.sigmoid()]


# ---- precision ----


@pytest.mark.parametrize("tree", rows.FEW_TREES.values(), ids=rows.FEW_TREES)
def test_autocast_computes_and_returns_float32(tree):
    """As log_softmax does on a GPU: a bfloat16 layer under autocast feeds these functions without losing digits."""
    for activation in KINDS:
        scores = rows.around(tree, 4, dtype=torch.float32)
        for name, function in FUNCTIONS.items():
            wanted = function(scores, tree, activation)
            low = scores.bfloat16()
            with torch.autocast("cpu", torch.bfloat16):
                got, got_low = function(scores, tree, activation), function(low, tree, activation)
            assert got.dtype == got_low.dtype == torch.float32, name
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(got_low, function(low.float(), tree, activation), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scaled", [True, False])
def test_gradients_that_overflow_under_autocast_are_left_to_the_scaler(scaled):
    """A ``GradScaler`` lowers its scale where it finds infinities; without autocast gradients stay finite."""
    scores = torch.zeros(1, 3, dtype=torch.float16, requires_grad=True)
    with torch.autocast("cpu", torch.float16, enabled=scaled):
        loss = ct.cross_entropy(scores, torch.tensor([0])).float()
    (loss * 2.0**20).backward()
    assert torch.isinf(scores.grad).any() == scaled


def test_relaxed_draws_under_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        relaxed = ct.RelaxedOneHotCatnat(0.5, torch.zeros(2, 3, dtype=torch.float16))
        drawn = relaxed.rsample()
        assert drawn.dtype == relaxed.log_prob(drawn).dtype == torch.float32


def test_half_precision_under_transforms():
    scores = rows.inside(catnat.balanced(9), "natural", 3).bfloat16()
    for function in (ct.log_catnat, ct.entropy):
        rows.assert_equal(vmap(function)(scores), function(scores))
        assert jvp(function, (scores,), (torch.ones_like(scores),))[1].dtype == torch.bfloat16
    gradients = vmap(grad(ct.entropy))(scores)
    assert gradients.dtype == torch.bfloat16
    exact = vmap(grad(ct.entropy))(scores.float())
    torch.testing.assert_close(gradients.float(), exact, rtol=1e-2, atol=1e-3)


def test_activation_checkpointing():
    scores, classes = torch.randn(3, 99, generator=rows.seeded(0), requires_grad=True), torch.arange(3)
    for function in (ct.cross_entropy, lambda s, c: ct.log_catnat(s).gather(-1, c.unsqueeze(-1)).mean().neg()):
        got = torch.autograd.grad(checkpoint(function, scores, classes, use_reentrant=False), scores)
        wanted = torch.autograd.grad(function(scores, classes), scores)
        rows.assert_equal(got[0], wanted[0])


def test_training_under_autocast():
    """pytorch#44724: a head must not break under AMP."""
    tree = catnat.balanced(18)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), ct.CatnatLinear(8, tree))
    inputs, targets = torch.randn(5, 4, generator=rows.seeded(0)), torch.arange(5)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model[:-1](inputs)
        assert model[-1].scores(hidden).dtype == torch.bfloat16
        loss = model[-1].loss(hidden, targets)
        assert model(inputs).dtype == loss.dtype == torch.float32
    loss.backward()
    for weight in model.parameters():
        assert weight.grad is not None
        assert weight.grad.dtype == torch.float32
        assert weight.grad.isfinite().all()


@contextlib.contextmanager
def allowed(precision: str) -> Iterator[None]:
    """Less precise float32 products, by either of torch's interfaces: "tf32" and "bf16" are names of the newer one."""
    before = torch.get_float32_matmul_precision()
    if precision in ("tf32", "bf16"):
        torch.backends.mkldnn.matmul.fp32_precision = precision
    else:
        torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = "none"
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("precision", ["high", "medium", "tf32", "bf16"])
def test_matmul_precision_does_not_change_results(precision):
    """Path sums must not become bfloat16 products because somebody speeds up a network's layers."""
    results = {}
    for setting in ("highest", precision):
        with allowed(setting):
            for label, tree in rows.FEW_TREES.items():
                scores = rows.around(tree, 5, dtype=torch.float32).requires_grad_()
                for name, function in FUNCTIONS.items():
                    value = function(scores, tree, ct.natural())
                    (gradient,) = torch.autograd.grad(value.sum(), scores)
                    results.setdefault((label, name), []).append((value.detach(), gradient))
    for pair in results.values():
        for one, other in zip(*pair, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_default_dtype_float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            for tree in rows.FEW_TREES.values():
                scores = rows.around(tree, 3, dtype=dtype)
                for name, function in FUNCTIONS.items():
                    assert function(scores, tree, "natural").dtype == dtype, name
        assert ct.CatnatLinear(3, 5).weight.dtype == torch.float64
        assert ct.catnat(torch.zeros(3)).dtype == torch.float64
        relaxed = ct.RelaxedOneHotCatnat(0.5, torch.zeros(2, 3, dtype=torch.float32))
        assert relaxed.rsample().dtype == torch.float32
    finally:
        torch.set_default_dtype(before)
    assert ct.catnat(torch.zeros(3)).dtype == torch.float32


def test_scores_and_other_arguments_of_different_dtypes():
    p, q = torch.zeros(2, 3, dtype=torch.float16), torch.zeros(2, 3, dtype=torch.float32)
    assert ct.kl_divergence(p, q).dtype == torch.float32
    assert ct.cross_entropy(q, torch.full((2, 4), 0.25, dtype=torch.float64)).dtype == torch.float32
    assert ct.cross_entropy(q, torch.zeros(2, dtype=torch.int32)).dtype == torch.float32
    assert ct.log_prob(q, torch.zeros(2, dtype=torch.int32)).dtype == torch.float32


# ---- caches ----


def cold_trees(number: int) -> list[catnat.Tree]:
    """Trees that no other test uses, so that nothing about them is cached: one of every way to compute."""
    weights = np.random.default_rng(number).random(90)
    return [
        catnat.balanced(32).with_prior(weights[:32]),
        catnat.balanced(41 + number),
        catnat.balanced(141 + number),
        catnat.chain(31 + number),
        catnat.chain(131 + number),
        catnat.huffman(weights[:25]),
        catnat.huffman(weights),
    ]


@pytest.mark.parametrize("tree", cold_trees(0), ids=repr)
def test_inference_mode_does_not_poison_training(tree):
    """A tensor made in inference mode can never be saved for backward: none may stay in a cache."""
    for activation in KINDS:
        with torch.inference_mode():
            for function in [*FUNCTIONS.values(), *DISCRETE.values()]:
                assert function(torch.zeros(2, tree.num_nodes), tree, activation).is_inference()
        scores = rows.around(tree, 2, dtype=torch.float32).requires_grad_()
        for name, function in FUNCTIONS.items():
            (gradient,) = torch.autograd.grad(function(scores, tree, activation).sum(), scores)
            assert gradient.isfinite().all(), name


@pytest.mark.one_row
@pytest.mark.parametrize("tree", cold_trees(1), ids=repr)
def test_fake_tensors_and_a_fake_gpu_leave_no_trace(tree):
    """Shapes, dtypes and devices are right on hardware that is not there; afterwards real numbers come out."""
    for activation in KINDS:
        for device in ("cpu", "cuda"):
            with FakeTensorMode():
                # A torch built without CUDA aborts when autograd takes the stream of a fake GPU: values only there.
                scores = torch.zeros(3, tree.num_nodes, device=device, requires_grad=device == "cpu")
                for name, function in FUNCTIONS.items():
                    value = function(scores, tree, activation)
                    assert value.device.type == device, name
                    assert type(value).__name__ == "FakeTensor"
                    if device != "cpu":
                        continue
                    (gradient,) = torch.autograd.grad(value.sum(), scores)
                    assert gradient.device.type == device
                    assert gradient.shape == scores.shape
                for name, function in DISCRETE.items():
                    assert function(scores, tree, activation).device.type == device, name
                assert ct.catnat(scores, tree, activation).shape == (3, tree.num_classes)
                assert ct.sample(scores, tree, activation, sample_shape=(5,)).shape == (5, 3)
        real = rows.around(tree, 3).requires_grad_()
        for name, function in FUNCTIONS.items():
            value = function(real, tree, activation)
            assert type(value) is Tensor, name
            assert value.isfinite().all()
            assert torch.autograd.grad(value.sum(), real)[0].isfinite().all()
        rows.assert_close(ct.catnat(real, tree, activation).sum(-1), torch.ones(3, dtype=torch.float64))
        assert type(ct.sample(real.detach(), tree, activation)) is Tensor


@pytest.mark.parametrize("tree", cold_trees(4), ids=repr)
def test_trees_first_met_inside_a_transform(tree):
    """A constant made inside vmap, grad or forward mode belongs to it, and must not be met again outside."""
    for activation in KINDS:
        scores = rows.inside(tree, activation, 3, margin=0.2)
        inside = [
            vmap(grad(lambda s, a=activation: ct.entropy(s, tree, a)))(scores),
            vmap(lambda s, a=activation: ct.log_prob(s, torch.tensor(1), tree, a))(scores),
            jacfwd(lambda s, a=activation: ct.log_catnat(s, tree, a))(scores[0]),
        ]
        vmap(lambda s, a=activation: ct.sample(s, tree, a), randomness="different")(scores)
        leaf = scores.clone().requires_grad_()
        outside = [
            torch.autograd.grad(ct.entropy(leaf, tree, activation).sum(), leaf)[0],
            ct.log_prob(scores, torch.tensor(1), tree, activation),
            torch.autograd.functional.jacobian(lambda s, a=activation: ct.log_catnat(s, tree, a), scores[0]),
        ]
        for one, other in zip(inside, outside, strict=True):
            rows.assert_close(one, other)
        assert ct.sample(scores, tree, activation).shape == (3,)


def test_a_default_device_does_not_lead_constants_astray():
    """``torch.set_default_device`` moves new tensors; constants belong where the scores are."""
    for tree in cold_trees(3):
        scores = rows.around(tree, 3)
        for activation in KINDS:
            with torch.device("meta"):
                assert ct.catnat(scores, tree, activation).device.type == "cpu"
                assert ct.entropy(scores, tree, activation).device.type == "cpu"
                assert ct.sample(scores, tree, activation).device.type == "cpu"
                assert ct.Catnat(scores, tree, activation).sample().device.type == "cpu"
            rows.assert_close(ct.catnat(scores, tree, activation).sum(-1), torch.ones(3, dtype=torch.float64))


# ---- copies ----


def round_trips(thing):
    yield pickle.loads(pickle.dumps(thing))
    yield copy.deepcopy(thing)
    yield copy.copy(thing)


@pytest.mark.parametrize("touched", [False, True])
def test_distributions_survive_pickle_and_copy(touched):
    tree = rows.TREES["huffman-20"]
    scores = rows.around(tree, 3)
    for dist in (
        ct.Catnat(scores, tree),
        ct.OneHotCatnat(scores, tree, "sigmoid"),
        ct.OneHotCatnatStraightThrough(scores, tree),
        ct.RelaxedOneHotCatnat(0.5, scores, tree),
        td.Independent(ct.OneHotCatnat(scores, tree), 1),
    ):
        if touched:  # lazily computed attributes travel too
            _ = dist.mean if not isinstance(dist, ct.RelaxedOneHotCatnat) else dist.logits
            dist.log_prob(dist.sample())
        torch.manual_seed(0)
        value = dist.sample()
        for again in round_trips(dist):
            assert type(again) is type(dist)
            assert (again.batch_shape, again.event_shape) == (dist.batch_shape, dist.event_shape)
            rows.assert_equal(again.log_prob(value), dist.log_prob(value))
            torch.manual_seed(0)
            rows.assert_equal(again.sample(), value)


def test_modules_survive_pickle_copy_and_save(tmp_path):
    tree = rows.TREES["huffman-20"]

    def build():
        return nn.Sequential(nn.Linear(3, 4), ct.CatnatLinear(4, tree, ct.natural(width=9.0)))

    model, fresh, features = build(), build(), torch.randn(5, 3, generator=rows.seeded(0))
    wanted = model(features).detach()
    torch.save(model, tmp_path / "model.pt")
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    assert not torch.equal(fresh(features), wanted)
    fresh.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), loaded, fresh):
        rows.assert_equal(again(features).detach(), wanted)
        assert again[1].tree == tree


# ---- randomness ----


def draws(generator: torch.Generator | None) -> list[Tensor]:
    found = []
    for tree in (*rows.FEW_TREES.values(), rows.TREES["huffman-100"], rows.TREES["chain-100"]):
        scores = torch.zeros(40, tree.num_nodes)
        found += [
            ct.sample(scores, tree, generator=generator),
            ct.sample(scores, tree, sample_shape=(3, 200), generator=generator),
            ct.sample_without_replacement(scores, 3, tree, generator=generator),
            ct.Catnat(scores, tree).sample((2,), generator=generator),
            ct.OneHotCatnat(scores, tree).sample((2,), generator=generator),
            ct.OneHotCatnatStraightThrough(scores, tree).rsample((2,), generator=generator),
            ct.RelaxedOneHotCatnat(0.5, scores, tree).rsample((2,), generator=generator),
        ]
    return found


def test_a_generator_decides_alone():
    """pytorch#45115: equal seeds give equal draws, and the global state neither matters nor moves."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = draws(rows.seeded(7))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    for one, other in zip(first, draws(rows.seeded(7)), strict=True):
        rows.assert_equal(one, other)
    assert all((one != other).any() for one, other in zip(first, draws(rows.seeded(8)), strict=True))
    shared = rows.seeded(7)
    draws(shared)
    assert any((one != other).any() for one, other in zip(first, draws(shared), strict=True))


def test_without_a_generator_the_global_seed_decides():
    torch.manual_seed(5)
    first = draws(None)
    torch.manual_seed(5)
    for one, other in zip(first, draws(None), strict=True):
        rows.assert_equal(one, other)
    assert any((one != other).any() for one, other in zip(first, draws(None), strict=True))
