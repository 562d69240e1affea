"""A search for the most probable classes that does not compute all classes.

The probability of reaching a node bounds that of every class below it. So the search never enters a subtree whose root
is less probable than k classes already found.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from catnat.torch._plan import Plan
from catnat.torch._walk import Reader, Walk

# The number of nodes per row that one pass reads; with fewer nodes a pass takes about as long.
_AT_ONCE = 32
# If all rows together have more places, the two halves of the rows are searched one after the other.
_MOST_PLACES = 1 << 22


class TopK(NamedTuple):
    """The most probable classes of every row, best first.

    Example:
        >>> import torch
        >>> from catnat.torch import CatnatHead
        >>> found = CatnatHead(4, 8).topk(torch.zeros(2, 4), k=3)
        >>> found.indices.shape, found.proven.all().item()
        (torch.Size([2, 3]), True)
    """

    values: Float[Tensor, "*batch k"]
    """The log-probabilities of the classes."""
    indices: Int[Tensor, "*batch k"]
    """The classes."""
    proven: Bool[Tensor, "*batch"]
    """Whether it is proven that no other class is more probable; False if ``max_nodes`` ended the search first."""
    visited: Int[Tensor, "*batch"]
    """The number of nodes read, of K-1."""


class _Places(NamedTuple):
    """The nodes and leaves that a search holds for each row, with the log-probability of reaching each."""

    row: Tensor  # the indices of the rows in the batch
    at: Tensor  # positions on the tree, (rows, places)
    log_prob: Tensor  # (rows, places), -inf for an unused place
    visited: Tensor  # the number of nodes read in each row

    def select(self, chosen: Tensor) -> _Places:
        """Return the places of the ``chosen`` rows."""
        return _Places(*(part[chosen] for part in self))

    def reordered(self, order: Tensor) -> _Places:
        """Return the places of every row at the indices ``order``."""
        return self._replace(at=self.at.gather(-1, order), log_prob=self.log_prob.gather(-1, order))


class _Search(NamedTuple):
    plan: Plan
    rows: Reader  # with one batch axis
    walk: Walk
    k: int
    max_nodes: int

    def first_look(self) -> _Places:
        """Go down to k leaves, always from the k most probable places, and append the other places of each level."""
        rows, like = self.rows.batch[0], self.rows.like
        row = torch.arange(rows, device=like.device)
        at = torch.zeros(rows, 1, dtype=torch.int64, device=like.device)
        places = _Places(row, at, like.new_zeros(rows, 1), torch.zeros_like(row))
        behind = []
        for _ in range(self.plan.tree.depth):
            places = self.below(places)
            places = places.reordered(places.log_prob.argsort(-1, descending=True))
            behind.append((places.at[:, self.k :], places.log_prob[:, self.k :]))
            places = places._replace(at=places.at[:, : self.k], log_prob=places.log_prob[:, : self.k])
        at, log_prob = (torch.cat(parts, -1) for parts in zip((places.at, places.log_prob), *behind, strict=True))
        return places._replace(at=at, log_prob=log_prob)

    def below(self, places: _Places) -> _Places:
        """Return both children of every place; a leaf stays, and its second child has probability 0."""
        at, leaf = places.at, self.walk.at_leaf(places.at)
        node = torch.where(leaf, 0, self.walk.node(at))
        scores = self.rows.select(places.row).at(node)
        if bool(scores.isnan().any()):
            raise ValueError(
                "The scores of the head are NaN, so no class is the most probable: its input or its weights are NaN, "
                "or overflowed in half precision."
            )
        no, yes = self.plan.branches.at(node).log_probs(scores, floored=True)
        left, right = (torch.where(leaf, at, self.walk.step(at, torch.full_like(at, bit))) for bit in (0, 1))
        branches = torch.cat([torch.where(leaf, 0, no), torch.where(leaf, -torch.inf, yes)], -1)
        read = places.log_prob.isfinite() & ~leaf
        log_prob = places.log_prob.repeat(1, 2) + branches
        return _Places(places.row, torch.cat([left, right], -1), log_prob, places.visited + read.sum(-1))

    def found(self, places: _Places) -> Tensor:
        """Return the indices of the k most probable leaves among the places."""
        leaves = torch.where(self.walk.at_leaf(places.at), places.log_prob, -torch.inf)
        return leaves.topk(self.k).indices

    def pruned(self, places: _Places) -> tuple[_Places, Tensor]:
        """Remove places less probable than the k-th leaf, and return where the remaining ones are nodes above it."""
        least = places.log_prob.gather(-1, self.found(places)[:, -1:])
        keep = torch.where(places.log_prob >= least, places.log_prob, -torch.inf)
        width = int(keep.isfinite().sum(-1).max())
        places = places._replace(log_prob=keep).reordered(keep.topk(width).indices)
        return places, (places.log_prob > least) & ~self.walk.at_leaf(places.at)

    def deeper(self, places: _Places, open_: Tensor) -> _Places:
        """Replace the most probable open nodes by their children."""
        bounds = torch.where(open_, places.log_prob, -torch.inf)
        chosen = bounds.topk(min(_AT_ONCE, bounds.shape[-1]))
        read = places.reordered(chosen.indices)._replace(log_prob=chosen.values)
        rest = places.log_prob.masked_fill(
            torch.zeros_like(open_).scatter(-1, chosen.indices, chosen.values.isfinite()), -torch.inf
        )
        new = self.below(read)
        return new._replace(at=torch.cat([places.at, new.at], -1), log_prob=torch.cat([rest, new.log_prob], -1))


def topk(plan: Plan, rows: Reader, k: int, max_nodes: int | None) -> TopK:
    """Find the k most probable classes for a batch with one axis."""
    search = _Search(plan, rows, Walk(plan), k, plan.tree.num_nodes if max_nodes is None else max_nodes)
    first = search.first_look()
    size, like = len(first.row), first.row
    result = TopK(
        rows.like.new_empty(size, k), like.new_empty(size, k), like.new_empty(size).bool(), like.new_empty(size)
    )
    waiting = [first] if size else []
    while waiting:
        places, open_ = search.pruned(waiting.pop())
        going = open_.any(-1) & (places.visited < search.max_nodes)
        _write(result, search, places.select(~going), ~open_.any(-1)[~going])
        places, open_ = places.select(going), open_[going]
        if not len(places.row):
            continue
        halves = 2 if len(places.row) > 1 and places.at.numel() > _MOST_PLACES else 1
        parts = torch.arange(len(places.row), device=like.device).chunk(halves)
        waiting += [search.deeper(places.select(part), open_[part]) for part in parts]
    return result


def _write(result: TopK, search: _Search, places: _Places, proven: Tensor) -> None:
    if not len(places.row):
        return
    best = places.reordered(search.found(places))
    result.values[places.row] = best.log_prob
    result.indices[places.row] = search.walk.classes(best.at)
    result.proven[places.row] = proven
    result.visited[places.row] = places.visited
