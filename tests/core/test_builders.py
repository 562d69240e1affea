"""Each builder against its definition, and what it says about input that is no tree."""

import math

import cases
import hypothesis
import numpy as np
import oracle
import pytest
from hypothesis import strategies as st
from scipy.cluster import hierarchy

import catnat
from catnat.trees import builders, clustering

# ---- balanced ----


@pytest.mark.parametrize("num_classes", [*range(1, 40), 63, 64, 65, 100, 127, 128, 129, 1000])
def test_balanced_is_the_heap(num_classes):
    tree, root = catnat.balanced(num_classes), oracle.balanced(num_classes)
    np.testing.assert_array_equal(tree.child_ids, oracle.to_ids(root))
    for k in range(num_classes):
        assert list(zip(*map(np.ndarray.tolist, tree.path(k)), strict=True)) == oracle.path(root, k)
    assert tree.depth == math.ceil(math.log2(num_classes))
    assert {len(tree.path(k)[0]) for k in range(num_classes)} <= {tree.depth, tree.depth - 1}
    fractions = tree.yes_fraction()
    assert (fractions >= 1 / 3 - 1e-15).all()
    assert (fractions <= 2 / 3 + 1e-15).all()


@pytest.mark.parametrize("depth", range(1, 9))
def test_path_of_a_power_of_two_is_the_class_in_binary(depth):
    """The paper's case: k written in H bits, the most significant first."""
    tree = catnat.balanced(2**depth)
    for k in range(2**depth):
        assert "".join(map(str, tree.path(k)[1].tolist())) == format(k, f"0{depth}b")


# ---- huffman ----


def fibonacci(size):
    numbers = [1.0, 1.0]
    while len(numbers) < size:
        numbers.append(numbers[-1] + numbers[-2])
    return np.array(numbers[:size])


WEIGHTS = {
    "equal": lambda rng, size: np.full(size, 0.3),
    "few values": lambda rng, size: rng.integers(1, 4, size) * 0.1,
    "Zipf": lambda rng, size: rng.permutation(1 / np.arange(1.0, size + 1)),
    "heavy tails": lambda rng, size: rng.pareto(0.5, size) + 1e-9,
    "Fibonacci": lambda rng, size: rng.permutation(fibonacci(size)),  # as deep as can be: batches of one
    "all of float64": lambda rng, size: 10.0 ** rng.uniform(-320, 300, size),
    "zero once scaled": lambda rng, size: rng.choice([5e-324, 1e-300, 1.0, 1e308], size),
}


@pytest.mark.parametrize("rows_at_once", [1, 3, None])
@pytest.mark.parametrize("family", WEIGHTS)
def test_huffman_merges_as_a_heap_does(family, rows_at_once, monkeypatch):
    if rows_at_once:
        monkeypatch.setattr("catnat.trees.builders._ROWS", rows_at_once)
    rng = np.random.default_rng(0)
    for size in (2, 3, 4, 5, *rng.integers(6, 300, 20).tolist()):
        weights = WEIGHTS[family](rng, size)
        tree = catnat.huffman(weights)
        expected = oracle.to_ids(oracle.from_merges(oracle.huffman_merges(weights.tolist())))
        np.testing.assert_array_equal(tree.child_ids, expected)


@hypothesis.given(
    st.one_of(
        st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=40),
        st.lists(st.integers(1, 5).map(float), min_size=1, max_size=40),  # with ties
    )
)
def test_huffman_is_optimal(weights):
    tree = catnat.huffman(weights)
    p = np.array(weights) / math.fsum(weights)
    np.testing.assert_allclose(tree.prior, p, rtol=1e-13)
    lengths = [len(tree.path(k)[0]) for k in range(len(weights))]
    assert np.dot(lengths, p) == pytest.approx(oracle.huffman_cost(weights), rel=1e-12)
    mass = np.concatenate([tree.reach(), tree.prior])
    no, yes = mass[tree.child_ids].T
    assert (no <= yes * (1 + 1e-12)).all()  # the lighter side is "no"


@pytest.mark.parametrize("size", [63, 64, 65, 127, 128, 129])
def test_trees_are_the_same_when_their_numbers_outgrow_a_dtype(size, monkeypatch):
    """8 and 64 bits in place of 32 and 64."""
    rng = np.random.default_rng(0)
    weights, points = rng.pareto(1.0, size), rng.standard_normal((size, 3))
    trees = catnat.huffman(weights), catnat.from_embeddings(points)
    for module in ("builders", "clustering"):
        monkeypatch.setattr(f"catnat.trees.{module}.narrow_ints", lambda count: np.int8 if count <= 2**7 else np.int64)
    assert (catnat.huffman(weights), catnat.from_embeddings(points)) == trees


