"""From a number to its bin and its place inside it, and back."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from catnat.torch._constants import constant
from catnat.torch._plan import look_up
from catnat.trees.bins import Bins, as_bins, check_resolved

# A number so many widths out in a tail counts as this far: its density is 0 in every dtype, its logarithm finite.
_FARTHEST = 1e18


class Table(NamedTuple):
    """The constants of every bin."""

    edges: Tensor  # all K + 1
    width: Tensor
    mean: Tensor
    variance: Tensor
    entropy: Tensor


@constant
def table_of(bins: Bins, device: torch.device, dtype: torch.dtype) -> Table:
    """The table of ``bins``, built once."""
    check_resolved(bins, str(dtype).removeprefix("torch."))
    columns = (bins.edges, bins.widths, bins.means, bins.variances, bins.entropies)
    return Table(*(torch.as_tensor(column.copy(), dtype=dtype, device=device) for column in columns))


def bins_of(value: object) -> Bins:
    """Bins, or the bins with these edges, which may be a tensor."""
    return as_bins(value.detach().cpu().numpy() if isinstance(value, Tensor) else value)


class Position(NamedTuple):
    """Where a number stands."""

    which: Tensor  # its bin
    below: Tensor  # the fraction of the bin's mass below it
    above: Tensor  # and above it
    width: Tensor  # of the bin
    distance: Tensor  # from the inner edge of a tail, in widths; 0 in other bins
    beyond: Tensor  # how far it lies outside of all bins


def locate(value: Tensor, bins: Bins) -> Position:
    """The positions of ``value``, which has the dtype to compute in. An edge belongs to the bin above it."""
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
    """The number in the bin ``index`` with the fraction ``below`` of the bin's mass below it; finite."""
    table = table_of(bins, below.device, below.dtype)
    lower, width = (look_up(column, index) for column in (table.edges, table.width))
    if not bins.tails:
        found = lower + width * below
        # Rounded, it may lie beyond the bin, and beyond the last one there is no density.
        return found - (found - look_up(table.edges, index + 1)).clamp(min=0).detach()
    left, right = index == 0, index == bins.num_bins - 1
    from_left = below.clamp(min=smallest_fraction(below.dtype)).log() + 1
    from_right = -torch.log1p(-below.clamp(max=1 - torch.finfo(below.dtype).eps / 2))
    return lower + width * torch.where(left, from_left, torch.where(right, from_right, below))


def smallest_fraction(dtype: torch.dtype) -> float:
    """Masses below it are not told apart, so that their quotients, and the derivatives of these, are finite."""
    return torch.finfo(dtype).tiny ** 0.25
