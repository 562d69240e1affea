"""The nodes of a tree with all that their probabilities need: scores, constants, and what a mask leaves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from catnat.activations import Activation
from catnat.jax import _constants, _inputs
from catnat.jax._kernels import Branches, Kernel, kernel_for
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree


class Masses(NamedTuple):
    """What a mask leaves of a tree, row by row: the prior mass of the valid classes on both sides of every node."""

    no: Array
    yes: Array
    reach: Array | None  # the fraction of the row's mass below each node; for isotropic scaling only

    def map(self, function: Callable[[Array], Array]) -> Masses:
        """``function`` of every array."""
        return Masses(function(self.no), function(self.yes), None if self.reach is None else function(self.reach))

    def active(self) -> Array:
        """Where both sides are left."""
        return jnp.minimum(self.no, self.yes) > 0

    def constants(self, kernel: Kernel) -> Any:
        """Centring and scaling for the prior restricted to the valid classes; of any finite value where not active."""
        active = self.active()  # no side may be empty
        return kernel.constants_from_masses(jnp.where(active, self.no, 1), jnp.where(active, self.yes, 1), self.reach)


class NodeScores(NamedTuple):
    """Some nodes, each with its score and constants.

    With a mask, a node may have only one branch left. It is not active, and its score is ignored.
    """

    scores: Array
    kernel: Kernel
    constants: Any
    masses: Masses | None

    def branch_log_probs(self, *, floored: bool) -> Branches:
        """The log-probabilities of no and of yes, floored or not; 0 for both where only one is left.

        The one that is left has probability 1. The other leads to masked classes only, whose paths nobody needs.
        """
        no, yes = self.kernel.branch_log_probs(self.scores, self.constants, floored=floored)
        if self.masses is None:
            return no, yes
        active = self.masses.active()
        return jnp.where(active, no, 0), jnp.where(active, yes, 0)

    def yes(self) -> Array:
        """The probability of yes, exactly 0 and 1 where it is."""
        yes = self.kernel.yes_probs(self.scores, self.constants)
        if self.masses is None:
            return yes
        return jnp.where(self.masses.active(), yes, jnp.sign(self.masses.yes))

    def information(self) -> Array:
        """The Fisher information of each score, given that its node is reached."""
        information = self.kernel.information(self.scores, self.constants)
        return information if self.masses is None else jnp.where(self.masses.active(), information, 0)


@dataclasses.dataclass(frozen=True)
class Nodes:
    """All nodes of a tree, with scores (..., K-1) in the dtype to compute in, and the masses that a mask leaves.

    A pytree of the scores and masses; the tree and the activation are static.
    """

    scores: Array
    tree: Tree | Forest
    activation: Activation
    masses: Masses | None = None

    @property
    def batch(self) -> tuple[int, ...]:
        """The shape of the rows."""
        return self.scores.shape[:-1]

    @property
    def dtype(self) -> Any:
        """The dtype of the log-probabilities."""
        return self.scores.dtype

    def holds(self, index: Array) -> Array:
        """Whether ``index`` is a node; -1 is none."""
        return index >= 0

    @property
    def kernel(self) -> Kernel:
        """How the activation is computed."""
        return kernel_for(self.activation)

    def all(self) -> NodeScores:
        """Every node of the tree."""
        if self.masses is not None:
            return NodeScores(self.scores, self.kernel, self.masses.constants(self.kernel), self.masses)
        constants = _constants.node_constants(self.tree, self.activation, self.scores.dtype)
        return NodeScores(self.scores, self.kernel, constants, None)

    def at(self, index: Array) -> NodeScores:
        """The nodes ``index``, whose leading axes are the scores' batch."""
        scores = _gather(self.scores, index)
        if self.masses is not None:
            masses = self.masses.map(lambda mass: _gather(mass, index))
            return NodeScores(scores, self.kernel, masses.constants(self.kernel), masses)
        constants = _constants.node_constants_at(index, self.tree, self.activation, self.scores.dtype)
        return NodeScores(scores, self.kernel, constants, None)

    def expand(self, batch: Sequence[int]) -> Nodes:
        """The same nodes with the batch shape expanded."""

        def widen(values: Array) -> Array:
            return jnp.broadcast_to(values, (*batch, values.shape[-1]))

        masses = None if self.masses is None else self.masses.map(widen)
        return dataclasses.replace(self, scores=widen(self.scores), masses=masses)

    def detach(self) -> Nodes:
        """The same nodes, through which no gradient goes."""
        return dataclasses.replace(self, scores=lax.stop_gradient(self.scores))


jax.tree_util.register_dataclass(Nodes, data_fields=["scores", "masses"], meta_fields=["tree", "activation"])


@dataclasses.dataclass(frozen=True)
class LazyNodes:
    """All nodes of a tree, whose scores are made where they are read: an input times the node's row of weights.

    What walks down paths takes it in place of :class:`Nodes`. Where rows are split between devices, these are the rows
    from ``first`` on. A pytree of its arrays; the tree and the activation are static.
    """

    input: Array
    weight: Array
    bias: Array | None
    first: Array | int
    tree: Tree
    activation: Activation

    @property
    def batch(self) -> tuple[int, ...]:
        """The shape of the rows of the input."""
        return self.input.shape[:-1]

    @property
    def dtype(self) -> Any:
        """The dtype of the log-probabilities."""
        return jnp.promote_types(jnp.promote_types(self.input.dtype, self.weight.dtype), jnp.float32)

    def holds(self, index: Array) -> Array:
        """Whether ``index`` is a node whose row is here."""
        return (index >= self.first) & (index < self.first + len(self.weight))

    @property
    def kernel(self) -> Kernel:
        """How the activation is computed."""
        return kernel_for(self.activation)

    def at(self, index: Array) -> NodeScores:
        """The nodes ``index``, whose leading axes are the input's batch; of any score if not here."""
        here = jnp.clip(index - self.first, 0, len(self.weight) - 1)
        more = tuple(range(len(self.batch), index.ndim))
        scores = (_constants.look_up(self.weight, here) * jnp.expand_dims(self.input, more)).sum(-1)
        if self.bias is not None:
            scores = scores + _constants.look_up(self.bias, here)
        scores = _inputs.to_computing_dtype(scores)
        constants = _constants.node_constants_at(index, self.tree, self.activation, scores.dtype)
        return NodeScores(scores, self.kernel, constants, None)


jax.tree_util.register_dataclass(
    LazyNodes, data_fields=["input", "weight", "bias", "first"], meta_fields=["tree", "activation"]
)


def prepare(
    scores: Array, tree: Tree | Forest | None, activation: Activation | str, num_classes: int | None = None
) -> Nodes:
    """Checked nodes, from what the user passes."""
    return Nodes(*_inputs.check(scores, tree, activation, num_classes))


def _gather(values: Array, index: Array) -> Array:
    """The entries of each row of ``values`` at its own indices, which may have further axes."""
    batch = values.shape[:-1]
    flat = index.reshape(*batch, math.prod(index.shape[len(batch) :]))  # no -1: the batch may be empty
    return jnp.take_along_axis(values, flat, -1, mode="promise_in_bounds").reshape(index.shape)
