"""A suite that cannot fail proves nothing: each check must notice a backend that is wrong in one respect.

A mutant is the real backend with one method replaced. Each row names a check, what it is called with, the method and
its replacement, which gets the real method first.
"""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import cases
import numpy as np
import pytest
from conformance import checks

import catnat

CASE, UNEVEN, COMPLETE, CHAIN = (
    cases.tree_case(name) for name in ("balanced-5", "balanced-5-uneven", "balanced-8", "chain-7")
)
NATURAL, SIGMOID = cases.NATURAL, cases.SIGMOID
ISOTROPIC = cases.ACTIVATIONS["natural-isotropic"]
PLAIN = (CASE, NATURAL)


@dataclasses.dataclass(frozen=True)
class Row:
    fault: str
    check: Callable[..., None]
    arguments: tuple[Any, ...]
    method: str
    broken: Callable[..., Any]


class Mutant:
    """A backend with one method replaced."""

    def __init__(self, backend: Any, method: str, broken: Callable[..., Any]) -> None:
        self._backend = backend
        setattr(self, method, functools.partial(broken, getattr(backend, method)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


# ---- faults ----


def shifted_scores(good, scores, *rest, **more):
    return good(scores + 0.01, *rest, **more)


def swapped_answers(good, scores, *rest, **more):
    return good(-scores, *rest, **more)


def next_leaf(good, *args, **more):
    return np.roll(good(*args, **more), 1, -1)


def one_row_for_all(good, scores, *rest, **more):
    return good(scores[0, 0], *rest, **more)


def uncentred(good, scores, tree, activation, **more):
    return good(scores, catnat.balanced(8), activation, **more)[..., : tree.num_classes] * 8 / tree.num_classes


def twice(good, *args, **more):
    return 2 * good(*args, **more)


def slightly_more(good, *args, **more):
    return 1.001 * good(*args, **more)


def all_ones(good, *args, **more):
    return np.ones_like(good(*args, **more))


def with_other_answers(good, scores, tree, activation):
    return good(scores, tree, activation) * (1 + 0.1 * np.sin(scores))  # depends on the node's own score


def the_next_class(good, scores, classes, tree, activation):
    return good(scores, (classes + 1) % tree.num_classes, tree, activation)


def last_axis(good, scores, tree, activation, axis=-1):
    return good(scores, tree, activation) if scores.shape[-1] == tree.num_nodes else np.zeros(scores.shape)


def naive_log(good, scores, tree, activation):
    """log((1 + sin) / 2): minus infinity a little inside the edge."""
    sine = np.sin(scores / scores.dtype.type(2)).astype(scores.dtype)
    with np.errstate(divide="ignore"):
        return np.log(np.concatenate([1 - sine, 1 + sine], -1) / scores.dtype.type(2))


def naive_cosine(good, scores, tree, activation):
    """2 log cos: the larger side loses all its digits."""
    angle = (math.pi / 4 + scores / 4).astype(scores.dtype)
    return 2 * np.log(np.abs(np.concatenate([np.cos(angle), np.sin(angle)], -1)))


def rounded_a_little(good, *args, **more):
    value = good(*args, **more)
    return value * value.dtype.type(1 + 3 * checks.TOLERANCE[value.dtype.name])


def to_zero_for_log(good, scores, tree, activation):
    value = good(scores, tree, activation)
    return np.where(value < -20, -np.inf, value)


def first_only(good, *args, **more):
    draw = good(*args, **more)
    return np.broadcast_to(draw[:1], draw.shape).copy()


def pairs_agree(good, *args, **more):
    draw = good(*args, **more)
    draw[:, 1] = draw[:, 0]
    return draw


def rows_agree(good, *args, **more):
    draw = good(*args, **more)
    draw[..., 1] = draw[..., 0]
    return draw


def uniform_draws(good, scores, tree, *rest, **more):
    draw = good(scores, tree, *rest, **more)
    return np.random.default_rng(0).integers(tree.num_classes, size=draw.shape)


def transposed(good, *args, **more):
    return np.swapaxes(good(*args, **more), 0, -1)


def sorted_draws(good, *args, **more):
    return np.sort(good(*args, **more), -1)


def with_replacement(good, *args, **more):
    draw = good(*args, **more)
    draw[0] = draw[0, ..., :1]
    return draw


def sloppy_zeros(good, *args, **more):
    return np.where(good(*args, **more) == 0, 1e-14, good(*args, **more))


def greedy(good, scores, tree, activation):
    """Follow the likelier answer at every node."""
    model = next(case for case in (CASE, COMPLETE, CHAIN) if case.tree == tree).model(activation)

    def descend(row):
        yes, node = model.yes(row), model.root
        while not isinstance(node, int):
            node = node.yes if yes[node.index] > 0.5 else node.no
        return node

    return checks.rows(descend, scores)


def no_gradient(good, *args, **more):
    draw, gradient = good(*args, **more)
    return draw, np.zeros_like(gradient)


def soft_draw(good, *args, **more):
    draw, gradient = good(*args, **more)
    return 0.99 * draw + 0.01 / draw.shape[-1], gradient


def hard_draw(good, *args, **more):
    draw, gradient = good(*args, **more)
    return np.eye(draw.shape[-1])[draw.argmax(-1)], gradient


def warmer(good, temperature, *rest, **more):
    return good(1.1 * temperature, *rest, **more)


def one_fact_wrong(name):
    def broken(good, *args, **more):
        facts = good(*args, **more)
        return {**facts, name: facts[name] + 1e-6}

    return broken


def one_draw_wrong(position):
    def broken(good, *args, **more):
        drawn = [part.copy() for part in good(*args, **more)]
        drawn[position] = np.roll(drawn[position], 1, -1)
        return tuple(drawn)

    return broken


def reversed_kl(good, p, q, *rest):
    return good(q, p, *rest)


def nothing_is_saturated(good, *args):
    return np.zeros_like(good(*args))


def leaking_gradient(good, *args, **more):
    return good(*args, **more) + 1e-12


SWEEP = (NATURAL, checks.band_sweep("float32", 1, 40))
PATHS = (NATURAL, catnat.balanced(2**10), (5, 1000), lambda length: np.full(length, 0.3))
ROWS = [
    Row("offset", checks.zero_scores_mean_the_prior, PLAIN, "catnat", shifted_scores),
    Row("offset", checks.zero_scores_mean_the_prior, PLAIN, "log_catnat", shifted_scores),
    Row("no centring", checks.zero_scores_mean_the_prior, (UNEVEN, NATURAL), "catnat", all_ones),
    Row("swapped bit", checks.probabilities, (COMPLETE, SIGMOID), "catnat", swapped_answers),
    Row("off by one leaf", checks.probabilities, PLAIN, "catnat", next_leaf),
    Row("batch lost", checks.probabilities, PLAIN, "catnat", one_row_for_all),
    Row("offset", checks.probabilities, PLAIN, "catnat", shifted_scores),
    Row("not normalized", checks.probabilities, PLAIN, "catnat", slightly_more),
    Row("swapped bit", checks.log_probabilities, (COMPLETE, NATURAL), "log_catnat", swapped_answers),
    Row("off by one leaf", checks.log_probabilities, PLAIN, "log_catnat", next_leaf),
    Row("no floor", checks.log_probabilities, (COMPLETE, NATURAL), "log_catnat", to_zero_for_log),
    Row("next class", checks.path_log_prob_is_the_gathered_one, PLAIN, "log_prob", the_next_class),
    Row("axes mixed up", checks.path_log_prob_is_the_gathered_one, PLAIN, "log_prob", transposed),
    Row("missing factor", checks.reach_is_the_sum_of_leaves, PLAIN, "reach", all_ones),
    Row("off by one node", checks.reach_is_the_sum_of_leaves, PLAIN, "reach", next_leaf),
    Row("axis ignored", checks.any_axis, PLAIN, "catnat", last_axis),
    Row("missing reach", checks.fisher_is_diagonal, PLAIN, "fisher_diagonal", all_ones),
    Row("a factor", checks.fisher_is_diagonal, PLAIN, "fisher_diagonal", slightly_more),
    Row("wrong gradients", checks.fisher_is_diagonal, PLAIN, "class_jacobian", next_leaf),
    Row("a factor", checks.fisher_entries, PLAIN, "fisher_diagonal", slightly_more),
    Row("off by one node", checks.fisher_entries, (CHAIN, SIGMOID), "fisher_diagonal", next_leaf),
    Row("own score", checks.fisher_of_nu_depends_on_ancestors_only, PLAIN, "fisher_diagonal", with_other_answers),
    Row("no reach", checks.fisher_of_nu_depends_on_ancestors_only, PLAIN, "fisher_diagonal", all_ones),
    Row("a factor", checks.isotropic_fisher_at_zero, (CASE, ISOTROPIC), "fisher_diagonal", slightly_more),
    Row("not scaled", checks.isotropic_fisher_at_zero, (CASE, ISOTROPIC), "class_jacobian", twice),
    Row(
        "off by one leaf",
        checks.scores_have_mean_zero,
        PLAIN,
        "class_jacobian",
        lambda good, *a: np.roll(good(*a), 1, 0),
    ),
    Row("not a gradient", checks.scores_have_mean_zero, PLAIN, "class_jacobian", lambda good, *a: good(*a) + 1e-6),
    Row("a factor", checks.fisher_is_the_curvature_of_kl, PLAIN, "fisher_diagonal", slightly_more),
    Row("a factor", checks.fisher_is_the_curvature_of_kl, PLAIN, "kl_divergence", slightly_more),
    Row("bits, not nats", checks.entropy_is_its_definition, PLAIN, "entropy", lambda good, *a: good(*a) / math.log(2)),
    Row("offset", checks.entropy_is_its_definition, PLAIN, "entropy", shifted_scores),
    Row("reversed", checks.kl_is_its_definition, PLAIN, "kl_divergence", reversed_kl),
    Row("offset", checks.kl_is_its_definition, PLAIN, "kl_divergence", shifted_scores),
    Row("a factor", checks.gradients, PLAIN, "grad", slightly_more),
    Row("the sign", checks.gradients, PLAIN, "grad", lambda good, *a, **k: -good(*a, **k)),
    Row("sloppy zeros", checks.outside_the_band_nothing_moves, (COMPLETE, NATURAL), "catnat", sloppy_zeros),
    Row("unnoticed", checks.outside_the_band_nothing_moves, (COMPLETE, NATURAL), "saturated", nothing_is_saturated),
    Row("leaking gradient", checks.outside_the_band_nothing_moves, (COMPLETE, NATURAL), "grad", leaking_gradient),
    Row("uniform", checks.sample_frequencies, PLAIN, "sample", uniform_draws),
    Row("swapped bit", checks.sample_frequencies, (COMPLETE, NATURAL), "sample", swapped_answers),
    Row("stuck", checks.sample_frequencies, PLAIN, "sample", first_only),
    Row("axes mixed up", checks.sample_frequencies, PLAIN, "sample", transposed),
    Row("uniform", checks.frequencies_of_small_draws, PLAIN, "sample", uniform_draws),
    Row("uniform", checks.impossible_classes_are_never_drawn, (COMPLETE, NATURAL), "sample", uniform_draws),
    Row("one generator state", checks.draws_are_independent, PLAIN, "sample", pairs_agree),
    Row("one uniform per row", checks.draws_are_independent, PLAIN, "sample", rows_agree),
    Row("sorted", checks.plackett_luce, (*PLAIN, 3), "sample_without_replacement", sorted_draws),
    Row("twice", checks.plackett_luce, (*PLAIN, 3), "sample_without_replacement", with_replacement),
    Row(
        "offset",
        checks.plackett_luce,
        (*PLAIN, 3),
        "sample_without_replacement",
        lambda good, scores, *a, **k: good(scores + 0.1, *a, **k),
    ),
    Row("sorted", checks.first_draws_without_replacement, PLAIN, "sample_without_replacement", sorted_draws),
    Row("twice", checks.first_draws_without_replacement, PLAIN, "sample_without_replacement", with_replacement),
    Row("greedy", checks.mode_is_the_argmax, PLAIN, "mode", greedy),
    Row("wrong mean", checks.distribution_facts, PLAIN, "distribution", one_fact_wrong("one_hot_mean")),
    Row("wrong logits", checks.distribution_facts, PLAIN, "distribution", one_fact_wrong("logits")),
    Row("wrong log_prob", checks.distribution_draws, PLAIN, "distribution_sample", one_draw_wrong(1)),
    Row("wrong classes", checks.distribution_draws, PLAIN, "distribution_sample", one_draw_wrong(2)),
    Row("no gradient", checks.straight_through, PLAIN, "straight_through", no_gradient),
    Row("not one-hot", checks.straight_through, PLAIN, "straight_through", soft_draw),
    Row("no gradient", checks.relaxed, PLAIN, "relaxed", no_gradient),
    Row("not relaxed", checks.relaxed, PLAIN, "relaxed", hard_draw),
    Row("warmer", checks.relaxed, PLAIN, "relaxed", warmer),
    Row("warmer", checks.relaxed, PLAIN, "relaxed_log_prob", warmer),
    Row("naive log", checks.accuracy_of_one_node, SWEEP, "log_catnat", naive_log),
    Row("naive cosine", checks.accuracy_of_one_node, SWEEP, "log_catnat", naive_cosine),
    Row("three tolerances", checks.accuracy_of_one_node, SWEEP, "log_catnat", rounded_a_little),
    Row("three tolerances", checks.accuracy_of_paths, PATHS, "log_prob", rounded_a_little),
    Row(
        "three tolerances",
        checks.accuracy_of_all_classes,
        (NATURAL, catnat.balanced(8), "float64"),
        "log_catnat",
        rounded_a_little,
    ),
]


@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: f"{row.check.__name__}-{row.method}-{row.fault}".replace(" ", "_")
)
def test_a_broken_backend_is_noticed(backend, row):
    row.check(backend, *row.arguments)
    with pytest.raises(AssertionError):
        row.check(Mutant(backend, row.method, row.broken), *row.arguments)


def test_every_check_has_a_mutant():
    every = {
        name
        for name, check in inspect.getmembers(checks, inspect.isfunction)
        if check.__module__ == checks.__name__ and next(iter(inspect.signature(check).parameters), "") == "backend"
    }
    assert every == {row.check.__name__ for row in ROWS}


def test_close_looks_at_shapes():
    with pytest.raises(AssertionError, match="shape"):
        checks.close(np.ones((3, 1)), np.ones(3))
    with pytest.raises(AssertionError, match="shape"):
        checks.close(np.ones(()), np.ones(3))


def test_chi_square_notices_and_forgives():
    rng = np.random.default_rng(0)
    law = np.array([0.1, 0.2, 0.3, 0.4])
    checks.chi_square(rng.multinomial(20_000, law), law)
    with pytest.raises(AssertionError, match="chi-square"):
        checks.chi_square(rng.multinomial(20_000, law + np.array([0.03, -0.03, 0, 0])), law)
    with pytest.raises(AssertionError, match="zero"):
        checks.chi_square([1, 9999], [0.0, 1.0])
    with pytest.raises(AssertionError, match="impossible"):
        checks.chi_square({(1, 1): 5, (0, 1): 5}, {(0, 1): 1.0})
