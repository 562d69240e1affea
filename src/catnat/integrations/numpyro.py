"""NumPyro: a categorical distribution with scores on a tree, and the tree as a bijection onto the simplex."""

from __future__ import annotations

import warnings
from typing import Any

try:
    from numpyro import distributions as dist  # type: ignore[import-untyped, import-not-found, unused-ignore]
except ImportError as error:
    raise ImportError('catnat.integrations.numpyro needs NumPyro: pip install "catnat[numpyro]".') from error

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray, Shaped
from numpy.typing import ArrayLike
from numpyro.distributions import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
    constraints,
    transforms,
)
from numpyro.distributions.util import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
    lazy_property,
    validate_sample,
)

import catnat.jax as cj
from catnat import Bins, EdgeWarning, Tree
from catnat.activations import resolve
from catnat.jax.distributions import divergence, takes_scores
from catnat.jax.geometry import log_abs_det_jacobian
from catnat.trees.builders import as_tree

__all__ = ["BinnedCatnat", "Catnat", "CatnatTransform"]


# ---- the distribution ----


class Catnat(dist.CategoricalLogits):  # type: ignore[misc] # NumPyro has no types
    r"""``numpyro.distributions.Categorical`` with scores on a tree: a value is a class.

    ``sample`` and ``log_prob`` read only the paths they need. It is enumerated as NumPyro's own class is, and can be
    used in the same places, such as ``MixtureSameFamily``. As in NumPyro, mean and variance are NaN. A masked class is
    in the support, with the smallest finite number as its log-probability.

    Args:
        scores: One score per inner node on the last axis, K-1 for K classes.
        tree: The tree, or the K of ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural", or an activation object.
        validate_args: Whether to check scores and values; NumPyro's default if not given.
        **options: ``mask``, ``valid_classes``, ``temperature`` and ``unimix``, as for :class:`catnat.jax.Catnat`. (The
            argument ``mask`` gives the valid classes. The method ``mask`` is NumPyro's: it leaves whole variables out
            of a model.)

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from numpyro import distributions as dist
        >>> from catnat.integrations.numpyro import Catnat
        >>> group = Catnat(jnp.zeros(2))
        >>> print(
        ...     group.enumerate_support(), jnp.exp(group.log_prob(jnp.array([0, 2]))).round(4)
        ... )
        [0 1 2] [0.3333 0.3333]
        >>> mixture = dist.MixtureSameFamily(
        ...     group, dist.Normal(jnp.array([-2.0, 0.0, 2.0]), 1.0)
        ... )
        >>> print(mixture.mean.round(4))
        0.0
    """

    arg_constraints = {"scores": constraints.real_vector}  # noqa: RUF012 - NumPyro's
    pytree_data_fields = ("distribution",)

    distribution: cj.Catnat
    """The same distribution as a distribution of :mod:`catnat.jax`."""

    @takes_scores
    def __init__(
        self,
        scores: Float[Array, "*batch nodes"],
        tree: Tree | int | None = None,
        activation: cj.Activation | str = "sigmoid",
        *,
        validate_args: bool | None = None,
        **options: Any,
    ) -> None:
        self.distribution = cj.Catnat(scores, tree, activation, **options)
        dist.Distribution.__init__(self, self.distribution.batch_shape, validate_args=validate_args)

    @property
    def scores(self) -> Float[Array, "*batch nodes"]:
        """The scores."""
        return self.distribution.scores

    @lazy_property
    def logits(self) -> Float[Array, "*batch classes"]:
        """The log-probability of every class, O(K); finite."""
        return self.distribution.logits

    @lazy_property
    def probs(self) -> Float[Array, "*batch classes"]:
        """The probability of every class, O(K); it can be exactly 0."""
        return self.distribution.probs

    @property
    def mode(self) -> Int[Array, "*batch"]:
        """The most probable class."""
        return self.distribution.mode

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> constraints.Constraint:
        """All classes, including masked ones."""
        return constraints.integer_interval(0, self.distribution.num_classes - 1)

    def sample(self, key: PRNGKeyArray, sample_shape: tuple[int, ...] = ()) -> Int[Array, "*samples_and_batch"]:
        """Draw classes; see :func:`catnat.jax.sample`."""
        return self.distribution.sample(sample_shape, key=key)

    @validate_sample
    def log_prob(self, value: Shaped[Array, "*samples_and_batch"]) -> Float[Array, "*samples_and_batch"]:
        """Return the log-probability of classes; other values, if checked, give -inf and a warning."""
        value = jnp.asarray(value)  # of any dtype; a small dtype cannot represent the last class
        wide = value.astype(jnp.promote_types(value.dtype, jnp.int32))
        return self.distribution.log_prob(jnp.clip(wide, 0, self.distribution.num_classes - 1).astype(jnp.int32))

    def entropy(self) -> Float[Array, "*batch"]:
        """Return the entropy in nats."""
        return self.distribution.entropy()


