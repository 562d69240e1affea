"""The natural gradient as a transformation of optax, for scores that are themselves the parameters.

If a network computes the scores, use :func:`catnat.jax.geometry.natural_gradient` inside the loss: it replaces the
gradient of the scores in the backward pass. A transformation receives only the gradient of the parameters.
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
from catnat.activations import resolve
from catnat.jax import Activation
from catnat.jax.functional import clamp_to_dtype
from catnat.jax.geometry import check_damping, natural_factor
from catnat.trees.builders import as_tree

__all__ = ["scale_by_fisher"]


def scale_by_fisher(
    tree: Tree | int | None = None, activation: Activation | str = "sigmoid", *, damping: float = 0.0
) -> optax.GradientTransformation:
    r"""Divide the gradient of scores by their Fisher information: natural gradient descent.

    .. math:: g_i \;\mapsto\; \frac{g_i}{G_{ii} + \text{damping}}

    Every parameter must be an array of scores, (..., K-1): tables of a policy, mixture weights, the scores of a graph.
    Apply another transformation to a model's other parameters, with ``optax.partition`` or ``optax.masked``. Saturated
    scores get 0. The result is the gradient of a loss of
    ``natural_gradient(scores, tree, activation, damping=damping)``.

    Args:
        tree: The tree of all scores, or the K of ``balanced(K)``; by default K is inferred from each parameter.
        activation: "sigmoid", "natural", or an activation object.
        damping: A number added to every Fisher entry. It bounds the factor by 1 / damping.

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
    shared = None if tree is None else as_tree(tree, 10)
    activation = resolve(activation)
    check_damping(damping)

    def scaled(gradient: Float[Array, "*batch nodes"] | None, scores: Float[Array, "*batch nodes"]) -> Array | None:
        if gradient is None:  # no array, such as an activation in a module of Equinox
            return None
        if gradient.shape != scores.shape:
            raise ValueError(
                f"A gradient has shape {gradient.shape}, but its scores have {scores.shape}: they must be the same. "
                "Pass the parameters that the gradients were taken of."
            )
        factor = natural_factor(scores, shared, activation, damping=damping)
        return clamp_to_dtype(factor * gradient.astype(factor.dtype), gradient.dtype)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if params is None:
            raise ValueError(
                "`params` is None, but scale_by_fisher needs the scores: optimizer.update(gradients, state, scores)."
            )
        return jax.tree.map(scaled, updates, params, is_leaf=lambda gradient: gradient is None), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)
