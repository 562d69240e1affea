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
from conformance.backend import built

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


def swapped_branches(good, scores, *rest, **more):
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


def with_other_branches(good, scores, tree, activation):
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
    """Follow the likelier branch at every node."""
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


def unreplaced(good, scores, gradient, *rest, **more):
    return good(scores, gradient, *rest, **more)[0], gradient


def moved_forward(good, *args, **more):
    value, replaced = good(*args, **more)
    return value + 1e-12, replaced


def undamped(good, *args, **more):
    return good(*args)


def gradient_at_saturated_nodes(good, scores, gradient, tree, activation, damping=0.0):
    value, replaced = good(scores, gradient, tree, activation, damping=damping)
    return value, np.where(replaced == 0, gradient, replaced)


def second_order_step(good, scores, gradient, kl, tree, activation):
    """The length that is right for a small enough divergence only."""
    tiny = good(scores, gradient, 1e-12, tree, activation)
    return tiny * np.sqrt(np.asarray(kl) / 1e-12)[..., None]


def plain_gradient_step(good, scores, gradient, kl, *rest):
    size = np.linalg.norm(good(scores, gradient, kl, *rest), axis=-1, keepdims=True)
    length = np.linalg.norm(gradient, axis=-1, keepdims=True)
    return -gradient * size / np.where(length == 0, 1, length)


def by_arccos(good, p_scores, q_scores, tree, activation):
    p, q = (CASE.model(activation).probs(scores) for scores in (p_scores, q_scores))
    return 2 * np.arccos(min(1.0, np.sqrt(p * q).sum()))


def hellinger(good, *args):
    return 2 * np.sin(good(*args) / 4)


def below_impossible(good, probs, tree, activation):
    return good(0.99 * probs + 0.01 / tree.num_classes, tree, activation)


def by_probabilities(good, logits, tree, activation):
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return good(np.log(p / p.sum(-1, keepdims=True) + 1e-300), tree, activation)


def not_shift_invariant(good, logits, *rest):
    return good(logits, *rest) * (1 + 1e-6 * logits.max(-1, keepdims=True))


# What a method for masks is called with: scores, tree, activation, options, mask.


def unmasked(good, *args, **more):
    *before, mask = args
    return good(*before, None if mask is None else np.ones_like(mask), **more)


def other_options(other):
    def broken(good, *args, **more):
        return good(*(other if isinstance(arg, cases.OptionsCase) else arg for arg in args), **more)

    return broken


def without_prior(good, scores, tree, *rest, **more):
    return good(scores, catnat.balanced(tree.num_classes), *rest, **more)


def unimix_before_power(good, scores, tree, activation, options, mask):
    """Mix first and take the power then."""
    facts = good(scores, tree, activation, dataclasses.replace(options, temperature=1.0), mask)
    powers = facts["probs"] ** (1 / options.temperature)
    return {**facts, "probs": powers / powers.sum(-1, keepdims=True)}


def unimix_of_all_classes(good, scores, tree, activation, options, mask):
    facts = good(scores, tree, activation, dataclasses.replace(options, unimix=0.0), mask)
    return {**facts, "probs": facts["probs"] * (1 - options.unimix) + options.unimix / tree.num_classes * mask}


def masked_fact(name, value):
    def broken(good, *args):
        facts = good(*args)
        return {**facts, name: np.where(args[-1], facts[name], value).astype(facts[name].dtype)}

    return broken


def only_if_masked(good, scores, *rest, **more):
    return good(scores if rest[-1] is None else scores + 1e-9, *rest, **more)


def any_valid_class(good, scores, tree, activation, options, mask, sample_shape, seed):
    draws = good(scores, tree, activation, options, mask, sample_shape=sample_shape, seed=seed)
    keys = np.random.default_rng(0).random((*draws.shape, tree.num_classes))
    return np.where(mask, keys, 0).argmax(-1)


def sometimes_masked(good, *args, **more):
    draws = good(*args, **more)
    mask = args[4]
    draws.flat[0] = np.broadcast_to(mask, (*draws.shape, mask.shape[-1])).reshape(-1, mask.shape[-1])[0].argmin()
    return draws


def fisher_of_the_whole_tree(good, scores, tree, activation, mask):
    return good(scores, tree, activation, np.ones_like(mask))


