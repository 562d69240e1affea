"""catnat.torch and catnat.jax are twins: the same names, the same signatures, the same numbers."""

import inspect

import cases
import numpy as np
import pytest
from conformance import backends

import catnat.jax
import catnat.torch

TORCH_NAMES_IN_JAX = {"dim": "axis", "generator": "key"}
# What a signature may have beyond its twin's, and why.
ONLY_TORCH = {
    "validate_args",  # of torch.distributions: checks by value, which a traced function cannot make
    "device",  # of torch modules; JAX places arrays by other means
}
ONLY_JAX = {
    "ScoreLayer": {"key"},  # JAX has no global generator to initialize from
    "MovingAverage": {"total", "weight"},  # its state: a pytree carries what a module would keep
}


def parameters(function):
    """Name -> (kind, default) in order; a key has no default, because JAX has no global generator."""
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        twin = TORCH_NAMES_IN_JAX.get(name, name)
        found[twin] = (parameter.kind, inspect.Parameter.empty if twin == "key" else parameter.default)
    return found


def test_the_same_names():
    assert catnat.torch.__all__ == catnat.jax.__all__


@pytest.mark.parametrize("name", catnat.torch.__all__)
def test_the_same_signature(name):
    torch_has, jax_has = (parameters(getattr(module, name)) for module in (catnat.torch, catnat.jax))
    torch_has = {key: value for key, value in torch_has.items() if key not in ONLY_TORCH}
    jax_has = {key: value for key, value in jax_has.items() if key not in ONLY_JAX.get(name, ())}
    assert list(torch_has.items()) == list(jax_has.items())


def test_the_exceptions_are_needed():
    torch_has = {key for name in catnat.torch.__all__ for key in parameters(getattr(catnat.torch, name))}
    assert torch_has >= ONLY_TORCH
    for name, only in ONLY_JAX.items():
        assert set(parameters(getattr(catnat.jax, name))) >= only


# ---- the same numbers ----

TREES = ("balanced-5-uneven", "balanced-32", "clusters-12", "balanced-100", "chain-75", "huffman-zipf-90")
# Every tree with three activations, so that each activation meets two trees or more.
ROWS = [
    (tree, activation)
    for i, tree in enumerate(TREES)
    for j, activation in enumerate(cases.ACTIVATIONS)
    if (i + j) % 3 == 0
]


@pytest.fixture(scope="module")
def twins():
    return backends.load("torch"), backends.load("jax")


def agree(one, other):
    """To 1e-12, absolute and relative."""
    assert one.shape == other.shape
    np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("tree", "activation"), ROWS)
def test_values_and_gradients(twins, tree, activation):
    case, activation = cases.tree_case(tree), cases.ACTIVATIONS[activation]
    rng, model = np.random.default_rng(0), case.model(activation)
    scores, other = model.inside(rng, (4,)), model.inside(rng, (4,))
    classes, args = rng.integers(case.num_classes, size=4), (case.tree, activation)

    def same(name, *arrays):
        """The value, and the gradient in the scores of its sum with random weights."""
        value = [getattr(twin, name)(*arrays, *args) for twin in twins]
        agree(*value)
        weights = rng.normal(size=value[0].shape)
        agree(*(twin.grad(name, weights, *arrays, *args) for twin in twins))

    for name in ("catnat", "log_catnat", "reach", "entropy", "fisher_diagonal"):
        same(name, scores)
    same("log_prob", scores, classes)
    same("kl_divergence", scores, other)
    same("fisher_rao_distance", scores, other)
    for name in ("mode", "saturated"):
        agree(*(getattr(twin, name)(scores, *args) for twin in twins))
    for first, second in zip(*(twin.natural_gradient(scores, other, *args) for twin in twins), strict=True):
        agree(first, second)
    agree(*(twin.scores_from_probs(twins[0].catnat(scores, *args), *args) for twin in twins))
    agree(*(twin.kl_step(scores, other, 0.01, *args) for twin in twins))


@pytest.mark.parametrize("law", cases.LAWS.values(), ids=lambda law: law.name)
@pytest.mark.parametrize("tree", ["balanced-5-uneven", "huffman-zipf-90"])
def test_laws(twins, tree, law):
    case = cases.tree_case(tree)
    scores = case.model(cases.NATURAL).inside(np.random.default_rng(1), (5,)) / 2
    args = (scores, case.tree, cases.NATURAL, law, cases.masks(case.num_classes, 5))
    one, other = (twin.law(*args) for twin in twins)
    for name, fact in one.items():
        agree(fact, other[name])
        if name != "mode":
            weights = np.random.default_rng(2).normal(size=fact.shape)
            agree(*(twin.law_grad(name, weights, *args) for twin in twins))
