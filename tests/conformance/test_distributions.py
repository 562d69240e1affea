"""Distributions with masks, temperatures and mixtures: what they make of a tree's probabilities, by the definitions.

The oracle divides by sums, takes powers and mixes, one class after the other.
"""

import itertools

import cases
import hypothesis
import numpy as np
import oracle
import pytest
from conformance import checks
from conformance.backend import weights_like
from hypothesis import strategies as st

import catnat

pytestmark = pytest.mark.expensive_compile

OPTIONS, MASK = cases.OPTIONS, cases.MASK
# One of every way a tree is computed: matrix product, levels, pointer jumping; walked or not.
SOME_TREES = ("balanced-5-uneven", "balanced-18", "clusters-12", "balanced-100", "chain-75", "huffman-zipf-90")
MORE_TREES = (*SOME_TREES, "balanced-1", "balanced-2", "chain-7", "balanced-64", "caterpillar-75")
DRAWN_TREES = ("balanced-5-uneven", "balanced-64", "balanced-100", "huffman-zipf-90", "chain-75", "caterpillar-75")

some_trees = pytest.mark.parametrize("name", SOME_TREES)
more_trees = pytest.mark.parametrize("name", MORE_TREES)
drawn_trees = pytest.mark.parametrize("name", DRAWN_TREES)
all_options = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
random_trees = hypothesis.given(drawn=cases.masked_trees(), activation=cases.activation_cases())


def masks(case, rows=5, seed=0):
    return cases.masks(case.num_classes, rows, seed)


def half(case, seed=0):
    """One mask that leaves about half of the classes."""
    return masks(case, seed=seed)[3]


def test_the_oracle_by_hand():
    model = oracle.Model(oracle.balanced(4), (1.0,) * 4, oracle.Sigmoid())
    p = model.probs([0.3, -1.0, 2.0])
    valid = (True, False, True, True)
    left = p[[0, 2, 3]] / (p[0] + p[2] + p[3])
    np.testing.assert_allclose(oracle.Distribution(model, valid).probs([0.3, -1.0, 2.0])[[0, 2, 3]], left)
    squares = left**2 / (left**2).sum()
    masked = oracle.Distribution(model, valid, temperature=0.5, unimix=0.3)
    np.testing.assert_allclose(masked.probs([0.3, -1.0, 2.0]), [*np.insert(0.7 * squares + 0.1, 1, 0)], rtol=1e-14)
    assert oracle.Distribution(model, (True, True, False, False)).active == [0, 1]


# ---- values ----


@pytest.mark.parametrize("masked", [False, True], ids=["every-class", "masked"])
def test_facts_of_every_activation(backend, tree, activation, masked):
    checks.distribution_facts(backend, tree, activation, MASK, masks(tree)[[0, 2, 3]] if masked else None)


@pytest.mark.parametrize("masked", [False, True], ids=["every-class", "masked"])
@all_options
@more_trees
def test_facts_of_every_option(backend, name, options, masked):
    case = cases.tree_case(name)
    checks.distribution_facts(backend, case, cases.NATURAL, options, masks(case, seed=1) if masked else None)


@all_options
@random_trees
@hypothesis.settings(max_examples=8)
def test_facts_on_random_trees(backend, options, drawn, activation):
    checks.distribution_facts(backend, drawn[0], activation, options, drawn[1])


@all_options
def test_a_full_mask_changes_nothing(backend, tree, activation, options):
    checks.a_full_mask_changes_nothing(backend, tree, activation, options)


def test_temperature_comes_before_unimix(backend):
    """p = (1/4, 3/4), T = 1/2, u = 1/2: squares make (1/10, 9/10), and halfway to (1/2, 1/2) lies (3/10, 7/10)."""
    options = cases.OptionsCase("order", temperature=0.5, unimix=0.5)
    facts = backend.facts_of(np.log([3.0]), catnat.balanced(2), "sigmoid", options, None)
    checks.close(facts["probs"], [0.3, 0.7], rtol=1e-13)


@pytest.mark.parametrize("temperature", [1.0, 5.0])
@pytest.mark.parametrize("classes", [64, 200])
def test_with_unimix_nothing_is_floored(backend, temperature, classes):
    """Beyond the band the upper half has probability 0, so only the uniform part is left; a floor would add to it."""
    options, scores = cases.OptionsCase("mixed", temperature=temperature, unimix=1e-4), np.zeros(classes - 1)
    scores[0] = -4.0
    facts = backend.facts_of(scores, catnat.balanced(classes), "natural", options, None)
    upper = np.exp(np.asarray(facts["logits"])) / np.asarray(facts["probs"])
    checks.close(upper, np.ones(classes), rtol=1e-10)


