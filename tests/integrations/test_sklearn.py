"""The classifiers against scikit-learn's own checks, brute force, and real LightGBM and XGBoost."""

import io
import warnings

import joblib
import numpy as np
import pytest
from scipy import sparse

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris, make_blobs
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

import catnat
from catnat.sklearn import TreeClassifier, log_loss_scorer
from catnat.sklearn._decisions import Decisions
from catnat.sklearn._labels import Labels
from catnat.taxonomy import back_off

TAXONOMY = catnat.Taxonomy.from_nested(
    {"mammal": {"cat": ["lion", "lynx", "tiger"], "dog": ["fox", "wolf"]}, "insect": ["ant"], "worm": None}
)
NAMES = np.array(TAXONOMY.classes)


def animals(rows=300, seed=0):
    """Blobs, one per class of the taxonomy."""
    X, y = make_blobs(rows, n_features=5, centers=len(NAMES), cluster_std=4.0, random_state=seed)
    return (X - X.mean(0)) / X.std(0), NAMES[y]


def with_groups(y, every=3):
    """Every third label made a group above it."""
    rng = np.random.default_rng(0)
    return np.array([rng.choice(TAXONOMY.path(name)) if i % every == 0 else name for i, name in enumerate(y)])


def fast():
    return LogisticRegression()


# ---- scikit-learn's own checks ----


@parametrize_with_checks([TreeClassifier(HistGradientBoostingClassifier(max_iter=5)), TreeClassifier(fast())])
def test_passes_the_checks_of_estimators(estimator, check):
    check(estimator)


# ---- probabilities ----


def product_of_branches(classifier, X):
    """Class probabilities by walking every path of the tree, one node after the other."""
    columns = []
    for k in range(len(classifier.classes_)):
        column = np.ones(len(X))
        for node, bit in zip(*classifier.tree_.path(k), strict=True):
            column *= classifier.estimators_[node].predict_proba(X)[:, bit]
        columns.append(column)
    return np.stack(columns, 1)


