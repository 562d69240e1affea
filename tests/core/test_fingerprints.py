"""Names of trees and activations, for files that hold arrays alone: they differ where these do, and only there."""

import dataclasses
import re

import cases
import numpy as np
import pytest

import catnat
from catnat import natural, sigmoid
from catnat.trees.saving import check_names, names

TREES = [cases.tree_case(name).tree for name in cases.TREE_NAMES]
ACTIVATIONS = [sigmoid(), natural(), natural(width=3.0), natural(width=50.0), cases.Cauchit()]


def test_different_trees_and_activations_have_different_names():
    different = list(dict.fromkeys(TREES))
    assert len({names(tree, ACTIVATIONS[0])[0] for tree in different}) == len(different)
    assert len({names(TREES[0], activation)[1] for activation in ACTIVATIONS}) == len(ACTIVATIONS)


def test_names_can_be_keys_and_parts_of_paths():
    for tree in TREES:
        for activation in ACTIVATIONS:
            assert all(re.fullmatch(r"(tree|activation)_\w+", name, re.ASCII) for name in names(tree, activation))


def test_equal_trees_have_equal_names_however_they_were_built():
    weights = [5, 3, 2, 1, 1]
    assert names(catnat.huffman(weights), natural()) == names(catnat.huffman(weights), natural())
    assert names(catnat.balanced(4), natural())[0] == "tree_balanced_4"
    assert names(catnat.from_clusters([[0, 1], [2, 3]]), natural())[0] == "tree_balanced_4"


def test_equal_widths_have_equal_names_of_whatever_type():
    for width in (8, np.float64(8), np.float32(8)):
        names.cache_clear()  # equal activations share an entry, as they do not from one process to the next
        named = names(TREES[0], natural(width=width))
        names.cache_clear()
        assert named == names(TREES[0], natural(width=8.0))


def test_the_last_digit_of_a_prior_is_no_other_tree():
    """It depends on the order in which a machine sums."""
    tree = catnat.balanced(5).with_prior([5, 3, 2, 1, 1])
    nearly = dataclasses.replace(tree, _prior=np.nextafter(tree.prior, 1))
    assert nearly != tree
    assert names(nearly, natural()) == names(tree, natural())
    assert names(tree.with_prior([5, 3, 2, 1, 1.0001]), natural()) != names(tree, natural())


def test_a_new_setting_with_a_default_changes_no_name():
    """So that weights which were saved by an older version can be read."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Later(natural):
        tails: str = "none"

    Later.__name__ = "natural"
    for settings in ({}, {"width": 3.0}):
        assert names(TREES[0], Later(**settings)) == names(TREES[0], natural(**settings))
    assert names(TREES[0], Later(tails="straight")) != names(TREES[0], natural())


def test_a_check_says_which_differs_and_what_to_do():
    saved = names(catnat.balanced(5), natural())
    check_names(saved, catnat.balanced(5), natural())
    with pytest.raises(ValueError, match=r"another tree: tree_balanced_5, .* tree_chain_5, which is chain\(5\).*Build"):
        check_names(saved, catnat.chain(5), natural())
    with pytest.raises(ValueError, match=r"another activation: activation_natural, .*which is sigmoid"):
        check_names(saved, catnat.balanced(5), sigmoid())
    with pytest.raises(ValueError, match="another tree: none that is known"):
        check_names([], catnat.balanced(5), natural())
