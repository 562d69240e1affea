"""Functions that map a number to its bin and its position in that bin, and back."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from catnat.jax import _plan
from catnat.trees.bins import Bins, as_bins, check_resolved

# Distances in a tail, in widths, are clamped here: the density is 0 in every dtype and its logarithm is finite.
_FARTHEST = 1e18


class Table(NamedTuple):
    """The constants of all bins, (K,) each."""

    edges: NDArray[Any]  # (K + 1,)
    width: NDArray[Any]
    mean: NDArray[Any]
    variance: NDArray[Any]
    entropy: NDArray[Any]


@_plan.cached
def table_of(bins: Bins, dtype: Any) -> Table:
    """Return the constants of ``bins`` in ``dtype``, computed once."""
    check_resolved(bins, dtype)
    columns = (bins.edges, bins.widths, bins.means, bins.variances, bins.entropies)
    return Table(*(column.astype(dtype) for column in columns))


def bins_of(value: object) -> Bins:
    """Return ``value``, bins or their edges, as bins; raise if it is traced, because bins are static."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            "`bins` is an array that is being traced, but bins are static, as trees are: build catnat.Bins(edges) from "
            "a NumPy array, outside the compiled function."
        )
    return as_bins(np.asarray(value) if isinstance(value, jax.Array) else value)


class Position(NamedTuple):
    """The bin of each number and its position in the bin."""

    which: Array  # index of the bin
    below: Array  # fraction of the bin's mass below the number
    above: Array  # fraction of the bin's mass above the number
    width: Array  # width of the bin
    distance: Array  # distance from the inner edge of a tail, in widths; 0 in other bins
    beyond: Array  # distance from the nearest bin; 0 inside the bins


def locate(value: Array, bins: Bins) -> Position:
    """Return the positions of ``value``, given in the computing dtype. An edge belongs to the bin above it."""
    table = table_of(bins, value.dtype)
    index = jnp.searchsorted(table.edges[1:-1], value, side="right")
    index = jnp.minimum(index, bins.num_bins - 1)  # needed only for NaN
    lower, width = (_plan.look_up(column, index) for column in (table.edges, table.width))
    places = (value - lower) / width
    below = clip(places, 0, 1)
    above = 1 - below
    beyond = jnp.abs(value - clip(value, float(bins.edges[0]), float(bins.edges[-1])))
    if not bins.tails:
        return Position(index, below, above, width, jnp.zeros_like(below), beyond)
    left, right = index == 0, index == bins.num_bins - 1
    distance = clip(jnp.where(left, 1 - places, jnp.where(right, places, 0)), 0, _FARTHEST)
    farther, nearer = jnp.exp(-distance), -jnp.expm1(-distance)
    below = jnp.where(left, farther, jnp.where(right, nearer, below))
    above = jnp.where(left, nearer, jnp.where(right, farther, above))
    return Position(index, below, above, width, distance, jnp.zeros_like(beyond))


def clip(values: Array, lowest: float, largest: float) -> Array:
    """Clip values, with the gradient 1 at both ends, where that of ``jnp.clip`` is 1/2: numbers often are edges."""
    return jnp.where(values < lowest, lowest, jnp.where(values > largest, largest, values))


def place(index: Array, below: Array, bins: Bins) -> Array:
    """Return the number that has the fraction ``below`` of the mass of bin ``index`` below it; always finite."""
    table = table_of(bins, below.dtype)
    lower, width = (_plan.look_up(column, index) for column in (table.edges, table.width))
    if not bins.tails:
        found = lower + width * below
        # Rounding may move the number beyond its bin, and the density beyond the last bin is 0.
        return found - lax.stop_gradient(jnp.maximum(found - _plan.look_up(table.edges, index + 1), 0))
    left, right = index == 0, index == bins.num_bins - 1
    from_left = jnp.log(jnp.maximum(below, smallest_fraction(below.dtype))) + 1
    from_right = -jnp.log1p(-jnp.minimum(below, 1 - float(jnp.finfo(below.dtype).eps) / 2))
    return lower + width * jnp.where(left, from_left, jnp.where(right, from_right, below))


def smallest_fraction(dtype: Any) -> float:
    """Return the lower bound to which masses are clamped, so that quotients and their derivatives are finite."""
    return float(jnp.finfo(dtype).tiny) ** 0.25
