"""Forests: what MultiCatnat must know of several trees side by side."""

import copy
import dataclasses
import pickle

import cases
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import catnat

FORESTS = {
    "mixed": [3, 2, catnat.chain(4)],
    "one tree": [catnat.huffman(cases.zipf(9))],
    "with single classes": [1, 3, 1, 1, catnat.from_children(cases.MERGES), 1],
    "only single classes": [1, 1],
    "equal": [4, 4, 4],
    "equal in any order": [4, catnat.chain(4), 4, 2, catnat.chain(4), 4],
}


@pytest.fixture(params=FORESTS.values(), ids=FORESTS.keys())
def forest(request):
    return catnat.Forest(request.param)


def check_groups(forest):
    """Every variable is in one group, that of its tree, with its own nodes and classes in order."""
    assert forest.sizes == tuple(tree.num_classes for tree in forest.trees)
    nodes = np.split(np.arange(forest.num_nodes), np.cumsum([tree.num_nodes for tree in forest.trees])[:-1])
    classes = np.split(np.arange(forest.num_classes), np.cumsum(forest.sizes)[:-1])
    assert len({group.tree for group in forest.groups}) == len(forest.groups)
    seen = []
    for group in forest.groups:
        for row, variable in enumerate(group.variables):
            assert forest.trees[variable] == group.tree
            np.testing.assert_array_equal(group.nodes[row], nodes[variable])
            np.testing.assert_array_equal(group.classes[row], classes[variable])
        assert not any(table.flags.writeable for table in group[1:])
        seen += group.variables.tolist()
    assert sorted(seen) == list(range(len(forest.trees)))


def test_groups(forest):
    check_groups(forest)
    assert forest.groups is forest.groups  # made once


@hypothesis.given(st.lists(cases.tree_cases(max_classes=4).map(lambda case: case.tree), min_size=1, max_size=5))
def test_groups_of_random_trees(trees):
    check_groups(catnat.Forest([*trees, *trees[::-1]]))


def test_numbers_stand_for_balanced_trees():
    assert catnat.Forest([3, 5]) == catnat.Forest([catnat.balanced(3), catnat.balanced(5)])
    assert catnat.Forest([np.int64(3)]).trees == (catnat.balanced(3),)
    assert catnat.Forest(k for k in (2, 3)).sizes == (2, 3)


def test_equal_by_content():
    first, same = catnat.Forest([3, catnat.chain(4)]), catnat.Forest((catnat.balanced(3), catnat.chain(4)))
    assert first == same
    assert hash(first) == hash(same)
    others = [
        catnat.Forest([catnat.chain(4), 3]),
        catnat.Forest([3, 4]),
        catnat.Forest([3]),
        catnat.Forest([3, catnat.chain(4), 1]),
        catnat.Forest([3, catnat.chain(4).with_prior([1, 2, 3, 4])]),
    ]
    for other in (*others, first.trees, catnat.balanced(3), None, 3):
        assert first != other
    assert len({first, same, *others}) == 6


@pytest.mark.parametrize("used", [False, True])
def test_copies(forest, used):
    if used:
        check_groups(forest)  # fills its tables
    for other in (pickle.loads(pickle.dumps(forest)), copy.copy(forest), copy.deepcopy(forest)):
        assert other == forest
        assert hash(other) == hash(forest)
        check_groups(other)


def test_frozen_and_named():
    forest = catnat.Forest([3, 2, catnat.chain(4)])
    with pytest.raises(dataclasses.FrozenInstanceError):
        forest.trees = ()
    assert repr(forest) == "<Forest: 3 trees, 9 classes in all>"


@pytest.mark.parametrize(
    ("error", "text", "trees"),
    [
        (ValueError, "`trees` is empty", []),
        (ValueError, "0, but a categorical variable has at least 1 class", [3, 0]),
        (ValueError, "-2", [-2]),
        (TypeError, "integer is needed", [2.5]),
        (TypeError, "integer is needed", ["three"]),
        (TypeError, "integer is needed", [[2, 3]]),
        (TypeError, "`trees` is 3", 3),
        (TypeError, "`trees` is balanced", catnat.balanced(3)),
    ],
)
def test_errors(error, text, trees):
    with pytest.raises(error, match=text):
        catnat.Forest(trees)
