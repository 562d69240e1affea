"""Pyro: categorical distributions with scores on a tree, and the tree as a bijection onto the simplex.

The distributions subclass those of Pyro and of :mod:`catnat.torch`, which use the name ``mask`` differently. The
*argument* ``mask`` gives the valid classes, and the attribute ``valid_classes`` contains them, as booleans. The
*method* ``mask`` is Pyro's: it leaves whole variables out of a model.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

try:
    from pyro import distributions as dist  # type: ignore[import-untyped, import-not-found, unused-ignore]
except ImportError as error:
    raise ImportError('catnat.integrations.pyro needs Pyro: pip install "catnat[pyro]".') from error

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Size, Tensor
from torch.distributions import Transform, constraints

import catnat.torch as ct
from catnat import EdgeWarning, Tree
from catnat.activations import resolve
from catnat.torch.geometry import log_abs_det_jacobian
from catnat.trees.builders import as_tree

__all__ = ["BinnedCatnat", "Catnat", "CatnatTransform", "OneHotCatnat", "OneHotCatnatStraightThrough"]


# ---- the distributions ----


class _ScoresOrLogits:
    """A distribution that can be built from logits too, as Pyro builds marginals and posteriors."""

    def __init__(
        self,
        scores: Tensor | None = None,
        tree: Tree | int | None = None,
        activation: ct.Activation | str = "sigmoid",
        *,
        logits: Tensor | None = None,
        **options: Any,
    ) -> None:
        if logits is not None:
            if scores is not None:
                raise TypeError("Give `scores`, one per node (K - 1), or `logits`, one per class (K), not both.")
            scores = ct.scores_from_logits(logits, tree, activation)
        build: Any = super().__init__
        build(scores, tree, activation, **options)


class Catnat(_ScoresOrLogits, ct.Catnat, dist.Categorical):  # type: ignore[misc, unused-ignore] # Pyro has few types
    r"""``pyro.distributions.Categorical`` with scores on a tree: a value is a class.

    ``sample`` and ``log_prob`` read only the paths they need. If all classes are enumerated, they are computed at once.
    A masked class is in the support, with the smallest finite number as its log-probability.

    Args:
        scores: One score per inner node on the last axis, K-1 for K classes.
        tree: The tree, or the number of classes K of ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural", or an activation object.
        mask: The valid classes, as for :class:`catnat.torch.Catnat`, which also describes ``valid_classes``,
            ``temperature`` and ``unimix``.
        logits: One logit per class, in place of scores: the distribution of softmax. Pyro builds marginals so.
        validate_args: Whether to check scores, masks and values; Pyro's default if not given.

    Example:
        >>> import pyro, torch
        >>> from pyro import distributions as dist
        >>> from catnat.integrations.pyro import Catnat
        >>> group = Catnat(torch.zeros(2))
        >>> group.enumerate_support(), group.log_prob(torch.tensor([0, 2])).exp()
        (tensor([0, 1, 2]), tensor([0.3333, 0.3333]))
        >>> with pyro.plate("points", 4):
        ...     print(pyro.sample("group", group).shape)
        torch.Size([4])
    """

    mask = dist.Categorical.mask  # type: ignore[assignment, unused-ignore] # Pyro's method; catnat's is a property
    valid_classes = ct.Catnat.mask

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """Return the distribution with its batch shape expanded."""
        return super().expand(Size(batch_shape), _instance or type(self).__new__(type(self)))

    def log_prob(self, value: Shaped[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return the log-probability of classes, of all at once if given ``enumerate_support(expand=False)``."""
        if getattr(value, "_pyro_categorical_support", None) == id(self):
            return dist.Categorical.log_prob(self, value)
        return super().log_prob(value)


class OneHotCatnat(_ScoresOrLogits, ct.OneHotCatnat, dist.OneHotCategorical):  # type: ignore[misc, unused-ignore] # as above
    """``pyro.distributions.OneHotCategorical`` with scores on a tree: a value is a one-hot vector.

    Its arguments are those of :class:`Catnat`.

    Example:
        >>> import torch
        >>> from catnat.integrations.pyro import OneHotCatnat
        >>> OneHotCatnat(torch.zeros(2)).enumerate_support()
        tensor([[1., 0., 0.],
                [0., 1., 0.],
                [0., 0., 1.]])
    """

    mask = dist.OneHotCategorical.mask  # type: ignore[assignment, unused-ignore] # as above
    valid_classes = ct.OneHotCatnat.mask

    @staticmethod
    def infer_shapes(scores: Size, **_: Any) -> tuple[Size, Size]:  # type: ignore[override, unused-ignore]
        """Return the batch shape and the event shape, (K,), for the shape of the scores."""
        return Size(scores[:-1]), Size((scores[-1] + 1,))


class OneHotCatnatStraightThrough(OneHotCatnat, ct.OneHotCatnatStraightThrough):
    """A :class:`OneHotCatnat` whose draws have the gradient of the probabilities (straight-through).

    As for ``OneHotCategoricalStraightThrough``, Pyro treats draws as reparameterized: ``Trace_ELBO`` differentiates
    through them.

    Example:
        >>> import torch
        >>> from catnat.integrations.pyro import OneHotCatnatStraightThrough
        >>> scores = torch.zeros(3, requires_grad=True)
        >>> (
        ...     OneHotCatnatStraightThrough(scores)() @ torch.tensor([1.0, 2.0, 3.0, 4.0])
        ... ).backward()
        >>> scores.grad  # as if the probabilities had been multiplied
        tensor([0.5000, 0.1250, 0.1250])
    """


