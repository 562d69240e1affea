"""Masks, temperatures and mixtures: what they make of a tree's probabilities, against their definitions.

The oracle prunes nested trees, divides by sums, takes powers and mixes, one class after the other.
"""

import cases
import hypothesis
import numpy as np
import oracle
import pytest
from conformance import checks
from hypothesis import strategies as st

import catnat

pytestmark = pytest.mark.expensive_compile

OPTIONS, MASK_ALONE = cases.OPTIONS, cases.MASK_ALONE
MIXED = [options for options in OPTIONS.values() if options != MASK_ALONE]
# One of every way a tree is computed: matrix product, levels, cumulative sum, pointer jumping; walked or not.
SOME_TREES = ("balanced-5-uneven", "balanced-18", "clusters-12", "balanced-100", "chain-75", "huffman-zipf-90")
MORE_TREES = (*SOME_TREES, "balanced-1", "balanced-2", "chain-7", "balanced-64", "caterpillar-75")
# Every activation on these trees, and on each of the others three, so that all of them come up.
ALL_ACTIVATIONS = ("balanced-2", "balanced-5-uneven", "balanced-8", "balanced-11", "chain-7", "clusters-12")
GRID = [
    (tree, activation)
    for i, tree in enumerate(cases.TREE_NAMES)
    for j, activation in enumerate(cases.ACTIVATIONS)
    if tree in ALL_ACTIVATIONS or (i + j) % 3 == 0
]


def masks(case, rows=5, seed=0):
    return cases.masks(case.num_classes, rows, seed)


def half(case, seed=0):
    """One mask that leaves about half of the classes."""
    return cases.masks(case.num_classes, 5, seed)[3]


def name_of(row):
    return row.name


some_trees = pytest.mark.parametrize("name", SOME_TREES)
more_trees = pytest.mark.parametrize("name", MORE_TREES)
all_options = pytest.mark.parametrize("options", OPTIONS.values(), ids=name_of)
mixed_options = pytest.mark.parametrize("options", MIXED, ids=name_of)
both_modes = pytest.mark.parametrize("options", [MASK_ALONE], ids=name_of)


# ---- the oracle, by hand ----


def test_pruning_by_hand():
    """((0, 1), (2, 3)) without class 1: the second node is not active, and the first splits three classes."""
    model = oracle.Model(oracle.balanced(4), (1.0, 5.0, 2.0, 3.0), oracle.Sigmoid())
    masked = oracle.Distribution(model, (True, False, True, True))
    assert masked.active == [0, 2]
    assert masked.left.fractions == pytest.approx([5 / 6, 3 / 5])
    first, third = (1 / (1 + np.exp(-x)) for x in (np.log(5) + 0.3, np.log(1.5) - 1.0))
    wanted = [1 - first, 0, first * (1 - third), first * third]
    np.testing.assert_allclose(masked.probs([0.3, 99.0, -1.0]), wanted, rtol=1e-14)


def test_conditioning_temperature_and_mixing_by_hand():
    model = oracle.Model(oracle.balanced(4), (1.0,) * 4, oracle.Sigmoid())
    p = model.probs([0.3, -1.0, 2.0])
    valid = (True, False, True, True)
    left = p[[0, 2, 3]] / (p[0] + p[2] + p[3])
    np.testing.assert_allclose(
        oracle.Distribution(model, valid, "renormalize").probs([0.3, -1.0, 2.0])[[0, 2, 3]], left
    )
    squares = left**2 / (left**2).sum()
    masked = oracle.Distribution(model, valid, "renormalize", temperature=0.5, unimix=0.3)
    np.testing.assert_allclose(masked.probs([0.3, -1.0, 2.0]), [*np.insert(0.7 * squares + 0.1, 1, 0)], rtol=1e-14)


def test_a_deep_path_loses_its_inactive_nodes():
    """Of a chain over six classes only 1, 4 and 5 are left: the nodes 1 and 4."""
    model = oracle.Model(oracle.chain(6), (1.0,) * 6, oracle.Natural())
    masked = oracle.Distribution(model, tuple(k in (1, 4, 5) for k in range(6)))
    assert masked.active == [1, 4]
    assert oracle.path(masked.left.root, 0) == [(0, 1)]
    assert oracle.path(masked.left.root, 2) == [(0, 0), (1, 0)]


