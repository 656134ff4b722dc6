"""The target of a Parquet table: classes, of which parts are seen one after the other."""

from typing import TYPE_CHECKING, Any

import numpy as np

from metricgrad.estimators.parquet_tables import ParquetTable, inner_type

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_CLASSES = 1000


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
            raise ValueError(
                f"column {self.target!r} has more than {_MOST_CLASSES:,} values such as "
                f"{next(iter(counts))!r}, too many for classes; turn it into classes, at a "
                "threshold for example"
            )

    def found(self) -> tuple[np.ndarray, np.ndarray]:
        """The classes in order, and their training rows in each group, `[groups, classes]`.

        A target with one value, or a class without training rows, raises ValueError.
        """
        if len(self.rows) < 2:
            only = repr(next(iter(self.rows))) if self.rows else "nothing"
            raise ValueError(
                f"column {self.target!r} is {only} in all {sum(self.rows.values())} rows; pass a "
                "target with several values"
            )
        classes = _class_array(list(self.rows))
        order = {value: number for number, value in enumerate(classes.tolist())}
        counts = np.zeros((len(self._trained), len(classes)), dtype=np.int64)
        for number, group in enumerate(self._trained):
            for value, count in group.items():
                counts[number, order[value]] = count
        for value, trained in zip(classes.tolist(), counts.sum(0), strict=True):
            if not trained:
                raise ValueError(
                    f"class {value!r} of column {self.target!r} is in {self.rows[value]} rows "
                    "only, too few to train and to test on; leave it out"
                )
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