class BinnedCatnat(ct.BinnedCatnat, dist.TorchDistribution):  # type: ignore[misc, unused-ignore] # as above
    """A distribution over numbers in ordered bins, with Pyro's interface; see :class:`catnat.torch.BinnedCatnat`.

    Draws are reparameterized.

    Example:
        >>> import pyro, torch
        >>> from catnat.integrations.pyro import BinnedCatnat
        >>> price = BinnedCatnat(torch.zeros(3), [0.0, 1.0, 2.0, 4.0, 8.0])
        >>> with pyro.plate("goods", 5):
        ...     print(pyro.sample("price", price).shape)
        torch.Size([5])
    """


# ---- the bijection ----


class CatnatTransform(Transform):
    r"""The bijection from scores to the open simplex, :func:`catnat.torch.catnat`.

    .. math:: \log |\det J| = \sum_i \log \bigl( P(i)\, a'(s_i) \bigr)

    J is the Jacobian matrix of the first K-1 probabilities (any K-1 of them give the same determinant), as in
    ``StickBreakingTransform``, which is ``CatnatTransform(chain(K))``.

    With the sigmoid, scores are any K-1 numbers. With the natural activation they lie in a box, each between the edges
    of its node's band; ``biject_to(transform.domain)`` maps all real vectors into it. Probabilities that underflow
    are set to the smallest normal number, so that logarithms are finite.

    Args:
        tree: The tree, or the number of classes K of ``balanced(K)``.
        activation: "sigmoid", "natural", or an activation object.
        cache_size: 0, or 1 to cache the last scores and their probabilities, as in every transform.

    Example:
        >>> import torch
        >>> from catnat.integrations.pyro import CatnatTransform
        >>> transform = CatnatTransform(4)
        >>> transform(torch.tensor([0.0, 0.0, 1.0]))
        tensor([0.2500, 0.2500, 0.1345, 0.3655])
        >>> transform.inv(torch.tensor([0.25, 0.25, 0.1345, 0.3655])).round(decimals=3)
        tensor([0., 0., 1.])

        NUTS samples a Dirichlet through it by ``transforms``, which must then cover every constrained site:

        >>> import pyro
        >>> from pyro import distributions as dist
        >>> def model():
        ...     pyro.sample("p", dist.Dirichlet(torch.ones(4)))
        >>> kernel = pyro.infer.NUTS(model, transforms={"p": transform.inv})
    """

    bijective = True
    codomain = constraints.simplex

    def __init__(self, tree: Tree | int, activation: ct.Activation | str = "sigmoid", *, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.tree, self.activation = as_tree(tree, 10), resolve(activation)
        self.domain = self._bands()

    def _bands(self) -> constraints.Constraint:
        """Return all real vectors, or with the natural activation those inside every node's band."""
        if not isinstance(self.activation, ct.natural):
            return constraints.real_vector
        dtype = torch.get_default_dtype()
        with warnings.catch_warnings():  # here an edge only bounds the domain
            warnings.simplefilter("ignore", EdgeWarning)
            band = self.activation.band(self.tree, np.dtype(str(dtype).removeprefix("torch.")))
        lower, upper = (torch.as_tensor(edge, device=torch.get_default_device()) for edge in (band.lower, band.upper))
        return constraints.independent(constraints.interval(lower, upper), 1)

    def _call(self, x: Float[Tensor, "*batch nodes"]) -> Float[Tensor, "*batch classes"]:
        probs = ct.catnat(x, self.tree, self.activation)
        return probs.clamp(min=torch.finfo(probs.dtype).tiny)

    def _inverse(self, y: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch nodes"]:
        return ct.scores_from_probs(y, self.tree, self.activation)

    def log_abs_det_jacobian(
        self, x: Float[Tensor, "*batch nodes"], y: Float[Tensor, "*batch classes"] | None
    ) -> Float[Tensor, "*batch"]:
        """Return the log-determinant, from the scores alone; finite."""
        return log_abs_det_jacobian(x, self.tree, self.activation)

    def forward_shape(self, shape: Size) -> Size:
        """Return the shape with K in place of K-1 on the last axis."""
        return Size((*shape[:-1], self.tree.num_classes))

    def inverse_shape(self, shape: Size) -> Size:
        """Return the shape with K-1 in place of K on the last axis."""
        return Size((*shape[:-1], self.tree.num_nodes))

    def with_cache(self, cache_size: int = 1) -> CatnatTransform:
        """Return the same map, with or without a cache."""
        if self._cache_size == cache_size:
            return self
        return CatnatTransform(self.tree, self.activation, cache_size=cache_size)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CatnatTransform) and self.tree == other.tree and self.activation == other.activation

    def __hash__(self) -> int:
        return hash((self.tree, self.activation))

    def __repr__(self) -> str:
        return f"CatnatTransform({self.tree!r}, {self.activation!r})"
