"""What happens when something dies, with real processes, real signals and a real Ray.

A killed run must come to the same numbers, bit for bit, as one that nothing happened to; no finished run is computed
again, none is lost or doubled. What was computed how often is in the log of the toy.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import toy
from toy import Toy

from catnat_experiments.engine import checkpoints, records, stages
from catnat_experiments.engine import run as engine
from catnat_experiments.engine.progress import Display
from catnat_experiments.engine.run import Options
from catnat_experiments.engine.search import Search

Log = Callable[[str], str]


def check_numbers(experiment: Toy, preset: str, results: Path) -> None:
    """All records are there and good, and their metrics are those of an undisturbed run."""
    found, corrupt = records.load_all(results)
    statuses = stages.survey(experiment, preset, found)
    assert corrupt == []
    assert all(status.complete for status in statuses)
    grids = [status.runs or [] for status in statuses if not isinstance(status.stage, Search)]
    expected = {}
    for runs in grids:
        expected |= toy.undisturbed(experiment, runs)
    assert {record.id: record.metrics for record in found if record.id in expected} == expected
    assert not list(results.glob(".checkpoints/*"))


# ---- the worker ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("own_ray")
def test_killed_worker_goes_on_from_its_checkpoint(tmp_path: Path, log: Log, display: Display, output: object) -> None:
    experiment = Toy(log("a"), many=3, batch=1, steps=6, every=2, kill_at=3)
    engine.run(experiment, "many", tmp_path, Options(), display)
    check_numbers(experiment, "many", tmp_path)
    assert sorted(toy.starts(log("a")).values()) == [[0], [0], [0, 2]]
    assert "starts again from its checkpoint" in output.getvalue()  # type: ignore[attr-defined]


# ---- the driver ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def command(experiment: Toy, preset: str, results: Path) -> Iterator[subprocess.Popen[str]]:
    """`catnat-experiments run toy` as a process of its own."""
    fields = {name: getattr(experiment, name) for name in experiment.__dataclass_fields__}
    arguments = ["run", "toy", "--preset", preset, "--results", str(results), "--cpus", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "catnat_experiments.cli", *arguments],
        env={**os.environ, "TOY": json.dumps(fields)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"the command ended by itself:\n{process.communicate()[0]}"
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.02)


def kill_and_repeat(experiment: Toy, preset: str, results: Path, log: str) -> set[str]:
    """Kill the driver when one group is done and another has a checkpoint; repeat; the ids that were done before."""
    with command(experiment, preset, results) as process:
        wait_for(lambda: _one_done_and_one_under_way(results), process)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
    before = {path.name: path.read_bytes() for path in results.glob("*.json")}
    with command(experiment, preset, results) as process:
        told, _ = process.communicate(timeout=240)
    assert process.returncode == 0, told
    assert "The whole report" in told
    assert (results / "toy.txt").exists()  # the figures of its own
    assert {name: (results / name).read_bytes() for name in before} == before
    return {name.removesuffix(".json") for name in before}


def _one_done_and_one_under_way(results: Path) -> bool:
    done = {path.stem for path in results.glob("*.json")}
    with contextlib.suppress(FileNotFoundError):  # a checkpoint may be removed while we look
        return bool(done) and any(records.run_id(group[0]) not in done for group in checkpoints.interrupted(results))
    return False


def test_killed_driver_and_the_command_repeated(tmp_path: Path, log: Log) -> None:
    experiment = Toy(log("a"), many=10, batch=2, steps=8, sleep=0.15)
    done = kill_and_repeat(experiment, "many", tmp_path, log("a"))
    assert 0 < len(done) < 10
    check_numbers(experiment, "many", tmp_path)
    runs = stages.survey(experiment, "many", [])[0].runs or []
    starts = toy.starts(log("a"))
    assert len(starts) == 5
    resumed = 0
    for group in experiment.groups(runs):
        steps = starts[records.group_id(group)]
        if all(records.run_id(run) in done for run in group):
            assert steps == [0]  # finished before the kill: never again
        else:
            assert len(steps) <= 2
            resumed += steps[-1] > 0
    assert resumed > 0  # what had a checkpoint went on from there


@pytest.mark.slow
def test_killed_driver_of_a_search(tmp_path: Path, log: Log) -> None:
    experiment = Toy(log("a"), budget=6, steps=8, sleep=0.1)
    done = kill_and_repeat(experiment, "search", tmp_path, log("a"))
    search, final = stages.survey(experiment, "search", records.load_all(tmp_path)[0])
    assert (len(search.done), search.complete, final.complete) == (12, True, True)
    check_numbers(experiment, "search", tmp_path)
    starts = toy.starts(log("a"))
    assert all(starts[records.group_id([r.config])] == [0] for r in search.done if r.id in done)
    assert any(steps[-1] > 0 for steps in starts.values())


# ---- a node ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_node_lost_from_a_cluster_of_three(tmp_path: Path, log: Log, display: Display, output: object) -> None:
    import ray
    from ray.cluster_utils import Cluster

    ray.shutdown()
    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        nodes = [cluster.add_node(**node) for _ in range(2)]
        cluster.wait_for_nodes()
        experiment = Toy(log("a"), many=12, batch=1, steps=10, sleep=0.3)
        remover = threading.Thread(target=_remove_when_busy, args=(cluster, nodes[0], tmp_path))
        remover.start()
        engine.run(experiment, "many", tmp_path, Options(address=cluster.address), display)
        remover.join(timeout=60)
        assert len(cluster.list_all_nodes()) == 2
    finally:
        ray.shutdown()
        cluster.shutdown()
    check_numbers(experiment, "many", tmp_path)
    starts = toy.starts(log("a"))
    assert sorted(map(len, starts.values())) == [1] * 11 + [2]  # one group was on the node
    assert "starts again from its checkpoint" in output.getvalue()  # type: ignore[attr-defined]


def _remove_when_busy(cluster: object, node: object, results: Path) -> None:
    """Wait until all three nodes have worked on something for a while, then take one away without a word."""
    while len(list(results.glob("*.json"))) < 4 or len(list(results.glob(".checkpoints/*/state.pt"))) < 3:
        time.sleep(0.05)
    cluster.remove_node(node, allow_graceful=False)  # type: ignore[attr-defined]


# ---- the disk --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_full_disk_ends_the_command_with_a_clear_message(tmp_path: Path, log: Log) -> None:
    """The limit is set in the driver alone, once Ray is up: the records are too large for it, Ray's files are not."""
    program = """
        import resource, sys
        import ray
        from catnat_experiments import cli
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        if sys.argv[2] == "limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        sys.argv[1:] = ["run", "toy", "--preset", "many", "--results", sys.argv[1]]
        cli.app()
    """
    experiment = {"log": log("a"), "many": 2, "batch": 1, "history": 50_000}
    results = tmp_path / "results"
    said = {}
    for limit in ("limit", "none"):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), str(results), limit],
            env={**os.environ, "TOY": json.dumps(experiment)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        said[limit] = (done.returncode, done.stdout)
        if limit == "limit":
            assert list(results.glob("*.json")) == []
    assert said["limit"][0] == 1
    assert "No room to write" in said["limit"][1]
    assert "Traceback" not in said["limit"][1]
    assert said["none"][0] == 0, said["none"]
    check_numbers(Toy(**experiment), "many", results)
