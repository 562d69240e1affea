"""A head on TorchRec's table, on two gloo ranks: python benchmarks/torchrec_head.py [levels growth memory ...]

Every rank has one thread and 256 examples of its own; targets follow Zipf's law. Times are medians of steps in
alternating order: processor time of a rank with all its threads, and wall time, which on a busy machine is mostly
waiting. Bytes are what a rank hands to other ranks in a step (all-to-all), and what it puts into sums over all ranks.
results/torchrec_head.json is what was measured, and where; results/torchrec_head.md is made of it.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from records import commit, machine, write
from run import Job, three_digits
from torch import Tensor, distributed, nn

warnings.simplefilter("ignore")  # what libraries say of each other on import
import torchrec  # noqa: E402
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor  # noqa: E402

from catnat.integrations.torchrec import ShardedCatnatHead  # noqa: E402

RESULT = Path(__file__).parent / "results" / "torchrec_head.json"
RANKS, BATCH, NEGATIVES, RATE = 2, 256, 1024, 0.1
ROUNDS, WARM = 40, 20


# ---- data ----


def zipf(classes: int, count: int, *, shuffled: bool = False) -> Tensor:
    """Ranks r with probabilities about 1/r, without a table; as classes in that order, or scattered over all."""
    ranks = torch.exp(torch.rand(count, dtype=torch.float64) * math.log(classes + 1)).long().clamp(1, classes) - 1
    factor = next(f for f in range(int(0.618 * classes), 2 * classes) if math.gcd(f, classes) == 1)
    return ranks * factor % classes if shuffled else ranks


# ---- jobs ----


def sharded(classes: int, features: int, *, levels: int = 7, shuffled: bool = False) -> Job:
    head = ShardedCatnatHead(features, classes, bias=False, learning_rate=RATE, replicated_levels=levels)
    optimizer = torch.optim.Adagrad([head.top], RATE) if levels else None

    def job() -> None:
        input = torch.randn(BATCH, features, requires_grad=True)
        head.top.grad = None
        head(input, zipf(classes, BATCH, shuffled=shuffled)).loss.backward()
        if optimizer is not None:
            optimizer.step()

    return job


def sampled_softmax(classes: int, features: int) -> Job:
    """A row for every class in the same kind of table; targets, and negatives that a rank's examples share."""
    table = ShardedCatnatHead(features, classes + 1, bias=False, learning_rate=RATE, replicated_levels=0).table
    log_count = math.log(classes + 1)

    def job() -> None:
        input = torch.randn(BATCH, features, requires_grad=True)
        target, negative = zipf(classes, BATCH), zipf(classes, NEGATIVES)
        rows, place = torch.cat([target, negative]).unique(return_inverse=True)
        given = KeyedJaggedTensor(keys=["nodes"], values=rows, lengths=torch.tensor([len(rows)]))
        weights = table(given).wait()["nodes"].values()[place]
        own = (weights[:BATCH] * input).sum(-1, keepdim=True)
        others = input @ weights[BATCH:].T
        # Each logit less the logarithm of how often its class is drawn.
        often = [(torch.log1p(1 / (c + 1.0)) / log_count * NEGATIVES).log() for c in (target, negative)]
        logits = torch.cat([own - often[0].unsqueeze(-1), others - often[1]], -1)
        nn.functional.cross_entropy(logits, torch.zeros(BATCH, dtype=torch.int64)).backward()

    return job


