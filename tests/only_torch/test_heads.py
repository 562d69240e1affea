"""CatnatHead: what it says of paths is what the dense functions say of all classes."""

from __future__ import annotations

import math

import pytest
import torch
from only_torch import rows
from torch import Tensor, nn
from torch.nn import functional as F

import catnat
import catnat.torch as ct

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")

FEATURES = 6


def make(tree: catnat.Tree, activation="natural", dtype=torch.float64, **options) -> ct.CatnatHead:
    """A head whose scores spread over the bands, some beyond them."""
    torch.manual_seed(0)
    head = ct.CatnatHead(FEATURES, tree, activation, dtype=dtype, **options)
    scale = torch.as_tensor(head.activation.scale(tree)).to(dtype).expand(tree.num_nodes)
    with torch.no_grad():
        head.weight.normal_(std=2 / FEATURES**0.5).div_(scale.unsqueeze(-1))
        if head.bias is not None:
            head.bias.normal_().div_(scale)
    return head


def features(*batch: int, dtype=torch.float64) -> Tensor:
    return torch.randn(*batch, FEATURES, dtype=dtype, generator=rows.seeded(3))


def targets(tree: catnat.Tree, *batch: int) -> Tensor:
    return torch.randint(tree.num_classes, batch, generator=rows.seeded(4))


# ---- paths against all classes ----


def gradients(loss: Tensor, head: ct.CatnatHead, input: Tensor) -> list[Tensor]:
    """Of the input and of all rows, dense."""
    sought = [input, *head.parameters()]
    found = torch.autograd.grad(loss, sought, allow_unused=True)
    return [torch.zeros_like(at) if grad is None else grad.to_dense() for at, grad in zip(sought, found, strict=True)]


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("activation", [*rows.ACTIVATIONS.values(), rows.OWN], ids=[*rows.ACTIVATIONS, "own"])
@pytest.mark.parametrize("tree", rows.TREES.values(), ids=rows.TREES)
def test_loss_and_gradients_are_those_of_the_dense_loss(tree, activation, sparse):
    weights = torch.linspace(0.5, 2, tree.num_classes, dtype=torch.float64)
    head = make(tree, activation, sparse=sparse, class_weights=weights, ignore_index=-1)
    input, target = features(7).requires_grad_(), targets(tree, 7)
    target[2] = -1
    output, loss = head(input, target)
    every = head.log_prob(input)
    wanted = F.nll_loss(every, target, weight=weights, ignore_index=-1)
    torch.testing.assert_close(loss, wanted, rtol=1e-9, atol=1e-9)
    counted = target != -1
    torch.testing.assert_close(output[counted], every[counted].gather(-1, target[counted].unsqueeze(-1)).squeeze(-1))
    assert output[2] == 0
    for got, want in zip(gradients(loss, head, input), gradients(wanted, head, input), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (0,)], ids=str)
def test_any_batch_shape(batch):
    head, input = make(rows.TREES["huffman-100"]), features(*batch)
    target = targets(head.tree, *batch)
    output, loss = head(input, target)
    assert output.shape == batch
    assert loss.shape == ()
    assert loss.isfinite()
    classes = targets(head.tree, *batch, 4, 5)
    every = head.log_prob(input)
    picked = every.unsqueeze(-2).unsqueeze(-2).expand(*classes.shape, -1).gather(-1, classes.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(head.log_prob_of(input, classes), picked)
    assert head.predict(input).shape == batch
    assert head.sample(input, (2, 1)).shape == (2, 1, *batch)
    assert head.distribution(input).batch_shape == batch


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of torch's own Adagrad
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad], ids=["sgd", "adagrad"])
def test_an_optimizer_step_with_sparse_gradients_is_the_dense_one(optimizer):
    after = []
    for sparse in (False, True):
        head = make(rows.TREES["balanced-100"], sparse=sparse)
        steps = optimizer(head.parameters(), lr=0.1)
        for _ in range(3):
            steps.zero_grad()
            head(features(9), targets(head.tree, 9)).loss.backward()
            assert head.weight.grad.is_sparse == head.bias.grad.is_sparse == sparse
            steps.step()
        after.append(head)
    for dense, sparse in zip(*(head.parameters() for head in after), strict=True):
        torch.testing.assert_close(dense, sparse)


