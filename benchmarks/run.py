"""Methods side by side in one run, one thread, order alternated: python benchmarks/run.py [NAME ...]

Every comparison times the same job done by each method, in turn, and reports medians and ratios to the first, without
the fused kernels and with them. It claims nothing: results/NAME.json and results/environment.json are what was
measured, and where; results/README.md is made of them.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from records import RESULTS, commit, machine, table, without_and_with_kernels, write
from torch.nn import functional as F

import catnat
import catnat.torch as ct

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
    """20 valid classes of many: a mask over all, and the valid classes alone, beside masked logits."""
    rows, valid = 256, 20
    for classes in (1000, 4096):
        logits, scores = (torch.randn(rows, n, requires_grad=True) for n in (classes, classes - 1))
        chosen = torch.rand(rows, classes).argsort(-1)[:, :valid]
        mask = torch.zeros(rows, classes, dtype=torch.bool).scatter(-1, chosen, True)
        policies: dict[str, Callable[[], torch.distributions.Categorical]] = {
            "Categorical, masked logits": lambda x=logits, m=mask: torch.distributions.Categorical(
                logits=x.masked_fill(~m, -1e8)
            )
        }
        for name, activation in ACTIVATIONS.items():
            policies[f"Catnat {name}, mask"] = lambda a=activation, s=scores, m=mask: ct.Catnat(s, activation=a, mask=m)
            policies[f"log_prob {name}, valid alone"] = lambda a=activation, s=scores, c=chosen: (
                torch.distributions.Categorical(logits=ct.log_prob(s, c.T, activation=a).T)
            )
        yield f"draw, {valid} of {classes}", {name: lambda p=policy: p().sample() for name, policy in policies.items()}
        first = {True: torch.zeros(rows, dtype=torch.int64), False: chosen[:, 0]}  # by its place among the valid
        yield (
            f"log_prob, entropy, backward, {valid} of {classes}",
            {n: lambda p=policy, a=first["alone" in n]: update(p(), a) for n, policy in policies.items()},
        )


def update(policy: torch.distributions.Distribution, action: torch.Tensor) -> None:
    (policy.log_prob(action).sum() + policy.entropy().sum()).backward()


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


def vae_step() -> Iterator[tuple[str, Methods]]:
    """A training step of the paper's autoencoder, as in the experiments, on one batch of 100 images after the other."""
    from catnat_experiments.common import mnist
    from catnat_experiments.tasks.vae.experiment import Cell
    from catnat_experiments.tasks.vae.gumbel import Training
    from catnat_experiments.tasks.vae.task import EXPERIMENT

    def training(name: str) -> Training:
        run = EXPERIMENT.config(Cell("adam", "binary", 20, 32), name, 0.003, 0, steps=50_000)
        return Training(mnist.load("binary"), run)

    yield "N = 20, K = 32", {name: training(name).advance for name in ("softmax", "sigmoid", "natural")}


def bins() -> Iterator[tuple[str, Methods]]:
    """Ordered bins, 64 rows with a number each: softmax, cumulative sum and search, beside a path of the tree."""

    def softmax_cdf(logits: torch.Tensor, edges: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        probs = logits.softmax(-1)
        index = torch.searchsorted(edges, x, right=True).clamp(1, probs.shape[-1]).unsqueeze(-1) - 1
        inside = (x.unsqueeze(-1) - edges[index]) / (edges[index + 1] - edges[index])
        picked = probs.gather(-1, index)
        return (probs.cumsum(-1).gather(-1, index) - picked + picked * inside).squeeze(-1)

    def softmax_icdf(logits: torch.Tensor, edges: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        probs = logits.softmax(-1)
        sums = probs.cumsum(-1)
        index = torch.searchsorted(sums, u.unsqueeze(-1)).clamp(max=probs.shape[-1] - 1)
        inside = 1 - (sums.gather(-1, index) - u.unsqueeze(-1)) / probs.gather(-1, index)
        return (edges[index] + (edges[index + 1] - edges[index]) * inside).squeeze(-1)

    rows = 64
    x, u = 2 * torch.rand(rows) - 1, torch.rand(rows)
    for size in (256, 4096, 65536):
        edges, logits = torch.linspace(-1, 1, size + 1, dtype=torch.float64), torch.randn(rows, size)
        made = ct.BinnedCatnat(torch.randn(rows, size - 1), edges.numpy(), validate_args=False)
        grid = edges.float()
        yield (
            f"cdf, {size:,} bins",
            {"softmax": lambda z=logits, e=grid: softmax_cdf(z, e, x), "BinnedCatnat": lambda m=made: m.cdf(x)},
        )
        yield (
            f"quantile, {size:,} bins",
            {"softmax": lambda z=logits, e=grid: softmax_icdf(z, e, u), "BinnedCatnat": lambda m=made: m.icdf(u)},
        )


COMPARISONS = {
    job.__name__: job
    for job in (log_probs, compiled_log_probs, sampling, rollout, growth, masks, ragged, vae_step, bins)
}


def environment() -> dict[str, str | int]:
    return {
        **machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "catnat": catnat.__version__,
        "kernels": ct.kernels()["cpu"],
        "commit": commit(),
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
        found = json.loads((RESULTS / f"{name}.json").read_text())
        lines += [f"## {name}", "", comparison.__doc__ or "", "", *table(found), ""]
    (RESULTS / "README.md").write_text("\n".join(lines))


def measured(name: str, seconds: float) -> dict[str, dict[str, dict[str, float]]]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with torch.no_grad() if name == "rollout" else torch.enable_grad():
        return {case: compare(methods, seconds) for case, methods in COMPARISONS[name]()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*COMPARISONS, []], help="which comparisons; all if none")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each case runs")
    parser.add_argument("--measure", action="store_true", help="only print one comparison as JSON, in this process")
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measured(*arguments.names, arguments.seconds)))
        return
    write(environment(), RESULTS / "environment.json")
    for name in arguments.names or COMPARISONS:
        found = without_and_with_kernels(__file__, name, "--measure", "--seconds", str(arguments.seconds))
        write(found, RESULTS / f"{name}.json")
        print(name, *table(found), sep="\n", flush=True)
    write_page()


if __name__ == "__main__":
    main()
