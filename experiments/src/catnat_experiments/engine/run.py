"""The engine: runs the stages of an experiment on Ray Tune, and never the same run twice.

Who does what. A *group* of runs is one Tune trial: one CPU, in a worker process that Tune reuses for the next group.
The worker trains and keeps checkpoints; the outcomes travel back through Tune, and the driver, the process of the
command, alone writes records. So records need no shared disk, and there is one writer. Checkpoints lie in
``<results>/.checkpoints/<group id>``, written by the worker: on a cluster with a shared disk any node can go on with
them; without one a group that loses its node starts again from nothing, which costs time and changes no number.

What is lost when something dies. A worker or a node: Tune starts the group again, from its checkpoint. The driver:
repeat the command; groups with all their records are skipped, the others go on from their checkpoints. The state of
Tune itself is thrown away: records and checkpoints are all there is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import ray
import torch
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.search import Searcher

from catnat_experiments.engine import checkpoints, provenance, records
from catnat_experiments.engine.experiment import Experiment
from catnat_experiments.engine.files import write_atomically
from catnat_experiments.engine.lock import only_writer
from catnat_experiments.engine.progress import Display
from catnat_experiments.engine.records import Corrupt, Record, group_id, run_id
from catnat_experiments.engine.search import Search, Studies
from catnat_experiments.engine.stages import StageStatus, survey, unfinished_groups
from catnat_experiments.engine.types import Config

_PATIENCE = 60.0


class UnfinishedError(RuntimeError):
    """Some groups failed, so the stages after them cannot start."""


class AddressError(RuntimeError):
    """A driver cannot join this address."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Where and how the work runs.

    Attributes:
        address: Of a Ray cluster to join ("auto" finds the one of this machine); None starts Ray on this machine alone.
        cpus: Cores to use on this machine; None for all. A cluster knows its own.
        retries: How often a group is started again after its worker, its node or its disk failed. An error of the
            experiment's own code is not tried again: it would come again.
    """

    address: str | None = None
    cpus: int | None = None
    retries: int = 3


def run(experiment: Experiment, preset: str, directory: Path, options: Options, display: Display) -> list[Corrupt]:
    """Run all stages of a preset, as far as they are not done; returns the damaged records that were computed again.

    Raises:
        UnfinishedError: Groups failed; their stage and those after it are not complete.
        BusyError: Another command writes to the same directory.
        AddressError: The address is not one that a driver can join.
        DiskFullError: A record could not be written.
    """
    directory = directory.resolve()
    with only_writer(directory), contextlib.ExitStack() as stack:
        found, corrupt = records.load_all(directory)
        checkpoints.tidy(directory, found)
        for damaged in corrupt:
            display.say(f"The record {damaged.name} is damaged, its run is computed again: {damaged.reason}.")
        for place in range(len(experiment.stages(preset))):
            # Again for every stage: its runs may depend on records that the stage before has made just now.
            statuses = survey(experiment, preset, records.load_all(directory)[0])
            if not statuses[place].complete:
                stack.enter_context(_ray(options))
                later = sum(status.missing for status in statuses[place + 1 :])
                _run_stage(experiment, statuses[place], later, corrupt, directory, options, display)
        return corrupt


def _run_stage(
    experiment: Experiment,
    status: StageStatus,
    later: int,
    corrupt: Sequence[Corrupt],
    directory: Path,
    options: Options,
    display: Display,
) -> None:
    stage = status.stage
    display.stage(stage.name, len(status.done) + status.missing, len(status.done), later)
    writer = RecordWriter(experiment.name, status, directory, display)
    if isinstance(stage, Search):
        again = [run for group in checkpoints.interrupted(directory) for run in group]
        again += [damaged.config for damaged in corrupt if damaged.config is not None]
        studies = Studies(stage, status.done, again)
        _tune(experiment, directory, writer, options, search_alg=_Suggestions(studies), num_samples=studies.remaining)
    else:
        _tune(experiment, directory, writer, options, groups=unfinished_groups(experiment, status))
    if writer.failures or writer.written < status.missing:
        reasons = "".join(f"\n  {group}: {reason}" for group, reason in list(writer.failures.items())[:5])
        raise UnfinishedError(
            f"Stage '{stage.name}' is not complete: {status.missing - writer.written} runs are missing, and "
            f"{len(writer.failures)} group(s) failed.{reasons}\nMore about failures is in {directory / '.errors'}. "
            "What was finished is kept; repeat the command for the rest."
        )


# ---- the worker's side -----------------------------------------------------------------------------------------------


def _work(config: dict[str, str], experiment: Experiment, directory: Path) -> None:
    """A trial: compute one group and report its outcomes. Runs in a worker process."""
    torch.set_num_threads(1)  # one CPU a trial; and another number of threads could change the numbers
    runs = cast("list[Config]", json.loads(config["runs"]))
    packages = getattr(experiment, "packages", ())
    files = checkpoints.FileCheckpointer(directory, runs, tune.report, packages)
    try:
        outcomes = experiment.train(runs, files)
        if len(outcomes) != len(runs):
            raise ValueError(
                f"{experiment.name}.train gave {len(outcomes)} outcomes for {len(runs)} runs, not one each."
            )
    except OSError:
        raise  # a disk or a network may be better next time: Tune tries again
    except Exception:
        tune.report({"error": traceback.format_exc()})
        return
    finally:
        files.close()
    tune.report(
        {
            "outcomes": outcomes,
            "seconds": files.seconds / len(runs),
            "versions": provenance.versions(*packages),
            "commit": provenance.commit(),
        }
    )


# ---- the driver's side -----------------------------------------------------------------------------------------------


class RecordWriter(tune.Callback):
    """Writes the records as outcomes come in, removes checkpoints that are not needed any more, feeds the display."""

    def __init__(self, experiment: str, status: StageStatus, directory: Path, display: Display) -> None:
        self._experiment = experiment
        self._stage = status.stage.name
        self._done = {record.id for record in status.done}
        self._directory = directory
        self._display = display
        self._last_sign = time.monotonic()
        self.written = 0
        self.failures: dict[str, str] = {}  # group -> reason
        self.broken: OSError | None = None  # why records cannot be written

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its parts for a restore that we never ask for

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A group starts."""
        self._last_sign = time.monotonic()
        self._display.started(trial.trial_id, _runs(trial))

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """A group reports progress, its outcomes, or an error of the experiment."""
        if "outcomes" in result:
            self._display.finished(trial.trial_id, self._write(_runs(trial), result))
        elif "error" in result:
            self._failed(trial, result["error"])
        else:
            self._display.progressed(trial.trial_id, result["step"], result["of"], result["before"])

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A group's worker was lost, and Tune starts it again."""
        self._display.retried(trial.trial_id, _last_line(str(trial.get_error())))

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A group failed for good."""
        self._failed(trial, str(trial.get_error()))

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Time passes."""
        self._display.tick()
        if any(trial.status == Trial.RUNNING for trial in trials):
            self._last_sign = time.monotonic()
        elif time.monotonic() - self._last_sign > _PATIENCE:
            self._last_sign = time.monotonic()
            self._display.say("No worker has started for a minute: `ray status` says what the cluster has to spare.")

    def _failed(self, trial: Trial, error: str) -> None:
        name = group_id(_runs(trial))
        write_atomically(self._directory / ".errors" / f"{name}.txt", f"{trial.config['runs']}\n{error}".encode())
        self.failures[name] = _last_line(error)
        self._display.failed(trial.trial_id, self.failures[name])

    def _write(self, runs: Sequence[Config], result: dict[str, Any]) -> int:
        """Write the records that are missing: a group may have been computed again for the sake of one of them."""
        about = {key: result[key] for key in ("seconds", "versions", "commit")}
        new = [
            Record.of(outcome, run, experiment=self._experiment, stage=self._stage, **about)
            for run, outcome in zip(runs, result["outcomes"], strict=True)
            if run_id(run) not in self._done
        ]
        try:
            for record in new:
                records.write(record, self._directory)
                self._done.add(record.id)
                self.written += 1
        except OSError as error:
            self.broken = error
            raise
        checkpoints.forget(self._directory, runs)
        return len(new)


