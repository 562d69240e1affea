"""Natural gradients, KL steps, distances and conversions in JAX: dtypes, transforms, hostile inputs, errors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catnat
import catnat.jax as cj
from catnat.jax import _dense

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")

# One tree of every way that masses are summed.
TREES = {
    "balanced-8": catnat.balanced(8),
    "balanced-18": catnat.balanced(18),
    "chain-7": catnat.chain(7),
    "huffman-20": catnat.huffman(cases.zipf(20)),
}
ACTIVATIONS = {
    "sigmoid-isotropic": cj.sigmoid(scaling="isotropic"),
    "natural": cj.natural(),
    "reflect-isotropic": cj.natural(boundary="reflect", scaling="isotropic"),
}
DTYPES = [jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64]
DAMPINGS = (0.0, 1e-3, 0.5)
every_tree = pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
every_activation = pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)


@dataclasses.dataclass(frozen=True)
class Own(cj.Activation):
    """A user's own activation, a(x) = 1/2 + x / (2 sqrt(4 + x^2)), inverted in NumPy."""

    def logit(self, x, xp):
        return 2 * xp.arcsinh(x / 2)

    def inverse(self, p):
        return 2 * np.sinh((np.log(p) - np.log1p(-p)) / 2)


def normal(*shape: int, seed: int = 0, dtype=jnp.float64) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape)).astype(dtype)


def close(got, wanted, rtol=1e-10, atol=1e-12):
    assert got.shape == wanted.shape
    np.testing.assert_allclose(np.asarray(got, float), np.asarray(wanted, float), rtol=rtol, atol=atol)


def pulled_back(function: Callable, at: jax.Array, gradient: jax.Array) -> jax.Array:
    """What ``function`` makes of a gradient in the backward pass; forward it must change nothing."""
    value, pull = jax.vjp(function, at)
    np.testing.assert_array_equal(value, at)
    return pull(gradient)[0]


def weights(value: jax.Array) -> jax.Array:
    """For a loss that tells the entries apart."""
    return jnp.linspace(-1, 2, value.size, dtype=value.dtype).reshape(value.shape)


def weighted(function: Callable) -> Callable:
    """A loss of what ``function`` returns."""

    def loss(x):
        value = function(x)
        return (value * weights(value)).sum()

    return loss


def first_and_second(function: Callable, at: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A value, the gradient of its weighted sum, and the gradient's derivative in a direction of both signs."""
    direction = jnp.where(jnp.arange(at.size).reshape(at.shape) % 3 == 0, -1, 1).astype(at.dtype)

    @jax.jit
    def both(at):
        return function(at), *jax.jvp(jax.grad(weighted(function)), (at,), (direction,))

    return both(at)


# ---- softmax's natural gradient ----


@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_softmax_natural_gradient_is_the_pseudo_inverse(size):
    logits, gradient = normal(4, size), normal(4, size, seed=1)
    gradient -= gradient.mean(-1, keepdims=True)  # as that of every function of the probabilities
    for damping in DAMPINGS:
        got = pulled_back(lambda x, d=damping: cj.geometry.softmax_natural_gradient(x, damping=d), logits, gradient)
        for row, g, x in zip(np.asarray(logits), np.asarray(gradient), got, strict=True):
            p = np.exp(row) / np.exp(row).sum()
            fisher = np.diag(p) - np.outer(p, p) + damping * np.eye(size)
            inverse = np.linalg.inv(fisher) if damping else np.linalg.pinv(fisher, rcond=1e-12, hermitian=True)
            close(x, inverse @ g, rtol=1e-9, atol=1e-10)


def test_classes_without_probability_do_not_count():
    logits, living = jnp.array([0.3, -math.inf, 1.0, -2000.0, -0.5]), jnp.array([0, 2, 4])
    gradient = normal(5)
    for damping in DAMPINGS:

        def through(x, d=damping):
            return cj.geometry.softmax_natural_gradient(x, damping=d)

        got = pulled_back(through, logits, gradient)
        close(got[living], pulled_back(through, logits[living], gradient[living]))
        assert (got[jnp.array([1, 3])] == 0).all()


def test_a_gradient_with_a_sum_is_that_of_normalized_logits():
    logits, gradient = normal(3, 6), normal(3, 6, seed=1)
    projected = gradient - jax.nn.softmax(logits) * gradient.sum(-1, keepdims=True)
    got, wanted = (pulled_back(cj.geometry.softmax_natural_gradient, logits, g) for g in (gradient, projected))
    close(got, wanted)


# ---- natural_gradient ----


def test_saturated_nodes_get_nothing_even_from_other_parts_of_the_loss():
    scores = jnp.array([4.0, 0.3, -0.2])  # the root always says yes: node 1 is never reached
    for damping in DAMPINGS:
        got = pulled_back(lambda s, d=damping: cj.geometry.natural_gradient(s, damping=d), scores, jnp.ones(3))
        assert got[:2].tolist() == [0.0, 0.0]
        close(got[2], jnp.array(1 / (0.25 + damping)))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=lambda d: d.__name__)
