"""Natural gradients, KL steps, distances and conversions in torch: autocast, transforms, compilation."""

from __future__ import annotations

import pytest
import torch
from only_torch import rows
from torch import Tensor

import catnat
import catnat.torch as ct

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=rows.seeded(seed)).to(dtype)


def test_autocast_leaves_the_dtype():
    scores = torch.zeros(3, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert ct.geometry.natural_gradient(scores).dtype == torch.bfloat16
        assert ct.geometry.softmax_natural_gradient(scores).dtype == torch.bfloat16
        assert ct.geometry.kl_step(scores, scores + 1, 0.1).dtype == torch.bfloat16
        assert ct.geometry.fisher_rao_distance(scores, scores).dtype == torch.float32
        assert ct.scores_from_logits(scores).dtype == torch.float32


def test_forward_mode_has_the_same_factor():
    tree = catnat.balanced(6)
    scores, tangent = rows.inside(tree, "sigmoid"), normal(5)
    value, got = torch.func.jvp(lambda s: ct.geometry.natural_gradient(s, tree), (scores,), (tangent,))
    rows.assert_equal(value, scores)
    rows.assert_close(got, tangent / ct.geometry.fisher_diagonal(scores, tree))
    forward, backward = (
        mode(ct.geometry.softmax_natural_gradient)(scores) for mode in (torch.func.jacfwd, torch.func.jacrev)
    )
    rows.assert_close(forward, backward)


# ---- transforms and compilation ----

# Functions of (scores, logits, tree, activation).
FUNCTIONS = {
    "natural_gradient": lambda s, x, t, a: ct.log_catnat(ct.geometry.natural_gradient(s, t, a, damping=1e-3), t, a),
    "softmax_natural_gradient": lambda s, x, t, a: ct.geometry.softmax_natural_gradient(x, damping=1e-3).log_softmax(
        -1
    ),
    "kl_step": lambda s, x, t, a: ct.geometry.kl_step(s, s.sin(), s.square().sum(-1) * 1e-3, t, a),
    "fisher_rao_distance": lambda s, x, t, a: ct.geometry.fisher_rao_distance(s, 0.9 * s, t, a),
    "scores_from_logits": lambda s, x, t, a: ct.scores_from_logits(x, t, a),
    "scores_from_probs": lambda s, x, t, a: ct.scores_from_probs(x.softmax(-1), t, a),
}
every_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


@every_function
def test_vmap_is_a_batch(function):
    for name, activation in (("balanced-18", "natural"), ("chain-7", "sigmoid"), ("huffman-20", "natural")):
        tree, kind = rows.TREES[name], rows.ACTIVATIONS[activation]
        scores, logits = rows.inside(tree, kind, 4), normal(4, tree.num_classes)
        wanted = function(scores, logits, tree, kind)
        rows.assert_close(torch.func.vmap(lambda s, x, t=tree, k=kind: function(s, x, t, k))(scores, logits), wanted)
