"""The last layers of :mod:`catnat.jax` as modules of flax's NNX, whose optimizers train the ``nnx.Param`` they hold.

They hold no mathematics: every method is that of the layer there with the same weights. Arguments have
flax's names where ``nnx.Linear`` has one for the same thing (``in_features``, ``use_bias``, ``dtype``, ``param_dtype``,
``rngs``), because ``dtype`` alone means something else there, and those of :mod:`catnat.jax` otherwise. The parameters
are ``weight`` and ``bias``, a row per node, as in both of catnat's backends: a ``kernel`` would be its transpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    from flax import nnx
except ImportError as error:
    raise ImportError('catnat.integrations.flax needs flax: pip install "catnat[flax]".') from error

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray

import catnat.jax as cj
from catnat import Tree
from catnat.jax.layers import explains, needs
from catnat.trees.saving import check_names, names

__all__ = ["CatnatHead", "CatnatLinear", "Fingerprint"]


_NEEDS_RNGS = "The initial weights are drawn from it: rngs=nnx.Rngs(0), or the rngs that the model was given."
_OF_CATNAT_JAX = {
    "bias": "Flax calls it use_bias.",
    "key": "Flax hands keys over in an nnx.Rngs: rngs=nnx.Rngs(0), or rngs=nnx.Rngs(params=key).",
}


class Fingerprint(nnx.Variable[Any]):
    """The names of a layer's tree and activation, as keys of a state: no optimizer moves it, every checkpoint holds it.

    A state holds arrays and no static attributes, so that nothing in it would say which tree its weights belong to.
    This variable does, by the keys of a dict, whose values are zeros. Names are known while a function is compiled, so
    a layer whose state is of another tree or activation raises as soon as it is called, inside ``nnx.jit`` too.

    A filter of your own that lists types must let it pass: ``nnx.split(model, nnx.Param, ...)``, with flax's ``...``
    for all the rest. Where weights are to be taken over into another tree on purpose, load the parameters alone:
    ``nnx.update(model, nnx.state(other, nnx.Param))``.

    Example:
        >>> from flax import nnx
        >>> from catnat.integrations.flax import CatnatLinear
        >>> list(CatnatLinear(8, 10, rngs=nnx.Rngs(0)).fingerprint.get_value())
        ['activation_sigmoid', 'tree_balanced_10']
    """


class _RowPerNode(nnx.Module):
    """What both have in common: parameters, what is static, and the same layer in :mod:`catnat.jax`."""

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
        """The arrays in the dtype to compute in, if they belong to this tree and activation."""
        check_names(self.fingerprint.get_value(), self.tree, self.activation)
        weight, bias = self.weight[...], None if self.bias is None else self.bias[...]
        return self._cast(weight), None if bias is None else self._cast(bias)

    def _cast(self, values: Array) -> Array:
        return values if self.dtype is None else jnp.asarray(values, self.dtype)

    def as_pytree(self) -> Any:
        """The same layer in :mod:`catnat.jax`, with the same arrays."""
        raise NotImplementedError

    def scores(self, input: Float[Array, "*batch features"]) -> Float[Array, "*batch nodes"]:
        """The scores of all nodes, O(d K)."""
        return self.as_pytree().scores(self._cast(input))

    def log_probs(self, input: Float[Array, "*batch features"]) -> Float[Array, "*batch classes"]:
        """The log-probability of every class, O(d K)."""
        return self.as_pytree().log_probs(self._cast(input))

    def distribution(self, input: Float[Array, "*batch features"], **options: Any) -> cj.Catnat:
        """The distribution over all classes, with the options of :class:`catnat.jax.Catnat`, such as ``mask``."""
        return self.as_pytree().distribution(self._cast(input), **options)


class CatnatLinear(_RowPerNode):
    """The last layer of a model, in the place of an ``nnx.Linear`` with K outputs that are logits.

    The module of flax's NNX with the methods of :class:`catnat.jax.CatnatLinear`: called with features, it returns the
    K leaf log-probabilities, which are logits to whatever takes logits. Its state is ``weight``, (K-1, in_features),
    and ``bias``, (K-1,), as ``nnx.Param``, and a :class:`Fingerprint`; the tree and the activation are static.

    Args:
        in_features: The size of the input.
        classes: The number of classes, or the tree.
        activation: "sigmoid", "natural", or an activation object.
        use_bias: Whether to add a bias.
        dtype: The dtype to compute the scores in; that of features and parameters if not given.
        param_dtype: The dtype of the parameters.
        rngs: Where the key of the initial weights comes from: its stream ``params``.

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
        """The same layer in :mod:`catnat.jax`, with the same arrays."""
        return cj.CatnatLinear.tree_unflatten(self.static, self._parameters())

    def __call__(self, input: Float[Array, "*batch features"]) -> Float[Array, "*batch classes"]:
        """The log-probability of every class."""
        return self.log_probs(input)

    def loss(self, input: Float[Array, "*batch features"], target: Array, **options: Any) -> Float[Array, "..."]:
        """The cross-entropy, with the options of :func:`catnat.jax.cross_entropy`."""
        return self.as_pytree().loss(self._cast(input), target, **options)


