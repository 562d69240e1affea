"""Policies of Stable-Baselines3 with scores on a tree in place of logits, for PPO, A2C and sb3-contrib's TRPO.

They are SB3's own actor-critic policies with another distribution of actions: :class:`catnat.torch.Catnat` for
``Discrete`` actions, and :class:`catnat.torch.MultiCatnat`, of all variables at once, for ``MultiDiscrete`` actions.
:mod:`catnat.integrations.sb3_contrib` has their maskable counterparts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

try:
    from gymnasium import spaces
    from stable_baselines3.common.distributions import (
        CategoricalDistribution,
        Distribution,
        MultiCategoricalDistribution,
    )
    from stable_baselines3.common.policies import (
        ActorCriticCnnPolicy,
        ActorCriticPolicy,
        BasePolicy,
        MultiInputActorCriticPolicy,
    )
    from stable_baselines3.common.torch_layers import FlattenExtractor
except ImportError as error:
    raise ImportError(
        'catnat.integrations.stable_baselines3 needs Stable-Baselines3: pip install "catnat[sb3]".'
    ) from error

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

import catnat.torch as ct
from catnat import Forest, Tree
from catnat.activations import resolve
from catnat.torch.layers import TreeLayer, draw_rows
from catnat.trees.builders import as_tree
from catnat.trees.forest import as_forest

__all__ = [
    "CatnatCnnPolicy",
    "CatnatDistribution",
    "CatnatMultiInputPolicy",
    "CatnatPolicy",
    "MultiCatnatDistribution",
]


_Self = TypeVar("_Self", bound="ByTree")


# ---- distributions of actions ----


class ForestLinear(TreeLayer):
    """A :class:`catnat.torch.CatnatLinear` for several variables, with concatenated scores and log-probabilities."""

    def __init__(self, in_features: int, forest: Forest, activation: ct.Activation) -> None:
        nn.Module.__init__(self)
        self.tree: Any = forest
        self.activation, self.in_features, self.out_features = activation, in_features, forest.num_classes
        self.weight = nn.Parameter(torch.empty(forest.num_nodes, in_features))
        self.bias = nn.Parameter(torch.empty(forest.num_nodes))
        draw_rows(self.weight, self.bias)

    def scores(self, input: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch nodes"]:
        """Return the scores of all variables."""
        return F.linear(input, self.weight, self.bias)

    def forward(self, input: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch classes"]:
        """Return the log-probabilities of all classes of all variables, which can be used as logits."""
        return ct.MultiCatnat(self.scores(input), self.tree, self.activation, validate_args=False).logits


class ByTree(Distribution):
    """Base class of SB3's distributions of actions on a tree, or on a forest."""

    tree: Any
    activation: ct.Activation
    catnat: ct.Catnat | ct.MultiCatnat
    """The distribution of :mod:`catnat.torch` with the last scores."""
    _several: ClassVar[bool] = False

    def __init__(
        self, tree: Tree | int | Forest | Iterable[Tree | int], activation: ct.Activation | str = "sigmoid"
    ) -> None:
        self.tree = as_forest(tree) if self._several else as_tree(tree, 2)  # type: ignore[arg-type] # checks types
        self.activation = resolve(activation)
        # The next constructor is that of SB3's own class: it takes the number of actions, or a list of numbers.
        super().__init__(list(self.tree.sizes) if self._several else self.tree.num_classes)  # type: ignore[call-arg]

    def proba_distribution_net(self, latent_dim: int) -> nn.Module:
        """Return the last layer, whose ``scores`` :meth:`proba_distribution` takes."""
        layer: Any = ForestLinear if self._several else ct.CatnatLinear
        return layer(latent_dim, self.tree, self.activation)

    def from_scores(self, scores: Tensor, **options: Any) -> ct.Catnat | ct.MultiCatnat:
        """Return the distribution of :mod:`catnat.torch` with these scores."""
        cls: Any = ct.MultiCatnat if self._several else ct.Catnat
        catnat: ct.Catnat | ct.MultiCatnat = cls(scores, self.tree, self.activation, **options)
        # Actions are the distribution's own draws, and to check one takes as long as to draw it.
        catnat._validate_args = False
        return catnat

    def hold(self, catnat: ct.Catnat | ct.MultiCatnat) -> None:
        """Store the distribution where SB3 reads it: its divergence reads several variables from a list."""
        self.catnat = catnat
        self.distribution = [catnat] if self._several else catnat

    def proba_distribution(self: _Self, action_logits: Float[Tensor, "batch nodes"]) -> _Self:
        """Set the scores. The argument's name is SB3's."""
        self.hold(self.from_scores(action_logits))
        return self

    def log_prob(self, actions: Int[Tensor, "..."]) -> Float[Tensor, "batch"]:
        """Return the log-probability of actions."""
        return self.catnat.log_prob(actions)

    def entropy(self) -> Float[Tensor, "batch"]:
        """Return the entropy in nats."""
        return self.catnat.entropy()

    def sample(self) -> Int[Tensor, "..."]:
        """Draw actions."""
        return self.catnat.sample()

    def mode(self) -> Int[Tensor, "..."]:
        """Return the most probable actions."""
        return self.catnat.mode


