"""The code printed in the README and on the documentation pages runs as printed.

All ``python`` blocks of a page are one script, run top to bottom in a fresh interpreter. A block that is not meant to
be run is fenced as ``{code-block} python``.
"""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROMISE = re.compile(r"^print\(.*\)\s+# (.*)$", re.MULTILINE)


def code_of(page: pathlib.Path) -> str:
    """The page's blocks joined, every line at its place in the page so that a traceback points there."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * (text.count("\n") + 1)
    for block in BLOCK.finditer(text):
        start = text.count("\n", 0, block.start(1))
        code = block[1].splitlines()
        if not any(line.startswith(">>>") for line in code):  # a session is a doctest, and run as one
            lines[start : start + len(code)] = code
    return "\n".join(lines)


def run(code: str, name: str, folder: pathlib.Path) -> str:
    script = folder / f"{name}.py"
    script.write_text(code, encoding="utf-8")
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES if code_of(page).strip()])
def test_page_runs(page, tmp_path):
    stdout = run(code_of(page), page.stem, tmp_path)
    if page.name == "README.md":  # here a comment behind a print is what it prints
        assert stdout.splitlines() == PROMISE.findall(code_of(page))


def test_readme_has_an_example_that_prints():
    assert len(PROMISE.findall(code_of(ROOT / "README.md"))) >= 3
