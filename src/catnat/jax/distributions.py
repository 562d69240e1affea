"""Distributions: the categorical family, parameterized by scores on a tree, as pytrees.

The arrays of a distribution are its leaves; the tree, the activation and the other options are static. So it goes in
and out of ``jit``, ``vmap`` and ``scan``. Names are those of the PyTorch counterpart, which NumPyro and Distrax mostly
share; draws take ``sample_shape`` and a ``key``. ``probs``, ``logits`` and ``mode`` compute all classes whenever they
are needed; a compiler does so once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int, PRNGKeyArray, Shaped

from catnat import _checks
from catnat.activations import Activation
from catnat.jax import _dense, _inputs, _leaves, _masks, functional
from catnat.jax._leaves import Leaves
from catnat.jax._nodes import Nodes, prepare
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree

_Self = TypeVar("_Self", bound="OfScores")

# Frozen, with a constructor that checks. It is not run when a transformation takes a pytree apart and rebuilds it.
as_data = functools.partial(dataclasses.dataclass, frozen=True, eq=False, init=False)


class OfScores:
    """What all distributions have in common: frozen data, pytrees, and leaves that all is read from."""

    scores: Array
    activation: Activation
    mask: Array | None
    mask_mode: str
    temperature: Array | None
    unimix: float

    # The leaves of the pytree, each with its number of axes behind the batch.
    _arrays: ClassVar[dict[str, int]] = {"scores": 1, "mask": 1, "temperature": 0}

    def __init_subclass__(cls) -> None:
        jax.tree_util.register_pytree_with_keys(cls, _flatten_with_keys, functools.partial(_unflatten, cls), _flatten)

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def _trees(self) -> Tree | Forest:
        """The tree, or the forest."""
        raise NotImplementedError

    @property
    def _leaves(self) -> Leaves:
        nodes = Nodes(_inputs.to_computing_dtype(self.scores), self._trees, self.activation)
        return _leaves.from_fields(nodes, self.mask, self.mask_mode, self._leaf_temperature, self.unimix)

    @property
    def _leaf_temperature(self) -> Array | None:
        """The temperature of the classes."""
        return self.temperature

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape of independent variables."""
        return self.scores.shape[:-1]

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of one value."""
        return ()

    @property
    def num_classes(self) -> int:
        """The number of classes; of all variables together if there are several."""
        return self._trees.num_classes

    @property
    def probs(self) -> Float[Array, "*batch classes"]:
        """The probability of every class, O(K)."""
        return self._leaves.probs().astype(self.scores.dtype)

    @property
    def logits(self) -> Float[Array, "*batch classes"]:
        """The log-probability of every class, O(K); finite."""
        return _inputs.saturate(self._leaves.leaf_log_probs(), self.scores.dtype)

    def expand(self: _Self, batch_shape: Sequence[int]) -> _Self:
        """The same distribution with its batch shape expanded."""
        arrays, static = _flatten(self)

        def widen(values: Array, axes: int) -> Array:
            return jnp.broadcast_to(values, (*batch_shape, *values.shape[values.ndim - axes :]))

        axes = self._arrays.values()
        wide = [None if each is None else widen(each, count) for each, count in zip(arrays, axes, strict=True)]
        return _unflatten(type(self), static, wide)


def _flatten(distribution: OfScores) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The arrays, and what is static."""
    kind = type(distribution)
    arrays, static = ([getattr(distribution, name) for name in names] for names in (kind._arrays, _static(kind)))
    return tuple(arrays), tuple(static)


def _flatten_with_keys(distribution: OfScores) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    arrays, static = _flatten(distribution)
    return tuple(zip(map(jax.tree_util.GetAttrKey, distribution._arrays), arrays, strict=True)), static


def _unflatten(kind: type[_Self], static: Sequence[Any], arrays: Sequence[Any]) -> _Self:
    new = object.__new__(kind)
    new._set(**dict(zip(kind._arrays, arrays, strict=True)), **dict(zip(_static(kind), static, strict=True)))
    return new


def _static(kind: type[OfScores]) -> list[str]:
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    return [field.name for field in fields if field.name not in kind._arrays]


