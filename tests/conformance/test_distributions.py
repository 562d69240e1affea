"""The distribution objects: the same distribution as the functions, and the gradients their names promise."""

import cases
import pytest
from conformance import checks

SEVERAL = ("balanced-2", "balanced-3", "balanced-8", "balanced-11", "chain-7", "huffman-zipf-50", "balanced-5-uneven")
SEVERAL += ("balanced-100", "chain-75", "caterpillar-75")


@pytest.mark.parametrize("check", [checks.distribution_facts, checks.distribution_draws])
def test_check(backend, tree, activation, check):
    check(backend, tree, activation)


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("check", [checks.straight_through, checks.relaxed])
def test_gradients_through_draws(backend, name, activation, check):
    check(backend, cases.tree_case(name), activation)
