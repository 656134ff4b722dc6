"""pandas DataFrames from files: CSV, Parquet, svmlight, gzipped or not; folders of Parquet files.

What cannot be read correctly is refused: a file that is not a table, one that memory
cannot hold, two columns of the same name, rows with more cells than the header has names. Numbers
may have decimal commas; `estimators/written_numbers.py` says how they are told from thousands.
"""

import gzip
import io
import re
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from sklearn.datasets import load_svmlight_file

from metricgrad.estimators.parquet_tables import ParquetTable, to_stored_frame
from metricgrad.estimators.table_checks import refuse_repeated
from metricgrad.estimators.written_numbers import (
    decimal_mark,
    is_text,
    plain_numbers,
    to_numbers,
)
from metricgrad.storage import check_memory

_TEXT = (".csv", ".tsv", ".txt")
_SPARSE = (".svm", ".svmlight", ".libsvm")
_KINDS = (
    "CSV (.csv, .tsv), Parquet (.parquet) or svmlight (.svm, .svmlight, .libsvm), each also as .gz"
)
TARGET = "target"
QUERY = "qid"  # the column of queries of an svmlight file


def read_table(path: Path, *, queries: bool = False) -> Any:
    """The table in a file; the target of an svmlight file becomes the column "target".

    With `queries` its query ids, if it has any, become the column "qid". The index numbers the rows
    of the file, from 0 on.
    """
    if not path.exists():
        raise ValueError(f"there is no file {path}")
    if path.is_file() and not path.stat().st_size:
        raise ValueError(f"{path} is empty")
    kind = ".parquet" if path.is_dir() else _kind(path)
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


def stored_columns(path: Path, names: list[str]) -> Any:
    """Some columns of a file that `read_table` reads, as the file has them: 007 is not 7.

    Those of a CSV file are text, unless whole numbers are written in the same way; those of an
    svmlight file are numbers, among them the target and the query ids.
    """
    kind = ".parquet" if path.is_dir() else _kind(path)
    if kind in _SPARSE:
        return read_table(path, queries=True)[names]
    if kind == ".parquet":
        return _stored_parquet(path, names)
    text = _text_reader(path)(usecols=names, dtype=str, keep_default_na=False, index_col=False)
    whole = {name: each for name in names if (each := _whole_numbers(text[name])) is not None}
    return text.assign(**whole)[names]


@contextmanager
def named_in_errors(path: Path | None) -> Iterator[None]:
    """Errors about a table say which file it comes from; None is the bundled table."""
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error) if path is None else f"{path}: {error}") from None


def parquet_table(path: Path) -> ParquetTable | None:
    """The row groups of a Parquet file, or of the files in a folder; None for others, such as .gz.

    Folders such as `year=2024` are a column, too. Files whose names begin with a dot or an
    underscore are left out, as other programs do it.
    """
    read = path.is_file() and path.stat().st_size and not _gzipped(path)
    if not path.is_dir() and not (read and _kind(path) == ".parquet"):
        return None
    from pyarrow import dataset

    files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    files = [each for each in files if each.is_file() and not each.name.startswith((".", "_"))]
    if not files:
        raise ValueError(f"the folder {path} has no Parquet files (.parquet)")
    try:
        named = [str(each) for each in files]
        if path.is_file():
            return ParquetTable(dataset.dataset(named, format="parquet"))
        return ParquetTable(
            dataset.dataset(
                named, format="parquet", partitioning="hive", partition_base_dir=str(path)
            )
        )
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as parquet: {error}") from None


def leaves_out_zeros(path: Path) -> bool:
    """Whether a file is of a kind that does not write zeros."""
    return _kind(path) in _SPARSE


