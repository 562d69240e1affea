"""Policies for sb3-contrib's MaskablePPO with scores on a tree: a masked action is never taken.

They are the policies of :mod:`catnat.integrations.stable_baselines3` with masks, and take the same arguments. TRPO,
which has no masks, takes the policies of that module.
"""

from __future__ import annotations

from typing import Any, ClassVar

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
from catnat.integrations._masks import boolean
from catnat.integrations.stable_baselines3 import ByTree, OnTree

__all__ = [
    "MaskableCatnatCnnPolicy",
    "MaskableCatnatDistribution",
    "MaskableCatnatMultiInputPolicy",
    "MaskableCatnatPolicy",
    "MaskableMultiCatnatDistribution",
]


# ---- distributions of actions ----


class MaskedByTree(ByTree, MaskableDistribution):
    """Base class of maskable distributions: a mask rebuilds the distribution from its scores."""

    def apply_masking(self, masks: Shaped[Any, "..."] | None) -> None:
        """Mask the actions where ``masks`` is False or 0, or none if it is None, in place of earlier masks."""
        scores = self.catnat.scores
        if masks is None:
            self.hold(self.from_scores(scores))
            return
        valid = boolean(masks, "masks", scores.device).reshape(*scores.shape[:-1], -1)
        self.hold(self.from_scores(scores, mask=valid))


class MaskableCatnatDistribution(MaskedByTree, MaskableCategoricalDistribution):
    """sb3-contrib's ``MaskableCategoricalDistribution`` on a tree: ``distribution`` is a :class:`catnat.torch.Catnat`.

    Its arguments are those of :class:`catnat.integrations.stable_baselines3.CatnatDistribution`.

    Example:
        >>> import torch
        >>> from catnat.integrations.sb3_contrib import MaskableCatnatDistribution
        >>> actions = MaskableCatnatDistribution(4).proba_distribution(torch.zeros(1, 3))
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

    Its arguments are those of :class:`catnat.integrations.stable_baselines3.MultiCatnatDistribution`.

    Example:
        >>> import torch
        >>> from catnat.integrations.sb3_contrib import MaskableMultiCatnatDistribution
        >>> actions = MaskableMultiCatnatDistribution([3, 2])
        >>> actions = actions.proba_distribution(torch.zeros(1, 3))
        >>> # those of both variables, one after the other
        >>> actions.apply_masking([True, False, True, False, True])
        >>> actions.catnat.probs
        tensor([[0.5000, 0.0000, 0.5000, 0.0000, 1.0000]])
    """

    _several = True
    distributions: Any

    def hold(self, catnat: ct.Catnat | ct.MultiCatnat) -> None:
        """Store the distribution, also in the attribute that sb3-contrib reads."""
        super().hold(catnat)
        self.distributions = self.distribution


# ---- policies ----


class MaskedOnTree(OnTree):
    """Base class of maskable policies on a tree."""

    _distributions: ClassVar[tuple[type[ByTree], type[ByTree]]] = (
        MaskableCatnatDistribution,
        MaskableMultiCatnatDistribution,
    )

    _algorithms = "sb3-contrib's MaskablePPO"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if "use_sde" in kwargs:  # an argument of algorithms without masks
            name = type(self).__name__
            raise TypeError(
                f"{name} was built by an algorithm that has no masks, such as PPO, but it is for {self._algorithms}: "
                f"use MaskablePPO({name}, env), or, if every action is always valid, "
                f"catnat.integrations.stable_baselines3.{name.removeprefix('Maskable')}."
            )
        super().__init__(*args, **kwargs)


class MaskableCatnatPolicy(MaskedOnTree, MaskableActorCriticPolicy):
    """The ``MlpPolicy`` of sb3-contrib's MaskablePPO, with its actions on a tree.

    A masked action has probability exactly 0, and the probabilities of the others are divided by their sum. A row of a
    mask without a valid action raises.

    Args:
        *args: The spaces and the learning rate schedule, from SB3, and SB3's other arguments.
        **kwargs: ``tree`` and ``activation``, as for :class:`catnat.integrations.stable_baselines3.CatnatPolicy`, and
            SB3's other arguments.

    Example:
        >>> from sb3_contrib import MaskablePPO
        >>> from sb3_contrib.common.envs import InvalidActionEnvDiscrete
        >>> from catnat.integrations.sb3_contrib import MaskableCatnatPolicy
        >>> env = InvalidActionEnvDiscrete(dim=10, n_invalid_actions=6)
        >>> model = MaskablePPO(MaskableCatnatPolicy, env, device="cpu")
        >>> model.policy.action_net  # 9 scores for 10 actions
        CatnatLinear(64, balanced(10), activation=sigmoid(), bias=True)
    """


class MaskableCatnatCnnPolicy(MaskedOnTree, MaskableActorCriticCnnPolicy):
    """sb3-contrib's ``CnnPolicy`` with its actions on a tree; see :class:`MaskableCatnatPolicy`."""


class MaskableCatnatMultiInputPolicy(MaskedOnTree, MaskableMultiInputActorCriticPolicy):
    """sb3-contrib's ``MultiInputPolicy``, for observations in a dictionary; see :class:`MaskableCatnatPolicy`."""
