"""Last layers for very many classes: a loss, draws and a search that read only the rows of the paths they need."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from catnat import _checks
from catnat.activations import Activation
from catnat.torch import _inputs, _options, _topk, _walk, functional
from catnat.torch._branches import Branches, branches_of
from catnat.torch._lookup import plan_for
from catnat.torch._plan import Plan, look_up
from catnat.torch._topk import TopK
from catnat.torch._walk import Reader
from catnat.torch.layers import RowLayer, TreeLayer
from catnat.trees import saving
from catnat.trees.tree import Tree

__all__ = [
    "Branches",
    "CatnatHead",
    "HeadOutput",
    "PathHead",
    "Paths",
    "Plan",
    "Reader",
    "RowReader",
    "TopK",
    "branches_of",
]

Result = TypeVar("Result")


class HeadOutput(NamedTuple):
    """Log-probabilities and loss, as ``torch.nn.AdaptiveLogSoftmaxWithLoss`` gives them; see :class:`CatnatHead`."""

    output: Float[Tensor, "*batch"]
    """The log-probability of every target."""
    loss: Float[Tensor, ""]
    """The negative mean of ``output``, weighted by class and without ignored targets."""


class RowReader(NamedTuple):
    """A reader that computes scores when they are read, as products of the input and a node's row of weights."""

    input: Tensor
    weight: Tensor
    bias: Tensor | None
    sparse: bool = False

    @property
    def batch(self) -> torch.Size:
        """The shape of the rows."""
        return self.input.shape[:-1]

    @property
    def like(self) -> Tensor:
        """A tensor with the computing dtype and the device of the input."""
        return self.input.new_empty((), dtype=_inputs.computing_dtype(self.input.dtype))

    def select(self, rows: Tensor) -> RowReader:
        """Return a reader of the given rows of the input."""
        return self._replace(input=self.input[rows])

    def at(self, nodes: Tensor) -> Tensor:
        """Return the scores at ``nodes``, whose leading axes are the input's batch."""
        rows = F.embedding(nodes, self.weight, sparse=self.sparse).flatten(self.input.ndim - 1, -2)
        return self._with_bias(torch.matmul(rows, self.input.unsqueeze(-1)).view(nodes.shape), nodes)

    def each(self, row: Tensor, node: Tensor) -> Tensor:
        """Return one score per entry of ``row`` and ``node``: that of the input row at the node."""
        weights = F.embedding(node, self.weight, sparse=self.sparse)
        return self._with_bias((weights * self.input.index_select(0, row)).sum(-1), node)

    def _with_bias(self, scores: Tensor, nodes: Tensor) -> Tensor:
        if self.bias is not None:
            scores = scores + self.bias.gather(0, nodes.flatten(), sparse_grad=self.sparse).view(nodes.shape)
        return _inputs.widen(scores)


class Paths(NamedTuple):
    """The nodes on the paths to some classes, as a list without padding, for trees whose paths differ in length."""

    shape: torch.Size  # the shape of the classes, (rows, n)
    query: Tensor  # for each entry, the index of its path in the flattened classes
    node: Tensor  # the node of each entry
    bit: Tensor  # the branch taken there, 0 or 1

    @classmethod
    def to(cls, classes: Tensor, plan: Plan) -> Paths:
        """Return the paths to ``classes``."""
        index, bits = _walk.path(plan, classes.flatten())
        on_path = index >= 0
        return cls(classes.shape, on_path.nonzero()[:, 0], index[on_path], bits[on_path])

    @property
    def row(self) -> Tensor:
        """The row of the input to which each entry belongs."""
        return torch.div(self.query, self.shape[1], rounding_mode="floor")

    def log_prob(self, plan: Plan, scores: Tensor) -> Tensor:
        """Return the log-probability of each class, (rows, n), from the scores of all entries."""
        no, yes = plan.branches.at(self.node).log_probs(scores, floored=True)
        branches = torch.where(self.bit == 1, yes, no)
        return branches.new_zeros(self.shape.numel()).index_add(0, self.query, branches).view(self.shape)


_NEEDS_TARGET = (
    "A head takes features and their targets, and returns log-probabilities and the loss, as "
    "torch.nn.AdaptiveLogSoftmaxWithLoss does. Without targets call distribution(input), log_probs(input), "
    "predict(input) or topk(input, k)."
)


_INDICES_NOT_MASK = "Pass the indices of the valid classes as `valid_classes`, or use distribution(input, mask=mask)."


