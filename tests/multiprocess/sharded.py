"""What ranks do in the tests of TorchRec: ``python -m multiprocess.sharded FOLDER SCENARIO ...``.

One process imports TorchRec, which takes longer than all checks, and every rank is a copy of it.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from multiprocess import ranks
from torch import Tensor, distributed, nn

import catnat
import catnat.torch as ct
from catnat.integrations.torchrec import ShardedCatnatHead, load_checkpoint, save_checkpoint

FEATURES, BATCH = 6, 24
TREES = {
    "balanced": catnat.balanced(1000),
    "power of two": catnat.balanced(256),
    "huffman": catnat.huffman([1 / (k + 1) for k in range(300)]),
    "prior": catnat.balanced(100).with_prior(np.arange(1, 101)),
    "small": catnat.balanced(3),  # nothing is left below the top
}
ACTIVATIONS = {"sigmoid": ct.sigmoid(), "natural": ct.natural()}


start = functools.partial(ranks.start, multiprocessing.get_context("fork"))


# ---- numbers ----


def whole_head(tree: catnat.Tree, activation: ct.Activation, bias: bool = True) -> ct.CatnatHead:
    torch.manual_seed(0)
    head = ct.CatnatHead(FEATURES, tree, activation, bias)
    # Small enough to stay away from the edges of the bands, where rounding has no bound.
    for parameter in head.parameters():
        nn.init.normal_(parameter, std=0.1)
    return head


def sharded_head(whole: ct.CatnatHead, **options) -> ShardedCatnatHead:
    head = ShardedCatnatHead(
        FEATURES, whole.tree, whole.activation, whole.bias is not None, **{"replicated_levels": 3, **options}
    )
    head.copy_from(whole)
    return head


def batch(tree: catnat.Tree, rank: int | None = None, size: int = BATCH) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1 + (distributed.get_rank() if rank is None else rank))
    target = torch.randint(tree.num_classes, (size,), generator=generator)
    return torch.randn(size, FEATURES, generator=generator), target


def close(given: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(given, wanted, rtol=1e-5, atol=1e-5)


def cases():
    for tree in TREES.values():
        for activation in ACTIVATIONS.values():
            yield whole_head(tree, activation)
    yield whole_head(TREES["balanced"], ACTIVATIONS["sigmoid"], bias=False)


def values_and_gradients_are_those_of_a_whole_head(folder: Path) -> None:
    """The gradient of a row is what a step of plain gradient descent with rate 1 subtracts from it."""
    for whole in cases():
        sharded = sharded_head(whole, optimizer="SGD", learning_rate=1.0)
        input, target = batch(whole.tree)
        inputs = [input.clone().requires_grad_() for _ in range(2)]
        ours, own = sharded(inputs[0], target), whole(inputs[1], target)
        close(ours.output, own.output)
        close(ours.loss, own.loss)
        ours.loss.backward()
        own.loss.backward()
        close(inputs[0].grad, inputs[1].grad)
        # The mean of the losses of all ranks, at once.
        batches = [batch(whole.tree, rank) for rank in range(distributed.get_world_size())]
        whole.zero_grad()
        whole(*map(torch.cat, zip(*batches, strict=True))).loss.backward()
        close(sharded.top.grad[:, :FEATURES], whole.weight.grad[: sharded.replicated_nodes])
        after = sharded.to_whole()
        if after is None:
            continue
        deep = slice(sharded.replicated_nodes, None)
        close((whole.weight - after.weight)[deep], whole.weight.grad[deep])
        if whole.bias is not None:
            close((whole.bias - after.bias)[deep], whole.bias.grad[deep])


def ranks_may_have_batches_of_any_size(folder: Path) -> None:
    whole = whole_head(TREES["balanced"], ACTIVATIONS["sigmoid"])
    sharded = sharded_head(whole)
    rank = distributed.get_rank()
    input, _ = batch(whole.tree, size=5 * rank)  # the first has none
    classes = torch.randint(1000, (5 * rank, 2, 3), generator=torch.Generator().manual_seed(rank))
    close(sharded.log_prob_of(input, classes), whole.log_prob_of(input, classes))
    assert sharded.sample(input, (2,)).shape == (2, 5 * rank)
    assert sharded.predict(input).shape == (5 * rank,)
    loss = sharded(input, classes[:, 0, 0]).loss
    loss.backward()
    ignored = torch.full((5 * rank,), -100)
    assert sharded(input, ignored).loss == 0


def walks_are_those_of_a_whole_head(folder: Path) -> None:
    for whole in cases():
        sharded = sharded_head(whole)
        size = BATCH - 7 * distributed.get_rank() % BATCH
        input, _ = batch(whole.tree, size=size)
        seeds = [torch.Generator().manual_seed(5) for _ in range(2)]
        draws = [head.sample(input, (3,), generator=seed) for head, seed in zip((sharded, whole), seeds, strict=True)]
        assert torch.equal(*draws)
        for k in (1, 2, min(40, whole.tree.num_classes)):
            found, wanted = sharded.topk(input, k), whole.log_probs(input).topk(k)
            close(found.values, wanted.values)
            # Where two classes are equally probable, the search may find the other one.
            close(whole.log_prob_of(input, found.indices), wanted.values)
            assert found.proven.all()
        assert torch.equal(sharded.predict(input), whole.predict(input))


# ---- training ----


def rows_are_updated_as_the_name_says(folder: Path) -> None:
    """The formulas of the three optimizers, on the gradients of a whole head; every row is one of the last level."""
    rate, eps = 0.5, 1e-8
    for name in ("SGD", "Adagrad", "RowWiseAdagrad"):
        whole = whole_head(TREES["power of two"], ACTIVATIONS["sigmoid"], bias=False)
        whole = ct.CatnatHead(8, whole.tree, "sigmoid", bias=False)  # no column is only there to fill up
        sharded = ShardedCatnatHead(
            8, whole.tree, "sigmoid", bias=False, optimizer=name, learning_rate=rate, replicated_levels=0,
            optimizer_options={"eps": eps},
        )  # fmt: skip
        weight, state = torch.zeros_like(whole.weight), torch.zeros_like(whole.weight)
        for step in range(3):
            with torch.no_grad():
                whole.weight.copy_(weight)
            batches = [
                (torch.randn(BATCH, 8, generator=g), torch.randint(256, (BATCH,), generator=g))
                for g in (torch.Generator().manual_seed(10 * step + r) for r in range(distributed.get_world_size()))
            ]
            whole.zero_grad()
            whole(*map(torch.cat, zip(*batches, strict=True))).loss.backward()
            grad = whole.weight.grad
            squares = grad**2 if name == "Adagrad" else (grad**2).mean(-1, keepdim=True).expand_as(grad)
            state = state + squares
            weight = weight - rate * (grad if name == "SGD" else grad / (state.sqrt() + eps))
            sharded(*batches[distributed.get_rank()]).loss.backward()
        after = sharded.to_whole()
        if after is not None:
            close(after.weight, weight)


def every_rank_has_its_part_of_the_work(folder: Path) -> None:
    """Targets of Zipf's law on classes sorted by frequency: no rank serves twice its part of the distinct rows."""
    size = distributed.get_world_size()
    sharded = ShardedCatnatHead(4, 1 << 16, bias=False, replicated_levels=6)
    target = torch.multinomial(
        1 / torch.arange(1, (1 << 16) + 1).double(), 512, generator=torch.Generator().manual_seed(0), replacement=True
    )
    tree = sharded.tree
    nodes = torch.cat([torch.as_tensor(tree.path(k)[0]) for k in target.tolist()]).unique()
    rows = sharded._order.row(nodes[nodes >= sharded.replicated_nodes] - sharded.replicated_nodes)
    served = [((rows >= part.start) & (rows < part.stop)).sum() / len(rows) for part in sharded._shards]
    assert len(served) == size
    assert max(served) < 2 / size


