"""What every tree promises, whoever built it; and what each builder promises beside that."""

import copy
import math
import pickle
import subprocess
import sys

import cases
import hypothesis
import numpy as np
import oracle
import pytest
from hypothesis import strategies as st

import catnat


@pytest.fixture(params=cases.TREE_NAMES)
def case(request):
    return cases.tree_case(request.param)


def shuffled(rows, order):
    """The same merges with the rows in another order."""
    num_classes = len(rows) + 1
    position = {num_classes + old: num_classes + new for new, old in enumerate(order)}
    return [tuple(position.get(child, child) for child in rows[old]) for old in order]


# ---- distributions ----


def check_distributions(tree, root, weights):
    """A full binary tree, breadth-first numbers, one path per class, and masses as defined."""
    num_classes = len(weights)
    assert (tree.num_classes, tree.num_nodes) == (num_classes, num_classes - 1)
    assert tree.child_ids.shape == (num_classes - 1, 2)
    assert tree.child_ids.dtype == np.int64
    # The oracle's numbering, from the definition, is the library's.
    np.testing.assert_array_equal(tree.child_ids, oracle.to_ids(root))
    # Full: every id but the root's is the child of exactly one node.
    assert sorted(tree.child_ids.ravel().tolist()) == list(range(1, 2 * num_classes - 1)) or num_classes == 1
    check_numbering(tree)
    check_paths(tree, root)
    check_masses(tree, root, weights)


def check_numbering(tree):
    """Breadth first: parents before children, and the levels of 0, 1, 2, ... never decrease, so a level is a slice."""
    level = np.zeros(tree.num_nodes, dtype=int)
    for node, children in enumerate(tree.child_ids):
        inner = [c for c in children if c < tree.num_nodes]
        assert all(c > node for c in inner)
        level[inner] = level[node] + 1
    assert (np.diff(level) >= 0).all()
    # Within a level from left to right: the inner children, read in order of their parents, are 1, 2, 3, ...
    inner_children = tree.child_ids[tree.child_ids < tree.num_nodes]
    np.testing.assert_array_equal(inner_children, np.arange(1, tree.num_nodes))


def check_paths(tree, root):
    lengths = []
    for k in range(tree.num_classes):
        nodes, bits = tree.path(k)
        assert list(zip(nodes.tolist(), bits.tolist(), strict=True)) == oracle.path(root, k)
        lengths.append(len(nodes))
    assert tree.depth == max(lengths)
    assert math.fsum(2.0**-length for length in lengths) == 1.0  # Kraft's equality: the tree is full


def check_masses(tree, root, weights):
    prior = np.array(weights) / math.fsum(weights)
    assert tree.prior.shape == (len(weights),)
    assert tree.prior.dtype == np.float64
    np.testing.assert_allclose(tree.prior, prior, rtol=1e-14)
    assert abs(math.fsum(tree.prior) - 1) < 1e-14
    nodes = oracle.inner_nodes(root)
    mass = np.array([math.fsum(prior[k] for k in oracle.leaves(node)) for node in nodes])
    yes = np.array([math.fsum(prior[k] for k in oracle.leaves(node.yes)) for node in nodes])
    for got, wanted in ((tree.reach(), mass), (tree.yes_fraction(), yes / mass)):
        assert got.shape == (len(nodes),)
        np.testing.assert_allclose(got, wanted, rtol=1e-13)


def test_options(case):
    check_distributions(case.tree, case.root, case.weights)


@hypothesis.given(cases.tree_cases(max_classes=20))
def test_distributions_of_random_trees(case):
    check_distributions(case.tree, case.root, case.weights)


def test_reach_of_any_probabilities(case):
    probs = np.random.default_rng(0).dirichlet(np.ones(case.num_classes))
    got = case.tree.reach(probs)
    wanted = [math.fsum(probs[k] for k in oracle.leaves(node)) for node in oracle.inner_nodes(case.root)]
    assert got.shape == (case.num_nodes,)
    np.testing.assert_allclose(got, wanted, rtol=1e-13)


# ---- identity ----


def test_equality_and_hash_are_by_content(case):
    again = catnat.from_children(case.tree.children, prior=case.weights)
    assert again == case.tree
    assert hash(again) == hash(case.tree)
    assert {case.tree: "found"}[again] == "found"


@hypothesis.given(cases.merges(max_classes=10), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(rows, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    tree = catnat.from_children(np.array(rows, dtype=int).reshape(-1, 2))
    other = catnat.from_children(np.array(shuffled(rows, order), dtype=int).reshape(-1, 2))
    assert tree == other
    assert hash(tree) == hash(other)


def test_different_trees_differ():
    trees = [cases.tree_case(name).tree for name in cases.TREE_NAMES]
    trees += [catnat.balanced(8).with_prior(np.arange(1, 9)), catnat.chain(8), catnat.from_children([(1, 0)])]
    assert len(set(trees)) == len(trees)
    assert len({hash(tree) for tree in trees}) == len(trees)
    assert catnat.balanced(3) != "balanced(3)"


def test_a_uniform_prior_is_no_prior():
    assert catnat.balanced(5).with_prior([2.0] * 5) == catnat.balanced(5)
    assert hash(catnat.chain(5).with_prior([0.2] * 5)) == hash(catnat.chain(5))


def test_a_prior_is_known_up_to_a_factor():
    weights = np.array([1.0, 2.0, 5.0])
    assert catnat.balanced(3).with_prior(weights) == catnat.balanced(3).with_prior(4 * weights)


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda tree: pickle.loads(pickle.dumps(tree))])
def test_copies_are_equal(case, clone):
    case.tree.reach()  # fill whatever is cached
    other = clone(case.tree)
    assert other == case.tree
    assert hash(other) == hash(case.tree)
    np.testing.assert_array_equal(other.child_ids, case.tree.child_ids)
    np.testing.assert_array_equal(other.prior, case.tree.prior)
    np.testing.assert_array_equal(other.yes_fraction(), case.tree.yes_fraction())
    for array in (other.child_ids, other.children, other.parents, other.bits):
        assert not array.flags.writeable
    if not other.has_uniform_prior:
        assert not other.prior.flags.writeable