@pytest.mark.parametrize(("count", "dtype"), [(2**31, np.int32), (2**31 + 1, np.int64)])
def test_narrow_integers_hold_what_is_counted(count, dtype):
    assert builders.narrow_ints(count) is dtype
    assert np.iinfo(dtype).max >= count - 1


def test_huffman_shows_its_progress(capsys):
    catnat.huffman(range(1, 51), progress=True)
    assert "98.0/98.0" in capsys.readouterr().err  # 49 nodes, made and numbered


# ---- from_children ----


@pytest.mark.parametrize("method", ["single", "average", "ward"])
def test_from_children_reads_scipy_linkage(method):
    points = np.random.default_rng(0).normal(size=(23, 3))
    linkage = hierarchy.linkage(points, method)
    tree = catnat.from_children(linkage[:, :2])
    rows = [(int(no), int(yes)) for no, yes in linkage[:, :2]]
    np.testing.assert_array_equal(tree.child_ids, oracle.to_ids(oracle.from_merges(rows)))
    # scipy's own count of the classes below each row is the tree's reach under the uniform prior
    sizes = sorted(np.round(tree.reach() * 23).astype(int).tolist())
    assert sizes == sorted(linkage[:, 3].astype(int).tolist())
    # and the order of the leaves is scipy's
    root = oracle.from_ids(tree.child_ids)
    assert oracle.leaves(root) == hierarchy.leaves_list(linkage).tolist()


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint16, np.float32])
def test_from_children_takes_rows_in_any_order_and_dtype(dtype, monkeypatch):
    monkeypatch.setattr("catnat.trees.builders._ROWS", 3)
    rng = np.random.default_rng(0)
    for size in (2, 3, 9, 60):
        merges = np.array(oracle.huffman_merges(rng.pareto(1.0, size).tolist()))
        order = rng.permutation(size - 1)
        place = np.concatenate([np.arange(size), size + np.argsort(order)])  # where ids went
        rows = place[merges[order]]
        expected = oracle.to_ids(oracle.from_merges(rows.tolist()))
        np.testing.assert_array_equal(catnat.from_children(rows.astype(dtype)).child_ids, expected)


@pytest.mark.parametrize("make", [catnat.balanced, catnat.chain])
def test_from_children_knows_trees_by_any_number_of_rows_at_once(make, monkeypatch):
    for rows_at_once in (1, 3, 100):
        monkeypatch.setattr("catnat.trees.builders._ROWS", rows_at_once)
        for size in (3, 8, 11):
            rows = make(size).children
            assert catnat.from_children(rows).kind == make(size).kind
            swapped = rows.copy()
            swapped[-1] = swapped[-1, ::-1]  # only the last row differs
            assert catnat.from_children(swapped).kind == "table"


def test_from_children_takes_a_prior():
    weights = np.arange(1.0, 8.0)
    assert catnat.from_children(cases.MERGES, prior=weights) == catnat.from_children(cases.MERGES).with_prior(weights)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([(0, 0), (4, 2), (5, 3)], "class 1 missing, class 0 twice"),
        ([(0, 1), (2, 3), (0, 1)], "two roots"),
        ([(0, 1), (2, 3), (4, 4)], "one child twice"),
        ([(0, 1), (4, 7), (5, 3)], "an entry too large"),
        ([(0, 1), (4, -1), (5, 3)], "a negative entry"),
        ([(4, 1), (0, 2), (5, 3)], "row 0 is its own child"),
        ([(0, 1), (2, 6), (3, 5)], "the last two rows point at each other, out of the root's reach"),
        ([(0.5, 1), (4, 2), (5, 3)], "half a class"),
        ([(math.nan, 1), (4, 2), (5, 3)], "NaN"),
        ([(0, 1, 2), (3, 4, 5)], "three children"),
        ([0, 1], "one row without its brackets"),
    ],
)
def test_from_children_refuses_what_is_no_tree(rows, why):
    with pytest.raises(ValueError, match="children"):
        catnat.from_children(rows)


# ---- from_clusters ----


def test_from_clusters_takes_label_vectors():
    labels = np.array([2, 0, 1, 0, 2, 2, 1])
    groups = [np.flatnonzero(labels == c) for c in range(3)]
    assert catnat.from_clusters(groups) == catnat.from_clusters([group.tolist() for group in groups])


