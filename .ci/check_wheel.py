"""Whether a wheel holds what its sources hold, and what its own list says: exit status 1 if not.

Usage: ``check_wheel.py WHEEL SRC``. ``check_wheel.py --without FILE [--keep-record] WHEEL COPY`` makes a broken copy.
"""

import argparse
import base64
import csv
import hashlib
import io
import pathlib
import sys
import zipfile


def sources(folder: pathlib.Path) -> dict[str, bytes]:
    """What must be packed: every file below src/ that is not made by Python."""
    files = [file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def contents(wheel: pathlib.Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def faults(packed: dict[str, bytes], wanted: dict[str, bytes]) -> list[str]:
    record = next(name for name in packed if name.endswith(".dist-info/RECORD"))
    listed = {row[0]: row[1] for row in csv.reader(io.StringIO(packed[record].decode()))}
    found = [f"{name} is in the sources but not in the wheel" for name in wanted.keys() - packed.keys()]
    found += [
        f"{name} is in the wheel with other content"
        for name in wanted
        if packed.get(name, wanted[name]) != wanted[name]
    ]
    modules = {name for name in packed if ".dist-info/" not in name}
    found += [f"{name} is in the wheel but not in the sources" for name in modules - wanted.keys()]
    found += [f"{name} is listed in RECORD but not in the wheel" for name in listed.keys() - packed.keys()]
    found += [f"{name} is in the wheel but not listed in RECORD" for name in packed.keys() - listed.keys()]
    for name, digest in listed.items():
        if name in packed and name != record and digest != f"sha256={hashed(packed[name])}":
            found.append(f"{name} does not have the hash that RECORD lists")
    return sorted(found)


def hashed(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def broken_copy(wheel: pathlib.Path, copy: pathlib.Path, without: str, *, keep_record: bool) -> None:
    packed = contents(wheel)
    del packed[without]  # KeyError: there is no such file to take away
    with zipfile.ZipFile(copy, "w") as archive:
        for name, data in packed.items():
            if name.endswith(".dist-info/RECORD") and not keep_record:
                data = b"".join(
                    line for line in data.splitlines(keepends=True) if not line.startswith(without.encode())
                )
            archive.writestr(name, data)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without")
    parser.add_argument("--keep-record", action="store_true")
    parser.add_argument("paths", nargs=2, type=pathlib.Path)
    given = parser.parse_args()
    wheel, other = given.paths
    if given.without:
        broken_copy(wheel, other, given.without, keep_record=given.keep_record)
        return 0
    found = faults(contents(wheel), sources(other))
    print(*(found or [f"{wheel.name} holds all of its sources"]), sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