# ---- files ----


def files_go_to_a_whole_head_and_back(folder: Path) -> None:
    for name in ("huffman", "balanced"):
        whole = whole_head(TREES[name], ACTIVATIONS["natural"])
        sharded = sharded_head(whole)
        sharded.save(folder / name)
        again = ct.CatnatHead.load(folder / name)
        assert torch.equal(again.weight, whole.weight)
        assert torch.equal(again.bias, whole.bias)
        assert again.tree == whole.tree
        loaded = ShardedCatnatHead.load(folder / name, replicated_levels=5)
        input, target = batch(whole.tree)
        close(loaded(input, target).output, whole(input, target).output)


def mistakes_are_explained(folder: Path) -> None:
    def says(expected: str, make: Callable[[], object]) -> None:
        with pytest.raises((ValueError, RuntimeError, TypeError), match=re.escape(expected)):
            make()

    says("`optimizer` is 'Adam'", lambda: ShardedCatnatHead(4, 8, optimizer="Adam"))
    says("0 or more", lambda: ShardedCatnatHead(4, 8, replicated_levels=-1))
    head = ShardedCatnatHead(4, 8)
    says("'tree': balanced(9)", lambda: head.copy_from(ct.CatnatHead(4, 9)))
    says("'bias': False", lambda: head.copy_from(ct.CatnatHead(4, 8, bias=False)))
    says("features", lambda: head.sample(torch.zeros(2, 5)))
    says("digests.json", lambda: load_checkpoint({}, folder))


