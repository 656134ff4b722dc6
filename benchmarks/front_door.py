"""The front doors, as a user comes through them: `metricgrad compare` on a file, and the estimator on a small table.

`auto` against cross-entropy with its threshold tuned, both with the command's own settings. Large
tables are written to CSV, read and cut by the command. Small ones are drawn from the same data,
with as many positives as a row says, and tested on what was not drawn: the test part of a small
table would be too small to tell anything.
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
from metricgrad.cli.comparing import measure
from metricgrad.cli.folder import RunFolder
from metricgrad.cli.parts import loaded

_METHODS = ["cross_entropy", "auto"]
_TESTED = 40_000  # items that were not drawn, at most


def run(
    settings: Settings, seed: int, folder: Path | None, known: list[dict[str, Any]]
) -> dict[str, Any]:
    """Both methods on one split, or on one small table.

    Args:
        settings: the data set, metric and network; `rows` and `positives` for a small table.
        seed: of the split or draw, and of the trainings.
        folder: where the data sets are.
        known: not used.

    Returns:
        `values`: of `cross_entropy` and `auto` on test data, and the `gain`.
    """
    values = (
        small(settings, seed, folder) if "rows" in settings else compared(settings, seed, folder)
    )
    return {"values": {**values, "gain": values["auto"] - values["cross_entropy"]}}


def compared(settings: Settings, seed: int, folder: Path | None) -> dict[str, float]:
    """What `metricgrad compare DATA.csv --target target --splits 1 --methods auto` measures."""
    asked = {
        "command": "compare", "data": settings["dataset"], "target": "target", "metric": settings["metric"],
        "methods": _METHODS, "splits": 1, "hidden": settings["hidden"], "test_share": 0.25, "positive": None,
        "epochs": settings["epochs"], "budget": None, "seed": seed,
    }  # fmt: skip
    with TemporaryDirectory() as place:
        x, y, _ = loaded(exported(settings["dataset"], folder), "target")
        found = measure(RunFolder(Path(place) / "run", asked), asked, x, y, progress=False)
    return {name: value for name, (value,) in found.items()}


@cache
def _place() -> TemporaryDirectory[str]:
    """Where the files stand until the process ends."""
    return TemporaryDirectory()


@cache
def exported(dataset: str, folder: Path | None) -> Path:
    """A CSV file of the whole data set, written once for all runs of a process."""
    x, y = whole_table(dataset, folder)
    path = Path(_place().name) / f"{dataset}.csv"
    pd.DataFrame(x, columns=[f"x{number + 1}" for number in range(x.shape[1])]).assign(
        target=y
    ).to_csv(path, index=False)
    return path


def small(settings: Settings, seed: int, folder: Path | None) -> dict[str, float]:
    """The same on a few rows, tested on others."""
    x, y = whole_table(settings["dataset"], folder)
    order = np.random.default_rng(seed).permutation(len(y))
    positive, negative = order[y[order] == 1], order[y[order] == 0]
    positives, negatives = settings["positives"], settings["rows"] - settings["positives"]
    train = np.concatenate([positive[:positives], negative[:negatives]])
    # What is left is tested at the share of positives that the table has.
    rest, share = (positive[positives:], negative[negatives:]), positives / settings["rows"]
    items = int(min(_TESTED, len(rest[0]) / share, len(rest[1]) / (1 - share)))
    test = np.concatenate(
        [rest[0][: round(share * items)], rest[1][: items - round(share * items)]]
    )
    model = mg.MetricClassifier(
        settings["metric"],
        hidden=tuple(settings["hidden"]),
        epochs=settings["epochs"],
        random_state=seed,
    ).fit(x[train], y[train])
    # The cross-entropy that `auto` meets is, to the bit, what `method="cross_entropy"` gives.
    usual = model.fit_.finalists["cross_entropy"]
    measured = usual.measure(model.prepared(x[test]), model.encoded(y[test]))
    return {"cross_entropy": measured, "auto": model.score(x[test], y[test])}
