"""Conformal sets: exact coverage over random splits, and a test that a wrong quantile fails it."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy import stats
from taxonomies import ANIMALS, drawn_probs, tables

import catnat
from catnat.taxonomy import ConformalSets, LabelSets, conformal, coverage_report

SPLITS, HELD_OUT, NEW = 200, 60, 100
KINDS = {
    "lac": {},
    "aps": {"method": "aps"},
    "raps": {"method": "raps", "penalty": 0.05, "free": 2},
    "one label": {"max_labels": 1},
    "three labels": {"max_labels": 3},
}


def synthetic():
    """A model that is overconfident, with uneven depths: 320 rows, each with its own class probabilities."""
    taxonomy = catnat.Taxonomy.from_nested(ANIMALS)
    rng = np.random.default_rng(0)
    true = rng.dirichlet(np.full(7, 0.7), size=320)
    y = np.array(taxonomy.classes)[(rng.random((320, 1)) > np.cumsum(true, 1)).sum(1)]
    stated = true**1.5 * rng.uniform(0.5, 1.5, true.shape)
    return taxonomy, stated / stated.sum(1, keepdims=True), y


def digits():
    """Handwritten digits, in groups by their strokes, from the upper third of the picture alone."""
    datasets, naive_bayes = pytest.importorskip("sklearn.datasets"), pytest.importorskip("sklearn.naive_bayes")
    taxonomy = catnat.Taxonomy.from_nested(
        {"round": {"one loop": [0, 6, 9], "two": [8]}, "open": [2, 3, 5], "line": [1, 4, 7]}
    )
    X, y = datasets.load_digits(return_X_y=True)
    X = X[:, :24] + np.random.default_rng(0).normal(size=(len(X), 24))
    model = naive_bayes.GaussianNB(var_smoothing=0.1).fit(X[:1000], y[:1000])
    return taxonomy, taxonomy.align(model.predict_proba(X[1000:1400]), model.classes_), y[1000:1400]


def covered(task, seed, coverage, options):
    """How many new rows are covered in each of many random splits."""
    taxonomy, probs, y = task
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(SPLITS):
        rows = rng.permutation(len(y))
        held_out, new = rows[:HELD_OUT], rows[HELD_OUT : HELD_OUT + NEW]
        sets = ConformalSets(taxonomy, coverage, **options).fit(probs[held_out], y[held_out])
        found.append(int(sets.predict(probs[new]).contains(y[new]).sum()))
    return found


def interval(coverage, level=0.999):
    """The interval that holds the sum over all splits, exactly.

    Scores without ties have all orders with the same probability. So of NEW rows a beta-binomial number is covered, a
    binomial one if NEW is 1, and splits are independent.
    """
    rank = np.ceil((HELD_OUT + 1) * coverage - 1e-9)
    one = stats.betabinom.pmf(np.arange(NEW + 1), NEW, rank, HELD_OUT + 1 - rank)
    size = SPLITS * NEW + 1
    total = np.cumsum(np.fft.irfft(np.fft.rfft(one, 2 * size) ** SPLITS, 2 * size)[:size])
    return np.searchsorted(total, [(1 - level) / 2, (1 + level) / 2])


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", [synthetic, digits])
def test_coverage_over_random_splits_is_exact(task, kind, coverage):
    rows = task()
    assert (np.array(rows[0].classes)[rows[1].argmax(1)] == rows[2]).mean() < 0.8  # no ties of score 0
    low, high = interval(coverage)
    assert low <= sum(covered(rows, 0, coverage, KINDS[kind])) <= high
    assert high - low < 0.035 * SPLITS * NEW


@pytest.mark.parametrize("kind", ["lac", "one label", "three labels"])
def test_a_quantile_without_the_plus_one_fails_the_test_of_coverage(kind, monkeypatch):
    monkeypatch.setattr(
        conformal, "conformal_quantile", lambda scores, coverage: np.sort(scores)[int(len(scores) * coverage) - 1]
    )
    low, high = interval(0.9)
    assert not low <= sum(covered(synthetic(), 0, 0.9, KINDS[kind])) <= high


# ---- one row's sets, whatever the taxonomy ----


@hypothesis.given(tables(), st.sampled_from(list(KINDS)), st.integers(0, 5))
def test_sets_grow_with_the_quantile_and_contain_what_scores_say(table, kind, seed):
    taxonomy = catnat.Taxonomy(table)
    probs = drawn_probs(taxonomy, seed, rows=6)
    sets = ConformalSets(taxonomy, 0.5, **KINDS[kind])
    labels = np.random.default_rng(seed).integers(len(taxonomy.labels), size=len(probs))
    y = taxonomy.names(labels).tolist()
    most = KINDS[kind].get("max_labels", taxonomy.num_classes)
    scores = sets.scores(probs, y)
    classes = np.zeros((len(probs), taxonomy.num_classes), dtype=bool)
    for quantile in np.sort([0.0, *scores, 0.999, np.inf]):
        sets.quantile_ = float(quantile)
        found = sets.predict(probs)
        assert (found.num_labels <= most).all()
        assert (found.num_labels >= 1).all()
        now = np.array(
            [
                [any(name is None or name in taxonomy.path(k) for name in each) for k in taxonomy.classes]
                for each in found
            ]
        )
        assert (now >= classes).all(), "sets do not grow"
        assert now[np.arange(len(probs)), probs.argmax(1)].all()
        assert (now.sum(1) == found.num_classes).all(), "labels of a set overlap"
        one_more = np.array(
            [now[i, np.isin(taxonomy.classes, taxonomy.members(name))].all() for i, name in enumerate(y)]
        )
        if most > 1 and kind in ("lac", "aps", "raps"):
            assert (one_more == (scores <= quantile + 1e-9)).all()
        else:
            assert (one_more[scores <= quantile]).all()
        assert (found.contains(y) == one_more).all()
        classes = now


def test_scores_of_a_worked_example():
    taxonomy = catnat.Taxonomy.from_nested({"g": ["a", "b"], "h": ["c", "d"]})
    probs = np.array([[0.5, 0.1, 0.3, 0.1]])

    def scores(**options):
        return [float(ConformalSets(taxonomy, **options).scores(probs, [name])[0]) for name in taxonomy.labels]

    assert scores() == pytest.approx([0, 0.9, 0.7, 0.9, 0.9, 0.9])
    assert scores(method="aps") == pytest.approx([0, 0.8, 0.5, 0.8, 0.8, 0.8])
    assert scores(method="raps", penalty=1, free=1) == pytest.approx([0, 2.8, 1.5, 2.8, 2.8, 2.8])
    assert scores(max_labels=1) == pytest.approx([0, 0.5, 0.6, 0.6, 0.5, 0.6])
    # {a}, {a, c}, then b: one too many, and a with b makes g, which adds no class besides: {g, c}. Then d makes h.
    assert scores(max_labels=2) == pytest.approx([0, 0.8, 0.5, 0.9, 0.8, 0.9])


def test_too_few_rows_for_a_coverage_give_everything():
    taxonomy, probs, y = synthetic()
    for options in KINDS.values():
        sets = ConformalSets(taxonomy, 0.95, **options).fit(probs[:18], y[:18])
        assert sets.quantile_ == np.inf
        assert (sets.predict(probs[18:30]).num_classes == taxonomy.num_classes).all()
    assert ConformalSets(taxonomy, 0.95).fit(probs[:19], y[:19]).quantile_ < 1


def test_rows_known_by_their_group_make_sets_larger():
    taxonomy, probs, y = synthetic()
    known = [taxonomy.path(name)[0] if i % 2 else name for i, name in enumerate(y)]
    for options in KINDS.values():
        of_classes, of_groups = (
            ConformalSets(taxonomy, 0.8, **options).fit(probs, each).quantile_ for each in (y, known)
        )
        assert of_groups >= of_classes


def test_report_of_groups():
    taxonomy, probs, y = synthetic()
    sets = ConformalSets(taxonomy, 0.9, max_labels=1).fit(probs[:150], y[:150]).predict(probs[150:])
    everything, *groups = coverage_report(sets, y[150:])
    assert everything.rows == sum(each.rows for each in groups) == 170
    for measure in ("coverage", "num_classes", "num_labels"):
        assert np.average(
            [getattr(each, measure) for each in groups], weights=[each.rows for each in groups]
        ) == pytest.approx(getattr(everything, measure))
    assert [each.label for each in groups] == ["worm", "mammal", "insect"]


def test_label_sets_are_sequences():
    taxonomy = catnat.Taxonomy.from_nested(ANIMALS)
    sets = LabelSets.from_names(taxonomy, [["cat", "ant"], [], [None]])
    assert (len(sets), sets[0], sets[-1], list(sets)[1]) == (3, ("cat", "ant"), (None,), ())
    assert sets.num_classes.tolist() == [4, 0, 7]
    assert sets.contains(["lynx", "ant", "mammal"]).tolist() == [True, False, True]
    with pytest.raises(IndexError):
        sets[3]


def test_label_sets_contain_a_group_of_which_they_have_all_classes():
    taxonomy = catnat.Taxonomy.from_nested({"cat": ["lion", "lynx"], "dog": ["fox", "wolf"]})
    sets = LabelSets.from_names(taxonomy, [["lynx", "fox", "lion"], ["lion", "cat", "lion"], ["lion", "wolf"], []])
    assert list(sets) == [("lynx", "fox", "lion"), ("cat",), ("lion", "wolf"), ()]
    assert sets.num_classes.tolist() == [3, 2, 2, 0]
    assert sets.contains(["cat"] * 4).tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("run", "error", "text"),
    [
        (lambda t, p: ConformalSets(t, 1.0), ValueError, "`coverage` is 1.0"),
        (lambda t, p: ConformalSets(t, max_labels=0), ValueError, "`max_labels` is 0"),
        (lambda t, p: ConformalSets(t, max_labels=1.5), ValueError, "`max_labels` is 1.5"),
        (lambda t, p: ConformalSets(t, method="top"), ValueError, "`method` is 'top'"),
        (lambda t, p: ConformalSets(t, method="raps", penalty=np.nan), ValueError, "`penalty` is nan"),
        (lambda t, p: ConformalSets(t, method="raps", free=-1), ValueError, "`free` is -1"),
        (lambda t, p: ConformalSets(t).predict(p), ValueError, "call fit"),
        (lambda t, p: ConformalSets(t).fit(p, ["ant"]), ValueError, "`y` has 1 labels, but `probs` has 320 rows"),
        (lambda t, p: ConformalSets(t).fit(p[:1], ["whale"]), ValueError, "'whale', which is neither"),
    ],
)
def test_errors_say_what_to_do(run, error, text):
    taxonomy, probs, _ = synthetic()
    with pytest.raises(error, match=text):
        run(taxonomy, probs)
