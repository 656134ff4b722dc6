"""From a table to the numbers a network takes: one float32 column after the other.

    numbers       missing values become the median, and a column marks them; then mean 0, spread 1
    times         the same, in days; so are durations
    0 and 1       stay as they are
    categories    a column of 0 and 1 for each frequent one, and one for all rare ones together

Boosted trees take a table as it is: numbers with their gaps, and categories by their number.

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
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np
import torch
from sklearn.exceptions import NotFittedError

from metricgrad.estimators.columns import Kind, columns_of, refuse_other_kind, some_rows
from metricgrad.estimators.table_checks import refuse_huge

_MISSING = "(missing)"
_BLOCK = 8192  # rows that are written together, so that they stay in the processor's cache


@dataclass(frozen=True)
class Number:
    """A column of numbers: how it is filled in and scaled, and whether gaps are marked.

    `holds` says whether training had numbers, times or durations. None takes all three: for a
    column without any value, and for files that were written before this was stored.
    """

    median: float
    mean: float
    spread: float
    marks: bool
    holds: Kind | None = "numbers"

    @property
    def width(self) -> int:
        """Number of columns that come out."""
        return 1 + self.marks

    def write(self, name: str, values: Any, out: np.ndarray) -> None:
        """Writes `[n]` values to `[n, width]`."""
        values, missing = checked_numbers(name, _as_floats(values))
        filled = values if missing is None else np.where(missing, self.median, values)
        np.divide(filled - self.mean, self.spread, out=out[:, 0], casting="same_kind")
        if self.marks:
            out[:, 1] = 0 if missing is None else missing

    def write_raw(self, name: str, values: Any, out: np.ndarray) -> None:
        """Writes `[n]` values to `[n, 1]`, as they are; NaN is missing."""
        out[:, 0] = checked_numbers(name, _as_floats(values))[0]


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
        column = self._numbered(name, values)
        known = column >= 0
        out[:] = 0
        out[np.flatnonzero(known), column[known]] = 1
        if self.rare:
            out[:, -1] = ~known

    def write_raw(self, name: str, values: Any, out: np.ndarray) -> None:
        """Writes the number of each category to `[n, 1]`; rare ones share one, or are missing."""
        column = self._numbered(name, values)
        out[:, 0] = np.where(column >= 0, column, len(self.frequent) if self.rare else np.nan)

    def _numbered(self, name: str, values: Any) -> np.ndarray:
        """The place of each value among the frequent categories; -1 for rare ones."""
        import pandas as pd

        values = pd.Series(values, name=name) if isinstance(values, np.ndarray) else values
        return pd.Index(self.frequent).get_indexer(as_text(values))


class Preparation:
    """Turns tables and arrays into numbers, in the way that the training data was.

    Args:
        least: A category in fewer rows than this is rare. In tables below 1,000 rows the limit is
            one row in a hundred, but at least two.
        most: The most categories of a column that get a column of their own.
        raw: Whether the columns are for trees: as they are, with gaps and numbered categories.

    Attributes:
        columns: How each column is prepared.

    Example:
        >>> Preparation().fit(np.array([[1.0, 0.0], [3.0, 1.0]])).transform(np.array([[5.0, 1.0]]))
        array([[3., 1.]], dtype=float32)
    """

    def __init__(self, least: int = 10, most: int = 50, *, raw: bool = False) -> None:
        self.least = least
        self.most = most
        self.raw = raw
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
        for name, kind, values in columns_of(table):
            some = some_rows(values, slice(None) if rows is None else rows)
            numbers = kind != "categories"
            column = _number(name, some, kind) if numbers else self._category(name, some)
            self.columns.append(column)
        if not self.columns:
            raise ValueError("the table has no columns; pass one with at least one feature")
        return self

    @property
    def widths(self) -> list[int]:
        """How many columns come out of each."""
        return [1 if self.raw else column.width for column in self.columns]

    @property
    def categories(self) -> tuple[int, ...]:
        """Which columns hold categories."""
        return tuple(
            number for number, each in enumerate(self.columns) if isinstance(each, Category)
        )

    def transform(self, table: Any, rows: np.ndarray | None = None) -> np.ndarray:
        """The table as numbers.

        Args:
            table: A table with the columns that `fit` was given.
            rows: Numbers of the rows to transform; None takes all.

        Returns:
            `[n, width]`, float32; raw columns are float64.
        """
        if not self.columns:
            raise NotFittedError("this preparation is not fitted yet; call fit first")
        taken = len(table) if rows is None else len(rows)
        # Memory comes from torch: NumPy asks for huge pages, which virtual machines may take ten
        # times as long to hand out.
        widths = self.widths
        dtype = torch.float64 if self.raw else torch.float32
        out = torch.empty(taken, sum(widths), dtype=dtype).numpy()
        ends = np.cumsum(widths)
        every = list(columns_of(table))
        for number, (column, (name, kind, _)) in enumerate(zip(self.columns, every, strict=True)):
            if isinstance(column, Number) and kind != (column.holds or "numbers"):
                now = table.iloc[:, number] if hasattr(table, "iloc") else table[:, number]
                wanted = slice(None) if rows is None else rows
                refuse_other_kind(name, column.holds, some_rows(now, wanted))
        for start in range(0, taken, _BLOCK):
            block = slice(start, start + _BLOCK)
            for number, (column, (name, _, values)) in enumerate(
                zip(self.columns, every, strict=True)
            ):
                some = some_rows(values, block if rows is None else rows[block])
                write = column.write_raw if self.raw else column.write
                write(name, some, out[block, ends[number] - widths[number] : ends[number]])
        return out

    def to_json(self) -> list[dict[str, Any]]:
        """What was learned of every column, ready for JSON."""
        return [{"kind": type(each).__name__, **asdict(each)} for each in self.columns]

    @classmethod
    def from_json(cls, stored: list[dict[str, Any]], *, raw: bool = False) -> "Preparation":
        """A preparation that `to_json` wrote; ValueError or TypeError where it is damaged."""
        found = cls(raw=raw)
        found.columns = [_stored_column(**each) for each in stored]
        return found

    def _category(self, name: str, values: Any) -> Category:
        refuse_commas(name, values)
        counts = as_text(values).value_counts()
        return self.category_of(name, counts[counts > 0], len(values))

    def category_of(self, name: str, counts: Any, rows: int) -> Category:
        """How a column of categories is prepared; ValueError where none of them is frequent.

        Args:
            name: The column, for error messages.
            counts: How often each category occurs, a pandas Series from the most frequent one on.
            rows: The number of rows that were counted.
        """
        least = min(self.least, max(2, rows // 100))
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


def stored_names(names: Any, number: int) -> np.ndarray:
    """The names of columns from a model file; ValueError unless each of them has one."""
    if not all(isinstance(each, str) for each in names) or len(names) != number:
        raise ValueError(f"its {number} columns cannot have the names {names!r:.60}")
    return np.asarray(names, dtype=object)


def _stored_column(kind: str, **facts: Any) -> Number | Category:
    """A column as `to_json` describes it; older files do not say what its numbers are."""
    if kind == "Category":
        frequent = facts["frequent"]
        names = all(isinstance(each, str) for each in frequent) and isinstance(facts["rare"], bool)
        if names and len(set(frequent)) == len(frequent):
            return Category(tuple(frequent), facts["rare"])
    elif kind == "Number":
        facts.setdefault("holds", None)
        number = Number(**facts)
        scale = (number.median, number.mean, number.spread)
        finite = all(isinstance(each, float | int) and math.isfinite(each) for each in scale)
        known = isinstance(number.marks, bool) and number.holds in (None, *get_args(Kind))
        if finite and number.spread > 0 and known:
            return number
    raise ValueError(f"a column cannot be prepared as { ({'kind': kind} | facts)!r:.80}")


def checked_numbers(name: str, values: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
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


def _as_floats(values: Any) -> np.ndarray:
    """Values as an array; a pandas Series may hold objects, and several kinds of gaps."""
    if isinstance(values, np.ndarray):
        return values
    return values.astype(object).where(values.notna(), np.nan).to_numpy(dtype=np.float64)


def _number(name: str, values: np.ndarray, kind: Kind) -> Number:
    """How a column of numbers is prepared; 0 and 1 stay as they are."""
    values, missing = checked_numbers(name, values)
    known = values if missing is None else values[~missing]
    if not len(known):
        return Number(0.0, 0.0, 1.0, False, holds=None)
    marks = missing is not None
    median = float(np.median(known)) if marks else 0.0
    if ((known == 0) | (known == 1)).all():
        return Number(median, 0.0, 1.0, marks, kind)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(known.mean())
        # The mean of equal numbers may be rounded, and would leave them a tiny spread.
        spread = float(known.std()) if known.min() < known.max() else 0.0
    if not math.isfinite(mean + spread):
        refuse_huge(name, known)
    return Number(median, mean, spread or 1.0, marks, kind)


def as_text(values: Any) -> Any:
    """Categories as text, missing ones by a name of their own."""
    # A column of whole numbers with gaps is read as 1.0, 2.0; without gaps it would be 1, 2.
    if values.dtype.kind == "f" and not (values % 1 > 0).any():
        values = values.astype("Int64")
    return values.astype(object).where(values.notna(), _MISSING).astype(str)


def refuse_commas(name: str, values: Any) -> None:
    """Raises ValueError for text that is numbers with commas, such as 0,94."""
    from metricgrad.estimators.written_numbers import decimal_mark, is_text

    if not is_text(values) or decimal_mark(values) is None:
        return
    written = [each for each in values.dropna().unique() if "," in each]
    if written:
        raise ValueError(
            f"column {name!r} is text that looks like numbers, such as {written[0]!r}; convert it "
            "to numbers, or to the pandas type category if these are names"
        )
