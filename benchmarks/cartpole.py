"""CartPole with Stable-Baselines3: softmax beside catnat, for PPO, A2C, TRPO and MaskablePPO.

    python benchmarks/cartpole.py run      train what is missing: every algorithm x policy x seed
    python benchmarks/cartpole.py status   what is there
    python benchmarks/cartpole.py table    the table, from the records: results/cartpole.md

Every run is one line of results/cartpole.jsonl, written when the run is done; what is there is not made again,
so a stopped command goes on where it was. Settings are those of RL Baselines3 Zoo, which were chosen for softmax, the
same for all policies. MaskablePPO has PPO's settings, on a cart with six levers of which two are always blocked; Levers
is MaskablePPO on a cart with 512 levers of which all but eight are.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import sb3_contrib
import stable_baselines3
import torch
from records import commit
from sb3_contrib import TRPO, MaskablePPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_masked
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv

import catnat
from catnat.integrations.sb3_contrib import MaskableCatnatPolicy
from catnat.integrations.stable_baselines3 import CatnatPolicy

RECORDS = Path(__file__).parent / "results/cartpole.jsonl"
SEEDS = (0, 1, 2)
EPISODES = 100
SOLVED = 475.0


# ---- the environments ----


class SixLevers(gymnasium.Wrapper):  # type: ignore[type-arg]
    """CartPole with six levers, three strengths to each side. Where the cart and the pole are, two of them are blocked.

    Of the levers to the left one is blocked by the cart's position, of those to the right one by the pole's angle: nine
    masks, each with four valid actions. Pulling a blocked lever is an error.
    """

    FORCES = (-15.0, -10.0, -5.0, 5.0, 10.0, 15.0)

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = gymnasium.spaces.Discrete(len(self.FORCES))

    def action_masks(self) -> np.ndarray:
        position, _, angle, _ = self.unwrapped.state  # type: ignore[attr-defined]
        valid = np.ones(len(self.FORCES), bool)
        valid[int(position // 0.1) % 3] = False
        valid[3 + int(angle // 0.02) % 3] = False
        return valid

    def step(self, action: int) -> Any:
        if not self.action_masks()[action]:
            raise ValueError(f"Lever {action} is blocked.")
        force = self.FORCES[action]
        self.unwrapped.force_mag = abs(force)  # type: ignore[attr-defined]
        return self.env.step(int(force > 0))


class ManyLevers(gymnasium.Wrapper):  # type: ignore[type-arg]
    """CartPole with 512 levers, from strong to the left to strong to the right, of which eight can be pulled at a time.

    Which four to each side is drawn anew after every pull. Pulling another one is an error.
    """

    FORCES = np.linspace(-15, 15, 512)

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = gymnasium.spaces.Discrete(len(self.FORCES))
        self.valid = np.zeros(len(self.FORCES), bool)

    def action_masks(self) -> np.ndarray:
        return self.valid

    def _draw(self) -> None:
        half = len(self.FORCES) // 2
        self.valid = np.zeros(len(self.FORCES), bool)
        for first in (0, half):
            self.valid[first + self.unwrapped.np_random.choice(half, 4, replace=False)] = True

    def reset(self, **options: Any) -> Any:
        found = self.env.reset(**options)
        self._draw()
        return found

    def step(self, action: int) -> Any:
        if not self.valid[action]:
            raise ValueError(f"Lever {action} is blocked.")
        force = self.FORCES[action]
        self.unwrapped.force_mag = abs(force)  # type: ignore[attr-defined]
        found = self.env.step(int(force > 0))
        self._draw()
        return found


def cart() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


def cart_with_levers() -> gymnasium.Env[Any, Any]:
    return SixLevers(cart())


def cart_with_many_levers() -> gymnasium.Env[Any, Any]:
    return ManyLevers(cart())


# ---- the baselines ----


POLICIES: dict[str, dict[str, Any] | None] = {
    "softmax": None,  # the library's own
    "natural": {"activation": "natural"},
    "sigmoid": {"activation": "sigmoid"},
}
LEVERS: dict[str, dict[str, Any] | None] = {
    "softmax": None,  # whose masked logits are -1e8
    "sigmoid, renormalize": {"activation": "sigmoid"},  # as its records are called
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """An algorithm and what RL Baselines3 Zoo gives it for CartPole-v1 (hyperparams/ppo.yml, a2c.yml, trpo.yml)."""

    algorithm: type[OnPolicyAlgorithm]
    num_envs: int
    steps: int
    options: dict[str, Any]
    env: Callable[[], gymnasium.Env[Any, Any]] = cart
    policies: Mapping[str, dict[str, Any] | None] = dataclasses.field(default_factory=lambda: POLICIES)

    @property
    def masked(self) -> bool:
        return self.env is not cart

    def envs(self, count: int, seed: int) -> VecEnv:
        return make_vec_env(self.env, count, seed=seed)


_PPO = {
    "n_steps": 32,
    "batch_size": 256,
    "n_epochs": 20,
    "gae_lambda": 0.8,
    "gamma": 0.98,
    "ent_coef": 0.0,
    "learning_rate": LinearSchedule(1e-3, 0.0, 1.0),
    "clip_range": LinearSchedule(0.2, 0.0, 1.0),
}
_TRPO = {
    "n_steps": 512,
    "batch_size": 512,
    "cg_damping": 1e-3,
    "gae_lambda": 0.98,
    "gamma": 0.99,
    "learning_rate": 1e-3,
    "n_critic_updates": 20,
}
ALGORITHMS = {
    "PPO": Setting(PPO, 8, 100_000, _PPO),
    "MaskablePPO": Setting(MaskablePPO, 8, 100_000, _PPO, cart_with_levers),
    "Levers": Setting(MaskablePPO, 8, 100_000, _PPO, cart_with_many_levers, LEVERS),
    "TRPO": Setting(TRPO, 2, 100_000, _TRPO),
    "A2C": Setting(A2C, 8, 500_000, {"ent_coef": 0.0}),
}


def make(algorithm: str, policy: str, seed: int) -> OnPolicyAlgorithm:
    """The learner, not yet trained."""
    setting = ALGORITHMS[algorithm]
    options = setting.policies[policy]
    kind: Any = "MlpPolicy" if options is None else MaskableCatnatPolicy if setting.masked else CatnatPolicy
    env = setting.envs(setting.num_envs, seed)
    return setting.algorithm(kind, env, policy_kwargs=options, seed=seed, device="cpu", **setting.options)


# ---- runs and records ----


class Curve:
    """The mean return of the last 100 episodes, some times in a run."""

    def __init__(self, total: int, points: int = 50) -> None:
        self.every, self.next, self.points = total // points, 0, []

    def __call__(self, local: dict[str, Any], _: dict[str, Any]) -> bool:
        model = local["self"]
        if model.num_timesteps >= self.next and model.ep_info_buffer:
            returns = [episode["r"] for episode in model.ep_info_buffer]
            self.points.append([model.num_timesteps, round(float(np.mean(returns)), 1)])
            self.next = model.num_timesteps + self.every
        return True


def returns(model: OnPolicyAlgorithm, setting: Setting, *, deterministic: bool) -> list[float]:
    """Of new episodes, which are the same for all policies at their start."""
    evaluate = evaluate_masked if setting.masked else evaluate_policy
    envs = setting.envs(10, seed=10_000)
    found, _ = evaluate(model, envs, EPISODES, deterministic=deterministic, return_episode_rewards=True)
    envs.close()
    return list(map(float, found))


def train(algorithm: str, policy: str, seed: int, steps: int | None = None) -> dict[str, Any]:
    """One run: train, evaluate, and what is to be known of it."""
    setting = ALGORITHMS[algorithm]
    model = make(algorithm, policy, seed)
    total = steps or setting.steps
    curve, start = Curve(total), time.process_time()
    model.learn(total, callback=curve)
    seconds = time.process_time() - start
    greedy, drawn = (returns(model, setting, deterministic=choice) for choice in (True, False))
    return {
        "algorithm": algorithm,
        "policy": policy,
        "seed": seed,
        "steps": model.num_timesteps,
        "return, most probable actions": round(statistics.mean(greedy), 2),
        "return, drawn actions": round(statistics.mean(drawn), 2),
        "worst episode, most probable actions": min(greedy),
        "episodes": EPISODES,
        "steps to 475": next((at for at, mean in curve.points if mean >= SOLVED), None),
        "curve": curve.points,
        "seconds of processor time": round(seconds, 1),
        "commit": commit(),
        "versions": {
            "torch": torch.__version__,
            "stable-baselines3": stable_baselines3.__version__,
            "sb3-contrib": sb3_contrib.__version__,
            "gymnasium": gymnasium.__version__,
            "catnat": catnat.__version__,
        },
    }


def kept() -> dict[tuple[str, str, int], dict[str, Any]]:
    """The records, by algorithm, policy and seed."""
    lines = RECORDS.read_text().splitlines() if RECORDS.exists() else []
    found = [json.loads(line) for line in lines]
    return {(record["algorithm"], record["policy"], record["seed"]): record for record in found}


def runs(chosen: list[str]) -> Iterator[tuple[str, str, int]]:
    """Seed after seed, so that a table can be made early."""
    for seed, algorithm in itertools.product(SEEDS, chosen or ALGORITHMS):
        for policy in ALGORITHMS[algorithm].policies:
            yield algorithm, policy, seed


# ---- the table ----


def table(chosen: list[str]) -> str:
    """Medians over the seeds that are there."""
    lines = [
        f"| algorithm | policy | median return | of the seeds | with drawn actions | steps to {SOLVED:.0f} | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    found = kept()
    pairs = [(name, policy) for name in chosen or ALGORITHMS for policy in ALGORITHMS[name].policies]
    for algorithm, policy in pairs:
        records = [found[run] for seed in SEEDS if (run := (algorithm, policy, seed)) in found]
        if not records:
            continue
        greedy, drawn, seconds = (
            [record[name] for record in records]
            for name in ("return, most probable actions", "return, drawn actions", "seconds of processor time")
        )
        reached = [record["steps to 475"] for record in records]
        steps = f"{statistics.median(reached):,.0f}" if None not in reached else f"{reached.count(None)} never"
        lines.append(
            f"| {algorithm} | {policy} | {statistics.median(greedy):.1f} | {', '.join(f'{r:.0f}' for r in greedy)} | "
            f"{statistics.median(drawn):.1f} | {steps} | {statistics.median(seconds):.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "status", "table"])
    parser.add_argument("names", nargs="*", choices=[*ALGORITHMS, []], help="which algorithms; all if none")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.command == "table":
        text = table(arguments.names)
        print(text)
        RECORDS.with_suffix(".md").write_text(text + "\n")
        return
    for run in runs(arguments.names):
        if arguments.command == "run" and run not in kept():
            with RECORDS.open("a") as lines:
                lines.write(json.dumps(train(*run)) + "\n")
        print(*run, kept().get(run, {}).get("return, most probable actions", "missing"), flush=True)


if __name__ == "__main__":
    main()