@dist.kl_divergence.register(Catnat, Catnat)
def _between_catnats(p: Catnat, q: Catnat) -> Array:
    return p.distribution.kl_divergence(q.distribution)


@dist.kl_divergence.register((dist.CategoricalProbs, dist.CategoricalLogits), Catnat)
@dist.kl_divergence.register(Catnat, (dist.CategoricalProbs, dist.CategoricalLogits))
def _between_categoricals(p: Any, q: Any) -> Array:
    """Return KL(p || q) over all classes, where one distribution is NumPyro's."""
    p_logs, q_logs = (jax.nn.log_softmax(each.logits, -1) for each in (p, q))
    return divergence(p.probs, p_logs, q_logs, q.distribution.mask if isinstance(q, Catnat) else None)


class BinnedCatnat(dist.Distribution):  # type: ignore[misc] # NumPyro has no types
    """A distribution over numbers in ordered bins, with NumPyro's interface; see :class:`catnat.jax.BinnedCatnat`.

    Draws are reparameterized: they are differentiable in the scores.

    Args:
        scores: One score per inner node on the last axis, K-1 for K bins.
        bins: The bins, or their K + 1 edges.
        tree: The tree, or the K of ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural", or an activation object.
        validate_args: Whether to check scores and values; NumPyro's default if not given.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.integrations.numpyro import BinnedCatnat
        >>> price = BinnedCatnat(jnp.zeros(3), [0.0, 1.0, 2.0, 4.0, 8.0])
        >>> print(price.mean.round(4), price.icdf(jnp.array(0.5)).round(4))
        2.75 2.0
    """

    arg_constraints = {"scores": constraints.real_vector}  # noqa: RUF012 - NumPyro's
    reparametrized_params = ["scores"]  # noqa: RUF012 - NumPyro's
    pytree_data_fields = ("distribution",)

    distribution: cj.BinnedCatnat
    """The same distribution as a distribution of :mod:`catnat.jax`."""

    @takes_scores
    def __init__(
        self,
        scores: Float[Array, "*batch nodes"],
        bins: Bins | ArrayLike,
        tree: Tree | int | None = None,
        activation: cj.Activation | str = "sigmoid",
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.distribution = cj.BinnedCatnat(scores, bins, tree, activation)
        super().__init__(self.distribution.batch_shape, validate_args=validate_args)

    @property
    def scores(self) -> Float[Array, "*batch nodes"]:
        """The scores."""
        return self.distribution.scores

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        """The interval from the first edge to the last; all real numbers if there are tails."""
        bins = self.distribution.bins
        return constraints.real if bins.tails else constraints.interval(*map(float, bins.edges[[0, -1]]))

    def sample(self, key: PRNGKeyArray, sample_shape: tuple[int, ...] = ()) -> Float[Array, "*samples_and_batch"]:
        """Draw numbers that are differentiable in the scores."""
        return self.distribution.rsample(sample_shape, key=key)

    @validate_sample
    def log_prob(self, value: Float[Array, "*samples_and_batch"]) -> Float[Array, "*samples_and_batch"]:
        """Return the logarithm of the density, reading one path."""
        return self.distribution.log_prob(jnp.asarray(value))

    def cdf(self, value: Float[Array, "*samples_and_batch"]) -> Float[Array, "*samples_and_batch"]:
        """Return the probability of a number up to ``value``, reading one path."""
        return self.distribution.cdf(jnp.asarray(value))

    def icdf(self, value: Float[Array, "*samples_and_batch"]) -> Float[Array, "*samples_and_batch"]:
        """Return the quantile at the probability ``value``, reading one path."""
        return self.distribution.icdf(jnp.asarray(value))

    @property
    def mean(self) -> Float[Array, "*batch"]:
        """The mean, O(K)."""
        return self.distribution.mean

    @property
    def variance(self) -> Float[Array, "*batch"]:
        """The variance, O(K)."""
        return self.distribution.variance

    def entropy(self) -> Float[Array, "*batch"]:
        """Return the differential entropy in nats, O(K)."""
        return self.distribution.entropy()


@dist.kl_divergence.register(BinnedCatnat, BinnedCatnat)
def _between_binned(p: BinnedCatnat, q: BinnedCatnat) -> Array:
    return p.distribution.kl_divergence(q.distribution)


# ---- the bijection ----


class CatnatTransform(transforms.Transform):  # type: ignore[misc] # NumPyro has no types
    r"""The bijection from scores to the open simplex, :func:`catnat.jax.catnat`.

    .. math:: \log |\det J| = \sum_i \log \bigl( P(i)\, a'(s_i) \bigr)

    J is the Jacobian matrix of the first K-1 probabilities (any K-1 of them give the same determinant), as in NumPyro's
    ``StickBreakingTransform``, which is ``CatnatTransform(chain(K))``.

    With the sigmoid, scores are any K-1 numbers. With the natural activation they lie in an open box, each between the
    edges of its node's band; ``biject_to(transform.domain)`` maps all real vectors into it, and NUTS applies it
    automatically. Probabilities that underflow are set to the smallest normal number, so that logarithms are finite.

    Args:
        tree: The tree, or the K of ``balanced(K)``.
        activation: "sigmoid", "natural", or an activation object.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.integrations.numpyro import CatnatTransform
        >>> transform = CatnatTransform(4)
        >>> print(transform(jnp.array([0.0, 0.0, 1.0])).round(4))
        [0.25   0.25   0.1345 0.3655]
        >>> print(transform.inv(jnp.array([0.25, 0.25, 0.1345, 0.3655])).round(3))
        [0. 0. 1.]

        Two lines sample any model with a Dirichlet through it:

        >>> import jax, numpyro
        >>> from numpyro import distributions as dist
        >>> from numpyro.infer.reparam import ExplicitReparam
        >>> def model():
        ...     numpyro.sample("p", dist.Dirichlet(jnp.ones(4)))
        >>> through_the_tree = {"p": ExplicitReparam(transform.inv)}
        >>> kernel = numpyro.infer.NUTS(
        ...     numpyro.handlers.reparam(model, config=through_the_tree)
        ... )
    """

    codomain = constraints.simplex

    def __init__(self, tree: Tree | int, activation: cj.Activation | str = "sigmoid") -> None:
        self.tree, self.activation = as_tree(tree, 10), resolve(activation)
        self.domain  # noqa: B018 - so that nothing warns later

    @property
    def domain(self) -> constraints.Constraint:
        """All vectors, or with the natural activation those inside every node's band."""
        if not isinstance(self.activation, cj.natural):
            return constraints.real_vector
        with warnings.catch_warnings():  # here an edge only bounds the domain
            warnings.simplefilter("ignore", EdgeWarning)
            band = self.activation.band(self.tree, jnp.result_type(float))
        lower, upper = (jnp.asarray(np.broadcast_to(edge, self.tree.num_nodes)) for edge in (band.lower, band.upper))
        return constraints.independent(constraints.open_interval(lower, upper), 1)

    def __call__(self, x: Float[Array, "*batch nodes"]) -> Float[Array, "*batch classes"]:
        """Return the probabilities of all classes; none is 0."""
        x = jnp.asarray(x)
        probs = cj.catnat(x, self.tree, self.activation)
        return _nan_where_lost(x, jnp.maximum(probs, jnp.finfo(probs.dtype).tiny))

    def _inverse(self, y: Float[Array, "*batch classes"]) -> Float[Array, "*batch nodes"]:
        return cj.scores_from_probs(jnp.asarray(y), self.tree, self.activation)

    def log_abs_det_jacobian(
        self, x: Float[Array, "*batch nodes"], y: Float[Array, "*batch classes"], intermediates: Any = None
    ) -> Float[Array, "*batch"]:
        """Return the log-determinant, from the scores alone; finite, or NaN if a score is NaN."""
        x = jnp.asarray(x)
        return _nan_where_lost(x, log_abs_det_jacobian(x, self.tree, self.activation))

    def forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape with K in place of K-1 on the last axis."""
        return (*shape[:-1], self.tree.num_classes)

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape with K-1 in place of K on the last axis."""
        return (*shape[:-1], self.tree.num_nodes)

    def tree_flatten(self) -> Any:
        """Return no arrays, because the tree and the activation are static."""
        return (), ((), {"tree": self.tree, "activation": self.activation})

    def eq(self, other: object, static: bool = False) -> bool:
        """Return whether ``other`` is the same map."""
        return isinstance(other, CatnatTransform) and self.tree == other.tree and self.activation == other.activation


def _nan_where_lost(scores: Array, values: Array) -> Array:
    """Return ``values``, but NaN in rows with a NaN score, by which samplers detect a divergent step."""
    lost = jnp.isnan(scores).any(-1, keepdims=values.ndim == scores.ndim)
    return jnp.where(lost, jnp.nan, values)
