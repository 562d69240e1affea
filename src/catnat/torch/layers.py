"""Last layers to use in place of ``nn.Linear``, and the checks of their checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from catnat import _checks
from catnat.activations import Activation, resolve
from catnat.torch import _changes, functional
from catnat.torch.distributions import Catnat
from catnat.trees import saving
from catnat.trees.builders import balanced
from catnat.trees.changes import grow, remove
from catnat.trees.tree import Tree

__all__ = ["CatnatLinear", "RowLayer", "TreeLayer", "draw_rows"]

# The standard deviation of initial scores, well inside the natural activation's band.
INITIAL_SCORE = 0.5


class TreeLayer(nn.Module):
    """Base class of layers with a tree and an activation, which their checkpoints identify.

    The entry ``_extra_state`` of the state is a tensor of bytes, because weight files may allow only tensors. It is
    compared before any weight is loaded. If it is missing, torch reports that key, unless ``strict=False``.
    """

    tree: Tree
    activation: Activation

    def __init__(self, classes: int | Tree, activation: Activation | str) -> None:
        super().__init__()
        self.tree = classes if isinstance(classes, Tree) else balanced(_checks.classes_of_layer(classes))
        self.activation = resolve(activation)

    def get_extra_state(self) -> Tensor:
        """Return the tree and the activation as bytes, for ``state_dict``."""
        return torch.from_numpy(saving.fingerprint(self.tree, self.activation))

    def set_extra_state(self, state: Tensor) -> None:
        """Raise for the state of another tree or activation: some loaders of weights call this method alone."""
        wrong = self.refusal({"_extra_state": state}, "")
        if wrong is not None:
            raise ValueError(wrong)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *more: Any) -> None:
        wrong = self.refusal(state_dict, prefix)
        if wrong is None:
            super()._load_from_state_dict(state_dict, prefix, *more)
            return
        error_msgs: list[str] = more[-1]
        error_msgs.append(f"{prefix.rstrip('.')}: {wrong}" if prefix else wrong)

    def refusal(self, state: Mapping[str, Any], prefix: str) -> str | None:
        """Return why this layer cannot load its part of a state, or None if it can; subclasses may compare more."""
        mark, weight = state.get(f"{prefix}_extra_state"), state.get(f"{prefix}weight")
        if mark is not None:
            return saving.mismatch(_array(mark), self.tree, self.activation)
        if weight is not None and weight.ndim == 2 and len(weight) == self.tree.num_classes:
            return saving.softmax_rows(self.tree)
        return None


class RowLayer(TreeLayer):
    """Base class of layers with one row of weights per node, whose tree can be changed in training."""

    in_features: int
    weight: nn.Parameter
    bias: nn.Parameter | None

    def _make_rows(self, bias: bool, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        count = self.tree.num_nodes
        self.weight = nn.Parameter(torch.empty(count, self.in_features, device=device, dtype=dtype))
        rows = nn.Parameter(torch.empty(count, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", rows)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial weights and set the bias to zero."""
        draw_rows(self.weight, self.bias)

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], prefix: str = "", **options: Any) -> Self:
        """Build the layer from its state, with the tree and the activation that the state contains.

        Args:
            state: The ``state_dict()`` of a layer, or of a model that contains one.
            prefix: The prefix of the layer's entries in the state, such as ``"head."``.
            **options: Other arguments of the layer, such as ``sparse`` of a head.
        """
        part = saving.part_of_state(state, prefix)
        shape = tuple(getattr(part["weight"], "shape", ()))
        tree, activation = saving.tree_and_activation(_array(part["_extra_state"]), shape)
        options |= {name: part[name] for name in ("class_weights",) if name in part}
        build: Callable[..., Self] = cls
        layer = build(shape[1], tree, activation, "bias" in part, dtype=part["weight"].dtype, **options)
        layer.load_state_dict(part)
        return layer

    def retree(
        self,
        tree: Tree,
        *,
        features: Float[Tensor, "*batch features"] | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        """Change the tree to another tree over the same classes, such as a better clustering or a new taxonomy.

        Nodes that separate the same classes in both trees keep their rows exactly, negated if their sides are swapped,
        and their optimizer state. The other nodes get new rows. Copies of the layer, such as a moving average, need the
        same change.

        Args:
            tree: The new tree.
            features: Inputs on which new rows are fitted to the layer's present distribution, by ridge regression, in
                O(n K); a few times ``in_features`` of them are enough. Without features new rows are drawn at random.
            optimizer: The optimizer of this layer's parameters, whose state moves with the rows.

        Example:
            >>> import torch, catnat
            >>> from catnat.torch import CatnatHead
            >>> head, x = CatnatHead(3, 4), torch.randn(2, 3)
            >>> before = head.log_probs(x)
            >>> tree = catnat.from_clusters([[3, 2], [1, 0]])  # the same groups, sides swapped
            >>> head.retree(tree)
            >>> torch.allclose(head.log_probs(x), before)
            True
        """
        if tree.num_classes != self.tree.num_classes:
            raise ValueError(
                f"`tree` has {tree.num_classes} classes and the layer {self.tree.num_classes}: use grow or remove."
            )
        if features is None:
            weight = self.weight.new_empty(tree.num_nodes, self.in_features)
            draw_rows(weight, None)
            _changes.change_tree(self, tree, weight, None, optimizer)
        else:
            _changes.change_tree(self, tree, *_changes.fitted_rows(self, tree, features), optimizer)

    def grow(
        self,
        new_classes: int,
        beside: ArrayLike | None = None,
        *,
        fraction: ArrayLike | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        """Add the classes K, K + 1 and so on; see :func:`catnat.grow`.

        Before training, a new class has its fraction of the probability at its position, for every input. The
        probabilities of other classes do not change. Call it between two steps: parameters change their shape.

        Args:
            new_classes: The number of classes to add.
            beside: The class, or the node j as K + j, beside which each new class is added; the root if not given.
            fraction: The fraction of the probability there that each takes; an equal part if not given.
            optimizer: The optimizer of this layer's parameters, whose state moves with the rows.
        """
        count = self.tree.num_classes
        _changes.change_tree(self, grow(self.tree, new_classes, beside, fraction=fraction), None, None, optimizer)
        self._took_classes(np.append(np.arange(count), np.full(self.tree.num_classes - count, -1)))

    def remove(self, classes: ArrayLike, *, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Remove classes, whose probability goes to siblings, and renumber the rest; see :func:`catnat.remove`."""
        tree = remove(self.tree, classes)  # checks the classes
        left = np.delete(np.arange(self.tree.num_classes), np.asarray(classes, dtype=np.int64))
        _changes.change_tree(self, tree, None, None, optimizer, left)
        self._took_classes(left)

    def _took_classes(self, old_classes: NDArray[np.int64]) -> None:
        """Update attributes that have an entry per class, from the old index of each class, -1 for a new class."""

    def scores(self, input: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch nodes"]:
        """Return the scores of all K-1 nodes, O(d K)."""
        return F.linear(input, self.weight, self.bias)

    def distribution(self, input: Float[Tensor, "*batch features"], **options: Any) -> Catnat:
        """Return the distribution over all classes, O(d K) in time and O(K) in memory for every row.

        Args:
            input: Features.
            **options: Keyword arguments of :class:`Catnat`, such as ``mask``.
        """
        return Catnat(self.scores(input), self.tree, self.activation, **options)


class CatnatLinear(RowLayer):
    r"""A last layer that returns log-probabilities of K classes, to use in place of ``nn.Linear(in_features, K)``.

    The output is :func:`log_catnat` of :math:`W x + b`, where W has one row for each of the K-1 nodes. ``log_softmax``
    leaves it unchanged, so it can be used as logits everywhere: in ``F.cross_entropy``, ``argmax``,
    ``Categorical(logits=...)`` and ``F.gumbel_softmax``. With many classes and rows :meth:`loss` is much faster, and so
    are draws and log-probabilities of :meth:`distribution`, because they read only the paths they need.

    For inputs of unit variance the scores start with standard deviation 0.5, near the tree's prior.

    Args:
        in_features: The size of the input.
        classes: The number of classes, or the tree.
        activation: "sigmoid", "natural" (the paper's), or an activation object.
        bias: Whether to add a bias, which starts at zero.

    Example:
        >>> import torch
        >>> from catnat.torch import CatnatLinear
        >>> layer = CatnatLinear(128, 10)
        >>> features, target = torch.zeros(2, 128), torch.tensor([3, 7])
        >>> layer(features).shape
        torch.Size([2, 10])
        >>> torch.nn.functional.cross_entropy(layer(features), target)
        tensor(2.3026, grad_fn=<NllLossBackward0>)
    """

    @_checks.explains(**_checks.NOT_CLASSES)
    def __init__(
        self,
        in_features: int,
        classes: int | Tree,
        activation: Activation | str = "sigmoid",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        _checks.in_features(in_features)
        super().__init__(classes, activation)
        self.in_features, self.out_features = in_features, self.tree.num_classes
        self._make_rows(bias, device, dtype)

    def extra_repr(self) -> str:
        """Return the settings that ``print`` shows."""
        bias = self.bias is not None
        return f"{self.in_features}, {self.tree}, activation={self.activation}, bias={bias}"

    def forward(self, input: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch classes"]:
        """Return the log-probability of every class, which can be used as logits."""
        return functional.log_catnat(self.scores(input), self.tree, self.activation)

    def _took_classes(self, old_classes: NDArray[np.int64]) -> None:
        self.out_features = len(old_classes)

    def log_probs(self, input: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch classes"]:
        """Return what calling the layer returns; heads have this method too."""
        found: Tensor = self(input)
        return found

    def loss(self, input: Float[Tensor, "*batch features"], target: Tensor, **options: Any) -> Float[Tensor, "..."]:
        """Return the cross-entropy of targets; ``options`` are arguments of :func:`cross_entropy`.

        Args:
            input: Features.
            target: Class indices in the batch shape of the input, or class probabilities with a further axis of size K.
            **options: ``weight``, ``ignore_index``, ``reduction``, ``label_smoothing``.
        """
        scores = self.scores(input)
        if scores.ndim > 2:  # the loss takes classes on the second axis, as in torch
            target = target.movedim(-1, 1) if target.ndim == scores.ndim else target
            scores = scores.movedim(-1, 1)
        return functional.cross_entropy(scores, target, self.tree, self.activation, **options)


def _array(mark: Any) -> NDArray[Any] | None:
    """Return the entry ``_extra_state`` of a state as an array, or None if it is not a tensor of bytes or floats."""
    if not isinstance(mark, Tensor):
        return None
    mark = mark.detach().cpu()
    return mark.numpy() if mark.dtype == torch.uint8 else mark.float().numpy() if mark.is_floating_point() else None


@torch.no_grad()
def draw_rows(weight: Tensor, bias: Tensor | None, generator: torch.Generator | None = None) -> None:
    """Draw initial rows of nodes; scores of inputs of unit variance have standard deviation 0.5."""
    if weight.is_meta:  # nothing to draw, and torch would import its compiler for it
        return
    weight.normal_(std=INITIAL_SCORE / max(1, weight.shape[1]) ** 0.5, generator=generator)
    if bias is not None:
        bias.zero_()
