"""Matching nodes, growing and removing against sets of classes, node by node."""

import cases
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import catnat


def sides(tree):
    """The sets of classes on the no and the yes side of every node."""
    below = {tree.num_nodes + k: frozenset([k]) for k in range(tree.num_classes)}
    found = []
    for node in reversed(range(tree.num_nodes)):
        no, yes = (below[child] for child in tree.child_ids[node].tolist())
        below[node] = no | yes
        found.append((no, yes))
    return found[::-1]


def matching_by_sets(new, old, old_class):
    """For every node of the new tree the old node and whether sides are swapped, by comparing all sets."""
    common = {int(k) for k in old_class if k >= 0}
    there = {}
    for node, (no, yes) in enumerate(sides(old)):
        if no & common and yes & common:
            there[no & common, yes & common] = node
    found = []
    for no, yes in sides(new):
        no, yes = (frozenset(int(old_class[k]) for k in side if old_class[k] >= 0) for side in (no, yes))
        swapped = (yes, no) in there
        found.append((there.get((yes, no) if swapped else (no, yes), -1), swapped))
    return found


def trees(min_classes=1, max_classes=12):
    return cases.tree_cases(min_classes, max_classes).map(lambda case: case.tree)


@st.composite
def changed(draw, tree):
    """The same tree with some sides swapped, some subtrees exchanged, or none of it."""
    rows = tree.children.copy()
    for node in draw(st.lists(st.integers(0, len(rows) - 1), max_size=4)) if len(rows) else ():
        rows[node] = rows[node, ::-1]
    classes = np.arange(tree.num_classes)
    if draw(st.booleans()):
        a, b = (draw(st.integers(0, tree.num_classes - 1)) for _ in range(2))
        classes[[a, b]] = classes[[b, a]]
    is_class = rows < tree.num_classes
    rows[is_class] = classes[rows[is_class]]
    return catnat.from_children(rows)


def pairs(match):
    return list(zip(match.old_nodes.tolist(), match.swapped.tolist(), strict=True))


# ---- matching nodes ----


@hypothesis.given(st.data())
def test_nodes_match_that_tell_the_same_classes_apart(data):
    old = data.draw(trees())
    new = data.draw(st.one_of(changed(old), trees(old.num_classes, old.num_classes)))
    match = catnat.matching_nodes(new, old)
    assert pairs(match) == matching_by_sets(new, old, np.arange(old.num_classes))


@hypothesis.given(st.data())
def test_nodes_match_on_the_classes_that_both_trees_have(data):
    old, new = data.draw(trees()), data.draw(trees())
    given_classes = st.permutations([*range(old.num_classes), *[-1] * new.num_classes])
    old_class = np.array(data.draw(given_classes)[: new.num_classes])
    match = catnat.matching_nodes(new, old, old_class)
    assert pairs(match) == matching_by_sets(new, old, old_class)


@pytest.mark.parametrize(
    "clusters",
    [
        [[0, [[2, 3], 4]], 1],  # a gap between the sides, as many classes as [[0, 1], [2, 3]] has
        [[1, [[2, 3], 4]], 0],  # another beginning, as many classes
        [[0, 1], [[2, 3], 4]],  # the same beginning, more classes
    ],
)
def test_a_node_that_splits_at_the_same_place_need_not_match(clusters):
    old, new = catnat.from_clusters([[[0, 1], [2, 3]], 4]), catnat.from_clusters(clusters)
    match = catnat.matching_nodes(new, old)
    assert pairs(match) == matching_by_sets(new, old, np.arange(5))
    assert old.path(0)[0][1] not in match.old_nodes  # [[0, 1], [2, 3]]


@pytest.mark.parametrize("name", cases.TREE_NAMES)
def test_a_tree_matches_itself_and_its_mirror_image(name):
    tree = cases.tree_case(name).tree
    itself = catnat.matching_nodes(tree, tree)
    assert itself.old_nodes.tolist() == list(range(tree.num_nodes))
    assert not itself.swapped.any()
    mirror = catnat.from_children(tree.children[:, ::-1])
    match = catnat.matching_nodes(mirror, tree)
    assert match.swapped.all()
    assert sorted(match.old_nodes.tolist()) == list(range(tree.num_nodes))


def test_log_probs_are_the_same_with_rows_taken_over():
    """What the matching is for: scores of nodes that match, negated where sides are swapped, mean the same."""
    rng = np.random.default_rng(0)
    old = catnat.from_embeddings(rng.standard_normal((40, 3)))
    flip = rng.random(39) < 0.5
    new = catnat.from_children(np.where(flip[:, None], old.children[:, ::-1], old.children))
    match = catnat.matching_nodes(new, old)
    scores = rng.standard_normal(39)
    moved = scores[match.old_nodes] * np.where(match.swapped, -1, 1)

    def probs(tree, scores):
        return [
            np.prod([1 / (1 + np.exp(-(2 * bit - 1) * scores[node])) for node, bit in zip(*tree.path(k), strict=True)])
            for k in range(40)
        ]

    np.testing.assert_allclose(probs(new, moved), probs(old, scores), rtol=1e-12)


@pytest.mark.parametrize(
    "classes", [[0, 1], [0, 1, 5], [0, 1, 1], [0, 1, -2], [0.0, 1.0, 2.0], [[0], [1], [2]], [True, False, True]]
)
def test_matching_refuses_classes_that_the_old_tree_has_not(classes):
    with pytest.raises(ValueError, match="`classes`"):
        catnat.matching_nodes(catnat.balanced(3), catnat.balanced(4), classes)


# ---- growing ----


