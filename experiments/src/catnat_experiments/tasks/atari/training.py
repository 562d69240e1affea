"""The training of an agent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from catnat_experiments.common.parameterizations import Parameterization, parameterization
from catnat_experiments.engine.loop import OneRun, add_point
from catnat_experiments.engine.types import Config
from catnat_experiments.tasks.atari.agent import Network, Rollout, advantages, policy_loss, value_loss
from catnat_experiments.tasks.atari.games import SIDE, STACK, Games, actions_of, seed_of

UNTRAINED = "untrained"
"""The name in configs of the initial network without updates: a baseline with nearly uniform actions."""


# ---- training --------------------------------------------------------------------------------------------------------

GAMMA, DECAY, VALUE_WEIGHT, ADAM_EPSILON = 0.99, 0.95, 0.5, 1e-5
DEFAULTS: Config = {
    "learning_rate": 2.5e-4,  # decays to 0
    "num_envs": 8,
    "num_steps": 128,
    "update_epochs": 4,
    "num_minibatches": 4,
    "clip_coef": 0.1,
    "ent_coef": 0.01,
    "max_grad_norm": 0.5,
}
"""CleanRL's hyperparameters, with its names."""
LAST = 50
"""The number of games in the mean return."""
METRICS = {
    "return": f"mean return of the last {LAST} games: their own rewards, over all lives",
    "games": "number of games that ended in training",
    "entropy": "entropy of the policy, mean over the steps, in nats",
    "dead": "fraction of scores that are saturated in a state: certain, and without a gradient",
    "clipped": "fraction of the rows of updates whose probability ratio is outside the clip range",
    "kl": "estimated KL divergence of updates: the mean of r - 1 - log r",
    "value_loss": "half the squared error of the values, clipped",
}
_ACTING, _UPDATING = ("entropy", "dead"), ("clipped", "kl", "value_loss")