def _runs(trial: Trial) -> list[Config]:
    return cast("list[Config]", json.loads(trial.config["runs"]))


def _last_line(error: str) -> str:
    """Where Python puts the reason; the lines before are the call stack."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason is known"


class _Suggestions(Searcher):
    """Lets Tune draw its trials from the studies of a search."""

    def __init__(self, studies: Studies) -> None:
        super().__init__()
        self._studies = studies
        self._trials: dict[str, Config] = {}

    def suggest(self, trial_id: str) -> dict[str, str] | None:
        config = self._studies.ask()
        if config is None:
            return None  # Tune asks again when a trial has ended
        self._trials[trial_id] = config
        return {"runs": json.dumps([config])}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        outcomes = (result or {}).get("outcomes")
        self._studies.tell(self._trials.pop(trial_id), outcomes[0].metrics if outcomes and not error else None)

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Nothing to save: records and checkpoints are all that a search goes on from."""


def _tune(
    experiment: Experiment,
    directory: Path,
    writer: RecordWriter,
    options: Options,
    *,
    groups: Sequence[Sequence[Config]] = (),
    **search: Any,
) -> None:
    """Let Tune compute all groups, or whatever a search algorithm suggests."""
    space = {"runs": tune.grid_search([json.dumps(group) for group in groups])} if groups else {}
    trainable = tune.with_parameters(_work, experiment=experiment, directory=directory)
    with tempfile.TemporaryDirectory(prefix="catnat-experiments-") as scratch:
        tuner = tune.Tuner(
            tune.with_resources(trainable, {"cpu": 1}),
            param_space=space,
            tune_config=tune.TuneConfig(
                reuse_actors=True,  # a new process costs seconds, as much as many a small group
                trial_name_creator=lambda trial: trial.trial_id,
                trial_dirname_creator=lambda trial: trial.trial_id,
                **search,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=scratch,
                verbose=0,
                callbacks=[writer],
                failure_config=tune.FailureConfig(max_failures=options.retries),
            ),
        )
        try:
            tuner.fit()
        except Exception:
            if writer.broken:  # Tune makes a mere text of what a callback raises
                raise writer.broken from None
            raise


@contextlib.contextmanager
def _ray(options: Options) -> Iterator[None]:
    """Ray, started or joined; one that runs in this process already is used and left alone."""
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # our records and TensorBoard files do that
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # one Ctrl-C ends it: there is no state to save first
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # the new one prints even if told not to
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if (options.address or "").startswith("ray://"):
        raise AddressError(
            f"{options.address} is an address for Ray Client, which would run the driver elsewhere, away from your "
            "files. Give the command on a node of the cluster, with --address auto; `ray job submit` does that for you."
        )
    if ray.is_initialized():
        yield
        return
    alone = options.address is None
    ray.init(
        address="local" if alone else options.address,
        num_cpus=options.cpus if alone else None,
        include_dashboard=False if alone else None,
        log_to_driver=False,  # workers' output would break the display; errors travel with the trial
        logging_level=logging.ERROR,
    )
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # our own display tells of failures
    try:
        yield
    finally:
        ray.shutdown()