class PathHead(TreeLayer):
    """Base class of heads that walk the tree and read only the rows on their paths.

    A subclass defines how rows are read, in ``_log_prob`` and ``_with_reader``.
    """

    class_weights: Tensor | None

    def __init__(
        self,
        in_features: int,
        classes: int | Tree,
        activation: Activation | str,
        sparse: bool,
        class_weights: Tensor | None,
        ignore_index: int,
    ) -> None:
        _checks.in_features(in_features)
        super().__init__(classes, activation)
        self.in_features, self.sparse, self.ignore_index = in_features, sparse, ignore_index
        if class_weights is not None:
            _inputs.check_tensor(class_weights, "class_weights")
            _checks.class_weights(class_weights.shape, "class_weights", self.tree.num_classes)
        self.register_buffer("class_weights", class_weights)

    def _plan(self, input: Tensor) -> Plan:
        return plan_for(input, self.tree, self.activation, self.tree.num_classes - 1)

    def _log_prob(self, input: Tensor, classes: Tensor) -> Tensor:
        """Return the log-probabilities of ``classes``, (rows, n), in the computing dtype."""
        raise NotImplementedError

    def _with_reader(self, input: Tensor, walk: Callable[[Reader], Result]) -> Result:
        """Call ``walk`` with a reader of the scores of ``input``, without gradients, and return its result."""
        raise NotImplementedError

    @_checks.needs(target=_NEEDS_TARGET)
    def forward(self, input: Float[Tensor, "*batch features"], target: Int[Tensor, "*batch"]) -> HeadOutput:
        """Return the log-probability of every target, 0 for ignored targets, and the loss."""
        self._check_input(input)
        target = _inputs.class_indices(target, "target")
        _checks.one_class_per_row(target.shape, input.shape)
        counts = target != self.ignore_index
        classes = torch.where(counts, target, 0)
        found = torch.where(counts, self._log_probs_of(input, classes), 0)  # also if their features are NaN
        weights = counts.to(found.dtype)
        if self.class_weights is not None:
            weights = weights * look_up(self.class_weights.to(found.dtype), classes)
        total = weights.sum()
        loss = -(found * weights).sum() / torch.where(total == 0, 1, total)
        return HeadOutput(_inputs.as_returned(found, input), _inputs.as_returned(loss, input))

    def loss(self, input: Float[Tensor, "*batch features"], target: Int[Tensor, "*batch"]) -> Float[Tensor, ""]:
        """Return only the loss, the mean negative log-probability of the targets."""
        loss: Tensor = self(input, target).loss
        return loss

    def log_prob_of(
        self, input: Float[Tensor, "*batch features"], classes: Int[Tensor, "*batch_and_more"]
    ) -> Float[Tensor, "*batch_and_more"]:
        """Return the log-probability of classes whose leading axes are the input's batch, reading only their paths."""
        self._check_input(input)
        classes = _inputs.class_indices(classes, "classes")
        _checks.classes_of_rows(classes.shape, input.shape)
        return _inputs.as_returned(self._log_probs_of(input, classes), input)

    def _log_probs_of(self, input: Tensor, classes: Tensor) -> Tensor:
        rows = input.shape[:-1].numel()
        queries = classes.reshape(rows, classes.shape[input.ndim - 1 :].numel())
        try:
            return self._log_prob(input.reshape(rows, self.in_features), queries).view(classes.shape)
        except (IndexError, RuntimeError) as error:
            _inputs.explain_classes(error, classes, self.tree.num_classes)
            raise

    def _check_input(self, input: Tensor) -> None:
        if not isinstance(input, Tensor):
            _inputs.check_tensor(input, "input")  # type: ignore[unreachable]
        _checks.features(input.shape, input.dtype, input.is_floating_point(), self.in_features)

    @_checks.explains(mask=_INDICES_NOT_MASK)
    def sample(
        self,
        input: Float[Tensor, "*batch features"],
        sample_shape: Sequence[int] = (),
        *,
        valid_classes: Int[Tensor, "*#batch some"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "*samples_and_batch"]:
        """Draw classes by walking down from the root, reading only the rows on the paths.

        Args:
            input: Features.
            sample_shape: The shape of independent draws, which precedes the batch shape in the result.
            valid_classes: The classes to draw from, as with the mask of :class:`Catnat`: indices (m,) for all rows, or
                (..., m) for each row, padded with -1. Only their m paths are read, for any K. The log-probabilities of
                these classes are then ``head.log_prob_of(input, valid_classes).log_softmax(-1)``.
            generator: The random generator; torch's default one if not given.

        Example:
            >>> import torch
            >>> from catnat.torch import CatnatHead
            >>> policy = CatnatHead(16, 100_000)
            >>> policy.sample(torch.zeros(2, 16), valid_classes=torch.tensor([[7], [99_999]]))
            tensor([    7, 99999])
        """
        self._check_input(input)
        sample_shape, plan = _checks.shape_of_samples(sample_shape), self._plan(input)
        count = math.prod(sample_shape)
        if valid_classes is None:
            drawn = self._with_reader(input, lambda reader: _walk.descend(plan, reader, count, generator))
        else:
            among = self._among(valid_classes, input)
            drawn = self._with_reader(input, lambda reader: _walk.draw_among(plan, reader, among, count, generator))
        return _inputs.samples_first(drawn, sample_shape)

    def _among(self, valid_classes: Tensor, input: Tensor) -> Tensor:
        """Return the checked classes to draw from, for every row of the input."""
        on_cpu = valid_classes.device.type == "cpu" if isinstance(valid_classes, Tensor) else True
        found = _options.checked_indices(valid_classes, self.tree.num_classes, check=on_cpu)
        _checks.rows_of_indices(found.shape, input.shape)
        nothing = (found < 0).all(-1)
        if _inputs.known_at_once(nothing.any()):
            _checks.no_valid_class(int(nothing.sum()))
        return found.expand(*input.shape[:-1], -1)

    def topk(self, input: Float[Tensor, "*batch features"], k: int, *, max_nodes: int | None = None) -> TopK:
        """Find the ``k`` most probable classes without computing all of them.

        The probability of reaching a node bounds that of every class below it, so large parts of the tree are not read.
        The more certain the head is, the fewer nodes are read. Near the prior nearly all nodes are read.

        Args:
            input: Features.
            k: The number of classes.
            max_nodes: Stop when this many nodes of a row have been read, and return the best classes found so far. The
                first descent, of at most k nodes per level, is always completed.
        """
        self._check_input(input)
        _checks.how_many(k, self.tree.num_classes)
        batch = input.shape[:-1]
        flat = input.reshape(batch.numel(), self.in_features)
        found = self._with_reader(flat, lambda reader: _topk.topk(self._plan(input), reader, k, max_nodes))
        values, indices = (part.view(*batch, k) for part in found[:2])
        proven, visited = (part.view(batch) for part in found[2:])
        return TopK(_inputs.as_returned(values, input), indices, proven, visited)

    def predict(self, input: Float[Tensor, "*batch features"]) -> Int[Tensor, "*batch"]:
        """Return the most probable class; see :meth:`topk`."""
        return self.topk(input, 1).indices.squeeze(-1)


class CatnatHead(PathHead, RowLayer):
    r"""A last layer for very many classes, with the interface of ``torch.nn.AdaptiveLogSoftmaxWithLoss``.

    The score of node i is :math:`w_i \cdot x + b_i`. The loss of a target needs only the scores on its path, so an
    example costs O(d log K), where a softmax costs O(d K). Draws cost the same. With ``sparse=True``, rows of other
    nodes are neither read nor written.

    For inputs of unit variance the scores start with standard deviation 0.5, near the tree's prior; the bias starts at
    zero.

    Args:
        in_features: The size d of the input.
        classes: The number of classes, or the tree. ``huffman(counts)`` has the shortest paths.
        activation: "sigmoid", "natural" (the paper's), or an activation object.
        bias: Whether to add a bias.
        sparse: Whether gradients of ``weight`` and ``bias`` are sparse tensors of the rows that were read. Use it for
            about 100,000 classes or more, with ``torch.optim.SparseAdam``, ``Adagrad`` or ``SGD`` without momentum, and
            with weights in float32, because torch adds sparse gradients in the dtype of the weights.
        class_weights: A factor per class on the loss.
        ignore_index: A target that is ignored.

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

    @_checks.explains(**_checks.NOT_CLASSES)
    def __init__(
        self,
        in_features: int,
        classes: int | Tree,
        activation: Activation | str = "sigmoid",
        bias: bool = True,
        *,
        sparse: bool = False,
        class_weights: Float[Tensor, "classes"] | None = None,
        ignore_index: int = -100,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, classes, activation, sparse, class_weights, ignore_index)
        self._make_rows(bias, device, dtype)
        if self.class_weights is not None:
            self.class_weights = self.class_weights.to(self.weight.device)

    def extra_repr(self) -> str:
        """Return the settings that ``print`` shows."""
        bias = self.bias is not None
        return f"{self.in_features}, {self.tree}, {self.activation}, bias={bias}, sparse={self.sparse}"

    def _log_prob(self, input: Tensor, classes: Tensor) -> Tensor:
        plan, reader = self._plan(input), RowReader(input, self.weight, self.bias, self.sparse)
        half = self.weight.dtype.itemsize < 4 and not self.sparse
        if half and self.weight.requires_grad and torch.is_grad_enabled():
            # The gradient of a row is a sum over the batch, which would stop growing in half precision.
            reader = reader._replace(input=_inputs.widen(input), weight=_inputs.widen(self.weight))
        if self.tree.kind == "balanced" or input.device.type != "cpu" or not _inputs.runs_eagerly(input, classes):
            return _walk.path_log_prob(plan, reader, classes)
        # Paths without padding. Not on another device, where the call would wait for the length of the list, and not
        # in transforms, where a list has no length.
        paths = Paths.to(classes, plan)
        return paths.log_prob(plan, reader.each(paths.row, paths.node))

    @torch.no_grad()
    def _with_reader(self, input: Tensor, walk: Callable[[Reader], Result]) -> Result:
        return walk(RowReader(input, self.weight, self.bias))

    def _took_classes(self, old_classes: NDArray[np.int64]) -> None:
        if self.class_weights is not None:
            one = self.class_weights.new_ones(1)
            self.class_weights = torch.cat([self.class_weights, one])[torch.as_tensor(old_classes)]

    def log_probs(self, input: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch classes"]:
        """Return the log-probability of every class, O(d K)."""
        return functional.log_catnat(self.scores(input), self.tree, self.activation)

    def log_prob(self, input: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch classes"]:
        """Call :meth:`log_probs`; ``torch.nn.AdaptiveLogSoftmaxWithLoss`` has this name for it."""
        return self.log_probs(input)

    # ---- files ----

    def save(self, directory: str | Path) -> None:
        """Write ``head.safetensors`` (weights and tree) and ``head.json`` (settings) into ``directory``."""
        files, facts, arrays = _safetensors(), *saving.tree_parts(self.tree)
        settings = {
            "tree": facts,
            "activation": saving.activation_parts(self.activation),
            "options": {name: getattr(self, name) for name in ("in_features", "sparse", "ignore_index")},
        }
        tensors = {name: value.contiguous() for name, value in self.state_dict().items()}
        tensors |= {name: torch.tensor(array) for name, array in arrays.items()}
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        with saving.replacing(directory / _FILES[0]) as weights, saving.replacing(directory / _FILES[1]) as text:
            files.save_file(tensors, weights)
            text.write_text(json.dumps(settings, indent=2) + "\n")

    @classmethod
    def load(cls, directory: str | Path, *, device: torch.device | str | None = None) -> CatnatHead:
        """Load a head written by :meth:`save`; raise a ValueError for other or damaged files."""
        files = _safetensors()
        with saving.damage(f"The head in {directory}"):
            head = cls._read(Path(directory), files)
        return head.to(device) if device is not None else head

    @classmethod
    def _read(cls, directory: Path, files: Any) -> CatnatHead:
        tensors = files.load_file(directory / _FILES[0], device="cpu")
        settings = _checked_settings(directory / _FILES[1], tensors)
        arrays = {name: tensors.pop(name).numpy() for name in list(tensors) if name.startswith("tree.")}
        with torch.device("meta"):  # no initial weights are drawn, as the file has the weights
            head = cls(
                settings["options"].pop("in_features"),
                saving.tree_from_parts(settings["tree"], arrays),
                saving.activation_from_parts(settings["activation"]),
                bias="bias" in tensors,
                class_weights=tensors.get("class_weights"),
                **settings["options"],
            )
        head.load_state_dict(tensors, assign=True)
        return head


_FILES = ("head.safetensors", "head.json")


def _checked_settings(file: Path, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return the settings in a file, or raise, before a large tree is built, if they do not fit the weights."""
    settings: dict[str, Any] = json.loads(file.read_text())
    tree, options, weight = settings["tree"], settings["options"], tensors["weight"]
    kind, num_classes, shape = tree["kind"], tree["num_classes"], tuple(weight.shape)
    fits = shape == (num_classes - 1, options["in_features"]) and kind in ("balanced", "chain", "table")
    fits &= type(options["sparse"]) is bool and type(options["ignore_index"]) is int and weight.is_floating_point()
    fits &= set(options) == {"in_features", "sparse", "ignore_index"} and isinstance(settings["activation"], dict)
    if not fits:
        raise ValueError(
            f"{file.name} describes a {kind} tree over {num_classes} classes with the options {options}, but the "
            f"weights beside it have the shape {shape}: the files are damaged, or belong to two different heads."
        )
    return settings


def _safetensors() -> Any:
    try:
        from safetensors import torch as files
    except ImportError as error:
        raise ImportError('Saving and loading heads needs safetensors: pip install "catnat[heads]".') from error
    return files
