"""Draws: frequencies, impossible classes, independence, draws without replacement, and the mode."""

import cases
import numpy as np
import oracle
import pytest
from conformance import checks

import catnat


@pytest.mark.parametrize(
    "check", [checks.sample_frequencies, checks.first_draws_without_replacement, checks.mode_is_the_argmax]
)
def test_check(backend, tree, activation, check):
    check(backend, tree, activation)


@pytest.mark.parametrize("activation", [cases.SIGMOID, cases.NATURAL], ids=lambda a: a.name)
def test_frequencies_of_small_draws(backend, tree, activation):
    checks.frequencies_of_small_draws(backend, tree, activation)


@pytest.mark.parametrize("activation", [cases.SIGMOID, cases.NATURAL], ids=lambda a: a.name)
def test_impossible_classes_are_never_drawn(backend, tree, activation):
    checks.impossible_classes_are_never_drawn(backend, tree, activation)


@pytest.mark.parametrize("name", ["balanced-2", "balanced-5", "balanced-8", "chain-7", "children-7"])
def test_draws_are_independent(backend, name):
    checks.draws_are_independent(backend, cases.tree_case(name), cases.NATURAL)


SMALL = [(name, k) for name in ("balanced-2", "balanced-3", "balanced-4", "balanced-5") for k in range(1, 6)]


@pytest.mark.parametrize(("name", "k"), [(name, k) for name, k in SMALL if k <= int(name[-1])])
@pytest.mark.parametrize("activation", [cases.SIGMOID, cases.NATURAL], ids=lambda a: a.name)
def test_plackett_luce(backend, name, k, activation):
    checks.plackett_luce(backend, cases.tree_case(name), activation, k)


@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize("tree", [catnat.chain(5), catnat.huffman([8, 4, 2, 1, 1])], ids=repr)
def test_plackett_luce_on_other_trees(backend, tree, k):
    case = cases.TreeCase("other", tree, oracle.from_ids(tree.child_ids), tuple(tree.prior))
    checks.plackett_luce(backend, case, cases.NATURAL, k)


@pytest.mark.parametrize("name", ["balanced-100", "huffman-zipf-90"])
def test_plackett_luce_of_many_classes(backend, name):
    """Where trees are walked: pairs of draws."""
    checks.plackett_luce(backend, cases.tree_case(name), cases.NATURAL, 2)


def test_draws_without_replacement_avoid_impossible_classes(backend):
    """Half the tree is cut off; as many draws as there are classes left give exactly those."""
    scores = np.zeros((2000, 7))
    scores[:, 0] = 10.0  # yes for certain: classes 4 to 7
    got = backend.sample_without_replacement(scores, 4, catnat.balanced(8), "natural")
    np.testing.assert_array_equal(np.sort(got, -1), np.tile([4, 5, 6, 7], (2000, 1)))


def test_all_classes_without_replacement_are_a_permutation(backend, tree):
    scores = tree.model(cases.NATURAL).inside(np.random.default_rng(0), (50,))
    got = backend.sample_without_replacement(scores, tree.num_classes, tree.tree, cases.NATURAL)
    np.testing.assert_array_equal(np.sort(got, -1), np.tile(np.arange(tree.num_classes), (50, 1)))


def test_mode_is_not_the_greedy_descent(backend):
    """Most mass lies on the no side, but it is shared there: (0.3, 0.3, 0.4). Greedy would find 0 or 1."""
    yes = np.array([0.4, 0.5])
    prior = catnat.balanced(3).yes_fraction()
    scores = np.log(yes / (1 - yes)) - np.log(prior / (1 - prior))
    checks.close(backend.catnat(scores, catnat.balanced(3), "sigmoid"), [0.3, 0.3, 0.4], rtol=1e-12)
    assert backend.mode(scores, catnat.balanced(3), "sigmoid") == 2


def test_the_seed_decides(backend):
    scores = np.zeros((50, 17))
    first, again, other = (backend.sample(scores, None, "natural", sample_shape=(3,), seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    first, again, other = (backend.sample_without_replacement(scores, 3, None, "natural", seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
