"""Natural gradients, KL steps, distances and conversions in torch: autocast and forward mode."""

from __future__ import annotations

import pytest
import torch
from only_torch import rows

import catnat
import catnat.torch as ct

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")


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
    scores, tangent = rows.inside(tree, "sigmoid"), rows.around(tree, seed=1)
    value, got = torch.func.jvp(lambda s: ct.geometry.natural_gradient(s, tree), (scores,), (tangent,))
    rows.assert_equal(value, scores)
    rows.assert_close(got, tangent / ct.geometry.fisher_diagonal(scores, tree))
    forward, backward = (
        mode(ct.geometry.softmax_natural_gradient)(scores) for mode in (torch.func.jacfwd, torch.func.jacrev)
    )
    rows.assert_close(forward, backward)