@pytest.mark.parametrize("num_classes", [1, 2, 3, 6, 11])
def test_one_flat_group_is_the_balanced_tree(num_classes):
    assert catnat.from_clusters(list(range(num_classes))) == catnat.balanced(num_classes)


def test_groups_nest_to_any_depth():
    nested = 0
    for k in range(1, 2000):
        nested = [nested, k]
    rows = [(0, 1), *((2000 + k, 2 + k) for k in range(1998))]
    assert catnat.from_clusters(nested) == catnat.from_children(rows)
    assert catnat.from_clusters(nested, np.ones(2000)).depth == 1999


def test_a_group_of_one_changes_nothing():
    assert catnat.from_clusters([[[0]], [[1], [[2, 3]]]]) == catnat.from_clusters([0, [1, [2, 3]]])


def test_weighted_clusters_use_huffman_inside_each_group():
    weights = np.random.default_rng(2).uniform(0.1, 3, 12)
    tree = catnat.from_clusters(cases.CLUSTERS, weights=weights)
    np.testing.assert_allclose(tree.prior, weights / weights.sum(), rtol=1e-14)
    depth = [len(tree.path(k)[0]) for k in range(12)]

    def cost(group):
        """Total weight and total merged weight of a group, by Huffman's algorithm on its members."""
        if not isinstance(group, list):
            return weights[group], 0.0
        masses, costs = zip(*(cost(member) for member in group), strict=True)
        return sum(masses), sum(costs) + oracle.huffman_cost(masses) * sum(masses)

    assert np.dot(depth, weights) == pytest.approx(cost(cases.CLUSTERS)[1], rel=1e-12)
    # the groups stay together: some node has exactly the members of [1, [2, 4, 6]] below it
    below = [sorted(oracle.leaves(node)) for node in oracle.inner_nodes(oracle.from_ids(tree.child_ids))]
    assert [1, 2, 4, 6] in below
    assert [2, 4, 6] in below


@pytest.mark.parametrize(
    "clusters", [[], [[]], [[0, 1], []], [0, 0], [0, 2], [[0, 1], [1, 2]], [1, 2], [-1, 0], [[0, 1], [3]]]
)
def test_from_clusters_refuses_missing_and_repeated_classes(clusters):
    with pytest.raises(ValueError, match="clusters"):
        catnat.from_clusters(clusters)


# ---- sizes and weights ----


@pytest.mark.parametrize("make", [catnat.balanced, catnat.chain])
@pytest.mark.parametrize("size", [0, -1, 2.0, "3", None, True, math.nan])
def test_a_number_of_classes_is_a_positive_whole_number(make, size):
    with pytest.raises((TypeError, ValueError), match="num_classes"):
        make(size)


def test_numpy_integers_are_integers():
    assert catnat.balanced(np.int64(5)) == catnat.balanced(5)
    assert catnat.balanced(5).path(np.int64(3))[0].tolist() == catnat.balanced(5).path(3)[0].tolist()


BAD_WEIGHTS = {
    "zero": [1.0, 0.0, 1.0],
    "negative": [1.0, -1.0, 1.0],
    "nan": [1.0, math.nan, 1.0],
    "inf": [1.0, math.inf, 1.0],
    "matrix": [[1.0, 1.0, 1.0]],
    "empty": [],
    "scalar": 1.0,
}


@pytest.mark.parametrize("weights", BAD_WEIGHTS.values(), ids=BAD_WEIGHTS.keys())
def test_weights_are_positive_and_finite(weights):
    makers = (
        lambda w: catnat.huffman(w),
        lambda w: catnat.balanced(3).with_prior(w),
        lambda w: catnat.from_clusters([0, [1, 2]], weights=w),
        lambda w: catnat.from_children([(0, 1), (3, 2)], prior=w),
    )
    for make in makers:
        with pytest.raises(ValueError, match=r"weights|prior"):
            make(weights)


def test_a_prior_has_one_weight_per_class():
    for make in (
        lambda: catnat.balanced(3).with_prior([1.0, 2.0]),
        lambda: catnat.from_clusters([0, [1, 2]], weights=[1.0, 2.0]),
        lambda: catnat.from_children([(0, 1), (3, 2)], prior=[1.0] * 4),
    ):
        with pytest.raises(ValueError, match=r"(2|4) .*3"):  # what was given, what was needed
            make()


