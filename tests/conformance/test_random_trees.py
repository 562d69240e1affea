"""The checks again, for trees and priors that Hypothesis draws."""

import cases
import hypothesis
import pytest
from conformance import checks

CHECKS = [
    checks.probabilities,
    checks.zero_scores_mean_the_prior,
    checks.log_probabilities,
    checks.path_log_prob_is_the_gathered_one,
    checks.reach_is_the_sum_of_leaves,
    checks.fisher_is_diagonal,
    checks.fisher_entries,
    checks.scores_have_mean_zero,
    checks.fisher_is_the_curvature_of_kl,
    checks.entropy_is_its_definition,
    checks.kl_is_its_definition,
    checks.gradients,
    checks.mode_is_the_argmax,
    checks.first_draws_without_replacement,
    checks.sample_frequencies,
    checks.distribution_facts,
    checks.straight_through,
]


@pytest.mark.parametrize("check", CHECKS)
@hypothesis.given(tree=cases.tree_cases(), activation=cases.activation_cases())
@hypothesis.settings(max_examples=15)
def test_check(backend, check, tree, activation):
    check(backend, tree, activation)


@hypothesis.given(tree=cases.tree_cases(min_classes=2, max_classes=5))
@hypothesis.settings(max_examples=8)
def test_plackett_luce(backend, tree):
    checks.plackett_luce(backend, tree, cases.NATURAL, min(3, tree.num_classes))
