"""One pass through a Parquet table: the preparation that memory has, and the rows that decide."""

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

from metricgrad.estimators import passing, surveys
from metricgrad.estimators.features import Category, Number, Preparation
from metricgrad.estimators.parquet_tables import (
    ParquetTable,
    is_category,
    is_text_type,
    plain_part,
    refuse_nested,
    to_frame,
    to_stored_frame,
)
from metricgrad.estimators.passing import PassingCategories, PassingNumbers
from metricgrad.studies.splits import stratified_split
from metricgrad.studies.tables import split_target
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
    missing = PassingNumbers("missing", "times")
    missing.add(np.full(9, np.nan), np.ones(9, dtype=bool))
    assert missing.column() == Number(0.0, 0.0, 1.0, False, holds=None)
    for bad, told in (
        ([1.0, np.inf], "contains infinity"),
        ([1e200, -1e200], "as large as 1e.200"),
    ):
        with pytest.raises(ValueError, match=told):
            PassingNumbers("one", "numbers").add(np.array(bad), np.ones(2, dtype=bool))


def test_flags_and_gaps_that_come_late() -> None:
    def seen(*parts: list[float], drawn: bool = True) -> Number:
        column = PassingNumbers("one", "durations")
        for part in parts:
            column.add(np.array(part), np.full(len(part), drawn))
        return column.column()

    nan = np.nan
    assert seen([0, 1], [1, nan]) == Number(1.0, 0.0, 1.0, True, "durations")
    late = seen([0, 1], [1, 5, nan], [1, 0])
    assert (late.median, late.marks, late.holds) == (1.0, True, "durations")
    assert late.mean == pytest.approx(8 / 6)
    assert late.spread == pytest.approx(np.std([0, 1, 1, 5, 1, 0]))
    # Without drawn rows, the mean takes the place of the median.
    assert seen([2, 4], [nan, 9], drawn=False).median == pytest.approx(5)
    assert seen([3, 5], drawn=True).median == 0


def test_forgetting_lowers_all_counts_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "_MOST_COUNTED", 6)
    column = PassingCategories("one")
    counts = {"a": 10, "b": 8, "c": 5, "d": 4, "e": 3, "f": 2}
    column.add(pa.array([name for name, count in counts.items() for _ in range(count)]))
    assert column._counts == counts
    assert not column.column(Preparation(), text=True).rare
    column.add(pa.array(["g"]))  # by the count of the third of the six that may stay
    assert column._counts == {"a": 5, "b": 3}
    column.add(pa.array(["a", "f", None, "f"]))
    assert column._counts == {"a": 6, "b": 3, "f": 2, "(missing)": 1}
    assert column.column(Preparation(), text=True) == Category(("a", "b", "f"), rare=True)
    column.add(pa.array(list("ghijkl") * 8))
    assert column._counts == {}
    with pytest.raises(ValueError, match=r"no value occurs 2 times \('a', 'b', 'c', ...\)"):
        column.column(Preparation(), text=True)


def test_text_with_decimal_commas_is_refused() -> None:
    values = pa.array(["0,94", "1,5", None] * 5)
    column = PassingCategories("one")
    column.add(values)
    with pytest.raises(ValueError, match="'one' is text that looks like numbers, such as '0,94'"):
        column.column(Preparation(), text=True)
    assert set(column.column(Preparation(), text=False).frequent) == {"0,94", "1,5", "(missing)"}


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


@pytest.mark.parametrize(
    ("change", "target"),
    [
        ({}, "targte"),
        ({"target": 1}, "target"),
        ({"target": np.nan}, "target"),
        ({"target": [2, *([0, 1] * 249), 0]}, "target"),
        ({"one": [1e300, -1e300] * 250}, "target"),
    ],
)
def test_a_table_in_memory_is_refused_in_the_same_words(
    change: Any, target: str, tmp_path: Path
) -> None:
    table = mixed_table(500).assign(**change)
    streamed = ParquetTable(dataset_of(write_folder(table, tmp_path / "t", files=1)))

    def read() -> None:
        x, y, _ = split_target(table, target)
        stratified_split(x, y, 0.6, 0)
        Preparation().fit(x)

    with pytest.raises(ValueError, match="column") as told:
        surveys.survey(streamed, target, test_share=0.6, seed=FIRST_TESTED)
    with pytest.raises(ValueError, match=re.escape(str(told.value))):
        read()


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
        names = [f"row {number}" for number in range(300)]  # numbers in order are not stored
        indexed = mixed_table(300, seed=year).set_index(pd.Index(names))
        indexed.to_parquet(folder / "a.parquet")
    partitioned = dataset.dataset(tmp_path / "t", partitioning="hive")
    found = surveys.survey(ParquetTable(partitioned), "target")
    assert found.features == ["one", "gaps", "flag", "same", "kind", "day", "year"]
    assert found.preparation.columns[-1].mean == pytest.approx(2023.5, abs=0.1)  # pyright: ignore[reportAttributeAccessIssue]


