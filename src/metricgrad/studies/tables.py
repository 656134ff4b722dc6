"""pandas DataFrames from files: CSV, Parquet, svmlight, gzipped or not.

What is wrong with a file is said in one sentence, before anything is trained: a column that does
not exist, text among numbers, a target that is the same in every row, more than memory can hold.
"""

import difflib
import gzip
import io
import math
import os
import re
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits, load_svmlight_file

from metricgrad.estimators.features import is_boolean

_TEXT = (".csv", ".tsv", ".txt")
_SPARSE = (".svm", ".svmlight", ".libsvm")
_KINDS = (
    "CSV (.csv, .tsv), Parquet (.parquet) or svmlight (.svm, .svmlight, .libsvm), each also as .gz"
)
_CLASSES = 20  # a target of fractions with more values than this is not a class
_MEMORY = 0.4  # share of the free memory that a table may take; pandas copies it
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
TARGET = "target"
QUERY = "qid"  # the column of queries of an svmlight file


@dataclass(frozen=True)
class LabelledTable:
    """Features `x`, target `y` and amounts by parameter of the metric.

    Rows without a target are left out, and counted.
    """

    x: Any
    y: Any
    left_out: int = 0
    amounts: Mapping[str, np.ndarray] = field(default_factory=dict)


def read_table(path: Path, *, queries: bool = False) -> Any:
    """The table in a file; the target of an svmlight file becomes the column "target".

    With `queries` its query ids, if it has any, become the column "qid".
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty")
    kind = _kind(path)
    sparse = partial(_read_svmlight, queries=queries)
    readers = dict.fromkeys(_TEXT, _read_text) | dict.fromkeys(_SPARSE, sparse)
    readers = readers | {".parquet": _read_parquet}
    if kind not in readers:
        raise ValueError(f"{path} is not a kind of file that can be read; pass {_KINDS}")
    try:
        table = readers[kind](path)
    except pd.errors.EmptyDataError:
        raise ValueError(f"{path} is empty") from None
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read as {kind.removeprefix('.')}: {error}") from None
    except MemoryError:
        raise ValueError(f"{path} does not fit into memory; pass fewer rows or columns") from None
    if not len(table):
        raise ValueError(f"{path} has columns but no rows")
    return table


def with_columns(table: Any, columns: Any, path: Path) -> Any:
    """The table of a file with the columns of the training data, in their order."""
    missing = [name for name in columns if name not in table.columns]
    if missing and _kind(path) in _SPARSE:
        # svmlight does not write zeros, so a feature that is nowhere in the file is 0 throughout.
        table = table.assign(**dict.fromkeys(missing, 0.0))
    elif missing:
        raise ValueError(
            f"{path} has no column {', '.join(map(repr, missing))}, which the training data has"
        )
    return table[list(columns)]


def column_names(text: str | None) -> list[str]:
    """Names of columns from text such as `id,date`."""
    return [each.strip() for each in (text or "").split(",") if each.strip()]


def without_columns(table: Any, columns: str | None) -> Any:
    """The table without some columns, named in text such as `id,date`."""
    names = column_names(columns)
    unknown = [name for name in names if name not in table.columns]
    if unknown:
        raise ValueError(
            f"--drop names {', '.join(map(repr, unknown))}, which the table does not have"
        )
    return table.drop(columns=names) if names else table


def bundled_table(target: str = TARGET) -> Any:
    """Handwritten digits, which come with scikit-learn. Which are an 8 ("target"), which "odd"?

    Eights are one in ten. Odd digits have no shape in common, so that a linear model cannot tell
    them all from even ones, and what it is trained on decides which it gives up.
    """
    x, digit = (np.asarray(part) for part in load_digits(return_X_y=True))
    targets = {TARGET: digit == 8, "odd": digit % 2 == 1}
    if target not in targets:
        raise ValueError(
            f"the bundled digits have no target {target!r}; pass --target {' or '.join(targets)}, "
            "or a file with that column"
        )
    names = [f"pixel {row},{column}" for row in range(8) for column in range(8)]
    return pd.DataFrame(x, columns=names).assign(**{target: targets[target].astype(int)})


def check_column(table: Any, target: str) -> None:
    """Raises ValueError, with the name that may be meant, where a table has no such column."""
    if target not in table.columns:
        names = [str(name) for name in table.columns]
        near = difflib.get_close_matches(target, names, 1)
        shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no column {target!r} among {shown}.{hint}")


def split_target(table: Any, target: str, *, several: bool = True) -> tuple[Any, Any, int]:
    """Features, target, and the number of rows left out because they have no target.

    A target with a single value is refused where `several` are needed, as they are for training.
    """
    check_column(table, target)
    known = table[target].notna()
    missing = int((~known).sum())
    table = table[known] if missing else table
    y = table[target]
    if several and y.nunique() < 2:
        only = repr(y.tolist()[0]) if len(y) else "nothing"
        raise ValueError(
            f"column {target!r} is {only} in all {len(y)} rows; pass a target with several values"
        )
    if y.dtype.kind == "f" and (y == y.round()).all():
        y = y.astype(np.int64)
    elif y.dtype.kind == "f" and y.nunique() > _CLASSES:
        raise ValueError(
            f"column {target!r} has {y.nunique()} values such as {y.iloc[0]}, too many for "
            "classes; turn it into classes, at a threshold for example"
        )
    return parsed(table.drop(columns=target)), y, missing


def parsed(table: Any) -> Any:
    """The table with text that is numbers, or dates such as 2024-01-31, converted to them."""
    changed: dict[Any, Any] = {}
    for name in table.columns:
        column = table[name]
        text = column.dtype == object or pd.api.types.is_string_dtype(column.dtype)
        if not text or is_boolean(column):
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
                f"column {name!r} is numbers but for {int(wrong.sum())} rows, such as "
                f"{column.iloc[row]!r} in row {row + 1}; correct them, or leave them empty if they "
                "are missing"
            )
    return table.assign(**changed) if changed else table


def _kind(path: Path) -> str:
    """The ending that says what a file is, such as `.csv` of `DATA.CSV.gz`."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _dates(column: Any) -> Any:
    """Text as times, if all of it is dates that begin with the year; None otherwise."""
    known = column.dropna()
    if not len(known) or not _DATE.match(str(known.iloc[0])):
        return None
    found = pd.to_datetime(column, format="ISO8601", errors="coerce", utc=True)
    return None if (found.isna() & column.notna()).any() else found


