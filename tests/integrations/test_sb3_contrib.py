"""The maskable policies, against the real sb3-contrib: its own distributions, its environments, and MaskablePPO."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from integrations.policies import FOREST, TREES, probabilities, scores_for, sizes

import catnat.torch as ct

pytest.importorskip("sb3_contrib", minversion="2.7")
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete, InvalidActionEnvMultiDiscrete
from sb3_contrib.common.maskable import distributions as theirs
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from stable_baselines3.common.envs import FakeImageEnv, SimpleMultiObsEnv
from stable_baselines3.common.vec_env import DummyVecEnv

from catnat.integrations.sb3_contrib import (
    MaskableCatnatCnnPolicy,
    MaskableCatnatDistribution,
    MaskableCatnatMultiInputPolicy,
    MaskableCatnatPolicy,
    MaskableMultiCatnatDistribution,
)

ENVS = {
    "discrete": lambda: InvalidActionEnvDiscrete(dim=5, n_invalid_actions=2),
    "multi": lambda: InvalidActionEnvMultiDiscrete(dims=list(FOREST.sizes), n_invalid_actions=3),
}


@pytest.fixture(params=TREES)
def kind(request):
    return request.param


def random_masks(kind, rows, seed=0):
    """About half of the actions, and at least one of every variable."""
    generator = np.random.default_rng(seed)
    parts = [generator.random((rows, size)) < 0.5 for size in sizes(kind)]
    for part in parts:
        part[np.arange(rows), generator.integers(part.shape[1], size=rows)] = True
    return np.concatenate(parts, -1)


def distribution(kind):
    cls = MaskableCatnatDistribution if kind == "discrete" else MaskableMultiCatnatDistribution
    return cls(TREES[kind], "natural")


def own(kind):
    """sb3-contrib's distribution of the same actions."""
    if kind == "discrete":
        return theirs.MaskableCategoricalDistribution(5)
    return theirs.MaskableMultiCategoricalDistribution(list(FOREST.sizes))


def model_for(kind, envs=1, **options):
    env = DummyVecEnv([ENVS[kind]] * envs)
    policy_kwargs = {"tree": TREES[kind], "net_arch": [32]}
    settings = {"n_steps": 64, "batch_size": 64, "n_epochs": 2, "seed": 0, "device": "cpu"} | options
    return MaskablePPO(MaskableCatnatPolicy, env, policy_kwargs=policy_kwargs, **settings)


# ---- distributions ----


def test_they_are_contribs_with_the_trees_probabilities(kind):
    rows = 20
    scores, masks = scores_for(kind, rows), random_masks(kind, rows)
    probs = probabilities(kind, "natural", scores, masks)
    reference = own(kind).proba_distribution(torch.as_tensor(probs).clamp(min=1e-30).log())
    reference.apply_masking(masks)
    mine = distribution(kind).proba_distribution(scores)
    assert isinstance(mine, type(reference))
    mine.apply_masking(masks)
    np.testing.assert_allclose(mine.catnat.probs, probs, atol=1e-12)
    actions = reference.sample()
    torch.testing.assert_close(mine.log_prob(actions), reference.log_prob(actions))
    torch.testing.assert_close(mine.entropy(), reference.entropy())
    assert torch.equal(mine.mode(), reference.mode())


@pytest.mark.parametrize("form", ["bool", "int8", "float tensor", "int list", "flat"])
def test_forms_of_masks(kind, form):
    """As MaskablePPO hands them: arrays from environments, floats from its buffer, one row for one environment."""
    masks = random_masks(kind, 1 if form == "flat" else 4)
    given = {
        "bool": masks,
        "int8": masks.astype(np.int8),  # as PettingZoo's environments write them
        "float tensor": torch.as_tensor(masks, dtype=torch.float32),
        "int list": masks.astype(int).tolist(),
        "flat": masks[0],
    }[form]
    mine = distribution(kind).proba_distribution(scores_for(kind, len(masks)))
    mine.apply_masking(given)
    assert torch.equal(mine.catnat.mask, torch.as_tensor(masks))


def test_masks_come_and_go(kind):
    scores = scores_for(kind, 4)
    free = distribution(kind).proba_distribution(scores).catnat.probs
    mine = distribution(kind).proba_distribution(scores)
    first, second = random_masks(kind, 4, seed=1), random_masks(kind, 4, seed=2)
    mine.apply_masking(first)
    mine.apply_masking(second)  # does not add to the first
    assert torch.equal(mine.catnat.probs > 0, torch.as_tensor(second))
    mine.apply_masking(None)
    assert torch.equal(mine.catnat.probs, free)
    mine.apply_masking(first)
    assert torch.equal(mine.proba_distribution(scores).catnat.probs, free)  # new scores have no mask


