"""Taxonomies: every group is a node whose leaves are its members, and what is said about input that is no taxonomy."""

import copy
import pickle

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from taxonomies import ANIMALS, tables

import catnat
from catnat import Taxonomy


def leaves_below(tree, id_):
    """The classes below an id, by walking down."""
    if id_ >= tree.num_nodes:
        return {id_ - tree.num_nodes}
    return set().union(*(leaves_below(tree, int(child)) for child in tree.child_ids[id_]))


def check_ids(taxonomy):
    for name in taxonomy.parents:
        members = {k for k, one in enumerate(taxonomy.classes) if name in taxonomy.path(one)}
        assert leaves_below(taxonomy.tree, taxonomy.ids[name]) == members, name
        assert taxonomy.members(name) == tuple(taxonomy.classes[k] for k in sorted(members))


@hypothesis.given(tables(), st.booleans())
def test_every_group_is_the_node_of_its_members(table, weighted):
    classes = Taxonomy(table).classes
    taxonomy = Taxonomy(table, np.arange(1.0, len(classes) + 1) if weighted else None)
    assert taxonomy.parents == dict(table)
    check_ids(taxonomy)
    assert not set(taxonomy.classes) & set(taxonomy.groups)
    assert set(taxonomy.classes) | set(taxonomy.groups) == set(dict(table))


@hypothesis.given(tables())
def test_group_probs_are_sums_over_members(table):
    taxonomy = Taxonomy(table)
    probs = np.random.default_rng(0).dirichlet(np.ones(taxonomy.num_classes), size=(2, 3))
    found = taxonomy.group_probs(probs)
    assert tuple(found) == taxonomy.groups
    for group in taxonomy.groups:
        mine = [k for k, name in enumerate(taxonomy.classes) if group in taxonomy.path(name)]
        np.testing.assert_allclose(found[group], probs[..., mine].sum(-1), rtol=1e-14)


def test_nested_dictionaries_and_lists():
    taxonomy = Taxonomy.from_nested(ANIMALS)
    assert taxonomy.classes == ("ant", "fox", "lion", "lynx", "tiger", "wolf", "worm")
    assert taxonomy.groups == ("mammal", "insect", "cat", "dog")
    assert taxonomy.ids["insect"] == taxonomy.ids["ant"] == taxonomy.tree.num_nodes + 0
    assert taxonomy.num_levels == 3
    assert taxonomy.level(2) == ("ant", "dog", "cat", "cat", "cat", "dog", "worm")
    check_ids(taxonomy)


def test_lists_alone_are_clusters():
    nested = [[0, 3], [1, [2, 4]]]
    taxonomy = Taxonomy.from_nested(nested)
    assert taxonomy.groups == ((0,), (1,), (1, 1))
    order = np.argsort(taxonomy.classes)
    by_class = catnat.from_clusters([[int(order[0]), int(order[3])], [int(order[1]), [int(order[2]), int(order[4])]]])
    assert taxonomy.tree == by_class


def test_paths_of_strings_and_of_tuples_agree():
    strings = Taxonomy.from_paths(["a/b/c", "a/b/d", "a/e", "f", "a/e"])
    tuples = Taxonomy.from_paths([tuple(name.split("/")) for name in strings.classes])
    assert strings.classes == ("a/b/c", "a/b/d", "a/e", "f")
    assert tuples.classes == (("a", "b", "c"), ("a", "b", "d"), ("a", "e"), ("f",))
    assert strings.tree == tuples.tree
    assert Taxonomy.from_paths(["a.b", "a.c"], separator=".").groups == ("a",)


