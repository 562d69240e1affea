from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy import stats

from catnat_experiments.engine import records
from catnat_experiments.engine.records import Record
from catnat_experiments.engine.stages import StageStatus
from catnat_experiments.engine.types import Config, Outcome, Stage
from catnat_experiments.report import plots
from catnat_experiments.report.page import write
from catnat_experiments.report.tables import Claim, Curve, Table
from catnat_experiments.report.targets import Target

TABLE = Table(
    title="Energy score, test",
    metric="es",
    better="lower",
    row="theta",
    column="kind",
    columns=("softmax", "natural"),
    row_title="theta*",
    digits=2,
    paper={0.5: {"softmax": Target(2.0, 0.25), "natural": Target(1.0, 0.1, best=True), "optimal": Target(0.5)}},
    reference="optimal",
    chosen=("rate",),
    claims=(Claim("natural", "softmax"), Claim("softmax", "natural", rows=(0.9,))),
    curves=(Curve("loss", title="training loss"),),
    note="A note.",
)

CLEAR = {
    (0.5, "softmax"): [2.0, 2.1, 1.9],
    (0.5, "natural"): [1.0, 1.1, 0.9],
    (0.5, "optimal"): [0.51],
    (0.9, "softmax"): [1.0, 1.2, 0.8],
    (0.9, "natural"): [1.1, 1.2, 0.9],
    (0.9, "sigmoid"): [0.0, 0.0, 0.0],  # no column of the table
}


def status(values: Mapping[tuple[float, str], Sequence[float]], stage: str = "final", missing: int = 0) -> StageStatus:
    found = [
        Record.of(
            Outcome({"es": value}, {"loss": [3.0 + seed, 2.0, 1.0], "step": [0.0, 10.0, 20.0]}),
            {"theta": theta, "kind": kind, "seed": seed, "rate": 0.05},
            experiment="gsl",
            stage="final",
            seconds=36.0,
            versions={"torch": "2"},
            commit="c" * 40,
        )
        for (theta, kind), sample in values.items()
        for seed, value in enumerate(sample)
    ]
    runs: list[Config] = [record.config for record in found]
    return StageStatus(Stage(stage, lambda frame: runs, "", len(runs)), runs, found, missing)


def page(values: Mapping[tuple[float, str], Sequence[float]], directory: Path, table: Table = TABLE) -> str:
    return write("gsl", "paper", [status(values)], [table], directory).read_text()


def test_table_has_mean_deviation_bold_and_the_papers_number(tmp_path: Path) -> None:
    text = page(CLEAR, tmp_path)
    assert "| theta* | softmax | natural | optimal |" in text
    assert "| 0.5 | 2.00 ± 0.10 (2.00 ± 0.25) | **1.00 ± 0.10** (1.00 ± 0.10*) | 0.51 (0.50) |" in text
    assert "| 0.9 | **1.00 ± 0.20** | **1.07 ± 0.15** | - |" in text  # not significantly worse: both are bold
    assert "Lower is better." in text
    assert "over 3 runs a cell; in brackets the paper's, with a star where it is bold there." in text
    assert "A note." in text


def test_p_values_are_welchs_and_holms(tmp_path: Path) -> None:
    # t = 1 / sqrt(2 / 300) = 12.247 with 4 degrees of freedom: p = 0.000255; two comparisons in the table: doubled
    text = page(CLEAR, tmp_path)
    assert "| 0.5 | 0.00051 (0.00026) | best |" in text
    assert "| 0.9 | best | 0.67 (0.67) |" in text


def test_p_values_can_be_against_a_column_that_is_not_the_best(tmp_path: Path) -> None:
    table = dataclasses.replace(TABLE, columns=("softmax", "natural", "sigmoid"), baselines=("softmax",))
    sigmoid = {(0.5, "sigmoid"): [1.0, 1.1, 0.9], (0.9, "sigmoid"): [1.0, 1.2, 0.8], (0.1, "natural"): [1.0, 2.0]}
    text = page({**CLEAR, **sigmoid}, tmp_path, table)
    assert "p-values against softmax, corrected" in text
    # As above p = 0.000255, now one of four comparisons; sigmoid at 0.9 has softmax's values; at 0.1 softmax has none.
    assert "| 0.5 | softmax | 0.001 (0.00026) | 0.001 (0.00026) |" in text
    assert re.search(r"\| 0.9 \| softmax \| 1 \(0.\d+\) \| 1 \(1\) \|", text)
    assert "| 0.1 | - | - | - |" in text


