"""The training of many runs together, in one program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import FloatDistribution

from catnat_experiments.engine import loop
from catnat_experiments.engine.extras import extra
from catnat_experiments.engine.loop import add_point, resume_training
from catnat_experiments.engine.types import Checkpointer, Config, Outcome

with extra("minatar"):
    import jax.numpy as jnp

    from catnat_experiments.tasks.minatar.ppo import Found, Knobs, Sizes, program


METRICS = {
    "return": "mean return of the episodes that ended in the last tenth of the training",
    "return_all": "mean over the 20 points of the history of the mean return of their episodes: the speed of learning",
    "entropy": "entropy of the policy at the visited states, in nats, at the last point",
    "dead": "fraction of the visited states' scores that are saturated, at the last point",
    "divergence": "mean KL divergence of an update, from the old policy to the new one, at the last point",
}
LATE = 2
"""The number of last points in the return: a tenth of the history."""
ENVS, LENGTH, EPOCHS, MINIBATCHES, HIDDEN = 16, 64, 3, 4, 64
SPACE = {
    "rate": FloatDistribution(1e-4, 1e-2, log=True),
    "clip": FloatDistribution(0.05, 0.5, log=True),
    "entropy": FloatDistribution(1e-4, 0.1, log=True),
}
"""The search space, the same for all parameterizations."""


class Training(loop.Training):
    """Runs that differ in seed, learning rate, clip and entropy bonus, trained together in one program.

    A run of the search is the mean of several seeds, and each seed is a lane of the program.
    """

    changing = ("step", "_runs", "_sums", "history")

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
        """Do one update of all lanes."""
        self._runs, found = self._program.update(self._runs, self._knobs)
        self._sums += np.array([np.asarray(values, np.float64) for values in found])
        self.step += 1

    def log(self, since: int) -> list[dict[str, float]]:
        """Add a point to every run's history: sums and means since update ``since``."""
        episodes, returns, *means = (values.reshape(self._shape) for values in self._sums)
        with np.errstate(invalid="ignore"):  # NaN if no episode has ended
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


def sizes_of(run: Config) -> Sizes:
    """Return the config entries that determine the shapes of a program."""
    return Sizes(*(int(run[name]) for name in Sizes._fields))


def metrics_of(history: dict[str, list[float]]) -> dict[str, float]:
    """Return the final metrics, from the points of a history."""
    columns: dict[str, NDArray[np.float64]] = {name: np.array(values) for name, values in history.items()}
    episodes, returns = columns["episodes"], np.nan_to_num(columns["return"]) * columns["episodes"]
    late = episodes[-LATE:].sum()
    return {
        "return": float(returns[-LATE:].sum() / late) if late else float("nan"),
        "return_all": float(np.nanmean(columns["return"])) if episodes.any() else float("nan"),
        **{name: history[name][-1] for name in Found._fields[2:]},
    }


def train(runs: Sequence[Config], checkpointer: Checkpointer) -> list[Outcome]:
    """Train runs that share a program, resuming from the last checkpoint if there is one."""
    if any(shared_config(run) != shared_config(runs[0]) for run in runs):
        raise ValueError(
            f"Runs trained together may differ in `seed`, {', '.join(f'`{name}`' for name in SPACE)} only: make groups "
            "with EXPERIMENT.groups."
        )
    training = Training(runs)
    resume_training(training, checkpointer)
    return [Outcome(metrics_of(history), history) for history in training.history]


def shared_config(run: Config) -> Config:
    """Return the config entries that runs trained together have in common."""
    return {key: value for key, value in run.items() if key != "seed" and key not in SPACE}
