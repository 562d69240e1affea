"""Run scripts in copies of one clean process that has imported torch, which takes seconds, and nothing else."""

import multiprocessing
import os
import pathlib
import runpy

SERVER = multiprocessing.get_context("forkserver")
# catnat.torch needs the second, which takes as long again to import.
SERVER.set_forkserver_preload(["torch", "torch._dynamo"])


def run(script: pathlib.Path) -> str:
    """What a script prints, run in its own folder; an error of it fails the test with its traceback."""
    process = SERVER.Process(target=_run, args=(script,))
    process.start()
    process.join(timeout=300)
    process.kill()  # if it still runs: then it has no exit code, which fails the test
    printed, told = (script.with_suffix(ending).read_text(encoding="utf-8") for ending in (".out", ".err"))
    assert process.exitcode == 0, told
    return printed


def _run(script: pathlib.Path) -> None:
    os.chdir(script.parent)
    for stream, ending in ((1, ".out"), (2, ".err")):
        with script.with_suffix(ending).open("w") as file:
            os.dup2(file.fileno(), stream)
    runpy.run_path(str(script), run_name="__main__")
