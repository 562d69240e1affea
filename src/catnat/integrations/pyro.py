"""Pyro: categorical distributions with scores on a tree, for models, guides and enumeration.

They are Pyro's own classes with the laws of :mod:`catnat.torch`. One word stands for two things there. The *argument*
``mask`` gives the valid classes, and the attribute ``valid_classes`` tells them. The *method* ``mask`` is Pyro's: it
leaves whole variables out of a model.
"""

from __future__ import annotations

from typing import Any

try:
    from pyro import distributions as dist  # type: ignore[import-untyped, import-not-found, unused-ignore]
except ImportError as error:
    raise ImportError('catnat.integrations.pyro needs Pyro: pip install "catnat[pyro]".') from error

from jaxtyping import Float, Shaped
from torch import Size, Tensor

import catnat.torch as ct

__all__ = ["Catnat", "OneHotCatnat", "OneHotCatnatStraightThrough"]


class Catnat(ct.Catnat, dist.Categorical):  # type: ignore[misc, unused-ignore] # Pyro has few types
    r"""``pyro.distributions.Categorical`` with scores on a tree: a value is a class.

    ``sample`` and ``log_prob`` read only the paths they need, but when all classes are enumerated all are computed at
    once. A masked class is in the support, with the smallest finite number as its log-probability.

    Args:
        scores: One score per inner node on the last axis, K-1 for K classes.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        mask: The valid classes, as for :class:`catnat.torch.Catnat`.
        mask_mode: "prune" or "renormalize", as for :class:`catnat.torch.Catnat`.
        temperature: The law is p^(1/T) / Z, as for :class:`catnat.torch.Catnat`.
        unimix: The share of the uniform law, as for :class:`catnat.torch.Catnat`.
        validate_args: Whether to check values, by default as Pyro is set, and masks, by default always.

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

    mask = dist.Categorical.mask  # type: ignore[assignment, unused-ignore] # Pyro's method, where ours is a property
    valid_classes = ct.Catnat.mask

    def log_prob(self, value: Shaped[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The log-probability of classes; of all of them if ``value`` is what :meth:`enumerate_support` gave."""
        if getattr(value, "_pyro_categorical_support", None) == id(self):
            return dist.Categorical.log_prob(self, value)
        return super().log_prob(value)


class OneHotCatnat(ct.OneHotCatnat, dist.OneHotCategorical):  # type: ignore[misc, unused-ignore] # as above
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
        """The batch and the event shape, from the shape of the scores: K for K-1 scores."""
        return Size(scores[:-1]), Size((scores[-1] + 1,))


class OneHotCatnatStraightThrough(OneHotCatnat, ct.OneHotCatnatStraightThrough):
    """One-hot draws whose gradient is that of the probabilities, as Pyro's ``OneHotCategoricalStraightThrough``.

    Pyro takes them as reparameterized, so that ``Trace_ELBO`` differentiates through them.

    Example:
        >>> import torch
        >>> from catnat.integrations.pyro import OneHotCatnatStraightThrough
        >>> scores = torch.zeros(3, requires_grad=True)
        >>> (OneHotCatnatStraightThrough(scores)() @ torch.tensor([1.0, 2.0, 3.0, 4.0])).backward()
        >>> scores.grad  # as if the probabilities had been multiplied
        tensor([0.5000, 0.1250, 0.1250])
    """
