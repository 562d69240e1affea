"""Layers that know their tree: what they say is what the functions say with that tree, in both frameworks."""

from __future__ import annotations

import copy
import io

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import catnat
import catnat.jax as cj
import catnat.torch as ct

TREE = catnat.huffman(cases.zipf(6))
ACTIVATIONS = {
    "sigmoid": (ct.sigmoid(), cj.sigmoid()),
    "reflect": (ct.natural(boundary="reflect"), cj.natural(boundary="reflect")),
}
FEATURES = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
TARGET = np.random.default_rng(1).integers(6, size=(2, 5))
PROBS = np.random.default_rng(2).dirichlet(np.ones(6), size=(2, 5)).astype(np.float32)

both = pytest.mark.parametrize("name", ACTIVATIONS)


def in_torch(kind, name):
    torch.manual_seed(0)
    return kind(3, TREE, ACTIVATIONS[name][0])


def in_jax(kind, name):
    return kind(3, TREE, ACTIVATIONS[name][1], key=jax.random.key(0))


@both
@pytest.mark.parametrize("kind", [ct.ScoreLayer, ct.CatnatHead])
def test_a_torch_layer_speaks_for_its_tree(kind, name):
    layer, x, activation = in_torch(kind, name), torch.tensor(FEATURES), ACTIVATIONS[name][0]
    scores = nn.functional.linear(x, layer.weight, layer.bias)
    target, valid = torch.tensor(TARGET), torch.tensor([True, False, True, True, False, True])
    wanted = ct.log_catnat(scores, TREE, activation)
    torch.testing.assert_close(layer.log_probs(x), wanted)
    torch.testing.assert_close(layer.distribution(x).logits, wanted)
    torch.testing.assert_close(
        layer.distribution(x, mask=valid).probs, ct.Catnat(scores, TREE, activation, mask=valid).probs
    )
    torch.testing.assert_close(layer.loss(x, target), -wanted.gather(-1, target[..., None]).mean())
    assert not torch.allclose(layer.log_probs(x), ct.log_catnat(scores), atol=0.1)  # the mistake it is there for


@pytest.mark.one_row
@both
@pytest.mark.parametrize("kind", [cj.ScoreLayer, cj.CatnatHead])
def test_a_jax_layer_speaks_for_its_tree(kind, name):
    layer, x, activation = in_jax(kind, name), jnp.asarray(FEATURES), ACTIVATIONS[name][1]
    scores, valid = x @ layer.weight.T + layer.bias, jnp.array([True, False, True, True, False, True])
    wanted = cj.log_catnat(scores, TREE, activation)
    np.testing.assert_allclose(layer.log_probs(x), wanted, rtol=1e-5)
    np.testing.assert_allclose(layer.distribution(x).logits, wanted, rtol=1e-5)
    masked = cj.Catnat(scores, TREE, activation, mask=valid).probs
    np.testing.assert_allclose(layer.distribution(x, mask=valid).probs, masked, rtol=1e-5)
    picked = jnp.take_along_axis(wanted, jnp.asarray(TARGET)[..., None], -1)
    np.testing.assert_allclose(layer.loss(x, jnp.asarray(TARGET)), -picked.mean(), rtol=1e-5)
    gradient = jax.grad(lambda layer: layer.loss(x, jnp.asarray(TARGET)))(layer)
    assert float(jnp.abs(gradient.weight).sum()) > 0


