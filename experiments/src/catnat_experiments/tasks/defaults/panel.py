"""The panel: six tasks, and the variants that are compared on each."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

from catnat_experiments.engine.extras import extra
from catnat_experiments.engine.types import Config, Direction
from catnat_experiments.tasks.defaults.training import ORDERS
from catnat_experiments.tasks.gsl import task as gsl
from catnat_experiments.tasks.vae import task as vae
from catnat_experiments.tasks.vae.experiment import Cell

with extra("defaults"):
    from catnat_experiments.tasks.minatar import task as minatar
    from catnat_experiments.tasks.minatar.training import ENVS, LENGTH


# ---- variants --------------------------------------------------------------------------------------------------------

NAME = "defaults"
"""Of the experiment, in configs."""
TREES = ("sigmoid", "natural", "natural-reflect", "natural-tail")
"""Activations, by their names in ``parameterizations.py``; "natural" has the boundary "clamp"."""
MASK_MODES = ("prune", "renormalize")


@dataclasses.dataclass(frozen=True)
class Variant:
    """What is compared.

    Attributes:
        parameterization: "softmax", or the activation of a tree.
        order: Of the classes, where that is compared.
        mask_mode: Where there are masks. For softmax both are the same.
    """

    parameterization: str
    order: str = ""
    mask_mode: str = ""

    @property
    def name(self) -> str:
        """What differs from the first of its kind, in words.

        >>> Variant("natural", "random").name, Variant("natural", "given", "prune").name, Variant("softmax").name
        ('natural, random', 'natural, prune', 'softmax')
        """
        more = (self.mask_mode, self.order if self.order != "given" else "")
        return ", ".join((self.parameterization, *filter(None, more if self.parameterization in TREES else ())))

    @property
    def config(self) -> Config:
        """Its part of a config; what is not compared is not in it."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value} | {"variant": self.name}


def _variants(orders: Sequence[str] = ("",), mask_modes: Sequence[str] = ("",)) -> tuple[Variant, ...]:
    """Softmax, and every tree in every order with every mask mode."""
    trees = itertools.product(TREES, mask_modes, orders)
    softmax = Variant("softmax", orders[0], mask_modes[-1])
    return (softmax, *(Variant(name, order, mode) for name, mode, order in trees))


# ---- tasks -----------------------------------------------------------------------------------------------------------

SEARCH_SEED, FIRST_FINAL_SEED = 0, 1000
"""The search has the seeds 0, 1, ...: no run is both selected by its luck and reported."""
FACTOR = 3.0
"""From one rate to the next."""
EXTENSIONS = 2
"""How often a grid is extended where its best rate is at its edge, each time by two rates."""

Base = Callable[[Variant, float, int, int], Config]


@dataclasses.dataclass(frozen=True)
class Task:
    """One task of the panel.

    Attributes:
        name: What configs call it.
        title: Of its table.
        metric: What variants are judged by.
        selected_by: What rates are selected by.
        better: Whether lower or higher values of both are better.
        variants: That are compared; the first is softmax.
        first_rate: The lowest rate of the grid.
        steps: Of a final run.
        base: From a variant, a rate, a seed and a number of steps to the task's own part of a config.
        seconds: Of processor time for a final run, as measured.
        search_steps: Of the runs of the search, if not as many.
        rates: In the grid.
        search_seeds: Runs at each rate.
        seeds: Final runs of each variant.
        digits: In its table.
        note: Under its table.
    """

    name: str
    title: str
    metric: str
    selected_by: str
    better: Direction
    variants: tuple[Variant, ...]
    first_rate: float
    steps: int
    base: Base
    seconds: float
    search_steps: int = 0
    rates: int = 5
    search_seeds: int = 1
    seeds: int = 5
    digits: int = 3
    note: str = ""

    @property
    def grid(self) -> tuple[float, ...]:
        """The rates of the search, before it is extended."""
        return tuple(rounded(self.first_rate * FACTOR**place) for place in range(self.rates))

    def config(self, variant: Variant, rate: float, seed: int, steps: int) -> Config:
        """All that decides a run's numbers."""
        what: Config = {"experiment": NAME, "task": self.name, "rate": rate, "seed": seed, "steps": steps}
        return {**variant.config, **self.base(variant, rate, seed, steps), **what}

    def searched(self, variant: Variant, rates: Sequence[float]) -> list[Config]:
        """The runs of a search."""
        seeds = range(SEARCH_SEED, SEARCH_SEED + self.search_seeds)
        steps = self.search_steps or self.steps
        return [self.config(variant, rate, seed, steps) for rate in rates for seed in seeds]

    def repeated(self, variant: Variant, rate: float) -> list[Config]:
        """The final runs."""
        seeds = range(FIRST_FINAL_SEED, FIRST_FINAL_SEED + self.seeds)
        return [self.config(variant, rate, seed, self.steps) for seed in seeds]


