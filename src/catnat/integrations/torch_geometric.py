"""Graphs with latent edges, in the format of PyTorch Geometric: every candidate is a yes/no variable with one score.

PyTorch Geometric takes a graph as plain tensors, ``edge_index`` and ``edge_weight``. Draws have this format, so this
module does not import that library.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Size, Tensor, nn
from torch import distributions as td

import catnat.torch as ct
from catnat.torch.distributions import as_returned, known_true
from catnat.torch.functional import divergence_of, entropy_of, pick
from catnat.torch.layers import TreeLayer

__all__ = ["DrawnGraphs", "EdgeDistribution", "EdgeSampler", "all_pairs", "edge_scores"]

Keep: TypeAlias = Literal["all", "drawn"]


# ---- the candidates ----


def all_pairs(
    num_nodes: int, *, undirected: bool = False, device: torch.device | str | None = None
) -> Int[Tensor, "2 candidates"]:
    """Return all pairs of different nodes as candidates, (2, E), in the order of their first node.

    Args:
        num_nodes: The number of nodes.
        undirected: Whether every pair occurs once, with the smaller node first, not in both directions.
        device: The device of the pairs.

    Example:
        >>> from catnat.integrations.torch_geometric import all_pairs
        >>> all_pairs(3)
        tensor([[0, 0, 1, 1, 2, 2],
                [1, 2, 0, 2, 0, 1]])
        >>> all_pairs(3, undirected=True)
        tensor([[0, 0, 1],
                [1, 2, 2]])
    """
    num_nodes = _count(num_nodes, "num_nodes")
    wanted = torch.ones(num_nodes, num_nodes, dtype=torch.bool, device=device)
    if undirected:
        wanted = wanted.triu()
    return wanted.fill_diagonal_(False).nonzero().t().contiguous()


def edge_scores(
    probs: Float[Tensor, "..."] | float, activation: ct.Activation | str = "natural"
) -> Float[Tensor, "..."]:
    r"""Return the scores of edges with given probabilities, :math:`a^{-1}(p)`.

    Args:
        probs: Edge probabilities, from 0 to 1.
        activation: "natural", "sigmoid", or an activation object.

    Example:
        >>> import torch
        >>> from catnat.integrations.torch_geometric import edge_scores
        >>> edge_scores(torch.tensor([0.5, 0.9]), "sigmoid")
        tensor([0.0000, 2.1972])
    """
    yes = torch.as_tensor(probs)
    if not yes.is_floating_point():
        yes = yes.to(torch.get_default_dtype())
    exact = yes.double()  # 1 - p must keep the digits of a small p
    both = torch.stack([1 - exact, exact], -1)
    return ct.scores_from_probs(both, activation=activation).squeeze(-1).to(yes.dtype)


def _check_candidates(candidates: Any, num_nodes: int, undirected: bool) -> None:
    """Raise unless every column is a pair of nodes, and no pair occurs twice."""
    if not isinstance(candidates, Tensor):
        raise TypeError(f"`candidates` is a {type(candidates).__name__}, but a tensor of integers (2, E) is needed.")
    if candidates.dtype not in (torch.int64, torch.int32) or candidates.ndim != 2 or candidates.shape[0] != 2:
        raise ValueError(
            f"`candidates` has dtype {candidates.dtype} and shape {tuple(candidates.shape)}, but integers (2, E) are "
            "needed, one column (from, to) for every possible edge, as in `edge_index`. Convert pairs in rows with "
            "candidates.t(), and a boolean matrix of allowed pairs with matrix.nonzero().t()."
        )
    if torch.compiler.is_compiling():
        return
    first, second = candidates.unbind()
    outside = (candidates < 0) | (candidates >= num_nodes)
    if known_true(outside.any()):
        raise ValueError(
            f"`candidates` holds {int(candidates[outside][0])}, but {num_nodes} nodes are numbered 0 .. "
            f"{num_nodes - 1}: correct the pair, or `num_nodes`."
        )
    if undirected and known_true((first == second).any()):
        raise ValueError(
            f"`candidates` joins node {int(first[first == second][0])} to itself, but with undirected=True every "
            "candidate is drawn in both directions: leave self loops out. A layer such as GCNConv adds its own."
        )
    low, high = (torch.minimum(first, second), torch.maximum(first, second)) if undirected else (first, second)
    pair, times = (low.long() * num_nodes + high).unique(return_counts=True)
    if known_true((times > 1).any()):
        again = int(pair[times > 1][0])
        raise ValueError(
            f"`candidates` holds the pair ({again // num_nodes}, {again % num_nodes}) more than once, but every "
            "candidate is one variable. With undirected=True keep one direction: "
            "candidates[:, candidates[0] < candidates[1]]."
        )


def _count(value: Any, name: str) -> int:
    if isinstance(value, Tensor):
        raise TypeError(
            f"`{name}` is a tensor of shape {tuple(value.shape)}, but an integer is needed. Pass features to layers, "
            "with the drawn graphs: conv(graphs.stack(x), graphs.edge_index, graphs.edge_weight)."
        )
    if not isinstance(value, (int, np.integer)):
        raise TypeError(f"`{name}` is {value!r}, but an integer is needed.")
    if value < 1:
        raise ValueError(f"`{name}` is {value}, but at least 1 is needed.")
    return int(value)


# ---- drawn graphs ----


@dataclasses.dataclass(frozen=True, eq=False)
class DrawnGraphs:
    """Drawn graphs joined to one graph, as in PyTorch Geometric's batches: no edge connects two of them.

    Graph g has the nodes ``g * num_nodes`` to ``(g + 1) * num_nodes - 1``, and its edges are consecutive.

    Example:
        >>> import torch
        >>> from catnat.integrations.torch_geometric import EdgeSampler
        >>> graphs = EdgeSampler(5)(num_graphs=3)
        >>> graphs.stack(torch.zeros(5, 8)).shape  # features of 5 nodes, for all three graphs
        torch.Size([15, 8])
        >>> graphs.batch
        tensor([0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2])
        >>> graphs.log_prob.shape
        torch.Size([3])
    """

    edge_index: Int[Tensor, "2 edges"]
    """The two nodes of every edge, from and to, for any layer."""
    edge_weight: Float[Tensor, "edges"]
    """1 for a drawn edge and 0 for another. If all candidates are kept, it has the gradient of the edge's probability
    (straight-through). If only drawn edges are kept, it has none."""
    drawn: Shaped[Tensor, "*graphs candidates"]
    """Whether each candidate was drawn, 0 or 1; one row for every graph."""
    distribution: EdgeDistribution
    """The distribution from which the graphs were drawn."""

    @property
    def num_graphs(self) -> int:
        """The number of graphs."""
        return self.drawn.shape[:-1].numel()

    @property
    def batch(self) -> Int[Tensor, "nodes"]:
        """The graph of every node, for pooling layers."""
        every = torch.arange(self.num_graphs, device=self.drawn.device)
        return every.repeat_interleave(self.distribution.num_nodes)

    @property
    def log_prob(self) -> Float[Tensor, "*graphs"]:
        """The log-probability of each graph, for score-function gradients; see :meth:`EdgeDistribution.log_prob`."""
        return self.distribution.log_prob(self.drawn)

    def stack(self, x: Shaped[Tensor, "*#graphs nodes features"]) -> Shaped[Tensor, "all_nodes features"]:
        """Return features of all nodes, from those of one graph or of every graph."""
        nodes, graphs = self.distribution.num_nodes, self.drawn.shape[:-1]
        sizes = zip(reversed(x.shape[:-2]), reversed(graphs), strict=False)
        fits = x.ndim - 2 <= len(graphs) and all(size in (1, wanted) for size, wanted in sizes)
        if x.ndim < 2 or x.shape[-2] != nodes or not fits:
            raise ValueError(
                f"`x` has shape {tuple(x.shape)}, but a graph has {nodes} nodes: features ({nodes}, F) are needed, the "
                f"same for all graphs, or ({', '.join(map(str, (*graphs, nodes)))}, F), for each of them."
            )
        return x.expand(*graphs, *x.shape[-2:]).flatten(0, -2)

    def unstack(self, x: Shaped[Tensor, "all_nodes *features"]) -> Shaped[Tensor, "*graphs nodes *features"]:
        """Split features of all nodes, such as a layer's output, by graph."""
        sizes = (*self.drawn.shape[:-1], self.distribution.num_nodes)
        if x.ndim == 0 or x.shape[0] != math.prod(sizes):
            raise ValueError(
                f"`x` has shape {tuple(x.shape)}, but its first axis must have all nodes of all graphs, "
                f"{math.prod(sizes)}: pass a layer's output for graphs.stack(x)."
            )
        return x.unflatten(0, sizes)


