"""The labels of a classifier on a tree: classes, the nodes above them, and the tree built from data."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.preprocessing import StandardScaler, normalize
from sklearn.random_projection import SparseRandomProjection
from sklearn.utils.multiclass import check_classification_targets

from catnat import Taxonomy, Tree, balanced, from_embeddings, huffman
from catnat.taxonomy.lineage import Floats, Ints, Lineage

KINDS = ("centroids", "huffman", "balanced")
MEMBERS = ("centroids", "given", "multiclass")
# The size to which a random projection reduces wider features; it nearly preserves their distances.
_WIDTH = 256


@dataclasses.dataclass(frozen=True)
class Labels:
    """The sorted classes, and the nodes with their members."""

    classes: NDArray[Any]
    lineage: Lineage
    members: list[Ints]
    """The members of each node: first of the top, then of the groups of the lineage."""
    prior: Floats
    """The prior probabilities of the classes."""
    tree: Tree | None
    """The tree of these nodes, if they are binary."""
    taxonomy: Taxonomy | None

    @classmethod
    def of_tree(cls, classes: NDArray[Any], tree: Tree, taxonomy: Taxonomy | None = None) -> Labels:
        """Return the nodes of a binary tree."""
        size, nodes = tree.num_classes, tree.num_nodes
        if size == 1:
            return cls(classes, Lineage([1, 1], 1), [np.zeros(1, dtype=np.int64)], tree.prior, tree, taxonomy)
        number = np.concatenate([[2 * size - 2], np.arange(size, 2 * size - 2), np.arange(size)])  # the root is last
        parents = tree.parents[[*range(nodes, 2 * size - 1), *range(1, nodes), 0]]
        lineage = Lineage(number[np.maximum(parents, 0)], size)
        return cls(classes, lineage, list(number[tree.child_ids]), tree.prior, tree, taxonomy)

    @classmethod
    def of_taxonomy(cls, taxonomy: Taxonomy, members: str, X: Any, y: NDArray[Any], weights: Floats | None) -> Labels:
        """Return the groups of a taxonomy, or the nodes of its binary tree."""
        names = np.array(taxonomy.classes)
        if names.ndim != 1 or names.tolist() != list(taxonomy.classes):
            raise ValueError(
                "The classes of the taxonomy are no labels for scikit-learn, which takes strings or integers: the "
                f"first are {taxonomy.classes[:3]}. Use names of one of these types."
            )
        if members == "multiclass":
            lineage = taxonomy.lineage
            by_parent = np.argsort(lineage.parent[:-1], kind="stable")
            parts = np.split(by_parent, np.flatnonzero(np.diff(lineage.parent[by_parent])) + 1)
            return cls(names, lineage, [parts[-1], *parts[:-1]], taxonomy.tree.prior, None, taxonomy)
        if members == "centroids":
            index = taxonomy.index(y)
            at = np.flatnonzero(index < taxonomy.num_classes)
            masses = np.ones(len(index)) if weights is None else weights
            rows = _numbers(X)
            if rows is not None and at.size:
                vectors = _class_vectors(_memberships(index[at], masses[at], len(names)), rows[at], masses[at])
                taxonomy = taxonomy.joined(embeddings=vectors)
        return cls.of_tree(names, taxonomy.tree, taxonomy)

    def index(self, y: NDArray[Any]) -> Ints:
        """Return the number in the lineage of every label, a class or a group."""
        if self.taxonomy is None:
            return np.searchsorted(self.classes, y)
        numbers = self.taxonomy.index(y)
        if self.tree is None:
            return numbers
        size = len(self.classes)
        ids = np.array([self.taxonomy.ids[name] for name in self.taxonomy.labels])[numbers]
        return np.where(ids >= size - 1, ids - (size - 1), np.where(ids == 0, self.lineage.top, size + ids - 1))


def labels_for(tree: Any, members: str, X: Any, y: NDArray[Any], weights: Floats | None) -> Labels:
    """Return the labels and their tree for the classifier's argument ``tree``."""
    if members not in MEMBERS:
        raise ValueError(f"`members` is {members!r}, but must be one of {', '.join(map(repr, MEMBERS))}.")
    if isinstance(tree, Taxonomy):
        return Labels.of_taxonomy(tree, members, X, y, weights)
    check_classification_targets(y)
    classes, index = np.unique(y, return_inverse=True)
    built = _tree_of_kind(tree, X, index, weights, len(classes)) if isinstance(tree, str) else tree
    if not isinstance(built, Tree):
        raise TypeError(f"`tree` is {tree!r}, but one of {KINDS}, a catnat.Tree or a catnat.Taxonomy is needed.")
    if built.num_classes != len(classes):
        raise ValueError(
            f"`tree` has {built.num_classes} classes, but `y` has {len(classes)}. A tree needs a leaf for every "
            "class of the data, in sorted order; a catnat.Taxonomy may have classes without data."
        )
    return Labels.of_tree(classes, built)


def _tree_of_kind(kind: str, X: Any, index: Ints, weights: Floats | None, size: int) -> Tree:
    if kind not in KINDS:
        raise ValueError(f"`tree` is {kind!r}, but one of {KINDS}, a catnat.Tree or a catnat.Taxonomy is needed.")
    if kind == "balanced":
        return balanced(size)
    masses = np.ones(len(index)) if weights is None else weights
    members = _memberships(index, masses, size)
    counts = np.asarray(members.sum(axis=1)).ravel()
    rows = _numbers(X) if kind == "centroids" else None
    return huffman(counts) if rows is None else from_embeddings(_class_vectors(members, rows, masses), counts)


def _memberships(index: Ints, masses: Floats, size: int) -> Any:
    return sparse.csr_matrix((masses, (index, np.arange(len(index)))), shape=(size, len(index)))


def _numbers(X: Any) -> Any:
    """Return the numeric columns of a frame, or None if it has none; other data unchanged."""
    if not hasattr(X, "iloc"):
        return X
    columns = X.select_dtypes("number")
    return columns.to_numpy(dtype=np.float64) if columns.shape[1] else None


def _class_vectors(members: Any, X: Any, weights: Floats) -> NDArray[Any]:
    """Return a vector of features for every class.

    For dense rows it is the mean of standardized features, where missing values are replaced by the column's mean. For
    sparse rows it is their normalized sum, because scaling would give rare features the largest weight.
    """
    if sparse.issparse(X):
        vectors = normalize(members @ X)
    else:
        with np.errstate(all="ignore"):  # overflow of huge features, which are clipped
            scaled = StandardScaler().fit_transform(X, sample_weight=weights)
        vectors = normalize(members, norm="l1") @ np.clip(np.nan_to_num(scaled), -1e6, 1e6)
    if vectors.shape[1] > _WIDTH:
        vectors = SparseRandomProjection(_WIDTH, random_state=0).fit_transform(vectors)
    return np.asarray(vectors.toarray() if sparse.issparse(vectors) else vectors)
