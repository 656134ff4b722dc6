"""Classifiers in one safetensors file: the network's tensors, and everything else as JSON.

Nothing is pickled, so a file can be opened without trusting its author.
"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from metricgrad.estimators.features import Category, Number, Preparation
from metricgrad.estimators.networks import perceptron, widths
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
    """Writes a fitted classifier; an existing file is replaced once the new one is complete."""
    trained = model.trained_
    threshold = trained.threshold
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
    """A classifier from a file, ready to predict; `metric` replaces the stored one."""
    tensors, header = read_tensors(path, _HEADER, "model")
    metric = metric_from_config(header["metric"]) if metric is None else to_metric(metric)
    model = cls(metric, hidden=tuple(header["hidden"]), **header["settings"])
    model.classes_ = np.asarray(header["classes"]["values"], dtype=header["classes"]["dtype"])
    model.target_ = Target(header["kind"], model.classes_, tuple(header["order"]))
    model._cut = torch.tensor(header["cut"])
    model._steepness = header["steepness"]
    model.n_features_in_ = header["features"]
    model.n_iter_ = header["epoch"]
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
    """A setting as JSON has it; of a surrogate only the name is kept."""
    if isinstance(value, np.generic):
        return value.item()
    known = value is None or isinstance(value, str | int | float | bool)
    return value if known else type(value).__name__.lower()
