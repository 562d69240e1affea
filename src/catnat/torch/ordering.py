"""An order of the actions of a policy, learned during training."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, distributed
from torch.optim import Optimizer

from catnat import _checks
from catnat.torch import _changes, functional
from catnat.torch.heads import CatnatHead
from catnat.torch.layers import CatnatLinear, RowLayer
from catnat.trees.actions import ActionModels
from catnat.trees.statistics import random_projection
from catnat.trees.tree import Tree

# Every fifth remembered observation evaluates an order whose rows were fitted on the others.
_HELD_OUT = 5


class ActionOrder:
    """A schedule that moves similar actions together in the tree of a policy's last layer, early in training.

    A policy learns slowly if the order of actions is arbitrary, and similar actions are rarely known in advance. During
    training this object collects :class:`catnat.ActionModels`. At the updates ``at`` it changes the layer's tree to
    that of the models by :meth:`CatnatLinear.retree`, with rows fitted to the policy, unless the policy would change by
    more than ``most_change``. A later change of the tree changes the policy more. A trial takes seconds with more than
    ten thousand actions. Copies of the layer, such as a target network, need :meth:`CatnatLinear.retree` as well.

    Args:
        layer: The last layer of the policy, a :class:`CatnatLinear` or :class:`CatnatHead`, with a row per node.
        encoder: The policy without its last layer, from observations to the layer's input; the identity if not given.
            With dropout or batch normalization, put it into evaluation mode before :meth:`update`.
        optimizer: The optimizer of the layer's parameters, whose state moves with the rows.
        at: The numbers of updates after which a new order is tried.
        num_features: The number of random directions to which wider observations are projected.
        ridge: The ridge of :meth:`ActionModels.tree`; for observations and advantages of about unit variance.
        remembered: The number of last observations on which new rows are fitted and evaluated.
        most_change: The largest mean KL divergence, in nats, from the policy before to the policy after.

    Example:
        >>> import torch
        >>> from catnat.torch import ActionOrder, CatnatLinear
        >>> layer = CatnatLinear(8, 1000)
        >>> order = ActionOrder(layer, at=(1,))
        >>> x = torch.randn(64, 8)
        >>> action = layer.distribution(x).sample()
        >>> order.update(x, action, torch.randn(64))  # after each step of the optimizer
        True
    """

    def __init__(
        self,
        layer: CatnatLinear | CatnatHead,
        encoder: Callable[[Tensor], Tensor] | None = None,
        *,
        optimizer: Optimizer | None = None,
        at: Sequence[int] = (50, 100, 200),
        num_features: int = 16,
        ridge: float = 1.0,
        remembered: int = 3000,
        most_change: float = 0.05,
    ) -> None:
        if not isinstance(layer, RowLayer):
            raise TypeError(
                f"`layer` is a {type(layer).__name__}, but a CatnatLinear or CatnatHead is needed: the last layer of "
                "the policy, not the policy."
            )
        if remembered < 2 * _HELD_OUT:
            raise ValueError(f"`remembered` is {remembered}, but at least {2 * _HELD_OUT} observations are needed.")
        prior = layer.tree.prior
        if layer.bias is None and prior.max() > 1.001 * prior.min():
            raise ValueError(
                "`layer` has a tree with a prior and no bias, but new orders have a uniform prior, for which only a "
                "bias can compensate: build it with bias=True, or with a tree without a prior."
            )
        _checks.number(most_change, "most_change")
        self.layer, self.encoder, self.optimizer = layer, encoder, optimizer
        self.at, self.num_features, self.ridge = frozenset(at), num_features, ridge
        self.remembered, self.most_change = remembered, most_change
        self.updates = 0
        self.models: ActionModels | None = None
        self._observations: collections.deque[Tensor] = collections.deque()

    @torch.no_grad()
    def update(
        self,
        observations: Float[Tensor, "batch ..."],
        actions: Int[Tensor, "batch"],
        advantages: Float[Tensor, "batch"],
    ) -> bool:
        """Add actions and their advantages, and try a new order if it is due. Call it after each optimizer step.

        Returns:
            Whether the tree of the layer was changed.
        """
        if self.updates >= max(self.at, default=0):
            return False
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            raise RuntimeError(
                "ActionOrder on several ranks would give every rank an order of its own. Collect ActionModels on each, "
                "merge them, and call layer.retree with one tree and the same features on all ranks."
            )
        observations = torch.as_tensor(observations).detach()
        rows = observations.flatten(1)
        if self.encoder is None and rows.shape[1] != self.layer.in_features:
            raise ValueError(
                f"An observation has {rows.shape[1]} numbers, but the layer takes {self.layer.in_features} features: "
                "pass the network before the layer as `encoder`."
            )
        features = rows if rows.shape[1] <= self.num_features else random_projection(rows, self.num_features)
        if self.models is None:
            self.models = ActionModels(self.layer.tree.num_classes, int(features.shape[1]))
        self.models.update(features, actions, advantages)
        self._remember(observations.clone())
        self.updates += 1
        changed = self.updates in self.at and self._try(self.models.tree(self.ridge))
        if self.updates >= max(self.at):
            self._observations.clear()
        return changed

    def _remember(self, observations: Tensor) -> None:
        self._observations.append(observations)
        while sum(map(len, self._observations)) - len(self._observations[0]) >= self.remembered:
            self._observations.popleft()

    def _try(self, tree: Tree) -> bool:
        """Change the layer's tree unless the policy would change too much; return whether it was changed."""
        observations = torch.cat([*self._observations])
        inputs = observations if self.encoder is None else self.encoder(observations)
        held_out = torch.arange(len(inputs), device=inputs.device) % _HELD_OUT == 0
        trial = copy.deepcopy(self.layer)
        trial.retree(tree, features=inputs[~held_out])
        before, after = (_log_probs(layer, inputs[held_out]) for layer in (self.layer, trial))
        if not functional.divergence_of(before, after).mean() <= self.most_change:
            return False
        bias = None if trial.bias is None else trial.bias.data
        _changes.change_tree(self.layer, tree, trial.weight.data, bias, self.optimizer)
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, to save with those of the layer and the optimizer."""
        models = None
        if self.models is not None:
            models = {name: torch.from_numpy(array) for name, array in self.models.state_dict().items()}
        return copy.deepcopy({"updates": self.updates, "models": models, "observations": [*self._observations]})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state from a checkpoint."""
        self.updates, self.models = state["updates"], None
        if state["models"] is not None:
            self.models = ActionModels(*state["models"]["sums"].shape)
            self.models.load_state_dict(copy.deepcopy(state["models"]))
        self._observations = collections.deque(copy.deepcopy(state["observations"]))


def _log_probs(layer: RowLayer, inputs: Tensor) -> Tensor:
    return functional.log_catnat(layer.scores(inputs), layer.tree, layer.activation)
