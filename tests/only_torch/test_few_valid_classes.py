"""Few valid classes of many: the shortcut that reads only their paths."""

from __future__ import annotations

import cases
import numpy as np
import oracle
import pytest
import torch
from only_torch import rows
from only_torch.masking import MODES, assert_obeyed, both_modes, facts, gradient, weighted
from torch import Tensor
from torch.distributions import kl_divergence
from torch.func import vmap

import catnat
import catnat.torch as ct
from catnat.torch._leaves import FewLeaves

pytestmark = [pytest.mark.filterwarnings("ignore::catnat.EdgeWarning"), pytest.mark.usefixtures("validation")]


# ---- few valid classes of many ----

LARGE = {
    "balanced-128": catnat.balanced(128),
    "balanced-300": catnat.balanced(300),
    "balanced-prior": catnat.balanced(300).with_prior(cases.zipf(300)),
    "huffman-300": catnat.huffman(cases.zipf(300)),
    "children-200": catnat.huffman(cases.zipf(200)).with_prior(np.ones(200)),
}


def few_valid(tree: catnat.Tree, batch: int, most: int = 5) -> Tensor:
    """Masks (batch, K) with one to ``most`` valid classes, some of them neighbours."""
    generator = rows.seeded(4)
    start = torch.randint(tree.num_classes, (batch, 1), generator=generator)
    steps = torch.randint(3, (batch, most), generator=generator) ** 4
    mask = torch.zeros(batch, tree.num_classes, dtype=torch.bool)
    return mask.scatter(-1, (start + steps) % tree.num_classes, True)


def takes_the_shortcut(dist: ct.Catnat) -> bool:
    return isinstance(dist._leaves, FewLeaves)


@pytest.mark.parametrize("name", LARGE)
@both_modes
def test_few_valid_classes(name, mode):
    """The shortcut for large inputs gives what small batches of the same rows give, which are too small for it."""
    tree = LARGE[name]
    for activation in ("natural", "sigmoid") if name == "balanced-300" else ("reflect-isotropic", "sigmoid-isotropic"):
        kind = rows.ACTIVATIONS[activation]
        scores, mask = rows.inside(tree, kind, 180).requires_grad_(), few_valid(tree, 180)
        large = ct.Catnat(scores, tree, kind, mask=mask, mask_mode=mode)
        assert takes_the_shortcut(large)
        small = [
            ct.Catnat(s, tree, kind, mask=m, mask_mode=mode)
            for s, m in zip(scores.split(45), mask.split(45), strict=True)
        ]
        assert not any(map(takes_the_shortcut, small))
        for fact in facts(large):
            got, wanted = facts(large)[fact], torch.cat([facts(dist)[fact] for dist in small])
            rows.assert_close(got, wanted, 1e-11, 1e-12)
            if fact != "mode":
                got, wanted = gradient(got, scores), gradient(wanted, scores)
                rows.assert_close(got, wanted, 1e-9, 1e-10 * float(wanted.abs().max()))
        assert (large.probs[~mask] == 0).all()
        assert (large.logits[~mask] == torch.finfo(torch.float64).min).all()
        classes = mask.int().argmax(-1)
        small_log_probs = [dist.log_prob(c) for dist, c in zip(small, classes.split(45), strict=True)]
        fresh = ct.Catnat(scores, tree, kind, mask=mask, mask_mode=mode)
        rows.assert_close(fresh.log_prob(classes), torch.cat(small_log_probs), 1e-11)
        rows.assert_equal(kl_divergence(large, large), torch.zeros(180, dtype=torch.float64))
        if mode == "prune":
            rows.assert_close(
                large.fisher_diagonal(), ct.geometry.fisher_diagonal(scores, tree, kind, mask=mask), 1e-11
            )


def test_few_valid_classes_against_the_oracle():
    tree = LARGE["balanced-128"]
    scores, mask = rows.inside(tree, "natural", 180), few_valid(tree, 180)
    model = cases.tree_case("balanced-128").model(cases.NATURAL)
    for mode in MODES:
        dist = ct.Catnat(scores, tree, mask=mask, mask_mode=mode)
        assert takes_the_shortcut(dist)
        for row in range(0, 180, 20):
            wanted = oracle.Distribution(model, tuple(mask[row].tolist()), mode).probs(scores[row].numpy())
            np.testing.assert_allclose(dist.probs[row], wanted, atol=1e-13)


