"""TorchRL: policies whose actions are drawn from a tree, for its actors, collectors and losses.

The distributions of :mod:`catnat.torch` work in a ``ProbabilisticActor`` as they are: its ``in_keys`` are the names of
their arguments, "scores" and "mask". TorchRL looks up by exact type how to act without exploration. Importing this
module registers the most probable action.
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
    Binary,
    Categorical,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
)
from torchrl.modules import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
    ProbabilisticActor,
)

import catnat.torch as ct
from catnat import Tree
from catnat.activations import resolve
from catnat.integrations._masks import boolean
from catnat.trees.builders import as_tree
from catnat.trees.forest import as_forest

__all__ = ["OneHotCatnat", "catnat_actor"]


class OneHotCatnat(ct.OneHotCatnat):
    """A :class:`catnat.torch.OneHotCatnat` with integers as values, which TorchRL's one-hot action specs need.

    Example:
        >>> import torch
        >>> from catnat.integrations.torchrl import OneHotCatnat
        >>> OneHotCatnat(torch.tensor([9.0, 0.0, -9.0])).sample()
        tensor([0, 0, 1, 0])
    """

    def _one_hot(self, classes: Tensor) -> Tensor:
        return F.one_hot(classes, self._categorical._num_events)


# Without an entry here TorchRL warns at every deterministic step.
for _class in (ct.Catnat, ct.OneHotCatnat, ct.OneHotCatnatStraightThrough, ct.MultiCatnat, OneHotCatnat):
    DETERMINISTIC_REGISTER[_class] = InteractionType.MODE


def catnat_actor(
    network: nn.Module,
    action_spec: TensorSpec,
    *,
    in_keys: Sequence[Any] = ("observation",),
    mask_key: Any = None,
    tree: Tree | int | None = None,
    activation: ct.Activation | str | None = None,
    distribution_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> ProbabilisticActor:
    """Return a ``ProbabilisticActor`` that draws its actions from a tree.

    The action spec determines the distribution: :class:`catnat.torch.Catnat` for ``Categorical``,
    :class:`OneHotCatnat` for ``OneHot``, :class:`catnat.torch.MultiCatnat` for ``MultiCategorical``.

    Args:
        network: A module from observations to scores: K-1 for K actions, or the concatenated scores of several actions.
            Or an ``nn.Sequential`` that ends in a :class:`catnat.torch.CatnatLinear`, whose scores are used.
        action_spec: The environment's ``action_spec``.
        in_keys: The keys that the network reads; a list, or one name.
        mask_key: The key of the environment's mask of valid actions, such as "action_mask": boolean or 0 and 1, K on
            the last axis, or the concatenated masks of several actions.
        tree: The tree over the actions. If not given, that of the CatnatLinear, or else ``balanced(K)``. Not for
            several actions.
        activation: "sigmoid", "natural", or an activation object. If not given, that of the CatnatLinear, or else
            "sigmoid".
        distribution_kwargs: More arguments of the distribution, such as ``{"unimix": 0.01}``.
        **options: Arguments of ``ProbabilisticActor``. ``return_log_prob`` is True and ``default_interaction_type`` is
            "random" if not given.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from torchrl.data import Categorical
        >>> from catnat.integrations.torchrl import catnat_actor
        >>> from catnat.torch import CatnatLinear
        >>> network = torch.nn.Sequential(
        ...     torch.nn.Linear(8, 32), torch.nn.Tanh(), CatnatLinear(32, 18)
        ... )
        >>> actor = catnat_actor(network, Categorical(18))
        >>> step = actor(TensorDict({"observation": torch.zeros(5, 8)}, [5]))
        >>> step["action"].shape, step["action_log_prob"].shape
        (torch.Size([5]), torch.Size([5]))
    """
    body, layer = _parts(network)
    if layer is not None:
        _check_same(layer, tree, activation)
        tree, activation, network = layer.tree, layer.activation, _Scores(body, layer)
    given = {"tree": tree, "activation": resolve(activation or "sigmoid"), **(distribution_kwargs or {})}
    distribution, arguments = _distribution(action_spec, given)
    reads = [in_keys] if isinstance(in_keys, str) else list(in_keys)
    names = {"scores": "scores"} if mask_key is None else {"scores": "scores", "mask": mask_key}
    return ProbabilisticActor(
        TensorDictModule(network, in_keys=reads, out_keys=["scores"]),
        in_keys=names,
        spec=action_spec,
        distribution_class=functools.partial(_checked, distribution, mask_key),
        distribution_kwargs=arguments,
        **{"return_log_prob": True, "default_interaction_type": InteractionType.RANDOM, **options},
    )


class _Scores(nn.Module):
    """The scores of a network that ends in a CatnatLinear."""

    def __init__(self, body: nn.Module, layer: ct.CatnatLinear) -> None:
        super().__init__()
        self.body, self.layer = body, layer

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.layer.scores(self.body(*inputs))


def _parts(network: nn.Module) -> tuple[nn.Module, ct.CatnatLinear | None]:
    """Return the part before the CatnatLinear that the network ends in, and that layer; else the network and None."""
    if isinstance(network, ct.CatnatLinear):
        return nn.Identity(), network
    if isinstance(network, nn.Sequential) and len(network):
        body, layer = _parts(network[-1])
        return nn.Sequential(*list(network)[:-1], body), layer
    if any(isinstance(module, ct.CatnatLinear) for module in network.modules()):
        raise ValueError(
            f"`network` is a {type(network).__name__} with a CatnatLinear inside, whose output is logits, but scores "
            "are needed: put that layer last, nn.Sequential(body, CatnatLinear(...)), and compile only the body. "
            "For logits use TorchRL's own ProbabilisticActor, with torch.distributions.Categorical."
        )
    return network, None


def _check_same(layer: ct.CatnatLinear, tree: Tree | int | None, activation: ct.Activation | str | None) -> None:
    wanted = {
        "tree": None if tree is None else as_tree(tree, 0),
        "activation": None if activation is None else resolve(activation),
    }
    for name, given in wanted.items():
        own = getattr(layer, name)
        if given is not None and given != own:
            raise ValueError(
                f"`{name}` is {given!r}, but the network's CatnatLinear was made for {own!r}: its scores would mean "
                f"another distribution. Leave `{name}` out, or build the layer with the same."
            )


def _distribution(action_spec: TensorSpec, arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the distribution class for the actions, and its arguments with the trees."""
    if isinstance(action_spec, MultiCategorical):
        return ct.MultiCatnat, _with_trees(action_spec, arguments)
    if not isinstance(action_spec, (Categorical, OneHot)) or isinstance(action_spec, (MultiOneHot, Binary)):
        raise TypeError(
            f"`action_spec` is a {type(action_spec).__name__}, but Categorical, OneHot or MultiCategorical is needed: "
            "pass the `action_spec` of a TorchRL environment with discrete actions. For several, build it with "
            "categorical_action_encoding=True."
        )
    classes = action_spec.space.n
    tree = as_tree(arguments["tree"], classes)
    if tree.num_classes != classes:
        raise ValueError(
            f"`tree` has {tree.num_classes} classes, but `action_spec` has {classes} actions: one leaf for each is "
            f"needed, such as catnat.balanced({classes}), and a network ending in CatnatLinear(in_features, {classes})."
        )
    return OneHotCatnat if isinstance(action_spec, OneHot) else ct.Catnat, arguments | {"tree": tree}