def test_the_factor_is_bounded(dtype):
    tree, bound = catnat.chain(200), float(jnp.finfo(dtype).tiny) ** -0.5
    scores = jnp.full(199, 9.0, dtype)  # each later node is reached e^-9 times as often
    got = pulled_back(lambda s: cj.geometry.natural_gradient(s, tree, "sigmoid"), scores, jnp.ones(199, dtype))
    assert jnp.isfinite(got).all()
    assert math.isclose(float(got.max()), bound, rel_tol=1e-5)
    assert got[-1] == 0  # its reach has underflowed


@every_dtype
def test_natural_gradient_in_every_dtype(dtype):
    """Half precision divides in float32; only what comes in and goes out is rounded, and saturates."""
    tree, limits = TREES["huffman-20"], jnp.finfo(dtype)
    scores, gradient = normal(5, 19, dtype=dtype), normal(5, 19, seed=1, dtype=dtype)
    got = pulled_back(lambda s: cj.geometry.natural_gradient(s, tree), scores, gradient)
    assert got.dtype == dtype
    fisher = np.asarray(cj.geometry.fisher_diagonal(scores.astype(float), tree))
    exact = np.divide(np.asarray(gradient, float), fisher, out=np.zeros_like(fisher), where=fisher > 0)
    most = float(limits.max) / 4
    close(got, np.clip(exact, -most, most), rtol=max(4 * float(limits.eps), 1e-4 if dtype != jnp.float64 else 1e-10))


@pytest.mark.expensive_compile
def test_the_preconditioner_is_a_constant_of_the_second_derivative():
    """The Hessian of L(natural_gradient(s)) is D H D, with D the inverse Fisher matrix."""
    tree = catnat.balanced(5)
    scores, target = normal(4) / 2, jax.nn.softmax(normal(5))

    def loss(s):
        return -(target * cj.log_catnat(s, tree)).sum()

    factor = jnp.diag(1 / cj.geometry.fisher_diagonal(scores, tree))
    got = jax.hessian(lambda s: loss(cj.geometry.natural_gradient(s, tree)))(scores)
    close(got, factor @ jax.hessian(loss)(scores) @ factor)


def test_forward_mode_has_the_same_factor():
    tree, scores, tangent = catnat.balanced(6), normal(5) / 2, normal(5, seed=1)
    value, got = jax.jvp(lambda s: cj.geometry.natural_gradient(s, tree), (scores,), (tangent,))
    np.testing.assert_array_equal(value, scores)
    close(got, tangent / cj.geometry.fisher_diagonal(scores, tree))
    close(
        jax.jacfwd(cj.geometry.softmax_natural_gradient)(scores),
        jax.jacrev(cj.geometry.softmax_natural_gradient)(scores),
    )


def test_damping_may_be_traced():
    scores, gradient = normal(3, 6), normal(3, 6, seed=1)

    @jax.jit
    def through(damping):
        return jax.vjp(lambda s: cj.geometry.natural_gradient(s, damping=damping), scores)[1](gradient)[0]

    close(through(0.3), pulled_back(lambda s: cj.geometry.natural_gradient(s, damping=0.3), scores, gradient))


# ---- kl_step ----


@every_dtype
@every_activation
def test_kl_step_in_every_dtype(activation, dtype):
    tree = catnat.balanced(18)
    scores = (normal(20, 17) / 4).astype(dtype)
    exact = scores.astype(float)
    gradient = jax.grad(lambda s: (cj.catnat(s, tree, activation) * normal(20, 18)).sum())(exact)
    wanted = jnp.linspace(1e-3, 5e-3, 20)
    step = cj.geometry.kl_step(scores, gradient.astype(dtype), wanted, tree, activation)
    assert step.dtype == dtype
    found = cj.kl_divergence(exact, exact + step.astype(float), tree, activation)
    close(found, wanted, rtol=max(0.01, 8 * float(jnp.finfo(dtype).eps)))


