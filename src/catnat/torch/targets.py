"""Targets for regression as classification, which represent numbers as distributions over bins."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

from catnat import _checks
from catnat.torch import _bin_positions, _inputs
from catnat.trees.bins import Bins

__all__ = ["hard", "hl_gauss", "two_hot"]


def hard(value: Float[Tensor, "*batch"], bins: Bins | ArrayLike) -> Int[Tensor, "*batch"]:
    """Return the bin that contains each number; numbers outside all bins get the first or the last bin.

    (``BinnedCatnat.log_prob`` raises for numbers outside all bins by default, because the density is 0 there.)

    As targets of :func:`catnat.torch.cross_entropy` they need one path each. For numbers inside the bins the gradients
    are those of ``-BinnedCatnat(...).log_prob(value)``.

    Args:
        value: Numbers.
        bins: The bins, or their edges. An edge belongs to the bin above it, the last one to the bin below.

    Example:
        >>> import torch
        >>> from catnat.torch import targets
        >>> targets.hard(torch.tensor([0.5, 1.0, 9.0]), [0.0, 1.0, 2.0, 4.0])
        tensor([0, 1, 2])
    """
    value, bins = _checked(value, bins)
    return _bin_positions.locate(value, bins).which


def hl_gauss(value: Float[Tensor, "*batch"], bins: Bins | ArrayLike, sigma: float) -> Float[Tensor, "*batch classes"]:
    r"""Return the mass of a Gaussian in every bin, the HL-Gauss target (Imani & White 2018; Farebrother et al. 2024).

    .. math:: t_k = \frac{\Phi\bigl((e_{k+1} - y) / \sigma\bigr) - \Phi\bigl((e_k - y) / \sigma\bigr)}
        {\Phi\bigl((e_K - y) / \sigma\bigr) - \Phi\bigl((e_0 - y) / \sigma\bigr)}

    Neighbouring bins share the target, so that a histogram with many bins learns from few numbers. Tails get the mass
    outside all bins. Without tails this mass is dropped, and numbers outside are clamped to the nearest edge.

    Args:
        value: Numbers.
        bins: The bins, or their edges.
        sigma: The standard deviation of the Gaussian; three quarters of a bin's width is a common choice.

    Example:
        >>> import torch
        >>> from catnat.torch import targets
        >>> targets.hl_gauss(torch.tensor(1.5), [0.0, 1.0, 2.0, 3.0], sigma=0.75)
        tensor([0.2407, 0.5186, 0.2407])
    """
    _checks.positive(sigma, "sigma")
    value, bins = _checked(value, bins)
    edges = _bin_positions.table_of(bins, value.device, value.dtype).edges
    if not bins.tails:
        value = value.clamp(float(bins.edges[0]), float(bins.edges[-1]))
    # A Gaussian a thousand times as wide as all bins is flat on them; a wider one would have no mass there.
    sigma = min(sigma, 1e3 * float(bins.edges[-1] - bins.edges[0]))
    sigma = max(sigma, torch.finfo(value.dtype).tiny)  # not 0 in this dtype
    scaled = (edges - value.unsqueeze(-1)) / (sigma * math.sqrt(2))
    if bins.tails:
        inner, ends = scaled.narrow(-1, 1, bins.num_bins - 1), torch.full_like(value, math.inf).unsqueeze(-1)
        scaled = torch.cat([-ends, inner, ends], -1)
    # Masses are measured from the nearer end of the line, as differences of small numbers, which are accurate.
    start, end = scaled.narrow(-1, 0, bins.num_bins), scaled.narrow(-1, 1, bins.num_bins)
    right = start > 0
    masses = torch.where(right, start, -end).erfc() - torch.where(right, end, -start).erfc()
    return masses / masses.sum(-1, keepdim=True)


def two_hot(value: Float[Tensor, "*batch"], bins: Bins | ArrayLike) -> Float[Tensor, "*batch classes"]:
    r"""Return weights of the two bins whose means are next to a number, such that the mean of the target is the number.

    .. math:: t_k = \frac{m_{k+1} - y}{m_{k+1} - m_k}, \qquad t_{k+1} = 1 - t_k
        \qquad \text{for } m_k \le y < m_{k+1}

    where :math:`m_k` is the mean of bin k, its centre unless it is a tail. Numbers beyond the outermost means have the
    whole weight in the outermost bin.

    Args:
        value: Numbers.
        bins: The bins, or their edges.

    Example:
        >>> import torch
        >>> from catnat.torch import targets
        >>> targets.two_hot(torch.tensor([0.75, 2.5]), [0.0, 1.0, 2.0, 3.0])
        tensor([[0.7500, 0.2500, 0.0000],
                [0.0000, 0.0000, 1.0000]])
    """
    value, bins = _checked(value, bins)
    if bins.num_bins == 1:
        return torch.ones_like(value).unsqueeze(-1)
    means = _bin_positions.table_of(bins, value.device, value.dtype).mean
    between = means.narrow(0, 1, bins.num_bins - 2)
    lower = torch.searchsorted(between, value.contiguous(), right=True)
    start, end = (means.index_select(0, (lower + step).flatten()).view(lower.shape) for step in (0, 1))
    weight = ((value - start) / (end - start)).clamp(0, 1).unsqueeze(-1)
    places, lower = torch.arange(bins.num_bins, device=value.device), lower.unsqueeze(-1)
    return (places == lower) * (1 - weight) + (places == lower + 1) * weight


def _checked(value: Tensor, bins: Bins | ArrayLike) -> tuple[Tensor, Bins]:
    _inputs.check_tensor(value, "value")
    if not value.is_floating_point():
        raise TypeError(f"`value` has dtype {value.dtype}, but floating-point numbers are needed: value.float().")
    if not torch.compiler.is_compiling() and _inputs.known_at_once(value.isnan().any()):
        _checks.nan_targets()
    return _inputs.widen(value.detach()), _bin_positions.bins_of(bins)
