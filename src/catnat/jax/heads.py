"""Last layers for very many classes: a loss, draws and a search that read only the rows of the paths they need."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int, PRNGKeyArray
from numpy.typing import NDArray

from catnat import _checks
from catnat.activations import Activation
from catnat.jax import _options, _plan, _topk, _walk
from catnat.jax._plan import Plan
from catnat.jax._topk import TopK
from catnat.jax._walk import LazyScores
from catnat.jax.layers import RowPerNode
from catnat.trees.tree import Tree

__all__ = ["CatnatHead", "HeadOutput", "TopK"]


class HeadOutput(NamedTuple):
    """Log-probabilities and loss, as ``torch.nn.AdaptiveLogSoftmaxWithLoss`` gives them; see :class:`CatnatHead`."""

    output: Float[Array, "*batch"]
    """The log-probability of every target."""
    loss: Float[Array, ""]
    """The negative mean of ``output``, weighted by class and without ignored targets."""


_NEEDS_TARGET = (
    "A head is called with features and their targets, and returns log-probabilities and the loss. Without targets "
    "call distribution(input), log_probs(input), predict(input) or topk(input, k)."
)


class FixedArray:
    """An array that is not trained: static in a pytree, and compared by its content."""

    def __init__(self, values: Any) -> None:
        self.values = np.array(values)
        self._key = (self.values.shape, str(self.values.dtype), hashlib.sha256(self.values.tobytes()).digest())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.values.astype(dtype)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FixedArray) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


class CatnatHead(RowPerNode):
    r"""A last layer for very many classes, with the interface of ``torch.nn.AdaptiveLogSoftmaxWithLoss``.

    The score of node i is :math:`w_i \cdot x + b_i`. The loss of a target needs only the scores on its path. So a
    forward pass costs O(d log K) per example, as does a draw, where softmax costs O(d K). Gradients are arrays as
    large as the parameters.

    It is a pytree of its ``weight``, (K-1, in_features), and ``bias``, (K-1,), or None; all else is static. It starts
    near the tree's prior: for inputs of unit variance, scores have standard deviation 0.5.

    **Many devices** can share the rows. Inside ``jax.shard_map``, split the rows over an axis of the mesh, put the
    input on all of its devices, and give the axis to the loss as ``axis_name``. Every device computes the nodes whose
    rows it has, and one sum of B numbers over the axis gives the log-probabilities. In the backward pass one sum of B x
    d gives the gradient of the input. The other methods need all rows; under ``jit`` alone the compiler fetches them.

    Args:
        in_features: The size d of the input.
        classes: The number of classes, or the tree. ``huffman(counts)`` has the shortest paths.
        activation: "sigmoid", "natural", or an activation object.
        bias: Whether to add a bias.
        class_weights: A factor on the loss per class. It is static, so no optimizer can move it.
        ignore_index: A target that is ignored.
        dtype: The dtype of the parameters; JAX's default one if not given.
        key: The random key of the initial weights.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.jax import CatnatHead
        >>> head = CatnatHead(64, 100_000, key=jax.random.key(0))
        >>> features, target = jnp.ones((8, 64)), jnp.arange(8)
        >>> loss, gradient = jax.value_and_grad(lambda head: head(features, target).loss)(head)
        >>> gradient.weight.shape
        (99999, 64)
        >>> head.sample(features, key=jax.random.key(1)).shape
        (8,)

        Rows split over all devices:

        >>> from jax.sharding import AxisType, PartitionSpec as P
        >>> count = jax.device_count()
        >>> mesh = jax.make_mesh((count,), ("rows",), axis_types=(AxisType.Auto,))
        >>> @jax.jit
        ... @jax.shard_map(mesh=mesh, in_specs=(P("rows"), P(), P()), out_specs=P())
        ... def loss(head, features, target):
        ...     return head(features, target, axis_name="rows").loss
        >>> print(
        ...     jnp.isclose(
        ...         loss(head.padded(count), features, target), head(features, target).loss
        ...     )
        ... )
        True
    """

    class_weights: FixedArray | None
    ignore_index: int

    _static: ClassVar[tuple[str, ...]] = (*RowPerNode._static, "class_weights", "ignore_index")

    @_plan.takes_key
    def __init__(
        self,
        in_features: int,
        classes: int | Tree,
        activation: Activation | str = "sigmoid",
        bias: bool = True,
        *,
        class_weights: Float[Array, "classes"] | None = None,
        ignore_index: int = -100,
        dtype: Any = None,
        key: PRNGKeyArray,
    ) -> None:
        super().__init__(in_features, classes, activation, bias, dtype, key)
        if class_weights is not None:
            _checks.class_weights(class_weights.shape, "class_weights", self.tree.num_classes)
        self.class_weights = None if class_weights is None else FixedArray(class_weights)
        self.ignore_index = ignore_index

    def padded(self, multiple: int) -> CatnatHead:
        """Return the same head padded with rows of zeros, so that all devices hold equally many rows.

        Args:
            multiple: The number of devices that share the rows; the number of rows becomes a multiple of it.
        """
        if multiple < 1:
            raise ValueError(f"`multiple` is {multiple}, but a number of devices is needed, at least 1.")
        more = -len(self.weight) % multiple
        return jax.tree.map(lambda rows: jnp.pad(rows, [(0, more), *[(0, 0)] * (rows.ndim - 1)]), self)

    def state_dict(self) -> dict[str, Any]:
        """Return the parameters and class weights by name and, as ``_extra_state``, the tree and the activation."""
        state = super().state_dict()
        return state if self.class_weights is None else {**state, "class_weights": self.class_weights.values.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Return the head with the parameters and class weights of a :meth:`state_dict` of the same tree."""
        head = super().load_state_dict(state)
        if self.class_weights is not None:
            head.class_weights = FixedArray(np.asarray(state["class_weights"], self.class_weights.values.dtype))
        return head

    @_checks.needs(target=_NEEDS_TARGET)
    def __call__(
        self,
        input: Float[Array, "*batch features"],
        target: Int[Array, "*batch"],
        *,
        axis_name: str | None = None,
    ) -> HeadOutput:
        """Return the log-probability of every target, 0 for ignored ones, and the loss.

        Args:
            input: Features.
            target: The classes.
            axis_name: The axis of devices that share the rows, inside ``shard_map``.
        """
        scores, plan, dtype = self._prepare(input, axis_name)
        target = _plan.class_indices(target, "target")
        _checks.one_class_per_row(target.shape, input.shape)
        counts = target != self.ignore_index
        classes = _plan.existing_classes(jnp.where(counts, target, jnp.zeros_like(target)), self.tree.num_classes)
        found = jnp.where(counts, _path_log_prob(scores, classes, axis_name, plan), 0)  # also if features are NaN
        weights = counts.astype(found.dtype)
        if self.class_weights is not None:
            weights = weights * _plan.look_up(np.asarray(self.class_weights, found.dtype), classes)
        total = weights.sum()
        loss = -(found * weights).sum() / jnp.where(total == 0, 1, total)
        return HeadOutput(_plan.clamp_to_dtype(found, dtype), _plan.clamp_to_dtype(loss, dtype))

    def log_prob(self, input: Float[Array, "*batch features"]) -> Float[Array, "*batch classes"]:
        """Call :meth:`log_probs`; ``torch.nn.AdaptiveLogSoftmaxWithLoss`` has this name for it."""
        return self.log_probs(input)

    def loss(self, input: Float[Array, "*batch features"], target: Int[Array, "*batch"]) -> Float[Array, ""]:
        """Return only the loss, the mean negative log-probability of the targets."""
        loss: Array = self(input, target).loss
        return loss

    def log_prob_of(
        self,
        input: Float[Array, "*batch features"],
        classes: Int[Array, "*batch_and_more"],
        *,
        axis_name: str | None = None,
    ) -> Float[Array, "*batch_and_more"]:
        """Return the log-probability of classes, with the input's batch as leading axes; read only their paths.

        Args:
            input: Features.
            classes: The classes.
            axis_name: The axis of devices that share the rows, inside ``shard_map``.
        """
        scores, plan, dtype = self._prepare(input, axis_name)
        classes = _plan.existing_classes(classes, self.tree.num_classes)
        _checks.classes_of_rows(classes.shape, input.shape)
        return _plan.clamp_to_dtype(_path_log_prob(scores, classes, axis_name, plan), dtype)

    @_plan.takes_key
    def sample(
        self,
        input: Float[Array, "*batch features"],
        sample_shape: Sequence[int] = (),
        *,
        valid_classes: Int[Array, "*#batch some"] | None = None,
        key: PRNGKeyArray,
    ) -> Int[Array, "*samples_and_batch"]:
        """Draw classes by walking down from the root, reading only the rows on their paths.

        Args:
            input: Features.
            sample_shape: The shape of independent draws, which precedes the batch shape in the result.
            valid_classes: Draw only among these classes, conditioned on them, as with the mask of :class:`Catnat`:
                indices (..., m) for all rows or for each, padded with -1. Only their m paths are read. A draw's
                log-probability is its entry of ``jax.nn.log_softmax(head.log_prob_of(input, valid_classes))``.
            key: The random key.

        Example:
            >>> import jax, jax.numpy as jnp
            >>> from catnat.jax import CatnatHead
            >>> policy = CatnatHead(16, 100_000, key=jax.random.key(0))
            >>> moves = jnp.array([[7], [99_999]])
            >>> x, key = jnp.zeros((2, 16)), jax.random.key(1)
            >>> print(policy.sample(x, valid_classes=moves, key=key))
            [    7 99999]
        """
        scores, plan, _ = self._prepare(input)
        sample_shape = _checks.shape_of_samples(sample_shape)
        if valid_classes is None:
            return _walk.draw(scores, sample_shape, key, plan)
        among = _options.checked_indices(valid_classes, self.tree.num_classes)
        _checks.rows_of_indices(among.shape, input.shape)
        nothing = (among < 0).all(-1)
        if _plan.is_true(nothing.any()):
            _checks.no_valid_class(int(nothing.sum()))
        return _walk.draw_among(scores, _plan.expand(among, input.shape[:-1]), sample_shape, key, plan)

    def topk(self, input: Float[Array, "*batch features"], k: int, *, max_nodes: int | None = None) -> TopK:
        """Find the ``k`` most probable classes without computing all of them.

        The probability of reaching a node bounds the probability of every class below it, so subtrees can be skipped. A
        confident head reads few nodes; near the prior nearly all are read. The rows of a batch are searched in
        parallel, until the longest search ends.

        Args:
            input: Features.
            k: The number of classes.
            max_nodes: Stop the search, with the best classes found, when this many nodes of a row have been read. It
                always continues until k classes are found.
        """
        _checks.how_many(k, self.tree.num_classes)
        scores, plan, dtype = self._prepare(input)
        found = _topk.topk(scores, k, max_nodes, plan)
        return found._replace(values=_plan.clamp_to_dtype(found.values, dtype))

    def predict(self, input: Float[Array, "*batch features"]) -> Int[Array, "*batch"]:
        """Return the most probable class; see :meth:`topk`."""
        return self.topk(input, 1).indices[..., 0]

    def _prepare(self, input: Array, axis_name: str | None = None) -> tuple[LazyScores, Plan, Any]:
        """Return the scores, which are computed when read; their plan; the dtype of results."""
        input = self.checked(input, 1 if axis_name is None else lax.axis_size(axis_name))
        dtype = jnp.promote_types(input.dtype, self.weight.dtype)
        plan = Plan(self.tree, self.activation, jnp.promote_types(dtype, jnp.float32))
        first = 0 if axis_name is None else lax.axis_index(axis_name) * len(self.weight)
        return LazyScores(input, self.weight, self.bias, first), plan, dtype


@functools.partial(jax.jit, static_argnames=("axis_name", "plan"))
def _path_log_prob(scores: LazyScores, classes: Array, axis_name: str | None, plan: Plan) -> Array:
    """Return the log-probability of classes, batch or batch + any axes."""
    found = _walk.path_log_prob(scores.with_wide_rows(), classes, plan)
    return found if axis_name is None else lax.psum(found, axis_name)