def test_a_long_step_is_measured_and_not_guessed():
    """The second-order length alone would miss this divergence by a tenth."""
    scores, gradient = normal(20, 17) / 2, normal(20, 17, seed=1)
    step = cj.geometry.kl_step(scores, gradient, 0.1, None, "sigmoid")
    close(cj.kl_divergence(scores, scores + step, None, "sigmoid"), jnp.full(20, 0.1), rtol=2e-3)
    fisher = cj.geometry.fisher_diagonal(scores, None, "sigmoid")
    assert (jnp.abs((fisher * step**2).sum(-1) / 2 - 0.1) > 0.002).any()


def test_no_direction_no_step():
    scores = jnp.array([[0.5, 0.1, 0.0], [4.0, 0.3, 9.0], [0.5, 0.1, 0.0], [4.0, 0.0, 0.0]], jnp.float32)
    gradient = jnp.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1e-30, 0.0, 1e-32], [3.0, 1.0, 1e-20]], jnp.float32)
    step = cj.geometry.kl_step(scores, gradient, 0.01)
    assert (step[:2] == 0).all()  # no gradient; all saturated
    assert (jnp.abs(cj.kl_divergence(scores, scores + step)[2:] - 0.01) < 1e-4).all()  # however small it is
    assert step[3, :2].tolist() == [0.0, 0.0]
    assert cj.geometry.kl_step(jnp.zeros((2, 0)), jnp.zeros((2, 0)), 0.1).shape == (2, 0)


def test_at_an_edge_the_step_is_bounded():
    """A node near its edge cannot move the distribution by much: the step stops at four times its first length."""
    for activation, inside in ((cj.natural(), math.pi - 1e-3), (cj.sigmoid(), 40.0)):
        scores = jnp.array([inside])
        step = cj.geometry.kl_step(scores, jnp.array([-1.0]), 0.1, None, activation)
        first = math.sqrt(2 * 0.1 / float(cj.geometry.fisher_diagonal(scores, None, activation)[0]))
        assert 0 < float(step[0]) <= 4 * first
        assert float(cj.kl_divergence(scores, scores + step, None, activation)) < 0.1


def test_a_divergence_may_be_traced_and_no_gradient_flows():
    scores, gradient = normal(4, 6) / 3, normal(4, 6, seed=1)
    wanted = cj.geometry.kl_step(scores, gradient, 0.01)
    close(jax.jit(cj.geometry.kl_step)(scores, gradient, 0.01), wanted)
    slopes = jax.grad(lambda *args: cj.geometry.kl_step(*args).sum(), argnums=(0, 1, 2))(
        scores, gradient, jnp.full(4, 0.01)
    )
    assert all((slope == 0).all() for slope in slopes)


# ---- fisher_rao_distance ----


def test_the_distance_of_opposites_is_pi():
    p, q = jnp.array([9.0, 0.0, 0.0]), jnp.array([-9.0, 1.0, 2.0])
    for dtype in (jnp.float32, jnp.float64):
        distance = cj.geometry.fisher_rao_distance(p.astype(dtype), q.astype(dtype))
        assert distance.dtype == dtype
        assert math.pi - 1e-6 < float(distance) <= float(jnp.asarray(math.pi, dtype))
    assert float(cj.geometry.fisher_rao_distance(jnp.zeros(0), jnp.zeros(0))) == 0
    assert cj.geometry.fisher_rao_distance(p.astype(jnp.bfloat16), q.astype(jnp.float16)).dtype == jnp.float32


@pytest.mark.expensive_compile
@every_tree
def test_the_gradient_of_the_distance(tree):
    p, q, direction = (normal(tree.num_nodes, seed=seed) / 2 for seed in range(3))
    distance = jax.jit(lambda p: cj.geometry.fisher_rao_distance(p, q, tree))
    gradient = jax.jit(jax.grad(distance))
    step = 1e-5
    close((distance(p + step * direction) - distance(p - step * direction)) / (2 * step), gradient(p) @ direction, 1e-7)
    second = jax.jvp(gradient, (p,), (direction,))[1]
    close((gradient(p + step * direction) - gradient(p - step * direction)) / (2 * step), second, 1e-6, 1e-7)
    assert (gradient(q) == 0).all()
    assert distance(q) == 0


