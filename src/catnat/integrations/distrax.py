"""The categorical distributions of distrax, with scores on a tree in place of logits.

They are subclasses of distrax's own, so that what expects a ``distrax.Categorical`` takes them, and thin: everything
is that of a :class:`catnat.jax.Catnat`. Divergences are registered with TensorFlow Probability, as distrax does it.
"""

from __future__ import annotations

from typing import Any

try:
    import distrax  # type: ignore[import-untyped, import-not-found, unused-ignore]
except (ImportError, AttributeError) as error:  # AttributeError: TensorFlow Probability is older than this JAX
    raise ImportError(
        'catnat.integrations.distrax needs distrax and a nightly TensorFlow Probability: pip install "catnat[distrax]".'
    ) from error

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int, PRNGKeyArray, Shaped
from tensorflow_probability.substrates import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
    jax as tfp,
)

import catnat.jax as cj
from catnat import Tree
from catnat.jax import extend

__all__ = ["Catnat", "OneHotCatnat", "OneHotCatnatStraightThrough"]


class _OnTree:
    """What they have in common: all but the form of a value."""

    _leaves: cj.Catnat
    _dtype: Any

    @extend.explains(**extend.NOT_SCORES)
    def __init__(
        self,
        scores: Float[Array, "*batch nodes"],
        tree: Tree | None = None,
        activation: cj.Activation | str = "natural",
        *,
        dtype: Any = int,
        **options: Any,
    ) -> None:
        distrax.Distribution.__init__(self)  # a Categorical would want logits
        self._catnat = cj.Catnat(scores, tree, activation, **options)
        self._check_dtype(dtype)
        self._dtype = dtype

    @property
    def distribution(self) -> cj.Catnat:
        """The same distribution as a distribution of :mod:`catnat.jax`."""
        return self._catnat

    def _check_dtype(self, dtype: Any) -> None:
        """Raise unless it is one of numbers."""
        if not (jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating)):
            raise ValueError(f"`dtype` is {dtype}, but a dtype for values is needed: integer or floating-point.")

    @property
    def scores(self) -> Float[Array, "*batch nodes"]:
        """The scores."""
        return self._catnat.scores

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape of independent variables."""
        return self._catnat.batch_shape

    @property
    def num_categories(self) -> int:
        """The number of classes."""
        return self._catnat.num_classes

    @property
    def logits(self) -> Float[Array, "*batch classes"]:
        """The log-probability of every class, O(K); finite."""
        return self._catnat.logits

    @property
    def probs(self) -> Float[Array, "*batch classes"]:
        """The probability of every class, O(K); exactly 0 where it is."""
        return self._catnat.probs

    def entropy(self) -> Float[Array, "*batch"]:
        """The entropy in nats."""
        return self._catnat.entropy()

    def __getitem__(self, index: Any) -> Any:
        rows = tuple(where[index] for where in np.indices(self.batch_shape))  # of the batch, never of the classes
        new = type(self).__new__(type(self))
        new._catnat, new._dtype = jax.tree.map(lambda array: array[rows], self._catnat), self._dtype
        return new


class Catnat(_OnTree, distrax.Categorical):  # type: ignore[misc] # distrax has no types
    r"""``distrax.Categorical`` with scores on a tree: a value is a class.

    ``sample`` and ``log_prob`` read only the paths they need. As in distrax a value that is no class has the
    log-probability -inf. A masked class has the smallest finite number.

    Args:
        scores: One score per inner node on the last axis, K-1 for K classes.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        dtype: That of the values, as in distrax.
        options: ``num_classes``, ``mask``, ``valid_classes``, ``mask_mode``, ``temperature`` and ``unimix``, as for
            :class:`catnat.jax.Catnat`.

    Example:
        >>> import distrax, jax, jax.numpy as jnp
        >>> from catnat.integrations.distrax import Catnat
        >>> policy = Catnat(jnp.zeros((5, 17)))  # 18 actions
        >>> action, log_prob = policy.sample_and_log_prob(seed=jax.random.key(0))
        >>> print(jnp.exp(log_prob).round(4))
        [0.0556 0.0556 0.0556 0.0556 0.0556]
        >>> print(policy.kl_divergence(distrax.Categorical(logits=jnp.zeros(18))).round(4))
        [0. 0. 0. 0. 0.]
    """

    def _check_dtype(self, dtype: Any) -> None:
        """Raise unless it can hold every class: what it rounds or wraps around would be another class."""
        super()._check_dtype(dtype)
        last = self.num_categories - 1
        most = jnp.iinfo(dtype).max if jnp.issubdtype(dtype, jnp.integer) else 2 ** (jnp.finfo(dtype).nmant + 1)
        if last > most:
            raise ValueError(
                f"`dtype` is {jnp.dtype(dtype)}, which holds classes up to {most}, but the last is {last}."
            )

    def _sample_n(self, key: PRNGKeyArray, n: int) -> Shaped[Array, "n *batch"]:
        return self._catnat.sample((n,), key=key).astype(self._dtype)

    def log_prob(self, value: Shaped[Array, "*samples_and_batch"]) -> Float[Array, "*samples_and_batch"]:
        """The log-probability of classes; -inf for what is none."""
        classes, exist = extend.nearest_classes(value, self.num_categories)
        return jnp.where(exist, self._catnat.log_prob(classes), -jnp.inf)

    def prob(self, value: Shaped[Array, "*samples_and_batch"]) -> Float[Array, "*samples_and_batch"]:
        """The probability of classes, exactly 0 where it is; O(K)."""
        classes, exist = extend.nearest_classes(value, self.num_categories)
        shape = jnp.broadcast_shapes(classes.shape, self.batch_shape)
        rows = jnp.broadcast_to(self.probs, (*shape, self.num_categories))
        found = jnp.take_along_axis(rows, jnp.broadcast_to(classes, shape)[..., None], -1)[..., 0]
        return jnp.where(exist, found, 0)

    def mode(self) -> Shaped[Array, "*batch"]:
        """The most probable class."""
        return self._catnat.mode.astype(self._dtype)


class OneHotCatnat(_OnTree, distrax.OneHotCategorical):  # type: ignore[misc] # distrax has no types
    """``distrax.OneHotCategorical`` with scores on a tree: a value is a one-hot vector.

    Args:
        scores: One score per inner node on the last axis, K-1 for K classes.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        dtype: That of the values, as in distrax.
        options: ``num_classes``, ``mask``, ``valid_classes``, ``mask_mode``, ``temperature`` and ``unimix``, as for
            :class:`catnat.jax.Catnat`; this temperature relaxes nothing.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.integrations.distrax import OneHotCatnat
        >>> print(OneHotCatnat(jnp.zeros((6, 3))).sample(seed=jax.random.key(0)).sum(-1))
        [1 1 1 1 1 1]
    """

    def _sample_n(self, key: PRNGKeyArray, n: int) -> Shaped[Array, "n *batch classes"]:
        return self._one_hot(self._catnat.sample((n,), key=key))

    def log_prob(self, value: Shaped[Array, "*samples_and_batch classes"]) -> Float[Array, "*samples_and_batch"]:
        """The log-probability of one-hot vectors; -inf for other vectors, where distrax would give any number."""
        value = jnp.asarray(value)
        if value.shape[-1:] != (self.num_categories,):
            raise ValueError(
                f"`value` has shape {value.shape}, but one-hot vectors are needed, (..., {self.num_categories}): "
                f"jax.nn.one_hot(classes, {self.num_categories}), or the distribution Catnat, whose values are classes."
            )
        classes = value.argmax(-1)
        exist = (value == jax.nn.one_hot(classes, self.num_categories, dtype=value.dtype)).all(-1)
        return jnp.where(exist, self._catnat.log_prob(classes), -jnp.inf)

    def mean(self) -> Float[Array, "*batch classes"]:
        """The probabilities."""
        return self.probs

    def variance(self) -> Float[Array, "*batch classes"]:
        """That of every entry, p (1 - p)."""
        probs = self.probs
        return probs * (1 - probs)

    def mode(self) -> Shaped[Array, "*batch classes"]:
        """The most probable class, one-hot."""
        return self._one_hot(self._catnat.mode)

    def _one_hot(self, classes: Int[Array, "..."]) -> Shaped[Array, "... classes"]:
        return jax.nn.one_hot(classes, self.num_categories, dtype=self._dtype)


class OneHotCatnatStraightThrough(OneHotCatnat):
    """One-hot draws whose gradient is that of the probabilities, as ``distrax.straight_through_wrapper`` makes them.

    That function itself builds a distribution from logits, and cannot be used here.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.integrations.distrax import OneHotCatnatStraightThrough
        >>> def loss(scores):
        ...     sample = OneHotCatnatStraightThrough(scores).sample(seed=jax.random.key(0))
        ...     return sample @ jnp.array([1.0, 2.0, 3.0, 4.0])
        >>> # as if the probabilities had been multiplied
        >>> print(jax.grad(loss)(jnp.zeros(3)).round(4))
        [0.5   0.125 0.125]
    """

    def sample(self, *, seed: int | PRNGKeyArray, sample_shape: Any = ()) -> Float[Array, "*samples_and_batch classes"]:
        """Draw one-hot vectors that pass gradients to the probabilities."""
        return self._passing(super().sample(seed=seed, sample_shape=sample_shape))

    def sample_and_log_prob(self, *, seed: int | PRNGKeyArray, sample_shape: Any = ()) -> tuple[Array, Array]:
        """The same, with their log-probabilities."""
        drawn, log_prob = super().sample_and_log_prob(seed=seed, sample_shape=sample_shape)
        return self._passing(drawn), log_prob

    def _passing(self, drawn: Array) -> Array:
        probs = self.probs
        return drawn + (probs - lax.stop_gradient(probs))


# ---- divergences ----


def _between_catnats(p: _OnTree, q: _OnTree, *_: Any, **__: Any) -> Array:
    return p._catnat.kl_divergence(q._catnat)


def _between_categoricals(p: Any, q: Any, *_: Any, **__: Any) -> Array:
    """KL(p || q) over all classes, where one of them is distrax's or TensorFlow Probability's."""
    p_logs, q_logs = (jax.nn.log_softmax(each.logits_parameter(), -1) for each in (p, q))
    probs = p.probs if isinstance(p, _OnTree) else jnp.exp(p_logs)
    return extend.divergence(probs, p_logs, q_logs, q._catnat.mask if isinstance(q, _OnTree) else None)


tfp.distributions.RegisterKL(_OnTree, _OnTree)(_between_catnats)
for _other in (distrax.Categorical, tfp.distributions.Categorical, tfp.distributions.OneHotCategorical):
    tfp.distributions.RegisterKL(_OnTree, _other)(_between_categoricals)
    tfp.distributions.RegisterKL(_other, _OnTree)(_between_categoricals)
