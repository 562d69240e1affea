"""One step of autograd, by kernels or by hand, against the plain operations, which are tested against the oracle."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from only_torch import rows
from only_torch.test_hostile_inputs import hostile
from torch import Tensor

import catnat
import catnat.torch as ct
from catnat.torch import _dense, _fused, _walk
from catnat.torch._plan import Plan

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")


installed = pytest.mark.skipif(not _fused.kernels_in_use(), reason="no kernels are in use")
every_method = pytest.mark.parametrize("method", ["ByHand", pytest.param("Kernel", marks=installed)])
# The sizes around every tile of the kernels, and of its levels, full and not.
TREES = {
    **{name: tree for name, tree in rows.TREES.items() if tree.num_nodes},
    **{f"balanced-{k}": catnat.balanced(k) for k in (16, 17, 33, 64, 65, 70, 127, 128, 1024, 3000)},
}
every_tree = pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
every_activation = pytest.mark.parametrize("activation", rows.ACTIVATIONS.values(), ids=rows.ACTIVATIONS)
few_activations = pytest.mark.parametrize("activation", [ct.sigmoid(), ct.natural()], ids=str)


def plan_with(method: str, tree: catnat.Tree, activation: ct.Activation, dtype: torch.dtype = torch.float64) -> Plan:
    """As plans are made, but with the method of this name, for small inputs too."""
    plan = Plan(tree, activation, torch.device("cpu"), dtype)
    plan.method = getattr(_fused, method)(plan)
    plan.method.most_plain = 0
    return plan


def values_and_gradient(function, plan: Plan, scores: Tensor, *, floored: bool) -> tuple[Tensor, Tensor]:
    leaf = scores.clone().requires_grad_()
    leaves = function(plan, leaf, floored=floored)
    grad = torch.randn(leaves.shape, generator=rows.seeded(3)).to(scores.dtype)
    return leaves.detach(), torch.autograd.grad(leaves, leaf, grad)[0]


_OUT_OF_MEMORY = """
import resource, sys, torch, catnat
from catnat.torch import log_catnat
used = 1024 * next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize"))
tree, scores = catnat.balanced(2**21), torch.zeros(1, 2**21 - 1)
with torch.no_grad():
    log_catnat(torch.zeros(2, 4095))  # a small buffer
    log_catnat(scores[:0], tree)  # constants alone
    free = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 100 * 2**20, free[1]))
    try:
        log_catnat(scores, tree)
        sys.exit("the memory was enough")
    except (MemoryError, RuntimeError):
        resource.setrlimit(resource.RLIMIT_AS, free)
    again = log_catnat(torch.zeros(40, 2**18 - 1)).exp()
