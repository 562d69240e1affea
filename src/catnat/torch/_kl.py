"""Kullback-Leibler divergences between catnat's and torch's distributions, registered with torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Categorical, OneHotCategorical, kl_divergence, register_kl

from catnat.torch import _inputs
from catnat.torch._binned import BinnedCatnat
from catnat.torch.distributions import Catnat, MultiCatnat, OneHotCatnat
from catnat.trees import bins


@register_kl(Catnat, Catnat)
@register_kl(Catnat, Categorical)
@register_kl(Categorical, Catnat)
def _categorical(p: Categorical, q: Categorical) -> Tensor:
    return _returned(_divergence(p, q), p._param, q._param)


def _divergence(p: Categorical, q: Categorical) -> Tensor:
    """Return KL(p || q) in the computing dtype."""
    if p._num_events != q._num_events:
        raise ValueError(f"`p` has {p._num_events} classes and `q` has {q._num_events}, but they must be the same.")
    p_exact, q_logs = _log_probs(p, floored=False), _log_probs(q, floored=True)
    probs = p_exact.exp()
    # Classes with p = 0 are ignored, even if logits of torch's distributions are -inf.
    terms = probs * torch.where(probs == 0, 0, _log_probs(p, floored=True) - q_logs)
    # Not `q.mask`, which is a method in Pyro's classes.
    valid = q.options.valid if isinstance(q, Catnat) and q.options is not None else None
    if valid is not None:
        terms = terms.masked_fill((probs > 0) & ~valid, torch.inf)
    return terms.sum(-1)


def _returned(found: Tensor, p_param: Tensor, q_param: Tensor) -> Tensor:
    dtype = torch.promote_types(_inputs.returned_dtype(p_param), _inputs.returned_dtype(q_param))
    # The divergence stays infinite if p can take a class that q masks.
    return torch.where(found.isinf(), found.to(dtype), _inputs.clamp_to_dtype(found, dtype))


def _log_probs(distribution: Categorical, *, floored: bool) -> Tensor:
    if isinstance(distribution, Catnat):
        return distribution.log_probs(floored=floored)
    return _inputs.widen(distribution.logits)


@register_kl(MultiCatnat, MultiCatnat)
def _multi_multi(p: MultiCatnat, q: MultiCatnat) -> Tensor:
    if p.forest.sizes != q.forest.sizes:
        raise ValueError(f"`p` has variables of {p.forest.sizes} classes and `q` of {q.forest.sizes}: not the same.")
    if p.forest != q.forest:
        raise ValueError("`p` and `q` have other trees for some variables, but the trees must be equal.")
    parts = [_divergence(*pair).sum(-1) for pair in zip(p.parts, q.parts, strict=True)]
    return _returned(torch.stack(parts).sum(0), p.scores, q.scores)


@register_kl(BinnedCatnat, BinnedCatnat)
def _binned_binned(p: BinnedCatnat, q: BinnedCatnat) -> Tensor:
    bins.same(p.bins, q.bins)
    return kl_divergence(p.categorical, q.categorical)


@register_kl(OneHotCatnat, OneHotCatnat)
@register_kl(OneHotCatnat, OneHotCategorical)
@register_kl(OneHotCategorical, OneHotCatnat)
def _one_hot(p: OneHotCategorical, q: OneHotCategorical) -> Tensor:
    return kl_divergence(p._categorical, q._categorical)
