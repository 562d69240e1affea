"""Estimators of the gradient of a loss on discrete draws in the parameters of their distribution.

They take any categorical distribution of catnat or torch, and use only its ``probs``, ``logits``, ``sample`` and
``log_prob``. A class of probability 0 is never drawn and does not contribute.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Size, Tensor, nn
from torch import distributions as td
from torch.nn import functional as F

from catnat import _checks
from catnat.torch import _inputs, _options, _walk
from catnat.torch._constants import constant
from catnat.trees import tables

__all__ = [
    "MovingAverage",
    "enumerate_exactly",
    "gumbel_softmax",
    "sample_counts",
    "score_function",
    "straight_through",
    "unordered_set",
]

Costs = Callable[[Tensor], Tensor]

# Counts are split in float64, which represents every integer up to this one.
MOST_COUNTED = 2**53


# ---- differentiable samples ----


def gumbel_softmax(
    distribution: td.Distribution,
    temperature: float | Float[Tensor, "..."],
    *,
    hard: bool = False,
    sample_shape: Sequence[int] = (),
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*samples_and_batch classes"]:
    r"""Draw a relaxed one-hot vector, a point of the simplex that is differentiable in the parameters.

    .. math:: y = \mathrm{softmax}\bigl((\log p + g) / T\bigr), \qquad g_k \sim \mathrm{Gumbel}(0, 1)

    The index of the largest entry has the distribution :math:`p`. The gradient is unbiased for the relaxed loss
    :math:`E f(y)` and biased for the loss :math:`E f(k)`. A smaller T gives less bias and more variance.

    Args:
        distribution: A categorical distribution of catnat or torch, with classes or one-hot vectors as values.
        temperature: A positive number, or a tensor that broadcasts against the result, (..., 1) for one per row.
        hard: Return the one-hot vector of the largest entry, with the gradient of the relaxed draw.
        sample_shape: The shape of independent draws, which precedes the batch shape in the result.
        generator: The random generator; torch's default one if not given.

    Returns:
        The draws. A class of probability 0 gets exactly 0.

    Example:
        >>> import torch
        >>> from catnat.torch import Catnat
        >>> from catnat.torch.estimators import gumbel_softmax
        >>> gumbel_softmax(Catnat(torch.zeros(5, 3)), 0.5).shape
        torch.Size([5, 4])
        >>> gumbel_softmax(Catnat(torch.zeros(5, 3)), 0.5, hard=True).sum(-1)
        tensor([1., 1., 1., 1., 1.])
    """
    categorical = _categorical(_unwrapped(distribution), "gumbel_softmax")
    _check_temperature(temperature)
    noisy = gumbel_noise_on(_inputs.widen(categorical.logits), ~(categorical.probs <= 0), sample_shape, generator)
    soft = _options.apply_temperature(noisy, temperature).softmax(-1)
    if hard:
        soft = _inputs.one_hot(noisy.argmax(-1), noisy.shape[-1], soft.dtype) + (soft - soft.detach())
    return soft.to(categorical.logits.dtype)


def gumbel_noise_on(
    log_probs: Tensor, possible: Tensor | None, sample_shape: Sequence[int], generator: torch.Generator | None
) -> Tensor:
    """Return log-probabilities plus Gumbel noise for every sample, the smallest finite number at impossible classes."""
    log_probs = log_probs.expand((*_checks.shape_of_samples(sample_shape), *log_probs.shape))
    noisy = log_probs - _walk.log_exponential(log_probs, generator)
    return noisy if possible is None else torch.where(possible, noisy, torch.finfo(noisy.dtype).min)


def straight_through(
    distribution: td.Distribution, *, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None
) -> Float[Tensor, "*samples_and_batch classes"]:
    r"""Draw a one-hot vector whose gradient is that of the probabilities.

    .. math:: y = \mathrm{onehot}(k) + p - \mathrm{stopgrad}(p), \qquad k \sim p

    The gradient is exact for losses that are linear in :math:`y` and biased for all others.

    Args:
        distribution: A categorical distribution of catnat or torch, with classes or one-hot vectors as values.
        sample_shape: The shape of independent draws, which precedes the batch shape in the result.
        generator: The random generator; torch's default one if not given.

    Example:
        >>> import torch
        >>> from catnat.torch import Catnat
        >>> from catnat.torch.estimators import straight_through
        >>> scores = torch.zeros(3, requires_grad=True)
        >>> (straight_through(Catnat(scores)) @ torch.tensor([1.0, 2.0, 3.0, 4.0])).backward()
        >>> scores.grad  # as if the probabilities had been multiplied
        tensor([0.5000, 0.1250, 0.1250])
    """
    categorical = _categorical(_unwrapped(distribution), "straight_through")
    probs, drawn = categorical.probs, _draw(categorical, sample_shape, generator)
    if not isinstance(categorical, td.OneHotCategorical):
        drawn = _inputs.one_hot(drawn, probs.shape[-1], probs.dtype)
    return drawn + (probs - probs.detach())


# ---- the score function ----


class MovingAverage(nn.Module):
    r"""A baseline for :func:`score_function`: the exponential moving average of the costs of earlier calls.

    .. math:: b = \frac{\sum_{j \ge 1} d^{j-1} \bar c_{t-j}}{\sum_{j \ge 1} d^{j-1}}

    Here :math:`\bar c_{t-j}` is the mean cost of the j-th call before this one and d the decay. The first call has no
    earlier costs and uses 0. The average is one number in buffers, so it is saved with a model and moves with it. In
    evaluation mode it is not updated.

    Args:
        decay: The fraction of the average kept at each call, from 0 (the last call only) to below 1.

    Example:
        >>> import torch
        >>> from catnat.torch.estimators import MovingAverage
        >>> baseline = MovingAverage(decay=0.9)
        >>> [round(baseline(torch.tensor([cost])).item(), 3) for cost in (4.0, 4.0, 1.0, 1.0)]
        [0.0, 4.0, 4.0, 2.893]
    """

    total: Tensor
    weight: Tensor

    def __init__(self, decay: float = 0.99) -> None:
        super().__init__()
        _checks.decay(decay)
        self.decay = decay
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("weight", torch.zeros(()))

    def forward(self, costs: Float[Tensor, "..."]) -> Float[Tensor, ""]:
        """Return the average of earlier costs, then update it with ``costs``."""
        before = self.total / torch.where(self.weight > 0, self.weight, 1)
        if self.training and costs.numel():  # an empty tensor has no mean
            # New tensors instead of in-place updates, because a compiled backward pass recomputes ``before``.
            now = costs.detach().mean().to(self.total.dtype)
            self.total = torch.lerp(self.total, now, 1 - self.decay)
            self.weight = torch.lerp(self.weight, torch.ones_like(self.weight), 1 - self.decay)
        return before

    def extra_repr(self) -> str:
        """Return the settings that ``print`` shows."""
        return f"decay={self.decay}"


def score_function(
    f: Costs,
    distribution: td.Distribution,
    *,
    num_samples: int = 1,
    baseline: float | Tensor | MovingAverage | str | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*batch"]:
    r"""Return the mean cost of draws, whose gradient is the unbiased score-function (REINFORCE) estimate.

    .. math:: \nabla E f(k) \approx \frac1n \sum_{j=1}^n (f(k_j) - b_j)\, \nabla \log p(k_j) + \nabla f(k_j)

    The last term is the gradient in the parameters of f, if it has any. f need not be differentiable in the draws.

    Args:
        f: A function from draws, ``(num_samples, *batch)`` or one-hot ``(num_samples, *batch, K)``, to one cost for
            each, ``(num_samples, *batch)``.
        distribution: A categorical distribution of catnat or torch, or ``torch.distributions.Independent`` of one.
        num_samples: The number n of draws for every row.
        baseline: A value to subtract from the costs, which lowers the variance: None for no baseline; a number, or a
            tensor that broadcasts against the costs and does not depend on the draws; a :class:`MovingAverage`; or
            "leave-one-out", the mean cost of the other n - 1 draws.
        generator: The random generator; torch's default one if not given.

    Returns:
        The mean cost over the draws, in the distribution's batch shape. Minimize it.

    Example:
        >>> import torch
        >>> from catnat.torch import Catnat
        >>> from catnat.torch.estimators import score_function
        >>> scores = torch.zeros(10, 3, requires_grad=True)
        >>> loss = score_function(
        ...     lambda k: (k - 1.0) ** 2,
        ...     Catnat(scores),
        ...     num_samples=4,
        ...     baseline="leave-one-out",
        ... )
        >>> loss.shape
        torch.Size([10])
        >>> loss.mean().backward()
    """
    count = operator.index(num_samples)
    _check_baseline(baseline, count)
    draws = _draw(distribution, (count,), generator)
    log_prob = distribution.log_prob(draws)
    costs, dtype = _costs(f, draws, log_prob.shape, log_prob.dtype)
    log_prob = _inputs.widen(log_prob)
    advantage = costs.detach() - _baseline(baseline, costs.detach())
    # The second term is 0; its gradient is the score-function estimate.
    return _inputs.clamp_to_dtype((costs + advantage * (log_prob - log_prob.detach())).mean(0), dtype)


def _check_baseline(baseline: object, num_samples: int) -> None:
    """Raise unless ``baseline`` is valid and ``num_samples`` is large enough for it."""
    _checks.draws_for_baseline(num_samples, baseline)
    if not (baseline is None or isinstance(baseline, (str, int, float, Tensor, MovingAverage))):
        raise TypeError(
            f"`baseline` is a {type(baseline).__name__}, but None, a number, a tensor, a MovingAverage or "
            '"leave-one-out" is needed.'
        )


def _baseline(baseline: float | Tensor | MovingAverage | str | None, costs: Tensor) -> float | Tensor:
    """Return the value to subtract from the costs (n, *batch), which broadcasts against them."""
    if baseline is None:
        return 0.0
    if isinstance(baseline, MovingAverage):
        return baseline(costs)
    if isinstance(baseline, str):  # the mean of the other draws
        mean = costs.mean(0, keepdim=True)
        return mean - (costs - mean) / (costs.shape[0] - 1)
    if not isinstance(baseline, Tensor):
        return baseline
    if not _checks.broadcasts(baseline.shape, costs.shape):
        raise ValueError(
            f"`baseline` has shape {tuple(baseline.shape)}, but the costs have {tuple(costs.shape)}: it must broadcast "
            "against them, one number for all, or one per row of the batch."
        )
    return baseline.detach()


# ---- without replacement, and without randomness ----


def unordered_set(
    f: Costs, distribution: td.Distribution, k: int, *, generator: torch.Generator | None = None
) -> Float[Tensor, "*batch"]:
    r"""Return an unbiased estimate of the mean cost from a set S of ``k`` distinct draws (Kool et al., 2020).

    .. math::
        E f \approx \sum_{s \in S} p_s R_s\, f(s), \qquad
        \nabla E f \approx \sum_{s \in S} \nabla p_s R_s
        \Bigl(f(s) - \sum_{s' \in S} p_{s'} R_{s s'}\, f(s')\Bigr)

    :math:`R_s = P(S \mid s \text{ first}) / P(S)`, and :math:`R_{s s'}` is the same ratio for :math:`s'` after s has
    been removed, 1 for :math:`s' = s`. The gradient is unbiased too. No class is evaluated twice, and the estimate is
    the mean over all orders in which the set can be drawn. It is exact for k = K. The inner sum, for k > 1, is a
    baseline.

    Args:
        f: A function from classes, ``(k, *batch)`` or one-hot ``(k, *batch, K)``, to one cost for each, ``(k,
            *batch)``. Costs of classes beyond the possible ones are ignored; there f takes the first class again.
        distribution: A categorical distribution of catnat or torch, with classes or one-hot vectors as values.
        k: The number of distinct classes, 1 to 8: the ratios are sums over 2^k subsets.
        generator: The random generator; torch's default one if not given.

    Returns:
        The estimate, in the distribution's batch shape. It is not a mean of costs: for k < K and costs far from 0 it
        can lie outside their range.

    Example:
        >>> import torch
        >>> from catnat.torch import Catnat
        >>> from catnat.torch.estimators import unordered_set
        >>> scores = torch.zeros(10, 3, requires_grad=True)
        >>> # all classes: no randomness is left
        >>> unordered_set(lambda k: k.float(), Catnat(scores), 4)
        tensor([1.5000, 1.5000, 1.5000, 1.5000, 1.5000, 1.5000, 1.5000, 1.5000, 1.5000, 1.5000],
               grad_fn=...)
    """
    categorical = _categorical(distribution, "unordered_set")
    every = _inputs.widen(categorical.probs)
    _checks.distinct(k, every.shape[-1])
    classes = _draw_distinct(categorical, k, generator)
    probs = every.gather(-1, classes)
    possible = ~(probs <= 0)  # NaN must not be treated as 0
    evaluated = torch.where(possible, classes, classes.narrow(-1, 0, 1))  # the first draw is always possible
    evaluated = evaluated.movedim(-1, 0)
    costs, dtype = _costs(f, _values(categorical, evaluated), evaluated.shape, categorical.probs.dtype)
    costs, probs = costs.movedim(0, -1), torch.where(possible, probs, 0)
    # The probabilities outside the set are summed, because 1 - p(S) would lose precision.
    first, second = _ratios(probs.detach(), every.detach().scatter(-1, classes, 0).sum(-1, keepdim=True))
    expected = probs.detach() * costs.detach()
    baseline = (second * expected.unsqueeze(-2)).sum(-1) if k > 1 else 0
    advantage = first * (costs.detach() - baseline)
    estimate = (probs.detach() * first * costs + advantage * (probs - probs.detach())).sum(-1)
    return _inputs.clamp_to_dtype(estimate, dtype)


def _ratios(probs: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
    """Return R_s (*batch, k) and R_ss' (*batch, k, k) for a set S with ``probs``; the other classes sum to ``rest``.

    W(U) is the probability that draws without replacement from all classes outside U give the rest of the set, S - U.
    The first draw is some s, so W(U) = sum_s p_s / (1 - p(U)) W(U + s), starting from W(S) = 1. Impossible classes are
    ignored, as if they were not in the set. Then R_s = W(s) / W({}), and R_ss' = W(ss') / W(s). Only ratios matter, so
    each level of W is divided by its largest entry before the next one. Otherwise the probability of eight of a
    million equally probable classes would underflow.
    """
    levels, pairs = _subsets(probs.shape[-1], probs.device)
    single = larger_sets = inner = sets = torch.ones_like(rest)
    for members, larger in reversed(levels):
        inner, larger_sets = larger_sets, _quotient(sets, sets.amax(-1, keepdim=True))
        left, then = _columns(probs, members), _columns(larger_sets, larger)
        mass = left.sum(-1)
        some = mass > 0
        fraction = left / torch.where(some, mass + rest, 1).unsqueeze(-1)
        single, sets = sets, torch.where(some, (fraction * then).sum(-1), then.select(-1, 0))
    double = torch.cat([single, inner], -1) if len(levels) > 1 else single
    return _quotient(larger_sets, sets), _quotient(_columns(double, pairs), single.unsqueeze(-1))


def _columns(values: Tensor, index: Tensor) -> Tensor:
    """Return ``values[..., index]`` for an index with two axes."""
    return values.index_select(-1, index.flatten()).unflatten(-1, index.shape)


def _quotient(above: Tensor, below: Tensor) -> Tensor:
    """Return a ratio of probabilities. A denominator is 0 only by underflow, for a set that is never drawn."""
    return above / torch.where(below > 0, below, 1)


@constant
def _subsets(k: int, device: torch.device) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Return :func:`catnat.trees.tables.subsets` as tensors."""
    levels, pairs = tables.subsets(k)
    both = [
        (torch.as_tensor(members, device=device), torch.as_tensor(larger, device=device)) for members, larger in levels
    ]
    return both, torch.as_tensor(pairs, device=device)