def one_fisher_wrong(position):
    def broken(good, *args):
        return tuple(1.001 * found if i == position else found for i, found in enumerate(good(*args)))

    return broken


def never_infinite(good, *args):
    return np.minimum(good(*args), 1e300)


def infinite_unless_the_masks_agree(good, p, q):
    full = np.ones((len(p[0]), p[1].num_classes), bool)
    masks = [full if options[-1] is None else options[-1] for options in (p, q)]
    return np.where((masks[0] == masks[1]).all(-1), good(p, q), np.inf)


def density_over_all_classes(good, temperature, scores, value, tree, activation, options, mask):
    found = good(temperature, scores, value, tree, activation, options, mask)
    return found + math.lgamma(tree.num_classes) - math.lgamma(mask.sum())


def almost_zero(good, *args, **more):
    draw, gradient = good(*args, **more)
    return np.where(draw == 0, 1e-16, draw), gradient


MASK = np.array([True, False, True, True, False])
MASKS = np.array([[True, False, True, True, False], [True, True, True, True, False], [False, False, False, True, True]])
PRUNE, RENORMALIZE, UNIMIX, BOTH = (
    cases.OPTIONS[name] for name in ("prune", "renormalize", "prune-unimix", "prune-T0.4-unimix")
)
PRUNED, CONDITIONED, MIXED = ((UNEVEN, NATURAL, options, MASKS) for options in (PRUNE, RENORMALIZE, BOTH))
ONE_ROW = (UNEVEN, NATURAL, PRUNE, MASK)

