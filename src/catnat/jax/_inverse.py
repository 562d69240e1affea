"""From a distribution back to its scores: how a softmax model becomes a catnat model."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from catnat import _checks
from catnat.activations import Activation, Band, resolve
from catnat.jax import _constants, _dense, _inputs
from catnat.jax._kernels import kernel_for
from catnat.trees.tree import Tree


def scores_from_probs(
    probs: Float[Array, "*batch classes"], tree: Tree | None = None, activation: Activation | str = "natural"
) -> Float[Array, "*batch nodes"]:
    r"""The scores whose :func:`catnat` is ``probs``.

    .. math:: a(s_i) = \frac{\text{mass on the yes side of } i}{\text{mass below } i}

    A node below which all probabilities are 0 gets score 0. One that always takes the same branch gets the edge of its
    band with the natural activation, and with the sigmoid a large finite score. Probabilities too small for a normal
    number of their dtype count as 0. Differentiable where the scores are not at such a limit. An activation of your own
    is inverted in NumPy, by its ``inverse``, in compiled code too.

    Args:
        probs: Class probabilities on the last axis. They must sum to 1, up to the rounding of their dtype.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import catnat, scores_from_probs
        >>> scores = scores_from_probs(jnp.array([0.1, 0.2, 0.3, 0.4]))
        >>> print(catnat(scores).round(4))
        [0.1 0.2 0.3 0.4]
    """
    computed, tree, activation = _prepare(probs, "probs", tree, activation)
    _check_probs(computed, max(1e-5, math.sqrt(jnp.finfo(probs.dtype).eps)))
    positive = computed >= jnp.finfo(computed.dtype).tiny
    logs = jnp.where(positive, jnp.log(jnp.where(positive, computed, 1)), -math.inf)
    return _inputs.saturate(_scores(logs, tree, activation), _inputs.returned_dtype(probs))


def scores_from_logits(
    logits: Float[Array, "*batch classes"], tree: Tree | None = None, activation: Activation | str = "natural"
) -> Float[Array, "*batch nodes"]:
    r"""The scores whose :func:`catnat` is ``softmax(logits)``.

    .. math:: \log\frac{a(s_i)}{1 - a(s_i)} = \log \sum_{k \in \mathrm{yes}(i)} e^{l_k} - \log \sum_{k \in
        \mathrm{no}(i)} e^{l_k}

    All is computed with logarithms, so logits may be thousands apart. The limits are those of
    :func:`scores_from_probs`. The natural activation cannot tell probabilities of a branch below about the square of
    the dtype's epsilon from 0: with the sigmoid such classes keep their log-probability.

    Args:
        logits: One logit per class on the last axis, as softmax takes them; -inf for a class of probability 0.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.jax import catnat, scores_from_logits
        >>> logits = jnp.array([1.0, 0.0, 3.0])
        >>> bool(jnp.allclose(catnat(scores_from_logits(logits)), jax.nn.softmax(logits)))
        True
    """
    computed, tree, activation = _prepare(logits, "logits", tree, activation)
    if _inputs.is_true(~(computed < math.inf).all()):
        raise ValueError(
            "`logits` holds NaN or +inf, but finite logits are needed, or -inf for a class of probability 0."
        )
    return _inputs.saturate(_scores(computed, tree, activation), _inputs.returned_dtype(logits))


def _prepare(
    values: Array, name: str, tree: Tree | None, activation: Activation | str
) -> tuple[Array, Tree, Activation]:
    """Checked arguments: one value per class, in the dtype to compute in."""
    values = _inputs.check_array(values, name)
    if not jnp.issubdtype(values.dtype, jnp.floating) or values.ndim == 0 or values.shape[-1] == 0:
        raise TypeError(
            f"`{name}` has dtype {values.dtype} and shape {values.shape}, but a floating-point array with one value "
            "per class on its last axis is needed: (..., K)."
        )
    width = values.shape[-1]
    if tree is None:
        tree = _constants.default_tree(width - 1)
    elif not isinstance(tree, Tree):
        _checks.not_a_tree(tree, width)
    _checks.width_of_classes(width, name, tree.num_classes)
    return _inputs.to_computing_dtype(values), tree, resolve(activation)


def _check_probs(probs: Array, tolerance: float) -> None:
    if _inputs.is_true(~(probs >= 0).all()):
        raise ValueError("`probs` holds a negative number or NaN. If these are logits, use scores_from_logits.")
    error = jnp.abs(lax.stop_gradient(probs).sum(-1) - 1)
    if _inputs.is_true(~(error <= tolerance).all()):
        raise ValueError(
            f"`probs` must sum to 1 over the last axis, but a row is {float(error.max()):.2g} away from it. Divide by "
            "probs.sum(-1, keepdims=True), or use scores_from_logits if these are logits."
        )


@functools.partial(jax.jit, static_argnames=("tree", "activation"))
def _scores(logs: Array, tree: Tree, activation: Activation) -> Array:
    """The scores of the distribution proportional to ``exp(logs)``."""
    no, yes = _dense.log_masses(logs, tree)
    unreachable = jnp.isneginf(no) & jnp.isneginf(yes)
    logit = jnp.where(unreachable, 0, yes) - jnp.where(unreachable, 0, no)
    constants = _constants.node_constants(tree, activation, logs.dtype)
    if isinstance(constants, Band):
        found = _in_band(logit, constants)
    else:
        found = (_inverse(activation, logit) - constants.offset) / constants.scale
    return jnp.where(unreachable, 0, found)


def _in_band(logit: Array, band: Band) -> Array:
    """The score at which a natural activation has the log-odds ``logit``, measured from the nearer edge of its band."""
    below = logit < 0
    # Log-odds of the unlikely branch, which are those of sin^2 against cos^2: the exponential cannot overflow.
    distance = jnp.arctan(jnp.exp(jnp.where(below, logit, -logit) / 2)) / band.rate
    return jnp.where(below, band.lower + (band.lower_rest + distance), band.upper + (band.upper_rest - distance))


# One's own activation is inverted in NumPy: the slope of its logit gives the gradient.
@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _inverse(activation: Activation, logit: Array) -> Array:
    """The x at which the log-odds of yes are ``logit``, with a gradient for every activation."""
    return kernel_for(activation).inverse(logit)


@_inverse.defjvp
def _slope_of_inverse(activation: Activation, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (logit,), (tangent,) = primals, tangents
    x = _inverse(activation, logit)
    slope = jax.jvp(lambda x: activation.logit(x, jnp), (x,), (jnp.ones_like(x),))[1]
    moves = jnp.isfinite(logit) & (slope > 0)
    return x, jnp.where(moves, tangent, 0) / jnp.where(moves, slope, 1)