def test_the_folder_decides_where_a_file_has_its_column_too(tmp_path: Path) -> None:
    for year in (2023, 2024):
        folder = tmp_path / f"year={year}"
        folder.mkdir()
        parquet.write_table(pa.table({"one": [1.0, 2.0], "year": [7, 8]}), folder / "a.parquet")
    by_year = dataset.partitioning(pa.schema([("year", pa.int64())]), flavor="hive")
    table = ParquetTable(dataset.dataset(tmp_path, partitioning=by_year))
    assert table.whole().to_dict("list") == {
        "one": [1.0, 2.0, 1.0, 2.0],
        "year": [2023, 2023, 2024, 2024],
    }
    assert [len(each) for each in table.frames(["year"])] == [2, 2]
    assert (table.rows, table.values) == (4, 8)


@pytest.mark.parametrize(
    ("kind", "category"),
    [
        (pa.int8(), False),
        (pa.float32(), False),
        (pa.decimal128(8, 2), False),
        (pa.timestamp("ms"), False),
        (pa.date32(), False),
        (pa.duration("s"), False),
        (pa.string(), True),
        (pa.bool_(), True),
        (pa.dictionary(pa.int32(), pa.string()), True),
    ],
    ids=str,
)
def test_which_types_are_categories(kind: Any, category: bool) -> None:
    assert is_category(kind) == category
    refuse_nested("one", kind)


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.time32("s"), pa.struct([("a", pa.int8())])], ids=str
)
def test_types_that_are_no_features(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"'one' has values of the type .*cannot be features"):
        refuse_nested("one", kind)


def test_what_is_text_in_a_file() -> None:
    assert all(map(is_text_type, (pa.string(), pa.large_string(), pa.string_view())))
    assert not is_text_type(pa.dictionary(pa.int32(), pa.string()))


def test_whole_numbers_with_gaps_stay_whole_where_they_are_shown() -> None:
    table = pa.table({"one": pa.array([1, None], pa.int64()), "day": pa.array([0, 1], pa.date32())})
    assert to_stored_frame(table)["one"].tolist() == [1, None]
    (batch,) = table.to_batches()
    prepared = to_frame(plain_part(batch))
    np.testing.assert_equal(prepared["one"].to_numpy(), [1.0, np.nan])
    assert prepared["day"].dtype == "datetime64[ms]"


def test_columns_that_are_called_alike_are_refused(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"one": [1.0], " one": [2.0]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="several columns are called 'one'; give every column"):
        ParquetTable(dataset_of(tmp_path))


def test_a_table_without_rows_has_its_columns(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"one": [1.0], "two": [2]}).slice(0, 0), tmp_path / "a.parquet")
    table = ParquetTable(dataset_of(tmp_path))
    assert table.whole().columns.tolist() == ["one", "two"]
    assert len(table.whole()) == 0
    with pytest.raises(ValueError, match="the table has no columns; pass one with at least one"):
        table.features(("one", "two"))


def test_only_the_first_columns_are_listed(tmp_path: Path) -> None:
    for number, shown in ((12, "x11."), (13, "x11, ....")):
        columns = {f"x{each}": [1.0] for each in range(number)}
        path = tmp_path / f"{number}.parquet"
        parquet.write_table(pa.table(columns), path)
        with pytest.raises(ValueError, match="no column 'target'") as told:
            ParquetTable(dataset_of(path)).check_column("target")
        assert str(told.value).endswith(shown)


def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    folders = [
        write_folder(mixed_table(200, seed), tmp_path / f"{n}" / "t")
        for n, seed in enumerate((0, 0, 1))
    ]
    first, same, other = (ParquetTable(dataset_of(folder)).digest() for folder in folders)
    assert first == same != other
    found = hashlib.sha256()
    for path in sorted(folders[0].iterdir()):
        content = path.read_bytes()
        footer = content[-8 - parquet.read_metadata(path).serialized_size : -8]
        found.update(f"{path.name} {len(content)} ".encode() + footer)
    assert first == found.hexdigest()
