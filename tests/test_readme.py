"""The code printed in the README and on the documentation pages runs as printed.

All ``python`` blocks of a page are one script, run top to bottom in an interpreter that has loaded PyTorch and nothing
else; but those in its tabs for JAX are a second script, and their interpreter is fresh. A block that is not meant to be
run is fenced as ``{code-block} python``.
"""

import importlib.util
import pathlib
import re
import subprocess
import sys

import copies
import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TAB = re.compile(r"^:::\{tab-item\} (\w+)\n(?::sync: (\w+)\n)?(.*?)^:::$", re.MULTILINE | re.DOTALL)
SYNCS = {"PyTorch": "torch", "JAX": "jax"}
PROMISE = re.compile(r"^print\(.*\)\s+# (.*)$", re.MULTILINE)


def tabs_of(page: pathlib.Path) -> list[re.Match[str]]:
    return list(TAB.finditer(page.read_text(encoding="utf-8")))


def code_of(page: pathlib.Path, *, jax_tabs: bool = False) -> str:
    """The page's blocks joined, every line at its place in the page so that a traceback points there."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * (text.count("\n") + 1)
    jax = [tab.span() for tab in tabs_of(page) if tab[1] == "JAX"]
    for block in BLOCK.finditer(text):
        if any(start < block.start() < end for start, end in jax) != jax_tabs:
            continue
        start = text.count("\n", 0, block.start(1))
        code = block[1].splitlines()
        if not any(line.startswith(">>>") for line in code):  # a session is a doctest, and run as one
            lines[start : start + len(code)] = code
    return "\n".join(lines)


def written(code: str, name: str, folder: pathlib.Path) -> pathlib.Path:
    script = folder / f"{name}.py"
    script.write_text(code, encoding="utf-8")
    return script


def pages_with(**which: bool) -> list[object]:
    return [pytest.param(page, id=page.name) for page in PAGES if code_of(page, **which).strip()]


@pytest.mark.parametrize("page", pages_with())
def test_page_runs(page, tmp_path):
    printed = copies.run(written(code_of(page), page.stem, tmp_path))
    if page.name == "README.md":  # here a comment behind a print is what it prints
        assert printed.splitlines() == PROMISE.findall(code_of(page))


@pytest.mark.one_row
@pytest.mark.parametrize("page", pages_with(jax_tabs=True))
def test_jax_tabs_run_without_torch(page, tmp_path):
    without_torch = '\nimport sys\nassert "torch" not in sys.modules, "a tab for JAX loads torch"\n'
    command = [sys.executable, written(code_of(page, jax_tabs=True) + without_torch, page.stem, tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES if tabs_of(page)])
def test_tabs_come_in_pairs_and_switch_together(page):
    tabs = tabs_of(page)
    assert len(tabs) == page.read_text(encoding="utf-8").count("{tab-item}"), "a tab that this test cannot read"
    assert [tab[1] for tab in tabs] == ["PyTorch", "JAX"] * (len(tabs) // 2)
    assert all(tab[2] == SYNCS[tab[1]] for tab in tabs)
    assert all("import torch" not in tab[3] for tab in tabs if tab[1] == "JAX")


@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="the wheel is tested without docs")
def test_pictures_are_what_the_script_draws():
    spec = importlib.util.spec_from_file_location("draw", ROOT / "docs/draw.py")
    draw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw)
    for name, svg in draw.pictures().items():
        assert (ROOT / "docs/_static" / name).read_text(encoding="utf-8") == svg, f"run `python docs/draw.py`: {name}"


def test_readme_has_an_example_that_prints_in_both_frameworks():
    code = code_of(ROOT / "README.md")
    assert len(PROMISE.findall(code)) >= 6
    assert "import catnat.torch as ct" in code
    assert "import catnat.jax as cj" in code
