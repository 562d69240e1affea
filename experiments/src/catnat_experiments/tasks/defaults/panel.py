"""The panel: three tasks, and the variants that are compared on each."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from catnat_experiments.engine.types import Config, Direction
from catnat_experiments.tasks.defaults.training import ORDERS

# ---- variants --------------------------------------------------------------------------------------------------------

NAME = "defaults"
"""Of the experiment, in configs."""
TREES = ("sigmoid", "natural")
"""Activations, by their names in ``parameterizations.py``."""
MASKED = "renormalize"
"""How records name what a mask means: the conditional distribution. In their time another meaning was compared."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """What is compared.

    Attributes:
        parameterization: "softmax", or the activation of a tree.
        order: Of the classes, where that is compared.
        mask_mode: Where there are masks, :data:`MASKED`.
    """

    parameterization: str
    order: str = ""
    mask_mode: str = ""

    @property
    def name(self) -> str:
        """What differs from the first of its kind, in words.

        >>> Variant("natural", "random").name, Variant("natural", "given", MASKED).name, Variant("softmax").name
        ('natural, random', 'natural, renormalize', 'softmax')
        """
        more = (self.mask_mode, self.order if self.order != "given" else "")
        return ", ".join((self.parameterization, *filter(None, more if self.parameterization in TREES else ())))

    @property
    def config(self) -> Config:
        """Its part of a config; what is not compared is not in it."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value} | {"variant": self.name}


def _variants(orders: Sequence[str], mask_mode: str = "") -> tuple[Variant, ...]:
    """Softmax, and every tree in every order."""
    trees = itertools.product(TREES, orders)
    return (Variant("softmax", orders[0], mask_mode), *(Variant(name, order, mask_mode) for name, order in trees))


# ---- tasks -----------------------------------------------------------------------------------------------------------

SEARCH_SEED, FIRST_FINAL_SEED = 0, 1000
"""The search has the seeds 0, 1, ...: no run is both selected by its luck and reported."""
FACTOR = 3.0
"""From one rate to the next."""
EXTENSIONS = 2
"""How often a grid is extended where its best rate is at its edge, each time by two rates."""


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
        sizes: The task's own part of a config.
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
    sizes: Mapping[str, int]
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
        return {**variant.config, **self.sizes, **what}

    def searched(self, variant: Variant, rates: Sequence[float]) -> list[Config]:
        """The runs of a search."""
        seeds = range(SEARCH_SEED, SEARCH_SEED + self.search_seeds)
        return [self.config(variant, rate, seed, self.steps) for rate in rates for seed in seeds]

    def repeated(self, variant: Variant, rate: float) -> list[Config]:
        """The final runs."""
        seeds = range(FIRST_FINAL_SEED, FIRST_FINAL_SEED + self.seeds)
        return [self.config(variant, rate, seed, self.steps) for seed in seeds]


def rounded(rate: float) -> float:
    """A rate to four digits."""
    return float(f"{rate:.4g}")


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
        sizes={"batch": 64, "hidden": 64},
        search_seeds=2,
        note="Nats an image, natural's with float32's floor, on 500 test images of scikit-learn's digits.",
    ),
    Task(
        name="bandit",
        title="Bandit with masks: reward",
        metric="test_reward",
        selected_by="validation_reward",
        better="higher",
        variants=_variants(("given", "embeddings"), MASKED),
        first_rate=0.003,
        steps=400,
        sizes={"batch": 64, "hidden": 32, "actions": 1000, "valid": 20},
        rates=3,
        note="Expected reward of the policy, on 500 contexts with 20 of 1,000 actions valid in each. "
        "A uniform policy earns about 0, the best one 1.7.",
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
        sizes={"batch": 8, "rows": 32, "classes": 64},
        search_seeds=2,
        digits=4,
        note="KL divergence from the true probabilities, the mean over 32 rows of 64 classes, after 500 steps of 8 "
        "draws a row.",
    ),
)


BANDIT = next(task for task in PANEL if task.name == "bandit")
_SIGMOID = (
    Variant("softmax", "given", MASKED),
    *(Variant("sigmoid", order, MASKED) for order in ("given", "learned", "embeddings")),
)
ORDER = dataclasses.replace(BANDIT, variants=_SIGMOID, seeds=10)
"""Whether a policy finds the order of its actions itself."""
MANY_ACTIONS = dataclasses.replace(
    ORDER,
    name="many actions",
    title="Bandit with 10,000 actions: reward",
    steps=800,
    sizes={"batch": 128, "hidden": 32, "actions": 10_000, "valid": 20},
    seeds=5,
    note="The same with 10,000 actions, and twice as many steps of twice as many contexts.",
)


def _tiny(task: Task) -> Task:
    """Seconds instead of minutes: does it run?"""
    return dataclasses.replace(task, steps=task.steps // 100, rates=2, search_seeds=1, seeds=2)


PRESETS: dict[str, tuple[Task, ...]] = {
    # A look in seconds: nothing is learned.
    "quick": tuple(map(_tiny, PANEL)),
    # The page in the documentation.
    "evidence": PANEL,
    # The page on the order of classes.
    "order": (ORDER,),
    "many-actions": (MANY_ACTIONS,),
}