def test_sparse_adam_moves_only_rows_on_paths():
    head = make(rows.TREES["balanced-100"], sparse=True)
    before, target = head.weight.detach().clone(), torch.tensor([5, 77])
    head(features(2), target).loss.backward()
    torch.optim.SparseAdam(head.parameters(), lr=0.1).step()
    moved = (head.weight != before).any(-1).nonzero().flatten().tolist()
    assert set(moved) == {int(node) for k in target.tolist() for node in head.tree.path(k)[0]}


# ---- the most probable classes ----

SEARCHED = {
    **{f"balanced-{k}": catnat.balanced(k) for k in (1, 2, 5, 64, 1000, 4096)},
    "huffman-3000": catnat.huffman([1 / (k + 1) for k in range(3000)]),
    "chain-40": catnat.chain(40),
}


@pytest.mark.parametrize("activation", ["sigmoid", "natural"])
@pytest.mark.parametrize("spread", [0.1, 4.0], ids=["near-prior", "certain"])
@pytest.mark.parametrize("tree", SEARCHED.values(), ids=SEARCHED)
def test_topk_is_that_of_all_classes(tree, spread, activation):
    head = make(tree, activation)
    with torch.no_grad():
        head.weight.mul_(spread)
        head.bias.mul_(spread)
    input = features(6)
    every = head.log_prob(input).detach()
    for k in sorted({1, min(5, tree.num_classes), min(40, tree.num_classes)}):
        found = head.topk(input, k)
        assert found.proven.all()
        torch.testing.assert_close(found.values, every.topk(k).values)
        torch.testing.assert_close(found.values, every.gather(-1, found.indices))  # they are what they say
        assert all(len(set(row)) == k for row in found.indices.tolist())
        assert (found.visited <= tree.num_nodes).all()
    torch.testing.assert_close(every.gather(-1, head.predict(input).unsqueeze(-1)), every.amax(-1, keepdim=True))


def test_a_certain_head_is_searched_by_few_nodes():
    tree = catnat.balanced(4096)
    head = make(tree, "sigmoid", bias=False)
    with torch.no_grad():
        head.weight.mul_(8)
    found = head.topk(features(64), 5)
    assert found.visited.double().mean() < 0.1 * tree.num_nodes


def test_a_limited_search_says_what_it_has_not_proven():
    head = make(catnat.balanced(4096), "sigmoid")
    input = features(200)
    best = head.log_prob(input).detach().topk(3).values
    limited = head.topk(input, 3, max_nodes=60)
    right = torch.isclose(limited.values, best).all(-1)
    assert right[limited.proven].all()
    assert 0 < limited.proven.sum() < 200
    assert not right.all()
    assert (limited.visited <= 60 + 32).all()  # a pass more
    torch.testing.assert_close(limited.values, head.log_prob_of(input, limited.indices))


def test_a_wide_search_in_pieces_finds_the_same(monkeypatch):
    head, input = make(catnat.balanced(1000)), features(9)
    whole = head.topk(input, 4)
    monkeypatch.setattr("catnat.torch._topk._MOST_PLACES", 50)
    for one, other in zip(whole, head.topk(input, 4), strict=True):
        assert torch.equal(one, other)


# ---- draws ----


@pytest.mark.parametrize("name", ["balanced-18", "huffman-20"])
def test_draws_have_the_heads_probabilities(name):
    head, input = make(rows.TREES[name], "sigmoid"), features(2)
    drawn = head.sample(input, (20_000,), generator=rows.seeded(5))
    for row, probs in enumerate(head.distribution(input).probs.detach()):
        rows.chi_square(drawn[:, row], probs)


