"""A layer whose tree changes: rows that are kept are kept exactly, with the optimizer's state."""

import gc
import weakref

import numpy as np
import pytest
import torch

import catnat
from catnat.torch import CatnatHead, CatnatLinear

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")  # of priors, made uneven on purpose

TREES = {
    "balanced": catnat.balanced(7),
    "huffman": catnat.huffman([5, 1, 1, 9, 2, 3, 0.1]),
    "clusters": catnat.from_clusters([[0, 5], [1, [2, 4]], [3, 6]]),
}


@pytest.fixture(params=["sigmoid", "natural"])
def activation(request):
    return request.param


@pytest.fixture(params=sorted(TREES))
def layer(request, activation):
    layer = CatnatLinear(3, TREES[request.param], activation, dtype=torch.float64)
    torch.nn.init.normal_(layer.bias, std=0.2)
    return layer


X = torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def trained(layer, steps=3, make=lambda weights: torch.optim.Adam(weights, lr=0.01)):
    """An optimizer with state of its own for every row."""
    optimizer = make(layer.parameters())
    continued(layer, optimizer, steps)
    return optimizer


def continued(layer, optimizer, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        layer.loss(X, torch.arange(20) % layer.tree.num_classes).backward()
        optimizer.step()


def swapped(tree):
    """The same tree with the sides of every second node swapped."""
    children = tree.children.copy()
    children[::2] = children[::2, ::-1]
    return catnat.from_children(children, tree.prior)


@pytest.mark.parametrize("change", [lambda tree: tree, swapped], ids=["unchanged", "swapped"])
def test_the_same_groups_keep_every_probability(layer, change):
    before = layer(X)
    layer.retree(change(layer.tree))
    torch.testing.assert_close(layer(X), before, rtol=1e-6, atol=1e-6)


def test_another_prior_is_made_up_for_by_the_bias(layer):
    before = layer(X)
    layer.retree(layer.tree.with_prior(np.arange(1.0, 8)))
    torch.testing.assert_close(layer(X), before, rtol=1e-6, atol=1e-6)


OPTIMIZERS = {
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.01),
    "amsgrad": lambda weights: torch.optim.AdamW(weights, lr=0.01, amsgrad=True),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.01, momentum=0.9),
    "rmsprop": lambda weights: torch.optim.RMSprop(weights, lr=0.01, momentum=0.9, centered=True),
    "adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.01),
    "adadelta": torch.optim.Adadelta,
    "adafactor": torch.optim.Adafactor,
    "adamax": torch.optim.Adamax,
    "asgd": torch.optim.ASGD,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rprop": torch.optim.Rprop,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_as_if_nothing_had_changed(layer, name):
    """The optimizer's state moves with the rows: steps after a swap are those without it."""
    twin = CatnatLinear(3, layer.tree, layer.activation, dtype=torch.float64)
    twin.load_state_dict(layer.state_dict())
    optimizers = [trained(one, make=OPTIMIZERS[name]) for one in (layer, twin)]
    layer.retree(swapped(layer.tree), optimizer=optimizers[0])
    for one, optimizer in zip((layer, twin), optimizers, strict=True):
        continued(one, optimizer)
    torch.testing.assert_close(layer(X), twin(X), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_goes_on_after_growing(name):
    layer = CatnatLinear(3, 2, dtype=torch.float64)  # with one row, so that columns and rows of state look alike
    optimizer = trained(layer, make=OPTIMIZERS[name])
    layer.grow(3, optimizer=optimizer)
    continued(layer, optimizer)
    assert torch.isfinite(layer(X)).all()


def test_new_rows_are_fitted_to_what_the_layer_says():
    tree = catnat.from_clusters([[0, 3], [1, 5], [2, 4, 6]])
    fitted, drawn = CatnatLinear(3, 7, dtype=torch.float64), CatnatLinear(3, 7, dtype=torch.float64)
    drawn.load_state_dict(fitted.state_dict())
    before = fitted(X).exp().detach()
    fitted.retree(tree, features=X)
    drawn.retree(tree)
    errors = [(layer(X).exp() - before).abs().mean() for layer in (fitted, drawn)]
    assert errors[0] < 0.02
    assert errors[0] < errors[1] / 3


def test_rows_without_bias_are_fitted_without_an_intercept():
    layer, x = CatnatLinear(8, 32, bias=False), 3 + torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
    before = layer(x).detach()
    layer.retree(catnat.from_clusters([[*range(0, 32, 2)], [*range(1, 32, 2)]]), features=x)
    # An intercept that is fitted and then left out makes this 0.07.
    assert (before.exp() * (before - layer(x).detach())).sum(-1).mean() < 0.01


def test_growing_leaves_the_other_classes_as_they_are(layer):
    optimizer = trained(layer, steps=1)
    with torch.no_grad():  # a graph would keep the old shape
        before = layer(X).exp()
    layer.grow(2, beside=[3, 0], fraction=[0.25, 0.1], optimizer=optimizer)
    after = layer(X).exp().detach()
    others = [1, 2, 4, 5, 6]
    torch.testing.assert_close(after[:, others], before[:, others], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(after[:, 7], 0.25 * before[:, 3], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(after[:, 8], 0.1 * before[:, 0], rtol=1e-6, atol=1e-6)
    assert layer.out_features == 9
    layer.loss(X, torch.full((20,), 8)).backward()
    optimizer.step()  # the state has the new shape


def test_a_loss_of_the_last_step_does_not_keep_the_old_shape():
    layer = CatnatLinear(3, 7, dtype=torch.float64)
    optimizer = torch.optim.Adam(layer.parameters())
    for step in range(4):
        loss = layer.loss(X, torch.arange(20) % 7)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1:  # `loss` still refers to the parameters of this step
            layer.grow(2, optimizer=optimizer)
    assert layer.weight.grad.shape == (8, 3)


def test_the_caches_let_go_of_the_old_tree():
    layer = CatnatHead(3, catnat.huffman(np.arange(1.0, 101)))
    layer.loss(X.float(), torch.arange(20))
    old = weakref.ref(layer.tree)
    layer.grow(1)
    layer.loss(X.float(), torch.arange(20))
    gc.collect()
    assert old() is None


def test_rows_that_are_no_plain_parameters_are_refused():
    layer = torch.nn.utils.parametrizations.weight_norm(CatnatLinear(3, 7))
    with pytest.raises(TypeError, match="remove the parametrization"):
        layer.retree(swapped(layer.tree))


def test_an_optimizer_with_one_state_for_all_is_refused():
    layer = CatnatLinear(3, 7)
    with pytest.raises(TypeError, match="make a new LBFGS"):
        layer.grow(1, optimizer=torch.optim.LBFGS(layer.parameters()))


@pytest.mark.parametrize(
    ("features", "why"), [(torch.ones(4, 6), "takes 3 features"), (torch.tensor([[1.0, np.nan, 0.0]]), "holds NaN")]
)
def test_features_that_are_no_inputs_are_refused(features, why):
    layer = CatnatLinear(3, 7)
    with pytest.raises(ValueError, match=why):
        layer.retree(swapped(layer.tree), features=features)


def test_classes_to_remove_are_checked():
    layer = CatnatLinear(3, 7)
    layer.remove([])
    assert layer.tree.num_classes == 7
    with pytest.raises(ValueError, match="100"):
        layer.remove([100])


def test_removing_gives_the_mass_to_the_sibling(layer):
    before, tree = layer(X).exp().detach(), layer.tree
    layer.remove([4])
    parent = tree.path(4)[0][-1]
    sibling = [k for k in range(7) if k != 4 and parent in tree.path(k)[0]]
    wanted = before.clone()
    wanted[:, sibling] *= 1 + before[:, [4]] / before[:, sibling].sum(-1, keepdim=True)
    kept = [k for k in range(7) if k != 4]
    torch.testing.assert_close(layer(X).exp(), wanted[:, kept], rtol=1e-6, atol=1e-6)


def test_a_layer_without_bias_cannot_take_another_prior():
    layer = CatnatLinear(3, 7, bias=False)
    with pytest.raises(ValueError, match=r"with_prior\(layer\.tree\.prior\)"):
        layer.retree(catnat.balanced(7).with_prior(np.arange(1.0, 8)))


def test_a_tree_over_other_classes_is_refused():
    with pytest.raises(ValueError, match="use grow or remove"):
        CatnatLinear(3, 7).retree(catnat.balanced(8))


def test_a_head_keeps_its_weights_of_classes_and_saves_its_tree(tmp_path):
    pytest.importorskip("safetensors")
    head = CatnatHead(3, 5, class_weights=torch.arange(1.0, 6), sparse=True)
    head.grow(1, beside=2)
    head.remove([0])
    assert head.class_weights.tolist() == [2.0, 3.0, 4.0, 5.0, 1.0]
    head.save(tmp_path)
    again, x = CatnatHead.load(tmp_path), torch.randn(4, 3)
    torch.testing.assert_close(again.log_probs(x), head.log_probs(x))
    assert head.topk(x, 2).indices.tolist() == head.log_probs(x).topk(2).indices.tolist()
    assert head.sample(x).max() < 5


def test_a_head_is_built_from_its_state():
    head = CatnatHead(3, TREES["huffman"], class_weights=torch.arange(1.0, 8))
    again = CatnatHead.from_state_dict(head.state_dict(), sparse=True)
    assert again.tree == head.tree
    assert again.sparse
    assert torch.equal(again.class_weights, head.class_weights)
    torch.testing.assert_close(again.log_probs(X.float()), head.log_probs(X.float()))


def test_a_checkpoint_of_another_order_is_refused():
    layer = CatnatLinear(3, 7)
    state = layer.state_dict()
    layer.retree(catnat.from_clusters([[0, 3], [1, 5], [2, 4, 6]]))
    with pytest.raises(RuntimeError, match="the tree"):
        layer.load_state_dict(state)
    CatnatLinear.from_state_dict(layer.state_dict())