@pytest.mark.parametrize("tree", ["centroids", "huffman", "balanced", catnat.chain(7), TAXONOMY])
def test_probabilities_are_products_along_paths(tree):
    X, y = animals()
    classifier = TreeClassifier(fast(), tree=tree).fit(X, y)
    assert classifier.classes_.tolist() == sorted(NAMES)
    found = classifier.predict_proba(X)
    np.testing.assert_allclose(found, product_of_branches(classifier, X), rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(found.sum(1), 1, rtol=0, atol=1e-12)
    assert (classifier.predict(X) == classifier.classes_[found.argmax(1)]).all()
    assert classifier.score(X, y) > 0.6


@pytest.mark.parametrize("tree", ["centroids", TAXONOMY])
def test_a_node_is_fitted_on_the_rows_below_it(tree):
    X, y = animals()
    weights = np.random.default_rng(1).uniform(0.5, 2, len(y))
    classifier = TreeClassifier(fast(), tree=tree).fit(X, y, weights)
    index = np.searchsorted(classifier.classes_, y)
    paths = [dict(zip(*map(np.ndarray.tolist, classifier.tree_.path(k)), strict=True)) for k in index]
    for node, fitted in enumerate(classifier.estimators_):
        rows = [i for i, path in enumerate(paths) if node in path]
        expected = fast().fit(X[rows], [paths[i][node] for i in rows], weights[rows])
        np.testing.assert_allclose(fitted.coef_, expected.coef_, rtol=1e-12)


@pytest.mark.parametrize("members", ["given", "multiclass"])
def test_rows_of_nodes_leave_out_labels_at_or_above_the_node(members):
    y = np.array(TAXONOMY.labels)
    labels = Labels.of_taxonomy(TAXONOMY, members, None, y, None)
    numbers, parent = labels.index(y), labels.lineage.parent
    for each, (found, branch) in zip(
        labels.members, Decisions(labels.lineage, labels.members).rows(numbers), strict=True
    ):
        node, expected = parent[each[0]], {}
        for row, below in enumerate(numbers):
            while below != labels.lineage.top:
                if parent[below] == node:
                    expected[row] = each.tolist().index(below)
                below = parent[below]
        assert dict(zip(found.tolist(), branch.tolist(), strict=True)) == expected
        assert (np.diff(found) > 0).all()


def test_certain_nodes_have_finite_logarithms():
    X, y = animals()
    classifier = TreeClassifier(DecisionTreeClassifier(random_state=0)).fit(X, y)
    logs = classifier.predict_log_proba(X)
    assert np.isfinite(logs).all()
    np.testing.assert_allclose(np.exp(logs).sum(1), 1, atol=1e-12)


# ---- groups ----


@pytest.mark.parametrize(("confidence", "least_level"), [(0.51, 0), (0.9, 0), (1.0, 0), (0.99, 1)])
def test_groups_are_those_of_the_taxonomy(confidence, least_level):
    X, y = animals()
    classifier = TreeClassifier(fast(), tree=TAXONOMY).fit(X, y)
    probs = classifier.predict_proba(X)
    found = classifier.predict_group(X, confidence, least_level=least_level)
    assert (found == back_off(TAXONOMY, probs, confidence, least_level=least_level)).all()
    assert (None in found) == (least_level == 0)


def test_partial_labels_help_the_nodes_above_and_leave_those_below_alone():
    X, y = animals()
    less = np.where(np.isin(y, ["lion", "lynx", "tiger"]) & (np.arange(len(y)) % 2 == 0), "cat", y)
    kept = less != "cat"
    partial, dropped = (TreeClassifier(fast(), tree=TAXONOMY, members="given") for _ in range(2))
    partial.fit(X, less)
    dropped.fit(X[kept], y[kept])
    cat = TAXONOMY.ids["cat"]
    np.testing.assert_allclose(partial.estimators_[cat].coef_, dropped.estimators_[cat].coef_, rtol=1e-12)
    full = TreeClassifier(fast(), tree=TAXONOMY, members="given").fit(X, y)
    np.testing.assert_allclose(partial.estimators_[0].coef_, full.estimators_[0].coef_, rtol=1e-12)


def test_a_node_with_one_branch_in_the_data_keeps_the_prior():
    X, y = animals()
    seen = ~np.isin(y, ["lynx", "fox", "wolf"])
    classifier = TreeClassifier(fast(), tree=TAXONOMY).fit(X[seen], y[seen])
    assert classifier.classes_.tolist() == sorted(NAMES)
    logs = classifier.predict_log_proba(X)
    assert np.isfinite(logs).all()
    # No dog was seen: one row, divided by the prior, says how probable a dog is among mammals.
    groups = TAXONOMY.group_probs(classifier.predict_proba(X))
    cats = int(np.isin(y[seen], ["lion", "tiger"]).sum())
    np.testing.assert_allclose(groups["dog"] / groups["mammal"], (2 / 5) / (cats + 1), rtol=1e-9)
    fox, wolf = (logs[:, list(classifier.classes_).index(name)] for name in ("fox", "wolf"))
    np.testing.assert_allclose(fox, wolf, rtol=1e-12)
    for scale in (1e-3, 1e3):  # the one row has the mean weight
        scaled = TreeClassifier(fast(), tree=TAXONOMY).fit(X[seen], y[seen], np.full(seen.sum(), scale))
        weighted = TAXONOMY.group_probs(scaled.predict_proba(X))
        np.testing.assert_allclose(weighted["dog"] / weighted["mammal"], (2 / 5) / (cats + 1), rtol=1e-9)


def test_members_by_one_multiclass_classifier_are_those_of_each_group():
    X, y = animals()
    classifier = TreeClassifier(fast(), tree=TAXONOMY, members="multiclass").fit(X, y)
    known = dict(zip(TAXONOMY.groups, classifier.estimators_[1:], strict=True))
    assert known["insect"] is None
    mammals = np.isin(y, TAXONOMY.members("mammal"))
    in_cats = np.isin(y, TAXONOMY.members("cat"))
    first = fast().fit(X, [TAXONOMY.path(name)[0] for name in y])
    second = fast().fit(X[mammals], np.where(in_cats, "cat", "dog")[mammals])
    third = fast().fit(X[in_cats], y[in_cats])
    expected = first.predict_proba(X)[:, 1] * second.predict_proba(X)[:, 0] * third.predict_proba(X)[:, 1]
    assert first.classes_[1] == "mammal"
    np.testing.assert_allclose(classifier.predict_proba(X)[:, list(NAMES).index("lynx")], expected, rtol=1e-4)
    few = TreeClassifier(fast(), tree=TAXONOMY, members="multiclass").fit(X[y != "lynx"], y[y != "lynx"])
    probs = few.predict_proba(X)
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-12)
    of_cats = TAXONOMY.group_probs(probs)["cat"]
    count = np.isin(y, ["lion", "tiger"]).sum()
    np.testing.assert_allclose(probs[:, list(NAMES).index("lynx")] / of_cats, 1 / 3 / (count + 1), rtol=1e-9)


