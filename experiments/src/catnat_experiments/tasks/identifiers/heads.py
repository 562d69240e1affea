"""The heads of the identifiers experiment: last layers from features to one of very many classes."""

from __future__ import annotations

import abc
import functools
import math
import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

import catnat
import catnat.torch as ct
from catnat_experiments.tasks.identifiers.corpus import Corpus

SAMPLES = 4096
"""The number of classes that the sampled softmax draws in a step."""
SHORTLIST = (0.02, 0.2)
"""The cutoffs of adaptive softmax, as fractions of the classes; the tails have 1/4 and 1/16 of the features."""
ROWS_AT_ONCE = 128
"""The number of rows in a chunk of the fused loss. With torch's default a step on a CPU takes eight times as long."""
CONTEXTS, VECTOR = 1000, 32
"""The number of frequent tokens that are contexts of the clustered tree, and the size of a vector."""
PASS_AT_ONCE = 1 << 20
"""The number of tokens that a learned tree reads at a time."""


class Head(nn.Module, abc.ABC):
    """The last layer of a model. Rows are features (n, d) with a class (n,) each."""

    sparse = False
    """Whether gradients contain only the rows that were read."""

    @abc.abstractmethod
    def loss(self, features: Tensor, target: Tensor) -> Tensor:
        """Return the mean negative log-probability of the targets, or an estimate of it."""

    @abc.abstractmethod
    def log_prob_of(self, features: Tensor, target: Tensor) -> Tensor:
        """Return the exact log-probability of one class per row."""

    @abc.abstractmethod
    def top(self, features: Tensor, k: int) -> tuple[Tensor, float]:
        """Return the k most probable classes of every row, best first, and the fraction of scores computed."""


class Softmax(Head):
    """One score per class. It starts at the frequencies of the classes."""

    def __init__(self, size: int, counts: NDArray[np.int64]) -> None:
        super().__init__()
        start = nn.Linear(size, len(counts)).weight.detach()
        self.weight = nn.Parameter(start)
        self.bias = nn.Parameter(_log_frequencies(counts).unsqueeze(1))  # (K, 1): rows that can be looked up

    def scores(self, features: Tensor) -> Tensor:
        """Return all scores, (n, K)."""
        return F.linear(features, self.weight, self.bias.squeeze(1))

    def loss(self, features: Tensor, target: Tensor) -> Tensor:
        """Use all scores."""
        return F.cross_entropy(self.scores(features), target)

    def log_prob_of(self, features: Tensor, target: Tensor) -> Tensor:
        """Use all scores."""
        return -F.cross_entropy(self.scores(features), target, reduction="none")

    def top(self, features: Tensor, k: int) -> tuple[Tensor, float]:
        """Use all scores."""
        return self.scores(features).topk(k).indices, 1.0


class LinearCrossEntropy(Softmax):
    """A softmax with torch's fused loss, which computes the scores of a few rows at a time."""

    def __init__(self, size: int, counts: NDArray[np.int64]) -> None:
        super().__init__(size, counts)
        if not hasattr(F, "linear_cross_entropy"):
            raise RuntimeError(
                f"torch {torch.__version__} has no linear_cross_entropy, but this head needs it: install torch 2.13 or "
                "later, or leave this head out."
            )
        self._options = nn.LinearCrossEntropyOptions(batch_chunk_size=ROWS_AT_ONCE)

    def loss(self, features: Tensor, target: Tensor) -> Tensor:
        """Use chunks of rows."""
        bias = self.bias.squeeze(1)
        return F.linear_cross_entropy(features, self.weight, target, linear_bias=bias, options=self._options)


def sampled_loss(scores: Tensor, of_target: Tensor, hits: Tensor, log_expected: Tensor) -> Tensor:
    r"""Return the loss of a softmax whose normalizer is estimated from some classes, a mean over rows.

    .. math:: \log\Bigl(e^{s_y} + \sum_{j \ne y} \frac{e^{s_j}}{m_j}\Bigr) - s_y

    where j runs over the drawn classes and :math:`m_j` is the expected number of j among them. So the sum in the
    logarithm is unbiased, and the loss is exact if every class is drawn once.

    Args:
        scores: The scores of the drawn classes, (n, samples).
        of_target: The scores of the targets, (n,).
        hits: Whether a drawn class is the row's target, (n, samples), which is not counted twice.
        log_expected: :math:`\log m_j`, (samples,).
    """
    others = (scores - log_expected).masked_fill(hits, -math.inf)
    return (torch.cat((of_target.unsqueeze(1), others), 1).logsumexp(1) - of_target).mean()


