"""From scores to probabilities: every tree x activation against the oracle, and the paper's special cases."""

import itertools
import math
import warnings

import cases
import numpy as np
import oracle
import pytest
from conformance import checks

import catnat


@pytest.mark.parametrize(
    "check",
    [
        checks.probabilities,
        checks.zero_scores_mean_the_prior,
        checks.log_probabilities,
        checks.path_log_prob_is_the_gathered_one,
        checks.reach_is_the_sum_of_leaves,
    ],
)
def test_check(backend, tree, activation, check):
    check(backend, tree, activation)


@pytest.mark.parametrize("name", ["balanced-1", "balanced-5", "chain-7", "huffman-zipf-50"])
def test_any_axis(backend, name):
    checks.any_axis(backend, cases.tree_case(name), cases.NATURAL)


def test_names_and_defaults(backend):
    """No tree means balanced(K), so does the number K; no activation means the sigmoid."""
    scores = np.linspace(-2, 2, 10).reshape(2, 5)
    for name, activation in (("natural", cases.NATURAL), ("sigmoid", cases.SIGMOID)):
        wanted = backend.catnat(scores, catnat.balanced(6), activation)
        for tree in (None, 6):
            np.testing.assert_array_equal(backend.catnat(scores, tree, name), wanted)
    np.testing.assert_array_equal(backend.catnat(scores), wanted)


# ---- the paper's case ----


def test_two_classes_are_a_bernoulli(backend, activation):
    """p_1 = a(s): for K = 2 nothing is centred or scaled away."""
    scores = np.linspace(-2.9, 2.9, 31)[:, None] * (0.5 if activation.name == "natural-width-3" else 1.0)
    yes = np.array([activation.reference.yes(s) for s in scores[:, 0]])
    got = backend.catnat(scores, catnat.balanced(2), activation)
    checks.close(got, np.stack([1 - yes, yes], -1), atol=1e-14)


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
@pytest.mark.parametrize("activation", [cases.SIGMOID, cases.NATURAL], ids=lambda a: a.name)
def test_product_formula_and_heap_recursion(backend, activation, depth):
    """k in binary, most significant bit first, is the path; and q_2i = q_i (1 - a_i), q_2i+1 = q_i a_i is the same."""
    size = 2**depth
    scores = np.random.default_rng(depth).normal(size=size - 1)
    yes = [activation.reference.yes(s) for s in scores]
    product = []
    for k in range(size):
        node, p = 1, 1.0
        for bit in format(k, f"0{depth}b"):
            p *= yes[node - 1] if bit == "1" else 1 - yes[node - 1]
            node = 2 * node + int(bit)
        product.append(p)
    heap = np.ones(2 * size)
    for i in range(1, size):
        heap[2 * i], heap[2 * i + 1] = heap[i] * (1 - yes[i - 1]), heap[i] * yes[i - 1]
    checks.close(heap[size:], product, rtol=1e-14)
    checks.close(backend.catnat(scores, None, activation), product, rtol=1e-12)


def test_stick_breaking_is_the_chain(backend):
    """p_k = a_k prod_{j<k} (1 - a_j), the last class takes the rest; uniform at zero."""
    scores = np.array([0.4, -1.0, 2.0, 0.1])
    yes = 1 / (1 + np.exp(-(scores - np.log([4, 3, 2, 1]))))  # logit of 1/5, 1/4, 1/3, 1/2 centres it
    rest = np.concatenate([[1], np.cumprod(1 - yes)])
    wanted = rest * np.append(yes, 1)
    checks.close(backend.catnat(scores, catnat.chain(5), "sigmoid"), wanted, rtol=1e-12)


def test_softmax_of_two_scores_is_the_sigmoid_of_their_difference(backend):
    scores = np.random.default_rng(0).normal(size=(20, 2))
    softmax = np.exp([oracle.softmax_log_probs(row) for row in scores])
    checks.close(backend.catnat(scores[:, 1:] - scores[:, :1], None, "sigmoid"), softmax, rtol=1e-12)


def test_no_batch_and_empty_batches(backend, tree, activation):
    for shape in ((), (0,), (3, 0, 2), (1, 1, 1)):
        scores = np.zeros((*shape, tree.num_nodes))
        assert backend.catnat(scores, tree.tree, activation).shape == (*shape, tree.num_classes)
        assert backend.log_catnat(scores, tree.tree, activation).shape == (*shape, tree.num_classes)
        assert backend.entropy(scores, tree.tree, activation).shape == shape
        assert backend.mode(scores, tree.tree, activation).shape == shape
        assert backend.kl_divergence(scores, scores, tree.tree, activation).shape == shape
        assert backend.reach(scores, tree.tree, activation).shape == (*shape, tree.num_nodes)
        assert backend.sample_without_replacement(scores, 1, tree.tree, activation).shape == (*shape, 1)
        for more in ((), (2,), (0,), (2, 0)):
            assert backend.sample(scores, tree.tree, activation, sample_shape=more).shape == (*more, *shape)
            classes = np.zeros((*more, *shape), int)
            assert backend.log_prob(scores, classes, tree.tree, activation).shape == classes.shape
        assert backend.grad("entropy", np.ones(shape), scores, tree.tree, activation).shape == scores.shape