def test_unimix_counts_valid_classes_only(backend):
    options, valid = cases.OptionsCase("fraction", unimix=0.5), np.isin(np.arange(8), (0, 4))
    tree = catnat.balanced(8).with_prior([1, 1, 1, 1, 3, 1, 1, 1])
    facts = backend.facts_of(np.zeros(7), tree, "natural", options, valid)
    checks.close(facts["probs"], np.where(valid, 0.25 + 0.5 * np.array([0.25, 0, 0, 0, 0.75, 0, 0, 0]), 0), rtol=1e-13)


@pytest.mark.parametrize("temperature", [1e-30, 1e30])
@some_trees
def test_extreme_temperatures(backend, name, temperature):
    """Low: the most probable class alone. High: the uniform distribution over the valid classes."""
    tree = cases.tree_case(name)
    options, rows = cases.OptionsCase("extreme", temperature), masks(tree)
    references, scores = checks.references_and_scores(tree, cases.NATURAL, MASK, rows, 70)
    best = [reference.probs(row).argmax() for reference, row in zip(references, scores, strict=True)]
    facts = backend.facts_of(scores, tree.tree, cases.NATURAL, options, rows)
    uniform, best_alone = rows / rows.sum(-1, keepdims=True), np.eye(tree.num_classes)[best]
    checks.close(facts["probs"], uniform if temperature > 1 else best_alone, atol=1e-13)
    checks.close(facts["entropy"], np.log(rows.sum(-1)) if temperature > 1 else np.zeros(len(rows)), atol=1e-12)
    if temperature < 1:
        checks.close(facts["mode"], best)
    for fact, shape in (("probs", rows.shape), ("logits", rows.shape), ("entropy", rows.shape[:1])):
        gradient = backend.grad_of(fact, np.ones(shape), scores, tree.tree, cases.NATURAL, options, rows)
        assert np.isfinite(gradient).all()


class Subclass(catnat.natural):
    """Computed by its log-odds, as an activation of one's own."""


@pytest.mark.parametrize("temperature", [100.0, 1e4, 1e8])
@pytest.mark.parametrize("unimix", [0.0, 0.5])
def test_what_is_impossible_stays_so_at_any_temperature(backend, temperature, unimix):
    """0^(1/T) is 0, and the rest becomes uniform; classes that a mask leaves, all of them impossible, share what is."""
    scores = np.array([[4.0, 0.0, 0.0]])  # the root is certain
    options = cases.OptionsCase("", temperature, unimix)
    only_impossible = np.array([[True, True, False, False]])
    cases_of_masks = (None, [0, 0, 0.5, 0.5]), (only_impossible, [0.5, 0.5, 0, 0])
    for activation, (mask, wanted) in itertools.product(("natural", Subclass()), cases_of_masks):
        valid = np.ones(4) if mask is None else mask[0]
        facts = backend.facts_of(scores, catnat.balanced(4), activation, options, mask)
        mixed = (1 - unimix) * np.array([wanted]) + unimix * valid / valid.sum()
        checks.close(facts["probs"], mixed, atol=1e-13)


def test_the_sigmoid_is_never_impossible(backend):
    """What has underflowed at T = 1 comes back where T is large: p^(1/T) is that of logarithms."""
    options = cases.OptionsCase("", temperature=1e4)
    facts = backend.facts_of(np.array([[-15_000.0, 0.0, 0.0]]), catnat.balanced(4), "sigmoid", options, None)
    odds = np.exp([0, 0, -1.5, -1.5])
    checks.close(facts["probs"], [odds / odds.sum()], rtol=1e-9)


@all_options
@more_trees
def test_masked_classes_are_impossible(backend, name, options):
    case = cases.tree_case(name)
    for dtype in ("float16", "float32", "float64"):
        checks.masked_classes_are_impossible(backend, case, cases.NATURAL, options, masks(case), dtype)


@pytest.mark.parametrize("options", [MASK, OPTIONS["T0.4-unimix"]], ids=lambda options: options.name)
def test_masked_classes_are_impossible_for_any_activation(backend, activation, options):
    for name in ("balanced-11", "huffman-zipf-90"):
        case = cases.tree_case(name)
        checks.masked_classes_are_impossible(backend, case, activation, options, masks(case, seed=2))


def test_the_fisher_matrix_of_the_conditional_distribution_is_not_diagonal():
    """Nor of a mixture or a power: why ``fisher_diagonal`` refuses."""
    case, mask = cases.tree_case("balanced-5-uneven"), np.array([[True, False, True, True, True]])
    for options in OPTIONS.values():
        (reference,), (scores,) = checks.references_and_scores(case, cases.NATURAL, options, mask, 71)
        assert checks.off_diagonal(reference.fisher(scores)) > 1e-3


