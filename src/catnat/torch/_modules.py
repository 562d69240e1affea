"""Modules: the twins of nn.Softmax and nn.LogSoftmax, and the layer that makes scores."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from catnat._builders import balanced
from catnat._tree import Tree
from catnat.torch import _functional
from catnat.torch._activations import Activation, resolve

# Scaled scores of this size lie well inside the natural activation's band.
INITIAL_SCORE = 0.5


class _Layer(nn.Module):
    def __init__(self, tree: Tree | None = None, activation: Activation | str = "natural", dim: int = -1) -> None:
        super().__init__()
        self.tree, self.activation, self.dim = tree, resolve(activation), dim

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return f"tree={self.tree}, activation={self.activation}, dim={self.dim}"


class ProbsLayer(_Layer):
    """Scores to probabilities, the twin of ``torch.nn.Softmax``; see :func:`catnat.torch.catnat`.

    Args:
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        dim: The axis of the nodes, which becomes the axis of the classes.

    Example:
        >>> import torch
        >>> from catnat.torch import ProbsLayer
        >>> ProbsLayer()(torch.zeros(1, 3))
        tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """

    def forward(self, scores: Tensor) -> Tensor:
        """The probability of every class."""
        return _functional.catnat(scores, self.tree, self.activation, dim=self.dim)


class LogProbsLayer(_Layer):
    """Scores to log-probabilities, the twin of ``torch.nn.LogSoftmax``; see :func:`catnat.torch.log_catnat`.

    Args:
        tree: The tree; ``balanced(K)`` if not given.
        activation: "natural", "sigmoid", or an activation object.
        dim: The axis of the nodes, which becomes the axis of the classes.

    Example:
        >>> import torch
        >>> from catnat.torch import LogProbsLayer
        >>> LogProbsLayer()(torch.zeros(1, 3))
        tensor([[-1.3863, -1.3863, -1.3863, -1.3863]])
    """

    def forward(self, scores: Tensor) -> Tensor:
        """The log-probability of every class."""
        return _functional.log_catnat(scores, self.tree, self.activation, dim=self.dim)


class ScoreLayer(nn.Linear):
    """The last linear layer of a model: features to the K-1 scores of a tree.

    It starts near the tree's prior. For inputs of unit variance, scores times their scaling have standard deviation at
    most 0.5, well inside the natural activation's band; the bias starts at zero.

    Args:
        in_features: The size of the input.
        classes: The number of classes, or the tree.
        activation: The activation that the scores are meant for.
        bias: Whether to add a bias.

    Example:
        >>> import torch
        >>> from catnat.torch import ScoreLayer
        >>> ScoreLayer(128, 10)(torch.zeros(2, 128)).shape
        torch.Size([2, 9])
    """

    def __init__(
        self,
        in_features: int,
        classes: int | Tree,
        activation: Activation | str = "natural",
        bias: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.tree = classes if isinstance(classes, Tree) else balanced(classes)
        self.activation = resolve(activation)
        super().__init__(in_features, self.tree.num_nodes, bias, device, dtype)

    def reset_parameters(self) -> None:
        """Draw the initial weights anew and set the bias to zero."""
        initialize(self.weight, self.bias, self.tree, self.activation)


def initialize(weight: Tensor, bias: Tensor | None, tree: Tree, activation: Activation) -> None:
    """Rows of a last layer, one a node: for inputs of unit variance scaled scores have standard deviation <= 0.5."""
    draw_rows(weight, bias, torch.as_tensor(activation.scale(tree)))


@torch.no_grad()
def draw_rows(weight: Tensor, bias: Tensor | None, scale: Tensor, generator: torch.Generator | None = None) -> None:
    """The same of some nodes, with the ``scale`` of each."""
    weight.normal_(std=INITIAL_SCORE / max(1, weight.shape[1]) ** 0.5, generator=generator)
    weight.div_(scale.to(weight).clamp(min=1).expand(weight.shape[0]).unsqueeze(-1))
    if bias is not None:
        bias.zero_()
