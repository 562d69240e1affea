"""Variational autoencoders with categorical latents: the paper's Tables 3 (Adam) and 4 (SGD).

An encoder turns an image of MNIST into the scores of N categorical variables with K classes each; a decoder turns drawn
classes back into the log-odds of pixels. Both learn from the evidence lower bound, with straight-through Gumbel-softmax
draws. What is compared is how scores become class probabilities. The network is in ``vae_network.py``.

Run one configuration by hand::

    python -m catnat_experiments.vae --parameterization natural --rate .0069 --steps 10000

The recipe follows the paper, and public code for such models where the paper is silent. Our own choices: catnat has
K - 1 scores a variable, not K; 55,000 images train and 5,000 validate; the schedules of rate and temperature, made for
50,000 steps, stretch over however many steps there are; the search has seed 0 and never sees the test set, the final
runs have other seeds; all models are evaluated with the same random numbers.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import pandas as pd
import torch
from torch import Tensor

from catnat_experiments.common import mnist
from catnat_experiments.common.parameterizations import Parameterization, parameterization
from catnat_experiments.engine.experiment import Config
from catnat_experiments.report.markdown import Claim, Curve, Table
from catnat_experiments.tasks.vae import training
from catnat_experiments.tasks.vae.experiment import Autoencoder, Cell, Halving, Preset, print_run
from catnat_experiments.tasks.vae.model import RELAXED_METRICS, Model, bounds, gumbel, stream_of
from catnat_experiments.tasks.vae.network import Convolutional
from catnat_experiments.tasks.vae.training import Loss

# ---- the paper's numbers ---------------------------------------------------------------------------------------------

IN_THE_PAPER = ("sparsemax", "softmax", "sigmoid", "natural")
BEYOND = (
    "natural-reflect",
    "natural-isotropic",
    "sigmoid-isotropic",
    "natural-damped-gradient",
    "sigmoid-damped-gradient",
    "natural+warm-up",
    "sigmoid+warm-up",
    "natural+spread",
    "sigmoid+spread",
    "softmax+warm-up",
)
"""With the names of :func:`variant_of`. The last is the control: what helps catnat may help softmax."""
ABLATED = ("softmax-anchored+warm-up", "softmax-haar+warm-up", "natural-tail+warm-up")
"""For the ablation alone: softmax of K - 1 scores without the tree, and natural that never saturates."""
COOLED = ("softmax+cool", "natural+cool")
"""For the study of the start alone."""
RELAXED = tuple(f"{name}+relaxed" for name in IN_THE_PAPER)
FACTORS = (
    "softmax+relaxed",
    "natural+relaxed",
    "softmax+clip",
    "softmax+constant-rate",
    "softmax+half-kl",
    "softmax+cold",
)
"""For the study of what separates our numbers from the paper's alone. The first two are those that do."""
ALL = tuple(dict.fromkeys((*IN_THE_PAPER, *RELAXED, *BEYOND, *ABLATED, *COOLED, *FACTORS)))
LATENTS, CLASSES = (10, 20, 30), (8, 16, 32)

_TABLE_3 = {  # Adam: data, N -> for every parameterization of the paper the NLL at K = 8, 16, 32
    ("grey", 10): ((102.5, 101.1, 101.3), (100.9, 98.1, 98.6), (99.5, 97.7, 96.6), (99.8, 97.6, 96.9)),
    ("grey", 20): ((102.1, 102.1, 103.8), (97.8, 97.5, 98.2), (97.5, 96.9, 97.0), (97.7, 97.0, 96.9)),
    ("grey", 30): ((105.3, 103.9, 104.9), (98.8, 98.8, 99.3), (98.1, 97.6, 97.9), (97.9, 97.6, 97.7)),
    ("binary", 10): ((87.0, 83.4, 85.2), (84.9, 81.0, 79.9), (83.0, 78.8, 76.9), (83.2, 78.7, 77.3)),
    ("binary", 20): ((84.3, 83.6, 85.1), (78.3, 78.1, 79.2), (77.5, 76.7, 76.2), (77.1, 76.6, 76.8)),
    ("binary", 30): ((86.9, 87.2, 88.7), (79.0, 79.2, 80.6), (77.9, 77.8, 77.9), (77.9, 77.7, 78.0)),
}
_TABLE_4 = {  # SGD, as far as we have it: data, N, K
    ("grey", 30, 32): (123.7, 110.4, 104.8, 102.0),
    ("binary", 30, 32): (112.1, 85.1, 82.9, 83.5),
}
PAPER: dict[tuple[str, str, int], dict[int, dict[str, float]]] = {
    ("adam", data, latents): {
        classes: {name: row[place] for name, row in zip(IN_THE_PAPER, rows, strict=True)}
        for place, classes in enumerate(CLASSES)
    }
    for (data, latents), rows in _TABLE_3.items()
} | {
    ("sgd", data, latents): {classes: dict(zip(IN_THE_PAPER, row, strict=True))}
    for (data, latents, classes), row in _TABLE_4.items()
}
"""Test NLL: optimizer, data, N -> K -> parameterization."""

