"""Every attack ends in its error, within its bounds of time and memory: see attacks.py and SECURITY.md."""

import json
import math
import pathlib
import re
import subprocess
import sys

import pytest
from attacks.attacks import ATTACKS, CONTROLS

ROOT = pathlib.Path(__file__).parents[2]
NAMES = [f"{attack.reader}: {attack.name}" for attack in (*ATTACKS, *CONTROLS)]


@pytest.fixture(scope="module")
def measured():
    """What all of them cost and end in, measured one after the other in processes of their own."""
    command = [sys.executable, str(pathlib.Path(__file__).with_name("run.py")), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(zip(NAMES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize(("attack", "name"), [*zip(ATTACKS, NAMES, strict=False)], ids=NAMES[: len(ATTACKS)])
def test_attack(attack, name, measured):
    found = measured[name]
    assert found["error"] == ("none" if attack.error is None else attack.error.__name__), found["text"]
    assert re.search(attack.says, found["text"], re.DOTALL)
    assert len(found["text"]) < 1000
    assert found["seconds"] < attack.seconds
    assert found["megabytes"] < attack.megabytes


def test_what_gets_through_is_seen(measured):
    memory, time, no_end = (measured[name] for name in NAMES[len(ATTACKS) :])
    assert memory["megabytes"] > 250
    assert time["seconds"] > 1
    assert math.isinf(no_end["seconds"])


def test_the_page_has_every_attack():
    """`python tests/attacks/run.py --write` makes the table; where only the tests are, there is no page."""
    page = ROOT / "SECURITY.md"
    if not page.exists():
        pytest.skip("no SECURITY.md beside the tests")
    rows = re.findall(r"^\| `([^`]+)` \| (.+?) \| [^|]+ \| [^|]+ s \| [^|]+ MB \|", page.read_text(), re.MULTILINE)
    assert [f"{reader}: {name}" for reader, name in rows] == NAMES[: len(ATTACKS)]
