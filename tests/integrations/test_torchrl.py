"""Policies on trees in the real TorchRL: its environments, actors and losses, beside equal softmax policies."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from torch import distributions as td
from torch import nn

import catnat
import catnat.torch as ct

pytest.importorskip("torchrl", minversion="0.14")
from tensordict import TensorDict
from tensordict.nn import InteractionType, TensorDictModule
from torchrl.data import Categorical, MultiCategorical, OneHot
from torchrl.envs import ExplorationType, GymEnv, GymWrapper, set_exploration_type
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.modules.distributions import OneHotCategorical as TheirOneHot
from torchrl.modules.distributions import has_analytic_entropy, has_analytic_kl
from torchrl.objectives import ClipPPOLoss, KLPENPPOLoss
from torchrl.objectives import ppo as ppo_module
from torchrl.objectives.value import GAE

from catnat.integrations.torchrl import OneHotCatnat, catnat_actor

CLASSES = [ct.Catnat, ct.OneHotCatnat, ct.OneHotCatnatStraightThrough, ct.MultiCatnat, OneHotCatnat]
SIZES = [3, 5]


class Masked(gymnasium.Env):
    """Observations with a mask of valid actions, drawn anew at every step; an invalid action is an error."""

    def __init__(self, sizes, flat):
        self.sizes = sizes
        self.action_space = gymnasium.spaces.Discrete(sizes[0]) if flat else gymnasium.spaces.MultiDiscrete(sizes)
        self.observation_space = gymnasium.spaces.Dict(
            observation=gymnasium.spaces.Box(-1, 1, (4,)), action_mask=gymnasium.spaces.MultiBinary(sum(sizes))
        )

    def observe(self):
        parts = [self.np_random.random(size) < 0.4 for size in self.sizes]
        for part in parts:
            part[self.np_random.integers(len(part))] = True
        self.parts = parts
        seen = self.np_random.uniform(-1, 1, 4).astype(np.float32)
        return {"observation": seen, "action_mask": np.concatenate(parts).astype(np.int8)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action):
        for part, taken in zip(self.parts, np.atleast_1d(action), strict=True):
            assert part[taken], "a masked action was taken"
        return self.observe(), 0.0, False, False, {}


def masked_env(several):
    env = Masked(SIZES if several else SIZES[1:], flat=not several)
    return GymWrapper(env, categorical_action_encoding=True)


def network(outputs, inputs=4, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs))


def cartpole(categorical=True):
    env = GymEnv("CartPole-v1", categorical_action_encoding=categorical)
    env.set_seed(0)
    torch.manual_seed(0)
    return env


class LogProbs(nn.Module):
    """Logits of the same distribution, for a softmax policy."""

    def __init__(self, scores):
        super().__init__()
        self.scores = scores

    def forward(self, observation):
        return ct.log_catnat(self.scores(observation), activation="natural")


def softmax_actor(scores, env, distribution_class):
    logits = TensorDictModule(LogProbs(scores), ["observation"], ["logits"])
    return ProbabilisticActor(
        logits, in_keys=["logits"], spec=env.action_spec, distribution_class=distribution_class, return_log_prob=True
    )


def rollout(env, actor, steps=64):
    """Experience with advantages, and the critic that they come from."""
    torch.manual_seed(1)
    critic = ValueOperator(network(1, seed=1), in_keys=["observation"])
    with torch.no_grad():
        data = env.rollout(steps, actor, break_when_any_done=False)
        return GAE(gamma=0.98, lmbda=0.8, value_network=critic)(data), critic


# ---- the updates ----


@pytest.mark.parametrize("categorical", [True, False], ids=["categorical", "one-hot"])
def test_ppo_is_that_of_a_softmax_policy_with_the_same_probabilities(categorical, monkeypatch):
    """Losses and gradients on real experience; no entropy by Monte Carlo."""
    monkeypatch.setattr(ppo_module, "sample_and_log_prob", lambda *_, **__: pytest.fail("Monte Carlo"))
    env, scores = cartpole(categorical), network(1)
    mine = catnat_actor(scores, env.action_spec, activation="natural")
    data, critic = rollout(env, mine)
    assert env.action_spec.is_in(data["action"][0])
    assert data["action"].shape == ((64,) if categorical else (64, 2))
    assert len({tuple(np.atleast_1d(action)) for action in data["action"].tolist()}) == 2

    def losses(actor):
        loss = ClipPPOLoss(actor, critic, entropy_coeff=0.1)
        found = loss(data)
        scores.zero_grad()
        sum(found[name] for name in ("loss_objective", "loss_critic", "loss_entropy")).backward()
        return found, [parameter.grad.clone() for parameter in scores.parameters()]

    theirs = softmax_actor(scores, env, td.Categorical if categorical else TheirOneHot)
    (got, my_gradients), (wanted, gradients) = losses(mine), losses(theirs)
    for name in ("loss_objective", "loss_critic", "loss_entropy", "entropy", "kl_approx", "clip_fraction"):
        torch.testing.assert_close(got[name], wanted[name], rtol=1e-5, atol=1e-6)
    assert got["entropy"] > 0.1
    for mine, other in zip(my_gradients, gradients, strict=True):
        assert mine.isfinite().all()
        assert mine.abs().sum() > 0
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def test_penalty_by_divergence(monkeypatch):
    """KLPENPPOLoss finds the divergence in closed form: that of the stored scores from those of the new policy."""
    monkeypatch.setattr(ppo_module, "sample_and_log_prob", lambda *_, **__: pytest.fail("Monte Carlo"))
    env, scores = cartpole(), network(1)
    actor = catnat_actor(scores, env.action_spec, activation="natural")
    data, critic = rollout(env, actor)
    with torch.no_grad():
        scores[-1].bias.add_(0.5)
    found = KLPENPPOLoss(actor, critic, entropy_bonus=False)(data)
    old, new = (ct.catnat(each, 2, "natural") for each in (data["scores"], scores(data["observation"])))
    torch.testing.assert_close(found["kl"].mean(), (old * (old / new).log()).sum(-1).mean(), rtol=1e-4, atol=1e-6)


# ---- what TorchRL looks up ----


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_entropy_and_divergence_are_known(cls):
    distribution = cls(torch.zeros(2, 3), *([[2, 3]] if cls is ct.MultiCatnat else []))
    assert has_analytic_entropy(distribution)
    assert has_analytic_entropy(td.Independent(distribution, 1))
    assert has_analytic_kl(distribution, distribution)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_without_exploration_the_most_probable_action(cls):
    """No warning, which would be an error here."""
    trees = {"trees": [2, 3]} if cls is ct.MultiCatnat else {}
    actor = ProbabilisticActor(
        TensorDictModule(nn.Identity(), ["observation"], ["scores"]),
        in_keys=["scores"],
        distribution_class=cls,
        distribution_kwargs=trees,
    )
    scores = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        taken = actor(TensorDict({"observation": scores}, [50]))["action"]
    if cls is ct.MultiCatnat:
        wanted = torch.stack([part.argmax(-1) for part in ct.MultiCatnat(scores, [2, 3]).probs.split([2, 3], -1)], -1)
    else:
        wanted = ct.catnat(scores).argmax(-1)
        taken = taken if cls is ct.Catnat else taken.argmax(-1)
    torch.testing.assert_close(taken, wanted, rtol=0, atol=0)


# ---- masks ----


@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_masked_actions_are_never_taken(several):
    """The environment raises if one is; after updates, too, and without exploration."""
    env = masked_env(several)
    env.set_seed(0)
    outputs = sum(SIZES) - len(SIZES) if several else SIZES[1] - 1
    actor = catnat_actor(network(outputs), env.action_spec, mask_key="action_mask")
    data, critic = rollout(env, actor, 150)
    assert actor.get_dist(data).entropy().min() < actor.get_dist(data).entropy().max()  # masks differ from row to row
    taken = data["action"] if several else data["action"].unsqueeze(-1)
    valid = data["action_mask"].bool().split(SIZES if several else SIZES[1:], -1)
    for variable, part in enumerate(valid):
        assert part.gather(-1, taken[:, variable, None]).all()
    loss = ClipPPOLoss(actor, critic)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-2)
    for _ in range(3):
        found = loss(data)
        optimizer.zero_grad()
        (found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]).backward()
        assert all(p.grad.isfinite().all() for p in actor.parameters() if p.grad is not None)
        optimizer.step()
    for mode in (ExplorationType.RANDOM, ExplorationType.DETERMINISTIC):
        with set_exploration_type(mode), torch.no_grad():
            env.rollout(40, actor)


# ---- the actor ----


def test_save_and_load():
    """An actor takes the state of another of the same tree alone."""
    spec, steps = Categorical(4), TensorDict({"observation": torch.randn(9, 8)}, [9])
    first, second = (catnat_actor(ct.CatnatLinear(8, 4), spec) for _ in range(2))
    second.load_state_dict(first.state_dict())
    assert torch.equal(*(actor.get_dist(steps).probs for actor in (first, second)))
    with pytest.raises(RuntimeError, match="of a layer with the tree balanced"):
        catnat_actor(ct.CatnatLinear(8, catnat.chain(4)), spec).load_state_dict(first.state_dict())


def test_the_options():
    tree = catnat.chain(4).with_prior([1, 2, 3, 4])
    actor = catnat_actor(
        nn.Identity(),
        Categorical(4),
        in_keys=["state"],
        tree=tree,
        activation="sigmoid",
        distribution_kwargs={"unimix": 0.1},
        return_log_prob=False,
        default_interaction_type=InteractionType.MODE,
    )
    scores = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    out = actor(TensorDict({"state": scores}, [6]))
    wanted = ct.Catnat(scores, tree, "sigmoid", unimix=0.1)
    torch.testing.assert_close(actor.get_dist(out).probs, wanted.probs)
    assert torch.equal(out["action"], wanted.mode)
    assert "action_log_prob" not in out


class Policy(nn.Module):
    """A network of a user, with the layer somewhere in it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.body, self.head = nn.Identity(), layer

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(observation))


