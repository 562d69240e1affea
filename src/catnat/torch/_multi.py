"""Several categorical variables with different numbers of classes, in one tensor of scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Size, Tensor
from torch.distributions import constraints

from catnat import _checks
from catnat.activations import Activation, resolve
from catnat.torch import _constants, _inputs, _leaves
from catnat.torch._nodes import Nodes
from catnat.torch.distributions import AnyScores, OnLeaves, check_not_nan, validates
from catnat.trees.forest import Forest, as_forest, check_width
from catnat.trees.tree import Tree


class _Classes(constraints.Constraint):
    """One class index per variable, each within the variable's number of classes."""

    event_dim, is_discrete = 1, True

    def __init__(self, forest: Forest) -> None:
        self.forest = forest

    def check(self, value: Tensor) -> Tensor:
        sizes = _constants.forest_table(self.forest, "sizes", value.device)
        return ((value >= 0) & (value < sizes)).all(-1) & (value % 1 == 0).all(-1)


class MultiCatnat(OnLeaves):
    r"""N independent categorical variables with different numbers of classes, all computed at once.

    Scores, probabilities and one-hot vectors of the variables are concatenated in the order of ``trees``; a value is a
    vector of N class indices. ``log_prob``, ``entropy`` and the KL divergence are those of the whole vector, sums over
    the variables. There is no loop over variables: every level of all trees is one tensor operation.

    Args:
        scores: The scores of all variables, :math:`\sum_n (K_n - 1)` on the last axis.
        trees: A tree or a number of classes for every variable, or a :class:`catnat.Forest` of them. Under
            ``torch.compile`` pass a forest that was built outside.
        activation: "natural", "sigmoid", or an activation object, for all variables.
        mask: The valid classes of all variables, boolean, :math:`\sum_n K_n` on the last axis.
        mask_mode: "renormalize" or "prune", as for :class:`Catnat`.
        temperature: The distribution is p^(1/T) / Z for every variable, as for :class:`Catnat`.
        unimix: The fraction of every variable's uniform distribution, as for :class:`Catnat`.
        validate_args: Whether to check scores (NaN) and values, by torch's default if not given, and masks, by default
            always.

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
    activation: Activation

    @_checks.explains(**_checks.NOT_SCORES)
    def __init__(
        self,
        scores: Float[Tensor, "*batch nodes"],
        trees: Forest | Iterable[Tree | int],
        activation: Activation | str = "natural",
        *,
        mask: Bool[Tensor, "*#batch classes"] | None = None,
        mask_mode: Literal["renormalize", "prune"] = "renormalize",
        temperature: float | Tensor = 1.0,
        unimix: float = 0.0,
        validate_args: bool | None = None,
    ) -> None:
        self.forest = as_forest(trees)
        self.activation = resolve(activation)
        _inputs.check_scores(scores)
        check_width(scores.shape[-1], self.forest)
        if mask is not None:
            _inputs.check_tensor(mask, "mask")
            if mask.dtype != torch.bool:
                raise TypeError(f"`mask` has dtype {mask.dtype}, but with several variables it must be boolean.")
        nodes = Nodes(_inputs.to_computing_dtype(scores), self.forest, self.activation)
        self._leaves = _leaves.from_options(
            nodes, mask, mask_mode, temperature, unimix, check=validate_args is not False
        )
        self._set(scores.expand(*self._leaves.nodes.scores.shape[:-1], -1), validates(validate_args))
        if self._validate_args:
            check_not_nan(scores)

    def _set(self, scores: Tensor, checks: bool) -> None:
        self.scores = scores
        super().__init__(scores.shape[:-1], Size((len(self.forest.trees),)), validate_args=False)
        self._validate_args = checks

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> MultiCatnat:
        """The same distribution with its batch shape expanded."""
        new = self._get_checked_instance(MultiCatnat, _instance)
        new.forest, new.activation, new._leaves = self.forest, self.activation, self._leaves.expand(batch_shape)
        new._set(self.scores.expand(*batch_shape, -1), self._validate_args)
        return new

    @property
    def support(self) -> constraints.Constraint:
        """One class index per variable."""
        return _Classes(self.forest)

    # ---- all classes, concatenated ----

    def split(self, values: Tensor) -> tuple[Tensor, ...]:
        """Concatenated values of all classes, such as ``probs``, as one tensor per variable."""
        return values.split(self.forest.sizes, -1)

    def one_hot(self, value: Int[Tensor, "*any variables"]) -> Float[Tensor, "*any classes"]:
        """The one-hot vectors of a value's variables, concatenated."""
        places = self._leaves.variables.places(value.long())
        zeros = torch.zeros(
            *value.shape[:-1], self.forest.num_classes, dtype=_inputs.returned_dtype(self.scores), device=value.device
        )
        return zeros.scatter(-1, places, 1.0)

    def rsample_one_hot(
        self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*samples_and_batch classes"]:
        """Draw concatenated one-hot vectors whose gradient is that of the probabilities (straight-through)."""
        probs = self.probs
        return self.one_hot(self.sample(sample_shape, generator=generator)) + (probs - probs.detach())
