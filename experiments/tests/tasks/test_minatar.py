"""PPO on MinAtar: estimators and losses against loops and dense algebra, lanes against each other, runs that go on."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from memory import Memory, assert_goes_on, assert_tables_fit

from catnat_experiments.engine import provenance
from catnat_experiments.engine.records import run_id
from catnat_experiments.engine.search import Search
from catnat_experiments.engine.types import Config
from catnat_experiments.tasks.minatar import ppo, training
from catnat_experiments.tasks.minatar import task as minatar
from catnat_experiments.tasks.minatar.ppo import POLICIES

SCORES = np.random.default_rng(0).normal(size=(6, 5)) * 0.7
ACTIONS = np.array([0, 4, 2, 1, 3, 2])
ADVANTAGES = np.array([1.0, -2.0, 0.3, 0.0, 1.5, -0.8])
MIDDLE: Config = {"rate": 1e-3, "clip": 0.2, "entropy": 0.01}


def small(**changes: str | int | float) -> Config:
    """A run of three small updates."""
    run = minatar.config("Breakout", "natural", 1, steps=3 * 4 * 8, **MIDDLE)
    return {**run, "envs": 4, "length": 8, "epochs": 2, "minibatches": 2, "hidden": 8, **changes}


class Facts(NamedTuple):
    """What a policy says about six states with five actions; the last three from enumeration, in float64."""

    scores: Any
    entropy: Any
    divergence: Any  # from the rows in reverse order
    replaced: Any  # the gradient of the policy's loss in the scores, as the policy replaces it
    probs: Any
    fisher: Any  # by its definition
    gradient: Any  # of the policy's loss in the scores


@functools.cache
def facts(name: str) -> Facts:
    """In one program: compilation takes most of the time."""
    policy, scores = POLICIES[name], jnp.array(SCORES[:, : POLICIES[name].num_scores(5)])

    def log_probs(scores: Any) -> Any:
        return jnp.stack([policy.distribution(scores).log_prob(jnp.array(action)) for action in range(5)])

    def loss(scores: Any) -> Any:
        return -(jnp.array(ADVANTAGES) * policy.distribution(policy.wrap(scores)).log_prob(jnp.array(ACTIONS))).sum()

    @jax.jit
    def program(scores: Any) -> tuple[Any, ...]:
        actions = policy.distribution(scores)
        divergence = actions.kl_divergence(policy.distribution(scores[::-1]))
        enumerated = jax.vmap(log_probs)(scores), jax.vmap(jax.jacobian(log_probs))(scores)
        return actions.entropy(), divergence, jax.grad(loss)(scores), *enumerated

    entropy, divergence, replaced, logs, jacobian = (np.array(values, np.float64) for values in program(scores))
    fisher = np.einsum("bk,bki,bkj->bij", np.exp(logs), jacobian, jacobian)
    gradient = -ADVANTAGES[:, None] * jacobian[np.arange(6), ACTIONS]
    return Facts(scores, entropy, divergence, replaced, np.exp(logs), fisher, gradient)


# ---- advantages and losses ----


def test_advantages_are_the_discounted_sums_of_their_definition() -> None:
    steps, envs = 9, 3
    stream = np.random.default_rng(1)
    rewards, values, next_values = stream.normal(size=(3, steps, envs))
    terminated = stream.random((steps, envs)) < 0.2
    ended = terminated | (stream.random((steps, envs)) < 0.2)
    assert (ended & ~terminated).any()  # a time limit
    found = ppo.advantages(*map(jnp.array, (rewards, values, next_values, terminated, ended)))
    for t in range(steps):
        for e in range(envs):
            total = 0.0
            for later in range(t, steps):
                bootstrap = 0.0 if terminated[later, e] else 0.99 * next_values[later, e]
                total += (0.99 * 0.95) ** (later - t) * (rewards[later, e] + bootstrap - values[later, e])
                if ended[later, e]:
                    break
            assert float(found[t, e]) == pytest.approx(total, abs=1e-5)


@pytest.mark.parametrize("name", ["softmax-damped-gradient", "natural-damped-gradient"])
def test_the_actors_loss_by_hand(name: str) -> None:
    """On a network of one layer that only knows which state it is in."""
    found, clip, bonus = facts(name), 0.1, 0.03
    layers = [(found.scores, jnp.zeros(found.scores.shape[1]))]
    old = np.log(found.probs[np.arange(6), ACTIONS]) + np.array([0.3, -0.3, 0.05, 0.3, -0.3, 0.3])
    batch = ppo.Batch(jnp.eye(6), jnp.array(ACTIONS), jnp.array(old), jnp.array(ADVANTAGES), jnp.zeros(6), None)
    knobs = ppo.Knobs(*map(jnp.array, (0.0, clip, bonus, 1.0)))
    wanted = 0.0
    for probs, action, before, advantage in zip(found.probs, ACTIONS, old, ADVANTAGES, strict=True):
        ratio = probs[action] / math.exp(before)
        kept = min(ratio, 1 + clip) if advantage > 0 else max(ratio, 1 - clip)
        wanted += (-kept * advantage + bonus * (probs * np.log(probs)).sum()) / 6
    agent = ppo.Learner("Breakout", POLICIES[name], ppo.Sizes(4, 8, 2, 2, 8))
    assert float(jax.jit(agent.actor_loss)(layers, batch, knobs)) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("name", ["softmax-damped-gradient", "natural-damped-gradient"])
def test_natural_gradients_solve_with_the_fisher_matrix(name: str) -> None:
    found = facts(name)
    damped = found.fisher + 0.01 * np.eye(found.fisher.shape[-1])
    wanted = np.linalg.solve(damped, found.gradient[..., None])[..., 0]
    np.testing.assert_allclose(found.replaced, wanted, rtol=2e-3, atol=1e-4)
    assert np.abs(wanted - found.gradient).max() > 0.1  # the plain gradient is another one


@pytest.mark.parametrize("name", ["sigmoid-trust-region"])
def test_aims_are_natural_gradient_steps_of_the_wanted_mean_divergence(name: str) -> None:
    clip, policy, found = 0.02, POLICIES[name], facts(name)

    @jax.jit
    def program(old: Any) -> tuple[Any, ...]:
        aim = ppo.aims(policy, old, jnp.array(ACTIONS), jnp.array(ADVANTAGES), jnp.array(clip))
        slope = jax.grad(lambda scores: ppo.aim_loss(scores, aim).sum())
        return aim.scores, slope(old), slope(aim.scores), policy.distribution(aim.scores).probs

    aim, at_old, at_aim, after = (np.array(values, np.float64) for values in program(found.scores))
    natural = np.linalg.solve(found.fisher, found.gradient[..., None])[..., 0]
    square = (found.gradient * natural).sum(-1)
    divergence = (found.probs * np.log(found.probs / after)).sum(-1)
    np.testing.assert_allclose(divergence, clip * square / square.mean(), rtol=0.02, atol=1e-5)
    step = aim - np.array(found.scores, np.float64)
    lengths = np.linalg.norm(step, axis=-1) / np.maximum(np.linalg.norm(natural, axis=-1), 1e-9)
    np.testing.assert_allclose(step, -lengths[:, None] * natural, atol=1e-4)
    # One length for all, to second order. At the old scores the loss has the policy gradient; at the aim, none.
    shared = math.sqrt(2 * clip / square.mean())
    np.testing.assert_allclose(lengths[ADVANTAGES != 0], shared, rtol=0.35)
    np.testing.assert_allclose(at_old, found.gradient * (lengths / shared)[:, None], atol=1e-3)
    assert not at_aim.any()


def test_softmax_has_no_closed_trust_region() -> None:
    with pytest.raises(ValueError, match="diagonal Fisher matrix"):
        ppo.aims(POLICIES["softmax"], *map(jnp.array, (SCORES, ACTIONS, ADVANTAGES, 0.1)))


@pytest.mark.parametrize("name", ["softmax-damped-gradient", "natural-damped-gradient", "sigmoid-trust-region"])
def test_entropies_and_divergences_are_sums_over_actions(name: str) -> None:
    found = facts(name)
    np.testing.assert_allclose(found.probs.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(found.entropy, -(found.probs * np.log(found.probs)).sum(-1), rtol=1e-4)
    wanted = (found.probs * np.log(found.probs / found.probs[::-1])).sum(-1)
    np.testing.assert_allclose(found.divergence, wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("name", "far"), [("natural", True), ("sigmoid", False)])
def test_saturated_scores_are_those_of_certain_nodes(name: str, far: bool) -> None:
    np.testing.assert_array_equal(
        POLICIES[name].saturated(jnp.array([0.0, 10.0, -1.0, 0.0])), [False, far, False, False]
    )
    saturated = POLICIES["softmax"].saturated(jnp.array([0.0, -200.0, 1.0]))
    np.testing.assert_array_equal(saturated, [False, True, False])


# ---- playing ----


@pytest.mark.slow
def test_what_was_played_fits_together() -> None:
    """Breakout ends after nine steps without a hit: episodes end, their returns are the sums of their rewards."""
    agent = ppo.Learner("Breakout", POLICIES["softmax"], ppo.Sizes(4, 60, 1, 1, 8))
    run, played = jax.jit(lambda seed, key: agent.play(agent.start(seed), key))(3, jax.random.key(0))
    ended, reward = np.array(played.ended), np.array(played.reward)
    assert ended.sum() > 8
    running = np.zeros(4)
    for t in range(len(ended)):
        running += reward[t]
        np.testing.assert_allclose(played.episode_return[t], np.where(ended[t], running, 0))
        running[ended[t]] = 0
    np.testing.assert_allclose(run.returns, running)
    followers = np.concatenate([np.array(played.observation)[1:], np.array(run.observation)[None]])
    same = (np.array(played.next_observation) == followers).all((2, 3, 4))
    assert (same == ~ended)[ended == 0].all()  # where an episode goes on, the next observation is the one seen next
    assert not same[ended].all()
    np.testing.assert_array_equal(played.terminated, ended)  # nobody comes to 1,000 steps
    wanted = jax.nn.log_softmax(played.scores)
    taken = jnp.take_along_axis(wanted, played.action[..., None], -1)[..., 0]
    np.testing.assert_allclose(played.log_prob, taken, rtol=1e-5)


# ---- runs ----


@pytest.mark.slow
def test_a_run_does_not_depend_on_the_runs_beside_it_and_repeats() -> None:
    first, second = small(seed=1), small(seed=2, rate=0.01)
    together = training.train([first, second], Memory())
    assert training.train([second, first], Memory()) == together[::-1]
    assert training.train([small(seed=7), second], Memory())[1] == together[1]
    assert together[0] != together[1]


@pytest.mark.slow
def test_a_run_alone_has_the_numbers_of_a_lane() -> None:
    [alone] = training.train([small(seed=1)], Memory())
    beside = training.train([small(seed=1), small(seed=2)], Memory())[0]
    for name, values in alone.history.items():
        np.testing.assert_allclose(values, beside.history[name], rtol=1e-3, atol=1e-5)


def test_a_run_of_the_search_is_the_mean_of_its_seeds() -> None:
    [mean] = training.train([small(seed=4, seeds=2)], Memory())
    lanes = training.train([small(seed=4), small(seed=5)], Memory())
    for name in ("entropy", "dead", "divergence"):
        assert mean.metrics[name] == pytest.approx(sum(lane.metrics[name] for lane in lanes) / 2)
    assert mean.history["episodes"] == [
        a + b for a, b in zip(*(lane.history["episodes"] for lane in lanes), strict=True)
    ]


@pytest.mark.parametrize("step", [1, 2])
def test_a_run_broken_off_goes_on_to_the_same_bits(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [small(seed=1), small(seed=2, clip=0.4)]
    assert_goes_on(lambda checkpointer: training.train(runs, checkpointer), step, monkeypatch)


def test_metrics_are_those_of_the_last_points() -> None:
    rest = {name: [1.0, 2.0, 3.0] for name in ("entropy", "dead", "divergence")}
    found = training.metrics_of({"episodes": [4.0, 1.0, 3.0], "return": [9.0, 2.0, 6.0], **rest})
    assert found["return"] == (1 * 2 + 3 * 6) / 4
    assert found["return_all"] == (9 + 2 + 6) / 3
    assert found["entropy"] == 3.0
    none = training.metrics_of({"episodes": [2.0, 0.0, 0.0], "return": [5.0, math.nan, math.nan], **rest})
    assert math.isnan(none["return"])
    assert none["return_all"] == 5.0


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(ValueError, match="`seed`, `rate`, `clip`, `entropy` only"):
        training.train([small(), small(game="SpaceInvaders")], Memory())
    with pytest.raises(ValueError, match="`minibatches` is 5, but it must divide the 32 steps"):
        training.train([small(minibatches=5)], Memory())
    with pytest.raises(ValueError, match=r"`steps` is 31, but .* at least 32"):
        training.train([small(steps=31)], Memory())
    with pytest.raises(ValueError, match="'Pong', but one of these is needed: Breakout"):
        training.train([small(game="Pong")], Memory())
    with pytest.raises(ValueError, match="'tanh', but one of these is needed: softmax"):
        training.train([small(parameterization="tanh")], Memory())


# ---- presets and tables ----


@pytest.mark.parametrize("preset", minatar.PRESETS)
def test_the_best_point_of_each_cell_gets_all_final_seeds(preset: str) -> None:
    size = minatar.PRESETS[preset]
    search, final = minatar.EXPERIMENT.stages(preset)
    assert isinstance(search, Search)
    assert not isinstance(final, Search)
    tried = [{**base, **MIDDLE, "rate": rate} for base in search.bases for rate in (0.001, 0.002, 0.004)]
    rows = [{"id": run_id(run), "config": run, "metrics.return": 1.0 if run["rate"] == 0.002 else 0.5} for run in tried]
    runs = final.runs(pd.DataFrame(rows))
    assert {run["rate"] for run in runs} == {0.002}
    assert {int(run["seed"]) for run in runs}.isdisjoint(range(size.search_seeds))
    groups = minatar.EXPERIMENT.groups(runs)
    assert {len(group) for group in groups} == {min(size.seeds, 10)}
    assert all(len({run_id(training.shared_config(run)) for run in group}) == 1 for group in groups)


def test_every_table_is_of_a_metric_and_of_curves_that_runs_have() -> None:
    [outcome, _] = training.train([small(seed=1), small(seed=2)], Memory())
    assert set(outcome.metrics) == set(training.METRICS)
    assert_tables_fit(minatar.TABLES, small(), outcome)


def test_records_note_the_versions_of_jax_and_of_the_games() -> None:
    assert provenance.versions(*minatar.EXPERIMENT.packages)["jax"] == jax.__version__
    assert "gymnax" not in provenance.versions()


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_ppo_learns_breakout(name: str) -> None:
    """A random player gets 0.5; 60,000 steps are enough for several times that."""
    run = {**minatar.config("Breakout", name, 0, steps=61_440, seeds=2), **MIDDLE, "rate": 0.0025}
    [outcome] = training.train([run], Memory())
    assert outcome.history["return"][0] < 1
    assert outcome.metrics["return"] > 2
