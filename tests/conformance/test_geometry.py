"""Natural gradients, distances, and scores from probabilities."""

import cases
import hypothesis
import pytest
from conformance import checks

CHECKS = [
    checks.natural_gradient_solves_the_fisher_system,
    checks.natural_gradient_of_a_saturated_node_is_zero,
    checks.kl_step_hits_its_kl,
    checks.fisher_rao_is_its_definition,
    checks.fisher_rao_is_locally_the_fisher_metric,
    checks.probabilities_come_back,
    checks.scores_come_back,
]
WITH_NODES = [name for name in cases.TREE_NAMES if name != "balanced-1"]


@pytest.mark.parametrize("check", CHECKS)
def test_check(backend, tree, activation, check):
    check(backend, tree, activation)


@pytest.mark.parametrize("check", CHECKS)
@hypothesis.given(tree=cases.tree_cases(), activation=cases.activation_cases())
@hypothesis.settings(max_examples=15)
def test_check_on_random_trees(backend, check, tree, activation):
    check(backend, tree, activation)


@pytest.mark.parametrize("name", WITH_NODES)
@pytest.mark.parametrize("activation", cases.NATURALS.values(), ids=cases.NATURALS.keys())
def test_distance_along_the_root(backend, name, activation):
    checks.fisher_rao_along_the_root_is_an_angle(backend, cases.tree_case(name), activation)


def test_far_logits_come_back(backend, tree):
    checks.far_logits_come_back(backend, tree, cases.SIGMOID)