# ---- the distribution ----


class EdgeDistribution(td.Independent):  # type: ignore[type-arg] # generic in some versions of torch only
    r"""A distribution over graphs: candidates are edges independently, with probabilities given by their scores.

    .. math:: P(A) = \prod_e a(s_e)^{A_e} (1 - a(s_e))^{1 - A_e}

    A value is a vector of 0 and 1, one for each candidate. ``log_prob``, ``entropy`` and the KL divergence are those of
    the whole graph, sums over the candidates. It is a ``torch.distributions.Independent`` of
    :class:`catnat.torch.Catnat` with two classes, so :func:`catnat.torch.estimators.score_function` takes it.

    Args:
        scores: One score per candidate on the last axis. Axes before it are a batch, with one distribution per row.
        candidates: The possible edges, (2, E), as in ``edge_index``: from, to. Leave out pairs that must not be edges,
            such as self loops. :func:`all_pairs` returns candidates.
        num_nodes: The number of nodes.
        activation: "natural", "sigmoid" (then it is a Bernoulli with logits), or an activation object.
        undirected: Whether every candidate, given once, stands for both directions, which are drawn together.
        validate_args: Whether to check candidates, by default always, and values, by torch's default. Checking the
            candidates sorts them: if a network computes scores at every step, check once and then pass False.

    Example:
        >>> import torch
        >>> from catnat.integrations.torch_geometric import EdgeDistribution, all_pairs
        >>> scores = torch.zeros(6, requires_grad=True)  # from a network, say
        >>> edges = EdgeDistribution(scores, all_pairs(3), num_nodes=3)
        >>> edges.probs
        tensor([0.5000, 0.5000, 0.5000, 0.5000, 0.5000, 0.5000], grad_fn=...)
        >>> edges.draw(num_graphs=4).log_prob.exp()  # 64 equally probable graphs
        tensor([0.0156, 0.0156, 0.0156, 0.0156], grad_fn=...)
    """

    scores: Tensor
    candidates: Tensor
    num_nodes: int
    undirected: bool
    base_dist: ct.Catnat

    def __init__(
        self,
        scores: Float[Tensor, "*batch candidates"],
        candidates: Int[Tensor, "2 candidates"],
        num_nodes: int,
        activation: ct.Activation | str = "natural",
        *,
        undirected: bool = False,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(scores, Tensor) or not scores.is_floating_point() or scores.ndim == 0:
            raise TypeError(
                f"`scores` is a {type(scores).__name__}, {getattr(scores, 'dtype', 'of no dtype')}, but a "
                "floating-point tensor with one score per candidate on its last axis is needed."
            )
        if validate_args is not False:
            _check_candidates(candidates, _count(num_nodes, "num_nodes"), undirected)
        if scores.shape[-1] != candidates.shape[1]:
            raise ValueError(
                f"`scores` has {scores.shape[-1]} entries on its last axis, but there are {candidates.shape[1]} "
                "candidates: one score for every column of `candidates` is needed."
            )
        self.scores, self.candidates, self.num_nodes, self.undirected = scores, candidates, num_nodes, undirected
        edges = ct.Catnat(scores.unsqueeze(-1), activation=activation, validate_args=validate_args)
        super().__init__(edges, 1, validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> EdgeDistribution:
        """Return the distribution with its batch shape expanded."""
        new = type(self).__new__(type(self)) if _instance is None else _instance
        new.scores = self.scores.expand(*batch_shape, -1)
        new.candidates, new.num_nodes, new.undirected = self.candidates, self.num_nodes, self.undirected
        super().expand(Size(batch_shape), new)
        return new

    @property
    def activation(self) -> ct.Activation:
        """The activation."""
        return self.base_dist.activation

    @property
    def probs(self) -> Float[Tensor, "*batch candidates"]:
        """The probability of every candidate edge."""
        return self.base_dist.probs.select(-1, 1)

    @property
    def mode(self) -> Int[Tensor, "*batch candidates"]:
        """The most probable graph: every edge of probability above 1/2."""
        return self.base_dist.mode

    def saturated(self) -> Bool[Tensor, "*batch candidates"]:
        """Return which edges are saturated: of probability 0 or 1, and without a gradient."""
        return ct.geometry.saturated(self.scores.unsqueeze(-1), activation=self.activation).squeeze(-1)

    def sample(
        self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None
    ) -> Int[Tensor, "*samples_and_batch candidates"]:
        """Draw which candidates are edges, 0 or 1."""
        return self.base_dist.sample(sample_shape, generator=generator)

    def log_prob(self, value: Shaped[Tensor, "*samples_and_batch candidates"]) -> Float[Tensor, "*samples_and_batch"]:
        """Return the log-probability of graphs, given by which candidates are edges; finite."""
        self._check_width(value)
        value = value.long() if value.dtype == torch.bool else value
        if self._validate_args:
            self._validate_sample(value)
        # Sums over many edges can overflow in half precision, so they are taken in the computing dtype.
        return as_returned(pick(self.base_dist.log_probs(), value.long()).sum(-1), self.scores)

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Return the entropy of the graph in nats."""
        return as_returned(entropy_of(self.base_dist.log_probs(floored=False)).sum(-1), self.scores)

    def draw(self, num_graphs: int = 1, *, keep: Keep = "all", generator: torch.Generator | None = None) -> DrawnGraphs:
        """Draw graphs for the layers of PyTorch Geometric.

        Args:
            num_graphs: The number of graphs; for scores with a batch, the number for every row.
            keep: The candidates in ``edge_index``. "all": every candidate. ``edge_weight`` is 1 for drawn edges, and
                passes a straight-through gradient to every score. The layer must multiply messages by ``edge_weight``
                and add them up; for others an edge of weight 0 is still an edge. "drawn": only drawn edges, for any
                layer, with less to compute. Their weights are 1 and pass no gradient, because a gradient of drawn
                edges alone would leave out the effect of the others. Train by ``log_prob``.
            generator: The random generator; torch's default one if not given.
        """
        return self.graphs(self.sample((_count(num_graphs, "num_graphs"),), generator=generator), keep=keep)

    def graphs(self, drawn: Shaped[Tensor, "*samples_and_batch candidates"], *, keep: Keep = "all") -> DrawnGraphs:
        """Return the graphs of given draws, such as :func:`catnat.torch.estimators.score_function` passes to its cost.

        That cost must not pass a straight-through gradient too: keep only drawn edges, or detach the weights.
        """
        if keep not in ("all", "drawn"):
            raise ValueError(f"`keep` is {keep!r}, but must be one of 'all', 'drawn'.")
        self._check_width(drawn)
        wrong = (drawn != 0) & (drawn != 1)
        if not torch.compiler.is_compiling() and known_true(wrong.any()):
            raise ValueError(
                f"`drawn` holds {drawn[wrong][0].item()}, but 0 or 1 is needed for every candidate, as `sample` gives "
                "it. Other numbers would be weights of edges that were not drawn."
            )
        candidates, probs = self.candidates, self.probs
        weight = drawn.to(probs.dtype) + (probs - probs.detach())
        if self.undirected:
            candidates, weight = torch.cat([candidates, candidates.flip(0)], 1), torch.cat([weight, weight], -1)
        rows = weight.reshape(drawn.shape[:-1].numel(), candidates.shape[1])
        offsets = self.num_nodes * torch.arange(len(rows), device=candidates.device)
        edge_index = (candidates.unsqueeze(1) + offsets.unsqueeze(-1)).flatten(1)
        edge_weight = rows.flatten()
        if keep == "drawn":
            places = edge_weight.detach().nonzero().squeeze(-1)
            edge_index, edge_weight = edge_index.index_select(1, places), edge_weight.detach().index_select(0, places)
        return DrawnGraphs(edge_index, edge_weight, drawn, self)

    def _check_width(self, value: Tensor) -> None:
        wanted = (*self.batch_shape, *self.event_shape)
        if tuple(value.shape[max(0, value.ndim - len(wanted)) :]) != wanted:
            needed = ", ".join(map(str, wanted))
            raise ValueError(
                f"`value` has shape {tuple(value.shape)}, but graphs are needed as 0 and 1 for every candidate: "
                f"(..., {needed})."
            )


@td.register_kl(EdgeDistribution, EdgeDistribution)
def _kl_edges(p: EdgeDistribution, q: EdgeDistribution) -> Tensor:
    alike = p.undirected == q.undirected and p.candidates.shape == q.candidates.shape
    if not alike or (not torch.compiler.is_compiling() and known_true((p.candidates != q.candidates).any())):
        raise ValueError(
            "`p` and `q` have different candidates, or the same in another order, or one of them is undirected. Edges "
            "are compared one by one: give both the same `candidates`."
        )
    divergence = divergence_of(p.base_dist.log_probs(floored=False), q.base_dist.log_probs()).sum(-1)
    return as_returned(divergence, p.scores if p.scores.dtype.itemsize >= q.scores.dtype.itemsize else q.scores)


# ---- the module ----


class EdgeSampler(TreeLayer):
    """A learned graph: a module with one score per candidate edge, which draws for layers of PyTorch Geometric.

    Args:
        num_nodes: The number of nodes.
        candidates: The possible edges, (2, E), as in ``edge_index``; all pairs but self loops if not given.
        initial_probs: The initial probability of the edges: a number for all, a range (low, high) of uniform draws, or
            a tensor with one for each; strictly between 0 and 1.
        activation: "natural", "sigmoid", or an activation object.
        undirected: Whether every candidate, given once, stands for both directions, which are drawn together.
        generator: The random generator for a range of probabilities; torch's default one if not given.
        device: The device of scores and candidates.
        dtype: The dtype of the scores.

    Example:
        >>> import torch
        >>> from catnat.integrations.torch_geometric import EdgeSampler
        >>> sampler = EdgeSampler(4, initial_probs=0.1)
        >>> # then conv(graphs.stack(x), graphs.edge_index, graphs.edge_weight)
        >>> graphs = sampler(num_graphs=2)
        >>> graphs.edge_index.shape, graphs.edge_weight.shape
        (torch.Size([2, 24]), torch.Size([24]))
        >>> graphs.edge_weight.sum().backward()
        >>> sampler.scores.grad.shape
        torch.Size([12])
    """

    scores: nn.Parameter
    candidates: Tensor

    def __init__(
        self,
        num_nodes: int,
        candidates: Int[Tensor, "2 candidates"] | None = None,
        *,
        initial_probs: float | tuple[float, float] | Float[Tensor, "candidates"] = 0.5,
        activation: ct.Activation | str = "natural",
        undirected: bool = False,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(2, activation)  # two classes: an edge or not
        if candidates is None:
            candidates = all_pairs(num_nodes, undirected=undirected)
        _check_candidates(candidates, _count(num_nodes, "num_nodes"), undirected)
        self.num_nodes, self.undirected = num_nodes, undirected
        self.register_buffer("candidates", candidates.to(device))
        probs = _initial_probs(initial_probs, candidates.shape[1], generator)
        inside = (probs > 0) & (probs < 1)
        scores = edge_scores(torch.where(inside, probs, 0.5), activation)
        self.scores = nn.Parameter(scores.to(device, dtype or torch.get_default_dtype()))
        if not known_true((inside & ~self.distribution().saturated().cpu()).all()):
            raise ValueError(
                f"`initial_probs` is {initial_probs}, but probabilities strictly between 0 and 1 are needed, and not "
                f"so near 0 or 1 that edges are saturated in {self.scores.dtype}: they would not be trained. Leave "
                "edges that must not exist out of the candidates."
            )

    def distribution(self) -> EdgeDistribution:
        """Return the distribution of the graph, for probabilities, entropy, log-probabilities and saturated edges."""
        return EdgeDistribution(
            self.scores,
            self.candidates,
            self.num_nodes,
            self.activation,
            undirected=self.undirected,
            validate_args=False,
        )

    def forward(
        self, num_graphs: int = 1, *, keep: Keep = "all", generator: torch.Generator | None = None
    ) -> DrawnGraphs:
        """Draw graphs; see :meth:`EdgeDistribution.draw`."""
        return self.distribution().draw(num_graphs, keep=keep, generator=generator)

    def get_extra_state(self) -> Tensor:
        """Return the number of nodes, ``undirected`` and the activation as bytes, for ``state_dict``."""
        facts = {"num_nodes": self.num_nodes, "undirected": self.undirected, "activation": repr(self.activation)}
        return torch.from_numpy(np.frombuffer(json.dumps(facts).encode(), np.uint8).copy())

    def refusal(self, state: Mapping[str, Any], prefix: str) -> str | None:
        """Return why this sampler cannot load a state, or None if it can. Candidates are loaded with the scores."""
        mark = state.get(f"{prefix}_extra_state")
        if not isinstance(mark, Tensor):
            return None
        theirs, mine = (_text(each) for each in (mark, self.get_extra_state()))
        if theirs == mine:
            return None
        return (
            f"The checkpoint is of an EdgeSampler with {theirs[:200]}, but this one has {mine}: its scores would mean "
            "other graphs here. Build the sampler like the saved one."
        )

    def extra_repr(self) -> str:
        """Return the settings that ``print`` shows."""
        return (
            f"num_nodes={self.num_nodes}, candidates={self.candidates.shape[1]}, activation={self.activation}, "
            f"undirected={self.undirected}"
        )


def _text(mark: Tensor) -> str:
    """Return the text of an entry ``_extra_state``; averages of states have floats."""
    return bytes(mark.detach().float().round().clamp(0, 255).byte().cpu().numpy()).decode(errors="replace")


def _initial_probs(
    given: float | tuple[float, float] | Tensor, count: int, generator: torch.Generator | None
) -> Float[Tensor, "candidates"]:
    """Return one probability per candidate, in float64."""
    if isinstance(given, tuple) and len(given) == 2:
        low, high = given
        where = "cpu" if generator is None else generator.device
        uniform = torch.rand(count, dtype=torch.float64, generator=generator, device=where)
        return (low + (high - low) * uniform).cpu()
    probs = torch.as_tensor(given, dtype=torch.float64, device="cpu").detach()
    if probs.ndim and probs.shape != (count,):
        raise ValueError(
            f"`initial_probs` has shape {tuple(probs.shape)}, but a number, a range (low, high) or one probability for "
            f"each of the {count} candidates is needed."
        )
    return probs.expand(count)
