"""Tables of pandas from files: CSV, Parquet and svmlight, packed or not; and what is wrong with them, in a sentence."""

import difflib
import gzip
import io
import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits, load_svmlight_file

from metricgrad.estimators.preparing import is_boolean

_TEXT = (".csv", ".tsv", ".txt")
_SPARSE = (".svm", ".svmlight", ".libsvm")
_KINDS = (
    "CSV (.csv, .tsv), Parquet (.parquet) or svmlight (.svm, .svmlight, .libsvm), each also as .gz"
)
_CLASSES = 20  # more values than this of numbers that are not whole are no classes
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
TARGET = "target"


def read_table(path: Path) -> Any:
    """A table from a file.

    Args:
        path: of a CSV, Parquet or svmlight file; the target of svmlight is the column "target".

    Returns:
        The table; ValueError says what is wrong with the file.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty")
    kind = kind_of(path)
    readers = (
        dict.fromkeys(_TEXT, _read_text)
        | dict.fromkeys(_SPARSE, _read_svmlight)
        | {".parquet": _read_parquet}
    )
    if kind not in readers:
        raise ValueError(f"{path} is of no kind that can be read; pass {_KINDS}")
    try:
        table = readers[kind](path)
    except pd.errors.EmptyDataError:
        raise ValueError(f"{path} is empty") from None
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as {kind.removeprefix('.')}: {error}") from None
    if not len(table):
        raise ValueError(f"{path} has columns but no rows")
    return table


def kind_of(path: Path) -> str:
    """The ending that tells what a file is, such as `.csv` of `DATA.CSV.gz`."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def like(table: Any, columns: Any, path: Path) -> Any:
    """The columns of a table that another was trained on; ValueError where it does not have them.

    Args:
        table: from the file.
        columns: names of those of the training data.
        path: of the file; svmlight does not write zeros, so a feature that is nowhere in it is 0
            throughout.

    Returns:
        The table with these columns, in this order.
    """
    missing = [name for name in columns if name not in table.columns]
    if missing and kind_of(path) in _SPARSE:
        table, missing = table.assign(**dict.fromkeys(missing, 0.0)), []
    if missing:
        raise ValueError(
            f"{path} has no column {', '.join(map(repr, missing))}, which the training data has"
        )
    return table[list(columns)]


def without(table: Any, columns: str | None) -> Any:
    """A table without some columns, named in text such as `id,date`."""
    names = [each.strip() for each in (columns or "").split(",") if each.strip()]
    unknown = [name for name in names if name not in table.columns]
    if unknown:
        raise ValueError(
            f"--drop names {', '.join(map(repr, unknown))}, which is no column of the table"
        )
    return table.drop(columns=names) if names else table


def bundled() -> Any:
    """Eights among handwritten digits, which come with scikit-learn: one in ten is one."""
    x, digit = (np.asarray(part) for part in load_digits(return_X_y=True))
    table = pd.DataFrame(
        x, columns=[f"pixel {row},{column}" for row in range(8) for column in range(8)]
    )
    return table.assign(**{TARGET: (digit == 8).astype(int)})


def split_target(table: Any, target: str, *, several: bool = True) -> tuple[Any, Any, int]:
    """Features and target.

    Args:
        table: with both.
        target: name of the column to predict.
        several: whether the target must have several values, to be trained on.

    Returns:
        The features, the target, and how many rows were left out because they have no target.
    """
    if target not in table.columns:
        names = [str(name) for name in table.columns]
        near = difflib.get_close_matches(target, names, 1)
        shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no column {target!r} among {shown}.{hint}")
    known = table[target].notna()
    missing = int((~known).sum())
    table = table[known] if missing else table
    y = table[target]
    if several and y.nunique() < 2:
        only = repr(y.iloc[0]) if len(y) else "nothing"
        raise ValueError(
            f"column {target!r} is {only} in all {len(y)} rows; there is nothing to tell apart"
        )
    if y.dtype.kind == "f" and (y == y.round()).all():
        y = y.astype(np.int64)
    elif y.dtype.kind == "f" and y.nunique() > _CLASSES:
        raise ValueError(
            f"column {target!r} has {y.nunique()} values such as {y.iloc[0]}, and classes are needed; cut it into "
            "some, at a threshold for example"
        )
    return numbers(table.drop(columns=target)), y, missing


def numbers(table: Any) -> Any:
    """The table with columns of text that are numbers, or dates as 2024-01-31, made such.

    Args:
        table: as it was read.

    Returns:
        The table; ValueError where text stands among numbers.
    """
    changed: dict[Any, Any] = {}
    for name in table.columns:
        column = table[name]
        if (
            column.dtype != object and not pd.api.types.is_string_dtype(column.dtype)
        ) or is_boolean(column):
            continue
        read: Any = pd.to_numeric(column, errors="coerce")
        wrong = read.isna() & column.notna()
        if not wrong.any():
            changed[name] = read
        elif (dates := _dates(column)) is not None:
            changed[name] = dates
        elif wrong.sum() < 0.5 * column.notna().sum():
            row = int(np.flatnonzero(wrong)[0])
            raise ValueError(
                f"column {name!r} is numbers but for {int(wrong.sum())} rows, such as {column.iloc[row]!r} in row "
                f"{row + 1}; correct them, or leave them empty if they are missing"
            )
    return table.assign(**changed) if changed else table


def _dates(column: Any) -> Any:
    """Text as times, if all of it is dates that begin with the year; None otherwise."""
    known = column.dropna()
    if not len(known) or not _DATE.match(str(known.iloc[0])):
        return None
    found = pd.to_datetime(column, format="ISO8601", errors="coerce", utc=True)
    return None if (found.isna() & column.notna()).any() else found


def _packed(path: Path) -> bool:
    return path.name.lower().endswith(".gz")


def _read_text(path: Path) -> Any:
    """A table with commas, semicolons or tabs: whichever the first line has most of."""
    with gzip.open(path, "rt") if _packed(path) else path.open() as file:
        first = file.readline()
    return pd.read_csv(path, sep=max(",;\t", key=first.count))


def _read_parquet(path: Path) -> Any:
    return pd.read_parquet(
        io.BytesIO(gzip.decompress(path.read_bytes())) if _packed(path) else path
    )


def _read_svmlight(path: Path) -> Any:
    x, y = cast(Any, load_svmlight_file(str(path)))[:2]
    table = pd.DataFrame(x.toarray(), columns=[f"x{number + 1}" for number in range(x.shape[1])])
    return table.assign(**{TARGET: y.astype(np.int64) if (y == y.round()).all() else y})
