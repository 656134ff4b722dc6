"""Classifiers in one safetensors file: the network's tensors, and all else as JSON in the header; never pickle."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from metricgrad.estimators.networks import perceptron, widths
from metricgrad.estimators.preparing import Category, Number, Preparation
from metricgrad.estimators.target import Target
from metricgrad.metrics import metric as to_metric
from metricgrad.metrics.registry import metric_config, metric_from_config
from metricgrad.storage import read_tensors, write_tensors
from metricgrad.training import Trained

if TYPE_CHECKING:
    from metricgrad.estimators.classifier import MetricClassifier

_HEADER = "metricgrad_classifier"
_KEPT = ("method", "epochs", "batch", "rate", "decay", "folds", "balanced", "budget", "positive")


def save_classifier(model: "MetricClassifier", path: str | Path) -> None:
    """Writes a fitted classifier.

    Args:
        model: the classifier.
        path: where to; an existing file is replaced only once the new one is complete.
    """
    trained, threshold = model.trained_, model.trained_.threshold
    classes = model.classes_
    header = {
        "metric": metric_config(trained.metric),
        "hidden": widths(model.hidden),
        "settings": {name: _plain(getattr(model, name)) for name in _KEPT},
        "classes": {
            "values": classes.tolist(),
            "dtype": "object" if classes.dtype == object else classes.dtype.str,
        },
        "kind": model.target_.kind,
        "order": list(model.target_.order),
        "threshold": None if threshold is None else threshold.tolist(),
        "cut": model._cut.tolist(),
        "steepness": model._steepness,
        "features": model.n_features_in_,
        "names": list(vars(model).get("feature_names_in_", [])),
        "columns": [
            {"kind": type(column).__name__, **asdict(column)}
            for column in model._preparation.columns
        ],
        "epoch": model.n_iter_,
    }
    write_tensors(path, trained.model.state_dict(), _HEADER, header)


def load_classifier(
    cls: type["MetricClassifier"], path: str | Path, metric: Any = None
) -> "MetricClassifier":
    """Reads what `save_classifier` wrote.

    Args:
        cls: of the classifier.
        path: the file.
        metric: in place of the stored one.

    Returns:
        The classifier, ready to predict.
    """
    tensors, header = read_tensors(path, _HEADER, "model")
    metric = metric_from_config(header["metric"]) if metric is None else to_metric(metric)
    model = cls(metric, hidden=tuple(header["hidden"]), **header["settings"])
    model.classes_ = np.asarray(header["classes"]["values"], dtype=header["classes"]["dtype"])
    model.target_ = Target(header["kind"], model.classes_, tuple(header["order"]))
    model._cut, model._steepness = torch.tensor(header["cut"]), header["steepness"]
    model.n_features_in_, model.n_iter_ = header["features"], header["epoch"]
    if header["names"]:
        model.feature_names_in_ = np.asarray(header["names"], dtype=object)
    model._preparation = Preparation()
    model._preparation.columns = [_column(dict(each)) for each in header["columns"]]
    inputs = sum(column.width for column in model._preparation.columns)
    network = perceptron(inputs, tuple(header["hidden"]), model.target_.outputs, 0)
    network.load_state_dict(tensors)
    threshold = header["threshold"]
    model.trained_ = Trained(
        model=network.eval(),
        metric=metric,
        threshold=None if threshold is None else torch.tensor(threshold),
    )
    return model


def _column(stored: dict[str, Any]) -> Number | Category:
    if stored.pop("kind") == "Number":
        return Number(**stored)
    return Category(tuple(stored["frequent"]), stored["rare"])


def _plain(value: Any) -> Any:
    """A setting as JSON has it; a surrogate by its name alone."""
    if isinstance(value, np.generic):
        return value.item()
    return (
        value
        if value is None or isinstance(value, str | int | float | bool)
        else type(value).__name__.lower()
    )