class Sampled(Softmax):
    """A softmax trained with a few classes per step, the same for all rows, drawn with P(j) ~ log(1 + 1 / (j + 1)).

    This is close to the frequencies, because classes are ordered by them.
    """

    sparse = True

    def __init__(self, size: int, counts: NDArray[np.int64], generator: torch.Generator) -> None:
        super().__init__(size, counts)
        self._samples, self._generator = min(SAMPLES, len(counts)), generator

    def draw(self) -> tuple[Tensor, Tensor]:
        """Draw classes, and return them with the logarithm of the expected number of each."""
        log_size = math.log(len(self.weight) + 1)
        uniform = torch.rand(self._samples, generator=self._generator, dtype=torch.float64)
        # rounding may reach the end of the last class
        classes = (uniform * log_size).exp().long().sub(1).clamp(max=len(self.weight) - 1)
        expected = self._samples / log_size * (1 / (classes + 1.0)).log1p()
        return classes, expected.log().float()

    def loss(self, features: Tensor, target: Tensor) -> Tensor:
        """Estimate it from the drawn classes."""
        drawn, log_expected = self.draw()
        weight, bias = (F.embedding(torch.cat((target, drawn)), part, sparse=True) for part in (self.weight, self.bias))
        rows = len(target)
        of_target = (features * weight[:rows]).sum(1) + bias[:rows, 0]
        scores = F.linear(features, weight[rows:], bias[rows:, 0])
        return sampled_loss(scores, of_target, drawn == target.unsqueeze(1), log_expected)


class Adaptive(Head):
    """torch's adaptive softmax: rare classes in two tails of smaller size. Its first part starts at the frequencies."""

    def __init__(self, size: int, counts: NDArray[np.int64]) -> None:
        super().__init__()
        cutoffs = sorted({max(1, round(fraction * len(counts))) for fraction in SHORTLIST})
        self.layer = nn.AdaptiveLogSoftmaxWithLoss(size, len(counts), cutoffs, head_bias=True)
        tails = np.add.reduceat(counts, cutoffs)
        with torch.no_grad():
            self.layer.head.bias.copy_(_log_frequencies(np.concatenate((counts[: cutoffs[0]], tails))))

    def loss(self, features: Tensor, target: Tensor) -> Tensor:
        """Use the tails that contain targets."""
        loss: Tensor = self.layer(features, target).loss
        return loss

    def log_prob_of(self, features: Tensor, target: Tensor) -> Tensor:
        """Do the same as in training."""
        found: Tensor = self.layer(features, target).output
        return found

    def top(self, features: Tensor, k: int) -> tuple[Tensor, float]:
        """Use all log-probabilities."""
        return self.layer.log_prob(features).topk(k).indices, 1.0


class TreeHead(Head):
    """:class:`catnat.torch.CatnatHead` on a tree whose prior is the frequencies, at which it starts."""

    sparse = True

    def __init__(self, size: int, tree: catnat.Tree, activation: ct.Activation) -> None:
        super().__init__()
        self.layer = ct.CatnatHead(size, tree, activation, sparse=True)

    def loss(self, features: Tensor, target: Tensor) -> Tensor:
        """Use the paths of the targets."""
        loss: Tensor = self.layer(features, target).loss
        return loss

    def log_prob_of(self, features: Tensor, target: Tensor) -> Tensor:
        """Use the paths of the targets."""
        return self.layer.log_prob_of(features, target)

    def top(self, features: Tensor, k: int) -> tuple[Tensor, float]:
        """Search, without nodes that cannot lead to them."""
        found = self.layer.topk(features, k)
        return found.indices, float(found.visited.double().mean()) / self.layer.tree.num_nodes


