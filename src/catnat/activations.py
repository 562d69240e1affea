"""Activations, which map the score of a node to the probability of *yes*.

An activation is a frozen dataclass, compared by content, and the same object for PyTorch and JAX. It defines in float64
NumPy the inverse and the offsets at the nodes of a tree, and the log-odds for any array library. ``catnat.torch`` and
``catnat.jax`` contain the fast and accurate computations.
"""

from __future__ import annotations

import abc
import dataclasses
import math
import warnings
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from catnat import _checks

__all__ = ["Activation", "EdgeWarning", "isotropic_scale", "natural", "sigmoid"]

Floats = NDArray[np.float64]

# `isotropic_scale` makes the Fisher matrix at zero scores this number times the identity, as at the paper's root node.
REFERENCE_INFORMATION = 0.25
# The scale of a node that is reached with probability below 1e-24, so that tables are finite in float32.
LARGEST_SCALE = 1e12
# 2 pi as an unevaluated sum, because band edges need more precision than one float64 has.
TWO_PI = (2 * math.pi, 2.4492935982947064e-16)
# The size of the log-odds of a node whose probability is exactly 0 or 1; exp(-SATURATED_LOGIT) is 0 in every dtype.
SATURATED_LOGIT = 1e4


class TreeWithPrior(Protocol):
    """The attributes of a :class:`catnat.Tree` that activations use."""

    @property
    def num_nodes(self) -> int: ...
    @property
    def is_symmetric(self) -> bool: ...
    def reach(self) -> Floats: ...
    def prior_branches(self) -> tuple[Floats, Floats]: ...


class Band(NamedTuple):
    """The edges of the natural activation's band at each node, each as a number and its rounding error.

    Attributes:
        lower: The lower edge, where yes has probability 0.
        lower_rest: Its rounding error. Small probabilities are accurate only if distances from an edge are.
        upper: The upper edge, where yes has probability 1.
        upper_rest: Its rounding error.
    """

    lower: Any
    lower_rest: Any
    upper: Any
    upper_rest: Any


class EdgeWarning(UserWarning):
    """A warning that nodes of the natural activation start near a band edge, beyond which they are saturated.

    Example:
        >>> import warnings
        >>> import catnat, torch
        >>> import catnat.torch as ct
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     probs = ct.catnat(torch.zeros(1), catnat.huffman([1, 1000]), "natural")
        >>> caught[0].category.__name__
        'EdgeWarning'
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Activation(abc.ABC):
    r"""Base class of activations; subclass it to define your own.

    A node with score :math:`s` takes the yes branch with probability :math:`a(s + x_0)`. The offset :math:`x_0` makes
    zero scores give the tree's prior. A subclass is a frozen dataclass with two methods. It works in PyTorch and JAX:

    * ``logit(x, xp)``: :math:`\log a(x) - \log(1 - a(x))`, with functions of ``xp``, which is ``torch``, ``jax.numpy``
      or ``numpy``. Differentiable, and finite for every finite x.
    * ``inverse(p)``, in NumPy: the x at which :math:`a(x) = p`, for the offset.

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

    @abc.abstractmethod
    def logit(self, x: Any, xp: Any) -> Any:
        """Return the log-odds of yes at ``x``, an array of ``xp``: ``torch``, ``jax.numpy`` or ``numpy``."""

    @abc.abstractmethod
    def inverse(self, p: Floats) -> Floats:
        """Return the x at which yes has probability ``p``, in NumPy."""

    def probability(self, x: Floats) -> Floats:
        """Return the probability of yes at ``x``, in NumPy."""
        return np.asarray(np.exp(-np.logaddexp(0, -self.logit(np.asarray(x, np.float64), np))))

    def information(self, p: Floats) -> Floats:
        r"""Return the Fisher information :math:`a'^2 / (a (1 - a))` of x where ``a(x)`` is ``p``.

        Only :func:`isotropic_scale` needs it. By default the slope is a central difference of :meth:`inverse`, accurate
        to about nine digits. Override it if you know a formula.
        """
        step = 1e-4
        logit = np.log(p) - np.log1p(-p)
        ends = [self.inverse(1 / (1 + np.exp(-(logit + h)))) for h in (-step, step)]
        slope = 2 * step / (ends[1] - ends[0])  # d logit / dx, and a' = a (1 - a) times it
        return np.asarray(p * (1 - p) * slope**2)

    def offset(self, tree: TreeWithPrior) -> Floats:
        """Return the offset added to every score: the x at which a node's probability of yes is the tree's prior.

        Shape (K-1,), or (1,) if all nodes have the same offset.
        """
        return self._prior_inverse(*_prior_branches(tree))

    # The prior is a pair (no, yes), because a tiny probability cannot be recovered from the other one.

    def _prior_inverse(self, no: Floats, yes: Floats) -> Floats:
        return self.inverse(clip_to_open_unit(yes))

    def prior_information(self, no: Floats, yes: Floats) -> Floats:
        """Return the Fisher information of a node whose branches have the probabilities ``no`` and ``yes``."""
        return self.information(clip_to_open_unit(yes))


