"""Every differentiable function of (scores, tree, activation), for tests that hold for each of them."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from only_torch import rows
from torch import Tensor
from torch import distributions as td
from torch.distributions import kl_divergence

import catnat
import catnat.torch as ct

Function = Callable[[Tensor, catnat.Tree, ct.Activation], Tensor]


def every_class(scores: Tensor, tree: catnat.Tree) -> Tensor:
    """Class indices in a sample shape before the batch: as many as there are, up to five, spread over the tree."""
    classes = torch.linspace(0, tree.num_classes - 1, 5, device=scores.device).round().long()
    return classes.view(-1, *[1] * (scores.ndim - 1)).expand(-1, *scores.shape[:-1])


def targets(scores: Tensor, tree: catnat.Tree) -> Tensor:
    return torch.arange(len(scores), device=scores.device) % tree.num_classes


def cross_entropy(scores, tree, activation, reduction="none", **options):
    return ct.cross_entropy(scores, targets(scores, tree), tree, activation, reduction=reduction, **options)


def soft_cross_entropy(scores, tree, activation):
    classes = torch.arange(tree.num_classes, device=scores.device)
    ends = (classes == 0).to(scores.dtype) + (classes == tree.num_classes - 1).to(scores.dtype)
    # Half of each: a power of two is exact in every dtype.
    return ct.cross_entropy(scores, (ends / 2).expand(len(scores), -1), tree, activation, reduction="none")


def reduced_cross_entropy(reduction: str, scores, tree, activation):
    """Weights above 1, and a sum over rows that each may be as large as the dtype can hold."""
    weight = torch.full((tree.num_classes,), 3.0, dtype=scores.dtype, device=scores.device)
    return cross_entropy(scores, tree, activation, reduction, weight=weight, label_smoothing=0.1)


def logits_of(scores: Tensor) -> Tensor:
    """As many as there are classes."""
    return torch.cat([scores, scores[..., :1].sin()], -1)


def fact(kind: type[td.Distribution], method: str, scores, tree, activation):
    dist = kind(scores, tree, activation, validate_args=False)
    if method == "log_prob":
        value = every_class(scores, tree)
        if kind is ct.OneHotCatnat:
            value = torch.nn.functional.one_hot(value, tree.num_classes).to(scores.dtype)
        return dist.log_prob(value)
    found = getattr(dist, method)
    return found() if callable(found) else found


def straight_through(scores, tree, activation):
    return ct.OneHotCatnatStraightThrough(scores, tree, activation).rsample(generator=rows.seeded(3))


def relaxed(temperature: float, scores, tree, activation):
    return ct.RelaxedOneHotCatnat(temperature, scores, tree, activation).rsample(generator=rows.seeded(3))


def relaxed_log_prob(temperature: float, scores, tree, activation):
    value = torch.softmax(torch.randn(tree.num_classes, generator=rows.seeded(4)), -1).to(scores.dtype)
    # Half precision cannot write a point of the simplex to the precision that validation needs.
    dist = ct.RelaxedOneHotCatnat(temperature, scores, tree, activation, validate_args=False)
    return dist.log_prob(value.expand(len(scores), -1))


def kl_of_distributions(first: str, second: str, scores, tree, activation):
    flat = torch.linspace(-1, 1, tree.num_classes, dtype=scores.dtype).expand(len(scores), -1)
    other = catnat.chain(tree.num_classes)
    dists = {
        "catnat": lambda: ct.Catnat(scores, tree, activation),
        "flipped": lambda: ct.Catnat(scores.flip(0), tree, activation),
        "chain": lambda: ct.Catnat(scores.flip(0), other, activation),
        "categorical": lambda: td.Categorical(logits=flat),
        "one-hot": lambda: ct.OneHotCatnat(scores, tree, activation),
        "one-hot-chain": lambda: ct.OneHotCatnatStraightThrough(scores.flip(0), other, activation),
        "one-hot-categorical": lambda: td.OneHotCategorical(logits=flat),
    }
    return kl_divergence(dists[first](), dists[second]())


FUNCTIONS: dict[str, Function] = {
    "catnat": ct.catnat,
    "log_catnat": ct.log_catnat,
    "log_prob": lambda s, tree, *more: ct.log_prob(s, every_class(s, tree), tree, *more),
    "entropy": ct.entropy,
    "kl_divergence": lambda s, *args: ct.kl_divergence(s, s.flip(0), *args),
    "cross_entropy": cross_entropy,
    "cross_entropy-smooth": functools.partial(cross_entropy, label_smoothing=0.1),
    "cross_entropy-soft": soft_cross_entropy,
    "cross_entropy-mean": functools.partial(reduced_cross_entropy, "mean"),
    "cross_entropy-sum": functools.partial(reduced_cross_entropy, "sum"),
    "reach": ct.geometry.reach,
    "fisher_diagonal": ct.geometry.fisher_diagonal,
    "Catnat.log_prob": functools.partial(fact, ct.Catnat, "log_prob"),
    "Catnat.entropy": functools.partial(fact, ct.Catnat, "entropy"),
    "OneHotCatnat.probs": functools.partial(fact, ct.OneHotCatnat, "probs"),
}
DISTRIBUTIONS: dict[str, Function] = {
    **{f"Catnat.{name}": functools.partial(fact, ct.Catnat, name) for name in ("probs", "logits")},
    **{
        f"OneHotCatnat.{name}": functools.partial(fact, ct.OneHotCatnat, name)
        for name in ("log_prob", "entropy", "logits", "mean", "variance")
    },
    "OneHotCatnatStraightThrough.rsample": straight_through,
    "RelaxedOneHotCatnat.rsample": functools.partial(relaxed, 0.5),
    "RelaxedOneHotCatnat.log_prob": functools.partial(relaxed_log_prob, 0.5),
    **{
        f"KL({first}, {second})": functools.partial(kl_of_distributions, first, second)
        for first, second in (
            ("catnat", "flipped"),
            ("catnat", "chain"),
            ("chain", "catnat"),
            ("catnat", "categorical"),
            ("categorical", "catnat"),
            ("one-hot", "one-hot-chain"),
            ("one-hot", "one-hot-categorical"),
            ("one-hot-categorical", "one-hot"),
        )
    },
}

geometry = ct.geometry
GEOMETRY: dict[str, Function] = {
    "natural_gradient": lambda s, *args: ct.log_catnat(geometry.natural_gradient(s, *args, damping=1e-3), *args),
    "softmax_natural_gradient": lambda s, *_: geometry.softmax_natural_gradient(s, damping=1e-3).log_softmax(-1),
    "kl_step": lambda s, *args: geometry.kl_step(s, s.sin(), s.square().sum(-1) * 1e-3, *args),
    "fisher_rao_distance": lambda s, *args: geometry.fisher_rao_distance(s, 0.9 * s, *args),
    "scores_from_logits": lambda s, *args: ct.scores_from_logits(logits_of(s), *args),
    "scores_from_probs": lambda s, *args: ct.scores_from_probs(logits_of(s).softmax(-1), *args),
}
