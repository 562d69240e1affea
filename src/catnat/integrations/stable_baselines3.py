"""Policies of Stable-Baselines3 with scores on a tree in place of logits, for PPO, A2C and sb3-contrib's TRPO.

They are SB3's own actor-critic policies with another distribution of actions: ``Discrete`` actions are a
:class:`catnat.torch.Catnat`, ``MultiDiscrete`` actions a :class:`catnat.torch.MultiCatnat`, all variables at once.
:mod:`catnat.integrations.sb3_contrib` has their maskable counterparts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NoReturn, TypeVar

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
from jaxtyping import Float, Int
from torch import Tensor, nn

import catnat.torch as ct
from catnat import Forest, Tree, balanced
from catnat.torch import extend

__all__ = [
    "CatnatCnnPolicy",
    "CatnatDistribution",
    "CatnatMultiInputPolicy",
    "CatnatPolicy",
    "MultiCatnatDistribution",
]


_Self = TypeVar("_Self", bound="ByTree")


# ---- distributions of actions ----


class ForestLayer(extend.OnTree, nn.Linear):
    """Features to the scores of a forest; other trees, or another activation, refuse to load its weights."""

    def __init__(self, features: int, forest: Forest, activation: ct.Activation) -> None:
        super().__init__(features, forest.num_nodes)
        self.tree: Any = forest
        self.activation = activation


class ByTree(Distribution):
    """What SB3 needs of a distribution of actions, on a tree, or on a forest of them."""

    catnat: ct.Catnat | ct.MultiCatnat
    """The distribution of :mod:`catnat.torch` that the last scores gave."""
    _takes: ClassVar[type[Tree | Forest]] = Tree

    def __init__(self, tree: Tree | Forest, activation: ct.Activation | str = "sigmoid") -> None:
        if not isinstance(tree, self._takes):
            _not_its_tree(tree, self._takes)
        # The next constructor is that of SB3's own class: it wants the number of actions, or the list of them.
        super().__init__(list(tree.sizes) if isinstance(tree, Forest) else tree.num_classes)  # type: ignore[call-arg]
        self.tree, self.activation = tree, extend.resolve_activation(activation)

    def proba_distribution_net(self, latent_dim: int) -> nn.Module:
        """The layer that makes the scores, one for every inner node."""
        if isinstance(self.tree, Forest):
            return ForestLayer(latent_dim, self.tree, self.activation)
        return ct.ScoreLayer(latent_dim, self.tree, self.activation)

    def proba_distribution(self: _Self, action_logits: Float[Tensor, "batch nodes"]) -> _Self:
        """Set the scores. The argument's name is SB3's."""
        self._hold(self._leaves(action_logits))
        return self

    def _leaves(self, scores: Tensor, **options: Any) -> ct.Catnat | ct.MultiCatnat:
        catnat: ct.Catnat | ct.MultiCatnat
        if isinstance(self.tree, Forest):
            catnat = ct.MultiCatnat(scores, self.tree, self.activation, **options)
        else:
            catnat = ct.Catnat(scores, self.tree, self.activation, **options)
        catnat._validate_args = (
            False  # actions are the distribution's own draws: to check each of them takes as long as to draw it
        )
        return catnat

    def _hold(self, catnat: ct.Catnat | ct.MultiCatnat) -> None:
        """Keep the distribution where SB3 looks for it: its divergence reads several variables from a list."""
        self.catnat = catnat
        self.distribution = [catnat] if isinstance(catnat, ct.MultiCatnat) else catnat

    def log_prob(self, actions: Int[Tensor, "..."]) -> Float[Tensor, "batch"]:
        """The log-probability of actions."""
        return self.catnat.log_prob(actions)

    def entropy(self) -> Float[Tensor, "batch"]:
        """The entropy in nats, from the log-probabilities that an update has computed already, with their floor."""
        logits = self.catnat.logits
        return -(logits.exp() * logits).sum(-1)

    def sample(self) -> Int[Tensor, "..."]:
        """Draw actions."""
        return self.catnat.sample()

    def mode(self) -> Int[Tensor, "..."]:
        """The most probable actions."""
        return self.catnat.mode


class CatnatDistribution(ByTree, CategoricalDistribution):
    """SB3's ``CategoricalDistribution`` on a tree: ``distribution`` is a :class:`catnat.torch.Catnat`.

    Args:
        tree: The tree over the actions.
        activation: "sigmoid", "natural", or an activation object.

    Example:
        >>> import catnat, torch
        >>> from catnat.integrations.stable_baselines3 import CatnatDistribution
        >>> actions = CatnatDistribution(catnat.balanced(4))
        >>> # a ScoreLayer: one score for every inner node
        >>> actions.proba_distribution_net(64).out_features
        3
        >>> actions.proba_distribution(torch.zeros(2, 3)).distribution.probs
        tensor([[0.2500, 0.2500, 0.2500, 0.2500],
                [0.2500, 0.2500, 0.2500, 0.2500]])
    """


class MultiCatnatDistribution(ByTree, MultiCategoricalDistribution):
    """SB3's ``MultiCategoricalDistribution`` on trees, without a loop over variables.

    ``distribution`` is a list that holds a single :class:`catnat.torch.MultiCatnat`, the distribution of all variables.

    Args:
        tree: The trees of the variables, a :class:`catnat.Forest`.
        activation: "sigmoid", "natural", or an activation object.

    Example:
        >>> import catnat, torch
        >>> from catnat.integrations.stable_baselines3 import MultiCatnatDistribution
        >>> actions = MultiCatnatDistribution(catnat.Forest([3, 5]))
        >>> # 3 * 5 equally probable actions
        >>> actions.proba_distribution(torch.zeros(2, 2 + 4)).entropy().exp()
        tensor([15.0000, 15.0000])
    """

    _takes = Forest


def _not_its_tree(given: object, needed: type[Tree | Forest]) -> NoReturn:
    if needed is Tree:
        extend.not_a_tree(given)
    raise TypeError(
        f"`tree` is {given!r}, but a catnat.Forest is needed, with a tree for every variable: catnat.Forest([3, 5]) "
        "for variables of 3 and of 5 actions."
    )


# ---- policies ----

# What other algorithms read from their policies, and the policy that has it.
_READ_BY_OTHERS = {
    "q_net": ("DQN", "MlpPolicy"),
    "quantile_net": ("QRDQN", "MlpPolicy"),
    "lstm_actor": ("RecurrentPPO", "MlpLstmPolicy"),
}


class OnTree(BasePolicy):
    """What turns an actor-critic policy of SB3 into one on a tree: only its distribution of actions is another.

    Its arguments are described in :class:`CatnatPolicy`.
    """

    action_dist: Any  # SB3's bases say which
    features_extractor_class: Any
    _algorithms: ClassVar[str] = "PPO, A2C or sb3-contrib's TRPO"
    # For Discrete, and for MultiDiscrete.
    _distributions: ClassVar[tuple[type[ByTree], type[ByTree]]] = (CatnatDistribution, MultiCatnatDistribution)

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *args: Any,
        tree: Tree | Forest | Iterable[Tree | int] | None = None,
        activation: ct.Activation | str = "sigmoid",
        **kwargs: Any,
    ) -> None:
        self._check_arguments(args, kwargs, activation)
        # Before SB3's own constructor, which calls `_build`.
        self.tree, self.activation = tree_of(action_space, tree), extend.resolve_activation(activation)
        super().__init__(observation_space, action_space, *args, **kwargs)
        if isinstance(observation_space, spaces.Dict) and self.features_extractor_class is FlattenExtractor:
            raise ValueError(
                f"`observation_space` is a Dict, but {type(self).__name__} reads one array: use "
                f"{type(self).__name__.removesuffix('Policy')}MultiInputPolicy, as MultiInputPolicy for MlpPolicy."
            )

    def _check_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any], activation: Any) -> None:
        """Raise where the arguments are those of another algorithm, or of SB3 and ours mixed up."""
        name = type(self).__name__
        if not args and "lr_schedule" not in kwargs:  # as sb3-contrib's ARS builds its policies
            raise TypeError(
                f"{name} was built without a learning rate schedule, but it is an actor-critic policy, learned by "
                f"gradients: use it with {self._algorithms}. An algorithm such as ARS needs a policy of its own."
            )
        if "mask_mode" in kwargs:
            raise TypeError(
                f"`mask_mode` was given, but {name} takes no masks: use sb3-contrib's MaskablePPO with "
                "catnat.integrations.sb3_contrib.MaskableCatnatPolicy."
            )
        if isinstance(kwargs.get("activation_fn"), (str, ct.Activation)):
            raise TypeError(
                f"`activation_fn` is {kwargs['activation_fn']!r}, but that is SB3's name for the hidden layers' "
                "activation, a class such as torch.nn.Tanh. The tree's is called `activation`."
            )
        if isinstance(activation, nn.Module) or (isinstance(activation, type) and issubclass(activation, nn.Module)):
            raise TypeError(
                f"`activation` is {activation!r}, but that is the tree's activation, 'natural' or 'sigmoid'. That of "
                "the hidden layers is SB3's `activation_fn`."
            )

    def __getattr__(self, name: str) -> Any:
        if name in _READ_BY_OTHERS:
            algorithm, its_own = _READ_BY_OTHERS[name]
            raise AttributeError(
                f"{type(self).__name__} has no `{name}`, which {algorithm} reads: it is an actor-critic policy, for "
                f'{self._algorithms}. Use it with these, or {algorithm} with "{its_own}", which has no tree.'
            )
        return super().__getattr__(name)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load parameters, or say so if they are those of a softmax policy."""
        weight = state_dict.get("action_net.weight")
        if weight is not None and weight.shape[0] == self.tree.num_classes:
            raise RuntimeError(
                f"`action_net` of the checkpoint has {weight.shape[0]} outputs, one logit per action: it is that of a "
                f"softmax policy. Here it has {self.tree.num_nodes}, one score per node. Convert that layer with "
                "catnat.integrations.checkpoints.score_layer_from_softmax, and load the other parameters without it."
            )
        return super().load_state_dict(state_dict, strict, assign)

    def _options(self) -> dict[str, Any]:
        """What the distribution is built from, and is saved with the policy."""
        return {"tree": self.tree, "activation": self.activation}

    def _build(self, lr_schedule: Any) -> None:
        self.action_dist = self._distributions[isinstance(self.tree, Forest)](**self._options())
        super()._build(lr_schedule)  # type: ignore[misc] # SB3's next class has it

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return super()._get_constructor_parameters() | self._options()


