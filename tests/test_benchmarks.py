"""The benchmark runner: complete tables, runs that resume, a report that is current."""

import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console
from sklearn.metrics import average_precision_score, f1_score

from benchmarks import data, losses, report, table
from benchmarks.__main__ import main
from benchmarks.runner import finished, run_all
from benchmarks.table import Table
from metricgrad.studies import LocalProcesses
from tests.cells import Losing

TINY = """
title = "Tiny"
task = "classification"
about = "Two rows."
deviations = ["Everything is smaller."]
[settings]
dataset = "digits"
hidden = []
batch = 64
optimizer = "adam"
evaluations = 4
seeds = 2
[scale.small]
steps = 40
[scale.paper]
steps = 400
[columns.f1]
label = "F1"
metric = "f1"
[rows.constant]
label = "constant"
method = "constant"
[rows.uniloss]
label = "UniLoss"
method = "uniloss"
grid.learning_rate = [0.01, 0.1]
grid.start = ["cold", "warm"]
[paper.uniloss]
f1 = 0.5
[[claims]]
column = "f1"
row = "uniloss"
above = ["constant"]
by = 0.1
[[claims]]
column = "f1"
row = "constant"
at_least = 0.9
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    (tmp_path / "tiny.toml").write_text(TINY)
    monkeypatch.setattr(table, "FOLDER", tmp_path)
    monkeypatch.setattr(table, "RESULTS", tmp_path / "results")
    return table.table("tiny")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reports of the tiny table, run once for all tests."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "tiny.toml").write_text(TINY)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(table, "FOLDER", folder)
        patched.setattr(table, "RESULTS", folder / "results")
        assert quietly(table.table("tiny")) == []
    return folder / "results"


@pytest.fixture
def done(tiny: Table, results: Path) -> Table:
    """The tiny table with all its reports."""
    shutil.copytree(results, table.RESULTS)
    assert all(map(finished, tiny.runs("small")))
    return tiny


def quietly(content: Table) -> list[str]:
    return run_all(content.runs("small"), None, LocalProcesses(), Console(quiet=True))


@pytest.mark.usefixtures("done")
def test_a_run_leaves_all_that_makes_it_again() -> None:
    kept = json.loads((table.RESULTS / "tiny" / "small" / "uniloss--f1--1.json").read_text())
    assert kept["seed"] == 1
    assert kept["threads"] == 1
    assert {"command", "configuration", "versions", "commit", "hardware", "seconds"} <= kept.keys()
    result = kept["result"]
    assert len(result["trials"]) == 4
    assert result["valid"] == max(trial["valid"] for trial in result["trials"])
    assert result["curve"]["rows"][-1][0] == 40
    warm = [trial for trial in result["trials"] if trial["start"] == "warm"]
    assert all(trial["step"] > 20 for trial in warm)  # the warm-up cannot win


def test_a_stopped_grid_goes_on_and_a_changed_one_runs_anew(done: Table) -> None:
    first, *others = done.runs("small")
    first.path.unlink()
    times = [run.path.stat().st_mtime_ns for run in others]
    quietly(done)
    assert first.path.exists()
    assert [run.path.stat().st_mtime_ns for run in others] == times
    done.content["settings"]["batch"] = 32
    assert not any(map(finished, done.runs("small")))


def test_a_grid_that_grows_gives_what_a_new_one_would(tiny: Table, results: Path) -> None:
    grid = tiny.rows["uniloss"]["grid"]
    whole = grid["learning_rate"]
    for rates in ([0.01], whole):
        grid["learning_rate"] = rates
        assert quietly(tiny) == []
    for run in tiny.runs("small", rows=["uniloss"]):
        new = json.loads((results / "tiny" / "small" / run.path.name).read_text())["result"]
        assert json.loads(run.path.read_text())["result"] == new


def test_the_same_seed_gives_the_same_numbers(done: Table) -> None:
    run = next(run for run in done.runs("small") if run.row == "uniloss")
    before = json.loads(run.path.read_text())["result"]
    run.path.unlink()
    quietly(done)
    assert json.loads(run.path.read_text())["result"] == before


def test_the_report_says_mean_spread_paper_difference_and_claims(done: Table) -> None:
    cell = report.collect(done, done.runs("small"))["uniloss", "f1"]
    page = report.section(done, "small")
    assert f"| UniLoss | **{cell.mean:.4f} ±{cell.spread:.4f}** |" in page
    assert f"| *difference* | {cell.mean - 0.5:+.4f} |" in page
    assert "UniLoss at least 0.1 above constant" in page
    assert "**does not hold**" in page
    assert "Everything is smaller." in page
    assert report.section(done, "paper") == ""


def test_seeds_share_the_point_that_is_best_for_all(done: Table) -> None:
    done.content["settings"]["choose"] = "pooled"
    assert not any(map(finished, done.runs("small", rows=["uniloss"])))
    assert not quietly(done)
    results = [
        json.loads(run.path.read_text())["result"] for run in done.runs("small", rows=["uniloss"])
    ]
    means = {
        (trial["learning_rate"], trial["start"]): trial["valid"] + other["valid"]
        for trial, other in zip(*(result["trials"] for result in results), strict=True)
    }
    best = max(means, key=lambda point: means[point])
    for result in results:
        assert result["pooled"]
        assert (result["chosen"]["learning_rate"], result["chosen"]["start"]) == best
    assert all(map(finished, done.runs("small")))


def test_a_failing_run_is_reported_and_the_others_are_kept(tiny: Table) -> None:
    tiny.rows["constant"]["dataset"] = "nowhere"
    errors = quietly(tiny)
    assert len(errors) == 2
    assert all("METRICGRAD_DATA" in error or "nowhere" in error for error in errors)
    assert len(list((table.RESULTS / "tiny" / "small").glob("*.json"))) == 2


def test_a_lost_run_is_reported_and_runs_again(tiny: Table) -> None:
    runs = tiny.runs("small", rows=["constant"])
    console = Console(quiet=True)
    errors = run_all(runs, None, Losing(0), console)
    assert errors == ["constant--f1--0: its process was killed, 3 times"]
    rest = Losing()
    assert run_all(runs, None, rest, console) == []
    assert [start.run for start in rest.computed] == runs[:1]


def test_a_product_has_one_row_for_every_choice_before_other_rows(tiny: Table) -> None:
    (table.FOLDER / "many.toml").write_text(
        TINY
        + """