def check_old_branches(new, old, old_class):
    """Every old node that still has two sides is there, on its old sides, and its prior branch is as it was."""
    match = catnat.matching_nodes(new, old, old_class)
    assert not match.swapped.any()
    common = {int(k) for k in old_class if k >= 0}
    left = [node for node, (no, yes) in enumerate(sides(old)) if no & common and yes & common]
    assert sorted(match.old_nodes[match.old_nodes >= 0].tolist()) == left
    was = match.old_nodes >= 0
    for mine, theirs in zip(new.prior_branches(), old.prior_branches(), strict=True):
        np.testing.assert_allclose(mine[was], theirs[match.old_nodes[was]], rtol=1e-9)


@hypothesis.given(st.data())
def test_growing_leaves_all_else_as_it_was(data):
    tree = data.draw(trees(1, 9))
    size, count = tree.num_classes, data.draw(st.integers(1, 4))
    beside = data.draw(st.lists(st.integers(0, 2 * size - 2), min_size=count, max_size=count))
    fraction = data.draw(st.one_of(st.none(), st.floats(0.01, 0.24), st.just([0.05 * (j + 1) for j in range(count)])))
    new = catnat.grow(tree, count, beside, fraction=fraction)
    assert new.num_classes == size + count
    check_old_branches(new, tree, np.r_[np.arange(size), np.full(count, -1)])
    # What stands beside the new classes of one place is what was there, old classes and perhaps other new ones.
    below = [frozenset([k]) for k in range(size)] + [no | yes for no, yes in sides(tree)]
    found = sides(new)
    mass = new.prior
    for place in set(beside):
        mine = frozenset(size + j for j in range(count) if beside[j] == place)
        [(no, yes)] = [(no, yes) for no, yes in found if yes == mine and no & frozenset(range(size))]
        assert {k for k in no if k < size} == below[place]
        total = mass[[*no, *yes]].sum()
        for k in mine:
            wanted = 1 / len(no | yes) if fraction is None else np.broadcast_to(fraction, count)[k - size]
            assert mass[k] / total == pytest.approx(wanted, rel=1e-9)


def test_classes_that_nothing_was_put_beside_keep_their_prior():
    tree = catnat.huffman([8, 4, 2, 1])
    new = catnat.grow(tree, 2, beside=[1, 3], fraction=[0.25, 0.5])
    np.testing.assert_allclose(new.prior * 15, [8, 3, 2, 0.5, 1, 0.5], rtol=1e-12)


def test_growing_a_uniform_tree_beside_its_root_leaves_it_uniform():
    tree = catnat.balanced(6)
    new = catnat.grow(tree, 3)
    assert new.has_uniform_prior
    assert sides(new)[0] == (frozenset(range(6)), frozenset({6, 7, 8}))


def test_one_class_grows():
    assert catnat.grow(catnat.balanced(1), 1) == catnat.balanced(2)
    assert catnat.grow(catnat.balanced(1), 3, beside=0).has_uniform_prior


@pytest.mark.parametrize(
    ("new_classes", "options", "why"),
    [
        (0, {}, "`new_classes` is 0"),
        (1, {"beside": 7}, "`beside` is 7"),
        (1, {"beside": -1}, "`beside` is -1"),
        (1, {"beside": 0.0}, "`beside` is 0.0"),
        (2, {"beside": [0, 1, 2]}, "`beside` has shape"),
        (2, {"fraction": 0.5}, "`fraction` must be positive"),
        (2, {"fraction": [0.5, 0.0]}, "`fraction` must be positive"),
        (1, {"fraction": np.nan}, "`fraction` must be positive"),
    ],
)
def test_growing_refuses_what_makes_no_sense(new_classes, options, why):
    with pytest.raises(ValueError, match=why):
        catnat.grow(catnat.balanced(4), new_classes, **options)


# ---- removing ----


@hypothesis.given(st.data())
def test_removing_gives_the_mass_to_the_sibling(data):
    tree = data.draw(trees(2, 10))
    gone = data.draw(st.sets(st.integers(0, tree.num_classes - 1), max_size=tree.num_classes - 1))
    left = np.delete(np.arange(tree.num_classes), sorted(gone))
    new = catnat.remove(tree, list(gone))
    assert new.num_classes == len(left)
    check_old_branches(new, tree, left)
    # One after the other it is the definition itself: the sibling's classes share what goes, in proportion.
    mass = tree.prior.copy()
    alive = set(range(tree.num_classes))
    for k in gone:
        alive -= {k}
        for no, yes in reversed(sides(tree)):  # the deepest node with something left beside k
            here, there = (no, yes) if k in no else (yes, no)
            if k in here and there & alive and not here & alive:
                takers = sorted(there & alive)
                mass[takers] *= 1 + mass[k] / mass[takers].sum()
                break
        mass[k] = 0
    np.testing.assert_allclose(new.prior, mass[left], rtol=1e-9)


def test_removing_what_was_grown_gives_the_tree_back():
    tree = catnat.from_embeddings(np.random.default_rng(0).standard_normal((50, 4)), np.arange(1.0, 51))
    back = catnat.remove(catnat.grow(tree, 3, beside=[4, 60, 4], fraction=0.1), [50, 51, 52])
    np.testing.assert_array_equal(back.child_ids, tree.child_ids)
    np.testing.assert_allclose(back.prior, tree.prior, rtol=1e-12)


def test_removing_nothing_changes_nothing():
    assert catnat.remove(catnat.chain(5), []) == catnat.chain(5)
    assert catnat.remove(catnat.balanced(2), [0]) == catnat.balanced(1)


@pytest.mark.parametrize("classes", [[4], [-1], [0, 1, 2, 3], [0.5]])
def test_removing_refuses_classes_that_are_not_there(classes):
    with pytest.raises(ValueError, match="`classes` is"):
        catnat.remove(catnat.balanced(4), classes)
