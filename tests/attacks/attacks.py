"""Files and inputs that attack: what makes each, what it cost before it was refused, and the error that it must give.

A function makes the file, or the input, in an empty folder, and returns the call that reads it.
"""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

import catnat
import catnat.torch as ct
from catnat import coding
from catnat.coding import _file
from catnat.coding._model import Model
from catnat.trees import saving

Call = Callable[[], Any]
Make = Callable[[Path], Call]


@dataclasses.dataclass(frozen=True)
class Attack:
    """What is attacked and how, what it cost, and what it must end in."""

    reader: str
    name: str
    before: str  # what it did before this was a test
    make: Make
    error: type[Exception] | None  # None: it costs nothing, and what it gives is a valid object
    says: str = ""
    seconds: float = 1.0  # of processor time
    megabytes: float = 64.0


# ---- compressed classes ----


def claims(count: int, num_classes: int = 256, score: float = 0.0) -> Make:
    """A file of one class and a right checksum that claims to hold ``count`` of them."""

    def make(folder: Path) -> Call:
        tree, scores = catnat.balanced(num_classes), np.full(num_classes - 1, score)
        honest = _file.unpack(coding.encode(tree, scores, [0]), num_classes, Model(tree, "sigmoid").fingerprint())
        data = _file.pack(honest._replace(size=count))
        return lambda: coding.decode(tree, scores, data)

    return make


def words_of_a_broken_length(folder: Path) -> Call:
    tree = catnat.balanced(4)
    honest = _file.unpack(coding.encode(tree, np.zeros(3), [1]), 4, Model(tree, "sigmoid").fingerprint())
    data = _file.pack(honest._replace(words=np.frombuffer(b"\1\2\3", np.uint8)))
    body = data[: _file._HEADER.size] + b"\1\2\3"
    forged = body + _file._CHECKSUM.pack(_file.zlib.crc32(body))
    return lambda: coding.decode(tree, np.zeros(3), forged)


# ---- heads ----


def head(change: Callable[[dict[str, Any]], None] = lambda settings: None, **tensors: Any) -> Make:
    """A saved head whose settings are changed, and some of its tensors."""

    def make(folder: Path) -> Call:
        ct.CatnatHead(4, catnat.huffman(range(1, 11))).save(folder)
        settings = json.loads((folder / "head.json").read_text())
        change(settings)
        (folder / "head.json").write_text(json.dumps(settings))
        if tensors:
            found = {**safetensors.torch.load_file(folder / "head.safetensors"), **tensors}
            kept = {name: value for name, value in found.items() if value is not None}
            safetensors.torch.save_file(kept, folder / "head.safetensors")
        return lambda: ct.CatnatHead.load(folder)

    return make


