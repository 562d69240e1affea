"""Categorical distributions, parameterized by scores on a tree, as pytrees.

The arrays of a distribution are its leaves; the tree, the activation and unimix are static. So it can pass through
``jit``, ``vmap`` and ``scan``. Names are those of the PyTorch counterpart; draws take ``sample_shape`` and a ``key``.
``probs``, ``logits`` and ``mode`` compute all classes at every access; a compiled function does so once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int, PRNGKeyArray, Shaped

from catnat import _checks
from catnat.activations import Activation
from catnat.jax import _branches, _dense, _options, _plan, _walk
from catnat.jax._fused import log_probs
from catnat.jax._options import divergence
from catnat.jax._plan import Plan, clamp_to_dtype
from catnat.jax.functional import log_prob_of
from catnat.trees.tree import Tree

__all__ = ["Catnat", "OneHotCatnat", "OneHotCatnatStraightThrough", "RelaxedOneHotCatnat", "divergence", "takes_scores"]

_Self = TypeVar("_Self", bound="Parameterized")

# Frozen, with a constructor that checks. It does not run when a transformation flattens and rebuilds the pytree.
as_data = functools.partial(dataclasses.dataclass, frozen=True, eq=False, init=False)
takes_scores = _checks.explains(**_checks.NOT_SCORES)
"""Decorator of constructors: an argument ``logits`` or ``probs`` raises and names the alternative."""


class Parameterized:
    """Base class of all distributions: frozen data with scores, registered as a pytree."""

    scores: Array

    # The leaves of the pytree, each with the number of its axes behind the batch.
    _arrays: ClassVar[dict[str, int]] = {"scores": 1, "mask": 1, "temperature": 0}

    def __init_subclass__(cls) -> None:
        jax.tree_util.register_pytree_with_keys(cls, _flatten_with_keys, functools.partial(_unflatten, cls), _flatten)

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape of the batch of independent variables."""
        return self.scores.shape[:-1]

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of one value."""
        return ()

    def expand(self: _Self, batch_shape: Sequence[int]) -> _Self:
        """Return the distribution with its batch shape expanded."""
        arrays, static = _flatten(self)

        def widen(values: Array, axes: int) -> Array:
            return jnp.broadcast_to(values, (*batch_shape, *values.shape[values.ndim - axes :]))

        axes = self._arrays.values()
        wide = [None if each is None else widen(each, count) for each, count in zip(arrays, axes, strict=True)]
        return _unflatten(type(self), static, wide)

    def _returned(self, values: Array) -> Array:
        """Convert results to the dtype of the scores."""
        return clamp_to_dtype(values, self.scores.dtype)


def _flatten(distribution: Parameterized) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the arrays and the static fields."""
    kind = type(distribution)
    arrays, static = ([getattr(distribution, name) for name in names] for names in (kind._arrays, _static(kind)))
    return tuple(arrays), tuple(static)


def _flatten_with_keys(distribution: Parameterized) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    arrays, static = _flatten(distribution)
    return tuple(zip(map(jax.tree_util.GetAttrKey, distribution._arrays), arrays, strict=True)), static


def _unflatten(kind: type[_Self], static: Sequence[Any], arrays: Sequence[Any]) -> _Self:
    new = object.__new__(kind)
    new._set(**dict(zip(kind._arrays, arrays, strict=True)), **dict(zip(_static(kind), static, strict=True)))
    return new


def _static(kind: type[Parameterized]) -> list[str]:
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    return [field.name for field in fields if field.name not in kind._arrays]


def checked_options(
    scores: Array, mask: Array | None, temperature: float | Array | None, unimix: float
) -> dict[str, Any]:
    """Return scores, mask and temperature in one batch shape, and unimix; mask and temperature are None if not used."""
    _checks.unimix(unimix)
    scores = jnp.asarray(scores)
    if mask is not None:
        _checks.mask_beside_scores(mask.shape[:-1], scores.shape[:-1])
        batch = jnp.broadcast_shapes(scores.shape[:-1], mask.shape[:-1])
        scores, mask = _plan.expand(scores, batch), _plan.expand(mask, batch)
    one = temperature is None or (isinstance(temperature, (int, float)) and temperature == 1)
    tau = None if one else _options.checked_temperature(temperature, scores)
    return {"scores": scores, "mask": mask, "temperature": tau, "unimix": float(unimix)}


