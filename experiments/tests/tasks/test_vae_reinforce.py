"""The second VAE: its network against torch.nn, its estimate against enumeration, and runs that repeat."""

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
from torch import Tensor, nn
from torch.nn import functional as F

from catnat_experiments.engine.types import Config
from catnat_experiments.tasks.vae import training as vae_training
from catnat_experiments.tasks.vae.experiment import Cell
from catnat_experiments.tasks.vae.network import Perceptrons
from catnat_experiments.tasks.vae_reinforce import task as vae_reinforce
from catnat_experiments.tasks.vae_reinforce.training import Training, binarized, images, surrogate

FALSE_ALARM = 1e-6
torch.set_num_threads(1)
train = vae_reinforce.EXPERIMENT.train_one


@pytest.fixture(autouse=True)
def _few_images_for_the_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vae_training, "LOOKED_AT", 50)


def small(name: str = "natural", **changes: str | int | float) -> Config:
    """A run of a second: real images, small latents, few steps."""
    sizes = {"steps": 20, "validation_images": 20, "validation_samples": 4, "test_images": 20, "test_samples": 8}
    return {**vae_reinforce.EXPERIMENT.config(Cell("adam", "binarized", 3, 4), name, 0.001, 1, **sizes), **changes}


# ---- data ----


def test_pixels_are_drawn_with_their_grey_levels() -> None:
    levels = torch.arange(256, dtype=torch.uint8).repeat(4000, 1)
    drawn = binarized(levels, np.random.default_rng(0))
    assert not drawn[:, 0].any()
    assert drawn[:, 255].all()
    for level in (1, 64, 128, 254):
        found = stats.binomtest(int(drawn[:, level].sum()), 4000, level / 255)
        assert found.pvalue > FALSE_ALARM


def test_images_are_sixty_thousand_grey_ones_and_two_binary_halves() -> None:
    data = images()
    assert [len(part) for part in (data.train, data.validation, data.test)] == [60_000, 5000, 5000]
    assert int(data.train.max()) == 255
    assert set(torch.cat((data.validation, data.test)).unique().tolist()) == {0, 1}


# ---- the network ----


def test_the_network_is_torchs() -> None:
    torch.manual_seed(0)
    network = Perceptrons(3, 4, 3)
    encoder = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 9))
    decoder = nn.Sequential(nn.Linear(12, 256), nn.ReLU(), nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 784))
    theirs = [*decoder.parameters(), *encoder.parameters()]
    assert [tuple(one.shape) for one in theirs] == [part.shape for part in network.parts]
    for one, part in zip(theirs, network.parts, strict=True):
        assert part.bound is not None
        assert float(one.detach().abs().max()) <= part.bound < 1.2 * float(one.detach().abs().max()) + 0.02
    vector = torch.cat([one.detach().flatten() for one in theirs]).requires_grad_()
    ours, our_encoder = network.split(vector)
    x, classes = torch.rand(7, 784), torch.randint(4, (7, 3))
    one_hot = F.one_hot(classes, 4).float()
    state = network.start_state()
    scores = network.encode(our_encoder, state, x.t(), training=True)
    logits = network.decode(ours, state, one_hot, training=True)
    torch.testing.assert_close(scores, encoder(x).view(7, 3, 3))
    torch.testing.assert_close(logits, decoder(one_hot.flatten(1)).t())
    torch.testing.assert_close(network.decode_classes(ours, state, classes), logits)
    (scores.square().sum() + logits.square().sum()).backward()
    (encoder(x).square().sum() + decoder(one_hot.flatten(1)).square().sum()).backward()
    wanted = torch.cat([one.grad.flatten() for one in theirs if one.grad is not None])
    torch.testing.assert_close(vector.grad, wanted, rtol=1e-4, atol=1e-4)


# ---- the estimate ----


