"""What is learned of columns and classes while a table passes by, part after part.

Memory is bounded, however many rows there are.

Means and spreads are exact: those of the parts are joined by Chan's formula. The median is that of
rows drawn at random, which are all rows if there are few. Categories are counted, and of more than
10,000 the rarest are forgotten (Misra and Gries): a category that is in more than one row of 5,000
is never lost, and counts are too low by at most one row in 5,000.

References:
    T. F. Chan, G. H. Golub and R. J. LeVeque, Updating formulae and a pairwise algorithm for
    computing sample variances, 1979. J. Misra and D. Gries, Finding repeated elements, 1982.
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from metricgrad.estimators.columns import Kind
from metricgrad.estimators.features import (
    Category,
    Number,
    Preparation,
    as_text,
    checked_numbers,
    refuse_commas,
)
from metricgrad.estimators.parquet_tables import ParquetTable, inner_type
from metricgrad.estimators.table_checks import (
    refuse_huge,
    refuse_many_classes,
    refuse_one_class,
    refuse_rare_class,
)

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_COUNTED = 10_000  # categories of a column
_MOST_CLASSES = 1000


class PassingNumbers:
    """A column of numbers, times or durations.

    Args:
        name: The column, for error messages.
        kind: What its numbers stand for.
    """

    def __init__(self, name: str, kind: Kind) -> None:
        self.name = name
        self.kind: Kind = kind
        self._known = 0
        self._missing = False
        self._flags = True  # whether all numbers so far are 0 or 1
        # Everything is measured from the first number, so that a constant has a spread of exactly 0
        # and the digits of large numbers, such as times, are not lost.
        self._first = 0.0
        self._mean = 0.0
        self._squares = 0.0
        self._drawn: list[np.ndarray] = []

    def add(self, values: np.ndarray, drawn: np.ndarray) -> None:
        """Takes the values `[n]` of a part; those that are `drawn`, `[n]`, are for the median."""
        self._drawn.append(values[drawn])
        values, missing = checked_numbers(self.name, values)
        known = values if missing is None else values[~missing]
        self._missing |= missing is not None
        if not len(known):
            return
        if not self._known:
            self._first = float(known[0])
        if self._flags:
            self._flags = bool(((known == 0) | (known == 1)).all())
        with np.errstate(over="ignore", invalid="ignore"):
            moved = known - self._first
            mean = float(moved.mean())
            moved -= mean
            squares = float(moved @ moved)
        if not math.isfinite(squares):
            refuse_huge(self.name, known)
        total = self._known + len(known)
        apart = mean - self._mean
        self._squares += squares + apart**2 * self._known * len(known) / total
        self._mean += apart * len(known) / total
        self._known = total

    def column(self) -> Number:
        """How the column is prepared, by all that has passed."""
        if not self._known:
            return Number(0.0, 0.0, 1.0, False, holds=None)
        median = self._median() if self._missing else 0.0
        if self._flags:
            return Number(median, 0.0, 1.0, self._missing, self.kind)
        spread = math.sqrt(self._squares / self._known)
        return Number(median, self._first + self._mean, spread or 1.0, self._missing, self.kind)

    def _median(self) -> float:
        drawn = np.concatenate(self._drawn).astype(np.float64)
        known = drawn[~np.isnan(drawn)]
        return float(np.median(known)) if len(known) else self._first + self._mean


class PassingCategories:
    """A column of categories.

    Args:
        name: The column, for error messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._rows = 0
        self._counts: dict[str, int] = {}
        self._forgotten = False
        self._examples: list[str] = []

    def add(self, values: "pa.Array") -> None:
        """Takes the values of a part."""
        import pandas as pd

        self._rows += len(values)
        found: Any = values.value_counts()
        distinct = found.field("values").to_pandas()
        names = as_text(pd.Series(distinct)).tolist()
        self._examples = self._examples or names[:3]
        for name, count in zip(names, found.field("counts").to_pylist(), strict=True):
            self._counts[name] = self._counts.get(name, 0) + count
        if len(self._counts) > _MOST_COUNTED:
            self._forget()

    def column(self, preparation: Preparation, *, text: bool) -> Category:
        """How the column is prepared, by all that has passed.

        Args:
            preparation: Says how many rows make a category frequent.
            text: Whether the column is text, which must not be numbers with decimal commas.
        """
        import pandas as pd

        counts: Any = pd.Series(self._counts or dict.fromkeys(self._examples, 1), dtype=np.int64)
        counts = counts.sort_values(ascending=False, kind="stable")
        if text:
            refuse_commas(self.name, pd.Series(counts.index[counts.index != "(missing)"]))
        found = preparation.category_of(self.name, counts, self._rows)
        return Category(found.frequent, rare=found.rare or self._forgotten)

    def _forget(self) -> None:
        """Lowers all counts by the same number, so that fewer than half of them remain."""
        self._forgotten = True
        counts = np.fromiter(self._counts.values(), dtype=np.int64)
        taken = int(np.sort(counts)[-_MOST_COUNTED // 2])
        self._counts = {
            name: count - taken for name, count in self._counts.items() if count > taken
        }


class ClassCounts:
    """How many rows every class has, in all rows and among the training rows of each row group.

    Args:
        target: The column with the classes, for error messages.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.rows: dict[Any, int] = {}
        self._trained: list[dict[Any, int]] = []

    def next_group(self) -> None:
        """The parts that follow belong to the next row group."""
        self._trained.append({})

    def add(self, values: Any, trained: Any) -> None:
        """Takes the classes of a part, and of those of its rows that are trained on."""
        self._count(values, self.rows)
        self._count(trained, self._trained[-1])

    def _count(self, values: Any, counts: dict[Any, int]) -> None:
        for found in values.value_counts().to_pylist():
            value = found["values"]
            if value is not None and value == value:
                counts[value] = counts.get(value, 0) + found["counts"]
        if len(counts) > _MOST_CLASSES:
            refuse_many_classes(
                self.target, f"more than {_MOST_CLASSES:,}", repr(next(iter(counts)))
            )

    def found(self) -> tuple[np.ndarray, np.ndarray]:
        """The classes in order, and their training rows in each group, `[groups, classes]`.

        A target with one value, or a class without training rows, raises ValueError.
        """
        refuse_one_class(self.target, list(self.rows), sum(self.rows.values()))
        classes = _class_array(list(self.rows))
        order = {value: number for number, value in enumerate(classes.tolist())}
        counts = np.zeros((len(self._trained), len(classes)), dtype=np.int64)
        for number, group in enumerate(self._trained):
            for value, count in group.items():
                counts[number, order[value]] = count
        for value, trained in zip(classes.tolist(), counts.sum(0), strict=True):
            if not trained:
                refuse_rare_class(self.target, value, self.rows[value])
        return classes, counts


def refuse_no_classes(table: ParquetTable, target: str) -> None:
    """Raises ValueError where there is no such column, or one that cannot have classes."""
    from pyarrow import types

    table.check_column(target)
    inner = inner_type(table.kind(target))
    known = (
        types.is_integer, types.is_floating, types.is_decimal, types.is_boolean, types.is_string,
        types.is_large_string, types.is_string_view,
    )  # fmt: skip
    if not any(check(inner) for check in known):
        raise ValueError(
            f"column {target!r} has values of the type {table.kind(target)}, which cannot be "
            "classes; pass a target of numbers, text or booleans"
        )


def target_of(part: "pa.RecordBatch | pa.Table", target: str) -> Any:
    """The target of some rows, an Arrow array of plain values."""
    import pyarrow as pa

    found: Any = part.column(target)
    found = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    return found.dictionary_decode() if pa.types.is_dictionary(found.type) else found


def is_known(values: Any) -> np.ndarray:
    """Which values of an Arrow array are neither missing nor NaN, `[n]`."""
    return ~values.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)


def class_values(values: Any) -> np.ndarray:
    """Known values of an Arrow array as classes; floats that are whole numbers become integers."""
    found = values.to_pandas().to_numpy()
    whole = found.dtype.kind == "f" and (found == found.round()).all()
    return found.astype(np.int64) if whole else found


def class_numbers(values: Any, classes: np.ndarray) -> np.ndarray:
    """The numbers of the classes of an Arrow array, `[n]`; -1 where there is none."""
    import pandas as pd

    return pd.Index(classes).get_indexer(values.to_pandas())


def _class_array(values: list[Any]) -> np.ndarray:
    """Classes in order, as scikit-learn has them."""
    if all(isinstance(each, float) and each.is_integer() for each in values):
        values = [int(each) for each in values]
    text = any(isinstance(each, str) for each in values)
    return np.asarray(sorted(values), dtype=object if text else None)
