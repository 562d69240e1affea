"""Stable-Baselines3 with a catnat policy beside the built-in one, on CartPole: python benchmarks/policies.py [NAME ...]

One round is what SB3 does in one iteration: collect a rollout, then update. All methods do it in turn, in alternating
order, in processor time. Figures are medians over rounds, ratios are to the built-in policy in the same round. It
claims nothing: results/policies.json is what was measured, and results/policies_environment.json where;
results/policies.md is made of them.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import sb3_contrib
import stable_baselines3
import torch
from cartpole import ALGORITHMS, make
from records import RESULTS, machine
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

import catnat

# A2C collects 5 steps and updates once: some iterations make a round, because one is close to the clock's resolution.
ITERATIONS = {"A2C": 10}


class Learner:
    """An algorithm that does a rollout and an update separately."""

    def __init__(self, model: OnPolicyAlgorithm) -> None:
        self.model = model
        _, self.callback = model._setup_learn(10**9)
        # The schedules of rates and clipping would end at 0.
        model._current_progress_remaining = 1.0

    def rollout(self) -> None:
        self.model.collect_rollouts(self.model.env, self.callback, self.model.rollout_buffer, self.model.n_steps)

    def update(self) -> None:
        self.model.train()

    def seconds(self, iterations: int) -> dict[str, float]:
        """The processor time of some iterations: other processes on the machine then count for less."""
        times = {"rollout": 0.0, "update": 0.0}
        for _ in range(iterations):
            for name in times:
                job: Callable[[], None] = getattr(self, name)
                start = time.process_time()
                job()
                times[name] += time.process_time() - start
        return times | {"rollout + update": sum(times.values())}


def compare(algorithm: str, seconds: float, least_rounds: int = 9) -> dict[str, dict[str, dict[str, float]]]:
    """For every part of an iteration the median time of each method, and of its ratio to the first in each round."""
    learners = {name: Learner(make(algorithm, name, seed=0)) for name in ALGORITHMS[algorithm].policies}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in learners}
    iterations = ITERATIONS.get(algorithm, 1)
    for learner in learners.values():  # warm up: caches, allocators, lazy imports
        learner.seconds(iterations)
    done, stop = 0, time.perf_counter() + seconds
    while done < least_rounds or time.perf_counter() < stop:
        for name in list(learners) if done % 2 else list(reversed(learners)):
            rounds[name].append(learners[name].seconds(iterations))
        done += 1
    first = rounds[next(iter(learners))]
    return {
        part: {name: figures([r[part] for r in own], [r[part] for r in first]) for name, own in rounds.items()}
        for part in ("rollout", "update", "rollout + update")
    }


def figures(times: list[float], firsts: list[float]) -> dict[str, float]:
    return {
        "milliseconds": round(1e3 * statistics.median(times), 3),
        "ratio": round(statistics.median(t / t0 for t, t0 in zip(times, firsts, strict=True)), 3),
        "rounds": len(times),
    }


def environment() -> dict[str, Any]:
    return {
        **machine(),
        "threads used": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "stable-baselines3": stable_baselines3.__version__,
        "sb3-contrib": sb3_contrib.__version__,
        "catnat": catnat.__version__,
    }


def write_table(results: dict[str, Any]) -> None:
    """results/policies.md, from all records there are."""
    lines = ["| algorithm | policy | rollout | update | rollout + update | ms |", "|---|---|---|---|---|---|"]
    for algorithm, parts in results.items():
        for policy, whole in parts["rollout + update"].items():
            ratios = " | ".join(f"{parts[part][policy]['ratio']:.2f}" for part in parts)
            lines.append(f"| {algorithm} | {policy} | {ratios} | {whole['milliseconds']:.1f} |")
    measured_on = ", ".join(f"{name} {value}" for name, value in environment().items())
    (RESULTS / "policies.md").write_text("\n".join([*lines, "", f"{measured_on}.", ""]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*ALGORITHMS, []], help="which algorithms; all if none")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each algorithm is measured")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "policies.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in arguments.names or ALGORITHMS:
        results[name] = compare(name, arguments.seconds)
        for part, methods in results[name].items():
            print(f"{name}, {part}")
            for method, row in methods.items():
                print(f"  {method:16} {row['milliseconds']:10.2f} ms   {row['ratio']:6.3f}", flush=True)
        path.write_text(json.dumps(results, indent=1) + "\n")
        write_table(results)
        (RESULTS / "policies_environment.json").write_text(json.dumps(environment(), indent=1) + "\n")


if __name__ == "__main__":
    main()
