"""Layers as pytrees: scores to probabilities and log-probabilities, and the linear layer that makes scores."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from catnat._builders import balanced
from catnat._tree import Tree
from catnat.jax import _functional
from catnat.jax._activations import Activation, resolve

# Scaled scores of this size lie well inside the natural activation's band.
INITIAL_SCORE = 0.5


@dataclasses.dataclass(frozen=True)
class _Layer:
    tree: Tree | None = None
    activation: Activation | str = "natural"
    axis: int = -1

    def __post_init__(self) -> None:
        object.__setattr__(self, "activation", resolve(self.activation))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class ProbsLayer(_Layer):
    """Scores to probabilities, a layer without parameters; see :func:`catnat.jax.catnat`.

    Args:
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        axis: The axis of the nodes, which becomes the axis of the classes.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import ProbsLayer
        >>> print(ProbsLayer()(jnp.zeros((1, 3))).round(4))
        [[0.25 0.25 0.25 0.25]]
    """

    def __call__(self, scores: Float[Array, "..."]) -> Float[Array, "..."]:
        """The probability of every class."""
        return _functional.catnat(scores, self.tree, self.activation, axis=self.axis)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class LogProbsLayer(_Layer):
    """Scores to log-probabilities, a layer without parameters; see :func:`catnat.jax.log_catnat`.

    Args:
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        axis: The axis of the nodes, which becomes the axis of the classes.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import LogProbsLayer
        >>> print(LogProbsLayer()(jnp.zeros((1, 3))).round(4))
        [[-1.3863 -1.3863 -1.3863 -1.3863]]
    """

    def __call__(self, scores: Float[Array, "..."]) -> Float[Array, "..."]:
        """The log-probability of every class."""
        return _functional.log_catnat(scores, self.tree, self.activation, axis=self.axis)


@jax.tree_util.register_pytree_with_keys_class
class ScoreLayer:
    """The last linear layer of a model: features to the K-1 scores of a tree.

    It is a pytree of its ``weight``, (K-1, in_features), and ``bias``, (K-1,), or None; the tree and the activation are
    static. It starts near the tree's prior. For inputs of unit variance, scores times their scaling have standard
    deviation at most 0.5, well inside the natural activation's band; the bias starts at zero.

    Args:
        in_features: The size of the input.
        classes: The number of classes, or the tree.
        activation: The activation that the scores are meant for.
        bias: Whether to add a bias.
        dtype: The dtype of the parameters; JAX's default one if not given.
        key: The random key of the initial weights.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.jax import ScoreLayer
        >>> layer = ScoreLayer(128, 10, key=jax.random.key(0))
        >>> layer(jnp.zeros((2, 128))).shape
        (2, 9)
        >>> jax.tree.map(jnp.shape, layer).weight
        (9, 128)
    """

    weight: Float[Array, "nodes features"]
    bias: Float[Array, "nodes"] | None
    tree: Tree
    activation: Activation

    def __init__(
        self,
        in_features: int,
        classes: int | Tree,
        activation: Activation | str = "natural",
        bias: bool = True,
        dtype: Any = None,
        *,
        key: PRNGKeyArray,
    ) -> None:
        self.tree = classes if isinstance(classes, Tree) else balanced(classes)
        self.activation = resolve(activation)
        dtype = jax.dtypes.canonicalize_dtype(float if dtype is None else dtype)
        scale = np.broadcast_to(np.maximum(self.activation.scale(self.tree), 1), self.tree.num_nodes)
        deviation = INITIAL_SCORE / max(1, in_features) ** 0.5 / scale[:, None]
        self.weight = jax.random.normal(key, (self.tree.num_nodes, in_features), dtype) * deviation.astype(dtype)
        self.bias = jnp.zeros(self.tree.num_nodes, dtype) if bias else None

    def __call__(self, features: Float[Array, "*batch features"]) -> Float[Array, "*batch nodes"]:
        """The scores."""
        scores = features @ self.weight.T
        return scores if self.bias is None else scores + self.bias

    def __repr__(self) -> str:
        shape = getattr(self.weight, "shape", self.weight)  # a pytree may hold anything in place of its arrays
        return (
            f"ScoreLayer(weight={shape}, bias={self.bias is not None}, tree={self.tree}, activation={self.activation})"
        )

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], tuple[Tree, Activation]]:
        """The parameters, by name, and what is static."""
        names = ("weight", "bias")
        return tuple((jax.tree_util.GetAttrKey(n), getattr(self, n)) for n in names), (self.tree, self.activation)

    @classmethod
    def tree_unflatten(cls, static: tuple[Tree, Activation], parameters: tuple[Any, Any]) -> ScoreLayer:
        """The inverse; nothing is drawn or checked."""
        layer = cls.__new__(cls)
        layer.weight, layer.bias = parameters
        layer.tree, layer.activation = static
        return layer
