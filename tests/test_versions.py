"""The table of versions that docs/stability.md shows is that of the record."""

import importlib.util
import json
import pathlib
import re

DOCS = pathlib.Path(__file__).parents[1] / "docs"
SPEC = importlib.util.spec_from_file_location("versions", DOCS / "versions.py")
versions = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(versions)


def test_the_page_shows_the_record():
    text, record = versions.PAGE.read_text(encoding="utf-8"), json.loads(versions.RECORD.read_text(encoding="utf-8"))
    assert versions.page(text, record) == text, "run `python docs/versions.py`"
    assert versions.table(record) in text


def test_a_line_of_the_record_is_what_pytest_counted():
    line = versions.ran("row", "FAILED some test\n2 failed, 14 passed, 3 skipped in 1.20s\n")
    assert (line["passed"], line["failed"]) == ("14", "2")
    assert re.fullmatch(r"3\.\d+\.\d+", line["python"])
    assert versions.ran("row", "8 passed in 1.00s")["failed"] == "0"


def test_the_oldest_versions_are_those_that_the_package_declares():
    """The rows of .ci/versions are not in the sdist; what they ran with is."""
    declared = (DOCS.parent / "pyproject.toml").read_text(encoding="utf-8")
    oldest = {row["row"]: row for row in json.loads(versions.RECORD.read_text(encoding="utf-8"))}
    for package in ("torch", "jax"):
        floor = re.search(rf'^{package} = \["{package}>=([\d.]+)"', declared, re.MULTILINE)[1]
        assert oldest[f"{package}-oldest"][package].startswith(f"{floor}."), f"{package} {floor} was not run"
