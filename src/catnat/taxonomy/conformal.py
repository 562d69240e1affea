r"""Split conformal prediction: sets that contain the true class with a given probability.

Every row has a sequence of growing sets :math:`C_t`, from the most probable class to all classes. The *score* of a row
is the smallest t whose set contains its label. Let q be the :math:`\lceil (n+1)(1-\alpha) \rceil`-th smallest score of
n rows that the model was not trained on. If these rows and a new one are exchangeable, then

.. math:: 1 - \alpha \le P(Y \in C_q(X)) \le 1 - \alpha + \frac{1}{n + 1},

where the upper bound holds if scores have no ties. The probability is over all n + 1 rows, not for one row or group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from catnat import _checks
from catnat.taxonomy import probabilities
from catnat.taxonomy.backoff import one_label_per_row
from catnat.taxonomy.lineage import Bools, Floats, Ints, Lineage
from catnat.taxonomy.taxonomy import Taxonomy


@dataclasses.dataclass(frozen=True, eq=False)
class LabelSets:
    """A set of labels for every row, which contains all classes of these labels.

    Example:
        >>> import catnat
        >>> from catnat.taxonomy import LabelSets
        >>> groups = {"cat": ["lion", "lynx"], "dog": ["fox", "wolf"]}
        >>> taxonomy = catnat.Taxonomy.from_nested(groups)
        >>> sets = LabelSets.from_names(taxonomy, [["fox", "lion"], ["cat"]])
        >>> sets[1], sets.num_classes.tolist(), sets.contains(["wolf", "lynx"]).tolist()
        (('cat',), [2, 2], [False, True])
    """

    taxonomy: Taxonomy
    labels: Ints
    """The numbers of the labels of all rows, concatenated; ``len(taxonomy.labels)`` is the top.

    Those of one row have no class in common.
    """
    bounds: Ints
    """The start of every row in :attr:`labels`, and the end, shape (n + 1,)."""

    @classmethod
    def from_names(cls, taxonomy: Taxonomy, names: Any) -> LabelSets:
        """Build the sets with these labels, a list for every row; None is the set of all classes.

        A label inside another label of its row is left out.
        """
        labels = taxonomy.index([name for each in names for name in each], allow_none=True)
        row = np.repeat(np.arange(len(names)), [len(each) for each in names])
        outer = _outermost(taxonomy.lineage, row, labels)
        sizes = np.bincount(row[outer], minlength=len(names))
        return cls(taxonomy, labels[outer], np.concatenate([[0], np.cumsum(sizes)]))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, row: int) -> tuple[Any, ...]:
        """Return the labels of a row; None for the top."""
        row = range(len(self))[row]
        return tuple(self.taxonomy.names(self.labels[self.bounds[row] : self.bounds[row + 1]]))

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return (self[row] for row in range(len(self)))

    @property
    def num_labels(self) -> Ints:
        """The number of labels in every set."""
        return np.diff(self.bounds)

    @property
    def num_classes(self) -> Ints:
        """The number of classes in every set."""
        return self._sum_by_row(self.taxonomy.lineage.size[self.labels])

    def contains(self, y: Any) -> Bools:
        """Return whether the set of every row contains its label; for a group, whether it contains the whole group."""
        truth = one_label_per_row(self.taxonomy, y, len(self))
        lineage, known = self.taxonomy.lineage, np.repeat(truth, self.num_labels)
        whole = lineage.contains(self.labels, known)
        part = np.where(lineage.contains(known, self.labels), lineage.size[self.labels], 0)
        return np.asarray((self._sum_by_row(whole) > 0) | (self._sum_by_row(part) == lineage.size[truth]))

    def _sum_by_row(self, values: NDArray[Any]) -> Ints:
        sums = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        return np.asarray(sums[self.bounds[1:]] - sums[self.bounds[:-1]])


def _outermost(lineage: Lineage, row: Ints, labels: Ints) -> Ints:
    """Return the positions of the labels that are not inside another label of the same row, nor a second time there."""
    end = row * (lineage.num_classes + 1) + lineage.start[labels] + lineage.size[labels]
    order = np.lexsort((-lineage.size[labels], lineage.start[labels], row))
    furthest = np.maximum.accumulate(end[order])
    return np.sort(order[np.diff(furthest, prepend=-1) > 0])


class ConformalSets:
    r"""Sets of labels that contain the true class with probability ``coverage``, for any model.

    This is split conformal prediction: fit it on rows that the model was not trained on. If these rows and new ones are
    exchangeable, a new row's set contains its class with probability at least ``coverage``, on average over rows. For
    single groups the rate may be lower: see :func:`coverage_report`. Every set contains the most probable class, so
    the rate is higher if the accuracy of the model exceeds ``coverage``.

    Args:
        taxonomy: The taxonomy of the classes.
        coverage: The rate :math:`1 - \alpha` at which a set contains the true class.
        max_labels: None for sets of classes. 1 for an answer that is one label: a class, a group, or None for all
            classes. Otherwise sets of at most this many labels, as in Mortier et al., "Conformal Prediction in
            Hierarchical Classification with Constrained Representation Complexity".
        method: How sets of classes grow. ``"lac"``: by class probability, which gives the smallest sets on average.
            ``"aps"``: until the classes before have a given total probability, which gives larger sets for hard rows.
            ``"raps"``: as ``"aps"``, with ``penalty`` for every class beyond the first ``free`` ones.
        penalty: The penalty per class of ``"raps"``.
        free: The number of classes without a penalty in ``"raps"``.

    A row labelled with a group is covered if the whole group is. This makes sets larger, never too small.

    Example:
        >>> import catnat, numpy as np
        >>> from catnat.taxonomy import ConformalSets
        >>> groups = {"cat": ["lion", "lynx"], "dog": ["fox", "wolf"]}
        >>> taxonomy = catnat.Taxonomy.from_nested(groups)
        >>> rng = np.random.default_rng(0)
        >>> probs = rng.dirichlet([0.3] * 4, size=200)
        >>> y = [rng.choice(taxonomy.classes, p=p) for p in probs]
        >>> new = [[0.0, 0.9, 0.1, 0.0], [0.1, 0.4, 0.3, 0.2]]
        >>> list(ConformalSets(taxonomy, 0.8).fit(probs, y).predict(new))
        [('lion',), ('lion', 'lynx')]
        >>> list(ConformalSets(taxonomy, 0.8, max_labels=1).fit(probs, y).predict(new))
        [('lion',), ('cat',)]
    """

    quantile_: float
    """The score q up to which a set grows; infinite if there are too few rows for this coverage."""

    def __init__(
        self,
        taxonomy: Taxonomy,
        coverage: float = 0.9,
        *,
        max_labels: int | None = None,
        method: str = "lac",
        penalty: float = 0.01,
        free: int = 5,
    ) -> None:
        _checks.number(coverage, "coverage")
        if not 0 < coverage < 1:
            raise ValueError(f"`coverage` is {coverage}, but a number between 0 and 1 is needed, such as 0.9.")
        if max_labels is not None:
            _checks.number(max_labels, "max_labels")
            if max_labels < 1 or max_labels != int(max_labels):
                raise ValueError(f"`max_labels` is {max_labels}, but None or an integer of at least 1 is needed.")
        _checks.one_of(method, "method", ("lac", "aps", "raps"))
        for value, name in ((penalty, "penalty"), (free, "free")):
            _checks.number(value, name)
            if not 0 <= value < np.inf:
                raise ValueError(f"`{name}` is {value}, but a finite number of at least 0 is needed.")
        self.taxonomy = taxonomy
        self.coverage = coverage
        self.max_labels = max_labels
        self.method = method
        self.penalty = penalty
        self.free = free

    def fit(self, probs: Any, y: Any) -> ConformalSets:
        """Compute the quantile on held-out rows.

        Args:
            probs: Probabilities of rows that the model was not trained on, exchangeable with new rows.
            y: The labels of these rows.
        """
        self.quantile_ = conformal_quantile(self.scores(probs, y), self.coverage)
        return self

    def scores(self, probs: Any, y: Any) -> Floats:
        """Return the score of every row: a set with the quantile q contains the label if the score is at most q."""
        rows = probabilities.checked(self.taxonomy, probs)
        truth = one_label_per_row(self.taxonomy, y, len(rows))
        family, blocks = self._family(), self.taxonomy.lineage.blocks(len(rows))
        return np.concatenate([np.zeros(0), *(family.scores(_float64(rows[some]), truth[some]) for some in blocks)])

    def predict(self, probs: Any) -> LabelSets:
        """Return the set of every row."""
        if not hasattr(self, "quantile_"):
            raise ValueError("These sets have no quantile yet: call fit(probs, y) with held-out rows first.")
        rows = probabilities.checked(self.taxonomy, probs)
        family, labels, sizes = self._family(), [], []
        for some in self.taxonomy.lineage.blocks(len(rows)):
            found, counts = family.sets(_float64(rows[some]), self.quantile_)
            labels.append(found)
            sizes.append(counts)
        no_ints = np.zeros(0, dtype=np.int64)
        bounds = np.cumsum(np.concatenate([[0], *sizes]), dtype=np.int64)
        return LabelSets(self.taxonomy, np.concatenate([no_ints, *labels]), bounds)

    def _family(self) -> _Classes | _OneLabel | _FewLabels:
        if self.max_labels is None:
            penalty = self.penalty if self.method == "raps" else 0.0
            return _Classes(self.taxonomy.lineage, self.method != "lac", penalty, self.free)
        if self.max_labels == 1:
            return _OneLabel(self.taxonomy.lineage)
        return _FewLabels(self.taxonomy.lineage, self.max_labels)


def conformal_quantile(scores: Floats, coverage: float) -> float:
    r"""Return the :math:`\lceil (n+1)(1-\alpha) \rceil`-th smallest of n scores, infinite if there is none."""
    rank = max(1, int(np.ceil((len(scores) + 1) * coverage - 1e-9)))  # 10 * 0.9 has rank 9 despite rounding
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else np.inf


# ---- the families of growing sets ----
#
# Each has `scores`, the smallest t whose set contains the label of each row, and `sets` for one t.


@dataclasses.dataclass(frozen=True)
class _Classes:
    """Sets of the most probable classes. Within a row, the score of a class decreases with its probability."""

    lineage: Lineage
    is_cumulative: bool
    penalty: float
    free: int

    def scores(self, rows: Floats, truth: Ints) -> Floats:
        least = np.take_along_axis(rows, self._least_probable(rows, truth)[:, None], axis=1)
        before = rows > least
        if not self.is_cumulative:
            return np.where(before.any(axis=1), 1 - least[:, 0], 0.0)
        mass: Floats = np.where(before, rows, 0.0).sum(axis=1)
        return mass + self._penalties(before.sum(axis=1))

    def _least_probable(self, rows: Floats, truth: Ints) -> Ints:
        """Return the label of each row; for a group, its least probable class."""
        found = truth.copy()
        for i in np.flatnonzero(truth >= self.lineage.num_classes):
            start = self.lineage.start[truth[i]]
            members = self.lineage.order[start : start + self.lineage.size[truth[i]]]
            found[i] = members[rows[i, members].argmin()]
        return found

    def _penalties(self, rank: Ints) -> Floats:
        return self.penalty * np.maximum(rank + 1 - self.free, 0)

    def sets(self, rows: Floats, quantile: float) -> tuple[Ints, Ints]:
        largest = rows.max(axis=1, keepdims=True)
        if self.is_cumulative:
            values = -np.sort(-rows, axis=1)
            before = np.cumsum(values, axis=1) - values + self._penalties(np.arange(rows.shape[1]))
            # Of equal probabilities, the first has the smallest score and decides for all of them.
            count = np.maximum(1, (before <= quantile * (1 + 1e-12) + 1e-12).sum(axis=1))
            inside = rows >= np.take_along_axis(values, count[:, None] - 1, axis=1)
        else:
            inside = (rows >= largest) | (1 - rows <= quantile)
        row, labels = np.nonzero(inside)
        return labels, np.bincount(row, minlength=len(rows))


@dataclasses.dataclass(frozen=True)
class _OneLabel:
    """The most probable class and the groups above it. The score is the mass of the largest set without the label."""

    lineage: Lineage

    def scores(self, rows: Floats, truth: Ints) -> Floats:
        sums, best = self.lineage.sums(rows), rows.argmax(axis=1)
        at, found = best, np.zeros(len(rows))
        while not (done := self.lineage.contains(at, truth)).all():
            found = np.where(done, found, sums[np.arange(len(rows)), at])
            at = np.where(done, at, self.lineage.parent[at])
        return found

    def sets(self, rows: Floats, quantile: float) -> tuple[Ints, Ints]:
        sums, at = self.lineage.sums(rows), rows.argmax(axis=1)
        while (small := (sums[np.arange(len(rows)), at] <= quantile) & (at < self.lineage.top)).any():
            at = np.where(small, self.lineage.parent[at], at)
        return at, np.ones(len(rows), dtype=np.int64)


@dataclasses.dataclass(frozen=True)
class _FewLabels:
    """At most r labels: classes join by probability, and of r + 1 labels the two whose group adds fewest classes merge.

    So a set contains all earlier ones. The score is the mass of the largest set without the label.
    """

    lineage: Lineage
    most: int

    def scores(self, rows: Floats, truth: Ints) -> Floats:
        found = np.zeros(len(rows))

        def contain(at: Ints, labels: Ints, mass: Floats) -> Bools:
            fails = ~self._contain(labels, truth[at])
            found[at[fails]] = mass[fails]
            return ~fails

        self._grow(rows, contain)
        return found

    def sets(self, rows: Floats, quantile: float) -> tuple[Ints, Ints]:
        if quantile == np.inf:
            return np.full(len(rows), self.lineage.top), np.ones(len(rows), dtype=np.int64)
        labels = self._grow(rows, lambda at, labels, mass: mass > quantile)
        return labels[labels >= 0], (labels >= 0).sum(axis=1)

    def _grow(self, rows: Floats, done: Callable[[Ints, Ints, Floats], Bools]) -> Ints:
        """Return the labels of every row, padded with -1, in its first set with ``done(rows, labels, mass)``."""
        sums, order = self.lineage.sums(rows), np.argsort(-rows, axis=1, kind="stable")
        found = np.full((len(rows), self.most + 1), -1)
        active = np.arange(len(rows))
        for step in range(rows.shape[1]):
            added = order[active, step]
            news = ~self._contain(found[active], added)
            at = active[news]
            found[at, (found[at] < 0).argmax(axis=1)] = added[news]
            full = at[(found[at] >= 0).all(axis=1)]
            found[full] = self._merged(found[full])
            mass = np.where(found[at] >= 0, sums[at[:, None], found[at]], 0.0).sum(axis=1)
            active = np.setdiff1d(active, at[done(at, found[at], mass)], assume_unique=True)
            if not active.size:
                break
        return found

    def _contain(self, labels: Ints, truth: Ints) -> Bools:
        within = (labels >= 0) & self.lineage.contains(labels, truth[:, None])
        return np.asarray(within.any(axis=1))

    def _merged(self, labels: Ints) -> Ints:
        """Replace two of r + 1 labels by the smallest group that contains them; remove other labels inside it."""
        one, other = np.triu_indices(self.most + 1, 1)
        groups = self.lineage.lowest_common(labels[:, one], labels[:, other])
        inside = self.lineage.contains(groups[:, :, None], labels[:, None, :])
        added = self.lineage.size[groups] - (inside * self.lineage.size[labels][:, None, :]).sum(axis=2)
        best = added.argmin(axis=1)
        row = np.arange(len(labels))
        kept = np.where(inside[row, best], -1, labels)
        kept[row, one[best]] = groups[row, best]
        return kept


# ---- coverage ----


@dataclasses.dataclass(frozen=True)
class GroupCoverage:
    """The coverage of the rows of one group, or of all rows; see :func:`coverage_report`."""

    label: Any
    """The group; None for all rows."""
    rows: int
    coverage: float
    """The fraction of rows whose set contains their label."""
    num_classes: float
    """The mean number of classes in a set."""
    num_labels: float
    """The mean number of labels in a set."""


def coverage_report(sets: LabelSets, y: Any, *, level: int = 1) -> list[GroupCoverage]:
    """Return the coverage and size of sets, for all rows and for the rows of every group of a level.

    The guarantee of :class:`ConformalSets` is for all rows: groups for which the model is poor have a lower coverage.

    Args:
        sets: The sets of rows that were not used to fit.
        y: The labels of these rows.
        level: The level of the groups. Groups without rows are left out.

    Example:
        >>> import catnat
        >>> from catnat.taxonomy import LabelSets, coverage_report
        >>> groups = {"cat": ["lion", "lynx"], "dog": ["fox", "wolf"]}
        >>> taxonomy = catnat.Taxonomy.from_nested(groups)
        >>> sets = LabelSets.from_names(taxonomy, [["lion"], ["cat"], ["fox"]])
        >>> for each in coverage_report(sets, ["lion", "lynx", "wolf"]):
        ...     print(each.label, each.rows, round(each.coverage, 2), each.num_classes)
        None 3 0.67 1.3333333333333333
        cat 2 1.0 1.5
        dog 1 0.0 1.0
    """
    taxonomy = sets.taxonomy
    covered, classes, labels = sets.contains(y), sets.num_classes, sets.num_labels
    group = taxonomy.lineage.at_depth(taxonomy.index(y), level)
    if not len(group):
        raise ValueError("`sets` has no rows to report on.")
    parts = [(None, np.ones(len(group), dtype=bool))]
    parts += [(name, group == i) for i, name in zip(np.unique(group), taxonomy.names(np.unique(group)), strict=True)]
    return [
        GroupCoverage(name, int(at.sum()), *(float(each[at].mean()) for each in (covered, classes, labels)))
        for name, at in parts
    ]


def _float64(rows: NDArray[Any]) -> Floats:
    return np.asarray(rows, dtype=np.float64)
