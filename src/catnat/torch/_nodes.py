"""The nodes of a tree with all that is needed to answer their questions: scores, constants, and what a mask leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from catnat._forest import Forest
from catnat._tree import Tree
from catnat.torch import _plan
from catnat.torch._activations import Activation, Answers, Tables


class Masses(NamedTuple):
    """What a mask leaves of a tree, row by row: the prior mass of the valid classes on both sides of every node."""

    no: Tensor
    yes: Tensor
    reach: Tensor | None  # the share of the row's mass below each node; for isotropic scaling only
    asked: Tensor  # 1 where both sides are left, and 0 elsewhere: products with a number are cheaper than choices
    known: Tables | None = None  # what `tables` returns, if that has been computed

    @classmethod
    def of(cls, no: Tensor, yes: Tensor, reach: Tensor | None) -> Masses:
        """Masses, and which questions they leave to ask."""
        return cls(no, yes, reach, torch.minimum(no, yes).sign())

    def map(self, function: Callable[[Tensor], Tensor]) -> Masses:
        """``function`` of every tensor."""
        reach = None if self.reach is None else function(self.reach)
        return Masses(function(self.no), function(self.yes), reach, function(self.asked))

    def tables(self, activation: Activation) -> Tables:
        """Centring and scaling for the prior restricted to the valid classes; of any finite value where not asked."""
        if self.known is not None:
            return self.known
        spare = 1 - self.asked  # no side may be empty
        return activation._tables_of(self.no + spare, self.yes + spare, self.reach)


class Questions(NamedTuple):
    """Some questions, each with its score and constants.

    With a mask, a question may have only one answer left. It is not asked, and its score counts nothing.
    """

    scores: Tensor
    activation: Activation
    tables: Tables
    masses: Masses | None

    def log_answers(self, *, floored: bool) -> Answers:
        """The log-probabilities of no and of yes, floored or not; 0 for both where only one is left.

        The one that is left has probability 1. The other leads to masked classes only, whose paths nobody needs.
        """
        answers = self.activation._log_answers(self.scores, self.tables, floored=floored)
        if self.masses is None:
            return answers
        asked = self.masses.asked
        return answers[0] * asked, answers[1] * asked

    def yes(self) -> Tensor:
        """The probability of yes, exactly 0 and 1 where it is."""
        yes = self.activation._yes(self.scores, self.tables)
        if self.masses is None:
            return yes
        asked = self.masses.asked
        return yes * asked + (1 - asked) * self.masses.yes.sign()

    def information(self) -> Tensor:
        """The Fisher information of each score, given that its question is reached."""
        information = self.activation._information(self.scores, self.tables)
        return information if self.masses is None else information * self.masses.asked


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
        """A tensor with the dtype and device of the answers."""
        return self.scores

    def all(self) -> Questions:
        """Every question of the tree."""
        if self.masses is None:
            tables = _plan.node_tables(self.tree, self.activation, self.scores.device, self.scores.dtype)
        else:
            tables = self.masses.tables(self.activation)
        return Questions(self.scores, self.activation, tables, self.masses)

    def at(self, index: Tensor, place: Tensor | None = None) -> Questions:
        """The questions at the nodes ``index``, whose leading axes are the scores' batch.

        Where the rows of a batch have been joined to one, ``place`` is where to look in it.
        """
        place = index if place is None else place
        found = _gather(self.scores, place)
        if self.masses is not None:
            masses = self.masses.map(lambda mass: _gather(mass, place))
            return Questions(found, self.activation, masses.tables(self.activation), masses)
        return Questions(found, self.activation, _tables_at(index, self.tree, self.activation, found), None)

    def expand(self, batch: Sequence[int]) -> Nodes:
        """The same nodes with the batch shape expanded."""
        masses = None if self.masses is None else self.masses.map(lambda mass: mass.expand(*batch, -1))
        return Nodes(self.scores.expand(*batch, -1), self.tree, self.activation, masses)

    def detach(self) -> Nodes:
        """The same nodes without a graph."""
        if not self.scores.requires_grad:
            return self
        return Nodes(self.scores.detach(), self.tree, self.activation, self.masses)


class Rows(NamedTuple):
    """All nodes of a tree, whose scores are made where a question is asked: an input times the node's row of weights.

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
        """A tensor with the dtype and device of the answers."""
        return self.input.new_empty((), dtype=_plan.computing_dtype(self.input.dtype))

    def of(self, chosen: Tensor) -> Rows:
        """The same nodes for some of the inputs."""
        return self._replace(input=self.input[chosen])

    def at(self, index: Tensor) -> Questions:
        """The questions at the nodes ``index``, whose leading axes are the input's batch."""
        rows = F.embedding(index, self.weight, sparse=self.sparse).flatten(len(self.batch), -2)
        scores = torch.matmul(rows, self.input.unsqueeze(-1)).view(index.shape)
        return self._questions(scores, index, index)

    def each(self, row: Tensor, node: Tensor, place: Tensor) -> Questions:
        """One question an entry: of an input's ``row``, at a ``node`` whose weights stand at ``place``."""
        weights = F.embedding(place, self.weight, sparse=self.sparse)
        return self._questions((weights * self.input.index_select(0, row)).sum(-1), node, place)

    def _questions(self, scores: Tensor, node: Tensor, place: Tensor) -> Questions:
        if self.bias is not None:
            scores = scores + self.bias.gather(0, place.flatten(), sparse_grad=self.sparse).view(place.shape)
        scores = _plan.to_computing_dtype(scores)
        return Questions(scores, self.activation, _tables_at(node, self.tree, self.activation, scores), None)


def ask(
    scores: Tensor, tree: Tree | Forest | None, activation: Activation | str, num_classes: int | None = None
) -> Nodes:
    """Checked nodes, from what the user passes."""
    return Nodes(*_plan.prepare(scores, tree, activation, num_classes))


def _tables_at(index: Tensor, tree: Tree | Forest, activation: Activation, like: Tensor) -> Tables:
    """The activation's constants at the nodes ``index``."""
    tables = _plan.node_tables(tree, activation, like.device, like.dtype)
    if not isinstance(tables[0], Tensor):
        return tables
    rows = _plan.node_rows(tree, activation, like.device, like.dtype)
    return rows.index_select(0, index.flatten()).view(*index.shape, rows.shape[-1]).unbind(-1)


def _gather(values: Tensor, index: Tensor) -> Tensor:
    if index.ndim == values.ndim:
        return values.gather(-1, index)
    return values.gather(-1, index.flatten(values.ndim - 1)).view(index.shape)