def _with_trees(action_spec: MultiCategorical, arguments: dict[str, Any]) -> dict[str, Any]:
    tree = arguments.pop("tree")
    if tree is not None:
        raise ValueError(
            f"`tree` is {tree}, but `action_spec` has several actions, each with a tree of its own: pass "
            'distribution_kwargs={"trees": [...]} instead.'
        )
    rows = action_spec.nvec.reshape(-1, action_spec.nvec.shape[-1])
    if (rows != rows[0]).any():
        raise ValueError(
            f"`action_spec` has rows with different numbers of actions, {rows.tolist()}, but one network computes "
            "the scores of all rows: make an actor for each."
        )
    sizes = tuple(rows[0].tolist())
    trees = as_forest(arguments.get("trees", sizes))
    if trees.sizes != sizes:
        raise ValueError(f"`trees` have {trees.sizes} classes, but `action_spec` has {sizes} actions: one leaf each.")
    return arguments | {"trees": trees}


def _checked(distribution: Any, mask_key: Any, scores: Tensor, **arguments: Any) -> torch.distributions.Distribution:
    """Return the distribution, with its mask if there is a key for it.

    It validates, because importing ``torchrl.modules`` turns validation off for the whole process. Torch's own
    distribution raises for NaN when it draws.
    """
    is_default = arguments.get("validate_args") is None
    if is_default:
        arguments["validate_args"] = True
    if mask_key is not None:
        arguments["mask"] = _found_mask(mask_key, arguments["mask"], scores)
    found: torch.distributions.Distribution = distribution(scores, **arguments)
    if is_default:  # actions are the distribution's own draws, and a check of them could not be compiled
        found._validate_args = False
    return found


def _found_mask(mask_key: Any, mask: Tensor | None, scores: Tensor) -> Tensor:
    """Return the mask under the key; raise if there is none, where TorchRL would continue without."""
    if mask is None:
        raise KeyError(
            f"There is no mask under the key {mask_key!r}: correct `mask_key`, or let the environment write it at "
            "every reset and step."
        )
    if mask.shape[:-1] != scores.shape[:-1]:
        raise ValueError(
            f"The mask under the key {mask_key!r} has shape {tuple(mask.shape)}, but the scores have "
            f"{tuple(scores.shape)}: a row of the mask for every row of scores is needed, (*batch, number of actions)."
        )
    return boolean(mask, "mask", scores.device)
