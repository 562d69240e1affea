"""The leaves of a tree: their log-probabilities, and what a mask, a temperature and unimix make of them.

A pruned tree is still a tree, so it costs one path to draw from it or to find the probability of a class. Conditioning
(``mask_mode="renormalize"``) and a temperature work on all classes. Those of a forest's variables are concatenated, and
stacked, one variable a row, only where each variable must be looked at by itself.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from catnat import _checks
from catnat.torch import _constants, _dense, _fisher, _inputs, _masks, _paths, functional
from catnat.torch._kernels import kernel_for
from catnat.torch._nodes import Nodes
from catnat.torch._pruning import ValidPaths, pruned, valid_paths
from catnat.torch._variables import variables_of

_Kept = TypeVar("_Kept")


def keep(holder: Any, name: str, compute: Callable[[], _Kept]) -> _Kept:
    """What ``compute`` returns, kept as an attribute: with a graph even if first asked for without.

    In inference mode nothing is kept, because what is made there cannot be trained.
    """
    kept: _Kept | None = getattr(holder, name)
    if kept is None:
        if not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():
            return compute()
        with torch.enable_grad():
            kept = compute()
        setattr(holder, name, kept)
    return kept


class Mask:
    """The valid classes, if not all are, and what becomes of values at the others.

    Multiplying by a float mask is faster than ``torch.where`` on a CPU.
    """

    def __init__(self, valid: Tensor | None) -> None:
        self.valid = valid
        self._floats: tuple[Tensor, Tensor] | None = None

    def fill(self, logs: Tensor) -> Tensor:
        """``logs`` with the smallest finite number at masked classes."""
        if self.valid is None:
            return logs
        kept, penalty = self._as_floats(self.valid, logs.dtype)
        return torch.addcmul(penalty, logs, kept)

    def zero(self, values: Tensor) -> Tensor:
        """``values`` with 0 at masked classes."""
        return values if self.valid is None else values * self._as_floats(self.valid, values.dtype)[0]

    def fill_chosen(self, logs: Tensor, places: Tensor) -> Tensor:
        """``logs`` of the classes at ``places`` with the smallest finite number where these are masked."""
        if self.valid is None:
            return logs
        return logs.masked_fill(_pick(self.valid, places).logical_not(), torch.finfo(logs.dtype).min)

    def _as_floats(self, valid: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """1 and 0 for valid classes, 0 and the smallest finite number for the others."""

        def floats() -> tuple[Tensor, Tensor]:
            allowed = valid.to(dtype)
            return allowed, (1 - allowed) * torch.finfo(dtype).min

        return keep(self, "_floats", floats)


class Leaves(abc.ABC):
    """The distribution of one categorical variable per row, or of several independent ones if the tree is a forest.

    What is common to all: everything can be had from the log-probabilities of all classes.
    """

    def __init__(self, nodes: Nodes, valid: Tensor | None) -> None:
        self.nodes, self.valid = nodes, valid
        self.variables = variables_of(nodes.tree)
        self.mask = Mask(valid)
        self._kept: Tensor | None = None

    @abc.abstractmethod
    def leaf_log_probs(self, *, floored: bool) -> Tensor:
        """The log-probability of every class; the smallest finite number for masked ones."""

    @abc.abstractmethod
    def with_nodes(self, nodes: Nodes, valid: Tensor | None) -> Leaves:
        """The same distribution on nodes with other scores."""

    def expand(self, batch: Sequence[int]) -> Leaves:
        """The same distribution with its batch shape expanded."""
        valid = None if self.valid is None else self.valid.expand(*batch, -1)
        return self.with_nodes(self.nodes.expand(batch), valid)

    def without_nan(self) -> Leaves:
        """The same with NaN scores read as 0, so that whatever is drawn is a class that the mask allows."""
        if self.valid is None:
            return self
        scores = self.nodes.scores.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf)
        return self.with_nodes(self.nodes._replace(scores=scores), self.valid)

    @property
    def log_probs(self) -> Tensor:
        """Finite log-probabilities; kept, with a graph even if first read without, except in inference mode."""
        return keep(self, "_kept", lambda: self.leaf_log_probs(floored=True))

    def probs(self) -> Tensor:
        """Probabilities, exactly 0 where they are."""
        return self.leaf_log_probs(floored=False).exp()

    def mode(self) -> Tensor:
        """The most probable class, of every variable."""
        exact = self.without_nan().leaf_log_probs(floored=False).detach()
        return self.variables.stack(exact, torch.finfo(exact.dtype).min).argmax(-1)

    def entropy(self) -> Tensor:
        """The entropy, class by class."""
        exact = self.leaf_log_probs(floored=False)
        # At masked classes the logarithm must be a number that any gradient may be multiplied with.
        return (-exact.exp() * self.mask.zero(exact)).sum(-1)

    def kl_divergence(self, other: Leaves) -> Tensor:
        """KL(self || other), class by class; infinite where only the other masks a class."""
        return divergence(self.probs(), self.log_probs, other.log_probs, other.valid)

    def fisher_diagonal(self) -> Tensor:
        """The diagonal of the Fisher matrix of the scores, where that is all there is of it."""
        _checks.not_diagonal()

    def log_prob(self, classes: Tensor) -> Tensor:
        """The log-probability of ``classes``, of all variables together."""
        return self.variables.joint(self.log_prob_of_each(classes.long()))

    def log_prob_of_each(self, classes: Tensor) -> Tensor:
        """The log-probability of every variable's class, (..., N) or (..., 1)."""
        return _pick(self.log_probs, self.variables.places(classes))

    def draw(self, sample_shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
        """Classes, sample shape + batch, with one more axis for the variables of a forest."""
        weights = self.variables.stack(self.without_nan().probs().detach(), 0.0)
        return _paths.draw_by_weight(weights, _checks.shape_of_samples(sample_shape), generator)


class TreeLeaves(Leaves):
    """The distribution of a tree itself; if some classes are masked, the nodes are those of the pruned tree."""

    def with_nodes(self, nodes: Nodes, valid: Tensor | None) -> Leaves:
        return TreeLeaves(nodes, valid)

    def leaf_log_probs(self, *, floored: bool) -> Tensor:
        return self.mask.fill(functional.log_probs(self.nodes, floored=floored))

    def entropy(self) -> Tensor:
        """The entropy, by the chain rule."""
        return functional.node_entropies(self.nodes).sum(-1)

    def kl_divergence(self, other: Leaves) -> Tensor:
        """KL(self || other), by the chain rule on a common tree."""
        common = self.nodes.tree == other.nodes.tree and self.nodes.activation == other.nodes.activation
        if common and isinstance(other, TreeLeaves) and self.valid is None and other.valid is None:
            return functional.node_divergences(self.nodes, other.nodes).sum(-1)
        return super().kl_divergence(other)

    def fisher_diagonal(self) -> Tensor:
        return _fisher.information(self.nodes)

    def log_prob_of_each(self, classes: Tensor) -> Tensor:
        """Along the paths of the classes, or from all classes if these are few or known already."""
        if self._kept is not None or not functional.walks(self.nodes.tree):
            return super().log_prob_of_each(classes)
        found = self.variables.with_axis(functional.log_prob_unchecked(self.nodes, classes))
        return self.mask.fill_chosen(found, self.variables.places(classes))

    def draw(self, sample_shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
        tree = self.nodes.tree
        if tree.kind == "forest" and tree.depth > _paths.MOST_WALKED_LEVELS:
            return super().draw(sample_shape, generator)
        return functional.draw(self.without_nan().nodes, _checks.shape_of_samples(sample_shape), generator)


class SoftmaxLeaves(Leaves):
    """p^(1/T) / Z over the valid classes, where p is the distribution of a tree."""

    def __init__(self, nodes: Nodes, valid: Tensor | None, temperature: float | Tensor | None) -> None:
        super().__init__(nodes, valid)
        self.temperature = temperature

    def with_nodes(self, nodes: Nodes, valid: Tensor | None) -> Leaves:
        return SoftmaxLeaves(nodes, valid, self.temperature)

    def leaf_log_probs(self, *, floored: bool) -> Tensor:
        logs = self.mask.fill(functional.log_probs(self.nodes, floored=floored))
        stacked = self.variables.stack(logs, torch.finfo(logs.dtype).min)
        if self.temperature is not None:
            zero = -math.inf if floored else kernel_for(self.nodes.activation).log_of_zero
            stacked = self._with_temperature(stacked, self.temperature, zero)
        return self.mask.fill(self.variables.join(F.log_softmax(stacked, -1)))

    def _with_temperature(self, stacked: Tensor, temperature: float | Tensor, zero: float) -> Tensor:
        """Logarithms of p^(1/T), from the largest down; where p is 0 (at most ``zero``) or masked it stays so."""
        tau = self.variables.beside_stack(temperature) if isinstance(temperature, Tensor) else temperature
        tempered, lowest = _dense.apply_temperature(stacked, tau), torch.finfo(stacked.dtype).min
        if zero > lowest:
            impossible = stacked <= zero
            possible = impossible.all(-1, keepdim=True).logical_not()  # or valid classes would keep no order
            tempered = tempered.masked_fill(impossible & possible, zero)
        return tempered.masked_fill(stacked <= lowest, lowest)


class FewLeaves(Leaves):
    """Few valid classes: what needs all of them reads their paths and nothing else."""

    def __init__(self, nodes: Nodes, valid: Tensor | None, paths: ValidPaths) -> None:
        super().__init__(nodes, valid)
        self.paths = paths

    def with_nodes(self, nodes: Nodes, valid: Tensor | None) -> Leaves:
        return type(self)(nodes, valid, self.paths)

    def on_paths(self, *, floored: bool) -> Tensor:
        """The log-probability of the valid classes alone."""
        return self.paths.log_probs(self.nodes, floored=floored)

    def leaf_log_probs(self, *, floored: bool) -> Tensor:
        found = self.on_paths(floored=floored)
        return self.paths.spread(found, torch.finfo(found.dtype).min)

    def probs(self) -> Tensor:
        return self.paths.spread(self.on_paths(floored=False).exp(), 0.0)

    def entropy(self) -> Tensor:
        exact = self.on_paths(floored=False)
        return self.paths.sum_by_row(-exact.exp() * exact)


class FewTreeLeaves(FewLeaves, TreeLeaves):
    """The distribution of a tree pruned to few valid classes."""

    def expand(self, batch: Sequence[int]) -> Leaves:
        return TreeLeaves(self.nodes, self.valid).expand(batch)  # the paths are those of other rows


class FewSoftmaxLeaves(FewLeaves):
    """The distribution of a tree conditioned on few valid classes."""

    def expand(self, batch: Sequence[int]) -> Leaves:
        return SoftmaxLeaves(self.nodes, self.valid, None).expand(batch)

    def on_paths(self, *, floored: bool) -> Tensor:
        return self.paths.normalized(super().on_paths(floored=floored))


class MixedLeaves(Leaves):
    """(1 - u) p + u / K over the valid classes, where p is another distribution of leaves."""

    def __init__(self, leaves: Leaves, unimix: float) -> None:
        super().__init__(leaves.nodes, leaves.valid)
        self.leaves, self.unimix = leaves, unimix

    def with_nodes(self, nodes: Nodes, valid: Tensor | None) -> Leaves:
        return MixedLeaves(self.leaves.with_nodes(nodes, valid), self.unimix)

    def expand(self, batch: Sequence[int]) -> Leaves:
        return MixedLeaves(self.leaves.expand(batch), self.unimix)

    def leaf_log_probs(self, *, floored: bool) -> Tensor:
        uniform = self.variables.per_class(self._log_uniform())
        return self.mask.fill(self._mix(self.leaves.leaf_log_probs(floored=floored), uniform))

    def log_prob_of_each(self, classes: Tensor) -> Tensor:
        if self._kept is not None:
            return super().log_prob_of_each(classes)
        found = self._mix(self.leaves.log_prob_of_each(classes), self._log_uniform())
        return self.mask.fill_chosen(found, self.variables.places(classes))

    def _mix(self, logs: Tensor, log_uniform: Tensor) -> Tensor:
        return _dense.log_add(logs + math.log1p(-self.unimix), log_uniform + math.log(self.unimix))

    def _log_uniform(self) -> Tensor:
        """The uniform log-probability of a valid class, (..., 1), or for every variable, (..., N)."""
        tree, scores = self.nodes.tree, self.nodes.scores
        counts = (
            _constants.class_counts(tree, scores.device) if self.valid is None else self.variables.count(self.valid)
        )
        return -counts.to(scores.dtype).log()

    def draw(self, sample_shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
        drawn = self.leaves.draw(sample_shape, generator)
        coin = _paths.rand(drawn.shape, self.nodes.scores, generator) < self.unimix
        return torch.where(coin, self._draw_uniformly(drawn, sample_shape, generator), drawn)

    def _draw_uniformly(self, like: Tensor, sample_shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
        if self.valid is not None:
            return _paths.draw_by_weight(self.variables.stack(self.valid, False), sample_shape, generator)
        counts = self.variables.without_axis(_constants.class_counts(self.nodes.tree, like.device))
        return (_paths.rand(like.shape, counts.double(), generator) * counts).long()


def divergence(probs: Tensor, p_logs: Tensor, q_logs: Tensor, q_valid: Tensor | None) -> Tensor:
    """KL(p || q) class by class. One that p never takes is ignored, even where torch's own logits are -inf."""
    terms = probs * torch.where(probs == 0, torch.zeros_like(probs), p_logs - q_logs)
    if q_valid is not None:
        terms = terms.masked_fill((probs > 0) & q_valid.logical_not(), torch.inf)
    return terms.sum(-1)


def _pick(values: Tensor, places: Tensor) -> Tensor:
    """``values`` at ``places`` of the last axis, the axes before it broadcast."""
    if values.shape[:-1] != places.shape[:-1]:
        batch = torch.broadcast_shapes(values.shape[:-1], places.shape[:-1])
        values, places = values.expand(*batch, -1), places.expand(*batch, -1)
    return values.gather(-1, places)


def from_options(
    nodes: Nodes, mask: Tensor | None, mask_mode: str, temperature: float | Tensor, unimix: float, *, check: bool
) -> Leaves:
    """The distribution of what the user passes; ``check`` the entries of tensors, too, where they can be read."""
    _checks.one_of(mask_mode, "mask_mode", ("renormalize", "prune"))
    _checks.unimix(unimix)
    valid = paths = None
    if mask is not None:
        valid = _masks.valid_classes(mask, nodes.tree, check=check)
        _checks.mask_beside_scores(valid.shape[:-1], nodes.scores.shape[:-1])
        batch = _inputs.broadcast(nodes.scores.shape[:-1], valid.shape[:-1])
        paths = valid_paths(nodes, valid)
        nodes = pruned(nodes, valid, paths) if mask_mode == "prune" else nodes.expand(batch)
        valid = valid.expand(*batch, -1)
    temperature = _checked_temperature(temperature, nodes.scores, check=check)
    leaves = _unmixed(nodes, valid, mask_mode, temperature, paths)
    return MixedLeaves(leaves, float(unimix)) if unimix else leaves


def _unmixed(
    nodes: Nodes, valid: Tensor | None, mask_mode: str, temperature: float | Tensor, paths: ValidPaths | None
) -> Leaves:
    if isinstance(temperature, Tensor) or temperature != 1:
        return SoftmaxLeaves(nodes, valid, temperature)
    if valid is None:
        return TreeLeaves(nodes, None)
    if paths is not None:
        return (FewTreeLeaves if mask_mode == "prune" else FewSoftmaxLeaves)(nodes, valid, paths)
    return TreeLeaves(nodes, valid) if mask_mode == "prune" else SoftmaxLeaves(nodes, valid, None)


def _checked_temperature(temperature: float | Tensor, scores: Tensor, *, check: bool) -> float | Tensor:
    if isinstance(temperature, Tensor):
        return checked_temperatures(temperature, scores, check=check)
    _checks.number(temperature, "temperature")
    limits = torch.finfo(scores.dtype)
    if not limits.tiny <= temperature <= limits.max:
        raise ValueError(
            f"`temperature` is {temperature}, but a positive, finite number is needed, at least {limits.tiny:.2g}."
        )
    return float(temperature)


def checked_temperatures(temperature: Tensor, scores: Tensor, *, check: bool) -> Tensor:
    """Temperatures that broadcast to the batch shape of ``scores``, in their dtype."""
    limits, batch = torch.finfo(scores.dtype), scores.shape[:-1]
    if not _checks.broadcasts(temperature.shape, batch):
        raise ValueError(
            f"`temperature` has shape {tuple(temperature.shape)}, but a number, or one per row in the batch shape "
            f"{tuple(batch)} is needed."
        )
    if check and not torch.compiler.is_compiling():
        outside = (temperature >= limits.tiny).logical_and(temperature <= limits.max).logical_not()
        if _inputs.is_true(outside.any()):
            raise ValueError(
                f"`temperature` holds {float(temperature[outside][0])}, but positive, finite numbers are needed."
            )
    return temperature.to(scores.dtype)
