"""A head split over ranks: each holds some subtrees, all hold the few nodes above them.

The log-probability of a class is a sum over its path, so ranks add up what their own nodes say of it. Forward that is
one all-reduce of a number per class that is needed; backward one of the input's gradient. The nodes of the top see the
same input, and so have the same gradient, everywhere: it is not exchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh

from catnat import _pieces
from catnat.activations import Activation
from catnat.torch import _constants, _inputs
from catnat.torch._nodes import LazyNodes
from catnat.torch.heads import CatnatHead, PathHead, Paths
from catnat.torch.layers import draw_rows
from catnat.trees.tree import Ints, Tree

__all__ = ["ParallelCatnatHead"]


class ParallelCatnatHead(PathHead):
    """:class:`CatnatHead` with its rows split over the ranks of a device mesh; for training and for log-probabilities.

    All ranks of the mesh must call it with the same input and target, as with any tensor-parallel layer, and have the
    same optimizer. Subtrees are dealt out so that ranks have about equal parts of the work, the prior mass, and of the
    memory, the rows. How the tree is cut does not depend on the number of ranks: every piece is a module of its own,
    with its number as its name in ``state_dict``, so ``torch.distributed.checkpoint`` saves on some ranks and loads on
    others. (``parallelize_module`` is not used: it splits a tensor into equal blocks of rows, not into subtrees.)

    Args:
        in_features: The size d of the input.
        classes: The number of classes, or the tree.
        activation: "sigmoid" (the default: it was ahead in large classifiers), "natural", or an activation object.
        bias: Whether to add a bias.
        mesh: The ranks, a mesh of one dimension: ``mesh["tp"]`` of a larger one.
        pieces: How many subtrees to cut; at least as many as there will ever be ranks.
        sparse: Whether gradients are sparse, as for :class:`CatnatHead`.
        class_weights: A factor on the loss per class.
        ignore_index: A target that is ignored.
        seed: Of the initial weights, which are the same on any number of ranks.
    """

    _piece: Tensor
    _place: Tensor

    def __init__(
        self,
        in_features: int,
        classes: int | Tree,
        activation: Activation | str = "sigmoid",
        bias: bool = True,
        *,
        mesh: DeviceMesh,
        pieces: int = 16,
        sparse: bool = False,
        class_weights: Float[Tensor, "classes"] | None = None,
        ignore_index: int = -100,
        seed: int = 0,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, classes, activation, sparse, class_weights, ignore_index)
        if mesh.ndim != 1:
            raise ValueError(
                f"`mesh` has the dimensions {mesh.mesh_dim_names or mesh.ndim}, but the head is split along one: pass "
                'a part of it, such as mesh["tp"].'
            )
        if pieces < mesh.size():
            raise ValueError(f"`pieces` is {pieces}, but {mesh.size()} ranks need at least one each.")
        self.mesh, self.seed = mesh, seed
        cut = _pieces.cut(self.tree, pieces)
        for name in ("piece", "place"):
            self.register_buffer(f"_{name}", torch.as_tensor(getattr(cut, name), device=device), persistent=False)

        def part(nodes: Ints) -> _Part:
            return _Part(nodes, in_features, bias, device, dtype)

        self.top = part(cut.top)
        mine = sorted(cut.dealt(mesh.size())[mesh.get_local_rank()])
        self.pieces = nn.ModuleDict({str(number): part(cut.nodes[number]) for number in mine})
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial weights anew, of every piece with a seed of its own."""
        scale = np.broadcast_to(self.activation.scale(self.tree), self.tree.num_nodes)
        self.top.draw(scale, self.seed, 0)
        for number, piece in self._mine():
            piece.draw(scale, self.seed, number + 1)

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        ranks = f"rank {self.mesh.get_local_rank()} of {self.mesh.size()}"
        return f"{self.in_features}, {self.tree}, {self.activation}, sparse={self.sparse}, {ranks}"

    @torch.no_grad()
    def copy_from(self, head: CatnatHead) -> None:
        """Take this rank's rows from a whole head on the same tree."""
        self._check_same(head, self.top.bias is not None)
        for part in (self.top, *(piece for _, piece in self._mine())):
            part.weight.copy_(head.weight[part.nodes])
            if part.bias is not None:
                part.bias.copy_(head.bias[part.nodes])

    def _mine(self) -> list[tuple[int, _Part]]:
        return [(int(name), piece) for name, piece in self.pieces.items()]  # type: ignore[misc]

    def _log_prob(self, input: Tensor, classes: Tensor) -> Tensor:
        path, group = Paths.to(classes, self.tree), self.mesh.get_group()
        number, place = _constants.look_up(self._piece, path.node), _constants.look_up(self._place, path.node)

        def says(part: _Part, which: int, input: Tensor) -> Tensor:
            here = number == which
            rows = LazyNodes(input, part.weight, part.bias, self.tree, self.activation, self.sparse)
            return path.some(here).log_prob(rows, place[here])

        copied = copied_to_ranks(input, group)
        # Begins with a 0 that depends on the input: a rank without pieces takes part in both exchanges as well.
        own = _inputs.to_computing_dtype(copied[:, :0].sum(-1, keepdim=True)).expand(classes.shape)
        for which, piece in self._mine():
            own = own + says(piece, which, copied)
        summed: Tensor = _Summed.apply(own, group)
        return summed + says(self.top, _pieces.TOP, input)


class _Part(nn.Module):
    """The rows of some nodes."""

    def __init__(self, nodes: Ints, in_features: int, bias: bool, device: Any, dtype: Any) -> None:
        super().__init__()
        self.nodes = torch.as_tensor(nodes)
        self.weight = nn.Parameter(torch.empty(len(nodes), in_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(len(nodes), device=device, dtype=dtype)) if bias else None

    def draw(self, scale: NDArray[np.float64], seed: int, number: int) -> None:
        """Initial weights; ``scale`` is that of all nodes."""
        seeded = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        generator = torch.Generator(self.weight.device).manual_seed(seeded)
        draw_rows(self.weight, self.bias, torch.as_tensor(scale[self.nodes.numpy()]), generator)


# ---- exchanges -------------------------------------------------------------------------------------------------------


def copied_to_ranks(value: Tensor, group: distributed.ProcessGroup, *, mean: bool = False) -> Tensor:
    """A tensor that every rank uses in its own way: its gradient is the sum over ranks, or their mean."""
    copied: Tensor = _Copied.apply(value, group, mean)
    return copied


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, group: distributed.ProcessGroup, mean: bool) -> Tensor:
        ctx.group, ctx.mean = group, mean
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        total = sum_over_ranks(grad, ctx.group)
        return total / ctx.group.size() if ctx.mean else total, None, None


class _Summed(torch.autograd.Function):
    """The sum over ranks, used by every rank in the same way: its gradient is theirs."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: distributed.ProcessGroup) -> Tensor:
        return sum_over_ranks(value, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def sum_over_ranks(value: Tensor, group: distributed.ProcessGroup) -> Tensor:
    """The sum of a tensor over the ranks of a group; an error that says so if one of them has ended."""
    total = value.clone(memory_format=torch.contiguous_format)
    with exchange(f"add up {total.numel()} numbers with"):
        distributed.all_reduce(total, group=group)
    return total


@contextlib.contextmanager
def exchange(what: str) -> Iterator[None]:
    """If an exchange with the other ranks fails, an error that says of which one, and what to do."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"Rank {distributed.get_rank()} could not {what} the other ranks: one of them has ended, or did not come "
            "within the group's timeout. Start all ranks again from the last checkpoint; the log of the rank that "
            "ended first says why."
        ) from error
