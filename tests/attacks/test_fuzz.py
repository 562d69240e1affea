"""Fuzzing of the readers: every input gives a valid object or a documented exception, and quickly.

Hypothesis damages valid files, and makes up inputs of the right structure. `CATNAT_FUZZ=5000` runs as many inputs for
each reader, other ones in every run. The nightly job does so, and runs fuzz.py, which looks for inputs by coverage.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import json
import os
import pathlib
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.extra.numpy as npst
import hypothesis.strategies as st
import networkx as nx
import numpy as np
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis.database import DirectoryBasedExampleDatabase

import catnat
import catnat.torch as ct
from catnat import coding
from catnat.torch.layers import TreeLayer
from catnat.trees import saving

NIGHTLY = int(os.environ.get("CATNAT_FUZZ", "0"))
fuzzed = settings(
    max_examples=NIGHTLY or 40,
    derandomize=not NIGHTLY,
    database=DirectoryBasedExampleDatabase(".hypothesis/attacks") if NIGHTLY else None,
    suppress_health_check=list(HealthCheck),
)
# Of processor time, for inputs of at most some thousand bytes.
_MOST_SECONDS = 2.0


@contextlib.contextmanager
def documented(*errors: type[Exception]) -> Iterator[None]:
    """These exceptions and no others, in time."""
    began = time.process_time()
    with contextlib.suppress(*errors):
        yield
    assert time.process_time() - began < _MOST_SECONDS


# ---- what is damaged, and how ----

WORDS = st.text(max_size=8) | st.sampled_from(["balanced", "chain", "table"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=6,
)
EDITS = st.lists(
    st.tuples(st.integers(0, 1 << 16), st.sampled_from(["set", "cut", "insert"]), st.binary(min_size=1, max_size=9)),
    max_size=6,
)


def edited(data: bytes, edits: list[tuple[int, str, bytes]]) -> bytes:
    """Bytes with some overwritten, left out and put in between."""
    for place, how, new in edits:
        at = place % (len(data) + 1)
        end = at if how == "insert" else at + len(new)
        data = data[:at] + (b"" if how == "cut" else new) + data[end:]
    return data


@st.composite
def changed(draw: Any, value: Any) -> Any:
    """A JSON value in which one entry, somewhere, is another, is gone, or is new."""
    if not isinstance(value, (dict, list)) or not value or draw(st.integers(0, 3)) == 0:
        return draw(JSON)
    found = dict(value) if isinstance(value, dict) else dict(enumerate(value))
    key = draw(st.sampled_from(list(found)))
    how = draw(st.integers(0, 5))
    if how == 0:
        del found[key]
    elif how == 1 and isinstance(value, dict):
        found[draw(WORDS)] = draw(JSON)
    else:
        found[key] = draw(changed(found[key]))
    return found if isinstance(value, dict) else list(found.values())


DTYPES = [np.int8, np.int32, np.int64, np.uint8, np.uint64, np.float16, np.float32, np.float64, bool, "S3", "U2"]
ARRAYS = npst.arrays(st.sampled_from(DTYPES), npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6))


@st.composite
def tables(draw: Any) -> Any:
    """A table of children with some entries changed, or any array."""
    if draw(st.booleans()):
        return draw(ARRAYS)
    size = draw(st.integers(1, 12))
    table = np.array(catnat.huffman(draw(st.lists(st.integers(1, 9), min_size=size, max_size=size))).children)
    for _ in range(draw(st.integers(0, 3)) if table.size else 0):
        table[draw(st.integers(0, len(table) - 1)), draw(st.integers(0, 1))] = draw(st.integers(-2, 2 * size))
    return table.astype(draw(st.sampled_from([np.int64, np.float64, np.int8])))


def is_tree(tree: catnat.Tree) -> None:
    """That a tree computes what a tree should."""
    assert tree.num_classes >= 1
    if tree.num_classes <= 10_000:  # a larger one is balanced or a chain: nothing is there but a number
        assert abs(tree.prior.sum() - 1) < 1e-6
        probs = ct.catnat(torch.zeros(tree.num_nodes, dtype=torch.float64), tree).numpy()
        np.testing.assert_allclose(probs, tree.prior, rtol=1e-6, atol=1e-12)


# ---- trees ----


@fuzzed
@given(tables(), st.none() | ARRAYS)
def test_from_children(table, prior):
    with documented(ValueError, TypeError):
        is_tree(catnat.from_children(table, prior))


@functools.cache
def tree_file(index: int) -> bytes:
    content = io.BytesIO()
    tree = (catnat.huffman(range(1, 8)), catnat.chain(5), catnat.balanced(6).with_prior(range(1, 7)))[index]
    saving.save_tree(tree, content)
    return content.getvalue()


@fuzzed
@given(st.integers(0, 2), EDITS)
def test_bytes_of_a_tree(index, edits):
    with documented(ValueError):
        is_tree(load_tree(edited(tree_file(index), edits)))


@fuzzed
@given(changed({"kind": "table", "num_classes": 5}), tables(), st.none() | ARRAYS)
def test_parts_of_a_tree(facts, table, prior):
    """A whole archive with anything in it."""
    content, arrays = io.BytesIO(), {"tree.children": table} | ({} if prior is None else {"tree.prior": prior})
    np.savez(content, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8), **arrays)
    with documented(ValueError):
        is_tree(load_tree(content.getvalue()))


def load_tree(content: bytes) -> catnat.Tree:
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "tree")
        file.write_bytes(content)
        return catnat.Tree.load(file)


# ---- compressed classes ----

CODED = catnat.huffman(range(1, 12)), np.linspace(-3, 3, 10)


@functools.cache
def coded() -> bytes:
    return coding.encode(*CODED, np.arange(200) % 11)


@fuzzed
@given(EDITS, st.booleans(), st.none() | st.integers(0, 2**64 - 1))
def test_decode(edits, with_checksum, count):
    data = coded()
    if count is not None:  # how many classes it claims to hold
        data = data[:16] + count.to_bytes(8, "little") + data[24:]
    data = edited(data[:-4], edits)
    data += zlib.crc32(data).to_bytes(4, "little") if with_checksum else b"\1\2\3\4"
    with documented(coding.CodingError):
        found = coding.decode(*CODED, data)
        # Checksums can be forged, and then other classes are valid ones.
        assert ((found >= 0) & (found < 11)).all()


# ---- heads ----


@functools.cache
def head_files() -> tuple[bytes, ...]:
    with tempfile.TemporaryDirectory() as folder:
        weights = torch.linspace(1, 2, 6)
        ct.CatnatHead(3, catnat.huffman(range(1, 7)), "natural", class_weights=weights).save(folder)
        return tuple(pathlib.Path(folder, name).read_bytes() for name in ("head.safetensors", "head.json"))


def load_head(weights: bytes, text: bytes) -> None:
    """A head that loads has a tree, and rows for its nodes."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "head.safetensors").write_bytes(weights)
        pathlib.Path(folder, "head.json").write_bytes(text)
        head = ct.CatnatHead.load(folder)
    is_tree(head.tree)
    assert head.weight.shape == (head.tree.num_nodes, head.in_features)


