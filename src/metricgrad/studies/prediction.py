"""Predictions for the rows of a table, by a model that `metricgrad train` saved."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from metricgrad.estimators import MetricClassifier
from metricgrad.studies.tables import parsed, read_table, split_target, with_columns


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


def predict(model: Path, data: Path, target: str | None = None) -> Predictions:
    """Predicts the rows of a file with the model of a run folder or file.

    `target` names a column with the true classes, to measure the model on.
    """
    classifier = MetricClassifier.load(model / "model.safetensors" if model.is_dir() else model)
    table = read_table(data)
    x = _features(classifier, table, data, target)
    found = pd.DataFrame({"prediction": classifier.predict(x)})
    probabilities = classifier.predict_proba(x)
    for number, each in enumerate(classifier.classes_):
        found[f"probability of {each}"] = probabilities[:, number].round(6)
    return Predictions(found, None if target is None else _measured(classifier, table, x, target))


def _features(classifier: MetricClassifier, table: Any, path: Path, target: str | None) -> Any:
    """The columns that the model was trained on; by position where it was trained on an array."""
    names = list(vars(classifier).get("feature_names_in_", []))
    if names:
        return parsed(with_columns(table, names, path))
    columns = [name for name in table.columns if name != target]
    if len(columns) != classifier.n_features_in_:
        raise ValueError(
            f"{path} has {len(columns)} columns; the model was trained on "
            f"{classifier.n_features_in_}"
        )
    return parsed(table[columns]).to_numpy()


def _measured(classifier: MetricClassifier, table: Any, x: Any, target: str) -> MeasuredValue:
    """The metric on the rows that have a target."""
    _, y, _ = split_target(table, target, several=False)
    known = table[target].notna().to_numpy()
    features = classifier.prepared(x[known])
    value = classifier.trained_.measure(features, classifier.encoded(y.to_numpy()))
    return MeasuredValue(classifier.trained_.metric.name, value, len(y))
