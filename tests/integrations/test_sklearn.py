"""The classifiers against scikit-learn's own checks, brute force, and real LightGBM and XGBoost."""

import io
import warnings

import joblib
import numpy as np
import pytest
from scipy import sparse

pytest.importorskip("sklearn")
pytest.importorskip("torch")

from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris, make_blobs
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import SkipTestWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import check_estimator

import catnat
from catnat.sklearn import HeadClassifier, TreeClassifier
from catnat.sklearn._tree_classifier import RowsOfNodes

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


def check(classifier, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkipTestWarning)  # array API
        check_estimator(classifier, **options)


# ---- scikit-learn's own checks ----


@pytest.mark.one_row
@pytest.mark.parametrize("estimator", [None, LogisticRegression()], ids=["default", "linear"])
@pytest.mark.parametrize("tree", ["centroids", "balanced"])
def test_passes_check_estimator(estimator, tree):
    check(TreeClassifier(estimator, tree=tree))


def test_head_passes_check_estimator():
    # As scikit-learn says of its own SGDClassifier: batches of repeated rows are not those of weighted ones.
    weighted = {f"check_sample_weight_equivalence_on_{kind}_data": "trained by batches" for kind in ("dense", "sparse")}
    check(HeadClassifier(32, max_iter=20), expected_failed_checks=weighted)


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_head_weighs_rows_whatever_the_batches(batch_size):
    X, y = np.ones((64, 1), np.float32), np.arange(64) % 2
    head = HeadClassifier(
        4, tree="balanced", batch_size=batch_size, max_iter=4 * batch_size + 20, tol=-1, random_state=0
    ).fit(X, y, np.where(y == 1, 9.0, 1.0))
    np.testing.assert_allclose(head.predict_proba(X[:1])[0, 1], 0.9, atol=0.03)


def test_head_weighs_the_rows_of_one_call_against_those_of_another():
    X, y = np.ones((50, 1), np.float32), np.zeros(50, int)
    probs = []
    for weight in (1e-6, 1.0):
        head = HeadClassifier(4, tree="balanced", learning_rate=0.1, random_state=0)
        head.partial_fit(X, np.arange(50) % 2, classes=[0, 1])
        before = head.predict_proba(X[:1])[0, 0]
        probs.append(head.partial_fit(X, y, sample_weight=np.full(50, weight)).predict_proba(X[:1])[0, 0] - before)
    assert probs[0] < 1e-4 < 0.05 < probs[1]


def test_log_likelihood_takes_a_label_for_every_row():
    X, y = np.arange(6.0)[:, None], np.arange(6) % 3
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        TreeClassifier(LogisticRegression()).fit(X, y).log_likelihood(X, y[:2])


# ---- probabilities ----


def product_of_branches(classifier, X):
    """Class probabilities by walking every path of the tree, one node after the other."""
    columns = []
    for name in classifier.classes_:
        k = classifier._labels.order[list(classifier.classes_).index(name)]
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
    index = {name: k for k, name in zip(classifier._labels.order, classifier.classes_, strict=True)}
    paths = [dict(zip(*map(np.ndarray.tolist, classifier.tree_.path(index[name])), strict=True)) for name in y]
    for node, fitted in enumerate(classifier.estimators_):
        rows = [i for i, path in enumerate(paths) if node in path]
        expected = fast().fit(X[rows], [paths[i][node] for i in rows], weights[rows])
        np.testing.assert_allclose(fitted.coef_, expected.coef_, rtol=1e-12)


def test_rows_of_nodes_leave_out_labels_at_or_above_the_node():
    tree, ids = TAXONOMY.tree, np.array([TAXONOMY.ids[name] for name in TAXONOMY.parents])
    rows = RowsOfNodes.sorted_by(ids, tree)
    parents, bits = tree.parents, tree.bits
    for node in range(tree.num_nodes):
        expected = {}
        for row, below in enumerate(ids):
            while below != 0:
                if parents[below] == node:
                    expected[row] = int(bits[below])
                below = parents[below]
        found, branch = rows.at(node)
        assert dict(zip(found.tolist(), branch.tolist(), strict=True)) == expected
        assert (np.diff(found) > 0).all()
        no = sum(1 for bit in expected.values() if bit == 0)
        assert rows.masses(np.ones(len(ids)))[node].tolist() == [no, len(expected) - no]