def sets(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    """The change that sets one entry of the settings."""

    def change(settings: dict[str, Any]) -> None:
        inner = settings
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = to

    return change


def cut_off_head(folder: Path) -> Call:
    call = head()(folder)
    file = folder / "head.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    return call


def head_without_width(folder: Path) -> Call:
    """Rows of no features take no bytes, however many there are."""

    def change(settings: dict[str, Any]) -> None:
        settings["tree"] = {"kind": "balanced", "num_classes": 400_000_000}
        settings["options"]["in_features"] = 0

    fingerprint = torch.from_numpy(saving.fingerprint(catnat.balanced(400_000_000), ct.sigmoid()))
    nothing = {"bias": None, "tree.children": None, "tree.prior": None}
    return head(change, weight=torch.empty(399_999_999, 0), _extra_state=fingerprint, **nothing)(folder)


# ---- states of layers ----


def extra_state(mark: Any) -> Make:
    """A checkpoint with another ``_extra_state``: bytes as it should be, or anything."""

    def make(folder: Path) -> Call:
        layer = ct.CatnatLinear(4, 10)
        entry = torch.tensor(list(mark), dtype=torch.uint8) if isinstance(mark, bytes) else mark
        state = {**layer.state_dict(), "_extra_state": entry}
        return lambda: layer.load_state_dict(state)

    return make


def state_of_a_huge_tree(folder: Path) -> Call:
    state = dict(ct.CatnatLinear(4, 10).state_dict())
    state["_extra_state"] = torch.from_numpy(saving.fingerprint(catnat.balanced(200_000_000), ct.sigmoid()))
    return lambda: ct.CatnatLinear.from_state_dict(state)


# ---- files of trees ----


def entry(array: np.ndarray) -> bytes:
    """An array in NumPy's format."""
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


def header(shape: tuple[int, ...]) -> bytes:
    """The header of an array of this shape, without the array."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "<i8", "fortran_order": False, "shape": shape})
    return content.getvalue()


def tree_file(facts: Any = None, compression: int = zipfile.ZIP_STORED, **entries: bytes) -> Make:
    """A file of a tree with these facts and these arrays, as bytes."""

    def make(folder: Path) -> Call:
        said = {"kind": "table", "num_classes": 3} if facts is None else facts
        with zipfile.ZipFile(folder / "tree", "w", compression) as archive:
            archive.writestr("facts.npy", entry(np.frombuffer(json.dumps(said).encode(), np.uint8)))
            for name, content in entries.items():
                archive.writestr(f"tree.{name}.npy", content)
        return lambda: catnat.Tree.load(folder / "tree")

    return make


def bomb(folder: Path) -> Call:
    """Zeros, compressed a thousandfold."""
    return tree_file(compression=zipfile.ZIP_DEFLATED, children=entry(np.zeros((40_000_000, 2), np.int8)))(folder)


def raw(content: bytes) -> Make:
    """A file of a tree with these bytes."""

    def make(folder: Path) -> Call:
        (folder / "tree").write_bytes(content)
        return lambda: catnat.Tree.load(folder / "tree")

    return make


# ---- inputs ----


def given(call: Callable[[], Any]) -> Make:
    """An input that needs no file."""
    return lambda folder: call


def in_itself(folder: Path) -> Call:
    clusters: list[Any] = [0, 1]
    clusters.append(clusters)
    return lambda: catnat.from_clusters(clusters)


def wrapped_target() -> Any:
    target = torch.from_numpy(np.array([2**64 - 100], np.uint64))
    return ct.cross_entropy(torch.zeros(1, 9), target)


def nested(make: Callable[[], Any]) -> Make:
    """A taxonomy of nested dictionaries and lists."""

    def attack(folder: Path) -> Call:
        given = make()
        return lambda: catnat.Taxonomy.from_nested(given)

    return attack


def mapping_in_itself() -> Any:
    inner: dict[str, Any] = {}
    inner["a"] = inner
    return inner


def doubled(levels: int) -> Any:
    """Every list stands twice in the next: 2^levels members in some bytes each."""
    found: list[Any] = ["a"]
    for _ in range(levels):
        found = [found, found]
    return found


def deep(levels: int) -> Any:
    found: Any = None
    for level in range(levels):
        found = {f"{level}": found}
    return found


CIRCLE = {name: (name + 1) % 100_000 for name in range(100_000)}
LONG = ["a"] * 20_000
CLAIM, DAMAGED, UNREAD = "claim to hold", "cannot be read", '"_extra_state".*cannot be read'
OWN = coding.CodingError

ATTACKS = [
    Attack("coding.decode", "52 bytes that claim 10^7 classes", "1.6 s, 338 MB", claims(10**7), OWN, CLAIM),
    Attack("coding.decode", "52 bytes that claim 10^8 classes", "45 s, 3.1 GB", claims(10**8), OWN, CLAIM),
    Attack("coding.decode", "52 bytes that claim 10^15 classes", "never ended", claims(10**15), OWN, CLAIM),
    Attack("coding.decode", "10^7 of a single class", "accepted", claims(10**7, num_classes=1), OWN, CLAIM),
    Attack("coding.decode", "as many classes as the words may hold", "", claims(5 * 10**6), OWN, "end before all"),
    Attack("coding.decode", "words of a broken length", "ValueError", words_of_a_broken_length, OWN, "whole number"),
    Attack(
        "CatnatHead.load",
        "4 x 10^8 classes in a directory of 578 bytes",
        "10 s, 3.4 GB",
        head(sets("tree", to={"kind": "balanced", "num_classes": 400_000_000})),
        ValueError,
        "describes a balanced tree over 400000000 classes",
    ),
    Attack("CatnatHead.load", "4 x 10^8 rows of no features", "", head_without_width, None),
    Attack("CatnatHead.load", "a kind of tree", "KeyError", head(sets("tree", "kind", to="x")), ValueError, DAMAGED),
    Attack(
        "CatnatHead.load",
        "an activation",
        "KeyError",
        head(sets("activation", "name", to="x")),
        ValueError,
        "the activation 'x'",
    ),
    Attack(
        "CatnatHead.load",
        "a setting of the activation",
        "TypeError",
        head(sets("activation", "width", to="x")),
        ValueError,
        "settings that the activation",
    ),
    *(
        Attack(
            "CatnatHead.load",
            f"the option {name}={value!r}",
            "passed on",
            head(sets("options", name, to=value)),
            ValueError,
            "with the options",
        )
        for name, value in (("device", "cuda"), ("ignore_index", "x"), ("sparse", "no"), ("in_features", 3.5))
    ),
    Attack("CatnatHead.load", "weights cut off", "SafetensorError", cut_off_head, ValueError, DAMAGED),
    Attack(
        "CatnatHead.load",
        "a prior that is none",
        "accepted",
        head(**{"tree.prior": torch.full((10,), 3.0, dtype=torch.float64)}),
        ValueError,
        "which is not 1",
    ),
    *(
        Attack("load_state_dict", f"`_extra_state` {what}", before, extra_state(mark), RuntimeError, UNREAD)
        for what, before, mark in (
            ("that is no JSON", "JSONDecodeError", b"\1\2\3"),
            ("that is no text", "UnicodeDecodeError", b"\xff\xfe\xfd"),
            ("without names", "KeyError", b"{}"),
            ("that is a list", "AttributeError", b"[1, 2]"),
            ("nested 10^5 times", "RecursionError", b"[" * 100_000),
            ("of floats", "accepted", torch.zeros(3)),
            ("that is no tensor", "accepted", "sigmoid"),
        )
    ),
    Attack(
        "from_state_dict",
        "a tree of 2 x 10^8 classes over ten rows",
        "9.2 s, 2.4 GB",
        state_of_a_huge_tree,
        ValueError,
        "its weights have the shape",
    ),
    Attack("Tree.load", "80 KB that unpack to 80 MB", "13 s, 1.4 GB", bomb, ValueError, "is compressed"),
    *(
        Attack(
            "Tree.load",
            f"an array of {size:.0e} rows that is not there",
            before,
            tree_file(children=header((size, 2))),
            ValueError,
            DAMAGED,
        )
        for size, before in ((10**8, "ValueError"), (10**15, "MemoryError"))
    ),
    Attack("Tree.load", "an empty file", "EOFError", raw(b""), ValueError, DAMAGED),
    Attack("Tree.load", "a single array", "TypeError", raw(entry(np.zeros(3))), ValueError, DAMAGED),
    Attack("Tree.load", "half an archive", "BadZipFile", raw(b"PK\3\4" + bytes(60)), ValueError, DAMAGED),
    Attack("Tree.load", "facts that are a list", "TypeError", tree_file([1]), ValueError, DAMAGED),
    Attack("Tree.load", "no table", "KeyError", tree_file(), ValueError, DAMAGED),
    Attack(
        "Tree.load",
        "a class in two places",
        "ValueError",
        tree_file(children=entry(np.array([[0, 1], [0, 3]]))),
        ValueError,
        "more than once",
    ),
    Attack(
        "Tree.load",
        "a table with a cycle",
        "ValueError",
        tree_file({"kind": "table", "num_classes": 4}, children=entry(np.array([[0, 1], [2, 6], [3, 5]]))),
        ValueError,
        "form a cycle",
    ),
    Attack("from_clusters", "a list in itself", "never ended", in_itself, ValueError, "in two places, or in itself"),
    Attack("cross_entropy", "the target 2^64 - 100", "ignored as -100", given(wrapped_target), TypeError, "uint64"),
    Attack(
        "Taxonomy",
        "a circle of 10^5 parents",
        "1 MB of text",
        given(lambda: catnat.Taxonomy(CIRCLE)),
        ValueError,
        "form a circle",
    ),
    Attack(
        "Taxonomy",
        "two parents",
        "ValueError",
        given(lambda: catnat.Taxonomy([("a", "g"), ("a", "h"), ("g", None), ("h", None)])),
        ValueError,
        "has two parents",
    ),
    Attack(
        "Taxonomy.from_nested",
        "a dictionary in itself",
        "ValueError",
        nested(mapping_in_itself),
        ValueError,
        "in itself",
    ),
    Attack(
        "Taxonomy.from_nested",
        "2^60 members in 60 lists",
        "never ended",
        nested(lambda: doubled(60)),
        ValueError,
        "in two places",
    ),
    Attack(
        "Taxonomy.from_nested",
        "10^5 levels",
        "RecursionError",
        nested(lambda: deep(100_000)),
        ValueError,
        "more than 256 levels",
    ),
    Attack(
        "Taxonomy.from_paths",
        "40 KB, a path of 20,000 parts",
        "15 s, 1.9 GB",
        given(lambda: catnat.Taxonomy.from_paths(["/".join(LONG)])),
        ValueError,
        "a path of 20000 parts",
    ),
    Attack(
        "Taxonomy.from_frame",
        "a row of 20,000 levels",
        "17 s, 600 MB",
        given(lambda: catnat.Taxonomy.from_frame([[str(n) for n in range(20_000)]], separator="/")),
        ValueError,
        "a path of 20000 parts",
    ),
]


def endless() -> None:
    while True:
        pass


# What gets through must be seen.
CONTROLS = [
    Attack("none", "300 MB", "", given(lambda: np.ones(300_000_000, np.int8).sum()), None),
    Attack("none", "2 s", "", given(lambda: [None for _ in range(60_000_000)] and None), None),
    Attack("none", "no end", "", given(endless), None, seconds=0.1),
]
