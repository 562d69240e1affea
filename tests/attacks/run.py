"""Run every attack in a process of its own, with bounds: `python tests/attacks/run.py` prints the table of SECURITY.md.

`--write` puts it there, `--json` is for the test.
"""

from __future__ import annotations

import json
import multiprocessing
import pathlib
import resource
import sys
import tempfile
import time
from typing import Any

sys.path[0] = str(pathlib.Path(__file__).parents[1])  # where every test is imported from

from attacks.attacks import ATTACKS, CONTROLS, Attack, Call  # noqa: E402

PAGE = pathlib.Path(__file__).parents[2] / "SECURITY.md"
MARKS = "<!-- attacks -->\n", "<!-- /attacks -->\n"
# Address space beyond what the process has: what stops an attack that gets through.
_MOST_BYTES = 4 << 30


def measure(attack: Attack) -> dict[str, Any]:
    """What an attack costs and ends in, in a process of its own."""
    fork = multiprocessing.get_context("fork")  # what is imported is there, and memory counts from here
    here, there = fork.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        call = attack.make(pathlib.Path(folder))
        child = fork.Process(target=_attacked, args=(call, there))
        child.start()
        there.close()
        ended = here.poll(2 + 20 * attack.seconds)
        found = here.recv() if ended else {"seconds": float("inf"), "megabytes": 0.0, "error": "killed", "text": ""}
        child.kill()
        child.join()
    return found


def _attacked(call: Call, pipe: Any) -> None:
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _MOST_BYTES,) * 2)
    before, began, error, text = _peak(), time.process_time(), "none", ""
    try:
        call()
    except Exception as raised:
        error, text = type(raised).__name__, str(raised)
    pipe.send({"seconds": time.process_time() - began, "megabytes": _peak() - before, "error": error, "text": text})


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def table(found: list[dict[str, Any]]) -> str:
    """The Markdown of SECURITY.md."""
    lines = ["| reader | attack | before | time | memory | now |", "|---|---|---|---|---|---|"]
    for attack, row in zip(ATTACKS, found, strict=True):
        now = "loads" if row["error"] == "none" else f"`{row['error']}`"
        seconds, megabytes = f"{row['seconds']:.2f} s", f"{row['megabytes']:.0f} MB"
        before = attack.before or "not tried"
        lines.append(f"| `{attack.reader}` | {attack.name} | {before} | {seconds} | {megabytes} | {now} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run all."""
    if "--json" in sys.argv:
        print(json.dumps([measure(attack) for attack in (*ATTACKS, *CONTROLS)]))
        return
    found = [measure(attack) for attack in ATTACKS]
    if "--write" in sys.argv:
        page = PAGE.read_text()
        start, end = page.index(MARKS[0]) + len(MARKS[0]), page.index(MARKS[1])
        PAGE.write_text(page[:start] + "\n" + table(found) + "\n" + page[end:])
    else:
        print(table(found))


if __name__ == "__main__":
    main()
