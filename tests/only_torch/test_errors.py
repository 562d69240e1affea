"""Every error names the argument, what was given, and how to fix it; the mistakes themselves are in test_misuse.py."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import catnat
import catnat.torch as ct

S, Y = torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64)
# Every public function and constructor of (scores, tree, activation).
CALLS = {
    "catnat": ct.catnat,
    "log_catnat": ct.log_catnat,
    "log_prob": lambda s, *args: ct.log_prob(s, Y, *args),
    "sample": ct.sample,
    "sample_without_replacement": lambda s, *args: ct.sample_without_replacement(s, 2, *args),
    "mode": ct.mode,
    "entropy": ct.entropy,
    "kl_divergence-p": lambda s, *args: ct.kl_divergence(s, S, *args),
    "kl_divergence-q": lambda s, *args: ct.kl_divergence(S, s, *args),
    "cross_entropy": lambda s, *args: ct.cross_entropy(s, Y, *args),
    "reach": ct.geometry.reach,
    "saturated": ct.geometry.saturated,
    "fisher_diagonal": ct.geometry.fisher_diagonal,
    "natural_gradient": ct.geometry.natural_gradient,
    "kl_step": lambda s, *args: ct.geometry.kl_step(s, S, 0.1, *args),
    "Catnat": ct.Catnat,
    "OneHotCatnat": ct.OneHotCatnat,
    "OneHotCatnatStraightThrough": ct.OneHotCatnatStraightThrough,
    "RelaxedOneHotCatnat": lambda s, *args: ct.RelaxedOneHotCatnat(0.5, s, *args),
}
FIVE = catnat.balanced(5)
BAD = {
    "one score per class": ((torch.zeros(3, 5), FIVE), ValueError, r"`scores` has 5 .*4 nodes.*softmax.*balanced\(6\)"),
    "any other width": ((torch.zeros(3, 7), catnat.chain(5)), ValueError, r"`scores` has 7 .* 4 nodes.*balanced\(8\)"),
    **{
        f"a {type(bad).__name__} as scores": ((bad, FIVE), TypeError, rf"`scores` is a {type(bad).__name__}.*as_tensor")
        for bad in (np.zeros((3, 4), np.float32), [[0.0] * 4] * 3, None, 1.5)
    },
    **{
        f"scores of {dtype}": ((torch.zeros(3, 4, dtype=dtype), FIVE), TypeError, f"`scores` .*{dtype}.*floating-point")
        for dtype in (torch.int64, torch.bool, torch.complex64)
    },
    "no axis of nodes": ((torch.tensor(0.5), FIVE), TypeError, "`scores` .*last axis"),
    **{f"{bad!r} as tree": ((S, bad), TypeError, r"`tree` is .*balanced\(") for bad in (5.5, True, "tree", [[0, 1]])},
    "an unknown activation": ((S, FIVE, "softmax"), ValueError, "`activation` is 'softmax'.*'natural', 'sigmoid'"),
    **{
        f"{getattr(bad, '__name__', bad)} as activation": (
            (S, FIVE, bad),
            TypeError,
            "`activation` is .*subclass of catnat.Activation",
        )
        for bad in (torch.sigmoid, 3, None, ct.natural)
    },
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_scores_trees_and_activations(call, name):
    arguments, error, text = BAD[name]
    with pytest.raises(error, match=text):
        call(*arguments)


@pytest.mark.parametrize("tree", [FIVE, catnat.balanced(100), catnat.chain(100)], ids=repr)
@pytest.mark.parametrize("call", [ct.log_prob, ct.cross_entropy], ids=["log_prob", "cross_entropy"])
def test_classes(call, tree):
    scores = torch.zeros(3, tree.num_nodes)
    for bad in (tree.num_classes, -1, 12345):
        with pytest.raises(ValueError, match=rf"holds {bad}, .* 0 \.\. {tree.num_classes - 1}.*ignore_index"):
            call(scores, torch.tensor([0, bad, 1]), tree)
    for bad in (torch.zeros(3, dtype=torch.bool), torch.zeros(3, dtype=torch.complex64)):
        with pytest.raises(TypeError, match=rf"`(classes|target)` has dtype {bad.dtype}.*\.long\(\)"):
            call(scores, bad, tree)
    for bad in (1, [0, 1, 2], np.zeros(3, dtype=np.int64)):
        with pytest.raises(TypeError, match=rf"`(classes|target)` is a {type(bad).__name__}"):
            call(scores, bad, tree)
    with pytest.raises((ValueError, RuntimeError), match=r"target|broadcast|shape|expanded"):
        call(scores, torch.zeros(2, dtype=torch.int64), tree)
    for k in (tree.num_classes + 1, -1):
        with pytest.raises(ValueError, match=rf"`k` is {k}, .*{tree.num_classes}"):
            ct.sample_without_replacement(scores, k, tree)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: ct.catnat(S.tolist(), dim=0), "scores"),
        (lambda: ct.cross_entropy(S, Y, weight=[1.0, 2, 3, 4]), "weight"),
        (lambda: ct.CatnatHead(3, 4, class_weights=[1.0, 2, 3, 4]), "class_weights"),
        (lambda: ct.CatnatHead(3.0, 4), "in_features"),
        (lambda: ct.CatnatLinear(3.0, 4), "in_features"),
        (lambda: ct.Catnat(S, temperature=[1.0, 2, 3, 4]), "temperature"),
        (lambda: ct.Catnat(S, temperature=None), "temperature"),
        (lambda: ct.Catnat(S, unimix=torch.full((4,), 0.1)), "unimix"),
        (lambda: ct.sample_without_replacement(S, 2.0), "k"),
        (lambda: ct.CatnatHead(4, 4).topk(S, 2.0), "k"),
    ],
)
def test_arguments_of_another_type_are_named(call, argument):
    with pytest.raises(TypeError, match=f"^`{argument}` is "):
        call()


def test_a_dimension_that_does_not_exist():
    for call in (ct.catnat, ct.log_catnat):
        with pytest.raises(IndexError):
            call(S, dim=2)


@pytest.mark.parametrize("build", [ct.CatnatLinear, ct.CatnatHead])
def test_last_layers(build):
    for bad in (0, -3):
        with pytest.raises(ValueError, match="at least 1"):
            build(4, bad)
    for bad in (2.5, "10", True):
        with pytest.raises(TypeError, match="classes"):
            build(4, bad)
    with pytest.raises(ValueError, match="`activation`"):
        build(4, 10, "softmax")


def test_activations():
    for width in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"`width` is {width}.*positive"):
            ct.natural(width=width)

    @dataclasses.dataclass(frozen=True)
    class Half(ct.Activation):
        def logit(self, x, xp):
            return x

    with pytest.raises(TypeError, match="abstract"):
        Half()