@both_modes
def test_few_valid_classes_in_other_shapes_and_dtypes(mode):
    tree = LARGE["balanced-300"]
    scores, mask = rows.inside(tree, "natural", 6, 30).requires_grad_(), few_valid(tree, 180).view(6, 30, -1)
    dist = ct.Catnat(scores, tree, mask=mask, mask_mode=mode)
    flat = ct.Catnat(scores.flatten(0, 1), tree, mask=mask.flatten(0, 1), mask_mode=mode)
    assert takes_the_shortcut(dist)
    for name, fact in facts(flat).items():
        rows.assert_equal(facts(dist)[name], fact.unflatten(0, (6, 30)))
    draws = dist.sample((20,))
    assert_obeyed(draws, mask)
    wide = dist.expand((2, 6, 30))
    rows.assert_close(wide.probs, dist.probs.expand(2, 6, 30, -1), 1e-12)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        half = ct.Catnat(scores.to(dtype), tree, mask=mask, mask_mode=mode)
        assert takes_the_shortcut(half)
        assert half.probs.dtype == half.logits.dtype == half.entropy().dtype == dtype
        assert (half.logits[~mask] == torch.finfo(dtype).min).all()
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(half.probs.double(), dist.probs, rtol=0, atol=4 * eps + 0.05 * (dtype.itemsize == 2))


@both_modes
def test_few_valid_classes_far_outside_the_band(mode):
    tree = LARGE["huffman-300"]
    scores, mask = 1e30 * rows.around(tree, 180), few_valid(tree, 180)
    scores.requires_grad_()
    dist = ct.Catnat(scores, tree, mask=mask, mask_mode=mode)
    assert takes_the_shortcut(dist)
    for value in (dist.probs, dist.logits, dist.entropy()):
        assert value.isfinite().all()
        assert gradient(value, scores).isfinite().all()
    rows.assert_close(dist.probs.sum(-1), torch.ones(180, dtype=torch.float64))


def test_under_transforms_few_valid_classes_are_like_many():
    tree = LARGE["balanced-300"]
    scores, mask = rows.inside(tree, "natural", 180), few_valid(tree, 180)
    dist = ct.Catnat(scores, tree, mask=mask)
    rows.assert_close(vmap(lambda s, m: ct.Catnat(s, tree, mask=m).probs)(scores, mask), dist.probs)
    rows.assert_close(vmap(lambda s, m: ct.Catnat(s, tree, mask=m).logits)(scores, mask), dist.logits)
    compiled = torch.compile(lambda s, m: ct.Catnat(s, tree, mask=m).logits, backend="aot_eager", fullgraph=True)
    rows.assert_close(compiled(scores, mask), dist.logits)
    got = torch.func.grad(lambda s: weighted(ct.Catnat(s, tree, mask=mask).probs))(scores)
    leaf = scores.clone().requires_grad_()
    rows.assert_close(got, gradient(ct.Catnat(leaf, tree, mask=mask).probs, leaf))


@both_modes
def test_vmap_over_scores_with_one_mask_of_few_valid_classes(mode):
    tree = LARGE["balanced-300"]
    scores, mask = rows.inside(tree, "natural", 3, 180), few_valid(tree, 180)
    for name in ("probs", "logits"):
        got = vmap(lambda s, name=name: getattr(ct.Catnat(s, tree, mask=mask, mask_mode=mode), name))(scores)
        wanted = [getattr(ct.Catnat(s, tree, mask=mask, mask_mode=mode), name) for s in scores]
        rows.assert_close(got, torch.stack(wanted))
    got = vmap(lambda s: ct.Catnat(s, tree, mask=mask, mask_mode=mode).entropy())(scores)
    rows.assert_close(got, torch.stack([ct.Catnat(s, tree, mask=mask, mask_mode=mode).entropy() for s in scores]))
