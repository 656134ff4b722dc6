"""Training and test rows of a table, as row numbers: a large table is never copied.

Every class keeps its share in both parts, as with scikit-learn's `StratifiedShuffleSplit`. That is
not called here: it draws other rows, so earlier results could not be reproduced, and it gives rare
classes no row of the test part when their share rounds to 0, where this gives them one.
"""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from metricgrad.estimators.features import Preparation
from metricgrad.studies.tables import (
    LabelledTable,
    load_table,
    read_table,
    split_target,
    with_columns,
    without_columns,
)


@dataclass(frozen=True)
class TableRows:
    """Some rows of a table `x` with target `y`: those with the numbers `rows`; None means all."""

    x: Any
    y: Any
    rows: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.y if self.rows is None else self.rows)

    @property
    def target(self) -> np.ndarray:
        """The target of the rows that are meant."""
        return self.y.to_numpy()[slice(None) if self.rows is None else self.rows]


@dataclass(frozen=True)
class TableSplit:
    """Training and test rows, with the digests of the files they come from."""

    train: TableRows
    test: TableRows
    left_out: int
    sha256: list[str | None]


def load_split(
    data: Path | None,
    target: str = "target",
    test: Path | None = None,
    test_share: float = 0.25,
    seed: int = 0,
    drop: str | None = None,
) -> TableSplit:
    """Reads training and test rows, as `metricgrad train` does.

    Args:
        data: A CSV, Parquet or svmlight file; None takes the digits that come with scikit-learn.
        target: Name of the column to predict.
        test: A file with test data; None keeps a share of the rows of `data`.
        test_share: Share of the rows of every class that is kept for testing.
        seed: Decides which rows are kept.
        drop: Columns to leave out, separated by commas.

    Returns:
        Both parts. Test data that does not fit the training data raises ValueError.

    Example:
        >>> split = load_split(None, test_share=0.5)
        >>> len(split.train), len(split.test)
        (898, 899)
    """
    with ThreadPoolExecutor(1) as aside:  # files are digested while they are read
        sha256 = aside.submit(digests, data, test)
        table = load_table(data, target, drop)
        if test is None:
            train, tested = stratified_split(table.x, table.y, test_share, seed)
            return TableSplit(train, tested, table.left_out, sha256.result())
        tested, left_out = _test_rows(table, test, target, drop)
        train = TableRows(table.x, table.y)
        return TableSplit(train, tested, table.left_out + left_out, sha256.result())


def stratified_split(x: Any, y: Any, share: float, seed: int) -> tuple[TableRows, TableRows]:
    """Splits a table in two, so that every class has its share, at least one row, in each part."""
    number, classes = pd.factorize(y)
    counts = np.bincount(number)
    if counts.min() < 2:
        rarest = np.asarray(classes).tolist()[counts.argmin()]
        raise ValueError(
            f"class {rarest!r} of column {y.name!r} is in {counts.min()} rows only, too few to "
            "train and to test on; leave it out, or pass --test"
        )
    held = np.clip(np.rint(share * counts).astype(np.int64), 1, counts - 1)
    # A random key per row sorts the rows class by class, each class in random order. The first
    # `held` keys of a class are its test rows.
    key = number + np.random.default_rng(seed).random(len(y))
    end = np.sort(key)[counts.cumsum() - counts + held]
    tested = key < end[number]
    return TableRows(x, y, np.flatnonzero(~tested)), TableRows(x, y, np.flatnonzero(tested))


def _test_rows(
    table: LabelledTable, test: Path, target: str, drop: str | None
) -> tuple[TableRows, int]:
    """Rows of a test file, and how many have no target; ValueError where they do not fit."""
    x, y, left_out = split_target(without_columns(read_table(test), drop), target, several=False)
    x = with_columns(x, table.x.columns, test)
    unseen = sorted(set(y.unique().tolist()) - set(table.y.unique().tolist()), key=str)
    if unseen:
        raise ValueError(
            f"{test} has classes that the training data does not have: "
            f"{', '.join(map(repr, unseen))}"
        )
    Preparation().fit(table.x).transform(x)  # raises where a column cannot be prepared
    return TableRows(x, y), left_out


def digests(*paths: Path | None) -> list[str | None]:
    """SHA-256 of each file; None for no file, or one that does not exist."""

    def digest(path: Path) -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    return [None if path is None or not path.is_file() else digest(path) for path in paths]
