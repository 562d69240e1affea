"""Natural gradients, KL steps, distances and conversions: dtypes, second derivatives, hostile inputs, errors, masks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import cases
import numpy as np
import pytest
from conformance import checks
from conformance.backend import built, signs, weights_like

import catnat

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")

DAMPINGS = (0.0, 1e-3, 0.5)
# One tree of every way that masses are summed.
TREES = ("balanced-8", "balanced-18", "chain-7", "huffman-zipf-50", "balanced-5-uneven")
every_tree = pytest.mark.parametrize("tree", [cases.tree_case(name) for name in TREES], ids=TREES)
every_dtype = pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def softmax(logits: np.ndarray) -> np.ndarray:
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def limits_of(framework: Any, dtype: str) -> Any:
    """The framework's ``finfo``: NumPy has none of bfloat16."""
    return framework.numpy_like.finfo(getattr(framework.numpy_like, dtype))


def rounded(framework: Any, values: np.ndarray, dtype: str) -> np.ndarray:
    """The nearest numbers of a dtype, in float64."""
    return framework.numpy(framework.cast(framework.cast(framework.array(values), dtype), "float64"))


def in_dtype(framework: Any, function: Callable[[Any], Any], dtype: str) -> Callable[[Any], Any]:
    """A function of float64 that computes, forward and backward, in another dtype."""

    def call(x: Any) -> Any:
        narrow = framework.cast(x, dtype)
        value = function(narrow)
        assert value.dtype == narrow.dtype
        return framework.cast(value, "float64")

    return call


