"""Ordinary mistakes with the adapters: each is an error, and its text names the way out."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import catnat
import catnat.torch as ct

# The library behind an adapter, where it is not that of the same name.
LIBRARIES = {"checkpoints": "torch", "torch_geometric": "torch"}


class Row(NamedTuple):
    adapter: str
    what: str
    do: Callable[[Any], Any]  # of the adapter's module
    error: type[Exception]
    fix: str


ROWS: list[Row] = []


# ---- Stable-Baselines3 ----


def environment(actions, observations=None, masks=None):
    """One that never ends; its observations say nothing."""
    import gymnasium as gym

    class Nothing(gym.Env):
        action_space = actions
        observation_space = observations or gym.spaces.Box(-1, 1, (4,))

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.observation_space.sample(), {}

        def step(self, action):
            return self.observation_space.sample(), 0.0, False, False, {}

        def action_masks(self):
            return masks

    return Nothing()


def spaces():
    from gymnasium import spaces

    return spaces


def trained(library, algorithm, policy, env=None, steps=0, **policy_kwargs):
    make = getattr(importlib.import_module(library), algorithm)
    rollout = {"n_steps": 2, "batch_size": 2, "n_epochs": 1} if algorithm.endswith("PPO") else {}
    env = environment(spaces().Discrete(4)) if env is None else env
    model = make(policy, env, device="cpu", policy_kwargs=policy_kwargs, **rollout)
    return model.learn(steps) if steps else model


def ppo(policy, env=None, steps=0, **policy_kwargs):
    return trained("stable_baselines3", "PPO", policy, env, steps, **policy_kwargs)


SB3 = "stable_baselines3"
for algorithm, library in [("DQN", SB3), ("QRDQN", "sb3_contrib"), ("RecurrentPPO", "sb3_contrib")]:
    ROWS.append(
        Row(
            SB3,
            f"an actor-critic policy for {algorithm}",
            lambda m, algorithm=algorithm, library=library: trained(library, algorithm, m.CatnatPolicy),
            AttributeError,
            rf"CatnatPolicy has no `\w+`, which {algorithm} reads.* PPO, A2C",
        )
    )
ROWS += [
    Row(
        SB3,
        "a policy for ARS, which takes no gradients",
        lambda m: trained("sb3_contrib", "ARS", m.CatnatPolicy),
        TypeError,
        "use it with PPO, A2C",
    ),
    Row(
        SB3,
        "continuous actions",
        lambda m: ppo(m.CatnatPolicy, environment(spaces().Box(-1, 1, (2,)))),
        ValueError,
        r"spaces\.Discrete",
    ),
    Row(
        SB3,
        "SAC, and so continuous actions",
        lambda m: trained(SB3, "SAC", m.CatnatPolicy, environment(spaces().Box(-1, 1, (2,)))),
        ValueError,
        "Use SB3's own policy",
    ),
    Row(
        SB3,
        "actions numbered from 1",
        lambda m: ppo(m.CatnatPolicy, environment(spaces().Discrete(4, start=1))),
        ValueError,
        "without `start`",
    ),
    Row(
        SB3,
        "observations that are a dictionary",
        lambda m: ppo(m.CatnatPolicy, environment(spaces().Discrete(4), spaces().Dict(a=spaces().Box(-1, 1, (2,))))),
        ValueError,
        "use CatnatMultiInputPolicy",
    ),
    Row(SB3, "a tree of another size", lambda m: ppo(m.CatnatPolicy, tree=catnat.balanced(5)), ValueError, "4 actions"),
    Row(SB3, "a number as the tree", lambda m: ppo(m.CatnatPolicy, tree=4), TypeError, r"catnat\.chain\(4\)"),
    Row(
        SB3,
        "one tree for several variables",
        lambda m: ppo(m.CatnatPolicy, environment(spaces().MultiDiscrete([3, 2])), tree=catnat.balanced(6)),
        TypeError,
        r"catnat\.Forest",
    ),
    Row(
        SB3,
        "the tree's activation under SB3's name",
        lambda m: ppo(m.CatnatPolicy, activation_fn="natural"),
        TypeError,
        "tree's is called `activation`",
    ),
    Row(
        SB3,
        "the hidden layers' activation under ours",
        lambda m: ppo(m.CatnatPolicy, activation=nn.Tanh),
        TypeError,
        "SB3's `activation_fn`",
    ),
    Row(
        SB3,
        "softmax as the activation",
        lambda m: ppo(m.CatnatPolicy, activation="softmax"),
        ValueError,
        "one of 'natural', 'sigmoid'",
    ),
    Row(
        SB3,
        "mask_mode for a policy without masks",
        lambda m: ppo(m.CatnatPolicy, mask_mode="prune"),
        TypeError,
        "MaskableCatnatPolicy",
    ),
    Row(
        SB3,
        "a softmax policy's parameters",
        lambda m: ppo(m.CatnatPolicy).policy.load_state_dict(ppo("MlpPolicy").policy.state_dict()),
        RuntimeError,
        "score_layer_from_softmax",
    ),
    Row(
        SB3,
        "one score per action",
        lambda m: m.CatnatDistribution(catnat.balanced(4)).proba_distribution(torch.zeros(2, 4)),
        ValueError,
        "not one per class",
    ),
    Row(
        SB3,
        "a policy that has diverged",
        lambda m: m.CatnatDistribution(catnat.balanced(4)).proba_distribution(torch.full((2, 3), math.nan)),
        ValueError,
        "learning rate that is too large",
    ),
    Row(SB3, "a distribution of 4", lambda m: m.CatnatDistribution(4), TypeError, r"catnat\.balanced"),
    Row(
        SB3,
        "a distribution of one variable from a forest",
        lambda m: m.CatnatDistribution(catnat.Forest([3, 2])),
        TypeError,
        r"catnat\.Tree is needed",
    ),
    Row(
        SB3,
        "a distribution of several variables from sizes",
        lambda m: m.MultiCatnatDistribution([3, 2]),
        TypeError,
        r"catnat\.Forest\(\[3, 5\]\)",
    ),
]

# ---- sb3-contrib ----

CONTRIB = "sb3_contrib"


def masked(m, masks):
    env = environment(spaces().Discrete(4), masks=np.array(masks))
    return trained(CONTRIB, "MaskablePPO", m.MaskableCatnatPolicy, env, steps=2)


ROWS += [
    Row(
        CONTRIB,
        "the maskable policy for PPO",
        lambda m: ppo(m.MaskableCatnatPolicy),
        TypeError,
        r"use MaskablePPO\(MaskableCatnatPolicy, env\), .*stable_baselines3\.CatnatPolicy",
    ),
    Row(
        CONTRIB,
        "the maskable policy for DQN",
        lambda m: trained(SB3, "DQN", m.MaskableCatnatPolicy),
        AttributeError,
        "MaskablePPO",
    ),
    Row(  # sb3-contrib's own words: nothing of ours runs before
        CONTRIB,
        "the other policy for MaskablePPO",
        lambda m: trained(CONTRIB, "MaskablePPO", importlib.import_module(f"catnat.integrations.{SB3}").CatnatPolicy),
        ValueError,
        "must subclass MaskableActorCriticPolicy",
    ),
    Row(CONTRIB, "indices as a mask", lambda m: masked(m, [0, 2, 3, 1]), ValueError, "holds 2, .* True or 1"),
    Row(CONTRIB, "a mask to add to logits", lambda m: masked(m, [0, -np.inf, 0, 0]), ValueError, "masks == 0"),
    Row(CONTRIB, "a mask with NaN", lambda m: masked(m, [np.nan, 1, 1, 0]), ValueError, "holds nan"),
    Row(CONTRIB, "a mask of nodes", lambda m: masked(m, [1, 0, 1]), ValueError, "an entry for every action"),
    Row(CONTRIB, "no valid action", lambda m: masked(m, [False] * 4), ValueError, "at least one"),
    Row(
        CONTRIB,
        "a mask mode that there is not",
        lambda m: trained(CONTRIB, "MaskablePPO", m.MaskableCatnatPolicy, mask_mode="renormalise"),
        ValueError,
        "'renormalize'",
    ),
]

# ---- TorchRL ----


def acted(m, network=None, spec=None, *, mask=None, **options):
    from tensordict import TensorDict
    from torchrl.data import Categorical

    step = {"observation": torch.zeros(5, 8)} | ({} if mask is None else {"action_mask": torch.as_tensor(mask)})
    if mask is not None:
        options["mask_key"] = "action_mask"
    actor = m.catnat_actor(
        nn.Linear(8, 3) if network is None else network, Categorical(4) if spec is None else spec, **options
    )
    return actor(TensorDict(step, [5]))


def torchrl_spec(name, *args):
    return getattr(importlib.import_module("torchrl.data"), name)(*args)


RL = "torchrl"
ROWS += [
    Row(RL, "one score per action", lambda m: acted(m, nn.Linear(8, 4)), ValueError, "make the last layer 3 wide"),
    Row(RL, "a number as the tree", lambda m: acted(m, tree=4), TypeError, r"catnat\.Tree is needed"),
    Row(RL, "a tree of another size", lambda m: acted(m, tree=catnat.chain(5)), ValueError, r"catnat\.balanced\(4\)"),
    Row(
        RL,
        "a layer for other actions",
        lambda m: acted(m, ct.ScoreLayer(8, 5)),
        ValueError,
        r"ScoreLayer\(in_features, 4\)",
    ),
    Row(
        RL,
        "another tree than the layer's",
        lambda m: acted(m, nn.Sequential(nn.Tanh(), ct.ScoreLayer(8, catnat.chain(4))), tree=catnat.balanced(4)),
        ValueError,
        "Leave `tree` out",
    ),
    Row(
        RL,
        "another activation than the layer's",
        lambda m: acted(m, ct.ScoreLayer(8, 4, "sigmoid"), activation="natural"),
        ValueError,
        "Leave `activation` out",
    ),
    Row(
        RL,
        "softmax as the activation, before any step",
        lambda m: m.catnat_actor(nn.Linear(8, 3), torchrl_spec("Categorical", 4), activation="softmax"),
        ValueError,
        "one of 'natural', 'sigmoid'",
    ),
    Row(RL, "indices as a mask", lambda m: acted(m, mask=[[0, 2, 3, -1]] * 5), ValueError, "holds 2, .* True or 1"),
    Row(
        RL,
        "a mask to add to logits",
        lambda m: acted(m, mask=[[0, -math.inf, 0, 0]] * 5),
        ValueError,
        "mask == 0",
    ),
    Row(
        RL,
        "a mask of another batch",
        lambda m: acted(m, mask=np.ones((5, 1, 4), bool)),
        ValueError,
        "a row of the mask for every row of scores",
    ),
    Row(
        RL,
        "a network that has diverged",
        lambda m: acted(m, nn.Sequential(nn.Linear(8, 3), nn.Threshold(math.inf, math.nan))),
        ValueError,
        "learning rate that is too large",
    ),
    Row(RL, "a key without a mask", lambda m: acted(m, mask_key="mask"), KeyError, "correct `mask_key`"),
    Row(
        RL,
        "yes/no actions",
        lambda m: acted(m, spec=torchrl_spec("Binary", 4)),
        TypeError,
        "MultiCategorical is needed",
    ),
    Row(
        RL,
        "gymnasium's space",
        lambda m: acted(m, spec=spaces().Discrete(4)),
        TypeError,
        "`action_spec` of a TorchRL environment",
    ),
    Row(
        RL,
        "trees of other sizes than the actions",
        lambda m: acted(m, spec=torchrl_spec("MultiCategorical", [3, 2]), distribution_kwargs={"trees": [4, 1]}),
        ValueError,
        "one leaf each",
    ),
]

# ---- Pyro ----


def normal_through(m, width):
    from pyro import distributions as dist

    base = dist.Normal(0, 1).expand([width]).to_event(1)
    return dist.TransformedDistribution(base, m.CatnatTransform(catnat.balanced(4)))


PYRO = "pyro"
ROWS += [
    Row(
        PYRO,
        "one score per class",
        lambda m: m.Catnat(torch.zeros(4), catnat.balanced(4)),
        ValueError,
        "make the last layer 3 wide",
    ),
    Row(PYRO, "logits", lambda m: m.Catnat(logits=torch.zeros(4)), TypeError, "scores_from_logits"),
    Row(
        PYRO,
        "0 and 1 as a mask",
        lambda m: m.Catnat(torch.zeros(3), mask=torch.tensor([1, 0, 1, 1])),
        TypeError,
        "boolean mask",
    ),
    Row(PYRO, "a guide that has diverged", lambda m: m.Catnat(torch.zeros(3) * math.nan), ValueError, "NaN"),
    Row(PYRO, "a number as the tree", lambda m: m.CatnatTransform(4), TypeError, r"catnat\.Tree is needed"),
    Row(
        PYRO,
        "an activation without an inverse",
        lambda m: m.CatnatTransform(catnat.balanced(4), ct.natural(boundary="reflect")),
        ValueError,
        r"use natural\(\)",
    ),
    Row(PYRO, "a base with one score per class", lambda m: normal_through(m, 4), ValueError, r"one per node \(K - 1\)"),
    Row(
        PYRO,
        "the inverse of weights",
        lambda m: m.CatnatTransform(catnat.balanced(4)).inv(torch.ones(4)),
        ValueError,
        r"Divide by probs\.sum",
    ),
    Row(
        PYRO,
        "the inverse of one probability per node",
        lambda m: m.CatnatTransform(catnat.balanced(4)).inv(torch.ones(3) / 3),
        ValueError,
        "One value per class",
    ),
]

# ---- NumPyro and optax ----


def zeros(*shape):
    return importlib.import_module("jax.numpy").zeros(shape)


def rescaled(m, scores, gradient, *args, **options):
    optimizer = m.scale_by_fisher(*args, **options)
    return optimizer.update(gradient, optimizer.init(scores), scores)


NUMPYRO, OPTAX = "numpyro", "optax"
ROWS += [
    Row(
        NUMPYRO,
        "one score per class",
        lambda m: m.Catnat(zeros(4), catnat.balanced(4)),
        ValueError,
        "make the last layer 3 wide",
    ),
    Row(NUMPYRO, "probabilities", lambda m: m.Catnat(probs=zeros(4)), TypeError, "scores_from_probs"),
    Row(
        NUMPYRO,
        "0 and 1 as a mask",
        lambda m: m.Catnat(zeros(3), mask=zeros(4).astype("int8")),
        TypeError,
        "boolean mask",
    ),
    Row(
        NUMPYRO,
        "an activation's class",
        lambda m: m.CatnatTransform(catnat.balanced(4), catnat.natural),
        TypeError,
        r"catnat\.natural\(",
    ),
    Row(NUMPYRO, "NaN", lambda m: m.Catnat(zeros(3) * math.nan, validate_args=True), ValueError, "scores"),
    Row(NUMPYRO, "a list", lambda m: m.Catnat([0.0, 0.0, 0.0]), TypeError, r"jnp\.asarray\(scores\)"),
    Row(NUMPYRO, "a float as the tree", lambda m: m.CatnatTransform(4.0), TypeError, r"catnat\.Tree or the number"),
    Row(
        NUMPYRO,
        "the inverse of weights",
        lambda m: m.CatnatTransform(catnat.balanced(4)).inv(zeros(4) + 1),
        ValueError,
        r"Divide by probs\.sum",
    ),
    Row(OPTAX, "damping as the tree", lambda m: m.scale_by_fisher(1e-3), TypeError, r"catnat\.Tree or the number"),
    Row(OPTAX, "softmax", lambda m: m.scale_by_fisher(activation="softmax"), ValueError, "one of 'natural'"),
    Row(OPTAX, "negative damping", lambda m: m.scale_by_fisher(damping=-1.0), ValueError, "at least 0"),
    Row(
        OPTAX,
        "gradients of other parameters",
        lambda m: rescaled(m, zeros(3), zeros(2, 3)),
        ValueError,
        "that the gradients were taken of",
    ),
    Row(
        OPTAX,
        "one score per class",
        lambda m: rescaled(m, zeros(4), zeros(4), catnat.balanced(4)),
        ValueError,
        "not one per class",
    ),
    Row(
        OPTAX,
        "no parameters",
        lambda m: m.scale_by_fisher().update(zeros(3), m.scale_by_fisher().init(zeros(3))),
        ValueError,
        r"optimizer\.update\(gradients, state, scores\)",
    ),
]

# ---- PyTorch Geometric ----

PYG = "torch_geometric"


def edges(m, flipped=False):
    pairs = m.all_pairs(3)
    return m.EdgeDistribution(torch.zeros(6), pairs.flip(1) if flipped else pairs, 3)


ROWS += [
    Row(PYG, "a float as a number of nodes", lambda m: m.all_pairs(3.0), TypeError, "`num_nodes` is 3.0"),
    Row(
        PYG,
        "a matrix of scores",
        lambda m: m.EdgeDistribution(torch.zeros(3, 3), m.all_pairs(3), 3),
        ValueError,
        "one score for every column of `candidates`",
    ),
    Row(
        PYG,
        "integers as scores",
        lambda m: m.EdgeDistribution(torch.zeros(6, dtype=torch.long), m.all_pairs(3), 3),
        TypeError,
        "one score per candidate",
    ),
    Row(
        PYG,
        "pairs as rows",
        lambda m: m.EdgeDistribution(torch.zeros(6), m.all_pairs(3).t(), 3),
        ValueError,
        r"candidates\.t\(\)",
    ),
    Row(PYG, "logits as probabilities", lambda m: m.edge_scores(torch.tensor([1.5])), ValueError, "torch.sigmoid"),
    Row(
        PYG,
        "features for the sampler",
        lambda m: m.EdgeSampler(3)(torch.zeros(3, 8)),
        TypeError,
        r"conv\(graphs\.stack\(x\)",
    ),
    Row(
        PYG,
        "weights as draws",
        lambda m: edges(m).graphs(torch.tensor([0, 1, 0.5, 0, 0, 0])),
        ValueError,
        "0 or 1 is needed",
    ),
    Row(
        PYG,
        "features of other graphs",
        lambda m: edges(m).draw(2).stack(torch.zeros(4, 3, 8)),
        ValueError,
        r"\(2, 3, F\)",
    ),
    Row(
        PYG,
        "features of some nodes",
        lambda m: edges(m).draw(2).unstack(torch.zeros(5, 8)),
        ValueError,
        r"graphs\.stack\(x\)",
    ),
    Row(
        PYG,
        "candidates in another order",
        lambda m: torch.distributions.kl_divergence(edges(m), edges(m, flipped=True)),
        ValueError,
        "the same `candidates`",
    ),
    Row(
        PYG,
        "three numbers as a range",
        lambda m: m.EdgeSampler(3, initial_probs=(0.1, 0.2, 0.3)),
        ValueError,
        r"range \(low, high\)",
    ),
]

# ---- checkpoints ----

CHECKPOINTS = "checkpoints"


def converted(m, linear=None, inputs=None, *args, **options):
    if inputs is None:
        inputs = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
    return m.score_layer_from_softmax(nn.Linear(8, 4) if linear is None else linear, inputs, *args, **options)


ROWS += [
    Row(CHECKPOINTS, "a score layer", lambda m: converted(m, ct.ScoreLayer(8, 4)), TypeError, "nothing to convert"),
    Row(
        CHECKPOINTS,
        "a whole model",
        lambda m: converted(m, nn.Sequential(nn.Linear(8, 4))),
        TypeError,
        r"last torch\.nn\.Linear",
    ),
    Row(
        CHECKPOINTS,
        "inputs of the model",
        lambda m: converted(m, None, torch.zeros(100, 28)),
        ValueError,
        "what goes into this layer",
    ),
    Row(
        CHECKPOINTS,
        "one input again and again",
        lambda m: converted(m, None, torch.ones(1, 8).expand(100, 8)),
        ValueError,
        "features of different data",
    ),
    Row(
        CHECKPOINTS,
        "a tree over the nodes",
        lambda m: converted(m, None, None, catnat.balanced(3)),
        ValueError,
        "a tree over 4 classes",
    ),
    Row(
        CHECKPOINTS,
        "the activation in place of the tree",
        lambda m: converted(m, None, None, "sigmoid"),
        TypeError,
        r"catnat\.balanced\(4\)",
    ),
    Row(CHECKPOINTS, "half a step", lambda m: converted(m, steps=1.5), ValueError, "an integer is needed"),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of the libraries, on their way there
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.adapter}: {row.what}")
def test_mistake_is_an_error_that_names_the_fix(row, monkeypatch):
    pytest.importorskip(LIBRARIES.get(row.adapter, row.adapter))
    adapter = importlib.import_module(f"catnat.integrations.{row.adapter}")
    # To import TorchRL turns torch's validation off: so it is for its users, whatever other rows have imported.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", row.adapter != RL)
    with pytest.raises(row.error, match=row.fix):
        row.do(adapter)