@as_data
class TreeDistribution(Parameterized):
    """Base class of distributions on one tree: their parameters, and the log-probabilities of their classes."""

    scores: Float[Array, "*batch nodes"]
    tree: Tree
    activation: Activation
    mask: Bool[Array, "*batch classes"] | None
    temperature: Float[Array, "*batch"] | None
    unimix: float

    @takes_scores
    def __init__(
        self,
        scores: Float[Array, "*batch nodes"],
        tree: Tree | int | None = None,
        activation: Activation | str = "sigmoid",
        *,
        mask: Bool[Array, "*#batch classes"] | None = None,
        valid_classes: Int[Array, "*#batch some"] | None = None,
        temperature: float | Float[Array, "*#batch"] | None = 1.0,
        unimix: float = 0.0,
    ) -> None:
        _, plan, _ = _plan.prepare(scores, tree, activation)
        mask = _options.given_mask(mask, valid_classes, plan.tree.num_classes)
        valid = None if mask is None else _options.usable_mask(mask)
        self._set(tree=plan.tree, activation=plan.activation, **checked_options(scores, valid, temperature, unimix))

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return self.tree.num_classes

    @property
    def probs(self) -> Float[Array, "*batch classes"]:
        """The probability of every class, O(K)."""
        return jnp.exp(self._log_probs(floored=False)).astype(self.scores.dtype)

    @property
    def logits(self) -> Float[Array, "*batch classes"]:
        """The log-probability of every class, O(K); finite."""
        return self._returned(self._log_probs())

    @property
    def _computed(self) -> tuple[Array, Plan]:
        """The scores in the computing dtype, and their plan."""
        scores = _plan.to_computing_dtype(self.scores)
        return scores, Plan(self.tree, self.activation, scores.dtype)

    @property
    def _exponent(self) -> Array | None:
        """The temperature of the class probabilities; None if there is none."""
        return self.temperature

    @property
    def _normalizes(self) -> bool:
        """Whether the probability of one class depends on the scores of all nodes, through a normalization."""
        return self.mask is not None or self._exponent is not None

    def _log_probs(self, *, floored: bool = True, without_nan: bool = False) -> Array:
        """Return the log-probability of every class, in the computing dtype.

        With ``without_nan`` and a mask, NaN scores are read as 0, so that only valid classes are chosen.
        """
        scores, plan = self._computed
        if without_nan and self.mask is not None:
            scores = jnp.where(jnp.isnan(scores), 0, scores)
        floored = floored and not self.unimix  # with unimix no class has a probability near 0
        logs = log_probs(scores, plan, floored=floored)
        if not (self._normalizes or self.unimix):
            return logs
        zero = -jnp.inf if floored else _branches.log_of_zero(plan)
        return _options.apply(logs, self.mask, self._exponent, self.unimix, zero)


class CategoricalDistribution(TreeDistribution):
    """Base class of distributions whose values are classes, not points between them."""

    @property
    def mode(self) -> Shaped[Array, "..."]:
        """The most probable value."""
        return self._log_probs(floored=False, without_nan=True).argmax(-1)

    @_plan.takes_key
    def sample(self, sample_shape: Sequence[int] = (), *, key: PRNGKeyArray) -> Shaped[Array, "..."]:
        """Draw values, sample shape + batch shape + event shape; see :func:`catnat.jax.sample`.

        Scores are not checked: a node whose score is NaN takes the branch no. With a mask, NaN scores are read as 0, so
        that no masked class is drawn.
        """
        shape = _checks.shape_of_samples(sample_shape)
        if self._normalizes:
            return _walk.draw_by_log_probs(self._log_probs(floored=False, without_nan=True), shape, key)
        scores, plan = self._computed
        if not self.unimix:
            return _walk.draw(scores, shape, key, plan)
        key, coin, uniformly = jax.random.split(key, 3)
        drawn = _walk.draw(scores, shape, key, plan)
        other = jax.random.randint(uniformly, drawn.shape, 0, self.num_classes, drawn.dtype)
        return jnp.where(jax.random.uniform(coin, drawn.shape, plan.dtype) < self.unimix, other, drawn)

    def rsample(self, sample_shape: Sequence[int] = (), *, key: PRNGKeyArray) -> Array:
        """Raise, because classes have no derivative; the error names the alternatives."""
        _checks.no_rsample(self)

    def log_prob(self, value: Shaped[Array, "..."]) -> Float[Array, "*samples_and_batch"]:
        """Return the log-probability of ``value``, which may have sample axes before the batch."""
        classes = self._classes(value)
        if self._normalizes:
            return self._returned(_walk.pick_samples(self._log_probs(), classes))
        found = log_prob_of(*self._computed, classes, floored=not self.unimix)
        return self._returned(_options.mix(found, self.unimix, self.num_classes) if self.unimix else found)

    def _classes(self, value: Array) -> Array:
        """Return the checked classes of ``value``."""
        return _plan.existing_classes(value, self.num_classes)

    def entropy(self) -> Float[Array, "*batch"]:
        """Return the entropy in nats."""
        if self._normalizes or self.unimix:
            return self._returned(_options.entropy(self._log_probs(floored=False), self.mask))
        return self._returned(_dense.entropy(*self._computed))

    def kl_divergence(self, other: CategoricalDistribution) -> Float[Array, "*batch"]:
        """Return the divergence KL(self || other) from another distribution of the same values.

        It uses the chain rule on a common tree, and otherwise the sum over all classes. It is infinite if the other's
        mask excludes a class that this distribution can take, and otherwise finite.
        """
        if not isinstance(other, CategoricalDistribution):
            raise TypeError(f"`other` is a {type(other).__name__}, but a distribution of catnat.jax is needed.")
        mine, others = ((each.num_classes, each.event_shape) for each in (self, other))
        if mine != others:
            raise ValueError(f"`other` has classes and an event shape of {others}, but {mine} are needed.")
        (p, plan), (q, other_plan) = self._computed, other._computed
        dtype = jnp.promote_types(self.scores.dtype, other.scores.dtype)
        changed = any(each._normalizes or each.unimix for each in (self, other))
        if changed or (plan.tree, plan.activation) != (other_plan.tree, other_plan.activation):
            exact = self._log_probs(floored=False)
            found = _options.divergence(jnp.exp(exact), self._log_probs(), other._log_probs(), other.mask)
            return keep_infinite(found, dtype)
        plan = dataclasses.replace(plan, dtype=jnp.promote_types(plan.dtype, other_plan.dtype))
        return clamp_to_dtype(_dense.kl_divergence(p.astype(plan.dtype), q.astype(plan.dtype), plan), dtype)

    def fisher_diagonal(self) -> Float[Array, "*batch nodes"]:
        """Return the diagonal of the Fisher matrix of the scores; see :func:`catnat.jax.geometry.fisher_diagonal`.

        With a mask, a temperature or unimix it raises, because the Fisher matrix is not diagonal.
        """
        if self._normalizes or self.unimix:
            _checks.not_diagonal()
        return self._returned(_dense.information(*self._computed))


