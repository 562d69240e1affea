"""The last layer for very many classes: a loss, a draw and a search that read a path's rows and no others."""

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
from torch import Tensor, nn
from torch.nn import functional as F

from catnat import _checks
from catnat.activations import Activation
from catnat.torch import _inputs, _options, _topk, _walk, functional
from catnat.torch._branches import Branches, branches_of
from catnat.torch._lookup import plan_for
from catnat.torch._plan import Plan, look_up
from catnat.torch._topk import TopK
from catnat.torch._walk import Reader
from catnat.torch.distributions import Catnat
from catnat.torch.layers import RowLayer, TreeLayer, draw_rows
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
    """The log-probabilities and the loss of a head, as ``torch.nn.AdaptiveLogSoftmaxWithLoss`` returns them.

    Example:
        >>> import torch
        >>> from catnat.torch import CatnatHead
        >>> head = CatnatHead(4, 8)
        >>> output, loss = head(torch.zeros(2, 4), torch.tensor([0, 7]))
        >>> output.shape, loss.shape
        (torch.Size([2]), torch.Size([]))
    """

    output: Float[Tensor, "*batch"]
    """The log-probability of every target."""
    loss: Float[Tensor, ""]
    """Their mean, negative."""


class RowReader(NamedTuple):
    """Scores that are made where they are read: an input times the node's row of weights."""

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
        """A tensor with the dtype and device to compute in."""
        return self.input.new_empty((), dtype=_inputs.computing_dtype(self.input.dtype))

    def select(self, rows: Tensor) -> RowReader:
        """The same for some of the inputs."""
        return self._replace(input=self.input[rows])

    def at(self, nodes: Tensor) -> Tensor:
        """The scores at ``nodes``, whose leading axes are the input's batch."""
        rows = F.embedding(nodes, self.weight, sparse=self.sparse).flatten(self.input.ndim - 1, -2)
        return self._with_bias(torch.matmul(rows, self.input.unsqueeze(-1)).view(nodes.shape), nodes)

    def each(self, row: Tensor, node: Tensor) -> Tensor:
        """One score an entry: of the input ``row`` at ``node``."""
        weights = F.embedding(node, self.weight, sparse=self.sparse)
        return self._with_bias((weights * self.input.index_select(0, row)).sum(-1), node)

    def _with_bias(self, scores: Tensor, nodes: Tensor) -> Tensor:
        if self.bias is not None:
            scores = scores + self.bias.gather(0, nodes.flatten(), sparse_grad=self.sparse).view(nodes.shape)
        return _inputs.widen(scores)


class Paths(NamedTuple):
    """The nodes on the way to some classes, as a list without gaps: for trees whose paths differ in length."""

    shape: torch.Size  # of the classes, (rows, n)
    query: Tensor  # whose path an entry is on: a place in the flattened classes
    node: Tensor
    bit: Tensor

    @classmethod
    def to(cls, classes: Tensor, plan: Plan) -> Paths:
        """The paths to ``classes``."""
        index, bits = _walk.path(plan, classes.flatten())
        on_path = index >= 0
        return cls(classes.shape, on_path.nonzero()[:, 0], index[on_path], bits[on_path])

    @property
    def row(self) -> Tensor:
        """The row of the input that every entry belongs to."""
        return torch.div(self.query, self.shape[1], rounding_mode="floor")

    def log_prob(self, plan: Plan, scores: Tensor) -> Tensor:
        """The sums of the branches' log-probabilities, (rows, n), from the scores of all entries."""
        no, yes = plan.branches.at(self.node).log_probs(scores, floored=True)
        branches = torch.where(self.bit == 1, yes, no)
        return branches.new_zeros(self.shape.numel()).index_add(0, self.query, branches).view(self.shape)


_NEEDS_TARGET = (
    "A head is called with features and their targets, and returns log-probabilities and the loss, as "
    "torch.nn.AdaptiveLogSoftmaxWithLoss does. Without targets there are distribution(input), log_probs(input), "
    "predict(input) and topk(input, k)."
)


