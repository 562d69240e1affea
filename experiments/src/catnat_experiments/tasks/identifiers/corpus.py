"""A corpus that every machine has: the tokens of the Python standard library's sources and of some installed packages.

Names, keywords, operators and numbers are tokens. Every string becomes ``<string>``, every comment ``<comment>``, and
``<end>`` ends a file. The corpus is built once, in a few minutes, and kept in the user's cache directory. It depends on
the versions of Python and of the packages, so the folder's name has their hash, and a corpus has a fingerprint.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
import platform
import sysconfig
import tempfile
import tokenize
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import filelock
import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from catnat_experiments.engine.records import canonical

Ints = NDArray[np.int32]

CACHE = "CATNAT_CACHE"
"""The environment variable that names another cache directory."""
PACKAGES = ("torch", "numpy", "scipy", "pandas", "ray", "sympy", "matplotlib", "networkx", "sqlalchemy")
"""The dependencies of catnat-experiments with the most source code."""
VALIDATION = 0.05
"""The fraction of files for validation."""
LEAST = 2
"""Tokens that occur less often than this in the training files are ``<unk>``."""
STRING, COMMENT, END, UNKNOWN = "<string>", "<comment>", "<end>", "<unk>"
_FORMAT = 1
"""The version of the tokens; change it when they change, so that older folders are not used."""

_KEPT = {tokenize.NAME, tokenize.OP, tokenize.NUMBER}
_FOLDED = {tokenize.STRING: STRING, tokenize.COMMENT: COMMENT, tokenize.ENDMARKER: END}
# From Python 3.12 on an f-string is many tokens; it becomes one again.
_OPENS, _CLOSES = (getattr(tokenize, f"FSTRING_{name}", None) for name in ("START", "END"))


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """Tokens as classes, most frequent first: class 0 is the most frequent token of the training files.

    Attributes:
        train: The tokens of the training files.
        validation: The tokens of the other files.
        counts: The count of each class in the training files.
        words: The text of each class.
        fingerprint: The first 48 bits of the SHA-256 of both parts, which a float represents exactly.
    """

    train: Ints
    validation: Ints
    counts: NDArray[np.int64]
    words: tuple[str, ...]
    fingerprint: int

    def most_frequent(self, classes: int) -> Corpus:
        """Return the corpus with fewer classes: all other tokens become ``<unk>``."""
        if classes >= len(self.words):
            if classes == len(self.words):
                return self
            raise ValueError(
                f"`classes` is {classes:,}, but only {len(self.words):,} tokens occur {LEAST} times or more in this "
                "corpus: ask for fewer, or add to PACKAGES."
            )
        unknown = self.words.index(UNKNOWN)
        old = [*range(classes)] if unknown < classes else [*range(classes - 1), unknown]
        merged = np.full(len(self.words), old.index(unknown))
        merged[old] = np.arange(classes)
        counts = np.bincount(merged, self.counts, classes).astype(np.int64)
        words = tuple(self.words[place] for place in old)
        return _ranked(merged.astype(np.int32)[self.train], merged.astype(np.int32)[self.validation], counts, words)


def _ranked(train: Ints, validation: Ints, counts: NDArray[np.int64], words: Sequence[str]) -> Corpus:
    """Return the corpus with its classes in the order of their counts."""
    order = np.argsort(-counts, kind="stable")
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    train, validation = rank[train], rank[validation]
    digest = hashlib.sha256(train.tobytes() + validation.tobytes()).hexdigest()
    return Corpus(train, validation, counts[order], tuple(words[place] for place in order), int(digest[:12], 16))


def tokens(source: bytes) -> Iterator[str]:
    """Yield the tokens of one file, without layout."""
    inside = 0  # f-strings
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type == _OPENS:
            inside += 1
        elif token.type == _CLOSES:
            inside -= 1
            if not inside:
                yield STRING
        elif inside:
            continue
        elif token.type in _KEPT:
            yield token.string
        elif token.type in _FOLDED:
            yield _FOLDED[token.type]


def build(folders: Sequence[Path], *, progress: bool = False) -> Corpus:
    """Return the corpus of all Python files below some folders.

    Files are in the order of a hash of their path from the folder on, so neighbours are unrelated. The first 5% of the
    hashes are for validation. Files that do not parse, and copies of others, are left out.
    """
    numbers: dict[str, int] = {}
    parts: tuple[array[int], array[int]] = (array("i"), array("i"))
    seen = set()
    files = sorted(_files(folders))
    if not files:
        raise ValueError(f"No Python file is below {', '.join(map(str, folders))}: a corpus needs some.")
    for place, path in track(files, "corpus", disable=not progress, transient=True):
        source = path.read_bytes()
        content = hashlib.sha256(source).digest()
        if content in seen:
            continue
        seen.add(content)
        try:
            words = list(tokens(source))
        except (SyntaxError, tokenize.TokenError, UnicodeDecodeError):
            continue
        parts[place < VALIDATION].extend(numbers.setdefault(word, len(numbers)) for word in words)
    train, validation = (np.frombuffer(part, np.int32) if len(part) else np.empty(0, np.int32) for part in parts)
    return without_rare(train, validation, list(numbers))


def _files(folders: Sequence[Path]) -> Iterator[tuple[float, Path]]:
    """Yield every Python file, with a number from 0 to 1 that is a hash of its path."""
    for folder in folders:
        for path in folder.rglob("*.py"):
            name = path.relative_to(folder.parent).as_posix()
            if "site-packages" not in name:
                yield int(hashlib.sha256(name.encode()).hexdigest()[:12], 16) / 16**12, path


def without_rare(train: Ints, validation: Ints, words: list[str]) -> Corpus:
    """Return the corpus with rare tokens, and those of validation alone, as one class."""
    counts = np.bincount(train, minlength=len(words))
    frequent = counts >= LEAST
    number = np.where(frequent, np.cumsum(frequent) - 1, frequent.sum()).astype(np.int32)
    train, validation = number[train], number[validation]
    kept = [word for word, is_kept in zip(words, frequent, strict=True) if is_kept]
    return _ranked(train, validation, np.bincount(train, minlength=len(kept) + 1), [*kept, UNKNOWN])


@functools.cache
def load(classes: int | None = None) -> Corpus:
    """Return the corpus of this machine with its most frequent classes, from the cache or built now."""
    if classes is not None:
        return load().most_frequent(classes)
    made_from = _made_from()
    folder = _cache() / f"corpus-{hashlib.sha256(canonical(made_from).encode()).hexdigest()[:16]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{folder}.lock"):  # only one worker builds it
        if not folder.exists():
            roots = [Path(sysconfig.get_path("stdlib")), *map(_package, PACKAGES)]
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                whole = Path(scratch) / "whole"
                _write(build(roots, progress=True), made_from, whole)
                whole.rename(folder)
    return _read(folder)


def _made_from() -> dict[str, object]:
    """Return what the tokens depend on."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    settings = {"format": _FORMAT, "validation": VALIDATION, "least": LEAST}
    return {"python": platform.python_version(), **versions, **settings}