WRAPS = {
    "alone": lambda layer: layer,
    "last": lambda layer: nn.Sequential(nn.Identity(), layer),
    "last of the last": lambda layer: nn.Sequential(nn.Identity(), nn.Sequential(nn.Identity(), layer)),
    "behind a compiled body": lambda layer: nn.Sequential(torch.compile(nn.Identity(), backend="eager"), layer),
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_the_tree_is_that_of_the_layer(wrap):
    """Nobody has to say it twice, and nobody can forget to."""
    layer = ct.CatnatLinear(8, catnat.chain(4).with_prior([1, 2, 3, 4]), "natural")
    data = TensorDict({"observation": torch.randn(6, 8, generator=torch.Generator().manual_seed(0))}, [6])
    wanted = layer(data["observation"]).exp()
    said_again = {"tree": catnat.chain(4).with_prior([1, 2, 3, 4]), "activation": "natural"}
    for options in ({}, said_again, {"in_keys": "observation"}):
        actor = catnat_actor(wrap(layer), Categorical(4), **options)
        torch.testing.assert_close(actor.get_dist(data).probs, wanted)
        assert any(parameter is layer.weight for parameter in actor.parameters())


@pytest.mark.parametrize("wrap", [Policy, nn.DataParallel, lambda layer: nn.Sequential(Policy(layer))])
def test_logits_are_not_taken_for_scores(wrap):
    """Five logits would pass for the scores of six actions."""
    with pytest.raises(ValueError, match=r"`network` is a .*nn\.Sequential\(body, CatnatLinear"):
        catnat_actor(wrap(ct.CatnatLinear(8, 5)), Categorical(6))


def test_batches_of_environments():
    spec = MultiCategorical([3, 5], shape=(7, 2))
    out = catnat_actor(nn.Identity(), spec)(TensorDict({"observation": torch.zeros(7, 6)}, [7]))
    assert spec.is_in(out["action"])
    one_hot = OneHot(4, shape=(7, 4), dtype=torch.int64)  # as GymEnv makes them
    out = catnat_actor(nn.Identity(), one_hot)(TensorDict({"observation": torch.zeros(7, 3)}, [7]))
    assert one_hot.is_in(out["action"])


def test_an_actor_compiles_as_one_graph():
    """A check of its own draws would read a value."""
    spec = Categorical(4)
    actor = catnat_actor(nn.Linear(3, 3), spec, return_log_prob=True)
    found = torch.compile(actor, fullgraph=True, backend="eager")(
        TensorDict(observation=torch.zeros(5, 3), batch_size=5)
    )
    assert found["action"].shape[0] == 5
    with pytest.raises(ValueError, match=r"NaN|invalid"):
        actor(TensorDict(observation=torch.full((5, 3), torch.nan), batch_size=5))
