"""The world model: its world against a second definition, its loss against two halves by hand, runs that repeat."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from memory import Memory, assert_goes_on, assert_tables_fit, final_row
from scipy import stats
from torch import Tensor

from catnat_experiments.common.parameterizations import PARAMETERIZATIONS, parameterization
from catnat_experiments.engine.types import Config, Outcome
from catnat_experiments.tasks.world import environment
from catnat_experiments.tasks.world import task as world
from catnat_experiments.tasks.world import training as world_training
from catnat_experiments.tasks.world.model import WorldModel, balanced_divergence, belief_metrics, loss, rollout_loss
from catnat_experiments.tasks.world.training import ALL, EXACT, METRICS, Training

FALSE_ALARM = 1e-6
State = tuple[int, ...]
torch.set_num_threads(1)


def small(**changes: str | int | float) -> Config:
    """A run of a second: few and small latents, few steps."""
    run = world.config(5, "natural", 0.003, 1, steps=4, test_sequences=6)
    sizes = {"latents": 3, "hidden": 16, "batch": 4, "length": 4, "samples": 2, "validation_sequences": 5}
    return {**run, **sizes, **changes}


# ---- the world ----


def wave(state: State, steps: int) -> State:
    """Where a state leads: along each axis a triangle wave of period 14 between the places 0 and 7."""
    phases = [place if step == 1 else 14 - place for place, step in zip(state[:2], state[2:], strict=True)]
    now, before = ([7 - abs((phase + t) % 14 - 7) for phase in phases] for t in (steps, steps - 1))
    return (*now, *(place - was for place, was in zip(now, before, strict=True)))


def test_the_ball_moves_as_a_triangle_wave() -> None:
    dynamics = environment.motion()
    states = [tuple(map(int, state)) for state in dynamics.states]
    assert sorted(states) == list(itertools.product(range(8), range(8), (-1, 1), (-1, 1)))
    for number, state in enumerate(states):
        assert dynamics.bounces[number] == (wave(state, 1)[2:] != state[2:])
        for steps in range(1, 20):
            number = dynamics.next[number]
            assert states[number] == wave(state, steps)


def test_sequences_follow_the_ball_and_draw_shapes_at_walls() -> None:
    dynamics, play = environment.motion(), environment.play(4000, 12, np.random.default_rng(0))
    assert np.array_equal(play.states[1:], dynamics.next[play.states[:-1]])
    bounced = dynamics.bounces[play.states[:-1]]
    assert np.array_equal(play.shapes[1:][~bounced], play.shapes[:-1][~bounced])
    pairs = 8 * play.shapes[:-1][bounced] + play.shapes[1:][bounced]  # the old shape says nothing about the new one
    for drawn, kinds in ((pairs, 64), (play.shapes[0], 8), (play.states[0], 256)):
        assert stats.chisquare(np.bincount(drawn, minlength=kinds)).pvalue > FALSE_ALARM


def test_frames_show_the_shape_at_its_place() -> None:
    play = environment.play(20, 3, np.random.default_rng(1))
    assert play.frames.shape == (3, 20, 100)
    assert len({tuple(shape.flatten()) for shape in environment.SHAPES}) == 8
    for time, sequence in itertools.product(range(3), range(20)):
        row, column, *_ = environment.motion().states[play.states[time, sequence]]
        frame = np.zeros((10, 10))
        for i, j in itertools.product(range(3), range(3)):
            frame[row + i, column + j] = environment.SHAPES[play.shapes[time, sequence], i, j]
        assert np.array_equal(play.frames[time, sequence].view(10, 10).numpy(), frame)


def test_two_frames_tell_the_state() -> None:
    """What makes the exact predictions the best ones: the step is the difference of two places."""
    states = environment.motion().states
    after = states[environment.motion().next]
    assert np.array_equal(after[:, 2:], after[:, :2] - states[:, :2])


def test_predictions_are_means_over_all_futures() -> None:
    states, shapes = np.arange(0, 256, 17), np.arange(16) % 8
    found = environment.predicted(states, shapes, ahead=6).view(6, 16, 10, 10).numpy()
    for step, sequence in itertools.product(range(1, 7), range(16)):
        start: State = tuple(map(int, environment.motion().states[states[sequence]]))
        course = [start, *(wave(start, time) for time in range(1, step + 1))]
        bounced = any(after[2:] != before[2:] for before, after in itertools.pairwise(course))
        row, column = course[-1][:2]
        frame = np.zeros((10, 10))
        for shape in range(8) if bounced else [shapes[sequence]]:
            frame[row : row + 3, column : column + 3] += environment.SHAPES[shape] / (8 if bounced else 1)
        np.testing.assert_allclose(found[step - 1, sequence], frame, atol=1e-12)


# ---- the loss ----


def mixed(kind: str, scores: Tensor) -> Tensor:
    probs = parameterization(kind).probs(scores)
    return 0.99 * probs + 0.01 / probs.shape[-1]


def by_hand(kind: str, posterior: Tensor, prior: Tensor) -> Tensor:
    q, p = mixed(kind, posterior), mixed(kind, prior)
    return (q * (q.log() - p.log())).sum((-1, -2))


@pytest.mark.parametrize("kind", ALL)
def test_the_divergence_is_dreamers_two_halves(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (6, 3, PARAMETERIZATIONS[kind].num_scores(7))
    scores = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2)]
    posterior, prior = scores
    value = by_hand(kind, posterior, prior)
    free = float(value.detach().sort().values[2:4].mean())  # three below, three above
    dynamics = by_hand(kind, posterior.detach(), prior).clamp(min=free)
    representation = by_hand(kind, posterior, prior.detach()).clamp(min=free)
    wanted = torch.autograd.grad((dynamics + 0.1 * representation).sum(), scores)
    term, divergence = balanced_divergence(parameterization(kind), posterior, prior, free)
    torch.testing.assert_close(divergence, value)
    torch.testing.assert_close(term, dynamics + 0.1 * representation)
    found = torch.autograd.grad(term.sum(), scores)
    torch.testing.assert_close(found, wanted)
    free_rows = value < free
    assert free_rows.sum() == 3
    assert all(bool((gradient[free_rows] == 0).all()) for gradient in found)
    assert all(bool((gradient[~free_rows] != 0).any()) for gradient in found)


def model_of(**changes: str | int | float) -> WorldModel:
    return Training(small(**changes)).model


@pytest.mark.parametrize("kind", ALL)
def test_beliefs_follow_the_equations(kind: str) -> None:
    model, frames = model_of(parameterization=kind), environment.play(7, 5, np.random.default_rng(0)).frames
    found = model.observe(frames, torch.Generator().manual_seed(0))
    assert found.drawn.shape == (5, 7, 3 * 5)
    one_hot = found.drawn.view(5, 7, 3, 5)
    assert bool(((one_hot == 0) | (one_hot == 1)).all())
    assert bool((one_hot.sum(-1) == 1).all())
    state, drawn = torch.zeros(7, 16), torch.zeros(7, 15)
    for time in range(5):
        state = model.recurrent(drawn, state)
        torch.testing.assert_close(found.state[time], state)
        torch.testing.assert_close(found.prior[time], model.prior(state))
        seen = model.embed(frames[time])
        torch.testing.assert_close(found.posterior[time], model.posterior(torch.cat((state, seen), -1)))
        drawn = found.drawn[time]


def test_the_loss_is_reconstruction_and_divergence() -> None:
    model, frames = model_of(), environment.play(7, 5, np.random.default_rng(0)).frames
    found, beliefs = loss(model, frames, 0.0, torch.Generator().manual_seed(0))
    probs = model.decoder(torch.cat((beliefs.state, beliefs.drawn), -1)).sigmoid()
    likelihood = torch.where(frames == 1, probs, 1 - probs).log().sum(-1)
    kl = by_hand("natural", beliefs.posterior, beliefs.prior).mean()
    torch.testing.assert_close(found.reconstruction, -likelihood.mean())
    torch.testing.assert_close(found.kl, kl)
    torch.testing.assert_close(found.objective, -likelihood.mean() + 1.1 * kl)


def test_gradients_pass_the_draws() -> None:
    """Of what is seen in the first frame, the second one's pixels know through the first draw alone."""
    model, frames = model_of(), environment.play(7, 2, np.random.default_rng(0)).frames
    beliefs = model.observe(frames, torch.Generator().manual_seed(0))
    model.decode(beliefs.state[1], beliefs.drawn[1].detach()).sum().backward()
    weight = model.posterior[0][0].weight
    assert weight.grad is not None
    assert bool((weight.grad != 0).any())


