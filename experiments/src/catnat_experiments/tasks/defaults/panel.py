"""The panel of three tasks, the variants compared on each, and the presets."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from catnat_experiments.engine.types import Config, Direction
from catnat_experiments.tasks.defaults.training import ORDERS

# ---- variants --------------------------------------------------------------------------------------------------------

NAME = "defaults"
"""The name of the experiment in configs."""
TREES = ("sigmoid", "natural")
"""Activations, by their names in ``parameterizations.py``."""
MASKED = "renormalize"
"""The name in records of a mask with the conditional distribution; older versions had another kind of mask."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """A parameterization with an order of classes and a kind of mask.

    Attributes:
        parameterization: "softmax", or the activation of a tree.
        order: The order of the classes, if it is compared.
        mask_mode: :data:`MASKED` for a task with masks.
    """

    parameterization: str
    order: str = ""
    mask_mode: str = ""

    @property
    def name(self) -> str:
        """The name in tables: the parameterization, and for trees the kind of mask and the order if it is not given.

        >>> Variant("natural", "random").name, Variant("natural", "given", MASKED).name, Variant("softmax").name
        ('natural, random', 'natural, renormalize', 'softmax')
        """
        more = (self.mask_mode, self.order if self.order != "given" else "")
        return ", ".join((self.parameterization, *filter(None, more if self.parameterization in TREES else ())))

    @property
    def config(self) -> Config:
        """The config entries of the variant, without empty ones."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value} | {"variant": self.name}


def _variants(orders: Sequence[str], mask_mode: str = "") -> tuple[Variant, ...]:
    """Return softmax, and every tree in every order."""
    trees = itertools.product(TREES, orders)
    return (Variant("softmax", orders[0], mask_mode), *(Variant(name, order, mask_mode) for name, order in trees))


# ---- tasks -----------------------------------------------------------------------------------------------------------

SEARCH_SEED, FIRST_FINAL_SEED = 0, 1000
"""The first seeds of the search and of final runs. They do not overlap, so no run is both selected and reported."""
FACTOR = 3.0
"""The factor between neighbouring learning rates of a grid."""
EXTENSIONS = 2
"""The largest number of extensions, by two learning rates each, of a grid whose best one is at its edge."""


@dataclasses.dataclass(frozen=True)
class Task:
    """One task of the panel.

    Attributes:
        name: The name in configs.
        title: The title of its table.
        metric: The metric of the comparison.
        selected_by: The metric that selects learning rates.
        better: Whether lower or higher values of both metrics are better.
        variants: The variants; the first is softmax.
        first_rate: The lowest learning rate of the grid.
        steps: The number of steps of every run.
        sizes: The config entries of this task alone.
        rates: The number of learning rates in the grid.
        search_seeds: The number of runs at each learning rate.
        seeds: The number of final runs of each variant.
        digits: The number of decimals in its table.
        note: The note under its table.
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
        """The learning rates of the search, before it is extended."""
        return tuple(rounded(self.first_rate * FACTOR**place) for place in range(self.rates))

    def config(self, variant: Variant, rate: float, seed: int, steps: int) -> Config:
        """Return all that affects a run."""
        what: Config = {"experiment": NAME, "task": self.name, "rate": rate, "seed": seed, "steps": steps}
        return {**variant.config, **self.sizes, **what}

    def searched(self, variant: Variant, rates: Sequence[float]) -> list[Config]:
        """Return the runs of a search."""
        seeds = range(SEARCH_SEED, SEARCH_SEED + self.search_seeds)
        return [self.config(variant, rate, seed, self.steps) for rate in rates for seed in seeds]

    def repeated(self, variant: Variant, rate: float) -> list[Config]:
        """Return the final runs."""
        seeds = range(FIRST_FINAL_SEED, FIRST_FINAL_SEED + self.seeds)
        return [self.config(variant, rate, seed, self.steps) for seed in seeds]


def rounded(rate: float) -> float:
    """Return a learning rate with four digits."""
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
        note="Nats per image, on 500 test images of scikit-learn's digits. Natural's log-probabilities have float32's "
        "floor.",
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
        note="KL divergence from the true to the learned probabilities, a mean over 32 rows of 64 classes, after 500 "
        "steps with 8 samples per row.",
    ),
)


BANDIT = next(task for task in PANEL if task.name == "bandit")
_SIGMOID = (
    Variant("softmax", "given", MASKED),
    *(Variant("sigmoid", order, MASKED) for order in ("given", "learned", "embeddings")),
)
ORDER = dataclasses.replace(BANDIT, variants=_SIGMOID, seeds=10)
"""The bandit with a policy that learns the order of its actions."""
MANY_ACTIONS = dataclasses.replace(
    ORDER,
    name="many actions",
    title="Bandit with 10,000 actions: reward",
    steps=800,
    sizes={"batch": 128, "hidden": 32, "actions": 10_000, "valid": 20},
    seeds=5,
    note="The bandit with masks for 10,000 actions, with twice as many steps of twice as many contexts.",
)


def _tiny(task: Task) -> Task:
    """Return a short version of a task for a test run in seconds."""
    return dataclasses.replace(task, steps=task.steps // 100, rates=2, search_seeds=1, seeds=2)


PRESETS: dict[str, tuple[Task, ...]] = {
    # A test run in seconds, too short to learn.
    "quick": tuple(map(_tiny, PANEL)),
    # The page in the documentation.
    "evidence": PANEL,
    # The page on the order of classes.
    "order": (ORDER,),
    "many-actions": (MANY_ACTIONS,),
}
