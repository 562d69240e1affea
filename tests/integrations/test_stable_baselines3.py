"""The policies for Stable-Baselines3, against the real library: its own distributions, PPO, A2C, and contrib's TRPO."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from integrations.policies import ACTIVATIONS, FOREST, TREES, probabilities, scores_for

import catnat
import catnat.torch as ct

pytest.importorskip("stable_baselines3", minversion="2.7")
from gymnasium import spaces
from stable_baselines3 import A2C, PPO
from stable_baselines3.common import distributions as theirs
from stable_baselines3.common.envs import FakeImageEnv, IdentityEnv, SimpleMultiObsEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv

from catnat.integrations.stable_baselines3 import (
    CatnatCnnPolicy,
    CatnatDistribution,
    CatnatMultiInputPolicy,
    CatnatPolicy,
    MultiCatnatDistribution,
)

SPACES = {"discrete": spaces.Discrete(5), "multi": spaces.MultiDiscrete(FOREST.sizes)}


@pytest.fixture(params=SPACES)
def kind(request):
    return request.param


@pytest.fixture(params=ACTIVATIONS)
def activation(request):
    return request.param


def ours_and_theirs(kind, activation, scores):
    """Our distribution, and SB3's own one of the probabilities that the oracle finds."""
    logits = torch.as_tensor(probabilities(kind, activation, scores)).log()
    if kind == "discrete":
        mine, reference = CatnatDistribution(TREES[kind], activation), theirs.CategoricalDistribution(5)
    else:
        mine = MultiCatnatDistribution(FOREST, activation)
        reference = theirs.MultiCategoricalDistribution(list(FOREST.sizes))
    return mine.proba_distribution(scores), reference.proba_distribution(logits)


def env_of(kind, **options):
    return IdentityEnv(space=SPACES[kind], **options)


def ppo(policy, env, **options):
    return PPO(policy, env, **{"n_steps": 64, "batch_size": 32, "n_epochs": 2, "seed": 0, "device": "cpu"} | options)


def parameters(model):
    return torch.nn.utils.parameters_to_vector(model.policy.parameters()).detach().clone()


# ---- distributions ----


def test_they_are_sb3s_with_the_trees_probabilities(kind, activation):
    mine, reference = ours_and_theirs(kind, activation, scores_for(kind))
    assert isinstance(mine, type(reference))
    actions = reference.sample()
    torch.testing.assert_close(mine.log_prob(actions), reference.log_prob(actions))
    # As SB3's buffers hand them.
    torch.testing.assert_close(mine.log_prob(actions.float()), reference.log_prob(actions))
    torch.testing.assert_close(mine.entropy(), reference.entropy())
    assert torch.equal(mine.mode(), reference.mode())
    assert torch.equal(mine.get_actions(deterministic=True), reference.mode())
    assert (mine.sample().shape, mine.sample().dtype) == (actions.shape, actions.dtype)
    drawn, log_prob = mine.log_prob_from_params(mine.catnat.scores)
    torch.testing.assert_close(log_prob, mine.log_prob(drawn))


def test_divergence_is_sb3s(kind, activation):
    """Between two of ours as between two of theirs; a list of one is enough for SB3's sum over variables."""
    (p, p_reference), (q, q_reference) = (ours_and_theirs(kind, activation, scores_for(kind, seed=s)) for s in (1, 2))
    torch.testing.assert_close(theirs.kl_divergence(p, q), theirs.kl_divergence(p_reference, q_reference))


def test_the_last_layer_makes_logits(kind, activation):
    """What is exported in place of the policy: argmax and softmax of the layer's output are the distribution's."""
    mine, _ = ours_and_theirs(kind, activation, scores_for(kind))
    layer, features = mine.proba_distribution_net(4).double(), torch.randn(7, 4, dtype=torch.float64)
    held = mine.proba_distribution(layer.scores(features)).catnat
    torch.testing.assert_close(layer(features), held.logits)
    assert layer.out_features == TREES[kind].num_classes


# ---- policies ----


@pytest.mark.parametrize(
    ("policy", "env"),
    [
        (CatnatPolicy, IdentityEnv(dim=4)),
        (CatnatPolicy, env_of("multi")),
        (CatnatCnnPolicy, FakeImageEnv(screen_height=36, screen_width=36, action_dim=4, n_channels=1)),
        (CatnatMultiInputPolicy, SimpleMultiObsEnv(random_start=False)),
    ],
    ids=["mlp", "mlp-multi", "cnn", "multi-input"],
)
def test_shapes(policy, env):
    model = ppo(policy, env, n_steps=8, batch_size=8, n_epochs=1)
    sizes = [int(env.action_space.n)] if isinstance(env.action_space, spaces.Discrete) else env.action_space.nvec
    assert len(model.policy.action_net.weight) == sum(sizes) - len(sizes)
    model.learn(8)
    obs = model.get_env().reset()
    actions, _ = model.predict(obs)
    assert actions.shape == (1, *env.action_space.shape)
    assert env.action_space.contains(actions[0])
    tensors, _ = model.policy.obs_to_tensor(obs)
    values, log_prob, entropy = model.policy.evaluate_actions(tensors, torch.as_tensor(actions))
    assert (values.shape, log_prob.shape, entropy.shape) == ((1, 1), (1,), (1,))


def test_it_starts_at_the_prior(kind):
    """SB3 makes the last layer's weights small, and zero scores mean the prior."""
    model = ppo(CatnatPolicy, env_of(kind), policy_kwargs={"tree": TREES[kind]})
    obs, _ = model.policy.obs_to_tensor(model.get_env().reset())
    probs = model.policy.get_distribution(obs).catnat.probs
    trees = [TREES[kind]] if kind == "discrete" else FOREST.trees
    np.testing.assert_allclose(probs[0].detach(), np.concatenate([tree.prior for tree in trees]), atol=0.01)


