"""Trees at the size people need: time and memory."""

import time
import tracemalloc

import numpy as np
import pytest

import catnat


def test_balanced_is_instant_at_any_size_and_takes_no_memory():
    tracemalloc.start()
    start = time.perf_counter()
    tree, uneven = catnat.balanced(2**25), catnat.balanced(10**9 + 7)
    nodes, bits = tree.path(2**24 + 5)
    assert tree == catnat.balanced(2**25)
    assert hash(tree) != hash(uneven)
    assert "33554432" in repr(tree)
    assert (tree.depth, uneven.depth) == (25, 30)
    assert len(uneven.path(10**9 + 6)[0]) == 29
    assert time.perf_counter() - start < 0.05
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e5
    assert bits.tolist() == [1] + [0] * 21 + [1, 0, 1]
    assert nodes[-1] == 2**24 - 1 + (2**24 + 5) // 2


def test_a_long_chain_stays_small():
    size = 2**20
    tracemalloc.start()
    tree = catnat.chain(size)
    nodes, bits = tree.path(size - 1)
    reach = tree.reach()
    fractions = tree.yes_fraction()
    hash(tree)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200e6
    assert nodes.size == size - 1
    assert not bits.any()
    assert reach[0] == pytest.approx(1)
    np.testing.assert_allclose(fractions, 1 / np.arange(size, 1, -1), rtol=1e-9)


def test_huffman_of_a_million_takes_under_20_seconds():
    weights = np.random.default_rng(0).pareto(1.0, 10**6) + 1e-3
    start = time.perf_counter()
    tree = catnat.huffman(weights)
    assert time.perf_counter() - start < 20
    p = weights / weights.sum()
    entropy = -(p * np.log2(p)).sum()
    assert entropy <= tree.reach().sum() < entropy + 1


def peak_bytes(make):
    """The most memory that arrays took while ``make()`` ran, its result included, and the result."""
    tracemalloc.start()
    made = make()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak, made


def test_huffman_of_a_file_needs_a_third_more_memory_than_its_tree(tmp_path, monkeypatch):
    """A tree with a prior holds 24 bytes a class. A copy of the table or of the prior would be 16 or 8 bytes more."""
    monkeypatch.setattr("catnat.trees.builders._ROWS", 1 << 10)
    size = 1 << 18
    np.save(tmp_path / "weights.npy", np.random.default_rng(0).pareto(1.0, size).astype(np.float32) + 1e-3)
    weights = np.load(tmp_path / "weights.npy", mmap_mode="r")
    peak, tree = peak_bytes(lambda: catnat.huffman(weights))
    assert tree.num_classes == size
    assert peak < 34 * size + 1e6


def test_from_children_of_a_file_needs_little_more_memory_than_its_tree(tmp_path, monkeypatch):
    monkeypatch.setattr("catnat.trees.builders._ROWS", 1 << 10)
    size = 1 << 18
    children = catnat.huffman(np.random.default_rng(0).pareto(1.0, size) + 1e-3).children
    np.save(tmp_path / "rows.npy", children)
    rows = np.load(tmp_path / "rows.npy", mmap_mode="r")
    peak, tree = peak_bytes(lambda: catnat.from_children(rows))
    np.testing.assert_array_equal(tree.children, children)
    assert peak < 20 * size + 1e6


@pytest.mark.parametrize("weighted", [False, True])
def test_from_embeddings_of_a_file_needs_memory_for_classes_not_for_embeddings(weighted, tmp_path, monkeypatch):
    monkeypatch.setattr("catnat.trees.builders._ROWS", 1 << 10)
    monkeypatch.setattr("catnat.trees.clustering._ROWS", 1 << 8)
    monkeypatch.setattr("catnat.trees.clustering._NUMBERS", 1 << 14)
    size, width = 1 << 13, 64
    np.save(tmp_path / "points.npy", np.random.default_rng(0).standard_normal((size, width)))
    points = np.load(tmp_path / "points.npy", mmap_mode="r")
    weights = np.arange(1.0, size + 1) if weighted else None
    peak, tree = peak_bytes(lambda: catnat.from_embeddings(points, weights))
    assert tree.num_classes == size
    assert peak < (44 if weighted else 36) * size + 20 * 2**14  # float32 embeddings alone are 256 bytes a class


def test_a_deep_tree_needs_no_recursion():
    """A caterpillar that is no chain of class order, deeper than Python's stack."""
    size = 5000
    order = np.random.default_rng(0).permutation(size)
    rows = [(int(order[0]), int(order[1]))]
    rows += [(size + j, int(order[j + 2])) for j in range(size - 2)]
    tree = catnat.from_children(rows)
    assert tree.depth == size - 1
    assert len(tree.path(int(order[0]))[0]) == size - 1
    assert tree.path(int(order[-1]))[1].tolist() == [1]
