"""The natural gradient as a transformation of optax, for scores that are themselves the parameters.

Where scores come out of a network, the gradient to replace is that of the scores, in the backward pass to the weights:
use
:func:`catnat.jax.geometry.natural_gradient` inside the loss. A transformation sees only the gradient of the parameters.
"""

from __future__ import annotations

from typing import Any

try:
    import jax
    import optax  # type: ignore[import-untyped, import-not-found, unused-ignore]
except ImportError as error:
    raise ImportError('catnat.integrations.optax needs optax: pip install "catnat[optax]".') from error

from jax import Array
from jaxtyping import Float

from catnat import Tree
from catnat.jax import Activation, extend

__all__ = ["scale_by_fisher"]


def scale_by_fisher(
    tree: Tree | None = None, activation: Activation | str = "natural", *, damping: float = 0.0
) -> optax.GradientTransformation:
    r"""Divide the gradient of free scores by their Fisher information: natural gradient descent.

    .. math:: g_i \;\mapsto\; \frac{g_i}{G_{ii} + \text{damping}}

    Every parameter must be an array of scores, (..., K-1) on the last axis: tables of a policy, mixture weights, the
    scores of a graph. Give the other parameters of a model another transformation, by ``optax.partition`` or
    ``optax.masked``. Saturated scores get 0. The result is what a loss of
    ``natural_gradient(scores, tree, activation, damping=damping)`` would give.

    Args:
        tree: The tree of all scores; if not given, each parameter has a ``balanced`` one of its own width.
        activation: "natural", "sigmoid", or an activation object.
        damping: What is added to every Fisher entry. It bounds the factor by 1 / damping.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from catnat.integrations.optax import scale_by_fisher
        >>> from catnat.jax import log_prob
        >>> optimizer = optax.chain(scale_by_fisher(damping=1e-3), optax.scale(-0.1))
        >>> scores = jnp.zeros(3)
        >>> gradient = jax.grad(lambda s: -log_prob(s, jnp.array(0)))(scores)
        >>> updates, state = optimizer.update(gradient, optimizer.init(scores), scores)
        >>> print(updates.round(3))
        [-0.199 -0.397  0.   ]
    """
    if tree is not None and not isinstance(tree, Tree):
        extend.not_a_tree(tree)
    activation = extend.resolve_activation(activation)
    extend.check_damping(damping)

    def scaled(gradient: Float[Array, "*batch nodes"], scores: Float[Array, "*batch nodes"]) -> Array:
        if gradient.shape != scores.shape:
            raise ValueError(
                f"A gradient has shape {gradient.shape}, but its scores have {scores.shape}: they must be the same. "
                "Pass the parameters that the gradients were taken of."
            )
        factor = extend.natural_factor(extend.prepare(scores, tree, activation), damping)
        return extend.saturate(factor * gradient.astype(factor.dtype), gradient.dtype)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if params is None:
            raise ValueError(
                "`params` is None, but scale_by_fisher needs the scores: optimizer.update(gradients, state, scores)."
            )
        return jax.tree.map(scaled, updates, params), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)
