"""The network of :class:`catnat.sklearn.HeadClassifier`: an embedding of the features, and a head on a tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn import functional as F

from catnat import Tree
from catnat.sklearn._labels import Floats, Ints, pre_order
from catnat.torch import CatnatHead, log_catnat


class Network:
    """Weights, their optimizer, and steps on batches of rows.

    Adagrad takes sparse gradients, which batches of classes have, and dense ones, which labels at groups have.
    """

    def __init__(self, features: int, width: int, tree: Tree, rate: float, row_norm: float, seed: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = torch.nn.Parameter(torch.randn(features, width) / row_norm)
            self.head = CatnatHead(width, tree, sparse=True)
        self.optimizer = torch.optim.Adagrad([self.embedding, *self.head.parameters()], lr=rate)
        number, self._end = map(torch.from_numpy, pre_order(tree))
        self._number, self._leaves = number, number[tree.num_nodes :]

    def step(self, X: Any, ids: Ints, weights: Floats) -> float:
        """One step down the gradient of the weighted negative log-probabilities, whose sum is returned.

        The sum is divided by the number of rows, not by that of the weights: rows of weight 2, alone in a batch, would
        count as those of weight 1.
        """
        loss = -(self._log_prob(X, torch.from_numpy(ids)) * torch.from_numpy(weights).float()).sum()
        self.optimizer.zero_grad()
        (loss / len(ids)).backward()
        with torch.sparse.check_sparse_tensor_invariants(False):  # said, so that torch does not warn of the default
            self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def log_prob(self, X: Any, ids: Ints) -> Floats:
        """The log-probability of every row's label."""
        return self._log_prob(X, torch.from_numpy(ids)).double().numpy()

    @torch.no_grad()
    def log_leaves(self, X: Any) -> Floats:
        """The log-probability of every class of the tree, (rows, K)."""
        scores = self.head.scores(self._embed(X)).double()
        return log_catnat(scores, self.head.tree, self.head.activation).numpy()

    def _embed(self, X: Any) -> Tensor:
        if not sparse.issparse(X):
            return torch.from_numpy(np.ascontiguousarray(X)) @ self.embedding
        columns, starts = (torch.from_numpy(each.astype(np.int64)) for each in (X.indices, X.indptr[:-1]))
        values = torch.from_numpy(X.data)
        return F.embedding_bag(columns, self.embedding, starts, mode="sum", sparse=True, per_sample_weights=values)

    def _log_prob(self, X: Any, ids: Tensor) -> Tensor:
        """The log-probability of classes by their paths, of groups by the sum over their leaves."""
        embedded, nodes = self._embed(X), self.head.tree.num_nodes
        of_class, of_group = (ids >= nodes).nonzero()[:, 0], (ids < nodes).nonzero()[:, 0]
        found = embedded.new_zeros(len(ids))
        if len(of_class):
            found = found.index_put((of_class,), self.head(embedded[of_class], ids[of_class] - nodes).output)
        if len(of_group):
            groups = ids[of_group, None]
            inside = (self._leaves >= self._number[groups]) & (self._leaves < self._end[groups])
            logs = self.head.log_probs(embedded[of_group]).masked_fill(~inside, -torch.inf)
            found = found.index_put((of_group,), logs.logsumexp(-1))
        return found