class Training(OneRun):
    """One run. A step of the loop is a rollout and its updates; the history counts steps of the games."""

    changing = ("step", "returns", "finished_games", "sums", "history", "generator", "network", "optimizer")

    def __init__(self, run: Config) -> None:
        self.run, self.game = run, str(run["game"])
        self.num_envs, self.num_steps = int(run["num_envs"]), int(run["num_steps"])
        self.size = self.num_envs * self.num_steps
        self.steps, self.step = max(1, int(run["steps"]) // self.size), 0
        self.kind = _kind(str(run["parameterization"]))
        self.generator = torch.Generator().manual_seed(int(run["seed"]))
        self.network = Network(self.kind.num_scores(actions_of(self.game)), self.generator)
        self.optimizer = torch.optim.Adam(self.network.parameters(), eps=ADAM_EPSILON, fused=True)
        self.games = self._new_games()
        self.returns: list[float] = []
        self.finished_games = 0
        self.sums = dict.fromkeys((*_ACTING, *_UPDATING), 0.0)
        self.history: dict[str, list[float]] = {}

    def _new_games(self) -> Games:
        return Games(self.game, self.num_envs, seed_of(int(self.run["seed"]), self.step))

    @property
    def finite(self) -> bool:
        """Whether all parameters are finite."""
        return all(bool(parameter.isfinite().all()) for parameter in self.network.parameters())

    def advance(self) -> None:
        """Do a rollout and its updates, or nothing after training has diverged."""
        if self.finite:
            rollout = self.collect()
            rows = rollout.pick(rollout.own)
            for _ in range(int(self.run["update_epochs"])):
                self.update(rows)
            self._count_games()
        self.step += 1

    def _policy(self, frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores, log-probabilities of all actions, and values."""
        scores, values = self.network(frames)
        return scores, self.kind.log_probs(scores), values

    @torch.no_grad()
    def act(self, frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sample actions, and return them with their log-probabilities and the values of the states."""
        scores, log_probs, values = self._policy(frames)
        probs = log_probs.exp()
        actions = torch.multinomial(probs, 1, generator=self.generator)
        self.sums["entropy"] -= float((probs * log_probs).sum(-1).mean()) / self.num_steps
        self.sums["dead"] += float(self.kind.saturated(scores).float().mean()) / self.num_steps
        return actions.squeeze(-1), log_probs.gather(-1, actions).squeeze(-1), values

    def collect(self) -> Rollout:
        """Play all games for the steps of a rollout."""
        shape = (self.num_steps, self.num_envs)
        frames = torch.empty(*shape, STACK, SIDE, SIDE, dtype=torch.uint8)
        actions, own = torch.empty(shape, dtype=torch.int64), torch.empty(shape, dtype=torch.bool)
        terminal, ended = torch.empty_like(own), torch.empty_like(own)
        log_probs, rewards = torch.empty(shape), torch.empty(shape)
        values = torch.empty(self.num_steps + 1, self.num_envs)
        for step in range(self.num_steps):
            frames[step] = torch.from_numpy(self.games.frames)
            own[step] = torch.from_numpy(~self.games.between)
            actions[step], log_probs[step], values[step] = self.act(frames[step])
            rewards[step], terminal[step], ended[step] = map(torch.from_numpy, self.games.step(actions[step].numpy()))
        with torch.no_grad():
            values[-1] = self.network(torch.from_numpy(self.games.frames))[1]
        found = advantages(rewards, values, terminal, ended, GAMMA, DECAY)
        return Rollout(frames, actions, log_probs, values[:-1], found, own)

    def update(self, rows: Rollout) -> None:
        """Do one pass over the rows, in minibatches of a random order."""
        parts = int(self.run["num_minibatches"])
        for group in self.optimizer.param_groups:
            group["lr"] = float(self.run["learning_rate"]) * (1 - self.step / self.steps)
        for chosen in torch.randperm(len(rows.own), generator=self.generator).tensor_split(parts):
            self.optimizer.zero_grad()
            self.loss(rows.pick(chosen)).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.network.parameters(), float(self.run["max_grad_norm"]))
            self.optimizer.step()

    def loss(self, rows: Rollout) -> Tensor:
        """Return the loss of a minibatch: policy loss and weighted value loss, minus an entropy bonus."""
        clip = float(self.run["clip_coef"])
        _, log_probs, values = self._policy(rows.frames)
        log_ratios = log_probs.gather(-1, rows.actions.unsqueeze(-1)).squeeze(-1) - rows.log_probs
        ratios = log_ratios.exp()
        scaled = (rows.advantages - rows.advantages.mean()) / (rows.advantages.std() + 1e-8)
        entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
        of_values = value_loss(values, rows.values, rows.values + rows.advantages, clip)
        with torch.no_grad():
            seen = (((ratios - 1).abs() > clip).float().mean(), (ratios - 1 - log_ratios).mean(), of_values)
            weight = 1 / (int(self.run["update_epochs"]) * int(self.run["num_minibatches"]))
            for name, value in zip(_UPDATING, seen, strict=True):
                self.sums[name] += weight * float(value)
        return policy_loss(ratios, scaled, clip) - float(self.run["ent_coef"]) * entropy + VALUE_WEIGHT * of_values

    def _count_games(self) -> None:
        self.finished_games += len(self.games.returns)
        self.returns = [*self.returns, *self.games.returns][-LAST:]
        self.games.returns.clear()

    def log(self, since: int) -> list[dict[str, float]]:
        """Add a point to the history: means since step ``since``, and the return of the last games."""
        point = {"return": self.mean_return, "games": float(self.finished_games)}
        point |= {name: value / (self.step - since) for name, value in self.sums.items()}
        self.sums = dict.fromkeys(self.sums, 0.0)
        add_point(self.history, self.step * self.size, point)
        return [point]

    @property
    def mean_return(self) -> float:
        """The mean return of the last games; NaN before the first has ended, and for a run that diverged."""
        return float(np.mean(self.returns)) if self.returns and self.finite else math.nan

    def metrics(self) -> dict[str, float]:
        """Return the final metrics: the last point of the history."""
        return {name: self.history[name][-1] for name in METRICS}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint, with new games, because it does not contain those in progress."""
        super().restore(state)
        self.games = self._new_games()


def _kind(name: str) -> Parameterization:
    return parameterization("softmax" if name == UNTRAINED else name)
