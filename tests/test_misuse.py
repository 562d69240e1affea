"""Ordinary mistakes, as new users make them: each is an error whose text names the fix, or documented. None is silent.

A row is what was done, and what the error must say. What cannot be known to be a mistake comes after the tables.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.cluster.hierarchy
import torch
from conformance import backends

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


def assert_refused(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    """Without the name of the class where a method is written, which Python puts into its own text."""
    with pytest.raises(error, match=text) as caught:
        call()
    assert "PathHead" not in str(caught.value)


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
    assert_refused(call, error, text)


def test_a_linkage_of_scipy_is_taken_as_it_is():
    rows = scipy.cluster.hierarchy.linkage(np.random.default_rng(0).normal(size=(6, 2)))
    assert rows.shape == (5, 4)
    assert catnat.from_children(rows) == catnat.from_children(rows[:, :2])


# ---- both frameworks -------------------------------------------------------------------------------------------------

KEY = jax.random.key(0)


class Given:
    """A framework with the arguments of the rows below."""

    def __init__(self, name: str) -> None:
        framework = backends.load(name)
        self.lib, self.array, self.kl = framework.lib, framework.array, framework.kl
        self.how = framework.randomness(0)
        self.x, self.s, self.y = self.ones(5, 4), self.zeros(5, 7), self.array(np.array([0, 1, 2, 3, 7]))
        self.mask, self.dist = self.array(np.ones((5, 8), bool)), self.lib.Catnat(self.zeros(5, 7))

    def ones(self, *shape: int, dtype: str = "float64") -> Any:
        return self.array(np.ones(shape, dtype))

    def zeros(self, *shape: int, dtype: str = "float64") -> Any:
        return self.array(np.zeros(shape, dtype))

    def full(self, number: float, *shape: int) -> Any:
        return self.array(np.full(shape, number))

    def head(self, classes: int = 8, **settings: Any) -> Any:
        return self.lib.CatnatHead(4, classes, **settings, **({"key": KEY} if self.lib is cj else {}))


BOTH: list[tuple[str, Callable[[Given], Any], type[Exception], str]] = [
    # K scores, or what is no scores
    ("K scores and K", lambda f: f.lib.catnat(f.zeros(5, 8), 8), ValueError, "7 wide"),
    ("K scores and a tree", lambda f: f.lib.log_catnat(f.zeros(5, 8), TREE), ValueError, "one score per class.*7 wide"),
    ("K scores in a loss", lambda f: f.lib.cross_entropy(f.zeros(5, 8), f.y, 8), ValueError, "7 wide"),
    ("K scores in a distribution", lambda f: f.lib.Catnat(f.zeros(5, 8), 8), ValueError, "7 wide"),
    ("K scores in draws", lambda f: f.lib.sample(f.zeros(5, 8), 8, **f.how), ValueError, "7 wide"),
    ("scores of latents", lambda f: f.lib.MultiCatnat(f.zeros(5, 8), [4, 4]), ValueError, "4, 4 classes have 6 nodes"),
    ("no list of latents", lambda f: f.lib.MultiCatnat(f.s, 8), TypeError, "a list is needed"),
    ("no latents", lambda f: f.lib.MultiCatnat(f.s, []), ValueError, "`trees`"),
    ("integers of latents", lambda f: f.lib.MultiCatnat(f.zeros(5, 7, dtype="int64"), [4, 5]), TypeError, "floating"),
    ("a tree of another size", lambda f: f.lib.catnat(f.s, 7), ValueError, "7 classes has 6 nodes"),
    ("logits", lambda f: f.lib.Catnat(logits=f.ones(5, 8)), TypeError, r"scores_from_logits\(logits\).*CatnatLinear"),
    ("probs", lambda f: f.lib.OneHotCatnat(probs=f.ones(5, 8)), TypeError, r"scores_from_probs\(probs\)"),
    ("logits, relaxed", lambda f: f.lib.RelaxedOneHotCatnat(1.0, logits=f.s), TypeError, "scores_from_logits"),
    ("probs of latents", lambda f: f.lib.MultiCatnat(probs=f.s, trees=[4, 5]), TypeError, "scores_from_probs"),
    ("a list", lambda f: f.lib.catnat([0.0, 0.0]), TypeError, r"as(_tensor|array)\(scores\)"),
    ("integers", lambda f: f.lib.catnat(f.zeros(3, dtype="int64")), TypeError, "floating-point"),
    ("a float as the tree", lambda f: f.lib.catnat(f.s, 8.0), TypeError, r"such as 8 or catnat.balanced\("),
    ("a misspelt activation", lambda f: f.lib.catnat(f.s, activation="sigmiod"), ValueError, "'natural', 'sigmoid'"),
    ("a class as activation", lambda f: f.lib.catnat(f.s, activation=f.lib.natural), TypeError, "object is.*call it"),
    # targets and classes
    ("float targets", lambda f: f.lib.cross_entropy(f.s, f.ones(5)), TypeError, r"target\.(long\(\)|astype\(int\))"),
    ("a target beyond", lambda f: f.lib.cross_entropy(f.s, f.y + 1), ValueError, "0 .. 7.*ignore_index"),
    ("an ignored target", lambda f: f.lib.cross_entropy(f.s, f.y - 1), ValueError, "-1.*ignore_index"),
    ("probabilities of nodes", lambda f: f.lib.cross_entropy(f.s, f.ones(5, 7) / 7), ValueError, "K in place of K-1"),
    ("an unknown reduction", lambda f: f.lib.cross_entropy(f.s, f.y, reduction="avg"), ValueError, "'mean', 'sum'"),
    ("weights of nodes", lambda f: f.lib.cross_entropy(f.s, f.y, weight=f.ones(7)), ValueError, r"weight.*\(8,\)"),
    *[
        (f"smoothing of {bad}", lambda f, bad=bad: f.lib.cross_entropy(f.s, f.y, label_smoothing=bad), ValueError, text)
        for bad, text in ((2.0, "between 0 and 1"), (-0.1, "-0.1"), (math.nan, "nan"))
    ],
    ("float classes", lambda f: f.lib.log_prob(f.s, f.ones(5)), TypeError, r"integers: use \.(long\(\)|astype\(int\))"),
    ("a class beyond", lambda f: f.lib.log_prob(f.s, f.y + 1), ValueError, "0 .. 7"),
    ("a value beyond", lambda f: f.dist.log_prob(f.y + 1), ValueError, "support|0 .. 7"),
    ("no one-hot vectors", lambda f: f.lib.OneHotCatnat(f.s).log_prob(f.ones(5, 8) / 8), ValueError, "one.hot|support"),
    (
        "a value of latents",
        lambda f: f.lib.MultiCatnat(f.s, [4, 5]).log_prob(f.array(np.array([0, 5]))),
        ValueError,
        "holds 5|support",
    ),
    # masks
    *[
        (f"a mask of {dtype}", lambda f, d=dtype: f.lib.Catnat(f.s, mask=f.ones(5, 8, dtype=d)), TypeError, text)
        for dtype, text in (
            ("int8", r"mask\.(bool\(\)|astype\(bool\)).*`valid_classes`"),
            ("int64", r"mask\.(bool\(\)|astype\(bool\)).*`valid_classes`"),
            ("float64", r"mask\.(bool\(\)|astype\(bool\))"),
        )
    ],
    ("a mask as indices", lambda f: f.lib.Catnat(f.s, valid_classes=f.mask), TypeError, "passed as `mask`"),
    ("both", lambda f: f.lib.Catnat(f.s, mask=f.mask, valid_classes=f.y), ValueError, "leave one of them out"),
    ("a list as a mask", lambda f: f.lib.Catnat(f.s, mask=[True] * 8), TypeError, r"as(_tensor|array)\(mask\)"),
    ("a mask of nodes", lambda f: f.lib.Catnat(f.s, mask=f.mask[:, 1:]), ValueError, "not over the K - 1 nodes"),
    ("nothing is valid", lambda f: f.lib.Catnat(f.s, mask=~f.mask), ValueError, "in 5 of 5 rows.*validate_mask"),
    *[
        (f"the index {k}", lambda f, k=k: f.lib.Catnat(f.s, valid_classes=f.array(np.array([k, 0]))), ValueError, text)
        for k, text in ((8, "holds 8.*0 .. 7; -1 fills"), (-2, "holds -2"))
    ],
    (
        "integers as a mask of latents",
        lambda f: f.lib.MultiCatnat(f.s, [4, 5], mask=f.ones(9, dtype="int64")),
        TypeError,
        "boolean",
    ),
    (
        "a mask of latents' nodes",
        lambda f: f.lib.MultiCatnat(f.s, [4, 5], mask=f.ones(7, dtype="bool")),
        ValueError,
        "not over the K - 1|7 entries",
    ),
    (
        "a latent without valid class",
        lambda f: f.lib.MultiCatnat(f.s, [4, 5], mask=f.array(np.arange(9) < 4)),
        ValueError,
        "no valid class",
    ),
    *[
        (f"Fisher's diagonal, {name}", lambda f, more=more: more(f).fisher_diagonal(), ValueError, "not diagonal")
        for name, more in (
            ("mask", lambda f: f.lib.Catnat(f.s, mask=f.mask)),
            ("unimix", lambda f: f.lib.OneHotCatnat(f.s, unimix=0.1)),
            ("temperature", lambda f: f.lib.MultiCatnat(f.s, [4, 5], temperature=2.0)),
        )
    ],
    # numbers
    *[
        (f"a temperature of {bad}", lambda f, bad=bad: f.lib.Catnat(f.s, temperature=bad), ValueError, "positive")
        for bad in (0.0, -1, math.nan, math.inf)
    ],
    *[
        (
            f"{bad} among temperatures",
            lambda f, bad=bad: f.lib.Catnat(f.s, temperature=f.array(np.array([1.0, 1, bad, 1, 1]))),
            ValueError,
            "`temperature`.*positive",
        )
        for bad in (0.0, math.nan, -1.0)
    ],
    ("temperatures", lambda f: f.lib.Catnat(f.s, temperature=f.ones(3)), ValueError, "`temperature` has shape"),
    ("latents' temperature", lambda f: f.lib.MultiCatnat(f.s, [8], temperature=0.0), ValueError, "`temperature`"),
    *[
        (f"unimix of {bad}", lambda f, bad=bad: f.lib.Catnat(f.s, unimix=bad), ValueError, "`unimix`.*not including 1")
        for bad in (1.0, -0.1, math.nan)
    ],
    ("latents' unimix", lambda f: f.lib.MultiCatnat(f.s, [8], unimix=1.5), ValueError, "`unimix`"),
    # draws and divergences
    ("a number of draws", lambda f: f.dist.sample(3, **f.how), TypeError, r"\(3,\) for 3 draws"),
    ("a reparameterized draw", lambda f: f.dist.rsample(**f.how), NotImplementedError, "StraightThrough"),
    (
        "more than K distinct",
        lambda f: f.lib.sample_without_replacement(f.s, 9, **f.how),
        ValueError,
        "`k` is 9.*8",
    ),
    ("other classes", lambda f: f.kl(f.dist, f.lib.Catnat(f.zeros(5, 8))), ValueError, "classes"),
    ("other latents", lambda f: f.kl(*(f.lib.MultiCatnat(f.s, t) for t in ([4, 5], [5, 4]))), ValueError, "4, 5"),
    # geometry and conversions
    *[
        (
            f"a damping of {bad}, {name}",
            lambda f, bad=bad, name=name: getattr(f.lib.geometry, name)(f.s, damping=bad),
            ValueError,
            "`damping` is .*at least 0",
        )
        for bad in (-0.1, math.inf, math.nan)
        for name in ("natural_gradient", "softmax_natural_gradient")
    ],
    *[
        (f"{name} as logits", lambda f, b=bad: f.lib.geometry.softmax_natural_gradient(b(f)), TypeError, text)
        for name, bad, text in (
            ("a list", lambda f: [0.0, 1.0], r"as(_tensor|array)\(logits\)"),
            ("integers", lambda f: f.y, "one logit per class"),
            ("a number", lambda f: f.array(np.array(0.0)), "one logit per class"),
        )
    ],
    *[
        (f"a divergence of {bad}", lambda f, bad=bad: f.lib.geometry.kl_step(f.s, f.s, bad), ValueError, "`kl` is")
        for bad in (0.0, -1.0, math.nan, math.inf)
    ],
    (
        "a divergence of 0 for a row",
        lambda f: f.lib.geometry.kl_step(f.s, f.s, f.array(np.array([1.0, 1, 1, 1, 0]))),
        ValueError,
        "every row",
    ),
    ("divergences", lambda f: f.lib.geometry.kl_step(f.s, f.s, f.ones(5, 1)), ValueError, r"batch shape \(5,\)"),
    ("another gradient", lambda f: f.lib.geometry.kl_step(f.s, f.ones(7), 0.1), ValueError, r"`gradient` .*\(7,\)"),
    ("no gradient", lambda f: f.lib.geometry.kl_step(f.s, None, 0.1), TypeError, "gradient"),
    *[
        (f"{name}, {what}", lambda f, n=name, b=bad: getattr(f.lib, f"scores_from_{n}")(b(f), 5), error, text(name))
        for name in ("probs", "logits")
        for what, bad, error, text in (
            ("one per node", lambda f: f.full(0.25, 2, 4), ValueError, lambda n: f"`{n}` has 4 .*not one per node"),
            ("a list", lambda f: [0.5, 0.5], TypeError, lambda n: rf"as(_tensor|array)\({n}\)"),
            ("integers", lambda f: f.y, TypeError, lambda n: "one value per class"),
        )
    ],
    ("a name as the tree", lambda f: f.lib.scores_from_probs(f.full(0.5, 2), "balanced"), TypeError, r"balanced\(2\)"),
    *[
        (f"{bad} as probabilities", lambda f, b=bad: f.lib.scores_from_probs(f.array(np.array(b))), ValueError, text)
        for bad, text in (
            ([0.5, 0.6, -0.1], "scores_from_logits|negative number or NaN"),
            ([0.5, math.nan, 0.5], "negative number or NaN"),
            ([[0.5, 0.5], [1.0, 0.5]], r"sum to 1.*0\.5 away"),
        )
    ],
    *[
        (f"{bad} as logits", lambda f, b=bad: f.lib.scores_from_logits(f.full(b, 8)), ValueError, r"NaN or \+inf")
        for bad in (math.nan, math.inf)
    ],
    # layers
    ("a head without targets", lambda f: f.head()(f.x), TypeError, r"`target`.*distribution\(input\)"),
    ("a head with another target", lambda f: f.head()(f.x, f.y - 1), ValueError, "ignore_index.*head"),
    ("a head's target beyond", lambda f: f.head()(f.x, f.y + 1), ValueError, r"holds 8, .* 0 \.\. 7"),
    ("a head's other targets", lambda f: f.head()(f.x, f.y[:3]), ValueError, r"`target` .*\(3,\).*one class per row"),
    ("features of another size", lambda f: f.head()(f.ones(5, 3), f.y), ValueError, r"`input`.* 4 floating-point"),
    ("a head's weights of nodes", lambda f: f.head(class_weights=f.ones(7)), ValueError, "`class_weights` has shape"),
    ("the best 9 of 8", lambda f: f.head().topk(f.x, 9), ValueError, "`k` is 9"),
    (
        "classes of other rows",
        lambda f: f.head().log_prob_of(f.x, f.zeros(2, 5, dtype="int64")),
        ValueError,
        "leading axes of the classes",
    ),
    ("no classes", lambda f: f.head(0), ValueError, "at least 1"),
]


@pytest.mark.parametrize("name", ["torch", "jax"])
@misuse(BOTH)
def test_both(name, call, error, text):
    given = Given(name)
    assert_refused(lambda: call(given), error, text)


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
    ("a single number", lambda: ct.catnat(torch.tensor(0.0)), TypeError, r"\(..., K-1\)"),
    ("an array", lambda: ct.catnat(np.zeros(3)), TypeError, r"torch.as_tensor\(scores\)"),
    ("a forest as the tree", lambda: ct.catnat(S, catnat.Forest([3, 6])), TypeError, r"catnat.balanced\("),
    ("a function as activation", lambda: ct.catnat(S, activation=torch.sigmoid), TypeError, "an activation object"),
    ("axis, as in NumPy", lambda: ct.catnat(S, axis=0), TypeError, "'axis'"),
    ("a width of 0", lambda: ct.natural(width=0.0), ValueError, "positive, finite width"),
    # targets
    ("one-hot integers", lambda: ct.cross_entropy(S, torch.eye(8)[Y].long()), ValueError, "without its class axis"),
    ("targets of another batch", lambda: ct.cross_entropy(S, Y[:3]), ValueError, r"shape \(5,\)"),
    ("classes on the last axis", lambda: ct.cross_entropy(torch.zeros(5, 3, 7), Y, TREE), ValueError, "3 entries"),
    # masks
    ("indices as a mask", lambda: ct.Catnat(S, mask=torch.tensor([0, 3])), TypeError, "passed as `valid_classes`"),
    ("an array as a mask", lambda: ct.Catnat(S, mask=MASK.numpy()), TypeError, r"torch.as_tensor\(mask\)"),
    ("an int mask to validate", lambda: ct.validate_mask(MASK.int(), 8), TypeError, r"mask.bool\(\)"),
    # numbers
    ("NaN scores", lambda: ct.Catnat(NAN), ValueError, "NaN in 5 of 5 rows.*learning rate.*validate_args=False"),
    ("NaN scores, validated", lambda: ct.Catnat(NAN, validate_args=True), ValueError, "NaN"),
    ("NaN scores, masked", lambda: ct.Catnat(NAN, mask=MASK), ValueError, "NaN"),
    ("NaN scores, one-hot", lambda: ct.OneHotCatnatStraightThrough(NAN), ValueError, "NaN"),
    ("NaN scores, relaxed", lambda: ct.RelaxedOneHotCatnat(0.5, NAN), ValueError, "NaN"),
    ("NaN scores of latents", lambda: ct.MultiCatnat(NAN, [4, 5]), ValueError, "NaN"),
    ("a negative temperature", lambda: ct.RelaxedOneHotCatnat(-1.0, S), ValueError, "positive"),
    # draws
    ("a number of draws, function", lambda: ct.sample(S, sample_shape=3), TypeError, r"\(3,\) for 3 draws"),
    ("the same, one-hot", lambda: ct.OneHotCatnat(S).rsample(), NotImplementedError, "OneHotCatnatStraightThrough"),
    ("the same, latents", lambda: ct.MultiCatnat(S, [4, 5]).rsample(), NotImplementedError, "rsample_one_hot"),
    # layers
    ("a loss with float targets", lambda: ct.CatnatLinear(4, 8).loss(X, Y.float()), TypeError, r"target.long\(\)"),
    ("weights of another tree", lambda: loaded(ct.CatnatLinear(4, OTHER).state_dict()), RuntimeError, "balanced.8"),
    (
        "weights of another activation",
        lambda: loaded(ct.CatnatLinear(4, 8, "natural").state_dict()),
        RuntimeError,
        "activation natural.*sigmoid",
    ),
    ("statistics as classes", lambda: ct.CatnatLinear(4, catnat.ClassMeans(8, 2)), TypeError, r"`classes`.*tree\(\)"),
    ("out_features", lambda: ct.CatnatLinear(4, out_features=8), TypeError, "as `classes`"),
    ("num_classes of a head", lambda: ct.CatnatHead(4, num_classes=8), TypeError, "as `classes`"),
    ("a mask in a head", lambda: ct.CatnatHead(4, 8).sample(X, mask=MASK), TypeError, "as `valid_classes`"),
    ("NaN features", lambda: ct.CatnatHead(4, 8).predict(X * torch.nan), ValueError, "input or its weights are NaN"),
    (
        "an optimizer of another layer",
        lambda: ct.CatnatHead(4, 8).grow(1, optimizer=torch.optim.SGD([torch.zeros(1)])),
        ValueError,
        "the one that trains it",
    ),
    (
        "a loader that only calls set_extra_state",  # as from_pretrained of transformers
        lambda: ct.CatnatLinear(4, 8).set_extra_state(ct.CatnatLinear(4, OTHER).get_extra_state()),
        ValueError,
        "balanced.8",
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
    assert_refused(call, error, text)


# ---- JAX -------------------------------------------------------------------------------------------------------------

XJ, SJ, YJ = jnp.ones((5, 4)), jnp.zeros((5, 7)), jnp.array([0, 1, 2, 3, 7])
MASKJ = jnp.ones((5, 8), bool)


def layer(classes: Any = 8, activation: Any = "natural") -> cj.CatnatLinear:
    return cj.CatnatLinear(4, classes, activation, key=KEY)


def head(**settings: Any) -> cj.CatnatHead:
    return cj.CatnatHead(4, 8, key=KEY, **settings)


IN_JAX: list[Row] = [
    ("dim, as in PyTorch", lambda: cj.catnat(SJ, dim=0), TypeError, "called `axis`"),
    (
        "a damping in an array",
        lambda: cj.geometry.natural_gradient(SJ, damping=jnp.array(-0.1)),
        ValueError,
        "`damping` is .*at least 0",
    ),
    *[
        (f"an estimate of {type(bad).__name__}", lambda bad=bad, of=of: of(bad), TypeError, "`distribution` is a")
        for bad, of in (
            (cj.RelaxedOneHotCatnat(0.5, SJ), lambda dist: cj.estimators.gumbel_softmax(dist, 0.5, key=KEY)),
            (cj.MultiCatnat(SJ, [8]), lambda dist: cj.estimators.straight_through(dist, key=KEY)),
            (cj.MultiCatnat(SJ, [4, 5]), lambda dist: cj.estimators.unordered_set(jnp.square, dist, 2, key=KEY)),
            (cj.MultiCatnat(SJ, [5, 4]), lambda dist: cj.estimators.enumerate_exactly(jnp.square, dist)),
            (cj.BinnedCatnat(SJ, np.arange(9.0)), lambda dist: cj.estimators.enumerate_exactly(jnp.square, dist)),
            (3, lambda dist: cj.estimators.sample_counts(dist, 5, key=KEY)),
        )
    ],
    ("a single number", lambda: cj.catnat(jnp.array(0.0)), TypeError, r"\(..., K-1\)"),
    ("latents that are none", lambda: cj.Catnat(SJ).kl_divergence(cj.MultiCatnat(SJ, [8])), TypeError, "catnat.jax"),
    ("another distribution", lambda: cj.MultiCatnat(SJ, [8]).kl_divergence(cj.Catnat(SJ)), TypeError, "MultiCatnat is"),
    ("other values", lambda: cj.Catnat(SJ).kl_divergence(cj.OneHotCatnat(SJ)), ValueError, "event shape"),
    (
        "a replaced field",
        lambda: dataclasses.replace(cj.Catnat(SJ, unimix=0.1), scores=jnp.zeros(8), mask=MASKJ),
        ValueError,
        "nodes|classes",
    ),
    ("a number as key", lambda: cj.sample(SJ, key=0), TypeError, r"jax.random.key\(0\)"),
    ("no key", lambda: cj.sample(SJ), TypeError, r"key=jax.random.key\(0\)"),
    ("a number as key, method", lambda: cj.Catnat(SJ).sample(key=0), TypeError, r"jax.random.key\(0\)"),
    ("no key, method", lambda: cj.Catnat(SJ).sample(), TypeError, r"`sample` draws.*jax.random.key"),
    ("a float array as key", lambda: cj.Catnat(SJ).sample(key=SJ), TypeError, "float(32|64).*jax.random.key"),
    ("no key, layer", lambda: cj.CatnatLinear(4, 8), TypeError, r"key=jax.random.key\(0\)"),
    ("a number as key, layer", lambda: cj.CatnatLinear(4, 8, key=0), TypeError, r"jax.random.key\(0\)"),
    ("a number as key, head", lambda: cj.CatnatHead(4, 8, key=1), TypeError, r"jax.random.key\(1\)"),
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
]


@misuse(IN_JAX)
def test_jax(call, error, text):
    assert_refused(call, error, text)


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