def _kind(path: Path) -> str:
    """The ending that says what a file is, such as `.csv` of `DATA.CSV.gz`."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _gzipped(path: Path) -> bool:
    return path.name.lower().endswith(".gz")


def _unpack(path: Path) -> None:
    """Raises MemoryError if a gzipped file is too large to unpack, having kept none of it."""
    size = 0
    with gzip.open(path) as file:
        while part := file.read(1 << 22):
            size += len(part)
            check_memory(size)


def _read_text(path: Path) -> Any:
    """Columns are separated by commas, semicolons or tabs, whichever the header has most of."""
    if _gzipped(path):
        _unpack(path)
    read = _text_reader(path)
    refuse_repeated(read(header=None, nrows=1, dtype=str).iloc[0].dropna())
    table = _every_cell(read)
    texts = _texts(table)
    if any(decimal_mark(texts[name]) in (",", "either") for name in texts):
        # Points that pandas took for decimal ones may separate thousands in such a file.
        floats = list(table.select_dtypes("float"))
        texts = texts.assign(**read(dtype=str)[floats])
    return _with_numbers(table, texts)


def _text_reader(path: Path) -> Callable[..., Any]:
    """Reads a CSV file with options of pandas; its separator is known."""
    opened = gzip.open if _gzipped(path) else open
    with opened(path, "rt", encoding="utf-8", errors="replace") as file:
        first = next((line for line in file if line.strip()), "")
    unquoted = re.sub(r'"[^"]*"', "", first)
    return partial(pd.read_csv, path, sep=max(",;\t", key=unquoted.count))


def _every_cell(read: Callable[..., Any]) -> Any:
    """What pandas reads from a CSV file; ValueError if rows have cells that no column is for."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        warnings.simplefilter("error", pd.errors.DtypeWarning)
        try:
            # Without index_col pandas would take the first cells of such rows for names of rows.
            return read(index_col=False)
        except pd.errors.DtypeWarning:
            # Read in parts, which is twice as fast, a column is text in some of them. Read as a
            # whole, it is text in all of its rows.
            return read(index_col=False, low_memory=False)
        except pd.errors.ParserWarning:
            raise ValueError(
                "rows have more cells than the first line has names; name every column, and put "
                "numbers with decimal commas in quotes"
            ) from None


def _whole_numbers(text: Any) -> Any:
    """Text as whole numbers, if these are written in the same way; None otherwise."""
    numbers = plain_numbers(text)
    same = numbers is not None and numbers.dtype.kind == "i" and (numbers.astype(str) == text).all()
    return numbers if same else None


def _stored_parquet(path: Path, names: list[str]) -> Any:
    """Columns of Parquet files with the types that they are stored with."""
    import pyarrow as pa
    from pyarrow import parquet

    if _gzipped(path):
        source = io.BytesIO(gzip.decompress(path.read_bytes()))
        return to_stored_frame(parquet.read_table(source, columns=names))
    table = parquet_table(path)
    assert table is not None
    numbers = range(len(table.groups))
    parts = [part for number in numbers for part in table.stored_parts(number, names)]
    return to_stored_frame(pa.Table.from_batches(parts).unify_dictionaries())


def _read_parquet(path: Path) -> Any:
    from pyarrow import parquet

    if path.is_dir():
        return _read_folder(path)
    if _gzipped(path):
        _unpack(path)
    source = io.BytesIO(gzip.decompress(path.read_bytes())) if _gzipped(path) else path
    stored = parquet.read_metadata(source)
    # However few bytes equal values take in the file.
    check_memory(8 * stored.num_rows * stored.num_columns)
    refuse_repeated(stored.schema.to_arrow_schema().names)
    table = pd.read_parquet(source).reset_index(drop=True)
    return _with_numbers(table, _texts(table))


def _read_folder(path: Path) -> Any:
    found = parquet_table(path)
    assert found is not None
    check_memory(8 * found.values)
    table = found.whole()
    return _with_numbers(table, _texts(table))


def _read_svmlight(path: Path, *, queries: bool) -> Any:
    if _gzipped(path):
        _unpack(path)
    x, y, *ids = cast(Any, load_svmlight_file(str(path), query_id=queries))
    check_memory(8 * x.shape[0] * x.shape[1])
    table = pd.DataFrame(x.toarray(), columns=[f"x{number + 1}" for number in range(x.shape[1])])
    table[TARGET] = y.astype(np.int64) if (y == y.round()).all() else y
    if ids and len(ids[0]):
        table[QUERY] = ids[0]
    return table


def _texts(table: Any) -> Any:
    """The columns of a table that are text."""
    kinds = zip(table.columns, table.dtypes, strict=True)
    names = [name for name, kind in kinds if pd.api.types.is_string_dtype(kind)]
    return table[[name for name in names if is_text(table[name])]]


def _with_numbers(table: Any, texts: Any) -> Any:
    """The table with text that is numbers converted, where its decimal mark is known.

    Args:
        table: The columns as pandas reads them.
        texts: Those that may be numbers, as the file writes them.
    """
    found = {name: decimal_mark(texts[name]) for name in texts}
    known = {mark for mark in found.values() if mark in (",", ".")}
    changed: dict[str, Any] = {}
    for name, mark in found.items():
        own = known.copy().pop() if mark == "either" and len(known) == 1 else mark
        if own == "," or (own in (".", "neither") and plain_numbers(texts[name]) is None):
            changed[name] = to_numbers(texts[name], own)
    return table.assign(**changed) if changed else table
