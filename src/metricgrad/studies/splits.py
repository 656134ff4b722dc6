"""Training and test rows of a table: stratified, without scikit-learn.

Every class keeps its share in both parts, as with scikit-learn's StratifiedShuffleSplit. That is
not called, for two reasons. It draws other rows, so folders of earlier runs could not be continued,
nor published numbers reproduced. And a rare class whose share rounds to 0 would have no test row,
where it has one here.

Both parts are row numbers, so that a large table is never copied.
"""

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from metricgrad.estimators.features import Preparation
from metricgrad.estimators.table_checks import refuse_rare_class
from metricgrad.studies.own_metrics import NO_AMOUNTS, AmountColumns, own_file
from metricgrad.studies.table_files import named_in_errors, parquet_table, read_table
from metricgrad.studies.tables import (
    LabelledTable,
    bundled_table,
    refuse_unseen,
    split_target,
    with_columns,
    without_columns,
)


@dataclass(frozen=True)
class TableRows:
    """Some rows of a table `x` with target `y`: those with the numbers `rows`; None means all.

    `amount_values` are the numbers of all rows that the metric takes, by parameter.
    """

    x: Any
    y: Any
    rows: np.ndarray | None = None
    amount_values: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.y if self.rows is None else self.rows)

    @property
    def target(self) -> np.ndarray:
        """The target of the rows that are meant."""
        return self.y.to_numpy()[self._meant]

    @property
    def own_amounts(self) -> dict[str, np.ndarray]:
        """The numbers of the rows that are meant, by parameter of the metric."""
        return {name: each[self._meant] for name, each in self.amount_values.items()}

    @property
    def _meant(self) -> Any:
        return slice(None) if self.rows is None else self.rows


@dataclass(frozen=True)
class TableSplit:
    """Training and test rows, with the digests of the files they come from."""

    train: TableRows
    test: TableRows
    left_out: int
    sha256: list[str | None]


def load_table(
    data: Path | None,
    target: str = "target",
    drop: str | None = None,
    amounts: AmountColumns = NO_AMOUNTS,
    *,
    several: bool = True,
) -> LabelledTable:
    """Reads features and target from a file.

    Args:
        data: A CSV, Parquet or svmlight file, or a folder of Parquet files; None takes the digits
            that come with scikit-learn.
        target: Name of the column to predict; for the digits "target" or "odd".
        drop: Columns to leave out, separated by commas.
        amounts: Columns that are passed to the metric and are not features.
        several: Whether a target with a single value is refused, as it is for training.

    Returns:
        The table; rows without a target are left out of it and counted.

    Example:
        >>> table = load_table(None)
        >>> table.x.shape, table.left_out
        ((1797, 64), 0)
    """
    table = bundled_table(target) if data is None else read_table(data)
    with named_in_errors(data):
        own = amounts.read(table, target)
        columns = amounts.features(without_columns(table, drop))
        return LabelledTable(*split_target(columns, target, several=several), own)


def load_split(
    data: Path | None,
    target: str = "target",
    test: Path | None = None,
    test_share: float = 0.25,
    seed: int = 0,
    drop: str | None = None,
    amounts: AmountColumns = NO_AMOUNTS,
) -> TableSplit:
    """Reads training and test rows, as `metricgrad train` does.

    Args:
        data: A CSV, Parquet or svmlight file, or a folder of Parquet files; None takes the digits
            that come with scikit-learn.
        target: Name of the column to predict.
        test: A file with test data; None keeps a share of the rows of `data`.
        test_share: Share of the rows of every class that is kept for testing.
        seed: Seed for the choice of the test rows.
        drop: Columns to leave out, separated by commas.
        amounts: Columns that are passed to the metric and are not features.

    Returns:
        Both parts. Test data that does not fit the training data raises ValueError.

    Example:
        >>> split = load_split(None, test_share=0.5)
        >>> len(split.train), len(split.test)
        (898, 899)
    """
    with ThreadPoolExecutor(1) as aside:  # files are digested while they are read
        sha256 = aside.submit(digests, data, test)
        table = load_table(data, target, drop, amounts)
        if test is None:
            return TableSplit(
                *split_table(table, test_share, seed), table.left_out, sha256.result()
            )
        tested = load_table(test, target, drop, amounts, several=False)
        left_out = table.left_out + tested.left_out
        train = TableRows(table.x, table.y, amount_values=table.amount_values)
        rows = _test_rows(table, tested, test)
        same = rows.x.equals(train.x) and rows.y.equals(train.y)
        refuse_training_rows(data, test, sha256.result(), same=same)
        return TableSplit(train, rows, left_out, sha256.result())


