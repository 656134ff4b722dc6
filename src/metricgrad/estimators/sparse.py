"""Sparse tables: prepared block by block, so that the table is never dense as a whole in float64.

Models take dense features. If these would not fit into memory, a sentence says so
before anything is allocated.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from scipy.sparse import issparse

from metricgrad.storage import check_memory

_BLOCK_VALUES = 1 << 22  # of a dense block, in float64


def is_sparse(table: Any) -> bool:
    """Whether a table is a sparse matrix or array of SciPy."""
    return bool(issparse(table))


def sparse_columns(table: Any) -> Iterator[np.ndarray]:
    """The columns, dense, one at a time."""
    by_column = table.tocsc(copy=True)
    by_column.sum_duplicates()
    for start, end in zip(by_column.indptr[:-1], by_column.indptr[1:], strict=True):
        values = np.zeros(table.shape[0])
        values[by_column.indices[start:end]] = by_column.data[start:end]
        yield values


def prepared_features(preparation: Any, table: Any, rows: np.ndarray | None) -> np.ndarray:
    """What `Preparation.transform` makes of a table, sparse or not: `[n, width]`."""
    if not is_sparse(table):
        return preparation.transform(table, rows)
    taken = table if rows is None else table[rows]
    number = taken.shape[0]
    width = sum(preparation.widths)
    dtype = torch.float64 if preparation.raw else torch.float32
    try:
        check_memory(dtype.itemsize * number * width)
    except MemoryError:
        raise ValueError(
            f"X has {number:,} rows and {width:,} columns, which take "
            f"{1e-9 * dtype.itemsize * number * width:,.1f} GB as the dense features that a model "
            "trains on, more than the memory that is free; "
            "pass fewer columns, as sklearn.feature_selection or TruncatedSVD give them"
        ) from None
    out = torch.empty(number, width, dtype=dtype).numpy()
    size = max(1, _BLOCK_VALUES // max(1, table.shape[1]))
    for start in range(0, number, size):
        block = slice(start, start + size)
        out[block] = preparation.transform(taken[block].toarray())
    return out
