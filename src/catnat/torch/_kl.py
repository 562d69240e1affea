"""Kullback-Leibler divergences between these distributions and torch's own, registered with torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Categorical, OneHotCategorical, kl_divergence, register_kl

from catnat.torch import _functional, _plan
from catnat.torch._distributions import Catnat, OneHotCatnat


@register_kl(Catnat, Catnat)
def _catnat_catnat(p: Catnat, q: Catnat) -> Tensor:
    """By the chain rule on a common tree, leaf by leaf otherwise."""
    if p.tree == q.tree and p.activation == q.activation:
        return _functional.kl_divergence(p.scores, q.scores, p.tree, p.activation)
    return _leafwise(p, q)


@register_kl(Catnat, Categorical)
@register_kl(Categorical, Catnat)
def _leafwise(p: Categorical, q: Categorical) -> Tensor:
    if p._num_events != q._num_events:
        raise ValueError(f"`p` has {p._num_events} classes and `q` has {q._num_events}, but they must be the same.")
    probs, p_logs, q_logs = _computed_probs(p), _computed_logits(p), _computed_logits(q)
    # A class that p never takes counts nothing, even where torch's own logits are -inf.
    terms = torch.where(probs == 0, torch.zeros_like(probs), probs * (p_logs - q_logs))
    return _plan.saturate(terms.sum(-1), torch.promote_types(p.logits.dtype, q.logits.dtype))


def _computed_probs(distribution: Categorical) -> Tensor:
    if isinstance(distribution, Catnat):
        return _functional.catnat(distribution._computed, distribution.tree, distribution.activation)
    return _plan.to_computing_dtype(distribution.probs)


def _computed_logits(distribution: Categorical) -> Tensor:
    return (
        distribution._log_probs if isinstance(distribution, Catnat) else _plan.to_computing_dtype(distribution.logits)
    )


@register_kl(OneHotCatnat, OneHotCatnat)
@register_kl(OneHotCatnat, OneHotCategorical)
@register_kl(OneHotCategorical, OneHotCatnat)
def _one_hot(p: OneHotCategorical, q: OneHotCategorical) -> Tensor:
    return kl_divergence(p._categorical, q._categorical)
