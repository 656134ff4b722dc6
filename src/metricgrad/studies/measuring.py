"""Measuring methods on repeated splits: each method on each split is a cell.

Cells are trained wherever an executor takes them (`cells.py`), and their values are stored as they
come, so a comparison that is stopped, or loses a machine, goes on with the cells that are missing.
"""

import math
from contextlib import closing
from typing import Any, NamedTuple

from metricgrad.progress import progress as to_progress
from metricgrad.studies import splits
from metricgrad.studies.cells import Executor, LocalProcesses, LostCellError, UnfinishedError
from metricgrad.studies.own_metrics import carried_source, own_source
from metricgrad.studies.queries import QueryRows, split_queries
from metricgrad.studies.run_folder import RunFolder
from metricgrad.studies.settings import ComparisonSettings
from metricgrad.studies.splits import TableRows
from metricgrad.studies.tables import LabelledTable
from metricgrad.training import Fit

_APART = 1000  # between the seeds of splits, so that the next --seed shares none of them


def measure_methods(
    folder: RunFolder,
    settings: ComparisonSettings,
    table: LabelledTable | QueryRows,
    *,
    progress: bool = False,
    executor: Executor | None = None,
) -> dict[str, list[float]]:
    """Trains every method on every split and measures it on the test rows.

    Args:
        folder: Keeps the values; those that are there already are not measured again.
        settings: Names the methods, the number of splits and how each classifier is trained.
        table: The data, as `load_table` reads it, or documents of queries.
        progress: Shows a bar on a terminal.
        executor: Where methods are trained; None trains them one by one in this process.

    Returns:
        Test values by method, one for each split.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from metricgrad.studies import load_table
        >>> settings = ComparisonSettings(methods=("cross_entropy",), splits=1, hidden=(), epochs=1)
        >>> with tempfile.TemporaryDirectory() as place:
        ...     folder = RunFolder(Path(place) / "run", settings)
        ...     values = measure_methods(folder, settings, load_table(None))
        >>> [len(each) for each in values.values()]
        [1]
    """
    executor = executor or LocalProcesses()
    values = _known_values(folder, settings)
    cells = [(name, number) for number in range(settings.splits) for name in settings.methods]
    todo = [(name, number) for name, number in cells if values[name][number] is None]
    shared = _Shared(settings, table, own_source(settings.metric))
    lost: list[str] = []
    with (
        to_progress("comparing", len(cells), progress) as tell,
        closing(executor.run(_cell_value, shared, todo)) as outcomes,
    ):
        tell(len(cells) - len(todo), "")
        for outcome in outcomes:
            name, number = outcome.cell
            if isinstance(outcome.error, LostCellError):
                lost.append(f"{name} on split {number + 1}: {outcome.error}")
                continue
            values[name][number] = outcome.get()
            folder.write("values.json", values)
            tell(1, f"{name}: {values[name][number]:.4f}")
    if lost:
        raise UnfinishedError(
            f"{'; '.join(lost)}. All other values are stored; the same command tries these again."
        )
    return {name: [value for value in each if value is not None] for name, each in values.items()}


def _known_values(folder: RunFolder, settings: ComparisonSettings) -> dict[str, list[float | None]]:
    """Stored values by method, None where a split has not been measured; ValueError if damaged."""
    stored = folder.read("values.json") or {}
    plausible = all(isinstance(each, list) and _numbers(each) for each in stored.values())
    if not plausible or not stored.keys() <= set(settings.methods):
        raise ValueError(f"{folder.path / 'values.json'} is damaged; delete it to measure again")
    return {
        name: [*stored.get(name, []), *[None] * settings.splits][: settings.splits]
        for name in settings.methods
    }


def _numbers(values: list[Any]) -> bool:
    """Whether all values are finite, except those that are not known yet."""
    return all(each is None or (isinstance(each, float) and math.isfinite(each)) for each in values)


class _Shared(NamedTuple):
    """What all cells of a comparison share."""

    settings: ComparisonSettings
    table: LabelledTable | QueryRows
    source: str | None  # of the file that has the metric


def _cell_value(shared: _Shared, cell: tuple[str, int]) -> float:
    """The test value of a method on a split, both named by the cell, on any machine."""
    name, number = cell
    seed = shared.settings.seed + _APART * number
    train, test = split(shared.settings, shared.table, seed)
    with carried_source(shared.settings.metric, shared.source):
        return _test_value(shared.settings, train, test, name, seed)


def split(
    settings: ComparisonSettings, table: LabelledTable | QueryRows, seed: int
) -> tuple[TableRows, TableRows] | tuple[QueryRows, QueryRows]:
    """Training and test rows; of documents, all of a query are in one part."""
    if isinstance(table, QueryRows):
        return split_queries(table, str(settings.group), settings.test_share, seed)
    return splits.split_table(table, settings.test_share, seed)


def _test_value(
    settings: ComparisonSettings,
    train: TableRows | QueryRows,
    test: TableRows | QueryRows,
    method: str,
    seed: int,
) -> float:
    """The metric of one method on one split."""
    if isinstance(train, QueryRows) and isinstance(test, QueryRows):
        ranker = settings.ranker(train.x, method, seed, progress=False)
        ranker.fit(train.x, train.grades, groups=train.queries)
        _refuse_stopped(ranker.fit_)
        return ranker.score(test.x, test.grades, groups=test.queries)
    assert isinstance(train, TableRows)
    assert isinstance(test, TableRows)
    model = settings.classifier(train.x, train.y, method, seed, progress=False)
    model.fit(train.x, train.y, rows=train.rows, **train.amount_values)
    _refuse_stopped(model.fit_)
    features = model.prepared(test.x, test.rows)
    return model.trained_.measure(features, model.encoded(test.target), **test.own_amounts)


def _refuse_stopped(fit: Fit) -> None:
    """Raises KeyboardInterrupt: a model that is half trained has no value to compare."""
    if fit.stopped:
        raise KeyboardInterrupt
