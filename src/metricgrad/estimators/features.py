"""From a table to the numbers a network takes: one float32 column after the other.

    numbers       missing values become the median, and a column marks them; then mean 0, spread 1
    times         the same, in days; so are durations
    0 and 1       stay as they are
    categories    a column of 0 and 1 for each frequent one, and one for all rare ones together

Columns of a pandas DataFrame are categories where their type is category, text or bool; a missing
category is a category of its own. The columns of an array are all numbers. A category that training
did not have counts as rare.

scikit-learn's SimpleImputer, StandardScaler and OneHotEncoder are not called, for two reasons. A
million rows would be copied once for each of them, where the result is written here block by block
into one array. And fitted transformers could only be saved by pickle, where these columns are a few
numbers in the model file.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import NotFittedError

_MISSING = "(missing)"
_EPOCH = np.datetime64("2000-01-01")
_BLOCK = 8192  # rows that are written together, so that they stay in the processor's cache


@dataclass(frozen=True)
class Number:
    """A column of numbers: how it is filled in and scaled, and whether gaps are marked."""

    median: float
    mean: float
    spread: float
    marks: bool

    @property
    def width(self) -> int:
        """Number of columns that come out."""
        return 1 + self.marks

    def write(self, name: str, values: Any, out: np.ndarray) -> None:
        """Writes `[n]` values to `[n, width]`."""
        if not isinstance(values, np.ndarray):
            if not is_boolean(values):
                raise ValueError(_text_among_numbers(name, values))
            values = values.astype(object).where(values.notna(), np.nan).to_numpy(dtype=np.float64)
        values, missing = _checked(name, values)
        filled = values if missing is None else np.where(missing, self.median, values)
        np.divide(filled - self.mean, self.spread, out=out[:, 0], casting="same_kind")
        if self.marks:
            out[:, 1] = 0 if missing is None else missing


@dataclass(frozen=True)
class Category:
    """A column of categories: the frequent ones, and whether a column marks the rare ones."""

    frequent: tuple[Any, ...]
    rare: bool

    @property
    def width(self) -> int:
        """Number of columns that come out."""
        return len(self.frequent) + self.rare

    def write(self, name: str, values: Any, out: np.ndarray) -> None:
        """Writes `[n]` values to `[n, width]`."""
        import pandas as pd

        values = pd.Series(values, name=name) if isinstance(values, np.ndarray) else values
        column = pd.Index(self.frequent).get_indexer(_as_text(values))  # -1 for rare ones
        known = column >= 0
        out[:] = 0
        out[np.flatnonzero(known), column[known]] = 1
        if self.rare:
            out[:, -1] = ~known


class Preparation:
    """Turns tables and arrays into numbers, in the way that the training data was.

    Args:
        least: A category in fewer rows than this is rare. In tables below 1,000 rows the limit is
            one row in a hundred, but at least two.
        most: The most categories of a column that get a column of their own.

    Attributes:
        columns: How each column is prepared.

    Example:
        >>> Preparation().fit(np.array([[1.0, 0.0], [3.0, 1.0]])).transform(np.array([[5.0, 1.0]]))
        array([[3., 1.]], dtype=float32)
    """

    def __init__(self, least: int = 10, most: int = 50) -> None:
        self.least = least
        self.most = most
        self.columns: list[Number | Category] = []

    def fit(self, table: Any, rows: np.ndarray | None = None) -> "Preparation":
        """Learns medians, means, spreads and categories.

        Args:
            table: A pandas DataFrame, or an array `[n, columns]` of numbers.
            rows: Numbers of the rows to learn from; None takes all.

        Returns:
            The preparation itself.
        """
        self.columns = []
        for name, values in _columns(table):
            some = _some(values, slice(None) if rows is None else rows)
            numbers = isinstance(some, np.ndarray)
            self.columns.append(_number(name, some) if numbers else self._category(name, some))
        if not self.columns:
            raise ValueError("the table has no columns; pass one with at least one feature")
        return self

    def transform(self, table: Any, rows: np.ndarray | None = None) -> np.ndarray:
        """The table as numbers.

        Args:
            table: A table with the columns that `fit` was given.
            rows: Numbers of the rows to transform; None takes all.

        Returns:
            `[n, width]`, float32.
        """
        if not self.columns:
            raise NotFittedError("this preparation is not fitted yet; call fit first")
        taken = len(table) if rows is None else len(rows)
        # Memory comes from torch: NumPy asks for huge pages, which virtual machines may take ten
        # times as long to hand out.
        out = torch.empty(taken, sum(column.width for column in self.columns)).numpy()
        ends = np.cumsum([column.width for column in self.columns])
        every = list(_columns(table))
        for start in range(0, taken, _BLOCK):
            block = slice(start, start + _BLOCK)
            for column, (name, values), end in zip(self.columns, every, ends, strict=True):
                some = _some(values, block if rows is None else rows[block])
                column.write(name, some, out[block, end - column.width : end])
        return out

    def to_json(self) -> list[dict[str, Any]]:
        """What was learned of every column, ready for JSON."""
        return [{"kind": type(each).__name__, **asdict(each)} for each in self.columns]

    @classmethod
    def from_json(cls, stored: list[dict[str, Any]]) -> "Preparation":
        """A preparation that `to_json` wrote."""
        found = cls()
        for each in stored:
            facts = {name: value for name, value in each.items() if name != "kind"}
            number = each["kind"] == "Number"
            column = (
                Number(**facts) if number else Category(tuple(facts["frequent"]), facts["rare"])
            )
            found.columns.append(column)
        return found

    def _category(self, name: str, values: Any) -> Category:
        counts = _as_text(values).value_counts()
        counts = counts[counts > 0]
        least = min(self.least, max(2, len(values) // 100))
        frequent = tuple(counts[counts >= least].index[: self.most])
        if not frequent:
            example = ", ".join(repr(each) for each in list(counts.index[:3]))
            digits = all(re.fullmatch(r"-?\d[\d.,' ]*", str(each)) for each in counts.index[:3])
            hint = " such as 12573.02, without separators" if digits else ""
            raise ValueError(
                f"column {name!r} is text, and no value occurs {least} times ({example}, ...); "
                f"leave it out (--drop {name} on the command line), or convert it to numbers{hint}"
            )
        return Category(frequent, rare=len(frequent) < len(counts))


def _columns(table: Any) -> Iterator[tuple[str, Any]]:
    """Name and values of every column: an array of numbers, or a pandas Series of categories."""
    if not hasattr(table, "iloc"):
        for number in range(table.shape[1]):
            yield f"x{number}", table[:, number]
        return
    from pandas.api import types

    kinds = set(table.dtypes)
    if len(table.columns) > len(table) and kinds <= {np.dtype("float64")}:  # one by one is slow
        yield from zip(map(str, table.columns), table.to_numpy().T, strict=True)
        return
    for number, name in enumerate(table.columns):
        column = table.iloc[:, number]
        if types.is_datetime64_any_dtype(column.dtype):
            days = column.dt.tz_localize(None) if column.dt.tz is not None else column
            yield str(name), ((days - _EPOCH) / np.timedelta64(1, "D")).to_numpy(dtype=np.float64)
        elif types.is_timedelta64_dtype(column.dtype):
            yield str(name), (column / np.timedelta64(1, "D")).to_numpy(dtype=np.float64)
        elif types.is_bool_dtype(column.dtype) or not types.is_numeric_dtype(column.dtype):
            yield str(name), column
        elif types.is_extension_array_dtype(column.dtype):
            yield str(name), column.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            yield str(name), column.to_numpy()


def _some(values: Any, rows: Any) -> Any:
    """The values of some rows."""
    return values[rows] if isinstance(values, np.ndarray) else values.iloc[rows]


def _checked(name: str, values: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Values as float64, and where they are missing; None where none is."""
    values = np.asarray(values, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        if math.isfinite(values.sum()):  # the usual case, found in one pass
            return values, None
    if np.isinf(values).any():
        raise ValueError(
            f"column {name!r} contains infinity; replace it by a number, or leave the row out"
        )
    missing = np.isnan(values)
    return values, missing if missing.any() else None


def _number(name: str, values: np.ndarray) -> Number:
    """How a column of numbers is prepared; 0 and 1 stay as they are."""
    values, missing = _checked(name, values)
    known = values if missing is None else values[~missing]
    if not len(known):
        return Number(0.0, 0.0, 1.0, False)
    marks = missing is not None
    median = float(np.median(known)) if marks else 0.0
    if ((known == 0) | (known == 1)).all():
        return Number(median, 0.0, 1.0, marks)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(known.mean())
        spread = float(known.std())
    if not math.isfinite(mean + spread):
        raise ValueError(
            f"column {name!r} has numbers as large as {np.abs(known).max():.3g}; divide it by a "
            "power of ten"
        )
    return Number(median, mean, spread or 1.0, marks)


def is_boolean(values: Any) -> bool:
    """Whether a pandas Series holds True and False, with or without missing values."""
    from pandas.api import types

    return types.is_bool_dtype(values.dtype) or (
        values.dtype == object
        and values.notna().any()
        and values.dropna().map(type).isin((bool, np.bool_)).all()
    )


def _as_text(values: Any) -> Any:
    """Categories as text, missing ones by a name of their own."""
    # A column of whole numbers with gaps is read as 1.0, 2.0; without gaps it would be 1, 2.
    if values.dtype.kind == "f" and not (values % 1 > 0).any():
        values = values.astype("Int64")
    return values.astype(object).where(values.notna(), _MISSING).astype(str)


def _text_among_numbers(name: str, values: Any) -> str:
    """What is wrong with a column that was numbers in training."""
    import pandas as pd

    read: Any = pd.to_numeric(values, errors="coerce")
    wrong = values[read.isna() & values.notna()]
    example = repr(wrong.iloc[0]) if len(wrong) else str(values.dtype)
    return (
        f"column {name!r} was numbers in training and has text now ({example}); convert it, or "
        "leave these rows out"
    )
