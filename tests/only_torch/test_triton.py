"""The GPU kernels without a GPU: what they compute by Triton's interpreter, and that every launch compiles.

Triton reads ``TRITON_INTERPRET`` when it is imported, so the two need a process each; `.ci/run slow` starts both.
"""

from __future__ import annotations

import os

import cases
import pytest
import torch
from conformance import backends, checks
from only_torch import rows
from only_torch.test_fused import TREES, values_and_gradient
from only_torch.test_hostile_inputs import hostile
from torch import Tensor

import catnat
import catnat.torch as ct
from catnat.torch import _fused
from catnat.torch._nodes import Nodes

triton = pytest.importorskip("triton", reason='Triton is not installed: pip install "catnat[triton]"')
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")]

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not IS_INTERPRETED, reason="for values, set TRITON_INTERPRET=1")
compiled = pytest.mark.skipif(IS_INTERPRETED, reason="the interpreter compiles nothing: unset TRITON_INTERPRET")

KINDS = [ct.sigmoid(), ct.natural(), ct.natural(boundary="reflect")]


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    """The kernels serve tensors of the CPU."""
    monkeypatch.setenv("CATNAT_TRITON", "1")
    monkeypatch.setitem(_fused._SOURCES, "cpu", _fused._SOURCES["cuda"])
    _fused._found.cache_clear()
    assert "Triton" in ct.kernels()["cpu"]
    yield
    _fused._found.cache_clear()


# ---- what they compute ----

SMALL = [name for name, tree in TREES.items() if tree.num_classes <= 200]


def assert_as_plain(tree, activation, *, floored: bool, batch: int) -> None:
    scores = 2 * torch.randn(batch, tree.num_nodes, dtype=torch.float64, generator=rows.seeded(0))
    plain = values_and_gradient(_fused.plain_log_probs, scores, tree, activation, floored=floored)
    fused = values_and_gradient(_fused.log_probs, scores, tree, activation, floored=floored)
    rows.assert_close(fused[0], plain[0], rtol=1e-10)
    rows.assert_close(fused[1], plain[1], rtol=1e-7, atol=1e-9)


@interpreted
@pytest.mark.parametrize("floored", [True, False])
@pytest.mark.parametrize("activation", rows.ACTIVATIONS.values(), ids=rows.ACTIVATIONS)
@pytest.mark.parametrize("name", SMALL)
def test_values_and_gradients_are_those_of_plain_operations(name, activation, floored):
    assert_as_plain(TREES[name], activation, floored=floored, batch=21)


@interpreted
@pytest.mark.parametrize("activation", KINDS, ids=str)
@pytest.mark.parametrize("classes", [1024, 1025, 3000])
def test_one_slab_and_two(classes, activation):
    assert_as_plain(catnat.balanced(classes), activation, floored=True, batch=3)


@interpreted
@pytest.mark.parametrize("activation", cases.ACTIVATIONS.values(), ids=cases.ACTIVATIONS)
@pytest.mark.parametrize("name", cases.TREE_NAMES)
def test_values_are_the_oracles(name, activation):
    checks.log_probabilities(backends.load("torch"), cases.tree_case(name), activation)


@interpreted
@pytest.mark.parametrize("activation", cases.ACTIVATIONS.values(), ids=cases.ACTIVATIONS)
@pytest.mark.parametrize("name", ["balanced-8", "balanced-11", "chain-7", "children-7", "balanced-5-uneven"])
def test_gradients_are_the_oracles(name, activation):
    checks.gradients(backends.load("torch"), cases.tree_case(name), activation)


@interpreted
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["sigmoid", "natural", "natural-reflect"])
def test_relative_error_against_fifty_digits(name, dtype):
    checks.accuracy_of_all_classes(backends.load("torch"), cases.ACTIVATIONS[name], catnat.balanced(256), dtype)


@interpreted
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["natural", "natural-reflect"])
@pytest.mark.parametrize("side", [-1, 1])
def test_relative_error_up_to_the_edge(name, dtype, side):
    checks.accuracy_of_one_node(backends.load("torch"), cases.ACTIVATIONS[name], checks.band_sweep(dtype, side))