def test_weights_join_by_huffman_and_are_the_prior():
    weights = {"lion": 5.0, "lynx": 1.0, "tiger": 1.0, "fox": 2.0, "wolf": 2.0, "ant": 9.0, "worm": 1.0}
    taxonomy = Taxonomy.from_nested(ANIMALS, weights)
    in_order = [weights[name] for name in taxonomy.classes]
    np.testing.assert_allclose(taxonomy.tree.prior, np.array(in_order) / 21, rtol=1e-15)
    # In the group of cats: the two light ones first, then the heavy one, as Huffman alone would do.
    cats = catnat.huffman([5, 1, 1])
    depths = [len(taxonomy.tree.path(taxonomy.classes.index(name))[0]) for name in ("lion", "lynx", "tiger")]
    assert [depth - depths[0] for depth in depths] == [len(cats.path(k)[0]) - 1 for k in range(3)]
    assert taxonomy == Taxonomy.from_nested(ANIMALS, in_order)
    assert taxonomy != Taxonomy.from_nested(ANIMALS)
    pandas = pytest.importorskip("pandas")
    assert taxonomy == Taxonomy.from_nested(ANIMALS, pandas.Series(weights).sort_values())  # by name, not by place


def test_a_flat_list_is_a_balanced_tree():
    assert Taxonomy.from_nested(list("abcdefg")).tree == catnat.balanced(7)
    assert Taxonomy.from_nested({"all": ["one"]}).ids == {"one": 0, "all": 0}


def test_pairs_may_repeat_and_a_nan_is_the_top():
    taxonomy = Taxonomy([("a", "g"), ("a", "g"), ("b", "g"), ("g", float("nan"))])
    assert taxonomy.parents == {"a": "g", "b": "g", "g": None}
    assert taxonomy.ids["g"] == 0


def test_copies_are_equal():
    taxonomy = Taxonomy.from_nested(ANIMALS)
    for other in (copy.deepcopy(taxonomy), pickle.loads(pickle.dumps(taxonomy)), Taxonomy(taxonomy.parents)):
        assert other == taxonomy
        assert hash(other) == hash(taxonomy)


def test_large_taxonomy_in_seconds():
    paths = [f"{a}/{b}/{c}" for a in range(20) for b in range(50) for c in range(50)]
    taxonomy = Taxonomy.from_paths(paths)
    assert (taxonomy.num_classes, len(taxonomy.groups)) == (50_000, 20 + 1000)
    assert taxonomy.tree.depth == 5 + 6 + 6


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Taxonomy([("a", "g"), ("a", "h"), ("g", None), ("h", None)]), ValueError, "'a' has two parents"),
        (lambda: Taxonomy.from_nested({"g": ["a", "b"], "h": ["b"]}), ValueError, "'b' has two parents, 'g' and 'h'"),
        (lambda: Taxonomy({"a": "g", "g": "h", "h": "g"}), ValueError, "circle: 'g' -> 'h' -> 'g'"),
        (lambda: Taxonomy({"a": "a"}), ValueError, "circle: 'a' -> 'a'"),
        (lambda: Taxonomy({"a": "g", "b": None}), ValueError, "'a' is an orphan: its parent 'g'"),
        (lambda: Taxonomy({}), ValueError, "empty"),
        (lambda: Taxonomy({None: "a", "a": None}), ValueError, "an entry named None"),
        (lambda: Taxonomy(3), TypeError, "`parents` is 3"),
        (lambda: Taxonomy.from_paths(["a//b"]), ValueError, "'a//b'"),
        (lambda: Taxonomy.from_paths([()]), ValueError, "a part of which is empty"),
        (lambda: Taxonomy.from_nested({"a": "bc"}), TypeError, "'bc' of type str where the members of 'a'"),
        (lambda: Taxonomy.from_paths(["a", "b"], {"a": 1.0}), ValueError, "no entry for the class 'b'"),
        (lambda: Taxonomy.from_paths(["a", "b"], [1.0]), ValueError, "1 entries, but the tree has 2"),
        (lambda: Taxonomy.from_paths(["a", "b"]).path("c"), KeyError, "'c' is neither a class nor a group"),
        (lambda: Taxonomy.from_paths(["a", "b"]).members("c"), KeyError, "'c' is neither a class nor a group"),
        (lambda: Taxonomy.from_paths(["a", "b"]).level(2), ValueError, "levels 1 .. 1"),
        (lambda: Taxonomy.from_paths(["a", "b"]).group_probs([1.0]), ValueError, "one probability per class"),
    ],
)
def test_errors_name_the_offending_entry(make, error, text):
    with pytest.raises(error, match=text.replace(".", r"\.")):
        make()