class OfClasses(OfScores):
    """What the distributions of classes, as opposed to points between them, have in common."""

    @property
    def mode(self) -> Shaped[Array, "..."]:
        """The most probable value."""
        return self._leaves.mode()

    @_inputs.takes_key
    def sample(self, sample_shape: Sequence[int] = (), *, key: PRNGKeyArray) -> Shaped[Array, "..."]:
        """Draw values, sample shape + batch shape + event shape; see :func:`catnat.jax.sample`.

        Scores are not checked: one that is NaN takes the branch no, or, where there is a mask, read as 0, so that no
        masked class is drawn.
        """
        return self._leaves.draw(_checks.shape_of_samples(sample_shape), key)

    def rsample(self, sample_shape: Sequence[int] = (), *, key: PRNGKeyArray) -> Array:
        """Classes have no derivative: this raises, and says what there is instead."""
        _checks.no_rsample(self)

    def log_prob(self, value: Shaped[Array, "..."]) -> Float[Array, "*samples_and_batch"]:
        """The log-probability of ``value``; axes of samples may stand before the batch."""
        return _inputs.saturate(self._leaves.log_prob(self._classes(value)), self.scores.dtype)

    def _classes(self, value: Array) -> Array:
        """The classes that a value stands for, which exist."""
        return functional.check_classes(value, self.num_classes)

    def entropy(self) -> Float[Array, "*batch"]:
        """The entropy in nats."""
        return _inputs.saturate(self._leaves.entropy(), self.scores.dtype)

    def kl_divergence(self, other: OfClasses) -> Float[Array, "*batch"]:
        """The divergence KL(self || other) from another distribution of the same values.

        By the chain rule on a common tree, otherwise over all classes. It is infinite where only the other's mask
        forbids what this one can take, and finite everywhere else.
        """
        if not isinstance(other, OfClasses):
            raise TypeError(f"`other` is a {type(other).__name__}, but a distribution of catnat.jax is needed.")
        mine, others = self._shape_of_values, other._shape_of_values
        if mine != others:
            raise ValueError(f"`other` has values of {others}, but those of {mine} are needed: they must be the same.")
        divergence = self._leaves.kl_divergence(other._leaves)
        dtype = jnp.promote_types(self.scores.dtype, other.scores.dtype)
        return jnp.where(jnp.isinf(divergence), divergence.astype(dtype), _inputs.saturate(divergence, dtype))

    @property
    def _shape_of_values(self) -> str:
        trees = self._trees
        classes = trees.sizes if isinstance(trees, Forest) else trees.num_classes
        return f"{classes} classes and shape {self.event_shape}"

    def fisher_diagonal(self) -> Float[Array, "*batch nodes"]:
        """The diagonal of the Fisher matrix of the scores; see :func:`catnat.jax.geometry.fisher_diagonal`.

        It exists for the distribution of a tree, pruned or not. A mixture, a temperature and a renormalized
        distribution have full Fisher matrices, for which this raises.
        """
        return _inputs.saturate(self._leaves.fisher_diagonal(), self.scores.dtype)


@as_data
class _OfOneTree(OfScores):
    """What distributions on one tree are made from."""

    scores: Float[Array, "*batch nodes"]
    tree: Tree
    activation: Activation
    mask: Bool[Array, "*batch classes"] | None
    mask_mode: str
    temperature: Float[Array, "*batch"] | None
    unimix: float

    @_checks.explains(**_checks.NOT_SCORES)
    def __init__(
        self,
        scores: Float[Array, "*batch nodes"],
        tree: Tree | None = None,
        activation: Activation | str = "natural",
        *,
        num_classes: int | None = None,
        mask: Bool[Array, "*#batch classes"] | None = None,
        valid_classes: Int[Array, "*#batch some"] | None = None,
        mask_mode: Literal["renormalize", "prune"] = "renormalize",
        temperature: float | Float[Array, "*#batch"] | None = 1.0,
        unimix: float = 0.0,
    ) -> None:
        nodes = prepare(scores, tree, activation, num_classes)
        self._set(**_checked(scores, nodes, mask, valid_classes, mask_mode, temperature, unimix))

    @property
    def _trees(self) -> Tree:
        return self.tree


def _checked(
    scores: Array,
    nodes: Nodes,
    mask: Array | None,
    valid_classes: Array | None,
    mask_mode: str,
    temperature: float | Array | None,
    unimix: float,
) -> dict[str, Any]:
    """The fields of a distribution on one tree."""
    mask = _masks.given(mask, valid_classes, nodes.tree.num_classes)
    return {"tree": nodes.tree, **fields_of(scores, nodes, mask, mask_mode, temperature, unimix)}


def fields_of(
    scores: Array,
    nodes: Nodes,
    mask: Array | None,
    mask_mode: str,
    temperature: float | Array | None,
    unimix: float,
) -> dict[str, Any]:
    """The fields of a distribution but for its tree or forest; ``scores`` keep their dtype."""
    nodes, valid, tau = _leaves.checked(nodes, mask, mask_mode, temperature, unimix)
    wide = jnp.broadcast_to(jnp.asarray(scores), nodes.scores.shape)
    options = {"mask_mode": mask_mode, "temperature": tau, "unimix": float(unimix)}
    return {"scores": wide, "activation": nodes.activation, "mask": valid, **options}