def test_a_taxonomy_and_its_tree_are_the_same_whatever_the_order_of_listing():
    X, y = animals()
    listed = catnat.Taxonomy(list(TAXONOMY.parents.items())[::-1])
    by_tree = TreeClassifier(fast(), tree=listed.tree).fit(X, y).predict_proba(X)
    by_taxonomy = TreeClassifier(fast(), tree=listed, members="given").fit(X, y).predict_proba(X)
    np.testing.assert_allclose(by_tree, by_taxonomy, rtol=1e-12)


def test_members_are_joined_by_their_centroids():
    """In one group of 40 classes on a line, listed at random, neighbours share most of their paths."""
    rng = np.random.default_rng(0)
    place = rng.permutation(40)
    y = np.repeat(np.arange(40), 20)
    X = place[y, None] + 0.3 * rng.normal(size=(len(y), 1))
    taxonomy = catnat.Taxonomy.from_nested({"all": list(range(40))})
    by_centroids, as_given = (
        TreeClassifier(fast(), tree=taxonomy, members=m).fit(X, y) for m in ("centroids", "given")
    )
    assert by_centroids.score(X, y) > 0.85 > 0.3 > as_given.score(X, y)


def test_rows_labelled_with_a_group_are_right_if_the_class_is_in_it():
    X, y = animals()
    classifier = TreeClassifier(fast(), tree=TAXONOMY).fit(X, y)
    found = classifier.predict(X)
    tops = [TAXONOMY.path(name)[0] for name in y]
    assert classifier.score(X, tops) == np.mean(
        [TAXONOMY.path(name)[0] == top for name, top in zip(found, tops, strict=True)]
    )
    assert classifier.score(X, tops) > classifier.score(X, y)
    weights = np.arange(len(y))
    assert classifier.score(X, y, weights) == pytest.approx(np.average(found == y, weights=weights))


def test_cross_validation_with_groups_and_classes_that_a_fold_lacks():
    X, y = animals()
    y = with_groups(y)
    y[np.flatnonzero(y == "lynx")[1:]] = "cat"
    model = make_pipeline(StandardScaler(), TreeClassifier(fast(), tree=TAXONOMY))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the one lynx
        accuracy = cross_val_score(model, X, y, cv=3)
        losses = cross_val_score(model, X, y, cv=3, scoring=log_loss_scorer(TAXONOMY))
    assert (accuracy > 0.5).all()
    assert ((losses > -1.3) & (losses < 0)).all()
    classifier = TreeClassifier(fast(), tree=TAXONOMY).fit(X, y)
    likelihood = TAXONOMY.label_probs(classifier.predict_proba(X))[np.arange(len(y)), TAXONOMY.index(y)]
    assert log_loss_scorer(TAXONOMY)(classifier, X, y) == pytest.approx(np.log(likelihood).mean())


# ---- what scikit-learn's users bring ----


def test_dataframes_keep_their_columns():
    pandas = pytest.importorskip("pandas")
    X, y = animals()
    frame = pandas.DataFrame(X[:, :2], columns=["width", "height"])
    frame["kind"] = pandas.Categorical(np.where(X[:, 0] > 0, "a", "b"))
    classifier = TreeClassifier(HistGradientBoostingClassifier(categorical_features="from_dtype", max_iter=5))
    classifier.fit(frame, pandas.Series(y))
    assert classifier.feature_names_in_.tolist() == ["width", "height", "kind"]
    assert classifier.score(frame, y) > 0.4
    only_categories = TreeClassifier(classifier.estimator).fit(frame[["kind"]], y)
    assert only_categories.tree_ == catnat.huffman(np.unique(y, return_counts=True)[1])
    with pytest.raises(ValueError, match="feature names"):
        classifier.predict(frame[["width", "height"]])
    with pytest.raises(ValueError, match=r"0 sample\(s\)"):
        classifier.predict(frame[:0])


