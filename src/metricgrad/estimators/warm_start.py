"""Going on from a fitted classifier: a second `fit` that starts from the network it has.

The weights of the network belong to its classes and to its columns as they were prepared, so these
are kept, too: the scale of a column is the one that the first `fit` saw.
"""

import copy
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted
from torch import nn

from metricgrad.estimators.features import Preparation
from metricgrad.estimators.networks import widths
from metricgrad.estimators.target import Target
from metricgrad.metrics import Metric


class Start(NamedTuple):
    """What training begins with; None stands for what is found in the new data."""

    target: Target | None = None
    preparation: Preparation | None = None
    network: nn.Module | None = None

    def target_of(self, y: Any, metric: Metric, positive: Any) -> Target:
        """What `y` is; ValueError if the network has other classes."""
        if self.target is None:
            return Target.of(y, metric, positive)
        kept = self.target
        if positive is None and kept.kind == "binary" and kept.ordered[1] in np.asarray(y):
            positive = kept.ordered[1]
        found = Target.of(y, metric, positive)
        same = found.kind == kept.kind and np.array_equal(found.classes, kept.classes)
        if not same or found.order != kept.order:
            raise ValueError(
                "warm_start=True goes on with the network that was trained for the classes "
                f"{kept.ordered.tolist()}, and the target has {found.ordered.tolist()}; pass the "
                "same classes with the same positive one, or warm_start=False"
            )
        return kept


def start_of(estimator: Any, columns: int) -> Start:
    """What a classifier begins its next training with, for a table of so many columns."""
    if not estimator.warm_start:
        return Start()
    if estimator.model in ("boosted", "auto"):
        raise ValueError(
            "warm_start=True continues a network or a linear model, but trees start again; pass "
            f"warm_start=False, or another model. Got model={estimator.model!r}"
        )
    if "trained_" not in vars(estimator):
        return Start()
    check_is_fitted(estimator)
    kept = estimator.preparation_
    if len(kept.columns) != columns:
        raise ValueError(
            f"warm_start=True goes on with a network of {len(kept.columns)} columns; got X with "
            f"{columns}. Pass the same columns, or warm_start=False"
        )
    network = copy.deepcopy(estimator.trained_.model)
    layers = [each.out_features for each in network.modules() if isinstance(each, nn.Linear)]
    hidden = () if estimator.model == "linear" else widths(estimator.hidden)
    if tuple(layers[:-1]) != hidden:
        raise ValueError(
            f"warm_start=True goes on with a network of hidden layers {tuple(layers[:-1])}; got "
            f"hidden={estimator.hidden!r}. Leave hidden as it was, or pass warm_start=False"
        )
    return Start(estimator.target_, kept, network)