@pytest.mark.parametrize(("dtype", "edge", "depth"), [(jnp.float32, 1e-6, 2), (jnp.float64, 1e-9, 11)])
def test_derivatives_of_tiny_distances(dtype, edge, depth):
    """Powers of the squares of tiny differences leave the dtype's range long before the distance does.

    The last node of a chain is reached with a tiny probability r. Moving its score by t moves the distribution by
    4 arcsin(sqrt(r) sin(t / 8)).
    """
    weights = 0.5 ** np.append(np.arange(1, depth + 2), depth + 1)
    tree = catnat.chain(depth + 2).with_prior(weights)  # every band lies evenly around 0
    first = jnp.full(depth, math.pi - edge, dtype)
    root = math.prod(math.sin((math.pi - float(score)) / 4) for score in first)
    other = jnp.append(first, jnp.asarray(0.1, dtype))

    def distance(t):
        return cj.geometry.fisher_rao_distance(jnp.append(first, t), other, tree)

    moves = (jnp.asarray(1.1, dtype), jnp.asarray(1.0, dtype))
    got = distance(moves[0]), *jax.jvp(jax.grad(distance), moves[:1], moves[1:])
    np.testing.assert_allclose(got[0], 4 * root * math.sin(1 / 8), rtol=1e-3)
    np.testing.assert_allclose(got[1], root / 2 * math.cos(1 / 8), rtol=1e-3)
    np.testing.assert_allclose(got[2], -root / 16 * math.sin(1 / 8), rtol=0.02)


# ---- conversions ----


def masses_by_hand(logs: jax.Array, tree: catnat.Tree) -> tuple[jax.Array, jax.Array]:
    """One log-sum-exp per side of every node, over the classes whose path takes that branch."""
    sides: tuple[list[list[int]], list[list[int]]] = tuple([[] for _ in range(tree.num_nodes)] for _ in range(2))
    for k in range(tree.num_classes):
        for node, bit in zip(*tree.path(k), strict=True):
            sides[bit][node].append(k)
    no, yes = (
        jnp.stack([jax.nn.logsumexp(logs[..., np.array(classes)], -1) for classes in side], -1) for side in sides
    )
    return no, yes


@pytest.mark.expensive_compile
@every_tree
def test_log_masses_are_log_sums(tree):
    for dtype in (jnp.float32, jnp.float64):
        tolerance = 20 * float(jnp.finfo(dtype).eps)
        (got, got_slope), (wanted, wanted_slope) = (
            (jax.jit(masses), jax.jit(jax.grad(weighted(masses))))
            for masses in (
                lambda logs: jnp.stack(_dense.log_masses(logs, tree)),
                lambda logs: jnp.stack(masses_by_hand(logs, tree)),
            )
        )
        for spread in (1.0, 50.0, 5000.0):
            logs = spread * normal(3, tree.num_classes, dtype=dtype)
            close(got(logs), wanted(logs), tolerance, tolerance)
            close(got_slope(logs), wanted_slope(logs), 1e-9, 200 * spread * tolerance)
            impossible = jnp.asarray(np.random.default_rng(2).random((3, tree.num_classes)) < 0.7)
            holes = jnp.where(impossible, -math.inf, logs)
            close(got(holes), wanted(holes), tolerance, tolerance)


@every_tree
@pytest.mark.parametrize("activation", [*ACTIVATIONS.values(), Own()], ids=[*ACTIVATIONS, "own"])
def test_derivatives_of_conversions(tree, activation):
    """First and second, against differences; through probabilities the same, by the chain rule."""
    logits, direction = normal(2, tree.num_classes), normal(2, tree.num_classes, seed=1)

    def direct(x):
        return cj.scores_from_logits(x, tree, activation)

    def by_probs(x):
        return cj.scores_from_probs(jax.nn.softmax(x), tree, activation)

    gradients = []
    for function in (direct, by_probs):
        gradient = jax.jit(jax.grad(weighted(function)))
        gradients.append(gradient)
        step = 1e-5
        slope = (function(logits + step * direction) - function(logits - step * direction)) / (2 * step)
        wanted = (slope * weights(slope)).sum()
        close((gradient(logits) * direction).sum(), wanted, 1e-6, 1e-7)
        second = jax.jvp(gradient, (logits,), (direction,))[1]
        slope = (gradient(logits + step * direction) - gradient(logits - step * direction)) / (2 * step)
        close(second, slope, 1e-5, 1e-7)
    close(by_probs(logits), direct(logits), 1e-9, 1e-9)
    close(gradients[1](logits), gradients[0](logits), 1e-8, 1e-8)