class CatnatDistribution(ByTree, CategoricalDistribution):
    """SB3's ``CategoricalDistribution`` on a tree: ``distribution`` is a :class:`catnat.torch.Catnat`.

    ``proba_distribution`` takes the scores of the layer that ``proba_distribution_net`` returns.

    Args:
        tree: The tree over the actions, or their number.
        activation: "sigmoid", "natural", or an activation object.

    Example:
        >>> import torch
        >>> from catnat.integrations.stable_baselines3 import CatnatDistribution
        >>> actions = CatnatDistribution(4)
        >>> layer = actions.proba_distribution_net(64)  # a CatnatLinear
        >>> actions.proba_distribution(layer.scores(torch.zeros(2, 64))).distribution.probs
        tensor([[0.2500, 0.2500, 0.2500, 0.2500],
                [0.2500, 0.2500, 0.2500, 0.2500]], grad_fn=...)
    """


class MultiCatnatDistribution(ByTree, MultiCategoricalDistribution):
    """SB3's ``MultiCategoricalDistribution`` on trees, without a loop over variables.

    ``distribution`` is a list that holds a single :class:`catnat.torch.MultiCatnat`, the distribution of all variables.

    Args:
        tree: The trees of the variables: a :class:`catnat.Forest`, or a tree or a number for each.
        activation: "sigmoid", "natural", or an activation object.

    Example:
        >>> import torch
        >>> from catnat.integrations.stable_baselines3 import MultiCatnatDistribution
        >>> actions = MultiCatnatDistribution([3, 5])
        >>> # 3 * 5 equally probable actions
        >>> actions.proba_distribution(torch.zeros(2, 2 + 4)).entropy().exp()
        tensor([15.0000, 15.0000])
    """

    _several = True


# ---- policies ----

# The attributes that other algorithms read from their policies, and the policies that have them.
_READ_BY_OTHERS = {
    "q_net": ("DQN", "MlpPolicy"),
    "quantile_net": ("QRDQN", "MlpPolicy"),
    "lstm_actor": ("RecurrentPPO", "MlpLstmPolicy"),
}