def enumerate_exactly(f: Costs, distribution: td.Distribution) -> Float[Tensor, "*batch"]:
    r"""Return the expected cost as a sum over all classes; the cost and its gradient are exact.

    .. math:: E f = \sum_k p_k f(k)

    Args:
        f: A function from all classes, ``(K, *batch)`` or one-hot ``(K, *batch, K)``, to one cost for each, ``(K,
            *batch)``. It is never evaluated at an impossible class: a class of probability 0 is replaced by the most
            probable one, and the cost there is ignored.
        distribution: A categorical distribution of catnat or torch, with classes or one-hot vectors as values.

    Example:
        >>> import torch
        >>> from catnat.torch import Catnat
        >>> from catnat.torch.estimators import enumerate_exactly
        >>> enumerate_exactly(lambda k: k.float(), Catnat(torch.zeros(3)))
        tensor(1.5000)
    """
    categorical = _categorical(distribution, "enumerate_exactly")
    probs = categorical.probs.movedim(-1, 0)
    possible = ~(probs <= 0)  # NaN must not be treated as 0
    every = torch.arange(len(probs), device=probs.device).view(-1, *[1] * (probs.ndim - 1))
    classes = torch.where(possible, every, probs.argmax(0))
    costs, dtype = _costs(f, _values(categorical, classes), classes.shape, probs.dtype)
    # Half-precision probabilities do not sum to 1, and a large mean cost would hide the differences of costs.
    centre = costs.detach().mean(0) if probs.dtype.itemsize < 4 else 0
    expected = torch.where(possible, _inputs.widen(probs), 0) * torch.where(possible, costs - centre, 0)
    return _inputs.clamp_to_dtype(expected.sum(0) + centre, dtype)


