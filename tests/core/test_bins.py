"""Bins: edges, quantiles, identity; and which trees keep the order of their classes."""

import copy
import itertools
import pickle

import cases
import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

import catnat
from catnat.trees import bins

EDGES = [-1.0, 0.0, 0.5, 4.0]


def test_facts_are_those_of_the_densities():
    """Means, variances and entropies by integration of the density inside each bin."""
    bins = catnat.Bins(EDGES)
    for k, (low, high) in enumerate(itertools.pairwise(EDGES)):
        x = np.linspace(low, high, 200_001)
        assert bins.widths[k] == high - low
        assert abs(bins.means[k] - x.mean()) < 1e-9
        assert abs(bins.variances[k] - x.var()) < 1e-3 * (high - low) ** 2
        assert abs(bins.entropies[k] - np.log(high - low)) < 1e-12


def test_facts_of_tails():
    """An exponential variable: distance from the inner edge with the width as its mean."""
    bins = catnat.Bins(EDGES, tails=True)
    for k, inner, sign, width in ((0, 0.0, -1, 1.0), (2, 0.5, 1, 3.5)):
        distance = (np.arange(400_000) + 0.5) / 400_000 * 60 * width
        density = np.exp(-distance / width) / width
        weights = density / density.sum()
        mean = (weights * (inner + sign * distance)).sum()
        assert abs(bins.means[k] - mean) < 1e-6
        assert abs(bins.variances[k] - (weights * (inner + sign * distance - mean) ** 2).sum()) < 1e-5
        assert abs(bins.entropies[k] + (weights * np.log(density)).sum()) < 1e-6


def test_identity():
    bins = catnat.Bins(EDGES)
    assert bins == catnat.Bins(np.array(EDGES))
    assert hash(bins) == hash(catnat.Bins(EDGES))
    assert bins != catnat.Bins(EDGES, tails=True)
    assert bins != catnat.Bins([0.0, *EDGES[2:]])
    assert pickle.loads(pickle.dumps(bins)) == bins
    assert repr(catnat.Bins(EDGES, tails=True)) == "<Bins: 3 from -1.0 to 4.0, and tails>"
    for one in (bins, pickle.loads(pickle.dumps(bins)), copy.deepcopy(bins)):
        with pytest.raises(ValueError, match="read-only"):
            one.edges[0] = 3.0


@pytest.mark.parametrize(
    ("edges", "tails", "message"),
    [
        ([0.0], False, "K \\+ 1 edges"),
        (np.zeros((2, 2)), False, "a vector"),
        ([0.0, 1.0, 1.0], False, "must increase, but edge 1 is 1.0"),
        ([0.0, 2.0, 1.0], False, "must increase"),
        ([-np.inf, 0.0, 1.0], False, "tails=True"),
        ([0.0, np.nan, 1.0], False, "not finite"),
        ([0.0, 1e19], False, "another unit"),
        ([0.0, 1e-20], False, "another unit"),
        ([0.0, 1.0], True, "two bins"),
    ],
)
def test_bad_edges(edges, tails, message):
    with pytest.raises(ValueError, match=message):
        catnat.Bins(edges, tails)


def test_edges_that_are_no_numbers():
    with pytest.raises(TypeError, match="numbers are needed"):
        catnat.Bins("edges")


@given(st.lists(st.floats(-1e6, 1e6).map(lambda x: round(x, 3)), min_size=2), st.integers(1, 40))
def test_quantiles(data, size):
    if min(data) == max(data):
        with pytest.raises(ValueError, match="two different"):
            catnat.Bins.from_quantiles(data, size)
        return
    edges = catnat.Bins.from_quantiles(data, size).edges
    wanted = np.quantile(data, np.linspace(0, 1, size + 1))
    assert edges.shape == (size + 1,)
    assert (edges[0], edges[-1]) == (wanted[0], wanted[-1])
    lone = np.append(True, np.diff(wanted) > 0) & np.append(np.diff(wanted) > 0, True)
    np.testing.assert_allclose(edges[lone], wanted[lone])  # all quantiles that do not coincide with a neighbour


def test_quantiles_hold_equally_many():
    data = np.random.default_rng(0).normal(size=10_000)
    counts, _ = np.histogram(data, catnat.Bins.from_quantiles(data, 16).edges)
    assert set(counts) <= {624, 625, 626}


@pytest.mark.parametrize("data", [[], [1.0, np.nan], [1.0, np.inf]])
def test_quantiles_of_what_has_none(data):
    with pytest.raises(ValueError, match="finite"):
        catnat.Bins.from_quantiles(data, 3)


# ---- trees ----


def in_order(root):
    """Whether the leaves below every node are consecutive, by listing them."""
    return all(max(below) - min(below) + 1 == len(below) for below in map(oracle.leaves, oracle.inner_nodes(root)))


@given(cases.tree_cases())
def test_which_trees_are_in_order(case):
    lower = bins.yes_is_lower(case.tree)
    assert (lower is not None) == in_order(case.root)
    if lower is None:
        return
    for node in oracle.inner_nodes(case.root):
        yes_first = min(oracle.leaves(node.yes)) < min(oracle.leaves(node.no))
        assert np.broadcast_to(lower, case.num_nodes)[node.index] == yes_first


@pytest.mark.parametrize("name", cases.TREE_NAMES)
def test_cut(name):
    """The leaves of the cut tree are the intervals that the first levels tell apart, with their prior mass."""
    case = cases.tree_case(name)
    if not in_order(case.root):
        with pytest.raises(ValueError, match="not consecutive"):
            bins.cut(case.tree, 1)
        return
    for level in {0, min(2, case.tree.depth), case.tree.depth}:
        tree, first = bins.cut(case.tree, level)
        starts = sorted({min(oracle.leaves(part)) for part in parts(case.root, level)})
        assert first.tolist() == starts
        wanted = np.add.reduceat(np.array(case.weights) / sum(case.weights), starts)
        np.testing.assert_allclose(tree.prior, wanted, rtol=1e-12)
        assert tree.depth == level


def parts(root, level):
    """The subtrees that hang from the first levels."""
    if level == 0 or not isinstance(root, oracle.Node):
        return [root]
    return [part for child in (root.no, root.yes) for part in parts(child, level - 1)]


def test_cut_below_the_tree():
    with pytest.raises(ValueError, match="from 0 to its depth, 3"):
        bins.cut(catnat.balanced(8), 4)