def pulled_back(framework: Any, function: Callable[[Any], Any], at: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """What ``function`` makes of a gradient in the backward pass; forward it must change nothing."""
    value, found = framework.value_and_gradient(function, at, gradient)
    np.testing.assert_array_equal(value, at)
    return found


def gradient_of(framework: Any, function: Callable[[Any], Any], at: np.ndarray) -> np.ndarray:
    """Of the weighted sum of what ``function`` returns."""
    value = framework.numpy(function(framework.array(at)))
    return framework.value_and_gradient(function, at, weights_like(value))[1]


def weighted(framework: Any, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same sum, as a function of native arrays."""

    def loss(x: Any) -> Any:
        value = function(x)
        return (value * framework.array(weights_like(np.empty(tuple(value.shape))))).sum()

    return loss


# ---- softmax's natural gradient ----


def through_softmax(framework: Any, logits: np.ndarray, gradient: np.ndarray, damping: float = 0.0) -> np.ndarray:
    function = framework.lib.geometry.softmax_natural_gradient
    return pulled_back(framework, lambda x: function(x, damping=damping), logits, gradient)


@pytest.mark.parametrize("size", [1, 2, 3, 10, 40])
def test_softmax_natural_gradient_is_the_pseudo_inverse(framework, size):
    logits, gradient = normal(4, size), normal(4, size, seed=1)
    gradient -= gradient.mean(-1, keepdims=True)  # as that of every function of the probabilities
    for damping in DAMPINGS:
        got = through_softmax(framework, logits, gradient, damping)
        for p, g, x in zip(softmax(logits), gradient, got, strict=True):
            fisher = np.diag(p) - np.outer(p, p) + damping * np.eye(size)
            inverse = np.linalg.inv(fisher) if damping else np.linalg.pinv(fisher, rcond=1e-12, hermitian=True)
            checks.close(x, inverse @ g, rtol=1e-9, atol=1e-10)


def test_classes_without_probability_do_not_count(framework):
    logits, living, gradient = np.array([0.3, -math.inf, 1.0, -2000.0, -0.5]), [0, 2, 4], normal(5)
    for damping in DAMPINGS:
        got = through_softmax(framework, logits, gradient, damping)
        alone = through_softmax(framework, logits[living], gradient[living], damping)
        checks.close(got[living], alone, rtol=1e-10, atol=1e-12)
        assert (got[[1, 3]] == 0).all()


def test_a_gradient_with_a_sum_is_that_of_normalized_logits(framework):
    logits, gradient = normal(3, 6), normal(3, 6, seed=1)
    projected = gradient - softmax(logits) * gradient.sum(-1, keepdims=True)
    for damping in DAMPINGS:
        got, wanted = (through_softmax(framework, logits, g, damping) for g in (gradient, projected))
        checks.close(got, wanted, rtol=1e-10, atol=1e-12)


@every_dtype
def test_softmax_natural_gradient_in_every_dtype(framework, dtype):
    logits, gradient = (rounded(framework, normal(5, 7, seed=seed), dtype) for seed in range(2))
    function = in_dtype(framework, framework.lib.geometry.softmax_natural_gradient, dtype)
    got, wanted = pulled_back(framework, function, logits, gradient), through_softmax(framework, logits, gradient)
    checks.close(got, wanted, rtol=8 * float(limits_of(framework, dtype).eps), atol=1e-5)


# ---- natural_gradient ----


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_factor_is_bounded(framework, dtype):
    bound = float(limits_of(framework, dtype).tiny) ** -0.5
    scores = np.full(199, 9.0, dtype)  # each later node is reached e^-9 times as often
    _, got = framework.natural_gradient(scores, np.ones_like(scores), catnat.chain(200), "sigmoid")
    assert np.isfinite(got).all()
    assert math.isclose(float(got.max()), bound, rel_tol=1e-5)
    assert got[-1] == 0  # its reach has underflowed


@every_dtype
@every_tree
@pytest.mark.parametrize("activation", cases.ACTIVATIONS)
def test_natural_gradient_in_every_dtype(framework, tree, activation, dtype):
    """Half precision divides in float32; only what comes in and goes out is rounded, and saturates."""
    case = cases.ACTIVATIONS[activation]
    limits = limits_of(framework, dtype)
    scores = rounded(framework, tree.model(case).inside(checks.generator(), (5,), margin=0.1), dtype)
    gradient = rounded(framework, normal(5, tree.num_nodes), dtype)

    def identity(x):
        return framework.lib.geometry.natural_gradient(x, tree.tree, built(case))

    got = pulled_back(framework, in_dtype(framework, identity, dtype), scores, gradient)
    most = float(limits.max) / 4
    wanted = np.clip(gradient / framework.fisher_diagonal(scores, tree.tree, case), -most, most)
    tolerance = max(4 * float(limits.eps), 1e-4 if dtype != "float64" else 1e-10)
    checks.close(got, wanted, rtol=tolerance, atol=tolerance)


def test_the_preconditioner_is_a_constant_of_the_second_derivative(framework):
    """The Hessian of L(natural_gradient(s)) is D H D, with D the inverse Fisher matrix."""
    tree, scores, lib = catnat.balanced(5), normal(4) / 2, framework.lib
    target = framework.array(softmax(normal(5, seed=1)))

    def loss(s):
        return -(target * lib.log_catnat(s, tree, "natural")).sum()

    factor = np.diag(1 / framework.fisher_diagonal(scores, tree, "natural"))
    got = framework.hessian(lambda s: loss(lib.geometry.natural_gradient(s, tree, "natural")), scores)
    checks.close(got, factor @ framework.hessian(loss, scores) @ factor, rtol=1e-10, atol=1e-12)


# ---- kl_step ----


@every_dtype
@pytest.mark.parametrize("activation", ["sigmoid", "natural"])
def test_kl_step_in_every_dtype(framework, activation, dtype):
    tree, case = cases.tree_case("balanced-18"), cases.ACTIVATIONS[activation]
    scores = rounded(framework, tree.model(case).inside(checks.generator(), (20,), margin=0.2), dtype)
    gradient = framework.grad("catnat", normal(20, 18), scores, tree.tree, case)
    given = [framework.cast(framework.array(values), dtype) for values in (scores, gradient)]
    for kl in (1e-3, np.linspace(1e-3, 5e-3, 20)):
        step = framework.lib.geometry.kl_step(*given, framework.native(kl), tree.tree, built(case))
        assert step.dtype == given[0].dtype
        step = framework.numpy(framework.cast(step, "float64"))
        found = checks.rows(tree.model(case).kl, scores, scores + step)
        checks.close(found, np.broadcast_to(kl, 20), rtol=max(0.01, 8 * float(limits_of(framework, dtype).eps)))


def test_small_divergences_in_single_precision(framework):
    """Where the computed divergence is rounding error, the second-order length stands."""
    tree = cases.tree_case("balanced-32")
    scores = tree.model(cases.NATURAL).inside(checks.generator(), (50,), margin=0.2)
    gradient, fisher = normal(50, 31), framework.fisher_diagonal(scores, tree.tree, "natural")
    for kl in (1e-5, 1e-7, 1e-9):
        step = framework.kl_step(*(x.astype(np.float32) for x in (scores, gradient)), kl, tree.tree, "natural")
        checks.close((fisher * step.astype(float) ** 2).sum(-1) / 2, np.full(50, kl), rtol=0.03)


def test_a_long_step_is_measured_and_not_guessed(framework):
    """The second-order length alone would miss this divergence by a tenth."""
    scores, gradient = normal(20, 17) / 2, normal(20, 17, seed=1)
    step = framework.kl_step(scores, gradient, 0.1, None, "sigmoid")
    checks.close(framework.kl_divergence(scores, scores + step, None, "sigmoid"), np.full(20, 0.1), rtol=2e-3)
    fisher = framework.fisher_diagonal(scores, None, "sigmoid")
    assert (np.abs((fisher * step**2).sum(-1) / 2 - 0.1) > 0.002).any()


def test_no_direction_no_step(framework):
    scores = np.array([[0.5, 0.1, 0.0], [4.0, 0.3, 9.0], [0.5, 0.1, 0.0], [4.0, 0.0, 0.0]], np.float32)
    gradient = np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1e-30, 0.0, 1e-32], [3.0, 1.0, 1e-20]], np.float32)
    step = framework.kl_step(scores, gradient, 0.01, None, "natural")
    assert (step[:2] == 0).all()  # no gradient; all saturated
    divergence = framework.kl_divergence(scores, scores + step, None, "natural")
    assert (np.abs(divergence[2:] - 0.01) < 1e-4).all()  # however small it is
    assert step[3, :2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("activation", "inside"), [("natural", math.pi - 1e-3), ("sigmoid", 40.0)])
def test_at_an_edge_the_step_is_bounded(framework, activation, inside):
    """A node near its edge cannot move the distribution by much: the step stops at four times its first length."""
    scores = np.array([inside])
    step = framework.kl_step(scores, np.array([-1.0]), 0.1, None, activation)
    first = math.sqrt(2 * 0.1 / framework.fisher_diagonal(scores, None, activation)[0])
    assert 0 < step[0] <= 4 * first
    assert framework.kl_divergence(scores, scores + step, None, activation) < 0.1


# ---- fisher_rao_distance ----


def test_the_distance_of_opposites_is_pi(framework):
    p, q = np.array([9.0, 0.0, 0.0]), np.array([-9.0, 1.0, 2.0])
    for dtype in (np.float32, np.float64):
        distance = framework.fisher_rao_distance(p.astype(dtype), q.astype(dtype), None, "natural")
        assert distance.dtype == dtype
        assert math.pi - 1e-6 < distance <= dtype(math.pi)
    assert framework.fisher_rao_distance(np.zeros(0), np.zeros(0), None, "natural") == 0


@every_dtype
def test_distance_in_every_dtype(framework, dtype):
    tree = cases.tree_case("balanced-11")
    p, q = (rounded(framework, x, dtype) for x in tree.model(cases.NATURAL).inside(checks.generator(), (2, 6)))
    narrow = [framework.cast(framework.array(x), dtype) for x in (p, q)]
    got = framework.lib.geometry.fisher_rao_distance(*narrow, tree.tree, "natural")
    assert got.dtype == narrow[0].dtype
    wanted = framework.fisher_rao_distance(p, q, tree.tree, "natural")
    tolerance = 4 * float(limits_of(framework, dtype).eps)
    checks.close(framework.numpy(framework.cast(got, "float64")), wanted, rtol=tolerance, atol=1e-6)


@pytest.mark.expensive_compile
@every_tree
def test_the_gradient_of_the_distance(framework, tree):
    p, q = tree.model(cases.NATURAL).inside(checks.generator(), (2,), margin=0.2)
    direction = normal(tree.num_nodes)

    def distance(x):
        return framework.lib.geometry.fisher_rao_distance(x, framework.array(q), tree.tree, "natural")

    slope, curvature = derivatives(framework, distance, p, direction)
    checks.close(*slope, rtol=1e-6, atol=1e-8)
    checks.close(*curvature, rtol=1e-5, atol=1e-6)
    assert (gradient_of(framework, distance, q) == 0).all()


@pytest.mark.parametrize(("dtype", "edge", "depth"), [("float32", 1e-6, 2), ("float64", 1e-9, 11)])
def test_derivatives_of_tiny_distances(framework, dtype, edge, depth):
    """Powers of the squares of tiny differences leave the dtype's range long before the distance does.

    The last node of a chain is reached with a tiny probability r. Moving its score by t moves the distribution by
    4 arcsin(sqrt(r) sin(t / 8)).
    """
    weights = 0.5 ** np.append(np.arange(1, depth + 2), depth + 1)
    tree = catnat.chain(depth + 2).with_prior(weights)  # every band lies evenly around 0
    first = np.full(depth, math.pi - edge, dtype)
    root = math.prod(math.sin((math.pi - float(score)) / 4) for score in first)
    other = framework.array(np.append(first, np.array(0.1, dtype)))

    def distance(t):
        scores = framework.numpy_like.concatenate((framework.array(first), framework.cast(t, dtype)))
        return framework.cast(framework.lib.geometry.fisher_rao_distance(scores, other, tree, "natural"), "float64")

    value, slope, curvature = framework.first_and_second(distance, np.array([1.1], dtype).astype(float))
    checks.close(value, 4 * root * math.sin(1 / 8), rtol=1e-3)
    checks.close(slope, signs((1,)) * (root / 2 * math.cos(1 / 8)), rtol=1e-3)
    checks.close(curvature, np.array([-root / 16 * math.sin(1 / 8)]), rtol=0.02)


def derivatives(
    framework: Any, function: Callable[[Any], Any], at: np.ndarray, direction: np.ndarray, step: float = 1e-5
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """The first and the second derivative in a direction of a weighted sum: by the framework and by differences."""
    ahead, behind = at + step * direction, at - step * direction
    values = [framework.numpy(function(framework.array(x))) for x in (ahead, behind)]
    difference = ((values[0] - values[1]) * weights_like(values[0])).sum() / (2 * step)
    slopes = [gradient_of(framework, function, x) for x in (ahead, behind)]
    hessian = framework.hessian(weighted(framework, function), at).reshape(at.size, at.size)
    curvature = (hessian @ direction.ravel()).reshape(at.shape)
    first = (gradient_of(framework, function, at) * direction).sum()
    return (first, difference), (curvature, (slopes[0] - slopes[1]) / (2 * step))


# ---- conversions ----


@pytest.mark.expensive_compile
@every_tree
@pytest.mark.parametrize("activation", cases.ACTIVATIONS)
def test_derivatives_of_conversions(framework, tree, activation):
    """First and second, against differences; through probabilities the same, by the chain rule."""
    kind, lib = built(cases.ACTIVATIONS[activation]), framework.lib
    logits, direction = normal(tree.num_classes), normal(tree.num_classes, seed=1)

    def direct(x):
        return lib.scores_from_logits(x, tree.tree, kind)

    slope, curvature = derivatives(framework, direct, logits, direction)
    checks.close(*slope, rtol=1e-6, atol=1e-7)
    checks.close(*curvature, rtol=1e-5, atol=1e-6)

    probs = softmax(logits)
    scores = framework.numpy(direct(framework.array(logits)))
    by_probs, of_probs = framework.value_and_gradient(
        lambda p: lib.scores_from_probs(p, tree.tree, kind), probs, weights_like(scores)
    )
    checks.close(by_probs, scores, rtol=1e-9, atol=1e-9)
    chained = probs * (of_probs - (of_probs * probs).sum())
    checks.close(chained, gradient_of(framework, direct, logits), rtol=1e-8, atol=1e-8)


@pytest.mark.expensive_compile
@every_tree
def test_second_derivatives_where_all_sides_tie(framework, tree):
    def scores(x):
        return framework.lib.scores_from_logits(x, tree.tree, "sigmoid")

    _, curvature = derivatives(framework, scores, np.zeros(tree.num_classes), normal(tree.num_classes))
    checks.close(*curvature, rtol=1e-6, atol=1e-8)


@every_dtype
@every_tree
@pytest.mark.parametrize("activation", cases.ACTIVATIONS)
def test_conversions_in_every_dtype(framework, tree, activation, dtype):
    case, lib = cases.ACTIVATIONS[activation], framework.lib
    logits = rounded(framework, normal(4, tree.num_classes), dtype)
    for function, given in ((lib.scores_from_logits, logits), (lib.scores_from_probs, softmax(logits))):
        narrow = framework.cast(framework.array(given), dtype)
        scores = function(narrow, tree.tree, built(case))
        assert scores.dtype == narrow.dtype
        got = checks.rows(tree.model(case).probs, framework.numpy(framework.cast(scores, "float64")))
        checks.close(got, softmax(logits), atol=8 * float(limits_of(framework, dtype).eps))


def test_the_default_tree_is_balanced(framework):
    logits, kind = normal(3, 11), "natural"
    for given, function in (
        (logits, framework.scores_from_logits),
        (softmax(logits), framework.scores_from_probs),
    ):
        np.testing.assert_array_equal(function(given, None, kind), function(given, catnat.balanced(11), kind))
        assert function(np.ones((2, 1)), None, kind).shape == (2, 0)
        assert function(np.ones(1), None, kind).shape == (0,)


def test_rounded_probabilities_are_taken(framework):
    """Computed in float32, they sum to 1 nearly enough."""
    framework.scores_from_probs(softmax(normal(5, 1000).astype(np.float32)).astype(float), None, "natural")


def test_a_certain_class_sits_at_the_edge(framework):
    certain = np.array([0.0, 0.0, 1.0, 0.0])
    natural = framework.scores_from_probs(certain, None, "natural")
    checks.close(natural, np.array([math.pi, 0.0, -math.pi]), rtol=1e-12)
    for name in ("sigmoid", "own-cauchit"):  # their edges are nowhere
        activation = cases.ACTIVATIONS[name]
        scores = framework.scores_from_probs(certain, None, activation)
        assert scores[1] == 0
        assert np.isfinite(scores).all()
        checks.close(framework.catnat(scores, None, activation), certain, atol=1e-12)


# ---- hostile inputs ----


def hostile(framework: Any, width: int, dtype: str, *more: float) -> np.ndarray:
    """Rows of numbers that overflow, underflow or lie at an edge, alike and mixed, rounded to the dtype."""
    limits = limits_of(framework, dtype)
    largest = float(limits.max)
    most = min(1e30, largest)
    special = np.array(
        [0.0, 1.0, -1.0, 50.0, -50.0, 1e4, -1e4, most, -most, largest, -largest, float(limits.tiny), *more]
    )
    mixed = np.random.default_rng(0).choice(special, (60, width))
    flat = np.repeat(special[np.isfinite(special), None], width, 1)
    return rounded(framework, np.concatenate([flat, mixed]), dtype)


def hostile_logits(framework: Any, num_classes: int, dtype: str) -> np.ndarray:
    """The same with impossible classes, but in no row all of them; in some rows all but few."""
    logits = hostile(framework, num_classes, dtype, -math.inf)
    few = np.where(np.random.default_rng(1).random((30, num_classes)) < 0.9, -math.inf, logits[-30:])
    few[:, 0] = 1.0
    first = np.maximum(logits[:, :1], float(limits_of(framework, dtype).min))
    return np.concatenate([np.concatenate([first, logits[:, 1:]], 1), few])


def finite_to_second_order(framework: Any, function: Callable[[Any], Any], at: np.ndarray, orders: int = 3) -> None:
    """Values, gradients of a sum with both signs, and gradients of the gradients: none is NaN or infinite."""
    for order, found in enumerate(framework.first_and_second(function, at)[:orders]):
        wrong = ~np.isfinite(found).reshape(len(found), -1).all(-1)
        assert not wrong.any(), f"derivative {order} of {at[wrong[: len(at)]][:1]}"


@pytest.mark.expensive_compile
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@every_tree
@pytest.mark.parametrize("activation", cases.ACTIVATIONS)
def test_hostile_scores(framework, tree, activation, dtype):
    kind, geometry = built(cases.ACTIVATIONS[activation]), framework.lib.geometry
    scores = hostile(framework, tree.num_nodes, dtype, math.pi, -math.pi, 3.1415925, 3.1416)

    def through(s):
        return framework.lib.log_catnat(geometry.natural_gradient(s, tree.tree, kind), tree.tree, kind)

    def distance(s):
        return geometry.fisher_rao_distance(s, framework.numpy_like.flip(s, (0,)), tree.tree, kind)

    # Of the natural gradient the first order alone: two factors of 1e19 and more may overflow.
    finite_to_second_order(framework, in_dtype(framework, through, dtype), scores, orders=2)
    finite_to_second_order(framework, in_dtype(framework, distance, dtype), scores)
    narrow = framework.cast(framework.array(scores), dtype)
    for kl in (1e-2, 1e-30, float(limits_of(framework, dtype).max) / 2):
        for gradient in (framework.numpy_like.sign(narrow), narrow):
            step = geometry.kl_step(narrow, gradient, kl, tree.tree, kind)
            assert np.isfinite(framework.numpy(framework.cast(step, "float64"))).all(), kl


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@every_tree
@pytest.mark.parametrize("activation", cases.ACTIVATIONS)
def test_hostile_logits(framework, tree, activation, dtype):
    logits, kind = hostile_logits(framework, tree.num_classes, dtype), built(cases.ACTIVATIONS[activation])

    def scores(x):
        return framework.lib.scores_from_logits(x, tree.tree, kind)

    finite_to_second_order(framework, in_dtype(framework, scores, dtype), logits)


@every_dtype
def test_softmax_natural_gradient_of_hostile_logits(framework, dtype):
    logits = hostile_logits(framework, 9, dtype)
    gradient = rounded(framework, np.sign(logits) + 1, dtype)
    for damping in DAMPINGS:

        def identity(x, d=damping):
            return framework.lib.geometry.softmax_natural_gradient(x, damping=d)

        assert np.isfinite(pulled_back(framework, in_dtype(framework, identity, dtype), logits, gradient)).all()


@every_tree
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("activation", cases.ACTIVATIONS)
def test_probabilities_with_zeros_and_denormals(framework, tree, dtype, activation):
    limits = np.finfo(dtype)
    small = np.array([0.0, limits.smallest_subnormal, limits.tiny, 1e-20, 0.0, 0.3], dtype)
    probs = np.random.default_rng(0).choice(small, (20, tree.num_classes))
    probs[:, -1] += 1
    probs /= probs.sum(-1, keepdims=True)
    kind = built(cases.ACTIVATIONS[activation])
    for found in framework.value_and_gradient(
        lambda p: framework.lib.scores_from_probs(p, tree.tree, kind), probs, np.ones((20, tree.num_nodes), dtype)
    ):
        assert np.isfinite(found).all()
