"""A taxonomy of classes: groups within groups, and the binary tree in which each of them is a node."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from catnat import _checks
from catnat.trees.builders import from_clusters
from catnat.trees.tree import Floats, Ints, Tree

Name = Hashable


class Taxonomy:
    r"""Classes in groups, groups in groups, to any depth, and the tree in which every group is a node.

    The members of a group are joined two by two, so a group with m members takes m - 1 nodes, the topmost of which is
    the group's own. The probability of a group is the probability of reaching that node,

    .. math:: P(\text{group}) = \sum_{k \text{ in group}} p_k,

    whatever the model: probabilities of all levels agree with each other.

    Args:
        parents: The parent of every class and every group, None at the top: a mapping, or pairs (name, parent). Names
            are of any hashable type, and those that are nobody's parent are the classes. See :meth:`from_paths` and
            :meth:`from_nested` for other forms.
        weights: Positive weights of the classes, such as counts: in the order of :attr:`classes`, or a mapping. If
            given, members are joined by Huffman's rule and the weights become the tree's prior. Otherwise by a balanced
            tree, with a uniform prior.

    Example:
        >>> import catnat
        >>> parents = {
        ...     "cat": "mammal",
        ...     "dog": "mammal",
        ...     "ant": "insect",
        ...     "mammal": None,
        ...     "insect": None,
        ... }
        >>> taxonomy = catnat.Taxonomy(parents)
        >>> taxonomy
        <Taxonomy: 3 classes in 2 groups, 2 levels>
        >>> taxonomy.classes
        ('cat', 'dog', 'ant')
        >>> {group: float(p) for group, p in taxonomy.group_probs([0.5, 0.3, 0.2]).items()}
        {'mammal': 0.8, 'insect': 0.2}
    """

    parents: dict[Name, Name | None]
    """The parent of every class and group; None at the top."""
    classes: tuple[Name, ...]
    """The classes: class k of the tree is the k-th. They come in the order in which they were given."""
    groups: tuple[Name, ...]
    """The groups, each after the one that holds it."""
    tree: Tree
    """The tree of binary decisions."""
    ids: dict[Name, int]
    """Where every class and group stands in the tree: a node, or K - 1 + k for class k.

    A group with only one member stands where its member does.
    """

    def __init__(
        self,
        parents: Mapping[Any, Any] | Iterable[tuple[Any, Any]],
        weights: ArrayLike | Mapping[Any, float] | None = None,
    ) -> None:
        self.parents = _one_parent_each(parents)
        _check_parents(self.parents)
        inner = set(self.parents.values())
        self.classes = tuple(name for name in self.parents if name not in inner)
        self.groups = tuple(sorted((name for name in self.parents if name in inner), key=self._depth_of))
        index = {name: k for k, name in enumerate(self.classes)}
        if isinstance(weights, Mapping) or hasattr(weights, "items"):  # as a Series of pandas has
            weights = [_weight_of(name, weights) for name in self.classes]
        self.tree = from_clusters(_nested(self.parents, self.groups, index), weights)
        self.ids = self._find_ids(index)

    @classmethod
    def from_paths(
        cls,
        paths: Iterable[str | Sequence[Any]],
        weights: ArrayLike | Mapping[Any, float] | None = None,
        *,
        separator: str = "/",
    ) -> Taxonomy:
        """The taxonomy of paths such as ``"animal/mammal/cat"``, or of tuples such as ``("animal", "mammal", "cat")``.

        A class or group is named by its whole path. A path may stand there more than once, and one that other paths go
        on from is a group.

        Args:
            paths: The paths of all classes.
            weights: As for the constructor.
            separator: What stands between the parts of a string.

        Example:
            >>> import catnat
            >>> taxonomy = catnat.Taxonomy.from_paths(["animal/cat", "animal/dog", "plant"])
            >>> taxonomy.groups, taxonomy.classes
            (('animal',), ('animal/cat', 'animal/dog', 'plant'))
        """
        parents: dict[Name, Name | None] = {}
        for path in paths:
            text = isinstance(path, str)
            parts = tuple(path.split(separator)) if isinstance(path, str) else tuple(path)
            if not all(part is not None and part != "" for part in parts) or not parts:
                raise ValueError(f"`paths` has {path!r}, a part of which is empty: name every group on the way.")
            above = [separator.join(parts[:n]) if text else parts[:n] for n in range(1, len(parts) + 1)]
            parents.update(zip(above, [None, *above[:-1]], strict=True))
        return cls(parents, weights)

    @classmethod
    def from_nested(
        cls,
        nested: Mapping[Any, Any] | Sequence[Any],
        weights: ArrayLike | Mapping[Any, float] | None = None,
    ) -> Taxonomy:
        """The taxonomy of nested dictionaries and lists.

        Args:
            nested: Dictionaries from the name of a group to its members, lists of members, or both. A list in a list is
                a group without a name of its own, called by its position, a tuple such as ``(0, 2)``. What has no
                members, or None, is a class.
            weights: As for the constructor.

        Example:
            >>> import catnat
            >>> catnat.Taxonomy.from_nested(
            ...     {"mammal": ["cat", "dog"], "insect": {"ant": ["red", "black"]}}
            ... ).groups
            ('mammal', 'insect', 'ant')
            >>> catnat.Taxonomy.from_nested([["cat", "dog"], "ant"]).groups
            ((0,),)
        """
        return cls(_pairs(nested, None, ()), weights)

    # ---- what is where ----

    @property
    def num_classes(self) -> int:
        """The number of classes K."""
        return len(self.classes)

    @functools.cached_property
    def num_levels(self) -> int:
        """The length of the longest path: 1 if there are no groups."""
        return max(len(self.path(name)) for name in self.classes)

    def path(self, name: Any) -> tuple[Name, ...]:
        """The groups from the top down to ``name``, and ``name`` itself.

        Example:
            >>> import catnat
            >>> catnat.Taxonomy.from_nested({"animal": {"mammal": ["cat", "dog"]}}).path("cat")
            ('animal', 'mammal', 'cat')
        """
        if name not in self.parents:
            raise KeyError(f"{name!r} is neither a class nor a group of this taxonomy.")
        above = [name]
        while (parent := self.parents[above[-1]]) is not None:
            above.append(parent)
        return tuple(reversed(above))

    def members(self, name: Any) -> tuple[Name, ...]:
        """The classes in a group; of a class, that class alone.

        Example:
            >>> import catnat
            >>> catnat.Taxonomy.from_paths(["a/b", "a/c", "d"]).members("a")
            ('a/b', 'a/c')
        """
        self.path(name)  # raises if there is no such group
        return tuple(one for one in self.classes if name in self.path(one))

    def level(self, n: int) -> tuple[Name, ...]:
        """What every class belongs to on level ``n``, counted from 1 at the top: a group, or itself if it ends above.

        Example:
            >>> import catnat
            >>> catnat.Taxonomy.from_paths(["a/b/c", "a/b/d", "a/e", "f"]).level(2)
            ('a/b', 'a/b', 'a/e', 'f')
        """
        if not 1 <= n <= self.num_levels:
            raise ValueError(f"`n` is {n}, but this taxonomy has the levels 1 .. {self.num_levels}.")
        return tuple(self.path(name)[:n][-1] for name in self.classes)

    # ---- probabilities ----

    def group_probs(self, probs: ArrayLike) -> dict[Name, Floats]:
        """The probability of every group, from the probabilities of the classes.

        Args:
            probs: Class probabilities in the order of :attr:`classes`, shape (..., K).

        Returns:
            For every group, in the order of :attr:`groups`, its probabilities, shape (...).
        """
        leaves = np.asarray(probs, dtype=np.float64)
        masses = np.concatenate([self.tree.reach(leaves), leaves], axis=-1)
        return {group: masses[..., self.ids[group]] for group in self.groups}

    # ---- building ----

    def _depth_of(self, name: Name) -> int:
        return len(self.path(name))

    def _find_ids(self, index: Mapping[Name, int]) -> dict[Name, int]:
        """Every group's node: the lowest one above all its members. Parents have smaller ids than their children."""
        parents = self.tree.parents
        ids = {name: self.tree.num_nodes + k for name, k in index.items()}
        for name in [*self.classes, *reversed(self.groups)]:  # members before their group
            group = self.parents[name]
            if group is not None:
                ids[group] = _lowest_above(ids[name], ids.get(group, ids[name]), parents)
        return ids

    # ---- identity ----

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Taxonomy) and self.parents == other.parents and self.tree == other.tree

    def __hash__(self) -> int:
        return hash((self.classes, self.tree))

    def __repr__(self) -> str:
        return f"<Taxonomy: {self.num_classes} classes in {len(self.groups)} groups, {self.num_levels} levels>"