def _log_frequencies(counts: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(np.log(counts / counts.sum())).float()


# ---- trees -----------------------------------------------------------------------------------------------------------


def _random(corpus: Corpus) -> catnat.Tree:
    """Return a balanced tree with its classes in random order."""
    order = np.random.default_rng(0).permutation(len(corpus.counts))
    return catnat.from_clusters(order.tolist()).with_prior(corpus.counts)


def _huffman(corpus: Corpus) -> catnat.Tree:
    """Return a tree in which frequent classes have short paths."""
    return catnat.huffman(corpus.counts)


def _clustered(corpus: Corpus) -> catnat.Tree:
    """Return such a tree in which classes with the same neighbours share most of their path."""
    return catnat.from_embeddings(context_vectors(corpus), corpus.counts)


def _learned(corpus: Corpus, fraction: float) -> catnat.Tree:
    """Return a tree from a pass over all or the first training tokens: class means of vectors of the two before."""
    means = catnat.ClassMeans(len(corpus.counts), 2 * VECTOR)
    tokens = corpus.train[: round(fraction * len(corpus.train))]
    for first in range(0, len(tokens), PASS_AT_ONCE):
        part = tokens[max(0, first - 2) : first + PASS_AT_ONCE]
        means.update(catnat.random_features(np.stack([part[1:-1], part[:-2]], 1), VECTOR), part[2:])
    return catnat.from_embeddings(means.class_means(), corpus.counts)


TREES: dict[str, Callable[[Corpus], catnat.Tree]] = {
    "random": _random,
    "huffman": _huffman,
    "clustered": _clustered,
    "learned": functools.partial(_learned, fraction=1.0),
    "learned-10%": functools.partial(_learned, fraction=0.1),
    "learned-1%": functools.partial(_learned, fraction=0.01),
}


def context_vectors(corpus: Corpus) -> NDArray[np.float32]:
    """Return a vector for every class, from the tokens before and after it in the training files.

    Singular vectors are computed from a table with a row per class and a column per frequent token on either side.
    Entries are square roots of frequencies, so the distance of two rows is Hellinger's.
    """
    from scipy import sparse
    from scipy.sparse import linalg

    size, contexts = len(corpus.counts), min(CONTEXTS, len(corpus.counts))
    before, after = corpus.train[:-1].astype(np.int64), corpus.train[1:].astype(np.int64)
    sides = []
    for classes, neighbours in ((after, before), (before, after)):
        frequent = neighbours < contexts  # classes are in the order of their counts
        cells, times = np.unique(classes[frequent] * contexts + neighbours[frequent], return_counts=True)
        place = (cells // contexts, cells % contexts)
        sides.append(sparse.csr_matrix((np.sqrt(times / corpus.counts[place[0]]), place), (size, contexts)))
    table = sparse.hstack(sides, "csr").astype(np.float32)
    rank = min(VECTOR, min(table.shape) - 1)
    left, values, _ = linalg.svds(table, rank, v0=np.ones(min(table.shape), np.float32))
    vectors: NDArray[np.float32] = left * values
    return vectors


@functools.lru_cache(maxsize=len(TREES))
def tree_of(name: str, corpus: Corpus) -> tuple[catnat.Tree, float]:
    """Return a tree over the corpus' classes, with their counts as its prior, and its processor time."""
    began = time.thread_time()
    return TREES[name](corpus), time.thread_time() - began


def seconds_to_learn(head: str, corpus: Corpus) -> float:
    """Return the processor time to build a learned tree, which is a part of the budget; 0 for other heads."""
    tree = head.partition(" ")[0]
    return tree_of(tree, corpus)[1] if tree.startswith("learned") else 0.0


# ---- by name ---------------------------------------------------------------------------------------------------------

BASELINES = ("softmax", "linear_cross_entropy", "adaptive", "sampled")
HEADS = (*BASELINES, *(f"{tree} sigmoid" for tree in TREES))


def head_of(name: str, size: int, corpus: Corpus, generator: torch.Generator) -> Head:
    """Return a new head by its name.

    Args:
        name: One of :data:`HEADS`; those of catnat are a tree and its activation, the sigmoid.
        size: The size of the features.
        corpus: The corpus, with its classes and their counts.
        generator: The generator of random numbers in training.
    """
    if name not in HEADS:
        raise ValueError(f"`head` is {name!r}, but one of these is needed: {', '.join(HEADS)}.")
    if name == "softmax":
        return Softmax(size, corpus.counts)
    if name == "linear_cross_entropy":
        return LinearCrossEntropy(size, corpus.counts)
    if name == "adaptive":
        return Adaptive(size, corpus.counts)
    if name == "sampled":
        return Sampled(size, corpus.counts, generator)
    tree, _ = name.split()
    return TreeHead(size, tree_of(tree, corpus)[0], ct.sigmoid())
