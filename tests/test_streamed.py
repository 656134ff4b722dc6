"""Training on Parquet tables that are never held in memory, as an estimator and as a command."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import dataset, parquet
from sklearn.metrics import f1_score
from torch.utils.data import DataLoader

import metricgrad as mg
from metricgrad.estimators import parquet_tables, pools, surveys
from metricgrad.estimators.parquet_tables import ParquetTable
from metricgrad.estimators.pools import PooledBatches, pool_groups
from metricgrad.estimators.streamed import surveyed_dataset
from metricgrad.estimators.surveys import Survey, survey
from metricgrad.estimators.target import Target
from metricgrad.training.data import Loader
from tests.commands import QUICK, run
from tests.parquet import dataset_of, mixed_table, write_folder

SETTINGS: dict[str, Any] = {"hidden": (), "epochs": 4, "rate": 0.03, "random_state": 0}
STREAMED = (*QUICK, "--memory", "1KB")


@pytest.fixture(scope="module")
def table() -> Any:
    return mixed_table(6000)


@pytest.fixture(scope="module")
def folder(table: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(table, tmp_path_factory.mktemp("data") / "table", group=500)


def pooled(folder: Path, **options: Any) -> tuple[Survey, PooledBatches]:
    found = survey(ParquetTable(dataset_of(folder)), "target")
    target = Target("binary", found.classes)
    return found, PooledBatches(
        found, target, options.get("batch", 64), options.get("balanced", False)
    )


# --------------------------------------------------------------------------------------------------
# pools


def test_a_pool_has_the_shares_of_the_table_however_it_is_sorted() -> None:
    source = np.random.default_rng(0)
    counts = np.zeros((50, 2), dtype=np.int64)
    counts[:49, 0] = 1000
    counts[49] = (300, 500)  # the rare class is in one row group only
    for _ in range(20):
        plan = pool_groups(counts, np.array([2000, 20]), source)
        assert sum(plan.values()).tolist() == [2000, 20]  # pyright: ignore[reportAttributeAccessIssue]
        assert all((taken <= counts[group]).all() for group, taken in plan.items())
        assert len(plan) in (8, 9)  # several groups, and no more than needed
        assert 49 in plan


def test_a_pool_takes_all_it_can() -> None:
    counts = np.array([[5, 1], [100, 0], [2, 3]])
    plan = pool_groups(counts, np.array([107, 4]), np.random.default_rng(0))
    assert {group: taken.tolist() for group, taken in plan.items()} == {
        0: [5, 1],
        1: [100, 0],
        2: [2, 3],
    }


@pytest.mark.parametrize("part", [65_536, 70])  # a row group is read as a whole, or in parts
def test_a_pool_of_the_whole_table_has_every_training_row_once(
    part: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_tables, "PART", part)
    found, batches = pooled(folder)
    items = batches._read(0)
    assert len(items) == found.counts.sum()
    parts = [
        found.preparation.transform(frame[found.features])
        for frame in found.table.frames([*found.features, "target"])
    ]
    held = found.preparation.transform(found.valid.x)
    every = {tuple(row) for row in np.concatenate(parts).tolist()}
    assert {tuple(row) for row in items.x.tolist()} == every - {tuple(row) for row in held.tolist()}
    assert items.y.bincount().tolist() == found.counts.sum(0).tolist()


def test_pools_follow_one_another_and_are_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_ROWS", 1600)
    monkeypatch.setattr(pools, "_KEPT", 2)
    found, batches = pooled(folder, batch=32)
    loader = Loader(DataLoader(batches, batch_size=None), seed=5)
    assert loader.steps == 50
    assert batches._pools.keys() == {0}  # no more is read than the first epoch needs

    def epoch(number: int) -> list[torch.Tensor]:
        return [batch.x[0] for batch in loader.epoch(number, 3)]

    first = [epoch(number) for number in range(5)]
    assert batches._pools.keys() == {0, 4}
    rows = [{tuple(row) for row in torch.cat(each).tolist()} for each in first]
    assert all(len(rows[0] & other) < 0.6 * len(rows[0]) for other in rows[1:])
    again = [epoch(number) for number in (3, 0, 4)]
    for number, batch in zip((3, 0, 4), again, strict=True):
        assert all(map(torch.equal, first[number], batch))
    (one, *_) = loader.epoch(0, 3)
    assert one.x.shape[:2] == (3, 32)
    share = found.counts[:, 1].sum() / found.counts.sum()
    assert one.y[0].double().mean() == pytest.approx(share, abs=1 / 32)


def test_a_pool_serves_epochs_until_its_rows_were_drawn_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_ROWS", 1600)
    _, batches = pooled(folder, batch=4)
    assert len(batches) == 150
    for epoch, pool in enumerate((0, 0, 1, 1, 2)):
        batches.set_epoch(epoch)
        drawn = list(batches)
        assert [tuple(y.shape) for _, y in drawn] == [(4,)] * 150
        assert max(batches._pools) == pool
    assert len(batches._pools[2].items) == 1600


def test_files_that_change_while_they_are_read_are_told(folder: Path) -> None:
    found, _ = pooled(folder)
    more = replace(found, counts=found.counts + 1)  # as if a row of each class were gone
    batches = PooledBatches(more, Target("binary", found.classes), 64, False)
    rows = int(found.counts.sum())
    message = f"the Parquet files have changed .*: {rows} of {int(more.counts.sum())} rows"
    with pytest.raises(ValueError, match=message):
        batches._read(0)


def test_the_shares_of_a_pool(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = pooled(folder)
    total = found.counts.sum(0)
    assert pools.pool_shares(found).tolist() == total.tolist()
    monkeypatch.setattr(pools, "_ROWS", 100)
    exact = 100 * total / total.sum()
    assert pools.pool_shares(found).tolist() == [round(exact[0]), 64]  # however rare a class is
    monkeypatch.setattr(pools, "_ROWS", 1000)
    assert pools.pool_shares(found).tolist() == np.rint(10 * exact).tolist()
    width = sum(found.preparation.widths)
    monkeypatch.setattr(pools, "_BYTES", 4 * width * 500 + 1)
    assert pools.pool_shares(found).sum() == pytest.approx(500, abs=1)


def test_batches_may_be_balanced(folder: Path) -> None:
    _, batches = pooled(folder, balanced=True)
    assert all(int(y.sum()) == 32 for _, y in batches)


def test_loaders_tell_the_epoch_to_data_that_asks() -> None:
    class Told(torch.utils.data.IterableDataset[Any]):
        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Any:
            yield torch.full((2, 1), float(self.epoch)), torch.zeros(2)

    loader = Loader(DataLoader(Told(), batch_size=None))
    assert [next(iter(loader.epoch(number, 1))).x[0, 0, 0].item() for number in (3, 0)] == [3, 0]


# --------------------------------------------------------------------------------------------------
# the estimator


def test_the_result_is_near_that_of_the_same_rows_in_memory(folder: Path, table: Any) -> None:
    new = mixed_table(4000, seed=1)
    x, y = new.drop(columns="target"), new["target"]
    streamed = mg.MetricClassifier("f1", "uniloss", **SETTINGS).fit(dataset_of(folder), "target")
    whole = mg.MetricClassifier("f1", "uniloss", **SETTINGS)
    whole.fit(table.drop(columns="target"), table["target"])
    assert streamed.score(x, y) == pytest.approx(whole.score(x, y), abs=0.02)
    assert streamed.score(x, y) > 0.75
    assert streamed.fit_.folds == 1
    assert streamed.model_ == whole.model_ == "linear"
    agree = streamed.predict(x) == whole.predict(x)
    assert agree.mean() > 0.95


def test_a_dataset_is_predicted_and_scored_in_parts(
    folder: Path, table: Any, tmp_path: Path
) -> None:
    model = mg.MetricClassifier("f1", "cross_entropy", **SETTINGS).fit(dataset_of(folder), "target")
    x, y = table.drop(columns="target"), table["target"]
    rows = pd.concat([parquet.read_table(each).to_pandas() for each in sorted(folder.iterdir())])
    assert rows["one"].tolist() == x["one"].tolist()
    found = model.predict(dataset_of(folder))
    assert np.array_equal(found, model.predict(x))
    np.testing.assert_allclose(
        model.predict_proba(dataset_of(folder)), model.predict_proba(x), atol=1e-6
    )
    assert model.score(dataset_of(folder), "target") == pytest.approx(f1_score(y, found))
    model.save(tmp_path / "model.safetensors")
    loaded = mg.MetricClassifier.load(tmp_path / "model.safetensors")
    assert np.array_equal(loaded.predict(dataset_of(folder)), found)


def test_many_classes_of_text(tmp_path: Path) -> None:
    table = mixed_table(3000)
    names = np.array(["low", "middle", "high"], dtype=object)
    table["target"] = names[np.digitize(table["one"], [4, 6])]
    folder = write_folder(table, tmp_path / "t")
    settings: dict[str, Any] = SETTINGS | {"rate": 0.1}
    model = mg.MetricClassifier("f1", "cross_entropy", **settings).fit(dataset_of(folder), "target")
    assert model.classes_.tolist() == ["high", "low", "middle"]
    assert model.score(table.drop(columns="target"), table["target"]) > 0.8


def test_columns_may_be_chosen_by_the_schema(folder: Path) -> None:
    schema = pa.schema([dataset_of(folder).schema.field(name) for name in ("one", "target")])
    chosen = dataset.dataset(folder, schema=schema)
    model = mg.MetricClassifier("f1", "cross_entropy", **SETTINGS).fit(chosen, "target")
    assert model.feature_names_in_.tolist() == ["one"]


def test_a_training_that_was_stopped_continues(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_ROWS", 1600)  # so that epochs have different pools

    def weights(place: Path) -> torch.Tensor:
        model = mg.MetricClassifier("f1", "uniloss", batch=64, **SETTINGS)
        model.fit(dataset_of(folder), "target", folder=place)
        return model.trained_.model.state_dict()["0.weight"]

    whole = weights(tmp_path / "whole")
    told: list[int] = []

    def failing(batches: PooledBatches, epoch: int) -> None:
        told.append(epoch)
        if epoch == 2:
            raise RuntimeError("the power is off")
        batches._epoch = epoch

    with monkeypatch.context() as patched:
        patched.setattr(PooledBatches, "set_epoch", failing)
        with pytest.raises(RuntimeError, match="the power is off"):
            weights(tmp_path / "parts")
    first = told.copy()
    again = PooledBatches.set_epoch

    def counting(batches: PooledBatches, epoch: int) -> None:
        told.append(epoch)
        again(batches, epoch)

    monkeypatch.setattr(PooledBatches, "set_epoch", counting)
    assert torch.equal(weights(tmp_path / "parts"), whole)
    assert first[-3:] == [0, 1, 2]
    assert told[len(first) :][:3] == [0, 2, 3]  # an example of a batch, then what was missing


def test_rows_without_a_target_are_left_out_with_a_warning(tmp_path: Path) -> None:
    table = mixed_table(1500)
    table.loc[::50, "target"] = np.nan
    data = dataset_of(write_folder(table, tmp_path / "t"))
    with pytest.warns(UserWarning, match="'target' has no value in 30 rows"):
        model = mg.MetricClassifier("f1", "cross_entropy", **SETTINGS).fit(data, "target")
    assert model.classes_.tolist() == [0, 1]
    assert 0 < model.score(data, "target") <= 1


def test_what_a_dataset_cannot_do_is_told(folder: Path, table: Any) -> None:
    data = dataset_of(folder)

    def refused(told: str, *arguments: Any, **options: Any) -> None:
        fitted = {
            key: options.pop(key) for key in ("rows", "amount", "sample_weight") if key in options
        }
        with pytest.raises(ValueError, match=told):
            mg.MetricClassifier(options.pop("metric", "f1"), **options).fit(*arguments, **fitted)

    refused("y is the name of the target column; got Series", data, table["target"])
    refused("leave out rows, or pass a table in memory", data, "target", rows=np.arange(3))
    refused("leave out amount, or pass a table in memory", data, "target", amount=np.arange(3))
    refused("leave out sample_weight, or", data, "target", sample_weight=np.arange(3))
    refused("leave out class_weight, or", data, "target", class_weight="balanced")
    refused("leave out warm_start, or", data, "target", warm_start=True)
    refused("leave out folds. Got folds=5", data, "target", folds=5)
    refused("'bilevel' draws its own batches", data, "target", method="bilevel")
    refused("no column 'label'", data, "label")

    def profit(scores: Any, target: Any, amount: Any) -> float:
        return float((scores > 0) @ (amount * target))

    refused("takes amount of every row", data, "target", metric=profit)


@pytest.mark.parametrize("progress", [True, False])
def test_reading_shows_its_progress_if_it_is_asked_to(
    progress: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[int, bool]] = []

    def noted(title: str, total: int, visible: bool) -> Any:
        shown.append((total, visible))
        return surveys_progress(title, total, False)

    surveys_progress = surveys.to_progress
    monkeypatch.setattr(surveys, "to_progress", noted)
    model = mg.MetricClassifier("f1", random_state=0, progress=progress)
    found = surveyed_dataset(model, dataset_of(folder), "target")
    assert shown == [(len(found.table.groups), progress)]


def test_rare_classes_are_told(tmp_path: Path) -> None:
    table = mixed_table(2000).assign(target=(np.arange(2000) % 100 == 0).astype(int))
    model = mg.MetricClassifier("f1", "cross_entropy", **SETTINGS)
    data = dataset_of(write_folder(table, tmp_path / "t"))
    with pytest.warns(UserWarning, match="have . of the rarest class"):
        model.fit(data, "target")


# --------------------------------------------------------------------------------------------------
# the command


def test_the_command_streams_what_memory_does_not_hold(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    found = run("train", folder, *STREAMED, "--drop", "same", "--out", out)
    assert found.exit_code == 0, found.output
    assert "Streamed: " in found.output
    result = json.loads((out / "result.json").read_text())
    rows = result["rows"]
    assert rows["train"] + rows["validation"] + rows["test"] == 6000
    assert rows["test"] == pytest.approx(1500, abs=120)
    assert result["columns"] == ["one", "gaps", "flag", "kind", "day"]
    assert "read in row groups" in (out / "report.html").read_text()
    winner = result["finalists"][result["chosen"]]
    assert winner["test"] == pytest.approx(winner["validation"], abs=0.06)

    again = run("train", folder, *STREAMED, "--drop", "same", "--out", out)
    assert "finished already" in again.output
    other = run("train", folder, *QUICK, "--memory", "2KB", "--drop", "same", "--out", out)
    assert "memory = 1024" in other.output
    quick = (*QUICK, "--method", "cross_entropy", "--drop", "same", "--json")
    whole = run("train", folder, *quick, "--out", tmp_path / "whole")
    in_memory = json.loads(whole.stdout)
    assert in_memory["rows"] == {
        "train": 4500,
        "test": 1500,
        "without_target": 0,
        "validation": None,
    }
    best = in_memory["finalists"][in_memory["chosen"]]
    assert winner["test"] == pytest.approx(best["test"], abs=0.05)


def test_a_changed_folder_is_other_data(tmp_path: Path) -> None:
    table = mixed_table(1500)
    folder = write_folder(table, tmp_path / "t")
    options = (*STREAMED, "--method", "cross_entropy", "--out", tmp_path / "run")
    assert run("train", folder, *options).exit_code == 0
    table.iloc[:500].assign(one=0.25).to_parquet(folder / "part-0.parquet", index=False)
    assert "a file has changed since" in run("train", folder, *options).output


def test_test_data_may_be_a_folder(folder: Path, tmp_path: Path) -> None:
    new = mixed_table(1000, seed=2)
    test = write_folder(new, tmp_path / "new")
    new.to_csv(tmp_path / "new.csv", index=False)
    quick = (*STREAMED, "--method", "cross_entropy", "--json")
    for path in (test, tmp_path / "new.csv"):
        out = tmp_path / f"run-{path.suffix}"
        found = run("train", folder, *quick, "--test", path, "--out", out)
        assert found.exit_code == 0, found.output
        assert json.loads(found.stdout)["rows"]["test"] == 1000
    for spoiled, told in (
        (folder, "has the rows of the training file"),
        (write_folder(new.drop(columns="one"), tmp_path / "less"), "no column 'one'"),
        (write_folder(new.assign(target=7), tmp_path / "seven"), "does not have: 7"),
        (write_folder(new.assign(day=1.0), tmp_path / "kind"), "'day' was times in training"),
    ):
        refused = run("train", folder, *quick, "--test", spoiled, "--out", tmp_path / "no")
        assert refused.exit_code != 0
        assert told in " ".join(refused.output.split())


def test_predictions_are_written_in_parts(
    folder: Path, table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (*STREAMED, "--method", "cross_entropy", "--out", tmp_path / "run")
    assert run("train", folder, *options).exit_code == 0
    whole = run(
        "predict", tmp_path / "run", folder, "--target", "target", "--out", tmp_path / "w.csv"
    )
    monkeypatch.setattr("metricgrad.studies.large_tables.RUN_MEMORY", 1024)
    for name in ("parts.csv", "parts.csv.gz"):
        parts = run(
            "predict", tmp_path / "run", folder, "--target", "target", "--out", tmp_path / name
        )
        assert parts.exit_code == 0, parts.output
        assert parts.stderr == whole.stderr
        assert "on 6000 rows" in parts.stderr
        expected = pd.read_csv(tmp_path / "w.csv")
        pd.testing.assert_frame_equal(pd.read_csv(tmp_path / name), expected, atol=2e-6)
    assert len(expected) == len(table)
    missing = write_folder(table.drop(columns="one"), tmp_path / "less")
    refused = run("predict", tmp_path / "run", missing, "--out", tmp_path / "no.csv")
    assert "no column 'one'" in " ".join(refused.output.split())
    assert not (tmp_path / "no.csv").exists()


def test_categories_of_a_part_stay_text(tmp_path: Path) -> None:
    """Where all categories of the rows to predict look like numbers, they are still categories."""
    table = mixed_table(2000)
    table["kind"] = np.where(table["kind"] == "b", "01", "other")
    table.to_csv(tmp_path / "train.csv", index=False)
    options = ("--method", "cross_entropy", "--out", tmp_path / "run")
    assert run("train", tmp_path / "train.csv", *QUICK, *options).exit_code == 0
    table.to_parquet(tmp_path / "all.parquet")
    some = table["kind"] == "01"
    table[some].to_parquet(tmp_path / "some.parquet")
    for name in ("all", "some"):
        out = tmp_path / f"{name}.csv"
        assert (
            run("predict", tmp_path / "run", tmp_path / f"{name}.parquet", "--out", out).exit_code
            == 0
        )
    every: Any = pd.read_csv(tmp_path / "all.csv")
    found = every[some.to_numpy()].reset_index(drop=True)
    pd.testing.assert_frame_equal(found, pd.read_csv(tmp_path / "some.csv"))


def spoiled(kind: str, place: Path) -> tuple[Any, ...]:
    """A folder that cannot be trained on, and options."""
    table = mixed_table(600)
    if kind == "empty":
        place.mkdir()
        return (place,)
    if kind == "no parquet":
        write_folder(table, place)
        for each in place.iterdir():
            each.write_text("no Parquet")
        return (place,)
    changes = {
        "text": {"kind": table["flag"].astype(str)},
        "dates": {
            "kind": table["day"].dt.strftime("%Y-%m-%d").str.replace("-\\d\\d$", "-01", regex=True)
        },
        "nested": {"kind": [[1.0]] * 600},
    }
    write_folder(table.assign(**changes.get(kind, {})), place)
    options = {
        "group": ("--group", "flag"),
        "drop": ("--drop", "nothing"),
        "memory": ("--memory", "much"),
        "target": ("--target", "tarte"),
        "positive": ("--positive", "2"),
        "metric": ("--metric", "ndcg"),
    }
    return (place, *options.get(kind, ()))


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("empty", "has no Parquet files (.parquet)"),
        ("no parquet", "cannot be read as parquet"),
        ("text", "column 'kind' is text that looks like numbers or dates, such as"),
        ("dates", "column 'kind' is text that looks like numbers or dates, such as '20"),
        ("nested", "column 'kind' has values of the type list"),
        ("group", "too large to be read as a whole, which --group needs"),
        ("drop", "--drop names 'nothing', which the table does not have"),
        ("memory", "--memory must be a size such as 500MB or 2GB; got 'much'"),
        ("target", "Did you mean 'target'?"),
        ("positive", "--positive must be one of 0, 1; got 2"),
        ("metric", "pass --group COLUMN"),
    ],
)
def test_bad_input_is_told_in_a_sentence(kind: str, told: str, tmp_path: Path) -> None:
    found = run("train", *STREAMED, "--out", tmp_path / "run", *spoiled(kind, tmp_path / "t"))
    assert found.exit_code == 2, found.output
    assert told in " ".join(found.output.split())
    assert not (tmp_path / "run" / "result.json").exists()


def test_several_processes_do_not_stream_the_same_table(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metricgrad.studies.large_tables.alone", lambda: False)
    found = run("train", folder, *STREAMED, "--out", tmp_path / "run")
    assert found.exit_code == 2
    assert "start it without torchrun, or pass more --memory" in " ".join(found.output.split())


_MEMORY = """
import re, sys
import metricgrad as mg
from pyarrow import dataset
def most():  # KiB, of this process alone
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
settings = {"hidden": (), "epochs": 1, "rate": 0.03, "random_state": 0}
for folder in sys.argv[1:]:
    mg.MetricClassifier("f1", "cross_entropy", **settings).fit(dataset.dataset(folder), "target")
    print(most())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_table(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    columns = {f"x{number}": generator.standard_normal(900_000) for number in range(30)}
    table: Any = pd.DataFrame(columns, dtype=np.float32)
    table["target"] = (table["x0"] > 1).astype(np.int8)
    folders = [
        write_folder(table[:rows], tmp_path / str(rows), files=2, group=25_000)
        for rows in (300_000, 900_000)  # more than a pool has
    ]
    command = [sys.executable, "-c", _MEMORY, *map(str, folders)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    small, large = (int(each) / 1024 for each in printed.split())
    more = 600_000 * 31 * 4 / 2**20  # MiB that the large table has more, as it is stored
    assert large - small < 0.5 * more
