"""Small Parquet tables with many row groups, for tests of tables that are streamed."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import dataset, parquet


def mixed_table(rows: int = 3000, seed: int = 0) -> Any:
    """Numbers with and without gaps, flags, a constant, categories, days, and a target."""
    generator = np.random.default_rng(seed)
    one = generator.normal(5.0, 2.0, rows)
    kind = generator.choice(["a", "b", "c"], rows, p=[0.6, 0.3, 0.1])
    target = (one - 5 + 2.0 * (kind == "b") + generator.normal(size=rows) > 2.5).astype(int)
    return pd.DataFrame(
        {
            "one": one,
            "gaps": np.where(
                generator.random(rows) < 0.2, np.nan, generator.exponential(size=rows)
            ),
            "flag": generator.integers(0, 2, rows),
            "same": 0.5,
            "kind": pd.Series(kind).where(generator.random(rows) > 0.05, None),
            "day": pd.Timestamp("2020-01-01")
            + pd.to_timedelta(generator.integers(0, 900, rows), "D"),
            "target": target,
        }
    )


def write_folder(table: Any, folder: Path, files: int = 3, group: int = 100) -> Path:
    """Writes a table as several files of many row groups each."""
    folder.mkdir(parents=True)
    for number, rows in enumerate(np.array_split(np.arange(len(table)), files)):
        part = pa.Table.from_pandas(table.iloc[rows], preserve_index=False)
        parquet.write_table(part, folder / f"part-{number}.parquet", row_group_size=group)
    return folder


def dataset_of(folder: Path) -> Any:
    return dataset.dataset(folder)
