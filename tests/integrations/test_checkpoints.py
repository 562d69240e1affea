"""Softmax layers as layers of scores: exact where that can be, and otherwise no dearer than what plain search finds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import catnat
import catnat.torch as ct
from catnat.integrations.checkpoints import from_softmax

ACTIVATIONS = ["sigmoid", "natural"]


def softmax_layer(features, classes, size=1.0, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    linear = nn.Linear(features, classes, **options)
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * size / features**0.5)
    return linear


def data(rows, features, seed=1, dtype=torch.float64):
    return torch.randn(rows, features, generator=torch.Generator().manual_seed(seed), dtype=dtype) + 0.3


def slow_kl(linear, layer, inputs):
    """By the definition, class by class."""
    with torch.no_grad():
        p = linear(inputs).double().softmax(-1).numpy()
        q = layer(inputs).double().exp().numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(p > 0, p * (np.log(p) - np.log(q)), 0).sum(-1).mean()


# ---- where it is exact ----


@pytest.mark.parametrize("steps", [0, 20])
@pytest.mark.parametrize("bias", [True, False])
def test_two_classes_are_exact(bias, steps):
    """One node, whose log-odds are the difference of the logits: the rows' difference, by hand."""
    linear = softmax_layer(5, 2, 2.0, bias=bias, dtype=torch.float64)
    layer, kl, *_ = from_softmax(linear, data(40, 5), steps=steps)
    torch.testing.assert_close(layer.weight, linear.weight[1:] - linear.weight[:1], rtol=1e-7, atol=1e-7)
    assert (layer.bias is not None) == bias
    if bias:
        torch.testing.assert_close(layer.bias, linear.bias[1:] - linear.bias[:1], rtol=1e-7, atol=1e-7)
    assert kl < 1e-12


