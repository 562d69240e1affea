"""Kullback-Leibler divergences between these distributions and torch's own, registered with torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Categorical, OneHotCategorical, kl_divergence, register_kl

from catnat.torch import _inputs
from catnat.torch._binned import BinnedCatnat
from catnat.torch._leaves import divergence
from catnat.torch._multi import MultiCatnat
from catnat.torch.distributions import Catnat, OneHotCatnat, leaves_of
from catnat.trees import bins


@register_kl(Catnat, Catnat)
def _catnat_catnat(p: Catnat, q: Catnat) -> Tensor:
    _check_same_classes(p, q)
    return _in_both_dtypes(leaves_of(p).kl_divergence(leaves_of(q)), p.scores, q.scores)


@register_kl(MultiCatnat, MultiCatnat)
def _multi_multi(p: MultiCatnat, q: MultiCatnat) -> Tensor:
    if p.forest.sizes != q.forest.sizes:
        raise ValueError(f"`p` has variables of {p.forest.sizes} classes and `q` of {q.forest.sizes}: not the same.")
    return _in_both_dtypes(leaves_of(p).kl_divergence(leaves_of(q)), p.scores, q.scores)


@register_kl(BinnedCatnat, BinnedCatnat)
def _binned_binned(p: BinnedCatnat, q: BinnedCatnat) -> Tensor:
    bins.same(p.bins, q.bins)
    return _catnat_catnat(p.categorical, q.categorical)


@register_kl(Catnat, Categorical)
@register_kl(Categorical, Catnat)
def _leafwise(p: Categorical, q: Categorical) -> Tensor:
    _check_same_classes(p, q)
    valid = leaves_of(q).valid if isinstance(q, Catnat) else None
    terms = divergence(_computed_probs(p), _computed_logits(p), _computed_logits(q), valid)
    return _in_both_dtypes(terms, p.logits, q.logits)


def _check_same_classes(p: Categorical, q: Categorical) -> None:
    if p._num_events != q._num_events:
        raise ValueError(f"`p` has {p._num_events} classes and `q` has {q._num_events}, but they must be the same.")


def _in_both_dtypes(divergence: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """In the dtype that holds both, saturated but where it is infinite: there q forbids what p can take."""
    dtype = torch.promote_types(_inputs.returned_dtype(p), _inputs.returned_dtype(q))
    if divergence.dtype == dtype:
        return divergence
    return torch.where(divergence.isinf(), divergence.to(dtype), _inputs.saturate(divergence, dtype))


def _computed_probs(distribution: Categorical) -> Tensor:
    if isinstance(distribution, Catnat):
        return leaves_of(distribution).probs()
    return _inputs.to_computing_dtype(distribution.probs)


def _computed_logits(distribution: Categorical) -> Tensor:
    if isinstance(distribution, Catnat):
        return leaves_of(distribution).log_probs
    return _inputs.to_computing_dtype(distribution.logits)


@register_kl(OneHotCatnat, OneHotCatnat)
@register_kl(OneHotCatnat, OneHotCategorical)
@register_kl(OneHotCategorical, OneHotCatnat)
def _one_hot(p: OneHotCategorical, q: OneHotCategorical) -> Tensor:
    return kl_divergence(p._categorical, q._categorical)
