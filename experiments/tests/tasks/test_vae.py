"""The main VAE: its network against torch.nn, its loss, its likelihood against enumeration, and runs that repeat."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from memory import Memory, assert_goes_on, assert_tables_fit, final_row
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F

from catnat_experiments.common import mnist
from catnat_experiments.common.parameterizations import PARAMETERIZATIONS, parameterization
from catnat_experiments.engine import loop
from catnat_experiments.engine.types import Config
from catnat_experiments.tasks.vae import gumbel, variants
from catnat_experiments.tasks.vae import model as vae_model
from catnat_experiments.tasks.vae import network as vae_network
from catnat_experiments.tasks.vae import task as vae
from catnat_experiments.tasks.vae import training as vae_training
from catnat_experiments.tasks.vae.experiment import Cell
from catnat_experiments.tasks.vae.network import Convolutional

FALSE_ALARM = 1e-6
train, config = vae.EXPERIMENT.train_one, vae.EXPERIMENT.config
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _few_images_for_the_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vae_training, "LOOKED_AT", 50)


def small(**changes: str | int | float) -> Config:
    """A run of a second: real images, small latents, few steps."""
    run = config(Cell("adam", "binary", 3, 4), "natural", 0.01, 1, steps=20, test_images=20, test_samples=8)
    return {**run, "validation_images": 20, "validation_samples": 4, **changes}


def images(count: int) -> Tensor:
    data = mnist.load("binary")
    return data.floats(data.train[:count])


def model(name: str, latents: int, classes: int, scale: float = 1.0, seed: int = 0) -> vae_model.Model:
    """A random network whose posteriors are far from uniform if the scale is large."""
    kind = parameterization(name)
    network = Convolutional(latents, classes, kind.num_scores(classes))
    one = vae_model.Model.of(network, kind, network.start(np.random.default_rng(seed)))
    one.encoder[-2].mul_(scale)
    return one


# ---- the network ----


class Reference(nn.Module):
    """The network in modules of torch. Biases before batch normalization are 0: it would take them away."""

    def __init__(self, network: Convolutional) -> None:
        super().__init__()
        self.network = network
        self.encoder = nn.Sequential(
            *(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU()),
            *(nn.Conv2d(8, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(288, 128), nn.ReLU(), nn.Linear(128, network.latents * network.scores)),
        )
        self.decoder = nn.Sequential(
            *(nn.Linear(network.latents * network.classes, 128), nn.ReLU()),
            *(nn.Linear(128, 288), nn.ReLU(), nn.Unflatten(1, (32, 3, 3))),
            *(nn.ConvTranspose2d(32, 16, 3, 2, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.ConvTranspose2d(16, 8, 3, 2, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
            nn.ConvTranspose2d(8, 1, 3, 2, 1, 1),
        )

    def ordered(self) -> list[Tensor]:
        """Its parameters in the order of the vector."""
        return [*self.decoder.parameters(), *self.encoder.parameters()]

    def as_ours(self, theirs: Tensor, shape: tuple[int, ...]) -> Tensor:
        """A tensor of its parameters, or of their gradients, in the shape of our products."""
        transposed = theirs.ndim == 4 and shape[0] == 9 * theirs.shape[1]
        return (theirs.permute(1, 2, 3, 0) if transposed else theirs).reshape(shape)

    def copy_from(self, parameters: Tensor) -> None:
        pieces = torch.split(parameters.detach(), self.network.sizes)
        for mine, piece, part in zip(self.ordered(), pieces, self.network.parts, strict=True):
            wanted = piece.view(part.shape)
            if mine.ndim == 4 and part.shape[0] == 9 * mine.shape[1]:
                wanted = wanted.view(*mine.shape[1:], mine.shape[0]).permute(3, 0, 1, 2)
            mine.data.copy_(wanted.reshape(mine.shape))

    def gradient(self) -> Tensor:
        parts = zip(self.ordered(), self.network.parts, strict=True)
        return torch.cat([self.as_ours(mine.grad, part.shape).flatten() for mine, part in parts])

    def state(self) -> Tensor:
        normalizations = (self.decoder[6], self.decoder[9], self.encoder[3])
        return torch.cat([value for one in normalizations for value in (one.running_mean, one.running_var)])


def test_the_network_its_gradient_and_its_state_are_torchs() -> None:
    torch.manual_seed(0)
    network = Convolutional(3, 4, 3)
    parameters = network.start(np.random.default_rng(0)).double().requires_grad_()
    state = network.start_state().double()
    reference = Reference(network).double()
    reference.copy_from(parameters)
    x = images(7).double()
    one_hot = F.one_hot(torch.randint(4, (7, 3)), 4).double().requires_grad_()
    weights = torch.randn(7, 3, 3, dtype=torch.float64), torch.randn(784, 7, dtype=torch.float64)
    decoder, encoder = network.split(parameters)
    ours = (
        network.encode(encoder, state, x.t().contiguous(), training=True),
        network.decode(decoder, state, one_hot, training=True),
    )
    theirs = (
        reference.encoder(x.view(-1, 1, 28, 28)).view(7, 3, 3),
        reference.decoder(one_hot.flatten(1)).view(7, 784).t(),
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    sums = [sum((a * w).sum() for a, w in zip(both, weights, strict=True)) for both in (ours, theirs)]
    got = torch.autograd.grad(sums[0], (parameters, one_hot))
    sums[1].backward()
    torch.testing.assert_close(got[0], reference.gradient(), rtol=1e-8, atol=1e-11)
    torch.testing.assert_close(got[1], one_hot.grad, rtol=1e-8, atol=1e-11)
    torch.testing.assert_close(state, reference.state(), rtol=1e-10, atol=1e-12)
    # And in evaluation mode, with the state that both have now.
    reference.eval()
    with torch.no_grad():
        torch.testing.assert_close(
            network.encode(encoder, state, x.t().contiguous(), training=False),
            reference.encoder(x.view(-1, 1, 28, 28)).view(7, 3, 3),
            rtol=1e-9,
            atol=1e-12,
        )
        wanted = reference.decoder(one_hot.flatten(1)).view(7, 784).t()
        torch.testing.assert_close(network.decode(decoder, state, one_hot, training=False), wanted)
        torch.testing.assert_close(network.decode_classes(decoder, state, one_hot.argmax(-1)), wanted)


@pytest.mark.parametrize("side", [6, 7])
def test_overlap_is_the_transpose_of_patches(side: int) -> None:
    torch.manual_seed(0)
    image, parts = torch.randn(2, side, side, 5), torch.randn(2 * 9, 3 * 3 * 5)
    forward = (vae_network.patches(vae_network._padded(image), 3) * parts).sum()
    torch.testing.assert_close((image * vae_network.overlap(parts, 2, 3, side)).sum(), forward)


def test_the_start_has_torchs_bounds_and_shares_all_but_the_last_layer() -> None:
    networks = [Convolutional(5, 8, scores) for scores in (8, 7)]
    starts = [network.start(np.random.default_rng(3)) for network in networks]
    last = sum(networks[1].sizes[-2:])
    assert torch.equal(starts[0][: len(starts[1]) - last], starts[1][:-last])
    reference = Reference(networks[0])
    pieces = torch.split(starts[0], networks[0].sizes)
    for part, piece, theirs in zip(networks[0].parts, pieces, reference.ordered(), strict=True):
        assert piece.numel() == theirs.numel()
        if part.bound is None:
            assert piece[0] == theirs[0]
        elif piece.numel() > 500:  # uniform: the largest of n is within 20 / n of the bound
            assert abs(piece.abs().max() / theirs.abs().max() - 1) < 40 / piece.numel()


# ---- draws and loss ----


def test_gumbel_noise_has_its_distribution() -> None:
    noise = vae_model.gumbel((100_001,), np.random.default_rng(0)).double().numpy()
    assert np.isfinite(noise).all()
    assert stats.kstest(noise, stats.gumbel_r.cdf).pvalue > FALSE_ALARM


def test_gumbel_noise_is_finite_at_the_ends_of_the_random_numbers() -> None:
    class Ends:
        def integers(self, low: int, high: int, size: int, **_: Any) -> Any:
            return np.array([0, 2**64 - 1], dtype=np.uint64)[:size]

    smallest, _, largest, _ = vae_model.gumbel((4,), Ends()).tolist()  # type: ignore[arg-type]
    assert (round(smallest, 1), round(largest, 1)) == (-2.8, 16.6)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_draws_are_one_hot_with_the_relaxed_gradient(temperature: float) -> None:
    torch.manual_seed(0)
    log_probs = torch.randn(50, 6, dtype=torch.float64).log_softmax(-1).requires_grad_()
    noise, weight = torch.randn(50, 6, dtype=torch.float64), torch.randn(50, 6, dtype=torch.float64)
    drawn, negative_entropy = gumbel.draws(log_probs, noise, temperature)
    assert torch.equal(drawn, F.one_hot((log_probs + noise).argmax(-1), 6).double())
    (got,) = torch.autograd.grad((drawn * weight).sum() + 3 * negative_entropy, log_probs)
    relaxed = ((log_probs + noise) / temperature).softmax(-1)
    entropy = (log_probs.exp() * log_probs).sum()
    torch.testing.assert_close(negative_entropy, entropy)
    (wanted,) = torch.autograd.grad((relaxed * weight).sum() + 3 * entropy, log_probs)
    torch.testing.assert_close(got, wanted)


def test_cross_entropy_is_torchs_and_finite_far_out() -> None:
    torch.manual_seed(0)
    logits = (30 * torch.randn(784, 9)).requires_grad_()
    logits.data[0, :5] = torch.tensor([-300.0, 300.0, -90.0, 90.0, 0.0])
    targets = torch.rand(784, 9).round()
    found = gumbel.cross_entropy(logits, targets)
    (got,) = torch.autograd.grad(found, logits)
    wanted = F.binary_cross_entropy_with_logits(logits.double(), targets.double(), reduction="sum")
    assert math.isclose(found.item(), wanted.item(), rel_tol=1e-5)
    torch.testing.assert_close(got, logits.detach().sigmoid() - targets)


@pytest.mark.parametrize("name", ["softmax", "natural", "sparsemax"])
def test_the_loss_is_the_negative_bound_written_out(name: str) -> None:
    one = model(name, 3, 4, scale=20.0)
    x = images(30)
    noise = vae_model.gumbel((90, 4), np.random.default_rng(1))
    found = gumbel.loss(one, x.t().contiguous(), noise, 0.7)
    fresh = one.network.start_state()
    probs = one.kind.probs(one.network.encode(one.encoder, fresh, x.t().contiguous(), training=True))
    picked = (probs.clamp(min=1e-20).log() + noise.view(30, 3, 4)).argmax(-1)
    pixels = one.network.decode(one.decoder, fresh, F.one_hot(picked, 4).float(), training=True).sigmoid().t()
    reconstruction = -(torch.where(x > 0.5, pixels, 1 - pixels)).log().sum(1).mean()
    kl = sum(stats.entropy(row, np.full(4, 0.25)) for row in probs.flatten(0, 1).detach().numpy()) / 30
    assert math.isclose(found.reconstruction, reconstruction, rel_tol=1e-4)
    assert math.isclose(found.kl, kl, rel_tol=1e-4)
    assert math.isclose(found.total, reconstruction + kl, rel_tol=1e-4)


# ---- the likelihood ----


def exact(one: vae_model.Model, x: Tensor) -> Tensor:
    """Every image's log-likelihood, by the sum over all K^N latents."""
    grid = torch.cartesian_prod(*[torch.arange(one.network.classes)] * one.network.latents)
    logs = vae_model.log_likelihood(one, x, grid.expand(len(x), *grid.shape))
    return logs.logsumexp(1) - math.log(len(grid))


