"""The agent: its network, its advantages, its losses."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from catnat_experiments.tasks.atari.games import STACK


class Network(nn.Module):
    """Frames to scores and value.

    Args:
        scores: How many.
        generator: Of the start: orthogonal weights, those of the scores small, so that the policy starts near uniform.
    """

    def __init__(self, scores: int, generator: torch.Generator) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(STACK, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3)),
            *(nn.ReLU(), nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU()),
        )
        self.actor, self.critic = nn.Linear(512, scores), nn.Linear(512, 1)
        gains = {"actor.weight": 0.01, "critic.weight": 1.0}
        for name, parameter in self.named_parameters():
            if name.endswith("weight"):
                nn.init.orthogonal_(parameter, gains.get(name, math.sqrt(2)), generator)
            else:
                nn.init.zeros_(parameter)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a quarter faster

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and values, from bytes (batch, 4, 84, 84)."""
        hidden = self.body(frames.to(torch.float32, memory_format=torch.channels_last).div_(255))
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


class Rollout(NamedTuple):
    """What one policy did, every part (steps, games); or some rows of that.

    Attributes:
        frames: That were seen, (..., 4, 84, 84).
        actions: That were taken.
        log_probs: Of these actions, when they were taken.
        values: Of the states, as estimated then.
        advantages: Of these actions over the policy's average.
        own: Whether the step was the player's.
    """

    frames: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    own: Tensor

    def pick(self, which: Tensor) -> Rollout:
        """Some of them: indices, or a mask."""
        return Rollout(*(part[which] for part in self))


def advantages(rewards: Tensor, values: Tensor, terminal: Tensor, ended: Tensor, gamma: float, decay: float) -> Tensor:
    r"""Generalized advantage estimates.

    .. math::

        A_t = \sum_{l \ge 0} (\gamma\lambda)^l \delta_{t+l}, \qquad
        \delta_t = r_t + \gamma V_{t+1} - V_t

    The sum goes to the first step that ended, and there is no :math:`V_{t+1}` after a terminal one.

    Args:
        rewards: (steps, games), as all but the values.
        values: (steps + 1, games): also of the states after the last step.
        terminal: No value follows.
        ended: The next step belongs to another life or game.
        gamma: The discount.
        decay: The lambda.
    """
    errors = rewards + gamma * values[1:] * ~terminal - values[:-1]
    found, running = torch.empty_like(errors), torch.zeros_like(errors[0])
    for step in reversed(range(len(errors))):
        running = errors[step] + gamma * decay * ~ended[step] * running
        found[step] = running
    return found


def policy_loss(ratios: Tensor, advantages: Tensor, clip: float) -> Tensor:
    r"""PPO's clipped loss, the mean of :math:`-\min(r A, \mathrm{clip}(r, 1 - \epsilon, 1 + \epsilon) A)`."""
    return -torch.minimum(ratios * advantages, ratios.clamp(1 - clip, 1 + clip) * advantages).mean()


def value_loss(values: Tensor, before: Tensor, targets: Tensor, clip: float) -> Tensor:
    """Half the mean squared error, or if that is larger, the one with values clipped around those of before."""
    clipped = before + (values - before).clamp(-clip, clip)
    return torch.maximum((values - targets).square(), (clipped - targets).square()).mean() / 2
