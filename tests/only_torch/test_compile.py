"""torch.compile in one graph, for any batch size, equal to eager in values and gradients (pytorch#108494, #106407)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from only_torch import functions, rows
from torch import Tensor
from torch.distributions import kl_divergence

import catnat
import catnat.torch as ct

pytestmark = [
    pytest.mark.filterwarnings("ignore::catnat.EdgeWarning"),
    pytest.mark.usefixtures("fresh_compiler"),
]

BATCHES = (3, 5)


def compiled(function: Callable, backend: str = "aot_eager", dynamic: bool | None = None) -> Callable:
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, dynamic=dynamic, backend=backend)


def dynamic(tensor: Tensor) -> Tensor:
    """The same tensor with a batch size that the compiler must keep open: specializing it is an error."""
    torch._dynamo.mark_dynamic(tensor, 0)
    return tensor


def masked(options: str, fact: str) -> Callable:
    def found(scores, tree, activation):
        mask = torch.arange(tree.num_classes) % 3 != 1
        dist = ct.Catnat(scores, tree, activation, mask=mask, validate_args=False, **rows.OPTIONS[options])
        if fact == "log_prob":
            return dist.log_prob(torch.zeros(len(scores), dtype=torch.int64))
        return dist.entropy() if fact == "entropy" else getattr(dist, fact)

    return found


def kl_of_masks(scores, tree, activation):
    """Infinite in some rows."""
    indices = torch.arange(3) * tree.num_classes // 3
    p = ct.Catnat(scores, tree, activation, valid_classes=indices, validate_args=False)
    q = ct.Catnat(scores.flip(0), tree, activation, mask=torch.arange(tree.num_classes) != 0, validate_args=False)
    return kl_divergence(q, p), kl_divergence(p, p)


# Built outside of the graphs, with as many nodes as a tree over eight classes.
FOREST = catnat.Forest([catnat.balanced(5), catnat.chain(4)])


def several(scores, _, activation):
    dist = ct.MultiCatnat(scores, FOREST, activation, mask=torch.arange(9) % 3 != 1, unimix=0.1, validate_args=False)
    value = torch.zeros(len(scores), 2, dtype=torch.int64)
    return dist.log_prob(value), dist.probs, dist.entropy()


FUNCTIONS = {
    **functions.FUNCTIONS,
    "catnat-dim": lambda s, *args: ct.catnat(s.t(), *args, dim=0),
    "mode": ct.mode,
    "saturated": ct.geometry.saturated,
    **functions.GEOMETRY,
    **{f"masked {fact}": masked("T3-unimix", fact) for fact in ("probs", "entropy", "log_prob")},
    "KL of masks": kl_of_masks,
    "MultiCatnat": several,
}


def same_as_eager(function: Callable, tree: catnat.Tree, activation: ct.Activation, **how: str | bool) -> None:
    def bound(scores):
        found = function(scores, tree, activation)
        return found if isinstance(found, tuple) else (found,)

    bound(
        rows.inside(tree, activation, 1)
    )  # torch looks a divergence up once, in a way that the compiler cannot follow
    fast = compiled(bound, **how)
    for batch in BATCHES:
        scores = rows.inside(tree, activation, batch, dtype=torch.float32, seed=batch).requires_grad_()
        found = fast(scores) if how.get("dynamic") else fast(dynamic(scores))
        eager = bound(scores)
        for got, wanted in zip(found, eager, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
            assert (got[wanted == 0] == 0).all()  # what is impossible is so exactly
        gradients = [gradient(values, scores) for values in (found, eager)]
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4 * max(1.0, float(gradients[1].abs().max())))


def gradient(values: tuple[Tensor, ...], scores: Tensor) -> Tensor:
    loss = sum(weighted(value) for value in values if value.requires_grad)
    if not isinstance(loss, Tensor):  # the only node of two classes is always reached
        return torch.zeros_like(scores)
    return torch.autograd.grad(loss, scores)[0]


def weighted(value: Tensor) -> Tensor:
    """A loss that tells the entries apart."""
    return (value * torch.linspace(-1, 2, value.numel()).view(value.shape)).sum()


# ---- traced, not generated: every tree, activation and function ----

# Each tree with some of the functions; the slow test has all of them.
CASES = {
    ("balanced-8", "natural"): ("catnat", "kl_divergence", "fisher_diagonal", "OneHotCatnat.probs"),
    ("balanced-18", "sigmoid"): ("log_catnat", "entropy", "mode", "cross_entropy-sum", "natural_gradient"),
    ("balanced-100", "natural"): ("cross_entropy", "cross_entropy-soft", "Catnat.entropy", "masked probs"),
    ("chain-7", "sigmoid"): ("catnat-dim", "cross_entropy-smooth", "saturated", "kl_step"),
    ("chain-100", "natural"): ("log_prob", "reach", "masked log_prob"),
    ("huffman-20", "natural-narrow"): ("cross_entropy-mean", "reach", "scores_from_probs", "fisher_rao_distance"),
    ("huffman-100", "sigmoid"): ("log_prob", "Catnat.log_prob", "entropy", "kl_divergence", "KL of masks"),
    ("uneven-8", "sigmoid"): ("MultiCatnat", "masked entropy", "scores_from_logits", "softmax_natural_gradient"),
}


def test_every_function_is_compiled_somewhere():
    assert {name for names in CASES.values() for name in names} == set(FUNCTIONS)


@pytest.mark.one_row
@pytest.mark.parametrize(("tree", "activation"), CASES)
def test_one_graph_and_any_batch(tree, activation, monkeypatch):
    monkeypatch.setattr(ct.geometry, "_ROUNDS", 2)  # of kl_step; each is traced once more
    for name in CASES[tree, activation]:
        same_as_eager(FUNCTIONS[name], rows.TREES[tree], rows.ACTIVATIONS[activation])


@pytest.mark.parametrize("name", ["log_catnat", "log_prob"])
def test_all_sizes_dynamic(name):
    """``dynamic=True`` leaves even the width open; the tree then settles it."""
    same_as_eager(FUNCTIONS[name], catnat.balanced(11), ct.natural(), dynamic=True)


def test_a_tree_first_met_inside_a_graph():
    tree = catnat.huffman([13, 11, 7, 5, 3, 2, 1])
    same_as_eager(FUNCTIONS["log_catnat"], tree, ct.natural(width=4.0))
    with torch.inference_mode():
        wanted = ct.log_catnat(torch.ones(2, 6), tree, ct.natural(width=4.0))
    rows.assert_equal(ct.log_catnat(torch.ones(2, 6), tree, ct.natural(width=4.0)), wanted.clone())


@pytest.mark.xfail(reason="compiled code casts gradients to half precision without saturating them")
def test_half_precision_gradients_saturate_in_a_graph_too():
    tree = catnat.balanced(18)
    scores = rows.inside(tree, "natural", 60, dtype=torch.float16).requires_grad_()
    upstream = torch.full((60, 18), 6e4, dtype=torch.float16)
    exact = scores.detach().float().requires_grad_()
    (large,) = torch.autograd.grad(ct.log_catnat(exact, tree, "natural"), exact, upstream.float())
    assert (large.abs() > torch.finfo(torch.float16).max).any()
    (got,) = torch.autograd.grad(compiled(ct.log_catnat)(scores, tree, "natural"), scores, upstream)
    assert got.isfinite().all()


# ---- drawing ----


@pytest.mark.one_row
@pytest.mark.parametrize("tree", ["balanced-8", "balanced-18", "balanced-100", "chain-7", "chain-100", "huffman-100"])
def test_sampling_without_a_generator(tree):
    """torch cannot take a generator into a graph; without one the draws have the right distribution."""
    tree = rows.TREES[tree]

    def function(scores):
        return ct.sample(scores, tree, sample_shape=(4,)), ct.sample_without_replacement(scores, 2, tree)

    fast = compiled(function, "eager")
    row = rows.inside(tree, "sigmoid", margin=0.3, dtype=torch.float32)
    probs = ct.catnat(row, tree)
    torch.manual_seed(0)
    for batch in (3000, 3500):
        drawn, several = fast(dynamic(row.repeat(batch, 1)))
        assert drawn.shape == (4, batch)
        assert several.shape == (batch, 2)
        assert (several[:, 0] != several[:, 1]).all()
        rows.chi_square(drawn, probs)
        rows.chi_square(several[:, 0], probs)


@pytest.mark.one_row
@pytest.mark.parametrize("tree", [None, catnat.balanced(100)], ids=repr)
def test_a_policy_step_inside_a_graph(tree):
    """Build, draw, log_prob and entropy, as a rollout does; gradients reach the scores."""
    nodes = 17 if tree is None else tree.num_nodes

    def step(scores):
        dist = ct.Catnat(scores, tree)
        action = dist.sample()
        return action, dist.log_prob(action), dist.entropy(), dist.probs, dist.logits

    fast = compiled(step)
    for batch in BATCHES:
        scores = (torch.randn(batch, nodes, generator=rows.seeded(batch)) / 2).requires_grad_()
        action, log_prob, entropy, probs, logits = fast(dynamic(scores))
        dist = ct.Catnat(scores, tree)
        torch.testing.assert_close(log_prob, dist.log_prob(action))
        torch.testing.assert_close(entropy, dist.entropy())
        torch.testing.assert_close(probs, dist.probs)
        torch.testing.assert_close(logits, dist.logits)
        got = torch.autograd.grad((log_prob - 0.1 * entropy).sum(), scores)[0]
        wanted = torch.autograd.grad((dist.log_prob(action) - 0.1 * dist.entropy()).sum(), scores)[0]
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_modules_compile():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), ct.CatnatLinear(8, 10))
    fast = compiled(model)
    for batch in BATCHES:
        inputs = torch.randn(batch, 4, generator=rows.seeded(batch))
        torch.testing.assert_close(fast(dynamic(inputs)), model(inputs))


# ---- generated code ----


def test_generated_code_equals_eager():
    """On scores of any size, saturated nodes and the floor included."""
    tree = rows.TREES["balanced-18"]

    def loss(scores, classes):
        return ct.cross_entropy(scores, classes, tree, "natural", reduction="none")

    fast = compiled(loss, "inductor")
    for batch in BATCHES:
        scores = rows.around(tree, batch, dtype=torch.float32, seed=batch).requires_grad_()
        classes = torch.arange(batch) * 7 % tree.num_classes
        got, wanted = fast(dynamic(scores), dynamic(classes)), loss(scores, classes)
        torch.testing.assert_close(got, wanted, rtol=2e-5, atol=2e-5)
        gradients = [torch.autograd.grad(weighted(value), scores)[0] for value in (got, wanted)]
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5 * float(gradients[1].abs().max()))
        assert (gradients[0][ct.geometry.saturated(scores, tree, "natural")] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["sigmoid", "natural"])
@pytest.mark.parametrize("tree", ["balanced-8", "balanced-100", "huffman-20"])
def test_generated_code_equals_eager_everywhere(tree, activation):
    for name in ("log_catnat", "log_prob", "kl_divergence"):
        same_as_eager(FUNCTIONS[name], rows.TREES[tree], rows.ACTIVATIONS[activation], backend="inductor")


def test_constants_are_marked_as_torch_marks_them():
    """``catnat.torch._constants`` sets this attribute by hand, because the public function imports the compiler."""

    def nothing() -> None:
        pass

    before = set(vars(nothing))
    torch.compiler.assume_constant_result(nothing)
    assert vars(nothing).keys() - before == {"_dynamo_marked_constant"}
    assert nothing._dynamo_marked_constant is True
