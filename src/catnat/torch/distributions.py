"""Distributions: torch's categorical family, parameterized by scores on a tree.

They are subclasses of torch's own, so code that checks ``isinstance``, or wants ``probs`` or ``logits``, accepts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Size, Tensor
from torch import distributions as td
from torch.distributions import constraints
from torch.nn import functional as F

from catnat import _checks
from catnat.activations import Activation
from catnat.torch import _dense, _inputs, _leaves, _masks, estimators
from catnat.torch._leaves import Leaves
from catnat.torch._nodes import Nodes
from catnat.trees.tree import Tree


class AnyScores(constraints.Constraint):
    """Every vector of numbers is a valid vector of scores; NaN is none."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (value == value).all(-1)


def validates(validate_args: bool | None) -> bool:
    """Whether to check values: what the user says, or else torch's global choice."""
    return td.Distribution._validate_args if validate_args is None else validate_args


def check_not_nan(scores: Tensor) -> None:
    """Raise where a score is NaN, as torch does for logits: its draws would be some class without a word."""
    if torch.compiler.is_compiling() or not _inputs.is_true(scores.isnan().any()):
        return
    rows = scores.isnan().any(-1)
    raise ValueError(
        f"`scores` is NaN in {int(rows.sum())} of {rows.numel()} rows, but numbers are needed. A layer before has "
        "diverged: look for a learning rate that is too large, or an overflow in half precision. (validate_args=False "
        "leaves this check out.)"
    )