@every_tree
def test_second_derivatives_where_all_sides_tie(tree):
    even, direction, step = jnp.zeros(tree.num_classes), normal(tree.num_classes), 1e-5
    gradient = jax.jit(jax.grad(weighted(lambda x: cj.scores_from_logits(x, tree, "sigmoid"))))
    slope = (gradient(even + step * direction) - gradient(even - step * direction)) / (2 * step)
    close(jax.jvp(gradient, (even,), (direction,))[1], slope, 1e-6, 1e-8)


@every_dtype
@every_activation
def test_conversions_in_every_dtype(activation, dtype):
    tree = TREES["huffman-20"]
    logits = normal(4, 20, dtype=dtype)
    wanted = jax.nn.softmax(logits.astype(float))
    for scores in (
        cj.scores_from_logits(logits, tree, activation),
        cj.scores_from_probs(wanted.astype(dtype), tree, activation),
    ):
        assert scores.dtype == dtype
        got = cj.catnat(scores.astype(float), tree, activation)
        close(got, wanted, 0, 8 * float(jnp.finfo(dtype).eps))


def test_the_default_tree_is_balanced():
    logits = normal(3, 11)
    np.testing.assert_array_equal(cj.scores_from_logits(logits), cj.scores_from_logits(logits, catnat.balanced(11)))
    assert cj.scores_from_logits(jnp.zeros((2, 1))).shape == (2, 0)
    assert cj.scores_from_probs(jnp.ones(1)).shape == (0,)


def test_a_certain_class_sits_at_the_edge():
    certain = jnp.array([0.0, 0.0, 1.0, 0.0])
    natural, sigmoid = (cj.scores_from_probs(certain, activation=kind) for kind in ("natural", "sigmoid"))
    close(natural, jnp.array([math.pi, 0.0, -math.pi]))
    assert sigmoid[1] == 0
    assert jnp.isfinite(sigmoid).all()
    close(cj.catnat(sigmoid, activation="sigmoid"), certain)
    own = cj.scores_from_probs(certain, activation=Own())
    assert jnp.isfinite(own).all()
    close(cj.catnat(own, activation=Own()), certain)


@pytest.mark.parametrize("num_classes", [2**20, 10**6])
def test_a_large_balanced_tree_is_a_small_program(num_classes):
    logits = jax.ShapeDtypeStruct((2, num_classes), jnp.float32)
    tree, activation = catnat.balanced(num_classes), cj.natural(boundary="reflect", scaling="isotropic")
    for kind in (activation, "sigmoid"):
        program = jax.jit(lambda x, kind=kind: cj.scores_from_logits(x, tree, kind)).lower(logits)
        assert len(program.as_text()) < 200_000


# ---- hostile inputs ----


def hostile(width: int, dtype, *more: float) -> jax.Array:
    """Rows of numbers that overflow, underflow or lie at an edge, alike and mixed."""
    limits = jnp.finfo(dtype)
    most = min(1e30, float(limits.max))
    special = [0.0, 1.0, -1.0, 50.0, -50.0, 1e4, -1e4, most, -most, limits.max, limits.min, limits.tiny, *more]
    special = np.array([float(x) for x in special])
    mixed = np.random.default_rng(0).choice(special, (60, width))
    flat = np.repeat(special[np.isfinite(special), None], width, 1)
    return jnp.asarray(np.concatenate([flat, mixed])).astype(dtype)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.float64], ids=lambda d: d.__name__)