def test_losses_of_probabilities_and_their_options():
    """Classes are on the last axis of a layer's loss, however many axes the features have."""
    one, other = in_torch(ct.ScoreLayer, "sigmoid"), in_jax(cj.ScoreLayer, "sigmoid")
    other = other.load_state_dict({name: value.numpy() for name, value in one.state_dict().items()})
    logs = one.log_probs(torch.tensor(FEATURES)).detach()
    soft = -(logs * torch.tensor(PROBS)).sum(-1)
    for reduction, wanted in (("none", soft), ("mean", soft.mean()), ("sum", soft.sum())):
        got = one.loss(torch.tensor(FEATURES), torch.tensor(PROBS), reduction=reduction)
        torch.testing.assert_close(got.detach(), wanted)
        got = other.loss(jnp.asarray(FEATURES), jnp.asarray(PROBS), reduction=reduction)
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
    ignored = TARGET.copy()
    ignored[0] = -100
    left = -np.take_along_axis(logs.numpy(), TARGET[..., None], -1)[1].mean()
    np.testing.assert_allclose(one.loss(torch.tensor(FEATURES), torch.tensor(ignored)).detach(), left, rtol=1e-5)
    np.testing.assert_allclose(other.loss(jnp.asarray(FEATURES), jnp.asarray(ignored)), left, rtol=1e-5)


@pytest.mark.parametrize("kind", ["ScoreLayer", "CatnatHead"])
def test_weights_go_from_one_framework_to_the_other(kind):
    one, other = in_torch(getattr(ct, kind), "reflect"), in_jax(getattr(cj, kind), "reflect")
    there = other.load_state_dict({name: value.numpy() for name, value in one.state_dict().items()})
    np.testing.assert_allclose(
        there.log_probs(jnp.asarray(FEATURES)), one.log_probs(torch.tensor(FEATURES)).detach(), rtol=1e-4
    )
    back = in_torch(getattr(ct, kind), "reflect")
    nn.init.zeros_(back.weight)
    state = {name: torch.tensor(np.asarray(value)) for name, value in there.state_dict().items()}
    assert not any(back.load_state_dict(state))
    torch.testing.assert_close(back.weight, one.weight)


@pytest.mark.parametrize("kind", [ct.ScoreLayer, ct.CatnatHead])
def test_a_refused_checkpoint_changes_nothing(kind):
    layer, other = in_torch(kind, "sigmoid"), in_torch(kind, "reflect")
    nn.init.ones_(other.weight)
    before = layer.weight.detach().clone()
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=r"activation natural.*sigmoid"):
            layer.load_state_dict(other.state_dict(), strict=strict)
    with pytest.raises(RuntimeError, match=r"1: The checkpoint.*the tree balanced\(6\)"):  # which layer of a model
        nn.Sequential(nn.ReLU(), layer).load_state_dict(nn.Sequential(nn.ReLU(), kind(3, 6, "sigmoid")).state_dict())
    torch.testing.assert_close(layer.weight.detach(), before, rtol=0, atol=0)


def test_trees_that_print_alike_are_told_apart():
    one, other = (catnat.huffman(cases.zipf(6)), catnat.huffman(cases.zipf(6)[::-1]))
    assert repr(one) == repr(other)
    with pytest.raises(RuntimeError, match=r"tree_table_6_\w+\), where this one has .*tree_table_6_"):
        ct.ScoreLayer(3, one).load_state_dict(ct.ScoreLayer(3, other).state_dict())


def test_a_fingerprint_goes_where_weights_go():
    """Through files that may hold tensors alone, copies, averages, and layers on another device."""
    layer, file = in_torch(ct.ScoreLayer, "sigmoid"), io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    copied = copy.deepcopy(layer)
    assert not any(copied.load_state_dict(torch.load(file, weights_only=True)))
    assert all(isinstance(value, torch.Tensor) for value in layer.state_dict().values())
    averaged = torch.optim.swa_utils.AveragedModel(layer)
    averaged.update_parameters(layer)
    assert not any(averaged.load_state_dict(averaged.state_dict()))
    half = copy.deepcopy(layer).half()
    assert not any(half.load_state_dict(layer.half().state_dict()))


def test_strict_false_takes_weights_that_nobody_knows_the_tree_of():
    layer, plain = in_torch(ct.ScoreLayer, "sigmoid"), nn.Linear(3, 5)
    assert layer.load_state_dict(plain.state_dict(), strict=False).missing_keys == ["_extra_state"]
    torch.testing.assert_close(layer.weight, plain.weight)
