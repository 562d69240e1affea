"""The comparison of classifiers: its data, its measures against known answers, and every method for one small run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import catnat

task = pytest.importorskip("catnat_experiments.tasks.classifiers.task", exc_type=ImportError)
from catnat_experiments.tasks.classifiers import data, evaluation, methods  # noqa: E402

TAXONOMY = catnat.Taxonomy.from_paths(["a/b/c", "a/b/d", "a/e/f", "g/h/i"])
CLASSES = np.array(sorted(map(str, TAXONOMY.classes)))


def test_splits_have_all_rows_once_and_change_with_the_seed() -> None:
    one, other = data.load("generated-20-1000", 1), data.load("generated-20-1000", 2)
    assert [len(one.y[split]) for split in data.SPLITS] == [800, 100, 100]
    for rows in one, other:
        everything = np.concatenate([rows.X[split][:, 0] for split in data.SPLITS])
        np.testing.assert_array_equal(np.sort(everything), np.sort(data.generated(20, 1000)[0][:, 0]))
    assert not np.array_equal(one.X["test"], other.X["test"])


def test_icd_labels_are_chapter_block_and_category() -> None:
    found = data.load("icd10-2", 0)
    assert found.groups().num_levels == 3
    assert {"1/A00-A09/A00", "9/I20-I25/I21"} <= set(found.groups().classes)
    for split in data.SPLITS:
        assert found.X[split].shape[0] == len(found.y[split])
        assert set(found.y[split]) <= set(found.groups().classes)


def test_a_basket_shows_all_its_products_but_the_one_to_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    baskets = {"ann": ["110101", "110102", "120201"], "bob": ["130301", "130302", "140101"]}
    rows = [("1/1/2001", who, "<25", "115", label, 2, 10) for who, basket in baskets.items() for label in basket]
    rows += [rows[0], ("2/1/2001", "bob", "<25", "115", "110101", 1, 3)]  # twice the same; a basket that is too small
    names = ["TRANSACTION_DT", "CUSTOMER_ID", "AGE_GROUP", "PIN_CODE", "PRODUCT_SUBCLASS", "AMOUNT", "SALES_PRICE"]
    frame = pd.DataFrame(rows, columns=names)
    monkeypatch.setattr(data, "purchases", lambda columns: frame[columns])
    for name, value in {"PURCHASES": 1, "ITEMS": 2, "PRICES": 2}.items():
        monkeypatch.setattr(data, name, value)
    X, y, taxonomy = data._baskets.__wrapped__()
    assert taxonomy.path("110101") == ("11", "1101", "110101")
    assert len(set(y[:2])) == len(y) == X.shape[0] == 2
    columns = np.setdiff1d(np.concatenate(list(baskets.values())), y)
    for others, target in zip(X.toarray()[:, :4], y, strict=True):
        [basket] = [basket for basket in baskets.values() if target in basket]
        assert set(columns[others == 1]) == set(basket) - {target}
    assert X.sum(1).tolist() == [[5], [5]]  # the price, the age group and the area too


def test_measures_of_levels_are_those_of_summed_probabilities() -> None:
    probs = np.array([[0.5, 0.3, 0.15, 0.05], [0.02, 0.01, 0.96, 0.01]])  # of c, d, f, i
    metrics = evaluation.of_levels(TAXONOMY, probs, np.array(["a/b/d", "a/e/f"]))
    assert metrics["log_loss"] == metrics["log_loss_3"] == pytest.approx(-np.log([0.3, 0.96]).mean())
    assert metrics["log_loss_2"] == pytest.approx(-np.log([0.8, 0.96]).mean())
    assert metrics["log_loss_1"] == pytest.approx(-np.log([0.95, 0.99]).mean())
    assert [metrics[f"accuracy_{level}"] for level in (1, 2, 3)] == [1, 1, 0.5]


def test_answers_and_sets_of_a_model_that_knows_its_probabilities() -> None:
    rng = np.random.default_rng(0)
    probs = {name: rng.dirichlet([0.5] * 4, size=400) for name in ("validation", "test")}
    y = {name: CLASSES[(rng.random((400, 1)) > np.cumsum(rows, 1)).sum(1)] for name, rows in probs.items()}
    metrics, history = evaluation.of_answers(TAXONOMY, probs, y)
    assert metrics["back_off_accuracy"] == pytest.approx(0.95, abs=0.04)
    assert metrics["accuracy_at_0.5"] >= metrics["accuracy_at_0.7"] >= metrics["accuracy_at_0.9"]
    assert len(history["information"]) == len(history["accuracy"]) == 20
    sets = evaluation.of_sets(TAXONOMY, probs, y, 0)
    assert [sets[f"coverage_{kind}"] for kind in evaluation.KINDS] == pytest.approx([0.9] * 3, abs=0.01)
    assert 1 <= sets["set_classes_three"] <= sets["set_classes_one"] <= 4


@pytest.mark.parametrize("method", methods.METHODS)
def test_every_method_learns_something(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "ROUNDS", 5)
    run = {"data": "generated-8-800", "parameterization": method, "seed": 1, "first": 0.7, "second": 0.3}
    found = evaluation.evaluate(run).metrics
    assert found["test_log_loss"] < np.log(8)
    assert found["fit_seconds"] > 0


@pytest.mark.parametrize("method", methods.TEXT_METHODS)
def test_every_method_for_text_has_probabilities_of_all_classes(method: str) -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(CLASSES, 10)
    X = data.HashingVectorizer(n_features=64).transform(
        [f"{label} {rng.integers(9)}".replace("/", " x") for label in y]
    )
    rows = data.Data({"train": X}, {"train": y}, TAXONOMY)
    model = methods.TEXT_METHODS[method](0.5, 0.5, 0, rows).fit(X, y)
    probs = model.predict_proba(X)
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-6)
    assert (model.classes_ == CLASSES).all()
    assert (CLASSES[probs.argmax(1)] == y).mean() > 0.5


def test_without_trials_both_dials_are_in_the_middle() -> None:
    [fixed] = task.EXPERIMENT.stages("icd10-3")
    assert {(run["first"], run["second"]) for run in fixed.runs(pd.DataFrame())} == {(0.5, 0.5)}


# ---- the figures ----


def test_the_price_of_all_final_runs_is_drawn_and_back_off_where_there_is_a_taxonomy(tmp_path: Path) -> None:
    curves = {"history.information": [0.1, 0.9], "history.accuracy": [1.0, 0.6]}
    measured = {"metrics.fit_seconds": 2.0, "metrics.test_log_loss": 1.5, "config.data": "icd10-3"}
    text = {"stage": "final", "config.parameterization": "logistic, HiClass", **measured, **curves}
    table = {**text, "config.parameterization": "LightGBM"}
    drawn = task.figures(pd.DataFrame([text, text]), tmp_path)
    assert [path.name for path in drawn] == ["price.png", "back_off.png"]
    assert all(path.stat().st_size > 10_000 for path in drawn)
    assert [path.name for path in task.figures(pd.DataFrame([table]), tmp_path)] == ["price.png"]
    assert task.figures(pd.DataFrame([{**text, "stage": "search"}]), tmp_path) == []
    assert task.figures(pd.DataFrame(), tmp_path) == []