@every_activation
def test_hostile_scores(activation, dtype):
    tree = TREES["huffman-20"]
    scores = hostile(19, dtype, math.pi, -math.pi, 3.1415925, 3.1416)
    functions = {
        "natural_gradient": lambda s: cj.log_catnat(
            cj.geometry.natural_gradient(s, tree, activation), tree, activation
        ),
        "distance": lambda s: cj.geometry.fisher_rao_distance(s, s[::-1], tree, activation),
    }
    for name, function in functions.items():
        for order, found in enumerate(first_and_second(function, scores)):
            if (name, order) != ("natural_gradient", 2):  # two factors of 1e19 and more may overflow
                assert jnp.isfinite(found).all(), (name, order)
    for kl in (1e-2, 1e-30, float(jnp.finfo(dtype).max) / 2):
        assert jnp.isfinite(cj.geometry.kl_step(scores, jnp.sign(scores), kl, tree, activation)).all(), kl
        assert jnp.isfinite(cj.geometry.kl_step(scores, scores, kl, tree, activation)).all(), kl


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.float64], ids=lambda d: d.__name__)
@every_tree
@every_activation
def test_hostile_logits(activation, tree, dtype):
    logits = hostile(tree.num_classes, dtype, -math.inf)
    few = jnp.where(jnp.asarray(np.random.default_rng(1).random((30, tree.num_classes))) < 0.9, -math.inf, logits[-30:])
    logits = jnp.concatenate([logits.at[:, 0].max(jnp.finfo(dtype).min), few.at[:, 0].set(1.0)])
    for order, found in enumerate(first_and_second(lambda x: cj.scores_from_logits(x, tree, activation), logits)):
        assert jnp.isfinite(found).all(), order


@every_dtype
def test_softmax_natural_gradient_of_hostile_logits(dtype):
    logits = hostile(9, dtype, -math.inf).at[:, 0].max(jnp.finfo(dtype).min)
    for damping in DAMPINGS:
        through = jax.vjp(lambda x, d=damping: cj.geometry.softmax_natural_gradient(x, damping=d), logits)
        np.testing.assert_array_equal(through[0], logits)
        assert jnp.isfinite(through[1](jnp.sign(logits) + 1)[0]).all()


@pytest.mark.expensive_compile
@every_tree
def test_probabilities_with_zeros_and_denormals(tree):
    for dtype in (jnp.float32, jnp.float64):
        limits = np.finfo(dtype)
        small = np.array([0.0, limits.smallest_subnormal, limits.tiny, 1e-20, 0.0, 0.3], dtype)
        probs = np.random.default_rng(0).choice(small, (20, tree.num_classes))
        probs[:, -1] += 1
        probs = jnp.asarray(probs / probs.sum(-1, keepdims=True))
        for activation in ACTIVATIONS.values():
            value, pull = jax.vjp(lambda p, a=activation: cj.scores_from_probs(p, tree, a), probs)
            assert jnp.isfinite(value).all()
            assert jnp.isfinite(pull(jnp.ones_like(value))[0]).all()


# ---- transforms ----

# Functions of (scores, logits, tree, activation).
FUNCTIONS = {
    "natural_gradient": lambda s, x, t, a: cj.log_catnat(cj.geometry.natural_gradient(s, t, a, damping=1e-3), t, a),
    "softmax_natural_gradient": lambda s, x, t, a: jax.nn.log_softmax(
        cj.geometry.softmax_natural_gradient(x, damping=1e-3)
    ),
    "kl_step": lambda s, x, t, a: cj.geometry.kl_step(s, jnp.sin(s), jnp.square(s).sum(-1) * 1e-3, t, a),
    "fisher_rao_distance": lambda s, x, t, a: cj.geometry.fisher_rao_distance(s, 0.9 * s, t, a),
    "scores_from_logits": lambda s, x, t, a: cj.scores_from_logits(x, t, a),
    "scores_from_probs": lambda s, x, t, a: cj.scores_from_probs(jax.nn.softmax(x), t, a),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize(
    ("name", "activation"),
    [("balanced-18", cj.natural()), ("chain-7", ACTIVATIONS["sigmoid-isotropic"]), ("huffman-20", Own())],
)
def test_jit_and_vmap(function, name, activation):
    tree = TREES[name]
    scores, logits = normal(4, tree.num_nodes) / 2, normal(4, tree.num_classes)

    def call(s, x):
        return function(s, x, tree, activation)

    wanted = call(scores, logits)
    close(jax.jit(call)(scores, logits), wanted, 1e-12)
    close(jax.vmap(call)(scores, logits), wanted, 1e-12)


# ---- errors ----


@pytest.mark.parametrize("damping", [-0.1, math.inf, math.nan])
def test_damping_is_a_finite_positive_number(damping):
    for function in (cj.geometry.natural_gradient, cj.geometry.softmax_natural_gradient):
        for given in (damping, jnp.array(damping)):
            with pytest.raises(ValueError, match=r"`damping` is .*at least 0"):
                function(jnp.zeros(3), damping=given)


def test_softmax_takes_floating_point_logits():
    with pytest.raises(TypeError, match=r"jnp\.asarray\(logits\)"):
        cj.geometry.softmax_natural_gradient([0.0, 1.0])
    for bad in (jnp.zeros(3, int), jnp.array(0.0)):
        with pytest.raises(TypeError, match="one logit per class"):
            cj.geometry.softmax_natural_gradient(bad)


def test_the_divergence_of_a_step_is_positive():
    scores = jnp.zeros((2, 3))
    for kl in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="`kl` is"):
            cj.geometry.kl_step(scores, scores, kl)
        with pytest.raises(ValueError, match="every row"):
            cj.geometry.kl_step(scores, scores, jnp.array([0.1, kl]))
    for kl in (jnp.ones(3), jnp.ones((2, 1))):
        with pytest.raises(ValueError, match=r"batch shape \(2,\)"):
            cj.geometry.kl_step(scores, scores, kl)
    with pytest.raises(ValueError, match=r"`gradient` has shape \(3,\)"):
        cj.geometry.kl_step(scores, jnp.zeros(3), 0.1)
    with pytest.raises(TypeError, match="gradient"):
        cj.geometry.kl_step(scores, None, 0.1)


