"""The policies for Stable-Baselines3, against the real library: its own distributions, PPO, A2C, and contrib's TRPO."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import oracle
import pytest
import scipy.stats
import torch

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

WEIGHTS = [5.0, 3.0, 2.0, 1.0, 1.0]
TREE = catnat.huffman(WEIGHTS)
FOREST = catnat.Forest([3, catnat.chain(4), 2])
ACTIVATIONS = {"natural": oracle.Natural(), "sigmoid": oracle.Sigmoid()}
SPACES = {"discrete": spaces.Discrete(5), "multi": spaces.MultiDiscrete(FOREST.sizes)}
TREES = {"discrete": TREE, "multi": FOREST}


@pytest.fixture(params=SPACES)
def kind(request):
    return request.param


@pytest.fixture(params=ACTIVATIONS)
def activation(request):
    return request.param


def scores_for(kind, rows=6, seed=0):
    return torch.as_tensor(np.random.default_rng(seed).normal(size=(rows, TREES[kind].num_nodes)), dtype=torch.float64)


def probabilities(kind, activation, scores):
    """Of every class of every variable, by the oracle's loops: (rows, classes) for each variable."""
    single = kind == "discrete"
    trees, weights = ([TREE], [WEIGHTS]) if single else (FOREST.trees, [[1.0] * size for size in FOREST.sizes])
    parts = scores.detach().numpy().astype(np.float64)
    parts = np.split(parts, np.cumsum([tree.num_nodes for tree in trees])[:-1], -1)
    models = [
        oracle.Model(oracle.from_ids(tree.child_ids), prior, ACTIVATIONS[activation])
        for tree, prior in zip(trees, weights, strict=True)
    ]
    return [np.stack([model.probs(row) for row in part]) for model, part in zip(models, parts, strict=True)]


def ours_and_theirs(kind, activation, scores):
    """Our distribution, and SB3's own one of the probabilities that the oracle finds."""
    logits = torch.as_tensor(np.concatenate(probabilities(kind, activation, scores), -1)).log()
    if kind == "discrete":
        mine, reference = CatnatDistribution(TREE, activation), theirs.CategoricalDistribution(5)
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
    assert mine.sample().shape == actions.shape
    assert mine.sample().dtype == actions.dtype


def test_divergence_is_sb3s(kind, activation):
    """Between two of ours as between two of theirs; a list of one is enough for SB3's sum over variables."""
    (p, p_reference), (q, q_reference) = (ours_and_theirs(kind, activation, scores_for(kind, seed=s)) for s in (1, 2))
    torch.testing.assert_close(theirs.kl_divergence(p, q), theirs.kl_divergence(p_reference, q_reference))


def test_draws(kind, activation):
    """Frequencies by a chi-square test that raises a false alarm once in a million."""
    torch.manual_seed(0)
    scores = scores_for(kind, rows=1)
    mine, _ = ours_and_theirs(kind, activation, scores)
    drawn = mine.proba_distribution(scores.expand(20_000, -1)).sample().reshape(20_000, -1).numpy()
    for column, (p,) in zip(drawn.T, probabilities(kind, activation, scores), strict=True):
        found = np.bincount(column, minlength=p.size)
        assert scipy.stats.chisquare(found, p / p.sum() * column.size).pvalue > 1e-6


def test_the_last_layer_makes_logits(kind, activation):
    """What is exported in place of the policy: argmax and softmax of the layer's output are the distribution's."""
    mine, _ = ours_and_theirs(kind, activation, scores_for(kind))
    layer, features = mine.proba_distribution_net(4).double(), torch.randn(7, 4, dtype=torch.float64)
    held = mine.proba_distribution(layer.scores(features)).catnat
    torch.testing.assert_close(layer(features), held.logits)
    assert layer.out_features == TREES[kind].num_classes


def test_extreme_scores_are_harmless(kind, activation):
    """Finite values and gradients where the network has gone far out of the natural activation's band."""
    scores = (1e4 * scores_for(kind)).float().requires_grad_()
    cls = CatnatDistribution if kind == "discrete" else MultiCatnatDistribution
    mine = cls(TREES[kind], activation).proba_distribution(scores)
    other = mine.mode().flip(0)
    assert (mine.entropy().abs() < 1e-4).all()
    (mine.log_prob(other) + mine.entropy()).sum().backward()
    assert mine.log_prob(other).isfinite().all()
    assert scores.grad.isfinite().all()


def test_from_parameters(kind):
    mine, _ = ours_and_theirs(kind, "natural", scores_for(kind))
    other = scores_for(kind, seed=3)
    actions, log_prob = mine.log_prob_from_params(other)
    again, _ = ours_and_theirs(kind, "natural", other)
    torch.testing.assert_close(log_prob, again.log_prob(actions))
    assert torch.equal(mine.actions_from_params(other, deterministic=True), again.mode())


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
    trees = [TREE] if kind == "discrete" else FOREST.trees
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
    divergence = sum((p * np.log(p / q)).sum(-1) for p, q in zip(new, old, strict=True)).mean()
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


# ---- errors ----


@pytest.mark.parametrize(
    ("space", "options", "error", "message"),
    [
        (spaces.Box(-1, 1, (2,)), {}, ValueError, r"`action_space` is Box.*spaces\.Discrete"),
        (spaces.MultiBinary(3), {}, ValueError, r"MultiDiscrete\(\[2\] \* n\)"),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), {}, ValueError, "with one axis"),
        (SPACES["discrete"], {"tree": catnat.balanced(4)}, ValueError, "over 4 classes, but there are 5 actions"),
        (SPACES["discrete"], {"tree": 4}, ValueError, "over 4 classes, but there are 5 actions"),
        (SPACES["discrete"], {"tree": [5]}, TypeError, r"`tree` is \[5\].*catnat\.balanced\(5\)"),
        (SPACES["discrete"], {"activation": "tanh"}, ValueError, "'natural', 'sigmoid'"),
        (SPACES["multi"], {"tree": TREE}, TypeError, "a tree for every variable"),
        (SPACES["multi"], {"tree": 3}, TypeError, "a tree for every variable"),
        (SPACES["multi"], {"tree": [3, 4]}, ValueError, r"over \(3, 4\) classes, but there are \(3, 4, 2\) actions"),
    ],
)
def test_errors(space, options, error, message):
    with pytest.raises(error, match=message):
        CatnatPolicy(spaces.Box(-1, 1, (3,)), space, lambda _: 1e-3, **options)


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


def test_trees_of_several_variables_may_be_a_list():
    policy = CatnatPolicy(spaces.Box(-1, 1, (3,)), SPACES["multi"], lambda _: 1e-3, tree=[3, catnat.chain(4), 2])
    assert policy.tree == FOREST


def test_missing_library_says_which_extra_to_install():
    code = "import sys; sys.modules['stable_baselines3'] = None; import catnat.integrations.stable_baselines3"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "catnat[sb3]" in done.stderr.strip().splitlines()[-1]