class PathHead(TreeLayer):
    """What heads have in common: they walk the tree, and read the rows on the way.

    A subclass defines where the rows are: ``_log_prob`` and ``_walk``.
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
        """The log-probabilities of ``classes``, (rows, n), in the dtype to compute in."""
        raise NotImplementedError

    def _walk(self, input: Tensor, walk: Callable[[Reader], Result]) -> Result:
        """What ``walk`` finds on the nodes of ``input``, without gradients."""
        raise NotImplementedError

    @_checks.needs(target=_NEEDS_TARGET)
    def forward(self, input: Float[Tensor, "*batch features"], target: Int[Tensor, "*batch"]) -> HeadOutput:
        """The log-probability of every target, 0 for ignored ones, and the loss."""
        self._check_input(input)
        target = _inputs.class_indices(target, "target")
        _checks.one_class_per_row(target.shape, input.shape)
        counts = target != self.ignore_index
        classes = torch.where(counts, target, 0)
        found = torch.where(counts, self._log_probs_of(input, classes), 0)  # whatever the features are
        weights = counts.to(found.dtype)
        if self.class_weights is not None:
            weights = weights * look_up(self.class_weights.to(found.dtype), classes)
        total = weights.sum()
        loss = -(found * weights).sum() / torch.where(total == 0, 1, total)
        return HeadOutput(_inputs.as_returned(found, input), _inputs.as_returned(loss, input))

    def loss(self, input: Float[Tensor, "*batch features"], target: Int[Tensor, "*batch"]) -> Float[Tensor, ""]:
        """The loss of targets alone: the mean of their negative log-probabilities."""
        loss: Tensor = self(input, target).loss
        return loss

    def log_prob_of(
        self, input: Float[Tensor, "*batch features"], classes: Int[Tensor, "*batch_and_more"]
    ) -> Float[Tensor, "*batch_and_more"]:
        """The log-probability of given classes, whose leading axes are the input's batch; reads their paths alone."""
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

    def sample(
        self,
        input: Float[Tensor, "*batch features"],
        sample_shape: Sequence[int] = (),
        *,
        valid_classes: Int[Tensor, "*#batch some"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "*samples_and_batch"]:
        """Draw classes by walking down from the root; reads the rows on the way alone.

        Args:
            input: Features.
            sample_shape: The shape of independent draws, which stands before the batch shape in the result.
            valid_classes: Draw among these alone, conditioned on them, as with the mask of :class:`Catnat`: indices
                (..., m) for all rows or for each, padded with -1. Their m paths are read, whatever K is. What was drawn
                has the log-probability ``head.log_prob_of(input, valid_classes).log_softmax(-1)`` at its place.
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
            drawn = self._walk(input, lambda reader: _walk.descend(plan, reader, count, generator))
        else:
            among = self._among(valid_classes, input)
            drawn = self._walk(input, lambda reader: _walk.draw_among(plan, reader, among, count, generator))
        return _inputs.samples_first(drawn, sample_shape)

    def _among(self, valid_classes: Tensor, input: Tensor) -> Tensor:
        """Checked classes to draw from, for every row of the input."""
        on_cpu = valid_classes.device.type == "cpu" if isinstance(valid_classes, Tensor) else True
        found = _options.checked_indices(valid_classes, self.tree.num_classes, check=on_cpu)
        _checks.rows_of_indices(found.shape, input.shape)
        nothing = (found < 0).all(-1)
        if _inputs.known_at_once(nothing.any()):
            _checks.no_valid_class(int(nothing.sum()))
        return found.expand(*input.shape[:-1], -1)

    def topk(self, input: Float[Tensor, "*batch features"], k: int, *, max_nodes: int | None = None) -> TopK:
        """The ``k`` most probable classes, found by their paths.

        The probability of reaching a node bounds that of every class below it, so most of the tree need not be
        entered, the less the more certain the head is. Near the prior nearly all of it must.

        Args:
            input: Features.
            k: How many classes.
            max_nodes: Stop, with the best classes found, when this many nodes of a row have been read. The first way
                down, of at most k nodes a level, is always gone.
        """
        self._check_input(input)
        _checks.how_many(k, self.tree.num_classes)
        batch = input.shape[:-1]
        flat = input.reshape(batch.numel(), self.in_features)
        found = self._walk(flat, lambda reader: _topk.topk(self._plan(input), reader, k, max_nodes))
        values, indices = (part.view(*batch, k) for part in found[:2])
        proven, visited = (part.view(batch) for part in found[2:])
        return TopK(_inputs.as_returned(values, input), indices, proven, visited)

    def predict(self, input: Float[Tensor, "*batch features"]) -> Int[Tensor, "*batch"]:
        """The most probable class; see :meth:`topk`."""
        return self.topk(input, 1).indices.squeeze(-1)


class CatnatHead(PathHead, RowLayer):
    r"""Features to a categorical variable of very many classes, with the interface of ``AdaptiveLogSoftmaxWithLoss``.

    The score of node i is :math:`w_i \cdot x + b_i`. The loss of a target needs the scores on its path alone, so a step
    costs O(d log K) an example, where a softmax costs O(d K); and so do draws. Rows of untouched nodes are neither
    read nor written with ``sparse=True``.

    For inputs of unit variance the scores start with standard deviation 0.5, near the tree's prior; the bias starts at
    zero.

    Args:
        in_features: The size d of the input.
        classes: The number of classes, or the tree. ``huffman(counts)`` has the shortest paths.
        activation: "sigmoid", "natural" (the paper's), or an activation object.
        bias: Whether to add a bias.
        sparse: Whether gradients of ``weight`` and ``bias`` are sparse tensors that hold the touched rows alone. Use it
            from about 100,000 classes on, with ``torch.optim.SparseAdam``, ``Adagrad`` or ``SGD`` without momentum.
        class_weights: A factor on the loss per class.
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
        self.weight = nn.Parameter(torch.empty(self.tree.num_nodes, in_features, device=device, dtype=dtype))
        if bias:
            self.bias = nn.Parameter(torch.empty(self.tree.num_nodes, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial weights anew and set the bias to zero."""
        draw_rows(self.weight, self.bias)

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        bias = self.bias is not None
        return f"{self.in_features}, {self.tree}, {self.activation}, bias={bias}, sparse={self.sparse}"

    def _log_prob(self, input: Tensor, classes: Tensor) -> Tensor:
        plan, reader = self._plan(input), RowReader(input, self.weight, self.bias, self.sparse)
        if self.tree.kind == "balanced" or torch.compiler.is_compiling() or input.device.type != "cpu":
            return _walk.path_log_prob(plan, reader, classes)
        # What would fill up short paths is left out. Another device would have to be waited for: how long is the list?
        paths = Paths.to(classes, plan)
        return paths.log_prob(plan, reader.each(paths.row, paths.node))

    @torch.no_grad()
    def _walk(self, input: Tensor, walk: Callable[[Reader], Result]) -> Result:
        return walk(RowReader(input, self.weight, self.bias))

    def _took_classes(self, old_classes: NDArray[np.int64]) -> None:
        if self.class_weights is not None:
            one = self.class_weights.new_ones(1)
            self.class_weights = torch.cat([self.class_weights, one])[torch.as_tensor(old_classes)]

    def log_probs(self, input: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch classes"]:
        """The log-probability of every class, O(d K)."""
        return functional.log_catnat(self.scores(input), self.tree, self.activation)

    def log_prob(self, input: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch classes"]:
        """:meth:`log_probs`, under the name that ``torch.nn.AdaptiveLogSoftmaxWithLoss`` has for it."""
        return self.log_probs(input)

    def distribution(self, input: Float[Tensor, "*batch features"], **options: Any) -> Catnat:
        """The distribution over all classes, O(d K) in time and O(K) in memory for every row.

        Args:
            input: Features.
            **options: Those of :class:`Catnat`, such as ``mask``.
        """
        return Catnat(self.scores(input), self.tree, self.activation, **options)

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
        """The head that :meth:`save` has written; files that are no such head are a ValueError."""
        files = _safetensors()
        with saving.damage(f"The head in {directory}"):
            head = cls._read(Path(directory), files)
        return head.to(device) if device is not None else head

    @classmethod
    def _read(cls, directory: Path, files: Any) -> CatnatHead:
        tensors = files.load_file(directory / _FILES[0], device="cpu")
        settings = _checked_settings(directory / _FILES[1], tensors)
        arrays = {name: tensors.pop(name).numpy() for name in list(tensors) if name.startswith("tree.")}
        with torch.device("meta"):  # nothing is drawn that would be overwritten at once
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
    """The settings in a file, compared with the weights before anything as large as these say is built."""
    settings: dict[str, Any] = json.loads(file.read_text())
    tree, options, weight = settings["tree"], settings["options"], tensors["weight"]
    kind, num_classes, shape = tree["kind"], tree["num_classes"], tuple(weight.shape)
    fits = shape == (num_classes - 1, options["in_features"]) and kind in ("balanced", "chain", "table")
    fits &= type(options["sparse"]) is bool and type(options["ignore_index"]) is int and weight.is_floating_point()
    fits &= set(options) == {"in_features", "sparse", "ignore_index"} and isinstance(settings["activation"], dict)
    if not fits:
        raise ValueError(
            f"{file.name} describes a {kind} tree over {num_classes} classes with the options {options}, but the "
            f"weights beside it have the shape {shape}: the files are damaged, or of two heads."
        )
    return settings


def _safetensors() -> Any:
    try:
        from safetensors import torch as files
    except ImportError as error:
        raise ImportError('Files of heads need safetensors: pip install "catnat[heads]".') from error
    return files