# ---- many draws at once ----


def sample_counts(
    distribution: td.Distribution,
    total_count: int | Int[Tensor, "..."],
    *,
    sample_shape: Sequence[int] = (),
    generator: torch.Generator | None = None,
) -> Int[Tensor, "*samples_and_batch classes"]:
    r"""Draw how often each class occurs in ``total_count`` independent draws, a multinomial vector, in O(K).

    The count is split by a binomial draw between the two halves of the classes, and again within each half,
    :math:`\lceil \log_2 K \rceil` times. The cost does not depend on ``total_count``.

    Args:
        distribution: A categorical distribution of catnat or torch, with classes or one-hot vectors as values.
        total_count: The number of draws: an integer, or an integer tensor that broadcasts against the batch shape.
        sample_shape: The shape of independent results, which precedes the batch shape.
        generator: The random generator; torch's default one if not given.

    Returns:
        Counts that sum to ``total_count``; a class of probability 0 gets exactly 0.

    Example:
        >>> import torch
        >>> from catnat.torch import Catnat
        >>> from catnat.torch.estimators import sample_counts
        >>> sample_counts(Catnat(torch.zeros(5, 99)), 10**9).sum(-1)
        tensor([1000000000, 1000000000, 1000000000, 1000000000, 1000000000])
    """
    probs = _categorical(distribution, "sample_counts").probs.detach().double()
    if not torch.compiler.is_compiling() and _inputs.known_at_once(probs.isnan().any()):
        raise ValueError(_checks.NAN_PROBS)
    batch, num_classes = probs.shape[:-1], probs.shape[-1]
    levels = (num_classes - 1).bit_length()
    masses = [F.pad(probs, (0, 2**levels - num_classes))]
    for _ in range(levels):
        masses.append(masses[-1].unflatten(-1, (-1, 2)).sum(-1))
    shape = (*_checks.shape_of_samples(sample_shape), *batch)
    counts = _total_count(total_count, batch, probs.device).expand(shape).unsqueeze(-1).double()
    for below, mass in zip(reversed(masses[:-1]), reversed(masses), strict=False):
        # A side without mass gets a fraction of exactly 0, and the other side of exactly 1.
        fraction = below.unflatten(-1, (-1, 2)).select(-1, 1) / torch.where(mass > 0, mass, 1)
        right = _binomial(counts, fraction.expand_as(counts), generator)
        counts = torch.stack([counts - right, right], -1).flatten(-2)
    return counts.narrow(-1, 0, num_classes).long()


