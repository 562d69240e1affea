"""CatnatHead in torch: sparse gradients and their optimizers, autocast, compilation, training, files."""

from __future__ import annotations

import pytest
import torch
from only_torch import rows
from torch import Tensor

import catnat
import catnat.torch as ct

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")

FEATURES = 6


def make(tree: catnat.Tree, activation="natural", dtype=torch.float64, **options) -> ct.CatnatHead:
    """A head whose scores spread over the bands, some beyond them."""
    torch.manual_seed(0)
    head = ct.CatnatHead(FEATURES, tree, activation, dtype=dtype, **options)
    with torch.no_grad():
        head.weight.normal_(std=2 / FEATURES**0.5)
        if head.bias is not None:
            head.bias.normal_()
    return head


def features(*batch: int, dtype=torch.float64) -> Tensor:
    return torch.randn(*batch, FEATURES, dtype=dtype, generator=rows.seeded(3))


def targets(tree: catnat.Tree, *batch: int) -> Tensor:
    return torch.randint(tree.num_classes, batch, generator=rows.seeded(4))


# ---- sparse gradients ----


@pytest.mark.parametrize("activation", [*rows.FEW_ACTIVATIONS, "own"])
@pytest.mark.parametrize("tree", rows.TREES.values(), ids=rows.TREES)
def test_sparse_gradients_are_the_dense_ones(tree, activation):
    kind = rows.OWN if activation == "own" else rows.ACTIVATIONS[activation]
    weights = torch.linspace(0.5, 2, tree.num_classes, dtype=torch.float64)
    heads = [make(tree, kind, sparse=sparse, class_weights=weights) for sparse in (False, True)]
    for head in heads:
        head(features(7), targets(tree, 7)).loss.backward()
    for dense, sparse in zip(*(head.parameters() for head in heads), strict=True):
        rows.assert_close(sparse.grad.to_dense(), dense.grad)


def test_sparse_adam_moves_only_rows_on_paths():
    head = make(rows.TREES["balanced-100"], sparse=True)
    before, target = head.weight.detach().clone(), torch.tensor([5, 77])
    head(features(2), target).loss.backward()
    torch.optim.SparseAdam(head.parameters(), lr=0.1).step()
    moved = (head.weight != before).any(-1).nonzero().flatten().tolist()
    assert set(moved) == {int(node) for k in target.tolist() for node in head.tree.path(k)[0]}


# ---- the most probable classes ----


def test_a_wide_search_in_pieces_finds_the_same(monkeypatch):
    head, input = make(catnat.balanced(1000)), features(9)
    whole = head.topk(input, 4)
    monkeypatch.setattr("catnat.torch._topk._MOST_PLACES", 50)
    for one, other in zip(whole, head.topk(input, 4), strict=True):
        assert torch.equal(one, other)


# ---- draws ----


def test_draws_can_be_repeated():
    head, input = make(rows.TREES["balanced-100"]), features(3)
    one, other = (head.sample(input, (5,), generator=rows.seeded(1)) for _ in range(2))
    assert torch.equal(one, other)


# ---- sizes, dtypes, beginnings ----


def test_without_a_bias_it_starts_at_the_prior():
    tree = rows.TREES["huffman-100"]
    none = ct.CatnatHead(64, tree, bias=False)
    assert none.bias is None
    torch.testing.assert_close(none.log_prob(torch.zeros(64)).exp(), torch.tensor(tree.prior).float())


def test_autocast_returns_single_precision():
    head, input = make(rows.TREES["balanced-100"], dtype=torch.float32), features(5, dtype=torch.float32)
    target = targets(head.tree, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, loss = head(input, target)
    assert output.dtype == loss.dtype == torch.float32
    torch.testing.assert_close(loss, head(input, target).loss, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", ["balanced-100", "huffman-100"])
def test_compiled_whole_it_gives_the_same(name, fresh_compiler):
    head, input = make(rows.TREES[name], "sigmoid"), features(5)
    target = targets(head.tree, 5)
    compiled = torch.compile(head, backend="aot_eager", fullgraph=True)
    losses = [each(input, target).loss for each in (compiled, head)]
    torch.testing.assert_close(*losses)
    grads = [torch.autograd.grad(loss, head.weight)[0] for loss in losses]
    torch.testing.assert_close(*grads)


# ---- files ----


@pytest.mark.parametrize("name", ["balanced-18", "chain-7", "huffman-20", "uneven-8"])
def test_a_saved_head_comes_back(name, tmp_path):
    tree = rows.TREES[name]
    activation = ct.natural(width=7.0)
    weights = torch.linspace(0.5, 2, tree.num_classes)
    head = make(tree, activation, dtype=torch.bfloat16, sparse=True, class_weights=weights, ignore_index=-1)
    head.save(tmp_path / "new" / "folder")
    again = ct.CatnatHead.load(tmp_path / "new" / "folder")
    assert again.tree == tree
    assert again.activation == activation
    assert (again.sparse, again.ignore_index, again.in_features) == (True, -1, FEATURES)
    for key, value in head.state_dict().items():
        rows.assert_equal(again.state_dict()[key], value)
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == {"head.json", "head.safetensors"}


def test_a_head_without_bias_comes_back_and_learns(tmp_path):
    make(rows.TREES["huffman-20"], "sigmoid", bias=False).save(tmp_path)
    again = ct.CatnatHead.load(tmp_path, device="cpu")
    assert again.bias is None
    again(features(3), targets(again.tree, 3)).loss.backward()
    assert again.weight.grad.isfinite().all()


def test_an_activation_of_ones_own_is_not_saved(tmp_path):
    with pytest.raises(TypeError, match="none of the library's own"):
        make(rows.TREES["balanced-18"], rows.OWN).save(tmp_path)