def _cache() -> Path:
    if CACHE in os.environ:
        return Path(os.environ[CACHE])
    import pooch  # needed only without a named folder

    return Path(pooch.os_cache("catnat-experiments"))


def _package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(
            f"The corpus needs the sources of {name}, which is not installed here: pip install {name}."
        )
    return Path(found.origin).parent


def _write(corpus: Corpus, made_from: dict[str, object], folder: Path) -> None:
    folder.mkdir()
    for name in ("train", "validation", "counts"):
        np.save(folder / f"{name}.npy", getattr(corpus, name))
    about = {"made_from": made_from, "fingerprint": corpus.fingerprint, "words": corpus.words}
    (folder / "corpus.json").write_text(json.dumps(about))


def _read(folder: Path) -> Corpus:
    about = json.loads((folder / "corpus.json").read_text())
    arrays = {name: np.load(folder / f"{name}.npy") for name in ("train", "validation", "counts")}
    return Corpus(**arrays, words=tuple(about["words"]), fingerprint=int(about["fingerprint"]))


def main() -> None:
    """Build the corpus of this machine if it does not exist, and print its sizes."""
    corpus = load()
    print(
        f"{len(corpus.words):,} classes, {len(corpus.train):,} training and {len(corpus.validation):,} validation "
        f"tokens, fingerprint {corpus.fingerprint:012x}, {_cache()}"
    )


if __name__ == "__main__":
    main()
