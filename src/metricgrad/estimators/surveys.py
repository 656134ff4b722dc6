"""One pass through a Parquet table: what its columns and classes are, and which rows decide.

Every row gets a random number between 0 and 1 that depends on the seed, its row group and its place
there alone. The lowest numbers make a row a test row, the next ones a validation row, all others a
training row. So the split is never stored, and reading a row group again finds it again. Classes
keep their shares up to chance, which is little for samples of this size: a class that is in one of
a hundred rows is in 0.91 to 1.09 % of 50,000.

The pass keeps the test and validation rows, which are at most 200,000 and 50,000. Of training rows
it keeps counts (`passing.py`); they are read again for training (`pools.py`).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metricgrad.estimators.columns import columns_of
from metricgrad.estimators.features import Preparation
from metricgrad.estimators.parquet_tables import ParquetTable, is_category, is_text_type, to_frame
from metricgrad.estimators.passing import (
    ClassCounts,
    PassingCategories,
    PassingNumbers,
    class_values,
    is_known,
    refuse_no_classes,
    target_of,
)
from metricgrad.progress import progress as to_progress

if TYPE_CHECKING:
    import pyarrow as pa

MOST_TESTED = 200_000  # rows,
MOST_VALIDATED = 50_000
_VALID = 0.2  # of the rows that are not for testing, as `mg.fit` has it
_MOST_DRAWN = 100_000  # rows for medians
_MOST_BYTES = 2**27  # of any of these samples; tables with many columns have fewer rows in each
_WIDTHS = {True: 51, False: 2}  # the most columns that a category becomes, and a number


@dataclass(frozen=True)
class RowSplit:
    """Which rows are for testing, for validation and for training; shares of 1."""

    seed: int
    test: float
    valid: float

    def draws(self, group: int) -> np.random.Generator:
        """Gives the numbers of the rows of a group, one after the other."""
        return np.random.default_rng([self.seed, group])

    def trains(self, draws: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Which rows with these numbers are trained on; only those whose target is known."""
        return known & (draws >= self.test + self.valid)


