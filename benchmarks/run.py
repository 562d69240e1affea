"""Methods side by side in one run, one thread, order alternated: python benchmarks/run.py [NAME ...]

Every comparison times the same job done by each method, in turn, and reports medians and ratios to the first. It claims
nothing: results/NAME.json and results/environment.json are what was measured, and where; results/README.md is made of
them.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from records import machine
from torch.nn import functional as F

import catnat
import catnat.torch as ct

RESULTS = Path(__file__).parent / "results"
Job = Callable[[], object]
Function = Callable[[torch.Tensor], torch.Tensor]
Methods = dict[str, Job]


def compare(methods: Methods, seconds: float, least_rounds: int = 15) -> dict[str, dict[str, float]]:
    """The median time of every method, run in alternating order, and of its ratio to the first in each round."""
    times: dict[str, list[float]] = {name: [] for name in methods}
    for job in methods.values():  # warm up: caches, allocators, lazy imports
        job()
    rounds, stop = 0, time.perf_counter() + seconds
    while rounds < least_rounds or time.perf_counter() < stop:
        order = list(methods) if rounds % 2 else list(reversed(methods))
        for name in order:
            start = time.process_time()  # processor time: other processes on the machine then count for less
            methods[name]()
            times[name].append(time.process_time() - start)
        rounds += 1
    first = times[next(iter(methods))]
    return {
        name: {
            "milliseconds": three_digits(1e3 * statistics.median(measured)),
            "ratio": three_digits(statistics.median(t / t0 for t, t0 in zip(measured, first, strict=True))),
        }
        for name, measured in times.items()
    }


def three_digits(value: float) -> float:
    return float(f"{value:.3g}")


def forward_backward(function: Function, inputs: torch.Tensor, grad: torch.Tensor) -> Job:
    leaf = inputs.requires_grad_()

    def job() -> None:
        leaf.grad = None
        function(leaf).backward(grad)

    return job


ACTIVATIONS = {"sigmoid": ct.sigmoid(), "natural": ct.natural()}


def log_probs(through: Callable[[Function], Function] = lambda f: f) -> Iterator[tuple[str, Methods]]:
    """log_catnat forward and backward beside log_softmax."""
    for rows, classes in ((65536, 32), (7680, 32), (4096, 1024)):
        grad = torch.randn(rows, classes)
        softmax = through(lambda x: F.log_softmax(x, -1))
        methods = {"log_softmax": forward_backward(softmax, torch.randn(rows, classes), grad)}
        for name, activation in ACTIVATIONS.items():
            function = through(lambda s, a=activation: ct.log_catnat(s, activation=a))
            methods[f"log_catnat {name}"] = forward_backward(function, torch.randn(rows, classes - 1), grad)
        yield f"{rows}x{classes}", methods


def compiled_log_probs() -> Iterator[tuple[str, Methods]]:
    """The same, each method through torch.compile."""
    return log_probs(torch.compile)


def sampling() -> Iterator[tuple[str, Methods]]:
    """Building a distribution and drawing one sample a row, beside torch's Categorical."""
    rows, classes = 256, 1024
    logits = torch.randn(rows, classes)
    methods: Methods = {"Categorical": lambda: torch.distributions.Categorical(logits=logits).sample()}
    for name, activation in ACTIVATIONS.items():
        scores = torch.randn(rows, classes - 1)
        methods[f"Catnat {name}"] = lambda a=activation, s=scores: ct.Catnat(s, activation=a).sample()
    yield f"{rows}x{classes}", methods


def rollout() -> Iterator[tuple[str, Methods]]:
    """One step of a policy, build, sample and log_prob, without gradients as in a rollout."""
    rows, classes = 8, 18

    def step(distribution: torch.distributions.Distribution) -> torch.Tensor:
        return distribution.log_prob(distribution.sample())

    logits = torch.randn(rows, classes)
    many = range(20)  # steps at a time, because one is close to the clock's resolution
    methods: Methods = {"Categorical": lambda: [step(torch.distributions.Categorical(logits=logits)) for _ in many]}
    for name, activation in ACTIVATIONS.items():
        scores = torch.randn(rows, classes - 1)
        methods[f"Catnat {name}"] = lambda a=activation, s=scores: [step(ct.Catnat(s, activation=a)) for _ in many]
    yield f"{rows}x{classes}, 20 steps", methods


def growth() -> Iterator[tuple[str, Methods]]:
    """log_prob and sample of 64 rows as K grows: the cost of a path."""
    rows, sizes = 64, (2**10, 2**15, 2**20)
    scores = {size: torch.randn(rows, size - 1) for size in sizes}
    classes = {size: torch.randint(size, (rows,)) for size in sizes}
    for name, activation in ACTIVATIONS.items():
        yield (
            f"log_prob {name}",
            {f"K={k}": lambda k=k, a=activation: ct.log_prob(scores[k], classes[k], activation=a) for k in sizes},
        )
        yield f"sample {name}", {f"K={k}": lambda k=k, a=activation: ct.sample(scores[k], activation=a) for k in sizes}