# ---- evaluation ----


def test_a_rollout_is_scored_by_the_mean_of_its_samples() -> None:
    model, play = model_of(), environment.play(4, 20, np.random.default_rng(0))
    found = rollout_loss(model, play.frames, 3, seed=5)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(5)
        seen = model.observe(play.frames[:5].repeat(1, 3, 1), generator)
        probs = model.imagine(seen.state[-1], seen.drawn[-1], 15, generator).double().sigmoid()
    for step in range(15):
        total = 0.0
        for sequence, pixel in itertools.product(range(4), range(100)):
            probability = sum(float(probs[step, sequence + 4 * sample, pixel]) for sample in range(3)) / 3
            total -= math.log(probability if play.frames[5 + step, sequence, pixel] else 1 - probability)
        assert float(found[step]) == pytest.approx(total / 4)


def test_rollouts_do_not_look_at_what_they_predict() -> None:
    model, frames = model_of(), environment.play(4, 20, np.random.default_rng(0)).frames
    changed = frames.clone()
    changed[5:] = 1 - changed[5:]
    agreed = rollout_loss(model, frames, 1, 0) + rollout_loss(model, changed, 1, 0)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        seen = model.observe(frames[:5], generator)
        logits = model.imagine(seen.state[-1], seen.drawn[-1], 15, generator).double()
    both = torch.nn.functional.softplus(logits) + torch.nn.functional.softplus(-logits)
    torch.testing.assert_close(agreed, both.sum(-1).mean(1))


