"""Several categorical variables with different numbers of classes, in one array of scores."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Int, PRNGKeyArray
from numpy.typing import NDArray

from catnat import _checks
from catnat.activations import Activation, resolve
from catnat.jax import _options, _plan
from catnat.jax.distributions import Catnat, Parameterized, as_data, checked_options, keep_infinite, takes_scores
from catnat.trees.forest import Forest, Group, as_forest, check_width
from catnat.trees.tree import Tree


@as_data
class MultiCatnat(Parameterized):
    r"""N independent categorical variables with different numbers of classes.

    Scores, probabilities and one-hot vectors of the variables are concatenated in the order of ``trees``; a value is a
    vector of N class indices. ``log_prob``, ``entropy`` and ``kl_divergence`` describe the whole vector: they are sums
    over the variables. Variables with equal trees are computed as one batch of a :class:`Catnat`.

    Args:
        scores: The scores of all variables, :math:`\sum_n (K_n - 1)` on the last axis.
        trees: A tree or a number of classes for every variable, or a :class:`catnat.Forest` of them.
        activation: "sigmoid", "natural", or an activation object, for all variables.
        mask: The valid classes of all variables, boolean, :math:`\sum_n K_n` on the last axis.
        temperature: The distribution is p^(1/T) / Z for every variable, as for :class:`Catnat`.
        unimix: The weight of every variable's uniform distribution, as for :class:`Catnat`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from catnat.jax import MultiCatnat
        >>> latent, key = MultiCatnat(jnp.zeros((8, 2 + 4 + 9)), [3, 5, 10]), jax.random.key(0)
        >>> latent.sample(key=key).shape, latent.rsample_one_hot(key=key).shape
        ((8, 3), (8, 18))
        >>> print(jnp.exp(latent.entropy()[0]).round(3))  # 3 * 5 * 10 equally probable values
        150.0
    """

    scores: Float[Array, "*batch nodes"]
    forest: Forest
    activation: Activation
    mask: Bool[Array, "*batch classes"] | None
    temperature: Float[Array, "*batch"] | None
    unimix: float

    @takes_scores
    def __init__(
        self,
        scores: Float[Array, "*batch nodes"],
        trees: Forest | Iterable[Tree | int],
        activation: Activation | str = "sigmoid",
        *,
        mask: Bool[Array, "*#batch classes"] | None = None,
        temperature: float | Float[Array, "*#batch"] | None = 1.0,
        unimix: float = 0.0,
    ) -> None:
        forest, scores = as_forest(trees), _plan.check_scores(scores)
        check_width(scores.shape[-1], forest)
        mask = _options.given_mask(mask, None, forest.num_classes)
        if mask is not None:
            valid = [_options.usable_mask(mask[..., group.classes]) for group in forest.groups]
            mask = _joined(forest, valid, "classes")
        options = checked_options(scores, mask, temperature, unimix)
        self._set(forest=forest, activation=resolve(activation), **options)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """One class index per variable."""
        return (len(self.forest.trees),)

    @property
    def num_classes(self) -> int:
        """The number of classes of all variables together."""
        return self.forest.num_classes

    @property
    def _parts(self) -> list[tuple[Group, Catnat]]:
        """The groups, each with the distribution of its variables, batch + (n,), in the computing dtype."""
        scores = _plan.to_computing_dtype(self.scores)
        tau = 1.0 if self.temperature is None else self.temperature[..., None]

        def part(group: Group) -> Catnat:
            mask = None if self.mask is None else self.mask[..., group.classes]
            options = {"mask": mask, "temperature": tau, "unimix": self.unimix}
            return Catnat(scores[..., group.nodes], group.tree, self.activation, **options)  # type: ignore[arg-type]

        return [(group, part(group)) for group in self.forest.groups]

    @property
    def probs(self) -> Float[Array, "*batch classes"]:
        """The probability of every class of every variable, concatenated."""
        return self._of_classes("probs").astype(self.scores.dtype)

    @property
    def logits(self) -> Float[Array, "*batch classes"]:
        """The log-probability of every class of every variable, concatenated; finite."""
        return self._returned(self._of_classes("logits"))

    def _of_classes(self, name: str) -> Array:
        return _joined(self.forest, [getattr(part, name) for _, part in self._parts], "classes")

    @property
    def mode(self) -> Int[Array, "*batch variables"]:
        """The most probable value."""
        return _joined(self.forest, [part.mode for _, part in self._parts], "variables")

    @_plan.takes_key
    def sample(
        self, sample_shape: Sequence[int] = (), *, key: PRNGKeyArray
    ) -> Int[Array, "*samples_and_batch variables"]:
        """Draw values, sample shape + batch shape + (N,); see :func:`catnat.jax.sample`."""
        shape, parts = _checks.shape_of_samples(sample_shape), self._parts
        keys = jax.random.split(key, len(parts))
        drawn = [part.sample(shape, key=one) for (_, part), one in zip(parts, keys, strict=True)]
        return _joined(self.forest, drawn, "variables")

    def rsample(self, sample_shape: Sequence[int] = (), *, key: PRNGKeyArray) -> Array:
        """Raise, because classes have no derivative; the error names the alternatives."""
        _checks.no_rsample(self)

    def log_prob(self, value: Int[Array, "*samples_and_batch variables"]) -> Float[Array, "*samples_and_batch"]:
        """Return the log-probability of ``value``, which may have sample axes before the batch."""
        value = self._checked(value)
        found = jnp.concatenate([part.log_prob(value[..., group.variables]) for group, part in self._parts], -1)
        possible = found > _plan.lowest(found)
        # One masked class makes the whole value impossible.
        total = jnp.where(possible.all(-1), jnp.where(possible, found, 0).sum(-1), _plan.lowest(found))
        return self._returned(found.sum(-1) if self.mask is None else total)

    def _checked(self, value: Array) -> Array:
        value, sizes = _plan.check_array(value, "value"), jnp.asarray(self.forest.sizes)
        if not jnp.issubdtype(value.dtype, jnp.integer) or value.shape[-1:] != self.event_shape:
            raise ValueError(
                f"`value` has dtype {value.dtype} and shape {value.shape}, but one class index per variable is needed "
                f"on the last axis: integers (..., {len(self.forest.trees)})."
            )
        value = value.astype(int)
        outside = (value < 0) | (value >= sizes)
        if _plan.is_true(outside.any()):
            raise ValueError(
                f"`value` holds {int(value[outside][0])} for a variable that has no such class: the classes of the "
                f"variables are below {_checks.shown(self.forest.sizes)}."
            )
        return jnp.clip(value, 0, sizes - 1)

    def entropy(self) -> Float[Array, "*batch"]:
        """Return the entropy in nats."""
        return self._returned(jnp.concatenate([part.entropy() for _, part in self._parts], -1).sum(-1))

    def kl_divergence(self, other: MultiCatnat) -> Float[Array, "*batch"]:
        """Return the divergence KL(self || other) from a distribution of the same variables; see :class:`Catnat`."""
        if not isinstance(other, MultiCatnat):
            raise TypeError(f"`other` is a {type(other).__name__}, but a MultiCatnat is needed.")
        sizes, others = self.forest.sizes, other.forest.sizes
        if sizes != others:
            raise ValueError(
                f"`other` has variables of {_checks.shown(others)} classes, but {_checks.shown(sizes)} are needed."
            )
        if self.forest == other.forest:
            pairs = zip(self._parts, other._parts, strict=True)
            found = jnp.concatenate([p.kl_divergence(q) for (_, p), (_, q) in pairs], -1).sum(-1)
        else:
            p_logs, q_logs = self._of_classes("logits"), other._of_classes("logits")
            found = _options.divergence(self._of_classes("probs"), p_logs, q_logs, other.mask)
        return keep_infinite(found, jnp.promote_types(self.scores.dtype, other.scores.dtype))

    def fisher_diagonal(self) -> Float[Array, "*batch nodes"]:
        """Return the diagonal of the Fisher matrix of the scores; see :func:`catnat.jax.geometry.fisher_diagonal`."""
        return self._returned(_joined(self.forest, [part.fisher_diagonal() for _, part in self._parts], "nodes"))

    # ---- all classes, concatenated ----

    def split(self, values: Array) -> tuple[Array, ...]:
        """Split concatenated values of all classes, such as ``probs``, into one array per variable."""
        return tuple(lax.split(values, self.forest.sizes, values.ndim - 1))

    def one_hot(self, value: Int[Array, "*any variables"]) -> Float[Array, "*any classes"]:
        """Return the one-hot vectors of a value's variables, concatenated."""
        places = value + np.cumsum([0, *self.forest.sizes[:-1]])
        zeros = jnp.zeros((*value.shape[:-1], self.forest.num_classes), self.scores.dtype)
        return jnp.put_along_axis(zeros, places, 1, -1, inplace=False)

    @_plan.takes_key
    def rsample_one_hot(
        self, sample_shape: Sequence[int] = (), *, key: PRNGKeyArray
    ) -> Float[Array, "*samples_and_batch classes"]:
        """Draw concatenated one-hot vectors that have the gradient of the probabilities (straight-through)."""
        probs = self.probs
        return self.one_hot(self.sample(sample_shape, key=key)) + (probs - lax.stop_gradient(probs))


def _joined(forest: Forest, parts: list[Array], which: str) -> Array:
    """Concatenate values of each group's variables, (..., n) or (..., n, width), in the order of the forest."""
    axes = 1 if which == "variables" else 2
    flat = [part.reshape(*part.shape[: part.ndim - axes], math.prod(part.shape[part.ndim - axes :])) for part in parts]
    if len(flat) == 1:  # in order already
        return flat[0]
    return jnp.concatenate(flat, -1)[..., _order(forest, which)]


@functools.lru_cache(256)
def _order(forest: Forest, which: str) -> NDArray[np.int64]:
    """Return the index of each entry, in the forest's order, among the concatenated groups."""
    return np.argsort(np.concatenate([getattr(group, which).reshape(-1) for group in forest.groups]))
