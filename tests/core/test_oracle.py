"""The oracle itself, against values worked out by hand."""

import math

import cases
import mpmath
import numpy as np
import oracle
import pytest


def test_four_classes_by_hand():
    model = oracle.Model(oracle.balanced(4), (1.0,) * 4, oracle.Sigmoid())
    a, b, c = (1 / (1 + math.exp(-s)) for s in (0.3, -1.0, 2.0))
    wanted = [(1 - a) * (1 - b), (1 - a) * b, a * (1 - c), a * c]
    np.testing.assert_allclose(model.probs([0.3, -1.0, 2.0]), wanted, rtol=1e-14)
    np.testing.assert_allclose(model.reach([0.3, -1.0, 2.0]), [1, 1 - a, a], rtol=1e-14)


def test_trees_by_hand():
    assert oracle.leaves(oracle.balanced(3)) == [0, 1, 2]
    assert oracle.path(oracle.balanced(3), 2) == [(0, 1)]
    assert oracle.path(oracle.chain(4), 2) == [(0, 0), (1, 0), (2, 1)]
    assert oracle.path(oracle.from_merges([(0, 1), (3, 2)]), 1) == [(0, 0), (1, 1)]
    np.testing.assert_array_equal(oracle.to_ids(oracle.balanced(3)), [[1, 4], [2, 3]])


def test_from_ids_undoes_to_ids():
    for root in (oracle.balanced(11), oracle.chain(6), oracle.from_clusters(cases.CLUSTERS)):
        assert oracle.from_ids(oracle.to_ids(root)) == root


@pytest.mark.parametrize("activation", cases.ACTIVATIONS.values(), ids=cases.ACTIVATIONS.keys())
def test_score_is_the_inverse_in_both_arithmetics(activation):
    reference = activation.reference
    for yes in (0.01, 0.3, 0.5, 0.77):
        assert reference.yes(reference.score(yes)) == pytest.approx(yes, rel=1e-13)
        digits = reference.yes(reference.score(mpmath.mpf(yes), mpmath), mpmath)
        assert float(abs(digits - yes)) < 1e-14
        assert float(reference.score(mpmath.mpf(yes), mpmath)) == pytest.approx(reference.score(yes), abs=1e-13)


def test_complex_steps_agree_with_central_differences():
    case, activation = cases.tree_case("balanced-5-uneven"), cases.NATURAL
    model = case.model(activation)
    scores = model.inside(np.random.default_rng(0))
    h = 1e-6
    central = [(model.log_probs(scores + h * e) - model.log_probs(scores - h * e)) / (2 * h) for e in np.eye(4)]
    np.testing.assert_allclose(oracle.jacobian(model.log_probs, scores), np.transpose(central), atol=1e-7)


def test_plackett_luce_sums_to_one():
    p = [0.1, 0.2, 0.3, 0.4]
    for k in (1, 2, 3, 4):
        assert math.fsum(oracle.plackett_luce(p, k).values()) == pytest.approx(1)
    assert oracle.plackett_luce(p, 2)[0, 3] == pytest.approx(0.1 * 0.4 / 0.9)


def test_the_concrete_density_of_two_classes_is_that_of_a_logistic_variable():
    """With y = sigmoid((x + L) / T), L logistic and x the log-odds, a change of variables gives the density of y."""
    p, temperature, y = 0.3, 0.7, 0.6
    noise = temperature * math.log(y / (1 - y)) - math.log(p / (1 - p))
    logistic = math.exp(-noise) / (1 + math.exp(-noise)) ** 2
    wanted = math.log(logistic * temperature / (y * (1 - y)))
    got = oracle.concrete_log_density([math.log(1 - p), math.log(p)], temperature, [1 - y, y])
    assert got == pytest.approx(wanted, rel=1e-12)
