"""The leaves of a tree: their log-probabilities, and what a mask, a temperature and unimix make of them.

A pruned tree is still a tree, so it takes one path to draw from it or to find the probability of a class. Conditioning
(``mask_mode="renormalize"``) and a temperature work on all classes. Those of a forest's variables are concatenated, and
stacked, one variable a row, only where each variable must be looked at by itself.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from catnat import _checks
from catnat._builders import balanced
from catnat._forest import Forest
from catnat._tree import Tree
from catnat.jax import _dense, _fisher, _functional, _inputs, _masks, _paths
from catnat.jax._nodes import Nodes
from catnat.jax._pruning import pruned, weighed
from catnat.jax._variables import ForestVariables, SingleVariable, variables_of


@dataclasses.dataclass(frozen=True)
class Leaves:
    """The distribution of one categorical variable per row, or of several independent ones if the tree is a forest.

    A pytree of the nodes' scores, the valid classes (..., K) and the temperatures (...), all of one batch shape. The
    tree is pruned where it is needed, inside compiled code.
    """

    nodes: Nodes
    valid: Array | None
    temperature: Array | None  # None is 1
    mask_mode: str
    unimix: float

    @property
    def variables(self) -> SingleVariable | ForestVariables:
        """Whose classes the leaves are."""
        return variables_of(self.nodes.tree)

    @property
    def is_tree(self) -> bool:
        """Whether this is the distribution of a tree, pruned or not, perhaps with unimix."""
        return self.temperature is None and (self.valid is None or self.mask_mode == "prune")

    @property
    def _is_pure(self) -> bool:
        return self.is_tree and not self.unimix

    @property
    def left(self) -> Nodes:
        """What the mask leaves of the tree."""
        if self.valid is None or self.mask_mode != "prune":
            return self.nodes
        return pruned(self.nodes, self.valid)

    # ---- all classes ----

    @functools.partial(jax.jit, static_argnames="floored")
    def leaf_log_probs(self, *, floored: bool = True) -> Array:
        """The log-probability of every class; the smallest finite number for masked ones."""
        return self._fill(self._log_probs_from(self._ready(floored=floored)))

    @jax.jit
    def probs(self) -> Array:
        """Probabilities, exactly 0 where they are."""
        return self._probs_from(self._ready(floored=False))

    @jax.jit
    def mode(self) -> Array:
        """The most probable class, of every variable."""
        exact = self._without_nan().leaf_log_probs(floored=False)
        return self.variables.stack(exact, float(jnp.finfo(exact.dtype).min)).argmax(-1)

    def _ready(self, *, floored: bool) -> Array:
        """The tree's log-probabilities, or what every variable's softmax is taken of where they are not final."""
        leaves = _functional.log_probs(self.left, floored=floored)
        return leaves if self.is_tree else self._with_temperature(leaves)

    def _log_probs_from(self, ready: Array) -> Array:
        """The distribution's log-probabilities from what :meth:`_ready` says; any number at masked classes."""
        logs = ready if self.is_tree else self.variables.join(jax.nn.log_softmax(ready, -1))
        return self._mixed(logs, self.variables.per_class(self._log_uniform())) if self.unimix else logs

    def _probs_from(self, ready: Array) -> Array:
        """The distribution's probabilities from what :meth:`_ready` says."""
        probs = jnp.exp(ready) if self.is_tree else self.variables.join(jax.nn.softmax(ready, -1))
        if self.unimix:
            probs = probs * (1 - self.unimix) + jnp.exp(self.variables.per_class(self._log_uniform())) * self.unimix
        return probs if self.valid is None else jnp.where(self.valid, probs, 0)

    def _with_temperature(self, leaves: Array) -> Array:
        """The logarithm of p^(1/T) at the valid classes, every variable by itself; the others are the lowest."""
        lowest = float(jnp.finfo(leaves.dtype).min)
        if self.temperature is not None:
            tau = self.variables.beside_stack(self.temperature)
            # Masked classes must be the lowest before, so that none is the largest, and after, however large T is.
            leaves = self.variables.join(
                _dense.apply_temperature(self.variables.stack(self._fill(leaves), lowest), tau)
            )
        return self.variables.stack(self._fill(leaves), lowest)

    def _fill(self, logs: Array) -> Array:
        return logs if self.valid is None else jnp.where(self.valid, logs, float(jnp.finfo(logs.dtype).min))

    def _mixed(self, logs: Array, log_uniform: Array) -> Array:
        """``logs`` with a fraction of the uniform distribution."""
        return _dense.log_add(logs + math.log1p(-self.unimix), log_uniform + math.log(self.unimix))

    def _log_uniform(self) -> Array:
        """The uniform log-probability of a valid class, (..., 1), or for every variable, (..., N)."""
        counts = jnp.asarray(self.variables.sizes) if self.valid is None else self.variables.count(self.valid)
        return -jnp.log(counts.astype(self.nodes.scores.dtype))

    # ---- sums over classes, and so over variables ----

    @jax.jit
    def entropy(self) -> Array:
        """The entropy: by the chain rule where this is a tree's distribution, otherwise class by class."""
        if self._is_pure:
            return _functional.node_entropies(self.left).sum(-1)
        ready = self._ready(floored=False)
        logs = self._log_probs_from(ready)
        if self.valid is not None:  # at masked classes a number that any gradient may be multiplied with
            logs = jnp.where(self.valid, logs, 0)
        return (-self._probs_from(ready) * logs).sum(-1)

    @jax.jit
    def kl_divergence(self, other: Leaves) -> Array:
        """KL(self || other), by the chain rule on a common tree; infinite where only the other masks a class."""
        plain = all(each._is_pure and each.valid is None for each in (self, other))
        same = self.nodes.tree == other.nodes.tree and self.nodes.activation == other.nodes.activation
        if same and plain:
            return _functional.node_divergences(self.nodes, other.nodes).sum(-1)
        return divergence(self.probs(), self.leaf_log_probs(), other.leaf_log_probs(), other.valid)

    @jax.jit
    def fisher_diagonal(self) -> Array:
        """The diagonal of the Fisher matrix of the scores, where that is all there is of it."""
        if not self._is_pure:
            _checks.not_diagonal()
        return _fisher.information(self.left)

    # ---- some classes ----

    @jax.jit
    def log_prob(self, classes: Array) -> Array:
        """The log-probability of ``classes``, which exist: along their paths, or from all classes if these are few."""
        tree, places = self.nodes.tree, self.variables.places(classes)
        if self.is_tree and _functional.walks(tree):
            found = self.variables.with_axis(_functional.log_prob_unchecked(self.left, classes))
            found = self._mixed(found, self._log_uniform()) if self.unimix else found
        else:
            found = _pick(self.leaf_log_probs(), places)
        if self.valid is None:
            return found.sum(-1)
        possible = _pick(self.valid, places)
        # One masked class rules the whole value out.
        lowest = float(jnp.finfo(found.dtype).min)
        return jnp.where(possible.all(-1), jnp.where(possible, found, 0).sum(-1), lowest)

    def _without_nan(self) -> Leaves:
        """The same with NaN scores read as 0, so that whatever is drawn is a class that the mask allows."""
        if self.valid is None:
            return self
        scores = jnp.where(jnp.isnan(self.nodes.scores), 0, self.nodes.scores)
        return dataclasses.replace(self, nodes=dataclasses.replace(self.nodes, scores=scores))

    @functools.partial(jax.jit, static_argnames="sample_shape")
    def draw(self, sample_shape: tuple[int, ...], key: Array) -> Array:
        """Classes, sample shape + batch, with one more axis for the variables of a forest."""
        if self.unimix:
            key, which, uniformly = jax.random.split(key, 3)
        valid = self._without_nan()
        if self.is_tree:
            drawn = _functional.draw(valid.left, sample_shape, key)
        else:
            unmixed = dataclasses.replace(valid, unimix=0.0)
            drawn = _draw_by_weight(unmixed.probs(), self.nodes.tree, sample_shape, key)
        if not self.unimix:
            return drawn
        coin = jax.random.uniform(which, drawn.shape, self.nodes.scores.dtype) < self.unimix
        return jnp.where(coin, self._draw_uniformly(drawn, sample_shape, uniformly), drawn)

    def _draw_uniformly(self, like: Array, sample_shape: tuple[int, ...], key: Array) -> Array:
        tree = self.nodes.tree
        if self.valid is not None:
            return _draw_by_weight(self.valid.astype(self.nodes.scores.dtype), tree, sample_shape, key)
        counts = self.variables.without_axis(jnp.asarray(self.variables.sizes))
        return jax.random.randint(key, like.shape, 0, counts, like.dtype)


