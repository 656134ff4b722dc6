"""Predictions for the rows of a table, by a model that a run saved.

Where the truth is known, the metric is measured, too. A model file holds no code, so a metric that
is a user's own function has to be named again to be measured; predictions do not need it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from metricgrad.estimators import MetricClassifier, MetricRanker
from metricgrad.estimators.classifier import CLASSIFIER
from metricgrad.estimators.columns import refuse_other_kind
from metricgrad.estimators.features import Number
from metricgrad.estimators.parquet_tables import ParquetTable, plain_part, to_frame, to_stored_frame
from metricgrad.estimators.ranker import RANKER
from metricgrad.metrics import from_function
from metricgrad.storage import damage_told, holds, read_tensors
from metricgrad.studies import tables
from metricgrad.studies.large_tables import too_large
from metricgrad.studies.own_metrics import NO_AMOUNTS, AmountColumns, named_metric
from metricgrad.studies.queries import check_queries, read_queries
from metricgrad.studies.table_files import QUERY, named_in_errors, read_table, stored_columns


@dataclass(frozen=True)
class MeasuredValue:
    """The metric of the rows whose truth is known."""

    metric: str
    value: float
    rows: int


@dataclass
class Predictions:
    """DataFrames with a prediction and probabilities for each row; the metric, if asked for.

    Those of a large table are made one after the other, and the metric is known after the last.
    """

    parts: Iterable[Any]
    measured: MeasuredValue | None = None


def predict(
    model: Path,
    data: Path,
    target: str | None = None,
    group: str | None = None,
    metric: str | None = None,
    amounts: AmountColumns = NO_AMOUNTS,
    ids: str | None = None,
) -> Predictions:
    """Predicts the rows of a file with the model of a run folder or file.

    `target` names a column with the true classes, or grades, to measure the model on; `group` the
    column of queries, for a model that ranks. `metric`, as in own.py:profit, and `amounts` are for
    a model that was trained for a function. `ids`, as in id,date, are columns that the predictions
    begin with, features of the model or not.
    """
    copied = list(dict.fromkeys(tables.column_names(ids)))
    path = model / "model.safetensors" if model.is_dir() else model
    if target is None and (metric is not None or amounts.columns):
        raise ValueError("--metric and --amount measure the model; pass --target COLUMN with them")
    if holds(path, RANKER):
        if metric is not None or amounts.columns:
            raise ValueError(f"{path} ranks documents; leave out --metric and --amount")
        return _ranked(MetricRanker.load(path), data, target, group, copied)
    if group is not None:
        raise ValueError(f"{path} does not rank documents; leave out --group {group}")
    classifier = _loaded(path, target, metric)
    if target is not None:
        amounts.refuse_misfit(classifier.trained_.metric)
    large = too_large(data)
    if large is not None:
        return _streamed(classifier, large, data, target, amounts, copied)
    table = read_table(data, queries=QUERY in copied)
    stored = _stored(table, data, copied)
    x = _features(classifier, amounts.features(table), data, target, copied)
    with named_in_errors(data):
        found = _with_ids(stored, _predicted(classifier, x))
        if target is None:
            return Predictions([found])
        return Predictions([found], _measured(classifier, table, x, target, amounts))


def _predicted(classifier: MetricClassifier, x: Any) -> Any:
    """A DataFrame with a prediction and probabilities for each row."""
    found = pd.DataFrame({"prediction": classifier.predict(x)})
    probabilities = classifier.predict_proba(x)
    for number, each in enumerate(classifier.classes_):
        found[f"probability of {each}"] = probabilities[:, number].round(6)
    return found


def _stored(table: Any, path: Path, ids: list[str]) -> Any:
    """Columns of a file as it has them; None if there are none to copy."""
    with named_in_errors(path):
        for name in ids:
            tables.check_column(table, name)
        return stored_columns(path, ids) if ids else None


def _with_ids(stored: Any, found: Any) -> Any:
    """Predictions behind the columns that are copied to them."""
    if stored is None:
        return found
    same = [name for name in stored.columns if name in found.columns]
    if same:
        raise ValueError(
            f"the predictions already have a column {same[0]!r}; rename the one that --id names"
        )
    return pd.concat([stored, found], axis=1)


def _streamed(
    classifier: MetricClassifier,
    table: ParquetTable,
    path: Path,
    target: str | None,
    amounts: AmountColumns,
    ids: list[str],
) -> Predictions:
    """Predictions for a table that does not fit into memory, part after part.

    To measure the metric, scores and target of all rows are kept, and nothing else.
    """
    if amounts.columns:
        raise ValueError(f"{path} is too large to be read as a whole, which --amount needs")
    with named_in_errors(path):
        for name in (*ids, *([] if target is None else [target])):
            table.check_column(name)
    names = list(vars(classifier).get("feature_names_in_", []))
    used = [name for name in table.names if not names or name in names or name == target]
    read = list(dict.fromkeys([*used, *ids]))
    found = Predictions(())

    def parts() -> Iterator[Any]:
        scores: list[Tensor] = []
        truth: list[Tensor] = []
        numbers = range(len(table.groups))
        for part in (part for each in numbers for part in table.stored_parts(each, read)):
            stored = to_stored_frame(part.select(ids)) if ids else None
            frame = to_frame(plain_part(part.select(used)))
            x = _features(classifier, frame, path, target, ids)
            with named_in_errors(path):
                yield _with_ids(stored, _predicted(classifier, x))
                if target is not None and (known := frame[target].notna().to_numpy()).any():
                    scores.append(classifier.trained_.scores(classifier.prepared(x[known])))
                    truth.append(classifier.encoded(frame[target].to_numpy()[known]))
        if truth:
            y = torch.cat(truth)
            value = classifier.trained_.measure_scores(torch.cat(scores), y)
            found.measured = MeasuredValue(classifier.trained_.metric.name, value, len(y))

    found.parts = parts()
    return found


def _loaded(path: Path, target: str | None, metric: str | None) -> MetricClassifier:
    """The classifier of a file, with the metric that it is measured by, if it is measured."""
    header = read_tensors(path, CLASSIFIER, "model")[1]
    with damage_told(path, "model"):
        stored = header["metric"]
        name = stored.get("function")
    if name is None:
        if metric is not None:
            raise ValueError(
                f"{path} was trained for {stored['name']}; leave out --metric {metric}, which is "
                "for your own functions"
            )
        return MetricClassifier.load(path)
    if metric is not None:
        return MetricClassifier.load(path, metric=named_metric(metric))
    if target is not None:
        raise ValueError(
            f"{path} was trained for {name}, your own function, which cannot be stored in a file; "
            f"pass --metric own.py:{name} with the file that has it, or leave out --target {target}"
        )
    return MetricClassifier.load(path, metric=from_function(_unmeasured, name=name))


def _unmeasured(scores: Any, target: Any) -> float:
    """Stands for a function that predicting does not need."""
    raise RuntimeError("a model that only predicts has no metric")


def _ranked(
    ranker: MetricRanker, data: Path, target: str | None, group: str | None, ids: list[str]
) -> Predictions:
    """Scores of documents, and their ranks within queries where those are known."""
    table = read_table(data, queries=QUERY in (group, *ids))
    stored = _stored(table, data, ids)
    x = _features(ranker, table, data, target, ids)
    with named_in_errors(data):
        found = pd.DataFrame({"score": ranker.predict(x)})
        if group is not None:
            check_queries(table, group)
            queries = found["score"].groupby(table[group].to_numpy())
            found["rank"] = queries.rank(ascending=False, method="first").astype(int)
        found = _with_ids(stored, found)
    if target is None:
        return Predictions([found])
    if group is None:
        raise ValueError("grades are measured query by query; pass --group COLUMN beside --target")
    rows, _ = read_queries(data, target, group)
    x = _features(ranker, rows.x, data, target, ids)
    value = ranker.score(x, rows.grades, groups=rows.queries)
    return Predictions([found], MeasuredValue(ranker.trained_.metric.name, value, len(rows)))


def _features(
    model: MetricClassifier | MetricRanker,
    table: Any,
    path: Path,
    target: str | None,
    ids: Sequence[str],
) -> Any:
    """The columns that the model was trained on; by position where it was trained on an array.

    The columns of an array had no names, so `ids` are features there only if all columns are.
    """
    names = list(vars(model).get("feature_names_in_", []))
    if names:
        table = tables.with_columns(table, names, path)
        prepared = zip(names, model.preparation_.columns, strict=True)
        numbers = [name for name, column in prepared if isinstance(column, Number)]
        with named_in_errors(path):
            # Categories stay text: where all of a few rows are "01", that is still no number.
            parsed = tables.parsed(table[numbers])
        return parsed if numbers == names else table.assign(**parsed)
    columns = [name for name in table.columns if name != target]
    if len(columns) > model.n_features_in_:
        columns = [name for name in columns if name not in ids]
    if len(columns) != model.n_features_in_:
        raise ValueError(
            f"{path} has {len(columns)} columns; the model was trained on {model.n_features_in_}"
        )
    with named_in_errors(path):
        numbers = tables.parsed(table[columns])
        for name in columns:
            refuse_other_kind(name, "numbers", numbers[name])
    return numbers.to_numpy()


def _measured(
    classifier: MetricClassifier, table: Any, x: Any, target: str, amounts: AmountColumns
) -> MeasuredValue:
    """The metric on the rows that have a target."""
    tables.check_column(table, target)
    _, y, _ = tables.split_target(table[[target]], target, several=False)
    known = table[target].notna().to_numpy()
    features = classifier.prepared(x[known])
    own = amounts.read(table, target)
    value = classifier.trained_.measure(features, classifier.encoded(y.to_numpy()), **own)
    return MeasuredValue(classifier.trained_.metric.name, value, len(y))