SWEEP = (NATURAL, checks.band_sweep("float32", 1, 40))
PATHS = (NATURAL, catnat.balanced(2**10), (5, 1000), lambda length: np.full(length, 0.3))
ROWS = [
    Row("offset", checks.zero_scores_mean_the_prior, PLAIN, "catnat", shifted_scores),
    Row("offset", checks.zero_scores_mean_the_prior, PLAIN, "log_catnat", shifted_scores),
    Row("no centring", checks.zero_scores_mean_the_prior, (UNEVEN, NATURAL), "catnat", all_ones),
    Row("swapped bit", checks.probabilities, (COMPLETE, SIGMOID), "catnat", swapped_branches),
    Row("off by one leaf", checks.probabilities, PLAIN, "catnat", next_leaf),
    Row("batch lost", checks.probabilities, PLAIN, "catnat", one_row_for_all),
    Row("offset", checks.probabilities, PLAIN, "catnat", shifted_scores),
    Row("not normalized", checks.probabilities, PLAIN, "catnat", slightly_more),
    Row("swapped bit", checks.log_probabilities, (COMPLETE, NATURAL), "log_catnat", swapped_branches),
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
    Row("own score", checks.fisher_of_nu_depends_on_ancestors_only, PLAIN, "fisher_diagonal", with_other_branches),
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
    Row("no effect", checks.natural_gradient_solves_the_fisher_system, PLAIN, "natural_gradient", unreplaced),
    Row("not the identity", checks.natural_gradient_solves_the_fisher_system, PLAIN, "natural_gradient", moved_forward),
    Row("no damping", checks.natural_gradient_solves_the_fisher_system, PLAIN, "natural_gradient", undamped),
    Row(
        "not zero",
        checks.natural_gradient_of_a_saturated_node_is_zero,
        (COMPLETE, NATURAL),
        "natural_gradient",
        gradient_at_saturated_nodes,
    ),
    Row("too long", checks.kl_step_hits_its_kl, PLAIN, "kl_step", lambda good, *a: 1.01 * good(*a)),
    Row("second order only", checks.kl_step_hits_its_kl, PLAIN, "kl_step", second_order_step),
    Row("the sign", checks.kl_step_hits_its_kl, PLAIN, "kl_step", lambda good, *a: -good(*a)),
    Row("not natural", checks.kl_step_hits_its_kl, PLAIN, "kl_step", plain_gradient_step),
    Row("a chord", checks.fisher_rao_is_its_definition, PLAIN, "fisher_rao_distance", hellinger),
    Row("offset", checks.fisher_rao_is_its_definition, PLAIN, "fisher_rao_distance", shifted_scores),
    Row("a factor", checks.fisher_rao_is_locally_the_fisher_metric, PLAIN, "fisher_rao_distance", twice),
    Row("arccos", checks.fisher_rao_is_locally_the_fisher_metric, PLAIN, "fisher_rao_distance", by_arccos),
    Row("a chord", checks.fisher_rao_along_the_root_is_an_angle, PLAIN, "fisher_rao_distance", hellinger),
    Row("smoothed", checks.probabilities_come_back, PLAIN, "scores_from_probs", below_impossible),
    Row("off by one leaf", checks.probabilities_come_back, PLAIN, "scores_from_probs", next_leaf),
    Row("offset", checks.scores_come_back, PLAIN, "scores_from_logits", lambda good, *a: good(*a) + 1e-6),
    Row("normalized badly", checks.scores_come_back, PLAIN, "scores_from_logits", not_shift_invariant),
    Row("underflow", checks.far_logits_come_back, (CASE, SIGMOID), "scores_from_logits", by_probabilities),
    Row("uniform", checks.sample_frequencies, PLAIN, "sample", uniform_draws),
    Row("swapped bit", checks.sample_frequencies, (COMPLETE, NATURAL), "sample", swapped_branches),
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
    Row("no mask", checks.masked_distribution, PRUNED, "masked", unmasked),
    Row("conditioned", checks.masked_distribution, PRUNED, "masked", other_options(RENORMALIZE)),
    Row("pruned", checks.masked_distribution, CONDITIONED, "masked", other_options(PRUNE)),
    Row("prior lost", checks.masked_distribution, PRUNED, "masked", without_prior),
    Row("offset", checks.masked_distribution, PRUNED, "masked", shifted_scores),
    Row("the order", checks.masked_distribution, MIXED, "masked", unimix_before_power),
    Row("fraction of all", checks.masked_distribution, MIXED, "masked", unimix_of_all_classes),
    Row("sloppy zeros", checks.masked_distribution, PRUNED, "masked", masked_fact("probs", 1e-300)),
    Row("minus infinity", checks.masked_distribution, PRUNED, "masked", masked_fact("logits", -np.inf)),
    Row("wrong entropy", checks.masked_distribution, PRUNED, "masked", one_fact_wrong("entropy")),
    Row("wrong mode", checks.masked_distribution, PRUNED, "masked", one_fact_wrong("mode")),
    Row("next class", checks.masked_distribution, PRUNED, "masked_log_prob", next_leaf),
    Row("no mask", checks.masked_distribution, PRUNED, "masked_log_prob", unmasked),
    Row(
        "no unimix",
        checks.options_without_mask,
        (CASE, NATURAL, BOTH),
        "masked",
        other_options(cases.OPTIONS["prune-T1.7"]),
    ),
    Row("no unimix", checks.options_without_mask, (CASE, NATURAL, UNIMIX), "masked_log_prob", other_options(PRUNE)),
    Row("an offset", checks.a_full_mask_changes_nothing, (UNEVEN, NATURAL, PRUNE), "masked", only_if_masked),
    Row("an offset", checks.a_full_mask_changes_nothing, (UNEVEN, NATURAL, PRUNE), "masked_log_prob", only_if_masked),
    Row("a factor", checks.masked_gradients, ONE_ROW, "masked_grad", lambda good, *a, **k: (1 + 1e-8) * good(*a, **k)),
    Row("a leak", checks.masked_gradients, ONE_ROW, "masked_grad", leaking_gradient),
    Row("conditioned", checks.masked_gradients, ONE_ROW, "masked_grad", other_options(RENORMALIZE)),
    Row("no mask", checks.masked_gradients, ONE_ROW, "masked_grad", unmasked),
    Row("no mask", checks.masked_classes_are_impossible, PRUNED, "masked", unmasked),
    Row("minus infinity", checks.masked_classes_are_impossible, PRUNED, "masked", masked_fact("logits", -np.inf)),
    Row("another dtype's", checks.masked_classes_are_impossible, PRUNED, "masked", masked_fact("logits", -3e38)),
    Row("no mask", checks.masked_classes_are_impossible, PRUNED, "masked_log_prob", unmasked),
    Row("a leak", checks.masked_classes_are_impossible, PRUNED, "masked_grad", leaking_gradient),
    Row("one draw", checks.masked_classes_are_impossible, PRUNED, "masked_sample", sometimes_masked),
    Row("offset", checks.pruned_zero_scores_mean_the_valid_prior, (UNEVEN, NATURAL, MASKS), "masked", shifted_scores),
    Row(
        "prior lost", checks.pruned_zero_scores_mean_the_valid_prior, (UNEVEN, NATURAL, MASKS), "masked", without_prior
    ),
    Row("no mask", checks.pruned_fisher_is_diagonal, (CASE, NATURAL, MASK), "masked_fisher", fisher_of_the_whole_tree),
    Row("a factor", checks.pruned_fisher_is_diagonal, (CASE, NATURAL, MASK), "masked_fisher", one_fisher_wrong(0)),
    Row(
        "a factor in one", checks.pruned_fisher_is_diagonal, (CASE, NATURAL, MASK), "masked_fisher", one_fisher_wrong(1)
    ),
    Row(
        "not diagonal",
        checks.pruned_fisher_is_diagonal,
        (CASE, NATURAL, MASK),
        "masked_jacobian",
        other_options(RENORMALIZE),
    ),
    Row(
        "scales of the whole tree",
        checks.pruned_isotropic_fisher_at_zero,
        (CASE, ISOTROPIC, MASKS),
        "masked_fisher",
        fisher_of_the_whole_tree,
    ),
    Row("any valid class", checks.masked_frequencies, PRUNED, "masked_sample", any_valid_class),
    Row("no mask", checks.masked_frequencies, PRUNED, "masked_sample", unmasked),
    Row("one draw", checks.masked_frequencies, PRUNED, "masked_sample", sometimes_masked),
    Row("no unimix", checks.masked_frequencies, (CASE, NATURAL, UNIMIX, MASKS), "masked_sample", other_options(PRUNE)),
    Row("not pruned", checks.masked_frequencies, PRUNED, "masked_sample", other_options(RENORMALIZE)),
    Row("reversed", checks.masked_kl_is_its_definition, (*PLAIN, (PRUNE, BOTH), MASKS), "masked_kl", reversed_kl),
    Row(
        "never infinite",
        checks.masked_kl_is_its_definition,
        (*PLAIN, (PRUNE, PRUNE), MASKS),
        "masked_kl",
        never_infinite,
    ),
    Row(
        "not quite zero",
        checks.masked_kl_is_its_definition,
        (*PLAIN, (PRUNE, PRUNE), MASKS),
        "masked_kl",
        lambda good, p, q: good(p, q) + 1e-17,
    ),
    Row(
        "infinite too often",
        checks.impossible_classes_may_be_masked,
        (COMPLETE, NATURAL, np.arange(8) < np.array([[4], [6]])),
        "masked_kl",
        infinite_unless_the_masks_agree,
    ),
    Row("no gradient", checks.masked_straight_through, ONE_ROW, "masked_straight_through", no_gradient),
    Row("not one-hot", checks.masked_straight_through, ONE_ROW, "masked_straight_through", soft_draw),
    Row("conditioned", checks.masked_straight_through, ONE_ROW, "masked_straight_through", other_options(RENORMALIZE)),
    Row("warmer", checks.masked_relaxed, ONE_ROW, "masked_relaxed", warmer),
    Row("almost zero", checks.masked_relaxed, ONE_ROW, "masked_relaxed", almost_zero),
    Row("no gradient", checks.masked_relaxed, ONE_ROW, "masked_relaxed", no_gradient),
    Row("all classes", checks.masked_relaxed, ONE_ROW, "masked_relaxed_log_prob", density_over_all_classes),
    Row("warmer", checks.masked_relaxed, ONE_ROW, "masked_relaxed_log_prob", warmer),
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
    options = np.array([0.1, 0.2, 0.3, 0.4])
    checks.chi_square(rng.multinomial(20_000, options), options)
    with pytest.raises(AssertionError, match="chi-square"):
        checks.chi_square(rng.multinomial(20_000, options + np.array([0.03, -0.03, 0, 0])), options)
    with pytest.raises(AssertionError, match="zero"):
        checks.chi_square([1, 9999], [0.0, 1.0])
    with pytest.raises(AssertionError, match="impossible"):
        checks.chi_square({(1, 1): 5, (0, 1): 5}, {(0, 1): 1.0})


def test_a_kind_of_activation_that_nobody_builds_is_refused():
    unknown = dataclasses.replace(NATURAL, name="wrong", kind="wrong")
    with pytest.raises(ValueError, match="'wrong', which no backend builds"):
        built(unknown)
