"""Predictions for the rows of a table, by a model that a run saved.

Where the truth is known, the metric is measured, too. A model file holds no code, so a metric that
is a function of one's own has to be named again to be measured; predicting does without it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from metricgrad.estimators import MetricClassifier, MetricRanker
from metricgrad.estimators.classifier import CLASSIFIER
from metricgrad.estimators.columns import refuse_other_kind
from metricgrad.estimators.ranker import RANKER
from metricgrad.metrics import from_function
from metricgrad.storage import damage_told, holds, read_tensors
from metricgrad.studies import tables
from metricgrad.studies.amounts import NO_AMOUNTS, AmountColumns
from metricgrad.studies.own_metrics import named_metric
from metricgrad.studies.queries import check_queries, read_queries
from metricgrad.studies.table_files import QUERY, named_in_errors, read_table


@dataclass(frozen=True)
class MeasuredValue:
    """The metric of the rows whose truth is known."""

    metric: str
    value: float
    rows: int


@dataclass(frozen=True)
class Predictions:
    """A DataFrame with a prediction and probabilities for each row; the metric, if asked for."""

    table: Any
    measured: MeasuredValue | None


def predict(
    model: Path,
    data: Path,
    target: str | None = None,
    group: str | None = None,
    metric: str | None = None,
    amounts: AmountColumns = NO_AMOUNTS,
) -> Predictions:
    """Predicts the rows of a file with the model of a run folder or file.

    `target` names a column with the true classes, or grades, to measure the model on; `group` the
    column of queries, for a model that ranks. `metric`, as in own.py:profit, and `amounts` are for
    a model that was trained for a function.
    """
    path = model / "model.safetensors" if model.is_dir() else model
    if target is None and (metric is not None or amounts.columns):
        raise ValueError("--metric and --amount measure the model; pass --target COLUMN with them")
    if holds(path, RANKER):
        if metric is not None or amounts.columns:
            raise ValueError(f"{path} ranks documents; leave out --metric and --amount")
        return _ranked(MetricRanker.load(path), data, target, group)
    if group is not None:
        raise ValueError(f"{path} does not rank documents; leave out --group {group}")
    classifier = _loaded(path, target, metric)
    if target is not None:
        amounts.refuse_misfit(classifier.trained_.metric)
    table = read_table(data)
    x = _features(classifier, amounts.features(table), data, target)
    with named_in_errors(data):
        found = pd.DataFrame({"prediction": classifier.predict(x)})
    probabilities = classifier.predict_proba(x)
    for number, each in enumerate(classifier.classes_):
        found[f"probability of {each}"] = probabilities[:, number].round(6)
    if target is None:
        return Predictions(found, None)
    with named_in_errors(data):
        return Predictions(found, _measured(classifier, table, x, target, amounts))


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
                "for functions of your own"
            )
        return MetricClassifier.load(path)
    if metric is not None:
        return MetricClassifier.load(path, metric=named_metric(metric))
    if target is not None:
        raise ValueError(
            f"{path} was trained for {name}, a function of yours, which no file can hold; pass "
            f"--metric own.py:{name} with the file that has it, or leave out --target {target}"
        )
    return MetricClassifier.load(path, metric=from_function(_unmeasured, name=name))


def _unmeasured(scores: Any, target: Any) -> float:
    """Stands for a function that predicting does not need."""
    raise RuntimeError("a model that only predicts has no metric")


def _ranked(ranker: MetricRanker, data: Path, target: str | None, group: str | None) -> Predictions:
    """Scores of documents, and their ranks within queries where those are known."""
    table = read_table(data, queries=group == QUERY)
    x = _features(ranker, table, data, target)
    with named_in_errors(data):
        found = pd.DataFrame({"score": ranker.predict(x)})
        if group is not None:
            check_queries(table, group)
            queries = found["score"].groupby(table[group].to_numpy())
            found["rank"] = queries.rank(ascending=False, method="first").astype(int)
    if target is None:
        return Predictions(found, None)
    if group is None:
        raise ValueError("grades are measured query by query; pass --group COLUMN beside --target")
    rows, _ = read_queries(data, target, group)
    x = _features(ranker, rows.x, data, target)
    value = ranker.score(x, rows.grades, groups=rows.queries)
    return Predictions(found, MeasuredValue(ranker.trained_.metric.name, value, len(rows)))


def _features(
    model: MetricClassifier | MetricRanker, table: Any, path: Path, target: str | None
) -> Any:
    """The columns that the model was trained on; by position where it was trained on an array."""
    names = list(vars(model).get("feature_names_in_", []))
    if names:
        table = tables.with_columns(table, names, path)
        with named_in_errors(path):
            return tables.parsed(table)
    columns = [name for name in table.columns if name != target]
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
