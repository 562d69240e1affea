"""Every error says what was given, what was needed and how to fix it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import catnat
import catnat.torch as ct

CLASSES = torch.zeros(3, dtype=torch.int64)
# Every public function and constructor of (scores, tree, activation).
CALLS = {
    "catnat": ct.catnat,
    "log_catnat": ct.log_catnat,
    "log_prob": lambda s, *args: ct.log_prob(s, CLASSES, *args),
    "sample": ct.sample,
    "sample_without_replacement": lambda s, *args: ct.sample_without_replacement(s, 2, *args),
    "mode": ct.mode,
    "entropy": ct.entropy,
    "kl_divergence-p": lambda s, *args: ct.kl_divergence(s, torch.zeros(3, 4), *args),
    "kl_divergence-q": lambda s, *args: ct.kl_divergence(torch.zeros(3, 4), s, *args),
    "cross_entropy": lambda s, *args: ct.cross_entropy(s, CLASSES, *args),
    "reach": ct.geometry.reach,
    "saturated": ct.geometry.saturated,
    "fisher_diagonal": ct.geometry.fisher_diagonal,
    "Catnat": ct.Catnat,
    "OneHotCatnat": ct.OneHotCatnat,
    "OneHotCatnatStraightThrough": ct.OneHotCatnatStraightThrough,
    "RelaxedOneHotCatnat": lambda s, *args: ct.RelaxedOneHotCatnat(0.5, s, *args),
}
everywhere = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@everywhere
def test_one_score_per_class_instead_of_one_per_node(call):
    """The likely mistake: a softmax layer's width."""
    with pytest.raises(ValueError, match="scores") as caught:
        call(torch.zeros(3, 5), catnat.balanced(5))
    text = str(caught.value)
    assert "5 entries" in text  # given
    assert "4 nodes" in text  # needed
    assert "softmax" in text  # the likely mistake
    assert "4 wide" in text  # the fix
    assert "balanced(6)" in text


@everywhere
def test_any_other_wrong_width(call):
    with pytest.raises(ValueError, match="scores") as caught:
        call(torch.zeros(3, 7), catnat.chain(5))
    text = str(caught.value)
    assert "7 entries" in text
    assert "4 nodes" in text
    assert "balanced(8)" in text
    assert "softmax" not in text


@everywhere
def test_not_a_tensor(call):
    for given in (np.zeros((3, 4), dtype=np.float32), [[0.0] * 4] * 3, None, 1.5):
        with pytest.raises(TypeError, match="scores") as caught:
            call(given, catnat.balanced(5))
        assert type(given).__name__ in str(caught.value)
        assert "torch.as_tensor" in str(caught.value)


@everywhere
def test_not_floating_point(call):
    for dtype in (torch.int64, torch.bool, torch.complex64):
        with pytest.raises(TypeError, match="scores") as caught:
            call(torch.zeros(3, 4, dtype=dtype), catnat.balanced(5))
        assert str(dtype) in str(caught.value)
        assert "floating-point" in str(caught.value)


@everywhere
def test_no_axis_of_nodes(call):
    with pytest.raises((TypeError, ValueError), match="scores") as caught:
        call(torch.tensor(0.5), catnat.balanced(2))
    assert "last axis" in str(caught.value)


@everywhere
def test_not_a_tree(call):
    for given in (5.5, True, "balanced", [[0, 1]]):
        with pytest.raises(TypeError, match="tree") as caught:
            call(torch.zeros(3, 4), given)
        assert repr(given) in str(caught.value)
        assert "balanced(" in str(caught.value)


@everywhere
def test_unknown_names_of_activations(call):
    with pytest.raises(ValueError, match="activation") as caught:
        call(torch.zeros(3, 4), catnat.balanced(5), "softmax")
    for part in ("'softmax'", "'natural'", "'sigmoid'"):
        assert part in str(caught.value)


@everywhere
def test_not_an_activation(call):
    """The class instead of an instance, or a bare function."""
    for given in (torch.sigmoid, 3, None):
        with pytest.raises(TypeError, match="activation") as caught:
            call(torch.zeros(3, 4), catnat.balanced(5), given)
        assert "subclass of catnat.Activation" in str(caught.value)
    with pytest.raises(TypeError, match="activation"):
        call(torch.zeros(3, 4), catnat.balanced(5), ct.natural)


def test_arguments_of_activations():
    for width in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="width") as caught:
            ct.natural(width=width)
        assert str(width) in str(caught.value)
        assert "positive" in str(caught.value)


@pytest.mark.parametrize("tree", [catnat.balanced(5), catnat.balanced(100), catnat.chain(100)], ids=repr)
def test_a_class_that_does_not_exist(tree):
    scores = torch.zeros(3, tree.num_nodes)
    for bad in (tree.num_classes, -1, 12345):
        classes = torch.tensor([0, bad, 1])
        for call in (ct.log_prob, ct.cross_entropy):
            with pytest.raises(ValueError, match="classes") as caught:
                call(scores, classes, tree)
            text = str(caught.value)
            assert str(bad) in text
            assert f"0 .. {tree.num_classes - 1}" in text
            assert "ignore_index" in text
        with pytest.raises(ValueError, match="support"):
            ct.Catnat(scores, tree, validate_args=True).log_prob(classes)


