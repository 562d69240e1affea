"""The model of the next token, and its evaluation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from catnat_experiments.tasks.identifiers.corpus import Corpus
from catnat_experiments.tasks.identifiers.heads import head_of

# ---- the model -------------------------------------------------------------------------------------------------------

SIZE = 128
"""The size of embeddings and of the recurrent state."""
STREAMS, LENGTH = 16, 32
"""A step reads the next 32 tokens at each of 16 places in the corpus, and continues from the last step's state."""


class Model(nn.Module):
    """A model from tokens to features of the next ones, with a head."""

    def __init__(self, name: str, size: int, corpus: Corpus, generator: torch.Generator) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(corpus.counts), size, sparse=True)
        self.recurrent = nn.GRU(size, size, batch_first=True)
        self.head = head_of(name, size, corpus, generator)

    def features(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return features (n, size) of tokens (streams, length), n of them in all, and the state after the last."""
        features, state = self.recurrent(self.embedding(tokens), state)
        return features.flatten(0, 1), state

    def optimizers(self, rate: float) -> tuple[torch.optim.Optimizer, ...]:
        """Return the optimizers for sparse and for other gradients."""
        head = list(self.head.parameters())
        sparse, dense = [self.embedding.weight], list(self.recurrent.parameters())
        (sparse if self.head.sparse else dense).extend(head)
        return torch.optim.SparseAdam(sparse, lr=rate), torch.optim.Adam(dense, lr=rate, fused=True)


# ---- evaluation ------------------------------------------------------------------------------------------------------

WINDOW = 64
"""The number of tokens in a window of the validation files; the state before it is zero."""
CURVE_WINDOWS, TOP_WINDOWS = 32, 16
"""The numbers of windows for the points of a curve, and for the accuracies."""
_AT_ONCE = 8
"""The number of windows at a time: 512 rows of 100,000 scores are 200 MB."""


def windows(corpus: Corpus, count: int) -> Tensor:
    """Return validation tokens, (count, WINDOW + 1), from evenly spaced places."""
    last = len(corpus.validation) - WINDOW - 1
    if last < 0:
        raise ValueError(
            f"The validation files have {len(corpus.validation)} tokens, but a window has {WINDOW + 1}: give the "
            "corpus more files."
        )
    firsts = np.linspace(0, last, count).astype(np.int64)
    return torch.from_numpy(corpus.validation[firsts[:, None] + np.arange(WINDOW + 1)]).long()


def _rows(model: Model, chosen: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield features and the tokens that follow them, some windows at a time."""
    for first in range(0, len(chosen), _AT_ONCE):
        part = chosen[first : first + _AT_ONCE]
        yield model.features(part[:, :-1])[0], part[:, 1:].flatten()


@torch.no_grad()
def validation_nll(model: Model, chosen: Tensor) -> float:
    """Return the mean over all tokens of some windows but their first."""
    found = [model.head.log_prob_of(*rows) for rows in _rows(model, chosen)]
    return -float(torch.cat(found).double().mean())


@torch.no_grad()
def accuracies(model: Model, chosen: Tensor) -> dict[str, float]:
    """Return the fractions of next tokens among the one and the five most probable classes."""
    hits, visited = [], []
    for features, target in _rows(model, chosen):
        classes, fraction = model.head.top(features, 5)
        hits.append(classes == target.unsqueeze(1))
        visited.append(len(target) * fraction)
    hit = torch.cat(hits).double()
    return {
        "accuracy_1": float(hit[:, 0].mean()),
        "accuracy_5": float(hit.sum(1).mean()),
        "visited": sum(visited) / len(hit),
    }
