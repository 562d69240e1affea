r"""A third boundary of the natural activation, on trial: beyond a certain probability its log-odds grow linearly.

With :math:`u = \pi x / A` the natural activation is :math:`(1 + \sin u) / 2`, and its log-odds are
:math:`2\,\mathrm{arsinh}(\tan u)`. They are followed up to the probability .99 on either side, and go on from there in
a straight line with the slope that they have there. So the activation is monotone, and no node saturates.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

import catnat

WIDTH = 2 * math.pi
"""The band's width A, the paper's."""
LARGEST = 0.99
"""Up to this probability of either branch the activation is the natural one."""

_EDGE = math.asin(2 * LARGEST - 1)  # u where the straight lines begin
_SLOPE = 2 / math.cos(_EDGE)  # of the log-odds there, per u


@dataclasses.dataclass(frozen=True, kw_only=True)
class NaturalTail(catnat.Activation):
    """The natural activation with straight tails of its log-odds."""

    def logit(self, x: Any, xp: Any) -> Any:
        """The log-odds of yes at ``x``.

        >>> float(1 / (1 + np.exp(-NaturalTail().logit(np.array(math.pi / 2), np)))) == (1 + math.sin(math.pi / 4)) / 2
        True
        """
        u = x * (math.pi / WIDTH)
        inside = xp.clip(u, -_EDGE, _EDGE)
        return 2 * xp.arcsinh(xp.tan(inside)) + _SLOPE * (u - inside)

    def inverse(self, p: NDArray[np.float64]) -> NDArray[np.float64]:
        """The x at which yes has probability ``p``."""
        log_odds = np.log(p) - np.log1p(-p)
        limit = math.log(LARGEST / (1 - LARGEST))
        inside = np.clip(log_odds, -limit, limit)
        u = np.arctan(np.sinh(inside / 2)) + (log_odds - inside) / _SLOPE
        return np.asarray(u * (WIDTH / math.pi))
