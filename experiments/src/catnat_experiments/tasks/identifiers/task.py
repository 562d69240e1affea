"""The experiment on next-token modelling: presets, stages, tables."""

from __future__ import annotations

import dataclasses
from typing import Any

from catnat_experiments.common.selection import SEARCH_SEED, rate_stages
from catnat_experiments.engine.experiment import EveryRunAlone, plan_of
from catnat_experiments.engine.types import Checkpointer, Config, Outcome, Stage
from catnat_experiments.report.tables import Curve, Table
from catnat_experiments.tasks.identifiers.heads import HEADS
from catnat_experiments.tasks.identifiers.model import LENGTH, SIZE, STREAMS
from catnat_experiments.tasks.identifiers.training import train

# ---- presets and stages ----------------------------------------------------------------------------------------------

RATES = (0.0001, 0.0005, 0.002, 0.01)
"""The learning rates, far apart because a softmax with few steps needs high ones."""
SEARCH_FRACTION = 0.2
"""The processor time of a search's run, as a fraction of a final run's."""


@dataclasses.dataclass(frozen=True)
class Preset:
    """The amount of computation.

    Attributes:
        heads: The names of the heads.
        classes: The number of classes, the corpus' most frequent tokens.
        seconds: The processor time of a final run.
        seeds: The number of final runs of every head.
        equal_steps: A power of two that every head reaches.
        validation_windows: The number of windows for the final NLL.
        rates: The learning rates of the search; a single one needs none.
        pass_seconds: Added to a search's run of a learned order: its pass over the data is no shorter than in a final
            run.
        data: "purchases", or the source code of this machine if not given.
    """

    heads: tuple[str, ...]
    classes: int
    seconds: float
    seeds: int
    equal_steps: int
    validation_windows: int = 256
    rates: tuple[float, ...] = RATES
    pass_seconds: float = 0.0
    data: str = ""


_COMPARED = tuple(head for head in HEADS if not head.startswith("learned"))
_ORDERS = ("random sigmoid", "learned sigmoid", "clustered sigmoid", "adaptive")
_CATALOGUE = ("linear_cross_entropy", "sampled", "adaptive", "random sigmoid", "learned sigmoid")
_PASSES = tuple(head for head in HEADS if head.startswith("learned"))
_ORDER = Preset(
    heads=_ORDERS,
    classes=100_000,
    seconds=300.0,
    seeds=10,
    equal_steps=128,
    validation_windows=512,  # differences of hundredths matter
    rates=(0.0005, 0.002),
    pass_seconds=30.0,
)
PRESETS = {
    # A result in minutes: few classes, for which a softmax is not slow.
    "quick": Preset(
        heads=("softmax", "sampled", "huffman sigmoid", "clustered sigmoid"),
        classes=5000,
        seconds=12.0,
        seeds=2,
        equal_steps=64,
        validation_windows=32,
        rates=(0.001, 0.003),
    ),
    # The page in the documentation.
    "evidence": Preset(heads=_COMPARED, classes=100_000, seconds=300.0, seeds=3, equal_steps=128),
    # Orders of the classes, with the pass over the data in the budget.
    "order": _ORDER,
    # The part of the data that the pass needs.
    "order-pass": dataclasses.replace(_ORDER, heads=_PASSES, seeds=3, rates=(0.0005,)),
    # A supermarket's catalogue: the next product of a customer.
    "purchases": Preset(heads=_CATALOGUE, classes=20_000, seconds=60.0, seeds=5, equal_steps=128, data="purchases"),
}


def config(head: str, rate: float, seed: int, plan: Preset, *, is_search: bool = False) -> Config:
    """Return all that affects a run except the machine's speed."""
    seconds = plan.seconds
    if is_search:
        seconds = SEARCH_FRACTION * seconds + plan.pass_seconds * head.startswith("learned")
    return {
        **({"data": plan.data} if plan.data else {}),
        "experiment": Identifiers.name,
        "parameterization": head,
        "rate": rate,
        "seed": seed,
        "classes": plan.classes,
        "seconds": seconds,
        "equal_steps": plan.equal_steps,
        "validation_windows": plan.validation_windows,
        "size": SIZE,
        "streams": STREAMS,
        "length": LENGTH,
    }


class Identifiers(EveryRunAlone):
    """The experiment: a search for learning rates, then final seeds; every run is a group."""

    name = "identifiers"

    def stages(self, preset: str) -> list[Stage]:
        """Return the stages search and final."""
        plan = plan_of(preset, PRESETS, self.name)
        return rate_stages(
            plan.heads,
            {"search": plan.rates} if len(plan.rates) > 1 else {},
            plan.seeds,
            searched=lambda head, rate: config(head, rate, SEARCH_SEED, plan, is_search=True),
            final=lambda head, rate, seed: config(head, rate, seed, plan),
            fixed=plan.rates,
        )

    def train_one(self, run: Config, checkpointer: Checkpointer) -> Outcome:
        """Train a run; see :func:`train`."""
        return train(run, checkpointer)


# ---- the experiment, its tables and figures --------------------------------------------------------------------------

EXPERIMENT = Identifiers()


def _table(title: str, metric: str, *, higher: bool = False, **options: Any) -> Table:
    return Table(
        title=title,
        metric=metric,
        better="higher" if higher else "lower",
        row="classes",
        row_title="K",
        column="parameterization",
        columns=HEADS,
        **options,
    )


TABLES = (
    _table(
        "Validation NLL at equal processor time",
        "validation_nll",
        digits=3,
        chosen=("rate", "seconds"),
        curves=(Curve("nll", "validation NLL", x="seconds", x_title="seconds of processor time"),),
    ),
    _table(
        "Validation NLL at equal steps",
        "nll_at_equal_steps",
        digits=3,
        chosen=("equal_steps",),
        curves=(Curve("nll_by_step", "validation NLL", x="steps_by_step", log_x=True),),
        note="On a smaller sample of the validation files than the NLL at equal time.",
    ),
    _table("Perplexity", "perplexity", digits=1),
    _table("Accuracy of the most probable token", "accuracy_1", higher=True),
    _table("Accuracy of the five most probable tokens", "accuracy_5", higher=True),
    _table(
        "Share of scores that the search for five classes took",
        "visited",
        note="The softmaxes compute all of them; catnat's search leaves out what cannot be among the five.",
    ),
    _table("Steps a second of processor time", "steps_per_second", higher=True, digits=2),
    _table(
        "Preparation, seconds of processor time",
        "preparation_seconds",
        digits=1,
        note="Before the clock: building the tree and drawing the start. A worker keeps a tree for its next run, which "
        "then has only the start.",
    ),
)