class _VocabularyParallel(torch.autograd.Function):
    """The cross-entropy of logits of which every rank has some columns: three sums over ranks."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        size, rank = logits.shape[1], distributed.get_rank()
        most = logits.max(-1).values
        distributed.all_reduce(most, distributed.ReduceOp.MAX)
        weights = (logits - most.unsqueeze(-1)).exp_()
        total = weights.sum(-1)
        distributed.all_reduce(total)
        mine = (target >= rank * size) & (target < (rank + 1) * size)
        place = torch.where(mine, target - rank * size, 0)
        chosen = torch.where(mine, logits.gather(-1, place.unsqueeze(-1)).squeeze(-1), 0)
        distributed.all_reduce(chosen)
        grad = weights.div_(total.unsqueeze(-1))
        grad.scatter_add_(-1, place.unsqueeze(-1), -mine.to(grad.dtype).unsqueeze(-1))
        ctx.save_for_backward(grad)
        return (most + total.log() - chosen).mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (saved,) = ctx.saved_tensors
        return saved * (grad / len(saved)), None


def vocabulary_parallel(classes: int, features: int) -> Job:
    weight = nn.Parameter(torch.zeros(classes // RANKS, features))
    optimizer = torch.optim.SGD([weight], RATE)
    generator = torch.Generator().manual_seed(0)

    def job() -> None:
        torch.manual_seed(int(torch.randint(1 << 30, (), generator=generator)))
        input = torch.randn(RANKS * BATCH, features, requires_grad=True)
        optimizer.zero_grad()
        _VocabularyParallel.apply(input @ weight.T, zipf(classes, RANKS * BATCH)).backward()
        distributed.all_reduce(input.grad)
        optimizer.step()

    return job


# ---- measuring ----


class Traffic:
    """Bytes of all exchanges while it is open."""

    def __enter__(self) -> Traffic:
        self.to_others = self.summed = 0
        self.originals = distributed.all_to_all_single, distributed.all_reduce

        def all_to_all_single(output: Tensor, input: Tensor, *args: Any, **options: Any) -> Any:
            splits = options.get("input_split_sizes") or (args[1] if len(args) > 1 else None)
            own = splits[distributed.get_rank()] if splits else len(input) // distributed.get_world_size()
            self.to_others += (len(input) - own) * input[:1].numel() * input.element_size()
            return self.originals[0](output, input, *args, **options)

        def all_reduce(tensor: Tensor, *args: Any, **options: Any) -> Any:
            self.summed += tensor.numel() * tensor.element_size()
            return self.originals[1](tensor, *args, **options)

        distributed.all_to_all_single, distributed.all_reduce = all_to_all_single, all_reduce  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        distributed.all_to_all_single, distributed.all_reduce = self.originals  # type: ignore[assignment]


def alternate(jobs: dict[str, Job], rounds: int = ROUNDS, warm: int = WARM) -> dict[str, dict[str, float]]:
    """Every job in turn, as often on every rank: they wait for each other."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    for number in range(warm + rounds):
        for name in jobs if number % 2 else reversed(jobs):
            start = time.process_time(), time.perf_counter()
            jobs[name]()
            if number >= warm:  # frequent rows have their memory
                times[name].append((time.process_time() - start[0], time.perf_counter() - start[1]))
    found = {}
    for name, job in jobs.items():
        with Traffic() as traffic:
            for _ in range(10):
                job()
        processor, wall = (1e3 * statistics.median(column) for column in zip(*times[name], strict=True))
        found[name] = {
            "processor ms": three_digits(processor),
            "wall ms": three_digits(wall),
            "kB to others": three_digits(traffic.to_others / 1e4),
            "kB summed": three_digits(traffic.summed / 1e4),
        }
    return found


def megabytes() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def on_rank(rank: int, folder: str, work: Callable[[], Any]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    found = work()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


def on_ranks(work: Callable[[], Any]) -> list[Any]:
    """What every rank returns; each is a copy of this process, which has imported TorchRec."""
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("fork")
        started = [context.Process(target=on_rank, args=(rank, folder, work)) for rank in range(RANKS)]
        for process in started:
            process.start()
        for process in started:
            process.join()
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(RANKS)]