@pytest.mark.parametrize("k", [1, 3, 7])
def test_top_k_is_brute_force(k):
    X, y = animals()
    classifier = TreeClassifier(fast(), tree=TAXONOMY).fit(X, y)
    labels, probs = classifier.top_k(X, k)
    everything = classifier.predict_proba(X)
    order = np.argsort(-everything, axis=1, kind="stable")[:, :k]
    assert (labels == classifier.classes_[order]).all()
    np.testing.assert_allclose(probs, np.take_along_axis(everything, order, 1), rtol=1e-14)


def test_predictions_by_blocks_are_the_same(monkeypatch):
    X, y = animals()
    classifier = TreeClassifier(fast(), tree=TAXONOMY).fit(X, y)

    def predictions():
        return classifier.predict(X), classifier.top_k(X, 2)[1], classifier.predict_group(X), classifier.group_proba(X)

    at_once = predictions()
    monkeypatch.setattr("catnat.sklearn._prediction._NUMBERS", 100)
    for whole, blocks in zip(at_once, predictions(), strict=True):
        np.testing.assert_array_equal(whole, blocks)


def test_certain_nodes_have_finite_logarithms():
    X, y = animals()
    classifier = TreeClassifier(DecisionTreeClassifier(random_state=0)).fit(X, y)
    logs = classifier.predict_log_proba(X)
    assert np.isfinite(logs).all()
    np.testing.assert_allclose(np.exp(logs).sum(1), 1, atol=1e-12)


# ---- groups ----


def test_group_probabilities_are_sums_over_their_members():
    X, y = animals()
    classifier = TreeClassifier(fast(), tree=TAXONOMY).fit(X, y)
    probs = classifier.predict_proba(X)
    groups = classifier.group_proba(X)
    assert classifier.groups_ == TAXONOMY.groups
    for column, group in enumerate(classifier.groups_):
        members = np.isin(classifier.classes_, TAXONOMY.members(group))
        np.testing.assert_allclose(groups[:, column], probs[:, members].sum(1), rtol=1e-12)


@pytest.mark.parametrize("confidence", [0.51, 0.9, 0.999, 1.0])
def test_predict_group_is_the_deepest_that_is_probable_enough(confidence):
    X, y = animals()
    classifier = TreeClassifier(fast(), tree=TAXONOMY).fit(X, y)
    known = dict(zip(classifier.classes_, classifier.predict_proba(X).T, strict=True))
    known |= dict(zip(classifier.groups_, classifier.group_proba(X).T, strict=True))
    found = classifier.predict_group(X, confidence)
    for i, name in enumerate(found):
        enough = [one for one in known if known[one][i] >= confidence]
        assert name == max(enough, key=lambda one: len(TAXONOMY.path(one)), default=None)
    assert len(set(found)) > 1 or confidence == 1


def test_a_partial_label_has_the_likelihood_of_its_group():
    X, y = animals()
    y = with_groups(y)
    classifier = TreeClassifier(fast(), tree=TAXONOMY).fit(X, y)
    probs = classifier.predict_proba(X)
    sums = [row[np.isin(classifier.classes_, TAXONOMY.members(name))].sum() for row, name in zip(probs, y, strict=True)]
    np.testing.assert_allclose(classifier.log_likelihood(X, y), np.log(sums), rtol=1e-10, atol=1e-12)


def test_partial_labels_help_the_nodes_above_and_leave_those_below_alone():
    X, y = animals()
    less = np.where(np.isin(y, ["lion", "lynx", "tiger"]) & (np.arange(len(y)) % 2 == 0), "cat", y)
    kept = less != "cat"
    partial, dropped = (TreeClassifier(fast(), tree=TAXONOMY) for _ in range(2))
    partial.fit(X, less)
    dropped.fit(X[kept], y[kept])
    cat = TAXONOMY.ids["cat"]
    np.testing.assert_allclose(partial.estimators_[cat].coef_, dropped.estimators_[cat].coef_, rtol=1e-12)
    full = TreeClassifier(fast(), tree=TAXONOMY).fit(X, y)
    np.testing.assert_allclose(partial.estimators_[0].coef_, full.estimators_[0].coef_, rtol=1e-12)


