"""The network, the advantages and the losses of the agent."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from catnat_experiments.tasks.atari.games import STACK


class Network(nn.Module):
    """A network from frames to scores and values.

    Args:
        scores: The number of scores.
        generator: The generator of the initial weights, which are orthogonal. Those of the scores are small, so that
            the policy starts near uniform.
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
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster by a quarter

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores and values of frames (batch, 4, 84, 84), which are bytes."""
        hidden = self.body(frames.to(torch.float32, memory_format=torch.channels_last).div_(255))
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


class Rollout(NamedTuple):
    """The steps of one policy, every part (steps, games), or some rows of them.

    Attributes:
        frames: The frames before the actions, (..., 4, 84, 84).
        actions: The actions.
        log_probs: The log-probabilities of the actions under this policy.
        values: The values of the states, as the network estimated them then.
        advantages: The estimated advantages of the actions.
        own: Whether the player chose the action.
    """

    frames: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    advantages: Tensor
    own: Tensor

    def pick(self, which: Tensor) -> Rollout:
        """Return some of the steps, by indices or a mask."""
        return Rollout(*(part[which] for part in self))


def advantages(rewards: Tensor, values: Tensor, terminal: Tensor, ended: Tensor, gamma: float, decay: float) -> Tensor:
    r"""Return generalized advantage estimates.

    .. math::

        A_t = \sum_{l \ge 0} (\gamma\lambda)^l \delta_{t+l}, \qquad
        \delta_t = r_t + \gamma V_{t+1} - V_t

    The sum stops after the first step with ``ended``. A terminal step has no :math:`V_{t+1}`.

    Args:
        rewards: The rewards, (steps, games).
        values: The values of the states, also after the last step, (steps + 1, games).
        terminal: Whether no value follows, (steps, games).
        ended: Whether the next step belongs to another life or game, (steps, games).
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
    r"""Return PPO's clipped loss, the mean of :math:`-\min(r A, \mathrm{clip}(r, 1 - \epsilon, 1 + \epsilon) A)`."""
    return -torch.minimum(ratios * advantages, ratios.clamp(1 - clip, 1 + clip) * advantages).mean()


def value_loss(values: Tensor, before: Tensor, targets: Tensor, clip: float) -> Tensor:
    """Return half the mean of the larger squared error: of a value, or of the value clipped around the one before."""
    clipped = before + (values - before).clamp(-clip, clip)
    return torch.maximum((values - targets).square(), (clipped - targets).square()).mean() / 2