class Catnat(OfClasses, _OfOneTree):
    r"""A categorical distribution over the leaves of a tree.

    ``log_prob`` and ``sample`` read only the paths they need. ``logits`` are the leaf log-probabilities, which
    ``log_softmax`` leaves unchanged, so any code that wants logits works with them. A distribution is a pytree of its
    arrays: it can be passed to compiled functions, mapped over its batch, and carried through a scan.

    Args:
        scores: One score per inner node on the last axis, K-1 for K classes.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.
        mask: The valid classes, boolean (..., K); its leading axes and the batch of the scores are broadcast. A masked
            class has probability 0, the smallest finite number as its
            log-probability, no gradient, and is never drawn. A row that leaves no class raises; where values are not
            known, under ``jit`` and ``vmap``, it counts as unmasked: see :func:`validate_mask`.
        valid_classes: The mask as indices (..., m) of the valid classes, padded with -1.
        mask_mode: What a mask makes of the distribution. "renormalize": the probabilities without the mask, divided by
            their sum over the valid classes, O(K); the conditional distribution, as masked logits give it. "prune": a
            node of which one side is masked is passed over; what is left is a tree again, its Fisher matrix is
            diagonal, draws are O(depth), and zero scores mean the prior over the valid classes.
        temperature: The distribution is p^(1/T) / Z, O(K); a number, or an array of the batch shape. None is 1.
        unimix: The weight u of the uniform distribution over the valid classes, (1 - u) p + u / K, after the
            temperature.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.jax import Catnat
        >>> policy = Catnat(jnp.zeros((5, 17)))  # 18 actions
        >>> action = policy.sample(key=jax.random.key(0))
        >>> print(jnp.exp(policy.log_prob(action)).round(4))
        [0.0556 0.0556 0.0556 0.0556 0.0556]
        >>> print(Catnat(jnp.zeros(2), mask=jnp.array([True, False, True])).probs.round(4))
        [0.5 0.  0.5]
    """


class OneHotCatnat(OfClasses, _OfOneTree):
    """The one-hot counterpart of :class:`Catnat`: its values are one-hot vectors.

    Args:
        scores: One score per inner node on the last axis, K-1 for K classes.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.
        mask: The valid classes, as for :class:`Catnat`.
        valid_classes: The mask as indices, as for :class:`Catnat`.
        mask_mode: "renormalize" or "prune", as for :class:`Catnat`.
        temperature: The distribution is p^(1/T) / Z, as for :class:`Catnat`; this relaxes nothing.
        unimix: The fraction of the uniform distribution, as for :class:`Catnat`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.jax import OneHotCatnat
        >>> print(OneHotCatnat(jnp.zeros((6, 3))).sample(key=jax.random.key(0)).sum(-1))
        [1. 1. 1. 1. 1. 1.]
    """

    @property
    def event_shape(self) -> tuple[int, ...]:
        """One entry per class."""
        return (self.num_classes,)

    @property
    def mean(self) -> Float[Array, "*batch classes"]:
        """The probabilities."""
        return self.probs

    @property
    def variance(self) -> Float[Array, "*batch classes"]:
        """That of every entry, p (1 - p)."""
        probs = self.probs
        return probs * (1 - probs)

    @property
    def mode(self) -> Float[Array, "*batch classes"]:
        """The most probable class, one-hot."""
        return self._one_hot(super().mode)

    @_inputs.takes_key
    def sample(
        self, sample_shape: Sequence[int] = (), *, key: PRNGKeyArray
    ) -> Float[Array, "*samples_and_batch classes"]:
        """Draw one-hot vectors; see :func:`catnat.jax.sample`."""
        return self._one_hot(super().sample(sample_shape, key=key))

    def _one_hot(self, classes: Int[Array, "*any"]) -> Float[Array, "*any classes"]:
        return jax.nn.one_hot(classes, self.num_classes, dtype=self.scores.dtype)

    def _classes(self, value: Array) -> Array:
        value = _check_width(value, self.num_classes)
        vertices = ((value == 0) | (value == 1)).all() & (value.sum(-1) == 1).all()
        if _inputs.is_true(~vertices):
            raise ValueError("`value` holds rows that are not one-hot: each needs a single 1, and 0 everywhere else.")
        return value.argmax(-1)


def _check_width(value: Array, num_classes: int) -> Array:
    """Values with an entry per class on the last axis."""
    value = _inputs.check_array(value, "value")
    if value.shape[-1:] != (num_classes,):
        raise ValueError(
            f"`value` has shape {value.shape}, but vectors with one entry per class are needed: (..., {num_classes})."
        )
    return value


