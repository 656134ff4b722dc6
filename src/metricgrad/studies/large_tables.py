"""`metricgrad train` on Parquet tables that are too large for memory.

A table is read as a whole if that fits into the memory that a run may take, 2 GiB unless `--memory`
says otherwise. Training takes up to four times the size of its table, counted as 8 bytes a value.
So a table of 30 columns is streamed from 2.2 million rows on. What a streamed table cannot do is
refused: `--group` needs all rows of a query together, `--amount` all amounts, and several processes
the same batches.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from metricgrad.estimators import MetricClassifier
from metricgrad.estimators.features import Category
from metricgrad.estimators.parquet_tables import ParquetTable, is_text_type
from metricgrad.estimators.surveys import SampledRows, Survey, sample, survey
from metricgrad.estimators.table_checks import refuse_dropped, refuse_missing
from metricgrad.estimators.written_numbers import looks_like_number
from metricgrad.metrics import Metric
from metricgrad.processes import alone
from metricgrad.studies import splits, tables
from metricgrad.studies.evidence import TestedRows
from metricgrad.studies.records import SuspiciousColumn
from metricgrad.studies.results import RowCounts
from metricgrad.studies.settings import RunSettings, chosen_class, refuse_misfit
from metricgrad.studies.suspicious import suspicious_columns
from metricgrad.studies.table_files import named_in_errors, parquet_table
from metricgrad.training.data import Items

RUN_MEMORY = 2 * 2**30  # bytes that a run may take
_TIMES = 4  # how often a table that is read as a whole is in memory, at most


def too_large(path: Path | None, memory: int | None = None) -> ParquetTable | None:
    """The row groups of a Parquet table that takes more than `memory` bytes; None for others.

    `memory` None is 2 GiB.
    """
    table = None if path is None else parquet_table(path)
    if table is None or _TIMES * 8 * table.values <= (RUN_MEMORY if memory is None else memory):
        return None
    return table


class StreamedClasses:
    """A run on a table of Parquet files that is never held in memory."""

    def __init__(
        self, settings: RunSettings, metric: Metric, table: ParquetTable, *, progress: bool
    ) -> None:
        assert settings.data is not None
        self.settings = settings
        data = Path(settings.data)
        test = None if settings.test is None else Path(settings.test)
        refuse_unstreamed(settings)
        self.sha256 = [table.digest(), *_digest(test)]
        if test is not None:
            splits.refuse_training_rows(data, test, self.sha256, same=False)
        with named_in_errors(data):
            self.surveyed = survey(
                table,
                settings.target,
                without=_dropped(table, settings.drop),
                test_share=0.0 if test is not None else settings.test_share,
                seed=settings.seed,
                progress=progress,
            )
            _refuse_written(self.surveyed)
        self.y = pd.Series(self.surveyed.short_target, name=settings.target)
        refuse_misfit(metric, self.y, chosen_class(settings.positive, self.y, metric))
        self.test = self.surveyed.test if test is None else _test_rows(self.surveyed, test)

    @property
    def rows(self) -> RowCounts:
        """How many rows were for what."""
        trained = int(self.surveyed.counts.sum())
        left_out = self.surveyed.without_target
        return RowCounts(trained, len(self.test), left_out, validation=len(self.surveyed.valid))

    @property
    def columns(self) -> list[str]:
        """The columns that the model is trained on."""
        return self.surveyed.features

    def suspicious(self) -> list[SuspiciousColumn]:
        """Columns that look wrong, by the validation rows: no training row is kept in memory."""
        return suspicious_columns(self.surveyed.valid.x, self.surveyed.valid.y)

    def fitted(self, checkpoints: Path, progress: bool) -> MetricClassifier:
        """A classifier that was trained on the training rows."""
        # Trees need all rows at once, so the default is a network here.
        settings = replace(self.settings, model=self.settings.model or "network")
        x = self.surveyed.valid.x
        self.model = settings.classifier(
            x, self.y, settings.method, settings.seed, progress=progress
        )
        return self.model.fit_surveyed(self.surveyed, folder=checkpoints)

    def tested(self) -> TestedRows:
        """The test rows, which were not looked at before."""
        y = self.model.encoded(self.test.y)
        binary = self.model.target_.kind == "binary"
        classes = [str(each) for each in self.model.target_.ordered]
        items = Items(self.model.prepared(self.test.x), y)
        return TestedRows(items, classes, float(y.double().mean()) if binary else None)


def refuse_unstreamed(settings: RunSettings) -> None:
    """Raises ValueError for what needs the whole table in memory."""
    if not alone():
        raise ValueError(
            f"{settings.data} is too large to be read as a whole, and a table that is streamed is "
            "trained by one process; start it without torchrun, or pass more --memory"
        )
    boosted = "boosted" in (settings.model or "")
    needs = {
        "--group": settings.group,
        "--amount": settings.amounts,
        "--model boosted": boosted,
    }
    for option, given in needs.items():
        if given:
            raise ValueError(
                f"{settings.data} is too large to be read as a whole, which {option} needs; pass "
                "fewer rows, or more --memory"
            )


def _dropped(table: ParquetTable, drop: str | None) -> tuple[str, ...]:
    names = tables.column_names(drop)
    refuse_dropped(names, table.names)
    return tuple(names)


def _digest(test: Path | None) -> list[str | None]:
    """The digest of test data; that of Parquet files as their table has it."""
    table = None if test is None else parquet_table(test)
    return splits.digests(test) if table is None else [table.digest()]


def _test_rows(surveyed: Survey, path: Path) -> SampledRows:
    """Rows of a test file, at most 200,000 of Parquet; ValueError where they do not fit."""
    table = parquet_table(path)
    if table is None:
        read = splits.load_table(path, surveyed.target, several=False)
        rows = SampledRows(read.x, read.y.to_numpy())
    else:
        refuse_missing(path, [name for name in surveyed.features if name not in table.names])
        with named_in_errors(path):
            rows = sample(table, surveyed.target, surveyed.features, surveyed.split.seed)
    x = tables.with_columns(rows.x, surveyed.features, path)
    tables.refuse_unseen(rows.y, surveyed.classes, path)
    with named_in_errors(path):
        surveyed.preparation.transform(x)
    return SampledRows(x, rows.y)


def _refuse_written(surveyed: Survey) -> None:
    """Raises ValueError for a column of text that is numbers or dates.

    They would be categories here, where a table in memory has all of its text converted.
    """
    for name, column in zip(surveyed.features, surveyed.preparation.columns, strict=True):
        if not isinstance(column, Category) or not is_text_type(surveyed.table.kind(name)):
            continue
        known: Any = pd.Series([each for each in column.frequent if each != "(missing)"])
        if 2 * looks_like_number(known).sum() > len(known) or tables.dates_of(known) is not None:
            raise ValueError(
                f"column {name!r} is text that looks like numbers or dates, such as "
                f"{known.iloc[0]!r}; write it as numbers or times, as a dictionary if these are "
                f"names, or leave it out (--drop {name})"
            )
