"""Attributes of a fitted classifier that scikit-learn users expect: threshold, weights, columns.

`decision_function(X)` of a linear model is `features @ coef_.T + intercept_`. Its features are the
prepared columns (`features.py`), named by `get_feature_names_out`: a number is scaled to mean 0 and
spread 1, so the sizes of its weights can be compared. Divided by the spread of the column, a weight
is in the column's own units.
"""

from typing import Any

import numpy as np
from torch import nn

from metricgrad.estimators.features import Number, Preparation
from metricgrad.estimators.target import Target
from metricgrad.training import Trained


def threshold_of(trained: Trained, target: Target) -> float | np.ndarray:
    """The score above which a decision is positive; AttributeError where there is none."""
    threshold = trained.threshold
    if threshold is None or target.kind == "classes":
        raise AttributeError(
            f"{trained.metric.name} does not use a threshold here, so there is no threshold_; "
            "trained_.offsets has the offsets of classes, if they were tuned"
        )
    return threshold.numpy() if threshold.dim() else float(threshold)


def only_layer(model: nn.Module, asked: str) -> nn.Linear:
    """The layer of a linear model; AttributeError, with what was `asked` for, of any other."""
    layers = [each for each in model.modules() if isinstance(each, nn.Linear)]
    if len(layers) != 1:
        raise AttributeError(f"{asked} belongs to linear models; pass model='linear' for one")
    return layers[0]


def feature_names_out(estimator: Any, given: Any) -> np.ndarray:
    """Names of the prepared columns of a fitted estimator.

    `given` is what the user calls the columns; None takes the names that they had in training, or
    x0, x1 and so on. Other names than in training raise ValueError.
    """
    preparation: Preparation = estimator.preparation_
    known = vars(estimator).get("feature_names_in_")
    columns = preparation.columns
    if given is None:
        names = [f"x{number}" for number in range(len(columns))] if known is None else known
    else:
        names = list(given)
        if len(names) != len(columns) or (known is not None and list(known) != names):
            raise ValueError(
                f"input_features must name the {len(columns)} columns of the training data"
                f"{'' if known is None else f', {list(known)}'}; got {names}"
            )
    if preparation.raw:
        return np.asarray([str(name) for name in names], dtype=object)
    found: list[str] = []
    for name, column in zip(names, columns, strict=True):
        if isinstance(column, Number):
            found += [str(name), f"{name}=(missing)"][: column.width]
        else:
            found += [f"{name}={each}" for each in column.frequent]
            found += [f"{name}=(rare)"] * column.rare
    return np.asarray(found, dtype=object)
