"""Distributions: torch's categorical family, parameterized by scores on a tree.

They are subclasses of torch's own, so code that asks ``isinstance``, or wants ``probs`` or ``logits``, accepts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Size, Tensor
from torch import distributions as td
from torch.distributions import constraints
from torch.distributions.utils import lazy_property
from torch.nn import functional as F

from catnat._tree import Tree
from catnat.torch import _functional, _paths, _plan
from catnat.torch._activations import Activation


class _AnyScores(constraints.Constraint):
    """Every real vector is a valid vector of scores: there is nothing to check, so none of its K-1 entries is read."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return torch.ones(value.shape[:-1], dtype=torch.bool, device=value.device)


def _validates(validate_args: bool | None) -> bool:
    return td.Distribution._validate_args if validate_args is None else validate_args


class Catnat(td.Categorical):
    r"""A categorical distribution over the leaves of a tree, the twin of ``torch.distributions.Categorical``.

    ``log_prob`` and ``sample`` read only the paths they need. ``logits`` are the leaf log-probabilities, which
    ``log_softmax`` leaves unchanged, so any code that wants logits works with them.

    Args:
        scores: One score per inner node on the last axis, K-1 for K classes.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        validate_args: Whether to check arguments and values; torch's default if not given.

    Example:
        >>> import torch
        >>> from catnat.torch import Catnat
        >>> policy = Catnat(torch.zeros(5, 17))  # 18 actions
        >>> action = policy.sample()
        >>> policy.log_prob(action).exp()
        tensor([0.0556, 0.0556, 0.0556, 0.0556, 0.0556])
    """

    arg_constraints = {"scores": _AnyScores()}  # noqa: RUF012 - torch's own interface

    scores: Tensor
    tree: Tree
    activation: Activation

    def __init__(
        self,
        scores: Float[Tensor, "*batch nodes"],
        tree: Tree | None = None,
        activation: Activation | str = "natural",
        *,
        validate_args: bool | None = None,
    ) -> None:
        self._computed, self.tree, self.activation = _plan.prepare(scores, tree, activation)
        self.scores = scores
        self._num_events = self.tree.num_classes
        # There is nothing to check in scores beyond their shape: only values will be.
        td.Distribution.__init__(self, scores.shape[:-1], Size(), validate_args=False)
        self._validate_args = _validates(validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Catnat:
        """The same distribution with its batch shape expanded."""
        new = self._get_checked_instance(Catnat, _instance)
        new.scores = self.scores.expand(*batch_shape, -1)
        new._computed = self._computed.expand(*batch_shape, -1)
        new.tree, new.activation, new._num_events = self.tree, self.activation, self._num_events
        td.Distribution.__init__(new, Size(batch_shape), Size(), validate_args=False)
        new._validate_args = self._validate_args
        return new

    @lazy_property
    def probs(self) -> Float[Tensor, "*batch classes"]:
        """The probability of every class, O(K)."""
        return _functional.catnat(self.scores, self.tree, self.activation)

    @property
    def logits(self) -> Float[Tensor, "*batch classes"]:
        """The log-probability of every class, O(K); finite."""
        return _plan.saturate(self._log_probs, _plan.returned_dtype(self.scores))

    @property
    def _log_probs(self) -> Tensor:
        """``logits`` before they are rounded to the scores' dtype; kept, with a graph even if first asked without."""
        if self._kept_log_probs is None:
            if self.scores.requires_grad and not torch.is_grad_enabled():
                with torch.enable_grad():
                    return self._log_probs
            self._kept_log_probs = _functional.log_probs(self._computed, self.tree, self.activation)
        return self._kept_log_probs

    _kept_log_probs: Tensor | None = None

    @property
    def _param(self) -> Tensor:  # type: ignore[override]
        """What torch's inherited methods read dtype and device from."""
        return self.scores

    @property
    def param_shape(self) -> Size:
        """The shape of ``probs`` and ``logits``."""
        return Size((*self.scores.shape[:-1], self._num_events))

    @property
    def mode(self) -> Int[Tensor, "*batch"]:
        """The most probable class."""
        return _functional.mode(self.scores, self.tree, self.activation)

    def sample(
        self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None
    ) -> Int[Tensor, "*samples_and_batch"]:
        """Draw classes; see :func:`catnat.torch.sample`."""
        return _functional.draw(self._computed, self.tree, self.activation, sample_shape, generator)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-probability of the classes ``value``."""
        if self._validate_args:
            self._validate_sample(value)
        if self._kept_log_probs is not None or self._num_events <= _functional.MOST_DENSE_CLASSES:
            classes, log_probs = value.long().unsqueeze(-1), self._log_probs
            if value.shape != self._batch_shape:
                classes, log_probs = torch.broadcast_tensors(classes, log_probs)
            found = log_probs.gather(-1, classes.narrow(-1, 0, 1)).squeeze(-1)
        else:
            found = _functional.log_prob_unchecked(self._computed, value.long(), self.tree, self.activation)
        return _plan.saturate(found, _plan.returned_dtype(self.scores))

    def entropy(self) -> Float[Tensor, "*batch"]:
        """The entropy in nats."""
        return _functional.entropy(self.scores, self.tree, self.activation)


class OneHotCatnat(td.OneHotCategorical):
    """The one-hot twin of :class:`Catnat`, a subclass of ``torch.distributions.OneHotCategorical``.

    Args:
        scores: One score per inner node on the last axis, K-1 for K classes.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        validate_args: Whether to check arguments and values; torch's default if not given.

    Example:
        >>> import torch
        >>> from catnat.torch import OneHotCatnat
        >>> OneHotCatnat(torch.zeros(6, 3)).sample().sum(-1)
        tensor([1., 1., 1., 1., 1., 1.])
    """

    arg_constraints = {"scores": _AnyScores()}  # noqa: RUF012 - torch's own interface

    _categorical: Catnat

    def __init__(
        self,
        scores: Float[Tensor, "*batch nodes"],
        tree: Tree | None = None,
        activation: Activation | str = "natural",
        *,
        validate_args: bool | None = None,
    ) -> None:
        self._categorical = Catnat(scores, tree, activation, validate_args=validate_args)
        td.Distribution.__init__(self, scores.shape[:-1], self._categorical.param_shape[-1:], validate_args=False)
        self._validate_args = _validates(validate_args)

    @property
    def scores(self) -> Tensor:
        """The scores, (..., K-1)."""
        return self._categorical.scores

    @property
    def tree(self) -> Tree:
        """The tree."""
        return self._categorical.tree

    @property
    def activation(self) -> Activation:
        """The activation."""
        return self._categorical.activation

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """The same distribution with its batch shape expanded."""
        return super().expand(Size(batch_shape), _instance or type(self).__new__(type(self)))

    @property
    def mode(self) -> Tensor:
        """The most probable class, one-hot."""
        return self._one_hot(self._categorical.mode)

    def sample(self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw one-hot vectors; see :func:`catnat.torch.sample`."""
        return self._one_hot(self._categorical.sample(sample_shape, generator=generator))

    def _one_hot(self, classes: Tensor) -> Tensor:
        return F.one_hot(classes, self._categorical._num_events).to(_plan.returned_dtype(self.scores))


class OneHotCatnatStraightThrough(OneHotCatnat):
    """One-hot samples whose gradient is that of the probabilities (the straight-through estimator).

    Example:
        >>> import torch
        >>> from catnat.torch import OneHotCatnatStraightThrough, catnat
        >>> scores = torch.zeros(3, requires_grad=True)
        >>> sample = OneHotCatnatStraightThrough(scores).rsample()
        >>> (sample @ torch.tensor([1.0, 2.0, 3.0, 4.0])).backward()
        >>> scores.grad  # as if the probabilities had been multiplied
        tensor([0.5000, 0.1250, 0.1250])
    """

    has_rsample = True

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw one-hot vectors that pass gradients to the probabilities."""
        return self.sample(sample_shape, generator=generator) + (self.probs - self.probs.detach())


class _ExpRelaxedCatnat(td.relaxed_categorical.ExpRelaxedCategorical):
    """The logarithm of a relaxed one-hot vector: Gumbel noise on leaf log-probabilities, divided by the temperature.

    It computes in float32 at least: uniforms are never drawn in half precision.
    """

    arg_constraints = {"temperature": constraints.positive}  # noqa: RUF012 - torch's own interface

    _categorical: Catnat

    def __init__(self, temperature: Tensor, categorical: Catnat) -> None:
        self._categorical = categorical
        self.temperature = temperature
        # The relaxed distribution checks; here torch's check would fail on empty batches.
        td.Distribution.__init__(self, categorical.batch_shape, categorical.param_shape[-1:], validate_args=False)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        return super().expand(Size(batch_shape), _instance or type(self).__new__(type(self)))

    @property
    def logits(self) -> Tensor:
        return self._categorical._log_probs

    def rsample(self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        logits = self.logits.expand(self._extended_shape(Size(sample_shape)))
        return F.log_softmax((logits - _paths.log_exponential(logits, generator)) / self.temperature, -1)


class RelaxedOneHotCatnat(td.RelaxedOneHotCategorical):
    """The Gumbel-softmax relaxation of :class:`OneHotCatnat`, on the leaf log-probabilities.

    Args:
        temperature: The relaxation's temperature, positive.
        scores: One score per inner node on the last axis, K-1 for K classes.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        validate_args: Whether to check arguments and values; torch's default if not given.

    Example:
        >>> import torch
        >>> from catnat.torch import RelaxedOneHotCatnat
        >>> RelaxedOneHotCatnat(0.5, torch.zeros(6, 3)).rsample().shape
        torch.Size([6, 4])
    """

    arg_constraints = {"temperature": constraints.positive, "scores": _AnyScores()}  # noqa: RUF012 - torch's own interface

    base_dist: _ExpRelaxedCatnat

    def __init__(
        self,
        temperature: Float[Tensor, ""] | float,
        scores: Float[Tensor, "*batch nodes"],
        tree: Tree | None = None,
        activation: Activation | str = "natural",
        *,
        validate_args: bool | None = None,
    ) -> None:
        categorical = Catnat(scores, tree, activation, validate_args=validate_args)
        heat = torch.as_tensor(temperature, dtype=_plan.computing_dtype(scores.dtype), device=scores.device)
        base = _ExpRelaxedCatnat(heat, categorical)
        td.TransformedDistribution.__init__(self, base, td.transforms.ExpTransform(), validate_args=False)
        self._validate_args = _validates(validate_args)
        if self._validate_args and _plan.is_true((heat > 0).all().logical_not()):
            raise ValueError(f"`temperature` is {temperature}, but a positive number is needed.")

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """The same distribution with its batch shape expanded."""
        return super().expand(Size(batch_shape), _instance or type(self).__new__(type(self)))

    @property
    def scores(self) -> Tensor:
        """The scores, (..., K-1)."""
        return self.base_dist._categorical.scores

    @property
    def tree(self) -> Tree:
        """The tree."""
        return self.base_dist._categorical.tree

    @property
    def activation(self) -> Activation:
        """The activation."""
        return self.base_dist._categorical.activation

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw points of the simplex that pass gradients to the scores."""
        return self.base_dist.rsample(sample_shape, generator).exp().to(_plan.returned_dtype(self.scores))

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density on the simplex. An entry that underflowed to 0 counts as the smallest normal number."""
        if self._validate_args:
            self._validate_sample(value)
        logs = value.to(self.temperature.dtype).clamp(min=torch.finfo(self.temperature.dtype).tiny).log()
        return _plan.saturate(self.base_dist.log_prob(logs) - logs.sum(-1), self.scores.dtype)
