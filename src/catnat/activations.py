"""Activations: how the score of a node becomes the probability of *yes*.

An activation is data, as a tree is: frozen, equal by content, and the same object for PyTorch and JAX. It says what is
computed, in float64 NumPy: its inverse, its centring and scaling at the nodes of a tree, and its log-odds for any array
library. How a framework computes it, fast and to full precision, is in ``catnat.torch`` and ``catnat.jax``.
"""

from __future__ import annotations

import abc
import dataclasses
import math
import warnings
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from catnat import _checks

__all__ = ["Activation", "EdgeWarning", "natural", "sigmoid"]

Floats = NDArray[np.float64]

# Isotropic scaling makes the Fisher matrix at zero scores this number times the identity: the paper's root node.
REFERENCE_INFORMATION = 0.25
# A node reached with probability below 1e-24 keeps this scale: it keeps every table finite in float32.
LARGEST_SCALE = 1e12
# 2 pi as an unevaluated sum, because the band's edge must be exact to well below the last bit of a float64.
TWO_PI = (2 * math.pi, 2.4492935982947064e-16)
# The log-odds of a node whose probability is exactly 0 or 1: their exponential is 0 in every dtype.
SATURATED_LOGIT = 1e4
# Scores are folded back from at most this many bands away: further out a float no longer resolves the band.
MOST_FOLDS = 2.0**18


class TreeWithPrior(Protocol):
    """What an activation reads of a :class:`catnat.Tree`."""

    @property
    def num_nodes(self) -> int: ...
    @property
    def is_symmetric(self) -> bool: ...
    def reach(self) -> Floats: ...
    def prior_branches(self) -> tuple[Floats, Floats]: ...


class Affine(NamedTuple):
    """Constants of nodes whose probability of yes is ``a(scale * score + offset)``."""

    scale: Any
    offset: Any


class Band(NamedTuple):
    """Constants of nodes of the natural activation, in units of the score.

    Attributes:
        lower: Its lower edge, where yes has probability 0.
        lower_rest: What the rounding of it has left: distances from an edge decide the accuracy of small probabilities.
        upper: Its upper edge, where yes has probability 1.
        upper_rest: What the rounding of that has left.
        centre: Halfway between them.
        rate: The angle through the band for one unit of the score; the whole band is a right angle.
    """

    lower: Any
    lower_rest: Any
    upper: Any
    upper_rest: Any
    centre: Any
    rate: Any


Constants = Affine | Band