def _lowest_above(one: int, other: int, parents: Ints) -> int:
    while one != other:
        one, other = int(parents[max(one, other)]), min(one, other)
    return one


def _nested(parents: Mapping[Name, Name | None], groups: Sequence[Name], index: Mapping[Name, int]) -> list[Any]:
    """The groups as nested lists of class indices."""
    lists: dict[Name | None, list[Any]] = {group: [] for group in (None, *groups)}
    for name, parent in parents.items():
        lists[parent].append(index[name] if name in index else lists[name])
    return lists[None]


def _weight_of(name: Name, weights: Any) -> Any:
    if name not in weights:
        raise ValueError(f"`weights` has no entry for the class {name!r}: give every class a positive weight.")
    return weights[name]


# ---- reading what users pass ----


def _one_parent_each(table: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> dict[Name, Name | None]:
    parents: dict[Name, Name | None] = {}
    pairs = table.items() if hasattr(table, "items") else _checks.listed(table, "parents")
    for name, parent in pairs:
        if _is_none(name):
            raise ValueError(f"`parents` has an entry named {name!r}, which stands for the top: give it another name.")
        parent = None if _is_none(parent) else parent
        if name in parents and parents[name] != parent:
            raise ValueError(
                f"{name!r} has two parents, {parents[name]!r} and {parent!r}, but a class or a group belongs to one "
                "group: give the two entries different names, or name them by their paths with Taxonomy.from_paths."
            )
        parents[name] = parent
    return parents


def _is_none(name: Any) -> bool:
    """None, or the NaN that pandas writes for it."""
    return name is None or (isinstance(name, float) and name != name)


def _check_parents(parents: Mapping[Name, Name | None]) -> None:
    """Raise unless every path upwards ends at the top."""
    if not parents:
        raise ValueError("The taxonomy is empty, but it needs at least one class.")
    for name, parent in parents.items():
        if parent is not None and parent not in parents:
            raise ValueError(
                f"{name!r} is an orphan: its parent {parent!r} is not in `parents`. Give {parent!r} an entry of its "
                "own, whose parent is None if it is at the top."
            )
    at_the_top: set[Name | None] = {None}
    for name in parents:
        above: dict[Name | None, None] = {}  # in order, and quick to look up
        step: Name | None = name
        while step not in at_the_top and step not in above:
            above[step] = None
            step = parents[step]
        if step not in at_the_top:
            circle = [*list(above)[list(above).index(step) :], step]
            raise ValueError(f"The parents form a circle: {' -> '.join(map(repr, circle))}. One of them is wrong.")
        at_the_top.update(above)


def _pairs(nested: Any, parent: Name | None, position: tuple[int, ...]) -> Iterable[tuple[Name, Name | None]]:
    """The (name, parent) of everything below."""
    if isinstance(nested, Mapping):
        for i, (name, members) in enumerate(nested.items()):
            yield name, parent
            yield from _pairs(members, name, (*position, i))
    elif _is_list(nested):
        for i, member in enumerate(nested):
            at = (*position, i)
            if isinstance(member, Mapping):
                yield from _pairs(member, parent, at)
            else:
                yield at if _is_list(member) else member, parent
                yield from _pairs(member, at, at) if _is_list(member) else ()
    elif nested is not None:
        raise TypeError(
            f"`nested` has {nested!r} of type {type(nested).__name__} where the members of {parent!r} are expected: "
            'give a dictionary or a list, such as {"mammal": ["cat", "dog"]}.'
        )


def _is_list(members: Any) -> bool:
    """Whether these are members; a tuple may be a name."""
    return isinstance(members, list) or (isinstance(members, np.ndarray) and members.ndim > 0)