def keep_infinite(divergence: Array, dtype: Any) -> Array:
    """Convert a divergence to ``dtype``; finite values are clamped, infinite ones are kept."""
    return jnp.where(jnp.isinf(divergence), divergence.astype(dtype), clamp_to_dtype(divergence, dtype))


class Catnat(CategoricalDistribution):
    r"""A categorical distribution over the leaves of a tree.

    ``log_prob`` and ``sample`` read only the paths they need. ``logits`` are the leaf log-probabilities, which
    ``log_softmax`` leaves unchanged, so any code that takes logits works with them. A distribution is a pytree of its
    arrays: it can be an argument of compiled functions, mapped over its batch, and the carry of a scan.

    Args:
        scores: One score per inner node on the last axis, K-1 for K classes.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural", or an activation object.
        mask: The valid classes, boolean (..., K); its leading axes and the batch of the scores are broadcast. The
            distribution is conditioned on these classes, O(K), as with masked logits. A masked class has probability 0,
            the smallest finite number as its log-probability, no gradient, and is never drawn. A row without a valid
            class raises; under ``jit`` and ``vmap``, where values are not known, it is treated as unmasked: see
            :func:`validate_mask`.
        valid_classes: The mask as indices (..., m) of the valid classes, padded with -1.
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


class OneHotCatnat(CategoricalDistribution):
    """The one-hot counterpart of :class:`Catnat`: its values are one-hot vectors.

    Args:
        scores: One score per inner node on the last axis, K-1 for K classes.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural", or an activation object.
        mask: The valid classes, as for :class:`Catnat`.
        valid_classes: The mask as indices, as for :class:`Catnat`.
        temperature: The distribution is p^(1/T) / Z, as for :class:`Catnat`; draws stay one-hot.
        unimix: The weight of the uniform distribution, as for :class:`Catnat`.

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
        """The variance of every entry, p (1 - p)."""
        probs = self.probs
        return probs * (1 - probs)

    @property
    def mode(self) -> Float[Array, "*batch classes"]:
        """The most probable class, one-hot."""
        return self._one_hot(super().mode)

    @_plan.takes_key
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
        if _plan.is_true(~vertices):
            raise ValueError("`value` holds rows that are not one-hot: each needs a single 1, and 0 everywhere else.")
        return value.argmax(-1)


def _check_width(value: Array, num_classes: int) -> Array:
    """Return ``value`` as an array; raise unless it has one entry per class on the last axis."""
    value = _plan.check_array(value, "value")
    if value.shape[-1:] != (num_classes,):
        raise ValueError(
            f"`value` has shape {value.shape}, but vectors with one entry per class are needed: (..., {num_classes})."
        )
    return value