class OnTree(BasePolicy):
    """Base class of policies on a tree: SB3's actor-critic policies with another distribution of actions.

    The arguments are described in :class:`CatnatPolicy`.
    """

    action_dist: Any  # typed in SB3's bases
    action_net: Any
    features_extractor_class: Any
    _algorithms: ClassVar[str] = "PPO, A2C or sb3-contrib's TRPO"
    # For Discrete, and for MultiDiscrete.
    _distributions: ClassVar[tuple[type[ByTree], type[ByTree]]] = (CatnatDistribution, MultiCatnatDistribution)

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *args: Any,
        tree: Tree | Forest | Iterable[Tree | int] | int | None = None,
        activation: ct.Activation | str = "sigmoid",
        **kwargs: Any,
    ) -> None:
        self._check_arguments(args, kwargs)
        # Set before SB3's own constructor, which calls `_build`.
        self.tree, self.activation = tree_of(action_space, tree), resolve(activation)
        super().__init__(observation_space, action_space, *args, **kwargs)
        if isinstance(observation_space, spaces.Dict) and self.features_extractor_class is FlattenExtractor:
            raise ValueError(
                f"`observation_space` is a Dict, but {type(self).__name__} reads one array: use "
                f"{type(self).__name__.removesuffix('Policy')}MultiInputPolicy, the counterpart of MultiInputPolicy."
            )

    def _check_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise if the arguments are of another algorithm, or if the tree's activation is passed by SB3's name."""
        name = type(self).__name__
        if not args and "lr_schedule" not in kwargs:  # as sb3-contrib's ARS builds its policies
            raise TypeError(
                f"{name} was built without a learning rate schedule, but it is an actor-critic policy, trained by "
                f"gradients: use it with {self._algorithms}. An algorithm such as ARS needs a policy of its own."
            )
        if isinstance(kwargs.get("activation_fn"), (str, ct.Activation)):
            raise TypeError(
                f"`activation_fn` is {kwargs['activation_fn']!r}, but that is SB3's name for the hidden layers' "
                "activation, a class such as torch.nn.Tanh. Pass the tree's as `activation`."
            )

    def __getattr__(self, name: str) -> Any:
        if name in _READ_BY_OTHERS:
            algorithm, its_own = _READ_BY_OTHERS[name]
            raise AttributeError(
                f"{type(self).__name__} has no `{name}`, which {algorithm} reads: it is an actor-critic policy, for "
                f'{self._algorithms}. Use it with these, or {algorithm} with "{its_own}", which has no tree.'
            )
        return super().__getattr__(name)

    def _build(self, lr_schedule: Any) -> None:
        cls = self._distributions[isinstance(self.tree, Forest)]
        self.action_dist = cls(self.tree, self.activation)
        super()._build(lr_schedule)  # type: ignore[misc] # SB3's next class has it

    @staticmethod
    def init_weights(module: nn.Module, gain: float = 1) -> None:
        """Apply SB3's initialization, which is for torch's own layers, to the layer of scores too."""
        if isinstance(module, (ct.CatnatLinear, ForestLinear)):
            nn.init.orthogonal_(module.weight, gain)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        else:
            BasePolicy.init_weights(module, gain)

    def _get_action_dist_from_latent(self, latent_pi: Tensor) -> Any:
        return self.action_dist.proba_distribution(self.action_net.scores(latent_pi))

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return super()._get_constructor_parameters() | {"tree": self.tree, "activation": self.activation}


class CatnatPolicy(OnTree, ActorCriticPolicy):
    """SB3's ``MlpPolicy`` for PPO and A2C, and for sb3-contrib's TRPO, with its actions on a tree.

    Args:
        observation_space: The observation space.
        action_space: A ``Discrete`` or ``MultiDiscrete`` space.
        *args: SB3's other arguments.
        tree: The tree over the actions; for ``MultiDiscrete`` a :class:`catnat.Forest`, or a tree or a number for every
            variable. Balanced if not given.
        activation: "sigmoid", "natural", or an activation object. (SB3's ``activation_fn`` is that of the hidden
            layers.)
        **kwargs: SB3's other arguments.

    Example:
        >>> from stable_baselines3 import PPO
        >>> from catnat.integrations.stable_baselines3 import CatnatPolicy
        >>> model = PPO(
        ...     CatnatPolicy,
        ...     "CartPole-v1",
        ...     policy_kwargs={"activation": "sigmoid"},
        ...     device="cpu",
        ... )
        >>> model.policy.action_net  # one score for two actions
        CatnatLinear(64, balanced(2), activation=sigmoid(), bias=True)
    """


class CatnatCnnPolicy(OnTree, ActorCriticCnnPolicy):
    """SB3's ``CnnPolicy`` with its actions on a tree; see :class:`CatnatPolicy`."""


class CatnatMultiInputPolicy(OnTree, MultiInputActorCriticPolicy):
    """SB3's ``MultiInputPolicy``, for observations in a dictionary, on a tree; see :class:`CatnatPolicy`."""


def tree_of(
    action_space: spaces.Space[Any], tree: Tree | Forest | Iterable[Tree | int] | int | None = None
) -> Tree | Forest:
    """Return the tree or forest over the actions of a space; raise if the given one does not fit."""
    if np.any(getattr(action_space, "start", 0)):
        raise ValueError(
            f"`action_space` is {action_space}, but Stable-Baselines3 numbers actions from 0, and would send "
            "0 .. n - 1 to the environment: declare the space without `start`, and add it inside the environment."
        )
    found: Tree | Forest
    actions: int | tuple[int, ...]
    if isinstance(action_space, spaces.Discrete):
        actions = int(action_space.n)
        found = as_tree(tree, actions)  # type: ignore[arg-type] # checks types
        classes: int | tuple[int, ...] = found.num_classes
    elif isinstance(action_space, spaces.MultiDiscrete) and action_space.nvec.ndim == 1:
        actions = tuple(map(int, action_space.nvec))
        found = as_forest(actions if tree is None else tree)  # type: ignore[arg-type] # as above
        classes = found.sizes
    else:
        raise ValueError(
            f"`action_space` is {action_space}, but a catnat policy needs numbered actions: spaces.Discrete, "
            "or spaces.MultiDiscrete with one axis. Use SB3's own policy here; a MultiBinary(n) can be written as "
            "MultiDiscrete([2] * n)."
        )
    if classes != actions:
        raise ValueError(f"`tree` is over {classes} classes, but there are {actions} actions: it needs one leaf each.")
    return found
