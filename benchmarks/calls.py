"""What a small call costs beside torch's own for softmax: python benchmarks/calls.py

One thread, processor time, the methods in turn, medians; with the fused kernels and without, each in a process of its
own. "Ten plain lines" is what anybody would write for a small tree: logsigmoid of both signs and one product with the
0/1 matrices of paths. Writes results/calls.json, and results/calls.md from it, which the page on benchmarks shows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator

import torch
from records import RESULTS, commit, machine, without_and_with_kernels, write
from run import Function, Job, Methods, compare, update
from torch.distributions import Categorical, Distribution
from torch.nn import functional as F

import catnat
import catnat.torch as ct
from catnat.trees.tables import path_branches

SIZES = ((8, 18), (256, 18), (4096, 32))
ACTIVATIONS = ("sigmoid", "natural")
MANY = range(20)  # calls at a time, because one is close to the clock's resolution


def many(job: Job) -> Job:
    def jobs() -> None:
        for _ in MANY:
            job()

    return jobs


def plain_log_probs(classes: int) -> Function:
    """Ten plain lines for a small balanced tree with the sigmoid."""
    tree = catnat.balanced(classes)
    no, yes = (torch.tensor(side, dtype=torch.float32) for side in path_branches(tree, "leaves"))
    offset = torch.tensor(catnat.sigmoid().offset(tree), dtype=torch.float32)

    def log_probs(scores: torch.Tensor) -> torch.Tensor:
        logit = scores + offset
        return torch.addmm(F.logsigmoid(-logit) @ no, F.logsigmoid(logit), yes)

    return log_probs


@torch.no_grad()
def rollout(distribution: Distribution) -> None:
    distribution.log_prob(distribution.sample())


def comparisons() -> Iterator[tuple[str, Methods]]:
    for rows, classes in SIZES:
        for name, methods in small_calls(rows, classes).items():
            yield f"{name}, {rows}x{classes}", methods
    yield "head of 1,000 classes, forward and backward, 256 rows of 64", head()


def small_calls(rows: int, classes: int) -> dict[str, Methods]:
    logits = torch.randn(rows, classes, requires_grad=True)
    scores = torch.randn(rows, classes - 1, requires_grad=True)
    target, grad = torch.randint(classes, (rows,)), torch.randn(rows, classes)
    plain = plain_log_probs(classes)

    def each(job: Callable[[str], object]) -> Methods:
        return {f"catnat {a}": many(lambda a=a: job(a)) for a in ACTIVATIONS}

    return {
        "cross_entropy, forward and backward": {
            "softmax": many(lambda: F.cross_entropy(logits, target).backward()),
            **each(lambda a: ct.cross_entropy(scores, target, activation=a).backward()),
            "ten plain lines": many(lambda: F.nll_loss(plain(scores), target).backward()),
        },
        "log_catnat, forward and backward": {
            "softmax": many(lambda: F.log_softmax(logits, -1).backward(grad)),
            **each(lambda a: ct.log_catnat(scores, activation=a).backward(grad)),
            "ten plain lines": many(lambda: plain(scores).backward(grad)),
        },
        "policy update (log_prob, entropy, backward)": {
            "softmax": many(lambda: update(Categorical(logits=logits), target)),
            **each(lambda a: update(ct.Catnat(scores, activation=a), target)),
        },
        "rollout (sample, log_prob)": {
            "softmax": many(lambda: rollout(Categorical(logits=logits))),
            **each(lambda a: rollout(ct.Catnat(scores, activation=a))),
        },
    }


def head() -> Methods:
    """A head beside the arithmetic that it does: gather the rows of a path, multiply, and logsigmoid."""
    features, target = torch.randn(256, 64), torch.randint(1000, (256,))
    layer, linear = ct.CatnatHead(64, 1000), torch.nn.Linear(64, 1000)
    heap = target + 1024 - 1000 * (target + 1024 >= 2000)
    ladder = heap.unsqueeze(-1) // 2 ** torch.arange(10, -1, -1)
    node, bit = (ladder[:, :-1] - 1).clamp(min=0), ladder[:, 1:] - 2 * ladder[:, :-1]
    sign, on_path = (2 * bit - 1).float(), (ladder[:, :-1] > 0).float()

    def arithmetic() -> None:
        score = torch.matmul(F.embedding(node, layer.weight), features.unsqueeze(-1)).squeeze(-1) + layer.bias[node]
        (-(F.logsigmoid(sign * score) * on_path).sum(-1).mean()).backward()

    return {
        "softmax": lambda: F.cross_entropy(linear(features), target).backward(),
        "CatnatHead": lambda: layer.loss(features, target).backward(),
        "its arithmetic": arithmetic,
    }


def measured(seconds: float) -> dict[str, dict[str, dict[str, float]]]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return {name: compare(methods, seconds) for name, methods in comparisons()}


def main() -> None:
    if sys.argv[1:] == ["measure"]:
        print(json.dumps(measured(seconds=2.0)))
        return
    found = without_and_with_kernels(__file__, "measure")
    write({**machine(), "commit": commit(), **found}, RESULTS / "calls.json")
    (RESULTS / "calls.md").write_text(table(found))
    print(table(found))


def table(found: dict[str, dict[str, dict[str, dict[str, float]]]]) -> str:
    """Ratios to softmax, without the kernels and with them."""
    off, on = found["without kernels"], found["with kernels"]
    columns = [(off, "catnat sigmoid"), (off, "catnat natural"), (off, "ten plain lines")]
    columns += [(on, "catnat sigmoid"), (on, "catnat natural")]
    lines = ["| call | sigmoid | natural | ten plain lines | sigmoid, kernels | natural, kernels |", "|---" * 6 + "|"]
    for case in off:
        cells = [measured[case][name]["ratio"] if name in measured[case] else None for measured, name in columns]
        if any(cells):
            lines.append(f"| {case} | {' | '.join('' if cell is None else f'{cell:.2f}' for cell in cells)} |")
    (head,) = (row for row in off.values() if "CatnatHead" in row)
    overhead = head["CatnatHead"]["ratio"] / head["its arithmetic"]["ratio"]
    whole = head["CatnatHead"]["ratio"]
    return "\n".join(
        [*lines, "", f"{_HEAD} {whole:.2f} of a full softmax's time, {overhead:.1f} of its own arithmetic's.", ""]
    )


_HEAD = "`CatnatHead` with 1,000 classes, 256 rows of 64 features, forward and backward:"


if __name__ == "__main__":
    main()