# ---- MaskablePPO ----


class Strict(gymnasium.Wrapper):
    """Ends the test if an invalid action is taken."""

    def step(self, action):
        masks = np.split(self.env.action_masks(), np.cumsum(np.atleast_1d(self.sizes))[:-1])
        assert all(mask[a] for mask, a in zip(masks, np.atleast_1d(action), strict=True)), "an invalid action was taken"
        return self.env.step(action)

    @property
    def sizes(self):
        space = self.action_space
        return space.n if isinstance(space, spaces.Discrete) else space.nvec

    def action_masks(self):
        return self.env.action_masks()


def test_it_learns_and_takes_valid_actions_only(kind):
    """The action that the observation names. Every step, in training and after, is checked."""
    np.random.seed(0)  # noqa: NPY002 - the environments draw by it
    settings = {"n_steps": 32, "n_epochs": 10, "learning_rate": 5e-3, "gamma": 0.0}
    policy_kwargs = {"tree": TREES[kind], "net_arch": [32]}
    env = DummyVecEnv([lambda: Strict(ENVS[kind]())] * 8)
    model = MaskablePPO(MaskableCatnatPolicy, env, policy_kwargs=policy_kwargs, seed=0, device="cpu", **settings)
    model.learn(1280)
    reward, _ = evaluate_policy(model, Strict(ENVS[kind]()), n_eval_episodes=1, warn=False)
    assert reward > 85


def test_one_update(kind):
    """The buffer's log-probabilities are those of the policy under the buffer's masks; the update moves every layer."""
    model = model_for(kind)
    before = {name: each.detach().clone() for name, each in model.policy.named_parameters()}
    _, callback = model._setup_learn(64)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
    batch = next(model.rollout_buffer.get(None))
    assert not batch.action_masks.all()
    actions = batch.actions.long().flatten() if kind == "discrete" else batch.actions
    values, log_prob, entropy = model.policy.evaluate_actions(batch.observations, actions, batch.action_masks)
    assert (values.shape, log_prob.shape, entropy.shape) == ((64, 1), (64,), (64,))
    torch.testing.assert_close(log_prob, batch.old_log_prob)
    _, unmasked, _ = model.policy.evaluate_actions(batch.observations, actions)
    assert (unmasked < log_prob).any()
    model.train()
    for name, each in model.policy.named_parameters():
        assert each.isfinite().all()
        assert not torch.equal(each, before[name]), name


def with_masks(env):
    """An environment whose action 0 is never valid."""
    env.action_masks = lambda: np.arange(env.action_space.n) > 0
    return env


@pytest.mark.parametrize(
    ("policy", "env"),
    [
        (MaskableCatnatCnnPolicy, FakeImageEnv(screen_height=36, screen_width=36, action_dim=4, n_channels=1)),
        (MaskableCatnatMultiInputPolicy, SimpleMultiObsEnv(random_start=False)),
    ],
    ids=["cnn", "multi-input"],
)
def test_images_and_dictionaries(policy, env):
    model = MaskablePPO(policy, with_masks(env), n_steps=16, batch_size=16, n_epochs=1, seed=0, device="cpu").learn(16)
    assert len(model.policy.action_net.weight) == env.action_space.n - 1
    assert (model.rollout_buffer.actions > 0).all()
    action, _ = model.predict(env.observation_space.sample(), action_masks=[False, False, True, False])
    assert action == 2


def test_save_and_load(kind, tmp_path):
    model = model_for(kind).learn(64)
    model.save(tmp_path / "model")
    model.policy.save(tmp_path / "policy")
    obs, _ = model.policy.obs_to_tensor(np.stack([model.observation_space.sample() for _ in range(8)]))
    masks = random_masks(kind, 8)
    expected = model.policy.get_distribution(obs, masks).catnat.probs
    loaded = MaskablePPO.load(tmp_path / "model", device="cpu").policy
    for policy in (loaded, MaskableCatnatPolicy.load(tmp_path / "policy", device="cpu")):
        assert type(policy) is MaskableCatnatPolicy
        assert (policy.tree, policy.activation) == (TREES[kind], ct.sigmoid())
        assert torch.equal(policy.get_distribution(obs, masks).catnat.probs, expected)