@dataclasses.dataclass(frozen=True, kw_only=True)
class sigmoid(Activation):  # noqa: N801 - used as a function, like torch.no_grad
    r"""The logistic activation :math:`a(x) = 1 / (1 + e^{-x})`, whose log-odds are x itself.

    Example:
        >>> import catnat
        >>> catnat.sigmoid().probability([0.0, 2.0]).round(4)
        array([0.5   , 0.8808])
    """

    def logit(self, x: Any, xp: Any) -> Any:
        """Return ``x``."""
        return x

    def inverse(self, p: Floats) -> Floats:
        """Return the logit of ``p``."""
        return np.asarray(np.log(p) - np.log1p(-p))

    def information(self, p: Floats) -> Floats:
        """Return the variance of the branch, p (1 - p)."""
        return p * (1 - p)

    def _prior_inverse(self, no: Floats, yes: Floats) -> Floats:
        return np.asarray(np.log(yes) - np.log(no))

    def prior_information(self, no: Floats, yes: Floats) -> Floats:
        """Return the variance of the branch, to full precision if one probability is tiny."""
        return no * yes


@dataclasses.dataclass(frozen=True, kw_only=True)
class natural(Activation):  # noqa: N801 - used as a function, like torch.no_grad
    r"""The paper's natural activation, whose Fisher information is constant inside its band.

    .. math:: \nu(x) = \tfrac12 \bigl(1 + \sin(\pi x / A)\bigr) \quad\text{for } |x| \le A / 2

    Its Fisher information is :math:`(\pi / A)^2` at every :math:`x` inside the band. Outside the band the probability
    is exactly 0 or 1 and the gradient is zero: the node is saturated.

    Args:
        width: The band's width :math:`A`. The default, :math:`2\pi`, gives the sigmoid's slope 1/4 at the centre.

    Example:
        >>> import catnat
        >>> catnat.natural().probability([-4.0, 0.0, 1.0, 4.0]).round(4)
        array([0.    , 0.5   , 0.7397, 1.    ])
    """

    width: float = 2 * math.pi

    def __post_init__(self) -> None:
        if not (math.isfinite(self.width) and self.width > 0):
            raise ValueError(f"`width` is {self.width}, but the band needs a positive, finite width (default 2 pi).")
        object.__setattr__(self, "width", float(self.width))  # equal widths have equal reprs, which checkpoints compare

    def logit(self, x: Any, xp: Any) -> Any:
        r"""Return the log-odds of yes at ``x``; their absolute value is 10,000 where yes or no has probability 0.

        .. math:: \log\frac{\nu}{1 - \nu} = \mp 2 \log \tan r

        where :math:`r` is the distance to the nearer edge as an angle; the whole band is a right angle.
        """
        below = x < 0
        # No absolute value or sign, whose derivatives at the centre are 0.
        angle = (self.width / 2 + xp.where(below, x, -x)) * (math.pi / (2 * self.width))
        inside = angle > 0
        logit = -2 * xp.log(xp.tan(xp.where(inside, angle, math.pi / 4)))
        upper = xp.where(inside, logit, SATURATED_LOGIT)
        return xp.where(below, -upper, upper)

    def inverse(self, p: Floats) -> Floats:
        """Return the x in the band, edges included, at which yes has probability ``p``."""
        return np.asarray(self.width * (self._fraction_below(p) - 0.5))

    def probability(self, x: Floats) -> Floats:
        """Return the probability of yes, the squared sine of the angle from the lower edge."""
        angle = (np.asarray(x) / self.width + 0.5) * (math.pi / 2)
        return np.sin(np.clip(angle, 0, math.pi / 2)) ** 2

    def information(self, p: Floats) -> Floats:
        """Return the constant Fisher information, (pi / width)^2."""
        return np.full_like(p, (math.pi / self.width) ** 2)

    def band(self, tree: TreeWithPrior, dtype: np.dtype[Any]) -> Band:
        """Return the band of every node of the tree, in arrays (K-1,), or (1,) if all nodes have the same band.

        Edges are computed as unevaluated sums of two numbers.
        """
        no, yes = _prior_branches(tree)
        width = np.full(1, self.width), np.full(1, TWO_PI[1] if self.width == TWO_PI[0] else 0.0)
        near = self._fraction_below(np.minimum(no, yes))
        far, rest = _two_sum(np.ones_like(near), -near)
        rather_no, exact = yes <= no, np.zeros_like(near)
        lower = _multiply(width, -np.where(rather_no, near, far), -np.where(rather_no, exact, rest))
        upper = _multiply(width, np.where(rather_no, far, near), np.where(rather_no, rest, exact))
        self._warn_near_edges(tree, np.minimum(-lower[0], upper[0]))
        return Band(*_split(lower, dtype), *_split(upper, dtype))

    def _prior_inverse(self, no: Floats, yes: Floats) -> Floats:
        below_centre = self.inverse(np.minimum(no, yes))
        return np.where(yes <= no, below_centre, -below_centre)

    @staticmethod
    def _fraction_below(p: Floats) -> Floats:
        """Return the fraction of the band below the point where yes has probability ``p``."""
        middle = 0.5 + np.arcsin(2 * p - 1) / math.pi  # exactly 1/2 at 1/2
        return np.where(np.abs(p - 0.5) < 0.25, middle, np.arcsin(np.sqrt(p)) * (2 / math.pi))

    def _warn_near_edges(self, tree: TreeWithPrior, distance: Floats) -> None:
        close = distance < 1
        key = (hash(tree), self)
        if not close.any() or key in _warned:
            return
        warnings.warn(
            f"{close.mean():.0%} of the {tree.num_nodes} nodes of {tree!r} have a band edge less than 1 from zero (the "
            f"nearest is {distance.min():.2g}): scores of typical size start beyond it, where a node's gradient is "
            "exactly 0. Use sigmoid(), a more even tree such as huffman(weights), or a larger `width`.",
            EdgeWarning,
            stacklevel=2,
        )
        _warned.add(key)  # after the warning, which a filter may turn into an error


