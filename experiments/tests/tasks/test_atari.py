"""PPO on Atari: estimates and losses against their definitions, the games as ALE plays them, runs that go on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ale_py.vector_env import AtariVectorEnv
from memory import Memory
from torch.nn import functional as F

from catnat_experiments.common.parameterizations import parameterization
from catnat_experiments.engine import loop
from catnat_experiments.engine.search import Search
from catnat_experiments.engine.types import Config
from catnat_experiments.tasks.atari import agent
from catnat_experiments.tasks.atari import games as atari_games
from catnat_experiments.tasks.atari import task as atari
from catnat_experiments.tasks.atari import training as atari_training
from catnat_experiments.tasks.atari.games import Games, Step
from catnat_experiments.tasks.atari.training import METRICS, UNTRAINED, Training

torch.set_num_threads(1)


def small(name: str = "natural", game: str = "breakout", steps: int = 48, **changes: float) -> Config:
    """A run of a second: the real network and games, three short rollouts."""
    sizes = {"num_envs": 2, "num_steps": 8, "num_minibatches": 2, "update_epochs": 1}
    return atari.config(game, name, 1, steps, **{**sizes, **changes})


# ---- estimates and losses ----


def test_advantages_are_the_sums_of_their_definition() -> None:
    stream = np.random.default_rng(0)
    steps, gamma, decay = 9, 0.9, 0.7
    rewards, values = stream.normal(size=steps), stream.normal(size=steps + 1)
    terminal, timed_out = np.zeros(steps, bool), np.zeros(steps, bool)
    terminal[3], timed_out[6] = True, True
    ended = terminal | timed_out
    wanted = []
    for start in range(steps):
        total = 0.0
        for t in range(start, steps):
            following = 0.0 if terminal[t] else values[t + 1]  # at the time limit the last state still has a value
            total += (gamma * decay) ** (t - start) * (rewards[t] + gamma * following - values[t])
            if ended[t]:
                break
        wanted.append(total)
    columns = (torch.from_numpy(part)[:, None] for part in (rewards, values, terminal, ended))
    got = agent.advantages(*columns, gamma, decay)
    assert got[:, 0].tolist() == pytest.approx(wanted)


def test_what_happens_between_two_lives_changes_no_other_advantage() -> None:
    """The step after an end is not learned from: its reward, its value and its own flags must not matter."""
    stream = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(6, 1, generator=stream), torch.randn(7, 1, generator=stream)
    terminal = torch.tensor([False, False, True, False, False, False])[:, None]
    other = rewards.clone()
    other[3] += 5  # the step between
    values_too = values.clone()
    values_too[3] += 7
    first = agent.advantages(rewards, values, terminal, terminal, 0.99, 0.95)
    second = agent.advantages(other, values_too, terminal, terminal, 0.99, 0.95)
    own = [0, 1, 2, 4, 5]
    assert torch.equal(first[own], second[own])
    assert not torch.equal(first[3], second[3])


def test_the_gradient_of_the_policy_loss_is_that_of_the_clipped_objective() -> None:
    """By hand: minus A r log r' over the number of rows, where going on is not already clipped; otherwise 0."""
    clip = 0.1
    ratios = torch.tensor([0.8, 0.8, 1.0, 1.0, 1.3, 1.3], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([1.0, -2.0, 3.0, -1.0, 2.0, -0.5], dtype=torch.float64)
    agent.policy_loss(ratios, advantages, clip).backward()
    wanted = [
        -a / 6 if not ((a > 0 and r > 1 + clip) or (a < 0 and r < 1 - clip)) else 0.0
        for r, a in zip(ratios.tolist(), advantages.tolist(), strict=True)
    ]
    assert ratios.grad is not None
    assert ratios.grad.tolist() == pytest.approx(wanted)


def test_the_value_loss_is_the_larger_of_two_errors() -> None:
    values, before, targets = [1.0, 0.0, 0.3], [0.0, 0.0, 0.0], [0.0, 1.0, 1.0]
    # The first is beyond the clip, but its own error is larger; the last one is clipped to 0.1, which is worse.
    wanted = (1.0 + 1.0 + 0.9**2) / 6
    got = agent.value_loss(*map(torch.tensor, (values, before, targets)), 0.1)
    assert float(got) == pytest.approx(wanted)


@pytest.mark.parametrize("name", ["softmax", "natural"])
@torch.no_grad()
def test_the_loss_is_that_of_the_written_out_objective(name: str) -> None:
    training = Training(small(name, "seaquest", clip_coef=0.02, ent_coef=0.03))
    rollout = training.collect()
    rows = rollout.pick(rollout.own)
    for parameter in training.network.parameters():  # another policy than the one that has acted
        parameter.add_(0.02 * torch.randn(parameter.shape, generator=training.generator))
    network, hidden = training.network, rows.frames.double() / 255
    for place, stride in ((0, 4), (2, 2), (4, 1)):
        layer = network.body[place]
        hidden = F.conv2d(hidden, layer.weight.double(), layer.bias.double(), stride).relu()
    hidden = (hidden.flatten(1) @ network.body[7].weight.double().T + network.body[7].bias.double()).relu()
    scores = hidden @ network.actor.weight.double().T + network.actor.bias.double()
    values = (hidden @ network.critic.weight.double().T + network.critic.bias.double())[:, 0]
    probs = parameterization(name).probs(scores)
    chosen = probs[range(len(rows.actions)), rows.actions]
    total, normal = 0.0, (rows.advantages - rows.advantages.mean()) / (rows.advantages.std() + 1e-8)
    for row, advantage in enumerate(normal.tolist()):
        ratio = float(chosen[row]) / float(rows.log_probs[row].exp())
        total -= min(ratio * advantage, min(max(ratio, 0.98), 1.02) * advantage)
        target, old, new = (float(part[row]) for part in (rows.values + rows.advantages, rows.values, values))
        total += 0.5 * max((new - target) ** 2, (old + min(max(new - old, -0.02), 0.02) - target) ** 2) / 2
        total -= 0.03 * float(torch.special.entr(probs[row]).sum())
    assert float(training.loss(rows)) == pytest.approx(total / len(normal), rel=1e-3)
    assert training.sums["clipped"] > 0  # the case is not a trivial one


# ---- games ----


def random_play(game: str, steps: int, count: int = 2, **options: Any) -> tuple[Games, list[dict[str, Any]]]:
    """A game by random actions, and beside it the same actions in ALE's own environment."""
    stream = np.random.default_rng(1)
    games = Games(game, count, seed=5, **options)
    plain = AtariVectorEnv(game, count, num_threads=1, reward_clipping=False, max_num_frames_per_episode=10**6)
    plain.reset(seed=5)
    seen = []
    for _ in range(steps):
        actions, between = stream.integers(0, games.actions, count), games.between.copy()
        step = games.step(actions)
        frames, rewards, over, _, about = plain.step(np.where(between, 1, actions))  # 1 is FIRE in both games
        seen.append({"between": between, "over": over, "raw": rewards, "lives": about["lives"], "same": frames})
        seen[-1] |= {**step._asdict(), "frames": games.frames, "finished": len(games.returns)}
    return games, seen


def column(seen: list[dict[str, Any]], name: str) -> np.ndarray:
    return np.stack([step[name] for step in seen])


def test_lives_end_episodes_and_games_end_returns() -> None:
    games, seen = random_play("breakout", 500)
    raw, over, lives = column(seen, "raw"), column(seen, "over"), column(seen, "lives")
    assert np.array_equal(column(seen, "frames"), column(seen, "same"))
    assert games.frames.shape == (2, 4, 84, 84)
    assert games.frames.dtype == np.uint8
    assert over.sum() >= 4
    # Returns: all rewards from one end of a game to the next, over five lives.
    wanted = []
    for game in range(2):
        ends = np.flatnonzero(over[:, game])
        starts = [0, *(ends[:-1] + 1)]
        wanted += [raw[start : end + 1, game].sum() for start, end in zip(starts, ends, strict=True)]
    assert sorted(games.returns) == sorted(wanted)
    assert sum(games.returns) > 0
    assert games.points.sum() + sum(games.returns) == raw.sum()
    # Lives: five ends in each game, and after each the step is not the player's.
    terminal = column(seen, "terminal")
    assert np.array_equal(terminal[1:], over[1:] | ((np.diff(lives, axis=0) < 0) & (lives[1:] > 0)))
    assert np.array_equal(column(seen, "between")[1:], terminal[:-1])
    first = np.flatnonzero(over[:, 0])[0]
    assert terminal[: first + 1, 0].sum() == 5


def test_rewards_are_signs_and_returns_are_not() -> None:
    games, seen = random_play("seaquest", 400)
    assert games.actions == 18
    raw = column(seen, "raw")
    assert raw.max() >= 20
    assert np.array_equal(column(seen, "rewards"), (raw > 0).astype(np.float32))
    assert max([*games.returns, *games.points]) >= 20


def test_fire_begins_every_life() -> None:
    """Without FIRE no ball comes: a player who never presses it would not lose a second life."""
    games, ends = Games("breakout", 1, seed=3), 0
    for _ in range(400):
        ends += int(games.step(np.zeros(1, np.int64)).terminal[0])
    assert ends > 5


def test_the_time_limit_ends_a_game_but_is_not_terminal() -> None:
    games = Games("breakout", 1, seed=3, time_limit=80)
    steps = [games.step(np.zeros(1, np.int64)) for _ in range(21)]
    last = steps[19]  # 80 frames, four at a time
    assert (bool(last.ended[0]), bool(last.terminal[0])) == (True, False)
    assert not any(step.ended[0] for step in steps[:19])
    assert len(games.returns) == 1
    assert np.array_equal(games.frames[0, 0], games.frames[0, 2])  # a new game: its first frame, repeated


def test_unknown_game() -> None:
    with pytest.raises(ValueError, match="'Breakout', but ale-py has no such game"):
        Games("Breakout", 1, seed=1)


# ---- runs ----


def test_rollouts_leave_out_what_the_player_did_not_do() -> None:
    training = Training(small(num_steps=100))
    first, second = training.collect(), training.collect()
    own = torch.cat((first.own, second.own))
    assert 0 < int((~own).sum()) < 20
    rows = second.pick(second.own)
    assert len(rows.actions) == int(second.own.sum())
    assert int((~first.own[0]).sum()) == 0
    # What was seen is what was played, and log-probabilities are those of the actions that were drawn.
    log_probs = training.kind.log_probs(training.network(rows.frames)[0].detach())
    assert torch.allclose(log_probs.gather(-1, rows.actions[:, None])[:, 0], rows.log_probs, atol=1e-5)


@pytest.mark.parametrize("name", atari.ALL)
def test_every_parameterization_runs(name: str) -> None:
    [outcome] = atari.EXPERIMENT.train([small(name, "seaquest")], Memory())
    assert list(outcome.metrics) == list(METRICS)
    assert np.isfinite([outcome.metrics[key] for key in METRICS if key != "return"]).all()
    assert outcome.metrics["entropy"] == pytest.approx(np.log(18), abs=0.02)  # it starts near uniform
    assert outcome.metrics["kl"] > 0


def test_what_a_run_leaves() -> None:
    [outcome] = atari.EXPERIMENT.train([small(num_steps=128, steps=512)], Memory())
    assert outcome.metrics["games"] >= 1
    assert 0 <= outcome.metrics["return"] < 20
    assert outcome.history["step"] == [256, 512]


def test_the_untrained_network_stays_as_it_starts() -> None:
    training = Training(small(UNTRAINED, update_epochs=0))
    before = {name: tensor.clone() for name, tensor in training.network.state_dict().items()}
    training.advance()
    assert all(torch.equal(before[name], tensor) for name, tensor in training.network.state_dict().items())


def test_a_run_that_diverged_ends_without_a_return() -> None:
    training = Training(small())
    training.returns = [1.0]
    with torch.no_grad():
        training.network.actor.weight[0, 0] = torch.nan
    loop.resume_training(training, Memory())
    assert training.step == training.steps
    assert np.isnan(training.metrics()["return"])


@pytest.mark.slow
def test_a_checkpoint_keeps_all_but_the_games(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    run = small(num_steps=128, steps=1024)
    broken = Memory(break_at=2)
    with pytest.raises(KeyboardInterrupt):
        atari.EXPERIMENT.train([run], broken)
    kept = broken.state
    assert (kept["step"], kept["history"]["step"]) == (2, [256, 512])
    assert kept["finished_games"] == len(kept["returns"]) > 0
    [outcome] = atari.EXPERIMENT.train([run], Memory(kept))
    assert outcome.history["step"] == [256, 512, 768, 1024]
    assert outcome.history["entropy"][:2] == kept["history"]["entropy"]
    assert outcome.metrics["games"] > kept["finished_games"]


class Signs:
    """A game that takes no skill: the picture says which action gets the reward, and every tenth step ends a life."""

    actions = 4

    def __init__(self, game: str, count: int, seed: int) -> None:
        self._stream = np.random.default_rng(seed)
        self.between, self.points, self.returns = np.zeros(count, bool), np.zeros(count), []
        self._show()

    def _show(self) -> None:
        count = len(self.points)
        self._wanted = self._stream.integers(0, self.actions, count)
        self.frames = np.zeros((count, 4, 84, 84), np.uint8)
        for game, action in enumerate(self._wanted):
            self.frames[game, :, :, 21 * action : 21 * action + 21] = 255

    def step(self, actions: np.ndarray) -> Step:
        rewards = (actions == self._wanted).astype(np.float32)
        self.returns += rewards.tolist()
        ended = self._stream.random(len(actions)) < 0.1
        self._show()
        return Step(rewards, ended, ended)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "natural"])
def test_training_learns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (atari_games, atari_training):
        monkeypatch.setattr(module, "Games", Signs)
    run = small(name, num_envs=8, num_steps=16, num_minibatches=4, update_epochs=4, steps=128 * 12)
    [outcome] = atari.EXPERIMENT.train([run], Memory())
    assert outcome.metrics["return"] > 0.6  # 0.25 at random, and hundreds of draws
    assert outcome.history["entropy"][0] > outcome.history["entropy"][-1]


# ---- presets, tables, figures ----


def test_the_papers_protocol() -> None:
    """160 trials for two methods and two games, then the best ten with ten seeds: 8.3e9 steps with 8e6 a run."""
    search, final = atari.EXPERIMENT.stages("paper")
    assert isinstance(search, Search)
    assert (search.expected_runs, final.expected_runs) == (4 * 160, 4 * 100 + 2)
    assert all(base["steps"] == 8_000_000 for base in search.bases)


def test_every_table_is_of_a_metric() -> None:
    for table in atari.TABLES:
        assert table.metric in METRICS
        assert {curve.name for curve in table.curves} <= set(METRICS)