jax.tree_util.register_dataclass(
    Leaves, data_fields=["nodes", "valid", "temperature"], meta_fields=["mask_mode", "unimix"]
)


def gumbel_noise_on(log_probs: Array, possible: Array | None, sample_shape: Sequence[int], key: Array) -> Array:
    """Log-probabilities plus Gumbel noise, for every sample; the smallest finite number at impossible classes."""
    noise = -_paths.log_exponential(key, (*sample_shape, *log_probs.shape), log_probs.dtype)
    noisy = log_probs + noise
    return noisy if possible is None else jnp.where(possible, noisy, float(jnp.finfo(noisy.dtype).min))


def _draw_by_weight(weights: Array, tree: Tree | Forest, sample_shape: tuple[int, ...], key: Array) -> Array:
    """Draw classes with probabilities proportional to ``weights``; one of weight 0 is never drawn."""
    return _functional.draw(weighed(jax.lax.stop_gradient(weights), _shallow(tree)), sample_shape, key)


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


def from_options(
    nodes: Nodes, mask: Array | None, mask_mode: str, temperature: float | Array | None, unimix: float
) -> Leaves:
    """The distribution of what the user passes, checked as far as values are known."""
    _checks.one_of(mask_mode, "mask_mode", ("renormalize", "prune"))
    _checks.unimix(unimix)
    valid = None
    if mask is not None:
        valid = _masks.valid_classes(mask, nodes.tree)
        batch = jnp.broadcast_shapes(nodes.scores.shape[:-1], valid.shape[:-1])
        nodes, valid = nodes.expand(batch), jnp.broadcast_to(valid, (*batch, valid.shape[-1]))
    one = temperature is None or (isinstance(temperature, (int, float)) and temperature == 1)
    tau = None if one else checked_temperature(temperature, nodes.scores)
    return Leaves(nodes, valid, tau, mask_mode, float(unimix))


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