@pytest.mark.parametrize("tree", [catnat.balanced(5), catnat.chain(5), catnat.huffman([5, 4, 3, 2, 1])], ids=repr)
@pytest.mark.parametrize("k", [-1, 5, 100])
def test_path_of_an_unknown_class(tree, k):
    with pytest.raises(ValueError, match=rf"{k}.*4"):
        tree.path(k)


# ---- from_embeddings ----


def sides(tree, node=0):
    """The classes on the no and on the yes side of a node."""
    found = ([], [])
    for k in range(tree.num_classes):
        nodes, bits = tree.path(k)
        if node in nodes:
            found[bits[nodes.tolist().index(node)]].append(k)
    return found


@pytest.fixture(params=["whole", "in parts"])
def reading(request, monkeypatch):
    """Whether large groups are read whole or in parts, as embeddings are that do not fit into memory."""
    if request.param == "in parts":
        monkeypatch.setattr("catnat.trees.clustering._ROWS", 16)
        monkeypatch.setattr("catnat.trees.clustering._NUMBERS", 64)


@pytest.mark.parametrize("num_classes", [1, 2, 3, 5, 64, 100, 1000])
def test_embeddings_halve_the_classes(num_classes, reading):
    rng = np.random.default_rng(0)
    tree = catnat.from_embeddings(rng.standard_normal((num_classes, 7)))
    assert tree.num_classes == num_classes
    assert tree.depth == math.ceil(math.log2(num_classes))
    assert tree.has_uniform_prior


@pytest.mark.parametrize("arranged", [False, True])
def test_embeddings_are_cut_along_their_main_direction(arranged, reading):
    """The first cut is at the median of the first principal component, computed by SVD."""
    rng = np.random.default_rng(1)
    points = rng.standard_normal((200, 5)) * [1, 5, 1, 1, 1] + 100
    if arranged:
        points = points[np.argsort(points[:, 1])]  # parts are unlike each other
    centred = points - points.mean(0)
    along = centred @ np.linalg.svd(centred)[2][0]
    order = np.argsort(along)
    wanted = {frozenset(order[:100].tolist()), frozenset(order[100:].tolist())}
    assert {frozenset(side) for side in sides(catnat.from_embeddings(points))} == wanted


def test_embeddings_are_cut_along_the_main_direction_at_every_node():
    """Groups of 3 to 100 classes, worked on together: where the first singular value stands out, it decides."""
    rng = np.random.default_rng(4)
    points = rng.standard_normal((101, 4)) * [1, 6, 36, 216] + 1000
    tree, compared = catnat.from_embeddings(points), 0
    for node in range(tree.num_nodes):
        no, yes = sides(tree, node)
        below = np.array(no + yes)
        centred = points[below] - points[below].mean(0)
        _, values, directions = np.linalg.svd(centred, full_matrices=False)
        if len(below) < 3 or values[0] < 2.5 * values[1]:
            continue
        order = below[np.argsort(centred @ directions[0])]
        cuts = {frozenset(order[: len(side)].tolist()) for side in (no, yes)}
        assert cuts & {frozenset(no), frozenset(yes)}
        compared += 1
    assert compared > 20


def test_rows_that_fill_up_a_group_of_embeddings_are_ignored():
    rng = np.random.default_rng(5)
    rows = (rng.standard_normal((6, 8, 3)) * [1, 4, 16] + 100).astype(np.float32)
    inside = np.arange(8) < np.array([3, 4, 5, 6, 7, 8])[:, None]
    rows[~inside] += [500, 0, 0]
    found = clustering._along_main_directions(rows.copy(), inside, np.ones((6, 3), np.float32))
    for group, each, along in zip(rows.astype(float), inside, found, strict=True):
        centred = group[each] - group[each].mean(0)
        wanted = centred @ np.linalg.svd(centred)[2][0]
        cosine = along[each] @ wanted / np.linalg.norm(along[each]) / np.linalg.norm(wanted)
        assert abs(cosine) > 1 - 1e-5


def hypercube(levels, rng):
    """A class for every corner of a box whose sides are 1, 1/4, 1/16 ...: coordinates, in random order, and corners."""
    corners = rng.permutation(2**levels)
    bits = corners[:, None] >> np.arange(levels)[::-1] & 1
    return (2.0 * bits - 1) / 4.0 ** np.arange(levels), corners


