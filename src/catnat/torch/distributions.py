"""Categorical distributions parameterized by scores on a tree.

They subclass torch's distributions, so code that checks ``isinstance`` or reads ``probs`` or ``logits`` accepts them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Size, Tensor
from torch import distributions as td
from torch.distributions import constraints
from torch.nn import functional as F

from catnat import _checks
from catnat.activations import Activation
from catnat.torch import _fused, _inputs, _options, _walk, estimators, functional, geometry
from catnat.torch._constants import constant
from catnat.torch._inputs import as_returned as as_returned
from catnat.torch._inputs import known_true as known_true
from catnat.torch._lookup import plan_for
from catnat.torch._options import Options
from catnat.torch._plan import Plan
from catnat.trees.forest import Forest, as_forest, check_width
from catnat.trees.tree import Tree

__all__ = ["Catnat", "MultiCatnat", "OneHotCatnat", "OneHotCatnatStraightThrough", "RelaxedOneHotCatnat"]


class AnyScores(constraints.Constraint):
    """A constraint that every vector without NaN fulfils."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        """Return which vectors are valid."""
        return (value == value).all(-1)


def validates(validate_args: bool | None) -> bool:
    """Return whether to check values: ``validate_args``, or torch's global setting if it is None."""
    return td.Distribution._validate_args if validate_args is None else validate_args


def check_not_nan(scores: Tensor) -> None:
    """Raise if a score is NaN, as torch does for logits: a draw would be an arbitrary class."""
    if torch.compiler.is_compiling() or not _inputs.known_true(scores.isnan().any()):
        return
    rows = scores.isnan().any(-1)
    raise ValueError(
        f"`scores` is NaN in {int(rows.sum())} of {rows.numel()} rows, but numbers are needed. A layer before has "
        "diverged: look for a learning rate that is too large, or an overflow in half precision. (validate_args=False "
        "skips this check.)"
    )


