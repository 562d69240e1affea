"""TorchRec: a head whose rows are an embedding table, split over ranks, read by all-to-all and trained in backward.

A path is a list of rows, and the score of a node is the product of its row and the features: an embedding collection
and a dot product. Every path begins in the first levels, whose nodes are ordinary parameters on every rank. All other
nodes are rows of one TorchRec table, split by rows. Every rank has its own batch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import mmap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

try:
    import torchrec  # noqa: F401
except ImportError as error:
    raise ImportError(
        "catnat.integrations.torchrec needs TorchRec and FBGEMM, the pair that fits your torch: with torch 2.13, on a "
        "CPU, pip install --no-deps torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0, and torchmetrics, lightning-utilities, "
        "pyre-extensions, iopath, portalocker, typing-inspect, psutil."
    ) from error

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.stats import NoopEmbeddingStats
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    KernelConfig,
    ParameterConstraints,
    TopologyFactory,
    TrainerConfig,
)
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import catnat.torch as ct
from catnat import Tree
from catnat.torch.heads import Branches, PathHead, Paths, Plan, Reader, RowReader, branches_of
from catnat.trees.saving import names

__all__ = ["ShardedCatnatHead", "load_checkpoint", "save_checkpoint"]

OPTIMIZERS = {
    "RowWiseAdagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "Adagrad": EmbOptimType.EXACT_ADAGRAD,
    "Adam": EmbOptimType.ADAM,
    "SGD": EmbOptimType.EXACT_SGD,
}
_ON_CPU = ("RowWiseAdagrad", "Adagrad", "SGD")
# FBGEMM's kernels take rows whose length is a multiple of this.
_WIDTH = 4
# Neighbours on a level stay together in groups of this many rows, about a page of memory or more.
_GROUP = 64
# Tensors of at least this many numbers get lazily allocated memory.
_LARGE = 1 << 16

Result = TypeVar("Result")


class ShardedCatnatHead(PathHead):
    r"""A :class:`catnat.torch.CatnatHead` whose rows are a TorchRec table, split over ranks, each with its own batch.

    The log-probability of class :math:`k` is a sum over its path, whose rows each rank gets from their owners:

    .. math:: \log p_k = \sum_{i \in \mathrm{path}(k)} b_i \log a(s_i) + (1 - b_i) \log (1 - a(s_i))

    where :math:`s_i` is the product of row i and the features, plus its bias, and :math:`b_i` the branch.

    Nodes of the first ``replicated_levels`` levels are the parameter ``top`` on every rank, whose gradient is averaged
    over ranks; pass it to your own optimizer. All other rows are updated by a fused optimizer *during* ``backward`` and
    have no ``grad``. Gradients are those of the losses' mean over ranks, as in ``DistributedDataParallel``.

    All rows start at zero, so the head starts at the tree's prior. On a CPU, memory for a row is allocated when it is
    first updated. Paths of a balanced tree are computed, without tables of length K. Other trees, and given priors,
    have their tables on every rank.

    The constructor compares its arguments over the ranks; if they differ, all ranks raise. All ranks of the group must
    call every method but ``extra_repr`` together. Draws and :meth:`topk` are those of a whole head with the same rows
    and generator. Ranks walk level by level; a rank that is done sends its rows until all are done.

    Args:
        in_features: The size d of the input.
        classes: The number of classes, or the tree.
        activation: "sigmoid", "natural", or an activation object.
        bias: Whether to add a bias. It is a column of the table, and FBGEMM needs a multiple of four columns.
        optimizer: "RowWiseAdagrad" (one number of state per row), "Adagrad", "SGD", or on GPUs "Adam".
        learning_rate: The learning rate of that optimizer; later in ``fused_optimizer.param_groups``.
        replicated_levels: The number of levels on all ranks. A further level adds all its rows to an all-reduce, and
            saves the exchange of at most one row per example. More levels than log2 of a rank's batch are slower.
        optimizer_options: More settings of FBGEMM's optimizer, such as ``{"eps": 1e-6}``.
        class_weights: A factor on the loss per class.
        ignore_index: A target that is ignored.
        group: The ranks; all of them if not given.
        topology: A description of the machines for TorchRec's planner; TorchRec's defaults if not given.
        device: The device of the rows; the CPU if not given.

    Example:
        >>> import tempfile, torch
        >>> from torch import distributed
        >>> from catnat.integrations.torchrec import ShardedCatnatHead
        >>> distributed.init_process_group(  # here one rank; torchrun starts more
        ...     "gloo", init_method=f"file://{tempfile.mkdtemp()}/meeting", rank=0, world_size=1
        ... )
        >>> head = ShardedCatnatHead(16, 1 << 24, learning_rate=0.1)
        >>> optimizer = torch.optim.Adagrad([head.top], 0.1)
        >>> features, target = torch.randn(8, 16), torch.randint(1 << 24, (8,))
        >>> output, loss = head(features, target)
        >>> loss.backward()  # has updated the rows on 8 paths
        >>> optimizer.step()  # and this the first levels
        >>> bool(head.loss(features, target) < loss)
        True
        >>> head.sample(features).shape
        torch.Size([8])
        >>> distributed.destroy_process_group()
    """

    def __init__(
        self,
        in_features: int,
        classes: int | Tree,
        activation: ct.Activation | str = "sigmoid",
        bias: bool = True,
        *,
        optimizer: str = "RowWiseAdagrad",
        learning_rate: float = 0.1,
        replicated_levels: int = 7,
        optimizer_options: Mapping[str, Any] | None = None,
        class_weights: Float[Tensor, "classes"] | None = None,
        ignore_index: int = -100,
        group: distributed.ProcessGroup | None = None,
        topology: Topology | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(in_features, classes, activation, False, class_weights, ignore_index)
        device = torch.device("cpu" if device is None else device)
        known = _ON_CPU if device.type == "cpu" else tuple(OPTIMIZERS)
        if optimizer not in known:
            raise ValueError(f"`optimizer` is {optimizer!r}, but on this device FBGEMM has {', '.join(known)}.")
        if replicated_levels < 0:
            raise ValueError(f"`replicated_levels` is {replicated_levels}, but a number of levels is 0 or more.")
        if not distributed.is_initialized():
            raise RuntimeError(
                "A sharded head needs a process group, even on one rank: call torch.distributed.init_process_group "
                "first, or start the script with torchrun."
            )
        self.bias = bias
        self._group: distributed.ProcessGroup = group or distributed.group.WORLD  # type: ignore[assignment]
        tree_name, activation_name = names(self.tree, self.activation)
        settings = {
            "classes": f"{self.tree!r} ({tree_name})",
            "activation": f"{self.activation!r} ({activation_name})",
            "in_features": in_features,
            "bias": bias,
            "optimizer": optimizer,
            "learning_rate": learning_rate,
            "replicated_levels": replicated_levels,
            "optimizer_options": sorted((optimizer_options or {}).items()),
            "class_weights": None if class_weights is None else _digest_of(class_weights),
            "ignore_index": ignore_index,
            "the default dtype": torch.get_default_dtype(),
        }
        _check_ranks_agree({name: str(value) for name, value in settings.items()}, self._group)
        self.width = -(-(in_features + bias) // _WIDTH) * _WIDTH
        self.replicated_nodes = _nodes_above(self.tree, replicated_levels)
        self._order = _Order.of(self.tree.num_nodes - self.replicated_nodes)
        self.top = nn.Parameter(torch.zeros(self.replicated_nodes, self.width, device=device))
        fused = {"optimizer": OPTIMIZERS[optimizer], "learning_rate": learning_rate, **(optimizer_options or {})}
        self.table = self._shard(fused, topology, device)

    def _shard(self, fused: dict[str, Any], topology: Topology | None, device: torch.device) -> Any:
        config = EmbeddingConfig(
            name="rows",
            embedding_dim=self.width,
            num_embeddings=self._order.rows,
            feature_names=["nodes"],
            init_fn=_leave_zero,
        )
        whole = EmbeddingCollection(tables=[config], device=torch.device("meta"))
        sharder = EmbeddingCollectionSharder(fused_params=fused)
        planner = EmbeddingShardingPlanner(
            topology=topology or _topology(self._group.size(), device),
            constraints={"rows": ParameterConstraints(sharding_types=["row_wise"], compute_kernels=["fused"])},
            storage_reservation=FixedPercentageStorageReservation(percentage=0.1),
            stats=NoopEmbeddingStats(),
        )
        plan = planner.collective_plan(nn.ModuleDict({"table": whole}), [sharder], self._group).plan["table"]
        parts = plan["rows"].sharding_spec.shards
        self._shards = [slice(part.shard_offsets[0], part.shard_offsets[0] + part.shard_sizes[0]) for part in parts]
        with _LazyZeros():
            return sharder.shard(whole, plan, ShardingEnv.from_process_group(self._group), device)

    @property
    def fused_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the table, which steps in ``backward``; it has ``param_groups`` and a state to save."""
        return self.table.fused_optimizer

    def extra_repr(self) -> str:
        """Return the settings that ``print`` shows."""
        ranks = f"rank {self._group.rank()} of {self._group.size()}"
        return f"{self.in_features}, {self.tree}, {self.activation}, bias={self.bias}, {ranks}"

    # ---- rows ----

    def _plan(self, input: Tensor) -> Plan:
        if self.tree.is_symmetric or self.tree.kind != "balanced" or not self.tree.has_uniform_prior:
            return super()._plan(input)
        return _ComputedPlan(self.tree, self.activation, input.device, self.top.dtype)

    def _log_prob(self, input: Tensor, classes: Tensor) -> Tensor:
        plan, input = self._plan(input), self._with_bias(input)
        path = Paths.to(classes, plan)
        rows, place = self._fetch(path.node)
        return path.log_prob(plan, RowReader(input, rows, None).each(path.row, place))

    def _with_bias(self, input: Tensor) -> Tensor:
        """Return the input padded to a row's length: 1 for the bias, then zeros."""
        input = input.to(self.top.dtype)
        if self.bias:
            input = F.pad(input, (0, 1), value=1.0)
        return F.pad(input, (0, self.width - input.shape[-1]))

    def _fetch(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows, those of the top and then those sent by other ranks, and the index of each node in them."""
        deep = nodes >= self.replicated_nodes
        rows, inverse = self._order.row(nodes[deep] - self.replicated_nodes).unique(return_inverse=True)
        # One list, not one per example, so ranks may have batches of any size, or none.
        lengths = torch.tensor([len(rows)], device=rows.device)
        with _exchange(f"fetch {len(rows)} rows from"):
            sent = self.table(KeyedJaggedTensor(keys=["nodes"], values=rows, lengths=lengths)).wait()["nodes"].values()
        top = self.top.view_as(self.top)
        if top.requires_grad:
            top.register_hook(lambda grad: _sum_over_ranks(grad, self._group) / self._group.size())
        place = nodes.masked_scatter(deep, inverse + self.replicated_nodes)
        return torch.cat([top, sent]), place

    # ---- walks ----

    @torch.no_grad()
    def _with_reader(self, input: Tensor, walk: Callable[[Reader], Result]) -> Result:
        """Walk, then send rows to ranks that still walk: reading rows needs all ranks, and walks differ in length."""
        result = walk(_FetchedRows(self, self._with_bias(input)))
        nothing = torch.empty(0, dtype=torch.int64, device=self.top.device)
        while self._someone_walks(False):
            self._fetch(nothing)
        return result

    def _someone_walks(self, here: bool) -> bool:
        return bool(_sum_over_ranks(torch.tensor(int(here), device=self.top.device), self._group))

    # ---- whole heads ----

    @torch.no_grad()
    def copy_from(self, head: ct.CatnatHead) -> None:
        """Copy this rank's rows, and those of the top, from a whole head on the same tree."""
        self._check_same(head)
        self.top.copy_(self._as_rows(head, slice(0, self.replicated_nodes)))
        rows = self._shards[self._group.rank()]
        nodes, real = self._nodes_of(rows)
        self._local()[real] = self._as_rows(head, nodes[real])

    def _check_same(self, head: ct.CatnatHead) -> None:
        """Raise unless the rows of a whole head have the same meaning here."""
        mine = {"tree": self.tree, "activation": self.activation, "in_features": self.in_features, "bias": self.bias}
        given = {name: getattr(head, name) for name in mine} | {"bias": head.bias is not None}
        if mine != given:
            raise ValueError(f"`head` has {given}, but this one has {mine}: they must be equal.")

    @torch.no_grad()
    def to_whole(self) -> ct.CatnatHead | None:
        """Return the whole head on the group's first rank, which must have the memory for it; None on all others."""
        mine = self._local()
        if self._group.rank() != 0:
            distributed.send(mine.contiguous(), group=self._group, group_dst=0)
            return None
        with torch.device("meta"):  # no weights are drawn, as they would be overwritten
            head = ct.CatnatHead(
                self.in_features,
                self.tree,
                self.activation,
                self.bias,
                class_weights=self.class_weights,
                ignore_index=self.ignore_index,
            )
        weight = self.top.new_zeros(self.tree.num_nodes, self.width)
        weight[: self.replicated_nodes] = self.top
        for rank, rows in enumerate(self._shards):
            nodes, real = self._nodes_of(rows)
            part = mine
            if rank != 0:
                part = mine.new_empty(rows.stop - rows.start, self.width)
                distributed.recv(part, group=self._group, group_src=rank)
            weight[nodes[real]] = part[real]
        head.weight = nn.Parameter(weight[:, : self.in_features].contiguous())
        if self.bias:
            head.bias = nn.Parameter(weight[:, self.in_features].contiguous())
        head.class_weights = self.class_weights
        return head

    def save(self, directory: str | Path) -> None:
        """Write the whole head as :meth:`catnat.torch.CatnatHead.save` does, from the group's first rank.

        That rank must have the memory for it; otherwise use :func:`save_checkpoint`.
        """
        head = self.to_whole()
        if head is not None:
            head.save(directory)
        distributed.barrier(self._group)

    @classmethod
    def load(cls, directory: str | Path, **options: Any) -> ShardedCatnatHead:
        """Load a head written by :meth:`save`, here or of a whole :class:`catnat.torch.CatnatHead`.

        Args:
            directory: The folder, which every rank reads.
            **options: Arguments of the constructor that a file does not contain: ``optimizer``, ``group`` and so on.
        """
        whole = ct.CatnatHead.load(directory)
        head = cls(
            whole.in_features,
            whole.tree,
            whole.activation,
            whole.bias is not None,
            class_weights=whole.class_weights,
            ignore_index=whole.ignore_index,
            **options,
        )
        head.copy_from(whole)
        return head

    def _local(self) -> Tensor:
        """Return this rank's part of the table."""
        return self.table.embeddings["rows"].weight.data.view(-1, self.width)

    def _nodes_of(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Return the nodes of some rows, and which of them exist in the tree."""
        nodes = self._order.place(torch.arange(rows.start, rows.stop)) + self.replicated_nodes
        return nodes, nodes < self.tree.num_nodes

    def _as_rows(self, head: ct.CatnatHead, nodes: Tensor | slice) -> Tensor:
        weight = head.weight[nodes]
        if head.bias is not None:
            weight = torch.cat([weight, head.bias[nodes].unsqueeze(-1)], -1)
        return F.pad(weight, (0, self.width - weight.shape[-1])).to(self.top.dtype)


def _topology(size: int, device: torch.device) -> Topology:
    return TopologyFactory.create_topology(
        TrainerConfig(world_size=size), None, KernelConfig(compute_device=device.type)
    )


# ---- order of rows ---------------------------------------------------------------------------------------------------


def _nodes_above(tree: Tree, levels: int) -> int:
    """Return the number of nodes in the first levels."""
    if tree.kind == "balanced":  # its list of levels would need tables
        return int(min((1 << levels) - 1, tree.num_nodes))
    return tree.levels[min(levels, tree.depth) - 1].stop if levels and tree.depth else 0


class _Order(NamedTuple):
    r"""The order of the nodes below the top in the table: groups of neighbours, each moved to :math:`m g \bmod G`.

    TorchRec gives each rank a block of rows. In the order of nodes the deepest level would be half of all blocks, and
    the first block would be on nearly every path. The order does not depend on the number of ranks.
    """

    groups: int
    factor: int
    inverse: int

    @classmethod
    def of(cls, nodes: int) -> _Order:
        """Return the order of that many nodes."""
        groups = max(1, -(-nodes // _GROUP))
        factor = max(1, round(groups * 0.6180339887))  # the golden ratio spreads every run of groups
        while math.gcd(factor, groups) != 1:
            factor += 1
        return cls(groups, factor, pow(factor, -1, groups))

    @property
    def rows(self) -> int:
        """The number of rows of the table, a multiple of the group."""
        return self.groups * _GROUP

    def row(self, place: Tensor) -> Tensor:
        """Return the row of the node at a place below the top."""
        return self._move(place, self.factor)

    def place(self, row: Tensor) -> Tensor:
        """Return the place of a row, the inverse of :meth:`row`."""
        return self._move(row, self.inverse)

    def _move(self, value: Tensor, factor: int) -> Tensor:
        group = torch.div(value, _GROUP, rounding_mode="floor")
        return group * factor % self.groups * _GROUP + value % _GROUP


# ---- nodes -----------------------------------------------------------------------------------------------------------


class _ComputedPlan(Plan):
    """The plan of a balanced tree, without an array with an entry per node."""

    def __init__(self, tree: Tree, activation: ct.Activation, device: torch.device, dtype: torch.dtype) -> None:
        self.tree, self.activation, self.device, self.dtype = tree, activation, device, dtype
        self.small, self.walks = False, True

    @property
    def branches(self) -> Any:  # type: ignore[override] # only some of them are needed
        """The plan itself, with the method :meth:`at`."""
        return self

    def at(self, nodes: Tensor) -> Branches:
        """Return the activation at some nodes, whose constants are computed."""
        some: Any = _BalancedNodes(self.tree, nodes.flatten().cpu().numpy())
        every = torch.arange(nodes.numel(), device=self.device).view(nodes.shape)
        return branches_of(some, self.activation, self.device, self.dtype).at(every)


class _BalancedNodes:
    """Some nodes of a balanced tree with a uniform prior, with the interface of a tree for activations."""

    is_symmetric = False

    def __init__(self, tree: Tree, nodes: NDArray[np.int64]) -> None:
        self._tree, self._heap = tree, nodes + 1

    @property
    def num_nodes(self) -> int:
        return len(self._heap)

    def reach(self) -> NDArray[np.float64]:
        return self._leaves(self._heap) / self._tree.num_classes

    def prior_branches(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        below, yes = self._leaves(self._heap), self._leaves(2 * self._heap + 1)
        return (below - yes) / below, yes / below

    def _leaves(self, heap: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of leaves below heap numbers, from their filled places on the deepest level."""
        shift = self._tree.depth + 1 - np.frexp(heap)[1].astype(np.int64)
        first, width = heap << shift, np.int64(1) << shift
        filled = np.clip(2 * self._tree.num_classes - first, 0, width)
        return (width + filled) // 2

    def __hash__(self) -> int:
        return hash(self._tree)

    def __repr__(self) -> str:
        return repr(self._tree)


class _FetchedRows(NamedTuple):
    """A reader of scores of a head, whose rows are fetched from their ranks when they are read."""

    head: ShardedCatnatHead
    input: Tensor

    @property
    def batch(self) -> torch.Size:
        return self.input.shape[:-1]

    @property
    def like(self) -> Tensor:
        return self.input.new_empty(())

    def select(self, rows: Tensor) -> _FetchedRows:
        return self._replace(input=self.input[rows])

    def at(self, nodes: Tensor) -> Tensor:
        self.head._someone_walks(True)
        rows, place = self.head._fetch(nodes)
        return RowReader(self.input, rows, None).at(place)


# ---- exchanges -------------------------------------------------------------------------------------------------------


def _check_ranks_agree(settings: dict[str, str], group: distributed.ProcessGroup) -> None:
    """Raise on all ranks if they build different heads, because their common results would be wrong."""
    every: list[Any] = [None] * group.size()
    with _exchange("compare its head with those of"):
        distributed.all_gather_object(every, settings, group=group)
    for name, mine in settings.items():
        values = [each[name] for each in every]
        if any(value != mine for value in values):
            other = next(rank for rank, value in enumerate(values) if value != values[0])
            raise ValueError(
                f"The ranks build different heads: `{name}` is {values[0]} on rank 0 of the group, but {values[other]} "
                f"on rank {other}. Give all ranks the same arguments; build a tree from data once and save it, "
                "tree.save(file)."
            )


def _sum_over_ranks(value: Tensor, group: distributed.ProcessGroup) -> Tensor:
    """Return the sum of a tensor over the ranks of a group; raise if one of them has ended."""
    total = value.clone(memory_format=torch.contiguous_format)
    with _exchange(f"add up {total.numel()} numbers with"):
        distributed.all_reduce(total, group=group)
    return total


@contextlib.contextmanager
def _exchange(what: str) -> Iterator[None]:
    """Raise an error that names this rank, the exchange and the fix if an exchange with other ranks fails."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"Rank {distributed.get_rank()} could not {what} the other ranks: one of them has ended, or exceeded "
            "the group's timeout. Start all ranks again from the last checkpoint; the log of the rank that ended first "
            "contains the cause."
        ) from error


def _digest_of(values: Tensor) -> str:
    return hashlib.sha256(values.detach().double().cpu().numpy().tobytes()).hexdigest()[:12]


# ---- lazily allocated memory -----------------------------------------------------------------------------------------


def _leave_zero(rows: Tensor) -> Tensor:
    return rows


class _LazyZeros(TorchFunctionMode):
    """A mode in which TorchRec builds a table from zero pages of the system, without drawing initial values.

    ``torch.zeros`` writes every page, and TorchRec draws uniform numbers for all rows before it calls ``init_fn``.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.uniform_:
            return args[0]
        large = func is torch.zeros and len(args) == 1 and isinstance(args[0], int) and args[0] >= _LARGE
        if large and torch.device(kwargs.get("device") or "cpu").type == "cpu":
            return _lazy_zeros(args[0], kwargs.get("dtype") or torch.get_default_dtype())
        return func(*args, **kwargs)


def _lazy_zeros(size: int, dtype: torch.dtype) -> Tensor:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return torch.frombuffer(mmap.mmap(-1, size * dtype.itemsize, flags=flags), dtype=dtype)


# ---- checkpoints -----------------------------------------------------------------------------------------------------

_DIGESTS = "digests.json"


def save_checkpoint(
    state: dict[str, Any], directory: str | Path, group: distributed.ProcessGroup | None = None
) -> None:
    """Write a checkpoint with ``torch.distributed.checkpoint``, and a digest of each of its files.

    Every rank writes its own part. The digests are written last and atomically: in a folder without them, the save did
    not finish.

    Args:
        state: ``{"head": head.state_dict(), "fused": head.fused_optimizer.state_dict(), "step": step, ...}``.
        directory: A folder that all ranks can access.
        group: The ranks; all of them if not given.

    Example:
        >>> save_checkpoint({"head": head.state_dict(), "step": 100}, "checkpoints/100")  # doctest: +SKIP
    """
    directory = Path(directory)
    save(state, checkpoint_id=directory, process_group=group)
    if distributed.get_rank(group) == 0:
        files = sorted(file for file in directory.iterdir() if file.is_file() and not file.name.startswith(_DIGESTS))
        unfinished = directory / f"{_DIGESTS}.part"
        unfinished.write_text(json.dumps({file.name: _digest(file) for file in files}, indent=2) + "\n")
        unfinished.rename(directory / _DIGESTS)
    distributed.barrier(group)


def load_checkpoint(
    state: dict[str, Any], directory: str | Path, group: distributed.ProcessGroup | None = None
) -> None:
    """Fill ``state``, of a head on any number of ranks, with a checkpoint; raise if a file is not as it was saved.

    Then pass the parts to ``load_state_dict``, the head's part first: this compares tree and activation.

    Args:
        state: The entries that :func:`save_checkpoint` received, of a new head.
        directory: The folder.
        group: The ranks; all of them if not given.

    Example:
        >>> state = {"head": head.state_dict(), "step": 0}  # doctest: +SKIP
        >>> load_checkpoint(state, "checkpoints/100")  # doctest: +SKIP
        >>> head.load_state_dict(state["head"])  # doctest: +SKIP
    """
    directory = Path(directory)
    if not (directory / _DIGESTS).exists():
        raise ValueError(f"{directory} has no {_DIGESTS}: saving it did not finish. Load the one before.")
    digests = json.loads((directory / _DIGESTS).read_text())
    # torch does not compare the checksums of its files.
    wrong = [name for name, digest in digests.items() if _digest(directory / name) != digest]
    if wrong:
        raise ValueError(
            f"{directory} is damaged: {', '.join(wrong)} differs from what was saved, or is missing. Load the "
            "checkpoint before it."
        )
    load(state, checkpoint_id=directory, process_group=group)


def _digest(file: Path) -> str:
    if not file.exists():
        return ""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