def isotropic_scale(tree: TreeWithPrior, activation: Activation | str = "sigmoid") -> Floats:
    r"""Return a factor per node that makes the Fisher matrix at zero scores 1/4 times the identity.

    .. math:: c_i = \sqrt{\frac{1/4}{P_0(i)\, I_i}}

    :math:`P_0` is the prior's probability of reaching the node and :math:`I_i` the activation's Fisher information
    there. Multiply the scores by it, or multiply the rows of the last layer by it once, at initialization.

    Example:
        >>> import catnat
        >>> catnat.isotropic_scale(catnat.balanced(4)).round(4)
        array([1.    , 1.4142, 1.4142])
    """
    per_node = tree.reach() * resolve(activation).prior_information(*tree.prior_branches())
    return np.sqrt(REFERENCE_INFORMATION / np.maximum(per_node, REFERENCE_INFORMATION / LARGEST_SCALE**2))


def _prior_branches(tree: TreeWithPrior) -> tuple[Floats, Floats]:
    half = np.full(1, 0.5)
    return (half, half) if tree.is_symmetric else tree.prior_branches()


def clip_to_open_unit(yes: Floats) -> Floats:
    """Clip probabilities away from 0 and 1, where the inverse of an unbounded activation is infinite."""
    limits = np.finfo(np.float64)
    return np.clip(yes, limits.tiny, 1 - limits.epsneg)


_warned: set[tuple[int, natural]] = set()  # one warning per tree and activation

REGISTRY: dict[str, Activation] = {"natural": natural(), "sigmoid": sigmoid()}
"""The built-in activations by name, with default settings."""


def resolve(activation: object) -> Activation:
    """Return the activation with this name, or the given activation object."""
    if isinstance(activation, str):
        _checks.one_of(activation, "activation", tuple(REGISTRY))
        return REGISTRY[activation]
    if isinstance(activation, Activation):
        fields = {field.name for field in dataclasses.fields(activation)}
        if "__dataclass_fields__" not in vars(type(activation)) and vars(activation).keys() - fields:
            name = type(activation).__name__
            raise TypeError(
                f"`activation` is a {name}, which has attributes but is no dataclass: two of them would be equal, and "
                f"share cached constants. Write @dataclasses.dataclass(frozen=True) above `class {name}`, and its "
                "attributes as fields."
            )
        return activation
    is_class = isinstance(activation, type) and issubclass(activation, Activation)
    hint = " This is a class: call it." if is_class else ""
    names = " or ".join(repr(name) for name in REGISTRY)
    raise TypeError(
        f"`activation` is {activation!r}, but the name {names}, or an activation object is needed, such as "
        f"catnat.natural(width=4.0) or an instance of your own subclass of catnat.Activation.{hint}"
    )


# ---- float64 pairs hi + lo: error-free sums and products, to compute edges in twice the precision ----

Pair = tuple[Floats, Floats]


def _two_sum(a: Floats, b: Floats) -> Pair:
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def _two_product(a: Floats, b: Floats) -> Pair:
    def halves(x: Floats) -> Pair:  # Veltkamp's split: each half has at most 26 bits, so products of halves are exact
        big = 134217729.0 * x
        high = big - (big - x)
        return high, x - high

    product = a * b
    (a_hi, a_lo), (b_hi, b_lo) = halves(a), halves(b)
    return product, ((a_hi * b_hi - product) + a_hi * b_lo + a_lo * b_hi) + a_lo * b_lo


def _multiply(a: Pair, hi: Floats, lo: Floats) -> Pair:
    product, error = _two_product(a[0], hi)
    return _two_sum(product, error + a[1] * hi + a[0] * lo)


def _split(pair: Pair, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    hi = pair[0].astype(dtype)
    return hi, ((pair[0] - hi) + pair[1]).astype(dtype)