def test_a_node_with_one_branch_in_the_data_keeps_the_prior():
    X, y = animals()
    seen = ~np.isin(y, ["lynx", "fox", "wolf"])
    classifier = TreeClassifier(fast(), tree=TAXONOMY).fit(X[seen], y[seen])
    assert classifier.classes_.tolist() == sorted(NAMES)
    logs = classifier.predict_log_proba(X)
    assert np.isfinite(logs).all()
    # No dog was seen: one row, divided by the prior, says how probable a dog is among mammals.
    dog = list(TAXONOMY.groups).index("dog")
    mammal = list(TAXONOMY.groups).index("mammal")
    groups = classifier.group_proba(X)
    cats = int(np.isin(y[seen], ["lion", "tiger"]).sum())
    np.testing.assert_allclose(groups[:, dog] / groups[:, mammal], (2 / 5) / (cats + 1), rtol=1e-9)
    fox, wolf = (logs[:, list(classifier.classes_).index(name)] for name in ("fox", "wolf"))
    np.testing.assert_allclose(fox, wolf, rtol=1e-12)


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


def test_calibrated_classifiers_will_do():
    X, y = load_iris(return_X_y=True)
    classifier = TreeClassifier(CalibratedClassifierCV(LinearSVC(), cv=3)).fit(X, y)
    assert classifier.score(X, y) > 0.9


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


# ---- heads ----


def head(**options):
    return HeadClassifier(**{"embedding_size": 16, "max_iter": 10, "batch_size": 16, "random_state": 0, **options})


def test_head_says_one_distribution_in_all_its_methods():
    X, y = animals()
    classifier = head(tree=TAXONOMY).fit(X, y)
    probs = classifier.predict_proba(X)
    np.testing.assert_allclose(probs.sum(1), 1, rtol=0, atol=1e-12)
    groups = dict(zip(classifier.groups_, classifier.group_proba(X).T, strict=True))
    for group, found in groups.items():
        members = np.isin(classifier.classes_, TAXONOMY.members(group))
        np.testing.assert_allclose(found, probs[:, members].sum(1), rtol=1e-12)
    labels, values = classifier.top_k(X, 3)
    np.testing.assert_allclose(values, np.sort(probs, 1)[:, :-4:-1], rtol=1e-14)
    assert (labels[:, 0] == classifier.predict(X)).all()
    assert (classifier.classes_[probs.argmax(1)] == labels[:, 0]).all()
    assert classifier.score(X, y) > 0.6
    assert classifier.loss_curve_[-1] < 0.8 * classifier.loss_curve_[0]


def test_head_trains_on_the_likelihood_of_partial_labels():
    X, y = animals()
    y = with_groups(y, every=2)
    classifier = head(tree=TAXONOMY).fit(X, y)
    probs = classifier.predict_proba(X)
    sums = [row[np.isin(classifier.classes_, TAXONOMY.members(name))].sum() for row, name in zip(probs, y, strict=True)]
    ids = classifier._labels.ids(y)
    np.testing.assert_allclose(classifier._network.log_prob(X.astype(np.float32), ids), np.log(sums), atol=1e-4)
    np.testing.assert_allclose(classifier.log_likelihood(X, y), np.log(sums), rtol=1e-9, atol=1e-12)
    assert classifier.score(X, animals()[1]) > 0.6
    groups_alone = head(tree=TAXONOMY).fit(X, [TAXONOMY.path(name)[0] for name in animals()[1]])
    assert groups_alone.loss_curve_[-1] < 0.7 * groups_alone.loss_curve_[0]


def test_head_on_sparse_rows_is_that_on_dense_ones():
    X, y = animals()
    dense = np.maximum(X, 0).astype(np.float32)
    rows = sparse.csr_matrix(dense)
    by_array, by_rows = (head(tree="huffman").fit(each, y) for each in (dense, rows))
    np.testing.assert_allclose(by_rows.predict_proba(rows), by_array.predict_proba(dense), atol=1e-3)


def test_partial_fit_continues():
    X, y = animals()
    whole = head(max_iter=1).fit(X, y)
    parts = head()
    for _ in range(10):
        parts.partial_fit(X, y, classes=NAMES)
    assert parts.n_iter_ == 10
    assert parts.loss_curve_[0] == pytest.approx(whole.loss_curve_[0], rel=0.2)
    assert parts.loss_curve_[-1] < 0.7 * parts.loss_curve_[0]
    few = head().partial_fit(X[y == "ant"], y[y == "ant"], classes=NAMES)
    assert np.isfinite(few.partial_fit(X, y).predict_log_proba(X)).all()
    with pytest.raises(ValueError, match="needs `classes`"):
        head().partial_fit(X, y)


