"""What an activation is to a tree, before any framework: its centring, its scaling, and the tables of its nodes.

A node answers yes with probability ``a(c s + x0)``. The plan side of an activation computes, in float64 NumPy, the
scale ``c`` and the centring ``x0`` of every node; a backend adds the function itself.
"""

from __future__ import annotations

import abc
import dataclasses
import math
import warnings
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from catnat import _checks
from catnat._tree import Tree

Floats = NDArray[np.float64]

# Isotropic scaling makes the Fisher matrix at zero scores this number times the identity: the paper's root node.
REFERENCE_INFORMATION = 0.25
# A node reached with probability below 1e-24 keeps this scale: it keeps every table finite in float32.
LARGEST_SCALE = 1e12
# 2 pi as an unevaluated sum, because the band's edge must be exact to well below the last bit of a float64.
TWO_PI = (2 * math.pi, 2.4492935982947064e-16)


class EdgeWarning(UserWarning):
    """Some nodes of a clamped natural activation start close to the edge of their band, beyond which they are dead."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActivationPlan(abc.ABC):
    """The framework-free half of an activation."""

    scaling: Literal["paper", "isotropic"] = "paper"

    def __post_init__(self) -> None:
        _checks.one_of(self.scaling, "scaling", ("paper", "isotropic"))

    @abc.abstractmethod
    def score(self, yes: Floats) -> Floats:
        """The inverse of ``a``: the x at which the answer is yes with probability ``yes``."""

    @abc.abstractmethod
    def probability(self, x: Floats) -> Floats:
        """The probability ``a(x)`` of yes, in NumPy."""

    def information(self, yes: Floats) -> Floats:
        r"""The Fisher information :math:`a'^2 / (a (1 - a))` of x where ``a(x)`` is ``yes``.

        Only isotropic scaling needs it. By default the slope is a central difference of :meth:`score`, good to about
        nine digits; override it where a formula is known.
        """
        step = 1e-4
        logit = np.log(yes) - np.log1p(-yes)
        ends = [self.score(1 / (1 + np.exp(-(logit + h)))) for h in (-step, step)]
        slope = 2 * step / (ends[1] - ends[0])  # d logit / dx, and a' = a (1 - a) times it
        return np.asarray(yes * (1 - yes) * slope**2)

    def scale(self, tree: Tree) -> Floats:
        r"""The factor :math:`c_i` on every score.

        1 in the paper; isotropic: :math:`c_i = \sqrt{I_{ref} / (P_0(i) I_i)}`.
        """
        if self.scaling == "paper":
            return np.ones(1 if tree.is_symmetric else tree.num_nodes)
        per_node = tree.reach() * self._prior_information(*tree._fractions())
        return np.sqrt(REFERENCE_INFORMATION / np.maximum(per_node, REFERENCE_INFORMATION / LARGEST_SCALE**2))

    def offset(self, tree: Tree) -> Floats:
        """What is added to every scaled score: the x at which a node answers as the tree's prior does."""
        return self._prior_score(*self._fractions(tree))

    def tables(self, tree: Tree, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Per-node constants of the tree, shape (rows, K-1), or (rows, 1) if all nodes share them: scale, offset."""
        return np.stack([self.scale(tree), self.offset(tree)]).astype(dtype)

    def _fractions(self, tree: Tree) -> tuple[Floats, Floats]:
        half = np.full(1, 0.5)
        return (half, half) if tree.is_symmetric and self.scaling == "paper" else tree._fractions()

    # The prior's answers come as a pair: where one of them is tiny, the other alone does not tell it.

    def _prior_score(self, no: Floats, yes: Floats) -> Floats:
        return self.score(uncertain(yes))

    def _prior_information(self, no: Floats, yes: Floats) -> Floats:
        return self.information(uncertain(yes))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SigmoidPlan(ActivationPlan):
    """The plan of the logistic function."""

    def score(self, yes: Floats) -> Floats:
        """The logit."""
        return np.asarray(np.log(yes) - np.log1p(-yes))

    def probability(self, x: Floats) -> Floats:
        """The logistic function."""
        return np.exp(-np.logaddexp(0, -x))

    def information(self, yes: Floats) -> Floats:
        """The variance of the answer."""
        return yes * (1 - yes)

    def _prior_score(self, no: Floats, yes: Floats) -> Floats:
        return np.asarray(np.log(yes) - np.log(no))

    def _prior_information(self, no: Floats, yes: Floats) -> Floats:
        return no * yes


@dataclasses.dataclass(frozen=True, kw_only=True)
class NaturalPlan(ActivationPlan):
    """The plan of the natural activation."""

    width: float = 2 * math.pi
    boundary: Literal["clamp", "reflect"] = "clamp"

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.one_of(self.boundary, "boundary", ("clamp", "reflect"))
        if not (math.isfinite(self.width) and self.width > 0):
            raise ValueError(f"`width` is {self.width}, but the band needs a positive, finite width (default 2 pi).")

    def score(self, yes: Floats) -> Floats:
        """The inverse inside the band, edges included."""
        return np.asarray(self.width * (self._share_below(yes) - 0.5))

    def probability(self, x: Floats) -> Floats:
        """The squared sine of the angle through the band."""
        angle = (np.asarray(x) / self.width + 0.5) * (math.pi / 2)
        return np.sin(np.clip(angle, 0, math.pi / 2) if self.boundary == "clamp" else angle) ** 2

    def information(self, yes: Floats) -> Floats:
        """A constant: this is what the activation is made for."""
        return np.full_like(yes, (math.pi / self.width) ** 2)

    def _prior_score(self, no: Floats, yes: Floats) -> Floats:
        below_centre = self.score(np.minimum(no, yes))
        return np.where(yes <= no, below_centre, -below_centre)

    @staticmethod
    def _share_below(yes: Floats) -> Floats:
        """The share of the band that lies below the point where ``a`` is ``yes``."""
        middle = 0.5 + np.arcsin(2 * yes - 1) / math.pi  # exactly 1/2 at 1/2
        return np.where(np.abs(yes - 0.5) < 0.25, middle, np.arcsin(np.sqrt(yes)) * (2 / math.pi))

    def tables(self, tree: Tree, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The rows of :meth:`_bands` at every node of the tree."""
        scale, no, yes = np.broadcast_arrays(self.scale(tree), *self._fractions(tree))
        bands = self._bands(scale, no, yes, dtype)
        if self.boundary == "clamp":
            self._warn_near_edges(tree, np.minimum(-bands[0], bands[2]))
        return bands

    def _bands(self, scale: Floats, no: Floats, yes: Floats, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Lower edge hi and lo, upper edge hi and lo, centre, and angle per score, all in score units.

        Distances from the edges decide the accuracy of small probabilities, so edges are unevaluated sums hi + lo.
        """
        width = _divide(TWO_PI if self.width == TWO_PI[0] else (self.width, 0.0), scale)
        near = self._share_below(np.minimum(no, yes))
        far, rest = _two_sum(np.ones_like(near), -near)
        rather_no, exact = yes <= no, np.zeros_like(near)
        lower = _multiply(width, -np.where(rather_no, near, far), -np.where(rather_no, exact, rest))
        upper = _multiply(width, np.where(rather_no, far, near), np.where(rather_no, rest, exact))
        rate = math.pi / (2 * width[0])
        centre = (lower[0] + upper[0]) / 2
        return np.stack([*_split(lower, dtype), *_split(upper, dtype), centre.astype(dtype), rate.astype(dtype)])

    def _warn_near_edges(self, tree: Tree, distance: Floats) -> None:
        close = distance < 1
        key = (tree._key, self)
        if not close.any() or key in _warned:
            return
        _warned.add(key)
        remedy = 'natural(boundary="reflect"), whose nodes cannot die'
        if self.scaling == "isotropic":
            remedy += ', or scaling="paper"'
        warnings.warn(
            f"{close.mean():.0%} of the {tree.num_nodes} nodes of {tree!r} have a band edge less than 1 from zero (the "
            f"nearest is {distance.min():.2g}): scores of usual size start beyond it, where a clamped node's gradient "
            f"is exactly 0. Use {remedy}, a more even tree such as huffman(weights), a larger `width`, or sigmoid().",
            EdgeWarning,
            stacklevel=2,
        )


def uncertain(yes: Floats) -> Floats:
    """Probabilities at which the inverse of an activation that never is certain is finite."""
    limits = np.finfo(np.float64)
    return np.clip(yes, limits.tiny, 1 - limits.epsneg)


_warned: set[tuple[Any, NaturalPlan]] = set()  # one warning per tree and activation


def resolve(activation: ActivationPlan | str, known: dict[str, Any], base: type[Any] = ActivationPlan) -> Any:
    """The activation object behind a name; an object must be of a framework's ``base``."""
    if isinstance(activation, str):
        _checks.one_of(activation, "activation", tuple(known))
        return known[activation]
    if not isinstance(activation, base):
        home = "" if base is ActivationPlan else base.__module__.rpartition(".")[0] + "."
        raise TypeError(
            f"`activation` is {activation!r}, but the name 'natural' or 'sigmoid', or an activation object is needed, "
            f"such as {home}natural(boundary='reflect') or an instance of your own subclass of {home}Activation."
        )
    return activation


# ---- float64 pairs hi + lo: error-free sums and products, so that an edge is known to twice the precision ----

Pair = tuple[Floats, Floats]


def _two_sum(a: Floats, b: Floats) -> Pair:
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def _two_product(a: Floats, b: Floats) -> Pair:
    def halves(x: Floats) -> Pair:  # Veltkamp's split: each half has at most 26 bits, so their products are exact
        big = 134217729.0 * x
        high = big - (big - x)
        return high, x - high

    product = a * b
    (a_hi, a_lo), (b_hi, b_lo) = halves(a), halves(b)
    return product, ((a_hi * b_hi - product) + a_hi * b_lo + a_lo * b_hi) + a_lo * b_lo


def _multiply(a: Pair, hi: Floats, lo: Floats) -> Pair:
    product, error = _two_product(a[0], hi)
    return _two_sum(product, error + a[1] * hi + a[0] * lo)


def _divide(a: tuple[float, float], by: Floats) -> Pair:
    quotient = a[0] / by
    product, error = _two_product(quotient, by)
    return _two_sum(quotient, ((a[0] - product) - error + a[1]) / by)


def _split(pair: Pair, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    hi = pair[0].astype(dtype)
    return hi, ((pair[0] - hi) + pair[1]).astype(dtype)