def test_logits_that_are_equal_within_subtrees_are_exact():
    """Whatever the tree below: log-odds are then a difference of two logits, and a constant."""
    groups, tree = [[0, 3, 4], [1, 2], [5, 6, 7, 8]], catnat.from_clusters([[[0, 3, 4], [1, 2]], [5, 6, 7, 8]])
    linear = nn.Linear(4, 9, dtype=torch.float64)
    with torch.no_grad():  # the first two groups are alike, too: the root sees two logits, and a node two groups
        weight, bias = torch.randn(2, 4, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
        for group, which in zip(groups, (0, 0, 1), strict=True):
            linear.weight[group], linear.bias[group] = weight[which], bias[which]
    layer, kl, *_ = from_softmax(linear, data(100, 4), tree, steps=0)
    assert kl < 1e-12
    elsewhere = data(50, 4, seed=2) * 3
    torch.testing.assert_close(layer(elsewhere), linear(elsewhere).log_softmax(-1))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_constant_logits_are_exact(activation):
    """A layer whose weights are 0: the scores of one distribution, in the bias."""
    linear = softmax_layer(3, 6, dtype=torch.float64)
    nn.init.zeros_(linear.weight)
    tree = catnat.huffman([5, 3, 2, 1, 1, 4])
    layer, kl, *_ = from_softmax(linear, data(50, 3), tree, activation)
    assert kl < 1e-12
    torch.testing.assert_close(layer.bias, ct.scores_from_logits(linear.bias, tree, activation), rtol=1e-6, atol=1e-6)
    assert layer.weight.abs().max() < 1e-6


# ---- where it is not ----


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("size", [1.0, 4.0])
def test_descent_lowers_the_divergence_that_is_reported(activation, size):
    inputs, linear = data(300, 6), softmax_layer(6, 9, size, dtype=torch.float64)
    costs = []
    for steps in (0, 2, 8, 60):
        found = from_softmax(linear, inputs, activation=activation, steps=steps)
        costs.append(found.kl_in_sample)
        over_all = 0.8 * found.kl_in_sample + 0.2 * found.kl
        if activation == "sigmoid":  # natural has branches of probability 0: the reported divergence is then floored
            assert over_all == pytest.approx(slow_kl(linear, found.layer, inputs), rel=1e-6)
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < 0.995 * costs[0]
    assert all(np.isfinite(costs))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_is_reported_is_what_other_rows_have(activation):
    """Few rows for many features: in sample the fit is far too good. Rows that come later decide who is right."""
    linear, inputs = softmax_layer(40, 12, 3.0, dtype=torch.float64), data(200, 40)
    found = from_softmax(linear, inputs, activation=activation)
    later = data(4000, 40, seed=7)
    with torch.no_grad():
        p = linear(later).log_softmax(-1)
        truth = (p.exp() * (p - found.layer(later))).sum(-1).mean().item()
    assert found.kl_in_sample < 0.7 * truth
    assert found.kl == pytest.approx(truth, rel=0.35)


def test_the_change_of_the_loss_is_that_of_held_out_labels():
    """Labels drawn from the softmax: on average the loss rises by the divergence."""
    linear, inputs = softmax_layer(6, 9, 2.0, dtype=torch.float64), data(20_000, 6)
    labels = torch.distributions.Categorical(logits=linear(inputs)).sample()
    found = from_softmax(linear, inputs.view(200, 100, 6), labels=labels.view(200, 100), steps=20)
    with torch.no_grad():  # over all rows, of which the held-out ones are a fifth
        change = found.layer.loss(inputs, labels) - nn.functional.cross_entropy(linear(inputs), labels)
    assert found.loss_change == pytest.approx(change.item(), abs=0.02)
    assert found.loss_change == pytest.approx(found.kl, abs=0.02)
    assert found.kl > 0.05
    assert from_softmax(linear, inputs, steps=0).loss_change is None


def test_the_least_squares_start_is_that_of_every_node():
    """With the sigmoid and small logits nothing is held back: NumPy's least squares of the log-odds."""
    linear, inputs = softmax_layer(4, 5, 0.3, dtype=torch.float64), data(200, 4)
    fitted = inputs[torch.randperm(200, generator=torch.Generator().manual_seed(0))[40:]]
    layer = from_softmax(linear, inputs, steps=0).layer
    design = np.concatenate([fitted.numpy(), np.ones((160, 1))], 1)
    tree, p = layer.tree, linear(fitted).softmax(-1).detach().numpy()
    below = {leaf + tree.num_nodes: p[:, leaf] for leaf in range(5)}
    for node in reversed(range(tree.num_nodes)):
        no, yes = (below[int(child)] for child in tree.child_ids[node])
        below[node] = no + yes
        shift = np.log(tree.yes_fraction()[node] / (1 - tree.yes_fraction()[node]))
        wanted = np.linalg.lstsq(design, np.log(yes / no) - shift, rcond=None)[0]
        np.testing.assert_allclose(layer.weight[node].detach(), wanted[:-1], rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(layer.bias[node].detach(), wanted[-1], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("size", [2.0, 6.0])
def test_the_start_is_held_where_it_does_no_harm(size):
    """A sure softmax: plain least squares of natural scores leaves the band. Cheaper than it, and than constants."""
    linear, inputs = softmax_layer(4, 6, size, dtype=torch.float64), data(200, 4)
    fitted = inputs[torch.randperm(200, generator=torch.Generator().manual_seed(0))[40:]]
    with torch.no_grad():
        wanted = ct.scores_from_logits(linear(fitted), 6, "natural")
        design = torch.cat([fitted, torch.ones(160, 1, dtype=torch.float64)], 1)
        plain = design @ torch.linalg.lstsq(design, wanted).solution
        costs = [
            ct.kl_divergence(wanted, scores.expand(160, -1), 6, "natural").mean() for scores in (plain, wanted.mean(0))
        ]
    assert from_softmax(linear, inputs, activation="natural", steps=0).kl_in_sample < 0.99 * min(costs)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_descent_ends_at_a_minimum(activation):
    """No small change of any weight lowers the divergence: by differences, not by the gradient that led there."""
    inputs, linear = data(200, 2), softmax_layer(2, 3, dtype=torch.float64)
    fitted = inputs[torch.randperm(200, generator=torch.Generator().manual_seed(0))[40:]]
    layer, _, kl, _ = from_softmax(linear, inputs, activation=activation, steps=500)
    for parameter in layer.parameters():
        for place in np.ndindex(*parameter.shape):
            for change in (-1e-3, 1e-3):
                with torch.no_grad():
                    parameter[place] += change
                    assert slow_kl(linear, layer, fitted) > kl - 1e-9
                    parameter[place] -= change


def test_redundant_features():
    """Copies and constants among the features: one of many equal fits, and a small one."""
    linear, inputs = softmax_layer(6, 2, dtype=torch.float64), data(50, 6)
    inputs[:, 1], inputs[:, 2], inputs[:, 3] = inputs[:, 0], 0.0, 1.0
    layer, kl, *_ = from_softmax(linear, inputs)
    assert kl < 1e-12
    assert layer.weight.abs().max() < 10


# ---- as a part of a model ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shape_dtype_and_batch_axes(dtype):
    linear = softmax_layer(4, 7).to(dtype)
    inputs = data(60, 4).to(dtype)
    layer, kl, *_ = from_softmax(linear, inputs.view(3, 20, 4), steps=5)
    assert isinstance(layer, ct.CatnatLinear)
    assert layer(inputs).shape == (60, 7)
    assert (layer.weight.dtype, layer.bias.dtype) == (dtype, dtype)
    assert layer.weight.requires_grad
    assert layer.weight.grad is None
    assert linear.weight.grad is None
    assert 0 <= kl < 1
    again = from_softmax(linear, inputs, steps=5)
    assert kl == again.kl
    assert torch.equal(layer.weight, again.layer.weight)


def test_it_works_without_gradients_and_leaves_the_model_alone():
    linear, inputs = softmax_layer(4, 7), data(60, 4, dtype=torch.float32)
    before = {name: value.clone() for name, value in linear.state_dict().items()}
    with torch.no_grad():
        kl = from_softmax(linear, inputs).kl
    with torch.inference_mode():
        layer, same, *_ = from_softmax(linear, inputs * 1)
    assert same == kl
    assert layer.weight.requires_grad
    assert not layer.weight.is_inference()
    assert kl == from_softmax(linear, inputs.requires_grad_()).kl
    assert inputs.grad is None
    for name, value in linear.state_dict().items():
        assert torch.equal(value, before[name])
