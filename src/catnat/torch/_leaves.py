"""The leaves of a tree: their log-probabilities, and what a mask, a temperature and unimix make of them.

A pruned tree is still a tree, so it costs one path to draw from it or to find the probability of a class. Conditioning
(``mask_mode="renormalize"``) and a temperature work on all classes. Those of a forest's variables are concatenated, and
stacked, one variable a row, only where each variable must be looked at by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from catnat import _checks
from catnat.torch import _constants, _dense, _fisher, _functional, _inputs, _masks, _paths
from catnat.torch._nodes import Nodes
from catnat.torch._pruning import ValidPaths, pruned, valid_paths
from catnat.torch._variables import variables_of


class Leaves:
    """The distribution of one categorical variable per row, or of several independent ones if the tree is a forest."""

    def __init__(
        self,
        nodes: Nodes,
        mask_mode: str | None = None,
        valid: Tensor | None = None,
        temperature: float | Tensor = 1.0,
        unimix: float = 0.0,
        paths: ValidPaths | None = None,
    ) -> None:
        self.nodes, self.mask_mode, self.valid = nodes, mask_mode, valid
        self.variables = variables_of(nodes.tree)
        self.temperature, self.unimix = temperature, unimix
        self._has_temperature = isinstance(temperature, Tensor) or temperature != 1
        # Whether this is the distribution of a tree, pruned or not, and whether it is so without unimix.
        self.is_tree = not self._has_temperature and mask_mode != "renormalize"
        self._is_pure = self.is_tree and not unimix
        # To the valid classes, if they are few. What is done to the leaves otherwise needs all of them.
        self._paths = None if unimix or self._has_temperature else paths
        self._kept: Tensor | None = None
        self._kept_penalties: tuple[Tensor, Tensor] | None = None

    def expand(self, batch: Sequence[int]) -> Leaves:
        """The same distribution with its batch shape expanded."""
        valid = None if self.valid is None else self.valid.expand(*batch, -1)
        return Leaves(self.nodes.expand(batch), self.mask_mode, valid, self.temperature, self.unimix)

    def _without_nan(self) -> Leaves:
        """The same with NaN scores read as 0, so that whatever is drawn is a class that the mask allows."""
        if self.valid is None:
            return self
        scores = self.nodes.scores.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf)
        nodes = self.nodes._replace(scores=scores)
        return Leaves(nodes, self.mask_mode, self.valid, self.temperature, self.unimix, self._paths)

    # ---- all classes ----

    @property
    def log_probs(self) -> Tensor:
        """Finite log-probabilities; kept, with a graph even if first read without, except in inference mode."""
        if self._kept is None:
            if not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():
                return self.leaf_log_probs(floored=True)
            if self.nodes.scores.requires_grad and not torch.is_grad_enabled():
                with torch.enable_grad():
                    return self.log_probs
            self._kept = self.leaf_log_probs(floored=True)
        return self._kept

    def leaf_log_probs(self, *, floored: bool) -> Tensor:
        """The log-probability of every class; the smallest finite number for masked ones."""
        if self._paths is not None:
            found = self._on_paths(self._paths, floored=floored)
            return self._paths.spread(found, torch.finfo(found.dtype).min)
        return self._fill(self._log_probs_from(self._ready(floored=floored)))

    def probs(self) -> Tensor:
        """Probabilities, exactly 0 where they are."""
        if self._paths is not None:
            return self._paths.spread(self._on_paths(self._paths, floored=False).exp(), 0.0)
        return self._probs_from(self._ready(floored=False))

    def mode(self) -> Tensor:
        """The most probable class, of every variable."""
        exact = self._without_nan().leaf_log_probs(floored=False).detach()
        return self.variables.stack(exact, torch.finfo(exact.dtype).min).argmax(-1)

    def _on_paths(self, paths: ValidPaths, *, floored: bool) -> Tensor:
        """The log-probability of the valid classes alone."""
        found = paths.log_probs(self.nodes, floored=floored)
        return paths.normalized(found) if self.mask_mode == "renormalize" else found

    def _ready(self, *, floored: bool) -> Tensor:
        """The tree's log-probabilities, or what every variable's softmax is taken of where they are not final."""
        leaves = _functional.log_probs(self.nodes, floored=floored)
        return leaves if self.is_tree else self._with_temperature(leaves)

    def _log_probs_from(self, ready: Tensor) -> Tensor:
        """The distribution's log-probabilities from what :meth:`_ready` says; any number at masked classes."""
        logs = ready if self.is_tree else self.variables.join(F.log_softmax(ready, -1))
        if not self.unimix:
            return logs
        uniform = self.variables.per_class(self._log_uniform()) + math.log(self.unimix)
        return _dense.log_add(logs + math.log1p(-self.unimix), uniform)

    def _probs_from(self, ready: Tensor) -> Tensor:
        """The distribution's probabilities from what :meth:`_ready` says."""
        probs = ready.exp() if self.is_tree else self.variables.join(F.softmax(ready, -1))
        if self.unimix:
            probs = probs * (1 - self.unimix) + self.variables.per_class(self._log_uniform()).exp() * self.unimix
        return probs if self.valid is None else probs * self._penalties(probs.dtype)[0]

    def _with_temperature(self, leaves: Tensor) -> Tensor:
        """The logarithm of p^(1/T) at the valid classes, every variable by itself; the others are the lowest."""
        lowest = torch.finfo(leaves.dtype).min
        if self._has_temperature:
            tau = self.temperature
            if isinstance(tau, Tensor):
                tau = self.variables.beside_stack(tau)
            # Masked classes must be the lowest before, so that none is the largest, and after, however large T is.
            tempered = _dense.apply_temperature(self.variables.stack(self._fill(leaves), lowest), tau)
            leaves = self.variables.join(tempered)
        return self.variables.stack(self._fill(leaves), lowest)

    def _fill(self, logs: Tensor) -> Tensor:
        if self.valid is None:
            return logs
        kept, penalty = self._penalties(logs.dtype)
        return torch.addcmul(penalty, logs, kept)  # multiplying by a float mask is faster than `torch.where` on a CPU

    def _penalties(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """1 and 0 for valid classes, 0 and the smallest finite number for the others."""
        if self._kept_penalties is None:
            kept = self.valid.to(dtype)  # type: ignore[union-attr]
            self._kept_penalties = kept, (1 - kept) * torch.finfo(dtype).min
        return self._kept_penalties

    def _log_uniform(self) -> Tensor:
        """The uniform log-probability of a valid class, (..., 1), or for every variable, (..., N)."""
        tree, scores = self.nodes.tree, self.nodes.scores
        counts = (
            _constants.class_counts(tree, scores.device) if self.valid is None else self.variables.count(self.valid)
        )
        return -counts.to(scores.dtype).log()

    # ---- sums over classes, and so over variables ----

    def entropy(self) -> Tensor:
        """The entropy: by the chain rule where this is a tree's distribution, otherwise class by class."""
        if self._paths is not None:
            exact = self._on_paths(self._paths, floored=False)
            return self._paths.sum_by_row(-exact.exp() * exact)
        if self._is_pure:
            return _functional.node_entropies(self.nodes).sum(-1)
        ready = self._ready(floored=False)
        logs = self._log_probs_from(ready)
        if self.valid is not None:  # at masked classes a number that any gradient may be multiplied with
            logs = logs * self._penalties(logs.dtype)[0]
        return (-self._probs_from(ready) * logs).sum(-1)

    def kl_divergence(self, other: Leaves) -> Tensor:
        """KL(self || other), by the chain rule on a common tree; infinite where only the other masks a class."""
        plain = all(each._is_pure and each.valid is None for each in (self, other))
        same = self.nodes.tree == other.nodes.tree and self.nodes.activation == other.nodes.activation
        if same and plain:
            return _functional.node_divergences(self.nodes, other.nodes).sum(-1)
        return divergence(self.probs(), self.log_probs, other.log_probs, other.valid)

    def fisher_diagonal(self) -> Tensor:
        """The diagonal of the Fisher matrix of the scores, where that is all there is of it."""
        if not self._is_pure:
            _checks.not_diagonal()
        return _fisher.information(self.nodes)

    # ---- some classes ----

    def log_prob(self, classes: Tensor) -> Tensor:
        """The log-probability of ``classes``: along their paths, or from all classes if few or known already."""
        classes, tree = classes.long(), self.nodes.tree
        if self._kept is not None or not self.is_tree or not _functional.walks(tree):
            found = _pick(self.log_probs, self.variables.places(classes))
        else:
            found = self._along_paths(classes)
        return self.variables.joint(found)

    def _along_paths(self, classes: Tensor) -> Tensor:
        found = self.variables.with_axis(_functional.log_prob_unchecked(self.nodes, classes))
        if self.unimix:
            uniform = self._log_uniform() + math.log(self.unimix)
            found = _dense.log_add(found + math.log1p(-self.unimix), uniform)
        if self.valid is None:
            return found
        masked = _pick(self.valid, self.variables.places(classes)).logical_not()
        return found.masked_fill(masked, torch.finfo(found.dtype).min)

    def draw(self, sample_shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
        """Classes, sample shape + batch, with one more axis for the variables of a forest."""
        sample_shape, nodes, tree = _checks.shape_of_samples(sample_shape), self._without_nan().nodes, self.nodes.tree
        walked = tree.depth <= _paths.MOST_WALKED_LEVELS or tree.kind != "forest"
        if self.is_tree and walked:
            drawn = _functional.draw(nodes, sample_shape, generator)
        else:
            unmixed = Leaves(nodes, self.mask_mode, self.valid, self.temperature)
            weights = self.variables.stack(unmixed.probs().detach(), 0.0)
            drawn = _paths.draw_by_weight(weights, sample_shape, generator)
        if not self.unimix:
            return drawn
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
        batch = _inputs.broadcast(nodes.scores.shape[:-1], valid.shape[:-1])
        paths = valid_paths(nodes, valid)
        nodes = pruned(nodes, valid, paths) if mask_mode == "prune" else nodes.expand(batch)
        valid = valid.expand(*batch, -1)
    temperature = _checked_temperature(temperature, nodes.scores, check=check)
    return Leaves(nodes, None if mask is None else mask_mode, valid, temperature, float(unimix), paths)


def _checked_temperature(temperature: float | Tensor, scores: Tensor, *, check: bool) -> float | Tensor:
    limits, batch = torch.finfo(scores.dtype), scores.shape[:-1]
    if not isinstance(temperature, Tensor):
        if not limits.tiny <= temperature <= limits.max:
            raise ValueError(
                f"`temperature` is {temperature}, but a positive, finite number is needed, at least {limits.tiny:.2g}."
            )
        return float(temperature)
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