def sharpened(name: str) -> vae_model.Model:
    """A model whose latents matter: a strong decoder, posteriors far from uniform and from the true ones."""
    one = model(name, 3, 4, scale=30.0)
    one.decoder[0].mul_(10.0)
    one.decoder[-2].mul_(2.0)
    return one


@pytest.mark.parametrize("name", ["softmax", "sigmoid"])
def test_importance_weights_average_to_the_exact_likelihood(name: str) -> None:
    """E w = p(x), image by image, within Monte Carlo error."""
    one, x = sharpened(name), images(4)
    with torch.no_grad():
        truth = exact(one, x)
        weights = vae_model.log_weights(one, x, 2000, np.random.default_rng(0)).sub(truth.unsqueeze(1)).exp()
    assert weights.std() > 0.3  # or it would be no test of the weights
    z = (weights.mean(1) - 1) / (weights.std(1) / math.sqrt(2000))
    assert z.abs().max() < stats.norm.isf(FALSE_ALARM / 2 / len(x))


@pytest.mark.parametrize("name", ["natural", "sparsemax"])
def test_exact_zeros_leave_their_latents_out(name: str) -> None:
    """Then E w is the likelihood's part on the latents that can be drawn: less than the whole."""
    one, x = sharpened(name), images(4)
    # Class 0 of every variable is impossible, and for natural its sibling too: the first node answers yes.
    bias = one.encoder[-1].view(3, -1)
    bias[:, 0] = 5.0 if name == "natural" else -5.0
    with torch.no_grad():
        probs = one.kind.probs(vae_model.posterior(one, x))
        assert (probs == 0).any()
        grid = torch.cartesian_prod(*[torch.arange(4)] * 3)
        possible = torch.stack([probs[:, n, grid[:, n]] > 0 for n in range(3)]).all(0)
        logs = vae_model.log_likelihood(one, x, grid.expand(len(x), *grid.shape)).masked_fill(~possible, -math.inf)
        truth = logs.logsumexp(1) - math.log(len(grid))
        weights = vae_model.log_weights(one, x, 2000, np.random.default_rng(0)).sub(truth.unsqueeze(1)).exp()
        assert (truth < exact(one, x)).any()
    z = (weights.mean(1) - 1) / (weights.std(1) / math.sqrt(2000)).clamp(min=1e-6)
    assert z.abs().max() < stats.norm.isf(FALSE_ALARM / 2 / len(x))


