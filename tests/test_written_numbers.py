"""Numbers with decimal commas and with separators of thousands: read correctly, or refused."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from metricgrad.estimators import Preparation
from metricgrad.estimators.written_numbers import (
    decimal_mark,
    is_text,
    looks_like_number,
    plain_numbers,
    refusal,
    row_number,
    to_numbers,
)
from metricgrad.studies.table_files import read_table
from metricgrad.studies.tables import parsed, split_target
from tests.commands import run, table, train


@pytest.mark.parametrize(
    ("texts", "mark", "numbers"),
    [
        (["0,94", "-3", None], ",", [0.94, -3.0, None]),
        (["1234,5", ",5", "7,"], ",", [1234.5, 0.5, 7.0]),
        (["1.234,56", "1.234.567"], ",", [1234.56, 1234567.0]),
        (["1,5e-3", " 2,0E+2 "], ",", [0.0015, 200.0]),
        (["0,123", "\N{MINUS SIGN}1,500"], ",", [0.123, -1.5]),
        (["1 234,5", "12\N{NO-BREAK SPACE}345,5"], ",", [1234.5, 12345.5]),
        (["1,234.5", "1,234"], ".", [1234.5, 1234.0]),
        (["1,234,567", "+89"], ".", [1234567.0, 89.0]),
        (["1,23,456.7", "99"], ".", [123456.7, 99.0]),
        (["12'573.02", "1'200'300"], ".", [12573.02, 1200300.0]),
        (["12 345", "1 234 567"], "neither", [12345.0, 1234567.0]),
        (["1,234", "12,500", "7"], "either", None),
        (["1.234", "12.500"], "either", None),
        (["0,94", "12.5"], None, None),
        (["0,94", "many"], None, None),
        (["1,2,3", "4,5"], None, None),
        (["31.01.2024", "01.02.2024"], None, None),
        (["10.0.0.1", "192.168.100.100"], None, None),
        (["1 2", "3 4"], None, None),
        ([None, None], None, None),
    ],
    ids=str,
)
def test_the_decimal_mark_of_a_column(texts: list[Any], mark: Any, numbers: Any) -> None:
    column = pd.Series(texts, dtype=object)
    assert decimal_mark(column) == mark
    if numbers is not None:
        found = to_numbers(column, mark)
        np.testing.assert_allclose(found.to_numpy(dtype=float), np.array(numbers, dtype=float))


@pytest.mark.parametrize(
    ("values", "dtype", "text"),
    [
        (["a", None], object, True),
        (["a", "b"], "string", True),
        (["a", 1], object, False),
        ([1, 2], object, False),
        ([None, None], object, False),
        (["a", "b"], "category", False),
        ([1.5, 2.5], float, False),
    ],
    ids=str,
)
def test_what_is_text(values: list[Any], dtype: Any, text: bool) -> None:
    assert is_text(pd.Series(values, dtype=dtype)) == text


def test_numbers_that_pandas_reads_by_itself() -> None:
    found = plain_numbers(pd.Series(["1.5", None, "-2"], dtype=object))
    np.testing.assert_equal(found.to_numpy(), [1.5, np.nan, -2.0])
    assert plain_numbers(pd.Series(["1.5", "two"], dtype=object)) is None


def test_which_values_look_like_numbers() -> None:
    values = pd.Series(["0,94", None, "many", "12.5", "1.2.3"], dtype=object)
    assert looks_like_number(values).tolist() == [True, False, False, True, False]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (["7", "1,234", "12,500"], "numbers such as '1,234', whose comma"),
        (["7", "0,94", "12.5"], "commas, as in '0,94', and decimal points, as in '12.5'"),
        (["1", None, "2", "x", "3", "y"], "but for 2 rows, such as 'x' in row 4;"),
        (["1", "2", "x", "y"], None),  # half of them are other text
        (["1.234", "12.500"], None),
        ([None, None], None),
    ],
    ids=str,
)
def test_what_is_wrong_with_text_that_is_nearly_numbers(values: list[Any], told: Any) -> None:
    found = refusal("a", pd.Series(values, dtype=object))
    assert found is None if told is None else told in str(found)


def test_rows_are_numbered_by_the_index_if_it_has_numbers() -> None:
    values = pd.Series(["x", "y", "z"])
    assert row_number(values, 1) == 2
    assert row_number(values[[0, 2]], 1) == 3
    assert row_number(values.set_axis(list("abc")), 1) == 2


def read(folder: Path, text: str, name: str = "data.csv") -> Any:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    return read_table(path)


@pytest.mark.parametrize("name", ["data.csv", "data.csv.gz"])
def test_decimal_commas_are_read(name: str, tmp_path: Path) -> None:
    found = read(tmp_path, "a;b;c;y\n0,94;1.234;x;0\n-1,5;;y;1\n2;12.500;x;0\n", name)
    assert found["a"].tolist() == [0.94, -1.5, 2.0]
    assert found["b"].tolist()[::2] == [1234.0, 12500.0]  # points separate thousands beside commas
    assert np.isnan(found["b"][1])
    assert found["c"].tolist() == ["x", "y", "x"]
    assert found["y"].dtype == np.int64


def test_quoted_commas_and_thousands_are_read(tmp_path: Path) -> None:
    quoted = read(tmp_path, '"a","b, c",y\n"0,94","1,234",0\n"1,5","7,250",1\n')
    assert quoted["a"].tolist() == [0.94, 1.5]
    assert quoted["b, c"].tolist() == [1.234, 7.25]  # the other column says what its commas are
    english = read(tmp_path, 'a,b,y\n0.94,"1,234",0\n1.5,"7,250",1\n')
    assert english["a"].tolist() == [0.94, 1.5]
    assert english["b"].tolist() == [1234, 7250]
    tabs = read(tmp_path, "a\ty\n1,23\t0\n4,56\t1\n", "data.tsv")
    assert tabs["a"].tolist() == [1.23, 4.56]
    names = read(tmp_path, '"price, EUR";"weight, kg";"a, b"\n1;2;3\n')
    assert names.columns.tolist() == ["price, EUR", "weight, kg", "a, b"]


def test_text_of_parquet_files_is_read_alike(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": ["0,94", "1,5"], "code": ["01", "02"], "b": ["0.5", "1.234"]})
    frame.to_parquet(tmp_path / "data.parquet")
    found = read_table(tmp_path / "data.parquet")
    assert found["a"].tolist() == [0.94, 1.5]
    assert found["code"].tolist() == ["01", "02"]  # what pandas can read is left to `parsed`
    assert parsed(found)["b"].tolist() == [0.5, 1.234]


def test_other_text_stays_text(tmp_path: Path) -> None:
    dates = read(tmp_path, 'day;set;y\n31.01.2024;"1,2,3";0\n01.02.2024;"1,2";1\n')
    assert dates["day"].tolist() == ["31.01.2024", "01.02.2024"]
    assert dates["set"].tolist() == ["1,2,3", "1,2"]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["1,234", "12,500"], "'a' has numbers such as '1,234', whose comma may be a decimal mark"),
        (
            ["0,94", "12.5"],
            "'a' has decimal commas, as in '0,94', and decimal points, as in '12.5'",
        ),
        (["0,94", "1,5", "?"], "'a' is numbers but for 1 rows, such as '?' in row 3; correct them"),
    ],
)
def test_what_stays_open_is_refused(cells: list[str], message: str, tmp_path: Path) -> None:
    lines = "".join(f"{cell};{number % 2}\n" for number, cell in enumerate(cells))
    found = read(tmp_path, "a;y\n" + lines)
    with pytest.raises(ValueError, match=re.escape(message)):
        split_target(found, "y")
    assert len(split_target(found.drop(columns="a").assign(b=1), "y")[1]) == len(cells)
    if "?" not in cells:
        with pytest.raises(ValueError, match=re.escape(message)):
            split_target(found, "a")


def test_rows_are_numbered_as_in_the_file(tmp_path: Path) -> None:
    found = read(tmp_path, "a,y\n1,\n2,0\n3,1\n4,0\nfive,1\n")
    with pytest.raises(ValueError, match="such as 'five' in row 5"):
        split_target(found, "y")


def test_both_marks_in_a_file_leave_each_column_its_own(tmp_path: Path) -> None:
    found = read(tmp_path, "a;b;c;y\n0,94;0.5;1.234;0\n1,5;2.25;5.678;1\n")
    assert found["a"].tolist() == [0.94, 1.5]
    assert found["b"].tolist() == [0.5, 2.25]
    assert found["c"].tolist() == [1.234, 5.678]


def test_cells_without_a_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="more cells than the first line has names; name every"):
        read(tmp_path, "a,y\n0,94,1\n1,5,0\n")
    assert read(tmp_path, "a,y\n5,1,\n6,0,\n").to_dict("list") == {"a": [5, 6], "y": [1, 0]}


def test_estimators_refuse_numbers_with_commas() -> None:
    frame = pd.DataFrame({"a": ["0,94", "1,5"] * 5})
    with pytest.raises(ValueError, match="'a' is text that looks like numbers, such as '0,94'"):
        Preparation().fit(frame)
    assert Preparation().fit(frame.astype("category")).columns[0].width == 2
    assert Preparation().fit(pd.DataFrame({"a": ["1", "2"] * 5})).columns[0].width == 2


def test_a_run_with_decimal_commas_is_the_run_with_points(data: Path, tmp_path: Path) -> None:
    table().round(2).to_csv(data, index=False)
    commas = tmp_path / "commas.csv"
    table().round(2).to_csv(commas, index=False, sep=";", decimal=",")
    results = []
    for path in (data, commas):
        out = tmp_path / path.stem
        found = train(path, "--method", "cross_entropy", "--out", out)
        assert found.exit_code == 0, found.output
        results.append(json.loads((out / "result.json").read_text())["finalists"])
    assert results[0] == results[1]
    predicted = [run("predict", tmp_path / "data", path).stdout for path in (data, commas)]
    assert predicted[0] == predicted[1]