@hypothesis.given(cases.tree_cases(max_classes=20))
def test_children_are_what_from_children_takes(case):
    again = catnat.from_children(case.tree.children, case.tree.prior)
    assert again.with_prior(case.weights) == case.tree
    np.testing.assert_allclose(again.prior, case.tree.prior, rtol=1e-15)
    assert not case.tree.children.flags.writeable


def test_a_saved_tree_comes_back(case, tmp_path):
    for tree in (case.tree, case.tree.with_prior(np.arange(1.0, case.num_classes + 1))):
        for file in (tmp_path / "tree.npz", str(tmp_path / "tree of any name")):
            tree.save(file)
            again = catnat.Tree.load(file)
            assert again == tree
            assert hash(again) == hash(tree)
            np.testing.assert_array_equal(again.prior, tree.prior)
            assert not again.child_ids.flags.writeable


def test_a_file_is_never_run(tmp_path):
    np.savez(tmp_path / "tree.npz", facts=np.array([{"kind": "balanced"}], dtype=object))
    with pytest.raises(ValueError, match="OBJECT array"):
        catnat.Tree.load(tmp_path / "tree.npz")


def test_a_tree_from_another_process_is_found():
    """Strings hash differently in every process; a pickled tree must not carry its old hash along."""
    code = "import catnat, pickle, sys; print(pickle.load(sys.stdin.buffer) in {catnat.huffman([3.0, 2.0, 1.0])})"
    tree = catnat.huffman([3.0, 2.0, 1.0])
    hash(tree)
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(tree), capture_output=True, check=True)
    assert done.stdout.strip() == b"True"


def test_tables_are_read_only():
    for tree in (catnat.huffman([3.0, 2.0, 1.0]), catnat.balanced(5), catnat.chain(5)):
        with pytest.raises(ValueError, match="read-only"):
            tree.child_ids[0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        catnat.huffman([3.0, 2.0, 1.0]).prior[0] = 0.5


def test_changing_the_given_arrays_changes_no_tree():
    rows, weights = np.array(cases.MERGES), np.arange(1.0, 8.0)
    tree = catnat.from_children(rows, prior=weights)
    before = (hash(tree), tree.child_ids.copy(), tree.prior.copy())
    rows[:], weights[:] = 0, 1
    assert hash(tree) == before[0]
    np.testing.assert_array_equal(tree.child_ids, before[1])
    np.testing.assert_array_equal(tree.prior, before[2])


def test_repr_names_the_tree():
    assert "balanced" in repr(catnat.balanced(5))
    assert "5" in repr(catnat.balanced(5))
    assert "chain" in repr(catnat.chain(7))
    assert "50" in repr(catnat.huffman(cases.zipf(50)))
    assert len(repr(catnat.huffman(np.arange(1, 5000)))) < 200  # readable
    assert repr(catnat.balanced(5)) != repr(catnat.balanced(5).with_prior([1, 2, 3, 4, 5]))


# ---- priors ----


def test_with_prior_keeps_the_topology(case):
    weights = np.random.default_rng(1).uniform(0.1, 1, case.num_classes)
    check_distributions(case.tree.with_prior(weights), case.root, tuple(weights))


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300, 1e308])
def test_the_size_of_weights_does_not_matter(scale):
    weights = np.array([1.0, 0.5, 0.25, 1.0])
    np.testing.assert_allclose(
        catnat.balanced(4).with_prior(weights * scale).prior, weights / weights.sum(), rtol=1e-15
    )


def test_fractions_of_tiny_masses_stay_between_zero_and_one():
    tree = catnat.balanced(4).with_prior([1.0, 1e-200, 1e-300, 1e-290])
    fractions = tree.yes_fraction()
    assert ((fractions > 0) & (fractions <= 1)).all()
    np.testing.assert_allclose(fractions[1], 1e-200, rtol=1e-12)
    np.testing.assert_allclose(fractions[2], 1 / (1 + 1e-10), rtol=1e-12)


# ---- one class ----


@pytest.mark.parametrize(
    "make",
    [
        lambda: catnat.balanced(1),
        lambda: catnat.chain(1),
        lambda: catnat.huffman([3.0]),
        lambda: catnat.from_children(np.zeros((0, 2), dtype=int)),
        lambda: catnat.from_children([]),
        lambda: catnat.from_clusters([0]),
        lambda: catnat.from_clusters([[0]]),
    ],
)
def test_one_class_needs_no_node(make):
    tree = make()
    check_distributions(tree, 0, (1.0,))
    assert tree.depth == 0
    assert tree == catnat.balanced(1)
    nodes, bits = tree.path(0)
    assert nodes.shape == bits.shape == (0,)
