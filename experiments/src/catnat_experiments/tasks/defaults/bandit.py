"""A contextual bandit with masks."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributions as td

import catnat.torch as ct
from catnat_experiments.common.parameterizations import Catnat, Parameterization
from catnat_experiments.tasks.defaults.training import Training, perceptron, saturated_fraction

FEATURES, GROUPS = 8, 30
NOISE = 0.2
"""The standard deviation of the reward around its mean."""
MEASURED_ROWS = 500
REORDERED = (0.125, 0.25, 0.5)
"""The fractions of the steps after which a policy that learns its order tries a new one."""


class Rows(NamedTuple):
    """Contexts, (rows, features), and the valid actions of each, (rows, valid)."""

    contexts: Tensor
    valid: Tensor


@functools.cache
def action_features(actions: int) -> Tensor:
    """Return a unit vector for every action, in groups of similar ones; actions are numbered at random."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(GROUPS, FEATURES, generator=generator)
    group = torch.randint(GROUPS, (actions,), generator=generator)
    return nn.functional.normalize(centres[group] + torch.randn(actions, FEATURES, generator=generator) / 2)


def draw_rows(rows: int, actions: int, valid: int, generator: torch.Generator) -> Rows:
    """Draw normal contexts, each with a random subset of valid actions."""
    contexts = torch.randn(rows, FEATURES, generator=generator)
    return Rows(contexts, torch.rand(rows, actions, generator=generator).topk(valid).indices)


def mean_rewards(rows: Rows, actions: int) -> Tensor:
    """Return the mean reward of each valid action, (rows, valid): the product of context and feature vectors."""
    return torch.einsum("rf,rvf->rv", rows.contexts, action_features(actions)[rows.valid])


def policy(kind: Parameterization, scores: Tensor, valid: Tensor) -> td.Categorical:
    """Return the distribution of actions, with all invalid ones masked.

    Args:
        kind: Softmax or a tree.
        scores: The scores, (rows, scores).
        valid: The valid actions, (rows, valid).
    """
    if isinstance(kind, Catnat):
        return ct.Catnat(scores, kind.tree, kind.activation, valid_classes=valid)
    masked = torch.full_like(scores, -math.inf).scatter(-1, valid, scores.gather(-1, valid))
    return td.Categorical(logits=masked)


class Bandit(Training):
    """A bandit trained by REINFORCE on one noisy reward per context; the baseline is the mean reward of other rows."""

    order: ct.ActionOrder | None = None
    """The order of a policy that starts in the given order and learns another one while it acts."""

    def _start(self) -> None:
        self.actions, self.valid = int(self.run["actions"]), int(self.run["valid"])
        learns = self.run["order"] == "learned"
        order = "given" if learns else str(self.run["order"])
        self.kind = self._ordered(order, action_features(self.actions).double().numpy())
        self.model = perceptron(FEATURES, int(self.run["hidden"]), self.kind.num_scores(self.actions))
        if learns and isinstance(self.kind, Catnat):
            *body, last = self.model
            layer = ct.CatnatLinear(int(self.run["hidden"]), self.actions, self.kind.activation)
            layer.register_parameter("weight", last.get_parameter("weight"))
            layer.register_parameter("bias", last.get_parameter("bias"))
            at = [round(fraction * self.steps) for fraction in REORDERED]
            self.order = ct.ActionOrder(layer, nn.Sequential(*body), at=at)

    def policy(self, rows: Rows) -> td.Categorical:
        """Return the model's distribution of actions in these contexts."""
        return policy(self.kind, self.model(rows.contexts), rows.valid)

    def advance(self) -> None:
        """Do one step, and update the order if the policy learns it."""
        super().advance()
        if self.order is not None:
            self.order.optimizer = self.optimizer
            self.order.update(*self._done)
            self._take_tree()

    def _take_tree(self) -> None:
        if self.order is not None and isinstance(self.kind, Catnat):
            self.kind = dataclasses.replace(self.kind, tree=self.order.layer.tree)

    def loss(self) -> Tensor:
        """Return the negative mean reward of a batch, with the negative policy gradient as its gradient."""
        rows = draw_rows(self.batch, self.actions, self.valid, self.generator)
        policy = self.policy(rows)
        log_probs: Tensor = policy.log_prob(rows.valid.t()).t()  # type: ignore[no-untyped-call]
        place = torch.multinomial(log_probs.detach().exp(), 1, generator=self.generator)
        reward = mean_rewards(rows, self.actions).gather(1, place).squeeze(1)
        reward = reward + NOISE * torch.randn(self.batch, generator=self.generator)
        others = (reward.sum() - reward) / (self.batch - 1)
        drawn = log_probs.gather(1, place).squeeze(1)
        self._done = rows.contexts, rows.valid.gather(1, place).squeeze(1), reward - others
        loss: Tensor = ((others - reward) * (drawn - drawn.detach()) - reward).mean()
        return loss

    @torch.no_grad()
    def measure(self, split: str) -> dict[str, float]:
        """Return the exact expected rewards of the policy and of the best one, and the fraction of saturated scores."""
        generator = torch.Generator().manual_seed(("validation", "test").index(split))
        rows = draw_rows(MEASURED_ROWS, self.actions, self.valid, generator)
        probs, rewards = self.policy(rows).probs.gather(1, rows.valid), mean_rewards(rows, self.actions)
        return {
            "reward": float((probs * rewards).sum(1).mean()),
            "best_reward": float(rewards.amax(1).mean()),
            "saturated": saturated_fraction(self.kind, self.model(rows.contexts)),
        }

    def state(self) -> dict[str, Any]:
        """Return a checkpoint, with the order."""
        order = None if self.order is None else (self.order.layer.tree, self.order.state_dict())
        return {**super().state(), "order": order}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint."""
        super().restore(state)
        if self.order is not None:
            self.order.layer.tree, order = state["order"]
            self.order.load_state_dict(order)
            self._take_tree()
