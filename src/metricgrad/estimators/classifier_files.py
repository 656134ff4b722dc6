"""The file of a classifier: tensors in safetensors format, and everything else as JSON.

The tensors are the weights of a network. Boosted trees are one tensor of bytes: the text that their
library writes, which it can read again. Nothing is pickled.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from metricgrad.boosting.growing import BoostedTrees, read_forest
from metricgrad.estimators.features import Preparation, stored_names
from metricgrad.estimators.networks import plain_setting, stored_perceptron, widths
from metricgrad.estimators.target import Target
from metricgrad.metrics import Metric
from metricgrad.metrics.registry import metric_config
from metricgrad.storage import write_tensors
from metricgrad.training import Trained

if TYPE_CHECKING:
    from metricgrad.estimators.classifier import MetricClassifier
    from metricgrad.estimators.ranker import MetricRanker

CLASSIFIER = "metricgrad_classifier"  # by which its files are known
# Settings that have a place of their own in the file, and those that say nothing about the model.
_APART = ("metric", "model", "hidden")
_LEFT_OUT = ("options", "class_weight", "warm_start", "random_state", "progress")
_TREES = "trees"


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """What a file holds of a model: weights by name, or the text of its trees."""
    if isinstance(model, BoostedTrees):
        text = model.forest.to_text().encode()
        return {_TREES: torch.frombuffer(bytearray(text), dtype=torch.uint8)}
    return model.state_dict()


def stored_settings(estimator: "MetricClassifier | MetricRanker") -> dict[str, Any]:
    """What an estimator was asked for, as JSON has it."""
    asked = estimator.get_params(deep=False)
    kept = [name for name in asked if name not in (*_APART, *_LEFT_OUT)]
    return {name: plain_setting(asked[name]) for name in kept}


def model_header(estimator: "MetricClassifier | MetricRanker") -> dict[str, Any]:
    """What a file says of the kind of a model, and of its columns."""
    model = estimator.trained_.model
    return {
        "model": estimator.model_,
        "engine": model.forest.engine if isinstance(model, BoostedTrees) else None,
        "hidden": widths(estimator.hidden),
        "features": estimator.n_features_in_,
        "names": list(vars(estimator).get("feature_names_in_", [])),
        "columns": estimator.preparation_.to_json(),
        "epoch": estimator.n_iter_,
    }


def stored_model(
    tensors: dict[str, Tensor], header: dict[str, Any], preparation: Preparation, outputs: int
) -> tuple[str, nn.Module, int]:
    """The kind of a file's model, the model, and how many columns it takes after preparation.

    Files that were written before there were other models than networks do not say the kind.
    """
    kind = header.get("model", "network")
    inputs = sum(preparation.widths)
    if kind == "boosted":
        forest = read_forest(header["engine"], bytes(tensors[_TREES].numpy()).decode())
        return kind, BoostedTrees(forest).eval(), inputs
    if kind not in ("network", "linear"):
        raise ValueError(f"its model is of an unknown kind, {kind!r:.40}")
    hidden = () if kind == "linear" else widths(header["hidden"])
    return kind, stored_perceptron(tensors, inputs, hidden, outputs), inputs


def take_columns(model: "MetricClassifier | MetricRanker", header: dict[str, Any]) -> None:
    """Gives an estimator the columns that its file describes."""
    model.n_iter_ = header["epoch"]
    raw = header.get("model") == "boosted"
    model.preparation_ = Preparation.from_json(header["columns"], raw=raw)
    model.n_features_in_ = len(model.preparation_.columns)
    if header["names"]:
        model.feature_names_in_ = stored_names(header["names"], model.n_features_in_)


def write_classifier(model: "MetricClassifier", path: str | Path) -> None:
    """Writes a fitted classifier to a file."""
    classes = model.classes_
    threshold = model.trained_.threshold
    header = {
        "metric": metric_config(model.trained_.metric),
        "settings": stored_settings(model),
        "classes": {
            "values": classes.tolist(),
            "dtype": "object" if classes.dtype == object else classes.dtype.str,
        },
        "kind": model.target_.kind,
        "order": list(model.target_.order),
        "threshold": None if threshold is None else threshold.tolist(),
        "cut": model._cut.tolist(),
        "steepness": model._steepness,
        **model_header(model),
    }
    write_tensors(path, model_tensors(model.trained_.model), CLASSIFIER, header)


def stored_classifier(
    cls: type["MetricClassifier"],
    tensors: dict[str, Tensor],
    header: dict[str, Any],
    metric: Metric,
) -> "MetricClassifier":
    """A classifier from what a file holds."""
    kind = header.get("model", "network")
    model = cls(metric, model=kind, hidden=widths(header["hidden"]), **header["settings"])
    model.classes_ = np.asarray(header["classes"]["values"], dtype=header["classes"]["dtype"])
    model.target_ = Target(header["kind"], model.classes_, tuple(header["order"]))
    model._cut = torch.tensor(header["cut"])
    model._steepness = header["steepness"]
    take_columns(model, header)
    outputs = model.target_.outputs
    model.model_, network, inputs = stored_model(tensors, header, model.preparation_, outputs)
    threshold = None if header["threshold"] is None else torch.tensor(header["threshold"])
    model.trained_ = Trained(model=network, metric=metric, threshold=threshold)
    decided = model._decided(torch.zeros(1, inputs))
    model.target_.probabilities(decided, model._steepness)  # raises where parts do not fit
    if model._cut.dim() and model._cut.shape != decided.shape[1:]:
        raise ValueError(f"its threshold is {header['cut']!r:.60}, not one number per class")
    return model