def masks() -> Iterator[tuple[str, Methods]]:
    """Ten valid classes of a thousand. Dense functions beside the unmasked ones, drawing beside masked logits."""
    rows, classes, valid = 256, 1000, 10
    logits, scores, grad = (torch.randn(rows, n) for n in (classes, classes - 1, classes))
    chosen = torch.rand(rows, classes).argsort(-1)[:, :valid]
    mask = torch.zeros(rows, classes, dtype=torch.bool).scatter(-1, chosen, True)
    modes = {"unmasked": None, "masked": mask}
    dense = {
        "probs": lambda dist: dist.probs,
        "logits": lambda dist: dist.logits,
        "entropy": lambda dist: dist.entropy(),
    }
    for name, activation in ACTIVATIONS.items():

        def masked(s: torch.Tensor, mode: str, activation: ct.Activation = activation) -> ct.Catnat:
            return ct.Catnat(s, activation=activation, mask=modes[mode])

        for what, of in dense.items():
            yield f"{what} {name}", {mode: lambda m=mode, of=of, masked=masked: of(masked(scores, m)) for mode in modes}
        yield (
            f"logits {name}, forward and backward",
            {
                m: forward_backward(lambda s, m=m, masked=masked: masked(s, m).logits, scores.clone(), grad)
                for m in modes
            },
        )
        methods: Methods = {
            "Categorical, masked logits": lambda: torch.distributions.Categorical(
                logits=logits.masked_fill(~mask, -1e8)
            ).sample()
        }
        yield f"sample {name}", methods | {m: lambda m=m, masked=masked: masked(scores, m).sample() for m in modes}


def ragged() -> Iterator[tuple[str, Methods]]:
    """64 variables of 2 to 96 classes: MultiCatnat beside a Python loop over Catnat."""
    sizes = [(2, 3, 5, 8, 12, 18, 24, 32, 48, 96)[i * 7 % 10] for i in range(64)]
    forest = catnat.Forest(sizes)
    widths = [tree.num_nodes for tree in forest.trees]

    def loop(scores: torch.Tensor, kind: type = ct.Catnat) -> list[torch.distributions.Distribution]:
        return [kind(part, tree) for part, tree in zip(scores.split(widths, -1), forest.trees, strict=True)]

    kl = torch.distributions.kl_divergence
    for rows in (1, 16, 64):
        p, q = torch.randn(2, rows, forest.num_nodes)
        value, grad = ct.MultiCatnat(p, forest).sample(), torch.randn(rows, forest.num_classes)
        parts = value.unbind(-1)
        straight = {
            "MultiCatnat": lambda s: ct.MultiCatnat(s, forest).rsample_one_hot(),
            "loop": lambda s: torch.cat([dist.rsample() for dist in loop(s, ct.OneHotCatnatStraightThrough)], -1),
        }
        jobs: dict[str, tuple[Job, Job]] = {
            "sample": (
                lambda p=p: ct.MultiCatnat(p, forest).sample(),
                lambda p=p: torch.stack([dist.sample() for dist in loop(p)], -1),
            ),
            "log_prob": (
                lambda p=p, value=value: ct.MultiCatnat(p, forest).log_prob(value),
                lambda p=p, parts=parts: sum(dist.log_prob(v) for dist, v in zip(loop(p), parts, strict=True)),
            ),
            "entropy": (
                lambda p=p: ct.MultiCatnat(p, forest).entropy(),
                lambda p=p: sum(dist.entropy() for dist in loop(p)),
            ),
            "kl_divergence": (
                lambda p=p, q=q: kl(ct.MultiCatnat(p, forest), ct.MultiCatnat(q, forest)),
                lambda p=p, q=q: sum(kl(a, b) for a, b in zip(loop(p), loop(q), strict=True)),
            ),
            "straight-through, forward and backward": tuple(
                forward_backward(function, p.clone(), grad) for function in straight.values()
            ),
        }
        for name, (together, one_by_one) in jobs.items():
            yield f"{name}, {rows} rows", {"MultiCatnat": together, "loop of Catnat": one_by_one}


COMPARISONS = {job.__name__: job for job in (log_probs, compiled_log_probs, sampling, rollout, growth, masks, ragged)}


def environment() -> dict[str, str | int]:
    return {
        **machine(),
        "threads used": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "catnat": catnat.__version__,
    }


def write_page() -> None:
    """results/README.md, from all records there are."""
    measured_on = json.loads((RESULTS / "environment.json").read_text())
    lines = [
        "# What was measured",
        "",
        "Made by `python benchmarks/run.py`. Processor time, one thread, median of alternated rounds.",
        "",
    ]
    lines += [", ".join(f"{name} {value}" for name, value in measured_on.items()) + ".", ""]
    for name, comparison in COMPARISONS.items():
        lines += [f"## {name}", "", comparison.__doc__ or "", "", "| case | method | ms | ratio |", "|---|---|---|---|"]
        for case, methods in json.loads((RESULTS / f"{name}.json").read_text()).items():
            lines += [
                f"| {case} | {method} | {row['milliseconds']:.3f} | {row['ratio']:.2f} |"
                for method, row in methods.items()
            ]
        lines.append("")
    (RESULTS / "README.md").write_text("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*COMPARISONS, []], help="which comparisons; all if none")
    parser.add_argument("--seconds", type=float, default=6.0, help="how long each comparison runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "environment.json").write_text(json.dumps(environment(), indent=1) + "\n")
    for name in arguments.names or COMPARISONS:
        results = {}
        for case, methods in COMPARISONS[name]():
            context = torch.no_grad() if name == "rollout" else torch.enable_grad()
            with context:
                results[case] = compare(methods, arguments.seconds)
            print(f"{name}, {case}")
            for method, figures in results[case].items():
                print(f"  {method:24} {figures['milliseconds']:10.3f} ms   {figures['ratio']:6.2f}")
        (RESULTS / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    write_page()


if __name__ == "__main__":
    main()