def test_more_samples_give_a_lower_bound_nearer_to_the_likelihood() -> None:
    one, x = sharpened("sigmoid"), images(5)
    with torch.no_grad():
        truth = -exact(one, x).mean()
        weights = vae_model.log_weights(one, x, 3200, np.random.default_rng(0))
    means, errors = [], []
    for samples in (1, 8, 64):
        estimates = -(weights.view(len(x), -1, samples).logsumexp(-1) - math.log(samples)).mean(0)
        means.append(float(estimates.mean()))
        errors.append(float(estimates.std()) / math.sqrt(len(estimates)))
    limit = stats.norm.isf(FALSE_ALARM)
    for place in range(2):
        assert means[place] - means[place + 1] > limit * math.hypot(errors[place], errors[place + 1])
    assert means[-1] > truth - limit * errors[-1]
    assert means[-1] - truth < 0.1 * (means[0] - truth)


def test_estimates_on_relaxed_draws() -> None:
    """Written out for each draw; and near a temperature of 0 the draws are one-hot, and the weights the usual ones."""
    one, x, samples = sharpened("sigmoid"), images(4), 16
    with torch.no_grad():
        found = [
            vae_model.relaxed_log_weights(one, x, samples, np.random.default_rng(0), temperature)
            for temperature in (0.5, 1e-4)
        ]
        log_q = one.kind.log_probs(vae_model.posterior(one, x))
        noisy = log_q.unsqueeze(1) + vae_model.gumbel((4, samples, 3, 4), np.random.default_rng(0))
        classes = noisy.argmax(-1)
        rates = torch.distributions.Categorical(logits=log_q.unsqueeze(1)).log_prob(classes).sum(-1) + 3 * math.log(4)
        relaxed = (2 * noisy).softmax(-1).flatten(0, 1)
        pixels = one.network.decode(one.decoder, one.state, relaxed, training=False).t().view(4, samples, 784)
        soft = torch.distributions.Bernoulli(logits=pixels).log_prob(x.unsqueeze(1)).sum(-1)
        hard = vae_model.log_likelihood(one, x, classes)
    torch.testing.assert_close(found[0], (soft - rates).double(), rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(found[1], hard - rates, rtol=1e-4, atol=1e-2)
    assert (found[0] - found[1]).abs().mean() > 0.1


def test_runs_on_relaxed_draws_have_both_estimates_and_no_others_do() -> None:
    assert set(train(small(), Memory()).metrics) == set(vae_model.METRICS)
    relaxed = train(small(parameterization="natural+relaxed"), Memory()).metrics
    assert set(relaxed) == {*vae_model.METRICS, *vae_model.RELAXED_METRICS}
    assert relaxed["relaxed_nll"] < relaxed["relaxed_loss"] != relaxed["test_loss"]
    searched = small(parameterization="natural+relaxed", test_images=0, test_samples=0)
    assert not set(vae_model.RELAXED_METRICS) & set(train(searched, Memory()).metrics)
    diverged = small(parameterization="softmax+relaxed", optimizer="sgd", rate=1e6)
    assert math.isnan(train(diverged, Memory()).metrics["relaxed_nll"])


def test_bounds_do_not_depend_on_how_they_are_chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    one, data = sharpened("natural"), mnist.load("binary")
    whole = vae_model.bounds(one, data, data.test[:10], 16, seed=1)
    assert whole.nll < whole.loss
    monkeypatch.setattr(vae_model, "ROWS", 48)
    assert vae_model.bounds(one, data, data.test[:10], 16, seed=1) == pytest.approx(whole, rel=1e-6)


# ---- latents ----


def test_latent_metrics_against_loops() -> None:
    one, x = model("natural", 3, 4, scale=400.0), images(40)
    got = vae_model.latent_metrics(one, x)
    scores = vae_model.posterior(one, x).detach()
    probs = one.kind.probs(scores).double().numpy()
    entropies = [stats.entropy(probs[i, n]) for i in range(40) for n in range(3)]
    saturated = np.abs(scores.numpy()) >= math.pi
    mean = probs.mean(0)
    wanted = {
        "kl": 3 * math.log(4) - np.mean(entropies) * 3,
        "entropy": np.mean(entropies),
        "dead": saturated.mean(),
        "dead_everywhere": saturated.all(0).mean(),
        "classes_alive": np.mean([(row >= 1 / 40).sum() for row in mean]),
        "classes_used": np.mean([math.exp(stats.entropy(row)) for row in mean]),
    }
    assert got == pytest.approx(wanted, rel=1e-5)
    assert 0 < got["dead"] < 1


# ---- runs ----


def test_the_schedules_are_the_papers_and_the_public_codes() -> None:
    for step in (0, 999, 1000, 17_500, 23_000, 24_000, 49_999):
        factor, temperature = gumbel.schedule(step, 50_000)
        assert math.isclose(factor, 0.9 ** (step // 1000))
        assert math.isclose(temperature, max(0.5, math.exp(-3e-5 * (step // 1000) * 1000)))
    assert gumbel.schedule(1234, 5000) == gumbel.schedule(12_340, 50_000)


@pytest.mark.parametrize("name", PARAMETERIZATIONS)
def test_a_run_is_finite_and_complete(name: str) -> None:
    outcome = train(small(parameterization=name), Memory())
    assert set(outcome.metrics) == set(vae_model.METRICS)
    assert all(math.isfinite(value) for value in outcome.metrics.values())
    assert {len(values) for values in outcome.history.values()} == {loop.LOG_POINTS}
    assert outcome.history["step"][-1] == 20


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_training_takes_the_steps_of_the_optimizer_on_the_losses_gradient(optimizer: str) -> None:
    run = small(optimizer=optimizer, rate=0.01, steps=50)
    training = gumbel.Training(mnist.load("binary"), run)
    parameters = training.parameters.clone().requires_grad_()
    cls = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
    other = cls([parameters], lr=0.01)
    stream, data = np.random.Generator(np.random.SFC64()), training.images
    stream.bit_generator.state = training.stream.bit_generator.state
    order, state = stream.permutation(55_000), training.model.state.clone()
    for step in range(3):
        training.advance()
        x = data.floats(data.train[torch.from_numpy(order[100 * step : 100 * step + 100])]).t().contiguous()
        factor, temperature = 0.9**step, math.exp(-0.03 * step)  # 50 steps: the schedules move at each of them
        other.param_groups[0]["lr"] = 0.01 * factor
        other.zero_grad()
        one = vae_model.Model.of(training.model.network, training.model.kind, parameters)._replace(state=state)
        gumbel.loss(one, x, vae_model.gumbel((300, 4), stream), temperature).total.backward()
        other.step()
    torch.testing.assert_close(training.parameters, parameters.detach(), rtol=0, atol=1e-5)
    torch.testing.assert_close(training.model.state, state, rtol=0, atol=1e-5)


def test_training_learns() -> None:
    run = small(latents=5, classes=8, rate=0.01, steps=150, parameterization="softmax")
    outcome = train(run, Memory())
    assert outcome.history["validation_loss"][-1] < 0.8 * outcome.history["validation_loss"][0]
    assert outcome.metrics["test_nll"] < 230  # all pixels alike cost 272 nats, and independent pixels 208


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_run_broken_off_goes_on_to_the_same_bits(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small(optimizer=optimizer)
    assert_goes_on(lambda checkpointer: train(run, checkpointer), 13, monkeypatch)


def test_a_diverged_run_ends_with_nan() -> None:
    outcome = train(small(optimizer="sgd", rate=1e6, parameterization="softmax"), Memory())
    assert set(outcome.metrics) == set(vae_model.METRICS)
    assert all(math.isnan(value) for value in outcome.metrics.values())


# ---- stages ----

NOTHING = pd.DataFrame()


def test_the_paper_preset_is_the_papers_protocol() -> None:
    coarse, refined, final = vae.EXPERIMENT.stages("paper")
    assert coarse.expected_runs + refined.expected_runs == 36 * 4 * 12  # its grids of 5 and 8 rates share one
    assert final.expected_runs == 36 * 4 * 5
    run = coarse.runs(NOTHING)[0]
    assert (run["steps"], run["batch"]) == (50_000, 100)


def trainings(*recipes: str, **changes: Any) -> list[gumbel.Training]:
    """Runs that differ in the recipe alone."""
    names = [f"natural+{recipe}" if recipe else "natural" for recipe in recipes]
    return [gumbel.Training(mnist.load("binary"), small(parameterization=name, **changes)) for name in names]


def test_a_clipped_gradient_has_its_direction_and_the_largest_norm() -> None:
    plain, clipped = trainings("", "clip")
    for training in (plain, clipped):
        training.advance()
    long, short = plain.parameters.grad, clipped.parameters.grad
    assert long.norm() > 10
    torch.testing.assert_close(short, long / long.norm(), rtol=1e-4, atol=1e-8)


def test_a_constant_rate_does_not_fall() -> None:
    rates = []
    for training in trainings("", "constant-rate", steps=100):
        training.step = 99
        training.objective(training.images.train[:100])
        rates.append(training.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.01 * 0.9**49, 0.01])


def test_a_cold_run_goes_below_the_last_temperature_of_others() -> None:
    cold = variants.RECIPES["cold"]
    assert [gumbel.schedule(49, 50, recipe)[1] for recipe in (variants.PLAIN, cold)] == [0.5, math.exp(-0.03 * 49)]
    training = trainings("relaxed", steps=50)[0]
    training.step, training._recipe = 49, cold._replace(relaxed=True)
    training.stream = np.random.Generator(np.random.SFC64(7))
    noise_of = np.random.Generator(np.random.SFC64(7))
    picked = training.images.train[:100]
    _, found = training.objective(picked)
    pixels = training.images.floats(picked.t().contiguous())
    noise = vae_model.gumbel((300, 4), noise_of)
    wanted = gumbel.loss(training.model, pixels, noise, math.exp(-0.03 * 49), relaxed=True)
    assert found.total == wanted.total


def test_half_the_weight_of_the_divergence() -> None:
    (training,) = trainings("half-kl")
    with torch.no_grad():
        training.model.encoder[-2].mul_(400.0)
    objective, found = training.objective(training.images.train[:100])
    assert found.kl > 1
    torch.testing.assert_close(objective, found.reconstruction + found.kl / 2)


def test_the_decoder_is_trained_on_relaxed_draws() -> None:
    (training,) = trainings("relaxed")
    one, x = training.model, images(100).t().contiguous()
    with torch.no_grad():
        one.encoder[-2].mul_(20.0)
    noise_of = np.random.Generator(np.random.SFC64(7))
    training.stream = np.random.Generator(np.random.SFC64(7))
    objective, found = training.objective(training.images.train[:100])
    fresh = one.network.start_state()
    log_probs = one.kind.log_probs(one.network.encode(one.encoder, fresh, x, training=True))
    relaxed = (log_probs + vae_model.gumbel((300, 4), noise_of).view(100, 3, 4)).softmax(
        -1
    )  # the first temperature is 1
    logits = one.network.decode(one.decoder, fresh, relaxed, training=True)
    wanted = F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / 100
    torch.testing.assert_close(found.reconstruction, wanted, rtol=1e-5, atol=0)
    (got,) = torch.autograd.grad(objective, one.encoder[-1])
    entropy = torch.special.entr(log_probs.exp()).sum()
    (gradient,) = torch.autograd.grad(wanted - entropy / 100, one.encoder[-1])
    torch.testing.assert_close(got, gradient, rtol=1e-3, atol=1e-5)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="'hot', but one of these is needed: cold, relaxed, clip"):
        train(small(parameterization="natural+hot"), Memory())
    with pytest.raises(ValueError, match="one of these is needed: adam, sgd"):
        train(small(optimizer="lion"), Memory())


def test_every_table_of_the_report_is_of_a_metric_and_of_curves_that_runs_have() -> None:
    assert_tables_fit(vae.TABLES, small(), train(small(steps=3, parameterization="natural+relaxed"), Memory()))
    assert len({table.title for table in vae.TABLES}) == len(vae.TABLES)


def test_the_papers_numbers_are_whole_and_its_ties_are_no_claims() -> None:
    cells = [(optimizer, data, n) for optimizer in ("adam", "sgd") for data in ("grey", "binary") for n in (10, 20, 30)]
    assert list(variants.PAPER) == cells
    for rows in variants.PAPER.values():
        assert list(rows) == [8, 16, 32]
        for row in rows.values():
            assert list(row) == ["sparsemax", "softmax", "sigmoid", "natural"]
            assert all(target.std > 0 for target in row.values())
            assert min(row.values(), key=lambda target: target.mean).best
    assert variants.PAPER["adam", "binary", 20][32]["softmax"] == (79.2, 1.0, False)
    assert variants.PAPER["sgd", "grey", 10][16]["natural"] == (99.6, 0.6, True)
    ties = {
        (optimizer, data, n, k)
        for (optimizer, data, n), rows in variants.PAPER.items()
        for k, row in rows.items()
        if row["softmax"].best
    }
    adam = {("adam", "grey", *size) for size in ((10, 16), (20, 8), (20, 16))}
    assert ties == adam | {("sgd", data, 30, 8) for data in ("grey", "binary")}
    claims = [claim for table in vae.TABLES for claim in table.claims if claim.worse.startswith("softmax")]
    assert sum(len(claim.rows or ()) for claim in claims) == 2 * (36 - len(ties))


# ---- figures ----


def test_every_figure_is_drawn(tmp_path: Path) -> None:
    rows = []
    for name in ("softmax", "natural"):
        run = small(parameterization=name, steps=5)
        rows.append(final_row(run, train(run, Memory())))
    drawn = vae.figures(pd.DataFrame(rows), tmp_path)
    assert [path.name for path in drawn] == ["curves-adam-binary-3-4.png"]
    assert all(path.stat().st_size > 5000 for path in drawn)
    assert vae.figures(NOTHING, tmp_path) == []
    more = [{**row, "config.classes": 8, "config.latents": 10} for row in rows]
    [one] = vae.figures(pd.DataFrame([*rows, *more]), tmp_path)
    assert one.name == "cells.png"
