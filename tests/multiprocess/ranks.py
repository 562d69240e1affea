"""What every rank does in these tests. A rank is a process of its own, joined to the others by gloo."""

from __future__ import annotations

import datetime as dt
import functools
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh

import catnat
import catnat.torch as ct
from catnat.torch.parallel import ParallelCatnatHead

FEATURES, BATCH = 6, 32
TREES = {
    "balanced": catnat.balanced(100),
    "huffman": catnat.huffman([1 / (k + 1) for k in range(300)]),
    "small": catnat.balanced(3),  # fewer pieces than ranks
}
ACTIVATIONS = {"sigmoid": ct.sigmoid(), "reflect": ct.natural(boundary="reflect", scaling="isotropic")}


def run(rank: int, size: int, folder: Path, work: Callable[[Path], None], timeout: float = 60) -> None:
    """Join the group, work, and leave it; what goes wrong is written down for the test to read."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=size,
        timeout=dt.timedelta(seconds=timeout),
    )
    try:
        work(folder)
    except Exception:
        (folder / f"error-{rank}").write_text(traceback.format_exc())
        raise
    finally:
        distributed.destroy_process_group()


# ---- numbers ----


def whole_and_split(
    tree: catnat.Tree, activation: ct.Activation, mesh: DeviceMesh, sparse: bool = False
) -> tuple[ct.CatnatHead, ParallelCatnatHead]:
    torch.manual_seed(0)
    options = {"sparse": sparse, "dtype": torch.float64, "class_weights": torch.linspace(0.5, 2, tree.num_classes)}
    whole = ct.CatnatHead(FEATURES, tree, activation, **options)
    nn.init.normal_(whole.bias, std=0.2)
    split = ParallelCatnatHead(FEATURES, tree, activation, mesh=mesh, **options)
    split.copy_from(whole)
    return whole, split


def data(tree: catnat.Tree) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    target = torch.randint(tree.num_classes, (BATCH,))
    target[3] = -100
    return torch.randn(BATCH, FEATURES, dtype=torch.float64), target


def compare(whole: ct.CatnatHead, split: ParallelCatnatHead) -> None:
    """Loss and gradients: of the input, and of every row that this rank holds."""
    input, target = data(whole.tree)
    inputs = [input.clone().requires_grad_() for _ in range(2)]
    outputs = [head(value, target) for head, value in zip((whole, split), inputs, strict=True)]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-10, atol=1e-12)
    for output in outputs:
        output.loss.backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-10, atol=1e-12)
    for part in (split.top, *split.pieces.values()):
        for name in ("weight", "bias"):
            wanted, got = getattr(whole, name).grad, getattr(part, name).grad
            assert got.is_sparse == whole.sparse
            torch.testing.assert_close(got.to_dense(), wanted.to_dense()[part.nodes], rtol=1e-10, atol=1e-12)
    classes = torch.randint(whole.tree.num_classes, (BATCH, 2, 3))
    torch.testing.assert_close(split.log_prob_of(input, classes), whole.log_prob_of(input, classes))


def meshes() -> dict[int, DeviceMesh]:
    """All four ranks; this rank's pair; this rank alone."""
    four = DeviceMesh("cpu", [0, 1, 2, 3])
    two = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
    one = DeviceMesh("cpu", [[0], [1], [2], [3]], mesh_dim_names=("dp", "tp"))
    return {4: four, 2: two["tp"], 1: one["tp"]}


def numbers_are_those_of_one_rank(mesh: dict[int, DeviceMesh], folder: Path) -> None:
    for part in mesh.values():
        for tree in TREES.values():
            for activation in ACTIVATIONS.values():
                for sparse in (False, True):
                    compare(*whole_and_split(tree, activation, part, sparse))


def two_exchanges_a_step(mesh: dict[int, DeviceMesh], folder: Path) -> None:
    """Forward B numbers, backward B x d, whatever K."""
    for tree in TREES.values():
        _, split = whole_and_split(tree, ACTIVATIONS["sigmoid"], mesh[4])
        input, target = data(tree)
        exchanged: list[int] = []
        original = distributed.all_reduce

        @functools.wraps(original)
        def counting(tensor: Tensor, *args, exchanged=exchanged, original=original, **options):
            exchanged.append(tensor.numel())
            return original(tensor, *args, **options)

        distributed.all_reduce = counting
        try:
            loss = split(input.requires_grad_(), target).loss
            assert exchanged == [BATCH]
            loss.backward()
        finally:
            distributed.all_reduce = original
        assert exchanged == [BATCH, BATCH * FEATURES]


def every_row_is_held_once(mesh: dict[int, DeviceMesh], folder: Path) -> None:
    for tree in TREES.values():
        _, split = whole_and_split(tree, ACTIVATIONS["sigmoid"], mesh[4])
        held = torch.zeros(tree.num_nodes)
        for piece in split.pieces.values():
            held[piece.nodes] += 1
        distributed.all_reduce(held)
        held[split.top.nodes] += 1
        assert (held == 1).all()


