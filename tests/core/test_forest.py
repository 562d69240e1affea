"""Forests: several trees side by side are what each of them is by itself."""

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
    "deep": [catnat.chain(70), 5, cases.tree_case("caterpillar-75").tree],
    "equal": [4, 4, 4],
}


@pytest.fixture(params=FORESTS.values(), ids=FORESTS.keys())
def forest(request):
    return catnat.Forest(request.param)


def check_against_single_trees(forest):
    """Every table by a loop over the trees: an id is a node of all trees, or behind them a leaf of all trees."""
    nodes = [(n, i) for n, tree in enumerate(forest.trees) for i in range(tree.num_nodes)]
    leaves = [(n, tree.num_nodes + k) for n, tree in enumerate(forest.trees) for k in range(tree.num_classes)]
    ids = {key: place for place, key in enumerate(nodes + leaves)}  # (variable, the tree's own id) -> the forest's
    assert (forest.num_nodes, forest.num_classes) == (len(nodes), len(leaves))
    assert forest.child_ids.shape == (len(nodes), 2)
    assert len(forest.parents) == len(forest.bits) == len(ids)
    for (n, i), place in ids.items():
        tree = forest.trees[n]
        if i < tree.num_nodes:
            assert forest.child_ids[place].tolist() == [ids[n, child] for child in tree.child_ids[i]]
            assert forest.root_of_node[place] == ids[n, 0]
        else:
            assert forest.variable_of_class[place - len(nodes)] == n
        parent = tree.parents[i]
        assert forest.parents[place] == (ids[n, parent] if parent >= 0 else -1)
        assert forest.bits[place] == tree.bits[i]
    assert forest.roots.tolist() == [ids[n, 0] for n in range(len(forest.trees))]
    assert forest.first_nodes.tolist() == [sum(t.num_nodes for t in forest.trees[:n]) for n in range(len(forest.trees))]
    starts = [sum(t.num_classes for t in forest.trees[:n]) for n in range(len(forest.trees))]
    assert forest.first_classes.tolist() == starts
    assert forest.sizes == tuple(tree.num_classes for tree in forest.trees)
    assert forest.depth == max(tree.depth for tree in forest.trees)
    np.testing.assert_array_equal(forest.prior, np.concatenate([tree.prior for tree in forest.trees]))


def test_tables(forest):
    check_against_single_trees(forest)


@hypothesis.given(st.lists(cases.tree_cases(max_classes=6).map(lambda case: case.tree), min_size=1, max_size=5))
def test_tables_of_random_trees(trees):
    check_against_single_trees(catnat.Forest(trees))


def test_walks_end_at_the_right_classes(forest):
    """Down from a variable's root, by the branches of the tree's own path."""
    for n, tree in enumerate(forest.trees):
        for k in range(tree.num_classes):
            at, (_, bits) = forest.roots[n], tree.path(k)
            for bit in bits:
                at = forest.child_ids[at][bit]
            assert at == forest.num_nodes + forest.first_classes[n] + k


def test_tables_are_read_only(forest):
    names = (
        "children",
        "parents",
        "bits",
        "roots",
        "first_nodes",
        "first_classes",
        "root_of_node",
        "variable_of_class",
    )
    for name in names:
        table = getattr(forest, name)
        assert not table.flags.writeable, name
        assert table is getattr(forest, name)  # made once


def test_numbers_stand_for_balanced_trees():
    assert catnat.Forest([3, 5]) == catnat.Forest([catnat.balanced(3), catnat.balanced(5)])
    assert catnat.Forest([np.int64(3)]).trees == (catnat.balanced(3),)
    assert catnat.Forest(k for k in (2, 3)).sizes == (2, 3)
    assert catnat.Forest((2, 3)) == catnat.Forest([2, 3])


def test_priors():
    assert catnat.Forest([3, catnat.chain(4)]).has_uniform_prior
    given = catnat.Forest([3, catnat.balanced(2).with_prior([1, 3])])
    assert not given.has_uniform_prior
    np.testing.assert_allclose(given.prior, [1 / 3, 1 / 3, 1 / 3, 0.25, 0.75])


# ---- identity ----


def test_equal_by_content():
    first, same = catnat.Forest([3, catnat.chain(4)]), catnat.Forest((catnat.balanced(3), catnat.chain(4)))
    assert first == same
    assert hash(first) == hash(same)
    assert len({first, same}) == 1
    others = [
        catnat.Forest([catnat.chain(4), 3]),
        catnat.Forest([3, 4]),
        catnat.Forest([3]),
        catnat.Forest([3, catnat.chain(4), 1]),
        catnat.Forest([3, catnat.chain(4).with_prior([1, 2, 3, 4])]),
    ]
    for other in (*others, first.trees, catnat.balanced(3), None, 3):
        assert first != other
    assert catnat.Forest([3]) != catnat.balanced(3)
    assert len({first, *others}) == 6


def test_frozen():
    forest = catnat.Forest([3, 4])
    for name in ("trees", "num_nodes", "depth"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(forest, name, 1)


@pytest.mark.parametrize("used", [False, True])
def test_copies(forest, used):
    if used:
        check_against_single_trees(forest)  # fills its tables
    for other in (pickle.loads(pickle.dumps(forest)), copy.copy(forest), copy.deepcopy(forest)):
        assert other == forest
        assert hash(other) == hash(forest)
        check_against_single_trees(other)


def test_repr():
    assert repr(catnat.Forest([3, 2, catnat.chain(4)])) == "<Forest: 3 trees, 9 classes in all, depth 3>"


# ---- errors ----


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
