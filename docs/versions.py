"""Which versions the tests ran on: docs/versions.json, and from it the table of docs/stability.md.

Run by ``.ci/versions`` in the environment of a row: ``python docs/versions.py NAME LOG``. LOG is what pytest printed.
Without arguments it only writes the table again.
"""

import datetime as dt
import importlib.metadata
import json
import pathlib
import platform
import re
import sys

HERE = pathlib.Path(__file__).parent
RECORD, PAGE = HERE / "versions.json", HERE / "stability.md"
FIELDS = {"row": "row of `.ci/versions`", "python": "Python", "torch": "PyTorch", "jax": "JAX", "numpy": "NumPy"}
MARKS = re.compile(r"(?<=<!-- versions -->\n).*?(?=<!-- end of versions -->)", re.DOTALL)


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return ""


def ran(name: str, log: str) -> dict[str, str]:
    """One line of the record, about the environment that runs this."""
    passed, failed = (re.findall(rf"(\d+) {word}", log)[-1:] for word in ("passed", "(?:failed|error)"))
    return {
        "row": name,
        "python": platform.python_version(),
        **{package: version(package) for package in ("torch", "jax", "numpy")},
        "passed": "".join(passed) or "0",
        "failed": "".join(failed) or "0",
        "date": dt.date.today().isoformat(),
    }


def table(record: list[dict[str, str]]) -> str:
    names = {**FIELDS, "passed": "passed", "failed": "failed", "date": "on"}
    lines = [list(names.values()), ["---"] * len(names), *([row[field] for field in names] for row in record)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page(text: str, record: list[dict[str, str]]) -> str:
    """The page with the table of a record between its marks."""
    return MARKS.sub(lambda _: table(record), text)


def main(arguments: list[str]) -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else []
    if arguments:
        name, log = arguments
        record = [row for row in record if row["row"] != name]
        record.append(ran(name, pathlib.Path(log).read_text(encoding="utf-8")))
        record.sort(key=lambda row: row["row"])
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), record), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
