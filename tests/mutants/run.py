"""Does the suite notice bugs? Put each mutant into a copy of the tree, run its tests, and list those that survive.

Usage: ``python tests/mutants/run.py [part of a name ...]``; without names, all of them, and the result is written to
``last_run.md``, which the documentation shows.
"""

import contextlib
import datetime as dt
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from mutants import MUTANTS, Mutant

ROOT = pathlib.Path(__file__).parents[2]
RESULT = pathlib.Path(__file__).with_name("last_run.md")
KILLED, SURVIVED = 1, 0  # pytest's exit status: tests failed, tests passed


@contextlib.contextmanager
def applied(mutant: Mutant, tree: pathlib.Path) -> Iterator[None]:
    """The bug in its file, which is restored afterwards."""
    file = tree / mutant.file
    text = file.read_text(encoding="utf-8")
    if (found := text.count(mutant.old)) != 1:
        raise LookupError(f"{mutant.name}: its old text occurs {found} times in {mutant.file}, but once is needed")
    file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        yield
    finally:
        file.write_text(text, encoding="utf-8")


def tested(mutant: Mutant, tree: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Its tests, up to the first that fails, in a process that imports both packages from ``tree``."""
    package = tree / "experiments" if mutant.tests[0].startswith("experiments/") else tree
    tests = [tree / test for test in mutant.tests]
    paths = os.pathsep.join([str(tree / "src"), str(tree / "experiments/src")])
    # Without bytecode: a mutant of the same length, written in the same second, would be taken for its predecessor.
    # Without kernels: they stand in for the Python code that the mutants are in.
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "CATNAT_KERNELS": "0"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *map(str, tests)]
    return subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True, check=False)


def copied(tree: pathlib.Path) -> None:
    """What git knows of, as it stands in the working tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)


def summary(count: int, survivors: list[str], seconds: float) -> str:
    """A sentence for the documentation."""
    describe = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    noticed = f"the tests noticed {count - len(survivors)} of {count} deliberate bugs"
    left = f", all but {'; '.join(survivors)}" if survivors else ""
    return f"{dt.date.today()}, commit {commit}: {noticed}{left}, in {seconds / 60:.0f} minutes.\n"


def main(parts: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not parts or any(part in mutant.name for part in parts)]
    survivors, begun = [], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        copied(tree)
        for number, mutant in enumerate(chosen, 1):
            start = time.monotonic()
            with applied(mutant, tree):
                done = tested(mutant, tree)
            if done.returncode not in (KILLED, SURVIVED):  # the tests did not run, which proves nothing
                raise RuntimeError(f"{mutant.name}: pytest ended with {done.returncode}\n{done.stdout}{done.stderr}")
            if done.returncode == SURVIVED:
                survivors.append(mutant.name)
            by = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
            verdict = f"killed by {by[1]}" if by else "SURVIVED"
            print(f"[{number}/{len(chosen)}] {time.monotonic() - start:4.0f} s  {mutant.name}: {verdict}", flush=True)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed", *survivors, sep="\nsurvived: ")
    if not parts:
        RESULT.write_text(summary(len(chosen), survivors, time.monotonic() - begun), encoding="utf-8")
    return bool(survivors) or not chosen


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
