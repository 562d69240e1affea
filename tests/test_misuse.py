"""Ordinary mistakes, as new users make them: each is an error whose text names the fix, or documented. None is silent.

A row is what was done, and what the error must say. What cannot be known to be a mistake comes after the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.cluster.hierarchy
import torch

import catnat
import catnat.jax as cj
import catnat.torch as ct

Row = tuple[str, Callable[[], Any], type[Exception], str]

CLASSES = 8
TREE = catnat.balanced(CLASSES)
OTHER = catnat.huffman(range(1, CLASSES + 1))


@pytest.fixture(autouse=True)
def torch_validates(monkeypatch):
    """As torch does by default; torch.compile and TorchRL switch it off for the whole process."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)


def misuse(rows: list[Row]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return pytest.mark.parametrize(("call", "error", "text"), [row[1:] for row in rows], ids=[row[0] for row in rows])


# ---- trees -----------------------------------------------------------------------------------------------------------

TREES: list[Row] = [
    ("no classes", lambda: catnat.balanced(0), ValueError, "at least 1 class"),
    ("a float of classes", lambda: catnat.balanced(8.0), TypeError, "integer is needed"),
    ("a list of classes", lambda: catnat.balanced(["a", "b"]), TypeError, "integer is needed"),
    ("a weight of 0", lambda: catnat.huffman([1, 0, 2]), ValueError, "entry 1, 0.0.*add a small count"),
    ("weights in a matrix", lambda: catnat.huffman([[1, 2]]), ValueError, r"a vector \(K,\)"),
    ("a prior of another length", lambda: TREE.with_prior([1, 2]), ValueError, "give one per class"),
    ("names in clusters", lambda: catnat.from_clusters([["cat", "dog"], ["car"]]), TypeError, "'cat'.*enumerate"),
    ("a name as clusters", lambda: catnat.from_clusters("cats"), TypeError, "nested lists of class indices"),
    ("a number as clusters", lambda: catnat.from_clusters(8), TypeError, "nested lists of class indices"),
    ("labels as clusters", lambda: catnat.from_clusters([0, 0, 1]), ValueError, "exactly once"),
    ("a class missing in clusters", lambda: catnat.from_clusters([[0, 2], [3]]), ValueError, "every class 0 .. K-1"),
    ("a parent table as children", lambda: catnat.from_children([[0, 0], [1, 1]]), ValueError, "a child exactly once"),
    ("children in a list", lambda: catnat.from_children([0, 1, 2]), ValueError, r"\(K-1, 2\)"),
    ("names as children", lambda: catnat.from_children([["a", "b"]]), ValueError, r"dtype.*\(K-1, 2\)"),
    ("a class beyond", lambda: TREE.path(8), ValueError, "0 .. 7"),
    ("probabilities of nodes", lambda: TREE.reach(np.ones(7)), ValueError, "one probability per class"),
    ("a forest of nothing", lambda: catnat.Forest([]), ValueError, "at least one tree"),
    ("a number as a forest", lambda: catnat.Forest(3), TypeError, "a list is needed"),
]


@misuse(TREES)
def test_trees(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_a_linkage_of_scipy_is_taken_as_it_is():
    rows = scipy.cluster.hierarchy.linkage(np.random.default_rng(0).normal(size=(6, 2)))
    assert rows.shape == (5, 4)
    assert catnat.from_children(rows) == catnat.from_children(rows[:, :2])


# ---- PyTorch ---------------------------------------------------------------------------------------------------------

X, S, Y = torch.randn(5, 4), torch.zeros(5, 7), torch.tensor([0, 1, 2, 3, 7])
MASK = torch.ones(5, 8, dtype=torch.bool)
NAN = torch.full((5, 7), torch.nan)


def loaded(state: dict[str, Any], **settings: Any) -> Any:
    return ct.CatnatLinear(4, **{"classes": 8, **settings}).load_state_dict(state)


def head_loaded(state: dict[str, Any], **settings: Any) -> Any:
    return ct.CatnatHead(4, **{"classes": 8, **settings}).load_state_dict(state)


IN_TORCH: list[Row] = [
    # K scores, or what is no scores
    ("K scores and K", lambda: ct.catnat(torch.zeros(5, 8), 8), ValueError, "7 wide"),
    ("K scores and a tree", lambda: ct.log_catnat(torch.zeros(5, 8), TREE), ValueError, "one score per class.*7 wide"),
    ("K scores in a loss", lambda: ct.cross_entropy(torch.zeros(5, 8), Y, 8), ValueError, "7 wide"),
    ("K scores in a distribution", lambda: ct.Catnat(torch.zeros(5, 8), 8), ValueError, "7 wide"),
    ("K scores in draws", lambda: ct.sample(torch.zeros(5, 8), 8), ValueError, "7 wide"),
    ("K scores of latents", lambda: ct.MultiCatnat(torch.zeros(5, 8), [4, 4]), ValueError, "6"),
    ("a tree of another size", lambda: ct.catnat(S, 7), ValueError, "7 classes has 6 nodes"),
    ("logits", lambda: ct.Catnat(logits=torch.zeros(5, 8)), TypeError, r"scores_from_logits\(logits\).*CatnatLinear"),
    ("probs", lambda: ct.Catnat(probs=torch.ones(5, 8) / 8), TypeError, r"scores_from_probs\(probs\).*CatnatLinear"),
    ("logits, one-hot", lambda: ct.OneHotCatnat(logits=torch.zeros(5, 8)), TypeError, "scores_from_logits"),
    ("logits, relaxed", lambda: ct.RelaxedOneHotCatnat(1.0, logits=S), TypeError, "scores_from_logits"),
    ("probs of latents", lambda: ct.MultiCatnat(probs=S, trees=[4, 5]), TypeError, "scores_from_probs"),
    ("a list", lambda: ct.catnat([0.0, 0.0]), TypeError, r"torch.as_tensor\(scores\)"),
    ("an array", lambda: ct.catnat(np.zeros(3)), TypeError, r"torch.as_tensor\(scores\)"),
    ("integers", lambda: ct.catnat(torch.zeros(3, dtype=torch.long)), TypeError, "floating-point"),
    ("a single number", lambda: ct.catnat(torch.tensor(0.0)), TypeError, r"\(..., K-1\)"),
    ("a float as the tree", lambda: ct.catnat(S, 8.5), TypeError, r"such as 8 or catnat.balanced\("),
    ("a forest as the tree", lambda: ct.catnat(S, catnat.Forest([3, 6])), TypeError, r"catnat.balanced\("),
    ("a misspelt activation", lambda: ct.catnat(S, activation="sigmiod"), ValueError, "'natural', 'sigmoid'"),
    ("a function as activation", lambda: ct.catnat(S, activation=torch.sigmoid), TypeError, "an activation object"),
    ("a class as activation", lambda: ct.catnat(S, activation=ct.natural), TypeError, "an activation object"),
    ("axis, as in NumPy", lambda: ct.catnat(S, axis=0), TypeError, "'axis'"),
    ("a width of 0", lambda: ct.natural(width=0.0), ValueError, "positive, finite width"),
    # targets
    ("float targets", lambda: ct.cross_entropy(S, Y.float()), TypeError, r"integers, target.long\(\)"),
    ("one-hot integers", lambda: ct.cross_entropy(S, torch.eye(8)[Y].long()), ValueError, "without its class axis"),
    ("a target beyond", lambda: ct.cross_entropy(S, Y + 1), ValueError, "0 .. 7.*ignore_index"),
    ("an ignored target of another mark", lambda: ct.cross_entropy(S, Y - 1), ValueError, "-1.*ignore_index"),
    ("probabilities of nodes", lambda: ct.cross_entropy(S, torch.ones(5, 7) / 7), ValueError, "K in place of K-1"),
    ("targets of another batch", lambda: ct.cross_entropy(S, Y[:3]), ValueError, r"shape \(5,\)"),
    ("classes on the last axis", lambda: ct.cross_entropy(torch.zeros(5, 3, 7), Y, TREE), ValueError, "3 entries"),
    ("an unknown reduction", lambda: ct.cross_entropy(S, Y, reduction="avg"), ValueError, "'none', 'mean', 'sum'"),
    ("weights of nodes", lambda: ct.cross_entropy(S, Y, weight=torch.ones(7)), ValueError, r"\(8,\)"),
    ("smoothing of 2", lambda: ct.cross_entropy(S, Y, label_smoothing=2.0), ValueError, "between 0 and 1"),
    ("float classes", lambda: ct.log_prob(S, Y.float()), TypeError, r"integers: use .long\(\)"),
    ("a class beyond", lambda: ct.log_prob(S, Y + 1), ValueError, "0 .. 7"),
    ("a value beyond", lambda: ct.Catnat(S).log_prob(Y + 1), ValueError, "support"),
    # masks
    ("an int8 mask", lambda: ct.Catnat(S, mask=MASK.to(torch.int8)), TypeError, r"mask.bool\(\).*`valid_classes`"),
    ("an int64 mask", lambda: ct.Catnat(S, mask=MASK.long()), TypeError, r"mask.bool\(\).*`valid_classes`"),
    ("a float mask", lambda: ct.Catnat(S, mask=MASK.float()), TypeError, r"mask.bool\(\)"),
    ("indices as a mask", lambda: ct.Catnat(S, mask=torch.tensor([0, 3])), TypeError, "passed as `valid_classes`"),
    ("a mask as indices", lambda: ct.Catnat(S, valid_classes=MASK), TypeError, "passed as `mask`"),
    ("both", lambda: ct.Catnat(S, mask=MASK, valid_classes=Y), ValueError, "leave one of them out"),
    ("an array as a mask", lambda: ct.Catnat(S, mask=MASK.numpy()), TypeError, r"torch.as_tensor\(mask\)"),
    ("a mask of nodes", lambda: ct.Catnat(S, mask=MASK[:, 1:]), ValueError, "not over the K - 1 nodes"),
    ("nothing is valid", lambda: ct.Catnat(S, mask=~MASK), ValueError, r"validate_mask.*Is True the \*valid\* class"),
    ("an index beyond", lambda: ct.Catnat(S, valid_classes=torch.tensor([8])), ValueError, "0 .. 7; -1 fills up"),
    ("an int mask to validate", lambda: ct.validate_mask(MASK.int(), 8), TypeError, r"mask.bool\(\)"),
    ("an int mask of latents", lambda: ct.MultiCatnat(S, [4, 5], mask=torch.ones(9).int()), TypeError, "boolean"),
    (
        "Fisher's diagonal of a conditional distribution",
        lambda: ct.Catnat(S, mask=MASK).fisher_diagonal(),
        ValueError,
        "has a `mask`.*Leave them out",
    ),
    # numbers
    ("NaN scores", lambda: ct.Catnat(NAN), ValueError, "NaN in 5 of 5 rows.*learning rate.*validate_args=False"),
    ("NaN scores, validated", lambda: ct.Catnat(NAN, validate_args=True), ValueError, "NaN"),
    ("NaN scores, masked", lambda: ct.Catnat(NAN, mask=MASK), ValueError, "NaN"),
    ("NaN scores, one-hot", lambda: ct.OneHotCatnatStraightThrough(NAN), ValueError, "NaN"),
    ("NaN scores, relaxed", lambda: ct.RelaxedOneHotCatnat(0.5, NAN), ValueError, "NaN"),
    ("NaN scores of latents", lambda: ct.MultiCatnat(NAN, [4, 5]), ValueError, "NaN"),
    ("a temperature of 0", lambda: ct.Catnat(S, temperature=0.0), ValueError, "positive, finite"),
    ("a negative temperature", lambda: ct.RelaxedOneHotCatnat(-1.0, S), ValueError, "positive"),
    ("unimix of 1", lambda: ct.Catnat(S, unimix=1.0), ValueError, "not including 1"),
    ("NaN logits", lambda: ct.scores_from_logits(torch.full((8,), torch.nan)), ValueError, "NaN"),
    ("logits as probabilities", lambda: ct.scores_from_probs(torch.randn(8)), ValueError, "scores_from_logits"),
    ("probabilities that sum to 2", lambda: ct.scores_from_probs(torch.ones(8) / 4), ValueError, "sum to 1"),
    # draws
    ("a number of draws", lambda: ct.Catnat(S).sample(3), TypeError, r"\(3,\) for 3 draws"),
    ("a number of draws, function", lambda: ct.sample(S, sample_shape=3), TypeError, r"\(3,\) for 3 draws"),
    ("a reparameterized draw", lambda: ct.Catnat(S).rsample(), NotImplementedError, "OneHotCatnatStraightThrough"),
    ("the same, one-hot", lambda: ct.OneHotCatnat(S).rsample(), NotImplementedError, "OneHotCatnatStraightThrough"),
    ("the same, latents", lambda: ct.MultiCatnat(S, [4, 5]).rsample(), NotImplementedError, "rsample_one_hot"),
    ("more than K distinct", lambda: ct.sample_without_replacement(S, 9), ValueError, "0 .. 8"),
    (
        "one draw for leave-one-out",
        lambda: ct.estimators.score_function(torch.square, ct.Catnat(S), baseline="leave-one-out"),
        ValueError,
        "num_samples=2",
    ),
    # layers
    ("a loss with float targets", lambda: ct.CatnatLinear(4, 8).loss(X, Y.float()), TypeError, r"target.long\(\)"),
    ("a head without targets", lambda: ct.CatnatHead(4, 8)(X), TypeError, r"`target`.*distribution\(input\)"),
    ("a head with another target", lambda: ct.CatnatHead(4, 8)(X, Y - 1), ValueError, "ignore_index.*head"),
    ("features of another size", lambda: ct.CatnatHead(5, 8)(X, Y), ValueError, "5 floating-point features"),
    ("weights of another tree", lambda: loaded(ct.CatnatLinear(4, OTHER).state_dict()), RuntimeError, "balanced.8"),
    (
        "weights of another activation",
        lambda: loaded(ct.CatnatLinear(4, 8, "natural").state_dict()),
        RuntimeError,
        "activation natural.*sigmoid",
    ),
    ("weights of softmax", lambda: loaded(torch.nn.Linear(4, 8).state_dict()), RuntimeError, "from_softmax"),
    ("weights of a plain layer", lambda: loaded(torch.nn.Linear(4, 7).state_dict()), RuntimeError, "_extra_state"),
    (
        "a head's weights of another tree",
        lambda: head_loaded(ct.CatnatHead(4, OTHER).state_dict()),
        RuntimeError,
        "balanced.8",
    ),
    (
        "a head's weights of softmax",
        lambda: head_loaded(torch.nn.Linear(4, 8).state_dict()),
        RuntimeError,
        "one per class",
    ),
]


@misuse(IN_TORCH)
def test_torch(call, error, text):
    with pytest.raises(error, match=text):
        call()


# ---- JAX -------------------------------------------------------------------------------------------------------------

KEY = jax.random.key(0)
XJ, SJ, YJ = jnp.ones((5, 4)), jnp.zeros((5, 7)), jnp.array([0, 1, 2, 3, 7])
MASKJ = jnp.ones((5, 8), bool)


def layer(classes: Any = 8, activation: Any = "natural") -> cj.CatnatLinear:
    return cj.CatnatLinear(4, classes, activation, key=KEY)


def head(**settings: Any) -> cj.CatnatHead:
    return cj.CatnatHead(4, 8, key=KEY, **settings)


IN_JAX: list[Row] = [
    ("K scores and K", lambda: cj.catnat(jnp.zeros((5, 8)), 8), ValueError, "7 wide"),
    ("K scores and a tree", lambda: cj.log_catnat(jnp.zeros((5, 8)), TREE), ValueError, "one score per class.*7 wide"),
    ("K scores in a loss", lambda: cj.cross_entropy(jnp.zeros((5, 8)), YJ, 8), ValueError, "7 wide"),
    ("K scores in a distribution", lambda: cj.Catnat(jnp.zeros((5, 8)), 8), ValueError, "7 wide"),
    ("logits", lambda: cj.Catnat(logits=jnp.zeros((5, 8))), TypeError, r"scores_from_logits\(logits\)"),
    ("probs", lambda: cj.OneHotCatnat(probs=jnp.ones((5, 8)) / 8), TypeError, r"scores_from_probs\(probs\)"),
    ("probs of latents", lambda: cj.MultiCatnat(probs=SJ, trees=[4, 5]), TypeError, "scores_from_probs"),
    ("a list", lambda: cj.catnat([0.0, 0.0]), TypeError, r"jnp.asarray\(scores\)"),
    ("integers", lambda: cj.catnat(jnp.zeros(3, int)), TypeError, "floating-point"),
    ("a float as the tree", lambda: cj.catnat(SJ, 8.0), TypeError, r"such as 8 or catnat.balanced\("),
    ("an activation's class", lambda: cj.catnat(SJ, activation=cj.natural), TypeError, r"catnat.natural\("),
    ("a misspelt activation", lambda: cj.catnat(SJ, activation="sigmiod"), ValueError, "'natural', 'sigmoid'"),
    ("dim, as in PyTorch", lambda: cj.catnat(SJ, dim=0), TypeError, "called `axis`"),
    ("float targets", lambda: cj.cross_entropy(SJ, YJ.astype(float)), TypeError, r"target.astype\(int\)"),
    ("a target beyond", lambda: cj.cross_entropy(SJ, YJ + 1), ValueError, "0 .. 7.*ignore_index"),
    ("probabilities of nodes", lambda: cj.cross_entropy(SJ, jnp.ones((5, 7)) / 7), ValueError, "K in place of K-1"),
    ("float classes", lambda: cj.log_prob(SJ, YJ.astype(float)), TypeError, r"integers: use .astype\(int\)"),
    ("a value beyond", lambda: cj.Catnat(SJ).log_prob(YJ + 1), ValueError, "0 .. 7"),
    (
        "an int8 mask",
        lambda: cj.Catnat(SJ, mask=MASKJ.astype("int8")),
        TypeError,
        r"mask.astype\(bool\).*`valid_classes`",
    ),
    ("a float mask", lambda: cj.Catnat(SJ, mask=MASKJ.astype(float)), TypeError, r"mask.astype\(bool\)"),
    ("a mask as indices", lambda: cj.Catnat(SJ, valid_classes=MASKJ), TypeError, "passed as `mask`"),
    ("both", lambda: cj.Catnat(SJ, mask=MASKJ, valid_classes=YJ), ValueError, "leave one of them out"),
    ("a mask of nodes", lambda: cj.Catnat(SJ, mask=MASKJ[:, 1:]), ValueError, "not over the K - 1 nodes"),
    ("nothing is valid", lambda: cj.Catnat(SJ, mask=~MASKJ), ValueError, "validate_mask"),
    ("a number as key", lambda: cj.sample(SJ, key=0), TypeError, r"jax.random.key\(0\)"),
    ("no key", lambda: cj.sample(SJ), TypeError, r"key=jax.random.key\(0\)"),
    ("a number as key, method", lambda: cj.Catnat(SJ).sample(key=0), TypeError, r"jax.random.key\(0\)"),
    ("no key, method", lambda: cj.Catnat(SJ).sample(), TypeError, r"`sample` draws.*jax.random.key"),
    ("a float array as key", lambda: cj.Catnat(SJ).sample(key=SJ), TypeError, "float(32|64).*jax.random.key"),
    ("no key, layer", lambda: cj.CatnatLinear(4, 8), TypeError, r"key=jax.random.key\(0\)"),
    ("a number as key, layer", lambda: cj.CatnatLinear(4, 8, key=0), TypeError, r"jax.random.key\(0\)"),
    ("a number as key, head", lambda: cj.CatnatHead(4, 8, key=1), TypeError, r"jax.random.key\(1\)"),
    ("a number of draws", lambda: cj.Catnat(SJ).sample(3, key=KEY), TypeError, r"\(3,\) for 3 draws"),
    ("a reparameterized draw", lambda: cj.Catnat(SJ).rsample(key=KEY), NotImplementedError, "StraightThrough"),
    ("a temperature of 0", lambda: cj.Catnat(SJ, temperature=0.0), ValueError, "positive, finite"),
    ("unimix of 1", lambda: cj.Catnat(SJ, unimix=1.0), ValueError, "not including 1"),
    ("a head without targets", lambda: head()(XJ), TypeError, r"`target`.*distribution\(input\)"),
    ("a head with another target", lambda: head()(XJ, YJ - 1), ValueError, "ignore_index.*head"),
    ("weights of another tree", lambda: layer().load_state_dict(layer(OTHER).state_dict()), ValueError, "balanced.8"),
    (
        "weights of another activation",
        lambda: layer().load_state_dict(layer(8, "sigmoid").state_dict()),
        ValueError,
        "activation sigmoid.*natural",
    ),
    ("weights of softmax", lambda: layer().load_state_dict({"weight": np.zeros((8, 4))}), ValueError, "one per class"),
    ("weights alone", lambda: layer().load_state_dict({"weight": np.zeros((7, 4))}), ValueError, "_extra_state"),
    (
        "weights of other features",
        lambda: layer().load_state_dict(cj.CatnatLinear(3, 8, "natural", key=KEY).state_dict()),
        ValueError,
        r"\(7, 3\).*\(7, 4\)",
    ),
    (
        "Fisher's diagonal of a conditional distribution",
        lambda: cj.Catnat(SJ, mask=MASKJ).fisher_diagonal(),
        ValueError,
        "has a `mask`.*Leave them out",
    ),
]


@misuse(IN_JAX)
def test_jax(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_there_are_enough_rows():
    assert len(IN_TORCH) >= 60
    assert len(IN_JAX) >= 30


def test_messages_name_no_private_class():
    """Python's own text for a wrong call has the name of the class where a method is written."""
    for call in (row[1] for row in (*IN_TORCH, *IN_JAX)):
        with pytest.raises(Exception) as caught:
            call()
        assert not any(
            name in str(caught.value) for name in ("PathHead", "OfClasses", "OfScores", "OnLeaves", "OfRows")
        )


# ---- what cannot be known, and is documented -------------------------------------------------------------------------


def test_nan_scores_without_validation_never_give_a_masked_class():
    mask = torch.tensor([False, True, False, True, True, False, False, True])
    some_nan = torch.zeros(300, 7).masked_fill(
        torch.rand(300, 7, generator=torch.Generator().manual_seed(0)) < 0.5, torch.nan
    )
    for scores in (NAN, some_nan):
        for unimix in (0.0, 0.1):
            dist = ct.Catnat(scores, mask=mask, unimix=unimix, validate_args=False)
            assert mask[dist.sample((50,))].all()
            assert mask[dist.mode].all()
        hot = ct.OneHotCatnat(scores, mask=mask, validate_args=False).sample((50,))
        assert hot[..., mask].sum(-1).eq(1).all()


@pytest.mark.slow
def test_nan_scores_never_give_a_masked_class_in_jax():
    mask = jnp.array([False, True, False, True, True, False, False, True])
    some_nan = jnp.where(jax.random.bernoulli(KEY, 0.5, (300, 7)), jnp.nan, 0.0)
    for scores in (jnp.full((5, 7), jnp.nan), some_nan):
        dist = cj.Catnat(scores, mask=mask)
        assert mask[dist.sample((50,), key=KEY)].all()
        assert mask[dist.mode].all()


def test_nan_scores_without_validation_draw_the_class_of_all_no():
    assert ct.Catnat(NAN, validate_args=False).sample().tolist() == [0] * 5
    assert ct.sample(NAN).tolist() == [0] * 5
    assert cj.sample(jnp.full((5, 7), jnp.nan), key=KEY).tolist() == [0] * 5