class EdgeWarning(UserWarning):
    """Nodes of a clamped natural activation start close to an edge of their band, beyond which they are saturated."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Activation(abc.ABC):
    r"""Base class of activations; subclass it for your own.

    A node with score :math:`s` has the probability :math:`a(c\,s + x_0)` of yes, where :math:`x_0` makes zero scores
    mean the tree's prior and :math:`c` is the scaling. A subclass is a frozen dataclass with two methods, and works in
    PyTorch and JAX:

    * ``logit(x, xp)``: :math:`\log a(x) - \log(1 - a(x))`, with functions of ``xp``, which is ``torch``, ``jax.numpy``
      or ``numpy``. Differentiable, and finite for every finite x.
    * ``inverse(p)``, in NumPy: the x at which :math:`a(x) = p`, for the centring.

    Args:
        scaling: ``"paper"`` takes scores as they are; ``"isotropic"`` scales every node so that the Fisher matrix at
            zero scores is 1/4 times the identity, for every tree.

    Example:
        >>> import dataclasses, numpy as np, torch
        >>> import catnat, catnat.torch
        >>> @dataclasses.dataclass(frozen=True)
        ... class HeavyTails(catnat.Activation):  # a(x) = 1/2 + x / (2 sqrt(4 + x^2))
        ...     def logit(self, x, xp):
        ...         return 2 * xp.arcsinh(x / 2)
        ...
        ...     def inverse(self, p):
        ...         return 2 * np.sinh((np.log(p) - np.log1p(-p)) / 2)
        >>> catnat.torch.catnat(torch.zeros(2), activation=HeavyTails())
        tensor([0.3333, 0.3333, 0.3333])
    """

    scaling: Literal["paper", "isotropic"] = "paper"

    def __post_init__(self) -> None:
        _checks.one_of(self.scaling, "scaling", ("paper", "isotropic"))

    @abc.abstractmethod
    def logit(self, x: Any, xp: Any) -> Any:
        """The log-odds of yes at ``x``, an array of the library ``xp``: ``torch``, ``jax.numpy`` or ``numpy``."""

    @abc.abstractmethod
    def inverse(self, p: Floats) -> Floats:
        """The x at which yes has probability ``p``, in NumPy."""

    def probability(self, x: Floats) -> Floats:
        """The probability of yes at ``x``, in NumPy."""
        return np.asarray(np.exp(-np.logaddexp(0, -self.logit(np.asarray(x, np.float64), np))))

    def information(self, p: Floats) -> Floats:
        r"""The Fisher information :math:`a'^2 / (a (1 - a))` of x where ``a(x)`` is ``p``.

        Only isotropic scaling needs it. By default the slope is a central difference of :meth:`inverse`, good to about
        nine digits; override it where a formula is known.
        """
        step = 1e-4
        logit = np.log(p) - np.log1p(-p)
        ends = [self.inverse(1 / (1 + np.exp(-(logit + h)))) for h in (-step, step)]
        slope = 2 * step / (ends[1] - ends[0])  # d logit / dx, and a' = a (1 - a) times it
        return np.asarray(p * (1 - p) * slope**2)

    def scale(self, tree: TreeWithPrior) -> Floats:
        r"""The factor :math:`c_i` on every score.

        1 in the paper; isotropic: :math:`c_i = \sqrt{I_{ref} / (P_0(i) I_i)}`.
        """
        if self.scaling == "paper":
            return np.ones(1 if tree.is_symmetric else tree.num_nodes)
        per_node = tree.reach() * self._prior_information(*tree.prior_branches())
        return np.sqrt(REFERENCE_INFORMATION / np.maximum(per_node, REFERENCE_INFORMATION / LARGEST_SCALE**2))

    def offset(self, tree: TreeWithPrior) -> Floats:
        """What is added to every scaled score: the x at which a node's probability of yes is the tree's prior."""
        return self._prior_inverse(*self._fractions(tree))

    def constants(self, tree: TreeWithPrior, dtype: np.dtype[Any]) -> Constants:
        """What a framework computes the nodes of a tree with: arrays (K-1,), or (1,) if all nodes share them."""
        scale, offset = np.broadcast_arrays(self.scale(tree), self.offset(tree))
        return Affine(scale.astype(dtype), offset.astype(dtype))

    def _fractions(self, tree: TreeWithPrior) -> tuple[Floats, Floats]:
        half = np.full(1, 0.5)
        return (half, half) if tree.is_symmetric and self.scaling == "paper" else tree.prior_branches()

    # The prior of both branches comes as a pair: where one of them is tiny, the other alone does not tell it.

    def _prior_inverse(self, no: Floats, yes: Floats) -> Floats:
        return self.inverse(uncertain(yes))

    def _prior_information(self, no: Floats, yes: Floats) -> Floats:
        return self.information(uncertain(yes))


@dataclasses.dataclass(frozen=True, kw_only=True)
class sigmoid(Activation):  # noqa: N801 - used as a function, like torch.no_grad
    r"""The logistic activation :math:`a(x) = 1 / (1 + e^{-x})`. Its logit is the score itself.

    Args:
        scaling: ``"paper"`` takes scores as they are; ``"isotropic"`` scales every node so that the Fisher matrix at
            zero scores is 1/4 times the identity, for every tree.

    Example:
        >>> import catnat
        >>> catnat.sigmoid().probability([0.0, 2.0]).round(4)
        array([0.5   , 0.8808])
    """

    def logit(self, x: Any, xp: Any) -> Any:
        """The score itself."""
        return x

    def inverse(self, p: Floats) -> Floats:
        """The logit."""
        return np.asarray(np.log(p) - np.log1p(-p))

    def information(self, p: Floats) -> Floats:
        """The variance of the branch."""
        return p * (1 - p)

    def _prior_inverse(self, no: Floats, yes: Floats) -> Floats:
        return np.asarray(np.log(yes) - np.log(no))

    def _prior_information(self, no: Floats, yes: Floats) -> Floats:
        return no * yes


@dataclasses.dataclass(frozen=True, kw_only=True)
class natural(Activation):  # noqa: N801 - used as a function, like torch.no_grad
    r"""The paper's natural activation, whose Fisher information is constant inside its band.

    .. math:: \nu(x) = \tfrac12 \bigl(1 + \sin(\pi x / A)\bigr) \quad\text{for } |x| \le A / 2

    Its Fisher information is :math:`(\pi / A)^2` at every :math:`x` inside the band.

    Args:
        scaling: ``"paper"`` takes scores as they are; ``"isotropic"`` scales every node so that the Fisher matrix at
            zero scores is 1/4 times the identity, for every tree. Use it with ``boundary="reflect"``.
        width: The band's width :math:`A`. The default, :math:`2\pi`, gives the sigmoid's slope 1/4 at the centre.
        boundary: ``"clamp"`` (the paper): exactly 0 or 1 outside the band, with zero gradient. ``"reflect"``: the sine
            goes on, so that no node saturates.

    Example:
        >>> import catnat
        >>> catnat.natural().probability([-4.0, 0.0, 1.0, 4.0]).round(4)
        array([0.    , 0.5   , 0.7397, 1.    ])
    """

    width: float = 2 * math.pi
    boundary: Literal["clamp", "reflect"] = "clamp"

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.one_of(self.boundary, "boundary", ("clamp", "reflect"))
        if not (math.isfinite(self.width) and self.width > 0):
            raise ValueError(f"`width` is {self.width}, but the band needs a positive, finite width (default 2 pi).")
        object.__setattr__(self, "width", float(self.width))  # equal widths look alike: checkpoints compare by repr

    def logit(self, x: Any, xp: Any) -> Any:
        r"""The log-odds of yes at ``x``; 10,000 in size where yes or no has probability exactly 0.

        .. math:: \log\frac{\nu}{1 - \nu} = \mp 2 \log \tan r

        where :math:`r` is the angle to the nearer edge, as which the band is a right angle.
        """
        if self.boundary == "reflect":
            turn = 2 * self.width
            x = xp.clip(x, -MOST_FOLDS * turn, MOST_FOLDS * turn)
            x = x - turn * xp.round(x / turn)
            x = xp.where(xp.abs(x) > self.width / 2, xp.sign(x) * self.width - x, x)
        angle = (self.width / 2 - xp.abs(x)) * (math.pi / (2 * self.width))
        inside = angle > 0
        logit = -2 * xp.log(xp.tan(xp.where(inside, angle, math.pi / 4)))
        return xp.sign(x) * xp.where(inside, logit, SATURATED_LOGIT)

    def inverse(self, p: Floats) -> Floats:
        """The inverse inside the band, edges included."""
        return np.asarray(self.width * (self._fraction_below(p) - 0.5))

    def probability(self, x: Floats) -> Floats:
        """The squared sine of the angle through the band."""
        angle = (np.asarray(x) / self.width + 0.5) * (math.pi / 2)
        return np.sin(np.clip(angle, 0, math.pi / 2) if self.boundary == "clamp" else angle) ** 2

    def information(self, p: Floats) -> Floats:
        """A constant: this is what the activation is made for."""
        return np.full_like(p, (math.pi / self.width) ** 2)

    def constants(self, tree: TreeWithPrior, dtype: np.dtype[Any]) -> Band:
        """The band of every node of the tree."""
        scale, no, yes = np.broadcast_arrays(self.scale(tree), *self._fractions(tree))
        bands = self._bands(scale, no, yes, dtype)
        if self.boundary == "clamp":
            self._warn_near_edges(tree, np.minimum(-bands.lower, bands.upper))
        return bands

    def _prior_inverse(self, no: Floats, yes: Floats) -> Floats:
        below_centre = self.inverse(np.minimum(no, yes))
        return np.where(yes <= no, below_centre, -below_centre)

    @staticmethod
    def _fraction_below(p: Floats) -> Floats:
        """The fraction of the band that lies below the point where yes has probability ``p``."""
        middle = 0.5 + np.arcsin(2 * p - 1) / math.pi  # exactly 1/2 at 1/2
        return np.where(np.abs(p - 0.5) < 0.25, middle, np.arcsin(np.sqrt(p)) * (2 / math.pi))

    def _bands(self, scale: Floats, no: Floats, yes: Floats, dtype: np.dtype[Any]) -> Band:
        """Of nodes with these scales and priors; edges are unevaluated sums of two numbers."""
        width = _divide(TWO_PI if self.width == TWO_PI[0] else (self.width, 0.0), scale)
        near = self._fraction_below(np.minimum(no, yes))
        far, rest = _two_sum(np.ones_like(near), -near)
        rather_no, exact = yes <= no, np.zeros_like(near)
        lower = _multiply(width, -np.where(rather_no, near, far), -np.where(rather_no, exact, rest))
        upper = _multiply(width, np.where(rather_no, far, near), np.where(rather_no, rest, exact))
        rate = math.pi / (2 * width[0])
        centre = (lower[0] + upper[0]) / 2
        return Band(*_split(lower, dtype), *_split(upper, dtype), centre.astype(dtype), rate.astype(dtype))

    def _warn_near_edges(self, tree: TreeWithPrior, distance: Floats) -> None:
        close = distance < 1
        key = (hash(tree), self)
        if not close.any() or key in _warned:
            return
        _warned.add(key)
        remedy = 'natural(boundary="reflect"), whose nodes do not saturate'
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


_warned: set[tuple[int, natural]] = set()  # one warning per tree and activation

REGISTRY: dict[str, Activation] = {"natural": natural(), "sigmoid": sigmoid()}
"""The library's own activations by name, with their default settings."""


def resolve(activation: object) -> Activation:
    """The activation object behind a name, or the object itself."""
    if isinstance(activation, str):
        _checks.one_of(activation, "activation", tuple(REGISTRY))
        return REGISTRY[activation]
    if isinstance(activation, Activation):
        return activation
    names = " or ".join(repr(name) for name in REGISTRY)
    raise TypeError(
        f"`activation` is {activation!r}, but the name {names}, or an activation object is needed, such as "
        "catnat.natural(boundary='reflect') or an instance of your own subclass of catnat.Activation."
    )


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