def test_claims_are_told_in_words(tmp_path: Path) -> None:
    text = page(CLEAR, tmp_path)
    assert (
        "**natural is better than softmax**: reproduced at theta* 0.5 (p: 0.00077); not significant at theta* 0.9"
        in text
    )
    assert "**softmax is better than natural**: not significant at theta* 0.9 (p: 1); the paper makes no such" in text


def test_claim_that_is_contradicted_and_claim_without_runs(tmp_path: Path) -> None:
    values = {(0.5, "softmax"): [1.0, 1.1, 0.9], (0.5, "natural"): [2.0, 2.1, 1.9]}
    table = dataclasses.replace(TABLE, claims=(*TABLE.claims, Claim("natural", "sparsemax")))
    text = page(values, tmp_path, table)
    assert "did not reproduce: significantly the other way round at theta* 0.5" in text
    assert "**softmax is better than natural**: the paper makes no such claim at theta* 0.5." in text
    assert "**natural is better than sparsemax**: no runs for it at theta* 0.5." in text
    higher = page(values, tmp_path, dataclasses.replace(TABLE, better="higher"))
    assert "**natural is better than softmax**: reproduced at theta* 0.5" in higher


def test_what_the_paper_does_not_claim_is_told_from_runs_that_are_missing(tmp_path: Path) -> None:
    claims = (Claim("natural", "softmax", rows=(0.5,)), Claim("softmax", "natural", rows=(0.1, 0.9)))
    values = {**CLEAR, (0.1, "natural"): [1.0, 1.1, 0.9]}
    text = page(values, tmp_path, dataclasses.replace(TABLE, claims=claims))
    assert "reproduced at theta* 0.5 (p: 0.00051); the paper makes no such claim at theta* 0.1, 0.9." in text
    assert (
        "**softmax is better than natural**: not significant at theta* 0.9 (p: 0.67); no runs for it at theta* 0.1; "
        "the paper makes no such claim at theta* 0.5." in text
    )


@pytest.mark.parametrize(
    ("values", "changes", "told", "not_told"),
    [
        (
            {(0.5, "softmax"): [2.0], (0.5, "natural"): [1.0]},
            {},
            [
                "| 0.5 | 2.00 (2.00 ± 0.25) | 1.00 (1.00 ± 0.10*) | - |",
                "Nothing is bold: a test takes two columns with two runs each.",
                "No test is possible",
                "cannot be tested at theta* 0.5 (p: no test)",
            ],
            "Bold, as in the paper",
        ),
        (
            {**CLEAR, (0.1, "softmax"): [2.0, 2.1], (0.1, "natural"): [1.0]},
            {},
            ["| 0.1 | 2.05 ± 0.07 | 1.00 | - |", "each test taken alone. Nothing is bold at theta* 0.1: a test takes"],
            "No test is possible",
        ),
        (
            {(0.5, "softmax"): [2.0, 2.1, math.nan], (0.5, "natural"): [math.nan]},
            {},
            ["2.05 ± 0.07 (2.00 ± 0.25), 1 diverged", "all diverged"],
            "nan",
        ),
        ({(0.5, "optimal"): [0.51]}, {}, ["| 0.5 | - | - | 0.51 (0.50) |"], "nan"),
        ({(0.5, "softmax"): [1.0, 2.0], (0.5, "natural"): [1.0]}, {}, ["over 1 to 2 runs a cell"], "over 2 runs"),
        ({}, {}, ["**Preliminary: no run is finished yet.**"], "##"),
        (CLEAR, {}, ["each test taken alone."], "Nothing is bold"),
        (CLEAR, {"paper": {}}, ["over 3 runs a cell. Bold"], "in brackets the paper's"),
        (CLEAR, {"metric": "other"}, ["16 runs"], "##"),
        (CLEAR, {"curves": (Curve("nothing"),)}, ["A note."], "nothing"),
        (CLEAR, {"claims": (Claim("natural+relaxed", "softmax+relaxed"),)}, ["A note."], "relaxed"),
        (CLEAR, {"better": None, "claims": (), "baselines": ("softmax",)}, ["p-values against softmax"], "is better"),
    ],
    ids=[
        *("single-runs", "row-without-a-test", "diverged", "reference-alone", "different-sizes", "nothing-yet"),
        *("bold", "no-paper", "other-metric", "no-history", "other-claims", "baseline-without-better"),
    ],
)
def test_what_a_page_tells(
    values: Mapping[tuple[float, str], Sequence[float]],
    changes: dict[str, Any],
    told: list[str],
    not_told: str,
    tmp_path: Path,
) -> None:
    text = page(values, tmp_path, dataclasses.replace(TABLE, **changes))
    assert all(each in text for each in told)
    assert not_told not in text