[product]
batch = 32
[[product.factors]]
digits = {label = "Digits", dataset = "digits"}
skin = {label = "Skin", dataset = "skin", batch = 16}
[[product.factors]]
linear = {label = "linear", hidden = []}
mlp = {label = "MLP", hidden = [8]}
"""
    )
    rows = table.table("many").rows
    assert list(rows) == ["digits_linear", "digits_mlp", "skin_linear", "skin_mlp", *tiny.rows]
    assert rows["digits_mlp"] == {
        "label": "Digits, MLP",
        "dataset": "digits",
        "batch": 32,
        "hidden": [8],
    }
    assert rows["skin_linear"]["batch"] == 16


@pytest.mark.parametrize("name", table.table_names())
def test_committed_tables_are_whole(name: str) -> None:
    content = table.table(name)
    columns = {column for _, part in content.parts() for column in part.columns}
    assert all(part.rows.keys() <= content.rows.keys() and part.rows for _, part in content.parts())
    for claim in content.content.get("claims", []):
        if "value" in claim:
            assert claim["value"] in content.content["values"]
            continue
        assert {
            claim["row"],
            *claim.get("above", []),
            *claim.get("below", []),
        } <= content.rows.keys()
        assert claim["column"] in columns
    for row, values in content.content.get("paper", {}).items():
        assert row in content.rows
        assert values.keys() <= columns
    for scale in content.content["scale"]:
        for run in content.runs(scale, seeds=1):
            settings = run.configuration
            grid = {key: values[0] for key, values in settings.get("grid", {}).items()}
            if settings["task"] == "classification" and settings["method"] != "constant":
                assert callable(losses.loss({**settings, **grid}, seed=0))


def test_the_committed_report_is_current(tmp_path: Path) -> None:
    assert report.write(tmp_path / "README.md").read_text() == report.PAGE.read_text(), (
        "run: python -m benchmarks report"
    )


def test_the_first_table_of_the_front_page_is_that_of_the_benchmark_page() -> None:
    page = report.PAGE.read_text().splitlines()
    front = (report.PAGE.parent.parent / "README.md").read_text().splitlines()
    head = next(number for number, line in enumerate(front) if line.startswith("| task |"))
    rows = list(itertools.takewhile(lambda line: line.startswith("|"), front[head:]))
    assert len(rows) > 5
    assert set(rows) <= set(page)


def test_gains_have_a_sign(done: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(done.content, "gains", ["f1"])
    cell = report.collect(done, done.runs("small"))["uniloss", "f1"]
    assert f"| UniLoss | **{cell.mean:+.4f}" in report.section(done, "small")


def test_hand_made_losses_become_their_metrics_as_the_slope_grows() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(50, generator=generator)
    target = torch.arange(50) % 3 == 0
    soft_f1 = losses.loss({"method": "soft_f1", "metric": "f1", "slope": 1e4}, 0)
    found = soft_f1(scores, target).item()
    assert found == pytest.approx(1 - f1_score(target, scores > 0), abs=1e-4)
    smooth_ap = losses.loss({"method": "smooth_ap", "metric": "f1", "slope": 1e5}, 0)
    found = smooth_ap(scores, target).item()
    assert found == pytest.approx(1 - average_precision_score(target, scores), abs=1e-4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "nothing"], "there is no table 'nothing'; the tables are"),
        (
            ["run", "tabular", "--rows", "none"],
            "table tabular has no row none; its rows are constant,",
        ),
        (["run", "tabular", "--data", "nowhere"], "there is no folder nowhere; pass --data DIR"),
        (["run", "tabular"], "pass --data DIR or set METRICGRAD_DATA"),
        (["run", "digits", "--scale", "paper"], "no scale 'paper'; its scales are small"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("METRICGRAD_DATA", raising=False)
    assert main(words) == 2
    assert message in " ".join(capsys.readouterr().out.split())


def test_list_names_every_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in table.table_names())


def test_parts_do_not_overlap_and_are_standardised_by_the_training_part() -> None:
    parts = data.load("digits", None, seed=0)
    assert sum(len(part.y) for part in parts) == 1797
    assert parts.train.x.mean(0).abs().max() < 0.01
    rows = [{tuple(row) for row in part.x.tolist()} for part in parts]
    assert not rows[0] & rows[1]
    assert not rows[0] & rows[2]
