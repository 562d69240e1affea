"""PPO in one file, in the manner of CleanRL, with a policy on a tree: python examples/rl/cleanrl_ppo.py --seed 1

The policy is in the class Agent; nothing after it knows which distribution the actions come from. The hyperparameters
are those that RL Baselines3 Zoo has for CartPole-v1.
"""

import argparse
import dataclasses

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import nn
from torch.distributions import Categorical

from catnat.torch import CatnatLinear


@dataclasses.dataclass(frozen=True)
class Config:
    env: str = "CartPole-v1"
    seed: int = 1
    total_steps: int = 100_000
    num_envs: int = 8
    rollout: int = 32  # steps of every environment between updates
    epochs: int = 20
    minibatch: int = 256
    learning_rate: float = 1e-3  # falls to 0, as does the clipping
    clip: float = 0.2
    gamma: float = 0.98
    gae_lambda: float = 0.8
    entropy: float = 0.0
    value: float = 0.5
    max_grad_norm: float = 0.5


def mlp(inputs: int, outputs: int = 64) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, outputs), nn.Tanh())


class Agent(nn.Module):
    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.critic = nn.Sequential(mlp(observations), nn.Linear(64, 1))
        self.body = mlp(observations)
        self.head = CatnatLinear(64, actions)

    def policy(self, observation):
        return Categorical(logits=self.head(self.body(observation)))

    def value(self, observation):
        return self.critic(observation).squeeze(-1)


def advantages(rewards, values, dones, last_value, config):
    """Generalized advantage estimates, from the last step to the first."""
    found, running = torch.zeros_like(rewards), 0.0
    for t in reversed(range(len(rewards))):
        following = last_value if t + 1 == len(rewards) else values[t + 1]
        alive = 1 - dones[t]
        error = rewards[t] + config.gamma * alive * following - values[t]
        running = error + config.gamma * config.gae_lambda * alive * running
        found[t] = running
    return found


class Rollouts:
    """Steps of all environments with the present policy, and the returns of the episodes that ended."""

    def __init__(self, agent: Agent, config: Config) -> None:
        self.agent, self.config = agent, config
        same_step = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.envs = gym.make_vec(config.env, config.num_envs, vectorization_mode="sync", vector_kwargs=same_step)
        self.observation = torch.as_tensor(self.envs.reset(seed=config.seed)[0])
        self.running, self.returns = np.zeros(config.num_envs), []

    @torch.no_grad()
    def collect(self) -> dict[str, torch.Tensor]:
        steps = {name: [] for name in ("observations", "actions", "log_probs", "values", "rewards", "dones")}
        for _ in range(self.config.rollout):
            policy = self.agent.policy(self.observation)
            action = policy.sample()
            following, reward, terminated, truncated, info = self.envs.step(action.numpy())
            self._count(reward, terminated | truncated)
            reward = torch.as_tensor(reward, dtype=torch.float32)
            for env in np.flatnonzero(truncated & ~terminated):  # it went on, but nobody looked
                reward[env] += self.config.gamma * self.agent.value(torch.as_tensor(info["final_obs"][env]))
            for name, value in {
                "observations": self.observation,
                "actions": action,
                "log_probs": policy.log_prob(action),
                "values": self.agent.value(self.observation),
                "rewards": reward,
                "dones": torch.as_tensor(terminated | truncated, dtype=torch.float32),
            }.items():
                steps[name].append(value)
            self.observation = torch.as_tensor(following)
        batch = {name: torch.stack(values) for name, values in steps.items()}
        last_value = self.agent.value(self.observation)
        batch["advantages"] = advantages(batch["rewards"], batch["values"], batch["dones"], last_value, self.config)
        batch["targets"] = batch["advantages"] + batch["values"]
        return {name: values.flatten(0, 1) for name, values in batch.items()}

    def _count(self, reward: np.ndarray, done: np.ndarray) -> None:
        self.running += reward
        self.returns += self.running[done].tolist()
        self.running[done] = 0


def loss(agent: Agent, batch: dict[str, torch.Tensor], clip: float, config: Config) -> torch.Tensor:
    policy = agent.policy(batch["observations"])
    ratio = (policy.log_prob(batch["actions"]) - batch["log_probs"]).exp()
    advantage = batch["advantages"]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    error = (agent.value(batch["observations"]) - batch["targets"]).square()
    return -gain.mean() + config.value * error.mean() - config.entropy * policy.entropy().mean()


def train(config: Config, report_every: int = 50) -> tuple[Agent, list[float]]:
    """The trained agent, and the return of every episode on the way."""
    torch.manual_seed(config.seed)
    env = gym.make(config.env)
    agent = Agent(env.observation_space.shape[0], int(env.action_space.n))
    rollouts = Rollouts(agent, config)
    optimizer = torch.optim.Adam(agent.parameters(), eps=1e-5)
    updates = max(1, config.total_steps // (config.rollout * config.num_envs))
    for update in range(updates):
        left = 1 - update / updates
        for group in optimizer.param_groups:
            group["lr"] = left * config.learning_rate
        batch = rollouts.collect()
        for _ in range(config.epochs):
            for rows in torch.randperm(len(batch["actions"])).split(config.minibatch):
                chosen = {name: values[rows] for name, values in batch.items()}
                optimizer.zero_grad()
                loss(agent, chosen, left * config.clip, config).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), config.max_grad_norm)
                optimizer.step()
        if (update + 1) % report_every == 0 and rollouts.returns:
            steps = (update + 1) * config.rollout * config.num_envs
            print(
                f"{steps:7} steps, mean return of the last 20 episodes {np.mean(rollouts.returns[-20:]):.1f}",
                flush=True,
            )
    rollouts.envs.close()
    return agent, rollouts.returns


@torch.no_grad()
def evaluate(agent: Agent, config: Config, episodes: int = 20) -> list[float]:
    """Returns of the most probable actions."""
    env, returns = gym.make(config.env), []
    for episode in range(episodes):
        observation, done, total = env.reset(seed=1000 * config.seed + episode)[0], False, 0.0
        while not done:
            action = agent.policy(torch.as_tensor(observation)).mode
            observation, reward, terminated, truncated, _ = env.step(int(action))
            done, total = terminated or truncated, total + float(reward)
        returns.append(total)
    return returns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for field in dataclasses.fields(Config):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    config = Config(**vars(parser.parse_args()))
    agent, _ = train(config)
    returns = evaluate(agent, config)
    print(f"median return of the most probable actions {np.median(returns):.1f}, over {len(returns)} episodes")


if __name__ == "__main__":
    main()