def rounded(rate: float) -> float:
    """A rate to four digits."""
    return float(f"{rate:.4g}")


def _small(**sizes: int) -> Base:
    return lambda variant, rate, seed, steps: {**sizes}


def _vae(variant: Variant, rate: float, seed: int, steps: int) -> Config:
    """With the warm-up, whatever the variant: the start is another study's question."""
    few = {"validation_images": 1000, "validation_samples": 16, "test_images": 1000, "test_samples": 64}
    return vae.EXPERIMENT.config(_CELL, f"{variant.parameterization}+warm-up", rate, seed, steps=steps, **few)


_CELL = Cell("adam", "binary", 20, 16)


def _graph(variant: Variant, rate: float, seed: int, steps: int) -> Config:
    return gsl.config(0.5, variant.parameterization, rate, seed, steps=steps)


def _game(variant: Variant, rate: float, seed: int, steps: int) -> Config:
    """With the clip range and the entropy bonus in the middle of what ``minatar`` searches."""
    run = minatar.config("Breakout", variant.parameterization, seed, steps=steps)
    return {**run, **minatar.MIDDLE, "rate": rate}


PANEL = (
    Task(
        name="classifier",
        title="Classifier: log loss",
        metric="test_log_loss",
        selected_by="validation_log_loss",
        better="lower",
        variants=_variants(ORDERS),
        first_rate=0.002,
        steps=500,
        base=_small(batch=64, hidden=64),
        seconds=1.0,
        search_seeds=2,
        note="Nats an image, on 500 test images of scikit-learn's digits.",
    ),
    Task(
        name="bandit",
        title="Bandit with masks: reward",
        metric="test_reward",
        selected_by="validation_reward",
        better="higher",
        variants=tuple(
            variant
            for variant in _variants(("given", "embeddings"), MASK_MODES)
            if variant.parameterization != "natural-reflect"  # 30 seeds on two games say enough: docs/games.md
        ),
        first_rate=0.003,
        steps=400,
        base=_small(batch=64, hidden=32, actions=1000, valid=20),
        seconds=5.0,
        rates=3,
        note="Expected reward of the policy, on 500 contexts with 20 of 1,000 actions valid in each. "
        "A uniform policy earns about 0, the best one 1.7.",
    ),
    Task(
        name="vae",
        title="VAE: negative log-likelihood",
        metric="test_nll",
        selected_by="validation_nll",
        better="lower",
        variants=_variants(),
        first_rate=0.0005,
        steps=1000,
        base=_vae,
        seconds=20.0,
        search_steps=300,
        rates=4,
        digits=1,
        note="Nats an image, on 1,000 test images of binary MNIST, 64 importance samples; N = 20, K = 16.",
    ),
    Task(
        name="gsl",
        title="Graph structure learning: MAE on theta",
        metric="mae_theta",
        selected_by="validation_es",
        better="lower",
        variants=_variants(),
        first_rate=0.005,
        steps=700,
        base=_graph,
        seconds=6.0,
        digits=4,
        note="Mean |theta - theta\\*| over all 576 entries, at theta\\* = 0.5; rates are selected by the validation "
        "energy score.",
    ),
    Task(
        name="minatar",
        title="MinAtar's Breakout: return",
        metric="return",
        selected_by="return",
        better="higher",
        variants=_variants(),
        first_rate=0.0003,
        steps=102_400,
        base=_game,
        seconds=5.0,
        digits=2,
        note="Mean return of the episodes that ended in the last tenth of 102,400 steps of PPO.",
    ),
    Task(
        name="table",
        title="Table of probabilities: divergence",
        metric="test_kl",
        selected_by="validation_kl",
        better="lower",
        variants=_variants(ORDERS),
        first_rate=0.003,
        steps=500,
        base=_small(batch=8, rows=32, classes=64),
        seconds=0.7,
        search_seeds=2,
        digits=4,
        note="KL divergence from the true probabilities, the mean over 32 rows of 64 classes, after 500 steps of 8 "
        "draws a row.",
    ),
)


def _tiny(task: Task) -> Task:
    """Seconds instead of minutes: does it run?"""
    game = task.name == "minatar"  # whose programs take half a minute to compile
    chosen = [v for v in task.variants if not game or v.parameterization in ("softmax", "natural")]
    steps = 4 * ENVS * LENGTH if game else task.steps // 100
    small = dataclasses.replace(task, variants=tuple(chosen), steps=steps, search_steps=0)
    return dataclasses.replace(small, rates=2, search_seeds=1, seeds=2)


PRESETS: dict[str, tuple[Task, ...]] = {
    # A look in minutes: nothing is learned.
    "quick": tuple(map(_tiny, PANEL)),
    # The page in the documentation.
    "evidence": PANEL,
    # One task of it alone.
    **{task.name: (task,) for task in PANEL},
}