def test_origin_distance_and_choice_are_told(tmp_path: Path) -> None:
    text = page(CLEAR, tmp_path)
    assert "16 runs, 0.16 core-hours. Made with torch 2, at commit cccc" in text
    assert "`catnat-experiments report gsl --preset paper`" in text
    assert "by column: softmax 0.0%, natural 0.0%, optimal 2.0%." in text
    assert "Chosen rate:" in text
    assert "| 0.5 | 0.05 | 0.05 |" in text


def test_a_metric_that_describes_is_not_judged(tmp_path: Path) -> None:
    table = dataclasses.replace(TABLE, better=None, claims=())
    text = page(CLEAR, tmp_path, table)
    assert "| 0.5 | 2.00 ± 0.10 (2.00 ± 0.25) | 1.00 ± 0.10 (1.00 ± 0.10*) | 0.51 (0.50) |" in text
    assert not re.search(r"better|\*\*|p-values|No test", text)


def test_columns_can_be_listed_with_two_baselines(tmp_path: Path) -> None:
    table = dataclasses.replace(
        TABLE, columns=("softmax", "natural", "sigmoid"), baselines=("softmax", "natural"), listed=True, claims=()
    )
    one_row = {cell: values for cell, values in CLEAR.items() if cell[0] == 0.5}
    text = page({**one_row, (0.5, "sigmoid"): [1.0, 1.1, 0.9]}, tmp_path, table)
    assert "| kind | mean | p against softmax | p against natural | rate |" in text
    # Three comparisons in all: that of the two baselines is one. Sigmoid has natural's values.
    assert "| softmax | 2.00 ± 0.10 (2.00 ± 0.25) | softmax | 0.00077 (0.00026) | 0.05 |" in text
    assert "| natural | **1.00 ± 0.10** (1.00 ± 0.10*) | 0.00077 (0.00026) | natural | 0.05 |" in text
    assert "| sigmoid | **1.00 ± 0.10** | 0.00077 (0.00026) | 1 (1) | 0.05 |" in text
    assert "p-values against softmax and natural, corrected" in text
    assert "| 0.9: kind | mean |" in page({**CLEAR, (0.9, "sigmoid"): [1.0, 1.1]}, tmp_path, table)
    single = {cell: values[:1] for cell, values in one_row.items()}
    assert "| natural | 1.00 (1.00 ± 0.10*) | 0.05 |" in page(single, tmp_path, table)  # no test, so nothing is bold


def test_claims_need_a_direction(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="but `better` is None"):
        page(CLEAR, tmp_path, dataclasses.replace(TABLE, better=None))


def test_only_the_tables_own_stages_count(tmp_path: Path) -> None:
    statuses = [status(CLEAR, stage="coarse"), status({(0.5, "natural"): [9.0]}, missing=5)]
    text = write("gsl", "paper", statuses, [TABLE], tmp_path).read_text()
    assert "| theta* | natural | optimal |" in text  # a column without runs is left out
    assert "| 0.5 | 9.00 (1.00 ± 0.10*) | - |" in text
    assert "**Preliminary: 5 runs of this table are missing.**" in text


def test_a_selection_that_may_change_is_told(tmp_path: Path) -> None:
    unsettled = dataclasses.replace(status(CLEAR, missing=2), settled=False)
    text = write("gsl", "paper", [unsettled], [TABLE], tmp_path).read_text()
    assert "**Preliminary: a stage before this table's is not complete" in text
    assert "about 2 runs of this table are missing.**" in text