@fuzzed
@given(st.data())
def test_settings_of_a_head(data):
    weights, text = head_files()
    with documented(ValueError):
        load_head(weights, json.dumps(data.draw(changed(json.loads(text)))).encode())


@fuzzed
@given(EDITS, EDITS)
def test_bytes_of_a_head(weights, text):
    with documented(ValueError):
        load_head(edited(head_files()[0], weights), edited(head_files()[1], text))


HEAD_ENTRIES = st.sampled_from(
    ["weight", "bias", "_extra_state", "class_weights", "tree.children", "tree.prior", "more"]
)


@fuzzed
@given(st.dictionaries(HEAD_ENTRIES, ARRAYS))
def test_tensors_of_a_head(changes):
    tensors = safetensors.torch.load(head_files()[0])
    for name, array in changes.items():
        if array.dtype.kind in "iufb" and array.dtype != np.uint64:
            tensors[name] = torch.tensor(array)
        else:
            tensors.pop(name, None)
    with documented(ValueError):
        load_head(safetensors.torch.save(tensors), head_files()[1])


# ---- states ----


def a_layer() -> ct.CatnatLinear:
    return ct.CatnatLinear(3, catnat.huffman(range(1, 7)), "natural")


ENTRIES = ARRAYS.filter(lambda array: array.dtype.kind in "iufb").map(torch.tensor) | JSON


