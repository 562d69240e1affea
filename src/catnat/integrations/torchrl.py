"""TorchRL: policies whose actions are drawn from a tree, for its actors, collectors and losses.

The distributions of :mod:`catnat.torch` work in a ``ProbabilisticActor`` as they are: its ``in_keys`` are the names of
their arguments, "scores" and "mask". Importing this module tells TorchRL what it looks up by exact type: that their
entropy is known, and that the most probable action is the one to take without exploring.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

try:
    import torchrl  # type: ignore[import-untyped, import-not-found, unused-ignore] # noqa: F401
except ImportError as error:
    raise ImportError('catnat.integrations.torchrl needs TorchRL: pip install "catnat[torchrl]".') from error

import torch
from tensordict.nn import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
    InteractionType,
    TensorDictModule,
)
from tensordict.nn.probabilistic import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
    DETERMINISTIC_REGISTER,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torchrl.data import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
    Categorical,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
)
from torchrl.modules import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
    ProbabilisticActor,
)
from torchrl.modules.distributions import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
    HAS_ENTROPY,
)

import catnat.torch as ct
from catnat._builders import balanced
from catnat._tree import Tree

__all__ = ["OneHotCatnat", "catnat_actor"]


class OneHotCatnat(ct.OneHotCatnat):
    """:class:`catnat.torch.OneHotCatnat` with whole numbers as values, which TorchRL's one-hot action specs ask for.

    Example:
        >>> import torch
        >>> from catnat.integrations.torchrl import OneHotCatnat
        >>> OneHotCatnat(torch.tensor([9.0, 0.0, -9.0])).sample()
        tensor([0, 0, 1, 0])
    """

    def _one_hot(self, classes: Tensor) -> Tensor:
        return F.one_hot(classes, self._categorical._num_events)


# TorchRL's losses decide by `has_analytic_entropy`; its own releases before that, and losses written after their
# pattern, read the first table. The second spares a warning at every deterministic step.
for _class in (ct.Catnat, ct.OneHotCatnat, ct.OneHotCatnatStraightThrough, ct.MultiCatnat, OneHotCatnat):
    HAS_ENTROPY[_class] = True
    DETERMINISTIC_REGISTER[_class] = InteractionType.MODE


def catnat_actor(
    network: nn.Module,
    action_spec: TensorSpec,
    *,
    in_keys: Sequence[Any] = ("observation",),
    mask_key: Any = None,
    tree: Tree | None = None,
    activation: ct.Activation | str = "natural",
    distribution_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> ProbabilisticActor:
    """A ``ProbabilisticActor`` that draws its actions from a tree.

    The distribution follows from the environment's actions: :class:`catnat.torch.Catnat` for ``Categorical``,
    :class:`OneHotCatnat` for ``OneHot``, :class:`catnat.torch.MultiCatnat` for ``MultiCategorical``.

    Args:
        network: From observations to scores: K-1 for K actions, or the sum of that over several.
        action_spec: The environment's ``action_spec``.
        in_keys: What the network reads.
        mask_key: Where the environment says which actions are valid, such as "action_mask": boolean or 0 and 1, K on
            the last axis, or those of several actions side by side.
        tree: The tree over the actions; ``balanced(K)`` if not given. Not for several actions.
        activation: "natural", "sigmoid", or an activation object.
        distribution_kwargs: More arguments of the distribution, such as ``{"unimix": 0.01}``.
        **options: Arguments of ``ProbabilisticActor``. ``return_log_prob`` is True and ``default_interaction_type`` is
            "random" if not given.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import Categorical
        >>> from catnat.integrations.torchrl import catnat_actor
        >>> from catnat.torch import ScoreLayer
        >>> actor = catnat_actor(ScoreLayer(8, 18), Categorical(18))
        >>> step = actor(TensorDict({"observation": torch.zeros(5, 8)}, [5]))
        >>> step["action_log_prob"].exp()
        tensor([0.0556, 0.0556, 0.0556, 0.0556, 0.0556], grad_fn=...)
    """
    distribution, arguments = _distribution(action_spec, tree)
    arguments |= {"activation": activation, **(distribution_kwargs or {})}
    names = {"scores": "scores"}
    if mask_key is not None:
        names["mask"] = mask_key
        distribution = functools.partial(_masked, distribution, mask_key)
    return ProbabilisticActor(
        TensorDictModule(network, in_keys=list(in_keys), out_keys=["scores"]),
        in_keys=names,
        spec=action_spec,
        distribution_class=distribution,
        distribution_kwargs=arguments,
        **{"return_log_prob": True, "default_interaction_type": InteractionType.RANDOM, **options},
    )


def _distribution(action_spec: TensorSpec, tree: Tree | None) -> tuple[Any, dict[str, Any]]:
    """The class for such actions, and its trees."""
    if isinstance(action_spec, MultiCategorical):
        if tree is not None:
            raise ValueError(
                f"`tree` is {tree}, but `action_spec` has several actions, each with a tree of its own: pass "
                'distribution_kwargs={"trees": [...]} instead.'
            )
        sizes = action_spec.nvec.reshape(-1, action_spec.nvec.shape[-1])[0]
        return ct.MultiCatnat, {"trees": sizes.tolist()}
    if not isinstance(action_spec, (Categorical, OneHot)) or isinstance(action_spec, MultiOneHot):
        raise TypeError(
            f"`action_spec` is a {type(action_spec).__name__}, but Categorical, OneHot or MultiCategorical is needed. "
            "For several discrete actions build the environment with categorical_action_encoding=True."
        )
    classes = action_spec.space.n
    if tree is not None and tree.num_classes != classes:
        raise ValueError(f"`tree` has {tree.num_classes} classes, but `action_spec` has {classes} actions.")
    one_hot = isinstance(action_spec, OneHot)
    return OneHotCatnat if one_hot else ct.Catnat, {"tree": tree if tree is not None else balanced(classes)}


def _masked(
    distribution: Any, mask_key: Any, scores: Tensor, mask: Tensor | None, **arguments: Any
) -> torch.distributions.Distribution:
    """The distribution with its mask: an error where TorchRL finds none and would go on without.

    Environments may write masks as 0 and 1. Those numbers would be the indices of classes to the distribution.
    """
    if mask is None:
        raise KeyError(
            f"There is no mask under the key {mask_key!r}: correct `mask_key`, or let the environment write it at "
            "every reset and step."
        )
    return distribution(scores, mask=mask.bool(), **arguments)
