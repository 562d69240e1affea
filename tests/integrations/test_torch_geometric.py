"""Latent edges against the real PyTorch Geometric: its layers, its batches, probabilities by listing all graphs."""

from __future__ import annotations

import collections
import itertools
import math

import numpy as np
import pytest
import torch
from conformance.checks import chi_square
from scipy import stats
from torch import Tensor
from torch import distributions as td

import catnat.torch as ct
from catnat.integrations.torch_geometric import EdgeDistribution, EdgeSampler, all_pairs, edge_scores

pytest.importorskip("torch_geometric", minversion="2.8")
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv, GraphConv
from torch_geometric.utils import to_dense_adj, unbatch_edge_index

FALSE_ALARM = 1e-6
ACTIVATIONS = ["sigmoid", "natural"]
PAIRS = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]])  # 3 nodes, 4 of the 6 pairs: 16 graphs
SCORES = torch.tensor([-1.1, 0.3, 2.0, 0.7], dtype=torch.float64)
ALL_GRAPHS = torch.tensor(list(itertools.product((0, 1), repeat=4)))
LAYERS = {
    "GCNConv": lambda i, o: GCNConv(i, o).double(),
    "GCNConv-bare": lambda i, o: GCNConv(i, o, add_self_loops=False).double(),
    "GraphConv": lambda i, o: GraphConv(i, o).double(),
}


def slow_probs(scores: Tensor, activation: str) -> np.ndarray:
    """The activations by their definitions; the natural one inside its band."""
    scores = scores.detach().numpy()
    return 1 / (1 + np.exp(-scores)) if activation == "sigmoid" else (1 + np.sin(scores / 2)) / 2


def slow_slopes(scores: Tensor, activation: str) -> np.ndarray:
    p = slow_probs(scores, activation)
    return p * (1 - p) if activation == "sigmoid" else np.cos(scores.detach().numpy() / 2) / 4


def slow_probabilities(scores: Tensor, activation: str) -> np.ndarray:
    """The probability of each of the 16 graphs."""
    p = slow_probs(scores, activation)
    return np.array([math.prod(q if a else 1 - q for a, q in zip(graph, p, strict=True)) for graph in ALL_GRAPHS])


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def edges_of(scores: Tensor, activation="natural", **how) -> EdgeDistribution:
    return EdgeDistribution(scores, PAIRS, 3, activation, **how)


def layer_and_features(name: str, nodes: int = 3) -> tuple[torch.nn.Module, Tensor]:
    torch.manual_seed(0)
    return LAYERS[name](2, 2), torch.randn(nodes, 2, dtype=torch.float64)