def mean(each: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """The mean over ranks."""
    first = each[0]
    return {
        name: {key: three_digits(statistics.mean(own[name][key] for own in each)) for key in first[name]}
        for name in first
    }


# ---- parts ----


def levels() -> dict[str, Any]:
    """How many levels on all ranks: K = 2^20, d = 64."""
    numbers = (0, 4, 6, 7, 8, 9, 10, 12)
    return mean(on_ranks(lambda: alternate({f"{n} levels": sharded(1 << 20, 64, levels=n) for n in numbers})))


def growth() -> dict[str, Any]:
    """From 10^5 to 2^28 classes, d = 16."""
    sizes = {"10^5": 10**5, "2^18": 1 << 18, "2^20": 1 << 20, "2^24": 1 << 24, "2^28": 1 << 28}

    def work() -> Any:
        jobs = {name: sharded(size, 16) for name, size in sizes.items()}
        jobs |= {f"2^{bits}, scattered": sharded(1 << bits, 16, shuffled=True) for bits in (18, 28)}
        return alternate(jobs)

    return mean(on_ranks(work))


def memory() -> dict[str, Any]:
    """Resident memory of a rank, d = 16, after 300 steps of Zipf targets; each case in processes of its own."""
    found = {}
    for bits, shuffled in ((18, False), (18, True), (28, False), (28, True)):

        def work(bits: int = bits, shuffled: bool = shuffled) -> Any:
            start = megabytes()
            job = sharded(1 << bits, 16, shuffled=shuffled)
            built = megabytes()
            job()
            begun = time.perf_counter()
            for _ in range(299):
                job()
            seconds = time.perf_counter() - begun
            values = {
                "table and state, MB": (1 << bits) / RANKS * 17 * 4 / 2**20,
                "built, MB": built - start,
                "after 300 steps, MB": megabytes() - start,
                "steps per second": 299 / seconds,
            }
            return {"rank": {key: three_digits(value) for key, value in values.items()}}

        found[f"2^{bits}{', scattered' if shuffled else ''}"] = mean(on_ranks(work))["rank"]
    return found


def baselines() -> dict[str, Any]:
    """The same examples a step, 512 on both ranks together, d = 64: what splits a head, and a sampled softmax."""

    def work(classes: int) -> Any:
        jobs = {
            "ShardedCatnatHead": sharded(classes, 64),
            f"sampled softmax, {NEGATIVES} negatives": sampled_softmax(classes, 64),
        }
        if classes <= 1 << 17:
            jobs["vocabulary-parallel softmax"] = vocabulary_parallel(classes, 64)
        # A softmax step takes a second.
        return alternate(jobs) if classes > 1 << 17 else alternate(jobs, 10, 2)

    return {f"2^{bits}": mean(on_ranks(lambda bits=bits: work(1 << bits))) for bits in (17, 20)}


def profile() -> dict[str, Any]:
    """Where the time of 30 steps of rank 0 goes, K = 2^20, d = 64: percent of its processor time, the largest alone."""

    def work() -> Any:
        job = sharded(1 << 20, 64)
        for _ in range(3):
            job()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
            for _ in range(30):
                job()
        events = profiled.key_averages()
        total = sum(event.self_cpu_time_total for event in events)
        largest = sorted(events, key=lambda event: -event.self_cpu_time_total)[:14]
        return {
            event.key: {
                "percent": three_digits(100 * event.self_cpu_time_total / total),
                "calls a step": event.count / 30,
            }
            for event in largest
        }

    return on_ranks(work)[0]


PARTS = {"levels": levels, "growth": growth, "memory": memory, "baselines": baselines, "profile": profile}


def environment() -> dict[str, Any]:
    versions = {"torch": torch.__version__, "torchrec": torchrec.__version__}
    return {**machine(), "python": platform.python_version(), **versions}


def table(record: dict[str, Any]) -> str:
    """All parts as Markdown."""
    lines = ["# A head on TorchRec", "", "Made by `python benchmarks/torchrec_head.py`.", ""]
    for part, entry in record.items():
        values = entry["values"]
        nested = any(isinstance(value, dict) for case in values.values() for value in case.values())
        lines += [f"## {part.capitalize()}", "", (PARTS[part].__doc__ or "").splitlines()[0], ""]
        for title, cases in values.items() if nested else [("", values)]:
            names = list(next(iter(cases.values())))
            lines += [f"**{title}**", ""] if title else []
            lines += ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
            lines += [f"| {case} | " + " | ".join(f"{of[n]:g}" for n in names) + " |" for case, of in cases.items()]
            lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"any of {', '.join(PARTS)}; all if none is given")
    given = parser.parse_args()
    record = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for part in given.parts or PARTS:
        record[part] = {"values": PARTS[part](), "environment": environment(), "commit": commit()}
        record = {name: record[name] for name in PARTS if name in record}
        write(record, RESULT)
        RESULT.with_suffix(".md").write_text(table(record))
        print(json.dumps({part: record[part]["values"]}, indent=1))


if __name__ == "__main__":
    main()