@dataclass(frozen=True)
class SampledRows:
    """Rows that are kept in memory: a DataFrame of features and an array of classes."""

    x: Any
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Survey:
    """What one pass has found.

    Attributes:
        features: Names of the feature columns, in the order of the table.
        classes: The classes of the target, sorted.
        counts: Training rows of every class in each row group, `[groups, classes]`.
        without_target: The number of rows that are left out because they have no target.
    """

    table: ParquetTable
    target: str
    features: list[str]
    split: RowSplit
    preparation: Preparation
    classes: np.ndarray
    counts: np.ndarray
    test: SampledRows
    valid: SampledRows
    without_target: int

    @property
    def short_target(self) -> np.ndarray:
        """A few thousand classes in the shares that they have, each at least once."""
        total = self.counts.sum(0)
        return np.repeat(self.classes, np.maximum(1, 10_000 * total // total.sum()))


def survey(
    table: ParquetTable,
    target: str,
    *,
    without: tuple[str, ...] = (),
    test_share: float = 0.0,
    seed: int = 0,
    progress: bool = False,
) -> Survey:
    """Reads a table once.

    Args:
        table: Parquet files, read one row group at a time.
        target: Name of the column with the classes.
        without: Columns to leave out of the features, besides the target.
        test_share: Share of the rows that is kept for testing, but at most 200,000 rows.
        seed: Seed that decides whether a row is for training, validation or testing.
        progress: Whether to show a progress bar, on a terminal.

    Returns:
        Classes, a fitted preparation, and the rows for testing and validation.
    """
    if not table.groups:
        raise ValueError("the Parquet files have columns but no rows")
    refuse_no_classes(table, target)
    features = table.features((target, *without))
    bytes_each = 4 * sum(_WIDTHS[is_category(table.kind(name))] for name in features)
    most = _MOST_BYTES // bytes_each
    test = min(test_share, min(MOST_TESTED, most) / table.rows)
    valid = min((1 - test) * _VALID, min(MOST_VALIDATED, most) / table.rows)
    seen = _Pass(table, target, features, RowSplit(seed, test, valid))
    seen.drawn = min(1.0, min(_MOST_DRAWN, _MOST_BYTES // (8 * len(features))) / table.rows)
    with to_progress("reading the table", len(table.groups), progress) as tell:
        for number in range(len(table.groups)):
            seen.read(number)
            tell()
    return seen.survey()


def sample(table: ParquetTable, target: str, features: list[str], seed: int) -> SampledRows:
    """At most 200,000 rows of a table, drawn at random, of those whose target is known."""
    refuse_no_classes(table, target)
    share = MOST_TESTED / table.rows
    kept: list[pa.RecordBatch] = []
    for number in range(len(table.groups)):
        draws = np.random.default_rng([seed, number])
        for batch in table.parts(number, [*features, target]):
            chosen = (draws.random(len(batch)) < share) & is_known(target_of(batch, target))
            kept.append(_filtered(batch, chosen))
    return _sampled(kept, features, target)


class _Pass:
    """What has been seen of a table so far."""

    drawn: float  # share of the training rows from which medians are taken

    def __init__(
        self, table: ParquetTable, target: str, features: list[str], split: RowSplit
    ) -> None:
        self.table = table
        self.target = target
        self.features = features
        self.split = split
        self.columns: dict[str, PassingNumbers | PassingCategories] = {}
        self.classes = ClassCounts(target)
        self.kept: dict[str, list[pa.RecordBatch]] = {"test": [], "valid": []}
        self.without_target = 0

    def read(self, number: int) -> None:
        """Reads a row group."""
        self.classes.next_group()
        source = self.split.draws(number)
        for batch in self.table.parts(number, [*self.features, self.target]):
            draws = source.random(len(batch))
            values = target_of(batch, self.target)
            known = is_known(values)
            self.without_target += len(batch) - int(known.sum())
            tested = known & (draws < self.split.test)
            trains = self.split.trains(draws, known)
            for name, rows in (("test", tested), ("valid", known & ~tested & ~trains)):
                self.kept[name].append(_filtered(batch, rows))
            trained = batch if trains.all() else _filtered(batch, trains)
            self.classes.add(values, target_of(trained, self.target))
            self._add(trained, draws[trains] >= 1 - self.drawn)

    def _add(self, trained: "pa.RecordBatch", drawn: np.ndarray) -> None:
        """Adds the training rows of a part to what is known of the columns."""
        frame = to_frame(trained.drop_columns([self.target]))
        for name, kind, values in columns_of(frame):
            if name not in self.columns:
                numbers = kind != "categories"
                new = PassingNumbers(name, kind) if numbers else PassingCategories(name)
                self.columns[name] = new
            column = self.columns[name]
            if isinstance(column, PassingNumbers):
                column.add(values, drawn)
            else:
                column.add(trained.column(name))

    def survey(self) -> Survey:
        """What has been found, after the last row group."""
        classes, counts = self.classes.found()
        preparation = Preparation()
        preparation.columns = [self._column(name, preparation) for name in self.features]
        test, valid = (
            _sampled(self.kept[name], self.features, self.target) for name in ("test", "valid")
        )
        return Survey(
            self.table, self.target, self.features, self.split, preparation, classes, counts, test,
            valid, self.without_target,
        )  # fmt: skip

    def _column(self, name: str, preparation: Preparation) -> Any:
        column = self.columns[name]
        if isinstance(column, PassingNumbers):
            return column.column()
        return column.column(preparation, text=is_text_type(self.table.kind(name)))


def _filtered(batch: "pa.RecordBatch", rows: np.ndarray) -> "pa.RecordBatch":
    import pyarrow as pa

    return batch.filter(pa.array(rows))


def _sampled(kept: "list[pa.RecordBatch]", features: list[str], target: str) -> SampledRows:
    """Rows of several parts in one DataFrame."""
    import pyarrow as pa

    whole = pa.Table.from_batches(kept).unify_dictionaries()
    y = class_values(target_of(whole, target))
    return SampledRows(to_frame(whole.select(features)), y)
