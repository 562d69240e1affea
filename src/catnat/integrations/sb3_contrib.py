"""Policies for sb3-contrib's MaskablePPO with scores on a tree: an action that a mask rules out is never taken.

They are the policies of :mod:`catnat.integrations.stable_baselines3` with masks, and take the same arguments. TRPO has
no masks, and takes those policies as they are.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

try:
    from sb3_contrib.common.maskable.distributions import (
        MaskableCategoricalDistribution,
        MaskableDistribution,
        MaskableMultiCategoricalDistribution,
    )
    from sb3_contrib.common.maskable.policies import (
        MaskableActorCriticCnnPolicy,
        MaskableActorCriticPolicy,
        MaskableMultiInputActorCriticPolicy,
    )
except ImportError as error:
    raise ImportError('catnat.integrations.sb3_contrib needs sb3-contrib: pip install "catnat[sb3]".') from error

from jaxtyping import Shaped

import catnat.torch as ct
from catnat import Forest, Tree
from catnat.integrations._masks import boolean
from catnat.integrations.stable_baselines3 import ByTree, OnTree
from catnat.torch import extend

__all__ = [
    "MaskableCatnatCnnPolicy",
    "MaskableCatnatDistribution",
    "MaskableCatnatMultiInputPolicy",
    "MaskableCatnatPolicy",
    "MaskableMultiCatnatDistribution",
]


# ---- distributions of actions ----


class MaskedByTree(ByTree, MaskableDistribution):
    """The same with masks, which build the distribution anew from its scores."""

    def __init__(
        self,
        tree: Tree | Forest,
        activation: ct.Activation | str = "sigmoid",
        mask_mode: Literal["prune", "renormalize"] | None = None,
    ) -> None:
        super().__init__(tree, activation)
        if mask_mode is not None:
            extend.one_of(mask_mode, "mask_mode", ("renormalize", "prune"))
        self.mask_mode = mask_mode

    def apply_masking(self, masks: Shaped[Any, "..."] | None) -> None:
        """Rule out the actions where ``masks`` is False or 0, or none if it is None, whatever was masked before."""
        scores = self.catnat.scores
        if masks is None:
            self._hold(self._leaves(scores))
            return
        valid = boolean(masks, "masks", scores.device)
        shape = (*scores.shape[:-1], self.tree.num_classes)
        if valid.numel() != math.prod(shape):
            raise ValueError(
                f"`masks` has shape {tuple(valid.shape)}, but {shape} is needed: an entry for every action, "
                "True where it is valid. Those of several variables are concatenated."
            )
        mode = {} if self.mask_mode is None else {"mask_mode": self.mask_mode}
        self._hold(self._leaves(scores, mask=valid.reshape(shape), **mode))


class MaskableCatnatDistribution(MaskedByTree, MaskableCategoricalDistribution):
    """sb3-contrib's ``MaskableCategoricalDistribution`` on a tree: ``distribution`` is a :class:`catnat.torch.Catnat`.

    Args:
        tree: The tree over the actions.
        activation: "sigmoid", "natural", or an activation object.
        mask_mode: "renormalize" or "prune", as for :class:`catnat.torch.Catnat`, and with its default.

    Example:
        >>> import catnat, torch
        >>> from catnat.integrations.sb3_contrib import MaskableCatnatDistribution
        >>> actions = MaskableCatnatDistribution(catnat.balanced(4)).proba_distribution(
        ...     torch.zeros(1, 3)
        ... )
        >>> actions.apply_masking([True, False, True, True])
        >>> actions.catnat.probs
        tensor([[0.3333, 0.0000, 0.3333, 0.3333]])
        >>> actions.apply_masking(None)
        >>> actions.catnat.probs
        tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """


class MaskableMultiCatnatDistribution(MaskedByTree, MaskableMultiCategoricalDistribution):
    """sb3-contrib's ``MaskableMultiCategoricalDistribution`` on trees, without a loop over variables.

    ``distributions`` is a list that holds a single :class:`catnat.torch.MultiCatnat`, the distribution of all
    variables.

    Args:
        tree: The trees of the variables, a :class:`catnat.Forest`.
        activation: "sigmoid", "natural", or an activation object.
        mask_mode: "renormalize" or "prune", as for :class:`catnat.torch.Catnat`, and with its default.

    Example:
        >>> import catnat, torch
        >>> from catnat.integrations.sb3_contrib import MaskableMultiCatnatDistribution
        >>> actions = MaskableMultiCatnatDistribution(catnat.Forest([3, 2])).proba_distribution(
        ...     torch.zeros(1, 3)
        ... )
        >>> # those of both variables, one after the other
        >>> actions.apply_masking([True, False, True, False, True])
        >>> actions.catnat.probs
        tensor([[0.5000, 0.0000, 0.5000, 0.0000, 1.0000]])
    """

    _takes = Forest
    distributions: Any

    def _hold(self, catnat: ct.Catnat | ct.MultiCatnat) -> None:
        super()._hold(catnat)
        self.distributions = self.distribution  # where sb3-contrib keeps them


# ---- policies ----


class MaskedOnTree(OnTree):
    """The same for maskable policies, with one option more."""

    _distributions: ClassVar[tuple[type[ByTree], type[ByTree]]] = (
        MaskableCatnatDistribution,
        MaskableMultiCatnatDistribution,
    )

    _algorithms = "sb3-contrib's MaskablePPO"

    def __init__(self, *args: Any, mask_mode: Literal["prune", "renormalize"] | None = None, **kwargs: Any) -> None:
        if "use_sde" in kwargs:  # what algorithms without masks pass
            name = type(self).__name__
            raise TypeError(
                f"{name} was built by an algorithm that has no masks, such as PPO, but it is for {self._algorithms}: "
                f"use MaskablePPO({name}, env), or, where no action is ever invalid, "
                f"catnat.integrations.stable_baselines3.{name.removeprefix('Maskable')}."
            )
        self.mask_mode = mask_mode  # before the constructor that calls `_build`
        super().__init__(*args, **kwargs)

    def _options(self) -> dict[str, Any]:
        return super()._options() | {"mask_mode": self.mask_mode}


class MaskableCatnatPolicy(MaskedOnTree, MaskableActorCriticPolicy):
    """The ``MlpPolicy`` of sb3-contrib's MaskablePPO, with its actions on a tree.

    A masked action has probability exactly 0. A row of a mask with no valid action raises.

    Args:
        args: Spaces and schedule, as SB3 gives them, and all other arguments of SB3's.
        mask_mode: "renormalize": the probabilities without the mask, divided by their sum over the valid actions, which
            is what masked logits give. "prune": a node of which one side is masked is passed over. The default is that
            of :class:`catnat.torch.Catnat`.
        kwargs: ``tree`` and ``activation``, as for :class:`catnat.integrations.stable_baselines3.CatnatPolicy`, and all
            other arguments of SB3's.

    Example:
        >>> from sb3_contrib import MaskablePPO
        >>> from sb3_contrib.common.envs import InvalidActionEnvDiscrete
        >>> from catnat.integrations.sb3_contrib import MaskableCatnatPolicy
        >>> env = InvalidActionEnvDiscrete(dim=10, n_invalid_actions=6)
        >>> model = MaskablePPO(
        ...     MaskableCatnatPolicy,
        ...     env,
        ...     policy_kwargs={"mask_mode": "renormalize"},
        ...     device="cpu",
        ... )
        >>> model.policy.action_net.out_features  # a ScoreLayer: 9 scores for 10 actions
        9
    """


class MaskableCatnatCnnPolicy(MaskedOnTree, MaskableActorCriticCnnPolicy):
    """sb3-contrib's ``CnnPolicy`` with its actions on a tree; see :class:`MaskableCatnatPolicy`."""


class MaskableCatnatMultiInputPolicy(MaskedOnTree, MaskableMultiInputActorCriticPolicy):
    """The same for observations that are a dictionary, ``MultiInputPolicy``; see :class:`MaskableCatnatPolicy`."""
