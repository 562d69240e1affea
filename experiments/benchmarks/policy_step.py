"""How long PPO's act and update take on Atari, softmax beside catnat.

    python benchmarks/policy_step.py                       # sigmoid and natural beside softmax, K = 4 and 18
    python benchmarks/policy_step.py natural --actions 18

A turn is what eight games cost between two updates, without the games: 128 times act on 8 states, then one pass over
256 states in a minibatch, as often as there are minibatches and epochs. All candidates take turns, in alternating
order, in one process and on one thread. A time is the least of all rounds, in processor time of the thread, so that
other work on the machine disturbs it less; the ratio to softmax is the median over rounds of the ratio within a round.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch

from catnat_experiments.tasks.atari.agent import Rollout
from catnat_experiments.tasks.atari.games import SIDE, STACK
from catnat_experiments.tasks.atari.task import config
from catnat_experiments.tasks.atari.training import DEFAULTS, Training

GAMES = {4: "breakout", 18: "seaquest"}
ROWS, PLAYERS = 256, int(DEFAULTS["num_envs"])
ACTS = int(DEFAULTS["num_steps"])
UPDATES = int(DEFAULTS["update_epochs"]) * int(DEFAULTS["num_minibatches"])


def candidate(name: str, actions: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Act on a few states, and update with one minibatch."""
    training = Training(config(GAMES[actions], name, 0, 10**6, num_minibatches=1))
    frames = torch.randint(256, (ROWS, STACK, SIDE, SIDE), dtype=torch.uint8)
    drawn, log_probs, values = training.act(frames)
    rows = Rollout(frames, drawn, log_probs, values, torch.randn(ROWS), torch.ones(ROWS, dtype=torch.bool))
    return lambda: training.act(frames[:PLAYERS]), lambda: training.update(rows)


def timed(call: Callable[[], object], times: int) -> float:
    """Seconds of one call, of this thread."""
    began = time.thread_time()
    for _ in range(times):
        call()
    return (time.thread_time() - began) / times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parameterizations", nargs="*", default=["sigmoid", "natural"])
    parser.add_argument("--actions", type=int, nargs="*", choices=list(GAMES), default=list(GAMES))
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = ["softmax", *(name for name in given.parameterizations if name != "softmax")]
    print(f"torch {torch.__version__}, {platform.machine()}, one thread")
    for actions in given.actions:
        candidates = {name: candidate(name, actions) for name in names}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for turn in range(given.rounds + 1):
            for name in names[:: 1 - 2 * (turn % 2)]:
                act, update = candidates[name]
                measured = timed(act, 20), timed(update, 1)
                if turn:  # the first round warms up
                    times[name].append(measured)
        for name in names:
            acts, updates = zip(*times[name], strict=True)
            both = [[ACTS * act + UPDATES * update for act, update in times[of]] for of in (name, "softmax")]
            ratio = statistics.median(a / b for a, b in zip(*both, strict=True))
            told = f"act {1e3 * min(acts):6.2f} ms, update {1e3 * min(updates):7.2f} ms"
            print(f"K = {actions:2}  {name:16} {told}, a turn {ratio:5.3f} times softmax")


if __name__ == "__main__":
    main()
