"""The actions that policies on trees are tested with, and their probabilities by the oracle's loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import torch

import catnat

WEIGHTS = [5.0, 3.0, 2.0, 1.0, 1.0]
FOREST = catnat.Forest([3, catnat.chain(4), 2])
TREES: dict[str, Any] = {"discrete": catnat.huffman(WEIGHTS), "multi": FOREST}
ACTIVATIONS = {"natural": oracle.Natural(), "sigmoid": oracle.Sigmoid()}


def sizes(kind: str) -> list[int]:
    return [5] if kind == "discrete" else list(FOREST.sizes)


def scores_for(kind: str, rows: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.as_tensor(np.random.default_rng(seed).normal(size=(rows, TREES[kind].num_nodes)))


def probabilities(kind: str, activation: str, scores: torch.Tensor, masks: Any = None) -> np.ndarray:
    """Of all classes, those of several variables concatenated, divided by their sum over the valid ones."""
    trees = [TREES[kind]] if kind == "discrete" else FOREST.trees
    priors = [WEIGHTS] if kind == "discrete" else [[1.0] * size for size in FOREST.sizes]
    rows, columns = scores.detach().numpy().astype(np.float64), []
    valid = np.ones((len(rows), sum(sizes(kind)))) if masks is None else masks
    parts = np.split(rows, np.cumsum([tree.num_nodes for tree in trees])[:-1], -1)
    masks = np.split(valid, np.cumsum(sizes(kind))[:-1], -1)
    for tree, prior, part, mask in zip(trees, priors, parts, masks, strict=True):
        model = oracle.Model(oracle.from_ids(tree.child_ids), prior, ACTIVATIONS[activation])
        left = np.stack([model.probs(row) for row in part]) * mask
        columns.append(left / left.sum(-1, keepdims=True))
    return np.concatenate(columns, -1)
