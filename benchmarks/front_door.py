"""`auto` against cross-entropy with a tuned threshold, as users of the command meet them.

Large tables are written to CSV files, which are read and split as `metricgrad compare` does, with
the command's own settings. Small tables are drawn from the same data, with as many positives as a
row of the benchmark says, and tested on rows that were not drawn, because the test part of a small
table is too small to show a difference.
"""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

import metricgrad as mg
from benchmarks.classification import Settings
from benchmarks.data import whole_table
from metricgrad.studies import ComparisonSettings, RunFolder, load_table, measure_methods

_TESTED = 40_000  # at most so many of the rows that were not drawn


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]]
) -> dict[str, Any]:
    """Test values of both methods on one split, or on a small table if the settings have `rows`."""
    small = "rows" in settings
    values = small_table(settings, seed, folder) if small else compared(settings, seed, folder)
    return {"values": {**values, "gain": values["auto"] - values["cross_entropy"]}}


def compared(settings: Settings, seed: int, folder: Path | None) -> dict[str, float]:
    """What `metricgrad compare DATA.csv --target target --splits 1 --methods auto` measures."""
    asked = ComparisonSettings(
        data=settings["dataset"],
        metric=settings["metric"],
        methods=("cross_entropy", "auto"),
        splits=1,
        hidden=settings["hidden"],
        epochs=settings["epochs"],
        seed=seed,
    )
    table = load_table(exported(settings["dataset"], folder))
    with TemporaryDirectory() as out:
        found = measure_methods(RunFolder(Path(out) / "run", asked), asked, table)
    return {name: value for name, (value,) in found.items()}


@cache
def _csv_folder() -> TemporaryDirectory[str]:
    """A folder for CSV files, which is removed when the process ends."""
    return TemporaryDirectory()


@cache
def exported(dataset: str, folder: Path | None) -> Path:
    """A CSV file of the whole data set, written once per process."""
    x, y = whole_table(dataset, folder)
    path = Path(_csv_folder().name) / f"{dataset}.csv"
    table = pd.DataFrame(x, columns=[f"x{number + 1}" for number in range(x.shape[1])])
    table.assign(target=y).to_csv(path, index=False)
    return path


def small_table(settings: Settings, seed: int, folder: Path | None) -> dict[str, float]:
    """Both methods trained on a few rows and tested on others."""
    x, y = whole_table(settings["dataset"], folder)
    train, test = _drawn(y, settings["rows"], settings["positives"], seed)
    model = mg.MetricClassifier(
        settings["metric"],
        hidden=tuple(settings["hidden"]),
        epochs=settings["epochs"],
        random_state=seed,
    ).fit(x[train], y[train])
    # The cross-entropy that `auto` compares with is exactly what `method="cross_entropy"` gives.
    usual = model.fit_.finalists.ordinary
    assert usual is not None
    measured = usual.measure(model.prepared(x[test]), model.encoded(y[test]))
    return {"cross_entropy": measured, "auto": model.score(x[test], y[test])}


def _drawn(y: np.ndarray, rows: int, positives: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers to train and to test on, with the same share of positives in both."""
    order = np.random.default_rng(seed).permutation(len(y))
    positive = order[y[order] == 1]
    negative = order[y[order] == 0]
    train = np.concatenate([positive[:positives], negative[: rows - positives]])
    positive = positive[positives:]
    negative = negative[rows - positives :]
    share = positives / rows
    items = int(min(_TESTED, len(positive) / share, len(negative) / (1 - share)))
    hits = round(share * items)
    return train, np.concatenate([positive[:hits], negative[: items - hits]])
