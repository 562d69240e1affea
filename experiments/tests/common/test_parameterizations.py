"""Every parameterization of the registry: probabilities, inverses, saturation, and what coincides for two classes."""

from __future__ import annotations

import math

import pytest
import torch

import catnat.torch as ct
from catnat_experiments.common.parameterizations import PARAMETERIZATIONS, _haar, parameterization

NAMES = list(PARAMETERIZATIONS)


def drawn(name: str, classes: int, *batch: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(classes)
    count = parameterization(name).num_scores(classes)
    return scale * torch.randn(*batch, count, dtype=torch.float64, generator=generator)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'sofmax', but one of these is needed: softmax, sparsemax"):
        parameterization("sofmax")


@pytest.mark.parametrize("classes", [2, 3, 8])
@pytest.mark.parametrize("name", NAMES)
def test_probabilities_sum_to_one_and_log_probs_are_their_logarithms(name: str, classes: int) -> None:
    kind = parameterization(name)
    one_a_class = ("softmax", "sparsemax")
    assert kind.num_scores(classes) == (classes if name in one_a_class else classes - 1)
    scores = drawn(name, classes, 40, 5, scale=2.0)
    probs, logs = kind.probs(scores), kind.log_probs(scores)
    assert probs.shape == logs.shape == (40, 5, classes)
    assert (probs >= 0).all()
    torch.testing.assert_close(probs.sum(-1), torch.ones(40, 5, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(logs.exp(), probs, rtol=1e-12, atol=1e-14)
    assert logs.isfinite().all()


@pytest.mark.parametrize("classes", [2, 3, 8])
@pytest.mark.parametrize("name", NAMES)
def test_scores_from_probs_is_the_inverse(name: str, classes: int) -> None:
    kind = parameterization(name)
    probs = torch.distributions.Dirichlet(torch.ones(classes, dtype=torch.float64))
    torch.manual_seed(classes)
    wanted = probs.sample((50,))
    scores = kind.scores_from_probs(wanted)
    assert scores.shape == (50, kind.num_scores(classes))
    torch.testing.assert_close(kind.probs(scores), wanted, rtol=1e-9, atol=1e-12)


def test_the_start_of_the_paper_for_two_classes() -> None:
    theta = torch.tensor([1e-4, 0.02, 0.05, 0.1, 0.6], dtype=torch.float64)
    probs = torch.stack((1 - theta, theta), -1)
    log_odds = (theta / (1 - theta)).log()
    wanted = {
        "sigmoid": log_odds.unsqueeze(-1),
        "natural": (2 * torch.asin(2 * theta - 1)).unsqueeze(-1),
        "softmax": torch.stack((-log_odds / 2, log_odds / 2), -1),
        "sparsemax": torch.stack(((1 - 2 * theta) / 2, (2 * theta - 1) / 2), -1),
    }
    for name, scores in wanted.items():
        torch.testing.assert_close(parameterization(name).scores_from_probs(probs), scores, rtol=1e-9, atol=1e-12)


# ---- saturated scores ----


def expected_fisher(name: str, scores: torch.Tensor) -> torch.Tensor:
    """E[(d log p(class) / d score)^2] for every score: 0 where no class that can be drawn moves it."""
    kind, leaf = parameterization(name), scores.clone().requires_grad_()
    logs, probs = kind.log_probs(leaf), kind.probs(scores)
    total = torch.zeros_like(scores)
    for k in range(probs.shape[-1]):
        (gradient,) = torch.autograd.grad(logs[..., k].sum(), leaf, retain_graph=True)
        total += probs[..., k : k + 1] * gradient.square()
    return total


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_saturated_scores_are_those_without_gradient(name: str, classes: int) -> None:
    kind = parameterization(name)
    scores = drawn(name, classes, 500, scale=4.0)
    saturated = kind.saturated(scores)
    assert saturated.shape == scores.shape
    if name == "natural":  # a node that is not reached has no gradient either
        assert (expected_fisher(name, scores)[saturated] == 0).all()
        reached = ct.geometry.reach(scores, activation="natural") > 0
        assert (expected_fisher(name, scores)[reached & ~saturated] > 0).all()
    else:
        assert ((expected_fisher(name, scores) == 0) == saturated).all()
    can_saturate = name in ("natural", "sparsemax")
    assert saturated.any() == can_saturate
    assert not saturated.all()


def test_saturated_of_two_classes_by_hand() -> None:
    edge = torch.tensor([[-3.2], [-3.1], [0.0], [3.1], [3.2]], dtype=torch.float64)
    assert parameterization("natural").saturated(edge).squeeze(-1).tolist() == [True, False, False, False, True]
    pair = torch.tensor([[0.6, -0.6], [0.4, -0.4], [-0.6, 0.6]], dtype=torch.float64)
    assert parameterization("sparsemax").saturated(pair).tolist() == [[True, True], [False, False], [True, True]]
    assert not parameterization("softmax").saturated(100 * pair).any()
    assert parameterization("softmax").saturated(1000 * pair.float()).tolist()[0] == [True, True]


# ---- what coincides for two classes ----


def gradients_of_theta(name: str, theta: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The gradient of sum(wanted * theta) in the scores of two classes."""
    kind = parameterization(name)
    leaf = kind.scores_from_probs(torch.stack((1 - theta, theta), -1)).requires_grad_()
    loss = (wanted * kind.log_probs(leaf)[..., 1].exp()).sum()
    return torch.autograd.grad(loss, leaf)[0]


THETA = torch.tensor([0.003, 0.05, 0.2, 0.5, 0.7, 0.99], dtype=torch.float64)
WANTED = torch.tensor([1.0, -2.0, 0.3, 4.0, -0.7, 2.0], dtype=torch.float64)


def test_plain_softmax_is_sigmoid_with_its_gradient_on_both_scores() -> None:
    two, one = gradients_of_theta("softmax", THETA, WANTED), gradients_of_theta("sigmoid", THETA, WANTED)
    torch.testing.assert_close(two, torch.cat((-one, one), -1))
    assert math.isclose(float(one[3]), 1.0)  # theta (1 - theta) times 4


def test_softmax_of_fewer_scores_by_definition() -> None:
    anchored, haar = parameterization("softmax-anchored"), parameterization("softmax-haar")
    scores = torch.tensor([0.3, -1.1, 2.0], dtype=torch.float64)
    logits = torch.tensor([0.3, -1.1, 2.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(anchored.probs(scores), logits.softmax(-1))
    # The root of four classes divides {0, 1} from {2, 3}, its children 0 from 1 and 2 from 3; yes is the second half.
    root, half = 0.3 / 2, 0.5**0.5
    logits = torch.tensor(
        [-root + 1.1 * half, -root - 1.1 * half, root - 2.0 * half, root + 2.0 * half], dtype=torch.float64
    )
    torch.testing.assert_close(haar.probs(scores), logits.softmax(-1), rtol=0, atol=1e-7)  # the basis is float32


@pytest.mark.parametrize("classes", [2, 3, 5, 32])
def test_the_haar_basis_is_orthonormal_and_orthogonal_to_constants(classes: int) -> None:
    basis = _haar(classes)
    torch.testing.assert_close(basis @ basis.T, torch.eye(classes - 1), rtol=0, atol=1e-6)
    torch.testing.assert_close(basis.sum(1), torch.zeros(classes - 1), rtol=0, atol=1e-6)
    for row in basis:  # one value on each side of a node
        assert len(row[row > 0].unique()) == len(row[row < 0].unique()) == 1