# ---- values ----


@pytest.mark.parametrize(("tree", "activation"), GRID)
def test_both_modes(backend, tree, activation):
    case = cases.tree_case(tree)
    for options in (MASK_ALONE,):
        checks.masked_distribution(backend, case, cases.ACTIVATIONS[activation], options, masks(case)[[0, 2, 3]])


@mixed_options
@more_trees
def test_mixed_options(backend, name, options):
    case = cases.tree_case(name)
    checks.masked_distribution(backend, case, cases.NATURAL, options, masks(case, seed=1))


@all_options
@hypothesis.given(drawn=cases.masked_trees(), activation=cases.activation_cases())
@hypothesis.settings(max_examples=8)
def test_masked_distribution_on_random_trees(backend, options, drawn, activation):
    checks.masked_distribution(backend, drawn[0], activation, options, drawn[1])


@all_options
@some_trees
def test_without_mask_and_with_a_full_one(backend, name, options):
    case = cases.tree_case(name)
    checks.options_without_mask(backend, case, cases.NATURAL, options)
    checks.a_full_mask_changes_nothing(backend, case, cases.SIGMOID, options)


def test_a_full_mask_changes_nothing_for_any_activation(backend, tree):
    for activation in cases.ACTIVATIONS.values():
        checks.a_full_mask_changes_nothing(backend, tree, activation, MASK_ALONE)


def test_temperature_comes_before_unimix(backend):
    """p = (1/4, 3/4), T = 1/2, u = 1/2: squares make (1/10, 9/10), and halfway to (1/2, 1/2) lies (3/10, 7/10)."""
    options = cases.OptionsCase("order", temperature=0.5, unimix=0.5)
    facts = backend.masked(np.log([3.0]), catnat.balanced(2), "sigmoid", options, None)
    checks.close(facts["probs"], [0.3, 0.7], rtol=1e-13)


def test_unimix_counts_valid_classes_only(backend):
    options = cases.OptionsCase("fraction", unimix=0.5)
    facts = backend.masked(
        np.zeros(7), catnat.balanced(8).with_prior([1, 1, 1, 1, 3, 1, 1, 1]), "natural", options, VALID
    )
    checks.close(facts["probs"], np.where(VALID, 0.25 + 0.5 * np.array([0.25, 0, 0, 0, 0.75, 0, 0, 0]), 0), rtol=1e-13)


VALID = np.array([True, False, False, False, True, False, False, False])


@pytest.mark.parametrize("temperature", [1e-30, 1e30])
@some_trees
def test_extreme_temperatures(backend, name, temperature):
    """Low: the most probable class alone. High: the uniform distribution over the valid classes."""
    tree = cases.tree_case(name)
    options, rows = cases.OptionsCase("extreme", temperature), masks(tree)
    references, scores = checks.references_and_scores(tree, cases.NATURAL, options, rows, 70)
    plain = [cases.OptionsCase("").reference(each.model, each.valid) for each in references]
    best = [reference.probs(row).argmax() for reference, row in zip(plain, scores, strict=True)]
    facts = backend.masked(scores, tree.tree, cases.NATURAL, options, rows)
    uniform, best_alone = rows / rows.sum(-1, keepdims=True), np.eye(tree.num_classes)[best]
    checks.close(facts["probs"], uniform if temperature > 1 else best_alone, atol=1e-13)
    if temperature > 1:
        checks.close(facts["entropy"], np.log(rows.sum(-1)), atol=1e-12)
    else:
        checks.close(facts["mode"], best)
        checks.close(facts["entropy"], np.zeros(len(rows)), atol=1e-12)
    for name, shape in (("probs", rows.shape), ("logits", rows.shape), ("entropy", rows.shape[:1])):
        gradient = backend.masked_grad(name, np.ones(shape), scores, tree.tree, cases.NATURAL, options, rows)
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("temperature", [100.0, 1e4, 1e8])
@pytest.mark.parametrize("unimix", [0.0, 0.5])
def test_what_is_impossible_stays_so_at_any_temperature(backend, temperature, unimix):
    """0^(1/T) is 0, and the rest becomes uniform; classes that a mask leaves, all of them impossible, share what is."""
    scores = np.array([[4.0, 0.0, 0.0]])  # the root's answer is certain
    options = cases.OptionsCase("", "renormalize", temperature, unimix)
    only_impossible = np.array([[True, True, False, False]])
    for mask, wanted in ((None, [0, 0, 0.5, 0.5]), (only_impossible, [0.5, 0.5, 0, 0])):
        valid = np.ones(4) if mask is None else mask[0]
        facts = backend.masked(scores, catnat.balanced(4), "natural", options, mask)
        mixed = (1 - unimix) * np.array([wanted]) + unimix * valid / valid.sum()
        checks.close(facts["probs"], mixed, atol=1e-13)


