"""Conversions between numbers and positions in bins."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from catnat.torch._constants import constant
from catnat.torch._plan import look_up
from catnat.trees.bins import Bins, as_bins, check_resolved

# Distances in a tail, in widths, are clamped here: the density is 0 in every dtype and its logarithm is finite.
_FARTHEST = 1e18


class Table(NamedTuple):
    """The constants of all bins, (K,) each."""

    edges: Tensor  # (K + 1,)
    width: Tensor
    mean: Tensor
    variance: Tensor
    entropy: Tensor


@constant
def table_of(bins: Bins, device: torch.device, dtype: torch.dtype) -> Table:
    """Return the table of ``bins``, built once."""
    check_resolved(bins, str(dtype).removeprefix("torch."))
    columns = (bins.edges, bins.widths, bins.means, bins.variances, bins.entropies)
    return Table(*(torch.as_tensor(column.copy(), dtype=dtype, device=device) for column in columns))


def bins_of(value: object) -> Bins:
    """Return ``value`` if it is a :class:`Bins`, else the bins with these edges, an array or tensor."""
    return as_bins(value.detach().cpu().numpy() if isinstance(value, Tensor) else value)


class Position(NamedTuple):
    """The bin of each number and its position in the bin."""

    which: Tensor  # the index of the bin
    below: Tensor  # the fraction of the bin's mass below the number
    above: Tensor  # the fraction of the bin's mass above the number
    width: Tensor  # the width of the bin
    distance: Tensor  # the distance from the inner edge of a tail, in widths; 0 in other bins
    beyond: Tensor  # the distance from the nearest edge, if the number lies outside all bins, else 0


def locate(value: Tensor, bins: Bins) -> Position:
    """Return the positions of ``value``, given in the computing dtype. An edge belongs to the bin above it."""
    table = table_of(bins, value.device, value.dtype)
    index = torch.searchsorted(table.edges[1:-1], value.detach().contiguous(), right=True)
    lower, width = (look_up(column, index) for column in (table.edges, table.width))
    places = (value - lower) / width
    below = places.clamp(0, 1)
    above = 1 - below
    beyond = (value - value.clamp(float(bins.edges[0]), float(bins.edges[-1]))).abs()
    if not bins.tails:
        return Position(index, below, above, width, torch.zeros_like(below), beyond)
    left, right = index == 0, index == bins.num_bins - 1
    distance = torch.where(left, 1 - places, torch.where(right, places, 0)).clamp(0, _FARTHEST)
    farther, nearer = (-distance).exp(), -torch.expm1(-distance)
    below = torch.where(left, farther, torch.where(right, nearer, below))
    above = torch.where(left, nearer, torch.where(right, farther, above))
    return Position(index, below, above, width, distance, torch.zeros_like(beyond))


def place(index: Tensor, below: Tensor, bins: Bins) -> Tensor:
    """Return the number that has the fraction ``below`` of the mass of bin ``index`` below it; always finite."""
    table = table_of(bins, below.device, below.dtype)
    lower, width = (look_up(column, index) for column in (table.edges, table.width))
    if not bins.tails:
        found = lower + width * below
        # Rounding may move the number beyond its bin, and the density beyond the last bin is 0.
        return found - (found - look_up(table.edges, index + 1)).clamp(min=0).detach()
    left, right = index == 0, index == bins.num_bins - 1
    from_left = below.clamp(min=smallest_fraction(below.dtype)).log() + 1
    from_right = -torch.log1p(-below.clamp(max=1 - torch.finfo(below.dtype).eps / 2))
    return lower + width * torch.where(left, from_left, torch.where(right, from_right, below))


def smallest_fraction(dtype: torch.dtype) -> float:
    """Return the lower bound to which masses are clamped, so that quotients and their derivatives are finite."""
    return torch.finfo(dtype).tiny ** 0.25