# ---- variants --------------------------------------------------------------------------------------------------------


class Recipe(NamedTuple):
    """How a run is trained, whatever the parameterization. The defaults are what we take the paper's recipe to be.

    Attributes:
        warm_up: The share of the steps over which the weight of the KL divergence grows from 0 to its last value.
        spread: What the encoder's last layer is multiplied with at the start: posteriors begin further from uniform.
        warmest: No relaxed draw has a higher temperature.
        coolest: And none a lower one.
        relaxed: Whether the decoder is trained on relaxed draws, not on one-hot ones.
        clip: The largest norm of a gradient; longer ones are scaled down to it.
        rate_factor: What the rate is multiplied with every fiftieth of the steps.
        divergence: The last weight of the KL divergence.
    """

    warm_up: float = 0.0
    spread: float = 1.0
    warmest: float = 1.0
    coolest: float = 0.5
    relaxed: bool = False
    clip: float = math.inf
    rate_factor: float = 0.9
    divergence: float = 1.0

    def weight(self, share: float) -> float:
        """Of the KL divergence when a share of the steps is done."""
        return self.divergence * (min(1.0, share / self.warm_up) if self.warm_up else 1.0)


PLAIN = Recipe()
RECIPES = {
    "warm-up": Recipe(warm_up=0.1),
    "spread": Recipe(spread=8.0),
    "cool": Recipe(warmest=0.5),
    "cold": Recipe(coolest=0.1),
    "relaxed": Recipe(relaxed=True),
    "clip": Recipe(clip=1.0),
    "constant-rate": Recipe(rate_factor=1.0),
    "half-kl": Recipe(divergence=0.5),
}


class Variant(NamedTuple):
    """A parameterization, and how it is trained."""

    kind: Parameterization
    recipe: Recipe


def variant_of(name: str) -> Variant:
    """A parameterization's name, and after a plus each the names of recipes if it is not trained plainly.

    >>> variant_of("natural+relaxed+warm-up").recipe == Recipe(relaxed=True, warm_up=0.1)
    True
    """
    kind, *recipes = name.split("+")
    changes: dict[str, Any] = {}
    for recipe in recipes:
        if recipe not in RECIPES:
            raise ValueError(f"The recipe in {name!r} is {recipe!r}, but one of these is needed: {', '.join(RECIPES)}.")
        fields = RECIPES[recipe]._asdict().items()
        changes |= {field: value for field, value in fields if value != getattr(PLAIN, field)}
    return Variant(parameterization(kind), PLAIN._replace(**changes))


# ---- the loss --------------------------------------------------------------------------------------------------------


class _Draws(torch.autograd.Function):
    """Both uses of the posteriors in one step: a quarter of the operations that autograd would need."""

    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, noise: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        noisy = log_probs + noise
        drawn = torch.zeros_like(noisy).scatter_(-1, noisy.max(-1, keepdim=True).indices, 1.0)
        probs = log_probs.exp()
        ctx.save_for_backward(noisy.div_(temperature).softmax(-1), log_probs, probs)
        ctx.temperature = temperature
        return drawn, torch.dot(probs.view(-1), log_probs.reshape(-1))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        relaxed, log_probs, probs = ctx.saved_tensors
        through = torch._softmax_backward_data(gradients[0], relaxed, -1, relaxed.dtype).div_(ctx.temperature)
        return through.add_((log_probs + 1).mul_(probs).mul_(gradients[1])), None, None