class CatnatPolicy(OnTree, ActorCriticPolicy):
    """SB3's ``MlpPolicy`` for PPO and A2C, and for sb3-contrib's TRPO, with its actions on a tree.

    Args:
        observation_space: SB3's.
        action_space: ``Discrete`` or ``MultiDiscrete``.
        args: All other arguments are SB3's.
        tree: The tree over the actions; for ``MultiDiscrete`` a :class:`catnat.Forest`, or a tree or a number for every
            variable. Balanced if not given.
        activation: "sigmoid", "natural", or an activation object. (SB3's ``activation_fn`` is that of the hidden
            layers.)
        kwargs: All other arguments are SB3's.

    Example:
        >>> from stable_baselines3 import PPO
        >>> from catnat.integrations.stable_baselines3 import CatnatPolicy
        >>> model = PPO(
        ...     CatnatPolicy,
        ...     "CartPole-v1",
        ...     policy_kwargs={"activation": "sigmoid"},
        ...     device="cpu",
        ... )
        >>> model.policy.action_net.out_features  # a ScoreLayer: one score for two actions
        1
    """


class CatnatCnnPolicy(OnTree, ActorCriticCnnPolicy):
    """SB3's ``CnnPolicy`` with its actions on a tree; see :class:`CatnatPolicy`."""