def _binomial(count: Tensor, fraction: Tensor, generator: torch.Generator | None) -> Tensor:
    if generator is None:  # the compiler cannot take a generator, not even None
        return torch.binomial(count, fraction)
    return torch.binomial(count, fraction, generator=generator)


def _total_count(total_count: int | Tensor, batch: Size, device: torch.device) -> Tensor:
    count = torch.as_tensor(total_count, device=device)
    if count.is_floating_point() or count.is_complex() or count.dtype == torch.bool:
        raise TypeError(f"`total_count` has dtype {count.dtype}, but a number of draws is an integer: use .long().")
    count = count.long()
    if not _checks.broadcasts(count.shape, batch):
        raise ValueError(
            f"`total_count` has shape {tuple(count.shape)}, but the distribution's batch shape is {tuple(batch)}: give "
            "one number for all rows, or one per row."
        )
    if isinstance(total_count, Tensor):
        outside = ((count < 0) | (count > MOST_COUNTED)).any()
        bad = not torch.compiler.is_compiling() and _inputs.known_at_once(outside)
    else:
        bad = not 0 <= total_count <= MOST_COUNTED
    if bad:
        raise ValueError(f"`total_count` is {total_count}, but a number of draws from 0 to 2^53 is needed.")
    return count


# ---- helpers ----


