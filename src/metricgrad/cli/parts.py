"""Training and test data of a command, as rows of the tables they stand in: a large table is never copied."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from metricgrad.cli.folder import digests
from metricgrad.cli.reading import bundled, like, read_table, split_target, without
from metricgrad.estimators.preparing import Preparation


@dataclass(frozen=True)
class Part:
    """Rows of a table.

    Attributes:
        x: features, of all rows.
        y: the target, of all rows.
        rows: the numbers of the part's own rows, in order; None is all.
    """

    x: Any
    y: Any
    rows: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.y if self.rows is None else self.rows)

    @property
    def target(self) -> np.ndarray:
        """The target of the part's own rows."""
        return self.y.to_numpy()[slice(None) if self.rows is None else self.rows]


@dataclass(frozen=True)
class Parts:
    """Training and test data; rows that were left out, because they have no target; what tells the files apart."""

    trained: Part
    tested: Part
    left_out: int
    sha256: list[str | None]


def parts(
    data: Path | None,
    target: str,
    test: Path | None,
    test_share: float,
    seed: int,
    drop: str | None = None,
) -> Parts:
    """Training and test data.

    Args:
        data: a file; None takes what is bundled.
        target: name of the column to predict.
        test: a file with test data; None cuts a part off.
        test_share: of the rows, where a part is cut off.
        seed: of the cut.
        drop: columns to leave out, separated by commas.

    Returns:
        Both, and what is to be said of them.
    """
    with ThreadPoolExecutor(1) as aside:  # a file is digested while it is read
        sha256 = aside.submit(digests, data, test)
        x, y, left_out = loaded(data, target, drop)
        if test is None:
            trained, tested = cut(x, y, test_share, seed)
        else:
            tested, more = _tested(x, y, test, target, drop)
            trained, left_out = Part(x, y), left_out + more
    return Parts(trained, tested, left_out, sha256.result())


def _tested(x: Any, y: Any, test: Path, target: str, drop: str | None) -> tuple[Part, int]:
    """Test data of a file, and rows without a target; ValueError, before anything is trained, where it does not fit."""
    x_test, y_test, left_out = split_target(without(read_table(test), drop), target, several=False)
    x_test = like(x_test, x.columns, test)
    unseen = sorted(set(y_test.unique().tolist()) - set(y.unique().tolist()), key=str)
    if unseen:
        raise ValueError(
            f"{test} has classes that the training data has not: {', '.join(map(repr, unseen))}"
        )
    Preparation().fit(x).transform(x_test)
    return Part(x_test, y_test), left_out


def loaded(data: Path | None, target: str, drop: str | None = None) -> tuple[Any, Any, int]:
    """Features and target of a file, or of what is bundled, and how many rows have no target and were left out."""
    return split_target(without(bundled() if data is None else read_table(data), drop), target)


def cut(x: Any, y: Any, share: float, seed: int) -> tuple[Part, Part]:
    """A table in two: every class has the same share in the second part, at least one row, and never all.

    Args:
        x: features, of pandas.
        y: `[n]`, classes, of pandas.
        share: of the rows, for the second part.
        seed: of the cut.

    Returns:
        Both parts.
    """
    number, classes = pd.factorize(y)
    counts = np.bincount(number)
    if counts.min() < 2:
        rarest = np.asarray(classes).tolist()[counts.argmin()]
        raise ValueError(
            f"class {rarest!r} of column {y.name!r} is in {counts.min()} rows only, too few to train and to test on; "
            "leave it out, or pass --test"
        )
    held = np.clip(np.rint(share * counts).astype(np.int64), 1, counts - 1)
    # Rows in random order, class by class; those of a class before the place where its part ends
    # are held back.
    key = number + np.random.default_rng(seed).random(len(y))
    end = np.sort(key)[counts.cumsum() - counts + held]
    second = key < end[number]
    return Part(x, y, np.flatnonzero(~second)), Part(x, y, np.flatnonzero(second))
