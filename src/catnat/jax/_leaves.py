"""The leaves of a tree: their log-probabilities, and what a mask, a temperature and unimix make of them.

A pruned tree is still a tree, so it takes one path to draw from it or to find the probability of a class. Conditioning
(``mask_mode="renormalize"``) and a temperature work on all classes. Those of a forest's variables are concatenated, and
stacked, one variable a row, only where each variable must be looked at by itself.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import Array

from catnat import _checks
from catnat.jax import _dense, _fisher, _inputs, _masks, _paths, functional
from catnat.jax._kernels import kernel_for
from catnat.jax._nodes import Nodes
from catnat.jax._pruning import pruned, weighed
from catnat.jax._variables import ForestVariables, SingleVariable, variables_of
from catnat.trees.builders import balanced
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree

if TYPE_CHECKING:
    from typing import Self


class Leaves(abc.ABC):
    """The distribution of one categorical variable per row, or of several independent ones if the tree is a forest.

    A pytree of the nodes' scores, the valid classes (..., K) and what else it needs, all of one batch shape. What is
    common to all: everything can be had from the log-probabilities of all classes.
    """

    nodes: Nodes
    valid: Array | None

    @property
    def variables(self) -> SingleVariable | ForestVariables:
        """Whose classes the leaves are."""
        return variables_of(self.nodes.tree)

    @abc.abstractmethod
    def leaf_log_probs(self, *, floored: bool = True) -> Array:
        """The log-probability of every class; the smallest finite number for masked ones."""

    @jax.jit
    def probs(self) -> Array:
        """Probabilities, exactly 0 where they are."""
        return jnp.exp(self.leaf_log_probs(floored=False))

    @jax.jit
    def mode(self) -> Array:
        """The most probable class, of every variable."""
        exact = self.without_nan().leaf_log_probs(floored=False)
        return self.variables.stack(exact, _lowest(exact)).argmax(-1)

    @jax.jit
    def entropy(self) -> Array:
        """The entropy, class by class."""
        exact = self.leaf_log_probs(floored=False)
        # At masked classes the logarithm must be a number that any gradient may be multiplied with.
        return (-jnp.exp(exact) * self.fill(exact, 0)).sum(-1)

    @jax.jit
    def kl_divergence(self, other: Leaves) -> Array:
        """KL(self || other), class by class; infinite where only the other masks a class."""
        return divergence(self.probs(), self.leaf_log_probs(), other.leaf_log_probs(), other.valid)

    def fisher_diagonal(self) -> Array:
        """The diagonal of the Fisher matrix of the scores, where that is all there is of it."""
        _checks.not_diagonal()

    @jax.jit
    def log_prob(self, classes: Array) -> Array:
        """The log-probability of ``classes``, which exist, of all variables together."""
        found = self.log_prob_of_each(classes)
        if self.valid is None:
            return found.sum(-1)
        possible = _pick(self.valid, self.variables.places(classes))
        # One masked class rules the whole value out.
        return jnp.where(possible.all(-1), jnp.where(possible, found, 0).sum(-1), _lowest(found))

    def log_prob_of_each(self, classes: Array) -> Array:
        """The log-probability of every variable's class, (..., N) or (..., 1); any number for masked ones."""
        return _pick(self.leaf_log_probs(), self.variables.places(classes))

    @functools.partial(jax.jit, static_argnames="sample_shape")
    def draw(self, sample_shape: tuple[int, ...], key: Array) -> Array:
        """Classes, sample shape + batch, with one more axis for the variables of a forest."""
        return _draw_by_weight(self.without_nan().probs(), self.nodes.tree, sample_shape, key)

    def without_nan(self) -> Self:
        """The same with NaN scores read as 0, so that whatever is drawn is a class that the mask allows."""
        if self.valid is None:
            return self
        scores = jnp.where(jnp.isnan(self.nodes.scores), 0, self.nodes.scores)
        return self.with_nodes(dataclasses.replace(self.nodes, scores=scores))

    @abc.abstractmethod
    def with_nodes(self, nodes: Nodes) -> Self:
        """The same distribution on nodes with other scores."""

    def fill(self, values: Array, at_masked: float) -> Array:
        """``values`` of all classes, but ``at_masked`` at masked ones."""
        return values if self.valid is None else jnp.where(self.valid, values, at_masked)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["nodes", "valid"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class TreeLeaves(Leaves):
    """The distribution of a tree, pruned to the valid classes where it is needed, inside compiled code."""

    nodes: Nodes
    valid: Array | None

    @property
    def left(self) -> Nodes:
        """What the mask leaves of the tree."""
        return self.nodes if self.valid is None else pruned(self.nodes, self.valid)

    def with_nodes(self, nodes: Nodes) -> Self:
        return dataclasses.replace(self, nodes=nodes)

    @functools.partial(jax.jit, static_argnames="floored")
    def leaf_log_probs(self, *, floored: bool = True) -> Array:
        logs = functional.log_probs(self.left, floored=floored)
        return self.fill(logs, _lowest(logs))

    @jax.jit
    def entropy(self) -> Array:
        """The entropy, by the chain rule."""
        return functional.node_entropies(self.left).sum(-1)

    @jax.jit
    def kl_divergence(self, other: Leaves) -> Array:
        """KL(self || other), by the chain rule on a common tree."""
        common = self.nodes.tree == other.nodes.tree and self.nodes.activation == other.nodes.activation
        if common and isinstance(other, TreeLeaves) and self.valid is None and other.valid is None:
            return functional.node_divergences(self.nodes, other.nodes).sum(-1)
        return super().kl_divergence(other)

    @jax.jit
    def fisher_diagonal(self) -> Array:
        return _fisher.information(self.left)

    def log_prob_of_each(self, classes: Array) -> Array:
        """Along the paths of the classes, or from all classes if these are few."""
        if not functional.walks(self.nodes.tree):
            return super().log_prob_of_each(classes)
        return self.variables.with_axis(functional.log_prob_unchecked(self.left, classes))

    @functools.partial(jax.jit, static_argnames="sample_shape")
    def draw(self, sample_shape: tuple[int, ...], key: Array) -> Array:
        return functional.draw(self.without_nan().left, sample_shape, key)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["leaves", "valid", "temperature"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class SoftmaxLeaves(Leaves):
    """p^(1/T) / Z over the valid classes, where p is the distribution of a tree."""

    leaves: TreeLeaves
    valid: Array | None
    temperature: Array | None  # None is 1

    @property
    def nodes(self) -> Nodes:  # type: ignore[override]
        return self.leaves.nodes

    def with_nodes(self, nodes: Nodes) -> Self:
        return dataclasses.replace(self, leaves=self.leaves.with_nodes(nodes))

    @functools.partial(jax.jit, static_argnames="floored")
    def leaf_log_probs(self, *, floored: bool = True) -> Array:
        logs = self.leaves.leaf_log_probs(floored=floored)
        lowest = _lowest(logs)
        stacked = self.variables.stack(self.fill(logs, lowest), lowest)
        if self.temperature is not None:
            zero = -math.inf if floored else kernel_for(self.nodes.activation).log_of_zero
            stacked = self._with_temperature(stacked, self.temperature, zero)
        return self.fill(self.variables.join(jax.nn.log_softmax(stacked, -1)), lowest)

    def _with_temperature(self, stacked: Array, temperature: Array, zero: float) -> Array:
        """Logarithms of p^(1/T), from the largest down; where p is 0 (at most ``zero``) or masked it stays so."""
        tempered = _dense.apply_temperature(stacked, self.variables.beside_stack(temperature))
        lowest = _lowest(stacked)
        if zero > lowest:
            impossible = stacked <= zero
            possible = ~impossible.all(-1, keepdims=True)  # or valid classes would keep no order
            tempered = jnp.where(impossible & possible, zero, tempered)
        return jnp.where(stacked <= lowest, lowest, tempered)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["leaves"], meta_fields=["unimix"])
@dataclasses.dataclass(frozen=True)
class MixedLeaves(Leaves):
    """(1 - u) p + u / K over the valid classes, where p is another distribution of leaves."""

    leaves: Leaves
    unimix: float

    @property
    def nodes(self) -> Nodes:  # type: ignore[override]
        return self.leaves.nodes

    @property
    def valid(self) -> Array | None:  # type: ignore[override]
        return self.leaves.valid

    def with_nodes(self, nodes: Nodes) -> Self:
        return dataclasses.replace(self, leaves=self.leaves.with_nodes(nodes))

    @functools.partial(jax.jit, static_argnames="floored")
    def leaf_log_probs(self, *, floored: bool = True) -> Array:
        uniform = self.variables.per_class(self._log_uniform())
        logs = self._mix(self.leaves.leaf_log_probs(floored=floored), uniform)
        return self.fill(logs, _lowest(logs))

    def log_prob_of_each(self, classes: Array) -> Array:
        return self._mix(self.leaves.log_prob_of_each(classes), self._log_uniform())

    def _mix(self, logs: Array, log_uniform: Array) -> Array:
        return _dense.log_add(logs + math.log1p(-self.unimix), log_uniform + math.log(self.unimix))

    def _log_uniform(self) -> Array:
        """The uniform log-probability of a valid class, (..., 1), or for every variable, (..., N)."""
        counts = jnp.asarray(self.variables.sizes) if self.valid is None else self.variables.count(self.valid)
        return -jnp.log(counts.astype(self.nodes.scores.dtype))

    @functools.partial(jax.jit, static_argnames="sample_shape")
    def draw(self, sample_shape: tuple[int, ...], key: Array) -> Array:
        key, which, uniformly = jax.random.split(key, 3)
        drawn = self.leaves.draw(sample_shape, key)
        coin = jax.random.uniform(which, drawn.shape, self.nodes.scores.dtype) < self.unimix
        return jnp.where(coin, self._draw_uniformly(drawn, sample_shape, uniformly), drawn)

    def _draw_uniformly(self, like: Array, sample_shape: tuple[int, ...], key: Array) -> Array:
        if self.valid is not None:
            weights = self.valid.astype(self.nodes.scores.dtype)
            return _draw_by_weight(weights, self.nodes.tree, sample_shape, key)
        counts = self.variables.without_axis(jnp.asarray(self.variables.sizes))
        return jax.random.randint(key, like.shape, 0, counts, like.dtype)


def from_fields(nodes: Nodes, valid: Array | None, mask_mode: str, temperature: Array | None, unimix: float) -> Leaves:
    """The distribution of what :func:`checked` has made of the user's options."""
    leaves: Leaves
    conditioned = valid is not None and mask_mode == "renormalize"
    leaves = tree = TreeLeaves(nodes, None if conditioned else valid)
    if conditioned or temperature is not None:
        leaves = SoftmaxLeaves(tree, valid, temperature)
    return MixedLeaves(leaves, unimix) if unimix else leaves


def gumbel_noise_on(log_probs: Array, possible: Array | None, sample_shape: Sequence[int], key: Array) -> Array:
    """Log-probabilities plus Gumbel noise, for every sample; the smallest finite number at impossible classes."""
    shape = (*_checks.shape_of_samples(sample_shape), *log_probs.shape)
    noise = -_paths.log_exponential(key, shape, log_probs.dtype)
    noisy = log_probs + noise
    return noisy if possible is None else jnp.where(possible, noisy, float(jnp.finfo(noisy.dtype).min))


def _draw_by_weight(weights: Array, tree: Tree | Forest, sample_shape: tuple[int, ...], key: Array) -> Array:
    """Draw classes with probabilities proportional to ``weights``; one of weight 0 is never drawn."""
    return functional.draw(weighed(jax.lax.stop_gradient(weights), _shallow(tree)), sample_shape, key)


@functools.lru_cache(maxsize=64)
def _shallow(tree: Tree | Forest) -> Tree | Forest:
    """Balanced trees over the same classes: any tree can carry weights, and these take the fewest steps."""
    return Forest(tree.sizes) if isinstance(tree, Forest) else balanced(tree.num_classes)


def divergence(probs: Array, p_logs: Array, q_logs: Array, q_valid: Array | None) -> Array:
    """KL(p || q) class by class. One that p never takes is ignored."""
    if p_logs.shape[-1] != q_logs.shape[-1]:
        raise ValueError(
            f"The distributions have {p_logs.shape[-1]} and {q_logs.shape[-1]} classes: they must have the same ones."
        )
    terms = probs * jnp.where(probs == 0, 0, p_logs - q_logs)
    if q_valid is not None:
        terms = jnp.where((probs > 0) & ~q_valid, jnp.inf, terms)
    return terms.sum(-1)


def _lowest(like: Array) -> float:
    """The smallest finite number."""
    return float(jnp.finfo(like.dtype).min)


def _pick(values: Array, places: Array) -> Array:
    """``values`` at ``places``, batch + (n,), of the last axis; axes of samples may stand before the batch."""
    shape, count = jnp.broadcast_shapes(values.shape[:-1], places.shape[:-1]), places.shape[-1]
    extra = len(shape) - (values.ndim - 1)
    # Axes before the batch go behind it, so that no row is copied.
    batch, before = shape[extra:], tuple(range(extra))
    behind = tuple(range(len(batch), len(shape)))
    queries = jnp.moveaxis(jnp.broadcast_to(places, (*shape, count)), before, behind)
    rows = jnp.broadcast_to(values, (*batch, values.shape[-1]))
    flat = queries.reshape(*batch, math.prod(queries.shape[len(batch) :]))  # no -1: the batch may be empty
    found = jnp.take_along_axis(rows, flat, -1, mode="promise_in_bounds")
    return jnp.moveaxis(found.reshape(queries.shape), behind, before)


def checked(
    nodes: Nodes, mask: Array | None, mask_mode: str, temperature: float | Array | None, unimix: float
) -> tuple[Nodes, Array | None, Array | None]:
    """Nodes, valid classes and temperatures in one batch shape, from what the user passes, checked where known."""
    _checks.one_of(mask_mode, "mask_mode", ("renormalize", "prune"))
    _checks.unimix(unimix)
    valid = None
    if mask is not None:
        valid = _masks.valid_classes(mask, nodes.tree)
        _checks.mask_beside_scores(valid.shape[:-1], nodes.scores.shape[:-1])
        batch = jnp.broadcast_shapes(nodes.scores.shape[:-1], valid.shape[:-1])
        nodes, valid = nodes.expand(batch), jnp.broadcast_to(valid, (*batch, valid.shape[-1]))
    one = temperature is None or (isinstance(temperature, (int, float)) and temperature == 1)
    return nodes, valid, None if one else checked_temperature(temperature, nodes.scores)


def checked_temperature(temperature: float | Array | None, scores: Array) -> Array:
    """Temperatures in the batch shape and the dtype of ``scores``."""
    limits, batch = jnp.finfo(scores.dtype), scores.shape[:-1]
    tau = jnp.asarray(temperature, scores.dtype)
    if tau.shape != () and not _checks.broadcasts(tau.shape, batch):
        raise ValueError(
            f"`temperature` has shape {tau.shape}, but a number, or one per row in the batch shape {batch} is needed."
        )
    outside = ~((tau >= float(limits.tiny)) & (tau <= float(limits.max)))
    if _inputs.is_true(outside.any()):
        given = temperature if tau.ndim == 0 else float(tau[outside][0])
        raise ValueError(
            f"`temperature` is {given}, but a positive, finite number is needed, at least {float(limits.tiny):.2g}."
        )
    return jnp.broadcast_to(tau, batch)