def test_widths_of_conversions():
    for function, name in ((cj.scores_from_probs, "probs"), (cj.scores_from_logits, "logits")):
        with pytest.raises(ValueError, match=f"`{name}` has 4 entries.*5 classes.*not one per node"):
            function(jnp.full((2, 4), 0.25), catnat.balanced(5))
        with pytest.raises(TypeError, match=rf"jnp\.asarray\({name}\)"):
            function([0.5, 0.5])
        for bad in (jnp.ones((2, 3), int), jnp.array(1.0), jnp.ones((2, 0))):
            with pytest.raises(TypeError, match="one value per class"):
                function(bad)
        with pytest.raises(TypeError, match=r"catnat\.balanced\(2\)"):
            function(jnp.full(2, 0.5), "balanced")


def test_probabilities_are_probabilities():
    for bad in ([0.5, 0.6, -0.1], [0.5, math.nan, 0.5]):
        with pytest.raises(ValueError, match="negative number or NaN"):
            cj.scores_from_probs(jnp.array(bad))
    with pytest.raises(ValueError, match=r"sum to 1.*0\.5 away"):
        cj.scores_from_probs(jnp.array([[0.5, 0.5], [1.0, 0.5]]))
    cj.scores_from_probs(jax.nn.softmax(normal(5, 1000, dtype=jnp.float32)).astype(float))  # rounded elsewhere
    for bad in (math.inf, math.nan):
        with pytest.raises(ValueError, match=r"NaN or \+inf"):
            cj.scores_from_logits(jnp.array([0.0, bad]))


# ---- masks ----


@pytest.mark.expensive_compile
@every_activation
@pytest.mark.parametrize("name", ["balanced-18", "chain-7", "huffman-20"])
def test_masks_are_those_of_the_pruned_distribution(name, activation):
    """The natural gradient solves with the Fisher matrix after a mask, by definition; kl_step has its KL."""
    tree = TREES[name]
    valid = np.random.default_rng(1).random(tree.num_classes) < 0.4
    valid[:2] = True
    scores, mask, left = normal(tree.num_nodes) / 5, jnp.asarray(valid), np.flatnonzero(valid)

    def logs(s):
        return cj.Catnat(s, tree, activation, mask=mask).logits[left]

    def loss(s):
        return (normal(len(left), seed=3) * jnp.exp(logs(s))).sum()

    gradients, probs = jax.jacobian(logs)(scores), jnp.exp(logs(scores))
    fisher = np.einsum("k,ki,kj->ij", probs, gradients, gradients)
    plain = jax.grad(loss)(scores)
    got = jax.grad(lambda s: loss(cj.geometry.natural_gradient(s, tree, activation, mask=mask)))(scores)
    close(got, np.linalg.pinv(fisher, rcond=1e-12) @ np.asarray(plain), 1e-8, 1e-10)

    step = cj.geometry.kl_step(scores, plain, 1e-3, tree, activation, mask=mask)
    divergence = (probs * (logs(scores) - logs(scores + step))).sum()
    assert math.isclose(float(divergence), 1e-3, rel_tol=0.01)
    assert (step[np.diagonal(fisher) < 1e-14] == 0).all()
    assert step @ plain < 0
