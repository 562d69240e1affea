"""Heads for very many classes, beside torch's: python benchmarks/heads.py [policy step growth memory search ...]

One thread, order alternated, processor time, medians; ratios are to the first method of a case. results/heads.json is
what was measured, and where; results/heads.md is made of it. Every part replaces its own entry and leaves the others.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from records import commit, machine, write
from run import Job, compare
from torch import Tensor, nn
from torch.nn import functional as F

import catnat
import catnat.torch as ct

RESULT = Path(__file__).parent / "results" / "heads.json"
BATCH, FEATURES = 256, 256
Loss = Callable[[Tensor, Tensor], Tensor]


def zipf(num_classes: int) -> Tensor:
    """Zipf's law of words: the class of rank r has a weight of 1/r."""
    weights = 1 / torch.arange(1, num_classes + 1, dtype=torch.float64)
    return weights / weights.sum()


def training(module: nn.Module, loss: Loss, probs: Tensor, features: int = FEATURES) -> Job:
    """One step: forward, backward to the input too, and plain gradient descent; targets are drawn from ``probs``."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    sums = probs.cumsum(0)

    def job() -> None:
        input = torch.randn(BATCH, features, requires_grad=True)
        target = torch.searchsorted(sums, torch.rand(BATCH, dtype=sums.dtype)).clamp(max=len(probs) - 1)
        optimizer.zero_grad()
        loss(input, target).backward()
        optimizer.step()

    return job


def path_head(tree: int | catnat.Tree, activation: str, probs: Tensor, features: int = FEATURES) -> Job:
    head = ct.CatnatHead(features, tree, activation, sparse=True)
    return training(head, lambda input, target: head(input, target).loss, probs, features)


def step(seconds: float) -> dict[str, Any]:
    """K = 131,072: a step of each method, with targets of Zipf's law and with all targets alike."""
    size = 1 << 17
    targets = {"Zipf's law": zipf(size), "all alike": torch.full((size,), 1 / size, dtype=torch.float64)}
    return {name: compare(steps(probs), seconds) for name, probs in targets.items()}


def steps(probs: Tensor) -> dict[str, Job]:
    size = len(probs)
    linear, fused = nn.Linear(FEATURES, size), nn.Linear(FEATURES, size)
    adaptive = nn.AdaptiveLogSoftmaxWithLoss(FEATURES, size, cutoffs=[2000, 20_000])
    return {
        "Linear + cross_entropy": training(linear, lambda x, y: F.cross_entropy(linear(x), y), probs),
        "linear_cross_entropy": training(
            fused, lambda x, y: F.linear_cross_entropy(x, fused.weight, y, linear_bias=fused.bias), probs
        ),
        "AdaptiveLogSoftmaxWithLoss": training(adaptive, lambda x, y: adaptive(x, y).loss, probs),
        "CatnatHead sigmoid": path_head(size, "sigmoid", probs),
        "CatnatHead natural": path_head(size, "natural", probs),
        "CatnatHead sigmoid, Huffman": path_head(catnat.huffman(zipf(size).numpy()), "sigmoid", probs),
    }


def growth(seconds: float) -> dict[str, Any]:
    """From 2^14 classes to 2^20 with d = 256, and from 10^3 to 10^7 with d = 64."""
    wide = {f"2^{bits}": path_head(1 << bits, "sigmoid", zipf(1 << bits)) for bits in (14, 17, 20)}
    narrow = {f"10^{digits}": path_head(10**digits, "sigmoid", zipf(10**digits), 64) for digits in range(3, 8)}
    return {"d = 256": compare(wide, seconds), "d = 64": compare(narrow, seconds)}


# ---- memory ----


def megabytes(name: str) -> float:
    """What Linux says of this process: VmRSS, what it holds now, or VmHWM, the most since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def memory_of(num_classes: int, features: int, optimizer: str) -> dict[str, float]:
    """The peak of this process over some steps, beyond what it held with parameters and the optimizer's state."""
    head = ct.CatnatHead(features, num_classes, "sigmoid", sparse=True)
    made = {"SGD": torch.optim.SGD, "SparseAdam": torch.optim.SparseAdam}[optimizer](head.parameters(), lr=0.01)

    def advance() -> None:
        made.zero_grad()
        loss = head(torch.randn(BATCH, features, requires_grad=True), torch.randint(num_classes, (BATCH,))).loss
        loss.backward()
        made.step()

    if optimizer == "SparseAdam":  # its state, before the measurement: zeros are not memory until they are written
        for parameter in head.parameters():
            state = made.state[parameter]
            state["step"] = 0
            state["exp_avg"], state["exp_avg_sq"] = (torch.full_like(parameter, 0.0).add_(0) for _ in range(2))
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = megabytes("VmRSS")
    for _ in range(5):
        advance()
    held = sum(p.numel() * p.element_size() for p in head.parameters()) / 2**20
    return {"parameters, MB": round(held), "beyond, MB": round(megabytes("VmHWM") - before, 1)}


def memory(seconds: float) -> dict[str, Any]:
    """Each case in a process of its own, because a peak never falls."""
    found = {}
    cases = [(1 << bits, FEATURES, name) for bits in (14, 20) for name in ("SGD", "SparseAdam")]
    for num_classes, features, optimizer in [*cases, (10**7, 64, "SGD")]:
        command = [sys.executable, __file__, "--memory-of", str(num_classes), str(features), optimizer]
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found[f"K = {num_classes:,}, d = {features}, {optimizer}"] = json.loads(answer)
    return found


# ---- search ----