class CatnatHead(_RowPerNode):
    """Features to a categorical variable of very many classes: the loss and draws read the rows of a path alone.

    The module of flax's NNX with the methods of :class:`catnat.jax.CatnatHead`, and the state of a
    :class:`CatnatLinear`. Where many devices share the rows by ``axis_name``, use ``head.as_pytree().padded(count)``.

    Args:
        in_features: The size of the input.
        classes: The number of classes, or the tree. ``huffman(counts)`` has the shortest paths.
        activation: "sigmoid", "natural", or an activation object.
        use_bias: Whether to add a bias.
        class_weights: A factor on the loss per class. It is static, so no optimizer can move it.
        ignore_index: A target that is ignored.
        dtype: The dtype of the scores; that of features and parameters if not given.
        param_dtype: The dtype of the parameters.
        rngs: Where the key of the initial weights comes from: its stream ``params``.

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
        """The same head in :mod:`catnat.jax`, with the same arrays."""
        return cj.CatnatHead.tree_unflatten(self.static, self._parameters())

    def __call__(self, input: Float[Array, "*batch features"], target: Int[Array, "*batch"]) -> cj.HeadOutput:
        """The log-probability of every target, 0 for ignored ones, and the loss."""
        return self.as_pytree()(self._cast(input), target)

    def log_prob(self, input: Float[Array, "*batch features"]) -> Float[Array, "*batch classes"]:
        """:meth:`log_probs`, under the other name that :class:`catnat.jax.CatnatHead` has for it."""
        return self.log_probs(input)

    def loss(self, input: Float[Array, "*batch features"], target: Int[Array, "*batch"]) -> Float[Array, ""]:
        """The loss of targets alone: the mean of their negative log-probabilities."""
        return self.as_pytree().loss(self._cast(input), target)

    def log_prob_of(
        self, input: Float[Array, "*batch features"], classes: Int[Array, "*batch_and_more"]
    ) -> Float[Array, "*batch_and_more"]:
        """The log-probability of given classes, whose leading axes are the input's batch; reads their paths alone."""
        return self.as_pytree().log_prob_of(self._cast(input), classes)

    def sample(
        self, input: Float[Array, "*batch features"], sample_shape: Sequence[int] = (), *, key: PRNGKeyArray
    ) -> Int[Array, "*samples_and_batch"]:
        """Draw classes by walking down from the root; a key comes from any stream, such as ``rngs.sample()``."""
        return self.as_pytree().sample(self._cast(input), sample_shape, key=key)

    def topk(self, input: Float[Array, "*batch features"], k: int, *, max_nodes: int | None = None) -> cj.TopK:
        """The ``k`` most probable classes, found by their paths; see :meth:`catnat.jax.CatnatHead.topk`."""
        return self.as_pytree().topk(self._cast(input), k, max_nodes=max_nodes)

    def predict(self, input: Float[Array, "*batch features"]) -> Int[Array, "*batch"]:
        """The most probable class; see :meth:`topk`."""
        return self.as_pytree().predict(self._cast(input))


def _key(rngs: Any) -> PRNGKeyArray:
    """The next key of the stream ``params``, from which flax's own layers draw their weights."""
    if not isinstance(rngs, nnx.Rngs):
        raise TypeError(f"`rngs` is {rngs!r}, but an nnx.Rngs is needed: rngs=nnx.Rngs(0), or nnx.Rngs(params=key).")
    key: PRNGKeyArray = rngs.params()
    return key