def test_sparse_rows_are_those_of_the_array():
    X, y = animals()
    wide = np.concatenate([np.maximum(X, 0), np.zeros((len(X), 300))], 1)
    rows = sparse.csr_matrix(wide)
    by_array, by_rows = (TreeClassifier(fast(), tree="huffman").fit(each, y) for each in (wide, rows))
    np.testing.assert_allclose(by_rows.predict_proba(rows), by_array.predict_proba(wide), rtol=1e-5)
    assert TreeClassifier(fast()).fit(rows, y).score(rows, y) > 0.4


def test_pipelines_search_and_files():
    X, y = animals()
    pipeline = make_pipeline(StandardScaler(), TreeClassifier(fast(), tree=TAXONOMY))
    search = GridSearchCV(
        pipeline, {"treeclassifier__estimator__C": [0.01, 1.0], "treeclassifier__tree": ["huffman", TAXONOMY]}, cv=2
    ).fit(X, y)
    file = io.BytesIO()
    joblib.dump(search.best_estimator_, file)
    again = joblib.load(file)
    np.testing.assert_array_equal(again.predict_proba(X), search.predict_proba(X))
    assert clone(search.best_estimator_).get_params().keys() == pipeline.get_params().keys()


def test_two_jobs_find_the_same():
    X, y = animals()
    with joblib.parallel_config("threading"):  # processes would need seconds to start
        one, two = (TreeClassifier(fast(), n_jobs=n).fit(X, y).predict_proba(X) for n in (1, 2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_boosters_as_they_are(library):
    module = pytest.importorskip(library)
    X, y = animals(600)
    booster = (
        module.LGBMClassifier(n_estimators=10, verbosity=-1, n_jobs=1)
        if library == "lightgbm"
        else module.XGBClassifier(n_estimators=10, n_jobs=1)
    )
    classifier = TreeClassifier(booster, tree=TAXONOMY).fit(X, with_groups(y), np.ones(len(y)))
    np.testing.assert_allclose(classifier.predict_proba(X).sum(1), 1, atol=1e-12)
    assert classifier.score(X, y) > 0.7
    file = io.BytesIO()
    joblib.dump(classifier, file)
    np.testing.assert_array_equal(joblib.load(file).predict_proba(X), classifier.predict_proba(X))


def test_calibrated_classifiers_will_do():
    X, y = load_iris(return_X_y=True)
    assert TreeClassifier(CalibratedClassifierCV(LinearSVC(), cv=3)).fit(X, y).score(X, y) > 0.9


def test_an_error_of_an_estimator_names_its_node():
    X, y = animals()
    lonely = np.append(np.flatnonzero(y != "fox"), np.flatnonzero(y == "fox")[:1])
    with pytest.raises(ValueError) as caught:
        TreeClassifier(CalibratedClassifierCV(GaussianNB(), cv=3), tree=TAXONOMY).fit(X[lonely], y[lonely])
    assert "the rarest of which has 1 rows" in caught.value.__notes__[0]


# ---- errors ----


def call(method, *arguments, tree=TAXONOMY, members="centroids"):
    """A call of a fitted classifier, with the rows before its arguments."""
    X, y = animals()
    return lambda: getattr(TreeClassifier(fast(), tree=tree, members=members).fit(X, y), method)(X, *arguments)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"tree": "oak"}, ValueError, "`tree` is 'oak', but one of"),
        ({"tree": 3}, TypeError, "`tree` is 3, but one of"),
        ({"tree": catnat.balanced(5)}, ValueError, "5 classes, but `y` has 7"),
        ({"tree": catnat.Taxonomy.from_paths(["a", "b"])}, ValueError, "neither a class nor a group"),
        ({"tree": catnat.Taxonomy.from_paths([("a",), ("b",)])}, ValueError, "no labels for scikit-learn"),
        ({"tree": TAXONOMY, "members": "some"}, ValueError, "`members` is 'some'"),
        ({"estimator": LinearSVC()}, TypeError, "has no predict_proba"),
        (call("predict_group", tree="huffman"), AttributeError, "Only a taxonomy has groups"),
        (call("predict_group", 1.5), ValueError, r"`threshold` is 1\.5"),
        (call("tree_", members="multiclass"), AttributeError, "there is no binary tree"),
    ],
)
def test_mistakes(options, error, text):
    with pytest.raises(error, match=text):
        options() if callable(options) else TreeClassifier(**options).fit(*animals())


def test_weights_that_the_estimator_does_not_take():
    X, y = animals()
    with pytest.raises(ValueError, match="does not take it"):
        TreeClassifier(make_pipeline(StandardScaler(), GaussianNB())).fit(X, y, np.ones(len(y)))
