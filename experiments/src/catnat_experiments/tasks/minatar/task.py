"""PPO on MinAtar as the engine knows it: a search of equal budget for every parameterization, then many seeds.

Beyond the paper, whose games are Atari's: small games let us afford the seeds that tell differences from luck. Train
one configuration by hand::

    python -m catnat_experiments.minatar --game Breakout --parameterization natural

The algorithm is in ``minatar_ppo.py``.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from optuna.distributions import FloatDistribution

from catnat_experiments.engine.experiment import Config, Keeper, Outcome, Stage, extra, plan_of
from catnat_experiments.engine.loop import Printing, add_point, go_on
from catnat_experiments.engine.records import run_id
from catnat_experiments.engine.search import Search, top
from catnat_experiments.report.markdown import Curve, Table

with extra("minatar"):
    import jax
    import jax.numpy as jnp

    from catnat_experiments.tasks.minatar.ppo import GAMES, POLICIES, Found, Knobs, Sizes, program

METRICS = {
    "return": "mean return of the episodes that ended in the last tenth of the training",
    "return_all": "mean over the 20 points of the training, of the mean return of their episodes: how fast it learns",
    "entropy": "of the policy at the states it visits, in nats, at the last point",
    "dead": "share of the visited states' scores that are dead, at the last point",
    "divergence": "mean KL divergence of an update, from the old policy to the new one, at the last point",
}
LATE = 2
"""The last points of a history: a tenth of it."""
ENVS, LENGTH, EPOCHS, MINIBATCHES, HIDDEN = 16, 64, 3, 4, 64

# ---- training --------------------------------------------------------------------------------------------------------


class Training:
    """Runs that differ in seed, rate, clip and entropy bonus, side by side in one program.

    A run of the search is the mean of several seeds: it has as many lanes of the program.
    """

    def __init__(self, runs: Sequence[Config]) -> None:
        first = runs[0]
        sizes = sizes_of(first)
        self.steps = int(first["steps"]) // (sizes.envs * sizes.length)
        if self.steps < 1:
            raise ValueError(
                f"`steps` is {first['steps']}, but one update takes {sizes.envs} `envs` x {sizes.length} `length`: at "
                f"least {sizes.envs * sizes.length} are needed."
            )
        self.step = 0
        self._shape = (len(runs), int(first["seeds"]))
        self._program = program(str(first["game"]), str(first["parameterization"]), sizes)
        lanes = [{**run, "seed": int(run["seed"]) + lane} for run in runs for lane in range(self._shape[1])]
        self._runs = self._program.start(jnp.array([run["seed"] for run in lanes], jnp.uint32))
        searched = {name: jnp.array([float(run[name]) for run in lanes]) for name in SPACE}
        self._knobs = Knobs(**searched, updates=jnp.full(len(lanes), float(self.steps)))
        self._sums = np.zeros((len(Found._fields), len(lanes)))
        self.history: list[dict[str, list[float]]] = [{} for _ in runs]

    def advance(self) -> None:
        """One update of all lanes."""
        self._runs, found = self._program.update(self._runs, self._knobs)
        self._sums += np.array([np.asarray(values, np.float64) for values in found])
        self.step += 1

    def log(self, since: int) -> list[dict[str, float]]:
        """Add a point to every run's history: what happened since update ``since``."""
        episodes, returns, *means = (values.reshape(self._shape) for values in self._sums)
        with np.errstate(invalid="ignore"):  # no episode has ended: NaN
            mean_return = returns.sum(1) / episodes.sum(1)
        rest = [values.mean(1) / (self.step - since) for values in means]
        names = ("episodes", "return", *Found._fields[2:])
        points = [
            dict(zip(names, map(float, values), strict=True))
            for values in zip(episodes.sum(1), mean_return, *rest, strict=True)
        ]
        for point, history in zip(points, self.history, strict=True):
            add_point(history, self.step, point)
        self._sums[:] = 0
        return points

    def state(self) -> dict[str, Any]:
        """A checkpoint: all that changes, copied."""
        return {
            "step": self.step,
            "arrays": [np.array(leaf) for leaf in jax.tree.leaves(self._runs)],
            "sums": self._sums.copy(),
            "history": [{name: list(values) for name, values in history.items()} for history in self.history],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.step, self._sums = state["step"], state["sums"].copy()
        self._runs = jax.tree.unflatten(jax.tree.structure(self._runs), map(jnp.array, state["arrays"]))
        self.history = [{name: list(values) for name, values in history.items()} for history in state["history"]]


def sizes_of(run: Config) -> Sizes:
    """The part of a config that decides the shapes of its program."""
    return Sizes(*(int(run[name]) for name in Sizes._fields))


def metrics_of(history: dict[str, list[float]]) -> dict[str, float]:
    """The final metrics, from the points of a history."""
    columns: dict[str, NDArray[np.float64]] = {name: np.array(values) for name, values in history.items()}
    episodes, returns = columns["episodes"], np.nan_to_num(columns["return"]) * columns["episodes"]
    late = episodes[-LATE:].sum()
    return {
        "return": float(returns[-LATE:].sum() / late) if late else float("nan"),
        "return_all": float(np.nanmean(columns["return"])) if episodes.any() else float("nan"),
        **{name: history[name][-1] for name in Found._fields[2:]},
    }


def train(runs: Sequence[Config], keeper: Keeper) -> list[Outcome]:
    """Train runs that share a program, going on from the keeper's checkpoint if there is one."""
    if any(_shared(run) != _shared(runs[0]) for run in runs):
        raise ValueError(
            f"Runs trained together may differ in `seed`, {', '.join(f'`{name}`' for name in SPACE)} only: make groups "
            "with EXPERIMENT.groups."
        )
    training = Training(runs)
    go_on(training, keeper)
    return [Outcome(metrics_of(history), history) for history in training.history]


def _shared(run: Config) -> Config:
    return {key: value for key, value in run.items() if key != "seed" and key not in SPACE}


# ---- presets and stages ----------------------------------------------------------------------------------------------

SPACE = {
    "rate": FloatDistribution(1e-4, 1e-2, log=True),
    "clip": FloatDistribution(0.05, 0.5, log=True),
    "entropy": FloatDistribution(1e-4, 0.1, log=True),
}
"""What is searched, for all parameterizations alike."""
MIDDLE: Config = {"rate": 1e-3, "clip": 0.2, "entropy": 0.01}
FIRST_FINAL_SEED = 1000
"""The search has the seeds 0, 1, ...: no run is both selected by its luck and reported."""
MOST_LANES = 10


@dataclasses.dataclass(frozen=True)
class Preset:
    """How much to compute.

    Attributes:
        games: Which.
        steps: Of a run.
        budget: Points that the search tries for each game and parameterization.
        search_seeds: Of each point.
        seeds: At the best point.
        parameterizations: To compare.
    """

    games: tuple[str, ...]
    steps: int
    budget: int
    search_seeds: int
    seeds: int
    parameterizations: tuple[str, ...] = tuple(POLICIES)


PRESETS = {
    # A look in minutes.
    "quick": Preset(("Breakout",), 40_960, 3, 1, 5, ("softmax", "natural")),
    # Two games, enough seeds to tell differences from luck, in about two core-hours.
    "evidence": Preset(("Breakout", "SpaceInvaders"), 204_800, 12, 2, 30),
    # All five games, 24 times the steps and four times the points.
    "full": Preset(GAMES, 5_000_000, 50, 3, 30),
}


def config(game: str, name: str, seed: int, *, steps: int, seeds: int = 1, **knobs: float) -> Config:
    """All that decides a run's numbers; of the search's knobs none, or all."""
    return {
        "experiment": MinAtar.name,
        "game": game,
        "parameterization": name,
        "seed": seed,
        "seeds": seeds,
        "steps": steps,
        "envs": ENVS,
        "length": LENGTH,
        "epochs": EPOCHS,
        "minibatches": MINIBATCHES,
        "hidden": HIDDEN,
        **knobs,
    }


class MinAtar:
    """The experiment: a search by TPE for each game and parameterization, then seeds at its best point."""

    name = "minatar"
    packages = ("jax", "jaxlib", "optax", "gymnax")
    """Whose versions the records note, beside those of all experiments."""

    def stages(self, preset: str) -> list[Stage | Search]:
        """Search and final."""
        plan = plan_of(preset, PRESETS, self.name)
        cells = list(itertools.product(plan.games, plan.parameterizations))
        bases = [config(*cell, 0, steps=plan.steps, seeds=plan.search_seeds) for cell in cells]
        search = Search(
            name="search",
            bases=bases,
            space=SPACE,
            metric="return",
            direction="higher",
            budget=plan.budget,
            about=f"TPE, {plan.budget} points of {plan.search_seeds} seeds, {plan.steps:,} steps",
            alike=tuple({**base, **MIDDLE} for base in bases for _ in range(plan.budget)),
        )
        alike = _repeated([{**base, **MIDDLE} for base in bases], plan.seeds)

        def final(records: pd.DataFrame) -> list[Config]:
            return _repeated(top(records, search, 1), plan.seeds)

        about = f"{plan.seeds} seeds at the best point, {plan.steps:,} steps"
        return [search, Stage("final", final, about, len(alike), tuple(alike))]

    def groups(self, runs: list[Config]) -> list[list[Config]]:
        """Runs that share a program, as many as make ten lanes."""
        together: dict[str, list[Config]] = {}
        for run in runs:
            together.setdefault(run_id(_shared(run)), []).append(run)
        return [
            group[i : i + most]
            for group in together.values()
            for most in (max(1, MOST_LANES // int(group[0]["seeds"])),)
            for i in range(0, len(group), most)
        ]

    def train(self, runs: list[Config], keeper: Keeper) -> list[Outcome]:
        """Train one group; see :func:`train`."""
        return train(runs, keeper)

    def seconds_per_group(self, runs: list[Config]) -> float:
        """What a group will take on this machine, from a few updates of its game; compilation comes on top."""
        lanes = sum(int(run["seeds"]) for run in runs)
        return lanes * int(runs[0]["steps"]) * _seconds_per_step(str(runs[0]["game"]))


def _repeated(chosen: Sequence[Config], seeds: int) -> list[Config]:
    return [{**run, "seed": FIRST_FINAL_SEED + seed, "seeds": 1} for run in chosen for seed in range(seeds)]


@functools.cache
def _seconds_per_step(game: str, lanes: int = 4, updates: int = 3) -> float:
    """Of one seed: processor time, because other work may be on the core."""
    training = Training([{**config(game, "natural", 0, steps=10**6, seeds=lanes), **MIDDLE}])
    training.advance()
    began = time.process_time()
    for _ in range(updates):
        training.advance()
    return (time.process_time() - began) / (updates * lanes * ENVS * LENGTH)


# ---- what the engine and the report take from this file --------------------------------------------------------------

EXPERIMENT = MinAtar()


def _table(title: str, metric: str, better: Any, curves: tuple[Curve, ...] = (), **options: Any) -> Table:
    return Table(
        title=title,
        metric=metric,
        better=better,
        row="game",
        column="parameterization",
        columns=tuple(POLICIES),
        curves=curves,
        **options,
    )


TABLES = (
    _table(
        "Return",
        "return",
        "higher",
        (Curve("return", "mean return", x="step"),),
        digits=2,
        against="softmax",
        chosen=tuple(SPACE),
        note="Mean return of the episodes that ended in the last tenth of the training.",
    ),
    _table("Return over the whole training", "return_all", "higher", digits=2, against="softmax"),
    _table("Entropy of the policy at the end", "entropy", None, (Curve("entropy", "entropy", x="step"),), digits=3),
    _table("Dead scores, share, at the end", "dead", None, (Curve("dead", "dead scores", x="step"),)),
    _table(
        "Divergence of an update at the end",
        "divergence",
        None,
        (Curve("divergence", "KL divergence of an update", x="step", log=True),),
        note="How far an update moved the policy.",
    ),
)


# ---- one run by hand -------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Train some seeds of one configuration and print their mean."""
    parser = argparse.ArgumentParser(prog="python -m catnat_experiments.minatar", description=main.__doc__)
    parser.add_argument("--game", default="Breakout")
    parser.add_argument("--parameterization", default="natural")
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--seeds", type=int, default=2)
    for name in SPACE:
        parser.add_argument(f"--{name}", type=float, default=MIDDLE[name])
    given = parser.parse_args(arguments)
    began = time.perf_counter()
    knobs = {name: getattr(given, name) for name in SPACE}
    run = config(given.game, given.parameterization, 0, steps=given.steps, seeds=given.seeds, **knobs)
    [outcome] = train([run], Printing("return", "entropy", "dead", "divergence"))
    print(f"\n{time.perf_counter() - began:.1f} s")
    for name, about in METRICS.items():
        print(f"{name:12}{outcome.metrics[name]:10.4f}  {about}")


if __name__ == "__main__":
    main()
