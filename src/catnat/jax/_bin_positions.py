"""From a number to its bin and its place inside it, and back."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from catnat.jax import _plan
from catnat.trees.bins import Bins, as_bins, check_resolved

# A number so many widths out in a tail counts as this far: its density is 0 in every dtype, its logarithm finite.
_FARTHEST = 1e18


class Table(NamedTuple):
    """The constants of every bin."""

    edges: NDArray[Any]  # all K + 1
    width: NDArray[Any]
    mean: NDArray[Any]
    variance: NDArray[Any]
    entropy: NDArray[Any]


@_plan.cached
def table_of(bins: Bins, dtype: Any) -> Table:
    """The table of ``bins``, built once."""
    check_resolved(bins, dtype)
    columns = (bins.edges, bins.widths, bins.means, bins.variances, bins.entropies)
    return Table(*(column.astype(dtype) for column in columns))


def bins_of(value: object) -> Bins:
    """Bins, or the bins with these edges, which must be known where a function is traced."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            "`bins` is an array that is being traced, but bins are static, as trees are: make catnat.Bins(edges) of a "
            "NumPy array, outside of the function that is compiled."
        )
    return as_bins(np.asarray(value) if isinstance(value, jax.Array) else value)


class Position(NamedTuple):
    """Where a number stands."""

    which: Array  # its bin
    below: Array  # the fraction of the bin's mass below it
    above: Array  # and above it
    width: Array  # of the bin
    distance: Array  # from the inner edge of a tail, in widths; 0 in other bins
    beyond: Array  # how far it lies outside of all bins


def locate(value: Array, bins: Bins) -> Position:
    """The positions of ``value``, which has the dtype to compute in. An edge belongs to the bin above it."""
    table = table_of(bins, value.dtype)
    index = jnp.searchsorted(table.edges[1:-1], value, side="right")
    index = jnp.minimum(index, bins.num_bins - 1)  # where a number is NaN
    lower, width = (_plan.look_up(column, index) for column in (table.edges, table.width))
    places = (value - lower) / width
    below = jnp.clip(places, 0, 1)
    above = 1 - below
    beyond = jnp.abs(value - jnp.clip(value, float(bins.edges[0]), float(bins.edges[-1])))
    if not bins.tails:
        return Position(index, below, above, width, jnp.zeros_like(below), beyond)
    left, right = index == 0, index == bins.num_bins - 1
    distance = jnp.clip(jnp.where(left, 1 - places, jnp.where(right, places, 0)), 0, _FARTHEST)
    farther, nearer = jnp.exp(-distance), -jnp.expm1(-distance)
    below = jnp.where(left, farther, jnp.where(right, nearer, below))
    above = jnp.where(left, nearer, jnp.where(right, farther, above))
    return Position(index, below, above, width, distance, jnp.zeros_like(beyond))


def place(index: Array, below: Array, bins: Bins) -> Array:
    """The number in the bin ``index`` with the fraction ``below`` of the bin's mass below it; finite."""
    table = table_of(bins, below.dtype)
    lower, width = (_plan.look_up(column, index) for column in (table.edges, table.width))
    if not bins.tails:
        found = lower + width * below
        # Rounded, it may lie beyond the bin, and beyond the last one there is no density.
        return found - lax.stop_gradient(jnp.maximum(found - _plan.look_up(table.edges, index + 1), 0))
    left, right = index == 0, index == bins.num_bins - 1
    from_left = jnp.log(jnp.maximum(below, smallest_fraction(below.dtype))) + 1
    from_right = -jnp.log1p(-jnp.minimum(below, 1 - float(jnp.finfo(below.dtype).eps) / 2))
    return lower + width * jnp.where(left, from_left, jnp.where(right, from_right, below))


def smallest_fraction(dtype: Any) -> float:
    """Masses below it are not told apart, so that their quotients, and the derivatives of these, are finite."""
    return float(jnp.finfo(dtype).tiny) ** 0.25
