"""A cut tree: every node is in the top or in one piece, pieces are subtrees, and ranks are loaded alike."""

import cases
import numpy as np
import pytest

import catnat
from catnat import _pieces

TREES = {
    **{f"balanced-{k}": catnat.balanced(k) for k in (1, 2, 3, 18, 1000)},
    "chain-200": catnat.chain(200),
    "huffman-1000": catnat.huffman(cases.zipf(1000)),
    "clusters": catnat.from_clusters(cases.CLUSTERS),
}


@pytest.mark.parametrize("count", [1, 4, 16])
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_pieces_are_subtrees(tree, count):
    cut = _pieces.cut(tree, count)
    assert len(cut.nodes) <= count
    members = np.sort(np.concatenate([cut.top, *cut.nodes]))
    np.testing.assert_array_equal(members, np.arange(tree.num_nodes))
    for number, nodes in enumerate(cut.nodes):
        np.testing.assert_array_equal(cut.piece[nodes], number)
        np.testing.assert_array_equal(nodes[cut.place[nodes]], nodes)
        outside = [node for node in nodes if tree.parents[node] not in nodes]
        assert len(outside) == 1  # its root, and so everything below
        inner = tree.child_ids[nodes][tree.child_ids[nodes] < tree.num_nodes]
        assert np.isin(inner, nodes).all()
    # The path to a class goes through the top first, then through one piece.
    for k in range(0, tree.num_classes, 7):
        pieces = cut.piece[tree.path(k)[0]]
        below = pieces[pieces != _pieces.TOP]
        assert len(set(below.tolist())) <= 1
        assert (pieces[: len(pieces) - len(below)] == _pieces.TOP).all()


@pytest.mark.parametrize("name", ["balanced-1000", "huffman-1000"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_are_loaded_alike(name, ranks):
    tree = TREES[name]
    cut = _pieces.cut(tree, 16)
    hands = cut.dealt(ranks)
    assert sorted(piece for hand in hands for piece in hand) == list(range(16))
    mass, rows = tree.reach(), [sum(len(cut.nodes[piece]) for piece in hand) for hand in hands]
    work = [sum(mass[cut.nodes[piece][0]] for piece in hand) for hand in hands]
    loads = np.array(rows) / sum(rows) + np.array(work) / sum(work)
    assert max(loads) < 1.2 * min(loads)
    assert len(cut.top) <= 64


def test_a_chain_is_not_all_top():
    assert len(_pieces.cut(catnat.chain(1000), 4).top) <= 16
