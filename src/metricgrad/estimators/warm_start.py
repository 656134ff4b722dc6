"""Going on from a fitted classifier: a second `fit` that starts from the model it has.

A network is trained on; boosted trees get more trees. Either belongs to its classes and to its
columns as they were prepared, so these are kept, too: the scale of a column and the numbers of its
categories are those that the first `fit` saw.
"""

import copy
from typing import Any, NamedTuple, get_args

import numpy as np
from sklearn.utils.validation import check_is_fitted
from torch import nn

from metricgrad.boosting.growing import BoostedTrees, Forest, installed_engine
from metricgrad.estimators.features import Preparation
from metricgrad.estimators.kinds import ModelKind
from metricgrad.estimators.networks import widths
from metricgrad.estimators.target import Target
from metricgrad.metrics import Metric


class Start(NamedTuple):
    """What training begins with; None stands for what is found in the new data."""

    target: Target | None = None
    preparation: Preparation | None = None
    network: nn.Module | None = None
    forest: Forest | None = None

    def target_of(self, y: Any, metric: Metric, positive: Any) -> Target:
        """What `y` is; ValueError if the model has other classes."""
        if self.target is None:
            return Target.of(y, metric, positive)
        kept = self.target
        if positive is None and kept.kind == "binary" and kept.ordered[1] in np.asarray(y):
            positive = kept.ordered[1]
        found = Target.of(y, metric, positive)
        same = found.kind == kept.kind and np.array_equal(found.classes, kept.classes)
        if not same or found.order != kept.order:
            raise ValueError(
                "warm_start=True goes on with the model that was trained for the classes "
                f"{kept.ordered.tolist()}, and the target has {found.ordered.tolist()}; pass the "
                "same classes with the same positive one, or warm_start=False"
            )
        return kept


def start_of(estimator: Any, columns: int) -> Start:
    """What a classifier begins its next training with, for a table of so many columns."""
    if not estimator.warm_start:
        return Start()
    if estimator.model not in get_args(ModelKind):
        raise ValueError(
            f"warm_start=True continues one model, and model={estimator.model!r} trains several; "
            "pass model='boosted', 'network' or 'linear', or warm_start=False"
        )
    if "trained_" not in vars(estimator):
        return Start()
    check_is_fitted(estimator)
    kept = estimator.preparation_
    if len(kept.columns) != columns:
        raise ValueError(
            f"warm_start=True goes on with a model of {len(kept.columns)} columns; got X with "
            f"{columns}. Pass the same columns, or warm_start=False"
        )
    model = estimator.trained_.model
    if isinstance(model, BoostedTrees) != (estimator.model == "boosted"):
        raise ValueError(
            f"warm_start=True goes on with the model that was trained, model={estimator.model_!r}; "
            f"got model={estimator.model!r}. Pass the same, or warm_start=False"
        )
    if isinstance(model, BoostedTrees):
        return Start(estimator.target_, kept, forest=_continued(model.forest, estimator.engine))
    network = copy.deepcopy(model)
    layers = [each.out_features for each in network.modules() if isinstance(each, nn.Linear)]
    hidden = () if estimator.model == "linear" else widths(estimator.hidden)
    if tuple(layers[:-1]) != hidden:
        raise ValueError(
            f"warm_start=True goes on with a network of hidden layers {tuple(layers[:-1])}; got "
            f"hidden={estimator.hidden!r}. Leave hidden as it was, or pass warm_start=False"
        )
    return Start(estimator.target_, kept, network)


def _continued(forest: Forest, asked: str | None) -> Forest:
    """The trees, if their library can add to them; ValueError otherwise."""
    engine = installed_engine(asked)
    if forest.engine == "sklearn" or engine != forest.engine:
        raise ValueError(
            "warm_start=True adds trees of LightGBM or XGBoost to trees of the same library; these "
            f"were grown by {forest.engine}, and engine is {engine!r}. Pass warm_start=False"
        )
    return forest
