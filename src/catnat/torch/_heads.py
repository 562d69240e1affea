"""The last layer for very many classes: a loss, a draw and a search that read a path's rows and no others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from catnat import _checks
from catnat._builders import balanced
from catnat._tree import Tree
from catnat.torch import _functional, _paths, _plan, _topk
from catnat.torch._activations import Activation, resolve
from catnat.torch._distributions import Catnat
from catnat.torch._modules import initialize
from catnat.torch._nodes import Rows
from catnat.torch._topk import TopK


class HeadOutput(NamedTuple):
    """What a head returns in training, as ``torch.nn.AdaptiveLogSoftmaxWithLoss`` does."""

    output: Float[Tensor, "*batch"]
    """The log-probability of every target."""
    loss: Float[Tensor, ""]
    """Their mean, negative."""


class CatnatHead(nn.Module):
    r"""Features to a categorical variable of very many classes, with the interface of ``AdaptiveLogSoftmaxWithLoss``.

    The score of node i is :math:`w_i \cdot x + b_i`. The loss of a target needs the scores on its path alone, so a step
    costs O(d log K) an example, where a softmax costs O(d K); and so do draws. Rows of untouched nodes are neither read
    nor written with ``sparse=True``.

    It starts near the tree's prior. For inputs of unit variance, scores times their scaling have standard deviation at
    most 0.5; the bias starts at zero.

    Args:
        in_features: The size d of the input.
        classes: The number of classes, or the tree. ``huffman(counts)`` has the shortest paths.
        activation: "natural", "sigmoid", or an activation object.
        bias: Whether to add a bias.
        sparse: Whether gradients of ``weight`` and ``bias`` are sparse tensors that hold the touched rows alone. Use it
            from about 100,000 classes on, with ``torch.optim.SparseAdam``, ``Adagrad`` or ``SGD`` without momentum.
        class_weights: A factor on the loss per class.
        ignore_index: A target that counts nothing.

    Example:
        >>> import torch
        >>> from catnat.torch import CatnatHead
        >>> head = CatnatHead(64, 1_000_000, sparse=True)
        >>> features, target = torch.randn(8, 64), torch.randint(1_000_000, (8,))
        >>> output, loss = head(features, target)
        >>> loss.backward()  # reads and writes 8 paths of 20 nodes
        >>> head.sample(features).shape
        torch.Size([8])
    """

    class_weights: Tensor | None

    def __init__(
        self,
        in_features: int,
        classes: int | Tree,
        activation: Activation | str = "natural",
        bias: bool = True,
        *,
        sparse: bool = False,
        class_weights: Float[Tensor, "classes"] | None = None,
        ignore_index: int = -100,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.sparse, self.ignore_index = in_features, sparse, ignore_index
        self.tree = classes if isinstance(classes, Tree) else balanced(classes)
        self.activation = resolve(activation)
        if class_weights is not None:
            _checks.class_weights(class_weights.shape, "class_weights", self.tree.num_classes)
        self.register_buffer("class_weights", class_weights)
        self.weight = nn.Parameter(torch.empty(self.tree.num_nodes, in_features, device=device, dtype=dtype))
        if bias:
            self.bias = nn.Parameter(torch.empty(self.tree.num_nodes, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial weights anew and set the bias to zero."""
        initialize(self.weight, self.bias, self.tree, self.activation)

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        bias = self.bias is not None
        return f"{self.in_features}, {self.tree}, {self.activation}, bias={bias}, sparse={self.sparse}"

    def forward(self, input: Float[Tensor, "*batch features"], target: Int[Tensor, "*batch"]) -> HeadOutput:
        """The log-probability of every target, 0 for ignored ones, and the loss."""
        rows = self._rows(input)
        _checks.one_class_per_row(target.shape, input.shape)
        counts = target != self.ignore_index
        classes = torch.where(counts, target, torch.zeros_like(target)).long()
        _functional.check_classes(classes, self.tree.num_classes)
        found = _path_log_prob(rows, classes) * counts
        weights = counts.to(found.dtype)
        if self.class_weights is not None:
            weights = weights * _plan.look_up(self.class_weights.to(found.dtype), classes)
        total = weights.sum()
        loss = -(found * weights).sum() / torch.where(total == 0, torch.ones_like(total), total)
        dtype = _plan.returned_dtype(input)
        return HeadOutput(_plan.saturate(found, dtype), _plan.saturate(loss, dtype))

    def scores(self, input: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch nodes"]:
        """The scores of all nodes, O(d K)."""
        return F.linear(input, self.weight, self.bias)

    def log_prob(self, input: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch classes"]:
        """The log-probability of every class, O(d K)."""
        return _functional.log_catnat(self.scores(input), self.tree, self.activation)

    def log_prob_of(
        self, input: Float[Tensor, "*batch features"], classes: Int[Tensor, "*batch_and_more"]
    ) -> Float[Tensor, "*batch_and_more"]:
        """The log-probability of given classes, whose leading axes are the input's batch; reads their paths alone."""
        rows = self._rows(input)
        _checks.classes_of_rows(classes.shape, input.shape)
        _functional.check_classes(classes, self.tree.num_classes)
        return _plan.saturate(_path_log_prob(rows, classes.long()), _plan.returned_dtype(input))

    def sample(
        self,
        input: Float[Tensor, "*batch features"],
        sample_shape: Sequence[int] = (),
        *,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "*samples_and_batch"]:
        """Draw classes by walking down from the root; reads the rows on the way alone."""
        with torch.no_grad():
            rows, count = self._rows(input), torch.Size(sample_shape).numel()
            drawn = _paths.descend(rows, count, generator).movedim(-1, 0)
        return drawn.reshape((*sample_shape, *rows.batch))

    def topk(self, input: Float[Tensor, "*batch features"], k: int, *, max_nodes: int | None = None) -> TopK:
        """The ``k`` most probable classes, found by their paths.

        The probability of reaching a node bounds that of every class below it, so most of the tree need not be
        entered, the less the more certain the head is. Near the prior nearly all of it must.

        Args:
            input: Features.
            k: How many classes.
            max_nodes: Stop, with the best classes found, when this many nodes of a row have been asked. The first way
                down, of at most k nodes a level, is always gone.
        """
        _checks.how_many(k, self.tree.num_classes)
        with torch.no_grad():
            rows = self._rows(input)
            found = _topk.topk(rows._replace(input=rows.input.reshape(-1, self.in_features)), k, max_nodes)
        values, indices = (part.view(*rows.batch, k) for part in found[:2])
        proven, visited = (part.view(rows.batch) for part in found[2:])
        return TopK(values.to(_plan.returned_dtype(input)), indices, proven, visited)

    def predict(self, input: Float[Tensor, "*batch features"]) -> Int[Tensor, "*batch"]:
        """The most probable class; see :meth:`topk`."""
        return self.topk(input, 1).indices.squeeze(-1)

    def distribution(self, input: Float[Tensor, "*batch features"]) -> Catnat:
        """The distribution over all classes, O(d K) in time and O(K) in memory for every row."""
        return Catnat(self.scores(input), self.tree, self.activation)

    def _rows(self, input: Tensor) -> Rows:
        _plan.check_tensor(input, "input")
        _checks.features(input.shape, input.dtype, input.is_floating_point(), self.in_features)
        return Rows(input, self.weight, self.bias, self.tree, self.activation, self.sparse)


def _path_log_prob(rows: Rows, classes: Tensor) -> Tensor:
    """The log-probability of classes, batch or batch + any axes."""
    queries = classes.reshape(*rows.batch, classes.shape[len(rows.batch) :].numel())
    return _paths.path_log_prob(rows, queries).view(classes.shape)
