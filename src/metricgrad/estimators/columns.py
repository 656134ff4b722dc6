"""What the columns of a table hold: numbers, times, durations or categories.

The columns of an array are all numbers. Those of a pandas DataFrame say it by their type: category,
text and bool are categories. A column that was numbers in training has to be numbers later, too: as
days since 2000 a date would pass for a number, and for a prediction that means nothing.
"""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from sklearn.utils.validation import validate_data

from metricgrad.estimators.sparse import is_sparse, sparse_columns

Kind = Literal["numbers", "times", "durations", "categories"]

_EPOCH = np.datetime64("2000-01-01")
_DAY = np.timedelta64(1, "D")


def checked_table(
    estimator: Any, x: Any, *, reset: bool, y: Any = None, sparse: bool = False
) -> tuple[Any, Any]:
    """Features and target after scikit-learn's checks; a DataFrame keeps its column types.

    With `reset` the estimator learns the names and the number of columns, else it compares them.
    With `sparse`, tables of SciPy stay sparse; they are refused otherwise.
    """
    if hasattr(x, "iloc"):
        validate_data(estimator, x, reset=reset, skip_check_array=True)
        if y is not None and len(x) != len(y):
            raise ValueError(
                f"X and y must have the same number of rows; got {len(x)} and {len(y)}"
            )
        return x, y
    checks: dict[str, Any] = {"ensure_all_finite": "allow-nan", "dtype": "numeric"}
    checks["accept_sparse"] = "csr" if sparse else False
    if not reset:
        return validate_data(estimator, x, reset=False, **checks), None
    table, y = validate_data(estimator, x, y, reset=True, multi_output=True, **checks)
    return table, y


def columns_of(table: Any) -> Iterator[tuple[str, Kind, Any]]:
    """Name, kind and values of every column: an array, or a pandas Series of categories.

    Times are days since 2000, and durations are days.
    """
    if is_sparse(table):
        for number, values in enumerate(sparse_columns(table)):
            yield f"x{number}", "numbers", values
        return
    if not hasattr(table, "iloc"):
        for number in range(table.shape[1]):
            yield f"x{number}", "numbers", table[:, number]
        return
    if len(table.columns) > len(table) and set(table.dtypes) <= {np.dtype("float64")}:
        # Columns are slow to take one by one.
        for name, values in zip(map(str, table.columns), table.to_numpy().T, strict=True):
            yield name, "numbers", values
        return
    for number, name in enumerate(table.columns):
        column = table.iloc[:, number]
        kind = _kind(column)
        yield str(name), kind, column if kind == "categories" else _as_array(column, kind)


def some_rows(values: Any, rows: Any) -> Any:
    """The values of some rows."""
    return values[rows] if isinstance(values, np.ndarray) else values.iloc[rows]


def is_boolean(values: Any) -> bool:
    """Whether a pandas Series holds True and False, with or without missing values."""
    from pandas.api import types

    return types.is_bool_dtype(values.dtype) or (
        values.dtype == object
        and values.notna().any()
        and values.dropna().map(type).isin((bool, np.bool_)).all()
    )


def refuse_other_kind(name: str, before: Kind | None, values: Any) -> None:
    """Raises ValueError for a column that is not what it was in training, with a row.

    True and False pass for numbers, and so does a column without any value.

    Args:
        name: The column, as the sentence names it.
        before: What training had; None takes everything but text.
        values: The column now, a pandas Series or an array of numbers.
    """
    import pandas as pd

    from metricgrad.estimators.written_numbers import row_number

    column: Any = pd.Series(values)
    now = _kind(column)
    known = column[column.notna()]
    if now == before or not len(known):
        return
    if now == "categories":
        if is_boolean(column) and before in ("numbers", None):
            return
        wrong = known[_unread(known, before)]
        known = wrong if len(wrong) else known
    elif before is None:
        return
    raise ValueError(
        f"column {name!r} was {before or 'numbers'} in training and has "
        f"{'text' if now == 'categories' else now} now ({str(known.iloc[0])!r} in row "
        f"{row_number(known, 0)}); convert it, or leave these rows out"
    )


def _unread(column: Any, wanted: Kind | None) -> Any:
    """Which values cannot be read as numbers, or as times where these are wanted."""
    import pandas as pd

    if wanted == "times":
        return pd.to_datetime(column, format="ISO8601", errors="coerce", utc=True).isna()
    if wanted == "durations":
        return pd.to_timedelta(column, errors="coerce").isna()
    numbers: Any = pd.to_numeric(column, errors="coerce")
    return numbers.isna()


def _kind(column: Any) -> Kind:
    from pandas.api import types

    if types.is_datetime64_any_dtype(column.dtype):
        return "times"
    if types.is_timedelta64_dtype(column.dtype):
        return "durations"
    if types.is_bool_dtype(column.dtype) or not types.is_numeric_dtype(column.dtype):
        return "categories"
    return "numbers"


def _as_array(column: Any, kind: Kind) -> np.ndarray:
    from pandas.api import types

    if kind == "times":
        days = column.dt.tz_localize(None) if column.dt.tz is not None else column
        return ((days - _EPOCH) / _DAY).to_numpy(dtype=np.float64)
    if kind == "durations":
        return (column / _DAY).to_numpy(dtype=np.float64)
    if types.is_extension_array_dtype(column.dtype):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    return column.to_numpy()
