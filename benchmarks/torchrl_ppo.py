"""PPO of TorchRL on CartPole-v1, softmax beside catnat: python benchmarks/torchrl_ppo.py [--seeds 1 2 3]

Every run is a policy and a seed, and leaves one JSON record in results/torchrl_ppo. A run whose record is there with
the same configuration is not run again, so an interrupted benchmark goes on where it stopped. All policies have the
same network, loss and hyperparameters, those that RL Baselines3 Zoo has for CartPole-v1; the last layer and the
distribution differ. At the end it prints the table of these runs, and writes it beside them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import gymnasium
import tensordict
import torch
import torchrl
from records import commit, write
from tensordict.nn import InteractionType, TensorDictModule
from torch import distributions as td
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import ExplorationType, GymEnv, SerialEnv, StepCounter, TransformedEnv, set_exploration_type
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import catnat
from catnat.integrations.torchrl import catnat_actor
from catnat.torch import CatnatLinear

RECORDS = Path(__file__).parent / "results" / "torchrl_ppo"
POLICIES = ("softmax", "sigmoid", "natural")


@dataclasses.dataclass(frozen=True)
class Config:
    policy: str
    seed: int
    env: str = "CartPole-v1"
    frames: int = 100_352
    num_envs: int = 8
    batch: int = 256  # frames between updates, of all environments
    epochs: int = 20
    learning_rate: float = 1e-3  # falls to 0, as does the clipping
    clip: float = 0.2
    gamma: float = 0.98
    gae_lambda: float = 0.8
    entropy: float = 0.0
    critic: float = 0.5
    max_grad_norm: float = 0.5
    episodes: int = 20  # of the evaluation


def mlp(inputs: int, head: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), head)


def build_actor(policy: str, env: Any) -> Any:
    inputs, actions = env.observation_spec["observation"].shape[-1], env.action_spec.space.n
    if policy != "softmax":
        return catnat_actor(mlp(inputs, CatnatLinear(64, actions, policy)), env.action_spec)
    return ProbabilisticActor(
        TensorDictModule(mlp(inputs, nn.Linear(64, actions)), ["observation"], ["logits"]),
        in_keys=["logits"],
        spec=env.action_spec,
        distribution_class=td.Categorical,
        return_log_prob=True,
        default_interaction_type=InteractionType.RANDOM,
    )


def build_env(config: Config, seed: int, num_envs: int) -> Any:
    def build() -> Any:
        return TransformedEnv(GymEnv(config.env, categorical_action_encoding=True), StepCounter())

    env = build() if num_envs == 1 else SerialEnv(num_envs, build)
    env.set_seed(seed)
    return env


def train(config: Config) -> tuple[Any, list[dict[str, float]]]:
    """The actor, and the mean return of the episodes that ended between two entries of the curve."""
    torch.manual_seed(config.seed)
    env = build_env(config, config.seed, config.num_envs)
    actor = build_actor(config.policy, env)
    critic = ValueOperator(mlp(env.observation_spec["observation"].shape[-1], nn.Linear(64, 1)), ["observation"])
    advantage = GAE(gamma=config.gamma, lmbda=config.gae_lambda, value_network=critic)
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=config.clip,
        entropy_coeff=config.entropy,
        critic_coeff=config.critic,
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    optimizer = torch.optim.Adam(loss.parameters(), eps=1e-5)
    collector = Collector(
        env,
        actor,
        frames_per_batch=config.batch,
        total_frames=config.frames,
        auto_register_policy_transforms=False,  # a policy without memory needs none
    )
    curve, ended, updates = [], [], config.frames // config.batch
    for update, data in enumerate(collector):
        left = 1 - update / updates
        optimizer.param_groups[0]["lr"] = left * config.learning_rate
        loss.clip_epsilon.fill_(left * config.clip)
        ended += data["next", "step_count"][data["next", "done"]].tolist()
        with torch.no_grad():
            advantage(data)
        for _ in range(config.epochs):
            found = loss(data)
            optimizer.zero_grad()
            (found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]).backward()
            nn.utils.clip_grad_norm_(loss.parameters(), config.max_grad_norm)
            optimizer.step()
        if (update + 1) % 20 == 0 and ended:
            curve.append({"frames": (update + 1) * config.batch, "return": round(statistics.mean(ended), 1)})
            ended = []
    collector.shutdown()
    return actor, curve


@torch.no_grad()
def evaluate(actor: Any, config: Config) -> list[float]:
    """Returns of the most probable actions, in episodes of their own seeds."""
    env = build_env(config, 1000 + config.seed, 1)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        return [env.rollout(500, actor)["next", "reward"].sum().item() for _ in range(config.episodes)]


def run(config: Config, records: Path) -> dict[str, Any]:
    """The record of a run, made now if it is not there."""
    file = records / f"{config.policy}-{config.seed}.json"
    wanted = dataclasses.asdict(config)
    if file.exists():
        record = json.loads(file.read_text())
        if record["config"] == wanted:
            return record
    start = time.process_time()
    actor, curve = train(config)
    returns = evaluate(actor, config)
    record = {
        "config": wanted,
        "return": statistics.mean(returns),
        "returns": returns,
        "curve": curve,
        "seconds": round(time.process_time() - start, 1),
        "commit": commit(),
        "versions": {
            "python": platform.python_version(),
            **{library.__name__: library.__version__ for library in (torch, torchrl, tensordict, gymnasium, catnat)},
        },
    }
    write(record, file)
    return record


def table(records: list[dict[str, Any]]) -> str:
    """A row for every policy: mean return of every seed's evaluation, their median, processor time."""
    rows = ["| policy | median | every seed | seconds |", "|---|---|---|---|"]
    for policy in POLICIES:
        own = [record for record in records if record["config"]["policy"] == policy]
        if own:
            returns = [record["return"] for record in own]
            each = ", ".join(f"{value:.1f}" for value in returns)
            seconds = statistics.median(record["seconds"] for record in own)
            rows.append(f"| {policy} | {statistics.median(returns):.1f} | {each} | {seconds:.0f} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policies", nargs="+", default=["softmax", "natural"], choices=POLICIES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--frames", type=int, default=Config.frames)
    parser.add_argument("--episodes", type=int, default=Config.episodes)
    parser.add_argument("--records", type=Path, default=RECORDS)
    args = parser.parse_args()
    records = []
    for seed in args.seeds:
        for policy in args.policies:
            config = Config(policy, seed, frames=args.frames, episodes=args.episodes)
            records.append(run(config, args.records))
            print(f"{policy} {seed}: return {records[-1]['return']:.1f}", flush=True)
    found = table(records)
    (args.records / "table.md").write_text(found + "\n")
    print(found)


if __name__ == "__main__":
    main()