def test_plots_are_pictures_and_named_on_the_page(tmp_path: Path) -> None:
    text = page(CLEAR, tmp_path)
    for name in ("energy-score-test.png", "energy-score-test-loss.png"):
        assert f"]({name})" in text
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_thousand_records_are_read_and_reported_in_seconds(tmp_path: Path) -> None:
    stream = np.random.default_rng(0)
    kinds = ("softmax", "natural")
    values = {
        (theta, kind): stream.normal(size=100).tolist() for theta in (0.1, 0.25, 0.5, 0.75, 0.9) for kind in kinds
    }
    for record in status(values).done:
        (tmp_path / f"{record.id}.json").write_text(record.to_json())
    start = time.perf_counter()
    found, _ = records.load_all(tmp_path)
    read = StageStatus(status({}).stage, [record.config for record in found], found, 0)
    write("gsl", "paper", [read], [TABLE], tmp_path)
    seconds = time.perf_counter() - start
    print(f"1,000 records: {seconds:.1f} s")
    assert len(found) == 1000
    assert seconds < 10.0


@pytest.mark.parametrize(("title", "name"), [("MAE on theta*", "mae-on-theta"), ("A  b", "a-b")])
def test_file_names(title: str, name: str) -> None:
    assert plots.slug(title) == name


def test_a_table_against_a_column_says_which_differences_are_real(tmp_path: Path) -> None:
    stream = np.random.default_rng(0)
    values = {
        (0.5, "softmax"): stream.normal(10, 1, 30).tolist(),
        (0.5, "natural"): stream.normal(8, 1, 30).tolist(),
        (0.9, "softmax"): stream.normal(100, 1, 30).tolist(),
        (0.9, "natural"): stream.normal(100, 1, 30).tolist(),
    }
    table = dataclasses.replace(TABLE, claims=(), curves=(), against="softmax")
    text = page(values, tmp_path, table)
    assert "- **natural** against softmax: 0.5 better (p: < 0.0001); 0.9 no difference shown (p: " in text
    assert "\n| all | 1.00 [" in text  # in units of softmax's means
    better = dataclasses.replace(table, better="higher")
    assert "0.5 worse (p: < 0.0001)" in page(values, tmp_path, better)
    assert "Interquartile" not in page(values, tmp_path, TABLE)


def test_a_table_against_a_column_leaves_gaps_where_runs_are_missing(tmp_path: Path) -> None:
    values = {(0.5, "softmax"): [1.0, 2.0], (0.5, "natural"): [1.5, 2.5], (0.9, "softmax"): [1.0, 2.0]}
    text = page(values, tmp_path, dataclasses.replace(TABLE, claims=(), curves=(), against="softmax"))
    assert "\n| 0.9 | - |\n| all | - |" in text
    assert "against softmax: 0.5 no difference shown (p: " in text


def test_claims_are_paired_over_the_cells_of_a_group(tmp_path: Path) -> None:
    thetas = [0.1 * step for step in range(1, 7)]
    cells = {(theta, kind): [theta + (kind == "softmax")] for theta in thetas for kind in ("softmax", "natural")}
    tables = [dataclasses.replace(TABLE, title=title, group="Energy score") for title in ("One", "Two")]
    text = write("gsl", "paper", [status(cells)], tables, tmp_path).read_text()
    assert text.count("## Energy score: all cells together") == 1
    # Twelve cells, as both tables have the same six; 2 / 2**12, and the opposite claim is one comparison more.
    assert "| natural against softmax | 12 of 12 | -1.00 | 0.00098 | 0.00098 |" in text
    assert "all cells together" not in page(CLEAR, tmp_path)


def test_cells_of_a_group_stand_beside_the_papers_in_short_names(tmp_path: Path) -> None:
    cells = {(theta, f"{kind}+fit"): CLEAR[theta, kind] for theta in (0.5, 0.9) for kind in ("softmax", "natural")}
    columns = ("softmax+fit", "natural+fit")
    papers = {0.5: {name: TABLE.paper[0.5][name.partition("+")[0]] for name in columns}}
    claims = (Claim("natural+fit", "softmax+fit"),)
    table = dataclasses.replace(
        TABLE, columns=columns, paper=papers, claims=claims, reference=None, group="Energy score"
    )
    text = write("gsl", "paper", [status(cells)], [table], tmp_path).read_text()
    assert "| cell | softmax | natural |" in text
    assert "| test, theta* = 0.5 | 2.00 ± 0.10 (2.00 ± 0.25) | **1.00 ± 0.10** (1.00 ± 0.10*) |" in text
    assert "| test, theta* = 0.9 | **1.00 ± 0.20** | 1.07 ± 0.15 |" in text
    # One cell has the paper's number, and ours is the same.
    assert re.search(r"\| natural \| 1 \| .0.00 \| .0.00 \| .0.00 \|", text)
    assert "| natural against softmax | 1 of 2 |" in text
    summary = write("gsl", "paper", [status(cells)], [table], tmp_path / "summary", summary=True)
    assert summary.read_text().strip() == text.partition("\n\n## Energy score, test\n")[0]
    assert list(summary.parent.iterdir()) == [summary]


