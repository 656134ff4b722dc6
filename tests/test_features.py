"""How tables become numbers: every rule on a column small enough to compute by hand."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from metricgrad.estimators.columns import is_boolean
from metricgrad.estimators.features import Category, Number, Preparation
from tests.test_estimators import mixed


def prepared(values: Any, later: Any = None) -> list[list[float]]:
    """One column of a table, prepared as it was fitted; or other values, prepared so."""
    frame = pd.DataFrame({"one": values})
    preparation = Preparation().fit(frame)
    return preparation.transform(frame if later is None else pd.DataFrame({"one": later})).tolist()


def column(values: Any, **options: Any) -> Number | Category:
    (found,) = Preparation(**options).fit(pd.DataFrame({"one": values})).columns
    return found


# --------------------------------------------------------------------------------------------------
# numbers


def test_numbers_have_mean_0_and_spread_1() -> None:
    assert column([1.0, 2.0, 6.0, 7.0]) == Number(0.0, 4.0, np.sqrt(6.5), False)
    assert prepared([1.0, 3.0]) == [[-1.0], [1.0]]
    assert prepared([1.0, 3.0], [7.0]) == [[5.0]]
    assert Preparation().fit(np.array([[1.0, 5], [3, 9]])).transform(
        np.array([[7.0, 5]])
    ).tolist() == [[5.0, -1.0]]


def test_missing_numbers_become_the_median_and_are_marked() -> None:
    found = column([1.0, 2.0, np.nan, 9.0])
    assert found == Number(2.0, 4.0, float(np.std([1, 2, 9])), True)
    assert found.width == 2
    assert prepared([1.0, 3.0, np.nan]) == [[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    assert prepared([1.0, 3.0, np.nan], [1.0]) == [[-1.0, 0.0]]
    assert prepared([0.0, 2.0, 10.0], [np.nan]) == [[pytest.approx(-4 / np.std([0, 2, 10]))]]


def test_columns_that_need_no_scaling() -> None:
    assert column([0.0, 1.0, 1.0]) == Number(0.0, 0.0, 1.0, False)
    assert column([0.0, 1.0, 1.0, np.nan]) == Number(1.0, 0.0, 1.0, True)
    assert column([7.0, 7.0]) == Number(0.0, 7.0, 1.0, False)
    assert column([np.nan, np.nan]) == Number(0.0, 0.0, 1.0, False, holds=None)
    assert prepared([np.nan, np.nan]) == [[0.0], [0.0]]
    assert column([0.0, 2.0]).width == 1


def test_other_kinds_of_numbers() -> None:
    days = column(pd.to_datetime(["2000-01-02", None, "2000-01-04"]))
    assert days == Number(median=2.0, mean=2.0, spread=1.0, marks=True, holds="times")
    zoned = pd.to_datetime(["2000-01-02", "2000-01-04"]).tz_localize("Asia/Tokyo")
    assert column(zoned) == Number(0.0, 2.0, 1.0, False, "times")
    stays = column(pd.to_timedelta(["1 day", "12 hours", "3 days"]))
    assert stays == Number(0.0, 1.5, float(np.std([1, 0.5, 3])), False, "durations")
    gaps = column(pd.array([1, None, 3], dtype="Int64"))
    assert gaps == Number(2.0, 2.0, 1.0, True)
    assert prepared([0, 1] * 5, [True, False]) == [[1.0], [0.0]]
    assert prepared([0, 1, 3], pd.Series([True, None], dtype=object))[0] == prepared([0, 1, 3])[1]


def test_numbers_that_cannot_be_prepared() -> None:
    with pytest.raises(
        ValueError, match=r"column 'one' has numbers as large as 1e\+200; divide it"
    ):
        column([1e200, 1.0])
    assert column([1e150, 1e150]).width == 1
    with pytest.raises(ValueError, match="column 'one' contains infinity; replace it by a number"):
        column([np.inf, 1.0])
    with pytest.raises(ValueError, match=r"has text now \('2 m' in row 2\); convert it"):
        prepared([1.5, 2.5], ["1", "2 m"])
    with pytest.raises(ValueError, match=r"has text now \('1' in row 1\); convert it"):
        prepared([1.5, 2.5], pd.Categorical([1, 2]))
    with pytest.raises(ValueError, match="the table has no columns"):
        Preparation().fit(np.empty((3, 0)))
    with pytest.raises(NotFittedError, match="not fitted yet"):
        Preparation().transform(np.ones((3, 1)))


TIMES = pd.to_datetime(["2024-01-03", "2024-01-05"])
STAYS = pd.to_timedelta(["1 day", "3 days"])


@pytest.mark.parametrize(
    ("before", "later", "message"),
    [
        ([1.5, 2.5], TIMES, r"was numbers in training and has times now \('2024-01-03.*' in row 1"),
        ([1.5, 2.5], STAYS, "was numbers in training and has durations now"),
        ([1.5, 2.5], ["4", "2024-01-03"], r"has text now \('2024-01-03' in row 2\)"),
        (TIMES, [np.nan, 17.0], r"was times in training and has numbers now \('17.0' in row 2\)"),
        (TIMES, STAYS, "was times in training and has durations now"),
        (TIMES, ["2024-01-03", "soon"], r"has text now \('soon' in row 2\)"),
        (TIMES, ["2024-01-03", "2024-01-05 12:30", "soon"], r"text now \('soon' in row 3\)"),
        (TIMES, ["2024-01-03T09:00+02:00", "2024-01-05T09:00+09:00", "soon"], "'soon' in row 3"),
        (TIMES, [True, False], r"was times in training and has text now \('True' in row 1\)"),
        (STAYS, ["1 day", "long"], r"was durations .* has text now \('long' in row 2\)"),
        ([np.nan, np.nan], ["a", "b"], r"has text now \('a' in row 1\)"),
    ],
)
def test_what_was_numbers_stays_numbers(before: Any, later: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"column 'one' .*{message}"):
        prepared(before, later)


def test_columns_without_values_are_of_any_kind() -> None:
    assert prepared([1.0, 3.0], pd.to_datetime([None])) == [[-2.0]]
    assert prepared(TIMES, [np.nan])[0] == prepared(TIMES, pd.to_datetime([None]))[0]
    assert prepared([np.nan, np.nan], TIMES) == [[8768.0], [8770.0]]
    old = [{"kind": "Number", "median": 0.0, "mean": 0.0, "spread": 1.0, "marks": False}]
    stored = Preparation.from_json(old)  # as files had it that did not say what columns hold
    assert stored.transform(pd.DataFrame({"one": TIMES})).tolist() == [[8768.0], [8770.0]]
    again = Preparation.from_json(Preparation().fit(pd.DataFrame({"one": TIMES})).to_json())
    with pytest.raises(ValueError, match=r"'x0' was times .* numbers now \('5.0' in row 1\)"):
        again.transform(np.array([[5.0]]))


def test_only_the_rows_that_are_asked_for_are_refused() -> None:
    preparation = Preparation().fit(pd.DataFrame({"one": [1.0, 3.0]}))
    later = pd.DataFrame({"one": ["1", "x", "3", "y"]}, index=[5, 6, 7, 8])
    with pytest.raises(ValueError, match=r"\('y' in row 9\)"):  # counted by the index
        preparation.transform(later, np.array([2, 3]))


# --------------------------------------------------------------------------------------------------
# categories


@pytest.mark.parametrize(
    ("rows", "least"), [(40, 2), (299, 2), (300, 3), (999, 9), (1000, 10), (3000, 10)]
)
def test_how_often_a_category_must_occur(rows: int, least: int) -> None:
    values = ["often"] * (rows - 2 * least + 1) + ["enough"] * least + ["rare"] * (least - 1)
    assert column(values) == Category(("often", "enough"), rare=True)


def test_options_of_the_preparation() -> None:
    many = [f"{number:02}" for number in range(60) for _ in range(2 + (number == 7))]
    found = column(many)
    assert isinstance(found, Category)
    assert (len(found.frequent), found.frequent[0], found.rare) == (50, "07", True)
    assert found.width == 51
    assert column(many, most=3).width == 4
    assert column(["a"] * 300 + ["b"] * 5, least=6).width == 2
    assert column(["a"] * 1300 + ["b"] * 5, least=6) == Category(("a",), rare=True)
    assert column(["a"] * 1300 + ["b"] * 6, least=6) == Category(("a", "b"), rare=False)


def test_categories_become_zeros_and_ones() -> None:
    values = ["a", "a", "a", "b", "b", None, None, "c"]
    assert column(values) == Category(("a", "b", "(missing)"), rare=True)
    assert prepared(values, ["b", None, "new", "a"]) == [
        *([0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0])
    ]
    assert prepared(["a", "a", "b", "b"], ["c", "b"]) == [[0, 0], [0, 1]]
    unused = pd.Categorical(["a", "b"] * 4, categories=["a", "b", "never"])
    assert column(unused) == Category(("a", "b"), rare=False)


def test_categories_of_numbers_and_flags_are_text() -> None:
    assert column(pd.Categorical([1, 2] * 10)) == Category(("1", "2"), rare=False)
    assert prepared(pd.Categorical([1, 2] * 10), [1.0, np.nan, 2.0]) == [[1, 0], [0, 0], [0, 1]]
    assert prepared(pd.Categorical([1, 2] * 10), [1.5, 2.0]) == [[0, 0], [0, 0]]
    assert prepared([True, False, True, False], [False, True]) == [[0, 1], [1, 0]]
    fitted = Preparation().fit(pd.DataFrame({"one": ["x", "y"] * 3}))
    assert fitted.transform(np.array([["y"], ["x"]], dtype=object)).tolist() == [[0, 1], [1, 0]]


def test_text_that_is_different_in_every_row() -> None:
    names = [f"n{number}" for number in range(600)]
    message = r"'one' is text, and no value occurs 6 times \('n0', 'n1', 'n2', ...\); leave it"
    with pytest.raises(ValueError, match=message) as told:
        column(names)
    assert str(told.value).endswith("(--drop one on the command line), or convert it to numbers")
    with pytest.raises(ValueError, match=r"numbers such as 12573\.02, without separators"):
        column(["12'573", "-1.0,2", "3 4"])


def test_what_is_a_column_of_flags() -> None:
    assert is_boolean(pd.Series([True, False]))
    assert is_boolean(pd.Series([True, None, np.True_], dtype=object))
    assert not is_boolean(pd.Series([True, "yes"], dtype=object))
    assert not is_boolean(pd.Series([None, None], dtype=object))
    assert not is_boolean(pd.Series([0, 1]))


# --------------------------------------------------------------------------------------------------
# tables


def test_columns_stand_side_by_side_in_float32() -> None:
    table, _ = mixed()
    preparation = Preparation(least=20).fit(table)
    found = preparation.transform(table)
    assert found.dtype == np.float32
    # Size and its gaps; three colours and rare ones; two notes and none; two flags; bit; constant.
    widths = [2, 4, 3, 2, 1, 1]
    assert [each.width for each in preparation.columns] == widths
    missing = table["size"].isna().to_numpy()
    known = table["size"].to_numpy()[~missing]
    size = (np.where(missing, np.median(known), table["size"]) - known.mean()) / known.std()
    np.testing.assert_allclose(found[:, 0], size, rtol=1e-6)
    assert (found[:, 1] == missing).all()
    for place, colour in enumerate(["red", "green", "blue", "rarest"], 2):
        assert (found[:, place] == (table["colour"] == colour)).all()
    assert (found[:, 6:9].sum(1) == 1).all()
    assert (found[:, 8] == table["note"].isna()).all()
    assert (found[:, 9:11].argmax(1) == (table["flag"] != table["flag"].mode()[0])).all()
    assert (found[:, 11] == table["bit"]).all()
    assert (found[:, 12] == 1).all()  # a column of 1 is one of 0 and 1, and stays as it is


def test_rows_are_prepared_block_by_block_as_they_would_be_at_once() -> None:
    x = np.random.default_rng(0).standard_normal((20_000, 3))  # more than a block of rows
    x[5] = np.nan
    every = Preparation().fit(x)
    rows = np.arange(1, 20_000, 2)
    whole = every.transform(x)
    filled = np.where(np.isnan(x), np.nanmedian(x, 0), x)
    expected = (filled - np.nanmean(x, 0)) / np.nanstd(x, 0)
    np.testing.assert_allclose(whole[:, ::2], expected, atol=1e-6)
    assert (whole[rows] == every.transform(x, rows)).all()
    assert Preparation().fit(x, rows).columns == Preparation().fit(x[rows]).columns
    frame = pd.DataFrame({"kind": np.array(list("ab"))[(x[:, 0] > 0).astype(int)]})
    fitted = Preparation().fit(frame, rows)
    assert (fitted.transform(frame, rows) == fitted.transform(frame.iloc[rows])).all()


def test_a_constant_column_is_not_blown_up_by_rounding() -> None:
    fitted = Preparation().fit(np.full((1000, 1), 0.1))
    assert fitted.transform(np.array([[0.6]])).item() == pytest.approx(0.5)
