"""The fused kernels against the plain operations, which are the definition and are tested against the oracle."""

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


@installed
def test_who_is_served():
    scores = torch.zeros(2, 3)
    nodes = Nodes(scores, catnat.balanced(4), ct.natural())
    assert _fused.log_probs(nodes, floored=True) is not None
    assert _fused.log_probs(nodes._replace(scores=scores.to("meta")), floored=True) is None
    assert _fused.log_probs(nodes._replace(activation=rows.OWN), floored=True) is None
    served = torch.func.vmap(lambda s: torch.tensor(_fused.log_probs(Nodes(s, *nodes[1:]), floored=True) is not None))
    assert not served(scores).any()


def test_they_can_be_switched_off():
    code = "import catnat.torch as ct, torch; print(ct.kernels()['cpu']); print(ct.catnat(torch.zeros(1)).tolist())"
    off = {**os.environ, "CATNAT_KERNELS": "0"}
    printed = subprocess.run([sys.executable, "-c", code], env=off, capture_output=True, text=True, check=True).stdout
    assert printed.split("\n")[:2] == ["none: switched off by CATNAT_KERNELS=0", "[0.5, 0.5]"]


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
