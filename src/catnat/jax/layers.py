"""Last layers as pytrees: replacements of a linear layer whose outputs are logits."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from catnat import _checks
from catnat._checks import explains, needs
from catnat.activations import Activation, resolve
from catnat.jax import _plan, functional
from catnat.jax.distributions import Catnat
from catnat.trees import saving
from catnat.trees.builders import balanced
from catnat.trees.tree import Tree

__all__ = ["CatnatLinear", "RowPerNode", "explains", "needs"]

_Self = TypeVar("_Self", bound="RowPerNode")

# The standard deviation of initial scores, well inside the natural activation's band.
INITIAL_SCORE = 0.5


class RowPerNode:
    """Base class of layers with a row of weights per node: pytrees of their parameters, with all else static."""

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
        deviation = INITIAL_SCORE / max(1, in_features) ** 0.5
        self.weight = jax.random.normal(key, (self.tree.num_nodes, in_features), dtype) * deviation
        self.bias = jnp.zeros(self.tree.num_nodes, dtype) if bias else None

    def scores(self, input: Float[Array, "*batch features"]) -> Float[Array, "*batch nodes"]:
        """Return the scores of all nodes, O(d K)."""
        input = self.checked(input)
        scores = input @ self.weight.T
        return (scores if self.bias is None else scores + self.bias)[..., : self.tree.num_nodes]

    def log_probs(self, input: Float[Array, "*batch features"]) -> Float[Array, "*batch classes"]:
        """Return the log-probability of every class, O(d K); see :func:`log_catnat`."""
        return functional.log_catnat(self.scores(input), self.tree, self.activation)

    def distribution(self, input: Float[Array, "*batch features"], **options: Any) -> Catnat:
        """Return the distribution over all classes, O(d K), with ``options`` of :class:`Catnat` such as ``mask``."""
        return Catnat(self.scores(input), self.tree, self.activation, **options)

    def checked(self, input: Array, devices: int = 1) -> Array:
        """Return the input; raise if it does not fit, or if ``devices`` times the rows here are too few."""
        input = _plan.check_array(input, "input")
        held, in_features = self.weight.shape
        _checks.features(input.shape, input.dtype, jnp.issubdtype(input.dtype, jnp.floating), in_features)
        if held * devices < self.tree.num_nodes:
            raise ValueError(
                f"`weight` has {held} rows here, but the tree has {self.tree.num_nodes} nodes. Where devices share the "
                "rows, give the loss and log_prob_of their `axis_name`; the other methods need all rows."
            )
        return input

    def __repr__(self) -> str:
        shape = getattr(self.weight, "shape", self.weight)  # a pytree may hold anything in place of its arrays
        has = f"weight={shape}, bias={self.bias is not None}, tree={self.tree}, activation={self.activation}"
        return f"{type(self).__name__}({has})"

    def state_dict(self) -> dict[str, Any]:
        """Return the parameters by name and, as ``_extra_state``, a fingerprint of tree and activation.

        These are the names of the PyTorch counterpart, so that one framework's weights can be loaded in the other.
        """
        parameters = {name: getattr(self, name) for name in self._parameters if getattr(self, name) is not None}
        return {**parameters, "_extra_state": saving.fingerprint(self.tree, self.activation)}

    def load_state_dict(self: _Self, state: Mapping[str, Any]) -> _Self:
        """Return the layer with the parameters of a :meth:`state_dict`, whose tree and activation must be the same."""
        wanted = self.state_dict()
        saving.check_state(state, wanted, self.tree, self.activation)
        parameters = [
            jnp.asarray(state[name], wanted[name].dtype) if name in wanted else None for name in self._parameters
        ]
        return type(self).tree_unflatten(self.tree_flatten_with_keys()[1], parameters)

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], prefix: str = "", **options: Any) -> Self:
        """Build the layer from its state, with the tree and the activation that the state contains.

        Args:
            state: The ``state_dict()`` of a layer, or of a model that contains one.
            prefix: The prefix of the layer's entries in the state, such as ``"head."``.
            **options: Other arguments of the layer, such as ``ignore_index`` of a head.
        """
        part = saving.part_of_state(state, prefix)
        shape, dtype = np.shape(part["weight"]), jnp.asarray(part["weight"]).dtype
        tree, activation = saving.tree_and_activation(part["_extra_state"], shape)
        options |= {name: part[name] for name in ("class_weights",) if name in part}
        build = functools.partial(cls, shape[1], tree, activation, "bias" in part, dtype=dtype, **options)
        return jax.eval_shape(build, key=jax.random.key(0)).load_state_dict(part)  # only shapes: nothing is drawn

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], tuple[Any, ...]]:
        """Return the parameters by name, and the static attributes."""
        parameters = tuple((jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in self._parameters)
        return parameters, tuple(getattr(self, name) for name in self._static)

    @classmethod
    def tree_unflatten(cls: type[_Self], static: Sequence[Any], parameters: Sequence[Any]) -> _Self:
        """Rebuild the layer from its parameters and static attributes, without checks."""
        layer = cls.__new__(cls)
        for name, value in zip((*cls._parameters, *cls._static), (*parameters, *static), strict=True):
            setattr(layer, name, value)
        return layer


class CatnatLinear(RowPerNode):
    """The last layer of a model, instead of a linear layer whose K outputs are logits.

    Called with features, it returns the K leaf log-probabilities. ``log_softmax`` leaves them unchanged, so they can be
    used wherever logits are: in cross-entropies, ``argmax``, ``jax.random.categorical``. ``loss`` and ``distribution``
    give the same results and compute less.

    It is a pytree of its ``weight``, (K-1, in_features), and ``bias``, (K-1,), or None; the tree and the activation are
    static. It starts near the tree's prior: for inputs of unit variance, scores have standard deviation 0.5.

    Args:
        in_features: The size of the input.
        classes: The number of classes, or the tree.
        activation: "sigmoid", "natural", or an activation object.
        bias: Whether to add a bias.
        dtype: The dtype of the parameters; JAX's default one if not given.
        key: The random key of the initial weights.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.jax import CatnatLinear
        >>> layer = CatnatLinear(128, 10, key=jax.random.key(0))
        >>> features, target = jnp.zeros((2, 128)), jnp.array([3, 7])
        >>> layer(features).shape
        (2, 10)
        >>> print(layer.loss(features, target).round(4))
        2.3026
        >>> jax.tree.map(jnp.shape, layer).weight
        (9, 128)
    """

    @_plan.takes_key
    def __init__(
        self,
        in_features: int,
        classes: int | Tree,
        activation: Activation | str = "sigmoid",
        bias: bool = True,
        dtype: Any = None,
        *,
        key: PRNGKeyArray,
    ) -> None:
        super().__init__(in_features, classes, activation, bias, dtype, key)

    def __call__(self, input: Float[Array, "*batch features"]) -> Float[Array, "*batch classes"]:
        """Return the log-probability of every class, which can be used as logits."""
        return self.log_probs(input)

    def loss(self, input: Float[Array, "*batch features"], target: Array, **options: Any) -> Float[Array, "..."]:
        """Return the cross-entropy of targets; ``options`` are arguments of :func:`cross_entropy`.

        Args:
            input: Features.
            target: Class indices in the batch shape of the input, or class probabilities with a further axis of size K.
            **options: ``weight``, ``ignore_index``, ``reduction``, ``label_smoothing``.
        """
        return functional.cross_entropy(self.scores(input), target, self.tree, self.activation, **options)
