"""The panel: its three small tasks against known answers, its choice of rates, and every task for a few steps."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from memory import Memory, assert_goes_on, final_row
from torch import Tensor, nn

import catnat
from catnat_experiments.common.parameterizations import Catnat, parameterization
from catnat_experiments.engine import records, stages
from catnat_experiments.engine.records import Record, run_id
from catnat_experiments.engine.types import Config
from catnat_experiments.report import page, tables
from catnat_experiments.tasks.defaults import bandit, classifier, panel, table
from catnat_experiments.tasks.defaults import task as defaults
from catnat_experiments.tasks.defaults.panel import PANEL, Task, Variant
from catnat_experiments.tasks.defaults.training import ORDERS, ordered

torch.set_num_threads(1)
train = defaults.EXPERIMENT.train_one
BY_NAME = {task.name: task for task in defaults.TASKS}
ACTIONS, VALID = 12, 4
POLICIES = ("softmax", *panel.TREES)


def small(task: str, name: str = "natural", **changes: str | int | float) -> Config:
    """A run of a moment."""
    sizes: dict[str, Config] = {
        "classifier": {"hidden": 8},
        "bandit": {"hidden": 8, "actions": ACTIONS, "valid": VALID},
        "table": {"rows": 5, "classes": 7},
    }
    run: Config = {"task": task, "parameterization": name, "order": "given", "rate": 0.01, "seed": 0, "steps": 4}
    return {**run, "batch": 6, **sizes["bandit" if task == "many actions" else task], **changes}


# ---- orders ----


def test_a_random_order_is_the_balanced_tree_over_permuted_classes() -> None:
    embeddings = np.eye(8)
    kind = ordered(parameterization("natural"), "random", embeddings, seed=1)
    assert isinstance(kind, Catnat)
    assert kind.tree is not None
    assert kind.tree != catnat.balanced(8)
    scores = torch.randn(7, generator=torch.Generator().manual_seed(0))
    ours, usual = kind.probs(scores), parameterization("natural").probs(scores)
    torch.testing.assert_close(ours.sort().values, usual.sort().values)
    assert ordered(parameterization("natural"), "random", embeddings, seed=2) != kind


def test_embeddings_put_similar_classes_side_by_side() -> None:
    embeddings = np.array([[0.0], [10.0], [0.1], [10.1]])
    kind = ordered(parameterization("sigmoid"), "embeddings", embeddings, seed=0)
    assert isinstance(kind, Catnat)
    assert kind.tree is not None
    sides = [int(kind.tree.path(k)[1][0]) for k in range(4)]
    assert sides in ([0, 1, 0, 1], [1, 0, 1, 0])


def test_the_given_order_and_softmax_are_left_alone() -> None:
    natural, softmax = parameterization("natural"), parameterization("softmax")
    assert ordered(natural, "given", np.eye(4), 0) is natural
    assert all(ordered(softmax, order, np.eye(4), 0) is softmax for order in ORDERS)
    with pytest.raises(ValueError, match="`order` is 'any', but one of these is needed: given, random"):
        ordered(natural, "any", np.eye(4), 0)


# ---- classifier ----


def test_digits_are_split_once_and_for_all() -> None:
    data = classifier.digits()
    assert {name: len(images) for name, images in data.images.items()} == {
        "train": 1000,
        "validation": 297,
        "test": 500,
    }
    together = torch.cat(list(data.images.values()))
    assert len(together) == 1797
    assert float(together.min()) == 0
    assert float(together.max()) == 1
    sevens = data.images["train"][data.classes["train"] == 7]
    np.testing.assert_allclose(data.means[7], sevens.mean(0).numpy(), atol=1e-6)


@pytest.mark.parametrize("name", ["softmax", *panel.TREES])
def test_an_untrained_classifier_has_the_loss_of_a_guess(name: str) -> None:
    training = classifier.Classifier(small("classifier", name))
    for parameter in training.model.parameters():
        nn.init.zeros_(parameter)
    found = training.metrics()
    assert found["test_log_loss"] == pytest.approx(math.log(10), rel=1e-5)
    assert found["test_saturated"] == 0


# ---- bandit ----


@pytest.mark.parametrize("name", POLICIES)
def test_masked_actions_are_never_taken(name: str) -> None:
    rows = bandit.draw_rows(50, ACTIONS, VALID, torch.Generator().manual_seed(0))
    kind = parameterization(name)
    scores = 3 * torch.randn(50, kind.num_scores(ACTIONS), generator=torch.Generator().manual_seed(1))
    probs = bandit.policy(kind, scores, rows.valid).probs
    assert [len(set(row)) for row in rows.valid.tolist()] == [VALID] * 50
    torch.testing.assert_close(probs.gather(1, rows.valid).sum(1), torch.ones(50))
    assert not probs.scatter(1, rows.valid, 0.0).any()


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_earns_more_than_the_best_one(name: str) -> None:
    training = bandit.Bandit(small("bandit", name))
    found = training.measure("test")
    assert abs(found["reward"]) < found["best_reward"] / 2  # it has learned nothing yet

    class Oracle(nn.Module):
        """Scores that grow with the reward: for softmax nearly the best policy."""

        def forward(self, contexts: Tensor) -> Tensor:
            return 1000 * contexts @ bandit.action_features(ACTIONS).t()

    if name == "softmax":
        training.model = Oracle()
        assert training.measure("test")["reward"] == pytest.approx(found["best_reward"], rel=1e-3)
        training.model = nn.Sequential(Oracle(), nn.Hardtanh(-1.0, 1.0))
        assert training.measure("test")["reward"] < 0.99 * found["best_reward"]


def test_rewards_are_products_of_vectors() -> None:
    rows = bandit.draw_rows(5, ACTIONS, VALID, torch.Generator().manual_seed(0))
    features = bandit.action_features(ACTIONS)
    torch.testing.assert_close(features.norm(dim=1), torch.ones(ACTIONS))
    found = bandit.mean_rewards(rows, ACTIONS)
    for row, place in itertools.product(range(5), range(VALID)):
        expected = float(rows.contexts[row] @ features[rows.valid[row, place]])
        assert float(found[row, place]) == pytest.approx(expected, abs=1e-5)


def test_a_policy_learns_an_order_while_it_acts() -> None:
    training = bandit.Bandit(small("bandit", "sigmoid", order="learned", steps=32, batch=64))
    trees = []
    for _ in range(32):
        training.advance()
        assert isinstance(training.kind, Catnat)
        trees.append(training.kind.tree)
    assert trees[2] == catnat.balanced(ACTIONS) != trees[3]
    assert training.order is not None
    assert training.order.layer.weight is training.model.get_parameter(
        "2.weight"
    )  # what is trained is what is re-ordered


@pytest.mark.parametrize("name", ["softmax", "natural"])
def test_the_loss_has_the_policy_gradient(name: str) -> None:
    training = bandit.Bandit(small("bandit", name, batch=200))
    weight = training.model[-1].weight  # type: ignore[index]

    def gradient(loss: Tensor) -> Tensor:
        return torch.autograd.grad(loss, weight)[0].flatten()

    drawn = torch.stack([gradient(training.loss()) for _ in range(300)])
    rows = bandit.draw_rows(50_000, ACTIONS, VALID, torch.Generator().manual_seed(5))
    probs = training.policy(rows).probs.gather(1, rows.valid)
    exact = gradient(-(probs * bandit.mean_rewards(rows, ACTIONS)).sum(1).mean())
    error = drawn.std(0) / len(drawn) ** 0.5
    assert float(((drawn.mean(0) - exact) / error).abs().max()) < 5
    assert float(exact.norm()) > 4 * float(error.norm())  # without the gradient it would not pass


# ---- table ----


def test_divergences_of_known_tables() -> None:
    half, quarter = torch.tensor([[0.5, 0.5, 0, 0]]).double(), torch.full((1, 4), 0.25).double()
    assert float(table.divergence(half, quarter.log())) == pytest.approx(math.log(2))
    assert float(table.divergence(quarter, quarter.log())) == pytest.approx(0)
    both = table.divergence(torch.cat((half, quarter)), torch.cat((quarter, quarter)).log())
    assert float(both) == pytest.approx(math.log(2) / 2)


@pytest.mark.parametrize("name", ["softmax", *panel.TREES])
def test_a_fit_begins_at_the_uniform_table(name: str) -> None:
    training = table.Fit(small("table", name))
    torch.testing.assert_close(training.truth.sum(1), torch.ones(5).double())
    entropy = -(training.truth * training.truth.log()).sum(1).mean()
    assert training.measure("test")["kl"] == pytest.approx(math.log(7) - float(entropy), abs=1e-6)


def test_frequent_classes_come_first_and_draws_follow_the_truth() -> None:
    frequencies = table.truth(2000, 16).mean(0)
    assert float(np.corrcoef(frequencies.log(), -np.arange(1, 17))[0, 1]) > 0.5
    run = small("table", "softmax", rate=0.02, steps=1500, batch=64)
    assert train(run, Memory()).metrics["test_kl"] < 0.01


# ---- runs ----


@pytest.mark.parametrize(("task", "order"), [*((task, "given") for task in defaults.TRAININGS), ("bandit", "learned")])
def test_an_interrupted_run_goes_on(task: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small(task, "sigmoid", order=order)
    outcome = assert_goes_on(lambda checkpointer: train(run, checkpointer), 2, monkeypatch)
    assert outcome.history["step"] == [1, 2, 3, 4]
    assert all(math.isfinite(value) for value in outcome.metrics.values())
    assert {BY_NAME[task].metric, BY_NAME[task].selected_by} <= set(outcome.metrics)


def test_variants_have_distinct_names_and_configs() -> None:
    for task in PANEL:
        names = [variant.name for variant in task.variants]
        assert len(set(names)) == len(names)
        assert names[0] == "softmax"
        assert {"softmax", defaults.DEFAULT.get(task.name, "sigmoid")} <= set(names)


# ---- the choice of rates ----


def _frame(task: Task, variant: Variant, means: dict[float, float]) -> pd.DataFrame:
    """Records of a search, whose two seeds lie around a mean."""
    rows = [
        {"id": run_id(run), f"metrics.{task.selected_by}": means[float(run["rate"])] + 0.1 * int(run["seed"])}
        for run in task.searched(variant, list(means))
    ]
    return pd.DataFrame(rows)


def test_the_best_rate_has_the_best_mean_and_did_not_diverge() -> None:
    task, variant = BY_NAME["classifier"], Variant("natural", "given")
    a, b, c, *_ = task.grid
    frame = _frame(task, variant, {a: 0.5, b: 0.4, c: 0.3})
    assert defaults.best_rate(task, variant, (a, b, c), frame) == c
    frame.loc[5, "metrics.validation_log_loss"] = math.nan  # one seed of the largest rate
    assert defaults.best_rate(task, variant, (a, b, c), frame) == b
    higher = dataclasses.replace(task, better="higher")
    assert defaults.best_rate(higher, variant, (a, b, c), frame) == a
    with pytest.raises(ValueError, match="No rate of sigmoid in classifier has a finite"):
        defaults.best_rate(task, Variant("sigmoid", "given"), (a, b, c), frame)


def test_a_grid_grows_where_its_best_rate_is_at_the_edge() -> None:
    task, variant = dataclasses.replace(BY_NAME["classifier"], first_rate=0.1, rates=3), Variant("natural", "given")
    inside = _frame(task, variant, {0.1: 2.0, 0.3: 1.0, 0.9: 2.0})
    assert defaults.tried(task, variant, inside, 2) == (0.1, 0.3, 0.9)
    upwards = _frame(task, variant, {0.1: 2.0, 0.3: 1.0, 0.9: 0.5, 2.7: 0.4, 8.1: 0.6})
    assert defaults.tried(task, variant, upwards, 1) == (0.1, 0.3, 0.9, 2.7, 8.1)
    assert defaults.tried(task, variant, upwards, 2) == (0.1, 0.3, 0.9, 2.7, 8.1)
    below = {0.01111: 0.3, 0.03333: 0.4, 0.1: 1.0, 0.3: 2.0, 0.9: 3.0}
    assert defaults.tried(task, variant, _frame(task, variant, below), 2)[:2] == (0.001234, 0.003703)


# ---- the whole of it, tiny ----


def _run_all(preset: str) -> list[stages.StageStatus]:
    """All stages in this process, as the engine does it with Ray."""
    experiment, found = defaults.EXPERIMENT, []
    for place in range(len(experiment.stages(preset))):
        status = stages.survey(experiment, preset, found)[place]
        for group in stages.unfinished_groups(experiment, status):
            about: dict[str, Any] = {"experiment": "defaults", "stage": status.stage.name, "seconds": 1.0}
            found += [
                Record.of(outcome, run, versions={}, commit=None, **about)
                for run, outcome in zip(group, experiment.train(group, Memory()), strict=True)
            ]
    return stages.survey(experiment, preset, found)


def test_quick_runs_and_is_reported(tmp_path: Path) -> None:
    statuses = _run_all("quick")
    assert all(status.complete for status in statuses)
    text = page.write("defaults", "quick", statuses, defaults.TABLES, tmp_path).read_text()
    for task in panel.PRESETS["quick"]:
        assert f"## {task.title}" in text
        assert f"| {task.variants[-1].name} | " in text
    [drawn] = defaults.figures(records.frame(tables.done_records(statuses)), tmp_path)
    assert drawn.stat().st_size > 10_000


def test_figures_need_final_runs(tmp_path: Path) -> None:
    assert defaults.figures(pd.DataFrame(), tmp_path) == []
    run = BY_NAME["table"].repeated(Variant("softmax", "given"), 0.1)[0]
    row = final_row(run, train({**run, "steps": 2}, Memory()))
    assert defaults.figures(pd.DataFrame([{**row, "stage": "search"}]), tmp_path) == []