# ---- arguments ----


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("num_classes", [5, 128, 300, 40_000])
def test_indices_padded_with_minus_one(framework, num_classes, dtype):
    """The number of classes need not fit into the dtype of the indices."""
    indices = np.array([[0, 4, -1, -1], [3, 3, 2, -1], [-1, -1, -1, 1], [0, 1, 2, 3]])
    indices = indices.clip(min=0 if dtype == "uint8" else -1)
    valid = np.zeros((4, num_classes), bool)
    for row, listed in zip(valid, indices, strict=True):
        row[listed[listed >= 0]] = True
    scores = framework.array(np.zeros((4, num_classes - 1), np.float32))
    found = framework.lib.Catnat(scores, valid_classes=framework.array(indices.astype(dtype)))
    np.testing.assert_array_equal(found.mask, valid)


@pytest.mark.parametrize("unimix", [0.0, 0.1])
@pytest.mark.parametrize("name", ["balanced-5-uneven", "huffman-zipf-90"])
@pytest.mark.parametrize(
    ("of_scores", "of_masks", "of_temperatures"),
    [((2, 3), (), (2, 3)), ((), (4,), ()), ((3,), (2, 1), (3,)), ((2, 1), (3,), (2, 1)), ((2, 3), None, (3,))],
    ids=str,
)
def test_batches_are_broadcast(framework, of_scores, of_masks, of_temperatures, name, unimix):
    """A row of a batch is the distribution of its scores, mask and temperature alone."""
    case, rng = cases.tree_case(name), np.random.default_rng(0)
    scores, temperature = rng.normal(size=(*of_scores, case.num_nodes)), rng.uniform(0.3, 3, of_temperatures)
    given = {"temperature": temperature}
    if of_masks is not None:
        given["mask"] = masks(case, max(1, int(np.prod(of_masks)))).reshape(*of_masks, -1)
    batch = np.broadcast_shapes(of_scores, of_masks or (), of_temperatures)

    def facts(scores, **options):
        options = {key: framework.native(value) for key, value in options.items()}
        dist = framework.lib.Catnat(framework.array(scores), case.tree, unimix=unimix, **options)
        return dist, (dist.probs, dist.logits, dist.mode, dist.entropy())

    dist, found = facts(scores, **given)
    assert tuple(dist.batch_shape) == batch
    wide = np.broadcast_to(scores, (*batch, case.num_nodes)), np.broadcast_to(temperature, batch)
    for at in np.ndindex(batch):
        alone = {"temperature": np.array(wide[1][at])}
        if of_masks is not None:
            alone["mask"] = np.broadcast_to(given["mask"], (*batch, case.num_classes))[at]
        for fact, wanted in zip(found, facts(wide[0][at], **alone)[1], strict=True):
            checks.close(framework.numpy(fact)[at], wanted, rtol=1e-12, atol=1e-13)


# ---- gradients ----


@all_options
@more_trees
def test_gradients(backend, name, options):
    case = cases.tree_case(name)
    activation = cases.NATURAL if case.num_classes % 2 else cases.SIGMOID
    checks.distribution_gradients(backend, case, activation, options, half(case))


@all_options
@random_trees
@hypothesis.settings(max_examples=6)
def test_gradients_on_random_trees(backend, options, drawn, activation):
    checks.distribution_gradients(backend, drawn[0], activation, options, drawn[1][0])


# ---- draws ----


@pytest.mark.parametrize("masked", [False, True], ids=["every-class", "masked"])
@drawn_trees
@all_options
def test_frequencies(backend, name, options, masked):
    case = cases.tree_case(name)
    given = masks(case)[2:] if masked else None
    checks.distribution_frequencies(backend, case, cases.NATURAL, options, given, sample_shape=(6000,))


@pytest.mark.parametrize("name", ["balanced-8", "caterpillar-75"])
@all_options
def test_frequencies_without_sample_shape(backend, name, options):
    case = cases.tree_case(name)
    given = (backend, case, cases.SIGMOID, options, masks(case)[2:])
    checks.distribution_frequencies(*given, sample_shape=(), copies=4000)


@all_options
@hypothesis.given(drawn=cases.masked_trees(), activation=cases.activation_cases(), split=st.booleans())
@hypothesis.settings(max_examples=4)
def test_frequencies_on_random_trees(backend, options, drawn, activation, split):
    shape, copies = ((50, 2), 20) if split else ((2000,), 1)
    checks.distribution_frequencies(backend, drawn[0], activation, options, drawn[1], sample_shape=shape, copies=copies)


