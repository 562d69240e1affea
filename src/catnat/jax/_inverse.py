"""Conversions from probabilities or logits to scores, for example to turn a softmax model into a catnat model."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float

from catnat import _checks
from catnat.activations import Activation, clip_to_open_unit, natural, resolve, sigmoid
from catnat.jax import _dense, _plan
from catnat.jax._plan import Plan
from catnat.trees.builders import as_tree
from catnat.trees.tree import Tree


def scores_from_probs(
    probs: Float[Array, "*batch classes"], tree: Tree | int | None = None, activation: Activation | str = "sigmoid"
) -> Float[Array, "*batch nodes"]:
    r"""Return the scores whose :func:`catnat` is ``probs``.

    .. math:: a(s_i) = \frac{\text{mass on the yes side of } i}{\text{mass below } i}

    A node gets score 0 if all probabilities below it are 0. If it always takes the same branch, it gets the edge of its
    band with the natural activation, and a large finite score with the sigmoid. Subnormal probabilities are treated as
    0. The result is differentiable where the scores are not at such a limit. A custom activation is inverted in NumPy,
    by its ``inverse``, in compiled code too.

    Args:
        probs: Class probabilities on the last axis. They must sum to 1, up to the rounding of their dtype.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from ``probs``.
        activation: "sigmoid", "natural", or an activation object.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import catnat, scores_from_probs
        >>> scores = scores_from_probs(jnp.array([0.1, 0.2, 0.3, 0.4]))
        >>> print(catnat(scores).round(4))
        [0.1 0.2 0.3 0.4]
    """
    computed, plan, dtype = _prepare(probs, "probs", tree, activation)
    _check_probs(computed, max(1e-5, math.sqrt(jnp.finfo(dtype).eps)))
    positive = computed >= jnp.finfo(computed.dtype).tiny
    logs = jnp.where(positive, jnp.log(jnp.where(positive, computed, 1)), -math.inf)
    return _plan.clamp_to_dtype(_scores(logs, plan), dtype)


def scores_from_logits(
    logits: Float[Array, "*batch classes"], tree: Tree | int | None = None, activation: Activation | str = "sigmoid"
) -> Float[Array, "*batch nodes"]:
    r"""Return the scores whose :func:`catnat` is ``softmax(logits)``.

    .. math:: \log\frac{a(s_i)}{1 - a(s_i)} = \log \sum_{k \in \mathrm{yes}(i)} e^{l_k} - \log \sum_{k \in
        \mathrm{no}(i)} e^{l_k}

    The computation uses logarithms, so logits may be thousands apart. The limits of :func:`scores_from_probs` apply.
    With the natural activation, a branch probability below about the square of the dtype's epsilon becomes 0; with the
    sigmoid such classes keep their log-probability.

    Args:
        logits: One logit per class on the last axis, as for softmax; -inf for a class of probability 0.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from ``logits``.
        activation: "sigmoid", "natural", or an activation object.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.jax import catnat, scores_from_logits
        >>> logits = jnp.array([1.0, 0.0, 3.0])
        >>> bool(jnp.allclose(catnat(scores_from_logits(logits)), jax.nn.softmax(logits)))
        True
    """
    computed, plan, dtype = _prepare(logits, "logits", tree, activation)
    if _plan.is_true(~(computed < math.inf).all()):
        raise ValueError(
            "`logits` holds NaN or +inf, but finite logits are needed, or -inf for a class of probability 0."
        )
    return _plan.clamp_to_dtype(_scores(computed, plan), dtype)


def _prepare(
    values: Array, name: str, tree: Tree | int | None, activation: Activation | str
) -> tuple[Array, Plan, Any]:
    """Return checked values, one per class, in the computing dtype; their plan; the dtype of the result."""
    values = _plan.check_floating(values, name, "value per class", "K")
    width = values.shape[-1]
    tree = as_tree(tree, width)
    _checks.width_of_classes(width, name, tree.num_classes)
    computed = _plan.to_computing_dtype(values)
    return computed, Plan(tree, resolve(activation), computed.dtype), values.dtype


def _check_probs(probs: Array, tolerance: float) -> None:
    if _plan.is_true(~(probs >= 0).all()):
        raise ValueError("`probs` holds a negative number or NaN. If these are logits, use scores_from_logits.")
    error = jnp.abs(lax.stop_gradient(probs).sum(-1) - 1)
    if _plan.is_true(~(error <= tolerance).all()):
        raise ValueError(
            f"`probs` must sum to 1 over the last axis, but a row is {float(error.max()):.2g} away from it. Divide by "
            "probs.sum(-1, keepdims=True), or use scores_from_logits if these are logits."
        )


@functools.partial(jax.jit, static_argnames="plan")
def _scores(logs: Array, plan: Plan) -> Array:
    """Return the scores of the distribution proportional to ``exp(logs)``."""
    no, yes = _dense.log_masses(logs, plan.tree)
    unreachable = jnp.isneginf(no) & jnp.isneginf(yes)
    logit = jnp.where(unreachable, 0, yes) - jnp.where(unreachable, 0, no)
    if isinstance(plan.activation, natural) and plan.is_natural:
        found = _in_band(logit, plan.activation.width, *plan.constants())
    else:
        (offset,) = plan.constants()
        found = _inverse(plan.activation, logit) - offset
    return jnp.where(unreachable, 0, found)


def _in_band(logit: Array, width: float, lower: Any, lower_rest: Any, upper: Any, upper_rest: Any) -> Array:
    """Return the score at which the natural activation has log-odds ``logit``, measured from the nearer edge."""
    below = logit < 0
    # The log-odds of the unlikely branch, log(sin^2 / cos^2), are at most 0: the exponential cannot overflow.
    distance = jnp.arctan(jnp.exp(jnp.where(below, logit, -logit) / 2)) * (2 * width / math.pi)
    return jnp.where(below, lower + (lower_rest + distance), upper + (upper_rest - distance))


# A custom activation is inverted in NumPy, and the slope of its logit gives the gradient.
@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _inverse(activation: Activation, logit: Array) -> Array:
    """Return the x at which the log-odds of yes are ``logit``; differentiable for every activation."""
    if type(activation) is sigmoid:
        limit = -math.log(jnp.finfo(logit.dtype).tiny)
        return jnp.where(jnp.isinf(logit), jnp.sign(logit) * limit, logit)

    def in_numpy(logit: Any) -> Any:
        yes = 1 / (1 + np.exp(-np.clip(np.asarray(logit, dtype=np.float64), -700, 700)))
        return activation.inverse(clip_to_open_unit(yes)).astype(shape.dtype)

    shape = jax.ShapeDtypeStruct(logit.shape, logit.dtype)
    return jax.pure_callback(in_numpy, shape, logit, vmap_method="expand_dims")


@_inverse.defjvp
def _slope_of_inverse(activation: Activation, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (logit,), (tangent,) = primals, tangents
    x = _inverse(activation, logit)
    slope = jax.jvp(lambda x: activation.logit(x, jnp), (x,), (jnp.ones_like(x),))[1]
    moves = jnp.isfinite(logit) & (slope > 0)
    return x, jnp.where(moves, tangent, 0) / jnp.where(moves, slope, 1)