class Catnat(td.Categorical):
    r"""A categorical distribution over the leaves of a tree, the counterpart of ``torch.distributions.Categorical``.

    ``logits`` are the leaf log-probabilities, which ``log_softmax`` leaves unchanged, so any code that takes logits
    works with them. Above 64 classes, ``log_prob`` and ``sample`` read only the paths they need. With a mask, a
    temperature or unimix they compute all classes.

    Args:
        scores: One score per inner node on the last axis, K-1 for K classes.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural" (the paper's), or an activation object.
        mask: The valid classes, boolean (..., K), broadcast with the batch shape of the scores. The distribution is
            conditioned on them: probabilities are divided by their sum over the valid classes. A masked class has
            probability 0, the smallest finite number as its log-probability and no gradient, and is never drawn.
        valid_classes: The mask as indices (..., m) of the valid classes, padded with -1.
        temperature: The temperature T of the distribution p^(1/T) / Z, O(K): a number, or a tensor of the batch shape.
        unimix: The weight u of the uniform distribution over the valid classes, (1 - u) p + u / K, applied after the
            temperature.
        validate_args: Whether to check scores (NaN), masks, temperatures and values; torch's default if not given.

    Example:
        >>> import torch
        >>> from catnat.torch import Catnat
        >>> policy = Catnat(torch.zeros(5, 17))  # 18 actions
        >>> action = policy.sample()
        >>> policy.log_prob(action).exp()
        tensor([0.0556, 0.0556, 0.0556, 0.0556, 0.0556])
        >>> Catnat(torch.zeros(2), mask=torch.tensor([True, False, True])).probs
        tensor([0.5000, 0.0000, 0.5000])
    """

    arg_constraints = {"scores": AnyScores()}  # noqa: RUF012 - torch's own interface

    scores: Tensor
    plan: Plan
    options: Options | None

    @_checks.explains(**_checks.NOT_SCORES)
    def __init__(
        self,
        scores: Float[Tensor, "*batch nodes"],
        tree: Tree | int | None = None,
        activation: Activation | str = "sigmoid",
        *,
        mask: Bool[Tensor, "*#batch classes"] | None = None,
        valid_classes: Int[Tensor, "*#batch some"] | None = None,
        temperature: float | Tensor = 1.0,
        unimix: float = 0.0,
        validate_args: bool | None = None,
    ) -> None:
        plan, check = plan_for(scores, tree, activation), validates(validate_args)
        if check:
            check_not_nan(scores)
        computed, options = _inputs.widen(scores), None
        if (
            mask is not None
            or valid_classes is not None
            or isinstance(temperature, Tensor)
            or temperature != 1
            or type(unimix) is not float
            or unimix
        ):
            options = _options.options_from(
                computed, plan.tree.num_classes, mask, valid_classes, temperature, unimix, check=check
            )
            if options is not None and options.valid is not None:
                batch = options.valid.shape[:-1]
                scores, computed = scores.expand(*batch, -1), computed.expand(*batch, -1)
        self._set(plan, scores, computed, options, check)

    def _set(self, plan: Plan, scores: Tensor, computed: Tensor, options: Options | None, check: bool) -> None:
        self.plan, self.scores, self.options, self._computed = plan, scores, options, computed
        self._num_events = plan.tree.num_classes
        self._kept: dict[bool, Tensor] = {}
        # torch's own check would look for `probs` and `logits`.
        td.Distribution.__init__(self, scores.shape[:-1], Size(), validate_args=False)
        self._validate_args = check

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Catnat:
        """Return the distribution with its batch shape expanded."""
        new, batch = self._get_checked_instance(Catnat, _instance), Size(batch_shape)
        scores, computed = (values.expand(*batch, -1) for values in (self.scores, self._computed))
        options = None if self.options is None else self.options.expand(batch)
        new._set(self.plan, scores, computed, options, self._validate_args)
        return new

    # ---- parameters ----

    @property
    def tree(self) -> Tree:
        """The tree."""
        return self.plan.tree

    @property
    def activation(self) -> Activation:
        """The activation."""
        return self.plan.activation

    @property
    def mask(self) -> Bool[Tensor, "*batch classes"] | None:
        """The valid classes; None if all are valid."""
        return self._valid

    @property
    def _valid(self) -> Tensor | None:
        """The valid classes, for use in this class: subclasses in other libraries have a method named `mask`."""
        return None if self.options is None else self.options.valid

    @property
    def _param(self) -> Tensor:  # type: ignore[override]
        """The tensor from which torch's inherited methods read dtype and device."""
        return self.scores

    @property
    def param_shape(self) -> Size:
        """The shape of ``probs`` and ``logits``."""
        return Size((*self.scores.shape[:-1], self._num_events))

    # ---- all classes ----

    def log_probs(self, *, floored: bool = True) -> Float[Tensor, "*batch classes"]:
        """Return the log-probability of every class in the computing dtype, cached for the next call.

        Unless ``floored``, its exponential is exactly 0 for a class of probability 0. With unimix no class has a
        probability near 0, and nothing is floored.
        """
        is_mixed = self.options is not None and self.options.unimix > 0
        floored = floored and self.plan.branches.has_floor and not is_mixed
        kept = self._kept.get(floored)
        if kept is None or (torch.is_grad_enabled() and not kept.requires_grad and self._learns()):
            kept = _fused.log_probs(self.plan, self._computed, floored=floored)
            if self.options is not None:
                zero = -math.inf if floored else self.plan.branches.log_of_zero
                kept = _options.apply_options(kept, self.options, zero)
            # Training cannot use tensors made in inference mode. The compiler has no such mode.
            if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
                self._kept[floored] = kept
        return kept

    def _learns(self) -> bool:
        """Return whether the scores or the temperature require gradients."""
        tau = 1.0 if self.options is None else self.options.temperature
        return self._computed.requires_grad or (isinstance(tau, Tensor) and tau.requires_grad)

    @property
    def probs(self) -> Float[Tensor, "*batch classes"]:
        """The probability of every class, O(K)."""
        return _inputs.as_returned(self.log_probs(floored=False).exp(), self.scores)

    @property
    def logits(self) -> Float[Tensor, "*batch classes"]:
        """The log-probability of every class, O(K); finite."""
        return _inputs.as_returned(self.log_probs(), self.scores)

    @property
    def mode(self) -> Int[Tensor, "*batch"]:
        """The most probable class."""
        return self._without_nan(self.log_probs(floored=False).detach()).argmax(-1)

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Return the entropy in nats."""
        return _inputs.as_returned(self._entropy(), self.scores)

    def _entropy(self) -> Tensor:
        """Return the entropy in the computing dtype."""
        exact = self.log_probs(floored=False)
        valid = self._valid
        # The logarithm of a masked class is so large that its product with a gradient could overflow.
        logs = exact if valid is None else exact.masked_fill(~valid, 0)
        return -(exact.exp() * logs).sum(-1)

    # ---- one class ----

    def log_prob(self, value: Int[Tensor, "*samples_and_batch"]) -> Float[Tensor, "*samples_and_batch"]:
        """Return the log-probability of the classes ``value``."""
        if self._validate_args:
            self._validate_sample(value)
        value = _inputs.class_indices(value, "value") if not value.is_floating_point() else value.long()
        is_known = self.plan.branches.has_floor in self._kept  # the table that `pick` would read
        if self.options is None and self.plan.walks and not is_known:
            found = functional.log_prob_of(self.plan, self._computed, value)
        else:
            found = functional.pick(self.log_probs(), value)
        return _inputs.as_returned(found, self.scores)

    def _validate_sample(self, value: Any) -> None:
        """Validate integers as int64: torch compares in their dtype, which may not hold the number of classes."""
        integers = isinstance(value, Tensor) and not value.is_floating_point()
        super()._validate_sample(value.long() if integers else value)

    def sample(
        self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None
    ) -> Int[Tensor, "*samples_and_batch"]:
        """Draw classes; see :func:`catnat.torch.sample`.

        If scores are not validated, a NaN score takes the branch no; with a mask, it may lead to any valid class.
        """
        sample_shape = _checks.shape_of_samples(sample_shape)
        if self.options is None:
            return functional.draw(self.plan, self._computed.detach(), sample_shape, generator)
        weights = self._without_nan(self.log_probs(floored=False).detach()).exp()
        drawn = _walk.draw_by_weight(weights, math.prod(sample_shape), generator)
        return _inputs.samples_first(drawn, sample_shape)

    def _without_nan(self, logs: Tensor) -> Tensor:
        """Replace NaN by probability 1 at the valid classes, so that one of them is drawn."""
        if self.options is None:
            return logs
        valid = torch.ones((), dtype=torch.bool, device=logs.device) if self._valid is None else self._valid
        return torch.where(logs.isnan() & valid, 0, logs.nan_to_num(torch.finfo(logs.dtype).min))

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Raise, because classes have no derivative; the error names the alternatives."""
        _checks.no_rsample(self)

    # ---- geometry ----

    def fisher_diagonal(self) -> Float[Tensor, "*batch nodes"]:
        """Return the diagonal of the Fisher matrix of the scores; see :func:`catnat.torch.geometry.fisher_diagonal`.

        It raises with a mask, a temperature or unimix, because the Fisher matrix is then not diagonal.
        """
        if self.options is not None:
            _checks.not_diagonal()
        return geometry.fisher_diagonal(self.scores, self.tree, self.activation)


