"""The fused kernels against the plain operations, which are the definition and are tested against the oracle."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from only_torch import rows
from only_torch.test_hostile_inputs import hostile
from torch import Tensor

import catnat
import catnat.torch as ct
from catnat.torch import _fused
from catnat.torch._nodes import Nodes

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")
installed = pytest.mark.skipif(_fused._implementation("cpu") is None, reason="no kernels are installed")

# The sizes around every tile of the kernels, and of its levels, full and not.
TREES: dict[str, catnat.Tree | catnat.Forest] = {
    **{name: tree for name, tree in rows.TREES.items() if tree.num_nodes},
    **{f"balanced-{k}": catnat.balanced(k) for k in (16, 17, 33, 64, 65, 70, 127, 128, 1024, 3000)},
    "forest": catnat.Forest([3, 1, catnat.chain(5), 40]),
}


def values_and_gradient(function, scores: Tensor, tree, activation, *, floored: bool) -> tuple[Tensor, Tensor]:
    grad = torch.randn(*scores.shape[:-1], tree.num_classes, generator=rows.seeded(3)).to(scores.dtype)
    leaf = scores.clone().requires_grad_()
    leaves = function(Nodes(leaf, tree, activation), floored=floored)
    assert leaves is not None, "no kernel serves here"
    return leaves.detach(), torch.autograd.grad(leaves, leaf, grad)[0]


@installed
@pytest.mark.parametrize("floored", [True, False])
@pytest.mark.parametrize("activation", rows.ACTIVATIONS.values(), ids=rows.ACTIVATIONS)
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_values_and_gradients_are_those_of_plain_operations(tree, activation, floored):
    scores = 2 * torch.randn(21, tree.num_nodes, dtype=torch.float64, generator=rows.seeded(0))
    plain = values_and_gradient(_fused.plain_log_probs, scores, tree, activation, floored=floored)
    fused = values_and_gradient(_fused.log_probs, scores, tree, activation, floored=floored)
    rows.assert_close(fused[0], plain[0], rtol=1e-10)
    rows.assert_close(fused[1], plain[1], rtol=1e-7, atol=1e-9)


@installed
@pytest.mark.parametrize("activation", [ct.sigmoid(), ct.natural(), ct.natural(boundary="reflect")], ids=str)
def test_single_precision(activation):
    scores = 2 * torch.randn(21, 31, generator=rows.seeded(0))
    plain = values_and_gradient(_fused.plain_log_probs, scores, catnat.balanced(32), activation, floored=True)
    fused = values_and_gradient(_fused.log_probs, scores, catnat.balanced(32), activation, floored=True)
    rows.assert_close(fused[0], plain[0], rtol=2e-6, atol=0)
    rows.assert_close(fused[1], plain[1], rtol=1e-4, atol=1e-5)


@installed
@pytest.mark.parametrize("floored", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", rows.ACTIVATIONS.values(), ids=rows.ACTIVATIONS)
def test_hostile_scores_stay_finite(activation, dtype, floored):
    tree = catnat.huffman([1.0, 2, 4, 8, 16, 32, 64, 128])
    found = values_and_gradient(_fused.log_probs, hostile(tree, activation, dtype), tree, activation, floored=floored)
    assert all(values.isfinite().all() for values in found)
    assert (found[0] <= 0).all()


@installed
@pytest.mark.parametrize("activation", [ct.sigmoid(), ct.natural(), ct.natural(boundary="reflect")], ids=str)
def test_nan_stays_where_it_is(activation):
    scores = torch.zeros(3, 15)
    scores[1, 3] = torch.nan
    found = ct.log_catnat(scores, activation=activation).isnan()
    below = torch.zeros(3, 16, dtype=torch.bool)
    below[1, :4] = True
    rows.assert_equal(found, below)


@installed
@pytest.mark.parametrize("shape", [(), (1,), (40,), (2, 3), (0,), (5, 0)])
def test_every_batch_shape(shape):
    scores = torch.randn(*shape, 17, dtype=torch.float64)
    nodes = Nodes(scores, catnat.balanced(18), ct.natural())
    rows.assert_close(_fused.log_probs(nodes, floored=True), _fused.plain_log_probs(nodes, floored=True))
    transposed = Nodes(scores.movedim(-1, 0).contiguous().movedim(0, -1), catnat.balanced(18), ct.natural())
    rows.assert_equal(_fused.log_probs(transposed, floored=True), _fused.log_probs(nodes, floored=True))
    assert ct.sample(scores, sample_shape=(4,)).shape == (4, *shape)


@installed
@pytest.mark.parametrize("tree", [catnat.balanced(8), catnat.balanced(11), catnat.huffman([1, 2, 3, 9])], ids=str)
@pytest.mark.parametrize("activation", [ct.sigmoid(), ct.natural(), ct.natural(boundary="reflect")], ids=str)
def test_draws(tree, activation):
    scores = rows.around(tree, 2)
    drawn = ct.sample(scores, tree, activation, sample_shape=(40_000,), generator=rows.seeded(1))
    for row, probs in zip(drawn.unbind(-1), ct.catnat(scores, tree, activation), strict=True):
        rows.chi_square(row, probs)


def some_classes(tree, rows_: int) -> tuple[Tensor, Tensor]:
    """Three classes for every row, (rows, 3) or (rows, 3, N), and their places among all classes, (rows, 3 or 3 N)."""
    forest = isinstance(tree, catnat.Forest)
    sizes = torch.tensor(tree.sizes if forest else [tree.num_classes])
    uniforms = torch.rand(rows_, 3, len(sizes), generator=rows.seeded(2))
    classes = (uniforms * sizes).long()
    placed = classes + torch.tensor(np.array(tree.first_classes)) if forest else classes
    return classes if forest else classes.squeeze(-1), placed.flatten(1)


@installed
@pytest.mark.parametrize("activation", rows.FEW_ACTIVATIONS)
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_paths_are_those_of_plain_operations(tree, activation):
    scores = (2 * torch.randn(21, tree.num_nodes, dtype=torch.float64, generator=rows.seeded(0))).requires_grad_()
    nodes, (classes, placed) = Nodes(scores, tree, rows.ACTIVATIONS[activation]), some_classes(tree, 21)
    found = _fused.path_log_probs(nodes, classes)
    assert found is not None
    assert found.shape == classes.shape
    fused, plain = found.flatten(1), _fused.plain_log_probs(nodes, floored=True).gather(-1, placed)
    rows.assert_close(fused, plain, rtol=1e-10)
    grad = torch.randn(plain.shape, dtype=plain.dtype, generator=rows.seeded(3))
    gradients = [torch.autograd.grad(each, scores, grad)[0] for each in (fused, plain)]
    rows.assert_close(*gradients, rtol=1e-7, atol=1e-9)


@installed
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", rows.ACTIVATIONS.values(), ids=rows.ACTIVATIONS)
def test_paths_of_hostile_scores_stay_finite(activation, dtype):
    tree = catnat.huffman([1.0, 2, 4, 8, 16, 32, 64, 128])
    scores = hostile(tree, activation, dtype).requires_grad_()
    classes = torch.arange(8).expand(len(scores), 8)
    found = _fused.path_log_probs(Nodes(scores, tree, activation), classes)
    assert found is not None
    (gradient,) = torch.autograd.grad(found.sum(), scores)
    assert found.isfinite().all()
    assert gradient.isfinite().all()
    assert (found <= 0).all()


@installed
@pytest.mark.parametrize("tree", [catnat.balanced(11), catnat.chain(70), catnat.huffman([1, 2, 3, 9])], ids=str)
def test_second_derivatives_of_paths(tree):
    scores = torch.randn(3, tree.num_nodes, dtype=torch.float64, generator=rows.seeded(0)).requires_grad_()
    classes, _ = some_classes(tree, 3)
    assert torch.autograd.gradgradcheck(
        lambda s: _fused.path_log_probs(Nodes(s, tree, ct.natural()), classes), scores, nondet_tol=1e-12
    )


@installed
@pytest.mark.parametrize("tree", [catnat.balanced(11), catnat.huffman([1, 2, 3, 9])], ids=str)
@pytest.mark.parametrize("wrong", [-1, "K"])
def test_classes_that_nobody_has_checked(tree, wrong):
    nodes = Nodes(torch.zeros(2, tree.num_nodes), tree, ct.natural())
    classes = torch.tensor([[0], [tree.num_classes if wrong == "K" else wrong]])
    with pytest.raises(RuntimeError, match="not one of the tree's"):
        _fused.path_log_probs(nodes, classes)


@installed
def test_who_is_served():
    scores = torch.zeros(2, 3)
    nodes = Nodes(scores, catnat.balanced(4), ct.natural())
    assert _fused.log_probs(nodes, floored=True) is not None
    assert _fused.log_probs(nodes._replace(scores=scores.to("meta")), floored=True) is None
    assert _fused.log_probs(nodes._replace(activation=rows.OWN), floored=True) is None
    served = torch.func.vmap(lambda s: torch.tensor(_fused.log_probs(Nodes(s, *nodes[1:]), floored=True) is not None))
    assert not served(scores).any()


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
from catnat.torch import _fused
from catnat.torch._nodes import Nodes
torch.manual_seed(0)
for tree in catnat.balanced(100), catnat.huffman([1, 2, 3, 9, 27]):
    for activation in ct.sigmoid(), ct.natural(), ct.natural(boundary="reflect"):
        for dtype, rtol in (torch.float32, 1e-4), (torch.float64, 1e-8):
            scores = (2 * torch.randn(37, tree.num_nodes, dtype=dtype)).requires_grad_()
            nodes, classes = Nodes(scores, tree, activation), torch.randint(tree.num_classes, (37, 2))
            every = _fused.plain_log_probs(nodes, floored=True)
            pairs = (
                (_fused.log_probs(nodes, floored=True), every),
                (_fused.path_log_probs(nodes, classes), every.gather(-1, classes)),
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


@installed
def test_the_operators_are_what_the_compiler_needs():
    scores = torch.randn(3, 17, requires_grad=True)
    plan = _fused._plan(catnat.balanced(18), ct.natural(), scores.device, scores.dtype)
    rest = plan.constants, plan.table, 18, plan.tree.depth, plan.code, True
    torch.library.opcheck(torch.ops.catnat.log_probs.default, (scores, *rest))
    uniforms, drawn = torch.rand(3, plan.tree.depth), torch.empty(3, dtype=torch.int64)
    torch.library.opcheck(
        torch.ops.catnat.draw.default, (scores.detach(), plan.constants, plan.table, uniforms, plan.code, drawn)
    )
    above, classes = _fused._above(plan.tree, scores.device), torch.zeros(3, 2, dtype=torch.int64)
    torch.library.opcheck(
        torch.ops.catnat.path_log_probs.default,
        (scores.detach(), plan.constants, above, classes, plan.tree.depth, plan.code, True),
    )
