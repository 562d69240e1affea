"""Targets for regression as classification, which represent numbers as distributions over bins."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.special import erfc
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from catnat import _checks
from catnat.jax import _bin_positions, _plan
from catnat.trees.bins import Bins

__all__ = ["hard", "hl_gauss", "two_hot"]


def hard(value: Float[Array, "*batch"], bins: Bins | ArrayLike) -> Int[Array, "*batch"]:
    """Return the bin that contains each number; numbers outside all bins get the first or the last bin.

    (``BinnedCatnat.log_prob`` treats those differently: the density is 0 outside all bins.)

    As a target of :func:`catnat.jax.cross_entropy`, a bin costs one path. For numbers inside the bins, the gradients
    are those of ``-BinnedCatnat(...).log_prob(value)``.

    Args:
        value: Numbers.
        bins: The bins, or their edges. An edge belongs to the bin above it, the last one to the bin below.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import targets
        >>> print(targets.hard(jnp.array([0.5, 1.0, 9.0]), [0.0, 1.0, 2.0, 4.0]))
        [0 1 2]
    """
    value, bins = _checked(value, bins)
    return _bin_positions.locate(value, bins).which


def hl_gauss(value: Float[Array, "*batch"], bins: Bins | ArrayLike, sigma: float) -> Float[Array, "*batch classes"]:
    r"""Return the mass of a Gaussian in every bin, the HL-Gauss target (Imani & White 2018; Farebrother et al. 2024).

    .. math:: t_k = \frac{\Phi\bigl((e_{k+1} - y) / \sigma\bigr) - \Phi\bigl((e_k - y) / \sigma\bigr)}
        {\Phi\bigl((e_K - y) / \sigma\bigr) - \Phi\bigl((e_0 - y) / \sigma\bigr)}

    The target is shared by neighbouring bins, so that few numbers suffice to train a histogram of many bins. Tails
    take the mass outside all bins. Without tails it is left out, and numbers outside are clamped to the nearest edge.

    Args:
        value: Numbers.
        bins: The bins, or their edges.
        sigma: The standard deviation of the Gaussian; three quarters of a bin's width is a common choice.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import targets
        >>> print(targets.hl_gauss(jnp.array(1.5), [0.0, 1.0, 2.0, 3.0], sigma=0.75).round(4))
        [0.2407 0.5186 0.2407]
    """
    _checks.positive(sigma, "sigma")
    value, bins = _checked(value, bins)
    edges = jnp.asarray(_bin_positions.table_of(bins, value.dtype).edges)
    if not bins.tails:
        value = jnp.clip(value, float(bins.edges[0]), float(bins.edges[-1]))
    # A Gaussian a thousand times as wide as all bins is flat on them; a wider one would have no mass there.
    sigma = min(float(sigma), 1e3 * float(bins.edges[-1] - bins.edges[0]))
    sigma = max(sigma, float(jnp.finfo(value.dtype).tiny))  # not 0 in this dtype
    scaled = (edges - value[..., None]) / (sigma * math.sqrt(2))
    if bins.tails:
        scaled = scaled.at[..., 0].set(-math.inf).at[..., -1].set(math.inf)
    # Masses are measured from the nearer end of the line, as differences of small numbers, which are accurate.
    start, end = scaled[..., :-1], scaled[..., 1:]
    right = start > 0
    masses = erfc(jnp.where(right, start, -end)) - erfc(jnp.where(right, end, -start))
    return masses / masses.sum(-1, keepdims=True)


def two_hot(value: Float[Array, "*batch"], bins: Bins | ArrayLike) -> Float[Array, "*batch classes"]:
    r"""Return weights of the two bins whose means are next to a number, such that the mean of the target is the number.

    .. math:: t_k = \frac{m_{k+1} - y}{m_{k+1} - m_k}, \qquad t_{k+1} = 1 - t_k
        \qquad \text{for } m_k \le y < m_{k+1}

    where :math:`m_k` is the mean of bin k, its centre if it is no tail. Numbers beyond the outermost means give the
    outermost bin weight 1.

    Args:
        value: Numbers.
        bins: The bins, or their edges.

    Example:
        >>> import jax.numpy as jnp
        >>> from catnat.jax import targets
        >>> print(targets.two_hot(jnp.array([0.75, 2.5]), [0.0, 1.0, 2.0, 3.0]))
        [[0.75 0.25 0.  ]
         [0.   0.   1.  ]]
    """
    value, bins = _checked(value, bins)
    if bins.num_bins == 1:
        return jnp.ones((*value.shape, 1), value.dtype)
    means = _bin_positions.table_of(bins, value.dtype).mean
    lower = jnp.minimum(jnp.searchsorted(means[1:-1], value, side="right"), bins.num_bins - 2)
    start, end = (_plan.look_up(means, lower + step) for step in (0, 1))
    weight = jnp.clip((value - start) / (end - start), 0, 1)[..., None]
    places, lower = jnp.arange(bins.num_bins), lower[..., None]
    return (places == lower) * (1 - weight) + (places == lower + 1) * weight


def _checked(value: Array, bins: Bins | ArrayLike) -> tuple[Array, Bins]:
    value = _plan.check_array(value, "value")
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(f"`value` has dtype {value.dtype}, but floating-point numbers are needed: value.astype(float).")
    if _plan.is_true(jnp.isnan(value).any()):
        _checks.nan_targets()
    return _plan.to_computing_dtype(lax.stop_gradient(value)), _bin_positions.bins_of(bins)
