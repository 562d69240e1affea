"""Modules: the counterparts of nn.Softmax and nn.LogSoftmax, and the layer that makes scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from catnat import _checks
from catnat.activations import Activation, resolve
from catnat.torch import functional
from catnat.torch.distributions import Catnat
from catnat.trees import saving
from catnat.trees.builders import balanced
from catnat.trees.tree import Tree

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
    """Scores to probabilities, the counterpart of ``torch.nn.Softmax``; see :func:`catnat.torch.catnat`.

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
        return functional.catnat(scores, self.tree, self.activation, dim=self.dim)


class LogProbsLayer(_Layer):
    """Scores to log-probabilities, the counterpart of ``torch.nn.LogSoftmax``; see :func:`catnat.torch.log_catnat`.

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
        return functional.log_catnat(scores, self.tree, self.activation, dim=self.dim)


class Fingerprinted(nn.Module):
    """A layer whose checkpoints carry a fingerprint of what its weights mean, checked before any of them is loaded.

    A tensor of bytes, because files of weights may hold tensors alone. Where it is missing, torch names the key
    ``_extra_state``, unless it is told ``strict=False``.
    """

    def get_extra_state(self) -> Tensor:
        """The fingerprint, in ``state_dict`` beside the weights."""
        return torch.from_numpy(self._fingerprint())

    def set_extra_state(self, state: Tensor) -> None:
        """Nothing is left to do: the fingerprint has been checked."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *more: Any) -> None:
        wrong = self._refusal(state_dict, prefix)
        if wrong is None:
            super()._load_from_state_dict(state_dict, prefix, *more)
            return
        error_msgs: list[str] = more[-1]
        error_msgs.append(f"{prefix.rstrip('.')}: {wrong}" if prefix else wrong)

    def _refusal(self, state_dict: dict[str, Any], prefix: str) -> str | None:
        """Why this layer cannot take its part of a state, if it cannot."""
        mark = state_dict.get(f"{prefix}_extra_state")
        return None if mark is None else self._mismatch(mark.cpu().numpy())

    def _fingerprint(self) -> NDArray[np.uint8]:
        raise NotImplementedError

    def _mismatch(self, found: NDArray[np.uint8]) -> str | None:
        raise NotImplementedError


class OnTree(Fingerprinted):
    """What layers with a tree have in common: their checkpoints say which tree and which activation."""

    tree: Tree
    activation: Activation

    def _fingerprint(self) -> NDArray[np.uint8]:
        return saving.fingerprint(self.tree, self.activation)

    def _mismatch(self, found: NDArray[np.uint8]) -> str | None:
        return saving.mismatch(found, self.tree, self.activation)

    def _refusal(self, state_dict: dict[str, Any], prefix: str) -> str | None:
        wrong, weight = super()._refusal(state_dict, prefix), state_dict.get(f"{prefix}weight")
        if wrong is None and weight is not None and weight.ndim == 2 and len(weight) == self.tree.num_classes:
            return saving.softmax_rows(self.tree)
        return wrong


class ScoreLayer(OnTree, nn.Linear):
    """The last linear layer of a model: features to the K-1 scores of a tree.

    The layer knows its tree and its activation, so take probabilities and losses from it rather than from its scores:
    ``distribution(x)``, ``log_probs(x)`` and ``loss(x, target)`` cannot be called with another tree by mistake. Its
    ``state_dict`` carries a fingerprint of both, as ``_extra_state``: a layer with another tree or activation refuses
    to load it. Weights without it, of which nobody knows what they are for, are taken with ``strict=False``.

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
        >>> layer = ScoreLayer(128, 10)
        >>> layer(torch.zeros(2, 128)).shape
        torch.Size([2, 9])
        >>> layer.distribution(torch.zeros(2, 128)).sample().shape
        torch.Size([2])
        >>> layer.loss(torch.zeros(2, 128), torch.tensor([3, 7]))
        tensor(2.3026, grad_fn=<DivBackward0>)
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
        _checks.in_features(in_features)
        self.tree = classes if isinstance(classes, Tree) else balanced(classes)
        self.activation = resolve(activation)
        super().__init__(in_features, self.tree.num_nodes, bias, device, dtype)

    def reset_parameters(self) -> None:
        """Draw the initial weights anew and set the bias to zero."""
        initialize(self.weight, self.bias, self.tree, self.activation)

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        bias = self.bias is not None
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, tree={self.tree}, activation={self.activation}, bias={bias}"

    def distribution(self, input: Float[Tensor, "*batch features"], **options: Any) -> Catnat:
        """The distribution over the classes; ``options`` are those of :class:`Catnat`, such as ``mask``."""
        return Catnat(self(input), self.tree, self.activation, **options)

    def log_probs(self, input: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch classes"]:
        """The log-probability of every class; see :func:`log_catnat`."""
        return functional.log_catnat(self(input), self.tree, self.activation)

    def loss(self, input: Float[Tensor, "*batch features"], target: Tensor, **options: Any) -> Float[Tensor, "..."]:
        """The cross-entropy of targets; ``options`` are those of :func:`cross_entropy`, such as ``reduction``.

        Args:
            input: Features.
            target: Class indices in the batch shape of the input, or class probabilities with K on a last axis more.
            **options: ``weight``, ``ignore_index``, ``reduction``, ``label_smoothing``.
        """
        scores = self(input)
        if scores.ndim > 2:  # the loss has classes on its second axis, as torch's does
            target = target.movedim(-1, 1) if target.ndim == scores.ndim else target
            scores = scores.movedim(-1, 1)
        return functional.cross_entropy(scores, target, self.tree, self.activation, **options)


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
