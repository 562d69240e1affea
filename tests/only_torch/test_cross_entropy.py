"""The counterpart of torch's cross_entropy: equal to it on ``log_catnat(scores)``, for every layout and option."""

from __future__ import annotations

import itertools

import pytest
import torch
from only_torch import rows
from torch import Tensor
from torch.nn import functional as F

import catnat
import catnat.torch as ct

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")

TREES = {**rows.FEW_TREES, "huffman-100": rows.TREES["huffman-100"], "chain-100": rows.TREES["chain-100"]}
LAYOUTS = [(), (6,), (6, 2, 3), (4, 2), (2, 1, 2, 2)]  # what is left of the shape without the class axis


def make(
    tree: catnat.Tree, layout: tuple[int, ...], dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, class targets and probability targets in torch's layout: the class axis second, or the only one."""
    axis = 1 if layout else 0
    scores = rows.around(tree, *layout, dtype=dtype)
    classes = torch.randint(tree.num_classes, layout, generator=rows.seeded(1))
    probs = torch.softmax(torch.randn(*layout, tree.num_classes, generator=rows.seeded(2)), -1).to(dtype)
    return scores.movedim(-1, axis).contiguous(), classes, probs.movedim(-1, axis).contiguous()


def theirs(scores: Tensor, target: Tensor, tree: catnat.Tree, activation, **options) -> Tensor:
    axis = 1 if scores.ndim > 1 else 0
    return F.cross_entropy(ct.log_catnat(scores, tree, activation, dim=axis), target, **options)


def compare(scores: Tensor, target: Tensor, tree: catnat.Tree, activation="natural", **options) -> None:
    """Values and gradients."""
    scores = scores.detach().requires_grad_()
    got, wanted = (
        ct.cross_entropy(scores, target, tree, activation, **options),
        theirs(scores, target, tree, activation, **options),
    )
    assert got.shape == wanted.shape
    assert got.dtype == wanted.dtype
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)
    upstream = torch.linspace(0.5, 1.5, got.numel(), dtype=got.dtype).view(got.shape)
    gradients = [torch.autograd.grad(value, scores, upstream)[0] for value in (got, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-8)


OPTIONS = [
    dict(zip(("reduction", "label_smoothing", "weighted", "ignored"), values, strict=True))
    for values in itertools.product(("none", "mean", "sum"), (0.0, 0.1, 1.0), (False, True), (False, True))
]


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_class_targets_with_every_combination_of_options(tree):
    """And probability targets; pytorch#12675: negative and positive marks of what is ignored, also out of range."""
    for layout in LAYOUTS:
        scores, classes, probs = make(tree, layout)
        for place, given in enumerate(OPTIONS):
            target, options = classes.clone(), {k: given[k] for k in ("reduction", "label_smoothing")}
            if given["weighted"]:
                options["weight"] = torch.linspace(0.5, 2, tree.num_classes, dtype=torch.float64)
            if given["ignored"] and layout:
                options["ignore_index"] = (-100, -1, 255, int(target.flatten()[0]))[place % 4]
                target.view(-1)[0] = options["ignore_index"]
            compare(scores, target, tree, **options)
            if not given["ignored"]:
                compare(scores, probs, tree, **options)


@pytest.mark.parametrize("activation", [*rows.ACTIVATIONS.values(), rows.OWN], ids=[*rows.ACTIVATIONS, "own"])
def test_every_activation(activation):
    for tree in TREES.values():
        scores = rows.inside(tree, activation, 5)
        classes = torch.randint(tree.num_classes, (5,), generator=rows.seeded(1))
        compare(scores, classes, tree, activation)
        compare(scores, classes, tree, activation, label_smoothing=0.2)


# ---- ignored targets ----


def test_the_mean_over_nothing_is_zero():
    """torch returns NaN, which ends a training run; here a batch of padding contributes nothing."""
    for tree in TREES.values():
        for options in ({}, {"label_smoothing": 0.1}, {"weight": torch.ones(tree.num_classes)}):
            scores = torch.zeros(3, tree.num_nodes, requires_grad=True)
            loss = ct.cross_entropy(scores, torch.full((3,), -100), tree, **options)
            assert loss == 0
            (gradient,) = torch.autograd.grad(loss, scores)
            assert (gradient == 0).all()
            assert ct.cross_entropy(scores, torch.full((3,), -100), tree, reduction="sum", **options) == 0
        empty = torch.zeros(0, tree.num_nodes, requires_grad=True)
        loss = ct.cross_entropy(empty, torch.zeros(0, dtype=torch.int64), tree)
        loss.backward()
        assert loss == 0
    zero_weight = ct.cross_entropy(torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64), weight=torch.zeros(5))
    assert zero_weight == 0


# ---- dtypes ----


def test_a_gradient_reaches_probability_targets_too():
    """Distillation and label learning differentiate the target."""
    scores, _, probs = make(catnat.balanced(5), (4,))
    probs.requires_grad_()
    (got,) = torch.autograd.grad(ct.cross_entropy(scores, probs, reduction="sum"), probs)
    rows.assert_close(got, -ct.log_catnat(scores))
