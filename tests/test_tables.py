"""Tables in files, and how their columns are read."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from sklearn.datasets import dump_svmlight_file

from metricgrad.cli.options import layer_widths, seconds
from metricgrad.studies.splits import load_table
from metricgrad.studies.table_files import read_table
from metricgrad.studies.tables import (
    bundled_table,
    parsed,
    split_target,
    with_columns,
    without_columns,
)
from tests.commands import table


def test_tables_of_every_kind_are_the_same(tmp_path: Path) -> None:
    expected = table()
    expected.to_csv(tmp_path / "a.csv", index=False)
    expected.to_csv(tmp_path / "b.csv.gz", index=False)
    expected.to_csv(tmp_path / "c.tsv", index=False, sep="\t")
    expected.to_csv(tmp_path / "d.csv", index=False, sep=";")
    expected.to_parquet(tmp_path / "e.parquet", index=False)
    (tmp_path / "g.parquet.gz").write_bytes(gzip.compress((tmp_path / "e.parquet").read_bytes()))
    for path in sorted(tmp_path.iterdir()):
        pd.testing.assert_frame_equal(read_table(path), expected, check_dtype=False)
    x = expected[["one", "two", "three"]].to_numpy()
    dump_svmlight_file(
        x, (expected["label"] == "yes").astype(int), str(tmp_path / "f.svm"), zero_based=False
    )
    found = read_table(tmp_path / "f.svm")
    np.testing.assert_allclose(found[["x1", "x2", "x3"]], x, rtol=1e-10)
    assert (found["target"] == (expected["label"] == "yes")).all()


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ("a,y,y", "several columns are called 'y'; give every column a different name"),
        ("a,a,y", "several columns are called 'a'; give"),
        ("y, y,a", "several columns are called 'y'; give"),
        ('\ufeff"y","y",a', "several columns are called 'y'; give"),
    ],
)
@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_columns_of_the_same_name_are_refused(
    header: str, told: str, ending: str, tmp_path: Path
) -> None:
    content = f"{header}\n1,2,3\n4,5,6\n".encode()
    path = tmp_path / f"data.{ending}"
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    with pytest.raises(ValueError, match=f"data.{ending} cannot be read as csv: {told}"):
        read_table(path)


def test_columns_of_the_same_name_are_refused_in_parquet_files(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    columns = [pa.array([1, 2]) for _ in "aabbc"]
    parquet.write_table(pa.Table.from_arrays(columns, names=list("aabbc")), path)
    with pytest.raises(ValueError, match="as parquet: several columns are called 'a', 'b'; give"):
        read_table(path)


def test_columns_need_no_name(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("\n,,y\n1,2,0\n3,4,1\n")
    assert read_table(tmp_path / "data.csv").columns.tolist() == ["Unnamed: 0", "Unnamed: 1", "y"]


def test_rows_are_numbered_from_0_whatever_index_a_parquet_file_has(tmp_path: Path) -> None:
    pd.DataFrame({"a": [1, 2]}, index=[7, 9]).to_parquet(tmp_path / "data.parquet")
    assert read_table(tmp_path / "data.parquet").index.tolist() == [0, 1]


@pytest.mark.parametrize("last", ["many", "1.5", "", "True", "NA", "1,234"])
def test_a_column_has_one_type_in_all_parts_of_a_large_file(last: str, tmp_path: Path) -> None:
    """pandas reads a file in parts; what stands in the last of them counts for all."""
    path = tmp_path / "data.csv"
    values = [*map(str, range(150_000)), last]
    pd.DataFrame({"x": values, "y": [0, 1] * 75_000 + [0]}).to_csv(path, index=False)
    found = read_table(path)["x"]
    whole = pd.read_csv(path, low_memory=False)["x"]
    assert found.dtype == whole.dtype
    assert found.equals(whole)


def test_widths_and_times() -> None:
    assert layer_widths("100, 30") == (100, 30)
    assert layer_widths("none") == ()
    assert [seconds(text) for text in ("90s", "2m", "1h", "7", None)] == [90, 120, 3600, 7, None]


def test_bundled_data_is_imbalanced() -> None:
    assert 0.05 < bundled_table()["target"].mean() < 0.15


def test_the_bundled_digits_have_two_targets_and_no_other() -> None:
    odd = load_table(None, "odd")
    assert odd.x.shape == (1797, 64)
    assert 0.45 < odd.y.mean() < 0.55
    with pytest.raises(ValueError, match="no target 'seven'; pass --target target or odd"):
        load_table(None, "seven")


def test_text_becomes_numbers_or_dates() -> None:
    frame = pd.DataFrame({"n": ["1", "2.5", None], "d": ["2024-01-31", None, "2024-02-01"]})
    found = parsed(frame.assign(t=["x", "1", "y"], flag=pd.Series([True, None, False])))
    assert found["n"].tolist()[:2] == [1.0, 2.5]
    assert found["d"][2] - found["d"][0] == pd.Timedelta(days=1)
    assert found["t"].tolist() == ["x", "1", "y"]  # more than half is no number
    assert found["flag"].tolist() == [True, None, False]
    with pytest.raises(ValueError, match="'n' is numbers but for 1 rows, such as 'x' in row 2"):
        parsed(pd.DataFrame({"n": ["1", "x", "3"]}))
    assert parsed(pd.DataFrame({"d": ["2024-01-31", "soon"]}))["d"].tolist() == [
        "2024-01-31",
        "soon",
    ]


def test_targets_are_split_off() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": [1.0, None, 0.0]})
    x, y, left_out = split_target(frame, "y")
    assert (x["x"].tolist(), y.tolist(), y.dtype, left_out) == ([1.0, 3.0], [1, 0], np.int64, 1)
    with pytest.raises(ValueError, match=r"column 'y' is 1.0 in all 1 rows; pass a target"):
        split_target(frame[:1], "y")
    assert split_target(frame[:1], "y", several=False)[1].tolist() == [1]
    classes = pd.DataFrame({"x": 1, "y": np.arange(20) / 2 + 0.25})
    assert split_target(classes, "y")[1].nunique() == 20
    with pytest.raises(ValueError, match=r"column 'y' has 21 values such as 0.25, too many for"):
        split_target(pd.DataFrame({"x": 1, "y": np.arange(21) / 2 + 0.25}), "y")


def test_columns_are_chosen_and_left_out() -> None:
    frame = pd.DataFrame({"a": [1], "b": [2], "c": [3]})
    assert list(with_columns(frame, ["c", "a"], Path("new.csv"))) == ["c", "a"]
    with pytest.raises(ValueError, match=r"new.csv has no column 'd', which the training data has"):
        with_columns(frame, ["a", "d"], Path("new.csv"))
    assert with_columns(frame, ["a", "d"], Path("new.svm.gz"))["d"].tolist() == [0.0]
    assert list(without_columns(frame, " a, c,")) == ["b"]
    named = frame.rename(columns={"c": "c, d", "b": 'b"'})
    assert list(without_columns(named, 'b", "c, d"')) == ["a"]
    assert without_columns(frame, None) is frame
    with pytest.raises(ValueError, match="--drop names 'd', which the table does not have"):
        without_columns(frame, "a,d")


@pytest.mark.parametrize("ending", ["csv.gz", "parquet", "parquet.gz", "svm"])
def test_what_does_not_fit_into_memory_is_refused(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pd.DataFrame({"x": np.arange(50.0), "target": np.arange(50) % 2})
    path = tmp_path / f"data.{ending}"
    if ending == "csv.gz":
        frame.to_csv(path, index=False)
    elif ending == "svm":
        dump_svmlight_file(frame[["x"]].to_numpy(), frame["target"].to_numpy(), str(path))
    else:
        frame.to_parquet(tmp_path / "plain")
        content = (tmp_path / "plain").read_bytes()
        path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    assert len(read_table(path)) == 50
    monkeypatch.setattr("metricgrad.storage._MEMORY", 0.0)
    with pytest.raises(ValueError, match=rf"data\.{ending} does not fit into memory; pass fewer"):
        read_table(path)


def test_a_folder_of_parquet_files_is_one_table(tmp_path: Path) -> None:
    """Categories stay categories, although every file numbers its own; other files are left out."""
    kinds = [["1", "2"], ["2", "3"]]
    for number, kind in enumerate(kinds):
        part = pd.DataFrame({"kind": pd.Categorical(kind), "one": [number, None], "y": [0, 1]})
        part.to_parquet(tmp_path / f"{number}.parquet", index=False)
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "_metadata.parquet").write_text("no table")
    found = read_table(tmp_path)
    assert found["kind"].tolist() == ["1", "2", "2", "3"]
    assert isinstance(found["kind"].dtype, pd.CategoricalDtype)
    assert found["one"].isna().tolist() == [False, True, False, True]
    assert found.index.tolist() == [0, 1, 2, 3]
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="has no Parquet files"):
        read_table(empty)
    found.iloc[:0].to_parquet(empty / "a.parquet", index=False)
    with pytest.raises(ValueError, match="has columns but no rows"):
        read_table(empty)
