"""Kullback-Leibler divergences between these distributions and torch's own, registered with torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Categorical, OneHotCategorical, kl_divergence, register_kl

from catnat.torch import _functional
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
    terms = p.probs * (p.logits - q.logits)
    # A class that p never takes counts nothing, even where torch's own logits are -inf.
    return torch.where(p.probs == 0, torch.zeros_like(terms), terms).sum(-1)


@register_kl(OneHotCatnat, OneHotCatnat)
@register_kl(OneHotCatnat, OneHotCategorical)
@register_kl(OneHotCategorical, OneHotCatnat)
def _one_hot(p: OneHotCategorical, q: OneHotCategorical) -> Tensor:
    return kl_divergence(p._categorical, q._categorical)