@pytest.mark.parametrize("weighted", [False, True])
def test_embeddings_of_a_box_are_cut_side_by_side(weighted, reading):
    """From the longest side to the shortest: the classes below a node of level l have l sides in common."""
    levels = 8
    points, corners = hypercube(levels, np.random.default_rng(0))
    tree = catnat.from_embeddings(points, np.full(len(points), 7.0) if weighted else None)
    nodes = np.array([tree.path(k)[0] for k in range(len(points))])
    for level in range(levels):
        groups = {frozenset(np.flatnonzero(corners >> levels - level == c)) for c in range(2**level)}
        assert {frozenset(np.flatnonzero(nodes[:, level] == node)) for node in np.unique(nodes[:, level])} == groups


@pytest.mark.parametrize("weighted", [False, True])
def test_embeddings_make_one_tree_however_they_are_stored_and_read(weighted, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    if weighted:
        points, weights = rng.permutation(512)[:, None] * [1.0, 0.0], rng.pareto(1.0, 512) + 0.01
    else:
        points, weights = hypercube(9, rng)[0] * 2**20, None
    tree = catnat.from_embeddings(points, weights)
    stored = np.lib.format.open_memmap(tmp_path / "points.npy", "w+", np.float64, points.shape)
    stored[:] = points
    for rows, numbers in ((1 << 14, 1 << 24), (64, 600), (10, 1)):
        monkeypatch.setattr("catnat.trees.clustering._ROWS", rows)
        monkeypatch.setattr("catnat.trees.clustering._NUMBERS", numbers)
        for each in (stored, points.tolist(), points.astype(np.float32), np.asfortranarray(points.astype(np.int32))):
            assert catnat.from_embeddings(each, weights) == tree
        assert catnat.from_embeddings(stored, weights, scratch=tmp_path) == tree
    assert [file.name for file in tmp_path.iterdir()] == ["points.npy"]


@pytest.mark.parametrize("weighted", [False, True])
def test_embeddings_are_read_from_the_scratch_folder_once_they_are_there(weighted, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    points, weights = rng.standard_normal((500, 4)), rng.pareto(1.0, 500) + 1e-3 if weighted else None
    monkeypatch.setattr("catnat.trees.clustering._ROWS", 16)
    monkeypatch.setattr("catnat.trees.clustering._NUMBERS", 64)
    tree = catnat.from_embeddings(points, weights)
    regroup = clustering._Embeddings.regroup

    def regroup_and_spoil(self, order):
        regroup(self, order)
        points[:] = np.nan

    monkeypatch.setattr("catnat.trees.clustering._Embeddings.regroup", regroup_and_spoil)
    assert catnat.from_embeddings(points, weights, scratch=tmp_path) == tree
    assert np.isnan(points).all()
    assert not list(tmp_path.iterdir())


def test_embeddings_with_weights_halve_the_weight(reading):
    rng = np.random.default_rng(3)
    weights = np.array(cases.zipf(500))
    tree = catnat.from_embeddings(rng.standard_normal((500, 6)), weights)
    np.testing.assert_allclose(tree.prior, weights / weights.sum(), rtol=1e-12)
    no, yes = sides(tree)
    assert abs(weights[no].sum() - weights[yes].sum()) <= weights.max()
    expected_depth = sum(p * len(tree.path(k)[0]) for k, p in enumerate(tree.prior))
    entropy = -(tree.prior * np.log2(tree.prior)).sum()
    assert entropy <= expected_depth < entropy + 1


@pytest.mark.parametrize("points", [np.zeros((9, 3)), np.full((9, 3), 1e30), np.eye(9) * 1e-30])
def test_embeddings_of_any_size_make_a_tree(points):
    assert catnat.from_embeddings(points).depth == 4


def test_embeddings_that_are_none_are_refused(reading):
    for points in (np.zeros(3), np.zeros((3, 0)), [[0.0], [np.nan]], [[0.0]] * 99 + [[np.inf]], [[0.0], [1e300]]):
        with pytest.raises(ValueError, match="one vector of finite numbers per class"):
            catnat.from_embeddings(points)
    with pytest.raises(ValueError, match="`weights` has 3 entries, but the tree has 2"):
        catnat.from_embeddings([[0.0], [1.0]], [1, 2, 3])


def test_embeddings_show_their_progress(capsys):
    catnat.from_embeddings(np.random.default_rng(0).standard_normal((64, 3)), progress=True)
    assert "384/384" in capsys.readouterr().err  # each of 64 classes was halved 6 times


def test_a_prior_that_underflows_stays_positive(tmp_path):
    tree = catnat.huffman([1e-200, 1e200, 1.0])
    assert (tree.prior > 0).all()
    tree.save(tmp_path / "tree.npz")
    assert catnat.Tree.load(tmp_path / "tree.npz") == tree
