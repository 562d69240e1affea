"""The engine, which runs the stages of an experiment on Ray Tune, and no run twice.

Processes. A *group* of runs is one Tune trial: one CPU, in a worker process that Tune reuses for the next group. The
worker trains and writes checkpoints. Outcomes return through Tune to the driver, the process of the command, which
alone writes records. So records need no shared disk and have one writer. Checkpoints are in
``<results>/.checkpoints/<group id>``. With a shared disk any node of a cluster can continue from them. Without one a
group that loses its node starts from the beginning, which costs time and does not change results.

Failures. If a worker or a node is lost, Tune starts the group again, from its checkpoint. If the driver is lost, repeat
the command: groups with all their records are skipped, the others continue from their checkpoints. The state of Tune is
not kept, because records and checkpoints are enough.
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
    """The options of Ray and of retries.

    Attributes:
        address: The address of a Ray cluster ("auto" finds the one of this machine); None starts Ray on this machine.
        cpus: The number of cores to use on this machine; None for all. It is ignored on a cluster.
        retries: The number of new starts of a group after its worker, its node or its disk failed. Errors of the
            experiment's own code are not retried, because they would occur again.
    """

    address: str | None = None
    cpus: int | None = None
    retries: int = 3


def run(experiment: Experiment, preset: str, directory: Path, options: Options, display: Display) -> list[Corrupt]:
    """Run the incomplete stages of a preset, and return the damaged records that were found at the start.

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
            # Again for every stage, because its runs may depend on new records of the stage before.
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
            "Finished runs are kept; repeat the command for the rest."
        )


# ---- the worker's side -----------------------------------------------------------------------------------------------


def _work(config: dict[str, str], experiment: Experiment, directory: Path) -> None:
    """Compute one group in a worker process and report its outcomes; a trial of Tune."""
    torch.set_num_threads(1)  # one CPU per trial; another number of threads could change results
    runs = cast("list[Config]", json.loads(config["runs"]))
    packages = getattr(experiment, "packages", ())
    files = checkpoints.FileCheckpointer(directory, runs, tune.report, packages)
    try:
        outcomes = experiment.train(runs, files)
        if len(outcomes) != len(runs):
            raise ValueError(
                f"{experiment.name}.train returned {len(outcomes)} outcomes for {len(runs)} runs, not one each."
            )
    except OSError:
        raise  # Tune tries again, because an error of a disk or a network may be temporary
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
    """The callback that writes records of outcomes, removes their checkpoints, and updates the display."""

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
        return {}  # Tune pickles its parts for a restore, which is not used

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Show that a group starts."""
        self._last_sign = time.monotonic()
        self._display.started(trial.trial_id, _runs(trial))

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """Handle the progress of a group, its outcomes, or an error of the experiment."""
        if "outcomes" in result:
            self._display.finished(trial.trial_id, self._write(_runs(trial), result))
        elif "error" in result:
            self._failed(trial, result["error"])
        else:
            self._display.progressed(trial.trial_id, result["step"], result["of"], result["before"])

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Show that a group's worker was lost, and that Tune starts it again."""
        self._display.retried(trial.trial_id, _last_line(str(trial.get_error())))

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Note a group that failed and is not retried."""
        self._failed(trial, str(trial.get_error()))

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Update the display, and warn if no worker starts."""
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
        """Write the missing records; a group may have been computed again for one of them."""
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
    """Return the last line, which is the reason; the lines before are the call stack."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason is known"


class _Suggestions(Searcher):
    """A searcher of Tune that takes its trials from the studies of a search."""

    def __init__(self, studies: Studies) -> None:
        super().__init__()
        self._studies = studies
        self._trials: dict[str, Config] = {}

    def suggest(self, trial_id: str) -> dict[str, str] | None:
        config = self._studies.ask()
        if config is None:
            return None  # Tune calls this again when a trial has ended
        self._trials[trial_id] = config
        return {"runs": json.dumps([config])}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        outcomes = (result or {}).get("outcomes")
        self._studies.tell(self._trials.pop(trial_id), outcomes[0].metrics if outcomes and not error else None)

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: a search continues from records and checkpoints alone."""


def _tune(
    experiment: Experiment,
    directory: Path,
    writer: RecordWriter,
    options: Options,
    *,
    groups: Sequence[Sequence[Config]] = (),
    **search: Any,
) -> None:
    """Compute with Tune all groups, or the trials of a search algorithm."""
    space = {"runs": tune.grid_search([json.dumps(group) for group in groups])} if groups else {}
    trainable = tune.with_parameters(_work, experiment=experiment, directory=directory)
    with tempfile.TemporaryDirectory(prefix="catnat-experiments-") as scratch:
        tuner = tune.Tuner(
            tune.with_resources(trainable, {"cpu": 1}),
            param_space=space,
            tune_config=tune.TuneConfig(
                reuse_actors=True,  # a new process takes seconds, as long as a small group
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
            if writer.broken:  # Tune converts an error of a callback to text
                raise writer.broken from None
            raise


@contextlib.contextmanager
def _ray(options: Options) -> Iterator[None]:
    """Start or join Ray, and shut it down at the end; Ray that already runs in this process is only used."""
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # our records and TensorBoard files replace them
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # one Ctrl-C ends it, as no state must be saved first
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # the new output prints even with verbose=0
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if (options.address or "").startswith("ray://"):
        raise AddressError(
            f"{options.address} is an address for Ray Client, which would run the driver elsewhere, away from your "
            "files. Run the command on a node of the cluster, with --address auto; `ray job submit` does that for you."
        )
    if ray.is_initialized():
        yield
        return
    alone = options.address is None
    ray.init(
        address="local" if alone else options.address,
        num_cpus=options.cpus if alone else None,
        include_dashboard=False if alone else None,
        log_to_driver=False,  # workers' output would break the display; trials contain their errors
        logging_level=logging.ERROR,
    )
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # our own display shows failures
    try:
        yield
    finally:
        ray.shutdown()