class OneHotCatnatStraightThrough(OneHotCatnat):
    """A one-hot distribution whose samples have the gradient of the probabilities (straight-through estimator).

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

    @_plan.takes_key
    def rsample(
        self, sample_shape: Sequence[int] = (), *, key: PRNGKeyArray
    ) -> Float[Array, "*samples_and_batch classes"]:
        """Draw one-hot vectors that pass gradients to the probabilities."""
        probs = self.probs
        return self.sample(sample_shape, key=key) + (probs - lax.stop_gradient(probs))


class RelaxedOneHotCatnat(TreeDistribution):
    """The Gumbel-softmax relaxation of :class:`OneHotCatnat`, on the leaf log-probabilities.

    Args:
        temperature: The relaxation's temperature, positive; a number, or an array of the batch shape.
        scores: One score per inner node on the last axis, K-1 for K classes.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural", or an activation object.
        mask: The valid classes, as for :class:`Catnat`; draws are exactly 0 at masked classes.
        valid_classes: The mask as indices, as for :class:`Catnat`.
        unimix: The weight of the uniform distribution, as for :class:`Catnat`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.jax import RelaxedOneHotCatnat
        >>> RelaxedOneHotCatnat(0.5, jnp.zeros((6, 3))).rsample(key=jax.random.key(0)).shape
        (6, 4)
    """

    temperature: Float[Array, "*batch"]  # of the relaxation, not of the distribution

    @takes_scores
    def __init__(
        self,
        temperature: float | Float[Array, "*#batch"],
        scores: Float[Array, "*batch nodes"],
        tree: Tree | int | None = None,
        activation: Activation | str = "sigmoid",
        *,
        mask: Bool[Array, "*#batch classes"] | None = None,
        valid_classes: Int[Array, "*#batch some"] | None = None,
        unimix: float = 0.0,
    ) -> None:
        options = {"mask": mask, "valid_classes": valid_classes, "unimix": unimix}
        super().__init__(scores, tree, activation, **options)  # type: ignore[arg-type]
        self._set(temperature=_options.checked_temperature(temperature, self.scores))

    @property
    def _exponent(self) -> None:
        """None: the temperature belongs to the relaxation, not to the class probabilities."""

    @property
    def event_shape(self) -> tuple[int, ...]:
        """One entry per class."""
        return (self.num_classes,)

    @_plan.takes_key
    def sample(
        self, sample_shape: Sequence[int] = (), *, key: PRNGKeyArray
    ) -> Float[Array, "*samples_and_batch classes"]:
        """Draw points of the simplex that pass no gradient."""
        return lax.stop_gradient(self.rsample(sample_shape, key=key))

    @_plan.takes_key
    def rsample(
        self, sample_shape: Sequence[int] = (), *, key: PRNGKeyArray
    ) -> Float[Array, "*samples_and_batch classes"]:
        """Draw points of the simplex that are differentiable in the scores and the temperature."""
        shape = _checks.shape_of_samples(sample_shape)
        return _relaxed_draw(self._log_probs(), self.mask, self.temperature, shape, key).astype(self.scores.dtype)

    def log_prob(self, value: Float[Array, "*samples_and_batch classes"]) -> Float[Array, "*samples_and_batch"]:
        """Return the log-density on the simplex of the valid classes; entries are clamped to the dtype's ``tiny``."""
        value = _check_width(value, self.num_classes)
        return self._returned(_relaxed_density(self._log_probs(), self.mask, self.temperature, value))


@functools.partial(jax.jit, static_argnames="sample_shape")
def _relaxed_draw(
    logs: Array, valid: Array | None, temperature: Array, sample_shape: tuple[int, ...], key: Array
) -> Array:
    noisy = _walk.add_gumbel_noise(logs, valid, sample_shape, key)
    return jax.nn.softmax(_options.apply_temperature(noisy, temperature[..., None]), -1)


@jax.jit
def _relaxed_density(log_probs: Array, valid: Array | None, temperature: Array, value: Array) -> Array:
    logs = jnp.log(jnp.maximum(value.astype(temperature.dtype), float(jnp.finfo(temperature.dtype).tiny)))
    terms = jax.nn.log_softmax(log_probs - temperature[..., None] * logs, -1) - logs
    count = jnp.asarray(logs.shape[-1], logs.dtype)
    if valid is not None:
        count = valid.sum(-1).astype(logs.dtype)
        terms = jnp.where(valid, terms, 0)
    return jax.scipy.special.gammaln(count) + (count - 1) * jnp.log(temperature) + terms.sum(-1)
