"""Labels as places in a tree: what a user calls a class or a group, and where it stands."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.preprocessing import StandardScaler, normalize
from sklearn.random_projection import SparseRandomProjection
from sklearn.utils.multiclass import check_classification_targets

from catnat import Taxonomy, Tree, balanced, from_embeddings, huffman

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

KINDS = ("centroids", "huffman", "balanced")
# Wider features are projected at random to this many numbers, which keeps their distances.
_WIDTH = 256


class Labels(NamedTuple):
    """The classes in the order of ``classes_``, which is sorted, and the tree over them."""

    classes: NDArray[Any]
    tree: Tree
    order: Ints  # the tree's class that stands for each
    taxonomy: Taxonomy | None

    @classmethod
    def from_taxonomy(cls, taxonomy: Taxonomy) -> Labels:
        """All classes of a taxonomy, whether the data have them or not."""
        names = np.array(taxonomy.classes)
        if names.ndim != 1 or names.tolist() != list(taxonomy.classes):
            raise ValueError(
                "The classes of the taxonomy are not all of one type that NumPy can sort, such as strings or integers: "
                f"the first are {taxonomy.classes[:3]}. Give them names of one type."
            )
        order = np.argsort(names)
        return cls(names[order], taxonomy.tree, order, taxonomy)

    def ids(self, y: NDArray[Any]) -> Ints:
        """The id in the tree of every label: a leaf, or the node of a group."""
        if self.taxonomy is None:
            place = np.minimum(np.searchsorted(self.classes, y), len(self.classes) - 1)
            known = self.classes[place] == y
            ids = self.tree.num_nodes + place
        else:
            ids = np.array([self.taxonomy.ids.get(label, -1) for label in y.tolist()], dtype=np.int64)
            known = ids >= 0
        if not known.all():
            raise ValueError(
                f"`y` has the label {y[~known].tolist()[0]!r}, which is not among the {len(self.classes)} classes "
                f"{'and groups of the taxonomy' if self.taxonomy else 'that were given first'}."
            )
        return ids

    @property
    def leaves(self) -> Ints:
        """The ids of the classes."""
        return self.tree.num_nodes + self.order


def labels_for(tree: Any, X: Any, y: NDArray[Any], weights: Floats | None, classes: Any = None) -> Labels:
    """The labels and their tree, from what the user calls ``tree``; the classes are those of ``y`` unless given."""
    if isinstance(tree, Taxonomy):
        return Labels.from_taxonomy(tree)
    check_classification_targets(y)
    classes = np.unique(y if classes is None else classes)
    built = tree
    if isinstance(tree, str):
        index = Labels(classes, balanced(len(classes)), np.arange(len(classes)), None).ids(y) - (len(classes) - 1)
        built = _tree_of_kind(tree, X, index, weights, len(classes))
    if not isinstance(built, Tree):
        raise TypeError(f"`tree` is {tree!r}, but one of {KINDS}, a catnat.Tree or a catnat.Taxonomy is needed.")
    if built.num_classes != len(classes):
        raise ValueError(
            f"`tree` has {built.num_classes} classes, but `y` has {len(classes)}. A tree needs a leaf for every "
            "class of the data, in sorted order; a catnat.Taxonomy may have classes that the data lack."
        )
    return Labels(classes, built, np.arange(len(classes)), None)


def _tree_of_kind(kind: str, X: Any, index: Ints, weights: Floats | None, size: int) -> Tree:
    if kind not in KINDS:
        raise ValueError(f"`tree` is {kind!r}, but one of {KINDS}, a catnat.Tree or a catnat.Taxonomy is needed.")
    if kind == "balanced":
        return balanced(size)
    masses = np.ones(len(index)) if weights is None else weights
    members = sparse.csr_matrix((masses, (index, np.arange(len(index)))), shape=(size, len(index)))
    counts = np.asarray(members.sum(axis=1)).ravel()
    counts[counts == 0] = 1.0  # classes that come with a later batch
    features = _numbers(X) if kind == "centroids" else None
    if features is None:
        return huffman(counts)
    return from_embeddings(_class_vectors(members, features, masses), counts)


def _numbers(X: Any) -> Any:
    """The numeric columns, or None if there are none."""
    if not hasattr(X, "iloc"):
        return X
    columns = X.select_dtypes("number")
    return columns.to_numpy(dtype=np.float64) if columns.shape[1] else None


def _class_vectors(members: Any, X: Any, weights: Floats) -> NDArray[Any]:
    """What the rows of a class are like.

    Of dense rows the mean of their standardized features, where a missing value counts as the mean of its column. Of
    sparse rows the direction of their sum: scaled, the features that are hardly ever there would count most.
    """
    if sparse.issparse(X):
        vectors = normalize(members @ X)
    else:
        with np.errstate(all="ignore"):  # of huge features, which are clipped
            scaled = StandardScaler().fit_transform(X, sample_weight=weights)
        vectors = normalize(members, norm="l1") @ np.clip(np.nan_to_num(scaled), -1e6, 1e6)
    if vectors.shape[1] > _WIDTH:
        vectors = SparseRandomProjection(_WIDTH, random_state=0).fit_transform(vectors)
    return np.asarray(vectors.toarray() if sparse.issparse(vectors) else vectors)


def pre_order(tree: Tree) -> tuple[Ints, Ints]:
    """The number of every id in pre-order, and that of the first id after everything below it."""
    sizes = np.ones(tree.num_nodes + tree.num_classes, dtype=np.int64)
    for level in reversed(tree.levels):
        sizes[level] += sizes[tree.child_ids[level]].sum(axis=1)
    number = np.zeros_like(sizes)
    for level in tree.levels:
        no, yes = tree.child_ids[level].T
        number[no] = number[level] + 1
        number[yes] = number[no] + sizes[no]
    return number, number + sizes