def test_classes_that_are_not_whole_numbers():
    for bad in (torch.zeros(3), torch.zeros(3, dtype=torch.bool)):
        with pytest.raises(TypeError, match="classes") as caught:
            ct.log_prob(torch.zeros(3, 4), bad)
        assert str(bad.dtype) in str(caught.value)
        assert ".long()" in str(caught.value)


def test_classes_that_are_no_tensor():
    for bad in (1, [0, 1, 2], np.zeros(3, dtype=np.int64)):
        with pytest.raises(TypeError, match="classes"):
            ct.log_prob(torch.zeros(3, 4), bad)


def test_a_target_that_is_no_tensor():
    for bad in (1, [0, 1, 2], np.zeros(3, dtype=np.int64)):
        with pytest.raises(TypeError, match="target"):
            ct.cross_entropy(torch.zeros(3, 4), bad)


def test_classes_that_do_not_broadcast():
    with pytest.raises((ValueError, RuntimeError), match=r"classes|broadcast|shape"):
        ct.log_prob(torch.zeros(3, 4), torch.zeros(2, dtype=torch.int64))


def test_more_classes_than_there_are():
    for tree in (catnat.balanced(5), catnat.balanced(100), catnat.chain(100)):
        scores = torch.zeros(2, tree.num_nodes)
        for k in (tree.num_classes + 1, -1):
            with pytest.raises(ValueError, match=rf"`k` is {k}") as caught:
                ct.sample_without_replacement(scores, k, tree)
            assert str(tree.num_classes) in str(caught.value)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda s, y: ct.catnat(s.tolist(), dim=0), "scores"),
        (lambda s, y: ct.cross_entropy(s, y, weight=[1.0, 2, 3, 4]), "weight"),
        (lambda s, y: ct.CatnatHead(3, 4, class_weights=[1.0, 2, 3, 4]), "class_weights"),
        (lambda s, y: ct.CatnatHead(3.0, 4), "in_features"),
        (lambda s, y: ct.CatnatLinear(3.0, 4), "in_features"),
        (lambda s, y: ct.Catnat(s, temperature=[1.0, 2, 3, 4]), "temperature"),
        (lambda s, y: ct.Catnat(s, temperature=None), "temperature"),
        (lambda s, y: ct.Catnat(s, unimix=torch.full((4,), 0.1)), "unimix"),
        (lambda s, y: ct.sample_without_replacement(s, 2.0), "k"),
        (lambda s, y: ct.CatnatHead(3, 4).topk(s, 2.0), "k"),
    ],
)
def test_arguments_of_another_type_are_named(call, argument):
    with pytest.raises(TypeError, match=f"^`{argument}` is "):
        call(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64))


def test_a_mask_of_other_rows():
    with pytest.raises(ValueError, match=r"`mask` has the leading axes \(3,\) and `scores` the batch shape \(4,\)"):
        ct.Catnat(torch.zeros(4, 3), mask=torch.ones(3, 4, dtype=torch.bool))


def test_a_dimension_that_does_not_exist():
    for call in (ct.catnat, ct.log_catnat):
        with pytest.raises(IndexError):
            call(torch.zeros(3, 4), dim=2)


def test_last_layers():
    for build in (ct.CatnatLinear, ct.CatnatHead):
        for bad in (0, -3):
            with pytest.raises(ValueError, match="at least 1"):
                build(4, bad)
        for bad in (2.5, "10", True):
            with pytest.raises(TypeError, match="classes"):
                build(4, bad)
        with pytest.raises(ValueError, match="`activation`"):
            build(4, 10, "softmax")


def test_an_own_activation_must_be_complete():
    import dataclasses

    @dataclasses.dataclass(frozen=True)
    class Half(ct.Activation):
        def logit(self, x, xp):
            return x

    with pytest.raises(TypeError, match="abstract"):
        Half()


# ---- warnings ----


def test_nodes_that_start_at_the_edge_are_announced_once():
    tree = catnat.balanced(8).with_prior([1e5, 1, 1, 1, 1, 1, 1, 1])
    with pytest.warns(catnat.EdgeWarning) as caught:
        ct.catnat(torch.zeros(7), tree, "natural")
    text = str(caught[0].message)
    for part in ("%", "7 nodes", "huffman", "width", "sigmoid"):
        assert part in text, text
    # Warnings are errors here: another one would fail.
    ct.catnat(torch.zeros(7), tree, "natural")
    ct.log_catnat(torch.zeros(7), tree, "natural")
    ct.catnat(torch.zeros(7), tree, "sigmoid")
    for other in (*(catnat.balanced(k) for k in (2, 3, 18, 1000)), catnat.chain(7)):
        ct.catnat(torch.zeros(other.num_nodes), other, "natural")
