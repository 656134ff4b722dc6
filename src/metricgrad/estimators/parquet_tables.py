"""Parquet files as row groups, which are read one after the other and never held together.

A Parquet file is written in row groups, usually of 50,000 to a million rows, and each can be read
without the others. Here a group is read in parts of some thousand rows, so that even a file of a
single group is never decoded as a whole. All files must have the same columns; what cannot be a
feature, such as lists, is refused before anything is read.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from metricgrad.estimators.table_checks import refuse_repeated, refuse_unknown

if TYPE_CHECKING:
    import pyarrow as pa

PART = 65_536  # rows that are decoded together
_BUFFER = 2**20  # bytes of a column that are read from the file at once


class RowGroup(NamedTuple):
    """One row group: the number of its file, its own number there, and how many rows it has."""

    file: int
    number: int
    rows: int


class ParquetTable:
    """The row groups of a `pyarrow.dataset.Dataset` of Parquet files.

    Args:
        dataset: Files with the same columns, such as `pyarrow.dataset.dataset("folder")`.

    Attributes:
        names: The columns, without the index that pandas may have stored.
        groups: The row groups that have rows, in the order of the files.
    """

    def __init__(self, dataset: Any) -> None:
        if not is_parquet_dataset(dataset):
            raise ValueError(
                f"a table is streamed from Parquet files only; got a {type(dataset).__name__}. "
                'Pass pyarrow.dataset.dataset("folder"), or a table in memory'
            )
        self._files: list[Any] = list(dataset.get_fragments())
        self._schema: pa.Schema = dataset.schema
        self._constants = [_partition(each) for each in self._files]
        index = _pandas_index(self._schema)
        self.names = [name for name in self._schema.names if name not in index]
        refuse_repeated(self.names)
        for file, constants in zip(self._files, self._constants, strict=True):
            _refuse_other_schema(self._schema, file, self._files[0], constants)
        self.groups = [
            RowGroup(number, group.id, group.num_rows)
            for number, file in enumerate(self._files)
            for group in file.row_groups
            if group.num_rows
        ]

    @property
    def rows(self) -> int:
        """The number of rows of all files."""
        return sum(group.rows for group in self.groups)

    @property
    def values(self) -> int:
        """Rows times columns."""
        return self.rows * len(self.names)

    def kind(self, name: str) -> "pa.DataType":
        """The Arrow type of a column."""
        return self._schema.field(name).type

    def check_column(self, name: str) -> None:
        """Raises ValueError, with the name that may be meant, where there is no such column."""
        refuse_unknown(name, self.names)

    def features(self, without: Sequence[str]) -> list[str]:
        """The columns but for some; ValueError for one that cannot be a feature."""
        names = [name for name in self.names if name not in without]
        for name in names:
            refuse_nested(name, self.kind(name))
        if not names:
            raise ValueError("the table has no columns; pass one with at least one feature")
        return names

    def parts(self, number: int, columns: list[str]) -> "Iterator[pa.RecordBatch]":
        """Some columns of a row group, in parts of at most 65,536 rows, as features have them."""
        return map(plain_part, self.stored_parts(number, columns))

    def stored_parts(self, number: int, columns: list[str]) -> "Iterator[pa.RecordBatch]":
        """The same with the types that the files have."""
        import pyarrow as pa
        from pyarrow import parquet

        group = self.groups[number]
        constants = self._constants[group.file]
        stored = [name for name in columns if name not in constants]
        # Without a buffer, pyarrow would read the bytes of a whole group before decoding them.
        with (
            self._files[group.file].open() as source,
            parquet.ParquetFile(
                source,
                metadata=self._files[group.file].metadata,
                buffer_size=_BUFFER,
                pre_buffer=False,
            ) as file,
        ):
            for batch in file.iter_batches(PART, row_groups=[group.number], columns=stored):
                if batch.schema.names == columns:
                    yield batch
                    continue
                arrays = [
                    batch.column(name)
                    if name not in constants
                    else pa.array([constants[name]] * len(batch)).cast(self.kind(name))
                    for name in columns
                ]
                yield pa.RecordBatch.from_arrays(arrays, names=columns)

    def frames(self, columns: list[str]) -> Iterator[Any]:
        """Some columns of all rows as pandas DataFrames, in parts, in the order of the files."""
        for number in range(len(self.groups)):
            yield from map(to_frame, self.parts(number, columns))

    def whole(self) -> Any:
        """All rows as one pandas DataFrame."""
        import pandas as pd
        import pyarrow as pa

        numbers = range(len(self.groups))
        parts = [part for number in numbers for part in self.parts(number, self.names)]
        if not parts:
            return pd.DataFrame(columns=self.names)
        # Row groups number the same categories differently.
        return to_frame(pa.Table.from_batches(parts).unify_dictionaries())

    def digest(self) -> str:
        """SHA-256 of names, sizes and footers, which know the bounds and the place of all columns.

        A table of many gigabytes is never read for it.
        """
        found = hashlib.sha256()
        for file in self._files:
            with file.open() as source:
                size = source.size()
                source.seek(size - 8)
                length = int.from_bytes(source.read(4), "little")
                source.seek(size - 8 - length)
                found.update(f"{file.path.rsplit('/', 1)[-1]} {size} ".encode())
                found.update(source.read(length))
        return found.hexdigest()


def is_parquet_dataset(data: Any) -> bool:
    """Whether data is a pyarrow dataset whose files are Parquet; False for anything else."""
    if not is_dataset(data):
        return False
    from pyarrow import dataset

    return isinstance(data, dataset.FileSystemDataset) and isinstance(
        data.format, dataset.ParquetFileFormat
    )


def is_dataset(data: Any) -> bool:
    """Whether data is a pyarrow dataset, without importing pyarrow for data that is not."""
    return any(each.__module__ == "pyarrow._dataset" for each in type(data).__mro__)


def to_frame(batch: "pa.RecordBatch | pa.Table") -> Any:
    """A table, or a part of one, as a pandas DataFrame."""
    return batch.to_pandas(split_blocks=True, date_as_object=False)


def to_stored_frame(batch: "pa.RecordBatch | pa.Table") -> Any:
    """The same with values as they are stored: whole numbers with gaps do not become floats."""
    return batch.to_pandas(integer_object_nulls=True, ignore_metadata=True)


def plain_part(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    """Columns as features have them.

    Numbers with a fixed number of digits become floats, and days times, as pandas has them.
    """
    import pyarrow as pa

    kinds = [_plain(kind) for kind in batch.schema.types]
    if kinds == batch.schema.types:
        return batch
    arrays = [each.cast(kind) for each, kind in zip(batch.columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def inner_type(kind: Any) -> "pa.DataType":
    """The type of the values themselves, where a column stores each of them once."""
    from pyarrow import types

    return kind.value_type if types.is_dictionary(kind) else kind


def is_text_type(kind: "pa.DataType") -> bool:
    """Whether a column is text; one that stores each value once has names, not text."""
    from pyarrow import types

    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def is_category(kind: "pa.DataType") -> bool:
    """Whether a column becomes categories, not numbers or times."""
    from pyarrow import types

    known = (types.is_integer, types.is_floating, types.is_decimal, types.is_temporal)
    return not any(check(kind) for check in known)


def refuse_nested(name: str, kind: "pa.DataType") -> None:
    """Raises ValueError for a column of lists, structures, bytes or times of the day."""
    from pyarrow import types

    known = (
        types.is_integer, types.is_floating, types.is_decimal, types.is_boolean, types.is_string,
        types.is_large_string, types.is_string_view, types.is_date, types.is_timestamp,
        types.is_duration, types.is_null,
    )  # fmt: skip
    if not any(check(inner_type(kind)) for check in known):
        raise ValueError(
            f"column {name!r} has values of the type {kind}, which cannot be features; convert it "
            f"to numbers or text, or leave it out (--drop {name} on the command line)"
        )


def _plain(kind: "pa.DataType") -> "pa.DataType":
    """The type as which a column is read."""
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        return pa.float64()
    return pa.timestamp("ms") if pa.types.is_date(kind) else kind


def _partition(file: Any) -> dict[str, Any]:
    """Columns that the folders of a file name, as in `year=2024`, with their values there."""
    from pyarrow import dataset

    return dataset.get_partition_keys(file.partition_expression)


def _pandas_index(schema: "pa.Schema") -> set[str]:
    """Columns in which pandas has stored the index, which is no feature."""
    stored = schema.pandas_metadata or {}
    return {each for each in stored.get("index_columns", []) if isinstance(each, str)}


def _refuse_other_schema(
    schema: "pa.Schema", file: Any, first: Any, constants: dict[str, Any]
) -> None:
    """Raises ValueError for a file whose columns, or their types, are not those of the table."""
    found = {each.name: each.type for each in file.physical_schema}
    more = [name for name in found if name not in first.physical_schema.names]
    if more:
        raise ValueError(
            f"{file.path} has the column {more[0]!r}, which {first.path} does not have; pass files "
            "with the same columns"
        )
    for field in schema:
        if field.name in constants:
            continue
        if field.name not in found:
            raise ValueError(
                f"{file.path} has no column {field.name!r}, which {first.path} has; pass files "
                "with the same columns"
            )
        if found[field.name] != field.type:
            raise ValueError(
                f"column {field.name!r} is {found[field.name]} in {file.path} and {field.type} in "
                f"{first.path}; write all files with the same types"
            )