@pytest.mark.parametrize("baseline", [0.0, 125.0])
def test_the_estimate_is_the_gradient_of_the_expected_loss(baseline: float) -> None:
    """Its mean over all latents, weighted with their probability."""
    torch.manual_seed(0)
    scores = torch.randn(1, 2, 3, dtype=torch.float64, requires_grad=True)
    losses = 100 * torch.rand(3, 3, dtype=torch.float64)

    def log_probs() -> Tensor:
        return scores.log_softmax(-1)

    joint = log_probs()[0, 0].exp().unsqueeze(1) * log_probs()[0, 1].exp()
    [wanted] = torch.autograd.grad((joint * losses).sum(), scores)
    total = torch.zeros_like(scores)
    for first, other in itertools.product(range(3), range(3)):
        classes = torch.tensor([[first, other]])
        estimate = surrogate(log_probs(), classes, losses[first, other].view(1), baseline)
        total += joint[first, other].detach() * torch.autograd.grad(estimate, scores)[0]
    torch.testing.assert_close(total, wanted)


def test_a_step_is_that_of_the_written_out_loss() -> None:
    training = Training(images(), small())
    stream = np.random.Generator(np.random.SFC64())
    stream.bit_generator.state = training.stream.bit_generator.state
    picked = training.images.train[:128]
    objective, found = training.objective(picked)
    x = binarized(picked, stream).float()
    model = training.model
    scores = model.network.encode(model.encoder, model.state, x.t(), training=True)
    probs = model.kind.probs(scores)
    uniform = torch.from_numpy(stream.random((128, 3, 1)))
    classes = (probs.detach().cumsum(-1) <= uniform).sum(-1)
    pixels = model.network.decode_classes(model.decoder, model.state, classes).t().sigmoid()
    reconstruction = -(x * pixels.log() + (1 - x) * (1 - pixels).log()).sum(1)
    kl = (probs * (4 * probs).log()).sum((1, 2)).mean()
    log_q = probs.gather(-1, classes.unsqueeze(-1)).log().sum((1, 2))
    wanted = reconstruction.mean() + kl + ((reconstruction.detach() - 125) * log_q).mean()
    torch.testing.assert_close(objective, wanted, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(found.total, reconstruction.mean() + kl, rtol=1e-4, atol=1e-3)
    mine, theirs = (torch.autograd.grad(one, training._parts, retain_graph=True) for one in (objective, wanted))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


# ---- runs ----


@pytest.mark.parametrize("name", vae_reinforce.ALL)
def test_a_run_is_finite_and_has_the_papers_metric(name: str) -> None:
    outcome = train(small(name), Memory())
    assert all(math.isfinite(value) for value in outcome.metrics.values())
    wanted = 3 * math.log(4) - outcome.metrics["test_loss"]
    assert outcome.metrics["papers_elbo"] == pytest.approx(wanted)
    assert "papers_elbo" not in train(small(name, test_samples=0, test_images=0, steps=1), Memory()).metrics


@pytest.mark.slow
def test_training_learns() -> None:
    outcome = train(small("natural", steps=400, latents=10, classes=8), Memory())
    assert outcome.metrics["validation_loss"] < 230  # all pixels alike cost 272 nats, and independent pixels 206


def test_a_run_broken_off_goes_on_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_goes_on(lambda checkpointer: train(small(), checkpointer), 7, monkeypatch)


def test_the_paper_preset_is_the_papers_protocol() -> None:
    stages = vae_reinforce.EXPERIMENT.stages("paper")
    assert [stage.expected_runs for stage in stages] == [9 * 3 * 6, 9 * 3 * 7, 9 * 3 * 5]


def test_the_papers_numbers_are_whole() -> None:
    paper = vae_reinforce.PAPER
    assert list(paper) == list(itertools.product((10, 20, 30), (8, 16, 32)))
    assert all(list(row) == ["softmax", "sigmoid", "natural"] for row in paper.values())
    assert paper[10, 8]["natural"] == (-122.7, 33.4, False)
    assert max(target.mean for row in paper.values() for target in row.values()) == -9.6
    assert not any(row["softmax"].best for row in paper.values())


def test_every_table_is_of_a_metric_and_of_curves_that_runs_have() -> None:
    assert_tables_fit(vae_reinforce.TABLES, small(), train(small(steps=3), Memory()))


def test_figures_of_every_rate(tmp_path: Path) -> None:
    rows = []
    for name, rate in itertools.product(("natural", "sigmoid"), (0.001, 0.002)):
        run = small(name, rate=rate, steps=3)
        rows.append(final_row(run, train(run, Memory())))
    drawn = vae_reinforce.figures(pd.DataFrame(rows), tmp_path)
    assert len({path.name for path in drawn}) == 2
    assert all(path.stat().st_size > 5000 for path in drawn)