def draws(log_probs: Tensor, noise: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    r"""One-hot draws, straight-through, and the negative entropy of all posteriors together.

    The draws are the largest entries of :math:`\log p + g`; their gradient is that of :math:`\mathrm{softmax}((\log p +
    g) / T)`.

    Args:
        log_probs: (variables, classes).
        noise: Gumbel noise of the same shape.
        temperature: T, of the gradient alone.
    """
    drawn, negative_entropy = _Draws.apply(log_probs, noise, temperature)  # type: ignore[no-untyped-call]
    return drawn, negative_entropy


class _CrossEntropy(torch.autograd.Function):
    """Both steps from one sigmoid: a third of the time of torch's."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        probs = logits.sigmoid()
        # softplus(l) = l - log sigmoid(l), and not below 0 where the sigmoid underflows
        softplus = (logits - probs.clamp(min=1e-37).log_()).clamp_(min=0)
        ctx.save_for_backward(probs, targets)
        return softplus.sum() - torch.dot(targets.view(-1), logits.view(-1))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        probs, targets = ctx.saved_tensors
        return (probs - targets).mul_(gradients[0]), None


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """``binary_cross_entropy_with_logits``, summed; for contiguous tensors."""
    result: Tensor = _CrossEntropy.apply(logits, targets)  # type: ignore[no-untyped-call]
    return result


def relaxed_draws(log_probs: Tensor, noise: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    r"""The same with :math:`\mathrm{softmax}((\log p + g) / T)` in place of the one-hot draws."""
    return ((log_probs + noise) / temperature).softmax(-1), (log_probs.exp() * log_probs).sum()


def loss(model: Model, images: Tensor, noise: Tensor, temperature: float, *, relaxed: bool = False) -> Loss:
    r"""The loss of one batch in training mode.

    .. math:: -\log p(x \mid c) + \sum_n \mathrm{KL}(q_n \,\|\, \mathrm{uniform})

    Args:
        model: The state of its batch normalization is updated.
        images: (784, batch), from 0 to 1.
        noise: Gumbel noise, (batch * N, K).
        temperature: Of the relaxed draws.
        relaxed: Whether the decoder gets these draws themselves. Then this is no bound of the likelihood.
    """
    network, batch = model.network, images.shape[1]
    scores = network.encode(model.encoder, model.state, images, training=True).flatten(0, 1)
    log_probs = model.kind.log_probs(model.kind.wrap(scores))
    drawn, negative_entropy = (relaxed_draws if relaxed else draws)(log_probs, noise, temperature)
    drawn = drawn.view(batch, network.latents, network.classes)
    logits = network.decode(model.decoder, model.state, drawn, training=True)
    return Loss(cross_entropy(logits, images) / batch, negative_entropy / batch + model.constant)


# ---- training --------------------------------------------------------------------------------------------------------

BATCH = 100
RELAXED_EVERY = 5
"""Estimates on relaxed draws, which cost three times as much, are made on each fifth of the test images."""
SNR_DRAWS = 32
BLOCKS = 50
"""Rate and temperature change this often in a run: every 1,000 of 50,000 steps."""
COOLING = 0.03


def schedule(step: int, steps: int, recipe: Recipe = PLAIN) -> tuple[float, float]:
    """What the rate is multiplied with at a step (the first is 0), and the temperature.

    >>> schedule(0, 50_000), schedule(1_999, 50_000)
    ((1.0, 1.0), (0.9, 0.9704455335485082))
    """
    block = step * BLOCKS // steps
    temperature = min(recipe.warmest, max(recipe.coolest, math.exp(-COOLING * block)))
    return recipe.rate_factor**block, temperature


class Training(training.Training):
    """One run of the main VAE."""

    def __init__(self, images: mnist.Images, run: Config) -> None:
        variant, classes = variant_of(str(run["parameterization"])), int(run["classes"])
        network = Convolutional(int(run["latents"]), classes, variant.kind.num_scores(classes))
        super().__init__(images, run, network, variant.kind, clip=variant.recipe.clip)
        self._recipe = variant.recipe
        with torch.no_grad():
            last_weight, last_bias = self.model.encoder[-2:]
            last_weight.mul_(self._recipe.spread)
            last_bias.mul_(self._recipe.spread)

    def objective(self, picked: Tensor) -> tuple[Tensor, Loss]:
        """The loss; in the warm-up with a smaller weight of its second part."""
        factor, temperature = schedule(self.step, self.steps, self._recipe)
        self.optimizer.param_groups[0]["lr"] = factor * float(self.run["rate"])
        network = self.model.network
        noise = gumbel((self.batch * network.latents, network.classes), self.stream)
        pixels = self.images.floats(picked.t().contiguous())
        found = loss(self.model, pixels, noise, temperature, relaxed=self._recipe.relaxed)
        return found.reconstruction + self._recipe.weight(self.step / self.steps) * found.kl, found

    def metrics(self) -> dict[str, float]:
        """The final metrics; where the decoder was trained on relaxed draws, the estimates on such draws too."""
        found, run = super().metrics(), self.run
        if not int(run["test_samples"]):
            return found
        found["gradient_snr"] = self.gradient_snr() if self.model.finite else math.nan
        if not self._recipe.relaxed:
            return found
        if not self.model.finite:
            return found | dict.fromkeys(RELAXED_METRICS, math.nan)
        part = self.images.test[: int(run["test_images"])][::RELAXED_EVERY]
        _, temperature = schedule(self.steps - 1, self.steps, self._recipe)
        measured = bounds(self.model, self.images, part, int(run["test_samples"]), seed=1, temperature=temperature)
        return found | dict(zip(RELAXED_METRICS, measured, strict=True))

    def gradient_snr(self) -> float:
        r"""How much of a gradient of the encoder is signal, on the first validation images.

        .. math:: \frac{\lVert \mathbb E\,g \rVert^2}{\mathbb E \lVert g - \mathbb E\,g \rVert^2}

        Over draws of the latents, of the weights before the last layer, which all parameterizations share.
        """
        network, stream, kept = self.model.network, stream_of("evaluation", 2), self.model.state.clone()
        pixels = self.images.floats(self.images.validation[: self.batch].t().contiguous())
        _, temperature = schedule(self.steps - 1, self.steps, self._recipe)
        gradients = []
        for _ in range(SNR_DRAWS):
            noise = gumbel((self.batch * network.latents, network.classes), stream)
            found = loss(self.model, pixels, noise, temperature, relaxed=self._recipe.relaxed)
            parts = torch.autograd.grad(found.total, self.model.encoder[:-2])
            gradients.append(torch.cat([part.flatten() for part in parts]).double())
        self.model.state.copy_(kept)  # a batch in training mode has moved the statistics of batch normalization
        return signal_to_noise(torch.stack(gradients))


def signal_to_noise(draws: Tensor) -> float:
    """Of gradients (draws, parameters): the squared norm of the mean, without its bias, over the summed variance."""
    variance = float(draws.var(0).sum())
    return (float(draws.mean(0).square().sum()) - variance / len(draws)) / variance


# ---- presets ---------------------------------------------------------------------------------------------------------

COARSE_RATES = (0.0003, 0.001, 0.003, 0.01, 0.03)
REFINED_RATES = (0.0045, 0.0056, 0.0069, 0.0085, 0.013, 0.016, 0.02)
"""The paper's, without the one that is in the coarse grid too."""
STEPS = 50_000
_EVIDENCE = Cell("adam", "binary", 20, 32)
_ONE_CELL = Preset(
    cells=(_EVIDENCE,),
    parameterizations=IN_THE_PAPER,
    coarse=(0.0003, 0.001, 0.003, 0.0056, 0.01),
    search_steps=10_000,
    steps=STEPS,
    seeds=3,
    halving=Halving(BEYOND, rates=(0.003, 0.0056), rungs=(2500, 5000, 10_000), control="softmax+warm-up"),
)
_START = Preset(
    cells=(_EVIDENCE,),
    parameterizations=(
        *IN_THE_PAPER[1:],
        *(name for name in (*BEYOND, *COOLED) if not name.startswith("sigmoid")),
    ),
    coarse=(0.003,),
    search=False,
    search_steps=0,
    steps=2500,
    seeds=2,
    validation_images=1000,
    test_images=1000,
    test_samples=128,
)
_REPRODUCE = Preset(
    cells=(_EVIDENCE,),
    parameterizations=("softmax", "natural", *FACTORS[:2]),
    coarse=(0.003,),
    search=False,
    search_steps=0,
    steps=STEPS,
    seeds=1,
)
_TABLES = Preset(
    cells=tuple(Cell("adam", *cell) for cell in itertools.product(("binary", "grey"), LATENTS, CLASSES)),
    parameterizations=RELAXED,
    coarse=(0.001, 0.003, 0.01),
    search_cells=(_EVIDENCE, Cell("adam", "grey", 10, 8)),
    search_steps=5000,
    steps=STEPS,
    seeds=1,
    validation_images=1000,
    test_images=2500,
)
_ABLATION = Preset(
    cells=(_EVIDENCE,),
    parameterizations=("softmax+warm-up", *ABLATED, "sigmoid+warm-up", "natural+warm-up"),
    coarse=(0.0015, 0.003, 0.006),
    search_steps=10_000,
    steps=10_000,
    seeds=3,
    test_images=2500,
)

PRESETS = {
    # A look in minutes: few steps, small latents, a rough NLL.
    "quick": Preset(
        cells=(Cell("adam", "binary", 10, 8),),
        parameterizations=IN_THE_PAPER,
        coarse=(0.003, 0.0056),
        search_steps=250,
        seeds=2,
        steps=1000,
        validation_images=500,
        test_images=500,
        test_samples=128,
    ),
    # One cell of the paper at a fifth of its length, and the best of what lies beyond: what a slow start costs.
    "laptop": dataclasses.replace(_ONE_CELL, steps=10_000),
    # The same search, then the paper's length.
    "evidence": _ONE_CELL,
    # The same cell with plain gradient descent.
    "sgd": Preset(
        cells=(_EVIDENCE._replace(optimizer="sgd"),),
        parameterizations=IN_THE_PAPER,
        coarse=COARSE_RATES,
        search_steps=5000,
        steps=STEPS,
        seeds=2,
    ),
    # Why does catnat start slowly? One thing changed at a time, at the usual rate and at a larger one.
    "start": _START,
    "start-fast": dataclasses.replace(_START, coarse=(0.01,)),
    # What separates our numbers from the paper's? One factor changed at a time, at a fifth of the paper's length.
    "reproduce-short": dataclasses.replace(
        _REPRODUCE, parameterizations=("softmax", "natural", *FACTORS), steps=10_000
    ),
    # The factor that matters, at the paper's length.
    "reproduce": _REPRODUCE,
    # The paper's tables with what `reproduce` found: one seed a cell, the test is over the cells.
    "table-3": _TABLES,
    "table-4": dataclasses.replace(
        _TABLES,
        cells=tuple(cell._replace(optimizer="sgd") for cell in _TABLES.cells if cell.data == "binary"),
        search_cells=(_EVIDENCE._replace(optimizer="sgd"), Cell("sgd", "binary", 10, 8)),
        coarse=(0.01, 0.03, 0.1),
    ),
    # Where does the gain come from? Coordinates, normalization or activation, at the best rate and at one rate for all.
    "ablation": _ABLATION,
    "ablation-equal": dataclasses.replace(_ABLATION, search=False, coarse=(0.003,), search_steps=0),
    # Both tables of the paper in full.
    "paper": Preset(
        cells=tuple(Cell(*cell) for cell in itertools.product(("adam", "sgd"), ("grey", "binary"), LATENTS, CLASSES)),
        parameterizations=IN_THE_PAPER,
        coarse=COARSE_RATES,
        refined=REFINED_RATES,
        search_steps=STEPS,
        steps=STEPS,
    ),
}

# ---- what the engine and the report take from this file --------------------------------------------------------------


def _training(run: Config) -> Training:
    return Training(mnist.load(cast("mnist.Pixels", run["data"])), run)


EXPERIMENT = Autoencoder("vae", BATCH, PRESETS, _training)

_PAIRS = (("softmax", "sparsemax"), ("sigmoid", "softmax"), ("natural", "softmax"), ("natural", "sparsemax"))
_RELAXED_CLAIMS = tuple(Claim(f"{better}+relaxed", f"{worse}+relaxed") for better, worse in _PAIRS)
_CLAIMS = (*(Claim(*pair) for pair in _PAIRS), *_RELAXED_CLAIMS)
_DATA = {"grey": "MNIST", "binary": "binary MNIST"}


def _tables(optimizer: str, data: str, latents: int) -> tuple[Table, ...]:
    """The NLL of the paper's rows with one N, its bound, and what becomes of the latents."""
    where = f"{_DATA[data]}, N = {latents}, {optimizer.capitalize() if optimizer == 'adam' else 'SGD'}"
    papers = PAPER.get((optimizer, data, latents), {})

    def table(title: str, metric: str, digits: int = 1, **options: Any) -> Table:
        return Table(
            title=f"{title}, {where}",
            metric=metric,
            better=options.pop("better", "lower"),
            row="classes",
            row_title="K",
            column="parameterization",
            columns=ALL,
            digits=digits,
            where={"optimizer": optimizer, "data": data, "latents": latents},
            optional=True,
            **options,
        )

    return (
        table(
            "Test NLL",
            "test_nll",
            paper=papers,
            claims=_CLAIMS,
            group="Test NLL",
            chosen=("rate",),
            curves=(
                Curve("train_loss", "loss in training", x="step"),
                Curve("validation_loss", "loss on validation images", x="step"),
            ),
            note="Nats; the paper's numbers are those after 50,000 steps. Posteriors with exact zeros (sparsemax, "
            "natural) never draw some latents, which biases their estimate upwards.",
        ),
        table("Negative ELBO", "test_loss"),
        table(
            "Test NLL estimated on relaxed draws",
            "relaxed_nll",
            paper={
                classes: {f"{name}+relaxed": value for name, value in row.items()} for classes, row in papers.items()
            },
            claims=_RELAXED_CLAIMS,
            group="Test NLL estimated on relaxed draws",
            note="Of each fifth test image. The decoder gets what it was trained on, the softmax of noisy "
            "log-probabilities, and not classes: this is no likelihood.",
        ),
        table(
            "Signal to noise of the encoder's gradient",
            "gradient_snr",
            digits=4,
            better=None,
            note=f"At the end of training, on one batch: {SNR_DRAWS} draws of the latents.",
        ),
        table(
            "Classes alive",
            "classes_alive",
            better="higher",
            curves=(Curve("classes_alive", "classes alive, of K", x="step"),),
        ),
        table(
            "Entropy of a posterior",
            "entropy",
            digits=3,
            better=None,
            curves=(Curve("entropy", "mean entropy of a posterior, nats", x="step"),),
        ),
        table(
            "Dead scores, share", "dead", digits=3, better=None, curves=(Curve("dead", "dead scores, share", x="step"),)
        ),
    )


TABLES = tuple(
    table
    for optimizer, data, latents in itertools.product(("adam", "sgd"), ("binary", "grey"), LATENTS)
    for table in _tables(optimizer, data, latents)
)


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Reconstructions, images from the prior and curves, drawn from records."""
    from catnat_experiments.tasks.vae import figures as vae_figures  # matplotlib takes a second to import

    return vae_figures.figures(frame, directory, ALL)


# ---- one run by hand -------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one run and print its metrics."""
    parser = argparse.ArgumentParser(prog="python -m catnat_experiments.vae", description=main.__doc__)
    parser.add_argument("--optimizer", default="adam", help="adam or sgd")
    parser.add_argument("--data", default="binary", help="grey or binary")
    parser.add_argument("--latents", type=int, default=20, help="N, the number of latent variables")
    parser.add_argument("--classes", type=int, default=32, help="K, the number of their classes")
    parser.add_argument("--parameterization", default="natural")
    parser.add_argument("--rate", type=float, default=0.0069)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--test-images", type=int, default=10_000)
    parser.add_argument("--test-samples", type=int, default=512)
    given = parser.parse_args(arguments)
    cell = Cell(given.optimizer, given.data, given.latents, given.classes)
    sizes = {"steps": given.steps, "test_images": given.test_images, "test_samples": given.test_samples}
    print_run(EXPERIMENT, EXPERIMENT.config(cell, given.parameterization, given.rate, given.seed, **sizes))


if __name__ == "__main__":
    main()
