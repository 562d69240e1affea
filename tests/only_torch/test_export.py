"""torch.export and ONNX, run in onnxruntime, equal to eager with a dynamic batch (TensorRT#3459)."""

from __future__ import annotations

import io
import logging

import numpy as np
import pytest
import torch
from only_torch import rows
from torch import Tensor, nn

import catnat
import catnat.torch as ct

pytestmark = [
    pytest.mark.filterwarnings("ignore::catnat.EdgeWarning"),
    # The exporter's own: its pytree API moves, and two inputs share one batch axis on purpose.
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*will not be used, since it shares the same shape.*:UserWarning"),
]

NAMES = ("catnat", "log_catnat", "log_prob", "entropy", "cross_entropy", "cross_entropy-smooth")
BATCH = torch.export.Dim("batch", min=0, max=1024)


class Everything(nn.Module):
    """The functions that must export, in one graph."""

    def __init__(self, tree: catnat.Tree | None, activation: ct.Activation | str) -> None:
        super().__init__()
        self.tree, self.activation = tree, activation

    def forward(self, scores: Tensor, classes: Tensor) -> tuple[Tensor, ...]:
        args = (self.tree, self.activation)
        return (
            ct.catnat(scores, *args),
            ct.log_catnat(scores, *args),
            ct.log_prob(scores, classes, *args),
            ct.entropy(scores, *args),
            ct.cross_entropy(scores, classes, *args),
            ct.cross_entropy(scores, classes, *args, label_smoothing=0.1),
        )


def inputs(tree: catnat.Tree, batch: int) -> tuple[Tensor, Tensor]:
    """Scores of every size, saturated nodes included, and some far outside any band."""
    scores = rows.around(tree, batch, dtype=torch.float32, seed=batch)
    scores[0, ::3] = 200.0
    scores[-1, 1::3] = -1e4
    return scores, torch.arange(batch) * 5 % tree.num_classes


def compare(got: tuple[Tensor, ...], wanted: tuple[Tensor, ...], rtol: float, atol: float) -> None:
    for name, one, other in zip(NAMES, got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol, msg=lambda m, name=name: f"{name}: {m}")


TREES = {**rows.TREES, "balanced-64": catnat.balanced(64), "balanced-128": catnat.balanced(128)}
del TREES["balanced-1"]
# A matrix product, levels, a chain and a table, large and small; the slow tests have all pairs.
CASES = [
    ("balanced-8", "natural-narrow"),
    ("balanced-128", "sigmoid"),
    ("chain-100", "sigmoid"),
    ("huffman-20", "sigmoid"),
    ("huffman-100", "natural"),
]
PAIRS = [(tree, activation) for tree in TREES for activation in ("sigmoid", "natural")]
everywhere = pytest.mark.parametrize(("tree", "activation"), PAIRS)


def check_exported_program(tree: catnat.Tree, activation: ct.Activation) -> None:
    module = Everything(tree, activation).eval()
    program = torch.export.export(module, inputs(tree, 3), dynamic_shapes=({0: BATCH}, {0: BATCH}))
    for batch in (2, 3, 7):
        given = inputs(tree, batch)
        compare(program.module()(*given), module(*given), 1e-5, 1e-6)


@pytest.mark.one_row
@pytest.mark.parametrize(("tree", "activation"), CASES)
def test_exported_program_equals_eager(tree, activation):
    check_exported_program(TREES[tree], rows.ACTIVATIONS[activation])


@pytest.mark.slow
@everywhere
def test_exported_program_equals_eager_everywhere(tree, activation):
    check_exported_program(TREES[tree], rows.ACTIVATIONS[activation])


def test_exported_program_can_be_saved_and_loaded():
    module = ct.CatnatLinear(4, catnat.huffman([5, 3, 1, 1, 1]))
    features = torch.randn(3, 4, generator=rows.seeded(0))
    file = io.BytesIO()
    torch.export.save(torch.export.export(module.eval(), (features,), dynamic_shapes=({0: BATCH},)), file)
    file.seek(0)
    again = torch.export.load(file).module()
    more = torch.randn(6, 4, generator=rows.seeded(1))
    torch.testing.assert_close(again(more), module(more))


@pytest.mark.one_row
@pytest.mark.parametrize("default", [9, 99])
def test_the_default_tree_exports(default):
    tree = catnat.balanced(default + 1)
    module = Everything(None, "natural").eval()
    program = torch.export.export(module, inputs(tree, 3), dynamic_shapes=({0: BATCH}, {0: BATCH}))
    compare(program.module()(*inputs(tree, 5)), module(*inputs(tree, 5)), 1e-5, 1e-6)


# ---- ONNX ----


def onnx_session(module: nn.Module, given: tuple[Tensor, ...], dynamic: bool = True):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    shapes = tuple({0: BATCH} for _ in given) if dynamic else None
    program = torch.onnx.export(module.eval(), given, dynamo=True, dynamic_shapes=shapes, verbose=False)
    assert program is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    model = program.model_proto.SerializeToString()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(session, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    named = {slot.name: value.numpy() for slot, value in zip(session.get_inputs(), given, strict=True)}
    return tuple(torch.from_numpy(np.asarray(value)) for value in session.run(None, named))


def check_onnx(tree: catnat.Tree, activation: ct.Activation) -> None:
    module = Everything(tree, activation)
    session = onnx_session(module, inputs(tree, 3))
    for batch in (1, 2, 3, 7):
        given = inputs(tree, batch)
        compare(run(session, given), module(*given), 1e-4, 1e-5)


@pytest.mark.slow
@everywhere
def test_onnxruntime_equals_eager_everywhere(tree, activation):
    check_onnx(TREES[tree], rows.ACTIVATIONS[activation])


def test_a_classifier_goes_to_onnx():
    """As it would be deployed."""
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), ct.CatnatLinear(16, 10))
    features = torch.randn(3, 6, generator=rows.seeded(0))
    session = onnx_session(model, (features,))
    for batch in (8, 1, 0):
        more = torch.randn(batch, 6, generator=rows.seeded(1))
        (got,) = run(session, (more,))
        torch.testing.assert_close(got, model(more).detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(got.exp().sum(-1), torch.ones(batch))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("classes", [5, 300])
def test_traces_contain_plain_operations(classes):
    """As recorded by ``torch.jit.trace``, which cannot save a Function of Python or an operator of the kernels."""
    layer = ct.CatnatLinear(3, classes)
    example, other = torch.randn(100, 3), torch.randn(7, 3)
    traced = torch.jit.trace(layer, example, check_trace=False)
    assert "catnat::" not in str(traced.inlined_graph)
    assert "PythonOp" not in str(traced.inlined_graph)
    torch.testing.assert_close(traced(example), layer(example))
    torch.testing.assert_close(traced(other), layer(other))