def test_the_sigmoid_is_never_impossible(backend):
    """What has underflowed at T = 1 comes back where T is large: p^(1/T) is that of logarithms."""
    options = cases.OptionsCase("", temperature=1e4)
    facts = backend.masked(np.array([[-15_000.0, 0.0, 0.0]]), catnat.balanced(4), "sigmoid", options, None)
    odds = np.exp([0, 0, -1.5, -1.5])
    checks.close(facts["probs"], [odds / odds.sum()], rtol=1e-9)


# ---- masked classes ----


@all_options
@more_trees
def test_masked_classes_are_impossible(backend, name, options):
    case = cases.tree_case(name)
    for dtype in ("float16", "float32", "float64"):
        checks.masked_classes_are_impossible(backend, case, cases.NATURAL, options, masks(case), dtype)


@pytest.mark.parametrize("options", [MASK_ALONE, OPTIONS["T0.4-unimix"]], ids=name_of)
def test_masked_classes_are_impossible_for_any_activation(backend, activation, options):
    for name in ("balanced-11", "huffman-zipf-90"):
        case = cases.tree_case(name)
        checks.masked_classes_are_impossible(backend, case, activation, options, masks(case, seed=2))


# ---- pruning ----


def test_zero_scores_mean_the_valid_prior(backend, tree):
    for activation in cases.ACTIVATIONS.values():
        checks.pruned_zero_scores_mean_the_valid_prior(backend, tree, activation, masks(tree, 10))


@hypothesis.given(drawn=cases.masked_trees(), activation=cases.activation_cases())
@hypothesis.settings(max_examples=20)
def test_zero_scores_mean_the_valid_prior_on_random_trees(backend, drawn, activation):
    checks.pruned_zero_scores_mean_the_valid_prior(backend, drawn[0], activation, drawn[1])


