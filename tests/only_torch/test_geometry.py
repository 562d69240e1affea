"""Natural gradients, KL steps, distances and conversions in torch: dtypes, transforms, compilation, hostile inputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from only_torch import rows
from only_torch import test_hostile_inputs as hostility
from torch import Tensor

import catnat
import catnat.torch as ct
from catnat.torch import _dense, geometry

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
DAMPINGS = (0.0, 1e-3, 0.5)
# One tree of every way that masses are summed.
TREES = {name: rows.TREES[name] for name in ("balanced-8", "balanced-18", "chain-7", "huffman-20", "uneven-8")}
every_tree = pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=rows.seeded(seed)).to(dtype)


def pulled_back(function: Callable[[Tensor], Tensor], at: Tensor, gradient: Tensor) -> Tensor:
    """What ``function`` makes of a gradient in the backward pass; forward it must change nothing."""
    at = at.detach().clone().requires_grad_()
    value = function(at)
    rows.assert_equal(value.detach(), at.detach())
    return torch.autograd.grad(value, at, gradient)[0]


# ---- softmax's natural gradient ----


def softmax_fisher(logits: np.ndarray) -> np.ndarray:
    p = np.exp(logits - logits.max())
    p /= p.sum()
    return np.diag(p) - np.outer(p, p)


@pytest.mark.parametrize("size", [1, 2, 3, 10, 40])
def test_softmax_natural_gradient_is_the_pseudo_inverse(size):
    logits, gradient = normal(4, size), normal(4, size, seed=1)
    gradient -= gradient.mean(-1, keepdim=True)  # as that of every function of the probabilities
    for damping in DAMPINGS:
        got = pulled_back(lambda x, d=damping: ct.geometry.softmax_natural_gradient(x, damping=d), logits, gradient)
        for row, g, x in zip(logits.numpy(), gradient.numpy(), got.numpy(), strict=True):
            fisher = softmax_fisher(row)
            wanted = (
                np.linalg.solve(fisher + damping * np.eye(size), g)
                if damping
                else np.linalg.pinv(fisher, rcond=1e-12, hermitian=True) @ g
            )
            np.testing.assert_allclose(x, wanted, rtol=1e-9, atol=1e-10)


def test_softmax_natural_gradient_of_cross_entropy():
    """The step to a target has the form (p - t) / p less its mean."""
    logits, target = normal(5, 7).requires_grad_(), normal(5, 7, seed=1).softmax(-1)
    loss = -(target * ct.geometry.softmax_natural_gradient(logits).log_softmax(-1)).sum()
    (got,) = torch.autograd.grad(loss, logits)
    ratio = target / logits.detach().softmax(-1)
    rows.assert_close(got, ratio.mean(-1, keepdim=True) - ratio)


def test_classes_without_probability_do_not_count():
    logits = torch.tensor([0.3, -math.inf, 1.0, -2000.0, -0.5], dtype=torch.float64)
    living = torch.tensor([0, 2, 4])
    gradient = normal(5)
    for damping in DAMPINGS:
        got = pulled_back(lambda x, d=damping: ct.geometry.softmax_natural_gradient(x, damping=d), logits, gradient)
        alone = pulled_back(
            lambda x, d=damping: ct.geometry.softmax_natural_gradient(x, damping=d), logits[living], gradient[living]
        )
        rows.assert_close(got[living], alone)
        assert (got[[1, 3]] == 0).all()


def test_a_gradient_with_a_sum_is_that_of_normalized_logits():
    logits, gradient = normal(3, 6), normal(3, 6, seed=1)
    projected = gradient - logits.softmax(-1) * gradient.sum(-1, keepdim=True)
    for damping in DAMPINGS:
        got, wanted = (
            pulled_back(lambda x, d=damping: ct.geometry.softmax_natural_gradient(x, damping=d), logits, g)
            for g in (gradient, projected)
        )
        rows.assert_close(got, wanted)


# ---- natural_gradient ----


def test_saturated_nodes_get_nothing_even_from_other_parts_of_the_loss():
    scores = torch.tensor([4.0, 0.3, -0.2], dtype=torch.float64)  # the root always says yes: node 1 is never reached
    for damping in DAMPINGS:
        got = pulled_back(
            lambda s, d=damping: ct.geometry.natural_gradient(s, damping=d), scores, torch.ones_like(scores)
        )
        assert got[:2].tolist() == [0.0, 0.0]
        rows.assert_close(got[2], torch.tensor(1 / (0.25 + damping), dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_factor_is_bounded(dtype):
    tree, bound = catnat.chain(200), torch.finfo(dtype).tiny ** -0.5
    scores = torch.full((199,), 9.0, dtype=dtype)  # each later node is reached e^-9 times as often
    got = pulled_back(lambda s: ct.geometry.natural_gradient(s, tree, "sigmoid"), scores, torch.ones_like(scores))
    assert got.isfinite().all()
    assert math.isclose(float(got.max()), bound, rel_tol=1e-5)
    assert (got[-1] == 0).all()  # its reach has underflowed


@every_dtype
@pytest.mark.parametrize("tree", rows.FEW_TREES.values(), ids=rows.FEW_TREES)
def test_natural_gradient_in_every_dtype(tree, dtype):
    """Half precision divides in float32; only what comes in and goes out is rounded."""
    for activation in rows.ACTIVATIONS.values():
        scores = rows.inside(tree, activation, 5, dtype=dtype)
        gradient = normal(5, tree.num_nodes, dtype=dtype)
        got = pulled_back(lambda s, a=activation: ct.geometry.natural_gradient(s, tree, a), scores, gradient)
        assert got.dtype == dtype
        limits = torch.finfo(dtype)
        exact = gradient.double() / ct.geometry.fisher_diagonal(scores.double(), tree, activation)
        wanted = exact.clamp(-limits.max / 4, limits.max / 4)
        tolerance = max(4 * limits.eps, 1e-4 if dtype.itemsize < 8 else 1e-10)
        torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)


@every_dtype
def test_softmax_natural_gradient_in_every_dtype(dtype):
    logits, gradient = normal(5, 7, dtype=dtype), normal(5, 7, seed=1, dtype=dtype)
    got = pulled_back(ct.geometry.softmax_natural_gradient, logits, gradient)
    wanted = pulled_back(ct.geometry.softmax_natural_gradient, logits.double(), gradient.double())
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), wanted, rtol=8 * torch.finfo(dtype).eps, atol=1e-5)


def test_autocast_leaves_the_dtype():
    scores = torch.zeros(3, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert ct.geometry.natural_gradient(scores).dtype == torch.bfloat16
        assert ct.geometry.softmax_natural_gradient(scores).dtype == torch.bfloat16
        assert ct.geometry.kl_step(scores, scores + 1, 0.1).dtype == torch.bfloat16
        assert ct.geometry.fisher_rao_distance(scores, scores).dtype == torch.float32
        assert ct.scores_from_logits(scores).dtype == torch.float32


def test_the_preconditioner_is_a_constant_of_the_second_derivative():
    """The Hessian of L(natural_gradient(s)) is D H D, with D the inverse Fisher matrix."""
    tree = catnat.balanced(5)
    scores, target = rows.inside(tree), normal(5).softmax(-1)

    def loss(s):
        return -(target * ct.log_catnat(s, tree)).sum()

    factor = torch.diag(1 / ct.geometry.fisher_diagonal(scores, tree))
    hessian = torch.autograd.functional.hessian(loss, scores)
    got = torch.autograd.functional.hessian(lambda s: loss(ct.geometry.natural_gradient(s, tree)), scores)
    rows.assert_close(got, factor @ hessian @ factor)
    functional = torch.func.hessian(lambda s: loss(ct.geometry.natural_gradient(s, tree)))(scores)
    rows.assert_close(functional, got)


def test_forward_mode_has_the_same_factor():
    tree = catnat.balanced(6)
    scores, tangent = rows.inside(tree), normal(5)
    value, got = torch.func.jvp(lambda s: ct.geometry.natural_gradient(s, tree), (scores,), (tangent,))
    rows.assert_equal(value, scores)
    rows.assert_close(got, tangent / ct.geometry.fisher_diagonal(scores, tree))
    forward, backward = (
        mode(ct.geometry.softmax_natural_gradient)(scores) for mode in (torch.func.jacfwd, torch.func.jacrev)
    )
    rows.assert_close(forward, backward)


# ---- kl_step ----


@every_dtype
@pytest.mark.parametrize("activation", ["sigmoid", "natural", "reflect-isotropic"])
def test_kl_step_in_every_dtype(activation, dtype):
    tree, kind = catnat.balanced(18), rows.ACTIVATIONS[activation]
    scores = rows.inside(tree, kind, 20, dtype=dtype, margin=0.2)
    exact = scores.double().requires_grad_()
    (gradient,) = torch.autograd.grad((ct.catnat(exact, tree, kind) * normal(20, 18)).sum(), exact)
    for kl in (1e-3, torch.linspace(1e-3, 1e-2, 20)):
        step = ct.geometry.kl_step(scores, gradient.to(dtype), kl, tree, kind)
        assert step.dtype == dtype
        assert not step.requires_grad
        found = ct.kl_divergence(exact.detach(), exact.detach() + step.double(), tree, kind)
        wanted = torch.as_tensor(kl).expand(20).double()
        torch.testing.assert_close(found, wanted, rtol=max(0.01, 8 * torch.finfo(dtype).eps), atol=0)


def test_small_divergences_in_single_precision():
    """Where the computed divergence is rounding error, the second-order length stands."""
    tree = catnat.balanced(32)
    scores, gradient = rows.inside(tree, "natural", 50, margin=0.2), normal(50, 31)
    for kl in (1e-5, 1e-7, 1e-9):
        step = ct.geometry.kl_step(scores.float(), gradient.float(), kl, tree).double()
        found = (ct.geometry.fisher_diagonal(scores, tree) * step.square()).sum(-1) / 2
        torch.testing.assert_close(found, torch.full_like(found, kl), rtol=0.03, atol=0)


def test_no_direction_no_step():
    scores = torch.tensor([[0.5, 0.1, 0.0], [4.0, 0.3, 9.0], [0.5, 0.1, 0.0], [4.0, 0.0, 0.0]])
    gradient = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1e-30, 0.0, 1e-32], [3.0, 1.0, 1e-20]])
    step = ct.geometry.kl_step(scores, gradient, 0.01)
    assert (step[:2] == 0).all()  # no gradient; all saturated
    assert (ct.kl_divergence(scores, scores + step)[2:] - 0.01).abs().max() < 1e-4  # however small it is
    assert step[3, :2].tolist() == [0.0, 0.0]
    assert ct.geometry.kl_step(torch.zeros(2, 0), torch.zeros(2, 0), 0.1).shape == (2, 0)


def test_at_an_edge_the_step_is_bounded():
    """A node near its edge cannot move the distribution by much: the step stops at four times its first length."""
    for activation, inside in ((ct.natural(), math.pi - 1e-3), (ct.sigmoid(), 40.0)):
        scores = torch.tensor([inside], dtype=torch.float64)
        step = ct.geometry.kl_step(scores, torch.tensor([-1.0], dtype=torch.float64), 0.1, None, activation)
        first = math.sqrt(2 * 0.1 / float(ct.geometry.fisher_diagonal(scores, None, activation)))
        assert 0 < float(step) <= 4 * first
        assert float(ct.kl_divergence(scores, scores + step, None, activation)) < 0.1


def test_gradient_descent_by_kl_steps():
    """A trust region: every step costs the same divergence, and the loss goes down."""
    target = torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25], dtype=torch.float64)
    scores = torch.zeros(4, dtype=torch.float64)
    losses = []
    for _ in range(40):
        leaf = scores.clone().requires_grad_()
        loss = -(target * ct.log_catnat(leaf)).sum()
        losses.append(loss.item())
        scores = scores + ct.geometry.kl_step(scores, torch.autograd.grad(loss, leaf)[0], 1e-3)
    least = float(torch.special.entr(target).sum())
    far = [loss for loss in losses if loss - least > 2e-3]  # nearer than a step it goes to and fro
    assert all(after < before for before, after in itertools.pairwise(far))
    assert min(losses) - least < 1e-3


# ---- fisher_rao_distance ----


@every_dtype
def test_distance_in_every_dtype(dtype):
    tree = catnat.balanced(11)
    p, q = rows.inside(tree, "natural", 2, 6, dtype=dtype)
    got = ct.geometry.fisher_rao_distance(p, q, tree)
    assert got.dtype == dtype
    wanted = ct.geometry.fisher_rao_distance(p.double(), q.double(), tree)
    torch.testing.assert_close(got.double(), wanted, rtol=4 * torch.finfo(dtype).eps, atol=1e-6)


def test_the_distance_of_opposites_is_pi():
    p, q = torch.tensor([9.0, 0.0, 0.0]), torch.tensor([-9.0, 1.0, 2.0])
    assert float(ct.geometry.fisher_rao_distance(p, q)) == pytest.approx(math.pi)
    assert float(ct.geometry.fisher_rao_distance(p.double(), q.double())) <= math.pi
    assert float(ct.geometry.fisher_rao_distance(torch.zeros(0), torch.zeros(0))) == 0


def test_the_gradient_of_the_distance():
    for tree in TREES.values():
        p, q = rows.inside(tree, "natural", 2, 2)
        p = p.requires_grad_()
        distance = ct.geometry.fisher_rao_distance(p, p.detach(), tree)
        (gradient,) = torch.autograd.grad(distance.sum(), p, create_graph=True)
        assert (gradient == 0).all()
        assert torch.autograd.gradcheck(lambda x, q=q, t=tree: ct.geometry.fisher_rao_distance(x, q, t), p)


# ---- conversions ----


def masses_by_hand(logs: Tensor, tree: catnat.Tree) -> tuple[Tensor, Tensor]:
    """One log-sum-exp per side of every node, over the classes whose path takes that branch."""
    sides: tuple[list[list[int]], list[list[int]]] = tuple([[] for _ in range(tree.num_nodes)] for _ in range(2))
    for k in range(tree.num_classes):
        for node, bit in zip(*tree.path(k), strict=True):
            sides[bit][node].append(k)
    no, yes = (torch.stack([logs[..., classes].logsumexp(-1) for classes in side], -1) for side in sides)
    return no, yes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "tree",
    [tree for tree in rows.TREES.values() if tree.num_nodes],
    ids=repr,
)
def test_log_masses_are_log_sums(tree, dtype):
    tolerance = 20 * torch.finfo(dtype).eps
    for spread in (1.0, 50.0, 5000.0):
        logs = (spread * normal(3, tree.num_classes)).to(dtype).requires_grad_()
        weights = normal(2, 3, tree.num_nodes, seed=1, dtype=dtype)
        found = []
        for function in (_dense.log_masses, masses_by_hand):
            sides = torch.stack(function(logs, tree))
            (gradient,) = torch.autograd.grad((sides * weights).sum(), logs)
            found.append((sides.detach(), gradient))
        (got, got_gradient), (wanted, wanted_gradient) = found
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)
        # A difference of large numbers keeps fewer digits, and the gradient is an exponential of one.
        torch.testing.assert_close(got_gradient, wanted_gradient, rtol=1e-9, atol=100 * spread * tolerance)
        impossible = torch.rand(3, tree.num_classes, generator=rows.seeded(2)) < 0.7
        holes = logs.detach().masked_fill(impossible, -math.inf)
        got, wanted = (torch.stack(function(holes, tree)) for function in (_dense.log_masses, masses_by_hand))
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


@every_tree
@pytest.mark.parametrize("activation", [*rows.ACTIVATIONS.values(), rows.OWN], ids=[*rows.ACTIVATIONS, "own"])
def test_conversions_are_differentiable(tree, activation):
    logits = normal(2, tree.num_classes).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: ct.scores_from_logits(x, tree, activation), logits, rtol=1e-4, atol=1e-6, eps=1e-5
    )
    # Through probabilities the same, by the chain rule.
    direct = ct.scores_from_logits(logits, tree, activation)
    by_probs = ct.scores_from_probs(logits.softmax(-1), tree, activation)
    torch.testing.assert_close(by_probs, direct, rtol=1e-9, atol=1e-9)
    gradients = [torch.autograd.grad(weighted(value), logits)[0] for value in (direct, by_probs)]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-8)


def weighted(value: Tensor) -> Tensor:
    """A loss that tells the entries apart."""
    return (value * torch.linspace(-1, 2, value.numel(), dtype=value.dtype).view(value.shape)).sum()


@every_tree
def test_second_derivatives_of_conversions(tree):
    logits = normal(1, tree.num_classes).requires_grad_()
    for activation in ("natural", "sigmoid"):
        assert torch.autograd.gradgradcheck(
            lambda x, a=activation: ct.scores_from_logits(x, tree, a), logits, rtol=1e-4, atol=1e-6, eps=1e-5
        )
    even = torch.zeros(1, tree.num_classes, dtype=torch.float64, requires_grad=True)  # all sides tie
    assert torch.autograd.gradgradcheck(lambda x: ct.scores_from_logits(x, tree, "sigmoid"), even, eps=1e-5)


@every_dtype
@every_tree
def test_conversions_in_every_dtype(tree, dtype):
    logits = normal(4, tree.num_classes, dtype=dtype)
    wanted = logits.double().softmax(-1)
    tolerance = 8 * torch.finfo(dtype).eps
    for activation in rows.ACTIVATIONS.values():
        for scores in (
            ct.scores_from_logits(logits, tree, activation),
            ct.scores_from_probs(wanted.to(dtype), tree, activation),
        ):
            assert scores.dtype == dtype
            got = ct.catnat(scores.double(), tree, activation)
            torch.testing.assert_close(got, wanted, rtol=0, atol=tolerance)


def test_the_default_tree_is_balanced():
    logits = normal(3, 11)
    rows.assert_equal(ct.scores_from_logits(logits), ct.scores_from_logits(logits, catnat.balanced(11)))
    probs = logits.softmax(-1)
    rows.assert_equal(ct.scores_from_probs(probs), ct.scores_from_probs(probs, catnat.balanced(11)))
    assert ct.scores_from_logits(torch.zeros(2, 1)).shape == (2, 0)
    assert ct.scores_from_probs(torch.ones(1)).shape == (0,)


def test_a_certain_class_sits_at_the_edge():
    certain = torch.tensor([0.0, 0.0, 1.0, 0.0])
    natural, sigmoid = (ct.scores_from_probs(certain, activation=kind) for kind in ("natural", "sigmoid"))
    torch.testing.assert_close(natural, torch.tensor([math.pi, 0.0, -math.pi]))
    rows.assert_equal(sigmoid[1], torch.tensor(0.0))
    assert sigmoid.isfinite().all()
    torch.testing.assert_close(ct.catnat(sigmoid, activation="sigmoid"), certain)


# ---- hostile inputs ----


def through_natural_gradient(scores: Tensor, tree: catnat.Tree, activation: ct.Activation) -> Tensor:
    return ct.log_catnat(ct.geometry.natural_gradient(scores, tree, activation), tree, activation)


@every_dtype
@every_tree
def test_first_order_on_hostile_scores(tree, dtype):
    for activation in rows.ACTIVATIONS.values():
        scores = hostility.hostile(tree, activation, dtype)
        leaf = scores.clone().requires_grad_()
        value = through_natural_gradient(leaf, tree, activation)
        rows.assert_equal(ct.geometry.natural_gradient(scores, tree, activation), scores + 0)
        hostility.blame(torch.autograd.grad(value, leaf, hostility.signs(value))[0], scores, "gradient")
        gradient = hostility.signs(scores)
        step = ct.geometry.kl_step(scores, gradient, 1e-2, tree, activation)
        hostility.blame(step, scores, "step")


@every_dtype
@every_tree
def test_distance_between_hostile_scores(tree, dtype):
    def distance(scores, tree, activation):
        return ct.geometry.fisher_rao_distance(scores, scores.flip(0), tree, activation)

    hostility.check_all({"fisher_rao_distance": distance}, tree, dtype)


def hostile_logits(num_classes: int, dtype: torch.dtype) -> Tensor:
    limits = torch.finfo(dtype)
    most = min(1e30, limits.max)
    special = torch.tensor(
        [0.0, 1.0, -1.0, 50.0, -50.0, 1e4, -1e4, most, -most, limits.max, limits.min, limits.tiny, -math.inf],
        dtype=torch.float64,
    ).to(dtype)
    mixed = special[torch.randint(len(special), (60, num_classes), generator=rows.seeded(0))]
    flat = special[:-1].unsqueeze(-1).expand(-1, num_classes)
    few = torch.where(torch.rand(30, num_classes, generator=rows.seeded(1)) < 0.9, -math.inf, mixed[:30])
    few[:, 0] = 1.0
    mixed[:, 0] = mixed[:, 0].clamp(min=limits.min)  # at least one class is possible
    return torch.cat([flat, mixed, few])


@every_dtype
@every_tree
def test_conversions_of_hostile_logits(tree, dtype):
    logits = hostile_logits(tree.num_classes, dtype)
    for activation in rows.ACTIVATIONS.values():
        leaf = logits.clone().requires_grad_()
        scores = ct.scores_from_logits(leaf, tree, activation)
        hostility.blame(scores, logits, "scores")
        (gradient,) = torch.autograd.grad(scores, leaf, hostility.signs(scores), create_graph=True)
        hostility.blame(gradient, logits, "gradient")
        if gradient.requires_grad:
            (second,) = torch.autograd.grad(gradient, leaf, hostility.signs(gradient), allow_unused=True)
            hostility.blame(second, logits, "second-order gradient")


@every_dtype
def test_softmax_natural_gradient_of_hostile_logits(dtype):
    logits = hostile_logits(9, dtype)
    for damping in DAMPINGS:
        gradient = hostility.signs(logits)
        got = pulled_back(lambda x, d=damping: ct.geometry.softmax_natural_gradient(x, damping=d), logits, gradient)
        hostility.blame(got, logits, "gradient")


@every_tree
def test_probabilities_with_zeros_and_denormals(tree):
    for dtype in (torch.float32, torch.float64):
        limits = torch.finfo(dtype)
        small = torch.tensor([0.0, limits.smallest_normal * limits.eps, limits.tiny, 1e-20, 0.0, 0.3], dtype=dtype)
        probs = small[torch.randint(6, (20, tree.num_classes), generator=rows.seeded(0))]
        probs[:, -1] += 1
        probs = (probs / probs.sum(-1, keepdim=True)).requires_grad_()
        for activation in rows.ACTIVATIONS.values():
            scores = ct.scores_from_probs(probs, tree, activation)
            hostility.blame(scores, probs, "scores")
            hostility.blame(torch.autograd.grad(scores.sum(), probs)[0], probs, "gradient")


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
    for name, activation in (("balanced-18", "natural"), ("chain-7", "sigmoid-isotropic"), ("huffman-20", "reflect")):
        tree, kind = rows.TREES[name], rows.ACTIVATIONS[activation]
        scores, logits = rows.inside(tree, kind, 4), normal(4, tree.num_classes)
        wanted = function(scores, logits, tree, kind)
        rows.assert_close(torch.func.vmap(lambda s, x, t=tree, k=kind: function(s, x, t, k))(scores, logits), wanted)


COMPILED = {
    ("balanced-18", "natural"): ("natural_gradient", "scores_from_logits"),
    ("chain-7", "sigmoid-isotropic"): ("softmax_natural_gradient", "kl_step", "scores_from_logits"),
    ("huffman-20", "reflect"): ("fisher_rao_distance", "scores_from_probs"),
}


def test_every_function_is_compiled_somewhere():
    assert {name for names in COMPILED.values() for name in names} == set(FUNCTIONS)


@pytest.mark.parametrize(("tree", "activation"), COMPILED)
def test_one_graph_and_any_batch(tree, activation, monkeypatch):
    monkeypatch.setattr(geometry, "_ROUNDS", 2)  # each round is traced once more
    for name in COMPILED[tree, activation]:
        same_as_eager(FUNCTIONS[name], rows.TREES[tree], rows.ACTIVATIONS[activation])


def same_as_eager(function: Callable[..., Tensor], tree: catnat.Tree, activation: ct.Activation) -> None:
    torch._dynamo.reset()
    fast = torch.compile(lambda s, x: function(s, x, tree, activation), fullgraph=True, backend="aot_eager")
    for batch in (3, 5):
        scores = rows.inside(tree, activation, batch, dtype=torch.float32, seed=batch).requires_grad_()
        logits = normal(batch, tree.num_classes, dtype=torch.float32).requires_grad_()
        torch._dynamo.mark_dynamic(scores, 0)
        torch._dynamo.mark_dynamic(logits, 0)
        got, wanted = fast(scores, logits), function(scores, logits, tree, activation)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
        if wanted.requires_grad:
            inputs = (scores, logits)
            both = [torch.autograd.grad(weighted(value), inputs, allow_unused=True) for value in (got, wanted)]
            for one, other in zip(*both, strict=True):
                if other is not None:
                    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * max(1.0, float(other.abs().max())))


def test_the_default_tree_inside_a_graph():
    torch._dynamo.reset()
    logits = normal(3, 6)
    fast = torch.compile(ct.scores_from_logits, fullgraph=True, backend="aot_eager")
    rows.assert_close(fast(logits), ct.scores_from_logits(logits))


def test_fake_and_meta_tensors():
    assert ct.scores_from_probs(torch.ones(3, 5, device="meta"), catnat.huffman([5, 4, 3, 2, 1])).shape == (3, 4)
    assert ct.scores_from_logits(torch.ones(3, 5, device="meta"), catnat.chain(5)).shape == (3, 4)
    assert ct.geometry.natural_gradient(torch.ones(3, 5, device="meta")).shape == (3, 5)
    assert ct.geometry.fisher_rao_distance(torch.ones(3, 5, device="meta"), torch.ones(5, device="meta")).shape == (3,)
    assert ct.geometry.kl_step(torch.ones(3, 5, device="meta"), torch.ones(3, 5, device="meta"), 0.1).shape == (3, 5)


# ---- errors ----


@pytest.mark.parametrize("damping", [-0.1, math.inf, math.nan])
def test_damping_is_a_finite_positive_number(damping):
    for function in (ct.geometry.natural_gradient, ct.geometry.softmax_natural_gradient):
        with pytest.raises(ValueError, match=r"`damping` is .*at least 0"):
            function(torch.zeros(3), damping=damping)


def test_softmax_takes_floating_point_logits():
    with pytest.raises(TypeError, match=r"torch\.as_tensor\(logits\)"):
        ct.geometry.softmax_natural_gradient([0.0, 1.0])
    for bad in (torch.zeros(3, dtype=torch.int64), torch.tensor(0.0)):
        with pytest.raises(TypeError, match="one logit per class"):
            ct.geometry.softmax_natural_gradient(bad)


def test_the_divergence_of_a_step_is_positive():
    scores = torch.zeros(2, 3)
    for kl in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="`kl` is"):
            ct.geometry.kl_step(scores, scores, kl)
        with pytest.raises(ValueError, match="every row"):
            ct.geometry.kl_step(scores, scores, torch.tensor([0.1, kl]))
    for kl in (torch.tensor(0.1), torch.ones(3), torch.ones(2, 1)):
        with pytest.raises(ValueError, match=r"batch shape \(2,\)"):
            ct.geometry.kl_step(scores, scores, kl)
    with pytest.raises(ValueError, match=r"`gradient` has shape \(3,\)"):
        ct.geometry.kl_step(scores, torch.zeros(3), 0.1)
    with pytest.raises(TypeError, match="gradient"):
        ct.geometry.kl_step(scores, None, 0.1)
    with pytest.raises(TypeError, match="scores"):
        ct.geometry.kl_step([0.0], scores, 0.1)


def test_widths_of_conversions():
    for function, name in ((ct.scores_from_probs, "probs"), (ct.scores_from_logits, "logits")):
        with pytest.raises(ValueError, match=f"`{name}` has 4 entries") as caught:
            function(torch.full((2, 4), 0.25), catnat.balanced(5))
        assert "5 classes" in str(caught.value)
        assert "not one per node" in str(caught.value)
        with pytest.raises(TypeError, match=rf"torch\.as_tensor\({name}\)"):
            function([0.5, 0.5])
        for bad in (torch.ones(2, 3, dtype=torch.int64), torch.tensor(1.0), torch.ones(2, 0)):
            with pytest.raises(TypeError, match="one value per class"):
                function(bad)
        with pytest.raises(TypeError, match=r"catnat\.balanced\(2\)"):
            function(torch.full((2,), 0.5), "balanced")


def test_probabilities_are_probabilities():
    for bad in ([0.5, 0.6, -0.1], [0.5, math.nan, 0.5]):
        with pytest.raises(ValueError, match="negative number or NaN"):
            ct.scores_from_probs(torch.tensor(bad))
    with pytest.raises(ValueError, match=r"sum to 1.*0\.5 away"):
        ct.scores_from_probs(torch.tensor([[0.5, 0.5], [1.0, 0.5]]))
    ct.scores_from_probs(normal(5, 1000).float().softmax(-1).double())  # rounded elsewhere: near enough
    for bad in (math.inf, math.nan):
        with pytest.raises(ValueError, match=r"NaN or \+inf"):
            ct.scores_from_logits(torch.tensor([0.0, bad]))


# ---- masks ----


@pytest.mark.parametrize("activation", ["sigmoid", "natural", "reflect-isotropic"])
@pytest.mark.parametrize("name", ["balanced-18", "chain-7", "huffman-20", "balanced-100"])
def test_masks_are_those_of_the_pruned_distribution(name, activation):
    """The natural gradient solves with the Fisher matrix after a mask, by definition; kl_step has its KL."""
    tree, kind = rows.TREES[name], rows.ACTIVATIONS[activation]
    mask = torch.rand(tree.num_classes, generator=rows.seeded(1)) < 0.4
    mask[:2] = True
    scores = 0.3 * rows.inside(tree, activation, seed=2)

    def logs(s):
        return ct.Catnat(s, tree, kind, mask=mask, mask_mode="prune").logits[mask]

    gradients, probs = torch.autograd.functional.jacobian(logs, scores), logs(scores).exp()
    fisher = torch.einsum("k,ki,kj->ij", probs, gradients, gradients)
    weights = torch.randn(int(mask.sum()), dtype=torch.float64, generator=rows.seeded(3))

    def loss(s):
        return (weights * logs(s).exp()).sum()

    leaf = scores.clone().requires_grad_()
    (plain,) = torch.autograd.grad(loss(leaf), leaf)
    (got,) = torch.autograd.grad(loss(ct.geometry.natural_gradient(leaf, tree, kind, mask=mask)), leaf)
    rows.assert_close(got, torch.linalg.pinv(fisher, rtol=1e-12) @ plain, rtol=1e-8, atol=1e-10)

    step = ct.geometry.kl_step(scores, plain, 1e-3, tree, kind, mask=mask)
    there = ct.Catnat(scores + step, tree, kind, mask=mask, mask_mode="prune").logits[mask]
    divergence = (probs * (logs(scores) - there)).sum()
    assert math.isclose(float(divergence), 1e-3, rel_tol=0.01)
    assert (step[torch.diagonal(fisher) < 1e-14] == 0).all()
    assert torch.dot(step, plain) < 0
