"""Conversions of trees and activations to JSON and arrays, to save them without pickle."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from catnat import _checks
from catnat.activations import REGISTRY, Activation
from catnat.trees.builders import balanced, chain, from_children
from catnat.trees.forest import Forest
from catnat.trees.tree import Tree, read_only

Arrays = dict[str, NDArray[Any]]


def tree_parts(tree: Tree) -> tuple[dict[str, Any], Arrays]:
    """Return a tree's kind and size, and its arrays: none for a balanced tree or a chain with a uniform prior."""
    arrays: Arrays = {}
    if tree.kind == "table":
        arrays["tree.children"] = tree.children
    if not tree.has_uniform_prior:
        arrays["tree.prior"] = tree.prior
    return {"kind": tree.kind, "num_classes": tree.num_classes}, arrays


def tree_from_parts(facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Tree:
    """Build the tree from the results of :func:`tree_parts`."""
    if facts["kind"] == "table":
        tree = from_children(arrays["tree.children"])
    elif facts["kind"] in ("balanced", "chain"):
        tree = (balanced if facts["kind"] == "balanced" else chain)(facts["num_classes"])
    else:
        raise ValueError(f"The file has a tree of the kind {facts['kind']!r}, but there are balanced, chain and table.")
    if "tree.prior" not in arrays:
        return tree
    # Not `with_prior`, because normalizing again could change a last digit, and so the tree's hash.
    prior = _checks.weights(arrays["tree.prior"], "tree.prior", tree.num_classes)
    if abs(prior.sum() - 1) > 1e-6:
        raise ValueError(f"The file has a prior whose sum is {prior.sum()}, which is not 1.")
    return dataclasses.replace(tree, _prior=read_only(prior))


def save_tree(tree: Tree, file: BinaryIO) -> None:
    """Write a tree in NumPy's ``.npz`` format."""
    facts, arrays = tree_parts(tree)
    everything: dict[str, Any] = {"facts": np.frombuffer(json.dumps(facts).encode(), np.uint8), **arrays}
    np.savez(file, **everything)


def load_tree(file: BinaryIO) -> Tree:
    """Read a tree written by :func:`save_tree`; no code in the file is run, and no array is larger than the file."""
    with damage("The file of a tree"), zipfile.ZipFile(file) as archive:
        arrays = {info.filename.removesuffix(".npy"): _stored_array(archive, info) for info in archive.infolist()[:3]}
        return tree_from_parts(json.loads(arrays["facts"].tobytes()), arrays)


def _stored_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """Read an array written by ``np.savez``; ``np.load`` would decompress bombs and trust sizes in headers."""
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{info.filename} is compressed, but catnat writes no compressed files")
    content = io.BytesIO(archive.read(info))
    if np.lib.format.read_magic(content) != (1, 0):
        raise ValueError(f"{info.filename} has another version of NumPy's format")
    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(content)
    return np.frombuffer(content.read(), dtype).reshape(shape, order="F" if by_columns else "C")


@contextlib.contextmanager
def damage(what: str) -> Iterator[None]:
    """Convert errors of reading a file to a ValueError, because libraries raise many types for damaged files."""
    try:
        yield
    except (FileNotFoundError, PermissionError, MemoryError):  # errors of the machine, not of the file
        raise
    except Exception as error:
        raise ValueError(f"{what} cannot be read: it is damaged or another kind of file: {error!s:.500}") from error


@contextlib.contextmanager
def replacing(file: str | Path) -> Iterator[Path]:
    """Yield a path to write to, then move it to ``file`` atomically, so that a killed process leaves the old file."""
    part = Path(f"{file}.part")
    yield part
    part.replace(file)


def activation_parts(activation: Activation) -> dict[str, Any]:
    """Return the name and the settings of a built-in activation."""
    for name, one in REGISTRY.items():
        if type(one) is type(activation):
            return {"name": name, **dataclasses.asdict(activation)}
    raise TypeError(
        f"The activation is {activation!r}, which is none of the library's own ({', '.join(REGISTRY)}): a file cannot "
        "contain its code. Save `state_dict()`, and build the head yourself before you load it."
    )


def activation_from_parts(facts: Mapping[str, Any]) -> Activation:
    """Build the activation from the results of :func:`activation_parts`."""
    settings = dict(facts)
    for name, default in {"scaling": "paper", "boundary": "clamp"}.items():  # settings of version 0.2
        if settings.pop(name, default) != default:
            raise ValueError(
                f"The file has an activation with {name}={facts[name]!r}, which this version of catnat does not have. "
                "For isotropic scaling multiply the rows by catnat.isotropic_scale(tree, activation)."
            )
    name = settings.pop("name", None)
    if name not in REGISTRY:
        raise ValueError(f"The file has the activation {name!r}, but this version of catnat has {', '.join(REGISTRY)}.")
    try:
        return dataclasses.replace(REGISTRY[name], **settings)
    except TypeError as error:
        raise ValueError(f"The file has settings that the activation {name!r} does not have: {settings}.") from error


# ---- names ----
#
# A layer's weights are valid only for its tree and its activation, so checkpoints contain names that identify both.


@functools.lru_cache(maxsize=256)
def names(tree: Tree | Forest, activation: Activation) -> tuple[str, str]:
    """Return names that identify the tree and the activation, of letters, digits and ``_`` only.

    Priors are compared in float32, because the last digits of float64 sums depend on the machine. Only settings of an
    activation that differ from the default are compared, so a new setting in a later version changes no name.
    """
    return _tree_name(tree), _activation_name(activation)


def check_names(saved: Collection[str], tree: Tree | Forest, activation: Activation) -> None:
    """Raise unless the saved names of weights are those of this tree and this activation."""
    for name, mine in zip(names(tree, activation), (tree, activation), strict=True):
        kind = name.partition("_")[0]
        if name not in saved:
            other = next((one for one in saved if one.startswith(kind)), "none that is known")
            raise ValueError(
                f"The weights are of a layer with another {kind}: {other}, but this layer has {name}, which is "
                f"{mine!r}. They would give another distribution here. Build the layer with the {kind} with which they "
                "were trained, and load them into it."
            )


def _tree_name(tree: Tree | Forest) -> str:
    if isinstance(tree, Forest):
        return f"tree_forest_{len(tree.trees)}_{_digest(' '.join(map(_tree_name, tree.trees)).encode())}"
    tables = [tree.child_ids.astype("<i8").tobytes()] if tree.kind == "table" else []
    if not tree.has_uniform_prior:
        tables.append(tree.prior.astype("<f4").tobytes())
    return "_".join(["tree", tree.kind, str(tree.num_classes), *map(_digest, tables)])


def _activation_name(activation: Activation) -> str:
    settings = sorted(
        f"{field.name}={getattr(activation, field.name)!r}"
        for field in dataclasses.fields(activation)
        if getattr(activation, field.name) != field.default
    )
    digest = [_digest(",".join(settings).encode())] if settings else []
    return "_".join(["activation", type(activation).__name__, *digest])


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


# ---- fingerprints ----
#
# A fingerprint is an entry beside the weights: the names as JSON in an array of bytes, which all weight formats allow.
# After a zero byte it contains the tree, so that a layer can be rebuilt from its weights alone.


@functools.lru_cache(maxsize=16)
def _fingerprint_bytes(tree: Tree | Forest, activation: Activation) -> bytes:
    facts: dict[str, Any] = {"names": names(tree, activation), "tree": repr(tree), "activation": repr(activation)}
    if type(activation) in map(type, REGISTRY.values()):
        facts["activation_parts"] = activation_parts(activation)
    file = io.BytesIO()
    if isinstance(tree, Tree):
        save_tree(tree, file)
    return json.dumps(facts).encode() + b"\0" + file.getvalue()


def fingerprint(tree: Tree | Forest, activation: Activation) -> NDArray[np.uint8]:
    """Return the bytes that identify the tree and the activation of a layer in a checkpoint."""
    return np.frombuffer(_fingerprint_bytes(tree, activation), np.uint8).copy()


def mismatch(found: Any, tree: Tree | Forest, activation: Activation) -> str | None:
    """Return why a checkpoint with this fingerprint does not fit this tree and activation, or None if it fits."""
    ours = {"names": names(tree, activation), "tree": repr(tree), "activation": repr(activation)}
    try:
        theirs, _ = _facts(found)
        pairs = list(zip(("tree", "activation"), theirs["names"], ours["names"], strict=True))
        differs = [
            f"the {kind} {theirs[kind]!s:.100} ({there!s:.100}), where this one has {ours[kind]} ({here})"
            for kind, there, here in pairs
            if there != here
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        return (
            'The entry "_extra_state", which names the tree and the activation of the weights, cannot be read: the '
            "checkpoint is damaged, not one of this layer, or a sum of several: copy this entry from one of them."
        )
    if not differs:
        return None
    return (
        f"The checkpoint is of a layer with {' and '.join(differs)}: its scores would mean other probabilities here. "
        "Build the layer with the tree and the activation that were saved."
    )


def tree_and_activation(found: Any, weight: tuple[int, ...]) -> tuple[Tree, Activation]:
    """Return the tree and the activation in a fingerprint, or raise if the tree does not fit the shape ``weight``."""
    with damage('The entry "_extra_state"'):
        facts, file = _facts(found)
        names = f"its tree, {facts['tree']!s:.100}, and its activation, {facts['activation']!s:.100}"
    if not file or "activation_parts" not in facts:
        raise ValueError(
            f"The checkpoint names {names}, but does not hold them. Build the layer with them, and load the checkpoint "
            "into it."
        )
    tree = load_tree(io.BytesIO(file))
    if len(weight) != 2 or weight[0] != tree.num_nodes:
        raise ValueError(
            f"The checkpoint names {names}, which has {tree.num_nodes} nodes, but its weights have the shape {weight}."
        )
    with damage('The entry "_extra_state"'):
        return tree, activation_from_parts(facts["activation_parts"])


def _facts(found: Any) -> tuple[dict[str, Any], bytes]:
    """Return the JSON object of a fingerprint, and the bytes of its tree file."""
    array = np.asarray(found)
    if array.dtype.kind == "f" and ((array > -0.5) & (array < 255.5)).all():
        array = np.round(array)  # averages of states, or states in half precision, have floats
    elif array.dtype.kind not in "iu":
        raise ValueError("not a fingerprint")
    text, _, file = array.astype(np.uint8).tobytes().partition(b"\0")
    facts = json.loads(text)
    if not isinstance(facts, dict):
        raise ValueError("not a fingerprint")
    return facts, file


def part_of_state(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the entries of a layer in the state of a model, without their prefix; raise unless it is a layer."""
    part = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    if "_extra_state" not in part or "weight" not in part:
        raise KeyError(f"The state has no layer of this kind at the prefix {prefix!r}: its entries are {list(state)}.")
    return part


def softmax_rows(tree: Tree | Forest) -> str:
    """Return the error message for weights with one row per class."""
    return (
        f"The checkpoint has {tree.num_classes} rows, one per class, as a softmax layer has; this layer has one per "
        f"node, {tree.num_nodes}. catnat.integrations.checkpoints.from_softmax converts such a layer."
    )


def check_state(state: Mapping[str, Any], needed: Mapping[str, Any], tree: Tree, activation: Activation) -> None:
    """Raise unless a state fits this tree and activation, and has exactly the entries and shapes of ``needed``."""
    found, wanted = ({name: np.shape(value) for name, value in each.items()} for each in (state, needed))
    wrong: str | None
    named = "_extra_state" in state
    if not named and found.get("weight", ())[:1] == (tree.num_classes,):  # a padded head may also have K rows
        wrong = softmax_rows(tree)
    elif not named:
        wrong = (
            "The state does not name the tree and activation of its weights. If they are "
            f'{tree!r} and {activation!r}, take its "_extra_state" from the state_dict() of this layer.'
        )
    else:
        wrong = mismatch(state["_extra_state"], tree, activation)
    if wrong is None and found != wanted:
        wrong = f"The state has entries of these shapes: {found}, but these are needed: {wanted}."
    if wrong is not None:
        raise ValueError(wrong)