class OfCatnat:
    """Base class of distributions that have a :class:`Catnat` inside, with its parameters."""

    _categorical: Catnat

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


class OneHotCatnat(OfCatnat, td.OneHotCategorical):
    """The one-hot counterpart of :class:`Catnat`, a subclass of ``torch.distributions.OneHotCategorical``.

    Args:
        scores: One score per inner node on the last axis, K-1 for K classes.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural" (the paper's), or an activation object.
        mask: The valid classes, as for :class:`Catnat`.
        valid_classes: The mask as indices, as for :class:`Catnat`.
        temperature: The distribution is p^(1/T) / Z, as for :class:`Catnat`; draws stay one-hot.
        unimix: The weight of the uniform distribution, as for :class:`Catnat`.
        validate_args: Whether to check arguments and values; torch's default if not given.

    Example:
        >>> import torch
        >>> from catnat.torch import OneHotCatnat
        >>> OneHotCatnat(torch.zeros(6, 3)).sample().sum(-1)
        tensor([1., 1., 1., 1., 1., 1.])
    """

    arg_constraints = {"scores": AnyScores()}  # noqa: RUF012 - torch's own interface

    _categorical: Catnat

    @_checks.explains(**_checks.NOT_SCORES)
    def __init__(
        self,
        scores: Float[Tensor, "*batch nodes"],
        tree: Tree | int | None = None,
        activation: Activation | str = "sigmoid",
        *,
        mask: Bool[Tensor, "*#batch classes"] | None = None,
        valid_classes: Int[Tensor, "*#batch some"] | None = None,
        temperature: float | Tensor = 1.0,
        unimix: float = 0.0,
        validate_args: bool | None = None,
    ) -> None:
        self._categorical = Catnat(
            scores,
            tree,
            activation,
            mask=mask,
            valid_classes=valid_classes,
            temperature=temperature,
            unimix=unimix,
            validate_args=validate_args,
        )
        shape = self._categorical.param_shape
        td.Distribution.__init__(self, shape[:-1], shape[-1:], validate_args=False)
        self._validate_args = validates(validate_args)

    @property
    def mask(self) -> Bool[Tensor, "*batch classes"] | None:
        """The valid classes; None if all are valid."""
        return self._categorical.mask

    def fisher_diagonal(self) -> Float[Tensor, "*batch nodes"]:
        """Return the diagonal of the Fisher matrix of the scores; see :meth:`Catnat.fisher_diagonal`."""
        return self._categorical.fisher_diagonal()

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """Return the distribution with its batch shape expanded."""
        return super().expand(Size(batch_shape), _instance or type(self).__new__(type(self)))

    @property
    def mode(self) -> Tensor:
        """The most probable class, one-hot."""
        return self._one_hot(self._categorical.mode)

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Raise, because classes have no derivative; the error names the alternatives."""
        _checks.no_rsample(self)

    def sample(self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw one-hot vectors; see :func:`catnat.torch.sample`."""
        return self._one_hot(self._categorical.sample(sample_shape, generator=generator))

    def _one_hot(self, classes: Tensor) -> Tensor:
        return _inputs.one_hot(classes, self._categorical._num_events, _inputs.returned_dtype(self.scores))