def test_draws_can_be_repeated():
    head, input = make(rows.TREES["balanced-100"]), features(3)
    one, other = (head.sample(input, (5,), generator=rows.seeded(1)) for _ in range(2))
    assert torch.equal(one, other)


# ---- sizes, dtypes, beginnings ----


@pytest.mark.parametrize("scaling", ["paper", "isotropic"])
def test_it_starts_near_the_prior(scaling):
    torch.manual_seed(0)
    tree = rows.TREES["huffman-100"]
    activation = ct.sigmoid(scaling=scaling)
    head = ct.CatnatHead(64, tree, activation)
    scores = head.scores(torch.randn(4000, 64)) * torch.as_tensor(activation.scale(tree)).float()
    assert scores.std() < 0.52
    assert (scores.std(0) < 0.7).all()  # 64 random weights a node
    none = ct.CatnatHead(64, tree, activation, bias=False)
    assert none.bias is None
    torch.testing.assert_close(none.log_prob(torch.zeros(64)).exp(), torch.tensor(tree.prior).float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_hostile_inputs_give_finite_losses_and_gradients(dtype):
    for activation in ("sigmoid", "natural"):
        head = make(rows.TREES["balanced-100"], activation, dtype=dtype)
        largest = math.sqrt(torch.finfo(dtype).max) / 100
        input = (features(6, dtype=torch.float32) * largest).to(dtype).requires_grad_()
        output, loss = head(input, targets(head.tree, 6))
        loss.backward()
        assert output.dtype == loss.dtype == dtype
        for value in (output, loss, input.grad, head.weight.grad, head.bias.grad):
            assert value.isfinite().all()


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


def test_all_targets_ignored_cost_nothing():
    head = make(rows.TREES["balanced-18"])
    output, loss = head(features(3), torch.full((3,), -100))
    loss.backward()
    assert loss == 0
    assert (output == 0).all()
    assert (head.weight.grad == 0).all()


def test_a_model_with_a_head_learns():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 16), nn.LayerNorm(16))
    head = ct.CatnatHead(16, 5000, "sigmoid", sparse=True)
    inputs, target = torch.arange(50), torch.randint(5000, (50,))
    optimizers = [torch.optim.Adam(model.parameters(), 0.01), torch.optim.SparseAdam(head.parameters(), 0.05)]
    for _ in range(150):
        loss = head(model(inputs), target).loss
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    learned = model(inputs).detach()
    assert (head.predict(learned) == target).double().mean() > 0.9
    found = head.topk(learned, 5)  # a trained head, too, is searched exactly
    torch.testing.assert_close(found.values, head.log_prob(learned).topk(5).values)
    assert found.proven.all()
    assert found.visited.double().mean() < 0.05 * head.tree.num_nodes


# ---- files ----


@pytest.mark.parametrize("name", ["balanced-18", "chain-7", "huffman-20", "uneven-8"])
def test_a_saved_head_comes_back(name, tmp_path):
    tree = rows.TREES[name]
    activation = ct.natural(boundary="reflect", scaling="isotropic", width=7.0)
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


def test_errors_say_what_is_needed():
    head = make(rows.TREES["balanced-18"])
    with pytest.raises(ValueError, match=r"`input` has shape \(3, 5\).* 6 floating-point features"):
        head(torch.zeros(3, 5), torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match=r"`target` has shape \(4,\).*one class per row"):
        head(features(3), torch.zeros(4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"holds 18, but this tree has the classes 0 \.\. 17"):
        head(features(1), torch.tensor([18]))
    with pytest.raises(ValueError, match="`k` is 19"):
        head.topk(features(1), 19)
    with pytest.raises(ValueError, match="leading axes of the classes"):
        head.log_prob_of(features(3), torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="`class_weights` has shape"):
        ct.CatnatHead(FEATURES, 4, class_weights=torch.ones(3))