def _gzipped(path: Path) -> bool:
    return path.name.lower().endswith(".gz")


def _fits(size: int) -> None:
    """Raises MemoryError unless that many bytes are a part of the memory that is free."""
    free = math.inf
    if sys.platform == "linux":
        import resource

        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            used = int(Path("/proc/self/statm").read_text().split()[0])
            free = min(free, limit - used * os.sysconf("SC_PAGE_SIZE"))
    if size > _MEMORY * free:
        raise MemoryError


def _unpack(path: Path) -> None:
    """Raises MemoryError if a gzipped file is too large to unpack, having kept none of it."""
    size = 0
    with gzip.open(path) as file:
        while part := file.read(1 << 22):
            size += len(part)
            _fits(size)


def _read_text(path: Path) -> Any:
    """Columns are separated by commas, semicolons or tabs, whichever the first line has most of."""
    if _gzipped(path):
        _unpack(path)
    with gzip.open(path, "rt") if _gzipped(path) else path.open() as file:
        first = file.readline()
    return pd.read_csv(path, sep=max(",;\t", key=first.count))


def _read_parquet(path: Path) -> Any:
    from pyarrow import parquet

    if _gzipped(path):
        _unpack(path)
    source = io.BytesIO(gzip.decompress(path.read_bytes())) if _gzipped(path) else path
    stored = parquet.read_metadata(source)
    _fits(8 * stored.num_rows * stored.num_columns)  # however few bytes equal values take in it
    return pd.read_parquet(source)


def _read_svmlight(path: Path, *, queries: bool) -> Any:
    if _gzipped(path):
        _unpack(path)
    x, y, *ids = cast(Any, load_svmlight_file(str(path), query_id=queries))
    _fits(8 * x.shape[0] * x.shape[1])
    table = pd.DataFrame(x.toarray(), columns=[f"x{number + 1}" for number in range(x.shape[1])])
    table[TARGET] = y.astype(np.int64) if (y == y.round()).all() else y
    if ids and len(ids[0]):
        table[QUERY] = ids[0]
    return table