def test_the_metrics_of_latents() -> None:
    model, frames = model_of(), environment.play(6, 20, np.random.default_rng(0)).frames
    last = model.posterior[0][-1]
    torch.nn.init.zeros_(last.weight)
    with torch.no_grad():  # per variable: certain of one class; uniform over all five; uniform again
        last.bias.copy_(torch.tensor([9.0, 9.0, 9.0, 9.0] + 8 * [0.0]))
    found = belief_metrics(model, frames, 0)
    certain = 0.99 + 0.002
    entropy = -certain * math.log(certain) - 4 * 0.002 * math.log(0.002)
    assert found["entropy"] == pytest.approx((entropy + 2 * math.log(5)) / 3, rel=1e-5)
    assert found["dead"] == pytest.approx(4 / 12)
    assert found["classes_alive"] == pytest.approx((1 + 5 + 5) / 3)
    assert found["loss"] == pytest.approx(found["reconstruction"] + found["kl"])


# ---- runs ----


@pytest.mark.parametrize("kind", ALL)
def test_every_parameterization_runs(kind: str) -> None:
    outcome = world_training.train(small(parameterization=kind), Memory())
    assert list(outcome.metrics) == list(METRICS)
    assert all(math.isfinite(value) for value in outcome.metrics.values())
    assert len(outcome.history["ahead"]) == len(outcome.history["ahead.step"]) == 15
    assert outcome.metrics["test_rollout"] == pytest.approx(np.mean(outcome.history["ahead"]))
    searched = world_training.train(small(parameterization=kind, test_sequences=0), Memory())
    assert list(searched.metrics) == [name for name in METRICS if not name.startswith("test")]


def test_the_exact_distribution_is_better_than_a_constant_guess() -> None:
    outcome = world_training.train(small(parameterization=EXACT, test_sequences=200), Memory())
    exact, guess = outcome.history["ahead"], outcome.history["ahead_mean_frame"]
    assert outcome.metrics == {"test_rollout": pytest.approx(np.mean(exact))}
    assert all(a < b for a, b in zip(exact, guess, strict=True))
    assert exact[0] < exact[14]


def test_a_run_broken_off_goes_on_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    run, times = small(), itertools.count()

    def train(checkpointer: Memory) -> Outcome:
        torch.manual_seed(next(times))  # of no influence
        return world_training.train(run, checkpointer)

    wanted = assert_goes_on(train, 3, monkeypatch)
    assert world_training.train({**run, "seed": 2}, Memory()) != wanted


def test_the_rate_falls_over_the_last_part_of_a_run() -> None:
    training = Training(small(decay=0.5))
    rates = []
    for _ in range(training.steps):
        training.advance()
        rates.append(training.optimizer.param_groups[0]["lr"] / float(training.run["rate"]))
    half = training.steps // 2
    assert rates[:half] == [1.0] * half
    assert rates[half:] == pytest.approx([2 * left / training.steps for left in range(training.steps - half, 0, -1)])
    assert "decay" not in world.EXPERIMENT.stages("evidence")[0].runs(pd.DataFrame())[0]  # records keep their ids


def test_a_diverged_run_ends_with_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(self: Training) -> None:
        torch.nn.init.constant_(self.model.recurrent.weight_hh, math.nan)
        self.step = self.steps

    monkeypatch.setattr(Training, "advance", spoil)
    monkeypatch.setattr(Training, "log", lambda self, since: [])
    outcome = world_training.train(small(), Memory())
    assert set(outcome.metrics) == set(METRICS)
    assert all(math.isnan(value) for value in outcome.metrics.values())


# ---- stages, tables, figures ----

NOTHING = pd.DataFrame()


def test_an_unknown_parameterization_is_named() -> None:
    with pytest.raises(ValueError, match="'hardmax', but one of these is needed: softmax"):
        world_training.train(small(parameterization="hardmax"), Memory())


def test_every_table_is_of_a_metric_and_of_curves_that_runs_have(tmp_path: Path) -> None:
    rows = []
    for name in (*ALL, EXACT):
        run = small(parameterization=name)
        outcome = world_training.train(run, Memory())
        rows.append(final_row(run, outcome))
        if name != EXACT:
            assert_tables_fit(world.TABLES, run, outcome)
    drawn = world.figures(pd.DataFrame(rows), tmp_path)
    assert [path.name for path in drawn] == ["steps-ahead-5.png"]
    assert all(path.stat().st_size > 5000 for path in drawn)
    assert world.figures(NOTHING, tmp_path) == []
