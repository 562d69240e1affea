"""Layers as pytrees: scores to probabilities and log-probabilities, and the linear layer that makes scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from catnat import _checks
from catnat.activations import Activation, resolve
from catnat.jax import _inputs, functional
from catnat.jax.distributions import Catnat
from catnat.trees import saving
from catnat.trees.builders import balanced
from catnat.trees.tree import Tree

_Self = TypeVar("_Self", bound="OfRows")

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
        return functional.catnat(scores, self.tree, self.activation, axis=self.axis)


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
        return functional.log_catnat(scores, self.tree, self.activation, axis=self.axis)


class OfRows:
    """What layers with a row of weights per node have in common: pytrees of their parameters, with all else static."""

    weight: Float[Array, "nodes features"]
    bias: Float[Array, "nodes"] | None
    tree: Tree
    activation: Activation

    _parameters: ClassVar[tuple[str, ...]] = ("weight", "bias")
    _static: ClassVar[tuple[str, ...]] = ("tree", "activation")

    def __init_subclass__(cls) -> None:
        jax.tree_util.register_pytree_with_keys_class(cls)

    def __init__(
        self,
        in_features: int,
        classes: int | Tree,
        activation: Activation | str,
        bias: bool,
        dtype: Any,
        key: PRNGKeyArray,
    ) -> None:
        _checks.in_features(in_features)
        self.tree = classes if isinstance(classes, Tree) else balanced(classes)
        self.activation = resolve(activation)
        dtype = jax.dtypes.canonicalize_dtype(float if dtype is None else dtype)
        scale = np.broadcast_to(np.maximum(self.activation.scale(self.tree), 1), self.tree.num_nodes)
        deviation = INITIAL_SCORE / max(1, in_features) ** 0.5 / scale[:, None]
        self.weight = jax.random.normal(key, (self.tree.num_nodes, in_features), dtype) * deviation.astype(dtype)
        self.bias = jnp.zeros(self.tree.num_nodes, dtype) if bias else None

    def _scores(self, features: Array) -> Array:
        scores = features @ self.weight.T
        return scores if self.bias is None else scores + self.bias

    def __repr__(self) -> str:
        shape = getattr(self.weight, "shape", self.weight)  # a pytree may hold anything in place of its arrays
        has = f"weight={shape}, bias={self.bias is not None}, tree={self.tree}, activation={self.activation}"
        return f"{type(self).__name__}({has})"

    def state_dict(self) -> dict[str, Any]:
        """The parameters by name and, as ``_extra_state``, a fingerprint of tree and activation.

        These are the names of the PyTorch counterpart, so that one framework's weights can be loaded in the other.
        """
        parameters = {name: getattr(self, name) for name in self._parameters if getattr(self, name) is not None}
        return {**parameters, "_extra_state": saving.fingerprint(self.tree, self.activation)}

    def load_state_dict(self: _Self, state: Mapping[str, Any]) -> _Self:
        """The same layer with the parameters of a :meth:`state_dict`, which must be of the same tree and activation."""
        wanted = self.state_dict()
        saving.check_state(state, wanted, self.tree, self.activation)
        parameters = [
            jnp.asarray(state[name], wanted[name].dtype) if name in wanted else None for name in self._parameters
        ]
        return type(self).tree_unflatten(self.tree_flatten_with_keys()[1], parameters)

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], tuple[Any, ...]]:
        """The parameters, by name, and what is static."""
        parameters = tuple((jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in self._parameters)
        return parameters, tuple(getattr(self, name) for name in self._static)

    @classmethod
    def tree_unflatten(cls: type[_Self], static: Sequence[Any], parameters: Sequence[Any]) -> _Self:
        """The inverse; nothing is drawn or checked."""
        layer = cls.__new__(cls)
        for name, value in zip((*cls._parameters, *cls._static), (*parameters, *static), strict=True):
            setattr(layer, name, value)
        return layer


class ScoreLayer(OfRows):
    """The last linear layer of a model: features to the K-1 scores of a tree.

    The layer knows its tree and its activation, so take probabilities and losses from it rather than from its scores:
    ``distribution(x)``, ``log_probs(x)`` and ``loss(x, target)`` cannot be called with another tree by mistake.

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
        >>> print(layer.loss(jnp.zeros((2, 128)), jnp.array([3, 7])).round(4))
        2.3026
        >>> jax.tree.map(jnp.shape, layer).weight
        (9, 128)
    """

    @_inputs.takes_key
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
        super().__init__(in_features, classes, activation, bias, dtype, key)

    def __call__(self, features: Float[Array, "*batch features"]) -> Float[Array, "*batch nodes"]:
        """The scores."""
        features = _inputs.check_array(features, "features")
        _checks.width_of_features(features.shape, self.weight.shape[-1])
        return self._scores(features)

    def distribution(self, features: Float[Array, "*batch features"], **options: Any) -> Catnat:
        """The distribution over the classes; ``options`` are those of :class:`Catnat`, such as ``mask``."""
        return Catnat(self(features), self.tree, self.activation, **options)

    def log_probs(self, features: Float[Array, "*batch features"]) -> Float[Array, "*batch classes"]:
        """The log-probability of every class; see :func:`log_catnat`."""
        return functional.log_catnat(self(features), self.tree, self.activation)

    def loss(self, features: Float[Array, "*batch features"], target: Array, **options: Any) -> Float[Array, "..."]:
        """The cross-entropy of targets; ``options`` are those of :func:`cross_entropy`, such as ``reduction``.

        Args:
            features: The input.
            target: Class indices in the batch shape of the input, or class probabilities with K on a last axis more.
            **options: ``weight``, ``ignore_index``, ``reduction``, ``label_smoothing``.
        """
        return functional.cross_entropy(self(features), target, self.tree, self.activation, **options)