class OneHotCatnatStraightThrough(OneHotCatnat):
    """A one-hot distribution whose samples have the gradient of the probabilities (straight-through estimator).

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
        """Draw one-hot vectors that have the gradient of the probabilities."""
        return estimators.straight_through(self, sample_shape=sample_shape, generator=generator)


class _ExpRelaxedCatnat(td.relaxed_categorical.ExpRelaxedCategorical):
    """The distribution of the logarithm of a relaxed one-hot vector, the base distribution of the relaxation.

    It computes in float32 or float64; uniform numbers are never drawn in half precision.
    """

    arg_constraints = {"temperature": constraints.positive}  # noqa: RUF012 - torch's own interface

    _categorical: Catnat

    def __init__(self, temperature: Tensor, categorical: Catnat) -> None:
        self._categorical = categorical
        self.temperature = temperature
        # The relaxed distribution checks its arguments; torch's check here would fail on empty batches.
        td.Distribution.__init__(self, categorical.batch_shape, categorical.param_shape[-1:], validate_args=False)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        return super().expand(Size(batch_shape), _instance or type(self).__new__(type(self)))

    @property
    def logits(self) -> Tensor:
        return self._categorical.log_probs()


class RelaxedOneHotCatnat(OfCatnat, td.RelaxedOneHotCategorical):
    """The Gumbel-softmax relaxation of :class:`OneHotCatnat`, on the leaf log-probabilities.

    Args:
        temperature: The relaxation's temperature, positive; a number, or a tensor of the batch shape.
        scores: One score per inner node on the last axis, K-1 for K classes.
        tree: The tree, or the number of classes K for ``balanced(K)``; by default K is inferred from the scores.
        activation: "sigmoid", "natural" (the paper's), or an activation object.
        mask: The valid classes, as for :class:`Catnat`; draws are exactly 0 at masked classes.
        valid_classes: The mask as indices, as for :class:`Catnat`.
        unimix: The weight of the uniform distribution, as for :class:`Catnat`.
        validate_args: Whether to check arguments and values; torch's default if not given.

    Example:
        >>> import torch
        >>> from catnat.torch import RelaxedOneHotCatnat
        >>> RelaxedOneHotCatnat(0.5, torch.zeros(6, 3)).rsample().shape
        torch.Size([6, 4])
    """

    arg_constraints = {"temperature": constraints.positive, "scores": AnyScores()}  # noqa: RUF012 - torch's own interface

    base_dist: _ExpRelaxedCatnat

    @_checks.explains(**_checks.NOT_SCORES)
    def __init__(
        self,
        temperature: float | Float[Tensor, "*#batch"],
        scores: Float[Tensor, "*batch nodes"],
        tree: Tree | int | None = None,
        activation: Activation | str = "sigmoid",
        *,
        mask: Bool[Tensor, "*#batch classes"] | None = None,
        valid_classes: Int[Tensor, "*#batch some"] | None = None,
        unimix: float = 0.0,
        validate_args: bool | None = None,
    ) -> None:
        categorical = Catnat(
            scores,
            tree,
            activation,
            mask=mask,
            valid_classes=valid_classes,
            unimix=unimix,
            validate_args=validate_args,
        )
        computed = _inputs.widen(categorical.scores)
        tau = torch.as_tensor(temperature, dtype=computed.dtype, device=computed.device)
        tau = tau.reshape(()) if tau.numel() == 1 else tau  # (1,) without a batch is a number, as in torch's example
        check = categorical._validate_args
        tau = _options.checked_temperatures(tau, computed.shape[:-1], computed.dtype, check=check)
        base = _ExpRelaxedCatnat(tau, categorical)
        td.TransformedDistribution.__init__(self, base, td.transforms.ExpTransform(), validate_args=False)
        self._validate_args = check

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """Return the distribution with its batch shape expanded."""
        return super().expand(Size(batch_shape), _instance or type(self).__new__(type(self)))

    @property
    def _categorical(self) -> Catnat:  # type: ignore[override]
        return self.base_dist._categorical

    @property
    def mask(self) -> Bool[Tensor, "*batch classes"] | None:
        """The valid classes; None if all are valid."""
        return self._categorical.mask

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw points of the simplex that are differentiable in the scores."""
        categorical = self.base_dist._categorical
        noisy = estimators.gumbel_noise_on(categorical.log_probs(), categorical.mask, sample_shape, generator)
        soft = _options.apply_temperature(noisy, self.temperature.unsqueeze(-1)).softmax(-1)
        return _inputs.as_returned(soft, self.scores)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-density on the simplex of the valid classes; entries are clamped to the dtype's ``tiny``."""
        if self._validate_args:
            self._validate_sample(value)
        categorical, temperature = self.base_dist._categorical, self.temperature
        logs = value.to(temperature.dtype).clamp(min=torch.finfo(temperature.dtype).tiny).log()
        terms = F.log_softmax(categorical.log_probs() - temperature.unsqueeze(-1) * logs, -1) - logs
        count = logs.new_full((), logs.shape[-1])
        if categorical.mask is not None:
            count = categorical.mask.sum(-1).to(logs.dtype)
            terms = torch.where(categorical.mask, terms, torch.zeros_like(terms))
        density = torch.lgamma(count) + (count - 1) * temperature.log() + terms.sum(-1)
        return _inputs.as_returned(density, self.scores)


# ---- several variables ----


class _Classes(constraints.Constraint):
    """A constraint on vectors of class indices: each is below its variable's number of classes."""

    event_dim, is_discrete = 1, True

    def __init__(self, forest: Forest) -> None:
        self.sizes = forest.sizes

    def check(self, value: Tensor) -> Tensor:
        """Return which vectors are valid."""
        sizes = torch.tensor(self.sizes, device=value.device)
        return ((value >= 0) & (value < sizes)).all(-1) & (value % 1 == 0).all(-1)


class MultiCatnat(td.Distribution):
    r"""N independent categorical variables with different numbers of classes.

    Scores, probabilities and one-hot vectors of the variables are concatenated in the order of ``trees``; a value is a
    vector of N class indices. ``log_prob``, ``entropy`` and the KL divergence are sums over the variables. Variables
    with equal trees are computed together, as one :class:`Catnat`.

    Args:
        scores: The scores of all variables, :math:`\sum_n (K_n - 1)` on the last axis.
        trees: A tree or a number of classes for every variable, or a :class:`catnat.Forest` of them. Under
            ``torch.compile`` pass a forest that was built outside the compiled function.
        activation: "sigmoid", "natural" (the paper's), or an activation object, for all variables.
        mask: The valid classes of all variables, boolean, :math:`\sum_n K_n` on the last axis.
        temperature: The distribution is p^(1/T) / Z for every variable, as for :class:`Catnat`.
        unimix: The weight of every variable's uniform distribution, as for :class:`Catnat`.
        validate_args: Whether to check arguments and values; torch's default if not given.

    Example:
        >>> import torch
        >>> from catnat.torch import MultiCatnat
        >>> latent = MultiCatnat(torch.zeros(8, 2 + 4 + 9), [3, 5, 10])
        >>> latent.sample().shape, latent.rsample_one_hot().shape
        (torch.Size([8, 3]), torch.Size([8, 18]))
        >>> latent.entropy()[0].exp()  # 3 * 5 * 10 equally probable values
        tensor(150.0000)
    """

    arg_constraints = {"scores": AnyScores()}  # noqa: RUF012 - torch's own interface
    has_enumerate_support = False

    scores: Tensor
    forest: Forest
    parts: tuple[Catnat, ...]
    """A distribution for every group of equal trees, with the variables of the group as its last batch axis."""

    @_checks.explains(**_checks.NOT_SCORES)
    def __init__(
        self,
        scores: Float[Tensor, "*batch nodes"],
        trees: Forest | Iterable[Tree | int],
        activation: Activation | str = "sigmoid",
        *,
        mask: Bool[Tensor, "*#batch classes"] | None = None,
        temperature: float | Tensor = 1.0,
        unimix: float = 0.0,
        validate_args: bool | None = None,
    ) -> None:
        forest = as_forest(trees)
        _inputs.check_scores(scores)
        check_width(scores.shape[-1], forest)
        if mask is not None:
            _inputs.check_tensor(mask, "mask")
            if mask.dtype != torch.bool:
                raise TypeError(f"`mask` has dtype {mask.dtype}, but with several variables it must be boolean.")
            _checks.width_of_mask(mask.shape[-1], forest.num_classes)
            _checks.mask_beside_scores(mask.shape[:-1], scores.shape[:-1])
            scores = scores.expand(*torch.broadcast_shapes(mask.shape[:-1], scores.shape[:-1]), -1)
        parts = tuple(
            Catnat(
                _take(scores, places.nodes, group.nodes.shape),
                group.tree,
                activation,
                mask=None if mask is None else _take(mask, places.classes, group.classes.shape),
                temperature=temperature.unsqueeze(-1) if isinstance(temperature, Tensor) else temperature,
                unimix=unimix,
                validate_args=validate_args,
            )
            for group, places in zip(forest.groups, _places(forest, scores.device), strict=True)
        )
        self._set(forest, scores, parts, validates(validate_args))

    def _set(self, forest: Forest, scores: Tensor, parts: tuple[Catnat, ...], check: bool) -> None:
        self.forest, self.scores, self.parts = forest, scores, parts
        super().__init__(scores.shape[:-1], Size((len(forest.trees),)), validate_args=False)
        self._validate_args = check

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> MultiCatnat:
        """Return the distribution with its batch shape expanded."""
        new, batch = self._get_checked_instance(MultiCatnat, _instance), Size(batch_shape)
        parts = tuple(part.expand(Size((*batch, part.batch_shape[-1]))) for part in self.parts)
        new._set(self.forest, self.scores.expand(*batch, -1), parts, self._validate_args)
        return new

    @property
    def support(self) -> constraints.Constraint:
        """One class index per variable."""
        return _Classes(self.forest)

    @property
    def activation(self) -> Activation:
        """The activation of all variables."""
        return self.parts[0].activation

    @property
    def mask(self) -> Bool[Tensor, "*batch classes"] | None:
        """The valid classes of all variables; None if all are valid."""
        masks = [part.mask for part in self.parts]
        return None if masks[0] is None else self._joined([mask for mask in masks if mask is not None], "classes")

    # ---- all classes, concatenated ----

    @property
    def probs(self) -> Float[Tensor, "*batch classes"]:
        """The probabilities of all classes of all variables."""
        return self._joined([part.probs for part in self.parts], "classes")

    @property
    def logits(self) -> Float[Tensor, "*batch classes"]:
        """The log-probabilities of all classes of all variables; finite."""
        return self._joined([part.logits for part in self.parts], "classes")

    def split(self, values: Tensor) -> tuple[Tensor, ...]:
        """Split values of all classes, such as ``probs``, into one tensor per variable."""
        return values.split(self.forest.sizes, -1)

    def one_hot(self, value: Int[Tensor, "*any variables"]) -> Float[Tensor, "*any classes"]:
        """Return the concatenated one-hot vectors of the class indices ``value``."""
        dtype = _inputs.returned_dtype(self.scores)
        parts = []
        for group, classes in zip(self.forest.groups, self._values(value), strict=True):
            parts.append(_inputs.one_hot(classes, group.tree.num_classes, dtype))
        return self._joined(parts, "classes")

    def rsample_one_hot(
        self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*samples_and_batch classes"]:
        """Draw concatenated one-hot vectors that have the gradient of the probabilities (straight-through)."""
        probs = self.probs
        return self.one_hot(self.sample(sample_shape, generator=generator)) + (probs - probs.detach())

    # ---- one class per variable ----

    @property
    def mode(self) -> Int[Tensor, "*batch variables"]:
        """The most probable class of every variable."""
        return self._joined([part.mode for part in self.parts], "variables")

    def sample(
        self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None
    ) -> Int[Tensor, "*samples_and_batch variables"]:
        """Draw a class for every variable."""
        return self._joined([part.sample(sample_shape, generator=generator) for part in self.parts], "variables")

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Raise, because classes have no derivative; the error names the alternatives."""
        _checks.no_rsample(self)

    def log_prob(self, value: Int[Tensor, "*samples_and_batch variables"]) -> Float[Tensor, "*samples_and_batch"]:
        """Return the log-probability of all variables together, the smallest finite number if a class is masked."""
        if self._validate_args:
            self._validate_sample(value.long() if not value.is_floating_point() else value)
        parts = []
        for part, classes in zip(self.parts, self._values(value), strict=True):
            if part.options is None and part.plan.walks:
                found = functional.log_prob_of(part.plan, part._computed, classes)
            else:
                found = functional.pick(part.log_probs(), classes)
            parts.append(found)
        each = torch.cat(parts, -1)
        lowest = torch.finfo(each.dtype).min
        total = each.sum(-1)
        if self.parts[0].mask is not None:
            total = total.masked_fill((each == lowest).any(-1), lowest)
        return _inputs.as_returned(total, self.scores)

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Return the entropy of all variables together, in nats."""
        return _inputs.as_returned(torch.stack([part._entropy().sum(-1) for part in self.parts]).sum(0), self.scores)

    def fisher_diagonal(self) -> Float[Tensor, "*batch nodes"]:
        """Return the diagonal of the Fisher matrix of all scores; see :meth:`Catnat.fisher_diagonal`."""
        return self._joined([part.fisher_diagonal() for part in self.parts], "nodes")

    # ---- from parts to variables, and back ----

    def _values(self, value: Tensor) -> list[Tensor]:
        """Return the class indices of the variables of every group."""
        value = value.long()
        groups = (each.variables for each in _places(self.forest, value.device))
        return [value if index is None else value.index_select(-1, index) for index in groups]

    def _joined(self, parts: Sequence[Tensor], what: Literal["variables", "nodes", "classes"]) -> Tensor:
        """Concatenate values of the parts in the order of the variables; ``what`` names their last axis."""
        if what != "variables":
            parts = [part.flatten(-2) for part in parts]
        if len(parts) == 1:
            return parts[0]
        return torch.cat(list(parts), -1).index_select(-1, getattr(_orders(self.forest, parts[0].device), what))


def _take(values: Tensor, index: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    """Select entries of the last axis, all if ``index`` is None, and reshape that axis to ``shape``."""
    chosen = values if index is None else values.index_select(-1, index)
    return chosen.reshape(*chosen.shape[:-1], *shape)


class _Places(NamedTuple):
    """The indices of a group's variables, nodes and classes among all; None if the group contains all of them."""

    variables: Tensor | None
    nodes: Tensor | None
    classes: Tensor | None


@constant
def _places(forest: Forest, device: torch.device) -> tuple[_Places, ...]:
    def index(places: NDArray[np.int64], count: int) -> Tensor | None:
        return None if places.size == count else torch.as_tensor(places.flatten(), device=device)

    counts = len(forest.sizes), forest.num_nodes, forest.num_classes
    return tuple(_Places(*map(index, group[1:], counts)) for group in forest.groups)


@constant
def _orders(forest: Forest, device: torch.device) -> _Places:
    """Return the index of each variable's entries in the concatenation of the groups' entries."""

    def order(*places: NDArray[np.int64]) -> Tensor:
        return torch.as_tensor(np.argsort(np.concatenate([each.flatten() for each in places])), device=device)

    return _Places(*map(order, *(group[1:] for group in forest.groups)))