def test_zero_scores_mean_the_uniform_distribution_over_valid_classes(backend):
    rows = masks(cases.tree_case("balanced-11"))
    facts = backend.masked(np.zeros((5, 10)), catnat.balanced(11), "natural", MASK_ALONE, rows)
    checks.close(facts["probs"], rows / rows.sum(-1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize(("tree", "activation"), GRID)
def test_fisher_is_diagonal(backend, tree, activation):
    case = cases.tree_case(tree)
    checks.pruned_fisher_is_diagonal(backend, case, cases.ACTIVATIONS[activation], half(case))


@hypothesis.given(drawn=cases.masked_trees(), activation=cases.activation_cases())
@hypothesis.settings(max_examples=20)
def test_fisher_is_diagonal_on_random_trees(backend, drawn, activation):
    checks.pruned_fisher_is_diagonal(backend, drawn[0], activation, drawn[1][0])


def test_the_fisher_matrix_of_the_conditional_distribution_is_not_diagonal():
    """Nor of a mixture or a power: the check above can fail, and why ``fisher_diagonal`` refuses."""
    case = cases.tree_case("balanced-5-uneven")
    mask = np.array([True, False, True, True, True])
    for options in (MASK_ALONE, *MIXED):
        (reference,), (scores,) = checks.references_and_scores(case, cases.NATURAL, options, mask[None], 71)
        assert checks.off_diagonal(reference.fisher(scores)) > 1e-3


# ---- gradients ----


@both_modes
@more_trees
def test_gradients(backend, name, options):
    case = cases.tree_case(name)
    activation = cases.NATURAL if case.num_classes % 2 else SIGMOID
    checks.masked_gradients(backend, case, activation, options, half(case))


@pytest.mark.parametrize("name", ["balanced-5-uneven", "balanced-18", "clusters-12", "balanced-100"])
@mixed_options
def test_gradients_of_mixed_options(backend, name, options):
    case = cases.tree_case(name)
    checks.masked_gradients(backend, case, NATURAL, options, half(case, 1))


@all_options
@hypothesis.given(drawn=cases.masked_trees(), activation=cases.activation_cases())
@hypothesis.settings(max_examples=6)
def test_gradients_on_random_trees(backend, options, drawn, activation):
    checks.masked_gradients(backend, drawn[0], activation, options, drawn[1][0])


# ---- draws ----

# chain and caterpillar are deeper than any walk, balanced-64 is the largest that is not walked
DRAWN_TREES = ("balanced-5-uneven", "balanced-64", "balanced-100", "huffman-zipf-90", "chain-75", "caterpillar-75")


@pytest.mark.parametrize("name", DRAWN_TREES)
@all_options
def test_frequencies(backend, name, options):
    case = cases.tree_case(name)
    checks.masked_frequencies(backend, case, cases.NATURAL, options, masks(case)[2:], sample_shape=(6000,))


@pytest.mark.parametrize("name", ["balanced-8", "caterpillar-75"])
@all_options
def test_frequencies_without_sample_shape(backend, name, options):
    case = cases.tree_case(name)
    checks.masked_frequencies(backend, case, SIGMOID, options, masks(case)[2:], sample_shape=(), copies=4000)


@all_options
@hypothesis.given(drawn=cases.masked_trees(), activation=cases.activation_cases(), split=st.booleans())
@hypothesis.settings(max_examples=4)
def test_frequencies_on_random_trees(backend, options, drawn, activation, split):
    shape, copies = ((50, 2), 20) if split else ((2000,), 1)
    checks.masked_frequencies(backend, drawn[0], activation, options, drawn[1], sample_shape=shape, copies=copies)


@pytest.mark.parametrize("name", ["balanced-5-uneven", "clusters-12", "balanced-100"])
@all_options
def test_straight_through(backend, name, options):
    case = cases.tree_case(name)
    checks.masked_straight_through(backend, case, cases.NATURAL, options, half(case))


@pytest.mark.parametrize("name", ["balanced-2", "balanced-5-uneven", "balanced-18", "huffman-zipf-90", "chain-75"])
@pytest.mark.parametrize("options", [MASK_ALONE, OPTIONS["T0.4-unimix"]], ids=name_of)
def test_relaxed(backend, name, options):
    case = cases.tree_case(name)
    checks.masked_relaxed(backend, case, cases.NATURAL, options, half(case))


# ---- divergences ----

PAIRS = {
    "mask-mask": (MASK_ALONE, MASK_ALONE),
    "mixed-mask": (OPTIONS["T0.4-unimix"], MASK_ALONE),
    "mask-mixed": (MASK_ALONE, OPTIONS["T3-unimix"]),
}


@pytest.mark.parametrize("options", PAIRS.values(), ids=PAIRS.keys())
@some_trees
def test_kl(backend, name, options):
    case = cases.tree_case(name)
    checks.masked_kl_is_its_definition(backend, case, cases.NATURAL, options, masks(case))


@pytest.mark.parametrize("options", PAIRS.values(), ids=PAIRS.keys())
@hypothesis.given(drawn=cases.masked_trees(), activation=cases.activation_cases())
@hypothesis.settings(max_examples=5)
def test_kl_on_random_trees(backend, options, drawn, activation):
    checks.masked_kl_is_its_definition(backend, drawn[0], activation, options, drawn[1])


def test_a_mask_of_what_is_impossible_anyway(backend, tree):
    checks.impossible_classes_may_be_masked(backend, tree, cases.NATURAL, masks(tree))