def test_runs_that_saw_the_same_data_are_compared_in_pairs(tmp_path: Path) -> None:
    """Seeds spread by 10, and natural is ahead by 0.1 or 0.2 in each: no test of means would see it."""
    seeds = [0.0, 10.0, 20.0]
    cells = {
        (theta, kind): [theta + seed - (kind == "natural") * (0.1 + 0.1 * (seed == 0)) for seed in seeds]
        for theta in (0.5, 0.9)
        for kind in ("natural", "softmax")
    }
    cells[0.9, "natural"] = cells[0.9, "natural"][:2]  # a run without a partner is left out
    table = dataclasses.replace(TABLE, claims=(), baselines=("softmax",), pair="seed")
    alone = page(cells, tmp_path, dataclasses.replace(table, pair=""))
    text = page(cells, tmp_path, table)
    assert "p-values of paired t-tests, by seed, against softmax" in text
    expected = stats.ttest_rel([-0.2, -0.1, -0.1], [0, 0, 0]).pvalue, stats.ttest_rel([-0.2, -0.1], [0, 0]).pvalue
    assert f"| 0.5 | softmax | {2 * expected[0]:.2g} ({expected[0]:.2g}) |" in text
    assert f"| 0.9 | softmax | {expected[1]:.2g} ({expected[1]:.2g}) |" in text
    # Five pairs, all of one sign: 2 / 2**5.
    assert "## Energy score, test: all cells together" in text
    assert "Runs with the same theta* and seed are one pair each." in text
    assert re.search(r"\| natural against softmax \| 5 of 5 \| -0.10 \| 0.06\d* \| 0.062 \|", text)
    assert "all cells together" not in alone
    assert "| 0.5 | softmax | 1 (0.99) |" in alone


def test_the_band_of_a_curve_is_as_wide_as_the_deviation_in_a_table() -> None:
    losses = [[1.0, 2.0], [3.0, 9.0], [5.0, 4.0]]
    axes = Figure().subplots()
    runs = pd.DataFrame({"history.loss": losses, "history.step": [[10.0, 20.0]] * 3})
    plots.draw_history(axes, runs, "loss", "step", "black", "softmax")
    [band] = axes.collections
    edges = np.asarray(band.get_paths()[0].vertices)
    for step, values in ((10.0, [1.0, 3.0, 5.0]), (20.0, [2.0, 9.0, 4.0])):
        mean, spread = stats.tmean(values), stats.tstd(values)
        assert mean in np.asarray(axes.get_lines()[0].get_data())[1]
        at_step = edges[edges[:, 0] == step, 1]
        assert (at_step.min(), at_step.max()) == pytest.approx((mean - spread, mean + spread))


def test_a_curve_of_one_run_has_no_band() -> None:
    axes = Figure().subplots()
    runs = pd.DataFrame({"history.loss": [[1.0, 2.0]], "history.step": [[10.0, 20.0]]})
    plots.draw_history(axes, runs, "loss", "step", "black", "softmax")
    [band] = axes.collections
    edges = np.asarray(band.get_paths()[0].vertices)
    assert np.unique(edges[:, 1]).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("name", "columns"), [("softmax", 3), ("softmax+relaxed+constant-rate", 2), ("softmax" * 12, 1)]
)
def test_a_legend_has_as_many_columns_as_there_is_room_for(name: str, columns: int) -> None:
    figure, (axes,) = plots.grid(1, 2.0)
    for number in range(3):
        axes.plot([0, 1], label=f"{name} {number}")
    plots.legend_outside(figure)
    (legend,) = figure.legends
    assert legend._ncols == columns  # type: ignore[attr-defined]
    assert legend.get_window_extent().width < figure.bbox.width
