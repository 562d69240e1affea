"""Derivatives: against finite differences, under torch.func's transforms, exactly zero at saturated nodes."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from only_torch import functions, rows
from only_torch.functions import Function
from torch import Tensor
from torch.autograd.gradcheck import gradcheck, gradgradcheck
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import catnat
import catnat.torch as ct

pytestmark = pytest.mark.filterwarnings("ignore::catnat.EdgeWarning")


def some_classes(tree: catnat.Tree, *shape: int) -> Tensor:
    return torch.randint(tree.num_classes, shape, generator=rows.seeded(9))


FUNCTIONS = {
    **functions.FUNCTIONS,
    "RelaxedOneHotCatnat.rsample": functools.partial(functions.relaxed, 0.7),
}
PAIRS = [
    # Every activation twice, and every way that a tree is computed.
    (catnat.balanced(3), ct.sigmoid()),
    (catnat.chain(4), ct.natural()),
    (catnat.huffman([8, 4, 2, 1, 1]), rows.ACTIVATIONS["natural-narrow"]),
    (catnat.balanced(5).with_prior([1.0, 4.0, 0.5, 2.0, 1.0]), rows.ACTIVATIONS["natural-wide"]),
    (catnat.balanced(4), rows.OWN),
    (rows.TREES["huffman-100"], ct.natural()),
    (rows.TREES["chain-100"], ct.sigmoid()),
    (rows.TREES["balanced-100"], rows.ACTIVATIONS["natural-narrow"]),
    (catnat.balanced(128), ct.natural()),
]


# ---- against finite differences ----


@pytest.mark.parametrize(("tree", "activation"), PAIRS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_first_and_second_derivatives(name, tree, activation):
    """Every entry on small trees, a random direction on the others; forward mode beside reverse mode."""
    scores = rows.inside(tree, activation, 2, margin=0.25)
    lower, upper = map(torch.as_tensor, rows.bounds(tree, activation))
    units = (upper - lower) / 4  # one finite step then suits every node

    def function(x: Tensor) -> Tensor:
        return FUNCTIONS[name](x * units, tree, activation)

    # A user's own activation has its Fisher information by forward mode, which does not nest.
    at, own, large = (scores / units).requires_grad_(), activation is rows.OWN, tree.num_classes > 5
    forward = not (own and name == "fisher_diagonal")
    assert gradcheck(function, at, atol=1e-6, rtol=1e-5, fast_mode=large, check_forward_ad=forward)
    assert gradgradcheck(function, at, atol=1e-4, fast_mode=True, check_fwd_over_rev=not own)


# ---- torch.func ----


@pytest.fixture(params=[*rows.FEW_TREES, "huffman-100", "chain-100"])
def tree(request):
    return rows.TREES[request.param]


KINDS = {name: rows.ACTIVATIONS[name] for name in rows.FEW_ACTIVATIONS}

# Functions of one row of scores, for transforms to batch.
ROWWISE: dict[str, Function] = {
    "catnat": ct.catnat,
    "log_catnat": ct.log_catnat,
    "log_prob": lambda s, *args: ct.log_prob(s, torch.tensor([1, 0, 1]), *args),
    "entropy": ct.entropy,
    "kl_divergence": lambda s, *args: ct.kl_divergence(s, s.flip(-1), *args),
    "cross_entropy": lambda s, *args: ct.cross_entropy(s, torch.tensor(1), *args),
    "cross_entropy-smooth": lambda s, *args: ct.cross_entropy(s, torch.tensor(1), *args, label_smoothing=0.1),
    "reach": ct.geometry.reach,
    "fisher_diagonal": ct.geometry.fisher_diagonal,
    "Catnat.log_prob": lambda s, *args: ct.Catnat(s, *args, validate_args=False).log_prob(torch.tensor(1)),
    "Catnat.entropy": lambda s, *args: ct.Catnat(s, *args).entropy(),
    "OneHotCatnat.mean": lambda s, *args: ct.OneHotCatnat(s, *args).mean,
    **functions.GEOMETRY,
}


def test_vmap_is_the_batch_over_any_axis(tree):
    for name, activation in KINDS.items():
        scores = rows.around(tree, 4)
        for label, function in {**ROWWISE, "mode": ct.mode, "saturated": ct.geometry.saturated}.items():
            wanted = torch.stack([function(row, tree, activation) for row in scores])
            for axis, moved in ((0, scores), (1, scores.t()), (-1, scores.t())):
                got = vmap(lambda s, f=function, a=activation: f(s, tree, a), in_dims=axis)(moved)
                message = f"{label}, {name}, in_dims={axis}"
                torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-13, msg=lambda m, x=message: f"{x}: {m}")


def test_vmap_nests_and_puts_results_on_any_axis(tree):
    scores = rows.around(tree, 2, 3)
    for function in (ct.log_catnat, ct.entropy, ct.mode):
        wanted = function(scores, tree)
        rows.assert_close(vmap(vmap(lambda s, f=function: f(s, tree)))(scores), wanted, 1e-12)
        swapped = vmap(vmap(lambda s, f=function: f(s, tree), in_dims=1, out_dims=-1), in_dims=-1, out_dims=-1)
        rows.assert_close(swapped(scores.permute(2, 1, 0)).movedim((-1, -2), (0, 1)), wanted, 1e-12)


def test_vmap_over_both_arguments(tree):
    scores, other, classes = rows.around(tree, 4), rows.around(tree, 4, seed=1), some_classes(tree, 4)
    got = vmap(lambda s, c: ct.log_prob(s, c, tree))(scores, classes)
    rows.assert_close(got, ct.log_prob(scores, classes, tree), 1e-12)
    # One row, many classes; many rows, one class.
    got = vmap(lambda c: ct.log_prob(scores[0], c, tree))(classes)
    rows.assert_close(got, ct.log_prob(scores[0], classes, tree), 1e-12)
    got = vmap(lambda s: ct.log_prob(s, classes[0], tree))(scores)
    rows.assert_close(got, ct.log_prob(scores, classes[0], tree), 1e-12)
    got = vmap(lambda p, q: ct.kl_divergence(p, q, tree), in_dims=(0, None))(scores, other[0])
    rows.assert_close(got, ct.kl_divergence(scores, other[:1], tree), 1e-12)
    got = vmap(lambda s, c: ct.Catnat(s, tree, validate_args=False).log_prob(c))(scores, classes)  # pytorch#92033
    rows.assert_close(got, ct.log_prob(scores, classes, tree), 1e-12)


def test_grad_of_vmap_is_the_gradient_of_the_batch(tree):
    scores = rows.inside(tree, "natural", 3, margin=0.2)
    for name in ("log_catnat", "entropy", "kl_divergence", "fisher_diagonal"):

        def total(s, name=name):
            return vmap(lambda row: ROWWISE[name](row, tree, ct.natural()))(s).pow(2).sum()

        at = scores.clone().requires_grad_()
        (wanted,) = torch.autograd.grad(ROWWISE[name](at, tree, ct.natural()).pow(2).sum(), at)
        rows.assert_close(grad(total)(scores), wanted)


@pytest.mark.parametrize(
    "draw",
    [
        lambda s: ct.estimators.gumbel_softmax(ct.Catnat(s, validate_args=False), 0.5, hard=True),
        lambda s: ct.OneHotCatnatStraightThrough(s, validate_args=False).rsample(),
        lambda s: ct.MultiCatnat(s, [2, 3], validate_args=False).rsample_one_hot(),
    ],
)
def test_one_hot_draws_under_vmap_of_grad(draw):
    got = vmap(grad(lambda s: (draw(s) ** 2).sum()), randomness="different")(torch.zeros(5, 3))
    assert got.shape == (5, 3)
    assert torch.isfinite(got).all()


def test_vmap_of_sampling(tree):
    """Different randomness in every slice, within the distribution; a class of probability 0 is not drawn."""
    scores = rows.inside(tree, "sigmoid", 1, margin=0.3).expand(400, -1)
    torch.manual_seed(0)
    draw = vmap(lambda s: ct.sample(s, tree, sample_shape=(5,)), randomness="different")
    drawn = draw(scores)
    assert drawn.shape == (400, 5)
    rows.chi_square(drawn, ct.catnat(scores[0], tree))
    several = vmap(lambda s: ct.sample_without_replacement(s, 2, tree), randomness="different")(scores)
    assert several.shape == (400, 2)
    assert (several[:, 0] != several[:, 1]).all()
    rows.chi_square(several[:, 0], ct.catnat(scores[0], tree))


def test_jacobians_agree(tree):
    """Reverse mode, forward mode and row by row give one Jacobian; nested they give one Hessian."""
    for activation in KINDS.values():
        scores = rows.inside(tree, activation, margin=0.2)
        for name in ("catnat", "log_catnat", "log_prob", "entropy", "kl_divergence", "reach", "fisher_diagonal"):
            if name == "fisher_diagonal" and tree.num_classes > 64:
                continue

            def function(s, name=name, activation=activation):
                return ROWWISE[name](s, tree, activation)

            wanted = torch.autograd.functional.jacobian(function, scores)
            rows.assert_close(torch.autograd.functional.jacobian(function, scores, vectorize=True), wanted)
            rows.assert_close(jacrev(function)(scores), wanted)
            rows.assert_close(jacfwd(function)(scores), wanted)
            direction = torch.linspace(-1, 1, tree.num_nodes, dtype=torch.float64)
            value, tangent = jvp(function, (scores,), (direction,))
            rows.assert_close(value, function(scores))
            rows.assert_close(tangent, (wanted * direction).sum(-1))
            cotangent = torch.ones_like(value)
            rows.assert_close(vjp(function, scores)[1](cotangent)[0], wanted.reshape(-1, tree.num_nodes).sum(0))


def test_hessians_agree(tree):
    for activation in KINDS.values():
        scores = rows.inside(tree, activation, margin=0.2)
        for name in ("cross_entropy", "entropy", "kl_divergence"):

            def function(s, name=name, activation=activation):
                return ROWWISE[name](s, tree, activation)

            wanted = torch.autograd.functional.hessian(function, scores)
            rows.assert_close(wanted, wanted.t(), 1e-8, 1e-10)
            rows.assert_close(hessian(function)(scores), wanted, 1e-8, 1e-10)
            rows.assert_close(jacrev(jacrev(function))(scores), wanted, 1e-8, 1e-10)
            rows.assert_close(jacfwd(jacfwd(function))(scores), wanted, 1e-8, 1e-10)


def test_forward_modes_nest_through_half_precision():
    def function(x, dtype=torch.bfloat16):
        return ct.log_catnat((x**2).to(dtype), None, "natural").float()[0]

    x = torch.tensor([0.5, -0.7, 0.3])
    wanted = hessian(lambda x: function(x, torch.float32))(x)
    torch.testing.assert_close(jacfwd(jacfwd(function))(x), wanted, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("kind", [ct.CatnatLinear, ct.CatnatHead])
def test_gradients_of_each_sample(tree, kind):
    """vmap(grad) of a model ending in scores equals a loop over the samples."""
    model = kind(3, tree, dtype=torch.float64)
    inputs = torch.randn(5, 3, dtype=torch.float64, generator=rows.seeded(1))
    targets = some_classes(tree, 5)
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def loss(weights, x, target):
        if kind is ct.CatnatHead:
            return functional_call(model, weights, (x, target)).loss
        return torch.nn.functional.nll_loss(functional_call(model, weights, (x,)), target)

    got = vmap(grad(loss), in_dims=(None, 0, 0))(weights, inputs, targets)
    for i in range(5):
        wanted = grad(loss)(weights, inputs[i], targets[i])
        for name, value in wanted.items():
            rows.assert_close(got[name][i], value)


# ---- saturated and other nodes ----


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_gradient_is_exactly_zero_on_saturated_nodes(dtype):
    for tree in rows.TREES.values():
        for width in (2 * math.pi, 1.0):
            activation = ct.natural(width=width)
            scores = rows.around(tree, 8, dtype=dtype).requires_grad_()
            saturated = ct.geometry.saturated(scores, tree, activation)
            if tree.num_nodes > 1:
                assert saturated.any()
            for name, function in FUNCTIONS.items():
                if name == "kl_divergence":  # there a row is p once and q once
                    continue
                value = function(scores, tree, activation)
                if not value.requires_grad:
                    continue
                (gradient,) = torch.autograd.grad(value, scores, torch.ones_like(value), allow_unused=True)
                assert gradient is None or (gradient[saturated] == 0).all(), name


def test_gradients_flow_only_where_they_should():
    scores = rows.inside(catnat.balanced(8), "natural", 3).requires_grad_()
    for value in (
        ct.sample(scores),
        ct.mode(scores),
        ct.geometry.saturated(scores),
        ct.sample_without_replacement(scores, 2),
        ct.Catnat(scores).sample(),
        ct.OneHotCatnat(scores).sample(),
        ct.OneHotCatnatStraightThrough(scores).sample(),
        ct.OneHotCatnat(scores).mode,
    ):
        assert not value.requires_grad
    with torch.no_grad():
        assert not ct.log_catnat(scores).requires_grad
    assert not ct.log_catnat(scores.detach()).requires_grad
    # A path's gradient touches that path only.
    tree = catnat.balanced(100)
    scores = rows.inside(tree, "natural").requires_grad_()
    (gradient,) = torch.autograd.grad(ct.log_prob(scores, torch.tensor(37), tree), scores)
    assert set(gradient.nonzero().flatten().tolist()) == set(tree.path(37)[0].tolist())