def _unwrapped(distribution: td.Distribution) -> td.Distribution:
    """Return the distribution inside ``Independent``, whose draws are the same."""
    while isinstance(distribution, td.Independent):
        distribution = distribution.base_dist
    return distribution


def _categorical(distribution: td.Distribution, name: str) -> td.Categorical | td.OneHotCategorical:
    """Return ``distribution`` if it is categorical, else raise."""
    if isinstance(distribution, (td.Categorical, td.OneHotCategorical)):
        return distribution
    hint = ""
    if isinstance(distribution, td.Independent):
        hint = (
            " An Independent is one variable, whose outcomes are all combinations of its parts: pass its base_dist, if "
            "each part has its own cost, or use score_function."
        )
    raise TypeError(
        f"`distribution` is a {type(distribution).__name__}, but {name} needs a categorical one: Catnat or "
        f"OneHotCatnat of catnat.torch, or torch's Categorical or OneHotCategorical.{hint}"
    )


def _draw(distribution: td.Distribution, sample_shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
    """Draw values; with a generator, which torch's distributions do not take, their classes are drawn here."""
    distribution, sample_shape = _unwrapped(distribution), _checks.shape_of_samples(sample_shape)
    if generator is None:
        return distribution.sample(Size(sample_shape))
    if "generator" in inspect.signature(distribution.sample).parameters:
        return distribution.sample(Size(sample_shape), generator=generator)  # type: ignore[call-arg]
    if isinstance(distribution, (td.Categorical, td.OneHotCategorical)):
        return _values(distribution, _gumbel_scores(distribution.probs, sample_shape, generator).argmax(-1))
    raise TypeError(
        f"`generator` is given, but the sample method of a {type(distribution).__name__} takes none: leave it out and "
        "seed torch's default generator with torch.manual_seed, or take a distribution of catnat.torch."
    )


def _draw_distinct(
    categorical: td.Categorical | td.OneHotCategorical, k: int, generator: torch.Generator | None
) -> Int[Tensor, "*batch k"]:
    """Draw k distinct classes without replacement, in order; impossible classes come last."""
    return _gumbel_scores(categorical.probs, (), generator).topk(k).indices


def _gumbel_scores(probs: Tensor, sample_shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
    """Return log p plus Gumbel noise, -inf where p is 0; in descending order, classes are draws without replacement."""
    return gumbel_noise_on(_inputs.widen(probs.detach()).log(), None, sample_shape, generator)


def _values(categorical: td.Categorical | td.OneHotCategorical, classes: Tensor) -> Tensor:
    """Return classes as values of the distribution: unchanged, or as one-hot vectors."""
    if not isinstance(categorical, td.OneHotCategorical):
        return classes
    return _inputs.one_hot(classes, categorical.event_shape[-1], categorical.probs.dtype)


def _costs(f: Costs, draws: Tensor, needed: Size, dtype: torch.dtype) -> tuple[Tensor, torch.dtype]:
    """Return the costs f(draws), and the dtype of a result: ``dtype`` promoted with that of the costs."""
    costs = f(draws)
    _inputs.check_tensor(costs, "f(draws)")
    if costs.shape != needed:
        raise ValueError(
            f"`f` returned shape {tuple(costs.shape)} for draws of shape {tuple(draws.shape)}, but one cost per draw "
            f"is needed: {tuple(needed)}. Do not average inside f: take the mean of the result."
        )
    dtype = torch.promote_types(costs.dtype, dtype)
    return _inputs.widen(costs).to(_inputs.computing_dtype(dtype)), dtype  # half precision would round integers


def _check_temperature(temperature: float | Tensor) -> None:
    if isinstance(temperature, Tensor):
        bad = not torch.compiler.is_compiling() and _inputs.known_at_once((temperature > 0).all().logical_not())
    else:
        bad = not 0 < temperature < math.inf
    if bad:
        raise ValueError(f"`temperature` is {temperature}, but a positive number is needed.")