def ranks_with_other_arguments_all_raise(folder: Path) -> None:
    """Each names the argument, at once; and the group can still be used."""
    rank = distributed.get_rank()
    same = {"in_features": 4, "classes": 100}
    others = (
        *(("classes", classes) for classes in (101, catnat.chain(100), TREES["prior"])),
        *(("activation", activation) for activation in ("natural", ct.natural(width=3.0))),
        ("in_features", 5),
        ("bias", False),
        ("replicated_levels", 3),
        ("learning_rate", 0.2),
        ("optimizer", "SGD"),
        ("class_weights", torch.linspace(1, 2, 100)),
    )
    for name, other in others:
        started = time.monotonic()
        with pytest.raises(ValueError, match=rf"different heads: `{name}` is .* on rank 0 .* on rank 1"):
            ShardedCatnatHead(**(same | ({name: other} if rank == 1 else {})))
        assert time.monotonic() - started < 20
    torch.set_default_dtype(torch.float64 if rank else torch.float32)
    with pytest.raises(ValueError, match="the default dtype"):
        ShardedCatnatHead(**same)
    torch.set_default_dtype(torch.float32)
    assert ShardedCatnatHead(**same).sample(torch.zeros(2, 4)).shape == (2,)


CHECKS = (
    ranks_with_other_arguments_all_raise,
    values_and_gradients_are_those_of_a_whole_head,
    ranks_may_have_batches_of_any_size,
    walks_are_those_of_a_whole_head,
    rows_are_updated_as_the_name_says,
    every_rank_has_its_part_of_the_work,
    files_go_to_a_whole_head_and_back,
    mistakes_are_explained,
)


# ---- faults ----
#
# Targets and features of a step are a function of its number and of the rank's part of one batch of four, so any number
# of ranks trains on the same data.

STEPS, EVERY, DIES_AT = 10, 3, 8
PARTS = 4


def build() -> tuple[ShardedCatnatHead, torch.optim.Optimizer]:
    head = ShardedCatnatHead(FEATURES, TREES["balanced"], "sigmoid", replicated_levels=3, learning_rate=0.2)
    return head, torch.optim.Adagrad([head.top], 0.2)


def state_of(head: ShardedCatnatHead, optimizer: torch.optim.Optimizer, step: int) -> dict:
    return {
        "head": head.state_dict(),
        "fused": head.fused_optimizer.state_dict(),
        "top": optimizer.state_dict(),
        "step": step,
    }


def step_of(head: ShardedCatnatHead, number: int) -> Tensor:
    size, rank = distributed.get_world_size(), distributed.get_rank()
    parts = [batch(head.tree, 1000 * number + part) for part in range(PARTS)]
    mine = parts[rank * PARTS // size : (rank + 1) * PARTS // size]
    return head(*map(torch.cat, zip(*mine, strict=True))).loss


def last_checkpoint(folder: Path) -> Path | None:
    """The last whose saving came to its end."""
    whole = [path for path in folder.glob("step-*") if (path / "digests.json").exists()]
    return max(whole, key=lambda path: int(path.name.removeprefix("step-")), default=None)


def train(folder: Path, until: int = STEPS, dies: bool = False) -> None:
    """Go on from the last checkpoint, save at every third step, and write down which steps were counted."""
    head, optimizer = build()
    last, done = last_checkpoint(folder), 0
    if last is not None:
        state = state_of(head, optimizer, 0)
        load_checkpoint(state, last)
        head.load_state_dict(state["head"])
        head.fused_optimizer.load_state_dict(state["fused"])
        optimizer.load_state_dict(state["top"])
        done = state["step"]
    for number in range(done, until):
        optimizer.zero_grad()
        loss = step_of(head, number)
        if dies and number == DIES_AT and distributed.get_rank() == distributed.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)  # between forward and backward: the others wait for it
        loss.backward()
        optimizer.step()
        if (number + 1) % EVERY == 0:
            save_checkpoint(state_of(head, optimizer, number + 1), folder / f"step-{number + 1}")
    whole = head.to_whole()
    if whole is not None:
        torch.save({"weight": whole.weight, "bias": whole.bias, "from": done}, folder / f"end-{until}.pt")


