"""The geometry of scores: Fisher information, natural gradients, steps of a given KL divergence and distances."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float

from catnat.activations import Activation, isotropic_scale
from catnat.jax import _branches, _dense, _plan
from catnat.jax._fused import log_probs
from catnat.jax._plan import Plan, clamp_to_dtype, prepare
from catnat.jax.functional import prepare_two
from catnat.trees.tree import Tree

__all__ = [
    "fisher_diagonal",
    "fisher_rao_distance",
    "isotropic_scale",
    "kl_step",
    "log_abs_det_jacobian",
    "natural_gradient",
    "reach",
    "saturated",
    "softmax_natural_gradient",
]

# The number of iterations in which kl_step corrects the length of its step.
_ROUNDS = 8

# ---- Fisher information ----


def reach(
    scores: Float[Array, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
) -> Float[Array, "*batch nodes"]:
    r"""Return the probability :math:`P(i)` of reaching each node, the sum of the probabilities of the leaves below it.

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural", or an activation object.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax.geometry import reach
        >>> print(reach(jnp.zeros(3)).round(4))
        [1.  0.5 0.5]
    """
    scores, plan, dtype = prepare(scores, tree, activation)
    return jnp.exp(_dense.log_reach(scores, plan)).astype(dtype)


def saturated(
    scores: Float[Array, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
) -> Bool[Array, "*batch nodes"]:
    """Return which nodes are saturated: one branch has probability 0, and a natural score then gets no gradient.

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural", or an activation object.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax.geometry import saturated
        >>> print(saturated(jnp.array([0.0, 4.0, -3.0]), activation="natural"))
        [False  True False]
    """
    scores, plan, _ = prepare(scores, tree, activation)
    return _branches.saturated(scores, plan)


def fisher_diagonal(
    scores: Float[Array, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
) -> Float[Array, "*batch nodes"]:
    r"""Return the diagonal of the Fisher information matrix of the scores; every other entry is zero.

    .. math:: G_{ii} = P(i)\,\frac{a'(s_i)^2}{a(s_i)(1 - a(s_i))}

    For the sigmoid that is :math:`P(i)\, a_i (1 - a_i)`, for the natural activation :math:`P(i)\, (\pi / A)^2` inside
    the band and 0 outside. This is the metric of the *scores*, not of the weights of a network behind them.

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural", or an activation object.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax.geometry import fisher_diagonal
        >>> print(fisher_diagonal(jnp.array([1.0, 0.0, 0.0]), activation="natural").round(4))
        [0.25   0.0651 0.1849]
    """
    scores, plan, dtype = prepare(scores, tree, activation)
    return clamp_to_dtype(_dense.information(scores, plan), dtype)


def log_abs_det_jacobian(
    scores: Float[Array, "*batch nodes"], tree: Tree | int | None = None, activation: Activation | str = "sigmoid"
) -> Float[Array, "*batch"]:
    r"""Return the finite log-determinant of the Jacobian of the first K-1 probabilities with respect to the scores.

    .. math:: \log |\det J| = \sum_i \log \bigl( P(i)\, a'(s_i) \bigr)

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax.geometry import log_abs_det_jacobian
        >>> print(jnp.exp(log_abs_det_jacobian(jnp.zeros(1))))  # the sigmoid's slope
        0.25
    """
    scores, plan, dtype = prepare(scores, tree, activation)
    return clamp_to_dtype(_log_det(scores, plan), dtype)


@functools.partial(jax.jit, static_argnames="plan")
def _log_det(scores: Array, plan: Plan) -> Array:
    (no, yes), (no_slope, yes_slope) = _branches.slopes(scores, plan)
    # a' = a (1 - a) times the slope of the log-odds. At a saturated node the slope is 0, and a (1 - a) is small enough.
    slope = yes_slope - no_slope
    moves = slope > 0
    log_slope = jnp.where(moves, jnp.log(jnp.where(moves, slope, 1)), 0)
    return (_dense.log_reach(scores, plan) + no + yes + log_slope).sum(-1)


# ---- natural gradients ----


def natural_gradient(
    scores: Float[Array, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
    *,
    damping: float = 0.0,
) -> Float[Array, "*batch nodes"]:
    r"""Return the scores unchanged; the backward pass replaces their gradient by the natural gradient.

    .. math:: g_i \;\mapsto\; \frac{g_i}{G_{ii} + \text{damping}}

    with :math:`G_{ii}` of :func:`fisher_diagonal`. Because the Fisher matrix is diagonal, this is its full inverse.
    Where :math:`G_{ii} = 0`, at a saturated node, the gradient is 0 for every damping, also the gradient of other parts
    of the loss. The factor is at most :math:`1 / \sqrt{\text{tiny}}`, 9e18 in float32, and constant in second
    derivatives.

    This is the natural gradient of the *scores*. The weights of a network get it through the chain rule, which does not
    give the natural gradient of the weights.

    Args:
        scores: One score per inner node on the last axis.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural", or an activation object.
        damping: A number added to every entry of the Fisher diagonal. It bounds the factor by 1 / damping.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.jax import log_prob
        >>> from catnat.jax.geometry import natural_gradient
        >>> print(
        ...     jax.grad(lambda s: log_prob(natural_gradient(s), jnp.array(0)))(
        ...         jnp.zeros(3)
        ...     ).round(4)
        ... )
        [-2. -4.  0.]
    """
    check_damping(damping)
    scores, plan, dtype = prepare(scores, tree, activation)
    constant = lax.stop_gradient(scores)
    return (constant + _natural_factor(scores, damping, plan) * (scores - constant)).astype(dtype)


def natural_factor(
    scores: Float[Array, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
    *,
    damping: float = 0.0,
) -> Float[Array, "*batch nodes"]:
    """Return the factor of every score's gradient in :func:`natural_gradient`, in the computing dtype."""
    scores, plan, _ = prepare(scores, tree, activation)
    return _natural_factor(scores, damping, plan)


@functools.partial(jax.jit, static_argnames="plan")
def _natural_factor(scores: Array, damping: float | Array, plan: Plan) -> Array:
    return _inverse(_dense.information(lax.stop_gradient(scores), plan), damping)


def softmax_natural_gradient(
    logits: Float[Array, "*batch classes"], *, damping: float = 0.0
) -> Float[Array, "*batch classes"]:
    r"""Return the logits unchanged; the backward pass replaces their gradient by softmax's natural gradient.

    This is the baseline for :func:`natural_gradient`: softmax has a natural gradient at O(K) cost too. Its Fisher
    matrix is :math:`F = \mathrm{diag}(p) - p p^T`. For a gradient that sums to zero, such as the gradient of any
    function of the probabilities,

    .. math:: (F + \text{damping}\, I)^{+} g = \frac{g - p\, c}{p + \text{damping}}, \qquad
        c = \frac{\sum_k g_k / (p_k + \text{damping})}{\sum_k p_k / (p_k + \text{damping})}

    Without damping this is :math:`g/p` minus its mean. If other parts of a loss depend on the sum of the logits,
    :math:`g - p \sum_k g_k` replaces :math:`g`: the gradient of that loss at normalized logits. Classes of probability
    0 are ignored and get gradient 0.

    Args:
        logits: One logit per class on the last axis; -inf is a class of probability 0.
        damping: A number added to the diagonal of the Fisher matrix.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.jax.geometry import softmax_natural_gradient
        >>> print(
        ...     jax.grad(lambda x: jax.nn.log_softmax(softmax_natural_gradient(x))[0])(
        ...         jnp.zeros(4)
        ...     )
        ... )
        [ 3. -1. -1. -1.]
    """
    check_damping(damping)
    logits = _plan.check_floating(logits, "logits", "logit per class", "K")
    return _with_softmax_natural_gradient(_plan.to_computing_dtype(logits), damping).astype(logits.dtype)


@jax.jit
def _with_softmax_natural_gradient(logits: Array, damping: float | Array) -> Array:
    constant = lax.stop_gradient(logits)
    p = jax.nn.softmax(constant)
    # The backward pass applies the transpose of this linear map, so the map is the transpose of the formula.
    possible = p > 0
    change = jnp.where(possible, logits, 0) - jnp.where(possible, constant, 0)
    inverse = _inverse(p, damping)
    weights = p * inverse
    mean = (weights * change).sum(-1, keepdims=True) / weights.sum(-1, keepdims=True)
    return constant + (change - mean) * inverse


def _inverse(fisher: Array, damping: float | Array) -> Array:
    """Return ``1 / (fisher + damping)``, bounded, and 0 where ``fisher`` is 0."""
    smallest = math.sqrt(jnp.finfo(fisher.dtype).tiny)
    return jnp.where(fisher > 0, 1 / jnp.maximum(fisher + damping, smallest), 0)


def check_damping(damping: float | Array) -> None:
    """Raise unless ``damping`` is finite and not negative; a traced value is not checked."""
    if not isinstance(damping, jax.core.Tracer) and not 0 <= float(damping) < math.inf:
        raise ValueError(f"`damping` is {damping}, but a finite number of at least 0 is needed.")


# ---- a step of a given length ----


def kl_step(
    scores: Float[Array, "*batch nodes"],
    gradient: Float[Array, "*batch nodes"],
    kl: float | Float[Array, "*batch"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
) -> Float[Array, "*batch nodes"]:
    r"""Return the step along the negative natural gradient that changes the distribution by a KL divergence of ``kl``.

    .. math:: \Delta_i = -t\, g_i / G_{ii}, \qquad KL(p_{s} \| p_{s + \Delta}) = \text{kl}

    Add it to the scores: it is the step of a trust region, row by row. The length :math:`t` starts at its second-order
    value :math:`\sqrt{2\,\text{kl} / \sum_i g_i^2 / G_{ii}}` and is corrected in a few rounds, up to four times that
    value. Only the direction of ``gradient`` matters. A row whose gradient is 0 at all unsaturated nodes gets a zero
    step. No gradient flows through this function.

    Up to kl = 0.001 the error of the divergence is at most 0.002%. Larger steps of the natural activation reach the
    edges of its bands. The divergence grows ever faster before an edge, and not at all beyond a clamped one: at kl =
    0.1 one row in twenty may miss it by much. In float32 its rounding error, about 1e-7, is the limit.

    Args:
        scores: One score per inner node on the last axis.
        gradient: The gradient of a loss in the scores, in their shape; not the natural gradient.
        kl: The divergence of the step, positive: a number, or one per row in the batch shape of ``scores``.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural", or an activation object.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import kl_divergence
        >>> from catnat.jax.geometry import kl_step
        >>> scores, gradient = jnp.zeros(3), jnp.array([1.0, -2.0, 0.5])
        >>> print(kl_divergence(scores, scores + kl_step(scores, gradient, 0.01)).round(4))
        0.01
    """
    scores, plan, dtype = prepare(scores, tree, activation)
    gradient = _plan.check_array(gradient, "gradient")
    if gradient.shape != scores.shape:
        raise ValueError(
            f"`gradient` has shape {gradient.shape}, but the shape of `scores` is needed, {scores.shape}: the "
            "gradient of a loss in the scores."
        )
    inputs = scores, gradient.astype(plan.dtype), _checked_kl(kl, scores)
    return clamp_to_dtype(_step(*map(lax.stop_gradient, inputs), plan), dtype)


@functools.partial(jax.jit, static_argnames="plan")
def _step(scores: Array, gradient: Array, wanted: Array, plan: Plan) -> Array:
    """Return :func:`kl_step` of prepared arguments, with one divergence per row."""
    if plan.tree.num_nodes == 0:
        return gradient
    limit = math.sqrt(jnp.finfo(gradient.dtype).max)
    wanted = jnp.minimum(wanted, limit)  # no two distributions are that far apart
    inverse = _natural_factor(scores, 0.0, plan)
    unsaturated = jnp.where(inverse == 0, 0, gradient)
    largest = jnp.abs(unsaturated).max(-1, keepdims=True)
    gradient = unsaturated / jnp.where(largest == 0, 1, largest)  # so that no square overflows or underflows
    natural = gradient * inverse
    square = (gradient * natural).sum(-1)
    first = jnp.minimum(jnp.sqrt(2 * wanted / jnp.where(square == 0, math.inf, square)), limit / 8)
    # A smaller divergence is mostly rounding error, and the length is then not changed.
    noise = 512 * float(jnp.finfo(gradient.dtype).eps)

    def correct(_: int, lengths: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        length, shortest, longest = lengths
        found = _dense.kl_divergence(scores, scores - length[..., None] * natural, plan)
        too_far = found > wanted
        shortest, longest = jnp.where(too_far, shortest, length), jnp.where(too_far, length, longest)
        guess = length * jnp.sqrt((wanted + noise) / (jnp.maximum(found, 0) + noise))
        # Go at most half of the way to a length that is too short or too long, because guesses jump near a band edge.
        return jnp.clip(guess, (length + shortest) / 2, (length + longest) / 2), shortest, longest

    length, _, _ = lax.fori_loop(0, _ROUNDS, correct, (first, jnp.zeros_like(first), 4 * first))
    return -length[..., None] * natural


def _checked_kl(kl: float | Array, scores: Array) -> Array:
    """Return ``kl``, checked, with one entry per row of ``scores``."""
    batch = scores.shape[:-1]
    if not isinstance(kl, (jax.Array, np.ndarray)):
        if not 0 < kl < math.inf:
            raise ValueError(f"`kl` is {kl}, but a positive, finite divergence is needed, such as 0.01.")
        return jnp.full(batch, kl, scores.dtype)
    if kl.shape not in ((), batch):
        raise ValueError(
            f"`kl` has shape {kl.shape}, but a number or one divergence per row is needed, the batch shape {batch} of "
            "`scores`."
        )
    wanted = jnp.asarray(kl, scores.dtype)
    if _plan.is_true(~((wanted > 0) & jnp.isfinite(wanted)).all()):
        raise ValueError("`kl` must be positive and finite in every row.")
    return jnp.broadcast_to(wanted, batch)


# ---- distance ----


def fisher_rao_distance(
    p_scores: Float[Array, "*batch nodes"],
    q_scores: Float[Array, "*batch nodes"],
    tree: Tree | int | None = None,
    activation: Activation | str = "sigmoid",
) -> Float[Array, "*batch"]:
    r"""Return the Fisher-Rao distance of two distributions: the length of the shortest path in the Fisher metric.

    .. math:: d(p, q) = 2 \arccos \sum_k \sqrt{p_k q_k} = 4 \arcsin \tfrac12 \lVert \sqrt p - \sqrt q \rVert

    Square roots of probabilities lie on a sphere, and this is twice the angle between them: 0 if p = q, and
    :math:`\pi` if no class is possible under both. For near distributions :math:`d^2 \approx \sum_i G_{ii} \Delta_i^2
    \approx 2\, KL`. It is the distance in the space of all distributions and does not depend on the tree. It is
    computed by the second form, which keeps its digits if p and q are close. The gradient at p = q is 0.

    Args:
        p_scores: Scores of one distribution.
        q_scores: Scores of the other distribution, broadcast against ``p_scores``.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural", or an activation object.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax.geometry import fisher_rao_distance
        >>> # |s - t| pi / A, A = 2 pi
        >>> p, q = jnp.array([-1.0]), jnp.array([0.5])
        >>> print(fisher_rao_distance(p, q, 2, "natural").round(4))
        0.75
    """
    p, q, plan, dtype = prepare_two(p_scores, q_scores, tree, activation)
    return _distance(p, q, plan).astype(dtype)


@functools.partial(jax.jit, static_argnames="plan")
def _distance(p: Array, q: Array, plan: Plan) -> Array:
    p_root, q_root = (jnp.exp(log_probs(scores, plan, floored=False) / 2) for scores in (p, q))
    square = jnp.square(p_root - q_root).sum(-1)
    # The second derivatives of a smaller distance would overflow: p and q are treated as equal.
    same = square <= float(jnp.finfo(square.dtype).tiny)
    distance = 4 * jnp.asin(jnp.sqrt(jnp.where(same, 1, square)) / 2)
    distance = distance + lax.stop_gradient(jnp.minimum(distance, math.pi) - distance)  # rounding may exceed pi
    return jnp.where(same, 0, distance)