def test_one_class_is_certain(backend, activation):
    scores, tree = np.zeros((3, 0)), catnat.balanced(1)
    checks.close(backend.catnat(scores, tree, activation), np.ones((3, 1)))
    checks.close(backend.log_catnat(scores, tree, activation), np.zeros((3, 1)))
    checks.close(backend.entropy(scores, tree, activation), np.zeros(3))
    checks.close(backend.kl_divergence(scores, scores, tree, activation), np.zeros(3))
    checks.close(backend.sample(scores, tree, activation), np.zeros(3))
    checks.close(backend.mode(scores, tree, activation), np.zeros(3))
    checks.close(backend.log_prob(scores, np.zeros(3, int), tree, activation), np.zeros(3))
    checks.close(backend.sample_without_replacement(scores, 1, tree, activation), np.zeros((3, 1)))
    for function in (backend.reach, backend.fisher_diagonal, backend.saturated):
        assert function(scores, tree, activation).shape == (3, 0)


# ---- nu ----

every_natural = pytest.mark.parametrize("activation", cases.NATURALS.values(), ids=cases.NATURALS.keys())


@every_natural
@pytest.mark.parametrize("yes_at_zero", [0.5, 0.3, 0.8])
def test_nu_at_its_centre(backend, activation, yes_at_zero):
    """nu(C) = 1/2 and nu'(C) = pi / (2 A), where C = -(A / pi) arcsin(2 f - 1) is where centring has moved it."""
    tree = catnat.balanced(2).with_prior([1 - yes_at_zero, yes_at_zero])
    centre = np.array([-activation.width / math.pi * math.asin(2 * yes_at_zero - 1)])
    checks.close(backend.catnat(centre, tree, activation), np.array([0.5, 0.5]), rtol=1e-13)
    slope = backend.grad("catnat", np.array([0.0, 1.0]), centre, tree, activation)
    checks.close(slope, [math.pi / (2 * activation.width)], rtol=1e-12)


@pytest.mark.parametrize("name", ["natural", "natural-width-3"])
@pytest.mark.parametrize("side", [-1, 1])
def test_nu_is_continuously_differentiable_at_its_knots(backend, name, side):
    activation = cases.ACTIVATIONS[name]
    edge, distances = side * activation.width / 2, np.array([1e-2, 1e-4, 1e-6, 1e-8])
    tree, pick = catnat.balanced(2), np.tile([0.0, 1.0], (4, 1))
    end = (1 + side) / 2
    for direction in (-side, side):  # from inside, from outside
        scores = (edge + direction * distances)[:, None]
        value = backend.catnat(scores, tree, activation)[:, 1]
        slope = backend.grad("catnat", pick, scores, tree, activation)[:, 0]
        # nu and its slope approach the constant's quadratically and linearly.
        assert (np.abs(value - end) <= (math.pi / activation.width * distances) ** 2 / 4 + 1e-15).all()
        assert (np.abs(slope) <= (math.pi / activation.width) ** 2 / 2 * distances * 1.001).all()
        if direction == side:
            assert (value == end).all()
            assert (slope == 0).all()


@every_natural
def test_outside_the_band(backend, tree, activation):
    checks.outside_the_band_nothing_moves(backend, tree, activation)


def test_inside_the_band_nothing_is_saturated(backend, tree, activation):
    scores = tree.model(activation).inside(np.random.default_rng(0), (5,))
    got = backend.saturated(scores, tree.tree, activation)
    assert got.dtype == bool
    np.testing.assert_array_equal(got, np.zeros((5, tree.num_nodes), bool))


def test_a_probability_that_rounds_to_one_is_not_saturated(backend):
    scores = np.array([40.0, -40.0, 800.0, -800.0])[:, None]  # in float64 the other branch has 4e-18, or exactly 0
    got = backend.saturated(scores, catnat.balanced(2), cases.ACTIVATIONS["sigmoid"])
    assert got.ravel().tolist() == [False, False, True, True]


# ---- the warning about near edges ----


def fresh(tree):
    """Almost the same tree, another one at every call, so that no test of this process has been warned about it."""
    return tree.with_prior(tree.prior * np.linspace(1, 1 + 1e-4 * next(_numbers), tree.num_classes))


_numbers = itertools.count(1)


@pytest.mark.parametrize(
    ("name", "tree", "near"),
    [
        ("natural", catnat.balanced(1023), False),
        (
            "natural",
            catnat.balanced(3).with_prior([0.1, 0.4, 0.5]),
            False,
        ),  # 4 arcsin sqrt 0.2 = 1.9
        ("natural", catnat.balanced(3).with_prior([0.02, 0.38, 0.6]), True),  # 4 arcsin sqrt 0.05 = 0.9
        ("natural", catnat.balanced(3).with_prior([0.38, 0.02, 0.6]), True),  # the other side
        ("natural", catnat.chain(43), True),
        ("natural-width-3", catnat.balanced(4), False),
        ("sigmoid", catnat.chain(40), False),
    ],
)
def test_clamp_warns_once_when_an_edge_is_near(backend, name, tree, near):
    activation, tree = cases.ACTIVATIONS[name], fresh(tree)
    warned = edge_warnings(backend, tree, activation)
    assert len(warned) == int(near)
    assert edge_warnings(backend, tree, activation) == []  # said once
    if near:
        assert "sigmoid()" in str(warned[0].message)  # a remedy
        assert "%" in str(warned[0].message)  # the fraction of such nodes


def edge_warnings(backend, tree, activation):
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        backend.loudly("log_catnat", np.zeros(tree.num_nodes), tree, activation)
    assert all(issubclass(w.category, catnat.EdgeWarning) for w in record)
    return record