@pytest.mark.parametrize("masked", [False, True], ids=["every-class", "masked"])
@pytest.mark.parametrize("name", ["balanced-2", "balanced-5-uneven", "clusters-12", "huffman-zipf-90", "chain-75"])
@all_options
def test_straight_through(backend, name, activation, options, masked):
    case = cases.tree_case(name)
    valid = half(case) if masked else np.ones(case.num_classes, bool)
    checks.straight_through(backend, case, activation, options, valid)


@pytest.mark.parametrize("masked", [False, True], ids=["every-class", "masked"])
@pytest.mark.parametrize("name", ["balanced-2", "balanced-5-uneven", "balanced-18", "huffman-zipf-90", "chain-75"])
@pytest.mark.parametrize("options", [MASK, OPTIONS["unimix"]], ids=lambda options: options.name)
def test_relaxed(backend, name, activation, options, masked):
    case = cases.tree_case(name)
    checks.relaxed(backend, case, activation, options, half(case) if masked else np.ones(case.num_classes, bool))


@pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")
@pytest.mark.parametrize("masked", [False, True], ids=["every-class", "masked"])
@pytest.mark.parametrize("name", ["balanced-8", "chain-75"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_relaxed_draws_at_tiny_and_huge_temperatures(framework, dtype, name, masked):
    """pytorch#22442, #101620, #127749, #184031, pyro#3304: no NaN forward or backward."""
    case = cases.tree_case(name)
    valid = half(case) if masked else np.ones(case.num_classes, bool)
    temperatures = np.array([1e-30, 1e-6, 1e-2, 1.0, 1e4, 1e30])
    limits = framework.numpy_like.finfo(getattr(framework.numpy_like, dtype))

    def draw(scores):
        narrow, mask = framework.cast(scores, dtype), framework.array(valid)
        given = framework.array(temperatures), narrow, case.tree, "natural"
        found = framework.lib.RelaxedOneHotCatnat(*given, mask=mask).rsample((5,), **framework.randomness(0))
        assert found.dtype == narrow.dtype
        return framework.cast(found, "float64")

    weights = weights_like(np.empty((5, 6, case.num_classes)))
    scores = np.random.default_rng(0).normal(0, 3, (6, case.num_nodes))
    drawn, gradient = framework.value_and_gradient(draw, scores, weights)
    assert ((drawn >= 0) & (drawn <= 1)).all()
    assert (drawn[..., ~valid] == 0).all()
    checks.close(drawn.sum(-1), np.ones((5, 6)), atol=100 * float(limits.eps))
    assert (drawn[:, :2].max(-1) > 0.99).all()
    checks.close(drawn[:, 5], np.tile(valid / valid.sum(), (5, 1)), rtol=float(limits.eps))
    assert not np.isnan(gradient).any()
    assert np.isfinite(gradient[2:]).all()


def test_the_gradient_of_a_relaxed_temperature(framework):
    """By differences, of a draw with the same noise and of its density."""
    scores, valid = framework.array(np.linspace(-1, 2, 12).reshape(3, 4)), np.array([True, False, True, True, True])
    value, mask = np.zeros((3, 5)), framework.array(valid)
    value[:, valid] = np.random.default_rng(0).dirichlet(np.ones(4), 3)

    def facts(tau):
        dist = framework.lib.RelaxedOneHotCatnat(tau, scores, mask=mask)
        draw, density = dist.rsample(**framework.randomness(0)), dist.log_prob(framework.array(value))
        return framework.numpy_like.concatenate((draw.reshape(-1), density))

    def at(tau):
        return framework.value_and_gradient(facts, np.array(tau))[0]

    got = framework.jacobian(facts, np.array(0.7))
    checks.close(got, (at(0.7 + 1e-6) - at(0.7 - 1e-6)) / 2e-6, rtol=1e-6, atol=1e-8)


# ---- divergences ----

PAIRS = {
    "mask-mask": (MASK, MASK),
    "mixed-mask": (OPTIONS["T0.4-unimix"], MASK),
    "mask-mixed": (MASK, OPTIONS["T3-unimix"]),
    "T1.7-unimix": (OPTIONS["T1.7"], OPTIONS["unimix"]),
}
every_pair = pytest.mark.parametrize("options", PAIRS.values(), ids=PAIRS.keys())


@every_pair
@some_trees
def test_kl(backend, name, options):
    case = cases.tree_case(name)
    checks.distribution_kl_is_its_definition(backend, case, cases.NATURAL, options, masks(case))


@every_pair
@random_trees
@hypothesis.settings(max_examples=5)
def test_kl_on_random_trees(backend, options, drawn, activation):
    checks.distribution_kl_is_its_definition(backend, drawn[0], activation, options, drawn[1])


def test_a_mask_of_what_is_impossible_anyway(backend, tree):
    checks.impossible_classes_may_be_masked(backend, tree, cases.NATURAL, masks(tree))