@st.composite
def states(draw: Any) -> dict[str, Any]:
    state: dict[str, Any] = dict(a_layer().state_dict())
    mark = state["_extra_state"].numpy().tobytes()
    facts, _, file = mark.partition(b"\0")
    how = draw(st.integers(0, 3))
    if how == 0:
        mark = edited(mark, draw(EDITS))
    elif how == 1:
        mark = json.dumps(draw(changed(json.loads(facts)))).encode() + b"\0" + file
    state["_extra_state"] = torch.tensor(list(mark), dtype=torch.uint8)
    return state | draw(
        st.dictionaries(st.sampled_from(["weight", "bias", "_extra_state", "more"]), ENTRIES, max_size=2)
    )


@fuzzed
@given(states(), st.booleans())
def test_load_state_dict(state, strict):
    layer = a_layer()
    with documented(RuntimeError):
        layer.load_state_dict(state, strict=strict)
    assert layer.weight.shape == (5, 3)


@fuzzed
@given(states())
def test_from_state_dict(state):
    with documented(ValueError, KeyError, RuntimeError):
        layer = ct.CatnatLinear.from_state_dict(state)
        assert isinstance(layer, TreeLayer)
        is_tree(layer.tree)


# ---- taxonomies ----

NAMES = st.text("ab/", max_size=4) | st.integers(0, 5) | st.none() | st.floats(allow_nan=True)
NESTED = st.recursive(
    NAMES | st.builds(dict),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@st.composite
def twisted(draw: Any) -> Any:
    """Nested lists and dictionaries, some of which stand in themselves, or twice."""
    nested, containers = copy.deepcopy(draw(NESTED)), []

    def collect(value: Any) -> None:
        if isinstance(value, (list, dict)):
            containers.append(value)
            for member in value.values() if isinstance(value, dict) else value:
                collect(member)

    collect(nested)
    for _ in range(draw(st.integers(0, 2)) if containers else 0):
        into, what = (containers[draw(st.integers(0, len(containers) - 1))] for _ in range(2))
        if isinstance(into, list):
            into.append(what)
        else:
            into["more"] = what
    return nested


def is_taxonomy(make: Callable[[], catnat.Taxonomy]) -> None:
    with documented(ValueError, TypeError):
        taxonomy = make()
        probs = np.full(taxonomy.num_classes, 1 / taxonomy.num_classes)
        found = taxonomy.label_probs(probs)
        assert ((found > 0) & (found < 1 + 1e-9)).all()
        is_tree(taxonomy.tree)
        assert all(taxonomy.path(name)[-1] == name for name in taxonomy.labels)


@fuzzed
@given(st.lists(st.tuples(NAMES, NAMES), max_size=12) | st.dictionaries(NAMES, NAMES, max_size=12) | NESTED)
def test_parents(table):
    is_taxonomy(lambda: catnat.Taxonomy(table))


@fuzzed
@given(twisted())
def test_nested(nested):
    is_taxonomy(lambda: catnat.Taxonomy.from_nested(nested))


@fuzzed
@given(twisted())
def test_clusters(nested):
    with documented(ValueError, TypeError):
        is_tree(catnat.from_clusters(nested))


@fuzzed
@given(st.lists(st.text("ab/", max_size=9) | st.lists(NAMES, max_size=5).map(tuple) | NAMES, max_size=9))
def test_paths(paths):
    is_taxonomy(lambda: catnat.Taxonomy.from_paths(paths))


@fuzzed
@given(st.lists(st.lists(NAMES, max_size=4), max_size=9) | ARRAYS, st.sampled_from([None, "/", ""]))
def test_frames(rows, separator):
    is_taxonomy(lambda: catnat.Taxonomy.from_frame(rows, separator=separator))


@fuzzed
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12))
def test_graphs(edges):
    is_taxonomy(lambda: catnat.Taxonomy.from_networkx(nx.DiGraph(edges)))