class OnLeaves(td.Distribution):
    """What the distributions of classes have in common: they hold leaves, and read all from them."""

    scores: Tensor
    _leaves: Leaves
    _probs: Tensor | None = None

    @property
    def mask(self) -> Bool[Tensor, "*batch classes"] | None:
        """The valid classes; None if all are."""
        return self._leaves.valid

    @property
    def probs(self) -> Float[Tensor, "*batch classes"]:
        """The probability of every class, O(K)."""
        return _leaves.keep(self, "_probs", lambda: self._leaves.probs().to(_inputs.returned_dtype(self.scores)))

    @property
    def logits(self) -> Float[Tensor, "*batch classes"]:
        """The log-probability of every class, O(K); finite."""
        return _inputs.saturate(self._leaves.log_probs, _inputs.returned_dtype(self.scores))

    @property
    def mode(self) -> Int[Tensor, "..."]:
        """The most probable class."""
        return self._leaves.mode()

    def sample(
        self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None
    ) -> Int[Tensor, "..."]:
        """Draw classes; see :func:`catnat.torch.sample`.

        If scores are not validated, one that is NaN takes the branch no, or, where there is a mask, read as 0, so that
        no masked class is drawn.
        """
        return self._leaves.draw(sample_shape, generator)

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Classes have no derivative: this raises, and says what there is instead."""
        _checks.no_rsample(self)

    def log_prob(self, value: Int[Tensor, "..."]) -> Float[Tensor, "*samples_and_batch"]:
        """The log-probability of the classes ``value``."""
        if self._validate_args:
            self._validate_sample(value)
        return _inputs.saturate(self._leaves.log_prob(value), _inputs.returned_dtype(self.scores))

    def _validate_sample(self, value: Any) -> None:
        """As torch does, which compares in the dtype of the value: a small one cannot hold the number of classes."""
        integers = isinstance(value, Tensor) and not value.is_floating_point()
        super()._validate_sample(value.long() if integers else value)

    def entropy(self) -> Float[Tensor, "*batch"]:
        """The entropy in nats."""
        return _inputs.saturate(self._leaves.entropy(), _inputs.returned_dtype(self.scores))

    def fisher_diagonal(self) -> Float[Tensor, "*batch nodes"]:
        """The diagonal of the Fisher matrix of the scores; see :func:`catnat.torch.geometry.fisher_diagonal`.

        It exists for the distribution of a tree, pruned or not. A mixture, a temperature and a renormalized
        distribution have full Fisher matrices, for which this raises.
        """
        return _inputs.saturate(self._leaves.fisher_diagonal(), _inputs.returned_dtype(self.scores))


def leaves_of(distribution: OnLeaves) -> Leaves:
    """The leaves of a distribution."""
    return distribution._leaves


class Catnat(OnLeaves, td.Categorical):
    r"""A categorical distribution over the leaves of a tree, the counterpart of ``torch.distributions.Categorical``.

    ``log_prob`` and ``sample`` read only the paths they need. ``logits`` are the leaf log-probabilities, which
    ``log_softmax`` leaves unchanged, so any code that wants logits works with them.

    Args:
        scores: One score per inner node on the last axis, K-1 for K classes.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.
        mask: The valid classes, boolean (..., K); its leading axes and the batch of the scores are broadcast. A masked
            class has probability 0, the smallest finite number as its
            log-probability, no gradient, and is never drawn.
        valid_classes: The mask as indices (..., m) of the valid classes, padded with -1.
        mask_mode: What a mask makes of the distribution. "renormalize": the probabilities without the mask, divided by
            their sum over the valid classes, O(K); the conditional distribution, as masked logits give it. "prune": a
            node of which one side is masked is passed over; what is left is a tree again, its Fisher matrix is
            diagonal, draws are O(depth), and zero scores mean the prior over the valid classes.
        temperature: The distribution is p^(1/T) / Z, O(K); a number, or a tensor of the batch shape.
        unimix: The weight u of the uniform distribution over the valid classes, (1 - u) p + u / K, after the
            temperature.
        validate_args: Whether to check scores (NaN) and values, by torch's default if not given, and masks, by default
            always.

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
    tree: Tree
    activation: Activation

    @_checks.explains(**_checks.NOT_SCORES)
    def __init__(
        self,
        scores: Float[Tensor, "*batch nodes"],
        tree: Tree | None = None,
        activation: Activation | str = "natural",
        *,
        num_classes: int | None = None,
        mask: Bool[Tensor, "*#batch classes"] | None = None,
        valid_classes: Int[Tensor, "*#batch some"] | None = None,
        mask_mode: Literal["renormalize", "prune"] = "renormalize",
        temperature: float | Tensor = 1.0,
        unimix: float = 0.0,
        validate_args: bool | None = None,
    ) -> None:
        computed, self.tree, self.activation = _inputs.check(scores, tree, activation, num_classes)
        nodes = Nodes(computed, self.tree, self.activation)
        # Unless told not to: torch's global choice is no guide, because torch.compile turns it off for all.
        check = validate_args is not False
        mask = _masks.given(mask, valid_classes, self.tree.num_classes)
        self._leaves = _leaves.from_options(nodes, mask, mask_mode, temperature, unimix, check=check)
        self.scores = scores if mask is None else scores.expand(*self._leaves.nodes.scores.shape[:-1], -1)
        self._num_events = self.tree.num_classes
        # Not by torch's own check, which would look for `probs` and `logits`.
        td.Distribution.__init__(self, self.scores.shape[:-1], Size(), validate_args=False)
        self._validate_args = validates(validate_args)
        if self._validate_args:
            check_not_nan(scores)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Catnat:
        """The same distribution with its batch shape expanded."""
        new = self._get_checked_instance(Catnat, _instance)
        new.scores, new._leaves = self.scores.expand(*batch_shape, -1), self._leaves.expand(batch_shape)
        new.tree, new.activation, new._num_events = self.tree, self.activation, self._num_events
        td.Distribution.__init__(new, Size(batch_shape), Size(), validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def _param(self) -> Tensor:  # type: ignore[override]
        """What torch's inherited methods read dtype and device from."""
        return self.scores

    @property
    def param_shape(self) -> Size:
        """The shape of ``probs`` and ``logits``."""
        return Size((*self.scores.shape[:-1], self._num_events))


class OneHotCatnat(td.OneHotCategorical):
    """The one-hot counterpart of :class:`Catnat`, a subclass of ``torch.distributions.OneHotCategorical``.

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
        validate_args: Whether to check scores (NaN) and values, by torch's default if not given, and masks, by default
            always.

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
        tree: Tree | None = None,
        activation: Activation | str = "natural",
        *,
        num_classes: int | None = None,
        mask: Bool[Tensor, "*#batch classes"] | None = None,
        valid_classes: Int[Tensor, "*#batch some"] | None = None,
        mask_mode: Literal["renormalize", "prune"] = "renormalize",
        temperature: float | Tensor = 1.0,
        unimix: float = 0.0,
        validate_args: bool | None = None,
    ) -> None:
        self._categorical = Catnat(
            scores,
            tree,
            activation,
            num_classes=num_classes,
            mask=mask,
            valid_classes=valid_classes,
            mask_mode=mask_mode,
            temperature=temperature,
            unimix=unimix,
            validate_args=validate_args,
        )
        shape = self._categorical.param_shape
        td.Distribution.__init__(self, shape[:-1], shape[-1:], validate_args=False)
        self._validate_args = validates(validate_args)

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

    @property
    def mask(self) -> Bool[Tensor, "*batch classes"] | None:
        """The valid classes; None if all are."""
        return self._categorical.mask

    def fisher_diagonal(self) -> Float[Tensor, "*batch nodes"]:
        """The diagonal of the Fisher matrix of the scores; see :meth:`Catnat.fisher_diagonal`."""
        return self._categorical.fisher_diagonal()

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Any:
        """The same distribution with its batch shape expanded."""
        return super().expand(Size(batch_shape), _instance or type(self).__new__(type(self)))

    @property
    def mode(self) -> Tensor:
        """The most probable class, one-hot."""
        return self._one_hot(self._categorical.mode)

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Classes have no derivative: this raises, and says what there is instead."""
        _checks.no_rsample(self)

    def sample(self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw one-hot vectors; see :func:`catnat.torch.sample`."""
        return self._one_hot(self._categorical.sample(sample_shape, generator=generator))

    def _one_hot(self, classes: Tensor) -> Tensor:
        return F.one_hot(classes, self._categorical._num_events).to(_inputs.returned_dtype(self.scores))


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
        return estimators.straight_through(self, sample_shape=sample_shape, generator=generator)


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
        return self._categorical._leaves.log_probs


class RelaxedOneHotCatnat(td.RelaxedOneHotCategorical):
    """The Gumbel-softmax relaxation of :class:`OneHotCatnat`, on the leaf log-probabilities.

    Args:
        temperature: The relaxation's temperature, positive; a number, or a tensor of the batch shape.
        scores: One score per inner node on the last axis, K-1 for K classes.
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        num_classes: The number of classes K, to be checked against the scores and the tree.
        mask: The valid classes, as for :class:`Catnat`; draws are exactly 0 at the others.
        valid_classes: The mask as indices, as for :class:`Catnat`.
        mask_mode: "renormalize" or "prune", as for :class:`Catnat`.
        unimix: The fraction of the uniform distribution, as for :class:`Catnat`.
        validate_args: Whether to check scores (NaN) and values, by torch's default if not given, and masks, by default
            always.

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
        tree: Tree | None = None,
        activation: Activation | str = "natural",
        *,
        num_classes: int | None = None,
        mask: Bool[Tensor, "*#batch classes"] | None = None,
        valid_classes: Int[Tensor, "*#batch some"] | None = None,
        mask_mode: Literal["renormalize", "prune"] = "renormalize",
        unimix: float = 0.0,
        validate_args: bool | None = None,
    ) -> None:
        categorical = Catnat(
            scores,
            tree,
            activation,
            num_classes=num_classes,
            mask=mask,
            valid_classes=valid_classes,
            mask_mode=mask_mode,
            unimix=unimix,
            validate_args=validate_args,
        )
        nodes = _inputs.to_computing_dtype(categorical.scores)
        tau = torch.as_tensor(temperature, dtype=nodes.dtype, device=nodes.device)
        tau = tau.reshape(()) if tau.numel() == 1 else tau  # (1,) without a batch is a number, as in torch's example
        base = _ExpRelaxedCatnat(_leaves.checked_temperatures(tau, nodes, check=validates(validate_args)), categorical)
        td.TransformedDistribution.__init__(self, base, td.transforms.ExpTransform(), validate_args=False)
        self._validate_args = validates(validate_args)

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

    @property
    def mask(self) -> Bool[Tensor, "*batch classes"] | None:
        """The valid classes; None if all are."""
        return self.base_dist._categorical.mask

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw points of the simplex that pass gradients to the scores."""
        leaves = self.base_dist._categorical._leaves
        noisy = estimators.gumbel_noise_on(leaves.log_probs, leaves.valid, sample_shape, generator)
        soft = _dense.apply_temperature(noisy, self.temperature.unsqueeze(-1)).softmax(-1)
        return soft.to(_inputs.returned_dtype(self.scores))

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density on the simplex of the valid classes; an entry that underflowed counts as a tiny number."""
        if self._validate_args:
            self._validate_sample(value)
        leaves, temperature = self.base_dist._categorical._leaves, self.temperature
        logs = value.to(temperature.dtype).clamp(min=torch.finfo(temperature.dtype).tiny).log()
        terms = F.log_softmax(leaves.log_probs - temperature.unsqueeze(-1) * logs, -1) - logs
        count = logs.new_tensor(logs.shape[-1])
        if leaves.valid is not None:
            count = leaves.valid.sum(-1).to(logs.dtype)
            terms = torch.where(leaves.valid, terms, torch.zeros_like(terms))
        density = torch.lgamma(count) + (count - 1) * temperature.log() + terms.sum(-1)
        return _inputs.saturate(density, _inputs.returned_dtype(self.scores))