assert torch.allclose(again, torch.full_like(again, 2.0**-18))
"""


@installed
@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_a_call_after_memory_was_short_takes_no_memory_that_is_not_there():
    subprocess.run([sys.executable, "-c", _OUT_OF_MEMORY], check=True, timeout=100)


@pytest.mark.parametrize("floored", [True, False])
@every_method
@every_activation
@every_tree
def test_values_and_gradients_are_those_of_plain_operations(tree, activation, method, floored):
    plan = plan_with(method, tree, activation)
    scores = 2 * torch.randn(21, tree.num_nodes, dtype=torch.float64, generator=rows.seeded(0))
    plain, fused = (
        values_and_gradient(function, plan, scores, floored=floored)
        for function in (_dense.log_probs, _fused.log_probs)
    )
    # Not floored, what is impossible has any logarithm whose exponential is 0.
    rows.assert_close(fused[0].clamp(min=-9000), plain[0].clamp(min=-9000), rtol=1e-10)
    rows.assert_close(fused[1], plain[1], rtol=1e-7, atol=1e-9)


@every_method
@few_activations
def test_single_precision(activation, method):
    plan = plan_with(method, catnat.balanced(32), activation, torch.float32)
    scores = 2 * torch.randn(21, 31, generator=rows.seeded(0))
    plain, fused = (
        values_and_gradient(function, plan, scores, floored=True) for function in (_dense.log_probs, _fused.log_probs)
    )
    rows.assert_close(fused[0], plain[0], rtol=2e-6, atol=0)
    rows.assert_close(fused[1], plain[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("floored", [True, False])
@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_activation
def test_hostile_scores_stay_finite(activation, dtype, method, floored):
    tree = catnat.huffman([1.0, 2, 4, 8, 16, 32, 64, 128])
    scores = hostile(tree, activation, dtype)
    found = values_and_gradient(_fused.log_probs, plan_with(method, tree, activation, dtype), scores, floored=floored)
    assert all(values.isfinite().all() for values in found)
    assert (found[0] <= 0).all()


@every_method
@few_activations
@pytest.mark.parametrize("tree", [catnat.balanced(11), catnat.chain(70), catnat.huffman([1, 2, 3, 9])], ids=str)
def test_second_derivatives(tree, activation, method):
    plan = plan_with(method, tree, activation)
    scores = rows.inside(tree, activation, 3, margin=0.2).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: _fused.log_probs(plan, s), scores, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda s: _fused.log_probs(plan, s), scores, fast_mode=True)


@every_method
@few_activations
def test_nan_stays_where_it_is(activation, method):
    scores = torch.zeros(3, 15)
    scores[1, 3] = torch.nan
    below = torch.zeros(3, 16, dtype=torch.bool)
    below[1, :4] = True
    found = _fused.log_probs(plan_with(method, catnat.balanced(16), activation, torch.float32), scores).isnan()
    # A product with a 0/1 matrix spreads it over the row; no class loses its own.
    rows.assert_equal(found & below, below)
    assert not found[[0, 2]].any()


@every_method
@pytest.mark.parametrize("shape", [(), (1,), (40,), (2, 3), (0,), (5, 0)])
def test_every_batch_shape(shape, method):
    scores = torch.randn(*shape, 17, dtype=torch.float64)
    plan = plan_with(method, catnat.balanced(18), ct.natural())
    wanted = _dense.log_probs(plan, scores, floored=True)
    for strided in (scores, scores.movedim(-1, 0).contiguous().movedim(0, -1)):
        rows.assert_close(_fused.log_probs(plan, strided), wanted)


@every_method
def test_only_data_is_served(method, monkeypatch):
    """Inside a transform and in forward mode plain operations are recorded."""
    plan, scores = plan_with(method, catnat.balanced(4), ct.natural()), torch.zeros(2, 3, dtype=torch.float64)
    wanted = _fused.log_probs(plan, scores)
    monkeypatch.setattr(plan.method, "forward", lambda *_: pytest.fail("called"))
    rows.assert_close(torch.func.vmap(lambda s: _fused.log_probs(plan, s))(scores), wanted)
    value, _ = torch.func.jvp(lambda s: _fused.log_probs(plan, s), (scores,), (torch.ones_like(scores),))
    rows.assert_close(value, wanted)


# ---- kernels alone: draws, and the paths of given classes ----


@installed
@few_activations
@pytest.mark.parametrize("tree", [catnat.balanced(8), catnat.balanced(11), catnat.huffman([1, 2, 3, 9])], ids=str)
def test_draws(tree, activation):
    plan, scores = plan_with("Kernel", tree, activation), rows.around(tree, 2)
    drawn = _fused.draw(plan, scores, 40_000, rows.seeded(1))
    for row, probs in zip(drawn.unbind(-1), ct.catnat(scores, tree, activation), strict=True):
        rows.chi_square(row, probs)


def some_classes(tree: catnat.Tree, count: int) -> Tensor:
    return torch.randint(tree.num_classes, (count, 3), generator=rows.seeded(2))


@installed
@every_activation
@every_tree
def test_paths_are_those_of_plain_operations(tree, activation):
    scores = (2 * torch.randn(21, tree.num_nodes, dtype=torch.float64, generator=rows.seeded(0))).requires_grad_()
    plan, classes = plan_with("Kernel", tree, activation), some_classes(tree, 21)
    fused = _fused.path_log_probs(plan, scores, classes)
    plain = _dense.log_probs(plan, scores, floored=True).gather(-1, classes)
    rows.assert_close(fused, plain, rtol=1e-10)
    grad = torch.randn(plain.shape, dtype=plain.dtype, generator=rows.seeded(3))
    rows.assert_close(*(torch.autograd.grad(each, scores, grad)[0] for each in (fused, plain)), rtol=1e-7, atol=1e-9)
    if plan.walks:
        rows.assert_close(fused, _walk.path_log_prob(plan, _walk.ScoreReader(scores), classes), rtol=1e-10)


@installed
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_activation
def test_paths_of_hostile_scores_stay_finite(activation, dtype):
    tree = catnat.huffman([1.0, 2, 4, 8, 16, 32, 64, 128])
    scores = hostile(tree, activation, dtype).requires_grad_()
    plan = plan_with("Kernel", tree, activation, dtype)
    found = _fused.path_log_probs(plan, scores, torch.arange(8).expand(len(scores), 8))
    assert found.isfinite().all()
    assert torch.autograd.grad(found.sum(), scores)[0].isfinite().all()


@installed
@pytest.mark.parametrize("tree", [catnat.balanced(70), catnat.chain(70), catnat.huffman([1, 2, 3, 9])], ids=str)
def test_second_derivatives_of_paths(tree):
    scores = rows.inside(tree, "natural", 3, margin=0.2).requires_grad_()
    plan, classes = plan_with("Kernel", tree, ct.natural()), some_classes(tree, 3)
    assert torch.autograd.gradgradcheck(lambda s: _fused.path_log_probs(plan, s, classes), scores, fast_mode=True)


@installed
@pytest.mark.parametrize("tree", [catnat.balanced(11), catnat.huffman([1, 2, 3, 9])], ids=str)
def test_classes_that_nobody_has_checked(tree):
    for wrong in (-1, tree.num_classes):
        with pytest.raises(RuntimeError, match="not one of the tree's"):
            _fused.path_log_probs(
                plan_with("Kernel", tree, ct.natural()),
                torch.zeros(2, tree.num_nodes, dtype=torch.float64),
                torch.tensor([[0], [wrong]]),
            )


@installed
def test_the_operators_are_what_the_compiler_needs():
    kernel, scores = plan_with("Kernel", catnat.balanced(18), ct.natural(), torch.float32).method, torch.randn(3, 17)
    code, depth = kernel._code, kernel.plan.tree.depth
    given = (scores.clone().requires_grad_(), kernel._constants, kernel._table, 18, depth, code, True)
    torch.library.opcheck(torch.ops.catnat.differentiable_log_probs.default, given)
    uniforms, drawn = torch.rand(3, depth), torch.empty(3, dtype=torch.int64)
    given = (scores, kernel._constants, kernel._table, uniforms, code, drawn)
    torch.library.opcheck(torch.ops.catnat.draw.default, given)
    classes = torch.zeros(3, 2, dtype=torch.int64)
    given = (scores, kernel._constants, kernel._parents, classes, depth, code, True)
    torch.library.opcheck(torch.ops.catnat.path_log_probs.default, given)


# ---- the switch, and the instruction sets ----


def run(switch: str, code: str) -> subprocess.CompletedProcess[str]:
    """Another process, with CATNAT_KERNELS set to ``switch``."""
    environment = {**os.environ, "CATNAT_KERNELS": switch}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_they_can_be_switched_off():
    code = "import catnat.torch as ct, torch; print(ct.kernels()['cpu']); print(ct.catnat(torch.zeros(1)).tolist())"
    assert run("0", code).stdout.split("\n")[:2] == ["none: switched off by CATNAT_KERNELS=0", "[0.5, 0.5]"]


# Values, gradients, paths and draws of trees by level and by table, beside the plain operations.
EVERY_KERNEL = """
import torch, catnat, catnat.torch as ct
from catnat.torch import _dense, _fused
from catnat.torch._plan import Plan
torch.manual_seed(0)
for tree in catnat.balanced(100), catnat.huffman([1, 2, 3, 9, 27]):
    for activation in ct.sigmoid(), ct.natural():
        for dtype, rtol in (torch.float32, 1e-4), (torch.float64, 1e-8):
            scores = (2 * torch.randn(37, tree.num_nodes, dtype=dtype)).requires_grad_()
            plan = _fused.with_method(Plan(tree, activation, scores.device, dtype))
            classes, every = torch.randint(tree.num_classes, (37, 2)), _dense.log_probs(plan, scores, floored=True)
            pairs = (
                (_fused.log_probs(plan, scores), every),
                (_fused.path_log_probs(plan, scores, classes), every.gather(-1, classes)),
            )
            for fused, plain in pairs:
                torch.testing.assert_close(fused, plain, rtol=rtol, atol=rtol)
                gradients = [torch.autograd.grad(x.sin().sum(), scores, retain_graph=True)[0] for x in (fused, plain)]
                torch.testing.assert_close(*gradients, rtol=10 * rtol, atol=10 * rtol)
            drawn = ct.sample(scores[0].detach(), tree, activation, sample_shape=(20_000,))
            frequencies = drawn.bincount(minlength=tree.num_classes) / 20_000
            assert (frequencies - every[0].detach().exp()).abs().max() < 0.03  # six standard errors or more
print(ct.kernels()["cpu"])
"""


@pytest.mark.slow
@installed
@pytest.mark.parametrize("name", ["baseline", "avx2"])
def test_every_instruction_set(name):
    done = run(name, EVERY_KERNEL)
    if "ValueError: CATNAT_KERNELS" in done.stderr:
        pytest.skip(f"this processor has no {name}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"({name})\n")


@pytest.mark.slow
@installed
def test_an_instruction_set_that_nobody_has():
    assert "CATNAT_KERNELS is 'avx1024', but it must be 0" in run("avx1024", EVERY_KERNEL).stderr