def search(seconds: float) -> dict[str, Any]:
    """The fraction of nodes that an exact top 5 scores, by how certain the head is, and its time beside all classes.

    Certainty is the perplexity of the head: nearly K at its start.
    """
    found = {}
    for size, spread in [*((4096, spread) for spread in (1, 4, 8, 16)), (1 << 20, 8), (1 << 20, 16)]:
        input = torch.randn(16, FEATURES)
        head = ct.CatnatHead(FEATURES, size, "sigmoid", bias=False)
        with torch.no_grad():
            head.weight.mul_(spread)
            perplexity = math.exp(float(head.distribution(input).entropy().mean()))
            result = head.topk(input, 5)
            assert bool(result.proven.all())
            methods = {
                "all classes": lambda head=head, input=input: head.log_prob(input).topk(5),
                "topk": lambda head=head, input=input: head.topk(input, 5),
            }
            ratio = compare(methods, seconds / 6, least_rounds=5)["topk"]["ratio"]
        fraction = float(result.visited.double().mean()) / (size - 1)
        found[f"K = {size:,}, perplexity {perplexity:.0f}"] = {"nodes asked": round(fraction, 6), "time": ratio}
    return found


# ---- policies ----

STATE, PLAYERS, ACTS = 64, 8, 8


class Policy(nn.Module):
    """What PPO needs of a policy."""

    optimizers: list[torch.optim.Optimizer]

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(STATE, FEATURES), nn.Tanh())

    def act(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Drawn actions and their log-probabilities."""
        raise NotImplementedError

    def evaluate(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """The log-probabilities of actions, and the entropy."""
        raise NotImplementedError


class SoftmaxPolicy(Policy):
    """A logit for every action."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.logits = nn.Linear(FEATURES, actions)
        self.optimizers = [torch.optim.Adam(self.parameters(), 1e-4)]

    def act(self, states: Tensor) -> tuple[Tensor, Tensor]:
        dist = torch.distributions.Categorical(logits=self.logits(self.body(states)), validate_args=False)
        drawn = dist.sample()
        return drawn, dist.log_prob(drawn)

    def evaluate(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        dist = torch.distributions.Categorical(logits=self.logits(self.body(states)), validate_args=False)
        return dist.log_prob(actions), dist.entropy()


class TreePolicy(Policy):
    """Paths of a tree. The entropy is estimated by one draw, because the exact one reads all nodes."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.head = ct.CatnatHead(FEATURES, actions, "sigmoid", sparse=True)
        self.optimizers = [
            torch.optim.Adam(self.body.parameters(), 1e-4),
            torch.optim.SparseAdam(self.head.parameters(), 1e-4),
        ]

    def act(self, states: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(states)
        drawn = self.head.sample(features)
        return drawn, self.head.log_prob_of(features, drawn)

    def evaluate(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(states)
        both = self.head.log_prob_of(features, torch.stack([actions, self.head.sample(features)], -1))
        own = both[..., 1]
        return both[..., 0], -own.detach() * own  # whose gradient is the entropy's in the mean


def playing(policy: Policy) -> Job:
    """Eight times act on eight states, then one update with a minibatch: PPO's proportions on Atari."""
    states, advantages = torch.randn(BATCH, STATE), torch.randn(BATCH)
    with torch.no_grad():
        actions, old = policy.act(states)

    def job() -> None:
        with torch.no_grad():
            for _ in range(ACTS):
                policy.act(states[:PLAYERS])
        log_probs, entropy = policy.evaluate(states, actions)
        ratios = (log_probs - old).exp()
        clipped = torch.minimum(ratios * advantages, ratios.clamp(0.9, 1.1) * advantages)
        for optimizer in policy.optimizers:
            optimizer.zero_grad()
        (-clipped.mean() - 0.01 * entropy.mean()).backward()
        for optimizer in policy.optimizers:
            optimizer.step()

    return job


def policy(seconds: float) -> dict[str, Any]:
    """K = 100,000 actions: act and update of PPO, without the environment."""
    methods = {"softmax": playing(SoftmaxPolicy(100_000)), "CatnatHead sigmoid": playing(TreePolicy(100_000))}
    return compare(methods, seconds)


PARTS = {"policy": policy, "step": step, "growth": growth, "memory": memory, "search": search}


def environment() -> dict[str, Any]:
    return {**machine(), "python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}


def table(record: dict[str, Any]) -> str:
    """All parts as Markdown."""
    lines = ["# Heads", "", "Made by `python benchmarks/heads.py`.", ""]

    def rows(cases: dict[str, Any]) -> list[str]:
        names = list(dict.fromkeys(name for case in cases.values() for name in case))
        head = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
        return [
            *head,
            *(f"| {case} | " + " | ".join(str(of.get(n, "")) for n in names) + " |" for case, of in cases.items()),
            "",
        ]

    for part, entry in record.items():
        lines += [f"## {part}", "", PARTS[part].__doc__.splitlines()[0], ""]
        values = entry["values"]
        nested = all(isinstance(value, dict) for case in values.values() for value in case.values())
        for name, cases in values.items() if nested else [("", values)]:
            lines += [f"**{name}**", ""] if name else []
            lines += rows(cases)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"any of {', '.join(PARTS)}; all if none is given")
    parser.add_argument("--seconds", type=float, default=20, help="for each comparison")
    parser.add_argument("--memory-of", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if given.memory_of:
        size, features, optimizer = given.memory_of
        print(json.dumps(memory_of(int(size), int(features), optimizer)))
        return
    record = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for part in given.parts or PARTS:
        values = PARTS[part](given.seconds)
        record[part] = {"values": values, "environment": environment(), "commit": commit()}
        write(record, RESULT)
        RESULT.with_suffix(".md").write_text(table(record))
        print(json.dumps({part: values}, indent=1))


if __name__ == "__main__":
    main()
