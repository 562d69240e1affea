"""The checkpointer of an experiment's ``train``: checkpoints on disk, scalars in TensorBoard."""

from __future__ import annotations

import io
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from catnat_experiments.engine.files import write_atomically
from catnat_experiments.engine.provenance import commit, versions
from catnat_experiments.engine.records import Record, group_id, run_id
from catnat_experiments.engine.types import Config


class FileCheckpointer:
    """The checkpointer of one group: its checkpoints on disk, its scalars in TensorBoard.

    Args:
        directory: The results directory.
        runs: The runs of the group.
        report: A function that is called with the progress of every checkpoint.
        packages: The packages whose versions affect results, beside those of all experiments.
    """

    def __init__(
        self,
        directory: Path,
        runs: list[Config],
        report: Callable[[dict[str, Any]], None],
        packages: Sequence[str] = (),
    ) -> None:
        self._directory = directory
        self._runs = runs
        self._report = report
        self._folder = _folder(directory, runs)
        self._made = {"runs": runs, "versions": versions(*packages), "commit": commit()}
        self._began = time.monotonic()
        self._seconds_before, self._steps_before = 0.0, 0
        self._writers: dict[int, Any] = {}

    @property
    def seconds(self) -> float:
        """The working time of this group, with the time up to the checkpoint from which it was resumed."""
        return self._seconds_before + time.monotonic() - self._began

    def load(self) -> Any | None:
        """Return the last checkpoint's state, with its tensors on the CPU, or None.

        A checkpoint is ignored if it cannot be read. It is also ignored if it is from other versions, another commit or
        another order of runs, because such results could not be reproduced.
        """
        try:
            kept = torch.load(self._folder / "state.pt", map_location="cpu", weights_only=False)
            if kept["made"] != self._made:
                raise ValueError("it is from other versions, another commit or another order of runs")
            self._seconds_before, self._steps_before = kept["seconds"], kept["step"]
            return kept["state"]
        except FileNotFoundError:
            return None
        except Exception as error:  # a damaged pickle can raise any error
            print(f"The checkpoint in {self._folder} is of no use, so its group starts again: {error!r}")
            return None

    def save(self, state: Any, step: int, of: int) -> None:
        """Write a checkpoint, completely or not at all, and report that ``step`` of ``of`` steps are done."""
        if not (self._folder / "runs.json").exists():
            write_atomically(self._folder / "runs.json", json.dumps(self._runs).encode())
        buffer = io.BytesIO()
        kept = {"state": state, "step": step, "seconds": self.seconds, "made": self._made}
        torch.save(kept, buffer)
        write_atomically(self._folder / "state.pt", buffer.getvalue())
        self._report({"step": step, "of": of, "before": self._steps_before})

    def scalars(self, run: int, step: int, values: Mapping[str, float]) -> None:
        """Write values of one run at a step for TensorBoard."""
        if run not in self._writers:
            from torch.utils.tensorboard import SummaryWriter

            # purge_step removes what a lost worker wrote after its last checkpoint.
            folder = self._directory / ".tensorboard" / run_id(self._runs[run])
            self._writers[run] = SummaryWriter(str(folder), purge_step=step)
        for name, value in values.items():
            self._writers[run].add_scalar(name, value, step)

    def close(self) -> None:
        """Flush TensorBoard."""
        for writer in self._writers.values():
            writer.close()


def _folder(directory: Path, runs: Sequence[Config]) -> Path:
    return directory / ".checkpoints" / group_id(runs)


def forget(directory: Path, runs: Sequence[Config]) -> None:
    """Remove the checkpoint of a finished group."""
    shutil.rmtree(_folder(directory, runs), ignore_errors=True)


def interrupted(directory: Path) -> list[list[Config]]:
    """Return the groups that have a complete checkpoint."""
    return [
        cast("list[Config]", json.loads((folder / "runs.json").read_text()))
        for folder in sorted(directory.glob(".checkpoints/*"))
        if _is_whole(folder)
    ]


def _is_whole(folder: Path) -> bool:
    """Return whether a checkpoint is complete: no process was killed while it wrote or removed it."""
    return (folder / "state.pt").exists() and (folder / "runs.json").exists()


def tidy(directory: Path, found: Sequence[Record]) -> None:
    """Remove what killed processes left: partial files, and checkpoints of finished groups."""
    for path in [*directory.glob(".*.tmp"), *directory.glob(".checkpoints/*/.*.tmp")]:
        path.unlink(missing_ok=True)
    for folder in directory.glob(".checkpoints/*"):
        if not _is_whole(folder):
            shutil.rmtree(folder, ignore_errors=True)
    done = {record.id for record in found}
    for group in interrupted(directory):
        if all(run_id(run) in done for run in group):
            forget(directory, group)