class CatnatMultiInputPolicy(OnTree, MultiInputActorCriticPolicy):
    """SB3's ``MultiInputPolicy``, for observations that are a dictionary, on a tree; see :class:`CatnatPolicy`."""


def tree_of(action_space: spaces.Space[Any], tree: Tree | Forest | Iterable[Tree | int] | None = None) -> Tree | Forest:
    """The tree or forest over the actions of a space, or what is wrong with the one that was given."""
    if np.any(getattr(action_space, "start", 0)):
        raise ValueError(
            f"`action_space` is {action_space}, but Stable-Baselines3 numbers actions from 0, and would send "
            "0 .. n - 1 to the environment: declare the space without `start`, and add it inside the environment."
        )
    if isinstance(action_space, spaces.Discrete):
        return _tree_over(int(action_space.n), tree)
    if isinstance(action_space, spaces.MultiDiscrete) and action_space.nvec.ndim == 1:
        return _forest_over(tuple(map(int, action_space.nvec)), tree)
    raise ValueError(
        f"`action_space` is {action_space}, but a catnat policy chooses among numbered actions: spaces.Discrete, or "
        "spaces.MultiDiscrete with one axis. Use SB3's own policy here; a MultiBinary(n) can be written as "
        "MultiDiscrete([2] * n)."
    )


def _tree_over(actions: int, tree: Any) -> Tree:
    if tree is None:
        return balanced(actions)
    if not isinstance(tree, Tree):
        raise TypeError(
            f"`tree` is {tree!r}, but Discrete actions need a catnat.Tree, such as catnat.chain({actions})."
        )
    if tree.num_classes != actions:
        raise ValueError(f"`tree` is over {tree.num_classes} classes, but there are {actions} actions: one leaf each.")
    return tree


def _forest_over(sizes: tuple[int, ...], trees: Any) -> Forest:
    if isinstance(trees, Tree):
        raise TypeError(
            f"`tree` is {trees!r}, but MultiDiscrete actions need a tree for every variable: a list of them, or a "
            "catnat.Forest."
        )
    forest = trees if isinstance(trees, Forest) else Forest(sizes if trees is None else extend.listed(trees, "tree"))
    if forest.sizes != sizes:
        raise ValueError(f"`tree` is over {forest.sizes} classes, but there are {sizes} actions: one leaf each.")
    return forest