@interpreted
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # NumPy's: an angle far outside may be -inf
@pytest.mark.parametrize("floored", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", rows.ACTIVATIONS.values(), ids=rows.ACTIVATIONS)
@pytest.mark.parametrize("name", ["balanced-8", "huffman-20"])
def test_hostile_scores_stay_finite(name, activation, dtype, floored):
    tree = TREES[name]
    scores = hostile(tree, activation, dtype)
    found = values_and_gradient(_fused.log_probs, scores, tree, activation, floored=floored)
    assert all(values.isfinite().all() for values in found)
    assert (found[0] <= 0).all()


@interpreted
@pytest.mark.parametrize("activation", KINDS, ids=str)
def test_nan_stays_where_it_is(activation):
    scores = torch.zeros(3, 15)
    scores[1, 3] = torch.nan
    below = torch.zeros(3, 16, dtype=torch.bool)
    below[1, :4] = True
    rows.assert_equal(ct.log_catnat(scores, activation=activation).isnan(), below)


@interpreted
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0,), (5, 0)])
def test_every_batch_shape(shape):
    scores = torch.randn(*shape, 17, dtype=torch.float64)
    nodes = Nodes(scores, catnat.balanced(18), ct.natural())
    rows.assert_close(_fused.log_probs(nodes, floored=True), _fused.plain_log_probs(nodes, floored=True))
    assert ct.sample(scores, sample_shape=(4,)).shape == (4, *shape)


@interpreted
@pytest.mark.parametrize("tree", [catnat.balanced(8), catnat.balanced(11), catnat.huffman([1, 2, 3, 9])], ids=str)
@pytest.mark.parametrize("activation", KINDS, ids=str)
def test_draws(tree, activation):
    scores = rows.around(tree, 2)
    drawn = ct.sample(scores, tree, activation, sample_shape=(20_000,), generator=rows.seeded(1))
    for row, probs in zip(drawn.unbind(-1), ct.catnat(scores, tree, activation), strict=True):
        rows.chi_square(row, probs)


# ---- that they compile ----

POINTERS = {torch.float32: "*fp32", torch.float64: "*fp64", torch.int32: "*i32", torch.int64: "*i64"}


def compile_launch(kernel, args, options, arch: int) -> str:
    """PTX of a kernel for the arguments of a launch."""
    from triton.backends.compiler import GPUTarget

    given = dict(zip(kernel.arg_names, args, strict=False)) | options
    launch = {name: given.pop(name) for name in kernel.arg_names}
    constants = {param.name: launch[param.name] for param in kernel.params if param.is_constexpr}
    types = {name: POINTERS[value.dtype] if isinstance(value, Tensor) else "i32" for name, value in launch.items()}
    source = triton.compiler.ASTSource(
        kernel,
        types | dict.fromkeys(constants, "constexpr"),
        {(kernel.arg_names.index(name),): value for name, value in constants.items()},
    )
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=given).asm["ptx"]


SHALLOW = ["_sums_down", "_sums_up", "_walk"]
DEEP = [*2 * ["_sums_down"], *2 * ["_sums_up"], "_walk"]
BY_NODES = ["_nodes_forward", "_nodes_backward", "_walk"]


@compiled
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("activation", KINDS, ids=str)
@pytest.mark.parametrize(
    ("tree", "dtype", "kernels"),
    [
        (catnat.balanced(18), torch.float32, SHALLOW),
        (catnat.balanced(18), torch.float64, SHALLOW),
        (catnat.balanced(2048), torch.float32, DEEP),
        (TREES["huffman-20"], torch.float32, BY_NODES),
        (TREES["huffman-20"], torch.float64, BY_NODES),
    ],
    ids=str,
)
def test_every_launch_compiles(monkeypatch, tree, dtype, kernels, activation, arch):
    """A launch compiles the kernel for its arguments, instead of running it."""
    launched = []

    def run(kernel, *args, grid, warmup, **options):
        launched.append(kernel.__name__)
        assert f".target sm_{arch}" in compile_launch(kernel, args, options, arch)

    monkeypatch.setattr(triton.runtime.JITFunction, "run", run)
    scores = torch.zeros(300, tree.num_nodes, dtype=dtype, requires_grad=True)
    ct.log_catnat(scores, tree, activation).sum().backward()
    ct.sample(scores, tree, activation)
    assert launched == kernels