def test_early_stopping_keeps_the_best_weights():
    X, _ = animals()
    noise = NAMES[np.random.default_rng(0).integers(len(NAMES), size=len(X))]  # nothing to learn: it overfits
    classifier = head(early_stopping=True, max_iter=30, learning_rate=1.0, validation_fraction=0.5).fit(X, noise)
    assert classifier.n_iter_ == len(classifier.validation_curve_) < 30
    held_out = classifier.validation_curve_
    again = head(early_stopping=True, max_iter=int(np.argmin(held_out)) + 1, learning_rate=1.0, validation_fraction=0.5)
    np.testing.assert_allclose(again.fit(X, noise).predict_proba(X), classifier.predict_proba(X), rtol=1e-5)


@pytest.mark.parametrize("fraction", [0.0, 1.0, 1.5])
def test_some_rows_are_held_out_and_some_are_not(fraction):
    with pytest.raises(ValueError, match=f"`validation_fraction` is {fraction}"):
        head(early_stopping=True, validation_fraction=fraction).fit(*animals())
    head(max_iter=1, validation_fraction=fraction).fit(*animals())  # nothing is held out


def test_head_shows_its_progress(capsys):
    pytest.importorskip("tqdm")
    head(max_iter=2, verbose=True).fit(*animals())
    assert "pass 2, loss" in capsys.readouterr().err


def test_head_survives_files_and_search():
    X, y = animals()
    search = GridSearchCV(head(), {"learning_rate": [0.01, 0.1]}, cv=2).fit(X, y)
    file = io.BytesIO()
    joblib.dump(search.best_estimator_, file)
    file.seek(0)
    np.testing.assert_array_equal(joblib.load(file).predict_proba(X), search.predict_proba(X))


# ---- errors ----


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"tree": "oak"}, ValueError, "`tree` is 'oak', but one of"),
        ({"tree": 3}, TypeError, "`tree` is 3, but one of"),
        ({"tree": catnat.balanced(5)}, ValueError, "5 classes, but `y` has 7"),
        ({"tree": catnat.Taxonomy.from_paths(["a", "b"])}, ValueError, "`y` has the label"),
        ({"tree": catnat.Taxonomy({"a": None, 1: None})}, ValueError, "not all of one type"),
        ({"estimator": LinearSVC()}, TypeError, "has no predict_proba"),
    ],
)
def test_wrong_arguments(options, error, text):
    with pytest.raises(error, match=text):
        TreeClassifier(**options).fit(*animals())


@pytest.mark.parametrize("name", ["embedding_size", "batch_size", "max_iter"])
def test_sizes_of_a_head_are_positive_integers(name):
    for value, error in ((0, ValueError), (1.5, TypeError)):
        with pytest.raises(error, match=name):
            HeadClassifier(**{name: value}).fit(*animals())


def test_classes_stay_those_of_the_first_call():
    X, y = animals()
    head = HeadClassifier(4, random_state=0).partial_fit(X, y, classes=NAMES)
    assert head.partial_fit(X, y, classes=NAMES[::-1]).classes_.tolist() == sorted(NAMES)
    with pytest.raises(ValueError, match="first call of partial_fit"):
        head.partial_fit(X, y, classes=NAMES[:3])


def test_wrong_calls():
    X, y = animals()
    classifier = TreeClassifier(fast()).fit(X, y)
    with pytest.raises(ValueError, match=r"1 \.\. 7 classes"):
        classifier.top_k(X, 8)
    with pytest.raises(TypeError, match="k must be an instance"):
        classifier.top_k(X, 2.0)
    with pytest.raises(AttributeError, match="Only a taxonomy has groups"):
        classifier.predict_group(X)
    with pytest.raises(AttributeError, match="Only a taxonomy has groups"):
        classifier.group_proba(X)
    with pytest.raises(ValueError, match=r"`confidence` is 0\.5"):
        classifier.predict_group(X, 0.5)
    with pytest.raises(ValueError, match="label 'whale'"):
        classifier.log_likelihood(X[:1], ["whale"])
    with pytest.raises(ValueError, match="does not take it"):
        TreeClassifier(make_pipeline(StandardScaler(), GaussianNB())).fit(X, y, np.ones(len(y)))