def beginnings_do_not_depend_on_ranks(mesh: dict[int, DeviceMesh], folder: Path) -> None:
    heads = [ParallelCatnatHead(FEATURES, TREES["huffman"], mesh=part, seed=3) for part in mesh.values()]
    for name, value in heads[0].state_dict().items():
        assert torch.equal(value, heads[-1].state_dict()[name])  # the last, alone, has all pieces


# ---- checkpoints ----


def trained(mesh: DeviceMesh, steps: int) -> tuple[ParallelCatnatHead, torch.optim.Optimizer]:
    split = ParallelCatnatHead(FEATURES, TREES["huffman"], "sigmoid", mesh=mesh, dtype=torch.float64)
    optimizer = torch.optim.Adam(split.parameters(), 0.1)
    advance(split, optimizer, steps)
    return split, optimizer


def advance(split: ParallelCatnatHead, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        split(*data(split.tree)).loss.backward()
        optimizer.step()


def checkpoints_go_from_four_ranks_to_two_and_one(mesh: dict[int, DeviceMesh], folder: Path) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    split, optimizer = trained(mesh[4], 3)
    model_state, optimizer_state = get_state_dict(split, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder / "checkpoint")
    advance(split, optimizer, 2)
    input, target = data(split.tree)
    wanted = split(input, target).output.detach()
    for size in (2, 1):
        other, steps = trained(mesh[size], 0)
        model_state, optimizer_state = get_state_dict(other, steps)
        state = {"model": model_state, "optimizer": optimizer_state}
        dcp.load(state, checkpoint_id=folder / "checkpoint", process_group=mesh[size].get_group())
        set_state_dict(other, steps, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        advance(other, steps, 2)
        torch.testing.assert_close(other(input, target).output, wanted, rtol=1e-12, atol=1e-12)


def data_parallel_beside_it(mesh: dict[int, DeviceMesh], folder: Path) -> None:
    """Two pairs, each with half of the batch: averaged gradients are those of the whole batch."""
    both = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
    tree = TREES["huffman"]
    whole = ct.CatnatHead(FEATURES, tree, "sigmoid", dtype=torch.float64)
    split = ParallelCatnatHead(FEATURES, tree, "sigmoid", mesh=both["tp"], dtype=torch.float64)
    torch.manual_seed(0)
    nn.init.normal_(whole.weight)
    split.copy_from(whole)
    replica = nn.parallel.DistributedDataParallel(split, process_group=both["dp"].get_group())
    input, target = data(tree)
    target[3] = 0  # halves of the batch count alike
    whole(input, target).loss.backward()
    half = slice(0, BATCH // 2) if both["dp"].get_local_rank() == 0 else slice(BATCH // 2, BATCH)
    replica(input[half], target[half]).loss.backward()
    for part in (split.top, *split.pieces.values()):
        torch.testing.assert_close(part.weight.grad, whole.weight.grad[part.nodes], rtol=1e-10, atol=1e-12)


def only_the_same_head_is_copied(mesh: dict[int, DeviceMesh], folder: Path) -> None:
    """Rows of another activation, or without their bias, would mean something else."""
    split = ParallelCatnatHead(FEATURES, 8, "sigmoid", mesh=mesh[4])
    for wrong, says in (
        (ct.CatnatHead(FEATURES, 9, "sigmoid"), "the tree"),
        (ct.CatnatHead(FEATURES, 8, "natural"), "the activation"),
        (ct.CatnatHead(1, 8, "sigmoid"), "the in_features"),
        (ct.CatnatHead(FEATURES, 8, "sigmoid", bias=False), "no bias"),
    ):
        with pytest.raises(ValueError, match=says):
            split.copy_from(wrong)


CHECKS = (
    only_the_same_head_is_copied,
    numbers_are_those_of_one_rank,
    two_exchanges_a_step,
    every_row_is_held_once,
    beginnings_do_not_depend_on_ranks,
    checkpoints_go_from_four_ranks_to_two_and_one,
    data_parallel_beside_it,
)


def all_checks(folder: Path) -> None:
    """One after the other in one group, because starting ranks takes longer than the checks."""
    mesh = meshes()
    for check in CHECKS:
        (folder / check.__name__).mkdir(exist_ok=True)
        try:
            check(mesh, folder / check.__name__)
            outcome = "passed"
        except Exception:
            outcome = traceback.format_exc()
        (folder / check.__name__ / f"outcome-{distributed.get_rank()}").write_text(outcome)
        distributed.barrier()


# ---- a rank that dies ----


def one_dies(folder: Path) -> None:
    tree = TREES["balanced"]
    split = ParallelCatnatHead(FEATURES, tree, mesh=DeviceMesh("cpu", [0, 1]), dtype=torch.float64)
    input, target = data(tree)
    for step in range(10):
        if step == 3 and distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        split(input.requires_grad_(), target).loss.backward()
