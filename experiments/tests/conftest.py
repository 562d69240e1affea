"""One Ray for all tests of a process that do not need their own."""

from __future__ import annotations

import importlib.util
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from catnat_experiments.engine.progress import Display

# The workers that Ray starts must find the toy too.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])

# JAX's programs are compiled here to run a few times: their code need not be fast. XLA reads this once, at an import.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")

# These train on MNIST. With the folder that $CATNAT_DATA names there is nothing to download.
_ON_MNIST = ["common/test_mnist.py", "tasks/test_vae.py", "tasks/test_vae_reinforce.py"]
collect_ignore = [] if "CATNAT_DATA" in os.environ else _ON_MNIST
# These need the extras of their names.
collect_ignore += [] if importlib.util.find_spec("gymnax") else ["tasks/test_minatar.py"]
collect_ignore += [] if importlib.util.find_spec("sklearn") else ["tasks/test_defaults.py"]


@pytest.fixture
def own_ray() -> None:
    """Two CPUs of this machine, started once; the engine finds it running and leaves it alone."""
    import ray

    if not ray.is_initialized():
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")


@pytest.fixture(scope="session", autouse=True)
def _no_ray_is_left() -> Iterator[None]:
    yield
    import ray

    ray.shutdown()


@pytest.fixture
def output() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def display(output: io.StringIO) -> Display:
    return Display(Console(file=output, width=200))


@pytest.fixture
def log(tmp_path: Path) -> Callable[[str], str]:
    """A directory for the traces of a toy, by name."""
    return lambda name: str(tmp_path / f"log-{name}")
