"""What every rank does in these tests. A rank is a process of its own, joined to the others by gloo."""

from __future__ import annotations

import copy
import datetime as dt
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

import catnat
import catnat.torch as ct

FEATURES, HIDDEN, BATCH = 5, 6, 32
LAYERS = {
    "linear": lambda: ct.CatnatLinear(HIDDEN, catnat.huffman([1 / (k + 1) for k in range(100)]), "natural"),
    "head": lambda: ct.CatnatHead(HIDDEN, 1000),  # 999 rows: not the same number on both ranks
    "huffman head": lambda: ct.CatnatHead(HIDDEN, catnat.huffman([1 / (k + 1) for k in range(300)]), bias=False),
}


def run(rank: int, size: int, folder: Path, work: Callable[[Path], None], timeout: float) -> None:
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


def start(context: Any, size: int, folder: Path, work: Callable[[Path], None], timeout: float = 120) -> list[int]:
    """The exit codes of ranks that ``work``, each a process of this kind of multiprocessing."""
    folder.mkdir(parents=True, exist_ok=True)
    started = [context.Process(target=run, args=(rank, size, folder, work, timeout)) for rank in range(size)]
    for process in started:
        process.start()
    for process in started:
        process.join(300)
        process.kill()  # if it still runs: then it has no exit code of its own
        process.join()
    return [process.exitcode for process in started]


def errors(folder: Path) -> str:
    """What the ranks have written down."""
    return "\n".join(path.read_text() for path in sorted(folder.glob("error-*")))


# ---- data parallel: the recipe of docs/order.md ----


def ordered_alike(folder: Path) -> None:
    """Ranks that read different data end with the same order and the same rows, and go on training together."""
    rank, size = distributed.get_rank(), distributed.get_world_size()
    classes = 40
    torch.manual_seed(0)
    model = Classifier(ct.CatnatLinear(HIDDEN, classes))
    together = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    random = torch.Generator().manual_seed(100 + rank)  # every rank has data of its own

    def step() -> tuple[Tensor, Tensor]:
        x = torch.randn(BATCH, FEATURES, generator=random)
        target = (20 * x[:, 0].sigmoid()).long() + 20 * (x[:, 1] > 0)
        optimizer.zero_grad()
        together(x, target).backward()
        optimizer.step()
        return x, target

    means = catnat.ClassMeans(classes, FEATURES)
    for _ in range(5):
        x, target = step()
        means.update(x, target)

    for array in (means.sums, means.counts):
        distributed.all_reduce(torch.from_numpy(array))
    trees = [means.tree(prior=False)]
    distributed.broadcast_object_list(trees)
    features = model.body(x).detach()
    gathered = [torch.empty_like(features) for _ in range(size)]
    distributed.all_gather(gathered, features)
    model.head.retree(trees[0], features=torch.cat(gathered), optimizer=optimizer)
    same_on_all_ranks(model)
    for _ in range(3):
        step()
    same_on_all_ranks(model)
    assert model.head.tree != catnat.balanced(classes)


def same_on_all_ranks(model: Classifier) -> None:
    """Compare everything with rank 0's, to the last bit."""
    for name, value in model.state_dict().items():
        first = value.clone()
        distributed.broadcast(first, 0)
        assert torch.equal(first, value), name


# ---- FSDP2: the recipe of docs/heads.md ----


class Classifier(nn.Module):
    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh()), head

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.head.loss(self.body(x), target)


def fully_sharded(model: Classifier) -> Classifier:
    fully_shard(model.head)
    for method in ("loss", "distribution", "log_prob_of", "sample", "topk"):
        if hasattr(model.head, method):
            register_fsdp_forward_method(model.head, method)
    return fully_shard(model)


def trained_by_fsdp_as_by_one_rank(folder: Path) -> None:
    """Each rank has its part of every batch; rows, draws and a checkpoint are those of a model on one rank."""
    rank, size = distributed.get_rank(), distributed.get_world_size()
    for name, make in LAYERS.items():
        torch.manual_seed(0)
        whole = Classifier(make())
        model = fully_sharded(copy.deepcopy(whole))
        rows = whole.head.tree.num_nodes
        assert len(model.head.weight.to_local()) in (rows // size, -(-rows // size)), name
        optimizers = [torch.optim.Adam(each.parameters(), 0.05) for each in (whole, model)]
        for _ in range(3):
            x, target = torch.randn(BATCH, FEATURES), torch.randint(whole.head.tree.num_classes, (BATCH,))
            mine = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
            for each, optimizer, part in zip((whole, model), optimizers, (slice(None), mine), strict=True):
                optimizer.zero_grad()
                each(x[part], target[part]).backward()
                optimizer.step()
        torch.testing.assert_close(model(x, target), whole(x, target))
        features = whole.body(x).detach()
        torch.testing.assert_close(model.head.distribution(features).probs, whole.head.distribution(features).probs)
        if isinstance(whole.head, ct.CatnatHead):
            drawn = [each.head.sample(features, generator=torch.Generator().manual_seed(1)) for each in (model, whole)]
            assert torch.equal(*drawn), name
            torch.testing.assert_close(model.head.topk(features, 3).values, whole.head.topk(features, 3).values)
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if rank == 0:
            again = Classifier(make())
            again.load_state_dict(state)
            torch.testing.assert_close(again(x, target), whole(x, target))
