"""From a table to numbers a network can take: one float32 column after the other.

    numbers       missing values become the median, with a column that says so; then mean 0 and spread 1
    times         the same, in days; so are durations
    0 and 1       stay as they are
    categories    a column of 0 and 1 for each that is frequent enough, one for all rare ones; missing is one of them

Columns of a pandas table are categories where their type is category, text or bool; arrays are
numbers throughout. What was not seen in training, such as a new category, counts as rare.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import NotFittedError

_MISSING = "(missing)"
_EPOCH = np.datetime64("2000-01-01")
_BLOCK = (
    8192  # rows that are written together: a block of the result stays in the processor's cache
)


@dataclass(frozen=True)
class Number:
    """A column of numbers: how it is filled in and scaled, and whether a column says what was missing."""

    median: float
    mean: float
    spread: float
    marks: bool

    @property
    def width(self) -> int:
        """Columns that come out."""
        return 1 + self.marks

    def write(self, name: str, values: Any, out: np.ndarray) -> None:
        """Writes `[n]` values to `[n, width]`."""
        if not isinstance(values, np.ndarray):
            if not is_boolean(values):
                raise ValueError(_text_in_numbers(name, values))
            values = values.astype(object).where(values.notna(), np.nan).to_numpy(dtype=np.float64)
        values, missing = _checked(name, values)
        scaled = (values if missing is None else np.where(missing, self.median, values)) - self.mean
        np.divide(scaled, self.spread, out=out[:, 0], casting="same_kind")
        if self.marks:
            out[:, 1] = 0 if missing is None else missing


@dataclass(frozen=True)
class Category:
    """A column of categories: those that are frequent, and whether there are rare ones."""

    frequent: tuple[Any, ...]
    rare: bool

    @property
    def width(self) -> int:
        """Columns that come out."""
        return len(self.frequent) + self.rare

    def write(self, name: str, values: Any, out: np.ndarray) -> None:
        """Writes `[n]` values to `[n, width]`."""
        import pandas as pd

        values = pd.Series(values, name=name) if isinstance(values, np.ndarray) else values
        place = pd.Index(self.frequent).get_indexer(
            _filled(values)
        )  # -1 for those that are not frequent
        out[:] = 0
        known = place >= 0
        out[np.flatnonzero(known), place[known]] = 1
        if self.rare:
            out[:, -1] = ~known


class Preparation:
    """Prepares tables and arrays as the training data was.

    Args:
        least: how often a category must be there not to be rare; in tables below 1,000 rows, a
            hundredth of them.
        most: categories of a column that get one of their own.

    Attributes:
        columns: how each column is prepared.
    """

    def __init__(self, least: int = 10, most: int = 50) -> None:
        self.least, self.most = least, most
        self.columns: list[Number | Category] = []

    def fit(self, table: Any, rows: np.ndarray | None = None) -> "Preparation":
        """Learns medians, means, spreads and categories.

        Args:
            table: a pandas table, or an array `[n, columns]` of numbers.
            rows: which of its rows to learn from; None takes all.

        Returns:
            Itself.
        """
        self.columns = []
        for name, values in _each(table):
            some = _some(values, slice(None) if rows is None else rows)
            column = (
                _number(name, some) if isinstance(some, np.ndarray) else self._category(name, some)
            )
            self.columns.append(column)
        if not self.columns:
            raise ValueError("the table has no columns; there is nothing to learn from")
        return self

    def transform(self, table: Any, rows: np.ndarray | None = None) -> np.ndarray:
        """The table as numbers, float32.

        Args:
            table: with the columns that `fit` saw.
            rows: which of its rows; None takes all.

        Returns:
            `[n, width]`.
        """
        if not self.columns:
            raise NotFittedError("this preparation has seen no table yet; call fit first")
        taken = len(table) if rows is None else len(rows)
        # From torch: numpy asks for huge pages, which virtual machines may take ten times as long
        # to hand out.
        out = torch.empty(taken, sum(column.width for column in self.columns)).numpy()
        ends = np.cumsum([column.width for column in self.columns])
        every = list(_each(table))
        for start in range(0, taken, _BLOCK):
            block = slice(start, start + _BLOCK)
            for column, (name, values), end in zip(self.columns, every, ends, strict=True):
                some = _some(values, block if rows is None else rows[block])
                column.write(name, some, out[block, end - column.width : end])
        return out

    def _category(self, name: str, values: Any) -> Category:
        counts = _filled(values).value_counts()
        counts = counts[counts > 0]
        least = min(self.least, max(2, len(values) // 100))
        frequent = tuple(counts[counts >= least].index[: self.most])
        if not frequent:
            example = ", ".join(repr(each) for each in list(counts.index[:3]))
            marks = all(re.fullmatch(r"-?\d[\d.,' ]*", str(each)) for each in counts.index[:3])
            hint = ", written as 12573.02, without other marks" if marks else ""
            raise ValueError(
                f"column {name!r} is text, and no value is there {least} times ({example}, ...); leave it out (--drop "
                f"{name} on the command line), or convert it to numbers{hint}"
            )
        return Category(frequent, rare=len(frequent) < len(counts))


def _each(table: Any) -> Iterator[tuple[str, Any]]:
    """Name and values of every column, not copied: arrays of numbers, or a pandas series of categories."""
    if not hasattr(table, "iloc"):
        for number in range(table.shape[1]):
            yield f"x{number}", table[:, number]
        return
    from pandas.api import types

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
    """Some rows of a column."""
    return values[rows] if isinstance(values, np.ndarray) else values.iloc[rows]


def _checked(name: str, values: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Numbers as they are reckoned with, and where they are missing; None is nowhere."""
    values = np.asarray(values, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        if math.isfinite(values.sum()):  # the usual case, told in one pass
            return values, None
    if np.isinf(values).any():
        raise ValueError(
            f"column {name!r} has infinity in it; replace it by a number or leave the row out"
        )
    missing = np.isnan(values)
    return values, missing if missing.any() else None


def _number(name: str, values: np.ndarray) -> Number:
    values, missing = _checked(name, values)
    known = values if missing is None else values[~missing]
    if not len(known):
        return Number(0.0, 0.0, 1.0, False)
    marks = missing is not None
    median = float(np.median(known)) if marks else 0.0
    if ((known == 0) | (known == 1)).all():
        return Number(median, 0.0, 1.0, marks)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, spread = float(known.mean()), float(known.std())
    if not math.isfinite(mean + spread):
        raise ValueError(
            f"column {name!r} has numbers as large as {np.abs(known).max():.3g}; divide it by some power of ten"
        )
    return Number(median, mean, spread or 1.0, marks)


def is_boolean(values: Any) -> bool:
    """Whether a pandas series holds True and False, or nothing."""
    from pandas.api import types

    return types.is_bool_dtype(values.dtype) or (
        values.dtype == object
        and values.notna().any()
        and values.dropna().map(type).isin((bool, np.bool_)).all()
    )


def _filled(values: Any) -> Any:
    """Categories as text, missing ones by a name of their own; 1.0 is 1, as which it would be read without gaps."""
    if values.dtype.kind == "f" and not (values % 1 > 0).any():
        values = values.astype("Int64")
    return values.astype(object).where(values.notna(), _MISSING).astype(str)


def _text_in_numbers(name: str, values: Any) -> str:
    import pandas as pd

    read: Any = pd.to_numeric(values, errors="coerce")
    wrong = values[read.isna() & values.notna()]
    example = repr(wrong.iloc[0]) if len(wrong) else str(values.dtype)
    return f"column {name!r} was numbers in training and has text now ({example}); convert it, or leave these rows out"