def faults(folder: Path) -> dict:
    """Four ranks lose one; two go on from the last checkpoint, then one; beside them one that never failed."""
    run, never = folder / "run", folder / "never"
    found: dict = {"killed": start(4, run, functools.partial(train, dies=True), 20)}
    found["error"] = ranks.errors(run)
    found["kept"] = sorted(path.name for path in run.glob("step-*"))
    (run / "meeting").unlink(missing_ok=True)
    found["two"] = start(2, run, functools.partial(train, until=9))
    (run / "meeting").unlink(missing_ok=True)
    found["one"] = start(1, run, functools.partial(train, until=STEPS))
    found["never"] = start(4, never, train)
    first, second, never_failed = (
        torch.load(path) for path in (run / "end-9.pt", run / f"end-{STEPS}.pt", never / f"end-{STEPS}.pt")
    )
    found["from"] = [first["from"], second["from"]]
    found["difference"] = max(float((second[n] - never_failed[n]).abs().max()) for n in ("weight", "bias"))
    found["moved"] = float((second["weight"] - first["weight"]).abs().max())
    found["damaged"] = damaged(run)
    return found


def damaged(run: Path) -> str:
    """What a start says when one byte of a shard has changed."""
    shard = max((run / "step-9").glob("*.distcp"), key=lambda path: path.stat().st_size)
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    (run / "meeting").unlink(missing_ok=True)
    start(1, run, train)
    return (run / "error-0").read_text()


# ---- memory ----


def resident() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def lazy(folder: Path) -> None:
    """2^28 rows of 16 numbers, 16 GB and 1 GB of state, on this rank alone; and as many classes plus one."""
    found = {}
    for name, classes in {"power": 1 << 28, "uneven": (1 << 28) + 1}.items():
        before = resident()
        head = ShardedCatnatHead(16, classes, bias=False, learning_rate=0.1)
        built = resident()
        torch.manual_seed(0)
        seen = set()
        losses = []
        for _ in range(3):
            input, target = torch.randn(32, 16), torch.randint(1 << 20, (32,))
            seen |= {node for k in target.tolist() for node in head.tree.path(k)[0].tolist()}
            loss = head(input, target).loss
            loss.backward()
            losses.append(float(loss))
        found[name] = {
            "built": built - before,
            "trained": resident() - built,
            "rows": len(seen),
            "first loss": losses[0],
            "table": head._order.rows * head.width * 4 / 2**20,
        }
        del head
    (folder / "found.json").write_text(json.dumps(found))


def lazy_rows(folder: Path) -> dict:
    codes = start(1, folder, lazy)
    assert codes == [0], (folder / "error-0").read_text()
    return json.loads((folder / "found.json").read_text())


# ---- all of it ----


def checks_on(size: int, folder: Path) -> dict:
    """What went wrong in each check; every check has ranks of its own, which end when one of them fails."""
    errors = {}
    for check in CHECKS:
        codes = start(size, folder / check.__name__, check, 60)
        errors[check.__name__] = ranks.errors(folder / check.__name__) if any(codes) else ""
    return errors


SCENARIOS: dict[str, Callable[[Path], dict]] = {
    "two": functools.partial(checks_on, 2),
    "four": functools.partial(checks_on, 4),
    "faults": faults,
    "lazy": lazy_rows,
}


if __name__ == "__main__":
    where = Path(sys.argv[1])
    for scenario in sys.argv[2:]:
        try:
            result = SCENARIOS[scenario](where / scenario)
        except Exception:
            result = {"failed": traceback.format_exc()}
        (where / f"{scenario}.json").write_text(json.dumps(result))