def split_table(table: LabelledTable, share: float, seed: int) -> tuple[TableRows, TableRows]:
    """Training and test rows of a table, with what the metric takes of each row."""
    own = table.amount_values
    train, test = stratified_split(table.x, table.y, share, seed)
    return replace(train, amount_values=own), replace(test, amount_values=own)


def stratified_split(x: Any, y: Any, share: float, seed: int) -> tuple[TableRows, TableRows]:
    """Splits a table in two, so that every class has its share, at least one row, in each part."""
    number, classes = pd.factorize(y)
    counts = np.bincount(number)
    if counts.min() < 2:
        rarest = np.asarray(classes).tolist()[counts.argmin()]
        refuse_rare_class(y.name, rarest, counts.min())
    held = np.clip(np.rint(share * counts).astype(np.int64), 1, counts - 1)
    # A random key per row sorts the rows class by class, each class in random order. The first
    # `held` keys of a class are its test rows.
    key = number + np.random.default_rng(seed).random(len(y))
    end = np.sort(key)[counts.cumsum() - counts + held]
    tested = key < end[number]
    return TableRows(x, y, np.flatnonzero(~tested)), TableRows(x, y, np.flatnonzero(tested))


def _test_rows(table: LabelledTable, tested: LabelledTable, path: Path) -> TableRows:
    """The rows of a test file; ValueError where they do not fit the training data."""
    x = with_columns(tested.x, table.x.columns, path)
    y = tested.y
    refuse_unseen(y.unique(), table.y.unique(), path)
    refuse_unprepared(table.x, x, path)
    return TableRows(x, y, amount_values=tested.amount_values)


def refuse_unprepared(train: Any, test: Any, path: Path) -> None:
    """Raises ValueError where a column of the test file cannot be prepared as that for training."""
    preparation = Preparation().fit(train)
    with named_in_errors(path):
        preparation.transform(test)


def refuse_training_rows(
    data: Path | None, test: Path, sha256: list[str | None], *, same: bool
) -> None:
    """Raises ValueError if a model would be tested on what it was trained on.

    Args:
        data: The training file; None for the digits of scikit-learn.
        test: The test file, which may be the same, a link to it or a copy.
        sha256: Digests of the training file and of the test file.
        same: Whether the tables are equal, which a copy of another kind has too.
    """
    if same or sha256[0] == sha256[1]:
        raise ValueError(
            f"--test {test} has the rows of the training file {data}; pass rows that training does "
            "not see, or leave out --test to keep a share of the rows for testing"
        )


def digests(*paths: Path | None) -> list[str | None]:
    """SHA-256 of each file; None for no file, or one that does not exist.

    Of a folder of Parquet files, it is that of their names, sizes and footers.
    """

    def digest(path: Path) -> str:
        if path.is_dir():
            folder = parquet_table(path)
            assert folder is not None
            return folder.digest()
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    return [None if path is None or not path.exists() else digest(path) for path in paths]


def metric_digests(metric: str) -> list[str | None]:
    """SHA-256 of the file that has the metric, if it is a function of the user's own."""
    path = own_file(metric)
    return [] if path is None else digests(path)
