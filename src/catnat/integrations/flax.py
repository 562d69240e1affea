"""The last layers of :mod:`catnat.jax` as modules of flax's NNX, with ``nnx.Param`` parameters for its optimizers.

They contain no mathematics: every method calls that of the :mod:`catnat.jax` layer with the same weights. Arguments
that ``nnx.Linear`` has too have its names: ``in_features``, ``use_bias``, ``dtype``, ``param_dtype``, ``rngs``. (The
``dtype`` of :mod:`catnat.jax` is flax's ``param_dtype``.) Other arguments have the names of :mod:`catnat.jax`. The
parameters are ``weight`` and ``bias``, a row per node, as in both of catnat's backends; a ``kernel`` would be
transposed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

try:
    from flax import nnx
except ImportError as error:
    raise ImportError('catnat.integrations.flax needs flax: pip install "catnat[flax]".') from error

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

import catnat.jax as cj
from catnat import Tree
from catnat.jax.layers import explains, needs
from catnat.trees.saving import check_names, names

__all__ = ["CatnatHead", "CatnatLinear", "Fingerprint"]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


_NEEDS_RNGS = "The initial weights are drawn from it: rngs=nnx.Rngs(0), or the rngs that the model was given."
_OF_CATNAT_JAX = {
    "bias": "Flax calls it use_bias.",
    "key": "Flax passes keys in an nnx.Rngs: rngs=nnx.Rngs(0), or rngs=nnx.Rngs(params=key).",
}


class Fingerprint(nnx.Variable[Any]):
    """The names of a layer's tree and activation, as keys of its state: saved in checkpoints, not trained.

    A state contains arrays and no static attributes, so they do not identify the tree of its weights. This variable
    does, by the keys of a dict whose values are zeros. Keys are static while a function is compiled. So a layer with
    the state of another tree or activation raises when it is called, also inside ``nnx.jit``.

    A filter that lists types must include it: ``nnx.split(model, nnx.Param, ...)``, with flax's ``...`` for the rest.
    To load weights into another tree on purpose, load only the parameters:
    ``nnx.update(model, nnx.state(other, nnx.Param))``.

    Example:
        >>> from flax import nnx
        >>> from catnat.integrations.flax import CatnatLinear
        >>> list(CatnatLinear(8, 10, rngs=nnx.Rngs(0)).fingerprint.get_value())
        ['activation_sigmoid', 'tree_balanced_10']
    """


def _of(method: Callable[Concatenate[Any, Arguments], Result]) -> Callable[Concatenate[Any, Arguments], Result]:
    """Return a method of a :mod:`catnat.jax` layer for a module: called with the input cast and the same weights."""

    @functools.wraps(method)
    def call(self: Any, input: Array, *args: Any, **kwargs: Any) -> Any:
        return method(self.as_pytree(), self._cast(input), *args, **kwargs)

    return call  # type: ignore[return-value]


class _RowPerNode(nnx.Module):
    """Base class of both layers: parameters, static attributes, and the same layer in :mod:`catnat.jax`."""

    weight: nnx.Param[Any]
    bias: nnx.Param[Any] | None
    fingerprint: Fingerprint

    def __init__(self, in_features: int, layer: cj.CatnatLinear | cj.CatnatHead, dtype: Any) -> None:
        self.in_features = in_features
        self.static, self.dtype = layer.tree_flatten_with_keys()[1], dtype
        self.tree, self.activation = layer.tree, layer.activation
        self.weight = nnx.Param(layer.weight)
        self.bias = nnx.data(None) if layer.bias is None else nnx.Param(layer.bias)
        self.fingerprint = Fingerprint({name: jnp.zeros((), jnp.float32) for name in names(self.tree, self.activation)})

    def _parameters(self) -> tuple[Array, Array | None]:
        """Return the arrays in the computing dtype; raise if they belong to another tree or activation."""
        check_names(self.fingerprint.get_value(), self.tree, self.activation)
        weight, bias = self.weight[...], None if self.bias is None else self.bias[...]
        return self._cast(weight), None if bias is None else self._cast(bias)

    def _cast(self, values: Array) -> Array:
        return values if self.dtype is None else jnp.asarray(values, self.dtype)

    def as_pytree(self) -> Any:
        """Return the same layer in :mod:`catnat.jax`, with the same arrays, cast to ``dtype`` if given."""
        raise NotImplementedError

    scores = _of(cj.CatnatLinear.scores)
    log_probs = _of(cj.CatnatLinear.log_probs)
    distribution = _of(cj.CatnatLinear.distribution)  # type: ignore[arg-type]


class CatnatLinear(_RowPerNode):
    """The last layer of a model, in place of an ``nnx.Linear`` whose K outputs are logits.

    A module of flax's NNX with the methods of :class:`catnat.jax.CatnatLinear`. Called with features, it returns the K
    leaf log-probabilities, which can be used wherever logits are. Its state is ``weight``, (K-1, in_features), and
    ``bias``, (K-1,), as ``nnx.Param``, and a :class:`Fingerprint`; the tree and the activation are static.

    Args:
        in_features: The size of the input.
        classes: The number of classes, or the tree.
        activation: "sigmoid", "natural", or an activation object.
        use_bias: Whether to add a bias.
        dtype: The dtype of the scores; that of features and parameters if not given.
        param_dtype: The dtype of the parameters.
        rngs: The random streams; ``params`` gives the key of the initial weights.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from flax import nnx
        >>> from catnat.integrations.flax import CatnatLinear
        >>> model = nnx.Sequential(
        ...     nnx.Linear(4, 32, rngs=nnx.Rngs(0)),
        ...     nnx.relu,
        ...     CatnatLinear(32, 10, rngs=nnx.Rngs(1)),
        ... )
        >>> optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
        >>> model(jnp.zeros((2, 4))).shape
        (2, 10)
    """

    @needs(rngs=_NEEDS_RNGS)
    @explains(**_OF_CATNAT_JAX)
    def __init__(
        self,
        in_features: int,
        classes: int | Tree,
        activation: cj.Activation | str = "sigmoid",
        *,
        use_bias: bool = True,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        layer = cj.CatnatLinear(in_features, classes, activation, use_bias, param_dtype, key=_key(rngs))
        super().__init__(in_features, layer, dtype)

    def as_pytree(self) -> cj.CatnatLinear:
        """Return the same layer in :mod:`catnat.jax`, with the same arrays, cast to ``dtype`` if given."""
        return cj.CatnatLinear.tree_unflatten(self.static, self._parameters())

    __call__ = _of(cj.CatnatLinear.__call__)
    loss = _of(cj.CatnatLinear.loss)  # type: ignore[arg-type]


class CatnatHead(_RowPerNode):
    """A last layer for very many classes, whose loss and draws read only the rows of the paths they need.

    A module of flax's NNX with the methods of :class:`catnat.jax.CatnatHead` and the state of a :class:`CatnatLinear`.
    If devices share the rows by ``axis_name``, use ``head.as_pytree().padded(count)``.

    Args:
        in_features: The size of the input.
        classes: The number of classes, or the tree. ``huffman(counts)`` has the shortest paths.
        activation: "sigmoid", "natural", or an activation object.
        use_bias: Whether to add a bias.
        class_weights: A factor per class on the loss. It is static, so no optimizer can change it.
        ignore_index: A target that is ignored.
        dtype: The dtype of the scores; that of features and parameters if not given.
        param_dtype: The dtype of the parameters.
        rngs: The random streams; ``params`` gives the key of the initial weights.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax import nnx
        >>> from catnat.integrations.flax import CatnatHead
        >>> head = CatnatHead(64, 100_000, rngs=nnx.Rngs(0))
        >>> features, target = jnp.ones((8, 64)), jnp.arange(8)
        >>> loss, gradient = nnx.value_and_grad(lambda head: head(features, target).loss)(head)
        >>> gradient["weight"].shape
        (99999, 64)
        >>> head.sample(features, key=jax.random.key(1)).shape
        (8,)
    """

    @needs(rngs=_NEEDS_RNGS)
    @explains(**_OF_CATNAT_JAX)
    def __init__(
        self,
        in_features: int,
        classes: int | Tree,
        activation: cj.Activation | str = "sigmoid",
        *,
        use_bias: bool = True,
        class_weights: Float[Array, "classes"] | None = None,
        ignore_index: int = -100,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        options: dict[str, Any] = {"class_weights": class_weights, "ignore_index": ignore_index, "dtype": param_dtype}
        head = cj.CatnatHead(in_features, classes, activation, use_bias, **options, key=_key(rngs))
        super().__init__(in_features, head, dtype)

    def as_pytree(self) -> cj.CatnatHead:
        """Return the same head in :mod:`catnat.jax`, with the same arrays, cast to ``dtype`` if given."""
        return cj.CatnatHead.tree_unflatten(self.static, self._parameters())

    __call__ = _of(cj.CatnatHead.__call__)
    log_prob = _of(cj.CatnatHead.log_prob)
    loss = _of(cj.CatnatHead.loss)
    log_prob_of = _of(cj.CatnatHead.log_prob_of)
    sample = _of(cj.CatnatHead.sample)
    topk = _of(cj.CatnatHead.topk)
    predict = _of(cj.CatnatHead.predict)


def _key(rngs: Any) -> PRNGKeyArray:
    """Return the next key of the stream ``params``, from which flax's own layers draw their weights."""
    if not isinstance(rngs, nnx.Rngs):
        raise TypeError(f"`rngs` is {rngs!r}, but an nnx.Rngs is needed: rngs=nnx.Rngs(0), or nnx.Rngs(params=key).")
    key: PRNGKeyArray = rngs.params()
    return key