# ---- probabilities, by listing every graph ----


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_probabilities_by_enumeration(name):
    edges, distribution = edges_of(SCORES, name), slow_probabilities(SCORES, name)
    got = edges.log_prob(ALL_GRAPHS)
    assert got.shape == (16,)
    np.testing.assert_allclose(got.exp().sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(got, np.log(distribution), rtol=1e-12)
    np.testing.assert_allclose(edges.probs, slow_probs(SCORES, name), rtol=1e-12)
    np.testing.assert_allclose(edges.entropy(), -(distribution * np.log(distribution)).sum(), rtol=1e-12)
    np.testing.assert_array_equal(edges.mode, ALL_GRAPHS[distribution.argmax()])
    other = slow_probabilities(SCORES - 0.6, name)  # not a permutation: that divergence would be the same both ways
    divergence = td.kl_divergence(edges, edges_of(SCORES - 0.6, name))
    np.testing.assert_allclose(divergence, (distribution * np.log(distribution / other)).sum(), rtol=1e-12)


@pytest.mark.parametrize("kind", [torch.bool, torch.int32, torch.float32])
def test_log_prob_takes_graphs_in_any_dtype(kind):
    torch.testing.assert_close(edges_of(SCORES).log_prob(ALL_GRAPHS.to(kind)), edges_of(SCORES).log_prob(ALL_GRAPHS))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_frequencies_of_drawn_graphs(name):
    drawn = edges_of(SCORES, name).draw(20_000, generator=seeded(1)).drawn
    counts = collections.Counter(map(tuple, drawn.tolist()))
    chi_square(counts, dict(zip(map(tuple, ALL_GRAPHS.tolist()), slow_probabilities(SCORES, name), strict=True)))


def test_certain_edges_are_certain():
    edges = edges_of(torch.tensor([-4.0, 4.0, 0.0, 0.0]))  # the band ends at 3.14
    drawn = edges.draw(1000, generator=seeded(2)).drawn
    assert drawn[:, 0].sum() == 0
    assert drawn[:, 1].sum() == 1000
    assert edges.saturated().tolist() == [True, True, False, False]
    assert not edges_of(edges.scores, "sigmoid").saturated().any()


# ---- gradients ----


def costs_of(graphs, layer, x) -> Tensor:
    """A cost of each graph that is not linear in its edges."""
    return graphs.unstack(layer(graphs.stack(x), graphs.edge_index, graphs.edge_weight)).square().sum((-1, -2)).tanh()


def exact_gradient(name: str, costs: Tensor) -> np.ndarray:
    """Of the expected cost: sum over graphs of cost times dP/ds, from the product formula alone."""
    p, slope = slow_probs(SCORES, name), slow_slopes(SCORES, name)
    gradient = np.zeros(4)
    for graph, randomness, cost in zip(
        ALL_GRAPHS.numpy(), slow_probabilities(SCORES, name), costs.detach().numpy(), strict=True
    ):
        gradient += cost * randomness * np.where(graph == 1, slope / p, -slope / (1 - p))
    return gradient


@pytest.mark.parametrize("keep", ["all", "drawn"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_score_function_is_unbiased_over_all_graphs(name, keep):
    layer, x = layer_and_features("GCNConv")
    scores = SCORES.clone().requires_grad_()
    graphs = edges_of(scores, name).graphs(ALL_GRAPHS, keep=keep)
    costs = costs_of(graphs, layer, x).detach()  # without this, all candidates would pass a second gradient
    (torch.as_tensor(slow_probabilities(SCORES, name)) * costs * graphs.log_prob).sum().backward()
    np.testing.assert_allclose(scores.grad, exact_gradient(name, costs), rtol=1e-10)


def test_score_function_estimator_takes_the_distribution():
    """A z-test of each of the four mean gradients; the estimator hands its draws to ``graphs``."""
    layer, x = layer_and_features("GCNConv")
    want = exact_gradient("natural", costs_of(edges_of(SCORES).graphs(ALL_GRAPHS), layer, x))
    repeats = 2000
    scores = SCORES.expand(repeats, 4).clone().requires_grad_()
    edges = edges_of(scores)
    loss = ct.estimators.score_function(
        lambda drawn: costs_of(edges.graphs(drawn, keep="drawn"), layer, x),
        edges,
        num_samples=4,
        baseline="leave-one-out",
        generator=seeded(5),
    )
    assert loss.shape == (repeats,)
    loss.sum().backward()
    error = scores.grad.std(0) / repeats**0.5
    z = (scores.grad.mean(0).numpy() - want) / error.numpy()
    assert (np.abs(z) < stats.norm.isf(FALSE_ALARM / 8)).all(), z


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("layer_name", ["GCNConv", "GraphConv"])
def test_straight_through_is_hard_forward_and_the_probability_backward(layer_name, name):
    layer, x = layer_and_features(layer_name)
    scores = SCORES.clone().requires_grad_()
    graphs = edges_of(scores, name).graphs(ALL_GRAPHS)
    assert graphs.edge_weight.tolist() == ALL_GRAPHS.flatten().tolist()  # exactly 0 and 1
    weight = ALL_GRAPHS.double().flatten().requires_grad_()
    wanted = layer(graphs.stack(x), graphs.edge_index, weight)
    got = layer(graphs.stack(x), graphs.edge_index, graphs.edge_weight)
    assert torch.equal(got, wanted)
    got.sin().sum().backward()
    wanted.sin().sum().backward()
    np.testing.assert_allclose(
        scores.grad, weight.grad.view(16, 4).sum(0).numpy() * slow_slopes(SCORES, name), rtol=1e-10
    )


@pytest.mark.parametrize("layer_name", LAYERS)
def test_drawn_edges_alone_give_the_same_output_and_no_straight_through_gradient(layer_name):
    layer, x = layer_and_features(layer_name)
    edges = edges_of(SCORES.clone().requires_grad_())
    every, drawn = (edges.graphs(ALL_GRAPHS, keep=keep) for keep in ("all", "drawn"))
    assert every.edge_weight.numel() == 64
    assert drawn.edge_weight.tolist() == [1] * 32
    assert torch.equal(drawn.edge_index, every.edge_index[:, every.edge_weight == 1])
    assert every.edge_weight.requires_grad
    assert not drawn.edge_weight.requires_grad
    outputs = [layer(graphs.stack(x), graphs.edge_index, graphs.edge_weight) for graphs in (every, drawn)]
    torch.testing.assert_close(*outputs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(drawn.log_prob, every.log_prob)


def test_gcn_conv_needs_its_self_loops():
    """A node without edges has degree 0. PyG's normalization guards the value but not the gradient: the docs say so."""
    x = torch.randn(3, 2)
    for self_loops in (True, False):
        scores = torch.zeros(4, requires_grad=True)
        graphs = edges_of(scores).graphs(torch.zeros(1, 4))
        out = GCNConv(2, 2, add_self_loops=self_loops)(graphs.stack(x), graphs.edge_index, graphs.edge_weight)
        assert out.isfinite().all()
        out.square().sum().backward()
        assert scores.grad.isfinite().all() == self_loops


# ---- several graphs as one ----


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("keep", ["all", "drawn"])
def test_graphs_stand_side_by_side_as_in_a_batch(keep, undirected):
    pairs = torch.tensor([[0, 1, 2, 3], [1, 2, 0, 1]])
    edges = EdgeDistribution(SCORES, pairs, 5, undirected=undirected)  # node 4 has no candidate
    drawn = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 1]])
    x = torch.arange(30.0).view(3, 5, 2)
    singles = []
    for row, features in zip(drawn, x, strict=True):
        kept = torch.ones(4, dtype=torch.bool) if keep == "all" else row == 1
        there, weight = pairs[:, kept], row[kept].double()
        if undirected:
            there, weight = torch.cat([there, there.flip(0)], 1), torch.cat([weight, weight])
        singles.append(Data(x=features, edge_index=there, edge_weight=weight))
    wanted = Batch.from_data_list(singles)
    graphs = edges.graphs(drawn, keep=keep)
    assert torch.equal(graphs.edge_index, wanted.edge_index)
    assert torch.equal(graphs.edge_weight, wanted.edge_weight)
    assert torch.equal(graphs.batch, wanted.batch)
    assert torch.equal(graphs.stack(x), wanted.x)
    assert torch.equal(graphs.unstack(wanted.x), x)
    assert graphs.num_graphs == 3
    for one, single in zip(unbatch_edge_index(graphs.edge_index, graphs.batch), singles, strict=False):
        assert torch.equal(one, single.edge_index)


def test_undirected_edges_are_one_variable():
    sampler = EdgeSampler(6, undirected=True, dtype=torch.float64)
    graphs = sampler(num_graphs=4, generator=seeded(7))
    dense = to_dense_adj(graphs.edge_index, graphs.batch, graphs.edge_weight, max_num_nodes=6)
    assert torch.equal(dense, dense.transpose(1, 2))
    assert graphs.drawn.shape == (4, 15)
    torch.testing.assert_close(graphs.log_prob, torch.full((4,), -15 * math.log(2), dtype=torch.float64))
    graphs.edge_weight.sum().backward()  # both directions: twice the slope 1/4, in each of 4 graphs
    torch.testing.assert_close(sampler.scores.grad, torch.full((15,), 2.0, dtype=torch.float64))


def test_a_batch_of_scores_is_a_distribution_for_every_row():
    scores = torch.stack([SCORES, SCORES.flip(0)]).requires_grad_()
    edges = edges_of(scores)
    assert (edges.batch_shape, edges.event_shape) == ((2,), (4,))
    graphs = edges.draw(3, generator=seeded(8))
    assert graphs.drawn.shape == (3, 2, 4)
    assert (graphs.num_graphs, graphs.log_prob.shape) == (6, (3, 2))
    for row in range(2):
        alone = edges_of(scores[row]).log_prob(graphs.drawn[:, row])
        torch.testing.assert_close(graphs.log_prob[:, row], alone)
    x = torch.randn(2, 3, 5)
    assert torch.equal(graphs.unstack(graphs.stack(x))[1], x)
    expanded = edges_of(SCORES).expand((2,))
    torch.testing.assert_close(expanded.log_prob(graphs.drawn)[:, 0], graphs.log_prob[:, 0])
    assert expanded.draw(3).edge_index.shape == graphs.edge_index.shape
    assert expanded.saturated().shape == expanded.probs.shape == (2, 4)


# ---- candidates and the module ----


def test_all_pairs():
    for undirected, pairs in ((False, itertools.permutations), (True, itertools.combinations)):
        assert list(map(tuple, all_pairs(4, undirected=undirected).t().tolist())) == list(pairs(range(4), 2))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_edges_start_with_the_given_probabilities(name):
    given = torch.tensor([0.001, 0.2, 0.5, 0.9])
    sampler = EdgeSampler(3, PAIRS, initial_probs=given, activation=name)
    torch.testing.assert_close(sampler.distribution().probs.detach(), given, rtol=1e-4, atol=0)
    everywhere = EdgeSampler(3, PAIRS, initial_probs=0.1, activation=name).distribution().probs
    torch.testing.assert_close(everywhere.detach(), torch.full((4,), 0.1))
    scores = edge_scores(given.double(), name)
    np.testing.assert_allclose(slow_probs(scores, name), given.double(), rtol=1e-9)


def test_edges_start_in_a_range():
    samplers = [EdgeSampler(40, initial_probs=(0.2, 0.6), generator=seeded(9), dtype=torch.float64) for _ in range(2)]
    assert torch.equal(samplers[0].scores, samplers[1].scores)
    probs = samplers[0].distribution().probs.detach()
    assert ((probs >= 0.2) & (probs <= 0.6)).all()
    assert stats.kstest(probs.numpy(), stats.uniform(0.2, 0.4).cdf).pvalue > FALSE_ALARM


def test_probabilities_at_the_ends_have_scores():
    assert edge_scores(0.0, "sigmoid").isfinite()
    torch.testing.assert_close(edge_scores(1), torch.tensor(math.pi))  # an integer, but not an integer's score
    torch.testing.assert_close(edge_scores(torch.tensor([0.0, 1.0])), torch.tensor([-math.pi, math.pi]))


def test_a_graph_without_candidates():
    sampler = EdgeSampler(1)
    for keep in ("all", "drawn"):
        graphs = sampler(num_graphs=2, keep=keep)
        assert graphs.edge_index.shape == (2, 0)
        assert graphs.log_prob.tolist() == [0, 0]
        out = GCNConv(2, 2)(graphs.stack(torch.ones(1, 2)), graphs.edge_index, graphs.edge_weight)
        assert out.shape == (2, 2)
    assert sampler.distribution().entropy() == 0


@pytest.mark.parametrize("damaged", [None, b"\xff\x00", b"[" * 10_000, b"{}", b""])
def test_scores_that_mean_other_graphs_are_refused(damaged):
    """A state names the graphs that it is of; candidates are loaded with the scores."""
    saved = EdgeSampler(3, PAIRS, initial_probs=(0.1, 0.9)).state_dict()
    assert list(saved) == ["scores", "candidates", "_extra_state"]
    others = [EdgeSampler(3, PAIRS, activation="sigmoid"), EdgeSampler(4, PAIRS), EdgeSampler(3)]
    if damaged is not None:
        saved["_extra_state"], others = torch.tensor(list(damaged), dtype=torch.uint8), [EdgeSampler(3, PAIRS)]
    for other in others:
        with pytest.raises(RuntimeError, match=r"its scores would mean other graphs here|size mismatch"):
            other.load_state_dict(saved)


def test_save_and_load(tmp_path):
    pairs = all_pairs(5)[:, ::2]
    saved, loaded = EdgeSampler(5, pairs, initial_probs=(0.1, 0.9)), EdgeSampler(5, all_pairs(5)[:, 1::2])
    torch.save(saved.state_dict(), tmp_path / "graph.pt")
    loaded.load_state_dict(torch.load(tmp_path / "graph.pt"))
    assert torch.equal(loaded.candidates, pairs)  # the scores belong to them
    first, again = (sampler(num_graphs=3, generator=seeded(10)) for sampler in (saved, loaded))
    assert torch.equal(first.edge_index, again.edge_index)
    assert torch.equal(first.log_prob, again.log_prob)


# ---- compile, dtypes, hostile scores ----


class Model(torch.nn.Module):
    def __init__(self, keep):
        super().__init__()
        self.sampler, self.layer, self.keep = EdgeSampler(6, initial_probs=0.4), GCNConv(4, 2), keep

    def forward(self, x, drawn=None):
        edges = self.sampler.distribution()
        graphs = self.sampler(4, keep=self.keep) if drawn is None else edges.graphs(drawn, keep=self.keep)
        out = graphs.unstack(self.layer(graphs.stack(x), graphs.edge_index, graphs.edge_weight))
        return out, graphs.log_prob, edges.entropy(), graphs.drawn


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["all", "drawn"])
def test_compiles_with_a_layer_in_one_graph(keep):
    torch.manual_seed(0)
    model, x = Model(keep), torch.randn(6, 4)
    drawn = (torch.rand(4, 30) < 0.4).long()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    gradients = []
    for run in (model, compiled):
        model.zero_grad()
        out, log_prob, entropy, _ = run(x, drawn)
        (out.sin().sum() + log_prob.sum() + entropy).backward()
        gradients.append((out.detach(), log_prob.detach(), model.sampler.scores.grad, model.layer.lin.weight.grad))
    torch.testing.assert_close(*gradients)
    out, log_prob, _, drawn = compiled(x)
    torch.testing.assert_close(log_prob, model.sampler.distribution().log_prob(drawn))
    torch.testing.assert_close(out, model(x, drawn)[0])
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_no_finite_score_gives_nan_or_inf(name, dtype):
    limits = torch.finfo(dtype)
    sizes = [0.0, limits.tiny, limits.eps, 1.0, math.pi, 100.0, 1e4, limits.max / 2, limits.max]
    special = torch.tensor([*sizes, *(-size for size in sizes)], dtype=torch.float64).to(dtype)
    scores = special.repeat_interleave(500).requires_grad_()  # so many that sums overflow half precision
    nodes = 96
    pairs = all_pairs(nodes)[:, : len(scores)]
    assert pairs.shape[1] == len(scores)
    edges = EdgeDistribution(scores, pairs, nodes, name)
    other = EdgeDistribution(scores.detach().flip(0), pairs, nodes, name)
    some = torch.rand(2, len(scores), generator=seeded(11)) < 0.5  # many of them impossible
    graphs = edges.graphs(some)
    values = {
        "weight": graphs.edge_weight,
        "log_prob": graphs.log_prob,
        "entropy": edges.entropy(),
        "kl": td.kl_divergence(edges, other),
        "probs": edges.probs,
    }
    for what, value in values.items():
        assert value.dtype == dtype
        assert value.isfinite().all(), what
        (gradient,) = torch.autograd.grad(value.sum(), scores, retain_graph=True)
        assert gradient.isfinite().all(), what
    possible = edges.draw(3, generator=seeded(12)).drawn.bool()
    probs = edges.probs.detach()
    assert not (possible & (probs == 0)).any()
    if dtype.itemsize >= 4:  # a probability that half precision rounds to 1 is not certain
        assert not (~possible & (probs == 1) & edges.saturated()).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sums_in_float32(dtype):
    """2000 edges: sums in half precision would lose the digits, or overflow."""
    scores = torch.full((2000,), 0.4, dtype=dtype)
    edges = EdgeDistribution(scores, all_pairs(50)[:, :2000], 50)
    exact = EdgeDistribution(scores.double(), all_pairs(50)[:, :2000], 50)
    drawn = edges.sample(generator=seeded(13))
    torch.testing.assert_close(
        edges.log_prob(drawn).double(), exact.log_prob(drawn), rtol=torch.finfo(dtype).eps, atol=0
    )
    torch.testing.assert_close(edges.entropy().double(), exact.entropy(), rtol=torch.finfo(dtype).eps, atol=0)
