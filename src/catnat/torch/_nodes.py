"""The nodes of a tree with all that their probabilities need: scores, constants, and what a mask leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from catnat.activations import Activation
from catnat.torch import _constants, _inputs
from catnat.torch._kernels import Branches, Kernel, kernel_for
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree


class Masses(NamedTuple):
    """What a mask leaves of a tree, row by row: the prior mass of the valid classes on both sides of every node."""

    no: Tensor
    yes: Tensor
    reach: Tensor | None  # the fraction of the row's mass below each node; for isotropic scaling only
    # 1 where both sides are left, 0 elsewhere: multiplying by a float mask is faster than `torch.where` on a CPU
    active: Tensor
    known: Any = None  # what `constants` returns, if that has been computed

    @classmethod
    def from_sides(cls, no: Tensor, yes: Tensor, reach: Tensor | None) -> Masses:
        """Masses, and which nodes they leave active."""
        return cls(no, yes, reach, torch.minimum(no, yes).sign())

    def map(self, function: Callable[[Tensor], Tensor]) -> Masses:
        """``function`` of every tensor."""
        reach = None if self.reach is None else function(self.reach)
        return Masses(function(self.no), function(self.yes), reach, function(self.active))

    def constants(self, kernel: Kernel) -> Any:
        """Centring and scaling for the prior restricted to the valid classes; of any finite value where not active."""
        if self.known is not None:
            return self.known
        spare = 1 - self.active  # no side may be empty
        return kernel.constants_from_masses(self.no + spare, self.yes + spare, self.reach)


class NodeScores(NamedTuple):
    """Some nodes, each with its score and constants.

    With a mask, a node may have only one branch left. It is not active, and its score is ignored.
    """

    scores: Tensor
    kernel: Kernel
    constants: Any
    masses: Masses | None

    def branch_log_probs(self, *, floored: bool) -> Branches:
        """The log-probabilities of no and of yes, floored or not; 0 for both where only one is left.

        The one that is left has probability 1. The other leads to masked classes only, whose paths nobody needs.
        """
        branches = self.kernel.branch_log_probs(self.scores, self.constants, floored=floored)
        if self.masses is None:
            return branches
        active = self.masses.active
        return branches[0] * active, branches[1] * active

    def yes(self) -> Tensor:
        """The probability of yes, exactly 0 and 1 where it is."""
        yes = self.kernel.yes_probs(self.scores, self.constants)
        if self.masses is None:
            return yes
        active = self.masses.active
        return yes * active + (1 - active) * self.masses.yes.sign()

    def information(self) -> Tensor:
        """The Fisher information of each score, given that its node is reached."""
        information = self.kernel.information(self.scores, self.constants)
        return information if self.masses is None else information * self.masses.active


class Nodes(NamedTuple):
    """All nodes of a tree, with scores (..., K-1) in the dtype to compute in, and the masses that a mask leaves."""

    scores: Tensor
    tree: Tree | Forest
    activation: Activation
    masses: Masses | None = None

    @property
    def batch(self) -> torch.Size:
        """The shape of the rows."""
        return self.scores.shape[:-1]

    @property
    def like(self) -> Tensor:
        """A tensor with the dtype and device of the log-probabilities."""
        return self.scores

    @property
    def kernel(self) -> Kernel:
        """How the activation is computed."""
        return kernel_for(self.activation)

    def all(self) -> NodeScores:
        """Every node of the tree."""
        kernel = self.kernel
        if self.masses is None:
            constants = _constants.node_constants(self.tree, self.activation, self.scores.device, self.scores.dtype)
        else:
            constants = self.masses.constants(kernel)
        return NodeScores(self.scores, kernel, constants, self.masses)

    def at(self, index: Tensor, place: Tensor | None = None) -> NodeScores:
        """The nodes ``index``, whose leading axes are the scores' batch.

        Where the rows of a batch have been joined to one, ``place`` is where to look in it.
        """
        place = index if place is None else place
        kernel, found = self.kernel, _gather(self.scores, place)
        if self.masses is not None:
            masses = self.masses.map(lambda mass: _gather(mass, place))
            return NodeScores(found, kernel, masses.constants(kernel), masses)
        return NodeScores(found, kernel, _constants_at(index, self.tree, self.activation, found), None)

    def expand(self, batch: Sequence[int]) -> Nodes:
        """The same nodes with the batch shape expanded."""
        masses = None if self.masses is None else self.masses.map(lambda mass: mass.expand(*batch, -1))
        return Nodes(self.scores.expand(*batch, -1), self.tree, self.activation, masses)

    def detach(self) -> Nodes:
        """The same nodes without a graph."""
        if not self.scores.requires_grad:
            return self
        return Nodes(self.scores.detach(), self.tree, self.activation, self.masses)


class ReadNodes(Protocol):
    """What a walk down a tree needs of nodes whose scores are made where they are read."""

    @property
    def tree(self) -> Tree: ...
    @property
    def batch(self) -> torch.Size: ...
    @property
    def like(self) -> Tensor: ...
    def at(self, index: Tensor) -> NodeScores: ...
    def select(self, chosen: Tensor) -> ReadNodes: ...


class LazyNodes(NamedTuple):
    """All nodes of a tree, whose scores are made where they are read: an input times the node's row of weights.

    What walks down paths takes it in place of :class:`Nodes`.
    """

    input: Tensor
    weight: Tensor
    bias: Tensor | None
    tree: Tree
    activation: Activation
    sparse: bool

    @property
    def batch(self) -> torch.Size:
        """The shape of the rows."""
        return self.input.shape[:-1]

    @property
    def like(self) -> Tensor:
        """A tensor with the dtype and device of the log-probabilities."""
        return self.input.new_empty((), dtype=_inputs.computing_dtype(self.input.dtype))

    def select(self, chosen: Tensor) -> LazyNodes:
        """The same nodes for some of the inputs."""
        return self._replace(input=self.input[chosen])

    @property
    def kernel(self) -> Kernel:
        """How the activation is computed."""
        return kernel_for(self.activation)

    def at(self, index: Tensor, place: Tensor | None = None) -> NodeScores:
        """The nodes ``index``, whose leading axes are the input's batch; ``place`` is where their weights stand."""
        place = index if place is None else place
        rows = F.embedding(place, self.weight, sparse=self.sparse).flatten(len(self.batch), -2)
        scores = torch.matmul(rows, self.input.unsqueeze(-1)).view(index.shape)
        return self._node_scores(scores, index, place)

    def each(self, row: Tensor, node: Tensor, place: Tensor) -> NodeScores:
        """One node an entry: of an input's ``row``, at a ``node`` whose weights stand at ``place``."""
        weights = F.embedding(place, self.weight, sparse=self.sparse)
        return self._node_scores((weights * self.input.index_select(0, row)).sum(-1), node, place)

    def _node_scores(self, scores: Tensor, node: Tensor, place: Tensor) -> NodeScores:
        if self.bias is not None:
            scores = scores + self.bias.gather(0, place.flatten(), sparse_grad=self.sparse).view(place.shape)
        scores = _inputs.to_computing_dtype(scores)
        return NodeScores(scores, self.kernel, self.constants_at(node, scores), None)

    def constants_at(self, node: Tensor, like: Tensor) -> Any:
        """The activation's constants at ``node``, in the dtype of ``like``."""
        return _constants_at(node, self.tree, self.activation, like)


def prepare(
    scores: Tensor, tree: Tree | Forest | None, activation: Activation | str, num_classes: int | None = None
) -> Nodes:
    """Checked nodes, from what the user passes."""
    return Nodes(*_inputs.check(scores, tree, activation, num_classes))


def _constants_at(index: Tensor, tree: Tree | Forest, activation: Activation, like: Tensor) -> Any:
    """The activation's constants at the nodes ``index``."""
    constants = _constants.node_constants(tree, activation, like.device, like.dtype)
    if not isinstance(constants[0], Tensor):
        return constants
    rows = _constants.node_rows(tree, activation, like.device, like.dtype)
    found = rows.index_select(0, index.flatten()).view(*index.shape, rows.shape[-1])
    return type(constants)(*found.unbind(-1))


def _gather(values: Tensor, index: Tensor) -> Tensor:
    if index.ndim == values.ndim:
        return values.gather(-1, index)
    return values.gather(-1, index.flatten(values.ndim - 1)).view(index.shape)
