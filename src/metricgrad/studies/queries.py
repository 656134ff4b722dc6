"""Tables of queries: a row is a document with a grade, and a column says which query it answers.

A query is never cut: its documents are all training rows or all test rows, because only documents
of one query are compared with each other.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from metricgrad.studies import splits, tables
from metricgrad.studies.table_files import QUERY, named_in_errors, read_table


@dataclass(frozen=True)
class QueryRows:
    """Features of documents, their grades, and the query of each."""

    x: Any
    grades: np.ndarray
    queries: np.ndarray

    def __len__(self) -> int:
        return len(self.grades)


@dataclass(frozen=True)
class QuerySplit:
    """Training and test rows, with the digests of the files they come from."""

    train: QueryRows
    test: QueryRows
    left_out: int
    sha256: list[str | None]


def load_queries(
    data: Path | None,
    target: str,
    group: str,
    test: Path | None = None,
    test_share: float = 0.25,
    seed: int = 0,
    drop: str | None = None,
) -> QuerySplit:
    """Reads training and test rows, as `metricgrad train --group` does.

    Args:
        data: A CSV, Parquet or svmlight file; a file with `qid:` has the column `qid`.
        target: Name of the column with the grades; above 0 is relevant.
        group: Name of the column that says which query a row belongs to. It is not a feature.
        test: A file with test data; None keeps a share of the queries of `data`.
        test_share: Share of the queries that is kept for testing.
        seed: Seed for the choice of the test queries.
        drop: Columns to leave out, separated by commas.

    Returns:
        Both parts. Data that cannot be ranked raises ValueError.
    """
    rows, left_out = _read(data, target, group, drop)
    sha256 = splits.digests(data, test)
    if test is None:
        return QuerySplit(*split_queries(rows, group, test_share, seed), left_out, sha256)
    tested, more = read_queries(test, target, group, drop)
    x = tables.with_columns(tested.x, rows.x.columns, test)
    splits.refuse_unprepared(rows.x, x, test)
    same = x.equals(rows.x) and np.array_equal(tested.grades, rows.grades)
    splits.refuse_training_rows(data, test, sha256, same=same)
    return QuerySplit(rows, QueryRows(x, tested.grades, tested.queries), left_out + more, sha256)


def load_rows(data: Path | None, target: str, group: str, drop: str | None) -> QueryRows:
    """All documents of a file, not yet split, as `metricgrad compare --group` takes them."""
    return _read(data, target, group, drop)[0]


def _read(data: Path | None, target: str, group: str, drop: str | None) -> tuple[QueryRows, int]:
    """As `read_queries`; ValueError where no file was given."""
    if data is None:
        raise ValueError(f"scikit-learn's digits have no column {group!r}; pass a file of queries")
    return read_queries(data, target, group, drop)


def read_queries(
    path: Path, target: str, group: str, drop: str | None = None
) -> tuple[QueryRows, int]:
    """The documents of a file, and how many were left out because they have no grade."""
    if target == group:
        raise ValueError(f"--target and --group must be two columns; got {target!r} for both")
    table = read_table(path, queries=group == QUERY)
    with named_in_errors(path):
        return _documents(tables.without_columns(table, drop), target, group)


def _documents(table: Any, target: str, group: str) -> tuple[QueryRows, int]:
    """As `read_queries`, for a table that has been read."""
    tables.check_column(table, target)
    known = table[target].notna()
    table = table[known]
    check_queries(table, group)
    grades: Any = pd.to_numeric(table[target], errors="coerce")
    wrong = table[target][~(grades >= 0)]
    if len(wrong):
        raise ValueError(
            f"column {target!r} must have grades, numbers from 0 on; got {wrong.iloc[0]!r} in "
            f"{len(wrong)} rows"
        )
    x = tables.parsed(table.drop(columns=[target, group]))
    rows = QueryRows(x, grades.to_numpy(dtype=np.float64), pd.factorize(table[group])[0])
    return rows, int((~known).sum())


def check_queries(table: Any, group: str) -> None:
    """Raises ValueError unless every row of a table belongs to a query."""
    tables.check_column(table, group)
    missing = int(table[group].isna().sum())
    if missing:
        raise ValueError(f"column {group!r} names no query in {missing} rows; fill them in")


def split_queries(
    rows: QueryRows, group: str, share: float, seed: int
) -> tuple[QueryRows, QueryRows]:
    """A share of the queries for testing, drawn at random, and the others."""
    number = len(np.unique(rows.queries))
    if number < 3:
        raise ValueError(
            f"column {group!r} has {number} queries, too few to train and to test on; pass --test"
        )
    held = int(np.clip(round(share * number), 1, number - 2))
    tested = np.zeros(number, dtype=bool)
    tested[np.random.default_rng(seed).permutation(number)[:held]] = True
    chosen = tested[rows.queries]
    train, test = (
        QueryRows(rows.x[part], rows.grades[part], rows.queries[part]) for part in (~chosen, chosen)
    )
    return train, test
