"""The energy score and its gradient."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from catnat_experiments.common.parameterizations import Parameterization

#
# ES = E|Y - y| - 1/2 E|Y - Y'|, with Y and Y' independent predictions. It is zero for a certain and correct one, and
# lowest in expectation for the true distribution. M predictions of a target y have d_m = |Y_m - y|, d_mn = |Y_m - Y_n|.

EPSILON = 1e-6
"""The number added to squared distances: |.| means sqrt(. + 1e-6)."""


def distances(difference: Tensor) -> tuple[Tensor, Tensor]:
    """Return distances of M predictions from the target, (B, M), and from each other, (B, M, M), by a matrix product.

    ``difference`` is (B, M, D), predictions minus their target. The diagonal of the second result has no meaning.
    """
    gram = torch.bmm(difference, difference.transpose(1, 2))
    square = gram.diagonal(dim1=1, dim2=2) + EPSILON / 2
    between = gram.mul_(-2).add_(square.unsqueeze(2)).add_(square.unsqueeze(1)).clamp_(min=EPSILON).sqrt_()
    return (square + EPSILON / 2).sqrt_(), between


def energy_score(to_target: Tensor, between: Tensor) -> Tensor:
    r"""Return the unbiased estimate from M predictions: ``(..., M)`` and ``(..., M, M)`` to ``(...)``.

    .. math:: \frac1M \sum_m d_m - \frac1{2 M (M - 1)} \sum_{m \ne n} d_{mn}
    """
    count = to_target.shape[-1]
    pairs = between.sum((-1, -2)) - between.diagonal(dim1=-2, dim2=-1).sum(-1)
    return to_target.mean(-1) - pairs / (2 * count * (count - 1))


def advantages(to_target: Tensor, between: Tensor) -> Tensor:
    r"""Return the factor of each of M graphs' score function: its signal minus a leave-one-out baseline.

    .. math:: \mathrm{signal}_m = d_m - \operatorname*{mean}_{n \ne m} d_{mn}, \qquad \mathrm{baseline}_m =
        \operatorname*{mean}_{j \ne m} d_j - \operatorname*{mean}_{j \ne k,\ j, k \ne m} d_{jk}

    The baseline does not depend on graph m, so the gradient stays unbiased. All M advantages sum to zero.
    """
    count = to_target.shape[-1]
    row = between.sum(-1) - between.diagonal(dim1=-2, dim2=-1)
    others = (to_target.sum(-1, keepdim=True) - to_target) / (count - 1)
    other_pairs = (row.sum(-1, keepdim=True) - 2 * row) / ((count - 1) * (count - 2))
    return (to_target - row / (count - 1)) - (others - other_pairs)


class Noise(NamedTuple):
    """The random numbers of graphs. Runs with the same seed share them, and differ only in theta."""

    rounding: NDArray[np.float64]  # (nodes, nodes), from 0 to 1
    bits: NDArray[np.uint16]  # (sets, nodes * graphs * nodes)


def make_noise(shape: tuple[int, ...], stream: np.random.Generator) -> Noise:
    """Draw them for graphs of this shape, (sets, nodes, graphs, nodes)."""
    rounding, size = stream.random((shape[1], shape[3])), math.prod(shape)
    words = stream.integers(0, 2**64 - 1, math.ceil(size / 4), dtype=np.uint64, endpoint=True)
    return Noise(rounding, words.view(np.uint16)[:size].reshape(shape[0], -1))


def draw_graphs(theta: Tensor, noise: Noise, out: Tensor) -> Tensor:
    """Draw independent graphs: every entry is 1 with probability ``theta``, else 0.

    Args:
        theta: The probability of an edge from i to j, (nodes, nodes).
        noise: The random numbers.
        out: The tensor to fill, (sets, nodes, graphs, nodes), with the sources of edges before the graphs.
    """
    # Random numbers take a third of the time, so an entry has only 16 bits. The threshold for them is rounded up or
    # down at random in every call, so that the probability of an entry is exactly theta.
    threshold = np.floor(65536 * theta.double().numpy() + noise.rounding).astype(np.int64)
    repeated = np.repeat(threshold.astype(np.uint16)[:, None], out.shape[2], axis=1).reshape(-1)
    out.copy_(torch.from_numpy(np.less(noise.bits, repeated).view(np.uint8)).view(out.shape))
    certain = threshold == 65536  # which 16 bits cannot hold
    return out.masked_fill_(torch.from_numpy(certain[:, None]), 1) if certain.any() else out


class Estimate(NamedTuple):
    """The energy score of a batch and its gradients.

    Attributes:
        score: The mean energy score.
        weight: Its gradient in W.
        pull: The estimated gradient in ``log P(entry = 1)``, (nodes, nodes). Its negative is that in ``log P(entry =
            0)``, because advantages sum to zero.
    """

    score: Tensor
    weight: Tensor
    pull: Tensor


def estimate(weight: Tensor, x: Tensor, y: Tensor, graphs: Tensor) -> Estimate:
    """Compute the energy score of a batch and its gradients, five times as fast as autograd.

    Args:
        weight: The matrix W, (inputs, outputs).
        x: The node features, (batch, nodes, inputs).
        y: The outputs, (batch, outputs * nodes), outputs first.
        graphs: The graphs, (sets, nodes, M, nodes), each set for batch / sets data points.
    """
    sets, nodes, count, _ = graphs.shape
    batch, outputs = len(x), weight.shape[1]
    if count < 3:
        raise ValueError(f"There are {count} graphs a set, but the leave-one-out baseline needs pairs of others: 3.")
    flat = graphs.view(sets, nodes, count * nodes)
    # The prediction of every graph, sum_i (x W)[b, i, o] graphs[i, m, j], minus the target.
    features = (x @ weight).transpose(1, 2).reshape(sets, -1, nodes)
    predictions = torch.bmm(features, flat).view(batch, outputs, count, nodes)
    difference = predictions.transpose(1, 2).reshape(batch, count, outputs * nodes).sub_(y.unsqueeze(1))
    to_target, between = distances(difference)
    score = energy_score(to_target, between).mean()
    advantage = advantages(to_target, between).view(sets, -1, 1, count).sum(1, keepdim=True)
    pull = torch.matmul(advantage, graphs).sum((0, 2)).div_(batch * count)
    # The gradient in prediction m: (M - 1) (Y_m - y) / d_m - sum_n (Y_m - Y_n) / d_mn, as a product with Y - y.
    slope = between.reciprocal_()
    diagonal = slope.diagonal(dim1=1, dim2=2)
    diagonal.zero_()
    diagonal.copy_((count - 1) / to_target - slope.sum(-1))
    toward = torch.bmm(slope, difference).view(batch, count, outputs, nodes).transpose(1, 2)
    toward_features = torch.bmm(toward.reshape(sets, -1, count * nodes), flat.transpose(1, 2))
    toward_weight = torch.einsum("bni,bon->io", x, toward_features.view(batch, outputs, nodes))
    return Estimate(score, toward_weight.div_(batch * count * (count - 1)), pull)


def score_gradient(kind: Parameterization, scores: Tensor, pull: Tensor) -> Tensor:
    """Return the gradient in the scores from that in ``log P(entry = 1)``, by autograd of the parameterization."""
    with torch.enable_grad():
        leaf = scores.detach().requires_grad_()
        log_probs = kind.log_probs(leaf)
    return torch.autograd.grad(log_probs, leaf, torch.stack((-pull, pull), -1))[0]