class OneHotCatnatStraightThrough(OneHotCatnat):
    """One-hot samples whose gradient is that of the probabilities (the straight-through estimator).

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.jax import OneHotCatnatStraightThrough
        >>> def loss(scores):
        ...     sample = OneHotCatnatStraightThrough(scores).rsample(key=jax.random.key(0))
        ...     return sample @ jnp.array([1.0, 2.0, 3.0, 4.0])
        >>> # as if the probabilities had been multiplied
        >>> print(jax.grad(loss)(jnp.zeros(3)).round(4))
        [0.5   0.125 0.125]
    """

    @_inputs.takes_key
    def rsample(
        self, sample_shape: Sequence[int] = (), *, key: PRNGKeyArray
    ) -> Float[Array, "*samples_and_batch classes"]:
        """Draw one-hot vectors that pass gradients to the probabilities."""
        probs = self.probs
        return self.sample(sample_shape, key=key) + (probs - lax.stop_gradient(probs))


class RelaxedOneHotCatnat(_OfOneTree):
    """The Gumbel-softmax relaxation of :class:`OneHotCatnat`, on the leaf log-probabilities.

    Args:
        temperature: The relaxation's temperature, positive; a number, or an array of the batch shape.
        scores: One score per inner node on the last axis, K-1 for K classes.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.
        mask: The valid classes, as for :class:`Catnat`; draws are exactly 0 at the others.
        valid_classes: The mask as indices, as for :class:`Catnat`.
        mask_mode: "renormalize" or "prune", as for :class:`Catnat`.
        unimix: The fraction of the uniform distribution, as for :class:`Catnat`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.jax import RelaxedOneHotCatnat
        >>> RelaxedOneHotCatnat(0.5, jnp.zeros((6, 3))).rsample(key=jax.random.key(0)).shape
        (6, 4)
    """

    temperature: Float[Array, "*batch"]  # not the distribution's

    @_checks.explains(**_checks.NOT_SCORES)
    def __init__(
        self,
        temperature: float | Float[Array, "*#batch"],
        scores: Float[Array, "*batch nodes"],
        tree: Tree | None = None,
        activation: Activation | str = "natural",
        *,
        num_classes: int | None = None,
        mask: Bool[Array, "*#batch classes"] | None = None,
        valid_classes: Int[Array, "*#batch some"] | None = None,
        mask_mode: Literal["renormalize", "prune"] = "renormalize",
        unimix: float = 0.0,
    ) -> None:
        nodes = prepare(scores, tree, activation, num_classes)
        self._set(**_checked(scores, nodes, mask, valid_classes, mask_mode, None, unimix))
        tau = _leaves.checked_temperature(temperature, _inputs.to_computing_dtype(self.scores))
        self._set(temperature=tau)

    @property
    def _leaf_temperature(self) -> None:
        """That of a relaxation is another one's: of the points between the classes."""

    @property
    def event_shape(self) -> tuple[int, ...]:
        """One entry per class."""
        return (self.num_classes,)

    @_inputs.takes_key
    def sample(
        self, sample_shape: Sequence[int] = (), *, key: PRNGKeyArray
    ) -> Float[Array, "*samples_and_batch classes"]:
        """Draw points of the simplex that pass no gradient."""
        return lax.stop_gradient(self.rsample(sample_shape, key=key))

    @_inputs.takes_key
    def rsample(
        self, sample_shape: Sequence[int] = (), *, key: PRNGKeyArray
    ) -> Float[Array, "*samples_and_batch classes"]:
        """Draw points of the simplex that pass gradients to the scores and the temperature."""
        return _relaxed_draw(self._leaves, self.temperature, _checks.shape_of_samples(sample_shape), key).astype(
            self.scores.dtype
        )

    def log_prob(self, value: Float[Array, "*samples_and_batch classes"]) -> Float[Array, "*samples_and_batch"]:
        """The log-density on the simplex of the valid classes; an entry that underflowed counts as a tiny number."""
        value = _check_width(value, self.num_classes)
        return _inputs.saturate(_relaxed_density(self._leaves, self.temperature, value), self.scores.dtype)


@functools.partial(jax.jit, static_argnames="sample_shape")
def _relaxed_draw(leaves: Leaves, temperature: Array, sample_shape: tuple[int, ...], key: Array) -> Array:
    noisy = _leaves.gumbel_noise_on(leaves.leaf_log_probs(), leaves.valid, sample_shape, key)
    return jax.nn.softmax(_dense.apply_temperature(noisy, temperature[..., None]), -1)


@jax.jit
def _relaxed_density(leaves: Leaves, temperature: Array, value: Array) -> Array:
    logs = jnp.log(jnp.maximum(value.astype(temperature.dtype), float(jnp.finfo(temperature.dtype).tiny)))
    terms = jax.nn.log_softmax(leaves.leaf_log_probs() - temperature[..., None] * logs, -1) - logs
    count = jnp.asarray(logs.shape[-1], logs.dtype)
    if leaves.valid is not None:
        count = leaves.valid.sum(-1).astype(logs.dtype)
        terms = jnp.where(leaves.valid, terms, 0)
    return jax.scipy.special.gammaln(count) + (count - 1) * jnp.log(temperature) + terms.sum(-1)