def test_one_update(kind, activation):
    """The buffer's log-probabilities are those of the policy before the update; the update moves every layer."""
    options = {"tree": TREES[kind], "activation": activation}
    for algorithm, settings in ((PPO, {"n_steps": 64, "batch_size": 64, "n_epochs": 1}), (A2C, {"n_steps": 16})):
        model = algorithm(CatnatPolicy, env_of(kind), policy_kwargs=options, seed=0, device="cpu", **settings)
        before = {name: each.detach().clone() for name, each in model.policy.named_parameters()}
        _, callback = model._setup_learn(100)
        model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
        batch = next(model.rollout_buffer.get(None))
        actions = batch.actions.long().flatten() if kind == "discrete" else batch.actions
        _, log_prob, entropy = model.policy.evaluate_actions(batch.observations, actions)
        torch.testing.assert_close(log_prob, batch.old_log_prob)
        assert (entropy > 0).all()
        model.train()
        for name, each in model.policy.named_parameters():
            assert each.isfinite().all()
            assert not torch.equal(each, before[name]), name


def test_it_learns(kind):
    """The action that the observation names: 1 a step, 100 an episode, for the right one."""
    settings = {"n_steps": 32, "batch_size": 64, "n_epochs": 10, "learning_rate": 5e-3, "gamma": 0.0}
    model = ppo(CatnatPolicy, DummyVecEnv([lambda: env_of(kind)] * 8), policy_kwargs={"net_arch": [32]}, **settings)
    model.learn(1536)
    reward, _ = evaluate_policy(model, env_of(kind), n_eval_episodes=1, warn=False)
    assert reward > 90  # one action in five, or in 24, is right


@pytest.mark.one_row
def test_trpo_makes_a_step_of_the_given_divergence(kind, activation):
    trpo = pytest.importorskip("sb3_contrib").TRPO
    model = trpo(
        CatnatPolicy,
        env_of(kind),
        policy_kwargs={"tree": TREES[kind], "activation": activation},
        n_steps=256,
        batch_size=256,
        target_kl=0.01,
        seed=0,
        device="cpu",
    )
    _, callback = model._setup_learn(256)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
    obs = next(model.rollout_buffer.get(None)).observations

    def distributions():
        scores = model.policy.get_distribution(obs).catnat.scores
        return probabilities(kind, activation, scores)

    old = distributions()
    model.train()
    new = distributions()
    divergence = (new * np.log(new / old)).sum(-1).mean()
    assert model.logger.name_to_value["train/is_line_search_success"] == 1
    np.testing.assert_allclose(model.logger.name_to_value["train/kl_divergence_loss"], divergence, rtol=1e-3)
    assert 0.002 < divergence < 0.01
    assert model.logger.name_to_value["train/policy_objective"] > 0


# ---- files ----


@pytest.mark.parametrize("options", ["defaults", "all"])
def test_save_and_load(kind, options, tmp_path):
    narrow = ct.natural(width=3.0)
    given = {} if options == "defaults" else {"tree": TREES[kind], "activation": narrow, "net_arch": [16]}
    model = ppo(CatnatPolicy, env_of(kind), policy_kwargs=given).learn(64)
    model.save(tmp_path / "model")
    model.policy.save(tmp_path / "policy")
    obs, _ = model.policy.obs_to_tensor(np.stack([SPACES[kind].sample() for _ in range(8)]))
    expected = model.policy.get_distribution(obs).catnat
    loaded = PPO.load(tmp_path / "model", env=env_of(kind), device="cpu")
    for policy in (loaded.policy, CatnatPolicy.load(tmp_path / "policy", device="cpu")):
        assert type(policy) is CatnatPolicy
        assert (policy.tree, policy.activation) == (model.policy.tree, model.policy.activation)
        assert torch.equal(policy.get_distribution(obs).catnat.probs, expected.probs)
    if options == "all":
        assert (loaded.policy.tree, loaded.policy.activation) == (TREES[kind], narrow)
    # Adam's state is saved too: the next update on the same rollout is the same.
    loaded.rollout_buffer = model.rollout_buffer
    loaded.set_logger(model.logger)
    for each in (model, loaded):
        np.random.seed(1)  # noqa: NPY002 - SB3 shuffles by it
        each.train()
    assert torch.equal(parameters(model), parameters(loaded))


def test_weights_of_other_trees_are_refused(kind):
    def policy(**options):
        return CatnatPolicy(spaces.Box(-1, 1, (3,)), SPACES[kind], lambda _: 1e-3, **options)

    saved = policy(activation="sigmoid").state_dict()
    policy(activation="sigmoid").load_state_dict(saved)
    with pytest.raises(RuntimeError, match="action_net: The checkpoint is of a layer with the activation"):
        policy(activation="natural").load_state_dict(saved)
    others = catnat.chain(5) if kind == "discrete" else [catnat.chain(3), 4, 2]
    with pytest.raises(RuntimeError, match="action_net: The checkpoint is of a layer with the tree"):
        policy(activation="sigmoid", tree=others).load_state_dict(saved)
    softmax = ActorCriticPolicy(spaces.Box(-1, 1, (3,)), SPACES[kind], lambda _: 1e-3).state_dict()
    with pytest.raises(RuntimeError, match=r"one per class, as a softmax layer has.*checkpoints\.from_softmax"):
        policy().load_state_dict(softmax)
