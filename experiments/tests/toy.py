"""A tiny experiment for the tests of the engine: deterministic arithmetic that sleeps, keeps checkpoints, leaves a log.

What it did is in its log: one file per group, one line per start with the step it started from. What can go wrong, it
does on request, once each: kill its own worker, raise an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import time
from pathlib import Path

import optuna
import pandas as pd
import torch
from memory import Memory

from catnat_experiments.engine.checkpoints import FileCheckpointer
from catnat_experiments.engine.records import group_id, run_id
from catnat_experiments.engine.search import Search, top
from catnat_experiments.engine.types import Checkpointer, Config, Outcome, Stage
from catnat_experiments.report.tables import Claim, Table
from catnat_experiments.report.targets import Target

METHODS = ("alpha", "beta")
RATES = (0.1, 0.2, 0.4)


@dataclasses.dataclass(frozen=True)
class Toy:
    log: str
    steps: int = 4
    sleep: float = 0.0
    every: int = 1  # steps between checkpoints
    batch: int = 3  # runs per group
    seeds: int = 3
    many: int = 1  # runs of preset "many"
    budget: int = 12
    kill_at: int = -1  # the step after which the worker kills itself, once, in the first group that gets there
    fail: str = ""  # the method whose groups raise an error
    history: int = 0  # points of history that the outcome brings

    name = "toy"

    def stages(self, preset: str) -> list[Stage | Search]:
        if preset == "many":
            return [
                Stage("many", lambda frame: [self._run("alpha", 0.1, seed) for seed in range(self.many)], "", self.many)
            ]
        if preset == "search":
            bases = [{"experiment": "toy", "method": method, "seed": 0, "steps": self.steps} for method in METHODS]
            space = {"rate": optuna.distributions.FloatDistribution(0.01, 1.0, log=True)}
            search = Search("search", bases, space, "loss", "lower", self.budget, "TPE over the rate", at_once=2)

            def repeat(frame: pd.DataFrame) -> list[Config]:
                return [{**config, "seed": seed} for config in top(frame, search, 1) for seed in range(1, self.seeds)]

            return [search, Stage("final", repeat, "the best of each method", len(METHODS) * (self.seeds - 1))]
        return [
            Stage("coarse", self._coarse, "a grid of rates", len(METHODS) * len(RATES)),
            Stage("final", self._final, "seeds at the best rate", len(METHODS) * self.seeds),
        ]

    def _run(self, method: str, rate: float, seed: int) -> Config:
        return {"experiment": "toy", "method": method, "rate": rate, "seed": seed, "steps": self.steps}

    def _coarse(self, frame: pd.DataFrame) -> list[Config]:
        return [self._run(method, rate, 0) for method in METHODS for rate in RATES]

    def _final(self, frame: pd.DataFrame) -> list[Config]:
        best = frame.loc[frame.groupby("config.method")["metrics.loss"].idxmin()]
        return [
            self._run(method, float(rate), seed)
            for method, rate in zip(best["config.method"], best["config.rate"], strict=True)
            for seed in range(100, 100 + self.seeds)
        ]

    def groups(self, runs: list[Config]) -> list[list[Config]]:
        return [runs[start : start + self.batch] for start in range(0, len(runs), self.batch)]

    def train(self, runs: list[Config], checkpointer: Checkpointer) -> list[Outcome]:
        state = checkpointer.load()
        generators = [torch.Generator().manual_seed(int(run["seed"])) for run in runs]
        if state is None:
            state = {"step": 0, "x": torch.tensor([[0.3, float(run["rate"])] for run in runs], dtype=torch.float64)}
        else:
            for generator, kept in zip(generators, state["generators"], strict=True):
                generator.set_state(kept)
        self._trace(runs, state["step"])
        if any(run["method"] == self.fail for run in runs):
            raise ZeroDivisionError("this toy was told to fail")
        for step in range(state["step"] + 1, self.steps + 1):
            time.sleep(self.sleep)
            noise = torch.stack([torch.rand(2, generator=generator, dtype=torch.float64) for generator in generators])
            state = {"step": step, "x": 3.9 * state["x"] * (1 - state["x"]) * 0.99 + 0.01 * noise}
            state["generators"] = [generator.get_state() for generator in generators]
            for run, x in enumerate(state["x"].tolist()):
                checkpointer.scalars(run, step, {"x": x[0]})
            if step % self.every == 0:
                checkpointer.save(state, step, self.steps)
            self._maybe_die(step)
        return [self._outcome(run, x) for run, x in zip(runs, state["x"].tolist(), strict=True)]

    def _outcome(self, run: Config, x: list[float]) -> Outcome:
        loss = (float(run["rate"]) - 0.2) ** 2 + 0.001 * x[0] + (0.01 if run["method"] == "beta" else 0.0)
        return Outcome({"loss": loss, "x": x[0], "y": x[1]}, {"long": [0.1] * self.history} if self.history else {})

    def _trace(self, runs: list[Config], step: int) -> None:
        Path(self.log).mkdir(parents=True, exist_ok=True)
        with (Path(self.log) / group_id(runs)).open("a") as file:
            file.write(f"{step}\n")

    def _maybe_die(self, step: int) -> None:
        if step == self.kill_at:
            try:
                (Path(self.log) / ".killed").touch(exist_ok=False)
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)


PRESETS = ("quick", "many", "search")
EXPERIMENT = Toy(**json.loads(os.environ.get("TOY", '{"log": "toy-log"}')))
TABLES = (
    Table(
        title="Loss",
        metric="loss",
        better="lower",
        row="rate",
        row_title="rate",
        column="method",
        columns=METHODS,
        paper={0.2: {"alpha": Target(0.001), "beta": Target(0.01)}},
        claims=(Claim("alpha", "beta"),),
    ),
)


def figures(frame: pd.DataFrame, directory: Path) -> list[Path]:
    path = directory / "toy.txt"
    path.write_text(f"{len(frame)} records\n")
    return [path]


def checkpoint_at(step: int, experiment: Toy, runs: list[Config], directory: Path) -> None:
    """Leave the checkpoint of a group that got as far as a step and was killed."""

    class Stop(Exception):  # noqa: N818
        pass

    def report(progress: dict[str, float]) -> None:
        if progress["step"] >= step:
            raise Stop

    quiet = dataclasses.replace(experiment, log=f"{experiment.log}-before")
    with contextlib.suppress(Stop):
        quiet.train(runs, FileCheckpointer(directory, runs, report))


def undisturbed(experiment: Toy, runs: list[Config]) -> dict[str, dict[str, float]]:
    """Run id -> metrics, computed here and now, in the experiment's own groups."""
    quiet = dataclasses.replace(experiment, log=f"{experiment.log}-undisturbed", sleep=0.0, kill_at=-1)
    found = {}
    for group in experiment.groups(runs):
        outcomes = quiet.train(group, Memory())
        found |= {run_id(run): outcome.metrics for run, outcome in zip(group, outcomes, strict=True)}
    return found


def starts(log: Path | str) -> dict[str, list[int]]:
    """For every group that was started, the steps it started from."""
    return {
        path.name: [int(line) for line in path.read_text().split()]
        for path in Path(log).iterdir()
        if path.name[0] != "."
    }
