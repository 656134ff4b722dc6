"""Suspicious columns: what is found, what is not, and where the commands tell it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine

from metricgrad.studies.suspicious import suspicious_columns
from tests.commands import QUICK, run, table, train
from tests.parquet import mixed_table, write_folder
from tests.test_queries import documents

GENERATOR = np.random.default_rng(0)
ROWS = 400
Y = GENERATOR.random(ROWS) < 0.2


def kind_of(column: Any, y: Any = Y, name: str = "column") -> str | None:
    found = suspicious_columns(pd.DataFrame({name: column}), y)
    return found[0].kind if found else None


@pytest.mark.parametrize("load", [load_breast_cancer, load_wine, load_iris, load_digits])
def test_ordinary_tables_have_nothing_but_constants(load: Any) -> None:
    data = load(as_frame=True)
    found = suspicious_columns(data.data, data.target)
    constant = data.data.columns[data.data.nunique() == 1]
    assert [(each.name, each.kind) for each in found] == [(name, "constant") for name in constant]


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (np.arange(ROWS) + 1000, "id"),
        (np.arange(ROWS)[::-1], "id"),
        (GENERATOR.permutation(ROWS), "id"),
        (GENERATOR.integers(10**8, 10**9, ROWS), "id"),
        (np.cumsum(GENERATOR.integers(1, 9, ROWS)), "id"),
        (np.where(np.arange(ROWS) < 10, np.nan, np.arange(ROWS)), "id"),
        ([f"customer {number}" for number in range(ROWS)], "id"),
        ([f"customer {number // 2}" for number in range(ROWS)], None),
        (GENERATOR.permutation(ROWS) // 2, None),
        (GENERATOR.random(ROWS), None),  # evenly spread, and measured
        (np.exp(GENERATOR.normal(13, 1, ROWS)).round(), None),  # an income
        (GENERATOR.normal(500_000, 90_000, ROWS).round(), None),  # a price
        (pd.date_range("2024-01-01", periods=ROWS, freq="h"), None),
        (np.arange(ROWS) / 2 + 0.25, None),
    ],
    ids=str,
)
def test_an_id(column: Any, kind: str | None) -> None:
    assert kind_of(column) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [("customer_id", "id"), ("PassengerId", "id"), ("ID", "id"), ("id", "id"), ("paid", None)],
)
def test_a_name_may_say_that_a_column_is_an_id(name: str, kind: str | None) -> None:
    uneven = np.unique(np.exp(np.random.default_rng(0).normal(20, 1, ROWS)).round())
    assert kind_of(uneven, Y, name) == kind
    assert kind_of(GENERATOR.integers(0, 9, ROWS), Y, name) is None  # by its name alone


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (np.where(Y, "fraud", "fine"), "leak"),
        (np.where(Y, "a", GENERATOR.choice(["b", "c"], ROWS)), "leak"),
        (Y + 0.1 * GENERATOR.normal(size=ROWS), "leak"),
        (np.where(Y, GENERATOR.choice([-5, 5], ROWS), GENERATOR.normal(size=ROWS)), "leak"),
        (np.where(Y, GENERATOR.random(ROWS), np.nan), "leak"),  # known afterwards
        (Y ^ (np.arange(ROWS) == 7), "leak"),  # but for one row
        (Y ^ (GENERATOR.random(ROWS) < 0.05), None),
        (Y + 0.5 * GENERATOR.normal(size=ROWS), None),
        (np.where(Y, "a", GENERATOR.choice(["a", "b"], ROWS)), None),
    ],
    ids=str,
)
def test_a_column_that_gives_the_target_away(column: Any, kind: str | None) -> None:
    assert kind_of(column) == kind


def test_many_classes_must_all_be_given_away() -> None:
    y = np.arange(ROWS) % 4
    assert kind_of((y + 2) % 4, y) == "leak"
    assert kind_of(y + 0.1 * GENERATOR.normal(size=ROWS), y) == "leak"
    assert kind_of(y == 2, y) is None
    grades = np.maximum(0.0, GENERATOR.normal(size=ROWS)).round(3)
    assert kind_of(np.where(grades > 0, "clicked", "not"), grades) == "leak"
    rare = np.where(np.arange(ROWS) < 3, 1, 0)  # of three rows nothing is said
    assert kind_of(np.where(rare, "a", "b"), rare) is None


def test_small_groups_give_nothing_away() -> None:
    """The customer of a rare row is told from most others by that very row, and by nothing else."""
    rare = np.zeros(2000, dtype=bool)
    rare[:: 2000 // 12] = True
    assert kind_of([f"customer {number // 2}" for number in range(2000)], rare) is None


def test_reasons() -> None:
    frame = pd.DataFrame(
        {
            "same": 1,
            "none": np.nan,
            "copy": np.where(Y, "a", "b"),
            "near": Y ^ (np.arange(ROWS) == 7),
        }
    )
    told = {each.name: each.reason for each in suspicious_columns(frame, Y)}
    assert told["same"] == told["none"] == "it has a single value"
    assert told["copy"] == "it is the target under other names"
    assert told["near"].startswith("it predicts the target by itself (AUC 0.99")


def test_only_the_rows_that_are_meant_are_looked_at() -> None:
    column = np.where(Y, 1.0, 0.0)
    column[:200] = GENERATOR.random(200)
    frame = pd.DataFrame({"column": column})
    assert not suspicious_columns(frame, Y)
    (found,) = suspicious_columns(frame, Y, np.arange(200, ROWS))
    assert found.kind == "leak"
    assert suspicious_columns(frame, Y, np.arange(0)) == []
    numbers = np.arange(120_000)
    long = pd.DataFrame({"number": numbers, "kind": numbers % 3, "once": numbers == 0, "same": "a"})
    found = [(each.name, each.kind) for each in suspicious_columns(long, numbers % 2)]
    assert found == [("number", "id"), ("same", "constant")]


def test_columns_that_training_refuses_are_no_error_here() -> None:
    frame = pd.DataFrame({"lists": [[number] for number in range(ROWS)]})
    frame["endless"] = np.where(np.arange(ROWS) < 2, np.inf, np.arange(ROWS))
    frame["huge"] = 1.7e308 * np.linspace(-1, 1, ROWS)
    found = {each.name: each.kind for each in suspicious_columns(frame, Y)}
    assert found == {"lists": "id", "huge": "id"}


# --------------------------------------------------------------------------------------------------
# commands


def spoiled(frame: Any, target: str) -> Any:
    """A table with an id, a copy of the target, a constant and a column to drop."""
    numbers = np.random.default_rng(1).permutation(len(frame))
    return frame.assign(
        **{"number": numbers, "copy, late": frame[target].astype(str) + "!", "same": 1, "note": 2}
    )


@pytest.mark.parametrize("command", ["train", "compare"])
def test_commands_tell_what_is_suspicious(command: str, tmp_path: Path) -> None:
    spoiled(table(), "label").to_csv(tmp_path / "data.csv", index=False)
    options = ("--target", "label", *QUICK, "--drop", "note")
    own = ("--method", "focal") if command == "train" else ("--methods", "focal", "--splits", 2)
    out = tmp_path / "run"
    found = run(command, tmp_path / "data.csv", *options, *own, "--out", out)
    assert found.exit_code == 0, found.output
    told = " ".join(found.output.split())
    assert "Suspicious columns: number (looks like an id), copy, late (gives the target" in told
    assert "leave them out: --drop 'number,\"copy, late\"'" in told
    assert "Columns with a single value: same." in told
    result = json.loads((out / "result.json").read_text())
    assert [each["kind"] for each in result["suspicious"]] == ["id", "leak", "constant"]
    assert {each["name"]: each["reason"] for each in result["dropped"]} == {
        "note": "--drop", "label": "--target"
    }  # fmt: skip
    assert {"number", "copy, late", "same"} < set(result["columns"])
    page = (out / "report.html").read_text()
    assert "Not used: note (--drop), label (--target)." in page
    assert "<td>copy, late</td><td>gives the target away</td><td>it is the target under" in page


def test_what_is_told_to_drop_can_be_dropped(tmp_path: Path) -> None:
    spoiled(table(), "label").to_csv(tmp_path / "data.csv", index=False)
    options = ("--target", "label", *QUICK, "--drop", 'number,"copy, late",same,note')
    compared = ("--methods", "focal", "--splits", 2, "--out", tmp_path / "run")
    found = run("compare", tmp_path / "data.csv", *options, *compared)
    assert found.exit_code == 0, found.output
    assert "Suspicious" not in found.output
    assert "single value" not in found.output
    assert "<th>suspicious</th>" not in (tmp_path / "run" / "report.html").read_text()


def test_rankings_tell_it_too(tmp_path: Path) -> None:
    spoiled(documents(), "grade").to_csv(tmp_path / "data.csv", index=False)
    options = ("--target", "grade", "--group", "query", "--metric", "ndcg", *QUICK)
    found = run(
        "train", tmp_path / "data.csv", *options, "--method", "list_net", "--out", tmp_path / "run"
    )
    assert found.exit_code == 0, found.output
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert {each["name"]: each["kind"] for each in result["suspicious"]} == {
        "number": "id", "copy, late": "leak", "same": "constant", "note": "constant"
    }  # fmt: skip
    assert [each["reason"] for each in result["dropped"]] == ["--group", "--target"]
    assert result["importances"]["names"][0] in ("one", "copy, late")
    assert result["importances"]["rows"] < 100


def test_a_streamed_table_is_judged_by_its_validation_rows(tmp_path: Path) -> None:
    frame = mixed_table(3000).drop(columns="same")
    folder = write_folder(spoiled(frame, "target"), tmp_path / "table", group=500)
    options = (*QUICK, "--memory", "1KB", "--method", "focal", "--drop", "note", "--json")
    found = run("train", folder, *options, "--out", tmp_path / "run")
    assert found.exit_code == 0, found.output
    result = json.loads(found.stdout)
    assert {each["name"]: each["kind"] for each in result["suspicious"]} == {
        "number": "id", "copy, late": "leak", "same": "constant"
    }  # fmt: skip
    assert result["importances"]["names"][0] == "copy, late"


def test_importances_are_measured_on_test_rows(tmp_path: Path) -> None:
    """A column that matters in training is the same in all test rows: shuffling costs nothing."""
    table(600).to_csv(tmp_path / "data.csv", index=False)
    stored = []
    for name, test in (("fair", table(400, 5)), ("same", table(400, 5).assign(kind="a"))):
        test.to_csv(tmp_path / f"{name}.csv", index=False)
        options = ("--test", tmp_path / f"{name}.csv", "--method", "cross_entropy", "--json")
        found = train(tmp_path / "data.csv", *options, "--out", tmp_path / name)
        stored.append(json.loads(found.stdout)["importances"])
    fair, same = (dict(zip(each["names"], each["means"], strict=True)) for each in stored)
    assert next(iter(fair)) == "one"
    assert fair["kind"] > 0.05
    assert same["kind"] == 0
    assert (stored[0]["rows"], stored[0]["shuffles"]) == (400, 5)
    assert all(spread > 0 for spread in stored[0]["spreads"][:2])


def test_the_best_thirty_columns_are_stored(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    frame = table().assign(
        **{f"noise {number}": generator.normal(size=300) for number in range(40)}
    )
    frame.to_csv(tmp_path / "data.csv", index=False)
    found = train(tmp_path / "data.csv", "--method", "focal", "--json", "--out", tmp_path / "run")
    stored = json.loads(found.stdout)["importances"]
    assert len(stored["names"]) == len(stored["spreads"]) == 30
    assert stored["means"] == sorted(stored["means"], reverse=True)
    assert stored["names"][0] == "one"
