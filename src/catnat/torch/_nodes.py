"""The nodes of a tree with all that is needed to answer their questions: scores, constants, and what a mask leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from catnat._forest import Forest
from catnat._tree import Tree
from catnat.torch import _plan
from catnat.torch._activations import Activation, Answers, Tables


class Masses(NamedTuple):
    """What a mask leaves of a tree, row by row: the prior mass of the valid classes on both sides of every node."""

    no: Tensor
    yes: Tensor
    reach: Tensor | None  # the share of the row's mass below each node; for isotropic scaling only

    def map(self, function: Callable[[Tensor], Tensor]) -> Masses:
        """``function`` of every tensor."""
        return Masses(function(self.no), function(self.yes), None if self.reach is None else function(self.reach))

    def asked(self) -> Tensor:
        """1 where both sides are left, and 0 elsewhere; a number, because products with it are cheaper than choices."""
        return torch.minimum(self.no, self.yes).sign()

    def tables(self, activation: Activation) -> Tables:
        """Centring and scaling for the prior restricted to the valid classes; of any finite value where not asked."""
        spare = 1 - self.asked()  # no side may be empty
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
        asked = self.masses.asked()
        return answers[0] * asked, answers[1] * asked

    def yes(self) -> Tensor:
        """The probability of yes, exactly 0 and 1 where it is."""
        yes = self.activation._yes(self.scores, self.tables)
        if self.masses is None:
            return yes
        asked = self.masses.asked()
        return yes * asked + (1 - asked) * self.masses.yes.sign()

    def information(self) -> Tensor:
        """The Fisher information of each score, given that its question is reached."""
        information = self.activation._information(self.scores, self.tables)
        return information if self.masses is None else information * self.masses.asked()


class Nodes(NamedTuple):
    """All nodes of a tree, with scores (..., K-1) in the dtype to compute in, and the masses that a mask leaves."""

    scores: Tensor
    tree: Tree | Forest
    activation: Activation
    masses: Masses | None = None

    def all(self) -> Questions:
        """Every question of the tree."""
        tables = self._tables if self.masses is None else self.masses.tables(self.activation)
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
        tables = self._tables
        if isinstance(tables[0], Tensor):
            rows = _plan.node_rows(self.tree, self.activation, self.scores.device, self.scores.dtype)
            tables = rows.index_select(0, index.flatten()).view(*index.shape, rows.shape[-1]).unbind(-1)
        return Questions(found, self.activation, tables, None)

    def expand(self, batch: Sequence[int]) -> Nodes:
        """The same nodes with the batch shape expanded."""
        masses = None if self.masses is None else self.masses.map(lambda mass: mass.expand(*batch, -1))
        return Nodes(self.scores.expand(*batch, -1), self.tree, self.activation, masses)

    def detach(self) -> Nodes:
        """The same nodes without a graph."""
        if not self.scores.requires_grad:
            return self
        return Nodes(self.scores.detach(), self.tree, self.activation, self.masses)

    @property
    def _tables(self) -> Tables:
        return _plan.node_tables(self.tree, self.activation, self.scores.device, self.scores.dtype)


def ask(scores: Tensor, tree: Tree | Forest | None, activation: Activation | str) -> Nodes:
    """Checked nodes, from what the user passes."""
    return Nodes(*_plan.prepare(scores, tree, activation))


def _gather(values: Tensor, index: Tensor) -> Tensor:
    if index.ndim == values.ndim:
        return values.gather(-1, index)
    return values.gather(-1, index.flatten(values.ndim - 1)).view(index.shape)
