"""One pass through a Parquet table: the preparation that memory has, and the rows that decide."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

from metricgrad.estimators import passing, surveys
from metricgrad.estimators.features import Category, Number, Preparation
from metricgrad.estimators.parquet_tables import ParquetTable
from metricgrad.estimators.passing import PassingCategories, PassingNumbers
from tests.parquet import dataset_of, mixed_table, write_folder

FIRST_TESTED = 3  # a seed with which the first row of a table is for testing


def surveyed(folder: Path, **options: Any) -> surveys.Survey:
    return surveys.survey(ParquetTable(dataset_of(folder)), "target", **options)


def training_rows(found: surveys.Survey, table: Any) -> Any:
    """The rows of a table in memory that a survey has taken for training."""
    groups = found.table.groups
    draws = [found.split.draws(number).random(group.rows) for number, group in enumerate(groups)]
    return table[found.split.trains(np.concatenate(draws), table["target"].notna().to_numpy())]


def assert_equal(found: Preparation, expected: Preparation, median: float = 1e-12) -> None:
    for ours, theirs in zip(found.columns, expected.columns, strict=True):
        if isinstance(ours, Category) or isinstance(theirs, Category):
            assert ours == theirs
            continue
        assert (ours.marks, ours.holds) == (theirs.marks, theirs.holds)
        assert ours.mean == pytest.approx(theirs.mean, rel=1e-12)
        assert ours.spread == pytest.approx(theirs.spread, rel=1e-9)
        assert ours.median == pytest.approx(theirs.median, rel=median, abs=median)


def test_the_preparation_is_that_of_the_same_rows_in_memory(tmp_path: Path) -> None:
    table = mixed_table()
    found = surveyed(write_folder(table, tmp_path / "t"), test_share=0.25, seed=3)
    rows = training_rows(found, table).drop(columns="target")
    expected = Preparation().fit(rows)
    assert_equal(found.preparation, expected)
    same = found.preparation.columns[found.features.index("same")]
    assert same == Number(0.0, 0.5, 1.0, False)
    stored = Preparation.from_json(found.preparation.to_json())
    np.testing.assert_allclose(stored.transform(rows), expected.transform(rows), atol=1e-6)


def test_medians_of_a_sample_are_near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surveys, "_MOST_DRAWN", 1000)
    table = mixed_table(8000)
    found = surveyed(write_folder(table, tmp_path / "t", group=1000))
    rows = training_rows(found, table).drop(columns="target")
    assert_equal(found.preparation, Preparation().fit(rows), median=0.15)
    exact = float(np.nanmedian(rows["gaps"]))
    assert found.preparation.columns[1].median != exact  # pyright: ignore[reportAttributeAccessIssue]


def test_every_row_is_for_one_thing(tmp_path: Path) -> None:
    table = mixed_table().assign(number=np.arange(3000))
    table.loc[::100, "target"] = np.nan
    found = surveyed(write_folder(table, tmp_path / "t"), test_share=0.25, seed=1)
    trained = set(training_rows(found, table)["number"])
    tested, valid = set(found.test.x["number"]), set(found.valid.x["number"])
    assert found.without_target == 30
    assert sorted([*trained, *tested, *valid]) == table["number"][table["target"].notna()].tolist()
    assert len(trained) == found.counts.sum()
    assert len(tested) == pytest.approx(0.25 * 2970, abs=80)
    assert len(valid) == pytest.approx(0.15 * 2970 / 0.75 * 0.75, abs=70)
    assert found.classes.tolist() == [0, 1]
    assert found.test.y.dtype == np.int64  # gaps make floats of the target
    again = surveyed(tmp_path / "t", test_share=0.25, seed=1)
    assert set(again.test.x["number"]) == tested
    other = surveyed(tmp_path / "t", test_share=0.25, seed=2)
    assert set(other.test.x["number"]) != tested


def test_samples_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surveys, "MOST_TESTED", 200)
    monkeypatch.setattr(surveys, "MOST_VALIDATED", 100)
    folder = write_folder(mixed_table(), tmp_path / "t")
    found = surveyed(folder, test_share=0.25)
    assert 130 < len(found.test) < 270
    assert 60 < len(found.valid) < 140
    table = ParquetTable(dataset_of(folder))
    assert 130 < len(surveys.sample(table, "target", ["one"], 0)) < 270
    monkeypatch.setattr(surveys, "_MOST_BYTES", 4 * 61 * 50)  # of 5 numbers and a category
    assert len(surveyed(folder, test_share=0.25).test) < 90


def test_parts_of_a_column_are_joined() -> None:
    values = np.random.default_rng(0).normal(1e9, 1.0, 1000)
    values[::7] = np.nan
    column = PassingNumbers("one", "numbers")
    for part in np.array_split(values, [1, 1, 30, 500]):
        column.add(part, np.ones(len(part), dtype=bool))
    found = column.column()
    assert found.mean == pytest.approx(np.nanmean(values), rel=1e-15)
    assert found.spread == pytest.approx(np.nanstd(values), rel=1e-9)
    assert found.median == np.nanmedian(values)
    same = PassingNumbers("same", "numbers")
    for _ in range(9):
        same.add(np.full(700, 0.1), np.zeros(700, dtype=bool))
    assert same.column() == Number(0.0, 0.1, 1.0, False)  # its spread is not of rounding errors
    for bad, told in (
        ([1.0, np.inf], "contains infinity"),
        ([1e200, -1e200], "as large as 1e.200"),
    ):
        with pytest.raises(ValueError, match=told):
            PassingNumbers("one", "numbers").add(np.array(bad), np.ones(2, dtype=bool))


def test_many_categories_are_counted_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "_MOST_COUNTED", 50)
    generator = np.random.default_rng(0)
    column = PassingCategories("one")
    for _ in range(40):
        rare = [f"id {number}" for number in generator.integers(0, 10**9, 60)]
        column.add(pa.array(generator.permutation(["often", "also"] * 30 + rare).tolist()))
        assert len(column._counts) <= 50
    found = column.column(Preparation(), text=True)
    assert set(found.frequent) >= {"often", "also"}
    assert found.rare


def test_text_without_frequent_values_is_refused(tmp_path: Path) -> None:
    table = mixed_table(500).assign(name=[f"customer {number}" for number in range(500)])
    with pytest.raises(ValueError, match=r"'name' is text, and no value occurs 3 times"):
        surveyed(write_folder(table, tmp_path / "t"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"target": 1}, "'target' is 1 in all 500 rows"),
        ({"target": np.nan}, "'target' is nothing in all 0 rows"),
        ({"target": pd.Timestamp("2020-01-01")}, "which cannot be classes"),
        ({"list": [[1, 2]] * 500}, "'list' has values of the type list<.*--drop list"),
        ({"one": np.inf}, "'one' contains infinity"),
        ({"target": [2, *([0, 1] * 249), 0]}, "class 2 of column 'target' is in 1 rows only"),
    ],
)
def test_what_cannot_be_learned_is_refused(change: Any, told: str, tmp_path: Path) -> None:
    table = mixed_table(500).assign(**change)
    folder = write_folder(table, tmp_path / "t", files=1)
    with pytest.raises(ValueError, match=told):
        surveyed(folder, test_share=0.6, seed=FIRST_TESTED)


def test_too_many_classes_are_refused(tmp_path: Path) -> None:
    table = mixed_table(2000)
    with pytest.raises(ValueError, match=r"more than 1,000 values such as .*turn it into classes"):
        surveyed(write_folder(table.assign(target=table["one"]), tmp_path / "t", group=1500))


def test_a_column_that_is_not_there_is_told(tmp_path: Path) -> None:
    table = ParquetTable(dataset_of(write_folder(mixed_table(100), tmp_path / "t")))
    with pytest.raises(ValueError, match=r"no column 'tarte' among one, .* Did you mean 'target'"):
        surveys.survey(table, "tarte")


def test_other_types_of_columns(tmp_path: Path) -> None:
    """Decimals are numbers, dates times; what is stored once for many rows are categories."""
    number = 400
    values = np.random.default_rng(0).normal(size=number).round(2)
    kinds = pa.array(np.where(values > 0, "up", "down").tolist()).dictionary_encode()
    days = pa.array(np.arange(number) % 60, pa.int32()).cast(pa.date32())
    decimals = pa.array(values.tolist()).cast(pa.decimal128(8, 2), safe=False)
    flags = pa.array([None if each % 9 == 0 else each % 2 == 0 for each in range(number)])
    classes = pa.array(["no", "yes"] * (number // 2)).dictionary_encode()
    table = pa.table(
        {"decimal": decimals, "day": days, "kind": kinds, "flag": flags, "target": classes}
    )
    (tmp_path / "t").mkdir()
    parquet.write_table(table, tmp_path / "t" / "a.parquet", row_group_size=70)
    found = surveyed(tmp_path / "t")
    decimal, day, kind, flag = found.preparation.columns
    assert isinstance(decimal, Number)
    assert decimal.holds == "numbers"
    assert decimal.spread == pytest.approx(values.std(), rel=0.2)
    assert isinstance(day, Number)
    assert day.holds == "times"
    assert isinstance(kind, Category)
    assert set(kind.frequent) == {"up", "down"}
    assert isinstance(flag, Category)
    assert set(flag.frequent) == {"True", "False", "(missing)"}
    assert found.classes.tolist() == ["no", "yes"]


def test_files_must_have_the_same_columns(tmp_path: Path) -> None:
    table = mixed_table(200)
    for name, other, told in (
        ("less", table.drop(columns="one"), "no column 'one', which .*part-0.parquet has"),
        ("more", table.assign(new=1), "has the column 'new', which .* does not have"),
        ("type", table.assign(one="text"), "'one' is .*string in .*z.parquet and double in"),
    ):
        folder = write_folder(table, tmp_path / name)
        other.to_parquet(folder / "z.parquet", index=False)
        with pytest.raises(ValueError, match=told):
            ParquetTable(dataset_of(folder))


def test_what_is_no_parquet_dataset_is_refused(tmp_path: Path) -> None:
    table = pa.table({"one": [1.0], "target": [1]})
    with pytest.raises(ValueError, match="from Parquet files only; got a InMemoryDataset"):
        ParquetTable(dataset.dataset(table))
    (tmp_path / "t").mkdir()
    parquet.write_table(table.slice(0, 0), tmp_path / "t" / "a.parquet")
    with pytest.raises(ValueError, match="columns but no rows"):
        surveyed(tmp_path / "t")


def test_empty_row_groups_are_passed_over(tmp_path: Path) -> None:
    table = pa.Table.from_pandas(mixed_table(300), preserve_index=False)
    (tmp_path / "t").mkdir()
    with parquet.ParquetWriter(tmp_path / "t" / "a.parquet", table.schema) as writer:
        for part in (table.slice(0, 0), table.slice(0, 200), table.slice(0, 0), table.slice(200)):
            writer.write_table(part)
    found = surveyed(tmp_path / "t")
    assert [group.rows for group in found.table.groups] == [200, 100]
    assert found.counts.sum() + len(found.valid) == 300


def test_folders_and_an_index_of_pandas(tmp_path: Path) -> None:
    """Folders such as year=2024 are a column, and the index that pandas stores is none."""
    for year in (2023, 2024):
        folder = tmp_path / "t" / f"year={year}"
        folder.mkdir(parents=True)
        indexed = mixed_table(300, seed=year).set_index(np.arange(300)[::-1])
        indexed.to_parquet(folder / "a.parquet")
    partitioned = dataset.dataset(tmp_path / "t", partitioning="hive")
    found = surveys.survey(ParquetTable(partitioned), "target")
    assert found.features == ["one", "gaps", "flag", "same", "kind", "day", "year"]
    assert found.preparation.columns[-1].mean == pytest.approx(2023.5, abs=0.1)  # pyright: ignore[reportAttributeAccessIssue]


def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    folders = [
        write_folder(mixed_table(200, seed), tmp_path / f"{n}" / "t")
        for n, seed in enumerate((0, 0, 1))
    ]
    first, same, other = (ParquetTable(dataset_of(folder)).digest() for folder in folders)
    assert first == same != other
